/**
 * The one error that this package throws: how a call ended, with a stable code.
 */

import { Code, type CodeName, codeName, codeNumber, isRetryable, type Status, status } from "./protocol/status.js";

/** What an error may say besides its code and message. */
export interface HailErrorOptions {
  /** What to try next. Default: nothing. */
  readonly hint?: string;
  /** Free text, at most 8,192 bytes. Default: none. */
  readonly details?: string;
  /** After how many milliseconds another try may help. Default: 0, unknown. */
  readonly retryAfterMs?: number;
  /** What it came of, for the program's own log; it does not travel. */
  readonly cause?: unknown;
}

/**
 * How a call ended, where it did not end well. Handlers throw it to answer with a code of their own.
 *
 * ```ts
 * try {
 *   await hail.call("word-count@laptop", "one two");
 * } catch (error) {
 *   if (error instanceof HailError && error.code === "not_found") console.error(error.hint);
 * }
 * ```
 */
export class HailError extends Error {
  /** `HailError`. */
  override readonly name = "HailError";
  /** The code's name, such as `not_found`. */
  readonly code: CodeName;
  /** What to try next; empty for nothing. */
  readonly hint: string;
  /** Free text, such as the end of a program's stderr; empty for none. */
  readonly details: string;
  /** After how many milliseconds another try may help; 0 where nobody knows. */
  readonly retryAfterMs: number;
  /** What came of the answer before it failed, where a whole answer was waited for; empty otherwise. At most as long as `maxBytes`. */
  partial: Uint8Array = new Uint8Array(0);

  /** `message` is what happened, lower case and without a full stop; at most 1,024 bytes of it travel. */
  constructor(code: CodeName, message: string, options: HailErrorOptions = {}) {
    super(message, options.cause === undefined ? undefined : { cause: options.cause });
    this.code = code;
    this.hint = options.hint ?? "";
    this.details = options.details ?? "";
    this.retryAfterMs = options.retryAfterMs ?? 0;
  }

  /** The number of the code, which is gRPC's. */
  get number(): number {
    return codeNumber(this.code);
  }

  /** Whether the same call may end otherwise: the code is `unavailable`, `resource_exhausted` or `aborted`. */
  get retryable(): boolean {
    return isRetryable(this.number);
  }
}



/** The error of a status. */
export function errorOf(of: Status, cause?: unknown): HailError {
  const { hint, details, retryAfterMs } = of;
  return new HailError(codeName(of.code), of.message, { hint, details, retryAfterMs, cause });
}

/** The status of whatever was thrown; undefined for what is no {@link HailError}. */
export function statusOf(error: unknown): Status | undefined {
  if (!(error instanceof HailError)) return undefined;
  const retryAfter = Math.max(0, Math.ceil(error.retryAfterMs));
  return status(error.number, error.message, error.hint, error.details, Number.isFinite(retryAfter) ? retryAfter : 0);
}

/** What a call ends with whose time has passed. */
export function deadlineExceeded(): Status {
  return status(
    Code.DEADLINE_EXCEEDED,
    "the deadline passed before the answer was whole",
    "allow more time, or ask `hail ping` and `hail status` where it goes",
  );
}

/** What a stream's reset means to whoever waits for what comes on it. */
export function resetStatus(code: number): Status {
  switch (code) {
    case Code.OK:
    case Code.CANCELLED:
      return status(Code.CANCELLED, "the far side gave the call up");
    case Code.UNAVAILABLE:
      return status(Code.UNAVAILABLE, "the agent or its node went away in mid-call");
    case Code.DEADLINE_EXCEEDED:
      return deadlineExceeded();
    default:
      return status(code, "the far side reset the call");
  }
}
