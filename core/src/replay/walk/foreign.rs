//! What is different about feeds whose documents tell no positions.
//!
//! Pure. Entries have nothing but their ids there, which may come again, and a document may be cut or
//! grow between two looks without telling.

use url::Url;

use super::{Run, Start, State, Walk, WalkError};
use crate::{
    instant::Instant,
    reader::{Document, Listing},
};

/// How often entries are looked for behind the same entry, walking back again, before it is a loop.
const LOOKS_BETWEEN_MAX: u32 = 8;

/// What a feed takes its archive links for.
#[derive(Clone, Copy, Debug, Default)]
pub(super) enum Direction {
    /// What they are called.
    #[default]
    AsNamed,
    /// The other way round.
    Inverted {
        /// The feed-level `updated` of the document behind (towards the newest).
        behind: Option<Instant>,
    },
}

/// The document passed last: as it was asked for, and where it came from.
#[derive(Clone, Debug)]
pub(super) struct Passed {
    pub(super) asked: Url,
    pub(super) url: Url,
    /// Whether it was closed when it was read, so that nothing can have been added to it since.
    pub(super) closed: bool,
    pub(super) empty: bool,
}

impl Walk {
    /// Takes the archive links of a document for what they are: some feeds, as Atom Hopper's, have them
    /// the wrong way round, which shows where the recent document leads on to a "next" archive and to no
    /// "previous" one.
    pub(super) fn right_links(
        &mut self,
        document: &mut Document,
        url: &Url,
    ) -> Result<(), WalkError> {
        if self.state == State::Looking {
            let leads = |rel| document.link(rel).is_some();
            let only_next = leads("next-archive") && !leads("prev-archive");
            if only_next && document.history.is_none() && !document.archived {
                self.direction = Direction::Inverted { behind: None };
            }
        }
        let Direction::Inverted { behind } = self.direction else {
            return Ok(());
        };
        document.swap_archive_links();
        // Unless it is the oldest document of a feed that has them right: then they lead to newer ones.
        let back = matches!(self.state, State::Looking | State::Back { .. });
        let newer = behind.zip(document.updated);
        if back && newer.is_some_and(|(behind, updated)| updated > behind) {
            return Err(WalkError::Backwards { url: url.clone() });
        }
        let behind = document.updated;
        self.direction = Direction::Inverted { behind };
        Ok(())
    }

    /// Takes the entries of a document in their true order. It is the feed's, so what one document has shown
    /// holds for all.
    pub(super) fn right_order(&mut self, document: &mut Document) {
        self.listing = self.listing.or(document.shown_listing());
        if self.listing == Some(Listing::OldestFirst) {
            document.list_newest_first();
        }
    }

    /// Whether the bookmarked entry, found by its id alone, may have come again: it was read in another
    /// document, which is asked first.
    pub(super) fn may_be_a_revision(&self, document: &Document, url: &Url) -> bool {
        let read_in = self.last.as_ref().and_then(|last| last.document.as_ref());
        let elsewhere = read_in.is_some_and(|read_in| read_in != url);
        document.history.is_none() && elsewhere && !self.looked_again
    }

    /// Whether a document without numbers comes right behind the one passed last.
    pub(super) fn follows_last(&self, document: &Document, url: &Url) -> bool {
        let previous = document.link("prev-archive");
        let behind = |last: &Passed| Some(&last.asked) == previous || Some(&last.url) == previous;
        let other = |last: &Passed| last.url != *url;
        self.passed
            .as_ref()
            .is_some_and(|last| other(last) && behind(last))
    }

    /// Whether this document was the last one passed, and had no entry then.
    pub(super) fn was_empty(&self, url: &Url) -> bool {
        let passed = self.passed.as_ref().filter(|passed| passed.url == *url);
        passed.is_some_and(|passed| passed.empty)
    }

    /// Walks back again, from a document on the way forward that does not continue the last one.
    pub(super) fn look_between(
        &mut self,
        document: &Document,
        url: &Url,
    ) -> Result<Option<Run>, WalkError> {
        let (Some(last), Some(previous)) =
            (self.last.clone(), document.link("prev-archive").cloned())
        else {
            return Err(self.gap());
        };
        // A feed that grows meanwhile may need it more than once from one place, but not for ever.
        let times = match &self.looked_between {
            Some((entry, times)) if *entry == last.entry => times + 1,
            _ => 1,
        };
        if times > LOOKS_BETWEEN_MAX {
            return Err(WalkError::Loop { url: url.clone() });
        }
        self.looked_between = Some((last.entry.clone(), times));
        self.start = Start::Bookmark(last);
        self.forget_visited();
        self.way_back.push(self.asked(url));
        self.go_back(previous).map(|()| None)
    }
}

/// Returns whether a document belongs to the feed with this id. Documents of ICT4H's feeds have an id each,
/// which differ by a number at their end.
pub fn is_same_feed(known: &str, document: &Document) -> bool {
    let stem = |id: &str| id.trim_end_matches(|c: char| c.is_ascii_digit()).len();
    let (ours, theirs) = (known, document.feed.as_str());
    let numbered = stem(ours) < ours.len() && stem(theirs) < theirs.len();
    let stems_equal = || ours.get(..stem(ours)) == theirs.get(..stem(theirs));
    ours == theirs || document.history.is_none() && numbered && stems_equal()
}

/// Returns a recent document's permanent URL. In a foreign feed `via` leads to where its information
/// comes from, which is something else (RFC 4287, 4.2.7.2).
pub(super) fn permanent_url(document: &Document, url: &Url) -> Url {
    let via = document.link("via").filter(|_| document.history.is_some());
    via.unwrap_or(url).clone()
}

/// Whether a document says that it is closed.
pub(in crate::replay) fn is_closed(document: &Document) -> bool {
    document.archived || document.link("next-archive").is_some()
}
