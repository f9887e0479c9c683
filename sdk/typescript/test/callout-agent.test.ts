/** An agent and its host: decisions, order, cancels, notices, registration and drain. */
import assert from "node:assert/strict";
import { mkdtempSync, rmSync } from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";

import {
  Agent,
  type AgentOptions,
  type Decision,
  EVENT_KINDS,
  HandshakeError,
  Headers,
  type Host,
  RefusedError,
  allow,
  block,
  found,
  replace,
  setHeader,
} from "../src/callout/index.js";
import { type Value, type Writable, pack, toJson, unpack } from "../src/callout/codec.js";
import { RawHost, chunk, framed, head, settle } from "./callout-support.js";

function quiet(options: AgentOptions = {}): Agent {
  return new Agent("a", { log: () => undefined, ...options });
}

function never(): Promise<Decision> {
  return new Promise(() => undefined);
}

test("the agent decides in either encoding", async () => {
  for (const [offered, chosen] of [
    [["cbor", "msgpack", "json"], "msgpack"],
    [["json", "msgpack"], "json"],
    [[], "json"],
  ] as const) {
    const agent = new Agent("no-admin", { version: "1.2" }).requestHeaders(async (request) => {
      await Promise.resolve();
      if (request.uri.startsWith("/admin")) return block(403, "no", { headers: { "x-why": "admin" } });
      return allow({ requestHeaders: [setHeader("x-by", request.headers.get("HOST") ?? "")] });
    });
    const host = new RawHost(agent);
    const welcome = await host.greet({ supported_encodings: offered });
    assert.equal(welcome["encoding"], chosen);
    assert.equal(welcome["x_hailwire"], undefined);
    const capabilities = welcome["capabilities"] as Record<string, unknown>;
    assert.deepEqual([capabilities["agent_id"], capabilities["supported_events"]], ["no-admin", [1]]);
    const encode = (value: object): object => (chosen === "msgpack" ? pack(value as Writable & object) : value);
    const decode = (payload: Buffer): unknown =>
      chosen === "msgpack" ? toJson(unpack(payload)) : JSON.parse(payload.toString());
    await host.send(0x10, encode(head("c1", "/admin")));
    assert.deepEqual(decode(await host.payload(0x20)), {
      version: 2,
      decision: { block: { status: 403, body: "no", headers: { "x-why": "admin" } } },
      audit: { custom: { correlation_id: "c1" } },
    });
    await host.send(0x10, encode(head("c2")));
    assert.deepEqual(decode(await host.payload(0x20)), {
      version: 2,
      decision: "allow",
      request_headers: [{ set: { name: "x-by", value: "example.com" } }],
      audit: { custom: { correlation_id: "c2" } },
    });
    // Nobody asked for it, and nobody has to decide it.
    await host.send(0x17, encode({ correlation_id: "c3", config: null }));
    const said = decode(await host.payload(0x20)) as { decision: unknown };
    assert.equal(said.decision, "allow");
    await host.close();
  }
});

test("every event reaches its handler", async () => {
  const seen: string[] = [];
  const note = (kind: string) => (): Decision => {
    seen.push(kind);
    return allow();
  };
  const agent = new Agent("all")
    .requestHeaders(note("requestHeaders"))
    .requestBody(note("requestBody"))
    .responseHeaders(note("responseHeaders"))
    .responseBody(note("responseBody"))
    .requestComplete(note("requestComplete"))
    .websocketFrame(note("websocketFrame"))
    .guardrail(note("guardrail"))
    .configure(note("configure"));
  const host = new RawHost(agent);
  const { capabilities } = (await host.greet()) as { capabilities: Record<string, Record<string, unknown>> };
  assert.deepEqual(capabilities["supported_events"], [1, 2, 3, 4, 5, 6, 7, 8]);
  assert.ok(Object.values(capabilities["features"] ?? {}).every(Boolean));
  const complete = { status: 200, duration_ms: 1, request_body_size: 2, response_body_size: 3, upstream_attempts: 1 };
  const frame = { opcode: "text", data: "aGk=", client_to_server: true, frame_index: 0, fin: true, client_ip: "::1" };
  const events = [
    head("c"),
    chunk("c", "aGk="),
    { correlation_id: "c", status: 200, headers: {} },
    chunk("c"),
    { correlation_id: "c", ...complete },
    { correlation_id: "c", ...frame },
    { correlation_id: "c", inspection_type: "pii_detection", content: "hello" },
    { correlation_id: "c", config: { a: [1] } },
  ];
  for (const [index, event] of events.entries()) {
    await host.send(0x10 + index, event);
    assert.equal((await host.answer()).decision, "allow");
  }
  assert.deepEqual(seen, EVENT_KINDS);
  await host.close();
});

test("chunks of one body come in order, and other requests pass them", async () => {
  const order: number[] = [];
  let goOn = (): void => undefined;
  const waits = new Promise<void>((resolve) => (goOn = resolve));
  const agent = quiet()
    .requestBody(async (piece) => {
      if (piece.index === 0) await waits;
      order.push(piece.index);
      return allow({ needsMore: !piece.isLast });
    })
    .requestHeaders(() => allow());
  const host = new RawHost(agent);
  await host.greet();
  for (const index of [0, 1, 2]) await host.send(0x11, chunk("slow", "YQ==", { isLast: index === 2, index }));
  await host.send(0x10, head("quick"));
  assert.equal((await host.answer()).audit.custom["correlation_id"], "quick");
  assert.deepEqual(order, []);
  goOn();
  const more: boolean[] = [];
  for (let count = 0; count < 3; count += 1) more.push((await host.answer()).needs_more ?? false);
  assert.deepEqual([order, more], [[0, 1, 2], [true, true, false]]);
  await host.close();
});

test("a cancel aborts the handler, and nothing is answered", async () => {
  const ended: string[] = [];
  const told: [string, string][] = [];
  const agent = quiet()
    .requestHeaders((request, signal) => {
      if (request.correlationId !== "slow") return allow();
      return new Promise((resolve) =>
        signal.addEventListener("abort", () => {
          ended.push(request.correlationId);
          resolve(block());
        }),
      );
    })
    .cancelled((id, reason) => told.push([id, reason]));
  const host = new RawHost(agent);
  await host.greet();
  await host.send(0x10, head("slow"));
  await host.send(0x11, chunk("slow"));
  await settle();
  await host.send(0x40, { correlation_id: "slow", reason: 1, timestamp_ms: 0 });
  await host.send(0x10, head("other"));
  assert.equal((await host.answer()).audit.custom["correlation_id"], "other");
  assert.deepEqual([ended, told], [["slow"], [["slow", "timeout"]]]);
  assert.equal(agent.hosts[0]?.inFlight, 0);
  await host.close();
});

test("the end of a connection aborts its handlers", async () => {
  let ended = false;
  const agent = quiet().requestHeaders((_, signal) => {
    signal.addEventListener("abort", () => (ended = true));
    return never();
  });
  const host = new RawHost(agent);
  await host.greet();
  await host.send(0x10, head("c1"));
  await settle();
  await host.close();
  assert.ok(ended);
  assert.deepEqual(agent.hosts, []);
});

test("whoever cannot decide blocks", async () => {
  const agent = quiet().requestHeaders(async (request) => {
    await Promise.resolve();
    switch (request.uri) {
      case "/throws":
        throw new Error("x");
      case "/nothing":
        return undefined as unknown as Decision;
      case "/surrogate":
        return block(403, "\ud800");
      case "/not-a-number":
        return allow({ audit: { custom: { x: NaN } } });
      case "/no-form":
        return allow({ audit: { custom: { x: (() => 1) as unknown as string } } });
      default:
        return block(403, "x".repeat(16 << 20));
    }
  });
  const host = new RawHost(agent);
  await host.greet();
  for (const uri of ["throws", "nothing", "surrogate", "not-a-number", "no-form", "too-large"]) {
    await host.send(0x10, head(uri, `/${uri}`));
    const { decision, audit } = await host.answer();
    assert.ok(decision !== "allow" && decision.block.status === 500, uri);
    assert.equal(audit.custom["correlation_id"], uri);
  }
  await host.close();
});

test("a handler that is not async and throws or says nothing blocks too", async () => {
  const agent = quiet().requestHeaders((request) => {
    if (request.uri === "/throws") throw new Error("x");
    return undefined as unknown as Decision;
  });
  const host = new RawHost(agent);
  await host.greet();
  for (const uri of ["/throws", "/nothing"]) {
    await host.send(0x10, head("c", uri));
    assert.notEqual((await host.answer()).decision, "allow");
  }
  await host.close();
});

test("nothing of the agent's hides the id", async () => {
  const agent = quiet().requestHeaders(() => allow({ audit: { custom: { correlation_id: "other", n: 1 } } }));
  const host = new RawHost(agent);
  await host.greet();
  await host.send(0x10, head("c1"));
  assert.deepEqual((await host.answer()).audit.custom, { correlation_id: "c1", n: 1 });
  await host.close();
});

test("values of a header that comes twice are put together", async () => {
  let seen = new Headers();
  const agent = quiet().requestHeaders((request) => {
    seen = request.headers;
    return allow();
  });
  const host = new RawHost(agent);
  await host.greet();
  const twice = '{"X-A":["1"],"x-b":["2"],"X-A":["3"],"x-a":["4"]}';
  await host.send(0x10, JSON.stringify(head("c1")).replace('{"host":["example.com"]}', twice));
  await host.answer();
  assert.deepEqual(seen.toJSON(), { "X-A": ["1", "3", "4"], "x-b": ["2"] });
  assert.deepEqual(seen.getAll("x-A"), ["1", "3", "4"]);
  assert.equal(seen.get("X-B"), "2");
  await host.close();
});

test("between two of ours chunks travel as they are", async () => {
  const agent = quiet().responseBody((piece) => {
    const text = piece.data.toString();
    return text === "pass" ? allow() : replace(piece, text.toUpperCase(), { needsMore: !piece.isLast });
  });
  const host = new RawHost(agent);
  const welcome = await host.greet({
    x_hailwire: { raw_bodies: true, window: 65536 },
    supported_encodings: ["msgpack", "json"],
  });
  assert.deepEqual(welcome["x_hailwire"], { raw_bodies: true, window: 65536 });
  const number = Buffer.of(0, 0, 1, 0, 0, 0, 0, 0);
  const fixed = Buffer.concat([number, Buffer.of(1, 0, 0, 0, 3), Buffer.alloc(16), Buffer.from("\0\x02c1")]);
  await host.send(0x52, Buffer.concat([fixed, Buffer.from("abc")]));
  const answer = await host.payload(0x53);
  const length = answer.readUInt32BE(13);
  assert.deepEqual(answer.subarray(0, 13), Buffer.concat([number, Buffer.of(1, 0, 0, 0, 3)]));
  const said: Value = unpack(answer.subarray(17, 17 + length));
  const expected = { version: 2, decision: "allow", audit: { custom: { correlation_id: "" } }, needs_more: true };
  assert.deepEqual(toJson(said), expected);
  assert.equal(answer.subarray(17 + length).toString(), "ABC");
  await host.send(0x52, Buffer.concat([fixed, Buffer.from("pass")]));
  assert.deepEqual(await host.payload(0x51), number);
  await host.close();
});

test("an agent registers with its host, and is refused by another", async () => {
  const agent = quiet().requestHeaders(() => allow());
  const answer = { success: true, error: null, proxy_id: "h", proxy_version: "1", connection_id: "1" };
  let host = new RawHost(agent, { registers: true });
  const said = JSON.parse((await host.payload(0x01)).toString()) as Record<string, unknown>;
  assert.deepEqual([said["agent_id"], said["auth_token"]], ["a", "secret"]);
  const offered = { raw_bodies: true, window: 512 << 10, encodings: ["msgpack", "json"] };
  assert.deepEqual(said["x_hailwire"], offered);
  await host.send(0x02, { ...answer, x_hailwire: { raw_bodies: false, encodings: ["msgpack"] } });
  await host.send(0x10, pack(head("c1") as Writable & object));
  const answered = toJson(unpack(await host.payload(0x20))) as { decision: unknown };
  assert.equal(answered.decision, "allow");
  await host.close();

  host = new RawHost(agent, { registers: true });
  await host.payload(0x01);
  await host.send(0x02, { ...answer, success: false, error: "not you" });
  const refusal = await host.served;
  assert.ok(refusal instanceof RefusedError && refusal.message === "not you");

  host = new RawHost(quiet({ encodings: ["json"] }), { registers: true });
  await host.payload(0x01);
  await host.send(0x02, { ...answer, x_hailwire: { encodings: ["msgpack"] } });
  assert.ok((await host.served) instanceof HandshakeError);
});

test("an agent connects again after its host was away", async () => {
  const folder = mkdtempSync(join(tmpdir(), "callout-"));
  const path = join(folder, "host.sock");
  const abort = new AbortController();
  const connecting = quiet().connect(path, { signal: abort.signal });
  let registered = 0;
  let twice = (): void => undefined;
  const done = new Promise<void>((resolve) => (twice = resolve));
  const server = createServer((socket) => {
    socket.once("data", (data) => {
      registered += data.readUInt8(4);
      socket.destroy();
      if (registered === 2) twice();
    });
  });
  server.listen(path);
  await done;
  abort.abort();
  await connecting;
  server.close();
  rmSync(folder, { recursive: true });
});

test("a host is told what the agent wants, and no more than may wait", async () => {
  const met: Host[] = [];
  const agent = quiet().connected((host) => met.push(host));
  const host = new RawHost(agent);
  await host.greet({ config: { mode: "strict" } });
  const [connected] = met;
  assert.ok(connected);
  assert.deepEqual([connected.id, connected.version, connected.config], ["h", "1", { mode: "strict" }]);
  agent.notify({ kind: "health", state: "degraded", inFlight: 3 });
  assert.equal((await host.payload(0x30)).toString(), '{"state":2,"in_flight":3}');
  assert.ok(connected.notify({ kind: "flow", action: "pause", correlationId: "c1" }));
  assert.equal((await host.payload(0x33)).toString(), '{"action":1,"correlation_id":"c1"}');
  const accepted = Array.from({ length: 100 }, () => connected.notify({ kind: "flow", action: "resume" }));
  assert.equal(accepted.filter(Boolean).length, 64);
  for (let count = 0; count < 64; count += 1) await host.payload(0x33);
  await host.close();
  assert.ok(connected.isClosed && !connected.notify({ kind: "flow", action: "resume" }));
});

test("a drain waits until all is answered", async () => {
  let goOn = (): void => undefined;
  const waits = new Promise<void>((resolve) => (goOn = resolve));
  const agent = quiet().requestHeaders(async () => {
    await waits;
    return allow();
  });
  const host = new RawHost(agent);
  await host.greet();
  await host.send(0x10, head("c1"));
  await settle();
  assert.equal(await agent.drain(10), false);
  assert.equal((await host.payload(0x30)).toString(), '{"state":3,"in_flight":1,"drain_eta_ms":10}');
  const draining = agent.drain(10_000);
  goOn();
  assert.equal(await draining, true);
  await host.close();
});

test("frames are read however they are cut", async () => {
  const host = new RawHost(quiet().requestHeaders(() => allow()));
  const all = Buffer.concat([
    framed(0x01, { supported_versions: [2], proxy_id: "p", proxy_version: "1" }),
    framed(0x10, head("c1")),
    framed(0x10, head("c2")),
  ]);
  for (const byte of all) await host.stream.write(Buffer.of(byte));
  await host.payload(0x02);
  assert.equal((await host.answer()).audit.custom["correlation_id"], "c1");
  assert.equal((await host.answer()).audit.custom["correlation_id"], "c2");
  await host.close();
});

test("findings travel as text", () => {
  const findings = [{ category: "ssn", description: "a number", severity: "high", span: { start: 3, end: 9 } }] as const;
  const { routingMetadata } = found({ detected: true, confidence: 0.9, findings, redacted: "my *" });
  assert.deepEqual(JSON.parse(routingMetadata?.["guardrail_response"] ?? ""), {
    detected: true,
    confidence: 0.9,
    detections: findings,
    redacted_content: "my *",
  });
});

test("a name that no host could write is refused", () => {
  for (const name of ["", "a b", "ä", "x".repeat(65)]) assert.throws(() => new Agent(name), /name/);
  const agent = quiet().configure(() => allow());
  assert.throws(() => agent.configure(() => allow()), /already/);
});
