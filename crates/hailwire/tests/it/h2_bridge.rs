//! A way for any HTTP/2 client to a node's port.
//!
//! A node speaks HTTP/2 beneath TLS with raw public keys, on a pair of connections whose first request is the
//! control stream (spec/http2.md). Foreign clients know none of that. The bridge listens in the clear on
//! loopback and, for each client, dials the node's pair as a node would. The client's preface and first frame
//! pass unchanged; behind them the bridge opens the control stream, which takes the place of stream 1; from
//! then on the client's streams are moved up by two, and down again on the way back, and what comes on stream
//! 1 stays here. Fields of the control stream's head are in no table (RFC 7541, 6.2.2), so that the two ends'
//! tables agree. The node measures its round trip with a PING of its own, which the bridge answers: h2spec
//! takes any PING for the answer to its own. Nothing else is touched.

use std::{net::SocketAddr, sync::Arc};

use hailwire::{
    NodeId,
    carrier::tcp::{TlsIdentity, name_of},
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::Mutex,
    task::JoinSet,
};
use tokio_rustls::{TlsConnector, client::TlsStream};

/// What a client begins with (RFC 9113, 3.4).
const PREFACE: usize = 24;

/// Bytes before a frame's payload.
const HEAD: usize = 9;

/// The flag of a PING that answers another.
const ACK: u8 = 1;

/// The flag of a frame with which a field block ends.
const END_HEADERS: u8 = 4;

/// The streams that the bridge has to itself.
const OWN: u32 = 2;

/// Where a node is.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) id: NodeId,
    pub(crate) tcp: SocketAddr,
}

/// Bridges whoever connects, until it is dropped.
pub(crate) struct Bridge {
    pub(crate) address: SocketAddr,
    _listening: JoinSet<()>,
}

impl Bridge {
    /// Each client is a peer with a key of its own, given by `identity`.
    pub(crate) async fn to(node: Node, identity: TlsIdentity) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut listening = JoinSet::new();
        listening.spawn(async move {
            let mut clients = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                clients.spawn(Box::pin(bridge(client, node.clone(), identity.clone())));
            }
        });
        Self {
            address,
            _listening: listening,
        }
    }
}

/// One client, until either side hangs up.
async fn bridge(client: TcpStream, node: Node, identity: TlsIdentity) {
    let mut token = [0; 16];
    getrandom::fill(&mut token).unwrap();
    let (forward, reverse) = tokio::join!(
        dial(&node, &identity, b"h2"),
        dial(&node, &identity, b"hailwire-h2-reverse"),
    );
    let reverse = tokio::spawn(serve(reverse, token));
    let (mut from_client, to_client) = client.into_split();
    let (from_node, to_node) = tokio::io::split(forward);
    let to_node = Arc::new(Mutex::new(ToNode {
        io: to_node,
        in_block: false,
        held: Vec::new(),
    }));
    let back = tokio::spawn(pass_back(from_node, to_client, to_node.clone()));
    // The client may hang up in mid-frame, and that is what it does in some cases.
    let _ = pass_on(&mut from_client, &to_node, token).await;
    let _ = to_node.lock().await.io.shutdown().await;
    let _ = back.await;
    reverse.abort();
}

async fn dial(node: &Node, identity: &TlsIdentity, protocol: &[u8]) -> TlsStream<TcpStream> {
    let io = TcpStream::connect(node.tcp).await.unwrap();
    io.set_nodelay(true).unwrap();
    let config = identity.dialling(vec![protocol.to_vec()]);
    let name = name_of(&node.id);
    TlsConnector::from(config).connect(name, io).await.unwrap()
}

/// The reverse connection, on which the node is the client.
async fn serve(mut io: TlsStream<TcpStream>, token: [u8; 16]) {
    if io.write_all(&token).await.is_ok()
        && let Ok(mut connection) = h2::server::handshake(io).await
    {
        while let Some(Ok(_)) = connection.accept().await {}
    }
}

/// From the client to the node.
async fn pass_on(
    from: &mut (impl AsyncRead + Unpin),
    to: &Mutex<ToNode<impl AsyncWrite + Unpin>>,
    token: [u8; 16],
) -> std::io::Result<()> {
    let mut preface = [0; PREFACE];
    let mut read = 0;
    // What is no preface may also be shorter.
    while read < PREFACE {
        let more = from.read(&mut preface[read..]).await?;
        to.lock().await.pass(&preface[read..read + more]).await?;
        if more == 0 {
            return Ok(());
        }
        read += more;
    }
    let mut opened = false;
    while let Some(mut frame) = read_frame(from).await? {
        move_up(&mut frame);
        let mut to = to.lock().await;
        to.frame(&frame).await?;
        if !opened {
            opened = true;
            to.aside(&control(token)).await?;
        }
    }
    Ok(())
}

/// From the node to the client.
async fn pass_back(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    to_node: Arc<Mutex<ToNode<impl AsyncWrite + Unpin>>>,
) -> std::io::Result<()> {
    while let Some(mut frame) = read_frame(&mut from).await? {
        if stream_of(&frame) == 1 {
            continue;
        }
        if is_ping(&frame) {
            frame[4] = ACK;
            to_node.lock().await.aside(&frame).await?;
            continue;
        }
        move_down(&mut frame);
        to.write_all(&frame).await?;
    }
    to.shutdown().await
}

/// The way to the node, which the client's frames and the bridge's own share.
struct ToNode<W> {
    io: W,
    /// A field block is open, in which no other frame may stand (RFC 9113, 4.3).
    in_block: bool,
    /// The bridge's own frames that wait for its end.
    held: Vec<u8>,
}

impl<W: AsyncWrite + Unpin> ToNode<W> {
    /// A frame of the client.
    async fn frame(&mut self, frame: &[u8]) -> std::io::Result<()> {
        let (kind, flags) = (frame[3], frame[4]);
        self.in_block = matches!(kind, 1 | 9) && flags & END_HEADERS == 0;
        self.pass(frame).await?;
        if !self.in_block && !self.held.is_empty() {
            let held = std::mem::take(&mut self.held);
            self.pass(&held).await?;
        }
        Ok(())
    }

    /// A frame of the bridge, as soon as one may be sent.
    async fn aside(&mut self, frame: &[u8]) -> std::io::Result<()> {
        if self.in_block {
            self.held.extend(frame);
            return Ok(());
        }
        self.pass(frame).await
    }

    async fn pass(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.io.write_all(bytes).await?;
        self.io.flush().await
    }
}

/// A PING that asks for an answer.
fn is_ping(frame: &[u8]) -> bool {
    frame[3] == 6 && frame[4] & ACK == 0
}

/// A frame with its head, however long it says that it is; nothing at the end.
async fn read_frame(from: &mut (impl AsyncRead + Unpin)) -> std::io::Result<Option<Vec<u8>>> {
    let mut frame = vec![0; HEAD];
    if from.read(&mut frame[..1]).await? == 0 {
        return Ok(None);
    }
    from.read_exact(&mut frame[1..]).await?;
    let len = u32::from_be_bytes([0, frame[0], frame[1], frame[2]]) as usize;
    frame.resize(HEAD + len, 0);
    from.read_exact(&mut frame[HEAD..]).await?;
    Ok(Some(frame))
}

fn stream_of(frame: &[u8]) -> u32 {
    u32::from_be_bytes(frame[5..9].try_into().unwrap()) & 0x7fff_ffff
}

/// Where a stream is named: in the head, and where one depends on another (RFC 9113, 5.3.2).
fn named(frame: &[u8]) -> Vec<usize> {
    let (kind, flags) = (frame[3], frame[4]);
    let depends = match kind {
        1 if flags & 0x20 != 0 => Some(HEAD + usize::from(flags & 0x08 != 0)),
        2 => Some(HEAD),
        _ => None,
    };
    let whole = |at: &usize| frame.len() >= at + 4;
    [Some(5), depends]
        .into_iter()
        .flatten()
        .filter(whole)
        .collect()
}

fn move_up(frame: &mut [u8]) {
    for at in named(frame) {
        shift(&mut frame[at..at + 4], |stream| stream + OWN);
    }
}

fn move_down(frame: &mut [u8]) {
    for at in named(frame) {
        shift(&mut frame[at..at + 4], |stream| stream.saturating_sub(OWN));
    }
    // GOAWAY names the last stream that was seen.
    if frame[3] == 7 && frame.len() >= HEAD + 4 {
        shift(&mut frame[HEAD..HEAD + 4], |stream| {
            stream.saturating_sub(OWN)
        });
    }
}

/// Stream 0 is the connection's, the first bit none of the number.
fn shift(bytes: &mut [u8], by: impl Fn(u32) -> u32) {
    let whole = u32::from_be_bytes(bytes.try_into().unwrap());
    let (bit, stream) = (whole & 0x8000_0000, whole & 0x7fff_ffff);
    if stream != 0 {
        bytes.copy_from_slice(&(bit | by(stream) & 0x7fff_ffff).to_be_bytes());
    }
}

/// The head of the control stream.
fn control(token: [u8; 16]) -> Vec<u8> {
    let path = format!(
        "/hailwire/control/{}",
        data_encoding::HEXLOWER.encode(&token)
    );
    let mut block = Vec::new();
    for (name, value) in [
        (":method", "POST"),
        (":scheme", "https"),
        (":authority", "hailwire.invalid"),
        (":path", &path),
    ] {
        block.extend([0, name.len() as u8]);
        block.extend(name.as_bytes());
        block.push(value.len() as u8);
        block.extend(value.as_bytes());
    }
    let mut frame = vec![0, 0, block.len() as u8, 1, 4, 0, 0, 0, 1];
    frame.extend(block);
    frame
}
