/**
 * Bytes that have come and wait to be read. They wait in blocks that are used again, and are copied out when they are read: what is given to a
 * reader is then young, and is collected soon after the reader is done with it. Were the pieces themselves kept until they are read, each would
 * have grown old meanwhile, and V8 collects what is old seldom, however many bytes it holds outside of its heap.
 */

import { copyOf } from "./byte_queue.js";

/** Bytes of a block. */
const BLOCK = 16_384;

/** Bytes of the block of a queue that has few. */
const SMALL = 4096;

/** Blocks that are kept for whoever needs one next: 1 MiB, the largest window of one stream. */
const MOST_FREE = 64;

const free: Buffer[] = [];

/** A queue of bytes that come from elsewhere. */
export class ReceiveQueue {
  readonly #blocks: (Buffer | undefined)[] = [];
  #first = 0;
  /** What of the first block was read. */
  #read = 0;
  /** What of the last block is full. */
  #full = 0;
  #length = 0;

  /** Bytes that wait. */
  get length(): number {
    return this.#length;
  }

  /** Bytes of the blocks that they wait in. */
  get held(): number {
    let held = 0;
    for (let at = this.#first; at < this.#blocks.length; at += 1) held += this.#blocks[at]?.length ?? 0;
    return held;
  }

  /** Adds a copy of bytes. */
  push(bytes: Buffer, start: number, end: number): void {
    let from = start;
    while (from < end) {
      let block = this.#blocks.at(-1);
      if (block === undefined || this.#full === block.length) {
        block = this.#length + end - from <= SMALL ? Buffer.allocUnsafeSlow(SMALL) : (free.pop() ?? Buffer.allocUnsafeSlow(BLOCK));
        this.#blocks.push(block);
        this.#full = 0;
      }
      const part = Math.min(end - from, block.length - this.#full);
      bytes.copy(block, this.#full, from, from + part);
      this.#full += part;
      this.#length += part;
      from += part;
    }
  }

  /** Takes what the first block has, as a buffer of its own; undefined where nothing waits. */
  shift(): Buffer | undefined {
    const block = this.#blocks[this.#first];
    if (block === undefined) return undefined;
    const end = this.#first === this.#blocks.length - 1 ? this.#full : block.length;
    const piece = copyOf(block, this.#read, end);
    this.#length -= piece.length;
    this.#leave(block);
    return piece;
  }

  /** Takes all as one buffer. */
  takeAll(): Buffer {
    const all = Buffer.allocUnsafe(this.#length);
    let at = 0;
    for (let block = this.#blocks[this.#first]; block !== undefined; block = this.#blocks[this.#first]) {
      const end = this.#first === this.#blocks.length - 1 ? this.#full : block.length;
      at += block.copy(all, at, this.#read, end);
      this.#leave(block);
    }
    this.#length = 0;
    return all;
  }

  /** Forgets all. */
  clear(): void {
    for (let block = this.#blocks[this.#first]; block !== undefined; block = this.#blocks[this.#first]) this.#leave(block);
    this.#length = 0;
  }

  /** The first block is read. */
  #leave(block: Buffer): void {
    if (block.length === BLOCK && free.length < MOST_FREE) free.push(block);
    this.#read = 0;
    this.#blocks[this.#first] = undefined;
    this.#first += 1;
    if (this.#first === this.#blocks.length) {
      this.#blocks.length = 0;
      this.#first = 0;
      this.#full = 0;
    } else if (this.#first >= 64 && this.#first * 2 > this.#blocks.length) {
      this.#blocks.splice(0, this.#first);
      this.#first = 0;
    }
  }
}
