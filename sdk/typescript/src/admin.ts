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
  /** Version of the program. */
  readonly version: string;
  /** Process id. */
  readonly pid: number;
  /** Milliseconds since start. */
  readonly uptime_ms: number;
  /** Resident memory in bytes. */
  readonly rss_bytes: number;
  /** Where key, trust and names are kept. */
  readonly data_dir: string;
  /** UDP sockets as bound. */
  readonly sockets: readonly string[];
  /** TCP sockets as bound. */
  readonly tcp_sockets: readonly string[];
  /** UDP addresses at which peers may find this node. */
  readonly addresses: readonly string[];
  /** Those of `addresses` that are not this machine's own: as a hub's address discovery or a router's port mapping sees it. */
  readonly public_addresses: readonly string[];
  /** TCP addresses at which peers may find this node. */
  readonly tcp_addresses: readonly string[];
  /** Live tunnels. */
  readonly tunnels: readonly TunnelStatus[];
  /** Agents attached or embedded here. */
  readonly agents: readonly AgentRow[];
  /** Hubs joined. */
  readonly hubs: readonly HubState[];
  /** Calls that it has carried since its start. */
  readonly calls: number;
  /** Those of `calls` that came from peers. */
  readonly calls_from_peers: number;
  /** Calls to peers that found a tunnel up. */
  readonly reused: number;
  /** Calls to peers for which a tunnel had to be brought up or waited for. */
  readonly made: number;
  /** Panics since start that cost no more than the work in which they happened. */
  readonly panics: number;
}

/** One live tunnel. */
export interface TunnelStatus {
  /** The peer's key. */
  readonly peer: string;
  /** The alias or name that it goes by here; empty for none. */
  readonly name: string;
  /** `quic`, `h2` or `ws`. */
  readonly carrier: string;
  /** Whether it takes the peer's new calls; a peer may have one tunnel over UDP and one over TCP. */
  readonly carries: boolean;
  /** Why the tunnel that takes new calls does. */
  readonly why: string;
  /** The path in use, of the first connection. */
  readonly path: PathStatus;
  /** How long a PING took just now, in microseconds; null where none was asked for or came. */
  readonly ping_us: number | null;
  /** Connections that it consists of. What follows is of all of them together. */
  readonly connections: number;
  /** Bytes sent on the wire. */
  readonly sent_bytes: number;
  /** Bytes received on the wire. */
  readonly received_bytes: number;
  /** Packets sent on all paths, also on those that were tried and never used. */
  readonly sent_packets: number;
  /** Packets declared lost on all paths: what is sent to punch a hole, or to find the largest packet, is often lost. */
  readonly lost_packets: number;
  /** Streams open now, in either direction. */
  readonly in_flight: number;
  /** Milliseconds since the first of its connections came up. */
  readonly up_ms: number;
}

/** The path that a tunnel uses. */
export interface PathStatus {
  /** `direct` or `relay`; empty while none is chosen. */
  readonly kind: string;
  /** The address at its other end. */
  readonly remote: string;
  /** Smoothed round-trip time of its traffic in microseconds (RFC 9002, 5.3); one that was idle may be long ago. */
  readonly rtt_us: number;
  /** Packets sent on it that count for `lost_packets`; 0 where loss cannot be told, as on TCP. */
  readonly sent_packets: number;
  /** Those of them that were lost on the network, without the search for the largest packet. */
  readonly lost_packets: number;
}

/** One hub that the node belongs to. */
export interface HubState {
  /** The hub's URL. */
  readonly url: string;
  /** Whether the last exchange with it succeeded. */
  readonly connected: boolean;
  /** The name held there; empty for none. */
  readonly name: string;
  /** The last error, also why the hub did not give the name; empty for none. */
  readonly error: string;
  /** How long it took to answer just now, in microseconds; null where no answer came within 500 ms. */
  readonly answer_us: number | null;
  /** Seconds since it answered last; null where it has not since the node's start. */
  readonly heard_s: number | null;
}

/** One agent that can be called. Members of one name on one node share a row. */
export interface AgentRow {
  /** The agent's name. */
  readonly name: string;
  /** The key of the node that it lives on. */
  readonly node: string;
  /** That node's alias or name; empty for none. */
  readonly node_name: string;
  /** Whether it lives on the asked node. */
  readonly local: boolean;
  /** Which calls that name no node it gets: `first`, `next` or `never`. */
  readonly bare: string;
  /** One line for people. */
  readonly description: string;
  /** Words to find it by. */
  readonly tags: readonly string[];
  /** Its own version. */
  readonly version: string;
  /** How many attachments share the name there; 0 where unknown. */
  readonly members: number;
  /** By these a call can name one (`member`). */
  readonly member_numbers: readonly number[];
  /** Calls running in it now; only for local agents. */
  readonly in_flight: number;
  /** Calls that wait until one of its members takes another one; only for local agents. */
  readonly waiting: number;
  /** How each member stands, in the order of `member_numbers`. */
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
  /** The agent's name. */
  readonly name: string;
  /** The node it lives on. */
  readonly node: string;
  /** That node's alias or name; empty for none. */
  readonly node_name: string;
  /** One line for people. */
  readonly description: string;
  /** Words to find it by. */
  readonly tags: readonly string[];
  /** Its own version. */
  readonly version: string;
  /** How many attachments share the name there. */
  readonly members: number;
  /** Its methods; empty where it does not say. */
  readonly methods: readonly MethodSchema[];
}

/** One method of an agent, in the words of a tool of the Model Context Protocol. */
export interface MethodSchema {
  /** At most 128 bytes; absent or empty where there is one method. */
  readonly name?: string;
  /** A name for people. */
  readonly title?: string;
  /** What it does, for people and for models. */
  readonly description?: string;
  /** JSON Schema of a call's body. */
  readonly inputSchema?: object | boolean;
  /** JSON Schema of an answer's body; of one that streams, of each of its values. */
  readonly outputSchema?: object | boolean;
  /** What else a tool of that protocol may say of itself. */
  readonly annotations?: object;
  /** Bodies of calls, and what they are answered. */
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
  /** Its id. */
  readonly id: string;
  /** Whether it was sent from here. */
  readonly sent: boolean;
  /** Whether its answer is wanted. */
  readonly call: boolean;
  /** The address that it was sent to; the agent's name, of one that came. */
  readonly to: string;
  /** The agent that sent it, as it calls itself; empty where it has no name. */
  readonly from: string;
  /** The node at the other end. */
  readonly node: string | null;
  /** `stored`, `delivered`, `taken`, `acknowledged`, `answered`, `dead`, `expired`, `unknown`, `dropped` or `cancelled`. */
  readonly state: string;
  /** `submitted`, `working`, `completed`, `failed`, `cancelled` or `rejected`; empty of what is no task sent from here. */
  readonly task: string;
  /** How often an agent was handed it. */
  readonly attempts: number;
  /** Bytes of its body. */
  readonly bytes: number;
  /** When this node had it on disk. */
  readonly stored_at_ms: number;
  /** When a hub first held a sealed copy of it for the receiver's node, which was away. */
  readonly held_at_ms: number | null;
  /** When the receiver's node had it on disk, as far as this node knows. */
  readonly delivered_at_ms: number | null;
  /** When this node, from which it was sent, learned that the last attempt had begun; one that ends within a second is not told. */
  readonly started_at_ms: number | null;
  /** When its sender withdrew it. */
  readonly withdrawn_at_ms: number | null;
  /** When it had its end. */
  readonly ended_at_ms: number | null;
  /** Until when its row is kept, of one that was sent from here and has its end. */
  readonly kept_until_ms: number | null;
  /** How far the agent said that it is, in the last attempt. */
  readonly progress: TaskProgress | null;
  /** When it is worth nothing any more. */
  readonly expires_at_ms: number;
  /** Why it did not succeed: the name of a code; empty where it did, or has no end yet. */
  readonly code: string;
  /** The same in words. */
  readonly reason: string;
}

/** How far an agent is with a message. */
export interface TaskProgress {
  /** When the agent said so. */
  readonly at_ms: number;
  /** How much is done. */
  readonly done: number;
  /** 0 where the agent does not know. */
  readonly total: number;
  /** What it is at; empty where it does not say. */
  readonly text: string;
}

/** Bytes, as text where they are UTF-8, else in base64. */
export interface MessageContent {
  /** The text; absent where the bytes are none. */
  readonly text?: string;
  /** The bytes in base64, where they are no text. */
  readonly base64?: string;
}

/** A message with what it says and what was answered. */
export interface MessageDetail extends MessageRow {
  /** The method that is asked for. */
  readonly method: string;
  /** Media type of the body. */
  readonly content_type: string;
  /** The application's own fields. */
  readonly headers: readonly (readonly [string, string])[];
  /** The body; empty once nobody needs it any more. */
  readonly body: MessageContent;
  /** Media type of the answer. */
  readonly answer_type: string;
  /** The answer of a durable call. */
  readonly answer: MessageContent;
  /** What is known of the answer while it is not whole, up to its first 256 KiB, in the last attempt. */
  readonly partial: MessageContent;
  /** Bytes of it. */
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
  /** How many messages that were. */
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
  /** The topics: a pattern. */
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
