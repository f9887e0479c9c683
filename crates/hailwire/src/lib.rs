//! Hailwire, the network for software agents.
#![allow(dead_code)]
pub mod admin;
pub mod agent;
pub mod body;
pub mod carrier;
mod session;
pub mod config;
