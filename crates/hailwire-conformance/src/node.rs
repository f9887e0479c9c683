//! The node that a case plays, once the peer is attached: calls of the peer's agent, and what the peer calls.

use bytes::Bytes;
use hailwire_wire::{
    CallHeader, Code, Priority, Status,
    frame::FrameKind,
    header::{self, AnswerHead, Hello, RegisterHeader},
};
use serde_json::Value;

use crate::{
    answer::{Answered, canonical},
    failure::{Failure, Outcome, same},
    link::{DirectionEnd, Link, StreamEvent},
};

/// The name of the peer's agent.
pub(crate) const PEER: &str = "peer";

/// A connection on which the peer has registered its agent.
#[derive(Debug)]
pub(crate) struct PlayedNode {
    pub(crate) link: Link,
    pub(crate) control: u64,
    pub(crate) registration: u64,
    pub(crate) hello: Hello,
    pub(crate) register: RegisterHeader,
}

/// A stream that the peer opened.
#[derive(Clone, Debug)]
pub(crate) struct Opened {
    pub(crate) id: u64,
    pub(crate) kind: FrameKind,
    pub(crate) payload: Bytes,
}

/// A call that the peer made.
#[derive(Clone, Debug)]
pub(crate) struct PeerCall {
    pub(crate) id: u64,
    pub(crate) kind: FrameKind,
    pub(crate) header: CallHeader,
    pub(crate) payload: Bytes,
}

/// A call that a case had the peer make: the one of its method `call`, and what came of it.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    /// The node's call, whose answer tells what came of the peer's.
    pub(crate) outer: u64,
    /// The peer's call.
    pub(crate) made: PeerCall,
}

/// A header of a call to a method of the peer's agent.
pub(crate) fn to_peer(method: &str) -> CallHeader {
    CallHeader {
        to: PEER.to_owned(),
        method: method.to_owned(),
        ..CallHeader::default()
    }
}

impl Link {
    /// The next stream that the peer opens, with its opening.
    pub(crate) async fn opened(&mut self) -> Outcome<Opened> {
        let id = self.accept().await?;
        let (kind, payload) = match self.event(id).await? {
            StreamEvent::Frame(kind, payload) => (kind, payload),
            other => return Err(Failure::new("an opening", format_args!("{other:?}"))),
        };
        match kind.is_opening() {
            true => Ok(Opened { id, kind, payload }),
            false => Err(Failure::new("an opening", format_args!("{kind:?}"))),
        }
    }

    /// Accepts the preface and the greeting, and answers with the node's own.
    pub(crate) async fn greet(&mut self, hello: &Hello) -> Outcome<(u64, Hello)> {
        self.preface();
        self.greeted().await?;
        let (control, theirs) = self.hello().await?;
        self.put(control, FrameKind::HELLO, &header::encode(hello));
        Ok((control, theirs))
    }

    /// Reads the peer's HELLO, which opens its first stream.
    pub(crate) async fn hello(&mut self) -> Outcome<(u64, Hello)> {
        self.awaits("HELLO on the first stream");
        let opened = self.opened().await?;
        same("the first opening", FrameKind::HELLO, opened.kind)?;
        let hello: Hello = canonical("HELLO", &opened.payload)?;
        if !hello.versions.contains(&header::VERSION) {
            let came = format_args!("{:?}", hello.versions);
            return Err(Failure::new("HELLO with version 1", came));
        }
        Ok((opened.id, hello))
    }

    /// Reads the registration of an agent.
    pub(crate) async fn registration(&mut self) -> Outcome<(u64, RegisterHeader)> {
        self.awaits("REGISTER");
        let opened = self.opened().await?;
        same("the opening", FrameKind::REGISTER, opened.kind)?;
        Ok((opened.id, canonical("REGISTER", &opened.payload)?))
    }

    /// Accepts the peer's agent.
    pub(crate) async fn accept_peer(self, hello: &Hello) -> Outcome<PlayedNode> {
        let mut link = self;
        let (control, hello) = link.greet(hello).await?;
        let (registration, register) = link.registration().await?;
        same("the agent's name", PEER, register.name.as_str())?;
        link.put(
            registration,
            FrameKind::HEAD,
            &header::encode(&AnswerHead::default()),
        );
        Ok(PlayedNode {
            link,
            control,
            registration,
            hello,
            register,
        })
    }
}

/// What the node says of itself.
pub(crate) fn node_hello() -> Hello {
    Hello {
        versions: vec![header::VERSION],
        name: "conformance".to_owned(),
        software: concat!("hail-conformance/", env!("CARGO_PKG_VERSION")).to_owned(),
        ..Hello::default()
    }
}

impl PlayedNode {
    /// Opens a call, send or stream toward the peer.
    pub(crate) async fn open(&mut self, kind: FrameKind, header: &CallHeader) -> Outcome<u64> {
        let id = self.link.open(header.priority).await?;
        self.link.put(id, kind, &header::encode(header));
        Ok(id)
    }

    /// Opens a stream whose first frame is any bytes.
    pub(crate) async fn open_with(&mut self, kind: FrameKind, payload: &[u8]) -> Outcome<u64> {
        let id = self.link.open(Priority::Medium).await?;
        self.link.put(id, kind, payload);
        Ok(id)
    }

    /// Begins a call of a method, whose body is whole.
    pub(crate) async fn begin(&mut self, method: &str, body: impl Into<Vec<u8>>) -> Outcome<u64> {
        self.begin_as(FrameKind::CALL, &to_peer(method), body).await
    }

    /// Begins a call, send or stream, whose body is whole.
    pub(crate) async fn begin_as(
        &mut self,
        kind: FrameKind,
        header: &CallHeader,
        body: impl Into<Vec<u8>>,
    ) -> Outcome<u64> {
        let id = self.open(kind, header).await?;
        self.data(id, &body.into());
        self.link.finish(id);
        Ok(id)
    }

    /// Queues bytes of a body.
    pub(crate) fn data(&mut self, id: u64, bytes: &[u8]) {
        for chunk in bytes.chunks(1 << 20) {
            self.link.put(id, FrameKind::DATA, chunk);
        }
    }

    /// Reads an answer to its end.
    pub(crate) async fn answer(&mut self, id: u64, of: &str) -> Outcome<Answered> {
        self.link
            .awaits(format_args!("the end of the answer of {of}"));
        let answered = self.link.answer(id).await?;
        match answered.heads {
            0 | 1 => Ok(answered),
            heads => Err(Failure::rule(format_args!("{heads} HEADs in one answer"))),
        }
    }

    /// Calls a method and reads its whole answer.
    pub(crate) async fn call(
        &mut self,
        method: &str,
        body: impl Into<Vec<u8>>,
    ) -> Outcome<Answered> {
        let id = self.begin(method, body).await?;
        self.answer(id, method).await
    }

    /// Calls a method whose answer is JSON.
    pub(crate) async fn json(&mut self, method: &str, body: impl Into<Vec<u8>>) -> Outcome<Value> {
        let answered = self.call(method, body).await;
        answered
            .and_then(|answered| json_of(&answered))
            .map_err(|failure| failure.within(method))
    }

    /// Calls `echo` to see that all goes on.
    pub(crate) async fn still_works(&mut self) -> Outcome {
        let answered = self.call("echo", "still here").await;
        let body = answered.and_then(|answered| Ok(answered.success()?.clone()));
        let body = body.map_err(|failure| failure.within("a call afterwards"))?;
        same("a call afterwards to echo", "still here".as_bytes(), &body)?;
        // What it has sent behind the answer has come by then.
        self.link.round_trip().await
    }

    /// Has the peer make a call, and waits for its opening.
    pub(crate) async fn ask(&mut self, call: &Value) -> Outcome<Asked> {
        let outer = self.begin("call", call.to_string()).await?;
        let made = self.peer_call(Some(outer)).await?;
        Ok(Asked { outer, made })
    }

    /// The next call that the peer makes; fails where the call that should have made it ends.
    pub(crate) async fn peer_call(&mut self, outer: Option<u64>) -> Outcome<PeerCall> {
        self.link.awaits("a stream that the peer opens");
        let id = loop {
            if let Some(id) = self.link.poll_accept() {
                break id;
            }
            if let Some(outer) = outer
                && self.link.stream(outer)?.end().is_some()
            {
                let answered = self.link.answer(outer).await?;
                let text = String::from_utf8_lossy(&answered.body).into_owned();
                let came = format_args!("the end of `call` instead: {:?} {text}", answered.end);
                return Err(Failure::new("a stream that the peer opens", came));
            }
            self.link.pump().await?;
        };
        self.link.awaits("the opening of the peer's stream");
        let (kind, payload) = match self.link.event(id).await? {
            StreamEvent::Frame(kind, payload) => (kind, payload),
            other => return Err(Failure::new("an opening", format_args!("{other:?}"))),
        };
        let header: CallHeader = canonical("the call header", &payload)?;
        Ok(PeerCall {
            id,
            kind,
            header,
            payload,
        })
    }

    /// Reads a body of the peer's to its end.
    pub(crate) async fn body(&mut self, id: u64) -> Outcome<Vec<u8>> {
        self.link.awaits("the end of the peer's body");
        let mut body = Vec::new();
        loop {
            match self.link.event(id).await? {
                StreamEvent::Data(bytes) => body.extend_from_slice(&bytes),
                StreamEvent::Finished => return Ok(body),
                other => return Err(Failure::new("DATA or FIN", format_args!("{other:?}"))),
            }
        }
    }

    /// Ends an answer.
    pub(crate) fn end(&mut self, id: u64, status: &Status) {
        let payload = match status.is_ok() {
            true => Vec::new(),
            false => header::encode(status),
        };
        self.link.put(id, FrameKind::END, &payload);
        self.link.finish(id);
    }

    /// Answers with a body and `ok`.
    pub(crate) fn answer_with(&mut self, id: u64, body: &[u8]) {
        self.data(id, body);
        self.end(id, &Status::ok());
    }

    /// What came of a call that the peer made.
    pub(crate) async fn outcome(&mut self, asked: &Asked) -> Outcome<Value> {
        let answered = self.answer(asked.outer, "call").await?;
        json_of(&answered).map_err(|failure| failure.within("call"))
    }

    /// What came of a call that the peer made, and its code.
    pub(crate) async fn outcome_code(&mut self, asked: &Asked, code: Code) -> Outcome<Value> {
        let outcome = self.outcome(asked).await?;
        code_is(&outcome, code)?;
        Ok(outcome)
    }

    /// Waits until the peer has given a call up: STOP with code 1, and RESET with it where it had not finished.
    pub(crate) async fn given_up(&mut self, id: u64) -> Outcome {
        self.link.awaits("STOP of the answer, with cancelled");
        same(
            "the code of STOP",
            Code::Cancelled,
            self.link.stop_of(id).await?,
        )?;
        self.link
            .awaits("the end of the direction of the caller that gave up");
        match self.link.direction_end(id).await? {
            DirectionEnd::Finished => Ok(()),
            DirectionEnd::Reset(code) => same("the code of RESET", Code::Cancelled, code),
        }
    }
}

/// Fails unless what came of a call has this code.
pub(crate) fn code_is(outcome: &Value, code: Code) -> Outcome {
    let came = outcome.get("code").and_then(Value::as_u64);
    if came == Some(u64::from(code.number())) {
        return Ok(());
    }
    let name = came.map_or("no code", |code| Code::from_number(code).name());
    let message = outcome.get("message").and_then(Value::as_str);
    Err(Failure::new(
        format_args!("the call to end with {code}"),
        format_args!("{name} ({})", message.unwrap_or_default()),
    ))
}

/// The JSON of an answer that ended well.
pub(crate) fn json_of(answered: &Answered) -> Outcome<Value> {
    let body = answered.success()?;
    serde_json::from_slice(body).map_err(|error| {
        let text = String::from_utf8_lossy(body);
        Failure::new("JSON", format_args!("`{text}` ({error})"))
    })
}
