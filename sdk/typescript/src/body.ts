/**
 * Bodies: what a call carries and what a handler answers, as bytes that are there or as chunks that come.
 */

/** One chunk of a body: bytes, text as UTF-8, or any other value as a line of JSON. Bytes must not be changed once they are given. */
export type Chunk = string | Uint8Array | ArrayBuffer | object | number | boolean;

/**
 * A body to be sent: text as UTF-8, bytes, nothing, a web `ReadableStream` or any async iterable of chunks, which are read as fast as the far side
 * takes them; any other value as JSON, with the media type `application/json`. Bytes must not be changed before the call has ended.
 */
export type Body = Chunk | ReadableStream | AsyncIterable<Chunk> | null | undefined;

/** A body that comes in chunks. */
export interface ChunkSource {
  /** The next chunk; undefined at the end. */
  next(): Promise<Chunk | undefined>;
  /** Nobody wants the rest. */
  leave(): void;
}

/** A body as it is sent: bytes that are there, or chunks that come. */
export interface Outgoing {
  readonly bytes: Buffer | undefined;
  readonly source: ChunkSource | undefined;
  /** The media type that follows from what was given; empty for none. */
  readonly type: string;
}

const NOTHING: Outgoing = { bytes: Buffer.alloc(0), source: undefined, type: "" };
const JSON_TYPE = "application/json";

/** Makes a body of whatever was given. */
export function outgoing(body: Body): Outgoing {
  if (typeof body === "string") return { bytes: Buffer.from(body), source: undefined, type: "" };
  if (body === undefined || body === null) return NOTHING;
  if (body instanceof Uint8Array || body instanceof ArrayBuffer) return { bytes: asBuffer(body), source: undefined, type: "" };
  const source = sourceOf(body);
  if (source !== undefined) return { bytes: undefined, source, type: "" };
  return { bytes: Buffer.from(JSON.stringify(body)), source: undefined, type: JSON_TYPE };
}

/** The bytes of a chunk. */
export function chunkBytes(chunk: Chunk): Buffer {
  if (typeof chunk === "string") return Buffer.from(chunk);
  if (chunk instanceof Uint8Array || chunk instanceof ArrayBuffer) return asBuffer(chunk);
  return Buffer.from(`${JSON.stringify(chunk)}\n`);
}

/** The same bytes as a Buffer, without a copy. */
export function asBuffer(bytes: Uint8Array | ArrayBuffer): Buffer {
  if (Buffer.isBuffer(bytes)) return bytes;
  if (bytes instanceof ArrayBuffer) return Buffer.from(bytes);
  return Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength);
}

function sourceOf(body: object | number | boolean): ChunkSource | undefined {
  if (typeof body !== "object") return undefined;
  if (body instanceof ReadableStream) return streamSource(body);
  if (!(Symbol.asyncIterator in body)) return undefined;
  const iterator = (body as AsyncIterable<Chunk>)[Symbol.asyncIterator]();
  return {
    async next(): Promise<Chunk | undefined> {
      const step = await iterator.next();
      return step.done === true ? undefined : step.value;
    },
    leave(): void {
      const left = iterator.return?.();
      // Whoever makes the chunks may fail on the way out; nobody is left to be told.
      left?.then(undefined, () => undefined);
    },
  };
}

function streamSource(stream: ReadableStream): ChunkSource {
  const reader = stream.getReader() as ReadableStreamDefaultReader<Chunk>;
  return {
    async next(): Promise<Chunk | undefined> {
      const step = await reader.read();
      return step.done ? undefined : step.value;
    },
    leave(): void {
      reader.cancel().then(undefined, () => undefined);
    },
  };
}

/** A web stream of chunks, read as fast as it is. */
export function readableStream(next: () => Promise<Uint8Array | undefined>, leave: () => void): ReadableStream<Uint8Array> {
  return new ReadableStream<Uint8Array>(
    {
      async pull(controller): Promise<void> {
        const chunk = await next();
        if (chunk === undefined) controller.close();
        else controller.enqueue(chunk);
      },
      cancel(): void {
        leave();
      },
    },
    { highWaterMark: 0 },
  );
}
