/**
 * The caller's end of a call, a one-way send or a raw stream: writes the opening and the body, reads the answer, and gives up when its time has
 * passed or nobody wants the answer any more. Giving up resets what is still written and stops what is still read, both with code 1.
 */

import type { Outgoing } from "./body.js";
import { addDeadline, now } from "./deadlines.js";
import { deadlineExceeded, errorOf, HailError, resetStatus } from "./errors.js";
import { Exchange } from "./exchange.js";
import { FRAME_PREFIX, type FrameError, FrameKind, putPrefix } from "./protocol/frames.js";
import { type CallHeaderCache, deadlineLength, putDeadline } from "./protocol/call_header_cache.js";
import {
  type AnswerHead,
  type CallHeader,
  checkBounds,
  decodeAnswerHead,
  EMPTY_HEAD,
  encodeCall,
} from "./protocol/headers.js";
import { MAX_HEADER } from "./protocol/limits.js";
import { type Int, MalformedError } from "./protocol/msgpack.js";
import { Code, codeName, decodeStatus, type Status, status } from "./protocol/status.js";

/** What is known of a call when it is made. */
export interface CallPlan {
  /** `CALL`, `SEND` or `STREAM`. */
  readonly kind: number;
  /** Without its deadline. */
  readonly header: CallHeader;
  /** Whether the header says nothing but to, method, from and type. */
  readonly plain: boolean;
  /** Until when, by the clock of `now`; undefined for no deadline. */
  readonly until: number | undefined;
  /** Gives the call up. */
  readonly signal: AbortSignal | undefined;
}

/** Where a call is made. */
export interface CallerOwner {
  /** Puts the stream on the connection, or throws why there is none. */
  openCall(stream: CallerStream, priority: number): void;
  /** The call has ended. */
  callEnded(stream: CallerStream): void;
  /** Why calls under way have ended with the connection. */
  lostStatus(): Status;
  readonly headers: CallHeaderCache;
}

/** The caller's end. */
export class CallerStream extends Exchange {
  readonly #owner: CallerOwner;
  /** What the agent has said ahead of its answer. */
  head: AnswerHead = EMPTY_HEAD;
  /** The owner counts it as under way. */
  counted = false;
  /** The answer has begun: its head, its first byte, or its end has come. */
  begun = false;
  #settled = false;
  #began: { resolve(): void; reject(error: unknown): void }[] | undefined = undefined;
  #signal: AbortSignal | undefined = undefined;
  #onAbort: (() => void) | undefined = undefined;
  /** Tells the call that this one is made within. */
  onSettled: (() => void) | undefined = undefined;

  constructor(owner: CallerOwner) {
    super();
    this.#owner = owner;
  }

  /** Whether the call has ended, well or not. */
  get settled(): boolean {
    return this.#settled;
  }

  /** Why it has ended, where it has not ended well. */
  get failure(): Error | undefined {
    return this.bodyFailure;
  }

  /** Makes the call. Whatever is wrong with it is told to whoever reads the answer. */
  start(plan: CallPlan, body: Outgoing): void {
    const { signal, until } = plan;
    try {
      if (signal?.aborted === true) throw aborted(signal);
      if (until !== undefined && until <= now()) throw errorOf(deadlineExceeded());
      this.#owner.openCall(this, plan.header.priority);
      if (this.#settled) return;
      this.#open(plan, body);
    } catch (error) {
      body.source?.leave();
      this.fail(error);
      return;
    }
    if (until !== undefined) addDeadline(this, until);
    if (signal !== undefined) {
      this.#signal = signal;
      this.#onAbort = () => this.fail(aborted(signal));
      signal.addEventListener("abort", this.#onAbort);
    }
  }

  #open(plan: CallPlan, body: Outgoing): void {
    const left = plan.until === undefined ? undefined : Math.max(1, Math.ceil(plan.until - now()));
    const { bytes, source } = body;
    if (plan.plain && bytes !== undefined && this.#writePlain(plan.kind, plan.header, left, bytes)) return;
    const header = encodeHeader(plan.header, left);
    if (bytes !== undefined && FRAME_PREFIX + header.length + FRAME_PREFIX + bytes.length <= 16_384) {
      const whole = Buffer.allocUnsafe(FRAME_PREFIX + header.length + (bytes.length > 0 ? FRAME_PREFIX + bytes.length : 0));
      let at = putPrefix(whole, 0, plan.kind, header.length);
      at += header.copy(whole, at);
      if (bytes.length > 0) bytes.copy(whole, putPrefix(whole, at, FrameKind.DATA, bytes.length));
      this.write(whole);
      this.finish();
      return;
    }
    this.writeFrame(plan.kind, header, false);
    if (bytes !== undefined) {
      this.writeBody(bytes);
      this.finish();
    } else if (source !== undefined) {
      this.pump(source).then(
        (all) => {
          if (all) this.finish();
        },
        (error: unknown) => {
          this.fail(error);
        },
      );
    }
  }

  /** Writes a small call that says little straight into what leaves next; false where that is not possible. */
  #writePlain(kind: number, header: CallHeader, left: number | undefined, body: Buffer): boolean {
    const { fields, count } = this.#owner.headers.find(header.to, header.method, header.from, header.type);
    const headerLength = 1 + fields.length + (left === undefined ? 0 : deadlineLength(left));
    if (headerLength > MAX_HEADER) return false;
    const bodyLength = body.length;
    const length = FRAME_PREFIX + headerLength + (bodyLength > 0 ? FRAME_PREFIX + bodyLength : 0);
    const mux = this.mux;
    let at = mux?.reserve(this, length, true) ?? -1;
    if (at < 0 || mux === undefined) return false;
    const out = mux.output;
    at = putPrefix(out, at, kind, headerLength);
    out[at] = 0x80 | (count + (left === undefined ? 0 : 1));
    out.set(fields, at + 1);
    at += 1 + fields.length;
    if (left !== undefined) at = putDeadline(out, at, left);
    if (bodyLength > 0) out.set(body, putPrefix(out, at, FrameKind.DATA, bodyLength));
    return true;
  }

  /** Has the whole answer, of at most so many bytes, told to two functions. */
  answerTo(most: number, resolve: (body: Buffer) => void, reject: (error: unknown) => void): void {
    this.collect(most, { resolve: (body) => resolve(body ?? Buffer.alloc(0)), reject });
  }

  /** Resolves once the answer has begun; rejects where it ended without one. */
  whenBegun(): Promise<void> {
    if (this.begun) return Promise.resolve();
    if (this.#settled) return this.bodyFailure === undefined ? Promise.resolve() : Promise.reject(this.bodyFailure);
    return new Promise((resolve, reject) => {
      this.#began ??= [];
      this.#began.push({ resolve, reject });
    });
  }

  /** Gives the call up, because nobody wants the answer any more. */
  leave(): void {
    this.dropBody();
    this.fail(new HailError("cancelled", "the call was given up here"));
  }

  /** Ends the call with an error; does nothing where it has ended. */
  fail(error: unknown): void {
    if (this.#settled) return;
    this.cancel();
    this.#settle(error instanceof Error ? error : new HailError("unknown", String(error), { cause: error }));
  }

  #settle(failure: Error | undefined): void {
    this.#settled = true;
    this.deaf = true;
    this.endTimer();
    if (this.#onAbort !== undefined) this.#signal?.removeEventListener("abort", this.#onAbort);
    this.leaveSource();
    if (failure === undefined) this.#begin();
    const began = this.#began;
    this.#began = undefined;
    if (began !== undefined && failure !== undefined) for (const waiter of began) waiter.reject(failure);
    this.endBody(failure);
    this.release();
    this.#owner.callEnded(this);
    this.onSettled?.();
  }

  #begin(): void {
    if (this.begun) return;
    this.begun = true;
    const began = this.#began;
    this.#began = undefined;
    if (began !== undefined) for (const waiter of began) waiter.resolve();
  }

  #end(of: Status): void {
    if (of.code !== Code.OK) {
      this.#letGo();
      this.#settle(errorOf(of));
      return;
    }
    this.#letGo();
    this.#settle(undefined);
  }

  /** The answer is there: what is still written is given up, and what still comes is not wanted. */
  #letGo(): void {
    this.deaf = true;
    if (this.isSending || this.queued > 0) this.reset(Code.CANCELLED);
    this.stop(Code.OK);
  }

  protected override onBody(bytes: Buffer, start: number, end: number): number {
    if (!this.begun) this.#begin();
    return super.onBody(bytes, start, end);
  }

  protected override onFrame(kind: number, bytes: Buffer, start: number, end: number): void {
    try {
      if (kind === FrameKind.HEAD) {
        if (this.begun) return;
        this.head = decodeAnswerHead(bytes, start, end);
        this.#begin();
      } else if (kind === FrameKind.END) {
        this.#end(start === end ? status(Code.OK, "") : decodeStatus(bytes, start, end));
      }
    } catch (error) {
      if (!(error instanceof MalformedError)) throw error;
      this.fail(new HailError("internal", `malformed header: ${error.message}`));
    }
  }

  protected override onFinish(): void {
    this.fail(new HailError("unavailable", "the answer was cut short"));
  }

  protected override onMalformed(error: FrameError): void {
    this.fail(new HailError("invalid_argument", error.message));
  }

  protected override onTooLong(most: number): void {
    const options = { hint: "read it chunk by chunk, or allow more" };
    this.fail(new HailError("resource_exhausted", `the answer is longer than ${most} bytes`, options));
  }

  override onReset(code: number): void {
    this.fail(errorOf(resetStatus(code)));
  }

  override onStop(): void {
    this.leaveSource();
  }

  override onLost(): void {
    this.fail(errorOf(this.#owner.lostStatus()));
  }

  override onDeadline(): void {
    this.fail(errorOf(deadlineExceeded()));
  }
}

/** The bytes of a header that keeps its bounds; throws {@link HailError} `invalid_argument`. */
function encodeHeader(header: CallHeader, deadlineMs: Int | undefined): Buffer {
  const refuse = (what: string): never => {
    throw new HailError("invalid_argument", what);
  };
  try {
    checkBounds(header);
  } catch (error) {
    refuse(error instanceof Error ? error.message : String(error));
  }
  const encoded = encodeCall({ ...header, deadlineMs: deadlineMs ?? header.deadlineMs });
  return encoded.length > MAX_HEADER ? refuse("the header is larger than 64 KiB") : encoded;
}

function aborted(signal: AbortSignal): HailError {
  return new HailError(codeName(Code.CANCELLED), "the call was given up here", { cause: signal.reason });
}
