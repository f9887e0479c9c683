/**
 * Hailwire for programs: call agents by name, offer your own, publish and subscribe, and hand out work that outlives a restart. It needs a node on
 * this machine (`hail up -d`), and nothing else.
 *
 * @packageDocumentation
 */

import "./polyfill.js";

export { Answer } from "./answer.js";
export {
  type AgentDescription,
  type AgentRow,
  type AgentsQuery,
  contentBytes,
  type HubState,
  type KeepRequest,
  MESSAGE_ATTEMPT_FIELD,
  MESSAGE_ID_FIELD,
  type MessageContent,
  type MessageDetail,
  type MessageQuery,
  type MessageRow,
  type MethodSchema,
  type NodeStatus,
  type PathStatus,
  type PublishReceipt,
  type SendReceipt,
  type TaskProgress,
  type TunnelStatus,
} from "./admin.js";
export type { Body, Chunk } from "./body.js";
export { Call, RawStream } from "./call.js";
export type { Handler } from "./callee.js";
export { Client, connect, type ConnectOptions, type RunOptions } from "./client.js";
export { HailError, type HailErrorOptions } from "./errors.js";
export type { BasicOptions, CallOptions, DurableOptions, Priority } from "./options.js";
export type { CallFrom } from "./protocol/address.js";
export type { AnswerHead, HeaderField } from "./protocol/headers.js";
export type { Int } from "./protocol/msgpack.js";
export { CODE_NAMES, type CodeName } from "./protocol/status.js";
export { Reply, Request, RequestBody, type RequestKind } from "./request.js";
export { type AgentOptions, Serving } from "./serving.js";
export { type StateEvent, type StatePutOptions, type StateReadOptions, type StateValue, type StateValues, StateWatch } from "./state.js";
export { Inbox, seenOf, type TaskSeen } from "./tasks.js";
export {
  Publisher,
  type PublishOptions,
  type ReplayStart,
  type SubscribeOptions,
  Subscription,
  type TopicEvent,
  type TopicMessage,
} from "./topics.js";
