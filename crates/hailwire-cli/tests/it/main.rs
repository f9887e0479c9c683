//! `hail` as people and scripts use it: real processes on loopback, each test in its own house.

mod alone;
#[expect(clippy::unwrap_used, reason = "a step that fails fails its test")]
mod bench;
#[expect(clippy::unwrap_used, reason = "a step that fails fails its test")]
mod beside;
#[expect(clippy::unwrap_used, reason = "a step that fails fails its test")]
mod callout;
mod calls;
#[expect(clippy::unwrap_used, reason = "a step that fails fails its test")]
mod demo;
#[expect(clippy::unwrap_used, reason = "a step that fails fails its test")]
mod door;
#[expect(clippy::unwrap_used, reason = "a step that fails fails its test")]
mod far;
#[expect(clippy::unwrap_used, reason = "a step that fails fails its test")]
mod house;
#[expect(clippy::unwrap_used, reason = "a step that fails fails its test")]
mod lab;
mod nodes;
#[expect(clippy::unwrap_used, reason = "a step that fails fails its test")]
mod programs;
#[expect(clippy::unwrap_used, reason = "a step that fails fails its test")]
mod reference;
#[expect(clippy::unwrap_used, reason = "a step that fails fails its test")]
mod report;
mod siege;
