//! Plain WebSocket: tungstenite over TLS 1.3, binary messages, no multiplexer.
//!
//! Messages of one connection are answered in order, so that many can be in flight: each side writes
//! all it has before it flushes. Read and write buffers are 4 KiB, which is what keeps a thousand
//! connections small. The first byte says what is requested: 0 an echo, 1 a stream of as many bytes as the
//! eight bytes behind it say.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError},
};

use bytes::Bytes;
use futures_util::{FutureExt, SinkExt, StreamExt};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::mpsc,
};
use tokio_rustls::TlsConnector;
use tokio_tungstenite::{
    accept_async_with_config, client_async_with_config,
    tungstenite::{Message, protocol::WebSocketConfig},
};

use super::{
    ReadyAddress, SubjectSetup, failed,
    pattern::{check_pattern, pattern},
    tls,
};
use crate::{BenchError, work::ConnectionStart};

const ALPN: &[u8] = b"http/1.1";
const NO_EARLY: &str =
    "a WebSocket begins with an upgrade that has to be answered before a message";
const BUFFER: usize = 4 * 1024;
/// Messages that may wait to be written on one connection.
const REQUEST_QUEUE: usize = 1_024;
const ECHO: u8 = 0;
const BULK: u8 = 1;

fn config() -> WebSocketConfig {
    WebSocketConfig::default()
        .read_buffer_size(BUFFER)
        .write_buffer_size(BUFFER)
        .max_write_buffer_size(16 << 20)
}

/// The server, as the loading program knows it.
#[derive(Clone)]
pub(crate) struct WsTarget {
    target: tls::TlsTarget,
}

/// One connection.
#[derive(Clone)]
pub(crate) struct WsConnection(mpsc::Sender<WsRequest>);

/// A message to be written, and where its answers go.
struct WsRequest {
    message: Bytes,
    answers: mpsc::UnboundedSender<Bytes>,
    /// How many bytes of answer there will be.
    expected: u64,
}

/// Serves until the process ends.
pub(crate) async fn serve(options: &SubjectSetup) -> Result<ReadyAddress, BenchError> {
    let (acceptor, certificate) = tls::acceptor(ALPN)?;
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
                    // A client that disconnects is expected.
                    let _ = answer(stream).await;
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

type ServerStream = tokio_rustls::server::TlsStream<TcpStream>;
type WsError = tokio_tungstenite::tungstenite::Error;

async fn answer(stream: ServerStream) -> Result<(), WsError> {
    let mut socket = accept_async_with_config(stream, Some(config())).await?;
    while let Some(message) = socket.next().await {
        let mut next = Some(message?);
        // All available messages are answered before anything is flushed.
        while let Some(message) = next.take() {
            let requests = message.into_data();
            match requests.split_first() {
                Some((&BULK, rest)) => {
                    let count = rest.try_into().map_or(0, u64::from_be_bytes);
                    for chunk in pattern(count) {
                        socket.send(Message::Binary(chunk)).await?;
                    }
                }
                Some(_) => socket.feed(Message::Binary(requests)).await?,
                None => {}
            }
            next = match socket.next().now_or_never() {
                Some(Some(message)) => Some(message?),
                Some(None) => return Ok(()),
                None => None,
            };
        }
        socket.flush().await?;
    }
    Ok(())
}

impl WsTarget {
    pub(crate) fn new(ready: &ReadyAddress) -> Result<Self, BenchError> {
        let target = tls::TlsTarget::new(ready, ALPN)?;
        Ok(Self { target })
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

    pub(crate) async fn connect(&self, tls: TlsConnector) -> Result<WsConnection, BenchError> {
        let stream = self.target.connect(&tls).await?;
        let url = format!("ws://{}/", self.target.address);
        let (socket, _) = client_async_with_config(url, stream, Some(config()))
            .await
            .map_err(failed("the upgrade"))?;
        let (mut write, mut read) = socket.split();
        let (sender, mut requests) = mpsc::channel::<WsRequest>(REQUEST_QUEUE);
        let pending: Arc<Mutex<VecDeque<_>>> = Arc::default();
        let expecting = pending.clone();
        tokio::spawn(async move {
            while let Some(first) = requests.recv().await {
                let mut next = Some(first);
                while let Some(ask) = next.take() {
                    lock(&expecting).push_back((ask.expected, ask.answers));
                    if write.feed(Message::Binary(ask.message)).await.is_err() {
                        return;
                    }
                    next = requests.try_recv().ok();
                }
                if write.flush().await.is_err() {
                    return;
                }
            }
            let _ = write.close().await;
        });
        tokio::spawn(async move {
            while let Some(Ok(message)) = read.next().await {
                if !message.is_binary() {
                    continue;
                }
                let data = message.into_data();
                let mut pending = lock(&pending);
                let Some((left, answers)) = pending.front_mut() else {
                    return;
                };
                *left = left.saturating_sub(data.len() as u64);
                // A receiver that was dropped no longer waits for it.
                let _ = answers.send(data);
                if *left == 0 {
                    pending.pop_front();
                }
            }
            lock(&pending).clear();
        });
        Ok(WsConnection(sender))
    }
}

impl WsConnection {
    async fn ask(
        &self,
        message: Bytes,
        expected: u64,
    ) -> Result<mpsc::UnboundedReceiver<Bytes>, BenchError> {
        let (answers, receive) = mpsc::unbounded_channel();
        let ask = WsRequest {
            message,
            answers,
            expected,
        };
        let gone = |_| BenchError::Invalid("the connection is gone".into());
        self.0.send(ask).await.map_err(gone)?;
        Ok(receive)
    }

    pub(crate) async fn echo(&self, body: Bytes) -> Result<Bytes, BenchError> {
        let mut message = Vec::with_capacity(body.len() + 1);
        message.push(ECHO);
        message.extend_from_slice(&body);
        let expected = message.len() as u64;
        let mut answers = self.ask(message.into(), expected).await?;
        let answer = answers.recv().await;
        let answer = answer.ok_or_else(|| BenchError::Invalid("no answer came".into()))?;
        Ok(answer.slice(1.min(answer.len())..))
    }

    pub(crate) async fn bulk(
        &self,
        bytes: u64,
        got: &super::StreamProgress,
    ) -> Result<(), BenchError> {
        let mut message = vec![BULK];
        message.extend_from_slice(&bytes.to_be_bytes());
        let mut answers = self.ask(message.into(), bytes).await?;
        let mut at = 0;
        while at < bytes {
            let chunk = answers.recv().await;
            let chunk = chunk.ok_or_else(|| BenchError::Invalid("the stream ended".into()))?;
            at = check_pattern(at, &chunk)?;
            got.set(at);
        }
        Ok(())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
