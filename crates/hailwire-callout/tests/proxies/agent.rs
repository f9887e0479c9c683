//! An agent that decides by what it is shown, and remembers it.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use hailwire_callout::{
    Decision, Event, EventKind, Response, Text,
    capabilities::Capabilities,
    control::CancelReason,
    event::BodyChunk,
    inspect::{AgentClient, AgentRule, CallError, Checkpoint, Inspector},
    response::{BodyMutation, HeaderOp},
};
use tokio::sync::Notify;

/// What the agent was shown.
#[derive(Default)]
pub(crate) struct Seen {
    pub(crate) uris: Vec<String>,
    pub(crate) clients: Vec<String>,
    pub(crate) body: usize,
    pub(crate) largest: usize,
    pub(crate) pieces: usize,
    pub(crate) complete: Vec<u16>,
    pub(crate) cancelled: usize,
}

/// The agent.
pub(crate) struct Agent {
    pub(crate) seen: Mutex<Seen>,
    /// Something new was seen.
    pub(crate) news: Notify,
    capabilities: Arc<Capabilities>,
    killed: AtomicBool,
    paths: Mutex<BTreeMap<String, String>>,
}

impl Agent {
    /// One that wants these events.
    pub(crate) fn new(kinds: &[EventKind]) -> Arc<Self> {
        let capabilities = Capabilities {
            events: kinds.iter().copied().collect(),
            limits: hailwire_callout::capabilities::AgentLimits {
                max_body_size: 1 << 30,
                ..Default::default()
            },
            ..Capabilities::default()
        };
        Arc::new(Self {
            seen: Mutex::default(),
            news: Notify::new(),
            capabilities: Arc::new(capabilities),
            killed: AtomicBool::new(false),
            paths: Mutex::default(),
        })
    }

    /// From here on it does not answer, as one whose process is gone.
    pub(crate) fn kill(&self) {
        self.killed.store(true, Ordering::SeqCst);
    }

    /// It alone, as a proxy asks it.
    pub(crate) fn inspector(self: &Arc<Self>) -> Arc<Inspector> {
        Arc::new(Inspector::new(vec![Checkpoint {
            name: Text::from("agent"),
            rule: AgentRule::default(),
            endpoints: vec![Arc::clone(self) as Arc<dyn AgentClient>],
        }]))
    }

    /// Waits until what was seen is so.
    pub(crate) async fn until(&self, so: impl Fn(&Seen) -> bool) {
        let seen = async {
            loop {
                let news = self.news.notified();
                if so(&self.seen.lock().unwrap()) {
                    return;
                }
                news.await;
            }
        };
        let waited = tokio::time::timeout(Duration::from_secs(10), seen).await;
        waited.expect("the agent saw what was awaited");
    }

    async fn answer(&self, event: Event) -> Result<Response, CallError> {
        let answer = match &event {
            Event::RequestHeaders(head) => {
                let client = head.metadata().client_ip.to_owned();
                let mut paths = self.paths.lock().unwrap();
                paths.insert(head.id().to_owned(), head.uri().to_owned());
                let mut seen = self.seen.lock().unwrap();
                seen.uris.push(head.uri().to_owned());
                seen.clients.push(client);
                Ok(Self::head(head.uri()))
            }
            Event::RequestBody(chunk) => {
                let path = self.paths.lock().unwrap().get(event.id()).cloned();
                let mut seen = self.seen.lock().unwrap();
                seen.body += chunk.data.len();
                seen.largest = seen.largest.max(chunk.data.len());
                seen.pieces += 1;
                Ok(Self::body(&path.unwrap_or_default(), chunk))
            }
            Event::ResponseHeaders(head) => match head.headers().get("x-leak") {
                Some(_) => Ok(Response {
                    decision: block(502, "a leak", &[]),
                    ..Response::default()
                }),
                None => Ok(Response {
                    response_headers: vec![set("x-waf", "response"), remove("server")],
                    ..Response::default()
                }),
            },
            Event::ResponseBody(chunk) => {
                let replaced = String::from_utf8_lossy(&chunk.data).replace("password", "********");
                let changed = replaced.as_bytes() != chunk.data;
                Ok(Response {
                    response_body: changed.then(|| BodyMutation {
                        index: chunk.index,
                        data: Some(Bytes::from(replaced)),
                    }),
                    ..Response::default()
                })
            }
            Event::RequestComplete(complete) => {
                self.seen.lock().unwrap().complete.push(complete.status);
                Ok(Response::allow())
            }
            _ => Ok(Response::allow()),
        };
        self.news.notify_waiters();
        if let Event::RequestHeaders(head) = &event
            && head.uri() == "/hang"
        {
            std::future::pending::<()>().await;
        }
        answer
    }

    fn head(uri: &str) -> Response {
        let decision = match uri {
            "/block" => block(406, "not like this", &[("retry-after", "9")]),
            "/redirect" => Decision::Redirect {
                url: "https://login.example/?a=1".to_owned(),
                status: 307,
            },
            "/challenge" => Decision::Challenge {
                challenge_type: "captcha".to_owned(),
                params: BTreeMap::new(),
            },
            "/login" => Decision::Challenge {
                challenge_type: "Basic".to_owned(),
                params: [("realm".to_owned(), "house".to_owned())].into(),
            },
            _ => Decision::Allow,
        };
        Response {
            decision,
            request_headers: vec![set("x-waf-score", "7"), remove("x-secret")],
            response_headers: vec![set("x-waf", "request")],
            ..Response::default()
        }
    }

    fn body(path: &str, chunk: &BodyChunk) -> Response {
        if chunk.data.windows(6).any(|bytes| bytes == b"attack") {
            return Response::block(429);
        }
        let data = (path == "/mutate").then(|| Bytes::from(chunk.data.to_ascii_uppercase()));
        Response {
            request_body: data.map(|data| BodyMutation {
                index: chunk.index,
                data: Some(data),
            }),
            ..Response::default()
        }
    }
}

fn block(status: u16, body: &str, headers: &[(&str, &str)]) -> Decision {
    let own = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    Decision::Block {
        status,
        body: Some(body.to_owned()),
        headers: headers.iter().map(own).collect(),
    }
}

fn set(name: &str, value: &str) -> HeaderOp {
    HeaderOp::Set {
        name: name.to_owned(),
        value: value.to_owned(),
    }
}

fn remove(name: &str) -> HeaderOp {
    HeaderOp::Remove {
        name: name.to_owned(),
    }
}

/// Whoever asks tells its agent when nobody waits any more.
struct Dropped<'a>(&'a Agent);

impl Drop for Dropped<'_> {
    fn drop(&mut self) {
        self.0.cancel("", CancelReason::ClientDisconnect);
    }
}

impl AgentClient for Agent {
    fn request(
        &self,
        event: Event,
        deadline: Duration,
    ) -> BoxFuture<'_, Result<Response, CallError>> {
        Box::pin(async move {
            if self.killed.load(Ordering::SeqCst) {
                return Err(CallError::Down);
            }
            match event {
                // Longer than any proxy here waits, so that the proxy gives up first.
                Event::RequestHeaders(ref head) if head.uri() == "/hang" => {
                    let _dropped = Dropped(self);
                    self.answer(event).await
                }
                event => tokio::time::timeout(deadline, self.answer(event))
                    .await
                    .unwrap_or(Err(CallError::Timeout)),
            }
        })
    }

    fn capabilities(&self) -> Option<Arc<Capabilities>> {
        Some(Arc::clone(&self.capabilities))
    }

    fn cancel(&self, _: &str, _: CancelReason) {
        self.seen.lock().unwrap().cancelled += 1;
        self.news.notify_waiters();
    }
}
