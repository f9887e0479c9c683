//! Plain HTTP/2: hyper over TLS 1.3, no session protocol.
//!
//! Tuned as hyper's documentation advises for throughput: `TCP_NODELAY`, windows above the default
//! 64 KiB (those of a node's QUIC tunnel, or a stated one) and a send buffer of 1 MiB. Frames stay at
//! 16 KiB: larger ones are gathered whole before they are read.
//! A request is `POST /echo`, or `POST /bulk` with a number as its body.

use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Either, Full};
use hyper::body::{Body, Frame, Incoming};
use hyper::client::conn::http2::SendRequest;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpListener,
};
use tokio_rustls::TlsConnector;

use super::{
    ReadyAddress, SubjectSetup, failed,
    pattern::{check_pattern, pattern},
    tls,
};
use crate::{BenchError, work::ConnectionStart};

const ALPN: &[u8] = b"h2";
const NO_EARLY: &str =
    "HTTP/2 clients and servers send no request as early data unless told to (RFC 8470)";
/// Unread bytes of one stream; those of a node.
const STREAM_WINDOW: u32 = 2 * 1024 * 1024;
/// Unread bytes of one connection, as a multiple of a stream's.
const STREAMS_PER_CONNECTION: u32 = 16;
const SEND_BUFFER: usize = 1024 * 1024;
const MAX_STREAMS: u32 = 4_096;

/// The server, as the loading program knows it.
#[derive(Clone)]
pub(crate) struct H2Target {
    target: tls::TlsTarget,
    window: u32,
}

/// One connection.
#[derive(Clone)]
pub(crate) struct H2Connection(SendRequest<Full<Bytes>>);

/// Serves until dropped.
pub(crate) async fn serve(options: &SubjectSetup) -> Result<ReadyAddress, BenchError> {
    let (acceptor, certificate) = tls::acceptor(ALPN)?;
    let window = options.window.unwrap_or(STREAM_WINDOW);
    if let Some(proxy) = options.through {
        tokio::spawn(super::proxy::behind(proxy, move |stream| {
            let acceptor = acceptor.clone();
            async move {
                if let Ok(stream) = acceptor.accept(stream).await {
                    serve_connection(stream, window).await;
                }
            }
        }));
        return Ok(ReadyAddress {
            address: proxy.to_string(),
            certificate,
            ..ReadyAddress::default()
        });
    }
    let listener = TcpListener::bind((options.listen, 0))
        .await
        .map_err(BenchError::io("binding"))?;
    let address = listener.local_addr().map_err(BenchError::io("binding"))?;
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let _ = stream.set_nodelay(true);
                if let Ok(stream) = acceptor.accept(stream).await {
                    serve_connection(stream, window).await;
                }
            });
        }
    });
    Ok(ReadyAddress {
        address: address.to_string(),
        certificate,
        ..ReadyAddress::default()
    })
}

async fn serve_connection(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    window: u32,
) {
    let mut builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
    builder
        .initial_stream_window_size(window)
        .initial_connection_window_size(window.saturating_mul(STREAMS_PER_CONNECTION))
        .max_send_buf_size(SEND_BUFFER)
        .max_concurrent_streams(MAX_STREAMS);
    let service = hyper::service::service_fn(answer);
    // A client that disconnects is expected.
    let _ = builder
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

async fn answer(
    request: Request<Incoming>,
) -> Result<Response<Either<Full<Bytes>, PatternBody>>, hyper::Error> {
    let bulk = request.uri().path() == "/bulk";
    let body = request.into_body().collect().await?.to_bytes();
    let body = if bulk {
        let count = std::str::from_utf8(&body)
            .ok()
            .and_then(|text| text.parse().ok());
        Either::Right(PatternBody(Box::new(pattern(count.unwrap_or(0)))))
    } else {
        Either::Left(Full::new(body))
    };
    Ok(Response::new(body))
}

/// A body that is made as it is sent.
struct PatternBody(Box<dyn Iterator<Item = Bytes> + Send>);

impl Body for PatternBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.0.next().map(|chunk| Ok(Frame::data(chunk))))
    }
}

impl H2Target {
    pub(crate) fn new(ready: &ReadyAddress, options: &SubjectSetup) -> Result<Self, BenchError> {
        Ok(Self {
            target: tls::TlsTarget::new(ready, ALPN)?,
            window: options.window.unwrap_or(STREAM_WINDOW),
        })
    }

    /// Prepares a connection as far as possible before it is timed.
    pub(crate) async fn prepare(&self, start: ConnectionStart) -> Result<TlsConnector, BenchError> {
        let tls = self.target.connector(start, NO_EARLY)?;
        if start == ConnectionStart::Resumed {
            // The TLS session ticket has arrived when an answer has.
            let link = self.connect(tls.clone()).await?;
            link.echo(Bytes::from_static(b"hello")).await?;
        }
        Ok(tls)
    }

    pub(crate) async fn connect(&self, tls: TlsConnector) -> Result<H2Connection, BenchError> {
        let stream = self.target.connect(&tls).await?;
        let mut builder = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
        builder
            .initial_stream_window_size(self.window)
            .initial_connection_window_size(self.window.saturating_mul(STREAMS_PER_CONNECTION))
            .max_send_buf_size(SEND_BUFFER)
            .max_concurrent_streams(MAX_STREAMS)
            .initial_max_send_streams(MAX_STREAMS as usize);
        let (send, connection) = builder
            .handshake(TokioIo::new(stream))
            .await
            .map_err(failed("the HTTP/2 handshake"))?;
        tokio::spawn(connection);
        Ok(H2Connection(send))
    }
}

impl H2Connection {
    async fn post(&self, path: &'static str, body: Bytes) -> Result<Incoming, BenchError> {
        let request = Request::post(path)
            .body(Full::new(body))
            .map_err(failed("the request"))?;
        let answer = self.0.clone().send_request(request).await;
        Ok(answer.map_err(failed("the request"))?.into_body())
    }

    pub(crate) async fn echo(&self, body: Bytes) -> Result<Bytes, BenchError> {
        let answer = self.post("/echo", body).await?;
        let body = answer
            .collect()
            .await
            .map_err(failed("reading the answer"))?;
        Ok(body.to_bytes())
    }

    pub(crate) async fn bulk(
        &self,
        bytes: u64,
        got: &super::StreamProgress,
    ) -> Result<(), BenchError> {
        let mut answer = self.post("/bulk", bytes.to_string().into()).await?;
        let mut at = 0;
        while let Some(frame) = answer.frame().await {
            if let Ok(chunk) = frame.map_err(failed("reading the answer"))?.into_data() {
                at = check_pattern(at, &chunk)?;
                got.set(at);
            }
        }
        Ok(())
    }
}
