//! `hail` as people and scripts use it: real processes on loopback, each test in its own house.

#[expect(clippy::unwrap_used, reason = "a step that fails fails its test")]
mod bench;
#[expect(clippy::unwrap_used, reason = "a step that fails fails its test")]
mod callout;
mod calls;
#[expect(clippy::unwrap_used, reason = "a step that fails fails its test")]
mod companion_programs;
#[expect(clippy::unwrap_used, reason = "a step that fails fails its test")]
mod demo;
#[expect(clippy::unwrap_used, reason = "a step that fails fails its test")]
mod dispatch;
#[expect(clippy::unwrap_used, reason = "a step that fails fails its test")]
mod doctor;
#[expect(clippy::unwrap_used, reason = "a step that fails fails its test")]
mod documents;
#[expect(clippy::unwrap_used, reason = "a step that fails fails its test")]
mod gather;
#[expect(clippy::unwrap_used, reason = "a step that fails fails its test")]
mod hub;
#[expect(clippy::unwrap_used, reason = "a step that fails fails its test")]
mod kept_agents;
#[expect(clippy::unwrap_used, reason = "a step that fails fails its test")]
mod lab;
mod leases;
mod messages;
mod nodes;
#[expect(clippy::unwrap_used, reason = "a step that fails fails its test")]
mod on_message;
#[expect(clippy::unwrap_used, reason = "a step that fails fails its test")]
mod packages;
#[expect(clippy::unwrap_used, reason = "a step that fails fails its test")]
mod port_mapping;
#[expect(clippy::unwrap_used, reason = "a step that fails fails its test")]
mod programs;
mod reach;
#[expect(clippy::unwrap_used, reason = "a step that fails fails its test")]
mod reference;
#[expect(clippy::unwrap_used, reason = "a step that fails fails its test")]
mod remote_agents;
#[expect(clippy::unwrap_used, reason = "a step that fails fails its test")]
mod report;
#[expect(clippy::unwrap_used, reason = "a step that fails fails its test")]
mod restarts;
mod service_units;
mod siege;
#[expect(clippy::unwrap_used, reason = "a step that fails fails its test")]
mod socket_owners;
mod tasks;
#[expect(clippy::unwrap_used, reason = "a step that fails fails its test")]
mod test_nodes;
#[expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a step that fails fails its test"
)]
mod topics;
mod without_node;
