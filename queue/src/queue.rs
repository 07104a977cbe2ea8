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

/// Longest time between two searches for jobs, in a keeper that notices every change. The bound is
/// needed even there: timers stand still while a machine sleeps, and do not notice when the clock
/// is set.
const POLL: Duration = Duration::from_secs(10);

/// Answer of [`Queue::take`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TakeOutcome {
    /// A batch: as many jobs as were wanted, or all jobs that are due.
    Leased(Vec<Lease>),
    /// No batch yet: no free job is due, or the oldest due job still waits for a full batch.
    Wait {
        /// The time, by the keeper's clock.
        now: DateTime<Utc>,
        /// Time before which no batch is ready, unless jobs change. `None`, if no job waits or is
        /// leased.
        next: Option<DateTime<Utc>>,
    },
}

/// A delayed job queue.
///
/// Each call is one transaction: the storage keeps all changes of the call or none, even if the
/// process is killed. Only leases may be lost in a crash, and their jobs are then due again. All
/// times are those of the keeper's clock.
///
/// A job is in one of three states: the job *waits* (not due yet, or due), a worker has *leased*
/// the job, or the job is *dead*. An expired lease makes the job wait again, with an unchanged due
/// time.
///
/// A call makes changes in the order of its arguments: a token that occurs again in the same call,
/// after a finish or failure, is void.
pub trait Queue: Clone + Send + Sync + 'static {
    /// Schedules jobs. If a call has a key more than once, the first job with the key counts, and
    /// the others meet an existing job.
    ///
    /// # Errors
    ///
    /// If a bound is crossed, or the storage fails.
    fn schedule(
        &self,
        jobs: Vec<NewJob>,
        existing: Existing,
    ) -> impl Future<Output = Result<Vec<ScheduleOutcome>, QueueError>> + Send;

    /// Leases a batch, if there is one, without waiting. A batch has `max` due jobs, from the job
    /// that has been due for longest on; or all due jobs, once the oldest has waited for the
    /// buffer. A job that another process has freed may be left out until the next
    /// [poll](Self::poll).
    ///
    /// If the future is dropped, the jobs may stay leased, without a worker, until the lease
    /// expires.
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

    /// Returns at most `limit` dead jobs, those with the first keys after `after`, in the byte
    /// order of keys.
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

    /// Makes jobs due now whose due time is more than `due` from now, in unchanged slots. Also ends
    /// leases that last for more than `lease` from now. A clock that was wrong has set such times.
    /// One call makes at most [`CALL_JOBS_MAX`](crate::limits::CALL_JOBS_MAX) changes, and leaves
    /// out jobs that another call is changing. Returns the number of changes; after a call that
    /// returns 0, only the jobs that were left out have such times.
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

    /// Returns the longest time between two searches for jobs. The bound is needed, because a
    /// keeper may miss a change, and a machine may sleep.
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

    /// Leases a batch as soon as there is one. Once `stop` is ready, leases nothing and returns
    /// `None`, so that no batch is leased without a worker.
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
                // Asked before each search: with a backlog, every search finds a batch, and the
                // worker must stop all the same.
                let is_told = tokio::select! {
                    biased;
                    _ = &mut stop => true,
                    () = std::future::ready(()) => false,
                };
                if is_told {
                    return Ok(None);
                }
                // Subscribed before the search, so that no change falls between the search and the
                // wait.
                let mut changes = self.changes();
                let (now, next) = match self.take(namespace, want).await? {
                    TakeOutcome::Leased(leases) => return Ok(Some(leases)),
                    TakeOutcome::Wait { now, next } => (now, next),
                };
                tokio::select! {
                    // A stop wins over a change: the next search could lease a batch for a worker
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
