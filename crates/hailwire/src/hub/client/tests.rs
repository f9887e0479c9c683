//! A client against a hub that says what the test writes, over loopback.

use std::collections::VecDeque;

use hailwire_wire::{directory::RecordBytes, record::NodeRecord};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpSocket},
    sync::mpsc,
};

use super::*;

#[test]
fn the_key_before_a_key_is_one_less() {
    let key = |first, last| {
        let mut bytes = [0; 32];
        (bytes[0], bytes[31]) = (first, last);
        NodeId::from_bytes(bytes)
    };
    assert_eq!(predecessor(key(0, 0)), None);
    assert_eq!(predecessor(key(0, 1)), Some(key(0, 0)));
    let borrowed = predecessor(key(1, 0)).unwrap();
    assert_eq!(borrowed.as_bytes()[0], 0);
    assert!(borrowed.as_bytes()[1..].iter().all(|byte| *byte == 255));
}

/// What a hub was asked.
#[derive(Debug)]
struct HeardRequest {
    method: String,
    path: String,
    authorization: String,
    body: Vec<u8>,
}

impl HeardRequest {
    fn read(bytes: &[u8]) -> Option<Self> {
        let end = bytes.windows(4).position(|four| four == b"\r\n\r\n")?;
        let head = std::str::from_utf8(&bytes[..end]).unwrap();
        let mut lines = head.split("\r\n");
        let mut words = lines.next().unwrap().split(' ');
        let (method, path) = (words.next().unwrap(), words.next().unwrap());
        let fields: Vec<_> = lines.map(|line| line.split_once(": ").unwrap()).collect();
        let field = |name: &str| {
            let mut of_name = fields.iter().filter(|(n, _)| n.eq_ignore_ascii_case(name));
            of_name.next().map_or("", |(_, value)| *value)
        };
        let length: usize = field("content-length").parse().unwrap_or(0);
        let body = bytes[end + 4..].to_vec();
        (body.len() >= length).then(|| Self {
            method: method.to_owned(),
            path: path.to_owned(),
            authorization: field("authorization").to_owned(),
            body,
        })
    }

    /// Who signed it, by a hub's clock.
    fn signed_by(&self, audience: &str, now: u64) -> Option<NodeId> {
        let asked = SignedRequest {
            hub: audience,
            method: &self.method,
            path: &self.path,
            body: &self.body,
        };
        RequestPermit::verify(&self.authorization, &asked, &[audience], now).ok()
    }
}

/// A client, and what its hub is asked.
struct AskedHub {
    client: HubClient,
    key: KeyPair,
    heard: mpsc::UnboundedReceiver<HeardRequest>,
}

impl AskedHub {
    /// A hub that gives these answers, one after the other.
    async fn answering(answers: impl IntoIterator<Item = (u16, Vec<u8>)>) -> Self {
        let mut answers: VecDeque<_> = answers.into_iter().collect();
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (tell, heard) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Some((status, answer)) = answers.pop_front() {
                let (mut tcp, _) = listener.accept().await.unwrap();
                let mut bytes = Vec::new();
                let request = loop {
                    if let Some(request) = HeardRequest::read(&bytes) {
                        break request;
                    }
                    tcp.read_buf(&mut bytes).await.unwrap();
                };
                tell.send(request).unwrap();
                let length = answer.len();
                let head = format!("HTTP/1.1 {status} x\r\ncontent-length: {length}\r\n\r\n");
                // A client that has heard enough breaks off.
                let _ = tcp.write_all(&[head.into_bytes(), answer].concat()).await;
            }
        });
        let key = KeyPair::from_seed(&[7; 32]);
        let pins = HubPins::default();
        let client = HubClient::new(url.parse().unwrap(), None, key.clone(), &pins).unwrap();
        Self { client, key, heard }
    }

    async fn refusing(reason: RefusalReason) -> Self {
        Self::answering([refused(reason, 0)]).await
    }

    fn heard(&mut self) -> HeardRequest {
        self.heard.try_recv().expect("a request")
    }
}

fn ok(answer: &impl Serialize) -> (u16, Vec<u8>) {
    (200, json(answer).to_vec())
}

fn refused(reason: RefusalReason, now: u64) -> (u16, Vec<u8>) {
    let refusal = HubRefusal::new(reason, "no", now);
    (reason.http_status(), json(&refusal).to_vec())
}

fn now() -> u64 {
    u64::try_from(unix()).unwrap()
}

/// A record of somebody, in force at a time.
fn record(seed: u8, name: &str, issued: u64) -> SignedRecord {
    let record = NodeRecord {
        name: Some(name.parse().unwrap()),
        addresses: Vec::new(),
        tcp: Vec::new(),
        relay: None,
        agents: Vec::new(),
        sequence: 1,
        issued,
        expires: issued + 3 * 3600,
    };
    record.sign(&KeyPair::from_seed(&[seed; 32])).unwrap()
}

fn handed_out(record: &SignedRecord) -> (u16, Vec<u8>) {
    ok(&LookupAnswer {
        record: RecordBytes(record.bytes().clone()),
    })
}

#[tokio::test]
async fn every_question_is_signed_for_that_hub_and_that_question() {
    let health = HubHealth {
        stun_ports: Vec::new(),
        hub: NodeId::from_bytes([8; 32]),
        software: "hub".to_owned(),
        now: now(),
    };
    let mut hub = AskedHub::answering([ok(&health)]).await;
    assert_eq!(hub.client.health().await.unwrap(), health);
    let heard = hub.heard();
    assert_eq!((&heard.method[..], &heard.path[..]), ("GET", path::HEALTH));
    let audience = hub.client.url().to_string();
    assert_eq!(heard.signed_by(&audience, now()), Some(hub.key.id()));
    let other = HeardRequest {
        path: path::MEMBERS.to_owned(),
        ..heard
    };
    assert_eq!(other.signed_by(&audience, now()), None);
}

#[tokio::test]
async fn a_hub_whose_clock_differs_is_asked_again_by_its_clock_and_once() {
    let hubs_now = now() + 100_000;
    let members = HubMembers::default();
    let answers = [
        refused(RefusalReason::Clock, hubs_now),
        ok(&members),
        refused(RefusalReason::Clock, hubs_now),
        refused(RefusalReason::Clock, hubs_now),
    ];
    let mut hub = AskedHub::answering(answers).await;
    assert!(hub.client.members().await.unwrap().is_empty());
    let audience = hub.client.url().to_string();
    let (first, second) = (hub.heard(), hub.heard());
    assert!(first.signed_by(&audience, now()).is_some());
    assert!(first.signed_by(&audience, hubs_now).is_none());
    assert!(second.signed_by(&audience, hubs_now).is_some());
    let again = hub.client.members().await.unwrap_err();
    assert!(matches!(again, HubError::Refused(refusal) if refusal.reason == RefusalReason::Clock));
    // What it learnt is kept for the next question.
    assert!(hub.heard().signed_by(&audience, hubs_now).is_some());
}

#[tokio::test]
async fn an_answer_that_no_hub_gives_is_told_from_a_refusal() {
    let name: NodeName = "desk".parse().unwrap();
    for (answer, why) in [
        ((200, b"not json".to_vec()), "not what was asked for"),
        ((404, b"<html>".to_vec()), "not the answer of a hub"),
        (
            (200, vec![b' '; limits::MAX_HUB_ANSWER + 1]),
            "cut short or too long",
        ),
    ] {
        let hub = AskedHub::answering([answer]).await;
        let error = hub.client.holder(&name).await.unwrap_err();
        assert!(
            matches!(error, HubError::Answer(said) if said == why),
            "{error}"
        );
        let status = Status::from(&error);
        assert_eq!(status.code, Code::Internal);
        assert_eq!(
            status.message,
            format!("the hub's answer cannot be used: {why}")
        );
        assert!(status.hint.contains("URL"), "{}", status.hint);
    }
    let hub = AskedHub::refusing(RefusalReason::Full).await;
    let status = Status::from(hub.client.members().await.unwrap_err());
    assert_eq!(
        (status.code, &status.message[..]),
        (Code::ResourceExhausted, "no")
    );
    assert_eq!(status.hint, "ask the hub's operator to make room");
}

#[tokio::test]
async fn a_hub_that_is_not_there_is_unavailable_with_the_cause() {
    // Bound, so that nobody else is there, and not listened on.
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(([127, 0, 0, 1], 0).into()).unwrap();
    let url = format!("http://{}", socket.local_addr().unwrap());
    let key = KeyPair::from_seed(&[7; 32]);
    let client = HubClient::new(url.parse().unwrap(), None, key, &HubPins::default()).unwrap();
    let status = Status::from(client.members().await.unwrap_err());
    assert_eq!(status.code, Code::Unavailable);
    assert_eq!(status.message, "the hub cannot be reached");
    assert!(status.details.contains("refused"), "{}", status.details);
}

#[tokio::test]
async fn a_record_is_believed_only_if_it_is_that_of_the_node_that_was_asked_for() {
    let found = record(1, "desk", now());
    let id = found.node();
    let by_name = NodeRef::Name("desk".parse().unwrap());
    for who in [NodeRef::Id(id), by_name] {
        let mut hub = AskedHub::answering([handed_out(&found)]).await;
        let answer = hub.client.lookup(&who).await.unwrap();
        assert_eq!(answer.unwrap().node(), id);
        assert_eq!(hub.heard().path, format!("{}{who}", path::NODES));
    }
    let other = "the record of another node than the one asked for";
    for who in [
        NodeRef::Id(NodeId::from_bytes([8; 32])),
        NodeRef::Name("laptop".parse().unwrap()),
    ] {
        let hub = AskedHub::answering([handed_out(&found)]).await;
        let error = hub.client.lookup(&who).await.unwrap_err();
        assert!(
            matches!(error, HubError::Answer(said) if said == other),
            "{error}"
        );
    }
    let expired = record(1, "desk", now() - 24 * 3600);
    let hub = AskedHub::answering([handed_out(&expired)]).await;
    let error = hub.client.lookup(&NodeRef::Id(id)).await.unwrap_err();
    assert!(matches!(error, HubError::Record(_)), "{error}");
    assert_eq!(Status::from(&error).code, Code::DataLoss);
}

#[tokio::test]
async fn a_refused_lookup_says_that_nobody_is_there_or_why_that_cannot_be_told() {
    let name: NodeName = "desk".parse().unwrap();
    let who = NodeRef::Name(name.clone());
    for (reason, found, holder) in [
        (RefusalReason::NotFound, true, Some(NameHolder::Nobody)),
        (RefusalReason::Away, true, Some(NameHolder::Away)),
        (RefusalReason::NotAMember, false, Some(NameHolder::Nobody)),
        (RefusalReason::Internal, false, None),
        (RefusalReason::TooOften, false, None),
    ] {
        let hub = AskedHub::refusing(reason).await;
        let lookup = hub.client.lookup(&who).await;
        assert_eq!(matches!(lookup, Ok(None)), found, "{reason:?}");
        let hub = AskedHub::refusing(reason).await;
        assert_eq!(hub.client.holder(&name).await.ok(), holder, "{reason:?}");
    }
    let held = record(1, "desk", now());
    let hub = AskedHub::answering([handed_out(&held)]).await;
    let holder = hub.client.holder(&name).await.unwrap();
    assert_eq!(holder, NameHolder::Node(held.node()));
}

#[tokio::test]
async fn a_search_goes_on_page_by_page_and_leaves_out_what_proves_nothing() {
    let page = |records: &[&SignedRecord], next: Option<u8>| {
        let records = records
            .iter()
            .map(|record| RecordBytes(record.bytes().clone()));
        ok(&SearchPage {
            records: records.collect(),
            next: next.map(|byte| NodeId::from_bytes([byte; 32])),
        })
    };
    let (one, two) = (record(1, "one", now()), record(2, "two", now()));
    let old = record(3, "old", now() - 24 * 3600);
    let answers = [page(&[&one, &old], Some(5)), page(&[&two], None)];
    let mut hub = AskedHub::answering(answers).await;
    let search = SearchRequest {
        tags: vec!["far".to_owned()],
        ..SearchRequest::default()
    };
    let found = hub.client.search(&search).await.unwrap();
    let found: Vec<_> = found.iter().map(SignedRecord::node).collect();
    assert_eq!(found, [one.node(), two.node()]);
    for after in [None, Some(NodeId::from_bytes([5; 32]))] {
        let heard = hub.heard();
        assert_eq!((&heard.method[..], &heard.path[..]), ("POST", path::SEARCH));
        let asked: SearchRequest = serde_json::from_slice(&heard.body).unwrap();
        let expected = SearchRequest {
            after,
            ..search.clone()
        };
        assert_eq!(asked, expected);
    }
}

#[tokio::test]
async fn a_hub_that_has_always_one_more_page_is_not_asked_for_ever() {
    let page = HubMembers {
        members: Vec::new(),
        next: Some(NodeId::from_bytes([5; 32])),
    };
    let mut hub = AskedHub::answering(vec![ok(&page); MAX_PAGES + 1]).await;
    assert!(hub.client.members().await.unwrap().is_empty());
    assert_eq!(hub.heard().path, path::MEMBERS);
    let next = format!("{}?after={}", path::MEMBERS, page.next.unwrap());
    for _ in 1..MAX_PAGES {
        assert_eq!(hub.heard().path, next);
    }
    assert!(hub.heard.try_recv().is_err());
}

#[tokio::test]
async fn one_member_is_found_right_after_the_key_before_it() {
    let member = |byte| HubMember {
        id: NodeId::from_bytes([byte; 32]),
        name: None,
        joined: 1,
        seen: None,
        live: false,
    };
    let page = HubMembers {
        members: vec![member(7), member(8)],
        next: Some(NodeId::from_bytes([8; 32])),
    };
    let mut hub = AskedHub::answering(vec![ok(&page); 2]).await;
    let found = hub.client.member(member(7).id).await.unwrap();
    assert_eq!(found, Some(member(7)));
    let before = predecessor(member(7).id).unwrap();
    assert_eq!(
        hub.heard().path,
        format!("{}?after={before}", path::MEMBERS)
    );
    assert_eq!(hub.client.member(member(6).id).await.unwrap(), None);
}

#[tokio::test]
async fn who_was_found_by_name_is_not_looked_up_again_for_the_dial_and_later_is() {
    let found = record(3, "word-count-host", now());
    let answer = LookupAnswer {
        record: RecordBytes(found.bytes().clone()),
    };
    let mut hub = AskedHub::answering([ok(&answer), ok(&answer)]).await;
    let name = "word-count-host".parse().unwrap();
    let holder = hub.client.holder(&name).await.unwrap();
    assert_eq!(holder, NameHolder::Node(found.node()));
    assert!(hub.heard().path.ends_with("/word-count-host"));
    let by_key = NodeRef::Id(found.node());
    let dialled = hub.client.lookup(&by_key).await.unwrap();
    assert_eq!(dialled.unwrap().bytes(), found.bytes());
    assert!(hub.heard.try_recv().is_err(), "asked again");
    // It stands once: what is asked next may have changed.
    assert!(hub.client.lookup(&by_key).await.unwrap().is_some());
    assert!(hub.heard().path.ends_with(&found.node().to_string()));
}
