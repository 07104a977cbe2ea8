//! The consumer: a stream of entries with a durable bookmark.
//!
//! Shell: fetches the documents that the replay asks for, waits, retries, and keeps the bookmark.
//! [`Replay`] decides which document comes next and which entries may be delivered.
//!
//! A consumer is in one of five states, and never in two:
//!
//! | state | caller sees |
//! | --- | --- |
//! | behind | [`Consumer::next`] returns the next entry |
//! | caught up | [`Consumer::next`] returns `None`; a consumer that follows waits |
//! | gap: entries have left the feed | [`WalkError::is_gap`] |
//! | another feed | [`WalkError::AnotherFeed`] |
//! | history changed: server rolled back, or frozen bytes differ | [`WalkError::HistoryChanged`] |
//!
//! The last three are final. Of all other errors, [`ConsumerError::is_transient`] marks those that
//! may go away by themselves.

use std::{
    collections::{HashMap, VecDeque},
    pin::Pin,
    sync::Arc,
    time::Duration,
};

use serde::de::DeserializeOwned;
use simplefeed_core::{
    digest::Digest,
    feed::Position,
    index::IndexBlock,
    limits::{FROZEN_REMEMBERED_MAX, PLAIN_POLL_SECONDS_DEFAULT, POLL_SECONDS_MIN},
    reader::FeedFault,
    replay::{Ask, AskKind, Bookmark, EntryRun, Replay, Start, WalkError},
    sup::Announcement,
    timestamp::Timestamp,
};
use tokio::time;
use url::Url;

use crate::{
    bookmark::AnyStore,
    delivery::{Delivery, TypedDelivery},
    fetch::{FetchError, FetchOutcome, Fetcher, Freshness, ServerLinks},
    observer::{Observer, behind},
    patience::{ATTEMPTS, asks_too_much, back_off, jittered},
    transport::TransportError,
    waker::{WaitOutcome, WakeBy, Waker},
};

mod ahead;
mod builder;
mod looks;
mod stream;

pub use crate::error::ConsumerError;
use ahead::Ahead;
pub use builder::Builder;
use looks::{Look, fetch_waiting};
use stream::Ledger;
pub use stream::StreamItem;

/// Time between two saves of the bookmark in [`Consumer::into_stream`], while some entries are not
/// accepted yet.
const ACCEPT_EVERY: Duration = Duration::from_secs(1);

/// Where to begin if there is no bookmark.
///
/// # Examples
///
/// ```
/// use simplefeed_client::{Consumer, Since};
///
/// let orders = Consumer::builder("https://example.org/feeds/orders");
/// let orders = orders.since(Since::Entry("urn:order:7".into())); // begins with the one after it
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Since {
    /// With the oldest entry of the feed.
    Oldest,
    /// With the next entry to come.
    Newest,
    /// With the first entry at or after an instant.
    Time(Timestamp),
    /// After the entry with this id.
    Entry(String),
}

/// Action at a gap: the bookmarked entry, or a document on the way, has left the feed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnGap {
    /// Stop, and leave the bookmark where it is: a person decides.
    #[default]
    Stop,
    /// Notify the [`Observer`], and go on from the oldest entry left. Entries between the bookmark
    /// and that entry are lost.
    GoOn,
}

/// Follows a feed.
///
/// # Examples
///
/// The first example of the [crate] shows how entries are read one by one. As a stream:
///
/// ```no_run
/// use std::pin::pin;
/// use futures_util::StreamExt as _;
/// use simplefeed_client::Consumer;
///
/// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
/// let feed = Consumer::builder("https://example.org/feeds/orders").build()?;
/// let mut orders = pin!(feed.into_stream());
/// while let Some(order) = orders.next().await {
///     let order = order?;
///     println!("{}", order.id());
///     order.accept().await?;
/// }
/// # Ok(()) }
/// ```
///
/// In batches, each of which ends where the next entry needs a request:
///
/// ```no_run
/// use simplefeed_client::Consumer;
///
/// # async fn store(batch: &[simplefeed_client::Delivery]) -> Result<(), std::io::Error> { Ok(()) }
/// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
/// let mut feed = Consumer::builder("https://example.org/feeds/orders").build()?;
/// let mut batch = vec![];
/// while let Some(delivery) = feed.next().await? {
///     batch.push(delivery);
///     if feed.ready() == 0 {
///         store(&batch).await?;
///         feed.accept(&batch[batch.len() - 1]).await?; // covers all before it
///         println!("{:?} entries to go", feed.remaining());
///         batch.clear();
///     }
/// }
/// if feed.is_stale() {
///     eprintln!("the server is away; there may be more");
/// }
/// # Ok(()) }
/// ```
pub struct Consumer {
    fetcher: Fetcher,
    replay: Replay,
    ledger: Arc<Ledger>,
    follow: bool,
    observer: Box<dyn Observer>,
    queue: VecDeque<Delivery>,
    /// The bookmark as the store has it.
    kept: Option<Bookmark>,
    beginning: PlaceSource,
    /// Time before which no request is sent: the end of a pause between looks, or after a failure.
    not_before: Option<time::Instant>,
    waker: Waker,
    /// Reason for the next look.
    look: Look,
    /// Position that a stream named and no look has reached, with the number of looks for that
    /// position.
    told: Option<(Position, u32)>,
    /// Position of the last entry before the place at which the last round ended.
    here: Option<Position>,
    /// Whether this round has read entries.
    has_news: bool,
    /// Request without an answer yet. A dropped future of [`Consumer::next`] leaves the request
    /// pending.
    on_the_way: Option<OnTheWay>,
    /// Documents fetched before the walk asks for them.
    ahead: Ahead,
    /// Number of successful answers so far.
    answers: u64,
    /// Failed attempts in a row; the back-off grows with their number.
    failures: u32,
    /// Freshness of the last answer about the recent document.
    freshness: Freshness,
    frozen: ImmutableDigests,
    /// SUP announcement in the last answer about the recent document.
    announced: Announcement,
    /// Number of failed attempts at one request after which a consumer that does not follow gives
    /// up.
    attempts: u32,
    /// Whether requests for the recent document carry `no-cache`.
    fresh: bool,
    on_gap: OnGap,
    /// Time between looks at a plain feed without freshness information.
    interval: Duration,
    /// Gap that was passed last, until `take_gap` returns the gap.
    gap: Option<WalkError>,
    /// Gap that was passed in this round.
    passed: Option<WalkError>,
    faults: Faults,
    /// Earliest time of a look after a wake.
    woken_from: Option<time::Instant>,
    /// When the last request for the recent document began.
    looked_at: Option<time::Instant>,
    /// End of the last round, until the place is kept.
    ended: Option<RoundEnd>,
    /// Last entry accepted since `kept`. The bookmark is built on demand, because a bookmark can be
    /// as long as the document.
    accepted: Option<Delivery>,
}

/// Source of the place to begin at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PlaceSource {
    /// The caller. The store is opened, but the store's bookmark does not count.
    Given,
    /// The store, if it has a bookmark.
    Stored,
    /// The store was opened.
    Settled,
}

/// The digests of foreign documents that were marked immutable, by their URLs.
#[derive(Debug, Default)]
struct ImmutableDigests(HashMap<Url, Digest>);

impl ImmutableDigests {
    /// Checks an immutable document against the remembered digest of the URL. At most
    /// [`FROZEN_REMEMBERED_MAX`] digests are remembered.
    fn check_frozen(&mut self, url: &Url, digest: Option<Digest>) -> Result<(), FetchError> {
        let Some(digest) = digest else { return Ok(()) };
        match self.0.get(url) {
            Some(before) if *before != digest => Err(FetchError::Changed { url: url.clone() }),
            Some(_) => Ok(()),
            None => {
                // A document beyond the bound goes unchecked: memory stays bounded however long the
                // archive is.
                if self.0.len() < FROZEN_REMEMBERED_MAX {
                    self.0.insert(url.clone(), digest);
                }
                Ok(())
            }
        }
    }
}

/// Faults of the feed's documents.
#[derive(Debug, Default)]
struct Faults {
    /// A bit for each kind that was found.
    kinds: u16,
    /// Faults found since the last call of `take_faults`.
    new: Vec<FeedFault>,
}

impl Faults {
    /// Notes a fault. Returns whether it is the first of its kind.
    fn note_fault(&mut self, fault: &FeedFault) -> bool {
        let bit = 1 << fault.kind();
        let is_new = self.kinds & bit == 0;
        self.kinds |= bit;
        if is_new {
            self.new.push(fault.clone());
        }
        is_new
    }
}

impl std::fmt::Debug for Consumer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Consumer")
            .field("replay", &self.replay)
            .finish_non_exhaustive()
    }
}

impl Consumer {
    /// Returns a builder for the feed at this URL: the URL of the feed itself, or of any of the
    /// feed's documents.
    pub fn builder(url: impl Into<String>) -> Builder {
        Builder::new(url.into())
    }

    fn new(
        fetcher: Fetcher,
        replay: Replay,
        store: Option<Box<dyn AnyStore>>,
        beginning: PlaceSource,
        follow: bool,
        observer: Box<dyn Observer>,
    ) -> Self {
        Self {
            fetcher,
            replay,
            ledger: Ledger::new(store),
            follow,
            observer,
            queue: VecDeque::new(),
            kept: None,
            beginning,
            not_before: None,
            waker: Waker::new(WakeBy::Poll),
            look: Look::Next,
            told: None,
            here: None,
            has_news: false,
            on_the_way: None,
            ahead: Ahead::default(),
            answers: 0,
            failures: 0,
            freshness: Freshness::default(),
            frozen: ImmutableDigests::default(),
            announced: Announcement::Untold,
            attempts: ATTEMPTS,
            fresh: false,
            on_gap: OnGap::Stop,
            interval: Duration::from_secs(PLAIN_POLL_SECONDS_DEFAULT),
            gap: None,
            passed: None,
            faults: Faults::default(),
            woken_from: None,
            looked_at: None,
            ended: None,
            accepted: None,
        }
    }

    fn on_gap(self, on_gap: OnGap) -> Self {
        Self { on_gap, ..self }
    }

    fn wake_by(self, best: WakeBy) -> Self {
        // A consumer that does not follow never rests, so nothing needs to wake the consumer.
        let best = if self.follow { best } else { WakeBy::Poll };
        let waker = Waker::new(best);
        Self { waker, ..self }
    }

    fn interval(self, interval: Duration) -> Self {
        Self { interval, ..self }
    }

    /// Returns the pause before the next look at the recent document.
    fn poll_after(&self) -> Duration {
        // `max-age=0` counts as no freshness information: otherwise a plain feed would be polled
        // every second.
        let told = self.freshness.told().filter(|told| !told.is_zero());
        match told {
            None if self.replay.is_plain() => self.interval,
            _ => self.freshness.poll_after(),
        }
    }

    /// Returns the gap that was passed since the last call, if there is one.
    pub(crate) fn take_gap(&mut self) -> Option<WalkError> {
        self.gap.take()
    }

    /// Returns the faults of the feed that were found since the last call, one of each kind.
    pub(crate) fn take_faults(&mut self) -> Vec<FeedFault> {
        std::mem::take(&mut self.faults.new)
    }

    /// Limits each request to one attempt. With `fresh`, requests for the recent document carry
    /// `no-cache`.
    pub(crate) fn looking_once(self, fresh: bool) -> Self {
        Self {
            attempts: 1,
            fresh,
            ..self
        }
    }

    /// Returns whether any entry was read.
    pub(crate) fn has_delivered(&self) -> bool {
        self.ledger.has_delivered()
    }

    /// Drops the pending request and the requests ahead of the walk. The next call of
    /// [`next`](Self::next) sends the pending request again.
    pub(crate) fn pause(&mut self) {
        self.on_the_way = None;
        self.ahead.recall();
    }

    /// Returns the number of successful answers so far.
    pub(crate) fn answers(&self) -> u64 {
        self.answers
    }

    /// Returns the error that the next request takes too long; `None` if no request comes next.
    pub(crate) fn overdue(&self) -> Option<ConsumerError> {
        let url = self.replay.ask()?.url;
        let source = TransportError {
            detail: "the server took too long".into(),
            transient: true,
            source: None,
        };
        Some(FetchError::Transport { url, source }.into())
    }

    /// Returns the SUP announcement in the last answer about the recent document.
    pub(crate) fn announced(&self) -> Announcement {
        self.announced.clone()
    }

    /// Returns the origin of the feed's URL.
    pub(crate) fn origin(&self) -> url::Origin {
        self.fetcher.home()
    }

    /// Returns the place after the last accepted entry, or else the last place kept.
    pub(crate) fn place(&self) -> Option<Bookmark> {
        let accepted = self.accepted.as_ref().map(Delivery::bookmark);
        accepted.or_else(|| self.kept.clone())
    }

    /// Returns the next entry, or `None` when everything that was there at the first look has been
    /// delivered (never, if the consumer follows). After `None`, the next call looks again.
    ///
    /// Cancel safe: no entry is lost if the future is dropped.
    ///
    /// # Errors
    ///
    /// See [`ConsumerError`]. After a transient error the call can be repeated: the repeat waits
    /// until the next attempt is due. A consumer that follows waits out failures of the server by
    /// itself.
    pub async fn next(&mut self) -> Result<Option<Delivery>, ConsumerError> {
        self.open_bookmark().await?;
        loop {
            if !self.queue.is_empty() {
                // The beginning is noted before the hand-over: otherwise, after a crash in the
                // first entry's handler, `Since::Newest` would begin behind that entry.
                self.note_beginning().await?;
                return Ok(self.queue.pop_front());
            }
            if self.ended.is_none()
                && let Some(ask) = self.replay.ask()
            {
                self.fetch_next(&ask).await?;
                continue;
            }
            if self.end_round().await? && !self.follow {
                return Ok(None);
            }
        }
    }

    /// Returns the next entry with its JSON content as a `T`; otherwise as [`next`](Self::next).
    ///
    /// Cancel safe.
    ///
    /// # Errors
    ///
    /// As [`next`](Self::next). Content that is no `T` is an error of the entry
    /// ([`TypedDelivery::content`]), and none of the call.
    pub async fn next_typed<T: DeserializeOwned>(
        &mut self,
    ) -> Result<Option<TypedDelivery<T>>, ConsumerError> {
        Ok(self.next().await?.map(Delivery::typed))
    }

    /// Goes on from the bookmark of the store, if there is one.
    async fn open_bookmark(&mut self) -> Result<(), ConsumerError> {
        if self.beginning == PlaceSource::Settled {
            return Ok(());
        }
        // An unreadable bookmark stops the consumer: a new beginning would repeat or skip entries.
        let stored = self.ledger.load().await?;
        if let Some(bookmark) = stored.filter(|_| self.beginning == PlaceSource::Stored) {
            self.replay.start_at(Start::Bookmark(bookmark.clone()));
            self.kept = Some(bookmark);
        }
        // Set last, so that the next call repeats a load that failed, or whose future was dropped.
        self.beginning = PlaceSource::Settled;
        Ok(())
    }

    /// Keeps the place before the first entry. A consumer that ends while the first entry is
    /// handled begins again at this place.
    async fn note_beginning(&mut self) -> Result<(), ConsumerError> {
        if self.kept.is_none()
            && self.accepted.is_none()
            && let Some(place) = self.replay.begins_after()
            && self.ledger.begin(&place).await?
        {
            self.kept = Some(place);
        }
        Ok(())
    }

    /// Returns the number of entries that [`next`](Self::next) returns without a request. 0 marks a
    /// good time to accept.
    pub fn ready(&self) -> usize {
        self.queue.len()
    }

    /// Returns the number of entries of this round behind those that are [`ready`](Self::ready).
    /// `None` where the number is unknown: on the way back through the archive, and in foreign
    /// feeds.
    pub fn remaining(&self) -> Option<u64> {
        match self.replay.ask() {
            None => Some(0),
            Some(_) => self.replay.remaining(),
        }
    }

    /// Returns whether a cache answered the last look at the recent document with a stale copy, as
    /// may happen while the server is down. Newer entries may exist.
    pub fn is_stale(&self) -> bool {
        self.freshness.is_past()
    }

    /// Remembers that an entry of this consumer, and all earlier entries, need not be delivered
    /// again. The place is durable when the call returns.
    ///
    /// Cancel safe if the store is: a dropped future may have kept the place or not, and a repeat
    /// of the call keeps the place.
    ///
    /// # Errors
    ///
    /// [`ConsumerError::Bookmark`] if the place cannot be kept. [`ConsumerError::NotDelivered`] for
    /// an entry of another consumer.
    pub async fn accept(&mut self, delivery: &Delivery) -> Result<(), ConsumerError> {
        if self.ledger.accept_up_to(delivery).await? {
            self.accepted = Some(delivery.clone());
        }
        Ok(())
    }

    /// Returns the place from which a restart begins: behind the last accepted entry, or before the
    /// first entry delivered.
    pub(crate) fn begins_after(&self) -> Option<Bookmark> {
        self.place().or_else(|| self.replay.begins_after())
    }

    /// Returns the observer, which a worker notifies, too.
    pub(crate) fn observer(&mut self) -> &mut dyn Observer {
        &mut *self.observer
    }

    /// Returns whether the consumer waits for entries to come.
    pub(crate) fn follows(&self) -> bool {
        self.follow
    }

    /// Returns the place to begin at, and delivers nothing. Another consumer that resumes from this
    /// bookmark begins where this one would have. (There is one exception: if [`Since::Time`] is in
    /// the future, a bookmark cannot record that entries before that time are to be passed over.)
    ///
    /// A dropped future has changed nothing.
    ///
    /// # Errors
    ///
    /// As [`next`](Self::next).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use simplefeed_client::{BookmarkStore as _, Consumer, FileBookmark, Since};
    ///
    /// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
    /// let feed = Consumer::builder("https://example.org/feeds/orders").since(Since::Newest);
    /// let place = feed.build()?.locate().await?;
    /// FileBookmark::open("orders.bookmark")?.save(&place).await?;
    /// # Ok(()) }
    /// ```
    pub async fn locate(mut self) -> Result<Bookmark, ConsumerError> {
        self.open_bookmark().await?;
        loop {
            if let Some(place) = self.replay.begins_after() {
                return Ok(place);
            }
            match self.replay.ask() {
                Some(ask) => self.fetch_next(&ask).await?,
                None => drop(self.end_round().await?),
            }
        }
    }

    /// Fetches one document or index block, once the request is due.
    ///
    /// Cancel safe: a dropped future leaves the request pending, and the next call waits for that
    /// request.
    async fn fetch_next(&mut self, ask: &Ask) -> Result<(), ConsumerError> {
        if let Some(due) = self.not_before {
            self.pause_until(due).await;
            // Cleared only now, because a dropped future leaves the rest of the pause to the next
            // call.
            self.not_before = None;
        }
        // If a request is pending, that request has taken the flight of this document already, and
        // no flight is left to take.
        let flight = self.ahead.take(ask);
        let request = self.on_the_way.get_or_insert_with(|| {
            let (fetcher, mut ask) = (self.fetcher.clone(), ask.clone());
            let mut wait = None;
            if ask.kind == AskKind::Recent {
                self.looked_at = Some(time::Instant::now());
                ask.again |= self.fresh || self.look == Look::Woken;
                // Without an entity tag, the server answers a wait at once.
                let waits = matches!(self.look, Look::Waiting(_)) && ask.known.etag.is_some();
                wait = self.waker.wait_url().filter(|_| waits);
            }
            // Without a wait this is a plain look, and the answer says nothing about waits.
            if wait.is_none() && matches!(self.look, Look::Waiting(_)) {
                self.look = Look::Next;
            }
            Box::pin(async move {
                if let Some(url) = wait {
                    return fetch_waiting(&fetcher, &url, &ask).await;
                }
                match flight {
                    Some(flight) => match flight.await {
                        Ok(Ok(fetched)) => Ok(AskAnswer::Document(fetched)),
                        // `Retry-After` of the early request holds here, too: a second request at
                        // once would ignore that pause.
                        Ok(Err(error)) if error.retry_after().is_some() => Err(error),
                        // Any other failure of the early request counts for nothing: the walk
                        // fetches the document itself.
                        _ => fetch_answer(&fetcher, &ask).await,
                    },
                    None => fetch_answer(&fetcher, &ask).await,
                }
            })
        });
        let answer = request.await;
        self.on_the_way = None;
        if let Look::Waiting(since) = self.look {
            if let Err(error) = &answer {
                // A failed wait is no error: the poll that follows reports a lasting fault.
                let ended = if error.is_transient() {
                    WaitOutcome::Failed
                } else {
                    WaitOutcome::Absent
                };
                self.waker.waited(ended);
                self.look = Look::Next;
                return Ok(());
            }
            // A proxy that knows nothing of waits answers at once.
            let least = Duration::from_secs(POLL_SECONDS_MIN);
            self.look = Look::Waited(since.elapsed() >= least);
            self.waker.waited(WaitOutcome::Answered);
        }
        let outcome = match answer {
            Ok(answer) => self.take_answer(ask, answer),
            Err(error) => Err(error.into()),
        };
        match outcome {
            Ok(()) => {
                self.failures = 0;
                Ok(())
            }
            Err(failure) => {
                self.look = Look::Next;
                self.on_failure(ask, failure)
            }
        }
    }

    fn take_answer(&mut self, ask: &Ask, answer: AskAnswer) -> Result<(), StepFailure> {
        self.answers += 1;
        let fetched = match answer {
            AskAnswer::Index(url, block) => {
                self.ahead.learn(&url, &block);
                return Ok(self.replay.take_index(&block, &url)?);
            }
            AskAnswer::Document(fetched) => fetched,
        };
        if matches!(self.look, Look::Waited(_))
            && let FetchOutcome::Document { document, .. } = &fetched
            && !self.replay.may_be_of_feed(document)
        {
            // The wait brought a document of another feed. The look that follows decides which feed
            // is there.
            self.waker.waited(WaitOutcome::Absent);
            self.look = Look::Next;
            return Ok(());
        }
        let freshness = match &fetched {
            FetchOutcome::NotModified { freshness, .. } => self.freshness.renewed(*freshness),
            // The answer to a wait does not tell how long the document is fresh.
            FetchOutcome::Document { freshness, .. } if matches!(self.look, Look::Waited(_)) => {
                self.freshness.renewed(*freshness)
            }
            FetchOutcome::Document { freshness, .. } => *freshness,
        };
        if ask.kind == AskKind::Recent {
            match &fetched {
                FetchOutcome::NotModified { links, .. } if *links == ServerLinks::default() => {}
                FetchOutcome::NotModified { links, .. } | FetchOutcome::Document { links, .. } => {
                    self.waker.learn(links.clone());
                }
            }
            self.announced = match &fetched {
                FetchOutcome::NotModified { sup: None, .. } => Announcement::Untold,
                FetchOutcome::NotModified { sup, .. } | FetchOutcome::Document { sup, .. } => {
                    sup.clone().into()
                }
            };
            // Reported once, at the first stale copy, and not at every poll while the server is
            // down.
            if freshness.is_past() && !self.freshness.is_past() {
                self.observer.is_stale();
            }
            self.freshness = freshness;
        }
        match fetched {
            FetchOutcome::NotModified { .. } => self.replay.not_modified(),
            FetchOutcome::Document {
                url,
                document,
                validators,
                frozen,
                ..
            } => {
                self.frozen.check_frozen(&url, frozen)?;
                for fault in document.faults(&url) {
                    if self.faults.note_fault(&fault) {
                        self.observer.fault(&fault);
                    }
                }
                let taken = self.replay.take(document, &url, validators);
                let run = taken.map_err(|error| StepFailure {
                    // If the copy is stale, the cache may keep giving this copy until the end of
                    // the copy's lifetime.
                    asked: Some(freshness.let_go_after()),
                    error: error.into(),
                })?;
                self.queue_entries(run);
            }
        }
        Ok(())
    }

    fn queue_entries(&mut self, run: Option<EntryRun>) {
        let Some(run) = run else { return };
        self.has_news |= !run.entries.is_empty();
        if let Some((ask, left)) = self.replay.ask().zip(self.replay.remaining()) {
            self.ahead.look(&self.fetcher, &ask, &run.document, left);
        }
        self.observer.behind(behind(&run, self.replay.remaining()));
        // The run is shared: each delivery refers to the document's bytes and copies none.
        let run = Arc::new(run);
        for entry in &run.entries {
            let (consumer, number) = self.ledger.deliver();
            let delivery = Delivery::new(&run, *entry, consumer, number);
            self.queue.push_back(delivery);
        }
    }

    /// Handles a failure: goes another way, retries later, or gives up.
    fn on_failure(&mut self, ask: &Ask, failure: StepFailure) -> Result<(), ConsumerError> {
        let StepFailure { error, asked } = failure;
        let is_missing = matches!(error, ConsumerError::Fetch(FetchError::Missing { .. }));
        let tried_enough = self.failures + 1 >= self.attempts || asks_too_much(asked);
        // If the feed does not exist yet, a consumer that follows waits for the first entry.
        let is_awaited = self.follow
            && is_missing
            && ask.kind == AskKind::Recent
            && self.replay.wait_for_feed(a_minute_ago());
        let passes = error.is_transient() || is_awaited;
        let of_the_server = matches!(error, ConsumerError::Fetch(_));
        // The archive index only saves requests: the walk finds the way without the index.
        let another_way = ask.optional && of_the_server && (!passes || tried_enough);
        if passes {
            // Requests ahead of the walk would add to the load of a server that fails.
            self.ahead.recall();
            let pause = jittered(back_off(self.failures, asked));
            self.not_before = Some(time::Instant::now() + pause);
            self.failures += 1;
        }
        if another_way {
            // The pause that a server asks for holds for the other way, too. A caller that does not
            // follow decides about a long pause.
            if asks_too_much(asked) && !self.follow {
                return Err(error);
            }
            self.notify_retry(&error);
        }
        if another_way || (is_missing && ask.kind != AskKind::Recent) {
            self.failures = 0;
            return match self.replay.missing() {
                Ok(()) => Ok(()),
                Err(gap) => self.meet_gap(gap),
            };
        }
        if let ConsumerError::Walk(gap) = &error
            && gap.is_gap()
        {
            return self.meet_gap(gap.clone());
        }
        if !passes || (tried_enough && !(self.follow && waits_for(&error))) {
            // A consumer that follows keeps the count for the next call, so that the pauses go on
            // growing.
            if !(passes && self.follow) {
                self.failures = 0;
            }
            return Err(error);
        }
        self.notify_retry(&error);
        Ok(())
    }

    /// Returns the time that is left until the next request may be sent. After a failure there is a
    /// pause, at least as long as `Retry-After` asks for, up to a day.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn read() -> Result<(), simplefeed_client::ConsumerError> {
    /// use simplefeed_client::Consumer;
    ///
    /// let mut orders = Consumer::builder("https://example.org/feeds/orders").build()?;
    /// if let Err(error) = orders.next().await {
    ///     eprintln!("{error}; trying again in {} s", orders.retries_in().as_secs());
    /// }
    /// # Ok(()) }
    /// ```
    pub fn retries_in(&self) -> Duration {
        self.not_before.map_or(Duration::ZERO, |not_before| {
            not_before.saturating_duration_since(time::Instant::now())
        })
    }

    /// Notifies the observer that something is tried again.
    pub(crate) fn notify_retry(&mut self, error: &ConsumerError) {
        let pause = self.retries_in();
        self.observer.retrying(error, pause);
    }

    /// Passes a gap, or returns the gap as an error.
    fn meet_gap(&mut self, gap: WalkError) -> Result<(), ConsumerError> {
        // To pass the same gap twice in one round would loop for ever.
        if self.on_gap == OnGap::Stop || self.passed.as_ref() == Some(&gap) {
            return Err(gap.into());
        }
        // Documents on their way belong to the walk that met the gap.
        self.ahead.clear();
        self.observer.gap(&gap);
        self.replay.pass_gap();
        self.gap = Some(gap.clone());
        self.passed = Some(gap);
        Ok(())
    }

    /// Ends a round. The next round begins where this one ends. Returns `false` if a gap was passed
    /// and the round begins again.
    ///
    /// The place is kept, so that the next start goes on from here, unless an entry was delivered
    /// and not accepted.
    ///
    /// Cancel safe: a dropped future leaves the rest of the work to the next call.
    async fn end_round(&mut self) -> Result<bool, ConsumerError> {
        if self.ended.is_none() {
            self.ahead.clear();
            let place = match self.replay.next_round() {
                Ok(place) => place,
                Err(gap) => return self.meet_gap(gap).map(|()| false),
            };
            self.passed = None;
            // Neither a stale copy nor a round that ended early shows that nothing is left.
            let past = self.is_stale() || place.as_ref().is_some_and(looks::is_behind);
            if !past {
                self.observer.caught_up();
            }
            self.plan_look(place.as_ref());
            self.ended = Some(RoundEnd { place, past });
        }
        let kept = self.keep_end().await;
        self.ended = None;
        kept.map(|()| true)
    }

    async fn keep_end(&mut self) -> Result<(), ConsumerError> {
        let Some(RoundEnd { place, past }) = self.ended.clone() else {
            return Ok(());
        };
        // If some entries are not accepted, a save of this place would make the next start skip
        // those entries.
        let place = place.filter(|_| self.ledger.is_all_accepted());
        if let Some(place) = place.filter(|place| self.place().as_ref() != Some(place)) {
            self.ledger.keep(&place).await?;
            self.kept = Some(place);
            self.accepted = None;
        }
        // Health checks read this mark. No mark is set while newer entries may exist, or while an
        // entry is not accepted.
        if !past && self.ledger.is_all_accepted() {
            self.ledger.caught_up().await;
        }
        Ok(())
    }
}

/// End of a round whose place is not kept yet.
#[derive(Clone, Debug)]
struct RoundEnd {
    place: Option<Bookmark>,
    /// Whether newer entries may exist: a cache answered with a stale copy, or the round ended
    /// early.
    past: bool,
}

/// Returns the instant from which entries of a new feed count as new. The minute allows for a
/// server clock that is behind ours.
fn a_minute_ago() -> Timestamp {
    Timestamp::from_micros(crate::files::now().micros() - 60_000_000)
}

/// Returns whether a consumer that follows retries for ever after this error. A server may be down
/// for long; a document that stays broken or stale is a fault to report.
fn waits_for(error: &ConsumerError) -> bool {
    match error {
        ConsumerError::Fetch(error) => !matches!(error, FetchError::Malformed { .. }),
        _ => false,
    }
}

/// Pending request, kept across dropped futures.
type OnTheWay = Pin<Box<dyn Future<Output = Result<AskAnswer, FetchError>> + Send>>;

/// Answer to an [`Ask`]: a document, or a block of the archive index with its URL.
#[expect(clippy::large_enum_variant, reason = "one of it lives at a time")]
enum AskAnswer {
    Document(FetchOutcome),
    Index(Url, IndexBlock),
}

async fn fetch_answer(fetcher: &Fetcher, ask: &Ask) -> Result<AskAnswer, FetchError> {
    if ask.kind == AskKind::Index {
        let (url, block) = fetcher.index(&ask.url).await?;
        return Ok(AskAnswer::Index(url, block));
    }
    let fetched = fetcher.document(&ask.url, &ask.known, ask.again).await?;
    Ok(AskAnswer::Document(fetched))
}

/// Error of a step, and the pause that the server or a stale copy asks for.
struct StepFailure {
    error: ConsumerError,
    asked: Option<Duration>,
}

impl From<FetchError> for StepFailure {
    fn from(error: FetchError) -> Self {
        let asked = error.retry_after();
        Self {
            error: error.into(),
            asked,
        }
    }
}

impl From<WalkError> for StepFailure {
    fn from(error: WalkError) -> Self {
        Self {
            error: error.into(),
            asked: None,
        }
    }
}

impl From<Since> for Start {
    fn from(since: Since) -> Self {
        match since {
            Since::Oldest => Self::Oldest,
            Since::Newest => Self::Newest,
            Since::Time(instant) => Self::Time(instant),
            Since::Entry(id) => Self::Entry(id),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
