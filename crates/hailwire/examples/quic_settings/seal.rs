//! The ciphers of TLS 1.3 as QUIC uses them: packets sealed and opened in a second.

use std::{hint::black_box, time::Instant};

use rustls::{
    CipherSuite, Side, SupportedCipherSuite,
    quic::{Keys, Version},
};
use serde_json::json;

use crate::Failure;

/// Payload of a full packet.
const PAYLOAD: usize = 1400;

/// Packets in one round; rounds are interleaved.
const PACKETS: u64 = 200_000;

/// Rounds.
const ROUNDS: usize = 5;

pub(crate) fn measure() -> Result<(), Failure> {
    let suites = rustls::crypto::ring::default_provider().cipher_suites;
    for repeat in 0..ROUNDS {
        for suite in &suites {
            let SupportedCipherSuite::Tls13(suite) = suite else {
                continue;
            };
            let name = suite.common.suite;
            let (sealing, opening) = round(suite).ok_or("not for QUIC")?;
            println!("{}", line(name, repeat, sealing, opening));
        }
    }
    Ok(())
}

/// Nanoseconds to seal and to open one packet.
fn round(suite: &'static rustls::Tls13CipherSuite) -> Option<(f64, f64)> {
    let keys = |side| {
        let suite = suite.quic_suite()?;
        Some(Keys::initial(
            Version::V1,
            suite.suite,
            suite.quic,
            b"measured",
            side,
        ))
    };
    let (sealer, opener) = (
        keys(Side::Client)?.local.packet,
        keys(Side::Server)?.remote.packet,
    );
    let header = [0x40_u8; 20];
    let mut packets: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
    let start = Instant::now();
    let mut payload = vec![7_u8; PAYLOAD];
    for number in 0..PACKETS {
        let tag = sealer
            .encrypt_in_place(number, &header, &mut payload)
            .ok()?;
        if number < 64 {
            packets.push((payload.clone(), tag.as_ref().to_vec()));
            payload.fill(7);
        }
    }
    let sealing = start.elapsed();
    black_box(&payload);
    let sealed: Vec<Vec<u8>> = packets
        .into_iter()
        .map(|(body, tag)| [body, tag].concat())
        .collect();
    let mut buffer = vec![0_u8; PAYLOAD + sealer.tag_len()];
    let start = Instant::now();
    for number in (0..64).cycle().take(PACKETS as usize) {
        buffer.copy_from_slice(sealed.get(number as usize)?);
        black_box(opener.decrypt_in_place(number, &header, &mut buffer).ok()?);
    }
    let opening = start.elapsed();
    let each = |time: std::time::Duration| time.as_nanos() as f64 / PACKETS as f64;
    Some((each(sealing), each(opening)))
}

fn line(suite: CipherSuite, repeat: usize, sealing: f64, opening: f64) -> serde_json::Value {
    json!({
        "work": "seal",
        "cipher": format!("{suite:?}"),
        "repeat": repeat,
        "payload": PAYLOAD,
        "seal_ns": sealing.round(),
        "open_ns": opening.round(),
    })
}
