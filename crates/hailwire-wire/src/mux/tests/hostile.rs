//! Peers that break the rules, by malice or by mistake.

use super::*;
use crate::limits::{MUX_INITIAL_WINDOW, MUX_MAX_DATA, MUX_MAX_STREAMS};
use crate::status::Code;

fn refused(frames: &[MuxFrame]) -> MuxError {
    greeted_server().handle_input(encoded(frames)).unwrap_err()
}

#[test]
fn another_protocol_is_refused_at_its_first_wrong_byte() {
    for began in [
        &b"GET / HTTP/1.1\r\n"[..],
        b"h2",
        b"\x16\x03\x01",
        b"hailmux:",
    ] {
        let mut server = Mux::new(MuxRole::Server);
        let error = server
            .handle_input(Bytes::copy_from_slice(began))
            .unwrap_err();
        assert!(matches!(error, MuxError::NotMux { .. }), "{error}");
        // It is told nothing beyond the preface, in which it would find its mistake.
        assert_eq!(output(&mut server), &preface(MuxRole::Server)[..]);
    }
}

#[test]
fn another_version_is_refused_with_both_named() {
    let mut theirs = preface(MuxRole::Client);
    theirs[8] = 9;
    let error = Mux::new(MuxRole::Server)
        .handle_input(Bytes::copy_from_slice(&theirs))
        .unwrap_err();
    assert_eq!(
        error,
        MuxError::Version {
            ours: MAJOR,
            theirs: 9
        }
    );
    assert!(error.to_string().contains("version 9") && error.to_string().contains("version 1"));
}

#[test]
fn a_later_minor_version_is_welcome_and_the_same_role_is_not() {
    let mut theirs = preface(MuxRole::Client);
    theirs[9] = 200;
    theirs[11] = 200;
    Mux::new(MuxRole::Server)
        .handle_input(Bytes::copy_from_slice(&theirs))
        .unwrap();
    let error = Mux::new(MuxRole::Client)
        .handle_input(Bytes::copy_from_slice(&theirs))
        .unwrap_err();
    assert_eq!(error, MuxError::SameRole);
}

#[test]
fn bytes_past_the_window_end_the_connection_and_the_peer_is_told() {
    let window = MUX_INITIAL_WINDOW as usize;
    let mut server = greeted_server();
    let full: Vec<_> = vec![0; MUX_MAX_DATA];
    for _ in 0..window / MUX_MAX_DATA {
        server
            .handle_input(encoded(&[data(1, &full, false)]))
            .unwrap();
    }
    let error = server
        .handle_input(encoded(&[data(1, b"x", false)]))
        .unwrap_err();
    assert_eq!(error, MuxError::Window(1));
    assert_eq!(
        server.ended(),
        Some(&ConnectionEnd::Protocol(MuxError::Window(1)))
    );
    let mut client = Mux::new(MuxRole::Client);
    client.handle_input(output(&mut server)).unwrap();
    let told = ConnectionEnd::ByPeer {
        code: Code::InvalidArgument,
        reason: "stream 1 exceeded its window".into(),
    };
    assert_eq!(client.ended(), Some(&told));
}

#[test]
fn more_streams_than_granted_are_refused() {
    let mut server = greeted_server();
    for index in 0..MUX_MAX_STREAMS as u64 {
        server
            .handle_input(encoded(&[data(2 * index + 1, b"", true)]))
            .unwrap();
    }
    let id = 2 * MUX_MAX_STREAMS as u64 + 1;
    let error = server
        .handle_input(encoded(&[data(id, b"", true)]))
        .unwrap_err();
    assert_eq!(error, MuxError::TooManyStreams(id));
}

#[test]
fn stream_ids_that_cannot_exist_are_refused() {
    assert_eq!(refused(&[data(0, b"x", false)]), MuxError::NoSuchStream(0));
    assert_eq!(
        refused(&[data(3, b"x", false)]),
        MuxError::NoSuchStream(3),
        "a gap"
    );
    assert_eq!(
        refused(&[data(2, b"x", false)]),
        MuxError::NoSuchStream(2),
        "never opened here"
    );
    assert_eq!(
        refused(&[data(u64::MAX, b"", true)]),
        MuxError::NoSuchStream(u64::MAX)
    );
    assert_eq!(
        refused(&[data(u64::MAX - 1, b"", true)]),
        MuxError::NoSuchStream(u64::MAX - 1)
    );
}

#[test]
fn bytes_after_the_end_are_refused() {
    let priority = Priority::Low;
    let reset = MuxFrame::Reset {
        stream: 1,
        priority,
        code: Code::Cancelled,
    };
    assert_eq!(
        refused(&[data(1, b"x", true), data(1, b"y", false)]),
        MuxError::AfterEnd(1)
    );
    assert_eq!(
        refused(&[reset, data(1, b"y", false)]),
        MuxError::AfterEnd(1)
    );
}

#[test]
fn impossible_lengths_are_refused_before_the_payload_is_awaited() {
    for (kind, len) in [
        (MuxFrameKind::DATA, MUX_MAX_DATA + 1),
        (MuxFrameKind::RESET, 3),
        (MuxFrameKind::STOP, 5),
        (MuxFrameKind::WINDOW, 0),
        (MuxFrameKind::STREAMS, 65_535),
        (MuxFrameKind::PING, 7),
        (MuxFrameKind::PONG, 9),
        (MuxFrameKind::DATAGRAM, 1101),
        (MuxFrameKind::CLOSE, 3),
        (MuxFrameKind::CLOSE, 1029),
    ] {
        let header = FrameHeader {
            kind,
            flags: 0,
            len: len as u16,
            stream: 1,
        };
        let error = greeted_server().handle_input(Bytes::copy_from_slice(&header.encode()));
        assert_eq!(error, Err(MuxError::Length { kind, len }));
    }
}

#[test]
fn frames_that_crossed_the_end_of_their_stream_are_ignored() {
    let priority = Priority::Low;
    let mut server = greeted_server();
    server.handle_input(encoded(&[data(1, b"", true)])).unwrap();
    let key = accepted(&mut server);
    server.finish(key);
    output(&mut server);
    server.drop_send(key);
    server.drop_recv(key);
    assert_eq!(server.live_streams(), 0);
    let late = [
        MuxFrame::Stop {
            stream: 1,
            priority,
            code: Code::Cancelled,
        },
        MuxFrame::Window {
            stream: 1,
            priority,
            credit: 5,
        },
        MuxFrame::Reset {
            stream: 1,
            priority,
            code: Code::Cancelled,
        },
    ];
    server.handle_input(encoded(&late)).unwrap();
    assert_eq!((server.live_streams(), output(&mut server).len()), (0, 0));
}

#[test]
fn traffic_cut_anywhere_is_no_error_until_the_stream_ends() {
    let all = {
        let mut bytes = BytesMut::from(&preface(MuxRole::Client)[..]);
        let close = MuxFrame::Close {
            code: Code::Ok,
            reason: "bye".into(),
        };
        bytes.extend_from_slice(&encoded(&[
            data(1, b"abc", true),
            MuxFrame::Streams(1),
            close,
        ]));
        bytes.freeze()
    };
    for cut in 0..all.len() {
        let mut server = Mux::new(MuxRole::Server);
        server.handle_input(all.slice(..cut)).unwrap();
        assert_eq!(server.ended(), None);
        server.handle_input(all.slice(cut..)).unwrap();
        assert!(
            matches!(server.ended(), Some(ConnectionEnd::ByPeer { .. })),
            "cut at {cut}"
        );
    }
}

#[test]
fn random_bytes_never_panic_and_never_pass_a_bound() {
    for seed in 0..300 {
        let mut rng = SplitMix(seed);
        let mut server = if seed % 4 == 0 {
            Mux::new(MuxRole::Server)
        } else {
            greeted_server()
        };
        for _ in 0..200 {
            let len = rng.below(200);
            let mut bytes = BytesMut::from(&rng.bytes(len)[..]);
            if rng.below(2) == 0 {
                // Something that at least looks like a frame.
                let header = FrameHeader {
                    kind: MuxFrameKind(rng.below(12) as u8),
                    flags: rng.next() as u8,
                    len: rng.below(64) as u16,
                    stream: rng.below(40) as u64,
                };
                bytes.extend_from_slice(&header.encode());
            }
            if server.handle_input(bytes.freeze()).is_err() {
                break;
            }
            if rng.below(3) == 0
                && let Poll::Ready(Ok(key)) = server.accept()
            {
                read(&mut server, key);
                server.finish(key);
                server.drop_recv(key);
            }
            while server.poll_event().is_some() {}
            output(&mut server);
        }
        assert!(server.live_streams() <= MUX_MAX_STREAMS, "seed {seed}");
        assert!(server.unread() <= 200 * 264, "seed {seed}");
    }
}

#[test]
fn valid_traffic_with_a_flipped_bit_never_panics() {
    let (mut a, mut b) = sides();
    let mut traffic = BytesMut::from(&output(&mut a)[..]);
    b.handle_input(traffic.clone().freeze()).unwrap();
    for index in 0..20 {
        let key = opened(&mut a, Priority::ALL[index % 4]);
        write(&mut a, key, &vec![index as u8; 50 * index]);
        match index % 3 {
            0 => a.finish(key),
            1 => a.reset(key, Code::Aborted),
            _ => a.stop(key, Code::Aborted),
        }
        let out = output(&mut a);
        traffic.extend_from_slice(&out);
        b.handle_input(out).unwrap();
        a.handle_input(output(&mut b)).unwrap();
    }
    for seed in 0..2000 {
        let mut rng = SplitMix(seed);
        let mut bytes = traffic.clone();
        let at = rng.below(bytes.len());
        bytes[at] ^= 1 << rng.below(8);
        let mut server = Mux::new(MuxRole::Server);
        let mut bytes = bytes.freeze();
        while !bytes.is_empty() {
            let part = bytes.split_to((1 + rng.below(500)).min(bytes.len()));
            if server.handle_input(part).is_err() {
                break;
            }
        }
        output(&mut server);
    }
}
