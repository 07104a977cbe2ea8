//! The feeds and timelines of a log, as lists show them.
//!
//! Shell: memory behind locks. One thread reads the log once; commits keep the rows current. A list
//! therefore reads nothing of a feed that the list does not show, and no timing reveals such a
//! feed.

mod by_name;

use std::{
    collections::HashMap,
    hint::black_box,
    ops::Bound,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use parking_lot::{Mutex, RwLock};
use simplefeed_core::{
    commit::{Change, Commit},
    feed::{FeedId, FeedKey, FeedName, FeedPattern, Position},
    limits::CATALOGUE_FEEDS_MAX,
    settings::Settings,
};
use simplefeed_log::{EntryLog, LogError, settings_of};
use simplefeed_resource::Generation;

use self::by_name::ByName;

/// Characters that two names have in common if they are next to each other.
const NEAR_CHARS: usize = 2;
/// Names on either side that are next to another one.
const NEAR_MAX: usize = 3;
/// Places on either side of a row, where the rest of the row's commit is most of the time.
const TOGETHER: usize = 32;
/// Counter of the commits that change names, titles or follows.
const NAMES_COUNTER: usize = 0;
/// Counter of all commits.
const COMMITS_COUNTER: usize = 1;

/// A feed or a timeline, as lists show it.
#[derive(Debug)]
pub struct CatalogueRow {
    /// Key of the feed in the log.
    pub key: FeedKey,
    /// Name of the feed, as in its URL.
    pub name: FeedName,
    /// Permanent id of the feed, unless the key tells the id.
    id: Option<FeedId>,
    /// Whether the feed is a timeline.
    pub is_timeline: bool,
    /// Whether a reader needs a right to see the feed.
    pub is_closed: bool,
    /// `None` if the name is the title.
    title: Option<Box<str>>,
    /// The title in lower case, as searches compare it, where that differs.
    lower: Option<Box<str>>,
    /// Entries that the feed was given, those that were lost among them; always 0 in a timeline.
    entries: AtomicU64,
}

impl CatalogueRow {
    fn new(key: FeedKey, settings: &Settings, entries: u64) -> Self {
        let title = settings.title();
        let lower = title.to_lowercase();
        Self {
            key,
            name: settings.name.clone(),
            // Most ids follow from the key: rows without them save memory where feeds are many.
            id: Some(settings.id.clone()).filter(|id| *id != FeedId::of_uuid(key.0)),
            is_timeline: settings.is_timeline(),
            is_closed: settings.is_closed(),
            lower: (lower != title).then(|| lower.into()),
            title: (title != settings.name.as_str()).then(|| title.into()),
            entries: AtomicU64::new(entries),
        }
    }

    /// Returns the permanent id of the feed.
    pub fn id(&self) -> FeedId {
        let id = self.id.clone();
        id.unwrap_or_else(|| FeedId::of_uuid(self.key.0))
    }

    /// Returns the title; the name if no title was chosen.
    pub fn title(&self) -> &str {
        self.title.as_deref().unwrap_or(self.name.as_str())
    }

    /// Returns the number of entries; `None` for a timeline, whose entries nobody counts.
    pub fn entries(&self) -> Option<u64> {
        (!self.is_timeline).then(|| self.entries.load(Ordering::Relaxed))
    }

    fn has_text(&self, text: &str) -> bool {
        let lower = self.lower.as_deref().unwrap_or_else(|| self.title());
        text.is_empty() || self.name.as_str().contains(text) || lower.contains(text)
    }
}

/// The feeds and timelines of a log.
pub struct Catalogue {
    log: Arc<dyn EntryLog>,
    known: RwLock<CatalogueState>,
    /// Held while the log is read, so that one thread reads it.
    reading: Mutex<()>,
    counters: Arc<[AtomicU64]>,
}

impl std::fmt::Debug for Catalogue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Catalogue").finish_non_exhaustive()
    }
}

#[derive(Debug, Default)]
enum CatalogueState {
    #[default]
    Nothing,
    /// The log is being read; these changes were committed meanwhile.
    Reading(Vec<RowChange>),
    All(CatalogueRows),
}

/// Change of a row.
#[derive(Debug)]
enum RowChange {
    Settings(FeedKey, Settings),
    /// Position that the next entry of the feed gets.
    Next(FeedKey, Position),
}

#[derive(Debug, Default)]
struct CatalogueRows {
    open: ByName,
    closed: ByName,
    /// All feeds and timelines. Timelines are in the order in which they were made, as followers
    /// are listed.
    all: Vec<(FeedKey, Arc<CatalogueRow>)>,
    /// Place of each in `all`.
    places: HashMap<FeedKey, usize>,
}

/// Result of a search: feeds that match, among those that the search looked at.
#[derive(Debug)]
pub struct RowMatches {
    /// Feeds that match, in the order of their names.
    pub matching: Vec<Arc<CatalogueRow>>,
    /// Name of the last feed that the search looked at; `None` if there was no feed.
    pub end: Option<FeedName>,
}

/// Reads a little of each row.
///
/// The rows of a large log lie anywhere in the memory. These loads overlap, while the count of an
/// `Arc` waits for each row.
fn prefetch_rows(rows: &[&Arc<CatalogueRow>]) {
    let read = |all, row: &&Arc<CatalogueRow>| {
        let name = row.name.as_str().bytes().next();
        let (_, key) = row.key.0.as_u64_pair();
        all ^ key ^ row.entries.load(Ordering::Relaxed) ^ u64::from(name.unwrap_or_default())
    };
    // Without `black_box`, the compiler leaves out loads whose sum nobody uses.
    black_box(rows.iter().fold(0, read));
}

impl CatalogueRows {
    fn take_change(&mut self, change: &RowChange) {
        match change {
            RowChange::Settings(key, settings) => {
                // A commit of settings says nothing of entries, so the count of the old row stays.
                let entries = self.row_of(*key);
                let entries = entries.map_or(0, |row| row.entries.load(Ordering::Relaxed));
                self.put_row(Arc::new(CatalogueRow::new(*key, settings, entries)));
            }
            RowChange::Next(key, next) => {
                if let Some(row) = self.row_of(*key) {
                    // A commit during the reading may be in the number that was read.
                    row.entries.fetch_max(next.0, Ordering::Relaxed);
                }
            }
        }
    }

    fn put_row(&mut self, row: Arc<CatalogueRow>) {
        let (into, other) = if row.is_closed {
            (&mut self.closed, &mut self.open)
        } else {
            (&mut self.open, &mut self.closed)
        };
        // The change may have closed or opened the feed, and no row stays in the other set.
        other.remove(row.name.as_str());
        into.insert(Arc::clone(&row));
        // A changed row keeps the place of the old one, because the order is that of creation.
        let place = *self.places.entry(row.key).or_insert(self.all.len());
        match self.all.get_mut(place) {
            Some((_, old)) => *old = row,
            None => self.all.push((row.key, row)),
        }
    }

    /// Returns a search for places of feeds, one after the other. Feeds that a caller asks for
    /// together mostly came together, those of one commit in any order. A look at the neighbours
    /// then saves a look into a map that no cache holds.
    fn places_of(&self) -> impl FnMut(FeedKey) -> Option<usize> {
        let (mut next, mut is_near) = (0_usize, false);
        move |key| {
            let is_at = |place: usize| self.all.get(place).is_some_and(|(at, _)| *at == key);
            // Scattered feeds cost two comparisons before the map; a look at more neighbours begins
            // only where the last feed was near.
            let far = 0..if is_near { TOGETHER } else { 1 };
            let near = far.flat_map(|far| [next.checked_add(far), next.checked_sub(far + 1)]);
            let near = near.flatten().find(|place| is_at(*place));
            let place = near.or_else(|| self.places.get(&key).copied())?;
            is_near = place.abs_diff(next) <= TOGETHER;
            next = place + 1;
            Some(place)
        }
    }

    fn row_of(&self, feed: FeedKey) -> Option<&Arc<CatalogueRow>> {
        self.all.get(*self.places.get(&feed)?).map(|(_, row)| row)
    }
}

impl Catalogue {
    /// Returns the catalogue of a log, of which nothing is read yet.
    pub fn new(log: Arc<dyn EntryLog>) -> Self {
        Self {
            log,
            known: RwLock::default(),
            reading: Mutex::default(),
            counters: Arc::new([AtomicU64::new(0), AtomicU64::new(0)]),
        }
    }

    /// Applies a commit that the log holds already.
    pub fn committed(&self, commit: &Commit) {
        let (mut changes, mut changes_lists) = (vec![], false);
        for change in &commit.changes {
            match change {
                Change::Settings { feed, settings, .. } => {
                    changes_lists = true;
                    changes.push(RowChange::Settings(*feed, settings.clone()));
                }
                Change::Following { .. } => changes_lists = true,
                Change::Entry { feed, at, .. } => {
                    // Entries of one feed follow each other in a batch, and only the last position
                    // counts.
                    let next = Position(at.0 + 1);
                    match changes.last_mut() {
                        Some(RowChange::Next(last, end)) if last == feed => *end = next,
                        _ => changes.push(RowChange::Next(*feed, next)),
                    }
                }
                Change::Lost { feed, next, .. } => changes.push(RowChange::Next(*feed, *next)),
                Change::Opened { .. } | Change::Epoch { .. } | Change::Defaults { .. } => {}
            }
        }
        self.take_changes(changes);
        // Behind the rows: what is read at a newer count has them.
        for (counter, is_counted) in [(NAMES_COUNTER, changes_lists), (COMMITS_COUNTER, true)] {
            if let Some(counter) = self.counters.get(counter).filter(|_| is_counted) {
                counter.fetch_add(1, Ordering::Release);
            }
        }
    }

    fn take_changes(&self, changes: Vec<RowChange>) {
        // Counts change under the lock of readers: most commits have nothing else.
        if let CatalogueState::All(rows) = &*self.known.read() {
            let mut counts = changes.iter();
            if counts.all(|change| matches!(change, RowChange::Next(..))) {
                for change in &changes {
                    if let RowChange::Next(key, next) = change
                        && let Some(row) = rows.row_of(*key)
                    {
                        row.entries.fetch_max(next.0, Ordering::Relaxed);
                    }
                }
                return;
            }
        }
        match &mut *self.known.write() {
            // The first reader finds this commit in the log.
            CatalogueState::Nothing => {}
            CatalogueState::Reading(meanwhile) => meanwhile.extend(changes),
            CatalogueState::All(rows) => {
                for change in &changes {
                    rows.take_change(change);
                }
            }
        }
    }

    /// Returns the generation of lists of names, which lasts until a name, a title or a follow
    /// changes. Rows that are read after the generation may be newer, never older.
    pub fn generation_of_names(&self) -> Generation {
        Generation::of(&self.counters, NAMES_COUNTER)
    }

    /// Returns the generation of lists with counts of entries, which lasts until the next commit.
    pub fn generation(&self) -> Generation {
        Generation::of(&self.counters, COMMITS_COUNTER)
    }

    /// Returns the rows of some feeds, in their order.
    ///
    /// # Errors
    ///
    /// See [`LogError`].
    pub fn rows(
        &self,
        keys: impl Iterator<Item = FeedKey>,
    ) -> Result<Vec<Arc<CatalogueRow>>, LogError> {
        self.with_rows(|rows| {
            let mut place_of = rows.places_of();
            let found = keys.filter_map(|key| rows.all.get(place_of(key)?).map(|(_, row)| row));
            let found: Vec<&Arc<CatalogueRow>> = found.collect();
            // Before the clones: the count of an `Arc` waits for each row, while these loads
            // overlap.
            prefetch_rows(&found);
            found.into_iter().cloned().collect()
        })
    }

    /// Returns the row of a feed.
    ///
    /// # Errors
    ///
    /// See [`LogError`].
    pub fn row(&self, feed: FeedKey) -> Result<Option<Arc<CatalogueRow>>, LogError> {
        self.with_rows(|rows| rows.row_of(feed).cloned())
    }

    /// Returns the row of the feed with a name.
    ///
    /// # Errors
    ///
    /// See [`LogError`].
    pub fn named(&self, name: &FeedName) -> Result<Option<Arc<CatalogueRow>>, LogError> {
        self.with_rows(|rows| {
            let name = name.as_str();
            let found = rows.open.get(name).or_else(|| rows.closed.get(name));
            found.cloned()
        })
    }

    /// Returns whether there is an open feed with a name; `None` as long as the log is not read. A
    /// closed feed takes the same time as no feed.
    pub fn is_open(&self, name: &FeedName) -> Option<bool> {
        match &*self.known.read() {
            // Only open names are looked at, so the time tells nothing of closed feeds.
            CatalogueState::All(rows) => Some(rows.open.get(name.as_str()).is_some()),
            CatalogueState::Nothing | CatalogueState::Reading(_) => None,
        }
    }

    /// Returns open feeds, and closed feeds that match one of `closed`, in the order of their
    /// names. The search looks at the first `max` of them behind `after`, and returns those whose
    /// name or title contains `text`.
    ///
    /// Feeds that the search does not look at cost nothing.
    ///
    /// # Errors
    ///
    /// See [`LogError`].
    pub fn find(
        &self,
        after: Option<&FeedName>,
        closed: &[FeedPattern],
        max: usize,
        text: &str,
    ) -> Result<RowMatches, LogError> {
        let from = after.map_or(Bound::Unbounded, |after| Bound::Excluded(after.as_str()));
        self.with_rows(|all| {
            let open = all.open.from(from).take(max);
            // No name behind the first `max` of each set can be among the first `max` of all.
            let mut rows: Vec<&Arc<CatalogueRow>> = open.collect();
            let opened = rows.len();
            for pattern in closed {
                let beginning = pattern.beginning();
                // A walk through all closed names before the first match would cost time for feeds
                // that the reader may not see.
                let from = match after {
                    Some(after) if after.as_str() >= beginning => from,
                    _ => Bound::Included(beginning),
                };
                let found = all.closed.from(from);
                // Names that match lie together: a name that equals the beginning comes before all
                // longer ones.
                let found = found.take_while(|row| pattern.matches(&row.name));
                rows.extend(found.take(max));
            }
            prefetch_rows(&rows);
            if rows.len() > opened {
                rows.sort_unstable_by(|one, other| one.name.cmp(&other.name));
                rows.dedup_by(|one, other| one.key == other.key);
                rows.truncate(max);
            }
            RowMatches {
                end: rows.last().map(|row| row.name.clone()),
                matching: rows
                    .into_iter()
                    .filter(|row| row.has_text(text))
                    .cloned()
                    .collect(),
            }
        })
    }

    /// Returns the open feeds whose names are next to a text that may be a name with a mistake.
    /// Never reads the log.
    pub fn near(&self, text: &str) -> Vec<FeedName> {
        let CatalogueState::All(rows) = &*self.known.read() else {
            return vec![];
        };
        let beginning: String = text.chars().take(NEAR_CHARS).collect();
        let is_near = |row: &&Arc<CatalogueRow>| row.name.as_str().starts_with(&beginning);
        let before = rows.open.before(text);
        let before = before.take_while(is_near).take(NEAR_MAX);
        let behind = rows.open.from(Bound::Included(text));
        let behind = behind.take_while(is_near).take(NEAR_MAX);
        let near = before.chain(behind).map(|row| row.name.clone());
        let mut near: Vec<FeedName> = near.collect();
        // `before` gives the last name first.
        near.sort();
        near
    }

    /// Reads the log, if nobody has yet, as long as `goes_on` says so.
    ///
    /// # Errors
    ///
    /// See [`LogError`].
    pub fn read(&self, goes_on: impl Fn() -> bool) -> Result<(), LogError> {
        let _reading = self.reading.lock();
        // Another thread may have read the log while this one waited.
        if matches!(*self.known.read(), CatalogueState::All(_)) {
            return Ok(());
        }
        *self.known.write() = CatalogueState::Reading(vec![]);
        // Unlocked while the log is read: the writer takes this lock for each commit.
        let read = read_rows(&*self.log, goes_on);
        let mut known = self.known.write();
        // Taken before an error returns, so the next caller begins again.
        let meanwhile = std::mem::take(&mut *known);
        if let (Some(mut rows), CatalogueState::Reading(changes)) = (read?, meanwhile) {
            for change in &changes {
                rows.take_change(change);
            }
            *known = CatalogueState::All(rows);
        }
        Ok(())
    }

    fn with_rows<T>(&self, look: impl FnOnce(&CatalogueRows) -> T) -> Result<T, LogError> {
        loop {
            if let CatalogueState::All(rows) = &*self.known.read() {
                return Ok(look(rows));
            }
            self.read(|| true)?;
        }
    }
}

/// Returns the rows of all feeds of a log, or `None` if `goes_on` ended the reading.
fn read_rows(
    log: &dyn EntryLog,
    goes_on: impl Fn() -> bool,
) -> Result<Option<CatalogueRows>, LogError> {
    let (mut rows, mut timelines) = (CatalogueRows::default(), vec![]);
    let mut after: Option<FeedName> = None;
    while goes_on() {
        let found = log.feeds(after.as_ref(), CATALOGUE_FEEDS_MAX)?;
        let Some((last, _)) = found.last() else {
            // Followers are listed in the order in which the timelines were made, within a commit
            // in any order. In this order, rows that are read together lie together.
            timelines.sort_unstable_by_key(|(made, _)| *made);
            let mut timelines = timelines.into_iter();
            // A server that stops does not wait until the rows of all timelines are made.
            while goes_on() {
                let Some((_, row)) = timelines.next() else {
                    return Ok(Some(rows));
                };
                rows.put_row(Arc::new(row));
            }
            return Ok(None);
        };
        after = Some(last.clone());
        for (_, head) in &found {
            let settings = settings_of(log, head.feed, head.revision)?;
            let row = CatalogueRow::new(head.feed, &settings, head.next.0);
            if row.is_timeline {
                // A timeline is updated when made, and never again: `updated` tells the order.
                timelines.push((head.updated, row));
            } else {
                rows.put_row(Arc::new(row));
            }
        }
    }
    Ok(None)
}

#[cfg(test)]
pub(crate) mod tests {
    use simplefeed_core::{
        feed::{CommitNumber, DocumentNumber, Revision},
        settings::{Choices, Defaults},
        timestamp::Timestamp,
    };

    use super::*;
    use simplefeed_log::{Append as _, memory::MemoryLog};

    fn feed() -> FeedKey {
        FeedId::parse("urn:f").unwrap().key()
    }

    /// A commit that makes a feed `f`, or opens it.
    fn commit(number: u64, closed: bool) -> Commit {
        commit_of("f", number, number, closed)
    }

    fn settings(name: &str, closed: bool) -> Settings {
        Settings {
            name: FeedName::parse(name).unwrap(),
            id: FeedId::parse(&format!("urn:{name}")).unwrap(),
            choices: Arc::new(Choices {
                closed: Some(closed),
                ..Choices::default()
            }),
            defaults: Defaults::new("http://h/").into(),
            sup_id: None,
            was_closed: false,
            timeline: None,
        }
    }

    /// The row of an open feed.
    pub(super) fn row(name: &str) -> CatalogueRow {
        let settings = settings(name, false);
        CatalogueRow::new(settings.id.key(), &settings, 0)
    }

    /// A commit that gives a feed its settings, the first of which make it.
    fn commit_of(name: &str, number: u64, revision: u64, closed: bool) -> Commit {
        let settings = settings(name, closed);
        let feed = settings.id.key();
        let mut changes = vec![Change::Settings {
            feed,
            revision: Revision(revision.try_into().unwrap()),
            settings,
        }];
        if revision == 1 {
            changes.push(Change::Opened {
                feed,
                document: DocumentNumber::OLDEST,
                first: Position(0),
                revision: Revision(1),
            });
        }
        Commit {
            number: CommitNumber(number),
            instant: Timestamp::from_micros(i64::try_from(number).unwrap()),
            changes,
        }
    }

    fn names(catalogue: &Catalogue, closed: &[FeedPattern]) -> usize {
        let found = catalogue.find(None, closed, 10, "").unwrap();
        found.matching.len()
    }

    /// A closed feed is never listed, whether the log is read before, between or after the commits.
    #[test]
    fn what_is_open_follows_the_commits() {
        let name = FeedName::parse("f").unwrap();
        for asked in 0..3 {
            let log = Arc::new(MemoryLog::default());
            let catalogue = Catalogue::new(Arc::<MemoryLog>::clone(&log));
            assert_eq!(catalogue.is_open(&name), None);
            for (number, closed) in [(1, true), (2, false)] {
                if asked < number {
                    assert_eq!(names(&catalogue, &[]), 0);
                    assert_eq!(catalogue.is_open(&name), Some(false));
                }
                let generation = catalogue.generation_of_names();
                let commit = commit(number, closed);
                log.append(&commit).unwrap();
                catalogue.committed(&commit);
                assert!(!generation.is_current());
            }
            assert_eq!(names(&catalogue, &[]), 1);
            assert_eq!(names(&catalogue, &[FeedPattern::all()]), 1);
            assert_eq!(catalogue.is_open(&name), Some(true));
            assert_eq!(catalogue.row(feed()).unwrap().unwrap().name, name);
        }
    }

    /// Goal: a right to one closed feed shows that feed, and none whose name begins with its name.
    #[test]
    fn a_right_to_a_name_is_none_to_its_beginning() {
        let log = Arc::new(MemoryLog::default());
        let catalogue = Catalogue::new(Arc::<MemoryLog>::clone(&log));
        for (number, name) in (1..).zip(["u1", "u10", "u2", "u"]) {
            log.append(&commit_of(name, number, 1, true)).unwrap();
        }
        for (pattern, shown) in [
            ("u1", "u1"),
            ("u1*", "u1 u10"),
            ("u", "u"),
            ("*", "u u1 u10 u2"),
            ("v", ""),
        ] {
            let pattern = FeedPattern::parse(pattern).unwrap();
            let found = catalogue.find(None, &[pattern], 10, "").unwrap();
            let names = found.matching.iter().map(|row| row.name.as_str());
            assert_eq!(names.collect::<Vec<_>>().join(" "), shown);
        }
    }

    /// Goal: rows are those that were asked for, in that order, as they are now: next to each
    /// other, scattered, again, or not there.
    #[test]
    fn rows_come_as_they_are_asked_for() {
        let log = Arc::new(MemoryLog::default());
        let catalogue = Catalogue::new(Arc::<MemoryLog>::clone(&log));
        let take = |commit: &Commit| {
            log.append(commit).unwrap();
            catalogue.committed(commit);
        };
        let names = ["d", "b", "e", "a", "c"];
        for (number, name) in (1..).zip(names) {
            if number == 3 {
                // The first two are found in the log, the others are told.
                catalogue.read(|| true).unwrap();
            }
            take(&commit_of(name, number, 1, false));
        }
        take(&commit_of("e", 6, 2, true));
        let key = |name: &str| FeedId::parse(&format!("urn:{name}")).unwrap().key();
        for asked in ["dbeac", "caebd", "bea", "eeddbb", "dxbxeb", "x", "", "bcda"] {
            let keys = asked.chars().map(|name| key(&name.to_string()));
            let rows = catalogue.rows(keys).unwrap();
            let found: String = rows.iter().map(|row| row.name.as_str()).collect();
            assert_eq!(found, asked.replace('x', ""));
            let closed = |row: &Arc<CatalogueRow>| row.is_closed == (row.name.as_str() == "e");
            assert!(rows.iter().all(closed), "{asked}");
        }
    }
}
