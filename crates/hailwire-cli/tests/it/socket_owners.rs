//! The local socket among other users of the machine. What needs a second user needs root.

use std::{
    fs,
    io::{BufRead as _, BufReader, ErrorKind, Read as _},
    os::unix::{
        fs::{MetadataExt as _, PermissionsExt as _, chown, symlink},
        net::UnixListener,
    },
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use crate::test_nodes::TestNodes;

/// Somebody else: `nobody`, who owns nothing.
const OTHER: u32 = 65534;

fn is_root() -> bool {
    let root = fs::metadata("/proc/self").unwrap().uid() == 0;
    if !root {
        hailwire_skip::skipped("needs root, to be two users");
    }
    root
}

/// A node on a data folder whose socket's path is longer than an address of a socket may be.
fn node_with_long_path(nodes: &mut TestNodes) -> &'static str {
    const NODE: &str = concat!(
        "a-data-folder-whose-name-is-as-long-as-names-of-folders-in-build-trees-and-in-",
        "temporary-directories-of-test-runners-are-and-somewhat-longer-than-that"
    );
    let args = [
        "--json",
        "up",
        "-d",
        "--name",
        "far",
        "--listen",
        "127.0.0.1:0",
    ];
    let mut up = nodes.hail(NODE, &args);
    let output = up.env_remove("XDG_RUNTIME_DIR").output().unwrap();
    assert!(output.status.success(), "{output:?}");
    nodes.adopt(NODE);
    NODE
}

/// What an earlier `hail` took for the socket's folder: a name that anybody can work out.
fn predictable_folder(data: &Path) -> PathBuf {
    let bytes = data.as_os_str().as_encoded_bytes();
    let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    std::env::temp_dir().join(format!("hailwire-{hash:016x}"))
}

/// A socket that nobody should connect to.
fn decoy(folder: &Path) -> UnixListener {
    let decoy = UnixListener::bind(folder.join("hail.sock")).unwrap();
    decoy.set_nonblocking(true).unwrap();
    decoy
}

#[track_caller]
fn assert_untouched(decoy: &UnixListener) {
    assert_eq!(decoy.accept().unwrap_err().kind(), ErrorKind::WouldBlock);
}

#[test]
fn a_long_path_leads_to_no_folder_that_another_user_could_make_first() {
    let mut nodes = TestNodes::new();
    let temp = tempfile::tempdir().unwrap();
    let node = node_with_long_path(&mut nodes);
    let socket = nodes.path(node).join("run/hail.sock");
    assert!(socket.as_os_str().len() > 107);
    assert_eq!(fs::metadata(&socket).unwrap().mode() & 0o777, 0o600);
    assert!(!predictable_folder(&nodes.path(node)).exists());

    // Another user made the folder of before first, and listens.
    let trapped = predictable_folder(&nodes.path("not-there-yet").join("x".repeat(120)));
    fs::create_dir(&trapped).unwrap();
    let link = temp.path().join("trap");
    symlink(&trapped, &link).unwrap();
    let decoy = decoy(&link);
    let data = format!("not-there-yet/{}", "x".repeat(120));
    let ran = nodes
        .hail(&data, &["call", "echo", "secret"])
        .env_remove("XDG_RUNTIME_DIR")
        .output();
    fs::remove_dir_all(&trapped).unwrap();
    assert_eq!(ran.unwrap().status.code(), Some(78));
    assert_untouched(&decoy);

    nodes.serve(node, "echo", "cat");
    let called = nodes.run(node, &["call", "echo", "hail"]).ok();
    assert_eq!(called.stdout, "hail");
}

#[test]
fn a_socket_in_a_folder_of_another_user_is_told_nothing() {
    if !is_root() {
        return;
    }
    let nodes = TestNodes::new();
    type Make = fn(&Path);
    let cases: [(&str, Make); 4] = [
        ("folder", |data| {
            chown(data.join("run"), Some(OTHER), None).unwrap();
        }),
        ("socket", |data| {
            chown(data.join("run/hail.sock"), Some(OTHER), None).unwrap();
        }),
        ("open", |data| {
            fs::set_permissions(data.join("run"), fs::Permissions::from_mode(0o777)).unwrap();
        }),
        ("link", |data| {
            fs::rename(data.join("run"), data.join("elsewhere")).unwrap();
            symlink(data.join("elsewhere"), data.join("run")).unwrap();
        }),
    ];
    for (name, make) in cases {
        let data = nodes.path(name);
        fs::create_dir_all(data.join("run")).unwrap();
        fs::set_permissions(data.join("run"), fs::Permissions::from_mode(0o700)).unwrap();
        let decoy = decoy(&data.join("run"));
        make(&data);
        for args in [
            &["call", "echo", "secret"][..],
            &["join", "hail1secret"],
            &["status"],
        ] {
            let ran = nodes.run(name, args);
            if ran.code == Some(2) {
                // Not even a ticket: nothing was asked.
                continue;
            }
            assert_eq!(ran.code, Some(71), "{name}: {ran:#?}");
            assert!(ran.stderr.contains("hint: nothing was sent"), "{ran:#?}");
        }
        assert_untouched(&decoy);
    }
}

#[test]
fn a_socket_at_whose_other_end_another_user_listens_is_told_nothing() {
    if !is_root() {
        return;
    }
    let nodes = TestNodes::new();
    let run = nodes.path("desk").join("run");
    fs::create_dir_all(&run).unwrap();
    for open in [nodes.path(""), nodes.path("desk"), run.clone()] {
        fs::set_permissions(open, fs::Permissions::from_mode(0o777)).unwrap();
    }
    let listen = "import socket, sys
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
listener.listen()
print('listening', flush=True)
print('told', listener.accept()[0].recv(1000), flush=True)";
    let mut other = Command::new("setpriv");
    other.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"]);
    other.args(["/usr/bin/python3", "-c", listen]);
    let other = other.arg(run.join("hail.sock")).stdout(Stdio::piped());
    let Ok(mut other) = other.spawn() else {
        return hailwire_skip::skipped("needs setpriv and python3");
    };
    let mut says = BufReader::new(other.stdout.take().unwrap());
    let mut line = String::new();
    says.read_line(&mut line).unwrap();
    if line != "listening\n" {
        other.wait().unwrap();
        return hailwire_skip::skipped("needs /usr/bin/python3");
    }
    // Everything that a look at files tells is in order.
    chown(run.join("hail.sock"), Some(0), None).unwrap();
    fs::set_permissions(&run, fs::Permissions::from_mode(0o700)).unwrap();
    let ran = nodes.run("desk", &["call", "echo", "secret"]);
    assert_eq!(ran.code, Some(71), "{ran:#?}");
    assert!(ran.stderr.contains("a process of user 65534"), "{ran:#?}");
    let mut told = String::new();
    says.read_to_string(&mut told).unwrap();
    assert_eq!(told, "told b''\n");
    other.wait().unwrap();
}

#[test]
fn a_node_starts_in_no_folder_that_is_a_link_or_another_users() {
    let nodes = TestNodes::new();
    let args = ["up", "--listen", "127.0.0.1:0"];
    let refused = |node: &str, why: &str| {
        let ran = nodes.run(node, &args);
        assert_eq!(ran.code, Some(71), "{ran:#?}");
        for part in [why, "hint: "] {
            assert!(ran.stderr.contains(part), "{part}: {ran:#?}");
        }
    };
    // A link in the place of the socket's folder: what it leads to keeps its mode.
    let open = nodes.path("open");
    fs::create_dir(&open).unwrap();
    fs::set_permissions(&open, fs::Permissions::from_mode(0o755)).unwrap();
    fs::create_dir(nodes.path("linked")).unwrap();
    symlink(&open, nodes.path("linked").join("run")).unwrap();
    refused("linked", "is not a folder of its own");
    assert_eq!(fs::metadata(&open).unwrap().mode() & 0o777, 0o755);
    if !is_root() {
        return;
    }
    let owned = |path: &Path| chown(path, Some(OTHER), None).unwrap();
    fs::create_dir_all(nodes.path("theirs")).unwrap();
    owned(&nodes.path("theirs"));
    refused("theirs", "belongs to user 65534");
    fs::create_dir_all(nodes.path("run-theirs").join("run")).unwrap();
    owned(&nodes.path("run-theirs").join("run"));
    refused("run-theirs", "belongs to user 65534");
    let link = nodes.path("link-theirs");
    symlink(&open, &link).unwrap();
    std::os::unix::fs::lchown(&link, Some(OTHER), None).unwrap();
    refused("link-theirs", "is a link that another user made");
    assert_eq!(fs::metadata(&open).unwrap().mode() & 0o777, 0o755);
}
