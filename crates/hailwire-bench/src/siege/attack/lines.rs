//! A peer that asks a program which is kept for all calls what is no line, and gives calls up half-way.

use std::time::Duration;

use bytes::Bytes;
use hailwire::{Priority, carrier::Connection};
use hailwire_wire::frame::FrameKind;
use tokio::time::timeout;

use super::{Orders, PAUSE, Tally, pace};
use crate::{
    BenchError,
    siege::peer::{self, call, failed, frame_of},
};

/// Questions a second.
const PER_SECOND: f64 = 10.0;

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(10);

pub(super) async fn run(orders: &Orders, tally: &Tally) -> Result<(), BenchError> {
    let endpoint = orders.seed(0)?.endpoint().await?;
    loop {
        let asked = async {
            let connection = orders.victim.quic(&endpoint).await?;
            let _control = peer::greet(&connection).await?;
            tally.did("connections", 1);
            let mut pace = pace(PER_SECOND);
            for turn in 0_usize.. {
                pace.tick().await;
                question(&connection, turn, tally).await?;
            }
            Ok::<(), BenchError>(())
        };
        if let Err(error) = asked.await {
            tally.refused(&error.told());
        }
        tokio::time::sleep(PAUSE).await;
    }
}

async fn question(connection: &Connection, turn: usize, tally: &Tally) -> Result<(), BenchError> {
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
            tally.did("given up", 1);
            let opened = connection.open(Priority::Medium).await;
            let (mut send, _recv) = opened.map_err(failed("the call"))?;
            let question = frame_of(FrameKind::DATA, b"never mind");
            let asked = send.write_many(&mut [call("lines", ""), question]).await;
            // Both halves are dropped here, which is a cancel.
            return asked.map_err(failed("the call"));
        }
    };
    tally.did(what, 1);
    let asked = peer::ask(connection, "lines", "", body.clone());
    match timeout(PATIENCE, asked).await {
        Err(_) => tally.refused("no answer within 10 s"),
        Ok(Err(BenchError::Told(status))) => tally.refused(&format!("{what}: {status}")),
        Ok(Err(error)) => return Err(error),
        Ok(Ok(answer)) => {
            let own = answer.strip_suffix(b"\n") == Some(&body[..]);
            tally.did(
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
