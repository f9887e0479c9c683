//! Envoy asks agents through external processing: this is the gRPC service that it calls,
//! `envoy.service.ext_proc.v3.ExternalProcessor`.
//!
//! Envoy opens a stream for each HTTP request and sends the head, the body and the trailers of the request and then of
//! the response, as far as its `processing_mode` says. The stream's exchange is asked about each in the order
//! in which they come ([`call`]), and Envoy is told to go on, with changes, or to answer the client itself. All body
//! modes work but `GRPC`: `STREAMED`, `BUFFERED`, `BUFFERED_PARTIAL` as far as the whole body comes (it does where Envoy
//! says that it ends, or as many bytes come as its length says), and `FULL_DUPLEX_STREAMED`. Agents know no trailers:
//! these end a body that had no last chunk, and pass.
//!
//! Where agents want less than Envoy sends, the first answer says so (`mode_override`); Envoy heeds that where its
//! `allow_mode_override` is set.
//!
//! Nothing passes by accident as long as Envoy's `failure_mode_allow` is not set: a stream that fails, is refused or
//! gets no answer within `message_timeout` ends the request with 500 or 504. We never close a stream before Envoy
//! does but to end its request, since Envoy takes a clean end for consent to the rest.
//!
//! Bodies that stream are pipelined: where Envoy goes on without an answer, in `STREAMED` and `FULL_DUPLEX_STREAMED`, agents are
//! shown what comes while their verdicts on what came before are on the way. Answers keep the order of what they answer.
//!
//! A stream that Envoy resets drops its exchange, and agents are told. Work is done in the connection's task while Envoy
//! waits: nothing is spawned and nothing queued, and a body that comes faster than agents read it is held back by
//! HTTP/2's flow control.
//!
//! | what a peer can grow | bound | beyond it |
//! |---|---|---|
//! | streams on a connection | [`MAX_STREAMS`] | Envoy waits, or opens another connection |
//! | a message | [`MAX_MESSAGE`] | the stream fails, and with it the request |
//! | header fields | [`MAX_FIELDS`] | 431 |

pub mod call;
mod convert;
mod proto;
#[cfg(test)]
mod tests;

use std::{collections::VecDeque, pin::Pin, sync::Arc};

use futures_util::{FutureExt as _, Stream, StreamExt as _, stream};
use tokio::sync::oneshot;
use tonic::{Request, Response, Status, Streaming};

use self::{
    call::ExtProcRequest,
    proto::service::ext_proc::v3::{
        ProcessingRequest, ProcessingResponse,
        external_processor_server::{ExternalProcessor, ExternalProcessorServer},
    },
};
use crate::{front::UnseenBodyPolicy, guarded_io::GuardedIo, inspect::Inspector};

/// Requests at once on one connection from Envoy.
pub const MAX_STREAMS: u32 = 4096;

/// Bytes of one message: a buffered body and some.
pub const MAX_MESSAGE: usize = 16 << 20;

/// Header fields of a request or response; Envoy's own bound is 100 by default.
pub const MAX_FIELDS: usize = 1024;

/// Serves Envoy's external processing with the agents of an inspector.
#[derive(Clone)]
pub struct ExtProcServer {
    inspector: Arc<Inspector>,
    unseen: UnseenBodyPolicy,
}

impl ExtProcServer {
    /// The agents of an inspector; `unseen` is what becomes of a body that an agent wants and Envoy, as it is
    /// configured, does not send.
    #[must_use]
    pub fn new(inspector: Arc<Inspector>, unseen: impl Into<UnseenBodyPolicy>) -> Self {
        Self {
            inspector,
            unseen: unseen.into(),
        }
    }

    /// The gRPC service, for a server that has others too.
    #[must_use]
    pub fn service(self) -> ExternalProcessorServer<impl ExternalProcessor> {
        ExternalProcessorServer::new(self).max_decoding_message_size(MAX_MESSAGE)
    }

    /// Serves the connections that `incoming` gives, until it ends or `stop` is ready: then connections are told to end, and this
    /// returns when they have.
    ///
    /// # Errors
    ///
    /// That connections cannot be taken any more.
    ///
    /// # Cancel safety
    ///
    /// When the future is dropped every connection ends, and agents are told of what was under way.
    pub async fn serve_until<I, Io, E>(
        self,
        incoming: I,
        stop: impl Future<Output = ()>,
    ) -> Result<(), tonic::transport::Error>
    where
        I: Stream<Item = Result<Io, E>>,
        Io: tokio::io::AsyncRead
            + tokio::io::AsyncWrite
            + tonic::transport::server::Connected
            + Unpin
            + Send
            + 'static,
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let (here, gone) = oneshot::channel();
        let gone = gone.shared();
        let tied = incoming.map(|io| io.map(|io| GuardedIo::new(io, gone.clone())));
        let served = tonic::transport::Server::builder()
            .max_concurrent_streams(MAX_STREAMS)
            .add_service(self.service())
            .serve_with_incoming_shutdown(tied, stop)
            .await;
        drop::<oneshot::Sender<()>>(here);
        served
    }
}

/// What Envoy gets.
type ResponseStream = Pin<Box<dyn Stream<Item = Result<ProcessingResponse, Status>> + Send>>;

#[tonic::async_trait]
impl ExternalProcessor for ExtProcServer {
    type ProcessStream = ResponseStream;

    async fn process(
        &self,
        request: Request<Streaming<ProcessingRequest>>,
    ) -> Result<Response<ResponseStream>, Status> {
        let conversation = ProcessingStream {
            requests: request.into_inner(),
            call: ExtProcRequest::new(self.inspector.exchange(), self.unseen.now()),
            ready: VecDeque::new(),
            ended: false,
        };
        let answers = stream::unfold(conversation, |mut conversation| async move {
            let answer = conversation.next().await.transpose()?;
            Some((answer, conversation))
        });
        Ok(Response::new(Box::pin(answers)))
    }
}

/// One stream. It lives in the answers, so that whoever drops these ends all of it.
struct ProcessingStream {
    requests: Streaming<ProcessingRequest>,
    call: ExtProcRequest,
    ready: VecDeque<ProcessingResponse>,
    /// Envoy says no more.
    ended: bool,
}

impl ProcessingStream {
    async fn next(&mut self) -> Result<Option<ProcessingResponse>, Status> {
        loop {
            if let Some(answer) = self.ready.pop_front() {
                return Ok(Some(answer));
            }
            if self.call.is_over() || (self.ended && !self.call.is_under_way()) {
                break;
            }
            if self.call.has_responded() {
                // Before Envoy resets the stream, which it does once it has the last answer.
                self.call.complete().await;
            }
            let request = tokio::select! {
                biased;
                shown = self.call.shown(), if self.call.is_under_way() => {
                    self.ready = shown;
                    continue;
                }
                request = self.requests.message(), if !self.ended && self.call.has_room() => request?,
            };
            match request {
                Some(request) => self.ready = self.call.told(request).await?,
                None => self.ended = true,
            }
        }
        self.call.complete().await;
        Ok(None)
    }
}
