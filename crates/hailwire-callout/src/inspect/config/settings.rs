//! Every setting with its value, default and effect, for documents.

use hailwire_kdl::SettingRow;

const fn row(
    path: &'static str,
    value: &'static str,
    default: &'static str,
    about: &'static str,
) -> SettingRow {
    SettingRow {
        path,
        value,
        default,
        about,
    }
}

/// Every setting.
pub const SETTINGS: &[SettingRow] = &[
    row(
        "agents.agent",
        "name of 1 to 64 letters, digits and -_.; repeatable, at most 64; property `type`",
        "none",
        "an agent; they are asked in the order of the file",
    ),
    row(
        "agent.unix-socket",
        "path; repeatable, at most 8 endpoints of any kind",
        "none",
        "endpoint: a Unix socket, JSON",
    ),
    row(
        "agent.binary-uds",
        "path; repeatable",
        "none",
        "endpoint: a Unix socket, MessagePack where the agent speaks it, raw bodies where it is one of ours",
    ),
    row(
        "agent.grpc",
        "\"host:port\", with TLS in braces; repeatable",
        "none",
        "endpoint: a gRPC server",
    ),
    row(
        "agent.reverse",
        "id, or nothing for the agent's name",
        "none",
        "endpoint: the agent connects to `listen.reverse`",
    ),
    row(
        "agent.hail",
        "\"name@node\"; repeatable",
        "none",
        "endpoint: an agent that is attached to a node of the overlay",
    ),
    row(
        "agent.events",
        "names of events",
        "what the agent's capabilities name",
        "what the agent is asked about",
    ),
    row(
        "agent.mode",
        "enforce or observe",
        "\"enforce\"",
        "observe: it changes nothing; what it would have blocked is counted",
    ),
    row(
        "agent.timeout-ms",
        "milliseconds, 1 to 600000",
        "1000",
        "how long an answer may take",
    ),
    row(
        "agent.chunk-timeout-ms",
        "milliseconds, 1 to 600000",
        "timeout-ms",
        "how long an answer to a chunk of a body may take",
    ),
    row(
        "agent.failure-mode",
        "open or closed",
        "\"closed\"",
        "open: every `on-…` is \"allow\" that is not set",
    ),
    row(
        "agent.on-timeout",
        "\"allow\", or \"block\" with a status from 400 to 599",
        "\"block\" 504",
        "what happens when an answer takes too long",
    ),
    row(
        "agent.on-error",
        "as on-timeout",
        "\"block\" 503",
        "what happens when the agent is unreachable, disconnects, or gives an invalid answer",
    ),
    row(
        "agent.on-overload",
        "as on-timeout",
        "\"block\" 503",
        "what happens when the agent is at its concurrency limit",
    ),
    row(
        "agent.on-body-too-large",
        "as on-timeout",
        "\"block\" 413",
        "what happens to a body that is larger than the agent accepts, or than may be held back",
    ),
    row(
        "agent.phase",
        "name of an event, with `timeout-ms` and `on-…` in braces; repeatable",
        "none",
        "what holds in one phase only",
    ),
    row(
        "agent.buffer-size",
        "bytes, 1 to 8388608",
        "65536",
        "how much of a body may be held back: until an agent that wants more has decided, or until the body is whole",
    ),
    row(
        "agent.request-body-mode",
        "stream or buffer",
        "\"stream\"",
        "stream: chunk by chunk; buffer: whole, once it has arrived",
    ),
    row(
        "agent.response-body-mode",
        "stream or buffer",
        "\"stream\"",
        "the same for bodies of responses",
    ),
    row(
        "agent.max-request-body-bytes",
        "bytes",
        "what the agent's capabilities state",
        "the largest body of a request that is shown to it",
    ),
    row(
        "agent.max-response-body-bytes",
        "bytes",
        "what the agent's capabilities state",
        "the same for bodies of responses",
    ),
    row(
        "agent.connect-timeout-ms",
        "milliseconds, 1 to 600000",
        "5000",
        "how long connecting may take",
    ),
    row(
        "agent.max-concurrent-calls",
        "number, 1 to 65536",
        "what the preset says",
        "the same as `pool.max-in-flight`",
    ),
    row(
        "agent.dialect",
        "auto, crate, documented or v1",
        "\"auto\"",
        "which of the wires that call themselves v2 the agent speaks; auto: told apart at the handshake",
    ),
    row(
        "agent.config",
        "anything in braces",
        "none",
        "what is pushed to the agent as its configuration, as JSON",
    ),
    row(
        "grpc.ca-cert",
        "path",
        "plain text",
        "who signs the agent's certificate, in PEM; with it the connection is TLS",
    ),
    row(
        "grpc.client-cert",
        "path",
        "none",
        "the certificate that is shown to the agent",
    ),
    row("grpc.client-key", "path", "none", "its key"),
    row(
        "grpc.server-name",
        "name",
        "the host in the address",
        "the name in the agent's certificate",
    ),
    row(
        "pool.preset",
        "default, high_throughput, low_latency or body_inspection",
        "\"default\"",
        "settings that belong together",
    ),
    row(
        "pool.strategy",
        "round_robin, least_connections, health_weighted, random or two_choices",
        "what the preset says",
        "which connection is asked",
    ),
    row(
        "pool.connections",
        "number, 1 to 64",
        "what the preset says",
        "connections to each endpoint",
    ),
    row(
        "pool.max-in-flight",
        "number, 1 to 65536",
        "what the preset says",
        "requests at once on a connection",
    ),
    row(
        "pool.max-timeout-multiplier",
        "number, 1 to 10",
        "1",
        "by how much an agent that reports itself degraded may stretch its time for an answer (`timeout_multiplier`); 1: not at all, since how long a client waits is not the agent's to say",
    ),
    row(
        "pool.drain-timeout-ms",
        "milliseconds, 1 to 600000",
        "what the preset says",
        "how long requests may take to finish on a connection that is given up",
    ),
    row(
        "circuit-breaker.failure-threshold",
        "number, 1 to 255",
        "5",
        "failures in a row after which an endpoint is not used for a while",
    ),
    row(
        "circuit-breaker.success-threshold",
        "number, 1 to 255",
        "2",
        "answers in a row after which it is used again",
    ),
    row(
        "circuit-breaker.timeout-seconds",
        "seconds, 1 to 3600",
        "30",
        "how long it is not used",
    ),
    row(
        "circuit-breaker.half-open-max-requests",
        "number, 1 to 63",
        "1",
        "probe requests at once after that",
    ),
    row(
        "listen.ext-proc",
        "socket addresses or \"unix:/path\", at most 8; port 0 lets the system choose",
        "none",
        "where Envoy's external processing filter is served",
    ),
    row(
        "listen.spoe",
        "socket addresses or \"unix:/path\", at most 8; port 0 lets the system choose",
        "none",
        "where HAProxy's stream processing offload engine is served",
    ),
    row(
        "listen.reverse",
        "path",
        "none",
        "the Unix socket that agents connect to",
    ),
    row(
        "listen.token",
        "texts of 8 to 512 bytes, at most 8",
        "none",
        "a token that an agent which connects may present",
    ),
    row(
        "listen.on-unseen-body",
        "as on-timeout",
        "\"block\" 503",
        "what happens to a body that an agent wants and the proxy, as configured, does not send",
    ),
    row(
        "listen.metrics",
        "socket address; port 0 lets the system choose",
        "none",
        "where the counters are served over HTTP, as OpenMetrics text; all names begin with `hailwire_callout_`, but those of metrics that agents report of themselves",
    ),
];
