//! Endpoints: the URLs of a server, a file per subject.
//!
//! Shell: between the HTTP pipeline and what it shows. Each file has the table of its paths, methods, rights and
//! handlers; [`ALL`] lists these tables.

use std::sync::Arc;

use hyper::header::{HeaderName, HeaderValue};
use simplefeed_core::{
    feed::{FeedKey, FeedName},
    settings::Settings,
    sight::Sight,
    sup::SUP_HEADER,
};
use simplefeed_http::{
    answers::header_value,
    cookie::Cookie,
    endpoint::Endpoint,
    pipeline::{self, Table},
    problem::Problem,
    reply::Lifetimes,
};
use simplefeed_log::{EntryLog, LogError, watermark::Watermark};
use simplefeed_process::{clock::Clock, threads::Threads};
use simplefeed_publish::Publisher;
use simplefeed_resource::read_error::ReadError;
use simplefeed_views::{
    Views, catalogue::Row, error::ViewError, push::Push, rates::Rates, timelines::Timelines,
};
use tokio::sync::Semaphore;

use crate::metrics::Metrics;

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
    // The last one, which a server may do without.
    pages::ENDPOINTS,
];

/// Returns the endpoints of a server, with or without the pages for people.
pub fn table(has_pages: bool) -> Table<Site> {
    let for_machines = ALL.split_last().map_or(ALL, |(_pages, others)| others);
    Table {
        endpoints: if has_pages { ALL } else { for_machines },
        takes_cookie: if has_pages {
            // Live rows of a page read a stream of events.
            |path| pages::is_below(path) || path == events::PATH
        } else {
            |_| false
        },
        explain: pages::explain,
    }
}

/// Parts of a server that its endpoints share.
#[derive(Debug)]
pub struct Site {
    /// The log.
    pub log: Arc<dyn EntryLog>,
    /// Feeds, and the rights to them.
    pub shelf: shelf::Shelf,
    /// Way to the writer.
    pub publisher: Publisher,
    /// Views that follow the log.
    pub views: Views,
    /// Seconds that are over.
    pub watermark: Arc<Watermark>,
    /// Counters of what was published.
    pub metrics: Arc<Metrics>,
    /// Cache policies of growing resources.
    pub lifetimes: Lifetimes,
    /// Whether there are pages for people.
    pub has_pages: bool,
    /// Cookie of readers who have signed in.
    pub cookie: Cookie,
    /// Path of the public URL, without a slash at its end.
    pub prefix: String,
    /// Origin of the public URL, as browsers write it.
    pub origin: String,
    /// URL at which clients see the server, without a slash at its end.
    pub public_url: String,
    /// SUP documents; `None` if the server offers none.
    pub updates: Option<Arc<sup::Updates>>,
    /// Counts of entries.
    pub rates: Arc<Rates>,
    /// Commits in a file.
    #[cfg(test)]
    pub counts: Arc<crate::views::counts::Counts>,
    /// Hubs of readers that wait.
    pub push: Arc<Push>,
    /// Places for readers that wait.
    pub parking: waits::Parking,
    /// Bounds on streams of events that read the past.
    pub past: Arc<events::PastRoom>,
    /// Memory of pages, which nobody shares.
    pub pages: paged::PageRoom,
    /// Feeds in the order of their entries.
    pub ranking: Arc<pages::Ranking>,
    /// One permit for each search through all names at the same time.
    pub searches: Arc<Semaphore>,
    /// The accepted clock.
    pub clock: Clock,
    /// Threads beside the writer.
    pub threads: Threads,
}

impl Site {
    /// Returns the last second that the writer has left behind.
    ///
    /// Asked before a lookup: a commit that the lookup misses then lies in a second after this one.
    pub fn left_behind(&self) -> i64 {
        let newest = self.log.head().last;
        self.watermark.leave(self.clock.now(), newest)
    }

    /// Returns the SUP announcement in answers about a feed (rules SUP-A1, SUP-A4).
    pub fn announcement(&self, settings: &Settings) -> Option<(HeaderName, HeaderValue)> {
        self.updates.as_ref()?;
        let address = header_value(&settings.sup_address_at(&self.public_url));
        Some((HeaderName::from_static(SUP_HEADER), address))
    }
}

/// Runs work that may read from the disk on a thread where it holds up no connection.
///
/// # Errors
///
/// A problem with status 500 or 503 if the disk or the log cannot be read.
async fn off_thread<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ViewError> + Send + 'static,
) -> Result<T, Problem> {
    pipeline::off_thread(|| work().map_err(ReadError::from)).await
}

/// Returns whether the sender of a request may see a feed. To see a closed timeline is to see entries of all closed
/// feeds that it follows, or ever followed.
///
/// # Errors
///
/// Returns why the log cannot be read.
pub fn may_see(
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
pub fn may_see_row(timelines: &Timelines, row: &Row, sight: &Sight) -> Result<bool, LogError> {
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
    if !sight.shows(name) {
        return Ok(false);
    }
    let closed = timelines.closed_sources(feed)?;
    Ok(closed.is_none_or(|closed| {
        closed.feeds.iter().all(|feed| sight.shows(feed))
            && closed.patterns.iter().all(|pattern| sight.covers(pattern))
    }))
}

#[cfg(test)]
mod tests;
