/**
 * What can be asked of the node itself: calls of its built-in agent `node`, with JSON both ways. The names of members are those of the node's JSON
 * (`hail … --json`), so they are not in camel case. Where a node is newer, there may be more members than these.
 */

/** The node's own agent. */
export const NODE_AGENT = "node";

/** Most bytes of an answer of the node. */
export const MAX_ADMIN_ANSWER = 8 * 1024 * 1024;

/** Field in which an agent finds the id of the durable message that it is handed. */
export const MESSAGE_ID_FIELD = "hail-message-id";
/** Field in which an agent finds how often the message was handed over, this time included. */
export const MESSAGE_ATTEMPT_FIELD = "hail-message-attempt";
/** Field of a durable message: for how many milliseconds it is kept after its end. */
export const KEEP_FIELD = "hail-message-keep";
/** Field of a durable message: how often it is tried at most. */
export const ATTEMPTS_FIELD = "hail-message-attempts";

/** `status`: the node, its tunnels, agents and hubs. */
export interface NodeStatus {
  /** The node's key. */
  readonly id: string;
  /** The name that it goes by; empty for none. */
  readonly name: string;
  readonly version: string;
  readonly pid: number;
  readonly uptime_ms: number;
  readonly rss_bytes: number;
  readonly data_dir: string;
  readonly sockets: readonly string[];
  readonly tcp_sockets: readonly string[];
  readonly addresses: readonly string[];
  readonly public_addresses: readonly string[];
  readonly tcp_addresses: readonly string[];
  readonly tunnels: readonly TunnelStatus[];
  readonly agents: readonly AgentRow[];
  readonly hubs: readonly HubState[];
  /** Calls that it has carried since its start. */
  readonly calls: number;
  readonly calls_from_peers: number;
  readonly reused: number;
  readonly made: number;
  readonly panics: number;
}

/** One live tunnel. */
export interface TunnelStatus {
  readonly peer: string;
  readonly name: string;
  /** `quic`, `h2` or `ws`. */
  readonly carrier: string;
  readonly carries: boolean;
  readonly why: string;
  readonly path: PathStatus;
  /** How long a PING took just now, in microseconds; null where none was asked for or came. */
  readonly ping_us: number | null;
  readonly connections: number;
  readonly sent_bytes: number;
  readonly received_bytes: number;
  readonly sent_packets: number;
  readonly lost_packets: number;
  readonly in_flight: number;
  readonly up_ms: number;
}

/** The path that a tunnel uses. */
export interface PathStatus {
  /** `direct` or `relay`; empty while none is chosen. */
  readonly kind: string;
  readonly remote: string;
  readonly rtt_us: number;
  readonly sent_packets: number;
  readonly lost_packets: number;
}

/** One hub that the node belongs to. */
export interface HubState {
  readonly url: string;
  readonly connected: boolean;
  readonly name: string;
  readonly error: string;
  readonly answer_us: number | null;
  readonly heard_s: number | null;
}

/** One agent that can be called. Members of one name on one node share a row. */
export interface AgentRow {
  readonly name: string;
  /** The key of the node that it lives on. */
  readonly node: string;
  readonly node_name: string;
  readonly local: boolean;
  /** Which calls that name no node it gets: `first`, `next` or `never`. */
  readonly bare: string;
  readonly description: string;
  readonly tags: readonly string[];
  readonly version: string;
  readonly members: number;
  /** By these a call can name one (`member`). */
  readonly member_numbers: readonly number[];
  readonly in_flight: number;
  readonly waiting: number;
  readonly group: readonly { readonly state: string; readonly policy: string; readonly in_flight: number }[];
}

/** Which agents are listed. */
export interface AgentsQuery {
  /** Each must be there. */
  readonly tags?: readonly string[];
  /** Each must occur in name, description or tags, without regard to case. */
  readonly words?: readonly string[];
  /** Only agents of this machine's node. */
  readonly local_only?: boolean;
}

/** An agent as its own node knows it. */
export interface AgentDescription {
  readonly name: string;
  readonly node: string;
  readonly node_name: string;
  readonly description: string;
  readonly tags: readonly string[];
  readonly version: string;
  readonly members: number;
  /** Its methods; empty where it does not say. */
  readonly methods: readonly MethodSchema[];
}

/** One method of an agent, in the words of a tool of the Model Context Protocol. */
export interface MethodSchema {
  /** At most 128 bytes; absent or empty where there is one method. */
  readonly name?: string;
  readonly title?: string;
  readonly description?: string;
  /** JSON Schema of a call's body. */
  readonly inputSchema?: object | boolean;
  /** JSON Schema of an answer's body; of one that streams, of each of its values. */
  readonly outputSchema?: object | boolean;
  readonly annotations?: object;
  readonly examples?: readonly { readonly input?: unknown; readonly output?: unknown }[];
}

/** What a node says of a durable message once it is on disk. */
export interface SendReceipt {
  /** Its id, 26 characters. */
  readonly id: string;
  /** `stored`, or `delivered` where the agent is on the same node; of a message that was known, its state now. */
  readonly state: string;
  /** It was sent before, with the same idempotency key, and is not sent again. */
  readonly known: boolean;
}

/** A durable message. Times are milliseconds since 1970 by the node's clock. */
export interface MessageRow {
  readonly id: string;
  readonly sent: boolean;
  readonly call: boolean;
  readonly to: string;
  readonly from: string;
  readonly node: string | null;
  /** `stored`, `delivered`, `taken`, `acknowledged`, `answered`, `dead`, `expired`, `unknown`, `dropped` or `cancelled`. */
  readonly state: string;
  /** `submitted`, `working`, `completed`, `failed`, `cancelled` or `rejected`; empty of what is no task sent from here. */
  readonly task: string;
  readonly attempts: number;
  readonly bytes: number;
  readonly stored_at_ms: number;
  readonly held_at_ms: number | null;
  readonly delivered_at_ms: number | null;
  readonly started_at_ms: number | null;
  readonly withdrawn_at_ms: number | null;
  readonly ended_at_ms: number | null;
  readonly kept_until_ms: number | null;
  readonly progress: TaskProgress | null;
  readonly expires_at_ms: number;
  /** Why it did not succeed: the name of a code; empty where it did, or has no end yet. */
  readonly code: string;
  readonly reason: string;
}

/** How far an agent is with a message. */
export interface TaskProgress {
  readonly at_ms: number;
  readonly done: number;
  /** 0 where the agent does not know. */
  readonly total: number;
  readonly text: string;
}

/** Bytes, as text where they are UTF-8, else in base64. */
export interface MessageContent {
  readonly text?: string;
  readonly base64?: string;
}

/** A message with what it says and what was answered. */
export interface MessageDetail extends MessageRow {
  readonly method: string;
  readonly content_type: string;
  readonly headers: readonly (readonly [string, string])[];
  readonly body: MessageContent;
  readonly answer_type: string;
  readonly answer: MessageContent;
  readonly partial: MessageContent;
  readonly partial_bytes: number;
}

/** Which messages are listed. */
export interface MessageQuery {
  /** Those that were sent from here, newest first, instead of those that came. Default: false. */
  readonly sent?: boolean;
  /** Of one agent, or to one address. Default: all. */
  readonly agent?: string;
  /** In these states. Default: all. */
  readonly states?: readonly string[];
  /** Of those that were sent, calls alone, in these states of a task; empty for all. Default: sends too. */
  readonly tasks?: readonly string[];
  /** At most so many. Default: up to 1,000. */
  readonly most?: number;
}

/** To whom messages went that were published. */
export interface PublishReceipt {
  readonly published: number;
  /** Subscriptions of programs of this machine that they went to. */
  readonly programs: number;
  /** Peers that they went to. */
  readonly peers: number;
  /** How many are kept, and on the disk. */
  readonly kept: number;
  /** The number of the last of these in the node's log; of state, its revision. */
  readonly last: number;
}

/** What is to be kept of topics. */
export interface KeepRequest {
  readonly pattern: string;
  /** Most bytes. Default: 1 GiB. */
  readonly max_bytes?: number;
  /** Most messages. Default: as many as fit. */
  readonly max_messages?: number;
  /** Longest time in milliseconds. Default: seven days. */
  readonly max_age_ms?: number;
  /** Only the last message of each topic. Default: false. */
  readonly last_per_topic?: boolean;
}

/** The bytes of what a node says in JSON. */
export function contentBytes(content: MessageContent): Uint8Array {
  return content.base64 === undefined ? Buffer.from(content.text ?? "") : Buffer.from(content.base64, "base64");
}
