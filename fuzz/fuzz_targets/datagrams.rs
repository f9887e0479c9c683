//! Fuzzes a whole node with datagrams: whatever comes, it lives and answers the next one.
#![no_main]

use std::cell::RefCell;

#[path = "../src/anybody.rs"]
mod anybody;
#[path = "../src/datagrams.rs"]
mod datagrams;
#[path = "../src/house.rs"]
mod house;
#[path = "../src/initial.rs"]
mod initial;

use datagrams::Sender;
use house::House;

thread_local! {
    static TARGET: RefCell<Option<(House, Sender)>> = const { RefCell::new(None) };
}

fn start() -> (House, Sender) {
    let house = House::new();
    let sender = house.runtime.block_on(Sender::to(house.node.sockets()[0]));
    (house, sender)
}

libfuzzer_sys::fuzz_target!(|input: &[u8]| TARGET.with_borrow_mut(|target| {
    if target.as_mut().is_some_and(|(house, _)| house.worn())
        && let Some((house, _)) = target.take()
    {
        house.end();
    }
    let (house, sender) = target.get_or_insert_with(start);
    house.runtime.block_on(sender.feed(input));
}));
