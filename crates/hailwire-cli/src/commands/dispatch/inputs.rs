//! The inputs of a dispatch, read as they are asked for: a few are held, however many there are.

use std::{collections::VecDeque, path::PathBuf};

use bytes::Bytes;
use hailwire::{Code, Status};
use hailwire_core::dispatch_plan::MAX_DISPATCH_BODY;
use hailwire_terminal::{failure::CommandFailure, text};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, BufReader},
    sync::mpsc,
    task::AbortHandle,
};

use super::{
    json_values::{CutValue, JsonCutter},
    result::label,
};
use crate::plan::{DispatchInputs, DispatchSource};

/// Bytes read at once.
const BUFFER: usize = 64 * 1024;

/// Inputs that were read and are not asked for yet.
const READ_AHEAD: usize = 1;

/// One input.
#[derive(Debug)]
pub(super) struct Input {
    /// What it is called in its result.
    pub(super) label: String,
    /// Its bytes, or why it cannot be sent.
    pub(super) body: Result<Bytes, Status>,
}

/// The inputs of a run. What is read ahead is dropped with it.
#[derive(Debug)]
pub(super) struct InputReader {
    from: mpsc::Receiver<Result<Input, CommandFailure>>,
    /// How many there are, where that is known.
    pub(super) total: Option<u64>,
    reading: AbortHandle,
}

impl Drop for InputReader {
    fn drop(&mut self) {
        self.reading.abort();
    }
}

impl InputReader {
    /// Opens them. A file that is missing is told now, before anything is sent.
    pub(super) async fn open(inputs: DispatchInputs) -> Result<Self, CommandFailure> {
        let (to, from) = mpsc::channel(READ_AHEAD);
        let (total, task) = match inputs {
            DispatchInputs::Files(paths) => {
                for path in &paths {
                    check_file(path).await?;
                }
                let total = paths.len() as u64;
                (Some(total), tokio::spawn(read_files(paths.into(), to)))
            }
            DispatchInputs::Lines(source) => {
                (None, tokio::spawn(read_lines(open(source).await?, to)))
            }
            DispatchInputs::Values(source) => {
                (None, tokio::spawn(read_values(open(source).await?, to)))
            }
        };
        Ok(Self {
            from,
            total,
            reading: task.abort_handle(),
        })
    }

    /// The next input; `None` after the last. Cancel safe.
    pub(super) async fn next(&mut self) -> Result<Option<Input>, CommandFailure> {
        self.from.recv().await.transpose()
    }
}

type Source = BufReader<Box<dyn AsyncRead + Send + Unpin>>;

type Sender = mpsc::Sender<Result<Input, CommandFailure>>;

async fn open(source: DispatchSource) -> Result<Source, CommandFailure> {
    let from: Box<dyn AsyncRead + Send + Unpin> = match source {
        DispatchSource::Stdin => Box::new(tokio::io::stdin()),
        DispatchSource::File(path) => {
            check_file(&path).await?;
            let wrong = |e| CommandFailure::io(format!("cannot read {}", path.display()), &e);
            Box::new(tokio::fs::File::open(&path).await.map_err(wrong)?)
        }
    };
    Ok(BufReader::with_capacity(BUFFER, from))
}

async fn check_file(path: &PathBuf) -> Result<(), CommandFailure> {
    let what = format!("cannot read {}", path.display());
    let hint = "a FILE is one call with its content; texts are lines: printf '%s\\n' one two | hail dispatch NAME";
    match tokio::fs::metadata(path).await {
        Ok(metadata) if metadata.is_dir() => {
            Err(CommandFailure::general(format!("{what}: it is a folder")).hint(hint))
        }
        Ok(_) => Ok(()),
        Err(error) => Err(CommandFailure::io(what, &error).hint(hint)),
    }
}

async fn read_files(mut paths: VecDeque<PathBuf>, to: Sender) {
    while let Some(path) = paths.pop_front() {
        let input = Input {
            label: path.display().to_string(),
            body: read_file(&path).await,
        };
        if to.send(Ok(input)).await.is_err() {
            return;
        }
    }
}

async fn read_file(path: &PathBuf) -> Result<Bytes, Status> {
    let mut body = Vec::new();
    let read = async {
        let file = tokio::fs::File::open(path).await?;
        // One byte more tells whether it is too large.
        let most = MAX_DISPATCH_BODY as u64 + 1;
        file.take(most).read_to_end(&mut body).await
    };
    if let Err(error) = read.await {
        let what = format!("cannot read {}", path.display());
        return Err(CommandFailure::io(what, &error).status);
    }
    match body.len() > MAX_DISPATCH_BODY {
        true => Err(too_large()),
        false => Ok(body.into()),
    }
}

async fn read_lines(mut from: Source, to: Sender) {
    let mut line = Vec::new();
    let mut too_long = false;
    loop {
        let part = match from.fill_buf().await {
            Ok(part) => part,
            Err(error) => {
                return fail(to, CommandFailure::io("cannot read the lines", &error)).await;
            }
        };
        let end = part.iter().position(|byte| *byte == b'\n');
        let ended = end.is_some();
        let last = part.is_empty();
        let bytes = &part[..end.unwrap_or(part.len())];
        too_long |= line.len() + bytes.len() > MAX_DISPATCH_BODY;
        if !too_long {
            line.extend_from_slice(bytes);
        }
        let taken = bytes.len() + usize::from(ended);
        from.consume(taken);
        // A last line may lack its line feed.
        if ended || (last && (too_long || !line.is_empty())) {
            let body = std::mem::take(&mut line);
            let input = Input {
                label: label(&body),
                body: match std::mem::take(&mut too_long) {
                    true => Err(too_large()),
                    false => Ok(body.into()),
                },
            };
            if to.send(Ok(input)).await.is_err() {
                return;
            }
        }
        if last {
            return;
        }
    }
}

async fn read_values(mut from: Source, to: Sender) {
    let mut cutter = JsonCutter::new();
    loop {
        let part = match from.fill_buf().await {
            Ok(part) => part,
            Err(error) => {
                return fail(to, CommandFailure::io("cannot read the values", &error)).await;
            }
        };
        let last = part.is_empty();
        let cut = match last {
            true => cutter.end().map(|value| (0, value)),
            false => cutter.take(part),
        };
        let (taken, value) = match cut {
            Ok(cut) => cut,
            Err(error) => {
                let failure = CommandFailure::caused(Code::InvalidArgument, &error)
                    .hint("expected JSON values one after another, or one array of them; what stands before it was called for");
                return fail(to, failure).await;
            }
        };
        from.consume(taken);
        let input = value.map(|value| match value {
            CutValue::Whole(body) => Input {
                label: label(&body),
                body: Ok(body),
            },
            CutValue::TooLarge => Input {
                label: String::new(),
                body: Err(too_large()),
            },
        });
        if let Some(input) = input
            && to.send(Ok(input)).await.is_err()
        {
            return;
        }
        if last {
            return;
        }
    }
}

/// Tells a failure, unless nobody asks any more.
async fn fail(to: Sender, failure: CommandFailure) {
    let _ = to.send(Err(failure)).await;
}

fn too_large() -> Status {
    let most = text::bytes(MAX_DISPATCH_BODY as u64);
    let message =
        format!("the input is larger than {most}, which is the most that `hail dispatch` sends");
    Status::new(Code::ResourceExhausted, message)
        .with_hint("`hail call` streams a body of any size")
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn lines(text: &[u8]) -> Vec<Result<Bytes, Code>> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lines");
        std::fs::write(&path, text).unwrap();
        let inputs = DispatchInputs::Lines(DispatchSource::File(path));
        let mut reader = InputReader::open(inputs).await.unwrap();
        let mut bodies = Vec::new();
        while let Some(input) = reader.next().await.unwrap() {
            bodies.push(input.body.map_err(|status| status.code));
        }
        bodies
    }

    #[tokio::test]
    async fn lines_end_at_line_feeds_and_the_last_one_need_not() {
        for (text, expected) in [
            ("", &[][..]),
            ("\n", &[""]),
            ("a\n\nb", &["a", "", "b"]),
            ("a\r\nb\n", &["a\r", "b"]),
        ] {
            let expected: Vec<_> = expected.iter().map(|line| Ok(Bytes::from(*line))).collect();
            assert_eq!(lines(text.as_bytes()).await, expected, "{text:?}");
        }
    }

    #[tokio::test]
    async fn a_line_that_is_too_long_costs_itself_alone() {
        let mut text = vec![b'x'; MAX_DISPATCH_BODY];
        text.extend_from_slice(b"\nb\n");
        text.extend(vec![b'y'; MAX_DISPATCH_BODY + 1]);
        let read = lines(&text).await;
        assert_eq!(read[0].as_ref().unwrap().len(), MAX_DISPATCH_BODY);
        assert_eq!(
            read[1..],
            [Ok(Bytes::from("b")), Err(Code::ResourceExhausted)]
        );
    }
}
