//! Slots for handshakes of QUIC that are under way.
//!
//! The address of an Initial may be forged, so a flood of them from nowhere must cost nobody else more than
//! a round trip. Handshakes of addresses that are not proved have slots of their own. Once these are
//! taken, whoever comes has to prove its address first (RFC 9000, 8.1.2), for which nothing is kept.
//! Proved addresses have other slots, which no forged packet takes, and which are shared out by where they
//! come from. Should even these be taken, the addresses at which peers were found have some left.

use std::time::Duration;

use hailwire_core::{RemoteSource, admission::AdmissionShares};

use super::gate::{AdmissionGate, AdmissionSlot};

/// Handshakes of addresses that are not proved.
const UNPROVED: usize = 128;

/// Handshakes of proved addresses.
const PROVED: AdmissionShares = AdmissionShares {
    all: 128,
    per_host: 32,
    per_network: 64,
    spared_new: Duration::from_secs(1),
    spared_busy: Duration::from_secs(3),
};

/// Handshakes of proved addresses at which peers were found before, where all others are taken.
const KNOWN: AdmissionShares = AdmissionShares {
    all: 64,
    per_host: 16,
    per_network: 32,
    ..PROVED
};

/// The tables of handshakes.
#[derive(Debug)]
pub(crate) struct HandshakeSlots {
    unproved: AdmissionGate,
    proved: AdmissionGate,
    known: AdmissionGate,
}

/// What becomes of a newcomer.
#[derive(Debug)]
pub(crate) enum HandshakeAdmission {
    /// Its handshake goes on.
    Admitted(AdmissionSlot),
    /// It has to prove its address first.
    ProveAddress,
    /// Nothing is said to it. What it sends again may find a slot.
    Ignore,
}

impl HandshakeSlots {
    pub(crate) fn new() -> Self {
        // Nobody is displaced here: whose address is forged has no share.
        let forever = Duration::from_secs(24 * 3600);
        Self {
            unproved: AdmissionGate::new(AdmissionShares {
                all: UNPROVED,
                per_host: UNPROVED,
                per_network: UNPROVED,
                spared_new: forever,
                spared_busy: forever,
            }),
            proved: AdmissionGate::new(PROVED),
            known: AdmissionGate::new(KNOWN),
        }
    }

    /// Somebody begins a handshake; whether its address is `proved`, and one at which a peer was found.
    pub(crate) fn begin(
        &self,
        from: RemoteSource,
        proved: bool,
        is_known: impl FnOnce() -> bool,
    ) -> HandshakeAdmission {
        if !proved {
            return self.unproved.enter(from).map_or(
                HandshakeAdmission::ProveAddress,
                HandshakeAdmission::Admitted,
            );
        }
        let slot = self.proved.enter(from.clone());
        let slot = slot.or_else(|| is_known().then(|| self.known.enter(from)).flatten());
        slot.map_or(HandshakeAdmission::Ignore, HandshakeAdmission::Admitted)
    }
}
