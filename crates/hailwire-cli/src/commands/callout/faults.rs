//! Agents that go wrong on purpose: slow, crashing, lying, garbling.
//!
//! Each is a real agent on a Unix socket that lets everything pass, up to the event at which it goes wrong.

use std::{
    future::{Future, pending},
    io,
    path::PathBuf,
    sync::Arc,
};

use hailwire_callout::{
    Agent, Kind, Response, agent,
    event::{BodyChunk, RequestHeaders, ResponseHeaders},
    inspect::Fault,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::UnixListener,
    sync::Notify,
    task::JoinSet,
};

/// How an agent goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wrong {
    /// It never answers.
    Slow,
    /// It drops its connections.
    Crashing,
    /// It answers with a status that is none.
    Lying,
    /// It sends bytes that are no frame.
    Garbling,
}

impl Wrong {
    pub(super) const ALL: [Self; 4] = [Self::Slow, Self::Crashing, Self::Lying, Self::Garbling];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Slow => "slow agent",
            Self::Crashing => "crashing agent",
            Self::Lying => "lying agent",
            Self::Garbling => "garbling agent",
        }
    }

    /// What it is taken for.
    pub(super) const fn fault(self) -> Fault {
        match self {
            Self::Slow => Fault::Timeout,
            _ => Fault::Error,
        }
    }
}

/// When: at an event of this kind; at the second one of a body where `mid_body` says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct When {
    pub(super) kind: Kind,
    pub(super) mid_body: bool,
}

/// Serves an agent that goes wrong, until dropped.
pub(super) async fn serve(path: PathBuf, wrong: Wrong, when: When) -> io::Result<()> {
    let listener = UnixListener::bind(path)?;
    let mut connections = JoinSet::new();
    loop {
        let (mut stream, _) = listener.accept().await?;
        connections.spawn(async move {
            let ended = Arc::new(Notify::new());
            let agent = Arc::new(Faulty {
                wrong,
                when,
                ended: Arc::clone(&ended),
            });
            let (near, mut far) = tokio::io::duplex(1 << 20);
            let options = agent::ServeOptions::default();
            tokio::select! {
                _ = agent::serve(agent, near, &options) => {}
                _ = tokio::io::copy_bidirectional(&mut stream, &mut far) => {}
                () = ended.notified() => {}
            }
            if wrong == Wrong::Garbling {
                // Whether anybody reads it does not matter.
                let _ = stream.write_all(&[0xff; 64]).await;
                let _ = stream.read_u8().await;
            }
        });
    }
}

struct Faulty {
    wrong: Wrong,
    when: When,
    ended: Arc<Notify>,
}

impl Faulty {
    async fn answer(&self, kind: Kind, index: u32) -> Response {
        let now = self.when.kind == kind && (index > 0) == self.when.mid_body;
        match self.wrong {
            _ if !now => Response::allow(),
            Wrong::Lying => Response::block(7),
            Wrong::Slow => pending().await,
            Wrong::Crashing | Wrong::Garbling => {
                self.ended.notify_one();
                pending().await
            }
        }
    }
}

impl Agent for Faulty {
    fn name(&self) -> &str {
        "faulty"
    }

    fn request_headers(&self, _: RequestHeaders) -> impl Future<Output = Response> + Send + '_ {
        self.answer(Kind::RequestHeaders, 0)
    }

    fn request_body(&self, event: BodyChunk) -> impl Future<Output = Response> + Send + '_ {
        self.answer(Kind::RequestBody, event.index)
    }

    fn response_headers(&self, _: ResponseHeaders) -> impl Future<Output = Response> + Send + '_ {
        self.answer(Kind::ResponseHeaders, 0)
    }

    fn response_body(&self, event: BodyChunk) -> impl Future<Output = Response> + Send + '_ {
        self.answer(Kind::ResponseBody, event.index)
    }
}
