//! What a peer says that is not its to say: no program can make a node send it.

use hailwire_wire::{Code, NodeId, limits::MAX_TOPIC_BODY, topics::TopicRecord};

use super::{interest::take, list};
use crate::{
    Node, TopicEvent,
    config::Config,
    node::{store::TrustOrigin, trust::NewPeer},
    paths::DataDir,
};

#[tokio::test]
async fn a_peer_publishes_as_itself_alone_and_what_it_lost_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = Config::default();
    config.listen.udp = vec!["127.0.0.1:0".parse().unwrap()];
    let node = Node::builder()
        .data_dir(DataDir::new(dir.path()))
        .config(config);
    let node = node.start().await.unwrap();
    let inner = node.inner();
    let peer = NodeId::from_bytes(
        *crate::key::NodeKey::load_or_create(&dir.path().join("other"))
            .unwrap()
            .pair()
            .id()
            .as_bytes(),
    );
    let trusted = NewPeer {
        id: peer,
        alias: None,
        terms: hailwire_core::grants::GrantTerms::Stated(hailwire_core::grants::Grant::All),
        bare: None,
        via: TrustOrigin::Manual,
        known: hailwire_core::dial_address::AddressOrigin::Typed,
        addresses: Vec::new(),
        tcp: Vec::new(),
        relay: None,
    };
    inner.trust.add(trusted, 1).unwrap();
    let client = node.client();
    let mut all = client.subscribe(["a.>", "node.>"]).await.unwrap();
    let good = TopicRecord {
        topic: "a.b".to_owned(),
        from: "editor".to_owned(),
        body: b"good".to_vec(),
        sequence: 7,
        missed: 9,
        refused: vec!["x".to_owned()],
        ..TopicRecord::default()
    };
    let claims = [
        TopicRecord {
            node: Some(NodeId::from_bytes([7; 32])),
            ..good.clone()
        },
        TopicRecord {
            node: Some(inner.id()),
            ..good.clone()
        },
        TopicRecord {
            from: "no name".to_owned(),
            ..good.clone()
        },
        TopicRecord {
            topic: "node.a".to_owned(),
            ..good.clone()
        },
    ];
    for record in &claims {
        take(inner, peer, record.clone()).unwrap();
    }
    let stranger = NodeId::from_bytes([9; 32]);
    take(inner, stranger, good.clone()).unwrap();
    for topic in ["a.*", "A"] {
        let record = TopicRecord {
            topic: topic.to_owned(),
            ..good.clone()
        };
        assert_eq!(
            take(inner, peer, record).unwrap_err().code,
            Code::InvalidArgument
        );
    }
    let large = TopicRecord {
        body: vec![0; MAX_TOPIC_BODY + 1],
        ..good.clone()
    };
    assert_eq!(
        take(inner, peer, large).unwrap_err().code,
        Code::InvalidArgument
    );
    take(inner, peer, good.clone()).unwrap();
    let Ok(Some(TopicEvent::Message(message))) = all.next().await else {
        panic!("a message comes")
    };
    assert_eq!(
        (message.node, message.sequence, &message.body[..]),
        (Some(peer), 7, &b"good"[..])
    );
    let news = TopicRecord {
        missed: 5,
        missed_of: vec![
            ("a.>".to_owned(), 5),
            ("b".to_owned(), 1),
            ("?".to_owned(), 1),
        ],
        ..TopicRecord::default()
    };
    take(inner, peer, news).unwrap();
    assert_eq!(all.next().await, Ok(Some(TopicEvent::Missed(5))));
    let peers = list(inner).await.unwrap().peers;
    let of = |id| {
        peers
            .iter()
            .find(|row| row.node == id)
            .map(|row| row.dropped)
    };
    assert_eq!(of(peer), Some(4));
    node.shutdown(std::time::Duration::ZERO).await;
}
