#!/usr/bin/env node
// @ts-check
/**
 * An inspection agent: blocks /admin, names itself to the upstream, and stops bodies that carry a secret.
 *
 *     node callout-agent.mjs /tmp/agent.sock
 */
import { Agent, allow, block, setHeader } from "hailwire/callout";

const agent = new Agent("no-secrets", { version: "1.0" });

agent.requestHeaders(async (request) => {
  if (request.uri.startsWith("/admin")) {
    return block(403, "not here\n", { audit: { tags: ["admin"], reasonCodes: ["ADMIN_PATH"] } });
  }
  return allow({ requestHeaders: [setHeader("x-checked-by", agent.name)] });
});

agent.requestBody(async (chunk) => {
  // A secret that lies across two chunks is not found: an agent that looks for more keeps the end of the last one.
  if (chunk.data.includes("BEGIN PRIVATE KEY")) return block(422);
  return allow({ needsMore: !chunk.isLast });
});

await agent.run(process.argv[2] ?? "agent.sock", { ready: () => console.log("ready") });
