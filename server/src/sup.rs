//! SUP documents for readers.
//!
//! Shell: a thread that follows the log, the files of archived windows, and documents kept in memory. [`SupWindows`]
//! decides the content of a document, the [`Watermark`] its last second.
//!
//! A document ends with a second that is over: readers see every commit of it, the view has applied each of them,
//! and no later commit will ever be of it (rule SUP-P5).

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError},
    time::{Duration, Instant as Moment},
};

use simplefeed_core::{
    feed::{CommitNumber, FeedKey, Numbered},
    instant::Instant,
    limits::SUP_OVERLAP_SECONDS,
    sup::{Heading, SUP_TYPE, SupId},
};
use tracing::{error, info};

use crate::{
    log::{EntryLog, LogError},
    stop::Stop,
    views::{
        documents::Resource,
        error::ArchiveError,
        frozen_files::Remade,
        sup::{Circle, Current, SupWindows, Window, file_name},
        sup_files::SupFiles,
    },
    watermark::Watermark,
};

/// Most commits that one read of the log returns.
const COMMITS_TOGETHER: usize = 1_000;
/// Lag in commits beyond which a server that stops does not wait for the view.
const COMMITS_BEHIND: u64 = 100_000;
/// Commits between two notes of series without updates.
const IDLE_COMMITS: u64 = 10_000;
/// Windows waiting to be written at which the view applies no more commits.
const WAITING_MAX: usize = 16;
/// The pause after something could not be read or written.
const RETRY: Duration = Duration::from_secs(1);
/// Shortest time between two renderings of a document. For a long period it is a part of the period.
const FRESH_MIN: Duration = Duration::from_secs(1);
/// Most renderings of a document in one of its periods.
const FRESH_PART: u32 = 60;

/// Decides whether a reader may see the updates of a feed.
pub type Tells<'a> = &'a dyn Fn(FeedKey) -> Result<bool, LogError>;

/// SUP document for one reader, or for everybody.
#[derive(Clone, Debug)]
pub struct Told {
    /// Document with its validators and its lifetime.
    pub resource: Resource,
    /// URL of the archived document before it, relative to this one; `None` if there is none.
    pub previous: Option<String>,
}

/// Source of SUP documents: one for each period, and the archived windows.
pub struct Sup {
    log: Arc<dyn EntryLog>,
    watermark: Arc<Watermark>,
    files: SupFiles,
    /// Offered periods, in seconds, the default one first.
    periods: Vec<u32>,
    public_url: String,
    clock: fn() -> Instant,
    state: Mutex<State>,
    /// Last public document of each period, and the moment it was made.
    told: Mutex<HashMap<u32, (Moment, Told)>>,
}

#[derive(Debug)]
struct State {
    windows: SupWindows,
    /// Last commit at the start. No document is made before the view has applied it.
    reaches: CommitNumber,
    /// Last second that a document has ended with.
    until: i64,
    /// Closed windows whose files are not written yet, oldest first.
    over: VecDeque<(Circle, Window)>,
}

impl std::fmt::Debug for Sup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sup").finish_non_exhaustive()
    }
}

impl Sup {
    /// Begins where the records of archived windows end; [`follow`](Self::follow) reads the commits since. `periods`
    /// are the offered ones, in seconds, the default one first.
    ///
    /// # Errors
    ///
    /// Returns why the records cannot be read.
    pub fn new(
        log: Arc<dyn EntryLog>,
        watermark: Arc<Watermark>,
        files: SupFiles,
        periods: &[u32],
        public_url: &str,
        clock: fn() -> Instant,
    ) -> Result<Self, ArchiveError> {
        let longest = periods.iter().copied().max().unwrap_or(0);
        let head = log.head();
        // The longest document may end one second before the newest commit, hence begin here.
        let oldest = head.last.second() - i64::from(longest) - SUP_OVERLAP_SECONDS - 1;
        let public = files.beginning(Circle::Public, oldest, head.number)?;
        let apart = files.beginning(Circle::Apart, oldest, head.number)?;
        let mut windows = SupWindows::new(public, apart, longest);
        for (circle, beginning) in Circle::ALL.into_iter().zip([public, apart]) {
            // An idle note skips commits of the cut's last second, too, which the next window repeats.
            if beginning.cut.is_some() && beginning.idle.is_some() {
                recall(&mut windows, circle, beginning.commit, &*log)?;
            }
        }
        Ok(Self {
            watermark,
            files,
            periods: periods.to_vec(),
            public_url: public_url.into(),
            clock,
            state: Mutex::new(State {
                windows,
                reaches: head.number,
                until: i64::MIN,
                over: VecDeque::new(),
            }),
            told: Mutex::default(),
            log,
        })
    }

    /// Returns the offered periods, in seconds, the default one first.
    pub fn periods(&self) -> &[u32] {
        &self.periods
    }

    /// Follows the log until the server stops.
    pub fn follow(&self, stop: &Stop) {
        let mut noted = CommitNumber(0);
        loop {
            let followed = self.follow_on(stop);
            if let Err(error) = &followed {
                let error: &(dyn std::error::Error + 'static) = error;
                error!(error, "updates cannot be told; it will be tried again");
            }
            // After an error as well: the windows that wait need nothing from the log.
            let archived = self.archive();
            if let Err(error) = &archived {
                let error: &(dyn std::error::Error + 'static) = error;
                error!(error, "updates cannot be archived; it will be tried again");
            }
            let applied = self.state().windows.applied();
            let has_ended = matches!(followed, Ok(false));
            if has_ended || applied.0 >= noted.0 + IDLE_COMMITS {
                self.note_idle();
                noted = applied;
            }
            let is_well = followed.is_ok() && archived.is_ok();
            if has_ended || (!is_well && stop.is_requested_within(RETRY)) {
                return;
            }
        }
    }

    /// Applies the next commits, and waits for the first one. Returns whether more may come.
    fn follow_on(&self, stop: &Stop) -> Result<bool, LogError> {
        let log = &*self.log;
        // The lock ends before the wait, because readers need it.
        let (next, waiting) = {
            let state = self.state();
            (state.windows.applied().next(), state.over.len())
        };
        if waiting > 0 {
            // Pending windows are tried again, even if no commit comes.
            let is_new = next <= log.head().number;
            if waiting >= WAITING_MAX || !is_new {
                return Ok(!stop.is_requested());
            }
        }
        if !log.announcements().comes(next, log) {
            return Ok(false);
        }
        for outline in log.outlines(next, COMMITS_TOGETHER)? {
            // Locked anew for each commit, so readers get in between.
            let mut state = self.state();
            let over = state.windows.take(&outline, log)?;
            state.over.extend(over);
            // The rest is read again later, because windows that wait take memory.
            if state.over.len() >= WAITING_MAX {
                break;
            }
        }
        // A server that stops waits for a view that is nearly up to date. The next start reads the rest.
        let is_behind = log.head().number.0 > next.0 + COMMITS_BEHIND;
        Ok(!(is_behind && stop.is_requested()))
    }

    /// Writes the windows that are closed.
    fn archive(&self) -> Result<(), ArchiveError> {
        loop {
            // Cloned, so readers need not wait for the disk.
            let Some((circle, window)) = self.state().over.front().cloned() else {
                return Ok(());
            };
            if self.files.write(circle, &window)? == Remade::New {
                info!(window = %window.name, series = circle.name(), "updates archived");
            }
            // The window leaves the queue behind the write, so an error keeps it for the next try.
            let mut state = self.state();
            state.windows.archived(circle, &window);
            state.over.pop_front();
        }
    }

    /// Notes up to which commit each series had no updates, so the next start skips these commits.
    fn note_idle(&self) {
        let (idle, applied) = {
            let state = self.state();
            // A note counts the windows with records, and a window that waits has none yet.
            if !state.over.is_empty() {
                return;
            }
            let idle = Circle::ALL.map(|circle| (circle, state.windows.idle_after(circle)));
            (idle, state.windows.applied())
        };
        for (circle, cuts) in idle {
            let noted = cuts.map(|cuts| self.files.note_idle(circle, cuts, applied));
            if let Some(Err(error)) = noted {
                let error: &(dyn std::error::Error + 'static) = &error;
                error!(error, "where nothing happened cannot be noted");
            }
        }
    }

    /// Returns the public document of a period, or `None` while the commits from before the start are being read.
    pub fn public(&self, period: u32) -> Option<Told> {
        if let Some(told) = self.public_at_once(period) {
            return Some(told);
        }
        // Held while the document is made: parallel requests wait, and share it.
        let mut kept = self.told();
        if let Some(told) = fresh(&kept, period) {
            return Some(told);
        }
        let current = self.current(Circle::Public, period)?;
        let updates: Vec<(SupId, i64)> = current
            .updates
            .iter()
            .map(|(_, id, second)| (*id, *second))
            .collect();
        let told = self.told_of(Circle::Public, period, &current, &updates);
        kept.insert(period, (Moment::now(), told.clone()));
        Some(told)
    }

    /// Returns the public document of a period if a fresh one is in memory. Never waits.
    pub fn public_at_once(&self, period: u32) -> Option<Told> {
        match self.told.try_lock() {
            Ok(kept) => fresh(&kept, period),
            Err(TryLockError::Poisoned(kept)) => fresh(&kept.into_inner(), period),
            // Another thread makes the document, and this one serves connections.
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Returns the document of a period about feeds that are or were closed, limited to those that `tells` allows;
    /// `None` as in [`public`](Self::public).
    ///
    /// # Errors
    ///
    /// Returns why the log cannot be read.
    pub fn apart(&self, period: u32, tells: Tells<'_>) -> Result<Option<Told>, LogError> {
        let Some(current) = self.current(Circle::Apart, period) else {
            return Ok(None);
        };
        // The state is not locked here, because `tells` reads the log.
        let mut updates = vec![];
        for (feed, id, second) in &current.updates {
            if tells(*feed)? {
                updates.push((*id, *second));
            }
        }
        Ok(Some(self.told_of(
            Circle::Apart,
            period,
            &current,
            &updates,
        )))
    }

    fn told_of(
        &self,
        circle: Circle,
        period: u32,
        current: &Current,
        updates: &[(SupId, i64)],
    ) -> Told {
        let name = circle.name();
        let periods = self.periods.iter().map(|seconds| {
            let url = format!("{}/{name}.json?seconds={seconds}", self.public_url);
            (*seconds, url)
        });
        let periods: Vec<(u32, String)> = periods.collect();
        let previous = current
            .previous
            .map(|window| format!("{name}/{}", file_name(window)));
        let heading = Heading {
            updated: current.until,
            since: current.since,
            period: i64::from(period),
            periods: &periods,
            prev_archive: previous.as_deref(),
        };
        let document = heading.document(updates).into();
        let resource = Resource::renewed(SUP_TYPE, document, lasts(period));
        Told { resource, previous }
    }

    /// Returns the current window of a circle, or `None` while the view is behind its start.
    fn current(&self, circle: Circle, period: u32) -> Option<Current> {
        // Held to the end, so no commit is applied in between.
        let mut state = self.state();
        let (applied, newest) = (state.windows.applied(), state.windows.newest());
        let head = self.log.head();
        // The log was empty at the start, and its first commit is not applied yet.
        let is_new = applied == CommitNumber(0) && head.number > applied;
        if applied < state.reaches || is_new {
            return None;
        }
        let published = self.watermark.publish((self.clock)(), head.last);
        // The head is read after that: a later commit is of a later second.
        let until = if self.log.head().number == applied {
            published
        } else {
            // Commits that are not applied are of the newest applied second or later, and later than any end so far.
            published.min(state.until.max(newest.saturating_sub(1)))
        };
        state.until = until;
        Some(state.windows.current(circle, period, until))
    }

    /// Returns the archived document of that name, if there is one. `tells` limits a document about closed feeds.
    ///
    /// # Errors
    ///
    /// See [`ArchiveError`].
    pub fn archived(
        &self,
        circle: Circle,
        name: Numbered,
        tells: Tells<'_>,
    ) -> Result<Option<Told>, ArchiveError> {
        let record = self.files.record(circle, name.number)?;
        let Some(record) = record.filter(|record| record.name == name) else {
            return Ok(None);
        };
        let modified = Instant::from_micros(record.until * 1_000_000);
        let before = match name.number.checked_sub(1) {
            Some(before) => self.files.record(circle, before)?,
            None => None,
        };
        let previous = before.map(|before| file_name(before.name));
        let resource = match circle {
            Circle::Public => {
                let (bytes, twin) = self.files.document(&record)?;
                Resource::frozen(SUP_TYPE, modified, bytes, twin)
            }
            Circle::Apart => {
                // This document depends on the reader's rights, so its bytes are never final.
                let mut window = self.files.window(&record)?;
                let mut told = vec![];
                for update in window.updates {
                    if tells(update.0)? {
                        told.push(update);
                    }
                }
                window.updates = told;
                Resource::renewed(SUP_TYPE, window.document(|_| true).into(), FRESH_MIN)
            }
        };
        Ok(Some(Told { resource, previous }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn told(&self) -> MutexGuard<'_, HashMap<u32, (Moment, Told)>> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Applies the commits of a cut's last second, which an idle note passes over.
fn recall(
    windows: &mut SupWindows,
    circle: Circle,
    after: CommitNumber,
    log: &dyn EntryLog,
) -> Result<(), LogError> {
    let mut next = after.next();
    loop {
        let outlines = log.outlines(next, COMMITS_TOGETHER)?;
        for outline in &outlines {
            // The cut's last second is over, and the commits from here to the note have no updates.
            if !windows.recall(circle, outline, log)? {
                return Ok(());
            }
            next = outline.number.next();
        }
        if outlines.is_empty() {
            return Ok(());
        }
    }
}

/// Returns the last document of a period, as long as it is fresh.
fn fresh(kept: &HashMap<u32, (Moment, Told)>, period: u32) -> Option<Told> {
    let (made, told) = kept.get(&period)?;
    (made.elapsed() < lasts(period)).then(|| told.clone())
}

/// Returns the time for which a document serves requests before it is made again.
fn lasts(period: u32) -> Duration {
    Duration::from_secs(u64::from(period / FRESH_PART)).max(FRESH_MIN)
}
