/** The multiplexer against its vectors, against itself, and against peers that break its rules. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { Mux } from "../src/protocol/mux.js";
import { checkLength, MuxKind, preface, putMuxHeader } from "../src/protocol/mux_frame.js";
import { StreamTable } from "../src/protocol/stream_table.js";
import { hex, NotingStream, settle, Side, vectors } from "./support.js";

interface MuxVectors {
  readonly prefaces: { role: "client" | "server"; hex: string }[];
  readonly refused_prefaces: { name: string; hex: string; error: string }[];
  readonly frames: {
    name: string;
    hex: string;
    frame: {
      kind: keyof typeof MuxKind;
      stream?: number;
      priority?: number;
      fin?: boolean;
      payload?: string;
      code?: number;
      credit?: number;
      reason?: string;
    };
  }[];
  readonly skipped: { name: string; hex: string }[];
  readonly refused: { name: string; hex: string; error: string }[];
  readonly conversation: { what: string; hex: string }[];
}

const file = vectors("mux.json") as MuxVectors;

/** A side that has read the other's preface, and whose own is out of the way. */
function greeted(role: "client" | "server"): Side {
  const side = new Side(role);
  side.output();
  side.mux.receive(preface(role === "client" ? "server" : "client"));
  return side;
}

/** A frame's bytes. */
function frameBytes(kind: number, flags: number, stream: number, payload: Buffer): Buffer {
  const bytes = Buffer.alloc(12 + payload.length);
  payload.copy(bytes, putMuxHeader(bytes, 0, kind, flags, payload.length, stream));
  return bytes;
}

function data(stream: number, payload: Buffer, fin = false): Buffer {
  return frameBytes(MuxKind.DATA, fin ? 0x11 : 0x10, stream, payload);
}

function number(value: number): Buffer {
  const bytes = Buffer.alloc(4);
  bytes.writeUInt32BE(value);
  return bytes;
}

/** What a peer's bytes end the connection with, whichever way they are cut. */
function refusal(role: "client" | "server", bytes: Buffer, step: number): string | undefined {
  const side = greeted(role);
  for (let at = 0; at < bytes.length; at += step) side.mux.receive(bytes.subarray(at, at + step));
  const ended = side.mux.ended;
  if (ended === undefined) return undefined;
  const words = ended.by === "protocol" ? ended.reason : ended.by;
  const farewell = side.output();
  assert.equal(farewell[0], MuxKind.CLOSE);
  assert.equal(farewell.readUInt32BE(12), 3);
  assert.equal(farewell.toString("utf8", 16), words);
  return words;
}

test("prefaces are as the vectors say, and others are refused without a farewell as soon as they are seen", () => {
  for (const { role, hex: bytes } of file.prefaces) assert.equal(preface(role).toString("hex"), bytes);
  for (const refused of file.refused_prefaces) {
    const side = new Side("server");
    side.output();
    side.mux.receive(hex(refused.hex));
    const ended = side.mux.ended;
    assert.equal(ended?.by === "protocol" ? ended.reason : "", refused.error, refused.name);
    assert.equal(side.output().length, 0);
  }
  const early = new Side("client");
  early.mux.receive(Buffer.from("hailmuX"));
  assert.equal(early.mux.ended?.by, "protocol");
  const later = new Side("client");
  later.mux.receive(hex("6861696c6d75782f010953ff"));
  assert.equal(later.mux.ended, undefined, "a higher minor version and another reserved byte");
});

test("frames are written as the vectors say", () => {
  for (const { name, hex: bytes, frame } of file.frames) {
    const kind = MuxKind[frame.kind];
    const flags = ((frame.priority ?? 0) << 4) | (frame.fin === true ? 1 : 0);
    const parts: Buffer[] = [];
    if (frame.code !== undefined) parts.push(number(frame.code));
    if (frame.credit !== undefined) parts.push(number(frame.credit));
    if (frame.payload !== undefined) parts.push(hex(frame.payload));
    if (frame.reason !== undefined) parts.push(Buffer.from(frame.reason));
    const payload = Buffer.concat(parts);
    checkLength(kind, payload.length);
    assert.equal(frameBytes(kind, flags, frame.stream ?? 0, payload).toString("hex"), bytes, name);
  }
});

test("frames are read as the vectors say", () => {
  for (const { name, hex: bytes, frame } of file.frames) {
    if (frame.stream === 9007199254740991) {
      // It would be the 2^52th stream of a connection; that its number is read exactly shows in what is said of it.
      assert.equal(refusal("server", hex(bytes), 1), "stream 9007199254740991 was never opened", name);
      continue;
    }
    const side = greeted((frame.stream ?? 1) % 2 === 1 ? "server" : "client");
    // Whatever came before on streams with lower numbers.
    for (let id = (frame.stream ?? 1) % 2 === 1 ? 1 : 2; id < (frame.stream ?? 0); id += 2) side.mux.receive(data(id, Buffer.from("x")));
    side.mux.receive(hex(bytes));
    const stream = side.accepted.find(({ id }) => id === frame.stream);
    switch (frame.kind) {
      case "DATA":
        assert.equal(stream?.bytes.toString("hex"), frame.payload, name);
        assert.deepEqual(stream?.notes, frame.fin === true ? ["fin"] : [], name);
        assert.equal(stream.priority, frame.priority, name);
        break;
      case "RESET":
        assert.deepEqual(stream?.notes, [`reset ${frame.code}`], name);
        break;
      case "STOP":
        assert.deepEqual(stream?.notes, [`stop ${frame.code}`], name);
        break;
      case "WINDOW":
        assert.equal(stream?.sendCredit, 16_384 + (frame.credit ?? 0), name);
        break;
      case "PING":
        assert.equal(side.output().toString("hex"), `0700000800000000000000000${frame.payload?.slice(1)}`, name);
        break;
      case "CLOSE":
        assert.deepEqual(side.mux.ended, { by: "peer", code: frame.code, reason: frame.reason }, name);
        break;
      default:
        assert.equal(side.mux.ended, undefined, name);
    }
  }
});

test("unknown frames are skipped, and what breaks the rules ends the connection with the words of the vectors, wherever it is cut", () => {
  for (const { name, hex: bytes } of file.skipped) {
    for (let step = 1; step <= bytes.length / 2; step += 1) assert.equal(refusal("server", hex(bytes), step), undefined, name);
  }
  for (const refused of file.refused) {
    const bytes = hex(refused.hex);
    for (let step = 1; step <= bytes.length; step += 1) assert.equal(refusal("server", bytes, step), refused.error, refused.name);
  }
});

test("the conversation of the vectors is written and understood", () => {
  const client = new Side("client");
  const server = new Side("server");
  const stream = new NotingStream();
  client.mux.open(stream, 2);
  stream.write(Buffer.from("ping"));
  stream.finish();
  const asked = client.output();
  assert.equal(asked.toString("hex"), file.conversation[0]?.hex);
  server.mux.receive(asked);
  const [heard] = server.accepted;
  assert.equal(heard?.bytes.toString(), "ping");
  heard.write(Buffer.from("pong"));
  heard.finish();
  const answered = server.output();
  assert.equal(answered.toString("hex"), file.conversation[1]?.hex);
  client.mux.receive(answered);
  assert.equal(stream.bytes.toString(), "pong");
  client.mux.close(0, "done");
  assert.equal(client.output().toString("hex"), file.conversation[2]?.hex);
});

test("bytes past a window, and past a window that has grown, end the connection", () => {
  const bytes = Buffer.concat([data(1, Buffer.alloc(16_384)), data(1, Buffer.alloc(1))]);
  const side = greeted("server");
  side.takes = false;
  side.mux.receive(bytes);
  assert.equal(side.mux.ended?.by === "protocol" ? side.mux.ended.reason : "", "stream 1 exceeded its window");
});

test("more streams than granted end the connection, and those that are over are granted again in batches", () => {
  const side = greeted("server");
  for (let at = 0; at < 4096; at += 1) side.mux.receive(data(2 * at + 1, Buffer.from("x"), true));
  assert.equal(side.mux.ended, undefined);
  assert.equal(side.output().length, 0, "nothing is granted while all are held");
  for (const stream of side.accepted.slice(0, 10)) {
    stream.finish();
    stream.release();
  }
  const granted = side.output();
  assert.equal(granted.subarray(granted.length - 16).toString("hex"), frameBytes(MuxKind.STREAMS, 0, 0, number(10)).toString("hex"));
  for (let at = 4096; at < 4106; at += 1) side.mux.receive(data(2 * at + 1, Buffer.from("x")));
  assert.equal(side.mux.ended, undefined);
  side.mux.receive(data(2 * 4106 + 1, Buffer.from("x")));
  assert.deepEqual(side.mux.ended, { by: "protocol", reason: "stream 8213 exceeds the number of streams granted" });
});

test("a peer that fills every window of every stream makes this side hold no more than is promised", () => {
  const side = greeted("server");
  side.takes = false;
  for (let at = 0; at < 4096; at += 1) side.mux.receive(data(2 * at + 1, Buffer.alloc(16_384)));
  const held = side.accepted.reduce((sum, stream) => sum + stream.unread, 0);
  assert.equal(held, 4096 * 16_384);
  assert.equal(side.mux.pooled, 0);
  side.mux.receive(data(1, Buffer.alloc(1)));
  assert.equal(side.mux.ended?.by, "protocol");
});

test("windows grow while their readers read, share the pool, and never exceed it", () => {
  const client = new Side("client");
  const server = new Side("server");
  settle(client, server);
  const streams = Array.from({ length: 20 }, () => new NotingStream());
  for (const stream of streams) {
    client.mux.open(stream, 1);
    stream.write(Buffer.alloc(4 * 1024 * 1024, 7));
  }
  settle(client, server);
  for (const stream of server.accepted) assert.equal(stream.bytes.length, 4 * 1024 * 1024);
  assert.ok(server.mux.pooled > 4 * 1024 * 1024, "they have grown");
  assert.ok(server.mux.pooled <= 8 * 1024 * 1024, "and not beyond the pool");
  for (const stream of streams) stream.finish();
  settle(client, server);
  for (const stream of server.accepted) {
    stream.finish();
    stream.release();
  }
  for (const stream of streams) stream.release();
  settle(client, server);
  assert.equal(server.mux.pooled, 0);
  assert.equal(server.mux.liveStreams, 0);
  assert.equal(client.mux.liveStreams, 0);
});

test("a table of streams finds each by its number, whether it goes soon or lasts", () => {
  const table = new StreamTable();
  const model = new Map<number, NotingStream>();
  let next = 1;
  let seed = 1;
  const draw = (below: number): number => {
    seed = (seed * 1_103_515_245 + 12_345) % 0x8000_0000;
    return Math.floor((seed / 0x8000_0000) * below);
  };
  for (let step = 0; step < 20_000; step += 1) {
    // It grows to hundreds, and shrinks again; every hundredth stays for long.
    const most = step % 8000 < 4000 ? 20 : 700;
    const stream = new NotingStream();
    stream.id = next;
    next += 1 + draw(2);
    table.add(stream);
    model.set(stream.id, stream);
    while (model.size > most) {
      const ids = [...model.keys()].slice(0, 5);
      const id = ids[draw(ids.length)] ?? 0;
      const gone = model.get(id);
      if (gone === undefined) break;
      if (id % 100 === 0 && draw(1000) > 0) {
        // It comes last from now on.
        model.delete(id);
        model.set(id, gone);
        continue;
      }
      model.delete(id);
      table.delete(gone);
      table.delete(gone);
      assert.equal(table.get(id), undefined);
    }
    assert.equal(table.size, model.size);
  }
  for (const [id, stream] of model) assert.equal(table.get(id), stream);
  assert.equal(table.get(next), undefined);
  const all = table.takeAll().map(({ id }) => id);
  assert.deepEqual(all, [...model.keys()].sort((one, other) => one - other));
  assert.deepEqual([table.size, table.takeAll().length, table.get(all[0] ?? 1)], [0, 0, undefined]);
});

test("a reader that does not read stops its own writer and no other", () => {
  const client = new Side("client");
  const server = new Side("server");
  server.takes = false;
  const slow = new NotingStream();
  client.mux.open(slow, 1);
  assert.equal(slow.write(Buffer.alloc(300_000)), false, "its writer waits");
  settle(client, server);
  server.takes = true;
  const other = new NotingStream();
  client.mux.open(other, 1);
  other.write(Buffer.alloc(1_000_000));
  settle(client, server);
  assert.equal(server.accepted[0]?.bytes.length, 16_384);
  assert.equal(server.accepted[1]?.bytes.length, 1_000_000);
  server.accepted[0].consumed(16_384);
  settle(client, server);
  assert.equal(server.accepted[0].bytes.length, 16_384 + 65_536, "what was taken is granted, fourfold");
});

test("where the way out is full each priority has its share, and what is critical does not wait for bulk", () => {
  const client = greeted("client");
  const streams = [0, 1, 2, 3].map((priority) => {
    const stream = new NotingStream();
    client.mux.open(stream, priority);
    stream.sendCredit = 1e9;
    stream.write(Buffer.alloc(20_000_000));
    return stream;
  });
  let sent = 0;
  while (sent < 8_000_000) {
    const output = client.mux.takeOutput();
    assert.ok(output);
    sent += output.length;
    client.mux.written();
  }
  const shares = streams.map((stream) => (20_000_000 - stream.queued) / sent);
  for (const [priority, fair] of [0.03, 0.09, 0.24, 0.64].entries()) {
    assert.ok(Math.abs((shares[priority] ?? 0) - fair) < 0.02, `${priority} has ${shares[priority]}`);
  }
  for (const stream of streams.slice(0, 3)) assert.ok(stream.queued > 0);
  streams[3]?.cancel();
  for (let turn = 0; turn < 100; turn += 1) {
    client.mux.takeOutput();
    client.mux.written();
  }
  const urgent = new NotingStream();
  client.mux.open(urgent, 3);
  urgent.write(Buffer.from("now"));
  const output = client.mux.takeOutput();
  assert.equal(output?.toString("utf8", 12, 15), "now");
});

test("a stream that is stopped is reset with the same code, and what is queued is dropped", () => {
  const client = new Side("client");
  const server = new Side("server");
  const stream = new NotingStream();
  client.mux.open(stream, 1);
  stream.write(Buffer.alloc(100_000));
  server.takes = false;
  settle(client, server);
  const [heard] = server.accepted;
  heard?.stop(8);
  settle(client, server);
  assert.deepEqual(stream.notes, ["stop 8"]);
  assert.equal(stream.queued, 0);
  assert.equal(heard?.recvState, 2);
  assert.deepEqual(heard.notes, [], "who stops is not told of the reset");
});

test("a stream that is given up before its first frame was never there", () => {
  const client = greeted("client");
  const stream = new NotingStream();
  client.mux.open(stream, 1);
  stream.write(Buffer.from("x"));
  stream.cancel();
  stream.release();
  assert.equal(client.output().length, 0);
  assert.equal(client.mux.liveStreams, 0);
  const next = new NotingStream();
  client.mux.open(next, 1);
  next.write(Buffer.from("y"));
  assert.equal(client.output().readUInt32BE(8), 1, "numbers have no gap");
});

test("streams beyond what is granted wait for it, and those that are given up meanwhile are passed over", () => {
  const client = new Side("client");
  const server = new Side("server");
  settle(client, server);
  const streams = Array.from({ length: 5000 }, () => {
    const stream = new NotingStream();
    client.mux.open(stream, 1);
    stream.write(Buffer.from("x"));
    stream.finish();
    return stream;
  });
  settle(client, server);
  assert.equal(server.accepted.length, 4096);
  streams[4096]?.cancel();
  streams[4096]?.release();
  for (const stream of server.accepted) {
    stream.finish();
    stream.release();
  }
  settle(client, server);
  assert.equal(server.accepted.length, 4999);
  assert.equal(client.mux.ended, undefined);
});

test("after the end everything is told, once", () => {
  const client = new Side("client");
  const stream = new NotingStream();
  client.mux.open(stream, 1);
  client.mux.lost("gone");
  client.mux.lost("gone again");
  assert.deepEqual(stream.notes, ["lost"]);
  assert.ok(client.hasEnded);
  const late = new NotingStream();
  client.mux.open(late, 1);
  assert.deepEqual(late.notes, ["lost"]);
});

test("garbage never throws and never grows: random bytes, and frames with random fields", () => {
  let seed = 1;
  const draw = (below: number): number => {
    seed = (Math.imul(seed, 1_103_515_245) + 12_345) & 0x7fff_ffff;
    return seed % below;
  };
  for (let round = 0; round < 2000; round += 1) {
    const side = round % 2 === 0 ? new Side("client") : greeted("client");
    for (let part = 0; part < 20 && side.mux.ended === undefined; part += 1) {
      const payload = Buffer.from(Array.from({ length: draw(40) }, () => draw(256)));
      const bytes = draw(3) === 0 ? payload : frameBytes(draw(11), draw(256), draw(6), payload);
      const step = 1 + draw(30);
      for (let at = 0; at < bytes.length; at += step) side.mux.receive(bytes.subarray(at, at + step));
      for (const stream of side.accepted) if (draw(4) === 0) stream.cancel();
      side.output();
    }
    assert.ok(side.mux instanceof Mux);
  }
});
