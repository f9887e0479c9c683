//! Who is let in that nobody knows yet: the slots of handshakes and of strangers.
//!
//! What decides is [`Slots`], which does no I/O and is told the time. [`Gate`] carries it out for tasks:
//! whoever makes way is told so, and a slot is left when it is dropped.

mod gate;
mod handshakes;
mod slots;
mod source;
#[cfg(test)]
mod tests;

pub(crate) use self::{
    gate::{Gate, Slot},
    handshakes::{Answer, Handshakes},
    slots::Shares,
    source::{Network, Source},
};
