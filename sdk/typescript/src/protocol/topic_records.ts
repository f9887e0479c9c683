/**
 * Topics, patterns of them, and the records that carry messages (`spec/topics.md`). A record is its length in four bytes, big endian, and a
 * MessagePack map of so many bytes; records follow each other in a body, and chunks may cut them anywhere.
 */

import { isName, nodeIdText, parseNodeId } from "./address.js";
import { ByteQueue } from "./byte_queue.js";
import { type HeaderField, MapWriter, readList, readPairs, readTexts } from "./headers.js";
import { MAX_TOPIC, MAX_TOPIC_BODY, MAX_TOPIC_RECORD, MAX_TOPIC_TOKENS } from "./limits.js";
import { type Int, MalformedError, MsgpackReader, readMap } from "./msgpack.js";

/** A message where it has a topic, else news of the stream. */
export interface TopicRecord {
  readonly topic: string;
  /** The key of a node as text; null for this machine. */
  readonly node: string | null;
  readonly from: string;
  readonly contentType: string;
  readonly headers: readonly HeaderField[];
  readonly body: Uint8Array;
  readonly sequence: Int;
  readonly atMs: Int;
  readonly missed: Int;
  readonly missedOf: readonly (readonly [pattern: string, count: Int])[];
  readonly refused: readonly string[];
  readonly kept: Int;
  readonly deleted: boolean;
  readonly ifKept: Int | undefined;
  readonly log: Int;
  readonly reached: boolean;
  readonly away: string;
  readonly settled: boolean;
}

/** A record that says nothing. */
export const EMPTY_RECORD: TopicRecord = {
  topic: "",
  node: null,
  from: "",
  contentType: "",
  headers: [],
  body: new Uint8Array(0),
  sequence: 0,
  atMs: 0,
  missed: 0,
  missedOf: [],
  refused: [],
  kept: 0,
  deleted: false,
  ifKept: undefined,
  log: 0,
  reached: false,
  away: "",
  settled: false,
};

/** Why a text is no topic; undefined where it is one. */
export function whyNoTopic(text: string): string | undefined {
  return whyNone(text, false);
}

/** Why a text is no pattern; undefined where it is one. */
export function whyNoPattern(text: string): string | undefined {
  return whyNone(text, true);
}

function whyNone(text: string, pattern: boolean): string | undefined {
  const tokens = text.split(".");
  if (Buffer.byteLength(text) > MAX_TOPIC || tokens.length > MAX_TOPIC_TOKENS) {
    return `a topic has at most ${MAX_TOPIC} bytes and ${MAX_TOPIC_TOKENS} tokens`;
  }
  for (const [place, token] of tokens.entries()) {
    if (token === "*" || token === ">") {
      if (!pattern) return "a message is published under one topic, without wildcards";
      if (token === ">" && place + 1 < tokens.length) {
        return "`>` stands for all tokens that follow, so it is the last one of a pattern";
      }
    } else if (!isName(token)) {
      return `\`${token.slice(0, 64)}\` is not a token of a topic: 1 to 64 of a-z 0-9 _ -, beginning and ending with a letter or digit`;
    }
  }
  return undefined;
}

/** Why a record cannot be published; undefined where it can. */
export function whyNotPublished(record: TopicRecord): string | undefined {
  const why = whyNoTopic(record.topic);
  if (why !== undefined) return why;
  return record.body.length > MAX_TOPIC_BODY ? `a message under a topic has at most ${MAX_TOPIC_BODY} bytes` : undefined;
}

/** The map of a record. */
export function encodeRecord(record: TopicRecord): Buffer {
  const map = new MapWriter();
  map.text("topic", record.topic);
  map.bytes("node", record.node === null ? undefined : parseNodeId(record.node));
  map.text("from", record.from);
  map.text("content_type", record.contentType);
  map.pairs("headers", record.headers);
  map.bytes("body", record.body);
  map.uint("sequence", record.sequence, 0);
  map.uint("at_ms", record.atMs, 0);
  map.uint("missed", record.missed, 0);
  map.counts("missed_of", record.missedOf);
  map.texts("refused", record.refused);
  map.uint("kept", record.kept, 0);
  map.yes("deleted", record.deleted);
  map.uint("if_kept", record.ifKept);
  map.uint("log", record.log, 0);
  map.yes("reached", record.reached);
  map.text("away", record.away);
  map.yes("settled", record.settled);
  return map.finish();
}

/** Reads the map of a record. Throws {@link MalformedError}. */
export function decodeRecord(bytes: Buffer, start = 0, end = bytes.length): TopicRecord {
  const reader = new MsgpackReader(bytes, start, end);
  const record: { -readonly [Key in keyof TopicRecord]: TopicRecord[Key] } = { ...EMPTY_RECORD };
  readMap(reader, 1, (key) => {
    switch (key) {
      case "topic":
        record.topic = reader.text();
        return 0;
      case "node":
        record.node = reader.nil() ? null : readKey(reader);
        return 1;
      case "from":
        record.from = reader.text();
        return 2;
      case "content_type":
        record.contentType = reader.text();
        return 3;
      case "headers":
        record.headers = readPairs(reader);
        return 4;
      case "body":
        record.body = reader.bytes();
        return 5;
      case "sequence":
        record.sequence = reader.uint();
        return 6;
      case "at_ms":
        record.atMs = reader.uint();
        return 7;
      case "missed":
        record.missed = reader.uint();
        return 8;
      case "missed_of":
        record.missedOf = readList(reader, () => {
          if (reader.array() !== 2) throw new MalformedError("a count that is no pair");
          return [reader.text(), reader.uint()] as const;
        });
        return 9;
      case "refused":
        record.refused = readTexts(reader);
        return 10;
      case "kept":
        record.kept = reader.uint();
        return 11;
      case "deleted":
        record.deleted = reader.bool();
        return 12;
      case "if_kept":
        record.ifKept = reader.nil() ? undefined : reader.uint();
        return 13;
      case "log":
        record.log = reader.uint();
        return 14;
      case "reached":
        record.reached = reader.bool();
        return 15;
      case "away":
        record.away = reader.text();
        return 16;
      case "settled":
        record.settled = reader.bool();
        return 17;
      default:
        return -1;
    }
  });
  return record;
}

function readKey(reader: MsgpackReader): string {
  const key = reader.bytes();
  if (key.length !== 32) throw new MalformedError("a key of another length than 32 bytes");
  return nodeIdText(key);
}

/** A record with its length ahead. */
export function putRecord(record: TopicRecord): Buffer {
  const map = encodeRecord(record);
  const whole = Buffer.allocUnsafe(4 + map.length);
  whole.writeUInt32BE(map.length, 0);
  map.copy(whole, 4);
  return whole;
}

/** Takes records out of a body that comes in chunks. Holds one record at most, and what came with it. */
export class RecordReader<T = TopicRecord> {
  readonly #queue = new ByteQueue();
  #rest: Buffer = Buffer.alloc(0);

  /** `decode` reads the map of a record; by default {@link decodeRecord}. */
  constructor(private readonly decode: (bytes: Buffer, start: number, end: number) => T) {}

  /** Takes what came. */
  push(chunk: Buffer): void {
    this.#queue.push(chunk);
  }

  /**
   * The next record that is whole; undefined where none is. Throws {@link MalformedError} where it is too long, as soon as its length is there,
   * or is no record; what follows cannot be read then.
   */
  next(): T | undefined {
    const length = this.#have(4) ? this.#rest.readUInt32BE(0) : undefined;
    if (length === undefined) return undefined;
    if (length > MAX_TOPIC_RECORD) throw new MalformedError("header exceeds a bound: length of a record", "bound");
    if (!this.#have(4 + length)) return undefined;
    const record = this.decode(this.#rest, 4, 4 + length);
    this.#rest = this.#rest.subarray(4 + length);
    return record;
  }

  /** Whether so many bytes are there in one piece; pieces are put together once for a record. */
  #have(length: number): boolean {
    if (this.#rest.length >= length) return true;
    if (this.#rest.length + this.#queue.length < length) return false;
    this.#rest = Buffer.concat([this.#rest, this.#queue.takeAll()]);
    return true;
  }
}
