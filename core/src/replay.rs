//! The walk back to the last entry seen, and forward from there.
//!
//! Pure: a state machine that asks for documents by URL and takes them. It knows no HTTP, so that
//! every way a feed can change under a consumer is tried without a socket.
//!
//! ```text
//!             recent ──prev-archive──► 3.atom ──prev-archive──► 2.atom   (found: turn round)
//! deliver ◄── 4.atom ◄──next-archive── 3.atom ◄──next-archive── 2.atom
//! ```
//!
//! The first look at the recent document only tells how far behind the consumer is. What is
//! delivered comes from the way forward, because the feed may grow and be cut meanwhile: the
//! document that was open then is fetched again, at its permanent URL, when the walk gets there.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};
use url::Url;

use crate::{
    feed::Position, history::HistoryHash, instant::Instant, limits::WALK_DOCUMENTS_MAX,
    reader::Document,
};

/// A consumer's memory: the entry it accepted last, and all it needs to go on from there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bookmark {
    /// The `atom:id` of the feed.
    pub feed: String,
    /// The `atom:id` of the entry; `None` before the first entry of an empty feed.
    pub entry: Option<String>,
    /// The entry's position, if the feed tells positions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub position: Option<Position>,
    /// The history hash after the entry, if the feed tells it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub history: Option<HistoryHash>,
    /// The permanent URL of the document the entry was read in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub document: Option<Url>,
    /// The entity tag of the recent document, as long as the entry is its newest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etag: Option<String>,
    /// The `Last-Modified` of the recent document, as long as the entry is its newest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_modified: Option<String>,
}

/// Where a replay begins.
#[expect(clippy::large_enum_variant, reason = "one of it lives per walk")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Start {
    /// With the first entry there ever was.
    Oldest,
    /// After the newest entry at the time of looking.
    Newest,
    /// With the first entry at or after an instant.
    Time(Instant),
    /// After the entry with this id.
    Entry(String),
    /// After a bookmarked entry.
    Bookmark(Bookmark),
}

/// A document that the walk wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ask {
    /// Its URL.
    pub url: Url,
    /// Whether it is the recent document at the feed's entry point.
    pub recent: bool,
    /// Whether a copy obtained before was too old, so that caches must be passed by.
    pub again: bool,
}

/// Why a walk cannot go on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WalkError {
    /// The bookmarked entry is in no document of the feed. Delivering anything now would skip
    /// entries silently; only a person can decide to start over.
    #[error("gap: entry {entry} is not in the feed")]
    Gap {
        /// The entry that is gone.
        entry: String,
    },
    /// The feed at this URL is not the one the bookmark belongs to.
    #[error("another feed: {url} is {found}, the bookmark belongs to {expected}")]
    AnotherFeed {
        /// Where the document came from.
        url: Url,
        /// The feed's id in the bookmark, or in the documents before.
        expected: String,
        /// The id found.
        found: String,
    },
    /// The same position has another history: the server was rolled back or rebuilt, or a document
    /// was changed.
    #[error(
        "history changed: {url} does not continue what was read before, at position {position}"
    )]
    HistoryChanged {
        /// Where the document came from.
        url: Url,
        /// The position at which the histories part.
        position: Position,
    },
    /// A copy is older than what was read before, even when asked for past all caches.
    #[error("stale copy: {url} ends before what was read earlier")]
    Stale {
        /// Where the copy came from.
        url: Url,
    },
    /// The links lead back to a document that was read already.
    #[error("loop: the archive links lead to {url} twice")]
    Loop {
        /// The document met twice.
        url: Url,
    },
    /// There are more documents than the walk may read.
    #[error("more than {max} documents")]
    TooMany {
        /// The bound.
        max: usize,
    },
}

/// The entries to hand over from one document.
#[derive(Clone, Debug)]
pub struct Run {
    /// The document that holds them.
    pub document: Document,
    /// The document's permanent URL.
    pub url: Url,
    /// The entries, oldest first.
    pub entries: Vec<RunEntry>,
}

/// One entry to hand over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunEntry {
    /// Its index in the document, from the top.
    pub index: usize,
    /// Its position and the history hash after it, if the feed tells them.
    pub place: Option<(Position, HistoryHash)>,
}

/// Where the walk stands.
#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    /// Before the look at the recent document.
    Looking { again: bool },
    /// Trying the document that the bookmark names; if it does not help, back from `back`.
    Resuming { url: Url, back: Option<Url> },
    /// Looking for the entry to begin after, along `prev-archive`.
    Back { url: Url },
    /// Handing over, along `next-archive`.
    Forward { url: Url, again: bool },
    /// Everything there was is handed over.
    Done,
}

/// The newest entry when the walk began: where it ends.
#[derive(Clone, Debug)]
struct Pin {
    entry: String,
    position: Option<Position>,
}

/// One catching-up, from a start to what was newest when it began.
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
    state: State,
    documents_max: usize,
    pin: Option<Pin>,
    /// The bookmark after everything handed over so far.
    last: Option<Bookmark>,
    /// Until an entry at or after this instant is met, nothing is handed over.
    seeking: Option<Instant>,
    /// Documents walked back over: the way forward where documents do not link forward.
    way_back: Vec<Url>,
    visited: HashSet<Url>,
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
            state: State::Looking { again: false },
            documents_max: WALK_DOCUMENTS_MAX,
            pin: None,
            last,
            seeking,
            way_back: vec![],
            visited: HashSet::new(),
        }
    }

    /// Bounds the number of documents walked back over, or forward.
    #[must_use]
    pub fn documents_max(self, documents_max: usize) -> Self {
        Self {
            documents_max,
            ..self
        }
    }

    /// Returns the document to fetch next, or `None` when the walk is over.
    pub fn ask(&self) -> Option<Ask> {
        let (url, recent, again) = match &self.state {
            State::Looking { again } => (&self.recent, true, *again),
            State::Resuming { url, .. } | State::Back { url } => (url, false, false),
            State::Forward { url, again } => (url, false, *again),
            State::Done => return None,
        };
        Some(Ask {
            url: url.clone(),
            recent,
            again,
        })
    }

    /// Returns the bookmark after everything handed over so far.
    pub fn bookmark(&self) -> Option<&Bookmark> {
        self.last.as_ref()
    }

    /// Takes the news that the recent document has not changed since the bookmarked entry was its
    /// newest: there is nothing to do.
    pub fn not_modified(&mut self) {
        self.state = State::Done;
    }

    /// Takes the news that the document asked for does not exist (any more).
    ///
    /// # Errors
    ///
    /// [`WalkError::Gap`] if the walk cannot do without it.
    pub fn missing(&mut self) -> Result<(), WalkError> {
        match &self.state {
            State::Resuming {
                back: Some(url), ..
            } => {
                self.state = State::Back { url: url.clone() };
                Ok(())
            }
            _ => Err(self.gap()),
        }
    }

    /// Takes the document that was asked for, retrieved from `url`, and returns what to hand over.
    ///
    /// # Errors
    ///
    /// See [`WalkError`]. The walk is of no use after an error other than [`WalkError::Stale`],
    /// after which the same document may be asked for again later.
    pub fn take(&mut self, document: Document, url: &Url) -> Result<Option<Run>, WalkError> {
        self.check_feed(&document, url)?;
        match self.state.clone() {
            State::Looking { again } => self.look(document, url, again),
            State::Resuming { back, .. } => match self.places(&document, url)? {
                Some(after) => Ok(Some(self.hand_over(document, url, after))),
                None => match back {
                    Some(url) => self.go_back(url).map(|()| None),
                    None => Err(self.gap()),
                },
            },
            State::Back { .. } => self.back(document, url),
            State::Forward { again, .. } => self.forward(document, url, again),
            State::Done => Ok(None),
        }
    }

    /// The look at the recent document: how far behind are we?
    fn look(
        &mut self,
        document: Document,
        url: &Url,
        again: bool,
    ) -> Result<Option<Run>, WalkError> {
        if self.ends_too_early(&document) {
            if again {
                return Err(WalkError::Stale { url: url.clone() });
            }
            self.state = State::Looking { again: true };
            return Ok(None);
        }
        let Some(newest) = document.entry(0) else {
            return self.look_at_empty(&document, url);
        };
        let position = end_of(&document).map(|end| Position(end.0 - 1));
        self.pin = Some(Pin {
            entry: newest.id.into(),
            position,
        });
        let permanent = document.link("via").unwrap_or(url).clone();
        let previous = document.link("prev-archive").cloned();
        let before_all = |time: &Instant| document.updated.is_some_and(|updated| updated < *time);
        match &self.start {
            Start::Newest => Ok(self.begin_after_newest(&document, &permanent)),
            Start::Time(time) if before_all(time) => {
                Ok(self.begin_after_newest(&document, &permanent))
            }
            Start::Oldest | Start::Time(_) => match previous {
                Some(previous) => {
                    self.way_back.push(permanent);
                    self.go_back(previous).map(|()| None)
                }
                None => Ok(Some(self.hand_over(document, &permanent, 0))),
            },
            Start::Bookmark(Bookmark { entry: None, .. }) => {
                self.start = Start::Oldest;
                self.last = None;
                self.look(document, url, again)
            }
            Start::Entry(_) | Start::Bookmark(_) => {
                if let Some(after) = self.places(&document, url)? {
                    return Ok(Some(self.hand_over(document, &permanent, after)));
                }
                self.way_back.push(permanent);
                let named = self
                    .last
                    .as_ref()
                    .and_then(|bookmark| bookmark.document.clone());
                match (named, previous) {
                    (Some(url), back) => self.state = State::Resuming { url, back },
                    (None, Some(previous)) => self.go_back(previous)?,
                    (None, None) => return Err(self.gap()),
                }
                Ok(None)
            }
        }
    }

    /// A recent document without entries: the feed is empty, or (in a foreign feed) was just cut.
    fn look_at_empty(&mut self, document: &Document, url: &Url) -> Result<Option<Run>, WalkError> {
        match (document.link("prev-archive").cloned(), &self.start) {
            (
                Some(previous),
                Start::Oldest | Start::Time(_) | Start::Entry(_) | Start::Bookmark(_),
            ) => {
                self.way_back
                    .push(document.link("via").unwrap_or(url).clone());
                self.go_back(previous)?;
            }
            (None, Start::Entry(_) | Start::Bookmark(Bookmark { entry: Some(_), .. })) => {
                return Err(self.gap());
            }
            _ => {
                let feed = document.feed.clone();
                self.last = Some(Bookmark {
                    feed,
                    ..Bookmark::default()
                });
                self.state = State::Done;
            }
        }
        Ok(None)
    }

    fn begin_after_newest(&mut self, document: &Document, url: &Url) -> Option<Run> {
        self.seeking = None;
        let all = self.run(document.clone(), url, 0);
        self.remember(&all);
        self.state = State::Done;
        None
    }

    fn back(&mut self, document: Document, url: &Url) -> Result<Option<Run>, WalkError> {
        let previous = document.link("prev-archive").cloned();
        let after = match &self.start {
            Start::Time(time) if document.updated.is_some_and(|updated| updated < *time) => {
                Some(document.len())
            }
            Start::Oldest | Start::Newest | Start::Time(_) => previous.is_none().then_some(0),
            Start::Entry(_) | Start::Bookmark(_) => self.places(&document, url)?,
        };
        match (after, previous) {
            (Some(after), _) => Ok(Some(self.hand_over(document, url, after))),
            (None, Some(previous)) => {
                self.way_back.push(url.clone());
                self.go_back(previous).map(|()| None)
            }
            (None, None) => Err(self.gap()),
        }
    }

    fn forward(
        &mut self,
        document: Document,
        url: &Url,
        again: bool,
    ) -> Result<Option<Run>, WalkError> {
        // Positions only grow; without them, only the URLs can show a loop.
        if document.history.is_none() && !again {
            self.visit(url.clone())?;
        }
        if self.ends_too_early(&document) {
            if again {
                return Err(WalkError::Stale { url: url.clone() });
            }
            self.state = State::Forward {
                url: url.clone(),
                again: true,
            };
            return Ok(None);
        }
        // Without numbers, a document that does not hold the last entry follows the one that does.
        let after = match self.places(&document, url)? {
            Some(after) => after,
            None if document.history.is_none() => 0,
            None => return Err(self.gap()),
        };
        Ok(Some(self.hand_over(document, url, after)))
    }

    /// Returns how many of the document's oldest entries lie before the place to go on from, or
    /// `None` if that place is not in this document.
    fn places(&self, document: &Document, url: &Url) -> Result<Option<usize>, WalkError> {
        let wanted = match (&self.last, &self.start) {
            (Some(last), _) => last,
            (None, Start::Entry(id)) => return Ok(older_than(document, id)),
            (None, _) => return Ok(Some(0)),
        };
        let (Some(position), Some(history), Some((first, before))) =
            (wanted.position, wanted.history, document.history)
        else {
            return Ok(wanted
                .entry
                .as_ref()
                .and_then(|id| older_than(document, id)));
        };
        let next = position.next();
        let end = Position(first.0 + count(document.len()));
        if next < first || next > end {
            return Ok(None);
        }
        let older = usize::try_from(next.0 - first.0).unwrap_or(usize::MAX);
        let found = hash_entries(document, before, older);
        if found == history {
            return Ok(Some(older));
        }
        Err(WalkError::HistoryChanged {
            url: url.clone(),
            position: next,
        })
    }

    /// Whether a copy ends before what was handed over already, so that it must be an old one.
    fn ends_too_early(&self, document: &Document) -> bool {
        let last = self.last.as_ref().and_then(|last| last.position);
        last.zip(end_of(document))
            .is_some_and(|(last, end)| end <= last)
    }

    /// Hands over all but the `after` oldest entries, and decides where to go from here.
    fn hand_over(&mut self, document: Document, url: &Url, after: usize) -> Run {
        let next = document.link("next-archive").cloned();
        let mut run = self.run(document, url, after);
        let pinned = self.pin_index(&run);
        if let Some(pinned) = pinned {
            run.entries.retain(|entry| entry.index >= pinned);
        }
        self.remember(&run);
        let (asked_again, came_back) = match &self.state {
            State::Forward { again, .. } => (*again, false),
            State::Looking { .. } => (true, false),
            _ => (false, true),
        };
        if came_back {
            // From here on the way leads forward; meeting a document twice is a loop again.
            self.visited.clear();
            self.visited.insert(url.clone());
            while self.way_back.last() == Some(url) {
                self.way_back.pop();
            }
        }
        let behind = self.way_back.pop();
        self.state = match next.or(behind) {
            _ if pinned.is_some() || self.past_pin() => State::Done,
            Some(next) => State::Forward {
                url: next,
                again: false,
            },
            // The copy may be older than the look at the recent document; one look past all caches
            // settles it.
            None if asked_again => State::Done,
            None => State::Forward {
                url: url.clone(),
                again: true,
            },
        };
        run
    }

    fn run(&mut self, document: Document, url: &Url, after: usize) -> Run {
        let mut entries = Vec::with_capacity(document.len().saturating_sub(after));
        let start = document.history.map(|(first, before)| {
            (
                first.0 + count(after),
                hash_entries(&document, before, after),
            )
        });
        let mut place = start;
        for index in (0..document.len().saturating_sub(after)).rev() {
            let Some(entry) = document.entry(index) else {
                break;
            };
            place = place.map(|(position, history)| (position + 1, history.extend(entry.fragment)));
            if self.still_seeking(entry.fragment) {
                continue;
            }
            let place = place.map(|(next, history)| (Position(next - 1), history));
            entries.push(RunEntry { index, place });
        }
        Run {
            document,
            url: url.clone(),
            entries,
        }
    }

    /// Whether an entry lies before the time to begin at.
    fn still_seeking(&mut self, fragment: &[u8]) -> bool {
        let Some(time) = self.seeking else {
            return false;
        };
        if updated_of(fragment).is_some_and(|updated| updated >= time) {
            self.seeking = None;
        }
        self.seeking.is_some()
    }

    fn remember(&mut self, run: &Run) {
        let Some(newest) = run.entries.last() else {
            return;
        };
        self.last = run.bookmark(newest);
    }

    /// Returns the index of the pinned entry, if the run contains it.
    fn pin_index(&self, run: &Run) -> Option<usize> {
        let pin = self.pin.as_ref()?;
        run.entries.iter().map(|entry| entry.index).find(|index| {
            run.document
                .entry(*index)
                .is_some_and(|entry| entry.id == pin.entry)
        })
    }

    fn past_pin(&self) -> bool {
        let pin = self.pin.as_ref().and_then(|pin| pin.position);
        let last = self.last.as_ref().and_then(|last| last.position);
        pin.zip(last).is_some_and(|(pin, last)| last >= pin)
    }

    fn go_back(&mut self, url: Url) -> Result<(), WalkError> {
        self.visit(url.clone())?;
        self.state = State::Back { url };
        Ok(())
    }

    fn visit(&mut self, url: Url) -> Result<(), WalkError> {
        if self.visited.len() >= self.documents_max {
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
        if let Some(last) = self.last.as_ref().filter(|last| last.feed != document.feed) {
            let (expected, found) = (last.feed.clone(), document.feed.clone());
            return Err(WalkError::AnotherFeed {
                url: url.clone(),
                expected,
                found,
            });
        }
        match document.history {
            Some((Position(0), before)) if before != HistoryHash::start_of_text(&document.feed) => {
                Err(WalkError::HistoryChanged {
                    url: url.clone(),
                    position: Position(0),
                })
            }
            _ => Ok(()),
        }
    }

    fn gap(&self) -> WalkError {
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

impl Run {
    /// Returns the bookmark after one of the run's entries.
    pub fn bookmark(&self, entry: &RunEntry) -> Option<Bookmark> {
        let id = self.document.entry(entry.index)?.id;
        Some(Bookmark {
            feed: self.document.feed.clone(),
            entry: Some(id.into()),
            position: entry.place.map(|(position, _)| position),
            history: entry.place.map(|(_, history)| history),
            document: Some(self.url.clone()),
            ..Bookmark::default()
        })
    }
}

fn count(entries: usize) -> u64 {
    u64::try_from(entries).expect("a document has fewer than 2^64 entries")
}

/// Returns the position after the document's newest entry, if the document tells positions.
fn end_of(document: &Document) -> Option<Position> {
    document
        .history
        .map(|(first, _)| Position(first.0 + count(document.len())))
}

/// Returns how many entries of the document are not newer than the one with this id.
fn older_than(document: &Document, id: &str) -> Option<usize> {
    document.find(id).map(|index| document.len() - index)
}

/// Returns the history hash after the `oldest` oldest entries of a document.
fn hash_entries(document: &Document, before: HistoryHash, oldest: usize) -> HistoryHash {
    let indices = (document.len().saturating_sub(oldest)..document.len()).rev();
    indices
        .filter_map(|index| document.entry(index))
        .fold(before, |hash, entry| hash.extend(entry.fragment))
}

/// Returns the `updated` of an entry.
fn updated_of(fragment: &[u8]) -> Option<Instant> {
    let text = std::str::from_utf8(fragment).ok()?;
    let event = crate::event::Event::from_entry(text).ok()?;
    Instant::parse(&event.updated?)
}

#[cfg(test)]
mod tests;
