//! placeholder
pub mod admin;
pub mod config;
