/**
 * Names, keys and addresses (`agent@node`). A key is 32 bytes, as text 52 characters of z-base-32; a name is 1 to 64 characters of
 * `a-z 0-9 . _ -` that begins and ends with a letter or digit. What reads as a key is a key and no name.
 */

/** What a text that was refused should have been. */
export type AddressErrorKind = "agent_name" | "node_name" | "node_id" | "name_is_key";

/** A text that is no name, key or address. */
export class AddressError extends Error {
  override readonly name = "AddressError";

  /** `kind` is what the text should have been, `message` why it is not. */
  constructor(
    readonly kind: AddressErrorKind,
    message: string,
  ) {
    super(message);
  }
}

/** Whom to call. */
export interface Address {
  /** The agent's name. */
  readonly agent: string;
  /** The node's name; absent where the address has none. */
  readonly nodeName?: string;
  /** The node's key as text; absent where the address has none. */
  readonly nodeId?: string;
}

const NAME = /^[a-z0-9](?:[a-z0-9._-]{0,62}[a-z0-9])?$/;
const ALPHABET = "ybndrfg8ejkmcpqxot1uwisza345h769";
const KEY_TEXT = 52;
const KEY_BYTES = 32;

const VALUES = new Map(Array.from(ALPHABET, (letter, value) => [letter, value]));

/** Whether a text keeps the grammar of names. */
export function isName(text: string): boolean {
  // `$` would also match before a line break at the end.
  return NAME.test(text) && !text.endsWith("\n");
}

/** Reads the name of an agent. Throws {@link AddressError}. */
export function parseAgentName(text: string): string {
  if (isName(text)) return text;
  throw new AddressError("agent_name", `\`${shorten(text)}\` is not the name of an agent: 1 to 64 of a-z 0-9 . _ -`);
}

/** Reads the name of a node, which is none where it reads as a key. Throws {@link AddressError}. */
export function parseNodeName(text: string): string {
  if (!isName(text)) throw new AddressError("node_name", `\`${shorten(text)}\` is not the name of a node: 1 to 64 of a-z 0-9 . _ -`);
  if (decodeKey(text) !== undefined) throw new AddressError("name_is_key", `\`${text}\` reads as a key, so it is no name`);
  return text;
}

/** The 32 bytes of a key in text. Throws {@link AddressError}. */
export function parseNodeId(text: string): Buffer {
  const key = decodeKey(text);
  if (key === undefined) throw new AddressError("node_id", `\`${shorten(text)}\` is not the key of a node: 52 characters of z-base-32`);
  return key;
}

/** Reads `agent` or `agent@node`. Throws {@link AddressError}. */
export function parseAddress(text: string): Address {
  const at = text.indexOf("@");
  if (at < 0) return { agent: parseAgentName(text) };
  const agent = parseAgentName(text.slice(0, at));
  const node = text.slice(at + 1);
  return decodeKey(node) === undefined ? { agent, nodeName: parseNodeName(node) } : { agent, nodeId: node };
}

/** The text of a key of 32 bytes. */
export function nodeIdText(key: Uint8Array): string {
  let text = "";
  let held = 0;
  let bits = 0;
  for (const byte of key) {
    held = (held << 8) | byte;
    bits += 8;
    while (bits >= 5) {
      bits -= 5;
      text += ALPHABET[(held >> bits) & 31] ?? "";
    }
    held &= (1 << bits) - 1;
  }
  return bits > 0 ? text + (ALPHABET[(held << (5 - bits)) & 31] ?? "") : text;
}

/** Who calls, as `from` says it: an agent's name, and the key of the node that vouches for it. */
export interface CallFrom {
  /** The agent's name, as it calls itself; empty for an anonymous caller. */
  readonly agent: string;
  /** The node's key as text; null for a program of the same machine. */
  readonly node: string | null;
}

/** Reads `from`: nothing, `agent`, `agent@key` or `@key`. Throws {@link AddressError}. */
export function parseFrom(text: string): CallFrom {
  const at = text.indexOf("@");
  const agent = at < 0 ? text : text.slice(0, at);
  if (agent !== "") parseAgentName(agent);
  if (at < 0) return { agent, node: null };
  const node = text.slice(at + 1);
  parseNodeId(node);
  return { agent, node };
}

function decodeKey(text: string): Buffer | undefined {
  if (text.length !== KEY_TEXT) return undefined;
  const key = Buffer.alloc(KEY_BYTES);
  let held = 0;
  let bits = 0;
  let at = 0;
  for (const letter of text) {
    const value = VALUES.get(letter);
    if (value === undefined) return undefined;
    held = (held << 5) | value;
    bits += 5;
    if (bits >= 8) {
      bits -= 8;
      key[at++] = held >> bits;
      held &= (1 << bits) - 1;
    }
  }
  return held === 0 && at === KEY_BYTES ? key : undefined;
}

function shorten(text: string): string {
  return text.length > 80 ? `${text.slice(0, 80)}…` : text;
}
