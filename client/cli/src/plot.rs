//! `plot`: entries over time, and a consumer's backlog.
//!
//! Shell: the feed, the consumer's state folder, stdout or a file. [`chart`] draws.

use std::{collections::BTreeMap, fs, io::Write as _, path::PathBuf};

use anyhow::Context as _;
use clap::Args;
use simplefeed_client::{Since, fetch::FetchOutcome};
use simplefeed_core::{
    rates::{Rates, Unit, span_text},
    replay::Validators,
    timestamp::Timestamp,
};
use url::Url;

use crate::{
    exit::{self, Usage},
    say, since,
    source::SourceArgs,
    state::StateArgs,
    status::{Lag, StatusArgs},
    stdout::stdout,
};

mod chart;

use chart::Chart;

/// Maximum number of spans that are drawn side by side: a terminal's width, less the numbers.
const SPANS_MAX: i64 = 72;

/// Draw a feed's entries over time, and what a consumer has not handled
#[derive(Args, Debug)]
pub(crate) struct PlotArgs {
    /// URL of the feed
    url: String,
    /// Draw from here on: a date-time, a date, or an age such as 90m or 2d [default: the first
    /// entry]
    #[arg(long, value_parser = parse_time, value_name = "TIME")]
    since: Option<Timestamp>,
    /// Length of the spans: minute, hour, day or month [default: the shortest of which 72 are
    /// enough; of more, the last 72 are drawn]
    #[arg(long, value_parser = parse_unit, value_name = "UNIT")]
    by: Option<Unit>,
    /// Write a picture instead, as SVG
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    #[command(flatten)]
    state: StateArgs,
    #[command(flatten)]
    source: SourceArgs,
}

fn parse_time(text: &str) -> Result<Timestamp, String> {
    match since::parse(text) {
        Ok(Since::Time(time)) => Ok(time),
        _ => Err("neither a date-time, a date, nor an age such as 90m".into()),
    }
}

fn parse_unit(text: &str) -> Result<Unit, String> {
    text.parse()
        .map_err(|()| "one of minute, hour, day and month".into())
}

/// Numbers of entries, by the number of the span.
type SpanEntries = BTreeMap<i64, u64>;

#[expect(
    clippy::disallowed_methods,
    reason = "the same command draws the picture again"
)]
pub(crate) async fn plot(args: PlotArgs) -> anyhow::Result<u8> {
    let PlotArgs {
        url,
        since,
        by,
        svg,
        state,
        source,
    } = args;
    if since.is_some_and(|since| since > since::now()) {
        return Err(Usage("--since is in the future".into()).into());
    }
    // A default folder counts only with a bookmark: most feeds have no consumer here.
    let has_state = state.state.is_some() || state.folder(&url)?.join("bookmark").exists();
    let consumer = StatusArgs::of(url, state, source);
    let counted = match fetch_rates(&consumer, (since, by)).await? {
        Some(counted) => counted,
        None => by_dates(&consumer, (since, by)).await?,
    };
    let lag = if has_state {
        Some(consumer.lag().await?)
    } else {
        None
    };
    let charts = make_charts(&consumer.url, &counted, lag.as_ref());
    if let Some(path) = svg {
        fs::write(&path, chart::svg(&charts))
            .with_context(|| format!("cannot write {}", path.display()))?;
    } else {
        let text: Vec<String> = charts.iter().map(Chart::text).collect();
        let mut out = stdout();
        out.write_all(text.join("\n").as_bytes())?;
        out.flush()?;
    }
    Ok(exit::OK)
}

/// Counts of entries over a time, in spans of one unit.
struct SpanCounts {
    unit: Unit,
    counts: SpanEntries,
    /// Number of the first span, and of the last.
    first: i64,
    last: i64,
    /// Entries without a date.
    undated: u64,
}

impl SpanCounts {
    fn new(unit: Unit, counts: SpanEntries, since: Option<Timestamp>) -> Self {
        // The last span is the present one: an entry with a date in the future must not shift the
        // chart.
        let last = unit.number(since::now());
        let oldest = since.map(|since| unit.number(since));
        let oldest = oldest.or(counts.keys().next().copied());
        let first = oldest.unwrap_or(last).min(last);
        Self {
            unit,
            counts,
            first,
            last,
            undated: 0,
        }
    }
}

/// Returns the counts that the server offers; `None` without an offer.
async fn fetch_rates(
    consumer: &StatusArgs,
    (since, by): (Option<Timestamp>, Option<Unit>),
) -> anyhow::Result<Option<SpanCounts>> {
    let url: Url = consumer
        .url
        .parse()
        .map_err(|error| Usage(format!("{:?} is not a URL: {error}", consumer.url)))?;
    let fetcher = consumer.source.fetcher(&url)?;
    let recent = fetcher
        .document(&url, &Validators::default(), false)
        .await?;
    let FetchOutcome::Document { links, .. } = recent else {
        return Ok(None);
    };
    let Some(link) = links.rates else {
        return Ok(None);
    };
    // From the longest unit to the shortest: a shorter unit is chosen only if the spans fit side by
    // side.
    let units = by.map_or_else(|| Unit::ALL.into_iter().rev().collect(), |by| vec![by]);
    let mut finest = None;
    for unit in units {
        let mut url = link.clone();
        let mut query = url.query_pairs_mut();
        query.append_pair("by", &unit.to_string());
        if let Some(since) = since {
            query.append_pair("from", &span_text(unit.start(unit.number(since))));
        }
        // The query is part of the URL only after the drop.
        drop(query);
        let bytes = fetcher.bytes(&url).await?;
        let rates: Rates =
            serde_json::from_slice(&bytes).with_context(|| format!("{url} has no rates"))?;
        let counts = rates.counts.iter().filter_map(|(start, count)| {
            let start = Timestamp::parse(start)?;
            Some((unit.number(start), *count))
        });
        let counted = SpanCounts::new(unit, counts.collect(), since);
        let spans = counted.last - counted.first;
        let oldest = finest
            .as_ref()
            .map(|before: &SpanCounts| before.unit.start(before.first));
        let kept = rates.kept_from.as_deref().and_then(Timestamp::parse);
        let is_whole = kept
            .zip(since.or(oldest))
            .is_none_or(|(kept, oldest)| kept <= oldest);
        // Spans of this unit are too many, or the server no longer has them for all of the time.
        if by.is_none() && finest.is_some() && (spans >= SPANS_MAX || !is_whole) {
            break;
        }
        finest = Some(counted);
    }
    Ok(finest)
}

/// Reads all entries, and counts them by their dates.
async fn by_dates(
    consumer: &StatusArgs,
    (since, by): (Option<Timestamp>, Option<Unit>),
) -> anyhow::Result<SpanCounts> {
    say::note(
        "The feed offers no counts. All of its entries are read, and counted by their dates.",
    );
    let since_what = since.map_or(Since::Oldest, Since::Time);
    let builder = consumer.source.consumer(&consumer.url)?.since(since_what);
    let mut entries = builder.build()?;
    let (mut minutes, mut undated) = (SpanEntries::new(), 0);
    while let Some(delivery) = entries.next().await? {
        let event = delivery.event().ok();
        let updated = event.and_then(|event| Timestamp::parse(&event.updated?));
        match updated {
            None => undated += 1,
            Some(updated) if since.is_none_or(|since| updated >= since) => {
                *minutes.entry(Unit::Minute.number(updated)).or_default() += 1;
            }
            Some(_) => {}
        }
    }
    // Minutes add up to every longer unit, so one read of the feed serves all.
    let counted = |unit: Unit| {
        let mut counts = SpanEntries::new();
        for (minute, count) in &minutes {
            *counts
                .entry(unit.number(Unit::Minute.start(*minute)))
                .or_default() += count;
        }
        SpanCounts::new(unit, counts, since)
    };
    let fits = |unit: &Unit| {
        let counted = counted(*unit);
        counted.last - counted.first < SPANS_MAX
    };
    let unit = by.or_else(|| Unit::ALL.into_iter().find(fits));
    Ok(SpanCounts {
        undated,
        ..counted(unit.unwrap_or(Unit::Month))
    })
}

/// Returns the charts of a feed and a consumer.
fn make_charts(url: &str, counted: &SpanCounts, lag: Option<&Lag>) -> Vec<Chart> {
    let SpanCounts {
        unit, first, last, ..
    } = *counted;
    // If there are more spans, only the newest are drawn.
    let first = first.max(last - SPANS_MAX + 1);
    let spans: Vec<i64> = (first..=last).collect();
    let count = |span: &i64| counted.counts.get(span).copied().unwrap_or(0);
    let values: Vec<u64> = spans.iter().map(count).collect();
    // Counts are a server's numbers, and their sum may not fit into 64 bits.
    let sum = |range: &mut dyn Iterator<Item = u64>| range.fold(0, u64::saturating_add);
    let total = sum(&mut values.iter().copied());
    let left_out = [
        (
            sum(&mut counted.counts.range(..first).map(|(_, count)| *count)),
            "earlier",
        ),
        (
            sum(&mut counted.counts.range(last + 1..).map(|(_, count)| *count)),
            "of the future",
        ),
        (counted.undated, "without a date"),
    ];
    let left_out = left_out.into_iter().filter(|(count, _)| *count > 0);
    let left_out = left_out.map(|(count, what)| format!("; {count} {what}"));
    let left_out = left_out.collect::<Vec<_>>().concat();
    let labels = [first, first.midpoint(last), last].map(|span| span_label(unit, span));
    let entries = say::count(total, "entry", "entries");
    let mut charts = vec![Chart {
        title: format!("{url}: {entries}, by {unit}{left_out}"),
        values,
        labels: labels.clone(),
    }];
    let Some(lag) = lag else { return charts };
    // The entries not handled yet are the newest ones. So the number at the end of a span is the
    // present number, less the entries of all later spans.
    let begin = unit.number(lag.since.unwrap_or_else(since::now));
    let mut pending = lag.entries;
    let mut values: Vec<u64> = vec![];
    for span in spans.iter().rev() {
        let is_behind = *span >= begin && lag.entries > 0;
        values.push(if is_behind { pending } else { 0 });
        pending = pending.saturating_sub(count(span));
    }
    values.reverse();
    let title = match (lag.entries, lag.since) {
        (0, _) => "not handled yet: nothing; the consumer has caught up".to_owned(),
        (entries, Some(since)) => format!(
            "not handled yet: {}, the oldest of {since}",
            say::count(entries, "entry", "entries")
        ),
        (entries, None) => format!(
            "not handled yet: {}",
            say::count(entries, "entry", "entries")
        ),
    };
    charts.push(Chart {
        title,
        values,
        labels,
    });
    charts
}

/// Returns the beginning of a span in as few characters as the unit needs.
fn span_label(unit: Unit, span: i64) -> String {
    let text = span_text(unit.start(span)).replace('T', " ");
    let length = match unit {
        Unit::Minute | Unit::Hour => 16,
        Unit::Day => 10,
        Unit::Month => 7,
    };
    text.get(..length).unwrap_or(&text).to_owned()
}
