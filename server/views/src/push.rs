//! The view that wakes waiting readers. It has no files.
//!
//! Shell: locks. A reader that waits for a feed watches the hub of that feed. After each commit,
//! the follower of this view looks at each watched feed that the commit changes: the follower notes
//! the end of the feed, makes the events of the new entries, and wakes all watchers. So an event is
//! made once for any number of readers, and no publisher waits for that.

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use parking_lot::{Condvar, Mutex};
use quick_cache::{Weighter, sync::Cache};
use simplefeed_core::{
    commit::{Change, Commit, Outline},
    feed::{CommitNumber, FeedKey, FeedName, Position, Revision},
    push::PlaceId,
};
use simplefeed_log::LogError;
use simplefeed_process::stop::Stop;
use simplefeed_resource::Coding;
use tokio::sync::watch;
use tracing::{debug, warn};

use crate::{
    ApplyOutcome, View,
    error::ViewError,
    follower::Grace,
    shown::{ShownLog, ShownSeries},
};

mod events;
mod newest;

pub use events::{Begin, EventStretch, Past};
use events::{PushCourse, read_on};
use newest::NewestEvents;

/// Longest pause of the follower. A commit of a feed that somebody watches ends the pause.
const PACE: Duration = Duration::from_millis(50);
/// Maximum size in bytes of the stretches of past entries that readers share.
const STRETCHES_BYTES_MAX: u64 = 32 * 1024 * 1024;
/// Maximum size in bytes of the events that a hub keeps.
const HUB_BYTES_MAX: usize = 64 * 1024;
/// Approximate size in bytes of the events that a reader takes at once. A slow reader holds them
/// for long.
const AT_HAND_BYTES: usize = 16 * 1024;

/// Codings, in the order of the flags in `Hub::documents`.
const CODINGS: [Coding; 2] = [Coding::Identity, Coding::Gzip];

/// End of a feed, as watchers see the feed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct News {
    /// Id of the newest entry's event; `None` while there is no entry.
    pub newest: Option<PlaceId>,
    /// Revision of the feed's settings. A change of settings makes the document of an empty feed
    /// anew.
    pub revision: Revision,
}

impl News {
    /// End of a feed that has not been read yet.
    const UNKNOWN: Self = Self {
        newest: None,
        revision: Revision(0),
    };

    /// Returns the position that the next entry gets.
    pub fn next(&self) -> Position {
        self.newest
            .map_or(Position(0), |newest| newest.position.next())
    }

    /// Returns whether `later` is a newer end of the feed than this one.
    fn precedes(&self, later: &Self) -> bool {
        self.next() < later.next() || self.revision < later.revision
    }
}

/// Interest of a watcher in a feed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interest {
    /// The place of the newest entry alone.
    Place,
    /// Entries: the hub keeps the newest events for these watchers.
    Entries,
    /// The recent document of the feed, in a coding.
    Document(Coding),
}

/// Function that makes the recent document of a feed ready, in a coding.
type Prepare = Box<dyn Fn(&FeedName, Coding) + Send + Sync>;

/// Meeting point of a feed's watchers.
#[derive(Debug)]
struct Hub {
    name: FeedName,
    /// Number of the feed among the timelines, if the feed is a timeline.
    number: Option<u32>,
    news: watch::Sender<News>,
    /// Number of watchers that read entries.
    readers: AtomicUsize,
    /// For each of `CODINGS`, whether a watcher wants the recent document in that coding.
    documents: [AtomicBool; 2],
    newest: Mutex<NewestEvents>,
    /// Number of the last commit that had been announced when the feed was looked at.
    looked: AtomicU64,
    /// The feed as of the last look. Locked during a look, by the follower or for a new watcher.
    looking: Mutex<Option<PushCourse>>,
}

/// Hubs of all watched feeds.
#[derive(Debug, Default)]
struct Hubs {
    by_feed: HashMap<FeedKey, WatchedHub>,
    /// Keys of the watched timelines, by their numbers.
    timelines: Arc<HashMap<u32, FeedKey>>,
}

impl Hubs {
    /// Returns whether somebody watches a feed that a commit changes.
    fn may_concern(&self, commit: &Commit) -> bool {
        // With watched timelines, every commit counts: to find the timelines of a commit would take
        // the lock of the graph, and this runs on the writer's thread.
        if !self.timelines.is_empty() {
            return true;
        }
        let feeds = commit.changes.iter().filter_map(Change::feed);
        // A batch may have thousands of entries of one feed, which needs only one lookup.
        let mut last = None;
        let mut feeds = feeds.filter(|feed| last.replace(*feed) != Some(*feed));
        feeds.any(|feed| self.by_feed.contains_key(&feed))
    }
}

/// A hub, with the number of watchers.
#[derive(Debug)]
struct WatchedHub {
    hub: Arc<Hub>,
    watchers: usize,
}

/// View that wakes the watchers of feeds.
#[derive(Debug)]
pub struct Push(Arc<PushState>);

struct PushState {
    /// Called before watchers are woken. Otherwise a thousand woken watchers would all wait for a
    /// document that is not made yet.
    prepare: OnceLock<Prepare>,
    hubs: Mutex<Hubs>,
    /// Feeds that could not be read, and are tried again.
    unseen: Mutex<HashSet<FeedKey>>,
    /// Number of the last announced commit. After the announcement, no cache gives readers anything
    /// older than this commit.
    announced: AtomicU64,
    /// Whether a watched feed has changed since the follower's last pause.
    is_urgent: Mutex<bool>,
    urged: Condvar,
    stretches: Stretches,
}

/// Stretches of past entries that readers share.
struct Stretches(Cache<(FeedKey, Position), Arc<EventStretch>, StretchWeight>);

#[derive(Clone)]
struct StretchWeight;

impl Weighter<(FeedKey, Position), Arc<EventStretch>> for StretchWeight {
    fn weight(&self, _: &(FeedKey, Position), stretch: &Arc<EventStretch>) -> u64 {
        u64::try_from(stretch.bytes.len() + size_of::<EventStretch>()).unwrap_or(u64::MAX)
    }
}

impl std::fmt::Debug for Stretches {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stretches").finish_non_exhaustive()
    }
}

impl std::fmt::Debug for PushState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PushState").finish_non_exhaustive()
    }
}

impl Default for Push {
    fn default() -> Self {
        Self(Arc::new(PushState {
            prepare: OnceLock::new(),
            hubs: Mutex::default(),
            unseen: Mutex::default(),
            announced: AtomicU64::new(0),
            is_urgent: Mutex::default(),
            urged: Condvar::new(),
            stretches: Stretches(Cache::with_weighter(
                1_000,
                STRETCHES_BYTES_MAX,
                StretchWeight,
            )),
        }))
    }
}

impl Push {
    /// Has `prepare` called with a feed and a coding before watchers are woken that wait for the
    /// recent document of that feed in that coding.
    pub fn prepare_with(&self, prepare: impl Fn(&FeedName, Coding) + Send + Sync + 'static) {
        // A server calls this once, at the start, so nothing is set before.
        let _is_set = self.0.prepare.set(Box::new(prepare)).is_err();
    }

    /// Ends the follower's pause, if somebody watches a feed that a commit changes. The log calls
    /// this with each commit.
    pub fn committed(&self, commit: &Commit) {
        self.0.announced.store(commit.number.0, Ordering::SeqCst);
        if self.0.hubs.lock().may_concern(commit) {
            *self.0.is_urgent.lock() = true;
            self.0.urged.notify_one();
        }
    }

    /// Begins to watch a feed. Every change that readers see after this call wakes the watcher.
    ///
    /// # Errors
    ///
    /// Returns why the log cannot be read.
    pub fn watch(
        &self,
        (feed, name): (FeedKey, &FeedName),
        interest: Interest,
        log: &dyn ShownSeries,
    ) -> Result<Watching, LogError> {
        // Only a timeline has a number. It comes from the graph, for which readers of feeds need
        // not wait.
        let number = if log.is_timeline(feed)? {
            log.timeline_number(feed)?
        } else {
            None
        };
        let shared = Arc::clone(&self.0);
        let (hub, news) = {
            let mut hubs = shared.hubs.lock();
            // `make_mut` copies the map only while the follower reads the old one.
            if let Some(number) = number {
                Arc::make_mut(&mut hubs.timelines).insert(number, feed);
            }
            let watched = hubs.by_feed.entry(feed).or_insert_with(|| WatchedHub {
                hub: Hub::new(name.clone(), number),
                watchers: 0,
            });
            watched.watchers += 1;
            (Arc::clone(&watched.hub), watched.hub.news.subscribe())
        };
        hub.note_interest(interest);
        let mut watching = Watching {
            feed,
            interest,
            hub,
            news,
            shared,
        };
        // This look comes after the hub is entered, so the follower tells this watcher of each
        // commit that the look misses.
        watching
            .hub
            .look_at_end(feed, log, &watching.shared, false)?;
        // The end that this look has found is no news for this watcher.
        watching.news.mark_unchanged();
        Ok(watching)
    }

    /// Begins to watch a feed that is being watched. Never waits.
    pub fn join(&self, feed: FeedKey, interest: Interest) -> Option<Watching> {
        let shared = Arc::clone(&self.0);
        let mut hubs = shared.hubs.lock();
        let watched = hubs.by_feed.get_mut(&feed)?;
        let news = watched.hub.news.subscribe();
        // Until the first look, the end is not known.
        if *news.borrow() == News::UNKNOWN {
            return None;
        }
        watched.watchers += 1;
        let hub = Arc::clone(&watched.hub);
        drop(hubs);
        hub.note_interest(interest);
        Some(Watching {
            feed,
            interest,
            hub,
            news,
            shared,
        })
    }

    /// Returns whether anybody watches a feed.
    fn is_watched(&self) -> bool {
        !self.0.hubs.lock().by_feed.is_empty()
    }

    /// Returns the events of a feed's entries at position `from` and later, as many as a stream
    /// sends together. `from` must not be after the feed's newest entry.
    ///
    /// # Errors
    ///
    /// Returns why the log cannot be read.
    pub fn past(
        &self,
        feed: FeedKey,
        from: Position,
        begin: &Begin,
        log: &dyn ShownSeries,
    ) -> Result<Past, LogError> {
        let stretches = &self.0.stretches.0;
        if let Some(stretch) = stretches.get(&(feed, from)) {
            return Ok(Past::Stretch(stretch));
        }
        let past = read_on(log, feed, from, begin)?;
        // The next entry makes a stretch longer that the end of the feed has cut short, so only
        // whole stretches are kept.
        if let Past::Stretch(stretch) = &past
            && stretch.is_whole
        {
            stretches.insert((feed, from), Arc::clone(stretch));
        }
        Ok(past)
    }

    /// Returns the base of the marks behind the entry at a position; `None` if the log lacks
    /// entries of the entry's document.
    ///
    /// # Errors
    ///
    /// Returns why the log cannot be read.
    pub fn behind(
        &self,
        feed: FeedKey,
        position: Position,
        log: &dyn ShownSeries,
    ) -> Result<Option<Begin>, LogError> {
        events::behind(log, feed, position)
    }

    /// Returns the base of the marks of a feed's first entries.
    ///
    /// # Errors
    ///
    /// Returns why the log cannot be read.
    pub fn beginning(
        &self,
        feed: FeedKey,
        log: &dyn ShownSeries,
    ) -> Result<Option<Begin>, LogError> {
        events::beginning(log, feed)
    }

    /// Returns the hub of a feed, if somebody watches that feed.
    fn watched_hub(&self, feed: FeedKey) -> Option<Arc<Hub>> {
        let hubs = self.0.hubs.lock();
        let watched = hubs.by_feed.get(&feed);
        watched.map(|watched| Arc::clone(&watched.hub))
    }

    /// Returns the watched timelines that a commit concerns, or all watched timelines if the graph
    /// cannot tell.
    fn concerned_timelines(&self, commit: &Outline, log: &dyn ShownSeries) -> HashSet<FeedKey> {
        // Only the pointer is copied, so that the graph is asked without the lock of the hubs.
        let watched = Arc::clone(&self.0.hubs.lock().timelines);
        let mut concerned = HashSet::new();
        if watched.is_empty() {
            return concerned;
        }
        let found = log.concerned(commit, &mut |number| {
            concerned.extend(watched.get(&number).copied());
        });
        if let Err(error) = found {
            // One look too many costs time, and one look too few leaves a watcher waiting.
            debug!(%error, "all timelines that somebody watches are looked at");
            concerned.extend(watched.values());
        }
        concerned
    }

    /// Looks at a feed that somebody watches: for an announced commit, unless an earlier look has
    /// seen that commit, or without a commit in any case. A feed that cannot be read does not hold
    /// up other feeds, and is looked at again.
    fn look_at(&self, feed: FeedKey, commit: Option<CommitNumber>, log: &dyn ShownSeries) {
        let Some(hub) = self.watched_hub(feed) else {
            return;
        };
        if commit.is_some_and(|commit| commit.0 <= hub.looked.load(Ordering::SeqCst)) {
            // The last look came after the announcement of this commit, and has seen it.
            return;
        }
        if let Err(error) = hub.look_at_end(feed, log, &self.0, true) {
            warn!(%error, feed = %feed.0, "a feed that somebody watches cannot be read; it is tried again");
            self.0.unseen.lock().insert(feed);
        }
    }
}

impl Hub {
    fn new(name: FeedName, number: Option<u32>) -> Arc<Self> {
        Arc::new(Self {
            name,
            documents: Default::default(),
            number,
            news: watch::Sender::new(News::UNKNOWN),
            readers: AtomicUsize::new(0),
            newest: Mutex::default(),
            looked: AtomicU64::new(0),
            looking: Mutex::default(),
        })
    }

    /// Notes the interest of a watcher.
    fn note_interest(&self, interest: Interest) {
        match interest {
            Interest::Place => {}
            Interest::Entries => {
                self.readers.fetch_add(1, Ordering::SeqCst);
            }
            Interest::Document(wanted) => {
                for (is_wanted, coding) in self.documents.iter().zip(CODINGS) {
                    is_wanted.fetch_or(coding == wanted, Ordering::SeqCst);
                }
            }
        }
    }

    /// Looks at the end of the feed, and wakes the watchers if the end has changed, or in any case
    /// with `is_due`. The log shows a commit before the announcement. So a watcher that an earlier
    /// look has woken may have found an older document in memory, and is woken again with `is_due`.
    fn look_at_end(
        &self,
        feed: FeedKey,
        log: &dyn ShownSeries,
        shared: &PushState,
        is_due: bool,
    ) -> Result<(), LogError> {
        let mut looking = self.looking.lock();
        // Loaded before the feed is read, so that a commit that comes meanwhile leads to another
        // look.
        let announced = shared.announced.load(Ordering::SeqCst);
        let Some(course) = PushCourse::of(feed, log)? else {
            return Ok(());
        };
        let news = course.news;
        if self.readers.load(Ordering::SeqCst) == 0 {
            // Nobody reads entries, so no events are made.
            self.newest.lock().begin_at(news.next());
        } else {
            let from = self.newest.lock().next();
            let begin = looking.as_ref().map(PushCourse::end);
            match begin.filter(|_| from < news.next()) {
                Some(begin) => self.extend_events(from, begin, &course, log)?,
                None if from == news.next() => {}
                // Without the end of an earlier look, there is no base for marks.
                None => self.newest.lock().begin_at(news.next()),
            }
        }
        *looking = Some(course);
        // The document is made before the wake. Otherwise a thousand woken watchers would all wait
        // for it.
        if (is_due || self.news.borrow().precedes(&news))
            && let Some(prepare) = shared.prepare.get()
        {
            for (wanted, coding) in self.documents.iter().zip(CODINGS) {
                // Watchers that go on waiting ask for the document again.
                if wanted.swap(false, Ordering::SeqCst) {
                    prepare(&self.name, coding);
                }
            }
        }
        self.news.send_if_modified(|known| {
            let is_newer = known.precedes(&news);
            if is_newer {
                *known = news;
            }
            is_newer || is_due
        });
        // Stored last, so that after an error the follower looks again.
        self.looked.store(announced, Ordering::SeqCst);
        Ok(())
    }

    /// Makes the events of the entries that have come since the last look. If these are too many,
    /// no events are made, and readers get them by [`Push::past`].
    fn extend_events(
        &self,
        from: Position,
        begin: Begin,
        course: &PushCourse,
        log: &dyn ShownSeries,
    ) -> Result<(), LogError> {
        match events::newest(log, course, from, begin, HUB_BYTES_MAX)? {
            Some(events) => self.newest.lock().add(events, HUB_BYTES_MAX),
            None => self.newest.lock().begin_at(course.news.next()),
        }
        Ok(())
    }
}

/// A watcher of a feed, which ends with this value.
#[derive(Debug)]
pub struct Watching {
    feed: FeedKey,
    interest: Interest,
    hub: Arc<Hub>,
    news: watch::Receiver<News>,
    shared: Arc<PushState>,
}

impl Watching {
    /// Returns the end of the feed now. Later changes wake the watcher.
    pub fn news(&mut self) -> News {
        *self.news.borrow_and_update()
    }

    /// Asks for the recent document again, for a watcher that goes on waiting.
    pub fn wish_again(&self) {
        if let Interest::Document(_) = self.interest {
            self.hub.note_interest(self.interest);
        }
    }

    /// Waits until the feed has changed since the last call of this method or of
    /// [`news`](Self::news).
    pub async fn changed(&mut self) {
        // The sender is in the hub that this value holds, so it stays open.
        let _open = self.news.changed().await;
    }

    /// Returns the events of entries at position `from` and later, or none if the hub lacks any
    /// event between `from` and the newest one.
    pub fn at_hand(&self, from: Position) -> Vec<Bytes> {
        self.hub.newest.lock().from(from, AT_HAND_BYTES)
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        if self.interest == Interest::Entries {
            self.hub.readers.fetch_sub(1, Ordering::SeqCst);
        }
        let mut hubs = self.shared.hubs.lock();
        let Some(watched) = hubs.by_feed.get_mut(&self.feed) else {
            return;
        };
        watched.watchers -= 1;
        if watched.watchers == 0 {
            // A hub without watchers is removed, so that its feed costs the follower nothing.
            hubs.by_feed.remove(&self.feed);
            if let Some(number) = self.hub.number {
                Arc::make_mut(&mut hubs.timelines).remove(&number);
            }
        }
    }
}

impl View for Push {
    fn name(&self) -> &'static str {
        "push"
    }

    fn begin(&self, log: &dyn ShownLog) -> Result<CommitNumber, ViewError> {
        let head = log.head().number;
        // After a panic, watchers may have missed commits.
        let watched: Vec<FeedKey> = self.0.hubs.lock().by_feed.keys().copied().collect();
        for feed in watched {
            self.look_at(feed, None, log);
        }
        Ok(head)
    }

    fn apply(&self, commit: &Outline, log: &dyn ShownSeries) -> Result<ApplyOutcome, ViewError> {
        if self.is_watched() {
            let timelines = self.concerned_timelines(commit, log);
            for feed in commit.feeds().into_iter().chain(timelines) {
                self.look_at(feed, Some(commit.number), log);
            }
        }
        Ok(ApplyOutcome::More)
    }

    fn carry_out(&self, log: &dyn ShownSeries, _: &Grace<'_>) -> Result<bool, ViewError> {
        // Taken out first, because `look_at` puts back a feed that fails again.
        let unseen = std::mem::take(&mut *self.0.unseen.lock());
        for feed in unseen {
            self.look_at(feed, None, log);
        }
        Ok(self.0.unseen.lock().is_empty())
    }

    fn pause(&self, _: &Stop) {
        // Commits of feeds that nobody watches come by the hundred. Woken by each of them, the
        // follower would take time from the publishers.
        let mut is_urgent = self.0.is_urgent.lock();
        let urged = &self.0.urged;
        urged.wait_while_for(&mut is_urgent, |is_urgent| !*is_urgent, PACE);
        *is_urgent = false;
    }
}

#[cfg(test)]
mod tests;
