//! The follower: the one loop that runs any view.
//!
//! Shell: a thread for each view. The thread waits for commits, lets the view apply them, has the
//! work that follows carried out, and notes the cursor. A failing view is tried again for ever, and
//! does not hold up the other views.

use std::{
    cell::OnceCell,
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use simplefeed_core::feed::CommitNumber;
use simplefeed_log::announcements::WaitEnd;
use simplefeed_process::stop::Stop;
use tracing::error;

use super::{ApplyOutcome, View, error::ViewError};

use crate::shown::ShownLog;

/// Maximum number of commits that one round applies.
const COMMITS_TOGETHER: usize = 1_000;
/// Number of commits between two notes of the cursor.
const NOTED_COMMITS: u64 = 1_024;
/// Time that a stopping server gives a view for the work that waits. The next start does the rest.
const GRACE: Duration = Duration::from_secs(1);
/// Pause after a round that failed.
const RETRY: Duration = Duration::from_secs(1);

/// Last commit whose work a follower has carried out, as far as this process knows.
#[derive(Debug, Default)]
pub struct FollowerProgress(AtomicU64);

impl FollowerProgress {
    /// Returns the last commit whose work is carried out.
    pub fn reached(&self) -> CommitNumber {
        CommitNumber(self.0.load(Ordering::Relaxed))
    }

    fn reach_commit(&self, commit: CommitNumber) {
        self.0.store(commit.0, Ordering::Relaxed);
    }
}

/// Time that a view has for work: all the time until the server stops, and a limited time from then
/// on. The next start does the rest.
#[derive(Debug)]
pub struct Grace<'s> {
    stop: &'s Stop,
    time: Duration,
    /// When the stop was noticed.
    since: OnceCell<Instant>,
}

impl<'s> Grace<'s> {
    pub(super) fn new(stop: &'s Stop, time: Duration) -> Self {
        let since = OnceCell::new();
        Self { stop, time, since }
    }

    /// Returns whether the server is stopping.
    pub fn has_begun(&self) -> bool {
        self.stop.is_requested()
    }

    /// Returns whether work may go on.
    pub fn lasts(&self) -> bool {
        // The time begins at the view's first question after the stop, so a long step that began
        // earlier does not use up the time.
        !self.stop.is_requested() || self.since.get_or_init(Instant::now).elapsed() < self.time
    }
}

/// Runs a view until the log's announcements end, or until a stopping server gives the view no more
/// time. The next start does the work that is left. After a panic, the same view may be run again,
/// and begins anew from its files.
pub fn follow(view: &dyn View, log: &dyn ShownLog, progress: &FollowerProgress, stop: &Stop) {
    follow_within(view, log, progress, stop, &Grace::new(stop, GRACE));
}

fn follow_within(
    view: &dyn View,
    log: &dyn ShownLog,
    progress: &FollowerProgress,
    stop: &Stop,
    grace: &Grace<'_>,
) {
    // A panic leaves a view's memory in an unknown state. `begin` makes that memory anew.
    let begun = loop {
        match view.begin(log) {
            Ok(begun) => break begun,
            Err(error) => {
                report_failure(view, &error, "begin");
                if stop.is_requested_within(RETRY) {
                    return;
                }
            }
        }
    };
    progress.reach_commit(begun);
    let follower = Follower {
        view,
        log,
        progress,
        stop,
        grace,
        applied: begun,
        carried_out: begun,
        noted: begun,
        is_full: false,
        is_replaced: false,
        wakes: 0,
    };
    follower.run();
}

struct Follower<'f> {
    view: &'f dyn View,
    log: &'f dyn ShownLog,
    progress: &'f FollowerProgress,
    stop: &'f Stop,
    grace: &'f Grace<'f>,
    /// Last commit that the view has applied.
    applied: CommitNumber,
    /// Last commit whose work is carried out: `applied`, unless some work still waits.
    carried_out: CommitNumber,
    noted: CommitNumber,
    is_full: bool,
    /// Whether a document of the view is of another log.
    is_replaced: bool,
    /// Number of wake-ups that were answered.
    wakes: u64,
}

impl Follower<'_> {
    fn run(mut self) {
        loop {
            let applied = self.apply_next();
            if let Err(error) = &applied {
                report_failure(self.view, error, "apply a commit");
            }
            // After an error as well, because the work that waits may need nothing of the log.
            let carried_out = self.carry_out();
            let has_ended = matches!(applied, Ok(false));
            if has_ended || self.carried_out.0 >= self.noted.0 + NOTED_COMMITS {
                // The note at the end saves the next start from repeating the work since the
                // previous note.
                self.note_cursor();
            }
            if has_ended {
                return;
            }
            if applied.is_err() || !carried_out {
                // A server that stops does not wait for a failing disk. The next start goes on from
                // the cursor.
                if self.stop.is_requested_within(RETRY) {
                    self.note_cursor();
                    return;
                }
            } else if self.log.head().number == self.applied {
                // Only a view that is up to date pauses: commits that come meanwhile are carried
                // out together.
                self.view.pause(self.stop);
            }
        }
    }

    /// Waits for the next commit, unless failed work waits. Applies that commit and the commits
    /// that follow. Returns whether more commits may come.
    fn apply_next(&mut self) -> Result<bool, ViewError> {
        let next = self.applied.next();
        if self.carried_out < self.applied {
            // Work that failed is tried again, even if no commit comes.
            let has_come = next <= self.log.head().number;
            // A full view has no room for more work in memory.
            if self.is_full || !has_come {
                return Ok(!self.stop.is_requested());
            }
        }
        let announced = self.log.announcements();
        match announced.comes(next, self.wakes) {
            WaitEnd::Commit => {}
            WaitEnd::Woken(wakes) => {
                self.wakes = wakes;
                // There is nothing to apply, but `carry_out` finds the work for which the follower
                // was woken.
                return Ok(self.grace.lasts());
            }
            WaitEnd::End => return Ok(false),
        }
        for outline in self.log.recent_outlines(next, COMMITS_TOGETHER)? {
            let applied = self.view.apply(&outline, self.log)?;
            self.applied = outline.number;
            self.is_full = applied == ApplyOutcome::Full;
            if self.is_full {
                // The next round reads the outlines behind this one again.
                break;
            }
        }
        Ok(self.grace.lasts())
    }

    /// Carries out the work that waits. Returns whether no work is left.
    fn carry_out(&mut self) -> bool {
        // A view with documents of another log cannot be mended while the server runs.
        if self.is_replaced {
            return false;
        }
        match self.view.carry_out(self.log, self.grace) {
            Ok(false) => false,
            Ok(true) => {
                self.carried_out = self.applied;
                self.is_full = false;
                self.progress.reach_commit(self.carried_out);
                true
            }
            Err(error) => {
                report_failure(self.view, &error, "write its files");
                // If a document belongs to another log, the log takes no more entries. They would
                // be shown under URLs that have other contents.
                if let ViewError::Replaced { path, .. } = &error {
                    self.is_replaced = true;
                    self.view.note_replaced(self.log, path);
                    self.log.end_as_replaced(path);
                    error!(
                        "the log takes no entries: the folder of `www` is another server's, or `simplefeed-server recover` \
                         makes a new log of this one and of the documents beside it"
                    );
                }
                // Failed work of one feed does not hold up the commits of the other feeds, if the
                // view has room.
                self.is_full &= !self.view.has_room();
                false
            }
        }
    }

    /// Notes the cursor. A failure is only logged, because the cursor saves nothing but time.
    fn note_cursor(&mut self) {
        if let Err(error) = self.view.note(self.carried_out, self.log) {
            report_failure(self.view, &error, "note its cursor");
        }
        // Set after a failure as well, so that a failing disk is not tried again at each commit.
        self.noted = self.carried_out;
    }
}

fn report_failure(view: &dyn View, error: &ViewError, action: &'static str) {
    let error: &(dyn std::error::Error + 'static) = error;
    error!(
        error,
        view = view.name(),
        "a view cannot {action}; it tries again"
    );
}

#[cfg(test)]
mod tests;
