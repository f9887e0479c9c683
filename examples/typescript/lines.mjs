// @ts-check
/**
 * An agent that streams both ways: numbers the lines of a text while it still comes in, as a pipe of web streams.
 *
 *     node lines.mjs
 *     yes | head -1000000 | hail call number-lines - | tail -1
 */
import { connect } from "hailwire";

const hail = await connect();

/** Cuts text into lines, of which the last may have no end. @param {AsyncIterable<string>} pieces */
async function* linesOf(pieces) {
  let held = "";
  for await (const piece of pieces) {
    const lines = (held + piece).split("\n");
    held = lines.pop() ?? "";
    yield* lines;
  }
  if (held) yield held;
}

await hail.agent("number-lines", async function* (request) {
  let number = 0;
  let page = "";
  for await (const line of linesOf(request.body.stream().pipeThrough(new TextDecoderStream()))) {
    page += `${++number} ${line}\n`;
    // A chunk for each line would be many small ones.
    if (page.length > 16_384) {
      yield page;
      page = "";
    }
  }
  yield page;
});

await hail.run();
