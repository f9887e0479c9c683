/**
 * State that many share: a value for each key, which is the last message that is kept under the topic `state.KEY`. Each node keeps what its own programs
 * put; whoever reads merges what its node and the trusted peers keep. Of two values of a key the one that was put later counts, of two of the same
 * time that of the node with the larger key.
 */

import type { NodeStatus, PublishReceipt } from "./admin.js";
import type { Body } from "./body.js";
import { HailError } from "./errors.js";
import { parseNodeId } from "./protocol/address.js";
import type { HeaderField } from "./protocol/headers.js";
import type { Int } from "./protocol/msgpack.js";
import { publish, type SubscribeOptions, subscribe, type Subscription, type TopicCaller, type TopicMessage } from "./topics.js";

const PREFIX = "state.";

/** Most keys that are merged. */
const MAX_KEYS = 262_144;

/** How long peers have to say what they keep, in milliseconds, where nothing else is said. */
const PATIENCE_MS = 3000;

/** A value of a key. */
export interface StateValue {
  /** The key: tokens with dots between, as of a topic, at most 15. */
  readonly key: string;
  /** The key of the node that it was put at; null for this machine. */
  readonly node: string | null;
  /** The agent that put it, as it calls itself; empty where it has no name. */
  readonly from: string;
  /** Media type of the value. */
  readonly type: string;
  /** Fields of the application's own. */
  readonly headers: readonly HeaderField[];
  /** The value; empty where it is deleted. A `Buffer`, in fact. */
  readonly value: Uint8Array;
  /** Grows with each change at its node; what `ifRevision` compares with, at that node. */
  readonly revision: Int;
  /** When it was put, by that node's clock: milliseconds since 1970. */
  readonly atMs: Int;
  /** Whether it was deleted. */
  readonly deleted: boolean;
}

/** What comes of watching state. */
export type StateEvent =
  /** A value that counts from now on, or a deletion. */
  | { readonly kind: "value"; readonly value: StateValue }
  /** What this peer keeps is not known now, and why. */
  | { readonly kind: "away"; readonly node: string; readonly why: string }
  /** Once: every node has said which values stand, or cannot, or has had its time. */
  | { readonly kind: "settled" };

/** What may be said of a value that is put. */
export interface StatePutOptions {
  /** Media type. Default: empty; `application/json` for a value that is sent as JSON. */
  readonly type?: string;
  /** Fields of the application's own. Default: none. */
  readonly headers?: Iterable<HeaderField> | Readonly<Record<string, string>>;
  /** The agent that puts it, as it calls itself. Default: none. */
  readonly from?: string;
  /** Put it only if the revision at this node is still this one, 0 for no value; else it ends with `aborted`. Default: whatever it is. */
  readonly ifRevision?: Int;
}

/** What may be said of reading state. */
export interface StateReadOptions extends SubscribeOptions {
  /** How long peers have to answer, in milliseconds, at most 60,000. Default: 3,000. */
  readonly patience?: number;
}

/** Values that count, and the peers whose values are not known. */
export interface StateValues {
  /** The values, by key. */
  readonly values: readonly StateValue[];
  /** Peers whose values are not known, and why. */
  readonly away: readonly { readonly node: string; readonly why: string }[];
}

/** Puts a value; its revision is `last` of what this gives. */
export function statePut(caller: TopicCaller, key: string, value: Body, options: StatePutOptions, deleted: boolean): Promise<PublishReceipt> {
  const { ifRevision, ...rest } = options;
  const condition = ifRevision === undefined ? {} : { ifKept: ifRevision };
  return publish(caller, PREFIX + key, value, { ...rest, ...condition, deleted });
}

/** All values that count of keys that match a pattern, by key. */
export async function stateValues(caller: TopicCaller, pattern: string, options: StateReadOptions): Promise<StateValues> {
  const watch = await watchState(caller, pattern, options);
  const away: { node: string; why: string }[] = [];
  try {
    for (;;) {
      const event = await watch.next();
      if (event === undefined || event.kind === "settled") break;
      if (event.kind === "away") away.push({ node: event.node, why: event.why });
    }
    return { values: watch.values().filter((value) => !value.deleted), away };
  } finally {
    watch.close();
  }
}

/** Watches values. */
export async function watchState(caller: TopicCaller, pattern: string, options: StateReadOptions): Promise<StateWatch> {
  const settle = Math.ceil(options.patience ?? PATIENCE_MS);
  const own = ((await caller.admin("status")) as NodeStatus).id;
  const request = { patterns: [PREFIX + pattern], from: 1, settle_ms: settle };
  return new StateWatch(await subscribe(caller, request, options), own);
}

/** The values of some keys, as they change. Remembers the value of each key, of at most 262,144 keys. */
export class StateWatch implements AsyncIterable<StateEvent> {
  readonly #subscription: Subscription;
  readonly #own: string;
  readonly #values = new Map<string, StateValue>();

  /** @internal */
  constructor(subscription: Subscription, own: string) {
    this.#subscription = subscription;
    this.#own = own;
  }

  /** The values that count of what has come, by key in order, with those that were deleted. */
  values(): StateValue[] {
    return [...this.#values.values()].sort((a, b) => (a.key < b.key ? -1 : 1));
  }

  /** What comes next; undefined never comes while the node runs. Rejects with `unavailable` when it ends, `resource_exhausted` with too many keys. */
  async next(): Promise<StateEvent | undefined> {
    for (;;) {
      const event = await this.#subscription.next();
      if (event === undefined) return undefined;
      if (event.kind === "message") {
        const value = this.#merged(event);
        if (value !== undefined) return { kind: "value", value };
      } else if (event.kind === "away" || event.kind === "settled") {
        return event;
      }
    }
  }

  /** Ends it. */
  close(): void {
    this.#subscription.close();
  }

  /** Ends it. */
  [Symbol.asyncDispose](): Promise<void> {
    this.close();
    return Promise.resolve();
  }

  /** Each event; leaving ends it. */
  async *[Symbol.asyncIterator](): AsyncGenerator<StateEvent, void, undefined> {
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

  #merged(message: TopicMessage): StateValue | undefined {
    if (!message.topic.startsWith(PREFIX)) return undefined;
    const { node, from, type, headers, body, kept, atMs, deleted } = message;
    const key = message.topic.slice(PREFIX.length);
    const value: StateValue = { key, node, from, type, headers, value: body, revision: kept, atMs, deleted };
    const counts = this.#values.get(key);
    if (counts !== undefined && !this.#isLater(value, counts)) return undefined;
    if (counts === undefined && this.#values.size >= MAX_KEYS) {
      throw new HailError("resource_exhausted", `more than ${MAX_KEYS} keys of state`);
    }
    this.#values.set(key, value);
    return value;
  }

  #isLater(value: StateValue, than: StateValue): boolean {
    if (value.atMs !== than.atMs) return value.atMs > than.atMs;
    const nodes = Buffer.compare(parseNodeId(value.node ?? this.#own), parseNodeId(than.node ?? this.#own));
    return nodes !== 0 ? nodes > 0 : value.revision > than.revision;
  }
}
