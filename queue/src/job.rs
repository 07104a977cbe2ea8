//! The vocabulary: jobs, leases, and their transitions.
//!
//! Pure.

use std::{fmt, sync::Arc, time::Duration};

use chrono::{DateTime, Utc};

use crate::{
    error::QueueError,
    instant::{from_micros, later},
    limits::{
        CALL_JOBS_MAX, KEY_BYTES_MAX, LEASE_MIN, NAMESPACE_BYTES_MAX, PAYLOAD_BYTES_MAX,
        REASON_BYTES_MAX,
    },
};

/// Name of a set of jobs from which workers lease: ASCII letters, digits and `._:-`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Namespace(Arc<str>);

impl Namespace {
    /// Checks a name.
    ///
    /// # Errors
    ///
    /// [`QueueError::Name`], if the name is empty, longer than [`NAMESPACE_BYTES_MAX`] or has
    /// another character.
    pub fn new(name: &str) -> Result<Self, QueueError> {
        let is_known = |byte: u8| byte.is_ascii_alphanumeric() || b"._:-".contains(&byte);
        if name.is_empty() || name.len() > NAMESPACE_BYTES_MAX || !name.bytes().all(is_known) {
            return Err(QueueError::Name(
                name.chars().take(NAMESPACE_BYTES_MAX).collect(),
            ));
        }
        Ok(Self(name.into()))
    }

    /// Returns the name, of 1 to [`NAMESPACE_BYTES_MAX`] bytes.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The time from which a job may be leased. The time has whole microseconds; finer parts are cut
/// off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// An instant, by the clock of the keeper: the part that stores the queue. An instant before
    /// 1970 counts as 1970, and one after the year 9999 as the end of that year.
    At(DateTime<Utc>),
    /// Some time after the call, by the keeper's clock. For callers whose own clock may be wrong.
    After(Duration),
}

impl Due {
    /// Returns the instant, for a call at `now`.
    pub fn at(self, now: DateTime<Utc>) -> DateTime<Utc> {
        match self {
            // Keepers store microseconds: a finer part would make a due time differ from the stored
            // one.
            Self::At(instant) => from_micros(instant.timestamp_micros()),
            Self::After(span) => later(now, span),
        }
    }
}

/// A job to be scheduled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewJob {
    /// Set of jobs to which the job will belong.
    pub namespace: Namespace,
    /// Name of the job, which occurs once in the namespace: 1 to [`KEY_BYTES_MAX`] bytes without
    /// U+0000.
    pub key: String,
    /// Data for the worker beside the key, at most [`PAYLOAD_BYTES_MAX`] bytes.
    pub payload: Vec<u8>,
    /// Time from which a worker may lease the job. This time is also the job's first
    /// [slot](Job::slot).
    pub due: Due,
}

impl NewJob {
    /// Returns a job without payload.
    pub fn new(namespace: &Namespace, key: impl Into<String>, due: Due) -> Self {
        let (namespace, key, payload) = (namespace.clone(), key.into(), Vec::new());
        Self {
            namespace,
            key,
            payload,
            due,
        }
    }

    /// Sets the payload, which is empty without this call.
    #[must_use]
    pub fn payload(mut self, payload: impl Into<Vec<u8>>) -> Self {
        self.payload = payload.into();
        self
    }

    /// Checks the bounds of key and payload.
    pub(crate) fn check(&self) -> Result<(), QueueError> {
        // PostgreSQL cannot store U+0000 in a text, and all keepers accept the same keys.
        if self.key.is_empty() || self.key.len() > KEY_BYTES_MAX || self.key.contains('\0') {
            return Err(QueueError::Key(self.key.chars().take(64).collect()));
        }
        check_bytes(&self.payload)
    }
}

/// Checks the size of a payload or of a note.
pub(crate) fn check_bytes(payload: &[u8]) -> Result<(), QueueError> {
    if payload.len() > PAYLOAD_BYTES_MAX {
        return Err(QueueError::Payload(payload.len()));
    }
    Ok(())
}

/// Checks the number of jobs in one call.
pub(crate) fn check_count(jobs: usize) -> Result<(), QueueError> {
    if jobs > CALL_JOBS_MAX {
        return Err(QueueError::Count(jobs));
    }
    Ok(())
}

/// Rule for a key that is scheduled and has a job already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Existing {
    /// The job stays unchanged, so that a repeated call resets nothing.
    Keep,
    /// A waiting job gets the new payload and the new due time. A leased or dead job stays
    /// unchanged.
    Move,
}

/// Outcome of scheduling one job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScheduleOutcome {
    /// The key had no job, and has the new job now.
    Added,
    /// The key has a waiting job, which was kept.
    Kept,
    /// The waiting job of the key has the new payload and due time.
    Moved,
    /// A worker has the job; nothing was changed.
    Leased,
    /// The job is dead; nothing was changed.
    Dead,
}

/// Size of a batch, time to wait for a full batch, and duration of the leases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Want {
    /// Number of jobs in a full batch: 1 to [`CALL_JOBS_MAX`]. No batch has more.
    pub max: usize,
    /// Time that the oldest due job waits for a full batch. After that time, a batch may have fewer
    /// jobs.
    pub buffer: Duration,
    /// Time for which the jobs are leased.
    pub lease: Duration,
}

impl Want {
    /// Checks the bounds of the number of jobs and of the lease.
    pub(crate) fn check(&self) -> Result<(), QueueError> {
        if self.max == 0 {
            return Err(QueueError::Count(0));
        }
        if self.lease < LEASE_MIN {
            return Err(QueueError::Lease(self.lease));
        }
        check_count(self.max)
    }
}

/// A job as a worker sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// Name of the job in its namespace.
    pub key: String,
    /// Payload of the schedule, or of the last [`Successor::Again`].
    pub payload: Vec<u8>,
    /// Note of the last [`Extension`] in this slot that had a note; empty if none had.
    pub note: Vec<u8>,
    /// Due time set by schedule or by [`Successor::Again`]. Failures, retries and expired leases
    /// keep the slot, so that a slot names one round of the job.
    pub slot: DateTime<Utc>,
    /// Number of failures in this slot, since the last retry by hand.
    pub failures: u32,
}

/// A job that a worker has until the lease expires.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// The right to extend, finish or fail the job.
    pub token: LeaseToken,
    /// The job at the time of the lease.
    pub job: Job,
    /// Instant at which the lease began, by the keeper's clock.
    pub leased: DateTime<Utc>,
    /// Instant from which the token is void unless the lease is extended, by the keeper's clock.
    pub until: DateTime<Utc>,
}

/// The right to a leased job. Each lease has a token of its own; the token of an earlier lease is
/// void.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LeaseToken {
    pub(crate) namespace: Namespace,
    pub(crate) key: String,
    pub(crate) number: i64,
}

impl LeaseToken {
    /// Returns the job's key.
    pub fn key(&self) -> &str {
        &self.key
    }
}

/// Whether a token was still valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenStanding {
    /// The token was valid, and the change was made.
    Yes,
    /// The token was void: the lease had expired or ended, or the job was removed. Nothing was
    /// changed.
    Lost,
}

/// More time for a leased job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extension {
    /// The right to the job.
    pub token: LeaseToken,
    /// Length of the lease from now on.
    pub lease: Duration,
    /// New note of the job, of at most [`PAYLOAD_BYTES_MAX`] bytes, which is stored durably; `None`
    /// keeps the old note. Later leases in the same slot have the note.
    pub note: Option<Vec<u8>>,
}

/// Successor of a finished job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Successor {
    /// Nothing: the job is gone.
    Done,
    /// The job again, in a new slot, without failures and note.
    Again {
        /// Time from which a worker may lease the job again.
        due: Due,
        /// New payload, or `None` to keep the old one.
        payload: Option<Vec<u8>>,
    },
}

/// A job to be finished.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finish {
    /// The right to the job.
    pub token: LeaseToken,
    /// Successor of the job: none, or the job again.
    pub next: Successor,
    /// Jobs that are scheduled in the same transaction, after all finishes of the call, with
    /// [`Existing::Keep`]. If the token is void, none of these jobs is scheduled.
    pub also: Vec<NewJob>,
}

impl Finish {
    /// Returns a finish that schedules nothing else.
    pub fn new(token: LeaseToken, next: Successor) -> Self {
        Self {
            token,
            next,
            also: Vec::new(),
        }
    }

    /// Checks the bounds of the new payload and of the jobs in `also`.
    pub(crate) fn check(&self) -> Result<(), QueueError> {
        if let Successor::Again {
            payload: Some(payload),
            ..
        } = &self.next
        {
            check_bytes(payload)?;
        }
        check_count(self.also.len())?;
        self.also.iter().try_for_each(NewJob::check)
    }
}

/// A job whose work failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobFailure {
    /// The right to the job.
    pub token: LeaseToken,
    /// Time before which no worker leases the job again.
    pub retry: Due,
    /// Number of failures in one slot that makes the job dead.
    pub attempts: u32,
    /// Cause of the failure; a dead job keeps the first [`REASON_BYTES_MAX`] bytes.
    pub reason: String,
}

impl JobFailure {
    /// Returns the part of the reason that is kept, without U+0000.
    pub(crate) fn reason(&self) -> String {
        // PostgreSQL does not store U+0000.
        let mut kept = self.reason.replace('\0', "");
        // The bound may fall into the middle of a character.
        kept.truncate(kept.floor_char_boundary(REASON_BYTES_MAX));
        kept
    }
}

/// Outcome of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureOutcome {
    /// The job waits for the next try.
    Waits,
    /// The job failed too often, and stays dead until somebody retries or removes the job by hand.
    Dead,
    /// The token was void: the lease had expired or ended, or the job was removed. Nothing was
    /// changed.
    Lost,
}

/// A job that failed too often.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dead {
    /// The dead job, with the number of its failures.
    pub job: Job,
    /// Cause of the last failure.
    pub reason: String,
}

/// Counts of a namespace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Jobs that are not due yet.
    pub waiting: u64,
    /// Jobs that are due and not leased.
    pub due: u64,
    /// Jobs that workers have leased.
    pub leased: u64,
    /// Jobs that failed too often.
    pub dead: u64,
    /// Due time of the job that has been due for longest, of those that are not leased.
    pub oldest_due: Option<DateTime<Utc>>,
    /// Due time of the waiting job that becomes due next.
    pub next_due: Option<DateTime<Utc>>,
}
