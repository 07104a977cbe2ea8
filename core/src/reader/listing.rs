//! In which order a document lists its entries.
//!
//! Pure. Simplefeed lists the newest first (SF-1); feeds of others may not, and only some documents show it.

use super::Document;
use crate::instant::Instant;

/// How the ids of ICT4H's entries begin.
const ICT4H_ID: &str = "tag:atomfeed.ict4h.org:";

/// In which order a document lists its entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listing {
    /// As Simplefeed has them (SF-1).
    NewestFirst,
    /// The other way round, as ICT4H's feeds.
    OldestFirst,
}

impl Document {
    /// Finds out in which order the entries stand, where the document shows it beyond doubt: it tells
    /// positions, its entries are ICT4H's, or at least three dates rise, or fall, all the way.
    pub(super) fn listing(&self) -> Option<Listing> {
        if self.history.is_some() {
            return Some(Listing::NewestFirst);
        }
        let ids = self.entries.iter().map(|slice| slice.id.as_str());
        if ids
            .clone()
            .next()
            .is_some_and(|id| id.starts_with(ICT4H_ID))
        {
            return Some(Listing::OldestFirst);
        }
        let dates: Option<Vec<Instant>> = self.entries.iter().map(|slice| slice.updated).collect();
        let dates = dates.filter(|dates| dates.len() >= 3)?;
        let all = |follows: fn(&Instant, &Instant) -> bool| {
            dates
                .windows(2)
                .all(|pair| matches!(pair, [a, b] if follows(a, b)))
        };
        if all(|above, below| above < below) {
            return Some(Listing::OldestFirst);
        }
        all(|above, below| above > below).then_some(Listing::NewestFirst)
    }

    /// Returns the order of the entries in the document's bytes, where the document shows it. It is the feed's:
    /// documents that do not show it have the same.
    pub fn shown_listing(&self) -> Option<Listing> {
        self.listing
    }

    /// Takes the entries for what they are in a feed that lists the oldest first: the first one is the oldest
    /// from here on, and counted last.
    pub(crate) fn list_newest_first(&mut self) {
        if !self.oldest_first {
            self.entries.reverse();
            self.oldest_first = true;
        }
    }

    /// Returns whether the entries are counted the other way round than they stand in the document's bytes.
    pub(crate) fn is_turned(&self) -> bool {
        self.oldest_first
    }
}
