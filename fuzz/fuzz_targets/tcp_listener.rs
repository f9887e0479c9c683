//! Fuzzes a whole node over TCP: whatever comes, it lives and takes the next connection.
#![no_main]

use std::cell::RefCell;

#[path = "../src/anybody.rs"]
mod anybody;
#[path = "../src/house.rs"]
mod house;
#[path = "../src/tcp.rs"]
mod tcp;

use house::House;
use tcp::Caller;

thread_local! {
    static TARGET: RefCell<Option<(House, Caller)>> = const { RefCell::new(None) };
}

fn start() -> (House, Caller) {
    let house = House::new();
    let caller = Caller::of(house.node.tcp_sockets()[0]);
    (house, caller)
}

libfuzzer_sys::fuzz_target!(|input: &[u8]| TARGET.with_borrow_mut(|target| {
    if target.as_mut().is_some_and(|(house, _)| house.worn())
        && let Some((house, _)) = target.take()
    {
        house.end();
    }
    let (house, caller) = target.get_or_insert_with(start);
    house.runtime.block_on(caller.feed(input));
}));
