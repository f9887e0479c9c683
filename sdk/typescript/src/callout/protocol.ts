/**
 * The agent's side of one connection, without I/O.
 *
 * Bytes go in with {@link AgentProtocol.receive}, which says what came of them; bytes to write come out of
 * {@link AgentProtocol.takeOutput}. Pings, handshakes and events that cannot be read are answered here. An event that cannot be
 * read is answered with a block of status 500, never with an allow; when not even its request can be found in it, the connection
 * ends.
 */
import { DecodeError, type Encoding, type Writable, decodeJson } from "./codec.js";
import { type Decision, VERSION, block } from "./decisions.js";
import { type Event, type EventKind, RecordOf, decodeEvent, eventKind } from "./events.js";
import {
  FrameBuffer,
  FrameType,
  ProtocolError,
  answerFrame,
  frame,
  isKnownType,
  numberedAnswerFrame,
  takeChunk,
  takeEventHead,
  takeNumber,
} from "./frames.js";
import {
  type Capabilities,
  type Extensions,
  type HandshakeRequest,
  decodeHandshake,
  decodeRegistrationResponse,
  encodeHandshakeResponse,
  encodeRegistration,
} from "./handshake.js";
import { type Notice, encodeNotice } from "./notices.js";
import { eventId } from "./salvage.js";

/** What the other side sent is no handshake that this agent can answer. */
export class HandshakeError extends ProtocolError {
  /** `HandshakeError`. */
  override readonly name: string = "HandshakeError";
}

/** The host does not want this agent. */
export class RefusedError extends Error {
  /** `RefusedError`. */
  override readonly name: string = "RefusedError";
}

/** Why a host no longer waits for an answer. */
export type CancelReason =
  | "client_disconnect"
  | "timeout"
  | "blocked_by_agent"
  | "upstream_error"
  | "proxy_shutdown"
  | "manual";

const CANCEL_REASONS: readonly CancelReason[] = [
  "client_disconnect",
  "timeout",
  "blocked_by_agent",
  "upstream_error",
  "proxy_shutdown",
  "manual",
];

/** What an agent speaks. */
export interface ProtocolOptions {
  /** The best first. A host that speaks none of them gets JSON. */
  readonly encodings: readonly Encoding[];
  /** Whether what only Hailwire speaks is agreed to. */
  readonly extensions: boolean;
  /** Bytes of one direction of a request's body that may be on their way. */
  readonly window: number;
}

/** What an agent shows to a host that it connects to. */
export interface Registration {
  readonly token: string | null;
  readonly metadata: Writable;
}

/** The handshake is done. */
export interface Opened {
  readonly type: "opened";
  readonly hostId: string;
  readonly hostVersion: string;
  readonly config: unknown;
}

/** An event, and what to answer it to: its number, or else its request. */
export interface Asked {
  readonly type: "asked";
  readonly event: Event;
  readonly correlationId: string;
  readonly size: number;
  readonly number: Buffer | undefined;
}

/** The host no longer waits for what it asked about a request. */
export interface Cancelled {
  readonly type: "cancelled";
  readonly correlationId: string;
  readonly reason: CancelReason;
}

/** What came of bytes that were read. */
export type Incoming = Opened | Asked | Cancelled;

/** One connection: a handshake, then events in and answers out. */
export class AgentProtocol {
  #isOpen = false;
  #isNumbered = false;
  #encoding: Encoding = "json";
  #output: Buffer[] = [];
  #outputSize = 0;
  readonly #incoming = new FrameBuffer();

  constructor(
    private readonly capabilities: Capabilities,
    private readonly options: ProtocolOptions,
    private readonly log: (what: string, error: unknown) => void,
    private readonly registration?: Registration,
  ) {
    if (registration !== undefined) {
      const ours = options.extensions ? this.extensions(options.window, options.encodings) : undefined;
      const said = encodeRegistration(capabilities, registration.token, registration.metadata, ours);
      this.put(frame(FrameType.Handshake, said));
    }
  }

  /** Whether the handshake is done. */
  get isOpen(): boolean {
    return this.#isOpen;
  }

  /** The encoding of everything after the handshake. */
  get encoding(): Encoding {
    return this.#encoding;
  }

  /** Bytes that wait to be written. */
  get outputSize(): number {
    return this.#outputSize;
  }

  /** Takes what was read, and says what came. Throws {@link ProtocolError} or {@link RefusedError} where the connection ends. */
  *receive(data: Uint8Array): Generator<Incoming, void> {
    this.#incoming.feed(data);
    for (;;) {
      const next = this.#incoming.next();
      if (next === undefined) return;
      const [code, payload] = next;
      if (!this.#isOpen) {
        yield this.registration === undefined ? this.greeted(code, payload) : this.registered(code, payload);
      } else {
        const came = this.frame(code, payload);
        if (came !== undefined) yield came;
      }
    }
  }

  /** Answers an event. What cannot be written is answered with a block, since nobody else would tell the host. */
  answer(asked: Asked, decision: Decision): void {
    try {
      this.put(this.answered(asked.number, asked.correlationId, decision));
    } catch (error) {
      this.log("answer could not be written; its request is blocked", error);
      this.put(this.answered(asked.number, asked.correlationId, block(500)));
    }
  }

  /** Tells the host something unasked. Throws `TypeError` or `RangeError` for what has no form on the wire. */
  notify(notice: Notice): void {
    const [code, payload] = encodeNotice(notice, this.#encoding);
    this.put(frame(code, payload));
  }

  /** Takes what is to be written. */
  takeOutput(): Buffer {
    const taken = Buffer.concat(this.#output, this.#outputSize);
    this.#output = [];
    this.#outputSize = 0;
    return taken;
  }

  private put(bytes: Buffer): void {
    this.#output.push(bytes);
    this.#outputSize += bytes.length;
  }

  private answered(number: Buffer | undefined, correlationId: string, decision: Decision): Buffer {
    if (number === undefined) return answerFrame(correlationId, decision, this.#encoding);
    return numberedAnswerFrame(number, decision, this.#encoding);
  }

  private extensions(window: number, encodings: readonly Encoding[]): Extensions {
    return { rawBodies: true, window, encodings };
  }

  private greeted(code: number, payload: Buffer): Opened {
    if (code !== FrameType.Handshake) throw new HandshakeError(`expected a handshake frame, got frame type ${code}`);
    let hello: HandshakeRequest;
    try {
      hello = decodeHandshake(payload);
      if (!hello.supportedVersions.includes(VERSION)) throw new DecodeError(`version ${VERSION} is spoken`);
    } catch (error) {
      if (!(error instanceof DecodeError)) throw error;
      const said = encodeHandshakeResponse(this.capabilities, "json", undefined, error.message);
      this.put(frame(FrameType.HandshakeAnswer, said));
      throw new HandshakeError(`invalid handshake: ${error.message}`);
    }
    this.#encoding = hello.supportedEncodings.find((one) => this.options.encodings.includes(one)) ?? "json";
    const theirs = this.options.extensions ? hello.extensions : undefined;
    const agreed = theirs?.rawBodies ? this.extensions(Math.min(this.options.window, theirs.window), []) : undefined;
    const said = encodeHandshakeResponse(this.capabilities, this.#encoding, agreed);
    this.put(frame(FrameType.HandshakeAnswer, said));
    this.#isNumbered = agreed !== undefined;
    this.#isOpen = true;
    return { type: "opened", hostId: hello.proxyId, hostVersion: hello.proxyVersion, config: hello.config };
  }

  private registered(code: number, payload: Buffer): Opened {
    if (code !== FrameType.HandshakeAnswer) {
      throw new HandshakeError(`expected a handshake answer, got frame type ${code}`);
    }
    let answer: ReturnType<typeof decodeRegistrationResponse>;
    try {
      answer = decodeRegistrationResponse(payload);
    } catch (error) {
      if (!(error instanceof DecodeError)) throw error;
      throw new HandshakeError(`invalid handshake: ${error.message}`);
    }
    if (!answer.success) throw new RefusedError(answer.error ?? "refused by the host");
    const agreed = this.options.extensions ? answer.extensions : undefined;
    if (agreed !== undefined) {
      this.#encoding = agreed.encodings[0] ?? "json";
      this.#isNumbered = agreed.rawBodies;
      if (this.#encoding !== "json" && !this.options.encodings.includes(this.#encoding)) {
        throw new HandshakeError(`the host chose an encoding that was not offered: ${this.#encoding}`);
      }
    }
    this.#isOpen = true;
    return { type: "opened", hostId: answer.proxyId, hostVersion: answer.proxyVersion, config: null };
  }

  private frame(code: number, payload: Buffer): Incoming | undefined {
    if (this.#isNumbered && (code === FrameType.NumberedEvent || code === FrameType.NumberedChunk)) {
      return this.numbered(code, payload);
    }
    const kind = eventKind(code);
    if (kind !== undefined) return this.event(kind, payload);
    if (code === FrameType.Cancel) return this.cancelled(payload);
    if (code === FrameType.Ping) this.put(frame(FrameType.Pong, payload));
    else if (!isKnownType(code)) throw new ProtocolError(`unknown frame type ${code}`);
    return undefined;
  }

  private cancelled(payload: Buffer): Cancelled | undefined {
    try {
      const record = new RecordOf<"correlation_id" | "reason">(decodeJson(payload), []);
      const reason = record.value("reason") ?? 0;
      const name = typeof reason === "number" ? CANCEL_REASONS[reason] : undefined;
      return { type: "cancelled", correlationId: record.text("correlation_id"), reason: name ?? "manual" };
    } catch (error) {
      if (!(error instanceof DecodeError)) throw error;
      return undefined;
    }
  }

  private event(kind: EventKind, payload: Buffer): Asked | undefined {
    let event: Event;
    try {
      event = decodeEvent(kind, payload, this.#encoding);
    } catch (error) {
      if (!(error instanceof DecodeError)) throw error;
      const correlationId = eventId(payload, this.#encoding);
      if (correlationId === undefined) throw new ProtocolError(`event of nobody: ${error.message}`);
      this.unreadable(undefined, correlationId, error);
      return undefined;
    }
    const { correlationId } = event.event;
    return { type: "asked", event, correlationId, size: payload.length, number: undefined };
  }

  private numbered(code: number, payload: Buffer): Asked | undefined {
    let number: Buffer;
    try {
      number = takeNumber(payload);
    } catch (error) {
      if (!(error instanceof DecodeError)) throw error;
      throw new ProtocolError(`event of nobody: ${error.message}`);
    }
    let event: Event;
    try {
      if (code === FrameType.NumberedChunk) {
        const chunk = takeChunk(payload);
        event = { kind: chunk.ofResponse ? "responseBody" : "requestBody", event: chunk };
      } else {
        const [kind, said] = takeEventHead(payload);
        event = decodeEvent(kind, said, this.#encoding);
      }
    } catch (error) {
      if (!(error instanceof DecodeError)) throw error;
      this.unreadable(number, "", error);
      return undefined;
    }
    const { correlationId } = event.event;
    return { type: "asked", event, correlationId, size: payload.length, number };
  }

  private unreadable(number: Buffer | undefined, correlationId: string, error: DecodeError): void {
    this.log("event could not be decoded; its request is blocked", error);
    this.put(this.answered(number, correlationId, block(500)));
  }
}
