//! One round of a plain feed (documents without positions).
//!
//! Pure. Entries of a plain feed have only ids and dates. Between two looks, entries may be edited,
//! moved, put in anywhere or deleted, and documents may be cut. So no entry is a place. A round
//! hands over all entries that were not handed over before: the oldest document first, and each
//! document from bottom to top.
//!
//! ```text
//! recent ──prev-archive──► 3 ──prev-archive──► 2    the document that preceded the recent one
//!   ▲                      │                        at the last look: nothing older is new
//!   └────── read again ────┘
//! ```

use std::collections::HashSet;

use url::Url;

use super::{
    Ask, AskKind, Bookmark, EntryRun, PlainMemory, RunEntry, Stand, Start, Validators, WalkError,
    known::{EntryNovelty, Records, RememberedEntries},
    places::{is_before, lead},
    seen::{EntryStamp, SeenEntries},
    walk::{is_closed, is_same_feed},
};
use crate::{
    limits::{KNOWN_WINDOW_MAX, WALK_URL_BYTES_MAX},
    reader::{Document, Listing},
    timestamp::Timestamp,
};

/// Maximum number of times that a walk reads older documents again because the feed grew meanwhile.
/// After that, the rest is left to the next round.
const LOOKS_BETWEEN_MAX: u32 = 8;

/// Direction of a feed's archive links, found at the look at the recent document.
#[derive(Clone, Copy, Debug, Default)]
enum Direction {
    /// `prev-archive` leads to older documents (RFC 5005).
    #[default]
    AsNamed,
    /// `prev-archive` leads to newer documents (Atom Hopper).
    Inverted {
        /// The feed-level `updated` of the document that the walk read last. The next document must
        /// not be newer.
        behind: Option<Timestamp>,
    },
}

/// State of the walk.
#[derive(Clone, Debug, PartialEq, Eq)]
enum PlainState {
    /// Before the look at the recent document.
    Looking,
    /// Searches for the document to begin with, along `prev-archive`.
    Back { url: Url },
    /// Hands over entries, document by document.
    Forward { url: Url },
    /// Every document is handed over, or the rest is left to the next round.
    Done,
}

/// Document whose entries the walk passed last.
#[derive(Clone, Debug)]
struct PassedDocument {
    asked: Url,
    url: Url,
    /// Whether the document cannot have gained entries after the walk's request.
    closed: bool,
}

/// Copy of the recent document that was set aside until the next older document was read again.
#[derive(Debug)]
struct Aside {
    /// Whether the copy has a known or owed entry, or shares an entry with an earlier copy for
    /// which this fact was true.
    is_joined: bool,
    /// Entries that earlier copies showed and this copy lacks. The archive is read again after this
    /// copy, so entries that are still missing then were deleted.
    missing: HashSet<u64>,
}

/// Position of a document relative to the place to begin at.
enum PlainStanding {
    /// Everything in the document and in older documents is old.
    Before,
    /// The document holds the place: the entry at this index and all older ones are old.
    Holds(usize),
    /// Every unknown entry of the document is new, and everything in older documents is old.
    Begins,
    /// The place is in an older document.
    Behind,
}

/// One round of a plain feed.
#[expect(clippy::struct_excessive_bools, reason = "independent facts")]
#[derive(Debug)]
pub(super) struct PlainWalk {
    recent: Url,
    start: Start,
    /// The place that the last round ended at.
    place: Option<Bookmark>,
    /// Where that place is, if known.
    stand: Option<Stand>,
    known: RememberedEntries,
    state: PlainState,
    /// Whether the walk requested this document before, so that the next request must bypass
    /// caches.
    again: bool,
    /// The documents to hand over, the oldest last.
    way: Vec<Url>,
    /// Number of documents in `way` from the newest to the oldest one that has a known or owed
    /// entry; `None` if no document has such an entry.
    anchored: Option<usize>,
    /// The URLs of the documents that the walk passed.
    read: HashSet<Url>,
    passed: Option<PassedDocument>,
    /// The entries that the way back has seen.
    seen: SeenEntries,
    /// The copy of the recent document from which the way back began, and the URL of that copy.
    looked: Option<Box<(Document, Url)>>,
    looks_between: u32,
    /// The copy of the recent document that was set aside last.
    aside: Option<Aside>,
    /// Number of times the recent document was set aside again.
    looks_aside: u32,
    /// Whether the look at the recent document showed an entry that was handed over before or is to
    /// be handed over.
    has_shown_recent: bool,
    /// Whether the walk handed over the copy of that look, because the recent document at the end
    /// of the way lacked entries of the copy.
    has_lost_looked: bool,
    /// Whether the walk already requested the recent document past all caches because the place was
    /// missing.
    looked_again: bool,
    /// Whether any document was marked closed. In such a feed, an unmarked document is open.
    meets_closed: bool,
    /// Whether the way back has reached the place.
    meets_place: bool,
    /// Whether to go on where a document or the place is missing.
    lenient: bool,
    revisions: bool,
    feed: Option<String>,
    direction: Direction,
    listing: Option<Listing>,
    visited: HashSet<Url>,
    visited_bytes: usize,
    documents_max: usize,
    handed_over: usize,
    /// Entries dated before this instant are passed over.
    seeking: Option<Timestamp>,
    begins_after: Option<Bookmark>,
    last: Option<Bookmark>,
}

impl PlainWalk {
    /// Begins a round of the feed whose recent document is at `recent`. `known` is the consumer's
    /// memory of that feed.
    pub(super) fn new(recent: Url, start: Start, known: RememberedEntries) -> Self {
        let place = match &start {
            Start::Bookmark(place) if place.entry.is_some() => Some(place.clone()),
            _ => None,
        };
        // A bookmark without an entry was written before any entry was handed over, so every entry
        // is new.
        let start = match start {
            Start::Bookmark(Bookmark { entry: None, .. }) => Start::Oldest,
            // An old bookmark without remembered entries, or a bookmark from when the feed still
            // had positions.
            Start::Bookmark(Bookmark {
                entry: Some(entry),
                known: None,
                ..
            }) => Start::Entry(entry),
            start => start,
        };
        let turned = place.as_ref().is_some_and(|place| place.oldest_first);
        let stand = place.as_ref().and_then(|place| stand_of(place, &recent));
        Self {
            recent,
            stand,
            state: PlainState::Looking,
            again: false,
            way: vec![],
            anchored: None,
            read: HashSet::new(),
            passed: None,
            seen: SeenEntries::at_most(known.compared_max()),
            known,
            looked: None,
            looks_between: 0,
            aside: None,
            looks_aside: 0,
            has_shown_recent: false,
            has_lost_looked: false,
            looked_again: false,
            meets_closed: false,
            meets_place: false,
            lenient: false,
            revisions: false,
            feed: None,
            direction: Direction::default(),
            // A feed that listed the oldest entry first keeps this order, even if the documents of
            // this round do not show their order.
            listing: turned.then_some(Listing::OldestFirst),
            visited: HashSet::new(),
            visited_bytes: 0,
            documents_max: usize::MAX,
            handed_over: 0,
            seeking: match start {
                Start::Time(time) => Some(time),
                _ => None,
            },
            begins_after: None,
            last: place.clone(),
            place,
            start,
        }
    }

    /// Passes over entries dated before `time`.
    #[must_use]
    pub(super) fn seek(self, time: Option<Timestamp>) -> Self {
        Self {
            seeking: self.seeking.or(time),
            ..self
        }
    }

    /// Returns the instant that the walk seeks, until an entry is handed over.
    pub(super) fn seeking(&self) -> Option<Timestamp> {
        self.seeking.filter(|_| self.begins_after.is_none())
    }

    #[must_use]
    pub(super) fn documents_max(self, documents_max: usize) -> Self {
        Self {
            documents_max,
            ..self
        }
    }

    #[must_use]
    pub(super) fn revisions(self, revisions: bool) -> Self {
        Self { revisions, ..self }
    }

    /// Sets whether the walk goes on from the oldest entry that is left if a document or the place
    /// is missing.
    #[must_use]
    pub(super) fn lenient(mut self, lenient: bool) -> Self {
        if lenient {
            self.known.forgive();
        }
        Self { lenient, ..self }
    }

    /// Returns the next request, or `None` at the end of the walk.
    pub(super) fn ask(&self) -> Option<Ask> {
        let (url, kind) = match &self.state {
            PlainState::Looking => (&self.recent, AskKind::Recent),
            PlainState::Back { url } | PlainState::Forward { url } => (url, AskKind::Document),
            PlainState::Done => return None,
        };
        Some(Ask {
            url: url.clone(),
            kind,
            again: self.again,
            optional: false,
            known: Validators::default(),
        })
    }

    /// Returns the bookmark after everything passed so far.
    pub(super) fn bookmark(&self) -> Option<Bookmark> {
        let last = self.last.clone()?;
        Some(self.with_memory(last))
    }

    /// Adds the consumer's memory to a place.
    fn with_memory(&self, place: Bookmark) -> Bookmark {
        Bookmark {
            known: Some(self.known.kept()),
            pending: self.known.pending(),
            ..place
        }
    }

    /// Returns the gap at the end of a walk, if entries that were due in this round were not handed
    /// over.
    pub(super) fn deleted(&self) -> Option<WalkError> {
        let entries = self.known.overdue();
        (entries > 0).then_some(WalkError::Deleted { entries })
    }

    /// Prepares the consumer's memory for the next round.
    pub(super) fn end(&mut self) {
        self.known.end_round();
    }

    /// Returns the known entries for the next round.
    pub(super) fn into_known(self) -> RememberedEntries {
        self.known
    }

    /// Returns the place right before the first entry handed over. If no entry was handed over,
    /// returns the place where the walk ended, or `None` while the walk goes on.
    pub(super) fn begins_after(&self) -> Option<Bookmark> {
        let nowhere = || {
            let feed = self.feed.clone()?;
            Some(Bookmark {
                feed,
                ..Bookmark::default()
            })
        };
        let ended = || match self.state {
            PlainState::Done => self.bookmark().or_else(nowhere),
            _ => None,
        };
        self.begins_after.clone().or_else(ended)
    }

    /// Handles a 404 or 410 for the document asked for.
    ///
    /// # Errors
    ///
    /// [`WalkError::Missing`] unless the walk goes on without the document.
    pub(super) fn missing(&mut self) -> Result<(), WalkError> {
        match self.state.clone() {
            PlainState::Back { .. } | PlainState::Forward { .. } if self.lenient => {
                self.go_forward();
                Ok(())
            }
            PlainState::Back { url } | PlainState::Forward { url } => {
                Err(WalkError::Missing { url })
            }
            PlainState::Looking | PlainState::Done => Err(WalkError::Missing {
                url: self.recent.clone(),
            }),
        }
    }

    /// Takes the document asked for, retrieved from `url`, and returns the entries to hand over.
    ///
    /// # Errors
    ///
    /// See [`WalkError`]. The walk is of no use after any of them.
    pub(super) fn take(
        &mut self,
        mut document: Document,
        url: &Url,
    ) -> Result<Option<EntryRun>, WalkError> {
        // The order matters: all later steps need links and entries in their true direction.
        self.right_links(&mut document, url)?;
        self.right_order(&mut document);
        document.order_revisions(self.revisions);
        self.check_feed(&document, url)?;
        self.feed.get_or_insert_with(|| document.feed.clone());
        self.meets_closed |= is_closed(&document);
        match self.state.clone() {
            PlainState::Looking => self.look_at_recent(document, url),
            PlainState::Back { url: asked } => self.walk_back(document, url, asked),
            PlainState::Forward { url: asked } => self.walk_forward(document, url, &asked),
            PlainState::Done => Ok(None),
        }
    }

    /// Looks at the recent document, and decides whether older documents may have unknown entries.
    fn look_at_recent(
        &mut self,
        mut document: Document,
        url: &Url,
    ) -> Result<Option<EntryRun>, WalkError> {
        // A bookmark must remember every entry of the recent document, or a restart would hand over
        // the others again.
        if document.len() > KNOWN_WINDOW_MAX {
            return Err(WalkError::TooManyEntries {
                url: url.clone(),
                max: KNOWN_WINDOW_MAX,
            });
        }
        self.known.look_at(&document);
        let asked = self.recent.clone();
        let lacks_owed = self.known.lacks_owed(&document);
        // The check comes before `keep_link`, which may put a sound link in place of a broken one.
        let linked = match lead(&document, "prev-archive", url) {
            Err(broken) if self.needs_link(&document) => Err(broken),
            _ => Ok(()),
        };
        if !self.again && (linked.is_err() || lacks_owed || self.may_be_old(&document, url, &asked))
        {
            self.again = true;
            return Ok(None);
        }
        linked?;
        let is_own_link = document.link("prev-archive").is_some();
        self.keep_link(&mut document);
        // Entries may have come and gone unseen: the walk looks once more, and then reports a gap.
        if self.has_slid(&document, is_own_link) {
            return self.not_found(Some((document, asked)), url);
        }
        if !matches!(self.start, Start::Entry(_)) {
            // Where only an id is known, an old copy may show entries that are older than the
            // place.
            self.note_shown(&document, document.len());
            self.has_shown_recent = !self.is_all_new(&document);
        }
        let standing = self.standing_of(&document, url, &asked);
        if !self.lenient && self.owes_pages(&standing, &document, [url, &asked]) {
            return Err(WalkError::Paged { url: url.clone() });
        }
        let begin_at = match standing {
            PlainStanding::Before => {
                // An empty recent document has no newest entry, but the next older document has
                // one.
                let behind = document
                    .is_empty()
                    .then(|| lead(&document, "prev-archive", url));
                if let Some(previous) = behind.transpose()?.flatten() {
                    self.way.push(asked);
                    return self.go_back(previous).map(|()| None);
                }
                self.pass_over(&document, 0, url);
                self.state = PlainState::Done;
                return Ok(None);
            }
            PlainStanding::Holds(index) => Some(index),
            PlainStanding::Behind => match lead(&document, "prev-archive", url)? {
                Some(previous) => {
                    self.anchor_in(&document);
                    self.way.push(asked);
                    self.looked = Some(Box::new((document, url.clone())));
                    return self.go_back(previous).map(|()| None);
                }
                None => return self.not_found(Some((document, asked)), url),
            },
            PlainStanding::Begins => None,
        };
        if let Some(index) = begin_at {
            self.pass_over(&document, index, url);
        }
        let run = self.hand_over(document, url, &asked)?;
        self.state = PlainState::Done;
        Ok(Some(run))
    }

    /// Whether other pages of the feed may have entries that are still to be handed over.
    fn owes_pages(&self, standing: &PlainStanding, document: &Document, urls: [&Url; 2]) -> bool {
        let has_earlier = |time: Timestamp| {
            let mut dates = (0..document.len()).filter_map(|index| document.updated_of(index));
            dates.any(|updated| updated < time)
        };
        matches!(standing, PlainStanding::Begins)
            && document.next_page(urls) != Ok(None)
            && match &self.start {
                // The next pages hold older entries, so an entry here before the time shows that
                // they hold none to hand over.
                Start::Time(time) => !has_earlier(*time),
                Start::Oldest => true,
                // The place is on this page, or else counts as gone.
                Start::Newest | Start::Entry(_) | Start::Bookmark(_) => false,
            }
    }

    /// Whether a round from a bookmark needs the link from the recent document to the archive. A
    /// known entry at the bottom shows that older documents have nothing new, unless the entry was
    /// revised and may have moved.
    fn needs_link(&self, document: &Document) -> bool {
        matches!(self.start, Start::Bookmark(_)) && !self.is_joined(document)
    }

    /// Whether the entry at the bottom of the recent document is known with the same date, or is
    /// owed after everything older was handed over.
    fn is_joined(&self, document: &Document) -> bool {
        let is_met = |bottom: usize| {
            self.known.has_unchanged(document, bottom)
                || self.stood_at_end() && self.known.is_pending(document, bottom)
        };
        document.len().checked_sub(1).is_some_and(is_met)
    }

    /// Whether the feed showed no entry and no archive at the end of the last round: whatever is
    /// there now is new.
    fn had_nothing(&self) -> bool {
        let archive = self.place.as_ref().and_then(|place| place.archive.as_ref());
        self.stand == Some(Stand::Empty) && archive.is_none()
    }

    /// Whether the last round had come to the recent document: everything older was handed over.
    fn stood_at_end(&self) -> bool {
        matches!(self.stand, Some(Stand::Recent | Stand::Empty))
    }

    /// Whether any of a document's entries was handed over, or is owed after everything older was
    /// handed over.
    fn has_met_any_of(&self, document: &Document) -> bool {
        let is_owed = || self.stood_at_end() && self.known.owes_any_of(document);
        self.known.has_any_of(document) || is_owed()
    }

    /// Keeps the link to the newest archive where the recent document has lost that link. Without
    /// the link, the next look would take all archives for new.
    fn keep_link(&self, recent: &mut Document) {
        if recent.link("prev-archive").is_some() {
            return;
        }
        let passed = self.passed.as_ref().map(|passed| &passed.asked);
        let passed = passed.filter(|passed| **passed != self.recent);
        if let Some(archive) = passed.or_else(|| self.archive_at_place()) {
            recent.add_link("prev-archive", archive, archive.as_str());
        }
    }

    /// Returns the archive that the recent document led to when the last round ended. A place
    /// within an archived document does not count, because the bookmark then names the next older
    /// document.
    fn archive_at_place(&self) -> Option<&Url> {
        let place = self.place.as_ref().filter(|_| self.stood_at_end())?;
        place.archive.as_ref()
    }

    /// Whether documents or entries may have come and gone unseen. In the first case, the recent
    /// document leads to the same archive as at the last look, and has lost all entries of that
    /// look. In the second case, the link leads past the document in which the last round stopped.
    /// The link may be the document's own, or be kept by [`keep_link`](Self::keep_link).
    fn has_slid(&self, document: &Document, is_own_link: bool) -> bool {
        let archive = self.place.as_ref().and_then(|place| place.archive.as_ref());
        let is_same = archive.is_some() && document.link("prev-archive") == archive;
        let is_new = || self.is_unknown(document);
        is_same
            && match self.stand {
                Some(Stand::Archive) => true,
                Some(Stand::Recent) => is_new(),
                // The recent document was empty at the last look, and had no entries to lose. The
                // document's own link to the same archive shows that nothing was cut.
                Some(Stand::Empty) => !is_own_link && is_new(),
                None => false,
            }
    }

    /// Whether a recent document may be an old copy: the document leads to another archive than the
    /// last one or to none, has no entry, or has an unknown entry below a known one. Without
    /// positions, only a request past all caches decides.
    fn may_be_old(&self, document: &Document, url: &Url, asked: &Url) -> bool {
        let Some(place) = &self.place else {
            return false;
        };
        let has_lost = document.is_empty()
            || place.archive.is_some() && document.link("prev-archive").is_none();
        let mut known = (0..document.len()).map(|index| self.known.has(document, index));
        // Both searches share the iterator: the second one only sees entries below the first known
        // one.
        let has_gap = known.by_ref().any(|known| known) && known.any(|known| !known);
        has_lost
            || has_gap
            || matches!(
                self.standing_of(document, url, asked),
                PlainStanding::Behind
            )
    }

    /// Whether the place is nowhere in the feed, given that this document is the feed's only one.
    fn is_unknown(&self, document: &Document) -> bool {
        match self.start {
            Start::Bookmark(_) if self.had_nothing() => false,
            Start::Bookmark(_) => !document.is_empty() && !self.has_met_any_of(document),
            Start::Entry(_) => true,
            Start::Oldest | Start::Newest | Start::Time(_) => false,
        }
    }

    /// Whether this document, or a newer one of the way back, has an entry that was handed over. If
    /// none of them has such an entry, the feed may have had a document older than the oldest one
    /// met.
    fn has_met_on_way(&self, document: &Document) -> bool {
        self.anchored.is_some() || self.has_met_any_of(document)
    }

    fn anchor_in(&mut self, document: &Document) {
        if self.has_met_any_of(document) {
            // `+ 1` counts this document, which the caller pushes next.
            self.anchored = Some(self.way.len() + 1);
        }
    }

    /// Returns where a document stands relative to the place to begin at.
    fn standing_of(&self, document: &Document, url: &Url, asked: &Url) -> PlainStanding {
        let is = |other: Option<&Url>| other.is_some_and(|other| other == url || other == asked);
        let previous = document.lead("prev-archive");
        match &self.start {
            Start::Newest => PlainStanding::Before,
            // An empty document has no dates, so older documents must be read.
            Start::Time(time) if !document.is_empty() && is_before(document, *time) => {
                PlainStanding::Before
            }
            Start::Oldest | Start::Time(_) if previous == Ok(None) => PlainStanding::Begins,
            Start::Oldest | Start::Time(_) => PlainStanding::Behind,
            Start::Entry(id) => {
                // The same id in another document may be a revision of the entry.
                let read_in = self
                    .place
                    .as_ref()
                    .and_then(|place| place.document.as_ref());
                let is_elsewhere = read_in.is_some() && !is(read_in) && !self.looked_again;
                match document.find(id).filter(|_| !is_elsewhere) {
                    Some(index) => PlainStanding::Holds(index),
                    None => PlainStanding::Behind,
                }
            }
            Start::Bookmark(place) => {
                // For the recent document, the archive link decides, because the URL of the recent
                // document has new contents at each look.
                if self.state == PlainState::Looking {
                    // The last round may have left documents unread that are newer than the place's
                    // document.
                    let is_ahead = || {
                        let is_at_end = self.stood_at_end();
                        !is_at_end && (self.stand.is_some() || !self.is_joined(document))
                    };
                    return match (previous, place.archive.as_ref()) {
                        (Ok(None) | Err(_), _) if self.is_unknown(document) || is_ahead() => {
                            PlainStanding::Behind
                        }
                        // Nothing older than a known entry is new.
                        (Ok(None) | Err(_), _) => PlainStanding::Begins,
                        (Ok(Some(previous)), Some(archive)) if previous == archive => {
                            PlainStanding::Begins
                        }
                        (Ok(Some(_)), _) => PlainStanding::Behind,
                    };
                }
                let is_read = self.read.contains(url) || self.read.contains(asked);
                if is(place.document.as_ref()) {
                    PlainStanding::Begins
                } else if is_read || is(place.archive.as_ref()) {
                    PlainStanding::Before
                } else if previous == Ok(place.archive.as_ref())
                    && (previous != Ok(None) || self.had_nothing() || self.has_met_on_way(document))
                {
                    // Everything in older documents is old, and the server may have removed those
                    // documents. So the walk does not request them.
                    PlainStanding::Begins
                } else {
                    PlainStanding::Behind
                }
            }
        }
    }

    fn walk_back(
        &mut self,
        document: Document,
        url: &Url,
        asked: Url,
    ) -> Result<Option<EntryRun>, WalkError> {
        // A copy without the closed mark, although newer documents exist, is from when the document
        // was open.
        let seeks_place = matches!(self.start, Start::Entry(_) | Start::Bookmark(_));
        let is_read = self.read.contains(url) || self.read.contains(&asked);
        let may_be_old = self.meets_closed || seeks_place || is_read;
        if may_be_old && !is_closed(&document) && !self.again {
            self.again = true;
            return Ok(None);
        }
        if is_read {
            return self.end_way_back(document, url, asked);
        }
        match self.standing_of(&document, url, &asked) {
            PlainStanding::Before => {
                let is_passed = matches!(self.start, Start::Time(_) | Start::Newest);
                self.meets_place |= !is_passed;
                if is_passed {
                    self.pass_over(&document, 0, url);
                }
                // The walk never reads again the documents that are older than a bookmark's place:
                // their entries may be forgotten.
                let closed = !is_passed || is_closed(&document);
                self.note_passed(asked, url, closed);
                self.go_forward();
                Ok(None)
            }
            PlainStanding::Holds(index) => {
                self.pass_over(&document, index, url);
                self.note_seen(&document, &asked, index);
                self.way.push(asked);
                self.go_forward();
                Ok(None)
            }
            PlainStanding::Begins => {
                // Below the place everything is known, so the way forward begins with this
                // document.
                self.meets_place = true;
                self.note_seen(&document, &asked, document.len());
                self.way.push(asked);
                self.go_forward();
                Ok(None)
            }
            PlainStanding::Behind => {
                let previous = lead(&document, "prev-archive", url)?;
                self.anchor_in(&document);
                self.note_seen(&document, &asked, document.len());
                match previous {
                    Some(previous) => {
                        self.way.push(asked);
                        self.go_back(previous).map(|()| None)
                    }
                    None => self.not_found(Some((document, asked)), url),
                }
            }
        }
    }

    /// Ends a way back at a document that this round passed before. A document that is not closed
    /// may have grown since.
    fn end_way_back(
        &mut self,
        document: Document,
        url: &Url,
        asked: Url,
    ) -> Result<Option<EntryRun>, WalkError> {
        self.meets_place = true;
        let grown = Some(document).filter(|document| !is_closed(document));
        let run = grown.map(|document| self.hand_over(document, url, &asked));
        let run = run.transpose()?;
        // The way back came from a newer document, so this document grows no more.
        self.note_passed(asked, url, true);
        self.go_forward();
        Ok(run)
    }

    /// Notes the entries of a document that the way forward is to hand over, from another copy.
    fn note_seen(&mut self, document: &Document, asked: &Url, first: usize) {
        let is_recent = *asked == self.recent;
        // Where old entries may be forgotten, an unknown entry of an archived document need not be
        // new.
        if self.known.is_partial() && !is_recent {
            return;
        }
        let wanted = (0..document.len()).filter(|index| self.is_wanted(document, *index, first));
        let wanted: Vec<usize> = wanted.collect();
        // In the recent document, entries may be edited at any time, so their dates do not count.
        let is_dated = self.revisions && !is_recent;
        self.seen.note(asked, document, &wanted, is_dated);
    }

    /// Handles a place that is in none of the documents: the documents have other URLs now, or the
    /// entries are gone. A stale copy of the recent document can hide the place, so the walk
    /// requests that document once more past all caches.
    fn not_found(
        &mut self,
        at_hand: Option<(Document, Url)>,
        url: &Url,
    ) -> Result<Option<EntryRun>, WalkError> {
        if !self.looked_again {
            self.looked_again = true;
            self.give_up_way(at_hand.as_ref().map(|(_, asked)| asked));
            self.anchored = None;
            self.forget_visited();
            self.state = PlainState::Looking;
            self.again = true;
            return Ok(None);
        }
        let is_entry = matches!(self.start, Start::Entry(_));
        match (self.anchored, is_entry) {
            (Some(anchored), false) => {
                // An earlier round handed over everything older than the oldest document with a
                // known entry.
                if let Some((_, asked)) = at_hand {
                    self.way.push(asked);
                }
                self.way.truncate(anchored);
            }
            _ if !self.lenient => return Err(self.gap_error()),
            _ => {
                if let Some((document, asked)) = at_hand {
                    // A lenient walk goes on with the recent document at hand: no way back has
                    // begun.
                    if self.state == PlainState::Looking {
                        let run = self.hand_over(document, url, &asked)?;
                        self.state = PlainState::Done;
                        return Ok(Some(run));
                    }
                    self.way.push(asked);
                }
            }
        }
        self.go_forward();
        Ok(None)
    }

    /// Whether every entry of the recent document is new, and none was in an earlier copy if the
    /// copy set aside last is joined (`Aside::is_joined`).
    fn is_all_new(&self, recent: &Document) -> bool {
        let aside_is_joined = self.aside.as_ref().is_some_and(|aside| aside.is_joined);
        let is_joined = |index| aside_is_joined && self.seen.has(&self.recent, recent, index);
        (0..recent.len()).all(|index| self.is_new(recent, index) && !is_joined(index))
    }

    /// Whether a document's entry was not handed over and is not owed.
    fn is_new(&self, document: &Document, index: usize) -> bool {
        !self.known.has(document, index) && !self.known.is_pending(document, index)
    }

    /// Returns an error if, at the end of the way, entries may have come and gone unseen: the
    /// recent document's link is broken, or the document has no entry of the look and leads to no
    /// newer archive. `link` is the document's own link.
    fn is_cut_off(
        &self,
        document: &Document,
        link: Result<Option<Url>, WalkError>,
    ) -> Option<WalkError> {
        let is_cut = self.has_shown_recent
            && !document.is_empty()
            && !self.lenient
            && self.is_all_new(document);
        let passed = self.passed.as_ref();
        match link {
            Err(broken) if !self.is_joined(document) => Some(broken),
            Ok(None) if is_cut && passed.is_some() => Some(self.gap_error()),
            Ok(Some(link))
                // No document was cut meanwhile, because the walk would have gone back over that
                // document, and an archive that may have grown was read again. So the entries that
                // only the copy of the look had were deleted, and others may have been deleted
                // unseen.
                if is_cut
                    && self.has_lost_looked
                    && self.looks_between == 0
                    && passed.is_some_and(|passed| passed.asked == link || passed.url == link) =>
            {
                Some(self.gap_error())
            }
            _ => None,
        }
    }

    /// Gives up this way, because the copies on the way may be stale. The entries seen on the way
    /// stay owed, because the next way may lead elsewhere. This does not hold for documents older
    /// than the oldest one with a known entry: unknown entries there need not be new.
    fn give_up_way(&mut self, at_hand: Option<&Url>) {
        let anchored = self.anchored.unwrap_or(0);
        let way = std::mem::take(&mut self.way);
        for asked in way.iter().chain(at_hand).take(anchored) {
            let seen = self.seen.take(asked);
            self.owe_entries(asked, seen);
        }
    }

    /// Makes those entries owed that a document had and the next copy lacks, if they were not
    /// handed over. Returns the entries owed.
    fn owe_entries(&mut self, asked: &Url, lost: Vec<EntryStamp>) -> Vec<EntryStamp> {
        if *asked == self.recent {
            // These entries came after the look, and the last copy may be from a server that lags.
            // The next round shows whether the entries are gone.
            return self.known.defer(lost);
        }
        self.known.owe(lost)
    }

    fn walk_forward(
        &mut self,
        mut document: Document,
        url: &Url,
        asked: &Url,
    ) -> Result<Option<EntryRun>, WalkError> {
        let is_recent = *asked == self.recent;
        // The check comes before `keep_link`, which may put a sound link in place of a broken one.
        let own_link = lead(&document, "prev-archive", url);
        if is_recent {
            self.keep_link(&mut document);
        }
        // A document without the closed mark may be a stale copy from before the cut. A document
        // that has lost entries since the way back may come from another server.
        let lost = self.seen.lost(asked, &document);
        let may_be_old = !is_recent && !is_closed(&document) || !lost.is_empty();
        if may_be_old && !self.again {
            if !is_recent {
                // Another server's copy may have entries that neither the way back nor the next
                // copy has.
                self.note_seen(&document, asked, document.len());
            }
            self.again = true;
            return Ok(None);
        }
        if let Some(step) = self.follow_growth(&document, url, asked, &lost) {
            return step;
        }
        if is_recent {
            let looked = self.looked.take();
            if let Some(looked) = looked.filter(|_| self.known.lacks_shown(&document)) {
                // The publisher deleted entries during the walk, so the walk hands over the copy
                // that showed them.
                let (looked, at) = *looked;
                let run = self.hand_over_copy(looked, &at, asked)?;
                self.has_lost_looked = true;
                self.again = true;
                return Ok(Some(run));
            }
            // A request past all caches has brought this copy.
            if let Some(cut) = self.is_cut_off(&document, own_link) {
                return Err(cut);
            }
            self.known.look_at(&document);
        }
        self.seen.take(asked);
        // The lost entries are owed before the document is handed over, so that bookmarks of the
        // document's entries list them. They are owed again afterwards, because an older revision
        // may have stood in for a lost entry.
        let owed = self.owe_entries(asked, lost);
        let run = if is_recent && !owed.is_empty() {
            self.hand_over_copy(document, url, asked)?
        } else {
            self.hand_over(document, url, asked)?
        };
        self.owe_entries(asked, owed);
        self.go_forward();
        Ok(Some(run))
    }

    /// Reads the older documents that may have new entries: the document that the walk passed last,
    /// if that document may have grown since, and the documents that were cut since. Returns the
    /// outcome of this step; `None` if there is no such document.
    fn follow_growth(
        &mut self,
        document: &Document,
        url: &Url,
        asked: &Url,
        lost: &[EntryStamp],
    ) -> Option<Result<Option<EntryRun>, WalkError>> {
        let is_recent = *asked == self.recent;
        let previous = document.link("prev-archive");
        let passed = self.passed.as_mut().filter(|passed| passed.url != *url)?;
        if previous == Some(&passed.asked) || previous == Some(&passed.url) {
            let before = passed.asked.clone();
            // The passed document may have gained entries between the request and the cut that this
            // document shows.
            let was_closed = std::mem::replace(&mut passed.closed, true);
            if was_closed {
                // A passed document that was read again may have gained more entries since.
                if !is_recent || !self.is_ahead(document, lost) {
                    return None;
                }
                self.looks_aside += 1;
                if self.is_outrun(self.looks_aside) {
                    return Some(self.end_early(document, asked));
                }
            }
            self.set_aside(document, asked.clone(), before, lost);
            return Some(Ok(None));
        }
        // The publisher cut documents after the way back began at the recent document.
        let between = previous.filter(|previous| is_recent && !self.read.contains(*previous))?;
        self.looks_between += 1;
        if self.is_outrun(self.looks_between) {
            return Some(self.end_early(document, asked));
        }
        self.way.push(asked.clone());
        self.forget_visited();
        Some(self.go_back(between.clone()).map(|()| None))
    }

    /// Sets a document aside, and requests the next older document again.
    fn set_aside(&mut self, document: &Document, asked: Url, before: Url, lost: &[EntryStamp]) {
        if asked == self.recent {
            self.aside = Some(Aside {
                is_joined: !self.is_all_new(document),
                missing: self.known.missing(lost, document),
            });
        }
        self.note_seen(document, &asked, document.len());
        self.way.push(asked);
        self.enter(PlainState::Forward { url: before });
        self.again = true;
    }

    /// Whether the document next older than the recent one may have grown again, after the walk set
    /// a copy aside and read that document again. `lost` are the entries of copies set aside that
    /// the recent document lacks.
    fn is_ahead(&self, recent: &Document, lost: &[EntryStamp]) -> bool {
        let Some(aside) = &self.aside else {
            return false;
        };
        // Entries leave the recent document at the bottom. A new entry at the bottom may follow
        // others that came and went unseen, even if the copy set aside was empty, or if one entry
        // stays on top.
        let is_unseen =
            |bottom| self.is_new(recent, bottom) && !self.seen.has(&self.recent, recent, bottom);
        recent.len().checked_sub(1).is_some_and(is_unseen)
            || !self.known.missing(lost, recent).is_subset(&aside.missing)
    }

    /// Whether the feed grows faster than the walk reads, given the number of looks. If so, the
    /// round must end before the recent document.
    fn is_outrun(&self, looks: u32) -> bool {
        let is_whole = looks > 1 && !self.known.has_shown();
        is_whole || looks > LOOKS_BETWEEN_MAX
    }

    /// Ends the round before the recent document: hands over the entries of the look, and leaves
    /// newer entries to the next round.
    fn end_early(&mut self, recent: &Document, asked: &Url) -> Result<Option<EntryRun>, WalkError> {
        let looked = self.looked.take().filter(|_| self.known.has_shown());
        // Newer entries are owed before the copy of the look is handed over, so that the bookmarks
        // of the copy's entries list them. They are owed again afterwards, because an older
        // revision may have stood in for a newer one.
        self.note_shown(recent, recent.len());
        let seen = self.seen.take(asked);
        let owed = self.known.owe(seen);
        let run = looked.map(|looked| self.hand_over_copy(looked.0, &looked.1, asked));
        let run = run.transpose()?;
        self.note_shown(recent, recent.len());
        self.known.owe(owed);
        self.known.defer_shown();
        self.stay_before_recent();
        self.enter(PlainState::Done);
        Ok(run)
    }

    /// Hands over the entries of a copy of the recent document that is not the end of the way. The
    /// walk, and the bookmarks of these entries, stay at the document passed before: the next look
    /// must lead through that document again.
    fn hand_over_copy(
        &mut self,
        copy: Document,
        url: &Url,
        asked: &Url,
    ) -> Result<EntryRun, WalkError> {
        let (passed, last) = (self.passed.clone(), self.last.clone());
        let mut run = self.hand_over(copy, url, asked)?;
        (self.passed, self.last) = (passed, last);
        self.stay_before_recent();
        if let Some(memory) = &mut run.memory {
            memory.place.clone_from(&self.last);
        }
        Ok(run)
    }

    /// Notes that documents newer than the document of the last place are still to be read.
    fn stay_before_recent(&mut self) {
        if let Some(last) = &mut self.last {
            last.stand = Some(Stand::Archive);
        }
    }

    fn note_passed(&mut self, asked: Url, url: &Url, closed: bool) {
        // Links may name either URL of a redirect, so both count as read.
        self.read.extend([url.clone(), asked.clone()]);
        self.passed = Some(PassedDocument {
            asked,
            url: url.clone(),
            closed,
        });
    }

    /// Marks the entries of a document from `index` down as known.
    fn pass_over(&mut self, document: &Document, index: usize, url: &Url) {
        // Oldest first, so that the memory forgets the oldest entries first.
        for index in (index..document.len()).rev() {
            self.known.meet(document, index);
        }
        if index < document.len() {
            self.last = self.bookmark_at(document, index, url);
        }
        self.begin_at(document);
    }

    /// Sets a place even where there is no entry yet.
    fn begin_at(&mut self, document: &Document) {
        self.last.get_or_insert_with(|| Bookmark {
            feed: document.feed.clone(),
            ..Bookmark::default()
        });
    }

    /// Hands over the entries of a document that are wanted: new ones, and revised ones if the walk
    /// hands over revisions.
    fn hand_over(
        &mut self,
        document: Document,
        url: &Url,
        asked: &Url,
    ) -> Result<EntryRun, WalkError> {
        self.handed_over += 1;
        if self.handed_over > self.documents_max {
            return Err(WalkError::TooMany {
                max: self.documents_max,
            });
        }
        let again = self
            .passed
            .as_ref()
            .is_some_and(|passed| passed.url == *url || passed.asked == *asked);
        // A document that was passed as closed stays closed, even if this copy lacks the mark.
        let closed =
            is_closed(&document) || again && self.passed.as_ref().is_some_and(|p| p.closed);
        self.note_passed(asked.clone(), url, closed);
        // The memory before this document: `EntryRun::bookmark` adds the document's entries up to
        // each accepted one.
        let before = self.known.kept();
        let first = self.first_new(&document, asked);
        self.note_shown(&document, first);
        let mut entries = vec![];
        // Documents list the newest entry first; the consumer receives the oldest first.
        for index in (0..document.len()).rev() {
            if self.is_wanted(&document, index, first) {
                if self.begins_after.is_none() {
                    self.begins_after = Some(self.place_before(&document, index, url));
                }
                entries.push(RunEntry { index, place: None });
            }
            self.known.meet(&document, index);
        }
        if !document.is_empty() {
            self.last = self.bookmark_at(&document, 0, url);
        } else if let Some(last) = &mut self.last {
            // An empty document has no entry to stand at, so the next look goes by the archive
            // link.
            last.archive = document.link("prev-archive").cloned();
            if *asked == self.recent {
                last.stand = Some(Stand::Empty);
            }
        }
        self.begin_at(&document);
        Ok(EntryRun {
            older: document.len() - entries.len(),
            memory: Some(PlainMemory {
                known: before,
                pending: self.known.pending(),
                records: Records::of(&document),
                stand: self.stand_here(),
                place: None,
            }),
            document,
            url: url.clone(),
            entries,
        })
    }

    /// Notes the entries of a document that this round is to hand over.
    fn note_shown(&mut self, document: &Document, first: usize) {
        for index in 0..document.len() {
            if self.is_wanted(document, index, first) {
                self.known.show(document, index);
            }
        }
    }

    /// Returns whether to hand over an entry of a document in which unknown entries are new if
    /// their index is less than `first`.
    fn is_wanted(&self, document: &Document, index: usize, first: usize) -> bool {
        match self.known.coming(document, index) {
            EntryNovelty::New => {
                // A shown entry that was not handed over is new at any index.
                let is_new = index < first || self.known.is_pending(document, index);
                is_new && self.is_in_time(document, index)
            }
            EntryNovelty::Revised => self.revisions,
            EntryNovelty::Again => false,
        }
    }

    /// Returns the index `first`: an unknown entry of a document is new if the entry's index is
    /// less.
    ///
    /// All unknown entries are new, unless the memory has forgotten some that were handed over.
    /// Then an archived document counts as handed over from the newest known entry down.
    fn first_new(&self, document: &Document, asked: &Url) -> usize {
        let place = self.place.as_ref();
        let is_place = place.is_some_and(|place| place.document.as_ref() == Some(asked));
        // Entries newer than the place either were in the recent document at the last look, and are
        // remembered, or are new.
        let is_newer = self.meets_place || is_place || *asked == self.recent;
        if is_newer || !self.known.is_partial() {
            return document.len();
        }
        let newest = (0..document.len()).find(|index| self.known.has(document, *index));
        newest.unwrap_or(document.len())
    }

    fn is_in_time(&self, document: &Document, index: usize) -> bool {
        let updated = document.updated_of(index);
        let dates = self.seeking.zip(updated);
        // Nothing shows that an entry without a date is before the time, so the walk hands it over.
        dates.is_none_or(|(time, updated)| updated >= time)
    }

    fn bookmark_at(&self, document: &Document, index: usize, url: &Url) -> Option<Bookmark> {
        let place = super::places::bookmark(document, url, &RunEntry { index, place: None })?;
        Some(Bookmark {
            stand: Some(self.stand_here()),
            ..place
        })
    }

    /// Returns where the entries of the document at hand are.
    fn stand_here(&self) -> Stand {
        match &self.state {
            PlainState::Back { .. } => Stand::Archive,
            PlainState::Forward { url } if *url != self.recent => Stand::Archive,
            PlainState::Forward { .. } | PlainState::Looking | PlainState::Done => Stand::Recent,
        }
    }

    /// Returns the place before an entry, given that all entries below are known.
    fn place_before(&self, document: &Document, index: usize, url: &Url) -> Bookmark {
        let below = self.bookmark_at(document, index + 1, url);
        let place = below.or_else(|| self.last.clone());
        self.with_memory(place.unwrap_or_else(|| Bookmark {
            feed: document.feed.clone(),
            ..Bookmark::default()
        }))
    }

    fn enter(&mut self, state: PlainState) {
        self.state = state;
        self.again = false;
    }

    fn go_back(&mut self, url: Url) -> Result<(), WalkError> {
        // A bound on the number of documents is not enough for memory: each URL may have
        // `LINK_BYTES_MAX` bytes.
        self.visited_bytes = self.visited_bytes.saturating_add(url.as_str().len());
        if self.visited.len() >= self.documents_max || self.visited_bytes > WALK_URL_BYTES_MAX {
            return Err(WalkError::TooMany {
                max: self.documents_max,
            });
        }
        if !self.visited.insert(url.clone()) {
            return Err(WalkError::Loop { url });
        }
        self.enter(PlainState::Back { url });
        Ok(())
    }

    /// Goes on to the oldest document that is not handed over yet. The walk requests the recent
    /// document past all caches, because the way must not end at an older copy.
    fn go_forward(&mut self) {
        // The way back visited the same URLs, and meeting them on the way forward is no loop.
        self.forget_visited();
        match self.way.pop() {
            Some(url) => {
                let again = url == self.recent;
                self.enter(PlainState::Forward { url });
                self.again = again;
            }
            None => self.enter(PlainState::Done),
        }
    }

    fn forget_visited(&mut self) {
        self.visited.clear();
        self.visited_bytes = 0;
    }

    /// Swaps reversed archive links. In some feeds (Atom Hopper), `next-archive` leads to the older
    /// document: their recent document has that link and no `prev-archive`.
    fn right_links(&mut self, document: &mut Document, url: &Url) -> Result<(), WalkError> {
        if self.state == PlainState::Looking {
            let leads = |rel| document.has_link(rel);
            let only_next = leads("next-archive") && !leads("prev-archive");
            // A closed document with only `next-archive` is the oldest one of a feed whose links
            // are right.
            if only_next && !document.archived {
                self.direction = Direction::Inverted { behind: None };
            }
        }
        let Direction::Inverted { behind } = self.direction else {
            return Ok(());
        };
        document.swap_archive_links();
        // The oldest document of a feed with right links also has only `next-archive`. Then the
        // swapped links lead to newer documents, which rising dates reveal.
        let back = matches!(self.state, PlainState::Looking | PlainState::Back { .. });
        let newer = behind.zip(document.updated);
        if back && newer.is_some_and(|(behind, updated)| updated > behind) {
            return Err(WalkError::Backwards { url: url.clone() });
        }
        let behind = document.updated;
        self.direction = Direction::Inverted { behind };
        Ok(())
    }

    /// Puts the entries of a document into their true order: the order that the document shows, or
    /// else the order that the recent document showed last. The order only decides in which
    /// sequence entries are handed over.
    fn right_order(&mut self, document: &mut Document) {
        let shown = document.shown_listing();
        // Only the recent document may change the feed's order: dates can rise in one odd archive
        // by chance.
        self.listing = match self.state {
            PlainState::Looking => shown.or(self.listing),
            _ => self.listing.or(shown),
        };
        if shown.or(self.listing) == Some(Listing::OldestFirst) {
            document.list_newest_first();
        }
    }

    fn check_feed(&self, document: &Document, url: &Url) -> Result<(), WalkError> {
        // Without a bookmark, the first document of the walk fixes the feed.
        let known = self.place.as_ref().map(|place| &place.feed);
        let other = |known: &&String| !is_same_feed(known, document);
        match known.or(self.feed.as_ref()).filter(other) {
            Some(expected) => Err(WalkError::AnotherFeed {
                url: url.clone(),
                expected: expected.clone(),
                found: document.feed.clone(),
            }),
            None => Ok(()),
        }
    }

    fn gap_error(&self) -> WalkError {
        let entry = match (&self.start, &self.place) {
            (Start::Entry(entry), _) => Some(entry),
            (_, place) => place.as_ref().and_then(|place| place.entry.as_ref()),
        };
        let entry = entry.cloned().unwrap_or("before the oldest known".into());
        WalkError::Gap { entry }
    }
}

/// Returns where a place is. If the bookmark does not record the stand, the URL of the document
/// shows the stand, unless the feed has moved.
fn stand_of(place: &Bookmark, recent: &Url) -> Option<Stand> {
    let guess = || match &place.document {
        Some(document) if document == recent => Some(Stand::Recent),
        Some(document) if Some(document) == place.archive.as_ref() => Some(Stand::Empty),
        _ => None,
    };
    place.stand.or_else(guess)
}
