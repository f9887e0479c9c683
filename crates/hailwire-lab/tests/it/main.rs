//! The lab as its users meet it.

mod namespaces;
mod nats;
mod virtual_time;
