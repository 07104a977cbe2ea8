//! What is different about feeds whose documents tell no positions.
//!
//! Pure. Entries have nothing but their ids there, which may come again, and a document may be cut or
//! grow between two looks without telling.

use url::Url;

use super::{Run, Start, Walk, WalkError};
use crate::reader::Document;

/// How often entries are looked for behind the same entry, walking back again, before it is a loop.
const LOOKS_BETWEEN_MAX: u32 = 8;

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
        self.visited.clear();
        self.way_back.push(self.asked(url));
        self.go_back(previous).map(|()| None)
    }
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
