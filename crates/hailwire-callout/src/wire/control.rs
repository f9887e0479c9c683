//! The payloads of what passes beside requests.
//!
//! What an agent tells its host unasked is in the encoding of the connection; cancels and pings, and their
//! answers, are always JSON. For health and flow the protocol has two shapes: the numbers that hosts parse, which are
//! written here, and the nested objects of its published types. Both are read.

use bytes::{BufMut as _, BytesMut};
use serde::{Deserialize, Serialize};

use super::{DecodeError, Encoding, frame::FrameType, plain};
use crate::{
    Text,
    control::{AgentHealth, Cancel, CancelReason, FlowControl, HealthState, Notice, Ping},
};

/// The type of a notice's frame; `None` for a line of the log, which only gRPC has.
#[must_use]
pub const fn notice_type(notice: &Notice) -> Option<FrameType> {
    Some(match notice {
        Notice::Health(_) => FrameType::Health,
        Notice::Metrics(_) => FrameType::Metrics,
        Notice::ConfigUpdate(_) => FrameType::ConfigUpdate,
        Notice::Flow(_) => FrameType::Flow,
        Notice::Log(_) => return None,
    })
}

/// Appends the payload of a notice's frame; nothing for a line of the log.
pub fn encode_notice(notice: &Notice, encoding: Encoding, out: &mut BytesMut) {
    match notice {
        Notice::Health(health) => plain::put(health, encoding, out),
        Notice::Metrics(report) => plain::put(report, encoding, out),
        Notice::ConfigUpdate(update) => plain::put(update, encoding, out),
        Notice::Flow(flow) => {
            let (action, id) = match flow {
                FlowControl::Pause(id) => (1, id),
                FlowControl::Resume(id) => (2, id),
            };
            let flow = FlowOutMessage {
                action,
                correlation_id: id.as_deref(),
            };
            plain::put(&flow, encoding, out);
        }
        Notice::Log(_) => {}
    }
}

/// Reads the payload of a notice's frame.
///
/// # Errors
///
/// [`DecodeError`], also for the type of what is no notice.
pub fn decode_notice(
    kind: FrameType,
    payload: &[u8],
    encoding: Encoding,
) -> Result<Notice, DecodeError> {
    Ok(match kind {
        FrameType::Health => {
            Notice::Health(plain::take::<HealthMessage>(payload, encoding)?.into_health()?)
        }
        FrameType::Metrics => Notice::Metrics(plain::take(payload, encoding)?),
        FrameType::ConfigUpdate => Notice::ConfigUpdate(plain::take(payload, encoding)?),
        FrameType::Flow => {
            Notice::Flow(plain::take::<FlowInMessage>(payload, encoding)?.into_flow())
        }
        other => return Err(DecodeError(format!("{other:?} is not a notice"))),
    })
}

/// Appends the payload of a cancel's frame.
pub fn encode_cancel(cancel: &Cancel, out: &mut BytesMut) {
    let reason = match cancel.reason {
        CancelReason::ClientDisconnect => 0,
        CancelReason::Timeout => 1,
        CancelReason::BlockedByAgent => 2,
        CancelReason::UpstreamError => 3,
        CancelReason::ProxyShutdown => 4,
        CancelReason::Manual => 5,
    };
    let cancel = CancelMessage {
        correlation_id: cancel.correlation_id.clone(),
        reason,
        timestamp_ms: cancel.timestamp_ms,
    };
    put_json(&cancel, out);
}

/// Reads the payload of a cancel's frame. A reason that is not known counts as [`CancelReason::Manual`].
///
/// # Errors
///
/// [`DecodeError`].
pub fn decode_cancel(payload: &[u8]) -> Result<Cancel, DecodeError> {
    let cancel: CancelMessage = plain::take(payload, Encoding::Json)?;
    Ok(Cancel {
        correlation_id: cancel.correlation_id,
        reason: match cancel.reason {
            0 => CancelReason::ClientDisconnect,
            1 => CancelReason::Timeout,
            2 => CancelReason::BlockedByAgent,
            3 => CancelReason::UpstreamError,
            4 => CancelReason::ProxyShutdown,
            _ => CancelReason::Manual,
        },
        timestamp_ms: cancel.timestamp_ms,
    })
}

/// Appends the payload of a ping's frame. Its answer has the same payload, byte for byte.
pub fn encode_ping(ping: &Ping, out: &mut BytesMut) {
    put_json(ping, out);
}

/// Reads the payload of a ping's frame, or of the answer's.
///
/// # Errors
///
/// [`DecodeError`].
pub fn decode_ping(payload: &[u8]) -> Result<Ping, DecodeError> {
    plain::take(payload, Encoding::Json)
}

fn put_json(value: &impl Serialize, out: &mut BytesMut) {
    let written = serde_json::to_writer(out.writer(), value);
    debug_assert!(written.is_ok(), "memory takes everything: {written:?}");
}

#[derive(Serialize, Deserialize)]
struct CancelMessage {
    correlation_id: Text,
    #[serde(default)]
    reason: i64,
    #[serde(default)]
    timestamp_ms: u64,
}

#[derive(Serialize)]
struct FlowOutMessage<'a> {
    action: u8,
    #[serde(skip_serializing_if = "Option::is_none")]
    correlation_id: Option<&'a str>,
}

#[derive(Deserialize)]
struct FlowInMessage {
    #[serde(default)]
    correlation_id: Option<Text>,
    #[serde(default)]
    action: Option<FlowAction>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum FlowAction {
    Number(i64),
    Tagged {
        #[serde(rename = "type")]
        kind: String,
        #[serde(default)]
        buffer_available: Option<u64>,
    },
}

impl FlowInMessage {
    fn into_flow(self) -> FlowControl {
        let pause = match self.action {
            Some(FlowAction::Number(code)) => code == 1,
            Some(FlowAction::Tagged {
                kind,
                buffer_available,
            }) => kind == "pause" || buffer_available == Some(0),
            None => false,
        };
        if pause {
            FlowControl::Pause(self.correlation_id)
        } else {
            FlowControl::Resume(self.correlation_id)
        }
    }
}

#[derive(Deserialize)]
struct HealthMessage {
    state: HealthStateField,
    #[serde(default)]
    message: Option<String>,
    #[serde(default)]
    in_flight: Option<u32>,
    #[serde(default)]
    drain_eta_ms: Option<u64>,
    #[serde(default)]
    timeout_multiplier: Option<f32>,
    #[serde(default)]
    load: Option<HealthLoad>,
}

#[derive(Deserialize)]
struct HealthLoad {
    #[serde(default)]
    in_flight: Option<u32>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum HealthStateField {
    Number(u8),
    Tagged {
        status: String,
        #[serde(default)]
        timeout_multiplier: Option<f32>,
        #[serde(default)]
        eta_ms: Option<u64>,
        #[serde(default)]
        reason: Option<String>,
    },
}

impl HealthMessage {
    fn into_health(self) -> Result<AgentHealth, DecodeError> {
        let mut health = AgentHealth {
            state: HealthState::Healthy,
            message: self.message,
            in_flight: self.in_flight.or(self.load.and_then(|load| load.in_flight)),
            drain_eta_ms: self.drain_eta_ms,
            timeout_multiplier: self.timeout_multiplier,
        };
        match self.state {
            HealthStateField::Number(code) => {
                health.state = HealthState::try_from(code).map_err(DecodeError)?;
            }
            HealthStateField::Tagged {
                status,
                timeout_multiplier,
                eta_ms,
                reason,
            } => {
                health.state = match status.as_str() {
                    "healthy" => HealthState::Healthy,
                    "degraded" => HealthState::Degraded,
                    "draining" => HealthState::Draining,
                    "unhealthy" => HealthState::Unhealthy,
                    other => return Err(DecodeError(format!("unknown health state {other}"))),
                };
                health.timeout_multiplier = timeout_multiplier.or(health.timeout_multiplier);
                health.drain_eta_ms = eta_ms.or(health.drain_eta_ms);
                health.message = health.message.or(reason);
            }
        }
        Ok(health)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notices_are_read_as_they_were_written_in_both_encodings() {
        let health = AgentHealth {
            state: HealthState::Draining,
            message: Some("soon".to_owned()),
            in_flight: Some(3),
            drain_eta_ms: Some(100),
            timeout_multiplier: Some(1.5),
        };
        let notices = [
            Notice::Health(health),
            Notice::Flow(FlowControl::Pause(None)),
            Notice::Flow(FlowControl::Resume(Some("c1".into()))),
        ];
        for encoding in [Encoding::Json, Encoding::MessagePack] {
            for notice in &notices {
                let mut out = BytesMut::new();
                encode_notice(notice, encoding, &mut out);
                let kind = notice_type(notice).unwrap();
                assert_eq!(&decode_notice(kind, &out, encoding).unwrap(), notice);
            }
        }
    }

    #[test]
    fn both_shapes_of_health_and_flow_are_read() {
        let read = |kind, text: &[u8]| decode_notice(kind, text, Encoding::Json).unwrap();
        let tagged = br#"{"state":{"status":"unhealthy","reason":"no","recoverable":true}}"#;
        let Notice::Health(health) = read(FrameType::Health, tagged) else {
            panic!("another notice");
        };
        assert_eq!(health.state, HealthState::Unhealthy);
        assert_eq!(health.message.as_deref(), Some("no"));
        let paused = Notice::Flow(FlowControl::Pause(None));
        assert_eq!(read(FrameType::Flow, br#"{"action":1}"#), paused);
        assert_eq!(
            read(FrameType::Flow, br#"{"action":{"type":"pause"}}"#),
            paused
        );
    }

    #[test]
    fn a_cancel_says_why() {
        let cancel = Cancel {
            correlation_id: "c1".into(),
            reason: CancelReason::UpstreamError,
            timestamp_ms: 5,
        };
        let mut out = BytesMut::new();
        encode_cancel(&cancel, &mut out);
        assert_eq!(
            &out[..],
            br#"{"correlation_id":"c1","reason":3,"timestamp_ms":5}"#
        );
        assert_eq!(decode_cancel(&out).unwrap(), cancel);
    }
}
