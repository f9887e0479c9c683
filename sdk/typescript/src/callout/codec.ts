/**
 * The two encodings of messages, JSON and MessagePack, as trees of plain values.
 *
 * Both read what a stranger may send, within bounds: values lie at most 128 deep in each other, a length never exceeds the bytes
 * that are there, text is UTF-8, and nothing may follow the value. A map keeps every pair ({@link Fields}): of a name that comes
 * twice the last counts, but headers are put together and must not lose one. Extension types of MessagePack are passed over as
 * {@link OPAQUE}, which no field accepts.
 */

/** How deep values may lie in each other. */
export const MAX_DEPTH = 128;

/** How messages are written after the handshake. */
export type Encoding = "json" | "msgpack";

/** Bytes that are not what they should be. */
export class DecodeError extends Error {
  /** `DecodeError`. */
  override readonly name: string = "DecodeError";
}

/** A value of MessagePack that JSON has no form for. */
export const OPAQUE: unique symbol = Symbol("opaque");

/** What was read. */
export type Value = null | boolean | number | string | Uint8Array | typeof OPAQUE | Fields | readonly Value[];

/** A map, with all of its pairs in their order. */
export class Fields {
  /** `hasOtherKeys`: names that are no text were there, and passed over. */
  constructor(
    readonly pairs: readonly (readonly [string, Value])[],
    readonly hasOtherKeys = false,
  ) {}

  /** What a name stands for, the last time it comes; `undefined` where it is missing. */
  get(name: string): Value | undefined {
    for (let index = this.pairs.length - 1; index >= 0; index -= 1) {
      const pair = this.pairs[index];
      if (pair?.[0] === name) return pair[1];
    }
    return undefined;
  }
}

/** A number that MessagePack writes with single precision. */
export class Float32 {
  constructor(readonly value: number) {}

  toJSON(): number {
    return this.value;
  }
}

/** A number that MessagePack writes with double precision also where it is a whole one. */
export class Float64 {
  constructor(readonly value: number) {}

  toJSON(): number {
    return this.value;
  }
}

/** What can be written: anything that JSON can say. */
export type Writable =
  | null
  | boolean
  | number
  | string
  | Float32
  | Float64
  | readonly Writable[]
  | { readonly [name: string]: Writable };

/** Reads one value. Throws {@link DecodeError}. */
export function decode(payload: Buffer, encoding: Encoding): Value {
  return encoding === "json" ? decodeJson(payload) : unpack(payload);
}

/** Writes one value. Throws `TypeError` or `RangeError` where it has no form. */
export function encode(value: Writable, encoding: Encoding): Buffer {
  return encoding === "json" ? encodeJson(value) : pack(value);
}

/** Reads JSON (RFC 8259). Throws {@link DecodeError}. */
export function decodeJson(payload: Uint8Array): Value {
  let text: string;
  try {
    text = UTF8.decode(payload);
  } catch {
    throw new DecodeError("not UTF-8");
  }
  const source = new JsonSource(text);
  const value = source.value(0);
  source.end();
  return value;
}

/** Writes JSON without white space. Throws `TypeError` for what has no form. */
export function encodeJson(value: Writable): Buffer {
  refuseWhatHasNoForm(value, 0);
  return Buffer.from(JSON.stringify(value));
}

/** What was read as plain objects, arrays and scalars. Throws {@link DecodeError} for what JSON has no form for. */
export function toJson(value: Value): unknown {
  if (value instanceof Fields) {
    if (value.hasOtherKeys) throw new DecodeError("a name that is no text");
    return Object.fromEntries(value.pairs.map(([name, item]) => [name, toJson(item)]));
  }
  if (Array.isArray(value)) return (value as readonly Value[]).map(toJson);
  if (value === OPAQUE || value instanceof Uint8Array) throw new DecodeError("value has no JSON form");
  return value;
}

/** The bytes that a base64 text stands for: padded, and nothing else in it. Throws {@link DecodeError}. */
export function decodeBase64(text: string): Buffer {
  const data = Buffer.from(text, "base64");
  // Node passes over what is no base64: only what it would write itself was one.
  if (data.toString("base64") !== text) throw new DecodeError("invalid base64");
  return data;
}

/** Reads JSON, value by value. */
export class JsonSource {
  at = 0;

  constructor(readonly text: string) {}

  /** Takes the next value, which lies in `depth` others. */
  value(depth: number): Value {
    switch (this.peek()) {
      case '"':
        return this.string();
      case "{":
        return this.object(depth);
      case "[":
        return this.array(depth);
      case "t":
        return this.word("true", true);
      case "f":
        return this.word("false", false);
      case "n":
        return this.word("null", null);
      default:
        return this.number();
    }
  }

  /** The next character after white space; none at the end. */
  peek(): string {
    SPACE.lastIndex = this.at;
    SPACE.test(this.text);
    this.at = SPACE.lastIndex;
    return this.text.charAt(this.at);
  }

  /** Takes a text. */
  string(): string {
    const start = this.at + 1;
    if (this.text[this.at] !== '"') throw this.wrong("expected a text");
    PLAIN.lastIndex = start;
    PLAIN.test(this.text);
    let end = PLAIN.lastIndex;
    if (this.text[end] === '"') {
      this.at = end + 1;
      return this.text.slice(start, end);
    }
    while (this.text[end] === "\\") {
      PLAIN.lastIndex = end + 2;
      PLAIN.test(this.text);
      end = PLAIN.lastIndex;
    }
    if (this.text[end] !== '"') throw this.wrong("unterminated text");
    this.at = end + 1;
    let found: unknown;
    try {
      found = JSON.parse(this.text.slice(start - 1, end + 1));
    } catch {
      throw this.wrong("invalid escape");
    }
    if (typeof found !== "string" || LONE_SURROGATE.test(found)) throw this.wrong("unpaired surrogate");
    return found;
  }

  /** Takes a character. */
  expect(character: string): void {
    if (this.peek() !== character) throw this.wrong(`expected ${character}`);
    this.at += 1;
  }

  /** Nothing but white space may follow. */
  end(): void {
    if (this.peek() !== "") throw this.wrong("trailing text");
  }

  private wrong(what: string): DecodeError {
    return new DecodeError(`${what} at character ${this.at}`);
  }

  private word<T extends Value>(word: string, value: T): T {
    if (!this.text.startsWith(word, this.at)) throw this.wrong("invalid literal");
    this.at += word.length;
    return value;
  }

  private number(): number {
    NUMBER.lastIndex = this.at;
    const found = NUMBER.exec(this.text);
    if (found === null) throw this.wrong("expected a value");
    this.at = NUMBER.lastIndex;
    return Number(found[0]);
  }

  private object(depth: number): Fields {
    const pairs: [string, Value][] = [];
    this.items(depth, "}", () => {
      this.peek();
      const name = this.string();
      this.expect(":");
      pairs.push([name, this.value(depth + 1)]);
    });
    return new Fields(pairs);
  }

  private array(depth: number): Value[] {
    const values: Value[] = [];
    this.items(depth, "]", () => values.push(this.value(depth + 1)));
    return values;
  }

  private items(depth: number, close: string, item: () => void): void {
    if (depth >= MAX_DEPTH) throw this.wrong("nested too deeply");
    this.at += 1;
    if (this.peek() === close) {
      this.at += 1;
      return;
    }
    for (;;) {
      item();
      const next = this.peek();
      this.at += 1;
      if (next === close) return;
      if (next !== ",") throw this.wrong("expected a comma");
    }
  }
}

/** Reads MessagePack. Throws {@link DecodeError}. */
export function unpack(payload: Buffer): Value {
  const source = new PackSource(payload);
  const value = source.value(0);
  if (source.at !== payload.length) throw new DecodeError(`trailing bytes at byte ${source.at}`);
  return value;
}

/** Reads MessagePack, value by value. */
export class PackSource {
  at = 0;

  constructor(readonly data: Buffer) {}

  /** Takes the next value, which lies in `depth` others. */
  value(depth: number): Value {
    const at = this.at;
    const marker = this.uint(1);
    if (marker >= 0xa0 && marker <= 0xbf) return this.text(marker & 0x1f);
    if (marker <= 0x7f) return marker;
    if (marker <= 0x8f) return this.map(marker & 0x0f, depth);
    if (marker <= 0x9f) return this.array(marker & 0x0f, depth);
    if (marker >= 0xe0) return marker - 0x100;
    switch (marker) {
      case 0xc0:
        return null;
      case 0xc2:
        return false;
      case 0xc3:
        return true;
      case 0xc4:
      case 0xc5:
      case 0xc6:
        return this.take(this.uint(1 << (marker - 0xc4)));
      case 0xc7:
      case 0xc8:
      case 0xc9:
        this.take(this.uint(1 << (marker - 0xc7)) + 1);
        return OPAQUE;
      case 0xca:
        return this.take(4).readFloatBE();
      case 0xcb:
        return this.take(8).readDoubleBE();
      case 0xcc:
      case 0xcd:
      case 0xce:
      case 0xcf:
        return this.uint(1 << (marker - 0xcc));
      case 0xd0:
        return this.take(1).readInt8();
      case 0xd1:
        return this.take(2).readInt16BE();
      case 0xd2:
        return this.take(4).readInt32BE();
      case 0xd3:
        return Number(this.take(8).readBigInt64BE());
      case 0xd4:
      case 0xd5:
      case 0xd6:
      case 0xd7:
      case 0xd8:
        this.take((1 << (marker - 0xd4)) + 1);
        return OPAQUE;
      case 0xd9:
      case 0xda:
      case 0xdb:
        return this.text(this.uint(1 << (marker - 0xd9)));
      case 0xdc:
      case 0xdd:
        return this.array(this.uint(2 << (marker - 0xdc)), depth);
      case 0xde:
      case 0xdf:
        return this.map(this.uint(2 << (marker - 0xde)), depth);
      default:
        throw new DecodeError(`unsupported type at byte ${at}`);
    }
  }

  /** Takes the beginning of a map: how many names it has; `undefined` where no map comes. */
  mapLength(): number | undefined {
    return this.length(0x80, 0xde);
  }

  /** Takes the beginning of an array: how many values it has; `undefined` where no array comes. */
  arrayLength(): number | undefined {
    return this.length(0x90, 0xdc);
  }

  private length(short: number, long: number): number | undefined {
    const marker = this.data[this.at];
    if (marker === undefined) return undefined;
    if ((marker & 0xf0) === short) {
      this.at += 1;
      return marker & 0x0f;
    }
    if (marker !== long && marker !== long + 1) return undefined;
    this.at += 1;
    return this.uint(2 << (marker - long));
  }

  private take(length: number): Buffer {
    const start = this.at;
    if (start + length > this.data.length) throw new DecodeError("unexpected end of input");
    this.at = start + length;
    return this.data.subarray(start, this.at);
  }

  private uint(length: number): number {
    const taken = this.take(length);
    return length <= 4 ? taken.readUIntBE(0, length) : Number(taken.readBigUInt64BE());
  }

  private text(length: number): string {
    const taken = this.take(length);
    // Short texts of ASCII, which nearly all are, need no decoder.
    if (length < 48) {
      let found = "";
      for (const byte of taken) {
        if (byte > 0x7f) return this.decoded(taken);
        found += String.fromCharCode(byte);
      }
      return found;
    }
    return this.decoded(taken);
  }

  private decoded(taken: Buffer): string {
    try {
      return UTF8.decode(taken);
    } catch {
      throw new DecodeError(`text is not UTF-8 before byte ${this.at}`);
    }
  }

  private array(length: number, depth: number): Value[] {
    this.enter(length, depth);
    const values: Value[] = [];
    for (let index = 0; index < length; index += 1) values.push(this.value(depth + 1));
    return values;
  }

  private map(length: number, depth: number): Fields {
    this.enter(2 * length, depth);
    const pairs: [string, Value][] = [];
    for (let index = 0; index < length; index += 1) {
      const name = this.value(depth + 1);
      const value = this.value(depth + 1);
      if (typeof name === "string") pairs.push([name, value]);
    }
    return new Fields(pairs, pairs.length !== length);
  }

  private enter(values: number, depth: number): void {
    if (depth >= MAX_DEPTH) throw new DecodeError("nested too deeply");
    // Each value is a byte at least: a length that lies is known before anything is kept for it.
    if (values > this.data.length - this.at) throw new DecodeError("unexpected end of input");
  }
}

/** Writes MessagePack, each value in its shortest form. Throws `TypeError` or `RangeError` where it has none. */
export function pack(value: Writable): Buffer {
  refuseWhatHasNoForm(value, 0);
  const parts: Buffer[] = [];
  packInto(value, parts);
  return Buffer.concat(parts);
}

function packInto(value: Writable, parts: Buffer[]): void {
  if (typeof value === "string") {
    const text = Buffer.from(value);
    parts.push(lengthOf(text.length, 0xa0, 32, [0xd9, 0xda, 0xdb]), text);
  } else if (typeof value === "number") {
    parts.push(Number.isSafeInteger(value) && !Object.is(value, -0) ? packedInteger(value) : packedDouble(value));
  } else if (value === null || typeof value === "boolean") {
    parts.push(Buffer.of(value === null ? 0xc0 : value ? 0xc3 : 0xc2));
  } else if (value instanceof Float32) {
    const out = Buffer.of(0xca, 0, 0, 0, 0);
    out.writeFloatBE(value.value, 1);
    parts.push(out);
  } else if (value instanceof Float64) {
    parts.push(packedDouble(value.value));
  } else if (isList(value)) {
    parts.push(lengthOf(value.length, 0x90, 16, [undefined, 0xdc, 0xdd]));
    for (const item of value) packInto(item, parts);
  } else {
    const members = membersOf(value);
    parts.push(lengthOf(members.length, 0x80, 16, [undefined, 0xde, 0xdf]));
    for (const [name, item] of members) {
      packInto(name, parts);
      packInto(item, parts);
    }
  }
}

function lengthOf(
  length: number,
  short: number,
  below: number,
  [one, two, four]: readonly [number | undefined, number, number],
): Buffer {
  if (length < below) return Buffer.of(short | length);
  if (one !== undefined && length < 1 << 8) return Buffer.of(one, length);
  if (length < 1 << 16) return Buffer.of(two, length >> 8, length & 0xff);
  const out = Buffer.of(four, 0, 0, 0, 0);
  out.writeUInt32BE(length, 1);
  return out;
}

function packedInteger(value: number): Buffer {
  if (value >= -32 && value < 128) return Buffer.of(value & 0xff);
  for (const [power, length] of [1, 2, 4].entries()) {
    const limit = 2 ** (8 * length);
    if (value >= 0 && value < limit) {
      const out = Buffer.alloc(1 + length, 0xcc + power);
      out.writeUIntBE(value, 1, length);
      return out;
    }
    if (value < 0 && value >= -limit / 2) {
      const out = Buffer.alloc(1 + length, 0xd0 + power);
      out.writeIntBE(value, 1, length);
      return out;
    }
  }
  const out = Buffer.alloc(9, value < 0 ? 0xd3 : 0xcf);
  out.writeBigInt64BE(BigInt(value), 1);
  return out;
}

function packedDouble(value: number): Buffer {
  const out = Buffer.alloc(9, 0xcb);
  out.writeDoubleBE(value, 1);
  return out;
}

function refuseWhatHasNoForm(value: unknown, depth: number): void {
  if (depth > MAX_DEPTH) throw new RangeError("nested too deeply");
  if (typeof value === "string") {
    if (LONE_SURROGATE.test(value)) throw new TypeError("unpaired surrogate");
  } else if (typeof value === "number") {
    if (!Number.isFinite(value)) throw new RangeError(`${value} has no form`);
  } else if (value === null || typeof value === "boolean") {
    return;
  } else if (value instanceof Float32 || value instanceof Float64) {
    refuseWhatHasNoForm(value.value, depth);
  } else if (Array.isArray(value)) {
    for (const item of value as unknown[]) refuseWhatHasNoForm(item, depth + 1);
  } else if (typeof value === "object") {
    for (const [name, item] of Object.entries(value)) {
      refuseWhatHasNoForm(name, depth);
      if (item !== undefined) refuseWhatHasNoForm(item, depth + 1);
    }
  } else {
    throw new TypeError(`a ${typeof value} has no form`);
  }
}

function isList(value: readonly Writable[] | Readonly<Record<string, Writable>>): value is readonly Writable[] {
  return Array.isArray(value);
}

/** As JSON has them: a name that stands for nothing is not there. */
function membersOf(value: Readonly<Record<string, Writable | undefined>>): [string, Writable][] {
  const members: [string, Writable][] = [];
  for (const [name, item] of Object.entries(value)) if (item !== undefined) members.push([name, item]);
  return members;
}

const UTF8 = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });
const SPACE = /[ \t\n\r]*/y;
const PLAIN = /[^"\\\u0000-\u001f]*/y;
const NUMBER = /-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?/y;
const LONE_SURROGATE = /[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/;
