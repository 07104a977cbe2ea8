//! The feeds and timelines of a log, as lists show them.
//!
//! Shell: memory behind locks. One thread reads the rows of all feeds from the log; from then on,
//! each commit updates the rows in memory. A list is made from the rows of the feeds that the list
//! shows, and from nothing else. So the time of an answer reveals no feed that is not shown.

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

/// Number of first characters that a name must share with a text to count as near.
const NEAR_CHARS: usize = 2;
/// Maximum number of near names on either side of a text.
const NEAR_MAX: usize = 3;
/// Distance in `CatalogueRows::all` within which the rows of one commit usually stand.
const TOGETHER: usize = 32;
/// Index of the counter of the commits that change settings or follows.
const NAMES_COUNTER: usize = 0;
/// Index of the counter of all commits.
const COMMITS_COUNTER: usize = 1;

/// A feed or a timeline, as lists show it.
#[derive(Debug)]
pub struct CatalogueRow {
    /// Key of the feed in the log.
    pub key: FeedKey,
    /// Name of the feed, as in its URL.
    pub name: FeedName,
    /// Permanent id of the feed; `None` if the id follows from the key.
    id: Option<FeedId>,
    /// Whether the feed is a timeline.
    pub is_timeline: bool,
    /// Whether a reader needs a right to see the feed.
    pub is_closed: bool,
    /// Title; `None` if the title is the name.
    title: Option<Box<str>>,
    /// Title in lower case, for searches; `None` if the title itself is in lower case.
    lower: Option<Box<str>>,
    /// Number of entries that the feed was given, lost ones included; always 0 in a timeline.
    entries: AtomicU64,
}

impl CatalogueRow {
    fn new(key: FeedKey, settings: &Settings, entries: u64) -> Self {
        let title = settings.title();
        let lower = title.to_lowercase();
        Self {
            key,
            name: settings.name.clone(),
            // Most ids follow from the key. Rows without these ids save memory where feeds are
            // many.
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

    /// Returns the title, or the name if no title was chosen.
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
    /// Held while the log is read, so that only one thread at a time reads the log.
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
    /// All feeds and timelines. Timelines stand in the order of their creation, because lists of
    /// followers have that order.
    all: Vec<(FeedKey, Arc<CatalogueRow>)>,
    /// Index of each feed in `all`.
    places: HashMap<FeedKey, usize>,
}

/// Result of a search: feeds that match, among those that the search looked at.
#[derive(Debug)]
pub struct RowMatches {
    /// Feeds that match, in the order of their names.
    pub matching: Vec<Arc<CatalogueRow>>,
    /// Name of the last feed that the search looked at; `None` if the search looked at no feed.
    pub end: Option<FeedName>,
}

/// Loads a part of each row into the processor's cache.
///
/// The rows of a large log lie scattered in memory. The processor overlaps these loads. A clone of
/// an `Arc`, in contrast, changes a count in the row, and so waits until the row is loaded.
fn prefetch_rows(rows: &[&Arc<CatalogueRow>]) {
    let read = |all, row: &&Arc<CatalogueRow>| {
        let name = row.name.as_str().bytes().next();
        let (_, key) = row.key.0.as_u64_pair();
        all ^ key ^ row.entries.load(Ordering::Relaxed) ^ u64::from(name.unwrap_or_default())
    };
    // Without `black_box`, the compiler would leave out these loads, because nobody uses the
    // result.
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
                    // If the commit came while the log was read, the number that was read may
                    // include the commit already.
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
        // The change may have closed or opened the feed, so the old row may be in the other set.
        other.remove(row.name.as_str());
        into.insert(Arc::clone(&row));
        // A changed row keeps its index, because timelines stand in the order of their creation.
        let place = *self.places.entry(row.key).or_insert(self.all.len());
        match self.all.get_mut(place) {
            Some((_, old)) => *old = row,
            None => self.all.push((row.key, row)),
        }
    }

    /// Returns a function that finds the indexes of feeds, one feed after the other. The feeds that
    /// a caller asks for usually stand near each other, in any order within one commit. A
    /// comparison with the neighbours of the last index then saves a lookup in the map, which is
    /// too large for the caches.
    fn places_of(&self) -> impl FnMut(FeedKey) -> Option<usize> {
        let (mut next, mut is_near) = (0_usize, false);
        move |key| {
            let is_at = |place: usize| self.all.get(place).is_some_and(|(at, _)| *at == key);
            // For scattered feeds, only two neighbours are compared before the map is asked. More
            // neighbours are compared only if the last feed was near the feed before.
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
    /// Returns the catalogue of a log. Nothing of the log is read yet.
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
        // The counters grow after the rows have changed, so that whoever sees the new count sees
        // the new rows.
        for (counter, is_counted) in [(NAMES_COUNTER, changes_lists), (COMMITS_COUNTER, true)] {
            if let Some(counter) = self.counters.get(counter).filter(|_| is_counted) {
                counter.fetch_add(1, Ordering::Release);
            }
        }
    }

    fn take_changes(&self, changes: Vec<RowChange>) {
        // Most commits change only counts of entries, for which the lock of readers is enough.
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
            // The first reader of the catalogue reads the log, which has this commit already.
            CatalogueState::Nothing => {}
            CatalogueState::Reading(meanwhile) => meanwhile.extend(changes),
            CatalogueState::All(rows) => {
                for change in &changes {
                    rows.take_change(change);
                }
            }
        }
    }

    /// Returns the generation of lists of names, which lasts until a commit changes settings or
    /// follows. Rows that are read after this call may be newer than the generation, never older.
    pub fn generation_of_names(&self) -> Generation {
        Generation::of(&self.counters, NAMES_COUNTER)
    }

    /// Returns the generation of lists with counts of entries, which lasts until the next commit.
    pub fn generation(&self) -> Generation {
        Generation::of(&self.counters, COMMITS_COUNTER)
    }

    /// Returns the rows of some feeds, in the order of `keys`. Unknown feeds are left out.
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
            // These loads overlap, while each clone waits until its row is loaded.
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

    /// Returns whether there is an open feed with a name; `None` as long as the log is not read.
    /// The lookup takes the same time for a closed feed as for a missing feed.
    pub fn is_open(&self, name: &FeedName) -> Option<bool> {
        match &*self.known.read() {
            // Only open names are searched, so the time tells nothing of closed feeds.
            CatalogueState::All(rows) => Some(rows.open.get(name.as_str()).is_some()),
            CatalogueState::Nothing | CatalogueState::Reading(_) => None,
        }
    }

    /// Searches the open feeds, and the closed feeds that match one of `closed`, in the order of
    /// their names. The search looks at the first `max` of these feeds behind `after`. Of these,
    /// the search returns the feeds whose name or title contains `text`.
    ///
    /// All other feeds cost no time.
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
                // The names that match a pattern follow each other without a gap. A name that
                // equals the beginning comes before all longer names.
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

    /// Returns names of open feeds for a text that may be a misspelt name: the nearest on either
    /// side that begin with the same characters. Never reads the log.
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
        // `before` gives the last names first.
        near.sort();
        near
    }

    /// Reads the log, unless that is done already. Gives up once `goes_on` returns false.
    ///
    /// # Errors
    ///
    /// See [`LogError`].
    pub fn read(&self, goes_on: impl Fn() -> bool) -> Result<(), LogError> {
        let _reading = self.reading.lock();
        // Another thread may have read the log while this thread waited.
        if matches!(*self.known.read(), CatalogueState::All(_)) {
            return Ok(());
        }
        *self.known.write() = CatalogueState::Reading(vec![]);
        // `known` is unlocked while the log is read, because the writer needs that lock for each
        // commit.
        let read = read_rows(&*self.log, goes_on);
        let mut known = self.known.write();
        // Taking the changes leaves `Nothing`, so after an error the next caller begins again.
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
            // Lists of followers have the order in which the timelines were made, with any order
            // within a commit. If rows have this order too, a list reads rows that stand near each
            // other.
            timelines.sort_unstable_by_key(|(made, _)| *made);
            let mut timelines = timelines.into_iter();
            // A stopping server does not wait until the rows of all timelines are made.
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
                // The head of a timeline gets `updated` when the timeline is made, and never again.
                // So `updated` tells the order.
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

    /// Goal: a right to one closed feed shows that feed, and no feed whose name begins with that
    /// feed's name.
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

    /// Goal: `rows` returns the current rows of the feeds that were asked for, in that order: of
    /// neighbours, of scattered, repeated and unknown feeds.
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
                // The first two feeds are read from the log, the others are told by commits.
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
