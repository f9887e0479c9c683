/**
 * Decisions: what an agent answers to an event.
 *
 * Only what says something is written. Everything but the version, the verdict and the id of the request has a default in every
 * peer, so that the answer which nearly all are, an allow, has some 70 bytes.
 */
import { type Encoding, Float32, type Writable, encode, encodeJson, pack } from "./codec.js";
import type { BodyChunk } from "./events.js";

/** The version of the protocol. */
export const VERSION = 2;

/** What becomes of a request: it passes, the host answers for itself, or the client is sent elsewhere or has to prove something. */
export type Verdict =
  | { readonly kind: "allow" }
  | {
      readonly kind: "block";
      readonly status: number;
      readonly body: string | null;
      readonly headers: Readonly<Record<string, string>>;
    }
  | { readonly kind: "redirect"; readonly url: string; readonly status: number }
  | { readonly kind: "challenge"; readonly challengeType: string; readonly params: Readonly<Record<string, string>> };

/** A change to the headers: `set` replaces all values of a name, `add` adds one, `remove` takes the name out. */
export type HeaderOp =
  | { readonly op: "set" | "add"; readonly name: string; readonly value: string }
  | { readonly op: "remove"; readonly name: string };

/** What becomes of a chunk of a body: `null` lets it pass, no bytes drop it, others take its place. */
export interface BodyMutation {
  /** Which chunk it is. */
  readonly index: number;
  /** What takes its place. */
  readonly data: Uint8Array | null;
}

/** What becomes of a WebSocket frame: it passes, is dropped, or ends its connection (RFC 6455, 7.4). */
export type WebSocketDecision =
  | { readonly action: "allow" | "drop" }
  | { readonly action: "close"; readonly code: number; readonly reason: string };

/** For records. */
export interface Audit {
  /** Such as `sqli`. */
  readonly tags?: readonly string[];
  /** The rules that matched. */
  readonly ruleIds?: readonly string[];
  /** How sure the agent is, 0 to 1. */
  readonly confidence?: number;
  /** Why, for programs. */
  readonly reasonCodes?: readonly string[];
  /** Anything else that JSON can say. The name `correlation_id` is the protocol's. */
  readonly custom?: Readonly<Record<string, Writable>>;
}

/** What a decision may say besides its verdict. */
export interface DecisionDetails {
  /** Changes to the request's headers. */
  readonly requestHeaders?: readonly HeaderOp[];
  /** Changes to the response's headers. */
  readonly responseHeaders?: readonly HeaderOp[];
  /** For the host's routing. */
  readonly routingMetadata?: Readonly<Record<string, string>>;
  /** For records. */
  readonly audit?: Audit;
  /** The verdict is provisional: more of the body is wanted. */
  readonly needsMore?: boolean;
  /** What becomes of the chunk of the request's body that this answers; see {@link replace}. */
  readonly requestBody?: BodyMutation;
  /** What becomes of the chunk of the response's body that this answers. */
  readonly responseBody?: BodyMutation;
  /** What becomes of the WebSocket frame that this answers. */
  readonly websocket?: WebSocketDecision;
}

/** An agent's answer. */
export interface Decision extends DecisionDetails {
  /** What becomes of the request. */
  readonly verdict: Verdict;
}

/** Lets it pass. */
export function allow(details: DecisionDetails = {}): Decision {
  return { verdict: { kind: "allow" }, ...details };
}

/** The host answers for itself, with a status (403) and perhaps a body and headers. */
export function block(
  status = 403,
  body: string | null = null,
  { headers = {}, ...details }: DecisionDetails & { readonly headers?: Readonly<Record<string, string>> } = {},
): Decision {
  return { verdict: { kind: "block", status, body, headers }, ...details };
}

/** Sends the client elsewhere, with a status (302). */
export function redirect(url: string, status = 302, details: DecisionDetails = {}): Decision {
  return { verdict: { kind: "redirect", url, status }, ...details };
}

/** Has the client prove something, such as `captcha`. */
export function challenge(
  challengeType: string,
  params: Readonly<Record<string, string>> = {},
  details: DecisionDetails = {},
): Decision {
  return { verdict: { kind: "challenge", challengeType, params }, ...details };
}

/** Puts other bytes in the place of a chunk of a body; no bytes drop it. */
export function replace(chunk: BodyChunk, data: Uint8Array | string, details: DecisionDetails = {}): Decision {
  const mutation = { index: chunk.index, data: typeof data === "string" ? Buffer.from(data) : data };
  return allow({ ...details, ...(chunk.ofResponse ? { responseBody: mutation } : { requestBody: mutation }) });
}

/** Lets a WebSocket frame not pass. */
export function dropFrame(details: DecisionDetails = {}): Decision {
  return allow({ ...details, websocket: { action: "drop" } });
}

/** Ends a WebSocket connection, with a code (1008). */
export function closeWebSocket(code = 1008, reason = "", details: DecisionDetails = {}): Decision {
  return allow({ ...details, websocket: { action: "close", code, reason } });
}

/** Replaces all values of a name. */
export const setHeader = (name: string, value: string): HeaderOp => ({ op: "set", name, value });

/** Adds a value to a name. */
export const addHeader = (name: string, value: string): HeaderOp => ({ op: "add", name, value });

/** Takes a name out. */
export const removeHeader = (name: string): HeaderOp => ({ op: "remove", name });

/** One thing that an agent found in a text. */
export interface Finding {
  /** Such as `prompt_injection`, `ssn` or `credit_card`. */
  readonly category: string;
  /** For people. */
  readonly description: string;
  /** How bad it is: `medium` unless it says. */
  readonly severity?: "low" | "medium" | "high" | "critical";
  /** How sure the agent is, 0 to 1. */
  readonly confidence?: number;
  /** Where in the text, in bytes of its UTF-8. */
  readonly span?: { readonly start: number; readonly end: number };
}

/** What an agent found in a text for or from a language model. */
export interface Findings {
  /** Whether something was found. */
  readonly detected: boolean;
  /** How sure the agent is, 0 to 1. */
  readonly confidence?: number;
  /** What was found. */
  readonly findings?: readonly Finding[];
  /** The text without what was found. With it the text goes on; without it, it does not pass. */
  readonly redacted?: string;
}

/** The answer that says what was found: an allow, and the host decides by it. */
export function found({ detected, confidence = 0, findings = [], redacted }: Findings): Decision {
  const said: Record<string, Writable> = {
    detected,
    confidence,
    detections: findings.map(({ category, description, severity = "medium", confidence, span }) => ({
      category,
      description,
      severity,
      ...(confidence === undefined ? {} : { confidence }),
      ...(span === undefined ? {} : { span: { start: span.start, end: span.end } }),
    })),
  };
  if (redacted !== undefined) said["redacted_content"] = redacted;
  return allow({ routingMetadata: { guardrail_response: encodeJson(said).toString() } });
}

/** Whether a decision allows and says no more. */
export function saysNothing(decision: Decision): boolean {
  const { verdict, requestHeaders, responseHeaders, routingMetadata, audit, needsMore } = decision;
  return (
    verdict.kind === "allow" &&
    isEmpty(requestHeaders) &&
    isEmpty(responseHeaders) &&
    isEmpty(routingMetadata && Object.keys(routingMetadata)) &&
    !needsMore &&
    decision.requestBody === undefined &&
    decision.responseBody === undefined &&
    decision.websocket === undefined &&
    isEmpty(audit?.tags) &&
    isEmpty(audit?.ruleIds) &&
    isEmpty(audit?.reasonCodes) &&
    isEmpty(audit?.custom && Object.keys(audit.custom)) &&
    audit?.confidence === undefined
  );
}

/** The payload of an answer's frame. Throws `TypeError` or `RangeError` for what has no form on the wire. */
export function encodeDecision(correlationId: string, decision: Decision, encoding: Encoding): Buffer {
  if (saysNothing(decision)) {
    if (encoding === "json") return Buffer.concat([ALLOW_JSON, encodeJson(correlationId), ALLOW_JSON_END]);
    return Buffer.concat([ALLOW_PACKED, pack(correlationId)]);
  }
  const said: Record<string, Writable> = { version: VERSION, decision: verdictOf(decision.verdict) };
  if (!isEmpty(decision.requestHeaders)) said["request_headers"] = decision.requestHeaders.map(headerOp);
  if (!isEmpty(decision.responseHeaders)) said["response_headers"] = decision.responseHeaders.map(headerOp);
  const routing = decision.routingMetadata ?? {};
  if (Object.keys(routing).length > 0) said["routing_metadata"] = routing;
  said["audit"] = auditOf(correlationId, decision.audit ?? {});
  if (decision.needsMore) said["needs_more"] = true;
  if (decision.requestBody !== undefined) said["request_body_mutation"] = mutation(decision.requestBody);
  if (decision.responseBody !== undefined) said["response_body_mutation"] = mutation(decision.responseBody);
  if (decision.websocket !== undefined) said["websocket_decision"] = websocket(decision.websocket);
  return encode(said, encoding);
}

const ALLOW_JSON = Buffer.from('{"version":2,"decision":"allow","audit":{"custom":{"correlation_id":');
const ALLOW_JSON_END = Buffer.from("}}}");
const ALLOW_PACKED = Buffer.from(
  "\x83\xa7version\x02\xa8decision\xa5allow\xa5audit\x81\xa6custom\x81\xaecorrelation_id",
  "latin1",
);

function verdictOf(verdict: Verdict): Writable {
  switch (verdict.kind) {
    case "allow":
      return "allow";
    case "block": {
      const { status, body, headers } = verdict;
      return { block: { status, body, headers: Object.keys(headers).length > 0 ? headers : null } };
    }
    case "redirect":
      return { redirect: { url: verdict.url, status: verdict.status } };
    case "challenge":
      return { challenge: { challenge_type: verdict.challengeType, params: verdict.params } };
  }
}

function headerOp(op: HeaderOp): Writable {
  return op.op === "remove" ? { remove: { name: op.name } } : { [op.op]: { name: op.name, value: op.value } };
}

function auditOf(correlationId: string, audit: Audit): Writable {
  const said: Record<string, Writable> = {};
  if (!isEmpty(audit.tags)) said["tags"] = audit.tags;
  if (!isEmpty(audit.ruleIds)) said["rule_ids"] = audit.ruleIds;
  if (!isEmpty(audit.reasonCodes)) said["reason_codes"] = audit.reasonCodes;
  if (audit.confidence !== undefined) said["confidence"] = new Float32(audit.confidence);
  // The host finds what this answers by the id, which nothing of the agent's may hide.
  const others = Object.entries(audit.custom ?? {}).filter(([name]) => name !== "correlation_id");
  said["custom"] = { correlation_id: correlationId, ...Object.fromEntries(others) };
  return said;
}

function mutation({ index, data }: BodyMutation): Writable {
  return { data: data === null ? null : Buffer.from(data).toString("base64"), chunk_index: index };
}

function websocket(decision: WebSocketDecision): Writable {
  if (decision.action !== "close") return decision.action;
  return { close: { code: decision.code, reason: decision.reason } };
}

function isEmpty(values: readonly unknown[] | undefined): values is undefined {
  return values === undefined || values.length === 0;
}
