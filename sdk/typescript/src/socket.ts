/**
 * Where the node's Unix socket is, and whether it is the user's own.
 *
 * The data folder is `HAIL_DATA`, else `XDG_DATA_HOME/hailwire`, else `~/.local/share/hailwire`; the socket lies in it at `run/hail.sock`. Whoever could
 * put a folder or a socket in its place would read every body, so the owners of the folders and of the socket are looked at before a byte is written.
 * The socket is reached through the open folder (`/proc/self/fd/N`), so that nobody can put another one there between the look and the use, and so
 * that its path may be longer than the 107 bytes that an address of a Unix socket holds.
 */

import fs from "node:fs";
import path from "node:path";

import { HailError } from "./errors.js";
import { MAX_SOCKET_PATH } from "./protocol/limits.js";

const RUN = "run";
const SOCKET = "hail.sock";
/** `O_PATH` of Linux, which Node does not name: the folder is looked at and not read. */
const O_PATH = 0o10000000;

/** A way to a socket, for as long as it is not closed. */
export interface SocketPath {
  readonly path: string;
  close(): void;
}

/** The data folder: `dataDir`, else as the environment says. Throws `failed_precondition` where no home is known either. */
export function dataFolder(dataDir: string | undefined, env: NodeJS.ProcessEnv = process.env): string {
  const set = (name: string): string | undefined => (env[name] === "" ? undefined : env[name]);
  const xdg = set("XDG_DATA_HOME");
  const home = set("HOME");
  const root =
    dataDir ??
    set("HAIL_DATA") ??
    (xdg === undefined ? undefined : path.join(xdg, "hailwire")) ??
    (home === undefined ? undefined : path.join(home, ".local/share/hailwire"));
  if (root === undefined) {
    throw new HailError("failed_precondition", "no data folder is known", { hint: "set HAIL_DATA, or HOME" });
  }
  return path.resolve(root);
}

/**
 * Finds the socket. Throws {@link HailError}: `unavailable` where no node has been, `permission_denied` where somebody else's socket may be in its
 * place.
 */
export function findSocket(root: string): SocketPath {
  const whole = path.join(root, RUN, SOCKET);
  const me = process.geteuid?.();
  if (me === undefined) return { path: whole, close: () => undefined };
  let folder: number | undefined;
  try {
    const owner = fs.statSync(root).uid;
    if (owner !== me && me !== 0) throw foreign(root, `belongs to user ${owner}`);
    folder = openFolder(path.join(root, RUN));
    const ofFolder = fs.fstatSync(folder);
    if (ofFolder.uid !== owner) throw foreign(path.join(root, RUN), `belongs to user ${ofFolder.uid}, not to ${owner}`);
    if ((ofFolder.mode & 0o022) !== 0) throw foreign(path.join(root, RUN), "can be written by others");
    const found = through(folder, whole);
    const ofSocket = fs.lstatSync(found);
    if (!ofSocket.isSocket() || ofSocket.uid !== owner) throw foreign(whole, "is not a socket of its owner's node");
    const held = folder;
    folder = undefined;
    return { path: found, close: () => fs.closeSync(held) };
  } catch (error) {
    throw error instanceof HailError ? error : socketError(root, error);
  } finally {
    if (folder !== undefined) fs.closeSync(folder);
  }
}

/** What a failure of the system on the way to the socket means. */
export function socketError(root: string, error: unknown): HailError {
  const code = error instanceof Error && "code" in error ? error.code : undefined;
  if (code === "ENOENT" || code === "ECONNREFUSED") {
    const hint = "`hail up -d` starts one";
    return new HailError("unavailable", `no node is running with the data folder ${root}`, { hint, cause: error });
  }
  const why = error instanceof Error ? error.message : String(error);
  const number = code === "EACCES" || code === "EPERM" ? "permission_denied" : "unavailable";
  return new HailError(number, `the local socket of ${root} cannot be used: ${why}`, { cause: error });
}

function openFolder(run: string): number {
  const { O_RDONLY, O_DIRECTORY, O_NOFOLLOW } = fs.constants;
  const flags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | (process.platform === "linux" ? O_PATH : 0);
  try {
    return fs.openSync(run, flags);
  } catch (error) {
    const code = error instanceof Error && "code" in error ? error.code : undefined;
    throw code === "ENOTDIR" || code === "ELOOP" ? foreign(run, "is not a folder") : error;
  }
}

/** The socket's path through the open folder; its own where there is no `/proc`. */
function through(folder: number, whole: string): string {
  const short = `/proc/self/fd/${folder}`;
  if (fs.existsSync(short)) return `${short}/${SOCKET}`;
  if (Buffer.byteLength(whole) <= MAX_SOCKET_PATH) return whole;
  throw new HailError("failed_precondition", `the path of the socket is longer than ${MAX_SOCKET_PATH} bytes, and there is no /proc`);
}

function foreign(what: string, why: string): HailError {
  return new HailError("permission_denied", `${what} ${why}`);
}
