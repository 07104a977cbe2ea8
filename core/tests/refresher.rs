//! The refresher, simulated: workers, a queue, a provider and a feed, with a clock of their own.
//!
//! Workers do what [`RefreshRound`] says, against the queue's model. They are killed before and after each step, are slow for
//! longer than their leases, and meet a provider that fails, refuses, leaves items out and counts requests. What must
//! hold is checked at each step. Each defect of the design's ancestor is planted once, and must be found.
#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    clippy::as_conversions,
    reason = "a test fails by panicking, and its numbers are small"
)]

use std::{
    collections::{BTreeMap, HashMap, HashSet, VecDeque},
    time::Duration,
};

use chrono::{DateTime, Utc};
use simplefeed_core::{
    digest::Digest,
    refresh::{
        EventContent, Intervals, ItemEvent, ItemState, JobEnding, LeasedItem, RefreshNote,
        RefreshRound, RoundStep, Value,
        round::{ProviderStanding, RoundRequest},
    },
    timestamp::Timestamp,
};
use simplefeed_queue::{
    Due, Existing, Extension, Finish, JobFailure, Lease, Limit, Namespace, NewJob, QuotaReport,
    Reservation, Successor, TakeOutcome, TokenStanding, Want, model::Model,
};

const SECOND: i64 = 1_000_000;
const MINUTE: i64 = 60 * SECOND;
const HOUR: i64 = 60 * MINUTE;
const DAY: i64 = 24 * HOUR;
/// Begin of the simulated time: 2026-01-01.
const BEGIN: i64 = 1_767_225_600 * SECOND;
/// Time that a worker has a batch without a sign of life.
const LEASE: i64 = 5 * MINUTE;
/// Time that an item waits for a full batch.
const BUFFER: i64 = 10 * SECOND;
/// Time by which an event may arrive after the end of its lease: less than the least interval.
const LATE_MAX: i64 = 90 * SECOND;
/// Failures of an item alone with which it is dead.
const ATTEMPTS: u32 = 3;

/// A source of numbers, the same for the same seed (`SplitMix64`).
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, end: i64) -> i64 {
        (self.next() % end.unsigned_abs().max(1)) as i64
    }

    fn chance(&mut self, of_thousand: i64) -> bool {
        self.below(1_000) < of_thousand
    }

    fn part(&mut self) -> f64 {
        self.below(1_000_000) as f64 / 1e6
    }
}

/// A defect of the seed's pseudo-code (SPECS 3.3), planted into the worker or the starter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Defect {
    /// TU-D1: the timer of the buffer begins anew all the time.
    TimerNeverEnds,
    /// TU-D2: the timer begins before the first item is there.
    TimerBeginsEarly,
    /// TU-D3: the timer is looked at only when an item comes.
    TimerIsSeldomRead,
    /// TU-D4: an age is taken for an instant of birth.
    AgeForBirth,
    /// TU-D5: an item that is born in the future of this clock is dropped.
    NegativeAge,
    /// TU-D6: seconds are taken for milliseconds.
    WrongUnit,
    /// TU-D7: what has ended is scheduled.
    EndIsScheduled,
    /// TU-D8: the reader takes another field than the writer wrote.
    OtherField,
    /// TU-D9: jobs are gone once a worker has them.
    NoAcknowledgement,
    /// TU-D10: a failed request empties the buffer.
    ErrorsLoseJobs,
    /// TU-D11: absent items are neither ended nor scheduled.
    AbsentForEver,
    /// TU-D12: nobody counts requests.
    NoQuota,
    /// TU-D13: the loop is a recursion.
    Recursion,
    /// TU-D14: a burst makes a batch larger than a request may be.
    LargeBatch,
    /// TU-D15: an item that is started twice has two jobs.
    TwoJobs,
    /// TU-D16: each worker has a buffer of its own.
    OwnBuffers,
    /// TU-D17: whoever finds nothing looks again at once.
    BusyLoop,
}

const DEFECTS: [Defect; 17] = [
    Defect::TimerNeverEnds,
    Defect::TimerBeginsEarly,
    Defect::TimerIsSeldomRead,
    Defect::AgeForBirth,
    Defect::NegativeAge,
    Defect::WrongUnit,
    Defect::EndIsScheduled,
    Defect::OtherField,
    Defect::NoAcknowledgement,
    Defect::ErrorsLoseJobs,
    Defect::AbsentForEver,
    Defect::NoQuota,
    Defect::Recursion,
    Defect::LargeBatch,
    Defect::TwoJobs,
    Defect::OwnBuffers,
    Defect::BusyLoop,
];

/// What a simulation is made of.
#[derive(Clone, Debug)]
struct Plan {
    seed: u64,
    items: usize,
    workers: usize,
    /// Ids of a request, at most.
    max: usize,
    limit: Limit,
    /// Whether anything fails at all.
    is_hostile: bool,
    /// How long items come.
    births: i64,
    defect: Option<Defect>,
}

impl Plan {
    fn of(seed: u64, defect: Option<Defect>) -> Self {
        let mut dice = Dice(seed);
        let max = [2, 5, 20, 100][dice.below(4) as usize];
        let is_hostile = dice.chance(700);
        let requests = if is_hostile {
            50 + dice.below(500)
        } else {
            100_000
        };
        Self {
            seed,
            items: 1 + dice.below(40) as usize,
            workers: 1 + dice.below(16) as usize,
            max,
            limit: Limit {
                requests: requests as u32,
                window: Duration::from_mins(15),
            },
            is_hostile,
            births: 1 + dice.below(60 * DAY),
            defect,
        }
    }

    fn has(&self, defect: Defect) -> bool {
        self.defect == Some(defect)
    }
}

/// A thing at the provider.
#[derive(Clone, Debug)]
struct Thing {
    born: i64,
    value: u64,
    /// When its value changes next.
    changes: i64,
    vanishes: i64,
    /// Whether the provider refuses every request with it.
    is_poison: bool,
    /// Answers in a row without it.
    absences: u32,
    /// Those of them whose refreshes were finished.
    finished_absences: u32,
    /// Newest answer.
    answered: Option<Digest>,
    /// Last answer of a finished refresh; none once it has ended, whose last answer is not in its job.
    last: Option<Digest>,
    /// When it was answered last, and the interval of then.
    refreshed: Option<(i64, i64)>,
    /// Whether its refresh at the end of its life was planned too late to be seen as that: it has one more.
    is_once_more: bool,
    has_ended: bool,
}

/// What a worker does.
enum Doing {
    Idle,
    Working(Box<Work>),
}

/// What a worker has in hand.
struct Work {
    round: RefreshRound,
    leases: Vec<Lease>,
    result: Option<Reply>,
    noted: i64,
    /// When each item was answered.
    answered: HashMap<String, i64>,
}

/// A request's fate.
enum Reply {
    Found(HashMap<String, Value>),
    Status(u16),
    Nothing,
}

struct Worker {
    wakes: i64,
    /// Where it is in its loop: more than one turn at a time is a recursion.
    depth: u32,
    /// When it began to wait, for defects of the timer.
    waits_since: i64,
    doing: Doing,
    /// How the provider has answered it. A worker that is killed forgets it.
    standing: ProviderStanding,
}

/// Everything that there is.
struct World {
    plan: Plan,
    dice: Dice,
    now: i64,
    queue: Model,
    name: Namespace,
    intervals: Intervals,
    things: BTreeMap<String, Thing>,
    births: VecDeque<(i64, String)>,
    workers: Vec<Worker>,
    /// Published events by id, and in order.
    ids: HashSet<uuid::Uuid>,
    newest: HashMap<String, (i64, EventContent)>,
    values: HashSet<(String, Digest)>,
    /// Instants of requests, as the provider counts them.
    requests: VecDeque<i64>,
    /// From when to when the provider answers nothing, or each request with this status.
    outages: Vec<(i64, i64, Option<u16>)>,
    looks: u64,
    /// Batches that were leased.
    batches: u64,
    steps: u64,
}

/// What went wrong, if anything did.
type Checked = Result<(), String>;

fn at(micros: i64) -> DateTime<Utc> {
    DateTime::from_timestamp_micros(micros).unwrap()
}

fn span(micros: i64) -> Duration {
    Duration::from_micros(micros.unsigned_abs())
}

fn check(holds: bool, promise: &str) -> Checked {
    if holds {
        Ok(())
    } else {
        Err(promise.to_owned())
    }
}

fn micros(duration: Duration) -> i64 {
    duration.as_micros() as i64
}

impl World {
    fn new(plan: Plan) -> Self {
        let mut dice = Dice(plan.seed ^ 0xfeed);
        let mut things = BTreeMap::new();
        let mut births = Vec::new();
        for number in 0..plan.items {
            let born = BEGIN + dice.below(plan.births);
            // The provider's clock is up to a minute ahead; some items are seen late.
            let late = if dice.chance(200) {
                dice.below(40 * DAY)
            } else {
                dice.below(2 * MINUTE) - MINUTE
            };
            let seen = (born + late).max(BEGIN);
            let vanishes = if dice.chance(150) {
                born + dice.below(20 * DAY)
            } else {
                i64::MAX
            };
            let thing = Thing {
                born,
                answered: None,
                value: 0,
                changes: born,
                vanishes,
                is_poison: plan.is_hostile && dice.chance(40),
                absences: 0,
                finished_absences: 0,
                last: None,
                refreshed: None,
                is_once_more: false,
                has_ended: false,
            };
            // Beyond 2^53, where a number would not do.
            let id = format!("{}", 9_007_199_254_740_993_u64 + number as u64);
            births.push((seen, id.clone()));
            // A starter that replays.
            if dice.chance(300) {
                births.push((seen + dice.below(DAY), id.clone()));
            }
            things.insert(id, thing);
        }
        births.sort();
        let outages = (0..if plan.is_hostile { 3 } else { 0 }).map(|_| {
            let begin = BEGIN + dice.below(60 * DAY);
            let status = [None, Some(400), Some(401), Some(404)][dice.below(4) as usize];
            (begin, begin + dice.below(3 * DAY), status)
        });
        let outages = outages.collect();
        let worker = |_| Worker {
            wakes: BEGIN,
            depth: 0,
            waits_since: BEGIN,
            doing: Doing::Idle,
            standing: ProviderStanding::default(),
        };
        Self {
            dice,
            now: BEGIN,
            queue: Model::default(),
            name: Namespace::new("items").unwrap(),
            intervals: Intervals::default(),
            things,
            births: births.into(),
            workers: (0..plan.workers).map(worker).collect(),
            ids: HashSet::new(),
            newest: HashMap::new(),
            values: HashSet::new(),
            requests: VecDeque::new(),
            outages,
            looks: 0,
            batches: 0,
            steps: 0,
            plan,
        }
    }

    /// Runs to the end of all items, and returns the first promise that is broken.
    fn run(mut self) -> Checked {
        let end = BEGIN + self.plan.births + 110 * DAY;
        while self.now < end {
            let next_birth = self.births.front().map_or(i64::MAX, |(seen, _)| *seen);
            let index = (0..self.workers.len())
                .min_by_key(|index| self.workers[*index].wakes)
                .unwrap();
            let wakes = self.workers[index].wakes;
            if wakes == i64::MAX && next_birth == i64::MAX {
                break;
            }
            self.now = self.now.max(wakes.min(next_birth));
            if next_birth <= wakes {
                self.start_items()?;
                // Whoever waits is woken by the change.
                for worker in &mut self.workers {
                    if matches!(worker.doing, Doing::Idle) {
                        worker.wakes = self.now;
                    }
                }
            } else {
                self.steps += 1;
                self.work(index)?;
            }
        }
        self.at_the_end()
    }

    /// The starter: each item becomes a job.
    fn start_items(&mut self) -> Checked {
        while let Some((seen, id)) = self.births.front().cloned() {
            if seen > self.now {
                break;
            }
            self.births.pop_front();
            let thing = &self.things[&id];
            if thing.has_ended {
                continue;
            }
            let [birth, now] = [thing.born, self.now].map(Timestamp::from_micros);
            let state = ItemState::new(birth, now);
            let due = self.due(&state, self.now);
            let Some(due) = due else {
                check(
                    self.now - thing.born >= 30 * DAY,
                    "TU-3: a live item is started",
                )?;
                self.things.get_mut(&id).unwrap().has_ended = true;
                continue;
            };
            let mut key = id.clone();
            if self.plan.has(Defect::TwoJobs) {
                key = format!("{id}/{seen}");
            }
            let job = NewJob::new(&self.name, key, Due::At(at(due)))
                .payload(serde_json::to_vec(&state).unwrap());
            self.queue
                .schedule(at(self.now), vec![job], Existing::Keep)
                .unwrap();
        }
        Ok(())
    }

    /// When an item is due next, as the decisions say, or the defect.
    fn due(&self, state: &ItemState, now: i64) -> Option<i64> {
        let mut born = state.born;
        if self.plan.has(Defect::AgeForBirth) {
            born = now - born;
        }
        if self.plan.has(Defect::NegativeAge) && state.birth.is_some_and(|birth| birth > now) {
            return None;
        }
        let state = ItemState {
            born,
            ..state.clone()
        };
        let reading = Timestamp::from_micros(now);
        let next = state.next(reading, reading, &self.intervals, Duration::ZERO);
        let due = next.map(|(due, _)| due.micros());
        if self.plan.has(Defect::WrongUnit) {
            return due.map(|due| now + (due - now) / 1_000);
        }
        if self.plan.has(Defect::EndIsScheduled) {
            return Some(due.unwrap_or(now));
        }
        due
    }

    /// When an item is due again, as the round says, or the defect.
    fn due_again(&self, ending: &JobEnding) -> Option<i64> {
        let JobEnding::Again { due, state } = ending else {
            return None;
        };
        match self.plan.defect {
            None => Some(due.micros()),
            Some(_) => self.due(state, self.now),
        }
    }

    fn work(&mut self, index: usize) -> Checked {
        let doing = std::mem::replace(&mut self.workers[index].doing, Doing::Idle);
        match doing {
            Doing::Idle => self.look(index),
            Doing::Working(work) => self.go_on(index, work),
        }
    }

    /// What an idle worker asks for, as designed, or by a defect.
    fn wanted(&self, index: usize) -> Want {
        let has = |defect| self.plan.has(defect);
        let mut want = Want {
            max: self.plan.max,
            buffer: span(BUFFER),
            lease: span(LEASE),
        };
        if has(Defect::TimerNeverEnds) {
            want.buffer = Duration::from_hours(1_000_000);
        }
        if has(Defect::TimerBeginsEarly) && self.now - self.workers[index].waits_since >= BUFFER {
            want.buffer = Duration::ZERO;
        }
        if has(Defect::LargeBatch) {
            want.max *= 2;
        }
        if has(Defect::OwnBuffers) {
            want = Want {
                max: 1,
                buffer: Duration::ZERO,
                ..want
            };
        }
        want
    }

    /// What an idle worker does: it takes a batch, or waits.
    fn look(&mut self, index: usize) -> Checked {
        self.looks += 1;
        let want = self.wanted(index);
        let due_before = self.queue.stats(at(self.now), &self.name).due;
        match self.queue.take(at(self.now), &self.name, want).unwrap() {
            TakeOutcome::Leased(leases) => {
                self.workers[index].depth += 1;
                self.took(&leases, due_before)?;
                self.batches += 1;
                self.begin(index, leases);
                self.pause(index);
                Ok(())
            }
            TakeOutcome::Wait { next, .. } => {
                let next = next.map_or(i64::MAX, |next| next.timestamp_micros());
                let mut wakes = next.max(self.now + 1_000);
                if self.plan.has(Defect::TimerIsSeldomRead) {
                    wakes = self.now + HOUR;
                }
                if self.plan.has(Defect::BusyLoop) {
                    wakes = self.now + SECOND / 10;
                }
                self.workers[index].wakes = wakes;
                // A thousand looks a day of one worker would be one every 86 seconds; items make some, and each batch is
                // looked for by all workers that wait.
                let days = ((self.now - BEGIN) / DAY + 1) as u64;
                let bound = ((days + 20) * 3_000 + 2 * self.batches) * self.workers.len() as u64;
                check(
                    self.looks < bound,
                    "TU-D17: a worker that waits does not turn in circles",
                )
            }
        }
    }

    /// Begins the round of a batch.
    fn begin(&mut self, index: usize, leases: Vec<Lease>) {
        if self.plan.has(Defect::NoAcknowledgement) {
            let done = |lease: &Lease| Finish::new(lease.token.clone(), Successor::Done);
            let finishes = leases.iter().map(done).collect();
            self.queue.finish(at(self.now), finishes).unwrap();
        }
        let leased = |lease: &Lease| {
            let mut id = lease.job.key.clone();
            if self.plan.has(Defect::OtherField) {
                "undefined".clone_into(&mut id);
            }
            LeasedItem {
                id: id.split('/').next().unwrap().to_owned(),
                slot: Timestamp::from_micros(lease.job.slot.timestamp_micros()),
                state: serde_json::from_slice(&lease.job.payload).unwrap(),
                note: serde_json::from_slice(&lease.job.note).ok(),
            }
        };
        let standing = self.workers[index].standing.clone();
        let round = RefreshRound::new(leases.iter().map(leased).collect(), standing);
        self.workers[index].doing = Doing::Working(Box::new(Work {
            round,
            leases,
            result: None,
            noted: self.now,
            answered: HashMap::new(),
        }));
    }

    /// Checks a batch.
    fn took(&self, leases: &[Lease], due: u64) -> Checked {
        let is_full = leases.len() >= self.plan.max;
        check(
            leases.len() <= self.plan.max,
            "I2: a request has at most so many ids",
        )?;
        check(
            is_full || leases.len() as u64 == due,
            "TU-D16: a batch has all that is due",
        )?;
        let oldest = leases
            .iter()
            .map(|lease| lease.job.slot.timestamp_micros())
            .min()
            .unwrap();
        if !is_full {
            check(
                self.now - oldest >= BUFFER,
                "I3: a batch is full or has waited",
            )?;
        }
        if !self.plan.is_hostile {
            // Workers may be busy with other batches. In a burst they are.
            let busy = MINUTE + self.plan.items as i64 * SECOND / 10;
            check(
                self.now - oldest <= BUFFER + busy,
                "I3: no item waits much longer than the buffer",
            )?;
        }
        for lease in leases {
            let key = lease.job.key.split('/').next().unwrap();
            let Some(thing) = self.things.get(key) else {
                return Err("a job of no item".to_owned());
            };
            let slot = lease.job.slot.timestamp_micros();
            check(
                slot - thing.born <= 30 * DAY || thing.is_once_more,
                "I6: an item that has ended is not scheduled",
            )?;
            if let Some((when, interval)) = thing.refreshed {
                let rest = (thing.born + 30 * DAY - when).max(0);
                let least = interval.min(rest);
                check(
                    slot - when >= least - SECOND,
                    "I5: no item is refreshed too early",
                )?;
                check(
                    slot - when <= interval + SECOND,
                    "I5: no item is planned too late",
                )?;
            }
        }
        Ok(())
    }

    /// Time passes for a worker; sometimes it dies, or sleeps for longer than its lease.
    fn pause(&mut self, index: usize) {
        let mut wait = 1_000 + self.dice.below(SECOND / 5);
        if self.plan.is_hostile {
            // Before and after an event is published, most can go wrong.
            let doing = match &self.workers[index].doing {
                Doing::Working(work) => work.round.step(),
                Doing::Idle => None,
            };
            let is_dangerous = matches!(doing, Some(RoundStep::Publish(_) | RoundStep::Finish(_)));
            let chance = if is_dangerous { 40 } else { 5 };
            let luck = self.dice.below(1_000);
            if luck < chance {
                self.workers[index].doing = Doing::Idle;
                self.workers[index].depth = 0;
                self.workers[index].standing = ProviderStanding::default();
                wait = self.dice.below(10 * MINUTE);
            } else if luck < 2 * chance {
                wait = LEASE + self.dice.below(2 * LATE_MAX);
            }
        }
        self.workers[index].wakes = self.now + wait;
    }

    fn go_on(&mut self, index: usize, mut work: Box<Work>) -> Checked {
        let mut wakes = None;
        match work.round.step() {
            None => {
                if !self.plan.has(Defect::Recursion) {
                    self.workers[index].depth = 0;
                }
                check(
                    self.workers[index].depth <= 2,
                    "TU-D13: a worker's loop does not recurse",
                )?;
                self.workers[index].waits_since = self.now;
                self.workers[index].standing = work.round.standing();
                self.pause(index);
                return Ok(());
            }
            Some(RoundStep::Ask(ids)) => match work.result.take() {
                None => {
                    let (reply, wait) = self.ask(&ids, &work.leases)?;
                    work.result = reply;
                    wakes = wait;
                }
                Some(reply) => self.replied(&mut work, reply),
            },
            Some(RoundStep::Note(notes)) => {
                let extension = |(index, note): &(usize, RefreshNote)| Extension {
                    token: work.leases[*index].token.clone(),
                    lease: span(LEASE),
                    note: Some(serde_json::to_vec(note).unwrap()),
                };
                let held = self
                    .queue
                    .extend(at(self.now), notes.iter().map(extension).collect());
                let held = held.unwrap();
                work.noted = self.now;
                let lost = notes
                    .iter()
                    .zip(held)
                    .filter(|(_, held)| *held == TokenStanding::Lost);
                work.round
                    .noted(&lost.map(|((index, _), _)| *index).collect::<Vec<_>>());
            }
            Some(RoundStep::Publish(_)) if self.now - work.noted > LEASE + LATE_MAX => {
                // A worker gives up what it may no longer have; only the network may delay what it sent in time.
                self.pause(index);
                return Ok(());
            }
            Some(RoundStep::Publish(events)) => {
                self.publish(events);
                work.round.published(Vec::new());
            }
            Some(RoundStep::Finish(endings)) => {
                self.finish(&endings, &work)?;
                work.round.finished();
            }
        }
        self.workers[index].doing = Doing::Working(work);
        self.pause(index);
        if let Some(wakes) = wakes {
            self.workers[index].wakes = self.workers[index].wakes.max(wakes);
        }
        Ok(())
    }

    /// The feed, which keeps one event of each id.
    fn publish(&mut self, events: Vec<ItemEvent>) {
        for event in events {
            if self.ids.insert(event.event_id()) {
                if let EventContent::Value(digest) = event.what {
                    self.values.insert((event.id.clone(), digest));
                }
                self.newest
                    .insert(event.id, (event.slot.micros(), event.what));
            }
        }
    }

    /// Reserves and makes a request. Returns the reply, or until when the quota makes the worker wait.
    fn ask(
        &mut self,
        ids: &[String],
        leases: &[Lease],
    ) -> Result<(Option<Reply>, Option<i64>), String> {
        check(
            (1..=self.plan.max).contains(&ids.len()),
            "I2: a request has 1 to so many ids",
        )?;
        let distinct: HashSet<&String> = ids.iter().collect();
        check(
            distinct.len() == ids.len(),
            "I2: the ids of a request are distinct",
        )?;
        if !self.plan.has(Defect::NoQuota) {
            let reserved = self
                .queue
                .reserve(at(self.now), "key", 1, self.plan.limit)
                .unwrap();
            if let Reservation::After(wait) = reserved {
                let until = self.now + micros(wait).min(LEASE / 2);
                self.hold(leases);
                return Ok((None, Some(until)));
            }
        }
        self.requests.push_back(self.now);
        while self
            .requests
            .front()
            .is_some_and(|first| first + micros(self.plan.limit.window) <= self.now)
        {
            self.requests.pop_front();
        }
        check(
            self.requests.len() <= self.plan.limit.requests as usize,
            "I4: requests of a window are within the quota",
        )?;
        Ok((Some(self.provide(ids)?), None))
    }

    /// Extends the leases of a worker that waits.
    fn hold(&mut self, leases: &[Lease]) {
        let extension = |lease: &Lease| Extension {
            token: lease.token.clone(),
            lease: span(LEASE),
            note: None,
        };
        self.queue
            .extend(at(self.now), leases.iter().map(extension).collect())
            .unwrap();
    }

    /// The provider.
    fn provide(&mut self, ids: &[String]) -> Result<Reply, String> {
        let outage = self
            .outages
            .iter()
            .find(|(begin, end, _)| (*begin..*end).contains(&self.now));
        if let Some((_, _, status)) = outage {
            return Ok(status.map_or(Reply::Nothing, Reply::Status));
        }
        if self.plan.is_hostile && self.dice.chance(50) {
            return Ok(Reply::Status([500, 429, 503][self.dice.below(3) as usize]));
        }
        let mut found = HashMap::new();
        for id in ids {
            let Some(thing) = self.things.get_mut(id) else {
                return Err("TU-D8: a worker asks for items that there are".to_owned());
            };
            if thing.is_poison {
                let digit = id.bytes().last().unwrap_or_default();
                return Ok(Reply::Status([400, 403, 500][usize::from(digit % 3)]));
            }
            while thing.changes <= self.now {
                thing.value += u64::from(!self.dice.next().is_multiple_of(3));
                let age = (self.now - thing.born).max(MINUTE);
                thing.changes = self.now.max(thing.changes) + 1 + self.dice.below(age);
            }
            let is_left_out = self.plan.is_hostile && self.dice.chance(20);
            if self.now < thing.vanishes && !is_left_out {
                thing.absences = 0;
                // A value may come back.
                let digest = Digest::of(&(thing.value % 5).to_be_bytes());
                thing.answered = Some(digest);
                let (counted, exact) = (digest, digest);
                found.insert(id.clone(), Value { counted, exact });
            } else {
                thing.absences += 1;
            }
        }
        Ok(Reply::Found(found))
    }

    /// Takes a reply.
    fn replied(&mut self, work: &mut Work, reply: Reply) {
        let Work {
            round,
            leases,
            answered,
            ..
        } = work;
        let now = Timestamp::from_micros(self.now);
        let request = RoundRequest {
            credential: "key",
            credentials: 1,
            now,
            intervals: &self.intervals,
            jitter: self.dice.part(),
        };
        let pause = match reply {
            Reply::Found(found) => {
                if let Some(RoundStep::Ask(ids)) = round.step() {
                    answered.extend(ids.into_iter().map(|id| (id, self.now)));
                }
                round.asked(&request, found, Duration::ZERO);
                None
            }
            Reply::Status(status) => round.refused(&request, status),
            Reply::Nothing => Some(round.failed(&request, None, None)),
        };
        if let Some(pause) = pause {
            if self.plan.has(Defect::ErrorsLoseJobs) {
                let done = |lease: &Lease| Finish::new(lease.token.clone(), Successor::Done);
                self.queue
                    .finish(at(self.now), leases.iter().map(done).collect())
                    .unwrap();
            }
            self.queue.report(
                at(self.now),
                "key",
                QuotaReport {
                    pause: Some(pause),
                    remaining: None,
                },
            );
            self.hold(leases);
        }
    }

    fn finish(&mut self, endings: &[(usize, JobEnding)], work: &Work) -> Checked {
        for (index, ending) in endings {
            let lease = &work.leases[*index];
            let id = lease.job.key.split('/').next().unwrap().to_owned();
            let token = lease.token.clone();
            let next = match ending {
                JobEnding::Failed(reason) => {
                    let retry = Due::After(Duration::from_mins(1));
                    let failure = JobFailure {
                        token,
                        retry,
                        attempts: ATTEMPTS,
                        reason: reason.clone(),
                    };
                    self.queue.fail(at(self.now), &[failure]).unwrap();
                    continue;
                }
                JobEnding::Later(after) => {
                    let lease = *after;
                    let extension = Extension {
                        token,
                        lease,
                        note: None,
                    };
                    self.queue.extend(at(self.now), vec![extension]).unwrap();
                    continue;
                }
                JobEnding::Done => Successor::Done,
                JobEnding::Again { state, .. } => {
                    if self.plan.has(Defect::AbsentForEver) && state.absences > 0 {
                        continue;
                    }
                    match self.due_again(ending) {
                        Some(due) => Successor::Again {
                            due: Due::At(at(due)),
                            payload: Some(serde_json::to_vec(state).unwrap()),
                        },
                        None => Successor::Done,
                    }
                }
            };
            let held = self
                .queue
                .finish(at(self.now), vec![Finish::new(token, next.clone())]);
            if held.unwrap() == [TokenStanding::Lost] {
                continue;
            }
            let answered = work.answered.get(&id).copied();
            self.finished(&id, ending, &next, answered)?;
        }
        Ok(())
    }

    /// Checks a job that was finished.
    fn finished(
        &mut self,
        id: &str,
        ending: &JobEnding,
        next: &Successor,
        answered: Option<i64>,
    ) -> Checked {
        let thing = self.things.get_mut(id).unwrap();
        if next == &Successor::Done {
            let is_old = self.now - thing.born >= 30 * DAY;
            let is_absent = thing.finished_absences >= 2 && thing.absences > 0;
            check(is_old || is_absent, "I1: a live item keeps its job")?;
            thing.has_ended = true;
            thing.last = None;
        }
        if let Successor::Again { due, .. } = next
            && due.at(at(self.now)).timestamp_micros() - thing.born > 30 * DAY
        {
            check(
                !thing.is_once_more,
                "I6: an item ends with two readings of the clock",
            )?;
            thing.is_once_more = true;
        }
        if let JobEnding::Again { state, .. } = ending {
            thing.finished_absences = state.absences;
            if state.absences == 0
                && let Some(digest) = state.last
                && thing.last != Some(digest)
            {
                check(
                    self.values.contains(&(id.to_owned(), digest)),
                    "I8: a change that a lookup showed is published",
                )?;
                thing.last = Some(digest);
            }
            if state.absences == 0 && !state.unsure {
                let newest = self.newest.get(id).map(|(_, what)| what.digest());
                check(
                    newest == state.last,
                    "the newest event has the last value, at the next refresh at the latest",
                )?;
            }
            // Refused alone as absent, it has no answer.
            let when = answered.unwrap_or(self.now);
            let when = if self.plan.defect.is_some() {
                self.now
            } else {
                when
            };
            let age = span((when - thing.born).max(0));
            let interval = self.intervals.of_age(age);
            thing.refreshed = interval.map(|interval| (when, micros(interval)));
        }
        Ok(())
    }

    fn at_the_end(&mut self) -> Checked {
        let stats = self.queue.stats(at(self.now), &self.name);
        let dead = self.queue.dead(&self.name, None, 1_000).unwrap();
        for dead in &dead {
            check(
                self.things[&dead.job.key].is_poison,
                "a request that failed counts against no item",
            )?;
        }
        check(
            stats.waiting + stats.due + stats.leased == 0,
            "each item has ended, after 110 days",
        )?;
        let dead: HashSet<&str> = dead.iter().map(|dead| dead.job.key.as_str()).collect();
        for (id, thing) in &self.things {
            check(
                thing.has_ended || dead.contains(id.as_str()),
                "I1: each item has ended or is dead",
            )?;
            let newest = self.newest.get(id).map(|(_, what)| *what);
            if !self.plan.is_hostile
                && let (Some(EventContent::Value(newest)), Some(answered)) =
                    (newest, thing.answered)
            {
                check(newest == answered, "the newest event has the newest value")?;
            }
            match (thing.last, newest) {
                (Some(last), Some(EventContent::Value(newest))) => {
                    check(last == newest, "the newest event has the last value")?;
                }
                (Some(_), None) => return Err("a value was never published".to_owned()),
                (_, Some(EventContent::Ended)) | (None, _) => {}
            }
        }
        Ok(())
    }
}

fn is_long() -> bool {
    std::env::var_os("SIMPLEFEED_TESTS_LONG").is_some()
}

/// I1 to I9 hold for all seeds.
#[test]
fn all_promises_hold() {
    let seeds = if is_long() { 10_000 } else { 300 };
    for seed in 0..seeds {
        let plan = Plan::of(seed, None);
        if let Err(promise) = World::new(plan.clone()).run() {
            panic!("{promise}: {plan:?}");
        }
    }
}

/// Each planted defect breaks a promise within a few seeds.
#[test]
fn each_planted_defect_is_found() {
    for defect in DEFECTS {
        let found = (0..200).find_map(|seed| World::new(Plan::of(seed, Some(defect))).run().err());
        let promise = found.unwrap_or_else(|| panic!("{defect:?} is not found"));
        println!("{defect:?}: {promise}");
    }
}

/// A burst makes full batches, and every item is refreshed in its time.
#[test]
fn a_burst_of_items_is_refreshed() {
    let items = if is_long() { 100_000 } else { 3_000 };
    let plan = Plan {
        items,
        workers: 8,
        max: 100,
        limit: Limit {
            requests: 1_000_000,
            window: Duration::from_mins(15),
        },
        is_hostile: false,
        births: 1,
        ..Plan::of(7, None)
    };
    World::new(plan).run().unwrap();
}
