//! Endpoints of a feed: its documents, entries and index, and the redirect to its recent document.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use hyper::{
    Method, StatusCode,
    header::{CACHE_CONTROL, HeaderName, HeaderValue, LINK, LOCATION},
};
use simplefeed_core::{
    feed::{DocumentName, DocumentNumber, FeedKey, FeedName, Numbered},
    header::{FEED_TYPE, RECENT},
    json_feed::{JSON_FEED_TYPE, json_feed},
    limits::{PAGE_ENTRIES_DEFAULT, PAGE_ENTRIES_MAX},
    reader::Document,
    sight::Sight,
    timeline::Place,
};
use simplefeed_http::{
    access::Right,
    answers::{header_value, plain},
    endpoint::{Endpoint, Exchange, Needs, Outcome, Query, Shown, Verb},
    problem::Problem,
    reply::for_sites,
};
use simplefeed_resource::{Resource, Validity, Visibility, read_error::ReadError};
use simplefeed_views::{
    catalogue::Catalogue,
    documents::{
        pages::{self, Form, Wanted},
        reading::{Address, Documents, Snapshot},
    },
    timelines::Timelines,
};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use url::Url;

use super::{Site, may_see, off_thread, publishing, waits};
use crate::metrics::DOCUMENT;

/// Paths below a feed.
pub const ENDPOINTS: &[Endpoint<Site>] = &[
    Endpoint {
        path: "/feeds/{feed}",
        label: "feed",
        query: Query::Ignored,
        methods: &[
            Verb {
                method: Method::GET,
                needs: Needs::Sight,
                handle: |site, exchange| Box::pin(redirect(site, exchange)),
            },
            Verb {
                method: Method::POST,
                needs: Needs::Right(Right::Publish),
                handle: |site, exchange| Box::pin(publishing::append(site, exchange)),
            },
            Verb {
                method: Method::PUT,
                needs: Needs::Right(Right::Admin),
                handle: |site, exchange| Box::pin(publishing::configure(site, exchange)),
            },
        ],
    },
    Endpoint {
        path: "/feeds/{feed}/settings.json",
        label: "settings",
        query: Query::Ignored,
        methods: &[
            Verb {
                method: Method::GET,
                needs: Needs::Right(Right::Publish),
                handle: |site, exchange| Box::pin(publishing::settings(site, exchange)),
            },
            Verb {
                method: Method::PUT,
                needs: Needs::Right(Right::Admin),
                handle: |site, exchange| Box::pin(publishing::change_settings(site, exchange)),
            },
        ],
    },
    Endpoint {
        path: "/feeds/{feed}/recent.atom",
        label: DOCUMENT,
        query: Query::Wait,
        methods: &[Verb {
            method: Method::GET,
            needs: Needs::Sight,
            handle: |site, exchange| match waits::seconds(exchange.query()) {
                Ok(None) => Box::pin(read(site, exchange, |_| Some(Address::Recent))),
                Ok(Some(seconds)) => Box::pin(waits::recent(site, exchange, seconds)),
                Err(problem) => Box::pin(async { Err(problem) }),
            },
        }],
    },
    Endpoint {
        path: "/feeds/{feed}/{document}.atom",
        label: DOCUMENT,
        query: Query::Ignored,
        methods: &[Verb {
            method: Method::GET,
            needs: Needs::Sight,
            handle: |site, exchange| {
                let address = |number| document(number).map(Address::Document);
                Box::pin(read(site, exchange, address))
            },
        }],
    },
    Endpoint {
        path: "/feeds/{feed}/recent.json",
        label: "json-feed",
        query: Query::Ignored,
        methods: &[Verb {
            method: Method::GET,
            needs: Needs::Sight,
            handle: |site, exchange| Box::pin(json(site, exchange, |_| Some(Address::Recent))),
        }],
    },
    Endpoint {
        path: "/feeds/{feed}/{document}.json",
        label: "json-feed",
        query: Query::Ignored,
        methods: &[Verb {
            method: Method::GET,
            needs: Needs::Sight,
            handle: |site, exchange| {
                let address = |number| document(number).map(Address::Document);
                Box::pin(json(site, exchange, address))
            },
        }],
    },
    Endpoint {
        path: "/feeds/{feed}/entries/{position}.atom",
        label: "entry",
        query: Query::Ignored,
        methods: &[Verb {
            method: Method::GET,
            needs: Needs::Sight,
            handle: |site, exchange| {
                let address = |number: Option<Numbered>| number.map(Address::Entry);
                Box::pin(read(site, exchange, address))
            },
        }],
    },
    Endpoint {
        path: "/feeds/{feed}/entries/{position}",
        label: "entry",
        query: Query::Ignored,
        methods: &[Verb {
            method: Method::GET,
            needs: Needs::Sight,
            handle: |site, exchange| Box::pin(entry(site, exchange)),
        }],
    },
    Endpoint {
        path: "/feeds/{feed}/page.atom",
        label: "page",
        query: Query::Named,
        methods: &[Verb {
            method: Method::GET,
            needs: Needs::Sight,
            handle: |site, exchange| Box::pin(page(site, exchange, Form::Atom)),
        }],
    },
    Endpoint {
        path: "/feeds/{feed}/page.json",
        label: "page",
        query: Query::Named,
        methods: &[Verb {
            method: Method::GET,
            needs: Needs::Sight,
            handle: |site, exchange| Box::pin(page(site, exchange, Form::Json)),
        }],
    },
    Endpoint {
        path: "/feeds/{feed}/index.json",
        label: "index",
        query: Query::Ignored,
        methods: &[Verb {
            method: Method::GET,
            needs: Needs::Sight,
            handle: |site, exchange| Box::pin(read(site, exchange, |_| Some(Address::Index))),
        }],
    },
    Endpoint {
        path: "/feeds/{feed}/index-{block}.json",
        label: "index",
        query: Query::Ignored,
        methods: &[Verb {
            method: Method::GET,
            needs: Needs::Sight,
            handle: |site, exchange| {
                let address = |number: Option<Numbered>| number.map(Address::IndexBlock);
                Box::pin(read(site, exchange, address))
            },
        }],
    },
];

/// Links of a recent document for push.
pub(super) const RECENT_LINKS: &str = "<recent.atom?wait=15>; rel=\"urn:simplefeed:1#wait\", \
    <events?content=none>; rel=\"urn:simplefeed:1#events\"";
/// Link of the recent document of a feed that is no timeline to its rates.
pub(super) const RATES_LINK: &str = "<rates.json>; rel=\"urn:simplefeed:1#rates\"";

/// Feed as its reader sees it: who else may, its SUP announcement, and the last second that was over before the lookup.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    pub(super) visibility: Visibility,
    pub(super) announcement: Option<(HeaderName, HeaderValue)>,
    pub(super) over: i64,
    pub(super) feed: FeedKey,
    pub(super) is_timeline: bool,
}

fn document(number: Option<Numbered>) -> Option<DocumentName> {
    let Numbered { number, epoch } = number?;
    let number = DocumentNumber::new(number)?;
    Some(DocumentName { number, epoch })
}

/// Returns the same problem for a feed that does not exist and for one that is closed to the reader.
fn absent(feed: &FeedName) -> Problem {
    Problem::not_found(format!("feed {feed} has no such document"))
}

/// Looks a feed up. For readers that may not see it, the feed does not exist.
pub(super) async fn seen(site: &Site, exchange: &Exchange<'_>) -> Result<Seen, Problem> {
    let sight = || exchange.access.sight(exchange.headers);
    seen_with(site, exchange, sight).await
}

/// Looks a feed up for a reader with these rights.
pub(super) async fn seen_with(
    site: &Site,
    exchange: &Exchange<'_>,
    sight: impl Fn() -> Sight,
) -> Result<Seen, Problem> {
    let over = site.left_behind();
    let feed = exchange.params.feed();
    let (state, visibility) = state_for(&site.shelf, feed, sight).await?;
    let announcement = site.announcement(&state.settings);
    Ok(Seen {
        visibility,
        announcement,
        over,
        feed: state.head.feed,
        is_timeline: state.settings.is_timeline(),
    })
}

/// Feeds, and the rights to them.
#[derive(Clone, Debug)]
pub struct Shelf {
    /// The feeds and timelines as lists show them.
    pub catalogue: Arc<Catalogue>,
    /// Documents of all feeds.
    pub documents: Arc<Documents>,
    /// What timelines follow.
    pub timelines: Arc<Timelines>,
}

/// Returns the state of a feed, and its visibility, for a reader with the right to it.
///
/// The right is checked first. Work that is done for a closed feed, and not for an absent one, would reveal it by its time.
pub(super) async fn state_for(
    shelf: &Shelf,
    feed: &FeedName,
    sight: impl Fn() -> Sight,
) -> Result<(Arc<Snapshot>, Visibility), Problem> {
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
        // The answer is the same as for a feed that does not exist.
        Err(absent(feed))
    }
}

/// Returns whether a name is that of no feed, or of a closed one that the reader may not see. Takes the same
/// time for both, but for the moment after a start in which the catalogue is read.
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
    // Shortly after a start, the log is asked.
    let (timelines, name) = (Arc::clone(&shelf.timelines), feed.clone());
    let look = move || Ok(timelines.settings_now(&name)?);
    let settings = off_thread(look).await?;
    Ok(settings.is_some_and(|(_, now)| !now.is_closed()))
}

/// Looks once more whether the reader may see a closed feed: between two looks, a timeline may have followed another
/// closed feed.
pub(super) async fn look_again(
    site: &Site,
    exchange: &Exchange<'_>,
    before: Seen,
) -> Result<Seen, Problem> {
    match before.visibility {
        Visibility::Public => Ok(before),
        Visibility::Private => seen(site, exchange).await,
    }
}

/// Redirects to the feed's recent document. Some feed readers take 303 for a final answer; all take 307.
async fn redirect(site: &Site, exchange: Exchange<'_>) -> Result<Outcome, Problem> {
    let seen = seen(site, &exchange).await?;
    let mut answer = plain(StatusCode::TEMPORARY_REDIRECT, "");
    // Relative, so that the redirect leads on wherever a proxy shows us.
    let location = format!("{}/{RECENT}", exchange.params.feed());
    let headers = answer.headers_mut();
    headers.insert(LOCATION, header_value(&location));
    headers.extend(seen.announcement);
    headers.extend(for_sites(seen.visibility));
    Ok(Outcome::Answer(answer))
}

/// Redirects to the page of an entry, or to its document where there are no pages.
async fn entry(site: &Site, exchange: Exchange<'_>) -> Result<Outcome, Problem> {
    let feed = exchange.params.feed();
    let number = exchange.params.number().ok_or_else(|| absent(feed))?;
    // Relative to `/feeds/{feed}/entries/`, wherever a proxy shows us.
    let redirect = |location: String, visibility| {
        let mut answer = plain(StatusCode::TEMPORARY_REDIRECT, "");
        let headers = answer.headers_mut();
        headers.insert(LOCATION, header_value(&location));
        headers.extend(for_sites(visibility));
        Ok(Outcome::Answer(answer))
    };
    if site.has_pages {
        // Of any feed: a browser sends its cookie to the page alone, which says what there is and to whom.
        let page = format!("../../../ui/feeds/{feed}/{number}");
        return redirect(page, Visibility::Public);
    }
    let seen = seen(site, &exchange).await?;
    redirect(format!("{number}.atom"), seen.visibility)
}

/// Shows the resource at an address below a feed.
async fn read(
    site: &Site,
    exchange: Exchange<'_>,
    address: fn(Option<Numbered>) -> Option<Address>,
) -> Result<Outcome, Problem> {
    let seen = seen(site, &exchange).await?;
    let feed = exchange.params.feed().clone();
    let Some(address) = address(exchange.params.number()) else {
        return Err(absent(&feed));
    };
    // Only a lookup that may read from the disk leaves this thread.
    if let Some(resource) = site.shelf.documents.at_once(&feed, &address) {
        let seen = look_again(site, &exchange, seen).await?;
        return Ok(show(site, resource, seen, &address));
    }
    let documents = Arc::clone(&site.shelf.documents);
    let wanted = (feed.clone(), address.clone());
    let found = off_thread(move || documents.resource(&wanted.0, &wanted.1)).await?;
    let seen = look_again(site, &exchange, seen).await?;
    match (found, address) {
        (Some(resource), address) => Ok(show(site, resource, seen, &address)),
        (None, Address::Document(name)) => renamed(site, feed, name, seen).await,
        (None, _) => Err(absent(&feed)),
    }
}

/// Shows a document as JSON Feed.
async fn json(
    site: &Site,
    exchange: Exchange<'_>,
    address: fn(Option<Numbered>) -> Option<Address>,
) -> Result<Outcome, Problem> {
    match read(site, exchange, address).await? {
        Outcome::Shown(shown) => {
            let resource = shown.resource.in_form(JSON_FEED_TYPE, 'j', to_json_feed);
            // Its links for push lead to Atom.
            let headers = shown.headers.into_iter().filter(|(name, _)| *name != LINK);
            Ok(Outcome::Shown(Box::new(Shown {
                headers: headers.collect(),
                resource,
                ..*shown
            })))
        }
        // A document of ours was renamed: its redirect names the new one.
        Outcome::Answer(mut answer) => {
            let location = answer
                .headers()
                .get(LOCATION)
                .and_then(|to| to.to_str().ok());
            let location = location.and_then(|to| to.strip_suffix(".atom"));
            if let Some(location) = location.map(|to| header_value(&format!("{to}.json"))) {
                answer.headers_mut().insert(LOCATION, location);
            }
            Ok(Outcome::Answer(answer))
        }
        waited @ Outcome::Waited(_) => Ok(waited),
    }
}

/// Returns a document of ours as JSON Feed.
fn to_json_feed(atom: Bytes) -> Result<Bytes, ReadError> {
    // Links of documents are relative to their `self`.
    let anywhere = Url::parse("http://localhost/feeds/feed/1.atom").ok();
    let document = anywhere.and_then(|url| Document::read(atom, &url).ok());
    let json = document.and_then(|document| json_feed(&document));
    let damaged = || ReadError::Failed("a document is none of ours".into());
    json.map(Bytes::from).ok_or_else(damaged)
}

/// Looks a feed up for a reader that waits, with the rights that it has now.
pub(super) async fn seen_now(site: &Site, exchange: &Exchange<'_>) -> Result<Seen, Problem> {
    let sight = || exchange.rules.now().sight(exchange.headers);
    seen_with(site, exchange, sight).await
}

/// Returns the recent document as a reader that waits sees it now.
pub(super) async fn recent_now(site: &Site, exchange: &Exchange<'_>) -> Result<Shown, Problem> {
    let seen = seen_now(site, exchange).await?;
    let (documents, feed) = (&site.shelf.documents, exchange.params.feed());
    let mut resource = documents.at_once(feed, &Address::Recent);
    if resource.is_none() {
        let (documents, feed) = (Arc::clone(documents), feed.clone());
        resource = off_thread(move || documents.resource(&feed, &Address::Recent)).await?;
    }
    let resource = resource.ok_or_else(|| absent(feed))?;
    let seen = match seen.visibility {
        Visibility::Public => seen,
        // As in `look_again`.
        Visibility::Private => seen_now(site, exchange).await?,
    };
    let is_timeline = seen.is_timeline;
    let mut shown = shown(site, resource, seen);
    link(&mut shown, is_timeline);
    Ok(shown)
}

/// Shows a stretch of a feed by place.
async fn page(site: &Site, exchange: Exchange<'_>, form: Form) -> Result<Outcome, Problem> {
    let wanted = wanted_page(exchange.query())?;
    let seen = seen(site, &exchange).await?;
    let feed = exchange.params.feed().clone();
    let mut room = site.pages.one().await?;
    let documents = Arc::clone(&site.shelf.documents);
    let name = feed.clone();
    let found = off_thread(move || {
        let Some(state) = documents.snapshot(&name)? else {
            return Ok(None);
        };
        let (log, feed) = (&**documents.log(), (state.head.feed, state.head.updated));
        Ok(Some(pages::page(log, feed, &state.settings, wanted, form)?))
    });
    let bytes = found.await?.ok_or_else(|| absent(&feed))?;
    let seen = look_again(site, &exchange, seen).await?;
    room.shrink_to(bytes.len());
    // A slow reader holds a page for long.
    let bytes = Bytes::from_owner(HeldPage { bytes, _room: room });
    let media_type = match form {
        Form::Atom => FEED_TYPE,
        Form::Json => "application/json",
    };
    let resource = Resource::of_bytes(media_type, None, Validity::Once, bytes);
    Ok(Outcome::Shown(Box::new(shown(site, resource, seen))))
}

/// Memory of pages, shared by all requests: a page of small requests may have megabytes, and every reader has one of
/// their own.
#[derive(Debug)]
pub struct PageRoom(Arc<Semaphore>);

/// KiB of all pages on their way, and of one that is being made: its entries, and the document of them.
const PAGES_KIB_MAX: usize = 256 * 1024;
const PAGE_KIB_MAX: u32 = 32 * 1024;
/// Longest wait for other pages.
const PAGE_WAIT: Duration = Duration::from_secs(5);

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
    /// Releases the memory beyond the page's `bytes`.
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
fn wanted_page(query: &str) -> Result<Wanted, Problem> {
    let wrong = || {
        let detail = format!(
            "a page is asked for with limit= from -{PAGE_ENTRIES_MAX} to {PAGE_ENTRIES_MAX}, and anchor= as the links \
             of pages have it"
        );
        Problem::malformed(detail)
    };
    let (mut limit, mut anchor) = (None, None);
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
    Ok(Wanted { anchor, limit })
}

fn show(site: &Site, resource: Resource, seen: Seen, address: &Address) -> Outcome {
    let is_timeline = seen.is_timeline;
    let mut shown = shown(site, resource, seen);
    if *address == Address::Recent {
        link(&mut shown, is_timeline);
    }
    Outcome::Shown(Box::new(shown))
}

/// Adds the links of a recent document as a header field: the header of the document may be older than what they lead
/// to.
fn link(shown: &mut Shown, is_timeline: bool) {
    let mut add = |links| {
        let links = HeaderValue::from_static(links);
        shown.headers.push((LINK, links));
    };
    add(RECENT_LINKS);
    if !is_timeline {
        add(RATES_LINK);
    }
}

fn shown(site: &Site, resource: Resource, seen: Seen) -> Shown {
    Shown {
        policy: site.lifetimes.of(&resource, seen.visibility),
        resource,
        visibility: seen.visibility,
        headers: seen.announcement.into_iter().collect(),
        over: seen.over,
        depends_on_reader: false,
    }
}

/// Redirects to a document that a restoration has renamed: its predecessor links to the old name for ever. Caches
/// keep the redirect as long as the document, or they would lack it while the server is away.
async fn renamed(
    site: &Site,
    feed: FeedName,
    name: DocumentName,
    seen: Seen,
) -> Result<Outcome, Problem> {
    let documents = Arc::clone(&site.shelf.documents);
    let absent = absent(&feed);
    let found = off_thread(move || {
        let Some(renamed) = documents.renamed(&feed, name)? else {
            return Ok(None);
        };
        let resource = documents.resource(&feed, &Address::Document(renamed))?;
        Ok(resource.map(|resource| (renamed, resource)))
    });
    let (renamed, resource) = found.await?.ok_or(absent)?;
    let mut answer = plain(StatusCode::TEMPORARY_REDIRECT, "");
    let policy = site.lifetimes.of(&resource, seen.visibility);
    let headers = answer.headers_mut();
    // Relative, because both names are in the same folder, wherever a proxy shows it.
    headers.insert(LOCATION, header_value(&renamed.to_string()));
    headers.insert(CACHE_CONTROL, policy);
    headers.extend(seen.announcement);
    headers.extend(for_sites(seen.visibility));
    Ok(Outcome::Answer(answer))
}
