//! Tests of the view on a log in memory, against a model that counts each entry.

use std::mem;

use proptest::prelude::*;
use simplefeed_core::{
    commit::{Change, Commit},
    digest::Digest,
    feed::{DocumentNumber, EntryId, FeedId, FeedName, Position, Revision},
    settings::{Choices, Defaults, Settings},
};
use simplefeed_log::{Append as _, Commits as _, memory::MemoryLog};
use tempfile::TempDir;
use uuid::Uuid;

use super::*;

const FEEDS: u64 = 7;
const HOUR_SECONDS: i64 = 3_600;

/// A log with some feeds, and its view.
struct Growing {
    log: MemoryLog,
    commits: u64,
    /// Entries of each feed.
    next: Vec<u64>,
    now: Timestamp,
    /// Each entry: its feed, and the instant of its commit.
    entries: Vec<(FeedKey, Timestamp)>,
    folder: TempDir,
    view: RatesView,
}

fn key(feed: u64) -> FeedKey {
    FeedKey(Uuid::from_u128(u128::from(feed) + 1))
}

impl Growing {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut growing = Self {
            log: MemoryLog::default(),
            commits: 0,
            next: vec![0; usize::try_from(FEEDS).unwrap()],
            // Short of the end of an hour, a day and a month.
            now: Timestamp::parse("2026-10-31T23:58:00Z").unwrap(),
            entries: vec![],
            view: RatesView::new(&Folders::new(folder.path(), None)),
            folder,
        };
        let mut changes = vec![];
        for feed in 0..FEEDS {
            let settings = Settings {
                name: FeedName::parse(&format!("feed{feed}")).unwrap(),
                id: FeedId::of_uuid(key(feed).0),
                choices: Choices::default().into(),
                defaults: Defaults::new("http://h").into(),
                sup_id: None,
                was_closed: false,
                timeline: None,
            };
            let (feed, revision) = (key(feed), Revision::FIRST);
            changes.push(Change::Settings {
                feed,
                revision,
                settings,
            });
            changes.push(Change::Opened {
                feed,
                document: DocumentNumber::new(1).unwrap(),
                first: Position(0),
                revision,
            });
        }
        growing.append(changes);
        growing.begin();
        growing
    }

    fn append(&mut self, changes: Vec<Change>) {
        self.commits += 1;
        let commit = Commit {
            number: CommitNumber(self.commits),
            instant: self.now,
            changes,
        };
        self.now = commit.last_instant().plus_micros(1);
        self.log.append(&commit).unwrap();
    }

    /// Appends a commit with entries of some feeds, so many seconds after the last one.
    fn grow(&mut self, seconds: i64, feeds: &[u64]) {
        self.now = Timestamp::from_micros(self.now.micros() + seconds * 1_000_000);
        let mut changes = vec![];
        for &feed in feeds {
            let next = &mut self.next[usize::try_from(feed).unwrap()];
            let id = format!("urn:{feed}:{next}");
            changes.push(Change::Entry {
                feed: key(feed),
                at: Position(*next),
                id: EntryId::parse(&id).unwrap(),
                sent: Digest::of(b""),
                digest: Digest::of(b"<entry/>"),
                fragment: "<entry/>".into(),
            });
            *next += 1;
            self.entries.push((key(feed), self.now));
        }
        self.append(changes);
    }

    fn begin(&mut self) {
        let applied = self.view.begin(&self.log).unwrap();
        self.follow(applied);
    }

    /// Lets the view take what it has not, as its follower does.
    fn follow(&self, applied: CommitNumber) {
        let (stop, mut next) = (Stop::default(), applied.next());
        while next <= self.log.head().number {
            let outline = self.log.outlines(next, 1).unwrap().remove(0);
            let _full = self.view.apply(&outline, &self.log).unwrap();
            let grace = Grace::new(&stop, Duration::ZERO);
            assert!(self.view.carry_out(&self.log, &grace).unwrap());
            next = next.next();
        }
    }

    fn applied(&self) -> CommitNumber {
        let state = self.view.counting.state.read();
        state.as_ref().unwrap().applied
    }

    fn catch_up(&self) {
        self.follow(self.applied());
    }

    /// Starts the view again, after a stop or a kill.
    fn restart(&mut self, is_killed: bool) {
        if !is_killed {
            self.view.counting.note().unwrap();
        }
        self.view = RatesView::new(&Folders::new(self.folder.path(), None));
        self.begin();
    }

    /// Compares all that can be read with the model.
    fn check(&self) {
        let feeds: Vec<_> = (0..=FEEDS).map(key).collect();
        for unit in Unit::ALL {
            let read = self.view.read(&feeds, unit, i64::MIN..i64::MAX).unwrap();
            let read = read.unwrap();
            let mut expected = vec![FeedRates::new(); feeds.len()];
            for (feed, instant) in &self.entries {
                let at = feeds.iter().position(|other| other == feed).unwrap();
                if read
                    .kept_from(unit, self.now)
                    .is_none_or(|kept| kept <= *instant)
                {
                    *expected[at].entry(unit.number(*instant)).or_default() += 1;
                }
            }
            let kept = |rates: &FeedRates| -> FeedRates {
                let kept = rates.iter().map(|(span, count)| (*span, *count));
                kept.filter(|(span, _)| {
                    read.kept_from(unit, self.now)
                        .is_none_or(|kept| unit.start(*span) >= kept)
                })
                .collect()
            };
            let found: Vec<_> = read.feeds.iter().map(kept).collect();
            assert_eq!(found, expected, "by {unit}");
            // Part of it is the same part.
            if let Some((&some, _)) = expected[0].iter().nth(expected[0].len() / 2) {
                let part = self.view.read(&feeds[..1], unit, some..some + 2).unwrap();
                let part = part.unwrap();
                let expected: FeedRates = expected[0]
                    .range(some..some + 2)
                    .map(|(at, count)| (*at, *count))
                    .collect();
                assert_eq!(part.feeds[0], expected, "by {unit} from {some}");
            }
        }
    }

    /// Compares the active feeds of the last day with the model.
    fn check_active(&self) {
        let hours = Unit::Hour.number(self.now) - 23..Unit::Hour.number(self.now) + 1;
        let mut sums: BTreeMap<FeedKey, (u64, i64)> = BTreeMap::new();
        for (feed, instant) in &self.entries {
            if hours.contains(&Unit::Hour.number(*instant)) {
                let (entries, newest) = sums.entry(*feed).or_default();
                *entries += 1;
                *newest = Unit::Minute.number(*instant);
            }
        }
        let mut found = self.view.active(hours).unwrap();
        found.sort();
        assert_eq!(found.len(), sums.len());
        for (active, (feed, (entries, newest))) in found.iter().zip(sums) {
            assert_eq!((active.feed, active.entries), (feed, entries));
            assert!(active.newest <= newest && newest < active.newest + 60);
        }
    }

    fn faults(&self) -> Vec<String> {
        let mut findings = VerifyFindings {
            is_replayed: true,
            ..VerifyFindings::default()
        };
        self.view.verify(&self.log, &mut findings).unwrap();
        findings.faults
    }

    /// Returns all files of the view.
    fn files(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        let mut files = BTreeMap::new();
        for folder in ["minutes", "hours", "days"] {
            let folder = self.view.counting.files.folder().join(folder);
            for entry in fs::read_dir(folder).into_iter().flatten() {
                let path = entry.unwrap().path();
                files.insert(path.clone(), fs::read(path).unwrap());
            }
        }
        files
    }
}

fn seconds() -> impl Strategy<Value = i64> {
    prop_oneof![
        4 => 0..200_i64,
        2 => 600..2 * HOUR_SECONDS,
        1 => 20 * HOUR_SECONDS..50 * HOUR_SECONDS,
        1 => 20 * 24 * HOUR_SECONDS..70 * 24 * HOUR_SECONDS,
    ]
}

#[derive(Clone, Debug)]
enum Action {
    Grow(i64, Vec<u64>),
    CatchUp,
    Restart { is_killed: bool },
}

fn action() -> impl Strategy<Value = Action> {
    let feeds = prop::collection::vec(0..FEEDS, 0..9);
    prop_oneof![
        8 => (seconds(), feeds).prop_map(|(seconds, feeds)| Action::Grow(seconds, feeds)),
        4 => Just(Action::CatchUp),
        1 => any::<bool>().prop_map(|is_killed| Action::Restart { is_killed }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(50))]

    /// Goal: each entry is counted once in each unit, whatever is stopped or killed; and the files follow from the commits.
    #[test]
    fn rates_are_those_of_the_log(actions in prop::collection::vec(action(), 1..80)) {
        let mut growing = Growing::new();
        for action in actions {
            match action {
                Action::Grow(seconds, feeds) => growing.grow(seconds, &feeds),
                Action::CatchUp => {
                    growing.catch_up();
                    growing.check();
                    growing.check_active();
                }
                Action::Restart { is_killed } => growing.restart(is_killed),
            }
        }
        growing.catch_up();
        growing.check();
        prop_assert_eq!(growing.faults(), Vec::<String>::new());
        let before = growing.files();
        let mut rebuilt = Rebuilt::default();
        growing.view.rebuild(&growing.log, &mut rebuilt).unwrap();
        prop_assert_eq!((rebuilt.new, rebuilt.different.len()), (0, 0));
        prop_assert_eq!(growing.files(), before.clone());
        // All of them deleted, they come out as they were.
        growing.view.counting.files.delete().unwrap();
        growing.view.rebuild(&growing.log, &mut rebuilt).unwrap();
        prop_assert_eq!(growing.files(), before);
        growing.restart(true);
        growing.check();
    }
}

/// A log with minutes, hours and days, all of them in tables, and an hour that goes on.
fn grown() -> Growing {
    let mut growing = Growing::new();
    for hour in 0..60 {
        growing.grow(HOUR_SECONDS, &[hour % FEEDS, 1, 2, 3]);
        growing.catch_up();
    }
    growing
}

/// Goal: a kill between any two steps of the end of an hour, a day and a month counts nothing twice and loses nothing.
#[test]
fn a_kill_between_any_two_steps_counts_nothing_twice() {
    for hours in [1, 24, 24 * 40] {
        for steps in 0..=5 {
            let mut growing = grown();
            growing.grow(HOUR_SECONDS * hours, &[1, 2]);
            let outline = growing.log.outlines(growing.applied().next(), 1).unwrap();
            let counting = &growing.view.counting;
            assert!(counting.apply(&outline[0]));
            if steps == 1 {
                // Tables are written, but not in place.
                let state = counting.state.read();
                let state = state.as_ref().unwrap();
                let (over, counted) = state.over.as_ref().unwrap();
                let rows = counting::rows_of(counted);
                drop(
                    counting
                        .files
                        .end_hour(*over, rows, &state.present)
                        .unwrap(),
                );
            }
            if steps >= 2 {
                counting.end_hour().unwrap();
            }
            if steps >= 3 {
                counting.note_durably().unwrap();
            }
            if steps >= 4 {
                let state = counting.state.read();
                let present = &state.as_ref().unwrap().present;
                counting.files.keep_only(present).unwrap();
            }
            if steps == 5 {
                counting.work().unwrap();
            }
            growing.restart(true);
            growing.check();
            assert_eq!(growing.faults(), Vec::<String>::new(), "{hours} {steps}");
            for _ in 0..30 {
                growing.grow(HOUR_SECONDS, &[1, 3]);
                growing.catch_up();
            }
            growing.check();
            assert_eq!(growing.faults(), Vec::<String>::new(), "{hours} {steps}");
        }
    }
}

/// Goal: a follower goes on from what was made again beside it.
#[test]
fn a_rebuild_beside_a_follower_is_whole() {
    let mut growing = grown();
    let right = growing.files();
    for path in right.keys() {
        fs::remove_file(path).unwrap();
    }
    // Some of it is not counted yet by the follower.
    growing.grow(HOUR_SECONDS, &[1, 2]);
    growing.grow(10, &[1]);
    let applied = growing.applied();
    let mut rebuilt = Rebuilt::default();
    growing.view.rebuild(&growing.log, &mut rebuilt).unwrap();
    growing.check();
    growing.follow(applied);
    growing.check();
    for _ in 0..30 {
        growing.grow(HOUR_SECONDS, &[1, 3]);
        growing.catch_up();
    }
    growing.check();
    assert_eq!(growing.faults(), Vec::<String>::new());
}

/// Goal: a table that is missing or damaged while the server is away is made again when it starts.
#[test]
fn a_start_mends_what_is_missing() {
    let mut growing = grown();
    growing.view.counting.note().unwrap();
    let right = growing.files();
    for path in right.keys() {
        let other = right
            .keys()
            .find(|other| *other != path && other.parent() == path.parent());
        for wrong in [
            None,
            Some(b"nonsense".to_vec()),
            other.map(|other| right[other].clone()),
        ] {
            match wrong {
                None => fs::remove_file(path).unwrap(),
                Some(wrong) => fs::write(path, wrong).unwrap(),
            }
            growing.restart(true);
            growing.check();
            assert_eq!(growing.files(), right);
            growing.view.counting.note().unwrap();
        }
    }
    // A missing table is a fault also where no server runs.
    let (path, bytes) = right.iter().next().unwrap();
    fs::remove_file(path).unwrap();
    let folders = Folders::new(growing.folder.path(), None);
    let served = mem::replace(&mut growing.view, RatesView::new(&folders));
    assert_eq!(growing.faults().len(), 1);
    growing.view = served;
    fs::write(path, bytes).unwrap();
    // Without the file of the counts, nothing says which tables are right.
    fs::remove_file(growing.view.counting.files.folder().join(COUNTED)).unwrap();
    assert_eq!(growing.faults().len(), 1);
    // Where no server runs, a power cut may have taken it: the next one counts again.
    growing.view = RatesView::new(&Folders::new(growing.folder.path(), None));
    assert_eq!(growing.faults(), Vec::<String>::new());
    growing.restart(true);
    growing.check();
}

#[test]
fn a_wrong_table_is_found_and_made_again() {
    let growing = grown();
    let right = growing.files();
    assert!(right.len() > 24 + 3, "{} tables", right.len());
    for path in right.keys() {
        fs::remove_file(path).unwrap();
        assert_eq!(growing.faults().len(), 1, "{path:?} is gone");
        let other = right
            .iter()
            .find(|(other, bytes)| other.parent() == path.parent() && **bytes != right[path]);
        if let Some((other, bytes)) = other {
            fs::write(path, bytes).unwrap();
            assert_eq!(growing.faults().len(), 1, "{path:?} is {other:?}");
        }
        let mut rebuilt = Rebuilt::default();
        growing.view.rebuild(&growing.log, &mut rebuilt).unwrap();
        let made = rebuilt.new + u64::try_from(rebuilt.different.len()).unwrap();
        assert_eq!(made, 1);
        assert_eq!(growing.files(), right);
    }
    growing.check();
}

#[test]
fn counts_of_another_log_are_not_taken() {
    let mut growing = grown();
    growing.view.counting.note().unwrap();
    let mut other = Growing::new();
    other.grow(1, &[4]);
    other.folder = mem::replace(&mut growing.folder, tempfile::tempdir().unwrap());
    other.restart(true);
    other.check();
}

#[test]
fn there_are_no_rates_before_all_commits_are_counted() {
    let mut growing = grown();
    growing.view.counting.note().unwrap();
    growing.grow(1, &[1]);
    let view = RatesView::new(&Folders::new(growing.folder.path(), None));
    let read = |view: &RatesView| view.read(&[key(1)], Unit::Day, 0..1);
    assert_eq!(read(&view).unwrap(), None);
    view.begin(&growing.log).unwrap();
    assert_eq!(read(&view).unwrap(), None);
    growing.view = view;
    growing.catch_up();
    assert!(read(&growing.view).unwrap().is_some());
}
