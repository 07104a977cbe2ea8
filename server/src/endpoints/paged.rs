//! Handler of paged documents: stretches of a feed by place, made anew for each request.
//!
//! Shell: the log, and the memory of pages.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use simplefeed_core::{
    header::FEED_TYPE,
    limits::{PAGE_ENTRIES_DEFAULT, PAGE_ENTRIES_MAX},
    timeline::Place,
};
use simplefeed_http::{
    endpoint::{Exchange, Outcome},
    problem::Problem,
};
use simplefeed_resource::{Resource, Validity};
use simplefeed_views::documents::pages::{self, PageForm, PageRequest};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::{
    documents::shown,
    off_thread,
    shelf::{Shelf, absent, look_again, seen},
};

/// Maximum size, in KiB, of all pages together that are being made, or are on the way to readers.
const PAGES_KIB_MAX: usize = 256 * 1024;
/// KiB of room for one page that is being made: for the entries, and for the document of them.
const PAGE_KIB_MAX: u32 = 32 * 1024;
/// Longest wait until other pages release room.
const PAGE_WAIT: Duration = Duration::from_secs(5);

/// Shows a stretch of a feed by place.
pub(super) async fn page(
    (shelf, room): (&Shelf, &PageRoom),
    exchange: Exchange<'_>,
    form: PageForm,
) -> Result<Outcome, Problem> {
    let wanted = wanted_page(exchange.query())?;
    let seen = seen(shelf, &exchange).await?;
    let feed = exchange.params.feed().clone();
    // The room is taken before the page is made, so the room is that of the largest page.
    let mut room = room.one().await?;
    let documents = Arc::clone(&shelf.documents);
    let name = feed.clone();
    let found = off_thread(move || {
        let Some(state) = documents.snapshot(&name)? else {
            return Ok(None);
        };
        let (log, feed) = (&**documents.log(), (state.head.feed, state.head.updated));
        Ok(Some(pages::page(log, feed, &state.settings, wanted, form)?))
    });
    let bytes = found.await?.ok_or_else(|| absent(&feed))?;
    // During the lookup, a closed timeline may have begun to follow a closed feed that this reader
    // may not see.
    let seen = look_again(shelf, &exchange, seen).await?;
    room.shrink_to(bytes.len());
    // A slow reader holds a page for long, so the room is held until the bytes are dropped.
    let bytes = Bytes::from_owner(HeldPage { bytes, _room: room });
    let media_type = match form {
        PageForm::Atom => FEED_TYPE,
        PageForm::Json => "application/json",
    };
    let resource = Resource::of_bytes(media_type, None, Validity::Once, bytes);
    Ok(Outcome::Shown(Box::new(shown(shelf, resource, seen))))
}

/// Memory of pages, which all requests share: a small request may ask for a page of megabytes, and
/// each page is made for one reader.
#[derive(Clone, Debug)]
pub struct PageRoom(Arc<Semaphore>);

impl Default for PageRoom {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(PAGES_KIB_MAX)))
    }
}

impl PageRoom {
    /// Returns room for a page that is to be made.
    pub(super) async fn one(&self) -> Result<OnePage, Problem> {
        let room = Arc::clone(&self.0).acquire_many_owned(PAGE_KIB_MAX);
        match tokio::time::timeout(PAGE_WAIT, room).await {
            Ok(Ok(room)) => Ok(OnePage(room)),
            Ok(Err(_)) | Err(_) => Err(Problem::busy_with(
                "too many pages are on their way to slow readers",
            )),
        }
    }
}

/// Room of one page.
#[derive(Debug)]
pub(super) struct OnePage(OwnedSemaphorePermit);

impl OnePage {
    /// Releases the room beyond the page's length, which is `bytes`.
    fn shrink_to(&mut self, bytes: usize) {
        let excess = self.0.num_permits().saturating_sub(bytes.div_ceil(1024));
        drop(self.0.split(excess));
    }
}

/// Bytes of a page, with their room.
struct HeldPage {
    bytes: Bytes,
    _room: OnePage,
}

impl AsRef<[u8]> for HeldPage {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Returns the page that a query asks for.
fn wanted_page(query: &str) -> Result<PageRequest, Problem> {
    let wrong = || {
        let detail = format!(
            "a page is asked for with limit= from -{PAGE_ENTRIES_MAX} to {PAGE_ENTRIES_MAX}, and anchor= as the links \
             of pages have it"
        );
        Problem::malformed(detail)
    };
    let (mut limit, mut anchor) = (None, None);
    // Compared as text: another spelling would be another URL for caches.
    for part in query.split('&').filter(|_| !query.is_empty()) {
        match part.split_once('=') {
            Some(("limit", number)) if limit.is_none() => {
                let number: i64 = number.parse().ok().ok_or_else(wrong)?;
                let is_bounded = number.unsigned_abs() <= PAGE_ENTRIES_MAX;
                limit = Some(is_bounded.then_some(number).ok_or_else(wrong)?);
            }
            Some(("anchor", place)) if anchor.is_none() => {
                anchor = Some(Place::parse(place).ok_or_else(wrong)?);
            }
            _ => return Err(wrong()),
        }
    }
    let limit = limit.unwrap_or(PAGE_ENTRIES_DEFAULT);
    Ok(PageRequest { anchor, limit })
}
