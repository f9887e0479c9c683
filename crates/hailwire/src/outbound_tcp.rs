//! TCP connections to servers and peers: by each of a name's addresses in a race (RFC 8305), or through the HTTP proxy that the environment
//! names (`CONNECT`, RFC 9110, section 9.3.6).
//!
//! `HTTPS_PROXY`, else `ALL_PROXY`, is the proxy, `http://[USER:PASSWORD@]HOST:PORT`; `NO_PROXY` lists hosts, domains, addresses and networks that are reached
//! without it, as this machine itself always is. Names in lower case count as well. A proxy of another kind is not used.

use std::{
    collections::VecDeque,
    fmt::{self, Write as _},
    io,
    net::{IpAddr, SocketAddr},
    sync::{Arc, LazyLock},
    time::Duration,
};

use bytes::Bytes;
use data_encoding::BASE64;
use http::{HeaderValue, Request, Uri, header, uri::Authority};
use http_body_util::Empty;
use hyper::client::conn::http1;
use hyper_util::{
    client::proxy::matcher::{Intercept, Matcher},
    rt::TokioIo,
};
use tokio::{net::TcpStream, time::timeout};

use crate::attempt_race;

/// Between two attempts at addresses of one name (RFC 8305, section 5).
const ATTEMPT_DELAY: Duration = Duration::from_millis(250);

/// Addresses of one name that are tried.
const MAX_ADDRESSES: usize = 8;

/// How long a proxy may take to connect.
const PROXY_PATIENCE: Duration = Duration::from_secs(5);

/// Largest head of a proxy's answer.
const MAX_PROXY_HEAD: usize = 8 * 1024;

/// Which proxy is used for which host.
#[derive(Clone)]
pub(crate) struct HttpProxies(Arc<Matcher>);

impl HttpProxies {
    /// As the environment of this process says.
    pub(crate) fn of_environment() -> Self {
        static OF_PROCESS: LazyLock<HttpProxies> =
            LazyLock::new(|| HttpProxies(Arc::new(Matcher::from_env())));
        OF_PROCESS.clone()
    }

    /// One proxy for all hosts but those of `no_proxy`.
    #[cfg(test)]
    pub(crate) fn all(proxy: &str, no_proxy: &str) -> Self {
        Self(Arc::new(Matcher::builder().all(proxy).no(no_proxy).build()))
    }

    /// The proxy to a server, for those who connect by themselves; with user and password.
    pub(crate) fn url(&self, host: &str, port: u16) -> Option<String> {
        let proxy = self.of(host, port)?;
        let user = proxy.basic_auth().and_then(user_and_password);
        let user =
            user.map(|(user, password)| format!("{}:{}@", encoded(&user), encoded(&password)));
        let authority = proxy.uri().authority()?;
        Some(format!("http://{}{authority}", user.unwrap_or_default()))
    }

    /// The proxy to a server, for people: without user and password.
    pub(crate) fn shown(&self, host: &str, port: u16) -> Option<String> {
        let proxy = self.of(host, port)?;
        Some(format!("http://{}", proxy.uri().authority()?))
    }

    fn of(&self, host: &str, port: u16) -> Option<Intercept> {
        let ip = host.parse::<IpAddr>().ok();
        if ip.is_some_and(|ip| ip.to_canonical().is_loopback()) || host == "localhost" {
            return None;
        }
        let target: Uri = format!("https://{}/", authority(host, port)).parse().ok()?;
        let proxy = self.0.intercept(&target)?;
        if proxy.uri().scheme_str() != Some("http") {
            tracing::warn!(
                scheme = proxy.uri().scheme_str(),
                "the proxy is not used: only http:// is supported"
            );
            return None;
        }
        Some(proxy)
    }
}

impl fmt::Debug for HttpProxies {
    /// Without passwords.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HttpProxies")
    }
}

/// Connects to a server by its name or address, through the proxy that is meant for it. The caller bounds the time.
///
/// # Errors
///
/// The name has no address, none of them answers, or the proxy does not connect.
///
/// # Cancel safety
///
/// Dropping the future ends all attempts.
pub(crate) async fn connect(host: &str, port: u16, proxies: &HttpProxies) -> io::Result<TcpStream> {
    match proxies.of(host, port) {
        None => direct(host, port).await,
        Some(proxy) => through(&proxy, host, port).await,
    }
}

/// As [`connect`], to an address: one of this network is never reached through a proxy.
pub(crate) async fn connect_to(
    address: SocketAddr,
    proxies: &HttpProxies,
) -> io::Result<TcpStream> {
    match hailwire_core::dial_address::is_global(address.ip()) {
        true => connect(&address.ip().to_string(), address.port(), proxies).await,
        false => TcpStream::connect(address).await,
    }
}

async fn direct(host: &str, port: u16) -> io::Result<TcpStream> {
    let found = tokio::net::lookup_host((host, port)).await?;
    let addresses = in_turns(found);
    let race = attempt_race::run(addresses, ATTEMPT_DELAY, TcpStream::connect);
    match race.await {
        Ok((tcp, _)) => Ok(tcp),
        // The first is of the address that the system prefers.
        Err(errors) => Err(errors.into_iter().next().unwrap_or_else(|| {
            io::Error::new(io::ErrorKind::NotFound, format!("`{host}` has no address"))
        })),
    }
}

/// The addresses of both families in turns, beginning with the family that the system prefers (RFC 8305, section 4).
fn in_turns(found: impl Iterator<Item = SocketAddr>) -> Vec<SocketAddr> {
    let mut first: VecDeque<SocketAddr> = VecDeque::new();
    let mut second = VecDeque::new();
    for address in found {
        match first
            .front()
            .is_none_or(|one| one.is_ipv4() == address.is_ipv4())
        {
            true => first.push_back(address),
            false => second.push_back(address),
        }
    }
    let mut addresses = Vec::new();
    while addresses.len() < MAX_ADDRESSES {
        let pair = [first.pop_front(), second.pop_front()];
        if pair == [None, None] {
            break;
        }
        addresses.extend(pair.into_iter().flatten());
    }
    addresses.truncate(MAX_ADDRESSES);
    addresses
}

async fn through(proxy: &Intercept, host: &str, port: u16) -> io::Result<TcpStream> {
    let named = proxy.uri().authority().map_or("", Authority::as_str);
    let failed = |why: &dyn fmt::Display| {
        io::Error::other(format!(
            "the proxy {named} does not connect to {host}:{port}: {why}"
        ))
    };
    let connected = timeout(PROXY_PATIENCE, tunnelled(proxy, host, port)).await;
    match connected {
        Ok(Ok(tcp)) => Ok(tcp),
        Ok(Err(error)) => Err(failed(&error)),
        Err(_) => Err(failed(&format!(
            "no answer within {} s",
            PROXY_PATIENCE.as_secs()
        ))),
    }
}

async fn tunnelled(proxy: &Intercept, host: &str, port: u16) -> io::Result<TcpStream> {
    let at = proxy.uri();
    let tcp = direct(at.host().unwrap_or_default(), at.port_u16().unwrap_or(80)).await?;
    let (mut sender, connection) = http1::Builder::new()
        .max_buf_size(MAX_PROXY_HEAD)
        .handshake(TokioIo::new(tcp))
        .await
        .map_err(io::Error::other)?;
    let exchange = async move {
        let answer = sender.send_request(request(proxy, host, port)?).await;
        let answer = answer.map_err(io::Error::other)?;
        if !answer.status().is_success() {
            return Err(io::Error::other(format!("it answers {}", answer.status())));
        }
        hyper::upgrade::on(answer).await.map_err(io::Error::other)
    };
    // The connection ends when it hands the stream over.
    let connection = async {
        let ended = connection.with_upgrades().await;
        ended.map_err(io::Error::other)
    };
    let (upgraded, ()) = tokio::try_join!(exchange, connection)?;
    let parts = upgraded.downcast::<TokioIo<TcpStream>>();
    let parts = parts.map_err(|_| io::Error::other("it answers in another way than HTTP/1.1"))?;
    if !parts.read_buf.is_empty() {
        return Err(io::Error::other("it said something in the server's name"));
    }
    Ok(parts.io.into_inner())
}

fn request(proxy: &Intercept, host: &str, port: u16) -> io::Result<Request<Empty<Bytes>>> {
    let authority = authority(host, port);
    let mut request = Request::connect(&authority).header(header::HOST, &authority);
    if let Some(permit) = proxy.basic_auth() {
        request = request.header(header::PROXY_AUTHORIZATION, permit);
    }
    request.body(Empty::new()).map_err(io::Error::other)
}

/// What a permit of the scheme `Basic` says (RFC 7617).
fn user_and_password(permit: &HeaderValue) -> Option<(String, String)> {
    let token = permit.to_str().ok()?.strip_prefix("Basic ")?;
    let text = String::from_utf8(BASE64.decode(token.as_bytes()).ok()?).ok()?;
    let (user, password) = text.split_once(':')?;
    Some((user.to_owned(), password.to_owned()))
}

/// Host and port as a URL has them.
fn authority(host: &str, port: u16) -> String {
    match host.parse::<IpAddr>().is_ok_and(|ip| ip.is_ipv6()) {
        true => format!("[{host}]:{port}"),
        false => format!("{host}:{port}"),
    }
}

/// A user or password as a URL has it.
fn encoded(text: &str) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                out.push(char::from(byte));
            }
            other => {
                let _ = write!(out, "%{other:02X}");
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::TcpListener,
    };

    use super::*;

    fn addresses(texts: &[&str]) -> Vec<SocketAddr> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    /// A proxy that answers its first request with this text; gives its address and what it heard.
    async fn proxy(answer: &str) -> (String, tokio::task::JoinHandle<(String, TcpStream)>) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let at = listener.local_addr().unwrap().to_string();
        let answer = answer.to_owned();
        let heard = tokio::spawn(async move {
            let (mut tcp, _) = listener.accept().await.unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                tcp.read_buf(&mut head).await.unwrap();
            }
            tcp.write_all(answer.as_bytes()).await.unwrap();
            (String::from_utf8(head).unwrap(), tcp)
        });
        (at, heard)
    }

    #[test]
    fn families_take_turns_and_the_preferred_one_begins() {
        let found = addresses(&[
            "[2001:db8::1]:1",
            "[2001:db8::2]:1",
            "192.0.2.1:1",
            "192.0.2.2:1",
            "192.0.2.3:1",
        ]);
        let turns = addresses(&[
            "[2001:db8::1]:1",
            "192.0.2.1:1",
            "[2001:db8::2]:1",
            "192.0.2.2:1",
            "192.0.2.3:1",
        ]);
        assert_eq!(in_turns(found.into_iter()), turns);
        let many = (1..=99).map(|last| SocketAddr::from(([192, 0, 2, last], 1)));
        assert_eq!(in_turns(many).len(), MAX_ADDRESSES);
        assert_eq!(in_turns([].into_iter()), []);
    }

    #[tokio::test]
    async fn a_proxy_is_asked_for_the_host_with_user_and_password() {
        let (at, heard) = proxy("HTTP/1.1 200 fine\r\n\r\n").await;
        let proxies = HttpProxies::all(&format!("http://me:p%40ss@{at}"), "");
        let mut tcp = connect("hub.example", 7443, &proxies).await.unwrap();
        let (head, mut far) = heard.await.unwrap();
        assert!(
            head.starts_with("CONNECT hub.example:7443 HTTP/1.1\r\n"),
            "{head}"
        );
        assert!(
            head.contains("proxy-authorization: Basic bWU6cEBzcw==\r\n"),
            "{head}"
        );
        far.write_all(b"hello").await.unwrap();
        let mut read = [0; 5];
        tcp.read_exact(&mut read).await.unwrap();
        assert_eq!(&read, b"hello");
        assert_eq!(
            proxies.url("hub.example", 7443).unwrap(),
            format!("http://me:p%40ss@{at}")
        );
    }

    #[tokio::test]
    async fn what_a_proxy_refuses_or_says_wrongly_is_told_with_its_name() {
        for (answer, why) in [
            (
                "HTTP/1.1 407 no\r\ncontent-length: 0\r\n\r\n",
                "it answers 407 Proxy Authentication Required",
            ),
            (
                "HTTP/1.1 200 fine\r\n\r\nI am the server",
                "it said something in the server's name",
            ),
            ("SSH-2.0-x\r\n\r\n", "invalid HTTP version parsed"),
            (
                &format!("HTTP/1.1 200 fine\r\nx: {}\r\n\r\n", "x".repeat(20_000)),
                "message head is too large",
            ),
        ] {
            let (at, heard) = proxy(answer).await;
            let proxies = HttpProxies::all(&format!("http://{at}"), "");
            let error = connect("hub.example", 443, &proxies).await.unwrap_err();
            let told = format!("the proxy {at} does not connect to hub.example:443: {why}");
            assert_eq!(error.to_string(), told);
            drop(heard);
        }
    }

    #[tokio::test]
    async fn hosts_that_need_no_proxy_and_this_network_are_reached_without_one() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let nowhere = "http://127.0.0.1:1";
        let listed = HttpProxies::all(nowhere, "198.51.100.0/24, .example");
        assert_eq!(listed.url("hub.example", 443), None);
        assert_eq!(listed.url("198.51.100.7", 443), None);
        assert_eq!(
            listed.url("hub.test", 443).as_deref(),
            Some("http://127.0.0.1:1")
        );
        let all = HttpProxies::all(nowhere, "");
        assert!(connect("127.0.0.1", port, &all).await.is_ok());
        assert!(connect("198.51.100.7", port, &all).await.is_err());
        assert!(
            connect_to(listener.local_addr().unwrap(), &all)
                .await
                .is_ok()
        );
        // One of another kind is none.
        let socks = HttpProxies::all("socks5://127.0.0.1:1", "");
        assert_eq!(socks.url("hub.test", 443), None);
    }
}
