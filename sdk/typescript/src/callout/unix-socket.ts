/**
 * A socket as a stream of bytes, and a Unix socket to listen on.
 *
 * The socket's file has mode 0600 before anybody finds it, and goes with the listener.
 */
import { chmodSync, lstatSync, renameSync, rmSync } from "node:fs";
import { type Server, type Socket, connect, createServer } from "node:net";
import type { Duplex } from "node:stream";

import type { ByteStream } from "./session.js";

/** Any stream of Node as a {@link ByteStream}. */
export function duplexStream(duplex: Duplex): ByteStream {
  let failure: Error | undefined;
  // A failure reaches whoever reads or writes next.
  duplex.on("error", (error) => (failure = error));
  const ended = (): boolean => duplex.readableEnded || duplex.destroyed;
  return {
    async read() {
      for (;;) {
        if (failure !== undefined) throw failure;
        const chunk = duplex.read() as Buffer | null;
        if (chunk !== null || ended()) return chunk;
        await any(duplex, ["readable", "end", "close", "error"]);
      }
    },
    async write(data) {
      if (failure !== undefined) throw failure;
      if (duplex.destroyed) throw new Error("the stream has ended");
      if (!duplex.write(data)) await any(duplex, ["drain", "close", "error"]);
    },
    async close() {
      if (duplex.destroyed) return;
      duplex.end();
      // What the other side does not take within a second is dropped.
      const timer = setTimeout(() => duplex.destroy(), 1_000);
      if (!duplex.writableFinished) await any(duplex, ["finish", "close", "error"]);
      clearTimeout(timer);
      duplex.destroy();
    },
  };
}

/** Connects to a socket's path. Rejects with the system's error. */
export function connectUnix(path: string): Promise<Socket> {
  return new Promise((resolve, reject) => {
    const socket = connect(path);
    socket.once("error", reject);
    socket.once("connect", () => {
      socket.off("error", reject);
      resolve(socket);
    });
  });
}

/** A Unix socket that is listened on. */
export interface UnixListener {
  /** Listens no more. The file goes, unless it is somebody else's by now. */
  close(): Promise<void>;
  /** Rejects when the socket fails. */
  readonly failed: Promise<never>;
}

/**
 * Listens, and gives each connection to `accept`; of more than `maxConnections` the next is closed.
 *
 * Rejects where something else is at the path, or somebody listens there.
 */
export async function listenUnix(
  path: string,
  maxConnections: number,
  accept: (socket: Socket) => void,
): Promise<UnixListener> {
  await refuseWhatLives(path);
  const fresh = `${path}.new`;
  rmSync(fresh, { force: true });
  const server = createServer(accept);
  server.maxConnections = maxConnections;
  const restore = onlyThisUser();
  try {
    await listening(server, fresh, restore);
    chmodSync(fresh, 0o600);
    renameSync(fresh, path);
  } catch (error) {
    server.close();
    rmSync(fresh, { force: true });
    throw error;
  }
  const { ino } = lstatSync(path);
  const failed = new Promise<never>((_, reject) => server.once("error", reject));
  failed.catch(() => undefined);
  return {
    failed,
    close: () =>
      new Promise((resolve) => {
        server.close(() => resolve());
        if (lstatSync(path, { throwIfNoEntry: false })?.ino === ino) rmSync(path, { force: true });
      }),
  };
}

/** Waits for the first of some events. */
function any(duplex: Duplex, names: readonly string[]): Promise<void> {
  return new Promise((resolve) => {
    const done = (): void => {
      for (const name of names) duplex.off(name, done);
      resolve();
    };
    for (const name of names) duplex.on(name, done);
  });
}

/** Makes files of this user alone until the returned function is called; in a worker, which may not, does nothing. */
function onlyThisUser(): () => void {
  try {
    const before = process.umask(0o177);
    return () => void process.umask(before);
  } catch {
    return () => undefined;
  }
}

function listening(server: Server, path: string, restore: () => void): Promise<void> {
  return new Promise((resolve, reject) => {
    server.once("error", reject);
    // The file is made before `listen` returns.
    server.listen(path, () => {
      server.off("error", reject);
      resolve();
    });
    restore();
  });
}

async function refuseWhatLives(path: string): Promise<void> {
  const found = lstatSync(path, { throwIfNoEntry: false });
  if (found === undefined) return;
  if (!found.isSocket()) throw new Error(`${path} exists and is no socket`);
  let probe: Socket;
  try {
    probe = await connectUnix(path);
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    if (code === "ECONNREFUSED" || code === "ENOENT") return;
    throw error;
  }
  probe.destroy();
  throw new Error(`somebody listens at ${path}`);
}
