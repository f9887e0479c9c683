//! The local door: the Unix socket to which the command line, SDKs and agents attach.
//!
//! The folder is closed to others (mode 0700), and the kernel's word on who is at the other end
//! (`SO_PEERCRED`) is checked besides: this user, or root.

use std::{io, path::Path, sync::Arc};

use hailwire_wire::Code;
use tokio::net::{UnixListener, UnixStream};

use super::{
    Inner,
    router::{Door, Origin},
};
use crate::{
    carrier::{Connection, mux},
    session::Session,
};

/// Attached programs at once; a further one is turned away.
const MAX_LOCAL: usize = 16 * 1024;

/// How long to wait before accepting again when the process has no file descriptors left.
const EXHAUSTED_PAUSE: std::time::Duration = std::time::Duration::from_millis(100);

/// Binds the socket, taking the place of one that a killed node left behind.
///
/// The single-instance lock is held, so a socket that is there belongs to nobody.
pub(super) fn listen(path: &Path) -> io::Result<UnixListener> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    raise_descriptor_limit();
    UnixListener::bind(path)
}

/// Accepts programs until the node ends.
pub(super) async fn accept(node: Arc<Inner>, listener: UnixListener) {
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

fn attach(node: &Arc<Inner>, stream: UnixStream) {
    if !is_this_user(&stream) {
        tracing::warn!("a program of another user was turned away from the local socket");
        return;
    }
    let mut locals = node
        .locals
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    let connection = Connection::Mux(mux::Connection::server(stream));
    if node.is_closing() || locals.len() >= MAX_LOCAL {
        connection.close(Code::ResourceExhausted, "this node takes no more programs");
        return;
    }
    let door = Arc::new(Door {
        node: node.clone(),
        origin: Origin::Local,
    });
    let session = Session::start(connection, false, node.hello(), door);
    locals.push(session.clone());
    drop(locals);
    let node = node.clone();
    tokio::spawn(async move {
        let why = session.closed().await;
        tracing::debug!(%why, "a program detached");
        let mut locals = node
            .locals
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(index) = locals.iter().position(|other| other.is(&session)) {
            locals.swap_remove(index);
        }
    });
}

fn is_this_user(stream: &UnixStream) -> bool {
    let me = rustix::process::getuid().as_raw();
    stream
        .peer_cred()
        .is_ok_and(|peer| peer.uid() == me || peer.uid() == 0)
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
