//! Tables Q: a transport for the coordination of many agents, QUIC with BBR against HTTP/2 over
//! TLS 1.3 and WebSocket.

use super::{PublishedGroup, PublishedRow, PublishedTable};

const SOURCE: &str = "agentic-flow, QUIC transport benchmark";

const QUIC: PublishedGroup = PublishedGroup {
    name: "QUIC",
    subjects: &["quic", "raw iroh"],
};
const H2: PublishedGroup = PublishedGroup {
    name: "HTTP/2",
    subjects: &["plain h2", "h2"],
};
const WS: PublishedGroup = PublishedGroup {
    name: "WebSocket",
    subjects: &["plain ws", "ws"],
};

const CONNECT: &[&str] = &[
    "p50_us",
    "establish_p50_us",
    "connect_p50_us",
    "establish_us",
];
const MESSAGES: &[&str] = &["messages_per_s", "per_s"];
const STREAMS: &[&str] = &["streams_per_s", "messages_per_s"];
const PEAK: &[&str] = &["client_peak_rss_bytes", "client_rss_bytes", "rss_bytes"];
const CPU: &[&str] = &[
    "cpu_percent",
    "client_cpu_percent",
    "cpu_us_per_message",
    "cpu_s",
];
const RATE: &[&str] = &[
    "megabits_per_s",
    "mbit_per_s",
    "megabytes_per_s",
    "bytes_per_s",
];
const LATENCY: &[&str] = &["p50_us", "mean_us"];
const SHARE: &[&str] = &["cpu_percent", "share_percent", "percent", "share"];
const SCORE: &[&str] = &["score"];
const DELIVERED: &[&str] = &["delivered_percent", "delivered_share"];

const fn row(
    name: &'static str,
    words: &'static str,
    figures: &'static [&'static str],
    published: &'static [&'static str],
) -> PublishedRow {
    PublishedRow {
        name,
        words,
        figures,
        published,
    }
}

/// Q1 to Q12.
pub(crate) const COORDINATION: &[PublishedTable] = &[
    PublishedTable {
        id: "Q1",
        suite: "coordination",
        title: "Connection establishment",
        source: SOURCE,
        groups: &[QUIC, H2, WS],
        rows: &[
            row(
                "10 agents, 0 ms",
                "10 agents, 0 ms",
                CONNECT,
                &["12.3 ms", "23.4 ms", "18.7 ms"],
            ),
            row(
                "100 agents, 50 ms",
                "100 agents, 50 ms",
                CONNECT,
                &["87.5 ms", "153.1 ms", "129.4 ms"],
            ),
            row(
                "1,000 agents, 100 ms",
                "1000 agents, 100 ms",
                CONNECT,
                &["892.3 ms", "1,447.6 ms", "1,238.9 ms"],
            ),
        ],
        also: &["p95_us", "all_us"],
        notes: &[
            "The publisher's released versions were later found to move no bytes, so the QUIC column has no \
             work behind it that could be repeated. Ours counts a connection as established when an \
             answer over it has arrived and was checked.",
        ],
    },
    PublishedTable {
        id: "Q2",
        suite: "coordination",
        title: "Message throughput",
        source: SOURCE,
        groups: &[QUIC, H2, WS],
        rows: &[
            row(
                "10 agents × 1 KB",
                "10 agents, 1 KB",
                MESSAGES,
                &["8,742 /s", "6,234 /s", "7,156 /s"],
            ),
            row(
                "100 agents × 10 KB",
                "100 agents, 10 KB",
                MESSAGES,
                &["12,456 /s", "8,923 /s", "9,847 /s"],
            ),
            row(
                "1,000 agents × 100 KB",
                "1000 agents, 100 KB",
                MESSAGES,
                &["3,892 /s", "2,134 /s", "2,567 /s"],
            ),
            row(
                "1,000 agents × 100 KB",
                "1000 agents, 100 KB",
                RATE,
                &["3,113.6 Mbit/s", "1,707.2 Mbit/s", "2,053.6 Mbit/s"],
            ),
        ],
        also: &["megabytes_per_s", "cpu_us_per_message", "cpu_ns_per_byte"],
        notes: &["The published rates name no round trip; ours are printed for each network."],
    },
    PublishedTable {
        id: "Q3",
        suite: "coordination",
        title: "Streams opened and answered",
        source: SOURCE,
        groups: &[QUIC, H2, WS],
        rows: &[
            row("10 agents", "10 agents", STREAMS, &["847 /s", "", ""]),
            row("100 agents", "100 agents", STREAMS, &["7,234 /s", "", ""]),
            row(
                "1,000 agents",
                "1000 agents",
                STREAMS,
                &["52,891 /s", "", ""],
            ),
        ],
        also: &["p50_us", "p99_us"],
        notes: &["Ours counts a stream when its answer has come back, not when it was opened."],
    },
    PublishedTable {
        id: "Q4",
        suite: "coordination",
        title: "Peak memory",
        source: SOURCE,
        groups: &[QUIC, H2, WS],
        rows: &[
            row(
                "10 agents",
                "10 agents",
                PEAK,
                &["23.4 MB", "28.7 MB", "26.1 MB"],
            ),
            row(
                "100 agents",
                "100 agents",
                PEAK,
                &["187.2 MB", "234.6 MB", "215.9 MB"],
            ),
            row(
                "1,000 agents",
                "1000 agents",
                PEAK,
                &["1,634.8 MB", "1,998.3 MB", "1,876.5 MB"],
            ),
        ],
        also: &[
            "server_peak_rss_bytes",
            "client_added_rss_bytes",
            "server_added_rss_bytes",
            "added_rss_bytes",
        ],
        notes: &[
            "1.6 to 2 MB an agent is the cost of that program, not of a protocol: a thousand idle TLS \
             connections of any kind take tens of megabytes in one process.",
        ],
    },
    PublishedTable {
        id: "Q5",
        suite: "coordination",
        title: "Processor use",
        source: SOURCE,
        groups: &[QUIC, H2, WS],
        rows: &[
            row("10 agents", "10 agents", CPU, &["3.2 %", "4.1 %", "3.8 %"]),
            row(
                "100 agents",
                "100 agents",
                CPU,
                &["28.4 %", "34.7 %", "31.2 %"],
            ),
            row(
                "1,000 agents",
                "1000 agents",
                CPU,
                &["76.3 %", "89.2 %", "82.1 %"],
            ),
        ],
        also: &[
            "cpu_us_per_message",
            "client_cpu_us_per_message",
            "server_cpu_us_per_message",
            "cpu_ns_per_byte",
        ],
        notes: &[
            "A share of a processor says nothing without the work done in it. Read ours as time for each \
             message and byte, user and system, of client and server.",
        ],
    },
    PublishedTable {
        id: "Q6",
        suite: "coordination",
        title: "Round trip of a message",
        source: SOURCE,
        groups: &[QUIC, H2, WS],
        rows: &[
            row(
                "50 ms",
                "50 ms",
                &["p50_us"],
                &["52.3 ms", "77.5 ms", "68.9 ms"],
            ),
            row(
                "50 ms",
                "50 ms",
                &["p95_us"],
                &["58.7 ms", "89.3 ms", "78.1 ms"],
            ),
            row(
                "50 ms",
                "50 ms",
                &["p99_us"],
                &["64.2 ms", "102.4 ms", "88.7 ms"],
            ),
        ],
        also: &["p50_us", "p95_us", "p99_us", "p999_us", "max_us"],
        notes: &[
            "On a warm connection an HTTP/2 exchange takes one round trip, so 77.5 ms on a path of 50 ms is \
             not the protocol's. Compare warm with warm.",
            "Ours come from an open loop at a stated rate, timed from when a request was due.",
        ],
    },
    PublishedTable {
        id: "Q7",
        suite: "coordination",
        title: "BBR against CUBIC",
        source: SOURCE,
        groups: &[
            PublishedGroup {
                name: "BBR",
                subjects: &["quic bbr", "raw iroh bbr"],
            },
            PublishedGroup {
                name: "CUBIC",
                subjects: &["quic cubic", "raw iroh cubic"],
            },
        ],
        rows: &[
            row("bandwidth", "", RATE, &["3,113.6 Mbit/s", "2,207.8 Mbit/s"]),
            row(
                "loss",
                "",
                &["loss_percent", "lost_percent", "loss_share"],
                &["0.12 %", "0.34 %"],
            ),
        ],
        also: &["megabytes_per_s", "p99_us"],
        notes: &[
            "Published without the path's rate, delay or cause of loss; ours name the network of each row.",
            "Loss is what the sender had to take for lost: packets over QUIC, segments sent again over TCP, of \
             all that it sent. On a path that loses 1 % it is about 1 %.",
        ],
    },
    PublishedTable {
        id: "Q8",
        suite: "coordination",
        title: "Pools of connections",
        source: SOURCE,
        groups: &[QUIC],
        rows: &[
            row(
                "10 agents on 2 connections",
                "10 agents, 2 connections",
                &["gain_percent", "messages_per_s"],
                &["+12.3 %"],
            ),
            row(
                "10 agents on 2 connections",
                "10 agents, 2 connections",
                &["reuse_percent", "reuse_share"],
                &["87 %"],
            ),
            row(
                "100 agents on 10 connections",
                "100 agents, 10 connections",
                &["gain_percent", "messages_per_s"],
                &["+23.7 %"],
            ),
            row(
                "100 agents on 10 connections",
                "100 agents, 10 connections",
                &["reuse_percent", "reuse_share"],
                &["92 %"],
            ),
            row(
                "1,000 agents on 50 connections",
                "1000 agents, 50 connections",
                &["gain_percent", "messages_per_s"],
                &["+34.2 %"],
            ),
            row(
                "1,000 agents on 50 connections",
                "1000 agents, 50 connections",
                &["reuse_percent", "reuse_share"],
                &["89 %"],
            ),
        ],
        also: &["messages_per_s", "reuse_percent", "reuse_share"],
        notes: &[
            "The published gain is against a connection for each agent, and so are ours, in the same repeat. A \
             session has one connection to a node unless `pool` says otherwise (decision 0017).",
        ],
    },
    PublishedTable {
        id: "Q9",
        suite: "coordination",
        title: "Size of the buffers",
        source: SOURCE,
        groups: &[QUIC],
        rows: &[
            row("64 KB", "64 KB", MESSAGES, &["7,234 /s"]),
            row("64 KB", "64 KB", LATENCY, &["68.3 ms"]),
            row("128 KB", "128 KB", MESSAGES, &["9,847 /s"]),
            row("128 KB", "128 KB", LATENCY, &["54.7 ms"]),
            row("256 KB", "256 KB", MESSAGES, &["12,456 /s"]),
            row("256 KB", "256 KB", LATENCY, &["47.2 ms"]),
            row("512 KB", "512 KB", MESSAGES, &["11,892 /s"]),
            row("512 KB", "512 KB", LATENCY, &["49.8 ms"]),
        ],
        also: &["messages_per_s", "megabytes_per_s", "p50_us", "p99_us"],
        notes: &[
            "A node's stream window is 2 MiB at least, so a session stands in the rows that we added.",
        ],
    },
    PublishedTable {
        id: "Q10",
        suite: "coordination",
        title: "Delivery by priority under saturation",
        source: SOURCE,
        groups: &[QUIC],
        rows: &[
            row("critical", "critical", LATENCY, &["18.3 ms"]),
            row("critical", "critical", DELIVERED, &["99.97 %"]),
            row("high", "high", LATENCY, &["34.7 ms"]),
            row("high", "high", DELIVERED, &["99.84 %"]),
            row("medium", "medium", LATENCY, &["67.2 ms"]),
            row("medium", "medium", DELIVERED, &["99.71 %"]),
            row("low", "low", LATENCY, &["142.8 ms"]),
            row("low", "low", DELIVERED, &["99.43 %"]),
        ],
        also: &["p50_us", "p99_us", "delivered_percent"],
        notes: &[
            "A reliable stream delivers all of its bytes or fails, so a share below 100 % counts messages \
             that were given up, for a reason that is not published.",
        ],
    },
    PublishedTable {
        id: "Q11",
        suite: "coordination",
        title: "Where the processor's time goes",
        source: SOURCE,
        groups: &[QUIC],
        rows: &[
            row("packets", "packets", SHARE, &["34.2 %"]),
            row("of these, cryptography", "crypto", SHARE, &["18.7 %"]),
            row("streams", "streams", SHARE, &["23.8 %"]),
            row("connections", "connections", SHARE, &["18.3 %"]),
            row("congestion control", "congestion", SHARE, &["12.4 %"]),
            row("application", "application", SHARE, &["11.3 %"]),
        ],
        also: &["share_percent", "cpu_percent"],
        notes: &[],
    },
    PublishedTable {
        id: "Q12",
        suite: "coordination",
        title: "Summary scores, QUIC = 100",
        source: SOURCE,
        groups: &[QUIC, H2, WS],
        rows: &[
            row("connection", "connection", SCORE, &["100", "52.7", "64.3"]),
            row("throughput", "throughput", SCORE, &["100", "71.6", "79.1"]),
            row("memory", "memory", SCORE, &["100", "81.8", "88.9"]),
            row("CPU", "cpu", SCORE, &["100", "85.5", "92.4"]),
            row("latency", "latency", SCORE, &["100", "67.5", "75.9"]),
            row("overall", "overall", SCORE, &["100", "71.8", "80.1"]),
        ],
        also: &[],
        notes: &[
            "Most published scores are one row's quotient: throughput from 100 agents, memory and CPU from \
             1,000, latency from the p50 at 50 ms. The connection scores follow from none of the \
             published times.",
        ],
    },
];
