//! What can be asked of a node: the methods of its built-in agent `node`.
//!
//! The command line, the SDKs and Rust programs manage a node by calling the agent `node` over the
//! local socket, with a JSON body and a JSON answer. There is no second way in: a management request
//! is a call like any other. A peer may call only [`method::AGENTS`] and [`method::DESCRIBE`], and an untrusted
//! peer only [`method::JOIN`]; everything else needs the local socket.
//!
//! These types are also the documented `--json` output of the commands of the same name.

use hailwire_wire::{
    NodeId,
    lease::{LeaseRelease, LeaseRequest},
};
use serde::{Deserialize, Serialize};

use crate::agent_schema::AgentSchema;

/// How long a node waits for the answers of peers and hubs when it is asked for its status, in milliseconds.
pub const STATUS_PATIENCE_MS: u64 = 500;

/// The reserved agent name.
pub const AGENT: &str = "node";

/// Agents whose names begin so belong to the programs that run the node, such as the supervisor of `hail serve --file`.
/// Only programs of the same machine may call them, and no list of agents names them.
pub const PRIVATE_PREFIX: &str = "node.";

/// Method names. Request and answer types stand beside each.
pub mod method {
    /// [`super::StatusRequest`] or `()` → [`super::NodeStatus`].
    pub const STATUS: &str = "status";
    /// [`super::AgentsQuery`] → `Vec<`[`super::AgentRow`]`>`.
    pub const AGENTS: &str = "agents";
    /// [`super::DescribeRequest`] → [`super::AgentDescription`]. A peer may ask for what it may call.
    pub const DESCRIBE: &str = "describe";
    /// [`super::InviteRequest`] → [`super::InviteAnswer`].
    pub const INVITE: &str = "invite";
    /// [`super::JoinRequest`] → [`super::JoinAnswer`]; from an untrusted peer: the secret of a ticket, in
    /// MessagePack, as `spec/session.md` says.
    pub const JOIN: &str = "join";
    /// [`super::LeaveRequest`] → [`super::LeaveAnswer`].
    pub const LEAVE: &str = "leave";
    /// `()` → `Vec<`[`super::TrustedPeer`]`>`.
    pub const TRUST_LIST: &str = "trust.list";
    /// [`super::TrustAdd`] → [`super::TrustedPeer`].
    pub const TRUST_ADD: &str = "trust.add";
    /// [`super::PeerSelector`] → `()`. Closes the peer's tunnel.
    pub const TRUST_REMOVE: &str = "trust.remove";
    /// `()` → `Vec<`[`super::UntrustedPeer`]`>`.
    pub const TRUST_PENDING: &str = "trust.pending";
    /// [`super::TrustAdd`] → [`super::TrustedPeer`]; the key must be pending.
    pub const TRUST_APPROVE: &str = "trust.approve";
    /// [`super::PingRequest`] → [`super::PingAnswer`].
    pub const PING: &str = "ping";
    /// [`super::ResolveRequest`] → [`super::ResolveAnswer`]. Brings the tunnel up.
    pub const RESOLVE: &str = "resolve";
    /// `()` → `Vec<`[`crate::config::InForce`]`>`.
    pub const CONFIG: &str = "config";
    /// [`super::DiagnosisRequest`] → [`super::Diagnosis`].
    pub const DIAGNOSE: &str = "diagnose";
    /// `()` → [`super::ReachReport`], for trusted peers alone.
    pub const REACH: &str = "reach";
    /// [`super::MessageQuery`] → `Vec<`[`super::MessageRow`]`>`.
    pub const MESSAGE_LIST: &str = "message.list";
    /// [`super::MessageSelector`] → [`super::MessageDetail`].
    pub const MESSAGE_SHOW: &str = "message.show";
    /// [`super::MessageWait`] → [`super::MessageDetail`], once the message has the state that is waited for.
    pub const MESSAGE_WAIT: &str = "message.wait";
    /// [`super::MessageSelector`] → [`super::MessageRow`]: one that was given up is tried again.
    pub const MESSAGE_RETRY: &str = "message.retry";
    /// [`super::MessageSelector`] → [`super::MessageRow`], as it is once it is removed.
    pub const MESSAGE_DROP: &str = "message.drop";
    /// [`super::MessageTake`] → `Vec<`[`super::MessageDetail`]`>`.
    pub const MESSAGE_TAKE: &str = "message.take";
    /// [`super::BacklogWatch`] → lines of JSON, each a [`super::MessageBacklog`]: what waits for an agent, now and whenever it has changed, for as long as they are read.
    pub const MESSAGE_BACKLOG: &str = "message.backlog";
    /// [`super::MessageVerdict`] → [`super::MessageRow`].
    pub const MESSAGE_ACK: &str = "message.ack";
    /// [`super::MessageSelector`] → [`super::MessageRow`]: one that was sent from here is withdrawn. It has its end at once, or once its receipt comes.
    pub const TASK_CANCEL: &str = "task.cancel";
    /// [`super::TaskProgressReport`] → nothing: an agent of this machine says how far it is.
    pub const TASK_PROGRESS: &str = "task.progress";
    /// A batch of messages and receipts, in MessagePack, as `spec/messages.md` says; for trusted peers alone.
    pub const MESSAGES: &str = "messages";
    /// Records in MessagePack, as `spec/topics.md` says → [`super::PublishReceipt`].
    pub const TOPIC_PUBLISH: &str = "topic.publish";
    /// [`super::SubscribeRequest`] → records in MessagePack, for as long as they are read.
    pub const TOPIC_SUBSCRIBE: &str = "topic.subscribe";
    /// `()` → [`super::TopicList`].
    pub const TOPIC_LIST: &str = "topic.list";
    /// What a node wants, and what is published here: records in MessagePack both ways; for trusted peers alone.
    pub const TOPICS: &str = "topics";
    /// [`super::LeaseAsk`] → [`hailwire_wire::lease::LeaseAnswer`], from a hub.
    pub const LEASE_ASK: &str = "lease.ask";
    /// [`super::LeaseGiveBack`] → [`hailwire_wire::lease::LeaseReleased`], from a hub.
    pub const LEASE_RELEASE: &str = "lease.release";
    /// [`super::LeaseQuery`] → `Vec<`[`hailwire_wire::lease::LeaseRow`]`>`, from a hub.
    pub const LEASE_LIST: &str = "lease.list";
    /// [`super::KeepRequest`] → [`super::KeptTopicRow`].
    pub const TOPIC_KEEP: &str = "topic.keep";
    /// A pattern → [`super::KeptTopicRow`], as it was; what was kept is removed.
    pub const TOPIC_UNKEEP: &str = "topic.unkeep";
    /// [`super::ConfirmRequest`] → `()`, once that is on the disk.
    pub const TOPIC_CONFIRM: &str = "topic.confirm";
    /// The name of a subscriber → `()`; what it has confirmed is forgotten.
    pub const TOPIC_FORGET: &str = "topic.forget";
    /// What of the kept messages a node wants, and these: records in MessagePack both ways; for trusted peers alone.
    pub const TOPIC_REPLAY: &str = "topics.replay";
    /// [`super::ShutdownRequest`] → `()`; the node drains and exits.
    pub const SHUTDOWN: &str = "shutdown";
}

/// What a status is to say; nothing is the default of it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct StatusRequest {
    /// Ask each peer and each hub at this moment, for [`TunnelStatus::ping_us`] and [`HubState::answer_us`].
    pub measure: bool,
}

/// `hail status`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NodeStatus {
    /// The node's key.
    pub id: NodeId,
    /// The name that it goes by; empty for none.
    pub name: String,
    /// Version of the program.
    pub version: String,
    /// Process id.
    pub pid: u32,
    /// Milliseconds since start.
    pub uptime_ms: u64,
    /// Resident memory in bytes.
    pub rss_bytes: u64,
    /// Where key, trust and names are kept.
    pub data_dir: String,
    /// UDP sockets as bound.
    pub sockets: Vec<String>,
    /// TCP sockets as bound.
    #[serde(default)]
    pub tcp_sockets: Vec<String>,
    /// UDP addresses at which peers may find this node.
    pub addresses: Vec<String>,
    /// Those of `addresses` that are not this machine's own: as a hub's address discovery or a router's port mapping sees it.
    #[serde(default)]
    pub public_addresses: Vec<String>,
    /// TCP addresses at which peers may find this node.
    #[serde(default)]
    pub tcp_addresses: Vec<String>,
    /// Live tunnels.
    pub tunnels: Vec<TunnelStatus>,
    /// Agents attached or embedded here.
    pub agents: Vec<AgentRow>,
    /// Hubs joined.
    pub hubs: Vec<HubState>,
    /// Calls that this node has carried since its start: from its programs, and from peers.
    pub calls: u64,
    /// Those of `calls` that came from peers.
    #[serde(default)]
    pub calls_from_peers: u64,
    /// Calls to peers that found a tunnel up.
    #[serde(default)]
    pub reused: u64,
    /// Calls to peers for which a tunnel had to be brought up or waited for.
    #[serde(default)]
    pub made: u64,
    /// How the tunnels over UDP came to their paths.
    #[serde(default)]
    pub paths: PathSummary,
    /// The port of the router before this machine that leads to the node.
    #[serde(default)]
    pub port_mapping: PortMappingStatus,
    /// Panics since start that cost no more than the work in which they happened.
    #[serde(default)]
    pub panics: u64,
}

/// A port of the router before this machine (UPnP IGD; NAT-PMP, RFC 6886; PCP, RFC 6887).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PortMappingStatus {
    /// Whether the node asks for one: `listen.port-mapping`, on a node that listens to other machines over IPv4.
    pub enabled: bool,
    /// Whether a router was asked which protocols it speaks.
    pub asked: bool,
    /// Those that it speaks, the one that is used first: `pcp`, `nat-pmp`, `upnp`.
    pub protocols: Vec<String>,
    /// The address and port that lead to this node; none where the router gave none.
    pub external: Option<String>,
}

/// How the connections to peers over UDP came to their paths, since the node's start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PathSummary {
    /// Connections that had a path.
    pub connections: u64,
    /// Those that had a direct path at some time.
    pub direct: u64,
    /// Those whose first path led through a relay.
    pub relayed_first: u64,
    /// Those of `relayed_first` that got a direct path: a hole was punched, or the direct path was slower to answer.
    pub punched: u64,
    /// Microseconds from a connection's beginning to its direct path: the median of the last 256 of `punched`; none without any.
    pub direct_us: Option<u64>,
    /// Bytes sent and received through relays.
    pub relayed_bytes: u64,
}

/// One live tunnel.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TunnelStatus {
    /// The peer's key.
    pub peer: NodeId,
    /// The alias or name that it goes by here; empty for none.
    pub name: String,
    /// `quic`, `h2` or `ws`.
    pub carrier: String,
    /// Whether it takes the peer's new calls; a peer may have one tunnel over UDP and one over TCP.
    #[serde(default)]
    pub carries: bool,
    /// Why the tunnel that takes new calls does.
    #[serde(default)]
    pub why: String,
    /// The path in use, of the first connection.
    pub path: PathStatus,
    /// How long a PING took on it just now, in microseconds; none where no answer came within
    /// [`STATUS_PATIENCE_MS`].
    #[serde(default)]
    pub ping_us: Option<u64>,
    /// Connections that it consists of. What follows is of all of them together.
    #[serde(default = "one")]
    pub connections: u32,
    /// Bytes sent on the wire.
    pub sent_bytes: u64,
    /// Bytes received on the wire.
    pub received_bytes: u64,
    /// Packets sent on all paths, also on those that were tried and never used.
    pub sent_packets: u64,
    /// Packets declared lost on all paths: what is sent to punch a hole, or to find the largest packet, is often lost.
    pub lost_packets: u64,
    /// Streams open now, in either direction.
    pub in_flight: u64,
    /// Milliseconds since the first of its connections came up.
    pub up_ms: u64,
}

/// A node that says nothing of connections has one for a tunnel.
fn one() -> u32 {
    1
}

/// The path that a tunnel uses.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct PathStatus {
    /// `direct` or `relay`; empty while none is chosen.
    pub kind: String,
    /// Socket address or relay URL of the far end.
    pub remote: String,
    /// Smoothed round-trip time of its traffic in microseconds (RFC 9002, 5.3); one that was idle may be long ago.
    pub rtt_us: u64,
    /// Packets sent on it that count for `lost_packets`; 0 where loss cannot be told, as on TCP.
    #[serde(default)]
    pub sent_packets: u64,
    /// Those of them that were lost on the network, without the search for the largest packet.
    #[serde(default)]
    pub lost_packets: u64,
}

/// One agent that can be called. Members of one name on one node share a row.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct AgentRow {
    /// The agent's name.
    pub name: String,
    /// The node it lives on.
    pub node: NodeId,
    /// That node's alias or name; empty for none.
    pub node_name: String,
    /// Whether it lives on the asked node.
    pub local: bool,
    /// Which calls that name no node it gets from the asked node.
    #[serde(default)]
    pub bare: BareCalls,
    /// One line for people.
    #[serde(default)]
    pub description: String,
    /// Words to find it by.
    #[serde(default)]
    pub tags: Vec<String>,
    /// Its own version.
    #[serde(default)]
    pub version: String,
    /// How many attachments share the name there; 0 where unknown.
    #[serde(default)]
    pub members: u32,
    /// The numbers of those attachments, by which a call can name one ([`crate::client::Call::member`]); empty
    /// where unknown.
    #[serde(default)]
    pub member_numbers: Vec<u64>,
    /// Calls running in it now; only for local agents.
    #[serde(default)]
    pub in_flight: u64,
    /// Calls that wait until one of its members takes another one; only for local agents.
    #[serde(default)]
    pub waiting: u64,
    /// How each of its members fares, as the asked node sees it: those attachments in the order of `member_numbers`, or the node that offers
    /// it as one; empty where it is only known from a hub.
    #[serde(default)]
    pub group: Vec<AgentMember>,
}

/// A member of a group, as its node sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct AgentMember {
    /// `healthy`, `slow start`, `suspect`, `ejected`, `down` or `leaving`.
    pub state: String,
    /// When it takes calls beside the others: `priority N`, `overflow N` or `pinned`; empty for always.
    pub policy: String,
    /// Calls running in it that went through the asked node.
    pub in_flight: u32,
}

/// Which calls that name no node an agent gets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BareCalls {
    /// It is among those that get them now.
    First,
    /// Those for which nobody before it has room, or is up.
    Next,
    /// None: its node is restricted here, and nobody asked for it.
    #[default]
    Never,
}

/// `hail agents [--tag T] [WORDS]`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct AgentsQuery {
    /// Every tag must be there.
    pub tags: Vec<String>,
    /// Every word must occur in name, description or tags, without regard to case.
    pub words: Vec<String>,
    /// Only agents of the asked node itself.
    pub local_only: bool,
}

/// `hail describe AGENT`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DescribeRequest {
    /// `agent` or `agent@node`; from a peer `agent`.
    pub who: String,
}

/// Answer to [`DescribeRequest`]: an agent as its own node knows it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct AgentDescription {
    /// The agent's name.
    pub name: String,
    /// The node it lives on.
    pub node: NodeId,
    /// That node's alias or name; empty for none.
    pub node_name: String,
    /// One line for people.
    #[serde(default)]
    pub description: String,
    /// Words to find it by.
    #[serde(default)]
    pub tags: Vec<String>,
    /// Its own version.
    #[serde(default)]
    pub version: String,
    /// How many attachments share the name there.
    #[serde(default)]
    pub members: u32,
    /// `methods`: what it has, takes and answers; empty where it does not say.
    #[serde(flatten)]
    pub schema: AgentSchema,
}

/// One hub that the node belongs to.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct HubState {
    /// The hub's URL.
    pub url: String,
    /// Whether the last exchange with it succeeded.
    pub connected: bool,
    /// The name held there; empty for none.
    pub name: String,
    /// The last error, also why the hub did not give the name; empty for none.
    #[serde(default)]
    pub error: String,
    /// How long it took to answer just now, in microseconds; none where no answer came within
    /// [`STATUS_PATIENCE_MS`].
    #[serde(default)]
    pub answer_us: Option<u64>,
    /// Seconds since it answered last; none where it has not since the node's start.
    #[serde(default)]
    pub heard_s: Option<u64>,
}

/// `hail invite`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct InviteRequest {
    /// How often the ticket may be used.
    pub uses: u32,
    /// Seconds until it expires.
    pub expires_s: u64,
    /// Agents that the joining node may call; empty or `*` for all.
    #[serde(default)]
    pub allow: Vec<String>,
    /// Agents of the joining node that may take calls from here which name no node; empty for all
    /// where it may call all, else none.
    #[serde(default)]
    pub offer: Vec<String>,
}

/// Answer to [`InviteRequest`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct InviteAnswer {
    /// The ticket: a secret.
    pub ticket: String,
    /// Unix seconds of its expiry.
    pub expires_at: u64,
    /// How often it may be used.
    pub uses: u32,
    /// Agents that whoever joins with it may call; empty for all.
    #[serde(default)]
    pub allow: Vec<String>,
}

/// `hail join TICKET`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct JoinRequest {
    /// The ticket, of a node or of a hub.
    pub ticket: String,
    /// The alias to keep for a joined node; empty for the name that it offers.
    #[serde(default)]
    pub alias: String,
    /// Agents of this node that a joined node may call; `*` for all. Empty for all, or for a node that
    /// is trusted already what it may call.
    #[serde(default)]
    pub allow: Vec<String>,
    /// Agents of a joined node that may take calls from here which name no node; empty for all where it
    /// may call all, else none.
    #[serde(default)]
    pub offer: Vec<String>,
    /// The user agreed to what a hub's ticket says of its members.
    #[serde(default)]
    pub yes: bool,
}

/// Answer to [`JoinRequest`].
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum JoinAnswer {
    /// Both nodes now trust each other.
    Node {
        /// The inviter's key.
        id: NodeId,
        /// The alias that it now has here; empty for none.
        name: String,
        /// Agents of this node that it may call; empty for all.
        #[serde(default)]
        allow: Vec<String>,
    },
    /// This node is now a member of the hub.
    Hub {
        /// The hub's URL.
        url: String,
        /// The name held there; empty for none.
        name: String,
        /// Why the node is not registered there yet, or not as it wished; empty where all is well. It is
        /// tried again.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        error: String,
        /// Whether the hub says that its members trust each other.
        #[serde(default)]
        members: bool,
        /// Whether this node trusts its members from now on: only where ticket and hub say so and the
        /// user agreed.
        #[serde(default)]
        trusted: bool,
    },
}

/// `hail leave [HUB]`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct LeaveRequest {
    /// The hub's URL; empty for the only one.
    pub hub: String,
}

/// Answer to [`LeaveRequest`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LeaveAnswer {
    /// The hub's URL.
    pub url: String,
    /// Why the hub could not be told, so that it lists this node until its operator removes it; empty where it was told.
    #[serde(default)]
    pub error: String,
    /// Whether `hail.kdl` names the hub, so that the next start registers there again.
    #[serde(default)]
    pub configured: bool,
}

/// Asks a hub for a lease in the name of a program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseAsk {
    /// The hub's URL; empty for the only one.
    #[serde(default)]
    pub hub: String,
    /// What is asked of it.
    #[serde(flatten)]
    pub request: LeaseRequest,
}

/// Gives a program's lease back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseGiveBack {
    /// The hub's URL; empty for the only one.
    #[serde(default)]
    pub hub: String,
    /// Which lease.
    #[serde(flatten)]
    pub release: LeaseRelease,
}

/// `hail leases`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LeaseQuery {
    /// The hub's URL; empty for the only one.
    pub hub: String,
}

/// One trusted peer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TrustedPeer {
    /// Its key.
    pub id: NodeId,
    /// Its alias here; empty for none.
    pub alias: String,
    /// Who gave it that alias: `user`, or the `peer` itself; empty for none.
    #[serde(default)]
    pub named_by: String,
    /// Agents of this node that it may call; empty for all.
    pub allow: Vec<String>,
    /// Its agents that may take calls from here which name no node; empty for all where it may call
    /// all, else none.
    #[serde(default)]
    pub offer: Vec<String>,
    /// How trust came about: `ticket`, `approved`, `manual` or `hub`.
    pub via: String,
    /// Unix seconds.
    pub since: u64,
    /// Whether a tunnel to it is up.
    pub connected: bool,
}

/// `hail trust add` and `hail trust approve`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TrustAdd {
    /// The peer's key.
    pub id: NodeId,
    /// The alias to keep; empty for none.
    #[serde(default)]
    pub alias: String,
    /// Agents that it may call; `*` for all. Empty for all, or for a node that is trusted already what
    /// it may call.
    #[serde(default)]
    pub allow: Vec<String>,
    /// Its agents that may take calls from here which name no node; empty for all where it may call
    /// all, else none, or for a node that is trusted already what was said before.
    #[serde(default)]
    pub offer: Vec<String>,
    /// UDP socket addresses at which to find it, where no hub knows.
    #[serde(default)]
    pub addresses: Vec<String>,
    /// TCP socket addresses at which to find it.
    #[serde(default)]
    pub tcp: Vec<String>,
}

/// A peer by key, alias or name.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PeerSelector {
    /// Key, alias or name.
    pub who: String,
}

/// An untrusted peer that asked to be trusted.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct UntrustedPeer {
    /// Its key.
    pub id: NodeId,
    /// The name that it gives itself, which proves nothing: only the key does.
    pub claims: String,
    /// Where it was last seen.
    pub from: String,
    /// Unix seconds of its last attempt.
    pub at: u64,
    /// How often it tried.
    pub attempts: u32,
}

/// `hail ping PEER`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PingAnswer {
    /// The peer's key.
    pub id: NodeId,
    /// Its alias or name.
    pub name: String,
    /// Round trip of one PING frame through the session, in microseconds.
    pub rtt_us: u64,
    /// The path in use.
    pub path: PathStatus,
    /// `quic`, `h2` or `ws`.
    pub carrier: String,
    /// Why that carrier takes new calls.
    #[serde(default)]
    pub why: String,
    /// Whether the tunnel was up already.
    pub reused: bool,
    /// Microseconds spent to bring the tunnel up; 0 when it was reused.
    pub connect_us: u64,
    /// Whether the peer trusts this node: one that does not answers pings and refuses calls.
    pub trusted: bool,
}

/// Whom to ping: `hail ping PEER`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct PingRequest {
    /// Key, alias or name.
    pub who: String,
    /// `quic`, `h2` or `ws` to ping over that carrier whichever takes new calls; empty for that one.
    pub carrier: String,
}

/// `hail doctor [PEER]`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct DiagnosisRequest {
    /// Key, alias or name of a peer, the path to which is looked at too; empty for none.
    pub who: String,
    /// The longest silence after which the NAT's mapping is looked for, in seconds, at most 120; 0 not to measure how long it lives.
    pub lifetime_s: u64,
}

/// Answer to [`DiagnosisRequest`].
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Diagnosis {
    /// What was found; of the path first, then what is worst.
    pub findings: Vec<DiagnosisFinding>,
    /// What this network allows.
    pub network: ReachReport,
    /// The peer, where one was named.
    pub peer: Option<PeerDiagnosis>,
}

/// One thing that was found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DiagnosisFinding {
    /// Its stable code: `docs/reference/doctor.md` has them all.
    pub code: String,
    /// `fault`, `warning`, `note` or `good`.
    pub level: String,
    /// What is the case, and why: one sentence.
    pub cause: String,
    /// What to do; empty where there is nothing.
    pub cure: String,
}

/// What one end of a path can do, as far as hubs can tell.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ReachReport {
    /// UDP over IPv4 to a hub and back: `answered`, `silent` or `not-tried`.
    pub udp4: String,
    /// The same over IPv6.
    pub udp6: String,
    /// What its NAT does with external ports (RFC 4787, 4.1): `none` (there is no NAT), `endpoint-independent` or
    /// `endpoint-dependent`; none where that was not measured.
    pub mapping: Option<String>,
    /// Whether packets from a port that was not sent to come in; none where that was not measured.
    pub lets_other_ports_in: Option<bool>,
    /// Whether its router has mapped a port to it.
    pub is_mapped: bool,
    /// Whether it listens on TCP.
    pub listens_tcp: bool,
}

/// What a peer says to a node that it trusts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PeerReport {
    /// What its network allows.
    #[serde(flatten)]
    pub network: ReachReport,
    /// Where it looked for whoever asks, and what came back from there; at most 32.
    pub candidates: Vec<PathCandidate>,
}

/// A peer and the ways to it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct PeerDiagnosis {
    /// Its key; none where nobody goes by that name.
    pub id: Option<NodeId>,
    /// Its alias or name.
    pub name: String,
    /// What it says of its network; none where it did not.
    pub far: Option<ReachReport>,
    /// Where it may be, and what came back from there.
    pub candidates: Vec<PathCandidate>,
    /// Where it looked for this node, and what came back; empty where it did not say.
    pub far_candidates: Vec<PathCandidate>,
    /// Both put together, as far as that can be told; what is in use comes first, then what answered.
    pub pairs: Vec<AddressPair>,
}

/// One way between this node and a peer: an address of each.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct AddressPair {
    /// `udp`, `tcp` or `relay`.
    pub kind: String,
    /// Where the peer looked for this node; none where that may be any.
    pub near: Option<String>,
    /// Where this node looked for the peer; none where that may be any.
    pub far: Option<String>,
    /// `used`, `answered` or `no-answer`.
    pub outcome: String,
}

/// One way to a peer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PathCandidate {
    /// `udp`, `tcp` or `relay`.
    pub kind: String,
    /// A socket address or a relay's URL.
    pub address: String,
    /// Whether a path there is open.
    pub answered: bool,
    /// Whether new calls take it.
    pub used: bool,
}

/// `hail down`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ShutdownRequest {
    /// Milliseconds that calls in flight may take to finish.
    pub grace_ms: u64,
}

/// Asks where a call to an address would go, and brings the tunnel up.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ResolveRequest {
    /// `agent` or `agent@node`.
    pub who: String,
    /// The carrier that the call asks for; empty for none.
    #[serde(default)]
    pub carrier: String,
}

/// Where a call to an address goes: part of `hail call --stats`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ResolveAnswer {
    /// The node of the agent.
    pub node: NodeId,
    /// Its alias or name; empty for the asked node itself.
    pub name: String,
    /// Whether the agent lives on the asked node.
    pub local: bool,
    /// Whether no tunnel had to be brought up.
    pub reused: bool,
    /// Microseconds to find out which node is meant; for a bare name also to find a node that offers
    /// it, tunnels included.
    pub resolve_us: u64,
    /// Microseconds to bring the tunnel up; next to nothing when it was up already.
    pub connect_us: u64,
    /// The path in use; empty for a local agent.
    pub path: PathStatus,
    /// `quic`, `h2` or `ws`; empty for a local agent.
    #[serde(default)]
    pub carrier: String,
}

#[cfg(test)]
mod tests;

/// What a node says of a durable message once it is on disk: the body of the answer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SendReceipt {
    /// The message's id, 26 characters: by it the sender asks what became of it.
    pub id: String,
    /// `stored`, or `delivered` where the receiver is an agent of the same node; of a message that was known, its state now.
    pub state: String,
    /// It was sent before, with the same idempotency key, and is not sent again.
    pub known: bool,
}

/// Which messages are listed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MessageQuery {
    /// Those that were sent from here, newest first, instead of those that came, in their order.
    pub sent: bool,
    /// Of one agent, or to one address; empty for all.
    pub agent: String,
    /// In these states; none for all.
    pub states: Vec<String>,
    /// Of those that were sent, calls alone, in these states of a task; none for all: `submitted`, `working`, `completed`, `failed`,
    /// `cancelled` or `rejected`. Absent for sends too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tasks: Option<Vec<String>>,
    /// At most so many; 0 for as many as there are, up to 1,000.
    pub most: u32,
}

/// The field in which an agent finds the id of the durable message that it is handed.
pub const MESSAGE_ID_FIELD: &str = "hail-message-id";

/// The field in which an agent finds how often the message was handed over, this time included.
pub const MESSAGE_ATTEMPT_FIELD: &str = "hail-message-attempt";

/// The field of a durable call that says for how many milliseconds its sender's node keeps it after its end: seven days where it is absent, 30 at most.
pub const KEEP_FIELD: &str = "hail-message-keep";

/// The field of a durable call or send that says how often it is tried at most: as often as the receiver's node says where it is
/// absent, 100 times at most.
pub const ATTEMPTS_FIELD: &str = "hail-message-attempts";

/// A durable message, as the sender's or the receiver's node knows it. Times are unix milliseconds of that node's clock.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MessageRow {
    /// Its id.
    pub id: String,
    /// Whether it was sent from here.
    pub sent: bool,
    /// Whether its answer is wanted.
    pub call: bool,
    /// The address that it was sent to; the agent's name, of one that came.
    pub to: String,
    /// The agent that sent it, as it calls itself; empty where it has no name.
    pub from: String,
    /// The node at the other end.
    pub node: Option<NodeId>,
    /// `stored`, `delivered`, `taken`, `acknowledged`, `answered`, `dead`, `expired`, `unknown`, `dropped` or `cancelled`.
    pub state: String,
    /// The state of a durable call that was sent from here, as a task: `submitted`, `working`, `completed`, `failed`, `cancelled`
    /// or `rejected`. Empty of anything else.
    pub task: String,
    /// How often an agent was handed it.
    pub attempts: u32,
    /// Bytes of its body.
    pub bytes: u64,
    /// When this node had it on disk.
    pub stored_at_ms: u64,
    /// When a hub first held a sealed copy of it for the receiver's node, which was away.
    pub held_at_ms: Option<u64>,
    /// When the receiver's node had it on disk, as far as this node knows.
    pub delivered_at_ms: Option<u64>,
    /// When this node, from which it was sent, learned that the last attempt had begun; one that ends within a second is not told.
    pub started_at_ms: Option<u64>,
    /// When its sender withdrew it.
    pub withdrawn_at_ms: Option<u64>,
    /// When it had its end.
    pub ended_at_ms: Option<u64>,
    /// Until when its row is kept, of one that was sent from here and has its end.
    pub kept_until_ms: Option<u64>,
    /// How far the agent said that it is, in the last attempt.
    pub progress: Option<TaskProgress>,
    /// When it is worth nothing any more.
    pub expires_at_ms: u64,
    /// Why it did not succeed: the name of a status code; empty where it did, or has no end yet.
    pub code: String,
    /// The same in words.
    pub reason: String,
}

/// A message with what it says and what was answered.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MessageDetail {
    /// What the list says of it.
    #[serde(flatten)]
    pub row: MessageRow,
    /// The method that is asked for.
    pub method: String,
    /// Media type of the body.
    pub content_type: String,
    /// The application's fields.
    pub headers: Vec<(String, String)>,
    /// The body; empty once nobody needs it any more.
    pub body: MessageContent,
    /// Media type of the answer.
    pub answer_type: String,
    /// The answer of a durable call.
    pub answer: MessageContent,
    /// What is known of the answer while it is not whole, up to its first 256 KiB, in the last attempt.
    pub partial: MessageContent,
    /// Bytes of it.
    pub partial_bytes: u64,
}

/// How far an agent is with a message.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TaskProgress {
    /// When this node learned of it.
    pub at_ms: u64,
    /// How much is done, in units of the agent's own.
    pub done: u64,
    /// How much there is to do; 0 where the agent does not know.
    pub total: u64,
    /// What it is at.
    pub text: String,
}

/// What an agent says of a message that it has in hand.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TaskProgressReport {
    /// Which message: the field `hail-message-id` of what it was handed.
    pub id: String,
    /// Which attempt, from the field `hail-message-attempt`: what an earlier one says is refused. 0 for the one that is under way.
    pub attempt: u32,
    /// How much is done, in units of the agent's own.
    pub done: u64,
    /// How much there is to do; 0 where the agent does not know.
    pub total: u64,
    /// What it is at; its first 256 bytes are kept.
    pub text: String,
}

/// What somebody who waits knows of a message already.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MessageSeen {
    /// [`MessageRow::attempts`].
    pub attempts: u32,
    /// [`TaskProgress::at_ms`]; 0 for none.
    pub progress_at_ms: u64,
    /// [`MessageDetail::partial_bytes`].
    pub partial_bytes: u64,
}

/// To whom messages went that were published.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PublishReceipt {
    /// Messages that were published.
    pub published: u64,
    /// Subscriptions of programs of this machine that they went to, over all messages.
    pub programs: u64,
    /// Peers that they went to, over all messages; how many subscribe behind a peer, it alone knows.
    pub peers: u64,
    /// Messages that are kept, and on the disk.
    pub kept: u64,
    /// The number of the last of these in the node's log; 0 for none. Of state, its revision.
    pub last: u64,
}

/// What a program subscribes to. With any of `since_ms`, `last`, `from` or a `name` it reads what nodes keep, from there on; else it gets what is published from
/// now on, at most once.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SubscribeRequest {
    /// Patterns of topics, at least one. A message that several of them match comes once.
    pub patterns: Vec<String>,
    /// What was published no longer ago, and what follows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since_ms: Option<u64>,
    /// The last so many messages of each node, and what follows; 0 for only what follows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last: Option<u64>,
    /// Messages from this number on, in the log of each node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<u64>,
    /// The name of the subscriber, which gets each message at least once; empty for none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// How long nodes have to say what they keep before the program is told that they have; 3 s by default, 60 s at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub settle_ms: Option<u64>,
}

impl SubscribeRequest {
    /// Whether it reads what is kept.
    #[must_use]
    pub fn is_replay(&self) -> bool {
        let started = [self.since_ms, self.last, self.from];
        !self.name.is_empty() || started.iter().any(Option::is_some)
    }
}

/// What is to be kept.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct KeepRequest {
    /// Which topics.
    pub pattern: String,
    /// Most bytes; 1 GiB where it is not said. The oldest go.
    pub max_bytes: Option<u64>,
    /// Most messages; as many as fit where it is not said.
    pub max_messages: Option<u64>,
    /// Longest time in milliseconds; seven days where it is not said, but for the last of each topic.
    pub max_age_ms: Option<u64>,
    /// Only the last message of each topic.
    pub last_per_topic: bool,
}

impl KeepRequest {
    /// With what is meant where it is not said.
    pub(crate) fn bounds(&self) -> hailwire_core::kept_topics::KeptBounds {
        let age = (!self.last_per_topic).then_some(7 * 24 * 3600 * 1000);
        hailwire_core::kept_topics::KeptBounds {
            max_bytes: self.max_bytes.unwrap_or(1024 * 1024 * 1024),
            max_messages: self.max_messages,
            max_age_ms: self.max_age_ms.or(age),
            last_per_topic: self.last_per_topic,
        }
    }
}

/// What a named subscriber has done.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ConfirmRequest {
    /// Its name.
    pub name: String,
    /// The node whose messages they are; none for this machine.
    pub node: Option<NodeId>,
    /// The log that they are in.
    pub log: u64,
    /// The number of the last of them: all before it are done as well.
    pub kept: u64,
}

/// Who is subscribed to what.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TopicList {
    /// Patterns, those of programs of this machine first.
    pub topics: Vec<TopicRow>,
    /// Peers that are asked for what programs of this machine are subscribed to; none where those are subscribed to nothing.
    pub peers: Vec<TopicPeer>,
    /// What is kept here.
    pub kept: Vec<KeptTopicRow>,
    /// Named subscribers of this machine.
    pub named: Vec<NamedSubscriberRow>,
}

/// A pattern whose messages are kept, or the last of each topic.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct KeptTopicRow {
    /// The pattern.
    pub pattern: String,
    /// Most bytes that they take.
    pub max_bytes: u64,
    /// Most messages; absent for as many as fit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_messages: Option<u64>,
    /// Longest time in milliseconds; absent for as long as they fit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_age_ms: Option<u64>,
    /// Only the last message of each topic is kept.
    pub last_per_topic: bool,
    /// Messages that are kept.
    pub messages: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Messages that went because of a bound, since the pattern is kept.
    pub removed: u64,
    /// The number of the first one in the node's log; 0 for none.
    pub first: u64,
    /// When that was published, milliseconds since 1970.
    pub first_at_ms: u64,
    /// The number of the last one.
    pub last: u64,
}

/// A named subscriber.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NamedSubscriberRow {
    /// Its name.
    pub name: String,
    /// What it is subscribed to.
    pub patterns: Vec<String>,
    /// Since when, milliseconds since 1970.
    pub made_ms: u64,
    /// Whether a program reads as it now.
    pub reading: bool,
    /// How far it has come at each node that it has read.
    pub positions: Vec<NamedPositionRow>,
}

/// How far a named subscriber has come at a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamedPositionRow {
    /// The node.
    pub node: NodeId,
    /// Its name here; of this machine its own. Empty where it has none.
    pub node_name: String,
    /// The number of the last message that it has confirmed, in that node's log.
    pub kept: u64,
}

/// A pattern that somebody is subscribed to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TopicRow {
    /// The pattern.
    pub pattern: String,
    /// The peer whose programs want it; absent for programs of this machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<NodeId>,
    /// The name of that peer here; empty where it has none.
    pub node_name: String,
    /// Subscriptions of this machine with this pattern; 1 for a peer.
    pub subscribers: u64,
    /// Messages that were put into their queues, since they subscribe.
    pub published: u64,
    /// Messages that they took.
    pub delivered: u64,
    /// Messages that they lost because they read too slowly, also on their way from a peer.
    pub missed: u64,
}

/// A peer that is asked for messages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TopicPeer {
    /// Its key.
    pub node: NodeId,
    /// Its name here; empty where it has none.
    pub node_name: String,
    /// Whether messages would come from it now.
    pub subscribed: bool,
    /// Patterns that it does not let this node subscribe to.
    pub refused: Vec<String>,
    /// Messages of it that were dropped, since the tunnel is up: this node does not let it publish under those topics.
    pub dropped: u64,
    /// Why it cannot be asked; empty where it can.
    pub error: String,
}

/// Bytes, as text where they are UTF-8, else in base64.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MessageContent {
    /// The text.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub text: String,
    /// Bytes that are no text.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub base64: String,
}

impl From<&[u8]> for MessageContent {
    fn from(bytes: &[u8]) -> Self {
        match std::str::from_utf8(bytes) {
            Ok(text) => Self {
                text: text.to_owned(),
                base64: String::new(),
            },
            Err(_) => Self {
                text: String::new(),
                base64: data_encoding::BASE64.encode(bytes),
            },
        }
    }
}

/// One message.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MessageSelector {
    /// Its id.
    pub id: String,
}

/// Waits for a message.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MessageWait {
    /// Its id.
    pub id: String,
    /// Until it is at least so far: `delivered`, for example; empty for its end.
    pub state: String,
    /// Until there is anything of progress that is not known yet; absent to wait for its state alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seen: Option<MessageSeen>,
    /// For so many milliseconds; 0 for as long as the node waits, which is five minutes.
    pub timeout_ms: u64,
}

/// Takes messages of an agent by hand, in place of a program that serves it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MessageTake {
    /// Of which agent.
    pub agent: String,
    /// At most so many, from 1 to 64.
    pub most: u32,
    /// For so many milliseconds; after that they are handed over again. 0 for a minute; an hour at most.
    pub lease_ms: u64,
}

/// Asks what waits for an agent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct BacklogWatch {
    /// Which agent.
    pub agent: String,
}

/// What waits for an agent at its node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MessageBacklog {
    /// Messages that can be taken now, up to as many as one agent may have in hand.
    pub ready: u64,
    /// Messages that are not in hand, those included that are due later or come after one in hand.
    pub waiting: u64,
    /// Messages in hand.
    pub in_hand: u64,
    /// Messages that were handed over or taken by hand since somebody began to watch.
    pub taken: u64,
}

/// What became of a message that was taken by hand.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MessageVerdict {
    /// Its id.
    pub id: String,
    /// Why it failed; `None` where it is done.
    pub failed: Option<String>,
    /// Whether it is to be handed over again, where it failed.
    pub retry: bool,
    /// The answer, where there is one.
    pub answer: String,
}
