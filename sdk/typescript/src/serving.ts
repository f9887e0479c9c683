/**
 * An agent on offer: registered at the node, and again by itself whenever the connection was lost.
 */

import type { MethodSchema } from "./admin.js";
import type { Handler } from "./callee.js";
import type { Connection, RegistrationStream } from "./connection.js";
import { errorOf, HailError } from "./errors.js";
import { parseAgentName } from "./protocol/address.js";
import type { RegisterHeader } from "./protocol/headers.js";
import { Code, isRetryable, type Status } from "./protocol/status.js";

/** What an agent says of itself. */
export interface AgentOptions {
  /** One line for people, at most 256 bytes. Default: empty. */
  readonly description?: string;
  /** Words to find it by, at most 16 of at most 64 bytes. Default: none. */
  readonly tags?: readonly string[];
  /** The agent's own version, at most 64 bytes. Default: empty. */
  readonly version?: string;
  /** Calls that it takes at once; the node has further ones wait. Default: 0, for no bound. */
  readonly maxConcurrency?: number;
  /** Calls that may wait at the node while all members have as many as they take, at most 4,096. Default: 1,024. */
  readonly maxWaiting?: number;
  /** It takes calls while no member of its name with a lower number has room. Of priority, overflow and pinned one is given at most. Default: 0. */
  readonly priority?: number;
  /** It takes calls only while each of the other members has so many under way. Default: 0, for always. */
  readonly overflow?: number;
  /** Of the pinned members of its name one takes all calls, until it had none for so many milliseconds, up to an hour. Default: not pinned. */
  readonly pinnedMs?: number;
  /** For how many milliseconds it gets fewer calls after it has come, up to an hour. Default: 0. */
  readonly slowStartMs?: number;
  /** The Unix socket to which the node may connect raw streams by itself: an absolute path of at most 107 bytes. Default: none. */
  readonly streamsTo?: string;
  /** Its methods, at most 256 and 48 KiB as JSON, for `hail describe`. Nothing is checked against them. Default: none. */
  readonly methods?: readonly MethodSchema[];
}

/** Where agents are kept. */
export interface ServingOwner {
  readonly connection: Connection | undefined;
  forget(serving: Serving): void;
  /** Whether a lost connection is made again. */
  readonly reconnects: boolean;
}

/** How long a refused registration is left alone before it is tried again, in milliseconds. */
const AGAIN_MS = 1000;

/** An agent on offer. */
export class Serving {
  /** The agent's name. */
  readonly name: string;
  /** Resolves once the agent is offered no more: with nothing where it was taken back, else with why. It never rejects. */
  readonly closed: Promise<HailError | undefined>;
  readonly #owner: ServingOwner;
  #header: RegisterHeader;
  #handler: Handler;
  #stream: RegistrationStream | undefined = undefined;
  #accepted: { resolve(): void; reject(error: unknown): void } | undefined = undefined;
  #everAccepted = false;
  #leaving = false;
  #over = false;
  #again: NodeJS.Timeout | undefined = undefined;
  #tellClosed: (why: HailError | undefined) => void = () => undefined;

  /** @internal */
  constructor(owner: ServingOwner, name: string, options: AgentOptions, handler: Handler) {
    this.#owner = owner;
    this.#header = registerHeader(name, options);
    this.name = this.#header.name;
    this.#handler = handler;
    this.closed = new Promise((resolve) => {
      this.#tellClosed = resolve;
    });
  }

  /** @internal */
  get handler(): Handler {
    return this.#handler;
  }

  /** @internal Registers it for the first time; resolves once the node has accepted. */
  begin(): Promise<this> {
    return new Promise((resolve, reject) => {
      this.#accepted = { resolve: () => resolve(this), reject };
      this.attach();
    });
  }

  /** @internal Registers it on the connection that there is. */
  attach(): void {
    if (this.#over || this.#leaving || this.#stream !== undefined) return;
    const connection = this.#owner.connection;
    const refusal = connection?.refusal;
    if (connection === undefined || refusal !== undefined) {
      const why = refusal === undefined ? new HailError("unavailable", "this program is not attached to a node now") : errorOf(refusal);
      if (!this.#everAccepted) this.#end(why);
      return;
    }
    const stream = connection.register(this.#header, {
      registered: () => {
        this.#registered();
      },
      unregistered: (why) => {
        this.#unregistered(stream, why);
      },
    });
    this.#stream = stream;
  }

  /**
   * Takes the agent back in order, and waits for the calls that it has: no new one comes, those under way end, and nobody who calls finds the agent
   * gone who would not have anyway. It takes as long as the longest call.
   */
  async drain(): Promise<void> {
    this.#leaving = true;
    this.#owner.forget(this);
    if (this.#stream === undefined) this.#end(undefined);
    else this.#stream.leave();
    await this.closed;
  }

  /** Takes the agent back at once. Calls that run may finish. */
  close(): void {
    this.#leaving = true;
    this.#owner.forget(this);
    if (this.#stream === undefined) this.#end(undefined);
    else this.#stream.abort();
  }

  /** Takes the agent back at once. */
  [Symbol.asyncDispose](): Promise<void> {
    this.close();
    return Promise.resolve();
  }

  /**
   * Offers the agent anew, with another handler, and other options where they are given, in place of what was offered. New calls go to the new
   * handler, calls that run finish with the old one, and no call finds the agent gone meanwhile. Rejects as `agent` does; the old offer then stands.
   */
  async replace(handler: Handler, options?: AgentOptions): Promise<void> {
    if (this.#over || this.#leaving) throw new HailError("failed_precondition", `\`${this.name}\` is no longer served here`);
    if (options !== undefined) {
      const header = registerHeader(this.name, options);
      const connection = this.#owner.connection;
      if (connection === undefined) throw new HailError("unavailable", "this program is not attached to a node now");
      const before = this.#stream;
      await new Promise<void>((resolve, reject) => {
        const stream = connection.register(header, {
          registered: () => {
            this.#stream = stream;
            this.#header = header;
            resolve();
          },
          unregistered: (why) => {
            reject(errorOf(why));
            this.#unregistered(stream, why);
          },
        });
      });
      before?.leave();
    }
    this.#handler = handler;
  }

  #registered(): void {
    this.#everAccepted = true;
    const accepted = this.#accepted;
    this.#accepted = undefined;
    accepted?.resolve();
  }

  #unregistered(stream: RegistrationStream, why: Status): void {
    // One whose place another has taken ends when its calls have.
    if (this.#stream !== stream) return;
    this.#stream = undefined;
    if (this.#leaving) {
      this.#end(undefined);
      return;
    }
    const lost = this.#owner.connection?.refusal !== undefined || this.#owner.connection === undefined;
    if (this.#everAccepted && this.#owner.reconnects && (lost || isRetryable(why.code) || why.code === Code.OK)) {
      // On a lost connection it waits for the next one.
      if (!lost) this.#tryAgain();
      return;
    }
    this.#end(errorOf(why));
  }

  /** @internal The client is closed. */
  abandon(why: HailError): void {
    this.#leaving = true;
    this.#end(why);
  }

  #tryAgain(): void {
    this.#again ??= setTimeout(() => {
      this.#again = undefined;
      this.attach();
    }, AGAIN_MS);
  }

  #end(why: HailError | undefined): void {
    if (this.#over) return;
    this.#over = true;
    if (this.#again !== undefined) clearTimeout(this.#again);
    this.#owner.forget(this);
    const accepted = this.#accepted;
    this.#accepted = undefined;
    accepted?.reject(why ?? new HailError("cancelled", "the agent was taken back"));
    this.#tellClosed(why);
  }
}

function registerHeader(name: string, options: AgentOptions): RegisterHeader {
  try {
    parseAgentName(name);
  } catch (error) {
    throw new HailError("invalid_argument", error instanceof Error ? error.message : String(error));
  }
  return {
    name,
    description: options.description ?? "",
    tags: options.tags ?? [],
    version: options.version ?? "",
    maxConcurrency: options.maxConcurrency ?? 0,
    socket: options.streamsTo ?? "",
    schema: options.methods === undefined || options.methods.length === 0 ? "" : JSON.stringify({ methods: options.methods }),
    priority: options.priority ?? 0,
    overflow: options.overflow ?? 0,
    pinnedMs: options.pinnedMs === undefined ? 0 : Math.max(1, Math.ceil(options.pinnedMs)),
    slowStartMs: Math.ceil(options.slowStartMs ?? 0),
    maxWaiting: options.maxWaiting,
  };
}
