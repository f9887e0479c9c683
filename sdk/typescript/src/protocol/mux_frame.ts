/**
 * Bytes of the multiplexer: the preface, headers of frames, and how a peer can break the rules (`spec/mux.md`).
 */

import { MAX_DATAGRAM, MUX_MAX_DATA, MUX_MAX_REASON } from "./limits.js";

/** Bytes of the preface. */
export const PREFACE = 12;

/** Bytes of a frame's header. */
export const MUX_HEADER = 12;

/** Kinds of frames of the multiplexer. */
export const MuxKind = { DATA: 1, RESET: 2, STOP: 3, WINDOW: 4, STREAMS: 5, PING: 6, PONG: 7, DATAGRAM: 8, CLOSE: 9 } as const;

/** The flag of the last DATA of a direction. */
export const FIN = 0x01;

const MAGIC = Buffer.from("hailmux/", "latin1");
const CLIENT = 0x43;
const SERVER = 0x53;
const MAJOR = 1;
const MINOR = 0;
const NAMES = ["", "DATA", "RESET", "STOP", "WINDOW", "STREAMS", "PING", "PONG", "DATAGRAM", "CLOSE"];
const LEAST = [0, 0, 4, 4, 4, 4, 8, 8, 0, 4];
const MOST = [0, MUX_MAX_DATA, 4, 4, 4, 4, 8, 8, MAX_DATAGRAM, 4 + MUX_MAX_REASON];

/** Which end of the byte stream this is: who connected is the client. */
export type MuxRole = "client" | "server";

/** How a peer broke the rules of the multiplexer; the connection ends with it. */
export class MuxError extends Error {
  override readonly name = "MuxError";
}

/** The twelve bytes that a side writes first. */
export function preface(role: MuxRole): Buffer {
  const letter = role === "client" ? CLIENT : SERVER;
  return Buffer.concat([MAGIC, Buffer.from([MAJOR, MINOR, letter, 0])]);
}

/** Checks as much of the peer's preface as is there. Throws {@link MuxError} as soon as it cannot be one. */
export function checkPreface(bytes: Buffer, role: MuxRole): void {
  const magic = Math.min(bytes.length, MAGIC.length);
  if (!bytes.subarray(0, magic).equals(MAGIC.subarray(0, magic))) throw notMux(bytes);
  const theirs = bytes[8];
  if (theirs !== undefined && theirs !== MAJOR) {
    throw new MuxError(`the peer speaks version ${theirs} of the multiplexer, this side version ${MAJOR}`);
  }
  const letter = bytes[10];
  if (letter === undefined) return;
  if (letter !== CLIENT && letter !== SERVER) throw notMux(bytes);
  if ((letter === CLIENT) === (role === "client")) throw new MuxError("both sides took the same role");
}

function notMux(bytes: Buffer): MuxError {
  const began = [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join(" ");
  return new MuxError(`the peer does not speak the hailwire multiplexer, it began with ${began}`);
}

/** Whether this version knows a kind. */
export function isMuxKind(kind: number): boolean {
  return kind >= MuxKind.DATA && kind <= MuxKind.CLOSE;
}

/** Throws {@link MuxError} where a known kind cannot have a payload of this length. */
export function checkLength(kind: number, length: number): void {
  if (length < (LEAST[kind] ?? 0) || length > (MOST[kind] ?? 0)) {
    throw new MuxError(`a frame of kind ${NAMES[kind] ?? kind} cannot have ${length} bytes`);
  }
}

/** Writes the header of a frame at `at`; gives the place after it. */
export function putMuxHeader(out: Buffer, at: number, kind: number, flags: number, length: number, stream: number): number {
  out[at] = kind;
  out[at + 1] = flags;
  out[at + 2] = length >>> 8;
  out[at + 3] = length & 0xff;
  const high = stream > 0xffff_ffff ? Math.floor(stream / 0x1_0000_0000) : 0;
  out.writeUInt32BE(high, at + 4);
  out.writeUInt32BE(stream - high * 0x1_0000_0000, at + 8);
  return at + MUX_HEADER;
}
