//! Instants that every keeper can store.
//!
//! Pure.

use std::time::Duration;

use chrono::{DateTime, SubsecRound as _, Utc};

/// End of the year 9999, in microseconds after 1970. Every keeper can store the instants from 1970
/// to this one.
const INSTANT_MICROS_MAX: i64 = 253_402_300_799_000_000;

/// Returns the instant so many microseconds after 1970, clamped to the instants that every keeper
/// can store.
pub(crate) fn from_micros(micros: i64) -> DateTime<Utc> {
    let micros = micros.clamp(0, INSTANT_MICROS_MAX);
    DateTime::from_timestamp_micros(micros).unwrap_or(DateTime::UNIX_EPOCH)
}

/// Returns the instant `span` after `now`, in whole microseconds.
pub(crate) fn later(now: DateTime<Utc>, span: Duration) -> DateTime<Utc> {
    let micros = i64::try_from(span.as_micros()).unwrap_or(i64::MAX);
    from_micros(
        now.trunc_subsecs(6)
            .timestamp_micros()
            .saturating_add(micros),
    )
}
