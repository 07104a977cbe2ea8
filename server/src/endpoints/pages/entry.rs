//! The page of an entry.
//!
//! Shell: the log, the clock.

use askama::Template;
use simplefeed_core::{
    digest::Digest,
    event::{Author, Authors, Category, Event},
    feed::{EpochNumber, FeedName, Position},
    plan::FeedHead,
};
use simplefeed_http::{
    endpoint::{Exchange, Outcome},
    problem::Problem,
};
use simplefeed_log::LogError;

use super::{
    PageParts, PageReading, Top,
    content::{beginning, shown as shown_content},
    feed::numbered,
    moment::Moment,
    private_page, render_page,
};
use crate::endpoints::{
    off_thread,
    shelf::{look_again, seen},
};

/// Maximum number of bytes that a page shows of a summary.
const SUMMARY_BYTES_MAX: usize = 4 * 1024;
/// Maximum number of facts, and of links, that a page shows.
const FACTS_MAX: usize = 50;
/// Maximum length of a fact or a link, in bytes. A longer fact is cut off there, and a longer link
/// is left out.
const FACT_BYTES_MAX: usize = 2 * 1024;
/// Maximum number of bytes that a page shows of an entry's source.
const SOURCE_BYTES_MAX: usize = 64 * 1024;

#[derive(Template)]
#[template(path = "entry.html")]
struct EntryPage {
    top: Top,
    name: String,
    machine: String,
    position: u64,
    /// Position and epoch of the entry, as in URLs.
    number: String,
    title: String,
    id: String,
    stored: Moment,
    summary: Option<String>,
    content: String,
    facts: Vec<(&'static str, String)>,
    links: Vec<LinkRow>,
    document: String,
    hash: String,
    older: Option<String>,
    newer: Option<String>,
    around: u64,
    source: String,
    is_cut: bool,
}

struct LinkRow {
    rel: String,
    href: String,
    /// Whether the page may link there: URLs of other schemes than HTTP may run scripts.
    is_web: bool,
}

/// Answers with the page of one entry.
pub(super) async fn show(parts: &PageParts, exchange: Exchange<'_>) -> Result<Outcome, Problem> {
    let seen = seen(&parts.shelf, &exchange).await?;
    let room = parts.pages.one().await?;
    let name = exchange.params.feed().clone();
    let number = exchange.params.number();
    let reading = PageReading::of_parts(parts);
    let (wanted, top) = (name.clone(), Top::of_exchange(&exchange, 2));
    let made = off_thread(move || {
        let Some(state) = reading.shelf.documents.snapshot(&wanted)? else {
            return Ok(None);
        };
        let page = number.map_or(Ok(None), |number| {
            make_page(&reading, &wanted, &state.head, number, top)
        })?;
        Ok(page.map(|page| render_page(&page)))
    });
    let absent = || Problem::not_found(format!("feed {name} has no such entry"));
    let html = made.await?.ok_or_else(absent)??;
    drop(room);
    // During the lookup, a closed timeline may have begun to follow a closed feed that this reader
    // may not see.
    look_again(&parts.shelf, &exchange, seen).await?;
    Ok(private_page(html))
}

fn make_page(
    reading: &PageReading,
    name: &FeedName,
    head: &FeedHead,
    number: EpochNumber,
    top: Top,
) -> Result<Option<EntryPage>, LogError> {
    let log = &**reading.shelf.documents.log();
    let position = Position(number.number);
    if position >= head.next {
        return Ok(None);
    }
    // The neighbours are read, too, as far as they exist.
    let from = Position(position.0.saturating_sub(1));
    let found = log.entries(head.feed, from..Position(position.0 + 2).min(head.next))?;
    let at = |position: u64| found.iter().find(|entry| entry.at.0 == position);
    // An entry of another epoch is another entry, even at the same position.
    let entry = at(position.0).filter(|entry| entry.document.epoch == number.epoch);
    let Some(entry) = entry else {
        return Ok(None);
    };
    // The gate accepts only UTF-8, so no character is lost here.
    let source = String::from_utf8_lossy(&entry.fragment);
    // An entry that cannot be read as an event is still shown with its source.
    let event = Event::from_entry(&source).unwrap_or_default();
    let opening = log.opening(head.feed, entry.document.number)?;
    // A restoration may have renamed the document since the append.
    let document = opening.map_or(entry.document, |opening| opening.name);
    let shown_source = beginning(&source, SOURCE_BYTES_MAX);
    let title = event.title.as_deref().map(str::trim).unwrap_or_default();
    Ok(Some(EntryPage {
        name: name.to_string(),
        machine: format!("{}../feeds/{name}", top.ui),
        position: position.0,
        number: number.to_string(),
        title: if title.is_empty() {
            entry.id.to_string()
        } else {
            super::feed::short(title)
        },
        id: entry.id.to_string(),
        stored: Moment::of(entry.instant, reading.now),
        summary: event
            .summary
            .as_deref()
            .map(|summary| beginning(summary, SUMMARY_BYTES_MAX).into()),
        content: shown_content(&event),
        facts: fact_rows(&event),
        links: link_rows(&event),
        document: document.to_string(),
        hash: Digest::of(&entry.fragment).to_string(),
        older: position.0.checked_sub(1).and_then(at).map(numbered),
        newer: at(position.0 + 1).map(numbered),
        // The page of the feed has 25 rows, and this entry shall stand in the middle of these rows.
        around: position.0.saturating_add(13).min(head.next.0),
        is_cut: shown_source.len() < source.len(),
        source: shown_source.into(),
        top,
    }))
}

fn fact_rows(event: &Event) -> Vec<(&'static str, String)> {
    let mut facts = vec![];
    let mut add = |name, text: Option<String>| {
        facts.extend(text.map(|text| (name, beginning(&text, FACT_BYTES_MAX).to_owned())));
    };
    add("Updated", event.updated.clone());
    add("Published", event.published.clone());
    let authors = match &event.author {
        None => &[],
        Some(Authors::One(author)) => std::slice::from_ref(author),
        Some(Authors::Many(authors)) => authors.as_slice(),
    };
    for author in authors {
        add(
            "Author",
            Some(match author {
                Author::Name(name) => name.clone(),
                Author::Person(person) => {
                    let more = [&person.email, &person.uri];
                    let more = more.into_iter().flatten().cloned();
                    let all: Vec<String> = [person.name.clone()].into_iter().chain(more).collect();
                    all.join(", ")
                }
            }),
        );
    }
    let terms: Vec<&str> = event
        .categories
        .iter()
        .flatten()
        .map(|category| match category {
            Category::Term(term) => term.as_str(),
            Category::Full(full) => full.term.as_str(),
        })
        .collect();
    add("Categories", (!terms.is_empty()).then(|| terms.join(", ")));
    add("Type", event.kind.clone());
    facts.truncate(FACTS_MAX);
    facts
}

fn link_rows(event: &Event) -> Vec<LinkRow> {
    let links = event.links.iter().flatten().take(FACTS_MAX);
    let links = links.filter(|link| link.href.len() <= FACT_BYTES_MAX);
    let rows = links.map(|link| LinkRow {
        rel: link.rel.clone().unwrap_or_default(),
        is_web: ["https://", "http://"].iter().any(|scheme| {
            let beginning = link.href.get(..scheme.len());
            beginning.is_some_and(|beginning| beginning.eq_ignore_ascii_case(scheme))
        }),
        href: link.href.clone(),
    });
    rows.collect()
}
