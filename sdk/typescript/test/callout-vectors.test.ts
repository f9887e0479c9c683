/** Golden vectors: what the published crate wrote is read as meant, and what is written means the same. */
import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { test } from "node:test";

import {
  Agent,
  type Audit,
  type BodyMutation,
  type ConfigUpdateKind,
  type Decision,
  EVENT_KINDS,
  type Event,
  type EventKind,
  type HeaderOp,
  type HealthState,
  type HistogramMetric,
  type Metric,
  type Notice,
  type RuleDefinition,
  type Writable,
  addHeader,
  allow,
  block,
  challenge,
  redirect,
  removeHeader,
  setHeader,
} from "../src/callout/index.js";
import { type Encoding, decode, decodeJson, toJson } from "../src/callout/codec.js";
import { encodeDecision } from "../src/callout/decisions.js";
import { decodeEvent } from "../src/callout/events.js";
import { frame, numberedAnswerFrame } from "../src/callout/frames.js";
import {
  type Capabilities,
  decodeHandshake,
  decodeRegistrationResponse,
  encodeHandshakeResponse,
  encodeRegistration,
} from "../src/callout/handshake.js";
import { encodeNotice } from "../src/callout/notices.js";
import { AgentProtocol } from "../src/callout/protocol.js";
import { eventId } from "../src/callout/salvage.js";
import { type Vector, vectors } from "./callout-support.js";

const MESSAGES: Record<EventKind, string> = {
  requestHeaders: "request_headers",
  requestBody: "request_body_chunk",
  responseHeaders: "response_headers",
  responseBody: "response_body_chunk",
  requestComplete: "request_complete",
  websocketFrame: "websocket_frame",
  guardrail: "guardrail_inspect",
  configure: "configure",
};

const ENCODINGS: readonly Encoding[] = ["json", "msgpack"];

/** Of every answer below, as both languages write it; `tests/test_callout_vectors.py` has the same. */
const ANSWERS_DIGEST = "38b010ad8bf41e7eb39016090ad416103a37cb14e8bb40564d940eaff5b2c364";

/** What the vectors of an event have in common. */
interface SaidEvent {
  readonly correlation_id?: string;
  readonly metadata?: { readonly correlation_id?: string };
}

interface SaidCapabilities {
  readonly agent_id: string;
  readonly name: string;
  readonly version: string;
  readonly supported_events: readonly number[];
  readonly features: Readonly<Record<string, unknown>>;
  readonly limits: {
    readonly max_body_size: number;
    readonly max_concurrency: number;
    readonly preferred_chunk_size: number;
  };
}

interface SaidHandshake {
  readonly supported_versions: readonly number[];
  readonly proxy_id: string;
  readonly proxy_version: string;
  readonly config: unknown;
  readonly supported_encodings: readonly string[];
}

interface SaidHandshakeResponse {
  readonly success: boolean;
  readonly capabilities: SaidCapabilities;
  readonly encoding: Encoding;
}

interface SaidRegistration {
  readonly capabilities: SaidCapabilities;
  readonly auth_token: string | null;
  readonly metadata: Writable;
}

interface SaidRegistrationResponse {
  readonly success: boolean;
  readonly error: string | null;
  readonly proxy_id: string;
  readonly proxy_version: string;
  readonly connection_id: string;
}

interface SaidMetrics {
  readonly agent_id: string;
  readonly timestamp_ms: number;
  readonly interval_ms: number;
  readonly counters: readonly Metric[];
  readonly gauges: readonly Metric[];
  readonly histograms: readonly HistogramMetric[];
}

type SaidUpdateType =
  | { readonly type: "request_reload" }
  | {
      readonly type: "rule_update";
      readonly rule_set: string;
      readonly rules: readonly (Omit<RuleDefinition, "description"> & { readonly description: string | null })[];
      readonly remove_rules: readonly string[];
    }
  | { readonly type: "list_update"; readonly list_id: string; readonly add: string[]; readonly remove: string[] }
  | { readonly type: "restart_required"; readonly reason: string; readonly grace_period_ms: number }
  | { readonly type: "config_error"; readonly error: string; readonly field: string };

interface SaidUpdate {
  readonly update_type: SaidUpdateType;
  readonly request_id: string;
  readonly timestamp_ms: number;
}

type SaidOp =
  | { readonly set: { readonly name: string; readonly value: string } }
  | { readonly add: { readonly name: string; readonly value: string } }
  | { readonly remove: { readonly name: string } };

interface SaidMutation {
  readonly data: string | null;
  readonly chunk_index: number;
}

interface SaidAnswer {
  readonly version: number;
  readonly decision:
    | "allow"
    | {
        readonly block: {
          readonly status: number;
          readonly body: string | null;
          readonly headers: Readonly<Record<string, string>> | null;
        };
      }
    | { readonly redirect: { readonly url: string; readonly status: number } }
    | { readonly challenge: { readonly challenge_type: string; readonly params: Readonly<Record<string, string>> } };
  readonly request_headers: readonly SaidOp[];
  readonly response_headers: readonly SaidOp[];
  readonly routing_metadata: Readonly<Record<string, string>>;
  readonly audit: {
    readonly tags: readonly string[];
    readonly rule_ids: readonly string[];
    readonly confidence: number | null;
    readonly reason_codes: readonly string[];
    readonly custom: Readonly<Record<string, Writable>>;
  };
  readonly needs_more: boolean;
  readonly request_body_mutation: SaidMutation | null;
  readonly response_body_mutation: SaidMutation | null;
  readonly websocket_decision:
    | "allow"
    | "drop"
    | { readonly close: { readonly code: number; readonly reason: string } }
    | null;
}

/** Every form in which a message was written. */
function forms(vector: Vector): [Buffer, Encoding][] {
  const packed = [vector.msgpack, vector.msgpack_positional].filter((text) => text !== undefined);
  return [
    [Buffer.from(vector.json), "json"],
    ...packed.map((text): [Buffer, Encoding] => [Buffer.from(text, "hex"), "msgpack"]),
  ];
}

test("events mean what the published crate says", () => {
  let count = 0;
  for (const [index, kind] of EVENT_KINDS.entries()) {
    for (const vector of vectors<SaidEvent>(MESSAGES[kind])) {
      assert.equal(vector.code, 0x10 + index);
      for (const [payload, encoding] of forms(vector)) {
        const event = decodeEvent(kind, payload, encoding);
        assert.deepEqual(withoutNull(describe(event)), withoutNull(vector.means), vector.name);
        assert.ok([event.event.correlationId, undefined].includes(eventId(payload, encoding)));
        count += 1;
      }
      const { correlation_id: id, metadata } = vector.means;
      assert.equal(eventId(Buffer.from(vector.json), "json"), id ?? metadata?.correlation_id);
    }
  }
  assert.ok(count > 40);
});

test("answers are written as they are meant, and alike in both languages", () => {
  const digest = createHash("sha256");
  const seven = Buffer.of(0, 0, 0, 0, 0, 0, 0, 7);
  for (const vector of vectors<{ id: string; answer: SaidAnswer }>("response")) {
    const { id, answer } = vector.means;
    const decision = decisionOf(answer);
    for (const encoding of ENCODINGS) {
      const written = encodeDecision(id, decision, encoding);
      digest.update(written);
      const read = toJson(decode(written, encoding)) as Partial<SaidAnswer>;
      assert.deepEqual(meaningOf(read), [id, answer], vector.name);
      digest.update(numberedAnswerFrame(seven, decision, encoding));
    }
  }
  assert.equal(digest.digest("hex"), ANSWERS_DIGEST);
});

test("an allow says no more than it has to", () => {
  const expected = '{"version":2,"decision":"allow","audit":{"custom":{"correlation_id":"…"}}}';
  assert.equal(encodeDecision("…", allow(), "json").toString(), expected);
  const one = Buffer.of(0, 0, 0, 0, 0, 0, 0, 1);
  assert.deepEqual(numberedAnswerFrame(one, allow(), "json"), frame(0x51, one));
});

test("handshakes are read and answered", () => {
  for (const { json, means } of vectors<SaidHandshake>("handshake")) {
    assert.deepEqual(decodeHandshake(Buffer.from(json)), {
      supportedVersions: means.supported_versions,
      proxyId: means.proxy_id,
      proxyVersion: means.proxy_version,
      config: means.config,
      supportedEncodings: means.supported_encodings,
      extensions: undefined,
    });
  }
  for (const { means } of vectors<SaidHandshakeResponse>("handshake_response")) {
    if (!means.success) continue;
    const said = encodeHandshakeResponse(capabilitiesOf(means.capabilities), means.encoding);
    assert.deepEqual(JSON.parse(said.toString()), withEvents(means));
  }
  for (const { means } of vectors<SaidRegistration>("registration")) {
    const said = encodeRegistration(capabilitiesOf(means.capabilities), means.auth_token, means.metadata);
    assert.deepEqual(JSON.parse(said.toString()), withEvents(means));
  }
  for (const { json, means } of vectors<SaidRegistrationResponse>("registration_response")) {
    assert.deepEqual(decodeRegistrationResponse(Buffer.from(json)), {
      success: means.success,
      error: means.error,
      proxyId: means.proxy_id,
      proxyVersion: means.proxy_version,
      connectionId: means.connection_id,
      extensions: undefined,
    });
  }
});

test("cancels and pings are read", () => {
  const reasons = ["client_disconnect", "timeout", "blocked_by_agent", "upstream_error", "proxy_shutdown", "manual"];
  for (const { code, json, means } of vectors<{ correlation_id: string; reason: number }>("cancel")) {
    const came = [...opened().receive(frame(code, Buffer.from(json)))];
    const expected = { type: "cancelled", correlationId: means.correlation_id, reason: reasons[means.reason] };
    assert.deepEqual(came, [expected]);
  }
  const unknown = frame(0x40, Buffer.from('{"correlation_id":"c-1","reason":99}'));
  assert.deepEqual([...opened().receive(unknown)], [{ type: "cancelled", correlationId: "c-1", reason: "manual" }]);
  for (const { code, json } of vectors("ping")) {
    const protocol = opened();
    assert.deepEqual([...protocol.receive(frame(code, Buffer.from(json)))], []);
    assert.deepEqual(protocol.takeOutput(), frame(0x42, Buffer.from(json)));
  }
});

test("notices are written as hosts parse them", () => {
  for (const encoding of ENCODINGS) {
    const written = (notice: Notice): [number, unknown] => {
      const [code, payload] = encodeNotice(notice, encoding);
      return [code, toJson(decode(payload, encoding))];
    };
    for (const { code, means } of vectors<SaidMetrics>("metrics")) {
      const [type, said] = written({
        kind: "metrics",
        agentId: means.agent_id,
        timestampMs: means.timestamp_ms,
        intervalMs: means.interval_ms,
        counters: means.counters,
        gauges: means.gauges,
        histograms: means.histograms,
      });
      assert.equal(type, code);
      assert.deepEqual(withoutNull(said), withoutNull(means));
    }
    for (const { code, means } of vectors<SaidUpdate>("config_update")) {
      const updateType = updateKindOf(means.update_type);
      const update = { requestId: means.request_id, timestampMs: means.timestamp_ms };
      assert.deepEqual(written({ kind: "configUpdate", updateType, ...update }), [code, means]);
    }
    for (const { code, means } of vectors<{ state: number | { status: HealthState } }>("health")) {
      const state = typeof means.state === "number" ? "unhealthy" : means.state.status;
      const number = { healthy: 1, degraded: 2, draining: 3, unhealthy: 4 }[state];
      assert.deepEqual(written({ kind: "health", state }), [code, { state: number }]);
    }
    for (const { code, means } of vectors<{ action: number | { type: string }; correlation_id?: string | null }>("flow")) {
      const type = typeof means.action === "number" ? "pause" : means.action.type;
      if (type === "update_capacity") continue; // hosts take it as a resume, and no agent of ours writes it
      const action = type === "resume" ? "resume" : "pause";
      const id = means.correlation_id;
      const [writtenType, said] = written({ kind: "flow", action, ...(id ? { correlationId: id } : {}) });
      assert.equal(writtenType, code);
      assert.deepEqual(said, { action: action === "pause" ? 1 : 2, ...(id ? { correlation_id: id } : {}) });
    }
  }
  const all = { message: "busy", inFlight: 3, drainEtaMs: 100, timeoutMultiplier: 1.5 };
  const [, said] = encodeNotice({ kind: "health", state: "degraded", ...all }, "json");
  const expected = { state: 2, message: "busy", in_flight: 3, drain_eta_ms: 100, timeout_multiplier: 1.5 };
  assert.deepEqual(JSON.parse(said.toString()), expected);
});

function opened(): AgentProtocol {
  const capabilities = new Agent("a").capabilities;
  const options = { encodings: ENCODINGS, extensions: true, window: 1 };
  const protocol = new AgentProtocol(capabilities, options, () => undefined);
  const hello = '{"supported_versions":[2],"proxy_id":"p","proxy_version":"1"}';
  assert.equal([...protocol.receive(frame(0x01, Buffer.from(hello)))].length, 1);
  protocol.takeOutput();
  return protocol;
}

/** An event with the names and forms of the vectors. */
function describe({ kind, event }: Event): unknown {
  const named = (record: object): Record<string, unknown> =>
    Object.fromEntries(
      Object.entries(record).map(([name, value]: [string, unknown]) => [
        name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`),
        value instanceof Uint8Array
          ? Buffer.from(value).toString("hex")
          : value instanceof Map
            ? Object.fromEntries(value)
            : value,
      ]),
    );
  switch (kind) {
    case "requestHeaders": {
      const { metadata, method, uri, headers } = event;
      return { metadata: named(metadata), method, uri, headers: headers.toJSON() };
    }
    case "responseHeaders":
      return { ...named(event), headers: event.headers.toJSON() };
    case "requestBody":
    case "responseBody": {
      const { index, transferred, of_response: ofResponse, ...rest } = named(event);
      return { ...rest, chunk_index: index, [ofResponse ? "bytes_sent" : "bytes_received"]: transferred };
    }
    case "websocketFrame": {
      const { index, ...rest } = named(event);
      return { ...rest, frame_index: index };
    }
    default:
      return named(event);
  }
}

/** The decision that a vector means. */
function decisionOf(answer: SaidAnswer): Decision {
  const { tags, rule_ids: ruleIds, confidence, reason_codes: reasonCodes, custom } = answer.audit;
  const audit: Audit = { tags, ruleIds, reasonCodes, custom, ...(confidence === null ? {} : { confidence }) };
  const { request_body_mutation: request, response_body_mutation: response, websocket_decision: frame } = answer;
  return {
    ...verdictOf(answer.decision),
    audit,
    requestHeaders: answer.request_headers.map(opOf),
    responseHeaders: answer.response_headers.map(opOf),
    routingMetadata: answer.routing_metadata,
    needsMore: answer.needs_more,
    ...(request === null ? {} : { requestBody: mutationOf(request) }),
    ...(response === null ? {} : { responseBody: mutationOf(response) }),
    ...(frame === null
      ? {}
      : { websocket: typeof frame === "string" ? { action: frame } : { action: "close", ...frame.close } }),
  };
}

function verdictOf(said: SaidAnswer["decision"]): Decision {
  if (said === "allow") return allow();
  if ("block" in said) return block(said.block.status, said.block.body, { headers: said.block.headers ?? {} });
  if ("redirect" in said) return redirect(said.redirect.url, said.redirect.status);
  return challenge(said.challenge.challenge_type, said.challenge.params);
}

function opOf(op: SaidOp): HeaderOp {
  if ("set" in op) return setHeader(op.set.name, op.set.value);
  if ("add" in op) return addHeader(op.add.name, op.add.value);
  return removeHeader(op.remove.name);
}

function mutationOf(mutation: SaidMutation): BodyMutation {
  const data = mutation.data === null ? null : Buffer.from(mutation.data, "hex");
  return { index: mutation.chunk_index, data };
}

/** A written answer with the defaults of what was not written, as vectors say it. */
function meaningOf(answer: Partial<SaidAnswer>): [unknown, object] {
  const audit = { tags: [], rule_ids: [], confidence: null, reason_codes: [], custom: {}, ...answer.audit };
  const { correlation_id: id, ...custom } = audit.custom as Record<string, unknown>;
  const hex = (mutation: SaidMutation | null | undefined): SaidMutation | null => {
    if (mutation?.data == null) return mutation ?? null;
    return { ...mutation, data: Buffer.from(mutation.data, "base64").toString("hex") };
  };
  const meaning = {
    request_headers: [],
    response_headers: [],
    routing_metadata: {},
    needs_more: false,
    websocket_decision: null,
    ...answer,
    audit: { ...audit, custom },
    request_body_mutation: hex(answer.request_body_mutation),
    response_body_mutation: hex(answer.response_body_mutation),
  };
  return [id, meaning];
}

function capabilitiesOf(said: SaidCapabilities): Capabilities {
  const limits = {
    maxBodySize: said.limits.max_body_size,
    maxConcurrency: said.limits.max_concurrency,
    preferredChunkSize: said.limits.preferred_chunk_size,
  };
  const events = new Set(EVENT_KINDS.filter((_, index) => said.supported_events.includes(index + 1)));
  return { agentId: said.agent_id, name: said.name, version: said.version, events, limits };
}

/** What an agent can do follows here from its events; the crate says what it likes. */
function withEvents<Means extends { readonly capabilities: SaidCapabilities }>(means: Means): Means {
  const events = means.capabilities.supported_events;
  const features = { ...means.capabilities.features, websocket: events.includes(6), guardrails: events.includes(7) };
  return { ...means, capabilities: { ...means.capabilities, features } };
}

function updateKindOf(said: SaidUpdateType): ConfigUpdateKind {
  switch (said.type) {
    case "rule_update": {
      const rules = said.rules.map(({ description, ...rule }) => ({
        ...rule,
        ...(description === null ? {} : { description }),
      }));
      return { type: said.type, ruleSet: said.rule_set, rules, removeRules: said.remove_rules };
    }
    case "list_update":
      return { type: said.type, listId: said.list_id, add: said.add, remove: said.remove };
    case "restart_required":
      return { type: said.type, reason: said.reason, gracePeriodMs: said.grace_period_ms };
    default:
      return said;
  }
}

function withoutNull(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(withoutNull);
  if (typeof value !== "object" || value === null) return value;
  const there = Object.entries(value).filter(([, item]) => item !== null);
  return Object.fromEntries(there.map(([name, item]) => [name, withoutNull(item)]));
}

test("a tree that was read keeps no name that JavaScript has a meaning for", () => {
  const tree = toJson(decodeJson(Buffer.from('{"__proto__":{"polluted":true},"a":1,"a":2}'))) as Record<string, unknown>;
  assert.deepEqual(Object.keys(tree), ["__proto__", "a"]);
  assert.equal(tree["a"], 2);
  assert.equal(tree["polluted"], undefined);
});
