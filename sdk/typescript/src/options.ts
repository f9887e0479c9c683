/**
 * What can be said of a call besides whom it goes to and what it carries.
 */

import type { HeaderField } from "./protocol/headers.js";
import type { Int } from "./protocol/msgpack.js";

/** How urgent something is: it orders what waits on one connection, in both directions. */
export type Priority = "low" | "medium" | "high" | "critical";

const PRIORITIES: readonly Priority[] = ["low", "medium", "high", "critical"];

/** The number of a priority on the wire. */
export function priorityNumber(priority: Priority | undefined): number {
  return priority === undefined ? 1 : PRIORITIES.indexOf(priority);
}

/** The name of a priority. */
export function priorityName(number: number): Priority {
  return PRIORITIES[number] ?? "critical";
}

/** Options of everything that goes to an agent. */
export interface BasicOptions {
  /** What is asked of the agent, at most 128 bytes. Default: empty, for an agent with one method. */
  readonly method?: string;
  /** Media type of the body. Default: empty, for bytes; `application/json` for a body that is sent as JSON. */
  readonly type?: string;
  /** Fields of the application's own, at most 128, as pairs or as an object. Names may repeat in pairs. Default: none. */
  readonly headers?: Iterable<HeaderField> | Readonly<Record<string, string>>;
  /**
   * Milliseconds for all of it, the last byte of the answer included; both ends keep them. Default: no bound, but what is left of the call that the
   * handler which calls is serving.
   */
  readonly timeout?: number;
  /** Gives the call up when it is aborted; it then ends with `cancelled`, with the signal's reason as `cause`. */
  readonly signal?: AbortSignal;
  /** How urgent it is. Default: `medium`. */
  readonly priority?: Priority;
  /** Calls with equal keys are the same work, which may be done once. Default: empty. */
  readonly idempotencyKey?: string;
  /** Has calls of one group with equal keys go to the same member of it; at most 256 bytes. Default: empty, for whichever is nearest and least loaded. */
  readonly affinity?: string;
  /** The member of the group that takes it, by its number in `agents()`. Default: 0, for whichever. */
  readonly member?: Int;
  /** The carrier to another node: `quic`, `h2` or `ws`. Default: as the node decides. */
  readonly carrier?: "quic" | "h2" | "ws";
  /** The agent that calls, as it calls itself. Default: the agent whose handler calls, else nobody. */
  readonly from?: string;
  /** W3C trace context. Default: empty. */
  readonly traceparent?: string;
  /** W3C trace context. Default: empty. */
  readonly tracestate?: string;
}

/** Options of a call. */
export interface CallOptions extends BasicOptions {
  /** Most bytes of an answer that is waited for whole; longer ones end with `resource_exhausted`. Default: 64 MiB. */
  readonly maxBytes?: number;
  /**
   * Makes the call again, up to so many times and 10 at most, where it ended before its answer began with `unavailable`, `resource_exhausted` or
   * `aborted`: after 25 ms, then twice as long each time up to a second, each shortened by up to a half at random. It needs an `idempotencyKey` and a
   * body that is no stream, starts nothing past the deadline, and shares a budget with all calls of the client: 10 further attempts, and one more
   * for every five calls that allow some. Default: 0.
   */
  readonly retries?: number;
  /** Makes the call a second time beside the first where its answer has not begun after so many milliseconds; the first answer counts. Bounds as of retries. */
  readonly hedgeAfter?: number;
}

/** Options of a durable message: a task, or a send that is kept until it is done. */
export interface DurableOptions extends Omit<BasicOptions, "timeout"> {
  /** Whether it comes after what this program sent to the same agent before. Default: true. */
  readonly inOrder?: boolean;
  /** For how many milliseconds it is worth anything. Default: seven days. */
  readonly timeout?: number;
  /** For how many milliseconds its row is kept after its end. Default: seven days; 30 days at most. */
  readonly keep?: number;
  /** How often an agent is handed it at most, 1 to 100. Default: as the receiver's node says. */
  readonly attempts?: number;
}
