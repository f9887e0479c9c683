//! Callouts: a host and an agent of Agent Protocol v2, the bytes alone, and single operations.
//!
//! | module | subject |
//! |---|---|
//! | `raw` | bytes back and forth over a Unix socket, of the sizes of an event and its answer |
//! | `direct` | our agent, and our host asking any agent |
//! | `remote` | the same with two nodes between them |
//! | `udp` | datagrams back and forth: the round trip of a network |
//! | `operations` | what the two do besides the socket, one operation at a time |
//! | `sizes` | how many bytes a request takes on a socket |

pub(super) mod direct;
pub(super) mod operations;
pub(super) mod raw;
pub(super) mod remote;
mod sizes;
pub(super) mod udp;

use crate::work::MeasuredWork;

/// How callouts travel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum CalloutWire {
    /// JSON over a Unix socket.
    Json,
    /// MessagePack over a Unix socket.
    #[default]
    #[value(name = "msgpack")]
    MessagePack,
    /// gRPC over TCP.
    Grpc,
}

/// The figures of a closed loop besides its times.
fn rate(times: MeasuredWork, count: u64, seconds: f64, bytes: usize) -> MeasuredWork {
    let per_s = count as f64 / seconds;
    let moved = per_s * bytes as f64;
    let mut measured = times
        .with("count", count as f64)
        .with("seconds", seconds)
        .with("messages_per_s", per_s)
        .with("megabits_per_s", moved * 8.0 / 1e6);
    if bytes > 0 {
        measured = measured.with("gibibytes_per_s", moved / f64::from(1 << 30));
    }
    measured
}
