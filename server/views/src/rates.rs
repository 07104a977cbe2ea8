//! Rates: how many entries each feed got in each minute, hour and day.
//!
//! Shell: files. `counting` follows commits. Counts of the hour that has not ended are in memory,
//! and counts of every other hour in the tables of `files`. Minutes are kept for a day, hours for a
//! month, days for ever. The entries of a timeline are counted in the feeds that the timeline
//! follows.

use std::{
    collections::{BTreeMap, HashMap},
    fs,
    ops::Range,
    path::{Path, PathBuf},
    time::Duration,
};

use parking_lot::{Mutex, RwLock};
use simplefeed_core::{
    commit::Outline,
    feed::{CommitNumber, FeedKey},
    rates::Unit,
    timestamp::Timestamp,
};
use simplefeed_log::{EntryLog, barrier::sync_folder};
use simplefeed_process::{regular, stop::Stop};

use super::{
    ApplyOutcome, View,
    error::ViewError,
    files::{Remade, failed},
    folders::Folders,
    follower::Grace,
    reports::{Rebuilt, VerifyFindings},
    scrub::{self, Scrub},
};

mod counting;
mod files;
mod reading;
mod table;

use counting::{COUNTED, Counting, CountingState};
use files::{KEPT, RateFolder, oldest_kept, span_of, within};
use reading::{RatesReader, each_of};
use table::TableRow;

use crate::shown::{ShownLog, ShownSeries};

/// Name of the view, of the folder of tables, and of the label in metrics.
pub const NAME: &str = "rates";
/// Maximum number of commits by which the file of the counts may be behind.
const NOTED_COMMITS: u64 = 200_000;
/// The same at a stop of the server, after which the next start counts these commits again.
const STOPPED_COMMITS: u64 = if cfg!(test) { 1 } else { 5_000 };
/// Pause of a follower that is up to date. A thread that is woken for each commit would take time
/// from the publisher.
const PACE: Duration = Duration::from_millis(500);

/// View of the rates of feeds.
#[derive(Debug)]
pub struct RatesView {
    counting: Counting,
    /// Folder in which `verify` or `rebuild`, one at a time, makes the tables again.
    again: PathBuf,
    counting_again: Mutex<()>,
    folders: Folders,
}

/// Number of entries of one feed in each span, by the number of the span.
pub type FeedRates = BTreeMap<i64, u64>;

/// Rates of some feeds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RatesRead {
    /// Rates of each feed, in the order in which they were asked for.
    pub feeds: Vec<FeedRates>,
    /// Last commit, of any feed, that is counted.
    pub applied: CommitNumber,
    /// Instant of the commit [`applied`](Self::applied).
    pub through: Option<Timestamp>,
    /// Hour of the newest entry of all feeds.
    hour: Option<i64>,
}

impl RatesRead {
    /// Returns the instant from which on spans of a unit are kept at `now`; `None` if all spans are
    /// kept. The instant does not depend on the newest entry, which may be of a closed feed, unless
    /// that entry is of a later hour than `now`.
    pub fn kept_from(&self, unit: Unit, now: Timestamp) -> Option<Timestamp> {
        let hour = Unit::Hour.number(now);
        let oldest = oldest_kept(unit, self.hour.unwrap_or(hour).max(hour))?;
        Some(span_of(unit).start(oldest))
    }
}

/// Feed with entries in some hours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Active {
    /// Feed with at least one entry in these hours.
    pub feed: FeedKey,
    /// Number of entries in these hours.
    pub entries: u64,
    /// Number of the minute of the newest entry. In an hour that has ended, the hour's first minute
    /// counts instead.
    pub newest: i64,
}

impl RatesView {
    /// Returns the view in some folders.
    pub fn new(folders: &Folders) -> Self {
        let folder = folders.of_view(NAME);
        Self {
            again: folder.join("again"),
            counting_again: Mutex::default(),
            counting: Counting {
                files: RateFolder::new(folder),
                state: RwLock::default(),
            },
            folders: folders.clone(),
        }
    }

    /// Returns the rates of some feeds in the spans of a range, by the numbers of the spans; `None`
    /// until the view has counted the commits from before the start.
    ///
    /// # Errors
    ///
    /// [`ViewError::Damaged`] if a table is damaged, or why a table cannot be read.
    pub fn read(
        &self,
        feeds: &[FeedKey],
        unit: Unit,
        spans: Range<i64>,
    ) -> Result<Option<RatesRead>, ViewError> {
        // Locked to the end, so that each hour is either in memory or in tables.
        let state = self.counting.state.read();
        let Some(state) = state.as_ref().filter(|state| state.applied >= state.start) else {
            return Ok(None);
        };
        let mut reading = RatesReader {
            files: &self.counting.files,
            state,
            unit,
            spans,
            found: feeds.iter().map(|feed| (*feed, FeedRates::new())).collect(),
        };
        reading.all()?;
        Ok(Some(RatesRead {
            feeds: reading.found.into_iter().map(|(_, rates)| rates).collect(),
            applied: state.applied,
            through: state.through,
            hour: state.hour,
        }))
    }

    /// Returns the feeds with entries in a range of hours, in no order. Returns no feeds until the
    /// view has counted the commits from before the start.
    ///
    /// # Errors
    ///
    /// [`ViewError::Damaged`] if a table is damaged, or why a table cannot be read.
    pub fn active(&self, hours: Range<i64>) -> Result<Vec<Active>, ViewError> {
        let state = self.counting.state.read();
        let Some(state) = state.as_ref().filter(|state| state.applied >= state.start) else {
            return Ok(vec![]);
        };
        let mut found: HashMap<FeedKey, (u64, i64)> = HashMap::new();
        let mut add = |feed, minute: i64, count| {
            let (entries, newest) = found.entry(feed).or_insert((0, i64::MIN));
            *entries += count;
            *newest = minute.max(*newest);
        };
        each_of(&self.counting.files, state, &hours, &mut add)?;
        let active = found.into_iter().map(|(feed, (entries, newest))| Active {
            feed,
            entries,
            newest,
        });
        Ok(active.collect())
    }

    /// Counts all commits again, with files in a folder of their own.
    fn count_again(&self, log: &dyn EntryLog) -> Result<Counting, ViewError> {
        let files = RateFolder::new(self.again.clone());
        files.delete()?;
        files.create()?;
        let counting = Counting {
            files,
            state: RwLock::new(Some(CountingState::default())),
        };
        counting.catch_up(log)?;
        Ok(counting)
    }

    /// Replaces the count by a new one: the files that differ, and the state from which the
    /// follower goes on.
    fn adopt_count(&self, again: Counting, rebuilt: &mut Rebuilt) -> Result<(), ViewError> {
        let files = &self.counting.files;
        // Readers wait until the files fit the state again.
        let mut live = self.counting.state.write();
        again.note()?;
        files.create()?;
        let mut state = again.state.into_inner().unwrap_or_default();
        for unit in KEPT {
            for &span in state.present.of(unit) {
                let path = files.path(unit, span);
                let remade = take_file(&again.files.path(unit, span), &path)?;
                rebuilt.add(remade, || table_name(&path));
            }
        }
        if let Some(hour) = state.hour {
            for run in 0..state.runs {
                take_file(&again.files.run(hour, run), &files.run(hour, run))?;
            }
        }
        files.sync()?;
        // The file of the counts comes after the tables that it names. It is durable before the
        // tables go that only the older file names.
        if state.applied > CommitNumber(0) {
            let counted = files.folder().join(COUNTED);
            take_file(&again.files.folder().join(COUNTED), &counted)?;
            let synced = regular::open(&counted).and_then(|file| file.sync_data());
            synced
                .and_then(|()| sync_folder(files.folder()))
                .map_err(failed("sync", files.folder()))?;
        }
        files.keep_only(&state.present)?;
        if let Some(live) = &mut *live {
            // `start` and `made` belong to this process, and not to the count.
            (state.start, state.made) = (live.start, live.made);
            *live = state;
        }
        again.files.delete()
    }
}

impl View for RatesView {
    fn name(&self) -> &'static str {
        NAME
    }

    /// Begins where the file of the counts ends, or with the first commit.
    fn begin(&self, log: &dyn ShownLog) -> Result<CommitNumber, ViewError> {
        let files = &self.counting.files;
        let _writing = self.folders.writing();
        let found = CountingState::of(files, log)?;
        if let Some(found) = &found {
            // Tables that the counts do not name are left over from interrupted work.
            files.keep_only(&found.present)?;
        } else {
            // The tables belong to another log or to commits that this log has lost, or no sound
            // file names them.
            files.delete()?;
        }
        let begun = CountingState {
            start: log.head().number,
            ..found.unwrap_or_default()
        };
        let applied = begun.applied;
        *self.counting.state.write() = Some(begun);
        Ok(applied)
    }

    fn apply(&self, commit: &Outline, _: &dyn ShownSeries) -> Result<ApplyOutcome, ViewError> {
        let has_work = self.counting.apply(commit);
        // The work is carried out before the next commit, because only one hour that is over can
        // wait.
        Ok(if has_work {
            ApplyOutcome::Full
        } else {
            ApplyOutcome::More
        })
    }

    fn carry_out(&self, _: &dyn ShownSeries, grace: &Grace<'_>) -> Result<bool, ViewError> {
        let (has_work, unnoted) = match &*self.counting.state.read() {
            Some(state) => (
                state.over.is_some() || state.is_full(),
                state.applied.0 - state.noted.0,
            ),
            None => return Ok(true),
        };
        let is_due = unnoted >= NOTED_COMMITS || grace.has_begun() && unnoted >= STOPPED_COMMITS;
        if has_work || is_due {
            // This lock keeps out a rebuild, which writes the same files.
            let _writing = self.folders.writing();
            self.counting.work()?;
            if is_due {
                self.counting.note()?;
            }
        }
        Ok(true)
    }

    fn pause(&self, stop: &Stop) {
        stop.is_requested_within(PACE);
    }

    fn made(&self) -> u64 {
        let state = self.counting.state.read();
        state.as_ref().map_or(0, |state| state.made)
    }

    fn verify(&self, log: &dyn ShownLog, findings: &mut VerifyFindings) -> Result<(), ViewError> {
        // Rates follow from all commits, so after a partial replay they cannot be compared.
        if !findings.is_replayed {
            return Ok(());
        }
        let _alone = self.counting_again.lock();
        let again = self.count_again(log)?;
        let writing = self.folders.writing();
        // Tables must be right up to the hour in the file of the counts.
        let compared = match CountingState::read(&self.counting.files) {
            Some(found) if found.fits(&self.counting.files, log)? => match found.hour {
                Some(open) => self.compare_tables(&again, open, findings),
                None => Ok(()),
            },
            Some(_) => {
                findings.fault(format!(
                    "{NAME}/{COUNTED} is of another log, or a file that it names is missing or damaged"
                ));
                Ok(())
            }
            // The view has not begun yet. The file is written after the tables, so after a power
            // cut it may be missing, and the start counts again.
            None if self.counting.state.read().is_none() => Ok(()),
            None => {
                let present = self.counting.files.present()?;
                if KEPT.iter().any(|unit| !present.of(*unit).is_empty()) {
                    let fault = format!("{NAME}/{COUNTED} does not say what its tables reach");
                    findings.fault(fault);
                }
                Ok(())
            }
        };
        drop(writing);
        again.files.delete()?;
        compared
    }

    fn rebuild(&self, log: &dyn ShownLog, rebuilt: &mut Rebuilt) -> Result<(), ViewError> {
        let _alone = self.counting_again.lock();
        // The whole log is counted without the lock of the folders, because that takes long, and
        // other views write meanwhile.
        let again = self.count_again(log)?;
        let _writing = self.folders.writing();
        // Only the commits that came meanwhile are counted under the lock.
        again.catch_up(log)?;
        self.adopt_count(again, rebuilt)
    }

    fn scrub(&self, _: &dyn ShownSeries, scrub: &Scrub<'_>) {
        for unit in KEPT {
            let spans: Vec<i64> = match &*self.counting.state.read() {
                Some(state) => state.present.of(unit).iter().copied().collect(),
                None => return,
            };
            for span in spans {
                if !scrub.goes_on() {
                    return;
                }
                let read = self.counting.files.table(unit, span);
                let read = read.and_then(|table| table.rows().try_for_each(|row| row.map(drop)));
                // A missing table was deleted meanwhile, because it is no longer kept.
                if let Err(error @ ViewError::Damaged { .. }) = read {
                    scrub::report(&error);
                }
            }
        }
    }
}

impl RatesView {
    /// Compares the tables with those that were made again, up to the hour `open`.
    fn compare_tables(
        &self,
        again: &Counting,
        open: i64,
        findings: &mut VerifyFindings,
    ) -> Result<(), ViewError> {
        let state = again.state.read();
        let Some((state, hour)) = state.as_ref().and_then(|state| Some((state, state.hour?)))
        else {
            return Ok(());
        };
        let files = &self.counting.files;
        let present = files.present()?;
        for unit in KEPT {
            let limit = within(Unit::Hour, open.min(hour), unit);
            // Tables that either count may have deleted by now are not compared.
            let oldest = oldest_kept(unit, open.max(hour)).unwrap_or(i64::MIN);
            let spans = present.of(unit).union(state.present.of(unit));
            for &span in spans.filter(|span| **span >= oldest) {
                let path = files.path(unit, span);
                let ours = rows_before(files, (unit, span), limit);
                let right = if state.present.of(unit).contains(&span) {
                    rows_before(&again.files, (unit, span), limit)?
                } else {
                    vec![]
                };
                let name = table_name(&path);
                match ours {
                    Ok(ours) if ours == right => {}
                    Ok(_) => findings.fault(format!("{name} is not what the log says")),
                    // A missing table without rows before the limit is yet to be made.
                    Err(_) if right.is_empty() && !present.of(unit).contains(&span) => {}
                    Err(error) => findings.fault(format!("{name}: {error}")),
                }
            }
        }
        Ok(())
    }
}

/// Returns the rows of a table, without the counts of span `limit` and of later spans.
fn rows_before(
    files: &RateFolder,
    (unit, span): (Unit, i64),
    limit: i64,
) -> Result<Vec<TableRow>, ViewError> {
    let first = within(span_of(unit), span, unit);
    let mut rows = vec![];
    for row in files.table(unit, span)?.rows() {
        let (feed, mut counts) = row?;
        counts.retain(|(slot, _)| first + i64::from(*slot) < limit);
        if !counts.is_empty() {
            rows.push((feed, counts));
        }
    }
    Ok(rows)
}

/// Returns the name of a table for messages.
fn table_name(path: &Path) -> String {
    let name = |path: &Path| {
        let name = path.file_name().unwrap_or_default();
        name.to_string_lossy().into_owned()
    };
    let folder = path.parent().map(name).unwrap_or_default();
    format!("{NAME}/{folder}/{}", name(path))
}

/// Moves a file to the path of another, unless both have the same bytes.
#[expect(
    clippy::disallowed_methods,
    reason = "tables are counted again from the log"
)]
fn take_file(from: &Path, to: &Path) -> Result<Remade, ViewError> {
    let new = regular::read(from).map_err(failed("read", from))?;
    let remade = match regular::read(to) {
        Ok(old) if old == new => return Ok(Remade::Identical),
        Ok(_) => Remade::Different,
        Err(_) => Remade::New,
    };
    fs::rename(from, to).map_err(failed("write", to))?;
    Ok(remade)
}

#[cfg(test)]
mod tests;
