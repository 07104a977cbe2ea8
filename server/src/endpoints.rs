//! Endpoints: the URLs of a server, a file per subject.
//!
//! Shell: the handles of a server. Each file has a table of paths, methods, rights and handlers;
//! [`ALL`] lists these tables.

use std::sync::Arc;

use simplefeed_core::{
    feed::{FeedKey, FeedName},
    settings::Settings,
    sight::Sight,
};
use simplefeed_http::{endpoint::Endpoint, problem::Problem, router::EndpointTable, sending};
use simplefeed_log::{EntryLog, LogError, watermark::Watermark};
use simplefeed_process::{clock::Clock, threads::Threads};
use simplefeed_publish::WriterHandle;
use simplefeed_resource::read_error::ReadError;
use simplefeed_views::{
    Views,
    catalogue::{Catalogue, CatalogueRow},
    documents::reading::Documents,
    error::ViewError,
    shown::ShownLog,
    timelines::Timelines,
};
use tokio::sync::Semaphore;
use url::Url;

use crate::{config::Config, metrics::Metrics, views::ServedViews};

pub mod catalogue;
pub mod events;
mod documents;
pub mod feeds;
pub mod forms;
pub mod health;
pub mod metrics;
pub mod pages;
pub mod publishing;
pub mod rates;
mod names;
pub mod paged;
mod refusals;
pub mod shelf;
pub mod sup;
pub mod timelines;
pub mod waits;
#[cfg(test)]
pub mod counts;

use events::EventParts;
use feeds::FeedParts;
use health::HealthParts;
use paged::PageRoom;
use pages::PageParts;
use publishing::PublishParts;
use rates::RateParts;
use shelf::Shelf;
use sup::{SupParts, SupUpdates};
use timelines::TimelineParts;
use waits::{WaitParts, WaitPlaces};

/// Tables of all endpoints.
pub const ALL: &[&[Endpoint<Site>]] = &[
    feeds::ENDPOINTS,
    events::ENDPOINTS,
    catalogue::ENDPOINTS,
    sup::ENDPOINTS,
    timelines::ENDPOINTS,
    rates::ENDPOINTS,
    health::ENDPOINTS,
    #[cfg(test)]
    counts::ENDPOINTS,
    // The table of pages comes last, because the function `table` drops the last table for a server
    // without pages.
    pages::ENDPOINTS,
];

/// Links of the recent document of a feed that is no timeline.
const LINKS_OF_FEEDS: &[&str] = &[rates::LINK];

/// Returns the endpoints of a server, with or without the pages for people.
pub fn table(has_pages: bool) -> EndpointTable<Site> {
    let for_machines = ALL.split_last().map_or(ALL, |(_pages, others)| others);
    EndpointTable {
        endpoints: if has_pages { ALL } else { for_machines },
        takes_cookie: if has_pages {
            // The live rows of a page read a stream of events.
            |path| pages::is_below(path) || path == events::PATH
        } else {
            |_| false
        },
        explain: pages::explain,
    }
}

/// Handles of a server, in a group for each file of endpoints.
#[derive(Debug)]
pub struct Site {
    /// Feeds, and the rights to them.
    pub shelf: Arc<Shelf>,
    /// Documents and pages of feeds.
    pub feeds: FeedParts,
    /// Readers that wait for a document.
    pub waits: WaitParts,
    /// Streams of events about new entries.
    pub events: EventParts,
    /// Handles for requests of publishers.
    pub publishing: PublishParts,
    /// Updates of feeds and timelines.
    pub sup: SupParts,
    /// Handles for follows of timelines: lists, and changes.
    pub timelines: TimelineParts,
    /// Counts of entries by spans of time.
    pub rates: RateParts,
    /// State of the server.
    pub health: HealthParts,
    /// Pages for people, below `/ui/`.
    pub pages: PageParts,
    /// Handles for the counts view, which exists for tests only.
    #[cfg(test)]
    pub counts: counts::CountParts,
}

/// Handles of a server before they are handed out.
#[derive(Debug)]
pub struct Handles {
    /// The log, without its timelines.
    pub log: Arc<dyn EntryLog>,
    /// The log with its timelines.
    pub shown: Arc<dyn ShownLog>,
    /// The feeds and timelines as lists show them.
    pub catalogue: Arc<Catalogue>,
    /// Documents of all feeds.
    pub documents: Arc<Documents>,
    /// Way to the writer.
    pub publisher: WriterHandle,
    /// Views, by their types.
    pub views: ServedViews,
    /// The same views as a list, with the progress of their followers.
    pub followed: Views,
    /// Watermark, which tells the seconds that are over.
    pub watermark: Arc<Watermark>,
    /// Counters that operators see.
    pub metrics: Arc<Metrics>,
    /// The clock that commits are stamped by.
    pub clock: Clock,
    /// Threads beside the writer.
    pub threads: Threads,
}

/// Bounds that several files of endpoints have in common.
#[derive(Debug)]
struct SharedBounds {
    /// Memory of pages, where each page is made for one reader.
    pages: PageRoom,
    /// Permits for searches through all names, one for each search that may run at the same time.
    searches: Arc<Semaphore>,
}

impl Default for SharedBounds {
    fn default() -> Self {
        Self {
            pages: PageRoom::default(),
            searches: Arc::new(Semaphore::new(pages::SEARCHES_MAX)),
        }
    }
}

impl Site {
    /// Hands out the handles of a server whose public URL is `public_url`.
    pub fn new(config: &Config, public_url: &Url, handles: Handles) -> Self {
        let updates = SupUpdates::of(config, public_url, &handles);
        let shelf = Arc::new(Shelf::of(config, public_url, &handles, updates.is_some()));
        let shared = SharedBounds::default();
        let pages = PageParts::of(config, public_url, &handles, &shelf, &shared);
        let Handles {
            views,
            publisher,
            metrics,
            ..
        } = handles;
        // Waiting requests and streams share one set of waiting places: each of them holds a
        // connection, and one bound covers all connections.
        let parking = WaitPlaces::beside(config.limits().connections);
        let held = || Arc::clone(&shelf);
        Self {
            feeds: FeedParts {
                pages: shared.pages,
                has_pages: pages.is_on,
            },
            waits: WaitParts {
                shelf: held(),
                push: Arc::clone(&views.push),
                parking: parking.clone(),
            },
            events: EventParts {
                shelf: held(),
                push: views.push,
                parking: parking.clone(),
                past: Arc::default(),
            },
            publishing: PublishParts {
                shelf: held(),
                publisher: publisher.clone(),
                metrics,
            },
            sup: SupParts {
                shelf: held(),
                updates,
                parking,
            },
            timelines: TimelineParts {
                shelf: held(),
                publisher: publisher.clone(),
                searches: shared.searches,
            },
            rates: RateParts::of(held(), views.files.rates),
            health: HealthParts {
                log: handles.log,
                publisher,
                clock: handles.clock,
                threads: handles.threads,
            },
            pages,
            #[cfg(test)]
            counts: counts::CountParts::of(held(), views.files.counts),
            shelf,
        }
    }
}

/// Returns a URL or path without a slash at the end.
fn without_slash(url: &str) -> String {
    url.trim_end_matches('/').into()
}

/// Runs work that may read from the disk, on a thread that serves no connection.
///
/// # Errors
///
/// A problem with status 500 or 503 if the disk or the log cannot be read.
async fn off_thread<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ViewError> + Send + 'static,
) -> Result<T, Problem> {
    sending::off_thread(|| work().map_err(ReadError::from)).await
}

/// Returns whether the sender of a request may see a feed. For a closed timeline, the sender needs
/// rights to all closed feeds that the timeline follows or ever followed, because the timeline
/// shows their entries.
///
/// # Errors
///
/// Returns why the log cannot be read.
pub(crate) fn may_see(
    timelines: &Timelines,
    feed: FeedKey,
    settings: &Settings,
    sight: &Sight,
) -> Result<bool, LogError> {
    Ok(!settings.is_closed() || may_see_closed(timelines, (feed, &settings.name), sight)?)
}

/// Returns whether a reader may see the feed of a row.
///
/// # Errors
///
/// Returns why the log cannot be read.
pub(crate) fn may_see_row(
    timelines: &Timelines,
    row: &CatalogueRow,
    sight: &Sight,
) -> Result<bool, LogError> {
    Ok(!row.is_closed || may_see_closed(timelines, (row.key, &row.name), sight)?)
}

fn may_see_closed(
    timelines: &Timelines,
    (feed, name): (FeedKey, &FeedName),
    sight: &Sight,
) -> Result<bool, LogError> {
    if sight.is_all() {
        return Ok(true);
    }
    // The sender needs a right to the feed itself. For a timeline, that right alone is not enough,
    // because the entries are those of closed feeds.
    if !sight.shows(name) {
        return Ok(false);
    }
    let closed = timelines.closed_sources(feed)?;
    // `None` stands for a feed that is no timeline: there, the right to the feed itself decides.
    Ok(closed.is_none_or(|closed| {
        closed.feeds.iter().all(|feed| sight.shows(feed))
            && closed.patterns.iter().all(|pattern| sight.covers(pattern))
    }))
}

#[cfg(test)]
mod tests;
