//! The consumer: a stream of entries with a durable bookmark.
//!
//! Shell: fetches what the walk asks for, waits, retries, and keeps the bookmark. What to ask for
//! next, and what may be delivered, is decided by [`Walk`].

use std::{collections::VecDeque, io, sync::Arc, time::Duration};

use bytes::Bytes;
use serde::de::DeserializeOwned;
use simplefeed_core::{
    event::Event,
    feed::Position,
    instant::Instant,
    limits::{BACK_OFF_SECONDS_MAX, BACK_OFF_SECONDS_MIN, POLL_SECONDS_MIN},
    reader::Document,
    replay::{Bookmark, Run, Start, Walk, WalkError},
    xml::XmlError,
};
use url::Url;

use crate::{
    bookmark::BookmarkStore,
    fetch::{FetchError, Fetched, Fetcher, Validators},
    transport::{self, Transport, TransportError},
};

/// Attempts at one request before a consumer that does not follow gives up.
const ATTEMPTS: u32 = 4;

/// Where to begin if there is no bookmark.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Since {
    /// With the first entry there ever was.
    Oldest,
    /// With the next entry to come.
    Newest,
    /// With the first entry at or after an instant.
    Time(Instant),
    /// After the entry with this id.
    Entry(String),
}

/// Why a consumer stopped.
///
/// Entries delivered before the error stay delivered. Only a transient error may go away by itself.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConsumerError {
    /// The feed's URL is not a URL.
    #[error("{url:?} is not a URL")]
    Url {
        /// What was given.
        url: String,
        /// What is wrong with it.
        source: url::ParseError,
    },
    /// The transport cannot be set up.
    #[error("there is no way to the network")]
    Transport(#[source] TransportError),
    /// The bookmark cannot be read or kept.
    #[error("the bookmark cannot be {action}")]
    Bookmark {
        /// `read` or `kept`.
        action: &'static str,
        /// Why.
        source: io::Error,
    },
    /// A document cannot be had.
    #[error(transparent)]
    Fetch(#[from] FetchError),
    /// The feed does not continue what was read before.
    #[error(transparent)]
    Walk(#[from] WalkError),
}

impl ConsumerError {
    /// Returns whether the same call may succeed later with nothing changed.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Fetch(error) => error.is_transient(),
            Self::Walk(error) => matches!(error, WalkError::Stale { .. }),
            Self::Url { .. } | Self::Transport(_) | Self::Bookmark { .. } => false,
        }
    }
}

/// One entry, owned.
#[derive(Clone, Debug)]
pub struct Delivery {
    fragment: Bytes,
    bookmark: Bookmark,
}

/// Why an entry is not what the caller asked it to be read as.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EntryError {
    /// The entry is not well-formed.
    #[error("the entry is not well-formed")]
    Xml(#[from] XmlError),
    /// Its content is not the JSON expected.
    #[error("the entry's content is not the JSON expected")]
    Json(#[from] serde_json::Error),
    /// `atom_syndication` cannot read it.
    #[error("the entry cannot be read by atom_syndication")]
    Atom(#[from] atom_syndication::Error),
}

impl Delivery {
    /// Returns the entry's `atom:id`.
    pub fn id(&self) -> &str {
        self.bookmark.entry.as_deref().unwrap_or_default()
    }

    /// Returns the entry's position, if the feed tells positions.
    pub fn position(&self) -> Option<Position> {
        self.bookmark.position
    }

    /// Returns the permanent URL of the document the entry was read in.
    pub fn document(&self) -> Option<&Url> {
        self.bookmark.document.as_ref()
    }

    /// Returns the entry's bytes as they stand in the document; of a foreign feed, with the namespace
    /// declarations of the feed, so that they stand alone.
    pub fn raw(&self) -> &Bytes {
        &self.fragment
    }

    /// Returns the bookmark after this entry, to be saved together with the entry's effect.
    pub fn bookmark(&self) -> &Bookmark {
        &self.bookmark
    }

    /// Returns the entry as an event.
    ///
    /// # Errors
    ///
    /// [`EntryError::Xml`].
    pub fn event(&self) -> Result<Event, EntryError> {
        let text = String::from_utf8_lossy(&self.fragment);
        Ok(Event::from_entry(&text)?)
    }

    /// Returns the entry's JSON content.
    ///
    /// # Errors
    ///
    /// [`EntryError::Json`] if it has none, or another than `T`.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, EntryError> {
        let content = self.event()?.content;
        let text = content.as_deref().map_or("", |content| content.get());
        Ok(serde_json::from_str(text)?)
    }

    /// Returns the entry as `atom_syndication` sees it, which is less than its bytes say.
    ///
    /// # Errors
    ///
    /// [`EntryError::Atom`].
    pub fn entry(&self) -> Result<atom_syndication::Entry, EntryError> {
        Ok(atom_syndication::Entry::read_from(&self.fragment[..])?)
    }
}

/// Makes a [`Consumer`].
pub struct Builder {
    url: String,
    store: Option<Box<dyn BookmarkStore>>,
    resume: Option<Bookmark>,
    since: Since,
    follow: bool,
    transport: Option<Arc<dyn Transport>>,
}

impl std::fmt::Debug for Builder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Builder")
            .field("url", &self.url)
            .finish_non_exhaustive()
    }
}

impl Builder {
    /// Keeps the bookmark in `store`, and begins after the one found there.
    #[must_use]
    pub fn bookmark(self, store: impl BookmarkStore + 'static) -> Self {
        Self {
            store: Some(Box::new(store)),
            ..self
        }
    }

    /// Begins after a bookmark that the caller kept.
    #[must_use]
    pub fn resume(self, bookmark: Bookmark) -> Self {
        Self {
            resume: Some(bookmark),
            ..self
        }
    }

    /// Says where to begin if there is no bookmark; with the oldest entry by default.
    #[must_use]
    pub fn since(self, since: Since) -> Self {
        Self { since, ..self }
    }

    /// Says whether to wait for entries to come; if not (the default), the end is what is newest at
    /// the first look.
    #[must_use]
    pub fn follow(self, follow: bool) -> Self {
        Self { follow, ..self }
    }

    /// Brings another transport.
    #[must_use]
    pub fn transport(self, transport: Arc<dyn Transport>) -> Self {
        Self {
            transport: Some(transport),
            ..self
        }
    }

    /// Makes the consumer. Nothing is fetched yet.
    ///
    /// # Errors
    ///
    /// If the URL is none, the bookmark cannot be read, or there is no transport.
    pub fn build(mut self) -> Result<Consumer, ConsumerError> {
        let url = Url::parse(&self.url);
        let url = url.map_err(|source| ConsumerError::Url {
            url: self.url.clone(),
            source,
        })?;
        let kept = match &mut self.store {
            Some(store) => store.load().map_err(|source| ConsumerError::Bookmark {
                action: "read",
                source,
            })?,
            None => None,
        };
        let transport = match self.transport {
            Some(transport) => transport,
            None => transport::ready_made().map_err(ConsumerError::Transport)?,
        };
        let start = match (self.resume.or(kept), self.since) {
            (Some(bookmark), _) => Start::Bookmark(bookmark),
            (None, since) => since.into(),
        };
        Ok(Consumer {
            fetcher: Fetcher::new(transport),
            store: self.store,
            follow: self.follow,
            known: validators_of(&start),
            walk: None,
            url,
            start,
            queue: VecDeque::new(),
            pause: Duration::from_secs(POLL_SECONDS_MIN),
            newest: None,
            seeking: None,
            led_on: false,
            stale_copies: 0,
            delivered: None,
            accepted: None,
        })
    }
}

/// Follows a feed.
pub struct Consumer {
    fetcher: Fetcher,
    store: Option<Box<dyn BookmarkStore>>,
    follow: bool,
    /// The URL given, until the recent document's is known.
    url: Url,
    start: Start,
    /// Recognises the recent document as long as nothing newer was seen.
    known: Validators,
    walk: Option<Walk>,
    queue: VecDeque<Delivery>,
    /// The time to the next look.
    pause: Duration,
    /// The newest entry of the recent document when last looked at, and what recognises it.
    newest: Option<(String, Validators)>,
    /// The instant to begin at, while no entry at or after it was met.
    seeking: Option<Instant>,
    /// Whether a link to the recent document was followed already.
    led_on: bool,
    /// How often in a row a cache gave an old copy past which we asked.
    stale_copies: u32,
    /// The newest entries delivered and accepted.
    delivered: Option<String>,
    accepted: Option<String>,
}

impl std::fmt::Debug for Consumer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Consumer")
            .field("url", &self.url.as_str())
            .finish_non_exhaustive()
    }
}

impl Consumer {
    /// Begins with a feed's URL: the short one, or that of any of its documents.
    pub fn builder(url: impl Into<String>) -> Builder {
        Builder {
            url: url.into(),
            store: None,
            resume: None,
            since: Since::Oldest,
            follow: false,
            transport: None,
        }
    }

    /// Returns the next entry, or `None` when everything that was there at the first look has been
    /// delivered (never, if following).
    ///
    /// # Errors
    ///
    /// See [`ConsumerError`]. After a transient error the call can be repeated.
    pub async fn next(&mut self) -> Result<Option<Delivery>, ConsumerError> {
        loop {
            if let Some(delivery) = self.queue.pop_front() {
                return Ok(Some(delivery));
            }
            match self.walk.as_ref().map(Walk::ask) {
                None => self.look().await?,
                Some(Some(_)) => self.step().await?,
                Some(None) => {
                    self.finish_round()?;
                    if !self.follow {
                        return Ok(None);
                    }
                    tokio::time::sleep(self.pause).await;
                }
            }
        }
    }

    /// Returns how many entries the next calls of [`next`](Self::next) return without asking the
    /// server: a good time to accept is when it is 0.
    pub fn ready(&self) -> usize {
        self.queue.len()
    }

    /// Remembers that an entry, and all before it, need not be delivered again. Durable when it
    /// returns.
    ///
    /// # Errors
    ///
    /// [`ConsumerError::Bookmark`].
    #[expect(
        clippy::unused_async,
        reason = "a bookmark may be kept across a network"
    )]
    pub async fn accept(&mut self, delivery: &Delivery) -> Result<(), ConsumerError> {
        self.save(&delivery.bookmark)?;
        self.accepted.clone_from(&delivery.bookmark.entry);
        Ok(())
    }

    fn save(&mut self, bookmark: &Bookmark) -> Result<(), ConsumerError> {
        let Some(store) = &mut self.store else {
            return Ok(());
        };
        store
            .save(bookmark)
            .map_err(|source| ConsumerError::Bookmark {
                action: "kept",
                source,
            })
    }

    /// The first look of a round: at the URL given, to find the recent document.
    async fn look(&mut self) -> Result<(), ConsumerError> {
        let fetched = self
            .fetch(&self.url.clone(), &self.known.clone(), false)
            .await?;
        let (url, document, validators, max_age) = match fetched {
            Fetched::NotModified { max_age } => {
                self.note_max_age(max_age);
                let mut walk = Walk::new(self.url.clone(), self.start.clone()).seek(self.seeking);
                walk.not_modified();
                self.walk = Some(walk);
                return Ok(());
            }
            Fetched::Document {
                url,
                document,
                validators,
                max_age,
            } => (url, document, validators, max_age),
        };
        let current = document.link("current").filter(|current| **current != url);
        let current = current.filter(|_| document.link("via").is_none() && !self.led_on);
        if let Some(recent) = current {
            // Another document of the feed was given; it leads on, once.
            self.led_on = true;
            self.known = Validators::default();
            self.url = recent.clone();
            return Ok(());
        }
        self.note_max_age(max_age);
        self.note_newest(&document, validators);
        self.url = url.clone();
        let mut walk = Walk::new(url.clone(), self.start.clone()).seek(self.seeking);
        let run = walk.take(document, &url)?;
        self.walk = Some(walk);
        self.deliver(run);
        Ok(())
    }

    /// Fetches what the walk asks for.
    async fn step(&mut self) -> Result<(), ConsumerError> {
        let Some(ask) = self.walk.as_ref().and_then(Walk::ask) else {
            return Ok(());
        };
        let fetched = self
            .fetch(&ask.url, &Validators::default(), ask.again)
            .await;
        let Some(walk) = &mut self.walk else {
            return Ok(());
        };
        let run = match fetched {
            Ok(Fetched::Document {
                url,
                document,
                validators,
                ..
            }) => {
                let newest = document.entry(0).map(|entry| entry.id.to_owned());
                let run = match walk.take(document, &url) {
                    Err(WalkError::Stale { url }) => return self.wait_out_stale(url).await,
                    run => run?,
                };
                if ask.recent {
                    self.newest = newest.map(|newest| (newest, validators));
                }
                run
            }
            Ok(Fetched::NotModified { .. }) => None,
            Err(FetchError::Missing { url, status }) => {
                if ask.recent {
                    return Err(FetchError::Missing { url, status }.into());
                }
                walk.missing()?;
                None
            }
            Err(error) => return Err(error.into()),
        };
        self.stale_copies = 0;
        self.deliver(run);
        Ok(())
    }

    /// A cache does not let go of an old copy. It will, when its time is over: `max-age` and as long
    /// again while it revalidates.
    async fn wait_out_stale(&mut self, url: Url) -> Result<(), ConsumerError> {
        self.stale_copies += 1;
        if self.stale_copies >= ATTEMPTS {
            self.stale_copies = 0;
            return Err(WalkError::Stale { url }.into());
        }
        let longest = Duration::from_secs(BACK_OFF_SECONDS_MAX);
        tokio::time::sleep((2 * self.pause).min(longest)).await;
        Ok(())
    }

    fn deliver(&mut self, run: Option<Run>) {
        let Some(run) = run else { return };
        for entry in &run.entries {
            if let (Some(fragment), Some(bookmark)) =
                (run.document.stand_alone(entry.index), run.bookmark(entry))
            {
                self.delivered.clone_from(&bookmark.entry);
                self.queue.push_back(Delivery { fragment, bookmark });
            }
        }
    }

    /// Ends a round: the next one begins after what was passed in this one.
    ///
    /// The place is kept, so that the next start goes on from here, but never past an entry that was
    /// delivered and not accepted.
    fn finish_round(&mut self) -> Result<(), ConsumerError> {
        let walk = self.walk.take();
        self.seeking = walk.as_ref().and_then(Walk::seeking);
        let Some(mut last) = walk.and_then(|walk| walk.bookmark().cloned()) else {
            return Ok(());
        };
        self.known = match self.newest.take() {
            Some((newest, validators)) if last.entry.as_ref() == Some(&newest) => validators,
            Some(_) => Validators::default(),
            None => std::mem::take(&mut self.known),
        };
        last.etag.clone_from(&self.known.etag);
        last.last_modified.clone_from(&self.known.last_modified);
        let place = Start::Bookmark(last.clone());
        let accepted = self.delivered.is_none() || self.delivered == self.accepted;
        // A bookmark could not tell that entries before some time are still to be passed.
        if accepted && self.start != place && self.seeking.is_none() {
            self.save(&last)?;
        }
        self.start = place;
        Ok(())
    }

    fn note_newest(&mut self, document: &Document, validators: Validators) {
        self.newest = document.entry(0).map(|entry| (entry.id.into(), validators));
    }

    fn note_max_age(&mut self, max_age: Option<Duration>) {
        let floor = Duration::from_secs(POLL_SECONDS_MIN);
        self.pause = max_age.unwrap_or(floor).max(floor);
    }

    /// Whether to try again for ever: a server may be down for long, but a document that stays
    /// broken is a fault to tell.
    fn waits_for(&self, error: &FetchError) -> bool {
        self.follow && !matches!(error, FetchError::Malformed { .. })
    }

    /// Fetches with patience: transient failures are tried again after growing pauses.
    async fn fetch(
        &self,
        url: &Url,
        validators: &Validators,
        again: bool,
    ) -> Result<Fetched, FetchError> {
        let mut attempt = 0;
        loop {
            match self.fetcher.document(url, validators, again).await {
                Err(error)
                    if error.is_transient()
                        && (self.waits_for(&error) || attempt + 1 < ATTEMPTS) =>
                {
                    tokio::time::sleep(back_off(attempt, error.retry_after())).await;
                    attempt += 1;
                }
                outcome => return outcome,
            }
        }
    }
}

/// Returns the pause after failed attempt `attempt` (from 0): doubling, within bounds, and not
/// shorter than the server asks.
pub(crate) fn back_off(attempt: u32, asked: Option<Duration>) -> Duration {
    let seconds = BACK_OFF_SECONDS_MIN
        .saturating_mul(1 << attempt.min(16))
        .min(BACK_OFF_SECONDS_MAX);
    let longest = Duration::from_secs(BACK_OFF_SECONDS_MAX);
    Duration::from_secs(seconds).max(asked.unwrap_or_default().min(longest))
}

fn validators_of(start: &Start) -> Validators {
    match start {
        // A date may match another document than the recent one, if such a URL is given next time.
        Start::Bookmark(bookmark) => Validators {
            etag: bookmark.etag.clone(),
            last_modified: None,
        },
        _ => Validators::default(),
    }
}

impl From<Since> for Start {
    fn from(since: Since) -> Self {
        match since {
            Since::Oldest => Self::Oldest,
            Since::Newest => Self::Newest,
            Since::Time(instant) => Self::Time(instant),
            Since::Entry(id) => Self::Entry(id),
        }
    }
}

#[cfg(test)]
mod tests;
