//! The page of a feed.
//!
//! Shell: the log, the counts, the clock.

use std::sync::Arc;

use askama::Template;
use hyper::{StatusCode, header::LOCATION};
use simplefeed_core::{
    entry::Entry,
    event::Event,
    feed::{EntryId, EpochNumber, FeedKey, Position},
    plan::FeedHead,
    push::{Mark, PlaceId},
    settings::Settings,
    sight::Sight,
    timestamp::Timestamp,
};
use simplefeed_http::{
    answers::{header_value, plain},
    endpoint::{Exchange, Outcome},
    problem::Problem,
};
use simplefeed_log::{EntryLog, LogError, Series};
use simplefeed_views::timelines::lists::{FeedListPart, ListStretch};

use super::{
    PageParts, PageReading, Top, field_value,
    moment::{self, Moment},
    plot::PlotWindow,
    private_page, render_page,
    section::SectionPage,
};
use crate::endpoints::{
    off_thread,
    shelf::{look_again, seen},
    timelines::seen_followers,
};

/// Maximum number of entries on a page.
const ROWS_MAX: u64 = 25;
/// Number of positions that are read at a time in the search for an entry that is not lost.
const LOST_STEP: u64 = 2;
/// Entries that are read at a time: few, because each may be large.
const STEP: u64 = 5;
/// Bytes of entries after which a page takes no more entries.
const ROWS_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Maximum number of feeds, and of patterns, that a page lists.
const NAMES_MAX: usize = 100;
/// Maximum number of characters that a row shows of a title.
const TITLE_CHARS: usize = 200;

#[derive(Template)]
#[template(path = "feed.html")]
struct FeedPage {
    top: Top,
    name: String,
    title: String,
    id: String,
    author: String,
    url: String,
    machine: String,
    is_timeline: bool,
    is_closed: bool,
    entries: u64,
    newest: Option<Moment>,
    notice: Option<String>,
    go: String,
    /// HTML of the sections that views add.
    sections: Vec<String>,
    /// Beginning of the queries that keep the window of the plot.
    keep: String,
    rows: Vec<EntryRow>,
    is_newest: bool,
    /// Id of the event after which live rows begin.
    after: Option<String>,
    newer: Option<u64>,
    older: Option<u64>,
    oldest: u64,
    follows: Option<SomeNames>,
    followers: Vec<String>,
    rust: String,
    python: String,
}

struct EntryRow {
    position: u64,
    /// Position and epoch of the entry, as in URLs.
    number: String,
    title: String,
    time: Moment,
}

/// The first of many names.
struct SomeNames {
    feeds: Vec<String>,
    patterns: Vec<String>,
}

/// Where a request wants to go.
enum Goal {
    Position(u64),
    Time(Timestamp),
    Id(String),
}

impl Goal {
    fn of_text(text: &str) -> Self {
        if let Ok(position) = text.parse() {
            return Self::Position(position);
        }
        match moment::parse(text) {
            Some(time) => Self::Time(time),
            None => Self::Id(text.into()),
        }
    }
}

/// Returns the position and the epoch of an entry, as in URLs.
pub(super) fn numbered(entry: &Entry) -> String {
    let number = EpochNumber {
        number: entry.at.0,
        epoch: entry.document.epoch,
    };
    number.to_string()
}

/// Returns the first characters of a title.
pub(super) fn short(title: &str) -> String {
    let mut chars = title.chars();
    let mut short: String = chars.by_ref().take(TITLE_CHARS).collect();
    if chars.next().is_some() {
        short.push('…');
    }
    short
}

/// Shows a feed: the newest entries, or those before a position.
pub(super) async fn show(parts: &PageParts, exchange: Exchange<'_>) -> Result<Outcome, Problem> {
    let seen = seen(&parts.shelf, &exchange).await?;
    // The entries of this page take memory, as those of a paged document do. Both share one bound.
    let room = parts.pages.one().await?;
    let name = exchange.params.feed().clone();
    let go = field_value(exchange.query(), "go").unwrap_or_default();
    let before = field_value(exchange.query(), "before").and_then(|before| before.parse().ok());
    let window = field_value(exchange.query(), "in").filter(|text| !text.is_empty());
    let no_time =
        || Problem::malformed("in= names no time, such as 2026-11, or 2026-11-25T14..2026-11-26");
    let window = window.map(|text| PlotWindow::parse(&text).ok_or_else(no_time));
    let window = window.transpose()?;
    let (reading, sight) = (
        PageReading::of_parts(parts),
        exchange.access.sight(exchange.headers),
    );
    let (log, url) = (
        Arc::clone(&parts.shelf.log),
        format!("{}/feeds/{name}", parts.shelf.public_url),
    );
    let top = Top::of_exchange(&exchange, 1);
    let goal = (!go.is_empty()).then(|| Goal::of_text(&go));
    let wanted = name.clone();
    let made = off_thread(move || {
        let Some(state) = reading.shelf.documents.snapshot(&wanted)? else {
            return Ok(None);
        };
        let series = &**reading.shelf.documents.log();
        let mut notice = None;
        if let Some(goal) = goal {
            let feed = (&state.head, state.settings.is_timeline());
            match find_goal(&*log, series, feed, &goal)? {
                Ok(before) => {
                    let place = format!("?{}before={before}", window_query(window.as_ref()));
                    return Ok(Some(FeedAnswer::Redirect(place)));
                }
                Err(not_found) => notice = Some(not_found),
            }
        }
        let shown = (&state.head, &state.settings);
        let about = SectionPage {
            feed: state.head.feed,
            name: &wanted,
            is_timeline: state.settings.is_timeline(),
            window: window.as_ref(),
            ui: top.ui,
            now: reading.now,
        };
        let page = FeedPage {
            notice,
            go,
            keep: window_query(window.as_ref()),
            sections: reading.sections_of(&about),
            ..make_page(&reading, shown, before, &sight, (top, url))?
        };
        Ok(Some(FeedAnswer::Page(render_page(&page))))
    });
    let absent = || Problem::not_found(format!("there is no feed {name}"));
    let made = made.await?.ok_or_else(absent)?;
    drop(room);
    // During the lookup, a closed timeline may have begun to follow a closed feed that this reader
    // may not see.
    look_again(&parts.shelf, &exchange, seen).await?;
    match made {
        FeedAnswer::Page(html) => Ok(private_page(html?)),
        FeedAnswer::Redirect(location) => {
            let mut answer = plain(StatusCode::SEE_OTHER, "");
            let location = header_value(&location);
            answer.headers_mut().insert(LOCATION, location);
            Ok(Outcome::Answer(answer))
        }
    }
}

/// Answer to a reader of a feed's page.
enum FeedAnswer {
    /// HTML of the page, or the problem because of which there is no HTML.
    Page(Result<String, Problem>),
    /// Query of the page with the entry to which the reader wants to go.
    Redirect(String),
}

/// Returns the beginning of a query that keeps the window of the plot.
fn window_query(window: Option<&PlotWindow>) -> String {
    // The text of a window has no character that a URL would have to escape.
    window.map_or_else(String::new, |window| format!("in={}&", window.text))
}

/// Returns the position before which the rows around a goal begin, or why there is none.
fn find_goal(
    log: &dyn EntryLog,
    series: &dyn Series,
    (head, is_timeline): (&FeedHead, bool),
    goal: &Goal,
) -> Result<Result<u64, String>, LogError> {
    let end = head.next.0;
    // The goal shall stand in the middle of the rows.
    let page = |position: u64| Ok(position.saturating_add(ROWS_MAX / 2).min(end));
    Ok(match goal {
        Goal::Position(position) if *position < end => page(*position),
        Goal::Position(position) => Err(format!("The feed has no position {position} yet.")),
        Goal::Time(time) => match position_at(series, head, *time)? {
            Some(position) => page(position),
            None => Err(format!("The feed has no entry at {time} or later.")),
        },
        Goal::Id(_) if is_timeline => {
            Err("In a timeline, go to a position or a time; ids are found in the feeds that it follows.".into())
        }
        Goal::Id(id) => {
            let known = match EntryId::parse(id) {
                Some(id) => log.find(head.feed, &id)?,
                None => None,
            };
            // The log may know an entry before readers see that entry.
            match known.filter(|known| known.at.0 < end) {
                Some(known) => page(known.at.0),
                None => Err(format!(
                    "{} is no position, no time, and no id of an entry of this feed.",
                    short(id)
                )),
            }
        }
    })
}

/// Returns the first position whose entry was stored at a time or later. In a timeline, this is the
/// time at which the entry came into the timeline, which is later than the time in its feed if the
/// entry was backfilled.
fn position_at(
    log: &dyn Series,
    head: &FeedHead,
    time: Timestamp,
) -> Result<Option<u64>, LogError> {
    let (mut low, mut high) = (0, head.next.0);
    while low < high {
        let middle = low + (high - low) / 2;
        // Entries may be lost. Then the next entry that is left decides.
        let mut at = middle;
        let mut found = None;
        while found.is_none() && at < high {
            let end = (at + LOST_STEP).min(high);
            found = log
                .entries(head.feed, Position(at)..Position(end))?
                .into_iter()
                .next();
            at = end;
        }
        match found {
            Some(entry) if entry.instant < time => low = entry.at.0 + 1,
            _ => high = middle,
        }
    }
    let first = log.entries(
        head.feed,
        Position(low)..Position(low + LOST_STEP).min(head.next),
    )?;
    Ok(first
        .first()
        .filter(|first| first.instant >= time)
        .map(|first| first.at.0))
}

fn make_page(
    reading: &PageReading,
    (head, settings): (&FeedHead, &Settings),
    before: Option<u64>,
    sight: &Sight,
    (top, url): (Top, String),
) -> Result<FeedPage, LogError> {
    let log = &**reading.shelf.documents.log();
    let end = head.next.0;
    // A position at the end or later asks for the newest rows, as a request without a position
    // does.
    let before = before.filter(|before| *before < end);
    let (rows, first) = entry_rows(log, head, before.unwrap_or(end), reading.now)?;
    let newest = end.checked_sub(1).map(Position);
    // A timeline has no history hash, because such a hash would have to be made of all entries of
    // the timeline.
    let mark = if settings.is_timeline() {
        Mark::of_epoch(head.open.opening.name.epoch)
    } else {
        Mark::of_history(&head.history)
    };
    let after = newest.map(|position| PlaceId { position, mark }.to_string());
    let follows = if settings.is_timeline() {
        followed_names(reading, head)?
    } else {
        None
    };
    Ok(FeedPage {
        name: settings.name.to_string(),
        title: settings.title().into(),
        id: settings.id.to_string(),
        author: settings.author().into(),
        machine: format!("{}../feeds/{}", top.ui, settings.name),
        rust: rust_example(&url),
        python: python_example(&url),
        url,
        is_timeline: settings.is_timeline(),
        is_closed: settings.is_closed(),
        entries: end,
        newest: newest.map(|_| Moment::of(head.updated, reading.now)),
        notice: None,
        go: String::new(),
        sections: vec![],
        keep: String::new(),
        rows,
        is_newest: before.is_none(),
        after,
        newer: before.map(|before| before.saturating_add(ROWS_MAX).min(end)),
        older: (first > 0).then_some(first),
        oldest: ROWS_MAX.min(end),
        follows,
        followers: follower_names(reading, head.feed, sight)?,
        top,
    })
}

/// Returns entries before a position, newest first, and the position down to which entries were
/// read.
fn entry_rows(
    log: &dyn Series,
    head: &FeedHead,
    before: u64,
    now: Timestamp,
) -> Result<(Vec<EntryRow>, u64), LogError> {
    let (mut rows, mut bytes, mut first) = (vec![], 0, before);
    let least = before.saturating_sub(ROWS_MAX);
    while first > least && bytes < ROWS_BYTES_MAX {
        let from = first.saturating_sub(STEP).max(least);
        let entries = log.entries(head.feed, Position(from)..Position(first))?;
        first = from;
        for entry in entries.iter().rev() {
            bytes += entry.fragment.len();
            rows.push(EntryRow {
                position: entry.at.0,
                number: numbered(entry),
                title: title_of(&entry.fragment).unwrap_or_else(|| entry.id.to_string()),
                time: Moment::of(entry.instant, now),
            });
        }
    }
    Ok((rows, first))
}

fn title_of(fragment: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(fragment).ok()?;
    let title = Event::from_entry(text).ok()?.title?;
    let title = title.trim();
    (!title.is_empty()).then(|| short(title))
}

/// Stretch at the beginning of a list.
const FIRST: ListStretch = ListStretch {
    after: None,
    max: NAMES_MAX,
};

/// Returns the first timelines that take a feed's entries and that the reader may see. Does not
/// tell how many there are.
fn follower_names(
    reading: &PageReading,
    feed: FeedKey,
    sight: &Sight,
) -> Result<Vec<String>, LogError> {
    let shelf = (&*reading.shelf.catalogue, &*reading.shelf.timelines);
    part_names(reading, seen_followers(shelf, feed, FIRST, sight)?)
}

/// Returns the first feeds and the first patterns that a timeline follows.
fn followed_names(reading: &PageReading, head: &FeedHead) -> Result<Option<SomeNames>, LogError> {
    let Some(part) = reading.shelf.timelines.following(head.feed, FIRST)? else {
        return Ok(None);
    };
    let patterns = reading.shelf.timelines.patterns(head.feed)?;
    let patterns = patterns.iter().take(NAMES_MAX);
    Ok(Some(SomeNames {
        feeds: part_names(reading, part)?,
        patterns: patterns.map(ToString::to_string).collect(),
    }))
}

fn part_names(reading: &PageReading, part: FeedListPart) -> Result<Vec<String>, LogError> {
    let rows = reading.shelf.catalogue.rows(part.feeds.into_iter())?;
    Ok(rows.iter().map(|row| row.name.to_string()).collect())
}

fn rust_example(url: &str) -> String {
    format!(
        "use simplefeed_client::{{Consumer, FileBookmark, Since}};\n\n\
         let mut consumer = Consumer::builder(\"{url}\")\n    \
         .since(Since::Oldest)\n    \
         .follow(true)\n    \
         .build()?;\n\
         while let Some(delivery) = consumer.next().await? {{\n    \
         println!(\"{{}}\", delivery.id());\n    \
         consumer.accept(&delivery).await?;\n\
         }}"
    )
}

fn python_example(url: &str) -> String {
    format!(
        "import json, urllib.request\n\n\
         # Each line that begins with data: is an entry. Keep the last id: with ?after=ID it goes on there.\n\
         with urllib.request.urlopen(\"{url}/events?since=oldest\") as stream:\n    \
         for line in stream:\n        \
         if line.startswith(b\"data: \"):\n            \
         print(json.loads(line[6:])[\"title\"])"
    )
}
