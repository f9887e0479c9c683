//! Proxies that do not speak Agent Protocol v2 use its agents nevertheless: an unchanged Envoy through external
//! processing ([`ext_proc`]), an unchanged HAProxy through SPOE ([`spoe`]).
//!
//! Each front takes an [`Exchange`](crate::inspect::Exchange) of the one [`Inspector`](crate::inspect::Inspector)
//! for each HTTP request, shows it what its proxy sends, and answers the proxy in its own words. Which agents are
//! asked, in which order, and what happens when one does not answer is decided there and nowhere here.
//!
//! What both fronts share:
//!
//! - A request's correlation id is ours ([`correlation_id`]); the proxy's own id is its `request_id`.
//! - A header value that is not UTF-8 is shown as ISO 8859-1, byte for byte a character ([`text`]): an agent sees all of
//!   it, and nothing becomes a replacement character on the way.
//! - A decision against a request is the same [`ClientResponse`] at every proxy.
//! - What a front cannot show to agents that want it does not pass.
//! - When the proxy gives up on a request its exchange is dropped, which tells the agents.

pub mod ext_proc;
mod socket;
pub mod spoe;

use std::{
    borrow::Cow,
    fmt::Write as _,
    sync::{
        Arc, LazyLock,
        atomic::{AtomicU16, AtomicU64, Ordering},
    },
    time::{SystemTime, UNIX_EPOCH},
};

use crate::{Decision, Text, inspect::FallbackAction};

pub use socket::FrontListener;

/// The id of one more request: no other of this process has it, nor, most likely, of any other.
#[must_use]
pub fn correlation_id() -> Text {
    static START: LazyLock<u64> = LazyLock::new(|| {
        let nanos = SystemTime::now().duration_since(UNIX_EPOCH);
        let nanos = nanos.unwrap_or_default().as_nanos();
        u64::try_from(nanos).unwrap_or_default() ^ u64::from(std::process::id()).rotate_left(44)
    });
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let next = NEXT.fetch_add(1, Ordering::Relaxed);
    Text::from(format!("{:x}-{next:x}", *START))
}

/// Bytes that should be text, as text: where they are not UTF-8, each byte is a character of ISO 8859-1.
#[must_use]
pub fn text(bytes: &[u8]) -> Cow<'_, str> {
    match simdutf8::basic::from_utf8(bytes) {
        Ok(text) => Cow::Borrowed(text),
        Err(_) => Cow::Owned(bytes.iter().copied().map(char::from).collect()),
    }
}

/// What happens to a body that an agent wants and a proxy does not send. Clones share the policy; it may change while fronts
/// serve.
#[derive(Clone, Debug)]
pub struct UnseenBodyPolicy(Arc<AtomicU16>);

impl UnseenBodyPolicy {
    /// No status: it passes.
    const ALLOW: u16 = 0;

    /// From now on this, for bodies that have not begun.
    pub fn set(&self, action: FallbackAction) {
        let status = match action {
            FallbackAction::Allow => Self::ALLOW,
            FallbackAction::Block(status) => status,
        };
        self.0.store(status, Ordering::Relaxed);
    }

    /// What holds now.
    #[must_use]
    pub fn now(&self) -> FallbackAction {
        match self.0.load(Ordering::Relaxed) {
            Self::ALLOW => FallbackAction::Allow,
            status => FallbackAction::Block(status),
        }
    }
}

/// Such a body is blocked with 503.
impl Default for UnseenBodyPolicy {
    fn default() -> Self {
        Self::from(FallbackAction::Block(503))
    }
}

impl From<FallbackAction> for UnseenBodyPolicy {
    fn from(action: FallbackAction) -> Self {
        let unseen = Self(Arc::default());
        unseen.set(action);
        unseen
    }
}

/// The time as RFC 3339 has it.
fn now() -> String {
    humantime::format_rfc3339_millis(SystemTime::now()).to_string()
}

/// The response that a client gets instead of the one it asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientResponse {
    /// The status.
    pub status: u16,
    /// Header fields.
    pub headers: Vec<(String, String)>,
    /// The body; text.
    pub body: String,
}

impl ClientResponse {
    /// What becomes of a request that does not pass; `None` where it does.
    ///
    /// A redirect is its status with `location`. A challenge that is a scheme of HTTP authentication (RFC 9110,
    /// 11) is 401 with `www-authenticate`; any other is 403 with `x-challenge: TYPE` and a header
    /// `x-challenge-NAME` for each parameter.
    #[must_use]
    pub fn to(decision: &Decision) -> Option<Self> {
        Some(match decision {
            Decision::Allow => return None,
            Decision::Block {
                status,
                body,
                headers,
            } => Self {
                status: *status,
                headers: headers.clone().into_iter().collect(),
                body: body.clone().unwrap_or_default(),
            },
            Decision::Redirect { url, status } => Self {
                status: *status,
                headers: vec![("location".to_owned(), url.clone())],
                body: String::new(),
            },
            Decision::Challenge {
                challenge_type,
                params,
            } => Self::challenge(challenge_type, params.iter()),
        })
    }

    fn challenge<'a>(kind: &str, params: impl Iterator<Item = (&'a String, &'a String)>) -> Self {
        const SCHEMES: [&str; 6] = ["basic", "bearer", "digest", "dpop", "mutual", "negotiate"];
        let mut headers = Vec::new();
        let status = if SCHEMES.iter().any(|s| s.eq_ignore_ascii_case(kind)) {
            let mut value = kind.to_owned();
            for (n, (name, param)) in params.enumerate() {
                let comma = if n == 0 { "" } else { "," };
                let quoted = param.replace('\\', "\\\\").replace('"', "\\\"");
                let _ = write!(value, "{comma} {name}=\"{quoted}\"");
            }
            headers.push(("www-authenticate".to_owned(), value));
            401
        } else {
            headers.push(("x-challenge".to_owned(), kind.to_owned()));
            headers.extend(params.map(|(name, value)| {
                let name = name.to_ascii_lowercase().replace('_', "-");
                (format!("x-challenge-{name}"), value.clone())
            }));
            403
        };
        // An agent may repeat here what a client sent.
        headers.retain(|(name, value)| {
            http::HeaderName::try_from(name).is_ok() && http::HeaderValue::try_from(value).is_ok()
        });
        Self {
            status,
            headers,
            body: String::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn what_is_not_utf_8_is_shown_byte_by_byte() {
        assert_eq!(text("grün".as_bytes()), "grün");
        assert_eq!(text(b"gr\xfcn<script>"), "grün<script>");
    }

    #[test]
    fn no_two_requests_have_one_id() {
        assert_ne!(correlation_id(), correlation_id());
    }

    fn challenge(kind: &str, params: &[(&str, &str)]) -> ClientResponse {
        let own = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        let decision = Decision::Challenge {
            challenge_type: kind.to_owned(),
            params: params.iter().map(own).collect::<BTreeMap<_, _>>(),
        };
        ClientResponse::to(&decision).unwrap()
    }

    #[test]
    fn a_challenge_of_http_is_401_and_any_other_403() {
        let reply = challenge("Basic", &[("charset", "UTF-8"), ("realm", "a \"b\"")]);
        let value = "Basic charset=\"UTF-8\", realm=\"a \\\"b\\\"\"".to_owned();
        assert_eq!(reply.status, 401);
        assert_eq!(reply.headers, [("www-authenticate".to_owned(), value)]);
        let reply = challenge(
            "captcha",
            &[("Site_Key", "k"), ("bad", "a\r\nset-cookie: b")],
        );
        assert_eq!(reply.status, 403);
        let fields = [("x-challenge", "captcha"), ("x-challenge-site-key", "k")];
        let fields = fields.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(reply.headers, fields);
    }
}
