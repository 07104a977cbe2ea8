//! The tables of the file, and the changes of each call.
//!
//! Shell: the transactions of redb.
//!
//! A job has a number, given by its first schedule. The job stands in one of two tables: waiting
//! and leased jobs, in the order of their due times, and dead jobs. A further table gives a job's
//! place by the number of the job, and not by the key. Jobs that are scheduled together have
//! neighbouring numbers and are due together, so the places of a batch are on a few pages. By key,
//! each place would be on another page.

use std::{collections::HashMap, time::Duration};

use chrono::{DateTime, Utc};
use parking_lot::{MappedMutexGuard, Mutex, MutexGuard};
use redb::{
    AccessGuard, Database, ReadableDatabase as _, ReadableTable, Table, TableDefinition,
    WriteTransaction,
};

use super::{
    StorageError,
    leases::{DuePlace, Leases, OfNamespace},
};
use crate::{
    error::QueueError,
    instant::{from_micros, later},
    job::{
        Dead, Due, Existing, Extension, FailureOutcome, Finish, Job, JobFailure, Lease, LeaseToken,
        Namespace, NewJob, ScheduleOutcome, Stats, Successor, TokenStanding, Want,
    },
    limits::CALL_JOBS_MAX,
    limits::Limit,
    queue::TakeOutcome,
    quota::{Bucket, QuotaReport, Reservation},
};

/// Version of the layout, and number of openings.
const ABOUT: TableDefinition<'_, &str, i64> = TableDefinition::new("about");
/// Version of this layout.
const VERSION: i64 = 2;
/// Namespace and key to the number of a job.
const KEYS: TableDefinition<'_, (&str, &str), u64> = TableDefinition::new("keys");
/// Number to the due time of a job that waits or is leased; `None` for a dead job.
const PLACES: TableDefinition<'_, u64, Option<i64>> = TableDefinition::new("places");
/// Key, slot, failures, payload and note.
type JobRow<'r> = (&'r str, i64, u32, &'r [u8], &'r [u8]);
/// Namespace, due time and number of a job that waits or is leased.
type WaitingKey<'k> = (&'k str, i64, u64);
/// Place to the row of a job that waits or is leased.
const WAITING: TableDefinition<'_, WaitingKey<'_>, JobRow<'_>> = TableDefinition::new("waiting");
/// Namespace and key to the rest of a dead job, and its reason.
const DEAD: TableDefinition<'_, (&str, &str), (JobRow<'_>, &str)> = TableDefinition::new("dead");
/// Namespace to two counts: jobs that wait or are leased, and dead jobs.
const COUNTS: TableDefinition<'_, &str, (u64, u64)> = TableDefinition::new("counts");
/// Credential to the state of the credential's quota.
const BUCKETS: TableDefinition<'_, &str, (i64, i64, u32, i64)> = TableDefinition::new("buckets");

/// Makes the tables, if there are none, and returns the number of this opening.
pub(super) fn prepare(database: &Database) -> Result<i64, StorageError> {
    let transaction = database.begin_write()?;
    let opening = {
        let mut about = transaction.open_table(ABOUT)?;
        let version = about.get("version")?.map(|version| version.value());
        match version {
            Some(VERSION) => {}
            Some(other) => {
                let said =
                    format!("the file has version {other}, and this program reads {VERSION}");
                return Err(StorageError::Io(std::io::Error::other(said)));
            }
            // One table is that of `ABOUT`, which this transaction has just made.
            None if transaction.list_tables()?.count() > 1 => {
                let said = "the file has tables that are no queue";
                return Err(StorageError::Io(std::io::Error::other(said)));
            }
            None => drop(about.insert("version", VERSION)?),
        }
        let opening = about
            .get("openings")?
            .map_or(0, |openings| openings.value())
            + 1;
        // Stored before the first lease: the tokens of two openings differ in this number alone.
        about.insert("openings", opening)?;
        opening
    };
    // A reader cannot open a table that no transaction has made.
    transaction.open_table(KEYS)?;
    transaction.open_table(PLACES)?;
    transaction.open_table(WAITING)?;
    transaction.open_table(DEAD)?;
    transaction.open_table(COUNTS)?;
    transaction.open_table(BUCKETS)?;
    transaction.commit()?;
    Ok(opening)
}

/// Adds to one of a namespace's counts.
fn add_to_count(count: &mut u64, change: i64) {
    *count = count.saturating_add_signed(change);
}

/// Returns a job of a row.
fn job_of((key, slot, failures, payload, note): JobRow<'_>) -> Job {
    let (key, payload, note) = (key.to_owned(), payload.to_vec(), note.to_vec());
    Job {
        key,
        payload,
        note,
        slot: from_micros(slot),
        failures,
    }
}

/// Returns the row of a job.
fn row_of(job: &Job) -> JobRow<'_> {
    (
        &job.key,
        job.slot.timestamp_micros(),
        job.failures,
        &job.payload,
        &job.note,
    )
}

/// Sums of the changes that a transaction makes in a namespace.
#[derive(Default)]
struct NamespaceChange {
    /// Change of the number of jobs that wait or are leased.
    waiting: i64,
    /// Change of the number of dead jobs.
    dead: i64,
    /// First place at which a job may be free after the commit.
    first: Option<DuePlace>,
}

/// The tables in a transaction that changes them.
pub(super) struct TablesWriter<'t, 'l> {
    keys: Table<'t, (&'static str, &'static str), u64>,
    places: Table<'t, u64, Option<i64>>,
    waiting: Table<'t, WaitingKey<'static>, JobRow<'static>>,
    dead: Table<'t, (&'static str, &'static str), (JobRow<'static>, &'static str)>,
    counts: Table<'t, &'static str, (u64, u64)>,
    buckets: Table<'t, &'static str, (i64, i64, u32, i64)>,
    changed: HashMap<Namespace, NamespaceChange>,
    leases: &'l Mutex<Leases>,
    now: DateTime<Utc>,
}

impl<'t, 'l> TablesWriter<'t, 'l> {
    pub(super) fn new(
        transaction: &'t WriteTransaction,
        leases: &'l Mutex<Leases>,
        now: DateTime<Utc>,
    ) -> Result<Self, StorageError> {
        Ok(Self {
            keys: transaction.open_table(KEYS)?,
            places: transaction.open_table(PLACES)?,
            waiting: transaction.open_table(WAITING)?,
            dead: transaction.open_table(DEAD)?,
            counts: transaction.open_table(COUNTS)?,
            buckets: transaction.open_table(BUCKETS)?,
            changed: HashMap::new(),
            leases,
            now,
        })
    }

    /// Writes the changed counts. Returns, for each namespace, the first place at which a job may
    /// be free after the commit.
    pub(super) fn end(mut self) -> Result<Vec<(Namespace, DuePlace)>, StorageError> {
        let mut moved = Vec::with_capacity(self.changed.len());
        // Once for each commit: each change of a count would write the same row again.
        for (namespace, changed) in self.changed {
            if changed.waiting != 0 || changed.dead != 0 {
                let counts = self.counts.get(namespace.as_str())?;
                let mut counts = counts.map(|counts| counts.value()).unwrap_or_default();
                add_to_count(&mut counts.0, changed.waiting);
                add_to_count(&mut counts.1, changed.dead);
                self.counts.insert(namespace.as_str(), counts)?;
            }
            moved.extend(changed.first.map(|place| (namespace, place)));
        }
        Ok(moved)
    }

    fn lock_leases(&self, namespace: &Namespace) -> MappedMutexGuard<'l, OfNamespace> {
        MutexGuard::map(self.leases.lock(), |leases| leases.of(namespace, self.now))
    }

    fn namespace_change(&mut self, namespace: &Namespace) -> &mut NamespaceChange {
        self.changed.entry(namespace.clone()).or_default()
    }

    fn change_counts(&mut self, namespace: &Namespace, waiting: i64, dead: i64) {
        let changed = self.namespace_change(namespace);
        changed.waiting += waiting;
        changed.dead += dead;
    }

    /// Notes that the job at a place may be free after the commit.
    fn note_free(&mut self, namespace: &Namespace, place: DuePlace) {
        let first = &mut self.namespace_change(namespace).first;
        *first = Some(first.map_or(place, |first| first.min(place)));
    }

    /// Returns the number of a job, if there is one.
    fn job_number(&self, namespace: &Namespace, key: &str) -> Result<Option<u64>, StorageError> {
        let number = self.keys.get((namespace.as_str(), key))?;
        Ok(number.map(|number| number.value()))
    }

    /// Gives a new job a number.
    fn add_job(&mut self, namespace: &Namespace, key: &str) -> Result<u64, StorageError> {
        // The table has all jobs of all namespaces, the dead too. The number of a removed job may
        // come again: no token and no place names that job any more.
        let last = self.places.last()?.map(|(number, _)| number.value());
        let number = last.map_or(0, |last| last + 1);
        self.keys.insert((namespace.as_str(), key), number)?;
        Ok(number)
    }

    /// Takes a job out of the order of due times.
    fn pull_job(
        &mut self,
        namespace: &Namespace,
        (due, number): DuePlace,
    ) -> Result<Job, StorageError> {
        let row = self.waiting.remove((namespace.as_str(), due, number))?;
        // Each place has a row unless the file is damaged. The error closes the queue.
        let row = row.ok_or_else(|| {
            let said = format!("job {number} of {namespace} stands under no due time");
            StorageError::Corrupted(said)
        })?;
        Ok(job_of(row.value()))
    }

    /// Puts a job into the order of due times. Workers may lease the job after the commit.
    fn put_waiting(
        &mut self,
        namespace: &Namespace,
        (due, number): DuePlace,
        job: &Job,
    ) -> Result<(), StorageError> {
        self.waiting
            .insert((namespace.as_str(), due, number), row_of(job))?;
        self.places.insert(number, Some(due))?;
        self.note_free(namespace, (due, number));
        Ok(())
    }

    pub(super) fn schedule(
        &mut self,
        new: &NewJob,
        existing: Existing,
    ) -> Result<ScheduleOutcome, StorageError> {
        let (namespace, key) = (&new.namespace, new.key.as_str());
        let (number, scheduled) = match self.job_number(namespace, key)? {
            None => {
                self.change_counts(namespace, 1, 0);
                (self.add_job(namespace, key)?, ScheduleOutcome::Added)
            }
            Some(number) => {
                let place = self.places.get(number)?.and_then(|place| place.value());
                // A dead job has no place, and stays dead until a retry by hand.
                let Some(due) = place else {
                    return Ok(ScheduleOutcome::Dead);
                };
                let mut leases = self.lock_leases(namespace);
                // The lock is held from this check until the job counts as changing: a search in
                // between could lease the job.
                if leases.is_leased(number) {
                    return Ok(ScheduleOutcome::Leased);
                }
                if existing == Existing::Keep {
                    return Ok(ScheduleOutcome::Kept);
                }
                leases.change(number);
                // The lock is released now: searches wait for the lock, and `pull_job` reads the
                // disk.
                drop(leases);
                self.pull_job(namespace, (due, number))?;
                (number, ScheduleOutcome::Moved)
            }
        };
        let due = new.due.at(self.now);
        let job = Job {
            key: key.to_owned(),
            payload: new.payload.clone(),
            note: Vec::new(),
            slot: due,
            failures: 0,
        };
        self.put_waiting(namespace, (due.timestamp_micros(), number), &job)?;
        Ok(scheduled)
    }

    /// Extends a lease, and stores the note of the extension.
    pub(super) fn extend(&mut self, extension: &Extension) -> Result<TokenStanding, StorageError> {
        let Extension { token, note, .. } = extension;
        let Some(leased) = self.leases.lock().extend(extension, self.now) else {
            return Ok(TokenStanding::Lost);
        };
        if let Some(note) = note {
            // The lease may end before the commit. A search that then reads the committed file
            // would lease the job without the note, so the job counts as changing.
            self.lock_leases(&token.namespace).change(leased.place.1);
            // A search may pass by the changing job. After the commit, the next search must start
            // here at the latest.
            self.note_free(&token.namespace, leased.place);
            let job = Job {
                note: note.clone(),
                ..self.pull_job(&token.namespace, leased.place)?
            };
            let (due, number) = leased.place;
            // The due time stays, so `places` needs no change.
            let place = (token.namespace.as_str(), due, number);
            self.waiting.insert(place, row_of(&job))?;
        }
        Ok(TokenStanding::Yes)
    }

    pub(super) fn finish(
        &mut self,
        finishes: &[Finish],
    ) -> Result<Vec<TokenStanding>, StorageError> {
        let places: Vec<_> = {
            let mut leases = self.leases.lock();
            let give_up = |finish: &Finish| leases.give_up(&finish.token, self.now);
            finishes.iter().map(give_up).collect()
        };
        for (finish, place) in finishes.iter().zip(&places) {
            if let Some(place) = place {
                self.finish_one(finish, *place)?;
            }
        }
        // After all finishes of the call, as the contract says: a job in `also` may have the key of
        // a finished job.
        let mut held = Vec::with_capacity(finishes.len());
        for (finish, place) in finishes.iter().zip(places) {
            if place.is_none() {
                held.push(TokenStanding::Lost);
                continue;
            }
            held.push(TokenStanding::Yes);
            for new in &finish.also {
                // A key with a job is no error: that job stays.
                self.schedule(new, Existing::Keep)?;
            }
        }
        Ok(held)
    }

    /// Finishes a job whose lease is given up, without the jobs in `also`.
    fn finish_one(&mut self, finish: &Finish, place: DuePlace) -> Result<(), StorageError> {
        let Finish { token, next, .. } = finish;
        let job = self.pull_job(&token.namespace, place)?;
        let (_, number) = place;
        match next {
            Successor::Done => {
                self.keys
                    .remove((token.namespace.as_str(), token.key.as_str()))?;
                self.places.remove(number)?;
                self.change_counts(&token.namespace, -1, 0);
            }
            Successor::Again { due, payload } => {
                let slot = due.at(self.now);
                let payload = payload.clone().unwrap_or(job.payload);
                let job = Job {
                    key: job.key,
                    payload,
                    note: Vec::new(),
                    slot,
                    failures: 0,
                };
                self.put_waiting(&token.namespace, (slot.timestamp_micros(), number), &job)?;
            }
        }
        Ok(())
    }

    pub(super) fn fail(&mut self, failure: &JobFailure) -> Result<FailureOutcome, StorageError> {
        let token = &failure.token;
        let Some(place) = self.leases.lock().give_up(token, self.now) else {
            return Ok(FailureOutcome::Lost);
        };
        let mut job = self.pull_job(&token.namespace, place)?;
        let (_, number) = place;
        job.failures = job.failures.saturating_add(1);
        if job.failures < failure.attempts {
            let due = failure.retry.at(self.now).timestamp_micros();
            self.put_waiting(&token.namespace, (due, number), &job)?;
            return Ok(FailureOutcome::Waits);
        }
        let place = (token.namespace.as_str(), token.key.as_str());
        self.dead
            .insert(place, (row_of(&job), failure.reason().as_str()))?;
        self.places.insert(number, None)?;
        self.change_counts(&token.namespace, -1, 1);
        Ok(FailureOutcome::Dead)
    }

    pub(super) fn retry(
        &mut self,
        namespace: &Namespace,
        keys: &[String],
    ) -> Result<usize, StorageError> {
        let mut retried = 0;
        // In whole microseconds, within the instants that a keeper can store.
        let due = Due::At(self.now).at(self.now).timestamp_micros();
        for key in keys {
            let row = self.dead.remove((namespace.as_str(), key.as_str()))?;
            let job = row.map(|row| job_of(row.value().0));
            // The job need not count as changing: in the committed file, a dead job stands outside
            // the order that searches read.
            if let (Some(job), Some(number)) = (job, self.job_number(namespace, key)?) {
                self.put_waiting(namespace, (due, number), &Job { failures: 0, ..job })?;
                self.change_counts(namespace, 1, -1);
                retried += 1;
            }
        }
        Ok(retried)
    }

    pub(super) fn bring_forward(
        &mut self,
        namespace: &Namespace,
        due: Duration,
        lease: Duration,
    ) -> Result<usize, StorageError> {
        let end = later(self.now, lease);
        // The leases first: their jobs become free, and may be due too late as well.
        let ended = self.lock_leases(namespace).shorten(end, CALL_JOBS_MAX);
        let (name, now) = (namespace.as_str(), later(self.now, Duration::ZERO));
        let end = later(self.now, due).timestamp_micros();
        let mut far: Vec<DuePlace> = Vec::new();
        let beyond = (name, end.saturating_add(1), 0)..=(name, i64::MAX, u64::MAX);
        // From the far end, as in the other keepers: a call that reaches its bound leaves the jobs
        // that are due soonest.
        for row in self.waiting.range(beyond)?.rev() {
            if far.len() + ended == CALL_JOBS_MAX {
                break;
            }
            let place = row?.0;
            let (_, due, number) = place.value();
            let mut leases = self.lock_leases(namespace);
            if leases.is_free(number) {
                leases.change(number);
                far.push((due, number));
            }
        }
        // In a loop of its own, because the range above borrows the table.
        for place in &far {
            let job = self.pull_job(namespace, *place)?;
            self.put_waiting(namespace, (now.timestamp_micros(), place.1), &job)?;
        }
        Ok(ended + far.len())
    }

    pub(super) fn remove(
        &mut self,
        namespace: &Namespace,
        keys: &[String],
    ) -> Result<usize, StorageError> {
        let mut removed = 0;
        for key in keys {
            let number = self.keys.remove((namespace.as_str(), key.as_str()))?;
            let Some(number) = number.map(|number| number.value()) else {
                continue;
            };
            let due = self.places.remove(number)?;
            if let Some(due) = due.and_then(|due| due.value()) {
                let mut leases = self.lock_leases(namespace);
                // The token of a removed job is void, and a search must not lease the job before
                // the commit.
                leases.end(number);
                leases.change(number);
                drop(leases);
                self.pull_job(namespace, (due, number))?;
                self.change_counts(namespace, -1, 0);
            } else {
                self.dead.remove((namespace.as_str(), key.as_str()))?;
                self.change_counts(namespace, 0, -1);
            }
            removed += 1;
        }
        Ok(removed)
    }

    /// Returns the bucket of a credential.
    fn bucket_of(&self, credential: &str) -> Result<Bucket, StorageError> {
        let bucket = self.buckets.get(credential)?.map(|bucket| bucket.value());
        let (spread, paused, remaining, reset) = bucket.unwrap_or_default();
        Ok(Bucket {
            spread,
            paused,
            remaining,
            reset,
        })
    }

    fn store_bucket(&mut self, credential: &str, bucket: Bucket) -> Result<(), StorageError> {
        let Bucket {
            spread,
            paused,
            remaining,
            reset,
        } = bucket;
        self.buckets
            .insert(credential, (spread, paused, remaining, reset))?;
        Ok(())
    }

    pub(super) fn reserve(
        &mut self,
        credential: &str,
        requests: u32,
        limit: Limit,
    ) -> Result<Result<Reservation, QueueError>, StorageError> {
        let mut bucket = self.bucket_of(credential)?;
        let reserved = bucket.reserve(self.now, requests, limit);
        // After a refusal, nothing is stored: a part that `reserve` has forgotten is forgotten
        // again by the next call.
        if let Ok(Reservation::Now) = reserved {
            self.store_bucket(credential, bucket)?;
        }
        Ok(reserved)
    }

    pub(super) fn report(
        &mut self,
        credential: &str,
        report: QuotaReport,
    ) -> Result<(), StorageError> {
        let mut bucket = self.bucket_of(credential)?;
        bucket.report(self.now, report);
        self.store_bucket(credential, bucket)
    }
}

/// The tables as they are committed, and the leases.
pub(super) struct TablesReader<'s> {
    pub(super) database: &'s Database,
    pub(super) leases: &'s Mutex<Leases>,
    /// See [`OpenFile::still`](super::OpenFile::still).
    pub(super) still: &'s Mutex<()>,
    pub(super) now: DateTime<Utc>,
}

impl TablesReader<'_> {
    /// Leases a batch. Jobs that the transaction under way changes are left out.
    pub(super) fn take(
        &self,
        namespace: &Namespace,
        want: Want,
    ) -> Result<TakeOutcome, StorageError> {
        let _still = self.still.lock();
        let waiting = self.database.begin_read()?.open_table(WAITING)?;
        let (due, number) = self.leases.lock().of(namespace, self.now).begin_look();
        let name = namespace.as_str();
        let mut rows = waiting.range((name, due, number)..=(name, i64::MAX, u64::MAX))?;
        let mut first: Vec<DueRow> = Vec::new();
        let leased = loop {
            let wanted = want.max - first.len();
            // The lock of the leases is free while the rows come from the disk.
            let read: Vec<_> = rows.by_ref().take(wanted).collect::<Result<_, _>>()?;
            let is_end = read.len() < wanted;
            first.extend(read);
            let leases = &mut *self.leases.lock();
            let of = leases.of(namespace, self.now);
            // All rows are checked, also those of earlier rounds: the transaction under way may
            // have begun to change such a job meanwhile. The lock is held from here until the batch
            // is leased.
            first.retain(|(place, _)| of.is_free(place.value().2));
            if is_end || first.len() == want.max {
                break lease_free(leases, namespace, want, self.now, &first);
            }
        };
        let now = self.now;
        let numbers = match leased {
            Ok(numbers) => numbers,
            Err(next) => return Ok(TakeOutcome::Wait { now, next }),
        };
        let lease = |((_, row), number): (&DueRow, i64)| {
            let job = job_of(row.value());
            let token = LeaseToken {
                namespace: namespace.clone(),
                key: job.key.clone(),
                number,
            };
            Lease {
                token,
                job,
                leased: now,
                until: later(now, want.lease),
            }
        };
        Ok(TakeOutcome::Leased(
            first.iter().zip(numbers).map(lease).collect(),
        ))
    }

    pub(super) fn dead(
        &self,
        namespace: &Namespace,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<Dead>, StorageError> {
        let dead = self.database.begin_read()?.open_table(DEAD)?;
        let name = namespace.as_str();
        let mut listed = Vec::new();
        // The range has no end, because no key is the largest possible one: the first row of
        // another namespace ends the list.
        for row in dead.range((name, after.unwrap_or_default())..)? {
            let (place, row) = row?;
            let ((of, key), (row, reason)) = (place.value(), row.value());
            if of != name || listed.len() == limit {
                break;
            }
            // The range begins with `after` itself.
            if after != Some(key) {
                listed.push(Dead {
                    job: job_of(row),
                    reason: reason.to_owned(),
                });
            }
        }
        Ok(listed)
    }

    /// Counts the jobs of a namespace. Reads every job that is due.
    pub(super) fn stats(&self, namespace: &Namespace) -> Result<Stats, StorageError> {
        // The lock makes file and leases those of the same commit. The counting itself needs no
        // lock.
        let (transaction, (leased, not_free)) = {
            let _still = self.still.lock();
            let transaction = self.database.begin_read()?;
            (
                transaction,
                self.leases.lock().of(namespace, self.now).jobs(),
            )
        };
        let counts = transaction.open_table(COUNTS)?;
        let counts = counts.get(namespace.as_str())?.map(|counts| counts.value());
        let (pending, dead) = counts.unwrap_or_default();
        let waiting = transaction.open_table(WAITING)?;
        let name = namespace.as_str();
        let end = self.now.timestamp_micros().saturating_add(1);
        let (mut due, mut oldest) = (0_u64, None);
        for row in waiting.range((name, 0, 0)..(name, end, 0))? {
            let place = row?.0;
            let (_, since, number) = place.value();
            if !not_free.contains(&number) {
                due += 1;
                oldest.get_or_insert(from_micros(since));
            }
        }
        let mut next = None;
        for row in waiting.range((name, end, 0)..(name, i64::MAX, 0))? {
            let place = row?.0;
            let (_, since, number) = place.value();
            if !not_free.contains(&number) {
                next = Some(from_micros(since));
                break;
            }
        }
        let leased = u64::try_from(leased).unwrap_or(u64::MAX);
        Ok(Stats {
            // The waiting jobs are the rest of a stored count: to count them would read all of
            // them.
            waiting: pending.saturating_sub(due).saturating_sub(leased),
            due,
            leased,
            dead,
            oldest_due: oldest,
            next_due: next,
        })
    }
}

/// A row of the order of due times.
type DueRow = (
    AccessGuard<'static, WaitingKey<'static>>,
    AccessGuard<'static, JobRow<'static>>,
);

/// Leases a batch of the due jobs among `first`, the first free jobs. Returns the numbers of the
/// tokens or, as the error, the time at which a batch may be ready.
fn lease_free(
    leases: &mut Leases,
    namespace: &Namespace,
    want: Want,
    now: DateTime<Utc>,
    first: &[DueRow],
) -> Result<Vec<i64>, Option<DateTime<Utc>>> {
    let due_of = |index: usize| {
        let found = first.get(index);
        found.map(|(place, _)| from_micros(place.value().1))
    };
    let due = (0..first.len()).take_while(|index| due_of(*index).is_some_and(|due| due <= now));
    let due = due.count();
    let patience_ends = due_of(0).map(|due| later(due, want.buffer));
    let is_ready = due == want.max || patience_ends.is_some_and(|end| end <= now);
    if due == 0 || !is_ready {
        // No underflow: the check has refused a batch of 0 jobs.
        let full = due_of(want.max - 1);
        // A lease that expires makes its job due again.
        let ends = leases.of(namespace, now).first_end();
        return Err(patience_ends.into_iter().chain(full).chain(ends).min());
    }
    let until = later(now, want.lease);
    let lease = |(place, _): &DueRow| {
        let number = leases.next_number();
        let (_, due, job) = place.value();
        let of = leases.of(namespace, now);
        of.lease(number, (due, job), until);
        number
    };
    Ok(first.iter().take(due).map(lease).collect())
}
