//! A hub in this process, asked as nodes ask it: over real HTTP and HTTPS on loopback.

#![allow(missing_docs, reason = "tests name their claims")]

mod bounds;
mod directory;
mod house;
mod refusals;
mod relay;
mod tls;
