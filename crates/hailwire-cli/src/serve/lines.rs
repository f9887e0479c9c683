//! One process for all calls, a line for a line.
//!
//! A task owns the process and takes calls one after another: it writes the question and a newline to
//! stdin and answers with the next line of stdout, newline included. The process is started by the
//! first call and again by the first call after its end. Whose an answer is decides [`Dialogue`]; what
//! may be asked, [`question()`]. A process ends, and the call that it works on is answered with an error,
//! when it writes what nobody asked for. A call that is cancelled while the process works on it ends the
//! process too, because its line would otherwise answer the next call.

use std::{hash::BuildHasher as _, sync::Arc, time::Duration};

use bytes::{Bytes, BytesMut};
use hailwire_wire::{Code, Status};
use rustix::io::ioctl_fionread;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    process::{ChildStdin, ChildStdout},
    sync::{mpsc, oneshot},
    task::JoinHandle,
    time::Instant,
};

pub(crate) use super::dialogue::MAX_LINE;
use super::{
    Program,
    dialogue::{Dialogue, Fault, Settled},
    each_call::keep_tail,
    outcome, piped,
    question::question,
    reaper::{ReaperHandle, Running},
    rest,
    tail::Tail,
};

/// Calls that wait for the process; further ones are refused with `resource_exhausted`.
const MAX_WAITING: usize = 1024;

/// Most bytes read from the process at once.
const READ_SIZE: usize = 64 * 1024;

/// How long a program that has just written is looked at without a pause: most are about to wait again.
const EAGER: Duration = Duration::from_micros(200);

/// Between two looks after that.
const LOOK: Duration = Duration::from_millis(1);

/// How the lines are exchanged.
#[derive(Clone)]
pub(crate) struct Manner {
    /// Each question begins with a key that its answer must bear.
    pub(crate) keys: bool,
    /// Told whenever the program had to be ended for what it wrote.
    pub(crate) tell: Arc<dyn Fn(&str) + Send + Sync>,
}

/// Exchanges lines with one process. Clones share it; the process ends with the last of them.
#[derive(Clone, Debug)]
pub(crate) struct Lines(mpsc::Sender<Exchange>);

#[derive(Debug)]
struct Exchange {
    question: Bytes,
    reply: oneshot::Sender<Result<Bytes, Status>>,
}

impl Lines {
    /// Starts the task on the current runtime; the process starts with the first call.
    pub(crate) fn start(
        program: Program,
        manner: Manner,
        reaper: ReaperHandle,
    ) -> (Self, JoinHandle<()>) {
        let (sender, receiver) = mpsc::channel(MAX_WAITING);
        let exchanger = Exchanger {
            program,
            manner,
            reaper,
            told: 0,
        };
        (Self(sender), tokio::spawn(exchanger.serve(receiver)))
    }

    /// Exchanges one line. `body` may end with a line's end and must have none elsewhere.
    ///
    /// # Errors
    ///
    /// `invalid_argument` for more than one line, `resource_exhausted` for too many calls at once,
    /// `unavailable` when the program ended instead of answering, `internal` when it wrote what cannot be told
    /// to be the answer.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future before the answer ends the process; the next call starts it again.
    pub(crate) async fn exchange(&self, body: &[u8]) -> Result<Bytes, Status> {
        let question = Bytes::copy_from_slice(question(body)?);
        let (reply, answer) = oneshot::channel();
        self.0.try_send(Exchange { question, reply }).map_err(|_| {
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

/// What the task goes by.
struct Exchanger {
    program: Program,
    manner: Manner,
    reaper: ReaperHandle,
    /// How often the operator was told of the program's faults.
    told: u64,
}

impl Exchanger {
    async fn serve(mut self, mut calls: mpsc::Receiver<Exchange>) {
        let mut process: Option<Process> = None;
        let mut stopping = self.reaper.clone();
        loop {
            let next = tokio::select! {
                // First, so that output out of turn is seen before a question that waits is asked.
                biased;
                () = stopping.stopping() => return,
                broken = unasked(&mut process) => {
                    process = None;
                    self.note(broken);
                    continue;
                }
                next = calls.recv() => next,
            };
            let Some(Exchange { question, reply }) = next else {
                return;
            };
            if reply.is_closed() {
                continue;
            }
            match self
                .answer(process.take(), &question, reply, &mut stopping)
                .await
            {
                Some(kept) => process = kept,
                None => return,
            }
        }
    }

    /// Has one call answered, and says which process is kept; `None` once the agent is being stopped.
    async fn answer(
        &mut self,
        process: Option<Process>,
        question: &[u8],
        mut reply: oneshot::Sender<Result<Bytes, Status>>,
        stopping: &mut ReaperHandle,
    ) -> Option<Option<Process>> {
        let mut current = match process.map_or_else(|| self.begin(), Ok) {
            Ok(current) => current,
            Err(status) => {
                let _ = reply.send(Err(status));
                return Some(None);
            }
        };
        let answer = tokio::select! {
            answer = current.exchange(question, self.manner.keys) => answer,
            // Dropping `current` ends the process.
            () = reply.closed() => return Some(None),
            () = stopping.stopping() => return None,
        };
        // A caller that left meanwhile has lost nothing that another could use.
        match answer {
            Ok(line) => {
                let _ = reply.send(Ok(line));
                Some(Some(current))
            }
            Err(broken) => {
                self.note(broken);
                let _ = reply.send(Err(current.end(broken).await));
                Some(None)
            }
        }
    }

    fn begin(&self) -> Result<Process, Status> {
        Process::start(&self.program, &self.reaper)
    }

    /// Tells the operator of a fault: the first, the second, the fourth and so on, because callers choose how many
    /// there are.
    fn note(&mut self, broken: Broken) {
        let Broken::Fault(fault) = broken else { return };
        self.told += 1;
        if self.told.is_power_of_two() {
            let (what, times) = (describe(fault), self.told);
            (self.manner.tell)(&format!("{what}; it was ended ({times} times so far)"));
        }
    }
}

/// Resolves when a process that is not being asked anything writes, or ends.
async fn unasked(process: &mut Option<Process>) -> Broken {
    match process {
        Some(process) => process.unasked().await,
        None => std::future::pending().await,
    }
}

/// The running process.
#[derive(Debug)]
struct Process {
    stdin: ChildStdin,
    stdout: ChildStdout,
    stderr: JoinHandle<Tail>,
    running: Running,
    pid: u32,
    dialogue: Dialogue,
    buffer: BytesMut,
    keys: std::hash::RandomState,
    asked: u64,
}

/// Why an exchange failed.
#[derive(Clone, Copy, Debug)]
enum Broken {
    /// The process closed a pipe: it has ended or is about to.
    Ended,
    /// It wrote something that is no answer, or may not be the one.
    Fault(Fault),
}

impl From<Fault> for Broken {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

impl Process {
    fn start(program: &Program, reaper: &ReaperHandle) -> Result<Self, Status> {
        let mut running = program.start(&[], reaper, None)?;
        let child = piped(running.child())?;
        let pid = child.id().unwrap_or(0);
        let stdin = piped(child.stdin.take())?;
        let stdout = piped(child.stdout.take())?;
        let stderr = piped(child.stderr.take())?;
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
            pid,
            dialogue: Dialogue::started(Instant::now().into_std()),
            buffer: BytesMut::new(),
            keys: std::hash::RandomState::new(),
            asked: 0,
        })
    }

    /// Asks once the process rests, and returns its answer once it rests again.
    async fn exchange(&mut self, question: &[u8], keys: bool) -> Result<Bytes, Broken> {
        if !self.dialogue.is_ready() {
            self.settle().await?;
        }
        if ioctl_fionread(&self.stdout).is_ok_and(|bytes| bytes > 0) {
            return Err(Fault::Unasked.into());
        }
        let key = self.key(keys);
        let line = self.dialogue.ask(question, key);
        let mut unwritten = &line[..];
        loop {
            tokio::select! {
                written = self.stdin.write(unwritten), if !unwritten.is_empty() => {
                    unwritten = &unwritten[written.map_err(|_| Broken::Ended)?..];
                    if unwritten.is_empty() {
                        self.dialogue.question_written();
                    }
                }
                output = read(&mut self.stdout, &mut self.buffer) => {
                    let output = output.ok_or(Broken::Ended)?;
                    let now = Instant::now().into_std();
                    if let Some(answer) = self.dialogue.output(&output, now)? {
                        return Ok(answer);
                    }
                    if self.dialogue.is_settling() {
                        break;
                    }
                }
            }
        }
        match self.settle().await? {
            Settled::Answer(answer) => Ok(answer),
            // Only a process that was not asked settles without an answer.
            Settled::Started => Err(Broken::Ended),
        }
    }

    /// Looks at the process until it rests.
    async fn settle(&mut self) -> Result<Settled, Broken> {
        let eager = Instant::now() + EAGER;
        loop {
            // In this order: what waits for input cannot write after that.
            let rest = rest::look(self.pid, &self.stdin);
            let now = Instant::now();
            let quiet = !ioctl_fionread(&self.stdout).is_ok_and(|bytes| bytes > 0);
            if quiet && let Some(settled) = self.dialogue.looked(rest, now.into_std()) {
                return Ok(settled);
            }
            let pause = async {
                match now < eager {
                    true => tokio::task::yield_now().await,
                    false => tokio::time::sleep(LOOK).await,
                }
            };
            tokio::select! {
                biased;
                output = read(&mut self.stdout, &mut self.buffer) => match output {
                    Some(output) => {
                        self.dialogue.output(&output, now.into_std())?;
                    }
                    None => return self.dialogue.ended().ok_or(Broken::Ended),
                },
                () = pause => {}
            }
        }
    }

    /// Resolves when the process writes or ends although it was asked nothing. Cancel safe.
    async fn unasked(&mut self) -> Broken {
        match read(&mut self.stdout, &mut self.buffer).await {
            Some(_) => Fault::Unasked.into(),
            None => Broken::Ended,
        }
    }

    /// What the answer to the next question must begin with: nobody but the program learns it.
    fn key(&mut self, wanted: bool) -> Bytes {
        if !wanted {
            return Bytes::new();
        }
        self.asked += 1;
        // SipHash under a secret of this process's own.
        format!("{:016x}\t", self.keys.hash_one(self.asked)).into()
    }

    /// What to tell the caller of an exchange that failed. Ends the process.
    async fn end(self, broken: Broken) -> Status {
        let Self {
            stdin,
            stdout,
            stderr,
            mut running,
            ..
        } = self;
        if let Broken::Fault(fault) = broken {
            let code = match fault {
                Fault::TooLong => Code::ResourceExhausted,
                _ => Code::Internal,
            };
            return Status::new(code, describe(fault))
                .with_hint("its operator can read how `hail serve --lines` takes answers");
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

/// What the process has written; `None` at the end. Cancel safe.
async fn read(stdout: &mut ChildStdout, buffer: &mut BytesMut) -> Option<Bytes> {
    buffer.reserve(READ_SIZE);
    match stdout.read_buf(buffer).await {
        Ok(1..) => Some(buffer.split().freeze()),
        Ok(0) | Err(_) => None,
    }
}

fn describe(fault: Fault) -> String {
    match fault {
        Fault::Unasked => {
            "the agent's program wrote a line that nobody asked for; it answers each line with one"
                .to_owned()
        }
        Fault::Early => "the agent's program answered before it was asked to the end".to_owned(),
        Fault::OtherKey => {
            "the agent's program wrote a line without the key of the question".to_owned()
        }
        Fault::TooLong => {
            format!("the agent's program wrote a line longer than {MAX_LINE} bytes")
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::serve::reaper::{Children, Reaper};

    struct House {
        lines: Lines,
        task: JoinHandle<()>,
        reaper: Reaper,
    }

    impl House {
        fn new(script: &str) -> Self {
            Self::with(script, false)
        }

        fn with(script: &str, keys: bool) -> Self {
            let reaper = Reaper::start(Children::Mixed);
            let program = Program {
                program: "sh".into(),
                args: vec!["-c".into(), script.into()],
                grace: Duration::from_secs(5),
            };
            let manner = Manner {
                keys,
                tell: Arc::new(|_| {}),
            };
            let (lines, task) = Lines::start(program, manner, reaper.handle());
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

    /// Calls one after another; who was answered with what begins with another's question.
    async fn strangers(house: &House, calls: usize) -> (usize, Vec<String>) {
        let (mut answered, mut wrong) = (0, Vec::new());
        for i in 0..calls {
            let question = format!("q{i}.");
            if let Ok(answer) = house.lines.exchange(question.as_bytes()).await {
                answered += 1;
                if !answer.starts_with(question.as_bytes()) {
                    wrong.push(format!("{question}: {answer:?}"));
                }
            }
        }
        (answered, wrong)
    }

    #[tokio::test]
    async fn a_line_too_many_is_an_error_and_never_the_next_callers_answer() {
        for script in [
            "while read l; do echo $l; echo $l; done",
            "while read l; do printf '%s\\n%s\\n' $l $l; done",
            "echo banner; while read l; do echo $l; done",
            // Slow to start, and then talkative.
            "sleep 0.02; n=0; while [ $n -lt 30000 ]; do n=$((n+1)); done; echo banner; while read l; do echo $l; done",
        ] {
            let house = House::new(script);
            let (answered, wrong) = strangers(&house, 6).await;
            assert_eq!((answered, wrong), (0, vec![]), "{script}");
            house.finish().await;
        }
    }

    #[tokio::test]
    async fn a_program_that_slips_once_is_started_again_and_answers_the_others() {
        let folder = tempfile::tempdir().unwrap();
        let mark = folder.path().join("slipped");
        let script = format!(
            "while read l; do echo $l; [ $l = q2. ] && [ ! -e '{0}' ] && touch '{0}' && echo $l; done",
            mark.display()
        );
        let house = House::new(&script);
        let (answered, wrong) = strangers(&house, 6).await;
        assert_eq!((answered, wrong), (5, vec![]));
        house.finish().await;
    }

    #[tokio::test]
    async fn output_while_nobody_asks_restarts_the_program_before_the_next_question() {
        let house = House::new("while read l; do echo $$ $l; (sleep 0.05; echo late) & done");
        let pid = |line: &Bytes| line.split(|b| *b == b' ').next().unwrap().to_vec();
        let first = house.lines.exchange(b"a").await.unwrap();
        // The first process is ended by what it writes: its number vanishes.
        let number = String::from_utf8(pid(&first)).unwrap();
        let ended = async {
            while std::path::Path::new(&format!("/proc/{number}")).exists() {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), ended)
            .await
            .unwrap();
        let second = house.lines.exchange(b"b").await.unwrap();
        assert!(pid(&first) != pid(&second) && second.ends_with(b" b\n"));
        house.finish().await;
    }

    #[tokio::test]
    async fn with_keys_even_a_line_that_comes_late_is_nobody_elses_answer() {
        let script = r#"while read k l; do printf '%s\t%s\n' $k $l; (sleep 0.004; printf '%s\t%s\n' $k $l) & done"#;
        let house = House::with(script, true);
        let (answered, wrong) = strangers(&house, 40).await;
        assert_eq!(wrong, Vec::<String>::new());
        assert!(answered > 0);
        house.finish().await;
        let house = House::with("cat", true);
        assert_eq!(strangers(&house, 100).await, (100, vec![]));
        house.finish().await;
    }

    #[tokio::test]
    async fn a_long_question_may_be_answered_while_it_is_still_read() {
        let house = House::new("cat");
        let question = vec![b'x'; MAX_LINE - 1];
        let answer = house.lines.exchange(&question).await.unwrap();
        assert_eq!(answer.len(), MAX_LINE);
        let early = House::new("echo yes; cat >&2");
        let status = early.lines.exchange(&question).await.unwrap_err();
        assert_eq!(status.code, Code::Internal);
        house.finish().await;
        early.finish().await;
    }

    #[tokio::test]
    async fn a_program_that_answers_once_and_ends_has_answered() {
        let house = House::new("read l; echo $l");
        for question in ["a", "b", "c"] {
            let answer = house.lines.exchange(question.as_bytes()).await;
            if let Ok(answer) = answer {
                assert_eq!(answer, format!("{question}\n"));
            }
        }
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
            house.lines.exchange(b"a\rb").await.unwrap_err().code,
            Code::InvalidArgument
        );
        assert_eq!(
            house.lines.exchange(b"a").await.unwrap_err().code,
            Code::ResourceExhausted
        );
        house.finish().await;
    }
}
