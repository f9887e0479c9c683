// @ts-check
/**
 * An agent of Agent Protocol v2 over a Unix socket, with nothing but Node (18 and newer).
 *
 *     node callout-agent.mjs /tmp/agent.sock
 *
 * It runs as it is and is typed: `tsc --noEmit --checkJs` checks it, and `import { serve } from "./callout-agent.mjs"` gives a
 * TypeScript program the types of `callout-agent.d.mts`.
 *
 * Give `serve` an object with a method for each event that you want. Methods of different requests run side by side, those of
 * one request one after the other; `signal` fires when the host no longer waits.
 *
 * On the wire: u32 length (type and payload), u8 type, JSON. The handshake is the first frame in each direction.
 */
import { chmodSync, existsSync, unlinkSync } from "node:fs";
import { createServer } from "node:net";
import { pathToFileURL } from "node:url";

/** @typedef {import("./callout-agent.d.mts").Agent} Agent */
/** @typedef {import("./callout-agent.d.mts").Answer} Answer */

const HELLO = 0x01, WELCOME = 0x02, ANSWER = 0x20, CANCEL = 0x40, PING = 0x41, PONG = 0x42;
/** Type on the wire: method, number in the capabilities. @type {Map<number, [string, number]>} */
const EVENTS = new Map([
  [0x10, ["requestHeaders", 1]], [0x11, ["requestBodyChunk", 2]],
  [0x12, ["responseHeaders", 3]], [0x13, ["responseBodyChunk", 4]],
  [0x14, ["requestComplete", 5]], [0x15, ["websocketFrame", 6]],
  [0x16, ["guardrailInspect", 7]], [0x17, ["configure", 8]],
]);
const MOST = 16 << 20; // bytes of a frame
const AT_ONCE = 100; // requests that are worked on at once

/** Lets it pass. @param {Partial<Answer>} more @returns {Answer} */
export const allow = (more = {}) => ({ decision: "allow", ...more });

/** The host answers with this status. @param {number} status @param {string | null} body @param {Partial<Answer>} more @returns {Answer} */
export const block = (status, body = null, more = {}) =>
  ({ decision: { block: { status, body, headers: null } }, ...more });

/** The bytes of a piece of a body. @param {{ data: string }} event */
export const data = (event) => Buffer.from(event.data, "base64");

class Connection {
  /** Bytes that are no whole frame yet. */
  held = Buffer.alloc(0);
  greeted = false;
  /** For each request the end of its last event, and what ends its work. @type {Map<string, { last: Promise<void>, abort: AbortController }>} */
  requests = new Map();

  /** @param {Agent} agent @param {import("node:net").Socket} socket */
  constructor(agent, socket) {
    this.agent = /** @type {Record<string, any>} */ (agent);
    this.socket = socket;
    socket.on("data", (bytes) => this.read(bytes));
    socket.on("error", () => socket.destroy());
    socket.on("close", () => this.requests.forEach(({ abort }) => abort.abort()));
  }

  /** @param {Buffer} bytes */
  read(bytes) {
    this.held = this.held.length ? Buffer.concat([this.held, bytes]) : bytes;
    while (this.held.length >= 4) {
      const length = this.held.readUInt32BE(0);
      if (length < 1 || length > MOST) return void this.socket.destroy();
      if (this.held.length < 4 + length) return;
      const frame = this.held.subarray(4, 4 + length);
      this.held = this.held.subarray(4 + length);
      try {
        this.frame(frame[0], frame.subarray(1));
      } catch {
        return void this.socket.destroy();
      }
    }
  }

  /** @param {number} kind @param {Buffer} payload */
  frame(kind, payload) {
    const event = EVENTS.get(kind);
    if (!this.greeted && kind !== HELLO) throw new Error("no handshake");
    if (kind === HELLO) {
      this.greeted = true;
      this.write(WELCOME, this.welcome());
    } else if (kind === PING) {
      this.write(PONG, payload);
    } else if (kind === CANCEL) {
      this.requests.get(JSON.parse(payload.toString()).correlation_id)?.abort.abort();
    } else if (event) {
      this.event(event[0], JSON.parse(payload.toString()));
    }
  }

  /** @param {string} name @param {any} event */
  event(name, event) {
    const id = event.correlation_id ?? event.metadata.correlation_id;
    const before = this.requests.get(id);
    const abort = before?.abort ?? new AbortController();
    const last = (before?.last ?? Promise.resolve()).then(() => this.answer(id, name, event, abort.signal));
    const entry = { last, abort };
    this.requests.set(id, entry);
    if (this.requests.size >= AT_ONCE) this.socket.pause(); // reads no further while there is no room
    void last.then(() => {
      if (this.requests.get(id) === entry) this.requests.delete(id);
      if (this.requests.size < AT_ONCE) this.socket.resume();
    });
  }

  /** @param {string} id @param {string} name @param {any} event @param {AbortSignal} signal */
  async answer(id, name, event, signal) {
    /** @type {Answer} */
    let answer;
    try {
      answer = (await this.agent[name]?.(event, signal)) ?? allow();
    } catch (error) {
      console.error(name, error); // whoever cannot decide does not let it pass
      answer = block(500);
    }
    if (signal.aborted) return;
    const audit = { ...answer.audit, custom: { ...answer.audit?.custom, correlation_id: id } };
    this.write(ANSWER, { version: 2, ...answer, audit }); // an answer says to what
  }

  /** @param {number} kind @param {unknown} value */
  write(kind, value) {
    const payload = Buffer.isBuffer(value) ? value : Buffer.from(JSON.stringify(value));
    const frame = Buffer.allocUnsafe(5 + payload.length);
    frame.writeUInt32BE(1 + payload.length, 0);
    frame[4] = kind;
    payload.copy(frame, 5);
    this.socket.write(frame);
  }

  welcome() {
    const wanted = [...EVENTS.values()].filter(([name]) => name in this.agent).map(([, number]) => number);
    const has = (/** @type {number} */ number) => wanted.includes(number);
    return {
      protocol_version: 2, success: true, error: null, encoding: "json",
      capabilities: {
        agent_id: this.agent.name, name: this.agent.name, version: "1", supported_events: wanted,
        features: {
          streaming_body: has(2) || has(4), websocket: has(6), guardrails: has(7), config_push: has(8),
          metrics_export: false, concurrent_requests: AT_ONCE, cancellation: true,
          flow_control: false, health_reporting: false,
        },
        limits: { max_body_size: 10 << 20, max_concurrency: AT_ONCE, preferred_chunk_size: 65536 },
      },
    };
  }
}

/** Serves an agent. @param {Agent} agent @param {string} path */
export function serve(agent, path) {
  if (existsSync(path)) unlinkSync(path);
  const server = createServer((socket) => void new Connection(agent, socket));
  const mask = process.umask(0o177); // only this user may connect
  server.listen(path, () => {
    process.umask(mask);
    chmodSync(path, 0o600);
    console.log("ready");
  });
  return server;
}

/** Blocks /admin, names the agent to the upstream, and stops bodies that carry a secret. @type {Agent} */
const noSecrets = {
  name: "no-secrets",
  async requestHeaders(event) {
    if (event.uri.startsWith("/admin")) {
      return block(403, "not here\n", { audit: { tags: ["admin"], reason_codes: ["ADMIN_PATH"] } });
    }
    return allow({ request_headers: [{ set: { name: "x-checked-by", value: "no-secrets" } }] });
  },
  async requestBodyChunk(event) {
    return data(event).includes("BEGIN PRIVATE KEY") ? block(422) : allow({ needs_more: !event.is_last });
  },
};

if (process.argv[1] && import.meta.url === pathToFileURL(process.argv[1]).href) {
  serve(noSecrets, process.argv[2] ?? "agent.sock");
}
