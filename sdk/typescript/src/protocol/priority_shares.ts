/**
 * Which priority is served next where several have something to send: weighted fair queueing in virtual time, with 3, 9, 24 and 64 parts for low,
 * medium, high and critical. What one does not use goes to the others, and one that had nothing for a while is not behind.
 */

/** Levels of priority. */
export const LEVELS = 4;

/** What a unit of each level costs in virtual time. */
const COSTS = [100_000 / 3, 100_000 / 9, 100_000 / 24, 100_000 / 64] as const;

/** What each level was served. */
export class PriorityShares {
  readonly #passed = [0, 0, 0, 0];

  /** Of the levels for which something waits, the one that would be through first with `most` units; -1 where nothing waits. */
  next(waits: (level: number) => boolean, most: number): number {
    let next = -1;
    let least = Number.POSITIVE_INFINITY;
    for (let level = LEVELS - 1; level >= 0; level -= 1) {
      if (!waits(level)) continue;
      const through = (this.#passed[level] ?? 0) + (COSTS[level] ?? 0) * most;
      if (through < least) {
        least = through;
        next = level;
      }
    }
    if (next < 0) return next;
    const now = this.#passed[next] ?? 0;
    // Who wants nothing saves nothing up.
    for (let level = 0; level < LEVELS; level += 1) {
      if (!waits(level)) this.#passed[level] = Math.max(this.#passed[level] ?? 0, now);
    }
    return next;
  }

  /** A level was served so many units. */
  served(level: number, units: number): void {
    this.#passed[level] = (this.#passed[level] ?? 0) + (COSTS[level] ?? 0) * units;
  }
}
