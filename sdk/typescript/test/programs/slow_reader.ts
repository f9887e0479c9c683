/** Reads an answer of many bytes more slowly than they are made, and says how much memory that took. */

import { setTimeout as pause } from "node:timers/promises";

import { connect } from "../../src/index.js";

const bytes = Number(process.argv[2]);
const hail = await connect();
// The answer to a first call has everything loaded and compiled that a second one needs.
for await (const chunk of hail.call("flood", String(8 * 1024 * 1024))) if (chunk.length === 0) break;
const before = process.memoryUsage.rss();
let most = before;
let read = 0;
let due = 0;
for await (const chunk of hail.call("flood", String(bytes))) {
  read += chunk.length;
  // Half of the time it does nothing, so that whoever makes the chunks has to wait.
  if (read >= due) {
    due = read + 256 * 1024;
    await pause(1);
    most = Math.max(most, process.memoryUsage.rss());
  }
}
console.log(JSON.stringify({ read, before, most }));
await hail.close();
