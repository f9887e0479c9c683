/**
 * The request of an event that cannot be read as a whole, so that whoever waits is told no.
 *
 * It is found wherever it comes before what is no JSON or MessagePack at all: fields of another kind, bytes where texts should be,
 * and an end that is missing do not hide it.
 */
import { DecodeError, type Encoding, JsonSource, PackSource, type Value } from "./codec.js";

/** The request that an event belongs to, if it says. */
export function eventId(payload: Buffer, encoding: Encoding): string | undefined {
  let found: string | undefined;
  try {
    for (const [name, value] of encoding === "json" ? inJson(payload) : inPacked(payload)) {
      if (typeof value !== "string" || value === "") continue;
      if (name === "metadata") return value;
      found ??= value;
    }
  } catch (error) {
    // What was found before counts.
    if (!(error instanceof DecodeError)) throw error;
  }
  return found;
}

function* inJson(payload: Buffer): Generator<[string, Value]> {
  // What is no UTF-8 becomes U+FFFD, and is no id that a host could have given.
  const source = new JsonSource(payload.toString());
  for (const name of members(source)) {
    if (name === "metadata" && source.peek() === "{") {
      for (const inner of members(source)) {
        const value = source.value(2);
        if (inner === "correlation_id" && isId(value)) yield [name, value];
      }
    } else {
      const value = source.value(1);
      if (name === "correlation_id" && isId(value)) yield [name, value];
    }
  }
}

/** The names of an object. Whoever reads them takes each one's value. */
function* members(source: JsonSource): Generator<string> {
  source.expect("{");
  if (source.peek() === "}") {
    source.expect("}");
    return;
  }
  for (;;) {
    source.peek();
    const name = source.string();
    source.expect(":");
    yield name;
    if (source.peek() === "}") {
      source.expect("}");
      return;
    }
    source.expect(",");
  }
}

function* inPacked(payload: Buffer): Generator<[string, Value]> {
  const source = new PackSource(payload);
  const names = source.mapLength() ?? 0;
  for (let index = 0; index < names; index += 1) {
    const name = source.value(1);
    if (name !== "metadata") {
      const value = source.value(1);
      if (name === "correlation_id") yield [name, value];
      continue;
    }
    const inner = source.mapLength();
    const values = inner === undefined ? source.arrayLength() : undefined;
    if (inner !== undefined) {
      for (let at = 0; at < inner; at += 1) {
        const key = source.value(2);
        const value = source.value(2);
        if (key === "correlation_id") yield [name, value];
      }
    } else if (values !== undefined) {
      for (let at = 0; at < values; at += 1) {
        const value = source.value(2);
        if (at === 0) yield [name, value];
      }
    } else {
      source.value(1);
    }
  }
}

function isId(value: Value): boolean {
  return typeof value === "string" && !value.includes("\ufffd");
}
