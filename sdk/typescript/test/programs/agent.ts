/** A program that is only an agent: `gate` answers once its caller has sent a second chunk. */

import { connect } from "../../src/index.js";

const hail = await connect();
await hail.agent("gate", async function* (request) {
  yield "open";
  for await (const chunk of request.body) {
    yield chunk;
  }
  yield "done";
});
console.log("serving");
await hail.run();
console.log("left in order");
