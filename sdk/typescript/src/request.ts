/**
 * What a handler is given, and what it may answer besides a body.
 */

import { type Body, readableStream } from "./body.js";
import type { CalleeStream } from "./callee.js";
import { DEFAULT_MAX_BYTES } from "./exchange.js";
import { type CallFrom, parseFrom } from "./protocol/address.js";
import type { CallHeader, HeaderField } from "./protocol/headers.js";
import type { Int } from "./protocol/msgpack.js";
import { now } from "./deadlines.js";
import { priorityName, type Priority } from "./options.js";

/** What kind of work a request is: a call, a one-way send without an answer, or a raw stream of bytes both ways. */
export type RequestKind = "call" | "send" | "stream";

/** The body of a request. It is read once: whole, or chunk by chunk, and then as fast as the handler takes it. */
export class RequestBody implements AsyncIterable<Uint8Array> {
  readonly #stream: CalleeStream;

  /** @internal */
  constructor(stream: CalleeStream) {
    this.#stream = stream;
  }

  /**
   * All of it. Rejects with `resource_exhausted` where it is longer than `maxBytes` (64 MiB by default), and with `cancelled` where the caller
   * gave up.
   */
  bytes(maxBytes = DEFAULT_MAX_BYTES): Promise<Uint8Array> {
    return this.#stream.wholeBody(maxBytes);
  }

  /** All of it as text, of UTF-8. */
  async text(maxBytes = DEFAULT_MAX_BYTES): Promise<string> {
    const all = await this.#stream.wholeBody(maxBytes);
    return all.toString("utf8");
  }

  /** All of it as the value of its JSON. Throws `SyntaxError` where it is none. */
  async json(maxBytes = DEFAULT_MAX_BYTES): Promise<unknown> {
    return JSON.parse(await this.text(maxBytes)) as unknown;
  }

  /** The same as a web stream. */
  stream(): ReadableStream<Uint8Array> {
    return readableStream(
      () => this.#stream.nextChunk(),
      () => {
        this.#leave();
      },
    );
  }

  /** Chunk by chunk. Leaving early has the caller stop sending. */
  async *[Symbol.asyncIterator](): AsyncGenerator<Uint8Array, void, undefined> {
    let ended = false;
    try {
      for (;;) {
        const chunk = await this.#stream.nextChunk();
        if (chunk === undefined) {
          ended = true;
          return;
        }
        yield chunk;
      }
    } finally {
      if (!ended) this.#leave();
    }
  }

  #leave(): void {
    this.#stream.stop(0);
  }
}

/** One call as its handler sees it. The caller wrote all of it, save `from.node`, which the node vouches for. */
export class Request {
  /** What kind of work it is. */
  readonly kind: RequestKind;
  /** The body. */
  readonly body: RequestBody;
  readonly #stream: CalleeStream;
  readonly #header: CallHeader;

  /** @internal */
  constructor(stream: CalleeStream, header: CallHeader, kind: RequestKind) {
    this.kind = kind;
    this.body = new RequestBody(stream);
    this.#stream = stream;
    this.#header = header;
  }

  /** The agent that is called. */
  get agent(): string {
    return this.#header.to;
  }

  /** What is asked of it; empty for an agent with one method. */
  get method(): string {
    return this.#header.method;
  }

  /** Who calls: an agent's name, empty for none, and the key of the node that it came from, null for a program of this machine. */
  get from(): CallFrom {
    return parseFrom(this.#header.from);
  }

  /** Media type of the body; empty for bytes. */
  get type(): string {
    return this.#header.type;
  }

  /** The application's own fields, in order; names may repeat. */
  get headers(): readonly HeaderField[] {
    return this.#header.headers;
  }

  /** The first field of a name; undefined where there is none. */
  header(name: string): string | undefined {
    return this.#header.headers.find(([key]) => key === name)?.[1];
  }

  /** Milliseconds until the answer is not wanted any more; undefined for no deadline, 0 where it has passed. */
  get timeLeft(): number | undefined {
    const until = this.#stream.until;
    return until === undefined ? undefined : Math.max(0, until - now());
  }

  /** How urgent it is. */
  get priority(): Priority {
    return priorityName(this.#header.priority);
  }

  /** Calls with equal keys are the same work; empty for none. */
  get idempotencyKey(): string {
    return this.#header.idempotencyKey;
  }

  /** Calls of one group with equal keys come to the same member; empty for none. */
  get affinity(): string {
    return this.#header.affinity;
  }

  /** W3C trace context: `traceparent`. */
  get traceparent(): string {
    return this.#header.traceparent;
  }

  /** W3C trace context: `tracestate`. */
  get tracestate(): string {
    return this.#header.tracestate;
  }

  /** The member of the group that was asked for; 0 for whichever. */
  get member(): Int {
    return this.#header.member;
  }

  /** Aborted once nobody waits for the handler: the caller gave up, the deadline has passed, or the connection is lost. Its reason is a `HailError`. */
  get signal(): AbortSignal {
    return this.#stream.signal;
  }

  /** The whole body: `request.body.bytes()`. */
  bytes(maxBytes = DEFAULT_MAX_BYTES): Promise<Uint8Array> {
    return this.#stream.wholeBody(maxBytes);
  }

  /** The whole body as text. */
  text(maxBytes = DEFAULT_MAX_BYTES): Promise<string> {
    return this.body.text(maxBytes);
  }

  /** The whole body as the value of its JSON. */
  json(maxBytes = DEFAULT_MAX_BYTES): Promise<unknown> {
    return this.body.json(maxBytes);
  }
}

/** A handler's answer with a media type and fields of its own. */
export class Reply {
  /** The body. */
  readonly body: Body;
  /** Media type; undefined for what follows from the body. */
  readonly type: string | undefined;
  /** Fields, at most 128. */
  readonly headers: readonly HeaderField[];

  /** `type` is the media type: empty for bytes, by default `application/json` for values that are sent as JSON. */
  constructor(body: Body, options: { readonly type?: string; readonly headers?: Iterable<HeaderField> | Readonly<Record<string, string>> } = {}) {
    this.body = body;
    this.type = options.type;
    this.headers = fieldsOf(options.headers);
  }
}

/** Fields given as pairs or as an object, in their order. */
export function fieldsOf(headers: Iterable<HeaderField> | Readonly<Record<string, string>> | undefined): readonly HeaderField[] {
  if (headers === undefined) return NO_FIELDS;
  if (Symbol.iterator in headers) return [...headers];
  return Object.entries(headers);
}

const NO_FIELDS: readonly HeaderField[] = [];
