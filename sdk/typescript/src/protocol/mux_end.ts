/**
 * How a connection ends, and who is told.
 */

import { MUX_MAX_REASON } from "./limits.js";
import { MUX_HEADER, MuxKind, putMuxHeader } from "./mux_frame.js";
import type { MuxStream } from "./mux_stream.js";
import { cut } from "./status.js";

/** Why a connection has ended. */
export type ConnectionEnd =
  /** The peer has closed it, with a code and a reason. */
  | { readonly by: "peer"; readonly code: number; readonly reason: string }
  /** It was closed here. */
  | { readonly by: "here" }
  /** The byte stream has ended or failed. */
  | { readonly by: "lost"; readonly reason: string }
  /** The peer broke the rules. */
  | { readonly by: "protocol"; readonly reason: string };

/** Whoever drives a multiplexer. */
export interface MuxOwner {
  /** The peer opens a stream. */
  accept(): MuxStream;
  /** There is something to write where there was nothing. */
  wake(): void;
  /** The connection has ended; streams were told before. */
  ended(): void;
}

/** What closes a connection; a longer reason is cut. */
export function closeFrame(code: number, reason: string): Buffer {
  const words = Buffer.from(cut(reason, MUX_MAX_REASON));
  const bytes = Buffer.alloc(MUX_HEADER + 4 + words.length);
  const at = putMuxHeader(bytes, 0, MuxKind.CLOSE, 0, 4 + words.length, 0);
  words.copy(bytes, bytes.writeUInt32BE(code, at));
  return bytes;
}

