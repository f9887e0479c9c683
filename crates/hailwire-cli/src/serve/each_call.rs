//! One process per call.

use bytes::{Bytes, BytesMut};
use hailwire::body::{Body, BodySender};
use hailwire_wire::{Code, Status};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWriteExt},
    process::ChildStdin,
};

use super::{
    AgentProgram, QUEUED_CHUNKS,
    agent_log::AgentLog,
    outcome, piped,
    program_log::LineCutter,
    program_slot::{CountedCall, ProgramSlot},
    reaper::{ReaperHandle, RunningProgram},
    tail::TailBuffer,
};

/// Most bytes read from a pipe at once: what a pipe of Linux holds.
const READ_SIZE: usize = 64 * 1024;

/// What a call brings, and what it occupies until it has ended.
#[derive(Debug, Default)]
pub(crate) struct CallWork {
    pub(crate) body: Body,
    /// Free again when no process of the call is left.
    pub(crate) slot: Option<ProgramSlot>,
    /// Ends with the answer.
    pub(crate) call: Option<CountedCall>,
}

/// Starts `program` for one call and returns its answer's body, which fills as the program writes.
///
/// The body ends with `ok`, or with the status of [`outcome`]. Dropping it cancels the call and
/// ends whatever the program has started; so does the program's own end.
///
/// # Errors
///
/// The program cannot be started.
pub(crate) fn answer(
    program: &AgentProgram,
    environment: &[(String, String)],
    work: CallWork,
    reaper: &ReaperHandle,
) -> Result<Body, Status> {
    let CallWork { body, slot, call } = work;
    let running = program.start(environment, reaper, slot)?;
    let (sender, answer) = Body::channel(QUEUED_CHUNKS);
    let (reaper, log) = (reaper.clone(), program.log.clone());
    // The task ends with the body's reader or with the reaper.
    tokio::spawn(async move {
        carry(running, (body, log), sender, reaper).await;
        drop(call);
    });
    Ok(answer)
}

/// Copies bytes until the program has ended, the caller is gone, or the agent is being stopped.
async fn carry(
    mut running: RunningProgram,
    (body, log): (Body, Option<AgentLog>),
    answer: BodySender,
    mut reaper: ReaperHandle,
) {
    let outcome = tokio::select! {
        outcome = exchange(&mut running, (body, log), &answer) => outcome,
        () = answer.closed() => return,
        () = reaper.stopping() => Err(Status::new(Code::Unavailable, "the agent is being stopped")),
    };
    // Its remaining processes end now, and not only when the caller has read the whole answer.
    drop(running);
    match outcome {
        Ok(()) => {
            // A reader that is gone needs no end of the body.
            let _ = answer.finish().await;
        }
        Err(status) => answer.abort(status).await,
    }
}

async fn exchange(
    running: &mut RunningProgram,
    (body, log): (Body, Option<AgentLog>),
    answer: &BodySender,
) -> Result<(), Status> {
    let child = piped(running.child())?;
    let stdin = piped(child.stdin.take())?;
    let stdout = piped(child.stdout.take())?;
    let stderr = piped(child.stderr.take())?;
    let mut tail = TailBuffer::default();
    let output = async {
        let (sent, ()) = tokio::join!(
            send_all(stdout, answer),
            keep_tail(stderr, &mut tail, log.as_ref())
        );
        sent?;
        running.wait().await.map_err(|error| {
            Status::new(Code::Internal, "cannot wait for the agent's program")
                .with_details(error.to_string())
        })
    };
    let exit = {
        let input = feed(stdin, body);
        tokio::pin!(output, input);
        tokio::select! {
            exit = &mut output => exit?,
            fed = &mut input => {
                // A caller that was cut off in the middle of its body must not look like the end of the body.
                fed?;
                output.await?
            }
        }
    };
    let status = outcome::status(exit, &tail);
    if status.is_ok() { Ok(()) } else { Err(status) }
}

/// Writes the body to stdin and closes it. A program need not read its stdin, so a closed pipe is
/// not an error; the rest of the body is then dropped.
async fn feed(mut stdin: ChildStdin, mut body: Body) -> Result<(), Status> {
    while let Some(chunk) = body.chunk().await? {
        if stdin.write_all(&chunk).await.is_err() {
            return Ok(());
        }
    }
    // Anonymous pipes have nothing to flush; dropping closes.
    Ok(())
}

/// Sends what appears on `pipe` until its end.
async fn send_all(mut pipe: impl AsyncRead + Unpin, answer: &BodySender) -> Result<(), Status> {
    let mut buffer = BytesMut::new();
    loop {
        buffer.reserve(READ_SIZE);
        match pipe.read_buf(&mut buffer).await {
            Ok(0) => return Ok(()),
            Ok(_) => answer.send(Bytes::from(buffer.split())).await?,
            Err(error) => {
                return Err(Status::new(
                    Code::Internal,
                    "cannot read the output of the agent's program",
                )
                .with_details(error.to_string()));
            }
        }
    }
}

/// Keeps the last bytes of `pipe` until its end, and writes its lines to the log, if there is one.
pub(super) async fn keep_tail(
    mut pipe: impl AsyncRead + Unpin,
    tail: &mut TailBuffer,
    log: Option<&AgentLog>,
) {
    let mut buffer = vec![0; 4096];
    let mut cutter = LineCutter::default();
    while let Ok(n @ 1..) = pipe.read(&mut buffer).await {
        let chunk = buffer.get(..n).unwrap_or_default();
        tail.push(chunk);
        if let Some(log) = log {
            log.push(&mut cutter, chunk);
        }
    }
    if let Some(log) = log {
        log.finish(cutter);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::serve::reaper::{ChildOwnership, ProcessReaper};

    fn shell(script: &str) -> AgentProgram {
        AgentProgram {
            program: "sh".into(),
            args: vec!["-c".into(), script.into()],
            grace: Duration::from_secs(5),
            ..AgentProgram::default()
        }
    }

    fn work(body: impl Into<Body>) -> CallWork {
        CallWork {
            body: body.into(),
            ..CallWork::default()
        }
    }

    async fn call(script: &str, body: impl Into<Body>) -> Result<Bytes, Status> {
        let reaper = ProcessReaper::start(ChildOwnership::Mixed);
        let variables = [("HAIL_METHOD".to_owned(), "find".to_owned())];
        let mut answer = answer(&shell(script), &variables, work(body), &reaper.handle())?;
        let result = answer.bytes(64 << 20).await;
        drop(answer);
        reaper.finish().await;
        result
    }

    #[tokio::test]
    async fn the_body_is_stdin_and_stdout_is_the_answer() {
        assert_eq!(call("cat", "hello").await.unwrap(), "hello");
        assert_eq!(
            call("wc -c", Body::empty()).await.unwrap().trim_ascii(),
            b"0"
        );
        assert_eq!(
            call("printf %s \"$HAIL_METHOD\"", "").await.unwrap(),
            "find"
        );
    }

    #[tokio::test]
    async fn a_large_body_flows_through_without_a_deadlock() {
        let big = vec![7u8; 8 << 20];
        assert_eq!(call("cat", big.clone()).await.unwrap(), big);
    }

    #[tokio::test]
    async fn output_arrives_while_the_program_still_runs() {
        let reaper = ProcessReaper::start(ChildOwnership::Mixed);
        let (sender, body) = Body::channel(1);
        let program = shell("echo one; read line; echo \"$line\"");
        let mut answer = answer(&program, &[], work(body), &reaper.handle()).unwrap();
        assert_eq!(answer.chunk().await.unwrap().unwrap(), "one\n");
        sender.send("two\n").await.unwrap();
        assert_eq!(answer.chunk().await.unwrap().unwrap(), "two\n");
        assert!(answer.chunk().await.unwrap().is_none());
        drop(answer);
        reaper.finish().await;
    }

    #[tokio::test]
    async fn a_failure_comes_after_the_output_with_the_tail_of_stderr() {
        let reaper = ProcessReaper::start(ChildOwnership::Mixed);
        let program = shell("echo part; echo reason >&2; exit 3");
        let mut answer = answer(&program, &[], work(""), &reaper.handle()).unwrap();
        assert_eq!(answer.chunk().await.unwrap().unwrap(), "part\n");
        let status = answer.chunk().await.unwrap_err();
        assert_eq!(
            (status.code, status.details.as_str()),
            (Code::Internal, "reason")
        );
    }

    #[tokio::test]
    async fn a_program_may_leave_its_stdin_unread() {
        let (sender, body) = Body::channel(1);
        assert_eq!(call("echo done", body).await.unwrap(), "done\n");
        assert!(sender.send("x").await.is_err());
    }

    #[tokio::test]
    async fn a_body_that_breaks_off_is_not_taken_for_whole() {
        let (sender, body) = Body::channel(1);
        sender.send("half").await.unwrap();
        drop(sender);
        assert_eq!(
            call("cat; sleep 1000", body).await.unwrap_err().code,
            Code::Aborted
        );
    }

    #[tokio::test]
    async fn a_program_that_is_not_there_is_named() {
        let reaper = ProcessReaper::start(ChildOwnership::Mixed);
        let program = AgentProgram {
            program: "/nowhere/x".into(),
            ..shell("")
        };
        let status = answer(&program, &[], work(""), &reaper.handle()).unwrap_err();
        assert_eq!(status.code, Code::FailedPrecondition);
        assert!(status.message.contains("/nowhere/x"));
    }

    /// Runs a script, cancels its call once it has written, and returns when every process that
    /// the script started has ended: each of them holds a pipe open that then reads as ended.
    async fn cancelled(script: &str, grace: Duration) {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("held");
        assert!(
            std::process::Command::new("mkfifo")
                .arg(&pipe)
                .status()
                .unwrap()
                .success()
        );
        let script = format!("exec 3>'{}'; {script}", pipe.display());
        let all_gone = tokio::task::spawn_blocking(move || std::fs::read(pipe).unwrap());

        let reaper = ProcessReaper::start(ChildOwnership::Mixed);
        let program = AgentProgram {
            grace,
            ..shell(&script)
        };
        let mut answer = answer(&program, &[], work(""), &reaper.handle()).unwrap();
        assert_eq!(answer.chunk().await.unwrap().unwrap(), "started\n");
        drop(answer);
        reaper.finish().await;
        assert!(all_gone.await.unwrap().is_empty());
    }

    #[tokio::test]
    async fn a_cancel_ends_the_whole_process_group() {
        cancelled("sleep 1000 & echo started; wait", Duration::from_secs(60)).await;
    }

    #[tokio::test]
    async fn a_program_that_ignores_sigterm_is_killed_after_its_grace() {
        let script = "trap '' TERM; sleep 1000 & echo started; while :; do wait; done";
        cancelled(script, Duration::from_millis(50)).await;
    }
}
