//! The integration tests of the package, in one binary.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "what the helpers of a test miss fails the test"
)]

mod affinity;
#[path = "../../../../fuzz/src/anybody.rs"]
#[expect(unreachable_pub, reason = "the fuzz targets use it too")]
mod anybody;
mod blame;
mod byte_stream;
mod call;
mod carrier;
mod carriers;
mod child;
mod coordination;
#[path = "../../../../fuzz/src/datagrams.rs"]
#[expect(unreachable_pub, reason = "the fuzz target uses it too")]
mod datagrams;
mod engine;
mod examples;
mod faults;
mod fixtures;
mod full_disk;
mod grants;
mod groups;
mod h2_bridge;
mod h2spec;
mod hostile;
mod identity;
#[path = "../../../../fuzz/src/initial.rs"]
#[expect(unreachable_pub, reason = "the fuzz targets use it too")]
mod initial;
#[path = "../../../../fuzz/src/kept.rs"]
mod kept;
mod kept_topics;
mod lockout;
mod memory;
mod message_quotas;
mod messages;
mod nested;
mod packet;
mod panics;
mod pool;
mod port;
mod reach;
mod replaced;
mod requested_carrier;
mod resources;
mod socket;
#[path = "../../../../fuzz/src/tcp.rs"]
#[expect(unreachable_pub, reason = "the fuzz target uses it too")]
mod strange_tcp;
mod synced;
mod tasks;
mod tcp;
mod test_node;
mod topics;
mod trust;
mod waiting_calls;
mod wire;
