/**
 * Inspection agents: programs that a proxy asks about each request (Agent Protocol v2, "callouts").
 *
 * An {@link Agent} takes a handler for each event; what the handlers return says whether a request may pass, how its headers and body
 * change, or how it is answered at once. It listens on a Unix socket (`run`, `serve`), connects to its host (`connect`), or serves
 * any stream of bytes (`serveStream`), such as a raw stream of the overlay (`onStreams`).
 *
 * @packageDocumentation
 */

export { Agent, type AgentOptions, type RegisterOptions, type ServeOptions } from "./agent.js";
export { DecodeError, type Encoding, type Writable } from "./codec.js";
export {
  type Audit,
  type BodyMutation,
  type Decision,
  type DecisionDetails,
  type Finding,
  type Findings,
  type HeaderOp,
  type Verdict,
  type WebSocketDecision,
  addHeader,
  allow,
  block,
  challenge,
  closeWebSocket,
  dropFrame,
  found,
  redirect,
  removeHeader,
  replace,
  setHeader,
} from "./decisions.js";
export {
  type BodyChunk,
  type Configure,
  EVENT_KINDS,
  type Event,
  type EventKind,
  type EventMap,
  type Guardrail,
  type GuardrailCheck,
  Headers,
  type Metadata,
  type Opcode,
  type RequestComplete,
  type RequestHeaders,
  type ResponseHeaders,
  type WebSocketFrame,
} from "./events.js";
export { MAX_FRAME, ProtocolError } from "./frames.js";
export { onStreams } from "./overlay.js";
export type { AgentLimits, Capabilities } from "./handshake.js";
export type {
  ConfigUpdate,
  ConfigUpdateKind,
  Flow,
  Health,
  HealthState,
  HistogramMetric,
  Metric,
  MetricsReport,
  Notice,
  RuleDefinition,
} from "./notices.js";
export { type CancelReason, HandshakeError, RefusedError } from "./protocol.js";
export { type ByteStream, type Handler, HandshakeTimeoutError, type Host } from "./session.js";
export { duplexStream } from "./unix-socket.js";
