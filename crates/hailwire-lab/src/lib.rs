//! Networks to test in, in two tiers with one model of links, NATs and firewalls.
