// Calls of 1 KB, program to program through a node.
//
//   node bench/echo.mjs server                    offers the agent `echo-bench`
//   node bench/echo.mjs client [flight] [seconds] [bytes] [to]
//
// The node is found through HAIL_DATA. The client prints calls a second and how long they took. Run `npm run build` before.
import { connect } from "../dist/esm/index.js";

const [mode, flightText = "64", secondsText = "5", bytesText = "1024", to = "echo-bench"] = process.argv.slice(2);
const hail = await connect();

/** What a call costs this process. */
const cpu = (calls) => {
  const { user, system } = process.cpuUsage();
  return Math.round((10 * (user + system)) / Math.max(1, calls)) / 10;
};
const report = (calls) => console.log(JSON.stringify({ served: calls, cpu_us_per_call: cpu(calls) }));

if (mode === "server") {
  let served = 0;
  await hail.agent("echo-bench", (request) => {
    served += 1;
    return request.bytes();
  });
  console.log("serving");
  await hail.run();
  report(served);
} else if (mode === "client") {
  const flight = Number(flightText);
  const body = Buffer.alloc(Number(bytesText), 0x61);
  const until = performance.now() + Number(secondsText) * 1000 + 1000;
  const from = performance.now() + 1000;
  const took = new Float64Array(4_000_000);
  let calls = 0;
  let made = 0;
  const work = async () => {
    for (;;) {
      const began = performance.now();
      if (began > until) return;
      const answer = await hail.call(to, body, { timeout: 10_000 });
      if (answer.body.length !== body.length) throw new Error("another answer");
      made += 1;
      const ended = performance.now();
      // The first second warms up.
      if (began > from && calls < took.length) took[calls++] = ended - began;
    }
  };
  await Promise.all(Array.from({ length: flight }, work));
  const times = took.subarray(0, calls).sort();
  const at = (part) => Math.round((times[Math.floor(part * (calls - 1))] ?? 0) * 1000);
  const rate = Math.round(calls / Number(secondsText));
  console.log(JSON.stringify({ flight, bytes: body.length, calls_per_s: rate, p50_us: at(0.5), p99_us: at(0.99), cpu_us_per_call: cpu(made) }));
  await hail.close();
} else {
  console.error("usage: echo.mjs server | client [flight] [seconds] [bytes] [to]");
  process.exitCode = 2;
}
