//! Networks to test in.

use std::{ffi::OsString, str::FromStr};

use clap::{Args, Subcommand};

/// Networks to test in: delay, loss, rates, NATs and firewalls, for any program
#[derive(Debug, Args)]
pub(crate) struct LabArgs {
    #[command(subcommand)]
    pub(crate) command: LabCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum LabCommand {
    /// List the topologies that come with hail
    List,
    /// Print a topology, as the start of a file of your own
    Show {
        /// Name of a topology, or a file
        #[arg(value_name = "TOPOLOGY")]
        topology: String,
    },
    Run(LabRunArgs),
    /// Measure a network and compare it with what its topology says
    ///
    /// Measures round trip, loss and rate for UDP and for TCP. The exit code is 1 where one of them
    /// is off by more than 5 % (or 1 ms).
    Check {
        /// Name of a topology, or a file
        #[arg(value_name = "TOPOLOGY")]
        topology: String,
    },
}

/// Run a program inside a host of a network
///
/// The program has hail's own input, output and terminal, and its exit code becomes hail's. It finds
/// the address of each host in LAB_HOST, for example LAB_B, and its namespace in LAB_NS_HOST, for
/// `nsenter --net="$LAB_NS_B" PROGRAM`. Everything is gone when it ends.
#[derive(Debug, Args)]
pub(crate) struct LabRunArgs {
    /// Name of a topology, or a file
    #[arg(value_name = "TOPOLOGY")]
    pub(crate) topology: String,
    /// The host that the program runs in
    #[arg(long, value_name = "HOST", default_value = "a")]
    pub(crate) host: String,
    /// Also run a shell command in a host, started first and ended with the program
    #[arg(long, value_name = "HOST=CMD")]
    pub(crate) with: Vec<HostCommand>,
    /// Seed of the random numbers: the same seed drops the same packets of the same traffic
    #[arg(long, value_name = "N", default_value = "1")]
    pub(crate) seed: u64,
    /// The program and its arguments
    #[arg(
        last = true,
        required = true,
        value_name = "PROGRAM",
        num_args = 1..
    )]
    pub(crate) program: Vec<OsString>,
}

/// A shell command in a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HostCommand {
    pub(crate) host: String,
    pub(crate) command: String,
}

impl FromStr for HostCommand {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (host, command) = text.split_once('=').ok_or("expected HOST=CMD")?;
        if host.is_empty() || command.trim().is_empty() {
            return Err("expected HOST=CMD");
        }
        Ok(Self {
            host: host.to_owned(),
            command: command.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_may_hold_equals_signs() {
        let with: HostCommand = "b=A=1 run".parse().unwrap();
        assert_eq!(
            (with.host.as_str(), with.command.as_str()),
            ("b", "A=1 run")
        );
        for bad in ["b", "=x", "b=", "b= "] {
            assert!(bad.parse::<HostCommand>().is_err(), "{bad}");
        }
    }
}
