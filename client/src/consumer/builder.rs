//! Builder of a consumer.
//!
//! Shell: sets up the transport.

use std::{sync::Arc, time::Duration};

use simplefeed_core::{
    limits::{
        CLIENT_DOCUMENT_BYTES_MAX, PAUSE_SECONDS_MAX, PLAIN_POLL_SECONDS_DEFAULT, POLL_SECONDS_MIN,
        REDIRECTS_MAX, WALK_DOCUMENTS_MAX,
    },
    replay::{Bookmark, Replay, Start},
};
use url::Url;

use super::{Consumer, ConsumerError, OnGap, PlaceSource, Since};
use crate::{
    bookmark::{AnyStore, BookmarkStore},
    fetch::{Fetcher, userinfo_of},
    observer::Observer,
    transport::{self, Timeouts, Transport},
    waker::WakeBy,
};

/// Observer that ignores all events.
struct Nobody;

impl Observer for Nobody {}

/// Options of a [`Consumer`]; all but the URL have defaults.
///
/// # Examples
///
/// ```no_run
/// use std::time::Duration;
/// use simplefeed_client::{
///     Consumer, FileBookmark, OnGap, Since, WakeBy, consumer::Builder, transport::Timeouts,
/// };
///
/// # fn run() -> Result<(), Box<dyn std::error::Error>> {
/// let orders: Builder = Consumer::builder("https://example.org/feeds/orders")
///     .bookmark(FileBookmark::open("orders.bookmark")?)
///     .since(Since::Newest)
///     .follow(true)
///     .bearer_token(std::env::var("ORDERS_TOKEN")?)
///     .document_bytes_max(8 * 1024 * 1024)
///     .documents_max(10_000)
///     .redirects_max(2)
///     .timeouts(Timeouts { total: Duration::from_secs(30), ..Timeouts::default() })
///     .on_gap(OnGap::GoOn)
///     .interval(Duration::from_mins(5))
///     .wake_by(WakeBy::Wait)
///     .revisions(true);
/// let feed = orders.build()?;
/// # Ok(()) }
/// ```
pub struct Builder {
    url: String,
    store: Option<Box<dyn AnyStore>>,
    resume: Option<Bookmark>,
    since: Since,
    follow: bool,
    transport: Option<Arc<dyn Transport>>,
    token: Option<String>,
    allowed_origins: Vec<Url>,
    timeouts: Timeouts,
    document_bytes_max: usize,
    documents_max: usize,
    redirects_max: usize,
    revisions: bool,
    on_gap: OnGap,
    interval: Duration,
    wake_by: WakeBy,
    observer: Box<dyn Observer>,
}

impl std::fmt::Debug for Builder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The URL may hold a password.
        f.debug_struct("Builder").finish_non_exhaustive()
    }
}

impl Builder {
    pub(super) fn new(url: String) -> Self {
        Self {
            url,
            store: None,
            resume: None,
            since: Since::Oldest,
            follow: false,
            transport: None,
            token: None,
            allowed_origins: vec![],
            timeouts: Timeouts::default(),
            document_bytes_max: CLIENT_DOCUMENT_BYTES_MAX,
            documents_max: WALK_DOCUMENTS_MAX,
            redirects_max: REDIRECTS_MAX,
            revisions: false,
            on_gap: OnGap::Stop,
            interval: Duration::from_secs(PLAIN_POLL_SECONDS_DEFAULT),
            wake_by: WakeBy::default(),
            observer: Box::new(Nobody),
        }
    }

    /// Keeps the bookmark in `store`, and begins after the bookmark that is found there. The first
    /// [`next`](Consumer::next) reads the store.
    #[must_use]
    pub fn bookmark(self, store: impl BookmarkStore + 'static) -> Self {
        Self {
            store: Some(Box::new(store)),
            ..self
        }
    }

    /// Begins after a bookmark that the caller kept, in a database for instance. This bookmark
    /// takes precedence over the one in a store.
    ///
    /// # Examples
    ///
    /// ```
    /// use simplefeed_client::{Bookmark, Consumer};
    ///
    /// let kept = r#"{"feed":"urn:f","entry":"urn:1","position":1}"#;
    /// let bookmark: Bookmark = serde_json::from_str(kept)?;
    /// let orders = Consumer::builder("https://example.org/feeds/orders").resume(bookmark);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn resume(self, bookmark: Bookmark) -> Self {
        Self {
            resume: Some(bookmark),
            ..self
        }
    }

    /// Sets where to begin if there is no bookmark; by default, with the oldest entry.
    #[must_use]
    pub fn since(self, since: Since) -> Self {
        Self { since, ..self }
    }

    /// Sets whether to wait for entries to come. By default, the end is the newest entry at the
    /// first look.
    #[must_use]
    pub fn follow(self, follow: bool) -> Self {
        Self { follow, ..self }
    }

    /// Replaces the default transport, which is over reqwest.
    #[must_use]
    pub fn transport(self, transport: Arc<dyn Transport>) -> Self {
        Self {
            transport: Some(transport),
            ..self
        }
    }

    /// Sends a bearer token to the origin of the feed's URL, and to no other: neither a redirect
    /// nor an archive link can lead the token elsewhere.
    #[must_use]
    pub fn bearer_token(self, token: impl Into<String>) -> Self {
        Self {
            token: Some(token.into()),
            ..self
        }
    }

    /// Accepts documents of at most this many decoded bytes; 64 MiB by default.
    #[must_use]
    pub fn document_bytes_max(self, document_bytes_max: usize) -> Self {
        Self {
            document_bytes_max,
            ..self
        }
    }

    /// Walks over at most this many documents in one round; 1,000,000 by default.
    #[must_use]
    pub fn documents_max(self, documents_max: usize) -> Self {
        Self {
            documents_max,
            ..self
        }
    }

    /// Follows at most this many redirects for one document; 5 by default.
    #[must_use]
    pub fn redirects_max(self, redirects_max: usize) -> Self {
        Self {
            redirects_max,
            ..self
        }
    }

    /// Allows links and redirects to lead to the origin of `url`, too. By default no request goes
    /// anywhere but to the origin of the feed's URL. A token never goes to another origin.
    #[must_use]
    pub fn allow_origin(mut self, url: Url) -> Self {
        self.allowed_origins.push(url);
        self
    }

    /// Sets the timeouts of requests. A transport that the caller gives has timeouts of its own.
    #[must_use]
    pub fn timeouts(self, timeouts: Timeouts) -> Self {
        Self { timeouts, ..self }
    }

    /// Sets whether entries of a foreign feed that come again with a later `updated` are delivered
    /// again; they are not by default. (Entries of a Simplefeed server never come again.)
    #[must_use]
    pub fn revisions(self, revisions: bool) -> Self {
        Self { revisions, ..self }
    }

    /// Sets the time between looks at a plain feed without freshness information; 15 minutes by
    /// default, at least a second and at most a day. Answers of a Simplefeed server always have
    /// `max-age`.
    #[must_use]
    pub fn interval(self, interval: Duration) -> Self {
        let [least, most] = [POLL_SECONDS_MIN, PAUSE_SECONDS_MAX].map(Duration::from_secs);
        let interval = interval.clamp(least, most);
        Self { interval, ..self }
    }

    /// Sets the best means by which a consumer that follows may learn of a new entry;
    /// [`WakeBy::Events`] by default.
    #[must_use]
    pub fn wake_by(self, wake_by: WakeBy) -> Self {
        Self { wake_by, ..self }
    }

    /// Sets the action at a gap: the bookmarked entry, a document on the way, or an entry that the
    /// consumer has seen and not delivered, has left the feed. By default the consumer stops with
    /// an error that [is a gap](simplefeed_core::replay::WalkError::is_gap).
    #[must_use]
    pub fn on_gap(self, on_gap: OnGap) -> Self {
        Self { on_gap, ..self }
    }

    /// Sets the observer of the consumer's events, so that an operator can know of them.
    #[must_use]
    pub fn observer(self, observer: impl Observer + 'static) -> Self {
        Self {
            observer: Box::new(observer),
            ..self
        }
    }

    /// Makes the consumer. Nothing is fetched yet, and the bookmark is not read: the first
    /// [`next`](Consumer::next) does both.
    ///
    /// # Errors
    ///
    /// If the URL is invalid, or there is no transport.
    pub fn build(self) -> Result<Consumer, ConsumerError> {
        let url = Url::parse(&self.url);
        let given = url.map_err(|source| ConsumerError::Url {
            url: crate::fetch::without_userinfo(&self.url),
            source,
        })?;
        let url = without_password(given.clone());
        // Checked now: the first request would fail later, with the misleading error of a forbidden
        // origin.
        if !matches!(url.scheme(), "http" | "https") {
            return Err(ConsumerError::Scheme { url });
        }
        let transport = match self.transport {
            Some(transport) => transport,
            None => {
                transport::default_transport(self.timeouts).map_err(ConsumerError::Transport)?
            }
        };
        let mut fetcher = Fetcher::new(transport, &url)
            .document_bytes_max(self.document_bytes_max)
            .redirects_max(self.redirects_max);
        for allowed in &self.allowed_origins {
            fetcher = fetcher.allow_origin(allowed);
        }
        if let Some(token) = self.token {
            fetcher = fetcher.bearer_token(token);
        // The two URLs differ only if the given one has a name or a password.
        } else if url != given {
            let (name, password) = userinfo_of(&given);
            fetcher = fetcher.password(&name, &password);
        }
        // A store's bookmark counts only where the caller gave none.
        let (beginning, start) = match self.resume {
            Some(bookmark) => (PlaceSource::Given, Start::Bookmark(bookmark)),
            None => (PlaceSource::Stored, self.since.into()),
        };
        let replay = Replay::new(url, start)
            .documents_max(self.documents_max)
            .revisions(self.revisions);
        let consumer = Consumer::new(
            fetcher,
            replay,
            self.store,
            beginning,
            self.follow,
            self.observer,
        );
        let consumer = consumer.on_gap(self.on_gap).interval(self.interval);
        Ok(consumer.wake_by(self.wake_by))
    }
}

/// Returns the URL without name and password. No bookmark, message or other request may have these.
fn without_password(mut url: Url) -> Url {
    // Both calls fail only for URLs that have no host, and so no password.
    let _no_host = url.set_username("").is_err() || url.set_password(None).is_err();
    url
}
