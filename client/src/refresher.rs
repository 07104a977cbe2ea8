//! Copies kept fresh by age: items of a provider are looked up again and again, and each change is published.
//!
//! Shell: a queue, a provider and a feed. What happens to a batch is decided by [`simplefeed_core::refresh`]; so a
//! [`Refresher`] may be killed at any instruction, and any number of them may share a queue.

mod lookup;

use std::{collections::HashMap, time::Duration};

use serde_json::value::RawValue;
use simplefeed_core::{
    digest::Digest,
    event::{Event, Link},
    refresh::{
        Ending, Leased, Note, Publication, Round, State, Step, Value, What,
        round::{Meaning, meaning},
    },
    timestamp::Timestamp,
};
use simplefeed_queue::{
    Due, Existing, Extension, Failed, Failure, Finish, Held, Lease, Namespace, NewJob, Next, Queue,
    QueueError, Report, Reserved, Scheduled, Want, job,
};
use tokio::time::Instant;
use tracing::{Instrument as _, debug_span, warn};

use crate::publisher::{PublishError, Publisher};

pub use self::lookup::{Credential, Found, Lookup, LookupError};
pub use simplefeed_core::refresh::{Intervals, Line, Span};
pub use simplefeed_queue as queue;

/// Items of a request, if the provider takes no fewer.
const BATCH: usize = 100;
/// Time that an item waits for a full request.
const BUFFER: Duration = Duration::from_secs(2);
/// Time for which a batch is leased. A worker that waits extends it.
const LEASE: Duration = Duration::from_mins(5);
/// Failures of an item alone with which it is dead.
const ATTEMPTS: u32 = 5;
/// Pause before an item that failed alone is tried again; doubled with each failure.
const RETRY: Duration = Duration::from_mins(1);
/// Pause after an error of the queue or of the feed.
const PAUSE: Duration = Duration::from_secs(5);

/// A thing to be refreshed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Item {
    /// The provider's id, as text: numbers beyond 2^53 lose digits elsewhere.
    pub id: String,
    /// When it came into being. Its age decides how often it is refreshed.
    pub born: Timestamp,
    /// Its own least interval.
    pub floor: Duration,
    /// URL of a related resource, for the link `related` of its events.
    pub related: Option<String>,
}

impl Item {
    /// Returns an item without a least interval and a link.
    pub fn new(id: impl Into<String>, born: Timestamp) -> Self {
        let (id, floor, related) = (id.into(), Duration::ZERO, None);
        Self {
            id,
            born,
            floor,
            related,
        }
    }
}

/// Error of a refresher.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RefreshError {
    /// The queue failed.
    #[error("the queue of jobs failed")]
    Queue(#[from] QueueError),
    /// There is no credential, so that no request can be made.
    #[error("a refresher has at least one credential")]
    NoCredential,
}

/// Counts of a refresher's work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Refreshed {
    /// Requests to the provider.
    pub requests: u64,
    /// Items that were looked up and whose jobs were finished.
    pub items: u64,
    /// Events that were published.
    pub events: u64,
    /// Items that failed alone.
    pub failures: u64,
}

/// Refreshes items, by any number of workers over one queue.
///
/// # Examples
///
/// A provider behind a client library, with 900 requests in 15 minutes, of 50 parcels each. Jobs are in memory here; a
/// durable queue is opened from a file or from PostgreSQL, and nothing else changes.
///
/// ```no_run
/// use std::time::Duration;
///
/// use simplefeed_client::{
///     Publisher, Timestamp,
///     refresher::{
///         Credential, Found, Intervals, Item, Line, Lookup, LookupError, RefreshError, Refreshed, Refresher,
///         queue::{Limit, Memory, Namespace},
///     },
/// };
///
/// struct Parcels;
///
/// impl Lookup for Parcels {
///     async fn lookup(&self, ids: &[String], _: &Credential) -> Result<Found, LookupError> {
///         let mut found = Found::default();
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
/// let fortnight = Line { until: Duration::from_hours(14 * 24), interval: Duration::from_mins(10) };
/// let refresher = Refresher::new(Memory::default(), Namespace::new("parcels")?, publisher)
///     .credential(Credential::new("key", limit))
///     .intervals(Intervals::new(vec![fortnight])?)
///     .batch(50, Duration::from_secs(1))
///     .ignore(["/seen_at"]);
/// let sent = Timestamp::parse("2026-01-01T08:00:00Z").unwrap();
/// let new: Result<usize, RefreshError> = refresher.start([Item::new("RR123456785DE", sent)]).await;
/// new?;
/// let Refreshed { requests, events, .. } =
///     refresher.work_until(&Parcels, tokio::signal::ctrl_c()).await?;
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
}

impl<Q: Queue> Refresher<Q> {
    /// Returns a refresher whose jobs are in a namespace of a queue, and which publishes changes to a feed.
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
        }
    }

    /// Sets how often items are refreshed, by their age.
    #[must_use]
    pub fn intervals(self, intervals: Intervals) -> Self {
        Self { intervals, ..self }
    }

    /// Sets how many items a request asks for, at most (default 100), and how long an item waits for a full request
    /// (default 2 s).
    #[must_use]
    pub fn batch(self, batch: usize, buffer: Duration) -> Self {
        Self {
            batch,
            buffer,
            ..self
        }
    }

    /// Adds a credential with its quota. The one that may make a request soonest makes it.
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

    /// Begins to refresh items. One that is refreshed already stays as it is, so that a starter may repeat itself; one
    /// that is too old is left out. Returns how many are new.
    ///
    /// # Errors
    ///
    /// See [`RefreshError`].
    pub async fn start(
        &self,
        items: impl IntoIterator<Item = Item>,
    ) -> Result<usize, RefreshError> {
        let now = instant(self.queue.now().await?);
        let mut jobs = Vec::new();
        for item in items {
            let mut state = State::new(item.born);
            state.floor = item.floor.as_secs();
            state.related = item.related;
            if let Some(due) = state.next(now, &self.intervals, Duration::ZERO) {
                jobs.push(NewJob::new(&self.name, item.id, due_at(due)).payload(to_json(&state)));
            }
        }
        let mut new = 0;
        for jobs in jobs.chunks(job::CALL_JOBS_MAX) {
            let scheduled = self.queue.schedule(jobs.to_vec(), Existing::Keep).await?;
            let is_new = |scheduled: &&Scheduled| **scheduled == Scheduled::Added;
            new += scheduled.iter().filter(is_new).count();
        }
        Ok(new)
    }

    /// Works until `stop` is ready; a batch that was begun is ended before. Errors of the provider, of the feed, and of a
    /// queue that may come back are logged, and it is tried again.
    ///
    /// # Errors
    ///
    /// See [`RefreshError`].
    pub async fn work_until<L: Lookup>(
        &self,
        lookup: &L,
        stop: impl Future,
    ) -> Result<Refreshed, RefreshError> {
        if self.credentials.is_empty() {
            return Err(RefreshError::NoCredential);
        }
        let want = Want {
            max: self.batch,
            buffer: self.buffer,
            lease: LEASE,
        };
        let mut refreshed = Refreshed::default();
        let mut stop = std::pin::pin!(stop);
        loop {
            let leases = tokio::select! {
                biased;
                _ = &mut stop => return Ok(refreshed),
                leases = self.queue.lease(&self.name, want) => leases,
            };
            let done = match leases {
                Ok(leases) => {
                    let span = debug_span!("refresh", items = leases.len());
                    self.refresh(lookup, &leases, &mut refreshed)
                        .instrument(span)
                        .await
                }
                Err(error) => Err(error),
            };
            match done {
                Ok(()) => {}
                Err(error @ (QueueError::Storage { .. } | QueueError::Lost { .. })) => {
                    warn_of(&error, "the queue failed; trying again");
                    tokio::time::sleep(PAUSE).await;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Refreshes a batch.
    async fn refresh<L: Lookup>(
        &self,
        lookup: &L,
        leases: &[Lease],
        refreshed: &mut Refreshed,
    ) -> Result<(), QueueError> {
        let mut round = Round::new(leases.iter().map(leased).collect());
        let mut answers = HashMap::new();
        let mut noted = Instant::now();
        while let Some(step) = round.step() {
            match step {
                Step::Ask(ids) => {
                    let credential = self.reserve(leases).await?;
                    refreshed.requests += 1;
                    let asked = lookup.lookup(&ids, credential).await;
                    let asked = self.read(&mut round, asked, &ids, &mut answers).await?;
                    if let Some(report) = asked {
                        self.queue.report(&credential.name, report).await?;
                        self.hold(leases).await?;
                    }
                }
                Step::Note(notes) => {
                    noted = Instant::now();
                    round.noted(&self.note(leases, &notes).await?);
                }
                Step::Publish(events) => {
                    let count = u64::try_from(events.len()).unwrap_or(u64::MAX);
                    // A worker that no longer has its jobs must not publish: another one does.
                    let rest = LEASE.saturating_sub(noted.elapsed());
                    let published = self.publish(&events, leases, &answers);
                    match tokio::time::timeout(rest, published).await {
                        Ok(Ok(refused)) => {
                            let refused_count = u64::try_from(refused.len()).unwrap_or(u64::MAX);
                            refreshed.events += count.saturating_sub(refused_count);
                            round.published(refused);
                        }
                        Ok(Err(error)) => {
                            warn_of(&error, "changes cannot be published; trying again");
                            tokio::time::sleep(PAUSE).await;
                        }
                        Err(_elapsed) => {
                            warn!("changes could not be published in time; trying again");
                            return Ok(());
                        }
                    }
                }
                Step::Finish(endings) => {
                    self.finish(leases, endings, refreshed).await?;
                    round.finished();
                }
            }
        }
        Ok(())
    }

    /// Returns a credential that may make a request now, and waits for one if need be.
    async fn reserve(&self, leases: &[Lease]) -> Result<&Credential, QueueError> {
        loop {
            let mut wait = LEASE / 3;
            for credential in &self.credentials {
                match self
                    .queue
                    .reserve(&credential.name, 1, credential.limit)
                    .await?
                {
                    Reserved::Now => return Ok(credential),
                    Reserved::After(after) => wait = wait.min(after),
                }
            }
            self.hold(leases).await?;
            tokio::time::sleep(wait.max(Duration::from_millis(1))).await;
        }
    }

    /// Extends the leases of a batch that waits.
    async fn hold(&self, leases: &[Lease]) -> Result<(), QueueError> {
        let extension = |lease: &Lease| Extension {
            token: lease.token.clone(),
            lease: LEASE,
            note: None,
        };
        // The next step finds jobs that another worker has leased by now.
        self.queue
            .extend(leases.iter().map(extension).collect())
            .await
            .map(drop)
    }

    /// Passes a lookup's result to the round. Returns the report for the credential's quota.
    async fn read(
        &self,
        round: &mut Round,
        asked: Result<Found, LookupError>,
        ids: &[String],
        answers: &mut HashMap<String, Box<RawValue>>,
    ) -> Result<Option<Report>, QueueError> {
        let now = instant(self.queue.now().await?);
        let jitter = jitter();
        let (status, named) = match asked {
            Ok(found) => {
                let mut values = HashMap::with_capacity(found.answers.len());
                for (id, answer) in found.answers {
                    if let Some(value) = self.value_of(&answer) {
                        values.insert(id.clone(), value);
                    }
                    // An item that was not asked for may belong to another request of the round.
                    if ids.contains(&id) {
                        answers.insert(id, answer);
                    }
                }
                round.asked(values, now, &self.intervals, found.floor);
                return Ok(Some(found.report).filter(|report| *report != Report::default()));
            }
            Err(LookupError::Refused { status, detail }) => {
                warn!(
                    status,
                    detail,
                    items = ids.len(),
                    "the provider refused a request"
                );
                if meaning(status) == Meaning::Refusal {
                    let pause = round.refused(status, now, &self.intervals, jitter);
                    return Ok(pause.map(paused));
                }
                (Some(status), None)
            }
            Err(LookupError::Failed { status, pause, why }) => {
                warn!(
                    status,
                    why,
                    items = ids.len(),
                    "a request to the provider failed"
                );
                (status, pause)
            }
        };
        Ok(Some(paused(round.failed(status, named, jitter))))
    }

    /// Returns the digests of an answer; nothing if it is no JSON, which is as good as no answer.
    fn value_of(&self, answer: &RawValue) -> Option<Value> {
        let exact = Digest::of(answer.get().as_bytes());
        // A number out of range, or a deep nesting, is an answer all the same.
        let Ok(mut parsed) = serde_json::from_str(answer.get()) else {
            return Some(Value {
                counted: exact,
                exact,
            });
        };
        for pointer in &self.ignored {
            remove(&mut parsed, pointer);
        }
        // Members of an object are sorted here.
        let counted = serde_json::to_vec(&parsed).ok()?;
        let counted = Digest::of(&counted);
        Some(Value { counted, exact })
    }

    /// Stores notes. Returns the places of jobs whose leases are lost.
    async fn note(
        &self,
        leases: &[Lease],
        notes: &[(usize, Note)],
    ) -> Result<Vec<usize>, QueueError> {
        let extension = |(index, note): &(usize, Note)| {
            let token = leases.get(*index)?.token.clone();
            Some(Extension {
                token,
                lease: LEASE,
                note: Some(to_json(note)),
            })
        };
        let held = self
            .queue
            .extend(notes.iter().filter_map(extension).collect())
            .await?;
        let lost = notes
            .iter()
            .zip(held)
            .filter(|(_, held)| *held == Held::Lost);
        Ok(lost.map(|((index, _), _)| *index).collect())
    }

    /// Publishes events. Returns which of them are refused for ever, and why.
    async fn publish(
        &self,
        events: &[Publication],
        leases: &[Lease],
        answers: &HashMap<String, Box<RawValue>>,
    ) -> Result<Vec<(usize, String)>, PublishError> {
        let mut waiting: Vec<&Publication> = events.iter().collect();
        let mut refused = Vec::new();
        while !waiting.is_empty() {
            // All of them before the request, since an iterator that borrows cannot cross an await in a task.
            let mut made = Vec::with_capacity(waiting.len());
            for event in &waiting {
                made.push(event_of(event, leases, answers));
            }
            let Err(error) = self.publisher.append(made).await else {
                break;
            };
            match &error {
                // A batch is stored as a whole or not at all.
                PublishError::Refused {
                    status: 400 | 409 | 413 | 422,
                    detail,
                    entry,
                    ..
                } => {
                    let at = entry.filter(|at| *at < waiting.len());
                    let Some(at) = at.or((waiting.len() == 1).then_some(0)) else {
                        return Err(error);
                    };
                    refused.push((
                        waiting.remove(at).index,
                        format!("the feed refused it: {detail}"),
                    ));
                }
                _ => return Err(error),
            }
        }
        Ok(refused)
    }

    /// Finishes the jobs of a batch.
    async fn finish(
        &self,
        leases: &[Lease],
        endings: Vec<(usize, Ending)>,
        refreshed: &mut Refreshed,
    ) -> Result<(), QueueError> {
        let (mut finishes, mut failures) = (Vec::new(), Vec::new());
        for (index, ending) in endings {
            let Some(lease) = leases.get(index) else {
                continue;
            };
            let token = lease.token.clone();
            match ending {
                Ending::Again { due, state } => {
                    let payload = Some(to_json(&state));
                    finishes.push(Finish::new(
                        token,
                        Next::Again {
                            due: due_at(due),
                            payload,
                        },
                    ));
                }
                Ending::Done => finishes.push(Finish::new(token, Next::Done)),
                Ending::Failed(reason) => {
                    let retry = Due::After(RETRY * 2_u32.saturating_pow(lease.job.failures.min(8)));
                    failures.push(Failure {
                        token,
                        retry,
                        attempts: ATTEMPTS,
                        reason,
                    });
                }
            }
        }
        if !failures.is_empty() {
            for failed in self.queue.fail(failures).await? {
                refreshed.failures += u64::from(failed != Failed::Lost);
            }
        }
        if !finishes.is_empty() {
            for held in self.queue.finish(finishes).await? {
                refreshed.items += u64::from(held == Held::Yes);
            }
        }
        Ok(())
    }
}

/// Returns an item as decisions see it. A payload that is none, of another program, is an item that has just been born.
fn leased(lease: &Lease) -> Leased {
    let slot = instant(lease.job.slot);
    let state = serde_json::from_slice(&lease.job.payload);
    Leased {
        id: lease.job.key.clone(),
        slot,
        state: state.unwrap_or_else(|_| State::new(slot)),
        note: serde_json::from_slice(&lease.job.note).ok(),
    }
}

/// Returns the event of a publication.
fn event_of(
    publication: &Publication,
    leases: &[Lease],
    answers: &HashMap<String, Box<RawValue>>,
) -> Event {
    let related = leases
        .get(publication.index)
        .and_then(|lease| leased(lease).state.related);
    let link = |href| Link {
        rel: Some("related".into()),
        href,
        kind: None,
        hreflang: None,
        title: None,
        length: None,
    };
    let ended = || RawValue::from_string(r#"{"ended":true}"#.to_owned()).ok();
    let content = match publication.what {
        What::Value(_) => answers.get(&publication.id).cloned(),
        What::Ended => ended(),
    };
    Event {
        id: Some(publication.event_id().urn().to_string()),
        title: Some(publication.id.clone()),
        updated: Some(publication.slot.to_string()),
        links: related.map(|href| vec![link(href)]),
        content,
        ..Event::default()
    }
}

/// Logs an error after which work goes on.
fn warn_of(error: &(dyn std::error::Error + 'static), what: &str) {
    warn!(error, "{what}");
}

/// Removes the value at a JSON pointer.
fn remove(value: &mut serde_json::Value, pointer: &str) {
    let Some((parent, name)) = pointer.rsplit_once('/') else {
        return;
    };
    let name = name.replace("~1", "/").replace("~0", "~");
    match value.pointer_mut(parent) {
        Some(serde_json::Value::Object(members)) => drop(members.remove(&name)),
        Some(serde_json::Value::Array(items)) => {
            if let Some(item) = name
                .parse()
                .ok()
                .and_then(|index: usize| items.get_mut(index))
            {
                *item = serde_json::Value::Null;
            }
        }
        _ => {}
    }
}

fn paused(pause: Duration) -> Report {
    Report {
        pause: Some(pause),
        remaining: None,
    }
}

fn to_json(value: &impl serde::Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("a state has a JSON form")
}

/// Returns the queue's time as the core has it.
fn instant(time: chrono::DateTime<chrono::Utc>) -> Timestamp {
    Timestamp::from_micros(time.timestamp_micros())
}

/// Returns the core's time as the queue has it.
fn due_at(time: Timestamp) -> Due {
    let time = chrono::DateTime::from_timestamp_micros(time.micros());
    Due::At(time.unwrap_or(chrono::DateTime::UNIX_EPOCH))
}

/// Returns a number from 0 to 1.
fn jitter() -> f64 {
    use std::hash::BuildHasher as _;
    // A hasher's random keys are chance enough to spread requests.
    let chance = std::hash::RandomState::new().hash_one(()) % 1_024;
    f64::from(u32::try_from(chance).unwrap_or(0)) / 1_024.0
}

#[cfg(test)]
mod tests;
