//! Tickets, with a joiner or an inviter that is played by hand.

use hailwire_core::names::NamedBy;
use hailwire_wire::{CallHeader, frame::FrameKind};

use super::*;
use crate::{
    admin::method,
    node::hand_played::{HandPlayedPeer, LoneNode, key, nobody},
    session::tests::to,
};

/// A ticket of a node, with what it is for.
async fn ticket(host: &LoneNode, uses: u32, allow: &[&str], offer: &[&str]) -> NodeTicket {
    let texts = |texts: &[&str]| texts.iter().map(ToString::to_string).collect();
    let request = admin::InviteRequest {
        uses,
        expires_s: 60,
        allow: texts(allow),
        offer: texts(offer),
    };
    let invited: admin::InviteAnswer = host.admin(method::INVITE, &request).await.unwrap();
    match invited.ticket.parse().unwrap() {
        Ticket::Node(ticket) => ticket,
        Ticket::Hub(_) => panic!("the ticket of a hub"),
    }
}

fn showing(secret: TicketSecret) -> RedeemRequest {
    RedeemRequest {
        secret,
        name: None,
        addresses: Vec::new(),
        tcp: Vec::new(),
        relay: None,
    }
}

/// Shows a ticket by hand.
async fn show(peer: &HandPlayedPeer, shown: &RedeemRequest) -> Result<RedeemAnswer, Status> {
    let header = CallHeader {
        method: method::JOIN.to_owned(),
        ..to(admin::AGENT)
    };
    let body = header::encode(shown);
    let answer = peer.ask(FrameKind::CALL, &header, &body).await?;
    Ok(header::decode(&answer).unwrap())
}

#[tokio::test(start_paused = true)]
async fn whoever_shows_a_ticket_is_trusted_for_what_it_says_and_has_a_tunnel() {
    let host = LoneNode::named("desk").await;
    let ticket = ticket(&host, 1, &["echo"], &["grep"]).await;
    let mut joiner = host.peer(key(9)).await;
    let mut shown = showing(ticket.secret.clone());
    shown.name = Some("laptop".parse().unwrap());
    shown.addresses = vec![([198, 18, 0, 9], 1).into()];
    shown.tcp = vec![([198, 18, 0, 9], 443).into()];
    shown.relay = Some("https://hub.example.org".to_owned());
    let told = show(&joiner, &shown).await.unwrap();
    assert_eq!(told.name.unwrap().as_str(), "desk");

    let row = host.inner().trust.row(key(9)).unwrap();
    assert_eq!(row.alias.unwrap().as_str(), "laptop");
    assert_eq!(
        (row.named_by, row.via),
        (NamedBy::Peer, TrustOrigin::Ticket)
    );
    assert_eq!(texts(row.allow.names()), ["echo"]);
    assert_eq!(texts(row.bare.names()), ["grep"]);
    // Where it says that it is counts for less than where this user said.
    assert!(row.typed.is_empty() && row.tcp.is_empty());
    assert_eq!((row.told, row.told_tcp), (shown.addresses, shown.tcp));
    assert_eq!(row.relay, shown.relay);
    assert!(host.inner().peers.has(key(9)));
    joiner.offer(&host, 1, &["grep"]).await;

    // It is used up by that, also for this one.
    let again = show(&joiner, &showing(ticket.secret)).await.unwrap_err();
    let used_up = "the ticket has been used up";
    assert_eq!(
        (again.code, &again.message[..]),
        (Code::PermissionDenied, used_up)
    );
}

#[tokio::test(start_paused = true)]
async fn what_is_no_ticket_of_this_node_lets_nobody_in() {
    let host = LoneNode::named("desk").await;
    let stranger = host.peer(key(9)).await;
    let unknown = showing(TicketSecret::from_random([7; 16]));
    let unknown = show(&stranger, &unknown).await.unwrap_err();
    assert_eq!(unknown.code, Code::Unauthenticated);
    assert_eq!(unknown.message, "the ticket is unknown here");
    assert_eq!(unknown.hint, "ask for a new ticket: `hail invite`");
    let malformed = stranger.manage(method::JOIN, "secret").await.unwrap_err();
    assert_eq!(malformed.code, Code::InvalidArgument);
    assert!(host.inner().trust.rows().is_empty());
    assert!(!host.inner().peers.has(key(9)));
}

#[tokio::test(start_paused = true)]
async fn a_joiner_gets_neither_this_nodes_name_nor_that_of_another_peer() {
    let host = LoneNode::named("desk").await;
    host.trust(key(7), "laptop", &[]).await;
    let ticket = ticket(&host, 3, &[], &[]).await;
    for (byte, claimed, known_as) in [
        (1, Some("desk"), None),
        (2, Some("laptop"), Some("laptop-2")),
        (3, None, None),
    ] {
        let joiner = host.peer(key(byte)).await;
        let mut shown = showing(ticket.secret.clone());
        shown.name = claimed.map(|name| name.parse().unwrap());
        show(&joiner, &shown).await.unwrap();
        let alias = host.inner().trust.alias(key(byte)).map(String::from);
        assert_eq!(alias.as_deref(), known_as, "{claimed:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_ticket_of_a_trusted_peer_changes_nothing_that_was_said_of_it() {
    let host = LoneNode::named("desk").await;
    let peer = host.friend(key(7), "laptop").await;
    let add = admin::TrustAdd {
        allow: vec!["echo".to_owned()],
        ..nobody(key(7))
    };
    let before: admin::TrustedPeer = host.admin(method::TRUST_ADD, &add).await.unwrap();
    let session = host.inner().peers.up(key(7)).unwrap();
    let ticket = ticket(&host, 1, &[], &["grep"]).await;
    let mut shown = showing(ticket.secret);
    shown.name = Some("renamed".parse().unwrap());
    show(&peer, &shown).await.unwrap();
    let rows: Vec<admin::TrustedPeer> = host.admin(method::TRUST_LIST, &()).await.unwrap();
    let [after] = &rows[..] else {
        panic!("{rows:?}");
    };
    assert_eq!(
        (&after.alias, &after.named_by),
        (&before.alias, &before.named_by)
    );
    assert_eq!((&after.allow, &after.offer), (&before.allow, &before.offer));
    // Nor is its tunnel another one.
    assert!(host.inner().peers.up(key(7)).unwrap().is(&session));
    assert!(session.takes_work());
}

#[tokio::test(start_paused = true)]
async fn a_ticket_that_names_no_place_to_dial_is_said_to_be_out_of_reach() {
    let host = LoneNode::named("desk").await;
    // The other node listens nowhere, so that its ticket says nothing of where it is.
    let other = ticket(&host, 1, &[], &[]).await;
    let foreign = NodeTicket {
        node: key(8),
        ..other
    };
    assert!(foreign.addresses.is_empty() && foreign.tcp.is_empty());
    let join = admin::JoinRequest {
        ticket: Ticket::Node(foreign).to_text().unwrap(),
        ..admin::JoinRequest::default()
    };
    let joined: Result<admin::JoinAnswer, _> = host.admin(method::JOIN, &join).await;
    assert_eq!(joined.unwrap_err(), out_of_reach(key(8)));
    assert!(!host.inner().trust.is_trusted(key(8)));
}

#[tokio::test(start_paused = true)]
async fn an_inviter_that_is_connected_is_shown_the_ticket_there_and_again_while_it_has_no_place() {
    let host = LoneNode::named("desk").await;
    let inviter = host.friend(key(8), "tower").await;
    let foreign = NodeTicket {
        node: key(8),
        ..ticket(&host, 1, &[], &[]).await
    };
    let secret = foreign.secret.clone();
    let join = admin::JoinRequest {
        ticket: Ticket::Node(foreign).to_text().unwrap(),
        alias: "mainframe".to_owned(),
        ..admin::JoinRequest::default()
    };
    for (refusals, joins) in [(SHOWN_AGAIN.len() + 1, false), (1, true)] {
        let begun = tokio::time::Instant::now();
        let played = async {
            for turn in 0..=refusals {
                let (kind, header, mut stream) = inviter.called().await;
                assert_eq!((kind, &header.method[..]), (FrameKind::CALL, method::JOIN));
                let (_, body) = stream.frame().await.unwrap();
                let shown: RedeemRequest = header::decode(&body).unwrap();
                assert_eq!(shown.secret.digest(), secret.digest());
                assert_eq!(shown.name.unwrap().as_str(), "desk");
                if turn < refusals {
                    let full = Status::new(Code::ResourceExhausted, "no place");
                    let full = header::encode(&full);
                    stream.write(&[(FrameKind::END, &full)]).await;
                } else {
                    let told = RedeemAnswer {
                        name: Some("tower".parse().unwrap()),
                    };
                    let told = header::encode(&told);
                    let told = [(FrameKind::DATA, &told[..]), (FrameKind::END, b"")];
                    stream.write(&told).await;
                }
                stream.send.finish();
            }
        };
        let asked = host.admin::<admin::JoinAnswer>(method::JOIN, &join);
        let joined = tokio::select! {
            joined = asked => joined,
            () = async { played.await; std::future::pending().await } => unreachable!(),
        };
        let pauses: std::time::Duration = SHOWN_AGAIN.iter().take(refusals).sum();
        assert_eq!(begun.elapsed(), pauses);
        if joins {
            let joined = joined.unwrap();
            let admin::JoinAnswer::Node { id, name, allow } = joined else {
                panic!("{joined:?}");
            };
            // The name that this user gives counts, and no tunnel was made for it.
            assert_eq!((id, &name[..], allow), (key(8), "mainframe", Vec::new()));
            assert_eq!(host.inner().peers.len(), 1);
        } else {
            assert_eq!(joined.unwrap_err().message, "no place");
        }
    }
}
