//! What the command-line programs share, so that they look like one program to the user.
//!
//! `hail` runs on every machine; `hail-bench` measures and makes networks to test in; `hail-inspection` is a web
//! application firewall and a rate limiter. A user types `hail` for all of them: `hail` finds the others ([`programs`])
//! and executes them with its own arguments unchanged, and [`outline`] carries their options into its completions and
//! manual pages.
//!
//! | module | what |
//! |---|---|
//! | [`global`] | the global options, and what follows from them and the environment |
//! | [`output`], [`table`], [`text`] | data on stdout, everything else on stderr |
//! | [`failure`] | messages, hints, exit codes |
//! | [`confirm`] | a question at the terminal |
//! | [`runtime`], [`stop`], [`log`] | how a command runs, ends and reports |
//! | [`child`] | a program that runs in place of a command |
//! | [`programs`], [`outline`] | the companion programs, and the table of their commands |

pub mod child;
pub mod confirm;
pub mod failure;
pub mod global;
pub mod log;
pub mod outline;
pub mod output;
pub mod programs;
pub mod runtime;
pub mod stop;
pub mod table;
pub mod text;
