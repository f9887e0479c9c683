//! `hail ping PEER`.

use std::time::Duration;

use hailwire::admin::{PingAnswer, PingRequest, method};
use hailwire_terminal::{failure::CommandFailure, text};

use super::{CommandContext, connect, did_you_mean};
use crate::plan::PingPlan;

/// Pings as often as planned; with `--json` one [`PingAnswer`] per line. `--timeout` bounds each ping. A
/// peer that does not trust this node answers too, which is shown.
pub(super) async fn run(
    run: &CommandContext,
    who: PingRequest,
    pings: PingPlan,
) -> Result<(), CommandFailure> {
    let client = connect::attach(run).await?;
    let mut told = false;
    let mut ticks = tokio::time::interval(pings.interval.max(Duration::from_millis(1)));
    let mut last = String::new();
    for _ in 0..pings.count {
        ticks.tick().await;
        let ping = client.admin::<_, PingAnswer>(method::PING, &who);
        let pong = match run.timeout {
            None => ping.await,
            Some(limit) => {
                let limited = tokio::time::timeout(limit, ping).await;
                limited.map_err(|_| CommandFailure::timed_out(limit))?
            }
        };
        let pong = did_you_mean::or_peer(&client, &who.who, pong).await?;
        run.output.value(&pong, for_people)?;
        if !pong.trusted && !told {
            told = true;
            run.output.note(
                "it refuses this node's calls until its operator runs `hail trust approve` with this \
                 node's key (`hail id`)",
            );
        }
        if pings.until_direct && pong.path.kind == "direct" {
            return Ok(());
        }
        last = path(&pong);
    }
    if !pings.until_direct {
        return Ok(());
    }
    let what = format!(
        "no ping of {} took a direct path to `{}`: {last}",
        pings.count, who.who
    );
    Err(CommandFailure::general(what).hint(
        "calls work all the same; docs/reference/nat.md says between which networks there is a direct path",
    ))
}

fn for_people(pong: &PingAnswer) -> String {
    let name = if pong.name.is_empty() {
        pong.id.short()
    } else {
        text::one_line(&pong.name)
    };
    let rtt = text::time(Duration::from_micros(pong.rtt_us));
    let tunnel = match pong.reused {
        true => "tunnel reused".to_owned(),
        false => format!(
            "new tunnel in {}",
            text::time(Duration::from_micros(pong.connect_us))
        ),
    };
    let path = path(pong);
    let trust = if pong.trusted {
        ""
    } else {
        ", it does not trust this node"
    };
    let why = if pong.why.is_empty() {
        String::new()
    } else {
        format!(": {}", pong.why)
    };
    format!(
        "{name}: {rtt}, {path}, {}{why}, {tunnel}{trust}\n",
        pong.carrier
    )
}

fn path(pong: &PingAnswer) -> String {
    match pong.path.kind.as_str() {
        "" => "path not chosen yet".to_owned(),
        kind => format!("{kind} {}", text::one_line(&pong.path.remote)),
    }
}
