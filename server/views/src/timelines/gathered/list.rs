//! The gathered entries of one timeline, as a reader sees them.
//!
//! Shell: the runs. Entries that the feeds gained after the runs are added from memory, so no
//! reader waits for the gathering.

use std::{cell::RefCell, collections::HashMap, io, ops::Range, sync::Arc};

use simplefeed_core::{
    feed::Position,
    timeline::{Delivery, Following, Gathered, Place},
    timestamp::Timestamp,
};

use super::{
    EntryBlocks, Gathering, Runs,
    run::{GainedEntry, Part, Run},
};
use crate::timelines::{followers::Timeline, graph::Source, newest::Gains};

/// Entries that a reader adds by itself.
const TAIL_MAX: usize = if cfg!(test) { 6 } else { 4_096 };

/// Entries of a timeline, in the order of their places.
#[derive(Clone, Debug)]
pub(in super::super) struct List {
    timeline: Timeline,
    runs: Arc<Runs>,
    entries: Arc<EntryBlocks>,
    /// Entries after the runs.
    tail: Vec<Delivery<Source>>,
    apart: Vec<(Source, Range<Position>)>,
    /// Number of entries up to the end of each run, and of each run the part that was read last.
    read: RefCell<Read>,
}

#[derive(Clone, Debug, Default)]
struct Read {
    ends: Option<Vec<u64>>,
    part: HashMap<usize, Arc<Part>>,
    failed: Option<Failure>,
}

/// Failure to read a run.
#[derive(Clone, Debug)]
pub(in super::super) struct Failure {
    pub(in super::super) error: Arc<io::Error>,
    pub(in super::super) run: Arc<Run>,
}

impl List {
    /// Returns the list of a timeline as of the graph's commit, whose lock the caller has; `None`
    /// if the gathering is too far behind.
    pub(in super::super) fn of(
        timeline: Timeline,
        following: &Following<Source>,
        gathering: &Gathering,
        gains: &Gains,
    ) -> Option<Self> {
        let runs = gathering.runs();
        let reached = runs.reached();
        let mut tail = vec![];
        for gain in gains.since(reached.commit, TAIL_MAX)? {
            for delivery in gain.deliveries(following) {
                // The runs may have a part of the commit.
                if delivery.place.instant() >= reached.instant {
                    tail.push(delivery);
                }
                if tail.len() > TAIL_MAX {
                    return None;
                }
            }
        }
        let mut apart = vec![];
        // In the order of the feeds, by which `Reading` searches.
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
    pub(in super::super) fn failure(&self) -> Option<Failure> {
        self.read.borrow().failed.clone()
    }

    /// Notes the failure to read a run, if it is the first one.
    fn fail<T>(&self, run: &Arc<Run>, outcome: io::Result<T>) -> Option<T> {
        outcome
            .map_err(|error| {
                let failure = Failure {
                    error: Arc::new(error),
                    run: Arc::clone(run),
                };
                self.read.borrow_mut().failed.get_or_insert(failure);
            })
            .ok()
    }

    /// Returns the number of entries in all runs, and lets `look` look at the ends of the runs.
    fn with_ends<T>(&self, look: impl FnOnce(&[u64]) -> T) -> T {
        if self.read.borrow().ends.is_none() {
            let mut end = 0;
            let counts = self.runs.all.iter().map(|run| {
                // A failure counts as no entry, because the reader discards the outcome.
                let count = self.fail(run, run.count(self.timeline));
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
    fn gained(&self, index: u64) -> Option<GainedEntry> {
        let (run_at, before) = self.with_ends(|ends| {
            let run_at = ends.partition_point(|end| *end <= index);
            let before = run_at.checked_sub(1).and_then(|before| ends.get(before));
            (run_at, before.copied().unwrap_or(0))
        });
        let run = self.runs.all.get(run_at)?;
        let at = u32::try_from(index - before).ok()?;
        let in_part = |part: &Part| {
            let index = usize::try_from(at.checked_sub(part.before)?).ok()?;
            part.indexes.get(index).copied()
        };
        let known = self.read.borrow().part.get(&run_at).cloned();
        let known = known.and_then(|part| in_part(&part));
        let index = if let Some(index) = known {
            index
        } else {
            let part = Arc::new(self.fail(run, run.part(self.timeline, at))?);
            let index = in_part(&part)?;
            // Only the last part of each run is kept, because a merge goes through the parts in
            // order.
            self.read.borrow_mut().part.insert(run_at, part);
            index
        };
        self.fail(run, run.entry(index, &self.entries))
    }
}

impl Gathered<Source> for List {
    fn count(&self) -> u64 {
        self.in_runs() + u64::try_from(self.tail.len()).unwrap_or(u64::MAX)
    }

    fn delivery(&self, index: u64) -> Delivery<Source> {
        // Stands in for an entry that cannot be read: the reader discards the outcome.
        let nothing = Delivery {
            place: Place::of_entry(Timestamp::MIN),
            feed: 0,
            at: Position(0),
        };
        if let Some(index) = index.checked_sub(self.in_runs()) {
            let index = usize::try_from(index).unwrap_or(usize::MAX);
            return self.tail.get(index).copied().unwrap_or(nothing);
        }
        self.gained(index).map_or(nothing, |gained| Delivery {
            place: Place::of_entry(gained.instant),
            feed: gained.source,
            at: gained.at,
        })
    }

    fn apart(&self) -> &[(Source, Range<Position>)] {
        &self.apart
    }
}
