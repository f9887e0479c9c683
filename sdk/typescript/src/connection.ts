/**
 * One connection to the node: a Unix socket, the multiplexer on it, and the control stream.
 *
 * What is written in a turn of the event loop leaves with one write. What comes is read into one buffer, which is used again, so everything that
 * outlives the turn is copied out of it once. The connection keeps the process alive while something is under way on it.
 */

import net from "node:net";

import { CalleeStream, type Handler } from "./callee.js";
import { type CallerOwner, CallerStream } from "./caller.js";
import { addDeadline, removeDeadline, type Timed } from "./deadlines.js";
import { errorOf, HailError } from "./errors.js";
import { type FrameError, FrameKind, frame, FrameStream } from "./protocol/frames.js";
import { CallHeaderCache } from "./protocol/call_header_cache.js";
import {
  decodeGoingAway,
  decodeHello,
  encodeHello,
  encodeRegister,
  type RegisterHeader,
  VERSION,
} from "./protocol/headers.js";
import { checkOfferPage, decodeOffers } from "./protocol/offers.js";
import { MAX_PING } from "./protocol/limits.js";
import { MalformedError } from "./protocol/msgpack.js";
import { Mux, type MuxOwner, type MuxStream } from "./protocol/mux.js";
import { Code, codeName, decodeStatus, type Status, status } from "./protocol/status.js";
import type { WheelEntry } from "./protocol/timer_wheel.js";
import { findSocket, socketError } from "./socket.js";

/** Bytes of the buffer that is read into. */
const READ_BUFFER = 64 * 1024;

/** How long the node may take to greet, in milliseconds. */
const GREETING_MS = 10_000;

const HIGH = 2;
const CRITICAL = 3;

/** Whoever has a connection. */
export interface ConnectionOwner {
  readonly root: string;
  readonly name: string;
  /** Who serves an agent; undefined where nobody does. */
  handler(agent: string): Handler | undefined;
  handlerFailed(agent: string, error: unknown): void;
  /** The connection has ended; all that was under way on it has been told. */
  connectionEnded(connection: Connection, why: Status): void;
}

/** A connection. */
export class Connection implements MuxOwner, CallerOwner {
  readonly headers = new CallHeaderCache();
  readonly mux: Mux;
  readonly #owner: ConnectionOwner;
  readonly #socket: net.Socket;
  readonly #control: ControlStream;
  readonly #flush = (): void => {
    this.flush();
  };
  readonly #onWritten = (): void => {
    this.mux.written();
  };
  #scheduled = false;
  #holds = 0;
  #referenced = true;
  #goingAway = false;
  #greeted: { resolve(): void; reject(error: unknown): void } | undefined;
  #endStatus: Status | undefined;
  /** Why it was closed here. */
  #closedWith: Status | undefined;

  /** Connects and greets; resolves once the node has greeted, too. Rejects with {@link HailError}. */
  static async open(owner: ConnectionOwner): Promise<Connection> {
    const found = findSocket(owner.root);
    let connection: Connection | undefined;
    try {
      const connected = new Promise<void>((resolve, reject) => {
        connection = new Connection(owner, found.path, resolve, reject);
      });
      await connected;
    } finally {
      found.close();
    }
    if (connection === undefined) throw new HailError("internal", "no connection was made");
    await connection.#greeting();
    return connection;
  }

  private constructor(owner: ConnectionOwner, path: string, connected: () => void, failed: (error: unknown) => void) {
    this.#owner = owner;
    this.mux = new Mux("client", this);
    this.#control = new ControlStream(this);
    const buffer = Buffer.allocUnsafeSlow(READ_BUFFER);
    this.#socket = net.connect({
      path,
      onread: {
        buffer,
        callback: (length): boolean => {
          this.mux.receive(buffer, 0, length);
          return true;
        },
      },
    });
    let up = false;
    this.#socket.on("connect", () => {
      up = true;
      connected();
    });
    this.#socket.on("error", (error) => {
      if (up) this.mux.lost(error.message);
      else failed(socketError(owner.root, error));
    });
    this.#socket.on("close", () => {
      this.mux.lost("the byte stream ended");
    });
    this.mux.open(this.#control, CRITICAL);
    this.#control.greet(owner.name);
  }

  #greeting(): Promise<void> {
    return new Promise((resolve, reject) => {
      if (this.#endStatus !== undefined) {
        reject(errorOf(this.#endStatus));
        return;
      }
      if (this.#control.greeted) {
        resolve();
        return;
      }
      this.#greeted = { resolve, reject };
      addDeadline(this.#control, this.#control.expectedBy());
    });
  }

  /** Why nothing can be called on it now; undefined where it can. */
  get refusal(): Status | undefined {
    if (this.mux.ended !== undefined) return this.lostStatus();
    if (this.#goingAway) return status(Code.UNAVAILABLE, "the far side takes no more calls on this connection");
    return undefined;
  }

  /** @internal The node has greeted. */
  onGreeted(): void {
    removeDeadline(this.#control);
    this.#greeted?.resolve();
    this.#greeted = undefined;
    this.#reference();
  }

  /** @internal The node takes no more calls. */
  onGoingAway(): void {
    this.#goingAway = true;
  }

  /** A call of this program. */
  call(): CallerStream {
    return new CallerStream(this);
  }

  /** Puts a call on the connection. */
  openCall(stream: CallerStream, priority: number): void {
    const refusal = this.refusal;
    if (refusal !== undefined) throw errorOf(refusal);
    stream.counted = true;
    this.hold();
    this.mux.open(stream, priority);
  }

  /** A call has ended. */
  callEnded(stream: CallerStream): void {
    if (!stream.counted) return;
    stream.counted = false;
    this.letGo();
  }

  /** Registers an agent. */
  register(header: RegisterHeader, owner: RegistrationOwner): RegistrationStream {
    const stream = new RegistrationStream(this, owner);
    this.mux.open(stream, HIGH);
    stream.write(frame(FrameKind.REGISTER, encodeRegister(header)));
    return stream;
  }

  /** Something is under way that the process is to stay alive for. */
  hold(): void {
    this.#holds += 1;
    if (!this.#referenced) this.#reference();
  }

  /** It is over. */
  letGo(): void {
    this.#holds -= 1;
    if (this.#holds === 0) this.wake();
  }

  #reference(): void {
    // Until the greeting has come there is something to wait for.
    const wanted = this.#holds > 0 || !this.#control.greeted;
    if (wanted === this.#referenced) return;
    this.#referenced = wanted;
    if (wanted) this.#socket.ref();
    else this.#socket.unref();
  }

  /** Closes it: what is under way ends. */
  close(code: number, reason: string): void {
    this.#closedWith ??= status(code === Code.OK ? Code.UNAVAILABLE : code, reason);
    this.mux.close(code, reason);
    this.flush();
  }

  lostStatus(): Status {
    const why = this.mux.ended;
    switch (why?.by) {
      case "peer":
        if (why.code !== Code.OK) return status(why.code, why.reason);
        break;
      case "lost":
        return status(Code.UNAVAILABLE, `the connection to the node is gone: ${why.reason}`);
      case "protocol":
        return status(Code.UNAVAILABLE, `the node broke the protocol: ${why.reason}`);
      default:
        if (this.#closedWith !== undefined) return status(Code.UNAVAILABLE, this.#closedWith.message);
    }
    return status(Code.UNAVAILABLE, "the connection was closed in mid-call");
  }

  // What the multiplexer asks for.

  accept(): MuxStream {
    return new CalleeStream(this);
  }

  wake(): void {
    if (this.#scheduled) return;
    this.#scheduled = true;
    setImmediate(this.#flush);
  }

  ended(): void {
    const why = this.lostStatus();
    this.#endStatus = this.#closedWith ?? why;
    removeDeadline(this.#control);
    this.#greeted?.reject(errorOf(this.#endStatus));
    this.#greeted = undefined;
    if (this.mux.ended?.by === "peer" || this.mux.ended?.by === "lost") this.#socket.destroy();
    this.#owner.connectionEnded(this, why);
  }

  /** Writes what there is to be written. */
  flush(): void {
    this.#scheduled = false;
    const output = this.mux.takeOutput();
    if (output !== undefined) {
      this.#socket.write(output, this.#onWritten);
      // Nothing comes after a farewell.
      if (this.mux.ended !== undefined) this.#socket.end();
    } else if (this.mux.ended !== undefined) {
      this.#socket.end();
    }
    if (this.#referenced !== this.#holds > 0) this.#reference();
  }

  // What calls that arrive ask for.

  handler(agent: string): Handler | undefined {
    return this.#owner.handler(agent);
  }

  secondGreeting(): void {
    this.close(Code.INVALID_ARGUMENT, "a second greeting");
  }

  handlerFailed(agent: string, error: unknown): void {
    this.#owner.handlerFailed(agent, error);
  }
}

/** The control stream: greetings, pings, offers and the farewell. */
class ControlStream extends FrameStream implements Timed {
  due = -1;
  earlier: WheelEntry | undefined = undefined;
  later: WheelEntry | undefined = undefined;
  greeted = false;
  readonly #connection: Connection;
  readonly #made = performance.now();

  constructor(connection: Connection) {
    super();
    this.#connection = connection;
  }

  greet(name: string): void {
    const software = "hailwire-typescript/0.1.0";
    const hello = encodeHello({ versions: [VERSION], name, software, instance: 0, features: [], additional: false });
    this.write(frame(FrameKind.HELLO, hello));
  }

  expectedBy(): number {
    return this.#made + GREETING_MS;
  }

  onDeadline(): void {
    this.#connection.close(Code.DEADLINE_EXCEEDED, "no greeting came");
  }

  protected override onBody(): number {
    return 0;
  }

  protected override onFrame(kind: number, bytes: Buffer, start: number, end: number): void {
    try {
      this.#frame(kind, bytes, start, end);
    } catch (error) {
      if (!(error instanceof MalformedError)) throw error;
      this.#connection.close(Code.INVALID_ARGUMENT, `malformed header: ${error.message}`);
    }
  }

  #frame(kind: number, bytes: Buffer, start: number, end: number): void {
    switch (kind) {
      case FrameKind.HELLO: {
        const hello = decodeHello(bytes, start, end);
        if (!hello.versions.includes(VERSION)) {
          const theirs = hello.versions.join(", ");
          const why = `no common protocol version: the peer speaks [${theirs}], this side speaks [${VERSION}]`;
          this.#connection.close(Code.FAILED_PRECONDITION, why);
          return;
        }
        this.greeted = true;
        this.#connection.onGreeted();
        return;
      }
      case FrameKind.PING:
        if (end - start > MAX_PING) this.#connection.close(Code.INVALID_ARGUMENT, "a ping of more than 64 bytes");
        // Of a peer that pings and does not read, no more is kept than its window.
        else if (this.queued < MAX_PONGS) this.write(frame(FrameKind.PONG, bytes.subarray(start, end)));
        return;
      case FrameKind.OFFERS:
      case FrameKind.MORE_OFFERS:
        checkOfferPage(decodeOffers(bytes, start, end), kind === FrameKind.OFFERS);
        return;
      case FrameKind.GOING_AWAY:
        decodeGoingAway(bytes, start, end);
        this.#connection.onGoingAway();
        return;
      default:
      // It belongs to other streams, or to a later version.
    }
  }

  protected override onFinish(): void {
    this.#connection.close(Code.OK, "the control stream ended");
  }

  protected override onMalformed(error: FrameError): void {
    this.#connection.close(Code.INVALID_ARGUMENT, error.message);
  }

  override onReset(): void {
    this.#connection.close(Code.OK, "the control stream ended");
  }

  override onStop(): void {
    this.#connection.close(Code.OK, "the control stream ended");
  }

  override onLost(): void {}
}

/** Bytes of answers to pings that may wait. */
const MAX_PONGS = 16 * (MAX_PING + 4);

/** Who has registered an agent. */
export interface RegistrationOwner {
  /** The node has accepted it. */
  registered(): void;
  /** It is over; with `ok` the node has ended it in order. */
  unregistered(why: Status): void;
}

/** A registration, which lasts while its stream is open. */
export class RegistrationStream extends FrameStream {
  readonly #connection: Connection;
  readonly #owner: RegistrationOwner;
  #ended = false;

  constructor(connection: Connection, owner: RegistrationOwner) {
    super();
    this.#connection = connection;
    this.#owner = owner;
    connection.hold();
  }

  /** Takes the agent back in order: the node answers with an end once it has no call. */
  leave(): void {
    this.finish();
  }

  /** Takes it back at once. */
  abort(): void {
    this.#end(status(Code.CANCELLED, "the agent was taken back"));
  }

  #end(why: Status, inOrder = false): void {
    if (this.#ended) return;
    this.#ended = true;
    this.deaf = true;
    if (inOrder) this.stop(Code.OK);
    else this.cancel();
    this.release();
    this.#connection.letGo();
    this.#owner.unregistered(why);
  }

  protected override onBody(): number {
    return 0;
  }

  protected override onFrame(kind: number, bytes: Buffer, start: number, end: number): void {
    if (kind === FrameKind.HEAD) {
      this.#owner.registered();
    } else if (kind === FrameKind.END) {
      // The end of this direction is in order after that of the other.
      this.finish();
      this.#end(endStatus(bytes, start, end), true);
    }
  }

  protected override onFinish(): void {
    this.#end(status(Code.UNAVAILABLE, "the node ended the registration"));
  }

  protected override onMalformed(error: FrameError): void {
    this.#end(status(Code.INVALID_ARGUMENT, error.message));
  }

  override onReset(code: number): void {
    this.#end(status(code === Code.OK ? Code.UNAVAILABLE : code, `the node ended the registration (${codeName(code)})`));
  }

  override onStop(code: number): void {
    this.onReset(code);
  }

  override onLost(): void {
    this.#end(this.#connection.lostStatus());
  }
}

function endStatus(bytes: Buffer, start: number, end: number): Status {
  if (start === end) return status(Code.OK, "");
  try {
    return decodeStatus(bytes, start, end);
  } catch {
    return status(Code.INTERNAL, "the node ended the registration without a reason that can be read");
  }
}
