//! A question to the user at the terminal.

use std::io::{self, BufRead as _, Read as _, Write as _};

use crate::failure::CommandFailure;

/// The longest answer that is read.
const MAX_ANSWER: u64 = 16;

/// Asks on stderr and reads the answer from stdin; any answer other than `y` or `yes` means no. Blocks.
///
/// # Errors
///
/// The terminal cannot be written or read.
pub fn confirm(question: &str) -> Result<bool, CommandFailure> {
    let failed = |error: io::Error| CommandFailure::io("cannot ask for confirmation", &error);
    let mut stderr = io::stderr();
    write!(stderr, "{question} [y/N] ").map_err(failed)?;
    stderr.flush().map_err(failed)?;
    let mut answer = String::new();
    let mut stdin = io::stdin().lock().take(MAX_ANSWER);
    stdin.read_line(&mut answer).map_err(failed)?;
    Ok(matches!(
        answer.trim().to_ascii_lowercase().as_str(),
        "y" | "yes"
    ))
}
