//! A hub: no subject itself, but where nodes behind NAT find each other, and their relay.

use std::time::Duration;

use hailwire_hub::{Hub, HubConfig};
use tempfile::TempDir;

use super::{Options, Ready, failed};
use crate::BenchError;

/// How often its ticket may be used.
const USES: u32 = 1_000;
const LIFETIME: Duration = Duration::from_secs(24 * 3600);

/// A hub that runs until this is dropped with the process.
pub(super) struct Served {
    pub(super) ready: Ready,
    _hub: Hub,
    _home: TempDir,
}

pub(super) async fn serve(options: &Options) -> Result<Served, BenchError> {
    let home = TempDir::new().map_err(BenchError::io("a temporary folder"))?;
    let mut config = HubConfig::new(home.path());
    config.listen = (options.listen, 0).into();
    let hub = Box::pin(Hub::start(config))
        .await
        .map_err(failed("the hub"))?;
    let ticket = hub
        .invite(USES, LIFETIME)
        .await
        .map_err(failed("inviting"))?;
    let ready = Ready {
        address: hub.tcp_addr().to_string(),
        ticket,
        ..Ready::default()
    };
    Ok(Served {
        ready,
        _hub: hub,
        _home: home,
    })
}
