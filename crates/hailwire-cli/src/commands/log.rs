//! Logs on stderr.

use hailwire::config::LogLevel;
use tracing_subscriber::EnvFilter;

/// Starts logging from `level` on. The libraries below report their warnings, and everything at
/// `trace`. A second start changes nothing.
pub(super) fn start(level: LogLevel, colour: bool) {
    let filter = match level {
        LogLevel::Trace => EnvFilter::new("trace"),
        LogLevel::Error => EnvFilter::new("error"),
        _ => {
            let level = level.name();
            EnvFilter::new(format!(
                "warn,hail={level},hailwire={level},hailwire_hub={level}"
            ))
        }
    };
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(colour)
        .try_init();
}
