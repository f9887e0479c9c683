//! The agents from outside: over corpora, served, and as examples.

#[expect(clippy::unwrap_used, reason = "a step that fails fails its test")]
mod crs;
#[expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a step that fails fails its test"
)]
mod examples;
mod hostile;
mod positions;
mod published;
#[expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a step that fails fails its test"
)]
mod served;
#[expect(clippy::unwrap_used, reason = "a step that fails fails its test")]
mod waf;
