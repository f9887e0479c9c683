/** The wheel, attempts, queues and the way to the socket, each by itself. */

import assert from "node:assert/strict";
import { chmodSync, mkdirSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import net from "node:net";
import os from "node:os";
import path from "node:path";
import { test } from "node:test";

import { HailError } from "../src/index.js";
import { ByteQueue } from "../src/protocol/byte_queue.js";
import { ReceiveQueue } from "../src/protocol/receive_queue.js";
import { CallAttempts, RetryBudget } from "../src/protocol/call_attempts.js";
import { SLOT_MS, TimerWheel, type WheelEntry } from "../src/protocol/timer_wheel.js";
import { whyNoPattern, whyNoTopic } from "../src/protocol/topic_records.js";
import { dataFolder, findSocket } from "../src/socket.js";

interface Entry extends WheelEntry {
  readonly at: number;
}

function entry(at: number): Entry {
  return { at, due: -1, earlier: undefined, later: undefined };
}

/** Numbers that look drawn at random, the same each time. */
function draws(seed: number): (below: number) => number {
  let state = seed;
  return (below) => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
    return Math.floor((state / 0x1_0000_0000) * below);
  };
}

test("a wheel tells each entry once, never too early, and by the time it said itself", () => {
  for (let seed = 1; seed <= 200; seed += 1) {
    const draw = draws(seed);
    const wheel = new TimerWheel<Entry>();
    const waiting = new Set<Entry>();
    let now = draw(1_000_000);
    for (let step = 0; step < 200; step += 1) {
      if (draw(3) > 0) {
        const added = entry(now + draw(draw(4) === 0 ? 100_000 : 500));
        wheel.add(added, added.at, now);
        waiting.add(added);
      } else if (draw(4) === 0) {
        const [removed] = waiting;
        if (removed !== undefined) {
          wheel.remove(removed);
          wheel.remove(removed);
          waiting.delete(removed);
        }
      }
      const wake = wheel.wakeAt();
      assert.equal(wake === undefined, waiting.size === 0);
      now = draw(2) === 0 && wake !== undefined ? Math.max(now, wake) : now + draw(300);
      wheel.poll(now, (told) => {
        assert.ok(told.at <= now, "not before it is due");
        assert.ok(waiting.delete(told), "once");
      });
      for (const left of waiting) assert.ok(left.at > now - SLOT_MS, "and not long after");
      assert.equal(wheel.size, waiting.size);
    }
  }
});

test("a failure that may pass is retried after a pause that doubles, and another is not", () => {
  const budget = new RetryBudget();
  const policy = { retries: 2, hedgeAfter: undefined };
  const attempts = new CallAttempts(0, policy, undefined, budget);
  const failed = (code: number, retryAfterMs = 0): { code: number; retryAfterMs: number } => ({ code, retryAfterMs });
  assert.deepEqual(attempts.pollAction(), { do: "start", attempt: 0 });
  attempts.handleFailure(0, 0, failed(14), 0);
  assert.equal(attempts.pollTimeout(), 25);
  attempts.handleTimeout(24);
  assert.equal(attempts.pollAction(), undefined);
  attempts.handleTimeout(25);
  assert.deepEqual(attempts.pollAction(), { do: "start", attempt: 1 });
  attempts.handleFailure(25, 1, failed(14), 1);
  assert.equal(attempts.pollTimeout(), 50, "half of 50");
  attempts.handleTimeout(50);
  assert.deepEqual(attempts.pollAction(), { do: "start", attempt: 2 });
  attempts.handleFailure(50, 2, failed(14), 0);
  assert.deepEqual(attempts.pollAction(), { do: "finish", attempt: 2 });

  const refused = new CallAttempts(0, policy, undefined, budget);
  refused.handleFailure(0, 0, failed(3), 0);
  refused.pollAction();
  assert.deepEqual(refused.pollAction(), { do: "finish", attempt: 0 });

  const asked = new CallAttempts(0, policy, undefined, budget);
  asked.handleFailure(0, 0, failed(8, 300), 0);
  assert.equal(asked.pollTimeout(), 300, "not before whoever refused says");
  const late = new CallAttempts(0, policy, 300, budget);
  late.handleFailure(0, 0, failed(8, 300), 0);
  assert.equal(late.pollTimeout(), undefined, "nor at the deadline");

  const hedging = new CallAttempts(0, { retries: 0, hedgeAfter: 40 }, undefined, budget);
  hedging.pollAction();
  hedging.handleTimeout(40);
  assert.deepEqual(hedging.pollAction(), { do: "start", attempt: 1 });
  hedging.handleAnswer(1);
  hedging.handleAnswer(0);
  assert.deepEqual(hedging.pollAction(), { do: "finish", attempt: 1 });
  assert.equal(hedging.pollAction(), undefined);
});

test("a budget begins with ten further attempts, earns a fifth for each call and saves a hundred", () => {
  const budget = new RetryBudget();
  const drain = (): number => {
    let taken = 0;
    while (budget.take()) taken += 1;
    return taken;
  };
  assert.equal(drain(), 10);
  for (let call = 0; call < 5; call += 1) budget.addCall();
  assert.equal(drain(), 1);
  for (let call = 0; call < 10_000; call += 1) budget.addCall();
  assert.equal(drain(), 100);
});

test("a queue keeps the order of bytes, and small pieces do not become many", () => {
  const draw = draws(7);
  for (let round = 0; round < 200; round += 1) {
    const queue = new ByteQueue();
    const put: Buffer[] = [];
    const got: Buffer[] = [];
    for (let step = 0; step < 100; step += 1) {
      const bytes = Buffer.from(Array.from({ length: draw(draw(10) === 0 ? 6000 : 40) }, () => draw(256)));
      queue.push(Buffer.from(bytes));
      put.push(bytes);
      if (draw(3) === 0) got.push(Buffer.from(queue.shift(1 + draw(100)) ?? []));
      if (draw(10) === 0) {
        const target = Buffer.alloc(50);
        got.push(target.subarray(0, queue.moveTo(target, 0, draw(50))));
      }
    }
    got.push(queue.takeAll());
    assert.equal(queue.length, 0);
    assert.ok(Buffer.concat(put).equals(Buffer.concat(got)));
  }
  const many = new ByteQueue();
  for (let at = 0; at < 100_000; at += 1) many.push(Buffer.from([at & 0xff]));
  assert.ok(many.pieces < 30, `${many.pieces} pieces`);
});

test("bytes that wait to be read keep their order, and take little more room than they are", () => {
  const draw = draws(8);
  const draining = new ReceiveQueue();
  for (let round = 0; round < 60; round += 1) {
    const queue = round % 2 === 0 ? new ReceiveQueue() : draining;
    const put: Buffer[] = [];
    const got: Buffer[] = [];
    for (let step = 0; step < 100; step += 1) {
      const bytes = Buffer.alloc(draw(draw(10) === 0 ? 40_000 : 40), Buffer.from([draw(256), draw(256), draw(256)]));
      const start = draw(bytes.length + 1);
      queue.push(bytes, start, bytes.length);
      put.push(bytes.subarray(start));
      assert.ok(queue.held < queue.length + 2 * 16_384 + 4096, `${queue.held} for ${queue.length}`);
      if (draw(3) === 0) got.push(queue.shift() ?? Buffer.alloc(0));
      if (draw(20) === 0) got.push(queue.takeAll());
    }
    got.push(queue.takeAll());
    assert.deepEqual([queue.length, queue.held, queue.shift()], [0, 0, undefined]);
    assert.ok(Buffer.concat(put).equals(Buffer.concat(got)));
  }
  // What was given to a reader stays as it is, whatever is put into the queue then.
  draining.push(Buffer.alloc(20_000, 1), 0, 20_000);
  const given = draining.shift();
  draining.clear();
  draining.push(Buffer.alloc(40_000, 2), 0, 40_000);
  assert.ok(given?.every((byte) => byte === 1));
  const few = new ReceiveQueue();
  for (let at = 0; at < 1000; at += 1) few.push(Buffer.from([at & 0xff]), 0, 1);
  assert.equal(few.held, 4096);
});

test("topics and patterns keep their grammar", () => {
  for (const good of ["a", "build.web.done", "a-b.c_d.9", Array(16).fill("a").join(".")]) {
    assert.equal(whyNoTopic(good), undefined);
    assert.equal(whyNoPattern(good), undefined);
  }
  for (const pattern of ["*", ">", "build.*", "*.done", "build.>", "*.*.>"]) {
    assert.ok(whyNoTopic(pattern));
    assert.equal(whyNoPattern(pattern), undefined);
  }
  for (const bad of ["", ".", "a.", ".a", "a..b", "A", "a b", "a.b*", "a.>b", ">.a", "-a", "ä", "a\n", "x".repeat(65), Array(17).fill("a").join(".")]) {
    assert.ok(whyNoPattern(bad), bad);
  }
});

test("the data folder is said by the environment", () => {
  assert.equal(dataFolder("/a", { HAIL_DATA: "/b" }), "/a");
  assert.equal(dataFolder(undefined, { HAIL_DATA: "/b", HOME: "/h" }), "/b");
  assert.equal(dataFolder(undefined, { HAIL_DATA: "", XDG_DATA_HOME: "/x", HOME: "/h" }), "/x/hailwire");
  assert.equal(dataFolder(undefined, { HOME: "/h" }), "/h/.local/share/hailwire");
  assert.throws(() => dataFolder(undefined, {}), HailError);
});

test("a socket is found however long its path is, and refused where it may be somebody else's", async () => {
  const folder = mkdtempSync(path.join(os.tmpdir(), "hail-ts-"));
  const code = (root: string): string => {
    try {
      findSocket(root).close();
      return "ok";
    } catch (error) {
      return error instanceof HailError ? error.code : String(error);
    }
  };
  try {
    const root = path.join(folder, "x".repeat(200));
    assert.equal(code(root), "unavailable", "nothing is there");
    mkdirSync(path.join(root, "run"), { recursive: true, mode: 0o700 });
    assert.equal(code(root), "unavailable", "no socket is there");
    writeFileSync(path.join(root, "run/hail.sock"), "");
    assert.equal(code(root), "permission_denied", "what is there is no socket");
    rmSync(path.join(root, "run/hail.sock"));
    // The folder is short enough to be bound through its descriptor, as a node does.
    const short = path.join(folder, "s");
    mkdirSync(path.join(short, "run"), { recursive: true, mode: 0o700 });
    const server = net.createServer();
    await new Promise<void>((resolve) => server.listen(path.join(short, "run/hail.sock"), () => resolve()));
    try {
      assert.equal(code(short), "ok");
      const found = findSocket(short);
      assert.ok(Buffer.byteLength(found.path) <= 107);
      found.close();
      chmodSync(path.join(short, "run"), 0o722);
      assert.equal(code(short), "permission_denied", "others can write into its folder");
      chmodSync(path.join(short, "run"), 0o700);
      mkdirSync(path.join(folder, "l"));
      symlinkSync(path.join(short, "run"), path.join(folder, "l/run"));
      assert.equal(code(path.join(folder, "l")), "permission_denied", "its folder is a link");
    } finally {
      await new Promise((resolve) => server.close(resolve));
    }
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
});
