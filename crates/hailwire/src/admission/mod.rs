//! Slots for whoever this node does not know yet: handshakes under way, and peers that it does not trust.
//!
//! [`hailwire_core::admission`] decides who gets one and who makes way. [`AdmissionGate`] carries that out for tasks:
//! whoever makes way is told so, and a slot is given back when it is dropped.

mod gate;
mod handshakes;

pub(crate) use self::{
    gate::{AdmissionGate, AdmissionSlot},
    handshakes::{HandshakeAdmission, HandshakeSlots},
};
