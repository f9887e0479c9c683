/**
 * A call under way: awaited, it gives the whole answer; iterated, the chunks as they come.
 */

import { Answer } from "./answer.js";
import { readableStream } from "./body.js";
import type { CallerStream } from "./caller.js";
import { HailError } from "./errors.js";
import { DEFAULT_MAX_BYTES } from "./exchange.js";
import type { AnswerHead } from "./protocol/headers.js";

/**
 * A call that was made. What is asked of it first decides how the answer is read: with `await`, or `then`, whole and up to `maxBytes`; with `for await`
 * or {@link Call.stream}, chunk by chunk and as fast as it is read. An answer that nobody reads holds the agent back after 16 KiB.
 *
 * ```ts
 * const answer = await hail.call("word-count@laptop", "one two three", { timeout: 2000 });
 * for await (const chunk of hail.call("llm", "tell me a story")) process.stdout.write(chunk);
 * ```
 *
 * It rejects with {@link HailError}: the status of the agent, or `invalid_argument` (address, header), `not_found` (agent, node), `permission_denied`,
 * `resource_exhausted` (every member is busy, or the answer is too long), `unavailable` (the agent or its node cannot be reached, or died),
 * `deadline_exceeded`, and `cancelled`.
 */
export class Call implements PromiseLike<Answer>, AsyncIterable<Uint8Array> {
  #stream: CallerStream | undefined;
  readonly #winner: Promise<CallerStream> | undefined;
  readonly #giveUp: (() => void) | undefined;
  readonly #most: number;
  #whole: Promise<Answer> | undefined = undefined;

  /** @internal `winner` is of a call that may be made several times. */
  constructor(stream: CallerStream | undefined, most: number | undefined, winner?: Promise<CallerStream>, giveUp?: () => void) {
    this.#stream = stream;
    this.#most = most ?? DEFAULT_MAX_BYTES;
    this.#winner = winner;
    this.#giveUp = giveUp;
    // Whoever never looks at the call is told nothing.
    winner?.then(undefined, () => undefined);
  }

  /** As of a promise of the whole answer. */
  then<T = Answer, E = never>(
    onAnswer?: ((answer: Answer) => T | PromiseLike<T>) | null,
    onError?: ((error: unknown) => E | PromiseLike<E>) | null,
  ): Promise<T | E> {
    return this.answer().then(onAnswer, onError);
  }

  /** As of a promise of the whole answer. */
  catch<E = never>(onError?: ((error: unknown) => E | PromiseLike<E>) | null): Promise<Answer | E> {
    return this.answer().catch(onError);
  }

  /** As of a promise of the whole answer. */
  finally(onEnd?: (() => void) | null): Promise<Answer> {
    return this.answer().finally(onEnd);
  }

  /** The whole answer, as a promise; the same each time. */
  answer(): Promise<Answer> {
    this.#whole ??= this.#stream === undefined ? this.#winning().then((stream) => whole(stream, this.#most)) : whole(this.#stream, this.#most);
    return this.#whole;
  }

  /** Resolves once the answer has begun, with the media type and the fields that the agent put ahead of it; both empty where it put none. */
  async head(): Promise<AnswerHead> {
    const stream = await this.#winning();
    await stream.whenBegun();
    return stream.head;
  }

  /** The answer as a web stream. Cancelling that gives the call up. */
  stream(): ReadableStream<Uint8Array> {
    return readableStream(
      () => this.#next(),
      () => {
        this.cancel();
      },
    );
  }

  /** Gives the call up: the handler's signal is aborted on the far side. Whoever waits for the answer is told `cancelled`. Does nothing once it has ended. */
  cancel(): void {
    this.#giveUp?.();
    this.#stream?.leave();
  }

  /** Chunk by chunk, never empty; leaving early gives the call up. */
  async *[Symbol.asyncIterator](): AsyncGenerator<Uint8Array, void, undefined> {
    let ended = false;
    try {
      for (;;) {
        const chunk = await this.#next();
        if (chunk === undefined) {
          ended = true;
          return;
        }
        yield chunk;
      }
    } catch (error) {
      ended = error instanceof HailError;
      throw error;
    } finally {
      if (!ended) this.cancel();
    }
  }

  async #next(): Promise<Buffer | undefined> {
    const stream = this.#stream ?? (await this.#winning());
    return stream.nextChunk();
  }

  async #winning(): Promise<CallerStream> {
    if (this.#stream === undefined && this.#winner !== undefined) this.#stream = await this.#winner;
    if (this.#stream === undefined) throw new HailError("internal", "a call without a stream");
    return this.#stream;
  }
}

function whole(stream: CallerStream, most: number): Promise<Answer> {
  return new Promise((resolve, reject) => {
    stream.answerTo(most, (body) => resolve(new Answer(body, stream.head)), reject);
  });
}

/**
 * A raw stream: bytes both ways at once. Each side ends its own direction.
 *
 * ```ts
 * const stream = await hail.stream("echo@laptop");
 * await stream.write("one");
 * stream.finish();
 * for await (const chunk of stream) console.log(chunk);
 * ```
 */
export class RawStream implements AsyncIterable<Uint8Array> {
  readonly #stream: CallerStream;
  readonly #bytes: (chunk: string | Uint8Array) => Buffer;

  /** @internal */
  constructor(stream: CallerStream, bytes: (chunk: string | Uint8Array) => Buffer) {
    this.#stream = stream;
    this.#bytes = bytes;
  }

  /** What the agent said when it accepted. */
  get head(): AnswerHead {
    return this.#stream.head;
  }

  /**
   * Sends a chunk, whose bytes must not be changed any more; resolves once there is room for another. Rejects with `cancelled` where nobody reads any
   * more, and with what the stream has ended with.
   */
  async write(chunk: string | Uint8Array): Promise<void> {
    const stream = this.#stream;
    if (!stream.isSending) throw stream.failure ?? new HailError("cancelled", "nobody reads this direction any more");
    if (!stream.writeBody(this.#bytes(chunk))) await stream.writable();
  }

  /** Says that this direction is done. The other one goes on. */
  finish(): void {
    this.#stream.finish();
  }

  /** The next chunk; undefined once the agent has ended its direction well. */
  read(): Promise<Uint8Array | undefined> {
    return this.#stream.nextChunk();
  }

  /** Gives the stream up. Does nothing once it has ended. */
  cancel(): void {
    this.#stream.leave();
  }

  /** What comes, as a web stream; cancelling it gives the stream up. */
  get readable(): ReadableStream<Uint8Array> {
    return readableStream(
      () => this.read(),
      () => {
        this.cancel();
      },
    );
  }

  /** What is sent, as a web stream; aborting it gives the stream up. */
  get writable(): WritableStream<Uint8Array | string> {
    return new WritableStream<Uint8Array | string>({
      write: (chunk) => this.write(chunk),
      close: () => {
        this.finish();
      },
      abort: () => {
        this.cancel();
      },
    });
  }

  /** Chunk by chunk; leaving early gives the stream up. */
  async *[Symbol.asyncIterator](): AsyncGenerator<Uint8Array, void, undefined> {
    let ended = false;
    try {
      for (;;) {
        const chunk = await this.read();
        if (chunk === undefined) {
          ended = true;
          return;
        }
        yield chunk;
      }
    } catch (error) {
      ended = error instanceof HailError;
      throw error;
    } finally {
      if (!ended) this.cancel();
    }
  }

  /** Gives the stream up. */
  [Symbol.asyncDispose](): Promise<void> {
    this.cancel();
    return Promise.resolve();
  }
}
