//! The first frames of streams, and what streams are charged.

use hailwire_wire::limits::{MAX_HEADER_FIELDS, MAX_METHOD};

use super::*;
use crate::carrier::budget::{MemoryBudget, PEER, UNTRUSTED};

#[tokio::test(start_paused = true)]
async fn a_session_that_is_not_greeted_within_ten_seconds_is_closed_whoever_dialled() {
    for dialled in [false, true] {
        let echo: SharedHandler = Arc::new(|_: Request| async { Ok(Response::default()) });
        let test = TestSession::new(dialled, None, echo);
        let begun = Instant::now();
        let why = patiently(test.session.greeted()).await.unwrap_err();
        assert_eq!(why.code, Code::Unavailable);
        assert_eq!(begun.elapsed(), FIRST_FRAME_TIMEOUT, "dialled: {dialled}");
        let closed = (Code::DeadlineExceeded, "no greeting came".to_owned());
        assert_eq!(test.peer.closed().await, closed);
        assert!(!test.session.takes_work() && test.session.is_closed());
    }
}

#[tokio::test(start_paused = true)]
async fn a_first_frame_that_is_late_costs_its_stream_and_nothing_else() {
    let (test, _control) = TestSession::greeted(None).await;
    let begun = Instant::now();
    let half = &frames(&[(FrameKind::CALL, &header::encode_call(&to("echo")))])[..6];
    let mut late = test.peer.open(Bytes::copy_from_slice(half)).await;
    let status = late.status().await;
    assert_eq!(begun.elapsed(), FIRST_FRAME_TIMEOUT);
    assert_eq!(status.code, Code::DeadlineExceeded);
    assert_eq!(status.message, "the stream's first frame did not come");
    assert!(test.peer.call(&to("echo")).await.status().await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_call_that_overtakes_the_greeting_is_served() {
    let test = TestSession::accepted(None);
    assert!(test.peer.call(&to("echo")).await.status().await.is_ok());
    assert_eq!(test.session.peer_hello(), None);
    let _control = test.peer.greet().await;
    test.session.greeted().await.unwrap();
    assert_eq!(test.session.peer_hello().unwrap().name, "far");
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_ends_before_its_first_frame_gets_no_answer() {
    let (test, _control) = TestSession::greeted(None).await;
    let mut empty = test.peer.open(Bytes::new()).await;
    empty.send.finish();
    assert_eq!(empty.reset().await, Code::Cancelled);
    assert!(test.session.takes_work());
}

#[tokio::test(start_paused = true)]
async fn a_first_frame_that_opens_nothing_is_unimplemented() {
    let (test, _control) = TestSession::greeted(None).await;
    for kind in [FrameKind::END, FrameKind::PING, FrameKind(0x0f)] {
        let mut stream = test.peer.open(frames(&[(kind, b"x")])).await;
        stream.send.finish();
        let status = stream.status().await;
        assert_eq!(status.code, Code::Unimplemented);
        assert_eq!(status.message, format!("unknown opening {kind:?}"));
        assert!(status.hint.contains("newer version"), "{}", status.hint);
    }
}

#[tokio::test(start_paused = true)]
async fn streams_of_both_sides_are_counted_until_they_end() {
    let (test, _control) = TestSession::greeted(None).await;
    assert_eq!(test.session.in_flight(), 0, "the control stream is no work");
    let head = frames(&[
        (FrameKind::CALL, &header::encode_call(&to("echo"))),
        (FrameKind::DATA, b"a"),
    ]);
    let mut theirs = test.peer.open(head).await;
    assert_eq!(theirs.frame().await.unwrap().1, "a");
    assert_eq!(test.session.in_flight(), 1);
    let ours = test.call("x".into()).await.unwrap();
    assert_eq!(test.session.in_flight(), 2);
    drop(ours);
    assert_eq!(test.session.in_flight(), 1);
    theirs.send.finish();
    assert!(theirs.status().await.is_ok());
    // Its task ends once the far side has read the end.
    settled(|| test.session.in_flight() == 0).await;
}

#[tokio::test(start_paused = true)]
async fn a_header_past_a_bound_is_refused_here_and_leaves_no_stream_open() {
    let (test, _control) = TestSession::greeted(None).await;
    let field = || ("name".to_owned(), "value".to_owned());
    let fits = CallHeader {
        method: "m".repeat(MAX_METHOD),
        headers: vec![field(); MAX_HEADER_FIELDS],
        ..to("echo")
    };
    let method = CallHeader {
        method: "m".repeat(MAX_METHOD + 1),
        ..to("echo")
    };
    let fields = CallHeader {
        headers: vec![field(); MAX_HEADER_FIELDS + 1],
        ..to("echo")
    };
    let whole = CallHeader {
        headers: vec![(String::new(), "x".repeat(MAX_HEADER))],
        ..to("echo")
    };
    for (header, why) in [
        (method, "the method name is longer than 128 bytes"),
        (fields, "a call carries at most 128 header fields"),
        (whole, "the header is larger than 64 KiB"),
    ] {
        let opened = test.session.open(FrameKind::CALL, &header, Body::empty());
        let refused = opened.await.unwrap_err();
        assert_eq!(refused, Status::new(Code::InvalidArgument, why));
        let relayed = test.relay(&header).await;
        assert_eq!(relayed.unwrap_err(), refused);
    }
    assert_eq!(test.session.in_flight(), 0);
    let opened = test.session.open(FrameKind::CALL, &fits, Body::empty());
    assert!(opened.await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_small_body_travels_with_its_header_and_a_large_one_in_bounded_frames() {
    let (test, _control) = TestSession::greeted(None).await;
    let small = Bytes::from(vec![7; SMALL_BODY]);
    let _small = test.call(small.clone().into()).await.unwrap();
    let (_, mut recv) = test.peer.0.accept().await.unwrap();
    let expected = frames(&[
        (FrameKind::CALL, &header::encode_call(&to("echo"))),
        (FrameKind::DATA, &small),
    ]);
    assert_eq!(recv.read(1 << 20).await.unwrap().unwrap(), expected);
    assert_eq!(recv.read(1).await.unwrap(), None);

    let large = Bytes::from(vec![9; MAX_DATA_WRITE + 5]);
    let _large = test.call(large.clone().into()).await.unwrap();
    let (_send, mut recv) = test.peer.0.accept().await.unwrap();
    let mut bytes = BytesMut::new();
    while let Some(chunk) = recv.read(1 << 20).await.unwrap() {
        bytes.extend_from_slice(&chunk);
    }
    let expected = frames(&[
        (FrameKind::CALL, &header::encode_call(&to("echo"))),
        (FrameKind::DATA, &large[..MAX_DATA_WRITE]),
        (FrameKind::DATA, &large[..5]),
    ]);
    assert!(bytes == expected, "{} bytes", bytes.len());
}

#[tokio::test(start_paused = true)]
async fn a_body_that_fails_resets_its_stream_with_the_code() {
    let (test, _control) = TestSession::greeted(None).await;
    let (sender, body) = Body::channel(1);
    let _answer = test.call(body).await.unwrap();
    let mut stream = test.peer.accept().await;
    assert_eq!(stream.frame().await.unwrap().0, FrameKind::CALL);
    sender.abort(Status::new(Code::DataLoss, "torn")).await;
    let read = stream.reader.next().await.unwrap_err();
    assert_eq!(read.code, Code::DataLoss);
}

#[tokio::test(start_paused = true)]
async fn a_far_side_that_wants_no_body_may_still_answer() {
    let (test, _control) = TestSession::greeted(None).await;
    for body in [Body::from("small"), Body::channel(1).1] {
        let call = test.call(body).await.unwrap();
        let mut stream = test.peer.accept().await;
        stream.reader.stop(Code::Ok);
        let answer = [(FrameKind::DATA, &b"enough"[..]), (FrameKind::END, b"")];
        stream.write(&answer).await;
        let mut answer = call.begin(None).await.unwrap();
        assert_eq!(answer.bytes(10).await.unwrap(), "enough");
    }
}

/// An account with so much room left, and what takes the rest of it.
fn account_with(room: usize) -> (Arc<PeerAccount>, AccountCharge) {
    let account = PeerAccount::untrusted(Arc::new(MemoryBudget::new(0)));
    let taken = account.hold(UNTRUSTED - room).unwrap();
    (account, taken)
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_its_account_has_no_room_for_is_closed_at_once() {
    let (account, taken) = account_with(CONNECTION - 1);
    let test = TestSession::accepted(Some(account.clone()));
    let (code, reason) = test.peer.closed().await;
    assert_eq!(code, Code::ResourceExhausted);
    assert_eq!(reason, "as much is held for this node as may be");
    drop(taken);
    let (test, _control) = TestSession::greeted(Some(account)).await;
    assert!(test.peer.call(&to("echo")).await.status().await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_stream_is_charged_while_it_lasts_and_refused_where_there_is_no_room() {
    let account = PeerAccount::peer(Arc::new(MemoryBudget::new(0)));
    let (test, _control) = TestSession::greeted(Some(account.clone())).await;
    let idle = account.used();
    assert!(idle >= CONNECTION);
    let open = frames(&[
        (FrameKind::CALL, &header::encode_call(&to("echo"))),
        (FrameKind::DATA, b"a"),
    ]);
    let mut first = test.peer.open(open.clone()).await;
    assert_eq!(first.frame().await.unwrap().1, "a");
    let one = account.used() - idle;
    assert!((STREAM..STREAM + MAX_HEADER).contains(&one), "{one}");

    // Room for half a stream.
    let rest = account.hold(PEER - account.used() - STREAM / 2).unwrap();
    let refused = test.peer.open(open.clone()).await;
    assert_eq!(refused.reset().await, Code::ResourceExhausted);
    drop(rest);
    let mut second = test.peer.open(open).await;
    assert_eq!(second.frame().await.unwrap().1, "a");
    for stream in [&mut first, &mut second] {
        stream.send.finish();
        assert!(stream.status().await.is_ok());
    }
    settled(|| account.used() <= idle).await;
}

#[tokio::test(start_paused = true)]
async fn a_header_that_has_to_be_waited_for_or_is_large_is_charged_as_well() {
    let account = PeerAccount::peer(Arc::new(MemoryBudget::new(0)));
    let (test, _control) = TestSession::greeted(Some(account.clone())).await;
    let large = CallHeader {
        headers: vec![(String::new(), "x".repeat(MAX_HEADER / 2))],
        ..to("echo")
    };
    let whole = frames(&[(FrameKind::CALL, &header::encode_call(&large))]);
    // Half of it is there: all of it is charged until it has come, and then what it is.
    let idle = account.used();
    let begun = whole.slice(..MAX_HEADER / 4);
    let mut waits = test.peer.open(begun).await;
    settled(|| account.used() >= idle + STREAM + MAX_HEADER).await;
    waits
        .send
        .write(whole.slice(MAX_HEADER / 4..))
        .await
        .unwrap();
    settled(|| account.used() < idle + STREAM + MAX_HEADER).await;
    assert!(account.used() >= idle + STREAM + MAX_HEADER / 2);
    waits.send.finish();
    assert!(waits.status().await.is_ok());
    settled(|| account.used() <= idle).await;

    // Room for a stream, and for half of a header that may still come.
    let room = STREAM + MAX_HEADER / 2;
    let rest = account.hold(PEER - account.used() - room).unwrap();
    let waits = test
        .peer
        .open(Bytes::from_static(&[FrameKind::CALL.0]))
        .await;
    assert_eq!(waits.reset().await, Code::ResourceExhausted);
    drop(rest);
    // One that comes at once, for which there is room as for a small one only.
    let large = CallHeader {
        headers: vec![(String::new(), "x".repeat(2 * SMALL_BODY))],
        ..to("echo")
    };
    let at_once = frames(&[(FrameKind::CALL, &header::encode_call(&large))]);
    let rest = account
        .hold(PEER - account.used() - STREAM - SMALL_BODY)
        .unwrap();
    let refused = test.peer.open(at_once.clone()).await;
    assert_eq!(refused.reset().await, Code::ResourceExhausted);
    drop(rest);
    let mut served = test.peer.open(at_once).await;
    served.send.finish();
    assert!(served.status().await.is_ok());
}

#[test]
fn only_a_lost_connection_ends_a_call_whose_body_cannot_be_written() {
    assert_eq!(check_write(Ok(())), Ok(()));
    for wanted_no_more in [WriteError::Stopped(Code::Internal), WriteError::Ended] {
        assert_eq!(check_write(Err(wanted_no_more)), Ok(()));
    }
    let lost = ConnectionError::Lost("the cable".to_owned());
    let status = check_write(Err(WriteError::Connection(lost))).unwrap_err();
    assert_eq!(status.code, Code::Unavailable);
    assert_eq!(status.message, "the peer is gone: the cable");
}
