//! The view of the updates of timelines, which has no files.
//!
//! Shell: the log, and a lock. The view has a thread of its own, so that a feed with very many
//! followers, or a graph that cannot be read, does not hold up documents about feeds.

use parking_lot::Mutex;
use simplefeed_core::{
    commit::Outline, feed::CommitNumber, limits::SUP_OVERLAP_SECONDS, timestamp::Timestamp,
};
use simplefeed_log::{Commits, EntryLog, LogError};
use simplefeed_process::stop::Stop;
use simplefeed_resource::Visibility;
use tracing::error;

use super::{
    PACE, Reach,
    recent::{RecentUpdates, RecentWindow},
    windows::{Current, sort_updates},
};
use crate::{
    ApplyOutcome, View,
    error::ViewError,
    follower::Grace,
    shown::{ShownLog, ShownSeries},
};

/// Number of timelines that are looked up under one lock of the graph.
const IDENTITIES_TOGETHER: usize = if cfg!(test) { 2 } else { 4_096 };

/// View of the updates of timelines.
#[derive(Debug)]
pub struct TimelineUpdates {
    /// Longest period that is offered, in seconds.
    longest: u32,
    /// `None` until the view has begun to follow.
    state: Mutex<Option<UpdatesState>>,
}

#[derive(Debug)]
struct UpdatesState {
    recent: RecentUpdates,
    reach: Reach,
    applied: CommitNumber,
    /// Second of the newest commit that was applied.
    newest: i64,
}

impl TimelineUpdates {
    /// Returns the view; `longest` is the longest period offered, in seconds.
    pub fn new(longest: u32) -> Self {
        let state = Mutex::default();
        Self { longest, state }
    }

    /// Returns the current window of a document, or `None` while the view has not applied every
    /// commit from before the start. `published` is as for documents about feeds. Without
    /// `has_updates`, the window has no updates.
    pub fn current(
        &self,
        log: &dyn ShownLog,
        visibility: Visibility,
        period: u32,
        has_updates: bool,
        published: impl FnOnce(Timestamp) -> Option<i64>,
    ) -> Option<Current> {
        let window = self.make_window(log, period, has_updates, published)?;
        let is_closed = visibility == Visibility::Private;
        let mut updates = vec![];
        let timelines = window.timelines.chunks(IDENTITIES_TOGETHER);
        for (timelines, seconds) in timelines.zip(window.seconds.chunks(IDENTITIES_TOGETHER)) {
            // The timelines are looked up in parts, and commits are applied in between, because to
            // look up a million timelines takes a while.
            let known = log.identities(timelines).into_iter().zip(seconds);
            updates.extend(known.filter_map(|(known, second)| {
                let known = known.filter(|known| known.is_closed == is_closed)?;
                Some((known.timeline, known.sup_id, *second))
            }));
        }
        sort_updates(&mut updates);
        Some(Current {
            since: window.since,
            until: window.until,
            previous: None,
            updates,
        })
    }

    fn make_window(
        &self,
        log: &dyn Commits,
        period: u32,
        has_updates: bool,
        published: impl FnOnce(Timestamp) -> Option<i64>,
    ) -> Option<RecentWindow> {
        let mut state = self.state.lock();
        let state = state.as_mut()?;
        let end = state
            .reach
            .end_second(log, state.applied, state.newest, published)?;
        state.recent.window(has_updates, period, end)
    }
}

/// Returns the first commit of a second or later.
fn first_since(second: i64, log: &dyn EntryLog) -> Result<CommitNumber, LogError> {
    let (mut first, mut behind) = (1, log.head().number.0 + 1);
    // Commits are in the order of their instants, so each read halves the range.
    while first < behind {
        let middle = first + (behind - first) / 2;
        let outlines = log.outlines(CommitNumber(middle), 1)?;
        let missing = || LogError::damaged(format!("commit {middle} is missing"));
        if outlines.first().ok_or_else(missing)?.instant.second() < second {
            first = middle + 1;
        } else {
            behind = middle;
        }
    }
    Ok(CommitNumber(first))
}

impl View for TimelineUpdates {
    fn name(&self) -> &'static str {
        "sup-timelines"
    }

    /// Begins with the second at which the longest document may begin. That document may end one
    /// second before the newest commit.
    fn begin(&self, log: &dyn ShownLog) -> Result<CommitNumber, ViewError> {
        let head = log.head();
        let oldest = head.last.second() - i64::from(self.longest) - SUP_OVERLAP_SECONDS - 1;
        let applied = CommitNumber(first_since(oldest, log)?.0 - 1);
        // If the view begins with the first commit, every update ever is known.
        let since = if applied == CommitNumber(0) {
            i64::MIN
        } else {
            oldest
        };
        *self.state.lock() = Some(UpdatesState {
            recent: RecentUpdates::new(since),
            reach: Reach::new(head.number),
            applied,
            newest: i64::MIN,
        });
        Ok(applied)
    }

    fn apply(&self, commit: &Outline, log: &dyn ShownSeries) -> Result<ApplyOutcome, ViewError> {
        let mut timelines = vec![];
        match log.concerned(commit, &mut |timeline| timelines.push(timeline)) {
            Ok(()) => {}
            // Damage of one timeline must not hold up the updates of the others.
            Err(error @ LogError::Damaged { .. }) => {
                error!(%error, "updates of timelines are left out");
            }
            Err(error) => return Err(error.into()),
        }
        if let Some(state) = &mut *self.state.lock() {
            state.newest = commit.instant.second();
            for timeline in timelines {
                state.recent.add(state.newest, timeline);
            }
            state.applied = commit.number;
        }
        Ok(ApplyOutcome::More)
    }

    fn carry_out(&self, _: &dyn ShownSeries, _: &Grace<'_>) -> Result<bool, ViewError> {
        Ok(true)
    }

    fn pause(&self, stop: &Stop) {
        stop.is_requested_within(PACE);
    }
}
