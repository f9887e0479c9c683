//! Whole nodes that offer more than is good for anybody, and peers that flood or do not read.

use std::net::{Ipv4Addr, SocketAddr};

use bytes::{Bytes, BytesMut};
use hailwire_core::{Transport, offer_queue::PER_PEER};
use hailwire_wire::{
    Priority,
    frame::{self, FrameDecoder, FrameEvent, FrameKind},
    header::{self, AgentOffer, AgentOffers, Hello, VERSION},
    limits,
    offers::{OfferPage, OfferPages, pages},
};
use iroh::{Endpoint, EndpointAddr, RelayMap, RelayMode, TransportAddr, endpoint::presets};
use tokio::time::{Instant, timeout};

use super::*;
use crate::{
    Agent, Request, Response, ServeHandle,
    admin::{self, AgentRow, AgentsQuery, method},
    carrier::{CarrierConnection, RecvStream, SendStream, quic},
    config::{Carrier, TunnelPool},
    node::{
        additional::tests::{PATIENCE, TestNode, call, known, pair, serve_echo},
        hand_played::nobody,
    },
};

/// A trusted peer that says what it likes on its control stream.
struct ScriptedPeer {
    id: NodeId,
    send: SendStream,
    recv: RecvStream,
    connection: CarrierConnection,
    _endpoint: Endpoint,
}

impl ScriptedPeer {
    async fn of(host: &TestNode) -> Self {
        let endpoint = Endpoint::builder(presets::Minimal)
            .relay_mode(RelayMode::Custom(RelayMap::empty()))
            .clear_ip_transports()
            .bind_addr(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))
            .unwrap()
            .bind()
            .await
            .unwrap();
        let id = NodeId::from_bytes(*endpoint.id().as_bytes());
        let add = nobody(id);
        let _: admin::TrustedPeer = host.client().admin(method::TRUST_ADD, &add).await.unwrap();
        let to = iroh::EndpointId::from_bytes(host.node.id().as_bytes()).unwrap();
        let sockets = host.node.sockets().into_iter().map(TransportAddr::Ip);
        let to = EndpointAddr::from_parts(to, sockets);
        let connection = endpoint.connect(to, b"hailwire").await.unwrap();
        let connection = CarrierConnection::Quic(quic::QuicConnection::new(connection));
        let (mut send, recv) = connection.open(Priority::Critical).await.unwrap();
        let hello = Hello {
            versions: vec![VERSION],
            instance: 7,
            ..Hello::default()
        };
        let greeting = frame_of(FrameKind::HELLO, &header::encode(&hello));
        send.write(greeting).await.unwrap();
        Self {
            id,
            send,
            recv,
            connection,
            _endpoint: endpoint,
        }
    }

    async fn say(&mut self, agents: Vec<AgentOffer>, number: u64) {
        for (kind, payload) in pages(agents, number) {
            self.send.write(frame_of(kind, &payload)).await.unwrap();
        }
    }
}

fn frame_of(kind: FrameKind, payload: &[u8]) -> Bytes {
    let mut bytes = BytesMut::new();
    frame::put(&mut bytes, kind, payload);
    bytes.freeze()
}

fn offer(name: &str, description: usize) -> AgentOffer {
    AgentOffer {
        group: hailwire_wire::header::OfferedGroup::default(),
        name: name.parse().unwrap(),
        description: "d".repeat(description),
        tags: Vec::new(),
        version: String::new(),
    }
}

fn offered(names: impl Iterator<Item = String>) -> Vec<AgentOffer> {
    names.map(|name| offer(&name, 200)).collect()
}

/// The tunnel to a peer. A call may be answered before it is there: in the first flight.
async fn tunnel(here: &TestNode, there: &TestNode) -> Session {
    let peers = &here.inner().peers;
    let connections = || peers.connections(there.node.id(), Transport::Udp);
    here.once(|| connections().into_iter().next()).await
}

async fn serve(host: &TestNode, agent: Agent) -> Result<ServeHandle, hailwire_wire::Status> {
    let echo = |request: Request| async move { Ok(Response::new(request.into_body())) };
    host.client().serve(agent, echo).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn agents_with_the_longest_texts_are_refused_where_they_register_and_nothing_else_suffers() {
    let (near, far) = pair(Carrier::Quic, TunnelPool::Fixed(1), TunnelPool::Fixed(1)).await;
    let _echo = serve_echo(&far, "echo").await;
    call(&near.client(), "echo@far").await.unwrap();
    let tunnel_before = tunnel(&near, &far).await;
    let mut serving = Vec::new();
    let refused = loop {
        let name = format!("agent-{:0>58}", serving.len());
        let mut agent = Agent::new(&name)
            .unwrap()
            .describe("d".repeat(limits::MAX_DESCRIPTION));
        for _ in 0..limits::MAX_TAGS {
            agent = agent.tag("t".repeat(limits::MAX_NAME));
        }
        match serve(&far, agent.version("v".repeat(limits::MAX_NAME))).await {
            Ok(one) => serving.push(one),
            Err(status) => break status,
        }
    };
    assert_eq!(refused.code, Code::ResourceExhausted);
    assert!(refused.message.contains("bytes of 262144"), "{refused}");
    assert!(refused.hint.contains("shorten"), "{refused:?}");
    assert!((150..300).contains(&serving.len()), "{}", serving.len());
    // What registered is known on the other side, to the last one, and is called by its bare name.
    let last = format!("agent-{:0>58}", serving.len() - 1);
    known(&near, &last).await;
    assert_eq!(call(&near.client(), &last).await.unwrap(), "hello");
    assert!(
        tunnel(&near, &far).await.is(&tunnel_before),
        "the tunnel was cut"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_agents_with_a_sentence_each_are_offered_whole() {
    let (near, far) = pair(Carrier::Quic, TunnelPool::Fixed(1), TunnelPool::Fixed(1)).await;
    let _echo = serve_echo(&far, "echo").await;
    call(&near.client(), "echo@far").await.unwrap();
    let tunnel_before = tunnel(&near, &far).await;
    let most = limits::MAX_AGENTS_PER_NODE - 1;
    let mut serving = Vec::new();
    for index in 0..most {
        let agent = Agent::new(&format!("agent-{index}")).unwrap();
        serving.push(serve(&far, agent.describe("d".repeat(200))).await.unwrap());
    }
    let agent = Agent::new("one-too-many").unwrap();
    let refused = serve(&far, agent).await.unwrap_err();
    assert_eq!(refused.code, Code::ResourceExhausted);
    // Names are told in the order of the alphabet, and which comes last says nothing of when.
    for index in 0..most {
        known(&near, &format!("agent-{index}")).await;
    }
    let query = AgentsQuery::default();
    let rows: Vec<AgentRow> = near.client().admin(method::AGENTS, &query).await.unwrap();
    let theirs = rows.iter().filter(|row| row.node == far.node.id());
    assert_eq!(theirs.count(), most + 1);
    // The answer with all of them is larger than any header may be.
    let rows: Vec<AgentRow> = far.client().admin(method::AGENTS, &query).await.unwrap();
    assert_eq!(rows.len(), most + 1);
    assert_eq!(call(&near.client(), "agent-1022").await.unwrap(), "hello");
    assert!(
        tunnel(&near, &far).await.is(&tunnel_before),
        "the tunnel was cut"
    );
    // They go as they came.
    drop(serving);
    let left = async {
        let mut entered = near.inner().peers.lists.subscribe();
        while near.inner().registry.offers_of(far.node.id()) != 1 {
            entered.changed().await.unwrap();
        }
    };
    timeout(PATIENCE, left).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_lists_costs_a_few_of_them_and_the_last_one_counts() {
    const LISTS: u64 = 600;
    let (near, far) = pair(Carrier::Quic, TunnelPool::Fixed(1), TunnelPool::Fixed(1)).await;
    let _echo = serve_echo(&far, "echo").await;
    call(&near.client(), "echo@far").await.unwrap();
    known(&near, "echo").await;
    let mut guest = ScriptedPeer::of(&near).await;
    let before = near.inner().peers.lists.entered();
    let start = Instant::now();
    // Each list is another two hundred agents, so entering all of them would change 240,000 names.
    let flood = async {
        for number in 1..=LISTS {
            let names = (0..200).map(|index| format!("flood-{number}-{index}"));
            guest.say(offered(names), number).await;
        }
        guest
            .say(offered(std::iter::once("the-last".to_owned())), LISTS + 1)
            .await;
    };
    let calls = async {
        for _ in 0..200 {
            assert_eq!(call(&near.client(), "echo@far").await.unwrap(), "hello");
        }
    };
    tokio::join!(flood, calls);
    known(&near, "the-last").await;
    let entered = near.inner().peers.lists.entered() - before;
    let most = u64::from(PER_PEER.burst) + start.elapsed().as_millis() as u64 / 250 + 1;
    assert!(
        entered <= most,
        "{entered} of {LISTS} lists were entered, {most} may be"
    );
    assert_eq!(
        near.inner().registry.offers_of(guest.id),
        1,
        "nothing of the flood is left"
    );
    assert!(near.inner().registry.knows(&"echo".parse().unwrap()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_reader_gets_whole_lists_and_the_last_of_them() {
    const LISTS: u64 = 500;
    let (near, _far) = pair(Carrier::Quic, TunnelPool::Fixed(1), TunnelPool::Fixed(1)).await;
    let mut guest = ScriptedPeer::of(&near).await;
    let peers = &near.inner().peers;
    let connections = || peers.connections(guest.id, Transport::Udp);
    let session = near.once(|| connections().into_iter().next()).await;
    // 100 MB of lists, of which it reads none.
    let mut last = 0;
    for _ in 0..LISTS {
        last = next_list(near.inner());
        let names = (0..1000).map(|index| format!("agent-{index}"));
        session.send_offers(OfferList::new(offered(names), last));
        tokio::task::yield_now().await;
    }
    let mut decoder = FrameDecoder::new();
    let (mut seen, mut growing) = (Vec::new(), None::<OfferPages>);
    let read = async {
        // The node may have sent one of its own since, which then stands for this one.
        while seen.last() < Some(&last) {
            let Some(event) = decoder.next_event().unwrap() else {
                let bytes = guest.recv.read(1 << 16).await.unwrap();
                decoder.push(bytes.expect("the control stream goes on"));
                continue;
            };
            let FrameEvent::Frame(kind @ (FrameKind::OFFERS | FrameKind::MORE_OFFERS), payload) =
                event
            else {
                continue;
            };
            let page = OfferPage::parse(kind, payload).unwrap();
            let pages = match growing.take() {
                Some(mut pages) => {
                    assert_eq!(
                        pages.number(),
                        page.number(),
                        "a list that was begun is finished"
                    );
                    pages.add(page);
                    pages
                }
                None => OfferPages::of(page),
            };
            match pages.is_whole() {
                true => seen.push(pages.number()),
                false => growing = Some(pages),
            }
        }
    };
    let ended = timeout(PATIENCE, read).await;
    ended.unwrap_or_else(|_| {
        panic!(
            "list {last} does not come; {} came, the last of them {:?}",
            seen.len(),
            seen.last()
        )
    });
    assert!(seen.len() < 200, "{} lists were kept for it", seen.len());
    assert!(!session.is_closed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_list_past_its_bound_closes_the_connection_that_brought_it_and_no_other() {
    let (near, far) = pair(Carrier::Quic, TunnelPool::Fixed(1), TunnelPool::Fixed(1)).await;
    let _echo = serve_echo(&far, "echo").await;
    call(&near.client(), "echo@far").await.unwrap();
    let mut guest = ScriptedPeer::of(&near).await;
    let offers = AgentOffers {
        agents: vec![offer("long", limits::MAX_DESCRIPTION + 1)],
        ..AgentOffers::default()
    };
    let frame = frame_of(FrameKind::OFFERS, &header::encode(&offers));
    guest.send.write(frame).await.unwrap();
    let closed = timeout(PATIENCE, guest.connection.closed()).await.unwrap();
    assert!(format!("{closed:?}").contains("description"), "{closed:?}");
    call(&near.client(), "echo@far").await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bare_call_waits_for_a_list_that_has_not_had_its_turn() {
    let (near, far) = pair(Carrier::Quic, TunnelPool::Fixed(1), TunnelPool::Fixed(1)).await;
    let _echo = serve_echo(&far, "echo").await;
    call(&near.client(), "echo@far").await.unwrap();
    let mut serving = Vec::new();
    let mut entered = near.inner().peers.lists.subscribe();
    // Sooner or later a list finds that the far node's turns are used up.
    for index in 0.. {
        assert!(index < 100, "no list ever waits");
        let name = format!("agent-{index}");
        serving.push(serve_echo(&far, &name).await);
        let agent: AgentName = name.parse().unwrap();
        let has_it = |list: &OfferedList<Session>| {
            let mut agents = list.agents().unwrap().into_iter();
            agents.any(|offer| offer.name == agent)
        };
        let list_waits = || {
            let waiting = near.inner().peers.lists.lock();
            waiting.waiting_list(far.node.id()).is_some_and(has_it)
        };
        let waits = async {
            loop {
                if list_waits() {
                    return true;
                }
                if near.inner().registry.knows(&agent) {
                    return false;
                }
                entered.changed().await.unwrap();
            }
        };
        let waits = timeout(PATIENCE, waits).await.unwrap();
        assert_eq!(call(&near.client(), &name).await.unwrap(), "hello");
        if waits {
            return;
        }
    }
}
