use hailwire_wire::{CallHeader, messages::MessageId};

use super::*;

const NOW: u64 = 1_800_000_000_000;

fn batch(deadline_ms: Option<u64>) -> MessageBatch {
    let header = CallHeader {
        to: "echo".to_owned(),
        deadline_ms,
        ..CallHeader::default()
    };
    let message = OfferedMessage {
        id: MessageId::new(NOW, [1; 10]),
        call: false,
        header: header::encode_call(&header),
        body: Vec::new(),
        attempts: 0,
        number: 1,
    };
    MessageBatch {
        messages: vec![message],
        ..MessageBatch::default()
    }
}

#[test]
fn a_held_batch_past_its_age_is_thrown_away() {
    let oldest = NOW - MAX_HELD_AGE_S * 1000;
    assert!(in_time(batch(None), oldest, NOW).is_ok());
    assert!(in_time(batch(None), oldest - 1, NOW).is_err());
    let newest = NOW + CLOCK_TOLERANCE_S * 1000;
    assert!(in_time(batch(None), newest, NOW).is_ok());
    assert!(in_time(batch(None), newest + 1, NOW).is_err());
    // What never came is remembered for longer than a copy is good, whatever the clocks; of what did the number is known for good.
    let known = super::super::REMEMBERED_FOR.as_secs();
    assert!(MAX_HELD_AGE_S + CLOCK_TOLERANCE_S < known);
}

#[test]
fn the_time_at_the_hub_is_taken_from_the_time_that_a_message_has() {
    let taken = in_time(batch(Some(5_000)), NOW - 2_000, NOW).unwrap();
    let header = header::decode_call(&taken.messages[0].header.clone().into()).unwrap();
    assert_eq!(header.deadline_ms, Some(3_000));
    let late = in_time(batch(Some(2_000)), NOW - 2_000, NOW).unwrap();
    assert!(late.messages.is_empty());
}
