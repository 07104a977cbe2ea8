//! Random calls: every keeper answers as the model does.

use std::{ops::Range, path::Path, time::Duration};

use chrono::{DateTime, Utc};
use proptest::{prelude::*, test_runner::TestRunner};
use simplefeed_queue::{
    Due, Existing, Extension, Finish, JobFailure, Lease, LeaseToken, Limit, Manual, Namespace,
    NewJob, Queue, QueueError, QuotaReport, Successor, TakeOutcome, Want, model::Model, redb::Redb,
};

use crate::{beginning, postgres::Server};

/// Keys of a namespace.
const KEYS: u8 = 6;
/// Seconds of the longest lease.
const LEASE_MAX: u32 = 40;

/// A token, when its job comes again and with what payload, and a key that is scheduled with it.
type Chosen = (usize, Option<(u32, Option<u8>)>, Option<u8>);

/// A call, or time that passes. Indexes choose among what there is.
#[derive(Clone, Debug)]
enum Step {
    Pass(u32),
    /// Ends the keeper and opens it again, after all leases have expired.
    Reopen,
    Schedule {
        jobs: Vec<(u8, bool, u32)>,
        existing: Existing,
    },
    Take {
        other: bool,
        max: usize,
        buffer: u32,
        lease: u32,
    },
    Extend(Vec<(usize, u32, Option<u8>)>),
    Finish(Vec<Chosen>),
    Fail(Vec<(usize, u32, u32)>),
    Retry(Vec<u8>),
    Remove(Vec<u8>),
    Reserve(u32),
    Report {
        pause: Option<u32>,
        remaining: Option<(u32, u32)>,
    },
    Look,
}

fn steps(max: Range<usize>) -> impl Strategy<Value = Vec<Step>> {
    let key = || 0..KEYS;
    let existing = prop_oneof![Just(Existing::Keep), Just(Existing::Move)];
    let next = prop::option::weighted(0.7, (0_u32..30, prop::option::of(0_u8..5)));
    let step = prop_oneof![
        6 => (0_u32..25).prop_map(Step::Pass),
        1 => Just(Step::Reopen),
        4 => (prop::collection::vec((key(), any::<bool>(), 0_u32..30), 1..5), existing)
            .prop_map(|(jobs, existing)| Step::Schedule { jobs, existing }),
        8 => (prop::bool::weighted(0.2), max, 0_u32..20, 1..LEASE_MAX)
            .prop_map(|(other, max, buffer, lease)| Step::Take { other, max, buffer, lease }),
        3 => prop::collection::vec((0_usize..20, 1..LEASE_MAX, prop::option::of(0_u8..5)), 1..4)
            .prop_map(Step::Extend),
        4 => prop::collection::vec((0_usize..20, next, prop::option::of(key())), 1..4)
            .prop_map(Step::Finish),
        3 => prop::collection::vec((0_usize..20, 0_u32..20, 1_u32..4), 1..3).prop_map(Step::Fail),
        1 => prop::collection::vec(key(), 1..4).prop_map(Step::Retry),
        1 => prop::collection::vec(key(), 1..3).prop_map(Step::Remove),
        1 => (1_u32..3).prop_map(Step::Reserve),
        1 => (prop::option::of(0_u32..50), prop::option::of((0_u32..3, 0_u32..50)))
            .prop_map(|(pause, remaining)| Step::Report { pause, remaining }),
        2 => Just(Step::Look),
    ];
    prop::collection::vec(step, 1..60)
}

fn seconds(seconds: u32) -> Duration {
    Duration::from_secs(seconds.into())
}

/// The model and a keeper beside each other.
struct Pair<Q> {
    model: Model,
    queue: Q,
    clock: Manual,
    names: [Namespace; 2],
    /// Tokens of the model and of the keeper, with the jobs' keys.
    tokens: Vec<(LeaseToken, LeaseToken)>,
    /// Microseconds that no due time has yet.
    fraction: u64,
}

impl<Q: Queue> Pair<Q> {
    fn new(queue: Q, clock: Manual) -> Self {
        let names = ["one", "two"].map(|name| Namespace::new(name).unwrap());
        Self {
            model: Model::default(),
            queue,
            clock,
            names,
            tokens: Vec::new(),
            fraction: 0,
        }
    }

    /// Returns a span that makes a due time another one than all others: jobs that are due at one time come in any order.
    fn span(&mut self, whole: u32) -> Duration {
        self.fraction += 1;
        seconds(whole) + Duration::from_micros(self.fraction)
    }

    fn now(&self) -> DateTime<Utc> {
        self.clock.now()
    }

    /// Returns the tokens that an index chooses: newer ones for smaller indexes.
    fn tokens(&self, index: usize) -> Option<(LeaseToken, LeaseToken)> {
        self.tokens.iter().rev().nth(index).cloned()
    }

    fn job(&mut self, key: u8, other: bool, due: u32) -> NewJob {
        let due = if key.is_multiple_of(2) {
            Due::After(self.span(due))
        } else {
            Due::At(beginning() + self.span(due * 4))
        };
        NewJob::new(&self.names[usize::from(other)], key.to_string(), due).payload([key])
    }

    async fn take(&mut self, other: bool, want: Want) {
        let name = &self.names[usize::from(other)];
        let theirs = self.model.take(self.clock.now(), name, want).unwrap();
        let ours = self.queue.take(name, want).await.unwrap();
        match (theirs, ours) {
            (TakeOutcome::Leased(theirs), TakeOutcome::Leased(ours)) => {
                let jobs = |leases: &[Lease]| {
                    let one = |lease: &Lease| (lease.job.clone(), lease.leased, lease.until);
                    let mut jobs: Vec<_> = leases.iter().map(one).collect();
                    jobs.sort_by(|one, other| one.0.key.cmp(&other.0.key));
                    jobs
                };
                assert_eq!(jobs(&ours), jobs(&theirs));
                for lease in theirs {
                    let same = ours
                        .iter()
                        .find(|ours| ours.job.key == lease.job.key)
                        .unwrap();
                    self.tokens.push((lease.token, same.token.clone()));
                }
            }
            (TakeOutcome::Wait { next: theirs, .. }, TakeOutcome::Wait { next: ours, now }) => {
                assert_eq!(now, self.now());
                // A keeper may look too early, but never too late.
                let is_never = |next: Option<DateTime<Utc>>| next.is_none();
                assert_eq!(is_never(ours), is_never(theirs));
                assert!(ours <= theirs, "{ours:?} {theirs:?}");
            }
            (theirs, ours) => panic!("{ours:?} in place of {theirs:?}"),
        }
    }

    async fn finish(&mut self, chosen: Vec<Chosen>) {
        let (mut theirs, mut ours) = (Vec::new(), Vec::new());
        for (index, next, also) in chosen {
            let Some((their, our)) = self.tokens(index) else {
                continue;
            };
            let next = next.map_or(Successor::Done, |(due, payload)| Successor::Again {
                due: Due::After(self.span(due)),
                payload: payload.map(|byte| vec![byte; 3]),
            });
            let also: Vec<_> = also
                .map(|key| self.job(key, key.is_multiple_of(3), 3))
                .into_iter()
                .collect();
            theirs.push(Finish {
                token: their,
                next: next.clone(),
                also: also.clone(),
            });
            ours.push(Finish {
                token: our,
                next,
                also,
            });
        }
        let now = self.now();
        let theirs = self.model.finish(now, theirs).unwrap();
        assert_eq!(self.queue.finish(ours).await.unwrap(), theirs);
    }

    async fn extend(&mut self, chosen: Vec<(usize, u32, Option<u8>)>) {
        let (mut theirs, mut ours) = (Vec::new(), Vec::new());
        for (index, lease, note) in chosen {
            let Some((their, our)) = self.tokens(index) else {
                continue;
            };
            let (lease, note) = (seconds(lease), note.map(|byte| vec![byte; 2]));
            theirs.push(Extension {
                token: their,
                lease,
                note: note.clone(),
            });
            ours.push(Extension {
                token: our,
                lease,
                note,
            });
        }
        let now = self.now();
        let theirs = self.model.extend(now, theirs).unwrap();
        assert_eq!(self.queue.extend(ours).await.unwrap(), theirs);
    }

    async fn fail(&mut self, chosen: Vec<(usize, u32, u32)>) {
        let (mut theirs, mut ours) = (Vec::new(), Vec::new());
        for (index, retry, attempts) in chosen {
            let Some((their, our)) = self.tokens(index) else {
                continue;
            };
            let span = self.span(retry);
            let failure = |token| JobFailure {
                token,
                retry: Due::After(span),
                attempts,
                reason: format!("{retry}"),
            };
            theirs.push(failure(their));
            ours.push(failure(our));
        }
        let now = self.now();
        let theirs = self.model.fail(now, &theirs).unwrap();
        assert_eq!(self.queue.fail(ours).await.unwrap(), theirs);
    }

    async fn look(&mut self) {
        let now = self.now();
        for name in &self.names {
            assert_eq!(
                self.queue.stats(name).await.unwrap(),
                self.model.stats(now, name)
            );
            let theirs = self.model.dead(name, Some("1"), 3).unwrap();
            assert_eq!(self.queue.dead(name, Some("1"), 3).await.unwrap(), theirs);
        }
    }

    async fn step(&mut self, step: Step) {
        let now = self.now();
        let keys = |keys: Vec<u8>| keys.iter().map(u8::to_string).collect::<Vec<_>>();
        match step {
            Step::Pass(time) => self.clock.advance(seconds(time)),
            Step::Reopen => self.clock.advance(seconds(LEASE_MAX)),
            Step::Schedule { jobs, existing } => {
                let job = |(key, other, due)| self.job(key, other, due);
                let jobs: Vec<NewJob> = jobs.into_iter().map(job).collect();
                let theirs = self.model.schedule(now, jobs.clone(), existing).unwrap();
                assert_eq!(self.queue.schedule(jobs, existing).await.unwrap(), theirs);
            }
            Step::Take {
                other,
                max,
                buffer,
                lease,
            } => {
                let want = Want {
                    max,
                    buffer: seconds(buffer),
                    lease: seconds(lease),
                };
                self.take(other, want).await;
            }
            Step::Extend(chosen) => self.extend(chosen).await,
            Step::Finish(chosen) => self.finish(chosen).await,
            Step::Fail(chosen) => self.fail(chosen).await,
            Step::Retry(chosen) => {
                // In a call of its own each, since those of one call are due at one time.
                for key in keys(chosen) {
                    let span = self.span(0);
                    self.clock.advance(span);
                    let (now, keys) = (self.now(), vec![key]);
                    let theirs = self.model.retry(now, &self.names[0], &keys).unwrap();
                    let ours = self.queue.retry(&self.names[0], keys).await.unwrap();
                    assert_eq!(ours, theirs);
                }
            }
            Step::Remove(chosen) => {
                let keys = keys(chosen);
                let theirs = self.model.remove(&self.names[0], &keys).unwrap();
                assert_eq!(
                    self.queue.remove(&self.names[0], keys).await.unwrap(),
                    theirs
                );
            }
            Step::Reserve(requests) => {
                let limit = Limit {
                    requests: 20,
                    window: seconds(60),
                };
                let theirs = self.model.reserve(now, "key", requests, limit).unwrap();
                let ours = self.queue.reserve("key", requests, limit).await.unwrap();
                assert_eq!(ours, theirs);
            }
            Step::Report { pause, remaining } => {
                let report = QuotaReport {
                    pause: pause.map(seconds),
                    remaining: remaining.map(|(count, reset)| (count, seconds(reset))),
                };
                self.model.report(now, "key", report);
                self.queue.report("key", report).await.unwrap();
            }
            Step::Look => self.look().await,
        }
    }
}

/// Opens a file that an ended queue may still be closing.
async fn open(path: &Path, clock: &Manual) -> Redb {
    loop {
        match Redb::open(path, clock.clone().into()) {
            Ok(queue) => return queue,
            Err(QueueError::InUse(_)) => tokio::task::yield_now().await,
            Err(error) => panic!("{error}"),
        }
    }
}

/// Runs the steps of random cases, twenty times as many in the long form.
fn run_cases(cases: u32, steps: impl Strategy<Value = Vec<Step>>, run: impl Fn(Vec<Step>)) {
    let is_long = std::env::var_os("SIMPLEFEED_TESTS_LONG").is_some();
    let config = ProptestConfig {
        cases: if is_long { 20 * cases } else { cases },
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    let tried = TestRunner::new(config).run(&steps, |steps| {
        run(steps);
        Ok(())
    });
    tried.unwrap();
}

/// A file that is closed and opened again has what was answered for, and no token of before is valid.
#[test]
fn redb_answers_as_the_model() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    run_cases(200, steps(1..usize::from(KEYS)), |steps| {
        runtime.block_on(async {
            let clock = Manual::new(beginning());
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("queue");
            let mut pair = Pair::new(open(&path, &clock).await, clock.clone());
            for step in steps {
                let is_reopening = matches!(step, Step::Reopen);
                pair.step(step).await;
                if is_reopening {
                    let Pair {
                        model,
                        queue,
                        clock,
                        names,
                        tokens,
                        fraction,
                    } = pair;
                    drop(queue);
                    let queue = open(&path, &clock).await;
                    pair = Pair {
                        model,
                        queue,
                        clock,
                        names,
                        tokens,
                        fraction,
                    };
                }
            }
            pair.look().await;
        });
    });
}

/// All keys fit into a batch: which of several expired leases comes first is PostgreSQL's own matter.
#[test]
#[ignore = "needs PostgreSQL"]
fn postgres_answers_as_the_model() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let server = runtime.block_on(Server::start());
    let schema = std::cell::Cell::new(0);
    run_cases(
        60,
        steps(usize::from(KEYS)..usize::from(KEYS) + 1),
        |steps| {
            runtime.block_on(async {
                schema.set(schema.get() + 1);
                let clock = Manual::new(beginning());
                let queue = server
                    .queue(&format!("case_{}", schema.get()), &clock)
                    .await;
                let mut pair = Pair::new(queue, clock);
                for step in steps {
                    pair.step(step).await;
                }
                pair.look().await;
            });
        },
    );
}
