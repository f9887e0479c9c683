//! One process for all calls, a line for a line.
//!
//! A task owns the process and takes calls one after another: it writes the body and a newline to
//! stdin and answers with the next line of stdout, newline included. The process is started by the
//! first call and again by the first call after its end. A call that is cancelled while the process
//! works on it ends the process, because its line would otherwise answer the next call.

use bytes::{Bytes, BytesMut};
use hailwire_wire::{Code, Status};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    process::{ChildStdin, ChildStdout},
    sync::{mpsc, oneshot},
    task::JoinHandle,
};

use super::{
    Program,
    each_call::keep_tail,
    group::{ReaperHandle, Running},
    outcome, piped,
    tail::Tail,
};

/// Longest line, to and from the program, in bytes.
pub(crate) const MAX_LINE: usize = 1024 * 1024;

/// Calls that wait for the process; further ones are refused with `resource_exhausted`.
const MAX_WAITING: usize = 1024;

/// Exchanges lines with one process. Clones share it; the process ends with the last of them.
#[derive(Clone, Debug)]
pub(crate) struct Lines(mpsc::Sender<Exchange>);

#[derive(Debug)]
struct Exchange {
    line: Bytes,
    reply: oneshot::Sender<Result<Bytes, Status>>,
}

impl Lines {
    /// Starts the task on the current runtime; the process starts with the first call.
    pub(crate) fn start(program: Program, reaper: ReaperHandle) -> (Self, JoinHandle<()>) {
        let (sender, receiver) = mpsc::channel(MAX_WAITING);
        (Self(sender), tokio::spawn(serve(program, reaper, receiver)))
    }

    /// Exchanges one line. `body` may end with a newline and must have none elsewhere.
    ///
    /// # Errors
    ///
    /// `invalid_argument` for more than one line, `resource_exhausted` for too many calls at once,
    /// `unavailable` when the program ended instead of answering.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future before the answer ends the process; the next call starts it again.
    pub(crate) async fn exchange(&self, body: &[u8]) -> Result<Bytes, Status> {
        let line = body.strip_suffix(b"\n").unwrap_or(body);
        if line.contains(&b'\n') {
            return Err(Status::new(
                Code::InvalidArgument,
                "this agent takes one line per call",
            ));
        }
        let (reply, answer) = oneshot::channel();
        let line = Bytes::from([line, b"\n"].concat());
        self.0.try_send(Exchange { line, reply }).map_err(|_| {
            Status::new(
                Code::ResourceExhausted,
                "too many calls wait for this agent's program",
            )
        })?;
        answer.await.unwrap_or_else(|_| {
            Err(Status::new(
                Code::Unavailable,
                "the agent's program is being stopped",
            ))
        })
    }
}

async fn serve(program: Program, reaper: ReaperHandle, mut calls: mpsc::Receiver<Exchange>) {
    let mut process = None;
    let mut stopping = reaper.clone();
    loop {
        let next = tokio::select! {
            next = calls.recv() => next,
            () = stopping.stopping() => return,
        };
        let Some(Exchange { line, mut reply }) = next else {
            return;
        };
        if reply.is_closed() {
            continue;
        }
        let current = match process.take() {
            Some(current) => Ok(current),
            None => Process::start(&program, &reaper),
        };
        let mut current = match current {
            Ok(current) => current,
            Err(status) => {
                let _ = reply.send(Err(status));
                continue;
            }
        };
        let answer = tokio::select! {
            answer = current.exchange(&line) => answer,
            // Dropping `current` ends the process.
            () = reply.closed() => continue,
            () = stopping.stopping() => return,
        };
        // A caller that left meanwhile has lost nothing that another could use.
        let _ = match answer {
            Ok(line) => {
                process = Some(current);
                reply.send(Ok(line))
            }
            Err(broken) => reply.send(Err(current.end(broken).await)),
        };
    }
}

/// The running process.
#[derive(Debug)]
struct Process {
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    stderr: JoinHandle<Tail>,
    running: Running,
}

/// Why an exchange failed.
enum Broken {
    /// The process closed a pipe: it has ended or is about to.
    Ended,
    /// The line of the answer is too long.
    TooLong,
}

impl Process {
    fn start(program: &Program, reaper: &ReaperHandle) -> Result<Self, Status> {
        let mut child = program.spawn(&[])?;
        let stdin = piped(child.stdin.take())?;
        let stdout = BufReader::new(piped(child.stdout.take())?);
        let stderr = piped(child.stderr.take())?;
        let running = Running::new(child, program.grace, reaper)?;
        let stderr = tokio::spawn(async move {
            let mut tail = Tail::default();
            keep_tail(stderr, &mut tail).await;
            tail
        });
        Ok(Self {
            stdin,
            stdout,
            stderr,
            running,
        })
    }

    async fn exchange(&mut self, line: &[u8]) -> Result<Bytes, Broken> {
        self.stdin
            .write_all(line)
            .await
            .map_err(|_| Broken::Ended)?;
        let mut answer = BytesMut::new();
        loop {
            let available = self.stdout.fill_buf().await.map_err(|_| Broken::Ended)?;
            if available.is_empty() {
                return Err(Broken::Ended);
            }
            let (part, whole) = match available.iter().position(|b| *b == b'\n') {
                Some(end) => (&available[..=end], true),
                None => (available, false),
            };
            if answer.len() + part.len() > MAX_LINE {
                return Err(Broken::TooLong);
            }
            answer.extend_from_slice(part);
            let used = part.len();
            self.stdout.consume(used);
            if whole {
                return Ok(answer.freeze());
            }
        }
    }

    /// What to tell the caller of an exchange that failed. Ends the process.
    async fn end(self, broken: Broken) -> Status {
        let Self {
            stdin,
            stdout,
            stderr,
            mut running,
        } = self;
        if let Broken::TooLong = broken {
            let message = format!("the agent's program wrote a line longer than {MAX_LINE} bytes");
            return Status::new(Code::ResourceExhausted, message);
        }
        drop((stdin, stdout));
        let wait = tokio::time::timeout(running.grace(), running.wait()).await;
        let Ok(Ok(exit)) = wait else {
            return Status::new(Code::Unavailable, "the agent's program closed its output");
        };
        let tail = stderr.await.unwrap_or_default();
        let outcome = outcome::status(exit, &tail);
        if outcome.is_ok() {
            Status::new(
                Code::Unavailable,
                "the agent's program ended instead of answering",
            )
        } else {
            Status::new(Code::Unavailable, outcome.message).with_details(outcome.details)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::serve::group::Reaper;

    struct House {
        lines: Lines,
        task: JoinHandle<()>,
        reaper: Reaper,
    }

    impl House {
        fn new(script: &str) -> Self {
            let reaper = Reaper::start();
            let program = Program {
                program: "sh".into(),
                args: vec!["-c".into(), script.into()],
                grace: Duration::from_secs(5),
            };
            let (lines, task) = Lines::start(program, reaper.handle());
            Self {
                lines,
                task,
                reaper,
            }
        }

        async fn finish(self) {
            drop(self.lines);
            self.task.await.unwrap();
            self.reaper.finish().await;
        }
    }

    #[tokio::test]
    async fn one_process_answers_line_for_line() {
        let house = House::new("while read l; do echo $$ $l; done");
        let first = house.lines.exchange(b"a").await.unwrap();
        let second = house.lines.exchange(b"b\n").await.unwrap();
        let pid = |line: &Bytes| line.split(|b| *b == b' ').next().unwrap().to_vec();
        assert_eq!(pid(&first), pid(&second));
        assert!(first.ends_with(b" a\n") && second.ends_with(b" b\n"));
        house.finish().await;
    }

    #[tokio::test]
    async fn calls_at_once_are_answered_each_with_its_own_line() {
        let house = House::new("cat");
        let calls = (0..50).map(|i| {
            let lines = house.lines.clone();
            tokio::spawn(async move { (i, lines.exchange(i.to_string().as_bytes()).await) })
        });
        for call in calls.collect::<Vec<_>>() {
            let (i, answer) = call.await.unwrap();
            assert_eq!(answer.unwrap(), format!("{i}\n"));
        }
        house.finish().await;
    }

    #[tokio::test]
    async fn a_process_that_died_is_started_again_by_the_next_call() {
        let house = House::new("read l; echo $l; read l; echo gone >&2; exit 1");
        assert_eq!(house.lines.exchange(b"a").await.unwrap(), "a\n");
        let status = house.lines.exchange(b"b").await.unwrap_err();
        assert_eq!(
            (status.code, status.details.as_str()),
            (Code::Unavailable, "gone")
        );
        assert_eq!(house.lines.exchange(b"c").await.unwrap(), "c\n");
        house.finish().await;
    }

    #[tokio::test]
    async fn a_cancelled_call_never_answers_the_next_one() {
        let house = House::new("while read l; do [ $l = stuck ] && sleep 1000; echo $l; done");
        assert_eq!(house.lines.exchange(b"a").await.unwrap(), "a\n");
        {
            let stuck = house.lines.exchange(b"stuck");
            tokio::pin!(stuck);
            // Polled once, so that the call is on its way, then dropped.
            tokio::select! { biased; _ = &mut stuck => panic!("answered"), () = std::future::ready(()) => {} }
        }
        assert_eq!(house.lines.exchange(b"b").await.unwrap(), "b\n");
        house.finish().await;
    }

    #[tokio::test]
    async fn two_lines_and_an_endless_line_are_refused() {
        let house = House::new("read l; cat /dev/zero");
        assert_eq!(
            house.lines.exchange(b"a\nb").await.unwrap_err().code,
            Code::InvalidArgument
        );
        assert_eq!(
            house.lines.exchange(b"a").await.unwrap_err().code,
            Code::ResourceExhausted
        );
        house.finish().await;
    }
}
