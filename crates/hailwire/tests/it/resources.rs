//! What a machine may lack or refuse: room on its disk, rights, a port, descriptors; and how much
//! memory idle programs and slow readers cost.

use std::{
    net::UdpSocket,
    os::unix::{fs::PermissionsExt, process::CommandExt},
    path::Path,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use hailwire::{
    Agent, Body, Client, Code, DataDir, Node, Request, Response, admin::method, config::InForce,
};
use hailwire_skip::skipped;
use rustix::process::{Resource, Rlimit, geteuid, getrlimit, setrlimit};
use tokio::sync::mpsc;

use crate::{
    child::{Helper, Role},
    test_node::{self, PATIENCE, TestNode, call, serve_echo},
};

/// What starting a node in a folder says, causes included.
async fn refusal(dir: &Path) -> String {
    let error = test_node::start(dir, "alice").await.unwrap_err();
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(&error);
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

#[tokio::test]
async fn a_data_folder_that_cannot_be_written_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, "").unwrap();
    let text = refusal(&file).await;
    assert!(text.contains(&file.display().to_string()), "{text}");
    // Not writable even for root.
    for folder in ["/proc/hailwire", "/sys/hailwire"] {
        let text = refusal(Path::new(folder)).await;
        assert!(text.contains(folder), "{text}");
    }
}

/// A small file system of its own, unmounted at the end; `None` where this user may not mount.
pub(crate) struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    pub(crate) fn mount(options: &str) -> Option<Self> {
        if !geteuid().is_root() {
            skipped("needs root");
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        let mut mount = Command::new("mount");
        mount
            .args(["-t", "tmpfs", "-o", options, "tmpfs"])
            .arg(dir.path());
        if !mount.status().is_ok_and(|status| status.success()) {
            skipped("mounting is not allowed here");
            return None;
        }
        Some(Self(dir))
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let unmounted = Command::new("umount").arg("-l").arg(self.path()).status();
        assert!(unmounted.is_ok_and(|status| status.success()));
    }
}

#[tokio::test]
async fn a_full_disk_is_an_error_in_words_and_a_running_node_goes_on() {
    let Some(disk) = SmallDisk::mount("size=768k") else {
        return;
    };
    let dir = disk.path().join("node");
    let node = test_node::start(&dir, "alice").await.unwrap();
    let bob = TestNode::named("bob").await;
    let client = node.client();
    let ticket = test_node::invite(&client, 3, &[]).await;
    let _echo = serve_echo(&client, "echo").await;

    // Full: what must be kept is refused, what need not be kept works.
    let filler = disk.path().join("filler");
    let _ = std::fs::write(&filler, vec![1_u8; 1 << 20]);
    let refused = bob.join(&ticket).await.unwrap_err();
    assert_eq!(refused.code, Code::Unavailable, "{refused}");
    assert!(refused.message.contains("full"), "{refused}");
    assert_eq!(call(&client, "echo", "x").await.unwrap(), b"x");
    let other = disk.path().join("other");
    let text = refusal(&other).await;
    assert!(text.contains(&other.display().to_string()), "{text}");

    // Room again: the same ticket is still good.
    std::fs::remove_file(&filler).unwrap();
    bob.join(&ticket).await.unwrap();
    assert_eq!(call(&bob.client(), "echo@alice", "x").await.unwrap(), b"x");

    node.shutdown(std::time::Duration::ZERO).await;
}

#[tokio::test]
async fn a_read_only_disk_is_refused_by_the_name_of_the_folder() {
    let Some(disk) = SmallDisk::mount("ro,size=64k") else {
        return;
    };
    for folder in [disk.path().to_owned(), disk.path().join("node")] {
        let text = refusal(&folder).await;
        assert!(text.contains(&folder.display().to_string()), "{text}");
        assert!(text.contains("ead-only"), "{text}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_users_program_is_turned_away_by_the_folder_and_by_the_node() {
    if !geteuid().is_root() {
        skipped("needs root");
        return;
    }
    let host = TestNode::named("alice").await;
    // Everything above the node's own folder may be entered by anybody.
    let open = |path: &Path| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
    };
    open(host.dir.path());
    let binary = host.dir.path().join("it");
    std::fs::copy(std::env::current_exe().unwrap(), &binary).unwrap();
    open(&binary);
    let visit = || {
        let mut visitor = Helper::spawn(Role::Visitor, host.dir.path(), "", |command| {
            let mut other = Command::new(&binary);
            other.args(command.get_args());
            for (name, value) in command.get_envs() {
                other.env(name, value.unwrap());
            }
            other
                .stdin(std::process::Stdio::piped())
                .stdout(std::process::Stdio::piped());
            other.uid(65534).gid(65534);
            *command = other;
        });
        visitor.line()
    };
    let closed = visit();
    assert!(closed.contains("not let in: PermissionDenied"), "{closed}");

    let run = host.data().socket();
    open(run.parent().unwrap());
    std::fs::set_permissions(&run, std::fs::Permissions::from_mode(0o777)).unwrap();
    let turned_away = visit();
    // The library does not speak to another user's node, and the node not to another user's program.
    assert!(turned_away.contains("belongs to user 0"), "{turned_away}");
    assert!(turned_away.ends_with("turned away"), "{turned_away}");
    assert!(
        host.attach()
            .await
            .admin::<_, hailwire::admin::NodeStatus>("status", &())
            .await
            .is_ok()
    );
}

#[tokio::test]
async fn a_udp_port_in_use_is_named() {
    let taken = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let mut config = test_node::config("alice");
    config.listen.udp = vec![address];
    let start = Node::builder()
        .data_dir(DataDir::new(dir.path()))
        .config(config)
        .start();
    let error = start.await.unwrap_err().to_string();
    assert!(error.contains(&address.to_string()), "{error}");
    assert!(error.contains("in use"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_idle_programs_cost_little_and_disturb_nobody() {
    const PROGRAMS: usize = 10_000;
    let limit = getrlimit(Resource::Nofile);
    if limit
        .maximum
        .is_some_and(|most| most < PROGRAMS as u64 + 500)
    {
        skipped(format!("this user may open too few files ({limit:?})"));
        return;
    }
    let all = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    setrlimit(Resource::Nofile, all).unwrap();

    let dir = tempfile::tempdir().unwrap();
    let data = DataDir::new(dir.path());
    let _node = Helper::start(Role::Node, dir.path(), "alice");
    let client = Client::attach(&data).await.unwrap();
    let _echo = serve_echo(&client, "echo").await;
    call(&client, "echo", "x").await.unwrap();
    let before = test_node::status(&client).await.rss_bytes;
    let mut idle = Vec::with_capacity(PROGRAMS);
    while idle.len() < PROGRAMS {
        idle.push(Client::attach(&data).await.unwrap());
    }
    let growth = test_node::status(&client)
        .await
        .rss_bytes
        .saturating_sub(before);
    let each = growth / PROGRAMS as u64;
    eprintln!("{PROGRAMS} idle programs: {each} bytes of the node's memory each");
    assert!(each < 16 * 1024, "{each} bytes each");
    assert_eq!(call(&idle[PROGRAMS - 1], "echo", "x").await.unwrap(), b"x");
}

const MIB: u64 = 1024 * 1024;

/// What is streamed: a pattern whose period fits no buffer, so that a lost, doubled or misplaced
/// chunk shows.
#[derive(Clone)]
struct Pattern(Bytes);

impl Pattern {
    const PERIOD: usize = 65_521;

    fn new() -> Self {
        let byte = |i: usize| (i % Self::PERIOD) as u16;
        let bytes = (0..2 * Self::PERIOD).map(|i| (byte(i).wrapping_mul(0x9e37) >> 8) as u8);
        Self(bytes.collect())
    }

    /// Up to `len` bytes from `offset` on.
    fn at(&self, offset: u64, len: usize) -> Bytes {
        let from = (offset % Self::PERIOD as u64) as usize;
        self.0.slice(from..from + len.min(Self::PERIOD))
    }

    fn check(&self, mut offset: u64, mut chunk: &[u8]) {
        while !chunk.is_empty() {
            let expected = self.at(offset, chunk.len());
            let (part, rest) = chunk.split_at(expected.len());
            assert!(part == expected, "wrong bytes after {offset}");
            offset += part.len() as u64;
            chunk = rest;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_reader_holds_back_a_gibibyte_and_the_nodes_stay_small() {
    const TOTAL: u64 = 1024 * MIB;
    /// What is read of it slowly; all of it would take a quarter of an hour.
    const SLOWLY: u64 = 4 * MIB;
    const BLOCK: usize = 32 * 1024;
    /// What all the buffers between a writer and its reader may hold.
    const BUFFERS: u64 = 8 * MIB;
    let (near_dir, far_dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let near_node = Helper::start(Role::Node, near_dir.path(), "near");
    let far_node = Helper::start(Role::Node, far_dir.path(), "far");
    let near = Client::attach(&DataDir::new(near_dir.path()))
        .await
        .unwrap();
    let far = Client::attach(&DataDir::new(far_dir.path())).await.unwrap();
    let ticket = test_node::invite(&far, 1, &[]).await;
    test_node::join(&near, &ticket).await.unwrap();

    let written = Arc::new(AtomicU64::new(0));
    let counted = written.clone();
    let pattern = Pattern::new();
    let poured = pattern.clone();
    let pour = move |_: Request| {
        let (written, pattern) = (counted.clone(), poured.clone());
        async move {
            let (sender, body) = Body::channel(1);
            tokio::spawn(async move {
                let mut offset = 0;
                while offset < TOTAL {
                    let block = pattern.at(offset, BLOCK);
                    offset += block.len() as u64;
                    sender.send(block).await?;
                    written.store(offset, Ordering::Relaxed);
                }
                sender.finish().await
            });
            Ok(Response::new(body))
        }
    };
    let _serving = far.serve(Agent::new("pour").unwrap(), pour).await.unwrap();
    let mut answer = near.call("pour@far").send().await.unwrap();

    // About a megabyte a second at first, then as fast as it goes.
    let mut pace = tokio::time::interval(std::time::Duration::from_millis(100));
    let (mut read, mut paced) = (0, 0);
    while let Some(chunk) = answer.chunk().await.unwrap() {
        pattern.check(read, &chunk);
        read += chunk.len() as u64;
        if read < SLOWLY {
            let ahead = written.load(Ordering::Relaxed).saturating_sub(read);
            assert!(ahead <= BUFFERS, "the writer is {ahead} bytes ahead");
            while paced < read / 100_000 {
                pace.tick().await;
                paced += 1;
            }
        }
    }
    assert_eq!(read, TOTAL);
    for (name, node) in [("near", &near_node), ("far", &far_node)] {
        let peak = node.peak_rss();
        eprintln!("the {name} node's peak: {} MiB", peak / MIB);
        assert!(peak < 64 * MIB, "the {name} node held {peak} bytes");
    }
}

#[tokio::test]
async fn a_critical_call_overtakes_queued_low_ones_on_one_tunnel() {
    const LOW: usize = 64;
    let (alice, bob) = TestNode::pair().await;
    let size = |request: Request| async move {
        let size: usize = request.header().method.parse().unwrap();
        Ok(Response::new(vec![7_u8; size]))
    };
    let _serving = bob
        .client()
        .serve(Agent::new("size").unwrap(), size)
        .await
        .unwrap();
    let client = alice.client();
    let (begun, mut low_begun) = mpsc::unbounded_channel();
    let (done, mut low_done) = mpsc::unbounded_channel();
    for _ in 0..LOW {
        let (client, begun, done) = (client.clone(), begun.clone(), done.clone());
        tokio::spawn(async move {
            let call = client
                .call("size@bob")
                .method("1048576")
                .priority(hailwire::Priority::Low);
            let mut answer = call.send().await.unwrap();
            let mut size = 0;
            while let Some(chunk) = answer.chunk().await.unwrap() {
                if size == 0 {
                    begun.send(()).unwrap();
                }
                size += chunk.len();
            }
            assert_eq!(size, 1 << 20);
            done.send(()).unwrap();
        });
    }
    // The tunnel is busy once the first of them has begun. They take turns, so that all end late.
    low_begun.recv().await.unwrap();
    let call = client
        .call("size@bob")
        .method("1024")
        .priority(hailwire::Priority::Critical);
    let mut answer = call.deadline(PATIENCE).send().await.unwrap();
    assert_eq!(answer.bytes(1024).await.unwrap().len(), 1024);
    let mut overtook = LOW;
    while low_done.try_recv().is_ok() {
        overtook -= 1;
    }
    assert!(overtook > LOW / 2, "it overtook only {overtook} of {LOW}");
}

#[tokio::test]
async fn readers_that_stall_do_not_stop_a_tunnel() {
    let (alice, bob) = TestNode::pair().await;
    let endless = |_: Request| async move {
        let (sender, body) = Body::channel(1);
        tokio::spawn(async move { while sender.send(vec![0_u8; 65_536]).await.is_ok() {} });
        Ok(Response::new(body))
    };
    let _endless = bob
        .client()
        .serve(Agent::new("endless").unwrap(), endless)
        .await
        .unwrap();
    let _echo = serve_echo(&bob.client(), "echo").await;
    let client = alice.client();
    let mut stalled = Vec::new();
    for _ in 0..12 {
        let mut answer = client.call("endless@bob").send().await.unwrap();
        answer.chunk().await.unwrap();
        stalled.push(answer);
    }
    for _ in 0..200 {
        let body = vec![1_u8; 65_536];
        assert_eq!(call(&client, "echo@bob", body.clone()).await.unwrap(), body);
    }
}

#[tokio::test]
async fn a_node_says_how_much_the_kernel_grants_its_sockets() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = test_node::config("alice");
    config.quic.socket_buffer = "64KiB".parse().unwrap();
    let node = Node::builder()
        .data_dir(DataDir::new(dir.path()))
        .config(config)
        .start()
        .await
        .unwrap();
    let rows: Vec<InForce> = node.client().admin(method::CONFIG, &()).await.unwrap();
    let row = |setting: &str| rows.iter().find(|row| row.setting == setting).unwrap();
    assert_eq!(row("quic.socket-buffer").value, "\"64KiB\"");
    let granted = row("quic.socket-buffer.granted");
    assert_eq!(granted.value, "65536 bytes in, 65536 out", "{granted:?}");
    let crypto = &row("quic.crypto").value;
    assert!(crypto.contains("is offered first"), "{crypto}");
    node.shutdown(Duration::ZERO).await;
}
