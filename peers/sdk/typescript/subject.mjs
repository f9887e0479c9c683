// What the subjects written in JavaScript share: their command line, and the work of docs/reference/bench-subjects.md. It is that of
// ../python/subject.py:
//
//     PROGRAM serve [--listen IP]
//     PROGRAM load [ADDRESS] [--signal]
//     PROGRAM load [ADDRESS] [--signal] --in-flight N --seconds S
//
// With `--signal` each call has its deadline from `AbortSignal.timeout`, else from the library's own option. The only work is `rate`. Each body
// begins with a number of its own, and each answer is compared with its message.

import { spawn } from "node:child_process";
import { randomBytes } from "node:crypto";
import { mkdtempSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { createInterface } from "node:readline";
import { setTimeout as sleep } from "node:timers/promises";
import { parseArgs } from "node:util";

/** Milliseconds that each call may take. */
export const DEADLINE = 10_000;

const SHARES = [0, 0.5, 0.9, 0.99, 0.999, 1];

// ES modules are looked for beside the program; what peers/install installs is in the target folder.
const installed = createRequire(join(process.env.HAILWIRE_SDK_MODULES ?? import.meta.dirname, "subject.cjs"));

/** A package that `peers/install sdk-node` installed. */
export const foreign = (name) => installed(name);

/** `grpc-js 1.14.7`: what a result names. */
export function version(name) {
  let folder = dirname(installed.resolve(name));
  for (;;) {
    try {
      const found = JSON.parse(readFileSync(join(folder, "package.json"), "utf8"));
      if (found.name === name) return `${name} ${found.version}`;
    } catch {
      // The folder above may have it.
    }
    if (folder === dirname(folder)) return name;
    folder = dirname(folder);
  }
}

/**
 * Runs one of the two programs. `serve(listen)` gives `{ address, close }`; `connect(address, deadline)` gives `{ echo, close }`, where
 * `deadline(own)` is what a call is told of its deadline: `own`, the library's options for it, or a signal. `versions` are those that a result names.
 */
export async function main(serve, connect, ...versions) {
  const { values, positionals } = parseArgs({
    allowPositionals: true,
    options: {
      listen: { type: "string", default: "127.0.0.1" },
      signal: { type: "boolean", default: false },
      "in-flight": { type: "string" },
      seconds: { type: "string", default: "2" },
      bytes: { type: "string", default: "1024" },
    },
  });
  const [part, address = ""] = positionals;
  try {
    if (part === "serve") {
      const server = await serve(values.listen);
      say({ ready: { address: server.address } });
      for await (const _ of lines());
      await server.close();
    } else if (part === "load") {
      const connection = await connect(address, values.signal ? signal : (own) => own);
      const inFlight = Number(values["in-flight"] ?? 0);
      if (inFlight > 0) {
        say(await rate(connection.echo, inFlight, Number(values.seconds), Number(values.bytes)));
      } else {
        say({ ready: { versions: [...versions, `Node ${process.versions.node}`].join(", ") } });
        for await (const line of lines()) say(await answered(connection.echo, line));
      }
      await connection.close();
    } else {
      throw new Error("expected serve or load");
    }
  } catch (error) {
    // Standard error's last line becomes the reason in a report.
    console.error(`error: ${reason(error)}`);
    process.exitCode = 1;
  }
  // What a library leaves open must not keep the process.
  process.exit();
}

const signal = () => ({ signal: AbortSignal.timeout(DEADLINE) });

const lines = () => createInterface({ input: process.stdin, crlfDelay: Infinity });

async function answered(echo, line) {
  const [[work, asked]] = Object.entries(JSON.parse(line));
  if (work !== "rate") return { failed: `this subject does no ${work}` };
  try {
    return await rate(echo, asked.in_flight, asked.seconds, asked.bytes);
  } catch (error) {
    return { failed: reason(error) };
  }
}

/** Echoes with so many under way always, until the time is over and the last has its answer. */
async function rate(echo, inFlight, seconds, size) {
  const rest = randomBytes(size);
  const times = [];
  let number = 0;
  const begun = performance.now();
  const until = begun + seconds * 1000;
  const caller = async () => {
    for (let sent = begun; (sent = performance.now()) < until; ) {
      const body = Buffer.from(rest);
      body.writeDoubleBE((number += 1));
      const answer = await echo(body);
      const took = performance.now() - sent;
      if (!body.equals(answer)) throw new Error("an echo differs from its message");
      times.push(took * 1000);
    }
  };
  await Promise.all(Array.from({ length: inFlight }, caller));
  const took = (performance.now() - begun) / 1000;
  const sorted = Float64Array.from(times).sort();
  const count = sorted.length;
  const at = (share) => sorted[Math.min(count - 1, Math.floor(share * count))];
  return {
    figures: {
      count,
      seconds: took,
      messages_per_s: count / took,
      megabits_per_s: (count * size * 8) / 1e6 / took,
      p50_us: at(0.5),
      p90_us: at(0.9),
      p99_us: at(0.99),
      max_us: at(1),
    },
    distribution: SHARES.map((share) => [share, at(share)]),
  };
}

const reason = (error) => (error.message || String(error)).replaceAll(/\s+/g, " ");

const say = (line) => process.stdout.write(`${JSON.stringify(line)}\n`);

/** A folder for a Unix socket or a file of ports, and what removes it. */
export function folder() {
  const path = mkdtempSync(join(tmpdir(), "hail-sdk-"));
  return { path, remove: () => rmSync(path, { recursive: true, force: true }) };
}

// Runs a program until standard input ends, and then ends it: so it is gone with its parent, however that ended.
const KILL_WITH_PARENT = 'command -v "$1" >/dev/null || exit; "$@" </dev/null & child=$!; read -r _; kill -9 "$child" 2>/dev/null; wait';

/** A server of NATS of one's own: `{ url, close }`. */
export async function natsServer(listen) {
  const { path, remove } = folder();
  const program = process.env.HAILWIRE_NATS_SERVER || "nats-server";
  const words = [program, "--addr", listen, "--port", "-1", "--ports_file_dir", path];
  const server = spawn("sh", ["-c", KILL_WITH_PARENT, "sh", ...words], { stdio: ["pipe", "ignore", "ignore"] });
  const ended = new Promise((resolve) => server.once("exit", resolve));
  const close = async () => {
    server.stdin.end();
    await ended;
    remove();
  };
  for (const until = Date.now() + DEADLINE; server.exitCode === null && Date.now() < until; await sleep(10)) {
    for (const name of readdirSync(path)) {
      try {
        return { url: JSON.parse(readFileSync(join(path, name), "utf8")).nats[0], close };
      } catch {
        // It is not written to its end.
      }
    }
  }
  await close();
  throw new Error("nats-server does not start: is it installed? (peers/install nats)");
}
