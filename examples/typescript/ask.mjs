// @ts-check
/**
 * The smallest caller: asks an agent, here or on another machine, and prints its answer as it comes. Ctrl-C cancels the call, and its handler.
 *
 *     node ask.mjs shout@laptop hello
 */
import { connect, HailError } from "hailwire";

const [to = "", text = ""] = process.argv.slice(2);
const cancel = new AbortController();
process.once("SIGINT", () => cancel.abort());

try {
  const hail = await connect();
  for await (const chunk of hail.call(to, text, { timeout: 30_000, signal: cancel.signal })) {
    process.stdout.write(chunk);
  }
  process.stdout.write("\n");
  await hail.close();
} catch (error) {
  if (!(error instanceof HailError)) throw error;
  console.error(`${error.code}: ${error.message}${error.hint && `\nhint: ${error.hint}`}`);
  process.exitCode = 1;
}
