//! Entries of foreign feeds that come again: the same id in another document, or revised.
//!
//! Pure. Ours never do, because a server refuses the second content and shows no entry twice. Foreign
//! documents may overlap, and a correction comes as an entry with an old id and a later `updated`
//! (FH-10, FH-13).

use std::collections::{HashMap, VecDeque};

use super::Run;
use crate::{digest::Digest, instant::Instant, limits::SEEN_ENTRIES_MAX};

/// The entries passed lately.
#[derive(Debug, Default)]
pub(super) struct Seen {
    updated: HashMap<Digest, Option<Instant>>,
    /// The same, the one passed first in front.
    order: VecDeque<Digest>,
}

/// What an entry is to a consumer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Coming {
    New,
    /// Known, with an earlier `updated`.
    Revised,
    /// Known, and not revised since.
    Again,
}

impl Seen {
    /// Takes out of a run what was passed before; revised entries stay in it if `revisions`.
    pub(super) fn new_of(&mut self, mut run: Run, revisions: bool) -> Run {
        if run.document.history.is_some() {
            return run;
        }
        let entries = run.document.len();
        for index in (entries.saturating_sub(run.older)..entries).rev() {
            self.meet(&run, index);
        }
        let mut handed_over = std::mem::take(&mut run.entries);
        handed_over.retain(|entry| match self.meet(&run, entry.index) {
            Coming::New => true,
            Coming::Revised => revisions,
            Coming::Again => false,
        });
        run.entries = handed_over;
        run
    }

    fn meet(&mut self, run: &Run, index: usize) -> Coming {
        let Some(entry) = run.document.entry(index) else {
            return Coming::Again;
        };
        let id = Digest::of(entry.id.as_bytes());
        let updated = run.document.updated_of(index);
        match self.updated.insert(id, updated) {
            None => {
                self.order.push_back(id);
                self.forget();
                Coming::New
            }
            Some(before) if before < updated => Coming::Revised,
            Some(before) => {
                self.updated.insert(id, before);
                Coming::Again
            }
        }
    }

    fn forget(&mut self) {
        if self.order.len() > SEEN_ENTRIES_MAX
            && let Some(first) = self.order.pop_front()
        {
            self.updated.remove(&first);
        }
    }
}
