/**
 * Call headers that are encoded once: a program mostly makes the same few calls again and again.
 */

import { EMPTY_CALL, encodeCall } from "./headers.js";
import { type Int, MAX_U64, putUint, uintLength } from "./msgpack.js";

/** The key of a deadline, as it is written. */
const DEADLINE_KEY = Buffer.from("\xabdeadline_ms", "latin1");

/**
 * Call headers that say only whom to call, what, from whom, of which type and by when, already encoded: a program mostly makes the same few calls
 * again and again. Keeps those of 64 addresses.
 */
export class CallHeaderCache {
  readonly #known = new Map<string, { method: string; from: string; type: string; fields: Buffer; count: number }>();

  /** What comes after the map's first byte and before a deadline, and how many fields that are. */
  find(to: string, method: string, from: string, type: string): { readonly fields: Buffer; readonly count: number } {
    const known = this.#known.get(to);
    if (known?.method === method && known.from === from && known.type === type) return known;
    const header = encodeCall({ ...EMPTY_CALL, to, method, from, type });
    const entry = { method, from, type, fields: header.subarray(1), count: (header[0] ?? 0) & 0x0f };
    if (known === undefined && this.#known.size >= 64) this.#known.clear();
    this.#known.set(to, entry);
    return entry;
  }
}

/** How many bytes a deadline takes in a call header. */
export function deadlineLength(ms: Int): number {
  return DEADLINE_KEY.length + uintLength(ms);
}

/** Writes a deadline at `at`; gives the place after it. */
export function putDeadline(bytes: Buffer, at: number, ms: Int): number {
  bytes.set(DEADLINE_KEY, at);
  return putUint(bytes, at + DEADLINE_KEY.length, ms > MAX_U64 ? MAX_U64 : ms);
}
