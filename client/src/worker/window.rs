//! Entries that a worker has in hand, in the order of the feed.
//!
//! Pure, but for the monotonic clock for pauses.
//!
//! ```text
//! entry     7        8         9         10       11
//! key       a        b         a         b        c
//!           running  finished  waits     running  may start
//!                              for 7
//! ```
//!
//! The bookmark is before the first entry that is not finished. The entries behind the bookmark are
//! noted in the state folder, so that after a crash no entry that is noted as finished is handled
//! again, and no attempt goes uncounted.

use std::{
    collections::{HashSet, VecDeque},
    num::NonZeroUsize,
};

use simplefeed_core::limits::ENTRIES_PER_HANDLER;
use tokio::time::Instant;

use super::CUT_SHORT;
use crate::{
    bookmark::{Attempt, AttemptedEntry},
    delivery::Delivery,
};

/// Entries in hand, oldest first.
#[derive(Debug)]
pub(super) struct EntryWindow {
    slots: VecDeque<WindowEntry>,
    /// Number of the first slot.
    first: u64,
    left: EarlierWork,
}

/// One entry in hand.
#[derive(Debug)]
pub(super) struct WindowEntry {
    pub(super) delivery: Delivery,
    pub(super) key: Option<String>,
    pub(super) attempt: Attempt,
    /// Number of attempts before this worker took the entry in hand. Pauses grow only with later
    /// attempts.
    before: u32,
    phase: EntryPhase,
    /// Error of the attempt before the running one.
    error_before: Option<String>,
    /// Whether a process before this one ended during an attempt at the entry.
    is_suspect: bool,
    /// Whether the running attempt does not count if the process ends during this attempt.
    is_excused: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EntryPhase {
    /// Begins once no unfinished earlier entry has the same key, and the pause is over.
    Waiting(Option<Instant>),
    Running,
    Finished,
}

/// Entries that a process before this one had in hand.
#[derive(Debug, Default)]
struct EarlierWork {
    begun: VecDeque<AttemptedEntry>,
    /// Number of entries still to be compared with `begun`.
    unread: usize,
}

impl EarlierWork {
    /// Returns the earlier work at this entry, if there is any.
    fn take_begun(&mut self, delivery: &Delivery) -> Option<AttemptedEntry> {
        let found = self.begun.iter().position(|begun| begun.is_of(delivery));
        let found = found.and_then(|index| self.begun.remove(index));
        self.unread = self.unread.saturating_sub(1);
        // The notes that are left are about entries that a foreign feed no longer has, and that
        // never come again.
        if self.unread == 0 {
            self.begun.clear();
        }
        found
    }

    fn has_suspect(&self) -> bool {
        self.begun.iter().any(AttemptedEntry::is_suspect)
    }
}

impl WindowEntry {
    /// Returns the number of attempts since this worker took the entry in hand.
    pub(super) fn attempts_here(&self) -> u32 {
        self.attempt.count.saturating_sub(self.before)
    }

    /// Returns whether the pause before the next attempt was decided on.
    pub(super) fn is_due(&self) -> bool {
        matches!(self.phase, EntryPhase::Waiting(Some(_)))
    }

    /// Makes the entry wait until `due`.
    pub(super) fn wait_until(&mut self, due: Instant) {
        self.phase = EntryPhase::Waiting(Some(due));
    }

    /// Returns the record of attempts without the running attempt.
    fn attempt_before(&self) -> Attempt {
        Attempt {
            count: self.attempt.count.saturating_sub(1),
            error: self.error_before.clone(),
            ..self.attempt.clone()
        }
    }

    /// Takes back an attempt that was interrupted, or never began. The entry may begin again at
    /// `due`.
    pub(super) fn take_back(&mut self, due: Instant) {
        self.attempt = self.attempt_before();
        self.phase = EntryPhase::Waiting(Some(due));
    }

    pub(super) fn fail(&mut self, error: String) {
        self.attempt.error = Some(error);
        self.is_suspect = false;
        self.phase = EntryPhase::Waiting(None);
    }

    pub(super) fn finish(&mut self) {
        self.is_suspect = false;
        self.phase = EntryPhase::Finished;
    }
}

impl EntryWindow {
    /// Returns an empty window, after a process that had the entries of `begun` in hand.
    pub(super) fn new(begun: Vec<AttemptedEntry>) -> Self {
        let mut begun = VecDeque::from(begun);
        // If several entries were running, each of them may have ended the process. So their
        // attempts prove nothing and do not count, and each entry runs alone next.
        let suspects = begun.iter().filter(|begun| begun.is_cut_short()).count();
        if suspects > 1 {
            for begun in begun.iter_mut().filter(|begun| begun.is_cut_short()) {
                let attempt = &mut begun.attempt;
                attempt.count = attempt.count.saturating_sub(1);
                // The error keeps the entry from looking cut short again if another entry ends the
                // process.
                attempt.error = (attempt.count > 0).then(|| CUT_SHORT.into());
                begun.alone = true;
            }
        }
        let unread = begun.len();
        Self {
            slots: VecDeque::new(),
            first: 0,
            left: EarlierWork { begun, unread },
        }
    }

    /// Takes back the running attempts: the future of the run was dropped, which is no failure.
    /// Returns whether there were running attempts.
    pub(super) fn interrupt(&mut self) -> bool {
        let now = Instant::now();
        let slots = self.slots.iter_mut();
        let running = slots.filter(|slot| slot.phase == EntryPhase::Running);
        running.map(|slot| slot.take_back(now)).count() > 0
    }

    /// Excuses the running attempts: the worker was asked to stop, and if the process ends during
    /// these attempts, they do not count. Returns whether there are running attempts.
    pub(super) fn excuse(&mut self) -> bool {
        for slot in &mut self.slots {
            slot.is_excused = true;
        }
        self.slots
            .iter()
            .any(|slot| slot.phase == EntryPhase::Running)
    }

    /// Returns whether no entry behind the bookmark needs a note for a later process.
    pub(super) fn is_clear(&self) -> bool {
        self.slots.is_empty() && self.left.begun.is_empty()
    }

    /// Returns how many handlers may run: only one, while some entry may be at fault for the end of
    /// an earlier process.
    pub(super) fn handlers_max(&self, concurrency: NonZeroUsize) -> usize {
        let suspect = self.left.has_suspect() || self.slots.iter().any(|slot| slot.is_suspect);
        if suspect { 1 } else { concurrency.get() }
    }

    /// Returns whether another entry may be taken in hand.
    pub(super) fn has_room(&self, concurrency: NonZeroUsize) -> bool {
        let max = match concurrency.get() {
            // One handler handles the entries in order, so no second entry is needed.
            1 => 1,
            handlers => handlers.saturating_mul(ENTRIES_PER_HANDLER),
        };
        self.slots.len() < max
    }

    /// Takes an entry in hand. Returns whether the entry is finished already.
    pub(super) fn admit(&mut self, delivery: Delivery, key: Option<String>) -> bool {
        let begun = self.left.take_begun(&delivery);
        let is_suspect = begun.as_ref().is_some_and(AttemptedEntry::is_suspect);
        let is_finished = begun.as_ref().is_some_and(|begun| begun.finished);
        let attempt = begun.map_or_else(|| Attempt::first(&delivery), |begun| begun.attempt);
        self.slots.push_back(WindowEntry {
            before: attempt.count,
            error_before: None,
            is_excused: false,
            delivery,
            key,
            attempt,
            phase: if is_finished {
                EntryPhase::Finished
            } else {
                EntryPhase::Waiting(None)
            },
            is_suspect,
        });
        is_finished
    }

    /// Returns the number of the entry that was taken in hand last.
    pub(super) fn last(&self) -> u64 {
        let slots = u64::try_from(self.slots.len()).unwrap_or(u64::MAX);
        (self.first + slots).saturating_sub(1)
    }

    /// Returns the number of the first entry that may begin: no unfinished earlier entry has the
    /// same key, and the pause is over.
    pub(super) fn startable(&self, now: Instant) -> Option<u64> {
        let waiting = self.waiting_slots();
        let mut startable = waiting.filter(|(_, due)| due.is_none_or(|due| due <= now));
        startable.next().map(|(number, _)| number)
    }

    /// Returns when the first pause is over.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.waiting_slots().filter_map(|(_, due)| due).min()
    }

    /// Returns the numbers of the entries that wait for no other entry, with the ends of their
    /// pauses.
    fn waiting_slots(&self) -> impl Iterator<Item = (u64, Option<Instant>)> {
        let mut keys = HashSet::new();
        let slots = (self.first..).zip(&self.slots);
        slots.filter_map(move |(number, slot)| {
            if slot.phase == EntryPhase::Finished {
                return None;
            }
            // Only the first unfinished entry of each key may begin, whatever that entry waits for.
            let is_first = slot.key.as_ref().is_none_or(|key| keys.insert(key));
            match slot.phase {
                EntryPhase::Waiting(due) if is_first => Some((number, due)),
                _ => None,
            }
        })
    }

    /// Returns an entry in hand by its number.
    pub(super) fn slot(&mut self, number: u64) -> Option<&mut WindowEntry> {
        let index = usize::try_from(number.checked_sub(self.first)?).ok()?;
        self.slots.get_mut(index)
    }

    /// Begins an attempt at an entry.
    pub(super) fn begin(&mut self, number: u64) {
        if let Some(slot) = self.slot(number) {
            slot.attempt.count = slot.attempt.count.saturating_add(1);
            // If the process ends now, an older error must not stand as the cause.
            slot.error_before = slot.attempt.error.take();
            slot.is_excused = false;
            slot.phase = EntryPhase::Running;
        }
    }

    /// Removes the finished entries in front of the first unfinished one. Returns the last removed
    /// entry.
    pub(super) fn pop_finished(&mut self) -> Option<Delivery> {
        let mut last = None;
        while let Some(slot) = self
            .slots
            .pop_front_if(|slot| slot.phase == EntryPhase::Finished)
        {
            self.first += 1;
            last = Some(slot.delivery);
        }
        last
    }

    /// Returns the notes about the entries behind the bookmark, for a later process.
    pub(super) fn begun(&self) -> Vec<AttemptedEntry> {
        let attempt = |slot: &WindowEntry| {
            if slot.phase == EntryPhase::Running && slot.is_excused {
                slot.attempt_before()
            } else {
                slot.attempt.clone()
            }
        };
        let slots = self.slots.iter().map(|slot| AttemptedEntry {
            attempt: attempt(slot),
            finished: slot.phase == EntryPhase::Finished,
            // A running suspect runs alone already, so the mark is no longer needed.
            alone: slot.is_suspect && slot.phase != EntryPhase::Running,
        });
        slots.chain(self.left.begun.iter().cloned()).collect()
    }
}
