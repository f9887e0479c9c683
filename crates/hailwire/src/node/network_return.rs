//! Dials that outlast an outage of this machine's own network: each is begun anew, beside the first attempt, when the network is
//! back ([`hailwire_core::dial_patience`] says when that is worth it).

use std::collections::BTreeSet;

use hailwire_core::dial_patience::{DIALLED_ANEW_AFTER, NetworkReach};
use hailwire_wire::Status;
use iroh::{Endpoint, Watcher as _, endpoint::RelayStatus};

/// Dials, and once more when this machine gains a way out meanwhile. Whoever succeeds first counts; the error is that of
/// the last one.
///
/// # Cancel safety
///
/// Dropping the future drops both dials.
pub(super) async fn dial_through_outages<T, F>(
    endpoint: &Endpoint,
    dial: impl Fn() -> F,
) -> Result<T, Status>
where
    F: Future<Output = Result<T, Status>>,
{
    let (first, returned) = (dial(), gained(endpoint));
    let returned = async { tokio::join!(returned, tokio::time::sleep(DIALLED_ANEW_AFTER)) };
    tokio::pin!(first, returned);
    tokio::select! {
        biased;
        outcome = &mut first => return outcome,
        _ = &mut returned => tracing::debug!("the network is back: dialled anew"),
    }
    let second = dial();
    tokio::pin!(second);
    tokio::select! {
        outcome = &mut first => if outcome.is_ok() { outcome } else { second.await },
        outcome = &mut second => if outcome.is_ok() { outcome } else { first.await },
    }
}

/// Waits until this machine has a way out that it did not have a moment before; for ever if the endpoint ends.
async fn gained(endpoint: &Endpoint) {
    let (mut addresses, mut relays) = (endpoint.watch_addr(), endpoint.home_relay_status());
    let mut before = NetworkReach {
        addresses: addresses.get().ip_addrs().copied().collect(),
        relays: connected(relays.get()),
    };
    loop {
        let mut now = before.clone();
        tokio::select! {
            Ok(own) = addresses.updated() => now.addresses = own.ip_addrs().copied().collect(),
            Ok(statuses) = relays.updated() => now.relays = connected(statuses),
            else => std::future::pending().await,
        }
        if now.gained_since(&before) {
            return;
        }
        before = now;
    }
}

fn connected(statuses: Vec<RelayStatus>) -> BTreeSet<String> {
    let connected = statuses.into_iter().filter(|status| status.is_connected());
    connected.map(|status| status.url().to_string()).collect()
}
