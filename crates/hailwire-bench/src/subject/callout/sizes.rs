//! How many bytes a request costs on a socket: what our host writes to an agent that only counts.
//!
//! The agent answers the handshake as an agent of the foreign crate does, or as one of ours. What is counted is
//! everything that comes after it: the frame and all that is in it. The foreign program does the same with its client.

use bytes::{Bytes, BytesMut};
use hailwire_callout::{
    Event, EventKind,
    capabilities::Capabilities,
    event::RequestHeaders,
    host::{ConnectOptions, uds},
    wire::{
        Encoding, frame,
        handshake::{self, HandshakeRequest, HandshakeResponse},
    },
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{UnixListener, UnixStream},
};

use crate::{BenchError, subject::failed, work::MeasuredWork};

/// The largest frame that is counted.
const MAX_MESSAGE: usize = 1 << 20;

/// Which kind of agent listens.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum SizeListener {
    /// An agent of the foreign crate, which speaks this encoding.
    Foreign(Encoding),
    /// One of ours, which accepts what only ours speak.
    Ours,
}

/// The bytes that a request takes on the socket.
pub(super) async fn written(
    event: RequestHeaders,
    listener: SizeListener,
) -> Result<MeasuredWork, BenchError> {
    let folder = tempfile::tempdir().map_err(BenchError::io("creating a folder"))?;
    let path = folder.path().join("agent.sock");
    let socket = UnixListener::bind(&path).map_err(BenchError::io("opening a socket"))?;
    let options = ConnectOptions {
        encodings: match listener {
            SizeListener::Foreign(encoding) => vec![encoding],
            SizeListener::Ours => ConnectOptions::default().encodings,
        },
        ..ConnectOptions::default()
    };
    let request = async {
        let connection = uds::connect(&path, &options)
            .await
            .map_err(failed("connecting"))?;
        // It is never answered: it ends when the frame has been counted.
        let answer = connection.request(Event::RequestHeaders(event)).await;
        Err(BenchError::Invalid(format!(
            "unexpected answer: {answer:?}"
        )))
    };
    let bytes = tokio::select! {
        counted = count(&socket, listener) => counted.map_err(BenchError::io("using the socket"))?,
        wrong = request => wrong?,
    };
    Ok(MeasuredWork::default()
        .with("count", 1.0)
        .with("size_bytes", bytes as f64))
}

/// Answers a handshake, and counts the bytes of the next frame.
async fn count(socket: &UnixListener, listener: SizeListener) -> std::io::Result<usize> {
    let (mut stream, _) = socket.accept().await?;
    let mut read = BytesMut::new();
    let hello = next(&mut stream, &mut read).await?;
    let hello: HandshakeRequest = handshake::decode(&hello).map_err(invalid)?;
    let welcome = HandshakeResponse {
        capabilities: Capabilities {
            agent_id: "counter".to_owned(),
            events: [EventKind::RequestHeaders].into_iter().collect(),
            ..Capabilities::default()
        },
        encoding: hello
            .supported_encodings
            .first()
            .copied()
            .unwrap_or_default(),
        extensions: hello.extensions.filter(|_| listener == SizeListener::Ours),
        ..HandshakeResponse::default()
    };
    let mut answer = BytesMut::new();
    frame::put(
        &mut answer,
        frame::FrameType::HandshakeAnswer.code(),
        |out| {
            handshake::encode(&welcome, out);
        },
    )
    .map_err(invalid)?;
    stream.write_all(&answer).await?;
    Ok(frame::PREFIX + next(&mut stream, &mut read).await?.len())
}

/// The payload of the next frame.
async fn next(stream: &mut UnixStream, read: &mut BytesMut) -> std::io::Result<Bytes> {
    loop {
        if let Some((_, payload)) = frame::take(read).map_err(invalid)? {
            return Ok(payload);
        }
        if read.len() > MAX_MESSAGE {
            return Err(invalid("the request is larger than 1 MiB"));
        }
        if stream.read_buf(read).await? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
    }
}

fn invalid(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> std::io::Error {
    std::io::Error::new(std::io::ErrorKind::InvalidData, error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hailwire_callout::event::Metadata;

    async fn size(listener: SizeListener) -> usize {
        let metadata = Metadata {
            correlation_id: "c-1",
            ..Metadata::default()
        };
        let event = RequestHeaders::new(&metadata, "GET", "/", [("host", "example.com")]);
        let measured = written(event, listener).await.unwrap();
        measured.figure("size_bytes") as usize
    }

    #[tokio::test]
    async fn what_is_counted_is_the_frame_that_was_written() {
        let metadata = Metadata {
            correlation_id: "c-1",
            ..Metadata::default()
        };
        let event = RequestHeaders::new(&metadata, "GET", "/", [("host", "example.com")]);
        for encoding in [Encoding::Json, Encoding::MessagePack] {
            let mut payload = BytesMut::new();
            let event = Event::RequestHeaders(event.clone());
            hailwire_callout::wire::encode_event(&event, encoding, &mut payload);
            let counted = size(SizeListener::Foreign(encoding)).await;
            assert_eq!(counted, frame::PREFIX + payload.len(), "{encoding:?}");
        }
        // A number of eight bytes and the kind of the event precede it.
        let packed = size(SizeListener::Foreign(Encoding::MessagePack)).await;
        assert_eq!(size(SizeListener::Ours).await, packed + 9);
    }
}
