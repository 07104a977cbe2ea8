//! One batch of items from lease to finish, step by step.
//!
//! Pure.
//!
//! ```text
//! ask ──► note what will be published ──► publish ──► finish
//!  ▲ │ └─► finish, all given back: the provider answers nothing
//!  └─┴ a refused request is split until the item at fault is alone
//! ```
//!
//! A worker may be killed between any two steps: the lease expires, and another worker begins anew
//! with the note.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    ops::Range,
    time::Duration,
};

use super::{
    Intervals,
    item::{
        ItemDecision, ItemEvent, ItemPresence, ItemState, LeasedItem, RefreshNote, Value, age,
        decide,
    },
};
use crate::timestamp::Timestamp;

/// Number of requests since the last answer that were refused or failed, after which a round is
/// given up. Larger parts of a batch are requested first, so this number is reached only if about
/// every tenth item is at fault.
const REFUSALS_MAX: u32 = 10;
/// The same number for a round in which a request failed, if the provider has answered nothing in
/// the round or a short time before.
const TRIES_MAX: u32 = 3;
/// Time after a provider's last answer with an item during which a refusal means the items. A
/// failed job is tried again only after this time, so an outage counts against an item at most
/// once.
const TRUST: Duration = Duration::from_mins(1);
/// Time after the end of an item's life during which workers still try the item, if the provider
/// answers nothing.
const PATIENCE: Duration = Duration::from_hours(7 * 24);
/// Shortest time for which items are given back.
const LATER: Duration = Duration::from_secs(1);
/// Longest time for which items are given back if another credential may ask for them.
const LATER_OF_SEVERAL: Duration = Duration::from_secs(20);
/// Longest pause after failed requests, before the jitter, if the provider names no pause.
const PAUSE_MAX: Duration = Duration::from_mins(15);
/// Longest pause or floor that counts if a provider names a longer one.
const NAMED_MAX: Duration = Duration::from_hours(24);
/// Pause for a credential that the provider does not accept.
const PAUSE_OF_CREDENTIAL: Duration = Duration::from_mins(5);

/// Circumstances of a request.
#[derive(Clone, Copy, Debug)]
pub struct RoundRequest<'r> {
    /// Name of the credential that made the request.
    pub credential: &'r str,
    /// Number of all credentials.
    pub credentials: usize,
    /// Time at which the request ended.
    pub now: Timestamp,
    /// How often items are refreshed.
    pub intervals: &'r Intervals,
    /// Random number from 0 to 1 that lengthens pauses, because workers that failed together must
    /// not come back together.
    pub jitter: f64,
}

/// Returns how long a credential pauses after `failures` failed requests in a row.
///
/// `jitter` is a random number from 0 to 1, because workers that failed together must not come back
/// together. A pause that the provider names counts for 24 hours at most; a named pause that is
/// shorter than the usual pause changes nothing.
pub fn pause(failures: u32, status: Option<u16>, named: Option<Duration>, jitter: f64) -> Duration {
    let doubled = Duration::from_secs(1) * 2_u32.saturating_pow(failures.min(20));
    let least = match (named, status) {
        (Some(named), _) => named.min(NAMED_MAX).max(doubled.min(PAUSE_MAX)),
        (None, Some(401 | 403)) => PAUSE_OF_CREDENTIAL,
        (None, _) => doubled.min(PAUSE_MAX),
    };
    least.mul_f64(1.0 + jitter.clamp(0.0, 1.0) / 2.0)
}

/// Next step of a worker with a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RoundStep {
    /// Reserve one request of a credential, and ask the provider for these distinct ids.
    Ask(Vec<String>),
    /// Store these notes durably, each for the item with this index in the batch.
    Note(Vec<(usize, RefreshNote)>),
    /// Publish these events, and report the refused events to [`RefreshRound::published`].
    Publish(Vec<ItemEvent>),
    /// Finish all jobs that are still leased, each for the item with this index in the batch.
    Finish(Vec<(usize, JobEnding)>),
}

/// How a job ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JobEnding {
    /// The job comes again, for the next refresh of the item.
    Again {
        /// Slot of the next refresh.
        due: Timestamp,
        /// State of the item after this refresh.
        state: ItemState,
    },
    /// The item of the job has ended.
    Done,
    /// The job failed, with this reason.
    Failed(String),
    /// The job is given back unchanged, to be leased again after this time. Giving a job back is no
    /// failure of the job.
    Later(Duration),
}

/// How the provider has answered a worker so far. A worker passes the standing on from round to
/// round.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProviderStanding {
    /// Time of the last answer with an item, by credential.
    answered: HashMap<String, Timestamp>,
    /// Number of failed requests and given-up rounds since the last answer.
    failures: u32,
    /// Maximum number of items in the next request, after requests without an answer.
    limit: Option<usize>,
    /// Number of items in requests since the last answer.
    passed: usize,
}

impl ProviderStanding {
    /// Returns whether a refusal means the refused item, because an answer with an item came less
    /// than `span` ago.
    fn is_trusted(&self, now: Timestamp, span: Duration) -> bool {
        self.answered
            .values()
            .any(|answered| is_within(*answered, now, span))
    }

    /// Notes an answer to a request for `items` items. The next request may ask for more items.
    fn raise_size(&mut self, items: usize) {
        self.failures = 0;
        self.passed = 0;
        self.limit = self.limit.map(|limit| limit.max(items.saturating_mul(2)));
    }

    /// Notes a request for `items` items that got no answer. The next request asks for fewer items,
    /// so that at last some request has no item at fault.
    fn lower_size(&mut self, items: usize) {
        self.limit = Some((items / 2).max(1));
    }
}

/// Returns whether an instant is less than a span ago. An instant that is still to come does not
/// count, because a wrong clock has set that instant.
fn is_within(instant: Timestamp, now: Timestamp, span: Duration) -> bool {
    instant <= now && now < instant.plus(span)
}

/// Phase of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RoundPhase {
    Asking,
    Noting,
    Publishing,
    Finishing,
    Over,
}

/// Decision about an item of the batch.
#[derive(Clone, Debug)]
enum ItemFate {
    Open,
    Decided(ItemDecision),
    Failed(String),
    /// The item is given back, because the provider answers nothing.
    Later,
    /// Another worker has the job now.
    Lost,
}

/// An item for which a request for this item alone was refused or failed.
#[derive(Clone, Copy, Debug)]
struct Alone {
    index: usize,
    status: Option<u16>,
    /// Whether the provider had answered requests for other items a short time before.
    is_trusted: bool,
}

/// One batch of items.
#[derive(Clone, Debug)]
pub struct RefreshRound {
    items: Vec<LeasedItem>,
    fates: Vec<ItemFate>,
    /// Parts of the batch that have no answer yet; the first part is requested next.
    parts: VecDeque<Range<usize>>,
    phase: RoundPhase,
    alone: Vec<Alone>,
    /// Credentials that were accepted in the round.
    accepted: HashSet<String>,
    /// Whether an answer of the round had an item.
    has_shown: bool,
    /// Number of refused and failed requests since the last answer.
    refusals: u32,
    /// Number of items in the smallest request that was refused or failed.
    smallest: usize,
    /// Number of failed requests for the first part.
    tries: u32,
    /// Number of requests for the first part that got status 403.
    forbidden: usize,
    standing: ProviderStanding,
    /// Time for which items are given back.
    later: Duration,
}

impl RefreshRound {
    /// Begins a round with a batch of items with distinct ids. `standing` comes from the worker's
    /// round before.
    pub fn new(items: Vec<LeasedItem>, standing: ProviderStanding) -> Self {
        let mut round = Self {
            fates: vec![ItemFate::Open; items.len()],
            parts: VecDeque::new(),
            phase: RoundPhase::Asking,
            alone: Vec::new(),
            accepted: HashSet::new(),
            has_shown: false,
            refusals: 0,
            smallest: items.len(),
            tries: 0,
            forbidden: 0,
            standing,
            later: LATER,
            items,
        };
        // If requests got no answer, the round begins behind the items of these requests, which may
        // be at fault.
        let all = round.items.len();
        let passed = round.standing.limit.map_or(0, |_| round.standing.passed);
        let begin = passed.checked_rem(all).unwrap_or(0);
        let parts = [begin..all, 0..begin].into_iter();
        round.parts.extend(parts.filter(|part| !part.is_empty()));
        round.advance_phase();
        round
    }

    /// Returns the provider's standing, for the worker's next round.
    pub fn standing(&self) -> ProviderStanding {
        self.standing.clone()
    }

    /// Returns the next step; `None` if the round is over. The worker reports the outcome: of `Ask`
    /// by [`asked`](Self::asked), [`refused`](Self::refused) or [`failed`](Self::failed), of the
    /// other steps by [`noted`](Self::noted), [`published`](Self::published) and
    /// [`finished`](Self::finished).
    pub fn step(&self) -> Option<RoundStep> {
        match self.phase {
            RoundPhase::Asking => {
                let items = self.items.get(self.next_part()?).unwrap_or_default();
                Some(RoundStep::Ask(
                    items.iter().map(|item| item.id.clone()).collect(),
                ))
            }
            RoundPhase::Noting => {
                let note = |event: ItemEvent| {
                    let item = self.items.get(event.index)?;
                    Some((event.index, item.note_of(event.what)))
                };
                Some(RoundStep::Note(
                    self.due_publications()
                        .into_iter()
                        .filter_map(note)
                        .collect(),
                ))
            }
            RoundPhase::Publishing => Some(RoundStep::Publish(self.due_publications())),
            RoundPhase::Finishing => Some(RoundStep::Finish(self.item_endings())),
            RoundPhase::Over => None,
        }
    }

    /// Returns the items of the next request, as a range of indexes in the batch.
    fn next_part(&self) -> Option<Range<usize>> {
        let Range { start, end } = self.parts.front()?.clone();
        let limit = self.standing.limit.unwrap_or(usize::MAX);
        Some(start..end.min(start.saturating_add(limit)))
    }

    /// Removes the items of the next request from the parts without an answer, and returns these
    /// items.
    fn take_part(&mut self) -> Option<Range<usize>> {
        let part = self.next_part()?;
        if let Some(first) = self.parts.pop_front()
            && part.end < first.end
        {
            self.parts.push_front(part.end..first.end);
        }
        self.tries = 0;
        self.forbidden = 0;
        Some(part)
    }

    /// Returns whether a status means that an item or the request is at fault, and not the provider
    /// or the credential.
    fn is_refusal(&self, status: u16, request: &RoundRequest<'_>) -> bool {
        match status {
            // Either the credential may not see an item, or the provider does not accept the
            // credential at all. A credential that was accepted just before is still accepted, so
            // the item is at fault then.
            403 => {
                let answered = self.standing.answered.get(request.credential);
                self.accepted.contains(request.credential)
                    || answered.is_some_and(|answered| is_within(*answered, request.now, TRUST))
            }
            // These statuses mean the credential, too many requests, or a request that was too
            // slow.
            401 | 402 | 407 | 408 | 421 | 425 | 429 => false,
            400..=499 => true,
            _ => false,
        }
    }

    /// Returns whether a refusal means the refused item, because other items were answered in this
    /// round or a short time ago.
    fn is_trusted(&self, now: Timestamp) -> bool {
        self.has_shown || self.standing.is_trusted(now, TRUST)
    }

    /// Handles an answer to the request. `found` has a value for each item in the answer, by the
    /// item's id. `floor` is the time for which the provider wants no other request for these
    /// items.
    pub fn asked(
        &mut self,
        request: &RoundRequest<'_>,
        mut found: HashMap<String, Value>,
        floor: Duration,
    ) {
        let RoundRequest { now, intervals, .. } = *request;
        let Some(part) = self.take_part() else {
            return;
        };
        let credential = request.credential.to_owned();
        self.accepted.insert(credential.clone());
        self.refusals = 0;
        self.standing.raise_size(part.len());
        let asked = self.items.get(part.clone()).unwrap_or_default();
        let is_empty = asked.iter().all(|item| !found.contains_key(&item.id));
        if !is_empty {
            self.has_shown = true;
            self.standing.answered.insert(credential, now);
        }
        let floor = floor.min(NAMED_MAX);
        for index in part {
            if let (Some(item), Some(fate)) = (self.items.get(index), self.fates.get_mut(index)) {
                let seen = match found.remove(&item.id) {
                    Some(value) => ItemPresence::Value(value),
                    // A provider with a fault may answer that no item exists. So an empty answer
                    // says nothing, unless the provider has shown other items lately.
                    None if is_empty && !is_shown(item, &self.standing, now, intervals) => {
                        ItemPresence::Unknown
                    }
                    None => ItemPresence::Absent,
                };
                *fate = ItemFate::Decided(decide(item, seen, now, intervals, floor));
            }
        }
        self.end_asking(now, intervals);
    }

    /// Handles the status with which the provider refused the request. A status that means the
    /// items makes the next requests smaller, until the item at fault is alone. Any other status is
    /// a failure. Returns the pause of the credential, if there is one.
    pub fn refused(&mut self, request: &RoundRequest<'_>, status: u16) -> Option<Duration> {
        if !self.is_refusal(status, request) {
            return Some(self.failed(request, Some(status), None));
        }
        let part = self.take_part()?;
        self.refusals += 1;
        self.split_part(part, Some(status), request.now);
        if self.refusals >= REFUSALS_MAX {
            self.parts.clear();
        }
        self.end_asking(request.now, request.intervals);
        let is_over = self.phase != RoundPhase::Asking;
        if !is_over
            || !self
                .fates
                .iter()
                .any(|fate| matches!(fate, ItemFate::Later))
        {
            return None;
        }
        let pause = self.pause_until(request, Some(status), None);
        self.give_up(request, pause);
        self.accepted.is_empty().then_some(pause)
    }

    /// Handles a failure of the request. `status` is `None` if no answer came; `named` is the pause
    /// that the provider names. Returns the pause of the credential. After the pause, or with
    /// another credential, the request is made again.
    ///
    /// The second failure makes the next requests smaller, as a refusal does, because the provider
    /// may fail at one item. While requests are already limited, the first failure does so. The
    /// items are given back after three refusals and failures if the provider answers nothing else,
    /// after ten otherwise, and at once after as many answers 403 as there are credentials.
    pub fn failed(
        &mut self,
        request: &RoundRequest<'_>,
        status: Option<u16>,
        named: Option<Duration>,
    ) -> Duration {
        let pause = self.pause_until(request, status, named);
        match status {
            // These statuses mean the credential.
            Some(401 | 402 | 407 | 421 | 425 | 429) => return pause,
            Some(403) => self.forbidden += 1,
            _ => {
                self.tries += 1;
                self.refusals += 1;
            }
        }
        let is_forbidden = self.forbidden >= request.credentials.max(1);
        let is_again = self.tries == 1 && self.standing.limit.is_none();
        if !is_forbidden && (self.tries == 0 || is_again) {
            return pause;
        }
        let is_trusted = self.is_trusted(request.now);
        let refusals_max = if is_trusted { REFUSALS_MAX } else { TRIES_MAX };
        let is_hopeless = is_forbidden || self.refusals >= refusals_max;
        let part = self.take_part().unwrap_or_default();
        if is_forbidden {
            self.smallest = self.smallest.min(part.len());
            self.standing.passed = self.standing.passed.wrapping_add(part.len());
        } else {
            if self.items.len() > 1 {
                self.standing.lower_size(part.len());
            }
            self.split_part(part, status, request.now);
        }
        if is_hopeless {
            self.parts.clear();
        }
        self.end_asking(request.now, request.intervals);
        if self
            .fates
            .iter()
            .any(|fate| matches!(fate, ItemFate::Later))
        {
            self.give_up(request, pause);
        }
        pause
    }

    /// Halves a part without an answer. If the part is one item, notes that the item was refused
    /// alone.
    fn split_part(&mut self, part: Range<usize>, status: Option<u16>, now: Timestamp) {
        self.smallest = self.smallest.min(part.len());
        self.standing.passed = self.standing.passed.wrapping_add(part.len());
        if self.standing.limit.is_some() {
            self.standing.lower_size(part.len());
        }
        if part.len() == 1 {
            self.alone.push(Alone {
                index: part.start,
                status,
                is_trusted: self.is_trusted(now),
            });
        } else {
            let middle = part.start + part.len() / 2;
            self.parts.push_back(part.start..middle);
            self.parts.push_back(middle..part.end);
        }
    }

    /// Sets the time for which items are given back, and makes the requests of the next round
    /// smaller. When a credential may make a request again, other items are first.
    fn give_up(&mut self, request: &RoundRequest<'_>, pause: Duration) {
        // A batch of one item says nothing about the size of requests.
        if self.items.len() > 1 {
            self.standing.lower_size(self.smallest);
        }
        self.later = if request.credentials > 1 {
            pause.min(LATER_OF_SEVERAL)
        } else {
            pause
        };
    }

    fn pause_until(
        &mut self,
        request: &RoundRequest<'_>,
        status: Option<u16>,
        named: Option<Duration>,
    ) -> Duration {
        let pause = pause(self.standing.failures, status, named, request.jitter);
        self.standing.failures += 1;
        pause
    }

    /// Once there is no part left to request, decides about the items that were refused alone and
    /// the items without an answer.
    fn end_asking(&mut self, now: Timestamp, intervals: &Intervals) {
        if self.parts.is_empty() {
            for mut alone in std::mem::take(&mut self.alone) {
                alone.is_trusted |= self.has_shown;
                let index = alone.index;
                if let (Some(item), Some(fate)) = (self.items.get(index), self.fates.get_mut(index))
                {
                    *fate = fate_alone(item, alone, &self.standing, now, intervals);
                }
            }
            for (item, fate) in self.items.iter().zip(&mut self.fates) {
                if matches!(fate, ItemFate::Open) {
                    *fate = ItemFate::Later;
                }
                if matches!(fate, ItemFate::Later) && has_ended_for_long(item, now, intervals) {
                    // The item ends now, or with the next slot: `ItemState::next` believes no
                    // single reading of the clock.
                    let zero = Duration::ZERO;
                    *fate = ItemFate::Decided(decide(
                        item,
                        ItemPresence::Unknown,
                        now,
                        intervals,
                        zero,
                    ));
                }
            }
        }
        self.advance_phase();
    }

    /// Handles lost leases: `lost` has the indexes in the batch of jobs that another worker has
    /// now. The round does nothing more with these jobs.
    pub fn noted(&mut self, lost: &[usize]) {
        for index in lost {
            if let Some(fate) = self.fates.get_mut(*index) {
                *fate = ItemFate::Lost;
            }
        }
        self.phase = RoundPhase::Publishing;
        self.advance_phase();
    }

    /// Handles refused events: for each, the index of the item in the batch, and the reason. Only
    /// the jobs of these items fail.
    pub fn published(&mut self, refused: Vec<(usize, String)>) {
        for (index, reason) in refused {
            if let Some(fate) = self.fates.get_mut(index) {
                *fate = ItemFate::Failed(reason);
            }
        }
        self.phase = RoundPhase::Finishing;
    }

    /// Ends the round, after the jobs were finished.
    pub fn finished(&mut self) {
        self.phase = RoundPhase::Over;
    }

    /// Skips phases in which there is nothing to do.
    fn advance_phase(&mut self) {
        if self.phase == RoundPhase::Asking && self.parts.is_empty() {
            self.phase = RoundPhase::Noting;
        }
        if matches!(self.phase, RoundPhase::Noting | RoundPhase::Publishing)
            && self.due_publications().is_empty()
        {
            self.phase = RoundPhase::Finishing;
        }
    }

    fn due_publications(&self) -> Vec<ItemEvent> {
        let publication = |(index, (item, fate)): (usize, (&LeasedItem, &ItemFate))| match fate {
            ItemFate::Decided(ItemDecision {
                publish: Some(what),
                ..
            }) => {
                let (id, slot, what) = (item.id.clone(), item.slot, *what);
                Some(ItemEvent {
                    index,
                    id,
                    slot,
                    what,
                })
            }
            ItemFate::Decided(_)
            | ItemFate::Open
            | ItemFate::Failed(_)
            | ItemFate::Later
            | ItemFate::Lost => None,
        };
        self.items
            .iter()
            .zip(&self.fates)
            .enumerate()
            .filter_map(publication)
            .collect()
    }

    fn item_endings(&self) -> Vec<(usize, JobEnding)> {
        let ending = |(index, fate): (usize, &ItemFate)| {
            let ending = match fate {
                ItemFate::Decided(ItemDecision {
                    next: Some((due, state)),
                    ..
                }) => JobEnding::Again {
                    due: *due,
                    state: state.clone(),
                },
                ItemFate::Decided(ItemDecision { next: None, .. }) => JobEnding::Done,
                ItemFate::Failed(reason) => JobEnding::Failed(reason.clone()),
                ItemFate::Later => JobEnding::Later(self.later),
                ItemFate::Open | ItemFate::Lost => return None,
            };
            Some((index, ending))
        };
        self.fates.iter().enumerate().filter_map(ending).collect()
    }
}

/// Returns the fate of an item that was refused alone. A provider that refuses everything looks
/// like an item at fault, unless other items were answered.
fn fate_alone(
    item: &LeasedItem,
    alone: Alone,
    standing: &ProviderStanding,
    now: Timestamp,
    intervals: &Intervals,
) -> ItemFate {
    if matches!(alone.status, Some(404 | 410)) {
        if is_shown(item, standing, now, intervals) {
            return ItemFate::Decided(decide(
                item,
                ItemPresence::Absent,
                now,
                intervals,
                Duration::ZERO,
            ));
        }
    } else if alone.is_trusted {
        return ItemFate::Failed(match alone.status {
            Some(status) => format!("the provider answered {status} for this item alone"),
            None => "the provider gave no answer for this item alone".to_owned(),
        });
    }
    ItemFate::Later
}

/// Returns whether the provider showed an item less than this item's interval ago. Of the item's
/// present interval and the interval of the refresh before, the shorter one counts. At the next
/// refresh of the item, an outage has lasted longer than this interval, so an outage counts once
/// against the item.
fn is_shown(
    item: &LeasedItem,
    standing: &ProviderStanding,
    now: Timestamp,
    intervals: &Intervals,
) -> bool {
    let age = age(Timestamp::from_micros(item.state.born), now);
    let interval = |age| intervals.of_age(age).unwrap_or_default();
    let present = interval(age);
    let shortest = present.min(interval(age.saturating_sub(present)));
    standing.is_trusted(now, shortest)
}

/// Returns whether an item needs no answer any more, because the item's life ended long ago.
fn has_ended_for_long(item: &LeasedItem, now: Timestamp, intervals: &Intervals) -> bool {
    let patience = i64::try_from(PATIENCE.as_micros()).unwrap_or(i64::MAX);
    let before = Timestamp::from_micros(now.micros().saturating_sub(patience));
    let age = age(Timestamp::from_micros(item.state.born), before);
    intervals.of_age(age).is_none()
}

#[cfg(test)]
mod tests;
