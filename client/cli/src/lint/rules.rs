//! Checks of each document of a feed, and of each two neighbouring documents.
//!
//! Pure. Rules have the ids of `docs/rules.md`.

use std::{collections::HashMap, fmt};

use serde::Serialize;
use simplefeed_client::transport::Answer;
use simplefeed_core::{
    digest::Digest,
    event::Event,
    history::HistoryHash,
    reader::{Document, FeedFault, Listing},
    scanner::{elements, holds_raw_json},
    timestamp::Timestamp,
    xml::ATOM,
};
use url::Url;

/// The shortest time, in seconds, for which caches should be allowed to keep an archive.
const ARCHIVE_SECONDS_MIN: u64 = 86_400;

/// The longest time, in seconds, for which caches should be allowed to keep the recent document.
const RECENT_SECONDS_MAX: u64 = 3_600;

/// Severity of a finding; the variants stand in rising order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum LintSeverity {
    /// A fact that is worth knowing, and harmless to whoever knows the fact.
    Note,
    /// Consumers or caches do worse than they could.
    Warning,
    /// Consumers may miss entries, or cannot read them.
    Error,
}

impl fmt::Display for LintSeverity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Error => "error",
        })
    }
}

/// A broken rule, and the document that breaks it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct LintFinding {
    pub(super) severity: LintSeverity,
    pub(super) rule: &'static str,
    pub(super) url: String,
    pub(super) detail: String,
}

/// A document, with the answer that brought the document.
#[derive(Debug)]
pub(super) struct LintPage {
    pub(super) url: Url,
    pub(super) document: Document,
    pub(super) answer: Answer,
    pub(super) digest: Digest,
}

/// Facts about the document that was checked last. The next checked document is older, and is
/// compared with these facts.
#[derive(Debug)]
struct Behind {
    url: Url,
    /// Other URLs of the same document.
    also: Vec<Url>,
    first: Option<(u64, Option<HistoryHash>)>,
}

/// Checks one document after the other, from the newest to the oldest.
#[derive(Debug, Default)]
pub(super) struct LintRules {
    pub(super) findings: Vec<LintFinding>,
    pub(super) documents: usize,
    pub(super) entries: usize,
    feed: Option<String>,
    behind: Option<Behind>,
    seen: HashMap<Digest, EarlierEntry>,
    tells_json: bool,
}

/// An entry that was met before: in a newer document, or further up in the same document.
#[derive(Debug)]
struct EarlierEntry {
    content: Digest,
    updated: Option<Timestamp>,
    url: Url,
}

impl LintRules {
    pub(super) fn add(
        &mut self,
        severity: LintSeverity,
        rule: &'static str,
        url: &Url,
        detail: impl Into<String>,
    ) {
        self.findings.push(LintFinding {
            severity,
            rule,
            url: url.to_string(),
            detail: detail.into(),
        });
    }

    fn error(&mut self, rule: &'static str, url: &Url, detail: impl Into<String>) {
        self.add(LintSeverity::Error, rule, url, detail);
    }

    fn warn(&mut self, rule: &'static str, url: &Url, detail: impl Into<String>) {
        self.add(LintSeverity::Warning, rule, url, detail);
    }

    /// Checks a document. The first document that is checked is the recent one.
    pub(super) fn page(&mut self, page: &LintPage) {
        let is_recent = self.documents == 0;
        self.documents += 1;
        self.media_type(page);
        self.check_head(page, is_recent);
        self.check_faults(page);
        self.check_caching(page, is_recent);
        self.check_entries(page);
        self.check_order(page);
        self.check_history(page);
        // Links may lead to any URL of the document, and not only to the fetched URL.
        let relations = ["via", "self"];
        self.behind = Some(Behind {
            url: page.url.clone(),
            also: relations
                .iter()
                .filter_map(|rel| page.document.link(rel).cloned())
                .collect(),
            first: page
                .document
                .history
                .map(|(first, before)| (first.0, before)),
        });
    }

    fn media_type(&mut self, page: &LintPage) {
        let kind = page.answer.header("content-type").unwrap_or("nothing");
        // Parameters, such as `charset`, do not change the type.
        let essence = kind.split(';').next().unwrap_or_default().trim();
        if !essence.eq_ignore_ascii_case("application/atom+xml") {
            self.warn(
                "A-1",
                &page.url,
                format!("its media type is {kind}, not application/atom+xml"),
            );
        }
    }

    fn check_head(&mut self, page: &LintPage, is_recent: bool) {
        let (url, document) = (&page.url, &page.document);
        // The id in the recent document counts; another id in an archive is a finding.
        match self.feed.clone() {
            None => self.feed = Some(document.feed.clone()),
            Some(feed) if feed != document.feed => {
                let found = &document.feed;
                self.error("SF-9", url, format!("its feed id is {found}, not {feed}"));
            }
            Some(_) => {}
        }
        if document.updated.is_none() {
            self.error(
                "A-2",
                url,
                "the feed's updated is missing or no RFC 3339 date",
            );
        }
        if is_recent {
            if document.archived {
                self.error("FH-8", url, "the recent document is marked as an archive");
            }
            // The rules below are for archives.
            return;
        }
        if document.link("current").is_none() {
            self.warn(
                "FH-7",
                url,
                "an archive without a link to the recent document (current)",
            );
        }
        if !document.archived {
            self.warn(
                "FH-8",
                url,
                "an archive without the mark of one (fh:archive)",
            );
        }
    }

    /// Reports faults that consumers pass over, and faults at which they stop.
    fn check_faults(&mut self, page: &LintPage) {
        for fault in page.document.faults(&page.url) {
            let (severity, rule) = match &fault {
                FeedFault::Link(link) => match link.rel.as_str() {
                    "prev-archive" => (LintSeverity::Error, "FH-5"),
                    "next-archive" => (LintSeverity::Error, "FH-6"),
                    "current" => (LintSeverity::Error, "FH-7"),
                    _ => (LintSeverity::Warning, "A-4"),
                },
                FeedFault::Repeats { .. } => (LintSeverity::Warning, "FH-13"),
                _ => (LintSeverity::Warning, "FH-1"),
            };
            self.add(severity, rule, &page.url, fault.to_string());
        }
    }

    /// Checks that an archive links to the next newer document, which was checked last. Returns the
    /// URL of the link if that document is not known under this URL.
    pub(super) fn wrong_next(&mut self, page: &LintPage) -> Option<Url> {
        let behind = self.behind.as_ref()?;
        let Some(next) = page.document.link("next-archive").cloned() else {
            // The newest archive need not have this link (FH-9).
            if self.documents > 1 {
                self.warn(
                    "FH-6",
                    &page.url,
                    "an archive without a link to the next one (next-archive)",
                );
            }
            return None;
        };
        // Any URL of the newer document will do.
        let leads_there = next == behind.url || behind.also.contains(&next);
        (!leads_there).then_some(next)
    }

    /// Returns the URL of the document that was checked last.
    pub(super) fn behind(&self) -> Option<&Url> {
        self.behind.as_ref().map(|behind| &behind.url)
    }

    fn check_caching(&mut self, page: &LintPage, is_recent: bool) {
        let (url, answer) = (&page.url, &page.answer);
        let policy = answer
            .header("cache-control")
            .unwrap_or_default()
            // Names of directives are case-insensitive (RFC 9111, 5.2).
            .to_ascii_lowercase();
        let max_age = policy.split(',').find_map(|directive| {
            directive
                .trim()
                .strip_prefix("max-age=")?
                .parse::<u64>()
                .ok()
        });
        let immutable = policy.contains("immutable");
        if is_recent {
            if answer
                .header("etag")
                .or(answer.header("last-modified"))
                .is_none()
            {
                self.warn(
                    "SF-12",
                    url,
                    "neither ETag nor Last-Modified: every look transfers it whole",
                );
            }
            if max_age.is_some_and(|age| age > RECENT_SECONDS_MAX) || immutable {
                self.error(
                    "SF-12",
                    url,
                    format!("caches keep the recent document too long: {policy}"),
                );
            }
            if policy.is_empty() {
                self.warn(
                    "H-21",
                    url,
                    "no Cache-Control: caches guess how long they may keep it",
                );
            }
        } else if is_timeline(&page.document) && !immutable {
            let detail =
                "not frozen yet: a document of a timeline freezes once somebody has read it";
            self.add(LintSeverity::Note, "SF-11", url, detail);
        } else if max_age.is_none_or(|age| age < ARCHIVE_SECONDS_MIN) {
            let said = if policy.is_empty() {
                "nothing"
            } else {
                &policy
            };
            self.warn(
                "SF-11",
                url,
                format!("an archive that caches may not keep: its Cache-Control says {said}"),
            );
        }
        // In `Vary`, codings need `Accept-Encoding`. Any other field only makes a cache keep more
        // copies.
        let splits = answer.all("vary").flat_map(|vary| vary.split(','));
        let other: Vec<&str> = splits
            .map(str::trim)
            .filter(|field| !field.eq_ignore_ascii_case("accept-encoding") && !field.is_empty())
            .collect();
        if !other.is_empty() {
            self.warn(
                "H-15",
                url,
                format!("caches keep a copy for each {}", other.join(", ")),
            );
        }
    }

    fn check_entries(&mut self, page: &LintPage) {
        let (url, document) = (&page.url, &page.document);
        self.entries += document.len();
        for index in 0..document.len() {
            let Some(entry) = document.entry(index) else {
                continue;
            };
            let id = entry.id.to_owned();
            self.check_entry(page, index, &id);
            // Ids are unique only in the feed that an entry comes from, so a timeline may have an
            // id twice.
            if is_timeline(document) {
                continue;
            }
            let updated = document.updated_of(index);
            let content = Digest::of(entry.fragment);
            // The map has digests of ids: ids of foreign feeds can be long, and a feed can have
            // many entries.
            let key = Digest::of(id.as_bytes());
            if let Some(seen) = self.seen.get(&key) {
                let other = seen.url.clone();
                // The walk goes back in time, so the copy that was seen first should have the later
                // date.
                let (same, revised) = (seen.content == content, seen.updated > updated);
                match (same, revised) {
                    (true, _) => {
                        self.warn("FH-13", url, format!("entry {id} stands in {other}, too"));
                    }
                    (false, true) => {
                        self.warn("FH-10", url, format!("entry {id} was revised in {other}"));
                    }
                    (false, false) => self.error(
                        "SF-2",
                        url,
                        format!("entry {id} has another content in {other}, and no later date"),
                    ),
                }
                // The newest copy stays in the map, and older copies are compared with that one.
                continue;
            }
            let url = url.clone();
            self.seen.insert(
                key,
                EarlierEntry {
                    content,
                    updated,
                    url,
                },
            );
        }
    }

    /// Checks one entry by itself.
    fn check_entry(&mut self, page: &LintPage, index: usize, id: &str) {
        let Some(element) = page.document.stand_alone(index) else {
            return;
        };
        let element = String::from_utf8_lossy(&element).into_owned();
        // With the page's URL as base, relative references are no fault.
        let base = page
            .url
            .as_str()
            .replace('&', "&amp;")
            .replace('\'', "&#39;");
        let based = format!("<feed xmlns='{ATOM}' xml:base='{base}'>{element}</feed>");
        if let Err(refusal) = elements(&based) {
            self.error(
                "A-1",
                &page.url,
                format!("entry {id}: {}", in_place(&refusal)),
            );
        }
        // The check above has reported the fault of such an entry.
        let Ok(event) = Event::from_entry(&element) else {
            return;
        };
        for (name, missing) in [
            ("title", event.title.is_none()),
            ("updated", event.updated.is_none()),
            ("author", event.author.is_none()),
        ] {
            if missing {
                let rule = if name == "author" { "A-7" } else { "A-1" };
                self.error(rule, &page.url, format!("entry {id} has no {name}"));
            }
        }
        // Reported once: usually all entries of such a feed are alike.
        if !self.tells_json && holds_raw_json(&element) {
            self.tells_json = true;
            let detail = format!(
                "entry {id} has JSON as it is under a type that is neither text nor XML: feed readers expect \
                 Base64 there (RFC 4287, 4.1.3.3); text/json has it as it is"
            );
            self.add(LintSeverity::Note, "A-11", &page.url, detail);
        }
    }

    fn check_order(&mut self, page: &LintPage) {
        if page.document.shown_listing() == Some(Listing::OldestFirst) {
            self.error("SF-1", &page.url, "its oldest entry stands first");
        }
    }

    /// Checks positions and hashes: a document that has them must end exactly where the next newer
    /// document begins.
    fn check_history(&mut self, page: &LintPage) {
        let Some((first, _)) = page.document.history else {
            return;
        };
        // A neighbour without positions proves nothing.
        let Some((next, expected)) = self.behind.as_ref().and_then(|behind| behind.first) else {
            return;
        };
        // Timelines have positions and no hashes, so both hashes are `None` there.
        let hash = page.document.history_after();
        let end =
            u64::try_from(page.document.len()).map_or(u64::MAX, |len| first.0.saturating_add(len));
        // The end is compared first: at another position, another hash is expected.
        if end != next {
            self.error(
                "SF-2",
                &page.url,
                format!("it ends at position {end}, the next one begins at {next}"),
            );
        } else if hash != expected {
            self.error(
                "SF-2",
                &page.url,
                "its entries are not those that the next document follows",
            );
        }
    }
}

/// Returns whether a document is one of a timeline: the document has positions, and no history
/// hash.
fn is_timeline(document: &Document) -> bool {
    document.history.is_some_and(|(_, before)| before.is_none())
}

/// Returns the text of a refusal without the line number, because that number does not count lines
/// of the document.
fn in_place(refusal: &simplefeed_core::refusal::Refusal) -> String {
    match refusal.rule {
        Some(rule) => format!("{} ({rule})", refusal.detail),
        None => refusal.detail.clone(),
    }
}
