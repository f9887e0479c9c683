/**
 * The multiplexer: many bidirectional streams over one byte stream (`spec/mux.md`). It does no I/O: what arrives is given to {@link Mux.receive},
 * and what is to be written is taken with {@link Mux.takeOutput}.
 *
 * It promises that a slow reader holds up no stream but its own, that what a peer can make this side hold is bounded (16 KiB for each stream and
 * 8 MiB for those that read fast), and that, once the way out is full, each priority has its share of it. It refuses, by closing the connection:
 * bytes past a window, more streams than granted, numbers out of order, and lengths that a kind cannot have.
 *
 * Small things do not wait in queues: as long as the way out is free, {@link Mux.reserve} lets a stream write straight into what leaves next.
 */

import {
  MUX_MAX_DATA,
  MUX_MAX_PINGS,
  MUX_MAX_REASON,
  MUX_MAX_STREAMS,
  MUX_SEND_QUEUE,
} from "./limits.js";
import { closeFrame, type ConnectionEnd, type MuxOwner } from "./mux_end.js";
import {
  checkLength,
  checkPreface,
  FIN,
  isMuxKind,
  MUX_HEADER,
  MuxError,
  MuxKind,
  type MuxRole,
  PREFACE,
  preface,
  putMuxHeader,
} from "./mux_frame.js";
import { MuxStream, RecvState, SendState, StopState } from "./mux_stream.js";
import { WindowPool } from "./mux_window.js";
import { LEVELS, PriorityShares } from "./priority_shares.js";
import { Code, codeFromNumber } from "./status.js";
import { StreamTable } from "./stream_table.js";

export type { ConnectionEnd, MuxOwner } from "./mux_end.js";
export { MuxError, type MuxRole } from "./mux_frame.js";
export { MuxStream } from "./mux_stream.js";

/** Most bytes of one output, up to a frame more. */
const MAX_BATCH = 128 * 1024;

/** Bytes of the buffers that outputs are made in. */
const OUTPUT = MAX_BATCH + 32 * 1024;

/** Up to so many bytes are written straight into an output. */
const DIRECT = 96 * 1024;

/** Most bytes of a frame that is no DATA: a CLOSE with the longest reason. */
const LONGEST = 4 + MUX_MAX_REASON;

/** A multiplexer. */
export class Mux {
  readonly #role: MuxRole;
  readonly #owner: MuxOwner;
  readonly #streams = new StreamTable();
  /** Those without a number yet; each knows its place. */
  readonly #unnumbered: MuxStream[] = [];
  #ended: ConnectionEnd | undefined;

  #nextLocal: number;
  #openCredit = MUX_MAX_STREAMS;
  #waiting: MuxStream[] = [];

  #nextRemote: number;
  #remoteCredit = MUX_MAX_STREAMS;
  #returned = 0;

  #preface: Buffer | undefined = Buffer.alloc(0);
  readonly #carry = Buffer.alloc(MUX_HEADER + LONGEST);
  #carried = 0;
  #kind = 0;
  #flags = 0;
  #stream = 0;
  /** Bytes of the payload of a frame that is no DATA; -1 between frames. */
  #payload = -1;
  #dataLeft = -1;
  #dataFin = false;
  #receiving: MuxStream | undefined;
  #skipLeft = 0;
  readonly #pool = new WindowPool();

  #out: Buffer = Buffer.allocUnsafeSlow(OUTPUT);
  #spare: Buffer | undefined;
  #length = 0;
  #writing = false;
  #woken = false;
  #close: Buffer | undefined;
  #control: MuxStream[] = [];
  readonly #ready: MuxStream[][] = [[], [], [], []];
  readonly #shares = new PriorityShares();
  readonly #pongs: Buffer[] = [];
  readonly #isReady = (level: number): boolean => (this.#ready[level]?.length ?? 0) > 0;

  /** One that has greeted nobody yet. Its first output is the preface. */
  constructor(role: MuxRole, owner: MuxOwner) {
    this.#role = role;
    this.#owner = owner;
    this.#nextLocal = role === "client" ? 1 : 2;
    this.#nextRemote = role === "client" ? 2 : 1;
    preface(role).copy(this.#out);
    this.#length = PREFACE;
  }

  /** Why it has ended; undefined while it has not. */
  get ended(): ConnectionEnd | undefined {
    return this.#ended;
  }

  /** Streams that are not over. */
  get liveStreams(): number {
    return this.#streams.size + this.#unnumbered.length;
  }

  /** Bytes that windows take of the pool. */
  get pooled(): number {
    return this.#pool.used;
  }

  /** Opens a stream. Where the peer has granted no more, it waits for that; what is written on it waits as well. */
  open(stream: MuxStream, priority: number): void {
    stream.mux = this;
    stream.priority = priority;
    if (this.#ended !== undefined) {
      stream.onLost();
      return;
    }
    stream.place = this.#unnumbered.push(stream) - 1;
    if (this.#openCredit > 0) {
      this.#openCredit -= 1;
    } else {
      stream.waiting = true;
      this.#waiting.push(stream);
    }
  }

  /**
   * Makes room for `length` bytes of a stream in what leaves next, with the end of its direction where `fin` says so, and gives the place in
   * {@link Mux.output} at which they are to be written at once. -1 where that is not possible, and they are to be queued.
   */
  reserve(stream: MuxStream, length: number, fin: boolean): number {
    if (
      this.#writing ||
      length > MUX_MAX_DATA ||
      length > stream.sendCredit ||
      stream.waiting ||
      stream.sendState !== SendState.OPEN ||
      stream.queued > 0 ||
      this.#length + length > DIRECT ||
      this.#ended !== undefined
    ) {
      return -1;
    }
    const flags = (stream.priority << 4) | (fin ? FIN : 0);
    const at = putMuxHeader(this.#out, this.#length, MuxKind.DATA, flags, length, this.#number(stream));
    this.#length = at + length;
    stream.sendCredit -= length;
    if (fin) stream.sendState = SendState.FINISHED;
    this.#wake();
    return at;
  }

  /** Where {@link Mux.reserve} has made room. */
  get output(): Buffer {
    return this.#out;
  }

  /** Closes the connection: one frame more leaves, and nothing is read any more. */
  close(code: number, reason: string): void {
    if (this.#ended !== undefined) return;
    this.#close = closeFrame(code, reason);
    this.#end({ by: "here" });
    this.#wake();
  }

  /** The byte stream has ended, or failed. */
  lost(reason: string): void {
    this.#end({ by: "lost", reason });
  }

  /** Takes what has arrived. */
  receive(bytes: Buffer, start = 0, end = bytes.length): void {
    if (this.#ended !== undefined) return;
    try {
      this.#input(bytes, start, end);
    } catch (error) {
      if (!(error instanceof MuxError)) throw error;
      // A peer whose preface was no good may not know a CLOSE.
      if (this.#preface === undefined) this.#close = closeFrame(Code.INVALID_ARGUMENT, error.message);
      this.#end({ by: "protocol", reason: error.message });
      this.#wake();
    }
  }

  /** What is to be written next, in one piece; undefined for nothing. {@link Mux.written} is called once it was, and nothing more is given before. */
  takeOutput(): Buffer | undefined {
    this.#woken = false;
    if (this.#writing) return undefined;
    if (this.#close !== undefined) {
      this.#close.copy(this.#out, this.#length);
      this.#length += this.#close.length;
      this.#close = undefined;
    }
    if (this.#ended === undefined) {
      this.#emitConnection();
      this.#emitControl();
      this.#emitData();
    }
    if (this.#length === 0) return undefined;
    const output = this.#out.subarray(0, this.#length);
    this.#out = this.#spare ?? Buffer.allocUnsafeSlow(OUTPUT);
    this.#spare = output;
    this.#length = 0;
    this.#writing = true;
    return output;
  }

  /** The output that was taken last has been written. */
  written(): void {
    this.#writing = false;
    const output = this.#spare;
    if (output !== undefined) this.#spare = Buffer.from(output.buffer, output.byteOffset, OUTPUT);
    if (this.#hasOutput()) this.#wake();
  }

  /** @internal A stream has something to send. */
  scheduleData(stream: MuxStream): void {
    if (stream.dataQueued || this.#ended !== undefined || !stream.isReady) return;
    stream.dataQueued = true;
    this.#ready[stream.priority]?.push(stream);
    this.#wake();
  }

  /** @internal A stream has a frame other than DATA to send. */
  scheduleControl(stream: MuxStream): void {
    if (stream.controlQueued || this.#ended !== undefined) return;
    stream.controlQueued = true;
    this.#control.push(stream);
    this.#wake();
  }

  /** @internal Bytes of a stream were taken. */
  consumed(stream: MuxStream): void {
    if (stream.recvState !== RecvState.OPEN || stream.stopState !== StopState.NONE || this.#ended !== undefined) return;
    const grant = this.#pool.grant(stream);
    if (grant === 0) return;
    stream.granting += grant;
    this.scheduleControl(stream);
  }

  /** @internal Forgets a stream that is over and that nobody holds. */
  collect(stream: MuxStream): void {
    if (!stream.released || stream.mux !== this) return;
    if (!stream.isOver && !stream.neverWas && this.#ended === undefined) return;
    this.#pool.forget(stream);
    if (stream.id !== 0) this.#streams.delete(stream);
    else if (this.#dropUnnumbered(stream) && !stream.waiting) this.#allowOpen(1);
    if (!stream.local) {
      this.#returned += 1;
      if (this.#returned >= this.#remoteCredit) this.#wake();
    }
    // Books are closed once.
    stream.released = false;
    stream.mux = undefined;
  }

  #wake(): void {
    if (this.#woken) return;
    this.#woken = true;
    this.#owner.wake();
  }

  #hasOutput(): boolean {
    if (this.#length > 0 || this.#close !== undefined) return true;
    if (this.#ended !== undefined) return false;
    if (this.#control.length > 0 || this.#pongs.length > 0 || this.#returned >= this.#remoteCredit) return true;
    return this.#ready.some((queue) => queue.length > 0);
  }

  /** A stream's number, given where it has none: so numbers come in order and without a gap. */
  #number(stream: MuxStream): number {
    if (stream.id === 0) {
      stream.id = this.#nextLocal;
      this.#nextLocal += 2;
      this.#dropUnnumbered(stream);
      this.#streams.add(stream);
    }
    return stream.id;
  }

  #dropUnnumbered(stream: MuxStream): boolean {
    const { place } = stream;
    if (place < 0) return false;
    stream.place = -1;
    const last = this.#unnumbered.pop();
    if (last !== undefined && last !== stream) {
      this.#unnumbered[place] = last;
      last.place = place;
    }
    return true;
  }

  #end(why: ConnectionEnd): void {
    if (this.#ended !== undefined) return;
    this.#ended = why;
    this.#control = [];
    for (const queue of this.#ready) queue.length = 0;
    this.#waiting = [];
    this.#pongs.length = 0;
    const all = [...this.#streams.takeAll(), ...this.#unnumbered];
    this.#unnumbered.length = 0;
    for (const stream of all) {
      stream.place = -1;
      stream.queue?.clear();
      stream.onLost();
    }
    this.#owner.ended();
  }

  // What arrives.

  #input(bytes: Buffer, start: number, end: number): void {
    let at = start;
    if (this.#preface !== undefined) {
      const part = Math.min(PREFACE - this.#preface.length, end - at);
      this.#preface = Buffer.concat([this.#preface, bytes.subarray(at, at + part)]);
      at += part;
      checkPreface(this.#preface, this.#role);
      if (this.#preface.length < PREFACE) return;
      this.#preface = undefined;
    }
    while (this.#ended === undefined) {
      if (this.#dataLeft >= 0) {
        if (at === end && this.#dataLeft > 0) return;
        const part = Math.min(this.#dataLeft, end - at);
        this.#dataLeft -= part;
        const last = this.#dataLeft === 0;
        if (last) this.#dataLeft = -1;
        this.#dataPart(bytes, at, at + part, last && this.#dataFin);
        at += part;
      } else if (this.#skipLeft > 0) {
        if (at === end) return;
        const part = Math.min(this.#skipLeft, end - at);
        this.#skipLeft -= part;
        at += part;
      } else if (this.#payload >= 0) {
        const length = this.#payload;
        if (this.#carried === 0 && end - at >= length) {
          this.#payload = -1;
          this.#frame(bytes, at, at + length);
          at += length;
        } else {
          at += this.#gather(bytes, at, end, length);
          if (this.#carried < length) return;
          this.#carried = 0;
          this.#payload = -1;
          this.#frame(this.#carry, 0, length);
        }
      } else if (this.#carried === 0 && end - at >= MUX_HEADER) {
        this.#begin(bytes, at);
        at += MUX_HEADER;
      } else {
        at += this.#gather(bytes, at, end, MUX_HEADER);
        if (this.#carried < MUX_HEADER) return;
        this.#carried = 0;
        this.#begin(this.#carry, 0);
      }
    }
  }

  #gather(bytes: Buffer, at: number, end: number, length: number): number {
    const part = Math.min(length - this.#carried, end - at);
    bytes.copy(this.#carry, this.#carried, at, at + part);
    this.#carried += part;
    return part;
  }

  #begin(bytes: Buffer, at: number): void {
    const kind = bytes[at] ?? 0;
    const flags = bytes[at + 1] ?? 0;
    const length = bytes.readUInt16BE(at + 2);
    if (!isMuxKind(kind)) {
      this.#skipLeft = length;
      return;
    }
    checkLength(kind, length);
    const id = bytes.readUInt32BE(at + 4) * 0x1_0000_0000 + bytes.readUInt32BE(at + 8);
    if (kind !== MuxKind.DATA) {
      this.#kind = kind;
      this.#flags = flags;
      this.#stream = id;
      this.#payload = length;
      return;
    }
    const stream = this.#find(id, flags);
    if (stream !== undefined) {
      if (stream.recvState !== RecvState.OPEN) throw new MuxError(`stream ${id} carried bytes after its end`);
      if (stream.recvCredit < length) throw new MuxError(`stream ${id} exceeded its window`);
    }
    this.#receiving = stream;
    this.#dataLeft = length;
    this.#dataFin = (flags & FIN) !== 0;
  }

  #dataPart(bytes: Buffer, start: number, end: number, fin: boolean): void {
    const stream = this.#receiving;
    // It may have been reset between two parts of a frame.
    if (stream?.recvState !== RecvState.OPEN) return;
    const length = end - start;
    stream.recvCredit = Math.max(0, stream.recvCredit - length);
    if (fin) stream.recvState = RecvState.ENDED;
    if (stream.stopState === StopState.NONE) {
      const held = stream.onData(bytes, start, end, fin);
      // What was given up meanwhile holds nothing.
      if (!isStopped(stream)) stream.unread += held;
      if (held < length && !fin) this.consumed(stream);
    }
    if (fin) {
      stream.granting = 0;
      this.#pool.settle(stream);
      this.collect(stream);
    }
  }

  #frame(bytes: Buffer, start: number, end: number): void {
    switch (this.#kind) {
      case MuxKind.RESET: {
        const stream = this.#find(this.#stream, this.#flags);
        if (stream !== undefined) this.#resetArrives(stream, codeFromNumber(bytes.readUInt32BE(start)));
        return;
      }
      case MuxKind.STOP: {
        const stream = this.#find(this.#stream, this.#flags);
        if (stream !== undefined) this.#stopArrives(stream, codeFromNumber(bytes.readUInt32BE(start)));
        return;
      }
      case MuxKind.WINDOW: {
        const stream = this.#find(this.#stream, this.#flags);
        if (stream === undefined) return;
        stream.sendCredit = Math.min(Number.MAX_SAFE_INTEGER, stream.sendCredit + bytes.readUInt32BE(start));
        this.scheduleData(stream);
        return;
      }
      case MuxKind.STREAMS:
        this.#allowOpen(bytes.readUInt32BE(start));
        return;
      case MuxKind.PING:
        if (this.#pongs.length >= 2 * MUX_MAX_PINGS) return;
        this.#pongs.push(Buffer.from(bytes.subarray(start, end)));
        this.#wake();
        return;
      case MuxKind.CLOSE: {
        const reason = bytes.toString("utf8", start + 4, end);
        this.#end({ by: "peer", code: codeFromNumber(bytes.readUInt32BE(start)), reason });
        return;
      }
      default:
      // Nothing waits for a PONG or a datagram here.
    }
  }

  /** The stream of a number: one that the peer opens with it, undefined for one that is over. */
  #find(id: number, flags: number): MuxStream | undefined {
    const known = this.#streams.get(id);
    if (known !== undefined) return known;
    const ours = (id & 1) === (this.#role === "client" ? 1 : 0);
    const next = ours ? this.#nextLocal : this.#nextRemote;
    if (id === 0 || id > next || (ours && id === next)) throw new MuxError(`stream ${id} was never opened`);
    if (id < next) return undefined;
    if (this.#remoteCredit === 0) throw new MuxError(`stream ${id} exceeds the number of streams granted`);
    this.#remoteCredit -= 1;
    this.#nextRemote += 2;
    const stream = this.#owner.accept();
    stream.mux = this;
    stream.local = false;
    stream.id = id;
    stream.priority = Math.min(flags >>> 4, LEVELS - 1);
    this.#streams.add(stream);
    return stream;
  }

  #resetArrives(stream: MuxStream, code: number): void {
    if (stream.recvState !== RecvState.OPEN) return;
    stream.recvState = RecvState.RESET;
    stream.granting = 0;
    stream.unread = 0;
    this.#pool.settle(stream);
    if (stream.stopState === StopState.NONE) stream.onReset(code);
    this.collect(stream);
  }

  #stopArrives(stream: MuxStream, code: number): void {
    if (!stream.giveUp(code)) return;
    this.scheduleControl(stream);
    stream.onStop(code);
  }

  #allowOpen(count: number): void {
    this.#openCredit = Math.min(MUX_MAX_STREAMS, this.#openCredit + count);
    let first = 0;
    for (; first < this.#waiting.length && this.#openCredit > 0; first += 1) {
      const stream = this.#waiting[first];
      // One that was given up while it waited has left.
      if (stream?.mux !== this) continue;
      this.#openCredit -= 1;
      stream.waiting = false;
      this.scheduleData(stream);
      if (stream.sendState === SendState.RESETTING || stream.stopState !== StopState.NONE) this.scheduleControl(stream);
    }
    if (first > 0) this.#waiting = this.#waiting.slice(first);
  }

  // What leaves.

  #emitConnection(): void {
    for (const payload of this.#pongs) this.#put(MuxKind.PONG, 0, 0, payload);
    this.#pongs.length = 0;
    if (this.#returned < this.#remoteCredit || this.#returned === 0) return;
    this.#put4(MuxKind.STREAMS, 0, 0, this.#returned);
    this.#remoteCredit += this.#returned;
    this.#returned = 0;
  }

  #emitControl(): void {
    let next = 0;
    for (; next < this.#control.length && this.#length < MAX_BATCH; next += 1) {
      const stream = this.#control[next];
      if (stream !== undefined) this.#emitControlOf(stream);
    }
    if (next === this.#control.length) this.#control.length = 0;
    else this.#control = this.#control.slice(next);
  }

  #emitControlOf(stream: MuxStream): void {
    stream.controlQueued = false;
    if (stream.mux !== this) return;
    if (stream.neverWas) {
      stream.onSent();
      this.collect(stream);
      return;
    }
    if (stream.waiting) return;
    const flags = stream.priority << 4;
    const id = this.#number(stream);
    if (stream.stopState === StopState.PENDING && stream.recvState === RecvState.OPEN) {
      stream.stopState = StopState.SENT;
      this.#put4(MuxKind.STOP, flags, id, stream.stopCode);
    }
    const resets = stream.sendState === SendState.RESETTING;
    if (resets) {
      stream.sendState = SendState.RESET;
      this.#put4(MuxKind.RESET, flags, id, stream.sendCode);
    }
    const grant = stream.granting;
    stream.granting = 0;
    if (grant > 0 && stream.stopState === StopState.NONE) this.#put4(MuxKind.WINDOW, flags, id, grant);
    if (resets) stream.onSent();
    this.collect(stream);
  }

  #emitData(): void {
    while (this.#length < MAX_BATCH) {
      const level = this.#shares.next(this.#isReady, MUX_MAX_DATA);
      const queue = this.#ready[level];
      const stream = queue?.shift();
      if (queue === undefined || stream === undefined) return;
      stream.dataQueued = false;
      if (stream.mux === this && stream.isReady) this.#emitDataOf(stream, level);
    }
  }

  #emitDataOf(stream: MuxStream, level: number): void {
    const queued = stream.queued;
    const length = Math.min(queued, stream.sendCredit, MUX_MAX_DATA);
    const fin = stream.sendState === SendState.FINISHING && length === queued;
    const flags = (stream.priority << 4) | (fin ? FIN : 0);
    const at = putMuxHeader(this.#out, this.#length, MuxKind.DATA, flags, length, this.#number(stream));
    stream.queue?.moveTo(this.#out, at, length);
    this.#length = at + length;
    stream.sendCredit -= length;
    this.#shares.served(level, length + MUX_HEADER);
    if (fin) {
      stream.sendState = SendState.FINISHED;
      stream.onSent();
      this.collect(stream);
      return;
    }
    this.scheduleData(stream);
    if (stream.sendBlocked && queued - length <= MUX_SEND_QUEUE / 2) {
      stream.sendBlocked = false;
      stream.onWritable();
    }
  }

  #put(kind: number, flags: number, id: number, payload: Buffer): void {
    const at = putMuxHeader(this.#out, this.#length, kind, flags, payload.length, id);
    this.#length = at + payload.copy(this.#out, at);
  }

  #put4(kind: number, flags: number, id: number, value: number): void {
    const at = putMuxHeader(this.#out, this.#length, kind, flags, 4, id);
    this.#length = this.#out.writeUInt32BE(value, at);
  }
}

/** Whether a stream was stopped, also in the midst of what it was just told. */
function isStopped(stream: MuxStream): boolean {
  return stream.stopState !== StopState.NONE;
}
