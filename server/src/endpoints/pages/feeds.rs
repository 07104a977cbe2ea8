//! The page of all feeds.

use std::sync::Arc;

use askama::Template;
use simplefeed_core::feed::{FeedName, FeedPattern};

use super::{Reading, Top, moment::Moment, rendered, shown, value};
use crate::{
    endpoints::{
        Site,
        catalogue::{Search, search},
    },
    http::{
        endpoint::{Exchange, Outcome},
        pipeline::off_thread,
        problem::Problem,
    },
};

/// Feeds of a page.
const ROWS_MAX: usize = 100;
/// Longest text that is searched for, in bytes.
const TEXT_BYTES_MAX: usize = 512;

#[derive(Template)]
#[template(path = "feeds.html")]
struct FeedsPage {
    top: Top,
    /// Number of all feeds, for a reader who may see them all.
    count: Option<u64>,
    newest: Option<Moment>,
    text: String,
    rows: Vec<Row>,
    after: Option<FeedName>,
    is_limited: bool,
    url: String,
    first: String,
    next: Option<String>,
}

struct Row {
    name: String,
    title: String,
    entries: u64,
    newest: Option<Moment>,
    is_timeline: bool,
    is_closed: bool,
}

/// Shows the feeds that the reader may see.
pub(super) async fn show(site: &Site, exchange: Exchange<'_>) -> Result<Outcome, Problem> {
    let text = value(exchange.query(), "q").unwrap_or_default();
    if text.len() > TEXT_BYTES_MAX {
        return Err(Problem::malformed("the text to search for is too long"));
    }
    let after = value(exchange.query(), "after").filter(|after| !after.is_empty());
    let parse = |after: String| {
        FeedName::parse(&after).ok_or_else(|| Problem::malformed("after= names no feed"))
    };
    let after = after.map(parse).transpose()?;
    let sight = exchange.access.sight(exchange.headers);
    let is_limited = !sight.covers(&FeedPattern::all());
    let (reading, open) = (Reading::of(site), Arc::clone(&site.open));
    let (lower, behind) = (text.to_lowercase(), after.clone());
    let _turn = site.searches.acquire().await;
    let found = off_thread(move || {
        let wanted = Search {
            after: behind.as_ref(),
            text: &lower,
        };
        let log = &**reading.documents.log();
        let found = search(
            log,
            (&reading.timelines, &open),
            &wanted,
            &sight,
            ROWS_MAX + 1,
        )?;
        let rows = found.feeds.into_iter().map(|(head, settings)| Row {
            name: settings.name.to_string(),
            title: settings.title().into(),
            entries: head.next.0,
            newest: (head.next.0 > 0).then(|| Moment::of(head.updated, reading.now)),
            is_timeline: settings.is_timeline(),
            is_closed: settings.is_closed(),
        });
        Ok((rows.collect::<Vec<Row>>(), found.more_behind))
    });
    let (mut rows, more_behind) = found.await?;
    // The last feed shown, and only if a further one was found: the name of a hidden feed must not leak.
    let is_full = rows.len() > ROWS_MAX;
    rows.truncate(ROWS_MAX);
    let last = rows
        .last()
        .map(|last| last.name.clone())
        .filter(|_| is_full);
    let next = last.or(more_behind.map(|name| name.to_string()));
    let head = site.log.head();
    let page = FeedsPage {
        top: Top::of(&exchange, 0),
        count: Some(head.feeds).filter(|_| !is_limited),
        newest: (head.number.0 > 0 && !is_limited).then(|| Moment::of(head.last, (site.clock)())),
        first: query(&text, None),
        next: next.map(|after| query(&text, Some(&after))),
        rows,
        text,
        after,
        is_limited,
        url: site.public_url.clone(),
    };
    Ok(shown(rendered(&page)?))
}

/// Returns the query of a page behind a feed.
fn query(text: &str, after: Option<&str>) -> String {
    let mut query = url::form_urlencoded::Serializer::new(String::new());
    if !text.is_empty() {
        query.append_pair("q", text);
    }
    if let Some(after) = after {
        query.append_pair("after", after);
    }
    format!("?{}", query.finish())
}
