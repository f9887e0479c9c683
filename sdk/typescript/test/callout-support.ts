/** What tests of agents share: a host that says byte for byte what it is told to, and a pair of streams in memory. */
import assert from "node:assert/strict";
import { existsSync, readFileSync } from "node:fs";
import { dirname, join } from "node:path";

import type { Agent, ByteStream } from "../src/callout/index.js";

/** A golden vector: what was written, and what it means, which is another thing for each message. */
export interface Vector<Means = unknown> {
  readonly name: string;
  readonly code: number;
  readonly json: string;
  readonly msgpack?: string;
  readonly msgpack_positional?: string;
  readonly means: Means;
}

/** The golden vectors of a message. */
export function vectors<Means>(message: string): readonly Vector<Means>[] {
  let folder = process.cwd();
  while (!existsSync(join(folder, "spec/vectors/callout"))) {
    assert.notEqual(dirname(folder), folder, "the tests run within the repository");
    folder = dirname(folder);
  }
  const text = readFileSync(join(folder, "spec/vectors/callout", `${message}.json`), "utf8");
  return (JSON.parse(text) as { vectors: Vector<Means>[] }).vectors;
}

/** One end of a stream in memory. */
export class Pipe implements ByteStream {
  #held: Uint8Array[] = [];
  #ended = false;
  #wake: (() => void) | undefined;
  far!: Pipe;

  static pair(): [Pipe, Pipe] {
    const [one, other] = [new Pipe(), new Pipe()];
    [one.far, other.far] = [other, one];
    return [one, other];
  }

  async read(): Promise<Uint8Array | null> {
    for (;;) {
      const next = this.#held.shift();
      if (next !== undefined) return next;
      if (this.#ended) return null;
      await new Promise<void>((resolve) => (this.#wake = resolve));
    }
  }

  write(data: Uint8Array): Promise<void> {
    if (this.#ended || this.far.#ended) return Promise.reject(new Error("the stream has ended"));
    this.far.#held.push(data);
    this.far.#wake?.();
    return Promise.resolve();
  }

  close(): void {
    for (const end of [this, this.far]) {
      end.#ended = true;
      end.#wake?.();
    }
  }

  /** What has not been read yet, in bytes. */
  get unread(): number {
    return this.#held.reduce((sum, part) => sum + part.byteLength, 0);
  }
}

/** A frame as bytes. */
export function framed(code: number, payload: Uint8Array | string | object): Buffer {
  const bytes =
    typeof payload === "string"
      ? Buffer.from(payload)
      : payload instanceof Uint8Array
        ? Buffer.from(payload)
        : Buffer.from(JSON.stringify(payload));
  const head = Buffer.alloc(5);
  head.writeUInt32BE(1 + bytes.length);
  head.writeUInt8(code, 4);
  return Buffer.concat([head, bytes]);
}

/** What an answer in JSON says. */
export interface Answer {
  readonly decision: "allow" | { readonly block: { readonly status: number } };
  readonly needs_more?: boolean;
  readonly audit: { readonly custom: Readonly<Record<string, unknown>> };
}

/** A host at the other end of an agent's stream, which writes frames and reads them. */
export class RawHost {
  readonly stream: Pipe;
  readonly served: Promise<unknown>;
  #held = Buffer.alloc(0);

  constructor(agent: Agent, { registers = false, signal }: { registers?: boolean; signal?: AbortSignal } = {}) {
    const [near, far] = Pipe.pair();
    this.stream = near;
    const options = signal === undefined ? {} : { signal };
    const served = registers
      ? agent.registerStream(far, { token: "secret", ...options })
      : agent.serveStream(far, options);
    this.served = served.then(
      () => undefined,
      (error: unknown) => error,
    );
  }

  send(code: number, payload: Uint8Array | string | object): Promise<void> {
    return this.stream.write(framed(code, payload));
  }

  /** The next frame; `null` at the end. */
  async receive(): Promise<[number, Buffer] | null> {
    while (this.#held.length < 4 || this.#held.length < 4 + this.#held.readUInt32BE(0)) {
      const data = await this.stream.read();
      if (data === null) return null;
      this.#held = Buffer.concat([this.#held, data]);
    }
    const end = 4 + this.#held.readUInt32BE(0);
    const found: [number, Buffer] = [this.#held.readUInt8(4), this.#held.subarray(5, end)];
    this.#held = this.#held.subarray(end);
    return found;
  }

  /** The next frame, which has this type. */
  async payload(code: number): Promise<Buffer> {
    const found = await this.receive();
    assert.equal(found?.[0], code);
    return found[1];
  }

  /** The next frame, which is an answer in JSON. */
  async answer(): Promise<Answer> {
    return JSON.parse((await this.payload(0x20)).toString()) as Answer;
  }

  /** Shakes hands, and returns the agent's answer. */
  async greet(more: object = {}): Promise<Record<string, unknown>> {
    await this.send(0x01, { supported_versions: [2], proxy_id: "h", proxy_version: "1", config: null, ...more });
    return JSON.parse((await this.payload(0x02)).toString()) as Record<string, unknown>;
  }

  /** Leaves, and waits until the agent has noticed. */
  async close(): Promise<void> {
    this.stream.close();
    assert.equal(await this.served, undefined);
  }
}

/** A request's head. */
export function head(correlationId: string, uri = "/"): object {
  const metadata = {
    correlation_id: correlationId,
    request_id: "r",
    client_ip: "192.0.2.1",
    client_port: 1,
    protocol: "HTTP/1.1",
    timestamp: "2026-01-02T03:04:05Z",
  };
  return { metadata, method: "GET", uri, headers: { host: ["example.com"] } };
}

/** A chunk of a body, whose data is base64. */
export function chunk(correlationId: string, data = "", { isLast = true, index = 0 } = {}): object {
  return { correlation_id: correlationId, data, is_last: isLast, chunk_index: index };
}

/** Lets everything run that can. */
export async function settle(): Promise<void> {
  for (let turn = 0; turn < 50; turn += 1) await new Promise((resolve) => setImmediate(resolve));
}
