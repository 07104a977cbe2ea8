//! Paged documents (RFC 5005, 3): a stretch of a feed by place, for readers who scroll.
//!
//! Pure, over a series that the caller passes. Pages change as the feed grows, so no cache may keep
//! them for long. A reader who must not miss an entry needs the archived documents instead.

use bytes::Bytes;
use serde::Serialize;
use simplefeed_core::{
    document::feed_document,
    event::Event,
    feed::FeedKey,
    header::{PageLinks, paged_header},
    limits::PAGE_ENTRIES_MAX,
    settings::Settings,
    timeline::Place,
    timestamp::Timestamp,
};
use simplefeed_log::{LogError, PlacedEntry, Series};

/// Page that a reader asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageRequest {
    /// Place next to which the page lies: on its older side, or on its newer side if the limit is
    /// negative. Without a place, the page has the newest entries, or no entries if the limit is
    /// negative.
    pub anchor: Option<Place>,
    /// Maximum number of entries of the page; negative for entries that are newer than the anchor.
    pub limit: i64,
}

/// Form of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageForm {
    /// An Atom feed document.
    Atom,
    /// A JSON object with events.
    Json,
}

impl PageForm {
    fn name(self) -> &'static str {
        match self {
            Self::Atom => "page.atom",
            Self::Json => "page.json",
        }
    }
}

/// A page as JSON.
#[derive(Serialize)]
struct JsonPage {
    first: String,
    previous: Option<String>,
    next: Option<String>,
    items: Vec<PageItem>,
}

/// An event, and the place of the entry.
#[derive(Serialize)]
struct PageItem {
    anchor: String,
    #[serde(flatten)]
    event: Event,
}

/// Returns a page of a feed; `updated` is the instant of the feed's last update.
///
/// # Errors
///
/// Returns why the log cannot be read.
pub fn page(
    log: &dyn Series,
    (feed, updated): (FeedKey, Timestamp),
    settings: &Settings,
    wanted: PageRequest,
    form: PageForm,
) -> Result<Bytes, LogError> {
    let size = wanted.limit.unsigned_abs().min(PAGE_ENTRIES_MAX);
    let entries = page_entries(log, feed, wanted, size)?;
    // The links of a page of size 0 lead to pages of at least one entry.
    let size = size.max(1);
    let url = |limit: i64, anchor: Option<Place>| {
        let anchor = anchor.map_or(String::new(), |anchor| format!("&anchor={anchor}"));
        format!("{}?limit={limit}{anchor}", form.name())
    };
    let limit = i64::try_from(size).unwrap_or(i64::MAX);
    let older = match entries.last() {
        Some(last) => !log.page(feed, Some(last.place), 1)?.is_empty(),
        None => false,
    };
    let newer = match entries.first() {
        Some(first) => !log.page(feed, Some(first.place), -1)?.is_empty(),
        None => false,
    };
    let links = PageLinks {
        own: url(wanted.limit, wanted.anchor),
        first: url(limit, None),
        previous: entries
            .first()
            .filter(|_| newer)
            .map(|first| url(-limit, Some(first.place))),
        next: entries
            .last()
            .filter(|_| older)
            .map(|last| url(limit, Some(last.place))),
    };
    match form {
        PageForm::Atom => {
            let newest = entries.first().map(|newest| newest.place.instant());
            // A page without entries has the instant of the feed's last update.
            let updated = newest.unwrap_or(updated);
            // The newest entry comes first here, and last in the arguments of `feed_document`.
            let fragments = entries.iter().rev().map(|entry| &entry.entry.fragment);
            let header = paged_header(settings, updated, &links);
            Ok(feed_document(&header, &fragments.collect::<Vec<_>>()))
        }
        PageForm::Json => {
            let items: Result<Vec<PageItem>, LogError> = entries.iter().map(item_of).collect();
            let page = JsonPage {
                first: links.first,
                previous: links.previous,
                next: links.next,
                items: items?,
            };
            let json = serde_json::to_vec(&page).expect("a page has a JSON form");
            Ok(json.into())
        }
    }
}

/// Returns the entries of a page, newest first.
fn page_entries(
    log: &dyn Series,
    feed: FeedKey,
    wanted: PageRequest,
    size: u64,
) -> Result<Vec<PlacedEntry>, LogError> {
    let size = i64::try_from(size).unwrap_or(i64::MAX);
    match wanted.anchor {
        // Without an anchor, the page begins at the newest entry, and nothing is newer.
        None if wanted.limit < 0 => Ok(vec![]),
        anchor if wanted.limit < 0 => log.page(feed, anchor, -size),
        anchor => log.page(feed, anchor, size),
    }
}

fn item_of(entry: &PlacedEntry) -> Result<PageItem, LogError> {
    // The gate has accepted these bytes, so they are damaged if they cannot be read.
    let damaged = |error: &dyn std::fmt::Display| {
        LogError::damaged(format!("entry {}: {error}", entry.entry.id))
    };
    let text = std::str::from_utf8(&entry.entry.fragment).map_err(|error| damaged(&error))?;
    Ok(PageItem {
        anchor: entry.place.to_string(),
        event: Event::from_entry(text).map_err(|error| damaged(&error))?,
    })
}
