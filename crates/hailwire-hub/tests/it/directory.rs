//! What members do: join, publish, look up, search, and find it again after a restart.

use hailwire_hub::{AgentVisibility, Hub, MemberTrust, TlsMode};
use hailwire_wire::directory::{RefusalReason, SearchRequest};

use crate::test_hub::{TestHub, config, reason};

#[tokio::test]
async fn a_member_publishes_and_another_finds_it_over_https() {
    let hub = TestHub::with(|config| config.listing = Some(AgentVisibility::Members)).await;
    let (one, two) = (hub.member(1).await, hub.member(2).await);
    let record = one.record(Some("laptop"), 1);
    one.publish(&record).await.unwrap();
    let by_key = format!("{}", one.key.id()).parse().unwrap();
    for node in [by_key, "laptop".parse().unwrap()] {
        assert_eq!(
            two.client.lookup(&node).await.unwrap(),
            Some(record.clone())
        );
    }
    assert_eq!(
        two.client.lookup(&"absent".parse().unwrap()).await.unwrap(),
        None
    );
    let search = |word: &str| SearchRequest {
        words: vec![word.into()],
        ..SearchRequest::default()
    };
    assert_eq!(two.client.search(&search("lines")).await.unwrap(), [record]);
    assert_eq!(two.client.search(&search("sha256")).await.unwrap(), []);
    let members = two.client.members().await.unwrap();
    assert_eq!(members.len(), 2);
    let first = members
        .iter()
        .find(|member| member.id == one.key.id())
        .unwrap();
    assert!(first.live && first.name.as_ref().unwrap().as_str() == "laptop");
    hub.hub.shutdown().await;
}

#[tokio::test]
async fn joining_tells_what_a_node_needs() {
    let hub = TestHub::with(|config| config.trust = MemberTrust::Members).await;
    let node = hub.unjoined_node(1);
    let ticket = hub.ticket(1).await;
    assert_eq!(ticket.key, Some(hub.hub.id()));
    assert_eq!(&ticket.url, hub.hub.url());
    let joined = node.client.join(ticket.secret.clone()).await.unwrap();
    assert_eq!(joined.hub, hub.hub.id());
    assert_eq!(joined.trust, MemberTrust::Members);
    assert_eq!(joined.relay, hub.hub.url().to_string());
    assert_eq!(joined.discovery_port, hub.hub.udp_addr().port());
    // Again is harmless: an answer may have been lost.
    node.client.join(ticket.secret.clone()).await.unwrap();
    let late = hub
        .unjoined_node(2)
        .client
        .join(ticket.secret)
        .await
        .map_err(reason);
    assert_eq!(late.map(drop), Err(RefusalReason::TicketUsedUp));
}

#[tokio::test]
async fn a_restart_keeps_key_members_records_and_names() {
    let hub = TestHub::plain().await;
    let (one, two) = (hub.member(1).await, hub.member(2).await);
    let record = one.record(Some("laptop"), 7);
    one.publish(&record).await.unwrap();
    let ticket = hub.ticket(1).await;
    let (id, tcp) = (hub.hub.id(), hub.hub.tcp_addr());
    hub.hub.shutdown().await;

    let mut again = config(hub.folder.path());
    again.tls = TlsMode::Plain;
    again.listen = tcp;
    again.udp_port = Some(0);
    let restarted = Hub::start(again).await.unwrap();
    assert_eq!(restarted.id(), id);
    assert_eq!(
        two.client.lookup(&"laptop".parse().unwrap()).await.unwrap(),
        Some(record)
    );
    assert_eq!(
        one.publish(&one.record(None, 7)).await,
        Err(RefusalReason::Replayed)
    );
    assert_eq!(
        two.publish(&two.record(Some("laptop"), 1)).await,
        Err(RefusalReason::NameTaken)
    );
    let hub = TestHub {
        hub: restarted,
        folder: hub.folder,
    };
    hub.unjoined_node(3)
        .client
        .join(ticket.secret)
        .await
        .unwrap();
}

#[tokio::test]
async fn of_many_that_want_one_name_at_once_one_gets_it() {
    let hub = TestHub::plain().await;
    let mut nodes = Vec::new();
    for seed in 1..=16 {
        nodes.push(hub.member(seed).await);
    }
    let tasks: Vec<_> = nodes
        .into_iter()
        .map(|node| {
            tokio::spawn(async move { node.publish(&node.record(Some("laptop"), 1)).await })
        })
        .collect();
    let mut won = 0;
    for task in tasks {
        match task.await.unwrap() {
            Ok(()) => won += 1,
            Err(reason) => assert_eq!(reason, RefusalReason::NameTaken),
        }
    }
    assert_eq!(won, 1);
    assert_eq!(hub.hub.counts().await.unwrap().names, 1);
}

#[tokio::test]
async fn a_ticket_made_beside_the_running_hub_is_good() {
    let hub = TestHub::plain().await;
    let lifetime = std::time::Duration::from_secs(600);
    let text = hailwire_hub::folder::invite(hub.folder.path(), 1, lifetime).unwrap();
    let Ok(hailwire_wire::ticket::Ticket::Hub(ticket)) = text.parse() else {
        panic!("{text}")
    };
    let node = hub.unjoined_node(1);
    node.client.join(ticket.secret).await.unwrap();
    let members = hailwire_hub::folder::members(hub.folder.path()).unwrap();
    assert_eq!(
        members.iter().map(|member| member.id).collect::<Vec<_>>(),
        [node.key.id()]
    );
}

#[tokio::test]
async fn a_removed_member_has_no_access() {
    let hub = TestHub::plain().await;
    let (one, two) = (hub.member(1).await, hub.member(2).await);
    one.publish(&one.record(Some("laptop"), 1)).await.unwrap();
    assert!(hub.hub.remove(one.key.id()).await.unwrap());
    let refused = one.client.members().await.map_err(reason);
    assert_eq!(refused.map(drop), Err(RefusalReason::NotAMember));
    assert_eq!(
        two.client.lookup(&"laptop".parse().unwrap()).await.unwrap(),
        None
    );
}

fn an_hour_late() -> u64 {
    crate::test_hub::unix_now() - 3600
}

#[tokio::test]
async fn a_node_whose_clock_is_an_hour_off_is_served_all_the_same() {
    let hub = TestHub::with(|config| {
        config.tls = TlsMode::Plain;
        config.clock = an_hour_late;
    })
    .await;
    let node = hub.member(1).await;
    node.publish(&node.record(Some("laptop"), 1)).await.unwrap();
    assert!(
        node.client
            .lookup(&"laptop".parse().unwrap())
            .await
            .unwrap()
            .is_some()
    );
}
