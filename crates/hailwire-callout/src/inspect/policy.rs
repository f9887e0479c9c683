//! The policy of an agent: which events it gets, and what happens when it does not answer. Decides; does no I/O.

use std::time::Duration;

use crate::{
    Decision, EventKind, Response,
    capabilities::{Capabilities, EventKinds},
    response::HeaderOp,
};

/// What happens to a request when an agent gives no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FallbackAction {
    /// It passes: a bypass.
    Allow,
    /// It is blocked with this status.
    Block(u16),
}

/// The ways in which a request to an agent can fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AgentFault {
    /// It took too long.
    Timeout,
    /// It is unreachable, disconnected, or gave an invalid answer.
    Error,
    /// It is at its concurrency limit.
    Overload,
    /// The body is larger than what it takes, or than what may be held back.
    BodyTooLarge,
}

impl AgentFault {
    /// All of them.
    pub const ALL: [Self; 4] = [
        Self::Timeout,
        Self::Error,
        Self::Overload,
        Self::BodyTooLarge,
    ];

    /// The name, as in `on-…` and in metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Timeout => "timeout",
            Self::Error => "error",
            Self::Overload => "overload",
            Self::BodyTooLarge => "body-too-large",
        }
    }

    /// The status of a block whose status the operator did not write.
    #[must_use]
    pub const fn status(self) -> u16 {
        match self {
            Self::Timeout => 504,
            Self::Error | Self::Overload => 503,
            Self::BodyTooLarge => 413,
        }
    }
}

/// What holds in one phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PhaseRule {
    /// How long an answer may take; for a chunk of a body that was sent while others were unanswered, from the
    /// answer before it. Default 1 s.
    pub timeout: Duration,
    /// What happens at a [`AgentFault`], in the order of [`AgentFault::ALL`]. Default: block, with [`AgentFault::status`].
    pub on: [FallbackAction; 4],
}

impl Default for PhaseRule {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(1),
            on: AgentFault::ALL.map(|fault| FallbackAction::Block(fault.status())),
        }
    }
}

/// How a body is shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BodyMode {
    /// Chunk by chunk as it comes.
    #[default]
    Stream,
    /// Whole, in one chunk, once it is there.
    Buffer,
}

impl BodyMode {
    /// The name, as in the configuration.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Stream => "stream",
            Self::Buffer => "buffer",
        }
    }
}

/// What holds for bodies of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BodyRule {
    /// How it is shown.
    pub mode: BodyMode,
    /// Most bytes; a larger one is [`AgentFault::BodyTooLarge`]. Default: what the agent's capabilities state.
    pub max: Option<u64>,
}

/// What one agent is asked, and what happens when it does not answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentRule {
    /// The events that it is asked about. Default: those of its capabilities; all, while they are not known.
    pub events: Option<EventKinds>,
    /// It changes nothing; what it would have blocked is counted.
    pub observe: bool,
    /// Bytes of a body that may be held back: until an agent that wants more has decided, or, in mode
    /// `buffer`, until the body is whole. Default 64 KiB.
    pub buffer_size: usize,
    /// Bodies of requests.
    pub request_body: BodyRule,
    /// Bodies of responses.
    pub response_body: BodyRule,
    /// Each phase, in the order of [`EventKind::ALL`].
    pub phases: [PhaseRule; EventKind::ALL.len()],
}

impl Default for AgentRule {
    fn default() -> Self {
        Self {
            events: None,
            observe: false,
            buffer_size: 64 << 10,
            request_body: BodyRule::default(),
            response_body: BodyRule::default(),
            phases: [PhaseRule::default(); EventKind::ALL.len()],
        }
    }
}

impl AgentRule {
    /// What holds in a phase.
    #[must_use]
    pub fn phase(&self, kind: EventKind) -> PhaseRule {
        self.phases.get(kind as usize).copied().unwrap_or_default()
    }

    /// What holds in a phase, to be changed.
    pub fn phase_mut(&mut self, kind: EventKind) -> Option<&mut PhaseRule> {
        self.phases.get_mut(kind as usize)
    }

    /// What happens at a fault in a phase.
    #[must_use]
    pub fn on(&self, kind: EventKind, fault: AgentFault) -> FallbackAction {
        let on = self.phase(kind).on;
        on.get(fault as usize)
            .copied()
            .unwrap_or(FallbackAction::Block(fault.status()))
    }

    /// Whether the agent is asked about events of a kind.
    #[must_use]
    pub fn wants(&self, kind: EventKind, capabilities: Option<&Capabilities>) -> bool {
        match (self.events, capabilities) {
            (Some(events), _) => events.contains(kind),
            (None, Some(capabilities)) => capabilities.events.contains(kind),
            (None, None) => true,
        }
    }

    /// How large a body of a direction may be.
    #[must_use]
    pub(super) fn most(&self, kind: EventKind, capabilities: Option<&Capabilities>) -> u64 {
        let stated = capabilities.map_or(u64::MAX, |c| c.limits.max_body_size);
        self.body(kind).max.unwrap_or(stated)
    }

    /// What holds for the bodies that events of this kind are about.
    pub(super) fn body(&self, kind: EventKind) -> &BodyRule {
        match kind {
            EventKind::ResponseBody => &self.response_body,
            _ => &self.request_body,
        }
    }
}

/// Most changes to headers in one answer.
pub(super) const MAX_HEADER_OPS: usize = 1024;

/// Checks that an answer is valid; what is wrong with it otherwise.
pub(super) fn check(response: &Response) -> Result<(), &'static str> {
    match &response.decision {
        Decision::Allow => {}
        Decision::Block {
            status, headers, ..
        } => {
            if !(200..=599).contains(status) {
                return Err("invalid status in a block");
            }
            if !headers.iter().all(|(name, value)| field(name, value)) {
                return Err("invalid header in a block");
            }
        }
        Decision::Redirect { url, status } => {
            if !(300..=399).contains(status) {
                return Err("invalid status in a redirect");
            }
            if url.is_empty() || !text(url) {
                return Err("invalid URL in a redirect");
            }
        }
        Decision::Challenge { .. } => {}
    }
    let ops = || {
        let request = response.request_headers.iter();
        request.chain(&response.response_headers)
    };
    if ops().count() > MAX_HEADER_OPS {
        return Err("too many header changes");
    }
    let fits = |op: &HeaderOp| match op {
        HeaderOp::Set { name, value } | HeaderOp::Add { name, value } => field(name, value),
        HeaderOp::Remove { name } => token(name),
    };
    match ops().all(fits) {
        true => Ok(()),
        false => Err("invalid header change"),
    }
}

/// Whether it can be a header field (RFC 9110, 5).
fn field(name: &str, value: &str) -> bool {
    token(name) && text(value)
}

/// Whether it can be a field's name (RFC 9110, 5.6.2), or the pseudo-name of an HTTP/2 field.
fn token(name: &str) -> bool {
    let plain = name.strip_prefix(':').unwrap_or(name);
    let fits = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
    !plain.is_empty() && plain.bytes().all(fits)
}

/// Whether it can be a field's value (RFC 9110, 5.5).
fn text(value: &str) -> bool {
    value
        .bytes()
        .all(|b| b == b'\t' || (b >= 0x20 && b != 0x7f))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_answered_is_blocked_unless_somebody_says_otherwise() {
        let mut rule = AgentRule::default();
        for kind in EventKind::ALL {
            let statuses = AgentFault::ALL.map(|fault| rule.on(kind, fault));
            assert_eq!(statuses, [504, 503, 503, 413].map(FallbackAction::Block));
        }
        rule.phase_mut(EventKind::RequestBody).unwrap().on[AgentFault::Timeout as usize] =
            FallbackAction::Allow;
        assert_eq!(
            rule.on(EventKind::RequestBody, AgentFault::Timeout),
            FallbackAction::Allow
        );
        assert_eq!(
            rule.on(EventKind::RequestHeaders, AgentFault::Timeout),
            FallbackAction::Block(504)
        );
    }

    #[test]
    fn the_configured_events_count_and_else_the_capabilities() {
        let says = Capabilities {
            events: [EventKind::RequestHeaders].into_iter().collect(),
            ..Capabilities::default()
        };
        let mut rule = AgentRule::default();
        assert!(
            rule.wants(EventKind::ResponseBody, None),
            "nothing is known yet"
        );
        assert!(rule.wants(EventKind::RequestHeaders, Some(&says)));
        assert!(!rule.wants(EventKind::RequestBody, Some(&says)));
        rule.events = Some([EventKind::RequestBody].into_iter().collect());
        assert!(rule.wants(EventKind::RequestBody, Some(&says)));
        assert!(!rule.wants(EventKind::RequestHeaders, Some(&says)));
    }

    #[test]
    fn an_answer_that_cannot_be_meant_is_found_out() {
        let set = |name: &str, value: &str| Response {
            request_headers: vec![HeaderOp::Set {
                name: name.to_owned(),
                value: value.to_owned(),
            }],
            ..Response::allow()
        };
        let redirect = |url: &str, status| Response {
            decision: Decision::Redirect {
                url: url.to_owned(),
                status,
            },
            ..Response::allow()
        };
        for good in [
            Response::allow(),
            Response::block(403),
            set("x-a", "b\tc ö"),
            redirect("https://a.b/?c", 302),
        ] {
            assert_eq!(check(&good), Ok(()));
        }
        for lie in [
            Response::block(0),
            Response::block(199),
            Response::block(600),
            set("x-a", "b\r\nx-c: d"),
            set("x a", "b"),
            set("", "b"),
            redirect("https://a.b", 200),
            redirect("https://a.b\r\nx: y", 302),
            redirect("", 302),
            Response {
                response_headers: vec![HeaderOp::Remove { name: "a".into() }; MAX_HEADER_OPS + 1],
                ..Response::allow()
            },
        ] {
            assert!(check(&lie).is_err(), "{lie:?}");
        }
    }
}
