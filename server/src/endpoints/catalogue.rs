//! The endpoint of the catalogue: the feeds of a server, a thousand at a time.

use std::sync::Arc;

use bytes::Bytes;
use hyper::{Method, header::AUTHORIZATION};
use serde::Serialize;
use simplefeed_core::{
    feed::FeedName, header::RECENT, limits::CATALOGUE_FEEDS_MAX, plan::FeedHead, settings::Settings,
};

use super::{Site, may_see};
use crate::{
    access::Sight,
    http::{
        endpoint::{Endpoint, Exchange, Needs, Outcome, Query, Shown, Verb},
        pipeline::off_thread,
        problem::Problem,
    },
    log::{LogError, Series, settings_of},
    resource::{Resource, Validity, Visibility},
    views::{catalogue::OpenFeeds, timelines::Timelines},
};

/// Path of the catalogue.
pub const ENDPOINTS: &[Endpoint<Site>] = &[Endpoint {
    path: "/feeds",
    label: "catalogue",
    query: Query::Named,
    methods: &[Verb {
        method: Method::GET,
        needs: Needs::Sight,
        handle: |site, exchange| Box::pin(catalogue(site, exchange)),
    }],
}];

/// Feeds to look up: one more than a page shows. The link to the next page names the last feed shown, because
/// the name of a hidden feed must not leak.
const SHOWN_AND_ONE: usize = CATALOGUE_FEEDS_MAX + 1;

/// Names that a search for a text looks at, and at a time.
const SEARCHED_MAX: usize = 100_000;
const SEARCHED_TOGETHER: usize = 1_000;

#[derive(Serialize)]
struct Catalogue {
    feeds: Vec<CatalogueFeed>,
    next: Option<String>,
}

#[derive(Serialize)]
struct CatalogueFeed {
    #[serde(skip_serializing_if = "Option::is_none")]
    kind: Option<&'static str>,
    name: String,
    id: String,
    title: String,
    entries: u64,
    href: String,
}

/// Lists the feeds that the caller may see.
async fn catalogue(site: &Site, exchange: Exchange<'_>) -> Result<Outcome, Problem> {
    let after = after(exchange.query())?;
    // A request with a token may list closed feeds, so no shared cache may keep its answer.
    let has_token = exchange.headers.contains_key(AUTHORIZATION);
    let sight = exchange.access.sight(exchange.headers);
    let over = site.left_behind();
    let (documents, open) = (Arc::clone(&site.documents), Arc::clone(&site.open));
    let timelines = Arc::clone(&site.timelines);
    let public_url = site.public_url.clone();
    let listing = off_thread(move || {
        let log = &**documents.log();
        Ok(list(
            log,
            &timelines,
            &open,
            after.as_ref(),
            &public_url,
            &sight,
        )?)
    });
    let (listing, lists_closed) = listing.await?;
    // Where no token is needed, the listing may show closed feeds, too.
    let visibility = if has_token || lists_closed {
        Visibility::Private
    } else {
        Visibility::Public
    };
    let resource = Resource::of_bytes("application/json", None, Validity::Once, listing);
    Ok(Outcome::Shown(Box::new(Shown {
        policy: site.lifetimes.of(&resource, visibility),
        resource,
        visibility,
        headers: vec![],
        over,
        depends_on_reader: true,
    })))
}

/// Returns the feed behind which a query asks to begin.
pub(super) fn after(query: &str) -> Result<Option<FeedName>, Problem> {
    match query.strip_prefix("after=") {
        None if query.is_empty() => Ok(None),
        after => match after.and_then(FeedName::parse) {
            Some(name) => Ok(Some(name)),
            None => Err(Problem::malformed(
                "the only query is after= with the name of a feed",
            )),
        },
    }
}

/// Returns the part of the catalogue behind a feed, as JSON: open feeds, and the closed feeds in `sight`. Returns, too,
/// whether any of those listed is closed. Feeds that are not shown cost nothing.
fn list(
    log: &dyn Series,
    timelines: &Timelines,
    open: &OpenFeeds,
    after: Option<&FeedName>,
    public_url: &str,
    sight: &Sight,
) -> Result<(Bytes, bool), LogError> {
    let wanted = Search { after, text: "" };
    let found = search(log, (timelines, open), &wanted, sight, SHOWN_AND_ONE)?;
    let lists_closed = found.feeds.iter().any(|(_, settings)| settings.is_closed());
    let feeds = found.feeds.iter();
    let feeds = feeds.map(|(head, settings)| listed(head, settings, public_url));
    Ok((page(feeds.collect(), public_url), lists_closed))
}

/// Feeds that a reader looks for.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Search<'s> {
    /// Name behind which they begin.
    pub(super) after: Option<&'s FeedName>,
    /// Part of the name or of the title, in lower case. All have the empty text.
    pub(super) text: &'s str,
}

/// Feeds that were found.
#[derive(Debug)]
pub(super) struct Found {
    /// Their ends and settings, by name.
    pub(super) feeds: Vec<(FeedHead, Settings)>,
    /// Last name that was looked at, if the search ended before the last feed of all.
    pub(super) more_behind: Option<FeedName>,
}

/// Returns at most `max` feeds that a reader looks for and may see, by name. A search for a text looks at so many names
/// and no more.
///
/// # Errors
///
/// Returns why the log cannot be read.
pub(super) fn search(
    log: &dyn Series,
    (timelines, open): (&Timelines, &OpenFeeds),
    wanted: &Search<'_>,
    sight: &Sight,
    max: usize,
) -> Result<Found, LogError> {
    let mut feeds = vec![];
    let mut after = wanted.after.cloned();
    let mut looked = 0;
    while feeds.len() < max {
        // A part at a time, since the writer waits while one is looked at.
        let part = if wanted.text.is_empty() {
            max - feeds.len()
        } else if looked >= SEARCHED_MAX {
            let more_behind = after;
            return Ok(Found { feeds, more_behind });
        } else {
            SEARCHED_TOGETHER
        };
        looked += part;
        let names = open.names(log, after.as_ref(), sight.patterns(), part, wanted.text)?;
        if names.end.is_none() {
            break;
        }
        after = names.end;
        for name in names.matching {
            // Read anew, because the names in memory have no counts.
            let Some(head) = log.named(&name)? else {
                continue;
            };
            let settings = settings_of(log, head.feed, head.revision)?;
            if may_see(timelines, head.feed, &settings, sight)? {
                feeds.push((head, settings));
            }
            if feeds.len() == max {
                break;
            }
        }
    }
    Ok(Found {
        feeds,
        more_behind: None,
    })
}

fn listed(head: &FeedHead, settings: &Settings, public_url: &str) -> CatalogueFeed {
    CatalogueFeed {
        kind: settings.is_timeline().then_some("timeline"),
        name: settings.name.to_string(),
        id: settings.id.to_string(),
        title: settings.title().into(),
        entries: head.next.0,
        href: format!("{public_url}/feeds/{}/{RECENT}", settings.name),
    }
}

fn page(mut feeds: Vec<CatalogueFeed>, public_url: &str) -> Bytes {
    let more = feeds.len() > CATALOGUE_FEEDS_MAX;
    feeds.truncate(CATALOGUE_FEEDS_MAX);
    // The last feed shown, and only if a further one was found.
    let last = feeds.last().filter(|_| more);
    let next = last.map(|last| format!("{public_url}/feeds?after={}", last.name));
    let body = serde_json::to_vec(&Catalogue { feeds, next });
    body.expect("a catalogue has a JSON form").into()
}
