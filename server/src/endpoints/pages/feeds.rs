//! The page of all feeds.

use std::sync::Arc;

use askama::Template;
use simplefeed_core::{
    feed::{FeedName, FeedPattern},
    plan::FeedHead,
    rates::Unit,
    settings::Settings,
};

use super::{Reading, Top, moment::Moment, plot::Spark, ranking::Order, rendered, shown, value};
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
    views::error::ViewError,
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
    order: Order,
    /// Query of each order.
    orders: [(Order, String); 3],
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
    day: Option<Spark>,
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
    let order = value(exchange.query(), "order").unwrap_or_default();
    let no_order = || Problem::malformed("order= is name, busiest or newest");
    let order = Order::parse(&order).ok_or_else(no_order)?;
    let sight = exchange.access.sight(exchange.headers);
    let is_limited = !sight.covers(&FeedPattern::all());
    let (reading, open) = (Reading::of(site), Arc::clone(&site.open));
    let (lower, behind) = (text.to_lowercase(), after.clone());
    let _turn = site.searches.acquire().await;
    let (ranking, log) = (Arc::clone(&site.ranking), Arc::clone(&site.log));
    let found = off_thread(move || {
        let wanted = Search {
            after: behind.as_ref(),
            text: &lower,
        };
        let (feeds, more_behind) = if order == Order::Name {
            let series = &**reading.documents.log();
            let shelf = (&*reading.timelines, &*open);
            let found = search(series, shelf, &wanted, &sight, ROWS_MAX + 1)?;
            (found.feeds, found.more_behind)
        } else {
            let wanted = (order, &*lower);
            (
                ranking.list(&reading, &*log, wanted, &sight, ROWS_MAX)?,
                None,
            )
        };
        Ok((rows(&reading, feeds)?, more_behind))
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
        first: query(&text, None, Order::Name),
        next: next.map(|after| query(&text, Some(&after), Order::Name)),
        orders: Order::ALL.map(|order| (order, query(&text, None, order))),
        order,
        rows,
        text,
        after,
        is_limited,
        url: site.public_url.clone(),
    };
    Ok(shown(rendered(&page)?))
}

/// Returns the rows of some feeds.
fn rows(reading: &Reading, feeds: Vec<(FeedHead, Settings)>) -> Result<Vec<Row>, ViewError> {
    let hours = Spark::hours(reading.now);
    let keys: Vec<_> = feeds.iter().map(|(head, _)| head.feed).collect();
    let days = reading.rates.read(&keys, Unit::Hour, hours.clone())?;
    let mut days = days.into_iter().flat_map(|days| days.feeds);
    let rows = feeds.into_iter().map(|(head, settings)| Row {
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
    Ok(rows.collect())
}

/// Returns the query of a page behind a feed.
fn query(text: &str, after: Option<&str>, order: Order) -> String {
    let mut query = url::form_urlencoded::Serializer::new(String::new());
    if !text.is_empty() {
        query.append_pair("q", text);
    }
    if let Some(after) = after {
        query.append_pair("after", after);
    }
    if order != Order::Name {
        query.append_pair("order", order.text());
    }
    format!("?{}", query.finish())
}
