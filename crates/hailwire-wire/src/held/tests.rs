use super::*;
use crate::messages::{MessageId, OfferedMessage};

fn key(number: u8) -> KeyPair {
    KeyPair::from_seed(&[number; 32])
}

fn content(to: NodeId, body: usize) -> HeldContent {
    let message = OfferedMessage {
        id: MessageId::new(5, [1; 10]),
        call: true,
        header: vec![0x80],
        body: vec![0x61; body],
        attempts: 0,
        number: 1,
    };
    let batch = MessageBatch {
        messages: vec![message],
        ..MessageBatch::default()
    };
    HeldContent::new(to, 1_763_000_000_000, &batch)
}

#[test]
fn what_is_sealed_is_opened_by_its_receiver_alone_and_under_its_senders_name_alone() {
    let (sender, receiver, other) = (key(1), key(2), key(3));
    let content = content(receiver.id(), 10);
    let sealed = content.seal(&sender, [7; 32]).unwrap();
    let opened = HeldContent::open(&receiver, sender.id(), &sealed).unwrap();
    assert_eq!(opened, content);
    assert_eq!(opened.batch().unwrap().messages[0].body, [0x61; 10]);
    for (opener, from) in [
        (&other, sender.id()),
        (&receiver, other.id()),
        (&sender, sender.id()),
    ] {
        let opened = HeldContent::open(opener, from, &sealed);
        assert_eq!(opened, Err(HeldError::Sealed));
    }
}

#[test]
fn a_batch_that_another_signed_or_that_is_for_another_is_forged() {
    let (sender, receiver, other) = (key(1), key(2), key(3));
    // A hub seals in the name of a sender whose key it has not.
    let signed = other.seal(
        SignatureDomain::Held,
        &header::encode(&content(receiver.id(), 1)),
    );
    let forged = seal_envelope(&sender.id(), receiver.id(), &signed);
    let opened = HeldContent::open(&receiver, sender.id(), &forged);
    assert_eq!(opened, Err(HeldError::Forged));
    // A receiver passes on what was signed for it.
    let signed = sender.seal(
        SignatureDomain::Held,
        &header::encode(&content(other.id(), 1)),
    );
    let passed_on = seal_envelope(&sender.id(), receiver.id(), &signed);
    let opened = HeldContent::open(&receiver, sender.id(), &passed_on);
    assert_eq!(opened, Err(HeldError::Forged));
    // A signature for another purpose.
    let signed = sender.seal(
        SignatureDomain::Record,
        &header::encode(&content(receiver.id(), 1)),
    );
    let misused = seal_envelope(&sender.id(), receiver.id(), &signed);
    let opened = HeldContent::open(&receiver, sender.id(), &misused);
    assert_eq!(opened, Err(HeldError::Forged));
    // A length beyond the end.
    let beyond = seal_plain(&sender.id(), receiver.id(), &[0xff; 64]);
    let opened = HeldContent::open(&receiver, sender.id(), &beyond);
    assert_eq!(opened, Err(HeldError::Malformed));
}

fn seal_envelope(sender: &NodeId, receiver: NodeId, signed: &[u8]) -> Vec<u8> {
    let length = u32::try_from(signed.len()).unwrap().to_be_bytes();
    seal_plain(sender, receiver, &[&length, signed].concat())
}

fn seal_plain(sender: &NodeId, receiver: NodeId, plain: &[u8]) -> Vec<u8> {
    let (enc, sealed) = hpke::single_shot_seal_with_rng::<ChaCha20Poly1305, HkdfSha256, Kem>(
        &OpModeS::Base,
        &public_key(receiver).unwrap(),
        &info(*sender, receiver),
        plain,
        &[VERSION],
        &mut GivenRandom([9; 32]),
    )
    .unwrap();
    [&[VERSION][..], &enc.to_bytes(), &sealed].concat()
}

#[test]
fn every_altered_byte_and_every_cut_is_noticed() {
    let (sender, receiver) = (key(1), key(2));
    let sealed = content(receiver.id(), 10).seal(&sender, [7; 32]).unwrap();
    let opens = |bytes: &[u8]| HeldContent::open(&receiver, sender.id(), bytes).is_ok();
    assert!(opens(&sealed));
    for index in (0..64)
        .chain((64..sealed.len()).step_by(61))
        .chain([sealed.len() - 1])
    {
        // The highest bit of an X25519 key is ignored (RFC 7748, 5), but HPKE binds the bytes of `enc`.
        for bit in [1, 0x80] {
            let mut altered = sealed.clone();
            altered[index] ^= bit;
            assert!(!opens(&altered), "byte {index}, bit {bit}");
        }
    }
    for length in (0..64).chain([sealed.len() - 1]) {
        assert!(!opens(&sealed[..length]), "{length}");
    }
}

#[test]
fn the_size_tells_one_of_five_classes_and_what_has_none_is_refused() {
    let (sender, receiver) = (key(1), key(2));
    let size = |body| {
        content(receiver.id(), body)
            .seal(&sender, [7; 32])
            .map(|s| s.len())
    };
    assert_eq!(size(0), size(3000));
    for body in [0, 5_000, 20_000, 70_000, 300_000] {
        let class = size(body).unwrap() - OVERHEAD;
        assert!(SIZE_CLASSES.contains(&class), "{class}");
    }
    assert_eq!(size(1 << 20), Err(HeldError::TooLarge));
    assert_eq!(SIZE_CLASSES[4] + OVERHEAD, limits::MAX_HELD);
}

#[test]
fn nothing_is_sealed_to_a_key_of_small_order() {
    let mut neutral = [0; 32];
    neutral[0] = 1;
    let content = content(NodeId::from_bytes(neutral), 1);
    assert_eq!(content.seal(&key(1), [7; 32]), Err(HeldError::Key));
}
