//! `hail bench call`: load on an agent, and how long its answers take.

use std::time::Duration;

use hailwire::{Client, Code, DataDir};
use hailwire_bench::agent_load::{self, AgentLoad, LoadResult, LoadShape};
use hailwire_terminal::{failure::CommandFailure, global::CommonOptions, text};

/// Puts the load on the agent and prints a table; fails where no call was answered.
pub(super) async fn run(common: &CommonOptions, load: AgentLoad) -> Result<(), CommandFailure> {
    let data = DataDir::new(common.data.clone());
    let client = Client::attach(&data).await.map_err(|error| {
        CommandFailure::caused(Code::Unavailable, &error).hint("start the node with `hail up -d`")
    })?;
    let shape = load.shape;
    let result = agent_load::run(&client, load).await;
    common
        .output
        .value(&result, |result| for_people(result, shape))?;
    if result.answered == 0 {
        let codes: Vec<&str> = result.failed.keys().copied().collect();
        let message = format!("no call was answered: {}", codes.join(", "));
        return Err(
            CommandFailure::general(message).hint("see what one call says: `hail call AGENT`")
        );
    }
    Ok(())
}

fn for_people(result: &LoadResult, shape: LoadShape) -> String {
    let time = |us: f64| text::time(Duration::from_secs_f64(us / 1e6));
    let asked = match shape {
        LoadShape::Rate(rate) => format!(" of {rate:.0} a second"),
        LoadShape::Callers(1) => " by one caller".to_owned(),
        LoadShape::Callers(callers) => format!(" by {callers} callers"),
    };
    let failed = match result.failures() {
        0 => "none".to_owned(),
        _ => {
            let each = result.failed.iter();
            let each = each.map(|(code, count)| format!("{count} {code}"));
            each.collect::<Vec<_>>().join(", ")
        }
    };
    format!(
        "answered  {} in {:.1} s, {:.0} a second{asked}\nfailed    {failed}\nbytes     {} of answers\n\n\
         p50       {}\np90       {}\np99       {}\np99.9     {}\nmax       {}\n",
        result.answered,
        result.seconds,
        result.per_second,
        text::bytes(result.bytes),
        time(result.p50_us),
        time(result.p90_us),
        time(result.p99_us),
        time(result.p999_us),
        time(result.max_us),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_says_what_was_asked_for_and_what_came() {
        let result = LoadResult {
            answered: 990,
            failed: [("unavailable", 10)].into(),
            seconds: 10.0,
            per_second: 99.0,
            bytes: 2048,
            p50_us: 1500.0,
            max_us: 2_000_000.0,
            ..LoadResult::default()
        };
        let text = for_people(&result, LoadShape::Rate(100.0));
        for part in [
            "990 in 10.0 s, 99 a second of 100 a second",
            "failed    10 unavailable",
            "2.0 KiB",
            "p50       1.50 ms",
            "max       2.00 s",
        ] {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
    }
}
