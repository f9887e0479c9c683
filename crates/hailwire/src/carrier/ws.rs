//! The WebSocket carrier (RFC 6455): the multiplexer over binary messages.
//!
//! For networks that let through what looks like a browser's traffic and little else. The messages
//! are read as one byte stream; where one ends means nothing. Both sides name the subprotocol
//! `hailwire` (RFC 6455, 1.9) and the path `/hailwire`. `spec/websocket.md` is its prose.
//!
//! What is ready leaves in messages of up to 16 KiB and one write of the connection beneath. Small
//! messages rather than large ones, because each side keeps a buffer of the largest that it has
//! read.
//!
//! It refuses text, messages past [`WS_MAX_MESSAGE`] and heads past [`WS_MAX_HEAD`]. Pings are
//! answered and not sent: whether the peer lives is asked beneath and above. What a peer that pings
//! and does not read can make this side hold is stated in [`hailwire_websocket`].

use std::{
    io,
    net::SocketAddr,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::{Buf, Bytes, BytesMut};
use futures_core::Stream;
use futures_sink::Sink;
use hailwire_websocket::{WebSocket, WebSocketError as Error, WebSocketLimits as Terms};
use hailwire_wire::{
    limits::{WS_CONTROL_BURST, WS_CONTROL_RATE, WS_MAX_HEAD, WS_MAX_MESSAGE},
    mux::MuxRole,
};
use http::{HeaderMap, HeaderValue, Uri, header::SEC_WEBSOCKET_PROTOCOL};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::{mux, tcp::TcpError};

/// What both sides name as their subprotocol.
const PROTOCOL: HeaderValue = HeaderValue::from_static("hailwire");

/// Where a node answers.
const PATH: &str = "/hailwire";

/// Bytes of one message that is sent.
const MESSAGE: usize = WS_MAX_MESSAGE / 4;

const TERMS: Terms = Terms {
    max_message: WS_MAX_MESSAGE,
    max_head: WS_MAX_HEAD,
    queue: 64 * 1024,
    control_burst: WS_CONTROL_BURST,
    control_rate: WS_CONTROL_RATE,
};

/// Asks for a WebSocket on a connection whose far side is known, and speaks the multiplexer on it.
///
/// # Errors
///
/// [`TcpError::Carrier`]: the far side does not answer as a WebSocket of a node does.
pub(super) async fn client<IO: AsyncRead + AsyncWrite + Send + Unpin + 'static>(
    io: IO,
    remote: SocketAddr,
) -> Result<mux::MuxConnection, TcpError> {
    let uri: Uri = format!("wss://{remote}{PATH}")
        .parse()
        .map_err(|error| refused(&error))?;
    let asked = hailwire_websocket::connect(io, &uri, &headers(), TERMS).await;
    let (socket, answer) = asked.map_err(|error| refused(&error))?;
    agreed(answer.headers())?;
    Ok(multiplexed(socket, MuxRole::Client, remote))
}

/// Answers a request for a WebSocket. As [`client`] in all else.
///
/// # Errors
///
/// [`TcpError::Carrier`]: the far side asks for something else.
pub(super) async fn server<IO: AsyncRead + AsyncWrite + Send + Unpin + 'static>(
    io: IO,
    remote: SocketAddr,
) -> Result<mux::MuxConnection, TcpError> {
    let accepted = hailwire_websocket::accept(io, &headers(), TERMS).await;
    let (request, socket) = accepted.map_err(|error| refused(&error))?;
    if request.uri().path() != PATH {
        return Err(carrier(format!("it asked for {}", request.uri().path())));
    }
    agreed(request.headers())?;
    Ok(multiplexed(socket, MuxRole::Server, remote))
}

fn multiplexed<IO: AsyncRead + AsyncWrite + Send + Unpin + 'static>(
    socket: WebSocket<IO>,
    role: MuxRole,
    remote: SocketAddr,
) -> mux::MuxConnection {
    mux::MuxConnection::over(ByteStream::new(socket), role, "ws", remote.to_string())
}

fn headers() -> HeaderMap {
    HeaderMap::from_iter([(SEC_WEBSOCKET_PROTOCOL, PROTOCOL)])
}

fn agreed(headers: &HeaderMap) -> Result<(), TcpError> {
    if headers.get(SEC_WEBSOCKET_PROTOCOL) == Some(&PROTOCOL) {
        Ok(())
    } else {
        Err(carrier("it did not name the protocol hailwire".to_owned()))
    }
}

fn refused(error: &dyn std::fmt::Display) -> TcpError {
    carrier(error.to_string())
}

const fn carrier(reason: String) -> TcpError {
    TcpError::Carrier {
        carrier: "ws",
        reason,
    }
}

/// The binary messages of a WebSocket, read and written as one byte stream.
struct ByteStream<IO> {
    socket: WebSocket<IO>,
    /// What is left of the message that is being read.
    message: Bytes,
}

impl<IO: AsyncRead + AsyncWrite + Unpin> ByteStream<IO> {
    const fn new(socket: WebSocket<IO>) -> Self {
        Self {
            socket,
            message: Bytes::new(),
        }
    }

    /// Queues the front of some slices as one message, and says how many bytes that were.
    fn send(&mut self, slices: &[io::IoSlice<'_>]) -> io::Result<usize> {
        let whole = slices.iter().map(|slice| slice.len()).sum::<usize>();
        let len = whole.min(MESSAGE);
        let mut message = BytesMut::with_capacity(len);
        for slice in slices {
            let part = slice.len().min(len - message.len());
            message.extend_from_slice(slice.get(..part).unwrap_or_default());
        }
        let sent = Pin::new(&mut self.socket).start_send(message.freeze());
        sent.map(|()| len).map_err(io_error)
    }
}

impl<IO: AsyncRead + AsyncWrite + Unpin> AsyncRead for ByteStream<IO> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        while self.message.is_empty() {
            match ready!(Pin::new(&mut self.socket).poll_next(cx)) {
                None => return Poll::Ready(Ok(())),
                Some(message) => self.message = message.map_err(io_error)?,
            }
        }
        let len = self.message.len().min(buf.remaining());
        buf.put_slice(self.message.get(..len).unwrap_or_default());
        self.message.advance(len);
        Poll::Ready(Ok(()))
    }
}

impl<IO: AsyncRead + AsyncWrite + Unpin> AsyncWrite for ByteStream<IO> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[io::IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        ready!(Pin::new(&mut self.socket).poll_ready(cx)).map_err(io_error)?;
        Poll::Ready(self.send(slices))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx).map_err(io_error)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_close(cx).map_err(io_error)
    }
}

fn io_error(error: Error) -> io::Error {
    match error {
        Error::Io(error) => error,
        other => io::Error::new(io::ErrorKind::InvalidData, other),
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

    use super::*;
    use crate::carrier::ConnectionError;

    const REMOTE: SocketAddr =
        SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 443);

    fn head(path: &str, protocol: &str) -> String {
        format!(
            "GET {path} HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
             Sec-WebSocket-Protocol: {protocol}\r\n\r\n"
        )
    }

    /// A node that has answered a request for a WebSocket, and the asking side of its connection.
    async fn upgraded(head: &str) -> (Result<mux::MuxConnection, TcpError>, DuplexStream) {
        let (mut near, far) = duplex(1 << 20);
        near.write_all(head.as_bytes()).await.unwrap();
        (server(far, REMOTE).await, near)
    }

    /// Why a node ends a connection on which it was sent this frame.
    async fn end_by(frame: &[u8]) -> String {
        let (connection, mut near) = upgraded(&head(PATH, "hailwire")).await;
        let connection = connection.unwrap();
        near.write_all(frame).await.unwrap();
        let ended = connection.closed().await;
        let mut answer = Vec::new();
        near.shutdown().await.unwrap();
        near.read_to_end(&mut answer).await.unwrap();
        assert!(answer.starts_with(b"HTTP/1.1 101"), "{answer:?}");
        match ended {
            ConnectionError::Lost(why) | ConnectionError::Protocol(why) => why,
            other => panic!("{other}"),
        }
    }

    /// A masked frame (RFC 6455, 5.2) whose mask is zero.
    fn frame(opcode: u8, len: u64, payload: &[u8]) -> Vec<u8> {
        let mut frame = vec![0x80 | opcode];
        match len {
            0..126 => frame.push(0x80 | len as u8),
            126..65536 => {
                frame.push(0x80 | 126);
                frame.extend((len as u16).to_be_bytes());
            }
            _ => {
                frame.push(0x80 | 127);
                frame.extend(len.to_be_bytes());
            }
        }
        frame.extend([0; 4]);
        frame.extend(payload);
        frame
    }

    #[tokio::test]
    async fn an_upgrade_whose_head_has_no_end_is_given_up() {
        let (mut near, far) = duplex(1 << 20);
        let endless = vec![b'a'; WS_MAX_HEAD];
        near.write_all(b"GET /hailwire HTTP/1.1\r\nx: ")
            .await
            .unwrap();
        near.write_all(&endless).await.unwrap();
        let error = server(far, REMOTE).await.err().unwrap();
        assert!(error.to_string().contains("8 KiB"), "{error}");
        // The same of an answer.
        let (mut near, far) = duplex(1 << 20);
        near.write_all(b"HTTP/1.1 101 x\r\nx: ").await.unwrap();
        near.write_all(&endless).await.unwrap();
        let error = client(far, REMOTE).await.err().unwrap();
        assert!(error.to_string().contains("8 KiB"), "{error}");
    }

    #[tokio::test]
    async fn another_path_protocol_or_garbage_is_refused() {
        for (head, part) in [
            (head("/chat", "hailwire"), "/chat"),
            (head(PATH, "chat"), "protocol"),
            ("\0\r\n\r\n".to_owned(), "ws"),
        ] {
            let error = upgraded(&head).await.0.err().unwrap().to_string();
            assert!(error.contains(part), "{error}");
        }
    }

    #[tokio::test]
    async fn a_web_socket_message_past_its_bound_ends_the_connection() {
        // Before its bytes have come, of which it may claim any number.
        let claimed = frame(2, u64::MAX >> 1, b"");
        assert!(end_by(&claimed).await.contains("exceeds"));
        // The same in many small frames that are one message.
        let mut parts = frame(2, 1000, &[0; 1000]);
        parts[0] = 2;
        let mut rest = frame(0, 1000, &[0; 1000]);
        rest[0] = 0;
        let parts = [parts, rest.repeat(WS_MAX_MESSAGE / 1000)].concat();
        assert!(end_by(&parts).await.contains("exceeds"));
    }

    /// A node at a real socket, and the far side of it after the upgrade.
    async fn node_at_a_socket() -> (mux::MuxConnection, tokio::net::TcpStream) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let near = tokio::net::TcpStream::connect(listener.local_addr().unwrap());
        let (near, far) = tokio::join!(near, listener.accept());
        let (mut near, far) = (near.unwrap(), far.unwrap().0);
        near.write_all(head(PATH, "hailwire").as_bytes())
            .await
            .unwrap();
        (server(far, REMOTE).await.unwrap(), near)
    }

    #[tokio::test]
    async fn a_peer_that_pings_and_never_reads_has_soon_lost_its_connection() {
        for ping in [
            frame(9, 125, &[0; 125]),
            frame(10, 0, b""),
            frame(2, 0, b""),
        ] {
            let (connection, mut near) = node_at_a_socket().await;
            let many = ping.repeat(64 * 1024 / ping.len());
            let mut written = 0;
            let flood = async {
                while let Ok(count) = near.write(&many).await {
                    written += count;
                    // What the kernel holds on both sides is no more than this.
                    assert!(written < 32 << 20, "the node reads on");
                }
            };
            let flood = tokio::time::timeout(std::time::Duration::from_secs(60), flood);
            flood.await.expect("the node holds on to it");
            let ended = connection.closed().await.to_string();
            assert!(ended.contains("too many frames without data"), "{ended}");
        }
    }

    #[tokio::test]
    async fn text_and_bytes_that_are_no_multiplexer_end_the_connection() {
        assert!(end_by(&frame(1, 2, b"hi")).await.contains("text"));
        assert!(
            end_by(&frame(2, 12, b"not a prefac"))
                .await
                .contains("multiplexer")
        );
        // A client must mask (RFC 6455, 5.1).
        assert!(!end_by(&[0x82, 2, 0, 0]).await.is_empty());
    }
}
