/**
 * Headers: the MessagePack maps ahead of bodies and on the control stream (`spec/session.md`, "Headers"). Writers leave out what is at its default
 * and write keys in the order of the specification, so equal headers are equal bytes; readers take any order and skip keys that they do not know.
 */

import { isName } from "./address.js";
import { MAX_AFFINITY, MAX_HEADER_FIELDS, MAX_METHOD } from "./limits.js";
import { type Int, MalformedError, MsgpackReader, MsgpackWriter, readMap } from "./msgpack.js";

/** The major version of the protocol that is spoken here. */
export const VERSION = 1;

/** A field of the application's own: its name and its value. Names may repeat, and their order is kept. */
export type HeaderField = readonly [name: string, value: string];

/** Opens a call, a send or a raw stream. */
export interface CallHeader {
  readonly to: string;
  readonly method: string;
  readonly from: string;
  readonly type: string;
  /** Milliseconds that are left; undefined for no deadline. */
  readonly deadlineMs: Int | undefined;
  /** From 0, low, to 3, critical. */
  readonly priority: number;
  readonly idempotencyKey: string;
  readonly traceparent: string;
  readonly tracestate: string;
  readonly carrier: string;
  /** 0 no, 1 in order, 2 in any order. */
  readonly durable: number;
  readonly member: Int;
  readonly affinity: string;
  readonly headers: readonly HeaderField[];
}

/** A call header that says nothing. */
export const EMPTY_CALL: CallHeader = {
  to: "",
  method: "",
  from: "",
  type: "",
  deadlineMs: undefined,
  priority: 1,
  idempotencyKey: "",
  traceparent: "",
  tracestate: "",
  carrier: "",
  durable: 0,
  member: 0,
  affinity: "",
  headers: [],
};

/** What an agent says ahead of its answer. */
export interface AnswerHead {
  /** Media type; empty for bytes. */
  readonly type: string;
  /** Fields of the application's own. */
  readonly headers: readonly HeaderField[];
}

/** An answer's head that says nothing. */
export const EMPTY_HEAD: AnswerHead = { type: "", headers: [] };

/** Greets on the control stream. */
export interface Hello {
  readonly versions: readonly number[];
  readonly name: string;
  readonly software: string;
  readonly instance: Int;
  readonly features: readonly string[];
  readonly additional: boolean;
}

/** Attaches an agent. */
export interface RegisterHeader {
  readonly name: string;
  readonly description: string;
  readonly tags: readonly string[];
  readonly version: string;
  readonly maxConcurrency: number;
  readonly socket: string;
  readonly schema: string;
  readonly priority: number;
  readonly overflow: number;
  readonly pinnedMs: Int;
  readonly slowStartMs: Int;
  readonly maxWaiting: number | undefined;
}

const MAX_U8 = 0xff;
const MAX_U16 = 0xffff;
const MAX_U32 = 0xffff_ffff;

// Writing. Each field is put together first, so that the map's length is known.

/** Puts a map together whose fields at their defaults are left out. */
export class MapWriter {
  readonly #fields = new MsgpackWriter();
  #count = 0;

  text(key: string, value: string, always = false): void {
    if (value === "" && !always) return;
    this.#key(key).text(value);
  }

  uint(key: string, value: Int | undefined, unless?: number): void {
    if (value === undefined || value === unless || value === BigInt(unless ?? -1)) return;
    this.#key(key).uint(value);
  }

  yes(key: string, value: boolean): void {
    if (value) this.#key(key).bool(true);
  }

  texts(key: string, values: readonly string[]): void {
    if (values.length === 0) return;
    const fields = this.#key(key);
    fields.array(values.length);
    for (const value of values) fields.text(value);
  }

  pairs(key: string, values: readonly HeaderField[]): void {
    if (values.length === 0) return;
    const fields = this.#key(key);
    fields.array(values.length);
    for (const [name, value] of values) {
      fields.array(2);
      fields.text(name);
      fields.text(value);
    }
  }

  list(key: string, items: readonly Buffer[]): void {
    const fields = this.#key(key);
    fields.array(items.length);
    for (const item of items) fields.raw(item);
  }

  map(key: string, map: MapWriter): void {
    if (map.#count > 0) this.#key(key).raw(map.finish());
  }

  bytes(key: string, value: Uint8Array | undefined): void {
    if (value !== undefined && value.length > 0) this.#key(key).bytes(value);
  }

  numbers(key: string, values: readonly number[]): void {
    const fields = this.#key(key);
    fields.array(values.length);
    for (const value of values) fields.uint(value);
  }

  counts(key: string, values: readonly (readonly [string, Int])[]): void {
    if (values.length === 0) return;
    const fields = this.#key(key);
    fields.array(values.length);
    for (const [name, count] of values) {
      fields.array(2);
      fields.text(name);
      fields.uint(count);
    }
  }

  finish(): Buffer {
    const fields = this.#fields.finish();
    const whole = new MsgpackWriter(fields.length + 5);
    whole.map(this.#count);
    whole.raw(fields);
    return whole.finish();
  }

  #key(key: string): MsgpackWriter {
    this.#count += 1;
    this.#fields.text(key);
    return this.#fields;
  }
}

/** The bytes of a call header. */
export function encodeCall(header: CallHeader): Buffer {
  const map = new MapWriter();
  map.text("to", header.to, true);
  map.text("method", header.method);
  map.text("from", header.from);
  map.text("type", header.type);
  map.uint("deadline_ms", header.deadlineMs);
  map.uint("priority", header.priority, 1);
  map.text("idempotency_key", header.idempotencyKey);
  map.text("traceparent", header.traceparent);
  map.text("tracestate", header.tracestate);
  map.text("carrier", header.carrier);
  map.uint("durable", header.durable, 0);
  map.uint("member", header.member, 0);
  map.text("affinity", header.affinity);
  map.pairs("headers", header.headers);
  return map.finish();
}

/** The bytes of an answer's head. */
export function encodeAnswerHead(head: AnswerHead): Buffer {
  const map = new MapWriter();
  map.text("type", head.type);
  map.pairs("headers", head.headers);
  return map.finish();
}

/** The bytes of a greeting. */
export function encodeHello(hello: Hello): Buffer {
  const map = new MapWriter();
  map.numbers("versions", hello.versions);
  map.text("name", hello.name);
  map.text("software", hello.software);
  map.uint("instance", hello.instance, 0);
  map.texts("features", hello.features);
  map.yes("additional", hello.additional);
  return map.finish();
}

/** The bytes of a registration. */
export function encodeRegister(register: RegisterHeader): Buffer {
  const map = new MapWriter();
  map.text("name", register.name, true);
  map.text("description", register.description);
  map.texts("tags", register.tags);
  map.text("version", register.version);
  map.uint("max_concurrency", register.maxConcurrency, 0);
  map.text("socket", register.socket);
  map.text("schema", register.schema);
  map.uint("priority", register.priority, 0);
  map.uint("overflow", register.overflow, 0);
  map.uint("pinned_ms", register.pinnedMs, 0);
  map.uint("slow_start_ms", register.slowStartMs, 0);
  map.uint("max_waiting", register.maxWaiting);
  return map.finish();
}

/** The bytes of a farewell. */
export function encodeGoingAway(reason: string): Buffer {
  const map = new MapWriter();
  map.text("reason", reason, true);
  return map.finish();
}

// Reading. All of it throws MalformedError.

/** Reads a call header. */
export function decodeCall(bytes: Buffer, start = 0, end = bytes.length): CallHeader {
  const reader = new MsgpackReader(bytes, start, end);
  const header: { -readonly [Key in keyof CallHeader]: CallHeader[Key] } = { ...EMPTY_CALL };
  readMap(reader, 1, (key) => {
    switch (key) {
      case "to":
        header.to = reader.text();
        return 0;
      case "method":
        header.method = reader.text();
        return 1;
      case "from":
        header.from = reader.text();
        return 2;
      case "type":
        header.type = reader.text();
        return 3;
      case "deadline_ms":
        header.deadlineMs = reader.nil() ? undefined : reader.uint();
        return 4;
      case "priority":
        header.priority = atMost(reader.uint(), 3);
        return 5;
      case "idempotency_key":
        header.idempotencyKey = reader.text();
        return 6;
      case "traceparent":
        header.traceparent = reader.text();
        return 7;
      case "tracestate":
        header.tracestate = reader.text();
        return 8;
      case "carrier":
        header.carrier = reader.text();
        return 9;
      case "durable":
        header.durable = reader.number(2);
        return 10;
      case "member":
        header.member = reader.uint();
        return 11;
      case "affinity":
        header.affinity = reader.text();
        return 12;
      case "headers":
        header.headers = readPairs(reader);
        return 13;
      default:
        return -1;
    }
  });
  checkBounds(header);
  return header;
}

/** Reads an answer's head. */
export function decodeAnswerHead(bytes: Buffer, start = 0, end = bytes.length): AnswerHead {
  const reader = new MsgpackReader(bytes, start, end);
  let type = "";
  let headers: HeaderField[] = [];
  readMap(reader, 1, (key) => {
    switch (key) {
      case "type":
        type = reader.text();
        return 0;
      case "headers":
        headers = readPairs(reader);
        return 1;
      default:
        return -1;
    }
  });
  if (headers.length > MAX_HEADER_FIELDS) throw tooMany("number of fields");
  return { type, headers };
}

/** Reads a greeting. */
export function decodeHello(bytes: Buffer, start = 0, end = bytes.length): Hello {
  const reader = new MsgpackReader(bytes, start, end);
  const hello: { -readonly [Key in keyof Hello]: Hello[Key] } = {
    versions: [],
    name: "",
    software: "",
    instance: 0,
    features: [],
    additional: false,
  };
  readMap(reader, 1, (key) => {
    switch (key) {
      case "versions":
        hello.versions = readList(reader, () => reader.number(MAX_U16));
        return 0;
      case "name":
        hello.name = reader.text();
        return 1;
      case "software":
        hello.software = reader.text();
        return 2;
      case "instance":
        hello.instance = reader.uint();
        return 3;
      case "features":
        hello.features = readTexts(reader);
        return 4;
      case "additional":
        hello.additional = reader.bool();
        return 5;
      default:
        return -1;
    }
  });
  return hello;
}

/** Reads a registration. */
export function decodeRegister(bytes: Buffer, start = 0, end = bytes.length): RegisterHeader {
  const reader = new MsgpackReader(bytes, start, end);
  const register: { -readonly [Key in keyof RegisterHeader]: RegisterHeader[Key] } = {
    name: "",
    description: "",
    tags: [],
    version: "",
    maxConcurrency: 0,
    socket: "",
    schema: "",
    priority: 0,
    overflow: 0,
    pinnedMs: 0,
    slowStartMs: 0,
    maxWaiting: undefined,
  };
  const seen = readMap(reader, 1, (key) => {
    switch (key) {
      case "name":
        register.name = reader.text();
        return 0;
      case "description":
        register.description = reader.text();
        return 1;
      case "tags":
        register.tags = readTexts(reader);
        return 2;
      case "version":
        register.version = reader.text();
        return 3;
      case "max_concurrency":
        register.maxConcurrency = reader.number(MAX_U32);
        return 4;
      case "socket":
        register.socket = reader.text();
        return 5;
      case "schema":
        register.schema = reader.text();
        return 6;
      case "priority":
        register.priority = reader.number(MAX_U8);
        return 7;
      case "overflow":
        register.overflow = reader.number(MAX_U32);
        return 8;
      case "pinned_ms":
        register.pinnedMs = reader.uint();
        return 9;
      case "slow_start_ms":
        register.slowStartMs = reader.uint();
        return 10;
      case "max_waiting":
        register.maxWaiting = reader.nil() ? undefined : reader.number(MAX_U32);
        return 11;
      default:
        return -1;
    }
  });
  if ((seen & 1) === 0) throw new MalformedError("the name is missing");
  if (!isName(register.name)) throw new MalformedError("the name is none");
  return register;
}

/** Reads a farewell's reason. */
export function decodeGoingAway(bytes: Buffer, start = 0, end = bytes.length): string {
  const reader = new MsgpackReader(bytes, start, end);
  let reason = "";
  readMap(reader, 1, (key) => {
    if (key !== "reason") return -1;
    reason = reader.text();
    return 0;
  });
  return reason;
}

/** Throws {@link MalformedError} of the kind `bound` where a call header passes one. */
export function checkBounds(header: CallHeader): void {
  if (header.method.length > MAX_METHOD / 3 && Buffer.byteLength(header.method) > MAX_METHOD) throw tooMany("method");
  if (header.affinity.length > MAX_AFFINITY / 3 && Buffer.byteLength(header.affinity) > MAX_AFFINITY) throw tooMany("affinity key");
  if (header.headers.length > MAX_HEADER_FIELDS) throw tooMany("number of fields");
}

function tooMany(what: string): MalformedError {
  return new MalformedError(`header exceeds a bound: ${what}`, "bound");
}

function atMost(value: Int, most: number): number {
  return value > most ? most : Number(value);
}

/** Reads a list; what it claims to have is not believed before it is there. */
export function readList<T>(reader: MsgpackReader, item: () => T): T[] {
  const length = reader.array();
  const list: T[] = [];
  for (let at = 0; at < length; at += 1) list.push(item());
  return list;
}

/** Reads a list of texts. */
export function readTexts(reader: MsgpackReader): string[] {
  return readList(reader, () => reader.text());
}

/** Reads a list of pairs of texts. */
export function readPairs(reader: MsgpackReader): HeaderField[] {
  return readList(reader, () => {
    if (reader.array() !== 2) throw new MalformedError("a field that is no pair");
    return [reader.text(), reader.text()] as const;
  });
}
