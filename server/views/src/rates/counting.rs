//! Counting of entries: the state that follows commits, and the work that follows from that state.
//!
//! Shell: files. Counts of the hour that has not ended are in memory, or in runs if they are many.

use std::{collections::HashMap, mem};

use parking_lot::RwLock;
use simplefeed_core::{
    commit::{ChangeOutline, Outline},
    feed::{CommitNumber, FeedKey},
    rates::Unit,
    timestamp::Timestamp,
};
use simplefeed_log::{
    Commits, LogError,
    barrier::sync_folder,
    codec::{Reader, RecordWriter, seal, unseal},
    durable::create_folder,
};
use simplefeed_process::regular;

use super::{
    files::{KEPT, Over, Present, RateFolder, slot, within},
    table::{TableRow, decode_row, encode_row},
};
use crate::{
    error::ViewError,
    files::{failed, replace_unsynced},
};

/// Name of the file of the counts in memory.
pub(super) const COUNTED: &str = "counted";
/// First bytes of that file; they hold the version of its layout.
const MAGIC: &[u8] = b"simplefeed counted 1\n";
/// Number in that file that stands for no hour.
const NO_HOUR: i64 = i64::MIN;
/// Maximum number of commits that one read of the log returns.
const COMMITS_TOGETHER: usize = 1_000;
/// Number of counts in memory at which they become a run. So many counts take 3 to 6 MiB.
const COUNTS_MAX: usize = if cfg!(test) { 5 } else { 128 * 1024 };

/// Numbers of entries in an hour, by feed and minute of the hour.
pub(super) type Minutes = HashMap<(FeedKey, u8), u32>;

/// Counts that follow a log, and their files.
#[derive(Debug)]
pub(super) struct Counting {
    /// Folder with the tables and runs.
    pub(super) files: RateFolder,
    /// `None` until the view has begun to follow. Readers hold the lock while they read, so that an
    /// hour is either in memory or in tables.
    pub(super) state: RwLock<Option<CountingState>>,
}

/// Counts up to a commit.
#[derive(Debug, Default)]
pub(super) struct CountingState {
    pub(super) applied: CommitNumber,
    /// Instant of the commit `applied`.
    pub(super) through: Option<Timestamp>,
    /// Last commit at the start. Until the view has applied this commit, readers get nothing.
    pub(super) start: CommitNumber,
    /// Hour in which entries are counted now.
    pub(super) hour: Option<i64>,
    /// Counts of that hour that are in no run, by feed and minute of the hour.
    pub(super) counted: Minutes,
    pub(super) runs: u32,
    /// Hour that is over, with the counts that are in no run, until its tables are in place.
    pub(super) over: Option<(Over, Minutes)>,
    pub(super) present: Present,
    /// Last commit that the file of the counts reaches.
    pub(super) noted: CommitNumber,
    pub(super) made: u64,
}

impl CountingState {
    /// Counts a commit. Returns whether there is [`work`](Counting::work) now.
    fn count_commit(&mut self, commit: &Outline) -> bool {
        if commit.number <= self.applied {
            // A rebuild has counted this commit.
            return self.over.is_some() || self.is_full();
        }
        let minute = Unit::Minute.number(commit.instant);
        for change in &commit.changes {
            let ChangeOutline::Entries { feed, count, .. } = *change else {
                continue;
            };
            let hour = within(Unit::Minute, minute, Unit::Hour);
            if let Some(before) = self.hour.filter(|before| *before < hour) {
                let over = Over {
                    hour: before,
                    next: hour,
                    runs: mem::take(&mut self.runs),
                };
                self.over = Some((over, mem::take(&mut self.counted)));
            }
            self.hour = Some(hour);
            let count = u32::try_from(count).unwrap_or(u32::MAX);
            let counted = self.counted.entry((feed, slot(Unit::Minute, minute)));
            let counted = counted.or_default();
            *counted = counted.saturating_add(count);
        }
        self.applied = commit.number;
        self.through = Some(commit.instant);
        self.over.is_some() || self.is_full()
    }

    /// Returns the oldest hour whose counts are not in tables.
    pub(super) fn open_hour(&self) -> Option<i64> {
        let over = self.over.as_ref().map(|(over, _)| over.hour);
        over.or(self.hour)
    }
}

/// Returns rows of counts, in the order of their feeds.
pub(super) fn rows_of(counted: &Minutes) -> impl Iterator<Item = TableRow> + use<> {
    let mut sorted: Vec<_> = counted.iter().map(|(at, count)| (*at, *count)).collect();
    sorted.sort_unstable();
    let mut sorted = sorted.into_iter().peekable();
    std::iter::from_fn(move || {
        let ((feed, slot), count) = sorted.next()?;
        let mut counts = vec![(slot, u64::from(count))];
        while let Some(((_, slot), count)) = sorted.next_if(|((next, _), _)| *next == feed) {
            counts.push((slot, count.into()));
        }
        Some((feed, counts))
    })
}

impl Counting {
    /// Counts a commit. Returns whether there is [`work`](Self::work) now.
    pub(super) fn apply(&self, commit: &Outline) -> bool {
        let mut state = self.state.write();
        state
            .as_mut()
            .is_some_and(|state| state.count_commit(commit))
    }

    /// Counts the commits of a log that are not counted yet, and does all the work that follows.
    ///
    /// # Errors
    ///
    /// Returns why the log cannot be read, or a file not be written.
    pub(super) fn catch_up(&self, log: &dyn Commits) -> Result<(), ViewError> {
        let end = log.head().number;
        loop {
            let applied = match &*self.state.read() {
                Some(state) if state.applied < end => state.applied,
                _ => return Ok(()),
            };
            let outlines = log.outlines(applied.next(), COMMITS_TOGETHER)?;
            if outlines.is_empty() {
                return Ok(());
            }
            for outline in &outlines {
                if self.apply(outline) {
                    self.work()?;
                }
            }
        }
    }

    /// Does the work that waits.
    pub(super) fn work(&self) -> Result<(), ViewError> {
        let (ended, is_full, hour) = match &*self.state.read() {
            Some(state) => (state.over.is_some(), state.is_full(), state.hour),
            None => return Ok(()),
        };
        self.files.create()?;
        if ended {
            self.end_hour()?;
        }
        if is_full {
            self.spill_counts()?;
        }
        if !ended && !is_full {
            return Ok(());
        }
        // The new file is durable before anything is deleted, because the older file names tables
        // that are deleted here.
        self.note_durably()?;
        if let (true, Some(hour), Some(state)) = (ended, hour, &*self.state.read()) {
            self.files.keep_only(&state.present)?;
            self.files.delete_runs_but(hour)?;
        }
        Ok(())
    }

    /// Puts the tables of an hour that is over in place. Only a read lock is held while they are
    /// written, so that readers go on.
    pub(super) fn end_hour(&self) -> Result<(), ViewError> {
        let ready = match &*self.state.read() {
            Some(CountingState {
                over: Some((over, counted)),
                present,
                ..
            }) => self.files.end_hour(*over, rows_of(counted), present)?,
            _ => return Ok(()),
        };
        if let Some(state) = &mut *self.state.write() {
            // Readers are locked out here, so that for them the hour leaves the memory when the
            // tables get their names.
            self.files.put(&ready, &mut state.present)?;
            if let Some((over, _)) = state.over.take() {
                state.present.expire(over.next);
            }
            state.made += u64::try_from(ready.count()).expect("tables are few");
        }
        Ok(())
    }

    /// Makes room in memory: writes the counts to a run, and forgets them.
    fn spill_counts(&self) -> Result<(), ViewError> {
        if let Some(state) = &*self.state.read()
            && let Some(hour) = state.hour
        {
            let rows = rows_of(&state.counted);
            self.files.write_run(hour, state.runs, rows)?;
        }
        if let Some(state) = &mut *self.state.write() {
            state.runs += 1;
            state.counted.clear();
        }
        Ok(())
    }

    /// Writes the counts in memory to their file, which is durable on return.
    pub(super) fn note_durably(&self) -> Result<(), ViewError> {
        self.note()?;
        let folder = self.files.folder();
        let file = regular::open(folder.join(COUNTED)).and_then(|file| file.sync_data());
        file.and_then(|()| sync_folder(folder))
            .map_err(failed("sync", folder))
    }

    /// Writes the counts in memory to their file.
    pub(super) fn note(&self) -> Result<(), ViewError> {
        let (bytes, applied) = match &*self.state.read() {
            // The file has no field for an hour that is over, whose counts belong into tables.
            Some(state) if state.over.is_none() => (state.encode_state(), state.applied),
            _ => return Ok(()),
        };
        let path = self.files.folder().join(COUNTED);
        create_folder(self.files.folder()).map_err(failed("create", self.files.folder()))?;
        // The checksum detects a file that a power cut has damaged.
        replace_unsynced(&path, &bytes).map_err(failed("write", &path))?;
        if let Some(state) = &mut *self.state.write() {
            state.noted = applied;
        }
        Ok(())
    }
}

impl CountingState {
    /// Returns whether the counts in memory are to become a run.
    pub(super) fn is_full(&self) -> bool {
        self.counted.len() >= COUNTS_MAX
    }

    fn encode_state(&self) -> Vec<u8> {
        let mut out = RecordWriter(MAGIC.to_vec());
        out.long(self.applied.0);
        out.instant(self.through.unwrap_or_default());
        // Before the first entry there is no hour.
        out.long(self.hour.unwrap_or(NO_HOUR).cast_unsigned());
        out.number(self.runs.into());
        for unit in KEPT {
            let spans = self.present.of(unit);
            out.length(spans.len());
            for span in spans {
                out.long(span.cast_unsigned());
            }
        }
        for (feed, counts) in rows_of(&self.counted) {
            encode_row(feed, &counts, &mut out);
        }
        seal(out.0)
    }

    /// Returns the counts of a file; `None` if the file is not sound.
    fn decode_state(file: &[u8]) -> Option<Self> {
        let mut from = Reader(unseal(file)?.strip_prefix(MAGIC)?);
        let applied = CommitNumber(from.long()?);
        let mut state = Self {
            applied,
            noted: applied,
            through: Some(from.instant()?),
            ..Self::default()
        };
        let hour = from.long()?.cast_signed();
        state.hour = Some(hour).filter(|hour| *hour != NO_HOUR);
        state.runs = from.small()?;
        for unit in KEPT {
            for _ in 0..from.length()? {
                let span = from.long()?.cast_signed();
                state.present.of_mut(unit).insert(span);
            }
        }
        while !from.0.is_empty() {
            let (feed, counts) = decode_row(&mut from)?;
            for (slot, count) in counts {
                let count = u32::try_from(count).ok()?;
                state.counted.insert((feed, slot), count);
            }
        }
        Some(state)
    }

    /// Returns the counts that a folder has, if they are of a commit of this log.
    pub(super) fn of(files: &RateFolder, log: &dyn Commits) -> Result<Option<Self>, LogError> {
        match Self::read(files) {
            Some(state) if state.fits(files, log)? => Ok(Some(state)),
            _ => Ok(None),
        }
    }

    /// Returns the counts of a folder's file; `None` if there is no sound file, as after a power
    /// cut.
    pub(super) fn read(files: &RateFolder) -> Option<Self> {
        Self::decode_state(&regular::read(files.folder().join(COUNTED)).ok()?)
    }

    /// Returns whether the counts end with a commit of this log, and their tables and runs are
    /// there.
    pub(super) fn fits(&self, files: &RateFolder, log: &dyn Commits) -> Result<bool, LogError> {
        if self.applied > log.head().number {
            return Ok(false);
        }
        // A commit of another log may have this number, but has another instant.
        let outlines = log.outlines(self.applied, 1)?;
        let instant = outlines.first().map(|outline| outline.instant);
        Ok(instant == self.through && self.has_files(files))
    }

    /// Returns whether all tables and runs are there, each with a sound index.
    fn has_files(&self, files: &RateFolder) -> bool {
        let has_tables = |unit: Unit| {
            let mut spans = self.present.of(unit).iter();
            spans.all(|span| files.table(unit, *span).is_ok())
        };
        let mut runs = 0..self.runs;
        let has_run = |run| {
            self.hour
                .is_some_and(|hour| files.open_run(hour, run).is_ok())
        };
        KEPT.into_iter().all(has_tables) && runs.all(has_run)
    }
}
