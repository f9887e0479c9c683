//! Agents that stay: declared in a file, kept by a supervisor beside the node, changed without dropping calls. Real processes.

use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    path::PathBuf,
    process::{Child, Stdio},
};

use serde_json::Value;

use crate::{
    programs::{Ended, children, kill, numbers, runs, until},
    test_nodes::{Ran, TestNodes, first_line},
};

/// The rows of `hail serve ls`.
fn rows(nodes: &TestNodes) -> Vec<Value> {
    let listed = nodes.run("desk", &["serve", "ls", "--json"]).ok().json();
    listed.as_array().unwrap().clone()
}

fn row(nodes: &TestNodes, name: &str) -> Value {
    let mut rows = rows(nodes).into_iter();
    rows.find(|row| row["name"] == name).unwrap()
}

fn keep(nodes: &TestNodes, args: &[&str]) -> Ran {
    nodes.run("desk", &[&["serve", "--keep"], args].concat())
}

fn keep_script(nodes: &TestNodes, name: &str, script: &str) {
    keep(nodes, &[name, "--", "sh", "-c", script]).ok();
}

fn call(nodes: &TestNodes, agent: &str, body: &str) -> Ran {
    nodes.run("desk", &["call", agent, body, "--timeout", "30s"])
}

/// The process id that `hail up` prints.
fn pid(started: &Value) -> u32 {
    started["pid"].as_u64().unwrap().try_into().unwrap()
}

/// The two processes of the supervisor beside a node: its guard, and the one that serves.
fn supervisor(node: u32) -> Option<(u32, u32)> {
    let [guard] = children(node)[..] else {
        return None;
    };
    match children(guard)[..] {
        [serving] => Some((guard, serving)),
        _ => None,
    }
}

/// Writes the file of agents by hand.
fn write(nodes: &TestNodes, text: &str) {
    fs::create_dir_all(nodes.path("desk")).unwrap();
    fs::write(nodes.path("desk/agents.kdl"), text).unwrap();
}

fn file(nodes: &TestNodes) -> String {
    fs::read_to_string(nodes.path("desk/agents.kdl")).unwrap()
}

/// A call under way, whose body stays open: its script has said that it has begun.
fn begun(nodes: &TestNodes, agent: &str) -> Ended {
    let mut command = nodes.hail("desk", &["call", agent, "-"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    assert_eq!(first_line(&mut child), "started\n");
    Ended(child)
}

/// Ends the body of a call under way, and what it is answered.
fn finish(call: &mut Child) -> String {
    call.stdin.take().unwrap().write_all(b"end\n").unwrap();
    let mut answer = String::new();
    let stdout = BufReader::new(call.stdout.take().unwrap());
    for line in stdout.lines() {
        answer += &line.unwrap();
    }
    assert!(call.wait().unwrap().success());
    answer
}

#[test]
fn a_kept_agent_is_there_again_after_the_node_was_stopped_and_started() {
    let mut nodes = TestNodes::new();
    let kept = keep(&nodes, &["count", "--json", "--", "wc", "-w"]).ok();
    assert_eq!(kept.json()["state"], "stopped");
    let stopped = row(&nodes, "count");
    assert_eq!(
        (&stopped["state"], &stopped["why"]),
        (&"stopped".into(), &"no node is running".into())
    );
    for _ in 0..2 {
        let node = pid(&nodes.up("desk"));
        // It can be called as soon as the node says that it is up.
        assert_eq!(call(&nodes, "count", "a b c").ok().stdout.trim(), "3");
        assert_eq!(row(&nodes, "count")["state"], "serving");
        let (guard, serving) = supervisor(node).unwrap();
        nodes.run("desk", &["down"]).ok();
        until("the supervisor ends with its node", || {
            !runs(guard) && !runs(serving) && !runs(node)
        });
    }
}

#[test]
fn an_agent_that_is_kept_while_the_node_runs_is_served_at_once() {
    let mut nodes = TestNodes::new();
    let node = pid(&nodes.up("desk"));
    assert_eq!(supervisor(node), None);
    for round in ["one", "two"] {
        keep_script(&nodes, "echo", &format!("echo {round}"));
        assert_eq!(call(&nodes, "echo", "").ok().stdout, format!("{round}\n"));
        let removed = nodes.run("desk", &["serve", "rm", "echo", "--json"]).ok();
        assert_eq!(removed.json()["removed"], "echo");
        assert_eq!(call(&nodes, "echo", "").code, Some(69));
        until("without agents there is no supervisor", || {
            children(node).is_empty()
        });
    }
    let gone = nodes.run("desk", &["serve", "rm", "echo"]);
    assert_eq!(gone.code, Some(69), "{gone:#?}");
    assert!(gone.stderr.contains("no agent `echo`"), "{gone:#?}");
}

/// Keeps an agent `slow` that answers once it is told to, and notes its processes in the folder that is given back.
fn keep_slow(nodes: &TestNodes) -> PathBuf {
    let started = nodes.path("started");
    fs::create_dir(&started).unwrap();
    let script = format!(
        "touch {}/$$; echo started; read l; echo done",
        started.display()
    );
    keep_script(nodes, "slow", &script);
    started
}

#[test]
fn a_node_that_was_killed_takes_its_supervisor_along_and_the_next_one_serves_again() {
    let mut nodes = TestNodes::new();
    let node = pid(&nodes.up("desk"));
    let started = keep_slow(&nodes);
    let mut under_way = begun(&nodes, "slow");
    let (guard, serving) = supervisor(node).unwrap();
    kill("-KILL", node);
    until("the node ends", || !runs(node));
    // At once, so that two supervisors meet.
    let again = nodes.up("desk");
    until("the supervisor ends with its node", || {
        !runs(guard) && !runs(serving)
    });
    until("its programs end", || {
        numbers(&started).into_iter().all(|pid| !runs(pid))
    });
    assert!(!under_way.0.wait().unwrap().success());
    until("the next one serves", || {
        call(&nodes, "slow", "x").code == Some(0)
    });
    let agents = nodes.run("desk", &["agents", "--json"]).ok().json();
    assert_eq!(agents.as_array().unwrap().len(), 1, "{agents}");
    assert_eq!(agents[0]["members"], 1, "{agents}");
    assert!(supervisor(pid(&again)).is_some());
}

#[test]
fn a_supervisor_that_was_killed_is_started_again_and_leaves_no_program() {
    let mut nodes = TestNodes::new();
    let node = pid(&nodes.up("desk"));
    let started = keep_slow(&nodes);
    for of_the_guard in [false, true] {
        let mut under_way = begun(&nodes, "slow");
        let (guard, serving) = supervisor(node).unwrap();
        kill("-KILL", if of_the_guard { guard } else { serving });
        until("its programs end", || {
            numbers(&started).into_iter().all(|pid| !runs(pid))
        });
        // This closes the body, which would end a program that still ran.
        assert!(!under_way.0.wait().unwrap().success());
        until("it is there again", || {
            call(&nodes, "slow", "x").code == Some(0)
        });
        let now = supervisor(node).unwrap();
        assert!(now.0 != guard && now.1 != serving);
    }
}

#[test]
fn a_change_leaves_other_agents_and_calls_under_way_alone() {
    let mut nodes = TestNodes::new();
    nodes.up("desk");
    keep_script(&nodes, "changed", "echo started; read l; echo old");
    keep_script(&nodes, "other", "echo started; read l; echo other");
    let lines = [
        "kept",
        "--lines",
        "--",
        "sh",
        "-c",
        "while read l; do echo $$; done",
    ];
    keep(&nodes, &lines).ok();
    let process = call(&nodes, "kept", "x").ok().stdout;
    let mut under_way = [begun(&nodes, "changed"), begun(&nodes, "other")];

    // By hand this time, with another description, which the node is told too.
    let text = file(&nodes).replace("read l; echo old", "read l; echo new");
    let text = text.replace(
        "agent \"changed\" {",
        "// a comment\nagent \"changed\" {\n    describe \"new\"",
    );
    write(&nodes, &text);
    let described = || {
        let agents = nodes.run("desk", &["agents", "--json"]).ok().json();
        agents.to_string().contains("\"description\":\"new\"")
    };
    until("the change is noticed", described);
    assert_eq!(call(&nodes, "changed", "x").ok().stdout, "started\nnew\n");
    assert_eq!(call(&nodes, "kept", "x").ok().stdout, process);
    assert_eq!(finish(&mut under_way[0].0), "old");
    assert_eq!(finish(&mut under_way[1].0), "other");

    // What a command writes keeps what a person wrote.
    keep_script(&nodes, "changed", "echo newest");
    assert_eq!(call(&nodes, "changed", "").ok().stdout, "newest\n");
    assert!(
        file(&nodes).contains("// a comment\nagent \"changed\""),
        "{}",
        file(&nodes)
    );
}

#[test]
fn calls_without_a_pause_meet_no_gap_while_an_agent_is_changed() {
    let mut nodes = TestNodes::new();
    nodes.up("desk");
    keep_script(&nodes, "changed", "echo 0");
    std::thread::scope(|scope| {
        let changes = scope.spawn(|| {
            for round in 1..=10 {
                keep_script(&nodes, "changed", &format!("echo {round}"));
            }
        });
        while !changes.is_finished() {
            call(&nodes, "changed", "").ok();
        }
        changes.join().unwrap();
    });
    assert_eq!(call(&nodes, "changed", "").ok().stdout, "10\n");
}

#[test]
fn a_file_with_a_mistake_changes_nothing_and_says_what_to_write() {
    let mut nodes = TestNodes::new();
    nodes.up("desk");
    keep_script(&nodes, "good", "echo good");
    let good = file(&nodes);
    let bad = good.clone() + "agent \"bad\" {\n  comand \"cat\"\n}\n";
    write(&nodes, &bad);
    let line = bad.lines().count() - 1;
    let mistake = format!("agents.kdl:{line}:3: `comand` is not a setting of `agent`");
    let noticed = || {
        let listed = nodes.run("desk", &["serve", "ls"]).ok();
        listed.stderr.contains(&mistake)
    };
    until("the mistake is told", noticed);
    assert_eq!(call(&nodes, "good", "").ok().stdout, "good\n");
    for args in [
        &["config", "check"][..],
        &["serve", "--keep", "more", "--", "cat"],
        &["serve", "rm", "good"],
    ] {
        let ran = nodes.run("desk", args);
        assert_eq!(ran.code, Some(67), "{ran:#?}");
        assert!(ran.stderr.contains(&mistake), "{ran:#?}");
        assert!(
            ran.stderr.contains("hint: did you mean `command`?"),
            "{ran:#?}"
        );
    }
    assert_eq!(file(&nodes), bad);
    let log = fs::read_to_string(nodes.path("desk/hail.log")).unwrap();
    assert!(log.contains("the agents stay as they are"), "{log}");
    write(&nodes, &good.replace("echo good", "echo better"));
    until("the next file is taken", || {
        call(&nodes, "good", "").ok().stdout == "better\n"
    });
    let checked = nodes
        .run("desk", &["config", "check", "--json"])
        .ok()
        .json();
    assert_eq!(checked["agents"], 1);
}

#[test]
fn a_program_that_is_missing_fails_alone_and_is_found_again() {
    let mut nodes = TestNodes::new();
    let program = nodes.path("program");
    let text = format!(
        "agent \"here\" {{ command \"cat\" }}\nagent \"missing\" {{ command \"{}\" }}\n",
        program.display()
    );
    write(&nodes, &text);
    nodes.up("desk");
    assert_eq!(call(&nodes, "here", "x").ok().stdout, "x");
    let missing = row(&nodes, "missing");
    assert_eq!(missing["state"], "failed", "{missing}");
    let why = missing["why"].as_str().unwrap();
    assert!(why.contains("there is no program"), "{missing}");
    assert_eq!(call(&nodes, "missing", "x").code, Some(69));
    let checked = nodes.run("desk", &["config", "check"]);
    assert_eq!(checked.code, Some(67), "{checked:#?}");
    assert!(
        checked.stderr.contains("agents.kdl:2:19: agent `missing`"),
        "{checked:#?}"
    );
    assert_eq!(
        nodes.run("desk", &["serve", "restart", "missing"]).code,
        Some(73)
    );
    std::os::unix::fs::symlink("/bin/cat", &program).unwrap();
    nodes.run("desk", &["serve", "restart", "missing"]).ok();
    assert_eq!(call(&nodes, "missing", "x").ok().stdout, "x");
}

#[test]
fn a_program_that_is_missing_is_told_before_anything_happens() {
    let nodes = TestNodes::new();
    let text = nodes.path("text");
    fs::write(&text, "").unwrap();
    for (program, what) in [
        (
            "nosuchprogram",
            "there is no program `nosuchprogram` in PATH",
        ),
        ("./nosuchprogram", "there is no program ./"),
        (text.to_str().unwrap(), "is not an executable file"),
    ] {
        for keep in [&["--keep"][..], &[]] {
            let args = [&["serve", "x"], keep, &["--", program]].concat();
            let ran = nodes.run("desk", &args);
            assert_eq!(ran.code, Some(73), "{ran:#?}");
            assert!(ran.stderr.contains(what.trim_end_matches("./")), "{ran:#?}");
            assert!(ran.stderr.contains("hint: "), "{ran:#?}");
        }
    }
    assert!(!nodes.path("desk/agents.kdl").exists());
}

#[test]
fn a_program_runs_where_as_whom_and_with_what_its_file_says() {
    let mut nodes = TestNodes::new();
    fs::create_dir(nodes.path("there")).unwrap();
    let text = format!(
        "agent \"told\" {{ command \"sh\" \"-c\" \"pwd; echo $GREETING $0\"; folder \"{}\"; env {{ GREETING \"hello\" }} }}\n",
        nodes.path("there").display()
    );
    write(&nodes, &text);
    nodes.up("desk");
    let expected = format!("{}\nhello sh\n", nodes.path("there").display());
    assert_eq!(call(&nodes, "told", "").ok().stdout, expected);
    let args = [
        "env",
        "--env",
        "GREETING=hi",
        "--folder",
        "/",
        "--",
        "sh",
        "-c",
        "echo $GREETING $PWD",
    ];
    keep(&nodes, &args).ok();
    assert_eq!(call(&nodes, "env", "").ok().stdout, "hi /\n");
    let as_nobody = [
        "who", "--user", "nobody", "--folder", "/", "--", "id", "-un",
    ];
    if rustix::process::geteuid().is_root() {
        keep(&nodes, &as_nobody).ok();
        assert_eq!(call(&nodes, "who", "").ok().stdout, "nobody\n");
    } else {
        let refused = keep(&nodes, &as_nobody);
        assert_eq!(refused.code, Some(73), "{refused:#?}");
        assert!(refused.stderr.contains("only root"), "{refused:#?}");
    }
}

#[test]
fn what_programs_write_on_stderr_is_read_and_followed() {
    let mut nodes = TestNodes::new();
    nodes.up("desk");
    keep_script(&nodes, "talks", "read l; echo \"said $l\" >&2");
    keep_script(&nodes, "quiet", "cat");
    nodes.feed("desk", &["call", "talks", "-"], "one\n").ok();
    let logs = |args: &[&str]| nodes.run("desk", &[&["serve", "logs"], args].concat());
    assert_eq!(logs(&[]).ok().stdout, "talks: said one\n");
    assert_eq!(logs(&["quiet"]).ok().stdout, "");
    assert_eq!(logs(&["none"]).code, Some(69));
    let mut follow = nodes.hail("desk", &["serve", "logs", "talks", "-f", "--json"]);
    let mut follow = Ended(follow.stdout(Stdio::piped()).spawn().unwrap());
    let mut lines = BufReader::new(follow.0.stdout.take().unwrap()).lines();
    let mut next = || serde_json::from_str::<Value>(&lines.next().unwrap().unwrap()).unwrap();
    assert_eq!(next()["text"], "said one");
    nodes.feed("desk", &["call", "talks", "-"], "two\n").ok();
    let line = next();
    assert_eq!(
        (&line["agent"], &line["text"]),
        (&"talks".into(), &"said two".into())
    );
    assert!(line["at_ms"].as_u64().unwrap() > 1_700_000_000_000);
}

#[test]
fn a_program_that_floods_its_stderr_is_cut_short_and_others_are_served() {
    let mut nodes = TestNodes::new();
    let node = pid(&nodes.up("desk"));
    keep_script(&nodes, "echo", "cat");
    keep_script(&nodes, "flood", "echo started; yes flood >&2");
    let (_, serving) = supervisor(node).unwrap();
    let _flood = begun(&nodes, "flood");
    let log = || nodes.run("desk", &["serve", "logs", "flood"]).ok().stdout;
    until("the log is full", || log().len() > 4000);
    for _ in 0..20 {
        assert_eq!(call(&nodes, "echo", "x").ok().stdout, "x");
        assert!(log().len() <= 64 * 1024);
    }
    let memory = anonymous(serving);
    assert!(memory < 32 << 20, "{memory} bytes");
}

#[test]
fn a_program_that_ends_at_once_is_left_alone_for_longer_and_longer() {
    let mut nodes = TestNodes::new();
    let started = nodes.path("started");
    fs::create_dir(&started).unwrap();
    let text = format!(
        "agent \"dies\" {{ command \"sh\" \"-c\" \"touch {}/$$; exit 3\"; lines #true; restart min=\"1h\" max=\"1h\" }}\n",
        started.display()
    );
    write(&nodes, &text);
    nodes.up("desk");
    for _ in 0..20 {
        assert_eq!(call(&nodes, "dies", "x").code, Some(78));
    }
    assert_eq!(numbers(&started).len(), 1);
    let dies = row(&nodes, "dies");
    assert_eq!(dies["state"], "restarting", "{dies}");
    assert!(
        dies["restart_in_ms"].as_u64().unwrap() > 3_000_000,
        "{dies}"
    );
    let log = nodes.run("desk", &["serve", "logs"]).ok().stdout;
    assert!(log.contains("exit status 3"), "{log}");
    // A restart does not wait.
    nodes.run("desk", &["serve", "restart", "dies"]).ok();
    assert_eq!(row(&nodes, "dies")["state"], "serving");
    assert_eq!(call(&nodes, "dies", "x").code, Some(78));
    assert_eq!(numbers(&started).len(), 2);
}

#[test]
fn a_restart_replaces_the_process_of_an_agent_that_keeps_one() {
    let mut nodes = TestNodes::new();
    nodes.up("desk");
    let lines = [
        "kept",
        "--lines",
        "--",
        "sh",
        "-c",
        "while read l; do echo $$; done",
    ];
    keep(&nodes, &lines).ok();
    let number = || {
        call(&nodes, "kept", "x")
            .ok()
            .stdout
            .trim()
            .parse()
            .unwrap()
    };
    let first: u32 = number();
    assert_eq!(number(), first);
    nodes.run("desk", &["serve", "restart", "kept"]).ok();
    assert_ne!(number(), first);
    until("the first one ends", || !runs(first));
    assert_eq!(
        nodes.run("desk", &["serve", "restart", "none"]).code,
        Some(69)
    );
}

#[test]
fn a_file_is_served_in_the_foreground_by_one_process() {
    let mut nodes = TestNodes::new();
    nodes.up("desk");
    let path = nodes.path("mine.kdl");
    fs::write(
        &path,
        "agent \"mine\" { command \"cat\" }\nagent \"bad\" { command \"none\" }\n",
    )
    .unwrap();
    let path = path.to_str().unwrap();
    let mut command = nodes.hail("desk", &["--json", "serve", "--file", path]);
    let mut serving = Ended(command.stdout(Stdio::piped()).spawn().unwrap());
    let said: Value = serde_json::from_str(&first_line(&mut serving.0)).unwrap();
    assert_eq!(said["serving"], serde_json::json!(["mine"]));
    assert_eq!(said["failed"], serde_json::json!(["bad"]));
    assert_eq!(call(&nodes, "mine", "x").ok().stdout, "x");
    let again = nodes.run("desk", &["serve", "--file", path]);
    assert_eq!(again.code, Some(70), "{again:#?}");
    let listed = nodes
        .run("desk", &["serve", "ls", "--file", path, "--json"])
        .ok()
        .json();
    assert_eq!(listed.as_array().unwrap().len(), 2);
    // The supervisor is no agent that anybody sees.
    let agents = nodes.run("desk", &["agents", "--json"]).ok().json();
    assert_eq!(agents.as_array().unwrap().len(), 1, "{agents}");
    kill("-TERM", serving.0.id());
    assert!(serving.0.wait().unwrap().success());
    assert_eq!(call(&nodes, "mine", "x").code, Some(69));
}

#[test]
fn a_file_of_a_hundred_megabytes_is_refused() {
    let mut nodes = TestNodes::new();
    fs::create_dir(nodes.path("desk")).unwrap();
    let file = fs::File::create(nodes.path("desk/agents.kdl")).unwrap();
    file.set_len(100 << 20).unwrap();
    for args in [
        &["config", "check"][..],
        &["serve", "ls"],
        &["serve", "--keep", "a", "--", "cat"],
    ] {
        let ran = nodes.run("desk", args);
        assert_eq!(ran.code, Some(1), "{ran:#?}");
        assert!(ran.stderr.contains("larger than 1024 KiB"), "{ran:#?}");
    }
    // The node runs all the same, and says what is wrong.
    nodes.up("desk");
    let log = || fs::read_to_string(nodes.path("desk/hail.log")).unwrap();
    until("the log says so", || log().contains("larger than 1024 KiB"));
}

/// Anonymous memory of a process in bytes.
fn anonymous(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let mut lines = status.lines();
    let line = lines.find_map(|line| line.strip_prefix("RssAnon:"));
    let kib: u64 = line
        .unwrap()
        .trim()
        .trim_end_matches(" kB")
        .parse()
        .unwrap();
    kib * 1024
}

#[test]
fn a_thousand_idle_agents_cost_at_most_twenty_megabytes() {
    let mut nodes = TestNodes::new();
    let agent = |n: usize| {
        format!(
            "agent \"agent-{n}\" {{\n    command \"/usr/bin/wc\" \"-w\"\n    describe \"counts words\"\n}}\n"
        )
    };
    write(&nodes, &agent(0));
    let node = pid(&nodes.up("desk"));
    let (guard, serving) = supervisor(node).unwrap();
    let memory = || [node, guard, serving].map(anonymous);
    let few = memory();
    write(&nodes, &(0..1000).map(agent).collect::<String>());
    let served = || {
        rows(&nodes)
            .iter()
            .filter(|row| row["state"] == "serving")
            .count()
    };
    until("all are served", || served() == 1000);
    assert_eq!(call(&nodes, "agent-999", "a b c").ok().stdout.trim(), "3");
    let many = memory();
    println!(
        "anonymous bytes of node, guard and supervisor with 1 agent: {few:?}, with 1,000: {many:?}"
    );
    let more = many.iter().sum::<u64>().saturating_sub(few.iter().sum());
    assert!(more < 20 << 20, "{more} bytes");
    nodes.run("desk", &["down"]).ok();
    let begun = std::time::Instant::now();
    nodes.up("desk");
    println!("a start with 1,000 agents takes {:?}", begun.elapsed());
    assert_eq!(call(&nodes, "agent-999", "a b c").ok().stdout.trim(), "3");
}
