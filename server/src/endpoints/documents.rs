//! Handlers of a feed's documents, entries and index, and of the redirects to them.
//!
//! Shell: the log, and the files of documents.

use std::sync::Arc;

use bytes::Bytes;
use hyper::{
    StatusCode,
    header::{CACHE_CONTROL, HeaderValue, LINK, LOCATION},
};
use simplefeed_core::{
    feed::{DocumentName, EpochNumber, FeedName},
    header::RECENT,
    json_feed::{JSON_FEED_TYPE, json_feed},
    reader::Document,
};
use simplefeed_http::{
    answers::{header_value, plain},
    endpoint::{Exchange, Outcome, Representation},
    problem::Problem,
    reply::for_sites,
};
use simplefeed_resource::{Resource, Visibility, read_error::ReadError};
use simplefeed_views::documents::reading::Address;
use url::Url;

use super::{
    LINKS_OF_FEEDS, off_thread,
    shelf::Shelf,
    shelf::{FeedSight, absent, look_again, seen, seen_now},
};

/// Links of a recent document, for push.
pub(super) const RECENT_LINKS: &str = "<recent.atom?wait=15>; rel=\"urn:simplefeed:1#wait\", \
    <events?content=none>; rel=\"urn:simplefeed:1#events\"";

/// Redirects to the feed's recent document. The status is 307, because some feed readers do not
/// follow a 303.
pub(super) async fn redirect(shelf: &Shelf, exchange: Exchange<'_>) -> Result<Outcome, Problem> {
    let seen = seen(shelf, &exchange).await?;
    let mut answer = plain(StatusCode::TEMPORARY_REDIRECT, "");
    // The location is relative, so that the redirect is right wherever a proxy shows the server.
    let location = format!("{}/{RECENT}", exchange.params.feed());
    let headers = answer.headers_mut();
    headers.insert(LOCATION, header_value(&location));
    headers.extend(seen.announcement);
    headers.extend(for_sites(seen.visibility));
    Ok(Outcome::Answer(answer))
}

/// Redirects to the page of an entry, or to the entry's document where there are no pages.
pub(super) async fn entry(
    (shelf, has_pages): (&Shelf, bool),
    exchange: Exchange<'_>,
) -> Result<Outcome, Problem> {
    let feed = exchange.params.feed();
    let number = exchange.params.number().ok_or_else(|| absent(feed))?;
    // The location is relative to `/feeds/{feed}/entries/`, so that the redirect is right wherever
    // a proxy shows the server.
    let redirect = |location: String, visibility| {
        let mut answer = plain(StatusCode::TEMPORARY_REDIRECT, "");
        let headers = answer.headers_mut();
        headers.insert(LOCATION, header_value(&location));
        headers.extend(for_sites(visibility));
        Ok(Outcome::Answer(answer))
    };
    if has_pages {
        // The feed is not looked up here. The cookie of a signed-in reader counts at the page, and
        // not here, so the page decides whether this reader may see the entry.
        let page = format!("../../../ui/feeds/{feed}/{number}");
        return redirect(page, Visibility::Public);
    }
    let seen = seen(shelf, &exchange).await?;
    redirect(format!("{number}.atom"), seen.visibility)
}

/// Shows the resource at an address below a feed.
pub(super) async fn read(
    shelf: &Shelf,
    exchange: Exchange<'_>,
    address: fn(Option<EpochNumber>) -> Option<Address>,
) -> Result<Outcome, Problem> {
    let seen = seen(shelf, &exchange).await?;
    let feed = exchange.params.feed().clone();
    let Some(address) = address(exchange.params.number()) else {
        return Err(absent(&feed));
    };
    // Only a lookup that may read from the disk leaves this thread.
    if let Some(resource) = shelf.documents.at_once(&feed, &address) {
        let seen = look_again(shelf, &exchange, seen).await?;
        return Ok(show_resource(shelf, resource, seen, &address));
    }
    let documents = Arc::clone(&shelf.documents);
    let wanted = (feed.clone(), address.clone());
    let found = off_thread(move || documents.resource(&wanted.0, &wanted.1)).await?;
    let seen = look_again(shelf, &exchange, seen).await?;
    match (found, address) {
        (Some(resource), address) => Ok(show_resource(shelf, resource, seen, &address)),
        (None, Address::Document(name)) => redirect_renamed(shelf, feed, name, seen).await,
        (None, _) => Err(absent(&feed)),
    }
}

/// Shows a document as JSON Feed.
pub(super) async fn json(
    shelf: &Shelf,
    exchange: Exchange<'_>,
    address: fn(Option<EpochNumber>) -> Option<Address>,
) -> Result<Outcome, Problem> {
    match read(shelf, exchange, address).await? {
        Outcome::Shown(shown) => {
            let resource = shown.resource.in_form(JSON_FEED_TYPE, 'j', to_json_feed);
            // The `Link` fields are left out, because the links for push lead to Atom.
            let headers = shown.headers.into_iter().filter(|(name, _)| *name != LINK);
            Ok(Outcome::Shown(Box::new(Representation {
                headers: headers.collect(),
                resource,
                ..*shown
            })))
        }
        // The document was renamed: the redirect must lead to the JSON form of the new name.
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
    // Any URL will do: `self` is absolute in documents of ours, and other links are relative to
    // `self`.
    let anywhere = Url::parse("http://localhost/feeds/feed/1.atom").ok();
    let document = anywhere.and_then(|url| Document::read(atom, &url).ok());
    let json = document.and_then(|document| json_feed(&document));
    let damaged = || ReadError::Failed("a document is none of ours".into());
    json.map(Bytes::from).ok_or_else(damaged)
}

/// Returns the recent document as a reader that waits sees that document now.
pub(super) async fn recent_now(
    shelf: &Shelf,
    exchange: &Exchange<'_>,
) -> Result<Representation, Problem> {
    let seen = seen_now(shelf, exchange).await?;
    let (documents, feed) = (&shelf.documents, exchange.params.feed());
    let mut resource = documents.at_once(feed, &Address::Recent);
    if resource.is_none() {
        let (documents, feed) = (Arc::clone(documents), feed.clone());
        resource = off_thread(move || documents.resource(&feed, &Address::Recent)).await?;
    }
    let resource = resource.ok_or_else(|| absent(feed))?;
    let seen = match seen.visibility {
        Visibility::Public => seen,
        // The right is checked once more, as in `look_again`.
        Visibility::Private => seen_now(shelf, exchange).await?,
    };
    let is_timeline = seen.is_timeline;
    let mut shown = shown(shelf, resource, seen);
    add_links(&mut shown, is_timeline);
    Ok(shown)
}

fn show_resource(shelf: &Shelf, resource: Resource, seen: FeedSight, address: &Address) -> Outcome {
    let is_timeline = seen.is_timeline;
    let mut shown = shown(shelf, resource, seen);
    if *address == Address::Recent {
        add_links(&mut shown, is_timeline);
    }
    Outcome::Shown(Box::new(shown))
}

/// Adds the links of a recent document as a header field. The document itself may lack them: its
/// header may be older than the resources behind these links.
fn add_links(shown: &mut Representation, is_timeline: bool) {
    let add = |links| {
        let links = HeaderValue::from_static(links);
        shown.headers.push((LINK, links));
    };
    let links = LINKS_OF_FEEDS.iter().filter(|_| !is_timeline);
    [RECENT_LINKS].iter().chain(links).copied().for_each(add);
}

pub(super) fn shown(shelf: &Shelf, resource: Resource, seen: FeedSight) -> Representation {
    Representation {
        policy: shelf.lifetimes.of(&resource, seen.visibility),
        resource,
        visibility: seen.visibility,
        headers: seen.announcement.into_iter().collect(),
        over: seen.over,
        depends_on_reader: false,
    }
}

/// Redirects to a document that a restoration has renamed, because the predecessor links to the old
/// name for ever. Caches may keep the redirect as long as the document: without the redirect, they
/// could not serve the document while the server is away.
async fn redirect_renamed(
    shelf: &Shelf,
    feed: FeedName,
    name: DocumentName,
    seen: FeedSight,
) -> Result<Outcome, Problem> {
    let documents = Arc::clone(&shelf.documents);
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
    let policy = shelf.lifetimes.of(&resource, seen.visibility);
    let headers = answer.headers_mut();
    // The location is relative, because both names are in the same folder, wherever a proxy shows
    // that folder.
    headers.insert(LOCATION, header_value(&renamed.to_string()));
    headers.insert(CACHE_CONTROL, policy);
    headers.extend(seen.announcement);
    headers.extend(for_sites(seen.visibility));
    Ok(Outcome::Answer(answer))
}
