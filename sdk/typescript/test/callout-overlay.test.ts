/** An inspection agent behind raw streams of the overlay passes the run that every agent passes. */

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { writeFileSync } from "node:fs";
import path from "node:path";
import { test } from "node:test";
import { promisify } from "node:util";

import { Agent, allow, onStreams } from "../src/callout/index.js";
import { connect, HailError } from "../src/index.js";
import { HAIL, noNode, startNode, TestProgram } from "./support.js";
import { framed } from "./callout-support.js";

const config = (node: string): string => `
agents {
    agent "no-secrets" {
        hail "no-secrets@${node}"
        events "request_headers"
    }
}
`;

test("a proxy asks an agent over its node", { skip: noNode }, async () => {
  await using node = await startNode();
  const hail = async (...args: string[]): Promise<string> => {
    const { stdout } = await promisify(execFile)(HAIL ?? "", args, { env: { ...process.env, HAIL_DATA: node.folder } });
    return stdout;
  };
  await using program = new TestProgram("programs/callout_agent.js", node.folder);
  await program.says("offered");
  const [id = ""] = (await hail("id")).split(/\s/);
  const file = path.join(node.folder, "callout.kdl");
  writeFileSync(file, config(id));
  const said = await hail("callout", "test", "--small", "--config", file);
  assert.match(said, /all 15 probes behaved as configured: 9 allowed, 6 blocked, 0 uninspected/);
  program.process.kill("SIGTERM");
  assert.equal(await program.exited, 0);
});

test("what is no proxy is refused with a status, and a proxy that leaves ends its connection", { skip: noNode }, async () => {
  await using node = await startNode();
  await using hail = await connect({ dataDir: node.folder });
  const agent = new Agent("quiet", { handshakeTimeout: 50 });
  agent.requestHeaders(() => allow());
  await hail.agent("quiet", onStreams(agent));
  const code = async (read: Promise<unknown>): Promise<string> => {
    const failed = await read.then(
      () => undefined,
      (error: unknown) => error,
    );
    return failed instanceof HailError ? failed.code : String(failed);
  };
  assert.equal(await code(hail.call("quiet", "x").answer()), "unimplemented");
  await using silent = await hail.stream("quiet");
  assert.equal(await code(silent.read()), "deadline_exceeded");
  await using babbling = await hail.stream("quiet");
  await babbling.write(Buffer.from([255, 255, 255, 255, 0]));
  assert.equal(await code(babbling.read()), "invalid_argument");

  const greeting = framed(0x01, { supported_versions: [2], proxy_id: "h", proxy_version: "1", config: null });
  for (const leave of ["finish", "cancel"] as const) {
    const proxy = await hail.stream("quiet");
    await proxy.write(greeting);
    assert.ok(((await proxy.read())?.length ?? 0) > 5);
    assert.equal(agent.hosts.length, 1);
    proxy[leave]();
    if (leave === "finish") assert.equal(await proxy.read(), undefined);
    const connected = (): boolean => agent.hosts.length > 0;
    while (connected()) await new Promise((resolve) => setImmediate(resolve));
  }
});
