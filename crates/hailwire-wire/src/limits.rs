//! Every bound of the protocol. `spec/limits.md` is the prose of this file.
//!
//! A bound exists for each thing that a peer can make grow. Numbers are bytes unless the name
//! says otherwise.

/// Largest payload of one frame: the length field has 24 bits.
pub const MAX_FRAME_PAYLOAD: usize = (1 << 24) - 1;

/// Largest encoded header (call, answer head, end, hello, offers).
pub const MAX_HEADER: usize = 64 * 1024;

/// Most name and value pairs that one header may carry.
pub const MAX_HEADER_FIELDS: usize = 128;

/// Deepest nesting of maps and arrays in one header, unknown fields included.
pub const MAX_HEADER_DEPTH: usize = 16;

/// Longest agent or node name.
pub const MAX_NAME: usize = 64;

/// Longest method name.
pub const MAX_METHOD: usize = 128;

/// Longest affinity key, in bytes.
pub const MAX_AFFINITY: usize = 256;

/// Longest human-readable message of a status; longer ones are cut when they are made.
pub const MAX_STATUS_MESSAGE: usize = 1024;

/// Largest `details` of a status; longer ones are cut when they are made.
pub const MAX_STATUS_DETAILS: usize = 8 * 1024;

/// Largest one-way message body. A larger one is a call or a stream.
pub const MAX_SEND_BODY: usize = 16 * 1024 * 1024;

/// Most messages, and most receipts, of one batch between nodes.
pub const MAX_BATCH: usize = 1024;

/// Most bytes of a batch of messages between nodes: room for one message of [`MAX_SEND_BODY`] with its header.
pub const MAX_BATCH_BYTES: usize = 17 * 1024 * 1024;

/// Most attempts that the sender of a durable message may ask for.
pub const MAX_MESSAGE_ATTEMPTS: u32 = 100;

/// Longest text with which an agent says how far it is with a message, in bytes.
pub const MAX_PROGRESS_TEXT: usize = 256;

/// Most bytes of an answer that are told before it is whole.
pub const MAX_PARTIAL: usize = 256 * 1024;

/// Largest signed record.
pub const MAX_RECORD: usize = 64 * 1024;

/// Most agents that one record or one offer may list.
pub const MAX_AGENTS_PER_NODE: usize = 1024;

/// Most addresses that one record or ticket may list.
pub const MAX_ADDRESSES: usize = 32;

/// Most bytes that the agents of one node take in its offers: 256 for each of
/// [`MAX_AGENTS_PER_NODE`]. A node that would offer more refuses the agent that is one too many.
pub const MAX_OFFERS: usize = 256 * 1024;

/// Most pages of one list of offers: room for [`MAX_OFFERS`] however the agents are cut into frames.
pub const MAX_OFFER_PAGES: usize = 5;

/// Longest description of an agent.
pub const MAX_DESCRIPTION: usize = 256;

/// Most tags of one agent.
pub const MAX_TAGS: usize = 16;

/// Largest schema of one agent. Half a thousand lines of JSON; it goes in a header, beside the agent's other fields.
pub const MAX_SCHEMA: usize = 48 * 1024;

/// Milliseconds that an agent may say of its place in a group: of its slow start, and of how long it is pinned without a call. An hour.
pub const MAX_GROUP_MS: u64 = 3_600_000;

/// Calls that wait for a place in an agent, which says how many it takes at once, where the agent does not say how many may.
pub const DEFAULT_WAITING_CALLS: u32 = 1024;

/// Most calls that an agent may let wait.
pub const MAX_WAITING_CALLS: u32 = 4096;

/// Most bytes that the schemas of all agents of one node take: 4 KiB for each of [`MAX_AGENTS_PER_NODE`].
pub const MAX_SCHEMAS: usize = 4 * 1024 * 1024;

/// Longest path of a Unix socket at which raw streams are taken: what the address of one has room for on Linux.
pub const MAX_SOCKET_PATH: usize = 107;

/// Longest ticket text.
pub const MAX_TICKET: usize = 4096;

/// Streams that a peer may have open on one multiplexed connection at once.
pub const MUX_MAX_STREAMS: usize = 4096;

/// Receive window that a multiplexed stream has from its first byte, always promised. As large as
/// the first flight of a TCP connection (RFC 6928), so that a wider one would save no round trip.
///
/// With [`MUX_RECEIVE_POOL`] it bounds the unread bytes of a connection:
/// `(streams opened by the peer + streams opened here) * MUX_INITIAL_WINDOW + MUX_RECEIVE_POOL`,
/// that is 72 MiB for what a peer can do alone. In memory they may take 1 MiB more, because large
/// frames are kept as slices of a read buffer while less than 128 KiB are unread. A node lets its peers
/// have much less, see `carrier::Budget`.
pub const MUX_INITIAL_WINDOW: u32 = 16 * 1024;

/// Receive window that a multiplexed stream grows to while its reader reads. Eight times what a
/// stream queues for writing, so that credit comes back while there is still something to send, and
/// enough for 300 Mbit/s at 50 ms.
pub const MUX_STREAM_WINDOW: u32 = 2 * 1024 * 1024;

/// Bytes that the streams of one connection share to grow their windows beyond
/// [`MUX_INITIAL_WINDOW`]. Each grown stream gets an equal part at most.
pub const MUX_RECEIVE_POOL: usize = 8 * 1024 * 1024;

/// Bytes that one multiplexed stream queues for writing before its writer waits.
pub const MUX_SEND_QUEUE: usize = 256 * 1024;

/// Bytes that one multiplexed stream may queue for writing also where all streams of its connection
/// together have queued as much as their peer has room for: an answer of a few words goes its way.
pub const MUX_SEND_FLOOR: usize = 4 * 1024;

/// Datagrams that a multiplexed connection queues in each direction; the oldest is dropped for one
/// more.
pub const MUX_MAX_DATAGRAMS: usize = 128;

/// Longest topic, and longest pattern of topics.
pub const MAX_TOPIC: usize = 256;

/// Most tokens of a topic or pattern.
pub const MAX_TOPIC_TOKENS: usize = 16;

/// Most different patterns that the programs of a node are subscribed to, and that a node takes from one peer.
pub const MAX_TOPIC_PATTERNS: usize = 1024;

/// Largest body of a message that is published under a topic.
pub const MAX_TOPIC_BODY: usize = 1024 * 1024;

/// Largest record of a stream of published messages: room for a body of [`MAX_TOPIC_BODY`] with its header, or for
/// [`MAX_TOPIC_PATTERNS`] patterns.
pub const MAX_TOPIC_RECORD: usize = 1152 * 1024;

/// Most patterns of one replay of kept messages.
pub const MAX_REPLAY_PATTERNS: usize = 64;

/// Most messages that a replay of the newest takes.
pub const MAX_REPLAY_LAST: u64 = 100_000;

/// Unanswered pings that a multiplexed connection remembers; further ones get no answer.
pub const MUX_MAX_PINGS: usize = 16;

/// Longest reason of a multiplexed connection's close; longer ones are cut when they are made.
pub const MUX_MAX_REASON: usize = 1024;

/// Largest data frame of the multiplexer, so that a high priority never waits long behind one.
pub const MUX_MAX_DATA: usize = 16 * 1024;

/// WebSocket frames that bring nothing (pings, pongs, empty messages) which a peer may send at once.
pub const WS_CONTROL_BURST: u32 = 64;

/// The same, each second beyond [`WS_CONTROL_BURST`].
pub const WS_CONTROL_RATE: u32 = 8;

/// Largest WebSocket message that the carrier takes; it sends up to a quarter of it.
pub const WS_MAX_MESSAGE: usize = 64 * 1024;

/// Largest HTTP head that begins a WebSocket, in either direction.
pub const WS_MAX_HEAD: usize = 8 * 1024;

/// Streams that a peer may have open on one HTTP/2 connection, its control stream apart.
pub const H2_MAX_STREAMS: usize = 1024;

/// Largest head of a request, an answer or its trailers over HTTP/2, as RFC 9113 counts it.
pub const H2_MAX_HEAD: usize = 4 * 1024;

/// Longest reason of a close over HTTP/2; longer ones are cut when they are made.
pub const H2_MAX_REASON: usize = 1024;

/// Connections over one carrier that a node takes from one peer, the first included; a node that is set up to
/// open more itself takes as many.
pub const MAX_CONNECTIONS: usize = 64;

/// Largest datagram that a carrier promises to take.
pub const MAX_DATAGRAM: usize = 1100;

/// Longest URL of a hub or relay.
pub const MAX_URL: usize = 256;

/// Longest time, in seconds, between a record's `issued` and `expires`: a week.
pub const MAX_RECORD_LIFETIME_S: u64 = 7 * 24 * 3600;

/// How far, in seconds, two clocks may differ: an hour and five minutes.
pub const CLOCK_TOLERANCE_S: u64 = 3900;

/// Most tickets that an inviter keeps at once; an expired one gives way.
pub const MAX_INVITATIONS: usize = 1024;

/// Most nodes to which a node shows its agents at a hub that lists by trust.
pub const MAX_SHOWN_TO: usize = 1024;

/// Largest body of a request to a hub: a record in base64 and some room.
pub const MAX_HUB_REQUEST: usize = 128 * 1024;

/// Largest sealed batch that a hub holds: the largest size class of [`crate::held`], and what surrounds it.
pub const MAX_HELD: usize = 1024 * 1024 + 49;

/// How old, in seconds, a sealed batch may be when its receiver opens it: six days. It is less than the seven for which a node knows the ids of
/// messages that have ended, so that a hub which keeps a copy cannot have one done again.
pub const MAX_HELD_AGE_S: u64 = 6 * 24 * 3600;

/// Largest body of a request that leaves a sealed batch at a hub: it in base64, and its receiver.
pub const MAX_HELD_REQUEST: usize = 1536 * 1024;

/// Largest body of a hub's answer.
pub const MAX_HUB_ANSWER: usize = 4 * 1024 * 1024;

/// Most words and tags of one search.
pub const MAX_SEARCH_TERMS: usize = 16;

/// Most leases that a hub has at once; one that runs out gives way.
pub const MAX_LEASES: usize = 4096;

/// Most leases that the programs of one member hold at once.
pub const MAX_MEMBER_LEASES: usize = 64;

/// Shortest lease, in milliseconds.
pub const MIN_LEASE_MS: u64 = 1000;

/// Longest lease, in milliseconds: ten minutes.
pub const MAX_LEASE_MS: u64 = 600_000;
