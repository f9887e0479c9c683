/**
 * How large the receive windows of streams are. Each stream is promised 16 KiB; what goes beyond comes out of a pool of 8 MiB for a connection. A
 * window is set anew each time its reader has taken half of it: four times as large, but no more than 1 MiB, than an equal part of the pool for
 * each stream that grew, and than what is left. What was promised is not taken back.
 */

import { MUX_INITIAL_WINDOW, MUX_RECEIVE_POOL, MUX_STREAM_WINDOW } from "./limits.js";

/** The largest window that is given: half of the largest that there may be, which is enough between two programs of one machine. */
const LARGEST = MUX_STREAM_WINDOW / 2;

/** What a window is counted by. */
export interface ReceiveWindow {
  /** What the peer may still send. */
  recvCredit: number;
  /** What has come and nobody has taken. */
  unread: number;
  /** How large it is. */
  recvWindow: number;
}

/** The pool of one connection. */
export class WindowPool {
  #used = 0;
  #grown = 0;

  /** Bytes that windows take beyond what each is promised. */
  get used(): number {
    return this.#used;
  }

  /** How many bytes more the peer may send now; 0 while less than half of the window is free. They count as granted. */
  grant(window: ReceiveWindow): number {
    const promised = window.recvCredit + window.unread;
    if (window.recvWindow - Math.min(promised, window.recvWindow) < window.recvWindow >> 1) return 0;
    this.#giveBack(window);
    const wanted = Math.min(window.recvWindow * 4, LARGEST) - MUX_INITIAL_WINDOW;
    const part = Math.floor(MUX_RECEIVE_POOL / (this.#grown + 1));
    const share = Math.min(wanted, part, Math.max(0, MUX_RECEIVE_POOL - this.#used));
    this.#take(window, Math.max(share, promised - MUX_INITIAL_WINDOW, 0));
    const granted = Math.max(0, window.recvWindow - promised);
    window.recvCredit += granted;
    return granted;
  }

  /** Nothing more comes: only what is unread still counts. */
  settle(window: ReceiveWindow): void {
    window.recvCredit = 0;
    if (window.recvWindow === MUX_INITIAL_WINDOW && window.unread <= MUX_INITIAL_WINDOW) return;
    this.#giveBack(window);
    this.#take(window, Math.max(0, window.unread - MUX_INITIAL_WINDOW));
  }

  /** The stream is gone. */
  forget(window: ReceiveWindow): void {
    if (window.recvWindow === MUX_INITIAL_WINDOW) return;
    this.#giveBack(window);
    window.recvWindow = MUX_INITIAL_WINDOW;
  }

  #giveBack(window: ReceiveWindow): void {
    const share = window.recvWindow - MUX_INITIAL_WINDOW;
    this.#used -= share;
    if (share > 0) this.#grown -= 1;
  }

  #take(window: ReceiveWindow, share: number): void {
    window.recvWindow = MUX_INITIAL_WINDOW + share;
    this.#used += share;
    if (share > 0) this.#grown += 1;
  }
}
