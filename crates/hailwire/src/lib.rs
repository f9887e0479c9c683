//! placeholder
pub mod hub;
