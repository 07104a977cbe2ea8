//! One batch of items from lease to finish, step by step.
//!
//! ```text
//! ask ──► note what will be published ──► publish ──► finish
//!  ▲ │ └─► finish, all given back: the provider answers nothing
//!  └─┴ a refused request is split until the item at fault is alone
//! ```
//!
//! A worker may be killed between any two steps: the lease expires, and another worker begins anew with what was noted.

use std::{
    collections::{HashMap, VecDeque},
    ops::Range,
    time::Duration,
};

use super::{
    Intervals,
    item::{Decision, Leased, Note, Publication, Seen, State, Value, decide},
};
use crate::timestamp::Timestamp;

/// Refused requests of a round, without any answer, after which it is given up. The larger parts are asked for first, so
/// that this means one item at fault in every ten.
const REFUSALS_MAX: u32 = 10;
/// Failed requests for a part, one after the other, after which it is given up, or split if the provider answers others: one
/// item may be what it fails at.
const TRIES_MAX: u32 = 3;
/// Time after a provider's last answer in which its refusals mean the items: less than until an item is tried again. So an
/// outage counts once against an item, at most.
const TRUST: Duration = Duration::from_mins(1);
/// Time after the end of an item's life in which it is tried again, if the provider answers nothing.
const PATIENCE: Duration = Duration::from_hours(7 * 24);
/// Longest pause after failed requests that name none.
const PAUSE_MAX: Duration = Duration::from_mins(15);
/// Longest pause that a provider can name.
const NAMED_MAX: Duration = Duration::from_hours(24);
/// Pause for a credential that the provider does not accept.
const PAUSE_OF_CREDENTIAL: Duration = Duration::from_mins(5);

/// Meaning of an HTTP status for a request of several items.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meaning {
    /// The body is an answer.
    Answer,
    /// One of the items, or the request, is at fault.
    Refusal,
    /// The provider or the credential is: no item is.
    Failure,
}

/// Returns the meaning of a status.
pub fn meaning(status: u16) -> Meaning {
    match status {
        200..=299 => Meaning::Answer,
        // A credential, too many requests, a request that was too slow.
        401 | 402 | 403 | 407 | 408 | 421 | 425 | 429 => Meaning::Failure,
        400..=499 => Meaning::Refusal,
        _ => Meaning::Failure,
    }
}

/// Returns how long a credential pauses after so many failed requests in a row.
///
/// `jitter` is from 0 to 1: workers that failed together must not come back together. A pause that the provider names is
/// never shortened; a shorter one than usual changes nothing.
pub fn pause(failures: u32, status: Option<u16>, named: Option<Duration>, jitter: f64) -> Duration {
    let doubled = Duration::from_secs(1) * 2_u32.saturating_pow(failures.min(20));
    let least = match (named, status) {
        (Some(named), _) => named.min(NAMED_MAX).max(doubled.min(PAUSE_MAX)),
        (None, Some(401 | 403)) => PAUSE_OF_CREDENTIAL,
        (None, _) => doubled.min(PAUSE_MAX),
    };
    least.mul_f64(1.0 + jitter.clamp(0.0, 1.0) / 2.0)
}

/// Next step of a worker with its batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Reserve one request of a credential, and ask the provider for these distinct ids.
    Ask(Vec<String>),
    /// Store these notes durably, by place in the batch.
    Note(Vec<(usize, Note)>),
    /// Publish these events.
    Publish(Vec<Publication>),
    /// Finish all jobs that are still held, by place in the batch.
    Finish(Vec<(usize, Ending)>),
}

/// How a job ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// It comes again.
    Again {
        /// Its next slot.
        due: Timestamp,
        /// Its state then.
        state: State,
    },
    /// Its item has ended.
    Done,
    /// It failed, with this reason.
    Failed(String),
    /// It is given back as it was, to be leased again after this time. That counts against nothing.
    Later(Duration),
}

/// How the provider has answered a worker so far. A worker passes it on from round to round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// Time of its last answer with an item.
    answered: Option<Timestamp>,
    /// Failed requests and rounds without an answer in a row.
    failures: u32,
}

impl Standing {
    /// Returns whether a refusal means its item: there was an answer a short time ago.
    fn is_trusted(self, now: Timestamp, span: Duration) -> bool {
        let span = u64::try_from(span.as_micros()).unwrap_or(u64::MAX);
        self.answered
            .is_some_and(|answered| now < answered.plus_micros(span))
    }
}

/// Where a round stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Asking,
    Noting,
    Publishing,
    Finishing,
    Over,
}

/// Decision about an item of the batch.
#[derive(Clone, Debug)]
enum Fate {
    Open,
    Decided(Decision),
    Failed(String),
    /// The provider answers nothing.
    Later,
    /// Another worker has it now.
    Lost,
}

/// One batch of items.
#[derive(Clone, Debug)]
pub struct Round {
    items: Vec<Leased>,
    fates: Vec<Fate>,
    /// Parts of the batch that are not answered; the first one is asked for next.
    parts: VecDeque<Range<usize>>,
    phase: Phase,
    /// Items that were refused alone, each with its status.
    alone: Vec<(usize, Option<u16>)>,
    /// Whether a request of the round was answered.
    is_answered: bool,
    refusals: u32,
    /// Failed requests for the first part.
    tries: u32,
    standing: Standing,
    /// Time for which items are given back.
    later: Duration,
}

impl Round {
    /// Begins with a batch, whose ids are distinct. `standing` is that of the worker's round before.
    pub fn new(items: Vec<Leased>, standing: Standing) -> Self {
        let mut round = Self {
            fates: vec![Fate::Open; items.len()],
            parts: VecDeque::new(),
            phase: Phase::Asking,
            alone: Vec::new(),
            is_answered: false,
            refusals: 0,
            tries: 0,
            standing,
            later: Duration::ZERO,
            items,
        };
        if !round.items.is_empty() {
            round.parts.push_back(0..round.items.len());
        }
        round.advance();
        round
    }

    /// Returns the provider's standing, for the worker's next round.
    pub fn standing(&self) -> Standing {
        self.standing
    }

    /// Returns the next step; nothing if the round is over. The worker says how it went by the method of its name.
    pub fn step(&self) -> Option<Step> {
        match self.phase {
            Phase::Asking => {
                let part = self.parts.front()?.clone();
                let items = self.items.get(part).unwrap_or_default();
                Some(Step::Ask(
                    items.iter().map(|item| item.id.clone()).collect(),
                ))
            }
            Phase::Noting => {
                let note = |event: Publication| {
                    let item = self.items.get(event.index)?;
                    Some((event.index, item.note_of(event.what)))
                };
                Some(Step::Note(
                    self.publications().into_iter().filter_map(note).collect(),
                ))
            }
            Phase::Publishing => Some(Step::Publish(self.publications())),
            Phase::Finishing => Some(Step::Finish(self.endings())),
            Phase::Over => None,
        }
    }

    /// Takes an answer to the request: a value for each id present. `floor` is the time for which the provider wants no
    /// other request for these items.
    pub fn asked(
        &mut self,
        mut found: HashMap<String, Value>,
        now: Timestamp,
        intervals: &Intervals,
        floor: Duration,
    ) {
        let Some(part) = self.parts.pop_front() else {
            return;
        };
        self.is_answered = true;
        self.tries = 0;
        self.standing.failures = 0;
        let asked = self.items.get(part.clone()).unwrap_or_default();
        let is_empty = asked.iter().all(|item| !found.contains_key(&item.id));
        if !is_empty {
            self.standing.answered = Some(now);
        }
        let floor = floor.min(NAMED_MAX);
        for index in part {
            if let (Some(item), Some(fate)) = (self.items.get(index), self.fates.get_mut(index)) {
                let seen = match found.remove(&item.id) {
                    Some(value) => Seen::Value(value),
                    // A provider with a fault may answer that there is nothing at all.
                    None if is_empty && !is_shown(item, self.standing, now, intervals) => {
                        Seen::Unknown
                    }
                    None => Seen::Absent,
                };
                *fate = Fate::Decided(decide(item, seen, now, intervals, floor));
            }
        }
        self.end_asking(now, intervals);
    }

    /// Takes a refusal of the request. Returns the pause of the credential, if the provider and not an item is at fault.
    pub fn refused(
        &mut self,
        status: u16,
        now: Timestamp,
        intervals: &Intervals,
        jitter: f64,
    ) -> Option<Duration> {
        let part = self.parts.pop_front()?;
        self.refusals += 1;
        self.tries = 0;
        self.split(part, Some(status));
        let is_hopeless = self.refusals >= REFUSALS_MAX && !self.is_answered;
        if is_hopeless {
            self.parts.clear();
        }
        self.end_asking(now, intervals);
        let is_given_up = self.fates.iter().any(|fate| matches!(fate, Fate::Later));
        let is_over = self.phase != Phase::Asking;
        (is_over && is_given_up && !self.is_answered).then(|| {
            self.later = self.pause(Some(status), None, jitter);
            self.later
        })
    }

    /// Halves a part, until an item is alone.
    fn split(&mut self, part: Range<usize>, status: Option<u16>) {
        if part.len() == 1 {
            self.alone.push((part.start, status));
        } else {
            let middle = part.start + part.len() / 2;
            self.parts.push_back(part.start..middle);
            self.parts.push_back(middle..part.end);
        }
    }

    fn pause(&mut self, status: Option<u16>, named: Option<Duration>, jitter: f64) -> Duration {
        let pause = pause(self.standing.failures, status, named, jitter);
        self.standing.failures += 1;
        pause
    }

    /// Decides about items that were refused alone, and about those without an answer, once nothing is asked for any more.
    fn end_asking(&mut self, now: Timestamp, intervals: &Intervals) {
        if self.parts.is_empty() {
            for (index, status) in std::mem::take(&mut self.alone) {
                if let (Some(item), Some(fate)) = (self.items.get(index), self.fates.get_mut(index))
                {
                    *fate = fate_alone(item, status, self.standing, now, intervals);
                }
            }
            for (item, fate) in self.items.iter().zip(&mut self.fates) {
                if matches!(fate, Fate::Open) {
                    *fate = Fate::Later;
                }
                if matches!(fate, Fate::Later) && has_ended_for_long(item, now, intervals) {
                    *fate = Fate::Decided(Decision {
                        publish: None,
                        next: None,
                    });
                }
            }
        }
        self.advance();
    }

    /// Takes a failure of the request. Returns the pause of the credential; after it, or with another one, the request is
    /// made again. After three of them its items are given back, or asked for in smaller parts if the provider answers
    /// others.
    pub fn failed(
        &mut self,
        status: Option<u16>,
        named: Option<Duration>,
        now: Timestamp,
        intervals: &Intervals,
        jitter: f64,
    ) -> Duration {
        let pause = self.pause(status, named, jitter);
        // Others are the credential's.
        self.tries += u32::from(matches!(status, None | Some(408 | 500..)));
        if self.tries >= TRIES_MAX {
            self.tries = 0;
            self.later = pause;
            let is_trusted = self.is_answered || self.standing.is_trusted(now, TRUST);
            if let Some(part) = self.parts.pop_front().filter(|_| is_trusted) {
                self.split(part, status);
            }
            self.end_asking(now, intervals);
        }
        pause
    }

    /// Takes which jobs another worker has, by place in the batch. Nothing more is done with them.
    pub fn noted(&mut self, lost: &[usize]) {
        for index in lost {
            if let Some(fate) = self.fates.get_mut(*index) {
                *fate = Fate::Lost;
            }
        }
        self.phase = Phase::Publishing;
        self.advance();
    }

    /// Takes which events were refused, by place in the batch, and why. Each fails alone.
    pub fn published(&mut self, refused: Vec<(usize, String)>) {
        for (index, reason) in refused {
            if let Some(fate) = self.fates.get_mut(index) {
                *fate = Fate::Failed(reason);
            }
        }
        self.phase = Phase::Finishing;
    }

    /// Takes that the jobs are finished.
    pub fn finished(&mut self) {
        self.phase = Phase::Over;
    }

    /// Passes phases in which there is nothing to do.
    fn advance(&mut self) {
        if self.phase == Phase::Asking && self.parts.is_empty() {
            self.phase = Phase::Noting;
        }
        if matches!(self.phase, Phase::Noting | Phase::Publishing) && self.publications().is_empty()
        {
            self.phase = Phase::Finishing;
        }
    }

    fn publications(&self) -> Vec<Publication> {
        let publication = |(index, (item, fate)): (usize, (&Leased, &Fate))| match fate {
            Fate::Decided(Decision {
                publish: Some(what),
                ..
            }) => {
                let (id, slot, what) = (item.id.clone(), item.slot, *what);
                Some(Publication {
                    index,
                    id,
                    slot,
                    what,
                })
            }
            Fate::Decided(_) | Fate::Open | Fate::Failed(_) | Fate::Later | Fate::Lost => None,
        };
        self.items
            .iter()
            .zip(&self.fates)
            .enumerate()
            .filter_map(publication)
            .collect()
    }

    fn endings(&self) -> Vec<(usize, Ending)> {
        // Those that come back together would be refused together.
        let spread = self.later / u32::try_from(self.items.len().max(1)).unwrap_or(u32::MAX);
        let ending = |(index, fate): (usize, &Fate)| {
            let ending = match fate {
                Fate::Decided(Decision {
                    next: Some((due, state)),
                    ..
                }) => Ending::Again {
                    due: *due,
                    state: state.clone(),
                },
                Fate::Decided(Decision { next: None, .. }) => Ending::Done,
                Fate::Failed(reason) => Ending::Failed(reason.clone()),
                Fate::Later => {
                    let place = u32::try_from(index).unwrap_or(u32::MAX);
                    Ending::Later(self.later + spread.saturating_mul(place))
                }
                Fate::Open | Fate::Lost => return None,
            };
            Some((index, ending))
        };
        self.fates.iter().enumerate().filter_map(ending).collect()
    }
}

/// Returns the fate of an item that was refused alone. The provider may refuse everything: that cannot be told from an item
/// at fault unless there was an answer a short time ago.
fn fate_alone(
    item: &Leased,
    status: Option<u16>,
    standing: Standing,
    now: Timestamp,
    intervals: &Intervals,
) -> Fate {
    if matches!(status, Some(404 | 410)) {
        if is_shown(item, standing, now, intervals) {
            return Fate::Decided(decide(item, Seen::Absent, now, intervals, Duration::ZERO));
        }
    } else if standing.is_trusted(now, TRUST) {
        return Fate::Failed(match status {
            Some(status) => format!("the provider answered {status} for this item alone"),
            None => "the provider gave no answer for this item alone".to_owned(),
        });
    }
    Fate::Later
}

/// Returns whether the provider showed others less than an interval of the item ago: its present one, or that of its refresh
/// before if it was shorter. By its next refresh an outage has lasted for longer, and so it counts once against the item.
fn is_shown(item: &Leased, standing: Standing, now: Timestamp, intervals: &Intervals) -> bool {
    let age = now.micros().saturating_sub(item.state.born);
    let age = Duration::from_micros(u64::try_from(age).unwrap_or(0));
    let interval = |age| intervals.of_age(age).unwrap_or_default();
    let present = interval(age);
    let shortest = present.min(interval(age.saturating_sub(present)));
    standing.is_trusted(now, shortest)
}

/// Returns whether an item needs no answer any more, because its life ended long ago.
fn has_ended_for_long(item: &Leased, now: Timestamp, intervals: &Intervals) -> bool {
    let patience = i64::try_from(PATIENCE.as_micros()).unwrap_or(i64::MAX);
    let before = Timestamp::from_micros(now.micros().saturating_sub(patience));
    item.state.next(before, intervals, Duration::ZERO).is_none()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::digest::Digest;

    const NOW: i64 = 1_767_225_600_000_000;

    fn now() -> Timestamp {
        Timestamp::from_micros(NOW)
    }

    fn round(items: usize) -> Round {
        let item = |number: usize| Leased {
            id: number.to_string(),
            slot: now(),
            state: State::new(now()),
            note: None,
        };
        Round::new((0..items).map(item).collect(), Standing::default())
    }

    /// Runs a round against a provider that refuses each request with one of some items. Returns the requests, and the
    /// round.
    fn run(items: usize, poison: &[usize]) -> (usize, Round) {
        let mut round = round(items);
        let mut requests = 0;
        let (counted, exact) = (Digest::of(b"v"), Digest::of(b"v"));
        let value = Value { counted, exact };
        while let Some(Step::Ask(ids)) = round.step() {
            requests += 1;
            if ids.iter().any(|id| poison.contains(&id.parse().unwrap())) {
                assert_eq!(round.refused(400, now(), &Intervals::default(), 0.0), None);
            } else {
                let found = ids.iter().map(|id| (id.clone(), value)).collect();
                round.asked(found, now(), &Intervals::default(), Duration::ZERO);
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
            let Some(Step::Note(notes)) = round.step() else {
                panic!("no notes");
            };
            assert_eq!(notes.len(), 99);
            round.noted(&[]);
            round.published(vec![]);
            let Some(Step::Finish(endings)) = round.step() else {
                panic!("no endings");
            };
            for (index, ending) in endings {
                assert_eq!(matches!(ending, Ending::Failed(_)), index == fault);
            }
        }
        for poison in [vec![3, 4, 17], vec![0, 1, 2, 3], (0..10).collect()] {
            let (_, round) = run(20, &poison);
            assert_eq!(round.publications().len(), 20 - poison.len());
        }
    }

    /// Refuses every request of a round. Returns the number of requests, and the pause at the end.
    fn refuse_all(round: &mut Round, status: u16) -> (usize, Option<Duration>) {
        let mut requests = 0;
        let mut pause = None;
        while let Some(Step::Ask(_)) = round.step() {
            requests += 1;
            pause = round.refused(status, now(), &Intervals::default(), 0.0);
        }
        (requests, pause)
    }

    fn endings(round: &Round) -> Vec<Ending> {
        let Some(Step::Finish(endings)) = round.step() else {
            panic!("no endings: {:?}", round.step());
        };
        endings.into_iter().map(|(_, ending)| ending).collect()
    }

    /// Goal: a provider that refuses everything kills no item and holds no worker; its items come back one after another.
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
            let mut before = Duration::ZERO;
            let endings = endings(&first);
            assert_eq!(endings.len(), items);
            for ending in endings {
                let Ending::Later(after) = ending else {
                    panic!("{ending:?}");
                };
                assert!(
                    after >= pause && after <= 2 * pause && after > before,
                    "{after:?}"
                );
                before = after;
            }
            // The pause grows from round to round.
            let mut next = Round::new(first.items.clone(), first.standing());
            assert_eq!(refuse_all(&mut next, status).1, Some(2 * pause));
        }
    }

    /// Goal: where the provider answers others, several items at fault in one batch fail, and nothing else does.
    #[test]
    fn a_batch_of_items_at_fault_only_fails_if_others_were_answered() {
        let answered = Standing {
            answered: Some(Timestamp::from_micros(NOW - 30_000_000)),
            failures: 0,
        };
        let mut trusted = Round::new(round(3).items, answered);
        assert_eq!(refuse_all(&mut trusted, 400).1, None);
        assert!(
            endings(&trusted)
                .iter()
                .all(|one| matches!(one, Ending::Failed(_)))
        );
        // By the time of the next try nothing else was answered.
        let later = Standing {
            answered: Some(Timestamp::from_micros(NOW - 61_000_000)),
            failures: 0,
        };
        let mut doubted = Round::new(round(3).items, later);
        assert!(refuse_all(&mut doubted, 400).1.is_some());
        assert!(
            endings(&doubted)
                .iter()
                .all(|one| matches!(one, Ending::Later(_)))
        );
        // Absent: between two refreshes of the item there was an answer.
        let mut gone = Round::new(round(1).items, later);
        assert_eq!(refuse_all(&mut gone, 404).1, None);
        let Ending::Again { state, .. } = &endings(&gone)[0] else {
            panic!("{:?}", endings(&gone));
        };
        assert_eq!(state.absences, 1);
    }

    /// Goal: a provider that says that nothing is there, for a while, ends no item.
    #[test]
    fn an_answer_without_any_item_counts_if_others_were_shown() {
        let absences = |standing: Standing| {
            let mut empty = Round::new(round(2).items, standing);
            empty.asked(HashMap::new(), now(), &Intervals::default(), Duration::ZERO);
            let Ending::Again { state, due } = &endings(&empty)[0] else {
                panic!("{:?}", endings(&empty));
            };
            assert_eq!(*due, now().plus_micros(120_000_000));
            (state.absences, empty.standing().answered)
        };
        assert_eq!(absences(Standing::default()), (0, None));
        let ago = |seconds: i64| Some(Timestamp::from_micros(NOW - seconds * 1_000_000));
        for (answered, expected) in [(ago(60), 1), (ago(121), 0)] {
            let failures = 0;
            let standing = Standing { answered, failures };
            assert_eq!(absences(standing), (expected, answered));
        }
    }

    /// Goal: one item that the provider fails at does not keep others from being refreshed, and an outage is no item's fault.
    #[test]
    fn the_item_that_a_provider_fails_at_is_found() {
        let answered = Standing {
            answered: Some(now()),
            failures: 0,
        };
        let value = Value {
            counted: Digest::of(b"v"),
            exact: Digest::of(b"v"),
        };
        let fail = |round: &mut Round| {
            round.failed(Some(500), None, now(), &Intervals::default(), 0.0);
        };
        let mut one = Round::new(round(100).items, answered);
        while let Some(Step::Ask(ids)) = one.step() {
            if ids.contains(&"42".to_owned()) {
                fail(&mut one);
            } else {
                let found = ids.into_iter().map(|id| (id, value)).collect();
                one.asked(found, now(), &Intervals::default(), Duration::ZERO);
            }
        }
        assert_eq!(one.publications().len(), 99);
        let failed = "the provider answered 500 for this item alone".to_owned();
        assert!(one.endings().contains(&(42, Ending::Failed(failed))));

        let mut outage = round(100);
        let mut requests = 0;
        while let Some(Step::Ask(_)) = outage.step() {
            requests += 1;
            fail(&mut outage);
        }
        assert_eq!(requests, 3);
        assert!(
            endings(&outage)
                .iter()
                .all(|one| matches!(one, Ending::Later(_)))
        );
    }

    /// Goal: what the provider refuses for ever ends some time.
    #[test]
    fn an_item_that_has_ended_is_not_tried_for_ever() {
        let mut old = round(2).items;
        let days = |days: i64| Timestamp::from_micros(NOW - days * 86_400_000_000);
        old[0].state.born = days(36).micros();
        old[1].state.born = days(37).micros();
        let mut round = Round::new(old, Standing::default());
        assert!(refuse_all(&mut round, 400).1.is_some());
        let endings = endings(&round);
        assert!(matches!(endings[0], Ending::Later(_)));
        assert_eq!(endings[1], Ending::Done);
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
}
