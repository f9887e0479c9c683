/** Makes many bytes faster than they are read, and says how much memory the whole process has had at most, in bytes. */

import { connect } from "../../src/index.js";
import { peak } from "./peak.js";

const CHUNK = 64 * 1024;

const bytes = Number(process.argv[2]);
const hail = await connect();
const attached = peak();
async function* body(): AsyncGenerator<Buffer> {
  for (let made = 0; made < bytes; made += CHUNK) {
    yield Buffer.alloc(CHUNK, made / CHUNK);
    await Promise.resolve();
  }
}
const answer = await hail.call("swallow", body());
console.log(JSON.stringify({ moved: Number(answer.text()), attached, most: peak() }));
await hail.close();
