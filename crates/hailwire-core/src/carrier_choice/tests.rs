//! The choice in virtual time, with measurements from a script.

use super::*;
use crate::testing::start;

const TICK: Duration = Duration::from_millis(250);

/// A peer, and what is seen of it from one tick to the next.
struct Script {
    choice: CarrierChoice,
    now: Instant,
    udp: CarrierSample,
    tcp: CarrierSample,
    /// Whether TCP can be brought up when it is wished for.
    tcp_comes: bool,
    carried: Vec<Transport>,
}

impl Script {
    fn new(allowed: Carrier) -> Self {
        let now = start();
        Self {
            choice: CarrierChoice::new(allowed, now),
            now,
            udp: well(),
            tcp: CarrierSample::default(),
            tcp_comes: true,
            carried: Vec::new(),
        }
    }

    fn tick(&mut self) -> CarrierAdvice {
        self.now += TICK;
        let advice = self.choice.tick(self.now, &self.udp, &self.tcp);
        if advice.bring_up == Some(Transport::Tcp) && self.tcp_comes {
            self.tcp.up = true;
        }
        if self.carried.last() != Some(&advice.carry) {
            self.carried.push(advice.carry);
        }
        advice
    }

    /// Goes on for so long; gives the last advice.
    fn run(&mut self, time: Duration) -> CarrierAdvice {
        let end = self.now + time;
        let mut last = self.tick();
        while self.now < end {
            last = self.tick();
        }
        last
    }

    /// How long it takes until `transport` takes new calls.
    fn until(&mut self, transport: Transport, within: Duration) -> Duration {
        let start = self.now;
        while self.tick().carry != transport {
            assert!(
                self.now - start < within,
                "{transport:?} did not take over: {}",
                self.choice.reason()
            );
        }
        self.now - start
    }
}

/// A carrier with a call in flight and nothing wrong.
fn well() -> CarrierSample {
    CarrierSample {
        up: true,
        calls: 1,
        moved: 10_000,
        heard: true,
        sent: 10,
        ..CarrierSample::default()
    }
}

fn moving(rate: f64) -> CarrierSample {
    let moved = (rate * TICK.as_secs_f64()) as u64;
    CarrierSample {
        moved,
        sent: moved / 1400,
        ..well()
    }
}

fn seconds(number: u64) -> Duration {
    Duration::from_secs(number)
}

#[test]
fn a_tunnel_that_is_well_stays_on_udp_and_brings_up_nothing() {
    let mut script = Script::new(Carrier::Auto);
    let advice = script.run(seconds(600));
    assert_eq!(
        advice,
        CarrierAdvice {
            carry: Transport::Udp,
            bring_up: None,
            ask: false
        }
    );
    assert!(!script.tcp.up);
    assert_eq!(script.choice.reason().to_string(), "UDP works");
}

#[test]
fn blocked_udp_hands_over_within_two_seconds_and_takes_over_again_when_it_is_heard() {
    let mut script = Script::new(Carrier::Auto);
    script.run(seconds(10));
    script.udp = CarrierSample {
        heard: false,
        moved: 0,
        ..well()
    };
    let took = script.until(Transport::Tcp, seconds(5));
    assert!(took <= seconds(2), "{took:?}");
    script.run(seconds(2));
    assert!(
        script
            .choice
            .reason()
            .to_string()
            .starts_with("udp silent for 3"),
        "{}",
        script.choice.reason()
    );
    assert!(
        script.tick().ask,
        "udp must be asked, or it would never be heard again"
    );

    script.udp = CarrierSample {
        calls: 0,
        answer: Some(Duration::from_millis(20)),
        ..well()
    };
    let took = script.until(Transport::Udp, seconds(10));
    assert!(
        took >= UDP_WELL_AFTER && took <= UDP_WELL_AFTER + seconds(1),
        "{took:?}"
    );
    assert_eq!(script.choice.reason(), ChoiceReason::Back);
}

#[test]
fn silence_without_calls_means_nothing() {
    let mut script = Script::new(Carrier::Auto);
    script.udp = CarrierSample {
        heard: false,
        calls: 0,
        moved: 0,
        ..well()
    };
    assert_eq!(script.run(seconds(60)).carry, Transport::Udp);
    assert!(!script.tcp.up && script.choice.may_rest());
}

#[test]
fn udp_that_stutters_back_does_not_take_over() {
    let mut script = Script::new(Carrier::Auto);
    script.udp = CarrierSample {
        heard: false,
        moved: 0,
        ..well()
    };
    script.until(Transport::Tcp, seconds(5));
    for _ in 0..20 {
        script.udp.heard = true;
        script.run(seconds(1));
        script.udp.heard = false;
        script.run(seconds(2));
    }
    assert_eq!(script.carried, [Transport::Udp, Transport::Tcp]);
}

#[test]
fn udp_that_went_down_is_dialled_again_later_and_later() {
    let mut script = Script::new(Carrier::Auto);
    script.tcp.up = true;
    script.udp.up = false;
    let mut dials = Vec::new();
    let start = script.now;
    while script.now - start < seconds(300) {
        let advice = script.tick();
        assert_eq!(advice.carry, Transport::Tcp);
        if advice.bring_up == Some(Transport::Udp) {
            dials.push((script.now - start).as_secs());
        }
    }
    assert!(dials.len() >= 6 && dials.len() <= 9, "{dials:?}");
    assert!(!script.choice.may_rest());
    script.udp = well();
    script.until(Transport::Udp, seconds(5));
}

#[test]
fn udp_that_loses_packets_hands_over_only_where_tcp_answers_sooner() {
    let lossy = CarrierSample {
        sent: 100,
        lost: 10,
        answer: Some(Duration::from_millis(150)),
        ..well()
    };
    let answers = |millis| CarrierSample {
        answer: Some(Duration::from_millis(millis)),
        ..CarrierSample::default()
    };

    let mut script = Script::new(Carrier::Auto);
    (script.udp, script.tcp) = (lossy, answers(140));
    assert_eq!(script.run(seconds(60)).carry, Transport::Udp);
    assert_eq!(
        script.carried,
        [Transport::Udp],
        "it was never better by a margin"
    );

    let mut script = Script::new(Carrier::Auto);
    (script.udp, script.tcp) = (lossy, answers(40));
    let took = script.until(Transport::Tcp, seconds(10));
    assert!(took <= seconds(4), "{took:?}");
    let reason = script.choice.reason().to_string();
    assert_eq!(reason, "udp loses 10 %, answers in 150 ms against 40 ms");
    script.run(seconds(30));
    assert_eq!(
        script.carried,
        [Transport::Udp, Transport::Tcp],
        "it stays while udp loses"
    );

    script.udp = CarrierSample {
        sent: 10,
        lost: 0,
        answer: Some(Duration::from_millis(40)),
        ..well()
    };
    script.until(Transport::Udp, seconds(30));
}

#[test]
fn bulk_moves_to_tcp_where_it_is_faster_and_back_when_it_is_over() {
    let mut script = Script::new(Carrier::Auto);
    let rate = |script: &Script, carry: Transport| match carry {
        Transport::Udp => (
            moving(300e6),
            CarrierSample {
                up: script.tcp.up,
                ..CarrierSample::default()
            },
        ),
        Transport::Tcp => (
            CarrierSample {
                moved: 0,
                calls: 0,
                ..well()
            },
            moving(900e6),
        ),
    };
    let mut carry = Transport::Udp;
    let start = script.now;
    while script.now - start < seconds(30) {
        (script.udp, script.tcp) = rate(&script, carry);
        carry = script.tick().carry;
    }
    assert_eq!(script.carried, [Transport::Udp, Transport::Tcp]);
    assert_eq!(
        script.choice.reason().to_string(),
        "tcp moves 900 MB/s, udp 300 MB/s"
    );

    script.udp = well();
    script.tcp = CarrierSample {
        up: true,
        ..CarrierSample::default()
    };
    let took = script.until(Transport::Udp, seconds(10));
    assert!(took >= seconds(4), "{took:?}");
}

#[test]
fn a_trial_that_shows_no_gain_is_undone_and_repeated_seldom() {
    let mut script = Script::new(Carrier::Auto);
    let mut carry = Transport::Udp;
    let mut on_tcp = Duration::ZERO;
    let start = script.now;
    while script.now - start < seconds(600) {
        let up = script.tcp.up;
        (script.udp, script.tcp) = match carry {
            Transport::Udp => (
                moving(500e6),
                CarrierSample {
                    up,
                    ..CarrierSample::default()
                },
            ),
            Transport::Tcp => (
                CarrierSample {
                    moved: 0,
                    calls: 0,
                    ..well()
                },
                moving(520e6),
            ),
        };
        carry = script.tick().carry;
        if carry == Transport::Tcp {
            on_tcp += TICK;
        }
    }
    assert!(
        on_tcp <= TRIAL_LENGTH * 6,
        "{on_tcp:?} of ten minutes were spent on trials"
    );
    assert_eq!(carry, Transport::Udp);
}

#[test]
fn what_is_configured_is_not_questioned() {
    let mut script = Script::new(Carrier::Quic);
    script.udp = CarrierSample {
        heard: false,
        sent: 100,
        lost: 50,
        ..well()
    };
    script.tcp.up = true;
    assert_eq!(script.run(seconds(60)).carry, Transport::Udp);
    let mut script = Script::new(Carrier::Ws);
    assert_eq!(
        script.run(seconds(60)),
        CarrierAdvice {
            carry: Transport::Tcp,
            bring_up: None,
            ask: false
        }
    );
    assert_eq!(script.choice.reason().to_string(), "configured");
}

#[test]
fn a_peer_without_tcp_keeps_udp_however_bad_it_is() {
    let mut script = Script::new(Carrier::Auto);
    script.tcp_comes = false;
    script.udp = CarrierSample {
        heard: false,
        sent: 100,
        lost: 50,
        ..well()
    };
    assert_eq!(script.run(seconds(120)).carry, Transport::Udp);
}

/// A carrier whose only path leads through a relay.
fn relayed() -> CarrierSample {
    CarrierSample {
        relayed: true,
        ..well()
    }
}

#[test]
fn a_peer_that_udp_reaches_by_a_relay_alone_is_reached_directly_over_tcp_until_a_hole_is_punched() {
    let mut script = Script::new(Carrier::Auto);
    script.udp = relayed();
    let took = script.until(Transport::Tcp, seconds(5));
    assert!(
        took >= PUNCHED_WITHIN && took <= PUNCHED_WITHIN + 3 * TICK,
        "{took:?}"
    );
    assert_eq!(script.choice.reason(), ChoiceReason::Relayed);
    script.run(seconds(60));
    assert_eq!(script.carried, [Transport::Udp, Transport::Tcp]);
    assert!(script.choice.may_rest());
    // What took over goes away: the relay is better than nothing, and TCP is tried again.
    (script.tcp.up, script.tcp_comes) = (false, false);
    assert_eq!(script.tick().carry, Transport::Udp);
    assert_eq!(script.choice.reason(), ChoiceReason::OnlyRelay);
    script.tcp_comes = true;
    script.until(Transport::Tcp, seconds(60));
    // A hole is punched after all.
    script.udp = well();
    let took = script.until(Transport::Udp, seconds(5));
    assert!(took >= UDP_WELL_AFTER, "{took:?}");
    script.run(seconds(10));
    assert_eq!(script.choice.reason(), ChoiceReason::Back);
    assert!(script.choice.may_rest());
}

#[test]
fn a_hole_that_is_punched_in_time_brings_up_nothing() {
    let mut script = Script::new(Carrier::Auto);
    script.udp = relayed();
    script.run(PUNCHED_WITHIN - 2 * TICK);
    assert!(!script.choice.may_rest());
    script.udp = well();
    script.run(seconds(60));
    assert_eq!(script.carried, [Transport::Udp]);
    assert!(!script.tcp.up && script.choice.may_rest());
    assert_eq!(script.choice.reason(), ChoiceReason::Preferred);
}

#[test]
fn a_relayed_peer_without_tcp_is_asked_for_it_later_and_later_and_says_that_it_is_relayed() {
    let mut script = Script::new(Carrier::Auto);
    script.udp = relayed();
    script.tcp_comes = false;
    let mut attempts = Vec::new();
    for _ in 0..4 * 3600 {
        if script.tick().bring_up.is_some() {
            attempts.push(script.now);
        }
    }
    let pauses: Vec<_> = attempts.windows(2).map(|two| two[1] - two[0]).collect();
    assert!(attempts.len() < 15, "{}", attempts.len());
    assert!(pauses.is_sorted(), "{pauses:?}");
    assert_eq!(
        script.choice.reason().to_string(),
        "by a relay, no direct path"
    );
    assert!(script.choice.may_rest());
    // It may not be used at all.
    let mut script = Script::new(Carrier::Quic);
    script.udp = relayed();
    script.run(seconds(60));
    assert_eq!(script.choice.reason(), ChoiceReason::Configured);
    assert!(!script.tcp.up);
}
