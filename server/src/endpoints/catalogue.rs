//! The endpoint of the catalogue: the feeds of a server, a thousand at a time.
//!
//! Shell: the catalogue in memory, and the log.

use std::{fmt, sync::Arc};

use hyper::{Method, header::AUTHORIZATION};
use serde::{Serialize, Serializer};
use simplefeed_core::{
    feed::{FeedId, FeedName},
    header::RECENT,
    limits::CATALOGUE_FEEDS_MAX,
    sight::Sight,
};
use simplefeed_http::{
    endpoint::{Endpoint, Exchange, Needs, Outcome, Query, Representation, Verb},
    problem::Problem,
};
use simplefeed_log::LogError;
use simplefeed_resource::{Resource, Validity, Visibility};
use simplefeed_views::{
    catalogue::{Catalogue, CatalogueRow},
    timelines::Timelines,
};

use super::{Site, may_see_row, off_thread, shelf::Shelf};

/// Path of the catalogue.
pub(crate) const ENDPOINTS: &[Endpoint<Site>] = &[Endpoint {
    path: "/feeds",
    label: "catalogue",
    query: Query::Named,
    methods: &[Verb {
        method: Method::GET,
        needs: Needs::Sight,
        handle: |site, exchange| Box::pin(show_catalogue(&site.shelf, exchange)),
    }],
}];

/// Feeds to look up: one more than a page shows, so that the page knows whether there is a next
/// one.
const SHOWN_AND_ONE: usize = CATALOGUE_FEEDS_MAX + 1;

/// Maximum number of names that a search for a text looks at.
const SEARCHED_MAX: usize = 100_000;
/// Names that a search for a text looks at in one part.
const SEARCHED_TOGETHER: usize = 1_000;

#[derive(Serialize)]
struct ListPage<'p> {
    feeds: Vec<ListedFeed<'p>>,
    next: Option<String>,
}

#[derive(Serialize)]
struct ListedFeed<'p> {
    #[serde(skip_serializing_if = "Option::is_none")]
    kind: Option<&'static str>,
    name: &'p str,
    id: FeedId,
    title: &'p str,
    #[serde(skip_serializing_if = "Option::is_none")]
    entries: Option<u64>,
    href: Href<'p>,
}

/// URL of a feed's recent document, below a public URL.
#[derive(Clone, Copy, Debug)]
pub(super) struct Href<'p> {
    pub(super) public_url: &'p str,
    pub(super) feed: &'p FeedName,
}

impl fmt::Display for Href<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/feeds/{}/{RECENT}", self.public_url, self.feed)
    }
}

impl Serialize for Href<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

/// Lists the feeds that the caller may see.
async fn show_catalogue(shelf: &Shelf, exchange: Exchange<'_>) -> Result<Outcome, Problem> {
    let after = after(exchange.query())?;
    // A request with a token may list closed feeds, so no shared cache may keep the answer.
    let has_token = exchange.headers.contains_key(AUTHORIZATION);
    let sight = exchange.access.sight(exchange.headers);
    // Read before the lookup, so that a commit that the lookup misses lies in a later second.
    let over = shelf.left_behind();
    let (catalogue, timelines) = (Arc::clone(&shelf.catalogue), Arc::clone(&shelf.timelines));
    let public_url = shelf.public_url.clone();
    // Read before the lookup: the rows that the lookup finds may be newer than the generation,
    // never older.
    let validity = Validity::Generation(shelf.catalogue.generation());
    let listing = off_thread(move || {
        let wanted = Search {
            after: after.as_ref(),
            text: "",
        };
        let found = search((&catalogue, &timelines), &wanted, &sight, SHOWN_AND_ONE)?;
        let lists_closed = found.feeds.iter().any(|row| row.is_closed);
        Ok((page_json(&found.feeds, &public_url), lists_closed))
    });
    let (listing, lists_closed) = listing.await?;
    // A listener that needs no token lists closed feeds, too.
    let visibility = if has_token || lists_closed {
        Visibility::Private
    } else {
        Visibility::Public
    };
    let resource = Resource::of_bytes("application/json", None, validity, listing.into());
    Ok(Outcome::Shown(Box::new(Representation {
        policy: shelf.lifetimes.of(&resource, visibility),
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

/// Search of a reader for feeds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Search<'s> {
    /// Name behind which the search begins.
    pub(super) after: Option<&'s FeedName>,
    /// Part of the name or of the title, in lower case. The empty text matches every feed.
    pub(super) text: &'s str,
}

/// Feeds that were found.
#[derive(Debug)]
pub(super) struct FeedMatches {
    /// Rows of the feeds, in the order of their names.
    pub(super) feeds: Vec<Arc<CatalogueRow>>,
    /// Last name that was looked at, if the search ended because it had looked at `SEARCHED_MAX`
    /// names.
    pub(super) more_behind: Option<FeedName>,
}

/// Returns at most `max` feeds that match a search and that the reader may see, in the order of
/// their names. A search for a text looks at `SEARCHED_MAX` names at most.
///
/// # Errors
///
/// Returns why the log cannot be read.
pub(super) fn search(
    (catalogue, timelines): (&Catalogue, &Timelines),
    wanted: &Search<'_>,
    sight: &Sight,
    max: usize,
) -> Result<FeedMatches, LogError> {
    let mut feeds = vec![];
    let mut after = wanted.after.cloned();
    let mut looked = 0;
    while feeds.len() < max {
        // The names are searched in parts, because the writer waits while a part is searched.
        let part = if wanted.text.is_empty() {
            max - feeds.len()
        } else if looked >= SEARCHED_MAX {
            let more_behind = after;
            return Ok(FeedMatches { feeds, more_behind });
        } else {
            SEARCHED_TOGETHER
        };
        looked += part;
        let found = catalogue.find(after.as_ref(), sight.patterns(), part, wanted.text)?;
        if found.end.is_none() {
            break;
        }
        after = found.end;
        for row in found.matching {
            if may_see_row(timelines, &row, sight)? {
                feeds.push(row);
            }
            if feeds.len() == max {
                break;
            }
        }
    }
    Ok(FeedMatches {
        feeds,
        more_behind: None,
    })
}

fn list_feed<'p>(row: &'p CatalogueRow, public_url: &'p str) -> ListedFeed<'p> {
    ListedFeed {
        kind: row.is_timeline.then_some("timeline"),
        name: row.name.as_str(),
        id: row.id(),
        title: row.title(),
        entries: row.entries(),
        href: Href {
            public_url,
            feed: &row.name,
        },
    }
}

fn page_json(rows: &[Arc<CatalogueRow>], public_url: &str) -> Vec<u8> {
    let (shown, has_more) = match rows.get(..CATALOGUE_FEEDS_MAX) {
        Some(shown) => (shown, rows.len() > shown.len()),
        None => (rows, false),
    };
    // The link names the last feed that is shown, and is there only if a further feed was found:
    // the name of a hidden feed must not leak.
    let last = shown.last().filter(|_| has_more);
    let page = ListPage {
        feeds: shown.iter().map(|row| list_feed(row, public_url)).collect(),
        next: last.map(|last| format!("{public_url}/feeds?after={}", last.name)),
    };
    serde_json::to_vec(&page).expect("a catalogue has a JSON form")
}
