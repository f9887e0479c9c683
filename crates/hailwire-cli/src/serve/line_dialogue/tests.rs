//! Dialogues with programs that keep to the rules and with programs that do not, in virtual time.

use super::*;

/// Numbers from a seed (xorshift64*).
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % sides
    }
}

/// A program in virtual time: it works for a while on each question, and writes lines too many.
struct Program {
    /// When it writes what; sorted.
    will_write: Vec<(u64, String)>,
    /// Until when it works, in µs.
    busy_until: u64,
    /// Whether one can see that it waits for input.
    seen: bool,
    /// Longest time between an answer and a line too many, in µs; within `busy_until` where 0.
    late: u64,
    keyed: bool,
}

impl Program {
    fn start(dice: &mut Dice, now: u64, late: u64, keyed: bool) -> Self {
        let busy_until = now + dice.roll(2000);
        let mut program = Self {
            will_write: Vec::new(),
            busy_until,
            seen: dice.roll(2) == 0,
            late,
            keyed,
        };
        if dice.roll(8) == 0 {
            let at = now + dice.roll(busy_until - now + 1);
            program.write(at, "banner".into());
        }
        program
    }

    fn write(&mut self, at: u64, line: String) {
        self.will_write.push((at, line));
        self.will_write.sort();
        if self.late == 0 {
            // Nothing is written once it has come to rest.
            self.busy_until = self.busy_until.max(at + 1);
        }
    }

    /// Answers a question, and at times some other line: before, after, or much later.
    fn ask(&mut self, dice: &mut Dice, now: u64, line: &str) {
        let line = line.trim_end();
        // What may write late may also rest before it answers.
        let at = now + dice.roll(if self.late == 0 { 500 } else { 20_000 });
        self.busy_until = at + 1 + dice.roll(300);
        let said = match self.keyed {
            true => format!("{line} heard"),
            false => line.to_owned(),
        };
        self.write(at, said);
        if dice.roll(6) == 0 {
            let latest = self.late.max(self.busy_until - at);
            self.write(at + dice.roll(latest), format!("{line} again"));
        }
    }

    fn rest(&self, now: u64) -> ProgramActivity {
        match (now < self.busy_until, self.seen) {
            (true, false) if self.late > 0 => ProgramActivity::Asleep,
            (true, _) => ProgramActivity::Busy,
            (false, true) => ProgramActivity::Waiting,
            (false, false) => ProgramActivity::Asleep,
        }
    }

    /// What is in the pipe at `now`, lines that were written together as one read.
    fn read(&mut self, now: u64) -> String {
        let due = self.will_write.iter().take_while(|(at, _)| *at <= now);
        let count = due.count();
        let lines = self.will_write.drain(..count);
        lines.map(|(_, line)| line + "\n").collect()
    }
}

/// Asks a hundred questions of programs from `seed` and says how many were answered, and how many
/// answers belonged to another question.
fn talk(seed: u64, late: u64, keyed: bool) -> (u32, u32) {
    let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let origin = Instant::now();
    let at = |us: u64| origin + Duration::from_micros(us);
    let mut now = 0;
    let (mut answered, mut wrong) = (0, 0);
    let mut process: Option<(LineDialogue, Program)> = None;
    'question: for number in 0..100 {
        now += dice.roll(3) * dice.roll(20_000);
        let question = format!("question {number}");
        let key = match keyed {
            true => format!("{:016x}\t", dice.0 ^ number),
            false => String::new(),
        };
        let (dialogue, program) = process.get_or_insert_with(|| {
            let program = Program::start(&mut dice, now, late, keyed);
            (LineDialogue::started(at(now)), program)
        });
        let mut asked = false;
        let answer = loop {
            let output = program.read(now);
            if !output.is_empty() {
                match dialogue.output(output.as_bytes(), at(now)) {
                    Ok(Some(answer)) => break answer,
                    Ok(None) => {}
                    Err(_) => {
                        process = None;
                        continue 'question;
                    }
                }
            }
            if dialogue.is_settling()
                && let Some(SettledState::Answer(answer)) =
                    dialogue.observed(program.rest(now), at(now))
            {
                break answer;
            }
            if dialogue.is_ready() && !asked {
                let line = dialogue.ask(question.as_bytes(), key.clone().into());
                dialogue.question_written();
                program.ask(&mut dice, now, std::str::from_utf8(&line).unwrap());
                asked = true;
            }
            now += 1 + dice.roll(400);
        };
        answered += 1;
        let mine = match keyed {
            true => answer.starts_with(format!("{question} ").as_bytes()),
            false => answer == format!("{question}\n") || answer == format!("{question} again\n"),
        };
        wrong += u32::from(!mine);
    }
    (answered, wrong)
}

#[test]
fn no_answer_goes_to_another_caller_where_lines_too_many_come_before_the_program_rests() {
    let mut answered = 0;
    for seed in 0..5000 {
        let (some, wrong) = talk(seed, 0, false);
        assert_eq!(wrong, 0, "seed {seed}");
        answered += some;
    }
    assert!(answered > 250_000, "{answered}");
}

#[test]
fn with_keys_no_answer_goes_to_another_caller_however_late_a_line_too_many_is() {
    let mut answered = 0;
    for seed in 0..5000 {
        let (some, wrong) = talk(seed, 200_000, true);
        assert_eq!(wrong, 0, "seed {seed}");
        answered += some;
    }
    assert!(answered > 150_000, "{answered}");
}

#[test]
fn without_keys_a_program_that_rests_and_then_speaks_can_mislead_which_is_what_keys_are_for() {
    let wrong: u32 = (0..200).map(|seed| talk(seed, 200_000, false).1).sum();
    assert!(wrong > 0);
}

fn ready(now: Instant) -> LineDialogue {
    let mut dialogue = LineDialogue::started(now);
    assert_eq!(
        dialogue.observed(ProgramActivity::Waiting, now),
        Some(SettledState::Started)
    );
    dialogue
}

#[test]
fn output_before_a_question_ends_the_dialogue() {
    let now = Instant::now();
    let mut dialogue = LineDialogue::started(now);
    assert_eq!(
        dialogue.output(b"hello\n", now),
        Err(DialogueError::Unrequested)
    );
    assert_eq!(
        ready(now).output(b"x", now),
        Err(DialogueError::Unrequested)
    );
}

#[test]
fn a_second_line_takes_the_first_ones_answer_with_it() {
    let now = Instant::now();
    let asked = || {
        let mut dialogue = ready(now);
        assert_eq!(dialogue.ask(b"q", Bytes::new()), "q\n");
        dialogue.question_written();
        dialogue
    };
    assert_eq!(
        asked().output(b"a\nb", now),
        Err(DialogueError::Unrequested)
    );
    let mut dialogue = asked();
    assert_eq!(dialogue.output(b"a\n", now), Ok(None));
    assert_eq!(dialogue.observed(ProgramActivity::Busy, now), None);
    assert_eq!(
        dialogue.output(b"b\n", now),
        Err(DialogueError::Unrequested)
    );
}

#[test]
fn an_answer_before_the_end_of_its_question_is_none() {
    let now = Instant::now();
    let mut dialogue = ready(now);
    dialogue.ask(b"q", Bytes::new());
    assert_eq!(dialogue.output(b"a", now), Ok(None));
    assert_eq!(dialogue.output(b"\n", now), Err(DialogueError::Early));
}

#[test]
fn an_answer_waits_for_rest_and_no_longer_than_the_limit() {
    let now = Instant::now();
    let answered = || {
        let mut dialogue = ready(now);
        dialogue.ask(b"q", Bytes::new());
        dialogue.question_written();
        assert_eq!(dialogue.output(b"a\n", now), Ok(None));
        dialogue
    };
    let answer = Some(SettledState::Answer("a\n".into()));
    let just_before = |time: Duration| now + time - Duration::from_micros(1);
    assert_eq!(answered().observed(ProgramActivity::Waiting, now), answer);

    let mut asleep = answered();
    assert_eq!(
        asleep.observed(ProgramActivity::Asleep, just_before(IDLE_TIME)),
        None
    );
    assert_eq!(
        asleep.observed(ProgramActivity::Asleep, now + IDLE_TIME),
        answer
    );

    let mut busy = answered();
    assert_eq!(
        busy.observed(ProgramActivity::Busy, just_before(SETTLE_LIMIT)),
        None
    );
    assert_eq!(
        busy.observed(ProgramActivity::Busy, now + SETTLE_LIMIT),
        answer
    );
    assert_eq!(answered().ended(), answer);
}

#[test]
fn a_key_comes_back_with_its_answer_or_the_dialogue_ends() {
    let now = Instant::now();
    let asked = || {
        let mut dialogue = ready(now);
        assert_eq!(dialogue.ask(b"q", "key\t".into()), "key\tq\n");
        dialogue.question_written();
        dialogue
    };
    assert_eq!(asked().output(b"key\ta\n", now), Ok(Some("a\n".into())));
    assert_eq!(asked().output(b"key\t\n", now), Ok(Some("\n".into())));
    for wrong in ["kex\ta\n", "a\n", "key\n", "k\n", "\n"] {
        assert_eq!(
            asked().output(wrong.as_bytes(), now),
            Err(DialogueError::OtherKey),
            "{wrong:?}"
        );
    }
}

#[test]
fn a_line_has_a_longest_length() {
    let now = Instant::now();
    let mut dialogue = ready(now);
    dialogue.ask(b"q", Bytes::new());
    dialogue.question_written();
    assert_eq!(dialogue.output(&vec![b'x'; MAX_LINE], now), Ok(None));
    assert_eq!(dialogue.output(b"x", now), Err(DialogueError::TooLong));
}
