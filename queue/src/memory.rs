//! The queue in memory, for tests and simulations.
//!
//! Shell: a lock, and the clock of this machine unless a test sets the time.

use std::{sync::Arc, time::Duration};

use chrono::{DateTime, Utc};
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::{
    clock::Clock,
    error::QueueError,
    job::{
        Dead, Existing, Extension, FailureOutcome, Finish, JobFailure, Namespace, NewJob,
        ScheduleOutcome, Stats, TokenStanding, Want,
    },
    limits::Limit,
    model::Model,
    queue::{Queue, TakeOutcome},
    quota::{QuotaReport, Reservation},
};

/// A queue in the memory of this process. The queue ends with the last clone.
#[derive(Clone, Debug, Default)]
pub struct Memory(Arc<QueueState>);

#[derive(Debug, Default)]
struct QueueState {
    model: Mutex<Model>,
    clock: Clock,
    changes: watch::Sender<()>,
}

impl Memory {
    /// Returns an empty queue.
    pub fn new(clock: Clock) -> Self {
        Self(Arc::new(QueueState {
            clock,
            ..QueueState::default()
        }))
    }

    /// Calls the model, and wakes waiting workers.
    fn change_model<T>(&self, call: impl FnOnce(&mut Model, DateTime<Utc>) -> T) -> T {
        let answer = call(&mut self.0.model.lock(), self.0.clock.now());
        // The lock is free again here: a woken worker needs the lock at once.
        self.0.changes.send_replace(());
        answer
    }
}

impl Queue for Memory {
    async fn schedule(
        &self,
        jobs: Vec<NewJob>,
        existing: Existing,
    ) -> Result<Vec<ScheduleOutcome>, QueueError> {
        self.change_model(|model, now| model.schedule(now, jobs, existing))
    }

    async fn take(&self, namespace: &Namespace, want: Want) -> Result<TakeOutcome, QueueError> {
        // A lease makes no job due, so no worker is woken.
        self.0
            .model
            .lock()
            .take(self.0.clock.now(), namespace, want)
    }

    async fn extend(&self, extensions: Vec<Extension>) -> Result<Vec<TokenStanding>, QueueError> {
        self.change_model(|model, now| model.extend(now, extensions))
    }

    async fn finish(&self, finishes: Vec<Finish>) -> Result<Vec<TokenStanding>, QueueError> {
        self.change_model(|model, now| model.finish(now, finishes))
    }

    async fn fail(&self, failures: Vec<JobFailure>) -> Result<Vec<FailureOutcome>, QueueError> {
        self.change_model(|model, now| model.fail(now, &failures))
    }

    async fn dead(
        &self,
        namespace: &Namespace,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<Dead>, QueueError> {
        self.0.model.lock().dead(namespace, after, limit)
    }

    async fn retry(&self, namespace: &Namespace, keys: Vec<String>) -> Result<usize, QueueError> {
        self.change_model(|model, now| model.retry(now, namespace, &keys))
    }

    async fn remove(&self, namespace: &Namespace, keys: Vec<String>) -> Result<usize, QueueError> {
        self.change_model(|model, _| model.remove(namespace, &keys))
    }

    async fn bring_forward(
        &self,
        namespace: &Namespace,
        due: Duration,
        lease: Duration,
    ) -> Result<usize, QueueError> {
        Ok(self.change_model(|model, now| model.bring_forward(now, namespace, due, lease)))
    }

    async fn stats(&self, namespace: &Namespace) -> Result<Stats, QueueError> {
        Ok(self.0.model.lock().stats(self.0.clock.now(), namespace))
    }

    async fn reserve(
        &self,
        credential: &str,
        requests: u32,
        limit: Limit,
    ) -> Result<Reservation, QueueError> {
        // Workers that wait for jobs do not wait for a quota, so no worker is woken.
        self.0
            .model
            .lock()
            .reserve(self.0.clock.now(), credential, requests, limit)
    }

    async fn report(&self, credential: &str, report: QuotaReport) -> Result<(), QueueError> {
        self.0
            .model
            .lock()
            .report(self.0.clock.now(), credential, report);
        Ok(())
    }

    async fn now(&self) -> Result<DateTime<Utc>, QueueError> {
        Ok(self.0.clock.now())
    }

    fn changes(&self) -> watch::Receiver<()> {
        self.0.changes.subscribe()
    }

    fn clock(&self) -> &Clock {
        &self.0.clock
    }
}
