//! The queue of any number of processes, in PostgreSQL.
//!
//! Shell: PostgreSQL. A job is a row; a lease is a deadline and a token in the row, and not a lock.
//! The memory of a process only shortens the next search, so a worker may come and go at any time.
//! Workers look for jobs again and again ([`POLL`]); `LISTEN` only makes them search earlier.
//!
//! The tables are made in the first schema of the connection's `search_path`.

mod listener;
mod statements;
mod work;

use std::{collections::HashMap, sync::Arc, time::Duration};

use chrono::{DateTime, Utc};
use deadpool_postgres::{
    Client, Manager, ManagerConfig, Pool, PoolError, RecyclingMethod, Runtime,
};
use parking_lot::Mutex;
use tokio::{sync::watch, task::JoinSet};
use tokio_postgres::{Config, NoTls, Row, error::SqlState};

use self::work::{
    JobChanges, bring_forward_in, due_columns, extend_in, finish_in, first_of_each,
    is_one_statement, long, schedule_in, take, take_behind, token_columns, with_bucket,
    without_repeats,
};
use crate::{
    clock::Clock,
    error::QueueError,
    job::{
        Dead, Existing, Extension, FailureOutcome, Finish, Job, JobFailure, Namespace, NewJob,
        ScheduleOutcome, Stats, Successor, TokenStanding, Want, check_bytes, check_count,
    },
    limits::Limit,
    queue::{Queue, TakeOutcome},
    quota::{Bucket, QuotaReport, Reservation},
};

/// Longest time between two searches for jobs.
pub const POLL: Duration = Duration::from_millis(500);
/// Connections of one process, beside the one that listens.
const CONNECTIONS_MAX: usize = 8;
/// Time that a call waits for a connection.
const CONNECTION_WAIT_MAX: Duration = Duration::from_secs(30);
/// Largest number of tries, if PostgreSQL ends a transaction because of another transaction.
const TRIES_MAX: usize = 10;
/// Largest number of searches in a call, if other workers lease the batches first.
const LOOKS_MAX: usize = 3;
/// Options of the planner. Each statement finds some jobs by their keys. Without these options, a
/// planner that has no statistics yet, or plans for any number of jobs, reads the whole table.
const PLANS: &str =
    "-c plan_cache_mode=force_custom_plan -c enable_hashjoin=off -c enable_mergejoin=off";
/// Options of a connection. A worker that vanishes in a transaction, with its machine or its
/// network, must not keep locks.
const VANISHED: &str = "-c idle_in_transaction_session_timeout=30s -c tcp_user_timeout=30s \
    -c tcp_keepalives_idle=30 -c tcp_keepalives_interval=10 -c tcp_keepalives_count=3";
/// Time after which a server that does not answer any more counts as gone.
const SILENCE_MAX: Duration = Duration::from_secs(30);
/// Number of the lock under which a process makes the tables. Any number would do, if all processes
/// have the same.
const SETUP_LOCK: i64 = 0x5346_5131;

/// A queue in PostgreSQL.
#[derive(Clone, Debug)]
pub struct Postgres(Arc<PostgresState>);

#[derive(Debug)]
struct PostgresState {
    pool: Pool,
    clock: Clock,
    changes: Arc<watch::Sender<()>>,
    passed: Mutex<PassedJobs>,
    /// Task that listens, which ends with the last clone of the queue in this process.
    _listener: JoinSet<()>,
}

/// How far the last search has come. For a moment, the next search of the process may start there.
/// Finished jobs leave dead entries at the beginning of the order of due times, until vacuum
/// removes the entries: after a minute, there are more dead entries than live ones.
#[derive(Clone, Copy, Debug)]
struct LastLook {
    /// No job with a due time before this instant was free.
    due: DateTime<Utc>,
    /// Time of the last search that began with the first job.
    since: DateTime<Utc>,
}

/// For each namespace, how far the last search has come.
#[derive(Debug, Default)]
struct PassedJobs {
    of: HashMap<Namespace, LastLook>,
    /// Grows when `of` is cleared: a search that began before must not store a result afterwards.
    generation: u64,
}

/// Returns the error of a call. If the server has not answered, the change may have been made or
/// not.
fn call_error(doing: &str, error: tokio_postgres::Error) -> QueueError {
    let doing = format!("{doing} in PostgreSQL");
    if error.as_db_error().is_some() {
        return QueueError::Storage {
            doing,
            why: Box::new(error),
        };
    }
    QueueError::Lost {
        doing,
        why: Box::new(error),
    }
}

/// Does work on a connection, and tries again if another transaction was in the way. (A macro,
/// because a function's bounds cannot say that the future for each connection is `Send`.)
macro_rules! attempt {
    ($queue:expr, $doing:expr, |$client:ident| $work:expr) => {{
        let mut tries = 0;
        loop {
            let mut connection = $queue.pooled_client($doing).await?;
            let $client = &mut connection;
            tries += 1;
            let done: Result<_, tokio_postgres::Error> = async { $work }.await;
            match done {
                Err(error) if is_conflict(&error) && tries < TRIES_MAX => {}
                done => break done.map_err(|error| call_error($doing, error)),
            }
        }
    }};
}

/// Returns whether the same transaction may succeed at another try.
fn is_conflict(error: &tokio_postgres::Error) -> bool {
    let conflicts = [
        SqlState::T_R_DEADLOCK_DETECTED,
        SqlState::T_R_SERIALIZATION_FAILURE,
    ];
    error.code().is_some_and(|code| conflicts.contains(code))
}

impl Postgres {
    /// Opens the queue of a database, whose tables are made if there are none. The URL is one of
    /// libpq: `postgres://user:password@host/database?options=-csearch_path%3Dname`. Without a
    /// password in the URL, the password is `$PGPASSWORD`, as for libpq.
    ///
    /// If the future is dropped, the tables may have been made.
    ///
    /// # Errors
    ///
    /// If the URL is malformed, or the database cannot be reached or may not be used.
    pub async fn open(url: &str, clock: Clock) -> Result<Self, QueueError> {
        let opening = "opening the queue";
        let mut config: Config = url.parse().map_err(|why| call_error(opening, why))?;
        // A password in the URL would show in the list of the machine's processes.
        if let (None, Some(password)) = (config.get_password(), std::env::var_os("PGPASSWORD")) {
            config.password(password.as_encoded_bytes());
        }
        let options = config.get_options().unwrap_or_default();
        config
            .options(format!("{options} {PLANS} {VANISHED}"))
            .connect_timeout(CONNECTION_WAIT_MAX)
            .keepalives_idle(SILENCE_MAX)
            .tcp_user_timeout(SILENCE_MAX);
        let recycling = ManagerConfig {
            // The server is not asked before each call whether the connection still works. If the
            // connection has broken, the call fails, and may be repeated.
            recycling_method: RecyclingMethod::Fast,
        };
        let manager = Manager::from_config(config.clone(), NoTls, recycling);
        let pool = Pool::builder(manager)
            .max_size(CONNECTIONS_MAX)
            .wait_timeout(Some(CONNECTION_WAIT_MAX))
            .create_timeout(Some(CONNECTION_WAIT_MAX))
            .runtime(Runtime::Tokio1)
            .build()
            .map_err(|why| QueueError::Storage {
                doing: opening.to_owned(),
                why: Box::new(why),
            })?;
        let changes = Arc::new(watch::Sender::new(()));
        let mut listener = JoinSet::new();
        listener.spawn(listener::listen(config, Arc::clone(&changes)));
        let queue = Self(Arc::new(PostgresState {
            pool,
            clock,
            changes,
            passed: Mutex::default(),
            _listener: listener,
        }));
        attempt!(queue, opening, |client| {
            let transaction = client.transaction().await?;
            // `CREATE TABLE IF NOT EXISTS` of two processes at the same time can fail in one of
            // them.
            let lock = format!("SELECT pg_advisory_xact_lock({SETUP_LOCK})");
            transaction.batch_execute(&lock).await?;
            transaction
                .batch_execute(include_str!("postgres/schema.sql"))
                .await?;
            transaction.commit().await
        })?;
        Ok(queue)
    }

    /// Returns the time that a test has set.
    fn set_time(&self) -> Option<DateTime<Utc>> {
        self.0.clock.manual()
    }

    /// Returns a connection of the pool. `doing` names the call in the error.
    async fn pooled_client(&self, doing: &str) -> Result<Client, QueueError> {
        self.0.pool.get().await.map_err(|why| QueueError::Storage {
            doing: format!("{doing} in PostgreSQL"),
            why: match why {
                // Only the error of PostgreSQL, without the words of the pool: `doing` names the
                // work already.
                PoolError::Backend(why) => Box::new(why),
                why => Box::new(why),
            },
        })
    }

    /// Wakes workers of this process that wait for jobs.
    fn wake_workers(&self) {
        self.0.changes.send_replace(());
    }

    /// Makes the next search begin with the job that has been due for longest.
    fn look_at_all(&self) {
        let mut passed = self.0.passed.lock();
        passed.of.clear();
        passed.generation += 1;
    }

    /// Returns how far the last search has come, if the next search may start there, and the
    /// generation. Another process may free a job before that place: the next poll finds that job.
    fn passed_jobs(&self, namespace: &Namespace) -> (Option<LastLook>, u64) {
        let passed = self.0.passed.lock();
        let now = self.0.clock.now();
        // A clock that has gone back makes the age negative, so that the search counts as old.
        let is_new = |one: &LastLook| (now - one.since).to_std().is_ok_and(|age| age < POLL);
        let of = passed.of.get(namespace).copied().filter(is_new);
        (of, passed.generation)
    }

    /// Makes the next search begin with the first job, if finishes put jobs before the place that
    /// the last search has reached.
    fn look_at_all_if_early(&self, finishes: &[Finish]) {
        let is_early = |finish: &Finish| {
            let passed = self.0.passed.lock();
            let passed = passed.of.get(&finish.token.namespace).copied();
            let due = match finish.next {
                Successor::Again { due, .. } => Some(due.at(self.0.clock.now())),
                Successor::Done => None,
            };
            due.zip(passed)
                .is_some_and(|(due, passed)| due < passed.due)
        };
        if finishes
            .iter()
            .any(|one| !one.also.is_empty() || is_early(one))
        {
            // Before the wake: a woken worker must not pass by the new jobs.
            self.look_at_all();
        }
    }

    fn note_passed(&self, namespace: &Namespace, generation: u64, new: LastLook) {
        let mut passed = self.0.passed.lock();
        if passed.generation == generation {
            passed.of.insert(namespace.clone(), new);
        }
    }
}

impl Queue for Postgres {
    async fn schedule(
        &self,
        jobs: Vec<NewJob>,
        existing: Existing,
    ) -> Result<Vec<ScheduleOutcome>, QueueError> {
        check_count(jobs.len())?;
        jobs.iter().try_for_each(NewJob::check)?;
        let (now, jobs) = (self.set_time(), &jobs);
        let scheduled = attempt!(self, "scheduling jobs", |client| {
            let transaction = client.transaction().await?;
            let scheduled = schedule_in(&transaction, now, jobs, existing).await?;
            transaction.commit().await?;
            Ok(scheduled)
        });
        let scheduled = scheduled?;
        self.look_at_all();
        self.wake_workers();
        Ok(scheduled)
    }

    async fn take(&self, namespace: &Namespace, want: Want) -> Result<TakeOutcome, QueueError> {
        want.check()?;
        let now = self.set_time();
        attempt!(self, "leasing jobs", |client| {
            let (passed, generation) = self.passed_jobs(namespace);
            if let Some(passed) = passed {
                let behind = take_behind(client, now, namespace, want, passed.due).await?;
                if let Some((due, leases)) = behind {
                    // The time of the last search of all jobs stays, so that the next such search
                    // comes within a poll.
                    self.note_passed(namespace, generation, LastLook { due, ..passed });
                    return Ok(TakeOutcome::Leased(leases));
                }
            }
            // Before the search, so that a job that becomes free during the search is passed by for
            // a poll at most.
            let since = self.0.clock.now();
            match take(client, now, namespace, want).await? {
                Err(wait) => Ok(wait),
                Ok((due, leases)) => {
                    self.note_passed(namespace, generation, LastLook { due, since });
                    Ok(TakeOutcome::Leased(leases))
                }
            }
        })
    }

    async fn extend(&self, extensions: Vec<Extension>) -> Result<Vec<TokenStanding>, QueueError> {
        check_count(extensions.len())?;
        extensions
            .iter()
            .filter_map(|one| one.note.as_deref())
            .try_for_each(check_bytes)?;
        let (now, extensions) = (self.set_time(), &extensions);
        // One statement is a transaction by itself, and saves the round trips of `BEGIN` and
        // `COMMIT`.
        let is_one_statement = without_repeats(extensions.iter().map(|one| &one.token)).len() < 2;
        let held = attempt!(self, "extending leases", |client| {
            if is_one_statement {
                return extend_in(&*client, now, extensions).await;
            }
            let transaction = client.transaction().await?;
            let held = extend_in(&transaction, now, extensions).await?;
            transaction.commit().await?;
            Ok(held)
        })?;
        if extensions.iter().any(|one| one.lease < POLL) {
            // So short a lease gives a job back. That job may be due before the place at which the
            // next search starts.
            self.look_at_all();
            self.wake_workers();
        }
        Ok(held)
    }

    async fn finish(&self, finishes: Vec<Finish>) -> Result<Vec<TokenStanding>, QueueError> {
        check_count(finishes.len())?;
        finishes.iter().try_for_each(Finish::check)?;
        let (now, finishes) = (self.set_time(), &finishes);
        let held = attempt!(self, "finishing jobs", |client| {
            if is_one_statement(finishes) {
                return finish_in(&*client, now, finishes).await;
            }
            let transaction = client.transaction().await?;
            let held = finish_in(&transaction, now, finishes).await?;
            transaction.commit().await?;
            Ok(held)
        });
        let held = held?;
        self.look_at_all_if_early(finishes);
        self.wake_workers();
        Ok(held)
    }

    async fn fail(&self, failures: Vec<JobFailure>) -> Result<Vec<FailureOutcome>, QueueError> {
        check_count(failures.len())?;
        let (now, failures) = (self.set_time(), &failures);
        let failed = attempt!(self, "giving jobs back", |client| {
            let statement = client.prepare_cached(statements::FAIL).await?;
            // If a statement has two rows for one job, PostgreSQL applies only one of the two,
            // which may be either. The contract demands the first.
            let first = first_of_each(failures, |one| &one.token);
            let (names, keys, tokens) = token_columns(first.iter().map(|one| &one.token));
            let attempts: Vec<i64> = first.iter().map(|one| one.attempts.into()).collect();
            let reasons: Vec<String> = first.iter().map(|one| one.reason()).collect();
            let (at, after) = due_columns(first.iter().map(|one| one.retry));
            let rows = client
                .query(
                    &statement,
                    &[
                        &now, &names, &keys, &tokens, &attempts, &reasons, &at, &after,
                    ],
                )
                .await?;
            let mut changed = JobChanges::default();
            changed.add(rows);
            let outcome = |failure: &JobFailure| match changed.take(&failure.token) {
                None => FailureOutcome::Lost,
                Some(true) => FailureOutcome::Dead,
                Some(false) => FailureOutcome::Waits,
            };
            Ok(failures.iter().map(outcome).collect())
        });
        let failed = failed?;
        self.look_at_all();
        self.wake_workers();
        Ok(failed)
    }

    async fn dead(
        &self,
        namespace: &Namespace,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<Dead>, QueueError> {
        check_count(limit)?;
        // No key is empty, so every key comes after the empty one.
        let (name, after, limit) = (namespace.as_str(), after.unwrap_or_default(), long(limit));
        attempt!(self, "listing dead jobs", |client| {
            let statement = client.prepare_cached(statements::DEAD).await?;
            let rows = client.query(&statement, &[&name, &after, &limit]).await?;
            let dead = |row: &Row| {
                let failures: i32 = row.get(4);
                let job = Job {
                    key: row.get(0),
                    payload: row.get(1),
                    note: row.get(2),
                    slot: row.get(3),
                    failures: u32::try_from(failures).unwrap_or_default(),
                };
                Dead {
                    job,
                    reason: row.get(5),
                }
            };
            Ok(rows.iter().map(dead).collect())
        })
    }

    async fn retry(&self, namespace: &Namespace, keys: Vec<String>) -> Result<usize, QueueError> {
        check_count(keys.len())?;
        let (now, name, keys) = (self.set_time(), namespace.as_str(), &keys);
        let retried = attempt!(self, "retrying dead jobs", |client| {
            let transaction = client.transaction().await?;
            let statement = transaction.prepare_cached(statements::RETRY).await?;
            let retried = transaction
                .execute(&statement, &[&now, &name, keys])
                .await?;
            // The jobs are due now. PostgreSQL sends the notification with the commit.
            transaction.batch_execute(listener::NOTIFY).await?;
            transaction.commit().await?;
            Ok(retried)
        });
        let retried = retried?;
        self.look_at_all();
        self.wake_workers();
        Ok(usize::try_from(retried).unwrap_or(usize::MAX))
    }

    async fn remove(&self, namespace: &Namespace, keys: Vec<String>) -> Result<usize, QueueError> {
        check_count(keys.len())?;
        let (name, keys) = (namespace.as_str(), &keys);
        let removed = attempt!(self, "removing jobs", |client| {
            let statement = client.prepare_cached(statements::REMOVE).await?;
            client.execute(&statement, &[&name, keys]).await
        });
        Ok(usize::try_from(removed?).unwrap_or(usize::MAX))
    }

    async fn bring_forward(
        &self,
        namespace: &Namespace,
        due: Duration,
        lease: Duration,
    ) -> Result<usize, QueueError> {
        let (now, name) = (self.set_time(), namespace.as_str());
        let changed = attempt!(self, "bringing jobs forward", |client| {
            let transaction = client.transaction().await?;
            let changed = bring_forward_in(&transaction, now, name, due, lease).await?;
            transaction.commit().await?;
            Ok(changed)
        })?;
        if changed > 0 {
            self.look_at_all();
            self.wake_workers();
        }
        Ok(usize::try_from(changed).unwrap_or(usize::MAX))
    }

    async fn stats(&self, namespace: &Namespace) -> Result<Stats, QueueError> {
        let (now, name) = (self.set_time(), namespace.as_str());
        let row = attempt!(self, "counting jobs", |client| {
            let statement = client.prepare_cached(statements::STATS).await?;
            client.query_one(&statement, &[&now, &name]).await
        });
        let row = row?;
        // No count of PostgreSQL is negative.
        let count = |index: usize| u64::try_from(row.get::<_, i64>(index)).unwrap_or_default();
        Ok(Stats {
            waiting: count(0),
            due: count(1),
            leased: count(2),
            dead: count(3),
            oldest_due: row.get(4),
            next_due: row.get(5),
        })
    }

    async fn reserve(
        &self,
        credential: &str,
        requests: u32,
        limit: Limit,
    ) -> Result<Reservation, QueueError> {
        let now = self.set_time();
        let reserved = attempt!(self, "reserving requests", |client| {
            let transaction = client.transaction().await?;
            let reserve = |bucket: &mut Bucket, at| bucket.reserve(at, requests, limit);
            let reserved = with_bucket(&transaction, now, credential, reserve).await?;
            transaction.commit().await?;
            Ok(reserved)
        });
        reserved?
    }

    async fn report(&self, credential: &str, report: QuotaReport) -> Result<(), QueueError> {
        let now = self.set_time();
        attempt!(self, "noting a quota", |client| {
            let transaction = client.transaction().await?;
            let note = |bucket: &mut Bucket, at| bucket.report(at, report);
            with_bucket(&transaction, now, credential, note).await?;
            transaction.commit().await
        })
    }

    async fn now(&self) -> Result<DateTime<Utc>, QueueError> {
        let now = self.set_time();
        let row = attempt!(self, "asking for the time", |client| {
            client.query_one(statements::NOW, &[&now]).await
        });
        Ok(row?.get(0))
    }

    fn changes(&self) -> watch::Receiver<()> {
        self.0.changes.subscribe()
    }

    fn clock(&self) -> &Clock {
        &self.0.clock
    }

    fn poll(&self) -> Duration {
        POLL
    }
}
