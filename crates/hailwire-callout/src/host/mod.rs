//! The proxy's side: one connection to an agent.
