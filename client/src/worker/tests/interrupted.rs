//! Attempts that are broken off from outside: by a drop of the run, or by a stop.

use super::*;
use crate::drops::dropped;

/// Handles an entry in some time.
async fn slowly(scene: &Scene, delivery: &Delivery, millis: u64) -> Result<(), HandlerError> {
    scene.begun.lock().unwrap().push(number(delivery));
    time::sleep(Duration::from_millis(millis)).await;
    Ok(())
}

/// Returns a worker that gives an entry up after its first failure.
fn strict(scene: &Scene) -> Worker {
    scene.worker(Policy::Skip).attempts(NonZeroU32::MIN)
}

/// Goal: a run that is dropped again and again hands everything over, and nothing late.
/// Method: with a ticker of half a second, as in `select!`, each of three entries of 0.4 s needs one tick of its own.
#[tokio::test(start_paused = true)]
async fn a_run_that_is_dropped_again_and_again_goes_on() {
    let scene = Scene::new(Fails, &[], 0);
    let (began, mut worker) = (Instant::now(), strict(&scene));
    let tally = loop {
        let run = worker.run(async |delivery| slowly(&scene, &delivery, 400).await);
        if let Ok(ended) = time::timeout(Duration::from_millis(500), run).await {
            break ended.unwrap();
        }
    };
    assert_eq!((tally.handled, tally.skipped), (1, 0), "of the last run");
    // Each entry but the last is begun twice at most, and none waits.
    assert!(began.elapsed() < Duration::from_millis(5 * 500 + 1));
    assert!(record(scene.folder.path()).is_empty());
    let begun = scene.found().begun;
    assert_eq!(begun, [1, 2, 2, 3, 3, 4, 4, 5, 5]);
}

/// Goal: an attempt that was dropped does not count in the next process either.
#[tokio::test(start_paused = true)]
async fn a_drop_counts_for_nothing_in_the_next_process() {
    let scene = Scene::new(Fails, &[], 0);
    for _ in 0..5 {
        let mut worker = strict(&scene);
        let run = worker.run(async |delivery| slowly(&scene, &delivery, 1_000).await);
        time::timeout(Duration::from_millis(500), run)
            .await
            .unwrap_err();
    }
    let found = scene.run(Policy::Skip).await;
    assert_eq!(found.begun, [1, 1, 1, 1, 1, 1, 2, 3, 4, 5]);
    assert!(found.record.is_empty(), "{found:?}");
}

/// Goal: the pause of an entry that failed goes on when the run is dropped.
#[tokio::test(start_paused = true)]
async fn a_drop_begins_no_pause_anew() {
    let scene = Scene::new(Fails, &[2], 2);
    let (began, mut worker) = (Instant::now(), scene.worker(Policy::Block));
    loop {
        let run = worker.run(async |delivery| scene.handle(&delivery).await);
        if let Ok(ended) = time::timeout(Duration::from_millis(300), run).await {
            ended.unwrap();
            break;
        }
    }
    // Pauses of one and two seconds.
    let took = began.elapsed();
    assert!(
        (Duration::from_secs(3)..Duration::from_secs(4)).contains(&took),
        "{took:?}"
    );
    assert_eq!(scene.found().begun, [1, 2, 2, 2, 3, 4, 5]);
}

/// Goal: an attempt during which the process is killed counts, unless a stop was asked for before.
#[tokio::test(start_paused = true)]
async fn a_kill_after_a_stop_counts_for_nothing() {
    for is_asked in [true, false] {
        let scene = Scene::new(Hang, &[1], 6);
        for _ in 0..6 {
            let mut worker = strict(&scene);
            let stop = time::sleep(Duration::from_millis(if is_asked { 500 } else { u64::MAX }));
            let run = worker.run_until(stop, async |delivery| scene.handle(&delivery).await);
            assert!(within(Duration::from_secs(1), run).await.is_none());
            if !is_asked {
                break;
            }
        }
        let found = scene.run(Policy::Skip).await;
        let skipped: Vec<u32> = found.record.iter().map(|(_, number, _)| *number).collect();
        assert_eq!(
            skipped,
            if is_asked { vec![] } else { vec![1] },
            "{found:?}"
        );
    }
}

/// Goal: a handler that was interrupted is run again, and one that cannot run stops the worker; neither counts.
#[tokio::test(start_paused = true)]
async fn what_is_no_failure_counts_for_nothing() {
    let scene = Scene::new(Fails, &[], 0);
    let mut worker = strict(&scene);
    let left = Cell::new(3);
    let run = worker.run(async |delivery| {
        scene.begun.lock().unwrap().push(number(&delivery));
        if number(&delivery) == 2 && left.get() > 0 {
            left.set(left.get() - 1);
            return Err(Interruption.into());
        }
        if number(&delivery) == 4 {
            return Err(CannotRun("there is no such program".into()).into());
        }
        Ok(())
    });
    let error = run.await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "no entry can be handled: there is no such program"
    );
    drop(worker);
    let found = scene.run(Policy::Skip).await;
    assert_eq!(found.begun, [1, 2, 2, 2, 2, 3, 4, 4, 5]);
    assert!(found.record.is_empty(), "{found:?}");
}

/// Goal: a run that is dropped at any of its awaits gives no entry up, counts no attempt, and delays nothing.
#[tokio::test(start_paused = true)]
async fn a_run_that_is_dropped_anywhere_goes_on() {
    let mut awaits = 0;
    loop {
        let scene = Scene::new(Fails, &[], 0);
        let (began, mut worker, mut was_dropped) = (Instant::now(), strict(&scene), false);
        let until = if awaits % 2 == 0 { None } else { Some(()) };
        dropped!(awaits, was_dropped, async {
            let handler = async |delivery| slowly(&scene, &delivery, 10).await;
            match until {
                None => worker.run(handler).await,
                Some(()) => worker.run_until(pending(), handler).await,
            }
        })
        .unwrap();
        assert!(began.elapsed() < Duration::from_millis(300), "{awaits}");
        let mut begun = scene.found().begun;
        begun.dedup();
        assert_eq!(begun, [1, 2, 3, 4, 5], "{awaits}");
        assert!(record(scene.folder.path()).is_empty(), "{awaits}");
        drop(worker);
        let before = scene.begun.lock().unwrap().len();
        scene.run(Policy::Skip).await;
        assert_eq!(
            scene.begun.lock().unwrap().len(),
            before,
            "{awaits}: it was done with"
        );
        awaits += 1;
        if !was_dropped {
            break;
        }
    }
    assert!(awaits > 5, "{awaits}");
}

/// Goal: a retry that is dropped at any of its awaits leaves each entry parked or handled, and counts no attempt.
#[tokio::test(start_paused = true)]
async fn a_retry_that_is_dropped_anywhere_goes_on() {
    let mut awaits = 0;
    loop {
        let scene = Scene::new(Fails, &[1, 3, 4], usize::MAX);
        scene.run(Policy::Park).await;
        let state = StateFolder::open(scene.folder.path()).unwrap();
        let attempts = |parked: Vec<ParkedEntry>| -> Vec<u32> {
            parked.iter().map(|parked| parked.attempts).collect()
        };
        assert_eq!(attempts(state.parked().unwrap()), [2, 2, 2]);
        let (mut was_dropped, handled) = (false, Cell::new(0));
        let mut drops = 0;
        while drops < 2 {
            let before = state.parked().unwrap().len();
            let mut quiet = Quiet;
            let retried = retry(
                &state,
                |_| true,
                Duration::from_secs(1),
                &mut quiet,
                async |_| {
                    time::sleep(Duration::from_millis(10)).await;
                    handled.set(handled.get() + 1);
                    Ok(())
                },
            );
            if crate::drops::polled(awaits, retried).await.is_some() {
                break;
            }
            (drops, was_dropped) = (drops + 1, true);
            let left = state.parked().unwrap();
            assert!(left.len() <= before);
            assert!(
                attempts(left).iter().all(|attempts| *attempts == 2),
                "{awaits}"
            );
        }
        try_all(&state, &|_| false).await;
        assert!(state.parked().unwrap().is_empty(), "{awaits}");
        let retried = record(scene.folder.path()).into_iter();
        let retried = retried.filter(|line| line["what"] == "retried").count();
        assert_eq!(retried, 3, "{awaits}");
        awaits += 1;
        if !was_dropped {
            break;
        }
    }
    assert!(awaits > 3, "{awaits}");
}
