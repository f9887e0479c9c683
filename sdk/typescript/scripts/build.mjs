// Builds the package twice: for `import` into dist/esm, for `require` into dist/cjs.
import { execFileSync } from "node:child_process";
import { mkdirSync, rmSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { fileURLToPath } from "node:url";

const root = fileURLToPath(new URL("..", import.meta.url));
const tsc = createRequire(import.meta.url).resolve("typescript/bin/tsc");

rmSync(`${root}/dist`, { recursive: true, force: true });
for (const [kind, type] of [["esm", "module"], ["cjs", "commonjs"]]) {
  execFileSync(process.execPath, [tsc, "-p", `${root}/tsconfig.${kind}.json`], { stdio: "inherit" });
  mkdirSync(`${root}/dist/${kind}`, { recursive: true });
  writeFileSync(`${root}/dist/${kind}/package.json`, `${JSON.stringify({ type })}\n`);
}
