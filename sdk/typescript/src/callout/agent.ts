/**
 * An inspection agent: its handlers, and how it is served.
 *
 * ```ts
 * import { Agent, allow, block } from "hailwire/callout";
 *
 * const agent = new Agent("my-waf", { version: "1.0" });
 * agent.requestHeaders(async (request) => (request.uri.startsWith("/admin") ? block(403) : allow()));
 * await agent.run("agent.sock");
 * ```
 *
 * A handler may be async or not. Handlers of different requests run side by side, those of one request one after the other. The
 * signal that each is given aborts when the host no longer waits; what it returns then is dropped.
 */
import type { Encoding, Writable } from "./codec.js";
import type { EventKind } from "./events.js";
import { type AgentLimits, type Capabilities, DEFAULT_LIMITS, WINDOW } from "./handshake.js";
import type { Notice } from "./notices.js";
import { AgentProtocol, type CancelReason, type ProtocolOptions, RefusedError, type Registration } from "./protocol.js";
import { type ByteStream, type Handler, type Handlers, type Host, Session, type SessionCallbacks } from "./session.js";
import { connectUnix, duplexStream, listenUnix } from "./unix-socket.js";

/** What can be said of an agent besides its name. */
export interface AgentOptions {
  /** Its version, which hosts are told. Default: empty. */
  readonly version?: string;
  /** What it takes. Default: as {@link AgentLimits} says. */
  readonly limits?: Partial<AgentLimits>;
  /** What it speaks. Default both. A host that speaks none of them gets JSON. */
  readonly encodings?: readonly Encoding[];
  /** Whether what only Hailwire speaks is agreed to. Default true. */
  readonly extensions?: boolean;
  /** Bytes of one direction of a request's body that may be on their way. Default 512 KiB. */
  readonly window?: number;
  /** Milliseconds that a handshake may take. Default 10,000. */
  readonly handshakeTimeout?: number;
  /** Hosts that may be connected through one listener; more are closed. Default 1,024. */
  readonly maxConnections?: number;
  /** Where what went wrong is said. Default `console.warn`. */
  readonly log?: (what: string, error: unknown) => void;
}

/** How long something is served. */
export interface ServeOptions {
  /** Ends it: every connection is closed, and its handlers are aborted. */
  readonly signal?: AbortSignal;
}

/** How an agent shows itself to a host that it connects to. */
export interface RegisterOptions extends ServeOptions {
  /** What shows that it may. */
  readonly token?: string;
  /** Anything that the host should know. */
  readonly metadata?: Writable;
}

const NAME = /^[A-Za-z0-9._-]{1,64}$/;
const LEAST_PAUSE = 100;
const LONGEST_PAUSE = 30_000;

/** An inspection agent. Each event has a method that takes its handler, and each may be left out: hosts are told which are there. */
export class Agent {
  /** Its limits, as hosts are told. */
  readonly limits: AgentLimits;
  /** Its version; empty for none. */
  readonly version: string;
  readonly #handlers: Handlers = {};
  readonly #connected: ((host: Host) => void)[] = [];
  readonly #cancelled: ((correlationId: string, reason: CancelReason) => void)[] = [];
  readonly #hosts = new Set<Host>();
  readonly #options: ProtocolOptions;
  readonly #handshakeTimeout: number;
  readonly #maxConnections: number;
  readonly #log: (what: string, error: unknown) => void;

  /** `name` has letters, digits and `-_.`. Throws `TypeError` for another. */
  constructor(
    readonly name: string,
    options: AgentOptions = {},
  ) {
    if (!NAME.test(name)) throw new TypeError(`an agent's name is 1 to 64 letters, digits and -_., not "${name}"`);
    this.version = options.version ?? "";
    this.limits = { ...DEFAULT_LIMITS, ...options.limits };
    this.#options = {
      encodings: options.encodings ?? ["msgpack", "json"],
      extensions: options.extensions ?? true,
      window: options.window ?? WINDOW,
    };
    this.#handshakeTimeout = options.handshakeTimeout ?? 10_000;
    this.#maxConnections = options.maxConnections ?? 1024;
    this.#log =
      options.log ??
      ((what, error) => {
        console.warn(`hailwire callout: ${what}:`, error);
      });
  }

  /** The head of a request. */
  requestHeaders(handler: Handler<"requestHeaders">): this {
    return this.#add("requestHeaders", handler);
  }

  /** A chunk of a request's body. */
  requestBody(handler: Handler<"requestBody">): this {
    return this.#add("requestBody", handler);
  }

  /** The head of a response. */
  responseHeaders(handler: Handler<"responseHeaders">): this {
    return this.#add("responseHeaders", handler);
  }

  /** A chunk of a response's body. */
  responseBody(handler: Handler<"responseBody">): this {
    return this.#add("responseBody", handler);
  }

  /** A request has ended. The decision is not looked at. */
  requestComplete(handler: Handler<"requestComplete">): this {
    return this.#add("requestComplete", handler);
  }

  /** A WebSocket frame. */
  websocketFrame(handler: Handler<"websocketFrame">): this {
    return this.#add("websocketFrame", handler);
  }

  /** A text for or from a language model; see `found`. */
  guardrail(handler: Handler<"guardrail">): this {
    return this.#add("guardrail", handler);
  }

  /** A new configuration. Whatever is not an allow refuses it. */
  configure(handler: Handler<"configure">): this {
    return this.#add("configure", handler);
  }

  /** A host has connected. It may be told things from now on, until its connection ends. */
  connected(callback: (host: Host) => void): this {
    this.#connected.push(callback);
    return this;
  }

  /** A host no longer waits for a request. Its handlers' signals abort besides. */
  cancelled(callback: (correlationId: string, reason: CancelReason) => void): this {
    this.#cancelled.push(callback);
    return this;
  }

  /** The hosts that are connected. */
  get hosts(): readonly Host[] {
    return [...this.#hosts].filter((host) => !host.isClosed);
  }

  /** What hosts are told. */
  get capabilities(): Capabilities {
    const events = new Set(Object.keys(this.#handlers) as EventKind[]);
    return { agentId: this.name, name: this.name, version: this.version, events, limits: this.limits };
  }

  /** Tells every host something unasked. */
  notify(notice: Notice): void {
    for (const host of this.hosts) host.notify(notice);
  }

  /**
   * Serves at a Unix socket until SIGINT or SIGTERM, then drains for `drainWithin` milliseconds (5,000) at most; `ready` is called once
   * it listens.
   *
   * Without a path the socket is the one that `HAIL_SOCKET` names, as it does for the program of `hail callout agent --exec`. Rejects
   * with `TypeError` without either, and as {@link serve}.
   */
  async run(
    path: string | undefined = process.env["HAIL_SOCKET"],
    options: { readonly ready?: () => void; readonly drainWithin?: number } = {},
  ): Promise<void> {
    if (!path) throw new TypeError("no socket to listen at: give its path, or name it in HAIL_SOCKET");
    const abort = new AbortController();
    const stop = (): void => void this.drain(options.drainWithin ?? 5_000).then(() => abort.abort());
    for (const name of ["SIGINT", "SIGTERM"] as const) process.once(name, stop);
    try {
      await this.serve(path, { signal: abort.signal, ...(options.ready && { ready: options.ready }) });
    } finally {
      for (const name of ["SIGINT", "SIGTERM"] as const) process.off(name, stop);
    }
  }

  /**
   * Serves at a Unix socket, which only this user may connect to, until `signal` aborts; `ready` is called once it listens.
   *
   * Rejects with the socket's error; what happens to one connection ends that one.
   */
  async serve(path: string, { signal, ready }: ServeOptions & { readonly ready?: () => void } = {}): Promise<void> {
    if (signal?.aborted) return;
    const abort = new AbortController();
    const connections = new Set<Promise<void>>();
    const listener = await listenUnix(path, this.#maxConnections, (socket) => {
      const served = this.serveStream(duplexStream(socket), { signal: abort.signal }).catch((error: unknown) =>
        this.#log("connection to a host lost", error),
      );
      connections.add(served);
      void served.finally(() => connections.delete(served));
    });
    try {
      ready?.();
      await Promise.race([listener.failed, aborted(signal)]);
    } finally {
      abort.abort();
      await Promise.all([listener.close(), ...connections]);
    }
  }

  /**
   * Serves one host over any stream of bytes that it opened, until it leaves or `signal` aborts, and closes the stream.
   *
   * Rejects with `ProtocolError`, `HandshakeTimeoutError` or what the stream rejects with.
   */
  serveStream(stream: ByteStream, { signal }: ServeOptions = {}): Promise<void> {
    return this.#serve(stream, signal);
  }

  /**
   * Connects to a host that listens at a Unix socket for agents, and serves it; again and again, when the connection ends, until
   * `signal` aborts. The pauses between attempts grow from 0.1 to 30 seconds.
   *
   * Rejects with {@link RefusedError} where the host does not want this agent; anything else is tried again.
   */
  async connect(path: string, options: RegisterOptions = {}): Promise<void> {
    const { signal } = options;
    let pause = LEAST_PAUSE;
    while (!signal?.aborted) {
      const started = Date.now();
      try {
        await this.registerStream(duplexStream(await connectUnix(path)), options);
      } catch (error) {
        if (error instanceof RefusedError) throw error;
        this.#log("host unreachable", error);
      }
      if (Date.now() - started > LONGEST_PAUSE) pause = LEAST_PAUSE;
      // Shortened by up to half, so that many agents do not come at once.
      await paused(pause * (0.5 + Math.random() / 2), signal);
      pause = Math.min(2 * pause, LONGEST_PAUSE);
    }
  }

  /**
   * Registers with a host over a stream of bytes that this agent opened, and serves it until it leaves or `signal` aborts.
   *
   * Rejects with {@link RefusedError}, and as {@link serveStream}.
   */
  registerStream(stream: ByteStream, { token, metadata, signal }: RegisterOptions = {}): Promise<void> {
    return this.#serve(stream, signal, { token: token ?? null, metadata: metadata ?? null });
  }

  /** Tells every host that this agent drains, and waits until it has answered everything. Returns whether it has, in so many milliseconds. */
  async drain(within: number): Promise<boolean> {
    for (const host of this.hosts) {
      host.notify({ kind: "health", state: "draining", inFlight: host.inFlight, drainEtaMs: within });
    }
    const deadline = Date.now() + within;
    const inFlight = (): boolean => this.hosts.some((host) => host.inFlight > 0);
    while (inFlight() && Date.now() < deadline) await paused(Math.min(20, within));
    return !inFlight();
  }

  async #serve(stream: ByteStream, signal?: AbortSignal, registration?: Registration): Promise<void> {
    let connected: Host | undefined;
    const each = <A extends unknown[]>(callbacks: readonly ((...args: A) => void)[], ...args: A): void => {
      for (const callback of callbacks) {
        try {
          callback(...args);
        } catch (error) {
          this.#log("a callback failed", error);
        }
      }
    };
    const callbacks: SessionCallbacks = {
      connected: (host) => {
        connected = host;
        this.#hosts.add(host);
        each(this.#connected, host);
      },
      cancelled: (correlationId, reason) => each(this.#cancelled, correlationId, reason),
      log: this.#log,
    };
    const protocol = new AgentProtocol(this.capabilities, this.#options, this.#log, registration);
    const session = new Session(stream, protocol, this.#handlers, callbacks, this.limits.maxConcurrency);
    try {
      await session.run(this.#handshakeTimeout, signal);
    } finally {
      if (connected !== undefined) this.#hosts.delete(connected);
    }
  }

  #add<K extends EventKind>(kind: K, handler: Handlers[K]): this {
    if (this.#handlers[kind] !== undefined) throw new TypeError(`there is a handler for ${kind} already`);
    this.#handlers[kind] = handler;
    return this;
  }
}

/** Resolves when a signal aborts; without one, never. */
function aborted(signal: AbortSignal | undefined): Promise<void> {
  return new Promise((resolve) => {
    if (signal?.aborted) resolve();
    signal?.addEventListener("abort", () => resolve(), { once: true });
  });
}

function paused(milliseconds: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const done = (): void => {
      clearTimeout(timer);
      signal?.removeEventListener("abort", done);
      resolve();
    };
    const timer = setTimeout(done, milliseconds);
    signal?.addEventListener("abort", done);
    if (signal?.aborted) done();
  });
}
