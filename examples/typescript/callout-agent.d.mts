/** The types of callout-agent.mjs: the events of Agent Protocol v2 and their answers. */
import type { Server } from "node:net";

/** Names to values, in the order in which they came. */
export type Headers = Record<string, string[]>;

export interface RequestHeaders {
  metadata: {
    correlation_id: string;
    request_id: string;
    client_ip: string;
    client_port: number;
    server_name?: string | null;
    protocol: string;
    tls_version?: string | null;
    tls_cipher?: string | null;
    route_id?: string | null;
    upstream_id?: string | null;
    timestamp: string;
    traceparent?: string | null;
  };
  method: string;
  uri: string;
  headers: Headers;
}

export interface ResponseHeaders {
  correlation_id: string;
  status: number;
  headers: Headers;
}

/** A piece of a body; its bytes are base64 in `data`. */
export interface BodyChunk {
  correlation_id: string;
  data: string;
  is_last: boolean;
  total_size?: number | null;
  chunk_index: number;
}

export interface RequestComplete {
  correlation_id: string;
  status: number;
  duration_ms: number;
  request_body_size: number;
  response_body_size: number;
  upstream_attempts: number;
  error?: string | null;
}

export interface WebSocketFrame {
  correlation_id: string;
  opcode: "text" | "binary" | "ping" | "pong" | "close" | "continuation";
  data: string;
  client_to_server: boolean;
  frame_index: number;
  fin: boolean;
  route_id?: string | null;
  client_ip: string;
}

export interface Guardrail {
  correlation_id: string;
  inspection_type: "prompt_injection" | "pii_detection";
  content: string;
}

export interface Configure {
  correlation_id: string;
  config: unknown;
  config_version?: string | null;
}

export type Decision =
  | "allow"
  | { block: { status: number; body: string | null; headers: Record<string, string> | null } }
  | { redirect: { url: string; status: number } }
  | { challenge: { challenge_type: string; params: Record<string, string> } };

export type HeaderOp =
  | { set: { name: string; value: string } }
  | { add: { name: string; value: string } }
  | { remove: { name: string } };

/** `null` lets the piece pass, `""` drops it, other base64 takes its place. */
export interface BodyMutation {
  data: string | null;
  chunk_index: number;
}

export interface Answer {
  decision: Decision;
  request_headers?: HeaderOp[];
  response_headers?: HeaderOp[];
  routing_metadata?: Record<string, string>;
  audit?: {
    tags?: string[];
    rule_ids?: string[];
    confidence?: number;
    reason_codes?: string[];
    custom?: Record<string, unknown>;
  };
  needs_more?: boolean;
  request_body_mutation?: BodyMutation;
  response_body_mutation?: BodyMutation;
  websocket_decision?: "allow" | "drop" | { close: { code: number; reason: string } };
}

type Method<E> = (event: E, signal: AbortSignal) => Promise<Answer>;

/** An agent: a name, and a method for each event that it wants. */
export interface Agent {
  name: string;
  requestHeaders?: Method<RequestHeaders>;
  requestBodyChunk?: Method<BodyChunk>;
  responseHeaders?: Method<ResponseHeaders>;
  responseBodyChunk?: Method<BodyChunk>;
  requestComplete?: Method<RequestComplete>;
  websocketFrame?: Method<WebSocketFrame>;
  guardrailInspect?: Method<Guardrail>;
  configure?: Method<Configure>;
}

export function allow(more?: Partial<Answer>): Answer;
export function block(status: number, body?: string | null, more?: Partial<Answer>): Answer;
export function data(event: { data: string }): Buffer;
export function serve(agent: Agent, path: string): Server;
