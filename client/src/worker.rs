//! The worker: a consumer that can be left alone with a handler that fails.
//!
//! Shell: runs the handler, and keeps the worker's state in the [state folder](crate::state) for
//! the time after a crash. [`Policy`] decides about an entry that fails.
//!
//! For each entry, in this order: the attempt is counted on the disk; the handler runs; the outcome
//! is on the disk before the bookmark passes the entry. So an entry is handled at least once, or
//! stands in the record. An attempt that ends the process is counted, too.
//!
//! Several handlers may run [at a time](Worker::concurrency), but never two for the same key. After
//! a crash the entries that were running are handled alone, one after the other. So the entry at
//! fault is found, and no other entry is given up.

use std::{
    any::Any,
    error::Error,
    num::{NonZeroU32, NonZeroUsize},
    panic::{AssertUnwindSafe, catch_unwind},
    pin::{Pin, pin},
    time::Duration,
};

use futures_util::{
    FutureExt as _, StreamExt as _,
    future::{FusedFuture, pending},
    stream::FuturesUnordered,
};
use simplefeed_core::{
    limits::{ATTEMPT_SECONDS_DEFAULT, ATTEMPTS_DEFAULT, PARKED_MAX},
    replay::Bookmark,
};
use tokio::time::{self, Instant};
use tracing::{Instrument as _, info_span};

pub use crate::bookmark::Attempt;
use crate::{
    consumer::{Builder, Consumer, ConsumerError},
    delivery::Delivery,
    error::error_text,
    policy::{Policy, PolicyDecision},
    state::{
        EntryOutcome, StateError, StateFolder,
        parked::{NewParkedEntry, ParkedEntry},
    },
};

mod retrying;
mod window;

pub use retrying::{RetryTally, drop_parked, retry};
use window::EntryWindow;

/// Any error that a handler may return.
pub type HandlerError = Box<dyn Error + Send + Sync>;

/// Function that returns the key of an entry, if the entry has one.
type KeyFunction = Box<dyn Fn(&Delivery) -> Option<String> + Send>;

/// Error of a handler that was interrupted from outside: the attempt does not count, and the entry
/// is handed over again.
///
/// # Examples
///
/// ```
/// use simplefeed_client::worker::{HandlerError, Interruption};
///
/// fn ended(command: std::process::ExitStatus, was_asked_to_stop: bool) -> Result<(), HandlerError> {
///     match command.success() {
///         true => Ok(()),
///         false if was_asked_to_stop => Err(Interruption.into()),
///         false => Err(command.to_string().into()),
///     }
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the attempt was interrupted")]
pub struct Interruption;

/// Error of a handler that can handle no entry at all, for instance because the handler's program
/// does not exist. The attempt does not count, and the worker stops.
///
/// # Examples
///
/// ```
/// use simplefeed_client::worker::{CannotRun, HandlerError};
///
/// let error: HandlerError = CannotRun("there is no /usr/bin/ship".into()).into();
/// assert_eq!(error.to_string(), "there is no /usr/bin/ship");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct CannotRun(pub String);

/// How an attempt ended without success.
#[derive(Debug)]
enum HandlerFailure {
    /// The attempt failed with this error, and the policy decides about the entry.
    Failed(String),
    /// The handler was interrupted, which is no failure.
    Interrupted,
    /// The handler can handle no entry.
    CannotRun(String),
}

impl From<HandlerError> for HandlerFailure {
    fn from(error: HandlerError) -> Self {
        if error.is::<Interruption>() {
            return Self::Interrupted;
        }
        match error.downcast::<CannotRun>() {
            Ok(cannot) => Self::CannotRun(cannot.0),
            Err(error) => Self::Failed(error_text(&*error)),
        }
    }
}

/// Pause after an attempt that was interrupted.
const INTERRUPTED_PAUSE: Duration = Duration::from_secs(1);

/// Error text of an attempt that the end of the process interrupted.
const CUT_SHORT: &str = "the process ended during it";

/// Why a worker stopped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WorkerError {
    /// The feed cannot be read any further.
    #[error(transparent)]
    Consumer(#[from] ConsumerError),
    /// The state cannot be read or saved.
    #[error(transparent)]
    State(#[from] StateError),
    /// Another entry is to be parked, but as many as allowed are parked already: the handler is at
    /// fault rather than the entries.
    #[error("{max} entries are parked, and another one fails")]
    TooManyParked {
        /// Number of entries that may be parked, from [`Worker::parked_max`].
        max: usize,
    },
    /// The handler can handle no entry ([`CannotRun`]).
    #[error("no entry can be handled: {reason}")]
    CannotRun {
        /// Reason that the handler gave.
        reason: String,
    },
}

/// Counts of one run, by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Entries that the handler handled.
    pub handled: u64,
    /// Entries passed over after their last attempt.
    pub skipped: u64,
    /// Entries set aside, including those that wait behind an entry with the same key.
    pub parked: u64,
}

/// Hands a feed's entries to a handler, one after the other or [several](Self::concurrency) at a
/// time, and treats failures of the handler by a [`Policy`].
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
/// With other limits, until Ctrl-C, and with the removal of parked entries at the end:
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
    key: Option<KeyFunction>,
    concurrency: NonZeroUsize,
    window: EntryWindow,
    /// Entry that an earlier process parked last. That process may have ended before it noted the
    /// entry as done.
    parked_before: Option<ParkedEntry>,
    /// Place before the window, unless the consumer has kept that place.
    done: Option<Bookmark>,
    /// Whether the state folder has the present place and the present window.
    is_noted: bool,
}

/// Outcome of one entry in this run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RunOutcome {
    Handled,
    Skipped,
    Parked,
}

/// Event that a worker waited for.
enum Happening {
    /// A handler came to an end.
    Ended(u64, Result<(), HandlerFailure>),
    Read(Result<Option<Delivery>, WorkerError>),
    /// A pause is over.
    Due,
    Stop,
    /// There is nothing left to wait for.
    Nothing,
}

/// Work that a run still does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RunStage {
    /// Reads and handles entries.
    Reading,
    /// Handles the entries in hand and reads no others: a consumer that does not follow is caught
    /// up.
    CaughtUp,
    /// Waits for the handlers that run: the worker was asked to stop, or failed.
    Stopping,
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
        let (begun, parked_before) = (state.begun()?, state.last_parked()?);
        Ok(Self {
            consumer: consumer.bookmark(state.clone()).build()?,
            state,
            policy: Policy::default(),
            attempts: NonZeroU32::new(ATTEMPTS_DEFAULT).unwrap_or(NonZeroU32::MIN),
            attempt_time: Duration::from_secs(ATTEMPT_SECONDS_DEFAULT),
            parked_max: PARKED_MAX,
            key: None,
            concurrency: NonZeroUsize::MIN,
            window: EntryWindow::new(begun),
            parked_before,
            done: None,
            is_noted: true,
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

    /// Sets the time that a handler has for one entry; 5 minutes by default. After that time the
    /// handler's future is dropped. A handler that blocks the thread cannot be ended.
    #[must_use]
    pub fn attempt_time(self, attempt_time: Duration) -> Self {
        Self {
            attempt_time,
            ..self
        }
    }

    /// Sets how many entries may be parked at most; 10,000 by default.
    #[must_use]
    pub fn parked_max(self, parked_max: usize) -> Self {
        Self { parked_max, ..self }
    }

    /// Sets the function from an entry to its key, for [`Policy::ParkByKey`] and for
    /// [`concurrency`](Self::concurrency). An entry without a key waits for no other.
    #[must_use]
    pub fn key(self, key: impl Fn(&Delivery) -> Option<String> + Send + 'static) -> Self {
        Self {
            key: Some(Box::new(key)),
            ..self
        }
    }

    /// Sets how many handlers may run at a time; 1 by default. Entries with the same key are
    /// handled one after the other, in order; without a key function they are handled in any order.
    /// The handlers share the task of [`run`](Self::run): a handler that blocks the thread blocks
    /// all.
    ///
    /// At most four times as many entries are in hand as handlers may run. While the first entry in
    /// hand is not finished, the bookmark does not move. The state folder notes the finished
    /// entries behind the first one. These are handled again only if the process ends before the
    /// write of their notes.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use std::num::NonZeroUsize;
    /// use simplefeed_client::{Consumer, StateFolder, Worker};
    ///
    /// # async fn ship(order: serde_json::Value) -> Result<(), std::io::Error> { Ok(()) }
    /// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
    /// let orders = Consumer::builder("https://example.org/feeds/orders").follow(true);
    /// let mut worker = Worker::new(orders, StateFolder::open("/var/lib/shipping/orders")?)?
    ///     .concurrency(NonZeroUsize::new(16).unwrap())
    ///     .key(|delivery| {
    ///         let order: serde_json::Value = delivery.json().ok()?;
    ///         Some(order["customer"].to_string())
    ///     });
    /// worker.run(async |delivery| Ok(ship(delivery.json()?).await?)).await?;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn concurrency(self, concurrency: NonZeroUsize) -> Self {
        Self {
            concurrency,
            ..self
        }
    }

    /// Handles entries up to the newest one at the first look, or for ever if the consumer follows.
    ///
    /// Cancel safe: if the future is dropped, the running handlers are dropped, too. Their attempts
    /// do not count, and the next run begins with their entries at once; the pauses of entries that
    /// failed go on. If attempts do not count, or if finished entries are not noted yet, the drop
    /// writes a small file.
    ///
    /// # Errors
    ///
    /// See [`WorkerError`]. A failure of the handler is no error here.
    pub async fn run<F>(&mut self, handler: impl FnMut(Delivery) -> F) -> Result<Tally, WorkerError>
    where
        F: Future<Output = Result<(), HandlerError>>,
    {
        self.run_until(pending(), handler).await
    }

    /// Runs as [`run`](Self::run) does, until `stop` is ready. Handlers that have begun come to
    /// their end. If the process ends before that, their attempts do not count.
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
        let run = WorkerRun(self);
        let ended = run.0.handle_all(stop, &mut handler, &mut tally).await;
        drop(run);
        // The place is noted even after an error: an error about one entry must not make a handled
        // entry come again.
        let noted = if self.is_noted {
            Ok(())
        } else {
            self.note_place()
        };
        ended.and(noted).map(|()| tally)
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
        let mut running = FuturesUnordered::new();
        let mut ended = Ok(());
        let mut stage = RunStage::Reading;
        loop {
            // `stop` is polled before anything begins, because a worker that is asked to stop
            // begins nothing.
            let mut step = Ok(());
            if stage != RunStage::Stopping && stop.as_mut().now_or_never().is_some() {
                stage = RunStage::Stopping;
                step = self.excuse_running();
            }
            if stage != RunStage::Stopping {
                let mut begun = vec![];
                step = self
                    .start_ready(running.len(), stage, tally, &mut begun)
                    .await;
                for number in begun {
                    let delivery = self.window.slot(number).map(|slot| &slot.delivery);
                    running.extend(delivery.map(|delivery| {
                        let run = run(handler, delivery, self.attempt_time);
                        run.map(move |result| (number, result))
                    }));
                }
            }
            if step.is_ok() {
                let happening = self.wait_for_next(stop.as_mut(), &mut running, stage).await;
                step = match happening {
                    Happening::Nothing => return ended,
                    Happening::Due => Ok(()),
                    Happening::Ended(number, result) => {
                        self.end_attempt(number, result, tally).await
                    }
                    Happening::Read(Ok(Some(delivery))) => self.take_in_hand(delivery, tally).await,
                    Happening::Read(Err(error)) => Err(error),
                    Happening::Read(Ok(None)) => {
                        stage = RunStage::CaughtUp;
                        Ok(())
                    }
                    Happening::Stop => {
                        stage = RunStage::Stopping;
                        self.excuse_running()
                    }
                };
            }
            if let Err(error) = step {
                // Handlers that have begun come to their end. The first error is returned, because
                // others may follow from that error.
                stage = RunStage::Stopping;
                ended = ended.and(Err(error));
            }
        }
    }

    /// Waits for the next thing to happen.
    async fn wait_for_next<R>(
        &mut self,
        stop: Pin<&mut impl FusedFuture<Output = ()>>,
        running: &mut FuturesUnordered<R>,
        stage: RunStage,
    ) -> Happening
    where
        R: Future<Output = (u64, Result<(), HandlerFailure>)>,
    {
        let goes_on = stage != RunStage::Stopping;
        // While no handler is free, the end of a pause changes nothing.
        let is_free = running.len() < self.window.handlers_max(self.concurrency);
        let due = self.window.next_due().filter(|_| goes_on && is_free);
        let reads = stage == RunStage::Reading && self.window.has_room(self.concurrency);
        if !reads && running.is_empty() && due.is_none() {
            return Happening::Nothing;
        }
        tokio::select! {
            biased;
            () = stop, if goes_on => Happening::Stop,
            Some((number, result)) = running.next() => Happening::Ended(number, result),
            () = time::sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => Happening::Due,
            next = next_of(&mut self.consumer), if reads => Happening::Read(next),
        }
    }

    /// Takes ready entries in hand, and counts on the disk the attempts that begin now. Adds the
    /// numbers of the entries of these attempts to `begun`, even if the decision about a later
    /// entry fails.
    async fn start_ready(
        &mut self,
        running: usize,
        stage: RunStage,
        tally: &mut Tally,
        begun: &mut Vec<u64>,
    ) -> Result<(), WorkerError> {
        while stage == RunStage::Reading
            && self.consumer.ready() > 0
            && self.window.has_room(self.concurrency)
            && let Some(delivery) = next_of(&mut self.consumer).await?
        {
            self.take_in_hand(delivery, tally).await?;
        }
        let mut decided = Ok(());
        // `handlers_max` is asked again each time: an entry that is given up may have been the last
        // suspect.
        while running + begun.len() < self.window.handlers_max(self.concurrency)
            && let Some(number) = self.window.startable(Instant::now())
        {
            match self.decide_about(number, tally).await {
                Ok(true) => {
                    begun.push(number);
                    self.window.begin(number);
                }
                Ok(false) => {}
                Err(error) => {
                    decided = Err(error);
                    break;
                }
            }
        }
        // Finished entries and failures are noted together with the next attempt, unless that
        // attempt may be far off.
        let is_full = !self.window.has_room(self.concurrency) || self.consumer.ready() == 0;
        let is_due = is_full && !self.is_noted && self.concurrency > NonZeroUsize::MIN;
        if !begun.is_empty() || is_due {
            self.is_noted = false;
            // The attempts are on the disk before the handlers run, so that an attempt that kills
            // the process counts.
            if let Err(error) = self.note_place() {
                // These handlers do not run, so their attempts do not count.
                for number in begun.drain(..) {
                    if let Some(slot) = self.window.slot(number) {
                        slot.take_back(Instant::now());
                    }
                }
                return Err(error);
            }
        }
        decided
    }

    /// Takes an entry in hand.
    async fn take_in_hand(
        &mut self,
        delivery: Delivery,
        tally: &mut Tally,
    ) -> Result<(), WorkerError> {
        let key = self.key_of(&delivery);
        // An earlier process may have parked the entry, and ended before it noted the entry as
        // done. A clone of the `StateFolder` may have retried or removed the parked entry since.
        let parked = self.parked_before.take_if(|parked| parked.is_of(&delivery));
        let is_parked = parked.map_or(Ok(false), |_| self.state.was_parked_last(&delivery));
        // The entry is admitted before an error is returned, because the consumer does not deliver
        // the entry again.
        let is_finished = self.window.admit(delivery, key);
        if is_parked? && !is_finished {
            return self
                .finish_entry(self.window.last(), RunOutcome::Parked, tally)
                .await;
        }
        if is_finished {
            self.let_go(RunOutcome::Handled).await?;
        }
        Ok(())
    }

    /// Decides about an entry whose turn has come. Returns whether the handler may begin now.
    async fn decide_about(&mut self, number: u64, tally: &mut Tally) -> Result<bool, WorkerError> {
        let Some(slot) = self.window.slot(number) else {
            return Ok(false);
        };
        if slot.is_due() {
            return Ok(true);
        }
        // Only before the first attempt: an entry that was begun is never parked because of its
        // key.
        if slot.attempt.count == 0
            && self.policy == Policy::ParkByKey
            && let Some(key) = &slot.key
            && self.state.holds_key(key)
        {
            self.park_entry(number, None)?;
            self.finish_entry(number, RunOutcome::Parked, tally).await?;
            return Ok(false);
        }
        let decision = self
            .policy
            .after(slot.attempt.count, slot.attempts_here(), self.attempts);
        match decision {
            PolicyDecision::Try(Duration::ZERO) => Ok(true),
            PolicyDecision::Try(pause) => {
                slot.wait_until(Instant::now() + pause);
                Ok(false)
            }
            PolicyDecision::Skip => {
                let (delivery, attempt) = (slot.delivery.clone(), slot.attempt.clone());
                // No error means that the process ended during the last attempt.
                let why = Some(attempt.error.as_deref().unwrap_or(CUT_SHORT));
                self.state
                    .record(EntryOutcome::Skipped, &delivery, attempt.count, why)?;
                self.consumer.observer().skipped(&delivery);
                self.finish_entry(number, RunOutcome::Skipped, tally)
                    .await?;
                Ok(false)
            }
            PolicyDecision::Park => {
                let attempt = slot.attempt.clone();
                self.park_entry(number, Some(&attempt))?;
                self.finish_entry(number, RunOutcome::Parked, tally).await?;
                Ok(false)
            }
        }
    }

    /// Notes how an attempt ended.
    async fn end_attempt(
        &mut self,
        number: u64,
        result: Result<(), HandlerFailure>,
        tally: &mut Tally,
    ) -> Result<(), WorkerError> {
        let Some(slot) = self.window.slot(number) else {
            return Ok(());
        };
        let delivery = slot.delivery.clone();
        match result {
            Ok(()) => {
                self.consumer.observer().handled(&delivery);
                self.finish_entry(number, RunOutcome::Handled, tally)
                    .await?;
                // The mark for health checks comes last: a failure to write the mark must not count
                // as a failure of the entry.
                Ok(self.state.handled()?)
            }
            Err(HandlerFailure::Interrupted) => {
                slot.take_back(Instant::now() + INTERRUPTED_PAUSE);
                self.is_noted = false;
                Ok(())
            }
            Err(HandlerFailure::CannotRun(reason)) => {
                slot.take_back(Instant::now());
                self.is_noted = false;
                Err(WorkerError::CannotRun { reason })
            }
            Err(HandlerFailure::Failed(error)) => {
                slot.fail(error);
                self.is_noted = false;
                let attempt = slot.attempt.clone();
                self.consumer.observer().failed(&delivery, &attempt);
                // The decision comes at once, even if the worker was asked to stop: after the last
                // attempt, the entry is given up.
                self.decide_about(number, tally).await.map(drop)
            }
        }
    }

    /// Counts the outcome of an entry, and moves the place behind finished entries.
    async fn finish_entry(
        &mut self,
        number: u64,
        outcome: RunOutcome,
        tally: &mut Tally,
    ) -> Result<(), WorkerError> {
        match outcome {
            RunOutcome::Handled => tally.handled += 1,
            RunOutcome::Skipped => tally.skipped += 1,
            RunOutcome::Parked => tally.parked += 1,
        }
        if let Some(slot) = self.window.slot(number) {
            slot.finish();
        }
        self.let_go(outcome).await
    }

    /// Moves the place behind the finished entries. The place is kept at once if no other entry is
    /// ready, or if a repeat would show in the record; else together with the next attempt.
    async fn let_go(&mut self, outcome: RunOutcome) -> Result<(), WorkerError> {
        let last = self.window.pop_finished();
        self.is_noted = false;
        if let Some(last) = &last {
            self.done = Some(last.bookmark());
        }
        let shows = outcome != RunOutcome::Handled;
        let is_due = shows || self.consumer.ready() == 0;
        match last {
            // `accept` keeps the bookmark alone. The notes about entries in hand behind the
            // bookmark would be lost, so there must be no such entries.
            Some(last) if is_due && self.window.is_clear() => {
                self.consumer.accept(&last).await?;
                self.done = None;
                self.is_noted = true;
                Ok(())
            }
            _ if shows || is_due => self.note_place(),
            // A handled entry needs no write of its own while others are ready.
            _ => Ok(()),
        }
    }

    /// Excuses the attempts that run, durably: the process may be ended before the attempts end.
    fn excuse_running(&mut self) -> Result<(), WorkerError> {
        if self.window.excuse() {
            return self.note_place();
        }
        Ok(())
    }

    /// Keeps the place and the entries in hand, durably.
    fn note_place(&mut self) -> Result<(), WorkerError> {
        let done = self.done.clone();
        let done = done.or_else(|| self.consumer.begins_after());
        self.state
            .begin(done.unwrap_or_default(), self.window.begun())?;
        self.is_noted = true;
        Ok(())
    }

    /// Returns the key of an entry, if entries wait for each other by their keys. An entry has no
    /// key if the key function panics.
    fn key_of(&self, delivery: &Delivery) -> Option<String> {
        let counts = self.policy == Policy::ParkByKey || self.concurrency > NonZeroUsize::MIN;
        let key = self.key.as_ref().filter(|_| counts)?;
        // A fault in the key function must not end the worker.
        catch_unwind(AssertUnwindSafe(|| key(delivery))).unwrap_or_default()
    }

    /// Sets an entry aside: because the entry failed, or because an entry with the same key is set
    /// aside.
    fn park_entry(&mut self, number: u64, failed: Option<&Attempt>) -> Result<(), WorkerError> {
        let Some(slot) = self.window.slot(number) else {
            return Ok(());
        };
        let max = self.parked_max;
        // A handler that fails for every entry would fill the disk with parked entries.
        if self.state.parked_count() >= max {
            return Err(WorkerError::TooManyParked { max });
        }
        let error = failed.map(|attempt| attempt.error.as_deref().unwrap_or(CUT_SHORT));
        self.state.park(&NewParkedEntry {
            delivery: &slot.delivery,
            key: slot.key.as_deref(),
            waits: failed.is_none(),
            attempts: failed.map_or(0, |attempt| attempt.count),
            error,
        })?;
        // Only the entry parked last can lack the note that the entry is done, and from now on the
        // last one is another entry.
        self.parked_before = None;
        let observer = self.consumer.observer();
        observer.parked(&slot.delivery, failed.is_none());
        Ok(())
    }
}

/// Run of a worker. The drop takes back the running attempts, and notes the place.
struct WorkerRun<'a>(&'a mut Worker);

impl Drop for WorkerRun<'_> {
    fn drop(&mut self) {
        let Self(worker) = self;
        if worker.window.interrupt() || !worker.is_noted {
            // If this write fails, a later process counts an attempt too many, or records an entry
            // twice.
            worker.is_noted = worker.note_place().is_ok();
        }
    }
}

/// Returns the next entry. A consumer that follows waits through all transient errors.
async fn next_of(consumer: &mut Consumer) -> Result<Option<Delivery>, WorkerError> {
    loop {
        match consumer.next().await {
            Err(error) if consumer.follows() && error.is_transient() => {
                consumer.notify_retry(&error);
            }
            next => return Ok(next?),
        }
    }
}

/// Begins the handler, and returns a future of the outcome.
fn run<H, F>(
    handler: &mut H,
    delivery: &Delivery,
    limit: Duration,
) -> impl Future<Output = Result<(), HandlerFailure>> + use<H, F>
where
    H: FnMut(Delivery) -> F,
    F: Future<Output = Result<(), HandlerError>>,
{
    let span = info_span!("handle", feed = delivery.feed(), entry = delivery.id());
    let delivery = delivery.clone();
    // A panic is a failure of this entry, and no reason to end the worker.
    let begun = span.in_scope(|| catch_unwind(AssertUnwindSafe(|| handler(delivery))));
    let handled = async move {
        let handled = AssertUnwindSafe(begun.map_err(|panic| panic_error(&*panic))?).catch_unwind();
        match time::timeout(limit, handled).await {
            Ok(Ok(Ok(()))) => Ok(()),
            Ok(Ok(Err(error))) => Err(error.into()),
            Ok(Err(panic)) => Err(panic_error(&*panic)),
            Err(_) => Err(HandlerFailure::Failed(format!(
                "it took longer than {limit:?}"
            ))),
        }
    };
    handled.instrument(span)
}

fn panic_error(panic: &(dyn Any + Send)) -> HandlerFailure {
    HandlerFailure::Failed(format!("it panicked: {}", panic_text(panic)))
}

fn panic_text(panic: &(dyn Any + Send)) -> &str {
    // `panic!` holds a `String` if it formats arguments, and else a `&str`.
    let owned = panic.downcast_ref::<String>().map(String::as_str);
    owned
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("without words")
}

#[cfg(test)]
mod tests;
