//! Many feeds followed at once, at the price of a few requests.
//!
//! Shell: tasks, timers, the state folder. Whose turn it is is decided by [`simplefeed_core::watch`]: feeds that
//! announce a SUP document are looked at when that tells of them, all others now and then.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use simplefeed_core::{
    limits::{WATCH_SECONDS_DEFAULT, WATCHED_FEEDS_MAX, WATCHED_TOGETHER_MAX},
    replay::Bookmark,
    sup::{Announcement, SupAddress, SupDocument},
    watch::{FeedNumber, Heard, Looked, Next, Pace, SourceNumber, Tally, Watch},
};
use tokio::{sync::mpsc, task::JoinSet, time};
use url::{Origin, Url};

use crate::{
    consumer::{Consumer, ConsumerError, Since},
    delivery::Delivery,
    fetch::{FetchError, Fetcher},
    state::{StateError, StateFolder},
    transport::{self, Timeouts, Transport},
};

mod book;

use book::{Book, Known, Note};

/// Entries that are read before anybody takes them.
const AHEAD: usize = 256;
/// How old what is remembered of feeds without news may get.
const SAVE_EVERY: Duration = Duration::from_secs(5);

/// Something that a [`FeedWatcher`] came upon.
#[derive(Clone, Debug)]
pub enum Watched {
    /// A new entry.
    Entry(WatchedEntry),
    /// A feed or a SUP document that could not be read. It will be tried again.
    Trouble {
        /// Its URL.
        url: Arc<str>,
        /// Why.
        error: Arc<ConsumerError>,
    },
}

/// A new entry of one of the feeds that are watched.
#[derive(Clone, Debug)]
pub struct WatchedEntry {
    /// The URL of the feed, as it was given.
    pub feed: Arc<str>,
    /// The entry.
    pub delivery: Delivery,
    number: FeedNumber,
}

/// Why many feeds cannot be watched.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WatchError {
    /// A feed cannot be read, whatever happens.
    #[error(transparent)]
    Consumer(#[from] ConsumerError),
    /// The state folder cannot be used.
    #[error(transparent)]
    State(#[from] StateError),
    /// There are none, or too many.
    #[error("{count} feeds cannot be watched: at least 1 and at most {WATCHED_FEEDS_MAX} can")]
    Count {
        /// How many there are.
        count: usize,
    },
}

/// Follows many feeds.
///
/// # Examples
///
/// ```no_run
/// use std::time::Duration;
/// use simplefeed_client::{
///     FeedWatcher, Since, StateFolder, transport::Timeouts,
///     watcher::{WatchBuilder, WatchError, Watched, WatchedEntry},
/// };
///
/// # async fn index(entry: &WatchedEntry) {}
/// async fn follow(urls: Vec<String>) -> Result<(), WatchError> {
///     let builder: WatchBuilder = FeedWatcher::builder(urls)
///         .state(StateFolder::open("watched")?)
///         .since(Since::Oldest) // of feeds that are new; the entries to come by default
///         .interval(Duration::from_secs(600)) // of feeds that nothing tells about
///         .sup_interval(Duration::from_secs(180))
///         .timeouts(Timeouts::default())
///         .document_bytes_max(8 * 1024 * 1024)
///         .allow_origin("https://sup.example.org/".parse().expect("a URL"))
///         .bearer_token("sft_…");
///     let mut feeds = builder.build()?;
///     loop {
///         match feeds.next().await? {
///             Watched::Entry(entry) => {
///                 index(&entry).await;
///                 println!("{}: {}", entry.feed, entry.delivery.id());
///                 feeds.accept([&entry]).await?; // durable when it returns
///             }
///             Watched::Trouble { url, error } => eprintln!("{url}: {error}"),
///         }
///         if feeds.ready() == 0 {
///             eprintln!("{:?}", feeds.tally());
///         }
///     }
/// }
/// ```
pub struct FeedWatcher {
    watch: Watch,
    began: time::Instant,
    feeds: Vec<Feed>,
    options: Options,
    transport: Arc<dyn Transport>,
    origins: HashSet<Origin>,
    /// The entity tags of SUP documents.
    tags: HashMap<Url, String>,
    tasks: JoinSet<()>,
    events: mpsc::Receiver<Event>,
    tell: mpsc::Sender<Event>,
    /// How many entries are on their way.
    ahead: Arc<AtomicUsize>,
    troubles: VecDeque<Watched>,
    book: Option<Book>,
    /// What the book says of feeds that are not watched now.
    others: Vec<Note>,
    saved_at: time::Instant,
    /// The feeds of which something is to be remembered.
    changed: HashSet<FeedNumber>,
}

impl std::fmt::Debug for FeedWatcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FeedWatcher")
            .field("watch", &self.watch.tally())
            .finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct Feed {
    url: Arc<str>,
    /// After the last entry that was accepted.
    place: Option<Bookmark>,
    /// Where its updates are told.
    sup: Option<SupAddress>,
    /// How many entries of this look were handed over, and up to which they were accepted.
    delivered: u64,
    accepted: u64,
    /// What came of the look, as long as not all is accepted.
    over: Option<Outcome>,
}

impl Feed {
    fn note(&self, update: Option<&str>) -> Note {
        Note::feed(&self.url, self.place.as_ref(), self.sup.as_ref(), update)
    }
}

#[derive(Debug)]
struct Outcome {
    looked: Looked,
    place: Option<Bookmark>,
}

#[expect(clippy::large_enum_variant, reason = "few of them live at a time")]
#[derive(Debug)]
enum Event {
    Entry(FeedNumber, Delivery),
    Looked(FeedNumber, Outcome, Option<ConsumerError>),
    Heard(
        SourceNumber,
        Url,
        Result<Option<(SupDocument, Option<String>)>, FetchError>,
    ),
}

#[derive(Clone, Debug)]
struct Options {
    since: Since,
    timeouts: Timeouts,
    document_bytes_max: Option<usize>,
    token: Option<String>,
    allowed_origins: Vec<Url>,
}

/// Makes a [`FeedWatcher`].
pub struct WatchBuilder {
    urls: Vec<String>,
    pace: Pace,
    options: Options,
    transport: Option<Arc<dyn Transport>>,
    state: Option<StateFolder>,
}

impl std::fmt::Debug for WatchBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WatchBuilder").finish_non_exhaustive()
    }
}

impl WatchBuilder {
    /// Remembers in a folder what was accepted of each feed, and up to where SUP documents were heard.
    #[must_use]
    pub fn state(self, state: StateFolder) -> Self {
        Self {
            state: Some(state),
            ..self
        }
    }

    /// Says where to begin in feeds that were never seen; with the next entry to come by default.
    #[must_use]
    pub fn since(mut self, since: Since) -> Self {
        self.options.since = since;
        self
    }

    /// Looks so often at a feed that no SUP document tells about; every 30 minutes by default.
    #[must_use]
    pub fn interval(mut self, interval: Duration) -> Self {
        self.pace.interval = interval;
        self
    }

    /// Hears SUP documents at most so often; a little faster than their period by default.
    #[must_use]
    pub fn sup_interval(mut self, sup_interval: Duration) -> Self {
        self.pace.sup_interval = sup_interval;
        self
    }

    /// Waits so long for answers; a transport of your own has its own patience.
    #[must_use]
    pub fn timeouts(mut self, timeouts: Timeouts) -> Self {
        self.options.timeouts = timeouts;
        self
    }

    /// Accepts documents of at most this many decoded bytes; 64 MiB by default.
    #[must_use]
    pub fn document_bytes_max(mut self, document_bytes_max: usize) -> Self {
        self.options.document_bytes_max = Some(document_bytes_max);
        self
    }

    /// Sends a bearer token to the origins of the feeds, and to no other.
    #[must_use]
    pub fn bearer_token(mut self, token: impl Into<String>) -> Self {
        self.options.token = Some(token.into());
        self
    }

    /// Allows links, redirects and SUP documents to lead to the origin of `url`, too. By default nothing is
    /// asked anywhere but at a feed's own origin.
    #[must_use]
    pub fn allow_origin(mut self, url: Url) -> Self {
        self.options.allowed_origins.push(url);
        self
    }

    /// Brings another transport.
    #[must_use]
    pub fn transport(self, transport: Arc<dyn Transport>) -> Self {
        Self {
            transport: Some(transport),
            ..self
        }
    }

    /// Makes the watcher. Nothing is fetched yet.
    ///
    /// # Errors
    ///
    /// See [`WatchError`].
    pub fn build(self) -> Result<FeedWatcher, WatchError> {
        let Self {
            urls,
            pace,
            options,
            transport,
            state,
        } = self;
        let count = urls.len();
        if !(1..=WATCHED_FEEDS_MAX).contains(&count) {
            return Err(WatchError::Count { count });
        }
        let transport = options.transport(transport)?;
        let seed = u64::from(std::process::id());
        let mut watch = Watch::new(pace, seed);
        let (book, mut notes) = match state {
            Some(state) => {
                let (book, notes) = Book::open(state)?;
                (Some(book), notes)
            }
            None => (None, book::Notes::default()),
        };
        for (document, updated) in &notes.heard {
            watch.heard_before(document, *updated);
        }
        let mut feeds: Vec<Feed> = vec![];
        let (mut given, mut origins) = (HashSet::new(), HashSet::new());
        for url in urls {
            let url: Arc<str> = url.into();
            if !given.insert(Arc::clone(&url)) {
                continue;
            }
            let consumer = options.consumer(&url, None, &transport)?;
            origins.insert(consumer.origin());
            let known = notes.feeds.remove(&*url).unwrap_or_default();
            let Known {
                place, sup, update, ..
            } = known;
            // What was never read is looked at in any case.
            let is_read = place.is_some();
            let told = sup.clone().filter(|_| is_read);
            watch.add_feed(told, update.as_deref().filter(|_| is_read));
            feeds.push(Feed {
                url,
                place,
                sup,
                delivered: 0,
                accepted: 0,
                over: None,
            });
        }
        let (tell, events) = mpsc::channel(AHEAD);
        Ok(FeedWatcher {
            watch,
            began: time::Instant::now(),
            feeds,
            options,
            transport,
            origins,
            tags: HashMap::new(),
            tasks: JoinSet::new(),
            events,
            tell,
            ahead: Arc::default(),
            troubles: VecDeque::new(),
            book,
            others: notes.into_notes(),
            saved_at: time::Instant::now(),
            changed: HashSet::new(),
        })
    }
}

impl Options {
    fn transport(
        &self,
        brought: Option<Arc<dyn Transport>>,
    ) -> Result<Arc<dyn Transport>, ConsumerError> {
        match brought {
            Some(transport) => Ok(transport),
            None => transport::ready_made(self.timeouts).map_err(ConsumerError::Transport),
        }
    }

    fn consumer(
        &self,
        url: &str,
        place: Option<Bookmark>,
        transport: &Arc<dyn Transport>,
    ) -> Result<Consumer, ConsumerError> {
        let mut builder = Consumer::builder(url)
            .since(self.since.clone())
            .transport(Arc::clone(transport));
        if let Some(place) = place {
            builder = builder.resume(place);
        }
        if let Some(bytes) = self.document_bytes_max {
            builder = builder.document_bytes_max(bytes);
        }
        if let Some(token) = &self.token {
            builder = builder.bearer_token(token);
        }
        for origin in &self.allowed_origins {
            builder = builder.allow_origin(origin.clone());
        }
        builder.build()
    }
}

impl FeedWatcher {
    /// Begins with the feeds' URLs: of each the short one, or that of any of its documents.
    pub fn builder(urls: impl IntoIterator<Item = impl Into<String>>) -> WatchBuilder {
        WatchBuilder {
            urls: urls.into_iter().map(Into::into).collect(),
            pace: Pace {
                interval: Duration::from_secs(WATCH_SECONDS_DEFAULT),
                sup_interval: Duration::ZERO,
            },
            options: Options {
                since: Since::Newest,
                timeouts: Timeouts::default(),
                document_bytes_max: None,
                token: None,
                allowed_origins: vec![],
            },
            transport: None,
            state: None,
        }
    }

    /// Waits for the next entry of any feed, or for something that went wrong. The entries of one feed come
    /// in order. A feed is not looked at again before its entries are accepted.
    ///
    /// Cancel safe: nothing is lost if the future is dropped.
    ///
    /// # Errors
    ///
    /// [`WatchError::State`] if what was seen cannot be remembered.
    pub async fn next(&mut self) -> Result<Watched, WatchError> {
        loop {
            if let Some(trouble) = self.troubles.pop_front() {
                return Ok(trouble);
            }
            let due = self.begin_what_is_due();
            let save_at = self.saved_at + SAVE_EVERY;
            let wakes = due.map_or(save_at, |due| due.min(save_at));
            tokio::select! {
                biased;
                event = self.events.recv() => {
                    if let Some(entry) = event.and_then(|event| self.take(event)) {
                        return Ok(Watched::Entry(entry));
                    }
                }
                () = time::sleep_until(wakes) => {
                    if time::Instant::now() >= save_at {
                        self.save(&[])?;
                    }
                }
            }
        }
    }

    /// Returns how many entries were read that [`next`](Self::next) has not returned yet: a good time to
    /// accept is when it is 0.
    pub fn ready(&self) -> usize {
        self.ahead.load(Ordering::Relaxed)
    }

    /// Remembers that these entries, and all before them of the same feeds, need not be delivered again.
    /// Durable when it returns.
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
        let mut accepted = vec![];
        for WatchedEntry {
            number, delivery, ..
        } in entries
        {
            let feed = self.feed_mut(*number);
            if delivery.number > feed.accepted {
                feed.accepted = delivery.number;
                feed.place = Some(delivery.bookmark());
                accepted.push(*number);
            }
        }
        // Before anything is told that lets a SUP document count as heard.
        self.save(&accepted)?;
        for number in accepted {
            self.end_look(number);
        }
        Ok(())
    }

    /// Returns what was done so far.
    pub fn tally(&self) -> Tally {
        self.watch.tally()
    }

    /// Starts what is due, as far as there is room. Returns when something is.
    fn begin_what_is_due(&mut self) -> Option<time::Instant> {
        while self.tasks.try_join_next().is_some() {}
        while self.tasks.len() < WATCHED_TOGETHER_MAX {
            let now = self.began.elapsed();
            match self.watch.next(now) {
                Next::Look { feed, fresh } => self.look(feed, fresh),
                Next::Hear { source, url, fresh } => self.hear(source, url, fresh),
                Next::Wait(until) => return Some(self.began + until),
                Next::Nothing => return None,
            }
        }
        // Whatever ends makes room.
        None
    }

    fn look(&mut self, number: FeedNumber, fresh: bool) {
        let feed = self.feed_mut(number);
        (feed.delivered, feed.accepted) = (0, 0);
        let (url, place) = (Arc::clone(&feed.url), feed.place.clone());
        let consumer = self.options.consumer(&url, place, &self.transport);
        let (tell, ahead) = (self.tell.clone(), Arc::clone(&self.ahead));
        self.tasks.spawn(async move {
            let (outcome, error) = match consumer {
                Ok(consumer) => read(number, consumer.looking_once(fresh), &tell, &ahead).await,
                Err(error) => (failed(true), Some(error)),
            };
            // Nobody listens any more if it fails.
            drop(tell.send(Event::Looked(number, outcome, error)).await);
        });
    }

    fn hear(&mut self, source: SourceNumber, url: Url, fresh: bool) {
        let mut fetcher = Fetcher::new(Arc::clone(&self.transport), &url);
        if let Some(bytes) = self.options.document_bytes_max {
            fetcher = fetcher.document_bytes_max(bytes);
        }
        if let Some(token) = &self.options.token
            && self.origins.contains(&url.origin())
        {
            fetcher = fetcher.bearer_token(token);
        }
        let known = self.tags.get(&url).cloned();
        let tell = self.tell.clone();
        self.tasks.spawn(async move {
            let heard = fetcher.sup(&url, known.as_deref(), fresh).await;
            drop(tell.send(Event::Heard(source, url, heard)).await);
        });
    }

    /// Takes what a task tells. Returns an entry to hand over.
    fn take(&mut self, event: Event) -> Option<WatchedEntry> {
        match event {
            Event::Entry(number, delivery) => {
                self.ahead.fetch_sub(1, Ordering::Relaxed);
                let feed = self.feed_mut(number);
                feed.delivered = delivery.number;
                return Some(WatchedEntry {
                    feed: Arc::clone(&feed.url),
                    delivery,
                    number,
                });
            }
            Event::Looked(number, outcome, error) => {
                let feed = self.feed_mut(number);
                let url = Arc::clone(&feed.url);
                feed.over = Some(outcome);
                self.troubles.extend(error.map(|error| trouble(url, error)));
                self.end_look(number);
            }
            Event::Heard(source, url, heard) => self.heard(source, &url, heard),
        }
        None
    }

    fn heard(
        &mut self,
        source: SourceNumber,
        url: &Url,
        heard: Result<Option<(SupDocument, Option<String>)>, FetchError>,
    ) {
        let now = self.began.elapsed();
        let heard = match heard {
            Ok(None) => Heard::Same,
            Ok(Some((document, tag))) => {
                match tag {
                    Some(tag) => self.tags.insert(url.clone(), tag),
                    None => self.tags.remove(url),
                };
                Heard::Document(document)
            }
            Err(error) => {
                self.tags.remove(url);
                self.troubles
                    .push_back(trouble(url.as_str().into(), error.into()));
                Heard::Nothing
            }
        };
        self.watch.heard(source, now, heard);
    }

    /// Ends a look once everything that came of it is accepted.
    fn end_look(&mut self, number: FeedNumber) {
        let now = self.began.elapsed();
        let feed = self.feed_mut(number);
        let Some(outcome) = feed.over.take_if(|_| feed.accepted == feed.delivered) else {
            return;
        };
        let Outcome { looked, place } = outcome;
        let is_done = match &looked {
            Looked::Read { sup, .. } => {
                match sup {
                    Announcement::Untold => {}
                    Announcement::Nowhere => feed.sup = None,
                    Announcement::At(address) => feed.sup = Some(address.clone()),
                }
                true
            }
            Looked::Failed { for_good } => *for_good,
        };
        if place.is_some() {
            feed.place = place;
        }
        self.changed.insert(number);
        self.watch.looked(number, now, looked);
        if is_done {
            self.watch.handled(number);
        }
    }

    /// Remembers what was accepted, durably, and what else has changed.
    fn save(&mut self, accepted: &[FeedNumber]) -> Result<(), WatchError> {
        let is_due = self.saved_at.elapsed() >= SAVE_EVERY;
        if accepted.is_empty() && !is_due {
            return Ok(());
        }
        let mut numbers: HashSet<FeedNumber> = accepted.iter().copied().collect();
        if is_due {
            numbers.extend(self.changed.drain());
            self.saved_at = time::Instant::now();
        }
        let Some(book) = &mut self.book else {
            return Ok(());
        };
        let (feeds, watch, others) = (&self.feeds, &self.watch, &self.others);
        let heard = || {
            watch
                .settled()
                .map(|(url, updated)| Note::heard(url, updated))
        };
        let note = |number: FeedNumber, feed: &Feed| feed.note(watch.handled_update(number));
        let changed = numbers.iter().filter_map(|number| {
            let index = usize::try_from(number.0).expect("32 bits fit into an index");
            Some(note(*number, feeds.get(index)?))
        });
        let mut notes: Vec<Note> = changed.collect();
        if is_due {
            notes.extend(heard());
        }
        let all = || {
            let feeds = (0..).map(FeedNumber).zip(feeds);
            let feeds = feeds.map(|(number, feed)| note(number, feed));
            feeds.chain(others.iter().cloned()).chain(heard()).collect()
        };
        Ok(book.note(&notes, all)?)
    }

    fn feed_mut(&mut self, number: FeedNumber) -> &mut Feed {
        let index = usize::try_from(number.0).expect("32 bits fit into an index");
        self.feeds
            .get_mut(index)
            .expect("numbers are in the order of the feeds")
    }
}

fn trouble(url: Arc<str>, error: ConsumerError) -> Watched {
    Watched::Trouble {
        url,
        error: Arc::new(error),
    }
}

fn failed(for_good: bool) -> Outcome {
    Outcome {
        looked: Looked::Failed { for_good },
        place: None,
    }
}

/// Reads a feed up to its end, and hands over what is new.
async fn read(
    number: FeedNumber,
    mut consumer: Consumer,
    tell: &mpsc::Sender<Event>,
    ahead: &AtomicUsize,
) -> (Outcome, Option<ConsumerError>) {
    let mut news = false;
    loop {
        match consumer.next().await {
            Ok(Some(delivery)) => {
                news = true;
                ahead.fetch_add(1, Ordering::Relaxed);
                // Whether it is accepted is seen where it is taken.
                let is_kept = consumer.accept(&delivery).await.is_ok();
                if !is_kept || tell.send(Event::Entry(number, delivery)).await.is_err() {
                    return (failed(false), None);
                }
            }
            Ok(None) => {
                let looked = Looked::Read {
                    news,
                    sup: consumer.announced(),
                };
                let place = consumer.place().cloned();
                return (Outcome { looked, place }, None);
            }
            Err(error) => return (failed(!error.is_transient()), Some(error)),
        }
    }
}

#[cfg(test)]
mod tests;
