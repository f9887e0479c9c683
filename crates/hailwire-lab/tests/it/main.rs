//! The lab as its users meet it: networks in namespaces where the machine lets, and in virtual time.

#![expect(
    clippy::unwrap_used,
    reason = "what the helpers of a test miss fails the test"
)]

mod namespaces;
mod nats;
mod virtual_time;
