//! The contract of all keepers.

use std::{path::PathBuf, time::Duration};

use chrono::{DateTime, Utc};
use tokio::sync::watch;

use crate::{
    clock::Clock,
    job::{
        CALL_JOBS_MAX, Dead, Existing, Extension, Failed, Failure, Finish, Held, KEY_BYTES_MAX,
        LEASE_MIN, Lease, NAMESPACE_BYTES_MAX, Namespace, NewJob, PAYLOAD_BYTES_MAX, Scheduled,
        Stats, Want,
    },
    quota::{Limit, Report, Reserved},
};

/// Longest time between two looks for jobs, where every change is heard of. Timers stand still while a machine sleeps, and do
/// not follow a clock that is set.
const POLL: Duration = Duration::from_secs(10);

/// Why a call failed. Nothing was changed, except by [`QueueError::Lost`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QueueError {
    /// The name of a namespace has a wrong form.
    #[error("the namespace {0:?} is not 1 to {NAMESPACE_BYTES_MAX} of A-Z, a-z, 0-9 and ._:-")]
    Name(String),
    /// A key has a wrong form. Its first 64 characters.
    #[error("a key has 1 to {KEY_BYTES_MAX} bytes without U+0000, not as {0:?}")]
    Key(String),
    /// Bytes of a payload or note that is too large.
    #[error("a payload has at most {PAYLOAD_BYTES_MAX} bytes, not {0}")]
    Payload(usize),
    /// Number of jobs that is out of range.
    #[error("a call takes 1 to {CALL_JOBS_MAX} jobs, not {0}")]
    Count(usize),
    /// A lease that is too short.
    #[error("a lease lasts at least {LEASE_MIN:?}, not {0:?}")]
    Lease(Duration),
    /// More requests than the credential's quota ever allows at once, or a quota without requests or time, or with a
    /// window that is too long.
    #[error("{requests} requests never fit into a quota of {} in {:?}", .limit.requests, .limit.window)]
    Quota {
        /// Requests that were to be reserved.
        requests: u32,
        /// Quota that the caller gave.
        limit: Limit,
    },
    /// Another process has the queue's file open.
    #[error("the queue {} is open in another process", .0.display())]
    InUse(PathBuf),
    /// The keeper's storage failed, or holds something that is no queue.
    #[error("{doing}")]
    Storage {
        /// Operation that failed, and its object.
        doing: String,
        /// Error of PostgreSQL, of its connections, or of the file.
        #[source]
        why: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The connection broke before the answer, or the file failed in a commit: the change was made, or it was not. Every
    /// call may be repeated: a token whose change was made is void.
    #[error("{doing}: no answer, so the change was made or not")]
    Lost {
        /// Operation that failed, and its object.
        doing: String,
        /// Error of the connection or of the commit.
        #[source]
        why: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The queue was closed.
    #[error("the queue is closed")]
    Closed,
    /// The file failed before, so that the queue is closed: only opening it again shows its state.
    #[error("the queue's file failed, so the queue is closed until it is opened again")]
    Failed {
        /// Failure that closed the queue.
        #[source]
        why: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// Answer of [`Queue::take`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Taken {
    /// A batch: as many as were wanted, or all that are due.
    Leased(Vec<Lease>),
    /// No batch yet: no free job is due, or the oldest due job still waits for a full batch.
    Wait {
        /// Time of the keeper.
        now: DateTime<Utc>,
        /// Time before which there is none, unless jobs change. `None`, if no job waits.
        next: Option<DateTime<Utc>>,
    },
}

/// A delayed job queue.
///
/// Each call is one transaction: all of it happens or nothing does, also if the process is killed. Only leases
/// may be forgotten by a crash, which makes their jobs due again. All times are those of the keeper's clock.
///
/// A job is in one of three states: it *waits* (not due yet, or due), a worker has *leased* it, or it is *dead*. A
/// lease that expires makes it wait again, with its due time as it was.
///
/// A call does its parts in their order: a token that occurs again after its finish or failure is void there.
pub trait Queue: Clone + Send + Sync + 'static {
    /// Schedules jobs. Of equal keys in one call, the first counts and the others meet it as an existing job.
    ///
    /// # Errors
    ///
    /// If a bound is crossed, or the storage fails.
    fn schedule(
        &self,
        jobs: Vec<NewJob>,
        existing: Existing,
    ) -> impl Future<Output = Result<Vec<Scheduled>, QueueError>> + Send;

    /// Leases a batch, if there is one, without waiting: `max` due jobs, those first that are due for longest; or all
    /// due jobs, once the oldest has waited for the buffer. A job that another process makes free may be passed by until the
    /// next [poll](Self::poll).
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
    ) -> impl Future<Output = Result<Taken, QueueError>> + Send;

    /// Extends leases, and stores notes. In order of the extensions.
    ///
    /// # Errors
    ///
    /// If a bound is crossed, or the storage fails.
    fn extend(
        &self,
        extensions: Vec<Extension>,
    ) -> impl Future<Output = Result<Vec<Held>, QueueError>> + Send;

    /// Finishes jobs. In order of the finishes.
    ///
    /// # Errors
    ///
    /// If a bound is crossed, or the storage fails.
    fn finish(
        &self,
        finishes: Vec<Finish>,
    ) -> impl Future<Output = Result<Vec<Held>, QueueError>> + Send;

    /// Gives jobs back whose work failed. In order of the failures.
    ///
    /// # Errors
    ///
    /// If a bound is crossed, or the storage fails.
    fn fail(
        &self,
        failures: Vec<Failure>,
    ) -> impl Future<Output = Result<Vec<Failed>, QueueError>> + Send;

    /// Returns dead jobs whose keys come after `after`, by key in the order of bytes, at most `limit`.
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

    /// Makes dead jobs due now, without failures, in their slots as they were. Returns how many were dead.
    ///
    /// # Errors
    ///
    /// If there are too many keys, or the storage fails.
    fn retry(
        &self,
        namespace: &Namespace,
        keys: Vec<String>,
    ) -> impl Future<Output = Result<usize, QueueError>> + Send;

    /// Removes jobs in any state, so that their tokens are void. Returns how many there were.
    ///
    /// # Errors
    ///
    /// If there are too many keys, or the storage fails.
    fn remove(
        &self,
        namespace: &Namespace,
        keys: Vec<String>,
    ) -> impl Future<Output = Result<usize, QueueError>> + Send;

    /// Makes jobs due now that are not due within `due` from now, in their slots as they were, and ends leases that last for more
    /// than `lease` from now: a clock that was wrong has set these times. It changes at most [`CALL_JOBS_MAX`] jobs, and passes
    /// by those that another call is changing. Returns how many changes it made; with none, only those are left.
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

    /// Reserves requests of a credential, all or none. The quota is shared by all workers of the queue.
    ///
    /// # Errors
    ///
    /// If so many requests never fit, or the storage fails.
    fn reserve(
        &self,
        credential: &str,
        requests: u32,
        limit: Limit,
    ) -> impl Future<Output = Result<Reserved, QueueError>> + Send;

    /// Applies a provider's report about a credential's quota.
    ///
    /// # Errors
    ///
    /// If the storage fails.
    fn report(
        &self,
        credential: &str,
        report: Report,
    ) -> impl Future<Output = Result<(), QueueError>> + Send;

    /// Returns the keeper's time.
    ///
    /// # Errors
    ///
    /// If the storage fails.
    fn now(&self) -> impl Future<Output = Result<DateTime<Utc>, QueueError>> + Send;

    /// Returns a signal that changes when a job may have become due that was not expected then.
    fn changes(&self) -> watch::Receiver<()>;

    /// Returns the clock by which callers of this keeper wait.
    fn clock(&self) -> &Clock;

    /// Returns the longest time between two looks for jobs. A keeper may miss a change, or a machine sleep.
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
            Ok(leases.unwrap_or_default())
        }
    }

    /// Leases a batch as soon as there is one; nothing once `stop` is ready, so that no batch is leased to nobody.
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
                    Taken::Leased(leases) => return Ok(Some(leases)),
                    Taken::Wait { now, next } => (now, next),
                };
                tokio::select! {
                    biased;
                    _ = &mut stop => return Ok(None),
                    changed = changes.changed() => changed.map_err(|_closed| QueueError::Closed)?,
                    () = self.clock().wait(now, next, self.poll()) => {}
                }
            }
        }
    }
}
