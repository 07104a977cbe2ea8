//! The catalogue: the feeds of a server, a thousand at a time.
//!
//! Pure, but for reading the log.

use bytes::Bytes;
use serde::Serialize;
use simplefeed_core::{feed::FeedName, header::RECENT, limits::CATALOGUE_FEEDS_MAX};

use super::problem::Problem;
use crate::log::{EntryLog, LogError, settings_of};

#[derive(Serialize)]
struct Catalogue {
    feeds: Vec<CatalogueFeed>,
    next: Option<String>,
}

#[derive(Serialize)]
struct CatalogueFeed {
    name: String,
    id: String,
    title: String,
    entries: u64,
    href: String,
}

/// Returns the feed that a query asks to begin behind.
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

/// Returns the part of the catalogue behind a feed, as JSON; `shows` says whether one that is closed is
/// shown.
pub(super) fn list(
    log: &dyn EntryLog,
    mut after: Option<FeedName>,
    public_url: &str,
    shows: impl Fn(&FeedName) -> bool,
) -> Result<Bytes, LogError> {
    let mut feeds: Vec<CatalogueFeed> = vec![];
    // One more than is shown: that there are more is told by the last one shown, for the others may
    // be closed to who asks.
    while feeds.len() <= CATALOGUE_FEEDS_MAX {
        let found = log.feeds(after.as_ref(), CATALOGUE_FEEDS_MAX)?;
        let Some((last, _)) = found.last() else { break };
        after = Some(last.clone());
        for (name, head) in &found {
            let settings = settings_of(log, head.feed, head.revision)?;
            if settings.is_closed() && !shows(name) {
                continue;
            }
            feeds.push(CatalogueFeed {
                name: name.to_string(),
                id: settings.id.to_string(),
                title: settings.title().into(),
                entries: head.next.0,
                href: format!("{public_url}/feeds/{name}/{RECENT}"),
            });
        }
    }
    let more = feeds.len() > CATALOGUE_FEEDS_MAX;
    feeds.truncate(CATALOGUE_FEEDS_MAX);
    let last = feeds.last().filter(|_| more);
    let next = last.map(|last| format!("{public_url}/feeds?after={}", last.name));
    let body = serde_json::to_vec(&Catalogue { feeds, next });
    Ok(body.expect("a catalogue has a JSON form").into())
}
