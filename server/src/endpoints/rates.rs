//! The endpoint of rates: how many entries a feed got in each span of time.
//!
//! Shell: the counts of the view, the log, the clock.

use std::{ops::Range, sync::Arc};

use hyper::Method;
use simplefeed_core::{
    rates::{RATES_TYPE, Rates, Unit, span_text},
    timestamp::Timestamp,
};
use simplefeed_http::{
    endpoint::{Endpoint, Exchange, Needs, Outcome, Query, Representation, Verb},
    problem::Problem,
};
use simplefeed_resource::{Resource, Validity};
use simplefeed_views::{rates::RatesRead, rates::RatesView};

use super::{
    Site, off_thread,
    shelf::Shelf,
    shelf::{look_again, seen},
};

/// Handles for counts of entries.
#[derive(Debug)]
pub struct RateParts {
    /// Feeds, and the rights to them.
    pub shelf: Arc<Shelf>,
    /// Counts by spans of time.
    pub rates: Arc<RatesView>,
}

impl RateParts {
    /// Returns the handles for the endpoint of the view.
    pub(super) fn of(shelf: Arc<Shelf>, rates: Arc<RatesView>) -> Self {
        Self { shelf, rates }
    }
}

/// Link of a recent document to the rates.
pub(super) const LINK: &str = "<rates.json>; rel=\"urn:simplefeed:1#rates\"";

/// Row of the table of endpoints: entries of a feed, counted by spans of time.
pub(crate) const ENDPOINTS: &[Endpoint<Site>] = &[Endpoint {
    path: "/feeds/{feed}/rates.json",
    label: "rates",
    query: Query::Named,
    methods: &[Verb {
        method: Method::GET,
        needs: Needs::Sight,
        handle: |site, exchange| Box::pin(show_rates(&site.rates, exchange)),
    }],
}];

/// Meaning of a query.
#[derive(Clone, Debug, PartialEq, Eq)]
struct RateQuery {
    by: Unit,
    /// Numbers of the spans that begin in the requested time.
    spans: Range<i64>,
}

/// Returns the meaning of a query.
///
/// # Errors
///
/// A problem with status 400 if the query has no such meaning.
fn parse_query(query: &str) -> Result<RateQuery, Problem> {
    let (mut by, mut from, mut to) = (None, None, None);
    for (name, value) in url::form_urlencoded::parse(query.as_bytes()) {
        let no = |what: &str| Problem::malformed(format!("{name}={value} {what}"));
        // A plus sign that was not encoded arrives as a space.
        let instant = || {
            let instant = Timestamp::parse(&value.replace(' ', "+"));
            instant.ok_or_else(|| no("is no instant, such as 2026-11-26T00:00:00Z"))
        };
        let unit = || value.parse::<Unit>();
        let is_new = match &*name {
            "by" => by
                .replace(unit().map_err(|()| no("is none of minute, hour, day and month"))?)
                .is_none(),
            "from" => from.replace(instant()?).is_none(),
            "to" => to.replace(instant()?).is_none(),
            _ => return Err(no("is no query of rates: by=, from= and to= are")),
        };
        if !is_new {
            return Err(no("comes a second time"));
        }
    }
    let by = by.unwrap_or(Unit::Hour);
    // Returns the first span that begins at an instant or later.
    let first = |instant: Timestamp| {
        let number = by.number(instant);
        number + i64::from(by.start(number) < instant)
    };
    let start = from.map_or(i64::MIN, first);
    let end = to.map_or(i64::MAX, first);
    Ok(RateQuery {
        by,
        spans: start..end.max(start),
    })
}

/// Shows the rates of a feed.
async fn show_rates(parts: &RateParts, exchange: Exchange<'_>) -> Result<Outcome, Problem> {
    let wanted = parse_query(exchange.query())?;
    let seen = seen(&parts.shelf, &exchange).await?;
    if seen.is_timeline {
        return Err(Problem::not_found(format!(
            "{} is a timeline: its entries are counted in the feeds that it follows",
            exchange.params.feed()
        )));
    }
    let (view, log, feed) = (
        Arc::clone(&parts.rates),
        Arc::clone(&parts.shelf.log),
        seen.feed,
    );
    // Both are from before the look: a commit that the look misses lies in a later second than
    // `over`.
    let (over, now) = (seen.over, parts.shelf.clock.now());
    let read = off_thread(move || {
        let head = log.head().number;
        let last = log.feed(feed)?.map(|head| head.updated.second());
        let Some(read) = view.read(&[feed], wanted.by, wanted.spans)? else {
            return Ok(None);
        };
        let counted = if read.applied >= head {
            Some(over)
        } else {
            read.through.map(|through| through.second() - 1)
        };
        // The answer names no second after the feed's own last commit: later commits may be of
        // feeds that the reader may not see.
        let bound = over.min(last.unwrap_or(over));
        let through = counted.map(|second| second.min(bound));
        Ok(Some(rates_json(&read, wanted.by, through, now)))
    });
    let behind = || Problem::busy_with("entries are being counted");
    let rates = read.await?.ok_or_else(behind)?;
    let seen = look_again(&parts.shelf, &exchange, seen).await?;
    let bytes = serde_json::to_vec(&rates).expect("rates have a JSON form");
    let resource = Resource::of_bytes(RATES_TYPE, None, Validity::Once, bytes.into());
    Ok(Outcome::Shown(Box::new(Representation {
        policy: parts.shelf.lifetimes.of(&resource, seen.visibility),
        resource,
        visibility: seen.visibility,
        headers: seen.announcement.into_iter().collect(),
        over: seen.over,
        depends_on_reader: false,
    })))
}

fn rates_json(read: &RatesRead, by: Unit, through: Option<i64>, now: Timestamp) -> Rates {
    let second = |second: i64| span_text(Timestamp::from_micros(second.saturating_mul(1_000_000)));
    let counts = read.feeds.iter().flatten();
    let counts = counts.map(|(span, count)| (span_text(by.start(*span)), *count));
    Rates {
        by,
        through: through.map(second),
        kept_from: read.kept_from(by, now).map(span_text),
        counts: counts.collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_names_a_unit_and_a_time() {
        let day = |text: &str| Unit::Day.number(Timestamp::parse(text).unwrap());
        let (first, second) = (day("2026-11-25T00:00:00Z"), day("2026-11-26T00:00:00Z"));
        for (query, by, spans) in [
            ("", Unit::Hour, i64::MIN..i64::MAX),
            ("by=day", Unit::Day, i64::MIN..i64::MAX),
            (
                "by=day&from=2026-11-25T00:00:00Z&to=2026-11-26T00:00:00Z",
                Unit::Day,
                first..second,
            ),
            // A day that began before is not asked for; one that begins within is.
            (
                "by=day&to=2026-11-25T01:00:01%2B01:00&from=2026-11-24T01%3A00%3A01+01:00",
                Unit::Day,
                first..first + 1,
            ),
            (
                "by=day&from=2026-11-26T00:00:00Z&to=2026-11-25T00:00:00Z",
                Unit::Day,
                second..second,
            ),
        ] {
            assert_eq!(
                parse_query(query).unwrap(),
                RateQuery { by, spans },
                "{query}"
            );
        }
        for wrong in [
            "by=week",
            "by=day&by=day",
            "from=yesterday",
            "since=2026-11-25T00:00:00Z",
            "by",
        ] {
            assert!(parse_query(wrong).is_err(), "{wrong}");
        }
    }
}
