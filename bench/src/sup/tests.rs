//! Chaos: whatever happens between publisher and consumer, every update is found in the end.

use simplefeed_core::{
    limits::WATCHED_TOGETHER_MAX,
    watch::{FeedNumber, WatchTally},
};

use super::world::*;
use super::*;

const MINUTE: Duration = Duration::from_mins(1);
const HOUR: Duration = Duration::from_hours(1);
const FEEDS: u32 = 500;
const PACE: Pace = Pace {
    interval: Duration::from_mins(30),
    sup_interval: Duration::ZERO,
};

/// One thing that goes wrong, for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Down,
    Stale,
    Truncated,
    ArchiveLost,
    ClockBack,
    Asleep,
    /// When feeds are looked at for the first time.
    DownAtFirst,
    KilledAtFirst,
    Killed,
    Restored,
    /// With a clock that is behind what was told.
    RestoredBehind,
    /// Looks take up to a minute and a half, documents up to forty seconds; also when feeds are looked at for
    /// the first time.
    Slow,
    /// A third of the looks fail.
    Failing,
    /// Every other feed cannot be read, as if for good.
    Gone,
    /// What feeds show is up to eleven seconds old.
    Lagging,
}

struct Storm {
    fault: Option<Fault>,
    /// What a cache holds.
    kept: Option<Vec<u8>>,
    dice: Dice,
}

impl Storm {
    fn within(&mut self, seconds: u64) -> Duration {
        Duration::from_millis(self.dice.below(seconds * 1_000))
    }
}

impl Weather for Storm {
    fn way(&mut self, is_look: bool) -> Duration {
        match self.fault {
            Some(Fault::Slow) if is_look => self.within(45),
            Some(Fault::Slow) => self.within(20),
            _ => self.within(1),
        }
    }

    fn document(&mut self, url: &Url, document: Option<Vec<u8>>) -> Option<Vec<u8>> {
        match self.fault {
            Some(Fault::Down | Fault::DownAtFirst) => None,
            Some(Fault::Stale) if !url.path().starts_with("/sup/") => {
                self.kept = self.kept.take().or(document);
                self.kept.clone()
            }
            Some(Fault::Truncated) => {
                document.map(|document| document[..document.len() / 2].to_vec())
            }
            Some(Fault::ArchiveLost) if url.path().starts_with("/sup/") => None,
            _ => document,
        }
    }

    fn look(&mut self, feed: FeedNumber, fresh: bool) -> Sight {
        let fails = match self.fault {
            Some(Fault::Failing) => (self.dice.below(3) == 0).then_some(false),
            Some(Fault::Gone) => feed.0.is_multiple_of(2).then_some(true),
            _ => None,
        };
        let age = match self.fault {
            _ if !fresh => self.within(600),
            Some(Fault::Lagging) => self.within(11),
            // Of a cache that does not listen.
            _ => self.within(2),
        };
        Sight { age, fails }
    }

    /// Whoever lags and shows some news is believed.
    fn has_bursts(&self) -> bool {
        self.fault != Some(Fault::Lagging)
    }
}

/// A publisher and a follower, in a storm.
struct Scene {
    publisher: Publisher,
    follower: Follower,
    storm: Storm,
    dice: Dice,
    now: Duration,
}

impl Scene {
    fn new(telling: Telling, shared: u32) -> Self {
        Self {
            publisher: Publisher::new(FEEDS, telling, shared).unwrap(),
            follower: Follower::new(FEEDS, PACE, shared).unwrap(),
            storm: Storm {
                fault: None,
                kept: None,
                dice: Dice(7),
            },
            dice: Dice(11),
            now: Duration::ZERO,
        }
    }

    /// Lets time pass, with an update every 20 seconds.
    fn live(&mut self, time: Duration) {
        self.live_with(time, Duration::from_secs(20));
    }

    fn live_with(&mut self, time: Duration, mean: Duration) {
        let (from, end) = (self.now, self.now + time);
        live(
            &mut self.publisher,
            &mut self.follower,
            &mut self.storm,
            &mut self.dice,
            mean,
            from,
            end,
        )
        .unwrap();
        self.now = end;
    }

    /// Lets time pass while the follower is away.
    fn sleep(&mut self, time: Duration) {
        let nobody = Follower::new(0, PACE, 1).unwrap();
        let away = std::mem::replace(&mut self.follower, nobody);
        self.live(time);
        self.follower = away;
        self.follower.restart(PACE, self.now);
    }

    fn kill(&mut self, times: usize) {
        for _ in 0..times {
            self.live(Duration::from_secs(17));
            self.follower.restart(PACE, self.now);
        }
    }

    fn suffer(&mut self, fault: Fault) {
        self.storm.fault = Some(fault);
        match fault {
            Fault::Asleep | Fault::ArchiveLost => {
                self.sleep(24 * HOUR);
                self.live(HOUR);
            }
            Fault::Killed => self.kill(50),
            Fault::KilledAtFirst | Fault::DownAtFirst => {}
            Fault::ClockBack => {
                self.publisher.clock_off = -5_000;
                self.live(2 * HOUR);
            }
            Fault::Restored | Fault::RestoredBehind => {
                if fault == Fault::RestoredBehind {
                    self.publisher.clock_off = -5_000;
                }
                self.publisher.restore(200, self.now).unwrap();
                // What was lost can be seen no more, and what there is was not seen.
                let updates = &self.publisher.updates;
                for (seen, updates) in self.follower.seen.iter_mut().zip(updates) {
                    *seen = (*seen).min(updates.len() - 1);
                }
                self.live(HOUR);
            }
            Fault::Down | Fault::Stale | Fault::Truncated => self.live(HOUR),
            Fault::Slow | Fault::Failing | Fault::Gone | Fault::Lagging => self.live(2 * HOUR),
        }
        self.storm.fault = None;
        self.publisher.clock_off = 0;
    }
}

/// Lets a world live through a fault and what comes after it, and checks that everything was seen. Returns what
/// that took.
fn survive(fault: Option<Fault>, telling: Telling, shared: u32) -> WatchTally {
    let mut scene = Scene::new(telling, shared);
    match fault {
        Some(Fault::KilledAtFirst) => scene.kill(10),
        Some(Fault::DownAtFirst | Fault::Slow) => {
            scene.storm.fault = fault;
            scene.live(HOUR);
            scene.storm.fault = None;
        }
        _ => {}
    }
    scene.live(3 * HOUR);
    if let Some(fault) = fault {
        scene.suffer(fault);
    }
    scene.live(2 * HOUR);
    // A last look at what has just happened.
    let last = match telling {
        Telling::Archived | Telling::Windows => 5 * MINUTE,
        // And what a cache may hold.
        Telling::Nothing => PACE.interval + 11 * MINUTE,
    };
    scene.live_with(last, 100_000 * HOUR);
    let updates = &scene.publisher.updates;
    for (number, (seen, updates)) in scene.follower.seen.iter().zip(updates).enumerate() {
        assert_eq!(
            *seen,
            updates.len(),
            "feed {number}, {fault:?}, {telling:?}"
        );
    }
    let tally = scene.follower.tally();
    println!("{fault:?}, {telling:?}, {shared} feeds an id: {tally:?}");
    tally
}

/// Goal: every update is found in the end, whatever goes wrong, with and without archives.
#[test]
fn every_update_is_found_in_the_end() {
    use Fault::*;
    for fault in [
        Down,
        Stale,
        Truncated,
        ArchiveLost,
        ClockBack,
        Asleep,
        DownAtFirst,
        KilledAtFirst,
        Killed,
        Restored,
        RestoredBehind,
        Slow,
        Failing,
        Gone,
        Lagging,
    ] {
        for telling in [Telling::Archived, Telling::Windows] {
            survive(Some(fault), telling, 1);
            survive(Some(fault), telling, 3);
        }
    }
    for telling in [Telling::Archived, Telling::Windows, Telling::Nothing] {
        survive(None, telling, 3);
    }
}

/// Goal: where the publisher archives what it tells, a consumer that was away for a day looks at those feeds
/// only that changed, and nobody polls anything.
#[test]
fn a_day_asleep_costs_no_poll() {
    let together = u64::try_from(4 * WATCHED_TOGETHER_MAX).unwrap();
    let awake = survive(None, Telling::Archived, 1);
    assert_eq!((awake.gaps, awake.sweeps), (0, 0));
    // What was looked at before the first document came is looked at once more.
    assert!(awake.background < together, "{awake:?}");
    let tally = survive(Some(Fault::Asleep), Telling::Archived, 1);
    assert_eq!(tally.sweeps, 0);
    assert_eq!(tally.gaps, 1);
    assert_eq!(tally.first, u64::from(FEEDS));
    // 5,400 updates; whoever comes back looks at each feed once.
    let came_back = tally.pings - awake.pings;
    assert!(came_back < u64::from(FEEDS) + 400, "{tally:?}");
    assert!(tally.background < together, "{tally:?}");
}

/// Goal: a feed is not looked at when another one's id is told of, and is when its own is.
#[test]
fn feeds_of_one_id_are_looked_at_together() {
    let apart = survive(None, Telling::Archived, 1);
    let shared = survive(None, Telling::Archived, 3);
    assert!(shared.pings > 2 * apart.pings, "{shared:?} {apart:?}");
    assert!(shared.pings < 9 * apart.pings, "{shared:?} {apart:?}");
}

/// SUP-P6: an update takes at most 21.1 bytes, 8 of them when compressed.
#[test]
fn an_update_is_small() {
    for period in [60, 600, 3_600] {
        let [plain, gzip] = sizes(period).unwrap();
        assert!(plain <= 21.1 && gzip <= 8.0, "{period} s: {plain} {gzip}");
    }
}
