/** The most memory that this process has had so far. */

import { readFileSync } from "node:fs";

/** The most that was resident, in bytes. */
export function peak(): number {
  if (process.platform !== "linux") return process.resourceUsage().maxRSS * 1024;
  return Number(/VmHWM:\s+(\d+) kB/.exec(readFileSync("/proc/self/status", "utf8"))?.[1]) * 1024;
}
