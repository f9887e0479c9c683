//! Codes on HTTP/2.
//!
//! An end of one direction with a code travels as a trailer, a stop as a capsule; RST_STREAM
//! (RFC 9113, 6.4) only ever says that both directions are over, as when whoever held them is gone.
//! Its error codes are read as gRPC reads them
//! (<https://grpc.github.io/grpc/core/md_doc__p_r_o_t_o_c_o_l-_h_t_t_p2.html>).

use h2::Reason;
use hailwire_wire::{Code, Priority};
use http::{HeaderMap, HeaderName, HeaderValue};

/// The trailer with which a writer gives its direction up.
pub(super) const CODE: HeaderName = HeaderName::from_static("hailwire-code");

/// The urgency of a stream (RFC 9218).
pub(super) const PRIORITY: HeaderName = HeaderName::from_static("priority");

/// The code that a reset by the far side means.
pub(super) const fn of_reset(reason: Reason) -> Code {
    match reason {
        // The far side had answered whole and wanted no more (RFC 9113, 8.1).
        Reason::NO_ERROR | Reason::CANCEL => Code::Cancelled,
        Reason::REFUSED_STREAM => Code::Unavailable,
        Reason::ENHANCE_YOUR_CALM => Code::ResourceExhausted,
        Reason::INADEQUATE_SECURITY => Code::PermissionDenied,
        _ => Code::Internal,
    }
}

/// The trailers that end a direction with a code.
pub(super) fn trailers(code: Code) -> HeaderMap {
    let mut trailers = HeaderMap::with_capacity(1);
    trailers.insert(CODE, HeaderValue::from(u16::from(code.number())));
    trailers
}

/// The code in trailers: without one that can be read, it is unknown.
pub(super) fn of_trailers(trailers: &HeaderMap) -> Code {
    let number = trailers.get(CODE).and_then(|value| value.to_str().ok());
    number
        .and_then(|number| number.parse().ok())
        .map_or(Code::Unknown, Code::from_number)
}

/// A priority as an urgency: the default of both is the same.
pub(super) const fn urgency(priority: Priority) -> HeaderValue {
    HeaderValue::from_static(match priority {
        Priority::Critical => "u=0",
        Priority::High => "u=1",
        Priority::Medium => "u=3",
        Priority::Low => "u=5",
    })
}

/// An urgency as a priority. One that cannot be read counts as not given (RFC 9218, 4).
pub(super) fn priority(headers: &HeaderMap) -> Priority {
    let value = headers.get(PRIORITY).and_then(|value| value.to_str().ok());
    let urgency = value
        .into_iter()
        .flat_map(|value| value.split(','))
        .find_map(|part| part.trim().strip_prefix("u="))
        .and_then(|urgency| urgency.parse().ok());
    match urgency {
        Some(0) => Priority::Critical,
        Some(1 | 2) => Priority::High,
        Some(4..=7) => Priority::Low,
        _ => Priority::Medium,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_survives_its_trailers() {
        for code in Code::ALL {
            assert_eq!(of_trailers(&trailers(code)), code);
        }
        let mut odd = HeaderMap::new();
        assert_eq!(of_trailers(&odd), Code::Unknown);
        odd.insert(CODE, HeaderValue::from_static("-1"));
        assert_eq!(of_trailers(&odd), Code::Unknown);
    }

    #[test]
    fn every_priority_survives_as_an_urgency_and_others_are_read() {
        for given in Priority::ALL {
            let mut headers = HeaderMap::new();
            headers.insert(PRIORITY, urgency(given));
            assert_eq!(priority(&headers), given);
        }
        for (text, read) in [
            ("i, u=2", Priority::High),
            ("u=7", Priority::Low),
            ("u=9", Priority::Medium),
            ("u=", Priority::Medium),
            ("\u{1}", Priority::Medium),
        ] {
            let mut headers = HeaderMap::new();
            if let Ok(value) = HeaderValue::from_str(text) {
                headers.insert(PRIORITY, value);
            }
            assert_eq!(priority(&headers), read, "{text:?}");
        }
        assert_eq!(priority(&HeaderMap::new()), Priority::Medium);
    }
}
