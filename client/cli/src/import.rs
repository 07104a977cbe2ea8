//! `import`: a feed from elsewhere into a feed here, with its ids.
//!
//! Shell: files and the network. A live feed or an archive is read as by `replay`, files as by
//! `append`. Entries of an earlier import count as duplicates, so an import that broke off can
//! begin anew.
use std::{collections::HashSet, path::PathBuf};

use anyhow::{Context as _, bail};
use clap::Args;
use simplefeed_client::{
    Consumer, Delivery, FileBookmark, Publication, PublishError, Publisher, Since,
    publisher::BATCH_ENTRIES,
};
use simplefeed_core::{reader::Document, scanner::elements, xml::ATOM};
use url::Url;
use uuid::Uuid;

use crate::{
    append::{AppendReport, at_line, publish},
    events::Events,
    exit,
    replay::Warnings,
    say,
    token::TokenArgs,
};

/// Publish a feed from elsewhere, with its ids, and into a new feed with the feed's own id
#[derive(Args, Debug)]
pub(crate) struct ImportArgs {
    /// URL of the feed to publish to
    url: String,
    /// What to import: the URL of a live feed or of any document of its archive; or files, oldest
    /// first: Atom feeds, Atom entries, or NDJSON events
    #[arg(required = true)]
    sources: Vec<String>,
    /// File that remembers the last entry imported from a URL; the next run begins after it
    #[arg(long, value_name = "FILE")]
    bookmark: Option<PathBuf>,
    /// Pass over entries that the server refuses, and print their ids; the exit code is 3 then
    #[arg(long)]
    skip_invalid: bool,
    #[command(flatten)]
    token: TokenArgs,
    /// Origin that links and redirects may lead to besides the source's own
    #[arg(long, value_name = "ORIGIN")]
    allow_origin: Vec<Url>,
}

pub(crate) async fn import(args: ImportArgs) -> anyhow::Result<u8> {
    let publisher = args.token.publisher(&args.url)?;
    let mut import = Import::new(&publisher, args.skip_invalid);
    let outcome = import_all(&args, &mut import).await;
    // The report comes before the error: part of the feed may have been imported.
    let skipped = import.print_report(outcome.is_ok());
    outcome?;
    Ok(if skipped == 0 {
        exit::OK
    } else {
        exit::PARTIAL
    })
}

async fn import_all(args: &ImportArgs, import: &mut Import<'_>) -> anyhow::Result<()> {
    let is_url = |source: &String| source.starts_with("http://") || source.starts_with("https://");
    match (&args.sources[..], &args.bookmark) {
        ([source], bookmark) if is_url(source) => {
            import_feed(source, bookmark.as_ref(), &args.allow_origin, import).await
        }
        (sources, _) if sources.iter().any(is_url) => bail!("import one URL at a time"),
        (_, Some(_)) => bail!("files need no bookmark: what was imported before is not again"),
        (sources, None) => {
            for source in sources {
                import_file(source, import)
                    .await
                    .with_context(|| format!("cannot import {source}"))?;
            }
            Ok(())
        }
    }
}

/// Imports a feed from the oldest entry on, or from a bookmark on.
async fn import_feed(
    url: &str,
    bookmark: Option<&PathBuf>,
    allowed: &[Url],
    import: &mut Import<'_>,
) -> anyhow::Result<()> {
    // With revisions: the report counts an entry that was revised since an earlier import, so the
    // consumer must not pass over such an entry.
    let mut builder = Consumer::builder(url)
        .since(Since::Oldest)
        .revisions(true)
        .observer(Warnings::default());
    for origin in allowed {
        builder = builder.allow_origin(origin.clone());
    }
    if let Some(path) = bookmark {
        let store = FileBookmark::open(path)
            .with_context(|| format!("cannot use the bookmark {}", path.display()))?;
        builder = builder.bookmark(store);
    }
    let mut consumer = builder.build()?;
    let mut together = vec![];
    while let Some(delivery) = consumer.next().await? {
        // Before the first entry is published: a feed can be given an id only when the feed is
        // created.
        import.keep_feed_id(delivery.feed()).await?;
        together.push(delivery);
        // The bookmark moves past an entry only after the server has stored the entry.
        if consumer.ready() == 0 {
            for delivery in newest_of_each(&together) {
                import
                    .add_entry(Publication::Atom(entry_of(delivery)?))
                    .await?;
            }
            import.send_batch().await?;
            if let Some(last) = together.last() {
                consumer.accept(last).await?;
            }
            together.clear();
        }
    }
    Ok(())
}

/// Returns the newest revision of each entry. `together` has the entries that were read together,
/// oldest first, and the result has the same order. An entry with a position is no revision of
/// another entry.
fn newest_of_each(together: &[Delivery]) -> Vec<&Delivery> {
    let mut met = HashSet::new();
    let newest = together.iter().rev();
    let newest = newest.filter(|entry| entry.position().is_some() || met.insert(entry.id()));
    let mut newest: Vec<&Delivery> = newest.collect();
    newest.reverse();
    newest
}

/// Returns an entry in a form that can be published. Relative references get a base, which is the
/// folder of the feed's documents.
fn entry_of(delivery: &Delivery) -> anyhow::Result<String> {
    let entry = std::str::from_utf8(delivery.raw()).context("an entry is not UTF-8")?;
    // The folder, and not the document: an entry moves from the recent document to an archived one,
    // and the result must stay the same.
    let folder = delivery
        .document()
        .and_then(|document| document.join(".").ok());
    Ok(with_base(entry, folder.as_ref()))
}

/// Returns an entry with a base for relative references, if the entry cannot be published without a
/// base.
fn with_base(entry: &str, base: Option<&Url>) -> String {
    let (Err(_), Some(base)) = (elements(entry), base) else {
        return entry.into();
    };
    let base = base.as_str().replace('&', "&amp;").replace('"', "&quot;");
    let based = format!("<feed xmlns=\"{ATOM}\" xml:base=\"{base}\">{entry}</feed>");
    let based = elements(&based).ok().and_then(|mut based| based.pop());
    // The server's refusal names any other fault best.
    based.unwrap_or_else(|| entry.into())
}

async fn import_file(path: &str, import: &mut Import<'_>) -> anyhow::Result<()> {
    let text = String::from_utf8(std::fs::read(path)?).context("the file is not UTF-8")?;
    // Editors write a byte order mark, which is neither Atom nor JSON.
    let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
    if text.trim_start().starts_with('<') {
        import_atom(text, import).await?;
    } else {
        let (mut events, mut found) = (Events::default(), vec![]);
        for (number, line) in (1..).zip(text.lines()) {
            events.line(number, line, &mut found);
        }
        // An event that is never closed ends with the file. The server's refusal names the fault
        // best.
        events.end(&mut found);
        for (number, event) in found {
            let event = with_id(number, &event);
            import
                .add_at(Publication::Line(event), Some(number))
                .await?;
        }
    }
    import.send_batch().await
}

/// Imports a feed document as if the document came from the feed's URL, if the document names that
/// URL. Other text is imported as entries that stand one after the other.
async fn import_atom(text: &str, import: &mut Import<'_>) -> anyhow::Result<()> {
    // Only a stand-in for the feed's URL, which the document may name.
    let place = Url::parse("file:///").context("no base")?;
    let Ok(mut feed) = Document::read(text.to_owned().into(), &place) else {
        for element in elements(text)? {
            import.add_entry(Publication::Atom(element)).await?;
        }
        return Ok(());
    };
    let own = feed
        .link("self")
        .filter(|own| own.scheme() != "file")
        .cloned();
    // The document is read once more, because links resolve against the feed's own URL.
    if let Some(own) = &own {
        feed = Document::read(text.to_owned().into(), own)?;
    }
    import.keep_feed_id(&feed.feed).await?;
    for fault in feed.faults(own.as_ref().unwrap_or(&place)) {
        say::warning(&format!("the feed has a fault: {fault}"));
    }
    // The target feed accepts one content for each id, so only the newest revision is imported.
    feed.keep_newest_revisions();
    let folder = own.and_then(|own| own.join(".").ok());
    // From the last entry to the first: a feed lists the newest entry first.
    for index in (0..feed.len()).rev() {
        let element = feed.stand_alone(index).unwrap_or_default();
        let element = String::from_utf8_lossy(&element);
        let element = with_base(&element, folder.as_ref());
        import.add_entry(Publication::Atom(element)).await?;
    }
    Ok(())
}

/// Gives an event without an id an id that is the same in every run, made of the line and the
/// number of the line.
fn with_id(number: u64, line: &str) -> String {
    let event: Option<serde_json::Map<String, serde_json::Value>> = serde_json::from_str(line).ok();
    // A malformed line stays as it is: the server's refusal names the fault best.
    let Some(event) = event.filter(|event| !event.contains_key("id")) else {
        return line.into();
    };
    // The name has the number, because two equal lines are two events.
    let name = format!("{number}\0{line}");
    let id = Uuid::new_v5(&Uuid::NAMESPACE_OID, name.as_bytes()).urn();
    let comma = if event.is_empty() { "" } else { "," };
    // The rest of the line stays as text: a JSON number that is parsed and written again could lose
    // digits.
    let rest = line.trim_start().strip_prefix('{').unwrap_or_default();
    format!("{{\"id\":\"{id}\"{comma}{rest}")
}

/// An import under way, which publishes entries in batches and counts the results.
struct Import<'p> {
    publisher: &'p Publisher,
    report: AppendReport,
    batch: Vec<Publication>,
    /// Numbers of the lines of the batch's events; empty for Atom entries.
    lines: Vec<u64>,
    /// Whether the creation of the feed was tried.
    created: bool,
    conflicts: u64,
    skip_invalid: bool,
    skipped: u64,
}

impl<'p> Import<'p> {
    fn new(publisher: &'p Publisher, skip_invalid: bool) -> Self {
        Self {
            publisher,
            report: AppendReport::new("entries imported"),
            batch: vec![],
            lines: vec![],
            created: false,
            conflicts: 0,
            skip_invalid,
            skipped: 0,
        }
    }

    /// Creates the feed with an id, if the server does not have the feed yet.
    async fn keep_feed_id(&mut self, id: &str) -> anyhow::Result<()> {
        if !self.created {
            match self.publisher.create(id).await {
                // Another feed of the server has this id.
                Err(PublishError::Refused {
                    status: 422,
                    detail,
                    ..
                }) => say::warning(&format!(
                    "the new feed gets an id of its own, not the imported one: {detail}"
                )),
                created => drop(created?),
            }
            // Also after a refusal of the id: the server makes the feed at the first entry.
            self.created = true;
        }
        Ok(())
    }

    /// Adds an entry to the batch, and sends a full batch.
    async fn add_entry(&mut self, entry: Publication) -> anyhow::Result<()> {
        self.add_at(entry, None).await
    }

    /// Adds an entry, or an event with the number of the event's line in the file.
    async fn add_at(&mut self, entry: Publication, line: Option<u64>) -> anyhow::Result<()> {
        self.lines.extend(line);
        self.batch.push(entry);
        if self.batch.len() >= BATCH_ENTRIES {
            self.send_batch().await?;
        }
        Ok(())
    }

    /// Publishes the batch. If the feed has an entry with another content, the feed's content
    /// stays: the source may have revised the entry.
    async fn send_batch(&mut self) -> anyhow::Result<()> {
        let batch = std::mem::take(&mut self.batch);
        let lines = std::mem::take(&mut self.lines);
        let before = self.report.entries;
        let Err(error) = publish(self.publisher, batch.clone(), &mut self.report).await else {
            return Ok(());
        };
        if !self.is_passed_over(&error) {
            return Err(at_line(error, &lines));
        }
        // The publisher splits a large batch. Parts before the refused part are stored, and counted
        // in the report.
        let published = self.report.entries - before;
        let mut lines = lines.into_iter().skip(published);
        // The rest is published one by one: the server stored nothing of the refused part, and the
        // other entries may be sound.
        for entry in batch.into_iter().skip(published) {
            let line: Vec<u64> = lines.next().into_iter().collect();
            let Err(error) = publish(self.publisher, [entry], &mut self.report).await else {
                continue;
            };
            let error = at_line(error, &line);
            if is_conflict(&error) {
                self.conflicts += 1;
                say::detail(&format!("{error:#}"));
            } else if self.is_passed_over(&error) {
                self.skipped += 1;
                say::warning(&format!("skipped: {error:#}"));
            } else {
                return Err(error);
            }
        }
        Ok(())
    }

    /// Returns whether the import goes on without the entry that an error is about.
    fn is_passed_over(&self, error: &anyhow::Error) -> bool {
        is_conflict(error) || self.skip_invalid && is_invalid(error)
    }

    /// Prints the report. Returns the number of skipped entries.
    fn print_report(self, is_all: bool) -> u64 {
        self.report.finish(is_all);
        if self.conflicts > 0 {
            say::note(&format!(
                "{} there with another content, which stays.",
                say::count(self.conflicts, "entry was", "entries were")
            ));
        }
        if self.skipped > 0 {
            say::note(&format!(
                "{} skipped after a refusal by the server.",
                say::count(self.skipped, "entry is", "entries are")
            ));
        }
        self.skipped
    }
}

fn is_conflict(error: &anyhow::Error) -> bool {
    matches!(
        error.downcast_ref(),
        Some(PublishError::Refused { status: 409, .. })
    )
}

/// Returns whether a refusal is about the entry: another server or a retry would refuse the entry,
/// too.
fn is_invalid(error: &anyhow::Error) -> bool {
    matches!(
        error.downcast_ref(),
        Some(PublishError::Refused {
            status: 400 | 413 | 422,
            ..
        })
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_without_an_id_gets_the_same_one_again() {
        let given = with_id(3, " {\"content\": 1.0}");
        assert_eq!(given, with_id(3, " {\"content\": 1.0}"));
        assert_ne!(given, with_id(4, " {\"content\": 1.0}"));
        assert!(
            given.starts_with("{\"id\":\"urn:uuid:") && given.ends_with("\",\"content\": 1.0}")
        );
        assert!(with_id(1, "{}").ends_with("\"}"));
        for left_alone in ["{\"id\":\"urn:1\"}", "[1]", "nonsense"] {
            assert_eq!(with_id(1, left_alone), left_alone);
        }
    }
}
