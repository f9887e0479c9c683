//! Lines exchanged with real programs, well behaved and not.

use std::time::Duration;

use super::*;
use crate::serve::reaper::{ChildOwnership, ProcessReaper};

struct LineFixture {
    lines: LineProgram,
    task: JoinHandle<()>,
    reaper: ProcessReaper,
    counters: Arc<AgentCounters>,
}

/// How long a program that answers nothing is left alone: longer than any test takes.
const PAUSE: Duration = Duration::from_secs(1000);

impl LineFixture {
    fn new(script: &str) -> Self {
        Self::with(script, false)
    }

    fn with(script: &str, keys: bool) -> Self {
        let reaper = ProcessReaper::start(ChildOwnership::Mixed);
        let program = AgentProgram {
            program: "sh".into(),
            args: vec!["-c".into(), script.into()],
            grace: Duration::from_secs(5),
            ..AgentProgram::default()
        };
        let counters = Arc::<AgentCounters>::default();
        let options = LineOptions {
            keys,
            restart: RestartDelays {
                min: PAUSE,
                max: PAUSE,
            },
            tell: Arc::new(|_| {}),
            limit: Arc::new(ProgramLimit::new(usize::MAX)),
            counters: counters.clone(),
        };
        let (lines, task) = LineProgram::start(program, options, reaper.handle());
        Self {
            lines,
            task,
            reaper,
            counters,
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
    let house = LineFixture::new("while read l; do echo $$ $l; done");
    let first = house.lines.exchange(b"a", Priority::Medium).await.unwrap();
    let second = house
        .lines
        .exchange(b"b\n", Priority::Medium)
        .await
        .unwrap();
    let pid = |line: &Bytes| line.split(|b| *b == b' ').next().unwrap().to_vec();
    assert_eq!(pid(&first), pid(&second));
    assert!(first.ends_with(b" a\n") && second.ends_with(b" b\n"));
    house.finish().await;
}

#[tokio::test]
async fn calls_at_once_are_answered_each_with_its_own_line() {
    let house = LineFixture::new("cat");
    let calls = (0..50).map(|i| {
        let lines = house.lines.clone();
        tokio::spawn(async move {
            (
                i,
                lines
                    .exchange(i.to_string().as_bytes(), Priority::Medium)
                    .await,
            )
        })
    });
    for call in calls.collect::<Vec<_>>() {
        let (i, answer) = call.await.unwrap();
        assert_eq!(answer.unwrap(), format!("{i}\n"));
    }
    house.finish().await;
}

#[tokio::test]
async fn the_most_urgent_of_the_calls_that_wait_is_next_and_may_take_a_place_among_them() {
    let waiting = Arc::<Mutex<WaitingLines>>::default();
    let enter = |text: &'static str, priority| {
        let (reply, answer) = oneshot::channel();
        let question = Bytes::from(text);
        let entered = locked(&waiting).enter(LineExchange { question, reply }, priority);
        (entered, answer)
    };
    let mut low: Vec<_> = (0..MAX_WAITING)
        .map(|_| enter("low", Priority::Low).1)
        .collect();
    assert!(enter("more", Priority::Low).0.is_err());
    let (entered, _answer) = enter("critical", Priority::Critical);
    assert_eq!(entered, Ok(false), "it has the place of another");
    let newest = low.pop().unwrap().await.unwrap().unwrap_err();
    assert_eq!(newest.code, Code::ResourceExhausted);
    let next = || locked(&waiting).next().map(|next| next.question);
    assert_eq!(next().unwrap(), "critical");
    for _ in low {
        assert_eq!(next().unwrap(), "low");
    }
    assert_eq!(next(), None);
}

#[tokio::test]
async fn a_process_that_died_is_started_again_by_the_next_call() {
    let house = LineFixture::new("read l; echo $l; read l; echo gone >&2; exit 1");
    assert_eq!(
        house.lines.exchange(b"a", Priority::Medium).await.unwrap(),
        "a\n"
    );
    let status = house
        .lines
        .exchange(b"b", Priority::Medium)
        .await
        .unwrap_err();
    assert_eq!(
        (status.code, status.details.as_str()),
        (Code::Unavailable, "gone")
    );
    assert_eq!(
        house.lines.exchange(b"c", Priority::Medium).await.unwrap(),
        "c\n"
    );
    house.finish().await;
}

#[tokio::test]
async fn a_cancelled_call_never_answers_the_next_one() {
    let house = LineFixture::new("while read l; do [ $l = stuck ] && sleep 1000; echo $l; done");
    assert_eq!(
        house.lines.exchange(b"a", Priority::Medium).await.unwrap(),
        "a\n"
    );
    {
        let stuck = house.lines.exchange(b"stuck", Priority::Medium);
        tokio::pin!(stuck);
        // Polled once, so that the call is on its way, then dropped.
        tokio::select! { biased; _ = &mut stuck => panic!("answered"), () = std::future::ready(()) => {} }
    }
    assert_eq!(
        house.lines.exchange(b"b", Priority::Medium).await.unwrap(),
        "b\n"
    );
    house.finish().await;
}

/// Calls one after another; who was answered with what begins with another's question.
async fn strangers(house: &LineFixture, calls: usize) -> (usize, Vec<String>) {
    let (mut answered, mut wrong) = (0, Vec::new());
    for i in 0..calls {
        let question = format!("q{i}.");
        if let Ok(answer) = house
            .lines
            .exchange(question.as_bytes(), Priority::Medium)
            .await
        {
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
        let house = LineFixture::new(script);
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
    let house = LineFixture::new(&script);
    let (answered, wrong) = strangers(&house, 6).await;
    assert_eq!((answered, wrong), (5, vec![]));
    house.finish().await;
}

#[tokio::test]
async fn output_while_nobody_asks_restarts_the_program_before_the_next_question() {
    let house = LineFixture::new("while read l; do echo $$ $l; (sleep 0.05; echo late) & done");
    let pid = |line: &Bytes| line.split(|b| *b == b' ').next().unwrap().to_vec();
    let first = house.lines.exchange(b"a", Priority::Medium).await.unwrap();
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
    let second = house.lines.exchange(b"b", Priority::Medium).await.unwrap();
    assert!(pid(&first) != pid(&second) && second.ends_with(b" b\n"));
    house.finish().await;
}

#[tokio::test]
async fn with_keys_even_a_line_that_comes_late_is_nobody_elses_answer() {
    let script = r#"while read k l; do printf '%s\t%s\n' $k $l; (sleep 0.004; printf '%s\t%s\n' $k $l) & done"#;
    let house = LineFixture::with(script, true);
    let (answered, wrong) = strangers(&house, 40).await;
    assert_eq!(wrong, Vec::<String>::new());
    assert!(answered > 0);
    house.finish().await;
    let house = LineFixture::with("cat", true);
    assert_eq!(strangers(&house, 100).await, (100, vec![]));
    house.finish().await;
}

#[tokio::test]
async fn a_long_question_may_be_answered_while_it_is_still_read() {
    let house = LineFixture::new("cat");
    let question = vec![b'x'; MAX_LINE - 1];
    let answer = house
        .lines
        .exchange(&question, Priority::Medium)
        .await
        .unwrap();
    assert_eq!(answer.len(), MAX_LINE);
    let early = LineFixture::new("echo yes; cat >&2");
    let status = early
        .lines
        .exchange(&question, Priority::Medium)
        .await
        .unwrap_err();
    assert_eq!(status.code, Code::Internal);
    house.finish().await;
    early.finish().await;
}

#[tokio::test]
async fn a_program_that_answers_once_and_ends_has_answered() {
    let house = LineFixture::new("read l; echo $l");
    for question in ["a", "b", "c"] {
        let answer = house
            .lines
            .exchange(question.as_bytes(), Priority::Medium)
            .await;
        if let Ok(answer) = answer {
            assert_eq!(answer, format!("{question}\n"));
        }
    }
    house.finish().await;
}

#[tokio::test]
async fn two_lines_and_an_endless_line_are_refused() {
    let house = LineFixture::new("read l; cat /dev/zero");
    assert_eq!(
        house
            .lines
            .exchange(b"a\nb", Priority::Medium)
            .await
            .unwrap_err()
            .code,
        Code::InvalidArgument
    );
    assert_eq!(
        house
            .lines
            .exchange(b"a\rb", Priority::Medium)
            .await
            .unwrap_err()
            .code,
        Code::InvalidArgument
    );
    assert_eq!(
        house
            .lines
            .exchange(b"a", Priority::Medium)
            .await
            .unwrap_err()
            .code,
        Code::ResourceExhausted
    );
    house.finish().await;
}

#[tokio::test]
async fn a_program_that_answers_nothing_is_left_alone_for_a_while() {
    let folder = tempfile::tempdir().unwrap();
    let script = format!("echo >>'{}/starts'; exit 3", folder.path().display());
    let house = LineFixture::new(&script);
    let mut told = Vec::new();
    for _ in 0..100 {
        told.push(
            house
                .lines
                .exchange(b"a", Priority::Medium)
                .await
                .unwrap_err(),
        );
    }
    assert!(told.iter().all(|status| status.code == Code::Unavailable));
    assert!(
        told[99].message.contains("started again in"),
        "{}",
        told[99]
    );
    let starts = std::fs::read(folder.path().join("starts")).unwrap();
    assert_eq!(starts.len(), 1);
    let (left, why) = house.counters.paused(Instant::now()).unwrap();
    assert!(left > PAUSE / 2 && why.contains("exit status 3"), "{why}");
    house.finish().await;
}

#[tokio::test]
async fn a_program_that_has_answered_is_started_again_at_once_and_counted() {
    let house = LineFixture::new("read l; echo $l; exit 3");
    for _ in 0..4 {
        assert_eq!(
            house.lines.exchange(b"a", Priority::Medium).await.unwrap(),
            "a\n"
        );
    }
    assert_eq!(house.counters.restarts.load(Relaxed), 3);
    house.finish().await;
}
