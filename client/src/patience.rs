//! How long to wait: after a failure, and between two looks.
//!
//! Pure, but for the random part of a pause.

use std::{
    hash::{BuildHasher as _, RandomState},
    time::Duration,
};

use simplefeed_core::limits::{BACK_OFF_SECONDS_MAX, BACK_OFF_SECONDS_MIN, PAUSE_SECONDS_MAX};

/// Number of failed attempts at one request after which a consumer that does not follow gives up.
pub(crate) const ATTEMPTS: u32 = 4;

/// Returns the pause after failed attempt `attempt`, counted from 0. The pause doubles each time,
/// within bounds, and is no shorter than the server asks, up to a day (RFC 9110, 10.2.3).
pub(crate) fn back_off(attempt: u32, asked: Option<Duration>) -> Duration {
    let seconds = BACK_OFF_SECONDS_MIN
        // The bound of 16 keeps the shift from overflowing. The pause reaches the maximum long
        // before.
        .saturating_mul(1 << attempt.min(16))
        .min(BACK_OFF_SECONDS_MAX);
    let asked = asked
        .unwrap_or_default()
        .min(Duration::from_secs(PAUSE_SECONDS_MAX));
    Duration::from_secs(seconds).max(asked)
}

/// Returns whether the server asks for a pause of more than [`BACK_OFF_SECONDS_MAX`] seconds. A
/// caller that may not wait for ever then gives up.
pub(crate) fn asks_too_much(asked: Option<Duration>) -> bool {
    asked.is_some_and(|asked| asked > Duration::from_secs(BACK_OFF_SECONDS_MAX))
}

/// Returns the pause, longer by up to a quarter, so that a thousand consumers that were interrupted
/// at the same time do not come back at the same time.
pub(crate) fn jittered(pause: Duration) -> Duration {
    // A hasher's random keys are random enough to spread requests.
    let chance = RandomState::new().hash_one(()) % 1_024;
    let chance = u32::try_from(chance).unwrap_or(0);
    pause + pause / 4 * chance / 1_024
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_within_bounds() {
        assert_eq!(back_off(0, None), Duration::from_secs(1));
        assert_eq!(back_off(3, None), Duration::from_secs(8));
        assert_eq!(back_off(40, None), Duration::from_mins(1));
    }

    #[test]
    fn a_server_that_asks_for_patience_gets_it() {
        let asked = |seconds| Some(Duration::from_secs(seconds));
        assert_eq!(back_off(0, asked(5)), Duration::from_secs(5));
        assert_eq!(back_off(0, asked(3_600)), Duration::from_hours(1));
        assert_eq!(back_off(0, asked(u64::MAX)), Duration::from_hours(24));
        assert!(asks_too_much(asked(61)) && !asks_too_much(asked(60)) && !asks_too_much(None));
    }

    #[test]
    fn jitter_only_adds_and_differs() {
        let pause = Duration::from_secs(8);
        let pauses: Vec<_> = (0..50).map(|_| jittered(pause)).collect();
        assert!(pauses.iter().all(|p| (pause..=pause * 5 / 4).contains(p)));
        assert!(pauses.windows(2).any(|pair| pair[0] != pair[1]));
        assert_eq!(jittered(Duration::ZERO), Duration::ZERO);
        assert!(jittered(Duration::from_hours(24)) < Duration::from_hours(31));
    }
}
