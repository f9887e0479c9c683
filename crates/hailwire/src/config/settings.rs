//! Every setting with its unit, default and effect, for documents and for `hail config`.

use hailwire_kdl::SettingRow;

/// Every setting.
pub const SETTINGS: &[SettingRow] = &[
    SettingRow {
        path: "node.name",
        value: "name: 1 to 64 of a-z 0-9 . _ -",
        default: "none",
        about: "name that the node offers to peers and hubs",
    },
    SettingRow {
        path: "listen.udp",
        value: "socket addresses, at most 8; port 0 lets the system choose",
        default: "\"0.0.0.0:0\" \"[::]:0\"",
        about: "where the node listens for QUIC",
    },
    SettingRow {
        path: "listen.tcp",
        value: "socket addresses, at most 8; port 0 lets the system choose",
        default: "none",
        about: "where the node listens for HTTP/2 and WebSocket, on one port",
    },
    SettingRow {
        path: "hub",
        value: "URL; repeatable, at most 8; https, or http on loopback",
        default: "none",
        about: "hub to register at, in addition to those joined by ticket",
    },
    SettingRow {
        path: "carrier",
        value: "auto, quic, h2 or ws",
        default: "\"auto\"",
        about: "which carriers tunnels use; auto: QUIC first, TCP where it measures better",
    },
    SettingRow {
        path: "connection-attempt-delay",
        value: "duration, \"10ms\" to \"2s\"",
        default: "\"250ms\"",
        about: "how long the first carrier of a dial runs alone before the next joins the race (RFC 8305, 8)",
    },
    SettingRow {
        path: "pool",
        value: "\"rule\", or a number from 1 to 1024",
        default: "1",
        about: "connections of a tunnel that this node dials; rule: by the agents that the peer offers, 2 for up to 10, n/10 up to 100, n/20 beyond",
    },
    SettingRow {
        path: "peer",
        value: "key or alias, with `carrier` in braces; repeatable, at most 64",
        default: "none",
        about: "which carriers tunnels to that peer use, for example peer \"laptop\" { carrier \"h2\" }",
    },
    SettingRow {
        path: "limits.max-tunnels",
        value: "number, at least 1",
        default: "1024",
        about: "most tunnels at once; a further one is refused",
    },
    SettingRow {
        path: "limits.grace",
        value: "duration, for example \"250ms\", \"10s\" or \"1h30m\"",
        default: "\"10s\"",
        about: "time that calls in flight may take to finish when the node stops",
    },
    SettingRow {
        path: "limits.spin",
        value: "duration, for example \"100us\"; \"0s\" for none",
        default: "\"100us\"",
        about: "time that the node looks for more traffic after some before it sleeps",
    },
    SettingRow {
        path: "quic.congestion",
        value: "auto, cubic or bbr",
        default: "\"auto\"",
        about: "who decides how fast to send; auto: CUBIC (RFC 9438), and BBRv3 on paths that lose packets by chance",
    },
    SettingRow {
        path: "quic.streams",
        value: "number, 100 to 65536",
        default: "1024",
        about: "bidirectional streams that a peer may have open: its calls under way",
    },
    SettingRow {
        path: "quic.uni-streams",
        value: "number, 0 to 65536",
        default: "100",
        about: "unidirectional streams that a peer may have open; sessions use none, each is refused by itself",
    },
    SettingRow {
        path: "quic.stream-window",
        value: "size, \"2MiB\" to \"1GiB\"",
        default: "\"2MiB\"",
        about: "unread bytes of one stream under way; one answer's rate is at most this a round trip; more only on clean paths (decision 0015)",
    },
    SettingRow {
        path: "quic.window",
        value: "size, \"8MiB\" to \"1GiB\"; at least four stream windows",
        default: "\"128MiB\"",
        about: "most unread bytes of one peer; begins at a quarter and follows the bandwidth-delay product",
    },
    SettingRow {
        path: "quic.send-window",
        value: "size, \"1MiB\" to \"1GiB\"",
        default: "\"8MiB\"",
        about: "bytes sent to one peer and not yet acknowledged",
    },
    SettingRow {
        path: "quic.initial-window",
        value: "size, \"0B\" to \"1MiB\"",
        default: "\"64KiB\"",
        about: "bytes in flight on a path that was quiet, whatever congestion control says; 0B: as RFC 9002",
    },
    SettingRow {
        path: "quic.idle-timeout",
        value: "duration, \"1s\" to \"10m\"",
        default: "\"30s\"",
        about: "silence after which a tunnel is given up, counted from the first keep-alive without answer; a single path after 15 s",
    },
    SettingRow {
        path: "quic.keep-alive",
        value: "duration, \"100ms\" to \"5s\"",
        default: "\"5s\"",
        about: "how often an idle path says that it is alive",
    },
    SettingRow {
        path: "quic.socket-buffer",
        value: "size, \"64KiB\" to \"1GiB\"",
        default: "\"7MiB\"",
        about: "what the kernel may keep of each UDP socket, in and out; it grants at most net.core.rmem_max and wmem_max",
    },
    SettingRow {
        path: "quic.cipher",
        value: "auto, aes-128-gcm, aes-256-gcm or chacha20-poly1305",
        default: "\"auto\"",
        about: "cipher that is offered first; auto: AES-128-GCM with AES instructions, ChaCha20-Poly1305 without",
    },
    SettingRow {
        path: "quic.ack-frequency",
        value: "#true or #false",
        default: "#true",
        about: "tell the peer how to acknowledge (draft-ietf-quic-ack-frequency); #false leaves it to RFC 9000",
    },
    SettingRow {
        path: "quic.ack-delay",
        value: "duration, \"1ms\" to \"25ms\"",
        default: "\"1ms\"",
        about: "how long the peer may wait before it acknowledges what came alone",
    },
    SettingRow {
        path: "quic.ack-every",
        value: "packets, 1 to 64",
        default: "2",
        about: "packets after which the peer acknowledges at once",
    },
    SettingRow {
        path: "quic.gso",
        value: "#true or #false",
        default: "#true",
        about: "hand several packets to the kernel at once (UDP GSO)",
    },
    SettingRow {
        path: "quic.mtu-discovery",
        value: "#true or #false",
        default: "#true",
        about: "search for the largest packet that the path takes (RFC 8899)",
    },
    SettingRow {
        path: "quic.mtu-max",
        value: "bytes, 1200 to 65527",
        default: "1452",
        about: "largest UDP payload that the search tries",
    },
    SettingRow {
        path: "quic.max-paths",
        value: "number, 8 to 64",
        default: "8",
        about: "network paths that one tunnel may hold at once",
    },
    SettingRow {
        path: "quic.zero-rtt",
        value: "#true or #false",
        default: "#true",
        about: "let calls with an idempotency key travel in the first flight of a resumed tunnel (0-RTT)",
    },
    SettingRow {
        path: "quic.sessions",
        value: "number, 1 to 65536",
        default: "256",
        about: "peers whose TLS session is remembered for resumption",
    },
    SettingRow {
        path: "log.level",
        value: "error, warn, info, debug or trace",
        default: "\"info\"",
        about: "least important event that is written to stderr; `trace` only in a program built with debug assertions",
    },
];
