//! Rates: how many entries a feed got in each minute, hour, day or month.
//!
//! Pure. An entry counts in the span, in UTC, in which the instant of the entry's commit lies. So
//! every copy of a log has the same rates.

use std::{fmt, str::FromStr};

use chrono::{DateTime, Datelike as _, SecondsFormat, TimeZone as _, Utc};
use serde::{Deserialize, Serialize};

use crate::timestamp::Timestamp;

/// Media type of rates.
pub const RATES_TYPE: &str = "application/json";
/// Relation of a link to the rates of a feed.
pub const RATES_REL: &str = "urn:simplefeed:1#rates";

const MINUTE_MICROS: i64 = 60_000_000;
const HOUR_MICROS: i64 = 60 * MINUTE_MICROS;
const DAY_MICROS: i64 = 24 * HOUR_MICROS;

/// Length of the spans in which entries are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// Spans of one minute.
    Minute,
    /// Spans of one hour.
    Hour,
    /// Days of 24 hours, in UTC.
    Day,
    /// Months of the Gregorian calendar, in UTC.
    Month,
}

impl Unit {
    /// All units, the shortest first.
    pub const ALL: [Self; 4] = [Self::Minute, Self::Hour, Self::Day, Self::Month];

    /// Returns the number of the span in which an instant lies. Span 0 begins with 1970.
    ///
    /// # Examples
    ///
    /// ```
    /// use simplefeed_core::{rates::Unit, timestamp::Timestamp};
    ///
    /// let instant = Timestamp::parse("1971-02-03T04:05:06Z").unwrap();
    /// assert_eq!(Unit::Month.number(instant), 13);
    /// assert_eq!(Unit::Month.start(13), Timestamp::parse("1971-02-01T00:00:00Z").unwrap());
    /// ```
    pub fn number(self, instant: Timestamp) -> i64 {
        let micros = instant.micros();
        match self {
            // Instants before 1970 are negative, and a plain division would round them into the
            // next span.
            Self::Minute => micros.div_euclid(MINUTE_MICROS),
            Self::Hour => micros.div_euclid(HOUR_MICROS),
            Self::Day => micros.div_euclid(DAY_MICROS),
            Self::Month => {
                let date = DateTime::<Utc>::from(instant);
                (i64::from(date.year()) - 1970) * 12 + i64::from(date.month0())
            }
        }
    }

    /// Returns the instant at which a span begins; beyond the years of a [`Timestamp`], the nearest
    /// instant within these years.
    pub fn start(self, number: i64) -> Timestamp {
        let micros = match self {
            Self::Minute => number.saturating_mul(MINUTE_MICROS),
            Self::Hour => number.saturating_mul(HOUR_MICROS),
            Self::Day => number.saturating_mul(DAY_MICROS),
            Self::Month => return month_start(number),
        };
        Timestamp::from_micros(micros)
    }

    /// Returns the next longer unit, whose spans consist of whole spans of this unit; `None` for a
    /// month.
    pub fn longer(self) -> Option<Self> {
        match self {
            Self::Minute => Some(Self::Hour),
            Self::Hour => Some(Self::Day),
            Self::Day => Some(Self::Month),
            Self::Month => None,
        }
    }
}

fn month_start(number: i64) -> Timestamp {
    let year = i32::try_from(number.div_euclid(12).saturating_add(1970));
    // The remainder is 0 to 11, so the conversion cannot fail.
    let month = u32::try_from(number.rem_euclid(12) + 1).unwrap_or(1);
    let start = year
        .ok()
        .and_then(|year| Utc.with_ymd_and_hms(year, month, 1, 0, 0, 0).single());
    match start {
        Some(start) => start.into(),
        None if number < 0 => Timestamp::MIN,
        None => Timestamp::MAX,
    }
}

impl fmt::Display for Unit {
    /// Writes the unit in the form of queries and of JSON.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Minute => "minute",
            Self::Hour => "hour",
            Self::Day => "day",
            Self::Month => "month",
        })
    }
}

impl FromStr for Unit {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let named = |unit: &Self| unit.to_string() == text;
        Self::ALL.into_iter().find(named).ok_or(())
    }
}

/// Counts of a feed's entries, as in `rates.json`.
///
/// # Examples
///
/// ```
/// use simplefeed_core::rates::{Rates, Unit};
///
/// let rates: Rates = serde_json::from_str(
///     r#"{"by":"hour","through":"2026-11-26T02:10:11.000001Z","kept_from":null,
///        "counts":[["2026-11-26T01:00:00Z",12]]}"#,
/// )
/// .unwrap();
/// assert_eq!((rates.by, rates.counts[0].1), (Unit::Hour, 12));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rates {
    /// Length of the spans.
    pub by: Unit,
    /// Last second up to which all entries are counted, and no later than the second of the feed's
    /// newest entry; `None` before anything is counted.
    pub through: Option<String>,
    /// Instant from which on spans of this length are kept; `None` if all spans are kept.
    pub kept_from: Option<String>,
    /// Beginning of each span with entries, and the number of entries in the span, the oldest span
    /// first.
    pub counts: Vec<(String, u64)>,
}

/// Returns the beginning of a span as in JSON: RFC 3339 in whole seconds.
pub fn span_text(start: Timestamp) -> String {
    DateTime::<Utc>::from(start).to_rfc3339_opts(SecondsFormat::Secs, true)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Goal: each instant lies in one span of each length, and that span lies in one span of
        /// the next longer length.
        #[test]
        fn spans_are_nested_and_leave_nothing_out(micros in Timestamp::MIN.micros()..=Timestamp::MAX.micros()) {
            let instant = Timestamp::from_micros(micros);
            for unit in Unit::ALL {
                let number = unit.number(instant);
                prop_assert!(unit.start(number) <= instant);
                prop_assert!(unit.start(number + 1) > instant || unit.start(number + 1) == Timestamp::MAX);
                prop_assert_eq!(unit.number(unit.start(number)), number);
                if let Some(longer) = unit.longer() {
                    prop_assert_eq!(longer.number(unit.start(number)), longer.number(instant));
                }
                prop_assert_eq!(unit.to_string().parse::<Unit>(), Ok(unit));
            }
        }
    }

    #[test]
    fn numbers_beyond_all_years_stay_within_them() {
        for unit in Unit::ALL {
            assert_eq!(unit.start(i64::MAX), Timestamp::MAX);
            assert_eq!(unit.start(i64::MIN), Timestamp::MIN);
        }
    }
}
