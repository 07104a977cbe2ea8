//! Reading of a timeline by one reader: the entries in their order, and the documents that they are
//! in.
//!
//! Shell: the log, and the graph behind a lock. A reader copies a part of the graph under the lock,
//! and merges entries without the lock.

use std::{
    cell::{OnceCell, RefCell},
    collections::HashMap,
    sync::Arc,
};

use parking_lot::RwLock;

use simplefeed_core::{
    entry::Entry,
    feed::{CommitNumber, DocumentName, EpochNumber, FeedKey, FeedName, Position, Revision},
    settings::Settings,
    timeline::{
        Entries, FollowState, GatheredEntries, Place, TimelineEntry,
        cuts::{CutCourse, Sequence, Spell},
        showing::{EntryOrigin, shown},
    },
    timestamp::Timestamp,
};
use simplefeed_log::{LogError, Series, settings_of};

use super::{
    entries::EntryCache,
    followers::TimelineKey,
    gathered::list::GatheredList,
    graph::{Graph, Revisions, SourceKey},
    newest::{BEGIN_ENTRIES, NewestOfTimeline},
};

/// A feed whose entries a timeline has, for a merge.
#[derive(Clone, Copy, Debug)]
pub(super) struct SeenFeed {
    source: SourceKey,
    key: FeedKey,
    next: Position,
    newest: Timestamp,
}

/// A feed whose entries are shown.
#[derive(Clone, Debug)]
struct ShownFeed {
    key: FeedKey,
    name: FeedName,
    later: Revisions,
}

/// A timeline with its follows, as of a commit.
#[derive(Clone, Debug)]
pub(super) struct TimelineMoment {
    key: FeedKey,
    pub(super) created: Timestamp,
    pub(super) applied: CommitNumber,
    pub(super) following: Arc<FollowState<SourceKey>>,
    /// The timeline's entries, as far as they are gathered.
    pub(super) list: Option<GatheredList>,
    /// Ends of the feeds in the order of their keys, copied from the graph once they are asked for.
    feeds: OnceCell<Vec<SeenFeed>>,
    epochs: Vec<(Timestamp, simplefeed_core::feed::Epoch)>,
    later: Revisions,
    defaults: Revisions,
    restarted: Option<Timestamp>,
}

impl TimelineMoment {
    /// Returns a timeline as it is in a graph, and its key in that graph.
    pub(super) fn of(graph: &Graph, feed: FeedKey) -> Option<(TimelineKey, Self)> {
        let (number, timeline) = graph.timeline(feed)?;
        let seen = Self {
            key: feed,
            created: timeline.created,
            applied: graph.applied,
            feeds: OnceCell::new(),
            following: Arc::clone(&timeline.following),
            list: None,
            epochs: graph.epochs.clone(),
            later: graph.later_revisions(feed).to_vec(),
            defaults: graph.defaults.clone(),
            restarted: graph.restarted(feed),
        };
        Some((number, seen))
    }

    /// Returns numbers, one of which grows whenever the timeline's settings change.
    pub(super) fn changes(&self) -> (usize, usize, usize) {
        (self.later.len(), self.defaults.len(), self.epochs.len())
    }

    /// Copies the ends of the feeds for a merge: of all feeds, or with a list only of the feeds
    /// whose entries are apart from the list. Without a list, the copy and the timeline must come
    /// from the same lock. With a list, a later copy serves as well, because older entries never
    /// change.
    pub(super) fn look_at_feeds(&self, graph: &Graph) -> &[SeenFeed] {
        self.feeds.get_or_init(|| {
            let sources: Vec<SourceKey> = match &self.list {
                Some(list) => list.apart().iter().map(|(source, _)| *source).collect(),
                None => self.following.sources().collect(),
            };
            let feeds = sources.into_iter().filter_map(|source| {
                let state = graph.feeds.get(source)?;
                Some(SeenFeed {
                    source,
                    key: state.key,
                    next: state.next,
                    newest: state.newest,
                })
            });
            feeds.collect()
        })
    }

    /// Returns the settings and epochs that shape the timeline's documents.
    ///
    /// # Errors
    ///
    /// Returns why the log cannot be read.
    pub(super) fn course(&self, log: &dyn Series) -> Result<CutCourse, LogError> {
        // Each revision of the settings, and of the defaults, is in force from its instant on,
        // until the next revision.
        let own = [(self.created, Revision::FIRST)]
            .into_iter()
            .chain(self.later.iter().copied());
        let mut facts: Vec<(Timestamp, Fact)> = own
            .map(|(since, revision)| (since, Fact::Settings(revision)))
            .collect();
        let defaults = self.defaults.iter().copied();
        facts.extend(defaults.map(|(since, revision)| (since, Fact::Defaults(revision))));
        facts.sort_by_key(|(since, _)| *since);
        let (mut defaults, mut spells) = (None, Vec::<Spell>::new());
        for (since, fact) in facts {
            let newest = spells.last().map(|spell| &spell.settings);
            let mut settings = match (fact, newest) {
                (Fact::Settings(revision), _) => settings_of(log, self.key, revision)?,
                (Fact::Defaults(revision), newest) => {
                    let missing = || LogError::damaged(format!("defaults {}", revision.0));
                    defaults = Some(Arc::new(log.defaults(revision)?.ok_or_else(missing)?));
                    match newest {
                        Some(newest) => Settings::clone(newest),
                        // These defaults are older than the timeline.
                        None => continue,
                    }
                }
            };
            if let Some(defaults) = &defaults {
                settings.defaults = Arc::clone(defaults);
            }
            let is_default = matches!(fact, Fact::Defaults(_));
            // New defaults that shape documents as before open no new document.
            if is_default && newest.is_some_and(|newest| newest.shapes_like(&settings)) {
                continue;
            }
            // Two changes at one instant have no entry between them.
            if spells.last().is_some_and(|spell| spell.since == since) {
                spells.pop();
            }
            let settings = Arc::new(settings);
            spells.push(Spell { since, settings });
        }
        Ok(CutCourse {
            spells,
            epochs: self.epochs.clone(),
            restarted: self.restarted,
        })
    }
}

#[derive(Clone, Copy)]
enum Fact {
    Settings(Revision),
    Defaults(Revision),
}

/// Access of one reader to the entries of a timeline.
pub(super) struct TimelineReader<'r> {
    pub(super) seen: &'r TimelineMoment,
    graph: &'r RwLock<Graph>,
    /// The newest entries, as of the commit at which the timeline is seen.
    pub(super) newest: Option<NewestOfTimeline>,
    shown: RefCell<HashMap<SourceKey, Arc<ShownFeed>>>,
    entries: &'r EntryCache,
    log: &'r dyn Series,
    /// First failure to read the log. The caller discards the outcome then.
    failed: RefCell<Option<LogError>>,
}

impl<'r> TimelineReader<'r> {
    pub(super) fn new(
        seen: &'r TimelineMoment,
        newest: Option<NewestOfTimeline>,
        graph: &'r RwLock<Graph>,
        entries: &'r EntryCache,
        log: &'r dyn Series,
    ) -> Self {
        Self {
            seen,
            graph,
            newest,
            shown: RefCell::default(),
            entries,
            log,
            failed: RefCell::default(),
        }
    }

    /// Returns the newest entries for the next reader, unless the log could not be read.
    ///
    /// # Errors
    ///
    /// Returns the first failure.
    pub(super) fn finish(self) -> Result<Option<NewestOfTimeline>, LogError> {
        self.failed.into_inner().map_or(Ok(self.newest), Err)
    }

    /// Finds the newest entries, so that the next reader needs no merge.
    pub(super) fn keep_newest(&mut self) {
        let (count, newest) = (self.count(), self.older(None, BEGIN_ENTRIES));
        let (applied, following) = (self.seen.applied, &self.seen.following);
        self.newest = Some(NewestOfTimeline::begin(applied, count, following, newest));
    }

    fn seen_feed(&self, source: SourceKey) -> Option<&SeenFeed> {
        let feeds = match self.seen.feeds.get() {
            Some(feeds) => feeds,
            None => self.seen.look_at_feeds(&self.graph.read()),
        };
        let found = feeds.binary_search_by_key(&source, |feed| feed.source);
        found.ok().and_then(|index| feeds.get(index))
    }

    /// Returns the name and revisions of a feed, for its entries.
    fn shown_feed(&self, source: SourceKey) -> Option<Arc<ShownFeed>> {
        if let Some(feed) = self.shown.borrow().get(&source) {
            return Some(Arc::clone(feed));
        }
        let graph = self.graph.read();
        let state = graph.feeds.get(source)?;
        let feed = Arc::new(ShownFeed {
            key: state.key,
            name: state.name.clone(),
            later: graph.later_revisions(state.key).to_vec(),
        });
        self.shown.borrow_mut().insert(source, Arc::clone(&feed));
        Some(feed)
    }

    /// Returns entries older than a place, newest first.
    pub(super) fn older(
        &self,
        anchor: Option<Place>,
        limit: usize,
    ) -> Vec<TimelineEntry<SourceKey>> {
        let Some(newest) = &self.newest else {
            return self.seen.following.older(anchor, limit, self);
        };
        let (mut found, from) = newest.older(anchor, limit);
        if from.is_some() {
            let missing = limit - found.len();
            found.extend(self.seen.following.older(from, missing, self));
        }
        found
    }

    /// Returns entries newer than a place, newest first.
    pub(super) fn newer(
        &self,
        anchor: Option<Place>,
        limit: usize,
    ) -> Vec<TimelineEntry<SourceKey>> {
        let Some(newest) = &self.newest else {
            return self.seen.following.newer(anchor, limit, self);
        };
        newest.newer(anchor, limit).unwrap_or_else(|| {
            let mut found = self.seen.following.newer(anchor, limit, self);
            // The feeds may have gained entries that `newest` does not count yet.
            found.retain(|delivery| Some(delivery.place) <= newest.end());
            found
        })
    }

    /// Returns an entry in the form in which the timeline shows it, at a position and in a
    /// document.
    ///
    /// # Errors
    ///
    /// Returns why the log cannot be read.
    pub(super) fn show(
        &self,
        delivery: &TimelineEntry<SourceKey>,
        at: Position,
        document: DocumentName,
        course: &CutCourse,
        titles: &mut Titles,
    ) -> Result<Entry, LogError> {
        let missing = || LogError::damaged("a timeline has an entry of no feed");
        let feed = self.shown_feed(delivery.feed).ok_or_else(missing)?;
        let entry = self.entries.entry(feed.key, delivery.at, self.log)?;
        let instant = delivery.place.instant();
        let settings = course.settings_at(instant).ok_or_else(missing)?;
        // The title of the feed is the one that was in force when the entry came.
        let behind = feed.later.partition_point(|(since, _)| *since <= instant);
        let revision = behind.checked_sub(1).and_then(|at| feed.later.get(at));
        let revision = revision.map_or(Revision::FIRST, |(_, revision)| *revision);
        let of_feed = titles.get_or_read(feed.key, revision, self.log)?;
        let base = format!("{}/feeds/{}/", settings.defaults.public_url, feed.name);
        let own = EpochNumber {
            number: entry.at.0,
            epoch: entry.document.epoch,
        };
        let origin = EntryOrigin {
            entry_url: &format!("{base}entries/{own}.atom"),
            feed_id: of_feed.id.as_str(),
            title: of_feed.title(),
            instant: entry.instant,
            feed_url: &format!("{base}{}", simplefeed_core::header::RECENT),
        };
        let fragment = shown(&entry.fragment, &origin, settings.embed()).map_err(|error| {
            let name = &feed.name;
            LogError::damaged(format!("entry {} of feed {name}: {error}", entry.at))
        })?;
        Ok(Entry {
            at,
            document,
            instant,
            fragment,
            ..entry
        })
    }
}

impl Entries<SourceKey> for TimelineReader<'_> {
    fn next(&self, feed: SourceKey) -> Position {
        self.seen_feed(feed).map_or(Position(0), |feed| feed.next)
    }

    fn instant(&self, feed: SourceKey, at: Position) -> Timestamp {
        let Some(feed) = self.seen_feed(feed) else {
            return Timestamp::MIN;
        };
        // A merge begins with the newest entry of each feed, whose instant needs no read.
        if at.next() == feed.next {
            return feed.newest;
        }
        let instant = self.entries.instant(feed.key, at, self.log);
        instant.unwrap_or_else(|error| {
            self.failed.borrow_mut().get_or_insert(error);
            // The caller discards the outcome of a failure, so any instant serves.
            Timestamp::MIN
        })
    }

    fn gathered(&self) -> Option<&dyn GatheredEntries<SourceKey>> {
        let list: &dyn GatheredEntries<SourceKey> = self.seen.list.as_ref()?;
        Some(list)
    }
}

impl Sequence for TimelineReader<'_> {
    fn count(&self) -> u64 {
        let newest = self.newest.as_ref().map(NewestOfTimeline::count);
        newest.unwrap_or_else(|| self.seen.following.count(self))
    }

    fn rank(&self, instant: Timestamp) -> u64 {
        let newest = self.newest.as_ref().and_then(|newest| newest.rank(instant));
        newest.unwrap_or_else(|| self.seen.following.rank(instant, self))
    }

    fn place(&self, at: Position) -> Option<Place> {
        let newest = self.newest.as_ref();
        if newest.is_some_and(|newest| at.0 >= newest.count()) {
            // The feeds may have gained more since the newest entries were taken.
            return None;
        }
        let place = newest.and_then(|newest| newest.place(at));
        place.or_else(|| self.seen.following.place(at, self))
    }

    fn behind(&self, place: Option<Place>, limit: usize) -> Vec<(Place, u64)> {
        let mut found = self.newer(place, limit);
        found.reverse();
        let sizes = found.into_iter().map(|delivery| {
            let feed = self.shown_feed(delivery.feed);
            let entry = feed.map(|feed| self.entries.entry(feed.key, delivery.at, self.log));
            let bytes = match entry {
                Some(Ok(entry)) => entry.fragment.len(),
                Some(Err(error)) => {
                    self.failed.borrow_mut().get_or_insert(error);
                    0
                }
                None => 0,
            };
            (delivery.place, u64::try_from(bytes).unwrap_or(u64::MAX))
        });
        sizes.collect()
    }
}

/// Settings of the feeds whose entries a page shows.
#[derive(Debug, Default)]
pub(super) struct Titles(HashMap<(FeedKey, Revision), Arc<Settings>>);

impl Titles {
    fn get_or_read(
        &mut self,
        feed: FeedKey,
        revision: Revision,
        log: &dyn Series,
    ) -> Result<Arc<Settings>, LogError> {
        if let Some(settings) = self.0.get(&(feed, revision)) {
            return Ok(Arc::clone(settings));
        }
        let settings = Arc::new(settings_of(log, feed, revision)?);
        self.0.insert((feed, revision), Arc::clone(&settings));
        Ok(settings)
    }
}
