/**
 * One stream of the multiplexer: two directions, each with its own end. Whoever uses streams extends {@link MuxStream} and says what bytes mean;
 * the multiplexer keeps its books in the fields that are marked so.
 */

import { ByteQueue } from "./byte_queue.js";
import { MUX_INITIAL_WINDOW, MUX_SEND_QUEUE } from "./limits.js";
import type { Mux } from "./mux.js";
import { Code } from "./status.js";

/** How far the sending direction is. */
export const SendState = { OPEN: 0, FINISHING: 1, FINISHED: 2, RESETTING: 3, RESET: 4 } as const;

/** How far the receiving direction is. */
export const RecvState = { OPEN: 0, ENDED: 1, RESET: 2 } as const;

/** Whether the peer is told to send no more. */
export const StopState = { NONE: 0, PENDING: 1, SENT: 2 } as const;

/** A stream. */
export abstract class MuxStream {
  /** The multiplexer that it belongs to, once it was opened there. */
  mux: Mux | undefined;
  /** Its number, given with its first frame; 0 before. */
  id = 0;
  /** From 0, low, to 3, critical: of what is sent on it. */
  priority = 1;

  /** @internal Kept by the multiplexer, as all that follows. */
  local = true;
  /** @internal Its place among the streams without a number; -1 where it has one. */
  place = -1;
  /** @internal It waits until the peer grants a stream. */
  waiting = false;
  /** @internal Its user has let go of it. */
  released = false;
  /** @internal */
  controlQueued = false;
  /** @internal */
  dataQueued = false;
  /** @internal */
  sendState: number = SendState.OPEN;
  /** @internal */
  sendCode = 0;
  /** @internal */
  sendCredit = MUX_INITIAL_WINDOW;
  /** @internal */
  sendBlocked = false;
  /** @internal */
  queue: ByteQueue | undefined;
  /** @internal */
  recvState: number = RecvState.OPEN;
  /** @internal */
  recvCredit = MUX_INITIAL_WINDOW;
  /** @internal */
  recvWindow = MUX_INITIAL_WINDOW;
  /** @internal */
  unread = 0;
  /** @internal */
  granting = 0;
  /** @internal */
  stopState: number = StopState.NONE;
  /** @internal */
  stopCode = 0;

  /**
   * Bytes have come; with `fin` they are the last. They are borrowed: who wants to keep them copies them. Gives how many of them nobody has taken
   * yet; for those {@link MuxStream.consumed} is called later.
   */
  abstract onData(bytes: Buffer, start: number, end: number, fin: boolean): number;
  /** The peer gives its direction up. */
  abstract onReset(code: number): void;
  /** The peer wants no more of what is sent here; the direction was reset with the same code. */
  abstract onStop(code: number): void;
  /** The connection has ended; {@link Mux.ended} says why. */
  abstract onLost(): void;
  /** There is room again for a writer that was told to wait. */
  onWritable(): void {}
  /** All that was written has left, with the end of the direction, or it was reset. */
  onSent(): void {}

  /** Whether anything may still be written. */
  get isSending(): boolean {
    return this.sendState === SendState.OPEN;
  }

  /** Whether anything may still come. */
  get isReceiving(): boolean {
    return this.recvState === RecvState.OPEN && this.stopState === StopState.NONE;
  }

  /** Bytes that were written and have not left. */
  get queued(): number {
    return this.queue?.length ?? 0;
  }

  /**
   * Writes bytes, which must not be changed any more, whatever is queued. `false` says that the writer should wait until `onWritable`. What is
   * written after the end is dropped.
   */
  write(bytes: Buffer): boolean {
    if (this.sendState !== SendState.OPEN || this.mux === undefined) return true;
    this.queue ??= new ByteQueue();
    this.queue.push(bytes);
    this.mux.scheduleData(this);
    this.sendBlocked = this.queue.length >= MUX_SEND_QUEUE;
    return !this.sendBlocked;
  }

  /** Ends the sending direction after what was written. */
  finish(): void {
    if (this.sendState !== SendState.OPEN) return;
    this.sendState = SendState.FINISHING;
    this.mux?.scheduleData(this);
  }

  /** Gives the sending direction up, unless it has ended. What was written and has not left is dropped. */
  reset(code: number): void {
    if (this.giveUp(code)) this.mux?.scheduleControl(this);
  }

  /** Wants no more of the receiving direction, unless it has ended; what still comes is dropped. */
  stop(code: number): void {
    this.consumed(this.unread);
    if (this.stopState !== StopState.NONE) return;
    this.stopState = StopState.PENDING;
    this.stopCode = code;
    if (this.recvState === RecvState.OPEN) this.mux?.scheduleControl(this);
  }

  /** Gives both directions up with code 1. */
  cancel(): void {
    this.reset(Code.CANCELLED);
    this.stop(Code.CANCELLED);
  }

  /** Somebody has taken so many of the bytes that had come. */
  consumed(bytes: number): void {
    if (bytes === 0) return;
    this.unread -= bytes;
    this.mux?.consumed(this);
  }

  /** Lets go of the stream: once both directions have ended, it is forgotten. */
  release(): void {
    if (this.released) return;
    this.released = true;
    this.mux?.collect(this);
  }

  /** @internal Whether the direction was open until now. */
  giveUp(code: number): boolean {
    if (this.sendState > SendState.FINISHING) return false;
    this.sendState = SendState.RESETTING;
    this.sendCode = code;
    this.sendBlocked = false;
    this.queue?.clear();
    return true;
  }

  /** @internal Whether there is something to send and credit for it. */
  get isReady(): boolean {
    if (this.waiting) return false;
    if (this.sendState === SendState.OPEN) return this.queued > 0 && this.sendCredit > 0;
    return this.sendState === SendState.FINISHING && (this.queued === 0 || this.sendCredit > 0);
  }

  /** @internal Whether both directions have ended. */
  get isOver(): boolean {
    const sent = this.sendState === SendState.FINISHED || this.sendState === SendState.RESET;
    return sent && this.recvState !== RecvState.OPEN;
  }

  /** @internal Whether it was given up before its first frame. */
  get neverWas(): boolean {
    return this.id === 0 && this.sendState === SendState.RESETTING && this.stopState !== StopState.NONE;
  }
}
