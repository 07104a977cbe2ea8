//! Many feeds followed at once, at the price of a few requests.
//!
//! Shell: tasks, timers, the state folder. [`simplefeed_core::watch`] decides which feed is due: a
//! feed with a SUP document mainly when that document lists an update, any other feed at an
//! interval.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    panic,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use simplefeed_core::{
    limits::{
        HEARD_TOGETHER_MAX, POLL_SECONDS_MIN, PUSH_ABSENT_SECONDS, PUSH_WAITS_MAX,
        SLOW_PER_ORIGIN_MAX, SLOW_TOGETHER_MAX, WATCHED_FEEDS_MAX, WATCHED_PER_ORIGIN_MAX,
        WATCHED_TOGETHER_MAX,
    },
    reader::FeedFault,
    replay::Bookmark,
    timestamp::Timestamp,
    watch::{FeedNumber, LookResult, NextAction, SourceNumber, SupResult, Watch, WatchTally},
};
use tokio::{
    sync::mpsc,
    task::{JoinError, JoinSet},
    time,
};
use url::{Origin, Url};

use crate::{
    consumer::{Consumer, ConsumerError},
    delivery::Delivery,
    fetch::{FetchError, FetchedSup},
    patience::jittered,
    state::StateError,
    transport::Transport,
};

mod journal;
mod builder;

use builder::Options;
pub use builder::WatchBuilder;
use journal::{JournalNote, NoteJournal};

/// Capacity of the channel from looks to the caller, in events. This bounds the entries read ahead.
const AHEAD: usize = 256;
/// If this number of looks at quick feeds wait for a turn, no new look is queued.
const WAITING_MAX: usize = 4_096;
/// Number of updates in a document that delay the next wait by one more second.
const UPDATES_A_SECOND: u32 = 10_000;
/// Longest turn of a look at a quick feed. A feed whose requests take this time in one turn counts
/// as slow.
const QUICK_TURN: Duration = Duration::from_secs(10);
const IN_ORDER: &str = "numbers are in the order of the feeds";
/// Longest time between two saves of the state of feeds without news.
const SAVE_EVERY: Duration = Duration::from_secs(5);

/// Item that [`FeedWatcher::next`] returns.
#[derive(Clone, Debug)]
pub enum WatchEvent {
    /// New entry of one of the feeds.
    Entry(WatchedEntry),
    /// Gap in a feed: the remembered entries have left the feed, and entries behind them may be
    /// lost. The watcher goes on from the oldest entry left.
    Gap {
        /// URL of the feed, without name and password.
        url: Arc<str>,
        /// The missing entry or document.
        error: Arc<ConsumerError>,
    },
    /// Fault of a feed that can be read all the same. Each kind of fault is reported once for a
    /// feed.
    Fault {
        /// URL of the feed, without name and password.
        url: Arc<str>,
        /// Kind of the fault, with its details.
        fault: FeedFault,
    },
    /// Failed look at a feed, or failed request for a SUP document. The watcher tries again.
    Trouble {
        /// URL of the feed or the SUP document.
        url: Arc<str>,
        /// Error of the look or the request.
        error: Arc<ConsumerError>,
    },
}

/// A new entry of one of the feeds that are watched.
#[derive(Clone, Debug)]
pub struct WatchedEntry {
    /// URL of the feed as given to the builder, without name and password.
    pub feed: Arc<str>,
    /// The entry with its position, bytes and bookmark.
    pub delivery: Delivery,
    number: FeedNumber,
    /// Number of the look that found the entry. Acceptance of an earlier look's entry has no
    /// effect.
    look: u64,
}

/// Why many feeds cannot be watched.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WatchError {
    /// A feed's URL is invalid, or there is no transport.
    #[error(transparent)]
    Consumer(#[from] ConsumerError),
    /// The state folder cannot be used.
    #[error(transparent)]
    State(#[from] StateError),
    /// The list of feeds is empty or too long.
    #[error("{count} feeds cannot be watched: at least 1 and at most {WATCHED_FEEDS_MAX} can")]
    Count {
        /// Number of feeds given to the builder.
        count: usize,
    },
    /// A token is set, and the feeds are at several origins.
    #[error(
        "the feeds are of {origins} servers, and there is one token: watch each server's apart"
    )]
    Token {
        /// Number of origins of the feeds.
        origins: usize,
    },
}

/// Follows many feeds.
///
/// # Examples
///
/// ```no_run
/// use std::time::Duration;
/// use simplefeed_client::{
///     FeedWatcher, OnGap, Since, StateFolder, WakeBy, transport::Timeouts,
///     watcher::{WatchBuilder, WatchError, WatchEvent, WatchedEntry},
/// };
///
/// # async fn index(entry: &WatchedEntry) {}
/// async fn follow(urls: Vec<String>) -> Result<(), WatchError> {
///     let builder: WatchBuilder = FeedWatcher::builder(urls)
///         .state(StateFolder::open("watched")?)
///         .since(Since::Oldest) // of feeds that are new; the entries to come by default
///         .interval(Duration::from_secs(600)) // of feeds that nothing tells about
///         .wake_by(WakeBy::Poll)
///         .sup_interval(Duration::from_secs(180))
///         .timeouts(Timeouts::default())
///         .document_bytes_max(8 * 1024 * 1024)
///         .documents_max(10_000)
///         .redirects_max(2)
///         .on_gap(OnGap::GoOn)
///         .anew("https://example.org/feeds/restored")
///         .allow_origin("https://sup.example.org/".parse().expect("a URL"))
///         .bearer_token("sft_…");
///     let mut feeds = builder.build()?;
///     loop {
///         match feeds.next().await? {
///             WatchEvent::Entry(entry) => {
///                 index(&entry).await;
///                 println!("{}: {}", entry.feed, entry.delivery.id());
///                 feeds.accept([&entry]).await?; // durable when it returns
///             }
///             WatchEvent::Gap { url, error } => eprintln!("{url}: {error}; entries may be lost"),
///             WatchEvent::Fault { url, fault } => eprintln!("{url}: {fault}"),
///             WatchEvent::Trouble { url, error } => eprintln!("{url}: {error}"),
///         }
///         if feeds.ready() == 0 {
///             eprintln!("{:?}", feeds.tally());
///             feeds.save().await?; // what was found out about feeds without news
///         }
///     }
/// }
/// ```
pub struct FeedWatcher {
    watch: Watch,
    began: time::Instant,
    feeds: Vec<WatchedFeed>,
    options: Options,
    transport: Arc<dyn Transport>,
    origins: HashSet<Origin>,
    /// URL and entity tag of each SUP document at its last fetch.
    tags: HashMap<SourceNumber, (Url, String)>,
    /// Looks at quick feeds that wait for a turn, in order: new looks, and looks that a turn left
    /// unfinished.
    waiting: VecDeque<QueuedLook>,
    /// Looks at slow feeds that wait for a turn. However many they are, new looks may join them.
    waiting_slow: VecDeque<QueuedLook>,
    /// Places in use at each origin; an origin without a place in use has no key.
    busy: HashMap<Origin, OriginPlaces>,
    /// Looks in progress at slow feeds.
    slow_looks: usize,
    /// Whether a search found no quick feed at an origin with a free place. The end of a turn and a
    /// new waiting look clear the flag.
    is_quick_blocked: bool,
    /// The same flag for slow feeds.
    is_slow_blocked: bool,
    /// Whether the last turn was given to a slow feed.
    was_slow_turn: bool,
    looks: JoinSet<()>,
    hearings: JoinSet<()>,
    waiting_for_updates: JoinSet<()>,
    /// Waits of sources: `None` while a wait is on the way, else the time before which no other
    /// wait begins.
    waits: HashMap<SourceNumber, Option<time::Instant>>,
    events: mpsc::Receiver<TaskEvent>,
    tell: mpsc::Sender<TaskEvent>,
    /// Entries in the channel: read, and not returned by `next` yet.
    ahead: Arc<AtomicUsize>,
    troubles: VecDeque<WatchEvent>,
    journal: Option<NoteJournal>,
    /// Notes in the journal about feeds that are not watched now.
    others: Vec<JournalNote>,
    /// Digest of the token and the allowed origins, as the journal has it.
    asker: String,
    saved_at: time::Instant,
    /// Feeds with state to save.
    changed: HashSet<FeedNumber>,
    /// Timestamp up to which the updates of each SUP document are known, as the journal has it.
    heard_until: HashMap<Url, Timestamp>,
}

impl std::fmt::Debug for FeedWatcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FeedWatcher")
            .field("watch", &self.watch.tally())
            .finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct WatchedFeed {
    /// URL without name and password, as messages and the journal show it.
    url: Arc<str>,
    /// Full URL, if the URL holds a name or a password.
    given: Option<String>,
    origin: Origin,
    /// Bookmark after the last accepted entry.
    place: Option<Bookmark>,
    /// Number of the latest look, from 1.
    look: u64,
    /// Whether the latest look has not ended: entries of this look may be unread or not accepted.
    is_looked_at: bool,
    /// Number of the last entry of this look that was handed over. `accepted` is the number of the
    /// last one that was accepted.
    delivered: u64,
    accepted: u64,
    /// Result of a finished look, held back until all entries of the look are accepted.
    over: Option<LookOutcome>,
    /// Whether the feed was slow in the last turn: the look waited for [`QUICK_TURN`], or had no
    /// answer by the end of the turn.
    is_slow: bool,
    /// Whether the turn in progress has one of the places of slow feeds.
    has_slow_place: bool,
    /// A bit for each kind of fault that was handed over.
    faults: u16,
}

/// Number of places at an origin that are in use by looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct OriginPlaces {
    all: usize,
    /// Number of the places that slow feeds use.
    slow: usize,
}

/// A look that waits for its turn.
#[derive(Debug)]
struct QueuedLook {
    number: FeedNumber,
    origin: Origin,
    /// Consumer of a look that has had a turn, to go on where that turn stopped.
    consumer: Option<Box<Consumer>>,
    /// Whether the look asks for the recent document with `no-cache`.
    fresh: bool,
}

#[derive(Debug)]
struct LookOutcome {
    looked: LookResult,
    place: Option<Bookmark>,
    /// Whether the feed is slow, as far as the last turn shows.
    is_slow: bool,
}

#[expect(clippy::large_enum_variant, reason = "few of them live at a time")]
#[derive(Debug)]
enum TaskEvent {
    Entry(FeedNumber, Delivery),
    /// A look that goes on after others have had their turn, and whether no answer came in this
    /// turn.
    Paused(FeedNumber, Box<Consumer>, bool),
    Gap(FeedNumber, ConsumerError),
    Fault(FeedNumber, FeedFault),
    Looked(FeedNumber, LookOutcome, Option<ConsumerError>),
    Heard(SourceNumber, Url, Result<Option<FetchedSup>, FetchError>),
    /// A wait for the next updates has ended.
    Waited(SourceNumber, Result<Option<FetchedSup>, FetchError>),
}

impl FeedWatcher {
    /// Returns a builder for the feeds with these URLs. A feed may be given by the URL of the feed
    /// itself, or by that of any of the feed's documents.
    pub fn builder(urls: impl IntoIterator<Item = impl Into<String>>) -> WatchBuilder {
        WatchBuilder::new(urls.into_iter().map(Into::into).collect())
    }

    /// Waits for the next entry, gap, fault or failure of any feed. The entries of one feed come in
    /// order. The next look at a feed begins once all entries of the last look are accepted.
    ///
    /// Cancel safe: nothing is lost if the future is dropped.
    ///
    /// # Errors
    ///
    /// [`WatchError::State`] if the watcher's state cannot be saved.
    pub async fn next(&mut self) -> Result<WatchEvent, WatchError> {
        loop {
            if let Some(trouble) = self.troubles.pop_front() {
                return Ok(trouble);
            }
            let due = self.begin_what_is_due();
            let save_at = self.saved_at + SAVE_EVERY;
            let wakes = due.map_or(save_at, |due| due.min(save_at));
            tokio::select! {
                // `biased`: entries that are ready go first, so the channel drains before new looks
                // fill it.
                biased;
                event = self.events.recv() => {
                    if let Some(entry) = event.and_then(|event| self.take_event(event)) {
                        return Ok(WatchEvent::Entry(entry));
                    }
                }
                // A task that ended makes room for the next look or request.
                Some(ended) = self.looks.join_next() => resume_panic(ended),
                Some(ended) = self.hearings.join_next() => resume_panic(ended),
                Some(ended) = self.waiting_for_updates.join_next() => resume_panic(ended),
                () = time::sleep_until(wakes) => {
                    // Feeds without news never pass `accept`, so a timer saves their state.
                    if time::Instant::now() >= save_at {
                        self.save_changes()?;
                    }
                }
            }
        }
    }

    /// Returns the number of entries read that [`next`](Self::next) has not returned yet. 0 marks a
    /// good time to accept.
    pub fn ready(&self) -> usize {
        // Relaxed, because the number is only a hint: no other memory depends on the number.
        self.ahead.load(Ordering::Relaxed)
    }

    /// Remembers that these entries, and all earlier entries of the same feeds, need not be
    /// delivered again. The state is durable when the call returns.
    ///
    /// Cancel safe: the first poll does all of the work.
    ///
    /// # Errors
    ///
    /// [`WatchError::State`].
    #[expect(
        clippy::unused_async,
        reason = "so that stores that wait can come without changing callers"
    )]
    pub async fn accept<'a>(
        &mut self,
        entries: impl IntoIterator<Item = &'a WatchedEntry>,
    ) -> Result<(), WatchError> {
        // Only one bookmark per feed is made, after the last entry, because the cost of a bookmark
        // grows with the number of entries before.
        let mut last = HashMap::new();
        for entry in entries {
            let feed = self.feed_mut(entry.number);
            // An entry of an earlier look, or before an accepted one, was accepted already.
            if entry.look == feed.look && entry.delivery.number > feed.accepted {
                feed.accepted = entry.delivery.number;
                last.insert(entry.number, &entry.delivery);
            }
        }
        for (number, delivery) in last {
            self.feed_mut(number).place = Some(delivery.bookmark());
            self.changed.insert(number);
            self.end_look(number);
        }
        // One write for all feeds: each write waits for the disk.
        self.save_changes()
    }

    /// Saves the state of feeds without news at once. [`next`](Self::next) saves this state every
    /// five seconds. The state is durable when the call returns.
    ///
    /// Cancel safe: the first poll does all of the work.
    ///
    /// # Errors
    ///
    /// [`WatchError::State`].
    #[expect(clippy::unused_async, reason = "as for `accept`")]
    pub async fn save(&mut self) -> Result<(), WatchError> {
        self.save_changes()
    }

    /// Returns the counts of looks, SUP documents and gaps so far.
    pub fn tally(&self) -> WatchTally {
        self.watch.tally()
    }

    /// Starts due looks and requests, as far as there is room. Returns the time at which the next
    /// look or request is due.
    fn begin_what_is_due(&mut self) -> Option<time::Instant> {
        // Ended tasks first: until they are joined, they count towards the limits below.
        while let Some(ended) = self.looks.try_join_next() {
            resume_panic(ended);
        }
        while let Some(ended) = self.hearings.try_join_next() {
            resume_panic(ended);
        }
        let now = self.began.elapsed();
        let mut due: Option<Duration> = None;
        // Requests for SUP documents have a limit of their own: feeds that answer slowly must not
        // delay them.
        while self.hearings.len() < HEARD_TOGETHER_MAX {
            match self.watch.next_document(now) {
                NextAction::Hear {
                    source,
                    document,
                    url,
                    fresh,
                } => self.begin_hearing(source, &document, url, fresh),
                next => {
                    due = next.due();
                    break;
                }
            }
        }
        // Looks wait in the order in which they are due, and unfinished looks wait again behind the
        // others, so that all feeds have their turn.
        while self.waiting.len() < WAITING_MAX {
            match self.watch.next_feed(now) {
                NextAction::Look { feed, fresh } => self.wait_for_turn(feed, fresh),
                next => {
                    due = due.into_iter().chain(next.due()).min();
                    break;
                }
            }
        }
        while self.looks.len() < WATCHED_TOGETHER_MAX
            && let Some(turn) = self.next_turn()
        {
            self.spawn_look(turn);
        }
        due.map(|due| self.began + due)
    }

    fn wait_for_turn(&mut self, number: FeedNumber, fresh: bool) {
        let feed = self.feed_mut(number);
        feed.look += 1;
        feed.is_looked_at = true;
        (feed.delivered, feed.accepted) = (0, 0);
        let turn = QueuedLook {
            number,
            origin: feed.origin.clone(),
            consumer: None,
            fresh,
        };
        self.queue_turn(turn);
    }

    fn queue_turn(&mut self, turn: QueuedLook) {
        if self.is_slow(turn.number) {
            self.waiting_slow.push_back(turn);
            self.is_slow_blocked = false;
        } else {
            self.waiting.push_back(turn);
            self.is_quick_blocked = false;
        }
    }

    /// Returns the first due look at an origin below the limits of parallel looks. Slow feeds may
    /// use only some of the places, so that they do not hold up the other feeds. Every second turn
    /// goes to a slow feed, if possible, so that the other feeds do not hold up slow ones.
    fn next_turn(&mut self) -> Option<QueuedLook> {
        let slow_first = !self.was_slow_turn;
        let slow = slow_first.then(|| self.next_slow_turn()).flatten();
        let (turn, is_slow) = slow
            .map(|turn| (turn, true))
            .or_else(|| Some((self.next_quick_turn()?, false)))
            .or_else(|| Some((self.next_slow_turn()?, true)))?;
        self.was_slow_turn = is_slow;
        self.feed_mut(turn.number).has_slow_place = is_slow;
        let places = self.busy.entry(turn.origin.clone()).or_default();
        places.all += 1;
        places.slow += usize::from(is_slow);
        self.slow_looks += usize::from(is_slow);
        Some(turn)
    }

    fn next_quick_turn(&mut self) -> Option<QueuedLook> {
        // This runs again for each entry, and the queue may be long.
        if self.is_quick_blocked {
            return None;
        }
        // The search does not stop at the head of the queue: one busy origin would hold up all
        // others.
        let is_free = |turn: &QueuedLook| self.places_at(turn).all < WATCHED_PER_ORIGIN_MAX;
        let first = self.waiting.iter().position(is_free);
        self.is_quick_blocked = first.is_none();
        self.waiting.remove(first?)
    }

    fn next_slow_turn(&mut self) -> Option<QueuedLook> {
        if self.slow_looks >= SLOW_TOGETHER_MAX || self.is_slow_blocked {
            return None;
        }
        let is_free = |turn: &QueuedLook| {
            let places = self.places_at(turn);
            places.all < WATCHED_PER_ORIGIN_MAX && places.slow < SLOW_PER_ORIGIN_MAX
        };
        // The search is bounded, because any number of slow feeds may wait.
        let searched = self.waiting_slow.len().min(WAITING_MAX);
        let first = self.waiting_slow.iter().take(searched).position(is_free);
        if first.is_none() {
            // The next search begins behind these feeds, because all of them may be of one origin.
            self.waiting_slow.rotate_left(searched);
            self.is_slow_blocked = searched == self.waiting_slow.len();
        }
        self.waiting_slow.remove(first?)
    }

    /// Returns the places in use at the origin of a turn.
    fn places_at(&self, turn: &QueuedLook) -> OriginPlaces {
        self.busy.get(&turn.origin).copied().unwrap_or_default()
    }

    fn is_slow(&self, number: FeedNumber) -> bool {
        let feed = self.feeds.get(index_of(number));
        feed.is_some_and(|feed| feed.is_slow)
    }

    fn spawn_look(&mut self, turn: QueuedLook) {
        let QueuedLook {
            number,
            consumer,
            fresh,
            ..
        } = turn;
        let consumer = match consumer {
            Some(consumer) => Ok(consumer),
            None => self.begin_look(number, fresh),
        };
        // A feed with a long archive, or a slow feed, gives way to others after one turn.
        let turn = if self.is_slow(number) {
            self.options.turn()
        } else {
            self.options.turn().min(QUICK_TURN)
        };
        let turn = Time {
            end: time::Instant::now() + turn,
            // A short turn without an answer is no failure, because a long turn follows, unless too
            // many looks wait for a long turn.
            is_last: turn == self.options.turn() || self.waiting_slow.len() >= WAITING_MAX,
        };
        let (tell, ahead) = (self.tell.clone(), Arc::clone(&self.ahead));
        self.looks.spawn(async move {
            let event = match consumer {
                Ok(consumer) => read_feed(number, consumer, &tell, &ahead, turn).await,
                Err(error) => TaskEvent::Looked(number, failed_with(false, &error), Some(error)),
            };
            // Sending fails only once the watcher is dropped.
            drop(tell.send(event).await);
        });
    }

    fn begin_look(
        &mut self,
        number: FeedNumber,
        fresh: bool,
    ) -> Result<Box<Consumer>, ConsumerError> {
        let wants_announcement = self.watch.wants_announcement(number);
        let feed = self.feed_mut(number);
        let (url, mut place) = (Arc::clone(&feed.url), feed.place.clone());
        let given = feed.given.clone();
        if let Some(place) = place.as_mut().filter(|_| wants_announcement) {
            // A 304 may lack the feed's SUP announcement, so this look is unconditional.
            (place.etag, place.last_modified) = (None, None);
        }
        let url = given.as_deref().unwrap_or(&url);
        let consumer = self.options.consumer(url, place, &self.transport)?;
        Ok(Box::new(consumer.looking_once(fresh)))
    }

    /// Frees a place at the feed's origin for another feed.
    fn end_turn(&mut self, number: FeedNumber) {
        let feed = self.feed_mut(number);
        let (origin, was_slow) = (feed.origin.clone(), feed.has_slow_place);
        self.slow_looks -= usize::from(was_slow);
        (self.is_quick_blocked, self.is_slow_blocked) = (false, false);
        if let Some(places) = self.busy.get_mut(&origin) {
            places.all -= 1;
            places.slow -= usize::from(was_slow);
            // A million feeds may have as many origins, so unused ones leave the map.
            if places.all == 0 {
                self.busy.remove(&origin);
            }
        }
    }

    fn begin_hearing(&mut self, source: SourceNumber, document: &Url, url: Url, fresh: bool) {
        // The token is for the feeds' origin; a SUP document may be elsewhere.
        let is_of_feeds = self.origins.contains(&document.origin());
        let fetcher = self.options.fetcher(document, is_of_feeds, &self.transport);
        let known = self.tags.get(&source);
        // A tag belongs to one URL: another window of the same source is another document.
        let known = known
            .filter(|(of, _)| *of == url)
            .map(|(_, tag)| tag.clone());
        let tell = self.tell.clone();
        self.hearings.spawn(async move {
            let heard = fetcher.sup(&url, known.as_deref(), fresh).await;
            drop(tell.send(TaskEvent::Heard(source, url, heard)).await);
        });
    }

    /// Handles the event of a task. Returns the entry to hand over, if the event is an entry.
    fn take_event(&mut self, event: TaskEvent) -> Option<WatchedEntry> {
        match event {
            TaskEvent::Entry(number, delivery) => {
                self.ahead.fetch_sub(1, Ordering::Relaxed);
                let feed = self.feed_mut(number);
                feed.delivered = delivery.number;
                return Some(WatchedEntry {
                    feed: Arc::clone(&feed.url),
                    delivery,
                    number,
                    look: feed.look,
                });
            }
            TaskEvent::Paused(number, consumer, is_slow) => {
                self.end_turn(number);
                let feed = self.feed_mut(number);
                feed.is_slow = is_slow;
                let origin = feed.origin.clone();
                self.queue_turn(QueuedLook {
                    number,
                    origin,
                    consumer: Some(consumer),
                    // Without effect: the consumer was built with the setting of the first turn.
                    fresh: false,
                });
            }
            TaskEvent::Gap(number, error) => {
                let url = Arc::clone(&self.feed_mut(number).url);
                let error = Arc::new(error);
                self.troubles.push_back(WatchEvent::Gap { url, error });
            }
            TaskEvent::Fault(number, fault) => {
                let feed = self.feed_mut(number);
                let (url, bit) = (Arc::clone(&feed.url), 1 << fault.kind());
                if feed.faults & bit == 0 {
                    feed.faults |= bit;
                    self.troubles.push_back(WatchEvent::Fault { url, fault });
                }
            }
            TaskEvent::Looked(number, outcome, error) => {
                self.end_turn(number);
                let feed = self.feed_mut(number);
                feed.is_slow = outcome.is_slow;
                let url = Arc::clone(&feed.url);
                feed.over = Some(outcome);
                self.troubles
                    .extend(error.map(|error| trouble_with(url, error)));
                self.end_look(number);
            }
            TaskEvent::Heard(source, url, heard) => self.take_heard(source, url, heard),
            TaskEvent::Waited(source, heard) => self.end_wait(source, heard),
        }
        None
    }

    fn take_heard(
        &mut self,
        source: SourceNumber,
        url: Url,
        heard: Result<Option<FetchedSup>, FetchError>,
    ) {
        let now = self.began.elapsed();
        let heard = match heard {
            Ok(None) => SupResult::Same,
            Ok(Some(fetched)) => {
                let FetchedSup {
                    document,
                    tag,
                    wait,
                    ..
                } = fetched;
                self.tags.remove(&source);
                if let Some(tag) = tag {
                    self.keep_tag(source, url, tag);
                }
                if let Some(wait) = wait {
                    self.begin_wait(source, wait, time::Instant::now());
                }
                SupResult::Document(document)
            }
            Err(error) => {
                // The next request is unconditional, and so fetches the document even if the tag is
                // the same.
                self.tags.remove(&source);
                let retry_after = error.retry_after();
                self.troubles
                    .push_back(trouble_with(url.as_str().into(), error.into()));
                SupResult::Nothing { retry_after }
            }
        };
        self.watch.heard(source, now, heard);
    }

    /// Begins a wait, at the time `at`, for updates of a source after the known ones. Polls go on
    /// beside the wait, and find updates that the wait misses.
    fn begin_wait(&mut self, source: SourceNumber, url: Url, at: time::Instant) {
        // Pauses that are over are removed from the map, also pauses of forgotten sources.
        self.waits
            .retain(|_, until| until.is_none_or(|until| at < until));
        let on_their_way = self.waits.values().filter(|until| until.is_none()).count();
        let is_off = self.waits.contains_key(&source) || on_their_way >= PUSH_WAITS_MAX;
        if !self.options.waits() || is_off {
            return;
        }
        self.waits.insert(source, None);
        let is_of_feeds = self.origins.contains(&url.origin());
        let fetcher = self.options.fetcher(&url, is_of_feeds, &self.transport);
        let tell = self.tell.clone();
        self.waiting_for_updates.spawn(async move {
            time::sleep_until(at).await;
            let heard = fetcher.sup(&url, None, true).await;
            drop(tell.send(TaskEvent::Waited(source, heard)).await);
        });
    }

    /// Handles the end of a wait, and begins the next one. Where a server or a proxy does not wait,
    /// only polls find updates for a while.
    fn end_wait(&mut self, source: SourceNumber, heard: Result<Option<FetchedSup>, FetchError>) {
        let now = time::Instant::now();
        let Ok(Some(fetched)) = heard else {
            return self.wait_absent(source, now);
        };
        let elapsed = self.began.elapsed();
        if fetched.is_for_once {
            self.waits.remove(&source);
            let updates = u32::try_from(fetched.document.updates.len()).unwrap_or(u32::MAX);
            let second = Duration::from_secs(POLL_SECONDS_MIN);
            // A large document costs the server and the watcher as much as many small ones.
            let pause = second + second * (updates / UPDATES_A_SECOND);
            if let Some(url) = fetched.wait {
                self.begin_wait(source, url, now + jittered(pause));
            }
        } else {
            // A cache may drop the query of the URL and answer at once. Another wait would ask this
            // cache every second.
            self.wait_absent(source, now);
        }
        self.watch.overheard(source, elapsed, fetched.document);
    }

    fn wait_absent(&mut self, source: SourceNumber, now: time::Instant) {
        let absent = jittered(Duration::from_secs(PUSH_ABSENT_SECONDS));
        self.waits.insert(source, Some(now + absent));
    }

    fn keep_tag(&mut self, source: SourceNumber, url: Url, tag: String) {
        if self.tags.len() > self.feeds.len() {
            // If there are more tags than feeds, some belong to documents that no feed announces
            // any more.
            self.tags.clear();
        }
        self.tags.insert(source, (url, tag));
    }

    /// Ends a look once all entries of the look are accepted.
    fn end_look(&mut self, number: FeedNumber) {
        let now = self.began.elapsed();
        let feed = self.feed_mut(number);
        let Some(outcome) = feed.over.take_if(|_| feed.accepted == feed.delivered) else {
            return;
        };
        let LookOutcome { looked, place, .. } = outcome;
        feed.is_looked_at = false;
        // A failed look has no place, so the place after the last accepted entry stays.
        if place.is_some() {
            feed.place = place;
        }
        self.changed.insert(number);
        self.watch.looked(number, now, looked);
    }

    /// Saves all changes since the last save, durably: feeds first, then the progress through SUP
    /// documents.
    fn save_changes(&mut self) -> Result<(), WatchError> {
        // `saved_at` is set before the write, so that a disk that fails is not asked again at once.
        self.saved_at = time::Instant::now();
        self.changed.extend(self.watch.take_changed());
        let changed = self.changed.iter().map(|number| self.note_of(*number));
        let mut notes: Vec<JournalNote> = changed.collect();
        // Feeds that need a look come first: even if only a part of the write were kept, they must
        // not wait for an update.
        notes.sort_by_key(JournalNote::is_told);
        let heard_until: HashMap<Url, Timestamp> = self
            .watch
            .heard_until()
            .map(|(url, updated)| (url.clone(), updated))
            .collect();
        // These notes come behind the feeds: updates count as known only once the feeds that had
        // them are noted.
        for (url, updated) in &heard_until {
            if self.heard_until.get(url) != Some(updated) {
                notes.push(JournalNote::heard(url, *updated));
            }
        }
        self.write_notes(&notes)?;
        // Only after the write: a failed write leaves everything to the next attempt.
        self.changed.clear();
        self.heard_until = heard_until;
        Ok(())
    }

    /// Writes notes to the journal, if there is a state folder.
    fn write_notes(&mut self, notes: &[JournalNote]) -> Result<(), StateError> {
        // The journal is taken out of `self` during the call, because the closure reads the rest of
        // `self`.
        let Some(mut journal) = self.journal.take() else {
            return Ok(());
        };
        let noted = journal.note(notes, || self.all_notes());
        self.journal = Some(journal);
        noted
    }

    fn all_notes(&self) -> Vec<JournalNote> {
        let feeds = (0..).map(FeedNumber).take(self.feeds.len());
        let feeds = feeds.map(|number| self.note_of(number));
        let heard = self.watch.heard_until();
        let heard = heard.map(|(url, updated)| JournalNote::heard(url, updated));
        let asker = JournalNote::Asker {
            asker: self.asker.clone(),
        };
        let others = self.others.iter().cloned().chain([asker]);
        feeds.chain(others).chain(heard).collect()
    }

    fn note_of(&self, number: FeedNumber) -> JournalNote {
        let feed = self.feeds.get(index_of(number)).expect(IN_ORDER);
        // After a restart, a half-read feed needs a look, so the note omits the SUP address.
        let is_half_read = feed.is_looked_at && feed.accepted > 0;
        let told_by = self.watch.told_by(number);
        let told_by = told_by.filter(|_| feed.place.is_some() && !is_half_read);
        JournalNote::feed(&feed.url, feed.place.as_ref(), told_by)
    }

    fn feed_mut(&mut self, number: FeedNumber) -> &mut WatchedFeed {
        self.feeds.get_mut(index_of(number)).expect(IN_ORDER)
    }
}

fn trouble_with(url: Arc<str>, error: ConsumerError) -> WatchEvent {
    WatchEvent::Trouble {
        url,
        error: Arc::new(error),
    }
}

/// Passes on the panic of a task. If the panic were ignored, the feed of the task would never be
/// looked at again.
fn resume_panic(ended: Result<(), JoinError>) {
    if let Err(error) = ended
        && error.is_panic()
    {
        panic::resume_unwind(error.into_panic());
    }
}

fn index_of(number: FeedNumber) -> usize {
    usize::try_from(number.0).expect("32 bits fit into an index")
}

fn failed_outcome(news: bool, for_good: bool, retry_after: Option<Duration>) -> LookOutcome {
    let looked = LookResult::Failed {
        news,
        for_good,
        retry_after,
    };
    let (place, is_slow) = (None, false);
    LookOutcome {
        looked,
        place,
        is_slow,
    }
}

fn failed_with(news: bool, error: &ConsumerError) -> LookOutcome {
    let retry_after = match error {
        ConsumerError::Fetch(error) => error.retry_after(),
        _ => None,
    };
    failed_outcome(news, !error.is_transient(), retry_after)
}

/// Time of a turn.
#[derive(Clone, Copy, Debug)]
struct Time {
    end: time::Instant,
    /// Whether a turn without any answer is a failure.
    is_last: bool,
}

/// Reads a feed up to the end of the feed or of the turn, and sends new entries to the watcher.
async fn read_feed(
    number: FeedNumber,
    mut consumer: Box<Consumer>,
    tell: &mpsc::Sender<TaskEvent>,
    ahead: &AtomicUsize,
    turn: Time,
) -> TaskEvent {
    let answers = consumer.answers();
    // Time spent on requests, without the time that the caller needs to handle entries.
    let mut asked = Duration::ZERO;
    let mut is_idle = true;
    // An earlier turn of the same look may have delivered entries.
    let mut news = consumer.has_delivered();
    loop {
        let began = time::Instant::now();
        let next = time::timeout_at(turn.end, consumer.next()).await;
        asked += began.elapsed();
        is_idle &= consumer.answers() == answers && !matches!(next, Ok(Ok(Some(_))));
        let over = |outcome: LookOutcome| LookOutcome {
            is_slow: asked >= QUICK_TURN,
            ..outcome
        };
        for fault in consumer.take_faults() {
            drop(tell.send(TaskEvent::Fault(number, fault)).await);
        }
        // The gap is sent before the entry, because the gap lies in front of the entry.
        if let Some(gap) = consumer.take_gap() {
            drop(tell.send(TaskEvent::Gap(number, gap.into())).await);
        }
        match next {
            Ok(Ok(Some(delivery))) => {
                news = true;
                ahead.fetch_add(1, Ordering::Relaxed);
                // This consumer has no store: `FeedWatcher::accept` saves the caller's acceptance.
                let is_kept = consumer.accept(&delivery).await.is_ok();
                if !is_kept || tell.send(TaskEvent::Entry(number, delivery)).await.is_err() {
                    return TaskEvent::Looked(number, failed_outcome(news, false, None), None);
                }
            }
            Ok(Ok(None)) => {
                let looked = LookResult::Read {
                    news,
                    stale: consumer.is_stale(),
                    sup: consumer.announced(),
                };
                let (place, is_slow) = (consumer.place(), false);
                let outcome = LookOutcome {
                    looked,
                    place,
                    is_slow,
                };
                return TaskEvent::Looked(number, over(outcome), None);
            }
            Ok(Err(error)) => {
                return TaskEvent::Looked(number, over(failed_with(news, &error)), Some(error));
            }
            // A turn without any answer: the next turn would begin the same request again, and so
            // on for ever.
            Err(_turn_is_over)
                if turn.is_last
                    && is_idle
                    && let Some(error) = consumer.overdue() =>
            {
                return TaskEvent::Looked(number, over(failed_with(news, &error)), Some(error));
            }
            Err(_turn_is_over) => {
                // A paused look may wait long, and holds no connection meanwhile.
                consumer.pause();
                return TaskEvent::Paused(number, consumer, is_idle);
            }
        }
    }
}

#[cfg(test)]
mod tests;
