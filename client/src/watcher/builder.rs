//! Builder of a watcher.
//!
//! Shell: the state folder.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use simplefeed_core::{
    digest::Digest,
    limits::{WATCH_SECONDS_DEFAULT, WATCHED_FEEDS_MAX},
    replay::Bookmark,
    timestamp::Timestamp,
    watch::{Pace, Watch},
};
use tokio::{sync::mpsc, task::JoinSet, time};
use url::{Origin, Url};

use super::{
    AHEAD, FeedWatcher, WatchError, WatchedFeed,
    journal::{FeedMemory, NoteJournal, Notes},
};
use crate::{
    consumer::{Consumer, ConsumerError, OnGap, Since},
    fetch::{Fetcher, without_userinfo},
    state::StateFolder,
    transport::{self, Timeouts, Transport},
    waker::WakeBy,
};

#[derive(Clone, Debug)]
pub(super) struct Options {
    since: Since,
    timeouts: Timeouts,
    document_bytes_max: Option<usize>,
    documents_max: Option<usize>,
    redirects_max: Option<usize>,
    on_gap: OnGap,
    wake_by: WakeBy,
    /// Whether SUP documents are asked for as often as they allow, because no `sup_interval` is
    /// set.
    is_eager: bool,
    token: Option<String>,
    allowed_origins: Vec<Url>,
}

/// URL and remembered state of each feed.
type RememberedFeeds = Vec<(String, FeedMemory)>;

/// Options of a [`FeedWatcher`]; all but the URLs have defaults.
pub struct WatchBuilder {
    urls: Vec<String>,
    pace: Pace,
    options: Options,
    transport: Option<Arc<dyn Transport>>,
    state: Option<StateFolder>,
    /// URLs of feeds whose state is forgotten.
    anew: HashSet<String>,
}

impl std::fmt::Debug for WatchBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WatchBuilder").finish_non_exhaustive()
    }
}

impl WatchBuilder {
    pub(super) fn new(urls: Vec<String>) -> Self {
        Self {
            urls,
            pace: Pace {
                interval: Duration::from_secs(WATCH_SECONDS_DEFAULT),
                sup_interval: Duration::ZERO,
            },
            options: Options {
                since: Since::Newest,
                timeouts: Timeouts::default(),
                document_bytes_max: None,
                documents_max: None,
                redirects_max: None,
                on_gap: OnGap::GoOn,
                wake_by: WakeBy::default(),
                is_eager: true,
                token: None,
                allowed_origins: vec![],
            },
            transport: None,
            state: None,
            anew: HashSet::new(),
        }
    }

    /// Keeps the bookmark of each feed, and the progress through SUP documents, in a folder.
    #[must_use]
    pub fn state(self, state: StateFolder) -> Self {
        Self {
            state: Some(state),
            ..self
        }
    }

    /// Sets where to begin in feeds that were never seen; by default, with the next entry to come.
    #[must_use]
    pub fn since(mut self, since: Since) -> Self {
        self.options.since = since;
        self
    }

    /// Sets the time between looks at a feed that no SUP document lists; 30 minutes by default.
    #[must_use]
    pub fn interval(mut self, interval: Duration) -> Self {
        self.pace.interval = interval;
        self
    }

    /// Sets the time between requests for a SUP document. By default, and for a document whose
    /// windows are too short for this time, the time is a little less than the document's period.
    /// Windows of an archived document are never too short.
    #[must_use]
    pub fn sup_interval(mut self, sup_interval: Duration) -> Self {
        self.pace.sup_interval = sup_interval;
        self.options.is_eager = sup_interval.is_zero();
        self
    }

    /// Sets the best means of learning about updates. With any means but [`WakeBy::Poll`], the
    /// watcher waits for SUP documents where servers offer waits, unless a
    /// [`sup_interval`](Self::sup_interval) is set.
    #[must_use]
    pub fn wake_by(mut self, wake_by: WakeBy) -> Self {
        self.options.wake_by = wake_by;
        self
    }

    /// Sets the timeouts of requests. A transport that the caller gives has timeouts of its own.
    #[must_use]
    pub fn timeouts(mut self, timeouts: Timeouts) -> Self {
        self.options.timeouts = timeouts;
        self
    }

    /// Accepts documents of at most this many decoded bytes; 64 MiB by default.
    #[must_use]
    pub fn document_bytes_max(mut self, document_bytes_max: usize) -> Self {
        self.options.document_bytes_max = Some(document_bytes_max);
        self
    }

    /// Walks over at most this many documents in one look; 1,000,000 by default.
    #[must_use]
    pub fn documents_max(mut self, documents_max: usize) -> Self {
        self.options.documents_max = Some(documents_max);
        self
    }

    /// Follows at most this many redirects for one document; 5 by default.
    #[must_use]
    pub fn redirects_max(mut self, redirects_max: usize) -> Self {
        self.options.redirects_max = Some(redirects_max);
        self
    }

    /// Sets the action at a gap in a feed: report the gap and go on from the oldest entry left
    /// (default), or leave the feed alone until a start [anew](Self::anew).
    #[must_use]
    pub fn on_gap(mut self, on_gap: OnGap) -> Self {
        self.options.on_gap = on_gap;
        self
    }

    /// Forgets a feed's state, so that the feed begins like a new one. This is the way past a gap,
    /// another feed at the URL, or a changed history.
    #[must_use]
    pub fn anew(mut self, url: &str) -> Self {
        self.anew.insert(without_userinfo(url));
        self
    }

    /// Sends a bearer token to the origin of the feeds, and to no other. All feeds must be at that
    /// origin.
    #[must_use]
    pub fn bearer_token(mut self, token: impl Into<String>) -> Self {
        self.options.token = Some(token.into());
        self
    }

    /// Allows links, redirects and SUP documents to lead to the origin of `url`, too. By default,
    /// requests go to a feed's own origin alone.
    #[must_use]
    pub fn allow_origin(mut self, url: Url) -> Self {
        self.options.allowed_origins.push(url);
        self
    }

    /// Replaces the default transport, which is over reqwest.
    #[must_use]
    pub fn transport(self, transport: Arc<dyn Transport>) -> Self {
        Self {
            transport: Some(transport),
            ..self
        }
    }

    /// Makes the watcher. Nothing is fetched yet.
    ///
    /// # Errors
    ///
    /// See [`WatchError`].
    pub fn build(self) -> Result<FeedWatcher, WatchError> {
        let Self {
            urls,
            pace,
            options,
            transport,
            state,
            anew,
        } = self;
        let count = urls.len();
        if !(1..=WATCHED_FEEDS_MAX).contains(&count) {
            return Err(WatchError::Count { count });
        }
        let transport = options.make_transport(transport)?;
        // Watchers that start at the same time must not look at the same time. In unit tests the
        // seed is 1, so that the looks are the same each time.
        let seed = if cfg!(test) {
            1
        } else {
            std::process::id().into()
        };
        let mut watch = Watch::new(pace, seed);
        let (journal, mut notes) = match state {
            Some(state) => {
                let (journal, notes) = NoteJournal::open(state)?;
                (Some(journal), notes)
            }
            None => (None, Notes::default()),
        };
        // This comes before `known_feeds`, which takes the feeds out of the notes.
        let asker = options.asker_digest();
        let mut changed = notes.are_for(&asker);
        changed.extend(notes.forget(&anew));
        let (given, origins) = options.known_feeds(urls, &mut notes, &transport)?;
        let feeds = add_all(&mut watch, given, &notes.heard);
        // The token goes to one origin and to no other, so all feeds must be there.
        if options.token.is_some() && origins.len() > 1 {
            let origins = origins.len();
            return Err(WatchError::Token { origins });
        }
        // The feeds that are left in the notes are not watched, and miss updates from now on. So
        // their notes lose the SUP address, and a later watcher begins with a look at them.
        let (others, were_told) = notes.of_others();
        changed.extend(were_told);
        let (tell, events) = mpsc::channel(AHEAD);
        let mut watcher = FeedWatcher {
            watch,
            began: time::Instant::now(),
            feeds,
            options,
            transport,
            origins,
            tags: HashMap::new(),
            waiting: VecDeque::new(),
            waiting_slow: VecDeque::new(),
            waiting_for_updates: JoinSet::new(),
            waits: HashMap::new(),
            busy: HashMap::new(),
            slow_looks: 0,
            is_quick_blocked: false,
            is_slow_blocked: false,
            was_slow_turn: false,
            looks: JoinSet::new(),
            hearings: JoinSet::new(),
            events,
            tell,
            ahead: Arc::default(),
            troubles: VecDeque::new(),
            journal,
            others,
            asker,
            saved_at: time::Instant::now(),
            changed: HashSet::new(),
            heard_until: HashMap::new(),
        };
        // The notes are written before the first request: a crash must not bring a forgotten state
        // back.
        watcher.write_notes(&changed)?;
        Ok(watcher)
    }
}

/// Adds the feeds to the watch with their remembered state, and before them the progress through
/// SUP documents.
fn add_all(
    watch: &mut Watch,
    given: RememberedFeeds,
    heard: &HashMap<Url, Timestamp>,
) -> Vec<WatchedFeed> {
    // SUP documents come first, because a feed whose document was never heard is due at once.
    for (_, known) in &given {
        if let Some(told) = known.told()
            && let Some(updated) = heard.get(&told.document)
        {
            watch.heard_before(&told.document, *updated);
        }
    }
    let feeds = given.into_iter();
    feeds
        .map(|(url, known)| add_feed(watch, url, known))
        .collect()
}

fn add_feed(watch: &mut Watch, url: String, known: FeedMemory) -> WatchedFeed {
    let told = known.told().cloned();
    // An update id means something only together with its SUP document.
    let update = known.update.as_deref().filter(|_| told.is_some());
    watch.add_feed(told, update);
    WatchedFeed {
        url: url.into(),
        given: known.given,
        // `Options::known_feeds` sets the origin of each feed. An opaque origin equals no other.
        origin: known.origin.unwrap_or_else(Origin::new_opaque),
        place: known.place,
        look: 0,
        is_looked_at: false,
        delivered: 0,
        accepted: 0,
        over: None,
        is_slow: false,
        has_slow_place: false,
        faults: 0,
    }
}

impl Options {
    /// Returns whether to wait for SUP documents.
    pub(super) fn waits(&self) -> bool {
        self.is_eager && self.wake_by != WakeBy::Poll
    }

    /// Returns the length of the longest turn of a look. A look that gets no answer in such a turn
    /// has failed.
    pub(super) fn turn(&self) -> Duration {
        self.timeouts.total
    }

    /// Returns the feeds without repetition, each with the remembered state, and their origins.
    fn known_feeds(
        &self,
        urls: Vec<String>,
        notes: &mut Notes,
        transport: &Arc<dyn Transport>,
    ) -> Result<(RememberedFeeds, HashSet<Origin>), ConsumerError> {
        let (mut given, mut origins, mut seen) = (vec![], HashSet::new(), HashSet::new());
        for given_url in urls {
            let url = without_userinfo(&given_url);
            if seen.insert(url.clone()) {
                // Building a consumer checks the URL: a mistyped one fails now, and not at the
                // first look.
                let origin = self.consumer(&given_url, None, transport)?.origin();
                origins.insert(origin.clone());
                let mut known = notes.feeds.remove(&url).unwrap_or_default();
                known.origin = Some(origin);
                // A password is for requests only: messages and the journal have the URL without
                // the password.
                known.given = Some(given_url).filter(|given| *given != url);
                given.push((url, known));
            }
        }
        Ok((given, origins))
    }

    fn make_transport(
        &self,
        brought: Option<Arc<dyn Transport>>,
    ) -> Result<Arc<dyn Transport>, ConsumerError> {
        match brought {
            Some(transport) => Ok(transport),
            None => transport::default_transport(self.timeouts).map_err(ConsumerError::Transport),
        }
    }

    /// Returns a digest of the token and the allowed origins, which shows neither.
    fn asker_digest(&self) -> String {
        let mut origins: Vec<String> = self
            .allowed_origins
            .iter()
            .map(|url| url.origin().ascii_serialization())
            .collect();
        // The order of the calls of `allow_origin` must not change the digest.
        origins.sort_unstable();
        let token = self.token.as_deref().unwrap_or_default();
        let digest = Digest::of_parts(&[
            b"simplefeed asker\n",
            token.as_bytes(),
            b"\n",
            origins.join("\n").as_bytes(),
        ]);
        // 16 hex digits are enough to notice a change.
        digest.to_string().chars().take(16).collect()
    }

    pub(super) fn consumer(
        &self,
        url: &str,
        place: Option<Bookmark>,
        transport: &Arc<dyn Transport>,
    ) -> Result<Consumer, ConsumerError> {
        let mut builder = Consumer::builder(url)
            .since(self.since.clone())
            .transport(Arc::clone(transport));
        if let Some(place) = place {
            builder = builder.resume(place);
        }
        builder = builder.on_gap(self.on_gap);
        if let Some(bytes) = self.document_bytes_max {
            builder = builder.document_bytes_max(bytes);
        }
        if let Some(documents) = self.documents_max {
            builder = builder.documents_max(documents);
        }
        if let Some(redirects) = self.redirects_max {
            builder = builder.redirects_max(redirects);
        }
        if let Some(token) = &self.token {
            builder = builder.bearer_token(token);
        }
        for origin in &self.allowed_origins {
            builder = builder.allow_origin(origin.clone());
        }
        builder.build()
    }

    /// Returns a fetcher for a SUP document, whose origin is the fetcher's home. `is_of_feeds` is
    /// true if feeds are at that origin, too.
    pub(super) fn fetcher(
        &self,
        document: &Url,
        is_of_feeds: bool,
        transport: &Arc<dyn Transport>,
    ) -> Fetcher {
        let mut fetcher = Fetcher::new(Arc::clone(transport), document);
        if let Some(bytes) = self.document_bytes_max {
            fetcher = fetcher.document_bytes_max(bytes);
        }
        if let Some(redirects) = self.redirects_max {
            fetcher = fetcher.redirects_max(redirects);
        }
        // The feeds' token is never sent to a SUP document at another origin.
        if let Some(token) = self.token.as_ref().filter(|_| is_of_feeds) {
            fetcher = fetcher.bearer_token(token);
        }
        for origin in &self.allowed_origins {
            fetcher = fetcher.allow_origin(origin);
        }
        fetcher
    }
}
