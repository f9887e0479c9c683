/**
 * How a connection begins, in JSON whatever comes after.
 *
 * A host that opens a connection says a handshake, and the agent answers with its capabilities; an agent that opens one registers,
 * and is answered. Each message may carry the key `x_hailwire`, in which two of Hailwire find each other and which others ignore.
 * Names of encodings that nobody has heard of are passed over.
 */
import { DecodeError, type Encoding, type Value, type Writable, decodeJson, encodeJson, toJson } from "./codec.js";
import { VERSION } from "./decisions.js";
import { EVENT_KINDS, type EventKind, RecordOf } from "./events.js";

/** Bytes of one direction of a request's body that may be on their way. */
export const WINDOW = 512 << 10;

/** The limits of an agent. */
export interface AgentLimits {
  /** Bytes of a body; larger ones are not shown to it. Default 10 MiB. */
  readonly maxBodySize: number;
  /** Requests at once on a connection; 0 for any number. Default 100. */
  readonly maxConcurrency: number;
  /** Bytes of a chunk of a body. Default 64 KiB. */
  readonly preferredChunkSize: number;
}

/** The limits of an agent that says none. */
export const DEFAULT_LIMITS: AgentLimits = {
  maxBodySize: 10 << 20,
  maxConcurrency: 100,
  preferredChunkSize: 64 << 10,
};

/** The identity, events and limits of an agent. What it can do follows from them. */
export interface Capabilities {
  /** What hosts know it by. */
  readonly agentId: string;
  /** Its name. */
  readonly name: string;
  /** Its version; empty for none. */
  readonly version: string;
  /** The events that it has handlers for. */
  readonly events: ReadonlySet<EventKind>;
  /** Its limits. */
  readonly limits: AgentLimits;
}

/** What two of Hailwire agree on. The opener says what it can, the other side what of it is used. */
export interface Extensions {
  /** Events have numbers, and chunks of bodies travel as they are. */
  readonly rawBodies: boolean;
  readonly window: number;
  /** On a connection that an agent opened: what it speaks, the best first; in the answer the one that is used. */
  readonly encodings: readonly Encoding[];
}

/** What a host says first. */
export interface HandshakeRequest {
  readonly supportedVersions: readonly number[];
  readonly proxyId: string;
  readonly proxyVersion: string;
  readonly config: unknown;
  readonly supportedEncodings: readonly Encoding[];
  readonly extensions: Extensions | undefined;
}

/** What a host answers to a registration. */
export interface RegistrationResponse {
  readonly success: boolean;
  readonly error: string | null;
  readonly proxyId: string;
  readonly proxyVersion: string;
  readonly connectionId: string;
  readonly extensions: Extensions | undefined;
}

/** Reads what a host says first. Throws {@link DecodeError}. */
export function decodeHandshake(payload: Uint8Array): HandshakeRequest {
  const record = recordOf(decodeJson(payload));
  const versions = record.value("supported_versions");
  if (!Array.isArray(versions)) throw new DecodeError("expected a list of numbers, in supported_versions");
  const supportedVersions = (versions as readonly Value[]).map((version) => {
    if (typeof version !== "number") throw new DecodeError("expected a number, in supported_versions");
    return version;
  });
  return {
    supportedVersions,
    proxyId: record.text("proxy_id"),
    proxyVersion: record.text("proxy_version"),
    config: toJson(record.value("config")),
    supportedEncodings: encodings(record, "supported_encodings"),
    extensions: extensions(record),
  };
}

/** What an agent answers to a handshake; with an error it refuses. */
export function encodeHandshakeResponse(
  capabilities: Capabilities,
  encoding: Encoding,
  extensions?: Extensions,
  error: string | null = null,
): Buffer {
  return encodeJson({
    protocol_version: VERSION,
    capabilities: capabilitiesToWire(capabilities),
    success: error === null,
    error,
    encoding,
    ...extensionsToWire(extensions),
  });
}

/** What an agent says first that opens a connection to its host. */
export function encodeRegistration(
  capabilities: Capabilities,
  token: string | null,
  metadata: Writable,
  extensions?: Extensions,
): Buffer {
  return encodeJson({
    protocol_version: VERSION,
    agent_id: capabilities.agentId,
    capabilities: capabilitiesToWire(capabilities),
    auth_token: token,
    metadata,
    ...extensionsToWire(extensions),
  });
}

/** Reads what a host answers to a registration. Throws {@link DecodeError}. */
export function decodeRegistrationResponse(payload: Uint8Array): RegistrationResponse {
  const record = recordOf(decodeJson(payload));
  return {
    success: record.flag("success"),
    error: record.optionalText("error"),
    proxyId: record.optionalText("proxy_id") ?? "",
    proxyVersion: record.optionalText("proxy_version") ?? "",
    connectionId: record.optionalText("connection_id") ?? "",
    extensions: extensions(record),
  };
}

function capabilitiesToWire({ agentId, name, version, events, limits }: Capabilities): Writable {
  return {
    agent_id: agentId,
    name,
    version,
    supported_events: EVENT_KINDS.flatMap((kind, index) => (events.has(kind) ? [index + 1] : [])),
    features: {
      streaming_body: events.has("requestBody") || events.has("responseBody"),
      websocket: events.has("websocketFrame"),
      guardrails: events.has("guardrail"),
      config_push: events.has("configure"),
      metrics_export: true,
      concurrent_requests: limits.maxConcurrency,
      cancellation: true,
      flow_control: true,
      health_reporting: true,
    },
    limits: {
      max_body_size: limits.maxBodySize,
      max_concurrency: limits.maxConcurrency,
      preferred_chunk_size: limits.preferredChunkSize,
    },
  };
}

function extensionsToWire(said: Extensions | undefined): Readonly<Record<string, Writable>> {
  if (said === undefined) return {};
  const { rawBodies, window, encodings } = said;
  return { x_hailwire: { raw_bodies: rawBodies, window, ...(encodings.length > 0 ? { encodings } : {}) } };
}

function extensions(record: RecordOf<string>): Extensions | undefined {
  const said = record.value("x_hailwire");
  if (said === null) return undefined;
  const ours = recordOf(said);
  return {
    rawBodies: ours.value("raw_bodies") !== null && ours.flag("raw_bodies"),
    window: ours.optionalUint("window", 32) ?? 0,
    encodings: encodings(ours, "encodings"),
  };
}

function encodings(record: RecordOf<string>, name: string): Encoding[] {
  return record.texts(name).filter((text): text is Encoding => text === "json" || text === "msgpack");
}

function recordOf(tree: Value): RecordOf<string> {
  return new RecordOf<string>(tree, []);
}
