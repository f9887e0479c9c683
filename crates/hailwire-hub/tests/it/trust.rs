//! What a hub may do to whom its members trust, and to the names by which they call.

use std::{net::SocketAddr, time::Duration};

use hailwire::{
    Agent, Client, Code, DataDir, Node, Request, Response, ServeHandle, admin, admin::method,
};
use hailwire_hub::Hub;
use hailwire_wire::{
    directory::MemberTrust,
    ticket::{HubTicket, Ticket},
};

use crate::{
    nodes::{Member, trusting},
    test_hub::{self, TestHub},
};

/// A node that has joined nothing.
async fn alone(name: &str) -> (Node, Client, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let mut config = hailwire::Config::default();
    config.node.name = Some(name.parse().unwrap());
    config.listen.udp = vec![SocketAddr::from(([127, 0, 0, 1], 0))];
    let data = DataDir::new(folder.path());
    let node = Node::builder().data_dir(data).config(config);
    let node = node.start().await.unwrap();
    let client = node.client();
    (node, client, folder)
}

async fn join(client: &Client, ticket: HubTicket, yes: bool) -> (bool, bool) {
    let join = admin::JoinRequest {
        ticket: Ticket::Hub(ticket).to_text().unwrap(),
        yes,
        ..admin::JoinRequest::default()
    };
    match client.admin(method::JOIN, &join).await.unwrap() {
        admin::JoinAnswer::Hub {
            members, trusted, ..
        } => (members, trusted),
        admin::JoinAnswer::Node { .. } => panic!("joined a node"),
    }
}

async fn serve_as(client: &Client, agent: &str, whose: &'static str) -> ServeHandle {
    let answer = move |_: Request| async move { Ok(Response::new(whose)) };
    let agent = Agent::new(agent).unwrap();
    client.serve(agent, answer).await.unwrap()
}

async fn answer(client: &Client, to: &str) -> Result<String, hailwire::Status> {
    let call = client.call(to).deadline(Duration::from_secs(20));
    let bytes = call.send().await?.bytes(100).await?;
    Ok(String::from_utf8(bytes.to_vec()).unwrap())
}

#[tokio::test]
async fn members_are_trusted_only_where_ticket_user_and_hub_say_so() {
    let hub = trusting(MemberTrust::Members).await;
    let ticket = hub.ticket(9).await;
    assert_eq!(ticket.trust, MemberTrust::Members, "the ticket says so");
    let silent = HubTicket {
        trust: MemberTrust::Nobody,
        ..ticket.clone()
    };
    let bob = Member::of(&hub, "bob").await;
    for (ticket, yes) in [
        (ticket.clone(), false),
        (silent.clone(), false),
        (silent, true),
    ] {
        let (node, client, _folder) = alone("alice").await;
        let _echo = serve_as(&client, "echo", "alice's").await;
        assert_eq!(join(&client, ticket, yes).await, (true, false));
        let to = format!("echo@{}", node.id());
        let refused = answer(&bob.client, &to).await.unwrap_err();
        assert_eq!(refused.code, Code::PermissionDenied, "{refused}");
        node.shutdown(Duration::ZERO).await;
    }
    let (node, client, _folder) = alone("alice").await;
    let _echo = serve_as(&client, "echo", "alice's").await;
    assert_eq!(join(&client, ticket, true).await, (true, true));
    let to = format!("echo@{}", node.id());
    assert_eq!(answer(&bob.client, &to).await.unwrap(), "alice's");
    node.shutdown(Duration::ZERO).await;
    bob.stop().await;
    hub.hub.shutdown().await;
}

#[tokio::test]
async fn a_hub_that_lets_its_members_trust_each_other_later_changes_nothing_for_who_joined_before()
{
    let hub = trusting(MemberTrust::Nobody).await;
    let (node, client, _folder) = alone("alice").await;
    let _echo = serve_as(&client, "echo", "alice's").await;
    let ticket = hub.ticket(1).await;
    assert_eq!(ticket.trust, MemberTrust::Nobody);
    assert_eq!(join(&client, ticket, true).await, (false, false));
    let (tcp, udp) = (hub.hub.tcp_addr(), hub.hub.udp_addr());
    let TestHub { hub, folder } = hub;
    hub.shutdown().await;
    let mut config = test_hub::config(folder.path());
    config.trust = MemberTrust::Members;
    config.listen = tcp;
    config.udp_port = Some(udp.port());
    let hub = Hub::start(config).await.unwrap();
    let back = TestHub { hub, folder };
    let bob = Member::of(&back, "bob").await;
    let refused = answer(&bob.client, &format!("echo@{}", node.id())).await;
    assert_eq!(refused.unwrap_err().code, Code::PermissionDenied);
    node.shutdown(Duration::ZERO).await;
    bob.stop().await;
    back.hub.shutdown().await;
}

#[tokio::test]
async fn a_joiner_that_calls_itself_as_a_member_does_gets_none_of_its_calls() {
    let hub = trusting(MemberTrust::Nobody).await;
    let alice = Member::of(&hub, "alice").await;
    let real = Member::of(&hub, "z").await;
    let _bank = serve_as(&real.client, "bank", "the bank's").await;
    // Two that join alice, of which one calls itself as a member does.
    let mut thieves = Vec::new();
    for name in ["z", "y"] {
        let (node, client, folder) = alone(name).await;
        let serving = serve_as(&client, "bank", "a thief's").await;
        let invite = admin::InviteRequest {
            uses: 1,
            expires_s: 60,
            allow: Vec::new(),
            offer: Vec::new(),
        };
        let invited = alice.client.admin(method::INVITE, &invite).await;
        let invited: admin::InviteAnswer = invited.unwrap();
        let join = admin::JoinRequest {
            ticket: invited.ticket,
            ..admin::JoinRequest::default()
        };
        let _: admin::JoinAnswer = client.admin(method::JOIN, &join).await.unwrap();
        thieves.push((node, serving, folder));
    }
    let trust = async |at: &Member, of: &Member| {
        let add = admin::TrustAdd {
            id: of.node.id(),
            alias: String::new(),
            allow: Vec::new(),
            offer: Vec::new(),
            addresses: of.node.sockets().iter().map(ToString::to_string).collect(),
            tcp: Vec::new(),
        };
        let _: admin::TrustedPeer = at.client.admin(method::TRUST_ADD, &add).await.unwrap();
    };
    // Not trusted, the real one is refused its calls, and they go to nobody else.
    let refused = answer(&alice.client, "bank@z").await.unwrap_err();
    assert_eq!(refused.code, Code::PermissionDenied, "{refused}");
    trust(&alice, &real).await;
    trust(&real, &alice).await;
    assert_eq!(answer(&alice.client, "bank@z").await.unwrap(), "the bank's");
    // What nobody holds at the hub is the joiner's, who is shown as the one that named itself.
    assert_eq!(answer(&alice.client, "bank@y").await.unwrap(), "a thief's");
    let rows: Vec<admin::TrustedPeer> = alice.client.admin(method::TRUST_LIST, &()).await.unwrap();
    let named = rows.iter().find(|row| row.alias == "y").unwrap();
    assert_eq!(named.named_by, "peer");
    // With the hub away its last word counts.
    hub.hub.shutdown().await;
    let _other = alice.serve_echo("other").await;
    alice.registered(false).await;
    assert_eq!(answer(&alice.client, "bank@z").await.unwrap(), "the bank's");
    alice.stop().await;
    real.stop().await;
    for (node, _serving, _folder) in thieves {
        node.shutdown(Duration::ZERO).await;
    }
}

#[tokio::test]
async fn the_hubs_database_is_readable_by_its_user_alone_also_one_of_before() {
    use std::os::unix::fs::PermissionsExt as _;

    let hub = trusting(MemberTrust::Nobody).await;
    let modes = |folder: &std::path::Path| {
        ["hub.db", "hub.db-wal", "hub.db-shm"].map(|name| {
            let meta = std::fs::metadata(folder.join(name)).unwrap();
            meta.permissions().mode() & 0o777
        })
    };
    assert_eq!(modes(hub.folder.path()), [0o600; 3]);
    let TestHub { hub, folder } = hub;
    hub.shutdown().await;
    let open = std::fs::Permissions::from_mode(0o644);
    std::fs::set_permissions(folder.path().join("hub.db"), open).unwrap();
    let hub = Hub::start(test_hub::config(folder.path())).await.unwrap();
    assert_eq!(modes(folder.path()), [0o600; 3]);
    hub.shutdown().await;
}
