/**
 * The deadlines of all calls of this process, on one timer, which does not keep the process alive.
 */

import { TimerWheel, type WheelEntry } from "./protocol/timer_wheel.js";

/** What has a deadline. */
export interface Timed extends WheelEntry {
  /** Its time has come. */
  onDeadline(): void;
}

const wheel = new TimerWheel<Timed>();
let timer: NodeJS.Timeout | undefined;
let wakesAt = Number.POSITIVE_INFINITY;

/** Milliseconds of a clock that is never set. */
export function now(): number {
  return performance.now();
}

/** Calls `entry.onDeadline()` once it is `at`, by the clock of {@link now}; a later call for the same entry moves it. */
export function addDeadline(entry: Timed, at: number): void {
  wheel.add(entry, at, now());
  if (at < wakesAt) arm();
}

/** Forgets a deadline. */
export function removeDeadline(entry: Timed): void {
  if (entry.due >= 0) wheel.remove(entry);
}

/** Longest that a timer of Node can wait. */
const LONGEST = 0x7fff_ffff;

function arm(): void {
  if (timer !== undefined) clearTimeout(timer);
  timer = undefined;
  const at = wheel.wakeAt();
  wakesAt = at ?? Number.POSITIVE_INFINITY;
  if (at === undefined) return;
  timer = setTimeout(tell, Math.min(LONGEST, Math.max(1, Math.ceil(at - now()))));
  timer.unref();
}

function tell(): void {
  timer = undefined;
  wakesAt = Number.POSITIVE_INFINITY;
  wheel.poll(now(), (entry) => {
    entry.onDeadline();
  });
  arm();
}
