//! Yamux over a pair of Unix sockets, without TLS: what our multiplexer on the same socket is set beside.

use std::{future::poll_fn, hint::black_box, task::Poll};

use bytes::Bytes;
use futures_util::{AsyncReadExt, AsyncWriteExt};
use tokio::{
    net::UnixStream,
    sync::{mpsc, oneshot},
};
use tokio_util::compat::TokioAsyncReadCompatExt;

use crate::{BULK, CHUNK, ECHO, MESSAGE, Row, Subject, unix_pair};

/// Yamux wants its connection polled by one owner; opening goes through a channel to it.
#[derive(Clone)]
pub(crate) struct Yamux(mpsc::UnboundedSender<oneshot::Sender<yamux::Stream>>);

impl Yamux {
    fn new(io: UnixStream) -> Self {
        let (requests, mut queue) = mpsc::unbounded_channel::<oneshot::Sender<yamux::Stream>>();
        let mut connection =
            yamux::Connection::new(io.compat(), yamux::Config::default(), yamux::Mode::Client);
        let mut wanted: Option<oneshot::Sender<yamux::Stream>> = None;
        tokio::spawn(poll_fn(move |cx| {
            loop {
                if wanted.is_none() {
                    match queue.poll_recv(cx) {
                        Poll::Ready(Some(request)) => wanted = Some(request),
                        Poll::Ready(None) => return Poll::Ready(()),
                        Poll::Pending => break,
                    }
                }
                match connection.poll_new_outbound(cx) {
                    Poll::Ready(stream) => {
                        let _ = wanted.take().unwrap().send(stream.unwrap());
                    }
                    Poll::Pending => break,
                }
            }
            match connection.poll_next_inbound(cx) {
                Poll::Ready(_) => Poll::Ready(()),
                Poll::Pending => Poll::Pending,
            }
        }));
        Self(requests)
    }

    async fn open(&self) -> yamux::Stream {
        let (answer, stream) = oneshot::channel();
        self.0.send(answer).unwrap();
        stream.await.unwrap()
    }
}

impl Subject for Yamux {
    async fn echo(&self, body: Bytes) -> usize {
        let mut stream = self.open().await;
        stream.write_all(&body).await.unwrap();
        stream.close().await.unwrap();
        let mut answer = Vec::with_capacity(MESSAGE);
        stream.read_to_end(&mut answer).await.unwrap();
        black_box(answer).len()
    }

    async fn bulk(&self, chunk: Bytes) -> u64 {
        let mut stream = self.open().await;
        for _ in 0..BULK / chunk.len() {
            stream.write_all(&chunk).await.unwrap();
        }
        stream.close().await.unwrap();
        let mut answer = [0; 8];
        stream.read_exact(&mut answer).await.unwrap();
        u64::from_be_bytes(answer)
    }
}

async fn serve(io: UnixStream) {
    let mut connection =
        yamux::Connection::new(io.compat(), yamux::Config::default(), yamux::Mode::Server);
    while let Some(Ok(mut stream)) = poll_fn(|cx| connection.poll_next_inbound(cx)).await {
        tokio::spawn(async move {
            let mut buffer = vec![0; 2 * MESSAGE];
            let (mut echo, mut total) = (None, 0);
            loop {
                let count = stream.read(&mut buffer).await.unwrap();
                let chunk = &buffer[..count];
                if count == 0 {
                    break;
                }
                total += count as u64;
                if *echo.get_or_insert(chunk.starts_with(ECHO)) {
                    stream.write_all(chunk).await.unwrap();
                } else {
                    buffer.resize(CHUNK, 0);
                }
            }
            if echo == Some(false) {
                stream.write_all(&total.to_be_bytes()).await.unwrap();
            }
            stream.close().await.unwrap();
        });
    }
}

pub(crate) fn unix() -> Row<Yamux> {
    let (runtime, yamux) = unix_pair(serve, Yamux::new);
    ("yamux", runtime, yamux)
}
