/** The package as it is published: installed into an empty folder, it can be imported and required, and its types are there. */

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import os from "node:os";
import path from "node:path";
import { test } from "node:test";

import { PACKAGE } from "./support.js";

test("the packed package is imported and required in an empty folder", () => {
  const folder = mkdtempSync(path.join(os.tmpdir(), "hail-ts-"));
  const run = (file: string, args: string[], cwd = folder): string => execFileSync(file, args, { cwd, encoding: "utf8", stdio: ["ignore", "pipe", "pipe"] });
  try {
    const quiet = ["--ignore-scripts", "--silent"];
    run("npm", ["pack", "--pack-destination", folder, ...quiet], PACKAGE);
    const [packed] = readdirSync(folder);
    assert.ok(packed);
    writeFileSync(path.join(folder, "package.json"), JSON.stringify({ name: "empty", private: true }));
    run("npm", ["install", "--offline", "--no-audit", "--no-fund", ...quiet, `./${packed}`]);
    const names = "JSON.stringify([typeof h.connect, typeof h.HailError, h.CODE_NAMES.length])";
    writeFileSync(path.join(folder, "a.mjs"), `import * as h from "hailwire"; console.log(${names});`);
    writeFileSync(path.join(folder, "b.cjs"), `const h = require("hailwire"); console.log(${names});`);
    for (const script of ["a.mjs", "b.cjs"]) assert.deepEqual(JSON.parse(run(process.execPath, [script])), ["function", "function", 17]);
    writeFileSync(
      path.join(folder, "types.ts"),
      'import { type Answer, connect } from "hailwire";\nexport const body = async (): Promise<Answer> => (await connect()).call("a", "b", { timeout: 1 });\n',
    );
    const tsc = path.join(PACKAGE, "node_modules/typescript/bin/tsc");
    const types = ["--typeRoots", path.join(PACKAGE, "node_modules/@types"), "--types", "node", "--lib", "ES2022,ESNext.Disposable", "--target", "ES2022"];
    for (const module of ["NodeNext", "Node16"]) {
      run(process.execPath, [tsc, "--noEmit", "--strict", "--module", module, ...types, "types.ts"]);
    }
    const listed = readdirSync(path.join(folder, "node_modules/hailwire"));
    assert.deepEqual(listed.filter((name) => !["dist", "README.md", "package.json"].includes(name)), []);
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
});

test("the lock file names no place that packages came from", () => {
  assert.ok(!readFileSync(path.join(PACKAGE, "package-lock.json"), "utf8").includes('"resolved": "'));
});
