//! What is asked of the kernel for each TCP connection.
//!
//! A peer that loses its network sends nothing, not even an end. The kernel notices without waking
//! the process: bytes that stay unacknowledged for [`SILENCE`] end the connection (`TCP_USER_TIMEOUT`,
//! RFC 5482), and on an idle one keep-alive probes make that rule apply after [`IDLE`]. A probe costs
//! two small packets in that time; a ping of the session's would cost both programs a wake-up, and is
//! left to the node, which sends one where calls wait for an answer.

use std::{io, time::Duration};

use rustix::net::sockopt;
use tokio::net::TcpStream;

/// How long bytes may stay without acknowledgement before the peer counts as gone.
const SILENCE: Duration = Duration::from_secs(15);

/// How long nothing may arrive before the kernel asks whether the peer is there.
const IDLE: Duration = Duration::from_secs(15);

/// Between two such questions.
const ASK_AGAIN: Duration = Duration::from_secs(5);

/// Sends at once, and notices a peer that is gone within 30 s.
pub(super) fn prepare(io: &TcpStream) -> io::Result<()> {
    io.set_nodelay(true)?;
    sockopt::set_socket_keepalive(io, true)?;
    #[cfg(target_os = "linux")]
    {
        sockopt::set_tcp_keepidle(io, IDLE)?;
        sockopt::set_tcp_keepintvl(io, ASK_AGAIN)?;
        let millis = u32::try_from(SILENCE.as_millis()).unwrap_or(u32::MAX);
        sockopt::set_tcp_user_timeout(io, millis)?;
    }
    Ok(())
}
