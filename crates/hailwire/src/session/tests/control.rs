//! The control stream: pings, GOING_AWAY, offers and its end.

use hailwire_wire::header::{AgentOffer, AgentOffers};

use super::*;

#[tokio::test(start_paused = true)]
async fn a_ping_is_answered_with_its_payload_and_a_longer_one_ends_the_session() {
    let (test, mut control) = TestSession::greeted(None).await;
    for payload in [&b""[..], b"12345678", &[7; 64]] {
        control.write(&[(FrameKind::PING, payload)]).await;
        let pong = (FrameKind::PONG, Bytes::copy_from_slice(payload));
        assert_eq!(control.frame().await.unwrap(), pong);
    }
    control.write(&[(FrameKind::PING, &[7; 65])]).await;
    let (code, reason) = test.peer.closed().await;
    assert_eq!(code, Code::InvalidArgument);
    assert_eq!(reason, "a ping of more than 64 bytes");
}

#[tokio::test(start_paused = true)]
async fn a_ping_takes_as_long_as_its_answer_and_fails_with_the_session() {
    let (test, mut control) = TestSession::greeted(None).await;
    let session = test.session.clone();
    let ping = tokio::spawn(async move { session.ping().await });
    let (kind, payload) = control.frame().await.unwrap();
    assert_eq!(kind, FrameKind::PING);
    tokio::time::advance(Duration::from_millis(300)).await;
    // An answer to a ping that was never sent is no answer.
    control
        .write(&[(FrameKind::PONG, b"elsewhere"), (FrameKind::PONG, &[9; 8])])
        .await;
    tokio::time::advance(Duration::from_millis(200)).await;
    assert!(!ping.is_finished());
    control.write(&[(FrameKind::PONG, &payload)]).await;
    assert_eq!(ping.await.unwrap().unwrap(), Duration::from_millis(500));

    let session = test.session.clone();
    let ping = tokio::spawn(async move { session.ping().await });
    assert_eq!(control.frame().await.unwrap().0, FrameKind::PING);
    test.peer.0.close(Code::Ok, "");
    let why = ping.await.unwrap().unwrap_err();
    assert_eq!(why.code, Code::Unavailable);
    // The same to whoever asks later.
    assert_eq!(test.session.ping().await.unwrap_err().code, why.code);
    assert_eq!(test.session.greeted().await, Ok(()), "that it has had");
}

#[tokio::test(start_paused = true)]
async fn a_far_side_that_is_going_away_gets_no_new_work_and_finishes_what_runs() {
    let (test, mut control) = TestSession::greeted(None).await;
    let running = test.call(Body::empty()).await.unwrap();
    let mut stream = test.peer.accept().await;
    let reason = GoingAway {
        reason: "it is late".to_owned(),
    };
    let going = header::encode(&reason);
    let farewell = [(FrameKind::GOING_AWAY, &going[..]), (FrameKind::PING, b"")];
    control.write(&farewell).await;
    assert_eq!(control.frame().await.unwrap().0, FrameKind::PONG);

    assert!(!test.session.takes_work() && !test.session.is_closed());
    let refused = test.call(Body::empty());
    let status = Status::new(
        Code::Unavailable,
        "the far side takes no more calls on this connection",
    );
    assert_eq!(refused.await.unwrap_err(), status);
    let relayed = test.relay(&to("echo")).await;
    assert_eq!(relayed.unwrap_err(), status);
    let answer = [(FrameKind::DATA, &b"done"[..]), (FrameKind::END, b"")];
    stream.write(&answer).await;
    let mut answer = running.begin(None).await.unwrap();
    assert_eq!(answer.bytes(10).await.unwrap(), "done");
    // It may still ask for something itself.
    assert!(test.peer.call(&to("echo")).await.status().await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn going_away_is_said_once_and_does_not_keep_this_side_from_calling() {
    let (test, mut control) = TestSession::greeted(None).await;
    test.session.go_away("an upgrade");
    test.session.go_away("another reason");
    let (kind, payload) = control.frame().await.unwrap();
    assert_eq!(kind, FrameKind::GOING_AWAY);
    let said: GoingAway = header::decode(&payload).unwrap();
    assert_eq!(said.reason, "an upgrade");
    control.write(&[(FrameKind::PING, b"")]).await;
    assert_eq!(control.frame().await.unwrap().0, FrameKind::PONG);
    assert!(test.session.takes_work());
}

#[tokio::test(start_paused = true)]
async fn frames_that_a_control_stream_does_not_know_are_skipped() {
    let (_test, mut control) = TestSession::greeted(None).await;
    control
        .write(&[
            (FrameKind(0x7f), b"of a later version"),
            (FrameKind::HEAD, b"of other streams"),
            (FrameKind::DATA, b"no body is here"),
            (FrameKind::PING, b"still here"),
        ])
        .await;
    assert_eq!(control.frame().await.unwrap().1, "still here");
}

#[tokio::test(start_paused = true)]
async fn a_page_of_offers_is_handed_on_and_a_malformed_one_ends_the_session() {
    let (mut test, mut control) = TestSession::greeted(None).await;
    let mut offered = test.session.peer_offered();
    assert!(!*offered.borrow());
    let list = AgentOffers {
        agents: vec![AgentOffer {
            group: hailwire_wire::header::OfferedGroup::default(),
            name: "echo".parse().unwrap(),
            description: String::new(),
            tags: Vec::new(),
            version: String::new(),
        }],
        number: 7,
        ..AgentOffers::default()
    };
    let page = header::encode(&list);
    control.write(&[(FrameKind::OFFERS, &page)]).await;
    assert_eq!(test.pages.recv().await, Some(7));
    patiently(offered.wait_for(|offered| *offered))
        .await
        .unwrap();
    control.write(&[(FrameKind::OFFERS, &[0xff])]).await;
    let (code, _) = test.peer.closed().await;
    assert_eq!(code, Code::InvalidArgument);
    assert!(test.pages.try_recv().is_err());
}

#[tokio::test(start_paused = true)]
async fn a_session_ends_with_its_control_stream_and_with_its_connection() {
    let (test, mut control) = TestSession::greeted(None).await;
    control.send.finish();
    let ended = (Code::Ok, "the control stream ended".to_owned());
    assert_eq!(test.peer.closed().await, ended);
    assert!(!test.session.takes_work());

    let test = TestSession::accepted(None);
    test.peer.0.close(Code::PermissionDenied, "not you");
    let why = test.session.greeted().await.unwrap_err();
    assert_eq!(why, Status::new(Code::PermissionDenied, "not you"));
    let opened = test.call(Body::empty());
    assert_eq!(opened.await.unwrap_err(), why);
}

#[tokio::test(start_paused = true)]
async fn two_handles_of_a_session_are_one_and_two_sessions_are_not() {
    let (one, other) = (TestSession::accepted(None), TestSession::accepted(None));
    let again = one.session.clone();
    assert!(one.session.is(&again) && one.session.key() == again.key());
    assert!(!one.session.is(&other.session) && one.session.key() != other.session.key());
    assert!(!one.session.dialled());
}
