//! Bodies from arguments, files and stdin. Nothing is read into memory as a whole: a file of
//! any size passes through a few chunks, at the pace of its receiver.

use bytes::{Bytes, BytesMut};
use hailwire::{Body, BodySender, Code, Status};
use hailwire_terminal::{failure::CommandFailure, text};
use hailwire_wire::limits;
use tokio::io::{AsyncRead, AsyncReadExt as _};

use crate::plan::BodySource;

/// Bytes read at once.
const CHUNK: usize = 64 * 1024;

/// Free capacity below which a new buffer is allocated.
const MIN_CAPACITY: usize = 16 * 1024;

/// Chunks that wait to be sent.
pub(super) const QUEUED_CHUNKS: usize = 4;

/// A body that is longer than a message may be: `done` is what is done with one that is not.
pub(super) fn too_large(status: Status, done: &str, hint: &str) -> CommandFailure {
    if status.code != Code::ResourceExhausted {
        return status.into();
    }
    let most = text::bytes(limits::MAX_SEND_BODY as u64);
    let message = format!("the message is larger than {most}, which is the most that {done}");
    let failure = CommandFailure::from(Status::new(status.code, message));
    match hint {
        "" => failure,
        hint => failure.hint(hint),
    }
}

/// The body of a call. A file is opened now, so that a wrong name is reported before anything is sent.
pub(super) async fn open(source: BodySource) -> Result<Body, CommandFailure> {
    match source {
        BodySource::Text(bytes) => Ok(bytes.into()),
        BodySource::Stdin => {
            let (sender, body) = Body::channel(QUEUED_CHUNKS);
            // Ends with the body, or with the process where stdin never ends.
            tokio::spawn(pump(tokio::io::stdin(), sender));
            Ok(body)
        }
        BodySource::File(path) => {
            let wrong = |e| CommandFailure::io(format!("cannot read {}", path.display()), &e);
            let file = tokio::fs::File::open(&path).await.map_err(wrong)?;
            if file.metadata().await.map_err(wrong)?.is_dir() {
                let message = format!("cannot read {}: it is a folder", path.display());
                return Err(CommandFailure::general(message));
            }
            let (sender, body) = Body::channel(QUEUED_CHUNKS);
            tokio::spawn(pump(file, sender));
            Ok(body)
        }
    }
}

/// The whole body of something that is accepted as a whole; the words are those of [`too_large`].
pub(super) async fn open_whole(
    source: BodySource,
    done: &str,
    hint: &str,
) -> Result<Bytes, CommandFailure> {
    let whole = open(source).await?.bytes(limits::MAX_SEND_BODY).await;
    whole.map_err(|status| too_large(status, done, hint))
}

/// Copies bytes until the end of the input; after an error the body is left without an end.
pub(super) async fn pump(mut from: impl AsyncRead + Unpin, to: BodySender) {
    let mut buffer = BytesMut::new();
    loop {
        // Small reads share a buffer.
        if buffer.capacity() < MIN_CAPACITY {
            buffer.reserve(CHUNK);
        }
        let read = tokio::select! {
            read = from.read_buf(&mut buffer) => read,
            () = to.closed() => return,
        };
        let sent = match read {
            Ok(0) => {
                // A receiver that is gone needs no end of the body.
                let _ = to.finish().await;
                return;
            }
            Ok(_) => to.send(Bytes::from(buffer.split())).await,
            Err(error) => {
                let message = format!(
                    "cannot read the body: {}",
                    text::lower_first(&error.to_string())
                );
                return to.abort(Status::new(Code::Aborted, message)).await;
            }
        };
        if sent.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_file_is_the_body_and_a_missing_one_is_told_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        let bytes: Vec<u8> = (0..300_000u32).map(|n| n as u8).collect();
        std::fs::write(&path, &bytes).unwrap();
        let mut body = open(BodySource::File(path)).await.unwrap();
        assert_eq!(body.bytes(1 << 20).await.unwrap(), bytes);

        for bad in [folder.path().join("missing"), folder.path().to_owned()] {
            let failure = open(BodySource::File(bad)).await.unwrap_err();
            assert!(
                failure.status.message.starts_with("cannot read"),
                "{failure:?}"
            );
        }
    }
}
