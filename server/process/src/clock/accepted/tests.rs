use proptest::prelude::*;

use super::*;

const MINUTE: i64 = 60 * SECOND;
const YEAR: i64 = 365 * DAY;
/// 2026-11-28.
const TODAY: i64 = 1_795_824_000 * SECOND;

/// A machine: its clocks, and a server on it.
struct Machine {
    wall: i64,
    boot: i64,
    accepted: AcceptedClock,
}

impl Machine {
    fn started(known: Option<i64>, wall: i64) -> Self {
        let boot = 2 * DAY;
        let reading = ClockReading {
            wall: Timestamp::from_micros(wall),
            boot,
        };
        let accepted = AcceptedClock::new(known.map(Timestamp::from_micros), reading);
        Self {
            wall,
            boot,
            accepted,
        }
    }

    fn reading(&self) -> ClockReading {
        ClockReading {
            wall: Timestamp::from_micros(self.wall),
            boot: self.boot,
        }
    }

    /// Returns the accepted time.
    fn read(&mut self) -> i64 {
        self.accepted.read(self.reading());
        self.accepted.time(self.reading()).micros()
    }

    fn leap(&mut self, by: i64) -> i64 {
        self.wall += by;
        self.read()
    }

    fn wait(&mut self, time: i64) -> i64 {
        self.boot += time;
        self.leap(time)
    }

    fn standing(&self) -> ClockStanding {
        self.accepted.standing()
    }
}

#[test]
fn a_clock_that_runs_is_followed() {
    let mut machine = Machine::started(Some(TODAY), TODAY + 400 * DAY);
    for _ in 0..1_000 {
        machine.wait(3 * DAY);
        assert_eq!(machine.read(), machine.wall);
    }
    // As if a daemon corrected it.
    for step in [HOUR, -HOUR, SECOND, -30 * SECOND, 59 * MINUTE] {
        machine.leap(step);
        assert_eq!(machine.read(), machine.wall, "{step}");
    }
}

/// On a machine that was suspended, the time since boot goes on with the time of day.
#[test]
fn sleep_is_no_leap() {
    let mut machine = Machine::started(None, TODAY);
    machine.wait(90 * DAY);
    assert_eq!(machine.read(), machine.wall);
    assert_eq!(machine.standing(), ClockStanding::Followed);
}

#[test]
fn a_leap_is_followed_once_it_has_lasted() {
    let mut machine = Machine::started(None, TODAY);
    machine.leap(2 * HOUR);
    assert_eq!(machine.standing(), ClockStanding::Held);
    assert_eq!(machine.read(), TODAY);
    assert_eq!(machine.wait(9 * MINUTE), TODAY + 9 * MINUTE, "it goes on");
    machine.wait(MINUTE);
    assert_eq!(machine.read(), machine.wall);
    assert_eq!(machine.standing(), ClockStanding::Followed);
}

#[test]
fn a_leap_that_is_taken_back_leaves_nothing() {
    let mut machine = Machine::started(None, TODAY);
    machine.leap(20 * DAY);
    machine.wait(9 * MINUTE);
    machine.leap(-20 * DAY);
    assert_eq!(machine.read(), machine.wall);
    // The next one begins anew.
    machine.leap(20 * DAY);
    machine.wait(9 * MINUTE);
    assert_eq!(machine.standing(), ClockStanding::Held);
    // And so does one that goes further.
    machine.leap(5 * DAY);
    machine.wait(9 * MINUTE);
    assert_eq!(machine.standing(), ClockStanding::Held);
}

#[test]
fn a_leap_of_years_waits_for_somebody() {
    let mut machine = Machine::started(None, TODAY);
    machine.leap(72 * YEAR);
    assert_eq!(machine.standing(), ClockStanding::Far);
    assert_eq!(machine.wait(DAY), TODAY + DAY);
    machine.accepted.accept(machine.reading());
    assert_eq!(machine.read(), machine.wall);
    assert_eq!(machine.wait(DAY), machine.wall);
}

/// A clock that goes back is followed, and so is its way back.
#[test]
fn a_clock_that_is_set_back_is_followed_both_ways() {
    let mut machine = Machine::started(None, TODAY);
    for back in [HOUR, 20 * DAY, 50 * YEAR] {
        machine.leap(-back);
        assert_eq!(machine.read(), machine.wall);
        assert!(matches!(machine.standing(), ClockStanding::Behind { .. }));
        machine.wait(HOUR);
        machine.leap(back);
        assert_eq!(machine.read(), machine.wall, "{back}");
        assert_eq!(machine.standing(), ClockStanding::Followed);
    }
}

/// A clock is behind until it has passed the moment that was reached.
#[test]
fn behind_ends_once_it_has_been_passed() {
    let mut machine = Machine::started(Some(TODAY + 2 * MINUTE), TODAY);
    assert!(matches!(machine.standing(), ClockStanding::Behind { .. }));
    machine.wait(90 * SECOND);
    assert_eq!(machine.standing(), ClockStanding::Followed);
    assert_eq!(machine.accepted.apart(machine.reading()).0, 0);
    machine.leap(4 * YEAR);
    assert_eq!(machine.standing(), ClockStanding::Far, "the start is over");
    let mut machine = Machine::started(None, TODAY);
    machine.leap(-20 * DAY);
    machine.wait(3 * DAY);
    machine.leap(20 * DAY);
    assert_eq!(
        machine.standing(),
        ClockStanding::Held,
        "it is three days ahead"
    );
}

/// Some machines begin with the time of their last shutdown.
#[test]
fn time_may_come_within_an_hour_of_boot() {
    let mut machine = Machine::started(Some(TODAY), TODAY + SECOND);
    machine.boot = MINUTE;
    machine.accepted = AcceptedClock::new(Some(Timestamp::from_micros(TODAY)), machine.reading());
    machine.leap(60 * DAY);
    assert_eq!(machine.standing(), ClockStanding::Held);
    machine.wait(10 * MINUTE);
    assert_eq!(machine.read(), machine.wall);
}

/// A machine that gets its time late, after a rest of months: it begins in 1970, with a log or without one.
#[test]
fn time_may_come_after_the_start() {
    for known in [Some(TODAY - 60 * DAY), None] {
        let mut machine = Machine::started(known, 40 * SECOND);
        assert_eq!(machine.read(), machine.wall);
        machine.wait(2 * MINUTE);
        machine.wall = TODAY;
        assert_eq!(machine.read(), TODAY);
        assert_eq!(machine.standing(), ClockStanding::Followed);
        // It came once.
        machine.leap(3 * HOUR);
        assert_eq!(machine.standing(), ClockStanding::Held);
    }
}

#[test]
fn a_start_after_years_waits_for_somebody() {
    let known = TODAY;
    let today = TODAY + 4 * YEAR;
    let mut machine = Machine::started(Some(known), today);
    assert_eq!(machine.read(), today, "four years are a rest");
    let mut machine = Machine::started(Some(known), today + 2 * YEAR);
    assert!(matches!(machine.standing(), ClockStanding::Refused { .. }));
    assert_eq!(machine.wait(HOUR), known + HOUR);
    // Set right, it needs no operator.
    machine.wall = today;
    assert_eq!(machine.read(), today);
    let mut machine = Machine::started(Some(known), today + 2 * YEAR);
    machine.accepted.accept(machine.reading());
    assert_eq!(machine.wait(HOUR), today + 2 * YEAR + HOUR);
}

/// Returns whether the system clock has stayed within an hour of a reading that is ten minutes old.
fn has_lasted(readings: &[ClockReading]) -> bool {
    let last = readings[readings.len() - 1];
    (0..readings.len()).any(|first| {
        let is_near = |reading: &ClockReading| {
            reading.offset().abs_diff(readings[first].offset()) <= HOUR.unsigned_abs()
        };
        last.boot - readings[first].boot >= HELD_FOR && readings[first..].iter().all(is_near)
    })
}

/// Goal: the gain of the accepted clock is bounded, however the system clock leaps.
/// Method: random leaps and pauses. Without an operator's word, the accepted clock gains at most an hour at a time, or a leap
/// of at most a month that has lasted.
#[test]
fn no_leap_is_believed_that_does_not_last() {
    let leaps = prop_oneof![
        Just(HOUR),
        Just(HOUR + SECOND),
        Just(-HOUR),
        Just(20 * DAY),
        Just(-20 * DAY),
        Just(32 * DAY),
        Just(-50 * YEAR),
        Just(50 * YEAR),
        Just(-20 * DAY),
        Just(0),
    ];
    let steps = proptest::collection::vec((leaps, 0..15 * MINUTE), 1..40);
    proptest!(|(steps in steps)| {
        let mut machine = Machine::started(None, TODAY);
        let mut reached = TODAY;
        let mut offset_before = TODAY - machine.boot;
        let mut readings = Vec::new();
        for (leap, pause) in steps {
            for is_pause in [true, false] {
                let now = if is_pause { machine.wait(pause) } else { machine.leap(leap) };
                readings.push(machine.reading());
                reached = reached.max(machine.boot + offset_before);
                let gained = now - reached;
                let has_lasted = has_lasted(&readings);
                prop_assert!(gained <= HOUR || (has_lasted && gained <= LEAP_MAX), "{gained}");
                prop_assert!(now == machine.wall || now == reached, "neither clock");
                reached = reached.max(now);
                offset_before = now - machine.boot;
            }
        }
    });
}
