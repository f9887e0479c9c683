/**
 * Durable messages: tasks, which are calls that the node keeps until they are done, and the inbox of messages that came (`spec/messages.md`). What
 * becomes of one is the node's; here it is asked for.
 */

import { ATTEMPTS_FIELD, KEEP_FIELD, MESSAGE_ATTEMPT_FIELD, MESSAGE_ID_FIELD, type MessageDetail, type MessageQuery, type MessageRow } from "./admin.js";
import { HailError } from "./errors.js";
import type { DurableOptions } from "./options.js";
import type { HeaderField } from "./protocol/headers.js";
import { fieldsOf, type Request } from "./request.js";

/** Asks the node. */
export interface Asker {
  admin(method: string, request?: unknown): Promise<unknown>;
}

/** How long one request waits, in milliseconds; the node is asked again. */
const WAIT_MS = 60_000;

/** What somebody who waits for a task knows of it already. */
export interface TaskSeen {
  /** Attempts that were known. */
  readonly attempts: number;
  /** `progress.at_ms`; 0 for none. */
  readonly progress_at_ms: number;
  /** Bytes of the answer that were known. */
  readonly partial_bytes: number;
}

/** What is known by a detail. */
export function seenOf(detail: MessageDetail): TaskSeen {
  return { attempts: detail.attempts, progress_at_ms: detail.progress?.at_ms ?? 0, partial_bytes: detail.partial_bytes };
}

/** Waits for a task's end, or for news of it. */
export async function waitTask(asker: Asker, id: string, seen: TaskSeen | undefined): Promise<MessageDetail> {
  const request = { id, timeout_ms: WAIT_MS, ...(seen === undefined ? {} : { seen }) };
  for (;;) {
    try {
      return (await asker.admin("message.wait", request)) as MessageDetail;
    } catch (error) {
      if (!(error instanceof HailError) || error.code !== "deadline_exceeded") throw error;
    }
  }
}

/** Says how far this program is with a message that it was handed. */
export async function reportProgress(asker: Asker, request: Request, done: number, total: number, text: string): Promise<void> {
  const id = request.header(MESSAGE_ID_FIELD);
  if (id === undefined) {
    throw new HailError("failed_precondition", "the call is no durable message, so nobody keeps its progress", {
      hint: "`hail task submit` makes a durable one",
    });
  }
  const attempt = Number.parseInt(request.header(MESSAGE_ATTEMPT_FIELD) ?? "0", 10);
  await asker.admin("task.progress", { id, attempt: Number.isNaN(attempt) ? 0 : attempt, done, total, text });
}

/** The fields of a durable message: those of its own, and what is said to the node in two of its own. */
export function durableFields(options: DurableOptions): readonly HeaderField[] {
  const fields = [...fieldsOf(options.headers)];
  if (options.keep !== undefined) fields.push([KEEP_FIELD, String(Math.ceil(options.keep))]);
  if (options.attempts !== undefined) fields.push([ATTEMPTS_FIELD, String(options.attempts)]);
  return fields;
}

/** Durable messages that came for agents of this machine, and those that were sent from it. */
export class Inbox {
  readonly #asker: Asker;

  /** @internal */
  constructor(asker: Asker) {
    this.#asker = asker;
  }

  /** Those that came, in their order, or with `sent` those that were sent from here, newest first; up to 1,000. */
  async list(query: MessageQuery = {}): Promise<MessageRow[]> {
    return (await this.#asker.admin("message.list", query)) as MessageRow[];
  }

  /** One of them, with its body and its answer. Rejects with `not_found` where it is not known. */
  async show(id: string): Promise<MessageDetail> {
    return (await this.#asker.admin("message.show", { id })) as MessageDetail;
  }

  /**
   * Takes up to `most` messages of an agent by hand (1 by default, 64 at most), in place of a program that serves it. Without a verdict within
   * `leaseMs` (a minute by default, an hour at most) they are handed over again.
   */
  async take(agent: string, options: { readonly most?: number; readonly leaseMs?: number } = {}): Promise<MessageDetail[]> {
    const request = { agent, most: options.most ?? 1, lease_ms: options.leaseMs ?? 0 };
    return (await this.#asker.admin("message.take", request)) as MessageDetail[];
  }

  /** Says that a message that was taken by hand is done, with an answer where one is wanted. */
  async ack(id: string, answer = ""): Promise<MessageRow> {
    return (await this.#asker.admin("message.ack", { id, answer })) as MessageRow;
  }

  /** Says that a message that was taken by hand failed, and whether it is to be handed over again. */
  async fail(id: string, why: string, retry = false): Promise<MessageRow> {
    return (await this.#asker.admin("message.ack", { id, failed: why, retry })) as MessageRow;
  }

  /** Has a message that was given up tried again. */
  async retry(id: string): Promise<MessageRow> {
    return (await this.#asker.admin("message.retry", { id })) as MessageRow;
  }

  /** Removes a message. */
  async drop(id: string): Promise<MessageRow> {
    return (await this.#asker.admin("message.drop", { id })) as MessageRow;
  }
}
