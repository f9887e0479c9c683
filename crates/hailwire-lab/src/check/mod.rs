//! Whether a network is what its label says: round trip, loss and rate between its hosts, for UDP
//! and for TCP, by a probe of our own.
//!
//! A measurement under an emulated network is worth what the emulation is worth; so this comes first.
//! The probe's sockets stand inside the hosts, and what they see is set beside what the topology
//! says. [`PathReport::faults`] is empty where all of it holds:
//!
//! - the median round trip is within 5 % or 1 ms of the label, whichever is more (and within a fifth
//!   of the jitter, where there is jitter);
//! - the loss is within four standard deviations of its share, and a tenth of a per cent;
//! - the rate is within 5 % of the label; for TCP only where nothing is lost, because TCP slows down
//!   for loss;
//! - what a firewall forbids does not pass.

mod probe;
mod rate;

use std::time::Duration;

use serde::Serialize;

use crate::{
    real::{LabError, NamespaceNetwork},
    topology::{ExpectedPath, FirewallPolicy, Topology},
};

/// What the label allows, relative.
pub const TOLERANCE: f64 = 0.05;

/// What the label allows for a round trip at least, in milliseconds.
pub const TOLERANCE_MS: f64 = 1.0;

/// What the label allows for loss at least: a host that is busy may drop a packet of its own.
const LOSS_TOLERANCE: f64 = 0.001;

/// What was measured in a network.
#[derive(Clone, Debug, Serialize)]
pub struct NetworkReport {
    /// The topology's name.
    pub network: String,
    /// Each path that was probed.
    pub paths: Vec<PathReport>,
    /// Whether all of it is within the label.
    pub within: bool,
}

/// What was measured from one host to another.
#[derive(Clone, Debug, Serialize)]
pub struct PathReport {
    /// The host that asks.
    pub from: String,
    /// The host that answers, which has a public address.
    pub to: String,
    /// What the topology says.
    pub label: ExpectedPath,
    /// Bits a second from `to` back to `from` that the topology says; `None` for no bound.
    pub label_rate_back: Option<u64>,
    /// Over UDP; `None` where nothing came back.
    pub udp: Option<UdpFigures>,
    /// Over TCP; `None` where no connection came about.
    pub tcp: Option<TcpFigures>,
    /// Whether the topology lets UDP pass.
    pub udp_expected: bool,
    /// What is not as the label says, in words.
    pub faults: Vec<String>,
}

/// Figures of UDP.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct UdpFigures {
    /// Packets sent to learn round trip and loss.
    pub sent: u32,
    /// Median round trip in milliseconds.
    pub rtt_ms: f64,
    /// The least.
    pub rtt_min_ms: f64,
    /// 99 % were at or below.
    pub rtt_p99_ms: f64,
    /// Share lost on the way out.
    pub loss_out: f64,
    /// Share of what arrived whose answer was lost.
    pub loss_back: f64,
    /// Bits of IP packets a second that passed when more were offered; only where there is a bound.
    pub rate_out: Option<f64>,
    /// The same on the way back.
    pub rate_back: Option<f64>,
}

/// Figures of TCP.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct TcpFigures {
    /// Time of the first connection, in milliseconds.
    pub connect_ms: f64,
    /// Median round trip of one byte and its answer, in milliseconds.
    pub rtt_ms: f64,
    /// Bits of IP packets a second, one connection, out: the third quartile of its half seconds.
    pub rate_out: f64,
    /// The same on the way back.
    pub rate_back: f64,
}

/// Measures a network.
///
/// It takes some seconds for each path: from `a` to `b`, or from each host behind a NAT to the
/// first public one where `b` cannot be reached.
///
/// # Errors
///
/// [`LabError`] where the hosts cannot be entered or their sockets fail. What differs from the label is
/// no error but in [`NetworkReport::within`].
pub fn check(network: &NamespaceNetwork) -> Result<NetworkReport, LabError> {
    let topology = network.topology();
    let mut paths = Vec::new();
    for (from, to) in pairs(topology) {
        let Some(label) = topology.expected(&from, &to) else {
            continue;
        };
        let wall = wall_of(topology, &from);
        let probed = probe::path(network, &from, &to, &label, wall)?;
        let mut path = PathReport {
            label_rate_back: topology.expected(&to, &from).and_then(|back| back.rate),
            from,
            to,
            label,
            udp: probed.udp,
            tcp: probed.tcp,
            udp_expected: wall.is_none(),
            faults: Vec::new(),
        };
        path.faults = path.judge();
        paths.push(path);
    }
    Ok(NetworkReport {
        network: topology.name.clone(),
        within: !paths.is_empty() && paths.iter().all(|path| path.faults.is_empty()),
        paths,
    })
}

/// Who asks whom: a host behind a NAT or firewall cannot be asked, but asks itself.
fn pairs(topology: &Topology) -> Vec<(String, String)> {
    let open = |host: &str| {
        let site = topology
            .site_of(host)
            .and_then(|site| topology.sites.get(site));
        site.is_some_and(|site| {
            site.nats.is_empty() && site.ip.has_ipv4() && site.firewall.is_none()
        })
    };
    let names: Vec<&str> = topology
        .hosts()
        .map(|(_, host)| host.name.as_str())
        .collect();
    let preferred = ["b", "a"].into_iter().filter(|name| names.contains(name));
    let Some(to) = preferred
        .chain(names.iter().copied())
        .find(|name| open(name))
    else {
        return Vec::new();
    };
    let from = match names.contains(&"a") && to == "b" {
        true => vec!["a"],
        false => names.iter().copied().filter(|name| *name != to).collect(),
    };
    let pair = |from: &str| (from.to_owned(), to.to_owned());
    from.into_iter().map(pair).collect()
}

fn wall_of<'a>(topology: &'a Topology, host: &str) -> Option<&'a FirewallPolicy> {
    let site = topology.site_of(host)?;
    topology.sites.get(site)?.firewall.as_ref()
}

impl PathReport {
    fn judge(&self) -> Vec<String> {
        let mut faults = Vec::new();
        match (&self.udp, self.udp_expected) {
            (Some(udp), true) => self.judge_udp(udp, &mut faults),
            (None, true) => faults.push("UDP: nothing came back".into()),
            (Some(_), false) => faults.push("UDP passes a firewall that forbids it".into()),
            (None, false) => {}
        }
        match &self.tcp {
            Some(tcp) => self.judge_tcp(tcp, &mut faults),
            None => faults.push("TCP: no connection".into()),
        }
        faults
    }

    fn judge_udp(&self, udp: &UdpFigures, faults: &mut Vec<String>) {
        self.judge_rtt("UDP", udp.rtt_ms, faults);
        let arrived = f64::from(udp.sent) * (1.0 - udp.loss_out);
        let ways = [
            (
                "out",
                udp.loss_out,
                self.label.loss_out,
                f64::from(udp.sent),
            ),
            ("back", udp.loss_back, self.label.loss_back, arrived),
        ];
        for (way, loss, label, packets) in ways {
            if (loss - label).abs() > loss_allowance(label, packets) {
                faults.push(format!(
                    "UDP {way}: {:.2} % lost, the label says {:.2} %",
                    loss * 100.0,
                    label * 100.0
                ));
            }
        }
        let rates = [
            ("out", udp.rate_out, self.label.rate, self.label.loss_out),
            (
                "back",
                udp.rate_back,
                self.label_rate_back,
                self.label.loss_back,
            ),
        ];
        for (way, rate, label, loss) in rates {
            // What is lost has used the wire.
            let label = label.map(|label| label as f64 * (1.0 - loss));
            if let (Some(rate), Some(label)) = (rate, label) {
                judge_rate(&format!("UDP {way}"), rate, label, faults);
            }
        }
    }

    fn judge_tcp(&self, tcp: &TcpFigures, faults: &mut Vec<String>) {
        self.judge_rtt("TCP", tcp.rtt_ms, faults);
        let lossless = self.label.loss_out == 0.0 && self.label.loss_back == 0.0;
        if !lossless || !self.label.jitter.is_zero() {
            return;
        }
        let rates = [
            ("TCP out", tcp.rate_out, self.label.rate),
            ("TCP back", tcp.rate_back, self.label_rate_back),
        ];
        for (what, rate, label) in rates {
            if let Some(label) = label {
                judge_rate(what, rate, label as f64, faults);
            }
        }
    }

    fn judge_rtt(&self, what: &str, rtt_ms: f64, faults: &mut Vec<String>) {
        let label = milliseconds(self.label.rtt);
        let allowed = TOLERANCE_MS
            .max(label * TOLERANCE)
            .max(milliseconds(self.label.jitter) / 5.0);
        if (rtt_ms - label).abs() > allowed {
            faults.push(format!(
                "{what}: the round trip is {rtt_ms:.2} ms, the label says {label:.2} ms"
            ));
        }
    }
}

fn judge_rate(what: &str, rate: f64, label: f64, faults: &mut Vec<String>) {
    if (rate - label).abs() > label * TOLERANCE {
        faults.push(format!(
            "{what}: {:.2} Mbit/s, the label says {:.2}",
            rate / 1e6,
            label / 1e6
        ));
    }
}

/// Four standard deviations of the binomial distribution.
fn loss_allowance(share: f64, packets: f64) -> f64 {
    LOSS_TOLERANCE + 4.0 * (share * (1.0 - share) / packets.max(1.0)).sqrt()
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str, udp: Option<UdpFigures>, tcp: Option<TcpFigures>) -> PathReport {
        let topology = Topology::parse(text, "t").unwrap();
        let mut path = PathReport {
            from: "a".into(),
            to: "b".into(),
            label: topology.expected("a", "b").unwrap(),
            label_rate_back: topology.expected("b", "a").unwrap().rate,
            udp,
            tcp,
            udp_expected: wall_of(&topology, "a").is_none(),
            faults: Vec::new(),
        };
        path.faults = path.judge();
        path
    }

    const UDP: UdpFigures = UdpFigures {
        sent: 5000,
        rtt_ms: 50.1,
        rtt_min_ms: 50.0,
        rtt_p99_ms: 50.4,
        loss_out: 0.01,
        loss_back: 0.011,
        rate_out: Some(9_900_000.0),
        rate_back: Some(9_900_000.0),
    };
    const TCP: TcpFigures = TcpFigures {
        connect_ms: 50.2,
        rtt_ms: 50.2,
        rate_out: 1e6,
        rate_back: 1e6,
    };
    const LABEL: &str =
        "host \"a\" { link { delay \"25ms\"; loss \"1%\"; rate \"10 Mbit/s\" } }\nhost \"b\"";

    #[test]
    fn what_is_within_the_label_has_no_faults() {
        let path = path(LABEL, Some(UDP), Some(TCP));
        assert!(path.faults.is_empty(), "{:?}", path.faults);
    }

    #[test]
    fn each_figure_off_the_label_is_named() {
        let off = [
            (
                UdpFigures {
                    rtt_ms: 52.6,
                    ..UDP
                },
                "UDP: the round trip",
            ),
            (
                UdpFigures {
                    loss_out: 0.02,
                    ..UDP
                },
                "UDP out: 2.00 % lost",
            ),
            (
                UdpFigures {
                    loss_back: 0.0,
                    ..UDP
                },
                "UDP back: 0.00 % lost",
            ),
            (
                UdpFigures {
                    rate_out: Some(9_300_000.0),
                    ..UDP
                },
                "UDP out: 9.30 Mbit/s",
            ),
            (
                UdpFigures {
                    rate_back: Some(10_500_000.0),
                    ..UDP
                },
                "UDP back: 10.50 Mbit/s",
            ),
        ];
        for (udp, what) in off {
            let path = path(LABEL, Some(udp), Some(TCP));
            assert_eq!(path.faults.len(), 1, "{:?}", path.faults);
            assert!(path.faults[0].starts_with(what), "{:?}", path.faults);
        }
        let tcp = TcpFigures {
            rtt_ms: 47.0,
            ..TCP
        };
        assert!(path(LABEL, Some(UDP), Some(tcp)).faults[0].starts_with("TCP: the round trip"));
        assert_eq!(path(LABEL, None, None).faults.len(), 2);
    }

    #[test]
    fn tcp_answers_for_the_rate_where_nothing_is_lost() {
        let label = "host \"a\" { link { delay \"25ms\"; rate \"10 Mbit/s\" } }\nhost \"b\"";
        let udp = UdpFigures {
            loss_out: 0.0,
            loss_back: 0.0,
            ..UDP
        };
        let faults = path(label, Some(udp), Some(TCP)).faults;
        assert_eq!(faults.len(), 2, "{faults:?}");
        assert!(faults[0].starts_with("TCP out: 1.00 Mbit/s"), "{faults:?}");
    }

    #[test]
    fn a_firewall_that_leaks_is_a_fault() {
        let label = "host \"a\" { link { delay \"25ms\" }; firewall \"only-tcp-443\" }\nhost \"b\"";
        assert!(path(label, None, Some(TCP)).faults.is_empty());
        assert_eq!(path(label, Some(UDP), Some(TCP)).faults.len(), 1);
    }

    #[test]
    fn who_cannot_be_asked_asks() {
        let of = |name| pairs(&Topology::named(name).unwrap());
        let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
        assert_eq!(of("wan-50ms"), [pair("a", "b")]);
        assert_eq!(of("corporate"), [pair("a", "b")]);
        assert_eq!(of("home-to-home"), [pair("a", "hub"), pair("b", "hub")]);
    }
}
