//! The vocabulary: jobs, leases, and their transitions.

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

/// Name of a set of jobs that is leased from as one: ASCII letters, digits and `._:-`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Namespace(Arc<str>);

impl Namespace {
    /// Checks a name.
    ///
    /// # Errors
    ///
    /// [`QueueError::Name`], if it is empty, longer than [`NAMESPACE_BYTES_MAX`] or has another character.
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

/// The time from which a job may be leased. Microseconds count; finer parts are cut off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// At an instant of the keeper's clock. Before 1970 is 1970.
    At(DateTime<Utc>),
    /// Some time after the call, by the keeper's clock. A caller whose clock is wrong uses this.
    After(Duration),
}

impl Due {
    /// Returns the instant, for a call at `now`.
    pub fn at(self, now: DateTime<Utc>) -> DateTime<Utc> {
        match self {
            Self::At(instant) => from_micros(instant.timestamp_micros()),
            Self::After(span) => later(now, span),
        }
    }
}

/// A job to be scheduled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewJob {
    /// Set of jobs to which it will belong.
    pub namespace: Namespace,
    /// Name of the job, which occurs once in the namespace: 1 to [`KEY_BYTES_MAX`] bytes without U+0000.
    pub key: String,
    /// Data for the worker beside the key, at most [`PAYLOAD_BYTES_MAX`] bytes.
    pub payload: Vec<u8>,
    /// Time from which it may be leased; also its first slot.
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
    /// It stays as it is, so that a repeated call resets nothing.
    Keep,
    /// It gets the new payload and the new due time, if it waits. A leased or dead job stays as it is.
    Move,
}

/// Outcome of scheduling one job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheduled {
    /// The key had no job, and has this one now.
    Added,
    /// It waits already and was kept.
    Kept,
    /// It waited and has the new payload and due time.
    Moved,
    /// A worker has it; nothing was changed.
    Leased,
    /// It is dead; nothing was changed.
    Dead,
}

/// Size and patience of a batch, and time of its leases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Want {
    /// Jobs of a full batch: 1 to [`CALL_JOBS_MAX`]. More are never returned.
    pub max: usize,
    /// Time that the oldest due job waits for a full batch. After it, fewer jobs are returned.
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
    /// Payload of the schedule, or of the last [`Next::Again`].
    pub payload: Vec<u8>,
    /// Note of the last [`Extension`] in this slot; else empty.
    pub note: Vec<u8>,
    /// Due time set by schedule or by [`Next::Again`]. Failures, retries and expired leases keep it, so that it
    /// names this round of the job.
    pub slot: DateTime<Utc>,
    /// Failures of this slot so far.
    pub failures: u32,
}

/// A job that a worker has until the lease expires.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// The right to extend, finish or fail it.
    pub token: Token,
    /// The job as it was when it was leased.
    pub job: Job,
    /// Time of the keeper at which it was leased.
    pub leased: DateTime<Utc>,
    /// Time of the keeper from which the token is void.
    pub until: DateTime<Utc>,
}

/// The right to a leased job. Each lease has a token of its own; that of an earlier lease is void.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Token {
    pub(crate) namespace: Namespace,
    pub(crate) key: String,
    pub(crate) number: i64,
}

impl Token {
    /// Returns the job's key.
    pub fn key(&self) -> &str {
        &self.key
    }
}

/// Whether a token was still valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Held {
    /// It was valid, and the change was made.
    Yes,
    /// The lease had expired, or the job was removed: nothing was changed.
    Lost,
}

/// More time for a leased job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extension {
    /// The right to it.
    pub token: Token,
    /// Time from now on for which it is leased.
    pub lease: Duration,
    /// Replaces the job's note, durably, if it is given: at most [`PAYLOAD_BYTES_MAX`] bytes. A later lease of the
    /// same slot sees it.
    pub note: Option<Vec<u8>>,
}

/// Successor of a finished job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// Nothing: the job is gone.
    Done,
    /// The job again, in a new slot, without failures and note.
    Again {
        /// Time from which it may be leased.
        due: Due,
        /// Replaces the payload, if it is given.
        payload: Option<Vec<u8>>,
    },
}

/// A job to be finished.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finish {
    /// The right to it.
    pub token: Token,
    /// Successor of the job: none, or the job again.
    pub next: Next,
    /// Jobs that are scheduled in the same transaction, after all finishes of the call, as by [`Existing::Keep`]. If
    /// the token is void, they are not.
    pub also: Vec<NewJob>,
}

impl Finish {
    /// Returns one that schedules nothing else.
    pub fn new(token: Token, next: Next) -> Self {
        Self {
            token,
            next,
            also: Vec::new(),
        }
    }

    /// Checks the bounds of the new payload and of the jobs in `also`.
    pub(crate) fn check(&self) -> Result<(), QueueError> {
        if let Next::Again {
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
pub struct Failure {
    /// The right to it.
    pub token: Token,
    /// Time before which it is not leased again.
    pub retry: Due,
    /// Failures of one slot with which it is dead.
    pub attempts: u32,
    /// Why it failed; the first [`REASON_BYTES_MAX`] bytes are kept for a dead job.
    pub reason: String,
}

impl Failure {
    /// Returns the part of the reason that is kept. U+0000, which PostgreSQL does not store, is left out.
    pub(crate) fn reason(&self) -> String {
        let mut kept = self.reason.replace('\0', "");
        kept.truncate(kept.floor_char_boundary(REASON_BYTES_MAX));
        kept
    }
}

/// Outcome of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failed {
    /// It waits for its next try.
    Waits,
    /// It failed too often. It stays until it is retried or removed by hand.
    Dead,
    /// The lease had expired, or the job was removed: nothing was changed.
    Lost,
}

/// A job that failed too often.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dead {
    /// The dead job, with the number of its failures.
    pub job: Job,
    /// Why it failed at last.
    pub reason: String,
}

/// Counts of a namespace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Jobs that are not due yet.
    pub waiting: u64,
    /// Jobs that are due and not leased.
    pub due: u64,
    /// Jobs that workers have.
    pub leased: u64,
    /// Jobs that failed too often.
    pub dead: u64,
    /// Due time of the job that has been due for longest.
    pub oldest_due: Option<DateTime<Utc>>,
    /// Due time of the job that is due next, of those that wait.
    pub next_due: Option<DateTime<Utc>>,
}
