//! Logs on stderr.

use std::io;

use hailwire_wire::shown::REPLACEMENT;
use tracing::{Level, Metadata, Subscriber};
use tracing_subscriber::{
    EnvFilter, Layer as _, filter::filter_fn, fmt::MakeWriter, layer::SubscriberExt as _,
    util::SubscriberInitExt as _,
};

use crate::text;

/// How events are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogStyle {
    /// Lines of text.
    Plain,
    /// Lines of text in colours.
    Coloured,
    /// One JSON object on each line: `timestamp`, `level`, `target` and `fields`, with the `message` among them.
    Json,
}

/// Starts logging from `level` on. The libraries below report their warnings, and everything at
/// `trace`. A second start changes nothing.
pub fn start(level: Level, style: LogStyle) {
    let _ = subscriber(level, style, std::io::stderr).try_init();
}

fn subscriber<W>(level: Level, style: LogStyle, writer: W) -> impl Subscriber + Send + Sync
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let filter = match level {
        Level::TRACE => EnvFilter::new("trace"),
        Level::ERROR => EnvFilter::new("error"),
        _ => EnvFilter::new(format!(
            "warn,hail={level},hailwire={level},hailwire_hub={level}"
        )),
    };
    let all = level == Level::TRACE;
    let lines = tracing_subscriber::fmt::layer().with_writer(SanitizingWriter { writer, style });
    let lines = match style {
        LogStyle::Json => lines.json().boxed(),
        LogStyle::Plain => lines.with_ansi(false).boxed(),
        LogStyle::Coloured => lines.with_ansi(true).boxed(),
    };
    let lines = lines.with_filter(filter_fn(move |event| all || !is_farewell(event)));
    tracing_subscriber::registry().with(filter).with(lines)
}

/// A writer of logs that escapes control characters: names and messages in logs come from others.
struct SanitizingWriter<W> {
    writer: W,
    style: LogStyle,
}

impl<'a, W: MakeWriter<'a>> MakeWriter<'a> for SanitizingWriter<W> {
    type Writer = SanitizingWriter<W::Writer>;

    fn make_writer(&'a self) -> Self::Writer {
        SanitizingWriter {
            writer: self.writer.make_writer(),
            style: self.style,
        }
    }

    fn make_writer_for(&'a self, meta: &Metadata<'_>) -> Self::Writer {
        SanitizingWriter {
            writer: self.writer.make_writer_for(meta),
            style: self.style,
        }
    }
}

impl<W: io::Write> io::Write for SanitizingWriter<W> {
    /// `bytes` are one event, whose last character ends its line.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(bytes);
        let (line, end) = match text.strip_suffix('\n') {
            Some(line) => (line, "\n"),
            None => (&*text, ""),
        };
        let line = match self.style {
            LogStyle::Coloured => coloured(line),
            LogStyle::Plain => text::one_line(line),
            LogStyle::Json => text::json(line),
        };
        self.writer.write_all((line + end).as_bytes())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.writer.flush()
    }
}

/// A line of an event, with its colours but without other escape sequences.
fn coloured(line: &str) -> String {
    let mut parts = line.split('\x1b');
    let mut out = parts.next().map(text::one_line).unwrap_or_default();
    for part in parts {
        let colour = part.strip_prefix('[').is_some_and(|rest| {
            rest.trim_start_matches(|c: char| c.is_ascii_digit() || c == ';')
                .starts_with('m')
        });
        out.push(if colour { '\x1b' } else { REPLACEMENT });
        out += &text::one_line(part);
    }
    out
}

/// Whether this is the event that iroh logs each time that an endpoint closes normally.
///
/// iroh 1.4 has one event of level ERROR in this module, `relay_recv_channel closed`: its socket is
/// polled once more after its relay actor has ended. This is not an error, and nothing is lost.
fn is_farewell(event: &Metadata<'_>) -> bool {
    event.target() == "iroh::socket::transports::relay" && *event.level() == Level::ERROR
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

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
        let subscriber = subscriber(Level::INFO, LogStyle::Plain, move || writer.clone());
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

    #[test]
    fn an_event_is_one_json_object_whatever_is_in_it() {
        let lines = Lines::default();
        let writer = lines.clone();
        let subscriber = subscriber(Level::INFO, LogStyle::Json, move || writer.clone());
        tracing::subscriber::with_default(subscriber, || {
            let peer = "a\n\u{202e}b";
            tracing::info!(target: "hailwire", peer, "tunnel up");
        });
        let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
        assert!(!text.contains('\u{202e}'), "{text:?}");
        let event: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(event["level"], "INFO");
        assert_eq!(event["fields"]["message"], "tunnel up");
        assert_eq!(event["fields"]["peer"], "a\n\u{202e}b");
    }

    #[test]
    fn colours_stay_in_an_event_and_nothing_else_that_begins_with_an_escape() {
        let line = "\x1b[2mtime\x1b[0m \x1b[1;33mWARN\x1b[0m x\x1b[2Jy\x1b]0;z";
        let shown = "\x1b[2mtime\x1b[0m \x1b[1;33mWARN\x1b[0m x\u{fffd}[2Jy\u{fffd}]0;z";
        assert_eq!(coloured(line), shown);
    }

    #[test]
    fn an_event_stays_one_line_and_cannot_steer_whoever_reads_it() {
        let lines = Lines::default();
        let writer = lines.clone();
        let subscriber = subscriber(Level::INFO, LogStyle::Plain, move || writer.clone());
        tracing::subscriber::with_default(subscriber, || {
            let name = "a\nb\r\u{9b}2J\x1b[2J\u{202e}\u{2028}\x7f\u{200b}c";
            tracing::warn!(target: "hailwire", %name, "said {name}");
        });
        let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
        assert_eq!(text.lines().count(), 1, "{text:?}");
        let line = text.trim_end();
        assert!(
            !line.chars().any(hailwire_wire::shown::is_unfit),
            "{line:?}"
        );
    }
}
