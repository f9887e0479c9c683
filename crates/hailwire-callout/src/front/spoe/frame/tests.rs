//! Frames against what a real HAProxy said, at every bound, and damaged.

use bytes::BufMut as _;
use rand_pcg::{Pcg64, rand_core::Rng as _};

use super::{
    write::{write_value, write_varint},
    *,
};

#[test]
fn numbers_survive_a_round_trip_at_every_border_of_their_length() {
    let borders = [
        0,
        239,
        240,
        2287,
        2288,
        264_431,
        264_432,
        33_818_864,
        u64::MAX,
    ];
    for value in borders.into_iter().flat_map(|n| [n.saturating_sub(1), n]) {
        let mut bytes = BytesMut::new();
        write_varint(&mut bytes, value);
        let mut rest = FrameReader(bytes.freeze());
        assert_eq!(rest.varint(), Ok(value));
        assert!(rest.is_empty());
    }
    let mut bytes = BytesMut::new();
    write_varint(&mut bytes, 2288);
    assert_eq!(&bytes[..], [0xf0, 0x80, 0x00]);
}

/// What `spec/vectors/callout/spop.json` has, in its order.
fn vectors() -> Vec<BytesMut> {
    let file = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../spec/vectors/callout/spop.json"
    );
    let vectors = std::fs::read(file).unwrap();
    let vectors: serde_json::Value = serde_json::from_slice(&vectors).unwrap();
    let bytes = vectors["frames"].as_array().unwrap().iter().map(|frame| {
        let hex = frame["bytes"].as_str().unwrap().as_bytes();
        let byte = |two: &[u8]| u8::from_str_radix(std::str::from_utf8(two).unwrap(), 16);
        hex.chunks(2).map(|two| byte(two).unwrap()).collect()
    });
    bytes.collect()
}

fn frame(bytes: &BytesMut) -> SpopFrame {
    let mut bytes = bytes.clone();
    let frame = cut(&mut bytes, MAX_FRAME).unwrap().unwrap();
    assert!(bytes.is_empty());
    read(frame).unwrap()
}

#[test]
fn what_haproxy_said_is_read_and_what_it_took_is_written() {
    let vectors = vectors();
    let SpopFrame::Hello(hello) = frame(&vectors[0]) else {
        panic!("no greeting");
    };
    assert_eq!((hello.max_frame, hello.pipelining), (16380, true));
    assert!(!hello.engine.is_empty() && !hello.healthcheck);
    let mut output = BytesMut::new();
    write_hello(&mut output, hello.max_frame, hello.pipelining);
    assert_eq!(output, vectors[1]);

    let answers = [
        (2, "method", VarScope::Transaction),
        (4, "status", VarScope::Response),
    ];
    for (n, arg, scope) in answers {
        let SpopFrame::Notify(notify) = frame(&vectors[n]) else {
            panic!("no question");
        };
        assert!(notify.messages[0].arg(arg).is_some());
        let allow = SetVar {
            scope,
            name: "decision".to_owned(),
            value: SpopValue::Text("allow".into()),
        };
        let mut output = BytesMut::new();
        let (stream, frame) = (notify.stream, notify.frame);
        assert!(write_ack(&mut output, stream, frame, &[allow], 16380));
        assert_eq!(output, vectors[n + 1]);
    }
    let SpopFrame::Notify(request) = frame(&vectors[2]) else {
        panic!("no question");
    };
    let message = &request.messages[0];
    assert_eq!(message.name, "hail-request");
    assert_eq!(
        message.arg("src"),
        Some(&SpopValue::V4(Ipv4Addr::LOCALHOST))
    );
    assert_eq!(message.arg("sni"), Some(&SpopValue::Null));
    assert_eq!(message.arg("body").unwrap().bytes().unwrap(), "hello");
}

#[test]
fn a_number_beyond_64_bits_is_refused() {
    let endless = Bytes::from(vec![0xff; 32]);
    assert_eq!(FrameReader(endless).varint(), Err(SpopError::Invalid));
}

#[test]
fn values_of_every_type_survive_a_round_trip() {
    let values = [
        SpopValue::Null,
        SpopValue::Bool(true),
        SpopValue::Bool(false),
        SpopValue::Int32(-5),
        SpopValue::Uint32(u32::MAX),
        SpopValue::Int64(i64::MIN),
        SpopValue::Uint64(u64::MAX),
        SpopValue::V4(Ipv4Addr::new(192, 0, 2, 1)),
        SpopValue::V6(Ipv6Addr::LOCALHOST),
        SpopValue::Text("text".into()),
        SpopValue::Binary(Bytes::from_static(&[0, 255])),
    ];
    for value in values {
        let mut bytes = BytesMut::new();
        write_value(&mut bytes, &value);
        let mut rest = FrameReader(bytes.freeze());
        assert_eq!(rest.value(), Ok(value));
        assert!(rest.is_empty());
    }
}

#[test]
fn a_frame_is_taken_only_when_it_is_whole_and_not_too_big() {
    let mut input = BytesMut::from(&[0, 0, 0, 3, 1, 2][..]);
    assert_eq!(cut(&mut input, 3), Ok(None));
    input.put_slice(&[3, 9]);
    assert_eq!(cut(&mut input, 3), Ok(Some(Bytes::from_static(&[1, 2, 3]))));
    assert_eq!(&input[..], [9]);
    let mut input = BytesMut::from(&[0, 0, 0, 4][..]);
    assert_eq!(cut(&mut input, 3), Err(SpopError::TooBig));
}

#[test]
fn fragments_are_refused() {
    let fragment = Bytes::from_static(&[NOTIFY, 0, 0, 0, 0, 1, 1]);
    assert_eq!(read(fragment), Err(SpopError::Fragmented));
    let rest = Bytes::from_static(&[0, 0, 0, 0, 1, 1, 1]);
    assert_eq!(read(rest), Err(SpopError::Fragmented));
}

#[test]
fn more_messages_than_the_bound_are_refused() {
    let mut frame = vec![NOTIFY, 0, 0, 0, 1, 1, 1];
    frame.extend([1, b'm', 0].repeat(MAX_MESSAGES));
    assert!(read(frame.clone().into()).is_ok());
    frame.extend([1, b'm', 0]);
    assert_eq!(read(frame.into()), Err(SpopError::TooBig));
}

#[test]
fn an_answer_larger_than_the_frame_is_not_written() {
    let var = SetVar {
        scope: VarScope::Transaction,
        name: "body".into(),
        value: SpopValue::Text("x".repeat(300).into()),
    };
    let mut output = BytesMut::from("before");
    assert!(!write_ack(&mut output, 1, 1, &[var], MIN_FRAME));
    assert_eq!(&output[..], b"before");
}

/// Any bytes are a frame or a fault; damaged frames that begin well reach further than noise does.
#[test]
fn any_bytes_give_a_frame_or_a_fault() {
    let mut rng = Pcg64::new(0x5b0e, 1);
    let whole: Vec<_> = vectors().iter().map(|frame| frame[4..].to_vec()).collect();
    for _ in 0..20_000 {
        let mut bytes = if rng.next_u32().is_multiple_of(2) {
            whole[rng.next_u32() as usize % whole.len()].clone()
        } else {
            vec![0; (rng.next_u32() % 64) as usize]
        };
        for _ in 0..rng.next_u32() % 8 {
            if let Some(at) = (rng.next_u32() as usize).checked_rem(bytes.len()) {
                bytes[at] = rng.next_u32().to_le_bytes()[0];
            }
        }
        bytes.truncate(bytes.len() - rng.next_u32() as usize % (bytes.len() + 1) / 4);
        let _ = read(bytes.into());
    }
}
