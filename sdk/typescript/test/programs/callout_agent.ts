/** An inspection agent that is asked over raw streams of the overlay. */

import { Agent, allow, block, onStreams } from "../../src/callout/index.js";
import { connect } from "../../src/index.js";

const agent = new Agent("no-secrets", { version: "1.0" });
agent.requestHeaders((request) => (request.uri.startsWith("/admin") ? block(403, "not here\n") : allow()));

const hail = await connect();
await hail.agent("no-secrets", onStreams(agent));
console.log("offered");
await hail.run();
