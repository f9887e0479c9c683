//! The control stream: greetings, liveness, offers and the farewell.
//!
//! The dialling side opens it as its first stream with `HELLO`; the accepting side answers `HELLO`
//! on it. Both then send `PING`, `PONG`, `OFFERS` and `GOING_AWAY` as they need. Peers whose lists
//! of major versions share none part with an error that names both.

use std::{collections::HashMap, sync::Arc};

use bytes::{Bytes, BytesMut};
use hailwire_wire::{
    Code, Priority, Status,
    frame::{self, FrameKind},
    header::{self, GoingAway, Hello, Offers, VERSION},
    limits,
    record::check_offer,
};
use tokio::sync::{mpsc, oneshot};

use super::{FrameReader, Session};
use crate::carrier::SendStream;

/// Control frames that may wait to be written; more are dropped (pings) or replaced (offers).
const QUEUE: usize = 64;

/// Longest payload of a PING.
const MAX_PING: usize = 64;

/// Hands control frames to the task that writes them.
#[derive(Debug)]
pub(super) struct Sender(mpsc::Sender<Outgoing>);

#[derive(Debug)]
pub(super) enum Outgoing {
    Ping(oneshot::Sender<()>),
    Offers(Bytes),
    GoingAway(Bytes),
}

pub(super) fn channel() -> (Sender, mpsc::Receiver<Outgoing>) {
    let (sender, receiver) = mpsc::channel(QUEUE);
    (Sender(sender), receiver)
}

impl Sender {
    /// Sends a PING; the receiver resolves when its PONG arrives and fails if it never will.
    pub(super) fn ping(&self) -> oneshot::Receiver<()> {
        let (done, answered) = oneshot::channel();
        // With a full queue the ping is dropped, and with it `done`: the receiver fails.
        let _ = self.0.try_send(Outgoing::Ping(done));
        answered
    }

    pub(super) fn offers(&self, payload: Bytes) {
        let _ = self.0.try_send(Outgoing::Offers(payload));
    }

    pub(super) fn going_away(&self, reason: &str) {
        let payload = header::encode(&GoingAway {
            reason: reason.to_owned(),
        });
        let _ = self.0.try_send(Outgoing::GoingAway(payload.into()));
    }
}

/// The control stream's task.
#[derive(Debug)]
pub(super) struct Control {
    session: Session,
    hello: Hello,
    queue: mpsc::Receiver<Outgoing>,
    /// Pings not yet answered, by the number in their payload.
    pings: HashMap<u64, oneshot::Sender<()>>,
    next_ping: u64,
}

impl Control {
    pub(super) fn new(session: Session, hello: Hello, queue: mpsc::Receiver<Outgoing>) -> Self {
        Self {
            session,
            hello,
            queue,
            pings: HashMap::new(),
            next_ping: 0,
        }
    }

    /// The dialling side: greets first.
    pub(super) async fn dial(mut self) {
        let Ok((mut send, recv)) = self.session.connection().open(Priority::Critical).await else {
            return;
        };
        if self.greet(&mut send).await.is_some() {
            self.run(send, FrameReader::new(recv)).await;
        }
    }

    /// The accepting side: the far side's greeting has arrived.
    pub(super) async fn answer(mut self, mut send: SendStream, reader: FrameReader, hello: Bytes) {
        send.set_priority(Priority::Critical);
        let greeted = self.greet(&mut send).await;
        if self.heard_hello(&hello).is_some() && greeted.is_some() {
            self.run(send, reader).await;
        }
    }

    async fn greet(&mut self, send: &mut SendStream) -> Option<()> {
        write(send, FrameKind::HELLO, &header::encode(&self.hello)).await
    }

    async fn run(mut self, mut send: SendStream, mut reader: FrameReader) {
        loop {
            let go_on = tokio::select! {
                frame = reader.next_frame() => match frame {
                    Ok(Some((kind, payload))) => self.heard(kind, payload, &mut send).await,
                    Ok(None) => None,
                    Err(status) => self.fail(status.code, &status.message),
                },
                Some(outgoing) = self.queue.recv() => self.say(outgoing, &mut send).await,
            };
            if go_on.is_none() {
                // Without its control stream a session is over; closing twice does nothing.
                return self.session.close(Code::Ok, "the control stream ended");
            }
        }
    }

    async fn heard(
        &mut self,
        kind: FrameKind,
        payload: Bytes,
        send: &mut SendStream,
    ) -> Option<()> {
        match kind {
            FrameKind::HELLO => self.heard_hello(&payload),
            FrameKind::PING if payload.len() <= MAX_PING => {
                write(send, FrameKind::PONG, &payload).await
            }
            FrameKind::PING => self.fail(Code::InvalidArgument, "a ping of more than 64 bytes"),
            FrameKind::PONG => {
                let number = payload.as_ref().try_into().map(u64::from_be_bytes);
                if let Some(done) = number.ok().and_then(|number| self.pings.remove(&number)) {
                    // Whoever asked may have stopped waiting.
                    let _ = done.send(());
                }
                Some(())
            }
            FrameKind::OFFERS => self.heard_offers(&payload),
            FrameKind::GOING_AWAY => {
                self.session
                    .shared
                    .peer_going_away
                    .store(true, std::sync::atomic::Ordering::Relaxed);
                Some(())
            }
            // A frame that belongs to other streams, or to a newer version.
            _ => Some(()),
        }
    }

    fn heard_hello(&mut self, payload: &[u8]) -> Option<()> {
        let hello: Hello = match header::decode(payload) {
            Ok(hello) => hello,
            Err(error) => return self.fail(Code::InvalidArgument, &error.to_string()),
        };
        if !hello.versions.contains(&VERSION) {
            let reason = format!(
                "no common protocol version: the peer speaks {:?}, this side speaks {:?}",
                hello.versions, self.hello.versions
            );
            return self.fail(Code::FailedPrecondition, &reason);
        }
        self.session
            .shared
            .hello
            .send_replace(Some(Arc::new(hello)));
        Some(())
    }

    fn heard_offers(&mut self, payload: &[u8]) -> Option<()> {
        let offers: Offers = match header::decode(payload) {
            Ok(offers) => offers,
            Err(error) => return self.fail(Code::InvalidArgument, &error.to_string()),
        };
        if offers.agents.len() > limits::MAX_AGENTS_PER_NODE {
            return self.fail(Code::InvalidArgument, "an offer of more than 1024 agents");
        }
        if let Err(bound) = offers.agents.iter().try_for_each(check_offer) {
            let reason = format!("an offer passes its bound: {bound}");
            return self.fail(Code::InvalidArgument, &reason);
        }
        self.session
            .shared
            .offers
            .send_replace(Some(Arc::new(offers)));
        Some(())
    }

    async fn say(&mut self, outgoing: Outgoing, send: &mut SendStream) -> Option<()> {
        match outgoing {
            Outgoing::Ping(done) => {
                self.pings.retain(|_, waiting| !waiting.is_closed());
                let number = self.next_ping;
                self.next_ping += 1;
                self.pings.insert(number, done);
                write(send, FrameKind::PING, &number.to_be_bytes()).await
            }
            Outgoing::Offers(payload) => write(send, FrameKind::OFFERS, &payload).await,
            Outgoing::GoingAway(payload) => write(send, FrameKind::GOING_AWAY, &payload).await,
        }
    }

    fn fail(&self, code: Code, reason: &str) -> Option<()> {
        let Status { code, message, .. } = Status::new(code, reason);
        self.session.close(code, &message);
        None
    }
}

async fn write(send: &mut SendStream, kind: FrameKind, payload: &[u8]) -> Option<()> {
    let mut out = BytesMut::new();
    frame::put(&mut out, kind, payload);
    send.write(out.freeze()).await.ok()
}
