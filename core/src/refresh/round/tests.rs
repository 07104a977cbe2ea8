//! Rounds against providers that refuse, fail, forbid and show nothing.

use super::*;
use crate::digest::Digest;

const NOW: i64 = 1_767_225_600_000_000;

fn now() -> Timestamp {
    Timestamp::from_micros(NOW)
}

/// Passes a request of a credential on.
fn by<T>(credential: &str, take: impl FnOnce(&RoundRequest<'_>) -> T) -> T {
    take(&RoundRequest {
        credential,
        credentials: 1,
        now: now(),
        intervals: &Intervals::default(),
        jitter: 0.0,
    })
}

fn refuse(round: &mut RefreshRound, status: u16) -> Option<Duration> {
    by("key", |request| round.refused(request, status))
}

/// Answers a request with a value for each item.
fn answer(round: &mut RefreshRound, ids: Vec<String>) {
    let (counted, exact) = (Digest::of(b"v"), Digest::of(b"v"));
    let found = ids.into_iter().map(|id| (id, Value { counted, exact }));
    let found = found.collect();
    by("key", |request| round.asked(request, found, Duration::ZERO));
}

/// Returns the standing of a provider that answered so many seconds ago.
fn answered(seconds: i64) -> ProviderStanding {
    let at = Timestamp::from_micros(NOW - seconds * 1_000_000);
    ProviderStanding {
        answered: HashMap::from([("key".to_owned(), at)]),
        ..ProviderStanding::default()
    }
}

fn round(items: usize) -> RefreshRound {
    let item = |number: usize| LeasedItem {
        id: number.to_string(),
        slot: now(),
        state: ItemState::new(now(), now()),
        note: None,
    };
    RefreshRound::new((0..items).map(item).collect(), ProviderStanding::default())
}

/// Runs a round against a provider that refuses each request with one of some items. Returns the requests, and the
/// round.
fn run(items: usize, poison: &[usize]) -> (usize, RefreshRound) {
    let mut round = round(items);
    let mut requests = 0;
    while let Some(RoundStep::Ask(ids)) = round.step() {
        requests += 1;
        if ids.iter().any(|id| poison.contains(&id.parse().unwrap())) {
            assert_eq!(refuse(&mut round, 400), None);
        } else {
            answer(&mut round, ids);
        }
    }
    (requests, round)
}

/// Goal: one item that the provider does not like costs few requests, and fails alone.
#[test]
fn the_item_at_fault_is_found() {
    for fault in 0..100 {
        let (requests, mut round) = run(100, &[fault]);
        assert!(requests <= 15, "{requests}");
        let Some(RoundStep::Note(notes)) = round.step() else {
            panic!("no notes");
        };
        assert_eq!(notes.len(), 99);
        round.noted(&[]);
        round.published(vec![]);
        let Some(RoundStep::Finish(endings)) = round.step() else {
            panic!("no endings");
        };
        for (index, ending) in endings {
            assert_eq!(matches!(ending, JobEnding::Failed(_)), index == fault);
        }
    }
    for poison in [vec![3, 4, 17], vec![0, 1, 2, 3], (0..10).collect()] {
        let (_, round) = run(20, &poison);
        assert_eq!(round.due_publications().len(), 20 - poison.len());
    }
}

/// Refuses every request of a round. Returns the number of requests, and the pause at the end.
fn refuse_all(round: &mut RefreshRound, status: u16) -> (usize, Option<Duration>) {
    let mut requests = 0;
    let mut pause = None;
    while let Some(RoundStep::Ask(_)) = round.step() {
        requests += 1;
        pause = refuse(round, status);
    }
    (requests, pause)
}

fn endings(round: &RefreshRound) -> Vec<JobEnding> {
    let Some(RoundStep::Finish(endings)) = round.step() else {
        panic!("no endings: {:?}", round.step());
    };
    endings.into_iter().map(|(_, ending)| ending).collect()
}

/// Goal: a provider that refuses everything kills no item and holds no worker; its items come back later.
#[test]
fn a_request_that_is_refused_whatever_it_asks_for_is_at_fault() {
    let statuses = [400, 404, 410];
    for (items, status) in [1, 2, 3, 5, 50, 100]
        .into_iter()
        .flat_map(|items| statuses.map(|status| (items, status)))
    {
        let mut first = round(items);
        let (requests, pause) = refuse_all(&mut first, status);
        assert!(requests <= 10, "{requests}");
        let pause = pause.unwrap();
        let endings = endings(&first);
        assert_eq!(endings.len(), items);
        for ending in endings {
            let JobEnding::Later(after) = ending else {
                panic!("{ending:?}");
            };
            assert_eq!(after, pause);
        }
        // The pause grows from round to round.
        let mut next = RefreshRound::new(first.items.clone(), first.standing());
        assert_eq!(refuse_all(&mut next, status).1, Some(2 * pause));
    }
}

/// Goal: where the provider answers others, several items at fault in one batch fail, and nothing else does.
#[test]
fn a_batch_of_items_at_fault_only_fails_if_others_were_answered() {
    let mut trusted = RefreshRound::new(round(3).items, answered(30));
    assert_eq!(refuse_all(&mut trusted, 400).1, None);
    assert!(
        endings(&trusted)
            .iter()
            .all(|one| matches!(one, JobEnding::Failed(_)))
    );
    // By the time of the next try nothing else was answered.
    let mut doubted = RefreshRound::new(round(3).items, answered(61));
    assert!(refuse_all(&mut doubted, 400).1.is_some());
    assert!(
        endings(&doubted)
            .iter()
            .all(|one| matches!(one, JobEnding::Later(_)))
    );
    // Absent: between two refreshes of the item there was an answer.
    let mut gone = RefreshRound::new(round(1).items, answered(61));
    assert_eq!(refuse_all(&mut gone, 404).1, None);
    let JobEnding::Again { state, .. } = &endings(&gone)[0] else {
        panic!("{:?}", endings(&gone));
    };
    assert_eq!(state.absences, 1);
}

/// Goal: a provider that says that nothing is there, for a while, ends no item.
#[test]
fn an_answer_without_any_item_counts_if_others_were_shown() {
    let absences = |standing: ProviderStanding| {
        let mut empty = RefreshRound::new(round(2).items, standing);
        by("key", |request| {
            empty.asked(request, HashMap::new(), Duration::ZERO);
        });
        let JobEnding::Again { state, due } = &endings(&empty)[0] else {
            panic!("{:?}", endings(&empty));
        };
        assert_eq!(*due, now().plus_micros(120_000_000));
        (state.absences, empty.standing().answered)
    };
    assert_eq!(absences(ProviderStanding::default()), (0, HashMap::new()));
    for (standing, expected) in [(answered(60), 1), (answered(121), 0)] {
        let before = standing.answered.clone();
        assert_eq!(absences(standing), (expected, before));
    }
}

/// Goal: one item that the provider fails at does not keep others from being refreshed, and an outage is no item's fault.
#[test]
fn the_item_that_a_provider_fails_at_is_found() {
    let fail = |round: &mut RefreshRound| refuse(round, 500);
    let mut one = RefreshRound::new(round(100).items, answered(0));
    while let Some(RoundStep::Ask(ids)) = one.step() {
        if ids.contains(&"42".to_owned()) {
            fail(&mut one);
        } else {
            answer(&mut one, ids);
        }
    }
    assert_eq!(one.due_publications().len(), 99);
    let failed = "the provider answered 500 for this item alone".to_owned();
    assert!(
        one.item_endings()
            .contains(&(42, JobEnding::Failed(failed)))
    );

    let mut outage = round(100);
    let mut requests = 0;
    while let Some(RoundStep::Ask(_)) = outage.step() {
        requests += 1;
        fail(&mut outage);
    }
    assert_eq!(requests, 3);
    assert!(
        endings(&outage)
            .iter()
            .all(|one| matches!(one, JobEnding::Later(_)))
    );
}

/// A provider that fails with a status at requests with some items.
struct Picky<P> {
    status: u16,
    is_poison: P,
    /// Time that a request takes, in seconds.
    takes: i64,
    seconds: i64,
    requests: usize,
}

impl<P: Fn(&str) -> bool> Picky<P> {
    fn new(status: u16, is_poison: P) -> Self {
        Self {
            status,
            is_poison,
            takes: 5,
            seconds: 0,
            requests: 0,
        }
    }

    fn ask(&mut self, round: &mut RefreshRound, ids: Vec<String>) {
        self.requests += 1;
        assert!(self.requests < 1_000, "no end");
        self.seconds += self.takes;
        let intervals = Intervals::default();
        let request = RoundRequest {
            credential: "key",
            credentials: 1,
            now: Timestamp::from_micros(NOW + self.seconds * 1_000_000),
            intervals: &intervals,
            jitter: 0.0,
        };
        if ids.iter().any(|id| (self.is_poison)(id)) {
            if let Some(pause) = round.refused(&request, self.status) {
                self.seconds += i64::try_from(pause.as_secs()).unwrap();
            }
        } else {
            let (counted, exact) = (Digest::of(b"v"), Digest::of(b"v"));
            let found = ids.into_iter().map(|id| (id, Value { counted, exact }));
            round.asked(&request, found.collect(), Duration::ZERO);
        }
    }

    /// Works on a batch, round by round, until each item has an answer or failed; one that has an answer comes again beside
    /// the others. Returns the requests, and the minutes.
    fn work(mut self, mut items: Vec<LeasedItem>) -> (usize, i64) {
        let mut standing = ProviderStanding::default();
        let good = items.iter().find(|item| !(self.is_poison)(&item.id));
        let good = good.unwrap().clone();
        let is_open = |items: &[LeasedItem]| items.iter().any(|item| item.id != good.id);
        while is_open(&items) {
            let mut round = RefreshRound::new(items.clone(), standing);
            while let Some(RoundStep::Ask(ids)) = round.step() {
                self.ask(&mut round, ids);
            }
            standing = round.standing();
            round.noted(&[]);
            round.published(vec![]);
            let mut later = Vec::new();
            for (index, ending) in round.item_endings() {
                let is_poison = (self.is_poison)(&items[index].id);
                match ending {
                    JobEnding::Again { .. } => assert!(!is_poison),
                    JobEnding::Failed(_) => assert!(is_poison),
                    JobEnding::Later(time) => {
                        assert!(time >= LATER);
                        later.push(items[index].clone());
                    }
                    JobEnding::Done => panic!("an item ended"),
                }
            }
            if later.iter().all(|item| item.id != good.id) {
                later.push(good.clone());
            }
            items = later;
        }
        (self.requests, self.seconds / 60)
    }
}

/// Goal: nothing stands still, however many of a batch are at fault, as long as one is not.
#[test]
fn many_items_at_fault_do_not_stop_the_others() {
    for (status, requests_max, minutes_max) in [(400, 500, 60), (403, 200, 60), (500, 250, 40)] {
        for every in [2, 3, 5, 10, 50] {
            for first in 0..every {
                let is_poison = |id: &str| id.parse::<usize>().unwrap() % every == first;
                let (requests, minutes) = Picky::new(status, is_poison).work(round(100).items);
                assert!(
                    requests < requests_max && minutes < minutes_max,
                    "{status}, {every}, {first}: {requests} requests, {minutes} min"
                );
            }
        }
    }
    let (requests, minutes) = Picky::new(400, |id| id != "99").work(round(100).items);
    assert!(requests < 500 && minutes < 300, "{requests} {minutes}");
}

/// Goal: an item at fault is found also where there is little other traffic, and requests are slow or seldom.
#[test]
fn an_item_at_fault_is_found_by_a_slow_provider() {
    for status in [400, 403, 500] {
        for items in [2, 4, 100] {
            let slow = Picky {
                takes: 90,
                ..Picky::new(status, |id| id == "1")
            };
            let (requests, minutes) = slow.work(round(items).items);
            assert!(
                requests < 50 && minutes < 90,
                "{status}, {items}: {requests} requests, {minutes} min"
            );
        }
    }
}

/// Goal: a credential that is accepted no more is at fault itself; another one goes on, and no item fails.
#[test]
fn a_revoked_credential_gives_nothing_back_while_another_works() {
    let mut both = RefreshRound::new(round(2).items, answered(0));
    let forbid = |round: &mut RefreshRound, credential| {
        let intervals = Intervals::default();
        let request = RoundRequest {
            credential,
            credentials: 2,
            now: now(),
            intervals: &intervals,
            jitter: 0.0,
        };
        round.refused(&request, 403)
    };
    assert_eq!(forbid(&mut both, "revoked"), Some(PAUSE_OF_CREDENTIAL));
    assert!(matches!(both.step(), Some(RoundStep::Ask(ids)) if ids.len() == 2));
    // The other one may see one of the two.
    assert_eq!(forbid(&mut both, "key"), None);
    assert!(matches!(both.step(), Some(RoundStep::Ask(ids)) if ids.len() == 1));

    let mut none = RefreshRound::new(round(1).items, ProviderStanding::default());
    assert!(forbid(&mut none, "one").is_some());
    assert!(forbid(&mut none, "two").is_some());
    assert!(matches!(endings(&none)[..], [JobEnding::Later(_)]));
}

/// Goal: after an outage, requests are soon full again; a batch of one changes nothing.
#[test]
fn requests_grow_again() {
    let mut standing = ProviderStanding::default();
    for _ in 0..10 {
        let mut outage = RefreshRound::new(round(100).items, standing);
        refuse_all(&mut outage, 400);
        standing = outage.standing();
    }
    let mut after = RefreshRound::new(round(100).items, standing);
    let mut sizes = Vec::new();
    while let Some(RoundStep::Ask(ids)) = after.step() {
        sizes.push(ids.len());
        // Also an answer without any item is one.
        by("key", |request| {
            after.asked(request, HashMap::new(), Duration::ZERO);
        });
    }
    assert_eq!(sizes.iter().sum::<usize>(), 100);
    assert!(sizes[0] == 1 && sizes.len() < 10, "{sizes:?}");
    let mut alone = RefreshRound::new(round(1).items, ProviderStanding::default());
    refuse_all(&mut alone, 400);
    let next = RefreshRound::new(round(100).items, alone.standing());
    assert!(matches!(next.step(), Some(RoundStep::Ask(ids)) if ids.len() == 100));
}

/// Goal: an answer that cannot be read does not hold a batch for ever; a quota that is used up counts as nothing.
#[test]
fn what_is_no_answer_is_given_back() {
    for status in [200, 302, 408, 500] {
        let mut unread = round(100);
        let mut requests = 0;
        while let Some(RoundStep::Ask(_)) = unread.step() {
            requests += 1;
            by("key", |request| unread.failed(request, Some(status), None));
        }
        assert_eq!(requests, 3, "{status}");
    }
    for status in [401, 429] {
        let mut paused = round(100);
        for _ in 0..20 {
            assert!(refuse(&mut paused, status).is_some());
            assert!(matches!(paused.step(), Some(RoundStep::Ask(ids)) if ids.len() == 100));
        }
    }
}

/// Goal: what the provider refuses for ever ends some time.
#[test]
fn an_item_that_has_ended_is_not_tried_for_ever() {
    let mut old = round(2).items;
    let days = |days: i64| Timestamp::from_micros(NOW - days * 86_400_000_000);
    old[0].state.born = days(36).micros();
    old[1].state.born = days(37).micros();
    let mut round = RefreshRound::new(old, ProviderStanding::default());
    assert!(refuse_all(&mut round, 400).1.is_some());
    let endings = endings(&round);
    assert!(matches!(endings[0], JobEnding::Later(_)));
    assert_eq!(endings[1], JobEnding::Done);
}

#[test]
fn pauses_grow_have_jitter_and_keep_what_was_named() {
    let seconds = Duration::from_secs;
    assert_eq!(pause(0, Some(503), None, 0.0), seconds(1));
    assert_eq!(pause(3, None, None, 0.0), seconds(8));
    assert_eq!(pause(30, None, None, 0.0), PAUSE_MAX);
    assert_eq!(pause(0, Some(429), Some(seconds(60)), 0.0), seconds(60));
    assert_eq!(pause(0, Some(429), Some(seconds(60)), 1.0), seconds(90));
    assert_eq!(pause(3, Some(503), Some(seconds(0)), 0.0), seconds(8));
    assert_eq!(pause(0, Some(401), None, 0.0), PAUSE_OF_CREDENTIAL);
}
