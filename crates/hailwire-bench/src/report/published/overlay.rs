//! Tables O: Pilot Protocol, an overlay for agents, against HTTP/2; and what we measured of it.

use super::{PublishedGroup, PublishedRow, PublishedTable};

const SOURCE: &str = "Pilot Protocol, article on an overlay against HTTP/2 (two machines, about 85 ms of round trip, median of 100)";
const MEASURED: &str = "Pilot Protocol release 1.18, measured by us on a machine with two cores, loopback unless \
     stated, encryption on, agent process to agent process through two daemons";

const H2: PublishedGroup = PublishedGroup {
    name: "HTTP/2",
    subjects: &["plain h2", "h2"],
};
const OVERLAY_GROUP: PublishedGroup = PublishedGroup {
    name: "overlay",
    subjects: &["quic", "raw iroh", "pilot"],
};
const PILOT: PublishedGroup = PublishedGroup {
    name: "Pilot 1.18",
    subjects: &["process to process", "pilot"],
};

const TIME: &[&str] = &["p50_us", "all_us", "seconds"];
const ALL: &[&str] = &["all_us", "p50_us", "seconds"];
const RSS: &[&str] = &["client_rss_bytes", "rss_bytes", "client_peak_rss_bytes"];
const RATE: &[&str] = &["megabytes_per_s", "bytes_per_s"];
const SETUP: &[&str] = &["added_setup_us", "added_us", "p50_us"];
const ADDED: &[&str] = &["added_us", "p50_us"];
const CHANGE: &[&str] = &["change_percent", "megabytes_per_s"];
const MESSAGES: &[&str] = &["messages_per_s", "per_s"];

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

/// O1 to O6, and P: the measured rows.
pub(crate) const OVERLAY: &[PublishedTable] = &[
    PublishedTable {
        id: "O1",
        suite: "overlay",
        title: "A new connection",
        source: SOURCE,
        groups: &[H2, OVERLAY_GROUP],
        rows: &[
            row(
                "opened on a live tunnel",
                "opened",
                &["p50_us"],
                &["", "15 ms"],
            ),
            row("first answer, known peer", "first answer", TIME, &["", ""]),
            row(
                "first answer, cold",
                "first answer, cold",
                TIME,
                &["175 ms", ""],
            ),
        ],
        also: &["p95_us"],
        notes: &[
            "15 ms over a path of 85 ms cannot hold an answer: it is the local cost of opening a stream on a \
             tunnel that exists. The published table sets it beside a new TCP and TLS connection. So three \
             rows are printed: opened (no round trip), first answer (one), and a cold peer.",
            "A warm HTTP/2 connection answers in one round trip as well.",
        ],
    },
    PublishedTable {
        id: "O2",
        suite: "overlay",
        title: "Dispatch to 50 agents, overhead",
        source: SOURCE,
        groups: &[H2, OVERLAY_GROUP],
        rows: &[
            row(
                "serial, cold",
                "50 agents, serial, cold",
                ALL,
                &["8.75 s", ""],
            ),
            row(
                "serial, warm",
                "50 agents, serial, warm",
                ALL,
                &["", "750 ms"],
            ),
            row(
                "concurrent, cold",
                "50 agents, concurrent, cold",
                ALL,
                &["", ""],
            ),
            row(
                "concurrent, warm",
                "50 agents, concurrent, warm",
                ALL,
                &["", ""],
            ),
        ],
        also: &["p50_us", "seconds"],
        notes: &[
            "8.75 s is fifty cold connections, one after the other (50 × 175 ms); 750 ms is fifty times \
             15 ms without an answer. Nobody who dispatches to 50 agents does it one by one, so all four \
             ways are printed.",
        ],
    },
    PublishedTable {
        id: "O3",
        suite: "overlay",
        title: "Latency of a message",
        source: SOURCE,
        groups: &[H2, OVERLAY_GROUP],
        rows: &[
            row("1 KB", "1 KB", TIME, &["172 ms", "171 ms"]),
            row("10 KB", "10 KB", TIME, &["174 ms", "172 ms"]),
            row("100 KB", "100 KB", TIME, &["182 ms", "179 ms"]),
        ],
        also: &["p95_us", "p99_us"],
        notes: &[
            "The published times are two round trips; ours are from request to checked answer on a warm connection, unless the row says cold.",
        ],
    },
    PublishedTable {
        id: "O4",
        suite: "overlay",
        title: "A message of 1 MB",
        source: SOURCE,
        groups: &[H2, OVERLAY_GROUP],
        rows: &[row("1 MB", "1 MB", TIME, &["2.4 % faster", ""])],
        also: &["p95_us", "p99_us", "bytes_per_s"],
        notes: &[
            "The sign is expected: the kernel's TCP has segmentation offload in both directions.",
        ],
    },
    PublishedTable {
        id: "O5",
        suite: "overlay",
        title: "Memory with connected peers",
        source: SOURCE,
        groups: &[H2, OVERLAY_GROUP],
        rows: &[
            row("100 peers", "100 peers", RSS, &["240 MB", "24 MB"]),
            row("1,000 peers", "1000 peers", RSS, &["", ""]),
        ],
        also: &[
            "server_rss_bytes",
            "client_added_rss_bytes",
            "server_added_rss_bytes",
        ],
        notes: &[
            "2.4 MB for each HTTP/2 connection is that program's, not the protocol's: plain HTTP/2 servers \
             hold a hundred connections in a few megabytes.",
        ],
    },
    PublishedTable {
        id: "O6",
        suite: "overlay",
        title: "One agent behind a NAT",
        source: SOURCE,
        groups: &[
            PublishedGroup {
                name: "HTTP/2 through a relay proxy",
                subjects: &["plain h2", "h2"],
            },
            PublishedGroup {
                name: "overlay, punched",
                subjects: &["quic", "raw iroh", "pilot"],
            },
        ],
        rows: &[
            row(
                "setup, relay proxy",
                "setup, relay proxy",
                SETUP,
                &["+145 ms", ""],
            ),
            row("setup, punched", "setup, punched", SETUP, &["", "+7 ms"]),
            row(
                "message, relay proxy",
                "message, relay proxy",
                ADDED,
                &["+32 ms", ""],
            ),
            row(
                "message, punched",
                "message, punched",
                ADDED,
                &["", "+2 ms"],
            ),
            row(
                "throughput, relay proxy",
                "throughput, relay proxy",
                CHANGE,
                &["−31 %", ""],
            ),
            row(
                "throughput, punched",
                "throughput, punched",
                CHANGE,
                &["", "−4 %"],
            ),
        ],
        also: &["p50_us", "p95_us", "megabytes_per_s"],
        notes: &[
            "Ours go direct, punched and relayed; the published overheads are differences to a direct way, which stands below in the same run.",
        ],
    },
    PublishedTable {
        id: "P",
        suite: "overlay",
        title: "Pilot Protocol as we measured it",
        source: MEASURED,
        groups: &[PILOT],
        rows: &[
            row(
                "open a connection on a live tunnel, p50",
                "open live tunnel",
                &["p50_us"],
                &["0.70 ms"],
            ),
            row(
                "open a connection on a live tunnel, p99",
                "open live tunnel",
                &["p99_us"],
                &["1.11 ms"],
            ),
            row("echo 1 KB, p50", "echo 1 KB", &["p50_us"], &["0.31 ms"]),
            row("echo 10 KB, p50", "echo 10 KB", &["p50_us"], &["0.92 ms"]),
            row("echo 100 KB, p50", "echo 100 KB", &["p50_us"], &["6.1 ms"]),
            row("echo 1 MB, p50", "echo 1 MB", &["p50_us"], &["57 ms"]),
            row("bulk 100 MB", "bulk 100 MB", RATE, &["41 MB/s"]),
            row(
                "bulk 100 MB, processor time",
                "bulk 100 MB",
                &["cpu_s", "client_cpu_s"],
                &["3.5 s"],
            ),
            row(
                "small messages one way, 100 B",
                "answered, 100 B",
                MESSAGES,
                &["115,000 /s"],
            ),
            row(
                "small messages one way, 1 KB",
                "answered, 1 KB",
                MESSAGES,
                &["30,000 /s"],
            ),
            row(
                "64 B ping-pong on 50 connections",
                "ping-pong 64 B",
                MESSAGES,
                &["21,000 /s"],
            ),
            row(
                "memory of the daemon, idle",
                "memory idle",
                RSS,
                &["12.8 MB"],
            ),
            row(
                "memory of the daemon, 100 connections to one peer",
                "memory 100 connections",
                RSS,
                &["16.1 MB"],
            ),
            row(
                "memory of the daemon, 100 distinct peers",
                "memory 100 peers",
                RSS,
                &["18.0 MB"],
            ),
            row("20 ms: bulk", "bulk, 20 ms", RATE, &["6.6 MB/s"]),
            row(
                "20 ms, 1 % loss: bulk",
                "bulk, 20 ms, 1 % loss",
                RATE,
                &["1.17 MB/s"],
            ),
            row(
                "20 ms: echo 1 MB, p50",
                "echo 1 MB, 20 ms",
                &["p50_us"],
                &["353 ms"],
            ),
            row(
                "20 ms, 1 % loss: echo 1 KB, p99",
                "echo 1 KB, 20 ms, 1 % loss",
                &["p99_us"],
                &["249 ms"],
            ),
            row(
                "40 ms, 6.25 MB/s with a queue of 128 KB: bulk",
                "bulk, 40 ms, 6.25 MB/s",
                RATE,
                &["3.4 MB/s (55 % of the link)"],
            ),
        ],
        also: &[],
        notes: &[
            "These stand beside ours on the same kind of machine, not in the same run, unless the column `pilot` was \
             measured too.",
            "Its small messages went one way; ours are answered, each of them.",
        ],
    },
];
