//! Answers as a caller reads them, from a callee that is played by hand.

use std::sync::atomic::AtomicUsize;

use hailwire_wire::limits::MAX_HEADER_FIELDS;

use super::*;

/// Frames to write.
type FrameSlice<'a> = &'a [(FrameKind, &'a [u8])];

/// A call, and its far end with the header read.
async fn called(test: &TestSession) -> (ExpectedAnswer, ScriptedStream) {
    let call = test.call(Body::empty()).await.unwrap();
    let mut stream = test.peer.accept().await;
    assert_eq!(stream.frame().await.unwrap().0, FrameKind::CALL);
    (call, stream)
}

async fn whole(call: ExpectedAnswer) -> Result<(AnswerHead, Bytes), Status> {
    let mut answer = call.begin(None).await?;
    let bytes = answer.bytes(1 << 20).await;
    // Whoever asks again is told the same.
    let again = answer.chunk().await;
    assert_eq!(again, bytes.clone().map(|_| None));
    Ok((answer.head().clone(), bytes?))
}

#[tokio::test(start_paused = true)]
async fn an_answer_is_whole_only_with_its_end() {
    let (test, _control) = TestSession::greeted(None).await;
    let head = AnswerHead {
        content_type: "text/plain".to_owned(),
        headers: vec![("a".to_owned(), "b".to_owned())],
    };
    let many = AnswerHead {
        headers: vec![Default::default(); MAX_HEADER_FIELDS + 1],
        ..AnswerHead::default()
    };
    let (said, many) = (header::encode(&head), header::encode(&many));
    let ok = header::encode(&Status::ok());
    let denied = Status::new(Code::PermissionDenied, "not that")
        .with_hint("another")
        .with_details("because");
    let refusal = header::encode(&denied);
    let none = AnswerHead::default();
    let (data, end) = (FrameKind::DATA, FrameKind::END);
    let good: [(FrameSlice<'_>, _, &'static str); 6] = [
        (&[(end, b"")], &none, ""),
        (&[(end, &ok)], &none, ""),
        (&[(data, b"ab"), (data, b"c"), (end, b"")], &none, "abc"),
        (
            &[(FrameKind::HEAD, &said), (data, b"a"), (end, b"")],
            &head,
            "a",
        ),
        // A head where none belongs, and what a later version may say.
        (
            &[
                (data, b"a"),
                (FrameKind::HEAD, &said),
                (FrameKind(0x7f), b"?"),
                (data, b"b"),
                (end, b""),
            ],
            &none,
            "ab",
        ),
        (&[(FrameKind(0x7f), b"?"), (end, b"")], &none, ""),
    ];
    for (written, head, body) in good {
        let (call, mut stream) = called(&test).await;
        stream.write(written).await;
        stream.send.finish();
        let answer = whole(call).await.unwrap();
        assert_eq!(answer, (head.clone(), Bytes::from(body)), "{written:?}");
    }
    let short = Status::new(Code::Unavailable, "the answer was cut short");
    let bad: [(FrameSlice<'_>, Code, &str); 6] = [
        (&[], short.code, &short.message),
        (&[(data, b"ab")], short.code, &short.message),
        (&[(end, &refusal)], denied.code, &denied.message),
        (&[(data, b"ab"), (end, &refusal)], denied.code, "not that"),
        (&[(end, b"\xff\xff")], Code::Internal, "malformed header"),
        (
            &[(FrameKind::HEAD, &many), (end, b"")],
            Code::Internal,
            "header exceeds a bound",
        ),
    ];
    for (written, code, message) in bad {
        let (call, mut stream) = called(&test).await;
        stream.write(written).await;
        stream.send.finish();
        let status = whole(call).await.unwrap_err();
        assert_eq!(status.code, code, "{written:?}");
        assert!(status.message.starts_with(message), "{status}");
        if code == denied.code {
            assert_eq!(status, denied);
        }
    }
    assert_eq!(test.session.in_flight(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_reset_answer_says_what_its_code_means() {
    let (test, _control) = TestSession::greeted(None).await;
    let given_up = (Code::Cancelled, "the far side gave the call up");
    for (code, (told, message)) in [
        (Code::Ok, given_up),
        (Code::Cancelled, given_up),
        (
            Code::Unavailable,
            (
                Code::Unavailable,
                "the agent or its node went away in mid-call",
            ),
        ),
        (
            Code::DeadlineExceeded,
            (
                Code::DeadlineExceeded,
                "the deadline passed before the answer was whole",
            ),
        ),
        (
            Code::Aborted,
            (Code::Aborted, "the far side reset the call"),
        ),
    ] {
        let (call, mut stream) = called(&test).await;
        stream.send.reset(code);
        let status = whole(call).await.unwrap_err();
        assert_eq!((status.code, &status.message[..]), (told, message));
    }
    let (call, _stream) = called(&test).await;
    test.peer.0.close(Code::Ok, "");
    let status = whole(call).await.unwrap_err();
    let closed = "the connection was closed in mid-call";
    assert_eq!(status, Status::new(Code::Unavailable, closed));
}

#[tokio::test(start_paused = true)]
async fn an_answer_past_the_limit_of_its_reader_is_refused() {
    let (test, _control) = TestSession::greeted(None).await;
    for (limit, fits) in [(4, true), (3, false), (1, false)] {
        let (call, mut stream) = called(&test).await;
        let (data, end) = (FrameKind::DATA, FrameKind::END);
        stream.write(&[(data, b"ab"), (data, b"cd")]).await;
        stream.write(&[(end, b"")]).await;
        let mut answer = call.begin(None).await.unwrap();
        let bytes = answer.bytes(limit).await;
        assert_eq!(bytes.is_ok(), fits, "{limit}");
        if let Err(status) = bytes {
            assert_eq!(status.code, Code::ResourceExhausted);
            assert_eq!(
                status.message,
                format!("the answer is longer than {limit} bytes")
            );
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_is_late_is_given_up_on_both_sides() {
    let (test, _control) = TestSession::greeted(None).await;
    let (call, mut stream) = called(&test).await;
    stream.write(&[(FrameKind::DATA, b"begun")]).await;
    let at = Instant::now() + Duration::from_secs(3);
    let mut answer = call.begin(Some(at)).await.unwrap();
    assert_eq!(answer.deadline(), Some(at));
    assert_eq!(answer.chunk().await.unwrap().unwrap(), "begun");
    let late = answer.chunk().await.unwrap_err();
    assert_eq!(late, deadline_exceeded());
    assert_eq!(Instant::now(), at);
    assert_eq!(stream.send.stopped().await, Some(Code::Cancelled));
    assert_eq!(answer.chunk().await.unwrap_err(), late);
}

#[tokio::test(start_paused = true)]
async fn what_has_come_is_read_though_the_deadline_has_passed() {
    let (test, _control) = TestSession::greeted(None).await;
    let (call, mut stream) = called(&test).await;
    let head = header::encode(&AnswerHead::default());
    let answer = [
        (FrameKind::HEAD, &head[..]),
        (FrameKind::DATA, b"ab"),
        (FrameKind::END, b""),
    ];
    stream.write(&answer).await;
    let at = Instant::now() + Duration::from_secs(1);
    let mut answer = call.begin(Some(at)).await.unwrap();
    tokio::time::advance(Duration::from_secs(2)).await;
    assert_eq!(answer.bytes(9).await.unwrap(), "ab");
}

/// Counts how often it was dropped.
struct DropCount(Arc<AtomicUsize>);

impl Drop for DropCount {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[tokio::test(start_paused = true)]
async fn what_an_answer_holds_is_let_go_of_at_its_end_and_not_before() {
    let (test, _control) = TestSession::greeted(None).await;
    let dropped = Arc::new(AtomicUsize::new(0));
    let count = || dropped.load(Ordering::Relaxed);
    let (call, mut stream) = called(&test).await;
    stream.write(&[(FrameKind::DATA, b"a")]).await;
    let begun = call.begin(None).await.unwrap();
    let mut answer = begun.holding(Arc::new(DropCount(dropped.clone())));
    assert_eq!(answer.chunk().await.unwrap().unwrap(), "a");
    assert_eq!((count(), test.session.in_flight()), (0, 1));
    stream.write(&[(FrameKind::END, b"")]).await;
    assert_eq!(answer.chunk().await, Ok(None));
    assert_eq!((count(), test.session.in_flight()), (1, 0));

    // One that had ended before holds nothing.
    let (call, mut stream) = called(&test).await;
    stream.write(&[(FrameKind::END, b"")]).await;
    let begun = call.begin(None).await.unwrap();
    let _answer = begun.holding(Arc::new(DropCount(dropped.clone())));
    assert_eq!(count(), 2);
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_is_dropped_stops_its_writer_and_the_body_of_its_call() {
    let (test, _control) = TestSession::greeted(None).await;
    let (sender, body) = Body::channel(1);
    let call = test.call(body).await.unwrap();
    let mut stream = test.peer.accept().await;
    assert_eq!(stream.frame().await.unwrap().0, FrameKind::CALL);
    drop(call);
    assert_eq!(stream.send.stopped().await, Some(Code::Cancelled));
    let body = stream.reader.next().await.unwrap_err();
    assert_eq!(body.code, Code::Cancelled);
    sender.closed().await;
}

#[tokio::test(start_paused = true)]
async fn an_end_that_the_stream_outlives_tells_the_far_side_to_stop() {
    let (test, _control) = TestSession::greeted(None).await;
    let (call, mut stream) = called(&test).await;
    stream.write(&[(FrameKind::END, b"")]).await;
    whole(call).await.unwrap();
    assert_eq!(stream.send.stopped().await, Some(Code::Ok));
}
