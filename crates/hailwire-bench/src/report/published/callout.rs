//! Tables C: what a proxy pays for asking an agent, in Agent Protocol v2.

use super::{PublishedGroup, PublishedRow, PublishedTable};

const SOURCE: &str = "Agent Protocol v2, microbenchmarks (uncontended, in cache, on a laptop)";

const PUBLISHED: PublishedGroup = PublishedGroup {
    name: "published",
    subjects: &["callout"],
};
const MEASURED: PublishedGroup = PublishedGroup {
    name: "0.6.54, measured by us",
    subjects: &["zentinel"],
};
const BOTH: &[PublishedGroup] = &[PUBLISHED, MEASURED];

const TIME: &[&str] = &["ns_per_op"];
const RATE: &[&str] = &["gibibytes_per_s"];
const SIZE: &[&str] = &["size_bytes"];
const ASKED: &[&str] = &["messages_per_s"];

const fn row(
    name: &'static str,
    figures: &'static [&'static str],
    published: &'static [&'static str],
) -> PublishedRow {
    PublishedRow {
        name,
        words: name,
        figures,
        published,
    }
}

const fn table(
    id: &'static str,
    title: &'static str,
    rows: &'static [PublishedRow],
    notes: &'static [&'static str],
) -> PublishedTable {
    PublishedTable {
        id,
        suite: "callout",
        title,
        source: SOURCE,
        groups: BOTH,
        rows,
        also: &[],
        notes,
    }
}

/// C1 to C12, CE: the same with the sockets in between, and CF: with two nodes in between.
pub(crate) const CALLOUT: &[PublishedTable] = &[
    table(
        "C1",
        "Whether a connection is healthy",
        &[
            row("health, read", TIME, &["0.46 ns", "0.55 ns"]),
            row("health, write", TIME, &["0.46 ns", "0.55 ns"]),
        ],
        &[
            "Behind an RwLock: published 4.6 and 1.8 ns, measured by us 4.83 and 4.29 ns. Reads that are not contended \
             cost what a load costs; the contended form is what a proxy on several threads has.",
        ],
    ),
    table(
        "C2",
        "When a connection was last heard of",
        &[
            row("timestamp, read", TIME, &["0.78 ns", "1.23 ns"]),
            row("timestamp, write", TIME, &["18.7 ns", "25.6 ns"]),
        ],
        &["A write holds a reading of the clock, which is most of it."],
    ),
    table(
        "C3",
        "Which connection a request belongs to",
        &[
            row("affinity hit, 10", TIME, &["12.3 ns", "24 ns"]),
            row("affinity miss, 10", TIME, &["8.8 ns", "22 ns"]),
            row("affinity hit, 100", TIME, &["13.5 ns", "24 ns"]),
            row("affinity miss, 100", TIME, &["8.3 ns", "22 ns"]),
            row("affinity hit, 1,000", TIME, &["14.0 ns", "24 ns"]),
            row("affinity miss, 1,000", TIME, &["8.9 ns", "22 ns"]),
            row("affinity hit, 10,000", TIME, &["12.9 ns", "24 ns"]),
            row("affinity miss, 10,000", TIME, &["9.5 ns", "22 ns"]),
        ],
        &[],
    ),
    table(
        "C4",
        "Writing a request",
        &[
            row("serialise small, JSON", TIME, &["153 ns", "184 ns"]),
            row("serialise small, MessagePack", TIME, &["150 ns", "176 ns"]),
            row("serialise large, JSON", TIME, &["745 ns", "908 ns"]),
            row("serialise large, MessagePack", TIME, &["562 ns", "675 ns"]),
        ],
        &[
            "What the crate's own client spends to write a small request, with the tree that it builds, is 1,542 ns, and \
             3,027 ns along the proxy's path.",
        ],
    ),
    table(
        "C5",
        "Reading a request",
        &[
            row("deserialise small, JSON", TIME, &["403 ns", "718 ns"]),
            row(
                "deserialise small, MessagePack",
                TIME,
                &["297 ns", "434 ns"],
            ),
            row("deserialise large, JSON", TIME, &["2.46 µs", "4.35 µs"]),
            row(
                "deserialise large, MessagePack",
                TIME,
                &["1.68 µs", "3.38 µs"],
            ),
        ],
        &[],
    ),
    table(
        "C6",
        "Bytes of a request",
        &[
            row("size small, JSON", SIZE, &["204 B", ""]),
            row("size small, MessagePack", SIZE, &["110 B", ""]),
            row("size large, JSON", SIZE, &["1,080 B", ""]),
            row("size large, MessagePack", SIZE, &["894 B", ""]),
            row("size small, own agent", SIZE, &["", ""]),
            row("size large, own agent", SIZE, &["", ""]),
        ],
        &[
            "Measured are whole frames, as each client writes them to a socket at which an agent of the foreign crate \
             listens, and in the last two rows one of its own.",
            "The published sizes are of an event of the benchmark's own, without a frame; what travels has twelve fields of \
             metadata: 419 to 491 bytes of JSON.",
        ],
    ),
    table(
        "C7",
        "A piece of a body, written",
        &[
            row(
                "chunk out, 1 KiB, JSON",
                RATE,
                &["1.97 GiB/s", "1.03 GiB/s"],
            ),
            row(
                "chunk out, 4 KiB, JSON",
                RATE,
                &["2.46 GiB/s", "1.17 GiB/s"],
            ),
            row(
                "chunk out, 16 KiB, JSON",
                RATE,
                &["2.51 GiB/s", "1.22 GiB/s"],
            ),
            row(
                "chunk out, 64 KiB, JSON",
                RATE,
                &["1.75 GiB/s", "1.23 GiB/s"],
            ),
            row("chunk out, 1 KiB, raw", RATE, &["9.25 GiB/s", "7.52 GiB/s"]),
            row("chunk out, 4 KiB, raw", RATE, &["27.2 GiB/s", "18.5 GiB/s"]),
            row(
                "chunk out, 16 KiB, raw",
                RATE,
                &["31.4 GiB/s", "29.9 GiB/s"],
            ),
            row(
                "chunk out, 64 KiB, raw",
                RATE,
                &["4.62 GiB/s", "48.5 GiB/s"],
            ),
        ],
        &["The published column of the raw rows is MessagePack, which no stock proxy sends."],
    ),
    table(
        "C8",
        "A piece of a body, read",
        &[
            row("chunk in, 1 KiB, JSON", RATE, &["4.4 GiB/s", "2.21 GiB/s"]),
            row("chunk in, 4 KiB, JSON", RATE, &["6.6 GiB/s", "3.32 GiB/s"]),
            row("chunk in, 16 KiB, JSON", RATE, &["7.2 GiB/s", "3.74 GiB/s"]),
            row("chunk in, 64 KiB, JSON", RATE, &["7.5 GiB/s", "3.80 GiB/s"]),
            row("chunk in, 1 KiB, raw", TIME, &["20.4 GiB/s", "12.9 GiB/s"]),
            row("chunk in, 4 KiB, raw", TIME, &["49.5 GiB/s", "14.6 GiB/s"]),
            row("chunk in, 16 KiB, raw", TIME, &["48.7 GiB/s", "55.6 GiB/s"]),
            row("chunk in, 64 KiB, raw", TIME, &["62.4 GiB/s", "48.8 GiB/s"]),
        ],
        &[
            "A piece in raw frames is read without moving its bytes: a handle on them is taken. The published figures divide \
             its length by that time; measured is the time itself.",
        ],
    ),
    table(
        "C9",
        "One header",
        &[row(
            "one header",
            TIME,
            &["18.9 ns (Vec), 11.5 ns (SmallVec)", "17.5 ns, 9.28 ns"],
        )],
        &[
            "In the crate the inline form is used by its tests and its benchmark only: its events hold maps of vectors.",
        ],
    ),
    table(
        "C10",
        "Twenty headers",
        &[row(
            "twenty headers",
            TIME,
            &["1.29 µs (Vec), 1.07 µs (SmallVec)", "2.05 µs, 1.80 µs"],
        )],
        &[],
    ),
    table(
        "C11",
        "Counting",
        &[
            row("counter, increment", TIME, &["1.65 ns", "2.05 ns"]),
            row("counter, read", TIME, &["0.31 ns", "0.55 ns"]),
            row("histogram, record", TIME, &["2.61 ns", "3.99 ns"]),
        ],
        &[],
    ),
    table(
        "C12",
        "Everything but the socket",
        &[
            row("selection path, JSON", TIME, &["226 ns", "326 ns"]),
            row("selection path, MessagePack", TIME, &["226 ns", "284 ns"]),
        ],
        &[
            "Look-up, affinity, health, counters, serialising, affinity again. The socket, which is left out here, costs a \
             hundred times more: table CE.",
            "Stated targets (C13): selection under 1 µs, health and affinity in constant time, bodies above 1 GiB/s.",
        ],
    ),
    PublishedTable {
        id: "CE",
        suite: "callout",
        title: "End to end over a Unix socket",
        source: "zentinel-agent-protocol 0.6.54, its own client and server, measured by us on a machine with two cores",
        groups: &[PublishedGroup {
            name: "theirs to theirs, measured by us",
            subjects: &[
                "ours to ours",
                "ours to theirs",
                "theirs to ours",
                "theirs to theirs",
                "raw socket",
            ],
        }],
        rows: &[
            PublishedRow {
                name: "headers, 1 in flight, one CPU",
                words: "headers, 1 in flight, one CPU",
                figures: &["p50_us"],
                published: &["22.6 µs (JSON), 17.7 µs (MessagePack)"],
            },
            row(
                "headers, 64 in flight, 1 connection",
                ASKED,
                &["126,000 to 129,000 /s"],
            ),
            row(
                "headers, 64 in flight, pool of 4",
                ASKED,
                &["131,000 (JSON), 168,000 /s (MessagePack)"],
            ),
            row("headers, 64 in flight, gRPC", ASKED, &["204,000 /s"]),
            row("1 KiB body, 64 in flight", ASKED, &["152,000 /s"]),
            row(
                "64 KiB body, 64 in flight",
                ASKED,
                &["15,200 /s (0.93 GiB/s)"],
            ),
            row("10 MiB body, 1 in flight", ASKED, &[""]),
        ],
        also: &[
            "p50_us",
            "p99_us",
            "gibibytes_per_s",
            "cpu_us_per_message",
            "server_peak_rss_bytes",
        ],
        notes: &[
            "Unpinned figures at one in flight mostly show how long an idle virtual CPU takes to wake up; so there both \
             programs share one CPU.",
            "The raw socket's two forms move the bytes of an event and its answer between two of ours: with blocking calls, which \
             is the least that there is, and on the event loop that ours run on, watched as it watches sockets by itself: in both \
             directions.",
            "The raw socket's bodies are pieces of the same size from the same memory, as many under way, and answers of the same size, \
             with blocking calls over one connection: what the kernel's copies leave.",
            "Ours to theirs is our host and the crate's agent; the bodies of such a pair travel as base64, a piece at a time.",
        ],
    },
    PublishedTable {
        id: "CF",
        suite: "callout",
        title: "An agent on another node",
        source: "nobody has published this measurement: the column is our target",
        groups: &[PublishedGroup {
            name: "target",
            subjects: &[
                "far agent",
                "near agent",
                "near agent, as seldom",
                "udp echo",
            ],
        }],
        rows: &[
            far("headers, 1 in flight, loopback"),
            row("headers, 64 in flight, loopback", ASKED, &[""]),
            row("64 KiB body, 64 in flight, loopback", RATE, &[""]),
            far("headers, 1 in flight, wan-50ms"),
            row("headers, 64 in flight, wan-50ms", ASKED, &[""]),
            far("headers, 1 in flight, home-to-home"),
            row("headers, 64 in flight, home-to-home", ASKED, &[""]),
        ],
        also: &["p50_us", "p99_us", "messages_per_s", "cpu_us_per_message"],
        notes: &[
            "The far agent is reached as hail \"NAME@NODE\": from the host to its node, through the tunnel to the other node, to \
             hail callout agent and the agent's Unix socket; each is a process of its own. The near agent is the same agent at a \
             Unix socket.",
            "A host that waits 50 ms for each answer asks twenty times a second, and everybody on the way has gone to sleep in the \
             meantime; the near agent, which answers at once, is asked twenty thousand times. As seldom is the near agent asked \
             twenty times a second too: what of the difference is sleep.",
            "udp echo is the round trip of the network: datagrams of the same sizes on plain sockets, also from home to home, \
             through holes in both routers.",
        ],
    },
];

const fn far(name: &'static str) -> PublishedRow {
    row(name, &["p50_us"], &["udp echo + near agent + 0.3 ms"])
}
