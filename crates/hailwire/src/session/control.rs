//! The control stream: greetings, liveness, offers and GOING_AWAY.
//!
//! The dialling side opens it as its first stream with `HELLO`; the accepting side answers `HELLO`
//! on it. Both then send `PING`, `PONG`, `OFFERS` and `GOING_AWAY` as they need. Peers whose lists
//! of major versions share none part with an error that names both.
//!
//! Reading and writing do not wait for each other, so that two sides with long lists do not block each
//! other; only a far side that pings and does not read the answers is read no further.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use hailwire_wire::{
    Code, Priority, Status,
    frame::{self, FrameKind},
    header::{self, ADDITIONAL_CONNECTIONS, Hello, VERSION},
    limits,
    offers::OfferPage,
};

use super::{FrameReader, Session, StreamDispatcher, outgoing::ControlQueue};
use crate::carrier::SendStream;

/// Longest payload of a PING.
const MAX_PING: usize = 64;

/// The control stream's task.
#[derive(Debug)]
pub(super) struct ControlTask<D> {
    session: Session,
    hello: Hello,
    dispatch: Arc<D>,
}

impl<D: StreamDispatcher> ControlTask<D> {
    pub(super) fn new(session: Session, hello: Hello, dispatch: Arc<D>) -> Self {
        Self {
            session,
            hello,
            dispatch,
        }
    }

    /// The dialling side: greets first.
    pub(super) async fn dial(self) {
        let Ok((mut send, recv)) = self.session.connection().open(Priority::Critical).await else {
            return;
        };
        if self.greet(&mut send).await.is_some() {
            self.run(send, FrameReader::new(recv)).await;
        }
    }

    /// The accepting side: the far side's greeting has arrived.
    pub(super) async fn answer(self, mut send: SendStream, reader: FrameReader, hello: Bytes) {
        send.set_priority(Priority::Critical);
        let greeted = self.greet(&mut send).await;
        let heard = self.handle_hello(&hello);
        // It is a slice of the whole batch in which it came, which would stay for as long as the session.
        drop(hello);
        if heard.is_some() && greeted.is_some() {
            self.run(send, reader).await;
        }
    }

    async fn greet(&self, send: &mut SendStream) -> Option<()> {
        write(send, FrameKind::HELLO, &header::encode(&self.hello)).await
    }

    async fn run(self, send: SendStream, reader: FrameReader) {
        tokio::select! {
            () = self.read(reader) => {}
            () = say(self.outgoing(), send) => {}
        }
        self.outgoing().end();
        // Without its control stream a session is over; closing twice does nothing.
        self.session.close(Code::Ok, "the control stream ended");
    }

    async fn read(&self, mut reader: FrameReader) {
        loop {
            let go_on = match reader.next_frame().await {
                Ok(Some((kind, payload))) => self.handle_frame(kind, payload).await,
                Ok(None) => None,
                Err(status) => self.fail(status.code, &status.message),
            };
            if go_on.is_none() {
                return;
            }
        }
    }

    async fn handle_frame(&self, kind: FrameKind, payload: Bytes) -> Option<()> {
        match kind {
            FrameKind::HELLO => self.handle_hello(&payload),
            FrameKind::PING if payload.len() <= MAX_PING => {
                // A copy: what was read is shared with all that came with it.
                let payload = Bytes::copy_from_slice(&payload);
                self.outgoing().pong(payload).await;
                Some(())
            }
            FrameKind::PING => self.fail(Code::InvalidArgument, "a ping of more than 64 bytes"),
            FrameKind::PONG => {
                self.outgoing().answered(&payload);
                Some(())
            }
            FrameKind::OFFERS | FrameKind::MORE_OFFERS => self.handle_offers(kind, &payload),
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

    fn handle_hello(&self, payload: &[u8]) -> Option<()> {
        let mut hello: Hello = match header::decode(payload) {
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
        keep_little(&mut hello);
        self.session
            .shared
            .hello
            .send_replace(Some(Arc::new(hello)));
        Some(())
    }

    /// A page is handed on as it is; what it says is read where lists are entered, and not each of them.
    fn handle_offers(&self, kind: FrameKind, payload: &[u8]) -> Option<()> {
        match OfferPage::parse(kind, Bytes::copy_from_slice(payload)) {
            Ok(page) => self.dispatch.offers(&self.session, page),
            Err(error) => return self.fail(Code::InvalidArgument, &error.to_string()),
        }
        self.session
            .shared
            .offered
            .send_if_modified(|offered| !std::mem::replace(offered, true));
        Some(())
    }

    fn outgoing(&self) -> &ControlQueue {
        &self.session.shared.outgoing
    }

    fn fail(&self, code: Code, reason: &str) -> Option<()> {
        let Status { code, message, .. } = Status::new(code, reason);
        self.session.close(code, &message);
        None
    }
}

/// Leaves of a greeting what is looked at later: a greeting may be as large as a header, and one is kept for
/// every session.
fn keep_little(hello: &mut Hello) {
    hello.versions = vec![VERSION];
    hello.software = String::new();
    hello
        .features
        .retain(|feature| feature == ADDITIONAL_CONNECTIONS);
    hello.features.truncate(1);
    hello.features.shrink_to_fit();
    if hello.name.len() > limits::MAX_NAME {
        hello.name = String::new();
    }
}

/// Writes what there is to say until the stream ends.
async fn say(outgoing: &ControlQueue, mut send: SendStream) {
    loop {
        let (kind, payload) = outgoing.next().await;
        if write(&mut send, kind, &payload).await.is_none() {
            return;
        }
    }
}

async fn write(send: &mut SendStream, kind: FrameKind, payload: &[u8]) -> Option<()> {
    let mut out = BytesMut::new();
    frame::put(&mut out, kind, payload);
    send.write(out.freeze()).await.ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_greeting_as_large_as_a_header_little_is_kept() {
        let mut features = vec![String::new(); 30_000];
        features.extend([
            ADDITIONAL_CONNECTIONS.to_owned(),
            ADDITIONAL_CONNECTIONS.to_owned(),
        ]);
        let mut hello = Hello {
            versions: vec![9, VERSION],
            name: "n".repeat(limits::MAX_NAME + 1),
            software: "s".repeat(10_000),
            instance: 7,
            features,
            additional: true,
        };
        keep_little(&mut hello);
        let kept = Hello {
            versions: vec![VERSION],
            instance: 7,
            features: vec![ADDITIONAL_CONNECTIONS.to_owned()],
            additional: true,
            ..Hello::default()
        };
        assert_eq!(hello, kept);
        assert!(hello.features.capacity() < 8);
    }
}
