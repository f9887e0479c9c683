//! What a host orders.

use std::time::Duration;

use super::{
    now_ms,
    proto::{self, agent_control::Message, drain_request, shutdown_request},
};
use crate::control::{AgentCommand, DrainReason, ShutdownReason};

/// An order as a message.
pub(crate) fn order(order: AgentCommand) -> Message {
    match order {
        AgentCommand::Drain { within, reason } => Message::Drain(proto::DrainRequest {
            duration_ms: milliseconds(within),
            reason: match reason {
                DrainReason::ConfigReload => drain_request::Reason::ConfigReload,
                DrainReason::Maintenance => drain_request::Reason::Maintenance,
                DrainReason::HealthCheckFailed => drain_request::Reason::HealthCheckFailed,
                DrainReason::Manual => drain_request::Reason::Manual,
            }
            .into(),
            timestamp_ms: now_ms(),
        }),
        AgentCommand::Shutdown { within, reason } => Message::Shutdown(proto::ShutdownRequest {
            reason: match reason {
                ShutdownReason::Graceful => shutdown_request::Reason::Graceful,
                ShutdownReason::Immediate => shutdown_request::Reason::Immediate,
                ShutdownReason::ConfigReload => shutdown_request::Reason::ConfigReload,
                ShutdownReason::Upgrade => shutdown_request::Reason::Upgrade,
            }
            .into(),
            grace_period_ms: milliseconds(within),
            timestamp_ms: now_ms(),
        }),
    }
}

pub(crate) fn drain(request: &proto::DrainRequest) -> AgentCommand {
    AgentCommand::Drain {
        within: Duration::from_millis(request.duration_ms),
        reason: match drain_request::Reason::try_from(request.reason) {
            Ok(drain_request::Reason::ConfigReload) => DrainReason::ConfigReload,
            Ok(drain_request::Reason::Maintenance) => DrainReason::Maintenance,
            Ok(drain_request::Reason::HealthCheckFailed) => DrainReason::HealthCheckFailed,
            Ok(drain_request::Reason::Manual | drain_request::Reason::Unspecified) | Err(_) => {
                DrainReason::Manual
            }
        },
    }
}

pub(crate) fn shutdown(request: &proto::ShutdownRequest) -> AgentCommand {
    AgentCommand::Shutdown {
        within: Duration::from_millis(request.grace_period_ms),
        reason: match shutdown_request::Reason::try_from(request.reason) {
            Ok(shutdown_request::Reason::Immediate) => ShutdownReason::Immediate,
            Ok(shutdown_request::Reason::ConfigReload) => ShutdownReason::ConfigReload,
            Ok(shutdown_request::Reason::Upgrade) => ShutdownReason::Upgrade,
            Ok(shutdown_request::Reason::Graceful | shutdown_request::Reason::Unspecified)
            | Err(_) => ShutdownReason::Graceful,
        },
    }
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
