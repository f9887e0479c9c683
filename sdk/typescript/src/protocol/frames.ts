/**
 * Frames of a session's streams: one byte of kind, 24 bits of length, payload (`spec/session.md`, "Frames").
 *
 * {@link FrameStream} takes a direction of a stream in whatever pieces it comes and tells what it means: body bytes as they are there, and other
 * frames once they are whole. It holds at most one header of 64 KiB, and refuses a longer one before it holds anything of it.
 */

import { MAX_HEADER } from "./limits.js";
import { MuxStream } from "./mux.js";

/** Kinds of frames. */
export const FrameKind = {
  HELLO: 0x01,
  CALL: 0x02,
  SEND: 0x03,
  STREAM: 0x04,
  REGISTER: 0x05,
  HEAD: 0x10,
  DATA: 0x11,
  END: 0x12,
  PING: 0x20,
  PONG: 0x21,
  GOING_AWAY: 0x22,
  OFFERS: 0x23,
  MORE_OFFERS: 0x24,
} as const;

/** Bytes ahead of a payload. */
export const FRAME_PREFIX = 4;

/** Whether a frame of this kind opens a stream. */
export function isOpening(kind: number): boolean {
  return kind >= 0x01 && kind <= 0x0f;
}

/** Whether this version knows the kind. */
export function isKnown(kind: number): boolean {
  return (kind >= 0x01 && kind <= 0x05) || (kind >= 0x10 && kind <= 0x12) || (kind >= 0x20 && kind <= 0x24);
}

/** The name of a kind, as messages say it. */
export function kindName(kind: number): string {
  const known = Object.entries(FrameKind).find(([, number]) => number === kind);
  return known === undefined ? `0x${kind.toString(16).padStart(2, "0")}` : known[0];
}

/** Writes a prefix at `at` and gives the place after it. */
export function putPrefix(bytes: Uint8Array, at: number, kind: number, length: number): number {
  bytes[at] = kind;
  bytes[at + 1] = length >>> 16;
  bytes[at + 2] = (length >>> 8) & 0xff;
  bytes[at + 3] = length & 0xff;
  return at + FRAME_PREFIX;
}

/** A whole frame. */
export function frame(kind: number, payload: Uint8Array): Buffer {
  const bytes = Buffer.allocUnsafe(FRAME_PREFIX + payload.length);
  bytes.set(payload, putPrefix(bytes, 0, kind, payload.length));
  return bytes;
}

/** Why a direction of a stream cannot be read on. */
export interface FrameError {
  /** `header_too_large`, or `truncated` where the direction ended inside a frame. */
  readonly kind: "header_too_large" | "truncated";
  /** The same in words. */
  readonly message: string;
}

const PREFIX = 0;
const HEADER = 1;
const BODY = 2;
const SKIP = 3;

/** A stream of the multiplexer whose bytes are frames. Each kind of stream says what these mean to it. */
export abstract class FrameStream extends MuxStream {
  #state = PREFIX;
  #kind = 0;
  #left = 0;
  #carry: Buffer | undefined;
  #carried = 0;
  /** Nothing that comes means anything any more. */
  protected deaf = false;

  /** Bytes of a body; gives how many of them nobody has taken yet. */
  protected abstract onBody(bytes: Buffer, start: number, end: number): number;
  /** Another frame, whole. The bytes are borrowed. `kind` may be that of an unknown opening. */
  protected abstract onFrame(kind: number, bytes: Buffer, start: number, end: number): void;
  /** The direction has ended in order. */
  protected abstract onFinish(): void;
  /** What came is malformed; nothing more is told. */
  protected abstract onMalformed(error: FrameError): void;

  override onData(bytes: Buffer, start: number, end: number, fin: boolean): number {
    let at = start;
    let held = 0;
    while (!this.deaf) {
      if (this.#state === PREFIX) {
        if (this.#carried === 0 && end - at >= FRAME_PREFIX) {
          this.#begin(bytes, at);
          at += FRAME_PREFIX;
        } else {
          const took = this.#gather(bytes, at, end, FRAME_PREFIX);
          at += took;
          const carry = this.#carry;
          if (this.#carried < FRAME_PREFIX || carry === undefined) break;
          this.#drop();
          this.#begin(carry, 0);
        }
        continue;
      }
      if (this.#state === HEADER) {
        const length = this.#left;
        if (this.#carried === 0 && end - at >= length) {
          this.#state = PREFIX;
          at += length;
          this.onFrame(this.#kind, bytes, at - length, at);
          continue;
        }
        at += this.#gather(bytes, at, end, length);
        const carry = this.#carry;
        if (this.#carried < length || carry === undefined) break;
        this.#drop();
        this.#state = PREFIX;
        this.onFrame(this.#kind, carry, 0, length);
        continue;
      }
      const part = Math.min(this.#left, end - at);
      if (part > 0) {
        if (this.#state === BODY) held += this.onBody(bytes, at, at + part);
        at += part;
        this.#left -= part;
      }
      if (this.#left > 0) break;
      this.#state = PREFIX;
    }
    if (fin && !this.deaf) {
      const between = this.#carried === 0 && this.#state === PREFIX;
      if (between) this.onFinish();
      else this.#refuse({ kind: "truncated", message: "the stream ended inside a frame" });
    }
    return held;
  }

  #begin(bytes: Buffer, at: number): void {
    const kind = bytes[at] ?? 0;
    const length = bytes.readUIntBE(at + 1, 3);
    this.#kind = kind;
    this.#left = length;
    if (kind === FrameKind.DATA) {
      this.#state = BODY;
    } else if (!isKnown(kind) && !isOpening(kind)) {
      this.#state = SKIP;
    } else if (length > MAX_HEADER) {
      const message = `a ${kindName(kind)} frame of ${length} bytes exceeds the bound of ${MAX_HEADER}`;
      this.#refuse({ kind: "header_too_large", message });
    } else {
      this.#state = HEADER;
    }
  }

  #refuse(error: FrameError): void {
    this.deaf = true;
    this.#drop();
    this.onMalformed(error);
  }

  /** Keeps what is there of a prefix or header; gives how many bytes that were. Room grows with what comes, not with what is announced. */
  #gather(bytes: Buffer, at: number, end: number, length: number): number {
    const took = Math.min(length - this.#carried, end - at);
    if (took === 0) return 0;
    const needed = this.#carried + took;
    if (this.#carry === undefined || this.#carry.length < needed) {
      const grown = Buffer.allocUnsafe(Math.min(length, Math.max(needed, 2 * this.#carried, 64)));
      this.#carry?.copy(grown, 0, 0, this.#carried);
      this.#carry = grown;
    }
    bytes.copy(this.#carry, this.#carried, at, at + took);
    this.#carried = needed;
    return took;
  }

  #drop(): void {
    this.#carry = undefined;
    this.#carried = 0;
  }
}
