//! The gathered entries of one timeline, as a reader sees them.
//!
//! Shell: the runs. Entries that the feeds gained after the runs are added from memory, so no
//! reader waits for the gathering.

use std::{cell::RefCell, collections::HashMap, io, ops::Range, sync::Arc};

use simplefeed_core::{
    feed::Position,
    timeline::{FollowState, GatheredEntries, Place, TimelineEntry},
    timestamp::Timestamp,
};

use super::{
    EntryBlocks, GatheredLists, Runs,
    run::{GainedEntry, GatheredRun, ListPart},
};
use crate::timelines::{followers::TimelineKey, graph::SourceKey, newest::Gains};

/// Maximum number of entries that a reader adds by itself.
const TAIL_MAX: usize = if cfg!(test) { 6 } else { 4_096 };

/// Entries of a timeline, in the order of their places.
#[derive(Clone, Debug)]
pub(in super::super) struct GatheredList {
    timeline: TimelineKey,
    runs: Arc<Runs>,
    entries: Arc<EntryBlocks>,
    /// Entries after the runs.
    tail: Vec<TimelineEntry<SourceKey>>,
    apart: Vec<(SourceKey, Range<Position>)>,
    /// For each run, the number of entries up to its end, and the part that was read last.
    read: RefCell<ListRead>,
}

#[derive(Clone, Debug, Default)]
struct ListRead {
    ends: Option<Vec<u64>>,
    part: HashMap<usize, Arc<ListPart>>,
    failed: Option<ListFailure>,
}

/// Failure to read a run.
#[derive(Clone, Debug)]
pub(in super::super) struct ListFailure {
    pub(in super::super) error: Arc<io::Error>,
    pub(in super::super) run: Arc<GatheredRun>,
}

impl GatheredList {
    /// Returns the list of a timeline as of the graph's commit; `None` if the gathering is too far
    /// behind. The caller holds the lock of the graph.
    pub(in super::super) fn of(
        timeline: TimelineKey,
        following: &FollowState<SourceKey>,
        gathering: &GatheredLists,
        gains: &Gains,
    ) -> Option<Self> {
        let runs = gathering.runs();
        let reached = runs.reached();
        let mut tail = vec![];
        for gain in gains.since(reached.commit, TAIL_MAX)? {
            for delivery in gain.deliveries(following) {
                // The runs may already have a part of the commit's entries.
                if delivery.place.instant() >= reached.instant {
                    tail.push(delivery);
                }
                if tail.len() > TAIL_MAX {
                    return None;
                }
            }
        }
        let mut apart = vec![];
        // In the order of the feeds, because `TimelineReader` searches for a feed by bisection.
        for (source, ranges) in &runs.apart {
            if following.is_source(*source) {
                for range in ranges {
                    let had = following.gained(*source, range.clone());
                    apart.extend(had.map(|range| (*source, range)));
                }
            }
        }
        Some(Self {
            timeline,
            runs,
            entries: Arc::clone(&gathering.entries),
            tail,
            apart,
            read: RefCell::default(),
        })
    }

    /// Returns the first failure to read a run.
    pub(in super::super) fn failure(&self) -> Option<ListFailure> {
        self.read.borrow().failed.clone()
    }

    /// Notes the failure to read a run, if this is the first failure.
    fn note_failure<T>(&self, run: &Arc<GatheredRun>, outcome: io::Result<T>) -> Option<T> {
        outcome
            .map_err(|error| {
                let failure = ListFailure {
                    error: Arc::new(error),
                    run: Arc::clone(run),
                };
                self.read.borrow_mut().failed.get_or_insert(failure);
            })
            .ok()
    }

    /// Calls `look` with the number of entries up to the end of each run.
    fn with_ends<T>(&self, look: impl FnOnce(&[u64]) -> T) -> T {
        if self.read.borrow().ends.is_none() {
            let mut end = 0;
            let counts = self.runs.all.iter().map(|run| {
                // A failure counts as no entry, because the reader discards the outcome.
                let count = self.note_failure(run, run.count(self.timeline));
                end += u64::from(count.unwrap_or(0));
                end
            });
            let ends = counts.collect();
            self.read.borrow_mut().ends = Some(ends);
        }
        look(self.read.borrow().ends.as_deref().unwrap_or_default())
    }

    fn in_runs(&self) -> u64 {
        self.with_ends(|ends| ends.last().copied().unwrap_or(0))
    }

    /// Returns an entry of the runs; `None` if the entry cannot be read.
    fn gained_entry(&self, index: u64) -> Option<GainedEntry> {
        let (run_at, before) = self.with_ends(|ends| {
            let run_at = ends.partition_point(|end| *end <= index);
            let before = run_at.checked_sub(1).and_then(|before| ends.get(before));
            (run_at, before.copied().unwrap_or(0))
        });
        let run = self.runs.all.get(run_at)?;
        let at = u32::try_from(index - before).ok()?;
        let in_part = |part: &ListPart| {
            let index = usize::try_from(at.checked_sub(part.before)?).ok()?;
            part.indexes.get(index).copied()
        };
        let known = self.read.borrow().part.get(&run_at).cloned();
        let known = known.and_then(|part| in_part(&part));
        let index = if let Some(index) = known {
            index
        } else {
            let part = Arc::new(self.note_failure(run, run.part(self.timeline, at))?);
            let index = in_part(&part)?;
            // Only the last part of each run is kept, because a merge goes through the parts in
            // order.
            self.read.borrow_mut().part.insert(run_at, part);
            index
        };
        self.note_failure(run, run.entry(index, &self.entries))
    }
}

impl GatheredEntries<SourceKey> for GatheredList {
    fn count(&self) -> u64 {
        self.in_runs() + u64::try_from(self.tail.len()).unwrap_or(u64::MAX)
    }

    fn delivery(&self, index: u64) -> TimelineEntry<SourceKey> {
        // Stands in for an entry that cannot be read: the reader discards the outcome.
        let nothing = TimelineEntry {
            place: Place::of_entry(Timestamp::MIN),
            feed: 0,
            at: Position(0),
        };
        if let Some(index) = index.checked_sub(self.in_runs()) {
            let index = usize::try_from(index).unwrap_or(usize::MAX);
            return self.tail.get(index).copied().unwrap_or(nothing);
        }
        self.gained_entry(index)
            .map_or(nothing, |gained| TimelineEntry {
                place: Place::of_entry(gained.instant),
                feed: gained.source,
                at: gained.at,
            })
    }

    fn apart(&self) -> &[(SourceKey, Range<Position>)] {
        &self.apart
    }
}
