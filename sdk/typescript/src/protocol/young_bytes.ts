/**
 * Has V8 collect the buffers that bulk traffic leaves behind while they are few.
 *
 * V8 looks through its young objects whenever it has made about 1 MB of them, and does not count what buffers hold outside of its heap until that
 * is more than 32 MB. A chunk of 16 KiB is some hundred bytes of an object, so that many megabytes of chunks which nobody has any more would lie
 * about. Here chunks are made to weigh as much on the heap as they hold, by arrays that nobody keeps: a look through the young then comes with each
 * megabyte, and finds little. Where bytes come fast, which is where looking more often would cost speed, there is one array in 0.3 ms at most.
 */

/** Chunks below this size are cut from a block that many share, and weigh enough by themselves. */
const BULK = 4096;

/** For so many bytes of chunks one array is made, of about as many bytes. */
const STEP = 64 * 1024;
const ELEMENTS = 8000;

/** Milliseconds for each of them, and how many may come at once after a pause. */
const EACH_MS = 0.3;
const MOST_AT_ONCE = 64;

let owed = 0;
let allowed = MOST_AT_ONCE;
let askedAt = 0;
/** What was made last; it is kept for no longer than it takes to make it. */
let ballast: undefined[] | undefined;

/** A chunk of so many bytes was made here, or was given to be sent. */
export function chunkMade(bytes: number): void {
  if (bytes < BULK) return;
  owed += bytes;
  if (owed < STEP) return;
  owed = 0;
  const now = performance.now();
  allowed = Math.min(MOST_AT_ONCE, allowed + (now - askedAt) / EACH_MS);
  askedAt = now;
  if (allowed < 1) return;
  allowed -= 1;
  ballast = new Array<undefined>(ELEMENTS);
  if (ballast.length > 0) ballast = undefined;
}
