//! State of an item, and the meaning of an answer about the item.
//!
//! Pure.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::Intervals;
use crate::{digest::Digest, timestamp::Timestamp};

/// Number of successive answers without an item after which the item has ended.
pub const ABSENCES_MAX: u32 = 3;
/// Namespace of the ids of published events: uuid v5 of the URL namespace and
/// `tag:simplefeed,2026:refresh`.
const EVENTS: Uuid = Uuid::from_u128(0x9b0f_8d06_b299_5253_a8cc_c973_b26e_4af2);

/// State of an item between two refreshes; the payload of the item's job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ItemState {
    /// Instant at which the item's age is zero, in microseconds after 1970.
    pub born: i64,
    /// Instant of a birth that was still to come when `born` was set, in microseconds after 1970:
    /// the birth was announced, or the clock was wrong. At this instant, the age begins at zero
    /// again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub birth: Option<i64>,
    /// Time from the planning of the next refresh to that refresh, in seconds, if a floor made this
    /// time longer than the longest interval; 0 otherwise.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub wait: u64,
    /// The item's own least interval, in seconds.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub floor: u64,
    /// Digest of the counted parts of the answer that was published last (see [`Value`]).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<Digest>,
    /// Number of successive answers without the item.
    #[serde(default, skip_serializing_if = "is_none")]
    pub absences: u32,
    /// Whether another worker may have published something else after `last`. The next answer is
    /// published in any case then.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unsure: bool,
    /// URL of a related resource, for the link `related`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub related: Option<String>,
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
fn is_zero(seconds: &u64) -> bool {
    *seconds == 0
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
fn is_none(absences: &u32) -> bool {
    *absences == 0
}

impl ItemState {
    /// Returns the state of an item that was never refreshed.
    pub fn new(birth: Timestamp, now: Timestamp) -> Self {
        Self {
            // Before a birth that is still to come, the age counts from now. Otherwise the item
            // would have the age zero, and the interval of that age, for all that time.
            born: birth.min(now).micros(),
            birth: (birth > now).then_some(birth.micros()),
            wait: 0,
            floor: 0,
            last: None,
            absences: 0,
            unsure: false,
            related: None,
        }
    }

    /// Returns the time of an item's next refresh, and the state for that refresh; `None` if the
    /// item has ended.
    ///
    /// `floor` is the provider's floor; the item's own floor counts, too. `slot` is the time for
    /// which the present refresh was planned, by an earlier reading of the clock. An item has ended
    /// once `slot` and `now` both say so. If only `now` says so, the next refresh comes after the
    /// longest interval, or after the floor if the floor is longer.
    pub fn next(
        mut self,
        slot: Timestamp,
        now: Timestamp,
        intervals: &Intervals,
        floor: Duration,
    ) -> Option<(Timestamp, Self)> {
        if let Some(birth) = self.birth.filter(|birth| *birth <= now.min(slot).micros()) {
            (self.born, self.birth) = (birth, None);
        }
        let born = Timestamp::from_micros(self.born);
        let floor = floor.max(Duration::from_secs(self.floor));
        let due = intervals.next(born, now, floor).or_else(|| {
            // A clock that is wrong for less time than the longest interval must end no item.
            intervals.of_age(age(born, slot))?;
            Some(now.plus(intervals.longest().max(floor)))
        })?;
        let wait = age(now, due);
        let is_long = wait > intervals.longest();
        // The seconds are rounded up, so that `wait_max` is never less than the wait planned here.
        self.wait = if is_long {
            wait.as_secs().saturating_add(1)
        } else {
            0
        };
        Some((due, self))
    }

    /// Returns the longest time that may lie between the planning of the next refresh and that
    /// refresh.
    pub fn wait_max(&self, intervals: &Intervals) -> Duration {
        let floors = self.wait.max(self.floor);
        intervals.longest().max(Duration::from_secs(floors))
    }
}

/// Returns the time from a birth until now; zero if the birth is still to come.
pub(super) fn age(born: Timestamp, now: Timestamp) -> Duration {
    let micros = now.micros().saturating_sub(born.micros());
    Duration::from_micros(u64::try_from(micros).unwrap_or(0))
}

/// Intent of a worker, stored before the worker publishes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefreshNote {
    /// Digest of the content to be published.
    pub digest: Digest,
    /// Whether another worker of the same slot was about to publish something else.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unsure: bool,
    /// Slot of the event, in microseconds after 1970. The job may have another slot, which a wrong
    /// clock has set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slot: Option<i64>,
}

impl RefreshNote {
    /// Returns whether content other than `digest` may have been published in the slot, or may yet
    /// be published.
    fn admits_other_than(self, digest: Digest) -> bool {
        self.unsure || self.digest != digest
    }
}

/// An item whose job a worker has leased.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeasedItem {
    /// Id of the item at the provider.
    pub id: String,
    /// Time for which the refresh was planned. Failures and expired leases do not change the slot.
    pub slot: Timestamp,
    /// State of the item before this refresh.
    pub state: ItemState,
    /// Intent of an earlier worker of this slot, which may have published.
    pub note: Option<RefreshNote>,
}

impl LeasedItem {
    /// Returns the note for content to be published.
    pub(super) fn note_of(&self, what: EventContent) -> RefreshNote {
        let digest = what.digest();
        let unsure = self.note.is_some_and(|note| note.admits_other_than(digest));
        let slot = Some(self.slot.micros());
        RefreshNote {
            digest,
            unsure,
            slot,
        }
    }
}

/// Answer about an item, as far as decisions need it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Value {
    /// Digest of the parts whose change counts.
    pub counted: Digest,
    /// Digest of the answer as received, which is the form that is published. An event's id is
    /// derived from this digest, so two events with one id have one content.
    pub exact: Digest,
}

/// Presence of an item in an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ItemPresence {
    /// The answer has the item, with this value.
    Value(Value),
    /// The answer lacks the item.
    Absent,
    /// There is no answer, or the answer has no item at all: nothing is known about the item.
    Unknown,
}

/// Content of an event about an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventContent {
    /// The answer about the item, with this exact digest.
    Value(Digest),
    /// The end of the item.
    Ended,
}

impl EventContent {
    /// Returns the digest that stands for the content in notes and ids.
    pub fn digest(self) -> Digest {
        match self {
            Self::Value(digest) => digest,
            Self::Ended => Digest::of(b"ended"),
        }
    }
}

/// An event to be published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ItemEvent {
    /// Index of the item in the batch of the round.
    pub index: usize,
    /// Id of the item at the provider.
    pub id: String,
    /// Slot of the item, which is the event's `updated`.
    pub slot: Timestamp,
    /// Content of the event.
    pub what: EventContent,
}

impl ItemEvent {
    /// Returns the event's id. The same content for the same item and slot gives the same id, so
    /// that a repeat after a crash is a duplicate.
    pub fn event_id(&self) -> Uuid {
        let name = format!(
            "{}\0{}\0{}",
            self.slot.micros(),
            self.what.digest(),
            self.id
        );
        Uuid::new_v5(&EVENTS, name.as_bytes())
    }
}

/// Event and next refresh of an item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ItemDecision {
    /// Content to publish, if there is any.
    pub publish: Option<EventContent>,
    /// Time and state of the next refresh; `None` if the item has ended.
    pub next: Option<(Timestamp, ItemState)>,
}

/// Decides about an item.
///
/// A value is published if the counted parts differ from those of the last value. Any value is
/// published if an earlier worker may have published something in this slot, or something else in
/// an earlier slot, or may still be about to publish.
pub fn decide(
    item: &LeasedItem,
    seen: ItemPresence,
    now: Timestamp,
    intervals: &Intervals,
    floor: Duration,
) -> ItemDecision {
    let state = &item.state;
    let (publish, after) = match seen {
        ItemPresence::Value(Value { counted, exact }) => {
            let is_change = state.last != Some(counted) || item.note.is_some() || state.unsure;
            // An earlier worker with the same value publishes the same event, which leaves nothing
            // unsure.
            let unsure = item.note.is_some_and(|note| note.admits_other_than(exact));
            let after = ItemState {
                last: Some(counted),
                absences: 0,
                unsure,
                ..state.clone()
            };
            (is_change.then_some(EventContent::Value(exact)), after)
        }
        ItemPresence::Absent if state.absences + 1 >= ABSENCES_MAX => {
            return ItemDecision {
                publish: Some(EventContent::Ended),
                next: None,
            };
        }
        ItemPresence::Unknown => {
            // Nothing is published now. An earlier worker of this slot may have published a value,
            // which the next answer must correct.
            let unsure = state.unsure || item.note.is_some();
            let after = ItemState {
                unsure,
                ..state.clone()
            };
            (None, after)
        }
        ItemPresence::Absent => {
            let unsure = state.unsure || item.note.is_some();
            let after = ItemState {
                absences: state.absences + 1,
                unsure,
                ..state.clone()
            };
            (None, after)
        }
    };
    let next = after.next(item.slot, now, intervals, floor);
    ItemDecision { publish, next }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 1_767_225_600_000_000;

    fn at(micros: i64) -> Timestamp {
        Timestamp::from_micros(micros)
    }

    fn item(state: ItemState, note: Option<RefreshNote>) -> LeasedItem {
        let slot = at(NOW);
        LeasedItem {
            id: "1".to_owned(),
            slot,
            state,
            note,
        }
    }

    fn decided(item: &LeasedItem, seen: ItemPresence) -> ItemDecision {
        let now = Timestamp::from_micros(NOW + 1_000_000);
        decide(item, seen, now, &Intervals::default(), Duration::ZERO)
    }

    fn value(text: &str) -> Digest {
        Digest::of(text.as_bytes())
    }

    fn both(text: &str) -> Value {
        let (counted, exact) = (value(text), value(text));
        Value { counted, exact }
    }

    /// A difference in parts that do not count is no change. An event contains the exact answer.
    #[test]
    fn only_what_counts_is_a_change() {
        let state = ItemState {
            last: Some(value("a")),
            ..ItemState::new(at(NOW), at(NOW))
        };
        let seen = |counted, exact| {
            let (counted, exact) = (value(counted), value(exact));
            decided(
                &item(state.clone(), None),
                ItemPresence::Value(Value { counted, exact }),
            )
            .publish
        };
        assert_eq!(seen("a", "a at noon"), None);
        assert_eq!(
            seen("b", "b at noon"),
            Some(EventContent::Value(value("b at noon")))
        );
    }

    /// A value that came back is published again if another value may have been published
    /// meanwhile.
    #[test]
    fn a_change_is_published_and_what_may_be_out_is_corrected() {
        let last = |text: &str| ItemState {
            last: Some(value(text)),
            ..ItemState::new(at(NOW), at(NOW))
        };
        let note = |text: &str| {
            Some(RefreshNote {
                digest: value(text),
                unsure: false,
                slot: None,
            })
        };
        let unsure = ItemState {
            unsure: true,
            ..last("a")
        };
        for (state, note, seen, is_published, is_unsure) in [
            (ItemState::new(at(NOW), at(NOW)), None, "a", true, false),
            (last("a"), None, "a", false, false),
            (last("a"), None, "b", true, false),
            (last("a"), note("b"), "a", true, true),
            (last("a"), note("b"), "b", true, false),
            (last("a"), note("b"), "c", true, true),
            (unsure, None, "a", true, false),
        ] {
            let case = format!("{state:?} {note:?} {seen}");
            let decision = decided(&item(state, note), ItemPresence::Value(both(seen)));
            let published = is_published.then_some(EventContent::Value(value(seen)));
            assert_eq!(decision.publish, published, "{case}");
            let (_, after) = decision.next.unwrap();
            assert_eq!(
                (after.last, after.unsure),
                (Some(value(seen)), is_unsure),
                "{case}"
            );
        }
    }

    /// A note names the slot of the event that may have been published, whatever slot the job has.
    #[test]
    fn a_note_has_the_slot_of_its_event() {
        let noted = item(ItemState::new(at(NOW), at(NOW)), None).note_of(EventContent::Ended);
        assert_eq!(noted.slot, Some(NOW));
        let text = serde_json::to_string(&noted).unwrap();
        assert_eq!(serde_json::from_str::<RefreshNote>(&text).unwrap(), noted);
        // A stored note may lack the slot.
        let digest = noted.digest;
        let earlier = format!("{{\"digest\":\"{digest}\"}}");
        assert_eq!(
            serde_json::from_str::<RefreshNote>(&earlier).unwrap().slot,
            None
        );
    }

    /// TU-D11: three successive answers without an item end the item; an answer with the item sets
    /// the count to zero.
    #[test]
    fn an_item_ends_with_its_third_absence() {
        let mut state = ItemState::new(at(NOW), at(NOW));
        for absences in 1..3 {
            let decision = decided(&item(state, None), ItemPresence::Absent);
            assert_eq!(decision.publish, None);
            state = decision.next.unwrap().1;
            assert_eq!(state.absences, absences);
        }
        let back = decided(&item(state.clone(), None), ItemPresence::Value(both("a")));
        assert_eq!(back.next.unwrap().1.absences, 0);
        let ended = ItemDecision {
            publish: Some(EventContent::Ended),
            next: None,
        };
        assert_eq!(decided(&item(state, None), ItemPresence::Absent), ended);
    }

    /// A clock that is wrong at one refresh ends no item. A clock that shows the item's end at two
    /// successive refreshes is believed.
    #[test]
    fn no_item_ends_on_one_reading() {
        let (day, years) = (86_400_000_000, 72 * 365 * 86_400_000_000);
        let intervals = Intervals::default();
        let next =
            |state: ItemState, slot, now| state.next(at(slot), at(now), &intervals, Duration::ZERO);
        let born = ItemState::new(at(NOW), at(NOW));
        let (due, state) = next(born, NOW + day, NOW + years).unwrap();
        assert_eq!(due, at(NOW + years + day), "the longest interval");
        // The clock is right again, but the slot is wrong.
        let (due, state) = next(state, due.micros(), NOW + 2 * day).unwrap();
        assert_eq!(due, at(NOW + 2 * day + day / 4));
        // The clock was wrong at the refresh before, and is still wrong.
        assert_eq!(next(state.clone(), NOW + years, NOW + years + day), None);
        // The refresh at the end of an item's life is the last one.
        assert_eq!(next(state, NOW + 30 * day, NOW + 30 * day), None);
    }

    /// With a clock in 1970, every birth is still to come. An item's age is right as soon as the
    /// clock is right.
    #[test]
    fn a_birth_that_is_still_to_come_counts_once_it_comes() {
        let (hour, intervals) = (3_600_000_000, Intervals::default());
        let next = |state: ItemState, now| {
            let (due, state) = state
                .next(at(now), at(now), &intervals, Duration::ZERO)
                .unwrap();
            (due.micros() - now, state)
        };
        let (minutes, state) = next(ItemState::new(at(NOW), at(5)), 5);
        assert_eq!(minutes, hour / 30);
        let (minutes, state) = next(state, NOW + hour / 2);
        assert_eq!((minutes, state.born, state.birth), (hour / 12, NOW, None));
        // Before an announced birth, the age counts from the announcement.
        let state = ItemState::new(at(NOW + 9 * hour), at(NOW));
        let (hours, state) = next(state, NOW + 8 * hour);
        assert_eq!(hours, hour);
        assert_eq!(next(state, NOW + 9 * hour).0, hour / 30);
    }

    /// A wait that is longer than the longest interval is kept.
    #[test]
    fn a_long_wait_is_kept() {
        let (day, intervals) = (Duration::from_hours(24), Intervals::default());
        let next = |state: ItemState, floor| {
            let (now, slot) = (at(NOW), at(NOW));
            state.next(slot, now, &intervals, floor).unwrap().1
        };
        let state = next(ItemState::new(at(NOW), at(NOW)), day);
        assert_eq!((state.wait, state.wait_max(&intervals)), (0, day));
        let state = next(state, day * 9);
        assert!(state.wait_max(&intervals) >= day * 9);
        assert_eq!(next(state, day).wait, 0);
    }

    /// The id is for ever: a repeat after an upgrade must be a duplicate, too. (Recomputed with
    /// Python's uuid.)
    #[test]
    fn golden_event_id() {
        let event = ItemEvent {
            index: 0,
            id: "9007199254740993".to_owned(),
            slot: Timestamp::from_micros(NOW),
            what: EventContent::Value(value("a")),
        };
        assert_eq!(
            event.event_id().to_string(),
            "5b9a9af5-5835-54b1-9d73-352db716d9d2"
        );
    }

    /// The payload is read by later versions.
    #[test]
    fn the_state_has_a_short_form() {
        let state = ItemState::new(at(NOW), at(NOW));
        let text = serde_json::to_string(&state).unwrap();
        assert_eq!(text, "{\"born\":1767225600000000}");
        assert_eq!(serde_json::from_str::<ItemState>(&text).unwrap(), state);
    }
}
