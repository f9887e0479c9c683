/** A program over the built package, at the address that it is given, for whichever runtime: says what came of each thing that it tries, then serves. */

import type * as Hailwire from "../../src/index.js";

const { connect, HailError, Reply } = (await import(process.argv[2] ?? "")) as typeof Hailwire;

async function code(call: PromiseLike<unknown>): Promise<string> {
  try {
    await call;
    return "ok";
  } catch (error) {
    return error instanceof HailError ? error.code : String(error);
  }
}

const hail = await connect();
await hail.agent("echo", async (request) => new Reply(await request.bytes(), { type: request.type, headers: request.headers }));
await hail.agent("lengths", async function* (request) {
  for await (const chunk of request.body) yield `${chunk.length};`;
});
await hail.agent("waits", (request) => new Promise((_, reject) => request.signal.addEventListener("abort", () => reject(request.signal.reason as Error))));
const found: Record<string, unknown> = {};
found["call"] = (await hail.call("shout", "grüße", { timeout: 5000 })).text();
found["large"] = (await hail.call("echo", new Uint8Array(3_000_000), { type: "a/b" })).body.length;
found["missing"] = await code(hail.call("nothing"));
found["late"] = await code(hail.call("waits", "", { timeout: 50 }));
const abort = new AbortController();
const given = code(hail.call("waits", "", { signal: abort.signal }));
abort.abort();
found["given up"] = await given;
let read = 0;
for await (const chunk of hail.call("flood", String(4_000_000))) read += chunk.length;
found["streamed"] = read;
const pieces = hail.call("echo", new Blob(["a web ", "stream"]).stream());
found["web stream"] = await new Response(pieces.stream()).text();
const stream = await hail.stream("echo-stream");
await stream.write("there and back");
stream.finish();
found["raw"] = "";
for await (const chunk of stream) found["raw"] = String(found["raw"]) + new TextDecoder().decode(chunk);
console.log(JSON.stringify(found));
await hail.run();
console.log("left in order");
