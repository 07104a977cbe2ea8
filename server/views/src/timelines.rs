//! Timelines: feeds made of the entries of other feeds.
//!
//! Shell: the log, a file of the graph, and files of gathered entries. The graph of follows is
//! computed from commits, and the entries of timelines follow from the graph. Reads never lag: a
//! reader that finds the graph behind the log applies the missing commits first, or fails if these
//! are too many. So an entry is in every timeline as soon as the publisher is answered, and there
//! is no queue to lose.
//!
//! A timeline is a [`Series`](simplefeed_log::Series). So the code that makes documents, archives
//! and indexes of a feed makes those of a timeline, too.

use std::{
    io,
    ops::Range,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use quick_cache::{Weighter, sync::Cache};
use simplefeed_core::{
    commit::{Change, ChangeOutline, Commit, Outline},
    entry::Entry,
    feed::{CommitNumber, DocumentName, DocumentNumber, FeedKey, FeedName, Position, Revision},
    follow::FollowItem,
    plan::{FeedHead, OpenDocument, Opening},
    settings::Settings,
    timeline::{
        Place,
        cuts::{Cut, CutCourse, Cuts, Sequence as _, no_history, revision_of, spell_of},
    },
};
use simplefeed_log::{
    EntryLog, LogError, PlacedEntry, durable::create_folder, pages::Filling, settings_of,
};

use crate::{
    error::ViewError,
    files::failed,
    shown::{SupIdentity, TimelineSources},
};

mod entries;
pub mod fan_out;
mod followers;
mod gathered;
mod graph;
pub mod lists;
pub mod merged;
mod newest;
pub mod following;
mod reading;
mod snapshot;

use entries::EntryCache;
use fan_out::{FanOut, Keeping};
use followers::TimelineKey;
use gathered::{
    GatherStep, GatheredLists,
    list::{GatheredList, ListFailure},
};
use graph::{Graph, each_gain};
use newest::{Gains, NewestOfTimeline};
use reading::{TimelineMoment, TimelineReader, Titles};

/// Name of the file of the graph.
const SNAPSHOT: &str = "graph";
/// Number of commits, and of new timelines, from which on the file is written again.
const SNAPSHOT_COMMITS: u64 = 200_000;
const SNAPSHOT_TIMELINES: usize = 10_000;
/// Number of commits, and of new timelines, from which on a shutdown writes the file, so that the
/// next opening does not read these again.
const STOPPED_COMMITS: u64 = if cfg!(test) { 5 } else { 5_000 };
const STOPPED_TIMELINES: usize = 1_000;
/// Name of the folder of the gathered entries.
const RUNS: &str = "runs";
/// Approximate size of a timeline in memory, in bytes, without entries and documents.
const KEPT_BYTES: u64 = 1_000;
/// Maximum number of feeds for which memory keeps whether they are timelines.
const KINDS_MAX: usize = 100_000;
/// Maximum number of feeds that are watched one by one for a timeline.
const SOURCES_MAX: usize = 500;
/// Number of steps of the gathering after which the graph catches up again.
const STEPS_TOGETHER: usize = 16;
/// Maximum number of commits that are applied under one lock.
const COMMITS_TOGETHER: usize = 1_000;

/// The timelines of a log.
pub struct Timelines {
    log: Arc<dyn EntryLog>,
    /// File of the graph; without a file the graph is always computed from the first commit on.
    snapshot: Option<PathBuf>,
    /// Last commit that the file reaches, and the number of timelines in the file.
    written: Mutex<(CommitNumber, usize)>,
    /// Whether the log has any timeline. As long as there is no timeline, nothing is read.
    exist: AtomicBool,
    graph: RwLock<Graph>,
    /// Recent entries of all feeds, up to the graph's commit. The lock of the graph is taken before
    /// this lock.
    gains: Mutex<Gains>,
    /// Last commit that the graph has, known without the lock of the graph.
    applied: AtomicU64,
    /// Entries of timelines, as far as they are gathered.
    gathering: GatheredLists,
    fan_out: FanOut,
    entries: EntryCache,
    kept: Cache<FeedKey, TimelineShelf, ShelfWeight>,
    /// For feeds that were asked for lately, whether each is a timeline. The answer never changes.
    kinds: Cache<FeedKey, bool>,
}

/// Maximum number of commits by which the graph may be behind for a reader, or the writer, to catch
/// up by itself.
const BEHIND_MAX: u64 = 50_000;

/// Known documents of a timeline, with their size in bytes as last counted.
#[derive(Clone, Default)]
struct TimelineShelf {
    kept: Arc<Mutex<KnownDocuments>>,
    bytes: u64,
}

#[derive(Clone)]
struct ShelfWeight;

impl Weighter<FeedKey, TimelineShelf> for ShelfWeight {
    fn weight(&self, _: &FeedKey, shelf: &TimelineShelf) -> u64 {
        KEPT_BYTES + shelf.bytes
    }
}

/// Documents of a timeline, as far as they are known.
#[derive(Debug, Default)]
struct KnownDocuments {
    /// `TimelineMoment::changes` of the state from which the course was made.
    changes: (usize, usize, usize),
    course: Option<Arc<CutCourse>>,
    cuts: Cuts,
    newest: Option<NewestOfTimeline>,
}

impl KnownDocuments {
    fn weight_bytes(&self) -> u64 {
        let newest = self.newest.as_ref().map_or(0, NewestOfTimeline::bytes);
        u64::try_from(newest + self.cuts.bytes()).unwrap_or(u64::MAX)
    }
}

impl std::fmt::Debug for Timelines {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Timelines").finish_non_exhaustive()
    }
}

impl Timelines {
    /// Returns the timelines of a log, with the snapshot and the gathered entries in a folder if
    /// there is one.
    ///
    /// # Errors
    ///
    /// Returns why the log cannot be read.
    pub fn new(
        log: Arc<dyn EntryLog>,
        folder: Option<&Path>,
        keeping: Keeping,
    ) -> Result<Self, LogError> {
        // The log gets defaults before its first timeline, so without defaults there is no
        // timeline.
        let exist = log.defaults(Revision::FIRST)?.is_some();
        let snapshot = folder.map(|folder| folder.join(SNAPSHOT));
        let found = snapshot
            .as_ref()
            .filter(|_| exist)
            .and_then(|path| snapshot::read(path));
        let mut graph = Graph::default();
        if let Some((found, chain)) = found {
            // A file of another log, or of a longer log, is of no use: the graph is computed anew.
            let is_ours =
                found.applied <= log.head().number && log.chain(found.applied)? == Some(chain);
            if is_ours {
                graph = found;
                #[cfg(planted)]
                if crate::planted::is("graph-skips-a-commit") {
                    graph.applied = graph.applied.next().min(log.head().number);
                }
            }
        }
        let runs = folder.map(|folder| folder.join(RUNS));
        let gathering = GatheredLists::open(runs.as_deref(), &*log)?;
        let kept_max = usize::try_from(keeping.memory / KEPT_BYTES).unwrap_or(usize::MAX);
        Ok(Self {
            log,
            gathering,
            fan_out: keeping.fan_out,
            snapshot,
            written: Mutex::new((graph.applied, graph.timelines.len())),
            exist: AtomicBool::new(exist),
            applied: AtomicU64::new(graph.applied.0),
            gains: Mutex::new(Gains::after(graph.applied)),
            graph: RwLock::new(graph),
            entries: EntryCache::default(),
            kept: Cache::with_weighter(kept_max, keeping.memory, ShelfWeight),
            kinds: Cache::new(KINDS_MAX),
        })
    }

    /// Takes note of a commit, which may make the first timeline.
    pub fn committed(&self, commit: &Commit) {
        // The writer puts the defaults before all other changes of a commit.
        if let Some(Change::Defaults { .. }) = commit.changes.first() {
            self.exist.store(true, Ordering::Release);
        }
    }

    /// Returns the items that a timeline follows now, or `None` if there is no such timeline.
    ///
    /// # Errors
    ///
    /// Returns why the log cannot be read.
    pub fn items(&self, timeline: FeedKey) -> Result<Option<Vec<FollowItem>>, LogError> {
        let graph = self.read_graph()?;
        let Some((_, state)) = graph.timeline(timeline) else {
            return Ok(None);
        };
        let items = state.following.items().filter_map(|item| match item {
            FollowItem::Feed(source) => Some(FollowItem::Feed(graph.feeds.get(source)?.key)),
            FollowItem::Pattern(pattern) => Some(FollowItem::Pattern(pattern)),
        });
        Ok(Some(items.collect()))
    }

    /// Catches up with the log, writes the graph to its file if much has changed since the last
    /// write, and gathers entries as long as `goes_on` returns true. `stops` returns whether the
    /// server shuts down. Returns whether all is done.
    ///
    /// # Errors
    ///
    /// Returns why the log cannot be read, or a file not be written.
    fn keep_course(
        &self,
        stops: impl Fn() -> bool,
        goes_on: impl Fn() -> bool,
    ) -> Result<bool, ViewError> {
        if !self.exist.load(Ordering::Acquire) {
            return Ok(true);
        }
        while goes_on() {
            // The graph catches up before much is gathered, and again after some steps, because a
            // long log takes hours.
            drop(self.caught_up()?);
            // A graph that cannot be written does not hold up the lists, so the error is returned
            // later.
            let kept = self.keep_graph(stops());
            for _ in 0..STEPS_TOGETHER {
                match self.gathering.step(&self.graph, &*self.log, self.fan_out)? {
                    GatherStep::Done => return kept.map(|()| true),
                    GatherStep::Waits => return kept.map(|()| false),
                    GatherStep::More => {}
                }
            }
            kept?;
        }
        // The time for work at a shutdown is over. The graph is written nevertheless, or the next
        // opening takes longer.
        self.keep_graph(stops())?;
        Ok(false)
    }

    /// Writes the graph to its file if the file is far behind, or behind by less while the server
    /// `stops`.
    fn keep_graph(&self, stops: bool) -> Result<(), ViewError> {
        let graph = self.caught_up()?;
        let Some(path) = &self.snapshot else {
            return Ok(());
        };
        let (commits, timelines) = *self.written.lock();
        let new_timelines = graph.timelines.len() - timelines.min(graph.timelines.len());
        // The larger the file is, the more timelines must be new before it is written again.
        let is_due = graph.applied.0 - commits.0 >= SNAPSHOT_COMMITS
            || new_timelines >= SNAPSHOT_TIMELINES.max(timelines / 10)
            || commits == CommitNumber(0)
            || stops
                && (graph.applied.0 - commits.0 >= STOPPED_COMMITS
                    || new_timelines >= STOPPED_TIMELINES);
        if !is_due {
            return Ok(());
        }
        let now = (graph.applied, graph.timelines.len());
        let missing = || LogError::damaged("the chain hash of a commit is missing");
        let chain = self.log.chain(graph.applied)?.ok_or_else(missing)?;
        let bytes = snapshot::bytes_of(&graph, chain);
        // Unlocked here, so that nobody waits for the disk.
        drop(graph);
        let folder = path.parent().unwrap_or(path);
        create_folder(folder).map_err(failed("create", folder))?;
        snapshot::write(path, &bytes).map_err(failed("write", path))?;
        // Noted after the write, so that a failed write is tried again.
        *self.written.lock() = now;
        Ok(())
    }

    /// Returns the graph after every commit that readers see.
    ///
    /// Fails in a server that has many commits to apply, as at the first timeline of a long log,
    /// because nobody is to wait for minutes.
    fn read_graph(&self) -> Result<RwLockReadGuard<'_, Graph>, LogError> {
        let has_follower = self.snapshot.is_some();
        if has_follower && !self.is_near() {
            return Err(LogError::Behind);
        }
        self.caught_up()
    }

    fn caught_up(&self) -> Result<RwLockReadGuard<'_, Graph>, LogError> {
        // Commits that come later are left to later readers, so nobody waits for ever.
        let head = self.log.head().number;
        loop {
            let graph = self.graph.read();
            if graph.applied >= head {
                return Ok(graph);
            }
            drop(graph);
            // Others may catch up between the locks, too.
            self.catch_up(&mut self.graph.write(), head)?;
        }
    }

    /// Applies a limited number of the next commits, because others wait for the lock.
    fn catch_up(&self, graph: &mut Graph, head: CommitNumber) -> Result<(), LogError> {
        if graph.applied >= head {
            return Ok(());
        }
        let next = graph.applied.next();
        let outlines = self.log.recent_outlines(next, COMMITS_TOGETHER)?;
        if outlines.is_empty() {
            return Err(LogError::damaged(format!("commit {next} is missing")));
        }
        for outline in &outlines {
            graph.apply(outline, &*self.log, &self.entries)?;
            self.gains.lock().note(outline, graph);
            self.applied.store(graph.applied.0, Ordering::Release);
        }
        Ok(())
    }

    /// Returns whether a feed is a timeline. Does not ask the graph, so that no fault of the graph
    /// can stop the reading of feeds.
    fn is_timeline(&self, feed: FeedKey) -> Result<bool, LogError> {
        if !self.exist.load(Ordering::Acquire) {
            return Ok(false);
        }
        if let Some(is_one) = self.kinds.get(&feed) {
            return Ok(is_one);
        }
        let Some(head) = self.log.feed(feed)? else {
            return Ok(false);
        };
        let is_one = settings_of(&*self.log, feed, head.revision)?.is_timeline();
        self.kinds.insert(feed, is_one);
        Ok(is_one)
    }

    /// Returns the key and settings of a feed or timeline, from the log alone.
    ///
    /// # Errors
    ///
    /// Returns why the log cannot be read.
    pub fn settings_now(&self, feed: &FeedName) -> Result<Option<(FeedKey, Settings)>, LogError> {
        let Some(head) = self.log.named(feed)? else {
            return Ok(None);
        };
        let settings = settings_of(&*self.log, head.feed, head.revision)?;
        Ok(Some((head.feed, settings)))
    }

    /// Calls `look` with a timeline as it is now.
    fn with_timeline<T>(
        &self,
        timeline: FeedKey,
        look: impl Fn(&TimelineReader<'_>, &CutCourse, &mut Cuts) -> Result<T, LogError>,
    ) -> Result<Option<T>, LogError> {
        let shelf = self
            .kept
            .get_or_insert_with(&timeline, || Ok::<_, LogError>(TimelineShelf::default()))?;
        // This lock is taken before the graph's. Otherwise a reader with an older graph would find
        // newer cuts.
        let mut kept = shelf.kept.lock();
        let (outcome, broken) = self.look_through(timeline, &mut kept, &look, true);
        let outcome = match broken {
            // A run could not be read, so this reader merges the feeds instead. Damaged runs are
            // gathered again.
            Some(ListFailure { error, run }) => {
                // Other errors, such as a lack of file handles, are momentary, and the runs stay.
                if error.kind() == io::ErrorKind::InvalidData {
                    self.gathering.begin_anew_at(&run, &error);
                    self.log.announcements().wake();
                }
                self.look_through(timeline, &mut kept, &look, false).0
            }
            None => outcome,
        };
        let bytes = kept.weight_bytes();
        // The cache weighs a shelf when it is inserted, and small changes are not worth another
        // insert.
        if bytes > 2 * shelf.bytes || bytes < shelf.bytes / 2 {
            let kept = Arc::clone(&shelf.kept);
            self.kept.insert(timeline, TimelineShelf { kept, bytes });
        }
        outcome
    }

    /// Calls `look`. Also returns the failure to read gathered entries, if there was one: the
    /// outcome is void then.
    fn look_through<T>(
        &self,
        timeline: FeedKey,
        kept: &mut KnownDocuments,
        look: &impl Fn(&TimelineReader<'_>, &CutCourse, &mut Cuts) -> Result<T, LogError>,
        with_list: bool,
    ) -> (Result<Option<T>, LogError>, Option<ListFailure>) {
        let (seen, newest) = match self.seen_timeline(timeline, kept.newest.take(), with_list) {
            Ok(Some(found)) => found,
            Ok(None) => return (Ok(None), None),
            Err(error) => return (Err(error), None),
        };
        let outcome = self.look_at(&seen, newest, kept, look);
        let broken = seen.list.as_ref().and_then(GatheredList::failure);
        if outcome.is_err() || broken.is_some() {
            // Cuts and entries found after the failure may be wrong.
            *kept = KnownDocuments::default();
        }
        (outcome.map(Some), broken)
    }

    fn look_at<T>(
        &self,
        seen: &TimelineMoment,
        newest: Option<NewestOfTimeline>,
        kept: &mut KnownDocuments,
        look: impl Fn(&TimelineReader<'_>, &CutCourse, &mut Cuts) -> Result<T, LogError>,
    ) -> Result<T, LogError> {
        let course = match kept
            .course
            .take()
            .filter(|_| kept.changes == seen.changes())
        {
            Some(course) => course,
            None => Arc::new(seen.course(&*self.log)?),
        };
        kept.changes = seen.changes();
        kept.course = Some(Arc::clone(&course));
        let mut reading = TimelineReader::new(seen, newest, &self.graph, &self.entries, &*self.log);
        if reading.newest.is_none() && self.keeps_newest(seen) {
            reading.keep_newest();
        }
        let outcome = look(&reading, &course, &mut kept.cuts);
        kept.newest = reading.finish()?;
        outcome
    }

    /// Returns whether a timeline's newest entries stay in memory.
    fn keeps_newest(&self, seen: &TimelineMoment) -> bool {
        let is_wide = seen.following.sources().len() >= newest::SOURCES_MIN;
        seen.list.is_some() || self.fan_out == FanOut::Cache || is_wide
    }

    /// Returns a timeline as it is now, with its newest entries if they are known.
    fn seen_timeline(
        &self,
        timeline: FeedKey,
        newest: Option<NewestOfTimeline>,
        with_list: bool,
    ) -> Result<Option<(TimelineMoment, Option<NewestOfTimeline>)>, LogError> {
        let graph = self.read_graph()?;
        let Some((number, mut seen)) = TimelineMoment::of(&graph, timeline) else {
            return Ok(None);
        };
        // Locked together with the graph, so that the gains reach as far as the graph.
        let gains = self.gains.lock();
        if with_list && matches!(self.fan_out, FanOut::Auto | FanOut::Write) {
            seen.list = GatheredList::of(number, &seen.following, &self.gathering, &gains);
        }
        let newest =
            newest.and_then(|newest| newest.moved_on(graph.applied, &seen.following, &gains));
        drop(gains);
        // Only a merge needs the ends of the feeds.
        if newest.is_none() && seen.list.is_none() {
            seen.look_at_feeds(&graph);
        }
        Ok(Some((seen, newest)))
    }

    fn cut_of(
        &self,
        timeline: FeedKey,
        number: Option<DocumentNumber>,
    ) -> Result<Option<Cut>, LogError> {
        let cut = self.with_timeline(timeline, |reading, course, cuts| {
            Ok(cuts.cut(number, course, reading))
        })?;
        Ok(cut.flatten())
    }

    /// Returns the end of a timeline.
    fn head(&self, timeline: FeedKey) -> Result<Option<FeedHead>, LogError> {
        let head = self.with_timeline(timeline, |reading, course, cuts| {
            let Some(Cut { opening, end }) = cuts.cut(None, course, reading) else {
                return Ok(None);
            };
            let newest = reading.older(None, 1);
            let newest = newest.first().map(|delivery| delivery.place.instant());
            Ok(Some(FeedHead {
                feed: timeline,
                revision: revision_of(course.spells.len() - 1),
                next: end,
                history: no_history(course, end.0),
                open: OpenDocument {
                    opening,
                    bytes: 0,
                    lost: false,
                },
                updated: newest.unwrap_or(reading.seen.created),
            }))
        })?;
        Ok(head.flatten())
    }

    fn opening(
        &self,
        timeline: FeedKey,
        document: DocumentNumber,
    ) -> Result<Option<Opening>, LogError> {
        let cut = self.cut_of(timeline, Some(document))?;
        Ok(cut.map(|cut| cut.opening))
    }

    fn settings(
        &self,
        timeline: FeedKey,
        revision: Revision,
    ) -> Result<Option<Settings>, LogError> {
        let Some(spell) = spell_of(revision) else {
            return self.log.settings(timeline, revision);
        };
        let settings = self.with_timeline(timeline, |_, course, _| {
            let spell = course.spells.get(spell);
            Ok(spell.map(|spell| Settings::clone(&spell.settings)))
        })?;
        Ok(settings.flatten())
    }

    fn entries(&self, timeline: FeedKey, range: Range<Position>) -> Result<Vec<Entry>, LogError> {
        let entries = self.with_timeline(timeline, |reading, course, cuts| {
            let count = reading.count();
            let end = range.end.0.min(count);
            let Some(wanted) = end.checked_sub(range.start.0).filter(|wanted| *wanted > 0) else {
                return Ok(vec![]);
            };
            // To find the place of a position takes long. So only the places of document ends are
            // searched for, and these are remembered.
            let last = Position(end - 1);
            let (behind, anchor) = cuts.end_of(last, course, reading);
            let skipped = behind.min(count) - end;
            let limit = usize::try_from(wanted + skipped).unwrap_or(usize::MAX);
            let mut titles = Titles::default();
            let mut deliveries = reading.older(anchor, limit);
            deliveries.drain(
                ..usize::try_from(skipped)
                    .unwrap_or(usize::MAX)
                    .min(deliveries.len()),
            );
            let positions = (range.start.0..end).map(Position);
            let shown = positions
                .zip(deliveries.iter().rev())
                .map(|(at, delivery)| {
                    let missing = || LogError::damaged("a timeline has an entry in no document");
                    let name = DocumentName {
                        number: cuts.document_of(at).ok_or_else(missing)?,
                        epoch: course.epoch_at(delivery.place.instant()),
                    };
                    reading.show(delivery, at, name, course, &mut titles)
                });
            shown.collect()
        })?;
        Ok(entries.unwrap_or_default())
    }

    /// Returns a page of a timeline. The entries have no positions, because a count of all entries
    /// before would take a look at every feed.
    fn page(
        &self,
        timeline: FeedKey,
        anchor: Option<Place>,
        limit: i64,
    ) -> Result<Vec<PlacedEntry>, LogError> {
        let size = usize::try_from(limit.unsigned_abs()).unwrap_or(usize::MAX);
        let page = self.with_timeline(timeline, |reading, course, _| {
            let found = if limit < 0 {
                reading.newer(anchor, size)
            } else {
                reading.older(anchor, size)
            };
            let mut titles = Titles::default();
            let mut filling = Filling::of(limit.unsigned_abs());
            // A page that is full leaves out the entries that are farthest from the anchor.
            let nearest_first: Box<dyn Iterator<Item = _>> = if limit < 0 {
                Box::new(found.iter().rev())
            } else {
                Box::new(found.iter())
            };
            for delivery in nearest_first {
                if !filling.takes_more() {
                    break;
                }
                let nowhere = DocumentName {
                    number: DocumentNumber::OLDEST,
                    epoch: course.epoch_at(delivery.place.instant()),
                };
                let entry = reading.show(delivery, Position(0), nowhere, course, &mut titles)?;
                let place = delivery.place;
                filling.add(PlacedEntry { place, entry });
            }
            let mut page = filling.finish();
            if limit < 0 {
                page.reverse();
            }
            Ok(page)
        })?;
        Ok(page.unwrap_or_default())
    }

    /// Calls `add` with the number of each timeline that a commit concerns.
    fn concerned(
        &self,
        commit: &Outline,
        add: &mut dyn FnMut(TimelineKey),
    ) -> Result<(), LogError> {
        if !self.exist.load(Ordering::Acquire) {
            return Ok(());
        }
        // The graph must have the commit. The lock is dropped at once, because `each_gain` takes
        // the lock anew for each slice.
        drop(self.caught_up()?);
        for change in &commit.changes {
            if let ChangeOutline::Entries { feed, first, count } = change {
                let source = self.graph.read().source(*feed);
                let range = *first..Position(first.0 + count);
                if let Some(source) = source {
                    each_gain(&self.graph, source, &range, |number, _, _| add(number));
                }
            }
        }
        let graph = self.graph.read();
        for feed in commit.feeds() {
            if let Some((number, _)) = graph.timeline(feed) {
                add(number);
            }
        }
        Ok(())
    }

    /// Returns the number of a timeline; `None` for a feed that is no timeline.
    fn number(&self, timeline: FeedKey) -> Result<Option<TimelineKey>, LogError> {
        if !self.exist.load(Ordering::Acquire) {
            return Ok(None);
        }
        Ok(self
            .read_graph()?
            .timeline(timeline)
            .map(|(number, _)| number))
    }

    /// Returns the identities of timelines. Does not catch up with the log, because a number from
    /// [`concerned`](Self::concerned) is in the graph already.
    fn identities(&self, timelines: &[TimelineKey]) -> Vec<Option<SupIdentity>> {
        let graph = self.graph.read();
        let all = timelines.iter().map(|number| {
            let state = graph.at(*number)?;
            Some(SupIdentity {
                timeline: state.key,
                sup_id: state.sup_id,
                is_closed: state.is_closed,
            })
        });
        all.collect()
    }

    /// Returns the feeds whose entries a timeline has, or may get.
    fn sources(&self, timeline: FeedKey) -> Result<Option<TimelineSources>, LogError> {
        if !self.exist.load(Ordering::Acquire) {
            return Ok(None);
        }
        let graph = self.read_graph()?;
        let Some((_, state)) = graph.timeline(timeline) else {
            return Ok(None);
        };
        let sources = state.following.sources();
        if sources.len() > SOURCES_MAX {
            return Ok(Some(TimelineSources::Any));
        }
        let keys = sources.filter_map(|source| Some(graph.feeds.get(source)?.key));
        Ok(Some(TimelineSources::These(keys.collect())))
    }
}

/// Lookups that never wait. They return `None` where the graph lags so far behind that a caller
/// would have to wait.
impl Timelines {
    /// Returns the items that a timeline follows.
    pub fn items_at_once(&self, timeline: FeedKey) -> Option<Vec<FollowItem>> {
        self.is_near().then(|| self.items(timeline).ok())?.flatten()
    }

    /// Returns the end of a timeline as readers see it.
    pub fn head_at_once(&self, timeline: FeedKey) -> Option<FeedHead> {
        self.is_near().then(|| self.head(timeline).ok())??
    }

    /// Returns the number of timelines.
    pub fn count_at_once(&self) -> Option<u64> {
        if !self.exist.load(Ordering::Acquire) {
            return Some(0);
        }
        let graph = self.is_near().then(|| self.read_graph().ok())??;
        u64::try_from(graph.timelines.len()).ok()
    }

    /// Returns whether the graph can catch up in little time. The writer asks first, because every
    /// publisher waits for the writer.
    fn is_near(&self) -> bool {
        let head = self.log.head().number.0;
        let applied = self.applied.load(Ordering::Acquire);
        head - applied.min(head) <= BEHIND_MAX
    }
}

#[cfg(test)]
mod tests;
