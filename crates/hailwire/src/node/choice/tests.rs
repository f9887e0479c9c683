//! The choice in virtual time, with measurements from a script.

use super::*;

const TICK: Duration = Duration::from_millis(250);

/// A peer, and what is seen of it from one tick to the next.
struct Script {
    choice: Choice,
    now: Instant,
    udp: Seen,
    tcp: Seen,
    /// Whether TCP can be brought up when it is wished for.
    tcp_comes: bool,
    carried: Vec<Way>,
}

impl Script {
    fn new(allowed: Carrier) -> Self {
        let now = Instant::now();
        Self {
            choice: Choice::new(allowed, now),
            now,
            udp: well(),
            tcp: Seen::default(),
            tcp_comes: true,
            carried: Vec::new(),
        }
    }

    fn tick(&mut self) -> Wish {
        self.now += TICK;
        let wish = self.choice.tick(self.now, &self.udp, &self.tcp);
        if wish.bring_up == Some(Way::Tcp) && self.tcp_comes {
            self.tcp.up = true;
        }
        if self.carried.last() != Some(&wish.carry) {
            self.carried.push(wish.carry);
        }
        wish
    }

    /// Goes on for so long; gives the last wish.
    fn run(&mut self, time: Duration) -> Wish {
        let end = self.now + time;
        let mut last = self.tick();
        while self.now < end {
            last = self.tick();
        }
        last
    }

    /// How long it takes until `way` takes new calls.
    fn until(&mut self, way: Way, within: Duration) -> Duration {
        let start = self.now;
        while self.tick().carry != way {
            assert!(
                self.now - start < within,
                "{way:?} did not take over: {}",
                self.choice.why()
            );
        }
        self.now - start
    }
}

/// A carrier with a call in flight and nothing wrong.
fn well() -> Seen {
    Seen {
        up: true,
        calls: 1,
        moved: 10_000,
        heard: true,
        sent: 10,
        ..Seen::default()
    }
}

fn moving(rate: f64) -> Seen {
    let moved = (rate * TICK.as_secs_f64()) as u64;
    Seen {
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
    let wish = script.run(seconds(600));
    assert_eq!(
        wish,
        Wish {
            carry: Way::Udp,
            bring_up: None,
            ask: false
        }
    );
    assert!(!script.tcp.up);
    assert_eq!(script.choice.why().to_string(), "udp answers");
}

#[test]
fn blocked_udp_hands_over_within_two_seconds_and_takes_over_again_when_it_is_heard() {
    let mut script = Script::new(Carrier::Auto);
    script.run(seconds(10));
    script.udp = Seen {
        heard: false,
        moved: 0,
        ..well()
    };
    let took = script.until(Way::Tcp, seconds(5));
    assert!(took <= seconds(2), "{took:?}");
    script.run(seconds(2));
    assert!(
        script
            .choice
            .why()
            .to_string()
            .starts_with("udp silent for 3"),
        "{}",
        script.choice.why()
    );
    assert!(
        script.tick().ask,
        "udp must be asked, or it would never be heard again"
    );

    script.udp = Seen {
        calls: 0,
        answer: Some(Duration::from_millis(20)),
        ..well()
    };
    let took = script.until(Way::Udp, seconds(10));
    assert!(took >= STEADY && took <= STEADY + seconds(1), "{took:?}");
    assert_eq!(script.choice.why(), Why::Back);
}

#[test]
fn silence_without_calls_means_nothing() {
    let mut script = Script::new(Carrier::Auto);
    script.udp = Seen {
        heard: false,
        calls: 0,
        moved: 0,
        ..well()
    };
    assert_eq!(script.run(seconds(60)).carry, Way::Udp);
    assert!(!script.tcp.up && script.choice.may_rest());
}

#[test]
fn udp_that_stutters_back_does_not_take_over() {
    let mut script = Script::new(Carrier::Auto);
    script.udp = Seen {
        heard: false,
        moved: 0,
        ..well()
    };
    script.until(Way::Tcp, seconds(5));
    for _ in 0..20 {
        script.udp.heard = true;
        script.run(seconds(1));
        script.udp.heard = false;
        script.run(seconds(2));
    }
    assert_eq!(script.carried, [Way::Udp, Way::Tcp]);
}

#[test]
fn udp_that_went_down_is_dialled_again_later_and_later() {
    let mut script = Script::new(Carrier::Auto);
    script.tcp.up = true;
    script.udp.up = false;
    let mut dials = Vec::new();
    let start = script.now;
    while script.now - start < seconds(300) {
        let wish = script.tick();
        assert_eq!(wish.carry, Way::Tcp);
        if wish.bring_up == Some(Way::Udp) {
            dials.push((script.now - start).as_secs());
        }
    }
    assert!(dials.len() >= 6 && dials.len() <= 9, "{dials:?}");
    assert!(!script.choice.may_rest());
    script.udp = well();
    script.until(Way::Udp, seconds(5));
}

#[test]
fn udp_that_loses_packets_hands_over_only_where_tcp_answers_sooner() {
    let lossy = Seen {
        sent: 100,
        lost: 10,
        answer: Some(Duration::from_millis(150)),
        ..well()
    };
    let answers = |millis| Seen {
        answer: Some(Duration::from_millis(millis)),
        ..Seen::default()
    };

    let mut script = Script::new(Carrier::Auto);
    (script.udp, script.tcp) = (lossy, answers(140));
    assert_eq!(script.run(seconds(60)).carry, Way::Udp);
    assert_eq!(
        script.carried,
        [Way::Udp],
        "it was never better by a margin"
    );

    let mut script = Script::new(Carrier::Auto);
    (script.udp, script.tcp) = (lossy, answers(40));
    let took = script.until(Way::Tcp, seconds(10));
    assert!(took <= seconds(4), "{took:?}");
    let why = script.choice.why().to_string();
    assert_eq!(why, "udp loses 10 %, answers in 150 ms against 40 ms");
    script.run(seconds(30));
    assert_eq!(
        script.carried,
        [Way::Udp, Way::Tcp],
        "it stays while udp loses"
    );

    script.udp = Seen {
        sent: 10,
        lost: 0,
        answer: Some(Duration::from_millis(40)),
        ..well()
    };
    script.until(Way::Udp, seconds(30));
}

#[test]
fn bulk_moves_to_tcp_where_it_is_faster_and_back_when_it_is_over() {
    let mut script = Script::new(Carrier::Auto);
    let rate = |script: &Script, carry: Way| match carry {
        Way::Udp => (
            moving(300e6),
            Seen {
                up: script.tcp.up,
                ..Seen::default()
            },
        ),
        Way::Tcp => (
            Seen {
                moved: 0,
                calls: 0,
                ..well()
            },
            moving(900e6),
        ),
    };
    let mut carry = Way::Udp;
    let start = script.now;
    while script.now - start < seconds(30) {
        (script.udp, script.tcp) = rate(&script, carry);
        carry = script.tick().carry;
    }
    assert_eq!(script.carried, [Way::Udp, Way::Tcp]);
    assert_eq!(
        script.choice.why().to_string(),
        "tcp moves 900 MB/s, udp 300 MB/s"
    );

    script.udp = well();
    script.tcp = Seen {
        up: true,
        ..Seen::default()
    };
    let took = script.until(Way::Udp, seconds(10));
    assert!(took >= seconds(4), "{took:?}");
}

#[test]
fn a_trial_that_shows_no_gain_is_undone_and_repeated_seldom() {
    let mut script = Script::new(Carrier::Auto);
    let mut carry = Way::Udp;
    let mut on_tcp = Duration::ZERO;
    let start = script.now;
    while script.now - start < seconds(600) {
        let up = script.tcp.up;
        (script.udp, script.tcp) = match carry {
            Way::Udp => (
                moving(500e6),
                Seen {
                    up,
                    ..Seen::default()
                },
            ),
            Way::Tcp => (
                Seen {
                    moved: 0,
                    calls: 0,
                    ..well()
                },
                moving(520e6),
            ),
        };
        carry = script.tick().carry;
        if carry == Way::Tcp {
            on_tcp += TICK;
        }
    }
    assert!(
        on_tcp <= TRIAL * 6,
        "{on_tcp:?} of ten minutes were spent on trials"
    );
    assert_eq!(carry, Way::Udp);
}

#[test]
fn what_is_configured_is_not_questioned() {
    let mut script = Script::new(Carrier::Quic);
    script.udp = Seen {
        heard: false,
        sent: 100,
        lost: 50,
        ..well()
    };
    script.tcp.up = true;
    assert_eq!(script.run(seconds(60)).carry, Way::Udp);
    let mut script = Script::new(Carrier::Ws);
    assert_eq!(
        script.run(seconds(60)),
        Wish {
            carry: Way::Tcp,
            bring_up: None,
            ask: false
        }
    );
    assert_eq!(script.choice.why().to_string(), "configured");
}

#[test]
fn a_peer_without_tcp_keeps_udp_however_bad_it_is() {
    let mut script = Script::new(Carrier::Auto);
    script.tcp_comes = false;
    script.udp = Seen {
        heard: false,
        sent: 100,
        lost: 50,
        ..well()
    };
    assert_eq!(script.run(seconds(120)).carry, Way::Udp);
}
