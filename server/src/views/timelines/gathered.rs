//! Entries of timelines, gathered as their feeds gain them: lists in sorted runs beside the log.
//!
//! Shell: files below the view's folder, and a thread that merges them. Nobody waits for the gathering: a reader adds
//! what the feeds have gained since. So a crash, or a full disk, costs time and no entry.
//!
//! ```text
//! commits ──► pairs (timeline, entry) ──► runs in memory ──► runs in files, merged by and by
//! ```
//!
//! A run covers a stretch of the log, and the next one begins where it ends. A run is at least about as large as all
//! newer ones together, so that there are few. Files that do not fit the log, or are damaged, are removed, and the
//! stretch is gathered again from the commits.

use std::{
    collections::BTreeMap,
    fs, io,
    ops::Range,
    path::{Path, PathBuf},
    sync::Arc,
    thread::JoinHandle,
};

use parking_lot::{Mutex, RwLock};
use simplefeed_core::{
    commit::{ChangeOutline, Outline},
    feed::{CommitNumber, Position},
    history::ChainHash,
    timestamp::Timestamp,
};
use tracing::warn;

use super::{
    fan_out::FanOut,
    followers::Followers,
    graph::{Graph, Source, Timeline, each_gain},
};
use crate::{
    log::{EntryLog, LogError},
    views::{error::ViewError, files::failed},
};

pub(super) mod list;
mod run;

use run::{Apart, EntryBlocks, Gained, Reached, Run, Span, Writing, apart_of, entry_blocks};

/// Pairs from which on a run in memory ends.
const PAIRS_MAX: usize = if cfg!(test) { 2 } else { 1_000_000 };
/// Commits of a run in memory, at most.
const COMMITS_TOGETHER: usize = if cfg!(test) { 3 } else { 1_000 };
/// Bytes of runs in memory from which on they go into a file.
const MEMORY_MAX: u64 = if cfg!(test) { 200 } else { 8 * 1024 * 1024 };
/// Commits after which they do, however small they are.
const MEMORY_COMMITS: u64 = if cfg!(test) { 50 } else { 200_000 };
/// Followers above which a feed is merged by readers, where that is chosen for each feed.
const FOLLOWERS_MAX: u64 = if cfg!(test) { 1 } else { 10_000 };
/// Entries of a run, which have 32-bit indexes.
const ENTRIES_MAX: u64 = 0xffff_ffff;

/// Lists of all timelines, as far as they are gathered.
#[derive(Debug)]
pub(super) struct Gathering {
    /// Folder of the files. Without one nothing is gathered.
    folder: Option<PathBuf>,
    runs: RwLock<Arc<Runs>>,
    entries: Arc<EntryBlocks>,
    merging: Mutex<Option<Merging>>,
}

/// Runs that cover the log up to a point.
#[derive(Debug)]
pub(super) struct Runs {
    all: Vec<Arc<Run>>,
    reached: Reached,
    /// Positions of feeds that are in no run, by feed.
    apart: BTreeMap<Source, Vec<Range<Position>>>,
}

/// Runs on their way into one file.
#[derive(Debug)]
struct Merging {
    place: Range<usize>,
    thread: JoinHandle<io::Result<Run>>,
}

impl Runs {
    fn of(all: Vec<Arc<Run>>) -> Arc<Self> {
        let reached = all.last().map_or(Reached::NOTHING, |run| run.span.to);
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
    pub(super) fn reached(&self) -> Reached {
        self.reached
    }
}

/// What one stretch of the log brings to timelines.
#[derive(Debug, Default)]
struct Stretch {
    entries: Vec<Gained>,
    /// Timelines with indexes of entries.
    pairs: Vec<(Timeline, u32)>,
    apart: Apart,
}

impl Gathering {
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
            runs: RwLock::new(Runs::of(all)),
            entries: Arc::new(entry_blocks()),
            merging: Mutex::default(),
        })
    }

    /// Returns what is gathered now.
    pub(super) fn runs(&self) -> Arc<Runs> {
        Arc::clone(&self.runs.read())
    }

    /// Begins anew, since a run cannot be read.
    pub(super) fn begin_anew(&self, error: &io::Error) {
        warn!(%error, "the lists of timelines are gathered again");
        let mut runs = self.runs.write();
        for path in runs.all.iter().filter_map(|run| run.path()) {
            // A file that stays is found damaged again, or is in the way of no other.
            let _gone = fs::remove_file(path);
        }
        *runs = Runs::of(vec![]);
    }

    /// Gathers the next stretch of the log, up to the graph's commit. Returns whether there may be more.
    ///
    /// # Errors
    ///
    /// Returns why the log cannot be read, or a file not be written.
    pub(super) fn step(
        &self,
        graph: &RwLock<Graph>,
        log: &dyn EntryLog,
        fan_out: FanOut,
    ) -> Result<bool, ViewError> {
        let (Some(folder), Some(followers_max)) = (&self.folder, followers_max(fan_out)) else {
            return Ok(false);
        };
        self.take_merged();
        let before = self.runs();
        // Files that cannot be written must not fill the memory.
        if in_memory(&before.all) > 4 * MEMORY_MAX {
            self.merge(folder)?;
            return Ok(false);
        }
        let applied = graph.read().applied;
        let next = before.reached.commit.next();
        if next > applied {
            return Ok(false);
        }
        let mut outlines = log.announcements().outlines(next, COMMITS_TOGETHER, log)?;
        outlines.retain(|outline| outline.number <= applied);
        let mut stretch = Stretch::default();
        let mut to = before.reached;
        for outline in &outlines {
            to = stretch.gather(outline, to, graph, &before, followers_max);
            if to.commit < outline.number || stretch.pairs.len() >= PAIRS_MAX {
                break;
            }
        }
        if to == before.reached {
            return Err(LogError::damaged(format!("commit {next} is missing")).into());
        }
        let missing = || LogError::damaged("the chain hash of a commit is missing");
        let chain = match to.commit {
            CommitNumber(0) => ChainHash::START,
            commit => log.chain(commit)?.ok_or_else(missing)?,
        };
        let span = Span {
            from: before.reached.instant,
            to,
            chain,
        };
        let run = stretch.into_run(span);
        self.add(&before, run.map_err(failed("gather", folder))?);
        self.merge(folder)?;
        Ok(to.commit < applied)
    }

    /// Adds the next run, unless all begins anew meanwhile.
    fn add(&self, before: &Arc<Runs>, run: Run) {
        let mut runs = self.runs.write();
        if Arc::ptr_eq(&runs, before) {
            let mut all = before.all.clone();
            all.push(Arc::new(run));
            *runs = Runs::of(all);
        }
    }

    /// Replaces the inputs of a finished merge by its run.
    fn take_merged(&self) {
        let finished = self
            .merging
            .lock()
            .take_if(|merging| merging.thread.is_finished());
        let Some(Merging { place, thread }) = finished else {
            return;
        };
        match thread.join() {
            Ok(Ok(run)) => self.replace(place, run),
            Ok(Err(error)) if error.kind() == io::ErrorKind::InvalidData => self.begin_anew(&error),
            Ok(Err(error)) => {
                warn!(%error, "lists of timelines cannot be written; they stay in memory, and it is tried again");
            }
            Err(_) => warn!("merging lists of timelines failed; it is tried again"),
        }
    }

    fn replace(&self, place: Range<usize>, run: Run) {
        let mut runs = self.runs.write();
        let fits = runs.all.get(place.clone()).is_some_and(|inputs| {
            let ends = inputs.first().zip(inputs.last());
            ends.is_some_and(|(first, last)| {
                first.span.from == run.span.from && last.span.to == run.span.to
            })
        });
        let mut all = runs.all.clone();
        let replaced: Vec<_> = if fits {
            all.splice(place, [Arc::new(run)]).collect()
        } else {
            // All began anew.
            vec![Arc::new(run)]
        };
        if fits {
            *runs = Runs::of(all);
        }
        drop(runs);
        // The inputs go last: their run is durable by now. Readers that have them open still can read them.
        for path in replaced.iter().filter_map(|run| run.path()) {
            if let Err(error) = fs::remove_file(path) {
                warn!(%error, path = %path.display(), "a merged run cannot be removed");
            }
        }
    }

    /// Merges the newest runs if they call for it: small ones at once, others by a thread.
    fn merge(&self, folder: &Path) -> Result<(), ViewError> {
        let runs = self.runs();
        let mut merging = self.merging.lock();
        // Those that are being merged are not touched; new ones are only added behind.
        let free = merging.as_ref().map_or(0, |merging| merging.place.end);
        let place = wanted_merge(&runs.all, free);
        let inputs = runs.all.get(place.clone()).unwrap_or_default().to_vec();
        let (Some(span), Some(newest)) = (span_of(&inputs), inputs.last()) else {
            return Ok(());
        };
        if inputs.len() == 1 && newest.path().is_some() {
            return Ok(());
        }
        let bytes: u64 = inputs.iter().map(|run| run.bytes()).sum();
        let stays = bytes < MEMORY_MAX && inputs.iter().all(|run| run.path().is_none());
        if stays && !is_overdue(&runs.all) {
            drop(merging);
            if inputs.len() > 1 {
                let out = run::merge(&inputs, |entries| Writing::begin(vec![], entries));
                let run = out.and_then(|out| out.into_memory(span, apart_of(&inputs)));
                match run {
                    Ok(run) => self.replace(place, run),
                    Err(error) => return Err(failed("merge lists of", folder)(error)),
                }
            }
            return Ok(());
        }
        if merging.is_some() {
            return Ok(());
        }
        let to = folder.to_path_buf();
        let thread = std::thread::Builder::new()
            .name("timelines".into())
            .spawn(move || write_merged(&to, &inputs, span))
            .map_err(failed("merge lists of", folder))?;
        *merging = Some(Merging { place, thread });
        Ok(())
    }

    /// Waits for the file that is being written.
    #[cfg(test)]
    pub(super) fn wait(&self) {
        while self.merging.lock().is_some() {
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

/// Returns the number of followers above which a feed's entries are not gathered; `None` if no feed's are.
fn followers_max(fan_out: FanOut) -> Option<u64> {
    match fan_out {
        FanOut::Write => Some(u64::MAX),
        FanOut::Auto => Some(FOLLOWERS_MAX),
        FanOut::Read | FanOut::Cache => None,
    }
}

/// Opens the runs of a folder which follow one another from the beginning of the log on, and removes all other files.
fn open_runs(
    folder: &Path,
    chain: impl Fn(CommitNumber) -> Result<Option<ChainHash>, LogError>,
) -> Result<Vec<Arc<Run>>, LogError> {
    // A folder that is not there has no run; any other trouble comes up when one is written.
    let (mut found, mut rest) = (vec![], vec![]);
    for item in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = item.path();
        match Run::open(&path) {
            Ok(run) => found.push((run, path)),
            Err(_) => rest.push(path),
        }
    }
    // A crash during a merge can leave the inputs beside the output. Of runs with the same beginning, the longest counts.
    found.sort_by_key(|(run, _)| (run.span.from, std::cmp::Reverse(run.span.to.instant)));
    let (mut all, mut reached) = (vec![], Reached::NOTHING);
    for (run, path) in found {
        let is_next = run.span.from == reached.instant;
        let of_log = match run.span.to.commit {
            CommitNumber(0) => Some(ChainHash::START),
            commit => chain(commit)?,
        };
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

/// Returns the newest runs that become one, from a place on: each one not larger than all newer ones together, and those
/// in memory once they are to go into a file.
fn wanted_merge(all: &[Arc<Run>], from: usize) -> Range<usize> {
    let goes_out = in_memory(all) >= MEMORY_MAX || is_overdue(all);
    let (mut bytes, mut entries) = (0, 0);
    let free = all.get(from..).unwrap_or_default();
    let count = free.iter().rev().take_while(|run| {
        let joins = run.bytes() <= bytes || bytes == 0 || goes_out && run.path().is_none();
        bytes += run.bytes().max(1);
        entries += u64::from(run.entries);
        joins && entries <= ENTRIES_MAX
    });
    all.len() - count.count()..all.len()
}

fn in_memory(all: &[Arc<Run>]) -> u64 {
    let in_memory = all.iter().filter(|run| run.path().is_none());
    in_memory.map(|run| run.bytes()).sum()
}

/// Returns whether runs in memory have so many commits that a restart would take long.
fn is_overdue(all: &[Arc<Run>]) -> bool {
    let newest = all.last().map_or(0, |run| run.span.to.commit.0);
    let in_files = all.iter().rev().find(|run| run.path().is_some());
    newest - in_files.map_or(0, |run| run.span.to.commit.0) >= MEMORY_COMMITS
}

fn span_of(runs: &[Arc<Run>]) -> Option<Span> {
    let (first, last) = runs.first().zip(runs.last())?;
    Some(Span {
        from: first.span.from,
        ..last.span
    })
}

fn write_merged(folder: &Path, inputs: &[Arc<Run>], span: Span) -> io::Result<Run> {
    fs::create_dir_all(folder)?;
    let written = run::merge(inputs, |entries| Writing::create(folder, entries));
    let written = written.and_then(|out| out.into_file(folder, span, apart_of(inputs)));
    written.inspect_err(|_| {
        // The partial file would take room that the log may need.
        let _gone = fs::remove_file(folder.join(run::PARTIAL));
    })
}

impl Stretch {
    /// Gathers what is left of a commit. Returns how far it came.
    fn gather(
        &mut self,
        commit: &Outline,
        from: Reached,
        graph: &RwLock<Graph>,
        before: &Runs,
        followers_max: u64,
    ) -> Reached {
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
                    return Reached { commit, instant };
                }
            }
            instant = end;
        }
        Reached {
            commit: commit.number,
            instant: instant.max(from.instant),
        }
    }

    /// Gathers entries of a feed. Returns the instant of the first one that is left, if the stretch has enough.
    fn gather_feed(
        &mut self,
        source: Source,
        range: Range<Position>,
        instant: Timestamp,
        graph: &RwLock<Graph>,
        before: &Runs,
        followers_max: u64,
    ) -> Option<Timestamp> {
        let count = graph
            .read()
            .feeds
            .followers(source)
            .map_or(0, Followers::len);
        if count == 0 || range.is_empty() {
            return None;
        }
        // A feed that was apart stays so while it is large, or one at the threshold would change with every follow.
        let stays_apart = before.apart.contains_key(&source) && count > followers_max / 2;
        if count > followers_max || stays_apart {
            self.apart.push((source, range));
            return None;
        }
        // So many entries at a time as give about a run; at least one.
        let together = u64::try_from(PAIRS_MAX).unwrap_or(u64::MAX) / count;
        let mut first = range.start;
        while first < range.end {
            if self.pairs.len() >= PAIRS_MAX {
                return Some(instant.plus_micros(first.0 - range.start.0));
            }
            let end = Position(range.end.0.min(first.0 + together.max(1)));
            let at = instant.plus_micros(first.0 - range.start.0);
            self.pair(source, first..end, at, graph);
            first = end;
        }
        None
    }

    /// Pairs entries with the timelines that have them.
    fn pair(
        &mut self,
        source: Source,
        range: Range<Position>,
        instant: Timestamp,
        graph: &RwLock<Graph>,
    ) {
        let base = u32::try_from(self.entries.len()).unwrap_or(u32::MAX);
        let pairs = &mut self.pairs;
        each_gain(graph, source, &range, |timeline, _, had| {
            let indexes = had.start.0 - range.start.0..had.end.0 - range.start.0;
            let indexes = indexes.filter_map(|index| u32::try_from(index).ok());
            pairs.extend(indexes.map(|index| (timeline, base + index)));
        });
        let entries = range.start.0..range.end.0;
        self.entries.extend(entries.map(|at| Gained {
            source,
            at: Position(at),
            instant: instant.plus_micros(at - range.start.0),
        }));
    }

    fn into_run(mut self, span: Span) -> io::Result<Run> {
        let mut out = Writing::begin(vec![], self.entries.into_iter().map(Ok))?;
        self.pairs.sort_unstable();
        for (timeline, index) in self.pairs {
            out.add(timeline, index)?;
        }
        out.into_memory(span, self.apart)
    }
}

/// Returns the time from one instant to a later one, in microseconds; 0 if it is not later.
fn micros_between(from: Timestamp, to: Timestamp) -> u64 {
    u64::try_from(i128::from(to.micros()) - i128::from(from.micros())).unwrap_or(0)
}
