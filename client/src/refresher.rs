//! Copies kept fresh by age: items of a provider are looked up again and again, and each change is
//! published.
//!
//! Shell: a queue, a provider and a feed. [`simplefeed_core::refresh`] decides the steps of a
//! batch. The state of the work is in the queue, so a [`Refresher`] may be killed at any
//! instruction, and any number of refreshers may share a queue.

mod answers;
mod batch;
mod lookup;

use std::{
    convert::Infallible,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use simplefeed_core::{
    refresh::{ItemState, round::ProviderStanding},
    timestamp::Timestamp,
};
use simplefeed_queue::{
    Due, Existing, Namespace, NewJob, Queue, QueueError, ScheduleOutcome, Want,
    limits::{CALL_JOBS_MAX, KEY_BYTES_MAX},
};
use tokio::sync::{Mutex, watch};
use tracing::{Instrument as _, debug, debug_span, info, warn};

use self::batch::{LEASE, LeaseBatch};
use crate::{error::error_text, publisher::Publisher};

pub use self::lookup::{Credential, Lookup, LookupAnswer, LookupError};
pub use simplefeed_core::refresh::{IntervalLine, Intervals, TimeSpan};
pub use simplefeed_queue as queue;

/// Default number of items in a request.
const BATCH: usize = 100;
/// Default time that an item waits for a full request.
const BUFFER: Duration = Duration::from_secs(2);
/// Pause after an error of the queue or of the feed.
const PAUSE: Duration = Duration::from_secs(5);

/// Time from now after which the end of a lease counts as set by a wrong clock. The time is longer
/// than the lease of a batch, because items that are put off for a credential are leased for
/// longer.
const LEASE_AHEAD: Duration = Duration::from_mins(2);
/// Time between two looks at the queue's clock.
const CLOCK_LOOK: Duration = Duration::from_secs(10);
/// Time by which the queue's clock may go back unnoticed.
const CLOCK_BACK: Duration = Duration::from_mins(1);
/// Number of jobs that are scheduled in one call.
const START: usize = 1_000;
/// Greatest length of the URL of a related resource, in bytes.
const RELATED_BYTES_MAX: usize = 8_000;

/// A thing to be refreshed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefreshItem {
    id: String,
    born: Timestamp,
    floor: Duration,
    related: Option<String>,
}

/// The id of an item is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an item's id has 1 to {KEY_BYTES_MAX} bytes without U+0000, not as {0:?}")]
pub struct ItemError(String);

impl RefreshItem {
    /// Returns an item with the provider's id, and the instant at which the item came into being.
    /// The age decides how often the item is refreshed. The id is text, because many programs lose
    /// digits of numbers beyond 2^53.
    ///
    /// # Errors
    ///
    /// If the id is empty, longer than 1,024 bytes, or has U+0000.
    pub fn new(id: impl Into<String>, born: Timestamp) -> Result<Self, ItemError> {
        let (id, floor, related) = (id.into(), Duration::ZERO, None);
        if id.is_empty() || id.len() > KEY_BYTES_MAX || id.contains('\0') {
            return Err(ItemError(id.chars().take(64).collect()));
        }
        Ok(Self {
            id,
            born,
            floor,
            related,
        })
    }

    /// Sets the item's own least interval between two refreshes.
    #[must_use]
    pub fn floor(self, floor: Duration) -> Self {
        Self { floor, ..self }
    }

    /// Sets the URL of a related resource, for the link `related` of its events. A URL of more than
    /// 8,000 bytes is left out.
    #[must_use]
    pub fn related(self, url: impl Into<String>) -> Self {
        let related = Some(url.into()).filter(|url| url.len() <= RELATED_BYTES_MAX);
        Self { related, ..self }
    }
}

/// Error of a refresher.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RefreshError {
    /// A call of the job queue failed.
    #[error("the queue of jobs failed")]
    Queue(#[from] QueueError),
    /// There is no credential, so that no request can be made.
    #[error("a refresher has at least one credential")]
    NoCredential,
}

/// Counts of the work of a refresher and of its clones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RefreshTally {
    /// Requests to the provider.
    pub requests: u64,
    /// Items that were looked up and whose jobs were finished.
    pub items: u64,
    /// Events that were published.
    pub events: u64,
    /// Failures of single items, apart from failures of whole requests.
    pub failures: u64,
    /// Time until a credential may make a request, if workers wait because each credential pauses
    /// or has used its quota; otherwise zero.
    pub pause: Duration,
}

/// Counters behind [`RefreshTally`], shared by all clones of a refresher.
#[derive(Debug)]
struct Counters {
    requests: AtomicU64,
    items: AtomicU64,
    events: AtomicU64,
    failures: AtomicU64,
    began: Instant,
    /// Time at which a credential may make a request, in microseconds after `began`.
    pause_ends: AtomicU64,
    /// Time of the queue's clock at the latest lease or start of items, in microseconds after 1970.
    latest: AtomicI64,
}

impl Counters {
    fn new() -> Self {
        Self {
            requests: AtomicU64::new(0),
            items: AtomicU64::new(0),
            events: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            began: Instant::now(),
            pause_ends: AtomicU64::new(0),
            latest: AtomicI64::new(0),
        }
    }

    /// Notes for how long a worker waits for a credential; zero if the worker has one.
    fn note_wait(&self, time: Duration) {
        let end = self.began.elapsed().saturating_add(time).as_micros();
        let end = u64::try_from(end).unwrap_or(u64::MAX);
        self.pause_ends.store(end, Ordering::Relaxed);
    }
}

/// Adds `count` to a counter.
fn add_count(counter: &AtomicU64, count: usize) {
    counter.fetch_add(u64::try_from(count).unwrap_or(u64::MAX), Ordering::Relaxed);
}

/// Refreshes items, by any number of workers over one queue. Each clone may work, and all count
/// together.
///
/// # Examples
///
/// A provider behind a client library, with 900 requests in 15 minutes, of 50 parcels each. Jobs
/// are in memory here; a durable queue is opened from a file or from PostgreSQL, and nothing else
/// changes.
///
/// ```no_run
/// use std::time::Duration;
///
/// use simplefeed_client::{
///     Publisher, Timestamp,
///     refresher::{
///         Credential, LookupAnswer, Intervals, RefreshItem, ItemError, IntervalLine, Lookup, LookupError, RefreshError, RefreshTally, Refresher,
///         queue::{Limit, Memory, Namespace},
///     },
/// };
///
/// struct Parcels;
///
/// impl Lookup for Parcels {
///     async fn lookup(&self, ids: &[String], _: &Credential) -> Result<LookupAnswer, LookupError> {
///         let mut found = LookupAnswer::default();
///         for id in ids {
///             let state = std::fs::read_to_string(id).map_err(|error| LookupError::failed(&error))?;
///             found.insert(id.as_str(), &serde_json::json!({"state": state}))?;
///         }
///         Ok(found)
///     }
/// }
///
/// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
/// let publisher = Publisher::new("https://example.org/feeds/parcel-states")?;
/// let limit = Limit { requests: 900, window: Duration::from_mins(15) };
/// // Every ten minutes for two weeks.
/// let fortnight = IntervalLine { until: Duration::from_hours(14 * 24), interval: Duration::from_mins(10) };
/// let refresher = Refresher::new(Memory::default(), Namespace::new("parcels")?, publisher)
///     .credential(Credential::new("key", limit))
///     .intervals(Intervals::new(vec![fortnight])?)
///     .batch(50, Duration::from_secs(1))
///     .ignore(["/seen_at"])
///     .on_trouble(|text| eprintln!("{text}"));
/// let sent = Timestamp::parse("2026-01-01T08:00:00Z").unwrap();
/// let parcel: Result<RefreshItem, ItemError> = RefreshItem::new("RR123456785DE", sent);
/// let parcel = parcel?.floor(Duration::from_hours(1)).related("https://example.org/RR123456785DE");
/// let new: Result<usize, RefreshError> = refresher.start([parcel]).await;
/// new?;
/// refresher.work_until(&Parcels, tokio::signal::ctrl_c()).await?;
/// let RefreshTally { requests, events, .. } = refresher.refreshed();
/// println!("{requests} requests, {events} changes");
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Refresher<Q> {
    queue: Q,
    name: Namespace,
    publisher: Publisher,
    intervals: Intervals,
    batch: usize,
    buffer: Duration,
    credentials: Vec<Credential>,
    ignored: Vec<String>,
    counters: Arc<Counters>,
    /// Whether the provider's last answer had no item.
    is_empty: Arc<AtomicBool>,
    /// Held by the clone that looks at the clock.
    minds_clock: Arc<Mutex<()>>,
    on_trouble: Option<OnTrouble>,
}

/// Callback for failures after which work goes on.
#[derive(Clone)]
struct OnTrouble(Arc<dyn Fn(&str) + Send + Sync>);

impl fmt::Debug for OnTrouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OnTrouble")
    }
}

impl<Q: Queue> Refresher<Q> {
    /// Returns a refresher whose jobs are in a namespace of a queue, and which publishes changes to
    /// a feed.
    pub fn new(queue: Q, name: Namespace, publisher: Publisher) -> Self {
        Self {
            queue,
            name,
            publisher,
            intervals: Intervals::default(),
            batch: BATCH,
            buffer: BUFFER,
            credentials: Vec::new(),
            ignored: Vec::new(),
            counters: Arc::new(Counters::new()),
            is_empty: Arc::default(),
            minds_clock: Arc::default(),
            on_trouble: None,
        }
    }

    /// Returns the counts of the work so far.
    pub fn refreshed(&self) -> RefreshTally {
        let Counters {
            requests,
            items,
            events,
            failures,
            began,
            pause_ends,
            latest: _,
        } = &*self.counters;
        let pause_ends = Duration::from_micros(pause_ends.load(Ordering::Relaxed));
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        RefreshTally {
            requests: read(requests),
            items: read(items),
            events: read(events),
            failures: read(failures),
            pause: pause_ends.saturating_sub(began.elapsed()),
        }
    }

    /// Sets how often items are refreshed, by their age.
    #[must_use]
    pub fn intervals(self, intervals: Intervals) -> Self {
        Self { intervals, ..self }
    }

    /// Sets how many items a request asks for, at most (default 100), and how long an item waits
    /// for a full request (default 2 s).
    #[must_use]
    pub fn batch(self, batch: usize, buffer: Duration) -> Self {
        Self {
            batch,
            buffer,
            ..self
        }
    }

    /// Adds a credential with a quota. The credential that may make a request soonest makes the
    /// request.
    #[must_use]
    pub fn credential(mut self, credential: Credential) -> Self {
        self.credentials.push(credential);
        self
    }

    /// Sets the parts of an answer whose change does not count, as JSON pointers (RFC 6901).
    #[must_use]
    pub fn ignore<P: Into<String>>(self, pointers: impl IntoIterator<Item = P>) -> Self {
        let ignored = pointers.into_iter().map(Into::into).collect();
        Self { ignored, ..self }
    }

    /// Sets a callback for failures after which work goes on. The callback gets a message for
    /// people, which is logged, too.
    #[must_use]
    pub fn on_trouble(self, call: impl Fn(&str) + Send + Sync + 'static) -> Self {
        let on_trouble = Some(OnTrouble(Arc::new(call)));
        Self { on_trouble, ..self }
    }

    /// Tells of a failure after which work goes on.
    fn report_trouble(&self, text: &str) {
        warn!("{text}");
        if let Some(OnTrouble(call)) = &self.on_trouble {
            call(text);
        }
    }

    /// Begins to refresh items. Returns the number of those that are new.
    ///
    /// An item that is refreshed already stays as it is, so a call may be repeated. An item that is
    /// too old is left out. An item whose creation lies in the future counts as just created now,
    /// and once more when that time has come.
    ///
    /// If the future is dropped, some items may have begun. A repeated call begins the others.
    ///
    /// # Errors
    ///
    /// See [`RefreshError`].
    pub async fn start(
        &self,
        items: impl IntoIterator<Item = RefreshItem, IntoIter: Send>,
    ) -> Result<usize, RefreshError> {
        // By the queue's clock, because the queue decides when a job is due.
        let now = core_instant(self.queue.now().await?);
        self.counters
            .latest
            .fetch_max(now.micros(), Ordering::Relaxed);
        let mut jobs = items.into_iter().filter_map(|item| {
            let mut state = ItemState::new(item.born, now);
            state.floor = item.floor.as_secs();
            state.related = item.related;
            let (due, state) = state.next(now, now, &self.intervals, Duration::ZERO)?;
            Some(NewJob::new(&self.name, item.id, due_at(due)).payload(to_json(&state)))
        });
        let mut new = 0;
        loop {
            let some: Vec<NewJob> = jobs.by_ref().take(START).collect();
            if some.is_empty() {
                return Ok(new);
            }
            // An item that is in the queue stays as it is, so that a call may be repeated.
            let scheduled = self.queue.schedule(some, Existing::Keep).await?;
            let is_new = |scheduled: &&ScheduleOutcome| **scheduled == ScheduleOutcome::Added;
            new += scheduled.iter().filter(is_new).count();
        }
    }

    /// Works until `stop` is ready. Then a request under way has 3 seconds, and jobs that wait for
    /// a quota, or for the end of a pause, are given back at once. Errors of the provider, of the
    /// feed, and of a queue that may come back are logged, and the work is tried again.
    ///
    /// If the future is dropped, no item and no change is lost: jobs under way are due again once
    /// their lease of nine seconds is over, and a change that was just published may be published
    /// again. An end by `stop` needs no such wait.
    ///
    /// # Errors
    ///
    /// See [`RefreshError`].
    pub async fn work_until<L: Lookup>(
        &self,
        lookup: &L,
        stop: impl Future,
    ) -> Result<(), RefreshError> {
        if self.credentials.is_empty() {
            return Err(RefreshError::NoCredential);
        }
        let (stopping, stopped) = watch::channel(false);
        let mut work = std::pin::pin!(self.work_on(lookup, stopped));
        tokio::select! {
            biased;
            done = &mut work => return done,
            never = self.mind_clock() => match never {},
            _ = stop => {}
        }
        stopping.send_replace(true);
        work.await
    }

    /// Brings forward the items that a wrong clock has put off: at the start, and whenever the
    /// clock has gone back. One clone at a time does so for all.
    async fn mind_clock(&self) -> Infallible {
        let _one = self.minds_clock.lock().await;
        let (mut reached, mut is_due) = (Timestamp::MIN, true);
        loop {
            let leased = self.counters.latest.swap(0, Ordering::Relaxed);
            reached = reached.max(Timestamp::from_micros(leased));
            if let Ok(now) = self.queue.now().await.map(core_instant) {
                if now.plus(CLOCK_BACK) < reached {
                    warn!("the clock of the queue went back from {reached} to {now}");
                    (reached, is_due) = (now, true);
                }
                reached = reached.max(now);
            }
            if is_due {
                match self.bring_forward().await {
                    Ok(()) => is_due = false,
                    // A log line is enough here, because workers report errors of the queue.
                    Err(error) => debug!("what is far ahead stays: {}", error_text(&error)),
                }
            }
            tokio::time::sleep(CLOCK_LOOK).await;
        }
    }

    /// Makes items due that are further ahead than the longest interval. An item that a floor put
    /// there is put back by a worker ([`LeaseBatch::put_back`]).
    async fn bring_forward(&self) -> Result<(), QueueError> {
        let (due, lease) = (self.intervals.longest(), LEASE_AHEAD);
        let stats = self.queue.stats(&self.name).await?;
        // The number of calls is bounded: workers put items back meanwhile, and further calls would
        // bring these forward again.
        let jobs = stats.waiting.saturating_add(stats.leased);
        let calls = jobs / u64::try_from(CALL_JOBS_MAX).unwrap_or(1) + 2;
        let mut all = 0;
        for _ in 0..calls {
            match self.queue.bring_forward(&self.name, due, lease).await? {
                0 => break,
                some => all += some,
            }
        }
        if all > 0 {
            info!(
                "{all} items were further ahead than an interval: the clock was wrong, or a floor is long"
            );
        }
        Ok(())
    }

    /// Works until the worker is asked to stop.
    async fn work_on<L: Lookup>(
        &self,
        lookup: &L,
        mut stop: watch::Receiver<bool>,
    ) -> Result<(), RefreshError> {
        let want = Want {
            max: self.batch,
            buffer: self.buffer,
            lease: LEASE,
        };
        let mut standing = ProviderStanding::default();
        loop {
            let leased = self
                .queue
                .lease_until(&self.name, want, stop_requested(&mut stop));
            let done = match leased.await {
                Ok(Some(leases)) => {
                    let latest = leases
                        .first()
                        .map_or(0, |lease| lease.leased.timestamp_micros());
                    self.counters.latest.fetch_max(latest, Ordering::Relaxed);
                    let span = debug_span!("refresh", items = leases.len());
                    let batch = LeaseBatch::new(self, leases, stop.clone());
                    let done = batch.refresh(lookup, &mut standing);
                    done.instrument(span).await
                }
                Ok(None) => return Ok(()),
                Err(error) => Err(error),
            };
            match done {
                Ok(()) => {}
                // A storage or a connection may come back. Any other error would come again.
                Err(error @ (QueueError::Storage { .. } | QueueError::Lost { .. })) => {
                    self.report_trouble(&format!(
                        "the queue failed; trying again: {}",
                        error_text(&error)
                    ));
                    if pause_for(PAUSE, &mut stop).await {
                        return Ok(());
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Waits until a worker is asked to stop.
async fn stop_requested(stop: &mut watch::Receiver<bool>) {
    // An error means that the sender is gone, and then the worker's future is gone, too.
    let _ended = stop.wait_for(|is_requested| *is_requested).await;
}

/// Waits for a time. Returns whether the worker was asked to stop meanwhile.
async fn pause_for(time: Duration, stop: &mut watch::Receiver<bool>) -> bool {
    tokio::time::timeout(time, stop_requested(stop))
        .await
        .is_ok()
}

fn to_json(value: &impl serde::Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("a state has a JSON form")
}

/// Returns the queue's time as the core has it.
fn core_instant(time: chrono::DateTime<chrono::Utc>) -> Timestamp {
    Timestamp::from_micros(time.timestamp_micros())
}

/// Returns the core's time as the queue has it.
fn due_at(time: Timestamp) -> Due {
    let time = chrono::DateTime::from_timestamp_micros(time.micros());
    Due::At(time.unwrap_or(chrono::DateTime::UNIX_EPOCH))
}

#[cfg(test)]
mod tests;
