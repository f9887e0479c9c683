//! `hail` as people and scripts use it: real processes on loopback, each test in its own house.

mod alone;
mod calls;
mod house;
mod nodes;
