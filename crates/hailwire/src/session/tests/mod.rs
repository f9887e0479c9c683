//! Sessions whose far side the test plays by hand, frame for frame, over a pipe in memory.

mod answers;
mod control;
mod opening;
mod served;
mod spliced;

use hailwire_wire::{frame::FrameEvent, header::AnswerHead};
use tokio::sync::mpsc;

use super::*;
use crate::{
    agent::{Caller, Request, RequestKind, Response, SharedHandler},
    carrier::{ReadError, mux::MuxConnection},
};

/// Longer than anything takes that is waited for, in virtual time or outside.
const PATIENCE: Duration = Duration::from_secs(120);

/// What a future gives, which is about to come.
async fn patiently<F: Future>(future: F) -> F::Output {
    let waited = tokio::time::timeout(PATIENCE, future).await;
    waited.expect("what is waited for comes")
}

/// Frames, one after another.
pub(crate) fn frames(frames: &[(FrameKind, &[u8])]) -> Bytes {
    let mut bytes = BytesMut::new();
    for (kind, payload) in frames {
        frame::put(&mut bytes, *kind, payload);
    }
    bytes.freeze()
}

/// A pair of connections.
pub(crate) fn connected() -> (CarrierConnection, CarrierConnection) {
    let (near, far) = MuxConnection::pair();
    (CarrierConnection::Mux(near), CarrierConnection::Mux(far))
}

/// What a session dispatches to here: a handler, and a list of what was offered.
struct TestDispatcher {
    handler: SharedHandler,
    pages: mpsc::UnboundedSender<u64>,
}

impl StreamDispatcher for TestDispatcher {
    async fn dispatch(self: Arc<Self>, _: Session, opening: OpenedStream) {
        let kind = crate::node::request_kind(opening.kind);
        let (header, send, reader) = opening.into_call();
        let header = match header {
            Ok(header) => header,
            Err(status) => return refuse(send, reader, &status).await,
        };
        serve(kind, header, Caller::Local, send, reader, &self.handler).await;
    }

    fn offers(&self, _: &Session, page: OfferPage) {
        let _ = self.pages.send(page.number());
    }
}

/// A session, and its far side by hand.
struct TestSession {
    session: Session,
    peer: RawPeer,
    pages: mpsc::UnboundedReceiver<u64>,
}

impl TestSession {
    /// One that the far side dialled, which has not greeted.
    fn accepted(account: Option<Arc<PeerAccount>>) -> Self {
        let echo = |request: Request| async move { Ok(Response::new(request.into_body())) };
        Self::new(false, account, Arc::new(echo))
    }

    fn new(dialled: bool, account: Option<Arc<PeerAccount>>, handler: SharedHandler) -> Self {
        let (near, far) = match dialled {
            true => connected(),
            false => {
                let (far, near) = connected();
                (near, far)
            }
        };
        let (tell, pages) = mpsc::unbounded_channel();
        let dispatcher = Arc::new(TestDispatcher {
            handler,
            pages: tell,
        });
        let hello = Hello {
            versions: vec![header::VERSION],
            ..Hello::default()
        };
        Self {
            session: Session::start_charged(near, dialled, hello, dispatcher, account),
            peer: RawPeer(far),
            pages,
        }
    }

    /// One that the far side dialled and greeted, with its control stream.
    async fn greeted(account: Option<Arc<PeerAccount>>) -> (Self, ScriptedStream) {
        let test = Self::accepted(account);
        let control = test.peer.greet().await;
        test.session.greeted().await.unwrap();
        (test, control)
    }
}

impl TestSession {
    /// A call of this side to `echo`.
    async fn call(&self, body: Body) -> Result<ExpectedAnswer, Status> {
        self.session.open(FrameKind::CALL, &to("echo"), body).await
    }

    /// A call that this side passes on.
    async fn relay(&self, header: &CallHeader) -> Result<(), Status> {
        let stream = self.session.open_stream(header.priority).await?;
        stream.relay(FrameKind::CALL, header).await.map(drop)
    }
}

/// The far side of a session.
pub(crate) struct RawPeer(pub(crate) CarrierConnection);

impl RawPeer {
    /// Opens a stream and writes to it.
    pub(crate) async fn open(&self, bytes: Bytes) -> ScriptedStream {
        let (send, recv) = self.0.open(Priority::Medium).await.unwrap();
        let mut stream = ScriptedStream::new(send, recv);
        if !bytes.is_empty() {
            stream.send.write(bytes).await.unwrap();
        }
        stream
    }

    pub(crate) async fn accept(&self) -> ScriptedStream {
        let (send, recv) = patiently(self.0.accept()).await.unwrap();
        ScriptedStream::new(send, recv)
    }

    /// Greets, and reads the greeting that comes back.
    pub(crate) async fn greet(&self) -> ScriptedStream {
        let hello = Hello {
            versions: vec![header::VERSION],
            name: "far".to_owned(),
            ..Hello::default()
        };
        let greeting = frames(&[(FrameKind::HELLO, &header::encode(&hello))]);
        let mut control = self.open(greeting).await;
        assert_eq!(control.frame().await.unwrap().0, FrameKind::HELLO);
        control
    }

    /// A call without a body.
    pub(crate) async fn call(&self, header: &CallHeader) -> ScriptedStream {
        let head = frames(&[(FrameKind::CALL, &header::encode_call(header))]);
        let mut call = self.open(head).await;
        call.send.finish();
        call
    }

    /// The code and reason with which the session closed the connection.
    pub(crate) async fn closed(&self) -> (Code, String) {
        match patiently(self.0.closed()).await {
            ConnectionError::Closed { code, reason } => (code, reason),
            other => panic!("it was not closed by the far side: {other}"),
        }
    }
}

/// A stream that is read and written frame by frame.
pub(crate) struct ScriptedStream {
    pub(crate) send: SendStream,
    pub(crate) reader: FrameReader,
}

impl ScriptedStream {
    pub(crate) fn new(send: SendStream, recv: RecvStream) -> Self {
        let reader = FrameReader::new(recv);
        Self { send, reader }
    }

    pub(crate) async fn write(&mut self, written: &[(FrameKind, &[u8])]) {
        self.send.write(frames(written)).await.unwrap();
    }

    /// The next frame; body bytes are one, too, as they come.
    pub(crate) async fn frame(&mut self) -> Option<(FrameKind, Bytes)> {
        match patiently(self.reader.next()).await.unwrap()? {
            FrameEvent::Frame(kind, payload) => Some((kind, payload)),
            FrameEvent::Data(bytes) => Some((FrameKind::DATA, bytes)),
        }
    }

    /// All of the body up to the end, and how that ended.
    pub(crate) async fn answer(&mut self) -> (Bytes, Status) {
        let mut body = BytesMut::new();
        loop {
            match self.frame().await.expect("an end") {
                (FrameKind::DATA, bytes) => body.extend_from_slice(&bytes),
                (FrameKind::END, payload) if payload.is_empty() => {
                    return (body.freeze(), Status::ok());
                }
                (FrameKind::END, payload) => {
                    return (body.freeze(), header::decode(&payload).unwrap());
                }
                _ => {}
            }
        }
    }

    pub(crate) async fn status(&mut self) -> Status {
        self.answer().await.1
    }

    /// The code with which the other direction was reset, without a frame before.
    pub(crate) async fn reset(self) -> Code {
        let (rest, mut recv) = self.reader.into_parts();
        assert!(rest.is_empty(), "{rest:?}");
        match patiently(recv.read(1)).await {
            Err(ReadError::Reset(code)) => code,
            other => panic!("it was not reset: {other:?}"),
        }
    }
}

/// Lets the other tasks of this thread run until it is so.
pub(crate) async fn settled(is_so: impl Fn() -> bool) {
    for _ in 0..1000 {
        if is_so() {
            return;
        }
        tokio::task::yield_now().await;
    }
    panic!("nobody is about to make it so");
}

pub(crate) fn to(agent: &str) -> CallHeader {
    CallHeader {
        to: agent.to_owned(),
        ..CallHeader::default()
    }
}
