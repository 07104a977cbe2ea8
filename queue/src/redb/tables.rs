//! The tables of the file, and the changes of each call.
//!
//! A job stands in one of two tables: those that wait or are leased, in the order of their due times, and the dead.
//! A third one says under which due time a key stands. A due time in the order is thus the only thing that a
//! finished job rewrites.

use std::collections::{HashMap, HashSet};

use chrono::{DateTime, Utc};
use redb::{
    Database, ReadOnlyTable, ReadTransaction, ReadableTable, Table, TableDefinition,
    WriteTransaction,
};

use super::{
    StorageError,
    leases::{Leases, OfNamespace},
};
use crate::{
    job::{
        Dead, Due, Existing, Extension, Failed, Failure, Finish, Held, Job, Lease, Namespace,
        NewJob, Next, Scheduled, Stats, Token, Want, from_micros, later,
    },
    queue::{QueueError, Taken},
    quota::{Bucket, Limit, Report, Reserved},
};

/// Version of the layout, and number of openings.
const ABOUT: TableDefinition<'_, &str, i64> = TableDefinition::new("about");
/// Version of this layout.
const VERSION: i64 = 1;
/// Namespace and key to the due time of a job that waits or is leased; `None` if it is dead.
const PLACES: TableDefinition<'_, (&str, &str), Option<i64>> = TableDefinition::new("places");
/// Slot, failures, payload and note.
type Row<'r> = (i64, u32, &'r [u8], &'r [u8]);
/// Namespace, due time and key to the rest of a job that waits or is leased.
type WaitingKey<'k> = (&'k str, i64, &'k str);
const WAITING: TableDefinition<'_, WaitingKey<'_>, Row<'_>> = TableDefinition::new("waiting");
/// Namespace and key to the rest of a dead job, and its reason.
const DEAD: TableDefinition<'_, (&str, &str), (Row<'_>, &str)> = TableDefinition::new("dead");
/// Namespace to its jobs: those that wait or are leased, and the dead.
const COUNTS: TableDefinition<'_, &str, (u64, u64)> = TableDefinition::new("counts");
/// Credential to its bucket.
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
        about.insert("openings", opening)?;
        opening
    };
    transaction.open_table(PLACES)?;
    transaction.open_table(WAITING)?;
    transaction.open_table(DEAD)?;
    transaction.open_table(COUNTS)?;
    transaction.open_table(BUCKETS)?;
    transaction.commit()?;
    Ok(opening)
}

/// Adds to one of a namespace's counts.
fn add(count: &mut u64, change: i64) {
    *count = count.saturating_add_signed(change);
}

/// Returns a job of a row.
fn job_of(key: &str, (slot, failures, payload, note): Row<'_>) -> Job {
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
fn row_of(job: &Job) -> Row<'_> {
    (
        job.slot.timestamp_micros(),
        job.failures,
        &job.payload,
        &job.note,
    )
}

/// The tables in a transaction that changes them.
pub(super) struct Writing<'t, 'l> {
    places: Table<'t, (&'static str, &'static str), Option<i64>>,
    waiting: Table<'t, WaitingKey<'static>, Row<'static>>,
    dead: Table<'t, (&'static str, &'static str), (Row<'static>, &'static str)>,
    counts: Table<'t, &'static str, (u64, u64)>,
    buckets: Table<'t, &'static str, (i64, i64, u32, i64)>,
    /// Changes of the counts, which are written at the end.
    changed: HashMap<Namespace, (i64, i64)>,
    leases: &'l mut Leases,
    now: DateTime<Utc>,
}

impl<'t, 'l> Writing<'t, 'l> {
    pub(super) fn new(
        transaction: &'t WriteTransaction,
        leases: &'l mut Leases,
        now: DateTime<Utc>,
    ) -> Result<Self, StorageError> {
        Ok(Self {
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

    /// Writes the changed counts.
    pub(super) fn end(mut self) -> Result<(), StorageError> {
        for (namespace, (waiting, dead)) in self.changed {
            let counts = self
                .counts
                .get(namespace.as_str())?
                .map(|counts| counts.value());
            let mut counts = counts.unwrap_or_default();
            add(&mut counts.0, waiting);
            add(&mut counts.1, dead);
            self.counts.insert(namespace.as_str(), counts)?;
        }
        Ok(())
    }

    fn leases(&mut self, namespace: &Namespace) -> &mut OfNamespace {
        self.leases.of(namespace, self.now)
    }

    fn count(&mut self, namespace: &Namespace, waiting: i64, dead: i64) {
        let changed = self.changed.entry(namespace.clone()).or_default();
        changed.0 += waiting;
        changed.1 += dead;
    }

    /// Takes a job out of the order of due times.
    fn pull(&mut self, namespace: &Namespace, due: i64, key: &str) -> Result<Job, StorageError> {
        let row = self.waiting.remove((namespace.as_str(), due, key))?;
        let row = row.ok_or_else(|| {
            let said = format!("{namespace}/{key} stands under no due time");
            StorageError::Corrupted(said)
        })?;
        Ok(job_of(key, row.value()))
    }

    /// Puts a job into the order of due times, to be leased from then on.
    fn wait(&mut self, namespace: &Namespace, due: i64, job: &Job) -> Result<(), StorageError> {
        self.waiting
            .insert((namespace.as_str(), due, job.key.as_str()), row_of(job))?;
        self.places
            .insert((namespace.as_str(), job.key.as_str()), Some(due))?;
        self.leases(namespace).offer(due, &job.key);
        Ok(())
    }

    pub(super) fn schedule(
        &mut self,
        new: &NewJob,
        existing: Existing,
    ) -> Result<Scheduled, StorageError> {
        let (namespace, key) = (&new.namespace, new.key.as_str());
        let place = self
            .places
            .get((namespace.as_str(), key))?
            .map(|place| place.value());
        let due = new.due.at(self.now);
        let job = Job {
            key: key.to_owned(),
            payload: new.payload.clone(),
            note: Vec::new(),
            slot: due,
            failures: 0,
        };
        let scheduled = match place {
            None => {
                self.count(namespace, 1, 0);
                Scheduled::Added
            }
            Some(None) => return Ok(Scheduled::Dead),
            Some(Some(_)) if self.leases(namespace).of_key(key).is_some() => {
                return Ok(Scheduled::Leased);
            }
            Some(Some(_)) if existing == Existing::Keep => return Ok(Scheduled::Kept),
            Some(Some(stands)) => {
                self.pull(namespace, stands, key)?;
                Scheduled::Moved
            }
        };
        self.wait(namespace, due.timestamp_micros(), &job)?;
        Ok(scheduled)
    }

    /// Extends a lease, and stores its note.
    pub(super) fn extend(&mut self, extension: &Extension) -> Result<Held, StorageError> {
        let Extension { token, note, .. } = extension;
        let Some(leased) = self.leases.extend(extension, self.now) else {
            return Ok(Held::Lost);
        };
        if let Some(note) = note {
            let job = Job {
                note: note.clone(),
                ..self.pull(&token.namespace, leased.due, &token.key)?
            };
            let place = (token.namespace.as_str(), leased.due, token.key.as_str());
            self.waiting.insert(place, row_of(&job))?;
        }
        Ok(Held::Yes)
    }

    /// Ends a lease, and returns the job, which stands nowhere then.
    fn give_up(&mut self, token: &Token) -> Result<Option<Job>, StorageError> {
        let leases = self.leases(&token.namespace);
        let Some(leased) = leases.of_token(token) else {
            return Ok(None);
        };
        leases.end(&token.key);
        self.pull(&token.namespace, leased.due, &token.key)
            .map(Some)
    }

    pub(super) fn finish(&mut self, finishes: &[Finish]) -> Result<Vec<Held>, StorageError> {
        let mut held = Vec::with_capacity(finishes.len());
        for finish in finishes {
            held.push(self.finish_one(finish)?);
        }
        for (finish, held) in finishes.iter().zip(&held) {
            if *held == Held::Yes {
                for new in &finish.also {
                    self.schedule(new, Existing::Keep)?;
                }
            }
        }
        Ok(held)
    }

    /// Finishes a job, without scheduling its `also`.
    fn finish_one(&mut self, finish: &Finish) -> Result<Held, StorageError> {
        let Finish { token, next, .. } = finish;
        let Some(job) = self.give_up(token)? else {
            return Ok(Held::Lost);
        };
        match next {
            Next::Done => {
                self.places
                    .remove((token.namespace.as_str(), token.key.as_str()))?;
                self.count(&token.namespace, -1, 0);
            }
            Next::Again { due, payload } => {
                let slot = due.at(self.now);
                let payload = payload.clone().unwrap_or(job.payload);
                let job = Job {
                    key: job.key,
                    payload,
                    note: Vec::new(),
                    slot,
                    failures: 0,
                };
                self.wait(&token.namespace, slot.timestamp_micros(), &job)?;
            }
        }
        Ok(Held::Yes)
    }

    pub(super) fn fail(&mut self, failure: &Failure) -> Result<Failed, StorageError> {
        let token = &failure.token;
        let Some(mut job) = self.give_up(token)? else {
            return Ok(Failed::Lost);
        };
        job.failures = job.failures.saturating_add(1);
        if job.failures < failure.attempts {
            let due = failure.retry.at(self.now).timestamp_micros();
            self.wait(&token.namespace, due, &job)?;
            return Ok(Failed::Waits);
        }
        let place = (token.namespace.as_str(), token.key.as_str());
        self.dead
            .insert(place, (row_of(&job), failure.reason().as_str()))?;
        self.places.insert(place, None)?;
        self.count(&token.namespace, -1, 1);
        Ok(Failed::Dead)
    }

    pub(super) fn retry(
        &mut self,
        namespace: &Namespace,
        keys: &[String],
    ) -> Result<usize, StorageError> {
        let mut retried = 0;
        let due = Due::At(self.now).at(self.now).timestamp_micros();
        for key in keys {
            let row = self.dead.remove((namespace.as_str(), key.as_str()))?;
            let job = row.map(|row| job_of(key, row.value().0));
            if let Some(job) = job {
                self.wait(namespace, due, &Job { failures: 0, ..job })?;
                self.count(namespace, 1, -1);
                retried += 1;
            }
        }
        Ok(retried)
    }

    pub(super) fn remove(
        &mut self,
        namespace: &Namespace,
        keys: &[String],
    ) -> Result<usize, StorageError> {
        let mut removed = 0;
        for key in keys {
            let place = self.places.remove((namespace.as_str(), key.as_str()))?;
            let place = place.map(|place| place.value());
            match place {
                None => continue,
                Some(None) => {
                    self.dead.remove((namespace.as_str(), key.as_str()))?;
                    self.count(namespace, 0, -1);
                }
                Some(Some(due)) => {
                    self.pull(namespace, due, key)?;
                    self.leases(namespace).end(key);
                    self.count(namespace, -1, 0);
                }
            }
            removed += 1;
        }
        Ok(removed)
    }

    /// Returns the bucket of a credential.
    fn bucket(&self, credential: &str) -> Result<Bucket, StorageError> {
        let bucket = self.buckets.get(credential)?.map(|bucket| bucket.value());
        let (spread, paused, remaining, reset) = bucket.unwrap_or_default();
        Ok(Bucket {
            spread,
            paused,
            remaining,
            reset,
        })
    }

    fn store(&mut self, credential: &str, bucket: Bucket) -> Result<(), StorageError> {
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
    ) -> Result<Result<Reserved, QueueError>, StorageError> {
        let mut bucket = self.bucket(credential)?;
        let reserved = bucket.reserve(self.now, requests, limit);
        if let Ok(Reserved::Now) = reserved {
            self.store(credential, bucket)?;
        }
        Ok(reserved)
    }

    pub(super) fn report(&mut self, credential: &str, report: Report) -> Result<(), StorageError> {
        let mut bucket = self.bucket(credential)?;
        bucket.report(self.now, report);
        self.store(credential, bucket)
    }
}

/// The tables as they are committed, and the leases.
pub(super) struct Reading<'l> {
    pub(super) transaction: ReadTransaction,
    pub(super) leases: &'l mut Leases,
    pub(super) now: DateTime<Utc>,
}

impl Reading<'_> {
    pub(super) fn take(
        &mut self,
        namespace: &Namespace,
        want: Want,
    ) -> Result<Taken, StorageError> {
        let now = self.now;
        let waiting = self.transaction.open_table(WAITING)?;
        let leases = self.leases.of(namespace, now);
        let (from_due, from_key) = leases.from();
        let start = (namespace.as_str(), from_due, from_key);
        // The first jobs that nobody has, due or not.
        let mut first = Vec::new();
        for row in waiting.range(start..=(namespace.as_str(), i64::MAX, ""))? {
            let (place, row) = row?;
            let (_, _, key) = place.value();
            if leases.of_key(key).is_none() {
                first.push((place, row));
                if first.len() == want.max {
                    break;
                }
            }
        }
        let due_of = |index: usize| {
            first
                .get(index)
                .map(|(place, _)| from_micros(place.value().1))
        };
        let due = (0..first.len()).take_while(|index| due_of(*index).is_some_and(|due| due <= now));
        let due = due.count();
        let patience_ends = due_of(0).map(|due| later(due, want.buffer));
        let is_ready = due == want.max || patience_ends.is_some_and(|end| end <= now);
        if due == 0 || !is_ready {
            let full = due_of(want.max - 1);
            let next = patience_ends
                .into_iter()
                .chain(full)
                .chain(leases.first_end())
                .min();
            return Ok(Taken::Wait { now, next });
        }
        let until = later(now, want.lease);
        let mut batch = Vec::with_capacity(due);
        for (place, row) in first.iter().take(due) {
            let (_, due, key) = place.value();
            let number = self.leases.next_number();
            let leases = self.leases.of(namespace, now);
            leases.lease(key, number, due, until);
            leases.pass(due, key);
            let token = Token {
                namespace: namespace.clone(),
                key: key.to_owned(),
                number,
            };
            batch.push(Lease {
                token,
                job: job_of(key, row.value()),
                leased: now,
                until,
            });
        }
        Ok(Taken::Leased(batch))
    }

    /// Extends leases without storing notes.
    pub(super) fn extend(&mut self, extensions: &[Extension]) -> Vec<Held> {
        let mut held = Vec::with_capacity(extensions.len());
        for extension in extensions {
            let leased = self.leases.extend(extension, self.now);
            held.push(if leased.is_some() {
                Held::Yes
            } else {
                Held::Lost
            });
        }
        held
    }

    pub(super) fn dead(
        &self,
        namespace: &Namespace,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<Dead>, StorageError> {
        let dead = self.transaction.open_table(DEAD)?;
        let name = namespace.as_str();
        let mut listed = Vec::new();
        for row in dead.range((name, after.unwrap_or_default())..)? {
            let (place, row) = row?;
            let ((of, key), (row, reason)) = (place.value(), row.value());
            if of != name || listed.len() == limit {
                break;
            }
            if after != Some(key) {
                listed.push(Dead {
                    job: job_of(key, row),
                    reason: reason.to_owned(),
                });
            }
        }
        Ok(listed)
    }

    /// Returns a snapshot for counting.
    pub(super) fn count(&mut self, namespace: &Namespace) -> Result<Counting, StorageError> {
        let counts = self.transaction.open_table(COUNTS)?;
        let counts = counts.get(namespace.as_str())?.map(|counts| counts.value());
        let (waiting, dead) = counts.unwrap_or_default();
        let leases = self.leases.of(namespace, self.now);
        Ok(Counting {
            waiting: self.transaction.open_table(WAITING)?,
            namespace: namespace.clone(),
            leased: leases.keys(),
            now: self.now,
            pending: waiting,
            dead,
        })
    }
}

/// The state of a namespace at one moment.
pub(super) struct Counting {
    waiting: ReadOnlyTable<WaitingKey<'static>, Row<'static>>,
    namespace: Namespace,
    leased: HashSet<String>,
    now: DateTime<Utc>,
    pending: u64,
    dead: u64,
}

impl Counting {
    /// Counts. Reads every job that is due.
    pub(super) fn stats(self) -> Result<Stats, StorageError> {
        let name = self.namespace.as_str();
        let end = self.now.timestamp_micros().saturating_add(1);
        let (mut due, mut oldest) = (0_u64, None);
        for row in self.waiting.range((name, 0, "")..(name, end, ""))? {
            let place = row?.0;
            let (_, since, key) = place.value();
            if !self.leased.contains(key) {
                due += 1;
                oldest.get_or_insert(from_micros(since));
            }
        }
        let leased = u64::try_from(self.leased.len()).unwrap_or(u64::MAX);
        Ok(Stats {
            waiting: self.pending.saturating_sub(due).saturating_sub(leased),
            due,
            leased,
            dead: self.dead,
            oldest_due: oldest,
        })
    }
}
