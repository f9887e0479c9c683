/**
 * The agent's end of a call: reads the opening, runs the handler, and writes what it answers.
 *
 * The handler is told that nobody waits for it any more by its request's signal: when the caller gives up, the deadline passes, or the connection
 * is lost. Calls that it has made within end then too. What it still answers goes nowhere.
 */

import { AsyncLocalStorage } from "node:async_hooks";

import { Answer } from "./answer.js";
import { type Body, type ChunkSource, type Outgoing, outgoing } from "./body.js";
import { addDeadline, now } from "./deadlines.js";
import { deadlineExceeded, errorOf, HailError, resetStatus, statusOf } from "./errors.js";
import { Exchange } from "./exchange.js";
import { parseFrom } from "./protocol/address.js";
import { FRAME_PREFIX, type FrameError, FrameKind, isKnown, isOpening, kindName, putPrefix } from "./protocol/frames.js";
import { type AnswerHead, type CallHeader, decodeCall, encodeAnswerHead } from "./protocol/headers.js";
import { MAX_HEADER, MAX_HEADER_FIELDS, MAX_SEND_BODY } from "./protocol/limits.js";
import { MalformedError } from "./protocol/msgpack.js";
import { Code, encodeStatus, type Status, status } from "./protocol/status.js";
import { Reply, Request, type RequestKind } from "./request.js";

/** Answers requests: whatever it returns, or throws, is the answer. */
export type Handler = (request: Request) => unknown;

/** Where calls arrive. */
export interface CalleeOwner {
  /** Who serves an agent; undefined where nobody does any more. */
  handler(agent: string): Handler | undefined;
  /** The peer has greeted on a stream where it may not. */
  secondGreeting(): void;
  /** A handler has thrown what is no `HailError`. */
  handlerFailed(agent: string, error: unknown): void;
}

/** How long an opening may take to be whole, in milliseconds. */
const OPENING_MS = 10_000;

/** How long a refused caller is given to end its body by itself. */
const LINGER_MS = 1_000;

const EMPTY = Buffer.alloc(0);

/** The call that a handler serves, as long as it runs. */
export const serving = new AsyncLocalStorage<CalleeStream>();

/** The agent's end. */
export class CalleeStream extends Exchange {
  readonly #owner: CalleeOwner;
  #kind = 0;
  #opening = false;
  #header: CallHeader | undefined = undefined;
  /** Until when the answer is wanted, by the clock of `now`; undefined for no end. */
  until: number | undefined = undefined;
  /** The handler has returned, or nobody waits for it: calls that are made from now on are none of its. */
  over = false;
  /** Nothing more is written. */
  #closed = false;
  #abort: AbortController | undefined = undefined;
  #reason: HailError | undefined = undefined;
  #nested: Set<{ fail(error: unknown): void }> | undefined = undefined;
  #answering = false;
  #overrun = false;

  constructor(owner: CalleeOwner) {
    super();
    this.#owner = owner;
  }

  /** The agent that is called. */
  get agent(): string {
    return this.#header?.to ?? "";
  }

  /** A signal that is aborted once nobody waits for the handler. */
  get signal(): AbortSignal {
    if (this.#abort === undefined) {
      this.#abort = new AbortController();
      if (this.#reason !== undefined) this.#abort.abort(this.#reason);
    }
    return this.#abort.signal;
  }

  /** A call that is made within, and ends with this one. */
  nest(call: { fail(error: unknown): void; onSettled: (() => void) | undefined }): void {
    this.#nested ??= new Set();
    const nested = this.#nested;
    nested.add(call);
    call.onSettled = () => nested.delete(call);
  }

  override onData(bytes: Buffer, start: number, end: number, fin: boolean): number {
    const held = super.onData(bytes, start, end, fin);
    // The handler starts once all is known that has come with the opening, which mostly is the whole request.
    if (this.#opening) {
      this.#opening = false;
      this.endTimer();
      // It may read at once, so the books are in order before.
      this.unread += held;
      this.#dispatch();
      return 0;
    }
    if (this.#kind === 0 && !this.#closed && this.due < 0) {
      addDeadline(this, now() + OPENING_MS);
    }
    return this.unwanted ? 0 : held;
  }

  protected override onBody(bytes: Buffer, start: number, end: number): number {
    if (this.#kind === 0) {
      this.#refuse(status(Code.UNIMPLEMENTED, "unknown opening DATA"));
      return 0;
    }
    if (this.#kind === FrameKind.SEND && this.arrived + end - start > MAX_SEND_BODY && !this.#overrun) {
      this.#overrun = true;
      this.dropBody();
      this.endBody(errorOf(tooLong()));
    }
    return super.onBody(bytes, start, end);
  }

  protected override onFrame(kind: number, bytes: Buffer, start: number, end: number): void {
    if (this.#kind !== 0) return;
    this.#kind = kind;
    if (kind === FrameKind.HELLO) {
      this.#owner.secondGreeting();
    } else if (kind === FrameKind.CALL || kind === FrameKind.SEND || kind === FrameKind.STREAM) {
      try {
        this.#header = decodeCall(bytes, start, end);
        parseFrom(this.#header.from);
        this.#opening = true;
      } catch (error) {
        const why = error instanceof Error ? error.message : String(error);
        const words = error instanceof MalformedError && error.kind === "bound" ? why : `malformed header: ${why}`;
        this.#refuse(status(Code.INVALID_ARGUMENT, words));
      }
    } else {
      const newer = isOpening(kind) && !isKnown(kind) ? "the far side speaks a newer version of the session protocol" : "";
      this.#refuse(status(Code.UNIMPLEMENTED, `unknown opening ${kindName(kind)}`, newer));
    }
  }

  protected override onFinish(): void {
    if (this.#kind === 0) {
      // An opener that left without a word needs no answer.
      this.endTimer();
      this.#closed = true;
      this.reset(Code.CANCELLED);
      this.release();
      return;
    }
    this.endBody(undefined);
  }

  protected override onMalformed(error: FrameError): void {
    const words = status(Code.INVALID_ARGUMENT, error.message);
    this.endBody(errorOf(words));
    this.#giveUpHandler(errorOf(words));
    this.#refuse(words);
  }

  protected override onTooLong(most: number): void {
    const options = { hint: "read it chunk by chunk, or allow more" };
    this.endBody(new HailError("resource_exhausted", `the body is longer than ${most} bytes`, options));
    this.dropBody();
    this.stop(Code.OK);
  }

  override onReset(code: number): void {
    this.dropBody();
    this.deaf = true;
    this.endBody(errorOf(resetStatus(code)));
    if (this.#kind === 0) this.onFinish();
  }

  override onStop(code: number): void {
    this.#abandon(errorOf(resetStatus(code === Code.OK ? Code.CANCELLED : code)));
  }

  override onLost(): void {
    this.#abandon(new HailError("unavailable", "the connection to the node is gone"));
  }

  override onSent(): void {
    if (this.#closed && this.#kind !== 0 && !this.isReceiving) this.endTimer();
  }

  override onDeadline(): void {
    if (this.#kind === 0) {
      this.#kind = -1;
      this.#refuse(status(Code.DEADLINE_EXCEEDED, "the stream's first frame did not come"));
    } else if (this.#closed && this.queued === 0) {
      // A caller that was refused goes on writing.
      this.stop(Code.OK);
    } else {
      this.#giveUpHandler(errorOf(deadlineExceeded()));
      // A frame may be half written, and nobody waits for the rest: only a reset can follow.
      if (this.queued > 0) this.reset(Code.DEADLINE_EXCEEDED);
      this.#finishWith(deadlineExceeded());
    }
  }

  #dispatch(): void {
    const header = this.#header;
    if (header === undefined) return;
    const handler = this.#owner.handler(header.to);
    if (handler === undefined) {
      this.#refuse(status(Code.NOT_FOUND, `\`${header.to}\` is no longer served here`));
      return;
    }
    if (header.deadlineMs !== undefined) {
      this.until = now() + Number(header.deadlineMs);
      if (header.deadlineMs === 0) {
        this.onDeadline();
        return;
      }
      addDeadline(this, this.until);
    }
    // Both sides of a raw stream may wait for the other to speak first.
    if (this.#kind === FrameKind.STREAM) this.writeFrame(FrameKind.HEAD, Buffer.from([0x80]), false);
    const request = new Request(this, header, kindOf(this.#kind));
    let result: unknown;
    try {
      result = serving.run(this, handler, request);
    } catch (error) {
      this.#fail(error);
      return;
    }
    if (isPromise(result)) {
      result.then(
        (answer: unknown) => {
          this.#answer(answer);
        },
        (error: unknown) => {
          this.#fail(error);
        },
      );
    } else {
      this.#answer(result);
    }
  }

  /** The handler has returned. */
  #answer(result: unknown): void {
    if (this.#closed) {
      this.over = true;
      discard(result);
      return;
    }
    let body: Outgoing;
    let head: AnswerHead | undefined;
    try {
      const reply = result instanceof Reply || result instanceof Answer ? result : undefined;
      body = outgoing((reply === undefined ? result : reply.body) as Body);
      head = headOf(reply, body);
    } catch (error) {
      this.#fail(error);
      return;
    }
    if (this.#overrun) {
      body.source?.leave();
      this.over = true;
      this.#finishWith(tooLong());
      return;
    }
    if (this.#kind === FrameKind.SEND) {
      // There is no answer, so nothing is made of one.
      body.source?.leave();
      this.over = true;
      this.#finishWith(undefined);
      return;
    }
    const ahead = head === undefined || this.#kind === FrameKind.STREAM ? EMPTY : encodeAnswerHead(head);
    if (ahead.length > MAX_HEADER || (head?.headers.length ?? 0) > MAX_HEADER_FIELDS) {
      body.source?.leave();
      this.over = true;
      this.#finishWith(status(Code.INTERNAL, "the head of the answer exceeds its bound"));
      return;
    }
    if (body.bytes !== undefined) {
      this.over = true;
      this.#answerWhole(ahead, body.bytes);
    } else if (body.source !== undefined) {
      this.#answering = true;
      if (ahead.length > 0) this.writeFrame(FrameKind.HEAD, ahead, false);
      this.#stream(body.source);
    }
  }

  /** Head, body and end in one piece, if they are small. */
  #answerWhole(head: Buffer, body: Buffer): void {
    const length =
      (head.length > 0 ? FRAME_PREFIX + head.length : 0) + (body.length > 0 ? FRAME_PREFIX + body.length : 0) + FRAME_PREFIX;
    const mux = this.mux;
    let at = mux?.reserve(this, length, true) ?? -1;
    if (at < 0 || mux === undefined) {
      if (head.length > 0) this.writeFrame(FrameKind.HEAD, head, false);
      this.writeBody(body);
      this.#finishWith(undefined);
      return;
    }
    const out = mux.output;
    if (head.length > 0) {
      at = putPrefix(out, at, FrameKind.HEAD, head.length);
      out.set(head, at);
      at += head.length;
    }
    if (body.length > 0) {
      at = putPrefix(out, at, FrameKind.DATA, body.length);
      out.set(body, at);
      at += body.length;
    }
    putPrefix(out, at, FrameKind.END, 0);
    this.#close();
  }

  #stream(source: ChunkSource): void {
    // The chunks are made within the call, as the handler is.
    serving
      .run(this, () => this.pump(source))
      .then(
        (all) => {
          this.over = true;
          if (all && !this.#closed) this.#finishWith(this.#overrun ? tooLong() : undefined);
        },
        (error: unknown) => {
          this.#fail(error);
        },
      );
  }

  /** The handler has thrown. */
  #fail(error: unknown): void {
    this.over = true;
    if (this.#closed) return;
    const of = statusOf(error);
    if (of === undefined) this.#owner.handlerFailed(this.agent, error);
    const failed = of ?? status(Code.INTERNAL, "the agent's handler failed", "the agent's own log says where");
    this.#finishWith(this.#overrun ? tooLong() : failed.code === Code.OK ? undefined : failed);
  }

  /** Ends the answer, with an error unless it is well. */
  #finishWith(failed: Status | undefined): void {
    if (this.#closed) return;
    if (this.isSending) this.writeFrame(FrameKind.END, failed === undefined ? EMPTY : encodeStatus(failed), true);
    this.#close();
  }

  /** The answer is written, or given up. */
  #close(): void {
    this.#closed = true;
    // A deadline still holds for what waits to leave.
    if (this.queued === 0 || this.until === undefined) this.endTimer();
    if (this.isReceiving) {
      this.dropBody();
      this.endBody(new HailError("cancelled", "the request has been answered"));
      this.stop(Code.OK);
    }
    this.release();
  }

  /** Answers an opening with an error. Its body is cut off only if the caller goes on with it. */
  #refuse(why: Status): void {
    this.deaf = true;
    this.dropBody();
    this.endTimer();
    if (!this.#closed) {
      this.writeFrame(FrameKind.END, encodeStatus(why), true);
      this.#closed = true;
    }
    this.over = true;
    if (this.isReceiving) addDeadline(this, now() + LINGER_MS);
    this.release();
  }

  /** Nobody waits for the answer any more. */
  #abandon(why: HailError): void {
    if (this.#closed && !this.#answering && this.over) {
      this.endTimer();
      return;
    }
    this.#closed = true;
    this.endTimer();
    this.reset(why.number);
    this.dropBody();
    this.endBody(why);
    this.#giveUpHandler(why);
    this.stop(Code.CANCELLED);
    this.release();
  }

  #giveUpHandler(why: HailError): void {
    if (this.#reason !== undefined) return;
    this.#reason = why;
    this.over = true;
    this.leaveSource();
    this.#abort?.abort(why);
    const nested = this.#nested;
    this.#nested = undefined;
    if (nested !== undefined) for (const call of nested) call.fail(why);
  }
}

/** What is to be waited for. A call that is returned as it is, is passed on chunk by chunk instead. */
function isPromise(result: unknown): result is PromiseLike<unknown> {
  if (result instanceof Promise) return true;
  if (typeof result !== "object" || result === null || Symbol.asyncIterator in result) return false;
  return "then" in result && typeof result.then === "function";
}

function kindOf(kind: number): RequestKind {
  if (kind === FrameKind.SEND) return "send";
  return kind === FrameKind.STREAM ? "stream" : "call";
}

function headOf(reply: Reply | Answer | undefined, body: Outgoing): AnswerHead | undefined {
  const type = reply?.type ?? body.type;
  const headers = reply?.headers ?? [];
  return type === "" && headers.length === 0 ? undefined : { type, headers };
}

function tooLong(): Status {
  return status(Code.RESOURCE_EXHAUSTED, `a one-way message has at most ${MAX_SEND_BODY} bytes`, "use a call or a stream");
}

/** Chunks that nobody reads are not made. */
function discard(result: unknown): void {
  const body: unknown = result instanceof Reply ? result.body : result;
  if (typeof body !== "object" || body === null) return;
  if (body instanceof ReadableStream || Symbol.asyncIterator in body) outgoing(body as Body).source?.leave();
}
