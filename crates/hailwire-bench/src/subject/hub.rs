//! A hub: not measured itself, but the directory and relay for nodes behind NAT.

use std::time::Duration;

use hailwire_hub::{Hub, HubConfig};
use tempfile::TempDir;

use super::{ReadyAddress, SubjectSetup, failed};
use crate::BenchError;

/// How often its ticket may be used.
const USES: u32 = 1_000;
const LIFETIME: Duration = Duration::from_secs(24 * 3600);

/// A hub that runs until this is dropped with the process.
pub(super) struct ServedHub {
    pub(super) ready: ReadyAddress,
    _hub: Hub,
    _home: TempDir,
}

pub(super) async fn serve(options: &SubjectSetup) -> Result<ServedHub, BenchError> {
    let home = TempDir::new().map_err(BenchError::io("creating a temporary folder"))?;
    let mut config = HubConfig::new(home.path());
    config.listen = (options.listen, 0).into();
    let hub = Box::pin(Hub::start(config))
        .await
        .map_err(failed("starting the hub"))?;
    let ticket = hub
        .invite(USES, LIFETIME)
        .await
        .map_err(failed("making a ticket"))?;
    let ready = ReadyAddress {
        address: hub.tcp_addr().to_string(),
        ticket,
        ..ReadyAddress::default()
    };
    Ok(ServedHub {
        ready,
        _hub: hub,
        _home: home,
    })
}
