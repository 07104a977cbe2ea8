//! The accepted clock, which stamps commits and tells whether a second is over: for the watermark,
//! SUP, `Last-Modified`, health.
//!
//! Shell: the system's clocks and a lock. The decisions are in `accepted`, which is pure. A system
//! clock that is wrong for a moment must not count for ever: one commit stamped with the year 2098
//! would keep all later ones there. So a leap of more than an hour ahead is followed only once it
//! has lasted for ten minutes, and a leap of more than a month only after an operator has accepted
//! the time. Wider bounds hold at a start, and in the first hour after a machine has booted.

mod accepted;

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::{Duration, SystemTime},
};

use parking_lot::Mutex;
use simplefeed_core::timestamp::Timestamp;
use tracing::{error, info, warn};

use self::accepted::AcceptedClock;
pub use self::accepted::{ClockReading, ClockStanding};

/// Steps of the system clock up to this many microseconds are not judged, because the two clocks
/// are not read at the same instant.
const STEP: i64 = 1_000;
/// An offset that no clock has.
const NONE: i64 = i64::MIN;
/// 2100-01-01, in microseconds: a clock that shows a later time is wrong. Dates of HTTP end with
/// the year 9999, and numbers of epochs with 2106. So an epoch that a wrong clock numbers leaves
/// some numbers for later restorations.
const LATEST: i64 = 4_102_444_800 * 1_000_000;

/// Reads the system's clocks.
pub fn system() -> ClockReading {
    // A clock before 1970 counts as 1970: commits are in order all the same.
    let since = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    #[cfg(any(target_os = "linux", target_os = "android"))]
    let id = rustix::time::ClockId::Boottime;
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    let id = rustix::time::ClockId::Monotonic;
    let boot = rustix::time::clock_gettime(id);
    let boot = boot
        .tv_sec
        .saturating_mul(1_000_000)
        .saturating_add(boot.tv_nsec / 1_000);
    ClockReading {
        wall: sensible_time(since),
        boot,
    }
}

/// Returns the time at that distance from 1970, or [`LATEST`] if that is earlier.
fn sensible_time(since_1970: Duration) -> Timestamp {
    let micros = i64::try_from(since_1970.as_micros()).unwrap_or(i64::MAX);
    Timestamp::from_micros(micros.min(LATEST))
}

/// The accepted clock. Clones are one clock.
#[derive(Clone, Debug)]
pub struct Clock(Arc<ClockState>);

/// How far the system clock is from the expected time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockDistance {
    /// How far the system clock is ahead of the accepted clock.
    pub ahead: Duration,
    /// How far the system clock is behind a moment that was accepted before.
    pub behind: Duration,
}

#[derive(Debug)]
struct ClockState {
    read: fn() -> ClockReading,
    /// Offset of a system clock that need not be judged; [`NONE`] if each reading must be judged.
    unjudged: AtomicI64,
    accepted: Mutex<AcceptedClock>,
}

impl ClockState {
    /// Judges a reading, and calls `look`. The reading is made under the lock: a reading older than
    /// the last judged one would look like a clock that was set back.
    fn judge_with<T>(&self, look: impl FnOnce(&AcceptedClock, ClockReading) -> T) -> T {
        let mut accepted = self.accepted.lock();
        let reading = (self.read)();
        if accepted.read(reading) {
            log_standing(accepted.standing(), reading.wall);
        }
        self.note_unjudged(&accepted);
        look(&accepted, reading)
    }

    fn note_unjudged(&self, accepted: &AcceptedClock) {
        let unjudged = accepted.unjudged().unwrap_or(NONE);
        self.unjudged.store(unjudged, Ordering::Release);
    }
}

impl Clock {
    /// Returns a clock over the clocks that `read` reads, which are [`system`]'s outside of tests.
    /// `known` is the last moment that the data folder knows.
    pub fn new(read: fn() -> ClockReading, known: Option<Timestamp>) -> Self {
        let reading = read();
        let accepted = AcceptedClock::new(known, reading);
        if accepted.standing() != ClockStanding::Followed {
            log_standing(accepted.standing(), reading.wall);
        }
        Self(Arc::new(ClockState {
            read,
            unjudged: AtomicI64::new(accepted.unjudged().unwrap_or(NONE)),
            accepted: Mutex::new(accepted),
        }))
    }

    /// Returns the accepted time. The system clock is ahead of this time after a leap that is not
    /// followed.
    pub fn now(&self) -> Timestamp {
        let reading = (self.0.read)();
        // Nearly always nothing has leapt, and then no lock is taken.
        let unjudged = self.0.unjudged.load(Ordering::Acquire);
        if reading.offset().abs_diff(unjudged) <= STEP.unsigned_abs() {
            return reading.wall;
        }
        self.0.judge_with(AcceptedClock::time)
    }

    /// Returns the time, the standing of the system clock, and for how long the time has not leapt
    /// and the standing has not changed.
    pub fn look(&self) -> (Timestamp, ClockStanding, Duration) {
        self.0.judge_with(|accepted, reading| {
            let steady = accepted.steady(reading).max(0).unsigned_abs();
            let steady = Duration::from_micros(steady);
            (accepted.time(reading), accepted.standing(), steady)
        })
    }

    /// Returns the time on the system's clock.
    pub fn system(&self) -> Timestamp {
        (self.0.read)().wall
    }

    /// Returns how far the system clock is from the expected time.
    pub fn apart(&self) -> ClockDistance {
        let (ahead, behind) = self.0.judge_with(AcceptedClock::apart);
        ClockDistance {
            ahead: Duration::from_micros(ahead),
            behind: Duration::from_micros(behind),
        }
    }

    /// Returns the standing of the system clock.
    pub fn standing(&self) -> ClockStanding {
        self.0.judge_with(|accepted, _| accepted.standing())
    }

    /// Returns whether the system clock is refused.
    pub fn is_refused(&self) -> bool {
        // A clock that is followed at once is not refused, so no lock is taken.
        self.0.unjudged.load(Ordering::Acquire) == NONE
            && matches!(self.standing(), ClockStanding::Refused { .. })
    }

    /// Follows the system clock without a judgement, because an operator vouches for the clock.
    /// Returns the time.
    pub fn accept(&self) -> Timestamp {
        let mut accepted = self.0.accepted.lock();
        let reading = (self.0.read)();
        accepted.accept(reading);
        self.0.note_unjudged(&accepted);
        info!(now = %reading.wall, "the system clock is accepted");
        reading.wall
    }
}

/// Logs a new standing of the system clock.
fn log_standing(standing: ClockStanding, wall: Timestamp) {
    match standing {
        ClockStanding::Followed => info!(%wall, "the system clock is followed"),
        ClockStanding::Behind { reached } => warn!(
            %wall, %reached,
            "the system clock is behind what was reached before: new entries are stamped behind the last one"
        ),
        ClockStanding::Held => warn!(
            %wall,
            "the system clock has leapt ahead; it is followed in ten minutes if it stays there"
        ),
        ClockStanding::Far => error!(
            %wall,
            "the system clock has leapt ahead by more than a month and is not followed; if it is right, run \
             `simplefeed-server clock accept`"
        ),
        ClockStanding::Refused { known } => error!(
            %wall, %known,
            "the system clock is more than five years ahead of all that the data folder knows, so nothing is published; if \
             it is right, run `simplefeed-server clock accept`"
        ),
    }
}

#[cfg(test)]
mod tests;
