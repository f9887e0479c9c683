//! Files of agents, good and bad.

use super::*;

fn parse(text: &str) -> Result<AgentsFile, TextMistake> {
    AgentsFile::parse(text, Path::new("/srv"))
}

#[test]
fn a_file_says_what_the_command_line_says() {
    let text = r#"
// what a person wrote
max-programs 12
agent "word-count" {
    command "wc" "-w"
    describe "counts words"
    tag "text" "english"
    version "1.2"
    schema "schemas/words.json"
    max 8
    grace "3s"
    folder "texts"
    env { LANG "C"; EMPTY "" }
    user "www-data"
}
agent "shout" { command "./shout"; lines #true; keys #true; restart min="1s" max="2s" }
"#;
    let file = parse(text).unwrap();
    assert_eq!(file.max_programs, 12);
    let [count, shout] = &file.agents[..] else {
        panic!("{file:?}");
    };
    let expected = AgentSpec {
        description: "counts words".to_owned(),
        tags: vec!["text".to_owned(), "english".to_owned()],
        version: "1.2".to_owned(),
        schema: Some("/srv/schemas/words.json".into()),
        max: 8,
        grace: Duration::from_secs(3),
        folder: Some("/srv/texts".into()),
        environment: vec![
            ("LANG".to_owned(), "C".to_owned()),
            ("EMPTY".to_owned(), String::new()),
        ],
        user: Some("www-data".to_owned()),
        ..AgentSpec::new(
            "word-count".parse().unwrap(),
            "wc".into(),
            vec!["-w".into()],
        )
    };
    assert_eq!(count.spec, expected);
    assert!(shout.spec.lines && shout.spec.keys);
    assert_eq!(
        (shout.spec.max, shout.spec.folder.as_deref()),
        (0, Some(Path::new("/srv")))
    );
    let delays = RestartDelays {
        min: Duration::from_secs(1),
        max: Duration::from_secs(2),
    };
    assert_eq!(shout.spec.restart, delays);
}

#[test]
fn a_mistake_is_told_with_its_line_and_what_to_write() {
    for (line, what, hint) in [
        (
            "agents \"a\"",
            "`agents` is not a setting",
            "did you mean `agent`?",
        ),
        (
            "agent { command \"cat\" }",
            "`agent` takes exactly one value",
            "",
        ),
        ("agent \"No Name\" { command \"cat\" }", "`agent`: ", ""),
        (
            "agent \"node\" { command \"cat\" }",
            "belongs to the node itself",
            "",
        ),
        (
            "agent \"node.x\" { command \"cat\" }",
            "belongs to the node itself",
            "",
        ),
        ("agent \"a\"", "has no `command`", "write: command"),
        (
            "agent \"a\" { comand \"cat\" }",
            "`comand` is not a setting of `agent`",
            "did you mean `command`?",
        ),
        (
            "agent \"a\" { command }",
            "`command` takes 1 to 1024 values",
            "",
        ),
        (
            "agent \"a\" { command \"\" }",
            "the program's name is empty",
            "",
        ),
        (
            "agent \"a\" { command \"cat\"; command \"cat\" }",
            "`command` is set twice",
            "",
        ),
        (
            "agent \"a\" { command \"cat\"; keys #true }",
            "`keys` is for an agent with `lines`",
            "lines #true",
        ),
        (
            "agent \"a\" { command \"cat\"; max 0 }",
            "`max` must be a whole number",
            "",
        ),
        (
            "agent \"a\" { command \"cat\"; lines \"yes\" }",
            "`lines` must be #true or #false",
            "",
        ),
        (
            "agent \"a\" { command \"cat\"; grace 2 }",
            "`grace` takes a string",
            "write: grace",
        ),
        (
            "agent \"a\" { command \"cat\"; restart \"1s\" }",
            "`restart` takes no value",
            "",
        ),
        (
            "agent \"a\" { command \"cat\"; restart min=\"1m\" max=\"1s\" }",
            "is longer than `max`",
            "",
        ),
        (
            "agent \"a\" { command \"cat\"; env { HAIL_FROM \"x\" } }",
            "describe the call",
            "",
        ),
        (
            "agent \"a\" { command \"cat\"; env { A \"1\"; A \"2\" } }",
            "`A` is set twice",
            "",
        ),
        ("agent \"a\" { command \"ca\\u{0}t\" }", "zero byte", ""),
        (
            "agent \"a\" { command \"cat\"; schemas \"x.json\" }",
            "`schemas` is not a setting",
            "",
        ),
        (
            "max-programs 1\nmax-programs 2",
            "`max-programs` is set twice",
            "",
        ),
    ] {
        let mistake = parse(&format!("// first line\n{line}\n")).unwrap_err();
        assert!(mistake.what.contains(what), "{line}: {mistake:?}");
        assert!(mistake.hint.contains(hint), "{line}: {mistake:?}");
        let (at, _) = mistake.line_and_column(&format!("// first line\n{line}\n"));
        assert!(at >= 2, "{line}: line {at}");
    }
    let long = format!(
        "agent \"a\" {{ command \"cat\"; describe \"{}\" }}",
        "x".repeat(limits::MAX_DESCRIPTION + 1)
    );
    assert!(parse(&long).unwrap_err().what.contains("at most 256 bytes"));
}

#[test]
fn no_name_is_declared_twice_and_no_file_has_too_many_agents() {
    let agents = |n| -> String {
        let one = |i| format!("agent \"a{i}\" {{ command \"cat\" }}\n");
        (0..n).map(one).collect()
    };
    assert_eq!(parse(&agents(MAX_AGENTS)).unwrap().agents.len(), MAX_AGENTS);
    let mistake = parse(&agents(MAX_AGENTS + 1)).unwrap_err();
    assert!(mistake.what.contains("at most 1000 agents"), "{mistake:?}");
    let twice = "agent \"a\" { command \"cat\" }\nagent \"a\" { command \"cat\" }";
    let mistake = parse(twice).unwrap_err();
    assert_eq!(mistake.line_and_column(twice), (2, 1));
    assert!(mistake.what.contains("declared twice"), "{mistake:?}");
}

#[test]
fn a_file_that_is_too_large_or_that_others_may_write_is_not_read() {
    use std::os::unix::fs::PermissionsExt as _;

    let temp = tempfile::tempdir().unwrap();
    let path = temp.path().join(FILE_NAME);
    let why = || match AgentsFile::load(&path) {
        Err(FileError::Read { source, .. }) => source.to_string(),
        other => panic!("{other:?}"),
    };
    // It is a hundred megabytes long without taking any room.
    File::create(&path).unwrap().set_len(100 << 20).unwrap();
    assert!(why().contains("larger than 1024 KiB"));
    fs::write(&path, "agent \"a\" { command \"cat\" }").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
    assert!(why().contains("every user may write it"));
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    assert_eq!(AgentsFile::load(&path).unwrap().agents.len(), 1);
    fs::write(&path, b"\xff").unwrap();
    assert!(why().contains("UTF-8"));
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    assert!(why().contains("not a file"));
}

#[test]
fn a_program_that_is_missing_is_found_by_the_check() {
    let temp = tempfile::tempdir().unwrap();
    let path = temp.path().join(FILE_NAME);
    let text = "agent \"a\" { command \"sh\" }\nagent \"b\" {\n  command \"no-such-program\"\n}\n";
    fs::write(&path, text).unwrap();
    assert_eq!(AgentsFile::load(&path).unwrap().agents.len(), 2);
    let error = AgentsFile::check(&path).unwrap_err();
    let expected = format!(
        "{}:3:3: agent `b`: there is no program `no-such-program` in PATH",
        path.display()
    );
    assert_eq!(error.to_string(), expected);
    fs::write(&path, "agent \"a\" { command \"sh\"; folder \"none\" }").unwrap();
    assert!(
        AgentsFile::check(&path)
            .unwrap_err()
            .to_string()
            .contains("no folder")
    );
}

#[test]
fn an_agent_that_is_woken_by_messages_is_written_as_it_is_read() {
    let file = parse(
        "agent \"a\" { command \"./a\"; on-message #true }
        agent \"b\" { command \"./b\"; on-message #true; max 3; idle \"5s\" }",
    );
    let file = file.unwrap();
    let woken = |spec: &AgentSpec| {
        let idle = spec.on_message.map(|on_message| on_message.idle.as_secs());
        (spec.max, idle)
    };
    let read: Vec<_> = file.agents.iter().map(|agent| woken(&agent.spec)).collect();
    assert_eq!(read, [(1, Some(30)), (3, Some(5))]);
    for agent in &file.agents {
        let written = crate::serve::agents_file_edit::with_agent("", &agent.spec).unwrap();
        assert_eq!(parse(&written).unwrap().agents[0].spec, agent.spec);
    }
    for (line, what) in [
        ("idle \"5s\"", "`idle` is for an agent with `on-message`"),
        (
            "on-message #true; lines #true",
            "`lines` is not for an agent with `on-message`",
        ),
        (
            "on-message #true; max 65",
            "with `on-message`, `max` is at most 64",
        ),
    ] {
        let text = format!("agent \"a\" {{ command \"cat\"; {line} }}");
        assert_eq!(parse(&text).unwrap_err().what, what);
    }
}
