/**
 * Frames: what travels over a connection.
 *
 * ```text
 * u32 big-endian   length of type and payload together: 1 to 16,777,216
 * u8               type
 * bytes            payload
 * ```
 *
 * Another length ends the connection. Between two of Hailwire four more types are spoken once the handshake has agreed on them
 * (`spec/callout-extensions.md`): events and answers that have numbers, and chunks of bodies as the bytes that they are.
 */
import { DecodeError, type Encoding } from "./codec.js";
import { type Decision, encodeDecision, saysNothing } from "./decisions.js";
import { type BodyChunk, type EventKind, eventKind } from "./events.js";

/** The greatest length, of type and payload together. */
export const MAX_FRAME = 16 << 20;

/** The types of frames that a connection itself needs. */
export const FrameType = {
  Handshake: 0x01,
  HandshakeAnswer: 0x02,
  Answer: 0x20,
  Cancel: 0x40,
  Ping: 0x41,
  Pong: 0x42,
  NumberedEvent: 0x50,
  NumberedAnswer: 0x51,
  NumberedChunk: 0x52,
  NumberedAnswerData: 0x53,
} as const;

const OTHERS: ReadonlySet<number> = new Set([0x01, 0x02, 0x20, 0x30, 0x31, 0x32, 0x33, 0x40, 0x41, 0x42]);

/** Whether every peer knows a type. */
export function isKnownType(code: number): boolean {
  return OTHERS.has(code) || eventKind(code) !== undefined;
}

/** The other side does not speak the protocol: the connection ends. */
export class ProtocolError extends Error {
  /** `ProtocolError`. */
  override readonly name: string = "ProtocolError";
}

/** Bytes that arrived, until they are whole frames. Holds at most one frame, and what one read brought after it. */
export class FrameBuffer {
  #parts: Buffer[] = [];
  #size = 0;

  /** Appends what was read. */
  feed(data: Uint8Array): void {
    this.#parts.push(Buffer.from(data.buffer, data.byteOffset, data.byteLength));
    this.#size += data.byteLength;
  }

  /** Takes the type and payload of the first whole frame. Throws {@link ProtocolError} for a length that cannot be. */
  next(): [number, Buffer] | undefined {
    if (this.#size < 4) return undefined;
    let first = this.#parts[0];
    if (first === undefined || first.length < 4) first = this.#joined();
    const length = first.readUInt32BE(0);
    if (length < 1 || length > MAX_FRAME) {
      throw new ProtocolError(`invalid frame length ${length}: must be 1 to 16,777,216`);
    }
    if (this.#size < 4 + length) return undefined;
    // Parts are joined once for each frame, however many reads it took.
    if (first.length < 4 + length) first = this.#joined();
    this.#size -= 4 + length;
    if (first.length === 4 + length) this.#parts.shift();
    else this.#parts[0] = first.subarray(4 + length);
    return [first.readUInt8(4), first.subarray(5, 4 + length)];
  }

  #joined(): Buffer {
    const joined = Buffer.concat(this.#parts, this.#size);
    this.#parts = [joined];
    return joined;
  }
}

/** A frame. Throws `RangeError` for a payload that is too large. */
export function frame(code: number, ...payload: readonly Uint8Array[]): Buffer {
  const length = payload.reduce((sum, part) => sum + part.byteLength, 1);
  if (length > MAX_FRAME) throw new RangeError(`payload of ${length - 1} bytes is too large: at most 16,777,215`);
  const head = Buffer.alloc(5);
  head.writeUInt32BE(length, 0);
  head.writeUInt8(code, 4);
  return Buffer.concat([head, ...payload], 4 + length);
}

/** The number of an event or chunk, as the bytes that its answer repeats. Throws {@link DecodeError}: whose it is cannot be known. */
export function takeNumber(payload: Buffer): Buffer {
  if (payload.length < 8) throw new DecodeError("truncated frame");
  return payload.subarray(0, 8);
}

/** The kind and the payload of an event after its number. Throws {@link DecodeError}. */
export function takeEventHead(payload: Buffer): [EventKind, Buffer] {
  const kind = payload.length < 9 ? undefined : eventKind(payload.readUInt8(8));
  if (kind === undefined) throw new DecodeError("truncated frame, or unknown event");
  return [kind, payload.subarray(9)];
}

const OF_RESPONSE = 1;
const LAST = 2;
const SIZED = 4;
/** Bytes of a chunk's frame before its id. */
const CHUNK_HEAD = 31;

/** A chunk of a body, as the bytes that it is. Throws {@link DecodeError}. */
export function takeChunk(payload: Buffer): BodyChunk {
  if (payload.length < CHUNK_HEAD) throw new DecodeError("truncated frame");
  const flags = payload.readUInt8(8);
  if ((flags & ~(OF_RESPONSE | LAST | SIZED)) !== 0) throw new DecodeError(`unknown flags ${flags}`);
  const start = CHUNK_HEAD + payload.readUInt16BE(29);
  if (payload.length < start) throw new DecodeError("truncated id");
  let correlationId: string;
  try {
    correlationId = UTF8.decode(payload.subarray(CHUNK_HEAD, start));
  } catch {
    throw new DecodeError("id is not UTF-8");
  }
  return {
    correlationId,
    data: payload.subarray(start),
    isLast: (flags & LAST) !== 0,
    totalSize: (flags & SIZED) === 0 ? null : Number(payload.readBigUInt64BE(21)),
    index: payload.readUInt32BE(9),
    transferred: Number(payload.readBigUInt64BE(13)),
    ofResponse: (flags & OF_RESPONSE) !== 0,
  };
}

/** The frame of an answer. Throws `TypeError` or `RangeError` for what has no form on the wire. */
export function answerFrame(correlationId: string, decision: Decision, encoding: Encoding): Buffer {
  return frame(FrameType.Answer, encodeDecision(correlationId, decision, encoding));
}

/** The frame of an answer to an event with a number. Throws as {@link answerFrame}. */
export function numberedAnswerFrame(number: Uint8Array, decision: Decision, encoding: Encoding): Buffer {
  const { requestBody, responseBody, ...rest } = decision;
  const mutation = requestBody === undefined ? responseBody : responseBody === undefined ? requestBody : undefined;
  if (mutation === undefined || mutation.data === null) {
    const said = saysNothing(decision) ? Buffer.alloc(0) : encodeDecision("", decision, encoding);
    return frame(FrameType.NumberedAnswer, number, said);
  }
  const said = saysNothing(rest) ? Buffer.alloc(0) : encodeDecision("", rest, encoding);
  const head = Buffer.alloc(9);
  head.writeUInt8(responseBody === undefined ? 0 : OF_RESPONSE, 0);
  head.writeUInt32BE(mutation.index, 1);
  head.writeUInt32BE(said.length, 5);
  return frame(FrameType.NumberedAnswerData, number, head, said, mutation.data);
}

const UTF8 = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });
