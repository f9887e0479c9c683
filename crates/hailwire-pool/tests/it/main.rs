//! What the pool promises, from the outside.

mod chance;
mod health;
mod pick;
mod seats;
mod threads;
mod together;
