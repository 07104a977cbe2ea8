//! SUP documents, for whoever asks.
//!
//! Shell: a thread that follows the log, the files of what is archived, and documents kept in memory. What
//! is told is decided by [`SupWindows`], up to when by the [`Watermark`].
//!
//! A document ends with a second that is over: every commit of it is seen by readers and taken into account
//! here, and no later commit will ever be of it (rule SUP-P5).

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

/// Commits read together by a view that is behind.
const COMMITS_TOGETHER: usize = 1_000;
/// One that is further behind when the server ends does not hold it up.
const COMMITS_BEHIND: u64 = 100_000;
/// Commits between two notes of where nothing happened.
const IDLE_COMMITS: u64 = 10_000;
/// Windows that wait to be written before no more commits are taken into account.
const WAITING_MAX: usize = 16;
/// The pause after something could not be read or written.
const RETRY: Duration = Duration::from_secs(1);
/// The shortest time between two documents of a window, and the part of its period that it is otherwise.
const FRESH_MIN: Duration = Duration::from_secs(1);
const FRESH_PART: u32 = 60;

/// Whether a reader may be told of a feed.
pub type Tells<'a> = &'a dyn Fn(FeedKey) -> Result<bool, LogError>;

/// A document for a reader.
#[derive(Clone, Debug)]
pub struct Told {
    /// It.
    pub resource: Resource,
    /// The archived document before it, relative to this one.
    pub previous: Option<String>,
}

/// What the server tells of its feeds.
pub struct Sup {
    log: Arc<dyn EntryLog>,
    watermark: Arc<Watermark>,
    files: SupFiles,
    /// The periods offered, in seconds; the first one where nobody asks.
    periods: Vec<u32>,
    public_url: String,
    clock: fn() -> Instant,
    state: Mutex<State>,
    /// What was told last of the public series, by its period.
    told: Mutex<HashMap<u32, (Moment, Told)>>,
}

#[derive(Debug)]
struct State {
    windows: SupWindows,
    /// The last commit when this began: nothing is told before it is reached.
    reaches: CommitNumber,
    /// The last second that a document ended with.
    until: i64,
    /// Windows whose documents are to be written.
    over: VecDeque<(Circle, Window)>,
}

impl std::fmt::Debug for Sup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sup").finish_non_exhaustive()
    }
}

impl Sup {
    /// Begins where the records of archived documents end; what lies between is read by
    /// [`follow`](Self::follow). `periods` are those to offer, in seconds, the one where nobody asks first.
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
        let oldest = head.last.second() - i64::from(longest) - SUP_OVERLAP_SECONDS - 1;
        let public = files.beginning(Circle::Public, oldest, head.number)?;
        let apart = files.beginning(Circle::Apart, oldest, head.number)?;
        let mut windows = SupWindows::new(public, apart, longest);
        for (circle, beginning) in Circle::ALL.into_iter().zip([public, apart]) {
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

    /// Returns the periods offered, in seconds.
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

    /// Takes the next commits into account, waiting for one. Returns whether there will be more.
    fn follow_on(&self, stop: &Stop) -> Result<bool, LogError> {
        let log = &*self.log;
        let (next, waiting) = {
            let state = self.state();
            (state.windows.applied().next(), state.over.len())
        };
        if waiting > 0 {
            // What is to be written is tried again, be there a commit or not.
            let is_new = next <= log.head().number;
            if waiting >= WAITING_MAX || !is_new {
                return Ok(!stop.is_requested());
            }
        }
        if !log.announcements().comes(next, log) {
            return Ok(false);
        }
        for outline in log.outlines(next, COMMITS_TOGETHER)? {
            let mut state = self.state();
            let over = state.windows.take(&outline, log)?;
            state.over.extend(over);
            if state.over.len() >= WAITING_MAX {
                break;
            }
        }
        let is_behind = log.head().number.0 > next.0 + COMMITS_BEHIND;
        Ok(!(is_behind && stop.is_requested()))
    }

    /// Writes what is over.
    fn archive(&self) -> Result<(), ArchiveError> {
        loop {
            let Some((circle, window)) = self.state().over.front().cloned() else {
                return Ok(());
            };
            if self.files.write(circle, &window)? == Remade::New {
                info!(window = %window.name, series = circle.name(), "updates archived");
            }
            let mut state = self.state();
            state.windows.archived(circle, &window);
            state.over.pop_front();
        }
    }

    /// Notes where nothing happened, so that the next start need not look.
    fn note_idle(&self) {
        let (idle, applied) = {
            let state = self.state();
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

    /// Returns the document of a period that is told to everybody, or `None` as long as what happened before
    /// the start is being read.
    pub fn public(&self, period: u32) -> Option<Told> {
        if let Some(told) = self.public_at_once(period) {
            return Some(told);
        }
        // Whoever comes while it is made waits for it.
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

    /// Returns that document if it need not be made.
    pub fn public_at_once(&self, period: u32) -> Option<Told> {
        match self.told.try_lock() {
            Ok(kept) => fresh(&kept, period),
            Err(TryLockError::Poisoned(kept)) => fresh(&kept.into_inner(), period),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Returns the document of a period that is told to a reader, of the feeds that are told apart; `None`
    /// as [`public`](Self::public).
    ///
    /// # Errors
    ///
    /// Returns what cannot be read from the log.
    pub fn apart(&self, period: u32, tells: Tells<'_>) -> Result<Option<Told>, LogError> {
        let Some(current) = self.current(Circle::Apart, period) else {
            return Ok(None);
        };
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

    /// Returns what there is to tell now.
    fn current(&self, circle: Circle, period: u32) -> Option<Current> {
        // Nothing is taken into account meanwhile.
        let mut state = self.state();
        let (applied, newest) = (state.windows.applied(), state.windows.newest());
        let head = self.log.head();
        let is_new = applied == CommitNumber(0) && head.number > applied;
        if applied < state.reaches || is_new {
            return None;
        }
        let published = self.watermark.publish((self.clock)(), head.last);
        // Read after that: whatever is committed later belongs to a later second.
        let until = if self.log.head().number == applied {
            published
        } else {
            // What is not taken into account is later than what is, and than what was told.
            published.min(state.until.max(newest.saturating_sub(1)))
        };
        state.until = until;
        Some(state.windows.current(circle, period, until))
    }

    /// Returns an archived document, if there is one of that name; `tells` says of which feeds that are told
    /// apart.
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

/// Has the view recall the last second before a beginning that passes over it.
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

/// Returns what was told of a period, as long as it is fresh.
fn fresh(kept: &HashMap<u32, (Moment, Told)>, period: u32) -> Option<Told> {
    let (made, told) = kept.get(&period)?;
    (made.elapsed() < lasts(period)).then(|| told.clone())
}

/// Returns how long a document is told before another one is made.
fn lasts(period: u32) -> Duration {
    Duration::from_secs(u64::from(period / FRESH_PART)).max(FRESH_MIN)
}
