use super::*;

/// Long after the start of the machine.
const BOOT: i64 = 3 * DAY;
static WALL: AtomicI64 = AtomicI64::new(0);
const DAY: i64 = 24 * 3_600 * 1_000_000;

fn read() -> ClockReading {
    ClockReading {
        wall: Timestamp::from_micros(WALL.load(Ordering::Acquire)),
        boot: BOOT,
    }
}

/// Goal: all clones are one clock, which holds a leap, knows its size, and takes an operator's word.
#[test]
fn clones_are_one_clock() {
    let begun = 1_795_824_000_000_000;
    WALL.store(begun, Ordering::Release);
    let (clock, other) = {
        let clock = Clock::new(read, None);
        (clock.clone(), clock)
    };
    WALL.store(begun + 40 * DAY, Ordering::Release);
    assert_eq!(clock.now(), Timestamp::from_micros(begun));
    assert_eq!(other.standing(), ClockStanding::Far);
    assert_eq!(other.now(), Timestamp::from_micros(begun));
    let month = Duration::from_hours(40 * 24);
    assert_eq!(other.apart().ahead, month);
    // Back where it was, nothing is left of it.
    WALL.store(begun, Ordering::Release);
    assert_eq!(clock.now(), Timestamp::from_micros(begun));
    assert_eq!(clock.standing(), ClockStanding::Followed);
    WALL.store(begun + 40 * DAY, Ordering::Release);
    assert_eq!(other.accept(), clock.now());
    assert_eq!(clock.now(), Timestamp::from_micros(begun + 40 * DAY));
    WALL.store(begun, Ordering::Release);
    assert_eq!(other.now(), Timestamp::from_micros(begun));
    assert_eq!(clock.apart().behind, month);
}

/// Goal: the system's clocks are read in the same unit, and run.
#[test]
fn the_system_has_both_clocks() {
    let (first, second) = (system(), system());
    assert!(first.wall <= second.wall && first.boot <= second.boot);
    assert!(first.offset().abs_diff(second.offset()) < 1_000_000);
}

/// Goal: a clock of the year 10000 is none: it has no date of HTTP, and no epoch.
#[test]
fn no_clock_is_behind_all_dates() {
    let years = |years: u64| Duration::from_hours(years * 8_766);
    for far in [years(200), years(8_000), years(200_000), Duration::MAX] {
        let found = sensible_time(far);
        assert_eq!(found.to_string(), "2100-01-01T00:00:00.000000Z");
        assert!(u32::try_from(found.second()).is_ok());
    }
    assert_eq!(
        sensible_time(years(57)),
        Timestamp::from_micros(57 * 8_766 * 3_600_000_000)
    );
}
