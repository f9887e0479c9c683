/**
 * Deadlines of many calls on one timer: a wheel of 1,024 slots of 4 ms, with what is due later than a turn of it waiting for the turns before. Adding
 * and removing take the same time however many there are. It keeps no clock: whoever drives it says what time it is.
 *
 * Nothing is told before it is due, and what is due is told within a slot of being asked.
 */

/** Milliseconds of a slot. */
export const SLOT_MS = 4;

const SLOTS = 1024;

/** What waits in a wheel: in one place of one wheel at most. */
export interface WheelEntry {
  /** @internal The number of the slot, counted from the beginning of time; -1 outside a wheel. */
  due: number;
  /** @internal */
  earlier: WheelEntry | undefined;
  /** @internal */
  later: WheelEntry | undefined;
}

/** The wheel. */
export class TimerWheel<T extends WheelEntry> {
  readonly #slots: (WheelEntry | undefined)[] = new Array<WheelEntry | undefined>(SLOTS).fill(undefined);
  /** The first slot that was not told yet. */
  #next = 0;
  #count = 0;

  /** How many wait. */
  get size(): number {
    return this.#count;
  }

  /** Adds what is due `at`, in milliseconds of whichever clock; one that waits already is moved. */
  add(entry: T, at: number, now: number): void {
    this.remove(entry);
    if (this.#count === 0) this.#next = Math.floor(now / SLOT_MS);
    const due = Math.max(Math.ceil(at / SLOT_MS), this.#next);
    const slot = due % SLOTS;
    const head = this.#slots[slot];
    entry.due = due;
    entry.earlier = undefined;
    entry.later = head;
    if (head !== undefined) head.earlier = entry;
    this.#slots[slot] = entry;
    this.#count += 1;
  }

  /** Removes what waits, if it does. */
  remove(entry: T): void {
    if (entry.due < 0) return;
    if (entry.earlier !== undefined) entry.earlier.later = entry.later;
    else this.#slots[entry.due % SLOTS] = entry.later;
    if (entry.later !== undefined) entry.later.earlier = entry.earlier;
    entry.due = -1;
    entry.earlier = undefined;
    entry.later = undefined;
    this.#count -= 1;
  }

  /** Tells what is due by now, each once, after taking it out. */
  poll(now: number, tell: (entry: T) => void): void {
    const last = Math.floor(now / SLOT_MS);
    // After a long sleep one turn reaches every slot.
    const from = Math.max(this.#next, last - SLOTS + 1);
    this.#next = Math.max(this.#next, last + 1);
    const due: T[] = [];
    for (let slot = from; slot <= last && this.#count > 0; slot += 1) {
      for (let entry = this.#slots[slot % SLOTS]; entry !== undefined; entry = entry.later) {
        if (entry.due <= last) due.push(entry as T);
      }
    }
    for (const entry of due) this.remove(entry);
    for (const entry of due) tell(entry);
  }

  /** When to ask next, in milliseconds of that clock; undefined where nothing waits. It may be too early, never too late. */
  wakeAt(): number | undefined {
    if (this.#count === 0) return undefined;
    for (let slot = this.#next; slot < this.#next + SLOTS; slot += 1) {
      if (this.#slots[slot % SLOTS] !== undefined) return slot * SLOT_MS;
    }
    return (this.#next + SLOTS) * SLOT_MS;
  }
}
