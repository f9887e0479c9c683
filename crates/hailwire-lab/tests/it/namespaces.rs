use hailwire_lab::{Topology, check, real::Network};

#[test]
fn a_ping_takes_what_the_label_says() {
    for name in std::env::var("NETS")
        .unwrap_or("wan-50ms".into())
        .split(',')
    {
        let network = Network::up(&Topology::named(name).unwrap()).unwrap();
        let out = check(&network);
        println!("{:#?} {:?}", out, network.counters());
    }
}
