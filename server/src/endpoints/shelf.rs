//! Lookups of feeds, with the rights to them.
//!
//! Shell: the log, the catalogue, the clock.

use std::sync::Arc;

use hyper::header::{HeaderName, HeaderValue};
use simplefeed_core::{
    feed::{FeedKey, FeedName},
    settings::Settings,
    sight::Sight,
    sup::SUP_HEADER,
};
use simplefeed_http::{
    answers::header_value, endpoint::Exchange, problem::Problem, reply::Lifetimes,
};
use simplefeed_log::{EntryLog, watermark::Watermark};
use simplefeed_process::clock::Clock;
use simplefeed_resource::Visibility;
use simplefeed_views::{
    catalogue::Catalogue,
    documents::reading::{Documents, FeedSnapshot},
    timelines::Timelines,
};
use url::Url;

use super::{Handles, may_see, off_thread, without_slash};
use crate::config::Config;

/// Feeds, the rights to them, and the parts that all answers about feeds have in common.
#[derive(Debug)]
pub struct Shelf {
    /// The log, without its timelines.
    pub log: Arc<dyn EntryLog>,
    /// The feeds and timelines as lists show them.
    pub catalogue: Arc<Catalogue>,
    /// Documents of all feeds.
    pub documents: Arc<Documents>,
    /// Timelines, and their follows.
    pub timelines: Arc<Timelines>,
    /// Watermark, which tells the seconds that are over.
    pub watermark: Arc<Watermark>,
    /// The clock that commits are stamped by.
    pub clock: Clock,
    /// Cache policies of resources.
    pub lifetimes: Lifetimes,
    /// URL at which clients see the server, without a slash at the end.
    pub public_url: String,
    /// Whether there are SUP documents to announce.
    pub has_sup: bool,
}

impl Shelf {
    /// Returns the feeds of a server whose public URL is `public_url`.
    pub(super) fn of(config: &Config, public_url: &Url, handles: &Handles, has_sup: bool) -> Self {
        Self {
            log: Arc::clone(&handles.log),
            catalogue: Arc::clone(&handles.catalogue),
            documents: Arc::clone(&handles.documents),
            timelines: Arc::clone(&handles.views.timelines),
            watermark: Arc::clone(&handles.watermark),
            clock: handles.clock.clone(),
            lifetimes: Lifetimes::new(config.recent_max_age),
            public_url: without_slash(public_url.as_str()),
            has_sup,
        }
    }

    /// Finishes seconds as [`Watermark::leave`] does, and returns the last finished second.
    ///
    /// The call comes before a lookup: a commit that the lookup misses then lies in a later second.
    pub(crate) fn left_behind(&self) -> i64 {
        let newest = self.log.head().last;
        self.watermark.leave(self.clock.now(), newest)
    }

    /// Returns the SUP announcement in answers about a feed (rules SUP-A1, SUP-A4).
    pub(crate) fn announcement(&self, settings: &Settings) -> Option<(HeaderName, HeaderValue)> {
        let address = || header_value(&settings.sup_address_at(&self.public_url));
        self.has_sup
            .then(|| (HeaderName::from_static(SUP_HEADER), address()))
    }
}

/// Feed as one reader sees the feed: the visibility, the SUP announcement, and the last second that
/// was over before the lookup.
#[derive(Clone, Debug)]
pub(super) struct FeedSight {
    pub(super) visibility: Visibility,
    pub(super) announcement: Option<(HeaderName, HeaderValue)>,
    pub(super) over: i64,
    pub(super) feed: FeedKey,
    pub(super) is_timeline: bool,
}

/// Looks a feed up. For a reader who may not see the feed, the feed does not exist.
pub(super) async fn seen(shelf: &Shelf, exchange: &Exchange<'_>) -> Result<FeedSight, Problem> {
    let sight = || exchange.access.sight(exchange.headers);
    seen_with(shelf, exchange, sight).await
}

/// Looks a feed up for a reader that waits, with the reader's current rights.
pub(super) async fn seen_now(shelf: &Shelf, exchange: &Exchange<'_>) -> Result<FeedSight, Problem> {
    let sight = || exchange.rules.now().sight(exchange.headers);
    seen_with(shelf, exchange, sight).await
}

/// Looks a feed up for a reader with these rights.
pub(super) async fn seen_with(
    shelf: &Shelf,
    exchange: &Exchange<'_>,
    sight: impl Fn() -> Sight,
) -> Result<FeedSight, Problem> {
    // Read before the lookup, so that a commit that the lookup misses lies in a later second.
    let over = shelf.left_behind();
    let feed = exchange.params.feed();
    let (state, visibility) = state_for(shelf, feed, sight).await?;
    let announcement = shelf.announcement(&state.settings);
    Ok(FeedSight {
        visibility,
        announcement,
        over,
        feed: state.head.feed,
        is_timeline: state.settings.is_timeline(),
    })
}

/// Checks once more that the reader may see a closed feed. After the first check, a closed timeline
/// may have begun to follow a closed feed to which the reader has no right.
pub(super) async fn look_again(
    shelf: &Shelf,
    exchange: &Exchange<'_>,
    before: FeedSight,
) -> Result<FeedSight, Problem> {
    match before.visibility {
        Visibility::Public => Ok(before),
        Visibility::Private => seen(shelf, exchange).await,
    }
}

/// Returns the state and the visibility of a feed, for a reader with the right to see the feed.
///
/// The right is checked first. Work that is done only for a closed feed, and not for an absent one,
/// would make the answer later, and so reveal the closed feed.
pub(super) async fn state_for(
    shelf: &Shelf,
    feed: &FeedName,
    sight: impl Fn() -> Sight,
) -> Result<(Arc<FeedSnapshot>, Visibility), Problem> {
    let sight = sight();
    if is_hidden(shelf, feed, &sight).await? {
        return Err(absent(feed));
    }
    let mut state = shelf.documents.current(feed);
    if state.is_none() {
        let (documents, name) = (Arc::clone(&shelf.documents), feed.clone());
        state = off_thread(move || documents.snapshot(&name)).await?;
    }
    let state = state.ok_or_else(|| absent(feed))?;
    if !state.settings.is_closed() {
        return Ok((state, Visibility::Public));
    }
    // For a timeline, its sources may have to be read from the log. For a feed, the name decides at
    // once.
    let is_seen = if state.settings.is_timeline() {
        let (timelines, state) = (Arc::clone(&shelf.timelines), Arc::clone(&state));
        let look = move || {
            let key = state.head.feed;
            Ok(may_see(&timelines, key, &state.settings, &sight)?)
        };
        off_thread(look).await?
    } else {
        sight.shows(feed)
    };
    if is_seen {
        Ok((state, Visibility::Private))
    } else {
        // The answer must be the same as for a feed that does not exist.
        Err(absent(feed))
    }
}

/// Returns whether a name is hidden from a reader: there is no open feed of that name, and the
/// reader has no right to closed feeds of that name. Takes the same time for a closed feed as for
/// no feed, except shortly after a start, while the catalogue is read.
pub(super) async fn is_hidden(
    shelf: &Shelf,
    feed: &FeedName,
    sight: &Sight,
) -> Result<bool, Problem> {
    Ok(!sight.shows(feed) && !is_open(shelf, feed).await?)
}

/// Returns whether there is an open feed with a name.
async fn is_open(shelf: &Shelf, feed: &FeedName) -> Result<bool, Problem> {
    if let Some(is_open) = shelf.catalogue.is_open(feed) {
        return Ok(is_open);
    }
    // Shortly after a start, the catalogue is not read yet, so the log is asked.
    let (timelines, name) = (Arc::clone(&shelf.timelines), feed.clone());
    let look = move || Ok(timelines.settings_now(&name)?);
    let settings = off_thread(look).await?;
    Ok(settings.is_some_and(|(_, now)| !now.is_closed()))
}

/// Returns the same problem for a feed that does not exist and for one that is closed to the
/// reader.
pub(super) fn absent(feed: &FeedName) -> Problem {
    Problem::not_found(format!("feed {feed} has no such document"))
}
