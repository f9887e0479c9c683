/** Notices: what an agent tells its host unasked, about its health, what it counted, and what it wants. */
import { type Encoding, Float32, Float64, type Writable, encode } from "./codec.js";

/** The health of an agent: it takes everything, takes everything slower, takes nothing new, takes nothing. */
export type HealthState = "healthy" | "degraded" | "draining" | "unhealthy";

/** The health of an agent. */
export interface Health {
  /** What sets it apart from other notices. */
  readonly kind: "health";
  /** How it is. */
  readonly state: HealthState;
  /** For people. */
  readonly message?: string;
  /** Requests in the agent. */
  readonly inFlight?: number;
  /** While it drains: milliseconds until it ends. */
  readonly drainEtaMs?: number;
  /** While it is degraded: by how much deadlines should be stretched, 1 and more. */
  readonly timeoutMultiplier?: number;
}

/** Pauses the host or lets it go on, for one request or for all. */
export interface Flow {
  /** What sets it apart from other notices. */
  readonly kind: "flow";
  /** Whether to pause or to go on. */
  readonly action: "pause" | "resume";
  /** The request; absent for all. */
  readonly correlationId?: string;
}

/** A counter or gauge. */
export interface Metric {
  /** As Prometheus has names. */
  readonly name: string;
  /** How much it is. */
  readonly value: number;
  /** What it is, for people. */
  readonly help?: string;
  /** What tells it from others of its name. */
  readonly labels?: Readonly<Record<string, string>>;
}

/** A distribution. */
export interface HistogramMetric {
  /** As Prometheus has names. */
  readonly name: string;
  /** Their sum. */
  readonly sum: number;
  /** How many were counted. */
  readonly count: number;
  /** Cumulative, in ascending order: how many were at most `le`. */
  readonly buckets: readonly { readonly le: number | "+Inf"; readonly count: number }[];
  /** What it is, for people. */
  readonly help?: string;
  /** What tells it from others of its name. */
  readonly labels?: Readonly<Record<string, string>>;
}

/** What an agent counted since its last report. */
export interface MetricsReport {
  /** What sets it apart from other notices. */
  readonly kind: "metrics";
  /** The agent that counted. */
  readonly agentId: string;
  /** Milliseconds since 1970. */
  readonly timestampMs: number;
  /** How long it counted, in milliseconds. */
  readonly intervalMs: number;
  /** What only grows: whole numbers. */
  readonly counters?: readonly Metric[];
  /** What goes up and down. */
  readonly gauges?: readonly Metric[];
  /** Distributions. */
  readonly histograms?: readonly HistogramMetric[];
}

/** A rule of an agent. */
export interface RuleDefinition {
  /** Its id. */
  readonly id: string;
  /** Which comes first where several match. */
  readonly priority: number;
  /** The rule itself: anything that JSON can say. */
  readonly definition: Writable;
  /** Whether it holds. */
  readonly enabled?: boolean;
  /** What it is for, for people. */
  readonly description?: string;
  /** Words to find it by. */
  readonly tags?: readonly string[];
}

/** What an agent wants of its configuration. */
export type ConfigUpdateKind =
  | { readonly type: "request_reload" }
  | {
      readonly type: "rule_update";
      readonly ruleSet: string;
      readonly rules: readonly RuleDefinition[];
      readonly removeRules?: readonly string[];
    }
  | {
      readonly type: "list_update";
      readonly listId: string;
      readonly add?: readonly string[];
      readonly remove?: readonly string[];
    }
  | { readonly type: "restart_required"; readonly reason: string; readonly gracePeriodMs: number }
  | { readonly type: "config_error"; readonly error: string; readonly field?: string };

/** A change of configuration that an agent asks its host for. */
export interface ConfigUpdate {
  /** What sets it apart from other notices. */
  readonly kind: "configUpdate";
  /** What is wanted. */
  readonly updateType: ConfigUpdateKind;
  /** An id of this wish, which the agent chooses. */
  readonly requestId: string;
  /** Milliseconds since 1970. */
  readonly timestampMs: number;
}

/** What an agent tells its host unasked. */
export type Notice = Health | MetricsReport | ConfigUpdate | Flow;

/** The type and the payload of a notice's frame. Throws `TypeError` or `RangeError` for what has no form on the wire. */
export function encodeNotice(notice: Notice, encoding: Encoding): [number, Buffer] {
  switch (notice.kind) {
    case "health":
      return [0x30, encode(health(notice), encoding)];
    case "metrics":
      return [0x31, encode(metrics(notice), encoding)];
    case "configUpdate": {
      const { updateType, requestId, timestampMs } = notice;
      const said = { update_type: updateKind(updateType), request_id: requestId, timestamp_ms: timestampMs };
      return [0x32, encode(said, encoding)];
    }
    case "flow": {
      const said: Record<string, Writable> = { action: notice.action === "pause" ? 1 : 2 };
      if (notice.correlationId !== undefined) said["correlation_id"] = notice.correlationId;
      return [0x33, encode(said, encoding)];
    }
  }
}

const STATES: readonly HealthState[] = ["healthy", "degraded", "draining", "unhealthy"];

function health(notice: Health): Writable {
  const said: Record<string, Writable> = { state: 1 + STATES.indexOf(notice.state) };
  if (notice.message !== undefined) said["message"] = notice.message;
  if (notice.inFlight !== undefined) said["in_flight"] = notice.inFlight;
  if (notice.drainEtaMs !== undefined) said["drain_eta_ms"] = notice.drainEtaMs;
  if (notice.timeoutMultiplier !== undefined) said["timeout_multiplier"] = new Float32(notice.timeoutMultiplier);
  return said;
}

function metrics(report: MetricsReport): Writable {
  return {
    agent_id: report.agentId,
    timestamp_ms: report.timestampMs,
    interval_ms: report.intervalMs,
    counters: (report.counters ?? []).map((one) => metric(one, one.value)),
    gauges: (report.gauges ?? []).map((one) => metric(one, new Float64(one.value))),
    histograms: (report.histograms ?? []).map(({ name, help, labels, sum, count, buckets }) => ({
      name,
      help: help ?? null,
      labels: labels ?? {},
      sum: new Float64(sum),
      count,
      buckets: buckets.map(({ le, count }) => ({ le, count })),
    })),
  };
}

function metric({ name, help, labels }: Metric, value: Writable): Writable {
  return { name, help: help ?? null, labels: labels ?? {}, value };
}

function updateKind(kind: ConfigUpdateKind): Writable {
  switch (kind.type) {
    case "request_reload":
      return { type: kind.type };
    case "rule_update":
      return {
        type: kind.type,
        rule_set: kind.ruleSet,
        rules: kind.rules.map(({ id, priority, definition, enabled, description, tags }) => ({
          id,
          priority,
          definition,
          enabled: enabled ?? true,
          description: description ?? null,
          tags: tags ?? [],
        })),
        remove_rules: kind.removeRules ?? [],
      };
    case "list_update":
      return { type: kind.type, list_id: kind.listId, add: kind.add ?? [], remove: kind.remove ?? [] };
    case "restart_required":
      return { type: kind.type, reason: kind.reason, grace_period_ms: kind.gracePeriodMs };
    case "config_error":
      return { type: kind.type, error: kind.error, field: kind.field ?? null };
  }
}
