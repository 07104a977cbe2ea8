use std::sync::Arc;

use parking_lot::Mutex;
use simplefeed_core::{
    commit::{Change, Commit, Outline},
    feed::Epoch,
    timestamp::Timestamp,
};
use simplefeed_log::{Append as _, Commits as _, memory::MemoryLog};
use simplefeed_process::threads::Threads;

use super::*;
use crate::shown::ShownSeries;

/// View that notes what it is asked to do.
#[derive(Debug, Default)]
struct Fragile {
    state: Mutex<State>,
    /// Commit at which it panics once.
    panics_at: u64,
    /// Whether its work takes as long as it is given.
    is_endless: bool,
}

#[derive(Debug, Default)]
struct State {
    begun: usize,
    has_panicked: bool,
    applied: Vec<u64>,
    noted: u64,
}

impl View for Fragile {
    fn name(&self) -> &'static str {
        "fragile"
    }

    fn begin(&self, _: &dyn ShownLog) -> Result<CommitNumber, ViewError> {
        let mut state = self.state.lock();
        state.begun += 1;
        state.applied.clear();
        Ok(CommitNumber(state.noted))
    }

    fn apply(&self, commit: &Outline, _: &dyn ShownSeries) -> Result<ApplyOutcome, ViewError> {
        let mut state = self.state.lock();
        state.applied.push(commit.number.0);
        let panics = commit.number.0 == self.panics_at && !state.has_panicked;
        state.has_panicked |= panics;
        assert!(!panics, "this is expected here");
        Ok(ApplyOutcome::More)
    }

    fn carry_out(&self, _: &dyn ShownSeries, grace: &Grace<'_>) -> Result<bool, ViewError> {
        while self.is_endless && grace.lasts() {
            std::thread::park_timeout(Duration::from_millis(1));
        }
        Ok(!self.is_endless)
    }

    fn note(&self, commit: CommitNumber, _: &dyn ShownLog) -> Result<(), ViewError> {
        self.state.lock().noted = commit.0;
        Ok(())
    }
}

fn log_of(commits: u64) -> MemoryLog {
    let log = MemoryLog::default();
    for number in 1..=commits {
        let commit = Commit {
            number: CommitNumber(number),
            instant: Timestamp::from_micros(i64::try_from(number).unwrap()),
            changes: vec![Change::Epoch {
                epoch: Epoch(u32::try_from(number).unwrap()),
            }],
        };
        log.append(&commit).unwrap();
    }
    log
}

/// Goal: a view that panics begins again, and has every commit in the end.
#[test]
fn a_panic_costs_a_view_time_only() {
    let view = Arc::new(Fragile {
        panics_at: 3,
        ..Fragile::default()
    });
    let (log, progress) = (log_of(5), Arc::new(FollowerProgress::default()));
    log.announcements().end();
    let (threads, stop) = (Threads::default(), Stop::default());
    let (fragile, reached) = (Arc::clone(&view), Arc::clone(&progress));
    let thread = threads.spawn("fragile", &stop, move |stop| {
        follow(&*fragile, &log, &reached, stop);
    });
    thread.unwrap().join().unwrap();
    let state = view.state.lock();
    assert_eq!((state.begun, &state.applied[..]), (2, &[1, 2, 3, 4, 5][..]));
    assert_eq!((state.noted, progress.reached()), (5, CommitNumber(5)));
}

/// View whose work fails, and which has room for more of it.
#[derive(Debug, Default)]
struct Failing(Mutex<Vec<u64>>);

impl View for Failing {
    fn name(&self) -> &'static str {
        "failing"
    }

    fn begin(&self, _: &dyn ShownLog) -> Result<CommitNumber, ViewError> {
        Ok(CommitNumber(0))
    }

    fn apply(&self, commit: &Outline, _: &dyn ShownSeries) -> Result<ApplyOutcome, ViewError> {
        self.0.lock().push(commit.number.0);
        Ok(ApplyOutcome::Full)
    }

    fn has_room(&self) -> bool {
        true
    }

    fn carry_out(&self, _: &dyn ShownSeries, _: &Grace<'_>) -> Result<bool, ViewError> {
        Err(ViewError::Io {
            action: "write",
            path: "this is expected here".into(),
            source: std::io::ErrorKind::NotADirectory.into(),
        })
    }
}

/// Goal: work that fails for good does not keep a view from later commits, where it has room.
#[test]
fn work_that_fails_holds_up_no_later_commit() {
    let (view, log) = (Arc::new(Failing::default()), log_of(2));
    let (progress, stop) = (FollowerProgress::default(), Stop::default());
    let (fails, stops) = (Arc::clone(&view), stop.clone());
    let thread = std::thread::spawn(move || {
        follow(&*fails, &log, &progress, &stops);
        progress.reached()
    });
    for _ in 0..60_000 {
        if view.0.lock().len() == 2 {
            break;
        }
        std::thread::park_timeout(Duration::from_millis(1));
    }
    stop.request();
    assert_eq!(thread.join().unwrap(), CommitNumber(0));
    assert_eq!(*view.0.lock(), [1, 2]);
}

/// Goal: a server that stops leaves a view a while for its work, and no longer; the work is not noted as done.
#[test]
fn a_stop_does_not_wait_for_work_without_end() {
    let view = Arc::new(Fragile {
        is_endless: true,
        ..Fragile::default()
    });
    let (log, progress, stop) = (log_of(5), FollowerProgress::default(), Stop::default());
    let (works, stops) = (Arc::clone(&view), stop.clone());
    let thread = std::thread::spawn(move || {
        let grace = Grace::new(&stops, Duration::from_millis(200));
        follow_within(&*works, &log, &progress, &stops, &grace);
        progress.reached()
    });
    while view.state.lock().applied.len() < 5 {
        std::thread::park_timeout(Duration::from_millis(1));
    }
    assert!(!thread.is_finished());
    let asked = Instant::now();
    stop.request();
    assert_eq!(thread.join().unwrap(), CommitNumber(0));
    assert!(asked.elapsed() >= Duration::from_millis(200));
    assert_eq!(view.state.lock().noted, 0);
}
