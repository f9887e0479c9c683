/**
 * Events: what a host asks its agent about.
 *
 * Each belongs to one request and carries its `correlationId`, which the host chose. {@link decodeEvent} reads them in either
 * encoding, as a map or as an array of the fields in their order, and refuses a field that is missing or of another kind.
 */
import { DecodeError, type Encoding, Fields, type Value, decode, decodeBase64, toJson } from "./codec.js";

/** The kinds of events. */
export type EventKind =
  | "requestHeaders"
  | "requestBody"
  | "responseHeaders"
  | "responseBody"
  | "requestComplete"
  | "websocketFrame"
  | "guardrail"
  | "configure";

/** All kinds, in the order of their frames' types, from 0x10. */
export const EVENT_KINDS: readonly EventKind[] = [
  "requestHeaders",
  "requestBody",
  "responseHeaders",
  "responseBody",
  "requestComplete",
  "websocketFrame",
  "guardrail",
  "configure",
];

/** The kind of an event by the type of its frame; `undefined` for other types. */
export function eventKind(code: number): EventKind | undefined {
  return EVENT_KINDS[code - 0x10];
}

/** Header fields. A name may have several values, and its case does not matter. */
export class Headers {
  readonly #fields = new Map<string, { readonly name: string; readonly values: string[] }>();

  constructor(fields: Iterable<readonly [string, readonly string[]]> = []) {
    for (const [name, values] of fields) {
      const key = name.toLowerCase();
      const known = this.#fields.get(key);
      if (known === undefined) this.#fields.set(key, { name, values: [...values] });
      else known.values.push(...values);
    }
  }

  /** The first value of a name. */
  get(name: string): string | undefined {
    return this.getAll(name)[0];
  }

  /** Every value of a name. */
  getAll(name: string): readonly string[] {
    return this.#fields.get(name.toLowerCase())?.values ?? [];
  }

  /** Whether a name has a value. */
  has(name: string): boolean {
    return this.getAll(name).length > 0;
  }

  /** How many names there are. */
  get size(): number {
    return this.#fields.size;
  }

  /** Every value with its name. */
  *[Symbol.iterator](): IterableIterator<[string, string]> {
    for (const { name, values } of this.#fields.values()) for (const value of values) yield [name, value];
  }

  /** The names, as they came, and their values. */
  toJSON(): Record<string, string[]> {
    return Object.fromEntries([...this.#fields.values()].map(({ name, values }) => [name, [...values]]));
  }
}

/** What a host knows of a request besides its head. */
export interface Metadata {
  /** The id by which host and agent speak of the request. */
  readonly correlationId: string;
  /** The host's own id of it, for logs. */
  readonly requestId: string;
  /** The client's address. */
  readonly clientIp: string;
  /** The client's port. */
  readonly clientPort: number;
  /** The name that the client asked for in TLS (SNI); null for none. */
  readonly serverName: string | null;
  /** Such as `HTTP/1.1`. */
  readonly protocol: string;
  /** The version of TLS; null without TLS. */
  readonly tlsVersion: string | null;
  /** The cipher of TLS; null without TLS. */
  readonly tlsCipher: string | null;
  /** The host's route; null where it has none. */
  readonly routeId: string | null;
  /** Whom the host will ask; null where that is not known. */
  readonly upstreamId: string | null;
  /** When the request came (RFC 3339). */
  readonly timestamp: string;
  /** W3C trace context; null for none. */
  readonly traceparent: string | null;
}

/** The head of a request. */
export interface RequestHeaders {
  /** The request that it belongs to. */
  readonly correlationId: string;
  /** What the host knows of it besides. */
  readonly metadata: Metadata;
  /** Such as `GET`. */
  readonly method: string;
  /** The target, with its query. */
  readonly uri: string;
  /** Its header fields. */
  readonly headers: Headers;
}

/** A chunk of a body. */
export interface BodyChunk {
  /** The request that it belongs to. */
  readonly correlationId: string;
  /** The bytes. */
  readonly data: Buffer;
  /** Whether the body ends with it. */
  readonly isLast: boolean;
  /** Bytes of the whole body, where they are known. */
  readonly totalSize: number | null;
  /** Which chunk this is, from 0. */
  readonly index: number;
  /** Bytes of the body so far, with these. */
  readonly transferred: number;
  /** Whether it is of a response's body. */
  readonly ofResponse: boolean;
}

/** The head of a response. */
export interface ResponseHeaders {
  /** The request that it belongs to. */
  readonly correlationId: string;
  /** Its status, such as 200. */
  readonly status: number;
  /** Its header fields. */
  readonly headers: Headers;
}

/** A request has ended; for records. */
export interface RequestComplete {
  /** The request that it belongs to. */
  readonly correlationId: string;
  /** The status that the client got. */
  readonly status: number;
  /** How long it took, in milliseconds. */
  readonly durationMs: number;
  /** Bytes of the request's body. */
  readonly requestBodySize: number;
  /** Bytes of the response's body. */
  readonly responseBodySize: number;
  /** How often the host asked its upstream. */
  readonly upstreamAttempts: number;
  /** What went wrong; null for nothing. */
  readonly error: string | null;
}

const OPCODES = ["continuation", "text", "binary", "close", "ping", "pong"] as const;
/** The kind of a WebSocket frame (RFC 6455, 5.2). */
export type Opcode = (typeof OPCODES)[number];

/** A WebSocket frame, in either direction. */
export interface WebSocketFrame {
  /** The request that it belongs to. */
  readonly correlationId: string;
  /** Its kind. */
  readonly opcode: Opcode;
  /** The bytes, unmasked. */
  readonly data: Buffer;
  /** Whether the client sent it. */
  readonly clientToServer: boolean;
  /** Which frame of the connection this is, from 0. */
  readonly index: number;
  /** Whether its message ends with it. */
  readonly fin: boolean;
  /** The host's route; null where it has none. */
  readonly routeId: string | null;
  /** The client's address. */
  readonly clientIp: string;
}

const CHECKS = ["prompt_injection", "pii_detection"] as const;
/** What to look for in a text. */
export type GuardrailCheck = (typeof CHECKS)[number];

/** A text for or from a language model. */
export interface Guardrail {
  /** The request that it belongs to. */
  readonly correlationId: string;
  /** What to look for. */
  readonly inspectionType: GuardrailCheck;
  /** The text. */
  readonly content: string;
  /** The model that it is for or from; null where that is not known. */
  readonly model: string | null;
  /** What to look for in particular; empty for everything. */
  readonly categories: readonly string[];
  /** The host's route; null where it has none. */
  readonly routeId: string | null;
  /** What else the host says of it. */
  readonly metadata: ReadonlyMap<string, string>;
}

/** The agent's configuration. Whatever is not an allow refuses it. */
export interface Configure {
  /** The request that it belongs to. */
  readonly correlationId: string;
  /** Anything that JSON can say. */
  readonly config: unknown;
  /** The version of this configuration; null where it has none. */
  readonly configVersion: string | null;
}

/** What each kind of event is. */
export interface EventMap {
  /** The head of a request. */
  requestHeaders: RequestHeaders;
  /** A chunk of a request's body. */
  requestBody: BodyChunk;
  /** The head of a response. */
  responseHeaders: ResponseHeaders;
  /** A chunk of a response's body. */
  responseBody: BodyChunk;
  /** A request has ended. */
  requestComplete: RequestComplete;
  /** A WebSocket frame. */
  websocketFrame: WebSocketFrame;
  /** A text for or from a language model. */
  guardrail: Guardrail;
  /** A new configuration. */
  configure: Configure;
}

/** An event with its kind. */
export type Event = { [K in EventKind]: { readonly kind: K; readonly event: EventMap[K] } }[EventKind];

/** Reads the payload of an event's frame. Throws {@link DecodeError}: whoever asked must be answered with a block. */
export function decodeEvent(kind: EventKind, payload: Buffer, encoding: Encoding): Event {
  const tree = decode(payload, encoding);
  switch (kind) {
    case "requestHeaders":
      return { kind, event: requestHeaders(tree) };
    case "requestBody":
      return { kind, event: bodyChunk(tree, false) };
    case "responseHeaders":
      return { kind, event: responseHeaders(tree) };
    case "responseBody":
      return { kind, event: bodyChunk(tree, true) };
    case "requestComplete":
      return { kind, event: requestComplete(tree) };
    case "websocketFrame":
      return { kind, event: websocketFrame(tree) };
    case "guardrail":
      return { kind, event: guardrail(tree) };
    case "configure":
      return { kind, event: configure(tree) };
  }
}

/** A structure: a map of its fields, or an array of them in their order. */
export class RecordOf<Name extends string> {
  readonly #value: (name: Name) => Value | undefined;

  constructor(tree: Value | undefined, names: readonly Name[]) {
    if (tree instanceof Fields) this.#value = (name) => tree.get(name);
    else if (isList(tree)) this.#value = (name) => tree[names.indexOf(name)];
    else throw new DecodeError("expected a structure");
  }

  /** What a field holds; `null` where it is missing. */
  value(name: Name): Value {
    return this.#value(name) ?? null;
  }

  /** A text that has to be there. */
  text(name: Name): string {
    const value = this.value(name);
    if (typeof value !== "string") throw wrong(name, "a text", value);
    return value;
  }

  /** A text that may be null or missing. */
  optionalText(name: Name): string | null {
    return this.value(name) === null ? null : this.text(name);
  }

  /** An integer that is not negative and fits. From 2^53 on it is rounded. */
  uint(name: Name, bits: number): number {
    const value = this.value(name);
    if (typeof value !== "number" || !Number.isInteger(value)) throw wrong(name, "an integer", value);
    if (value < 0 || value > 2 ** bits - 1) throw new DecodeError(`number out of range, in ${name}`);
    return value;
  }

  /** An integer that may be null or missing. */
  optionalUint(name: Name, bits: number): number | null {
    return this.value(name) === null ? null : this.uint(name, bits);
  }

  /** A truth value. */
  flag(name: Name): boolean {
    const value = this.value(name);
    if (typeof value !== "boolean") throw wrong(name, "a boolean", value);
    return value;
  }

  /** Bytes, or the base64 of some. */
  data(name: Name): Buffer {
    const value = this.value(name);
    if (value instanceof Uint8Array) return Buffer.from(value.buffer, value.byteOffset, value.byteLength);
    if (typeof value === "string") return decodeBase64(value);
    throw wrong(name, "data", value);
  }

  /** One of some words. */
  word<Word extends string>(name: Name, words: readonly Word[]): Word {
    const text = this.text(name);
    const word = words.find((known) => known === text);
    if (word === undefined) throw new DecodeError(`unknown word, in ${name}`);
    return word;
  }

  /** An array of texts; null or missing is as good as an empty one. */
  texts(name: Name): string[] {
    const value = this.value(name);
    return value === null ? [] : texts(value, name);
  }

  /** A map of texts; null or missing is as good as an empty one. */
  pairs(name: Name): Map<string, string> {
    const value = this.value(name);
    if (value === null) return new Map();
    if (!(value instanceof Fields)) throw wrong(name, "a map", value);
    return new Map(
      value.pairs.map(([key, item]) => {
        if (typeof item !== "string") throw wrong(name, "a text", item);
        return [key, item];
      }),
    );
  }
}

const METADATA = [
  "correlation_id",
  "request_id",
  "client_ip",
  "client_port",
  "server_name",
  "protocol",
  "tls_version",
  "tls_cipher",
  "route_id",
  "upstream_id",
  "timestamp",
  "traceparent",
] as const;

function requestHeaders(tree: Value): RequestHeaders {
  const head = new RecordOf(tree, ["metadata", "method", "uri", "headers"]);
  const about = new RecordOf(head.value("metadata"), METADATA);
  const metadata: Metadata = {
    correlationId: about.text("correlation_id"),
    requestId: about.text("request_id"),
    clientIp: about.text("client_ip"),
    clientPort: about.uint("client_port", 16),
    serverName: about.optionalText("server_name"),
    protocol: about.text("protocol"),
    tlsVersion: about.optionalText("tls_version"),
    tlsCipher: about.optionalText("tls_cipher"),
    routeId: about.optionalText("route_id"),
    upstreamId: about.optionalText("upstream_id"),
    timestamp: about.text("timestamp"),
    traceparent: about.optionalText("traceparent"),
  };
  return {
    correlationId: metadata.correlationId,
    metadata,
    method: head.text("method"),
    uri: head.text("uri"),
    headers: headers(head.value("headers")),
  };
}

function responseHeaders(tree: Value): ResponseHeaders {
  const head = new RecordOf(tree, ["correlation_id", "status", "headers"]);
  return {
    correlationId: head.text("correlation_id"),
    status: head.uint("status", 16),
    headers: headers(head.value("headers")),
  };
}

function bodyChunk(tree: Value, ofResponse: boolean): BodyChunk {
  let fields = tree;
  if (isList(tree)) {
    // A size that was not known is left out of the array, and moves the numbers after it forward.
    const numbers = tree.slice(3, 6);
    fields = [...tree.slice(0, 3), ...(numbers.length === 3 ? numbers : [null, ...numbers])];
  }
  const record = new RecordOf<
    "correlation_id" | "data" | "is_last" | "total_size" | "chunk_index" | "bytes_received" | "bytes_sent"
  >(fields, ["correlation_id", "data", "is_last", "total_size", "chunk_index", "bytes_received"]);
  return {
    correlationId: record.text("correlation_id"),
    data: record.data("data"),
    isLast: record.flag("is_last"),
    totalSize: record.optionalUint("total_size", 64),
    index: record.optionalUint("chunk_index", 32) ?? 0,
    transferred: record.optionalUint("bytes_received", 64) ?? record.optionalUint("bytes_sent", 64) ?? 0,
    ofResponse,
  };
}

function requestComplete(tree: Value): RequestComplete {
  const record = new RecordOf(tree, [
    "correlation_id",
    "status",
    "duration_ms",
    "request_body_size",
    "response_body_size",
    "upstream_attempts",
    "error",
  ]);
  return {
    correlationId: record.text("correlation_id"),
    status: record.uint("status", 16),
    durationMs: record.uint("duration_ms", 64),
    requestBodySize: record.uint("request_body_size", 64),
    responseBodySize: record.uint("response_body_size", 64),
    upstreamAttempts: record.uint("upstream_attempts", 32),
    error: record.optionalText("error"),
  };
}

function websocketFrame(tree: Value): WebSocketFrame {
  const record = new RecordOf(tree, [
    "correlation_id",
    "opcode",
    "data",
    "client_to_server",
    "frame_index",
    "fin",
    "route_id",
    "client_ip",
  ]);
  return {
    correlationId: record.text("correlation_id"),
    opcode: record.word("opcode", OPCODES),
    data: record.data("data"),
    clientToServer: record.flag("client_to_server"),
    index: record.uint("frame_index", 64),
    fin: record.flag("fin"),
    routeId: record.optionalText("route_id"),
    clientIp: record.text("client_ip"),
  };
}

function guardrail(tree: Value): Guardrail {
  const record = new RecordOf(tree, [
    "correlation_id",
    "inspection_type",
    "content",
    "model",
    "categories",
    "route_id",
    "metadata",
  ]);
  return {
    correlationId: record.text("correlation_id"),
    inspectionType: record.word("inspection_type", CHECKS),
    content: record.text("content"),
    model: record.optionalText("model"),
    categories: record.texts("categories"),
    routeId: record.optionalText("route_id"),
    metadata: record.pairs("metadata"),
  };
}

function configure(tree: Value): Configure {
  const record = new RecordOf(tree, ["correlation_id", "config", "config_version"]);
  return {
    correlationId: record.text("correlation_id"),
    config: toJson(record.value("config")),
    configVersion: record.optionalText("config_version"),
  };
}

function headers(tree: Value): Headers {
  if (!(tree instanceof Fields)) throw wrong("headers", "a map of names to lists of values", tree);
  return new Headers(tree.pairs.map(([name, values]) => [name, texts(values, "headers")] as const));
}

function texts(value: Value, name: string): string[] {
  if (!isList(value)) throw wrong(name, "a list of texts", value);
  return value.map((text) => {
    if (typeof text !== "string") throw wrong(name, "a text", text);
    return text;
  });
}

function isList(value: Value | undefined): value is readonly Value[] {
  return Array.isArray(value);
}

function wrong(name: string, expected: string, found: Value): DecodeError {
  return new DecodeError(found === null ? `missing field ${name}` : `expected ${expected}, in ${name}`);
}
