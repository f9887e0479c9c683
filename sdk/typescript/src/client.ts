/**
 * The client: how a program calls agents, offers its own, and asks its node.
 *
 * It is attached to the node of this machine over one connection. When that is lost, calls under way end with `unavailable`, new ones fail at once,
 * and the client attaches again by itself, after 50 ms and then twice as long each time up to a second, and registers its agents anew.
 */

import type { AgentDescription, AgentRow, AgentsQuery, MessageDetail, MessageRow, NodeStatus, PublishReceipt, SendReceipt } from "./admin.js";
import { MAX_ADMIN_ANSWER, NODE_AGENT } from "./admin.js";
import { AttemptedCall } from "./attempts.js";
import { type Body, chunkBytes, type Outgoing, outgoing } from "./body.js";
import { Call, RawStream } from "./call.js";
import { type Handler, serving } from "./callee.js";
import { type CallerOwner, CallerStream, type CallPlan } from "./caller.js";
import { Connection, type ConnectionOwner } from "./connection.js";
import { now } from "./deadlines.js";
import { errorOf, HailError } from "./errors.js";
import type { BasicOptions, CallOptions, DurableOptions } from "./options.js";
import { priorityNumber } from "./options.js";
import { mostFurther, RetryBudget, whyNotRepeatable } from "./protocol/call_attempts.js";
import { FrameKind } from "./protocol/frames.js";
import { CallHeaderCache } from "./protocol/call_header_cache.js";
import type { CallHeader } from "./protocol/headers.js";
import { Code, type Status, status } from "./protocol/status.js";
import { fieldsOf, type Request } from "./request.js";
import { type AgentOptions, Serving, type ServingOwner } from "./serving.js";
import { dataFolder } from "./socket.js";
import { type StatePutOptions, type StateReadOptions, type StateValue, type StateValues, type StateWatch } from "./state.js";
import * as state from "./state.js";
import { durableFields, Inbox, reportProgress, type TaskSeen, waitTask } from "./tasks.js";
import { Publisher, type PublishOptions, type ReplayStart, replayRequest, type SubscribeOptions, type Subscription } from "./topics.js";
import * as topics from "./topics.js";

/** How to attach. */
export interface ConnectOptions {
  /** The node's data folder. Default: `HAIL_DATA`, else `XDG_DATA_HOME/hailwire`, else `~/.local/share/hailwire`. */
  readonly dataDir?: string;
  /** The name that this program would like to be known by. Default: none. */
  readonly name?: string;
  /** Whether a lost connection is made again. Default: true. */
  readonly reconnect?: boolean;
  /** Told of what a handler throws that is no `HailError`; the caller is told only that the handler failed. Default: it is written to stderr. */
  readonly onHandlerError?: (error: unknown, agent: string) => void;
}

/** How {@link Client.run} runs, and how it ends. */
export interface RunOptions {
  /** Whether nothing is written to stderr. Default: false, for a line that says which agents are served. */
  readonly quiet?: boolean;
  /** Ends it in order, besides SIGINT and SIGTERM. Default: none. */
  readonly signal?: AbortSignal;
  /** How long calls under way may take to end then, in milliseconds. Default: 10,000. */
  readonly graceMs?: number;
}

const FIRST_PAUSE_MS = 50;
const LONGEST_PAUSE_MS = 1000;
const GRACE_MS = 10_000;

/** Longest name of a method and of a type for which a header is known to keep its bounds unmeasured. */
const SHORT = 40;

const NO_OPTIONS: CallOptions = {};

/**
 * Attaches to the node of this machine, and waits for its greeting.
 *
 * ```ts
 * await using hail = await connect();
 * const answer = await hail.call("word-count@laptop", "one two three", { timeout: 2000 });
 * console.log(answer.text());
 * ```
 *
 * Rejects with {@link HailError}: `unavailable` where no node runs, `permission_denied` where the socket may be somebody else's, and with the code
 * with which the node turned the program away.
 */
export async function connect(options: ConnectOptions = {}): Promise<Client> {
  const client = new Client(options);
  await client.attach();
  return client;
}

/** A program's attachment to its node. */
export class Client implements ConnectionOwner, ServingOwner {
  /** @internal */
  readonly root: string;
  /** The name that this program would like to be known by; empty for none. */
  readonly name: string;
  /** @internal */
  readonly reconnects: boolean;
  /** Durable messages that came for agents of this machine, and that were sent from it. */
  readonly inbox = new Inbox(this);
  /** Resolves once the client is closed, or the connection is lost and not made again, with why. It never rejects. */
  readonly closed: Promise<HailError>;
  readonly #onHandlerError: (error: unknown, agent: string) => void;
  readonly #agents = new Map<string, Serving>();
  readonly #starting = new Set<Promise<Serving>>();
  readonly #budget = new RetryBudget();
  readonly #away: CallerOwner;
  #connection: Connection | undefined = undefined;
  #why: Status = status(Code.UNAVAILABLE, "this program is not attached to a node now");
  #pause = FIRST_PAUSE_MS;
  #timer: NodeJS.Timeout | undefined = undefined;
  #isClosed = false;
  #tellClosed: (why: HailError) => void = () => undefined;

  /** @internal Use {@link connect}. */
  constructor(options: ConnectOptions) {
    this.root = dataFolder(options.dataDir);
    this.name = options.name ?? "";
    this.reconnects = options.reconnect ?? true;
    this.#onHandlerError =
      options.onHandlerError ??
      ((error, agent) => {
        console.error(`the handler of the agent \`${agent}\` failed:`, error);
      });
    this.closed = new Promise((resolve) => {
      this.#tellClosed = resolve;
    });
    this.#away = {
      headers: new CallHeaderCache(),
      openCall: () => {
        throw errorOf(this.#why);
      },
      callEnded: () => undefined,
      lostStatus: () => this.#why,
    };
  }

  /** Whether the program is attached now. */
  get attached(): boolean {
    return this.#connection?.refusal === undefined && this.#connection !== undefined;
  }

  /** @internal */
  get connection(): Connection | undefined {
    return this.#connection;
  }

  /** @internal */
  async attach(): Promise<void> {
    const connection = await Connection.open(this);
    if (this.#isClosed) {
      connection.close(Code.OK, "the program has detached");
      return;
    }
    const refusal = connection.refusal;
    if (refusal !== undefined) throw errorOf(refusal);
    this.#connection = connection;
    this.#pause = FIRST_PAUSE_MS;
    for (const agent of [...this.#agents.values()]) agent.attach();
  }

  /** @internal */
  connectionEnded(connection: Connection, why: Status): void {
    if (this.#connection !== connection) return;
    this.#connection = undefined;
    this.#why = why.code === Code.UNAVAILABLE ? why : status(Code.UNAVAILABLE, why.message, why.hint);
    if (this.#isClosed) return;
    if (this.reconnects) this.#attachAgain();
    else this.#end(errorOf(why));
  }

  #attachAgain(): void {
    const pause = this.#pause * (0.5 + Math.random() / 2);
    this.#pause = Math.min(LONGEST_PAUSE_MS, this.#pause * 2);
    this.#timer = setTimeout(() => {
      this.#timer = undefined;
      this.attach().catch(() => {
        if (!this.#isClosed) this.#attachAgain();
      });
    }, pause);
    // A program that offers nothing and waits for nothing may end.
    if (this.#agents.size === 0) this.#timer.unref();
  }

  // Calling.

  /**
   * Calls `agent` or `agent@node`. The call is made at once; the {@link Call} that this gives is awaited for the whole answer, or iterated for its chunks.
   *
   * `agent` alone is found on this machine first, then at trusted peers. `node` is a peer's key, the alias that this machine's node keeps for it, or a
   * name that it holds at a hub. A call that a handler makes before it returns has no more time than is left of the call that it serves, says which
   * agent makes it, and is given up with that call.
   */
  call(to: string, body?: Body, options: CallOptions = NO_OPTIONS): Call {
    const out = outgoing(body);
    const plan = this.#plan(FrameKind.CALL, to, out, options, 0, true);
    const { retries = 0, hedgeAfter } = options;
    const policy = { retries, hedgeAfter };
    if (mostFurther(policy) === 0) return new Call(this.#start(plan, out), options.maxBytes);
    const why = whyNotRepeatable(to, false, plan.header.idempotencyKey, out.bytes !== undefined);
    if (why !== undefined) {
      out.source?.leave();
      const refused = new CallerStream(this.#away);
      refused.fail(errorOf(why));
      return new Call(refused, options.maxBytes);
    }
    const attempted = new AttemptedCall((again, whole) => this.#start(again, whole), plan, out, policy, this.#budget);
    return new Call(undefined, options.maxBytes, attempted.winner, () => {
      attempted.cancel();
    });
  }

  /**
   * Sends a one-way message of at most 16 MiB; resolves once the agent has taken it, so the agent has to be up. Rejects with the status with which
   * the agent or the way to it refused, `resource_exhausted` for a message that is too long.
   */
  async send(to: string, body?: Body, options: BasicOptions = NO_OPTIONS): Promise<void> {
    const out = outgoing(body);
    await this.#whole(this.#start(this.#plan(FrameKind.SEND, to, out, options, 0, true), out));
  }

  /**
   * Opens a raw stream: bytes both ways at once. Resolves once the agent has accepted it. `timeout` is how long the stream may live. Rejects with the
   * status with which the agent or the way to it refused.
   */
  async stream(to: string, options: BasicOptions = NO_OPTIONS): Promise<RawStream> {
    // What is written comes by `write`: the body has no end of its own.
    const open: Outgoing = { bytes: undefined, source: undefined, type: "" };
    const stream = this.#start(this.#plan(FrameKind.STREAM, to, open, options, 0, true), open);
    await stream.whenBegun();
    return new RawStream(stream, chunkBytes);
  }

  // Serving.

  /**
   * Offers an agent: `handler` answers its calls. Resolves once the node has accepted; from then on the agent is offered until it is taken back, also
   * after the connection was lost. Several offers of one name, of one program or of many, form a group; one client offers a name once.
   *
   * What the handler returns is the answer: text, bytes, nothing, a `ReadableStream`, an async iterable or generator, an {@link Answer} of another
   * call, a {@link Reply} with media type and fields, and any other value as JSON. What it throws is the status; what is no `HailError` is told to
   * the caller as `internal` without its words.
   *
   * ```ts
   * await hail.agent("shout", async (request) => (await request.text()).toUpperCase());
   * await hail.agent("count", { description: "counts" }, async function* () {
   *   for (let n = 1; n <= 3; n += 1) yield `${n}\n`;
   * });
   * ```
   *
   * Rejects with `invalid_argument` (name, options), `already_exists`, `resource_exhausted` (1,024 agents), `unavailable` (the node is gone). Where
   * nobody awaits it, {@link Client.run} does: it rejects with what an agent that is still being offered is refused with. Without either, a refusal is
   * an unhandled rejection, which ends the process.
   */
  agent(name: string, handler: Handler): Promise<Serving>;
  agent(name: string, options: AgentOptions, handler: Handler): Promise<Serving>;
  agent(name: string, first: AgentOptions | Handler, second?: Handler): Promise<Serving> {
    const handler = typeof first === "function" ? first : second;
    const options = typeof first === "function" ? {} : first;
    if (handler === undefined) return Promise.reject(new HailError("invalid_argument", "an agent needs a handler"));
    // Nothing here takes the rejection: it is for whoever awaits this, or for `run`, and is an unhandled one else.
    const begin = async (): Promise<Serving> => {
      try {
        return await this.#serve(name, options, handler);
      } finally {
        this.#starting.delete(begun);
      }
    };
    const begun = begin();
    // Of what a handler offers, the handler is told.
    if (serving.getStore() === undefined) this.#starting.add(begun);
    return begun;
  }

  async #serve(name: string, options: AgentOptions, handler: Handler): Promise<Serving> {
    if (this.#agents.has(name)) {
      const hint = "attach a second client to serve a second member of the group";
      throw new HailError("already_exists", `this program serves \`${name}\` already`, { hint });
    }
    const agent = new Serving(this, name, options, handler);
    this.#agents.set(name, agent);
    return agent.begin();
  }

  /**
   * Runs a program that is only an agent: says on stderr which agents it serves, once the node has accepted them (`serving count, shout`), and resolves
   * after SIGINT, SIGTERM or `signal`, once the agents are taken back in order, their calls have ended (for `graceMs` at most) and the client is closed.
   * A second signal ends the process at once. Rejects where an agent that is still being offered is refused, or the connection is lost and not made
   * again.
   */
  async run(options: RunOptions = {}): Promise<void> {
    await Promise.all(this.#starting);
    let stop: () => void = () => undefined;
    const stopped = new Promise<undefined>((resolve) => {
      stop = () => {
        resolve(undefined);
      };
    });
    process.on("SIGINT", stop);
    process.on("SIGTERM", stop);
    options.signal?.addEventListener("abort", stop);
    if (options.signal?.aborted === true) stop();
    if (options.quiet !== true && this.#agents.size > 0) {
      process.stderr.write(`serving ${[...this.#agents.keys()].sort().join(", ")}   (Ctrl-C to stop)\n`);
    }
    // It stays alive also while the node is away.
    const alive = setInterval(() => undefined, 0x7fff_ffff);
    try {
      const lost = await Promise.race([stopped, this.closed]);
      if (lost !== undefined && !this.#isClosed) throw lost;
    } finally {
      clearInterval(alive);
      process.removeListener("SIGINT", stop);
      process.removeListener("SIGTERM", stop);
      options.signal?.removeEventListener("abort", stop);
    }
    await this.#drain(options.graceMs ?? GRACE_MS);
    await this.close();
  }

  async #drain(graceMs: number): Promise<void> {
    if (!this.attached) return;
    let timer: NodeJS.Timeout | undefined;
    const patience = new Promise<void>((resolve) => {
      timer = setTimeout(resolve, graceMs);
    });
    await Promise.race([Promise.all([...this.#agents.values()].map((agent) => agent.drain())), patience]);
    clearTimeout(timer);
  }

  // The node.

  /** Asks the node itself: a method of its agent `node`, with JSON both ways. Rejects with the status with which the node refused. */
  async admin(method: string, request: unknown = null): Promise<unknown> {
    const answer = await this.call(NODE_AGENT, jsonText(request), { method, maxBytes: MAX_ADMIN_ANSWER });
    return answer.json();
  }

  /** The node: its tunnels, agents and hubs. `measure` also asks each peer and hub how long it takes to answer, for up to 500 ms. */
  async status(options: { readonly measure?: boolean } = {}): Promise<NodeStatus> {
    return (await this.admin("status", options)) as NodeStatus;
  }

  /** The agents that can be called, here and on trusted peers. */
  async agents(query: AgentsQuery = {}): Promise<AgentRow[]> {
    return (await this.admin("agents", query)) as AgentRow[];
  }

  /** What `agent` or `agent@node` says of itself: its methods, what they take and answer. */
  async describe(who: string): Promise<AgentDescription> {
    return (await this.admin("describe", { who })) as AgentDescription;
  }

  // Topics.

  /**
   * Publishes a message of at most 1 MiB under a topic, such as `build.web.done`. Resolves once it is in the queues of all who want it, and on the
   * disk where the topic is kept. Rejects with `invalid_argument` (topic, size), `aborted` (`ifKept`), `resource_exhausted` (no room to keep it).
   */
  async publish(topic: string, body?: Body, options: PublishOptions = {}): Promise<PublishReceipt> {
    return topics.publish(this, topic, body, options);
  }

  /** For many messages, one after the other, without waiting for each. */
  publisher(): Publisher {
    return new Publisher(this);
  }

  /**
   * Subscribes to all topics that match any of these patterns: `*` stands for one token, `>`, at the end, for one or more. What is published here or
   * at a trusted peer from now on comes in the order of each node, each once. Rejects with `invalid_argument` for what is no pattern.
   *
   * ```ts
   * for await (const event of await hail.subscribe("build.*.done")) {
   *   if (event.kind === "message") console.log(event.topic);
   * }
   * ```
   */
  subscribe(patterns: string | readonly string[], options: SubscribeOptions = {}): Promise<Subscription> {
    return topics.subscribe(this, { patterns: typeof patterns === "string" ? [patterns] : patterns }, options);
  }

  /**
   * Subscribes to what nodes keep of topics that match any of these patterns, at most 64: first what is there from `start` on, then what follows,
   * without gap or repetition. Reading slowly loses nothing but what a node removes meanwhile. What nobody keeps does not come.
   */
  replay(patterns: string | readonly string[], start: ReplayStart = {}, options: SubscribeOptions = {}): Promise<Subscription> {
    return topics.subscribe(this, replayRequest(patterns, start), options);
  }

  /**
   * As {@link Client.replay}, under a name that outlives this program: whoever reads next under it, with the same patterns, begins after what was
   * confirmed ({@link Subscription.confirm}). So each message that a node keeps comes at least once. One program reads under a name; a second one takes
   * its place. Rejects also with `failed_precondition` where the name has other patterns, `resource_exhausted` with 256 names.
   */
  subscribeAs(name: string, patterns: string | readonly string[], start: ReplayStart = {}, options: SubscribeOptions = {}): Promise<Subscription> {
    return topics.subscribe(this, { ...replayRequest(patterns, start), name }, options);
  }

  // State.

  /** Puts a value of at most 1 MiB under a key at this node; on the disk once this resolves. Its revision is `last`. Rejects with `aborted` (`ifRevision`). */
  async statePut(key: string, value: Body, options: StatePutOptions = {}): Promise<PublishReceipt> {
    return state.statePut(this, key, value, options, false);
  }

  /** Deletes the value of a key at this node. */
  async stateDelete(key: string, options: StatePutOptions = {}): Promise<PublishReceipt> {
    return state.statePut(this, key, undefined, options, true);
  }

  /** The value of a key that counts, of this node and all trusted peers that answer in time; undefined where there is none, or it was deleted. */
  async stateGet(key: string, options: StateReadOptions = {}): Promise<StateValue | undefined> {
    if (key.includes("*") || key.includes(">")) {
      throw new HailError("invalid_argument", "a key has no wildcards; watch a pattern instead");
    }
    return (await state.stateValues(this, key, options)).values[0];
  }

  /** All values that count of keys that match a pattern, by key, and the peers whose values are not known. */
  stateValues(pattern: string, options: StateReadOptions = {}): Promise<StateValues> {
    return state.stateValues(this, pattern, options);
  }

  /** Watches the values of keys that match a pattern: first those that stand, then each change. */
  watchState(pattern: string, options: StateReadOptions = {}): Promise<StateWatch> {
    return state.watchState(this, pattern, options);
  }

  // Durable messages.

  /**
   * Sends a call that the node keeps until the agent has done it, however often either is restarted: a task. Resolves with its id once it is on the
   * disk of this machine's node. With an idempotency key it may be submitted again. Rejects with `not_found`, `permission_denied`,
   * `resource_exhausted` (the inbox or the disk is full, the body is larger than 16 MiB), `internal`; nothing is accepted then.
   */
  submit(to: string, body?: Body, options: DurableOptions = {}): Promise<SendReceipt> {
    return this.#durable(FrameKind.CALL, to, body, options);
  }

  /** As {@link Client.submit}, of a message that wants no answer. */
  sendDurable(to: string, body?: Body, options: DurableOptions = {}): Promise<SendReceipt> {
    return this.#durable(FrameKind.SEND, to, body, options);
  }

  async #durable(kind: number, to: string, body: Body, options: DurableOptions): Promise<SendReceipt> {
    const out = outgoing(body);
    const { timeout, ...rest } = options;
    const plan = this.#plan(kind, to, out, { ...rest, headers: durableFields(options) }, options.inOrder === false ? 2 : 1, false);
    // What is kept outlasts whoever sends it: its time is the message's, not that of the sending.
    const header: CallHeader = { ...plan.header, deadlineMs: timeout === undefined ? undefined : Math.ceil(timeout) };
    const bytes = await this.#whole(this.#start({ ...plan, header, plain: false }, out));
    return JSON.parse(bytes.toString("utf8")) as SendReceipt;
  }

  /** What is known of a task, or of any durable message. Rejects with `not_found` where it was never known here, or is forgotten. */
  async task(id: string): Promise<MessageDetail> {
    return (await this.admin("message.show", { id })) as MessageDetail;
  }

  /** The tasks that were submitted from this machine, newest first, up to 1,000; in these states alone where any is named. */
  async tasks(...states: ("submitted" | "working" | "completed" | "failed" | "cancelled" | "rejected")[]): Promise<MessageRow[]> {
    return (await this.admin("message.list", { sent: true, tasks: states })) as MessageRow[];
  }

  /** Waits until a task has its end, for as long as that takes. How it ended is no error here. */
  waitTask(id: string): Promise<MessageDetail> {
    return waitTask(this, id, undefined);
  }

  /** Waits until more is known of a task than `seen` ({@link seenOf}): another attempt, progress, more of its answer, or its end. */
  taskNews(id: string, seen: TaskSeen): Promise<MessageDetail> {
    return waitTask(this, id, seen);
  }

  /** Withdraws a task, or any durable message that was sent from here. It ends as `cancelled`, or as the agent answered before. */
  async cancelTask(id: string): Promise<MessageRow> {
    return (await this.admin("task.cancel", { id })) as MessageRow;
  }

  /**
   * Says how far this program is with the task that it was handed as `request`: `done` of `total`, 0 where it does not know, and what it is at, of
   * which 256 bytes are kept. Rejects with `failed_precondition` where the request is no durable message, or its attempt is over.
   */
  reportProgress(request: Request, done: number, total = 0, text = ""): Promise<void> {
    return reportProgress(this, request, done, total, text);
  }

  // Leaving.

  /** Detaches: agents are taken back at once, and calls under way end with `unavailable`. */
  async close(): Promise<void> {
    if (!this.#isClosed) this.#end(new HailError("unavailable", "the client is closed"));
    await this.closed;
  }

  /** Detaches, as {@link Client.close}. */
  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  #end(why: HailError): void {
    this.#isClosed = true;
    if (this.#timer !== undefined) clearTimeout(this.#timer);
    this.#why = status(Code.UNAVAILABLE, why.message);
    const connection = this.#connection;
    this.#connection = undefined;
    connection?.close(Code.OK, "the program has detached");
    for (const agent of [...this.#agents.values()]) agent.abandon(why);
    this.#tellClosed(why);
  }

  /** @internal */
  handler(agent: string): Handler | undefined {
    return this.#agents.get(agent)?.handler ?? this.#leaving.get(agent)?.handler;
  }

  /** Agents that are taken back and may have calls on their way yet. */
  readonly #leaving = new Map<string, Serving>();

  /** @internal */
  forget(agent: Serving): void {
    if (this.#agents.get(agent.name) !== agent) return;
    this.#agents.delete(agent.name);
    this.#leaving.set(agent.name, agent);
    void agent.closed.then(() => {
      if (this.#leaving.get(agent.name) === agent) this.#leaving.delete(agent.name);
    });
  }

  /** @internal */
  handlerFailed(agent: string, error: unknown): void {
    this.#onHandlerError(error, agent);
  }

  // How a call is made.

  #plan(kind: number, to: string, body: Outgoing, options: BasicOptions, durable: number, inherits: boolean): CallPlan {
    const context = serving.getStore();
    const within = context === undefined || context.over ? undefined : context;
    const { method = "", idempotencyKey = "", traceparent = "", tracestate = "", carrier = "", member = 0, affinity = "" } = options;
    const { timeout } = options;
    const type = options.type ?? body.type;
    const from = options.from ?? within?.agent ?? "";
    const headers = fieldsOf(options.headers);
    const priority = priorityNumber(options.priority);
    let until = timeout === undefined || timeout === Number.POSITIVE_INFINITY ? undefined : now() + timeout;
    if (inherits && within?.until !== undefined) until = Math.min(until ?? within.until, within.until);
    const plain =
      idempotencyKey === "" &&
      traceparent === "" &&
      tracestate === "" &&
      carrier === "" &&
      member === 0 &&
      affinity === "" &&
      headers.length === 0 &&
      durable === 0 &&
      priority === 1 &&
      method.length <= SHORT;
    const header: CallHeader = {
      to,
      method,
      from,
      type,
      deadlineMs: undefined,
      priority,
      idempotencyKey,
      traceparent,
      tracestate,
      carrier,
      durable,
      member,
      affinity,
      headers,
    };
    return { kind, header, plain, until, signal: options.signal };
  }

  #start(plan: CallPlan, body: Outgoing): CallerStream {
    const stream = new CallerStream(this.#connection ?? this.#away);
    stream.start(plan, body);
    if (!stream.settled) {
      const context = serving.getStore();
      if (context !== undefined && !context.over && plan.header.durable === 0) context.nest(stream);
    }
    return stream;
  }

  #whole(stream: CallerStream): Promise<Buffer> {
    return new Promise((resolve, reject) => {
      stream.answerTo(MAX_ADMIN_ANSWER, resolve, reject);
    });
  }
}

/** JSON in which a large integer is one. */
function jsonText(value: unknown): string {
  const marks: string[] = [];
  const text = JSON.stringify(value, (_key, member: unknown) => {
    if (typeof member !== "bigint") return member;
    marks.push(String(member));
    return `\u0000${marks.length - 1}\u0000`;
  });
  return marks.length === 0 ? text : text.replace(/"\\u0000(\d+)\\u0000"/g, (_whole, at: string) => marks[Number(at)] ?? "0");
}
