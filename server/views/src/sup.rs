//! Updates of feeds: the view behind SUP documents.
//!
//! Shell: the state that follows the log, and the files of archived windows. [`windows`] decides
//! which updates a document has and when a window ends; [`files`] keeps closed windows.

use std::{collections::VecDeque, time::Duration};

use parking_lot::{Mutex, MutexGuard};
use simplefeed_core::{
    commit::Outline, feed::CommitNumber, limits::SUP_OVERLAP_SECONDS, timestamp::Timestamp,
};
use simplefeed_log::{Commits, LogError};
use simplefeed_process::stop::Stop;
use simplefeed_resource::Visibility;
use tracing::info;

use crate::{
    ApplyOutcome, View,
    error::ViewError,
    files::Remade,
    folders::Folders,
    follower::Grace,
    reports::{Rebuilt, VerifyFindings},
    scrub::{self, Scrub},
    shown::{ShownLog, ShownSeries},
};

pub mod files;
mod recent;
pub mod updates;
pub mod windows;

use files::{NAME, SupFiles, every_window};
use windows::{Current, SupWindow, SupWindows, file_name, series_name};

/// Pause of a follower that is up to date. The pause is shorter than a second, which is the step by
/// which documents grow. A thread that is woken for each commit would take time from the publisher.
pub const PACE: Duration = Duration::from_millis(50);
/// Maximum number of commits that one read of the log returns.
const COMMITS_TOGETHER: usize = 1_000;
/// Number of windows waiting to be written at which the view is full.
const WAITING_MAX: usize = 16;

/// View of the updates of feeds.
#[derive(Debug)]
pub struct Sup {
    files: SupFiles,
    /// Longest period that is offered, in seconds: how far back updates are kept in memory.
    longest: u32,
    /// `None` until the view has begun to follow.
    state: Mutex<Option<SupState>>,
}

#[derive(Debug)]
struct SupState {
    windows: SupWindows,
    reach: Reach,
    /// Closed windows whose files are not written yet, oldest first.
    over: VecDeque<(Visibility, SupWindow)>,
    /// Number of windows written since the start.
    made: u64,
}

/// How far current documents reach.
#[derive(Debug)]
struct Reach {
    /// Last commit at the start. No document is made before the view has applied that commit.
    start: CommitNumber,
    /// Last second that a document has ended with.
    until: i64,
}

impl Reach {
    fn new(start: CommitNumber) -> Self {
        let until = i64::MIN;
        Self { start, until }
    }

    /// Returns the last second of a document, given the last applied commit and the second of that
    /// commit. Returns `None` while commits from before the start are not applied, or if no second
    /// may be published.
    fn end_second(
        &mut self,
        log: &dyn Commits,
        applied: CommitNumber,
        newest: i64,
        published: impl FnOnce(Timestamp) -> Option<i64>,
    ) -> Option<i64> {
        let head = log.head();
        // The log was empty at the start, and the first commit is not applied yet.
        let is_new = applied == CommitNumber(0) && head.number > applied;
        if applied < self.start || is_new {
            return None;
        }
        let published = published(head.last)?;
        // The head is read after the published second is fixed, so any later commit is of a later
        // second.
        self.until = if log.head().number == applied {
            published
        } else {
            // Commits that are not applied are of the second of the newest applied commit or later,
            // and later than any end so far.
            published.min(self.until.max(newest.saturating_sub(1)))
        };
        // Before this process has applied a commit, the end may be unknown.
        (self.until > i64::MIN).then_some(self.until)
    }
}

impl Sup {
    /// Returns the view in some folders; `longest` is the longest period offered, in seconds.
    pub fn new(folders: &Folders, longest: u32) -> Self {
        Self {
            files: SupFiles::new(folders),
            longest,
            state: Mutex::default(),
        }
    }

    /// Returns the files of archived windows.
    pub fn files(&self) -> &SupFiles {
        &self.files
    }

    /// Returns the current window of a document, or `None` while the view has not applied every
    /// commit from before the start. `published` returns the last second that a document may end
    /// with (rule SUP-P5), given the instant of the newest commit. If `published` returns `None`,
    /// there is no document either.
    pub fn current(
        &self,
        log: &dyn Commits,
        visibility: Visibility,
        period: u32,
        published: impl FnOnce(Timestamp) -> Option<i64>,
    ) -> Option<Current> {
        // Locked to the end, so that no commit is applied in between.
        let mut state = self.lock_state();
        let state = state.as_mut()?;
        let (applied, newest) = (state.windows.applied(), state.windows.newest());
        let until = state.reach.end_second(log, applied, newest, published)?;
        Some(state.windows.current(visibility, period, until))
    }

    fn lock_state(&self) -> MutexGuard<'_, Option<SupState>> {
        self.state.lock()
    }

    /// Notes the last applied commit for each series that had no update since its last window. The
    /// next start skips the commits up to that one.
    fn note_idle(&self, applied: CommitNumber) -> Result<(), ViewError> {
        let idle = match &*self.lock_state() {
            // A note counts the windows with records, and a waiting window has no record yet.
            Some(state) if state.over.is_empty() => {
                Visibility::ALL.map(|series| (series, state.windows.idle_after(series)))
            }
            _ => return Ok(()),
        };
        for (visibility, cuts) in idle {
            if let Some(cuts) = cuts {
                self.files.note_idle(visibility, cuts, applied)?;
            }
        }
        Ok(())
    }
}

impl View for Sup {
    fn name(&self) -> &'static str {
        NAME
    }

    /// Begins where the records of archived windows end.
    fn begin(&self, log: &dyn ShownLog) -> Result<CommitNumber, ViewError> {
        let head = log.head();
        // The longest document may end one second before the newest commit, and then begins here.
        let oldest = head.last.second() - i64::from(self.longest) - SUP_OVERLAP_SECONDS - 1;
        let beginning = |series| self.files.beginning(series, oldest, head.number);
        let public = beginning(Visibility::Public)?;
        let private = beginning(Visibility::Private)?;
        let mut windows = SupWindows::new(public, private, self.longest);
        for (series, beginning) in Visibility::ALL.into_iter().zip([public, private]) {
            // An idle note skips commits of the cut's last second, too, which the next window
            // repeats.
            if beginning.cut.is_some() && beginning.idle.is_some() {
                recall_window(&mut windows, series, beginning.commit, log)?;
            }
        }
        let applied = windows.applied();
        *self.lock_state() = Some(SupState {
            windows,
            reach: Reach::new(head.number),
            // Windows that waited before a panic are cut from the commits again.
            over: VecDeque::new(),
            made: 0,
        });
        Ok(applied)
    }

    fn apply(&self, commit: &Outline, log: &dyn ShownSeries) -> Result<ApplyOutcome, ViewError> {
        // Locked anew for each commit, so that readers get the lock in between.
        let mut state = self.lock_state();
        let Some(state) = &mut *state else {
            return Ok(ApplyOutcome::More);
        };
        state.over.extend(state.windows.take(commit, log)?);
        // No more commits are applied then, because waiting windows take memory.
        Ok(if state.over.len() < WAITING_MAX {
            ApplyOutcome::More
        } else {
            ApplyOutcome::Full
        })
    }

    fn carry_out(&self, _: &dyn ShownSeries, grace: &Grace<'_>) -> Result<bool, ViewError> {
        while grace.lasts() {
            // Cloned, so readers need not wait for the disk.
            let next = match &*self.lock_state() {
                Some(state) => state.over.front().cloned(),
                None => None,
            };
            let Some((visibility, window)) = next else {
                return Ok(true);
            };
            let series = series_name(visibility);
            if self.files.write(visibility, &window)? == Remade::New {
                info!(window = %window.name, series, "updates archived");
            }
            // The window leaves the queue after the write, so an error keeps it for the next try.
            if let Some(state) = &mut *self.lock_state() {
                state.windows.archived(visibility, &window);
                state.over.pop_front();
                state.made += 1;
            }
        }
        Ok(false)
    }

    fn note(&self, commit: CommitNumber, _: &dyn ShownLog) -> Result<(), ViewError> {
        self.note_idle(commit)
    }

    fn pause(&self, stop: &Stop) {
        stop.is_requested_within(PACE);
    }

    fn made(&self) -> u64 {
        self.lock_state().as_ref().map_or(0, |state| state.made)
    }

    fn verify(&self, log: &dyn ShownLog, findings: &mut VerifyFindings) -> Result<(), ViewError> {
        // Windows follow from all commits, so after a partial replay they cannot be compared.
        if !findings.is_replayed {
            return Ok(());
        }
        every_window(log, |visibility, window| {
            findings
                .faults
                .extend(self.files.fault(visibility, window)?);
            Ok(())
        })
    }

    fn rebuild(&self, log: &dyn ShownLog, rebuilt: &mut Rebuilt) -> Result<(), ViewError> {
        every_window(log, |visibility, window| {
            let remade = self.files.write(visibility, window)?;
            rebuilt.add(remade, || {
                format!("{}/{}", series_name(visibility), file_name(window.name))
            });
            Ok(())
        })
    }

    fn scrub(&self, _: &dyn ShownSeries, scrub: &Scrub<'_>) {
        for visibility in Visibility::ALL {
            for number in 1.. {
                if !scrub.goes_on() {
                    return;
                }
                let looked = match self.files.record(visibility, number) {
                    Ok(Some(record)) => self.files.look_at(visibility, &record),
                    // This is the end of the records, or a damaged record, which the next start
                    // writes again.
                    Ok(None) => break,
                    Err(error) => {
                        scrub::report(&error);
                        break;
                    }
                };
                if let Err(error) = looked {
                    scrub::report(&error);
                }
            }
        }
    }
}

/// Applies the commits of a cut's last second, which an idle note skips.
fn recall_window(
    windows: &mut SupWindows,
    visibility: Visibility,
    after: CommitNumber,
    log: &dyn ShownLog,
) -> Result<(), LogError> {
    let mut next = after.next();
    loop {
        let outlines = log.outlines(next, COMMITS_TOGETHER)?;
        for outline in &outlines {
            // The cut's last second is over, and the commits from here to the note have no updates.
            if !windows.recall(visibility, outline, log)? {
                return Ok(());
            }
            next = outline.number.next();
        }
        if outlines.is_empty() {
            return Ok(());
        }
    }
}
