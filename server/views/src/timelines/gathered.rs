//! Entries of timelines, gathered in the background while the feeds gain entries: lists in sorted
//! runs beside the log.
//!
//! Shell: files below the view's folder, and threads that merge runs. Nobody waits for the
//! gathering: a reader adds the entries that the feeds have gained since the last run. So a crash,
//! or a full disk, costs time and no entry.
//!
//! ```text
//! commits ──► pairs (timeline, entry) ──► runs in memory ──► runs in files, merged by and by
//! ```
//!
//! A run covers a stretch of the log, and the next run begins where that stretch ends. A run is at
//! least about as large as all newer runs together, so that there are few. Files that do not fit
//! the log, or are damaged, are removed, and their stretch is gathered again from the commits.

use std::{
    collections::BTreeMap,
    fs, io,
    ops::Range,
    path::{Path, PathBuf},
    sync::Arc,
    thread::JoinHandle,
    time::{Duration, Instant},
};

use parking_lot::{Mutex, RwLock};
use simplefeed_core::{
    commit::{ChangeOutline, Outline},
    feed::{CommitNumber, Position},
    history::ChainHash,
    timestamp::Timestamp,
};
use simplefeed_log::{EntryLog, LogError, durable::create_folder, held::visible_path};
use tracing::warn;

use super::{
    fan_out::FanOut,
    followers::TimelineKey,
    graph::{Graph, SourceKey, each_gain},
};
use crate::{error::ViewError, files::failed};

pub(super) mod list;
mod run;

use run::{
    EntryBlocks, GainedEntry, GatheredEnd, GatheredRun, LogStretch, PositionsApart, RunWriter,
    apart_of, entry_blocks,
};

/// Number of pairs from which on a run in memory ends.
const PAIRS_MAX: usize = if cfg!(test) { 2 } else { 1_000_000 };
/// Maximum number of commits of a run in memory.
const COMMITS_TOGETHER: usize = if cfg!(test) { 3 } else { 1_000 };
/// Size of the runs in memory, in bytes, from which on they go into a file.
const MEMORY_MAX: u64 = if cfg!(test) { 200 } else { 8 * 1024 * 1024 };
/// Number of commits after which runs in memory go into a file, however small they are.
const MEMORY_COMMITS: u64 = if cfg!(test) { 50 } else { 200_000 };
/// Number of followers above which a feed's entries are merged by readers and not gathered, if the
/// server chooses for each feed.
const FOLLOWERS_MAX: u64 = if cfg!(test) { 1 } else { 10_000 };
/// Maximum number of files that are written at the same time.
const MERGES_MAX: usize = 2;
/// Pause after a file that could not be written.
const PATIENCE: Duration = Duration::from_secs(if cfg!(test) { 0 } else { 10 });
/// Maximum number of entries of a run, which have 32-bit indexes.
const ENTRIES_MAX: u64 = 0xffff_ffff;

/// Lists of all timelines, as far as they are gathered.
#[derive(Debug)]
pub(super) struct GatheredLists {
    /// Folder of the files. Without a folder, nothing is gathered.
    folder: Option<PathBuf>,
    runs: RwLock<Arc<Runs>>,
    entries: Arc<EntryBlocks>,
    pub(super) files: Mutex<GatheredFiles>,
}

/// Files that are being written, and the time before which nothing is tried after a failure.
#[derive(Debug, Default)]
pub(super) struct GatheredFiles {
    merging: Vec<RunMerge>,
    pub(super) not_before: Option<Instant>,
}

/// Runs that cover the log up to a point.
#[derive(Debug)]
pub(super) struct Runs {
    pub(super) all: Vec<Arc<GatheredRun>>,
    reached: GatheredEnd,
    /// Positions whose entries are in no list, by feed.
    pub(super) apart: BTreeMap<SourceKey, Vec<Range<Position>>>,
}

/// Runs on their way into one file.
#[derive(Debug)]
struct RunMerge {
    /// End of the last of these runs.
    to: GatheredEnd,
    thread: JoinHandle<Result<GatheredRun, RunFailure>>,
}

/// Why runs could not be written to a file, and which run is damaged, if any is.
#[derive(Debug)]
struct RunFailure {
    error: io::Error,
    damaged: Option<Arc<GatheredRun>>,
}

impl Runs {
    fn of_runs(all: Vec<Arc<GatheredRun>>) -> Arc<Self> {
        let reached = all.last().map_or(GatheredEnd::NOTHING, |run| run.span.to);
        let mut apart: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for (source, range) in apart_of(&all) {
            apart.entry(source).or_default().push(range);
        }
        Arc::new(Self {
            all,
            reached,
            apart,
        })
    }

    /// Returns how far entries are gathered.
    pub(super) fn reached(&self) -> GatheredEnd {
        self.reached
    }
}

/// Outcome of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GatherStep {
    /// Entries are gathered up to the graph's commit, or gathering is off.
    Done,
    /// Commits are left for the next step.
    More,
    /// Commits are left, but memory has no room for their entries until a file is written.
    Waits,
}

/// Entries of one stretch of the log, and the timelines that have them.
#[derive(Debug, Default)]
struct GatherStretch {
    entries: Vec<GainedEntry>,
    /// Timelines, each with the index of one of their entries.
    pairs: Vec<(TimelineKey, u32)>,
    apart: PositionsApart,
}

impl GatheredLists {
    /// Opens the runs in a folder that fit a log.
    ///
    /// # Errors
    ///
    /// Returns why the log cannot be read. A folder that cannot be read has no runs.
    pub(super) fn open(folder: Option<&Path>, log: &dyn EntryLog) -> Result<Self, LogError> {
        let mut all = vec![];
        if let Some(folder) = folder {
            all = open_runs(folder, |commit| log.chain(commit))?;
        }
        Ok(Self {
            folder: folder.map(Into::into),
            runs: RwLock::new(Runs::of_runs(all)),
            entries: Arc::new(entry_blocks()),
            files: Mutex::default(),
        })
    }

    /// Returns the runs of now.
    pub(super) fn runs(&self) -> Arc<Runs> {
        Arc::clone(&self.runs.read())
    }

    /// Gathers again from a damaged run on.
    pub(super) fn begin_anew_at(&self, damaged: &Arc<GatheredRun>, error: &io::Error) {
        let mut runs = self.runs.write();
        let found = runs.all.iter().position(|run| Arc::ptr_eq(run, damaged));
        let Some(place) = found else {
            // Another reader has noticed the damage already.
            return;
        };
        warn!(%error, "some of the lists of timelines are gathered again");
        let mut all = runs.all.clone();
        // Later runs go as well, because runs follow one another without a hole.
        let given_up = all.split_off(place);
        *runs = Runs::of_runs(all);
        // Unlocked here, so that readers need not wait for the disk.
        drop(runs);
        remove_files(&given_up);
    }

    /// Gathers the next stretch of the log, up to the graph's commit.
    ///
    /// # Errors
    ///
    /// Returns why the log cannot be read, or a file not be written.
    pub(super) fn step(
        &self,
        graph: &RwLock<Graph>,
        log: &dyn EntryLog,
        fan_out: FanOut,
    ) -> Result<GatherStep, ViewError> {
        let (Some(folder), Some(followers_max)) = (&self.folder, followers_max(fan_out)) else {
            return Ok(GatherStep::Done);
        };
        self.take_merged();
        let before = self.runs();
        let applied = graph.read().applied;
        let next = before.reached.commit.next();
        if next > applied {
            return Ok(GatherStep::Done);
        }
        // Runs that cannot be written to files must not fill the memory.
        if in_memory(&before.all) > 4 * MEMORY_MAX {
            self.merge_runs(folder, log)?;
            return Ok(GatherStep::Waits);
        }
        let mut outlines = log.recent_outlines(next, COMMITS_TOGETHER)?;
        // The log may be ahead of the graph, and only the graph knows which timelines have an
        // entry.
        outlines.retain(|outline| outline.number <= applied);
        let mut stretch = GatherStretch::default();
        let (mut to, mut last) = (before.reached, next);
        for outline in &outlines {
            last = outline.number;
            to = stretch.gather_rest(outline, to, graph, &before, followers_max);
            if to.commit < outline.number || stretch.pairs.len() >= PAIRS_MAX {
                break;
            }
        }
        if to == before.reached {
            return Err(LogError::damaged(format!("commit {next} is missing")).into());
        }
        let missing = || LogError::damaged("the chain hash of a commit is missing");
        let span = LogStretch {
            from: before.reached.instant,
            to,
            last,
            chain: log.chain(last)?.ok_or_else(missing)?,
        };
        let run = stretch.into_run(span);
        self.add_run(&before, run.map_err(failed("gather", folder))?);
        self.merge_runs(folder, log)?;
        Ok(if to.commit < applied {
            GatherStep::More
        } else {
            GatherStep::Done
        })
    }

    /// Adds the next run, unless the runs have changed since `before`.
    fn add_run(&self, before: &Arc<Runs>, run: GatheredRun) {
        let mut runs = self.runs.write();
        if Arc::ptr_eq(&runs, before) {
            let mut all = before.all.clone();
            all.push(Arc::new(run));
            *runs = Runs::of_runs(all);
        }
    }

    /// Replaces the inputs of finished merges by their runs.
    fn take_merged(&self) {
        let finished: Vec<RunMerge> = {
            let mut files = self.files.lock();
            let is_finished = |merging: &mut RunMerge| merging.thread.is_finished();
            files.merging.extract_if(.., is_finished).collect()
        };
        for merging in finished {
            match merging.thread.join() {
                Ok(Ok(run)) => self.replace_runs(run),
                Ok(Err(RunFailure { error, damaged })) => {
                    if let Some(damaged) = damaged {
                        self.begin_anew_at(&damaged, &error);
                        continue;
                    }
                    warn!(%error, "lists of timelines cannot be written; they stay in memory, and it is tried again");
                    self.files.lock().not_before = Some(Instant::now() + PATIENCE);
                }
                Err(_) => {
                    warn!("merging lists of timelines failed; it is tried again");
                    self.files.lock().not_before = Some(Instant::now() + PATIENCE);
                }
            }
        }
    }

    /// Puts a merged run in the place of the runs of which it was made.
    fn replace_runs(&self, run: GatheredRun) {
        let mut runs = self.runs.write();
        let begin = runs
            .all
            .iter()
            .position(|one| one.span.from == run.span.from);
        let end = runs.all.iter().position(|one| one.span.to == run.span.to);
        let place = begin.zip(end).filter(|(begin, end)| begin <= end);
        let mut all = runs.all.clone();
        let run = Arc::new(run);
        let replaced: Vec<_> = match place {
            Some((begin, end)) => all.splice(begin..=end, [run]).collect(),
            // Some of the inputs were gathered anew, so the merged run fits nowhere.
            None => vec![run],
        };
        if place.is_some() {
            *runs = Runs::of_runs(all);
        }
        drop(runs);
        // The files of the inputs are removed last, when the merged run is durable. Readers that
        // have these files open can still read them.
        remove_files(&replaced);
    }

    /// Merges the newest runs where that is due: runs that stay in memory at once, other runs on a
    /// thread.
    fn merge_runs(&self, folder: &Path, log: &dyn EntryLog) -> Result<(), ViewError> {
        let runs = self.runs();
        let mut files = self.files.lock();
        // Runs that are being merged are not touched. New runs are only added behind them.
        let merged = files.merging.iter().map(|merging| merging.to.instant).max();
        let waits = files.not_before.is_some_and(|then| Instant::now() < then);
        // A long merge must not hold up new runs.
        let may_write = !waits && files.merging.len() < MERGES_MAX;
        let begin = runs.all.partition_point(|run| {
            Some(run.span.to.instant) <= merged || !may_write && run.path().is_some()
        });
        let free = runs.all.get(begin..).unwrap_or_default();
        let goes_out = may_write && (in_memory(free) >= MEMORY_MAX || is_overdue(&runs.all));
        let inputs = wanted_merge(free, goes_out).to_vec();
        let (Some(span), Some(newest)) = (span_of(&inputs), inputs.last()) else {
            return Ok(());
        };
        let bytes: u64 = inputs.iter().map(|run| run.bytes()).sum();
        let stays = !goes_out && inputs.iter().all(|run| run.path().is_none());
        if inputs.len() == 1 && (stays || newest.path().is_some()) {
            return Ok(());
        }
        if stays {
            drop(files);
            let out = run::merge(&inputs, |entries| RunWriter::begin(vec![], entries));
            let run = out.and_then(|out| out.into_memory(span, apart_of(&inputs)));
            self.replace_runs(run.map_err(failed("merge lists of", folder))?);
            return Ok(());
        }
        // On a disk that is nearly full, the log needs the rest.
        if !may_write || !log.room_for(bytes)?.is_enough() {
            return Ok(());
        }
        let to = folder.to_path_buf();
        let thread = std::thread::Builder::new()
            .name("timelines".into())
            .spawn(move || write_merged(&to, &inputs, span))
            .map_err(failed("merge lists of", folder))?;
        files.merging.push(RunMerge {
            to: span.to,
            thread,
        });
        Ok(())
    }

    /// Waits for the files that are being written.
    #[cfg(test)]
    pub(super) fn wait(&self) {
        while !self.files.lock().merging.is_empty() {
            self.take_merged();
            std::thread::yield_now();
        }
    }

    /// Returns the numbers of runs in files and in memory.
    #[cfg(test)]
    pub(super) fn sizes(&self) -> (usize, usize) {
        let runs = self.runs();
        let files = runs.all.iter().filter(|run| run.path().is_some()).count();
        (files, runs.all.len() - files)
    }
}

/// Returns the number of followers above which a feed's entries are not gathered; `None` if no
/// entries are gathered at all.
fn followers_max(fan_out: FanOut) -> Option<u64> {
    match fan_out {
        FanOut::Write => Some(u64::MAX),
        FanOut::Auto => Some(FOLLOWERS_MAX),
        FanOut::Read | FanOut::Cache => None,
    }
}

/// Opens the runs of a folder that follow one another from the beginning of the log on. Removes all
/// other files, except those that cannot be read now.
#[expect(
    clippy::disallowed_methods,
    reason = "the next opening removes a run that comes back"
)]
fn open_runs(
    folder: &Path,
    chain: impl Fn(CommitNumber) -> Result<Option<ChainHash>, LogError>,
) -> Result<Vec<Arc<GatheredRun>>, LogError> {
    // A missing folder has no runs. Any other trouble comes up when a run is written.
    let (mut found, mut rest) = (vec![], vec![]);
    for item in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = item.path();
        match GatheredRun::open(&path) {
            Ok(run) => found.push((run, path)),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => rest.push(path),
            // The file may be whole, and stays for the next start.
            Err(error) => {
                warn!(%error, path = %visible_path(&path).display(), "lists of timelines cannot be read");
            }
        }
    }
    // A crash during a merge can leave the inputs beside the output. Of runs with the same
    // beginning, the longest counts.
    found.sort_by_key(|(run, _)| (run.span.from, std::cmp::Reverse(run.span.to.instant)));
    let (mut all, mut reached) = (vec![], GatheredEnd::NOTHING);
    for (run, path) in found {
        let is_next = run.span.from == reached.instant;
        let of_log = chain(run.span.last)?;
        if is_next && of_log == Some(run.span.chain) {
            reached = run.span.to;
            all.push(Arc::new(run));
        } else {
            rest.push(path);
        }
    }
    for path in rest {
        // A file that stays is looked at again with the next start.
        let _gone = fs::remove_file(path);
    }
    Ok(all)
}

/// Returns the newest runs that are merged into one run: each run that is not larger than all newer
/// runs together, and with `goes_out` also the runs in memory.
fn wanted_merge(free: &[Arc<GatheredRun>], goes_out: bool) -> &[Arc<GatheredRun>] {
    let (mut bytes, mut entries) = (0, 0);
    let count = free.iter().rev().take_while(|run| {
        let joins = run.bytes() <= bytes || bytes == 0 || goes_out && run.path().is_none();
        bytes += run.bytes().max(1);
        entries += u64::from(run.entries);
        joins && entries <= ENTRIES_MAX
    });
    free.get(free.len() - count.count()..).unwrap_or_default()
}

fn in_memory(all: &[Arc<GatheredRun>]) -> u64 {
    let in_memory = all.iter().filter(|run| run.path().is_none());
    in_memory.map(|run| run.bytes()).sum()
}

/// Returns whether runs in memory have so many commits that a restart would take long.
fn is_overdue(all: &[Arc<GatheredRun>]) -> bool {
    let newest = all.last().map_or(0, |run| run.span.to.commit.0);
    let in_files = all.iter().rev().find(|run| run.path().is_some());
    newest - in_files.map_or(0, |run| run.span.to.commit.0) >= MEMORY_COMMITS
}

fn span_of(runs: &[Arc<GatheredRun>]) -> Option<LogStretch> {
    let (first, last) = runs.first().zip(runs.last())?;
    Some(LogStretch {
        from: first.span.from,
        ..last.span
    })
}

#[expect(
    clippy::disallowed_methods,
    reason = "the next opening removes a run that comes back"
)]
fn write_merged(
    folder: &Path,
    inputs: &[Arc<GatheredRun>],
    span: LogStretch,
) -> Result<GatheredRun, RunFailure> {
    let write = || {
        create_folder(folder)?;
        let written = run::merge(inputs, |entries| RunWriter::create(folder, &span, entries))?;
        written.into_file(folder, span, apart_of(inputs))
    };
    write().map_err(|error| {
        // The partial file would take room that the log may need.
        let _gone = fs::remove_file(run::partial(folder, &span));
        let is_damage = error.kind() == io::ErrorKind::InvalidData;
        // A failed merge names no run, so the inputs are read once more.
        let mut damaged = inputs
            .iter()
            .filter(|run| is_damage && run.check().is_err());
        let damaged = damaged.next().cloned();
        RunFailure { error, damaged }
    })
}

#[expect(
    clippy::disallowed_methods,
    reason = "the next opening removes a run that comes back"
)]
fn remove_files(runs: &[Arc<GatheredRun>]) {
    for path in runs.iter().filter_map(|run| run.path()) {
        if let Err(error) = fs::remove_file(path) {
            // The next start removes the file.
            warn!(%error, path = %visible_path(path).display(), "lists of timelines cannot be removed");
        }
    }
}

impl GatherStretch {
    /// Gathers the rest of a commit. Returns the new end.
    fn gather_rest(
        &mut self,
        commit: &Outline,
        from: GatheredEnd,
        graph: &RwLock<Graph>,
        before: &Runs,
        followers_max: u64,
    ) -> GatheredEnd {
        let mut instant = commit.instant;
        for change in &commit.changes {
            let ChangeOutline::Entries { feed, first, count } = change else {
                continue;
            };
            let end = instant.plus_micros(*count);
            let skipped = micros_between(instant, from.instant).min(*count);
            let source = graph.read().source(*feed);
            if let Some(source) = source {
                let range = Position(first.0 + skipped)..Position(first.0 + count);
                let at = instant.plus_micros(skipped);
                let gathered = self.gather_feed(source, range, at, graph, before, followers_max);
                if let Some(instant) = gathered {
                    // The commit number is that of the last whole commit.
                    let commit = from.commit;
                    return GatheredEnd { commit, instant };
                }
            }
            instant = end;
        }
        GatheredEnd {
            commit: commit.number,
            instant: instant.max(from.instant),
        }
    }

    /// Gathers entries of a feed. Returns the instant of the first entry that is left, if the
    /// stretch is full.
    fn gather_feed(
        &mut self,
        source: SourceKey,
        range: Range<Position>,
        instant: Timestamp,
        graph: &RwLock<Graph>,
        before: &Runs,
        followers_max: u64,
    ) -> Option<Timestamp> {
        let count = {
            let graph = graph.read();
            let followers = graph.feeds.followers(source);
            followers.map_or(0, |followers| followers.all.len())
        };
        if count == 0 || range.is_empty() {
            return None;
        }
        // A feed whose entries were apart stays apart while its followers are more than half of the
        // bound. Otherwise a feed at the bound would change with every follow.
        let stays_apart = before.apart.contains_key(&source) && count > followers_max / 2;
        if count > followers_max || stays_apart {
            self.apart.push((source, range));
            return None;
        }
        // As many entries at a time as give about a run of pairs, but at least one entry.
        let together = u64::try_from(PAIRS_MAX).unwrap_or(u64::MAX) / count;
        let mut first = range.start;
        while first < range.end {
            if self.pairs.len() >= PAIRS_MAX {
                return Some(instant.plus_micros(first.0 - range.start.0));
            }
            let end = Position(range.end.0.min(first.0 + together.max(1)));
            let at = instant.plus_micros(first.0 - range.start.0);
            self.pair_entries(source, first..end, at, graph);
            first = end;
        }
        None
    }

    /// Pairs entries with the timelines that have them.
    fn pair_entries(
        &mut self,
        source: SourceKey,
        range: Range<Position>,
        instant: Timestamp,
        graph: &RwLock<Graph>,
    ) {
        let base = u32::try_from(self.entries.len()).unwrap_or(u32::MAX);
        let before = self.pairs.len();
        let pairs = &mut self.pairs;
        each_gain(graph, source, &range, |timeline, _, had| {
            let indexes = had.start.0 - range.start.0..had.end.0 - range.start.0;
            let indexes = indexes.filter_map(|index| u32::try_from(index).ok());
            pairs.extend(indexes.map(|index| (timeline, base + index)));
        });
        // No timeline has any of these entries: the followers may have only older entries of the
        // feed.
        if self.pairs.len() == before {
            return;
        }
        let entries = range.start.0..range.end.0;
        self.entries.extend(entries.map(|at| GainedEntry {
            source,
            at: Position(at),
            instant: instant.plus_micros(at - range.start.0),
        }));
    }

    fn into_run(mut self, span: LogStretch) -> io::Result<GatheredRun> {
        let mut out = RunWriter::begin(vec![], self.entries.into_iter().map(Ok))?;
        // Lists are written timeline by timeline, and the pairs came feed by feed.
        self.pairs.sort_unstable();
        for (timeline, index) in self.pairs {
            out.add(timeline, index)?;
        }
        out.into_memory(span, self.apart)
    }
}

/// Returns the time from one instant to a later instant, in microseconds; 0 if the second instant
/// is not later.
fn micros_between(from: Timestamp, to: Timestamp) -> u64 {
    u64::try_from(i128::from(to.micros()) - i128::from(from.micros())).unwrap_or(0)
}
