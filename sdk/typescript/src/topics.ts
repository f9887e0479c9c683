/**
 * Publishing under topics and subscribing to them (`spec/topics.md`): at most once, so that what is published while a subscriber is away, or reads too
 * slowly, is lost to it; or from what nodes keep, and then nothing is lost that they still have.
 */

import { MAX_ADMIN_ANSWER, NODE_AGENT, type PublishReceipt } from "./admin.js";
import { type Body, outgoing } from "./body.js";
import type { Call } from "./call.js";
import { HailError } from "./errors.js";
import type { CallOptions } from "./options.js";
import type { HeaderField } from "./protocol/headers.js";
import { type Int, MalformedError } from "./protocol/msgpack.js";
import { decodeRecord, EMPTY_RECORD, putRecord, RecordReader, type TopicRecord, whyNotPublished } from "./protocol/topic_records.js";
import { fieldsOf } from "./request.js";

/** Calls that topics are made of. */
export interface TopicCaller {
  call(to: string, body: Body, options: CallOptions): Call;
  admin(method: string, request?: unknown): Promise<unknown>;
}

/** What may be said of a message besides its topic and body. */
export interface PublishOptions {
  /** Media type of the body. Default: empty, for bytes; `application/json` for a body that is sent as JSON. */
  readonly type?: string;
  /** Fields of the application's own. Default: none. */
  readonly headers?: Iterable<HeaderField> | Readonly<Record<string, string>>;
  /** The agent that publishes it, as it calls itself. Default: none. */
  readonly from?: string;
  /** The value under this topic is deleted: where only the last message of each topic is kept. Default: false. */
  readonly deleted?: boolean;
  /** Publish only if the value under this topic has this number (`kept`), 0 for none; else it ends with `aborted`. Default: whatever it has. */
  readonly ifKept?: Int;
}

/** Where a replay starts; one of these at most. Default: with what is published from now on. */
export interface ReplayStart {
  /** With what was published no longer ago, in milliseconds, by the clock of the node that keeps it. */
  readonly sinceMs?: number;
  /** With the last so many messages of each node, at most 100,000. */
  readonly last?: number;
  /** With the message of this number in the log of each node; 1 for all that is kept. */
  readonly from?: number;
}

/** What may be said of a subscription. */
export interface SubscribeOptions {
  /** Ends it when it is aborted. */
  readonly signal?: AbortSignal;
}

/** A message that was published. */
export interface TopicMessage {
  /** What sets it apart from other events. */
  readonly kind: "message";
  /** What it was published under. */
  readonly topic: string;
  /** The key of the node that it was published at; null for this machine. */
  readonly node: string | null;
  /** The agent that published it, as it calls itself; empty where it has no name. */
  readonly from: string;
  /** Media type of the body. */
  readonly type: string;
  /** Fields of the application's own. */
  readonly headers: readonly HeaderField[];
  /** The body; a `Buffer`, in fact. */
  readonly body: Uint8Array;
  /** Grows with each message of that node, whatever its topic, from 1 at the node's start. */
  readonly sequence: Int;
  /** When it was published, by that node's clock: milliseconds since 1970. */
  readonly atMs: Int;
  /** Its number in the log of the node that keeps it, from 1; 0 where it is not kept. */
  readonly kept: Int;
  /** It says that the value under this topic is deleted. */
  readonly deleted: boolean;
}

/** What comes of a subscription. There may be more kinds one day. */
export type TopicEvent =
  | TopicMessage
  /** So many messages were lost before what comes next: this program read too slowly; of a replay, the node that kept them has removed them. */
  | { readonly kind: "missed"; readonly count: Int }
  /** Of a replay: all has come that this node had kept when it was asked; null for this machine. */
  | { readonly kind: "reached"; readonly node: string | null }
  /** Of a replay: what this peer keeps does not come now, and why. It comes once that has changed. */
  | { readonly kind: "away"; readonly node: string; readonly why: string }
  /** Of a replay, once: every node has said what it had kept, or cannot, or has had its time. */
  | { readonly kind: "settled" };

/** Publishes one message. */
export async function publish(caller: TopicCaller, topic: string, body: Body, options: PublishOptions): Promise<PublishReceipt> {
  const record = recordOf(topic, body, options);
  const answer = await caller.call(NODE_AGENT, record, { method: "topic.publish" });
  return answer.json() as PublishReceipt;
}

/** Many messages, in their order. */
export class Publisher {
  readonly #queue: Buffer[] = [];
  readonly #call: Call;
  readonly #receipt: Promise<PublishReceipt>;
  #taken: (() => void) | undefined = undefined;
  #more: (() => void) | undefined = undefined;
  #finished = false;
  #failure: Error | undefined = undefined;

  /** @internal */
  constructor(caller: TopicCaller) {
    this.#call = caller.call(NODE_AGENT, this.#records(), { method: "topic.publish" });
    this.#receipt = this.#call.then((answer) => answer.json() as PublishReceipt);
    this.#receipt.catch((error: unknown) => {
      this.#failure = error instanceof Error ? error : new HailError("unknown", String(error));
      this.#taken?.();
    });
  }

  /**
   * Publishes one more. Resolves once it is on its way; waits while the node is behind, which subscribers do not make it. Rejects with
   * `invalid_argument` for what is no topic or too large, and others may follow; and with what the node has ended it all with.
   */
  async publish(topic: string, body: Body, options: PublishOptions = {}): Promise<void> {
    const record = recordOf(topic, body, options);
    if (this.#finished) throw new HailError("aborted", "nothing more is published here");
    while (this.#queue.length > 0 && this.#failure === undefined) {
      await new Promise<void>((resolve) => {
        const before = this.#taken;
        this.#taken = () => {
          before?.();
          resolve();
        };
      });
    }
    if (this.#failure !== undefined) throw this.#failure;
    this.#queue.push(record);
    this.#more?.();
  }

  /** Waits until all is published, and says to how many it went. */
  finish(): Promise<PublishReceipt> {
    this.#finished = true;
    this.#more?.();
    return this.#receipt;
  }

  /** Ends it; what was not handed to the node by then is lost. */
  [Symbol.asyncDispose](): Promise<void> {
    if (!this.#finished) this.#call.cancel();
    return Promise.resolve();
  }

  async *#records(): AsyncGenerator<Buffer, void, undefined> {
    for (;;) {
      const record = this.#queue.shift();
      if (record !== undefined) {
        const taken = this.#taken;
        this.#taken = undefined;
        taken?.();
        yield record;
      } else if (this.#finished) {
        return;
      } else {
        await new Promise<void>((resolve) => {
          this.#more = resolve;
        });
        this.#more = undefined;
      }
    }
  }
}

/** What a program asks of `topic.subscribe`, in the node's own words. */
export interface SubscribeRequest {
  readonly patterns: readonly string[];
  readonly since_ms?: number;
  readonly last?: number;
  readonly from?: number;
  readonly name?: string;
  readonly settle_ms?: number;
}

/** The request of a replay that starts there. */
export function replayRequest(patterns: string | readonly string[], start: ReplayStart): SubscribeRequest {
  const list = typeof patterns === "string" ? [patterns] : patterns;
  const { sinceMs, last, from } = start;
  if (sinceMs !== undefined) return { patterns: list, since_ms: Math.ceil(sinceMs) };
  if (last !== undefined) return { patterns: list, last };
  return from === undefined ? { patterns: list, since_ms: 0 } : { patterns: list, from };
}

/** Subscribes; resolves once the subscription stands. */
export async function subscribe(caller: TopicCaller, request: SubscribeRequest, options: SubscribeOptions): Promise<Subscription> {
  const { signal } = options;
  const given = signal === undefined ? {} : { signal };
  const call = caller.call(NODE_AGENT, JSON.stringify(request), { method: "topic.subscribe", maxBytes: MAX_ADMIN_ANSWER, ...given });
  await call.head();
  return new Subscription(caller, call, request.name ?? "");
}

/** Messages of the topics that a program is subscribed to, until it is left. */
export class Subscription implements AsyncIterable<TopicEvent> {
  readonly #caller: TopicCaller;
  readonly #call: Call;
  readonly #chunks: AsyncIterator<Uint8Array>;
  readonly #name: string;
  readonly #reader = new RecordReader(decodeRecord);
  /** The log of each node, by which its numbers count. */
  readonly #logs = new Map<string | null, Int>();

  /** @internal */
  constructor(caller: TopicCaller, call: Call, name: string) {
    this.#caller = caller;
    this.#call = call;
    this.#name = name;
    this.#chunks = call[Symbol.asyncIterator]();
  }

  /**
   * What comes next; undefined never comes while the node runs. Of what is published from now on, 4 MiB wait at the node at most; what more is
   * published takes the place of the oldest. Rejects with `unavailable` when the node ends.
   */
  async next(): Promise<TopicEvent | undefined> {
    for (;;) {
      const record = this.#record();
      if (record === undefined) {
        const step = await this.#chunks.next();
        if (step.done === true) return undefined;
        this.#reader.push(Buffer.from(step.value.buffer, step.value.byteOffset, step.value.length));
        continue;
      }
      if (record.topic === "" && record.log !== 0) this.#logs.set(record.node, record.log);
      const event = eventOf(record);
      if (event !== undefined) return event;
    }
  }

  /** Ends the subscription. */
  close(): void {
    this.#call.cancel();
  }

  /** Ends the subscription. */
  [Symbol.asyncDispose](): Promise<void> {
    this.close();
    return Promise.resolve();
  }

  /**
   * Says that this message and all before it of the same node are done, so that they come no more under this subscriber's name; on the disk when it
   * resolves. Rejects with `failed_precondition` for a subscription without a name or a message that is not kept, with `invalid_argument` for one
   * that did not come.
   */
  async confirm(message: TopicMessage): Promise<void> {
    const log = this.#logs.get(message.node);
    if (this.#name === "" || log === undefined || message.kept === 0) {
      throw new HailError("failed_precondition", "only what a named subscriber reads of what is kept is confirmed");
    }
    await this.#caller.admin("topic.confirm", { name: this.#name, node: message.node, log, kept: message.kept });
  }

  /** Each event; leaving ends the subscription. */
  async *[Symbol.asyncIterator](): AsyncGenerator<TopicEvent, void, undefined> {
    try {
      for (;;) {
        const event = await this.next();
        if (event === undefined) return;
        yield event;
      }
    } finally {
      this.close();
    }
  }

  #record(): TopicRecord | undefined {
    try {
      return this.#reader.next();
    } catch (error) {
      if (!(error instanceof MalformedError)) throw error;
      this.close();
      throw new HailError("internal", `a message cannot be read: ${error.message}`);
    }
  }
}

function eventOf(record: TopicRecord): TopicEvent | undefined {
  if (record.topic !== "") {
    const { topic, node, from, contentType, headers, body, sequence, atMs, kept, deleted } = record;
    return { kind: "message", topic, node, from, type: contentType, headers, body, sequence, atMs, kept, deleted };
  }
  if (record.missed !== 0) return { kind: "missed", count: record.missed };
  if (record.reached) return { kind: "reached", node: record.node };
  if (record.settled) return { kind: "settled" };
  if (record.node !== null && record.away !== "") return { kind: "away", node: record.node, why: record.away };
  return undefined;
}

/** Checked here already, so that one mistake does not end what others are published with. */
function recordOf(topic: string, body: Body, options: PublishOptions): Buffer {
  const { bytes, source, type } = outgoing(body);
  if (bytes === undefined) {
    source?.leave();
    throw new HailError("invalid_argument", "a message under a topic is no stream", { hint: "give its body as bytes" });
  }
  const record: TopicRecord = {
    ...EMPTY_RECORD,
    topic,
    body: bytes,
    from: options.from ?? "",
    contentType: options.type ?? type,
    headers: fieldsOf(options.headers),
    deleted: options.deleted ?? false,
    ifKept: options.ifKept,
  };
  const why = whyNotPublished(record);
  if (why !== undefined) throw new HailError("invalid_argument", why);
  return putRecord(record);
}
