//! The lab as its users meet it.

mod namespaces;
