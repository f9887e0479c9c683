//! Subjects: programs that serve and programs that load, each a process of its own.
//!
//! A program that serves prints one JSON line, `{"ready":{"address":"ip:port"}}`, and runs until its
//! standard input ends. A program that loads is given that, prints `{"ready":{}}`, and then answers
//! each line of [`Work`] with a line of [`Measured`]. Ours are reached by
//! `hail bench subject serve|load NAME`; anybody's can take part by the same interface
//! (`docs/reference/bench-subjects.md`). That both end with their standard input is what leaves no
//! process behind, however a run ends.
//!
//! | module | subject |
//! |---|---|
//! | `plain_h2` | hyper over TLS 1.3 |
//! | `plain_ws` | tungstenite over TLS 1.3 |
//! | `raw_iroh` | QUIC streams without a session |
//! | `session` | calls between embedded nodes, over each carrier |
//! | `processes` | calls from program to program through two nodes |
//! | `hub` | a hub, at which nodes behind NAT find each other |
//! | `proxy` | the TCP relay proxy of the baseline behind NAT |
//! | `callout` | a host and an agent of Agent Protocol v2, near and far, and what they do |
//! | `load` | how work is done, the same for all |

mod callout;
mod hub;
mod load;
mod pattern;
mod plain_h2;
mod plain_ws;
mod processes;
mod proxy;
mod raw_iroh;
mod session;
mod tls;

use std::{
    io::Write,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use hailwire::Priority;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, BufReader};

pub use callout::Wire;
pub use session::Carrier;

use crate::{
    BenchError,
    tables::subject as words,
    work::{Measured, Start, Work},
};

/// How long a party may take to end after its standard input has.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// The subjects that this program brings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Subject {
    /// A session between embedded nodes.
    Session(Carrier),
    /// hyper.
    PlainH2,
    /// tungstenite.
    PlainWs,
    /// iroh.
    RawIroh,
    /// Through two nodes, from program to program.
    Processes,
    /// A node alone: a part of [`Subject::Processes`].
    Node,
    /// A hub: no subject itself, the way to one.
    Hub,
    /// A TCP relay proxy: no subject itself, the way to one.
    Proxy,
    /// A host and an agent of Agent Protocol v2.
    Callout,
    /// The same with a node beside each.
    FarCallout,
    /// Bytes back and forth over a Unix socket, with blocking calls.
    RawSocket,
    /// The same bytes on an event loop.
    RawEvented,
    /// Datagrams back and forth.
    RawUdp,
    /// Single operations of callouts: whoever serves does nothing.
    Operations,
}

impl Subject {
    /// Those that can be compared.
    pub const ALL: [Self; 8] = [
        Self::Session(Carrier::Quic),
        Self::Session(Carrier::H2),
        Self::Session(Carrier::Ws),
        Self::Session(Carrier::Auto),
        Self::RawIroh,
        Self::PlainH2,
        Self::PlainWs,
        Self::Processes,
    ];

    /// Its word in the cells of a result.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Session(Carrier::Quic) => words::QUIC,
            Self::Session(Carrier::H2) => words::H2,
            Self::Session(Carrier::Ws) => words::WS,
            Self::Session(Carrier::Auto) => words::AUTO,
            Self::PlainH2 => words::PLAIN_H2,
            Self::PlainWs => words::PLAIN_WS,
            Self::RawIroh => words::RAW_IROH,
            Self::Processes => words::PROCESSES,
            Self::Node => "node",
            Self::Hub => "hub",
            Self::Proxy => "proxy",
            Self::Callout => "callout",
            Self::FarCallout => crate::tables::callout::FAR,
            Self::RawSocket => crate::tables::callout::RAW,
            Self::RawUdp => crate::tables::callout::UDP,
            Self::RawEvented => "raw socket evented",
            Self::Operations => "operations",
        }
    }

    /// Its word on the command line.
    #[must_use]
    pub fn name(self) -> String {
        self.word().replace(' ', "-")
    }

    /// By its word on the command line.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        let known = Self::ALL
            .into_iter()
            .chain([Self::Node, Self::Hub, Self::Proxy])
            .chain([Self::Callout, Self::FarCallout, Self::Operations])
            .chain([Self::RawSocket, Self::RawEvented, Self::RawUdp]);
        known.into_iter().find(|subject| subject.name() == name)
    }
}

/// How a subject is to be set up.
#[derive(Clone, Debug)]
pub struct Options {
    /// Address to serve at. Default: 127.0.0.1.
    pub listen: IpAddr,
    /// QUIC's congestion control. Default: the subject's own.
    pub congestion: Option<Congestion>,
    /// Bytes of one stream that may be unread; a connection has 16 times that. Default: 2 MiB.
    pub window: Option<u32>,
    /// What the two sides find each other through: a relay proxy for plain HTTP/2, instead of listening; for
    /// [`Subject::RawUdp`] another one of it.
    pub through: Option<SocketAddr>,
    /// What the far node said of itself, in JSON. Only [`Subject::Node`].
    pub peer: Option<String>,
    /// A ticket of the hub at which nodes find each other. Only sessions.
    pub hub: Option<String>,
    /// On which path work is done; it is waited for. Only sessions at a hub.
    pub path: Option<Path>,
    /// Connections of a warm tunnel that is shared, from 1 to [`Pool::MAX`](hailwire::config::Pool::MAX); work
    /// begins when all are up. Default: the node's own, not waited for. Only sessions.
    pub pool: Option<u32>,
    /// How callouts travel. Default: in MessagePack over a Unix socket. Only [`Subject::Callout`].
    pub callout: Wire,
}

/// How two nodes reach each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    /// From address to address.
    Direct,
    /// Through the hub's relay.
    Relay,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            listen: Ipv4Addr::LOCALHOST.into(),
            congestion: None,
            window: None,
            through: None,
            peer: None,
            hub: None,
            path: None,
            pool: None,
            callout: Wire::default(),
        }
    }
}

/// QUIC congestion control.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Congestion {
    /// BBR version 3.
    Bbr,
    /// CUBIC (RFC 9438).
    Cubic,
}

impl Congestion {
    /// Its word.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Bbr => "bbr",
            Self::Cubic => "cubic",
        }
    }
}

/// What a program that serves says of itself. A program of somebody else's gives an address.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Ready {
    /// Where to reach it: `ip:port`.
    pub address: String,
    /// Its key, where it has one.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub id: String,
    /// Its certificate in hex, where it has one.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub certificate: String,
    /// From which the keys of the nodes that it trusts are drawn.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub seed: String,
    /// The data folder of its node.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub data: String,
    /// Where it can be reached over TCP, where that is another address.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub tcp: String,
    /// A ticket, where it is a hub.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub ticket: String,
}

impl Ready {
    fn socket(&self) -> Result<SocketAddr, BenchError> {
        self.address.parse().map_err(failed("the address"))
    }
}

/// Serves a subject until standard input ends.
///
/// # Errors
///
/// [`BenchError`], before it is ready.
pub async fn serve(subject: Subject, options: &Options) -> Result<(), BenchError> {
    let ready: Ready;
    let mut node = None;
    let mut processes = None;
    let mut hub = None;
    let mut raw = None;
    let mut agent = None;
    let mut far = None;
    match subject {
        Subject::FarCallout => {
            let served = callout::far::serve(options).await?;
            ready = served.ready.clone();
            far = Some(served);
        }
        Subject::RawUdp => ready = callout::udp::serve(options)?,
        Subject::Callout => {
            let served = callout::ends::serve(options.callout).await?;
            ready = served.ready.clone();
            agent = Some(served);
        }
        Subject::RawSocket => {
            let served = callout::raw::serve()?;
            ready = served.ready.clone();
            raw = Some(served);
        }
        Subject::RawEvented => {
            let served = callout::raw::serve_evented()?;
            ready = served.ready.clone();
            raw = Some(served);
        }
        Subject::Operations => ready = Ready::default(),
        Subject::PlainH2 => ready = plain_h2::serve(options).await?,
        Subject::PlainWs => ready = plain_ws::serve(options).await?,
        Subject::RawIroh => ready = raw_iroh::serve(options).await?,
        Subject::Proxy => ready = proxy::serve(options).await?,
        Subject::Hub => {
            let served = hub::serve(options).await?;
            ready = served.ready.clone();
            hub = Some(served);
        }
        Subject::Session(carrier) => {
            let served = session::serve(carrier, options).await?;
            ready = served.ready.clone();
            node = Some(served);
        }
        Subject::Node => {
            let served = session::serve_node(options).await?;
            ready = served.ready.clone();
            node = Some(served);
        }
        Subject::Processes => {
            let served = processes::serve(options).await?;
            ready = served.ready.clone();
            processes = Some(served);
        }
    }
    say_ready(&ready)?;
    until_stdin_ends().await;
    if let Some(node) = node {
        node.stop().await;
    }
    drop((processes, hub, raw, agent, far));
    Ok(())
}

/// Loads what [`serve`] serves: does the work of each line of standard input.
///
/// # Errors
///
/// [`BenchError`], before it is ready; work that fails is answered with the reason.
pub async fn load(subject: Subject, ready: &Ready, options: &Options) -> Result<(), BenchError> {
    let mut loading = match subject {
        Subject::Callout => {
            let far = callout::ends::Far::new(ready, options.callout).await?;
            Loading::Callout(Arc::new(tokio::sync::Mutex::new(far)))
        }
        Subject::FarCallout => {
            let far = callout::far::Far::new(ready, options).await?;
            Loading::FarCallout(Box::new(far))
        }
        Subject::RawSocket => Loading::Raw,
        Subject::RawUdp => Loading::RawUdp(callout::udp::Far::new(ready, options)?),
        Subject::RawEvented => Loading::RawEvented,
        Subject::Operations => Loading::Operations,
        _ => {
            let far = Far::reach(subject, ready, options).await?;
            Loading::Load(Box::new(load::Load::new(far)))
        }
    };
    say_ready(&serde_json::json!({}))?;
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let work: Work = serde_json::from_str(&line).map_err(failed("the work"))?;
        let done = match &mut loading {
            Loading::Load(load) => Box::pin(load.run(&work)).await,
            Loading::Callout(far) => {
                let far = far.clone();
                in_a_task(async move { far.lock().await.run(&work).await }).await
            }
            Loading::FarCallout(far) => Box::pin(far.run(&work)).await,
            Loading::RawUdp(far) => far.run(&work),
            Loading::Raw => callout::raw::load(ready, &work),
            Loading::RawEvented => in_a_task(callout::raw::load_evented(ready.clone(), work)).await,
            Loading::Operations => match &work {
                Work::Operation {
                    name,
                    threads,
                    seconds,
                } => Box::pin(callout::operations::run(name, *threads, *seconds)).await,
                _ => Err(BenchError::Unsupported("this subject does operations only")),
            },
        };
        say(&done.unwrap_or_else(|error| Measured {
            failed: Some(error.to_string()),
            ..Measured::default()
        }))?;
    }
    end_soon();
    if let Loading::Load(load) = loading {
        load.stop().await;
    }
    Ok(())
}

/// Does work where a program does its work: the main future of a runtime is special, and looks for events once more each time
/// it is woken.
async fn in_a_task(
    work: impl Future<Output = Result<Measured, BenchError>> + Send + 'static,
) -> Result<Measured, BenchError> {
    let done = tokio::spawn(work).await;
    done.unwrap_or(Err(BenchError::Unsupported("the work has panicked")))
}

/// Who does the work.
enum Loading {
    /// Echoes and streams.
    Load(Box<load::Load>),
    Callout(Arc<tokio::sync::Mutex<callout::ends::Far>>),
    FarCallout(Box<callout::far::Far>),
    Raw,
    RawEvented,
    RawUdp(callout::udp::Far),
    Operations,
}

/// The far side of a subject, and how to connect to it.
enum Far {
    H2(plain_h2::Far),
    Ws(plain_ws::Far),
    Iroh(raw_iroh::Far),
    Session(session::Far),
    Processes(processes::Far),
}

/// Everything done that may be done before the clock runs.
enum Prepared {
    Tls(tokio_rustls::TlsConnector),
    Iroh(raw_iroh::Prepared),
    Link(Link),
}

/// One connection: what work is done on.
#[derive(Clone)]
enum Link {
    H2(plain_h2::Link),
    Ws(plain_ws::Link),
    Iroh(raw_iroh::Link),
    Session(session::Link),
}

impl Far {
    async fn reach(subject: Subject, ready: &Ready, options: &Options) -> Result<Self, BenchError> {
        if options.pool.is_some() && !matches!(subject, Subject::Session(_)) {
            return Err(BenchError::Unsupported(
                "only a session has a pool of connections",
            ));
        }
        Ok(match subject {
            Subject::PlainH2 => Self::H2(plain_h2::Far::new(ready, options)?),
            Subject::PlainWs => Self::Ws(plain_ws::Far::new(ready)?),
            Subject::RawIroh => Self::Iroh(raw_iroh::Far::new(ready, options).await?),
            Subject::Session(carrier) => {
                Self::Session(session::Far::new(carrier, ready, options).await?)
            }
            Subject::Processes => Self::Processes(processes::Far::new(ready, options).await?),
            Subject::Node
            | Subject::Hub
            | Subject::Proxy
            | Subject::Callout
            | Subject::FarCallout
            | Subject::RawSocket
            | Subject::RawUdp
            | Subject::RawEvented
            | Subject::Operations => {
                return Err(BenchError::Unsupported("this subject only serves"));
            }
        })
    }

    /// Makes sure that so many agents are served.
    async fn agents(&self, count: u32) -> Result<(), BenchError> {
        match self {
            Self::Session(far) => far.agents(count).await,
            Self::Processes(far) => far.agents(count).await,
            Self::H2(_) | Self::Ws(_) | Self::Iroh(_) => Ok(()),
        }
    }

    /// Makes sure that so many more strangers are let in.
    async fn expect(&self, count: u32) -> Result<(), BenchError> {
        match self {
            Self::Session(far) => far.expect(count).await,
            _ => Ok(()),
        }
    }

    /// Whether several connections between the same two ends are of any use to it.
    fn shares_one_connection(&self) -> bool {
        matches!(self, Self::Session(_) | Self::Processes(_))
    }

    /// `alone`: on a connection that no other agent has.
    async fn prepare(&self, start: Start, alone: bool) -> Result<Prepared, BenchError> {
        Ok(match self {
            Self::H2(far) => Prepared::Tls(far.prepare(start).await?),
            Self::Ws(far) => Prepared::Tls(far.prepare(start).await?),
            Self::Iroh(far) => Prepared::Iroh(far.prepare(start).await?),
            Self::Session(far) => Prepared::Link(Link::Session(far.prepare(start, alone).await?)),
            Self::Processes(far) => Prepared::Link(Link::Session(far.prepare(start, alone)?)),
        })
    }

    async fn connect(&self, prepared: Prepared) -> Result<Link, BenchError> {
        match (self, prepared) {
            (Self::H2(far), Prepared::Tls(tls)) => far.connect(tls).await.map(Link::H2),
            (Self::Ws(far), Prepared::Tls(tls)) => far.connect(tls).await.map(Link::Ws),
            (Self::Iroh(far), Prepared::Iroh(prepared)) => {
                far.connect(prepared).await.map(Link::Iroh)
            }
            (_, Prepared::Link(link)) => Ok(link),
            _ => Err(BenchError::Wrong("prepared for another subject".into())),
        }
    }

    /// Where a node may choose its carrier, has it choose one for bulk; seconds that this took.
    async fn choose(&self) -> Result<Option<f64>, BenchError> {
        match self {
            Self::Session(far) => far.choose().await,
            _ => Ok(None),
        }
    }

    /// What the far side has sent and lost so far, where it counts packets.
    async fn packets(&self, link: &Link) -> Result<Option<Packets>, BenchError> {
        match (self, link) {
            (Self::Session(far), _) => far.packets().await,
            (_, Link::Iroh(link)) => link.packets().await.map(Some),
            _ => Ok(None),
        }
    }

    /// Bytes received so far over UDP and over TCP, where a node may choose between them.
    async fn received(&self) -> Result<Option<[u64; 2]>, BenchError> {
        match self {
            Self::Session(far) => far.received().await,
            _ => Ok(None),
        }
    }

    /// Gives up connections that were made for one piece of work.
    async fn release(&self, links: Vec<Link>) {
        let mut sessions = Vec::new();
        for link in links {
            match link {
                Link::Iroh(link) => link.close(),
                Link::Session(link) => sessions.push(link),
                // Dropping the last handle closes them.
                Link::H2(_) | Link::Ws(_) => {}
            }
        }
        if let Self::Session(far) = self {
            far.release(sessions).await;
        }
    }

    async fn stop(self) {
        if let Self::Session(far) = self {
            far.stop().await;
        }
    }
}

impl Link {
    async fn echo(&self, agent: u32, priority: Priority, body: Bytes) -> Result<Bytes, BenchError> {
        match self {
            Self::H2(link) => link.echo(body).await,
            Self::Ws(link) => link.echo(body).await,
            Self::Iroh(link) => link.echo(priority, body).await,
            Self::Session(link) => link.echo(agent, priority, body).await,
        }
    }

    async fn bulk(&self, priority: Priority, bytes: u64, got: &Got) -> Result<(), BenchError> {
        match self {
            Self::H2(link) => link.bulk(bytes, got).await,
            Self::Ws(link) => link.bulk(bytes, got).await,
            Self::Iroh(link) => link.bulk(bytes, got).await,
            Self::Session(link) => link.bulk(priority, bytes, got).await,
        }
    }
}

/// How far a stream has come.
#[derive(Debug, Default)]
struct Got(AtomicU64);

impl Got {
    fn set(&self, bytes: u64) {
        self.0.store(bytes, Ordering::Relaxed);
    }

    fn bytes(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Packets that somebody has sent, and that were declared lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Packets {
    sent: u64,
    lost: u64,
}

impl Packets {
    /// Share lost since an earlier look, in percent; nothing where none was sent.
    fn lost_percent_since(&self, before: &Self) -> Option<f64> {
        let sent = self.sent.saturating_sub(before.sent);
        let lost = self.lost.saturating_sub(before.lost);
        (sent > 0).then(|| lost as f64 / sent as f64 * 100.0)
    }
}

/// The unspecified address of the same family, loopback for loopback.
fn any_like(far: IpAddr) -> IpAddr {
    match far {
        _ if far.is_loopback() => far,
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    }
}

#[derive(Serialize, Deserialize)]
struct IsReady<T> {
    ready: T,
}

fn say_ready(ready: &impl Serialize) -> Result<(), BenchError> {
    say(&IsReady { ready })
}

/// One JSON line on standard output, flushed.
fn say(value: &impl Serialize) -> Result<(), BenchError> {
    let mut out = std::io::stdout().lock();
    let line = serde_json::to_string(value).map_err(failed("writing"))?;
    writeln!(out, "{line}")
        .and_then(|()| out.flush())
        .map_err(BenchError::io("standard output"))
}

async fn until_stdin_ends() {
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Ok(Some(_)) = lines.next_line().await {}
    end_soon();
}

/// A party is not waited for by anybody any more: whatever holds it up, it ends.
fn end_soon() {
    std::thread::spawn(|| {
        std::thread::sleep(LAST_WORDS);
        std::process::exit(1);
    });
}

fn failed<E: std::fmt::Display>(what: &'static str) -> impl FnOnce(E) -> BenchError {
    move |error| BenchError::Part {
        part: what.to_owned(),
        reason: error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_subject_is_found_by_its_name() {
        for subject in Subject::ALL {
            assert_eq!(Subject::named(&subject.name()), Some(subject));
        }
        assert_eq!(Subject::PlainH2.name(), "plain-h2");
        assert_eq!(Subject::named("plain h2"), None);
    }
}
