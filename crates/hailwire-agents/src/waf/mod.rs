//! An agent that looks for attacks in requests: a web application firewall.
//!
//! Heads, and bodies while they come, are taken apart into values ([`body`](self) forms, JSON, multipart, XML, text); each
//! value is brought to one spelling and judged by rules. A rule adds to the request's score, and a request whose score
//! reaches [`Settings::threshold`] is blocked: at its head, or in the middle of its body, whatever has come.
//!
//! The rules are SecLang's, the language of the OWASP Core Rule Set, as far as [`seclang`] understands it: those that come
//! with the house (`rules.conf`), or an operator's own. SQL and scripts are found by libinjection, as a port to Rust.
//!
//! # What it promises
//!
//! - The same bytes get the same decision, however they were cut into pieces.
//! - A request costs at most [`BODY_MEMORY`] bytes; so many requests are read at once as [`Settings::requests`] says, and further
//!   ones are refused with 503.
//! - Whatever was blocked stays blocked: pieces that were under way are, too.
//! - Nothing of a body of less than [`WINDOW`] bytes goes on before all of it was judged. Of a larger one a host may let go what was
//!   judged, so that it streams; an attack further down breaks it off there.
//!
//! # What it does not see
//!
//! What it does not read it says ([`Unread`]), and by default it blocks such a request. Besides: in values longer than
//! [`WINDOW`] bytes, what only shows over more than [`OVERLAP`] of them; of the contents of files, all but what rules on files
//! look for; documents within documents within values; responses.

mod automaton;
mod body;
mod chain;
mod head;
mod kinds;
mod literals;
mod media;
mod nested;
mod operator;
mod plan;
mod rules;
mod search;
pub mod seclang;
mod sqli;
mod table;
mod transform;
mod unread;

pub use body::{OVERLAP, WINDOW};
pub use rules::{Findings, Report, RuleSet, RulesError, Value};
pub use transform::Transform;
pub use unread::{Unread, UnreadError, UnreadSet};

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

use body::Body;
use table::Table;

/// What a request's state takes at most, in bytes: three windows and what is held beside them.
pub const BODY_MEMORY: usize = 3 * WINDOW + 2 * OVERLAP + (16 << 10);

/// What the firewall does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// A directory of rules, or one file. Default those that come with the house.
    pub rules: Option<PathBuf>,
    /// 1 to 4: how many false alarms are accepted for finding more. Default 1.
    pub paranoia: u8,
    /// The score at which a request is blocked. Default 5: one critical rule.
    pub threshold: u32,
    /// The status of a block. Default 403.
    pub status: u16,
    /// Whether anything is blocked, or only said in the audit. Default yes.
    pub block: bool,
    /// What may be left unread; a request with anything else unread is blocked. Default [`UnreadSet::OPAQUE`].
    pub may_be_unread: UnreadSet,
    /// Requests whose bodies are read at once. Default 4,096.
    pub requests: usize,
    /// After this time without a word a request is forgotten, when room is needed. Default a minute.
    pub idle: Duration,
}

impl Default for Settings {
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

/// The firewall.
pub struct Waf {
    settings: Settings,
    rules: RuleSet,
    requests: Table<Reading>,
    blocked: AtomicU64,
    unread: [AtomicU64; Unread::ALL.len()],
    /// Whether every rule is tried on everything.
    plainly: bool,
}

/// A request whose body is being read.
#[derive(Debug)]
struct Reading {
    body: Body,
    findings: Findings,
    /// Whether it was blocked already: what was under way then is blocked, too.
    blocked: bool,
    /// Bytes of the body so far.
    seen: usize,
}

impl Waf {
    /// One with these settings.
    ///
    /// # Errors
    ///
    /// [`RulesError`].
    pub fn new(settings: Settings) -> Result<Self, RulesError> {
        let rules = match &settings.rules {
            Some(path) => RuleSet::load(path, settings.paranoia)?,
            None => RuleSet::own(settings.paranoia)?,
        };
        let limits = table::Limits {
            entries: settings.requests,
            idle: settings.idle,
        };
        Ok(Self {
            settings,
            rules,
            requests: Table::new(limits),
            blocked: AtomicU64::new(0),
            unread: std::array::from_fn(|_| AtomicU64::new(0)),
            plainly: false,
        })
    }

    /// The same firewall without its short cuts: slow, and what tests compare it with.
    #[doc(hidden)]
    #[must_use]
    pub fn plainly(mut self) -> Self {
        self.plainly = true;
        self
    }

    /// What became of the rules that were read.
    #[must_use]
    pub fn report(&self) -> &Report {
        self.rules.report()
    }

    /// How many requests were blocked so far.
    #[must_use]
    pub fn blocked(&self) -> u64 {
        self.blocked.load(Ordering::Relaxed)
    }

    /// How many requests had something of this kind that was not read.
    #[must_use]
    pub fn unread(&self, kind: Unread) -> u64 {
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
        let mut findings = Findings::default();
        let field = |name: &str| head.headers().get(name);
        self.rules.keep_headers(field, &mut findings);
        head::values(head, &mut |value| self.judge(&value, &mut findings));
        self.note(head::unread(head), &mut findings);
        if !self.decided(&findings) {
            let count = |name: &str| head.headers().get_all(name).count();
            self.rules.judge_counts(count, &mut findings);
        }
        let body = head::may_have_body(head).then(|| {
            if findings.unread.has(Unread::ContentEncoding) {
                Body::opaque()
            } else {
                Body::of(head.headers().get_all("content-type"))
            }
        });
        if let Some(body) = &body {
            self.note(body.unread(), &mut findings);
        }
        let blocked = self.blocks(&findings);
        let mut response = self.respond(&findings, blocked);
        // A correlation id that is used again begins a new request.
        self.requests.remove(head.id());
        if let (false, Some(body)) = (blocked, body) {
            let make = || Reading {
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
                Err(table::Full) => response = full(),
            }
        }
        response
    }

    /// Judges a piece of a body.
    #[must_use]
    pub fn piece(&self, chunk: &BodyChunk, now: Instant) -> Response {
        let id: &str = &chunk.correlation_id;
        self.read(id, &chunk.data, chunk.is_last, now)
    }

    fn read(&self, id: &str, data: &[u8], last: bool, now: Instant) -> Response {
        let make = || Reading {
            body: Body::of(std::iter::empty()),
            findings: Findings::default(),
            blocked: false,
            seen: 0,
        };
        let Ok(reading) = self
            .requests
            .entry(id, now, |reading| reading.blocked, make)
        else {
            return full();
        };
        let mut reading = reading.lock().unwrap_or_else(PoisonError::into_inner);
        let Reading {
            body,
            findings,
            blocked,
            seen,
        } = &mut *reading;
        *seen = seen.saturating_add(data.len());
        let mut response = Response::allow();
        if *blocked {
            // It has been counted.
            response = self.answer(findings, true);
        } else {
            if !data.is_empty() && !self.decided(findings) {
                let length = seen.to_string();
                let length = Value {
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

    /// Judges a WebSocket frame: a message that is not whole goes on with the next frame.
    #[must_use]
    pub fn frame(&self, frame: &WebSocketFrame, now: Instant) -> Response {
        let carries = matches!(
            frame.opcode,
            Opcode::Text | Opcode::Binary | Opcode::Continuation
        );
        if !frame.client_to_server || !carries {
            return Response::allow();
        }
        // Its messages are none of the request's body.
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

    fn judge(&self, value: &Value<'_>, findings: &mut Findings) {
        self.judge_one(value, findings);
        nested::values(value, &mut |value| self.judge_one(&value, findings));
    }

    fn judge_one(&self, value: &Value<'_>, findings: &mut Findings) {
        if self.decided(findings) {
            // More would not change it.
        } else if self.plainly {
            self.rules.judge_plainly(value, findings);
        } else {
            self.rules.judge(value, findings);
        }
    }

    /// Notes what is not read.
    fn note(&self, unread: UnreadSet, findings: &mut Findings) {
        for kind in unread.without(findings.unread).iter() {
            self.unread[kind as usize].fetch_add(1, Ordering::Relaxed);
        }
        findings.unread = findings.unread.with(unread);
    }

    /// Whether more could not change the decision.
    fn decided(&self, findings: &Findings) -> bool {
        let unread = findings.unread.without(self.settings.may_be_unread);
        findings.deny.is_some() || findings.score >= self.settings.threshold || !unread.is_empty()
    }

    fn blocks(&self, findings: &Findings) -> bool {
        self.settings.block && self.decided(findings)
    }

    fn respond(&self, findings: &Findings, blocked: bool) -> Response {
        if blocked {
            self.blocked.fetch_add(1, Ordering::Relaxed);
            tracing::debug!(score = findings.score, rules = %self.rules.explain(findings), "blocked");
        }
        self.answer(findings, blocked)
    }

    fn answer(&self, findings: &Findings, blocked: bool) -> Response {
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

    fn audit(&self, findings: &Findings) -> Audit {
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

    /// Half at the threshold, nearer to 1 with each further one.
    fn confidence(&self, findings: &Findings) -> f32 {
        if findings.deny.is_some() {
            return 1.0;
        }
        let times = findings.score as f32 / self.settings.threshold.max(1) as f32;
        1.0 - 0.5_f32.powf(times)
    }
}

/// A body that nobody could read must not pass.
fn full() -> Response {
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
        self.piece(&event, Instant::now())
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

/// Bodies are read while they come, so their size is no matter: a tebibyte.
const MAX_BODY: u64 = 1 << 40;

#[cfg(test)]
mod tests;
