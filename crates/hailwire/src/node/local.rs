//! The local dispatcher: the Unix socket to which the command line, SDKs and agents attach.
//!
//! The folder is closed to others (mode 0700), and the kernel's word on who is at the other end
//! (`SO_PEERCRED`) is checked besides: this user, or root.

use std::{fs, io, os::unix::fs::PermissionsExt as _, sync::Arc};

use hailwire_wire::Code;
use tokio::net::{UnixListener, UnixStream, unix::UCred};

use hailwire_core::routing::CallOrigin;

use super::{NodeInner, router::NodeDispatcher};
use crate::{
    carrier::{CarrierConnection, mux},
    paths::DataDir,
    session::Session,
};

/// Attached programs at once; a further one is turned away.
const MAX_LOCAL: usize = 16 * 1024;

/// How long to wait before accepting again when the process has no file descriptors left.
const EXHAUSTED_PAUSE: std::time::Duration = std::time::Duration::from_millis(100);

/// Binds the socket, taking the place of one that a killed node left behind.
///
/// The single-instance lock is held, so a socket that is there belongs to nobody.
pub(super) fn listen(data: &DataDir) -> io::Result<UnixListener> {
    let path = data.socket();
    match fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    raise_descriptor_limit();
    let short = data.to_bind()?;
    let listener = UnixListener::bind(short.as_path())?;
    // The folder keeps others out already.
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

/// Accepts programs until the node ends.
pub(super) async fn accept(node: Arc<NodeInner>, listener: Arc<UnixListener>) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => attach(&node, stream),
            Err(error) => {
                tracing::error!(%error, "the local socket accepts nobody for now");
                tokio::time::sleep(EXHAUSTED_PAUSE).await;
            }
        }
    }
}

fn attach(node: &Arc<NodeInner>, stream: UnixStream) {
    let Some(program) = stream.peer_cred().ok().filter(is_admitted) else {
        tracing::warn!("a program of another user was turned away from the local socket");
        return;
    };
    let mut sessions = node.programs.sessions();
    let connection = CarrierConnection::Mux(mux::MuxConnection::server(stream));
    if node.is_closing() || sessions.len() >= MAX_LOCAL {
        connection.close(Code::ResourceExhausted, "this node takes no more programs");
        return;
    }
    let dispatcher = Arc::new(NodeDispatcher {
        node: node.clone(),
        origin: CallOrigin::Local,
        program: Some(program),
    });
    let session = Session::start(connection, false, node.hello(), dispatcher);
    sessions.push(session.clone());
    drop(sessions);
    let node = node.clone();
    tokio::spawn(async move {
        let why = session.closed().await;
        tracing::debug!(%why, "a program detached");
        let mut sessions = node.programs.sessions();
        if let Some(index) = sessions.iter().position(|other| other.is(&session)) {
            sessions.swap_remove(index);
        }
    });
}

fn is_admitted(program: &UCred) -> bool {
    is_this_user(program) || program.uid() == 0
}

fn is_this_user(program: &UCred) -> bool {
    program.uid() == rustix::process::geteuid().as_raw()
}

/// Whether a path means to this process what it means to a program that is attached: it is of the same user and sees the same
/// files. Where that cannot be told it does not.
pub(super) fn sees_what_we_see(program: &UCred) -> bool {
    let Some(pid) = program.pid().filter(|_| is_this_user(program)) else {
        return false;
    };
    ["ns/mnt", "root"].iter().all(|what| {
        let theirs = fs::read_link(format!("/proc/{pid}/{what}"));
        let ours = fs::read_link(format!("/proc/self/{what}"));
        matches!((theirs, ours), (Ok(theirs), Ok(ours)) if theirs == ours)
    })
}

/// Lets this process hold as many descriptors as the system allows it: one per attached program.
fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::debug!(%error, "the limit of open files stays as it is");
    }
}
