// @ts-check
/**
 * A worker of a group, beside those of ../python/worker.py: counts the words of a document.
 *
 *     node worker.mjs
 */
import { connect } from "hailwire";

const hail = await connect();

await hail.agent("count-words", { description: "the words of a text and how often each occurs", maxConcurrency: 2 }, async (request) => {
  const counts = new Map();
  for (const word of (await request.text()).toLowerCase().match(/[a-z]+/gu) ?? []) {
    counts.set(word, (counts.get(word) ?? 0) + 1);
  }
  return Object.fromEntries(counts);
});

await hail.run();
