//! The contract as a pure function of its calls, and the reference for every keeper.
//!
//! Pure. Each call is given the time. [`Memory`](crate::Memory) makes a queue of the model; the
//! tests of the other keepers compare their answers with the model's; simulations run months of
//! model time in a second.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    ops::Bound,
    time::Duration,
};

use chrono::{DateTime, Utc};

use crate::{
    error::QueueError,
    instant::later,
    job::{
        Dead, Due, Existing, Extension, FailureOutcome, Finish, Job, JobFailure, Lease, LeaseToken,
        Namespace, NewJob, ScheduleOutcome, Stats, Successor, TokenStanding, Want, check_bytes,
        check_count,
    },
    limits::CALL_JOBS_MAX,
    limits::Limit,
    queue::TakeOutcome,
    quota::{Bucket, QuotaReport, Reservation},
};

/// A queue without clock and storage.
#[derive(Clone, Debug, Default)]
pub struct Model {
    jobs: HashMap<Namespace, Jobs>,
    buckets: HashMap<String, Bucket>,
    /// Number of the newest token.
    tokens: i64,
}

/// Jobs of a namespace.
#[derive(Clone, Debug, Default)]
struct Jobs {
    rows: BTreeMap<String, ModelJob>,
    /// Waiting jobs by due time and key.
    waiting: BTreeSet<(DateTime<Utc>, String)>,
    /// Leased jobs by the end of the lease and key.
    leased: BTreeSet<(DateTime<Utc>, String)>,
    /// Dead jobs by key.
    dead: BTreeSet<String>,
}

/// A job and its state.
#[derive(Clone, Debug)]
struct ModelJob {
    job: Job,
    /// Time from which a worker may lease the job.
    due: DateTime<Utc>,
    state: JobState,
}

/// State of a job.
#[derive(Clone, Debug)]
enum JobState {
    Waiting,
    Leased { number: i64, until: DateTime<Utc> },
    Dead { reason: String },
}

impl Jobs {
    /// Makes jobs wait again whose leases have expired.
    fn expire_leases(&mut self, now: DateTime<Utc>) {
        // `leased` is in the order of the ends: the first lease that has not expired ends the loop.
        while let Some((until, key)) = self.leased.pop_first() {
            if until > now {
                self.leased.insert((until, key));
                return;
            }
            if let Some(row) = self.rows.get_mut(&key) {
                row.state = JobState::Waiting;
                self.waiting.insert((row.due, key));
            }
        }
    }

    /// Takes a job out of the order of the jobs in the same state.
    fn forget_order(&mut self, key: &str) {
        if let Some(row) = self.rows.get(key) {
            match &row.state {
                JobState::Waiting => self.waiting.remove(&(row.due, key.to_owned())),
                JobState::Leased { until, .. } => self.leased.remove(&(*until, key.to_owned())),
                JobState::Dead { .. } => self.dead.remove(key),
            };
        }
    }

    /// Puts a job into a state, after `change`.
    fn put_job(&mut self, key: &str, state: JobState, change: impl FnOnce(&mut ModelJob)) {
        // First, while the row still has the due time and the state that name the job's place in an
        // order.
        self.forget_order(key);
        let Some(row) = self.rows.get_mut(key) else {
            return;
        };
        change(row);
        match &state {
            JobState::Waiting => self.waiting.insert((row.due, key.to_owned())),
            JobState::Leased { until, .. } => self.leased.insert((*until, key.to_owned())),
            JobState::Dead { .. } => self.dead.insert(key.to_owned()),
        };
        row.state = state;
    }

    fn schedule_job(
        &mut self,
        now: DateTime<Utc>,
        new: NewJob,
        existing: Existing,
    ) -> ScheduleOutcome {
        let due = new.due.at(now);
        let Some(row) = self.rows.get(&new.key) else {
            let (key, payload) = (new.key.clone(), new.payload);
            let job = Job {
                key,
                payload,
                note: Vec::new(),
                slot: due,
                failures: 0,
            };
            self.waiting.insert((due, new.key.clone()));
            self.rows.insert(
                new.key,
                ModelJob {
                    job,
                    due,
                    state: JobState::Waiting,
                },
            );
            return ScheduleOutcome::Added;
        };
        match (&row.state, existing) {
            // A new due time would take a leased job from its worker, and a dead job stays dead
            // until a retry by hand.
            (JobState::Leased { .. }, _) => ScheduleOutcome::Leased,
            (JobState::Dead { .. }, _) => ScheduleOutcome::Dead,
            (JobState::Waiting, Existing::Keep) => ScheduleOutcome::Kept,
            (JobState::Waiting, Existing::Move) => {
                self.put_job(&new.key, JobState::Waiting, |row| {
                    renew_job(row, due, Some(new.payload));
                });
                ScheduleOutcome::Moved
            }
        }
    }

    /// Returns whether a token is valid.
    fn is_held(&self, token: &LeaseToken) -> bool {
        self.rows.get(&token.key).is_some_and(
            |row| matches!(row.state, JobState::Leased { number, .. } if number == token.number),
        )
    }
}

/// Puts a job into a new slot.
fn renew_job(row: &mut ModelJob, due: DateTime<Utc>, payload: Option<Vec<u8>>) {
    row.due = due;
    row.job.slot = due;
    row.job.failures = 0;
    row.job.note.clear();
    if let Some(payload) = payload {
        row.job.payload = payload;
    }
}

impl Model {
    /// Returns the jobs of a namespace, after all expired leases have ended.
    fn jobs_of(&mut self, namespace: &Namespace, now: DateTime<Utc>) -> &mut Jobs {
        let jobs = self.jobs.entry(namespace.clone()).or_default();
        jobs.expire_leases(now);
        jobs
    }

    /// See [`Queue::schedule`](crate::Queue::schedule).
    ///
    /// # Errors
    ///
    /// If a bound is crossed.
    pub fn schedule(
        &mut self,
        now: DateTime<Utc>,
        jobs: Vec<NewJob>,
        existing: Existing,
    ) -> Result<Vec<ScheduleOutcome>, QueueError> {
        check_count(jobs.len())?;
        jobs.iter().try_for_each(NewJob::check)?;
        let schedule = |new: NewJob| {
            let namespace = new.namespace.clone();
            self.jobs_of(&namespace, now)
                .schedule_job(now, new, existing)
        };
        Ok(jobs.into_iter().map(schedule).collect())
    }

    /// See [`Queue::take`](crate::Queue::take).
    ///
    /// # Errors
    ///
    /// If a bound is crossed.
    pub fn take(
        &mut self,
        now: DateTime<Utc>,
        namespace: &Namespace,
        want: Want,
    ) -> Result<TakeOutcome, QueueError> {
        want.check()?;
        let mut number = self.tokens;
        let jobs = self.jobs_of(namespace, now);
        let batch: Vec<(DateTime<Utc>, String)> = jobs
            .waiting
            .iter()
            .take(want.max)
            .take_while(|(due, _)| *due <= now)
            .cloned()
            .collect();
        let patience_ends = jobs
            .waiting
            .first()
            .map(|(due, _)| later(*due, want.buffer));
        // A full batch needs no patience; the oldest job ends the wait for all others.
        let is_ready = batch.len() == want.max || patience_ends.is_some_and(|end| end <= now);
        if batch.is_empty() || !is_ready {
            // No underflow: the check has refused a batch of 0 jobs.
            let full = jobs.waiting.iter().nth(want.max - 1).map(|(due, _)| *due);
            // An expired lease makes its job due again, with a due time that has passed.
            let expiry = jobs.leased.first().map(|(until, _)| *until);
            let next = patience_ends.into_iter().chain(full).chain(expiry).min();
            return Ok(TakeOutcome::Wait { now, next });
        }
        let until = later(now, want.lease);
        let mut leases = Vec::with_capacity(batch.len());
        for (_, key) in batch {
            number += 1;
            jobs.put_job(&key, JobState::Leased { number, until }, |_| {});
            if let Some(row) = jobs.rows.get(&key) {
                let token = LeaseToken {
                    namespace: namespace.clone(),
                    key,
                    number,
                };
                leases.push(Lease {
                    token,
                    job: row.job.clone(),
                    leased: now,
                    until,
                });
            }
        }
        self.tokens = number;
        Ok(TakeOutcome::Leased(leases))
    }

    /// See [`Queue::extend`](crate::Queue::extend).
    ///
    /// # Errors
    ///
    /// If a bound is crossed.
    pub fn extend(
        &mut self,
        now: DateTime<Utc>,
        extensions: Vec<Extension>,
    ) -> Result<Vec<TokenStanding>, QueueError> {
        check_count(extensions.len())?;
        extensions
            .iter()
            .filter_map(|one| one.note.as_deref())
            .try_for_each(check_bytes)?;
        let extend = |Extension { token, lease, note }| {
            let jobs = self.jobs_of(&token.namespace, now);
            if !jobs.is_held(&token) {
                return TokenStanding::Lost;
            }
            let state = JobState::Leased {
                number: token.number,
                until: later(now, lease),
            };
            jobs.put_job(&token.key, state, |row| {
                if let Some(note) = note {
                    row.job.note = note;
                }
            });
            TokenStanding::Yes
        };
        Ok(extensions.into_iter().map(extend).collect())
    }

    /// See [`Queue::finish`](crate::Queue::finish).
    ///
    /// # Errors
    ///
    /// If a bound is crossed.
    pub fn finish(
        &mut self,
        now: DateTime<Utc>,
        finishes: Vec<Finish>,
    ) -> Result<Vec<TokenStanding>, QueueError> {
        check_count(finishes.len())?;
        finishes.iter().try_for_each(Finish::check)?;
        let mut all = Vec::new();
        let finish = |Finish { token, next, also }| {
            let jobs = self.jobs_of(&token.namespace, now);
            if !jobs.is_held(&token) {
                return TokenStanding::Lost;
            }
            match next {
                Successor::Done => {
                    // Before the row is removed: the row names the job's place in the order.
                    jobs.forget_order(&token.key);
                    jobs.rows.remove(&token.key);
                }
                Successor::Again { due, payload } => {
                    let due = due.at(now);
                    jobs.put_job(&token.key, JobState::Waiting, |row| {
                        renew_job(row, due, payload);
                    });
                }
            }
            all.extend(also);
            TokenStanding::Yes
        };
        let held = finishes.into_iter().map(finish).collect();
        // After all finishes of the call: a key that a later finish ends is free for a job in
        // `also`.
        for new in all {
            let namespace = new.namespace.clone();
            self.jobs_of(&namespace, now)
                .schedule_job(now, new, Existing::Keep);
        }
        Ok(held)
    }

    /// See [`Queue::fail`](crate::Queue::fail).
    ///
    /// # Errors
    ///
    /// If a bound is crossed.
    pub fn fail(
        &mut self,
        now: DateTime<Utc>,
        failures: &[JobFailure],
    ) -> Result<Vec<FailureOutcome>, QueueError> {
        check_count(failures.len())?;
        let fail = |failure: &JobFailure| {
            let jobs = self.jobs_of(&failure.token.namespace, now);
            if !jobs.is_held(&failure.token) {
                return FailureOutcome::Lost;
            }
            let failed = jobs
                .rows
                .get(&failure.token.key)
                .map_or(0, |row| row.job.failures);
            let failed = failed.saturating_add(1);
            let is_dead = failed >= failure.attempts;
            let state = if is_dead {
                JobState::Dead {
                    reason: failure.reason(),
                }
            } else {
                JobState::Waiting
            };
            jobs.put_job(&failure.token.key, state, |row| {
                row.job.failures = failed;
                // The slot stays: the try after a failure belongs to the same round.
                row.due = failure.retry.at(now);
            });
            if is_dead {
                FailureOutcome::Dead
            } else {
                FailureOutcome::Waits
            }
        };
        Ok(failures.iter().map(fail).collect())
    }

    /// See [`Queue::dead`](crate::Queue::dead).
    ///
    /// # Errors
    ///
    /// If the limit is out of range.
    pub fn dead(
        &self,
        namespace: &Namespace,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<Dead>, QueueError> {
        check_count(limit)?;
        let Some(jobs) = self.jobs.get(namespace) else {
            return Ok(Vec::new());
        };
        let after = after.map_or(Bound::Unbounded, Bound::Excluded);
        let keys = jobs.dead.range::<str, _>((after, Bound::Unbounded));
        let dead = |key: &String| {
            let row = jobs.rows.get(key)?;
            let JobState::Dead { reason } = &row.state else {
                return None;
            };
            let (job, reason) = (row.job.clone(), reason.clone());
            Some(Dead { job, reason })
        };
        Ok(keys.filter_map(dead).take(limit).collect())
    }

    /// See [`Queue::retry`](crate::Queue::retry).
    ///
    /// # Errors
    ///
    /// If there are too many keys.
    pub fn retry(
        &mut self,
        now: DateTime<Utc>,
        namespace: &Namespace,
        keys: &[String],
    ) -> Result<usize, QueueError> {
        check_count(keys.len())?;
        let jobs = self.jobs_of(namespace, now);
        let mut retried = 0;
        for key in keys {
            let row = jobs.rows.get(key);
            if row.is_some_and(|row| matches!(row.state, JobState::Dead { .. })) {
                jobs.put_job(key, JobState::Waiting, |row| {
                    // In whole microseconds, as the other keepers store the instant.
                    row.due = Due::At(now).at(now);
                    row.job.failures = 0;
                });
                retried += 1;
            }
        }
        Ok(retried)
    }

    /// See [`Queue::remove`](crate::Queue::remove).
    ///
    /// # Errors
    ///
    /// If there are too many keys.
    pub fn remove(&mut self, namespace: &Namespace, keys: &[String]) -> Result<usize, QueueError> {
        check_count(keys.len())?;
        let Some(jobs) = self.jobs.get_mut(namespace) else {
            return Ok(0);
        };
        let mut removed = 0;
        for key in keys {
            // Before the row is removed: the row names the job's place in the order. No lease needs
            // to expire first: the state of a removed job does not matter.
            jobs.forget_order(key);
            removed += usize::from(jobs.rows.remove(key).is_some());
        }
        Ok(removed)
    }

    /// See [`Queue::bring_forward`](crate::Queue::bring_forward).
    pub fn bring_forward(
        &mut self,
        now: DateTime<Utc>,
        namespace: &Namespace,
        due: Duration,
        lease: Duration,
    ) -> usize {
        let jobs = self.jobs_of(namespace, now);
        let end = later(now, lease);
        let is_long = |(until, key): &(DateTime<Utc>, String)| (*until > end).then(|| key.clone());
        let long = jobs.leased.iter().rev().map_while(is_long);
        let long: Vec<String> = long.take(CALL_JOBS_MAX).collect();
        for key in &long {
            jobs.put_job(key, JobState::Waiting, |_| {});
        }
        let end = later(now, due);
        // After the leases: a job whose lease has just ended waits, and may be due too late as
        // well.
        let is_far = |(due, key): &(DateTime<Utc>, String)| (*due > end).then(|| key.clone());
        let far = jobs.waiting.iter().rev().map_while(is_far);
        // Both parts together have the bound of one call.
        let far: Vec<String> = far.take(CALL_JOBS_MAX - long.len()).collect();
        for key in &far {
            jobs.put_job(key, JobState::Waiting, |row| {
                row.due = later(now, Duration::ZERO);
            });
        }
        long.len() + far.len()
    }

    /// See [`Queue::stats`](crate::Queue::stats).
    pub fn stats(&mut self, now: DateTime<Utc>, namespace: &Namespace) -> Stats {
        let jobs = self.jobs_of(namespace, now);
        let count = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
        let due = jobs
            .waiting
            .iter()
            .take_while(|(due, _)| *due <= now)
            .count();
        let oldest = jobs.waiting.first().map(|(due, _)| *due);
        Stats {
            waiting: count(jobs.waiting.len() - due),
            due: count(due),
            leased: count(jobs.leased.len()),
            dead: count(jobs.dead.len()),
            oldest_due: oldest.filter(|due| *due <= now),
            next_due: jobs.waiting.iter().nth(due).map(|(due, _)| *due),
        }
    }

    /// See [`Queue::reserve`](crate::Queue::reserve).
    ///
    /// # Errors
    ///
    /// If so many requests never fit.
    pub fn reserve(
        &mut self,
        now: DateTime<Utc>,
        credential: &str,
        requests: u32,
        limit: Limit,
    ) -> Result<Reservation, QueueError> {
        let bucket = self.buckets.entry(credential.to_owned()).or_default();
        bucket.reserve(now, requests, limit)
    }

    /// See [`Queue::report`](crate::Queue::report).
    pub fn report(&mut self, now: DateTime<Utc>, credential: &str, report: QuotaReport) {
        self.buckets
            .entry(credential.to_owned())
            .or_default()
            .report(now, report);
    }
}
