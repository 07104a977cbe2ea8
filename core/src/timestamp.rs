//! A point in time, as in entries and commits.
//!
//! Pure. The log counts time in microseconds, which RFC 3339 text can carry. The gate refuses years
//! outside 0001–9999.

use std::{fmt, time::Duration};

use chrono::{DateTime, SecondsFormat, Utc};
use serde::{Deserialize, Deserializer, Serialize};

/// Microseconds since 1970-01-01T00:00:00Z.
///
/// # Examples
///
/// ```
/// use simplefeed_core::timestamp::Timestamp;
///
/// let instant = Timestamp::from_micros(1_700_000_000_000_001);
/// assert_eq!(instant.to_string(), "2023-11-14T22:13:20.000001Z");
/// assert_eq!(Timestamp::parse("2023-11-14T23:13:20.000001+01:00"), Some(instant));
/// ```
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Timestamp(#[serde(deserialize_with = "representable")] i64);

/// Reads microseconds, moved into the representable years.
fn representable<'de, D: Deserializer<'de>>(from: D) -> Result<i64, D::Error> {
    Ok(Timestamp::from_micros(i64::deserialize(from)?).0)
}

impl Timestamp {
    /// The latest instant that a timestamp can have: the last microsecond of the year 9999.
    pub const MAX: Self = Self(253_402_300_799_999_999);

    /// The earliest instant that a timestamp can have: the first microsecond of the year 1.
    pub const MIN: Self = Self(-62_135_596_800_000_000);

    /// Returns the instant `micros` microseconds after the beginning of 1970. An instant outside
    /// the years 1 to 9999 becomes the nearest instant within these years.
    pub fn from_micros(micros: i64) -> Self {
        Self(micros.clamp(Self::MIN.0, Self::MAX.0))
    }

    /// Returns the microseconds since 1970.
    pub fn micros(self) -> i64 {
        self.0
    }

    /// Returns the whole second in which this instant lies, counted from 1970.
    pub fn second(self) -> i64 {
        // Euclidean division rounds instants before 1970 down, too.
        self.0.div_euclid(1_000_000)
    }

    /// Returns the instant `micros` microseconds later, at most [`Timestamp::MAX`].
    #[must_use]
    pub fn plus_micros(self, micros: u64) -> Self {
        let micros = i64::try_from(micros).unwrap_or(i64::MAX);
        Self(self.0.saturating_add(micros).min(Self::MAX.0))
    }

    /// Returns the instant `span` later, at most [`Timestamp::MAX`].
    #[must_use]
    pub fn plus(self, span: Duration) -> Self {
        self.plus_micros(u64::try_from(span.as_micros()).unwrap_or(u64::MAX))
    }

    /// Returns the instant of an RFC 3339 `date-time`.
    ///
    /// Atom demands an upper-case `T` and `Z` and admits no white space (RFC 4287, 3.3; rule A-2).
    /// Digits beyond the microsecond are ignored. Returns `None` for any other text.
    pub fn parse(text: &str) -> Option<Self> {
        let shape = text.as_bytes();
        // chrono is lenient about the separator and the case; the RFC is not.
        let fits = text.is_ascii()
            && shape.get(10) == Some(&b'T')
            && !text.contains(['z', ' ', '\t', '\n', '\r']);
        if !fits || text.starts_with(['+', '-']) {
            return None;
        }
        let parsed = DateTime::parse_from_rfc3339(text).ok()?;
        let micros = parsed.timestamp_micros();
        (Self::MIN.0..=Self::MAX.0)
            .contains(&micros)
            .then_some(Self(micros))
    }
}

impl fmt::Display for Timestamp {
    /// Writes RFC 3339 in UTC, always with six digits of fraction.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let utc = DateTime::<Utc>::from(*self);
        f.write_str(&utc.to_rfc3339_opts(SecondsFormat::Micros, true))
    }
}

impl From<DateTime<Utc>> for Timestamp {
    fn from(instant: DateTime<Utc>) -> Self {
        Self::from_micros(instant.timestamp_micros())
    }
}

impl From<Timestamp> for DateTime<Utc> {
    fn from(instant: Timestamp) -> Self {
        DateTime::from_timestamp_micros(instant.0)
            .expect("an Timestamp lies within the years chrono can represent")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, want: Option<i64>) {
        assert_eq!(
            Timestamp::parse(text).map(Timestamp::micros),
            want,
            "{text}"
        );
    }

    /// Rules of RFC 4287, 3.3 and A-2.
    #[test]
    fn dates_are_rfc_3339_with_upper_case_t_and_z() {
        check("1970-01-01T00:00:00Z", Some(0));
        check("1970-01-01T00:00:00.25Z", Some(250_000));
        check("1970-01-01T01:00:00+01:00", Some(0));
        check("1970-01-01T00:00:00.1234567Z", Some(123_456));
        check("1970-01-01t00:00:00Z", None);
        check("1970-01-01T00:00:00z", None);
        check("1970-01-01 00:00:00Z", None);
        check(" 1970-01-01T00:00:00Z", None);
        check("1970-01-01T00:00:00", None);
        check("1970-01-01", None);
        check("1970-01-01T00:00:00\u{2212}01:00", None);
        check("1970-02-30T00:00:00Z", None);
        check("0000-01-01T00:00:00Z", None);
    }

    #[test]
    fn text_keeps_microseconds_and_sorts_like_time() {
        assert_eq!(
            Timestamp::from_micros(0).to_string(),
            "1970-01-01T00:00:00.000000Z"
        );
        assert_eq!(Timestamp::MAX.to_string(), "9999-12-31T23:59:59.999999Z");
        assert_eq!(Timestamp::MIN.to_string(), "0001-01-01T00:00:00.000000Z");
        assert_eq!(Timestamp::MAX.plus_micros(5), Timestamp::MAX);
    }
}
