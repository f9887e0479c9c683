//! A peer that sends invalid lines to a program that answers all calls (`--lines`), and cancels calls half-way.

use std::time::Duration;

use bytes::Bytes;
use hailwire::{Priority, carrier::CarrierConnection};
use hailwire_wire::frame::FrameKind;
use tokio::time::timeout;

use super::{AttackCounters, AttackOrders, PAUSE_AFTER_REFUSAL, pace};
use crate::{
    BenchError,
    siege::peer::{self, call, frame_of},
};

/// Calls a second.
const PER_SECOND: f64 = 10.0;

/// How long an answer may take.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

pub(super) async fn run(
    orders: &AttackOrders,
    counters: &AttackCounters,
) -> Result<(), BenchError> {
    let endpoint = orders.seed(0)?.endpoint().await?;
    loop {
        let asked = async {
            let connection = orders.victim.quic(&endpoint).await?;
            let _control = peer::greet(&connection).await?;
            counters.did("connections", 1);
            let mut pace = pace(PER_SECOND);
            for turn in 0_usize.. {
                pace.tick().await;
                question(&connection, turn, counters).await?;
            }
            Ok::<(), BenchError>(())
        };
        if let Err(error) = asked.await {
            counters.refused(&error.with_cause());
        }
        tokio::time::sleep(PAUSE_AFTER_REFUSAL).await;
    }
}

async fn question(
    connection: &CarrierConnection,
    turn: usize,
    counters: &AttackCounters,
) -> Result<(), BenchError> {
    let (what, body): (&str, Bytes) = match turn % 6 {
        0 => ("carriage returns", "one\rtwo\rthree".into()),
        1 => ("two lines", "one\ntwo".into()),
        2 => ("zero bytes", vec![0; 100].into()),
        3 => (
            "separators",
            "one\u{2028}two\u{85}three\x0bfour\x0cfive".into(),
        ),
        4 => ("long lines", vec![b'x'; 200_000].into()),
        _ => {
            counters.did("given up", 1);
            let opened = connection.open(Priority::Medium).await;
            let (mut send, _recv) = opened.map_err(BenchError::failed("the call"))?;
            let question = frame_of(FrameKind::DATA, b"never mind");
            let asked = send.write_many(&mut [call("lines", ""), question]).await;
            // Both halves are dropped here, which is a cancel.
            return asked.map_err(BenchError::failed("the call"));
        }
    };
    counters.did(what, 1);
    let asked = peer::ask(connection, "lines", "", body.clone());
    match timeout(ANSWER_TIMEOUT, asked).await {
        Err(_) => counters.refused("no answer within 10 s"),
        Ok(Err(BenchError::Reported(status))) => counters.refused(&format!("{what}: {status}")),
        Ok(Err(error)) => return Err(error),
        Ok(Ok(answer)) => {
            let own = answer.strip_suffix(b"\n") == Some(&body[..]);
            counters.did(
                if own {
                    "answered"
                } else {
                    "answered with something else"
                },
                1,
            );
        }
    }
    Ok(())
}
