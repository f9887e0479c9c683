//! The names of tables, rows, subjects and forms: the one place for the names with which suites write
//! lines and reports find them.
//!
//! [`PUBLISHED`] lists every row of the tables that others published and that ours stand beside. A
//! suite gives each of them a line or the reason why there is none, and a test holds it to that.

/// What was measured: the values of [`crate::result::CellId::subject`].
pub mod subject {
    /// A session over QUIC, from an embedded node to an embedded node.
    pub const QUIC: &str = "quic";
    /// A session over HTTP/2.
    pub const H2: &str = "h2";
    /// A session over WebSocket.
    pub const WS: &str = "ws";
    /// A session over whichever carrier the node chooses.
    pub const AUTO: &str = "auto";
    /// Plain hyper.
    pub const PLAIN_H2: &str = "plain h2";
    /// Plain tungstenite.
    pub const PLAIN_WS: &str = "plain ws";
    /// A bare iroh connection.
    pub const RAW_IROH: &str = "raw iroh";
    /// A program attached to its node, through two nodes, to an agent attached to its own.
    pub const PROCESSES: &str = "process to process";
}

/// Whether a row times something that moves no bytes, though its subjects divide the length of a chunk by the time: a
/// report leaves that rate out, and shows the time of one operation.
#[must_use]
pub fn moves_no_bytes(table: &str, row: &str) -> bool {
    // A chunk in raw frames is read by taking a handle on it.
    table == "C8" && row.ends_with(", raw")
}

/// What takes part in the suite of the SDKs.
pub mod sdk {
    /// The table of programs in Python.
    pub const PYTHON_TABLE: &str = "python";
    /// The table of programs in TypeScript.
    pub const TYPESCRIPT_TABLE: &str = "typescript";

    /// Both programs with the SDK for Python, attached to one node.
    pub const PYTHON: &str = "python sdk";
    /// gRPC of grpcio.
    pub const GRPC_AIO: &str = "grpc.aio";
    /// Request and reply of NATS, through its server.
    pub const NATS_PY: &str = "nats-py";
    /// HTTP/1.1 of aiohttp.
    pub const AIOHTTP: &str = "aiohttp";

    /// Both programs with the SDK for TypeScript, attached to one node.
    pub const TYPESCRIPT: &str = "typescript sdk";
    /// gRPC of @grpc/grpc-js.
    pub const GRPC_JS: &str = "grpc-js";
    /// Request and reply of NATS, through its server.
    pub const NATS_JS: &str = "nats.js";
    /// HTTP/1.1 of undici, to a server of node:http.
    pub const UNDICI: &str = "undici";

    /// On the event loop that comes with Python.
    pub const ASYNCIO: &str = "asyncio";
    /// On uvloop.
    pub const UVLOOP: &str = "uvloop";
    /// Each call has its deadline from the library's own option.
    pub const TIMEOUT: &str = "timeout";
    /// Each call has its deadline from `AbortSignal.timeout`.
    pub const SIGNAL: &str = "AbortSignal";

    /// The row of the target for one at a time.
    pub const ONE: &str = "1 KiB, 1 in flight";
    /// The row of the target for many at once.
    pub const MANY: &str = "1 KiB, 64 in flight";
}

/// What takes part in callouts.
pub mod callout {
    /// Our operations, in one process.
    pub const OURS: &str = "callout";
    /// The foreign crate's.
    pub const THEIRS: &str = "zentinel";
    /// Bytes back and forth over a Unix socket, of the sizes of an event and its answer.
    pub const RAW: &str = "raw socket";
    /// Our host and our agent.
    pub const OURS_OURS: &str = "ours to ours";
    /// Our host and the foreign crate's agent.
    pub const OURS_THEIRS: &str = "ours to theirs";
    /// The foreign crate's host and our agent.
    pub const THEIRS_OURS: &str = "theirs to ours";
    /// The foreign crate's host and agent.
    pub const THEIRS_THEIRS: &str = "theirs to theirs";

    /// Our host and our agent on one machine, beside an agent on another.
    pub const NEAR: &str = "near agent";
    /// The same, asked as seldom as the round trip of the network allows.
    pub const SELDOM: &str = "near agent, as seldom";
    /// Our host and our agent with two nodes between them.
    pub const FAR: &str = "far agent";
    /// Datagrams back and forth, of the sizes of an event and its answer.
    pub const UDP: &str = "udp echo";

    /// On one thread.
    pub const ALONE: &str = "one thread";
    /// On two threads at once, which use the same thing where it is one that threads share.
    pub const CONTENDED: &str = "two threads";

    /// Bytes with blocking calls: the least that there is.
    pub const BLOCKING: &str = "bytes";
    /// Bytes on an event loop.
    pub const EVENTED: &str = "bytes, event loop";

    /// The row of the target for one at a time.
    pub const ONE: &str = "headers, 1 in flight, one CPU";
    /// The row of the target for many at once.
    pub const MANY: &str = "headers, 64 in flight, pool of 4";
    /// The row that is compared with gRPC.
    pub const GRPC: &str = "headers, 64 in flight, gRPC";
    /// The rows of the target for bodies.
    pub const BODY: [&str; 2] = ["64 KiB body, 64 in flight", "10 MiB body, 1 in flight"];

    /// The networks between a host and an agent on another node, with the rows of the target for it and of its rate.
    pub const BETWEEN: [(&str, &str, &str); 3] = [
        (
            "loopback",
            "headers, 1 in flight, loopback",
            "headers, 64 in flight, loopback",
        ),
        (
            "wan-50ms",
            "headers, 1 in flight, wan-50ms",
            "headers, 64 in flight, wan-50ms",
        ),
        (
            "home-to-home",
            "headers, 1 in flight, home-to-home",
            "headers, 64 in flight, home-to-home",
        ),
    ];
    /// The row of bodies to an agent on another node.
    pub const FAR_BODY: &str = "64 KiB body, 64 in flight, loopback";

    /// Every operation that is timed in one process: its table and its name.
    pub const OPERATIONS: &[(&str, &str)] = &[
        ("C1", "health, read"),
        ("C1", "health, write"),
        ("C2", "timestamp, read"),
        ("C2", "timestamp, write"),
        ("C3", "affinity hit, 10"),
        ("C3", "affinity miss, 10"),
        ("C3", "affinity hit, 100"),
        ("C3", "affinity miss, 100"),
        ("C3", "affinity hit, 1,000"),
        ("C3", "affinity miss, 1,000"),
        ("C3", "affinity hit, 10,000"),
        ("C3", "affinity miss, 10,000"),
        ("C4", "serialise small, JSON"),
        ("C4", "serialise small, MessagePack"),
        ("C4", "serialise large, JSON"),
        ("C4", "serialise large, MessagePack"),
        ("C5", "deserialise small, JSON"),
        ("C5", "deserialise small, MessagePack"),
        ("C5", "deserialise large, JSON"),
        ("C5", "deserialise large, MessagePack"),
        ("C6", "size small, JSON"),
        ("C6", "size small, MessagePack"),
        ("C6", "size large, JSON"),
        ("C6", "size large, MessagePack"),
        ("C6", "size small, own agent"),
        ("C6", "size large, own agent"),
        ("C7", "chunk out, 1 KiB, JSON"),
        ("C7", "chunk out, 4 KiB, JSON"),
        ("C7", "chunk out, 16 KiB, JSON"),
        ("C7", "chunk out, 64 KiB, JSON"),
        ("C7", "chunk out, 1 KiB, raw"),
        ("C7", "chunk out, 4 KiB, raw"),
        ("C7", "chunk out, 16 KiB, raw"),
        ("C7", "chunk out, 64 KiB, raw"),
        ("C8", "chunk in, 1 KiB, JSON"),
        ("C8", "chunk in, 4 KiB, JSON"),
        ("C8", "chunk in, 16 KiB, JSON"),
        ("C8", "chunk in, 64 KiB, JSON"),
        ("C8", "chunk in, 1 KiB, raw"),
        ("C8", "chunk in, 4 KiB, raw"),
        ("C8", "chunk in, 16 KiB, raw"),
        ("C8", "chunk in, 64 KiB, raw"),
        ("C9", "one header"),
        ("C10", "twenty headers"),
        ("C11", "counter, increment"),
        ("C11", "counter, read"),
        ("C11", "histogram, record"),
        ("C12", "selection path, JSON"),
        ("C12", "selection path, MessagePack"),
    ];
}

/// In which of several forms: the values of [`crate::result::CellId::form`].
pub mod form {
    /// A new connection between two programs that have never met.
    pub const COLD: &str = "cold";
    /// A new connection with a kept TLS session (RFC 8446, 2.2).
    pub const RESUMED: &str = "resumed";
    /// A new connection whose first flight carries the request (RFC 8446, 2.3).
    pub const ZERO_RTT: &str = "0-rtt";
    /// A connection that is up already.
    pub const WARM: &str = "warm";
    /// Agents share connections.
    pub const POOLED: &str = "pooled";
    /// A connection for each agent.
    pub const PER_AGENT: &str = "per agent";
    /// New connections that the agents share.
    pub const COLD_POOLED: &str = "cold, pooled";
}

/// Agents and message size of the three published scenarios.
pub const SCENARIOS: [(u32, usize); 3] = [(10, 1_000), (100, 10_000), (1_000, 100_000)];

/// Round-trip times at which each scenario runs, in milliseconds.
pub const RTTS: [u32; 3] = [0, 50, 100];

/// The row of one connection at 50 ms, by which the targets of establishment are judged.
pub const ONE_AGENT: &str = "1 agent, 50 ms";
/// The row of the target for small calls.
pub const SMALL_CALLS: &str = "64 in flight × 1 KB, 0 ms";
/// The row of the target for bulk.
pub const BULK: &str = "bulk, 0 ms";
/// Bulk by a node that may choose its carrier, on this machine alone.
pub const BULK_CHOSEN: &str = "bulk, carrier chosen, 0 ms";
/// The same over packets of 1,500 bytes.
pub const BULK_CHOSEN_LAN: &str = "bulk, carrier chosen, lan";
/// The row of the target under loss.
pub const UNDER_LOSS: &str = "1 KB, 50 ms, 1 % loss";
/// Streams of several sizes under loss: what one lost packet holds up.
pub const HEAD_OF_LINE: &str = "head of line, 50 ms, 1 % loss";
/// The row of the target for dispatch.
pub const CONCURRENT: &str = "50 agents, concurrent";

/// `1,000`.
#[must_use]
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// `10 KB`, in powers of a thousand as the published tables have it.
#[must_use]
pub fn size(bytes: usize) -> String {
    match bytes {
        0..1_000 => format!("{bytes} B"),
        1_000..1_000_000 => format!("{} KB", bytes / 1_000),
        _ => format!("{} MB", bytes / 1_000_000),
    }
}

/// `10 agents`.
#[must_use]
pub fn agents(agents: u32) -> String {
    let s = if agents == 1 { "" } else { "s" };
    format!("{} agent{s}", grouped(agents.into()))
}

/// `100 agents, 50 ms`: a row of Q1.
#[must_use]
pub fn establishment(count: u32, rtt: u32) -> String {
    format!("{}, {rtt} ms", agents(count))
}

/// `100 agents × 10 KB, 50 ms`: a row of Q2.
#[must_use]
pub fn scenario(count: u32, bytes: usize, rtt: u32) -> String {
    format!("{} × {}, {rtt} ms", agents(count), size(bytes))
}

/// Every published row: its table and its name.
pub const PUBLISHED: &[(&str, &str)] = &[
    ("Q1", "10 agents, 0 ms"),
    ("Q1", "100 agents, 50 ms"),
    ("Q1", "1,000 agents, 100 ms"),
    ("Q2", "10 agents × 1 KB, 0 ms"),
    ("Q2", "100 agents × 10 KB, 0 ms"),
    ("Q2", "1,000 agents × 100 KB, 0 ms"),
    ("Q3", "10 agents"),
    ("Q3", "100 agents"),
    ("Q3", "1,000 agents"),
    ("Q3", HEAD_OF_LINE),
    ("Q4", "10 agents"),
    ("Q4", "100 agents"),
    ("Q4", "1,000 agents"),
    ("Q5", "10 agents"),
    ("Q5", "100 agents"),
    ("Q5", "1,000 agents"),
    ("Q6", "1 KB, 50 ms"),
    ("Q6", UNDER_LOSS),
    ("Q7", "50 ms, 1 % loss"),
    ("Q7", "100 ms, 200 Mbit/s"),
    ("Q8", "10 agents"),
    ("Q8", "100 agents"),
    ("Q8", "1,000 agents"),
    ("Q9", "64 KB"),
    ("Q9", "128 KB"),
    ("Q9", "256 KB"),
    ("Q9", "512 KB"),
    ("Q10", "critical"),
    ("Q10", "high"),
    ("Q10", "medium"),
    ("Q10", "low"),
    ("Q11", "packets"),
    ("Q11", "crypto"),
    ("Q11", "streams"),
    ("Q11", "connections"),
    ("Q11", "congestion control"),
    ("Q11", "application"),
    ("Q12", "connection"),
    ("Q12", "throughput"),
    ("Q12", "memory"),
    ("Q12", "CPU"),
    ("Q12", "latency"),
    ("Q12", "overall"),
    ("O1", "opened"),
    ("O1", "first answer"),
    ("O2", "50 agents, serial"),
    ("O2", CONCURRENT),
    ("O3", "1 KB"),
    ("O3", "10 KB"),
    ("O3", "100 KB"),
    ("O4", "1 MB"),
    ("O5", "100 peers"),
    ("O5", "1,000 peers"),
    ("O6", "setup, direct"),
    ("O6", "setup, punched"),
    ("O6", "setup, relayed"),
    ("O6", "setup, relay proxy"),
    ("O6", "message, direct"),
    ("O6", "message, punched"),
    ("O6", "message, relayed"),
    ("O6", "message, relay proxy"),
    ("O6", "throughput, direct"),
    ("O6", "throughput, punched"),
    ("O6", "throughput, relayed"),
    ("O6", "throughput, relay proxy"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_published_rows() {
        assert_eq!(grouped(1_234_567), "1,234,567");
        let rows: Vec<&str> = PUBLISHED.iter().map(|(_, row)| *row).collect();
        assert!(rows.contains(&establishment(1_000, 100).as_str()));
        assert_eq!(establishment(1, 50), ONE_AGENT);
        for (agents, bytes) in SCENARIOS {
            assert!(rows.contains(&scenario(agents, bytes, 0).as_str()));
        }
    }
}
