//! An agent that looks for attacks in requests: a web application firewall.
//!
//! Request heads, and bodies while they arrive, are parsed into values ([`body`](self) forms, JSON, multipart, XML, text);
//! each value is normalised and judged by rules. A rule that matches adds to the request's score, and a request whose score
//! reaches [`WafSettings::threshold`] is blocked: at its head, or in the middle of its body.
//!
//! Rules are written in SecLang, the language of the OWASP Core Rule Set, as far as [`seclang`] supports it: the built-in
//! rules (`rules.conf`), or an operator's own. SQL and scripts are detected by a Rust port of libinjection.
//!
//! # Guarantees
//!
//! - The same bytes get the same decision, however they are divided into chunks.
//! - A request costs at most [`BODY_MEMORY`] bytes; at most [`WafSettings::requests`] are read at once, and further ones are refused
//!   with 503.
//! - A blocked request stays blocked: so do chunks that were already on their way.
//! - A body of less than [`WINDOW`] bytes is forwarded only after all of it was judged. Of a larger one a host may forward
//!   what was judged, so that it streams; an attack later in the body ends it there.
//!
//! # Limits
//!
//! Content that it cannot read is reported ([`UnreadKind`]), and by default such a request is blocked. It does not see: in
//! values longer than [`WINDOW`] bytes, patterns that span more than [`OVERLAP`] bytes; in uploaded files, anything but what
//! rules on files look for; documents nested in documents in a value; responses.

mod automaton;
mod body;
mod byte_classes;
mod chain;
mod head;
mod media;
mod nested;
mod operator;
mod plan;
mod prefilter;
mod rules;
mod search;
pub mod seclang;
mod sqli;
mod table;
mod transform;
mod unread;

pub use body::{OVERLAP, WINDOW};
pub use rules::{InspectedValue, RequestFindings, RuleSet, RulesError, RulesReport};
pub use transform::Transform;
pub use unread::{UnreadKind, UnreadKindError, UnreadSet};

use std::{
    collections::BTreeSet,
    path::PathBuf,
    sync::{
        PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use hailwire_callout::{
    Agent, Decision, Response, capabilities,
    control::CancelReason,
    event::{BodyChunk, Opcode, RequestComplete, RequestHeaders, WebSocketFrame},
    response::{Audit, WebSocketDecision},
};

use body::BodyReader;
use table::RequestTable;

/// The most memory that the state of a request takes, in bytes: three windows and small buffers.
pub const BODY_MEMORY: usize = 3 * WINDOW + 2 * OVERLAP + (16 << 10);

/// The settings of the firewall.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WafSettings {
    /// A directory of rules, or one file. Default the built-in rules.
    pub rules: Option<PathBuf>,
    /// The paranoia level, 1 to 4: higher levels detect more and have more false positives. Default 1.
    pub paranoia: u8,
    /// The score at which a request is blocked. Default 5: one critical rule.
    pub threshold: u32,
    /// The status of a block. Default 403.
    pub status: u16,
    /// Whether requests are blocked, or findings only reported in the audit. Default true.
    pub block: bool,
    /// Unread content that is accepted; a request with any other kind is blocked. Default [`UnreadSet::OPAQUE`].
    pub may_be_unread: UnreadSet,
    /// Requests whose bodies are read at once. Default 4,096.
    pub requests: usize,
    /// After this time without an event a request may be evicted, when space is needed. Default a minute.
    pub idle: Duration,
}

impl Default for WafSettings {
    fn default() -> Self {
        Self {
            rules: None,
            paranoia: 1,
            threshold: 5,
            status: 403,
            block: true,
            may_be_unread: UnreadSet::OPAQUE,
            requests: 4_096,
            idle: Duration::from_secs(60),
        }
    }
}

/// The firewall agent.
pub struct Waf {
    settings: WafSettings,
    rules: RuleSet,
    requests: RequestTable<RequestState>,
    blocked: AtomicU64,
    unread: [AtomicU64; UnreadKind::ALL.len()],
    /// Whether every rule is tried on every value.
    without_shortcuts: bool,
}

/// A request whose body is being read.
#[derive(Debug)]
struct RequestState {
    body: BodyReader,
    findings: RequestFindings,
    /// Whether it was blocked already: later chunks are blocked, too.
    blocked: bool,
    /// Bytes of the body received so far.
    seen: usize,
}

impl Waf {
    /// A firewall with these settings.
    ///
    /// # Errors
    ///
    /// [`RulesError`].
    pub fn new(settings: WafSettings) -> Result<Self, RulesError> {
        let rules = match &settings.rules {
            Some(path) => RuleSet::load(path, settings.paranoia)?,
            None => RuleSet::built_in(settings.paranoia)?,
        };
        let limits = table::TableLimits {
            entries: settings.requests,
            idle: settings.idle,
        };
        Ok(Self {
            settings,
            rules,
            requests: RequestTable::new(limits),
            blocked: AtomicU64::new(0),
            unread: std::array::from_fn(|_| AtomicU64::new(0)),
            without_shortcuts: false,
        })
    }

    /// The same firewall without its shortcuts: slow, the reference that tests compare it with.
    #[doc(hidden)]
    #[must_use]
    pub fn without_shortcuts(mut self) -> Self {
        self.without_shortcuts = true;
        self
    }

    /// Which rules are in use and which were skipped.
    #[must_use]
    pub fn report(&self) -> &RulesReport {
        self.rules.report()
    }

    /// How many requests have been blocked.
    #[must_use]
    pub fn blocked(&self) -> u64 {
        self.blocked.load(Ordering::Relaxed)
    }

    /// How many requests had unread content of this kind.
    #[must_use]
    pub fn unread(&self, kind: UnreadKind) -> u64 {
        self.unread[kind as usize].load(Ordering::Relaxed)
    }

    /// How many requests' bodies are being read.
    #[must_use]
    pub fn reading(&self) -> usize {
        self.requests.len()
    }

    /// Judges the head of a request.
    #[must_use]
    pub fn head(&self, head: &RequestHeaders, now: Instant) -> Response {
        let mut findings = RequestFindings::default();
        let field = |name: &str| head.headers().get(name);
        self.rules.keep_headers(field, &mut findings);
        head::values(head, &mut |value| self.judge(&value, &mut findings));
        self.note(head::unread(head), &mut findings);
        if !self.decided(&findings) {
            let count = |name: &str| head.headers().get_all(name).count();
            self.rules.judge_counts(count, &mut findings);
        }
        let body = head::may_have_body(head).then(|| {
            if findings.unread.has(UnreadKind::ContentEncoding) {
                BodyReader::opaque()
            } else {
                BodyReader::for_content_types(head.headers().get_all("content-type"))
            }
        });
        if let Some(body) = &body {
            self.note(body.unread(), &mut findings);
        }
        let blocked = self.blocks(&findings);
        let mut response = self.respond(&findings, blocked);
        // A reused correlation id starts a new request.
        self.requests.remove(head.id());
        if let (false, Some(body)) = (blocked, body) {
            let make = || RequestState {
                body,
                findings,
                blocked,
                seen: 0,
            };
            match self
                .requests
                .entry(head.id(), now, |reading| reading.blocked, make)
            {
                Ok(_) => response.needs_more = head::has_body(head),
                Err(table::TableFull) => response = table_full(),
            }
        }
        response
    }

    /// Judges a chunk of a body.
    #[must_use]
    pub fn chunk(&self, chunk: &BodyChunk, now: Instant) -> Response {
        let id: &str = &chunk.correlation_id;
        self.read(id, &chunk.data, chunk.is_last, now)
    }

    fn read(&self, id: &str, data: &[u8], last: bool, now: Instant) -> Response {
        let make = || RequestState {
            body: BodyReader::for_content_types(std::iter::empty()),
            findings: RequestFindings::default(),
            blocked: false,
            seen: 0,
        };
        let Ok(reading) = self
            .requests
            .entry(id, now, |reading| reading.blocked, make)
        else {
            return table_full();
        };
        let mut reading = reading.lock().unwrap_or_else(PoisonError::into_inner);
        let RequestState {
            body,
            findings,
            blocked,
            seen,
        } = &mut *reading;
        *seen = seen.saturating_add(data.len());
        let mut response = Response::allow();
        if *blocked {
            // It was counted when it was blocked.
            response = self.answer(findings, true);
        } else {
            if !data.is_empty() && !self.decided(findings) {
                let length = seen.to_string();
                let length = InspectedValue {
                    variable: seclang::Variable::RequestBodyLength,
                    name: b"",
                    bytes: length.as_bytes(),
                    first: true,
                };
                self.judge(&length, findings);
            }
            if !self.decided(findings) {
                body.feed(data, &mut |value| self.judge(&value, findings));
            }
            if last && !self.decided(findings) {
                body.finish(&mut |value| self.judge(&value, findings));
            }
            self.note(body.unread(), findings);
            *blocked = self.blocks(findings);
            if last || *blocked {
                response = self.respond(findings, *blocked);
            }
            response.needs_more = !last && !*blocked && *seen < WINDOW;
        }
        drop(reading);
        if last {
            self.requests.remove(id);
        }
        response
    }

    /// Judges a WebSocket frame; a fragmented message continues in the next frame.
    #[must_use]
    pub fn frame(&self, frame: &WebSocketFrame, now: Instant) -> Response {
        let carries = matches!(
            frame.opcode,
            Opcode::Text | Opcode::Binary | Opcode::Continuation
        );
        if !frame.client_to_server || !carries {
            return Response::allow();
        }
        // Messages are not part of the request's body.
        let id = format!("{}\0ws", frame.correlation_id);
        let mut response = self.read(&id, &frame.data, frame.fin, now);
        response.needs_more = false;
        if response.decision != Decision::Allow {
            response.decision = Decision::Allow;
            response.websocket = Some(WebSocketDecision::Close {
                code: 1008,
                reason: "policy violation".to_owned(),
            });
        }
        response
    }

    fn forget(&self, id: &str) {
        self.requests.remove(id);
        self.requests.remove(&format!("{id}\0ws"));
    }

    fn judge(&self, value: &InspectedValue<'_>, findings: &mut RequestFindings) {
        self.judge_one(value, findings);
        nested::values(value, &mut |value| self.judge_one(&value, findings));
    }

    fn judge_one(&self, value: &InspectedValue<'_>, findings: &mut RequestFindings) {
        if self.decided(findings) {
            // More findings would not change the decision.
        } else if self.without_shortcuts {
            self.rules.judge_without_shortcuts(value, findings);
        } else {
            self.rules.judge(value, findings);
        }
    }

    /// Records content that is not read.
    fn note(&self, unread: UnreadSet, findings: &mut RequestFindings) {
        for kind in unread.without(findings.unread).iter() {
            self.unread[kind as usize].fetch_add(1, Ordering::Relaxed);
        }
        findings.unread = findings.unread.with(unread);
    }

    /// Whether the decision is final.
    fn decided(&self, findings: &RequestFindings) -> bool {
        let unread = findings.unread.without(self.settings.may_be_unread);
        findings.deny.is_some() || findings.score >= self.settings.threshold || !unread.is_empty()
    }

    fn blocks(&self, findings: &RequestFindings) -> bool {
        self.settings.block && self.decided(findings)
    }

    fn respond(&self, findings: &RequestFindings, blocked: bool) -> Response {
        if blocked {
            self.blocked.fetch_add(1, Ordering::Relaxed);
            tracing::debug!(score = findings.score, rules = %self.rules.explain(findings), "blocked");
        }
        self.answer(findings, blocked)
    }

    fn answer(&self, findings: &RequestFindings, blocked: bool) -> Response {
        if findings.matched.is_empty() && findings.unread.is_empty() {
            return Response::allow();
        }
        let decision = if blocked {
            Decision::Block {
                status: findings.deny.unwrap_or(self.settings.status),
                body: Some("the request was refused\n".to_owned()),
                headers: std::collections::BTreeMap::new(),
            }
        } else {
            Decision::Allow
        };
        Response {
            decision,
            audit: self.audit(findings),
            ..Response::default()
        }
    }

    fn audit(&self, findings: &RequestFindings) -> Audit {
        let rules = || {
            findings
                .matched
                .iter()
                .filter_map(|place| self.rules.rule(*place))
        };
        let tags: BTreeSet<&str> = rules()
            .flat_map(|rule| &rule.tags)
            .map(String::as_str)
            .collect();
        let attack = |tag: &&str| tag.starts_with("attack-");
        let code = |tag: &str| tag.to_ascii_uppercase().replace(['-', ':'], "_");
        let unread = findings.unread.iter().map(|kind| format!("unread:{kind}"));
        let tags: Vec<String> = tags
            .iter()
            .copied()
            .filter(attack)
            .map(str::to_owned)
            .chain(unread)
            .collect();
        let mut audit = Audit {
            reason_codes: tags.iter().map(|tag| code(tag)).collect(),
            tags,
            rule_ids: rules().map(|rule| rule.id.to_string()).collect(),
            confidence: Some(self.confidence(findings)),
            ..Audit::default()
        };
        audit
            .custom
            .insert("anomaly_score".to_owned(), findings.score.into());
        audit
    }

    /// 0.5 at the threshold, approaching 1 with each further multiple of it.
    fn confidence(&self, findings: &RequestFindings) -> f32 {
        if findings.deny.is_some() {
            return 1.0;
        }
        let times = findings.score as f32 / self.settings.threshold.max(1) as f32;
        1.0 - 0.5_f32.powf(times)
    }
}

/// The answer when there is no space for another request: a body that is not inspected must not pass.
fn table_full() -> Response {
    let mut response = Response::block(503);
    response.audit.reason_codes = vec!["WAF_FULL".to_owned()];
    response
}

impl Agent for Waf {
    fn name(&self) -> &str {
        "hailwire-waf"
    }

    fn version(&self) -> &str {
        env!("CARGO_PKG_VERSION")
    }

    fn limits(&self) -> capabilities::AgentLimits {
        capabilities::AgentLimits {
            max_body_size: MAX_BODY,
            ..capabilities::AgentLimits::default()
        }
    }

    async fn request_headers(&self, event: RequestHeaders) -> Response {
        self.head(&event, Instant::now())
    }

    async fn request_body(&self, event: BodyChunk) -> Response {
        self.chunk(&event, Instant::now())
    }

    async fn websocket_frame(&self, event: WebSocketFrame) -> Response {
        self.frame(&event, Instant::now())
    }

    async fn request_complete(&self, event: RequestComplete) -> Response {
        self.forget(&event.correlation_id);
        Response::allow()
    }

    fn cancelled(&self, correlation_id: &str, _: CancelReason) {
        self.forget(correlation_id);
    }
}

/// Bodies are inspected while they arrive, so their size hardly matters: a tebibyte.
const MAX_BODY: u64 = 1 << 40;

#[cfg(test)]
mod tests;
