//! Every bound is reached, and holds.

use super::*;
use crate::limits::{
    MUX_INITIAL_WINDOW, MUX_MAX_DATA, MUX_MAX_PINGS, MUX_MAX_REASON, MUX_MAX_STREAMS,
    MUX_RECEIVE_POOL, MUX_SEND_FLOOR, MUX_SEND_QUEUE, MUX_STREAM_WINDOW,
};
use crate::mux::{READ_BUFFER, input::MAX_PINNED};
use crate::status::Code;

const WINDOW: usize = MUX_INITIAL_WINDOW as usize;

#[test]
fn a_peer_that_fills_every_window_of_every_stream_reaches_the_stated_bound_and_no_more() {
    let (mut a, mut b) = sides();
    let mut keys = Vec::new();
    for _ in 0..MUX_MAX_STREAMS {
        let key = opened(&mut a, Priority::Medium);
        assert_eq!(write(&mut a, key, &[0; WINDOW + 1]), WINDOW + 1);
        keys.push(key);
    }
    exchange(&mut a, &mut b);
    assert_eq!(
        b.unread(),
        MUX_MAX_STREAMS * WINDOW,
        "nobody reads, so nobody gets more"
    );
    // Each is still served when its reader wakes up.
    let last = std::iter::from_fn(|| match b.accept() {
        Poll::Ready(Ok(key)) => Some(key),
        _ => None,
    })
    .last()
    .unwrap();
    assert_eq!(read(&mut b, last).len(), WINDOW);
    exchange(&mut a, &mut b);
    assert_eq!(read(&mut b, last).len(), 1);
}

#[test]
fn windows_grow_while_their_readers_read_and_share_the_pool() {
    const STREAMS: usize = 100;
    let (mut a, mut b) = sides();
    let fill = |mux: &mut Mux, keys: &[StreamKey]| {
        for key in keys {
            write(mux, *key, &vec![0; MUX_SEND_QUEUE]);
        }
    };
    let near: Vec<_> = (0..STREAMS)
        .map(|_| opened(&mut a, Priority::Medium))
        .collect();
    fill(&mut a, &near);
    exchange(&mut a, &mut b);
    let far: Vec<_> = near.iter().map(|_| accepted(&mut b)).collect();
    for (alone, rounds) in [(true, 8), (false, 8)] {
        let reading = if alone { &far[..1] } else { &far[..] };
        for _ in 0..rounds {
            for key in reading {
                read(&mut b, *key);
            }
            exchange(&mut a, &mut b);
            fill(&mut a, &near);
            exchange(&mut a, &mut b);
            assert!(b.budget.used() <= MUX_RECEIVE_POOL);
            assert!(b.unread() <= STREAMS * WINDOW + MUX_RECEIVE_POOL);
        }
        let windows: Vec<_> = reading
            .iter()
            .map(|key| b.streams.find(*key).unwrap().recv.window)
            .collect();
        if alone {
            assert_eq!(
                windows,
                [MUX_STREAM_WINDOW as usize],
                "one reader alone gets all"
            );
        } else {
            let part = WINDOW + MUX_RECEIVE_POOL / STREAMS;
            assert!(
                windows.iter().all(|w| (WINDOW..=part + WINDOW).contains(w)),
                "{windows:?}"
            );
        }
    }
}

#[test]
fn readers_that_fill_the_pool_and_stop_leave_the_initial_window_to_others() {
    let (mut a, mut b) = sides();
    let block = vec![0; MUX_SEND_QUEUE];
    let mut slow = Vec::new();
    // Each grows to the largest window, one after another, and then reads no more.
    for _ in 0..64 {
        let near = opened(&mut a, Priority::Medium);
        write(&mut a, near, &block);
        exchange(&mut a, &mut b);
        let far = accepted(&mut b);
        for _ in 0..4 {
            read(&mut b, far);
            exchange(&mut a, &mut b);
            write(&mut a, near, &block);
            exchange(&mut a, &mut b);
        }
        slow.push((near, far));
    }
    assert!(b.budget.used() <= MUX_RECEIVE_POOL);
    assert!(b.budget.used() > MUX_RECEIVE_POOL / 2, "the pool is in use");
    assert!(b.unread() <= 64 * WINDOW + MUX_RECEIVE_POOL);
    let near = opened(&mut a, Priority::Low);
    let (mut sent, mut seen, mut far) = (0, 0, None);
    while seen < 4 * block.len() {
        if sent < 4 * block.len() {
            sent += write(&mut a, near, &block);
        }
        exchange(&mut a, &mut b);
        let far = *far.get_or_insert_with(|| accepted(&mut b));
        let got = read(&mut b, far).len();
        assert!(got > 0, "stuck at {seen} bytes");
        seen += got;
    }
    // And the pool comes back when they are gone.
    for (near_key, far_key) in slow {
        a.drop_send(near_key);
        a.drop_recv(near_key);
        b.drop_send(far_key);
        b.drop_recv(far_key);
    }
    exchange(&mut a, &mut b);
    assert!(b.budget.used() <= MUX_STREAM_WINDOW as usize);
}

#[test]
fn a_writer_waits_once_its_queue_is_full() {
    let (mut a, _) = sides();
    let key = opened(&mut a, Priority::Medium);
    assert_eq!(
        write(&mut a, key, &vec![0; 3 * MUX_SEND_QUEUE]),
        MUX_SEND_QUEUE
    );
    assert_eq!(write(&mut a, key, b"x"), 0);
}

#[test]
fn a_stream_may_be_given_a_shorter_queue_and_small_writes_lie_together_in_it() {
    let (mut a, _) = sides();
    let key = opened(&mut a, Priority::Medium);
    a.set_send_queue(key, 0);
    assert_eq!(write(&mut a, key, &[0; 1]), 1);
    for _ in 1..2 * MUX_SEND_FLOOR {
        write(&mut a, key, &[0; 1]);
    }
    assert_eq!(
        (a.queued_on(key), a.queued()),
        (MUX_SEND_FLOOR, MUX_SEND_FLOOR)
    );
    let handles = a.streams.find(key).unwrap().send.queue.handles();
    assert!(handles < 20, "{handles}");
    a.set_send_queue(key, usize::MAX);
    let rest = MUX_SEND_QUEUE - MUX_SEND_FLOOR;
    assert_eq!(write(&mut a, key, &vec![0; 2 * MUX_SEND_QUEUE]), rest);
    // What waits already is not taken away.
    a.set_send_queue(key, 2 * MUX_SEND_FLOOR);
    assert_eq!(write(&mut a, key, b"x"), 0);
}

#[test]
fn streams_whose_peer_has_little_room_queue_a_few_words_each_and_no_stream_is_given_out_meanwhile()
{
    let (mut a, mut b) = sides();
    b.set_receive_limits(ReceiveLimits {
        queued: MUX_SEND_QUEUE,
        ..ReceiveLimits::default()
    });
    let mut keys = Vec::new();
    for _ in 0..3 {
        let key = opened(&mut a, Priority::Medium);
        write(&mut a, key, b"ask");
        exchange(&mut a, &mut b);
        keys.push(accepted(&mut b));
    }
    // One fills the room of all; the others still have their few words.
    assert_eq!(
        write(&mut b, keys[0], &vec![0; 2 * MUX_SEND_QUEUE]),
        MUX_SEND_QUEUE
    );
    let answer = vec![0; MUX_SEND_QUEUE];
    assert_eq!(write(&mut b, keys[1], &answer), MUX_SEND_FLOOR);
    assert_eq!(write(&mut b, keys[2], &answer), MUX_SEND_FLOOR);
    assert_eq!(write(&mut b, keys[2], b"x"), 0);
    assert_eq!(b.queued(), MUX_SEND_QUEUE + 2 * MUX_SEND_FLOOR);
    let key = opened(&mut a, Priority::Medium);
    write(&mut a, key, b"ask");
    b.handle_input(output(&mut a)).unwrap();
    assert!(b.accept().is_pending());
    // What is given up makes room again.
    while b.poll_event().is_some() {}
    b.reset(keys[0], Code::Cancelled);
    assert!(std::iter::from_fn(|| b.poll_event()).any(|event| event == MuxEvent::Incoming));
    accepted(&mut b);
    assert_eq!(b.queued(), 2 * MUX_SEND_FLOOR);
    exchange(&mut a, &mut b);
    assert_eq!(b.queued(), 0);
}

#[test]
fn small_frames_do_not_pin_the_buffer_they_came_in() {
    let mut server = greeted_server();
    let many: Vec<_> = (0..1000).map(|_| data(1, b"x", false)).collect();
    let buffer = encoded(&many);
    server.handle_input(buffer.clone()).unwrap();
    assert_eq!(server.unread(), 1000);
    assert!(buffer.is_unique());
}

#[test]
fn large_chunks_are_pinned_as_far_as_there_is_room_and_small_ones_never() {
    let mut server = greeted_server();
    server.set_receive_limits(ReceiveLimits {
        unread: 0,
        ..ReceiveLimits::default()
    });
    let mut streams = (1..).step_by(2);
    let mut full = || data(streams.next().unwrap(), &[0; WINDOW], false);
    let small = encoded(&[full()]);
    server.handle_input(small.clone()).unwrap();
    assert!(small.is_unique());
    let (most, key) = (MAX_PINNED / READ_BUFFER, accepted(&mut server));
    read(&mut server, key);
    let mut keys = Vec::new();
    let mut chunk = || encoded(&[full(), full(), full()]);
    for turn in 0..most {
        let pinned = chunk();
        server.handle_input(pinned.clone()).unwrap();
        assert!(!pinned.is_unique(), "{turn}");
        keys.push([(); 3].map(|()| accepted(&mut server)));
    }
    let copied = chunk();
    server.handle_input(copied.clone()).unwrap();
    assert!(copied.is_unique());
    // What was read and is kept is pinned all the same; what was dropped is not.
    let [first, second, third] = keys[0];
    let kept = server.read(first, WINDOW);
    read(&mut server, second);
    read(&mut server, third);
    let copied = chunk();
    server.handle_input(copied.clone()).unwrap();
    assert!(copied.is_unique());
    drop(kept);
    let pinned = chunk();
    server.handle_input(pinned.clone()).unwrap();
    assert!(!pinned.is_unique());
}

#[test]
fn pings_that_cannot_be_answered_are_forgotten() {
    let mut server = greeted_server();
    output(&mut server);
    for _ in 0..1000 {
        server
            .handle_input(encoded(&[MuxFrame::Ping([0; 8]), MuxFrame::Pong([0; 8])]))
            .unwrap();
    }
    assert_eq!(server.poll_event(), None, "answers to no question");
    assert!(output(&mut server).len() <= 2 * MUX_MAX_PINGS * (HEADER + 8));
    assert_eq!(
        (0..100).filter(|_| server.ping([0; 8])).count(),
        MUX_MAX_PINGS
    );
}

#[test]
fn a_long_reason_is_cut() {
    let (mut a, mut b) = sides();
    a.close(Code::Internal, &"é".repeat(MUX_MAX_REASON));
    exchange(&mut a, &mut b);
    let Some(ConnectionEnd::ByPeer { reason, .. }) = b.ended() else {
        panic!()
    };
    assert_eq!(*reason, "é".repeat(MUX_MAX_REASON / 2));
}

#[test]
fn a_burst_gives_its_memory_back() {
    let (mut a, mut b) = sides();
    for round in 0..3 {
        let near: Vec<_> = (0..2000)
            .map(|_| opened(&mut a, Priority::Medium))
            .collect();
        for key in &near {
            write(&mut a, *key, &[round; 100]);
            a.finish(*key);
        }
        exchange(&mut a, &mut b);
        for _ in &near {
            let far = accepted(&mut b);
            assert_eq!(read(&mut b, far).len(), 100);
            b.finish(far);
            b.drop_send(far);
            b.drop_recv(far);
        }
        exchange(&mut a, &mut b);
        for key in near {
            a.drop_send(key);
            a.drop_recv(key);
        }
    }
    exchange(&mut a, &mut b);
    for mux in [&mut a, &mut b] {
        while mux.poll_event().is_some() {}
        let queues = mux.ready.iter().chain([&mux.control, &mux.incoming]);
        let kept: usize = queues.map(|queue| queue.capacity()).sum();
        assert_eq!((mux.live_streams(), mux.by_id.capacity()), (0, 0));
        assert!(kept <= 6 * 256, "{kept} places kept");
    }
    assert!(
        std::mem::size_of::<Mux>() <= 1024,
        "{}",
        std::mem::size_of::<Mux>()
    );
}

#[test]
fn a_peer_with_little_room_has_few_streams_accepted_and_little_read_until_it_gets_more() {
    let (mut a, mut b) = sides();
    b.set_receive_limits(ReceiveLimits {
        streams: 2,
        unread: WINDOW,
        ..ReceiveLimits::default()
    });
    for _ in 0..4 {
        let key = opened(&mut a, Priority::Medium);
        write(&mut a, key, &[0; WINDOW]);
    }
    assert!(b.wants_input());
    exchange(&mut a, &mut b);
    assert!(!b.wants_input(), "{} bytes are unread", b.unread());
    let (first, _second) = (accepted(&mut b), accepted(&mut b));
    assert!(b.accept().is_pending());
    // One that is over makes room for the next.
    assert_eq!(read(&mut b, first).len(), WINDOW);
    b.drop_send(first);
    b.drop_recv(first);
    exchange(&mut a, &mut b);
    assert!(std::iter::from_fn(|| b.poll_event()).any(|event| event == MuxEvent::Incoming));
    let third = accepted(&mut b);
    assert!(b.accept().is_pending());
    b.set_receive_limits(ReceiveLimits::default());
    assert!(std::iter::from_fn(|| b.poll_event()).any(|event| event == MuxEvent::Incoming));
    assert_eq!(read(&mut b, third).len(), WINDOW);
    let fourth = accepted(&mut b);
    assert_eq!(read(&mut b, fourth).len(), WINDOW);
    assert!(b.wants_input());
}

#[test]
fn what_is_read_in_the_middle_of_a_frame_earns_no_credit_for_its_rest() {
    let mut server = greeted_server();
    let mut keys = Vec::new();
    for turn in 0..MUX_MAX_STREAMS {
        let stream = 1 + 2 * turn as u64;
        let frame = encoded(&[data(stream, &[0; WINDOW / 2], false)]);
        server.handle_input(frame).unwrap();
        keys.push(accepted(&mut server));
    }
    for round in 0..20 {
        for (turn, key) in keys.iter().enumerate() {
            let recv = &server.streams.find(*key).unwrap().recv;
            let (credit, largest) = (recv.credit, MUX_MAX_DATA);
            if credit == 0 {
                continue;
            }
            let body = vec![0; credit.min(largest)];
            let mut frame = encoded(&[data(1 + 2 * turn as u64, &body, false)]);
            let rest = frame.split_off(frame.len() - body.len() / 2);
            server.handle_input(frame).unwrap();
            read(&mut server, *key);
            server.handle_input(rest).unwrap();
            let recv = &server.streams.find(*key).unwrap().recv;
            assert!(recv.credit + recv.unread() <= recv.window, "round {round}");
            assert!(server.budget.used() <= MUX_RECEIVE_POOL, "round {round}");
        }
    }
}
