/**
 * How a call ends: a code, what happened in words, and what may help. Codes are gRPC's, with the same numbers; they also are the numbers with which
 * a stream is reset or stopped and a connection is closed (`spec/session.md`, "Status and codes").
 */

import { MAX_STATUS_DETAILS, MAX_STATUS_MESSAGE } from "./limits.js";
import { type Int, MalformedError, MsgpackReader, MsgpackWriter, readMap } from "./msgpack.js";

/** The names of codes; the place of a name is its number. */
export const CODE_NAMES = [
  "ok",
  "cancelled",
  "unknown",
  "invalid_argument",
  "deadline_exceeded",
  "not_found",
  "already_exists",
  "permission_denied",
  "resource_exhausted",
  "failed_precondition",
  "aborted",
  "out_of_range",
  "unimplemented",
  "internal",
  "unavailable",
  "data_loss",
  "unauthenticated",
] as const;

/** The name of a code, such as `not_found`. */
export type CodeName = (typeof CODE_NAMES)[number];

/** The numbers of codes. */
export const Code = {
  OK: 0,
  CANCELLED: 1,
  UNKNOWN: 2,
  INVALID_ARGUMENT: 3,
  DEADLINE_EXCEEDED: 4,
  NOT_FOUND: 5,
  ALREADY_EXISTS: 6,
  PERMISSION_DENIED: 7,
  RESOURCE_EXHAUSTED: 8,
  FAILED_PRECONDITION: 9,
  ABORTED: 10,
  OUT_OF_RANGE: 11,
  UNIMPLEMENTED: 12,
  INTERNAL: 13,
  UNAVAILABLE: 14,
  DATA_LOSS: 15,
  UNAUTHENTICATED: 16,
} as const;

/** How a call ended. */
export interface Status {
  /** The number of the code; 0 for success. */
  readonly code: number;
  /** What happened, lower case, without a full stop. */
  readonly message: string;
  /** What to try next; empty for nothing. */
  readonly hint: string;
  /** Free text, such as the end of a program's stderr. */
  readonly details: string;
  /** After how many milliseconds another try may help; 0 where nobody knows. */
  readonly retryAfterMs: number;
}

/** A status. Text that is too long is cut at a character. */
export function status(code: number, message: string, hint = "", details = "", retryAfterMs = 0): Status {
  return {
    code,
    message: cut(message, MAX_STATUS_MESSAGE),
    hint: cut(hint, MAX_STATUS_MESSAGE),
    details: cut(details, MAX_STATUS_DETAILS),
    retryAfterMs,
  };
}

/** The code with this number; `unknown` (2) for one from the future. */
export function codeFromNumber(number: Int): number {
  return typeof number === "number" && number < CODE_NAMES.length ? number : Code.UNKNOWN;
}

/** The name of the code with this number. */
export function codeName(number: number): CodeName {
  return CODE_NAMES[number] ?? "unknown";
}

/** The number of the code with this name. */
export function codeNumber(name: CodeName): number {
  return CODE_NAMES.indexOf(name);
}

/** The status as people read it: `what happened (code)`. */
export function statusText(of: Status): string {
  return of.message === "" ? codeName(of.code) : `${of.message} (${codeName(of.code)})`;
}

/** Whether the same call may end otherwise if it is made again: `unavailable`, `resource_exhausted` and `aborted`. */
export function isRetryable(code: number): boolean {
  return code === Code.UNAVAILABLE || code === Code.RESOURCE_EXHAUSTED || code === Code.ABORTED;
}

/** The payload of an `END`; empty for success without words. */
export function encodeStatus(of: Status): Buffer {
  const texts: [string, string][] = [];
  if (of.message !== "") texts.push(["message", of.message]);
  if (of.hint !== "") texts.push(["hint", of.hint]);
  if (of.details !== "") texts.push(["details", of.details]);
  const writer = new MsgpackWriter();
  writer.map(1 + texts.length + (of.retryAfterMs > 0 ? 1 : 0));
  writer.text("code");
  writer.uint(of.code);
  for (const [key, text] of texts) {
    writer.text(key);
    writer.text(text);
  }
  if (of.retryAfterMs > 0) {
    writer.text("retry_after_ms");
    writer.uint(of.retryAfterMs);
  }
  return writer.finish();
}

/** Reads the payload of an `END` that has one. Throws {@link MalformedError}. */
export function decodeStatus(bytes: Buffer, start = 0, end = bytes.length): Status {
  const reader = new MsgpackReader(bytes, start, end);
  let code: Int = 0;
  let message = "";
  let hint = "";
  let details = "";
  let retryAfterMs = 0;
  const seen = readMap(reader, 1, (key) => {
    switch (key) {
      case "code":
        code = reader.uint();
        return 0;
      case "message":
        message = reader.text();
        return 1;
      case "hint":
        hint = reader.text();
        return 2;
      case "details":
        details = reader.text();
        return 3;
      case "retry_after_ms":
        retryAfterMs = Number(reader.uint());
        return 4;
      default:
        return -1;
    }
  });
  if ((seen & 1) === 0) throw new MalformedError("the code is missing");
  return { code: codeFromNumber(code), message, hint, details, retryAfterMs };
}

/** A text of at most so many bytes, cut at a character. */
export function cut(text: string, most: number): string {
  if (text.length * 3 <= most || Buffer.byteLength(text) <= most) return text;
  const bytes = Buffer.from(text);
  let end = most;
  while (end > 0 && ((bytes[end] ?? 0) & 0xc0) === 0x80) end -= 1;
  return bytes.toString("utf8", 0, end);
}
