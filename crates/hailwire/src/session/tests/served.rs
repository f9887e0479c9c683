//! Calls that a session's handler answers, as their caller sees them byte for byte.

use hailwire_wire::limits::MAX_HEADER_FIELDS;
use tokio::sync::oneshot;

use super::*;
use crate::agent::Handler;

/// Serves one opening with a handler. Gives the caller's end and how the call ended.
async fn serve_one<H: Handler>(
    kind: RequestKind,
    header: CallHeader,
    handler: H,
) -> (
    ScriptedStream,
    tokio::task::JoinHandle<Code>,
    CarrierConnection,
) {
    let (far, near) = connected();
    let peer = RawPeer(far);
    let opening = header::encode_call(&header);
    let stream = peer.open(frames(&[(FrameKind::CALL, &opening)])).await;
    let (send, recv) = near.accept().await.unwrap();
    let mut reader = Box::new(FrameReader::new(recv));
    assert_eq!(
        reader.next_frame().await.unwrap().unwrap().0,
        FrameKind::CALL
    );
    let handler: SharedHandler = Arc::new(handler);
    let served = tokio::spawn(async move {
        let header = Box::new(header);
        let code = serve(kind, header, Caller::Local, send, reader, &handler).await;
        // What was written last is still under way.
        near.closed().await;
        code
    });
    (stream, served, peer.0)
}

/// How a call ended for who served it, once its caller has gone.
async fn code(served: tokio::task::JoinHandle<Code>, caller: &CarrierConnection) -> Code {
    caller.close(Code::Ok, "");
    served.await.unwrap()
}

fn with_deadline(left: Duration) -> CallHeader {
    let mut header = to("slow");
    header.set_deadline(left);
    header
}

#[tokio::test(start_paused = true)]
async fn a_small_answer_leaves_in_one_write_with_its_head_and_its_end() {
    let handler = |_: Request| async {
        Ok(Response::new("hello")
            .content_type("text/plain")
            .header("k", "v"))
    };
    let (stream, served, far) = serve_one(RequestKind::Call, to("x"), handler).await;
    let head = AnswerHead {
        content_type: "text/plain".to_owned(),
        headers: vec![("k".to_owned(), "v".to_owned())],
    };
    let expected = frames(&[
        (FrameKind::HEAD, &header::encode(&head)),
        (FrameKind::DATA, b"hello"),
        (FrameKind::END, b""),
    ]);
    let (_, mut recv) = stream.reader.into_parts();
    assert_eq!(recv.read(1 << 16).await.unwrap().unwrap(), expected);
    assert_eq!(recv.read(1).await.unwrap(), None);
    assert_eq!(code(served, &far).await, Code::Ok);
}

#[tokio::test(start_paused = true)]
async fn an_answer_without_a_head_begins_with_its_body() {
    let handler = |_: Request| async { Ok(Response::new("a")) };
    let (mut stream, ..) = serve_one(RequestKind::Call, to("x"), handler).await;
    let frame = (FrameKind::DATA, Bytes::from_static(b"a"));
    assert_eq!(stream.frame().await.unwrap(), frame);
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_fails_or_panics_is_told_to_its_caller_and_to_whoever_counts() {
    let failed = Status::new(Code::Aborted, "no").with_hint("ask somebody else");
    let told = failed.clone();
    let handler = move |_: Request| {
        let told = told.clone();
        async move { Err(told) }
    };
    let (mut stream, served, far) = serve_one(RequestKind::Call, to("x"), handler).await;
    assert_eq!(stream.status().await, failed);
    assert_eq!(code(served, &far).await, Code::Aborted);

    let handler = |_: Request| async { panic!("a test's handler panics") };
    let (mut stream, served, far) = serve_one(RequestKind::Call, to("x"), handler).await;
    assert_eq!(stream.status().await, panicked());
    assert_eq!(code(served, &far).await, Code::Internal);
}

#[tokio::test(start_paused = true)]
async fn a_head_past_its_bound_is_the_agents_fault() {
    for head in [
        AnswerHead {
            headers: vec![Default::default(); MAX_HEADER_FIELDS + 1],
            ..AnswerHead::default()
        },
        AnswerHead {
            content_type: "x".repeat(MAX_HEADER),
            ..AnswerHead::default()
        },
    ] {
        let handler = move |_: Request| {
            let head = head.clone();
            async move {
                let body = Body::from("body");
                Ok(Response { head, body })
            }
        };
        let (mut stream, served, far) = serve_one(RequestKind::Call, to("x"), handler).await;
        let (body, status) = stream.answer().await;
        let why = "the head of the answer exceeds its bound";
        assert_eq!(status, Status::new(Code::Internal, why));
        assert!(body.is_empty());
        assert_eq!(code(served, &far).await, Code::Internal);
    }
}

#[tokio::test(start_paused = true)]
async fn a_one_way_message_is_acknowledged_without_what_its_handler_answers() {
    let handler = |mut request: Request| async move {
        assert_eq!(request.kind(), RequestKind::Send);
        Ok(Response::new(request.body_mut().bytes(10).await?).content_type("text/plain"))
    };
    let (mut stream, served, far) = serve_one(RequestKind::Send, to("x"), handler).await;
    stream.write(&[(FrameKind::DATA, b"read this")]).await;
    stream.send.finish();
    assert_eq!(stream.frame().await.unwrap().0, FrameKind::END);
    assert_eq!(stream.frame().await, None);
    assert_eq!(code(served, &far).await, Code::Ok);
}

#[tokio::test(start_paused = true)]
async fn a_raw_stream_is_accepted_before_its_handler_has_answered() {
    let (go, gone) = oneshot::channel::<()>();
    let gone = Mutex::new(Some(gone));
    let handler = move |_: Request| {
        let gone = gone.lock().unwrap().take().unwrap();
        async move {
            let _ = gone.await;
            Ok(Response::new("then"))
        }
    };
    let (mut stream, _served, _far) = serve_one(RequestKind::Stream, to("x"), handler).await;
    let (kind, head) = stream.frame().await.unwrap();
    assert_eq!(kind, FrameKind::HEAD);
    let head: AnswerHead = header::decode(&head).unwrap();
    assert_eq!(head, AnswerHead::default());
    go.send(()).unwrap();
    assert_eq!(stream.answer().await, ("then".into(), Status::ok()));
}

#[tokio::test(start_paused = true)]
async fn a_body_that_breaks_off_ends_the_answer_after_what_was_sent() {
    let broken = Status::new(Code::DataLoss, "the disk is gone");
    let told = broken.clone();
    let handler = move |_: Request| {
        let told = told.clone();
        async move {
            let (sender, body) = Body::channel(2);
            tokio::spawn(async move {
                sender.send("half").await.unwrap();
                sender.abort(told).await;
            });
            Ok(Response::new(body))
        }
    };
    let (mut stream, served, far) = serve_one(RequestKind::Call, to("x"), handler).await;
    assert_eq!(stream.answer().await, ("half".into(), broken));
    assert_eq!(code(served, &far).await, Code::DataLoss);
}

#[tokio::test(start_paused = true)]
async fn chunks_that_are_not_ready_at_once_are_sent_as_they_come() {
    let (sender, body) = Body::channel(1);
    let body = Mutex::new(Some(body));
    let handler = move |_: Request| {
        let body = body.lock().unwrap().take().unwrap();
        async move { Ok(Response::new(body)) }
    };
    let (mut stream, served, far) = serve_one(RequestKind::Call, to("x"), handler).await;
    let large = Bytes::from(vec![5; SMALL_BODY + 1]);
    for chunk in [
        Bytes::from_static(b"one"),
        large,
        Bytes::from_static(b"three"),
    ] {
        sender.send(chunk.clone()).await.unwrap();
        let mut got = BytesMut::new();
        while got.len() < chunk.len() {
            got.extend_from_slice(&stream.frame().await.unwrap().1);
        }
        assert_eq!(got, chunk);
    }
    sender.finish().await.unwrap();
    assert!(stream.status().await.is_ok());
    assert_eq!(code(served, &far).await, Code::Ok);
}

/// Tells when it is dropped.
struct TellDrop(Option<oneshot::Sender<()>>);

impl Drop for TellDrop {
    fn drop(&mut self) {
        let _ = self.0.take().map(|tell| tell.send(()));
    }
}

/// A handler that never answers, and what resolves when its future is dropped.
fn hanging() -> (impl Handler, oneshot::Receiver<()>) {
    let (tell, dropped) = oneshot::channel();
    let guard = Mutex::new(Some(TellDrop(Some(tell))));
    let handler = move |_: Request| {
        let guard = guard.lock().unwrap().take();
        async move {
            let _guard = guard;
            std::future::pending().await
        }
    };
    (handler, dropped)
}

#[tokio::test(start_paused = true)]
async fn a_deadline_drops_the_handler_and_says_so() {
    let (handler, dropped) = hanging();
    let left = Duration::from_millis(1500);
    let begun = Instant::now();
    let (mut stream, served, far) =
        serve_one(RequestKind::Call, with_deadline(left), handler).await;
    assert_eq!(stream.status().await, deadline_exceeded());
    assert_eq!(begun.elapsed(), left);
    dropped.await.unwrap();
    assert_eq!(code(served, &far).await, Code::DeadlineExceeded);
}

#[tokio::test(start_paused = true)]
async fn a_deadline_ends_an_answer_that_is_being_made() {
    let (sender, body) = Body::channel(1);
    let body = Mutex::new(Some(body));
    let handler = move |_: Request| {
        let body = body.lock().unwrap().take().unwrap();
        async move { Ok(Response::new(body)) }
    };
    let header = with_deadline(Duration::from_secs(2));
    let (mut stream, _served, _far) = serve_one(RequestKind::Call, header, handler).await;
    sender.send("begun").await.unwrap();
    assert_eq!(stream.answer().await, ("begun".into(), deadline_exceeded()));
    sender.closed().await;
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_nobody_reads_is_reset_at_its_deadline() {
    // More than all windows and queues on the way hold.
    let handler = |_: Request| async { Ok(Response::new(vec![1; 8 << 20])) };
    let begun = Instant::now();
    let left = Duration::from_secs(2);
    let (mut stream, served, far) =
        serve_one(RequestKind::Call, with_deadline(left), handler).await;
    tokio::time::sleep(left).await;
    let read = async {
        while stream.reader.next().await?.is_some() {}
        Ok(())
    };
    let status: Status = read.await.unwrap_err();
    assert_eq!(status, deadline_exceeded());
    assert_eq!(begun.elapsed(), left);
    assert_eq!(code(served, &far).await, Code::DeadlineExceeded);
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_gives_up_drops_the_handler_and_its_code_says_nothing_of_the_agent() {
    let (handler, dropped) = hanging();
    let (mut stream, served, far) = serve_one(RequestKind::Call, to("x"), handler).await;
    stream.reader.stop(Code::Internal);
    dropped.await.unwrap();
    assert_eq!(code(served, &far).await, Code::Cancelled);

    // Also while the answer is being made.
    let (sender, body) = Body::channel(1);
    let body = Mutex::new(Some(body));
    let handler = move |_: Request| {
        let body = body.lock().unwrap().take().unwrap();
        async move { Ok(Response::new(body)) }
    };
    let (mut stream, served, far) = serve_one(RequestKind::Call, to("x"), handler).await;
    sender.send("begun").await.unwrap();
    assert_eq!(stream.frame().await.unwrap().1, "begun");
    stream.reader.stop(Code::Internal);
    sender.closed().await;
    assert_eq!(code(served, &far).await, Code::Cancelled);
}

#[tokio::test(start_paused = true)]
async fn a_refused_opener_has_a_second_to_end_its_body() {
    let refused = Status::new(Code::NotFound, "nobody of that name");
    for ends_itself in [true, false] {
        let (far, near) = connected();
        let peer = RawPeer(far);
        let mut stream = peer.open(frames(&[(FrameKind::CALL, b"")])).await;
        let (send, recv) = near.accept().await.unwrap();
        let begun = Instant::now();
        let reader = Box::new(FrameReader::new(recv));
        let refusing = tokio::spawn({
            let refused = refused.clone();
            async move { refuse(send, reader, &refused).await }
        });
        assert_eq!(stream.status().await, refused);
        stream.write(&[(FrameKind::DATA, b"still writing")]).await;
        if ends_itself {
            stream.send.finish();
        }
        refusing.await.unwrap();
        let lingered = match ends_itself {
            true => Duration::ZERO,
            false => Duration::from_secs(1),
        };
        assert_eq!(begun.elapsed(), lingered);
        let stopped = (!ends_itself).then_some(Code::Ok);
        assert_eq!(stream.send.stopped().await, stopped);
    }
}
