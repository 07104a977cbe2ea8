//! One promise each.

use std::{collections::HashSet, sync::Arc, time::Duration};

use parking_lot::Mutex;
use simplefeed_queue::{
    Due, Existing, Extension, FailureOutcome, Finish, JobFailure, Lease, Limit, Manual, Namespace,
    NewJob, Queue, QueueError, QuotaReport, Reservation, ScheduleOutcome, Stats, Successor,
    TakeOutcome, TokenStanding, Want, limits,
};

use crate::{at, beginning};

const SECOND: Duration = Duration::from_secs(1);
/// One job, as soon as it is due, for a minute.
const ONE: Want = Want {
    max: 1,
    buffer: Duration::ZERO,
    lease: Duration::from_mins(1),
};

fn things() -> Namespace {
    Namespace::new("things").unwrap()
}

fn thing(key: &str, seconds: i64) -> NewJob {
    NewJob::new(&things(), key, Due::At(at(seconds)))
}

async fn schedule(queue: &impl Queue, jobs: Vec<NewJob>) -> Vec<ScheduleOutcome> {
    queue.schedule(jobs, Existing::Keep).await.unwrap()
}

/// Leases what there is, without waiting.
async fn leased(queue: &impl Queue, want: Want) -> Vec<Lease> {
    match queue.take(&things(), want).await.unwrap() {
        TakeOutcome::Leased(leases) => leases,
        TakeOutcome::Wait { .. } => Vec::new(),
    }
}

async fn one(queue: &impl Queue) -> Lease {
    let leases = leased(queue, ONE).await;
    assert_eq!(leases.len(), 1);
    leases[0].clone()
}

fn keys(leases: &[Lease]) -> Vec<&str> {
    leases.iter().map(|lease| lease.job.key.as_str()).collect()
}

async fn finish(queue: &impl Queue, lease: &Lease, next: Successor) -> TokenStanding {
    let finish = Finish::new(lease.token.clone(), next);
    queue.finish(vec![finish]).await.unwrap()[0]
}

async fn complete(queue: &impl Queue, lease: &Lease) -> TokenStanding {
    finish(queue, lease, Successor::Done).await
}

async fn fail(queue: &impl Queue, lease: &Lease, attempts: u32) -> FailureOutcome {
    let failure = JobFailure {
        token: lease.token.clone(),
        retry: Due::After(5 * SECOND),
        attempts,
        reason: "the provider says no\0".to_owned(),
    };
    queue.fail(vec![failure]).await.unwrap()[0]
}

pub(crate) async fn a_job_is_leased_once_it_is_due(queue: impl Queue, clock: Manual) {
    assert_eq!(
        queue.take(&things(), ONE).await.unwrap(),
        TakeOutcome::Wait {
            now: beginning(),
            next: None
        }
    );
    let job = thing("a", 10).payload("what a is");
    assert_eq!(schedule(&queue, vec![job]).await, [ScheduleOutcome::Added]);
    assert_eq!(
        queue.take(&things(), ONE).await.unwrap(),
        TakeOutcome::Wait {
            now: beginning(),
            next: Some(at(10))
        }
    );
    clock.set(at(10) - chrono::TimeDelta::microseconds(1));
    assert_eq!(leased(&queue, ONE).await, []);
    clock.set(at(10));
    let lease = one(&queue).await;
    assert_eq!((lease.job.key.as_str(), lease.token.key()), ("a", "a"));
    assert_eq!(lease.job.payload, b"what a is");
    assert_eq!(lease.job.note, b"");
    assert_eq!((lease.job.slot, lease.job.failures), (at(10), 0));
    assert_eq!((lease.leased, lease.until), (at(10), at(70)));
    // It is leased once.
    assert_eq!(leased(&queue, ONE).await, []);
    assert_eq!(complete(&queue, &lease).await, TokenStanding::Yes);
    clock.set(at(1_000));
    assert_eq!(leased(&queue, ONE).await, []);
}

/// A wrong clock has set due times and ends of leases that are years ahead.
pub(crate) async fn what_is_far_ahead_is_brought_forward(queue: impl Queue, clock: Manual) {
    const DAY: i64 = 86_400;
    schedule(
        &queue,
        vec![thing("leased", 0), thing("again", 1), thing("soon", 50)],
    )
    .await;
    schedule(
        &queue,
        vec![thing("limit", 60), thing("far", 61), thing("dead", 2)],
    )
    .await;
    let other = NewJob::new(&Namespace::new("others").unwrap(), "far", Due::At(at(61)));
    schedule(&queue, vec![other]).await;
    // In a hundred years, jobs are leased, put off, and given up.
    clock.set(at(2));
    let (now, future) = (clock.now(), at(36_500 * DAY));
    let held = one(&queue).await;
    clock.set(future);
    let leases = leased(&queue, Want { max: 3, ..ONE }).await;
    assert_eq!(keys(&leases), ["leased", "again", "dead"]);
    let again = Successor::Again {
        due: Due::After(10 * SECOND),
        payload: Some(b"second".to_vec()),
    };
    assert_eq!(finish(&queue, &leases[1], again).await, TokenStanding::Yes);
    assert_eq!(fail(&queue, &leases[2], 1).await, FailureOutcome::Dead);
    clock.set(now);
    let counted = Stats {
        waiting: 4,
        leased: 1,
        dead: 1,
        next_due: Some(at(50)),
        ..Stats::default()
    };
    assert_eq!(queue.stats(&things()).await.unwrap(), counted);
    let bring = async || {
        let minute = 60 * SECOND;
        let brought = queue.bring_forward(&things(), 58 * SECOND, minute).await;
        brought.unwrap()
    };
    // The lease, and two jobs that are too far ahead.
    let mut brought = 0;
    loop {
        match bring().await {
            0 => break,
            some => brought += some,
        }
    }
    assert_eq!(brought, 3);
    let leases = leased(&queue, Want { max: 9, ..ONE }).await;
    let mut found = keys(&leases);
    found.sort_unstable();
    assert_eq!(found, ["again", "far", "leased"]);
    // Slots stay as they were.
    for lease in &leases {
        let slot = match lease.job.key.as_str() {
            "again" => future + 10 * SECOND,
            "far" => at(61),
            _ => at(0),
        };
        assert_eq!(lease.job.slot, slot, "{}", lease.job.key);
        assert!(complete(&queue, lease).await == TokenStanding::Yes);
    }
    assert_eq!(complete(&queue, &held).await, TokenStanding::Lost);
    // A lease of now goes on.
    clock.set(at(50));
    let soon = one(&queue).await;
    assert_eq!(bring().await, 0);
    assert_eq!(complete(&queue, &soon).await, TokenStanding::Yes);
    let waits = queue.stats(&things()).await.unwrap();
    assert_eq!((waits.waiting, waits.due), (1, 0));
}

/// A worker that gives a job back shortens the lease, and wakes the workers that wait for its end.
pub(crate) async fn a_shortened_lease_is_a_change(queue: impl Queue, clock: Manual) {
    schedule(&queue, vec![thing("leased", 0)]).await;
    clock.set(at(2));
    let lease = one(&queue).await;
    let mut changes = queue.changes();
    changes.mark_unchanged();
    let extension = Extension {
        token: lease.token.clone(),
        lease: SECOND / 10,
        note: None,
    };
    let standings = queue.extend(vec![extension]).await.unwrap();
    assert_eq!(standings, [TokenStanding::Yes]);
    assert!(changes.has_changed().unwrap());
}

/// TU-D15: an item that is started twice has one job, and a starter that replays resets nothing.
pub(crate) async fn a_repeated_schedule_resets_nothing(queue: impl Queue, clock: Manual) {
    schedule(&queue, vec![thing("a", 10).payload("first")]).await;
    let again = || vec![thing("a", 0).payload("second")];
    assert_eq!(schedule(&queue, again()).await, [ScheduleOutcome::Kept]);
    assert_eq!(leased(&queue, ONE).await, []);
    clock.set(at(10));
    let lease = one(&queue).await;
    assert_eq!(lease.job.payload, b"first");
    assert_eq!(schedule(&queue, again()).await, [ScheduleOutcome::Leased]);
    assert_eq!(fail(&queue, &lease, 1).await, FailureOutcome::Dead);
    assert_eq!(schedule(&queue, again()).await, [ScheduleOutcome::Dead]);
    clock.set(at(1_000));
    assert_eq!(leased(&queue, ONE).await, []);
}

pub(crate) async fn a_move_changes_what_waits_and_nothing_else(queue: impl Queue, clock: Manual) {
    schedule(&queue, vec![thing("a", 0).payload("first")]).await;
    let lease = one(&queue).await;
    let moved = || vec![thing("a", 30).payload("second"), thing("b", 31)];
    assert_eq!(
        queue.schedule(moved(), Existing::Move).await.unwrap(),
        [ScheduleOutcome::Leased, ScheduleOutcome::Added]
    );
    assert_eq!(fail(&queue, &lease, 9).await, FailureOutcome::Waits);
    assert_eq!(
        queue.schedule(moved(), Existing::Move).await.unwrap(),
        [ScheduleOutcome::Moved, ScheduleOutcome::Moved]
    );
    clock.set(at(29));
    assert_eq!(leased(&queue, ONE).await, []);
    clock.set(at(30));
    let lease = one(&queue).await;
    assert_eq!(
        (lease.job.payload.as_slice(), lease.job.slot),
        (&b"second"[..], at(30))
    );
    assert_eq!(lease.job.failures, 0);
    assert_eq!(fail(&queue, &lease, 1).await, FailureOutcome::Dead);
    assert_eq!(
        queue.schedule(moved(), Existing::Move).await.unwrap()[0],
        ScheduleOutcome::Dead
    );
    // A lease that has expired is none.
    clock.set(at(31));
    let lease = one(&queue).await;
    clock.set(lease.until);
    assert_eq!(
        queue.schedule(moved(), Existing::Move).await.unwrap()[1],
        ScheduleOutcome::Moved
    );
    assert_eq!(complete(&queue, &lease).await, TokenStanding::Lost);
}

/// TU-D14, I2: the ids of a batch are distinct.
pub(crate) async fn equal_keys_in_one_call_are_one_job(queue: impl Queue, _: Manual) {
    let jobs = || {
        vec![
            thing("a", 0).payload("1"),
            thing("b", 0),
            thing("a", 0).payload("2"),
        ]
    };
    assert_eq!(
        schedule(&queue, jobs()).await,
        [
            ScheduleOutcome::Added,
            ScheduleOutcome::Added,
            ScheduleOutcome::Kept
        ]
    );
    assert_eq!(
        queue.schedule(jobs(), Existing::Move).await.unwrap(),
        [
            ScheduleOutcome::Moved,
            ScheduleOutcome::Moved,
            ScheduleOutcome::Moved
        ]
    );
    let leases = leased(&queue, Want { max: 10, ..ONE }).await;
    assert_eq!(keys(&leases), ["a", "b"]);
    assert_eq!(leases[0].job.payload, b"2");
    // A token counts once.
    let twice = || Finish::new(leases[0].token.clone(), Successor::Done);
    assert_eq!(
        queue.finish(vec![twice(), twice()]).await.unwrap(),
        [TokenStanding::Yes, TokenStanding::Lost]
    );
}

/// TU-4, I3, TU-D1…3, TU-D16: batches are assembled by the queue, for all workers together.
pub(crate) async fn a_batch_is_full_or_its_oldest_job_has_waited(queue: impl Queue, clock: Manual) {
    let want = Want {
        max: 3,
        buffer: 10 * SECOND,
        ..ONE
    };
    schedule(&queue, vec![thing("a", 0), thing("b", 4)]).await;
    assert_eq!(
        queue.take(&things(), want).await.unwrap(),
        TakeOutcome::Wait {
            now: at(0),
            next: Some(at(10))
        }
    );
    schedule(&queue, vec![thing("c", 6), thing("d", 5)]).await;
    // The third one by due time makes it full.
    assert_eq!(
        queue.take(&things(), want).await.unwrap(),
        TakeOutcome::Wait {
            now: at(0),
            next: Some(at(5))
        }
    );
    clock.set(at(5));
    let leases = leased(&queue, want).await;
    assert_eq!(keys(&leases), ["a", "b", "d"]);
    clock.set(at(15));
    assert_eq!(leased(&queue, want).await, []);
    clock.set(at(16));
    assert_eq!(keys(&leased(&queue, want).await), ["c"]);
    // More are due than a batch has.
    schedule(
        &queue,
        vec![thing("e", 0), thing("f", 3), thing("g", 2), thing("h", 1)],
    )
    .await;
    assert_eq!(keys(&leased(&queue, want).await), ["e", "h", "g"]);
}

/// I1, TU-D9: whoever dies with a job loses it to another.
pub(crate) async fn a_lease_expires_and_its_token_is_void(queue: impl Queue, clock: Manual) {
    schedule(&queue, vec![thing("a", 0), thing("b", 1)]).await;
    let first = one(&queue).await;
    clock.set(at(60) - chrono::TimeDelta::microseconds(1));
    assert_eq!(keys(&leased(&queue, Want { max: 5, ..ONE }).await), ["b"]);
    clock.set(at(60));
    let expired = Extension {
        token: first.token.clone(),
        lease: SECOND,
        note: None,
    };
    let noted = Extension {
        note: Some(b"note".to_vec()),
        ..expired.clone()
    };
    for extension in [expired, noted] {
        assert_eq!(
            queue.extend(vec![extension]).await.unwrap(),
            [TokenStanding::Lost]
        );
    }
    assert_eq!(complete(&queue, &first).await, TokenStanding::Lost);
    assert_eq!(fail(&queue, &first, 1).await, FailureOutcome::Lost);
    // It has waited since its due time, so it waits for no buffer.
    let second = leased(
        &queue,
        Want {
            max: 5,
            buffer: 30 * SECOND,
            ..ONE
        },
    )
    .await;
    assert_eq!(keys(&second), ["a"]);
    assert_eq!((second[0].job.slot, second[0].job.failures), (at(0), 0));
    assert_eq!(second[0].job.note, b"");
    assert_eq!(complete(&queue, &first).await, TokenStanding::Lost);
    assert_eq!(complete(&queue, &second[0]).await, TokenStanding::Yes);
    assert_eq!(complete(&queue, &second[0]).await, TokenStanding::Lost);
}

pub(crate) async fn a_lease_is_extended_and_a_note_outlives_it(queue: impl Queue, clock: Manual) {
    schedule(&queue, vec![thing("a", 0)]).await;
    let lease = one(&queue).await;
    clock.set(at(59));
    let extension = |seconds: u32, note: Option<&str>| Extension {
        token: lease.token.clone(),
        lease: seconds * SECOND,
        note: note.map(|note| note.as_bytes().to_vec()),
    };
    assert_eq!(
        queue
            .extend(vec![extension(60, Some("digest"))])
            .await
            .unwrap(),
        [TokenStanding::Yes]
    );
    clock.set(at(118));
    assert_eq!(leased(&queue, ONE).await, []);
    assert_eq!(
        queue.extend(vec![extension(2, None)]).await.unwrap(),
        [TokenStanding::Yes]
    );
    clock.set(at(119));
    assert_eq!(leased(&queue, ONE).await, []);
    clock.set(at(120));
    let lease = one(&queue).await;
    assert_eq!(lease.job.note, b"digest");
    // A failure keeps it, too; and a lease can be made shorter.
    assert_eq!(fail(&queue, &lease, 9).await, FailureOutcome::Waits);
    clock.set(at(125));
    let lease = one(&queue).await;
    assert_eq!(lease.job.note, b"digest");
    let shorter = Extension {
        token: lease.token.clone(),
        lease: SECOND,
        note: Some(Vec::new()),
    };
    assert_eq!(
        queue.extend(vec![shorter]).await.unwrap(),
        [TokenStanding::Yes]
    );
    clock.set(at(126));
    assert_eq!(one(&queue).await.job.note, b"");
}

/// TU-6, I8.
/// What the parts of a call say about one job does not depend on how the keeper does them.
pub(crate) async fn equal_tokens_in_one_call_count_in_order(queue: impl Queue, clock: Manual) {
    schedule(&queue, vec![thing("a", 0), thing("b", 0), thing("c", 0)]).await;
    let want = Want { max: 3, ..ONE };
    let leases = leased(&queue, want).await;
    let extension = |seconds: u32, note: Option<&str>| Extension {
        token: leases[0].token.clone(),
        lease: seconds * SECOND,
        note: note.map(|note| note.as_bytes().to_vec()),
    };
    let extensions = vec![extension(90, Some("note")), extension(5, None)];
    let held = queue.extend(extensions).await.unwrap();
    assert_eq!(held, [TokenStanding::Yes, TokenStanding::Yes]);
    let again = Successor::Again {
        due: Due::At(at(100)),
        payload: None,
    };
    let finish = |next: &Successor| Finish::new(leases[1].token.clone(), next.clone());
    let finishes = vec![finish(&again), finish(&Successor::Done), finish(&again)];
    let held = queue.finish(finishes).await.unwrap();
    assert_eq!(
        held,
        [TokenStanding::Yes, TokenStanding::Lost, TokenStanding::Lost]
    );
    let failure = |attempts| JobFailure {
        token: leases[2].token.clone(),
        retry: Due::At(at(100)),
        attempts,
        reason: format!("{attempts}"),
    };
    let failed = queue.fail(vec![failure(9), failure(1)]).await.unwrap();
    assert_eq!(failed, [FailureOutcome::Waits, FailureOutcome::Lost]);
    clock.advance(10 * SECOND);
    let expired = one(&queue).await;
    assert_eq!(expired.job.key, "a");
    assert_eq!(expired.job.note, b"note");
    let stats = queue.stats(&things()).await.unwrap();
    assert_eq!((stats.waiting, stats.dead), (2, 0));
}

pub(crate) async fn again_is_a_new_slot(queue: impl Queue, clock: Manual) {
    schedule(&queue, vec![thing("a", 0).payload("first")]).await;
    let lease = one(&queue).await;
    assert_eq!(fail(&queue, &lease, 9).await, FailureOutcome::Waits);
    clock.set(at(5));
    let lease = one(&queue).await;
    assert_eq!((lease.job.slot, lease.job.failures), (at(0), 1));
    let note = Extension {
        token: lease.token.clone(),
        lease: SECOND,
        note: Some(b"n".to_vec()),
    };
    assert_eq!(
        queue.extend(vec![note]).await.unwrap(),
        [TokenStanding::Yes]
    );
    let next = Successor::Again {
        due: Due::After(2 * SECOND),
        payload: None,
    };
    assert_eq!(finish(&queue, &lease, next).await, TokenStanding::Yes);
    assert_eq!(leased(&queue, ONE).await, []);
    clock.set(at(7));
    let lease = one(&queue).await;
    assert_eq!((lease.job.slot, lease.job.failures), (at(7), 0));
    assert_eq!(
        (lease.job.payload.as_slice(), lease.job.note.as_slice()),
        (&b"first"[..], &b""[..])
    );
    let next = Successor::Again {
        due: Due::At(at(8)),
        payload: Some(b"second".to_vec()),
    };
    assert_eq!(finish(&queue, &lease, next).await, TokenStanding::Yes);
    clock.set(at(8));
    assert_eq!(one(&queue).await.job.payload, b"second");
}

/// TU-D10: a failure loses nothing.
pub(crate) async fn failures_keep_the_slot_until_the_job_is_dead(queue: impl Queue, clock: Manual) {
    schedule(&queue, vec![thing("a", 0).payload("p"), thing("b", 1)]).await;
    clock.set(at(1));
    for failures in 0..3 {
        let lease = one(&queue).await;
        assert_eq!((lease.job.key.as_str(), lease.job.slot), ("a", at(0)));
        assert_eq!(lease.job.failures, failures);
        let failed = fail(&queue, &lease, 3).await;
        assert_eq!(
            failed,
            if failures == 2 {
                FailureOutcome::Dead
            } else {
                FailureOutcome::Waits
            }
        );
        if failures == 0 {
            let other = one(&queue).await;
            assert_eq!(other.job.key, "b");
            assert_eq!(complete(&queue, &other).await, TokenStanding::Yes);
        }
        clock.advance(4 * SECOND);
        assert_eq!(leased(&queue, ONE).await, []);
        clock.advance(SECOND);
    }
    assert_eq!(leased(&queue, ONE).await, []);
    schedule(&queue, vec![thing("c", 0)]).await;
    let lease = one(&queue).await;
    assert_eq!(fail(&queue, &lease, 0).await, FailureOutcome::Dead);
    let dead = queue.dead(&things(), None, 10).await.unwrap();
    assert_eq!(
        dead.iter()
            .map(|dead| dead.job.key.as_str())
            .collect::<Vec<_>>(),
        ["a", "c"]
    );
    assert_eq!(dead[0].reason, "the provider says no");
    assert_eq!((dead[0].job.failures, dead[0].job.slot), (3, at(0)));
    assert_eq!(dead[0].job.payload, b"p");
    assert_eq!(queue.dead(&things(), None, 1).await.unwrap(), dead[..1]);
    assert_eq!(
        queue.dead(&things(), Some("a"), 10).await.unwrap(),
        dead[1..]
    );
    assert_eq!(
        queue.dead(&things(), Some("b"), 10).await.unwrap(),
        dead[1..]
    );
    let retried = queue
        .retry(&things(), vec!["a".into(), "b".into()])
        .await
        .unwrap();
    assert_eq!(retried, 1);
    let lease = one(&queue).await;
    assert_eq!(
        (lease.job.key.as_str(), lease.job.failures, lease.job.slot),
        ("a", 0, at(0))
    );
    assert_eq!(queue.dead(&things(), None, 10).await.unwrap(), dead[1..]);
}

/// I8: a bookmark and what it stands for are stored together or not at all.
pub(crate) async fn what_comes_with_a_finish_needs_its_token(queue: impl Queue, clock: Manual) {
    let others = Namespace::new("others").unwrap();
    schedule(&queue, vec![thing("bookmark", 0).payload("1")]).await;
    let lease = one(&queue).await;
    let also = vec![
        NewJob::new(&others, "x", Due::At(at(0))),
        thing("bookmark", 0),
    ];
    let next = Successor::Again {
        due: Due::At(at(0)),
        payload: Some(b"2".to_vec()),
    };
    let finish = || Finish {
        token: lease.token.clone(),
        next: next.clone(),
        also: also.clone(),
    };
    clock.set(at(60));
    assert_eq!(
        queue.finish(vec![finish()]).await.unwrap(),
        [TokenStanding::Lost]
    );
    assert_eq!(queue.stats(&others).await.unwrap(), Stats::default());
    let lease = one(&queue).await;
    assert_eq!(lease.job.payload, b"1");
    let finish = Finish {
        token: lease.token,
        ..finish()
    };
    assert_eq!(
        queue.finish(vec![finish]).await.unwrap(),
        [TokenStanding::Yes]
    );
    assert_eq!(queue.stats(&others).await.unwrap().due, 1);
    assert_eq!(one(&queue).await.job.payload, b"2");
}

pub(crate) async fn namespaces_do_not_mix(queue: impl Queue, _: Manual) {
    // Names of which one begins with the other.
    let names = ["t", "thing", "things.more"].map(|name| Namespace::new(name).unwrap());
    for name in &names {
        schedule(&queue, vec![NewJob::new(name, "a", Due::At(at(0)))]).await;
    }
    assert_eq!(leased(&queue, ONE).await, []);
    for name in &names {
        let TakeOutcome::Leased(leases) = queue.take(name, ONE).await.unwrap() else {
            panic!("nothing in {name}");
        };
        assert_eq!(leases.len(), 1);
        let failure = JobFailure {
            token: leases[0].token.clone(),
            retry: Due::At(at(0)),
            attempts: 1,
            reason: name.to_string(),
        };
        assert_eq!(
            queue.fail(vec![failure]).await.unwrap(),
            [FailureOutcome::Dead]
        );
    }
    for name in &names {
        let dead = queue.dead(name, None, 10).await.unwrap();
        assert_eq!(dead.len(), 1);
        assert_eq!(dead[0].reason, name.as_str());
    }
    assert_eq!(queue.dead(&things(), None, 10).await.unwrap(), []);
}

pub(crate) async fn a_removed_job_is_gone(queue: impl Queue, clock: Manual) {
    let jobs = [("a", -4), ("b", -3), ("c", -2), ("d", -1)];
    schedule(&queue, jobs.map(|(key, due)| thing(key, due)).to_vec()).await;
    let (a, b) = (one(&queue).await, one(&queue).await);
    assert_eq!(fail(&queue, &a, 1).await, FailureOutcome::Dead);
    let keys_of = |keys: &[&str]| keys.iter().map(|key| (*key).to_owned()).collect::<Vec<_>>();
    let removed = queue
        .remove(&things(), keys_of(&["a", "b", "c", "none"]))
        .await
        .unwrap();
    assert_eq!(removed, 3);
    assert_eq!(complete(&queue, &b).await, TokenStanding::Lost);
    assert_eq!(
        schedule(&queue, vec![thing("b", 0)]).await,
        [ScheduleOutcome::Added]
    );
    // The token of the job that was removed is not one of the job that has its key now.
    assert_eq!(complete(&queue, &b).await, TokenStanding::Lost);
    assert_eq!(
        keys(&leased(&queue, Want { max: 9, ..ONE }).await),
        ["d", "b"]
    );
    assert_eq!(complete(&queue, &b).await, TokenStanding::Lost);
    clock.set(at(100));
    assert_eq!(
        keys(&leased(&queue, Want { max: 9, ..ONE }).await),
        ["d", "b"]
    );
}

/// TU-8, I4, TU-D12.
pub(crate) async fn a_quota_is_shared(queue: impl Queue, clock: Manual) {
    let limit = Limit {
        requests: 20,
        window: 60 * SECOND,
    };
    let other = queue.clone();
    let mut made = 0;
    let began = beginning();
    while clock.now() < began + 10 * limit.window {
        let one = if made % 2 == 0 { &queue } else { &other };
        match one.reserve("key", 1, limit).await.unwrap() {
            Reservation::Now => made += 1,
            Reservation::After(wait) => {
                assert!(wait > Duration::ZERO);
                clock.advance(wait);
            }
        }
    }
    assert!((180..=220).contains(&made), "{made}");
    assert_eq!(
        queue.reserve("another", 2, limit).await.unwrap(),
        Reservation::Now
    );
    let pause = QuotaReport {
        pause: Some(30 * SECOND),
        remaining: None,
    };
    queue.report("another", pause).await.unwrap();
    let refused = queue.reserve("another", 1, limit).await.unwrap();
    assert_eq!(refused, Reservation::After(30 * SECOND));
    clock.advance(30 * SECOND);
    let remaining = QuotaReport {
        pause: None,
        remaining: Some((1, 900 * SECOND)),
    };
    queue.report("another", remaining).await.unwrap();
    assert_eq!(
        queue.reserve("another", 1, limit).await.unwrap(),
        Reservation::Now
    );
    clock.advance(10 * SECOND);
    let refused = queue.reserve("another", 1, limit).await.unwrap();
    assert_eq!(refused, Reservation::After(890 * SECOND));
    let never = queue.reserve("key", 3, limit).await.unwrap_err();
    assert!(
        matches!(never, QueueError::Quota { requests: 3, .. }),
        "{never}"
    );
}

pub(crate) async fn jobs_are_counted(queue: impl Queue, clock: Manual) {
    assert_eq!(queue.stats(&things()).await.unwrap(), Stats::default());
    let jobs = (0..10).map(|key| thing(&key.to_string(), key)).collect();
    schedule(&queue, jobs).await;
    clock.set(at(5));
    let dead = one(&queue).await;
    fail(&queue, &dead, 1).await;
    let _leased = one(&queue).await;
    let stats = Stats {
        waiting: 4,
        due: 4,
        leased: 1,
        dead: 1,
        oldest_due: Some(at(2)),
        next_due: Some(at(6)),
    };
    assert_eq!(queue.stats(&things()).await.unwrap(), stats);
    clock.set(at(65));
    let stats = Stats {
        waiting: 0,
        due: 9,
        leased: 0,
        dead: 1,
        oldest_due: Some(at(1)),
        next_due: None,
    };
    assert_eq!(queue.stats(&things()).await.unwrap(), stats);
    queue.retry(&things(), vec!["0".to_owned()]).await.unwrap();
    queue.remove(&things(), vec!["9".to_owned()]).await.unwrap();
    let stats = Stats {
        due: 9,
        dead: 0,
        ..stats
    };
    assert_eq!(queue.stats(&things()).await.unwrap(), stats);
}

pub(crate) async fn what_is_out_of_bounds_changes_nothing(queue: impl Queue, _: Manual) {
    for name in ["", "a b", "ü", &"n".repeat(101)] {
        assert!(
            matches!(Namespace::new(name), Err(QueueError::Name(_))),
            "{name}"
        );
    }
    let long = "k".repeat(limits::KEY_BYTES_MAX);
    let large = vec![0; limits::PAYLOAD_BYTES_MAX];
    let fine = thing(&long, 0).payload(large.clone());
    assert_eq!(schedule(&queue, vec![fine]).await, [ScheduleOutcome::Added]);
    for bad in [
        thing("", 0),
        thing("a\0b", 0),
        thing(&(long.clone() + "k"), 0),
        thing("large", 0).payload(vec![0; limits::PAYLOAD_BYTES_MAX + 1]),
    ] {
        let refused = queue
            .schedule(vec![thing("good", 0), bad], Existing::Keep)
            .await;
        assert!(refused.is_err());
    }
    let many = (0..=limits::CALL_JOBS_MAX)
        .map(|key| thing(&key.to_string(), 0))
        .collect();
    let refused = queue.schedule(many, Existing::Keep).await.unwrap_err();
    assert_eq!(
        refused.to_string(),
        "a call takes 1 to 10000 jobs, not 10001"
    );
    for max in [0, limits::CALL_JOBS_MAX + 1] {
        assert!(queue.take(&things(), Want { max, ..ONE }).await.is_err());
    }
    let lease = one(&queue).await;
    assert_eq!((lease.job.key, lease.job.payload), (long, large));
    assert_eq!(leased(&queue, ONE).await, []);
    let note = Some(vec![0; limits::PAYLOAD_BYTES_MAX + 1]);
    let extension = Extension {
        token: lease.token,
        lease: SECOND,
        note,
    };
    assert!(queue.extend(vec![extension]).await.is_err());
    // Times that no keeper can store are moved to the nearest one.
    let far = Due::After(Duration::MAX);
    let early = Due::At(chrono::DateTime::<chrono::Utc>::MIN_UTC);
    let jobs = vec![
        NewJob::new(&things(), "far", far),
        NewJob::new(&things(), "early", early),
    ];
    assert_eq!(schedule(&queue, jobs).await, [ScheduleOutcome::Added; 2]);
    let lease = one(&queue).await;
    assert_eq!(
        (lease.job.key.as_str(), lease.job.slot),
        ("early", chrono::DateTime::UNIX_EPOCH)
    );
}

/// TU-D17: a worker that waits does not turn in circles, and does not sleep too long.
pub(crate) async fn a_worker_that_waits_is_woken_by_a_job(queue: impl Queue, _: Manual) {
    let waiting = tokio::spawn({
        let queue = queue.clone();
        async move { queue.lease(&things(), ONE).await.unwrap() }
    });
    // Long enough for a look at an empty queue.
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(!waiting.is_finished());
    schedule(&queue, vec![thing("later", 1_000), thing("a", 0)]).await;
    assert_eq!(keys(&waiting.await.unwrap()), ["a"]);
}

pub(crate) async fn a_worker_that_waits_is_woken_by_the_time(queue: impl Queue, clock: Manual) {
    schedule(&queue, vec![thing("a", 10), thing("b", 11)]).await;
    let want = Want {
        max: 3,
        buffer: 5 * SECOND,
        ..ONE
    };
    let waiting = tokio::spawn({
        let queue = queue.clone();
        async move { queue.lease(&things(), want).await.unwrap() }
    });
    for seconds in [5, 12, 14] {
        clock.set(at(seconds));
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert!(!waiting.is_finished());
    }
    clock.set(at(15));
    assert_eq!(keys(&waiting.await.unwrap()), ["a", "b"]);
}

pub(crate) async fn a_worker_that_goes_away_takes_nothing_with_it(
    queue: impl Queue,
    clock: Manual,
) {
    for _ in 0..20 {
        let waiting = tokio::spawn({
            let queue = queue.clone();
            async move { queue.lease(&things(), ONE).await }
        });
        tokio::task::yield_now().await;
        waiting.abort();
        let _gone = waiting.await;
    }
    schedule(&queue, vec![thing("a", 0)]).await;
    // At worst one of them had it when it went.
    clock.set(at(60));
    assert_eq!(one(&queue).await.job.key, "a");
}

/// I1, I7: with eight workers, each round of each job is leased by one.
pub(crate) async fn workers_never_share_a_job(queue: impl Queue, _: Manual) {
    const JOBS: usize = 200;
    const ROUNDS: usize = 5;
    let jobs = (0..JOBS).map(|key| thing(&key.to_string(), 0)).collect();
    schedule(&queue, jobs).await;
    let workers: Vec<_> = (0..8)
        .map(|_| {
            let queue = queue.clone();
            tokio::spawn(async move {
                let mut done = Vec::new();
                loop {
                    let leases = leased(&queue, Want { max: 7, ..ONE }).await;
                    if leases.is_empty()
                        && queue.stats(&things()).await.unwrap() == Stats::default()
                    {
                        return done;
                    }
                    let finish = |lease: Lease| {
                        let round = lease.job.payload.len();
                        done.push((lease.job.key, round));
                        let payload = Some(vec![0; round + 1]);
                        let again = Successor::Again {
                            due: Due::At(at(0)),
                            payload,
                        };
                        let next = if round + 1 == ROUNDS {
                            Successor::Done
                        } else {
                            again
                        };
                        Finish::new(lease.token, next)
                    };
                    let finishes: Vec<_> = leases.into_iter().map(finish).collect();
                    for held in queue.finish(finishes).await.unwrap() {
                        assert_eq!(held, TokenStanding::Yes);
                    }
                }
            })
        })
        .collect();
    let mut done = Vec::new();
    for worker in workers {
        done.extend(worker.await.unwrap());
    }
    assert_eq!(done.len(), JOBS * ROUNDS);
    assert_eq!(done.iter().collect::<HashSet<_>>().len(), JOBS * ROUNDS);
}

/// Leases and finishes jobs again and again. Asserts that nobody else has those with even keys.
async fn work(queue: impl Queue, rounds: usize, held: Arc<Mutex<HashSet<String>>>) {
    for round in 0..rounds {
        let leases = leased(&queue, Want { max: 5, ..ONE }).await;
        let is_even = |key: &str| key.parse::<usize>().unwrap().is_multiple_of(2);
        let all = leases.iter().map(|lease| lease.job.key.clone());
        let even: Vec<String> = all.filter(|key| is_even(key)).collect();
        for key in &even {
            assert!(held.lock().insert(key.clone()), "{key}");
        }
        let extend = |lease: &Lease| Extension {
            token: lease.token.clone(),
            lease: 60 * SECOND,
            note: Some(vec![7]),
        };
        let extensions = leases.iter().map(extend).collect();
        queue.extend(extensions).await.unwrap();
        for key in &even {
            held.lock().remove(key);
        }
        let again = |lease: &Lease| {
            let due = Due::At(at(-i64::try_from(round % 3).unwrap()));
            Finish::new(lease.token.clone(), Successor::Again { due, payload: None })
        };
        let finishes = leases.iter().map(again).collect();
        queue.finish(finishes).await.unwrap();
    }
}

/// While others move, remove and note jobs, no job is leased that somebody has, and none is lost.
pub(crate) async fn jobs_that_change_are_leased_as_they_are(queue: impl Queue, _: Manual) {
    const JOBS: usize = 40;
    const ROUNDS: usize = 60;
    let job = |key: usize, due| thing(&key.to_string(), due);
    schedule(&queue, (0..JOBS).map(|key| job(key, 0)).collect()).await;
    let held = Arc::new(Mutex::new(HashSet::new()));
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..4 {
        tasks.spawn(work(queue.clone(), ROUNDS, Arc::clone(&held)));
    }
    let mover = queue.clone();
    tasks.spawn(async move {
        for round in 0..ROUNDS {
            let due = -i64::try_from(round % 5).unwrap();
            let moved = (0..JOBS).step_by(2).map(|key| job(key, due)).collect();
            mover.schedule(moved, Existing::Move).await.unwrap();
        }
    });
    let remover = queue.clone();
    tasks.spawn(async move {
        for round in 0..ROUNDS {
            let odd = (2 * round + 1) % JOBS;
            let (name, keys) = (things(), vec![odd.to_string()]);
            assert_eq!(remover.remove(&name, keys).await.unwrap(), 1);
            schedule(&remover, vec![job(odd, 0)]).await;
        }
    });
    while let Some(ended) = tasks.join_next().await {
        ended.unwrap();
    }
    let all = Want {
        max: JOBS + 1,
        ..ONE
    };
    assert_eq!(leased(&queue, all).await.len(), JOBS);
}
