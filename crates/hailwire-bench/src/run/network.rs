//! Where a contest runs: loopback, or a network of the lab that has been measured first.

use std::{collections::HashMap, net::IpAddr};

use hailwire_lab::{Topology, check, real};

use crate::{BenchError, run_folder::RunFolder};

/// Networks that suites know by name.
pub const NETWORKS: [&str; 14] = [
    "loopback",
    "lan",
    "wan-20ms",
    "wan-20ms-loss1",
    "wan-50ms",
    "wan-50ms-loss1",
    "wan-100ms",
    "transatlantic-85ms",
    "longfat",
    "narrow",
    "narrow-40ms",
    "home-open",
    "home-to-home",
    "nat-hard",
];

/// Topologies that only suites need.
const SUITE_NETWORKS: &[(&str, &str)] = &[
    (
        "wan-20ms",
        "about \"two machines, 20 ms there and back\"\n\
         host \"a\" { link { delay \"10ms\" } }\nhost \"b\"\n",
    ),
    (
        "wan-20ms-loss1",
        "about \"two machines, 20 ms there and back, 1 % of packets lost each way\"\n\
         host \"a\" { link { delay \"10ms\"; loss \"1%\" } }\nhost \"b\"\n",
    ),
    (
        "narrow",
        "about \"20 Mbit/s, 20 ms there and back, a queue of 100 KB\"\n\
         host \"a\" { link { delay \"10ms\"; rate \"20 Mbit/s\"; queue \"0.1 MB\" } }\nhost \"b\"\n",
    ),
    (
        "narrow-40ms",
        "about \"50 Mbit/s, 40 ms there and back, a queue of 128 KB\"\n\
         host \"a\" { link { delay \"20ms\"; rate \"50 Mbit/s\"; queue \"0.128 MB\" } }\nhost \"b\"\n",
    ),
    (
        "home-open",
        "about \"the links of home-to-home, without a router that translates\"\n\
         host \"a\" { link { delay \"10ms\"; up { rate \"40 Mbit/s\" }; down { rate \"200 Mbit/s\" } } }\n\
         host \"b\" { link { delay \"10ms\"; up { rate \"40 Mbit/s\" }; down { rate \"200 Mbit/s\" } } }\n",
    ),
    (
        // Both NATs use a new mapping for each destination: hole punching fails.
        "nat-hard",
        "about \"two homes with routers that map anew for each destination, and a hub\"\n\
         site \"home-a\" { link { delay \"10ms\"; up { rate \"40 Mbit/s\" }; down { rate \"200 Mbit/s\" } }\n\
         nat mapping=\"address-and-port-dependent\" filtering=\"address-and-port-dependent\"\nhost \"a\" }\n\
         site \"home-b\" { link { delay \"10ms\"; up { rate \"40 Mbit/s\" }; down { rate \"200 Mbit/s\" } }\n\
         nat mapping=\"address-and-port-dependent\" filtering=\"address-and-port-dependent\"\nhost \"b\" }\n\
         host \"hub\" { link { delay \"5ms\" } }\n",
    ),
];

/// A network that is up.
pub(crate) enum ContestNetwork {
    /// This machine alone.
    Loopback,
    /// Hosts in namespaces, with a router between them.
    Lab(Box<real::NamespaceNetwork>),
}

/// Round-trip time of a network by its label, in seconds; for the time left.
pub(crate) fn rtt_s(name: &str) -> f64 {
    match name {
        "loopback" | "lan" => 0.0,
        "wan-20ms" | "wan-20ms-loss1" | "narrow" => 0.02,
        "narrow-40ms" | "home-open" | "home-to-home" | "nat-hard" => 0.04,
        "transatlantic-85ms" => 0.085,
        "wan-100ms" | "longfat" => 0.1,
        _ => 0.05,
    }
}

/// Expected seconds to make a network and to measure it.
pub(crate) fn up_s(name: &str) -> f64 {
    // Round trips and loss, then the rate over TCP both ways; where there is a bound, over UDP too.
    let paths = if name == "home-to-home" || name == "nat-hard" {
        2.0
    } else {
        1.0
    };
    let bounded =
        !matches!(name, "lan") && !name.starts_with("wan-") && !name.starts_with("transatlantic-");
    // Less where no rate limit has to be checked.
    let rates = if bounded { 8.0 + 4.5 } else { 3.0 };
    paths * (2.5 + rates + 20.0 * rtt_s(name))
}

/// How often a network is checked until it is within its label.
const MAX_CHECKS: u32 = 3;

/// The networks of a run: the one that is up, and the reasons why others could not be brought up.
#[derive(Default)]
pub(crate) struct ContestNetworks {
    up: Option<(String, ContestNetwork)>,
    reasons: HashMap<String, String>,
}

impl ContestNetworks {
    /// Whether a name is that of the network that is up.
    pub(crate) fn is_up(&self, name: &str) -> bool {
        self.up.as_ref().is_some_and(|(up, _)| up == name)
    }

    /// Whether the state of a network is known: it is up, or could not be brought up.
    pub(crate) fn is_known(&self, name: &str) -> bool {
        self.is_up(name) || self.reasons.contains_key(name)
    }

    /// Brings a network up and checks it; the previous one is taken down.
    ///
    /// The check is kept in the folder, also that of a network which is then not used.
    ///
    /// # Errors
    ///
    /// The reason, as text that follows "not measured: ".
    pub(crate) fn up(
        &mut self,
        name: &str,
        folder: &mut RunFolder,
    ) -> Result<&ContestNetwork, String> {
        if let Some(reason) = self.reasons.get(name) {
            return Err(reason.clone());
        }
        if !self.is_up(name) {
            self.up = None;
            match make(name, folder) {
                Ok(network) => self.up = Some((name.to_owned(), network)),
                Err(reason) => {
                    self.reasons.insert(name.to_owned(), reason.clone());
                    return Err(reason);
                }
            }
        }
        match &self.up {
            Some((_, network)) => Ok(network),
            None => Err(format!("the network {name} is gone")),
        }
    }
}

fn topology(name: &str) -> Result<Topology, String> {
    let own = SUITE_NETWORKS.iter().find(|(own, _)| *own == name);
    match own {
        Some((name, text)) => Topology::parse(text, name),
        None => Topology::named(name),
    }
    .map_err(|error| error.to_string())
}

fn make(name: &str, folder: &mut RunFolder) -> Result<ContestNetwork, String> {
    if name == "loopback" {
        return Ok(ContestNetwork::Loopback);
    }
    let network = real::NamespaceNetwork::up(&topology(name)?).map_err(|error| told(&error))?;
    let mut faults = String::new();
    // Other work on this machine disturbs a check too; the result of every check is kept.
    for _ in 0..MAX_CHECKS {
        let checked = check::check(&network).map_err(|error| told(&error))?;
        folder
            .network(&checked)
            .map_err(|error| error.with_cause())?;
        if checked.within {
            return Ok(ContestNetwork::Lab(Box::new(network)));
        }
        let all = checked.paths.into_iter().flat_map(|path| path.faults);
        faults = all.collect::<Vec<_>>().join("; ");
    }
    Err(format!(
        "the network {name} measured off its label: {faults}"
    ))
}

fn told(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(source) = cause {
        text += &format!(": {source}");
        cause = source.source();
    }
    text
}

impl ContestNetwork {
    /// A command on the host that serves (`b`) or loads (`a`).
    pub(crate) fn command(
        &self,
        host: &str,
        words: &[String],
    ) -> Result<std::process::Command, BenchError> {
        let (program, arguments) = words
            .split_first()
            .ok_or_else(|| BenchError::Invalid("an empty command".into()))?;
        let mut command = match self {
            Self::Loopback => std::process::Command::new(program),
            Self::Lab(network) => network
                .command(host, program)
                .map_err(|error| BenchError::Invalid(told(&error)))?,
        };
        command.args(arguments);
        Ok(command)
    }

    /// The address that a host itself has.
    pub(crate) fn address(&self, host: &str) -> Result<IpAddr, BenchError> {
        match self {
            Self::Loopback => Ok([127, 0, 0, 1].into()),
            Self::Lab(network) => network
                .address(host)
                .map_err(|error| BenchError::Invalid(told(&error))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_network_that_suites_know_is_one_that_the_lab_reads() {
        for name in NETWORKS.into_iter().filter(|name| *name != "loopback") {
            assert!(topology(name).is_ok(), "{name}: {:?}", topology(name));
        }
    }
}
