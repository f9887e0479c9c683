//! What is typed.

use clap::Parser;

/// Finds out whether a library speaks to a node as the specification says: plays the node for a program over it.
#[derive(Debug, Parser)]
#[command(name = "hail-conformance", version)]
pub(crate) struct Options {
    /// Only this case, or those that begin so where it ends in `*`. May be given several times.
    #[arg(long, value_name = "NAME")]
    pub(crate) case: Vec<String>,
    /// Names the cases instead.
    #[arg(long)]
    pub(crate) list: bool,
    /// With --list: as the page spec/conformance/cases.md.
    #[arg(long, requires = "list")]
    pub(crate) markdown: bool,
    /// A line of JSON for each case.
    #[arg(long)]
    pub(crate) json: bool,
    /// Cases at once.
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub(crate) jobs: usize,
    /// The peer, with its arguments.
    #[arg(last = true, value_name = "COMMAND", required_unless_present = "list")]
    pub(crate) command: Vec<String>,
}
