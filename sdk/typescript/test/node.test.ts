/** Programs through a real node, which `HAIL_PROGRAM` names. */

import assert from "node:assert/strict";
import { after, before, describe, test } from "node:test";

import { type Call, type Client, connect, HailError, Reply, type Request } from "../src/index.js";
import { noNode, startNode, type TestNode, TestProgram } from "./support.js";

interface Gate<T> {
  readonly passed: Promise<T>;
  open(value: T): void;
}

/** A promise that is settled from outside. */
function gate<T = void>(): Gate<T> {
  let open: (value: T) => void = () => undefined;
  const passed = new Promise<T>((resolve) => {
    open = resolve;
  });
  return { passed, open };
}

async function code(call: PromiseLike<unknown>): Promise<string> {
  try {
    await call;
    return "ok";
  } catch (error) {
    return error instanceof HailError ? error.code : String(error);
  }
}

async function text(chunks: AsyncIterable<Uint8Array>): Promise<string> {
  const all: Uint8Array[] = [];
  for await (const chunk of chunks) all.push(chunk);
  return Buffer.concat(all).toString();
}

describe("a program and its node", { skip: noNode }, () => {
  let node: TestNode;
  let hail: Client;
  let other: Client;

  before(async () => {
    node = await startNode();
    hail = await connect({ dataDir: node.folder });
    other = await connect({ dataDir: node.folder, onHandlerError: () => undefined });
    await other.agent("echo", async (request) => new Reply(await request.bytes(), { type: request.type, headers: request.headers }));
    await other.agent("shout", async (request) => (await request.text()).toUpperCase());
  });

  after(async () => {
    await hail.close();
    await other.close();
    await node[Symbol.asyncDispose]();
  });

  test("a call is answered, with type and fields, whatever its body is", async () => {
    const answer = await hail.call("echo", "grüße", { type: "text/plain", headers: { a: "1" }, timeout: 5000 });
    assert.equal(answer.text(), "grüße");
    assert.equal(answer.type, "text/plain");
    assert.deepEqual(answer.headers, [["a", "1"]]);
    assert.deepEqual((await hail.call("echo", { n: [1, 2] })).json(), { n: [1, 2] });
    assert.equal((await hail.call("echo", { n: 1 })).type, "application/json");
    assert.equal((await hail.call("echo")).body.length, 0);
    const large = Buffer.alloc(3_000_000, 7);
    assert.ok(Buffer.from((await hail.call("echo", large)).body).equals(large));
    assert.equal((await hail.call("echo", new Blob(["a stream"]).stream())).text(), "a stream");
    assert.equal(await text(hail.call("echo", "read").stream()), "read");
    const buffer = new Uint8Array([1, 2, 3, 4]).subarray(1, 3);
    assert.deepEqual([...(await hail.call("echo", buffer)).body], [2, 3]);
  });

  test("a failure says its code, what happened and what may help", async () => {
    const failed = await hail.call("nothing").then(
      () => undefined,
      (error: unknown) => error,
    );
    assert.ok(failed instanceof HailError);
    assert.deepEqual([failed.code, failed.number, failed.retryable], ["not_found", 5, false]);
    assert.match(failed.hint, /hail agents/);
    assert.equal(await code(hail.call("No Name")), "invalid_argument");
    assert.equal(await code(hail.call("echo", "", { method: "m".repeat(200) })), "invalid_argument");
    await using served = await other.agent("failing", (request: Request) => {
      if (request.method === "status") throw new HailError("data_loss", "it is gone", { hint: "h", details: "d", retryAfterMs: 7 });
      throw new TypeError("a secret");
    });
    const told = await hail.call(served.name, "", { method: "status" }).catch((error: unknown) => error);
    assert.ok(told instanceof HailError);
    assert.deepEqual([told.code, told.message, told.hint, told.details, told.retryAfterMs], ["data_loss", "it is gone", "h", "d", 7]);
    const secret = await hail.call(served.name).catch((error: unknown) => error);
    assert.ok(secret instanceof HailError && secret.code === "internal" && !secret.message.includes("secret"));
  });

  test("bodies stream both ways at once, and chunks come as they are made", async () => {
    await using served = await other.agent("upper", async function* (request: Request) {
      for await (const chunk of request.body) yield Buffer.from(chunk).toString().toUpperCase();
    });
    const next: Gate<void>[] = [gate(), gate()];
    async function* chunks(): AsyncGenerator<string> {
      yield "one";
      await next[0]?.passed;
      yield "two";
      await next[1]?.passed;
    }
    const seen: string[] = [];
    for await (const chunk of hail.call(served.name, chunks())) {
      seen.push(Buffer.from(chunk).toString());
      next[seen.length - 1]?.open();
    }
    assert.deepEqual(seen, ["ONE", "TWO"]);
  });

  test("a raw stream carries bytes both ways, and each side ends its own direction", async () => {
    await using served = await other.agent("raw", async function* (request: Request) {
      assert.equal(request.kind, "stream");
      yield "hello";
      for await (const chunk of request.body) yield chunk;
      yield "bye";
    });
    await using stream = await hail.stream(served.name);
    const reader = stream[Symbol.asyncIterator]();
    assert.equal(Buffer.from((await reader.next()).value ?? []).toString(), "hello");
    await stream.write("one");
    assert.equal(Buffer.from((await reader.next()).value ?? []).toString(), "one");
    stream.finish();
    assert.equal(Buffer.from((await reader.next()).value ?? []).toString(), "bye");
    assert.equal((await reader.next()).done, true);
    assert.equal(await code(hail.stream("nothing")), "not_found");
  });

  test("one-way sends are acknowledged, and those that are too long are refused", async () => {
    const got = gate<string>();
    await using served = await other.agent("log", async (request: Request) => {
      got.open(await request.text(32 * 1024 * 1024));
    });
    await hail.send(served.name, "a message");
    assert.equal(await got.passed, "a message");
    assert.equal(await code(hail.send(served.name, Buffer.alloc(16 * 1024 * 1024 + 1))), "resource_exhausted");
  });

  test("giving a call up reaches its handler: by a signal, by leaving, by cancel", async () => {
    const left: string[] = [];
    let told = gate();
    let running = gate();
    await using served = await other.agent("waits", async (request: Request) => {
      running.open();
      await new Promise<void>((resolve) => request.signal.addEventListener("abort", () => resolve()));
      left.push((request.signal.reason as HailError).code);
      told.open();
    });
    const abort = new AbortController();
    const first = hail.call(served.name, "", { signal: abort.signal });
    const ended = code(first);
    await running.passed;
    abort.abort(new Error("enough"));
    assert.equal(await ended, "cancelled");
    await told.passed;
    told = gate();
    running = gate();
    const second: Call = hail.call(served.name);
    const cancelled = code(second);
    await running.passed;
    second.cancel();
    assert.equal(await cancelled, "cancelled");
    await told.passed;
    assert.deepEqual(left, ["cancelled", "cancelled"]);
    assert.equal(await code(hail.call("echo", "", { signal: AbortSignal.abort() })), "cancelled");

    const stopped = gate();
    await using endless = await other.agent("endless", async function* () {
      try {
        for (let n = 0; ; n += 1) {
          yield `${n}\n`.repeat(1000);
          await new Promise((resolve) => setImmediate(resolve));
        }
      } finally {
        stopped.open();
      }
    });
    for await (const chunk of hail.call(endless.name)) {
      assert.ok(chunk.length > 0);
      break;
    }
    await stopped.passed;
  });

  test("a deadline ends the call at both ends", async () => {
    const told = gate<string>();
    await using served = await other.agent("slow", async (request: Request) => {
      assert.ok(request.timeLeft !== undefined && request.timeLeft <= 100);
      await new Promise<void>((resolve) => request.signal.addEventListener("abort", () => resolve()));
      told.open((request.signal.reason as HailError).code);
    });
    const began = performance.now();
    assert.equal(await code(hail.call(served.name, "", { timeout: 100 })), "deadline_exceeded");
    assert.ok(performance.now() - began >= 99);
    assert.match(await told.passed, /deadline_exceeded|cancelled/);
    assert.equal(await code(hail.call("echo", "", { timeout: 0 })), "deadline_exceeded");
  });

  test("a call within a call has what is left of its time, says who makes it, and ends with it", async () => {
    const inner = gate<{ left: number | undefined; from: string }>();
    const gone = gate();
    await using first = await other.agent("inner", async (request: Request) => {
      inner.open({ left: request.timeLeft, from: request.from.agent });
      await new Promise<void>((resolve) => request.signal.addEventListener("abort", () => resolve()));
      gone.open();
    });
    await using second = await other.agent("outer", async () => {
      await Promise.resolve();
      return (await other.call(first.name, "", { timeout: 60_000 })).body;
    });
    assert.equal(await code(hail.call(second.name, "", { timeout: 200 })), "deadline_exceeded");
    const seen = await inner.passed;
    assert.equal(seen.from, "outer");
    assert.ok(seen.left !== undefined && seen.left <= 200, `${seen.left}`);
    await gone.passed;
    await using quick = await other.agent("quick", async () => (await other.call("shout", "passed on")).text());
    assert.equal((await hail.call(quick.name)).text(), "PASSED ON");
    await using whole = await other.agent("whole", async () => other.call("echo", "x", { type: "a/b" }));
    assert.equal((await hail.call(whole.name)).type, "a/b");
  });

  test("an answer that is waited for whole is bounded", async () => {
    const failed = await hail.call("echo", Buffer.alloc(100_000), { maxBytes: 50_000 }).catch((error: unknown) => error);
    assert.ok(failed instanceof HailError && failed.code === "resource_exhausted");
    assert.equal((await hail.call("echo", Buffer.alloc(50_000), { maxBytes: 50_000 })).body.length, 50_000);
  });

  test("a call is made again where that may help, and only where it may be", async () => {
    let asked = 0;
    await using served = await other.agent("flaky", (request: Request) => {
      asked += 1;
      assert.equal(request.idempotencyKey, "k");
      if (asked < 3) throw new HailError("unavailable", "not now");
      return `try ${asked}`;
    });
    assert.equal((await hail.call(served.name, "x", { idempotencyKey: "k", retries: 3 })).text(), "try 3");
    asked = 0;
    assert.equal(await code(hail.call(served.name, "x", { idempotencyKey: "k" })), "unavailable");
    assert.equal(await code(hail.call(served.name, "x", { retries: 1 })), "invalid_argument");
    await using hedged = await other.agent("hedged", async (request: Request) => {
      asked += 1;
      if (asked > 1) return "second";
      await new Promise<void>((resolve) => request.signal.addEventListener("abort", () => resolve()));
      return "first";
    });
    asked = 0;
    assert.equal((await hail.call(hedged.name, "x", { idempotencyKey: "h", hedgeAfter: 20 })).text(), "second");
  });

  test("an agent is replaced and taken back without a call finding it gone", async () => {
    const held = gate();
    const begun = gate();
    const served = await other.agent("changing", { description: "one" }, async () => {
      begun.open();
      await held.passed;
      return "old";
    });
    assert.equal(await code(other.agent("changing", () => "")), "already_exists");
    const under = hail.call(served.name);
    const answered = under.then((answer) => answer.text());
    await begun.passed;
    await served.replace(() => "new", { description: "two" });
    assert.equal((await hail.call(served.name)).text(), "new");
    const [row] = await hail.agents({ words: ["changing"] });
    assert.equal(row?.description, "two");
    held.open();
    assert.equal(await answered, "old");
    await served.drain();
    assert.equal(await served.closed, undefined);
    assert.equal(await code(hail.call(served.name)), "not_found");
    assert.equal(await code(other.agent("node", () => "")), "invalid_argument");
    assert.equal(await code(other.agent("Bad Name", () => "")), "invalid_argument");
  });

  test("the node tells of itself and of agents", async () => {
    const status = await hail.status();
    assert.equal(status.pid > 0 && status.id.length, 52);
    await using served = await other.agent(
      "described",
      { description: "a line", tags: ["t"], version: "1", maxConcurrency: 3, methods: [{ name: "m", inputSchema: { type: "string" } }] },
      () => "",
    );
    const described = await hail.describe(served.name);
    assert.equal(described.description, "a line");
    assert.equal(described.methods[0]?.name, "m");
    const [row] = await hail.agents({ tags: ["t"] });
    assert.deepEqual([row?.name, row?.version, row?.local], ["described", "1", true]);
    const member = row?.member_numbers[0];
    assert.ok(member !== undefined);
    assert.equal(await code(hail.call(served.name, "", { member })), "ok");
    assert.equal(await code(hail.call(served.name, "", { member: member + 1000 })), "not_found");
  });

  test("what is published reaches who is subscribed, and what is kept comes again", async () => {
    const subscription = await hail.subscribe(["build.*.done", "chat.>"]);
    const receipt = await other.publish("build.web.done", "green", { type: "text/plain", headers: { a: "1" }, from: "ci" });
    assert.deepEqual([receipt.published, receipt.programs], [1, 1]);
    await other.publish("build.web", "not this one");
    await using publisher = other.publisher();
    for (let n = 0; n < 1000; n += 1) await publisher.publish("chat.a", `${n}`);
    assert.equal((await publisher.finish()).published, 1000);
    const seen: string[] = [];
    for await (const event of subscription) {
      if (event.kind !== "message") continue;
      seen.push(Buffer.from(event.body).toString());
      if (seen.length === 1) {
        assert.deepEqual([event.topic, event.type, event.from, event.node], ["build.web.done", "text/plain", "ci", null]);
        assert.deepEqual(event.headers, [["a", "1"]]);
      }
      if (seen.length === 1001) break;
    }
    assert.deepEqual(seen.slice(0, 3), ["green", "0", "1"]);
    assert.equal(await code(hail.publish("no topic", "")), "invalid_argument");
    assert.equal(await code(hail.subscribe("a..b")), "invalid_argument");

    await hail.admin("topic.keep", { pattern: "orders.>" });
    for (const order of ["1", "2", "3"]) await hail.publish("orders.new", order);
    const first = await hail.subscribeAs("reader", "orders.>", { from: 1 });
    const got: string[] = [];
    for (;;) {
      const event = await first.next();
      if (event?.kind !== "message") continue;
      got.push(Buffer.from(event.body).toString());
      if (got.length === 2) {
        await first.confirm(event);
        break;
      }
    }
    first.close();
    await using again = await hail.subscribeAs("reader", "orders.>", { from: 1 });
    let event = await again.next();
    while (event?.kind !== "message") event = await again.next();
    assert.equal(Buffer.from(event.body).toString(), "3");
    await using replay = await hail.replay("orders.>", { last: 1 });
    event = await replay.next();
    while (event?.kind !== "message") event = await replay.next();
    assert.equal(Buffer.from(event.body).toString(), "3");
  });

  test("state is put, read, watched and deleted, and a condition is kept", async () => {
    const first = await hail.statePut("build.web", "green");
    await using watch = await other.watchState("build.>");
    const seen: string[] = [];
    let event = await watch.next();
    while (event !== undefined && event.kind !== "settled") {
      if (event.kind === "value") seen.push(Buffer.from(event.value.value).toString());
      event = await watch.next();
    }
    assert.deepEqual(seen, ["green"]);
    assert.equal(await code(hail.statePut("build.web", "red", { ifRevision: first.last + 1000 })), "aborted");
    await hail.statePut("build.web", "red", { ifRevision: first.last });
    event = await watch.next();
    assert.ok(event?.kind === "value");
    assert.equal(Buffer.from(event.value.value).toString(), "red");
    const value = await other.stateGet("build.web");
    assert.equal(Buffer.from(value?.value ?? []).toString(), "red");
    assert.equal((await other.stateValues("build.>")).values.length, 1);
    await hail.stateDelete("build.web");
    assert.equal(await other.stateGet("build.web"), undefined);
  });

  test("a task outlives its agent, says how far it is, and is waited for; another is withdrawn", async () => {
    const here = (await hail.status()).id;
    const task = await hail.submit(`worker@${here}`, { n: 3 }, { method: "work", idempotencyKey: "once" });
    assert.equal(task.known, false);
    assert.equal((await hail.submit(`worker@${here}`, { n: 3 }, { method: "work", idempotencyKey: "once" })).id, task.id);
    const attempt = gate();
    const worker = await other.agent("worker", async (request: Request) => {
      await other.reportProgress(request, 1, 3, "begun");
      await attempt.passed;
      return `did ${JSON.stringify(await request.json())}`;
    });
    let detail = await hail.task(task.id);
    while (detail.progress === null) {
      detail = await hail.taskNews(task.id, { attempts: detail.attempts, progress_at_ms: 0, partial_bytes: detail.partial_bytes });
    }
    assert.equal(detail.progress.text, "begun");
    attempt.open();
    const done = await hail.waitTask(task.id);
    assert.deepEqual([done.task, done.answer.text], ["completed", 'did {"n":3}']);
    assert.ok((await hail.tasks("completed")).some(({ id }) => id === task.id));
    await worker.drain();
    const second = await hail.submit(`worker@${here}`, "never", { inOrder: false });
    const row = await hail.cancelTask(second.id);
    assert.equal(row.id, second.id);
    assert.equal((await hail.waitTask(second.id)).task, "cancelled");
    await hail.sendDurable(`mailbox@${here}`, "a letter", { attempts: 3, keep: 60_000 });
    const [letter] = await hail.inbox.take("mailbox", { most: 5 });
    assert.ok(letter);
    assert.equal(letter.body.text, "a letter");
    await hail.inbox.ack(letter.id);
    const [kept] = await hail.inbox.list({ sent: true, agent: `mailbox@${here}` });
    assert.equal((await hail.inbox.show(kept?.id ?? "")).attempts >= 0, true);
    assert.equal(await code(hail.reportProgress({ header: () => undefined } as unknown as Request, 1)), "failed_precondition");
  });

  test("handlers know all that a call says", async () => {
    const seen = gate<object>();
    await using served = await other.agent("knows", (request: Request) => {
      const { method, type, priority, idempotencyKey, affinity, traceparent, tracestate, kind, agent } = request;
      seen.open({ method, type, priority, idempotencyKey, affinity, traceparent, tracestate, kind, agent, from: request.from.agent, x: request.header("x") });
      return undefined;
    });
    const traceparent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    await hail.call(served.name, "b", {
      method: "m",
      type: "t/x",
      priority: "high",
      idempotencyKey: "i",
      affinity: "u",
      traceparent,
      tracestate: "v=1",
      from: "me",
      headers: [["x", "1"]],
    });
    assert.deepEqual(await seen.passed, {
      method: "m",
      type: "t/x",
      priority: "high",
      idempotencyKey: "i",
      affinity: "u",
      traceparent,
      tracestate: "v=1",
      kind: "call",
      agent: "knows",
      from: "me",
      x: "1",
    });
  });

  test("an answer that nobody reads holds its agent back, and does not hold up other calls", async () => {
    let made = 0;
    await using served = await other.agent("flood", async function* () {
      await Promise.resolve();
      for (; made < 1000; made += 1) yield Buffer.alloc(65_536);
    });
    const call = hail.call(served.name);
    await call.head();
    for (let n = 0; n < 200; n += 1) assert.equal((await hail.call("shout", "a")).text(), "A");
    assert.ok(made < 500, `${made} chunks were made`);
    call.cancel();
  });

  // Node 20 itself, doing nothing, takes about 42 MB; with the package loaded and attached, 53 MB.
  test("1 GiB that is read slowly takes little memory, of the whole process, where it is read and where it is made", { timeout: 300_000 }, async (context) => {
    const bytes = 1024 * 1024 * 1024;
    await using flood = await other.agent("flood", async function* (request: Request) {
      const most = Number(await request.text());
      const chunk = Buffer.alloc(65_536, 7);
      for (let sent = 0; sent < most; sent += chunk.length) yield chunk;
    });
    await using swallow = await other.agent("swallow", async (request: Request) => {
      let read = 0;
      let due = 0;
      for await (const chunk of request.body) {
        read += chunk.length;
        if (read < due) continue;
        due = read + 256 * 1024;
        await new Promise((resolve) => setTimeout(resolve, 1));
      }
      return String(read);
    });
    for (const [agent, script] of [[flood, "slow_reader"], [swallow, "slow_writer"]] as const) {
      await using program = new TestProgram(`programs/${script}.js`, node.folder, [String(bytes)]);
      assert.equal(await program.exited, 0, program.complained);
      const { moved, attached, most } = JSON.parse(program.said) as { moved: number; attached: number; most: number };
      assert.equal(moved, bytes);
      const said = `${agent.name}: ${(attached / 1e6).toFixed(1)} MB attached, ${(most / 1e6).toFixed(1)} MB at most`;
      context.diagnostic(said);
      assert.ok(most - attached < 14e6, said);
      // Another version of Node may begin with more.
      assert.ok(most < Math.max(66e6, attached + 14e6), said);
    }
  });

  test("an agent that is refused is not silent where nobody awaits it: the process ends, or `run` says why", async () => {
    await using alone = new TestProgram("programs/unawaited.js", node.folder, ["alone"]);
    assert.equal(await alone.exited, 1);
    assert.match(alone.complained, /invalid_argument/);
    await using run = new TestProgram("programs/unawaited.js", node.folder, ["run"]);
    assert.equal(await run.exited, 0);
    assert.match(run.said, /run: HailError: .*node/);
    assert.equal(run.complained, "");
    // Of what was awaited and caught, `run` knows nothing.
    await using caught = await connect({ dataDir: node.folder });
    assert.equal(await code(caught.agent("node", () => "")), "invalid_argument");
    await caught.run({ signal: AbortSignal.abort(), quiet: true });
  });

  test("a program that runs says what it serves, unless it is to be quiet", async () => {
    await using program = new TestProgram("programs/agent.js", node.folder);
    await program.complains("(Ctrl-C to stop)");
    assert.equal(program.complained, "serving gate, latch   (Ctrl-C to stop)\n");
    await using quiet = new TestProgram("programs/agent.js", node.folder, ["quiet"]);
    await quiet.says("serving");
    for (const each of [program, quiet]) {
      each.process.kill("SIGTERM");
      assert.equal(await each.exited, 0);
    }
    assert.equal(quiet.complained, "");
  });

  test("Ctrl-C takes an agent back in order, and the call under way ends well", async () => {
    await using program = new TestProgram("programs/agent.js", node.folder);
    await program.says("serving");
    const further = gate();
    async function* chunks(): AsyncGenerator<string> {
      yield "a";
      await further.passed;
      yield "b";
    }
    const call = hail.call("gate", chunks());
    const reader = call[Symbol.asyncIterator]();
    assert.equal(Buffer.from((await reader.next()).value ?? []).toString(), "open");
    program.process.kill("SIGINT");
    // Once the agent has left, no new call finds it.
    while ((await code(hail.call("gate", "x", { timeout: 5000 }))) === "ok");
    further.open();
    let rest = "";
    for (let step = await reader.next(); step.done !== true; step = await reader.next()) rest += Buffer.from(step.value).toString();
    assert.equal(rest, "abdone");
    assert.equal(await program.exited, 0);
    assert.match(program.said, /left in order/);
  });
});

test("when the node is killed under 1,000 calls each ends within 2 s, and agents come back by themselves", { skip: noNode }, async () => {
  await using node = await startNode();
  await using hail = await connect({ dataDir: node.folder });
  await using other = await connect({ dataDir: node.folder });
  let served = 0;
  const under = gate();
  await other.agent("held", async (request) => {
    served += 1;
    if (served === 500) under.open();
    await new Promise<void>((resolve) => request.signal.addEventListener("abort", () => resolve()));
  });
  await other.agent("shout", async (request) => (await request.text()).toUpperCase());
  const calls = Array.from({ length: 1000 }, (_, n) => code(hail.call(n % 2 === 0 ? "held" : "shout", "x")));
  await under.passed;
  const killed = performance.now();
  await node.kill("SIGKILL");
  const ended = await Promise.all(calls);
  assert.ok(performance.now() - killed < 2000, "within 2 s");
  for (const outcome of ended) assert.ok(outcome === "ok" || outcome === "unavailable", outcome);
  assert.ok(ended.filter((outcome) => outcome === "unavailable").length >= 500);
  assert.equal(await code(hail.call("shout", "x")), "unavailable", "at once while it is away");
  await node.start();
  const until = performance.now() + 10_000;
  while ((await code(hail.call("shout", "x", { timeout: 1000 }))) !== "ok") {
    assert.ok(performance.now() < until, "they do not come back");
    await new Promise((resolve) => setImmediate(resolve));
  }
  assert.equal((await hail.call("shout", "back")).text(), "BACK");
});

test("a client without a node says so, one that does not reconnect ends, and a closed one fails at once", { skip: noNode }, async () => {
  const failed = await connect({ dataDir: "/nowhere/at/all" }).catch((error: unknown) => error);
  assert.ok(failed instanceof HailError && failed.code === "unavailable");
  await using node = await startNode();
  const once = await connect({ dataDir: node.folder, reconnect: false });
  const agent = await once.agent("a", () => "");
  const closed = await connect({ dataDir: node.folder });
  await closed.close();
  assert.equal(await code(closed.call("a")), "unavailable");
  await node.kill("SIGKILL");
  assert.equal((await once.closed).code, "unavailable");
  assert.equal((await agent.closed)?.code, "unavailable");
});

test("a node whose socket has a path that fits no address is found all the same", { skip: noNode }, async () => {
  await using node = await startNode("x".repeat(200));
  await using hail = await connect({ dataDir: node.folder });
  assert.equal((await hail.status()).data_dir, node.folder);
});
