/**
 * The built package under other runtimes than Node. `HAILWIRE_DENO` and `HAILWIRE_BUN` name their programs.
 */

import assert from "node:assert/strict";
import path from "node:path";
import { test } from "node:test";
import { pathToFileURL } from "node:url";

import { connect, HailError, type Request } from "../src/index.js";
import { noNode, PACKAGE, startNode, TestProgram } from "./support.js";

const BUILT = pathToFileURL(path.join(PACKAGE, "dist/esm/index.js")).href;

const RUNTIMES: readonly (readonly [name: string, variable: string, ...args: string[]])[] = [
  ["Deno", "HAILWIRE_DENO", "run", "--allow-all", "--no-lock"],
  ["Bun", "HAILWIRE_BUN", "run"],
];

for (const [name, variable, ...args] of RUNTIMES) {
  const program = process.env[variable];
  const skip = program === undefined || program === "" ? `${variable} names no program` : noNode;
  test(`under ${name} a program calls, serves, streams, attaches again and leaves in order`, { skip, timeout: 60_000 }, async () => {
    await using node = await startNode();
    await using hail = await connect({ dataDir: node.folder });
    await hail.agent("shout", async (request) => (await request.text()).toUpperCase());
    await hail.agent("flood", async function* (request: Request) {
      const bytes = Number(await request.text());
      for (let sent = 0; sent < bytes; sent += 40_000) yield Buffer.alloc(40_000);
    });
    await hail.agent("echo-stream", (request) => request.body);
    await using there = new TestProgram("programs/any_runtime.js", node.folder, [BUILT], [program ?? "", ...args]);
    await there.complains("serving echo, lengths, waits");
    assert.deepEqual(JSON.parse(there.said), {
      call: "GRÜSSE",
      large: 3_000_000,
      missing: "not_found",
      late: "deadline_exceeded",
      "given up": "cancelled",
      streamed: 4_000_000,
      "web stream": "a web stream",
      raw: "there and back",
    });
    assert.equal((await hail.call("echo", "from Node", { timeout: 5000 })).text(), "from Node");
    let lengths = "";
    for await (const chunk of hail.call("lengths", "abc", { timeout: 5000 })) lengths += Buffer.from(chunk).toString();
    assert.equal(lengths, "3;");
    await node.kill();
    await node.start();
    const until = performance.now() + 10_000;
    for (;;) {
      const again = await hail.call("echo", "again", { timeout: 1000 }).then(
        (answer) => answer.text(),
        (error: unknown) => error,
      );
      if (again === "again") break;
      assert.ok(again instanceof HailError && performance.now() < until, String(again));
      await new Promise((resolve) => setTimeout(resolve, 20));
    }
    there.process.kill("SIGTERM");
    assert.equal(await there.exited, 0);
    assert.match(there.said, /left in order/);
  });
}
