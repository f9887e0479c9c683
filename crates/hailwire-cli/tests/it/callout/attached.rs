//! Who connects proxies to an attached agent, and what becomes of them when somebody on the way is killed.

use std::{
    io::ErrorKind,
    os::unix::{
        fs::PermissionsExt as _,
        net::{UnixListener, UnixStream},
    },
    path::PathBuf,
    time::Duration,
};

use hailwire::{Client, DataDir, Status, StreamIo};
use rustix::{
    net::sockopt::socket_peercred,
    process::{Pid, Signal, kill_process},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    runtime::Runtime,
    time::timeout,
};

use super::*;

const PATIENCE: Duration = Duration::from_secs(20);

/// An agent that a test itself is, attached to a node.
struct Waf {
    listener: UnixListener,
    path: PathBuf,
    runtime: Runtime,
}

impl Waf {
    fn at(path: PathBuf) -> Self {
        Self {
            listener: UnixListener::bind(&path).unwrap(),
            path,
            runtime: runtime(),
        }
    }

    /// Attaches it with a command that is to be followed by where.
    fn attached(&self, mut command: Command) -> Child {
        command.arg(&self.path).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        assert!(first_line(&mut child).contains("\"attached\":\"waf\""));
        // What attaching looks for is whether somebody listens.
        drop(self.listener.accept().unwrap());
        child
    }

    /// A raw stream from a node, the connection that it has become, and the process that made that.
    fn stream(&self, data: PathBuf, to: &str) -> (StreamIo, UnixStream, u32) {
        let opened = self.runtime.block_on(async {
            let client = Client::attach(&DataDir::new(data)).await.unwrap();
            timeout(PATIENCE, client.stream(to).open()).await.unwrap()
        });
        let (socket, _) = self.listener.accept().unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let who = socket_peercred(&socket).unwrap().pid;
        let who = who.as_raw_nonzero().get().unsigned_abs();
        (opened.unwrap().into_io(), socket, who)
    }

    /// Sends a byte there and one back.
    fn passes(&self, io: &mut StreamIo, socket: &mut UnixStream) {
        self.runtime.block_on(io.write_all(b"?")).unwrap();
        let mut byte = [0];
        socket.read_exact(&mut byte).unwrap();
        assert_eq!(&byte, b"?");
        socket.write_all(b"!").unwrap();
        let read = self
            .runtime
            .block_on(async { timeout(PATIENCE, io.read_u8()).await });
        assert_eq!(read.unwrap().unwrap(), b'!');
    }

    /// Why nothing more comes.
    fn broken(&self, io: &mut StreamIo) -> std::io::Error {
        let read = self
            .runtime
            .block_on(async { timeout(PATIENCE, io.read_u8()).await });
        read.unwrap().unwrap_err()
    }
}

/// One that goes on while a test waits for something else.
fn runtime() -> Runtime {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(1).enable_all().build().unwrap()
}

/// `hail callout agent` at a node.
fn attaching(nodes: &TestNodes, node: &str) -> Command {
    let args = ["--json", "callout", "agent", "--name", "waf", "--uds"];
    nodes.hail(node, &args)
}

fn pid_of(nodes: &TestNodes, node: &str) -> u32 {
    let status = nodes.run(node, &["--json", "status"]).ok().json();
    u32::try_from(status["pid"].as_u64().unwrap()).unwrap()
}

fn kill(pid: u32) {
    let pid = Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    kill_process(pid, Signal::KILL).unwrap();
}

#[test]
fn the_node_connects_an_attached_agent_until_the_process_that_attached_it_is_killed() {
    let mut nodes = TestNodes::new();
    nodes.trusted_pair("edge-2", "edge-1");
    let waf = Waf::at(nodes.path("waf.sock"));
    let attach = waf.attached(attaching(&nodes, "edge-2"));
    let attached = attach.id();
    nodes.keep(attach);
    let (mut io, mut socket, who) = waf.stream(nodes.path("edge-1"), "waf@edge-2");
    assert_eq!(who, pid_of(&nodes, "edge-2"), "nobody in between");
    waf.passes(&mut io, &mut socket);

    kill(attached);
    let error = waf.broken(&mut io);
    assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
    assert_eq!(socket.read(&mut [0]).unwrap(), 0);
    let agents = || nodes.run("edge-2", &["agents", "--json"]).ok().stdout;
    until("its name is gone", || !agents().contains("\"waf\""));
    let gone = waf.runtime.block_on(async {
        let client = Client::attach(&DataDir::new(nodes.path("edge-1"))).await;
        client.unwrap().stream("waf@edge-2").open().await
    });
    assert_eq!(gone.unwrap_err().code, hailwire::Code::NotFound);
}

#[test]
fn an_agent_is_attached_again_and_connected_to_a_node_that_was_killed_and_came_back() {
    let mut nodes = TestNodes::new();
    nodes.up("edge-2");
    let waf = Waf::at(nodes.path("waf.sock"));
    let attach = waf.attached(attaching(&nodes, "edge-2"));
    nodes.keep(attach);
    let (mut io, mut socket, first) = waf.stream(nodes.path("edge-2"), "waf");
    waf.passes(&mut io, &mut socket);

    kill(first);
    assert_eq!(socket.read(&mut [0]).unwrap(), 0);
    waf.broken(&mut io);
    nodes.up("edge-2");
    let agents = || nodes.run("edge-2", &["agents", "--json"]).ok().stdout;
    until("it is attached again", || agents().contains("\"waf\""));
    let (mut io, mut socket, second) = waf.stream(nodes.path("edge-2"), "waf");
    assert!(second == pid_of(&nodes, "edge-2") && second != first);
    waf.passes(&mut io, &mut socket);
}

#[test]
fn an_agents_program_killed_in_the_middle_of_a_stream_ends_it_and_is_started_again() {
    let mut nodes = TestNodes::new();
    nodes.up("edge-2");
    let told = nodes.path("pid");
    let hail = crate::companion_programs::hail().display();
    let script = format!(
        "echo $$ > {}; exec {hail} callout waf --listen unix:$HAIL_SOCKET > /dev/null",
        told.display()
    );
    let args = [
        "--json", "callout", "agent", "--name", "waf", "--exec", &script,
    ];
    let mut command = nodes.hail("edge-2", &args);
    let started = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
    let mut attach = started.unwrap();
    assert!(first_line(&mut attach).contains("\"attached\":\"waf\""));
    nodes.keep(attach);
    let pid = || fs::read_to_string(&told).ok()?.trim().parse::<u32>().ok();
    let runtime = runtime();
    let first = pid().unwrap();
    let mut stream = runtime.block_on(async {
        let client = Client::attach(&DataDir::new(nodes.path("edge-2"))).await;
        client.unwrap().stream("waf").open().await.unwrap()
    });
    kill(first);
    let ended = runtime.block_on(async { timeout(PATIENCE, stream.recv.chunk()).await });
    // Reset where the killed program had not read all that was sent to it.
    let ended = ended.unwrap().map_err(|status: Status| status.code);
    assert!(
        matches!(ended, Ok(None) | Err(hailwire::Code::Aborted)),
        "{ended:?}"
    );

    let config = "agents { agent \"waf\" type=\"waf\" { hail \"waf@edge-2\"; timeout-ms 5000; \
                  events \"request_headers\" \"request_body\" } }";
    let path = written(&nodes, "waf.kdl", config);
    let args = ["callout", "test", "--small", "--json", "--config", &path];
    until("another one runs", || pid().is_some_and(|pid| pid != first));
    let report = nodes.run("edge-2", &args).ok().json();
    assert_eq!(report["ready"], true, "{report}");
}

#[test]
fn what_sees_other_files_than_the_node_connects_its_agent_itself() {
    let mut nodes = TestNodes::new();
    nodes.up("edge-2");
    let possible = Command::new("unshare").args(["--mount", "true"]).output();
    if !possible.is_ok_and(|ran| ran.status.success()) {
        return hailwire_skip::skipped("this user cannot have mounts of its own");
    }
    let waf = Waf::at(nodes.path("waf.sock"));
    let plain = attaching(&nodes, "edge-2");
    let mut command = Command::new("unshare");
    command.arg("--mount").arg(plain.get_program());
    command.args(plain.get_args());
    let attach = waf.attached(command);
    let pid = attach.id();
    nodes.keep(attach);
    let (mut io, mut socket, who) = waf.stream(nodes.path("edge-2"), "waf");
    assert_eq!(who, pid, "the path may mean something else to the node");
    waf.passes(&mut io, &mut socket);
}

#[test]
fn what_another_user_attaches_is_not_opened_with_the_nodes_rights() {
    if !rustix::process::geteuid().is_root() {
        return hailwire_skip::skipped("only root can be two users");
    }
    let mut nodes = TestNodes::new();
    let folder = tempfile::tempdir().unwrap();
    let open = |path: &Path| fs::set_permissions(path, fs::Permissions::from_mode(0o777)).unwrap();
    open(folder.path());
    let hail = folder.path().join("hail");
    fs::copy(crate::companion_programs::hail(), &hail).unwrap();
    let data = folder.path().join("node");
    let mut node = Command::new("setpriv");
    node.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"]);
    node.arg(&hail).arg("--data").arg(&data);
    node.args(["--json", "up", "--listen", "127.0.0.1:0"]);
    node.env_remove("HAIL_DATA").env_remove("XDG_RUNTIME_DIR");
    let mut node = node
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    first_line(&mut node);
    let node_pid = node.id();
    nodes.keep(node);

    let waf = Waf::at(folder.path().join("waf.sock"));
    // The node could open it.
    open(&waf.path);
    let mut command = Command::new(&hail);
    command.env_remove("HAIL_DATA").arg("--data").arg(&data);
    command.args(["--json", "callout", "agent", "--name", "waf", "--uds"]);
    let attach = waf.attached(command);
    let pid = attach.id();
    nodes.keep(attach);
    let (mut io, mut socket, who) = waf.stream(data, "waf");
    assert_eq!(who, pid, "and not the node, {node_pid}");
    waf.passes(&mut io, &mut socket);
}
