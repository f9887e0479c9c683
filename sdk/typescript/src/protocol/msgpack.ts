/**
 * The part of MessagePack that headers and records need: maps with text as keys, arrays, text, bytes, integers, booleans and nil.
 *
 * A writer uses the shortest form of everything, so that equal values are equal bytes. A reader takes every form, skips what it does not know,
 * and refuses as {@link MalformedError}: bytes that end early, text that is not UTF-8, a value of another type, and maps and arrays that lie more
 * than 16 deep in each other. It holds nothing: whatever a length claims, no more is made than there are bytes.
 */

import { MAX_HEADER_DEPTH } from "./limits.js";

/** An integer of 64 bits: a number where that is exact, else a bigint. */
export type Int = number | bigint;

/** Bytes that are not what they should be. */
export class MalformedError extends Error {
  override readonly name = "MalformedError";

  /** `kind` is `bound` where a stated bound is passed, else `malformed`. */
  constructor(
    message: string,
    readonly kind: "malformed" | "bound" = "malformed",
  ) {
    super(message);
  }
}

const utf8 = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

/** The largest unsigned integer of 64 bits. */
export const MAX_U64 = 0xffff_ffff_ffff_ffffn;

/** Appends values to a buffer that grows. */
export class MsgpackWriter {
  #bytes: Buffer;
  #length = 0;

  /** `capacity` is a guess at how many bytes come of it. */
  constructor(capacity = 128) {
    this.#bytes = Buffer.allocUnsafe(capacity);
  }

  /** What was written, which is the writer's own memory: nothing more may be written then. */
  finish(): Buffer {
    return this.#bytes.subarray(0, this.#length);
  }

  /** Begins a map of so many pairs. */
  map(pairs: number): void {
    this.#length1(pairs, 0x80, 15, 0, 0xde);
  }

  /** Begins an array of so many items. */
  array(items: number): void {
    this.#length1(items, 0x90, 15, 0, 0xdc);
  }

  /** Writes a text. */
  text(value: string): void {
    const length = Buffer.byteLength(value);
    this.#length1(length, 0xa0, 31, 0xd9, 0xda);
    this.#room(length);
    this.#bytes.write(value, this.#length, length, "utf8");
    this.#length += length;
  }

  /** Writes bytes. */
  bytes(value: Uint8Array): void {
    this.#length1(value.length, 0, -1, 0xc4, 0xc5);
    this.raw(value);
  }

  /** Writes bytes as they are, without a length. */
  raw(value: Uint8Array): void {
    this.#room(value.length);
    this.#bytes.set(value, this.#length);
    this.#length += value.length;
  }

  /** Writes an unsigned integer of at most 64 bits. */
  uint(value: Int): void {
    this.#room(9);
    this.#length = putUint(this.#bytes, this.#length, value);
  }

  /** Writes yes or no. */
  bool(value: boolean): void {
    this.#room(1);
    this.#bytes[this.#length++] = value ? 0xc3 : 0xc2;
  }

  /** A length in its shortest form; `eight` is 0 where there is no form of one byte, and `sixteen` + 1 is that of four. */
  #length1(length: number, fix: number, most: number, eight: number, sixteen: number): void {
    this.#room(5);
    const bytes = this.#bytes;
    if (length <= most) {
      bytes[this.#length++] = fix | length;
    } else if (eight !== 0 && length < 0x100) {
      bytes[this.#length++] = eight;
      bytes[this.#length++] = length;
    } else if (length < 0x1_0000) {
      bytes[this.#length] = sixteen;
      this.#length = bytes.writeUInt16BE(length, this.#length + 1);
    } else {
      bytes[this.#length] = sixteen + 1;
      this.#length = bytes.writeUInt32BE(length, this.#length + 1);
    }
  }

  #room(more: number): void {
    const needed = this.#length + more;
    if (needed > this.#bytes.length) {
      const grown = Buffer.allocUnsafe(Math.max(needed, this.#bytes.length * 2));
      this.#bytes.copy(grown, 0, 0, this.#length);
      this.#bytes = grown;
    }
  }
}

/** How many bytes an unsigned integer takes in its shortest form. */
export function uintLength(value: Int): number {
  if (value < 0x80) return 1;
  if (value < 0x100) return 2;
  if (value < 0x1_0000) return 3;
  return value < 0x1_0000_0000 ? 5 : 9;
}

/** Writes an unsigned integer in its shortest form at `at`, where there must be room, and gives the place after it. */
export function putUint(bytes: Buffer, at: number, value: Int): number {
  if (value < 0x80) {
    bytes[at] = Number(value);
    return at + 1;
  }
  if (value < 0x100) {
    bytes[at] = 0xcc;
    bytes[at + 1] = Number(value);
    return at + 2;
  }
  if (value < 0x1_0000) {
    bytes[at] = 0xcd;
    return bytes.writeUInt16BE(Number(value), at + 1);
  }
  if (value < 0x1_0000_0000) {
    bytes[at] = 0xce;
    return bytes.writeUInt32BE(Number(value), at + 1);
  }
  bytes[at] = 0xcf;
  return bytes.writeBigUInt64BE(BigInt(value), at + 1);
}

/** Reads values one after the other out of bytes that are there. */
export class MsgpackReader {
  readonly #bytes: Buffer;
  readonly #end: number;
  #at: number;

  /** Reads `bytes` from `start` to `end`. */
  constructor(bytes: Buffer, start: number, end: number) {
    this.#bytes = bytes;
    this.#at = start;
    this.#end = end;
  }

  /** The number of pairs of the map that begins here. */
  map(): number {
    const marker = this.#marker();
    if ((marker & 0xf0) === 0x80) return marker & 0x0f;
    if (marker === 0xde) return this.#number(2);
    if (marker === 0xdf) return this.#number(4);
    throw expected("a map");
  }

  /** The number of items of the array that begins here. */
  array(): number {
    const marker = this.#marker();
    if ((marker & 0xf0) === 0x90) return marker & 0x0f;
    if (marker === 0xdc) return this.#number(2);
    if (marker === 0xdd) return this.#number(4);
    throw expected("a list");
  }

  /** A text. */
  text(): string {
    const marker = this.#marker();
    let length: number;
    if ((marker & 0xe0) === 0xa0) length = marker & 0x1f;
    else if (marker === 0xd9) length = this.#number(1);
    else if (marker === 0xda) length = this.#number(2);
    else if (marker === 0xdb) length = this.#number(4);
    else throw expected("a text");
    return this.#decode(this.#take(length), length);
  }

  /** Bytes, as a copy. */
  bytes(): Buffer {
    const marker = this.#marker();
    if (marker < 0xc4 || marker > 0xc6) throw expected("bytes");
    const length = this.#number(1 << (marker - 0xc4));
    const start = this.#take(length);
    return Buffer.from(this.#bytes.subarray(start, start + length));
  }

  /** An unsigned integer of at most 64 bits. */
  uint(): Int {
    const marker = this.#marker();
    if (marker < 0x80) return marker;
    if (marker === 0xcc) return this.#number(1);
    if (marker === 0xcd) return this.#number(2);
    if (marker === 0xce) return this.#number(4);
    if (marker === 0xcf || marker === 0xd3) {
      const at = this.#take(8);
      const value = marker === 0xcf ? this.#bytes.readBigUInt64BE(at) : this.#bytes.readBigInt64BE(at);
      if (value < 0n) throw expected("a number that is not negative");
      return value <= BigInt(Number.MAX_SAFE_INTEGER) ? Number(value) : value;
    }
    if (marker >= 0xd0 && marker <= 0xd2) {
      const width = 1 << (marker - 0xd0);
      const value = this.#bytes.readIntBE(this.#take(width), width);
      if (value >= 0) return value;
    }
    throw expected("a number that is not negative");
  }

  /** An unsigned integer of at most `most`, which is exact as a number. */
  number(most: number): number {
    const value = this.uint();
    if (typeof value === "bigint" || value > most) throw expected(`a number of at most ${most}`);
    return value;
  }

  /** Yes or no. */
  bool(): boolean {
    const marker = this.#marker();
    if (marker !== 0xc2 && marker !== 0xc3) throw expected("yes or no");
    return marker === 0xc3;
  }

  /** Whether nil comes next, which is read then. */
  nil(): boolean {
    const is = this.#at < this.#end && this.#bytes[this.#at] === 0xc0;
    if (is) this.#at += 1;
    return is;
  }

  /** Skips a value that lies inside `depth` maps and arrays. */
  skip(depth: number): void {
    const marker = this.#marker();
    if (marker < 0x80 || marker >= 0xe0) return;
    if (marker < 0x90) return this.#skipItems(2 * (marker & 0x0f), depth);
    if (marker < 0xa0) return this.#skipItems(marker & 0x0f, depth);
    if (marker < 0xc0) {
      this.#take(marker & 0x1f);
      return;
    }
    switch (marker) {
      case 0xc0:
      case 0xc2:
      case 0xc3:
        return;
      case 0xc4:
      case 0xc5:
      case 0xc6:
        this.#take(this.#number(1 << (marker - 0xc4)));
        return;
      case 0xc7:
      case 0xc8:
      case 0xc9:
        this.#take(this.#number(1 << (marker - 0xc7)) + 1);
        return;
      case 0xca:
        this.#take(4);
        return;
      case 0xcb:
        this.#take(8);
        return;
      case 0xcc:
      case 0xcd:
      case 0xce:
      case 0xcf:
        this.#take(1 << (marker - 0xcc));
        return;
      case 0xd0:
      case 0xd1:
      case 0xd2:
      case 0xd3:
        this.#take(1 << (marker - 0xd0));
        return;
      case 0xd4:
      case 0xd5:
      case 0xd6:
      case 0xd7:
      case 0xd8:
        this.#take((1 << (marker - 0xd4)) + 1);
        return;
      case 0xd9:
      case 0xda:
      case 0xdb:
        this.#take(this.#number(1 << (marker - 0xd9)));
        return;
      case 0xdc:
      case 0xdd:
        return this.#skipItems(this.#number(marker === 0xdc ? 2 : 4), depth);
      case 0xde:
      case 0xdf:
        return this.#skipItems(2 * this.#number(marker === 0xde ? 2 : 4), depth);
      default:
        throw new MalformedError("a marker that stands for nothing");
    }
  }

  #skipItems(items: number, depth: number): void {
    if (depth >= MAX_HEADER_DEPTH) throw new MalformedError("maps and lists lie too deep in each other");
    // Each item takes a byte at least, so a length that lies ends soon.
    for (let item = 0; item < items; item += 1) this.skip(depth + 1);
  }

  #marker(): number {
    const marker = this.#at < this.#end ? this.#bytes[this.#at] : undefined;
    if (marker === undefined) throw endsEarly();
    this.#at += 1;
    return marker;
  }

  #number(width: number): number {
    return this.#bytes.readUIntBE(this.#take(width), width);
  }

  #take(length: number): number {
    const start = this.#at;
    if (length > this.#end - start) throw endsEarly();
    this.#at = start + length;
    return start;
  }

  #decode(start: number, length: number): string {
    const bytes = this.#bytes;
    const end = start + length;
    if (length <= 12) {
      let text = "";
      for (let at = start; at < end; at += 1) {
        const byte = bytes[at] ?? 0x80;
        if (byte >= 0x80) return decodeUtf8(bytes, start, end);
        text += String.fromCharCode(byte);
      }
      return text;
    }
    for (let at = start; at < end; at += 1) {
      if ((bytes[at] ?? 0x80) >= 0x80) return decodeUtf8(bytes, start, end);
    }
    return bytes.toString("latin1", start, end);
  }
}

function decodeUtf8(bytes: Buffer, start: number, end: number): string {
  try {
    return utf8.decode(bytes.subarray(start, end));
  } catch {
    throw new MalformedError("a text is not UTF-8");
  }
}

function endsEarly(): MalformedError {
  return new MalformedError("it ends early");
}

function expected(what: string): MalformedError {
  return new MalformedError(`something else where ${what} belongs`);
}

/**
 * Reads a map with text as keys. `field` is called for each key, reads its value and gives the key's own number from 0 to 30, or -1 where it does
 * not know the key, which is skipped then. A key that occurs twice is refused. Gives the keys that were there, as bits.
 */
export function readMap(reader: MsgpackReader, depth: number, field: (key: string) => number): number {
  const pairs = reader.map();
  let seen = 0;
  let unknown: Set<string> | undefined;
  for (let pair = 0; pair < pairs; pair += 1) {
    const key = reader.text();
    const number = field(key);
    if (number >= 0) {
      if ((seen & (1 << number)) !== 0) throw new MalformedError(`the key \`${key}\` occurs twice`);
      seen |= 1 << number;
      continue;
    }
    unknown ??= new Set();
    if (unknown.has(key)) throw new MalformedError("a key occurs twice");
    unknown.add(key);
    reader.skip(depth);
  }
  return seen;
}
