//! What a user of the multiplexer relies on.

use super::*;
use crate::limits::{MAX_DATAGRAM, MUX_MAX_DATA, MUX_MAX_DATAGRAMS, MUX_MAX_STREAMS};
use crate::status::Code;

fn events(mux: &mut Mux) -> Vec<MuxEvent> {
    std::iter::from_fn(|| mux.poll_event()).collect()
}

/// The frames in `bytes`, which start behind the preface.
fn frames(mut bytes: Bytes) -> Vec<MuxFrame> {
    let mut decoder = MuxDecoder::default();
    let mut frames = Vec::new();
    let mut current: Option<(FrameHeader, BytesMut)> = None;
    while let Some(item) = decoder.next_item(&mut bytes).unwrap() {
        match item {
            DecodedItem::Frame(frame) => frames.push(frame),
            DecodedItem::Data(header) => current = Some((header, BytesMut::new())),
            DecodedItem::Part(part) => current.as_mut().unwrap().1.extend_from_slice(&part),
            DecodedItem::DataEnd => {
                let (header, body) = current.take().unwrap();
                frames.extend(MuxFrame::decode(header, body.freeze()).unwrap());
            }
        }
    }
    frames
}

/// A pair that has exchanged prefaces.
fn greeted() -> (Mux, Mux) {
    let (mut a, mut b) = sides();
    exchange(&mut a, &mut b);
    (a, b)
}

#[test]
fn a_question_and_its_answer_cross_and_nothing_is_left() {
    let (mut a, mut b) = greeted();
    let near = opened(&mut a, Priority::High);
    write(&mut a, near, b"question");
    a.finish(near);
    exchange(&mut a, &mut b);
    let far = accepted(&mut b);
    assert_eq!(b.priority(far), Some(Priority::High));
    assert_eq!(read(&mut b, far), b"question");
    assert_eq!(b.read(far, 1), Poll::Ready(Ok(None)));
    write(&mut b, far, b"answer");
    b.finish(far);
    exchange(&mut a, &mut b);
    assert_eq!(read(&mut a, near), b"answer");
    assert_eq!(a.read(near, 1), Poll::Ready(Ok(None)));
    for (mux, key) in [(&mut a, near), (&mut b, far)] {
        assert_eq!(
            mux.live_streams(),
            1,
            "held until both halves are given back"
        );
        mux.drop_send(key);
        mux.drop_recv(key);
        assert_eq!(mux.live_streams(), 0);
        assert!(!mux.has_output());
    }
}

#[test]
fn a_stream_given_up_before_its_first_frame_never_was() {
    let (mut a, _) = greeted();
    let key = opened(&mut a, Priority::Low);
    write(&mut a, key, b"never sent");
    a.drop_send(key);
    a.drop_recv(key);
    assert_eq!(output(&mut a), "");
    assert_eq!(a.live_streams(), 0);
}

#[test]
fn ids_follow_the_order_of_first_frames_not_of_opening() {
    let (mut a, mut b) = greeted();
    let low = opened(&mut a, Priority::Low);
    let critical = opened(&mut a, Priority::Critical);
    write(&mut a, low, b"low");
    write(&mut a, critical, b"critical");
    exchange(&mut a, &mut b);
    for expected in [&b"critical"[..], b"low"] {
        let key = accepted(&mut b);
        assert_eq!(read(&mut b, key), expected);
    }
}

#[test]
fn the_most_urgent_goes_first_and_equals_take_turns() {
    let (mut a, _) = greeted();
    let bodies = vec![0; 2 * MUX_MAX_DATA];
    let mut keys = Vec::new();
    for priority in [
        Priority::Low,
        Priority::High,
        Priority::High,
        Priority::Critical,
    ] {
        let key = opened(&mut a, priority);
        a.streams.find(key).unwrap().send.credit = u64::MAX;
        write(&mut a, key, &bodies);
        keys.push(key);
    }
    let order: Vec<u64> = frames(output(&mut a))
        .into_iter()
        .map(|frame| match frame {
            MuxFrame::Data { stream, body, .. } if body.len() == MUX_MAX_DATA => stream,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(order, [1, 1, 3, 5, 3, 5, 7, 7]);
}

#[test]
fn what_becomes_urgent_waits_for_one_output_only() {
    let (mut a, _) = greeted();
    for _ in 0..100 {
        let key = opened(&mut a, Priority::Low);
        write(&mut a, key, &[0; 16 * 1024]);
    }
    let mut out = MuxOutput::new();
    a.poll_output(&mut out);
    assert!(
        out.len() < 160 * 1024,
        "{} bytes cannot be overtaken",
        out.len()
    );
    let key = opened(&mut a, Priority::Critical);
    write(&mut a, key, b"now");
    let mut out = MuxOutput::new();
    a.poll_output(&mut out);
    let first = frames(out.copy_to_bytes(HEADER + 3)).remove(0);
    assert!(matches!(first, MuxFrame::Data { body, .. } if body == "now"));
}

#[test]
fn the_pieces_of_a_message_share_a_frame() {
    let (mut a, _) = greeted();
    let key = opened(&mut a, Priority::Medium);
    for piece in [&b"head"[..], b"", b"body"] {
        write(&mut a, key, piece);
    }
    a.finish(key);
    let MuxFrame::Data {
        fin: true, body, ..
    } = frames(output(&mut a)).remove(0)
    else {
        panic!()
    };
    assert_eq!(body, "headbody");
}

#[test]
fn a_large_body_is_not_copied_on_its_way_out_or_in() {
    let (mut a, mut b) = greeted();
    let body = Bytes::from(vec![7; MUX_MAX_DATA]);
    for _ in 0..3 {
        let key = opened(&mut a, Priority::Medium);
        assert!(a.write(key, &mut body.clone()).is_ready());
    }
    let mut out = MuxOutput::new();
    a.poll_output(&mut out);
    assert!(out.chunks().any(|chunk| chunk.as_ptr() == body.as_ptr()));
    let len = out.remaining();
    let wire = out.copy_to_bytes(len);
    b.handle_input(wire.clone()).unwrap();
    let far = accepted(&mut b);
    let Poll::Ready(Ok(Some(chunk))) = b.read(far, usize::MAX) else {
        panic!()
    };
    assert_eq!(chunk.as_ptr(), wire[HEADER..].as_ptr());
}

#[test]
fn reset_and_stop_carry_their_codes_and_drop_what_is_queued() {
    let (mut a, mut b) = greeted();
    let near = opened(&mut a, Priority::Medium);
    write(&mut a, near, &[0; 1000]);
    exchange(&mut a, &mut b);
    let far = accepted(&mut b);
    write(&mut b, far, &[0; 1000]);
    a.reset(near, Code::DataLoss);
    a.stop(near, Code::OutOfRange);
    exchange(&mut a, &mut b);
    assert_eq!(
        b.read(far, 9),
        Poll::Ready(Err(MuxReadError::Reset(Code::DataLoss)))
    );
    assert_eq!(b.unread(), 0);
    assert_eq!(b.stopped(far), Poll::Ready(Some(Code::OutOfRange)));
    let mut chunk = Bytes::from_static(b"x");
    let stopped = Err(MuxWriteError::Stopped(Code::OutOfRange));
    assert_eq!(b.write(far, &mut chunk), Poll::Ready(stopped));
    assert_eq!(
        a.write(near, &mut chunk),
        Poll::Ready(Err(MuxWriteError::Ended))
    );
    assert_eq!(a.read(near, 1), Poll::Ready(Err(MuxReadError::Stopped)));
}

#[test]
fn whoever_waits_is_told_once() {
    let (mut a, mut b) = greeted();
    assert!(b.accept().is_pending());
    let near = opened(&mut a, Priority::Medium);
    assert!(a.read(near, 1).is_pending());
    assert!(a.stopped(near).is_pending());
    write(&mut a, near, b"x");
    exchange(&mut a, &mut b);
    assert_eq!(events(&mut b), [MuxEvent::Incoming]);
    let far = accepted(&mut b);
    write(&mut b, far, b"x");
    exchange(&mut a, &mut b);
    write(&mut b, far, b"y");
    exchange(&mut a, &mut b);
    assert_eq!(events(&mut a), [MuxEvent::Readable(near)]);
    a.finish(near);
    exchange(&mut a, &mut b);
    assert_eq!(events(&mut a), [MuxEvent::SendEnded(near)]);
    assert_eq!(a.stopped(near), Poll::Ready(None));
    assert_eq!(events(&mut b), []);
}

#[test]
fn opening_waits_at_the_limit_until_the_acceptor_has_freed_one() {
    let (mut a, mut b) = greeted();
    let keys: Vec<_> = (0..MUX_MAX_STREAMS)
        .map(|_| {
            let key = opened(&mut a, Priority::Medium);
            write(&mut a, key, b"x");
            a.finish(key);
            key
        })
        .collect();
    assert!(a.open(Priority::Medium).is_pending());
    exchange(&mut a, &mut b);
    let far = accepted(&mut b);
    b.finish(far);
    exchange(&mut a, &mut b);
    a.drop_send(keys[0]);
    a.drop_recv(keys[0]);
    assert!(
        a.open(Priority::Medium).is_pending(),
        "the acceptor still holds what it accepted"
    );
    b.drop_send(far);
    b.drop_recv(far);
    exchange(&mut a, &mut b);
    assert!(events(&mut a).contains(&MuxEvent::OpenAllowed));
    opened(&mut a, Priority::Medium);
    assert!(a.open(Priority::Medium).is_pending());
}

#[test]
fn datagrams_cross_and_the_oldest_gives_way() {
    let (mut a, mut b) = greeted();
    assert!(!a.send_datagram(Bytes::from(vec![0; MAX_DATAGRAM + 1])));
    for index in 0..2 * MUX_MAX_DATAGRAMS {
        assert!(a.send_datagram(Bytes::copy_from_slice(&[index as u8])));
    }
    exchange(&mut a, &mut b);
    for index in MUX_MAX_DATAGRAMS..2 * MUX_MAX_DATAGRAMS {
        assert_eq!(
            b.datagram(),
            Poll::Ready(Ok(Bytes::copy_from_slice(&[index as u8])))
        );
    }
    assert!(b.datagram().is_pending());
    assert!(a.send_datagram(Bytes::new()));
    exchange(&mut a, &mut b);
    assert_eq!(events(&mut b), [MuxEvent::Datagram]);
}

#[test]
fn a_ping_is_answered_with_its_payload() {
    let (mut a, mut b) = greeted();
    assert!(a.ping(*b"12345678"));
    exchange(&mut a, &mut b);
    assert_eq!(events(&mut a), [MuxEvent::Pong(*b"12345678")]);
}

#[test]
fn a_close_tells_code_and_reason_and_leaves_what_had_arrived_readable() {
    let (mut a, mut b) = greeted();
    let near = opened(&mut a, Priority::Medium);
    write(&mut a, near, b"last words");
    a.finish(near);
    exchange(&mut a, &mut b);
    let far = accepted(&mut b);
    a.close(Code::Unavailable, "going to sleep");
    exchange(&mut a, &mut b);
    let why = ConnectionEnd::ByPeer {
        code: Code::Unavailable,
        reason: "going to sleep".into(),
    };
    assert_eq!(b.ended(), Some(&why));
    assert_eq!(read(&mut b, far), b"last words");
    assert_eq!(b.read(far, 1), Poll::Ready(Ok(None)));
    assert_eq!(b.accept(), Poll::Ready(Err(why)));
    assert_eq!(a.ended(), Some(&ConnectionEnd::Here));
    assert!(!a.has_output() && !b.has_output());
    for (mux, key) in [(&mut a, near), (&mut b, far)] {
        mux.drop_send(key);
        mux.drop_recv(key);
        assert_eq!(mux.live_streams(), 0);
    }
}

#[test]
fn a_frame_of_a_kind_from_the_future_is_skipped() {
    let mut server = greeted_server();
    let unknown = FrameHeader {
        kind: MuxFrameKind(0x7f),
        flags: 0xff,
        len: 5,
        stream: u64::MAX,
    };
    let mut bytes = BytesMut::from(&unknown.encode()[..]);
    bytes.extend_from_slice(b"-----");
    bytes.extend_from_slice(&encoded(&[data(1, b"x", true)]));
    server.handle_input(bytes.freeze()).unwrap();
    let key = accepted(&mut server);
    assert_eq!(read(&mut server, key), b"x");
}
