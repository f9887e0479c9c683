/** A program that is only an agent: `gate` answers once its caller has sent a second chunk. With `quiet` it says nothing on stderr. */

import { connect } from "../../src/index.js";

const hail = await connect();
await hail.agent("gate", async function* (request) {
  yield "open";
  for await (const chunk of request.body) {
    yield chunk;
  }
  yield "done";
});
await hail.agent("latch", () => "");
console.log("serving");
await hail.run({ quiet: process.argv[2] === "quiet" });
console.log("left in order");
