/** Offers an agent that the node refuses, and does not await that; with `run` it runs then. */

import { connect } from "../../src/index.js";

const hail = await connect();
process.on("exit", (code) => {
  console.log(`ended with ${code}`);
});
void hail.agent("node", () => "");
void hail.agent("fine", () => "");
if (process.argv[2] === "run") {
  const why = await hail.run().catch((error: unknown) => error);
  console.log(`run: ${String(why)}`);
  await hail.close();
}
