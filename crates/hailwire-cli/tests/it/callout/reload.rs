//! What is listened on changes while requests are under way.

use std::{
    os::unix::net::UnixStream,
    path::PathBuf,
    sync::atomic::{AtomicU32, Ordering::SeqCst},
    time::Duration,
};

use tokio::sync::Semaphore;

use super::{envoy::Envoy, *};

/// What an agent is asked, and when it may answer.
struct Holding {
    asked: AtomicU32,
    may: Semaphore,
}

/// An agent that answers to `/hold` when it may.
struct Holds(Arc<Holding>);

impl Agent for Holds {
    fn name(&self) -> &str {
        "holds"
    }

    async fn request_headers(&self, event: RequestHeaders) -> Response {
        if event.uri() == "/hold" {
            self.0.asked.fetch_add(1, SeqCst);
            self.0.may.acquire().await.unwrap().forget();
        }
        Response::allow()
    }
}

fn text(out: &mut Vec<u8>, text: &[u8]) {
    out.push(u8::try_from(text.len()).unwrap());
    out.extend(text);
}

/// Sends a frame of SPOP: of stream 1, the first.
fn send(stream: &mut impl std::io::Write, kind: u8, payload: &[u8]) {
    let length = u32::try_from(payload.len() + 7).unwrap();
    let mut frame = length.to_be_bytes().to_vec();
    frame.extend([kind, 0, 0, 0, 1, 1, 1]);
    frame.extend(payload);
    stream.write_all(&frame).unwrap();
}

/// The next frame: its type and the rest. `None` at the end.
fn receive(stream: &mut impl std::io::Read) -> Option<(u8, Vec<u8>)> {
    let mut length = [0; 4];
    stream.read_exact(&mut length).ok()?;
    let mut frame = vec![0; u32::from_be_bytes(length) as usize];
    stream.read_exact(&mut frame).unwrap();
    Some((frame[0], frame))
}

/// Greets as HAProxy does, and asks about a request that the agent holds.
fn hold(stream: &mut (impl std::io::Read + std::io::Write)) {
    let mut hello = Vec::new();
    for (name, value) in [
        ("supported-versions", &b"\x08\x032.0"[..]),
        ("max-frame-size", b"\x03\xfc\xf0\x06"),
        ("capabilities", b"\x08\x0apipelining"),
    ] {
        text(&mut hello, name.as_bytes());
        hello.extend(value);
    }
    send(stream, 1, &hello);
    assert_eq!(receive(stream).unwrap().0, 101);
    let mut message = Vec::new();
    text(&mut message, b"hail-request");
    message.push(3);
    for (name, kind, value) in [
        ("method", 8, &b"GET"[..]),
        ("uri", 8, b"/hold"),
        ("headers", 9, b"\0\0"),
    ] {
        text(&mut message, name.as_bytes());
        message.push(kind);
        text(&mut message, value);
    }
    send(stream, 3, &message);
}

fn is_allowed(stream: &mut impl std::io::Read) {
    let (kind, answer) = receive(stream).unwrap();
    assert_eq!(kind, 103);
    assert!(answer.windows(5).any(|word| word == b"allow"), "{answer:?}");
}

/// `hail callout serve`, and line by line what it says.
fn said_by(nodes: &mut TestNodes, config: &str) -> impl FnMut() -> Value {
    let args = ["--json", "callout", "serve", "--config", config];
    let mut child = nodes
        .hail("a", &args)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    nodes.keep(child);
    move || {
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap()
    }
}

/// An agent that answers when it may, and its socket.
fn holds(nodes: &TestNodes) -> (Arc<Holding>, PathBuf) {
    let holding = Arc::new(Holding {
        asked: AtomicU32::new(0),
        may: Semaphore::new(0),
    });
    let agent = nodes.path("holds.sock");
    served(Holds(Arc::clone(&holding)), &agent);
    (holding, agent)
}

#[test]
fn what_is_listened_on_changes_and_no_request_under_way_is_dropped() {
    let mut nodes = TestNodes::new();
    let (holding, agent) = holds(&nodes);
    let [goes, comes] = ["goes", "comes"].map(|name| nodes.path(name));
    let config = |agents: &str, spoe: &Path| {
        format!(
            "agents {{ agent {agents:?} {{ binary-uds {agent:?}; timeout-ms 60000; events \"request_headers\" }} }}\n\
             listen {{ spoe \"127.0.0.1:0\" \"unix:{}\"; metrics \"127.0.0.1:0\" }}\n",
            spoe.display()
        )
    };
    let path = written(&nodes, "callout.kdl", &config("first", &goes));
    let mut line = said_by(&mut nodes, &path);
    let first = line();
    let mut stays = TcpStream::connect(first["spoe"][0].as_str().unwrap()).unwrap();
    let mut goner = UnixStream::connect(&goes).unwrap();
    hold(&mut stays);
    hold(&mut goner);
    until("both are asked", || holding.asked.load(SeqCst) == 2);

    fs::write(&path, config("second", &comes)).unwrap();
    let second = line();
    assert_eq!(second["agents"], serde_json::json!(["second"]));
    assert_eq!(second["spoe"][0], first["spoe"][0], "what stays, stays");
    assert_eq!(second["metrics"], first["metrics"]);
    assert_eq!(second["spoe"][1], format!("unix:{}", comes.display()));
    until("nothing listens there", || {
        UnixStream::connect(&goes).is_err()
    });
    let mut newcomer = UnixStream::connect(&comes).unwrap();
    hold(&mut newcomer);
    until("all are asked", || holding.asked.load(SeqCst) == 3);

    holding.may.add_permits(3);
    is_allowed(&mut stays);
    is_allowed(&mut newcomer);
    is_allowed(&mut goner);
    // Having nothing under way any more, it ends with a word.
    assert_eq!(receive(&mut goner).unwrap().0, 102);
    assert_eq!(receive(&mut goner), None);
    is_answered(&mut stays);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_envoy_asks_changes_its_place_and_no_request_under_way_is_dropped() {
    let mut nodes = TestNodes::new();
    let (holding, agent) = holds(&nodes);
    let [goes, comes] = ["goes", "comes"].map(|name| nodes.path(name));
    let config = |agents: &str, front: &Path| {
        format!(
            "agents {{ agent {agents:?} {{ binary-uds {agent:?}; timeout-ms 60000; events \"request_headers\" }} }}\n\
             listen {{ ext-proc \"127.0.0.1:0\" \"unix:{}\" }}\n",
            front.display()
        )
    };
    let path = written(&nodes, "callout.kdl", &config("first", &goes));
    let mut said = said_by(&mut nodes, &path);
    let first = said();
    let at = |place: &Value| match place.as_str().unwrap() {
        unix if unix.starts_with("unix:") => unix.to_owned(),
        tcp => format!("http://{tcp}"),
    };
    let stays = Envoy::connect(at(&first["ext_proc"][0])).await.unwrap();
    let goner = Envoy::connect(at(&first["ext_proc"][1])).await.unwrap();
    let (held, held_too) = tokio::join!(stays.sends("/hold"), goner.sends("/hold"));
    let (held, held_too) = (held.unwrap(), held_too.unwrap());
    until("both are asked", || holding.asked.load(SeqCst) == 2);

    fs::write(&path, config("second", &comes)).unwrap();
    let second = said();
    assert_eq!(second["agents"], serde_json::json!(["second"]));
    assert_eq!(
        second["ext_proc"][0], first["ext_proc"][0],
        "what stays, stays"
    );
    assert_eq!(second["ext_proc"][1], format!("unix:{}", comes.display()));
    until("nothing listens there", || {
        UnixStream::connect(&goes).is_err()
    });
    let newcomer = Envoy::connect(at(&second["ext_proc"][1])).await.unwrap();
    let held_last = newcomer.sends("/hold").await.unwrap();
    until("all are asked", || holding.asked.load(SeqCst) == 3);

    holding.may.add_permits(3);
    for held in [held, held_too, held_last] {
        held.goes_on().await;
    }
    // Connections go on as long as somebody listens where they began, and no longer.
    for envoy in [&stays, &newcomer] {
        envoy.sends("/").await.unwrap().goes_on().await;
    }
    let refused = async { while goner.sends("/").await.is_ok() {} };
    let refused = tokio::time::timeout(Duration::from_secs(20), refused).await;
    assert!(refused.is_ok(), "nothing listens there");
}

#[test]
fn a_place_that_cannot_be_had_changes_nothing() {
    let mut nodes = TestNodes::new();
    let agent = nodes.path("wall.sock");
    wall(&agent);
    let [file, good] = ["file", "good"].map(|name| nodes.path(name));
    fs::write(&file, "no socket").unwrap();
    let config = |name: &str, spoe: &Path| {
        format!(
            "agents {{ agent {name:?} {{ binary-uds {agent:?} }} }}\n\
             listen {{ spoe \"unix:{}\"; metrics \"127.0.0.1:0\" }}\n",
            spoe.display()
        )
    };
    let path = written(&nodes, "callout.kdl", &config("first", &good));
    let log = nodes.path("log");
    let args = ["--json", "callout", "serve", "--config", &path];
    let mut child = nodes
        .hail("a", &args)
        .stdout(Stdio::piped())
        .stderr(fs::File::create(&log).unwrap())
        .spawn()
        .unwrap();
    let at: Value = serde_json::from_str(&first_line(&mut child)).unwrap();
    nodes.keep(child);
    fs::write(&path, config("never-asked", &file)).unwrap();
    until("it is refused", || {
        let log = fs::read_to_string(&log).unwrap();
        log.contains("the configuration was not changed") && log.contains("cannot listen on")
    });
    UnixStream::connect(&good).unwrap();
    let metrics = scrape(at["metrics"].as_str().unwrap());
    assert!(metrics.contains("agent=\"first\"") && !metrics.contains("never-asked"));
}

/// A connection that stayed goes on.
fn is_answered(stream: &mut (impl std::io::Read + std::io::Write)) {
    let mut message = Vec::new();
    text(&mut message, b"hail-request");
    message.push(0);
    send(stream, 3, &message);
    // It is blocked, since it says nothing.
    assert_eq!(receive(stream).unwrap().0, 103);
}
