//! Logs on stderr.

use hailwire::config::LogLevel;
use tracing::{Level, Metadata, Subscriber};
use tracing_subscriber::{
    EnvFilter, Layer as _, filter::filter_fn, fmt::MakeWriter, layer::SubscriberExt as _,
    util::SubscriberInitExt as _,
};

/// Starts logging from `level` on. The libraries below report their warnings, and everything at
/// `trace`. A second start changes nothing.
pub(super) fn start(level: LogLevel, colour: bool) {
    let _ = subscriber(level, colour, std::io::stderr).try_init();
}

fn subscriber<W>(level: LogLevel, colour: bool, writer: W) -> impl Subscriber + Send + Sync
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
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
    let all = level == LogLevel::Trace;
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(writer)
        .with_ansi(colour)
        .with_filter(filter_fn(move |event| all || !is_farewell(event)));
    tracing_subscriber::registry().with(filter).with(lines)
}

/// Whether this is what iroh says each time that an endpoint closes in order.
///
/// iroh 1.4 has one event of level ERROR in this module, `relay_recv_channel closed`: its socket is
/// polled once more after its relay actor has ended. Nothing is wrong then, and nothing is lost.
fn is_farewell(event: &Metadata<'_>) -> bool {
    event.target() == "iroh::socket::transports::relay" && *event.level() == Level::ERROR
}

#[cfg(test)]
mod tests {
    use std::{
        io,
        sync::{Arc, Mutex},
    };

    use super::*;

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn the_farewell_of_the_overlay_is_no_error_and_everything_else_is_reported() {
        let lines = Lines::default();
        let writer = lines.clone();
        let subscriber = subscriber(LogLevel::Info, false, move || writer.clone());
        tracing::subscriber::with_default(subscriber, || {
            tracing::error!(target: "iroh::socket::transports::relay", "farewell");
            tracing::warn!(target: "iroh::socket::transports::relay", "one");
            tracing::error!(target: "iroh::socket", "two");
            tracing::info!(target: "hailwire", "three");
            tracing::info!(target: "iroh", "chatter");
        });
        let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
        for word in ["one", "two", "three"] {
            assert!(text.contains(word), "{text}");
        }
        assert!(
            !text.contains("farewell") && !text.contains("chatter"),
            "{text}"
        );
    }
}
