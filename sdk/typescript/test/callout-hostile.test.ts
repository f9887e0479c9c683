/** What a stranger sends an agent costs it nothing that lasts, and never lets a request pass. */
import assert from "node:assert/strict";
import { existsSync, mkdtempSync, readFileSync, rmSync, statSync, writeFileSync } from "node:fs";
import { type Socket, connect } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";

import {
  Agent,
  type AgentOptions,
  DecodeError,
  EVENT_KINDS,
  HandshakeError,
  HandshakeTimeoutError,
  ProtocolError,
  allow,
  block,
} from "../src/callout/index.js";
import { decode, pack, unpack } from "../src/callout/codec.js";
import { decodeEvent } from "../src/callout/events.js";
import { eventId } from "../src/callout/salvage.js";
import { type ByteStream } from "../src/callout/session.js";
import { RawHost, chunk, framed, head, settle } from "./callout-support.js";

const HELLO = { supported_versions: [2], proxy_id: "p", proxy_version: "1" };

function quiet(options: AgentOptions = {}): Agent {
  return new Agent("a", { log: () => undefined, ...options });
}

function allowing(options: AgentOptions = {}): Agent {
  return quiet(options).requestHeaders(() => allow());
}

test("a frame of a length that cannot be ends the connection", async () => {
  for (const length of [0, (16 << 20) + 1, 0xffffffff]) {
    const host = new RawHost(allowing());
    await host.greet();
    const prefix = Buffer.alloc(4);
    prefix.writeUInt32BE(length);
    await host.stream.write(prefix);
    assert.equal(await host.receive(), null);
    assert.ok((await host.served) instanceof ProtocolError);
  }
});

test("the largest frame is read, in as many reads as it takes", async () => {
  const host = new RawHost(allowing());
  await host.greet();
  const largest = framed(0x41, Buffer.alloc((16 << 20) - 1, "x"));
  for (let at = 0; at < largest.length; at += 1 << 20) await host.stream.write(largest.subarray(at, at + (1 << 20)));
  assert.equal((await host.payload(0x42)).length, (16 << 20) - 1);
  await host.close();
});

test("a type that was not agreed on ends the connection", async () => {
  for (const code of [0x00, 0x03, 0x18, 0x50, 0x52, 0x99, 0xff]) {
    const host = new RawHost(allowing());
    await host.greet();
    await host.send(code, "{}");
    assert.equal(await host.receive(), null, `${code}`);
    assert.ok((await host.served) instanceof ProtocolError);
  }
});

test("garbage in place of a handshake is refused", async () => {
  const cases: [number, string | Buffer, boolean][] = [
    [0x01, Buffer.of(0xff, 0xff), true],
    [0x01, "[]", true],
    [0x01, '{"supported_versions":[2]}', true],
    [0x01, '{"supported_versions":[99],"proxy_id":"p","proxy_version":"1"}', true],
    [0x01, '{"supported_versions":"2","proxy_id":"p","proxy_version":"1"}', true],
    [0x01, "[".repeat(100_000), true],
    [0x10, "{}", false],
    [0x47, "ET / HTTP/1.1", false],
  ];
  for (const [code, payload, isAnswered] of cases) {
    const host = new RawHost(allowing());
    await host.send(code, payload);
    if (isAnswered) assert.match((await host.payload(0x02)).toString(), /"success":false/);
    assert.equal(await host.receive(), null);
    assert.ok((await host.served) instanceof HandshakeError);
  }
});

test("a slow handshake ends the connection", async () => {
  const host = new RawHost(allowing({ handshakeTimeout: 30 }));
  await host.stream.write(Buffer.of(0, 0, 0, 0xff, 1, 0x7b));
  assert.equal(await host.receive(), null);
  assert.ok((await host.served) instanceof HandshakeTimeoutError);
});

test("an event that cannot be read is blocked, and its handler not called", async () => {
  const host = new RawHost(allowing());
  await host.greet();
  for (const payload of [
    '{"metadata":{"correlation_id":"c1"}}',
    '{"correlation_id":"c1","metadata":7}',
    Buffer.from('{"correlation_id":"c1","method":"GET","uri":"\xff"}', "latin1"),
    '{"metadata":{"correlation_id":"c1","client_port":-1},"method":"GE',
    `{"metadata":{"correlation_id":"c1"},"x":${"[".repeat(200)}${"]".repeat(200)}}`,
    '{"metadata":{"correlation_id":"c1"},"x":"\\ud800"}',
  ]) {
    await host.send(0x10, payload);
    const { decision, audit } = await host.answer();
    assert.ok(decision !== "allow" && decision.block.status === 500, payload.toString());
    assert.equal(audit.custom["correlation_id"], "c1");
  }
  await host.close();
});

test("an event of nobody ends the connection", async () => {
  for (const payload of ["", "{", "[]", '{"metadata":{"correlation_id":""}}', Buffer.alloc(64)]) {
    const host = new RawHost(allowing());
    await host.greet();
    await host.send(0x10, payload);
    assert.equal(await host.receive(), null);
    assert.ok((await host.served) instanceof ProtocolError);
  }
});

test("a numbered event that cannot be read is blocked by its number", async () => {
  const host = new RawHost(allowing());
  const welcome = await host.greet({ x_hailwire: { raw_bodies: true, window: 2 ** 30 } });
  assert.deepEqual(welcome["x_hailwire"], { raw_bodies: true, window: 512 << 10 });
  const number = Buffer.of(0, 0, 0, 0, 0, 0, 0, 7);
  const cases: [number, Buffer][] = [
    [0x50, Buffer.alloc(0)],
    [0x50, Buffer.from("\x20{}")],
    [0x50, Buffer.from("\x10{}")],
    [0x52, Buffer.concat([Buffer.of(8), Buffer.alloc(22)])],
    [0x52, Buffer.concat([Buffer.alloc(21), Buffer.from("\x00\x09short")])],
    [0x52, Buffer.concat([Buffer.alloc(21), Buffer.of(0, 1, 0xff)])],
  ];
  for (const [code, payload] of cases) {
    await host.send(code, Buffer.concat([number, payload]));
    const said = await host.payload(0x51);
    assert.deepEqual(said.subarray(0, 8), number);
    assert.match(said.toString(), /"status":500/);
  }
  await host.send(0x50, Buffer.alloc(7));
  assert.equal(await host.receive(), null);
  assert.ok((await host.served) instanceof ProtocolError);
});

test("no more requests run at once than the agent takes, and no more are read than may wait", async () => {
  const started: string[] = [];
  let goOn = (): void => undefined;
  const waits = new Promise<void>((resolve) => (goOn = resolve));
  const agent = quiet({ limits: { maxConcurrency: 4 } }).requestHeaders(async (request) => {
    started.push(request.correlationId);
    await waits;
    return allow();
  });
  const host = new RawHost(agent);
  await host.greet();
  const total = 5_000;
  for (let index = 0; index < total; index += 1) await host.send(0x10, head(`c${index}`));
  await settle();
  assert.deepEqual(started, ["c0", "c1", "c2", "c3"]);
  // What waits is bounded: the rest has not been read.
  const inFlight = agent.hosts[0]?.inFlight ?? 0;
  assert.ok(inFlight > 4 && inFlight < 2_000, `${inFlight}`);
  goOn();
  const answered = new Set<unknown>();
  for (let index = 0; index < total; index += 1) answered.add((await host.answer()).audit.custom["correlation_id"]);
  assert.equal(answered.size, total);
  await host.close();
});

test("what waits is bounded in bytes", async () => {
  const agent = quiet().requestBody(() => new Promise(() => undefined));
  const abort = new AbortController();
  const host = new RawHost(agent, { signal: abort.signal });
  await host.greet({ x_hailwire: { raw_bodies: true, window: 65536 } });
  const piece = Buffer.alloc(8 << 20);
  for (let number = 0; number < 16; number += 1) {
    const fixed = Buffer.alloc(32, 0);
    fixed.writeUInt8(number, 7);
    fixed.writeUInt16BE(1, 29);
    fixed.write("c", 31);
    await host.send(0x52, Buffer.concat([fixed, piece]));
  }
  await settle();
  assert.ok((agent.hosts[0]?.inFlight ?? 99) <= 5);
  abort.abort();
  assert.equal(await host.served, undefined);
});

test("a host that does not read is read no further", async () => {
  let calls = 0;
  const agent = quiet().requestHeaders(() => {
    calls += 1;
    return block(403, "x".repeat(100_000));
  });
  const incoming = [framed(0x01, HELLO)];
  for (let index = 0; index < 1000; index += 1) incoming.push(framed(0x10, head(`c${index}`)));
  const stuffed: ByteStream = {
    read: () => Promise.resolve(incoming.shift() ?? null),
    write: () => new Promise(() => undefined),
    close: () => undefined,
  };
  const abort = new AbortController();
  const served = agent.serveStream(stuffed, { signal: abort.signal });
  await settle();
  assert.ok(calls >= 10 && calls <= 40, `${calls}`);
  abort.abort();
  await served;
});

test("connections beyond the bound are closed, and the file is the user's alone", async () => {
  const folder = mkdtempSync(join(tmpdir(), "callout-"));
  const path = join(folder, "a.sock");
  const abort = new AbortController();
  const agent = quiet({ maxConnections: 2 });
  let serving: Promise<void> | undefined;
  await new Promise<void>((ready) => {
    serving = agent.serve(path, { signal: abort.signal, ready });
  });
  assert.equal(statSync(path).mode & 0o777, 0o600);
  await assert.rejects(agent.serve(path), /somebody listens/);
  const greeted = (): Promise<string> =>
    new Promise((resolve) => {
      const socket: Socket = connect(path, () => socket.write(framed(0x01, HELLO)));
      socket.once("data", () => resolve("answered"));
      socket.once("close", () => resolve("closed"));
      socket.on("error", () => undefined);
    });
  assert.deepEqual([await greeted(), await greeted(), await greeted()], ["answered", "answered", "closed"]);
  abort.abort();
  await serving;
  assert.ok(!existsSync(path));
  const file = join(folder, "file");
  writeFileSync(file, "kept");
  await assert.rejects(agent.serve(file), /no socket/);
  assert.equal(readFileSync(file, "utf8"), "kept");
  rmSync(folder, { recursive: true });
});

test("a cancel that cannot be read and frames of the other direction are passed over", async () => {
  const host = new RawHost(allowing());
  await host.greet();
  for (const [code, payload] of [[0x40, "no"], [0x40, "[]"], [0x20, "{}"], [0x42, "{}"], [0x01, "{}"]] as const) {
    await host.send(code, payload);
  }
  await host.send(0x10, head("c1"));
  assert.equal((await host.answer()).decision, "allow");
  await host.close();
});

test("data that is no base64 is no data", async () => {
  const agent = quiet().requestBody(() => assert.fail("it was called"));
  const host = new RawHost(agent);
  await host.greet();
  for (const data of ["!", "YQ", "YQ==YQ==", "YR==", "Y Q=", "YQ==\n", "_-8="]) {
    await host.send(0x11, chunk("c1", data));
    const { decision } = await host.answer();
    assert.ok(decision !== "allow" && decision.block.status === 500, data);
  }
  await host.close();
});

test("MessagePack that lies is refused", () => {
  const hex = ["", "c1", "ddffffffff", "dfffffffff", "dbffffffff78", "c67fffffff", "a1ff", "81a161", "0101", "dc00"];
  hex.push(`${"91".repeat(129)}c0`, `${"81a161".repeat(129)}c0`, "c9ffffffff00");
  for (const payload of hex) assert.throws(() => unpack(Buffer.from(payload, "hex")), DecodeError, payload);
  unpack(Buffer.from(`${"91".repeat(128)}c0`, "hex"));
});

test("JSON that is none is refused", () => {
  const texts = ["", "\ufeff{}", "{} x", "NaN", "-Infinity", "01", "1.", '"\x01"', '{"a":1,}', '"\\x"', '"', "'a'", "nul"];
  texts.push("[".repeat(129) + "]".repeat(129));
  for (const text of texts) assert.throws(() => decode(Buffer.from(text), "json"), DecodeError, text);
  decode(Buffer.from("[".repeat(128) + "]".repeat(128)), "json");
  assert.deepEqual(decode(Buffer.from(' [ "a\\"\\u00e9\\ud83d\\ude00" , -1.5e2 ] '), "json"), ['a"é😀', -150]);
});

test("no bytes throw anything but a decode error", () => {
  const seeds = [pack(head("c1") as never), pack({ correlation_id: "c1", x: [1.5, -7, null, "raw", 2 ** 40] })];
  for (const seed of seeds) {
    for (let index = 0; index < seed.length; index += 1) {
      for (const byte of [0x00, 0x7f, 0x81, 0x91, 0xa5, 0xc1, 0xc6, 0xd9, 0xdf, 0xff]) {
        const mangled = Buffer.from(seed);
        mangled.writeUInt8(byte, index);
        eventId(mangled, "msgpack");
        for (const kind of EVENT_KINDS) {
          try {
            decodeEvent(kind, mangled, "msgpack");
          } catch (error) {
            assert.ok(error instanceof DecodeError);
          }
        }
      }
    }
  }
});
