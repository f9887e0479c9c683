//! Inspection agents on another node, with two NATs in between: asked through `hail callout serve`, as HAProxy does.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    path::Path,
    process::Stdio,
    sync::mpsc::{self, Receiver, Sender},
    time::Duration,
};

use hailwire_callout::{Agent, Response, agent, event::RequestHeaders};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio::runtime::Runtime;

use crate::{
    lab::{Nodes, possible},
    test_nodes::first_line,
};

/// Blocks `/who` with a status of its own, and never answers `/hold`.
struct Known {
    status: u16,
    held: Sender<()>,
}

impl Agent for Known {
    fn name(&self) -> &str {
        "known"
    }

    async fn request_headers(&self, event: RequestHeaders) -> Response {
        match event.uri() {
            "/who" => Response::block(self.status),
            "/hold" => {
                // A test that has ended wants to know nothing.
                let _ = self.held.send(());
                std::future::pending().await
            }
            _ => Response::allow(),
        }
    }
}

/// An agent that listens until it is dropped.
struct Listening {
    held: Receiver<()>,
    _runtime: Runtime,
}

fn listening(socket: &Path, status: u16) -> Listening {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let (tell, held) = mpsc::channel();
    let agent = Known { status, held: tell };
    let _inside = runtime.enter();
    let listener = agent::uds::UdsListener::bind(socket).unwrap();
    runtime.spawn(async move {
        let options = agent::ServeOptions::default();
        let _ = agent::uds::serve(std::sync::Arc::new(agent), listener, &options).await;
    });
    Listening {
        held,
        _runtime: runtime,
    }
}

/// What `hail callout serve` on node `a` fronts, as HAProxy speaks to it.
struct Front {
    stream: TcpStream,
    asked: u8,
}

/// What was decided, with the status of a block.
#[derive(Debug, PartialEq, Eq)]
enum Decided {
    Allow,
    Block(u64),
}

impl Front {
    /// Starts it with a configuration.
    fn start(nodes: &mut Nodes, config: &str) -> Self {
        let path = nodes.nodes.path("callout.kdl");
        let listen = "listen { spoe \"127.0.0.1:0\" }";
        fs::write(&path, format!("{config}\n{listen}\n")).unwrap();
        let mut command = nodes.inside("a", &["--json", "callout", "serve", "--config"]);
        command
            .arg(path)
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let at: Value = serde_json::from_str(&first_line(&mut child)).unwrap();
        nodes.nodes.keep(child);
        let at: SocketAddr = at["spoe"][0].as_str().unwrap().parse().unwrap();
        let connect = || TcpStream::connect(at).unwrap();
        let stream = nodes.network.within("a", connect).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(30)))
            .unwrap();
        let mut front = Self { stream, asked: 0 };
        let mut hello = b"\x12supported-versions\x08\x032.0\x0emax-frame-size\x03\xf0\x31".to_vec();
        hello.extend(b"\x0ccapabilities\x08\x0apipelining");
        front.say(1, 0, &hello);
        assert_eq!(front.frame()[0], 101);
        front
    }

    fn say(&mut self, kind: u8, stream: u8, payload: &[u8]) {
        let head = [kind, 0, 0, 0, 1, stream, stream];
        let length = u32::try_from(head.len() + payload.len()).unwrap();
        let frame = [&length.to_be_bytes(), &head[..], payload].concat();
        self.stream.write_all(&frame).unwrap();
    }

    fn frame(&mut self) -> Vec<u8> {
        let mut length = [0; 4];
        self.stream.read_exact(&mut length).unwrap();
        let mut frame = vec![0; u32::from_be_bytes(length) as usize];
        self.stream.read_exact(&mut frame).unwrap();
        frame
    }

    /// Tells of a request.
    fn tell(&mut self, uri: &str) {
        self.asked += 1;
        let mut message = Vec::new();
        put(&mut message, b"hail-request");
        message.push(3);
        for (name, value) in [("method", "GET"), ("uri", uri), ("headers", "host: a\r\n")] {
            put(&mut message, name.as_bytes());
            message.push(8);
            put(&mut message, value.as_bytes());
        }
        self.say(3, self.asked, &message);
    }

    /// What was decided of it.
    fn decided(&mut self) -> Decided {
        let frame = self.frame();
        assert_eq!((frame[0], frame[5]), (103, self.asked), "{frame:?}");
        if after(&frame, b"decision").starts_with(b"\x08\x05allow") {
            return Decided::Allow;
        }
        assert!(after(&frame, b"decision").starts_with(b"\x08\x05block"));
        let status = after(&frame, b"status");
        // A number of two bytes: 240 and more (SPOE, 3.1).
        Decided::Block(u64::from(status[1]) + (u64::from(status[2]) << 4))
    }

    fn ask(&mut self, uri: &str) -> Decided {
        self.tell(uri);
        self.decided()
    }

    /// Asks until that is decided.
    fn until(&mut self, uri: &str, wanted: &Decided) {
        let begin = std::time::Instant::now();
        loop {
            let decided = self.ask(uri);
            if decided == *wanted {
                return;
            }
            assert!(begin.elapsed() < Duration::from_secs(30), "{decided:?}");
            // Stream numbers are one byte here.
            self.asked %= 100;
        }
    }
}

/// A text of less than 240 bytes.
fn put(out: &mut Vec<u8>, text: &[u8]) {
    out.push(u8::try_from(text.len()).unwrap());
    out.extend(text);
}

fn after<'a>(frame: &'a [u8], name: &[u8]) -> &'a [u8] {
    let at = frame.windows(name.len()).position(|part| part == name);
    &frame[at.unwrap() + name.len()..]
}

/// Attaches the agent at a socket to node `b`.
fn attached(nodes: &mut Nodes, socket: &Path) {
    let mut command = nodes.inside(
        "b",
        &["--json", "callout", "agent", "--name", "waf", "--uds"],
    );
    command
        .arg(socket)
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    assert!(first_line(&mut child).contains("\"attached\":\"waf\""));
    nodes.nodes.keep(child);
}

#[test]
fn an_agent_behind_another_nat_decides_and_its_node_killed_in_mid_request_is_a_timeout() {
    if !possible() {
        return;
    }
    let mut nodes = Nodes::up("home-to-home", 7443);
    let socket = nodes.nodes.path("far.sock");
    let far = listening(&socket, 409);
    attached(&mut nodes, &socket);
    let config = "agents { agent \"waf\" type=\"waf\" { hail \"waf@b\"; events \"request_headers\"; \
                  timeout-ms 3000; on-timeout \"block\" 510; on-error \"block\" 511 } }";
    let mut front = Front::start(&mut nodes, config);
    front.until("/fine", &Decided::Allow);
    assert_eq!(front.ask("/who"), Decided::Block(409));
    assert_eq!(front.ask("/fine"), Decided::Allow);

    front.tell("/hold");
    far.held.recv_timeout(Duration::from_secs(10)).unwrap();
    let status = nodes.run("b", &["status", "--json"]).ok().json();
    let node = i32::try_from(status["pid"].as_i64().unwrap()).unwrap();
    kill_process(Pid::from_raw(node).unwrap(), Signal::KILL).unwrap();
    // Nobody is left who could say that it is gone.
    assert_eq!(front.decided(), Decided::Block(510));
    assert!(matches!(front.ask("/fine"), Decided::Block(510 | 511)));
}

#[test]
fn a_proxy_asks_the_near_agent_first_and_the_one_behind_another_nat_while_it_is_down() {
    if !possible() {
        return;
    }
    let mut nodes = Nodes::up("home-to-home", 7443);
    let (near_at, far_at) = (nodes.nodes.path("near.sock"), nodes.nodes.path("far.sock"));
    let near = listening(&near_at, 409);
    let _far = listening(&far_at, 410);
    attached(&mut nodes, &far_at);
    let config = format!(
        "agents {{ agent \"waf\" type=\"waf\" {{ binary-uds {near_at:?}; hail \"waf@b\"; \
         events \"request_headers\"; timeout-ms 5000 }} }}"
    );
    let mut front = Front::start(&mut nodes, &config);
    front.until("/who", &Decided::Block(409));
    drop(near);
    front.until("/who", &Decided::Block(410));
    assert_eq!(front.ask("/fine"), Decided::Allow);
    let _near = listening(&near_at, 409);
    front.until("/who", &Decided::Block(409));
}
