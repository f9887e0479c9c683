//! What the pool promises, from the outside.

mod health;
mod pick;
mod threads;
