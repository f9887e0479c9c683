/** The vectors of the specification: what is written is byte for byte as they say, and what is read is what they say. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { AddressError, nodeIdText, parseAddress, parseAgentName, parseNodeId, parseNodeName } from "../src/protocol/address.js";
import { type FrameError, FrameKind, frame, FrameStream } from "../src/protocol/frames.js";
import {
  type CallHeader,
  decodeAnswerHead,
  decodeCall,
  decodeGoingAway,
  decodeHello,
  decodeRegister,
  EMPTY_CALL,
  encodeAnswerHead,
  encodeCall,
  encodeGoingAway,
  encodeHello,
  encodeRegister,
} from "../src/protocol/headers.js";
import { type AgentOffers, decodeOffers, encodeOffers } from "../src/protocol/offers.js";
import { type Int, MalformedError } from "../src/protocol/msgpack.js";
import { CODE_NAMES, codeFromNumber, decodeStatus, encodeStatus, status, statusText } from "../src/protocol/status.js";
import { decodeRecord, EMPTY_RECORD, encodeRecord, putRecord, RecordReader, type TopicRecord } from "../src/protocol/topic_records.js";
import { hex, vectors } from "./support.js";

type Fields = Record<string, unknown>;

interface Vector {
  readonly name: string;
  readonly type: string;
  readonly fields: Fields;
  readonly bytes: string;
  readonly display?: string;
}

interface Refused {
  readonly name: string;
  readonly type: string;
  readonly bytes: string;
  readonly error: string;
}

interface HeaderVectors {
  readonly vectors: Vector[];
  readonly readable: Vector[];
  readonly refused: Refused[];
}

/** Integers beyond what a number holds exactly lose digits in `JSON.parse`, so the few that there are, are named here. */
const LARGE = new Map<number, bigint>([
  [18446744073709551615, 18446744073709551615n],
  [9223372036854775807, 9223372036854775807n],
  [1234605616436508552, 1234605616436508552n],
]);

function int(value: unknown, otherwise: Int = 0): Int {
  return typeof value === "number" ? (LARGE.get(value) ?? value) : otherwise;
}

const text = (value: unknown): string => (typeof value === "string" ? value : "");
const pairs = (value: unknown): [string, string][] => (value === undefined ? [] : (value as [string, string][]));
const texts = (value: unknown): string[] => (value === undefined ? [] : (value as string[]));

function callOf(fields: Fields): CallHeader {
  return {
    ...EMPTY_CALL,
    to: text(fields["to"]),
    method: text(fields["method"]),
    from: text(fields["from"]),
    type: text(fields["type"]),
    deadlineMs: fields["deadline_ms"] === undefined ? undefined : int(fields["deadline_ms"]),
    priority: Number(int(fields["priority"], 1)),
    idempotencyKey: text(fields["idempotency_key"]),
    traceparent: text(fields["traceparent"]),
    tracestate: text(fields["tracestate"]),
    carrier: text(fields["carrier"]),
    durable: Number(int(fields["durable"])),
    member: int(fields["member"]),
    affinity: text(fields["affinity"]),
    headers: pairs(fields["headers"]),
  };
}

function offersOf(fields: Fields): AgentOffers {
  const agents = (fields["agents"] as Fields[]).map((agent) => {
    const group = (agent["group"] ?? {}) as Fields;
    return {
      name: text(agent["name"]),
      description: text(agent["description"]),
      tags: texts(agent["tags"]),
      version: text(agent["version"]),
      group: { members: Number(int(group["members"])), priority: Number(int(group["priority"])), overflow: Number(int(group["overflow"])) },
    };
  });
  return { agents, number: int(fields["number"]), page: Number(int(fields["page"])), pages: Number(int(fields["pages"])) };
}

function recordOf(fields: Fields): TopicRecord {
  return {
    ...EMPTY_RECORD,
    topic: text(fields["topic"]),
    node: fields["node"] === undefined ? null : text(fields["node"]),
    from: text(fields["from"]),
    contentType: text(fields["content_type"]),
    headers: pairs(fields["headers"]),
    body: Buffer.from(text(fields["body"])),
    sequence: int(fields["sequence"]),
    atMs: int(fields["at_ms"]),
    missed: int(fields["missed"]),
    missedOf: fields["missed_of"] === undefined ? [] : (fields["missed_of"] as [string, number][]),
    refused: texts(fields["refused"]),
    kept: int(fields["kept"]),
    deleted: fields["deleted"] === true,
    ifKept: fields["if_kept"] === undefined ? undefined : int(fields["if_kept"]),
    log: int(fields["log"]),
    reached: fields["reached"] === true,
    away: text(fields["away"]),
    settled: fields["settled"] === true,
  };
}

/** What encodes and decodes each type. */
const CODECS: Record<string, { of(fields: Fields): unknown; encode(value: never): Buffer; decode(bytes: Buffer): unknown }> = {
  call: { of: callOf, encode: encodeCall, decode: decodeCall },
  answer_head: {
    of: (fields) => ({ type: text(fields["type"]), headers: pairs(fields["headers"]) }),
    encode: encodeAnswerHead,
    decode: decodeAnswerHead,
  },
  hello: {
    of: (fields) => ({
      versions: fields["versions"] as number[],
      name: text(fields["name"]),
      software: text(fields["software"]),
      instance: int(fields["instance"]),
      features: texts(fields["features"]),
      additional: fields["additional"] === true,
    }),
    encode: encodeHello,
    decode: decodeHello,
  },
  register: {
    of: (fields) => ({
      name: text(fields["name"]),
      description: text(fields["description"]),
      tags: texts(fields["tags"]),
      version: text(fields["version"]),
      maxConcurrency: Number(int(fields["max_concurrency"])),
      socket: text(fields["socket"]),
      schema: text(fields["schema"]),
      priority: Number(int(fields["priority"])),
      overflow: Number(int(fields["overflow"])),
      pinnedMs: int(fields["pinned_ms"]),
      slowStartMs: int(fields["slow_start_ms"]),
      maxWaiting: fields["max_waiting"] as number | undefined,
    }),
    encode: encodeRegister,
    decode: decodeRegister,
  },
  offers: { of: offersOf, encode: encodeOffers, decode: decodeOffers },
  going_away: { of: (fields) => text(fields["reason"]), encode: encodeGoingAway, decode: decodeGoingAway },
  status: {
    of: (fields) => ({
      code: Number(fields["code"]),
      message: text(fields["message"]),
      hint: text(fields["hint"]),
      details: text(fields["details"]),
      retryAfterMs: Number(int(fields["retry_after_ms"])),
    }),
    encode: encodeStatus,
    decode: decodeStatus,
  },
  topic_record: { of: recordOf, encode: encodeRecord, decode: decodeRecord },
};

/** Buffers and arrays of bytes that are equal count as equal. */
function plain(value: unknown): unknown {
  if (value instanceof Uint8Array) return Buffer.from(value).toString("hex");
  if (Array.isArray(value)) return value.map(plain);
  if (typeof value !== "object" || value === null) return value;
  return Object.fromEntries(Object.entries(value).map(([key, member]) => [key, plain(member)]));
}

function check(file: HeaderVectors, wanted: (type: string) => boolean): number {
  let checked = 0;
  for (const vector of file.vectors.filter(({ type }) => wanted(type))) {
    const codec = CODECS[vector.type];
    assert.ok(codec, vector.type);
    const value = codec.of(vector.fields);
    assert.equal(codec.encode(value as never).toString("hex"), vector.bytes, vector.name);
    assert.deepEqual(plain(codec.decode(hex(vector.bytes))), plain(value), vector.name);
    checked += 1;
  }
  for (const vector of file.readable.filter(({ type }) => wanted(type))) {
    const codec = CODECS[vector.type];
    assert.ok(codec, vector.type);
    assert.deepEqual(plain(codec.decode(hex(vector.bytes))), plain(codec.of(vector.fields)), vector.name);
    checked += 1;
  }
  for (const refused of file.refused.filter(({ type }) => wanted(type))) {
    const codec = CODECS[refused.type];
    assert.ok(codec, refused.type);
    assert.throws(
      () => codec.decode(hex(refused.bytes)),
      (error: unknown) => error instanceof MalformedError && error.kind === refused.error,
      refused.name,
    );
    checked += 1;
  }
  return checked;
}

test("headers are byte for byte as the vectors say", () => {
  const file = vectors("headers.json") as HeaderVectors;
  assert.equal(check(file, () => true), file.vectors.length + file.readable.length + file.refused.length);
});

test("statuses are byte for byte as the vectors say", () => {
  const file = vectors("status.json") as HeaderVectors & { codes: { number: number; name: string }[] };
  check(file, () => true);
  for (const { number, name } of file.codes) assert.equal(CODE_NAMES[number], name);
  assert.equal(file.codes.length, CODE_NAMES.length);
  for (const { fields, display } of file.vectors) {
    if (display !== undefined) assert.equal(statusText(status(Number(fields["code"]), text(fields["message"]))), display);
  }
  assert.equal(codeFromNumber(17), 2);
  assert.equal(status(13, "é".repeat(1024)).message, "é".repeat(512));
});

test("records of topics are byte for byte as the vectors say, wherever chunks cut them", () => {
  interface Bodies {
    readonly bodies: { name: string; type: string; records: Fields[]; bytes: string }[];
    readonly refused_bodies: Refused[];
  }
  const file = vectors("topics.json") as HeaderVectors & Bodies;
  // Interests and replays pass between nodes alone.
  assert.ok(check(file, (type) => type === "topic_record") > 18);
  for (const body of file.bodies.filter(({ type }) => type === "topic_record")) {
    const records = body.records.map(recordOf);
    assert.equal(Buffer.concat(records.map(putRecord)).toString("hex"), body.bytes);
    for (let step = 1; step <= body.bytes.length / 2; step += 1) {
      const reader = new RecordReader(decodeRecord);
      const read: TopicRecord[] = [];
      const bytes = hex(body.bytes);
      for (let at = 0; at < bytes.length; at += step) {
        reader.push(bytes.subarray(at, at + step));
        for (let record = reader.next(); record !== undefined; record = reader.next()) read.push(record);
      }
      assert.deepEqual(plain(read), plain(records), `${body.name}, cut every ${step}`);
    }
  }
  for (const refused of file.refused_bodies) {
    const reader = new RecordReader(decodeRecord);
    reader.push(hex(refused.bytes));
    assert.throws(
      () => reader.next(),
      (error: unknown) => error instanceof MalformedError && error.kind === refused.error,
      refused.name,
    );
  }
});

test("names, keys and addresses are as the vectors say", () => {
  interface Addresses {
    readonly keys: { name: string; bytes: string; text: string }[];
    readonly addresses: { name: string; text: string; parts: { agent: string; node_name?: string; node_id?: string } }[];
    readonly refused: { name: string; kind: string; text: string; error: string }[];
  }
  const file = vectors("addresses.json") as Addresses;
  for (const key of file.keys) {
    assert.equal(nodeIdText(hex(key.bytes)), key.text, key.name);
    assert.equal(parseNodeId(key.text).toString("hex"), key.bytes, key.name);
  }
  for (const address of file.addresses) {
    const { agent, node_name: nodeName, node_id: nodeId } = address.parts;
    const parsed = parseAddress(address.text);
    assert.equal(parsed.agent, agent, address.name);
    assert.equal(parsed.nodeName, nodeName, address.name);
    assert.equal(parsed.nodeId === undefined ? undefined : parseNodeId(parsed.nodeId).toString("hex"), nodeId, address.name);
  }
  const parsers: Record<string, (text: string) => unknown> = {
    address: parseAddress,
    agent: parseAgentName,
    node_name: parseNodeName,
    node_id: parseNodeId,
  };
  for (const refused of file.refused) {
    const parse = parsers[refused.kind];
    assert.ok(parse, refused.kind);
    assert.throws(
      () => parse(refused.text),
      (error: unknown) => error instanceof AddressError && error.kind === refused.error,
      refused.name,
    );
  }
});

/** Notes what a direction of a stream means. */
class NotingFrames extends FrameStream {
  readonly events: { kind: number; payload: string }[] = [];
  error: FrameError | undefined;
  finished = false;

  protected override onBody(bytes: Buffer, start: number, end: number): number {
    const payload = bytes.subarray(start, end).toString("hex");
    const last = this.events[this.events.length - 1];
    if (last?.kind === FrameKind.DATA) last.payload += payload;
    else this.events.push({ kind: FrameKind.DATA, payload });
    return 0;
  }

  protected override onFrame(kind: number, bytes: Buffer, start: number, end: number): void {
    this.events.push({ kind, payload: bytes.subarray(start, end).toString("hex") });
  }

  protected override onFinish(): void {
    this.finished = true;
  }

  protected override onMalformed(error: FrameError): void {
    this.error = error;
  }

  override onReset(): void {}
  override onStop(): void {}
  override onLost(): void {}
}

function readFrames(bytes: Buffer, step: number): NotingFrames {
  const stream = new NotingFrames();
  for (let at = 0; at < bytes.length; at += step) stream.onData(bytes, at, Math.min(at + step, bytes.length), false);
  stream.onData(bytes, bytes.length, bytes.length, true);
  return stream;
}

test("frames survive any cut of the stream, and what is refused is refused wherever it is cut", () => {
  interface Frames {
    readonly kinds: Record<string, number>;
    readonly frames: { name: string; kind: keyof typeof FrameKind; payload: string; bytes: string }[];
    readonly streams: { name: string; bytes: string; events: { kind: number; payload: string }[] }[];
    readonly refused: { name: string; bytes: string; error: string }[];
  }
  const file = vectors("frames.json") as Frames;
  assert.deepEqual({ ...FrameKind }, file.kinds);
  for (const one of file.frames) {
    assert.equal(frame(FrameKind[one.kind], hex(one.payload)).toString("hex"), one.bytes, one.name);
  }
  for (const stream of file.streams) {
    const bytes = hex(stream.bytes);
    for (let step = 1; step <= Math.max(1, bytes.length); step += 1) {
      const read = readFrames(bytes, step);
      assert.deepEqual(read.events, stream.events, `${stream.name}, cut every ${step}`);
      assert.ok(read.finished);
    }
  }
  for (const refused of file.refused) {
    const bytes = hex(refused.bytes);
    for (let step = 1; step <= bytes.length; step += 1) {
      assert.equal(readFrames(bytes, step).error?.kind, refused.error, `${refused.name}, cut every ${step}`);
    }
  }
});
