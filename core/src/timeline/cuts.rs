//! Documents of a timeline: the entries of each, and the instant at which each was opened.
//!
//! Pure. A timeline's documents are not recorded: they are computed from the timeline's sequence of
//! entries, the settings in force at the place of each entry, and the epochs. Closed documents
//! never change, because a timeline only grows.
//!
//! A document ends before an entry in two cases (version 1 of the rule): other settings are in
//! force at the place of the entry than in the document, or the cut policy in force does not let
//! the entry in. If the policy bounds only the number of entries, arithmetic finds the documents.
//! In all other cases, the entries are read once.

use std::{collections::HashMap, sync::Arc};

use super::Place;
use crate::{
    cut::{CutPolicy, Fill, Period},
    digest::Digest,
    feed::{DocumentName, DocumentNumber, Epoch, Position, Revision},
    history::HistoryHash,
    plan::Opening,
    settings::Settings,
    timestamp::Timestamp,
};

/// Number of entries that are read at a time.
const STEP: usize = 1_000;

/// Settings in force from an instant of the log on, up to the instant of the next spell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spell {
    /// Instant from which on the settings are in force.
    pub since: Timestamp,
    /// The timeline's settings, with the server's defaults of that time.
    pub settings: Arc<Settings>,
}

/// Facts about a timeline that shape the documents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CutCourse {
    /// Settings that have been in force, one spell or more, oldest first. The first spell begins
    /// with the timeline.
    pub spells: Vec<Spell>,
    /// Epochs that have begun, each with the instant of the beginning, oldest first. The first
    /// epoch is not among them.
    pub epochs: Vec<(Timestamp, Epoch)>,
    /// Instant at which the timeline began anew: entries or follows were lost, so the positions
    /// have changed. All documents have names of a later epoch then, so that no name stands for two
    /// documents.
    pub restarted: Option<Timestamp>,
}

/// The entries of a timeline, in order.
pub trait Sequence {
    /// Returns the number of entries.
    fn count(&self) -> u64;

    /// Returns the number of entries that came before an instant.
    fn rank(&self, instant: Timestamp) -> u64;

    /// Returns the place of the entry at a position; `None` if there is no entry.
    fn place(&self, at: Position) -> Option<Place>;

    /// Returns at most `limit` entries behind a place, oldest first, each with the size in bytes;
    /// without a place, the oldest entries.
    fn behind(&self, place: Option<Place>, limit: usize) -> Vec<(Place, u64)>;
}

/// Documents of a timeline, as far as they were asked for. The value is a cache, which can be
/// computed again at any time.
#[derive(Clone, Debug, Default)]
pub struct Cuts {
    /// One stretch for each spell with entries.
    stretches: Vec<CutStretch>,
    /// Number of spells that `stretches` covers to their ends.
    spells: usize,
    /// Places of the entries that open documents, by the positions of these entries.
    places: HashMap<u64, Place>,
}

/// Documents under the same settings.
#[derive(Clone, Debug)]
struct CutStretch {
    spell: usize,
    /// Number of the first document.
    document: u64,
    first: u64,
    end: u64,
    kind: CutKind,
}

#[derive(Clone, Debug)]
enum CutKind {
    /// Each document but the last one has this number of entries.
    Even(u64),
    /// First position of each document; then the place of the newest entry that was read, and the
    /// fill of the document up to this entry.
    Listed(Vec<u64>, Option<(Place, Fill)>),
}

impl CutStretch {
    fn document_count(&self) -> u64 {
        match &self.kind {
            CutKind::Even(entries) => (self.end - self.first).div_ceil(*entries),
            CutKind::Listed(firsts, _) => u64::try_from(firsts.len()).unwrap_or(u64::MAX),
        }
    }

    /// Returns the first position of the document with this index.
    fn first_of(&self, index: u64) -> u64 {
        match &self.kind {
            CutKind::Even(entries) => self.first + index * entries,
            CutKind::Listed(firsts, _) => {
                let first = usize::try_from(index)
                    .ok()
                    .and_then(|index| firsts.get(index));
                first.copied().unwrap_or(self.end)
            }
        }
    }

    fn extend_cuts(&mut self, end: u64, policy: CutPolicy, sequence: &impl Sequence) {
        let mut from = self.end;
        self.end = end;
        let CutKind::Listed(firsts, newest) = &mut self.kind else {
            return;
        };
        while from < end {
            let after = newest.map(|(place, _)| place).or_else(|| {
                let before = from.checked_sub(1)?;
                sequence.place(Position(before))
            });
            let wanted = usize::try_from(end - from).unwrap_or(STEP).min(STEP);
            let found = sequence.behind(after, wanted);
            // Without progress, the loop would not end.
            if found.is_empty() {
                return;
            }
            for (place, bytes) in found {
                let before = newest.map(|(_, fill)| fill);
                let opens =
                    before.is_none_or(|fill| policy.cuts_before(fill, bytes, place.instant()));
                let (entries, sum) = match before {
                    Some(fill) if !opens => (fill.entries, fill.bytes),
                    _ => {
                        firsts.push(from);
                        (0, 0)
                    }
                };
                let fill = Fill {
                    entries: entries + 1,
                    bytes: sum.saturating_add(bytes),
                    newest: place.instant(),
                };
                *newest = Some((place, fill));
                from += 1;
            }
        }
    }
}

/// A document, and the range of the document's entries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Names, first position and date of the document. The revision stands for the document's spell
    /// (see [`spell_of`]).
    pub opening: Opening,
    /// Position behind the last entry.
    pub end: Position,
}

impl Cuts {
    /// Returns document `number`, or the newest document without a number; `None` if there is no
    /// such document.
    pub fn cut(
        &mut self,
        number: Option<DocumentNumber>,
        course: &CutCourse,
        sequence: &impl Sequence,
    ) -> Option<Cut> {
        self.extend_stretches(course, sequence);
        let number = number.map_or_else(|| self.newest_number(), DocumentNumber::get);
        let (first, end, spell) = self.document_bounds(number, course)?;
        let created = course.spells.first()?.since;
        let opened = match number {
            1 => created,
            _ => self.opening_place(first, sequence)?.instant(),
        };
        let closed = match self.document_bounds(number + 1, course) {
            Some((next, ..)) => self.opening_place(next, sequence)?.instant(),
            None => Timestamp::MAX,
        };
        let name = |number, epoch| {
            DocumentNumber::new(number).map(|number| DocumentName { number, epoch })
        };
        let (linked, epoch) = (course.epoch_at(opened), course.epoch_at(closed));
        let opening = Opening {
            name: name(number, epoch)?,
            linked: name(number, linked)?,
            previous: name(number - 1, linked),
            first: Position(first),
            before: no_history(course, first),
            revision: revision_of(spell),
            opened,
            after_loss: false,
            since: Position(self.open_at(course.epoch_start(epoch), course, sequence)),
        };
        Some(Cut {
            opening,
            end: Position(end),
        })
    }

    /// Returns the approximate size of the cuts in memory, in bytes.
    pub fn bytes(&self) -> usize {
        let stretches = self.stretches.iter().map(|stretch| match &stretch.kind {
            CutKind::Even(_) => size_of::<CutStretch>(),
            CutKind::Listed(firsts, _) => size_of::<CutStretch>() + size_of_val(&**firsts),
        });
        stretches.sum::<usize>() + self.places.len() * 2 * size_of::<(u64, Place)>()
    }

    /// Returns the number of the document that has a position. Earlier calls of [`cut`](Self::cut)
    /// or [`end_of`](Self::end_of) must have covered this position.
    pub fn document_of(&self, at: Position) -> Option<DocumentNumber> {
        let behind = self
            .stretches
            .partition_point(|stretch| stretch.first <= at.0);
        let stretch = self.stretches.get(behind.checked_sub(1)?)?;
        let index = match &stretch.kind {
            CutKind::Even(entries) => (at.0 - stretch.first) / entries,
            CutKind::Listed(firsts, _) => {
                let behind = firsts.partition_point(|first| *first <= at.0);
                u64::try_from(behind.checked_sub(1)?).ok()?
            }
        };
        DocumentNumber::new(stretch.document + index)
    }

    /// Returns the end of the document that has a position, and the place of the entry at that end;
    /// no place if the document is the newest, because there is no entry at that end yet.
    pub fn end_of(
        &mut self,
        at: Position,
        course: &CutCourse,
        sequence: &impl Sequence,
    ) -> (u64, Option<Place>) {
        self.extend_stretches(course, sequence);
        let number = self.document_of(at).map_or(0, DocumentNumber::get);
        let end = self
            .document_bounds(number, course)
            .map_or(at.0 + 1, |(_, end, _)| end);
        let is_newest = self.document_bounds(number + 1, course).is_none();
        let place = (!is_newest).then(|| self.opening_place(end, sequence));
        (end, place.flatten())
    }

    fn extend_stretches(&mut self, course: &CutCourse, sequence: &impl Sequence) {
        let last = course.spells.len().saturating_sub(1);
        // A timeline only grows, so spells that are covered to their ends are skipped.
        for (index, spell) in course.spells.iter().enumerate().skip(self.spells) {
            let end = match course.spells.get(index + 1) {
                Some(next) => sequence.rank(next.since),
                None => sequence.count(),
            };
            let policy = spell.settings.cut_policy();
            match self.stretches.last_mut().filter(|one| one.spell == index) {
                Some(stretch) => stretch.extend_cuts(end, policy, sequence),
                None => self.begin_spell(index, end, policy, sequence),
            }
        }
        // The newest spell still gains entries, so the next call begins there again.
        self.spells = last;
    }

    fn begin_spell(&mut self, spell: usize, end: u64, policy: CutPolicy, sequence: &impl Sequence) {
        let (first, document) = match self.stretches.last() {
            Some(before) => (before.end, before.document + before.document_count()),
            None => (0, 1),
        };
        // A spell without entries has no documents.
        if first == end {
            return;
        }
        // If the policy bounds only the number of entries, arithmetic finds the documents, and no
        // entry is read.
        let is_even = policy.period == Period::None && policy.bytes == u64::MAX;
        let kind = if is_even {
            CutKind::Even(policy.entries.max(1).into())
        } else {
            CutKind::Listed(vec![], None)
        };
        let mut stretch = CutStretch {
            spell,
            document,
            first,
            end: first,
            kind,
        };
        stretch.extend_cuts(end, policy, sequence);
        self.stretches.push(stretch);
    }

    fn newest_number(&self) -> u64 {
        let last = self.stretches.last();
        last.map_or(1, |last| last.document + last.document_count() - 1)
    }

    /// Returns the first position, the end and the spell of a document.
    fn document_bounds(&self, number: u64, course: &CutCourse) -> Option<(u64, u64, usize)> {
        if self.stretches.is_empty() && number == 1 {
            // An empty document has the newest settings, because no reader has been promised
            // others.
            return Some((0, 0, course.spells.len() - 1));
        }
        let behind = self
            .stretches
            .partition_point(|stretch| stretch.document <= number);
        let stretch = self.stretches.get(behind.checked_sub(1)?)?;
        let index = number - stretch.document;
        (index < stretch.document_count()).then(|| {
            let end = stretch.first_of(index + 1).min(stretch.end);
            (stretch.first_of(index), end, stretch.spell)
        })
    }

    /// Returns the first position of the document that was open at an instant.
    fn open_at(&self, instant: Timestamp, course: &CutCourse, sequence: &impl Sequence) -> u64 {
        let course_began = course.spells.first().map(|spell| spell.since);
        if course_began.is_none_or(|began| instant <= began) {
            return 0;
        }
        let Some(newest) = sequence.rank(instant).checked_sub(1) else {
            return 0;
        };
        let behind = self
            .stretches
            .partition_point(|stretch| stretch.first <= newest);
        let stretch = behind.checked_sub(1).and_then(|at| self.stretches.get(at));
        stretch.map_or(0, |stretch| match &stretch.kind {
            CutKind::Even(entries) => newest - (newest - stretch.first) % entries,
            CutKind::Listed(firsts, _) => {
                let behind = firsts.partition_point(|first| *first <= newest);
                let found = behind.checked_sub(1).and_then(|at| firsts.get(at));
                found.copied().unwrap_or(stretch.first)
            }
        })
    }

    /// Returns the place of an entry that opens a document.
    fn opening_place(&mut self, at: u64, sequence: &impl Sequence) -> Option<Place> {
        if let Some(place) = self.places.get(&at) {
            return Some(*place);
        }
        let place = sequence.place(Position(at))?;
        self.places.insert(at, place);
        Some(place)
    }
}

impl CutCourse {
    /// Returns the settings that are in force at an instant.
    pub fn settings_at(&self, instant: Timestamp) -> Option<&Arc<Settings>> {
        let behind = self.spells.partition_point(|spell| spell.since <= instant);
        let spell = self.spells.get(behind.checked_sub(1)?)?;
        Some(&spell.settings)
    }

    /// Returns the epoch at an instant; in a timeline that began anew, at least the epoch of that
    /// restart.
    pub fn epoch_at(&self, instant: Timestamp) -> Epoch {
        let behind = self.epochs.partition_point(|(began, _)| *began <= instant);
        let epoch = behind.checked_sub(1).and_then(|at| self.epochs.get(at));
        let epoch = epoch.map_or(Epoch::FIRST, |(_, epoch)| *epoch);
        epoch.max(self.restart_epoch())
    }

    /// Returns the first epoch that began no earlier than the timeline's restart; the first epoch
    /// of the log if there is none.
    fn restart_epoch(&self) -> Epoch {
        let Some(restarted) = self.restarted else {
            return Epoch::FIRST;
        };
        let behind = self.epochs.partition_point(|(began, _)| *began < restarted);
        let epoch = self.epochs.get(behind);
        epoch.map_or(Epoch::FIRST, |(_, epoch)| *epoch)
    }

    fn epoch_start(&self, epoch: Epoch) -> Timestamp {
        if epoch == self.restart_epoch() {
            // The whole timeline is of that epoch.
            return Timestamp::MIN;
        }
        let found = self.epochs.iter().find(|(_, one)| *one == epoch);
        found.map_or(Timestamp::MIN, |(began, _)| *began)
    }
}

/// First revision that stands for a spell. Revisions of settings in the log never reach this
/// number.
const SPELLS: u32 = 1 << 31;

/// Returns the revision under which the settings of a spell are known.
pub fn revision_of(spell: usize) -> Revision {
    let spell = u32::try_from(spell).unwrap_or(u32::MAX);
    Revision(SPELLS.saturating_add(spell))
}

/// Returns the spell that is known under a revision; `None` for a revision of settings.
pub fn spell_of(revision: Revision) -> Option<usize> {
    usize::try_from(revision.0.checked_sub(SPELLS)?).ok()
}

/// Returns a stand-in for the history hash of a timeline's first `entries` entries: a hash of the
/// timeline's id and of `entries`. Entity tags use the stand-in to tell states of a timeline apart.
/// No document shows the stand-in, because it proves no content.
pub fn no_history(course: &CutCourse, entries: u64) -> HistoryHash {
    let id = course
        .spells
        .first()
        .map(|spell| spell.settings.id.as_str());
    let parts = [id.unwrap_or_default().as_bytes(), &entries.to_be_bytes()];
    HistoryHash(Digest::of_parts(&parts))
}

#[cfg(test)]
mod tests;
