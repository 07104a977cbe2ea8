//! The transaction of each call.
//!
//! Shell: PostgreSQL.

use std::{collections::HashMap, hash::Hash, time::Duration};

use chrono::{DateTime, Utc};
use deadpool_postgres::{Client, GenericClient, Transaction};
use tokio_postgres::Row;

use super::{LOOKS_MAX, POLL, listener, statements};
use crate::{
    instant::{from_micros, later},
    job::{
        Due, Existing, Extension, Finish, Job, Lease, LeaseToken, Namespace, NewJob,
        ScheduleOutcome, Successor, TokenStanding, Want,
    },
    limits::CALL_JOBS_MAX,
    queue::TakeOutcome,
    quota::Bucket,
};

/// Returns a number as a `bigint` of PostgreSQL.
pub(super) fn long(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// Returns a span in microseconds, as a `bigint` of PostgreSQL. The result is at most the longest
/// span between two instants that every keeper can store.
pub(super) fn micros(span: Duration) -> i64 {
    from_micros(i64::try_from(span.as_micros()).unwrap_or(i64::MAX)).timestamp_micros()
}

/// Columns of due times: `at` and `after`.
pub(super) type DueColumns = (Vec<Option<DateTime<Utc>>>, Vec<Option<i64>>);

pub(super) fn due_columns(dues: impl Iterator<Item = Due>) -> DueColumns {
    let both = |due| match due {
        // `at` needs no current time for a due time that is an instant. The call only clamps the
        // instant to those that every keeper can store.
        Due::At(_) => (Some(due.at(DateTime::UNIX_EPOCH)), None),
        Due::After(span) => (None, Some(micros(span))),
    };
    dues.map(both).unzip()
}

/// Returns the namespaces, keys and numbers of tokens, as columns of a statement.
pub(super) fn token_columns<'t>(
    tokens: impl Iterator<Item = &'t LeaseToken>,
) -> (Vec<&'t str>, Vec<&'t str>, Vec<i64>) {
    let (mut namespaces, mut keys, mut numbers) = (Vec::new(), Vec::new(), Vec::new());
    for token in tokens {
        namespaces.push(token.namespace.as_str());
        keys.push(token.key.as_str());
        numbers.push(token.number);
    }
    (namespaces, keys, numbers)
}

/// Jobs that a statement changed, by namespace, key and token, and whether each is dead now.
#[derive(Default)]
pub(super) struct JobChanges(HashMap<(String, String, i64), bool>);

impl JobChanges {
    /// Adds rows with the columns namespace, key, token, and whether the job is dead now.
    pub(super) fn add(&mut self, rows: Vec<Row>) {
        for row in rows {
            self.0
                .insert((row.get(0), row.get(1), row.get(2)), row.get(3));
        }
    }

    /// Returns whether the job of a token is dead now; `None` if the job was not changed. A second
    /// call for the same token returns `None`, because a token may change a job only once.
    pub(super) fn take(&mut self, token: &LeaseToken) -> Option<bool> {
        let name = token.namespace.as_str().to_owned();
        self.0.remove(&(name, token.key.clone(), token.number))
    }

    /// Returns whether a job was changed.
    pub(super) fn held(&mut self, token: &LeaseToken) -> TokenStanding {
        self.take(token)
            .map_or(TokenStanding::Lost, |_| TokenStanding::Yes)
    }
}

/// Splits the items of a call into parts, which are lists of indexes. No part has a key twice, and
/// items with equal keys stay in order.
pub(super) fn without_repeats<K: Hash + Eq>(keys: impl Iterator<Item = K>) -> Vec<Vec<usize>> {
    let mut seen: HashMap<K, usize> = HashMap::new();
    let mut parts: Vec<Vec<usize>> = Vec::new();
    for (index, key) in keys.enumerate() {
        let part = seen.entry(key).or_default();
        if *part == parts.len() {
            parts.push(Vec::new());
        }
        if let Some(indexes) = parts.get_mut(*part) {
            indexes.push(index);
        }
        *part += 1;
    }
    parts
}

/// Returns the first item of each token: later items of the call find the token void.
pub(super) fn first_of_each<T>(all: &[T], token: impl Fn(&T) -> &LeaseToken) -> Vec<&T> {
    let first = without_repeats(all.iter().map(token)).into_iter().next();
    let first = first.unwrap_or_default().into_iter();
    first.filter_map(|index| all.get(index)).collect()
}

/// Schedules jobs of different keys.
pub(super) async fn schedule_once(
    transaction: &impl GenericClient,
    now: Option<DateTime<Utc>>,
    jobs: &[&NewJob],
    existing: Existing,
) -> Result<Vec<ScheduleOutcome>, tokio_postgres::Error> {
    let namespaces: Vec<&str> = jobs.iter().map(|job| job.namespace.as_str()).collect();
    let keys: Vec<&str> = jobs.iter().map(|job| job.key.as_str()).collect();
    let payloads: Vec<&[u8]> = jobs.iter().map(|job| job.payload.as_slice()).collect();
    let (at, after) = due_columns(jobs.iter().map(|job| job.due));
    let statement = match existing {
        Existing::Keep => statements::SCHEDULE_AND_KEEP,
        Existing::Move => statements::SCHEDULE_AND_MOVE,
    };
    let statement = transaction.prepare_cached(statement).await?;
    let rows = transaction
        .query(
            &statement,
            &[&now, &namespaces, &keys, &payloads, &at, &after],
        )
        .await?;
    let mut states: HashMap<(String, String), ScheduleOutcome> = HashMap::with_capacity(jobs.len());
    for row in rows {
        let scheduled = if row.get(2) {
            ScheduleOutcome::Added
        } else {
            ScheduleOutcome::Moved
        };
        states.insert((row.get(0), row.get(1)), scheduled);
    }
    // `ON CONFLICT` returns no row for a job that was not changed.
    if states.len() < jobs.len() {
        let statement = transaction.prepare_cached(statements::STATES).await?;
        for row in transaction
            .query(&statement, &[&now, &namespaces, &keys])
            .await?
        {
            let state = match (row.get(2), row.get(3)) {
                (true, _) => ScheduleOutcome::Dead,
                (false, true) => ScheduleOutcome::Leased,
                (false, false) => ScheduleOutcome::Kept,
            };
            // The statement also returns the jobs that the first one has just added or moved.
            states.entry((row.get(0), row.get(1))).or_insert(state);
        }
    }
    let state_of = |job: &&NewJob| {
        // If a job was there at the first statement and is gone at the second, the first statement
        // kept the job, and the job has ended meanwhile.
        let key = (job.namespace.as_str().to_owned(), job.key.clone());
        states.get(&key).copied().unwrap_or(ScheduleOutcome::Kept)
    };
    Ok(jobs.iter().map(state_of).collect())
}

/// Schedules jobs, also several of one key, and notifies workers if one is due soon.
pub(super) async fn schedule_in(
    transaction: &impl GenericClient,
    now: Option<DateTime<Utc>>,
    jobs: &[NewJob],
    existing: Existing,
) -> Result<Vec<ScheduleOutcome>, tokio_postgres::Error> {
    let mut scheduled = vec![ScheduleOutcome::Kept; jobs.len()];
    let keys = jobs.iter().map(|job| (&job.namespace, &job.key));
    // `ON CONFLICT DO UPDATE` refuses to change a row twice.
    for part in without_repeats(keys) {
        let of_part: Vec<&NewJob> = part.iter().filter_map(|index| jobs.get(*index)).collect();
        let states = schedule_once(transaction, now, &of_part, existing).await?;
        for (index, state) in part.into_iter().zip(states) {
            if let Some(place) = scheduled.get_mut(index) {
                *place = state;
            }
        }
    }
    // A notification takes a lock of the whole cluster, so workers are notified only if a poll
    // would be late.
    let is_soon = |job: &NewJob| match job.due {
        Due::After(span) => span < POLL,
        // By this machine's clock: a wrong answer costs a poll, or one notification.
        Due::At(instant) => instant < Utc::now() + POLL,
    };
    if jobs.iter().any(is_soon) {
        transaction.batch_execute(listener::NOTIFY).await?;
    }
    Ok(scheduled)
}

/// Extends leases, and stores the notes that are given.
pub(super) async fn extend_in(
    transaction: &impl GenericClient,
    now: Option<DateTime<Utc>>,
    extensions: &[Extension],
) -> Result<Vec<TokenStanding>, tokio_postgres::Error> {
    let statement = transaction.prepare_cached(statements::EXTEND).await?;
    let mut answers = vec![TokenStanding::Lost; extensions.len()];
    // If a statement has two rows for one job, PostgreSQL applies only one of the two, which may be
    // either. The contract demands both, in order. So each part becomes a statement of its own.
    for part in without_repeats(extensions.iter().map(|one| &one.token)) {
        let of_part = || part.iter().filter_map(|index| extensions.get(*index));
        let (names, keys, tokens) = token_columns(of_part().map(|one| &one.token));
        let leases: Vec<i64> = of_part().map(|one| micros(one.lease)).collect();
        let notes: Vec<Option<&[u8]>> = of_part().map(|one| one.note.as_deref()).collect();
        let rows = transaction
            .query(&statement, &[&now, &names, &keys, &tokens, &leases, &notes])
            .await?;
        let mut changed = JobChanges::default();
        changed.add(rows);
        for (index, extension) in part.iter().zip(of_part()) {
            if let Some(answer) = answers.get_mut(*index) {
                *answer = changed.held(&extension.token);
            }
        }
    }
    Ok(answers)
}

/// Returns whether one statement can carry out all of the finishes. A single statement is a
/// transaction by itself.
pub(super) fn is_one_statement(finishes: &[Finish]) -> bool {
    let done = finishes
        .iter()
        .filter(|one| one.next == Successor::Done)
        .count();
    let is_one_kind = done == 0 || done == finishes.len();
    is_one_kind && finishes.iter().all(|one| one.also.is_empty())
}

/// Finishes jobs, and schedules their `also`.
pub(super) async fn finish_in(
    transaction: &impl GenericClient,
    now: Option<DateTime<Utc>>,
    finishes: &[Finish],
) -> Result<Vec<TokenStanding>, tokio_postgres::Error> {
    let is_done = |finish: &&Finish| finish.next == Successor::Done;
    let (done, again): (Vec<&Finish>, Vec<&Finish>) = first_of_each(finishes, |one| &one.token)
        .into_iter()
        .partition(is_done);
    let mut changed = JobChanges::default();
    // No token is in both lists, or twice in one of them. So the order of the two statements does
    // not matter.
    if !done.is_empty() {
        let statement = transaction.prepare_cached(statements::FINISH).await?;
        let (namespaces, keys, tokens) = token_columns(done.iter().map(|one| &one.token));
        let rows = transaction
            .query(&statement, &[&now, &namespaces, &keys, &tokens])
            .await?;
        changed.add(rows);
    }
    if !again.is_empty() {
        let statement = transaction
            .prepare_cached(statements::FINISH_AND_AGAIN)
            .await?;
        let (namespaces, keys, tokens) = token_columns(again.iter().map(|one| &one.token));
        let (mut payloads, mut dues) = (Vec::new(), Vec::new());
        for finish in &again {
            if let Successor::Again { due, payload } = &finish.next {
                payloads.push(payload.as_deref());
                dues.push(*due);
            }
        }
        let (at, after) = due_columns(dues.into_iter());
        let rows = transaction
            .query(
                &statement,
                &[&now, &namespaces, &keys, &tokens, &payloads, &at, &after],
            )
            .await?;
        changed.add(rows);
    }
    let mut also = Vec::new();
    let mut answers = Vec::with_capacity(finishes.len());
    for finish in finishes {
        // `held` removes the change that it returns, so a second finish of the same token gets
        // `Lost`.
        let answer = changed.held(&finish.token);
        if answer == TokenStanding::Yes {
            also.extend(finish.also.iter().cloned());
        }
        answers.push(answer);
    }
    if !also.is_empty() {
        schedule_in(transaction, now, &also, Existing::Keep).await?;
    }
    Ok(answers)
}

/// Brings jobs forward or, if there are none to bring forward, ends leases. Returns the number of
/// changes.
pub(super) async fn bring_forward_in(
    transaction: &impl GenericClient,
    now: Option<DateTime<Utc>>,
    namespace: &str,
    due: Duration,
    lease: Duration,
) -> Result<u64, tokio_postgres::Error> {
    let (due, lease, max) = (micros(due), micros(lease), long(CALL_JOBS_MAX));
    let forward = transaction
        .prepare_cached(statements::BRING_FORWARD)
        .await?;
    let moved = transaction
        .execute(&forward, &[&now, &namespace, &due, &max])
        .await?;
    if moved > 0 {
        return Ok(moved);
    }
    // Last, because this statement reads all jobs.
    let shorten = transaction.prepare_cached(statements::SHORTEN).await?;
    transaction
        .execute(&shorten, &[&now, &namespace, &lease, &max])
        .await
}

/// Locks the bucket of a credential, and stores the bucket if `change` changes it.
pub(super) async fn with_bucket<T>(
    transaction: &Transaction<'_>,
    now: Option<DateTime<Utc>>,
    credential: &str,
    change: impl FnOnce(&mut Bucket, DateTime<Utc>) -> T + Send,
) -> Result<T, tokio_postgres::Error> {
    let statement = transaction.prepare_cached(statements::LOCK_BUCKET).await?;
    let mut row = transaction
        .query_opt(&statement, &[&now, &credential])
        .await?;
    // Only now: an insert at each call would cost a statement. Another process may have made the
    // row meanwhile.
    if row.is_none() {
        let make = transaction.prepare_cached(statements::BUCKET).await?;
        transaction.execute(&make, &[&credential]).await?;
        row = transaction
            .query_opt(&statement, &[&now, &credential])
            .await?;
    }
    let mut bucket = Bucket::default();
    let mut at = Utc::now();
    if let Some(row) = row {
        let remaining: i64 = row.get(2);
        let remaining = u32::try_from(remaining).unwrap_or(u32::MAX);
        bucket = Bucket {
            spread: row.get(0),
            paused: row.get(1),
            remaining,
            reset: row.get(3),
        };
        at = row.get(4);
    }
    let before = bucket;
    let answer = change(&mut bucket, at);
    // An update leaves a dead row behind, and a refusal mostly changes nothing.
    if bucket != before {
        let statement = transaction.prepare_cached(statements::STORE_BUCKET).await?;
        let Bucket {
            spread,
            paused,
            remaining,
            reset,
        } = bucket;
        transaction
            .execute(
                &statement,
                &[&credential, &spread, &paused, &i64::from(remaining), &reset],
            )
            .await?;
    }
    Ok(answer)
}

/// Returns the lease of a row of `LEASE`, and the job's due time.
pub(super) fn lease_of(namespace: &Namespace, row: &Row) -> (DateTime<Utc>, Lease) {
    let key: String = row.get(0);
    let failures: i32 = row.get(4);
    let token = LeaseToken {
        namespace: namespace.clone(),
        key: key.clone(),
        number: row.get(5),
    };
    let job = Job {
        key,
        payload: row.get(1),
        note: row.get(2),
        slot: row.get(3),
        failures: u32::try_from(failures).unwrap_or_default(),
    };
    (
        row.get(8),
        Lease {
            token,
            job,
            leased: row.get(6),
            until: row.get(7),
        },
    )
}

/// Leases a batch of due jobs whose due times are `from` or later, oldest first. Returns the leases
/// with the due times; an empty list, if there is no batch.
async fn lease_due(
    client: &Client,
    now: Option<DateTime<Utc>>,
    namespace: &Namespace,
    want: Want,
    from: DateTime<Utc>,
) -> Result<Vec<(DateTime<Utc>, Lease)>, tokio_postgres::Error> {
    let (max, buffer, lease) = (long(want.max), micros(want.buffer), micros(want.lease));
    let leasing = client.prepare_cached(statements::LEASE).await?;
    let name = namespace.as_str();
    let rows = client
        .query(&leasing, &[&now, &name, &max, &buffer, &lease, &from])
        .await?;
    let mut leases: Vec<_> = rows.iter().map(|row| lease_of(namespace, row)).collect();
    // The rows of `RETURNING` have no order. The model returns jobs with equal due times in the
    // order of their keys, so this function does, too.
    leases.sort_by(|one, other| (one.0, &one.1.job.key).cmp(&(other.0, &other.1.job.key)));
    Ok(leases)
}

/// Leases a full batch of due jobs whose due times are `from` or later, if there is one. Returns
/// the batch with the first due time.
pub(super) async fn take_behind(
    client: &Client,
    now: Option<DateTime<Utc>>,
    namespace: &Namespace,
    want: Want,
    from: DateTime<Utc>,
) -> Result<Option<LeasedBatch>, tokio_postgres::Error> {
    let want = Want {
        // With this buffer, only a full batch is leased. A smaller batch might leave out older free
        // jobs, which only a search of all jobs finds.
        buffer: Duration::MAX,
        ..want
    };
    let leases = lease_due(client, now, namespace, want, from).await?;
    Ok(begin_batch(leases))
}

/// A batch, and the first due time of its jobs.
pub(super) type LeasedBatch = (DateTime<Utc>, Vec<Lease>);

fn begin_batch(leases: Vec<(DateTime<Utc>, Lease)>) -> Option<LeasedBatch> {
    let first = leases.first()?.0;
    Some((first, leases.into_iter().map(|(_, lease)| lease).collect()))
}

/// Leases a batch, or returns the time at which a batch may be ready.
pub(super) async fn take(
    client: &Client,
    now: Option<DateTime<Utc>>,
    namespace: &Namespace,
    want: Want,
) -> Result<Result<LeasedBatch, TakeOutcome>, tokio_postgres::Error> {
    let (name, max) = (namespace.as_str(), long(want.max));
    let looking = client.prepare_cached(statements::LOOK).await?;
    let mut looks = 0;
    loop {
        let leases = lease_due(client, now, namespace, want, DateTime::UNIX_EPOCH).await?;
        if let Some(begun) = begin_batch(leases) {
            return Ok(Ok(begun));
        }
        let row = client.query_one(&looking, &[&now, &name, &max]).await?;
        let (at, due): (DateTime<Utc>, i64) = (row.get(0), row.get(1));
        let patience_ends: Option<DateTime<Utc>> = row.get(2);
        let patience_ends = patience_ends.map(|due| later(due, want.buffer));
        let next = [patience_ends, row.get(3), row.get(4)]
            .into_iter()
            .flatten()
            .min();
        looks += 1;
        // If a batch is ready, but was not leased, another worker was faster, or two workers have
        // each skipped rows that the other one had locked. So this worker searches again.
        let is_ready = due == max || due > 0 && patience_ends.is_some_and(|end| end <= at);
        if !is_ready || looks == LOOKS_MAX {
            return Ok(Err(TakeOutcome::Wait { now: at, next }));
        }
    }
}
