//! Times as written on the command line: `90s`, `5m`, `2h`, `7d`, `1w`.
//!
//! Pure.

use std::time::Duration;

use jiff::{Span, SpanRelativeTo};

/// Reads a time of people, such as `90s`, `1h30m` or `2 days`.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    read(text).ok_or_else(|| "a time is a number with s, m, h, d or w behind it, as 90s".into())
}

pub(crate) fn read(text: &str) -> Option<Duration> {
    let span: Span = text.parse().ok()?;
    // A month has no length, and a day is no day of a calendar here.
    let time = span.to_duration(SpanRelativeTo::days_are_24_hours()).ok()?;
    // A time that is over is none.
    Duration::try_from(time).ok()
}

/// Formats seconds by their two largest units: `3 d 4 h`.
pub(crate) fn shown(seconds: u64) -> String {
    const UNITS: [(u64, &str); 5] = [
        (365 * 86_400, "y"),
        (86_400, "d"),
        (3_600, "h"),
        (60, "min"),
        (1, "s"),
    ];
    let largest = UNITS.iter().position(|(unit, _)| seconds >= *unit);
    let first = largest.unwrap_or(UNITS.len() - 1);
    let (mut left, mut parts) = (seconds, vec![]);
    // A third unit would be more than a person reads.
    for (unit, name) in UNITS.iter().skip(first).take(2) {
        let count = left / unit;
        left %= unit;
        if count > 0 || parts.is_empty() {
            parts.push(format!("{count} {name}"));
        }
    }
    parts.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_for_people() {
        for (seconds, expected) in [
            (0, "0 s"),
            (59, "59 s"),
            (60, "1 min"),
            (3_725, "1 h 2 min"),
            (273_600, "3 d 4 h"),
            (86_400 + 59, "1 d"),
            (96_572_130, "3 y 22 d"),
        ] {
            assert_eq!(shown(seconds), expected);
        }
    }

    #[test]
    fn times_are_numbers_with_a_unit() {
        for (text, seconds) in [
            ("0s", 0),
            ("90s", 90),
            ("5m", 300),
            ("2h", 7_200),
            ("1w", 604_800),
            ("1h30m", 5_400),
            ("1.5h", 5_400),
            ("2 days", 172_800),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_secs(seconds)));
        }
        for bad in [
            "",
            "s",
            "5",
            "-1s",
            "1 month",
            "99999999999999999999s",
            "9999999999999999999w",
            "é",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
