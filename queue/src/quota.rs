//! Requests that a credential may still make: one small state for each credential, shared by all
//! workers.
//!
//! Pure. A provider allows a number of requests in a window of time. The provider's window may
//! start at the first request or at the full hour, or may slide. So the promise here is the
//! strictest: *no* window of that length holds more requests than the limit, wherever the window
//! starts. The algorithm is the generic cell rate algorithm (GCRA), whose state is one instant. A
//! tenth of the limit may be used at once; the rest is spread evenly.
//!
//! A provider's own count ([`QuotaReport`]) only makes the quota stricter.

use std::time::Duration;

use chrono::{DateTime, Utc};

use crate::{error::QueueError, instant::later, limits::Limit};

/// Divisor of a limit: the quotient is the number of requests that may be made at once.
const BURST: u32 = 10;
/// Longest window: a year, so that no arithmetic of instants overflows.
const WINDOW_MAX: Duration = Duration::from_hours(366 * 24);
/// Longest time between the reservation of a request and the provider's count of the request.
const TRANSIT_MAX: Duration = Duration::from_secs(1);

/// Longest time for which a provider's report stops a credential. After that time, one request asks
/// again.
const REPORT_MAX: Duration = Duration::from_hours(24);
/// Microseconds by which the clocks of a queue's keepers may be apart: those of a database and of
/// its successor.
const CLOCKS_APART: i64 = 3_600_000_000;
/// Microseconds by which two reports of one count may differ in the end of the count: reports
/// travel for a while, and have whole seconds.
const SAME_COUNT: i64 = 2_000_000;

impl Limit {
    /// Returns the number of requests that may be made at once.
    fn burst_size(self) -> u32 {
        (self.requests / BURST).max(1)
    }

    /// Returns the microseconds between two requests once the burst is used.
    ///
    /// A half-open window holds at most `burst + ceil(window / gap) - 1` requests, and with this
    /// gap, that number is the limit. The window counts as longer than it is, by `TRANSIT_MAX` or
    /// at most by a tenth, because requests take different times on their way.
    fn gap_micros(self) -> i64 {
        let window = self
            .window
            .saturating_add(TRANSIT_MAX.min(self.window / 10));
        // Positive: the burst is a tenth of the requests, or one.
        let spread = u128::from(self.requests - self.burst_size() + 1);
        // Rounded up: a gap that is shorter by a fraction would let one request too many into a
        // window.
        i64::try_from(window.as_micros().div_ceil(spread)).unwrap_or(i64::MAX)
    }
}

/// A provider's report about a credential's quota.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QuotaReport {
    /// Time in which the provider wants no request: a request was refused, or the network failed.
    /// At most 24 hours.
    pub pause: Option<Duration>,
    /// Requests that the provider still accepts, and the time after which the count begins anew: at
    /// most 24 hours.
    pub remaining: Option<(u32, Duration)>,
}

/// Answer of [`Queue::reserve`](crate::Queue::reserve).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reservation {
    /// The requests may be made now. They count, even if the caller makes none of them.
    Now,
    /// Nothing is reserved. Another call is of no use before this time has passed.
    After(Duration),
}

/// State of a credential's quota.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Bucket {
    /// Instant, in microseconds after 1970, at which all requests so far are spread out: GCRA's
    /// "theoretical arrival time".
    pub(crate) spread: i64,
    /// Instant, in microseconds after 1970, before which no request is made.
    pub(crate) paused: i64,
    /// Requests that the provider still accepts before `reset`.
    pub(crate) remaining: u32,
    /// Instant, in microseconds after 1970, at which the provider counts anew.
    pub(crate) reset: i64,
}

impl Bucket {
    /// Reserves requests, and returns the answer. A refusal changes nothing, but pauses and counts
    /// that end too far ahead are forgotten even then.
    pub(crate) fn reserve(
        &mut self,
        now: DateTime<Utc>,
        requests: u32,
        limit: Limit,
    ) -> Result<Reservation, QueueError> {
        if limit.requests == 0
            || limit.window.is_zero()
            || limit.window > WINDOW_MAX
            || requests > limit.burst_size()
        {
            return Err(QueueError::Quota { requests, limit });
        }
        // Before the count is read: a reset that a wrong clock has set would stop the credential
        // until the reset.
        self.forget_what_is_far(now);
        let now = now.timestamp_micros();
        let is_counted = now < self.reset;
        let gap = limit.gap_micros();
        let burst = gap.saturating_mul(limit.burst_size().into());
        let these = gap.saturating_mul(requests.into());
        // A spread that ends more than `CLOCKS_APART` after a whole burst was set by a wrong clock.
        // Then these requests are allowed, and the whole burst counts as used.
        let burst_ends = now.saturating_add(burst);
        let before = if self.spread > burst_ends.saturating_add(CLOCKS_APART) {
            burst_ends.saturating_sub(these)
        } else {
            self.spread.max(now)
        };
        let spread = before.saturating_add(these);
        let in_burst = spread.saturating_sub(burst);
        let refused_until = if is_counted && self.remaining < requests {
            self.reset
        } else {
            0
        };
        let next = in_burst.max(self.paused).max(refused_until);
        if next > now {
            // The difference is positive here.
            let wait = u64::try_from(next - now).unwrap_or_default();
            return Ok(Reservation::After(Duration::from_micros(wait)));
        }
        // Only now: a refused request must use nothing of the quota.
        self.spread = spread;
        if is_counted {
            self.remaining -= requests;
        }
        Ok(Reservation::Now)
    }

    /// Forgets pauses and counts that end later than any report can say: a clock that was wrong has
    /// set them.
    fn forget_what_is_far(&mut self, now: DateTime<Utc>) {
        let end = later(now, REPORT_MAX).timestamp_micros();
        let end = end.saturating_add(CLOCKS_APART);
        if self.paused > end {
            self.paused = 0;
        }
        if self.reset > end {
            (self.remaining, self.reset) = (0, 0);
        }
    }

    /// Applies a provider's report.
    pub(crate) fn report(&mut self, now: DateTime<Utc>, report: QuotaReport) {
        // A pause of a wrong clock would win every `max` below.
        self.forget_what_is_far(now);
        // No provider stops a credential for more than a day, whatever its report says.
        let until = |span: Duration| later(now, span.min(REPORT_MAX)).timestamp_micros();
        if let Some(pause) = report.pause {
            self.paused = self.paused.max(until(pause));
        }
        if let Some((remaining, reset)) = report.remaining {
            let reset = until(reset);
            // Answers overtake each other. Of two reports of one count, the smaller number is the
            // newer; of two counts, the count that ends later is the newer. A count whose end
            // slides on is a new count with each report.
            if reset > self.reset.saturating_add(SAME_COUNT) {
                (self.remaining, self.reset) = (remaining, reset);
            } else if reset >= self.reset.saturating_sub(SAME_COUNT) {
                self.remaining = self.remaining.min(remaining);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::instant::from_micros;

    fn at(micros: i64) -> DateTime<Utc> {
        from_micros(micros)
    }

    proptest! {
        /// I4: no window of the limit's length holds more requests than the limit, wherever it
        /// starts, also if each request arrives up to a tenth of the window later than it was
        /// reserved. And what is refused is accepted after the time that was named.
        #[test]
        fn no_window_holds_more_than_the_limit(
            requests in 1_u32..40,
            window in 10_u64..10_000,
            asked in prop::collection::vec((0_i64..2_000, 1_u32..4, 0.0..1.0_f64), 1..300),
        ) {
            let limit = Limit { requests, window: Duration::from_millis(window) };
            let mut bucket = Bucket::default();
            let mut now = 1_000_000_000_i64;
            let mut arrivals = Vec::new();
            let late_max = (window * 1_000 / 10).min(1_000_000);
            for (pause, count, late) in asked {
                now += pause * 1_000;
                let count = count.min(limit.burst_size());
                match bucket.reserve(at(now), count, limit).unwrap() {
                    Reservation::Now => {}
                    Reservation::After(wait) => {
                        let before = now + i64::try_from(wait.as_micros()).unwrap() - 1;
                        let mut early = bucket;
                        prop_assert_ne!(early.reserve(at(before), count, limit).unwrap(), Reservation::Now);
                        now = before + 1;
                        prop_assert_eq!(bucket.reserve(at(now), count, limit).unwrap(), Reservation::Now);
                    }
                }
                #[expect(clippy::as_conversions, clippy::cast_possible_truncation, clippy::cast_precision_loss, reason = "a part of a small number")]
                let late = (late * late_max as f64) as i64;
                arrivals.extend((0..count).map(|_| now + late));
            }
            arrivals.sort_unstable();
            let window = i64::try_from(window * 1_000).unwrap();
            for (index, first) in arrivals.iter().enumerate() {
                let held = arrivals[index..].iter().take_while(|one| **one < first + window).count();
                prop_assert!(held <= usize::try_from(requests).unwrap(), "{} in a window", held);
            }
        }
    }

    /// A provider with a count of its own, which ends at fixed times, or slides.
    struct Counting {
        is_sliding: bool,
        requests: u32,
        window: i64,
        made: Vec<i64>,
    }

    impl Counting {
        /// Counts a request. Returns its report, or nothing if it is one too many.
        fn take(&mut self, now: i64) -> Option<QuotaReport> {
            let begin = if self.is_sliding {
                now - self.window
            } else {
                now - now % self.window - 1
            };
            self.made.retain(|one| *one > begin);
            let left = self
                .requests
                .checked_sub(u32::try_from(self.made.len()).unwrap() + 1)?;
            self.made.push(now);
            let reset = if self.is_sliding {
                self.window
            } else {
                self.window - now % self.window
            };
            // Reports have whole seconds.
            let reset = Duration::from_secs((reset.unsigned_abs()).div_ceil(1_000_000));
            Some(QuotaReport {
                pause: None,
                remaining: Some((left, reset)),
            })
        }
    }

    proptest! {
        /// A provider that counts by itself, less than the quota says, accepts each request, and is
        /// used in each of its windows. Reports may overtake each other.
        #[test]
        fn a_reported_count_is_kept_and_ends(
            is_sliding in any::<bool>(),
            requests in 5_u32..60,
            delays in prop::collection::vec(0_i64..500_000, 500),
        ) {
            let window = 60_000_000_i64;
            let limit = Limit { requests: 100_000, window: Duration::from_secs(1) };
            let mut provider = Counting { is_sliding, requests, window, made: vec![] };
            let mut bucket = Bucket::default();
            let mut now = 1_000_000_000_i64;
            let (mut made, mut refused, began) = (0_u32, 0, now);
            for delay in delays {
                match bucket.reserve(at(now), 1, limit).unwrap() {
                    Reservation::After(wait) => {
                        prop_assert!(wait <= Duration::from_secs(62), "{:?}", wait);
                        now += i64::try_from(wait.as_micros()).unwrap();
                    }
                    Reservation::Now => {
                        made += 1;
                        match provider.take(now) {
                            Some(report) => bucket.report(at(now + delay / 10), report),
                            None => refused += 1,
                        }
                    }
                }
                now += delay;
            }
            // In each window, one request may be refused, and so show that the provider's count is
            // used up.
            let windows = (now - began) / window + 1;
            prop_assert!(refused <= windows, "{} refused in {} windows", refused, windows);
            let least = i64::from(requests) * (windows - 2);
            prop_assert!(i64::from(made) >= least.min(400) / 2, "{} made in {} windows", made, windows);
        }

        /// Whatever is reported, a request may be made after 24 hours.
        #[test]
        fn no_report_stops_a_credential_for_ever(
            reports in prop::collection::vec(
                (0_i64..100_000_000, prop::option::of(any::<u64>()), prop::option::of((any::<u32>(), any::<u64>()))),
                1..20,
            ),
        ) {
            let limit = Limit { requests: 10, window: Duration::from_secs(1) };
            let mut bucket = Bucket::default();
            let mut now = 1_000_000_000_i64;
            for (passed, pause, remaining) in reports {
                now += passed;
                let pause = pause.map(Duration::from_micros);
                let remaining = remaining.map(|(count, reset)| (count, Duration::from_micros(reset)));
                bucket.report(at(now), QuotaReport { pause, remaining });
            }
            let day = i64::try_from(REPORT_MAX.as_micros()).unwrap();
            prop_assert_eq!(bucket.reserve(at(now + day), 1, limit).unwrap(), Reservation::Now);
        }
    }

    /// A clock that was wrong for a moment stops no credential for years.
    #[test]
    fn a_report_of_a_wrong_clock_is_forgotten() {
        let limit = Limit {
            requests: 100,
            window: Duration::from_secs(100),
        };
        let day = Duration::from_hours(24);
        let (now, years) = (1_800_000_000_000_000, 1_700_000_000_000_000);
        let mut bucket = Bucket::default();
        let report = QuotaReport {
            pause: Some(day),
            remaining: Some((0, day)),
        };
        bucket.report(at(now + years), report);
        assert_eq!(bucket.reserve(at(now), 1, limit).unwrap(), Reservation::Now);
        bucket.report(at(now), report);
        let wait = Reservation::After(day);
        assert_eq!(bucket.reserve(at(now), 1, limit).unwrap(), wait);
        // The clock went back. Requests go on in the pace of the quota, without another burst.
        let mut asked = now - years;
        for _ in 0..50 {
            assert_eq!(
                bucket.reserve(at(asked), 1, limit).unwrap(),
                Reservation::Now
            );
            let Reservation::After(wait) = bucket.reserve(at(asked), 1, limit).unwrap() else {
                panic!("a burst");
            };
            assert!(wait < Duration::from_secs(2), "{wait:?}");
            asked += i64::try_from(wait.as_micros()).unwrap();
        }
    }

    /// A report whose time is over says nothing about a count that goes on.
    #[test]
    fn a_late_report_of_an_earlier_count_does_not_count() {
        let limit = Limit {
            requests: 100,
            window: Duration::from_secs(100),
        };
        let seconds = Duration::from_secs;
        let mut bucket = Bucket::default();
        let report = |remaining| QuotaReport {
            pause: None,
            remaining: Some(remaining),
        };
        bucket.report(at(0), report((0, seconds(60))));
        bucket.report(at(0), report((50, Duration::ZERO)));
        let wait = Reservation::After(seconds(60));
        assert_eq!(bucket.reserve(at(0), 1, limit).unwrap(), wait);
    }

    /// TU-8: a quota is used: in ten windows without a pause, nine tenths of what it allows are
    /// made.
    #[test]
    fn a_quota_is_used() {
        for requests in [1, 2, 15, 180, 900, 100_000] {
            let limit = Limit {
                requests,
                window: Duration::from_mins(15),
            };
            let mut bucket = Bucket::default();
            let mut now = 0_i64;
            let mut made = 0_u32;
            while now < 9_000_000_000 {
                match bucket.reserve(at(now), 1, limit).unwrap() {
                    Reservation::Now => made += 1,
                    Reservation::After(wait) => now += i64::try_from(wait.as_micros()).unwrap(),
                }
            }
            assert!(made >= requests * 9, "{made} of {requests} × 10");
        }
    }

    #[test]
    fn a_refusal_pauses_and_a_count_is_kept() {
        let limit = Limit {
            requests: 100,
            window: Duration::from_secs(100),
        };
        let second = Duration::from_secs(1);
        let mut bucket = Bucket::default();
        bucket.report(
            at(0),
            QuotaReport {
                pause: Some(30 * second),
                remaining: None,
            },
        );
        // A shorter pause that is reported later does not end it.
        bucket.report(
            at(0),
            QuotaReport {
                pause: Some(second),
                remaining: None,
            },
        );
        assert_eq!(
            bucket.reserve(at(0), 1, limit).unwrap(),
            Reservation::After(30 * second)
        );
        assert_eq!(
            bucket.reserve(at(30_000_000), 1, limit).unwrap(),
            Reservation::Now
        );

        let mut bucket = Bucket::default();
        bucket.report(
            at(0),
            QuotaReport {
                pause: None,
                remaining: Some((2, 60 * second)),
            },
        );
        bucket.report(
            at(0),
            QuotaReport {
                pause: None,
                remaining: Some((3, 60 * second)),
            },
        );
        assert_eq!(bucket.reserve(at(0), 2, limit).unwrap(), Reservation::Now);
        assert_eq!(
            bucket.reserve(at(0), 1, limit).unwrap(),
            Reservation::After(60 * second)
        );
        assert_eq!(
            bucket.reserve(at(60_000_000), 1, limit).unwrap(),
            Reservation::Now
        );
    }

    #[test]
    fn what_never_fits_is_refused() {
        let limit = Limit {
            requests: 20,
            window: Duration::from_secs(1),
        };
        let mut bucket = Bucket::default();
        assert!(bucket.reserve(at(0), 2, limit).is_ok());
        for (requests, limit) in [
            (3, limit),
            (
                1,
                Limit {
                    requests: 0,
                    ..limit
                },
            ),
            (
                1,
                Limit {
                    window: Duration::ZERO,
                    ..limit
                },
            ),
        ] {
            let refused = bucket.reserve(at(0), requests, limit).unwrap_err();
            assert!(refused.to_string().contains("never fit"), "{refused}");
        }
    }
}
