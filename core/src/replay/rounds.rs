//! Rounds of catching up, each from the place where the last round ended.
//!
//! Pure.

use url::Url;

use super::{
    Ask, AskKind, Bookmark, EntryRun, Stand, Start, Validators, Walk, WalkError,
    known::{Bounds, RememberedEntries},
    places::lead,
    plain::PlainWalk,
    walk::is_same_feed,
};
use crate::{
    index::IndexBlock, limits::WALK_DOCUMENTS_MAX, reader::Document, timestamp::Timestamp,
};

/// State machine that replays a feed and then follows the feed: all decisions of a consumer,
/// without network and time.
///
/// # Examples
///
/// ```
/// use simplefeed_core::{reader::Document, replay::{Replay, Start, Validators}};
///
/// let url: url::Url = "https://example.org/feeds/a/recent.atom".parse()?;
/// let body = "<feed xmlns='http://www.w3.org/2005/Atom'><id>urn:f</id>\
///     <entry><id>urn:1</id></entry></feed>";
/// let tag = Validators { etag: Some("\"1\"".into()), last_modified: None };
///
/// let mut replay = Replay::new(url.clone(), Start::Oldest);
/// let document = Document::read(body.into(), &url)?;
/// let run = replay.take(document, &url, tag.clone())?.unwrap();
/// assert_eq!(run.entries.len(), 1);
/// assert_eq!(replay.ask(), None, "caught up");
///
/// let place = replay.next_round()?.unwrap();
/// assert_eq!(place.entry.as_deref(), Some("urn:1"));
/// assert_eq!(replay.ask().unwrap().known, tag, "the next look may be answered with 304");
/// replay.not_modified();
/// assert_eq!(replay.ask(), None);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Replay {
    /// The URL given at first; the recent document's own URL once known.
    recent: Url,
    start: Start,
    /// Timestamp to begin at; `None` once an entry dated at or after that time was met.
    seeking: Option<Timestamp>,
    /// Validators of the recent document, for the first request of a round; empty unless the place
    /// is at that document's newest entry.
    known: Validators,
    round: ReplayRound,
    /// The newest entry of the recent document at the last look, and the validators of that
    /// document.
    newest: Option<(String, Validators)>,
    /// Whether the replay has already followed a link to the recent document.
    led_on: bool,
    documents_max: usize,
    /// The consumer's memory of a plain feed, between two rounds; during a round, the walk holds
    /// the memory.
    plain: Option<RememberedEntries>,
    bounds: Bounds,
    /// Whether to go on from the oldest entry that is left if the place or a document is missing.
    lenient: bool,
    /// Whether revised entries of plain feeds are handed over again.
    revisions: bool,
}

#[expect(clippy::large_enum_variant, reason = "one of it lives per consumer")]
#[derive(Debug)]
enum ReplayRound {
    Looking,
    Walking(Walk),
    Plain(Box<PlainWalk>),
}

impl Replay {
    /// Begins with a feed's URL: the short URL, or the URL of any document of the feed.
    pub fn new(url: Url, start: Start) -> Self {
        Self {
            known: known_at(&start, &url),
            recent: url,
            start,
            seeking: None,
            round: ReplayRound::Looking,
            newest: None,
            led_on: false,
            documents_max: WALK_DOCUMENTS_MAX,
            plain: None,
            bounds: Bounds::default(),
            lenient: false,
            revisions: false,
        }
    }

    /// Begins at another place instead. The call has an effect only before the first document is
    /// taken.
    ///
    /// # Examples
    ///
    /// ```
    /// use simplefeed_core::replay::{Bookmark, Replay, Start};
    ///
    /// let url: url::Url = "https://example.org/feed".parse()?;
    /// let (feed, etag) = ("urn:f".into(), Some("\"7\"".into()));
    /// let place = Bookmark { feed, etag, document: Some(url.clone()), ..Bookmark::default() };
    /// let mut replay = Replay::new(url, Start::Oldest);
    /// replay.start_at(Start::Bookmark(place));
    /// assert_eq!(replay.ask().unwrap().known.etag.as_deref(), Some("\"7\""));
    /// # Ok::<(), url::ParseError>(())
    /// ```
    pub fn start_at(&mut self, start: Start) {
        self.known = known_at(&start, &self.recent);
        self.start = start;
    }

    /// Bounds the number of documents walked back over, or forward, in one round.
    #[must_use]
    pub fn documents_max(self, documents_max: usize) -> Self {
        Self {
            documents_max,
            ..self
        }
    }

    /// Sets whether revised entries of plain feeds (same id, later `updated`) are handed over again
    /// (FH-13); off by default. An entry with an unchanged date does not count as revised. A
    /// running consumer recognises at least the last 100,000 entries; a restarted consumer
    /// recognises the entries of the recent document and 1,000 others.
    #[must_use]
    pub fn revisions(self, revisions: bool) -> Self {
        Self { revisions, ..self }
    }

    #[cfg(test)]
    pub(super) fn bounds(self, bounds: Bounds) -> Self {
        Self { bounds, ..self }
    }

    /// Handles a 404 for the feed's URL, and returns whether to wait for the feed: not if the
    /// consumer has a place there. A start at the newest entry becomes a start at `since`. A start
    /// at the oldest entry instead would hand over the whole history of a feed that was absent only
    /// for a short time.
    ///
    /// # Examples
    ///
    /// ```
    /// use simplefeed_core::{timestamp::Timestamp, replay::{Replay, Start}};
    ///
    /// let url: url::Url = "https://example.org/feed".parse()?;
    /// let since = Timestamp::from_micros(0);
    /// assert!(Replay::new(url.clone(), Start::Newest).wait_for_feed(since));
    /// assert!(!Replay::new(url, Start::Entry("urn:17".into())).wait_for_feed(since));
    /// # Ok::<(), url::ParseError>(())
    /// ```
    pub fn wait_for_feed(&mut self, since: Timestamp) -> bool {
        // Entries published before the feed first answers are new to this consumer.
        if matches!(self.start, Start::Newest) {
            self.start = Start::Time(since);
        }
        matches!(self.start, Start::Oldest | Start::Time(_))
    }

    /// Goes on from the oldest entry that is left if the place, a document or an owed entry has
    /// left the feed. The entries between are lost. The call applies until the end of this round.
    ///
    /// # Examples
    ///
    /// ```
    /// use simplefeed_core::{reader::Document, replay::{Replay, Start, Validators, WalkError}};
    ///
    /// let url: url::Url = "https://example.org/feed".parse()?;
    /// let page = |id: u8| {
    ///     let body = format!(
    ///         "<feed xmlns='http://www.w3.org/2005/Atom'><id>urn:f</id><entry><id>urn:{id}</id></entry></feed>"
    ///     );
    ///     Document::read(body.into_bytes().into(), &url)
    /// };
    /// let mut replay = Replay::new(url.clone(), Start::Oldest);
    /// replay.take(page(1)?, &url, Validators::default())?;
    /// replay.next_round()?;
    ///
    /// // The known entry is gone: requested once more past all caches, then reported.
    /// replay.take(page(9)?, &url, Validators::default())?;
    /// replay.take(page(9)?, &url, Validators::default())?;
    /// let gap = replay.take(page(9)?, &url, Validators::default());
    /// assert!(matches!(gap, Err(WalkError::Gap { .. })));
    ///
    /// replay.pass_gap();
    /// let mut run = None;
    /// while replay.ask().is_some() {
    ///     run = replay.take(page(9)?, &url, Validators::default())?;
    /// }
    /// assert_eq!(run.unwrap().entries.len(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn pass_gap(&mut self) {
        self.lenient = true;
        let round = std::mem::replace(&mut self.round, ReplayRound::Looking);
        let place = match round {
            ReplayRound::Walking(walk) => walk.bookmark().cloned(),
            ReplayRound::Plain(walk) => {
                // `lenient` forgives the owed entries, so the bookmark is taken afterwards, and
                // does not list them.
                let walk = walk.lenient(true);
                let place = walk.bookmark();
                self.plain = Some(walk.into_known());
                place
            }
            ReplayRound::Looking => None,
        };
        // A 304 would end the new round at once, with the gap still open.
        self.known = Validators::default();
        self.newest = None;
        if let Some(place) = place {
            self.start = Start::Bookmark(place);
        }
    }

    /// Returns the next request, or `None` at the end of the round.
    pub fn ask(&self) -> Option<Ask> {
        match &self.round {
            ReplayRound::Walking(walk) => walk.ask(),
            ReplayRound::Plain(walk) => walk.ask(),
            ReplayRound::Looking => Some(Ask {
                url: self.recent.clone(),
                kind: AskKind::Recent,
                again: false,
                optional: false,
                known: self.known.clone(),
            }),
        }
    }

    /// Returns whether the feed has no positions, as far as documents have shown.
    pub fn is_plain(&self) -> bool {
        match (&self.round, &self.start) {
            (ReplayRound::Plain(_), _) => true,
            // A round that a 304 ended has taken no document, so the bookmark shows the kind of
            // feed.
            (ReplayRound::Walking(_), Start::Bookmark(place)) => place.known.is_some(),
            (ReplayRound::Looking, _) => self.plain.is_some(),
            (ReplayRound::Walking(_), _) => false,
        }
    }

    /// Returns whether a document may belong to the feed of the place to begin at.
    pub fn may_be_of_feed(&self, document: &Document) -> bool {
        match &self.start {
            Start::Bookmark(place) => is_same_feed(&place.feed, document),
            _ => true,
        }
    }

    /// Returns the number of entries left in this round; `None` unless documents have positions and
    /// the way leads forward.
    pub fn remaining(&self) -> Option<u64> {
        match &self.round {
            ReplayRound::Walking(walk) => walk.remaining(),
            ReplayRound::Plain(_) | ReplayRound::Looking => None,
        }
    }

    /// Takes the requested document, retrieved from `url`, and returns the entries to hand over.
    ///
    /// # Errors
    ///
    /// See [`WalkError`]. After [`WalkError::Stale`], the same document is asked for again; no
    /// other error passes with time.
    pub fn take(
        &mut self,
        document: Document,
        url: &Url,
        validators: Validators,
    ) -> Result<Option<EntryRun>, WalkError> {
        if matches!(self.round, ReplayRound::Looking) {
            // Validators of the first URL do not fit the recent document.
            if let Some(recent) = self.leads_to(&document, url)? {
                self.led_on = true;
                self.known = Validators::default();
                self.recent = recent;
                return Ok(None);
            }
            // The final URL replaces the one given, so later rounds save the redirect.
            self.recent = url.clone();
            self.round = self.begin_round(document.history.is_some());
        }
        // The walk consumes the document, so the newest id is copied first.
        let newest = document.entry(0).map(|entry| entry.id.to_owned());
        // The request is read before `take`, which moves the walk on.
        let ask = self.ask();
        let (run, is_recent) = match &mut self.round {
            ReplayRound::Walking(walk) => {
                let is_recent = ask.is_some_and(|ask| ask.kind == AskKind::Recent);
                (walk.take(document, url)?, is_recent)
            }
            ReplayRound::Plain(walk) => {
                // A plain walk may request the recent document again on the way forward, so the URL
                // decides, not the kind.
                let is_recent = ask.is_some_and(|ask| ask.url == self.recent);
                (walk.take(document, url)?, is_recent)
            }
            ReplayRound::Looking => return Ok(None),
        };
        if is_recent {
            self.newest = newest.map(|newest| (newest, validators));
        }
        Ok(run)
    }

    /// Starts a round in a feed with positions (`numbered`), or in a plain feed.
    fn begin_round(&mut self, numbered: bool) -> ReplayRound {
        let (recent, start) = (self.recent.clone(), self.start.clone());
        if numbered {
            let walk = Walk::new(recent, start)
                .seek(self.seeking)
                .lenient(self.lenient)
                .documents_max(self.documents_max);
            return ReplayRound::Walking(walk);
        }
        // The running memory holds more entries than a bookmark does.
        let known = self.plain.take();
        let known = known.unwrap_or_else(|| RememberedEntries::at(&start, self.bounds));
        let walk = PlainWalk::new(recent, start, known)
            .seek(self.seeking)
            .lenient(self.lenient)
            .revisions(self.revisions)
            .documents_max(self.documents_max);
        ReplayRound::Plain(Box::new(walk))
    }

    /// Takes the requested index block, retrieved from `url`.
    ///
    /// # Errors
    ///
    /// See [`WalkError`].
    pub fn take_index(&mut self, block: &IndexBlock, url: &Url) -> Result<(), WalkError> {
        match &mut self.round {
            ReplayRound::Walking(walk) => walk.take_index(block, url),
            ReplayRound::Plain(_) | ReplayRound::Looking => Ok(()),
        }
    }

    /// Handles a 304: the recent document has not changed since the newest entry there was passed.
    pub fn not_modified(&mut self) {
        if matches!(self.round, ReplayRound::Looking) {
            // The kind of feed does not matter here: the walk ends before taking a document.
            let mut walk = Walk::new(self.recent.clone(), self.start.clone()).seek(self.seeking);
            walk.not_modified();
            self.round = ReplayRound::Walking(walk);
        }
    }

    /// Handles a requested document or index block that does not exist (any more), or an optional
    /// one that is unavailable.
    ///
    /// # Errors
    ///
    /// [`WalkError::Missing`] if the walk has no other way.
    pub fn missing(&mut self) -> Result<(), WalkError> {
        match &mut self.round {
            ReplayRound::Walking(walk) => walk.missing(),
            ReplayRound::Plain(walk) => walk.missing(),
            ReplayRound::Looking => Err(WalkError::Missing {
                url: self.recent.clone(),
            }),
        }
    }

    /// Returns the place right before the first entry handed over in this round. If no entry was
    /// handed over, returns the place where the round ended, or `None` while the round goes on.
    pub fn begins_after(&self) -> Option<Bookmark> {
        match &self.round {
            ReplayRound::Walking(walk) => walk.begins_after(),
            ReplayRound::Plain(walk) => walk.begins_after(),
            ReplayRound::Looking => None,
        }
    }

    /// Starts the next round at the place where this round ended, and returns that place: the
    /// bookmark of a consumer that accepted everything.
    ///
    /// Returns `None` while the replay still searches for the instant to begin at, because a
    /// bookmark cannot record that search. Returns `None`, too, if the round has taken no document.
    ///
    /// # Errors
    ///
    /// [`WalkError::Deleted`] if entries of a plain feed were deleted after a look and before they
    /// were handed over: during this round, or between the process that wrote the bookmark and this
    /// process. After [`pass_gap`](Self::pass_gap), the consumer goes on without these entries.
    pub fn next_round(&mut self) -> Result<Option<Bookmark>, WalkError> {
        // The check comes before any change, so that `pass_gap` finds the round unchanged.
        if let ReplayRound::Plain(walk) = &self.round
            && let Some(gap) = walk.deleted()
        {
            return Err(gap);
        }
        self.lenient = false;
        let last = match std::mem::replace(&mut self.round, ReplayRound::Looking) {
            ReplayRound::Walking(walk) => {
                self.seeking = walk.seeking();
                walk.bookmark().cloned()
            }
            ReplayRound::Plain(mut walk) => {
                walk.end();
                self.seeking = walk.seeking();
                let last = walk.bookmark();
                self.plain = Some(walk.into_known());
                last
            }
            ReplayRound::Looking => None,
        };
        let Some(mut last) = last else {
            return Ok(None);
        };
        self.known = match self.newest.take() {
            // The validators fit only while the last entry is the newest of their document. An
            // entry of an older document may have the same id.
            Some((newest, validators))
                if last.entry.as_ref() == Some(&newest) && last.stand != Some(Stand::Archive) =>
            {
                validators
            }
            Some(_) => Validators::default(),
            // A round answered with 304 keeps the validators.
            None => std::mem::take(&mut self.known),
        };
        last.etag.clone_from(&self.known.etag);
        last.last_modified.clone_from(&self.known.last_modified);
        self.start = Start::Bookmark(last.clone());
        Ok(Some(last).filter(|_| self.seeking.is_none()))
    }

    /// Returns the URL of the recent document if this is another document that links there. A
    /// replay follows this link only once, because two spellings of one URL may lead to each other.
    fn leads_to(&self, document: &Document, url: &Url) -> Result<Option<Url>, WalkError> {
        // In our feeds only the recent document has `via`, so this document is the recent one.
        if document.link("via").is_some() || self.led_on {
            return Ok(None);
        }
        let current = lead(document, "current", url)?;
        Ok(current.filter(|current| current != url))
    }
}

/// Returns the validators that a replay from `start` may send with the first request to `url`.
fn known_at(start: &Start, url: &Url) -> Validators {
    let Start::Bookmark(bookmark) = start else {
        return Validators::default();
    };
    // The tag of a foreign feed, and the date of any feed, may belong to another URL than the one
    // given this time.
    let is_of_url = bookmark.history.is_some() || bookmark.document.as_ref() == Some(url);
    Validators {
        etag: bookmark.etag.clone().filter(|_| is_of_url),
        last_modified: None,
    }
}
