//! The contract of all keepers: calls, their answers, and the wait for a batch.
//!
//! Shell: the keeper's storage and clock.

use std::time::Duration;

use chrono::{DateTime, Utc};
use tokio::sync::watch;

use crate::{
    clock::Clock,
    error::QueueError,
    job::{
        Dead, Existing, Extension, FailureOutcome, Finish, JobFailure, Lease, Namespace, NewJob,
        ScheduleOutcome, Stats, TokenStanding, Want,
    },
    limits::Limit,
    quota::{QuotaReport, Reservation},
};

/// Longest time between two looks for jobs, in a keeper that notices every change. Timers stand
/// still while a machine sleeps, and do not follow a clock that is set.
const POLL: Duration = Duration::from_secs(10);

/// Answer of [`Queue::take`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TakeOutcome {
    /// A batch: as many as were wanted, or all that are due.
    Leased(Vec<Lease>),
    /// No batch yet: no free job is due, or the oldest due job still waits for a full batch.
    Wait {
        /// Time of the keeper.
        now: DateTime<Utc>,
        /// Time before which no batch is ready, unless jobs change. `None`, if no job waits.
        next: Option<DateTime<Utc>>,
    },
}

/// A delayed job queue.
///
/// Each call is one transaction: the storage keeps all of its changes or none, also if the process
/// is killed. Only leases may be forgotten by a crash, which makes their jobs due again. All times
/// are those of the keeper's clock.
///
/// A job is in one of three states: the job *waits* (not due yet, or due), a worker has *leased*
/// the job, or the job is *dead*. An expired lease makes the job wait again, with an unchanged due
/// time.
///
/// A call does its parts in their order: a token that occurs again after its finish or failure is
/// void there.
pub trait Queue: Clone + Send + Sync + 'static {
    /// Schedules jobs. Of equal keys in one call, the first counts and the others meet an existing
    /// job.
    ///
    /// # Errors
    ///
    /// If a bound is crossed, or the storage fails.
    fn schedule(
        &self,
        jobs: Vec<NewJob>,
        existing: Existing,
    ) -> impl Future<Output = Result<Vec<ScheduleOutcome>, QueueError>> + Send;

    /// Leases a batch, if there is one, without waiting: `max` due jobs, those first that are due
    /// for longest; or all due jobs, once the oldest has waited for the buffer. A job that another
    /// process makes free may be passed by until the next [poll](Self::poll).
    ///
    /// If the future is dropped, the jobs are leased to nobody until the lease expires, at worst.
    ///
    /// # Errors
    ///
    /// If a bound is crossed, or the storage fails.
    fn take(
        &self,
        namespace: &Namespace,
        want: Want,
    ) -> impl Future<Output = Result<TakeOutcome, QueueError>> + Send;

    /// Extends leases, and stores notes, in the order of the extensions.
    ///
    /// # Errors
    ///
    /// If a bound is crossed, or the storage fails.
    fn extend(
        &self,
        extensions: Vec<Extension>,
    ) -> impl Future<Output = Result<Vec<TokenStanding>, QueueError>> + Send;

    /// Finishes jobs, in the order of the finishes.
    ///
    /// # Errors
    ///
    /// If a bound is crossed, or the storage fails.
    fn finish(
        &self,
        finishes: Vec<Finish>,
    ) -> impl Future<Output = Result<Vec<TokenStanding>, QueueError>> + Send;

    /// Gives jobs back whose work failed, in the order of the failures.
    ///
    /// # Errors
    ///
    /// If a bound is crossed, or the storage fails.
    fn fail(
        &self,
        failures: Vec<JobFailure>,
    ) -> impl Future<Output = Result<Vec<FailureOutcome>, QueueError>> + Send;

    /// Returns dead jobs whose keys come after `after`, by key in the order of bytes, at most
    /// `limit`.
    ///
    /// # Errors
    ///
    /// If the limit is out of range, or the storage fails.
    fn dead(
        &self,
        namespace: &Namespace,
        after: Option<&str>,
        limit: usize,
    ) -> impl Future<Output = Result<Vec<Dead>, QueueError>> + Send;

    /// Makes dead jobs due now, without failures, in unchanged slots. Returns the number of retried
    /// jobs.
    ///
    /// # Errors
    ///
    /// If there are too many keys, or the storage fails.
    fn retry(
        &self,
        namespace: &Namespace,
        keys: Vec<String>,
    ) -> impl Future<Output = Result<usize, QueueError>> + Send;

    /// Removes jobs in any state, so that their tokens are void. Returns the number of removed
    /// jobs.
    ///
    /// # Errors
    ///
    /// If there are too many keys, or the storage fails.
    fn remove(
        &self,
        namespace: &Namespace,
        keys: Vec<String>,
    ) -> impl Future<Output = Result<usize, QueueError>> + Send;

    /// Makes jobs due now that are not due within `due` from now, in unchanged slots, and ends
    /// leases that last for more than `lease` from now: a clock that was wrong has set these times.
    /// One call changes at most [`CALL_JOBS_MAX`](crate::limits::CALL_JOBS_MAX) jobs, and passes by
    /// those that another call is changing. Returns the number of changes; after a call without
    /// changes, only the passed jobs are left.
    ///
    /// # Errors
    ///
    /// If the storage fails.
    fn bring_forward(
        &self,
        namespace: &Namespace,
        due: Duration,
        lease: Duration,
    ) -> impl Future<Output = Result<usize, QueueError>> + Send;

    /// Counts the jobs of a namespace.
    ///
    /// # Errors
    ///
    /// If the storage fails.
    fn stats(
        &self,
        namespace: &Namespace,
    ) -> impl Future<Output = Result<Stats, QueueError>> + Send;

    /// Reserves requests of a credential, all or none. The quota is shared by all workers of the
    /// queue.
    ///
    /// # Errors
    ///
    /// If so many requests never fit, or the storage fails.
    fn reserve(
        &self,
        credential: &str,
        requests: u32,
        limit: Limit,
    ) -> impl Future<Output = Result<Reservation, QueueError>> + Send;

    /// Applies a provider's report about a credential's quota.
    ///
    /// # Errors
    ///
    /// If the storage fails.
    fn report(
        &self,
        credential: &str,
        report: QuotaReport,
    ) -> impl Future<Output = Result<(), QueueError>> + Send;

    /// Returns the keeper's time.
    ///
    /// # Errors
    ///
    /// If the storage fails.
    fn now(&self) -> impl Future<Output = Result<DateTime<Utc>, QueueError>> + Send;

    /// Returns a signal that changes when a job may have become due earlier than the last
    /// [`take`](Self::take) foresaw.
    fn changes(&self) -> watch::Receiver<()>;

    /// Returns the clock by which callers of this keeper wait.
    fn clock(&self) -> &Clock;

    /// Returns the longest time between two looks for jobs. A keeper may miss a change, or a
    /// machine sleep.
    fn poll(&self) -> Duration {
        POLL
    }

    /// Leases a batch as soon as there is one.
    ///
    /// # Errors
    ///
    /// If a bound is crossed, or the storage fails.
    fn lease(
        &self,
        namespace: &Namespace,
        want: Want,
    ) -> impl Future<Output = Result<Vec<Lease>, QueueError>> + Send {
        async move {
            let never = std::future::pending::<()>();
            let leases = self.lease_until(namespace, want, never).await?;
            // `None` means that `stop` was ready, and `never` is not.
            Ok(leases.unwrap_or_default())
        }
    }

    /// Leases a batch as soon as there is one; nothing once `stop` is ready, so that no batch is
    /// leased to nobody.
    ///
    /// # Errors
    ///
    /// If a bound is crossed, or the storage fails.
    fn lease_until(
        &self,
        namespace: &Namespace,
        want: Want,
        stop: impl Future + Send,
    ) -> impl Future<Output = Result<Option<Vec<Lease>>, QueueError>> + Send {
        async move {
            let mut stop = std::pin::pin!(stop);
            loop {
                // A backlog must not keep a worker from its end.
                let is_told = tokio::select! {
                    biased;
                    _ = &mut stop => true,
                    () = std::future::ready(()) => false,
                };
                if is_told {
                    return Ok(None);
                }
                // Before the look, so that no change falls between the two.
                let mut changes = self.changes();
                let (now, next) = match self.take(namespace, want).await? {
                    TakeOutcome::Leased(leases) => return Ok(Some(leases)),
                    TakeOutcome::Wait { now, next } => (now, next),
                };
                tokio::select! {
                    // A stop wins over a change: the next look could lease a batch for a worker
                    // that ends.
                    biased;
                    _ = &mut stop => return Ok(None),
                    // The signal ends only with the keeper.
                    changed = changes.changed() => changed.map_err(|_closed| QueueError::Closed)?,
                    () = self.clock().wait(now, next, self.poll()) => {}
                }
            }
        }
    }
}
