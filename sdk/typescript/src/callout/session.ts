/**
 * Runs an agent's handlers for the events of one connection, over any stream of bytes.
 *
 * Events of one *queue* run one after the other, in their order: the head and body of a request, those of its response, and
 * everything else of a request are a queue each. Queues run side by side, up to the agent's `maxConcurrency`; events beyond wait,
 * first come first served. While too much waits, nothing more is read.
 *
 * A cancel aborts the signal of a request's handlers, drops what waits behind them, and nothing of it is answered; so does the end
 * of the connection. A handler that throws blocks its request with 500, and nothing else.
 */
import { type Decision, allow, block } from "./decisions.js";
import type { EventKind, EventMap } from "./events.js";
import { MAX_FRAME } from "./frames.js";
import { WINDOW } from "./handshake.js";
import type { Notice } from "./notices.js";
import type { AgentProtocol, Asked, CancelReason, Cancelled, Opened } from "./protocol.js";

/** Events of one connection that may wait, beside what the window of each running queue lets come. */
export const MAX_WAITING = 1024;

/** Notices of one connection that may wait to be written. */
export const MAX_NOTICES = 64;

const MAX_WINDOW_CHUNKS = WINDOW / (4 << 10);
const MAX_UNWRITTEN = 1 << 20;
/** Milliseconds that the last answers may take to be written. */
const FLUSH_WITHIN = 5_000;

/** A stream of bytes both ways, such as a socket or a raw stream of the overlay. */
export interface ByteStream {
  /** Some bytes, however many; `null` at the end. */
  read(): Promise<Uint8Array | null>;
  /** Writes all of it, and waits while the other side does not take it. */
  write(data: Uint8Array): Promise<void>;
  /** Ends both directions. A read or write that waits ends too. */
  close(): Promise<void> | void;
}

/** What an agent does with one kind of event. `signal` aborts when the host no longer waits. */
export type Handler<K extends EventKind> = (event: EventMap[K], signal: AbortSignal) => Decision | Promise<Decision>;

/** An agent's handlers. */
export type Handlers = { [K in EventKind]?: Handler<K> };

/** The connection did not begin in time. */
export class HandshakeTimeoutError extends Error {
  /** `HandshakeTimeoutError`. */
  override readonly name: string = "HandshakeTimeoutError";
}

/** A connected host. */
export interface Host {
  /** What it calls itself. */
  readonly id: string;
  /** Its version. */
  readonly version: string;
  /** What its handshake brought for this agent. */
  readonly config: unknown;
  /** Whether the connection has ended. */
  readonly isClosed: boolean;
  /** Events that are not answered yet. */
  readonly inFlight: number;
  /** Tells the host something unasked. Returns whether it will be written: not when the connection has ended, or 64 wait. */
  notify(notice: Notice): boolean;
}

/** Whom a session tells what is not an event. */
export interface SessionCallbacks {
  connected(host: Host): void;
  cancelled(correlationId: string, reason: CancelReason): void;
  log(what: string, error: unknown): void;
}

/** The events of one queue behind the one that runs. */
interface Queue {
  readonly waiting: Asked[];
  readonly abort: AbortController;
}

/** One connection of an agent. */
export class Session {
  #isClosed = false;
  #inFlight = 0;
  #running = 0;
  #waiting = 0;
  #waitingBytes = 0;
  #notices = 0;
  readonly #queues = new Map<string, Queue>();
  #backlog: Asked[] = [];
  readonly #unwritten = new Wakeup();
  readonly #written = new Wakeup();
  readonly #room = new Wakeup();
  readonly #opened = new Wakeup();
  readonly #max: number;

  constructor(
    private readonly stream: ByteStream,
    private readonly protocol: AgentProtocol,
    private readonly handlers: Handlers,
    private readonly callbacks: SessionCallbacks,
    maxConcurrency: number,
  ) {
    this.#max = maxConcurrency === 0 ? Infinity : maxConcurrency;
    // An agent that opened the connection speaks first.
    this.#unwritten.wake();
  }

  /** Serves until the host leaves, or the signal aborts. Rejects with what ended it otherwise. */
  async run(handshakeTimeout: number, signal?: AbortSignal): Promise<void> {
    const reading = settled(this.read());
    const writing = settled(this.write());
    let stop = (): void => undefined;
    const stopped = new Promise<void>((resolve) => (stop = resolve));
    signal?.addEventListener("abort", stop);
    if (signal?.aborted) stop();
    let timer: NodeJS.Timeout | undefined;
    const late = new Promise<"late">((resolve) => (timer = setTimeout(resolve, handshakeTimeout, "late")));
    try {
      const first = await Promise.race([reading, writing, stopped, this.#opened.wait(), late]);
      clearTimeout(timer);
      if (first === "late") throw new HandshakeTimeoutError(`no handshake within ${handshakeTimeout} ms`);
      await Promise.race([reading, writing, stopped]);
      // What was answered before the end, a refusal for one, still goes out.
      if (reading.isDone && !writing.isDone) await this.flush(writing);
      const error = reading.error ?? writing.error;
      if (error !== undefined) throw error;
    } finally {
      clearTimeout(timer);
      signal?.removeEventListener("abort", stop);
      this.#isClosed = true;
      this.#backlog = [];
      for (const queue of this.#queues.values()) queue.abort.abort();
      for (const wakeup of [this.#unwritten, this.#room]) wakeup.wake();
      await this.stream.close();
    }
  }

  private async read(): Promise<void> {
    for (;;) {
      const data = await this.stream.read();
      if (data === null || this.#isClosed) return;
      try {
        for (const came of this.protocol.receive(data)) {
          if (came.type === "asked") {
            this.#inFlight += 1;
            this.begin(came);
          } else if (came.type === "cancelled") {
            this.cancel(came);
          } else {
            this.#opened.wake();
            this.callbacks.connected(this.host(came));
          }
        }
      } finally {
        this.#unwritten.wake();
      }
      while (!this.hasRoom()) await this.#room.wait();
    }
  }

  private async write(): Promise<void> {
    for (;;) {
      await this.#unwritten.wait();
      while (this.protocol.outputSize > 0 && !this.#isClosed) {
        this.#notices = 0;
        await this.stream.write(this.protocol.takeOutput());
        this.#room.wake();
      }
      this.#written.wake();
      if (this.#isClosed) return;
    }
  }

  /** Waits until everything is written, or the writer has ended, or it takes too long. */
  private async flush(writing: Settled): Promise<void> {
    this.#written.reset();
    this.#unwritten.wake();
    let timer: NodeJS.Timeout | undefined;
    const late = new Promise<void>((resolve) => (timer = setTimeout(resolve, FLUSH_WITHIN)));
    await Promise.race([writing, this.#written.wait(), late]);
    clearTimeout(timer);
  }

  private host(opened: Opened): Host {
    const isClosed = (): boolean => this.#isClosed;
    const inFlight = (): number => this.#inFlight;
    return {
      id: opened.hostId,
      version: opened.hostVersion,
      config: opened.config,
      get isClosed() {
        return isClosed();
      },
      get inFlight() {
        return inFlight();
      },
      notify: (notice) => this.notify(notice),
    };
  }

  private notify(notice: Notice): boolean {
    if (this.#isClosed || this.#notices >= MAX_NOTICES) return false;
    this.protocol.notify(notice);
    this.#notices += 1;
    this.#unwritten.wake();
    return true;
  }

  /** Whether more should be read; the end of the connection is read in any case. */
  private hasRoom(): boolean {
    const queues = this.#queues.size;
    return (
      this.#isClosed ||
      // A request that is slow fills its own window, and leaves others their room.
      (this.#waiting < MAX_WAITING + MAX_WINDOW_CHUNKS * queues &&
        this.#waitingBytes <= MAX_FRAME + WINDOW * queues &&
        this.protocol.outputSize <= MAX_UNWRITTEN)
    );
  }

  private begin(asked: Asked): void {
    const key = keyOf(asked);
    const queue = this.#queues.get(key);
    if (queue !== undefined) this.wait(asked, queue.waiting);
    else if (this.#running >= this.#max) this.wait(asked, this.#backlog);
    else this.start(key, asked);
  }

  private wait(asked: Asked, where: Asked[]): void {
    where.push(asked);
    this.#waiting += 1;
    this.#waitingBytes += asked.size;
  }

  private waited(asked: Asked): Asked {
    this.#waiting -= 1;
    this.#waitingBytes -= asked.size;
    this.#room.wake();
    return asked;
  }

  private start(key: string, asked: Asked): void {
    const queue: Queue = { waiting: [], abort: new AbortController() };
    const pending = this.handle(asked, queue.abort.signal);
    if (pending === undefined) return;
    this.#queues.set(key, queue);
    this.#running += 1;
    void this.runQueue(key, queue, asked, pending).finally(() => {
      this.#running -= 1;
      while (this.#running < this.#max && !this.#isClosed) {
        const next = this.#backlog.shift();
        if (next === undefined) break;
        this.begin(this.waited(next));
      }
      this.#room.wake();
    });
  }

  /** Calls an event's handler. What it says at once is answered; otherwise it is returned to be awaited. */
  private handle(asked: Asked, signal: AbortSignal): Promise<Decision> | undefined {
    try {
      const result = this.call(asked, signal);
      if (isPromise(result)) return result;
      this.answer(asked, result);
    } catch (error) {
      this.failed(asked, error);
    }
    return undefined;
  }

  private call({ event }: Asked, signal: AbortSignal): Decision | Promise<Decision> {
    const { handlers } = this;
    switch (event.kind) {
      case "requestHeaders":
        return handlers.requestHeaders?.(event.event, signal) ?? absent(handlers.requestHeaders);
      case "requestBody":
        return handlers.requestBody?.(event.event, signal) ?? absent(handlers.requestBody);
      case "responseHeaders":
        return handlers.responseHeaders?.(event.event, signal) ?? absent(handlers.responseHeaders);
      case "responseBody":
        return handlers.responseBody?.(event.event, signal) ?? absent(handlers.responseBody);
      case "requestComplete":
        return handlers.requestComplete?.(event.event, signal) ?? absent(handlers.requestComplete);
      case "websocketFrame":
        return handlers.websocketFrame?.(event.event, signal) ?? absent(handlers.websocketFrame);
      case "guardrail":
        return handlers.guardrail?.(event.event, signal) ?? absent(handlers.guardrail);
      case "configure":
        return handlers.configure?.(event.event, signal) ?? absent(handlers.configure);
    }
  }

  private async runQueue(key: string, queue: Queue, first: Asked, result: Promise<Decision>): Promise<void> {
    const { signal } = queue.abort;
    let asked = first;
    let pending: Promise<Decision> | undefined = result;
    for (;;) {
      if (pending !== undefined) {
        try {
          const decision: Decision = await pending;
          if (signal.aborted) return;
          this.answer(asked, decision);
        } catch (error) {
          if (signal.aborted) return;
          this.failed(asked, error);
        }
      }
      const next = queue.waiting.shift();
      if (next === undefined) {
        this.#queues.delete(key);
        return;
      }
      asked = this.waited(next);
      pending = this.handle(asked, signal);
    }
  }

  private answer(asked: Asked, decision: unknown): void {
    if (!isDecision(decision)) throw new TypeError(`the handler of ${asked.event.kind} returned no decision`);
    this.#inFlight -= 1;
    this.protocol.answer(asked, decision);
    this.#unwritten.wake();
  }

  /** Answers for a handler that threw: whoever cannot decide lets nothing pass. */
  private failed(asked: Asked, error: unknown): void {
    this.callbacks.log(`the handler of ${asked.event.kind} failed; its request is blocked`, error);
    this.answer(asked, block(500));
  }

  private cancel({ correlationId, reason }: Cancelled): void {
    for (const part of PARTS) {
      const key = part + correlationId;
      const queue = this.#queues.get(key);
      if (queue === undefined) continue;
      this.#queues.delete(key);
      this.#inFlight -= 1 + queue.waiting.length;
      for (const asked of queue.waiting) this.waited(asked);
      queue.waiting.length = 0;
      queue.abort.abort();
    }
    const dropped = this.#backlog.filter((asked) => asked.correlationId === correlationId);
    if (dropped.length > 0) {
      this.#backlog = this.#backlog.filter((asked) => asked.correlationId !== correlationId);
      this.#inFlight -= dropped.length;
      for (const asked of dropped) this.waited(asked);
    }
    this.callbacks.cancelled(correlationId, reason);
  }
}

/** Wakes whoever waits; a wake-up that nobody waited for is kept. */
class Wakeup {
  #isSet = false;
  #waiting: (() => void)[] = [];

  wake(): void {
    this.#isSet = true;
    const waiting = this.#waiting;
    this.#waiting = [];
    for (const resolve of waiting) resolve();
  }

  reset(): void {
    this.#isSet = false;
  }

  /** Waits for a wake-up, and takes it. */
  async wait(): Promise<void> {
    if (!this.#isSet) await new Promise<void>((resolve) => this.#waiting.push(resolve));
    this.#isSet = false;
  }
}

/** A promise that never rejects, and says how the work ended. */
interface Settled extends Promise<void> {
  isDone: boolean;
  error: Error | undefined;
}

function settled(work: Promise<void>): Settled {
  const state: { isDone: boolean; error: Error | undefined } = { isDone: false, error: undefined };
  const done = work.then(
    () => {
      watched.isDone = true;
    },
    (error: unknown) => {
      watched.isDone = true;
      watched.error = error instanceof Error ? error : new Error(String(error));
    },
  );
  const watched: Settled = Object.assign(done, state);
  return watched;
}

/** An event that nobody asked for passes; a handler that returned nothing does not. */
function absent(handler: unknown): Decision {
  if (handler === undefined) return allow();
  throw new TypeError("the handler returned nothing");
}

function isPromise(result: Decision | Promise<Decision>): result is Promise<Decision> {
  return typeof (result as Partial<Promise<Decision>>).then === "function";
}

function isDecision(value: unknown): value is Decision {
  return typeof value === "object" && value !== null && "verdict" in value;
}

const PARTS = ["0", "1", "2"] as const;

function keyOf({ event, correlationId }: Asked): string {
  switch (event.kind) {
    case "requestHeaders":
    case "requestBody":
      return PARTS[0] + correlationId;
    case "responseHeaders":
    case "responseBody":
      return PARTS[1] + correlationId;
    default:
      return PARTS[2] + correlationId;
  }
}
