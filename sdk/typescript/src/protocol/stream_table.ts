/**
 * The streams of a connection by their numbers, which come in order, thousands each second, and mostly go soon.
 *
 * It is no `Map`: that makes itself a new table each time it has lost many entries, and each old table holds the next. Once one of them has grown
 * old, all that come after it do as well, with the streams that were in them, and a collection of young objects frees next to nothing.
 */

import type { MuxStream } from "./mux_stream.js";

/** Places of an empty table. */
const LEAST = 64;

/** Most places: those beyond share them. */
const MOST = 32_768;

/** The table. */
export class StreamTable {
  #places: (MuxStream | undefined)[] = places(LEAST);
  #mask = LEAST - 1;
  #size = 0;
  /** Those in whose place a newer one is: streams that last. */
  readonly #others = new Map<number, MuxStream>();

  /** How many streams it has. */
  get size(): number {
    return this.#size;
  }

  /** The stream of a number. */
  get(id: number): MuxStream | undefined {
    const found = this.#places[id & this.#mask];
    if (found?.id === id) return found;
    return this.#others.size === 0 ? undefined : this.#others.get(id);
  }

  /** Adds a stream, by a number that no other has. */
  add(stream: MuxStream): void {
    this.#size += 1;
    if (this.#size * 4 > this.#places.length && this.#places.length < MOST) this.#grow();
    this.#put(stream);
  }

  /** Removes a stream that it has. */
  delete(stream: MuxStream): void {
    const at = stream.id & this.#mask;
    if (this.#places[at] === stream) this.#places[at] = undefined;
    else if (!this.#others.delete(stream.id)) return;
    this.#size -= 1;
  }

  /** Removes all, and gives them in the order of their numbers. */
  takeAll(): MuxStream[] {
    const all = [...this.#others.values()];
    for (const stream of this.#places) if (stream !== undefined) all.push(stream);
    this.#places = places(LEAST);
    this.#mask = LEAST - 1;
    this.#others.clear();
    this.#size = 0;
    return all.sort((one, other) => one.id - other.id);
  }

  #put(stream: MuxStream): void {
    const at = stream.id & this.#mask;
    const before = this.#places[at];
    if (before !== undefined) this.#others.set(before.id, before);
    this.#places[at] = stream;
  }

  #grow(): void {
    const before = this.#places;
    this.#places = places(2 * before.length);
    this.#mask = this.#places.length - 1;
    const others = [...this.#others.values()];
    this.#others.clear();
    for (const stream of others) this.#put(stream);
    for (const stream of before) if (stream !== undefined) this.#put(stream);
  }
}

function places(count: number): (MuxStream | undefined)[] {
  return new Array<MuxStream | undefined>(count).fill(undefined);
}
