//! The arguments of leases: `hail lead`, `hail leases`.

use std::{ffi::OsString, time::Duration};

use clap::Args;
use hailwire_wire::{HubUrl, address::LeaseName};

use super::duration;

/// Run a program while this machine leads: of all that give the same name, one runs
///
/// It waits until the hub gives it the lease of that name, runs CMD, and gives the lease back when CMD ends. CMD is stopped before the
/// lease runs out where the hub cannot be reached in time. HAIL_LEASE_TOKEN in its environment is higher than that of whoever led
/// before.
#[derive(Debug, Args)]
pub(crate) struct LeadArgs {
    /// What is led: 1 to 64 of a-z 0-9 . _ -
    #[arg(value_name = "NAME")]
    pub(crate) name: LeaseName,
    /// How long the lease lasts without being renewed, from 1s to 10m
    #[arg(long, value_name = "D", value_parser = duration, default_value = "15s")]
    pub(crate) ttl: Duration,
    /// The hub that keeps it [default: the only one]
    #[arg(long, value_name = "URL")]
    pub(crate) hub: Option<HubUrl>,
    /// The program and its arguments, after `--`
    #[arg(value_name = "CMD", required = true, last = true, num_args = 1..)]
    pub(crate) command: Vec<OsString>,
}

/// List the leases that are held at a hub
#[derive(Debug, Args)]
pub(crate) struct LeasesArgs {
    /// The hub that keeps them [default: the only one]
    #[arg(long, value_name = "URL")]
    pub(crate) hub: Option<HubUrl>,
}
