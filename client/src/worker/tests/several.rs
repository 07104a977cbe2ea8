//! Several handlers at a time.

use std::collections::{BTreeMap, BTreeSet};

use super::*;

const ENTRIES: u32 = 24;

/// Numbers that look random and are the same in each run.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u32) -> u32 {
        // The constants of Knuth's MMIX; its high bits are the good ones.
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005);
        self.0 = self.0.wrapping_add(1_442_695_040_888_963_407);
        u32::try_from(self.0 >> 33).unwrap() % sides
    }
}

/// What handlers did, over all processes.
#[derive(Debug, Default)]
struct Seen {
    running: BTreeSet<u32>,
    most_running: usize,
    begun: Vec<u32>,
    /// The entries that a handler took, in order.
    handled: Vec<u32>,
}

/// A feed of 24 entries, whose numbers modulo `keys` are their keys.
struct Several {
    web: Arc<Web>,
    folder: tempfile::TempDir,
    keys: u32,
    seen: Mutex<Seen>,
}

impl Several {
    fn new(keys: u32) -> Self {
        let web = Arc::new(Web::default());
        let ids: Vec<String> = (1..=ENTRIES).rev().map(|n| format!("urn:{n}")).collect();
        let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
        web.put(crate::consumer::tests::FEED, "", &ids);
        Self {
            web,
            folder: tempfile::tempdir().unwrap(),
            keys,
            seen: Mutex::default(),
        }
    }

    fn worker(&self, concurrency: usize) -> Worker {
        let state = StateFolder::open(self.folder.path()).unwrap();
        // Handlers of a process that was dropped run no more.
        self.seen.lock().unwrap().running.clear();
        let keys = self.keys;
        Worker::new(builder(&self.web), state)
            .unwrap()
            .policy(Policy::Park)
            .attempts(NonZeroU32::new(2).unwrap())
            .attempt_time(Duration::from_secs(10))
            .concurrency(NonZeroUsize::new(concurrency).unwrap())
            .key(move |delivery| Some((number(delivery) % keys).to_string()))
    }

    /// Handles an entry for so many milliseconds.
    async fn handle(&self, delivery: &Delivery, millis: u64) -> Result<(), HandlerError> {
        let number = number(delivery);
        {
            let mut seen = self.seen.lock().unwrap();
            let key = |number: u32| number % self.keys;
            let beside = seen
                .running
                .iter()
                .find(|other| key(**other) == key(number));
            assert_eq!(beside, None, "{number} has the same key");
            seen.begun.push(number);
            seen.running.insert(number);
            seen.most_running = seen.most_running.max(seen.running.len());
        }
        time::sleep(Duration::from_millis(millis)).await;
        let mut seen = self.seen.lock().unwrap();
        seen.running.remove(&number);
        seen.handled.push(number);
        Ok(())
    }

    fn parked(&self) -> Vec<u32> {
        let parked = crate::state::parked::list(self.folder.path()).unwrap();
        parked.iter().map(|one| number(&one.delivery())).collect()
    }

    fn place(&self) -> Option<u32> {
        let place = crate::FileBookmark::open(self.folder.path().join("bookmark"));
        let entry = place.unwrap().peek().unwrap().and_then(|place| place.entry);
        entry.map(|entry| entry[4..].parse().unwrap())
    }
}

/// Goal: so many handlers run at a time as may, and those of one key one after the other, in order.
#[tokio::test(start_paused = true)]
async fn keys_run_side_by_side_and_each_in_order() {
    let scene = Several::new(5);
    let began = Instant::now();
    let mut worker = scene.worker(3);
    let run = worker.run(async |delivery| {
        let millis = 100 + 70 * u64::from(number(&delivery) % 4);
        scene.handle(&delivery, millis).await
    });
    assert_eq!(run.await.unwrap().handled, u64::from(ENTRIES));
    let seen = scene.seen.lock().unwrap();
    assert_eq!(seen.most_running, 3);
    let mut by_key: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for number in &seen.handled {
        by_key.entry(number % 5).or_default().push(*number);
    }
    assert!(
        by_key.values().all(|numbers| numbers.is_sorted()),
        "{by_key:?}"
    );
    assert!(!seen.handled.is_sorted(), "some overtook others");
    // One at a time would take 24 * 205 ms.
    assert!(
        began.elapsed() < Duration::from_secs(3),
        "{:?}",
        began.elapsed()
    );
    assert_eq!(scene.place(), Some(ENTRIES));
}

/// Goal: the bookmark waits for the first entry; a stop keeps those that were finished behind it.
#[tokio::test(start_paused = true)]
async fn what_is_finished_ahead_is_not_handled_again() {
    let scene = Several::new(ENTRIES + 1);
    let mut worker = scene.worker(2);
    let slow = |delivery: &Delivery| if number(delivery) == 2 { 5_000 } else { 10 };
    let stop = time::sleep(Duration::from_secs(1));
    // The second entry fails once: it is in a pause when the worker stops.
    let failed = Cell::new(false);
    let run = worker.run_until(stop, async |delivery| {
        if number(&delivery) == 2 && !failed.replace(true) {
            return Err("it is broken".into());
        }
        scene.handle(&delivery, slow(&delivery)).await
    });
    // Eight in hand: the second, and seven that are finished behind it.
    assert_eq!(run.await.unwrap().handled, 8);
    assert_eq!(scene.place(), Some(1));
    assert_eq!(scene.seen.lock().unwrap().handled, [1, 3, 4, 5, 6, 7, 8, 9]);
    drop(worker);
    let mut worker = scene.worker(2);
    let run = worker.run(async |delivery| scene.handle(&delivery, slow(&delivery)).await);
    assert_eq!(run.await.unwrap().handled, u64::from(ENTRIES) - 8);
    let mut handled = scene.seen.lock().unwrap().handled.clone();
    assert_eq!(handled.len(), 24, "{handled:?}");
    handled.sort_unstable();
    handled.dedup();
    assert_eq!((handled.len(), scene.place()), (24, Some(ENTRIES)));
}

/// Goal: while nothing is ready, what was finished is kept at once: the last handler may take long.
#[tokio::test(start_paused = true)]
async fn an_idle_worker_keeps_its_place() {
    let scene = Several::new(ENTRIES + 1);
    for _ in ["killed", "another"] {
        let mut worker = scene.worker(4);
        let run = worker.run(async |delivery| {
            let millis = if number(&delivery) == ENTRIES {
                8_000
            } else {
                10
            };
            scene.handle(&delivery, millis).await
        });
        let ended = within(Duration::from_secs(5), run).await;
        assert_eq!(scene.place(), Some(ENTRIES - 1), "{ended:?}");
    }
    // None but the last was begun twice.
    assert_eq!(scene.seen.lock().unwrap().begun.len(), 25);
}

/// Goal: neither a write that fails nor a run that is dropped counts against entries that were not at fault.
#[tokio::test(start_paused = true)]
async fn nobody_is_given_up_for_the_faults_of_others() {
    let scene = Several::new(ENTRIES + 1);
    let mut worker = scene.worker(4).attempts(NonZeroU32::MIN);
    for writes in 0..3 {
        end::after(Some(writes));
        let run = worker.run(async |delivery| scene.handle(&delivery, 10).await);
        run.await.unwrap_err();
        end::after(None);
        let run = worker.run(async |delivery| scene.handle(&delivery, 1_000).await);
        let dropped = time::timeout(Duration::from_millis(50), run).await;
        assert!(dropped.is_err());
        scene.seen.lock().unwrap().running.clear();
    }
    let run = worker.run(async |delivery| scene.handle(&delivery, 10).await);
    run.await.unwrap();
    assert_eq!(scene.parked(), [0; 0]);
    assert_eq!(scene.place(), Some(ENTRIES));
}

/// Goal: an entry that blocks holds up only its key, after a crash, too.
#[tokio::test(start_paused = true)]
async fn who_blocks_stalls_no_other_key_after_a_crash() {
    let scene = Several::new(ENTRIES + 1);
    for patience in [Duration::from_millis(500), Duration::from_mins(10)] {
        let mut worker = scene.worker(4).policy(Policy::Block);
        let run = worker.run(async |delivery| {
            if number(&delivery) == 1 {
                return Err("it is broken".into());
            }
            scene.handle(&delivery, 300).await
        });
        assert!(within(patience, run).await.is_none());
    }
    let handled: BTreeSet<u32> = scene.seen.lock().unwrap().handled.iter().copied().collect();
    // All that fit into the window behind it.
    assert_eq!(handled, (2..=16).collect());
}

/// Goal: of those that were running when the process ended, only the one at fault is given up, even if each may be
/// tried only once.
#[tokio::test(start_paused = true)]
async fn the_one_at_fault_is_found() {
    for attempts in [1, 2] {
        let scene = Several::new(ENTRIES + 1);
        let (killed, mut processes) = (Notify::new(), 0);
        loop {
            processes += 1;
            assert!(processes < 10);
            let worker = scene.worker(4);
            let mut worker = worker.attempts(NonZeroU32::new(attempts).unwrap());
            let run = worker.run(async |delivery| {
                if number(&delivery) == 7 {
                    scene.seen.lock().unwrap().begun.push(7);
                    killed.notify_one();
                    pending::<()>().await;
                }
                scene.handle(&delivery, 10).await
            });
            if before(pin!(killed.notified().fuse()), run).await.is_some() {
                break;
            }
        }
        assert_eq!(scene.parked(), [7]);
        let seen = scene.seen.lock().unwrap();
        let all: BTreeSet<u32> = seen.handled.iter().copied().collect();
        let want: BTreeSet<u32> = (1..=ENTRIES).filter(|number| *number != 7).collect();
        assert_eq!(all, want);
        let at_fault = seen.begun.iter().filter(|number| **number == 7).count();
        // Once beside others, which proves nothing, and then alone.
        assert_eq!(at_fault, 1 + usize::try_from(attempts).unwrap());
    }
}

/// Goal: an entry that was skipped ahead of another stands in the record once, even if the process ends right then.
#[tokio::test(start_paused = true)]
async fn what_is_skipped_ahead_is_recorded_once() {
    let scene = Several::new(ENTRIES + 1);
    for _ in ["killed", "another"] {
        let mut worker = scene.worker(3).policy(Policy::Skip);
        let run = worker.run(async |delivery| match number(&delivery) {
            22 if record(scene.folder.path()).len() < 2 => pending().await,
            23 | 24 => Err("it is broken".into()),
            _ => Ok(()),
        });
        // Longer than the pauses, and shorter than the time of an attempt.
        let ended = within(Duration::from_secs(8), run).await;
        assert_eq!(record(scene.folder.path()).len(), 2, "{ended:?}");
    }
    assert_eq!(scene.place(), Some(ENTRIES));
}

/// Goal: whatever fails and wherever processes end, no entry is lost, and none is parked twice; of each key the
/// entries that are handled are handled in order; more than so many handlers never run.
/// Method: 150 worlds of random failures and ends, of the disk and of the process.
#[tokio::test(start_paused = true)]
async fn several_handlers_lose_nothing() {
    for seed in 0..150 {
        let mut dice = Dice(seed);
        let concurrency = 1 + dice.roll(4);
        let scene = Several::new(1 + dice.roll(8));
        let broken: BTreeSet<u32> = (0..dice.roll(4)).map(|_| 1 + dice.roll(ENTRIES)).collect();
        let dice = Mutex::new(dice);
        let roll = |sides| dice.lock().unwrap().roll(sides);
        for process in 0.. {
            assert!(process < 200, "{seed}");
            // Some of them end after so many writes or so many milliseconds; the later, the rarer.
            let ends = process < 20 && roll(4) > 0;
            let mut worker = scene.worker(usize::try_from(concurrency).unwrap());
            end::after((ends && roll(2) == 0).then(|| roll(12)));
            let run = worker.run(async |delivery| {
                if broken.contains(&number(&delivery)) {
                    time::sleep(Duration::from_millis(roll(50).into())).await;
                    return Err("it is broken".into());
                }
                scene.handle(&delivery, roll(50).into()).await
            });
            let life = if ends { roll(400).into() } else { u64::MAX };
            let ended = within(Duration::from_millis(life), run).await;
            if matches!(ended, Some(Ok(_))) {
                break;
            }
        }
        let seen = scene.seen.lock().unwrap();
        assert!(seen.most_running <= usize::try_from(concurrency).unwrap());
        let parked = scene.parked();
        let all: BTreeSet<u32> = seen.handled.iter().chain(&parked).copied().collect();
        assert_eq!(all, (1..=ENTRIES).collect(), "{seed}: {parked:?}");
        let parked_once: BTreeSet<u32> = parked.iter().copied().collect();
        // An end that cuts a last attempt short may be why a sound one was parked, so only those are checked.
        assert!(parked_once.is_superset(&broken), "{seed}: {parked:?}");
        assert_eq!(parked_once.len(), parked.len(), "{seed}: {parked:?}");
        let mut first_time = BTreeMap::<u32, u32>::new();
        let mut done = BTreeSet::new();
        for number in seen.handled.iter().filter(|number| done.insert(**number)) {
            let before = first_time.insert(number % scene.keys, *number);
            assert!(
                before.is_none_or(|before| before < *number),
                "{seed}: {seen:?}"
            );
        }
        assert_eq!(scene.place(), Some(ENTRIES), "{seed}");
    }
}
