// Builds the package, for `import` into dist/esm and for `require` into dist/cjs; with `tests` the tests, into build.
//
// It builds into a folder of its own, and then puts each file that has changed in the place of the old one by renaming it: a program that starts
// meanwhile finds every file, and each whole.
import { execFileSync } from "node:child_process";
import { mkdirSync, mkdtempSync, readdirSync, readFileSync, renameSync, rmSync, rmdirSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import path from "node:path";
import { fileURLToPath } from "node:url";

const root = fileURLToPath(new URL("..", import.meta.url));
const compiler = createRequire(import.meta.url).resolve("typescript/bin/tsc");
const tsc = (project, outDir) => execFileSync(process.execPath, [compiler, "-p", path.join(root, project), "--outDir", outDir], { stdio: "inherit" });

/** The files within a folder, by their paths in it. */
function filesOf(folder) {
  try {
    const entries = readdirSync(folder, { recursive: true, withFileTypes: true });
    return entries.filter((entry) => entry.isFile()).map((entry) => path.relative(folder, path.join(entry.parentPath ?? entry.path, entry.name)));
  } catch (error) {
    if (error.code === "ENOENT") return [];
    throw error;
  }
}

function isSame(one, other) {
  try {
    return readFileSync(one).equals(readFileSync(other));
  } catch {
    return false;
  }
}

/** Makes `target` hold what `built` holds. */
function install(built, target) {
  const files = filesOf(built);
  for (const file of files) {
    const to = path.join(target, file);
    if (isSame(path.join(built, file), to)) continue;
    mkdirSync(path.dirname(to), { recursive: true });
    renameSync(path.join(built, file), to);
  }
  const kept = new Set(files);
  for (const file of filesOf(target)) {
    if (kept.has(file)) continue;
    rmSync(path.join(target, file), { force: true });
    try {
      rmdirSync(path.dirname(path.join(target, file)));
    } catch {
      // Others are in it yet.
    }
  }
}

// In the package's folder, so that it can be renamed from there, and that what maps say of sources holds.
const fresh = mkdtempSync(path.join(root, ".building-"));
process.once("SIGINT", () => process.exit(130));
process.once("SIGTERM", () => process.exit(143));
process.once("exit", () => rmSync(fresh, { recursive: true, force: true }));
if (process.argv[2] === "tests") {
  tsc("tsconfig.json", fresh);
  install(fresh, path.join(root, "build"));
} else {
  for (const [kind, type] of [["esm", "module"], ["cjs", "commonjs"]]) {
    tsc(`tsconfig.${kind}.json`, path.join(fresh, kind));
    writeFileSync(path.join(fresh, kind, "package.json"), `${JSON.stringify({ type })}\n`);
  }
  install(fresh, path.join(root, "dist"));
}
