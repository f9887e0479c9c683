//! What answers without TLS where a hub should be: one request for a page that nobody has, of which little is read.

use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use hailwire_core::diagnosis::{MAX_PLAIN_ANSWER, PlainAnswer, read_plain_answer};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};

use crate::key::random;

/// How long it may take to connect and to answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// Where browsers look for a portal.
const HTTP: u16 = 80;

/// What is answered at the hub's own port and at that of HTTP; what tells most counts.
pub(super) async fn plain_answer(host: &str, ip: IpAddr, port: u16) -> PlainAnswer {
    let asked = |port| ask(host, SocketAddr::new(ip, port));
    let (own, http) = tokio::join!(asked(port), asked(HTTP));
    own.max(http)
}

async fn ask(host: &str, at: SocketAddr) -> PlainAnswer {
    let mut answer = Vec::with_capacity(MAX_PLAIN_ANSWER);
    // What came until then is looked at.
    let _ = timeout(PATIENCE, exchange(host, at, &mut answer)).await;
    read_plain_answer(&answer, host)
}

/// Reads until the answer's head is there, or as much as is looked at.
async fn exchange(host: &str, at: SocketAddr, answer: &mut Vec<u8>) -> std::io::Result<()> {
    let mut nobodys = [0; 8];
    random(&mut nobodys);
    let nobodys = u64::from_be_bytes(nobodys);
    let host = match at {
        SocketAddr::V6(_) if host.contains(':') => format!("[{host}]"),
        _ => host.to_owned(),
    };
    let request = format!(
        "GET /hailwire-{nobodys:016x} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n"
    );
    let mut tcp = TcpStream::connect(at).await?;
    tcp.write_all(request.as_bytes()).await?;
    let mut part = [0; 512];
    while answer.len() < MAX_PLAIN_ANSWER && !answer.windows(4).any(|end| end == b"\r\n\r\n") {
        match tcp.read(&mut part).await? {
            0 => break,
            length => answer.extend_from_slice(&part[..length]),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    /// Whoever accepts and says this, without end where `again`.
    async fn answered(says: &'static [u8], again: bool) -> PlainAnswer {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap();
        let server = async {
            let (mut tcp, _) = listener.accept().await.unwrap();
            while tcp.write_all(says).await.is_ok() && again {}
            std::future::pending::<()>().await;
        };
        tokio::select! {
            answer = ask("hub", at) => answer,
            () = server => PlainAnswer::Ordinary,
        }
    }

    #[tokio::test]
    async fn an_answer_is_judged_by_its_head_though_it_never_ends() {
        let sign_in = b"HTTP/1.1 302 Found\r\nlocation: http://portal.test/\r\n\r\n";
        assert_eq!(answered(sign_in, true).await, PlainAnswer::SignIn);
        assert_eq!(answered(b"x", true).await, PlainAnswer::Ordinary);
        assert_eq!(
            answered(b"HTTP/1.1 404 No\r\n\r\n", false).await,
            PlainAnswer::Ordinary
        );
    }
}
