//! Round of a feed with positions: back to the place to go on from, and forward to the entry that
//! is newest when the round begins.
//!
//! Pure.

use std::collections::HashSet;

use url::Url;

use super::{
    Ask, AskKind, Bookmark, EntryRun, RunEntry, Start, Validators, WalkError,
    places::{bookmark, count, end_of, hash_entries, is_at, is_before, lead, newest_place},
};
use crate::{
    feed::{Epoch, Position},
    history::HistoryHash,
    index::IndexBlock,
    limits::{WALK_DOCUMENTS_MAX, WALK_URL_BYTES_MAX},
    reader::Document,
    timestamp::Timestamp,
};

mod feed;
mod hand_over;

pub(super) use feed::is_closed;
pub use feed::is_same_feed;
use feed::permanent_url;

/// State of the walk.
#[derive(Clone, Debug, PartialEq, Eq)]
enum WalkState {
    /// Before the look at the recent document.
    Looking,
    /// Searches the archive index for a document to begin at. If the index does not help, the walk
    /// goes back from the document at `back`.
    Index { url: Url, back: Url },
    /// Tries the document that the bookmark names. If the document does not help, the walk goes
    /// back from the document at `back`, if there is one.
    Resuming { url: Url, back: Option<Url> },
    /// Searches for the entry to begin after, along `prev-archive`. If the document at `url` is
    /// missing, the walk goes back from the document at `instead`.
    Back { url: Url, instead: Option<Url> },
    /// Hands over entries, along `next-archive`.
    Forward { url: Url },
    /// The walk has ended, and nothing is left to request.
    Done,
}

/// Position of a document relative to the place to go on from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WalkStanding {
    /// The place is in the document or at one of the document's ends. This number of the document's
    /// oldest entries lies before the place.
    Holds(usize),
    /// The copy is too old: the copy ends before the place that the document should hold, or comes
    /// from before a restoration.
    Stale,
    /// The place is not in the document.
    Elsewhere,
}

/// The newest entry when the walk began. The walk ends there.
#[derive(Clone, Debug)]
struct Pin {
    entry: String,
    place: Option<(Position, Option<HistoryHash>)>,
}

/// One round of catching up, from a start to the entry that is newest when the round begins.
///
/// # Examples
///
/// ```
/// use simplefeed_core::{reader::Document, replay::{Start, Walk}};
///
/// let url: url::Url = "https://example.org/feeds/a/recent.atom".parse()?;
/// let mut walk = Walk::new(url.clone(), Start::Oldest);
/// assert_eq!(walk.ask().unwrap().url, url);
///
/// let body = "<feed xmlns='http://www.w3.org/2005/Atom'><id>urn:f</id>\
///     <entry><id>urn:2</id></entry><entry><id>urn:1</id></entry></feed>";
/// let run = walk.take(Document::read(body.into(), &url)?, &url)?.unwrap();
/// let ids: Vec<_> = run.entries.iter().map(|e| run.document.entry(e.index).unwrap().id).collect();
/// assert_eq!(ids, ["urn:1", "urn:2"]);
/// assert!(walk.ask().is_none());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Walk {
    recent: Url,
    start: Start,
    state: WalkState,
    /// Whether the walk requested this document before, so that the next request must bypass
    /// caches.
    again: bool,
    documents_max: usize,
    pin: Option<Pin>,
    /// Bookmark of the newest entry passed, handed over or not. The next document must continue
    /// from this place.
    last: Option<Bookmark>,
    /// The place right before the first entry handed over.
    begins_after: Option<Bookmark>,
    /// Timestamp to begin at. Entries pass without being handed over until one is dated at or after
    /// that time; `None` from then on.
    seeking: Option<Timestamp>,
    /// The document that the way back passed last: the oldest one known.
    walked_over: Option<Url>,
    /// Position at which the next newer document begins.
    behind: Option<Position>,
    /// Number of documents handed over, bounded by `documents_max`.
    handed_over: usize,
    /// Whether the walk already requested the recent document past all caches because an entry was
    /// missing.
    looked_again: bool,
    /// The epoch of the recent document, and the first position of the document that was open when
    /// that epoch began.
    epoch: (Epoch, Position),
    /// The feed's id, from the first document taken.
    feed: Option<String>,
    /// Whether to go on where a document or the place is missing.
    lenient: bool,
    visited: HashSet<Url>,
    /// Total length of the visited URLs, in bytes, bounded by [`WALK_URL_BYTES_MAX`].
    visited_bytes: usize,
}

impl Walk {
    /// Begins a catching-up of the feed whose recent document is at `recent`.
    pub fn new(recent: Url, start: Start) -> Self {
        let last = match &start {
            Start::Bookmark(bookmark) => Some(bookmark.clone()),
            _ => None,
        };
        let seeking = match &start {
            Start::Time(instant) => Some(*instant),
            _ => None,
        };
        Self {
            recent,
            start,
            state: WalkState::Looking,
            again: false,
            documents_max: WALK_DOCUMENTS_MAX,
            pin: None,
            last,
            begins_after: None,
            seeking,
            walked_over: None,
            behind: None,
            handed_over: 0,
            looked_again: false,
            epoch: (Epoch::FIRST, Position(0)),
            feed: None,
            lenient: false,
            visited: HashSet::new(),
            visited_bytes: 0,
        }
    }

    /// Passes entries without handing them over until one dated at or after `time` is met.
    #[must_use]
    pub fn seek(self, time: Option<Timestamp>) -> Self {
        Self {
            seeking: self.seeking.or(time),
            ..self
        }
    }

    /// Sets whether the walk goes on from the oldest entry that is left if a document or the place
    /// is missing.
    #[must_use]
    pub(super) fn lenient(self, lenient: bool) -> Self {
        Self { lenient, ..self }
    }

    /// Returns the instant to begin at; `None` once an entry dated at or after that instant was
    /// met.
    pub fn seeking(&self) -> Option<Timestamp> {
        self.seeking
    }

    /// Bounds the number of documents walked back over, or forward.
    #[must_use]
    pub fn documents_max(self, documents_max: usize) -> Self {
        Self {
            documents_max,
            ..self
        }
    }

    /// Returns the next request, or `None` at the end of the walk.
    pub fn ask(&self) -> Option<Ask> {
        let (url, kind, optional) = match &self.state {
            WalkState::Looking => (&self.recent, AskKind::Recent, false),
            // The index only saves requests, so the walk never depends on the index.
            WalkState::Index { url, .. } => (url, AskKind::Index, true),
            WalkState::Resuming { url, back } => (url, AskKind::Document, back.is_some()),
            WalkState::Back { url, instead } => (url, AskKind::Document, instead.is_some()),
            WalkState::Forward { url } => (url, AskKind::Document, false),
            WalkState::Done => return None,
        };
        Some(Ask {
            url: url.clone(),
            kind,
            again: self.again,
            optional,
            known: Validators::default(),
        })
    }

    /// Returns the bookmark after everything passed so far.
    pub fn bookmark(&self) -> Option<&Bookmark> {
        self.last.as_ref()
    }

    /// Returns the place right before the first entry handed over. If no entry was handed over,
    /// returns the place where the walk ended, or `None` while the walk goes on.
    pub fn begins_after(&self) -> Option<Bookmark> {
        let before_all = || {
            let feed = self.feed.clone()?;
            Some(Bookmark {
                feed,
                ..Bookmark::default()
            })
        };
        let ended = || match self.state {
            WalkState::Done => self.last.clone().or_else(before_all),
            _ => None,
        };
        self.begins_after.clone().or_else(ended)
    }

    /// Returns the number of entries from the current place to the walk's end; `None` unless the
    /// walk goes forward and both positions are known.
    pub fn remaining(&self) -> Option<u64> {
        let WalkState::Forward { .. } = self.state else {
            return None;
        };
        let last = self.last.as_ref()?.position?;
        self.pin_position()?.0.checked_sub(last.0)
    }

    /// Ends the walk: the bookmarked entry is still the newest one of the recent document.
    pub fn not_modified(&mut self) {
        self.enter(WalkState::Done);
    }

    /// Handles a requested document or index block that does not exist (any more), or an optional
    /// one that is unavailable.
    ///
    /// # Errors
    ///
    /// [`WalkError::Missing`] if the walk has no other way.
    pub fn missing(&mut self) -> Result<(), WalkError> {
        match self.state.clone() {
            WalkState::Resuming {
                back: Some(url), ..
            }
            | WalkState::Back {
                instead: Some(url), ..
            }
            | WalkState::Index { back: url, .. } => self.go_back(url),
            WalkState::Resuming { url, .. } | WalkState::Back { url, .. } if self.lenient => {
                self.begin_behind_a_hole(&url);
                Ok(())
            }
            WalkState::Forward { .. } if self.lenient => {
                // The walk looks again, goes back to the hole, and hands over everything from there
                // on. The document that the bookmark names would lead into the hole again.
                self.last = self.last.take().map(|last| Bookmark {
                    document: None,
                    ..last
                });
                self.look_from_the_start();
                Ok(())
            }
            WalkState::Resuming { url, .. }
            | WalkState::Back { url, .. }
            | WalkState::Forward { url } => Err(WalkError::Missing { url }),
            WalkState::Looking | WalkState::Done => Err(WalkError::Missing {
                url: self.recent.clone(),
            }),
        }
    }

    /// Begins with the oldest document known. The next older documents are missing.
    fn begin_behind_a_hole(&mut self, hole: &Url) {
        // The next document cannot continue the history of the place before the hole, so the walk
        // compares no history there.
        self.last = None;
        self.start = Start::Oldest;
        self.forget_visited();
        let url = self.walked_over.take().unwrap_or_else(|| hole.clone());
        self.enter(WalkState::Forward { url });
    }

    /// Takes the requested document, retrieved from `url`, and returns the entries to hand over.
    ///
    /// # Errors
    ///
    /// See [`WalkError`]. After [`WalkError::Stale`], the same document may be asked for again
    /// later; after any other error, the walk is of no use.
    pub fn take(&mut self, document: Document, url: &Url) -> Result<Option<EntryRun>, WalkError> {
        // The feed is checked first: a document of another feed must not set this walk's id or
        // epoch.
        self.check_feed(&document, url)?;
        self.feed.get_or_insert_with(|| document.feed.clone());
        if self.is_lost(&document) {
            return match self.state.clone() {
                WalkState::Resuming {
                    back: Some(previous),
                    ..
                } if self.again => self.go_back(previous).map(|()| None),
                // The lost copy may come from a cache; one request past all caches settles that.
                _ => self.ask_again(url),
            };
        }
        match self.state.clone() {
            WalkState::Looking => self.look_at_recent(document, url),
            WalkState::Resuming { back, .. } => self.resume_behind(document, url, back),
            WalkState::Back { .. } => self.walk_back(document, url),
            WalkState::Forward { .. } => self.walk_forward(document, url),
            WalkState::Index { .. } | WalkState::Done => Ok(None),
        }
    }

    /// Whether a document is a cached copy from before a restoration. Such a copy may hold, or lead
    /// to, entries that the restoration lost.
    fn is_lost(&self, document: &Document) -> bool {
        let (epoch, since) = self.epoch;
        let begins_behind = document.history.is_some_and(|(first, _)| first >= since);
        document.epoch < epoch && begins_behind
    }

    /// Takes the requested block of the archive index, retrieved from `url`.
    ///
    /// The index only shows where to begin. A wrong block costs requests, never entries.
    ///
    /// # Errors
    ///
    /// See [`WalkError`].
    pub fn take_index(&mut self, block: &IndexBlock, url: &Url) -> Result<(), WalkError> {
        let WalkState::Index { back, .. } = self.state.clone() else {
            return Ok(());
        };
        // A block of another feed proves nothing about this feed, so the archive links decide.
        if self.feed.as_ref() != Some(&block.feed) {
            return self.go_back(back);
        }
        let found = match &self.start {
            Start::Time(time) => {
                let mut listed = block.documents.iter();
                // A block lists the oldest document first: the last document before the time is the
                // one to begin with.
                listed.rfind(|listed| listed.is_before(*time))
            }
            _ => None,
        };
        let resolve = |href: &str| url.join(href).ok();
        let previous = block.prev.as_deref().and_then(resolve);
        if let (None, Some(url)) = (found, previous) {
            // Blocks that lead in a circle cannot help, so the walk goes back by archive links.
            match self.note_visit(url.clone()) {
                Ok(()) => self.enter(WalkState::Index { url, back }),
                Err(_) => return self.go_back(back),
            }
            return Ok(());
        }
        let begin = found.or(block.documents.first());
        // The document from the index may be missing, so the archive link stays as the alternative.
        match begin.and_then(|listed| resolve(&listed.href)) {
            Some(url) if self.note_visit(url.clone()).is_ok() => {
                let instead = Some(back);
                self.enter(WalkState::Back { url, instead });
                Ok(())
            }
            _ => self.go_back(back),
        }
    }

    /// Takes the recent document and decides how far back to begin.
    fn look_at_recent(
        &mut self,
        document: Document,
        url: &Url,
    ) -> Result<Option<EntryRun>, WalkError> {
        if matches!(&self.start, Start::Bookmark(Bookmark { entry: None, .. })) {
            // A bookmark without an entry was written before any entry was handed over: every entry
            // is new.
            self.start = Start::Oldest;
            self.last = None;
        }
        let standing = self.standing_of(&document, url)?;
        // A stale copy must not set the pin, because the walk would end before the bookmark's
        // place.
        if standing == WalkStanding::Stale {
            return self.ask_again(url);
        }
        self.epoch = (document.epoch, document.since);
        let Some(newest) = document.entry(0) else {
            return self.look_at_empty(&document, url);
        };
        self.pin = Some(Pin {
            entry: newest.id.into(),
            place: newest_place(&document),
        });
        let permanent = permanent_url(&document, url);
        // `behind` lets the way back notice a copy that ends before this document begins.
        self.behind = document.history.map(|(first, _)| first);
        match (&self.start, standing) {
            (Start::Newest, _) => return Ok(self.begin_after(&document, &permanent)),
            (Start::Time(time), _) if is_before(&document, *time) => {
                return Ok(self.begin_after(&document, &permanent));
            }
            (Start::Entry(_) | Start::Bookmark(_), WalkStanding::Holds(after)) => {
                return self.hand_over(document, &permanent, after).map(Some);
            }
            _ => {}
        }
        let is_from_afar = matches!(self.start, Start::Oldest | Start::Time(_));
        match (is_from_afar, lead(&document, "prev-archive", url)?) {
            (true, None) => self.hand_over(document, &permanent, 0).map(Some),
            (true, Some(previous)) => {
                self.walked_over = Some(permanent);
                self.look_into_index(&document, previous).map(|()| None)
            }
            (false, previous) => {
                self.walked_over = Some(permanent);
                self.turn_back(previous).map(|()| None)
            }
        }
    }

    /// Leaves the recent document for an old document, through the archive index if there is an
    /// index. The index helps only where documents have positions, because those documents link
    /// forward.
    fn look_into_index(&mut self, document: &Document, back: Url) -> Result<(), WalkError> {
        match document
            .link("index")
            .filter(|_| document.history.is_some())
        {
            Some(url) => {
                self.note_visit(url.clone())?;
                let url = url.clone();
                self.enter(WalkState::Index { url, back });
                Ok(())
            }
            None => self.go_back(back),
        }
    }

    /// Handles a recent document without entries: the feed is empty, or is a foreign feed that was
    /// just cut.
    fn look_at_empty(
        &mut self,
        document: &Document,
        url: &Url,
    ) -> Result<Option<EntryRun>, WalkError> {
        if let Some(previous) = lead(document, "prev-archive", url)? {
            self.walked_over = Some(permanent_url(document, url));
            let from_afar = matches!(self.start, Start::Oldest | Start::Time(_));
            return if from_afar {
                self.look_into_index(document, previous).map(|()| None)
            } else {
                self.turn_back(Some(previous)).map(|()| None)
            };
        }
        if matches!(self.start, Start::Entry(_) | Start::Bookmark(_)) {
            return self.not_found().map(|()| None);
        }
        // An empty feed has no entry to bookmark; the bookmark keeps the feed's id only.
        let feed = document.feed.clone();
        self.last = Some(Bookmark {
            feed,
            ..Bookmark::default()
        });
        self.enter(WalkState::Done);
        Ok(None)
    }

    /// Leaves the recent document for older ones: first for the document that the bookmark names. A
    /// named document at another origin belongs to the feed's former location and may have another
    /// history, so the walk does not try that document.
    fn turn_back(&mut self, previous: Option<Url>) -> Result<(), WalkError> {
        let recent = self.recent.origin();
        let at_home = |url: &Url| {
            // Archives may be at an origin of their own, to which the recent document links.
            let archive = previous.as_ref().map(Url::origin);
            url.origin() == recent || Some(url.origin()) == archive
        };
        let last = self.last.as_ref();
        let named = last
            .and_then(|bookmark| bookmark.document.clone())
            .filter(at_home);
        match (named, previous) {
            (Some(url), back) => {
                self.enter(WalkState::Resuming { url, back });
                Ok(())
            }
            (None, Some(previous)) => self.go_back(previous),
            (None, None) => self.not_found(),
        }
    }

    /// Handles an entry that is in none of the documents. Where only the id is known, an old copy
    /// of the recent document may have hidden the entry, so the walk looks once more past all
    /// caches.
    fn not_found(&mut self) -> Result<(), WalkError> {
        let placed = |last: &Bookmark| last.position.is_some();
        let placed = self.last.as_ref().is_some_and(placed);
        // With a position, `standing_of` has already recognised old copies, so a second look cannot
        // help.
        if placed || self.looked_again {
            return match self.walked_over.clone().filter(|_| self.lenient) {
                Some(oldest) => {
                    self.begin_behind_a_hole(&oldest);
                    Ok(())
                }
                None => Err(self.gap_error()),
            };
        }
        self.looked_again = true;
        self.look_from_the_start();
        Ok(())
    }

    /// Looks at the recent document once more, past all caches.
    fn look_from_the_start(&mut self) {
        self.walked_over = None;
        self.forget_visited();
        self.behind = None;
        self.enter(WalkState::Looking);
        self.again = true;
    }

    /// Begins after a document's newest entry, so nothing is handed over.
    fn begin_after(&mut self, document: &Document, url: &Url) -> Option<EntryRun> {
        let place = newest_place(document);
        self.last = bookmark(document, url, &RunEntry { index: 0, place });
        self.enter(WalkState::Done);
        None
    }

    fn resume_behind(
        &mut self,
        document: Document,
        url: &Url,
        back: Option<Url>,
    ) -> Result<Option<EntryRun>, WalkError> {
        match (self.standing_of(&document, url)?, back) {
            (WalkStanding::Holds(after), _) => self.hand_over(document, url, after).map(Some),
            // A cache may have a copy of the bookmark's document from before the document was
            // closed, so the walk makes one request past all caches.
            (WalkStanding::Stale, _) if !self.again => self.ask_again(url),
            (_, Some(previous)) => self.go_back(previous).map(|()| None),
            (WalkStanding::Stale, None) => Err(WalkError::Stale { url: url.clone() }),
            (WalkStanding::Elsewhere, None) => self.not_found().map(|()| None),
        }
    }

    fn walk_back(&mut self, document: Document, url: &Url) -> Result<Option<EntryRun>, WalkError> {
        let after = match &self.start {
            Start::Newest => return Ok(self.begin_after(&document, url)),
            // All entries here are dated before the time. Handing over none of them turns the walk
            // towards the next newer document.
            Start::Time(time) if is_before(&document, *time) => Some(document.len()),
            Start::Oldest | Start::Time(_) => {
                let previous = lead(&document, "prev-archive", url)?;
                previous.is_none().then_some(0)
            }
            Start::Entry(_) | Start::Bookmark(_) => match self.standing_of(&document, url)? {
                WalkStanding::Holds(after) => Some(after),
                WalkStanding::Stale => return self.ask_again(url),
                // The document ends before the next newer one begins: a copy from when the document
                // was open.
                WalkStanding::Elsewhere if self.ends_early(&document) => {
                    return self.ask_again(url);
                }
                // This copy shows the document as open, although newer documents exist.
                WalkStanding::Elsewhere if !is_closed(&document) && !self.again => {
                    return self.ask_again(url);
                }
                WalkStanding::Elsewhere => None,
            },
        };
        self.behind = document.history.map(|(first, _)| first);
        if let Some(after) = after {
            return self.hand_over(document, url, after).map(Some);
        }
        let previous = lead(&document, "prev-archive", url)?;
        self.walked_over = Some(self.asked_url(url));
        match previous {
            Some(previous) => self.go_back(previous).map(|()| None),
            None => self.not_found().map(|()| None),
        }
    }

    /// Whether a document ends before the next newer one begins.
    fn ends_early(&self, document: &Document) -> bool {
        end_of(document)
            .zip(self.behind)
            .is_some_and(|(end, behind)| end < behind)
    }

    fn walk_forward(
        &mut self,
        document: Document,
        url: &Url,
    ) -> Result<Option<EntryRun>, WalkError> {
        let after = match self.standing_of(&document, url)? {
            WalkStanding::Stale => return self.ask_again(url),
            WalkStanding::Holds(after) => after,
            // This document is from before the feed had positions: the entries have no order
            // relative to the place.
            WalkStanding::Elsewhere if document.history.is_none() => 0,
            WalkStanding::Elsewhere if self.lenient => {
                // No history continues across a hole, so the walk accepts this document as a new
                // beginning.
                self.last = None;
                0
            }
            WalkStanding::Elsewhere => return Err(self.gap_error()),
        };
        // Rising positions bound the way. Where a document does not raise the position, only the
        // URLs can show a loop.
        if !self.again && (document.history.is_none() || after == document.len()) {
            self.note_visit(url.clone())?;
        }
        self.hand_over(document, url, after).map(Some)
    }

    /// Returns the URL of the current request, which is the URL that links have. A redirect may
    /// have led from that URL to `url`.
    fn asked_url(&self, url: &Url) -> Url {
        self.ask().map_or_else(|| url.clone(), |ask| ask.url)
    }

    /// Classifies a document against the place to go on from.
    fn standing_of(&self, document: &Document, url: &Url) -> Result<WalkStanding, WalkError> {
        // Indices count from the newest entry, so `len - index` counts this entry and all older
        // ones.
        let by_id = |id: &str| match document.find(id) {
            Some(index) => WalkStanding::Holds(document.len() - index),
            None => WalkStanding::Elsewhere,
        };
        let wanted = match (&self.last, &self.start) {
            (Some(last), _) => last,
            (None, Start::Entry(id)) => return Ok(by_id(id)),
            (None, _) => return Ok(WalkStanding::Holds(0)),
        };
        let (Some(position), Some((first, before))) = (wanted.position, document.history) else {
            return Ok(wanted
                .entry
                .as_deref()
                .map_or(WalkStanding::Elsewhere, by_id));
        };
        let next = position.0.saturating_add(1);
        let end = first.0 + count(document.len());
        // A copy from before a restoration may show entries that the restoration lost.
        let earlier = document.epoch < wanted.epoch;
        if earlier && self.state == WalkState::Looking {
            return Ok(WalkStanding::Stale);
        }
        if next < first.0 {
            return Ok(WalkStanding::Elsewhere);
        }
        // A document of a newer epoch may be shorter: the restoration lost the end.
        if next > end && document.epoch <= wanted.epoch {
            return Ok(WalkStanding::Stale);
        }
        // The number saturates only for `next > end`, which the condition below excludes.
        let older = usize::try_from(next - first.0).unwrap_or(usize::MAX);
        // A document that begins right after the place (`older == 0`) shows nothing of the place
        // itself. After a restoration, the walk must look at the document that holds the place,
        // unless the walk comes from that document.
        let is_behind = matches!(self.state, WalkState::Forward { .. });
        let is_restored = document.epoch > wanted.epoch;
        if before.is_none() && is_restored {
            if position >= document.since {
                // The restoration may have lost entries up to here, and the id of one entry says
                // nothing of the others.
                return Err(WalkError::HistoryChanged {
                    url: url.clone(),
                    position: Position(next),
                });
            }
            if older == 0 && !is_behind {
                return Ok(WalkStanding::Elsewhere);
            }
        }
        let continues = match wanted.history.zip(before) {
            Some((history, before)) => hash_entries(document, before, older) == history,
            // Timelines have no history hash, so only the id of the entry at the place can be
            // compared.
            None => is_at(document, wanted, older),
        };
        if next <= end && continues {
            return Ok(WalkStanding::Holds(older));
        }
        // A copy of an earlier epoch may differ; any other copy must not.
        if earlier {
            return Ok(WalkStanding::Stale);
        }
        Err(WalkError::HistoryChanged {
            url: url.clone(),
            position: Position(next),
        })
    }

    /// Requests the same document once more, past all caches.
    fn ask_again(&mut self, url: &Url) -> Result<Option<EntryRun>, WalkError> {
        if self.again {
            return Err(WalkError::Stale { url: url.clone() });
        }
        self.again = true;
        Ok(None)
    }

    fn enter(&mut self, state: WalkState) {
        self.state = state;
        self.again = false;
    }

    fn go_back(&mut self, url: Url) -> Result<(), WalkError> {
        self.note_visit(url.clone())?;
        let instead = None;
        self.enter(WalkState::Back { url, instead });
        Ok(())
    }

    fn forget_visited(&mut self) {
        self.visited.clear();
        self.visited_bytes = 0;
    }

    fn note_visit(&mut self, url: Url) -> Result<(), WalkError> {
        // A bound on the number of documents is not enough for memory: each URL may have
        // `LINK_BYTES_MAX` bytes.
        self.visited_bytes = self.visited_bytes.saturating_add(url.as_str().len());
        if self.visited.len() >= self.documents_max || self.visited_bytes > WALK_URL_BYTES_MAX {
            return Err(WalkError::TooMany {
                max: self.documents_max,
            });
        }
        if self.visited.contains(&url) {
            return Err(WalkError::Loop { url });
        }
        self.visited.insert(url);
        Ok(())
    }

    fn check_feed(&self, document: &Document, url: &Url) -> Result<(), WalkError> {
        // Without a bookmark, the first document of the walk fixes the feed.
        let known = self
            .last
            .as_ref()
            .map(|last| &last.feed)
            .or(self.feed.as_ref());
        let other = |known: &&String| !is_same_feed(known, document);
        if let Some(expected) = known.filter(other) {
            return Err(WalkError::AnotherFeed {
                url: url.clone(),
                expected: expected.clone(),
                found: document.feed.clone(),
            });
        }
        match document.history {
            // The hash before position 0 depends on the feed's id alone, so even a first document
            // is checkable.
            Some((Position(0), Some(before)))
                if before != HistoryHash::start_of_text(&document.feed) =>
            {
                Err(WalkError::HistoryChanged {
                    url: url.clone(),
                    position: Position(0),
                })
            }
            _ => Ok(()),
        }
    }

    fn gap_error(&self) -> WalkError {
        let entry = match (&self.last, &self.start) {
            (
                Some(Bookmark {
                    entry: Some(entry), ..
                }),
                _,
            )
            | (_, Start::Entry(entry)) => entry.clone(),
            _ => "before the oldest known".into(),
        };
        WalkError::Gap { entry }
    }
}
