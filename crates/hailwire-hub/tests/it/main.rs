//! A hub in this process, asked as nodes ask it: over real HTTP and HTTPS on loopback.

#![expect(
    clippy::unwrap_used,
    reason = "what the helpers of a test miss fails the test"
)]

#[path = "../../../../fuzz/src/anybody.rs"]
#[expect(unreachable_pub, reason = "the fuzz targets use it too")]
mod anybody;
mod bounds;
mod captured;
mod directory;
mod held;
#[path = "../../../../fuzz/src/initial.rs"]
#[expect(
    unreachable_pub,
    clippy::expect_used,
    reason = "the fuzz targets use it too"
)]
mod initial;
mod leases;
mod nodes;
mod outages;
mod packets;
mod private_hub;
mod refusals;
mod relay;
mod relay_share;
mod test_hub;
mod tls;
mod trust;
