/**
 * A whole answer.
 */

import type { AnswerHead, HeaderField } from "./protocol/headers.js";

/** The whole answer of a call. A handler that returns one passes it on as it is. */
export class Answer {
  /** The bytes; a `Buffer`, in fact. */
  readonly body: Uint8Array;
  readonly #head: AnswerHead;

  /** @internal */
  constructor(body: Buffer, head: AnswerHead) {
    this.body = body;
    this.#head = head;
  }

  /** Media type; empty for bytes. */
  get type(): string {
    return this.#head.type;
  }

  /** The agent's own fields, in order; names may repeat. */
  get headers(): readonly HeaderField[] {
    return this.#head.headers;
  }

  /** The first field of a name; undefined where there is none. */
  header(name: string): string | undefined {
    return this.#head.headers.find(([key]) => key === name)?.[1];
  }

  /** The bytes as text, of UTF-8. */
  text(): string {
    const { buffer, byteOffset, length } = this.body;
    return Buffer.from(buffer, byteOffset, length).toString("utf8");
  }

  /** The value of its JSON. Throws `SyntaxError` where it is none. */
  json(): unknown {
    return JSON.parse(this.text()) as unknown;
  }

  /** The same as a web stream of one chunk. */
  stream(): ReadableStream<Uint8Array> {
    const { body } = this;
    return new ReadableStream<Uint8Array>({
      start(controller): void {
        if (body.length > 0) controller.enqueue(body);
        controller.close();
      },
    });
  }
}
