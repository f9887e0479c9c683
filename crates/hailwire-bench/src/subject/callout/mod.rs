//! Callouts: a host and an agent of Agent Protocol v2, the bytes alone, and single operations.
//!
//! | module | subject |
//! |---|---|
//! | `raw` | bytes back and forth over a Unix socket, of the sizes of an event and its answer |
//! | `ends` | our agent, and our host at any agent |
//! | `far` | the same with two nodes between them |
//! | `udp` | datagrams back and forth: the round trip of a network |
//! | `operations` | what the two do besides, one operation at a time |
//! | `sizes` | how many bytes a request is on a socket |

pub(super) mod ends;
pub(super) mod far;
pub(super) mod operations;
pub(super) mod raw;
mod sizes;
pub(super) mod udp;

use crate::work::Measured;

/// How callouts travel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wire {
    /// JSON over a Unix socket.
    Json,
    /// MessagePack over a Unix socket.
    #[default]
    MessagePack,
    /// gRPC.
    Grpc,
}

impl Wire {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Json, Self::MessagePack, Self::Grpc];

    /// Its word.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Json => "json",
            Self::MessagePack => "msgpack",
            Self::Grpc => "grpc",
        }
    }
}

/// The figures of a closed loop besides its times.
fn rate(times: Measured, count: u64, seconds: f64, bytes: usize) -> Measured {
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
