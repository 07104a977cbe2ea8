//! Durations as written on the command line: `90s`, `5m`, `1h30m`, `1.5h`, `2 days`, `1w`.
//!
//! Pure.

use std::time::Duration;

use jiff::{Span, SpanRelativeTo};

/// Reads a duration as people write one, such as `90s`, `1h30m` or `2 days`.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    read(text).ok_or_else(|| {
        "a time is like 90s, 1h30m or 2 days (units s, m, h, d, w, at most 7304484 days; \
         fractions of h, m and s only)"
            .into()
    })
}

pub(crate) fn read(text: &str) -> Option<Duration> {
    // Forms that jiff reads in a way that people do not expect: a time of day, a comma as the
    // decimal sign (`1,500s`), a sign, and ISO 8601.
    if text.contains([':', ',']) || text.starts_with(['+', '-', 'P', 'p']) {
        return None;
    }
    let span: Span = text.parse().ok()?;
    // A day has 24 hours here. A month has no fixed length, and is refused.
    let time = span.to_duration(SpanRelativeTo::days_are_24_hours()).ok()?;
    // A negative span is no duration.
    Duration::try_from(time).ok()
}

/// Formats seconds in the largest unit that fits and in the next smaller unit: `3 d 4 h`.
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
            "+1d",
            "09:00:00",
            "1,500s",
            "PT1H",
            "1.5d",
            "2 days ago",
            "1 month",
            "7304485d",
            "99999999999999999999s",
            "9999999999999999999w",
            "é",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
