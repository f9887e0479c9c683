/**
 * The program that `hail-conformance` finds out about: the agent `peer`, with the behaviour that `spec/conformance/README.md` fixes.
 */

import { createHash } from "node:crypto";

import { CODE_NAMES, type CallOptions, type Client, connect, HailError, type HeaderField, Reply, type Request, type Serving, type TopicEvent } from "../src/index.js";

interface Wanted {
  readonly kind?: "call" | "send" | "stream";
  readonly to: string;
  readonly method?: string;
  readonly type?: string;
  readonly idempotency_key?: string;
  readonly affinity?: string;
  readonly traceparent?: string;
  readonly tracestate?: string;
  readonly carrier?: string;
  readonly from?: string;
  readonly priority?: number;
  readonly member?: number;
  readonly durable?: number;
  readonly headers?: HeaderField[];
  readonly body?: string;
  readonly body_bytes?: number;
  readonly body_chunk?: number;
  readonly timeout_ms?: number;
  readonly read?: "whole" | "chunks" | "first" | "cancel";
  readonly pause_us?: number;
  readonly cancel_after_ms?: number;
  readonly times?: number;
  readonly detached?: boolean;
}

interface Outcome {
  code: number;
  message: string;
  hint: string;
  details: string;
  retry_after_ms: number;
  retryable: boolean;
  type: string;
  headers: readonly HeaderField[];
  bytes: number;
  sha256: string;
  text: string | null;
  elapsed_ms: number;
}

const PRIORITIES = ["low", "medium", "high", "critical"] as const;

let waiting = 0;
let cancelled = 0;
let second: Serving | undefined;
let detached: Promise<object> | undefined;

/** Bytes of the pattern, from byte `from` on. */
function pattern(from: number, length: number): Buffer {
  const bytes = Buffer.allocUnsafe(length);
  for (let at = 0; at < length; at += 1) {
    const i = from + at;
    bytes[at] = (i * 31 + (Math.floor(i / 256) % 0x1_0000_0000)) % 251;
  }
  return bytes;
}

function* patternChunks(length: number, chunk: number): Generator<Buffer> {
  for (let at = 0; at < length; at += chunk) yield pattern(at, Math.min(chunk, length - at));
}

function sha256(bytes: Uint8Array): string {
  return createHash("sha256").update(bytes).digest("hex");
}

async function pause(microseconds: number): Promise<void> {
  if (microseconds > 0) await new Promise((resolve) => setTimeout(resolve, microseconds / 1000));
}

async function inspect(request: Request): Promise<object> {
  const left = request.timeLeft;
  const body = await request.bytes();
  return {
    kind: request.kind,
    method: request.method,
    agent: request.agent,
    from: request.from,
    type: request.type,
    deadline_ms: left === undefined ? null : Math.round(left),
    priority: PRIORITIES.indexOf(request.priority),
    idempotency_key: request.idempotencyKey,
    traceparent: request.traceparent,
    tracestate: request.tracestate,
    affinity: request.affinity,
    headers: request.headers,
    bytes: body.length,
    sha256: sha256(body),
  };
}

interface Produced {
  readonly bytes: number;
  readonly chunk?: number;
  readonly type?: string;
  readonly headers?: HeaderField[];
  readonly status?: { code: number; message?: string; hint?: string; details?: string; retry_after_ms?: number };
}

async function produce(request: Request): Promise<Reply> {
  const wanted = (await request.json()) as Produced;
  async function* chunks(): AsyncGenerator<Buffer> {
    for (const chunk of patternChunks(wanted.bytes, wanted.chunk ?? 65_536)) {
      yield chunk;
      await Promise.resolve();
    }
    const status = wanted.status;
    if (status !== undefined && status.code !== 0) {
      throw new HailError(CODE_NAMES[status.code] ?? "unknown", status.message ?? "", {
        hint: status.hint ?? "",
        details: status.details ?? "",
        retryAfterMs: status.retry_after_ms ?? 0,
      });
    }
  }
  return new Reply(chunks(), { type: wanted.type ?? "", headers: wanted.headers ?? [] });
}

async function consume(request: Request): Promise<object> {
  const pauseUs = Number(request.header("pause-us") ?? "0");
  const hash = createHash("sha256");
  let bytes = 0;
  for await (const chunk of request.body) {
    bytes += chunk.length;
    hash.update(chunk);
    await pause(pauseUs);
  }
  return { bytes, sha256: hash.digest("hex") };
}

function wait(request: Request): Promise<never> {
  waiting += 1;
  const { signal } = request;
  return new Promise((_resolve, reject) => {
    const stop = (): void => {
      waiting -= 1;
      cancelled += 1;
      reject(signal.reason as Error);
    };
    if (signal.aborted) stop();
    else signal.addEventListener("abort", stop, { once: true });
  });
}

function bodyOf(wanted: Wanted): string | AsyncIterable<Buffer> {
  const { body_bytes: bytes, body_chunk: chunk = 65_536 } = wanted;
  if (bytes === undefined) return wanted.body ?? "";
  return (async function* () {
    for (const part of patternChunks(bytes, chunk)) {
      yield part;
      await Promise.resolve();
    }
  })();
}

function optionsOf(wanted: Wanted, signal: AbortSignal | undefined): CallOptions {
  return {
    method: wanted.method ?? "",
    type: wanted.type ?? "",
    headers: wanted.headers ?? [],
    idempotencyKey: wanted.idempotency_key ?? "",
    affinity: wanted.affinity ?? "",
    traceparent: wanted.traceparent ?? "",
    tracestate: wanted.tracestate ?? "",
    member: wanted.member ?? 0,
    priority: PRIORITIES[wanted.priority ?? 1] ?? "medium",
    ...(wanted.carrier === undefined || wanted.carrier === "" ? {} : { carrier: wanted.carrier as "quic" }),
    ...(wanted.from === undefined || wanted.from === "" ? {} : { from: wanted.from }),
    ...(wanted.timeout_ms === undefined ? {} : { timeout: wanted.timeout_ms }),
    ...(signal === undefined ? {} : { signal }),
  };
}

/** Gathers what came of a call. */
class Gathered {
  readonly #hash = createHash("sha256");
  #first = Buffer.alloc(0);
  bytes = 0;
  type = "";
  headers: readonly HeaderField[] = [];

  add(chunk: Uint8Array): void {
    this.bytes += chunk.length;
    this.#hash.update(chunk);
    if (this.bytes <= 1024) this.#first = Buffer.concat([this.#first, chunk]);
  }

  outcome(error: unknown, began: number): Outcome {
    const failed = error === undefined || error instanceof HailError ? error : new HailError("unknown", "an error that is no status", { cause: error });
    let text: string | null = null;
    if (this.bytes <= 1024) {
      try {
        text = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(this.#first);
      } catch {
        text = null;
      }
    }
    return {
      code: failed?.number ?? 0,
      message: failed?.message ?? "",
      hint: failed?.hint ?? "",
      details: failed?.details ?? "",
      retry_after_ms: failed?.retryAfterMs ?? 0,
      retryable: failed?.retryable ?? false,
      type: this.type,
      headers: this.headers,
      bytes: this.bytes,
      sha256: this.#hash.digest("hex"),
      text,
      elapsed_ms: Math.round(performance.now() - began),
    };
  }
}

async function gather(hail: Client, wanted: Wanted, into: Gathered): Promise<void> {
  const { kind = "call", read = "whole", durable = 0 } = wanted;
  const abort = read === "cancel" ? new AbortController() : undefined;
  const options = optionsOf(wanted, abort?.signal);
  const timer =
    abort === undefined
      ? undefined
      : setTimeout(() => {
          abort.abort();
        }, wanted.cancel_after_ms ?? 50);
  try {
    if (durable !== 0) {
      const { timeout, ...rest } = options;
      const kept = { ...rest, inOrder: durable === 1, ...(timeout === undefined ? {} : { timeout }) };
      const receipt = kind === "send" ? await hail.sendDurable(wanted.to, bodyOf(wanted), kept) : await hail.submit(wanted.to, bodyOf(wanted), kept);
      into.add(Buffer.from(JSON.stringify(receipt)));
    } else if (kind === "send") {
      await hail.send(wanted.to, bodyOf(wanted), options);
    } else if (kind === "stream") {
      const stream = await hail.stream(wanted.to, options);
      into.type = stream.head.type;
      into.headers = stream.head.headers;
      const body = bodyOf(wanted);
      const writing = (async () => {
        if (typeof body === "string") await stream.write(body);
        else for await (const chunk of body) await stream.write(chunk);
        stream.finish();
      })();
      writing.catch(() => undefined);
      for await (const chunk of stream) {
        into.add(chunk);
        await pause(wanted.pause_us ?? 0);
      }
    } else {
      await gatherCall(hail, wanted, options, into, abort);
    }
  } finally {
    clearTimeout(timer);
  }
}

async function gatherCall(hail: Client, wanted: Wanted, options: CallOptions, into: Gathered, abort: AbortController | undefined): Promise<void> {
  const call = hail.call(wanted.to, bodyOf(wanted), options);
  if (wanted.read === undefined || wanted.read === "whole") {
    try {
      const answer = await call;
      into.type = answer.type;
      into.headers = answer.headers;
      into.add(answer.body);
    } catch (error) {
      if (error instanceof HailError) into.add(error.partial);
      throw error;
    }
    return;
  }
  const head = await call.head();
  into.type = head.type;
  into.headers = head.headers;
  abort?.abort();
  for await (const chunk of call) {
    into.add(chunk);
    if (wanted.read === "first") return;
    await pause(wanted.pause_us ?? 0);
  }
}

async function oneCall(hail: Client, wanted: Wanted): Promise<Outcome> {
  const began = performance.now();
  const into = new Gathered();
  try {
    await gather(hail, wanted, into);
    return into.outcome(undefined, began);
  } catch (error) {
    return into.outcome(error, began);
  }
}

async function makeCalls(hail: Client, request: Request): Promise<unknown> {
  const wanted = (await request.json()) as Wanted;
  if (wanted.detached !== true) return outcomeOf(hail, wanted);
  // Calls that are made once the handler has returned are none of its.
  detached = new Promise((resolve) => {
    setImmediate(() => {
      resolve(outcomeOf(hail, wanted));
    });
  });
  return "started";
}

async function outcomeOf(hail: Client, wanted: Wanted): Promise<object> {
  const { times = 1 } = wanted;
  if (times === 1) return oneCall(hail, wanted);
  const all = await Promise.all(Array.from({ length: times }, () => oneCall(hail, wanted)));
  const outcomes: Record<string, number> = {};
  let bytes = 0;
  for (const outcome of all) {
    outcomes[outcome.code] = (outcomes[outcome.code] ?? 0) + 1;
    bytes += outcome.bytes;
  }
  return { outcomes, bytes };
}

function told(event: TopicEvent): object {
  if (event.kind === "missed") return { missed: event.count };
  if (event.kind !== "message") return { news: event.kind };
  const { topic, from, type, headers, body, sequence, atMs, kept, deleted, node } = event;
  const hex = Buffer.from(body).toString("hex");
  return { topic, from, type, headers, body: hex, sequence, at_ms: atMs, kept, deleted, node: node === null ? null : keyHex(node) };
}

/** The hex of a key in z-base-32. */
function keyHex(text: string): string {
  let value = 0n;
  for (const letter of text) value = (value << 5n) | BigInt("ybndrfg8ejkmcpqxot1uwisza345h769".indexOf(letter));
  return (value >> 4n).toString(16).padStart(64, "0");
}

async function subscribe(hail: Client, request: Request): Promise<object> {
  const { patterns, most } = (await request.json()) as { patterns: string[]; most: number };
  const events: object[] = [];
  for await (const event of await hail.subscribe(patterns)) {
    events.push(told(event));
    if (events.length >= most) break;
  }
  return events;
}

async function publish(hail: Client, request: Request): Promise<object> {
  const wanted = (await request.json()) as { topic: string; body?: string; type?: string; headers?: HeaderField[]; from?: string };
  const { topic, body = "", type = "", headers = [], from = "" } = wanted;
  return hail.publish(topic, body, { type, headers, from });
}

async function answer(hail: Client, request: Request): Promise<unknown> {
  switch (request.method) {
    case "echo":
      return new Reply(await request.bytes(), { type: request.type, headers: request.headers });
    case "chunks":
      return request.body.stream();
    case "inspect":
      return inspect(request);
    case "produce":
      return produce(request);
    case "consume":
      return consume(request);
    case "ignore":
      return "ignored";
    case "wait":
      return wait(request);
    case "crash":
      throw new Error("this handler fails");
    case "counts":
      return { waiting, cancelled };
    case "call":
      return makeCalls(hail, request);
    case "outcome":
      if (detached === undefined) throw new HailError("failed_precondition", "no calls were made with `detached`");
      return detached;
    case "subscribe":
      return subscribe(hail, request);
    case "publish":
      return publish(hail, request);
    case "admin": {
      const { method, request: asked } = (await request.json()) as { method: string; request?: unknown };
      return JSON.stringify(await hail.admin(method, asked ?? null));
    }
    case "second":
      second = await hail.agent("second", async (echoed) => new Reply(await echoed.bytes(), { type: echoed.type, headers: echoed.headers }));
      return "";
    case "drain":
      await second?.drain();
      second = undefined;
      return "";
    default:
      throw new HailError("unimplemented", `the agent \`peer\` has no method \`${request.method}\``);
  }
}

// From before it attaches.
const stop = new AbortController();
process.on("SIGTERM", () => {
  stop.abort();
});

try {
  const hail = await connect({ onHandlerError: () => undefined });
  const peer = await hail.agent("peer", (request) => answer(hail, request));
  void peer.closed.then((why) => {
    if (why !== undefined) throw why;
  });
  await hail.run({ signal: stop.signal, quiet: true });
} catch (error) {
  const failed = error instanceof HailError ? error : new HailError("unknown", String(error));
  console.error(`error: ${failed.code}: ${failed.message.replaceAll("\n", " ")}`);
  process.exit(1);
}
