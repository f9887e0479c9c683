//! Formats numbers and times for people. How foreign text is escaped is decided in
//! `hailwire_wire::shown`.

use std::time::Duration;

pub use hailwire_wire::shown::{BOLD, BOLD_RED, PLAIN, coloured, html, json, lines, one_line};

/// A message of the system with its first letter in lower case.
pub fn lower_first(text: &str) -> String {
    let mut chars = text.chars();
    match chars.next() {
        Some(first) => first.to_lowercase().chain(chars).collect(),
        None => String::new(),
    }
}

/// `517 B`, `1.5 KiB`, `3.0 MiB`.
pub fn bytes(n: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if n < 1024 {
        return format!("{n} B");
    }
    let mut value = n as f64 / 1024.0;
    let mut unit = UNITS[0];
    for next in &UNITS[1..] {
        if value < 1023.95 {
            break;
        }
        value /= 1024.0;
        unit = next;
    }
    format!("{value:.1} {unit}")
}

/// `12 µs`, `1.23 ms`, `4.56 s`: a measured time.
pub fn time(duration: Duration) -> String {
    let us = duration.as_secs_f64() * 1e6;
    match us {
        _ if us < 1000.0 => format!("{us:.0} µs"),
        _ if us < 1e6 => format!("{:.2} ms", us / 1e3),
        _ => format!("{:.2} s", us / 1e6),
    }
}

/// `42s`, `3m 20s`, `5h 10m`, `2d 4h`: how long something has been.
pub fn age(duration: Duration) -> String {
    let s = duration.as_secs();
    match s {
        0..60 => format!("{s}s"),
        60..3600 => format!("{}m {}s", s / 60, s % 60),
        3600..86_400 => format!("{}h {}m", s / 3600, s % 3600 / 60),
        _ => format!("{}d {}h", s / 86_400, s % 86_400 / 3600),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_keep_to_four_characters_and_a_unit() {
        for (n, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (1536, "1.5 KiB"),
            (1024 * 1024 - 1, "1.0 MiB"),
            (3 << 30, "3.0 GiB"),
            (u64::MAX, "16384.0 PiB"),
        ] {
            assert_eq!(bytes(n), text);
        }
    }

    #[test]
    fn times_choose_their_unit() {
        assert_eq!(time(Duration::from_micros(12)), "12 µs");
        assert_eq!(time(Duration::from_micros(1234)), "1.23 ms");
        assert_eq!(time(Duration::from_millis(4560)), "4.56 s");
    }

    #[test]
    fn ages_show_two_units() {
        for (s, text) in [
            (42, "42s"),
            (200, "3m 20s"),
            (18_600, "5h 10m"),
            (187_200, "2d 4h"),
        ] {
            assert_eq!(age(Duration::from_secs(s)), text);
        }
    }

    #[test]
    fn a_foreign_text_cannot_leave_its_line() {
        assert_eq!(
            one_line("a\nb\x1b[31mc\u{202e}d"),
            "a b\u{fffd}[31mc\u{fffd}d"
        );
    }
}
