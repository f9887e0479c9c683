// Hailwire by its SDK for TypeScript: both programs attach to the node whose data folder HAIL_DATA names.

import { readFileSync } from "node:fs";

import { DEADLINE, main } from "./subject.mjs";

const SDK = new URL("../../../sdk/typescript/", import.meta.url);

/** A client that is attached, and what detaches it. */
async function attached() {
  let sdk;
  try {
    sdk = await import(new URL("dist/esm/index.js", SDK).href);
  } catch (error) {
    if (error.code !== "ERR_MODULE_NOT_FOUND") throw error;
    throw new Error("the SDK for TypeScript is not built: `npm ci && npm run build` in sdk/typescript");
  }
  const hail = await sdk.connect();
  return { hail, close: () => hail.close() };
}

async function serve() {
  const { hail, close } = await attached();
  await hail.agent("echo", (request) => request.bytes());
  // Both find the node by HAIL_DATA.
  return { address: "", close };
}

const OWN = { timeout: DEADLINE };

async function connect(_address, deadline) {
  const { hail, close } = await attached();
  const echo = async (body) => (await hail.call("echo", body, deadline(OWN))).body;
  return { echo, close };
}

const { version } = JSON.parse(readFileSync(new URL("package.json", SDK), "utf8"));

await main(serve, connect, `hailwire ${version}`);
