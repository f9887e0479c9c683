//! Where a contest runs: loopback, or a network of the lab that has been measured first.

use std::{collections::HashMap, net::IpAddr};

use crate::BenchError;

/// Networks that suites know by name.
pub const NETWORKS: [&str; 10] = [
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
];

/// A network that is there.
#[derive(Debug)]
pub(crate) enum Network {
    /// This machine alone.
    Loopback,
}

/// Round-trip time of a network by its label, in seconds; for the time left.
pub(crate) fn rtt_s(name: &str) -> f64 {
    match name {
        "loopback" | "lan" => 0.0,
        "wan-20ms" | "wan-20ms-loss1" | "narrow" => 0.02,
        "narrow-40ms" => 0.04,
        "transatlantic-85ms" => 0.085,
        "wan-100ms" | "longfat" => 0.1,
        _ => 0.05,
    }
}

/// The networks of a run: the one that is up, and why others are not.
#[derive(Debug, Default)]
pub(crate) struct Networks {
    reasons: HashMap<String, String>,
}

impl Networks {
    /// The network of a name, up and measured.
    ///
    /// # Errors
    ///
    /// Why there is none, in words that follow "not measured: ".
    pub(crate) fn up(&mut self, name: &str) -> Result<Network, String> {
        if name == "loopback" {
            return Ok(Network::Loopback);
        }
        let reason = self.reasons.entry(name.to_owned());
        Err(reason
            .or_insert_with(|| format!("the network {name} needs the lab"))
            .clone())
    }
}

impl Network {
    /// A command on the machine that serves (`b`) or loads (`a`).
    pub(crate) fn command(
        &self,
        _host: &str,
        words: &[String],
    ) -> Result<std::process::Command, BenchError> {
        let (program, arguments) = words
            .split_first()
            .ok_or_else(|| BenchError::Wrong("an empty command".into()))?;
        let mut command = std::process::Command::new(program);
        command.args(arguments);
        Ok(command)
    }

    /// Where a host is to be reached.
    pub(crate) fn address(&self, _host: &str) -> IpAddr {
        [127, 0, 0, 1].into()
    }
}
