//! Handlers that fail in every way, under every policy.
//!
//! The feed is 1 to 5, in three documents; odd and even numbers are the keys.

use std::{
    cell::Cell,
    fs,
    path::Path,
    sync::{Arc, Mutex},
};

use tokio::sync::Notify;

use super::*;
use crate::{
    consumer::tests::{Web, builder, chain},
    files::end,
    observer::Observer,
};

mod interrupted;
mod several;

/// How a handler fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Error,
    Hang,
    Panic,
    /// It takes the process with it.
    Kill,
}

use Fault::{Error as Fails, Hang, Kill, Panic};

/// A worker's world: a feed, a folder, and a handler with a fault.
struct Scene {
    web: Arc<Web>,
    folder: tempfile::TempDir,
    fault: Fault,
    /// The entries at which it fails.
    at: &'static [u32],
    /// How often it fails at each before it does not any more.
    times: usize,
    /// The entries that the handler began, in order.
    begun: Arc<Mutex<Vec<u32>>>,
    /// Told when the handler takes the process with it.
    killed: Notify,
}

/// Is told and does not listen.
struct Quiet;

impl Observer for Quiet {}

/// What a scene came to.
#[derive(Debug, PartialEq, Eq)]
struct Found {
    begun: Vec<u32>,
    /// Number, whether it only waits, attempts.
    parked: Vec<(u32, bool, u32)>,
    /// What became of which, after how many attempts.
    record: Vec<(String, u32, u32)>,
}

/// Waits for `work`. Once `stop` is ready, its process is killed, which writes nothing more, and the result is `None`.
async fn before<T>(
    stop: Pin<&mut impl FusedFuture<Output = ()>>,
    work: impl Future<Output = T>,
) -> Option<T> {
    let mut work = Box::pin(work);
    let done = tokio::select! {
        biased;
        () = stop => None,
        done = &mut work => Some(done),
    };
    if done.is_none() {
        end::after(Some(0));
    }
    drop(work);
    end::after(None);
    done
}

/// Waits for `work` as long as its process lives, as [`before`] does.
async fn within<T>(life: Duration, work: impl Future<Output = T>) -> Option<T> {
    before(pin!(time::sleep(life).fuse()), work).await
}

fn number(delivery: &Delivery) -> u32 {
    delivery.id().strip_prefix("urn:").unwrap().parse().unwrap()
}

fn parity(delivery: &Delivery) -> String {
    (number(delivery) % 2).to_string()
}

fn record(folder: &Path) -> Vec<serde_json::Value> {
    let text = fs::read_to_string(folder.join("record.ndjson")).unwrap_or_default();
    let lines = text.lines();
    lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

impl Scene {
    fn new(fault: Fault, at: &'static [u32], times: usize) -> Self {
        let web = Arc::new(Web::default());
        chain(&web);
        Self {
            web,
            folder: tempfile::tempdir().unwrap(),
            fault,
            at,
            times,
            begun: Arc::default(),
            killed: Notify::new(),
        }
    }

    fn worker(&self, policy: Policy) -> Worker {
        let state = StateFolder::open(self.folder.path()).unwrap();
        let worker = Worker::new(builder(&self.web), state).unwrap();
        worker
            .policy(policy)
            .attempts(NonZeroU32::new(2).unwrap())
            .attempt_time(Duration::from_secs(10))
            .key(|delivery| Some(parity(delivery)))
    }

    /// Does what the handler does with one entry; waits for ever to be killed or to be given up.
    async fn handle(&self, delivery: &Delivery) -> Result<(), HandlerError> {
        let number = number(delivery);
        self.begun.lock().unwrap().push(number);
        let begun = self.begun.lock().unwrap().clone();
        let tried = begun.iter().filter(|begun| **begun == number).count();
        if !self.at.contains(&number) || tried > self.times {
            return Ok(());
        }
        match self.fault {
            Fails => Err("it is broken".into()),
            Panic => panic!("at {number}"),
            Hang => pending().await,
            Kill => {
                self.killed.notify_one();
                pending().await
            }
        }
    }

    /// Runs to the end; where the handler takes the process with it, another one goes on.
    async fn run(&self, policy: Policy) -> Found {
        loop {
            let mut worker = self.worker(policy);
            let whole = worker.run(async |delivery| self.handle(&delivery).await);
            if before(pin!(self.killed.notified().fuse()), whole)
                .await
                .is_some()
            {
                break;
            }
        }
        self.found()
    }

    fn found(&self) -> Found {
        let parked = crate::state::parked::list(self.folder.path()).unwrap();
        let record = record(self.folder.path()).into_iter().map(|line| {
            let text = |name: &str| line[name].as_str().unwrap().to_owned();
            let attempts = u32::try_from(line["attempts"].as_u64().unwrap()).unwrap();
            let id = text("id").strip_prefix("urn:").unwrap().parse().unwrap();
            (text("what"), id, attempts)
        });
        Found {
            begun: self.begun.lock().unwrap().clone(),
            parked: parked
                .iter()
                .map(|one| (number(&one.delivery()), one.waits, one.attempts))
                .collect(),
            record: record.collect(),
        }
    }
}

#[track_caller]
fn check(found: &Found, begun: &[u32], parked: &[(u32, bool, u32)], record: &[(&str, u32, u32)]) {
    let record: Vec<_> = record
        .iter()
        .map(|(what, id, attempts)| ((*what).to_owned(), *id, *attempts))
        .collect();
    let want = Found {
        begun: begun.to_vec(),
        parked: parked.to_vec(),
        record,
    };
    assert_eq!(*found, want);
}

/// Block: it is tried until it succeeds; nothing behind it is begun before.
#[tokio::test(start_paused = true)]
async fn who_blocks_never_passes() {
    for fault in [Fails, Hang, Panic, Kill] {
        let scene = Scene::new(fault, &[2], 3);
        let found = scene.run(Policy::Block).await;
        check(&found, &[1, 2, 2, 2, 2, 3, 4, 5], &[], &[]);
        assert_eq!(scene.run(Policy::Block).await.begun.len(), 8, "{fault:?}");
    }
}

/// Skip: it is tried so often, recorded, and passed over.
#[tokio::test(start_paused = true)]
async fn who_skips_records_it() {
    for (fault, why) in [
        (Fails, "it is broken"),
        (Hang, "it took longer than 10s"),
        (Panic, "it panicked: at 5"),
        (Kill, "the process ended during it"),
    ] {
        let scene = Scene::new(fault, &[2, 5], usize::MAX);
        let found = scene.run(Policy::Skip).await;
        let skipped = [("skipped", 2, 2), ("skipped", 5, 2)];
        check(&found, &[1, 2, 2, 3, 4, 5, 5], &[], &skipped);
        assert_eq!(record(scene.folder.path())[1]["why"], why);
        // It is never begun again.
        assert_eq!(scene.run(Policy::Skip).await, found, "{fault:?}");
    }
}

/// Park: it is tried so often and set aside; the others go on.
#[tokio::test(start_paused = true)]
async fn who_parks_sets_it_aside() {
    for fault in [Fails, Hang, Panic, Kill] {
        let scene = Scene::new(fault, &[2], usize::MAX);
        let found = scene.run(Policy::Park).await;
        let parked = [(2, false, 2)];
        check(&found, &[1, 2, 2, 3, 4, 5], &parked, &[("parked", 2, 2)]);
        assert_eq!(scene.run(Policy::Park).await, found, "{fault:?}");
    }
}

/// Park by key: what comes later with the same key waits behind it, across restarts.
#[tokio::test(start_paused = true)]
async fn who_parks_by_key_keeps_the_order_within_each_key() {
    for fault in [Fails, Hang, Panic, Kill] {
        let scene = Scene::new(fault, &[1], usize::MAX);
        let found = scene.run(Policy::ParkByKey).await;
        let parked = [(1, false, 2), (3, true, 0), (5, true, 0)];
        let record = [("parked", 1, 2), ("waits", 3, 0), ("waits", 5, 0)];
        check(&found, &[1, 1, 2, 4], &parked, &record);

        // Parked entries are taken up again in their order; while the first fails, the others wait.
        let state = StateFolder::open(scene.folder.path()).unwrap();
        let retried = try_all(&state, &|number| number == 1).await;
        assert_eq!(
            retried,
            (
                vec![1],
                RetryTally {
                    failed: 1,
                    waiting: 2,
                    ..RetryTally::default()
                }
            )
        );
        assert_eq!(
            scene.found().parked,
            [(1, false, 3), (3, true, 0), (5, true, 0)]
        );
        let retried = try_all(&state, &|number| number == 5).await;
        let two = RetryTally {
            handled: 2,
            failed: 1,
            waiting: 0,
        };
        assert_eq!(retried, (vec![1, 3, 5], two));
        assert_eq!(scene.found().parked, [(5, false, 1)]);
        let retried = try_all(&state, &|_| false).await;
        assert_eq!(retried.0, [5]);
        assert!(scene.found().parked.is_empty());
        let told = scene.found().record;
        assert_eq!(
            told.iter().filter(|(what, ..)| what == "retried").count(),
            3
        );
    }
}

/// Hands all that is parked to a handler that fails at some; returns what was tried, and the count.
async fn try_all(state: &StateFolder, fails: &dyn Fn(u32) -> bool) -> (Vec<u32>, RetryTally) {
    let mut quiet = Quiet;
    let mut tried = vec![];
    let time = Duration::from_secs(1);
    let retried = retry(
        state,
        |_| true,
        time,
        &mut quiet,
        |delivery| {
            tried.push(number(&delivery));
            let fails = fails(number(&delivery));
            async move { if fails { Err("again".into()) } else { Ok(()) } }
        },
    );
    let retried = retried.await.unwrap();
    (tried, retried)
}

/// A retry of one that waits behind another tries neither.
#[tokio::test(start_paused = true)]
async fn nobody_overtakes_within_a_key() {
    let scene = Scene::new(Fails, &[1], usize::MAX);
    scene.run(Policy::ParkByKey).await;
    let state = StateFolder::open(scene.folder.path()).unwrap();
    let mut quiet = Quiet;
    let wanted = |parked: &ParkedEntry| number(&parked.delivery()) == 5;
    let retried = retry(
        &state,
        wanted,
        Duration::from_secs(1),
        &mut quiet,
        async |_| panic!("nothing may be tried"),
    );
    let waiting = RetryTally {
        waiting: 1,
        ..RetryTally::default()
    };
    assert_eq!(retried.await.unwrap(), waiting);
    // Who drops the first frees the second.
    let first = &state.parked().unwrap()[0];
    drop_parked(&state, first, "a test order").unwrap();
    let last = record(scene.folder.path()).pop().unwrap();
    assert_eq!(
        (&last["what"], &last["why"]),
        (&"dropped".into(), &"a test order".into())
    );
    assert_eq!(try_all(&state, &|_| false).await.0, [3, 5]);
}

/// Goal: whatever instant a process ends at, no entry is lost, none that is done with is begun again but the
/// last, and none is parked twice.
/// Method: it ends at each of the writes of a whole run, which is what the disk looks like then.
#[tokio::test(start_paused = true)]
async fn an_end_at_any_write_loses_nothing() {
    for policy in [Policy::Block, Policy::Skip, Policy::Park, Policy::ParkByKey] {
        let times = if policy == Policy::Block {
            2
        } else {
            usize::MAX
        };
        for writes in 0..24 {
            let scene = Scene::new(Fails, &[2, 3], times);
            let mut worker = scene.worker(policy);
            end::after(Some(writes));
            let ended = worker.run(async |delivery| scene.handle(&delivery).await);
            let ended = ended.await.is_err();
            end::after(None);
            drop(worker);
            let before = scene.begun.lock().unwrap().len();
            let found = scene.run(policy).await;

            let done: Vec<u32> = (1..=5)
                .filter(|number| {
                    let parked = found.parked.iter().any(|(parked, ..)| parked == number);
                    let skipped = found.record.iter().any(|(_, id, _)| id == number);
                    let failing = scene.at.contains(number) && times == usize::MAX;
                    parked || skipped || (!failing && found.begun.contains(number))
                })
                .collect();
            assert_eq!(done, [1, 2, 3, 4, 5], "{policy}, {writes}: {found:?}");
            let mut numbers: Vec<u32> = found.parked.iter().map(|(number, ..)| *number).collect();
            numbers.dedup();
            assert_eq!(
                numbers.len(),
                found.parked.len(),
                "{policy}, {writes}: {found:?}"
            );
            // Only the one in hand when it ended may be begun once more.
            let again = found.begun.get(before).copied();
            // What became of each stands in the record.
            let parked = found.parked.iter().map(|(number, ..)| number);
            for number in parked {
                let recorded = found.record.iter().any(|(_, id, _)| id == number);
                assert!(recorded, "{policy}, {writes}: {found:?}");
            }
            for number in [1, 4, 5] {
                let begun = found.begun.iter().filter(|begun| **begun == number).count();
                let most = 1 + usize::from(ended && again == Some(number));
                assert!(begun <= most, "{policy}, {writes}: {found:?}");
            }
        }
    }
}

/// Goal: the same for what is taken up again: nothing that is parked is lost, and nothing that the handler took
/// comes again but the last.
#[tokio::test(start_paused = true)]
async fn an_end_while_retrying_loses_nothing() {
    for writes in 0..12 {
        let scene = Scene::new(Fails, &[1], usize::MAX);
        scene.run(Policy::ParkByKey).await;
        let state = StateFolder::open(scene.folder.path()).unwrap();
        let (mut tried, mut quiet) = (vec![], Quiet);
        end::after(Some(writes));
        let time = Duration::from_secs(1);
        let ended = retry(
            &state,
            |_| true,
            time,
            &mut quiet,
            |delivery| {
                tried.push(number(&delivery));
                async { Ok(()) }
            },
        );
        let ended = ended.await.is_err();
        end::after(None);
        drop(state);
        let state = StateFolder::open(scene.folder.path()).unwrap();
        let (again, _) = try_all(&state, &|_| false).await;
        let last = tried.last().copied().filter(|_| ended);
        let twice: Vec<u32> = again
            .iter()
            .copied()
            .filter(|n| tried.contains(n))
            .collect();
        assert!(
            twice.is_empty() || twice == [last.unwrap()],
            "{writes}: {tried:?} {again:?}"
        );
        tried.extend(again.iter().filter(|number| !twice.contains(number)));
        assert_eq!(tried, [1, 3, 5], "{writes}");
        assert!(scene.found().parked.is_empty());
    }
}

/// What was set aside right before the process ended does not come again once it is dropped.
#[tokio::test(start_paused = true)]
async fn what_was_given_up_is_done_with() {
    let scene = Scene::new(Fails, &[2], usize::MAX);
    let mut worker = scene.worker(Policy::Park);
    // The beginning, the bookmark before each of two entries and before the second attempt, the record, the parked
    // entry.
    end::after(Some(6));
    let ended = worker.run(async |delivery| scene.handle(&delivery).await);
    assert!(ended.await.is_err());
    end::after(None);
    drop(worker);
    assert_eq!(scene.found().parked, [(2, false, 2)]);
    let state = StateFolder::open(scene.folder.path()).unwrap();
    let parked = &state.parked().unwrap()[0];
    drop_parked(&state, parked, "a test").unwrap();
    drop(state);
    let found = scene.run(Policy::Park).await;
    assert_eq!(
        (found.begun, found.parked),
        (vec![1, 2, 2, 3, 4, 5], vec![])
    );
}

/// A worker may be run again: what it had in hand when it stopped, or failed to write, comes first.
#[tokio::test(start_paused = true)]
async fn a_worker_can_be_run_again() {
    let scene = Scene::new(Fails, &[2], 2);
    let mut worker = scene.worker(Policy::Block);
    let stop = time::sleep(Duration::from_millis(500));
    let tally = worker.run_until(stop, async |delivery| scene.handle(&delivery).await);
    assert_eq!(tally.await.unwrap().handled, 1);
    for writes in [0, 1, 2] {
        end::after(Some(writes));
        let ended = worker.run(async |delivery| scene.handle(&delivery).await);
        assert!(ended.await.is_err());
        end::after(None);
    }
    let tally = worker.run(async |delivery| scene.handle(&delivery).await);
    tally.await.unwrap();
    let mut begun = scene.found().begun;
    begun.dedup();
    assert_eq!(begun, [1, 2, 3, 4, 5]);
}

/// The record tells how the last attempt ended, not the one before it.
#[tokio::test(start_paused = true)]
async fn a_kill_after_a_failure_is_told_as_a_kill() {
    let scene = Scene::new(Kill, &[2], usize::MAX);
    let first = Cell::new(true);
    let mut worker = scene.worker(Policy::Skip);
    let killed = pin!(scene.killed.notified().fuse());
    let run = worker.run(async |delivery| {
        if number(&delivery) == 2 && first.take() {
            return Err("it is broken".into());
        }
        scene.handle(&delivery).await
    });
    assert!(before(killed, run).await.is_none());
    drop(worker);
    scene.run(Policy::Skip).await;
    assert_eq!(record(scene.folder.path())[0]["why"], CUT_SHORT);
}

/// What a crash has left of a line does not spoil the next one.
#[tokio::test(start_paused = true)]
async fn a_torn_line_stays_alone() {
    let scene = Scene::new(Fails, &[2], usize::MAX);
    // What makes a folder a state folder.
    fs::create_dir(scene.folder.path().join("parked")).unwrap();
    let path = scene.folder.path().join("record.ndjson");
    fs::write(&path, "{\"at\":\"2026").unwrap();
    scene
        .worker(Policy::Skip)
        .run(async |delivery| scene.handle(&delivery).await)
        .await
        .unwrap();
    let text = fs::read_to_string(path).unwrap();
    let last: serde_json::Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    assert_eq!(last["id"], "urn:2");
}

/// A key that cannot be told is none.
#[tokio::test(start_paused = true)]
async fn a_key_that_panics_stops_nobody() {
    let scene = Scene::new(Fails, &[2], usize::MAX);
    let worker = scene.worker(Policy::ParkByKey);
    let mut worker = worker.key(|delivery| {
        assert_ne!(number(delivery), 2, "no key");
        Some(parity(delivery))
    });
    worker
        .run(async |delivery| scene.handle(&delivery).await)
        .await
        .unwrap();
    assert_eq!(scene.found().parked, [(2, false, 2)]);
}

/// A second worker does not get the folder.
#[tokio::test(start_paused = true)]
async fn a_folder_has_one_user() {
    let scene = Scene::new(Fails, &[], 0);
    let first = scene.worker(Policy::Block);
    let second = StateFolder::open(scene.folder.path()).unwrap_err();
    let own = std::process::id().to_string();
    assert!(second.to_string().contains(&own), "{second}");
    drop(first);
    scene.worker(Policy::Block);
}

/// A handler that always fails does not fill the disk.
#[tokio::test(start_paused = true)]
async fn there_is_a_bound_to_what_is_parked() {
    let scene = Scene::new(Fails, &[1, 2, 3], usize::MAX);
    let mut worker = scene.worker(Policy::Park).parked_max(2);
    let run = worker.run(async |delivery| scene.handle(&delivery).await);
    let error = run.await.unwrap_err();
    assert!(
        matches!(error, WorkerError::TooManyParked { max: 2 }),
        "{error}"
    );
    assert_eq!(scene.found().parked, [(1, false, 2), (2, false, 2)]);
}

/// An entry that was handled before `TooManyParked` is not handled again.
#[tokio::test(start_paused = true)]
async fn an_error_forgets_nothing_that_was_handled() {
    let scene = Scene::new(Fails, &[1, 3], usize::MAX);
    let mut worker = scene.worker(Policy::Park).parked_max(1);
    let run = worker.run(async |delivery| scene.handle(&delivery).await);
    run.await.unwrap_err();
    drop(worker);
    let before = scene.begun.lock().unwrap().len();
    let mut again = scene.worker(Policy::Park).parked_max(1);
    let run = again.run(async |delivery| scene.handle(&delivery).await);
    run.await.unwrap_err();
    let begun = scene.begun.lock().unwrap()[before..].to_vec();
    assert!(begun.iter().all(|number| *number == 3), "{begun:?}");
}

/// Who is asked to stop lets the handler end, and begins nothing more.
#[tokio::test(start_paused = true)]
async fn a_stop_waits_for_the_handler() {
    let scene = Scene::new(Fails, &[], 0);
    let mut worker = scene.worker(Policy::Block);
    let stop = time::sleep(Duration::from_secs(3));
    let tally = worker.run_until(stop, async |delivery| {
        scene.handle(&delivery).await?;
        time::sleep(Duration::from_secs(2)).await;
        Ok(())
    });
    assert_eq!(tally.await.unwrap().handled, 2);
    drop(worker);
    assert_eq!(scene.run(Policy::Block).await.begun, [1, 2, 3, 4, 5]);

    // In the middle of a document, too, and during a pause before another attempt.
    let scene = Scene::new(Fails, &[2], 1);
    let mut worker = scene.worker(Policy::Block);
    let stop = time::sleep(Duration::from_millis(500));
    let tally = worker.run_until(stop, async |delivery| scene.handle(&delivery).await);
    assert_eq!(tally.await.unwrap().handled, 1);
    assert_eq!(worker.state.begun().unwrap()[0].attempt.count, 1);
    drop(worker);
    assert_eq!(scene.run(Policy::Block).await.begun, [1, 2, 2, 3, 4, 5]);
}
