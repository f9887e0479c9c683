/**
 * An inspection agent on the overlay: a proxy on another machine asks it through the raw streams of an ordinary agent.
 */
import { HailError } from "../errors.js";
import type { Request } from "../request.js";
import type { Agent } from "./agent.js";
import { ProtocolError } from "./frames.js";
import { type ByteStream, HandshakeTimeoutError } from "./session.js";

/**
 * A handler for `hail.agent` that answers each raw stream as one connection of a proxy.
 *
 * ```ts
 * import { connect } from "hailwire";
 * import { Agent, onStreams } from "hailwire/callout";
 *
 * const agent = new Agent("waf");
 * const hail = await connect();
 * await hail.agent("waf", onStreams(agent));
 * await hail.run();
 * ```
 *
 * The proxy's machine names it as `hail "waf@laptop"`. A call or a one-way send is refused with `unimplemented`, a proxy that does not speak the
 * protocol with `invalid_argument`, and one that says nothing with `deadline_exceeded`.
 */
export function onStreams(agent: Agent): (request: Request) => AsyncGenerator<Uint8Array, void, undefined> {
  return async function* (request) {
    if (request.kind !== "stream") {
      const options = { hint: "see docs/guide/inspection-agents.md" };
      throw new HailError("unimplemented", "an inspection agent is asked over raw streams", options);
    }
    const handover = new Handover();
    const stop = new AbortController();
    const leave = (): void => stop.abort();
    request.signal.addEventListener("abort", leave);
    if (request.signal.aborted) leave();
    const chunks = request.body[Symbol.asyncIterator]();
    const stream: ByteStream = {
      read: async () => (await chunks.next()).value ?? null,
      write: (data) => handover.put(data),
      close: () => handover.end(),
    };
    let failure: unknown;
    const served = agent.serveStream(stream, { signal: stop.signal }).catch((error: unknown) => {
      failure = error;
      handover.end();
    });
    try {
      for (let data = await handover.take(); data !== undefined; data = await handover.take()) yield data;
    } finally {
      request.signal.removeEventListener("abort", leave);
      stop.abort();
      handover.end();
      await served;
    }
    if (failure !== undefined) throw asStatus(failure);
  };
}

/** How the stream ends where the connection has not ended well. */
function asStatus(failure: unknown): unknown {
  if (failure instanceof ProtocolError) return new HailError("invalid_argument", failure.message, { cause: failure });
  if (failure instanceof HandshakeTimeoutError) return new HailError("deadline_exceeded", failure.message, { cause: failure });
  return failure;
}

/** Hands bytes over from one who writes to one who takes, one piece at a time. */
class Handover {
  #held: Uint8Array | undefined;
  #ended = false;
  #wakeWriter: (() => void) | undefined;
  #wakeTaker: (() => void) | undefined;

  /** Puts bytes down, once those before are taken. Rejects after the end. */
  async put(data: Uint8Array): Promise<void> {
    while (this.#held !== undefined && !this.#ended) await new Promise<void>((resolve) => (this.#wakeWriter = resolve));
    if (this.#ended) throw new Error("the stream has ended");
    this.#held = data;
    this.#wakeTaker?.();
  }

  /** The next bytes; undefined after the last. */
  async take(): Promise<Uint8Array | undefined> {
    while (this.#held === undefined && !this.#ended) await new Promise<void>((resolve) => (this.#wakeTaker = resolve));
    const data = this.#held;
    this.#held = undefined;
    this.#wakeWriter?.();
    return data;
  }

  /** Nothing more comes. */
  end(): void {
    this.#ended = true;
    this.#wakeWriter?.();
    this.#wakeTaker?.();
  }
}
