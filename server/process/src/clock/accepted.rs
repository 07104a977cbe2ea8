//! Decision about which readings of the system clock are followed.
//!
//! Pure. A reading comes in, a decision goes out. A time of day is kept as an offset: the
//! microseconds by which the time of day differs from the time since boot. Nobody can set the time
//! since boot, and it goes on while a machine sleeps. So an offset that stays the same is a clock
//! that runs.

use simplefeed_core::timestamp::Timestamp;

const SECOND: i64 = 1_000_000;
const HOUR: i64 = 3_600 * SECOND;
const DAY: i64 = 24 * HOUR;
/// How far ahead a reading may be to be followed at once.
const AHEAD_MAX: i64 = HOUR;
/// How long a reading that is further ahead must last to be followed.
const HELD_FOR: i64 = 600 * SECOND;
/// How far ahead a reading may be to be followed without an operator's word.
const LEAP_MAX: i64 = 31 * DAY;
/// Time since boot in which a machine may get the right time.
const BOOTED: i64 = HOUR;
/// How long a folder may lie still between two servers.
const REST_MAX: i64 = 5 * 365 * DAY + 30 * HOUR;
/// How far the system clock may be behind and still count as followed.
const BEHIND_TOLD: i64 = 60 * SECOND;
/// 2026-01-01: no server ran before. A machine without a clock of its own begins in 1970, and gets
/// the right time later.
const EARLIEST: i64 = 1_767_225_600 * SECOND;

/// A look at both clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockReading {
    /// Time of day by the system clock.
    pub wall: Timestamp,
    /// Microseconds since the start of the machine, sleep included.
    pub boot: i64,
}

impl ClockReading {
    pub(super) fn offset(self) -> i64 {
        self.wall.micros().saturating_sub(self.boot)
    }
}

/// Standing of the system clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClockStanding {
    /// The accepted clock follows the system clock.
    Followed,
    /// The system clock is followed, and is more than a minute earlier than a moment that has been
    /// reached already.
    Behind {
        /// Latest moment that was reached before.
        reached: Timestamp,
    },
    /// The system clock has leapt ahead, and is followed soon if the leap lasts.
    Held,
    /// The system clock has leapt so far ahead that an operator must accept the time.
    Far,
    /// At the start, the system clock was so far ahead of all that the data folder knows that
    /// nothing is stamped by that clock.
    Refused {
        /// The last moment that the data folder knows, plus the time that has passed since the
        /// start.
        known: Timestamp,
    },
}

/// A leap that is being held.
#[derive(Clone, Copy, Debug)]
struct Hold {
    /// Time since boot at which the leap was seen first.
    since: i64,
    offset: i64,
}

/// State of the accepted clock between two readings of the system clock.
#[derive(Debug)]
pub(super) struct AcceptedClock {
    /// Offset of the accepted clock.
    offset: i64,
    /// The latest time that was ever accepted, or the last moment that the folder knows, if that is
    /// later. This moment stands still while the accepted clock is behind it.
    reached: i64,
    /// Whether the system clock has not come to `reached` since the start, or has shown only times
    /// before 2026. Until then, a reading is judged like that of the start: a machine may get the
    /// right time only after the server has started.
    is_starting: bool,
    hold: Option<Hold>,
    standing: ClockStanding,
    /// Time since boot at which the standing last changed, or the accepted clock last leapt.
    changed: i64,
}

impl AcceptedClock {
    /// Begins with the last moment that the data folder knows, if there is one.
    pub(super) fn new(known: Option<Timestamp>, reading: ClockReading) -> Self {
        let known = known.unwrap_or(reading.wall).micros();
        let mut accepted = Self {
            offset: known.saturating_sub(reading.boot),
            reached: known,
            is_starting: true,
            hold: None,
            standing: ClockStanding::Followed,
            changed: reading.boot,
        };
        accepted.read(reading);
        accepted
    }

    /// Returns the accepted time.
    pub(super) fn time(&self, reading: ClockReading) -> Timestamp {
        Timestamp::from_micros(reading.boot.saturating_add(self.offset))
    }

    /// Returns the offset of a system clock that need not be judged; `None` if each reading must be
    /// judged.
    pub(super) fn unjudged(&self) -> Option<i64> {
        let is_plain = self.standing == ClockStanding::Followed && !self.is_starting;
        is_plain.then_some(self.offset)
    }

    pub(super) fn standing(&self) -> ClockStanding {
        self.standing
    }

    /// Returns how far the system clock is ahead of the accepted one, and behind a time that was
    /// accepted before, in microseconds.
    pub(super) fn apart(&self, reading: ClockReading) -> (u64, u64) {
        let wall = reading.wall.micros();
        let by = |more: i64, less: i64| more.saturating_sub(less).max(0).unsigned_abs();
        (
            by(wall, self.time(reading).micros()),
            by(self.reached, wall),
        )
    }

    /// Returns for how many microseconds the accepted clock has run without a leap and with the
    /// same standing.
    pub(super) fn steady(&self, reading: ClockReading) -> i64 {
        reading.boot.saturating_sub(self.changed)
    }

    /// Judges a reading. Returns whether the standing has changed.
    pub(super) fn read(&mut self, reading: ClockReading) -> bool {
        let (before, offset) = (self.standing, self.offset);
        self.reached = self.reached.max(self.time(reading).micros());
        self.standing = self.judge_reading(reading);
        let is_other = std::mem::discriminant(&self.standing) != std::mem::discriminant(&before);
        if is_other || offset.abs_diff(self.offset) > SECOND.unsigned_abs() {
            self.changed = reading.boot;
        }
        is_other
    }

    fn judge_reading(&mut self, reading: ClockReading) -> ClockStanding {
        let (wall, reached) = (reading.wall.micros(), self.reached);
        let ahead = wall.saturating_sub(reached);
        if ahead <= 0 {
            // An earlier time is followed at once: stamps have an order of their own, and the
            // watermark never goes back.
            return self.follow_reading(reading);
        }
        // Until a later time is followed, the accepted clock goes on from the moment reached.
        self.offset = reached.saturating_sub(reading.boot);
        if self.is_starting {
            if ahead <= REST_MAX || reached < EARLIEST {
                return self.follow_reading(reading);
            }
            let known = Timestamp::from_micros(reached);
            return ClockStanding::Refused { known };
        }
        if ahead <= AHEAD_MAX {
            return self.follow_reading(reading);
        }
        // Some machines begin with the time at which they were shut down, until they get the right
        // one.
        let most = if reading.boot < BOOTED {
            REST_MAX
        } else {
            LEAP_MAX
        };
        if ahead > most {
            self.hold = None;
            return ClockStanding::Far;
        }
        let wall = reading.offset();
        // A clock that runs keeps its offset, so a similar offset belongs to the same leap.
        let is_same = |hold: &Hold| hold.offset.abs_diff(wall) <= AHEAD_MAX.unsigned_abs();
        let hold = self.hold.filter(is_same).unwrap_or(Hold {
            since: reading.boot,
            offset: wall,
        });
        if reading.boot.saturating_sub(hold.since) >= HELD_FOR {
            return self.follow_reading(reading);
        }
        self.hold = Some(hold);
        ClockStanding::Held
    }

    /// Follows a reading without a judgement, because an operator vouches for the clock.
    pub(super) fn accept(&mut self, reading: ClockReading) {
        self.standing = self.follow_reading(reading);
        self.changed = reading.boot;
    }

    fn follow_reading(&mut self, reading: ClockReading) -> ClockStanding {
        let wall = reading.wall.micros();
        self.offset = reading.offset();
        self.hold = None;
        if wall < self.reached.saturating_sub(BEHIND_TOLD) {
            let reached = Timestamp::from_micros(self.reached);
            return ClockStanding::Behind { reached };
        }
        self.reached = self.reached.max(wall);
        // A clock that still shows a time before 2026 has not got the right time yet.
        self.is_starting &= wall < EARLIEST;
        ClockStanding::Followed
    }
}

#[cfg(test)]
mod tests;
