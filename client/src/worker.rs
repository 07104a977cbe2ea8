//! The worker: a consumer that can be left alone with a handler that fails.
//!
//! Shell: runs the handler, and keeps its state in the [state folder](crate::state) for the time after a crash.
//! [`Policy`] decides about an entry that fails.
//!
//! For each entry, in this order: its attempt is counted on the disk; the handler runs; the outcome is on the disk
//! before the next entry begins. So an entry is handled at least once, or stands in the record. An attempt that takes
//! the process with it is counted, too.

use std::{
    any::Any,
    collections::HashSet,
    error::Error,
    num::NonZeroU32,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::{Pin, pin},
    time::Duration,
};

use futures_util::{
    FutureExt as _,
    future::{Either, FusedFuture, pending, select},
};
use simplefeed_core::{
    limits::{ATTEMPT_SECONDS_DEFAULT, ATTEMPTS_DEFAULT, PARKED_MAX},
    replay::Bookmark,
};
use tokio::time;
use tracing::{Instrument as _, info_span};

pub use crate::bookmark::Attempt;
use crate::{
    consumer::{Builder, Consumer, ConsumerError},
    delivery::Delivery,
    observer::Observer,
    policy::{Decision, Policy},
    state::{
        StateError, StateFolder, What,
        parked::{NewlyParked, Parked},
    },
};

/// Any error that a handler may return.
pub type HandlerError = Box<dyn Error + Send + Sync>;

/// Returns the key of an entry, if it has one.
type Key = Box<dyn Fn(&Delivery) -> Option<String> + Send>;

/// Error text of an attempt that the end of the process interrupted.
const CUT_SHORT: &str = "the process ended during it";

/// Why a worker stopped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WorkerError {
    /// The feed cannot be read on.
    #[error(transparent)]
    Consumer(#[from] ConsumerError),
    /// The state cannot be read or saved.
    #[error(transparent)]
    State(#[from] StateError),
    /// Another entry is to be parked while the most allowed are: the handler is at fault rather than the entries.
    #[error("{max} entries are parked, and another one fails")]
    TooManyParked {
        /// Most entries that may be parked, from [`Worker::parked_max`].
        max: usize,
    },
}

/// Counts of one run, by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// The entries that the handler took.
    pub handled: u64,
    /// Entries passed over after their last attempt.
    pub skipped: u64,
    /// Entries set aside, with those that wait behind one of the same key.
    pub parked: u64,
}

/// Hands a feed's entries to a handler, one after the other, and treats its failures by a [`Policy`].
///
/// # Examples
///
/// ```no_run
/// use simplefeed_client::{Consumer, Policy, StateFolder, Worker};
///
/// # async fn ship(order: serde_json::Value) -> Result<(), std::io::Error> { Ok(()) }
/// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
/// let orders = Consumer::builder("https://example.org/feeds/orders").follow(true);
/// let mut worker = Worker::new(orders, StateFolder::open("/var/lib/shipping/orders")?)?
///     .policy(Policy::ParkByKey)
///     .key(|delivery| {
///         let order: serde_json::Value = delivery.json().ok()?;
///         Some(order["customer"].to_string())
///     });
/// let shipping = tokio::spawn(async move {
///     worker
///         .run(async |delivery| Ok(ship(delivery.json()?).await?))
///         .await
/// });
/// shipping.await??;
/// # Ok(()) }
/// ```
///
/// With other limits, until Ctrl-C, and with a look at the parked entries:
///
/// ```no_run
/// use std::{num::NonZeroU32, time::Duration};
/// use simplefeed_client::{
///     Consumer, Delivery, Policy, StateFolder, Worker,
///     worker::{self, HandlerError, Tally, WorkerError},
/// };
///
/// async fn ship(delivery: Delivery) -> Result<(), HandlerError> {
///     println!("{}", delivery.id());
///     Ok(())
/// }
///
/// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
/// let state = StateFolder::open("orders")?;
/// let orders = Consumer::builder("https://example.org/feeds/orders");
/// let mut worker = Worker::new(orders, state.clone())?
///     .policy(Policy::Park)
///     .attempts(NonZeroU32::MIN)
///     .attempt_time(Duration::from_secs(10))
///     .parked_max(100);
/// let stop = async { tokio::signal::ctrl_c().await.unwrap_or_default() };
/// match worker.run_until(stop, ship).await {
///     Ok(Tally { parked: 0, .. }) => println!("all is well"),
///     Ok(_) | Err(WorkerError::TooManyParked { .. }) => {
///         for parked in state.parked()? {
///             worker::drop_parked(&state, &parked, "nobody wants them")?;
///         }
///     }
///     Err(error) => return Err(error.into()),
/// }
/// # Ok(()) }
/// ```
pub struct Worker {
    consumer: Consumer,
    state: StateFolder,
    policy: Policy,
    attempts: NonZeroU32,
    attempt_time: Duration,
    parked_max: usize,
    key: Option<Key>,
    /// The place after the last entry that is done with, unless the consumer has kept it.
    done: Option<Bookmark>,
    /// Whether the folder has `done`, too.
    done_is_kept: bool,
    /// Attempt of a process before this one, until the first entry comes.
    left: Option<Left>,
    /// The entry that is not done with, and how often it was begun.
    in_hand: Option<(Delivery, Attempt)>,
}

/// Attempt in the state folder when the worker was built.
struct Left(Option<Attempt>);

/// Outcome of one entry in this run.
enum Outcome {
    Handled,
    Skipped,
    Parked,
    /// Undecided: the worker was asked to stop.
    Stopped,
}

impl std::fmt::Debug for Worker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Worker")
            .field("state", &self.state)
            .field("policy", &self.policy)
            .finish_non_exhaustive()
    }
}

impl Worker {
    /// Returns a worker that goes on from the state in a folder.
    ///
    /// # Errors
    ///
    /// See [`WorkerError`].
    pub fn new(consumer: Builder, state: StateFolder) -> Result<Self, WorkerError> {
        let left = Left(state.attempt()?);
        Ok(Self {
            consumer: consumer.bookmark(state.clone()).build()?,
            state,
            policy: Policy::default(),
            attempts: NonZeroU32::new(ATTEMPTS_DEFAULT).unwrap_or(NonZeroU32::MIN),
            attempt_time: Duration::from_secs(ATTEMPT_SECONDS_DEFAULT),
            parked_max: PARKED_MAX,
            key: None,
            done: None,
            done_is_kept: false,
            left: Some(left),
            in_hand: None,
        })
    }

    /// Sets the action for entries that fail; [`Policy::Block`] by default.
    #[must_use]
    pub fn policy(self, policy: Policy) -> Self {
        Self { policy, ..self }
    }

    /// Sets the number of attempts before an entry is skipped or parked; 4 by default.
    #[must_use]
    pub fn attempts(self, attempts: NonZeroU32) -> Self {
        Self { attempts, ..self }
    }

    /// Sets the time of the handler for one entry; 5 minutes by default. After that its future is dropped: a handler
    /// that blocks its thread cannot be ended.
    #[must_use]
    pub fn attempt_time(self, attempt_time: Duration) -> Self {
        Self {
            attempt_time,
            ..self
        }
    }

    /// Sets the most entries that may be parked; 10,000 by default.
    #[must_use]
    pub fn parked_max(self, parked_max: usize) -> Self {
        Self { parked_max, ..self }
    }

    /// Sets the function from an entry to its key, for [`Policy::ParkByKey`]. An entry without a key waits for no
    /// other.
    #[must_use]
    pub fn key(self, key: impl Fn(&Delivery) -> Option<String> + Send + 'static) -> Self {
        Self {
            key: Some(Box::new(key)),
            ..self
        }
    }

    /// Handles entries up to the newest one now, or for ever if the consumer follows.
    ///
    /// # Errors
    ///
    /// See [`WorkerError`]. A failure of the handler is none.
    pub async fn run<F>(&mut self, handler: impl FnMut(Delivery) -> F) -> Result<Tally, WorkerError>
    where
        F: Future<Output = Result<(), HandlerError>>,
    {
        self.run_until(pending(), handler).await
    }

    /// As [`run`](Self::run), until `stop` is there: an entry that the handler has begun comes to its end.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run).
    pub async fn run_until<F>(
        &mut self,
        stop: impl Future<Output = ()>,
        mut handler: impl FnMut(Delivery) -> F,
    ) -> Result<Tally, WorkerError>
    where
        F: Future<Output = Result<(), HandlerError>>,
    {
        let mut tally = Tally::default();
        let ended = self.handle_all(stop, &mut handler, &mut tally).await;
        // An error of the next entry must not forget that this one is handled.
        if let Some(done) = self.done.as_ref().filter(|_| !self.done_is_kept) {
            self.state.keep(done)?;
            self.done_is_kept = true;
        }
        ended.map(|()| tally)
    }

    async fn handle_all<F>(
        &mut self,
        stop: impl Future<Output = ()>,
        handler: &mut impl FnMut(Delivery) -> F,
        tally: &mut Tally,
    ) -> Result<(), WorkerError>
    where
        F: Future<Output = Result<(), HandlerError>>,
    {
        let mut stop = pin!(stop.fuse());
        while let Some(next) = before(stop.as_mut(), self.next()).await {
            let Some(delivery) = next? else { break };
            let outcome = self.process(&delivery, stop.as_mut(), handler).await?;
            match outcome {
                Outcome::Handled => tally.handled += 1,
                Outcome::Skipped => tally.skipped += 1,
                Outcome::Parked => tally.parked += 1,
                Outcome::Stopped => break,
            }
        }
        Ok(())
    }

    /// Returns the next entry. A consumer that follows waits for it through all transient errors.
    async fn next(&mut self) -> Result<Option<Delivery>, WorkerError> {
        // A run that stopped or was dropped left this entry unfinished, so it goes first.
        if let Some((delivery, _)) = &self.in_hand {
            return Ok(Some(delivery.clone()));
        }
        loop {
            match self.consumer.next().await {
                Err(error) if self.consumer.follows() && error.is_transient() => {
                    self.consumer.observer().retrying(&error);
                }
                next => return Ok(next?),
            }
        }
    }

    /// Handles, skips or parks an entry, and notes that it is done with.
    async fn process<F>(
        &mut self,
        delivery: &Delivery,
        stop: Pin<&mut impl FusedFuture<Output = ()>>,
        handler: &mut impl FnMut(Delivery) -> F,
    ) -> Result<Outcome, WorkerError>
    where
        F: Future<Output = Result<(), HandlerError>>,
    {
        let key = self.key_of(delivery);
        let key = key.as_deref();
        // Before `take` empties it.
        let first = self.left.is_some();
        let attempt = match self.in_hand.take() {
            Some((_, attempt)) => attempt,
            None => tried(delivery, self.left.take()),
        };
        // An error or a dropped future must not lose the entry: the consumer does not return it again.
        self.in_hand = Some((delivery.clone(), attempt.clone()));
        // A process before this one parked the entry, and ended before the entry was noted as done.
        let aside = first && self.state.was_parked_last(delivery)?;
        let outcome = if aside {
            Outcome::Parked
        // Only before the first attempt: an entry that was begun is tried to its end.
        } else if attempt.count == 0 && key.is_some_and(|key| self.state.holds_key(key)) {
            self.park(delivery, key, None)?;
            Outcome::Parked
        } else {
            self.try_until(delivery, attempt, key, stop, handler)
                .await?
        };
        if !matches!(outcome, Outcome::Stopped) {
            self.done_with(delivery, &outcome).await?;
            self.in_hand = None;
        }
        Ok(outcome)
    }

    /// Returns the key by which entries wait for each other. An entry has none if the key function panics.
    fn key_of(&self, delivery: &Delivery) -> Option<String> {
        let key = self
            .key
            .as_ref()
            .filter(|_| self.policy == Policy::ParkByKey)?;
        // A fault in the key function must not end the worker.
        catch_unwind(AssertUnwindSafe(|| key(delivery))).unwrap_or_default()
    }

    /// Tries an entry until it succeeds or the policy gives up on it.
    async fn try_until<F>(
        &mut self,
        delivery: &Delivery,
        mut attempt: Attempt,
        key: Option<&str>,
        mut stop: Pin<&mut impl FusedFuture<Output = ()>>,
        handler: &mut impl FnMut(Delivery) -> F,
    ) -> Result<Outcome, WorkerError>
    where
        F: Future<Output = Result<(), HandlerError>>,
    {
        let before_us = attempt.count;
        loop {
            // Only attempts of this process: after a restart the pauses begin short again.
            let here = attempt.count.saturating_sub(before_us);
            match self.policy.after(attempt.count, here, self.attempts) {
                Decision::Try(pause) => {
                    // `stop` interrupts the pause, but never a handler that has begun.
                    if before(stop.as_mut(), time::sleep(pause)).await.is_none() {
                        return Ok(Outcome::Stopped);
                    }
                    attempt.count = attempt.count.saturating_add(1);
                    let done = self.done.clone();
                    let done = done.or_else(|| self.consumer.begins_after());
                    // If the process ends now, an older error must not stand as the cause.
                    attempt.error = None;
                    self.in_hand = Some((delivery.clone(), attempt.clone()));
                    // On the disk before the handler runs, so that an attempt that kills the process counts.
                    self.state
                        .begin(done.unwrap_or_default(), attempt.clone())?;
                    self.done_is_kept = true;
                    match run(handler, delivery, self.attempt_time).await {
                        Ok(()) => {
                            // Only the mark for health checks: `done_with` keeps the place.
                            self.state.handled()?;
                            self.consumer.observer().handled(delivery);
                            return Ok(Outcome::Handled);
                        }
                        Err(error) => attempt.error = Some(error),
                    }
                    self.in_hand = Some((delivery.clone(), attempt.clone()));
                    self.consumer.observer().failed(delivery, &attempt);
                }
                Decision::Skip => {
                    // Without an error, the last attempt took its process with it.
                    let why = Some(attempt.error.as_deref().unwrap_or(CUT_SHORT));
                    self.state
                        .record(What::Skipped, delivery, attempt.count, why)?;
                    self.consumer.observer().skipped(delivery);
                    return Ok(Outcome::Skipped);
                }
                Decision::Park => {
                    self.park(delivery, key, Some(&attempt))?;
                    return Ok(Outcome::Parked);
                }
            }
        }
    }

    /// Sets an entry aside: because it failed, or because one with the same key did.
    fn park(
        &mut self,
        delivery: &Delivery,
        key: Option<&str>,
        failed: Option<&Attempt>,
    ) -> Result<(), WorkerError> {
        let max = self.parked_max;
        // A handler that fails for every entry would fill the disk with parked ones.
        if self.state.parked_count() >= max {
            return Err(WorkerError::TooManyParked { max });
        }
        let error = failed.map(|attempt| attempt.error.as_deref().unwrap_or(CUT_SHORT));
        self.state.park(&NewlyParked {
            delivery,
            key,
            waits: failed.is_none(),
            attempts: failed.map_or(0, |attempt| attempt.count),
            error,
        })?;
        self.consumer.observer().parked(delivery, failed.is_none());
        Ok(())
    }

    /// Notes that an entry is done with: at once if no other is ready, or if a repeat would show in the record; else
    /// together with the attempt at the next one.
    async fn done_with(
        &mut self,
        delivery: &Delivery,
        outcome: &Outcome,
    ) -> Result<(), WorkerError> {
        // A handled entry needs no write of its own while others are ready: the next attempt saves its place.
        if self.consumer.ready() == 0 || !matches!(outcome, Outcome::Handled) {
            self.consumer.accept(delivery).await?;
            self.done = None;
        } else {
            self.done = Some(delivery.bookmark());
            self.done_is_kept = false;
        }
        Ok(())
    }
}

/// Returns the attempt that a process before this one left at this entry, or else a new one.
fn tried(delivery: &Delivery, left: Option<Left>) -> Attempt {
    let left = left.and_then(|Left(attempt)| attempt);
    let same = |left: &Attempt| left.entry == delivery.id() && left.position == delivery.position();
    left.filter(same).unwrap_or_else(|| Attempt {
        entry: delivery.id().into(),
        position: delivery.position(),
        count: 0,
        error: None,
    })
}

/// Waits for `work`. Returns `None` once `stop` is ready.
async fn before<T>(
    stop: Pin<&mut impl FusedFuture<Output = ()>>,
    work: impl Future<Output = T>,
) -> Option<T> {
    // `stop` has fired: a fused future that is polled again stays pending for ever.
    if stop.is_terminated() {
        return None;
    }
    match select(stop, pin!(work)).await {
        Either::Left(_) => None,
        Either::Right((done, _)) => Some(done),
    }
}

/// Runs the handler once. Returns the error text of a failure.
async fn run<F>(
    handler: &mut impl FnMut(Delivery) -> F,
    delivery: &Delivery,
    limit: Duration,
) -> Result<(), String>
where
    F: Future<Output = Result<(), HandlerError>>,
{
    let span = info_span!("handle", feed = delivery.feed(), entry = delivery.id());
    // A panic is a failure of this entry, and no reason to end the worker.
    let handled = AssertUnwindSafe(async { handler(delivery.clone()).await }).catch_unwind();
    match time::timeout(limit, handled.instrument(span)).await {
        Ok(Ok(Ok(()))) => Ok(()),
        Ok(Ok(Err(error))) => Err(told(&*error)),
        Ok(Err(panic)) => Err(format!("it panicked: {}", said(&*panic))),
        Err(_) => Err(format!("it took longer than {limit:?}")),
    }
}

/// Returns the text of an error and of its causes.
fn told(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

fn said(panic: &(dyn Any + Send)) -> &str {
    // `panic!` holds a `String` if it formats arguments, and else a `&str`.
    let owned = panic.downcast_ref::<String>().map(String::as_str);
    owned
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("without words")
}

/// Counts of one pass over the parked entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Retried {
    /// Entries that the handler took. They are parked no more.
    pub handled: u64,
    /// Entries that failed again. They stay parked.
    pub failed: u64,
    /// Entries that were wanted and not tried, because one before them has the same key.
    pub waiting: u64,
}

/// Hands parked entries to a handler once more, oldest first: those that are `wanted`, and of each key none while one
/// before it is left. An entry that the handler takes is parked no more.
///
/// # Errors
///
/// See [`StateError`].
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use simplefeed_client::{Observer, StateFolder, worker};
///
/// struct Quiet;
/// impl Observer for Quiet {}
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// let state = StateFolder::open(folder.path())?;
/// let all = |_: &simplefeed_client::state::parked::Parked| true;
/// let time = Duration::from_mins(1);
/// let retried = worker::retry(&state, all, time, &mut Quiet, async |_| Ok(())).await?;
/// assert_eq!(retried, worker::Retried::default());
/// # Ok(()) }
/// ```
pub async fn retry<F>(
    state: &StateFolder,
    wanted: impl Fn(&Parked) -> bool,
    attempt_time: Duration,
    observer: &mut dyn Observer,
    mut handler: impl FnMut(Delivery) -> F,
) -> Result<Retried, StateError>
where
    F: Future<Output = Result<(), HandlerError>>,
{
    let mut retried = Retried::default();
    let mut held: HashSet<String> = HashSet::new();
    for number in state.parked_numbers() {
        // The numbers are from before: a clone of the folder may have dropped the entry since.
        let Some(mut parked) = state.read_parked(number)? else {
            continue;
        };
        let waits = parked.key.as_ref().is_some_and(|key| held.contains(key));
        let wanted = wanted(&parked);
        if wanted
            && !waits
            && try_again(state, &mut parked, attempt_time, observer, &mut handler).await?
        {
            retried.handled += 1;
            continue;
        }
        match (wanted, waits) {
            (true, true) => retried.waiting += 1,
            (true, false) => retried.failed += 1,
            (false, _) => {}
        }
        // It stays in the folder, so later entries of its key must wait.
        held.extend(parked.key);
    }
    Ok(retried)
}

/// Tries a parked entry once. Returns whether the handler took it.
async fn try_again<F>(
    state: &StateFolder,
    parked: &mut Parked,
    attempt_time: Duration,
    observer: &mut dyn Observer,
    handler: &mut impl FnMut(Delivery) -> F,
) -> Result<bool, StateError>
where
    F: Future<Output = Result<(), HandlerError>>,
{
    let delivery = parked.delivery();
    // On the disk before the handler runs, so that an attempt that kills the process counts.
    parked.attempts = parked.attempts.saturating_add(1);
    parked.waits = false;
    parked.error = None;
    state.update(parked)?;
    let Err(error) = run(handler, &delivery, attempt_time).await else {
        // The record first: a crash before the removal repeats the entry, and loses nothing.
        state.record(What::Retried, &delivery, parked.attempts, None)?;
        state.unpark(parked.number)?;
        observer.handled(&delivery);
        return Ok(true);
    };
    parked.error = Some(error.clone());
    state.update(parked)?;
    let attempt = Attempt {
        entry: delivery.id().into(),
        position: delivery.position(),
        count: parked.attempts,
        error: Some(error),
    };
    observer.failed(&delivery, &attempt);
    Ok(false)
}

/// Forgets a parked entry that shall never be handled. The record keeps the reason.
///
/// # Errors
///
/// See [`StateError`].
pub fn drop_parked(state: &StateFolder, parked: &Parked, reason: &str) -> Result<(), StateError> {
    let delivery = parked.delivery();
    // The record first: no entry goes without a trace.
    state.record(What::Dropped, &delivery, parked.attempts, Some(reason))?;
    state.unpark(parked.number)
}

#[cfg(test)]
mod tests;
