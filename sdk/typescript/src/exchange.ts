/**
 * What both ends of a call share: a stream of frames whose incoming body is read whole or chunk by chunk, and whose outgoing body waits for room.
 *
 * Bytes that nobody has taken hold the far side back: at most the stream's window of them wait here, 16 KiB for a body that nobody reads.
 */

import { type ChunkSource, chunkBytes } from "./body.js";
import { removeDeadline, type Timed } from "./deadlines.js";
import { HailError } from "./errors.js";
import { copyOf } from "./protocol/byte_queue.js";
import { FRAME_PREFIX, FrameKind, FrameStream, putPrefix } from "./protocol/frames.js";
import { ReceiveQueue } from "./protocol/receive_queue.js";
import type { WheelEntry } from "./protocol/timer_wheel.js";
import { chunkMade } from "./protocol/young_bytes.js";

/** Most bytes of one DATA frame that is queued. */
const MAX_DATA_WRITE = 1024 * 1024;

/** Most bytes of a body that is read whole, where nothing else is said: 64 MiB. */
export const DEFAULT_MAX_BYTES = 64 * 1024 * 1024;

interface Waiter {
  resolve(chunk: Buffer | undefined): void;
  reject(error: unknown): void;
}

const NONE = Buffer.alloc(0);

/** One end of a call. */
export abstract class Exchange extends FrameStream implements Timed {
  due = -1;
  earlier: WheelEntry | undefined = undefined;
  later: WheelEntry | undefined = undefined;

  /** The incoming body has ended, well or not. */
  protected bodyEnded = false;
  /** Why it has not ended well. */
  protected bodyFailure: Error | undefined = undefined;
  /** Bytes of it that have come. */
  protected arrived = 0;
  /** The only piece that waits, as long as it is the only one. */
  #piece: Buffer | undefined = undefined;
  #queue: ReceiveQueue | undefined = undefined;
  #waiters: Waiter[] | undefined = undefined;
  /** It is read whole, up to so many bytes; -1 where it is not. */
  #most = -1;
  #whole: Waiter | undefined = undefined;
  #room: (() => void)[] | undefined = undefined;
  /** Nobody wants what comes. */
  protected unwanted = false;
  #source: ChunkSource | undefined = undefined;

  abstract onDeadline(): void;
  /** A whole body passes its bound. */
  protected abstract onTooLong(most: number): void;

  protected override onBody(bytes: Buffer, start: number, end: number): number {
    const length = end - start;
    this.arrived += length;
    if (this.unwanted) return 0;
    if (this.#most >= 0 && this.arrived > this.#most) {
      this.onTooLong(this.#most);
      return 0;
    }
    const waiter = this.#waiters?.shift();
    if (waiter !== undefined) {
      chunkMade(length);
      waiter.resolve(copyOf(bytes, start, end));
      return 0;
    }
    const piece = this.#piece;
    if (piece !== undefined) {
      this.#piece = undefined;
      this.#queue ??= new ReceiveQueue();
      this.#queue.push(piece, 0, piece.length);
      this.#queue.push(bytes, start, end);
    } else if (this.#queue !== undefined && this.#queue.length > 0) {
      this.#queue.push(bytes, start, end);
    } else {
      this.#piece = copyOf(bytes, start, end);
    }
    return this.#most >= 0 ? 0 : length;
  }

  /** The next chunk; undefined at the end. Rejects with why the body has not ended well, once what came before is read. */
  nextChunk(): Promise<Buffer | undefined> {
    const chunk = this.takeChunk();
    if (chunk !== undefined) return Promise.resolve(chunk);
    if (this.bodyFailure !== undefined) return Promise.reject(this.bodyFailure);
    if (this.bodyEnded) return Promise.resolve(undefined);
    return new Promise((resolve, reject) => {
      this.#waiters ??= [];
      this.#waiters.push({ resolve, reject });
    });
  }

  /** A chunk that is there. */
  protected takeChunk(): Buffer | undefined {
    let chunk = this.#piece;
    if (chunk !== undefined) this.#piece = undefined;
    else chunk = this.#queue?.shift();
    if (chunk !== undefined) {
      chunkMade(chunk.length);
      this.consumed(chunk.length);
    }
    return chunk;
  }

  /** The whole body. Rejects where it is longer than `most` bytes, or has not ended well. */
  wholeBody(most: number): Promise<Buffer> {
    return new Promise((resolve, reject) => {
      this.collect(most, { resolve: (all) => resolve(all ?? NONE), reject });
    });
  }

  /** Has the body read whole, and told to `waiter`. */
  protected collect(most: number, waiter: Waiter): void {
    if (this.#most >= 0) {
      waiter.reject(new HailError("failed_precondition", "the body is read already"));
      return;
    }
    this.#most = most;
    if (this.arrived > most) {
      this.#whole = waiter;
      this.onTooLong(most);
    } else if (this.bodyEnded) {
      this.#tell(waiter);
    } else {
      this.#whole = waiter;
      this.consumed(this.unread);
    }
  }

  /** What waits to be read, as one piece. */
  protected takeRest(): Buffer {
    const only = this.#piece;
    this.#piece = undefined;
    if (only !== undefined) return only;
    return this.#queue === undefined || this.#queue.length === 0 ? NONE : this.#queue.takeAll();
  }

  /** Drops what waits, and what still comes. */
  protected dropBody(): void {
    this.unwanted = true;
    this.#piece = undefined;
    this.#queue?.clear();
  }

  /** The incoming body has ended; tells whoever waits. */
  protected endBody(failure: Error | undefined): void {
    if (this.bodyEnded) return;
    this.bodyEnded = true;
    this.bodyFailure = failure;
    const whole = this.#whole;
    if (whole !== undefined) {
      this.#whole = undefined;
      this.#tell(whole);
    }
    const waiters = this.#waiters;
    if (waiters === undefined) return;
    this.#waiters = undefined;
    for (const waiter of waiters) {
      if (failure === undefined) waiter.resolve(undefined);
      else waiter.reject(failure);
    }
  }

  #tell(waiter: Waiter): void {
    const all = this.takeRest();
    const failure = this.bodyFailure;
    if (failure === undefined) {
      waiter.resolve(all);
      return;
    }
    if (failure instanceof HailError) failure.partial = all;
    waiter.reject(failure);
  }

  // What leaves.

  /** Writes bytes of a body; false where the writer should wait for {@link Exchange.writable}. */
  writeBody(bytes: Buffer): boolean {
    const length = bytes.length;
    if (length === 0) return true;
    chunkMade(length);
    const at = this.mux?.reserve(this, FRAME_PREFIX + length, false) ?? -1;
    if (at >= 0 && this.mux !== undefined) {
      const out = this.mux.output;
      out.set(bytes, putPrefix(out, at, FrameKind.DATA, length));
      return true;
    }
    return this.#queueBody(bytes);
  }

  #queueBody(bytes: Buffer): boolean {
    let room = true;
    for (let at = 0; at < bytes.length; at += MAX_DATA_WRITE) {
      const part = bytes.subarray(at, at + MAX_DATA_WRITE);
      const prefix = Buffer.allocUnsafe(FRAME_PREFIX);
      putPrefix(prefix, 0, FrameKind.DATA, part.length);
      this.write(prefix);
      room = this.write(part);
    }
    return room;
  }

  /** Writes one frame, and the end of the direction after it where `fin` says so. */
  writeFrame(kind: number, payload: Uint8Array, fin: boolean): void {
    const length = FRAME_PREFIX + payload.length;
    const at = this.mux?.reserve(this, length, fin) ?? -1;
    if (at >= 0 && this.mux !== undefined) {
      const out = this.mux.output;
      out.set(payload, putPrefix(out, at, kind, payload.length));
      return;
    }
    const whole = Buffer.allocUnsafe(length);
    whole.set(payload, putPrefix(whole, 0, kind, payload.length));
    this.write(whole);
    if (fin) this.finish();
  }

  /** Resolves once there is room again, or nobody wants more. */
  writable(): Promise<void> {
    if (!this.sendBlocked || !this.isSending) return Promise.resolve();
    return new Promise((resolve) => {
      this.#room ??= [];
      this.#room.push(resolve);
    });
  }

  override onWritable(): void {
    const room = this.#room;
    if (room === undefined) return;
    this.#room = undefined;
    for (const tell of room) tell();
  }

  /** Sends chunks as fast as the far side takes them, and gives whether all were sent. Rejects with what the source throws. */
  protected async pump(source: ChunkSource): Promise<boolean> {
    this.#source = source;
    while (this.isSending) {
      const chunk = await source.next();
      if (chunk === undefined) {
        this.#source = undefined;
        return this.isSending;
      }
      if (!this.writeBody(chunkBytes(chunk))) await this.writable();
    }
    this.leaveSource();
    return false;
  }

  /** Nobody wants what is sent any more. */
  protected leaveSource(): void {
    const source = this.#source;
    this.#source = undefined;
    source?.leave();
    this.onWritable();
  }

  /** Lets go of the timer. */
  protected endTimer(): void {
    removeDeadline(this);
  }
}
