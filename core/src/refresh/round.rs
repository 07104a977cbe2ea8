//! One batch of items from lease to finish, step by step.
//!
//! ```text
//! ask ──► note what will be published ──► publish ──► finish
//!  ▲ │
//!  └─┴ a refused request is split until the item at fault is alone
//! ```
//!
//! A worker may be killed between any two steps: the lease expires, and another worker begins anew with what was noted.

use std::{collections::HashMap, ops::Range, time::Duration};

use super::{
    Intervals,
    item::{Decision, Leased, Note, Publication, Seen, State, Value, decide},
};
use crate::timestamp::Timestamp;

/// Refused requests in a row, without any answer, after which the request itself is at fault and not its items. To find
/// one item among 100 takes 8.
const REFUSALS_MAX: u32 = 10;
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
/// never shortened.
pub fn pause(failures: u32, status: Option<u16>, named: Option<Duration>, jitter: f64) -> Duration {
    let doubled = Duration::from_secs(1) * 2_u32.saturating_pow(failures.min(20));
    let least = match (named, status) {
        (Some(named), _) => named.min(NAMED_MAX),
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
    /// Another worker has it now.
    Lost,
}

/// One batch of items.
#[derive(Clone, Debug)]
pub struct Round {
    items: Vec<Leased>,
    fates: Vec<Fate>,
    /// Parts of the batch that are not answered; the last one is asked for next.
    parts: Vec<Range<usize>>,
    phase: Phase,
    /// Items that the provider says are gone, each alone. It counts once a request was answered: a provider whose address
    /// is wrong says that of all.
    gone: Vec<usize>,
    /// Whether a request was answered.
    is_answered: bool,
    refusals: u32,
    failures: u32,
}

impl Round {
    /// Begins with a batch. Its ids are distinct.
    pub fn new(items: Vec<Leased>) -> Self {
        let mut round = Self {
            fates: vec![Fate::Open; items.len()],
            parts: Vec::new(),
            phase: Phase::Asking,
            gone: Vec::new(),
            is_answered: false,
            refusals: 0,
            failures: 0,
            items,
        };
        round.begin();
        round
    }

    /// Asks for all that is open.
    fn begin(&mut self) {
        self.parts.clear();
        self.gone.clear();
        if !self.items.is_empty() {
            self.parts.push(0..self.items.len());
        }
        self.refusals = 0;
        self.advance();
    }

    /// Returns the next step; nothing if the round is over. The worker says how it went by the method of its name.
    pub fn step(&self) -> Option<Step> {
        match self.phase {
            Phase::Asking => {
                let part = self.parts.last()?.clone();
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
        let Some(part) = self.parts.pop() else {
            return;
        };
        self.is_answered = true;
        self.failures = 0;
        for index in part {
            if let (Some(item), Some(fate)) = (self.items.get(index), self.fates.get_mut(index)) {
                let seen = found.remove(&item.id).map_or(Seen::Absent, Seen::Value);
                *fate = Fate::Decided(decide(item, seen, now, intervals, floor));
            }
        }
        self.end_asking(now, intervals);
    }

    /// Decides about the items that are gone, once everything is asked.
    fn end_asking(&mut self, now: Timestamp, intervals: &Intervals) {
        if self.parts.is_empty() {
            for index in std::mem::take(&mut self.gone) {
                if let (Some(item), Some(fate)) = (self.items.get(index), self.fates.get_mut(index))
                {
                    let decision = decide(item, Seen::Absent, now, intervals, Duration::ZERO);
                    *fate = Fate::Decided(decision);
                }
            }
        }
        self.advance();
    }

    /// Takes a refusal of the request. Returns the pause of the credential, if the request and not an item is at fault.
    pub fn refused(
        &mut self,
        status: u16,
        now: Timestamp,
        intervals: &Intervals,
        jitter: f64,
    ) -> Option<Duration> {
        let part = self.parts.pop()?;
        self.refusals += 1;
        let is_alone = part.len() == 1;
        if is_alone && matches!(status, 404 | 410) {
            self.gone.push(part.start);
        } else if is_alone {
            if let Some(fate) = self.fates.get_mut(part.start) {
                *fate = Fate::Failed(format!(
                    "the provider answered {status} for this item alone"
                ));
            }
        } else {
            let middle = part.start + part.len() / 2;
            self.parts.push(middle..part.end);
            self.parts.push(part.start..middle);
        }
        let is_hopeless =
            self.refusals >= REFUSALS_MAX || self.parts.is_empty() && self.items.len() > 1;
        if is_hopeless && !self.is_answered {
            self.fates.fill(Fate::Open);
            self.begin();
            return Some(self.failed(Some(status), None, jitter));
        }
        self.end_asking(now, intervals);
        None
    }

    /// Takes a failure of the request, which counts against no item. Returns the pause of the credential; after it, or
    /// with another one, the same request is made again.
    pub fn failed(
        &mut self,
        status: Option<u16>,
        named: Option<Duration>,
        jitter: f64,
    ) -> Duration {
        let pause = pause(self.failures, status, named, jitter);
        self.failures += 1;
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
            Fate::Decided(_) | Fate::Open | Fate::Failed(_) | Fate::Lost => None,
        };
        self.items
            .iter()
            .zip(&self.fates)
            .enumerate()
            .filter_map(publication)
            .collect()
    }

    fn endings(&self) -> Vec<(usize, Ending)> {
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
                Fate::Open | Fate::Lost => return None,
            };
            Some((index, ending))
        };
        self.fates.iter().enumerate().filter_map(ending).collect()
    }
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
        Round::new((0..items).map(item).collect())
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
        let (_, round) = run(20, &[3, 4, 17]);
        assert_eq!(round.publications().len(), 17);
    }

    /// Goal: a provider that refuses everything kills no item.
    #[test]
    fn a_request_that_is_refused_whatever_it_asks_for_is_at_fault() {
        let statuses = [400, 404, 410];
        for (items, status) in [2, 3, 5, 50, 100]
            .into_iter()
            .flat_map(|items| statuses.map(|status| (items, status)))
        {
            let mut round = round(items);
            let mut requests = 1;
            while round
                .refused(status, now(), &Intervals::default(), 0.0)
                .is_none()
            {
                requests += 1;
            }
            assert!(requests <= 10, "{requests}");
            let Some(Step::Ask(ids)) = round.step() else {
                panic!("no request");
            };
            assert_eq!(ids.len(), items);
        }
        // Where there is one item, it cannot be told.
        assert_eq!(run(1, &[0]).0, 1);
    }

    #[test]
    fn pauses_grow_have_jitter_and_keep_what_was_named() {
        let seconds = Duration::from_secs;
        assert_eq!(pause(0, Some(503), None, 0.0), seconds(1));
        assert_eq!(pause(3, None, None, 0.0), seconds(8));
        assert_eq!(pause(30, None, None, 0.0), PAUSE_MAX);
        assert_eq!(pause(0, Some(429), Some(seconds(60)), 0.0), seconds(60));
        assert_eq!(pause(0, Some(429), Some(seconds(60)), 1.0), seconds(90));
        assert_eq!(pause(0, Some(401), None, 0.0), PAUSE_OF_CREDENTIAL);
    }
}
