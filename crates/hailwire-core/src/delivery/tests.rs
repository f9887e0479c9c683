use super::*;

#[test]
fn pauses_double_up_to_the_longest() {
    let policy = DeliveryPolicy::default();
    let seconds = |attempt| policy.pause(attempt).as_secs();
    assert_eq!([1, 2, 3, 4].map(seconds), [1, 2, 4, 8]);
    assert_eq!(seconds(7), 60);
    assert_eq!(seconds(u32::MAX), 60);
}

#[test]
fn a_message_that_its_agent_cannot_take_is_dead_at_once_and_one_that_may_succeed_later_is_tried_again()
 {
    let policy = DeliveryPolicy::default();
    let after = |attempt, code| {
        after_attempt(
            &policy,
            attempt,
            AttemptOutcome::of_code(code, false),
            false,
        )
    };
    for code in [
        Code::InvalidArgument,
        Code::Unimplemented,
        Code::PermissionDenied,
        Code::FailedPrecondition,
    ] {
        assert_eq!(after(1, code), AfterAttempt::Final(MessageState::Dead));
    }
    for code in [Code::ResourceExhausted, Code::Aborted, Code::Internal] {
        assert_eq!(after(4, code), AfterAttempt::Again(policy.pause(4)));
        assert_eq!(after(5, code), AfterAttempt::Final(MessageState::Dead));
    }
}

#[test]
fn whoever_dies_with_a_message_in_hand_leaves_its_fate_unknown_and_no_other_word_is_said() {
    let policy = DeliveryPolicy::default();
    for code in [
        Code::Unavailable,
        Code::Cancelled,
        Code::DeadlineExceeded,
        Code::Unknown,
    ] {
        let outcome = AttemptOutcome::of_code(code, false);
        assert_eq!(outcome, AttemptOutcome::Lost);
        let end = after_attempt(&policy, 5, outcome, false);
        assert_eq!(end, AfterAttempt::Final(MessageState::Unknown));
    }
    assert_eq!(
        after_attempt(&policy, 5, AttemptOutcome::NotBegun, false),
        AfterAttempt::Again(policy.first_pause),
        "nobody was there"
    );
}

#[test]
fn a_receipt_overrules_what_the_sender_supposed_and_nothing_overrules_a_receipt() {
    use MessageState as S;
    assert_eq!(
        sender_state(S::Stored, SenderNews::Expired { offered: true }),
        Some(S::Unknown)
    );
    assert_eq!(
        sender_state(S::Unknown, SenderNews::Receipt(S::Acknowledged)),
        Some(S::Acknowledged)
    );
    for news in [
        SenderNews::Kept,
        SenderNews::Refused,
        SenderNews::Expired { offered: true },
        SenderNews::Receipt(S::Dead),
    ] {
        assert_eq!(sender_state(S::Acknowledged, news), None);
    }
    assert_eq!(
        sender_state(S::Delivered, SenderNews::Receipt(S::Taken)),
        None,
        "not an end"
    );
}

#[test]
fn a_withdrawn_message_has_the_end_that_its_agent_gave_it_first_and_is_not_tried_again() {
    let policy = DeliveryPolicy::default();
    let after = |outcome| after_attempt(&policy, 1, outcome, true);
    for (outcome, end) in [
        (
            AttemptOutcome::Done { answered: true },
            MessageState::Answered,
        ),
        (
            AttemptOutcome::Done { answered: false },
            MessageState::Acknowledged,
        ),
        (
            AttemptOutcome::Refused(Code::InvalidArgument),
            MessageState::Dead,
        ),
        (
            AttemptOutcome::Refused(Code::Aborted),
            MessageState::Cancelled,
        ),
        (AttemptOutcome::Lost, MessageState::Cancelled),
        (AttemptOutcome::NotBegun, MessageState::Cancelled),
    ] {
        assert_eq!(after(outcome), AfterAttempt::Final(end), "{outcome:?}");
    }
    let offered = SenderNews::Withdrawn { offered: true };
    assert_eq!(sender_state(MessageState::Stored, offered), None);
    for ended in MessageState::ALL
        .into_iter()
        .filter(|state| state.is_final())
    {
        assert_eq!(withdrawal(Some(ended)), Withdrawal::TooLate);
        for offered in [false, true] {
            let news = SenderNews::Withdrawn { offered };
            assert_eq!(sender_state(ended, news), None);
        }
    }
}
