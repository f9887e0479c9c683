//! The real Envoy and the real HAProxy, unchanged, ask agents through the fronts.
//!
//! `peers/install` installs both; `./x test` does so, and names them in the environment. Their configurations are those
//! of `examples/proxies`, with other addresses.

#[expect(clippy::unwrap_used, reason = "a step that fails fails its test")]
#[expect(clippy::expect_used, reason = "the same")]
mod agent;
#[expect(clippy::unwrap_used, reason = "a step that fails fails its test")]
mod envoy;
#[expect(clippy::unwrap_used, reason = "a step that fails fails its test")]
mod haproxy;
#[expect(clippy::unwrap_used, reason = "a step that fails fails its test")]
#[expect(clippy::expect_used, reason = "the same")]
mod system;
