/**
 * What tests share: vectors, two multiplexers back to back, and real nodes.
 */

import { type ChildProcess, spawn } from "node:child_process";
import { existsSync, mkdtempSync, readFileSync, rmSync, watch } from "node:fs";
import os from "node:os";
import path from "node:path";
import type { Readable } from "node:stream";
import { fileURLToPath } from "node:url";

import { Mux, type MuxOwner, MuxStream } from "../src/protocol/mux.js";

/** The folder of the package. */
export const PACKAGE = fileURLToPath(new URL("../..", import.meta.url));

/** A file of `spec/vectors`. */
export function vectors(name: string): unknown {
  return JSON.parse(readFileSync(path.join(PACKAGE, "../../spec/vectors", name), "utf8")) as unknown;
}

/** The bytes of hex. */
export function hex(text: string): Buffer {
  return Buffer.from(text, "hex");
}

/** A stream that notes what happens to it. Bytes count as unread until they are taken. */
export class NotingStream extends MuxStream {
  readonly notes: string[] = [];
  readonly #parts: Buffer[] = [];
  takes = true;

  /** What has come. */
  get bytes(): Buffer {
    return Buffer.concat(this.#parts);
  }

  override onData(bytes: Buffer, start: number, end: number, fin: boolean): number {
    this.#parts.push(Buffer.from(bytes.subarray(start, end)));
    if (fin) this.notes.push("fin");
    return this.takes ? 0 : end - start;
  }

  override onReset(code: number): void {
    this.notes.push(`reset ${code}`);
  }

  override onStop(code: number): void {
    this.notes.push(`stop ${code}`);
  }

  override onLost(): void {
    this.notes.push("lost");
  }

  override onWritable(): void {
    this.notes.push("writable");
  }
}

/** One end of a connection without I/O. */
export class Side implements MuxOwner {
  readonly mux: Mux;
  readonly accepted: NotingStream[] = [];
  takes = true;
  wakes = 0;
  hasEnded = false;

  constructor(role: "client" | "server") {
    this.mux = new Mux(role, this);
  }

  accept(): MuxStream {
    const stream = new NotingStream();
    stream.takes = this.takes;
    this.accepted.push(stream);
    return stream;
  }

  wake(): void {
    this.wakes += 1;
  }

  ended(): void {
    this.hasEnded = true;
  }

  /** All that it has to write now. */
  output(): Buffer {
    const all: Buffer[] = [];
    for (;;) {
      const output = this.mux.takeOutput();
      if (output === undefined) return Buffer.concat(all);
      all.push(Buffer.from(output));
      this.mux.written();
    }
  }
}

/** Carries bytes between two ends until neither has any. */
export function settle(one: Side, two: Side): void {
  for (;;) {
    const there = one.output();
    two.mux.receive(there);
    const back = two.output();
    one.mux.receive(back);
    if (there.length === 0 && back.length === 0) return;
  }
}

/** The program `hail`; undefined where the environment names none. */
export const HAIL = process.env["HAIL_PROGRAM"];

/** Why a test that needs a node is left out; false where it is not. */
export const noNode: string | false = HAIL === undefined || !existsSync(HAIL) ? "HAIL_PROGRAM names no program" : false;

/** Resolves once `condition` holds, looked at whenever `folder` changes. */
async function onceIn(folder: string, condition: () => boolean): Promise<void> {
  if (condition()) return;
  await new Promise<void>((resolve) => {
    const watcher = watch(folder, () => {
      if (!condition()) return;
      watcher.close();
      resolve();
    });
    if (condition()) {
      watcher.close();
      resolve();
    }
  });
}

/** A node of a folder of its own. */
export class TestNode {
  /** Its data folder. */
  readonly folder: string;
  readonly #temporary: string;
  #process: ChildProcess | undefined;

  constructor(within: string) {
    this.#temporary = mkdtempSync(path.join(os.tmpdir(), "hail-ts-"));
    this.folder = path.join(this.#temporary, within);
  }

  /** Starts it, and waits for its own word that it is up. */
  async start(): Promise<void> {
    const node = spawn(HAIL ?? "", ["up"], { env: { ...process.env, HAIL_DATA: this.folder }, stdio: ["ignore", "pipe", "pipe"] });
    this.#process = node;
    let said = "";
    await new Promise<void>((resolve, reject) => {
      const listen = (chunk: Buffer): void => {
        said += chunk.toString();
        if (said.includes("is up")) resolve();
      };
      node.stdout.on("data", listen);
      node.stderr.on("data", listen);
      node.once("exit", (code) => reject(new Error(`the node ended with ${code}: ${said}`)));
    });
    await onceIn(path.join(this.folder, "run"), () => existsSync(path.join(this.folder, "run/hail.sock")));
  }

  /** Ends it at once. */
  async kill(signal: NodeJS.Signals = "SIGKILL"): Promise<void> {
    const node = this.#process;
    this.#process = undefined;
    if (node?.exitCode !== null || node.signalCode !== null) return;
    node.removeAllListeners("exit");
    const gone = new Promise<void>((resolve) => node.once("exit", () => resolve()));
    node.kill(signal);
    await gone;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.kill();
    rmSync(this.#temporary, { recursive: true, force: true });
  }
}

/** A node that is up, with its data in a folder of this name within one of its own. */
export async function startNode(within = "."): Promise<TestNode> {
  const node = new TestNode(within);
  try {
    await node.start();
  } catch (error) {
    await node[Symbol.asyncDispose]();
    throw error;
  }
  return node;
}

/** What a program has written, and whoever waits for more of it. */
class Written {
  text = "";
  #waiting: (() => void)[] = [];

  constructor(from: Readable) {
    from.on("data", (chunk: Buffer) => {
      this.text += chunk.toString();
      const waiting = this.#waiting;
      this.#waiting = [];
      for (const tell of waiting) tell();
    });
  }

  async until(text: string): Promise<void> {
    while (!this.text.includes(text)) await new Promise<void>((resolve) => this.#waiting.push(resolve));
  }
}

/** A program over the library, with what it writes. */
export class TestProgram {
  readonly process: ChildProcess;
  /** Resolves once it has ended and all that it wrote is known. */
  readonly exited: Promise<number | null>;
  readonly #out: Written;
  readonly #err: Written;

  /** `program` is a built test program, which `command` runs: Node, where nothing else is said. */
  constructor(program: string, dataDir: string, args: readonly string[] = [], command: readonly string[] = [process.execPath]) {
    const [file = "", ...ahead] = command;
    const child = spawn(file, [...ahead, path.join(PACKAGE, "build/test", program), ...args], {
      env: { ...process.env, HAIL_DATA: dataDir },
      stdio: ["ignore", "pipe", "pipe"],
    });
    this.process = child;
    this.#out = new Written(child.stdout);
    this.#err = new Written(child.stderr);
    this.exited = new Promise((resolve) => child.once("close", (code) => resolve(code)));
  }

  /** What it has written to stdout. */
  get said(): string {
    return this.#out.text;
  }

  /** What it has written to stderr. */
  get complained(): string {
    return this.#err.text;
  }

  /** Resolves once it has written a text to stdout. */
  says(text: string): Promise<void> {
    return this.#out.until(text);
  }

  /** Resolves once it has written a text to stderr. */
  complains(text: string): Promise<void> {
    return this.#err.until(text);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    if (this.process.exitCode === null && this.process.signalCode === null) {
      this.process.kill("SIGKILL");
      await this.exited;
    }
  }
}
