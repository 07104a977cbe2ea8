//! The page of all feeds.
//!
//! Shell: the log, the counts, the clock.

use std::sync::Arc;

use askama::Template;
use simplefeed_core::{
    feed::{FeedName, FeedPattern},
    plan::FeedHead,
    rates::Unit,
    settings::Settings,
};
use simplefeed_http::{
    endpoint::{Exchange, Outcome},
    problem::Problem,
};
use simplefeed_log::{LogError, settings_of};
use simplefeed_views::catalogue::CatalogueRow as Listed;

use super::{
    PageParts, PageReading, Top, field_value, logged_none, moment::Moment, plot::Spark,
    private_page, ranking::ListOrder, render_page,
};
use crate::endpoints::{
    catalogue::{Search, search},
    off_thread,
};

/// Maximum number of feeds on a page.
const ROWS_MAX: usize = 100;
/// Longest text that is searched for, in bytes.
const TEXT_BYTES_MAX: usize = 512;
/// Maximum number of feeds that a request for an order may skip.
const SKIPPED_MAX: usize = 10_000;

#[derive(Template)]
#[template(path = "feeds.html")]
struct FeedsPage {
    top: Top,
    /// Number of all feeds without the timelines, for a reader who may see all feeds.
    count: Option<u64>,
    newest: Option<Moment>,
    text: String,
    order: ListOrder,
    /// Orders, each with the query that asks for this order.
    orders: [(ListOrder, String); 3],
    rows: Vec<FeedRow>,
    is_first: bool,
    is_limited: bool,
    url: String,
    first: String,
    next: Option<String>,
}

struct FeedRow {
    name: String,
    title: String,
    entries: u64,
    newest: Option<Moment>,
    is_timeline: bool,
    is_closed: bool,
    day: Option<Spark>,
}

/// Part of the list that a request wants.
struct ListQuery {
    text: String,
    order: ListOrder,
    /// Feed behind which the part begins, in the order by name.
    after: Option<FeedName>,
    /// Number of feeds before the part, in other orders.
    skip: usize,
}

fn parse_query(query: &str) -> Result<ListQuery, Problem> {
    let text = field_value(query, "q").unwrap_or_default();
    if text.len() > TEXT_BYTES_MAX {
        return Err(Problem::malformed("the text to search for is too long"));
    }
    let after = field_value(query, "after").filter(|after| !after.is_empty());
    let parse = |after: String| {
        FeedName::parse(&after).ok_or_else(|| Problem::malformed("after= names no feed"))
    };
    let order = field_value(query, "order").unwrap_or_default();
    let no_order = || Problem::malformed("order= is name, busiest or newest");
    let skip = field_value(query, "skip").and_then(|skip| skip.parse().ok());
    Ok(ListQuery {
        text,
        order: ListOrder::parse(&order).ok_or_else(no_order)?,
        after: after.map(parse).transpose()?,
        skip: skip.unwrap_or(0).min(SKIPPED_MAX),
    })
}

/// Shows the feeds that the reader may see.
pub(super) async fn show(parts: &PageParts, exchange: Exchange<'_>) -> Result<Outcome, Problem> {
    let ListQuery {
        text,
        order,
        after,
        skip,
    } = parse_query(exchange.query())?;
    let sight = exchange.access.sight(exchange.headers);
    let is_limited = !sight.covers(&FeedPattern::all());
    let reading = PageReading::of_parts(parts);
    let (lower, behind) = (text.to_lowercase(), after.clone());
    // A search may look at very many names, so only few searches run at the same time.
    let turn = Arc::clone(&parts.searches).acquire_owned().await;
    let (ranking, log) = (Arc::clone(&parts.ranking), Arc::clone(&parts.shelf.log));
    let found = off_thread(move || {
        // The work holds the turn, because the work goes on after its reader has gone.
        let _turn = turn;
        let wanted = Search {
            after: behind.as_ref(),
            text: &lower,
        };
        let (feeds, more_behind) = if order == ListOrder::Name {
            let shelf = (&*reading.shelf.catalogue, &*reading.shelf.timelines);
            let found = search(shelf, &wanted, &sight, ROWS_MAX + 1)?;
            (looked_up(&reading, &found.feeds)?, found.more_behind)
        } else {
            let wanted = (order, &*lower);
            (
                ranking.list(&reading, &*log, wanted, &sight, (skip, ROWS_MAX + 1))?,
                None,
            )
        };
        Ok((feed_rows(&reading, feeds), more_behind))
    });
    let (mut rows, more_behind) = found.await?;
    // The link to the next page names the last feed that is shown, and is there only if a further
    // feed was found: the name of a hidden feed must not leak.
    let is_full = rows.len() > ROWS_MAX;
    rows.truncate(ROWS_MAX);
    let last = rows
        .last()
        .map(|last| last.name.clone())
        .filter(|_| is_full);
    let next = match order {
        ListOrder::Name => last
            .or(more_behind.map(|name| name.to_string()))
            .map(|after| ("after", after)),
        _ => last.map(|_| ("skip", (skip + ROWS_MAX).to_string())),
    };
    let head = parts.shelf.log.head();
    let page = FeedsPage {
        top: Top::of_exchange(&exchange, 0),
        // The number and the newest entry of all feeds would tell a limited reader about feeds that
        // this reader may not see.
        count: Some(head.feeds).filter(|_| !is_limited),
        newest: (head.number.0 > 0 && !is_limited)
            .then(|| Moment::of(head.last, parts.shelf.clock.now())),
        first: page_query(&text, None, order),
        is_first: after.is_none() && skip == 0,
        next: next.map(|(name, value)| page_query(&text, Some((name, &value)), order)),
        orders: ListOrder::ALL.map(|order| (order, page_query(&text, None, order))),
        order,
        rows,
        text,
        is_limited,
        url: parts.shelf.public_url.clone(),
    };
    Ok(private_page(render_page(&page)?))
}

/// Returns the heads and the settings of some feeds.
fn looked_up(
    reading: &PageReading,
    rows: &[Arc<Listed>],
) -> Result<Vec<(FeedHead, Settings)>, LogError> {
    let log = &**reading.shelf.documents.log();
    let mut feeds = vec![];
    for row in rows {
        if let Some(head) = log.feed(row.key)? {
            let settings = settings_of(log, row.key, head.revision)?;
            feeds.push((head, settings));
        }
    }
    Ok(feeds)
}

/// Returns the rows of some feeds.
fn feed_rows(reading: &PageReading, feeds: Vec<(FeedHead, Settings)>) -> Vec<FeedRow> {
    let hours = Spark::hours(reading.now);
    let keys: Vec<_> = feeds.iter().map(|(head, _)| head.feed).collect();
    // If a table is damaged, that is logged, and the page is shown without the small plots.
    let days = logged_none(reading.rates.read(&keys, Unit::Hour, hours.clone()));
    let mut days = days.into_iter().flat_map(|days| days.feeds);
    let rows = feeds.into_iter().map(|(head, settings)| FeedRow {
        name: settings.name.to_string(),
        title: settings.title().into(),
        entries: head.next.0,
        newest: (head.next.0 > 0).then(|| Moment::of(head.updated, reading.now)),
        is_timeline: settings.is_timeline(),
        is_closed: settings.is_closed(),
        day: days
            .next()
            .and_then(|rates| Spark::of(&rates, hours.clone())),
    });
    rows.collect()
}

/// Returns the query of the page that begins behind a feed, or behind a number of feeds.
fn page_query(text: &str, behind: Option<(&str, &str)>, order: ListOrder) -> String {
    let mut query = url::form_urlencoded::Serializer::new(String::new());
    if !text.is_empty() {
        query.append_pair("q", text);
    }
    if let Some((name, value)) = behind {
        query.append_pair(name, value);
    }
    if order != ListOrder::Name {
        query.append_pair("order", order.text());
    }
    format!("?{}", query.finish())
}
