//! Two streams that are joined into one, with caller and callee played by hand.

use hailwire_wire::limits::{MUX_SEND_FLOOR, MUX_SEND_QUEUE};

use super::*;
use crate::carrier::budget::MemoryBudget;

/// A relayed call whose caller has sent its header, and what of its body came with that.
struct RelayedCall {
    caller: ScriptedStream,
    callee: ScriptedStream,
    /// How it ended for the relay.
    code: tokio::task::JoinHandle<Code>,
    _connections: [CarrierConnection; 4],
}

impl RelayedCall {
    async fn new(
        body: &[u8],
        payer: Option<Arc<PeerAccount>>,
        deadline: Option<Instant>,
        moved: Arc<AtomicU64>,
    ) -> Self {
        let ((from, near), (onward, at)) = (connected(), connected());
        let opening = frames(&[(FrameKind::CALL, b"head")]);
        let mut ahead = BytesMut::from(&opening[..]);
        ahead.extend_from_slice(body);
        let caller = RawPeer(from.clone()).open(ahead.freeze()).await;
        let (send, recv) = near.accept().await.unwrap();
        let mut reader = Box::new(FrameReader::new(recv));
        assert_eq!(reader.next_frame().await.unwrap().unwrap().1, "head");
        let (mut callee_send, callee_recv) = onward.open(Priority::Medium).await.unwrap();
        callee_send.write(opening).await.unwrap();
        let (send_back, recv_there) = at.accept().await.unwrap();
        let mut callee = ScriptedStream::new(send_back, recv_there);
        assert_eq!(callee.frame().await.unwrap().1, "head");
        let code = tokio::spawn(async move {
            let moved = || {
                moved.fetch_add(1, Ordering::Relaxed);
            };
            let callee = (callee_send, callee_recv);
            splice((send, reader), callee, payer.as_ref(), deadline, &moved).await
        });
        Self {
            caller,
            callee,
            code,
            _connections: [from, near, onward, at],
        }
    }

    async fn plain() -> Self {
        Self::new(b"", None, None, Arc::default()).await
    }
}

#[tokio::test(start_paused = true)]
async fn a_spliced_call_passes_every_byte_both_ways_and_each_way_ends_by_itself() {
    let moved = Arc::new(AtomicU64::new(0));
    // A part of the body came with the header, cut in the middle of a frame.
    let body = frames(&[(FrameKind::DATA, b"question")]);
    let call = RelayedCall::new(&body[..7], None, None, moved.clone());
    let RelayedCall {
        mut caller,
        mut callee,
        code,
        _connections,
    } = call.await;
    assert_eq!(callee.frame().await.unwrap().1, "que");
    caller.send.write(body.slice(7..)).await.unwrap();
    assert_eq!(callee.frame().await.unwrap().1, "stion");
    // The answer begins before the body has ended, in frames that the relay does not know.
    callee
        .write(&[(FrameKind(0x7f), b"?"), (FrameKind::DATA, b"answer")])
        .await;
    assert_eq!(caller.frame().await.unwrap().1, "answer");
    caller.send.finish();
    assert_eq!(callee.frame().await, None);
    callee.write(&[(FrameKind::END, b"")]).await;
    callee.send.finish();
    assert!(caller.status().await.is_ok());
    assert_eq!(caller.frame().await, None);
    assert_eq!(code.await.unwrap(), Code::Ok);
    assert_eq!(moved.load(Ordering::Relaxed), 4);
}

#[tokio::test(start_paused = true)]
async fn a_callee_that_resets_before_it_answers_is_told_in_words() {
    let away = Status::new(
        Code::Unavailable,
        "the agent or its node went away before it answered",
    )
    .with_hint("call it again; `hail status` shows which agents and tunnels are up");
    for (reset, told) in [
        (Code::Unavailable, away),
        (Code::DeadlineExceeded, deadline_exceeded()),
        (
            Code::DataLoss,
            Status::new(Code::DataLoss, "the far side reset the call"),
        ),
    ] {
        let mut call = RelayedCall::plain().await;
        call.callee.send.reset(reset);
        assert_eq!(call.caller.status().await, told);
        assert_eq!(call.code.await.unwrap(), reset);
    }
    // A cancel needs no words.
    let mut call = RelayedCall::plain().await;
    call.callee.send.reset(Code::Cancelled);
    assert_eq!(call.caller.reset().await, Code::Cancelled);
    assert_eq!(call.code.await.unwrap(), Code::Cancelled);
}

#[tokio::test(start_paused = true)]
async fn a_callee_that_resets_in_mid_answer_resets_it() {
    let mut call = RelayedCall::plain().await;
    call.callee.write(&[(FrameKind::DATA, b"half")]).await;
    assert_eq!(call.caller.frame().await.unwrap().1, "half");
    call.callee.send.reset(Code::DataLoss);
    assert_eq!(call.caller.reset().await, Code::DataLoss);
    assert_eq!(call.code.await.unwrap(), Code::DataLoss);
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_ends_the_call_is_no_fault_of_the_callee() {
    // It wants no answer: the callee is stopped with its code.
    let mut call = RelayedCall::plain().await;
    call.caller.reader.stop(Code::Internal);
    assert_eq!(call.callee.send.stopped().await, Some(Code::Internal));
    assert_eq!(call.code.await.unwrap(), Code::Cancelled);

    // It breaks off its body: the callee sees that, and what it makes of it is the caller's doing.
    let mut call = RelayedCall::plain().await;
    call.caller.send.reset(Code::DataLoss);
    let body = call.callee.reader.next().await.unwrap_err();
    assert_eq!(body.code, Code::DataLoss);
    call.callee.send.reset(Code::Internal);
    let told = call.caller.status().await;
    assert_eq!(told.code, Code::Internal);
    assert_eq!(call.code.await.unwrap(), Code::Cancelled);
}

#[tokio::test(start_paused = true)]
async fn a_callee_that_wants_no_more_of_the_body_stops_it_and_answers() {
    let mut call = RelayedCall::plain().await;
    call.callee.reader.stop(Code::OutOfRange);
    assert_eq!(call.caller.send.stopped().await, Some(Code::OutOfRange));
    call.callee.write(&[(FrameKind::END, b"")]).await;
    call.callee.send.finish();
    assert!(call.caller.status().await.is_ok());
    assert_eq!(call.code.await.unwrap(), Code::Ok);
}

#[tokio::test(start_paused = true)]
async fn a_deadline_ends_a_spliced_call_on_both_sides() {
    let left = Duration::from_secs(4);
    let at = Instant::now() + left;
    let mut call = RelayedCall::new(b"", None, Some(at), Arc::default()).await;
    assert_eq!(call.caller.status().await, deadline_exceeded());
    assert_eq!(Instant::now(), at);
    let stopped = call.callee.send.stopped().await;
    assert_eq!(stopped, Some(Code::DeadlineExceeded));
    assert_eq!(call.code.await.unwrap(), Code::DeadlineExceeded);

    // In the middle of an answer nothing can be said.
    let at = Instant::now() + left;
    let mut call = RelayedCall::new(b"", None, Some(at), Arc::default()).await;
    call.callee.write(&[(FrameKind::DATA, b"half")]).await;
    assert_eq!(call.caller.frame().await.unwrap().1, "half");
    assert_eq!(call.caller.reset().await, Code::DeadlineExceeded);
}

#[tokio::test(start_paused = true)]
async fn a_callee_whose_connection_is_lost_is_unavailable_and_a_lost_caller_is_a_cancel() {
    let mut call = RelayedCall::plain().await;
    call._connections[3].close(Code::Internal, "it fell over");
    assert_eq!(call.caller.status().await.code, Code::Unavailable);
    assert_eq!(call.code.await.unwrap(), Code::Unavailable);

    let call = RelayedCall::plain().await;
    call._connections[0].close(Code::Internal, "it fell over");
    assert_eq!(call.code.await.unwrap(), Code::Cancelled);
    assert!(call.callee.send.stopped().await.is_some());
}

#[tokio::test(start_paused = true)]
async fn a_body_that_waits_is_charged_to_its_sender_until_the_call_ends() {
    // More than the callee's window, the relay's queue and the carrier's pipe take together.
    let body = Bytes::from(vec![3; 1 << 20]);
    for (room, most) in [(MUX_SEND_QUEUE, MUX_SEND_QUEUE), (0, 0)] {
        let account = PeerAccount::untrusted(Arc::new(MemoryBudget::new(0)));
        let spare = crate::carrier::budget::UNTRUSTED - room;
        let _taken = account.hold(spare).unwrap();
        let payer = Some(account.clone());
        let mut call = RelayedCall::new(b"", payer, None, Arc::default()).await;
        let mut send = call.caller.send;
        let body = body.clone();
        let writing = tokio::spawn(async move {
            let head = Bytes::copy_from_slice(&frame::prefix(FrameKind::DATA, body.len()));
            send.write_many(&mut [head, body]).await.unwrap();
            send.finish();
        });
        // Nobody reads: it fills what there is.
        for _ in 0..1000 {
            tokio::task::yield_now().await;
        }
        let charged = account.used() - spare;
        assert!(charged <= most, "{charged}");
        assert_eq!(charged > MUX_SEND_FLOOR, room > 0, "{charged}");
        let mut left = 1 << 20;
        while left > 0 {
            left -= call.callee.frame().await.unwrap().1.len();
        }
        assert_eq!(call.callee.frame().await, None);
        writing.await.unwrap();
        call.callee.write(&[(FrameKind::END, b"")]).await;
        call.callee.send.finish();
        assert_eq!(call.code.await.unwrap(), Code::Ok);
        assert_eq!(account.used(), spare);
    }
}
