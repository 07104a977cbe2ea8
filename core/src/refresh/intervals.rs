//! Intervals between the refreshes of an item, by the item's age.
//!
//! Pure.

use std::{fmt, str::FromStr, time::Duration};

use super::item::age;
use crate::timestamp::Timestamp;

/// Maximum number of lines in a table.
const LINES_MAX: usize = 1_000;

/// A length of time in the form that people write: `90s`, `18m`, `1h`, `30d`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TimeSpan(pub Duration);

/// The text is no [`TimeSpan`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no length of time like 90s, 18m, 1h or 30d")]
pub struct SpanError(String);

/// Units of a span, with their lengths in seconds.
const UNITS: [(char, u64); 4] = [('d', 86_400), ('h', 3_600), ('m', 60), ('s', 1)];

impl FromStr for TimeSpan {
    type Err = SpanError;

    fn from_str(text: &str) -> Result<Self, SpanError> {
        let read = || {
            let (_, seconds) = UNITS.into_iter().find(|(unit, _)| text.ends_with(*unit))?;
            // All units are ASCII, so the last byte is the unit.
            let number = text.get(..text.len() - 1)?;
            // `parse` would accept a sign, too, so only digits are passed on.
            let number: u64 = number
                .bytes()
                .all(|byte| byte.is_ascii_digit())
                .then(|| number.parse().ok())??;
            number.checked_mul(seconds).map(Duration::from_secs)
        };
        read()
            .map(Self)
            .ok_or_else(|| SpanError(text.chars().take(40).collect()))
    }
}

impl fmt::Display for TimeSpan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.as_secs();
        let divides = |(_, of): &(char, u64)| seconds >= *of && seconds.is_multiple_of(*of);
        let (unit, of) = UNITS.into_iter().find(divides).unwrap_or(('s', 1));
        write!(f, "{}{unit}", seconds / of)
    }
}

/// One line of a table: an item is refreshed at this interval until the item has this age.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IntervalLine {
    /// Age from which on the next line applies.
    pub until: Duration,
    /// Time between two refreshes.
    pub interval: Duration,
}

/// A table of intervals by age (TU-3). Each line applies from the age of the line before,
/// inclusive, to the line's own age, exclusive. An item that has reached the last line's age has
/// ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Intervals(Vec<IntervalLine>);

/// The lines are no table.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum IntervalsError {
    /// There is no line, or there are more than 1,000 lines.
    #[error("a table of intervals has 1 to {LINES_MAX} lines, not {0}")]
    Count(usize),
    /// Two lines end at the same age, or one line ends at the age of zero.
    #[error("two intervals end at the age of {}, or one does at its beginning", TimeSpan(*.0))]
    Age(Duration),
    /// An interval is less than a second.
    #[error("the interval up to the age of {} is less than a second", TimeSpan(*.0))]
    Interval(Duration),
}

impl Default for Intervals {
    /// Returns the usual table: every 2 minutes up to the age of 18 minutes, every 5 minutes up to
    /// 1 hour, every hour up to 1 day, every 6 hours up to 7 days, and every day up to 30 days.
    fn default() -> Self {
        let minutes = |until: u64, interval: u64| IntervalLine {
            until: Duration::from_secs(until * 60),
            interval: Duration::from_secs(interval * 60),
        };
        Self(vec![
            minutes(18, 2),
            minutes(60, 5),
            minutes(24 * 60, 60),
            minutes(7 * 24 * 60, 6 * 60),
            minutes(30 * 24 * 60, 24 * 60),
        ])
    }
}

impl Intervals {
    /// Makes a table of lines in any order.
    ///
    /// # Errors
    ///
    /// If there are no lines or too many, if two lines end at the same age or one at the age of
    /// zero, or if an interval is less than a second.
    pub fn new(mut lines: Vec<IntervalLine>) -> Result<Self, IntervalsError> {
        if lines.is_empty() || lines.len() > LINES_MAX {
            return Err(IntervalsError::Count(lines.len()));
        }
        lines.sort_by_key(|line| line.until);
        let mut before = Duration::ZERO;
        for line in &lines {
            if line.until <= before {
                return Err(IntervalsError::Age(line.until));
            }
            if line.interval < Duration::from_secs(1) {
                return Err(IntervalsError::Interval(line.until));
            }
            before = line.until;
        }
        Ok(Self(lines))
    }

    /// Returns the lines, by age.
    pub fn lines(&self) -> &[IntervalLine] {
        &self.0
    }

    /// Returns the interval of an item of this age, or `None` if the item has ended.
    pub fn of_age(&self, age: Duration) -> Option<Duration> {
        self.0
            .iter()
            .find(|line| age < line.until)
            .map(|line| line.interval)
    }

    /// Returns the time of an item's next refresh, or `None` if the item has ended (I6).
    ///
    /// `floor` is the least time until that refresh: the item's own floor, or the time that the
    /// provider asks for. If the birth is still to come, because clocks differ, the age counts as
    /// zero (TU-D5).
    pub fn next(&self, born: Timestamp, now: Timestamp, floor: Duration) -> Option<Timestamp> {
        let age = age(born, now);
        let interval = self.of_age(age)?;
        let rest = self
            .0
            .last()
            .map_or(Duration::ZERO, |line| line.until)
            .saturating_sub(age);
        // The last refresh is at the very end of the item's life, so that the last value is seen.
        // Only a floor moves that refresh beyond the end.
        let wait = interval.min(rest).max(floor);
        Some(now.plus(wait))
    }

    /// Returns the longest of the intervals.
    pub fn longest(&self) -> Duration {
        let intervals = self.0.iter().map(|line| line.interval);
        intervals.max().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MINUTE: u64 = 60;
    const HOUR: u64 = 60 * MINUTE;
    const DAY: u64 = 24 * HOUR;

    fn at(seconds: u64) -> Timestamp {
        Timestamp::MIN.plus_micros(seconds * 1_000_000)
    }

    /// TU-3, and TU-D5: each age belongs to one line.
    #[test]
    fn the_default_table_is_the_seeds() {
        let table = Intervals::default();
        for (age, interval) in [
            (0, Some(2 * MINUTE)),
            (18 * MINUTE - 1, Some(2 * MINUTE)),
            (18 * MINUTE, Some(5 * MINUTE)),
            (HOUR - 1, Some(5 * MINUTE)),
            (HOUR, Some(HOUR)),
            (DAY - 1, Some(HOUR)),
            (DAY, Some(6 * HOUR)),
            (7 * DAY - 1, Some(6 * HOUR)),
            (7 * DAY, Some(DAY)),
            (30 * DAY - 1, Some(DAY)),
            (30 * DAY, None),
            (400 * DAY, None),
        ] {
            assert_eq!(
                table.of_age(Duration::from_secs(age)),
                interval.map(Duration::from_secs),
                "{age}"
            );
        }
    }

    #[test]
    fn an_item_ends_with_a_last_look() {
        let table = Intervals::default();
        let born = at(1_000);
        let next = |age: u64, floor: u64| {
            let next = table.next(born, at(1_000 + age), Duration::from_secs(floor))?;
            Some((next.micros() - born.micros()).unsigned_abs() / 1_000_000)
        };
        assert_eq!(next(0, 0), Some(2 * MINUTE));
        assert_eq!(next(29 * DAY + HOUR, 0), Some(30 * DAY));
        assert_eq!(next(30 * DAY, 0), None);
        // A floor counts where it is longer.
        assert_eq!(next(0, HOUR), Some(HOUR));
        assert_eq!(next(2 * HOUR, 60), Some(3 * HOUR));
        assert_eq!(next(30 * DAY - 10, HOUR), Some(30 * DAY - 10 + HOUR));
        // The birth is in the future of this clock.
        assert_eq!(
            table.next(at(5_000), at(1_000), Duration::ZERO),
            Some(at(1_000 + 2 * MINUTE))
        );
    }

    #[test]
    fn spans_are_read_and_written() {
        for (text, seconds) in [
            ("90s", 90),
            ("18m", 1_080),
            ("1h", 3_600),
            ("30d", 2_592_000),
            ("0s", 0),
        ] {
            let span: TimeSpan = text.parse().unwrap();
            assert_eq!(span.0, Duration::from_secs(seconds));
            assert_eq!(span.to_string(), text);
        }
        for text in [
            "",
            "s",
            "18",
            "+1s",
            "-1s",
            "1.5h",
            "1 h",
            "1w",
            "ü",
            "99999999999999999999d",
            "999999999999999999d",
        ] {
            assert!(text.parse::<TimeSpan>().is_err(), "{text}");
        }
    }

    #[test]
    fn tables_that_are_none_are_refused() {
        let line = |until: u64, interval: u64| IntervalLine {
            until: Duration::from_secs(until),
            interval: Duration::from_secs(interval),
        };
        let refused = |lines: Vec<IntervalLine>| Intervals::new(lines).unwrap_err().to_string();
        assert_eq!(
            refused(vec![]),
            "a table of intervals has 1 to 1000 lines, not 0"
        );
        assert!(refused(vec![line(60, 1), line(60, 2)]).contains("age of 1m"));
        assert!(refused(vec![line(0, 1)]).contains("age of 0s"));
        assert!(refused(vec![line(60, 0)]).contains("less than a second"));
        let table = Intervals::new(vec![line(3_600, 600), line(60, 10)]).unwrap();
        assert_eq!(table.lines(), [line(60, 10), line(3_600, 600)]);
    }

    proptest! {
        /// I5, I6: the next refresh is later than now, and comes within the interval of the age or
        /// the floor, whichever is longer. No refresh is planned for an item that has ended.
        #[test]
        fn next_is_within_the_interval(
            born in 0_u64..1_000_000_000,
            now in 0_u64..1_000_000_000,
            floor in 0_u64..100_000,
        ) {
            let table = Intervals::default();
            let age = Duration::from_secs(now.saturating_sub(born));
            let next = table.next(at(born), at(now), Duration::from_secs(floor));
            match table.of_age(age) {
                None => prop_assert_eq!(next, None),
                Some(interval) => {
                    let next = next.unwrap();
                    prop_assert!(next > at(now));
                    prop_assert!(next <= at(now + interval.as_secs().max(floor)));
                }
            }
        }
    }
}
