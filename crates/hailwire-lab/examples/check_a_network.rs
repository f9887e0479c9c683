//! Makes a network, measures it, and prints what it found beside what its topology says, as JSON.
//!
//! `cargo run --release -p hailwire-lab --example check_a_network -- wan-50ms`

use std::error::Error;

use hailwire_lab::{Topology, check, real::NamespaceNetwork};

fn main() -> Result<(), Box<dyn Error>> {
    let name = std::env::args()
        .nth(1)
        .unwrap_or_else(|| "wan-50ms".to_owned());
    let network = NamespaceNetwork::up(&Topology::find(&name)?)?;
    println!("{}", serde_json::to_string(&check(&network)?)?);
    Ok(())
}
