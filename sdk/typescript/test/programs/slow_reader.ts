/** Reads an answer of many bytes more slowly than they are made, and says how much memory the whole process has had at most, in bytes. */

import { setTimeout as pause } from "node:timers/promises";

import { connect } from "../../src/index.js";
import { peak } from "./peak.js";

const bytes = Number(process.argv[2]);
const hail = await connect();
const attached = peak();
let read = 0;
let due = 0;
for await (const chunk of hail.call("flood", String(bytes))) {
  read += chunk.length;
  // Half of the time it does nothing, so that whoever makes the chunks has to wait.
  if (read >= due) {
    due = read + 256 * 1024;
    await pause(1);
  }
}
console.log(JSON.stringify({ moved: read, attached, most: peak() }));
await hail.close();
