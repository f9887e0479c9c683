//! Programs behind `hail serve`: how many there are, that none is left, and whose an answer is. Real processes and signals.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use hailwire::{Body, Client, Code, DataDir};

use crate::test_nodes::{Ran, TestNodes, first_line, mkfifo};

/// How long something may take that must happen.
const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until something holds, on a machine of whatever load. Nothing tells of the end of processes that are not ours,
/// so it looks again and again.
#[track_caller]
pub(crate) fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < end, "never: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Whether a process is there and one of its threads has not ended: the first may end before the others, which hold what is open.
pub(crate) fn runs(pid: u32) -> bool {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return false;
    };
    threads.flatten().any(|thread| {
        fs::read_to_string(thread.path().join("stat"))
            .ok()
            .and_then(|stat| Some(stat.rsplit_once(") ")?.1.starts_with(['Z', 'X'])))
            .is_some_and(|ended| !ended)
    })
}

/// Numbers that scripts have written into a folder, each as the name of a file.
pub(crate) fn numbers(folder: &Path) -> Vec<u32> {
    let entries = fs::read_dir(folder).unwrap().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter_map(|name| name.parse().ok()).collect()
}

fn running(folder: &Path) -> usize {
    numbers(folder).into_iter().filter(|pid| runs(*pid)).count()
}

fn folder(nodes: &TestNodes, name: &str) -> PathBuf {
    let folder = nodes.path(name);
    fs::create_dir(&folder).unwrap();
    folder
}

pub(crate) fn kill(signal: &str, pid: u32) {
    let args = [signal.to_owned(), pid.to_string()];
    assert!(Command::new("kill").args(args).status().unwrap().success());
}

/// A process that ends with its test at the latest.
pub(crate) struct Ended(pub(crate) Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// `hail serve`, which the test will end itself.
fn serve(nodes: &TestNodes, args: &[&str]) -> Ended {
    let hail = nodes.hail("desk", &["--json", "serve"]);
    // Whoever runs the tests may ignore signals (`nohup`), and that is inherited.
    let mut command = Command::new("env");
    command
        .arg("--default-signal=HUP,INT,QUIT")
        .arg(hail.get_program());
    command
        .args(hail.get_args())
        .args(args)
        .stdin(Stdio::null());
    for (name, value) in hail.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    assert!(first_line(&mut child).contains("serving"));
    Ended(child)
}

/// A call under way, which has printed its first line.
fn calling(nodes: &TestNodes, agent: &str) -> Ended {
    let mut command = nodes.hail("desk", &["call", agent]);
    let command = command.stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    assert_eq!(first_line(&mut child), "started\n");
    Ended(child)
}

/// The child processes of a process.
pub(crate) fn children(pid: u32) -> Vec<u32> {
    let all = fs::read_dir("/proc").unwrap().flatten();
    let numbers = all.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let parent = |of: &u32| -> Option<u32> {
        let stat = fs::read_to_string(format!("/proc/{of}/stat")).ok()?;
        let (_, rest) = stat.rsplit_once(") ")?;
        rest.split(' ').nth(1)?.parse().ok()
    };
    numbers.filter(|of| parent(of) == Some(pid)).collect()
}

/// Each of these starts a process beside its program that only an exact search finds; it writes its number to `$1`.
const ESCAPES: [(&str, &str); 4] = [
    (
        "a session of its own",
        "setsid sh -c 'touch $0/$$; exec sleep 1000' $1 &",
    ),
    (
        "a session, its parent gone",
        "setsid -f sh -c 'touch $0/$$; exec sleep 1000' $1",
    ),
    (
        "a session, its parent gone, no environment",
        "env -i setsid -f sh -c 'touch $0/$$; exec sleep 1000' $1",
    ),
    (
        "deaf to SIGTERM",
        "setsid -f sh -c 'trap \"\" TERM; touch $0/$$; while :; do sleep 1; done' $1",
    ),
];

#[test]
fn what_a_program_started_in_a_session_of_its_own_ends_with_a_cancelled_call() {
    let mut nodes = TestNodes::new();
    nodes.up("desk");
    for (number, (what, escape)) in ESCAPES.into_iter().enumerate() {
        let started = folder(&nodes, &format!("started{number}"));
        let name = format!("escape{number}");
        let script = format!("{escape}\ntouch $1/$$; echo started; sleep 1000");
        let at = started.to_str().unwrap();
        let program = [
            &name, "--grace", "100ms", "--", "sh", "-c", &script, "sh", at,
        ];
        nodes.serve_with("desk", &program);
        let mut call = calling(&nodes, &name);
        until(what, || running(&started) == 2);
        kill("-INT", call.0.id());
        assert_eq!(call.0.wait().unwrap().code(), Some(130), "{what}");
        until(what, || running(&started) == 0);
    }
}

#[test]
fn what_a_program_leaves_in_the_background_ends_with_its_call() {
    let mut nodes = TestNodes::new();
    nodes.up("desk");
    let started = folder(&nodes, "started");
    let escapes = ESCAPES.map(|(_, escape)| escape).join("\n");
    // It ends when as many as the caller says have been started.
    let script = format!(
        "read n; ( {escapes}\n ) >/dev/null 2>&1
        while [ $(ls $1 | wc -l) -lt $n ]; do :; done; echo done"
    );
    let at = started.to_str().unwrap();
    nodes.serve_with(
        "desk",
        &[
            "left", "--grace", "100ms", "--", "sh", "-c", &script, "sh", at,
        ],
    );
    for call in 1..=3 {
        let all = (4 * call).to_string();
        let ran = nodes.run("desk", &["call", "left", &all]).ok();
        assert_eq!(ran.stdout, "done\n");
        until("none is left", || running(&started) == 0);
    }
}

#[test]
fn a_killed_serve_leaves_no_process_whichever_of_its_two_is_killed() {
    let mut nodes = TestNodes::new();
    nodes.up("desk");
    for (round, of_the_guard) in [true, false].into_iter().enumerate() {
        let started = folder(&nodes, &format!("started{round}"));
        let escapes = ESCAPES.map(|(_, escape)| escape).join("\n");
        let script = format!("{escapes}\ntouch $1/$$; echo started; exec sleep 1000");
        let at = started.to_str().unwrap();
        let name = format!("many{round}");
        let args = [
            &name, "--grace", "100ms", "--", "sh", "-c", &script, "sh", at,
        ];
        let mut serve = serve(&nodes, &args);
        let mut calls = [calling(&nodes, &name), calling(&nodes, &name)];
        until("every program runs", || running(&started) == 10);
        let [guarded] = children(serve.0.id())[..] else {
            panic!("the guard has one child");
        };
        kill("-KILL", if of_the_guard { serve.0.id() } else { guarded });
        until("nothing is left", || {
            running(&started) == 0 && !runs(guarded)
        });
        serve.0.wait().unwrap();
        for call in &mut calls {
            assert!(!call.0.wait().unwrap().success());
        }
    }
}

#[test]
fn a_closed_terminal_ends_the_programs_as_a_stop_does() {
    let mut nodes = TestNodes::new();
    nodes.up("desk");
    let started = folder(&nodes, "started");
    let script = "touch $1/$$; echo started; exec sleep 1000";
    let at = started.to_str().unwrap();
    let mut serve = serve(&nodes, &["slow", "--", "sh", "-c", script, "sh", at]);
    let mut call = calling(&nodes, "slow");
    until("the program runs", || running(&started) == 1);
    // As a terminal does: to every process of the job.
    for pid in children(serve.0.id()).into_iter().chain([serve.0.id()]) {
        kill("-HUP", pid);
    }
    serve.0.wait().unwrap();
    until("nothing is left", || running(&started) == 0);
    assert!(!call.0.wait().unwrap().success());
}

#[test]
fn six_hundred_calls_run_no_more_processes_than_max_allows() {
    const CALLS: usize = 600;
    let mut nodes = TestNodes::new();
    nodes.up("desk");
    for (name, max, expected) in [("few", Some("5"), 5), ("usual", None, 64)] {
        let started = folder(&nodes, name);
        let script = "touch $1/$$; read line; exit 0";
        let at = started.to_str().unwrap();
        let mut args = vec![name, "--queue", "0"];
        args.extend(max.iter().flat_map(|max| ["--max", max]));
        args.extend(["--", "sh", "-c", script, "sh", at]);
        nodes.serve_with("desk", &args);
        let (most, answered) = flood(&nodes, name, (CALLS, expected), || running(&started));
        assert!(most <= expected, "{name}: {most} processes");
        assert_eq!(answered, expected, "{name}");
        assert_eq!(numbers(&started).len(), expected, "{name}");
        until("the processes of calls that are over end", || {
            running(&started) == 0
        });
        assert_eq!(nodes.run("desk", &["call", name]).ok().stdout, "");
    }
}

/// Makes `calls` calls at once, whose bodies stay open until all but `max` were refused: the most processes that were seen
/// meanwhile, and how many calls were answered.
fn flood(
    nodes: &TestNodes,
    agent: &str,
    (calls, max): (usize, usize),
    running: impl Fn() -> usize,
) -> (usize, usize) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let data = DataDir::new(nodes.path("desk"));
    runtime.block_on(async {
        let client = Client::attach(&data).await.unwrap();
        let mut bodies = Vec::new();
        let mut answers = tokio::task::JoinSet::new();
        for _ in 0..calls {
            let (sender, body) = Body::channel(1);
            bodies.push(sender);
            let call = client.call(agent).body(body);
            answers.spawn(async move { call.send().await?.bytes(1024).await });
        }
        let mut most = 0;
        let refusals = async {
            for _ in max..calls {
                let answer = answers.join_next().await.unwrap().unwrap();
                assert_eq!(answer.unwrap_err().code, Code::ResourceExhausted);
                most = most.max(running());
            }
        };
        tokio::time::timeout(PATIENCE, refusals).await.unwrap();
        for body in bodies {
            // Those that were refused want no end.
            let _ = body.finish().await;
        }
        let mut answered = 0;
        while let Some(answer) = answers.join_next().await {
            answered += usize::from(answer.unwrap().is_ok());
        }
        (most, answered)
    })
}

#[test]
fn no_line_goes_to_another_caller() {
    let mut nodes = TestNodes::new();
    nodes.up("desk");
    let universal =
        "import sys\nfor line in sys.stdin:\n    print('you said ' + line.strip(), flush=True)";
    let python = ["--", "python3", "-c", universal];
    let twice = [
        "--",
        "sh",
        "-c",
        "while read l; do echo you said $l; echo you said $l; done",
    ];
    let banner = [
        "--",
        "sh",
        "-c",
        "echo welcome; while read l; do echo you said $l; done",
    ];
    let late = [
        "--keys",
        "--",
        "sh",
        "-c",
        "while read k l; do echo \"$k\tyou said $l\"; (sleep 0.003; echo \"$k\tyou said $l\") & done",
    ];
    for (name, args) in [
        ("py", &python[..]),
        ("twice", &twice),
        ("banner", &banner),
        ("late", &late),
    ] {
        nodes.serve_with("desk", &[&[name, "--lines"], args].concat());
        for end in [
            "\r", "\n", "\r\n", "\u{85}", "\u{2028}", "\u{2029}", "\u{b}", "\u{c}", "\u{1c}",
        ] {
            let ran = nodes.run("desk", &["call", name, &format!("mine{end}stolen")]);
            assert_eq!(ran.code, Some(67), "{name} {end:?}: {ran:#?}");
        }
        for number in 0..6 {
            let Ran { code, stdout, .. } = nodes.run("desk", &["call", name, &format!("{number}")]);
            match code {
                Some(0) => assert_eq!(stdout, format!("you said {number}\n"), "{name}"),
                _ => assert!(stdout.is_empty() && name != "py", "{name}: {stdout:?}"),
            }
        }
    }
}

#[test]
fn a_serve_that_is_told_to_end_lets_its_call_end_whole_and_is_told_twice_to_end_at_once() {
    let mut nodes = TestNodes::new();
    nodes.up("desk");
    // It answers once there is a word in the pipe.
    let script = "echo started; cat $0 >/dev/null; echo whole";
    for twice in [false, true] {
        let name = format!("slow-{twice}");
        let pipe = nodes.path(&name);
        mkfifo(&pipe);
        let at = pipe.to_str().unwrap();
        let args = [
            name.as_str(),
            "--drain",
            "60s",
            "--",
            "sh",
            "-c",
            script,
            at,
        ];
        let mut serving = serve(&nodes, &args);
        let mut call = nodes.hail("desk", &["call", &name]);
        let call = call.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut call = Ended(call.spawn().unwrap());
        assert_eq!(first_line(&mut call.0), "started\n");
        kill("-TERM", serving.0.id());
        // Another one has nobody to go to.
        until("no further call", || {
            let other = nodes.run("desk", &["--json", "call", &name, "--timeout", "5s"]);
            [Some(69), Some(78)].contains(&other.code)
        });
        assert!(serving.0.try_wait().unwrap().is_none(), "it waits");
        if twice {
            kill("-TERM", serving.0.id());
            serving.0.wait().unwrap();
            assert_eq!(call.0.wait().unwrap().code(), Some(78));
        } else {
            fs::write(&pipe, "go").unwrap();
            let mut rest = String::new();
            let stdout = call.0.stdout.as_mut().unwrap();
            std::io::Read::read_to_string(stdout, &mut rest).unwrap();
            assert_eq!(rest, "whole\n");
            assert!(call.0.wait().unwrap().success());
            assert!(serving.0.wait().unwrap().success());
        }
    }
}

#[test]
fn calls_beyond_max_wait_the_most_urgent_first_and_beyond_the_queue_are_refused() {
    let mut nodes = TestNodes::new();
    nodes.up("desk");
    let pipe = nodes.path("pipe");
    mkfifo(&pipe);
    let order = nodes.path("order");
    let script = "read line; echo $line >>$1; echo started; cat $0 >/dev/null";
    let paths = [&pipe, &order].map(|path| path.to_str().unwrap().to_owned());
    let args = [
        "desk-work",
        "--max",
        "1",
        "--queue",
        "2",
        "--",
        "sh",
        "-c",
        script,
        &paths[0],
        &paths[1],
    ];
    nodes.serve_with("desk", &args);
    let call = |priority: &str| {
        let mut call = nodes.hail("desk", &["call", "desk-work", priority, "-p", priority]);
        let call = call.stdout(Stdio::piped()).stderr(Stdio::null());
        Ended(call.spawn().unwrap())
    };
    let waiting = |count: u64| {
        until("so many wait", || {
            let rows = nodes
                .run("desk", &["--json", "agents", "--local"])
                .ok()
                .json();
            let rows = rows.as_array().cloned().unwrap_or_default();
            rows.iter().any(|row| row["waiting"] == count)
        });
    };
    let mut calls = vec![call("medium")];
    assert_eq!(first_line(&mut calls[0].0), "started\n");
    calls.push(call("low"));
    waiting(1);
    calls.push(call("critical"));
    waiting(2);
    let refused = nodes.run("desk", &["call", "desk-work", "x", "-p", "low"]);
    assert_eq!(refused.code, Some(72));
    for begun in 1..=3 {
        // The one before has ended, and with it its end of the pipe.
        until("the next one begins", || {
            let lines = fs::read_to_string(&order).unwrap_or_default();
            lines.lines().count() == begun
        });
        fs::write(&pipe, "go").unwrap();
    }
    for call in &mut calls {
        assert!(call.0.wait().unwrap().success());
    }
    assert_eq!(
        fs::read_to_string(&order).unwrap(),
        "medium\ncritical\nlow\n"
    );
}
