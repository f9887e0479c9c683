//! What members do: join, publish, look up, search, and find it again after a restart.

use hailwire_hub::{Hub, Listing, Tls, Trust};
use hailwire_wire::directory::{Reason, Search};

use crate::house::{House, config, reason};

#[tokio::test]
async fn a_member_publishes_and_another_finds_it_over_https() {
    let house = House::with(|config| config.listing = Some(Listing::Members)).await;
    let (one, two) = (house.member(1).await, house.member(2).await);
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
    let search = |word: &str| Search {
        words: vec![word.into()],
        ..Search::default()
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
    house.hub.shutdown().await;
}

#[tokio::test]
async fn joining_tells_what_a_node_needs() {
    let house = House::with(|config| config.trust = Trust::Members).await;
    let node = house.stranger(1);
    let ticket = house.ticket(1).await;
    assert_eq!(ticket.key, Some(house.hub.id()));
    assert_eq!(&ticket.url, house.hub.url());
    let joined = node.client.join(ticket.secret.clone()).await.unwrap();
    assert_eq!(joined.hub, house.hub.id());
    assert_eq!(joined.trust, Trust::Members);
    assert_eq!(joined.relay, house.hub.url().to_string());
    assert_eq!(joined.discovery_port, house.hub.udp_addr().port());
    // Again is harmless: an answer may have been lost.
    node.client.join(ticket.secret.clone()).await.unwrap();
    let late = house
        .stranger(2)
        .client
        .join(ticket.secret)
        .await
        .map_err(reason);
    assert_eq!(late.map(drop), Err(Reason::TicketUsedUp));
}

#[tokio::test]
async fn a_restart_keeps_key_members_records_and_names() {
    let house = House::plain().await;
    let (one, two) = (house.member(1).await, house.member(2).await);
    let record = one.record(Some("laptop"), 7);
    one.publish(&record).await.unwrap();
    let ticket = house.ticket(1).await;
    let (id, tcp) = (house.hub.id(), house.hub.tcp_addr());
    house.hub.shutdown().await;

    let mut again = config(house.folder.path());
    again.tls = Tls::Plain;
    again.listen = tcp;
    again.udp_port = Some(0);
    let hub = Hub::start(again).await.unwrap();
    assert_eq!(hub.id(), id);
    assert_eq!(
        two.client.lookup(&"laptop".parse().unwrap()).await.unwrap(),
        Some(record)
    );
    assert_eq!(
        one.publish(&one.record(None, 7)).await,
        Err(Reason::Replayed)
    );
    assert_eq!(
        two.publish(&two.record(Some("laptop"), 1)).await,
        Err(Reason::NameTaken)
    );
    let house = House {
        hub,
        folder: house.folder,
    };
    house.stranger(3).client.join(ticket.secret).await.unwrap();
}

#[tokio::test]
async fn of_many_that_want_one_name_at_once_one_gets_it() {
    let house = House::plain().await;
    let mut nodes = Vec::new();
    for seed in 1..=16 {
        nodes.push(house.member(seed).await);
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
            Err(reason) => assert_eq!(reason, Reason::NameTaken),
        }
    }
    assert_eq!(won, 1);
    assert_eq!(house.hub.counts().await.unwrap().names, 1);
}

#[tokio::test]
async fn a_ticket_made_beside_the_running_hub_is_good() {
    let house = House::plain().await;
    let lifetime = std::time::Duration::from_secs(600);
    let text = hailwire_hub::folder::invite(house.folder.path(), 1, lifetime).unwrap();
    let Ok(hailwire_wire::ticket::Ticket::Hub(ticket)) = text.parse() else {
        panic!("{text}")
    };
    let node = house.stranger(1);
    node.client.join(ticket.secret).await.unwrap();
    let members = hailwire_hub::folder::members(house.folder.path()).unwrap();
    assert_eq!(
        members.iter().map(|member| member.id).collect::<Vec<_>>(),
        [node.key.id()]
    );
}

#[tokio::test]
async fn a_removed_member_is_a_stranger_again() {
    let house = House::plain().await;
    let (one, two) = (house.member(1).await, house.member(2).await);
    one.publish(&one.record(Some("laptop"), 1)).await.unwrap();
    assert!(house.hub.remove(one.key.id()).await.unwrap());
    let refused = one.client.members().await.map_err(reason);
    assert_eq!(refused.map(drop), Err(Reason::NotAMember));
    assert_eq!(
        two.client.lookup(&"laptop".parse().unwrap()).await.unwrap(),
        None
    );
}

fn an_hour_late() -> u64 {
    crate::house::unix_now() - 3600
}

#[tokio::test]
async fn a_node_whose_clock_is_an_hour_off_is_served_all_the_same() {
    let house = House::with(|config| {
        config.tls = Tls::Plain;
        config.clock = an_hour_late;
    })
    .await;
    let node = house.member(1).await;
    node.publish(&node.record(Some("laptop"), 1)).await.unwrap();
    assert!(
        node.client
            .lookup(&"laptop".parse().unwrap())
            .await
            .unwrap()
            .is_some()
    );
}
