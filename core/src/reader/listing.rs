//! Order of the entries in a document.
//!
//! Pure. Simplefeed lists the newest entry first (SF-1). Foreign feeds need not do so, and only
//! some of their documents show the order.

use super::Document;
use crate::timestamp::Timestamp;

/// Prefix of the ids of ICT4H's entries.
const ICT4H_ID: &str = "tag:atomfeed.ict4h.org:";

/// Order of the entries in a document's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listing {
    /// Newest entry first, the order of Simplefeed (SF-1).
    NewestFirst,
    /// Oldest entry first, the order of ICT4H's feeds.
    OldestFirst,
}

impl Document {
    /// Returns the order of the entries, if the document proves one: by positions, by ids of ICT4H,
    /// or by at least three dates that all rise or all fall.
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
        // One entry without a date leaves the order open.
        let dates: Option<Vec<Timestamp>> =
            self.entries.iter().map(|slice| slice.updated).collect();
        // Two dates always rise or fall, so they prove nothing.
        let dates = dates.filter(|dates| dates.len() >= 3)?;
        let all = |follows: fn(&Timestamp, &Timestamp) -> bool| {
            dates
                .windows(2)
                .all(|pair| matches!(pair, [a, b] if follows(a, b)))
        };
        if all(|above, below| above < below) {
            return Some(Listing::OldestFirst);
        }
        all(|above, below| above > below).then_some(Listing::NewestFirst)
    }

    /// Returns the order of the entries in the document's bytes, if the document proves one.
    /// Documents that prove no order have the order of the feed's other documents.
    pub fn shown_listing(&self) -> Option<Listing> {
        self.listing
    }

    /// Reverses the entries of a document that lists the oldest first, so that index 0 is the
    /// newest.
    pub(crate) fn list_newest_first(&mut self) {
        // A second call must not turn the entries back.
        if !self.oldest_first {
            self.entries.reverse();
            self.oldest_first = true;
        }
    }

    /// Returns whether the entries have the reverse order of the document's bytes.
    pub(crate) fn is_turned(&self) -> bool {
        self.oldest_first
    }
}
