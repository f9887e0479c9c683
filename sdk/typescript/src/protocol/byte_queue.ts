/**
 * Bytes that wait to leave, in order. Large pieces are kept as they are; small ones that come while others wait are copied together, so that whoever
 * writes a byte at a time does not make many objects of them.
 */

/** Pieces shorter than this are copied into a block with others. */
const SMALL = 1024;

/** Bytes of such a block. */
const BLOCK = 4096;

/** A queue of bytes. */
export class ByteQueue {
  readonly #pieces: (Buffer | undefined)[] = [];
  #first = 0;
  /** The block that the last piece is the beginning of; undefined where that is no block. */
  #block: Buffer | undefined;
  #length = 0;

  /** Bytes that wait. */
  get length(): number {
    return this.#length;
  }

  /** Pieces that wait. */
  get pieces(): number {
    return this.#pieces.length - this.#first;
  }

  /** Adds bytes, which the queue keeps as they are unless they are few: they must not be changed any more. */
  push(bytes: Buffer): void {
    if (bytes.length === 0) return;
    if (bytes.length < SMALL && this.#length > 0) {
      this.#copy(bytes);
    } else {
      this.#pieces.push(bytes);
      this.#block = undefined;
      this.#length += bytes.length;
    }
  }

  /** Takes the first piece, of at most `most` bytes; undefined where there is none. */
  shift(most = Number.MAX_SAFE_INTEGER): Buffer | undefined {
    const piece = this.#pieces[this.#first];
    if (piece === undefined || most <= 0) return undefined;
    if (piece.length > most) {
      this.#pieces[this.#first] = piece.subarray(most);
      this.#length -= most;
      return piece.subarray(0, most);
    }
    this.#length -= piece.length;
    this.#forget();
    return piece;
  }

  /** Moves up to `most` bytes to `at` in another buffer; gives how many. */
  moveTo(target: Buffer, at: number, most: number): number {
    let moved = 0;
    while (moved < most) {
      const piece = this.shift(most - moved);
      if (piece === undefined) break;
      target.set(piece, at + moved);
      moved += piece.length;
    }
    return moved;
  }

  /** Takes all as one piece. */
  takeAll(): Buffer {
    const only = this.pieces === 1 ? this.shift() : undefined;
    if (only !== undefined) return only;
    const all = Buffer.allocUnsafe(this.#length);
    this.moveTo(all, 0, all.length);
    return all;
  }

  /** Forgets all. */
  clear(): void {
    this.#pieces.length = 0;
    this.#first = 0;
    this.#block = undefined;
    this.#length = 0;
  }

  #copy(bytes: Buffer): void {
    const end = bytes.length;
    let from = 0;
    while (from < end) {
      const last = this.#pieces.length - 1;
      const piece = this.#pieces[last];
      const block = this.#block;
      // A piece may have lost its beginning, so where it ends in its block is looked up.
      const place = piece !== undefined && block !== undefined ? piece.byteOffset - block.byteOffset + piece.length : BLOCK;
      const part = Math.min(end - from, BLOCK - place);
      if (piece === undefined || block === undefined || part <= 0) {
        this.#block = Buffer.allocUnsafeSlow(BLOCK);
        this.#pieces.push(this.#block.subarray(0, 0));
        continue;
      }
      bytes.copy(block, place, from, from + part);
      this.#pieces[last] = block.subarray(place - piece.length, place + part);
      from += part;
      this.#length += part;
    }
  }

  #forget(): void {
    // What is gone is held no longer.
    this.#pieces[this.#first] = undefined;
    this.#first += 1;
    if (this.#first === this.#pieces.length) {
      this.#pieces.length = 0;
      this.#first = 0;
      this.#block = undefined;
    } else if (this.#first >= 64 && this.#first * 2 > this.#pieces.length) {
      this.#pieces.splice(0, this.#first);
      this.#first = 0;
    }
  }
}

/** A copy of a part of a buffer. */
export function copyOf(bytes: Buffer, start: number, end: number): Buffer {
  const copy = Buffer.allocUnsafe(end - start);
  bytes.copy(copy, 0, start, end);
  return copy;
}
