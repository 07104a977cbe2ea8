//! `import`: a feed from elsewhere into a feed here, with its ids.
//!
//! Shell: files and the network. A live feed or archive is walked like `replay` does; files are read like
//! `append` does. What was imported before is a duplicate, so an import that broke off is begun again.
use std::path::PathBuf;

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
    append::{Report, publish},
    exit, say,
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
    #[command(flatten)]
    token: TokenArgs,
    /// Origin that links and redirects may lead to besides the source's own
    #[arg(long, value_name = "ORIGIN")]
    allow_origin: Vec<Url>,
}

pub(crate) async fn import(args: ImportArgs) -> anyhow::Result<u8> {
    let publisher = args.token.publisher(&args.url)?;
    let mut import = Import::new(&publisher);
    let outcome = import_all(&args, &mut import).await;
    let conflicts = import.finish();
    outcome?;
    Ok(if conflicts == 0 {
        exit::OK
    } else {
        exit::INTEGRITY
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

/// Walks a feed from its oldest entry, or from a bookmark.
async fn import_feed(
    url: &str,
    bookmark: Option<&PathBuf>,
    allowed: &[Url],
    import: &mut Import<'_>,
) -> anyhow::Result<()> {
    // What was revised is a conflict to tell, not to pass over.
    let mut builder = Consumer::builder(url).since(Since::Oldest).revisions(true);
    for origin in allowed {
        builder = builder.allow_origin(origin.clone());
    }
    if let Some(path) = bookmark {
        let store = FileBookmark::open(path)
            .with_context(|| format!("cannot use the bookmark {}", path.display()))?;
        builder = builder.bookmark(store);
    }
    let mut consumer = builder.build()?;
    while let Some(delivery) = consumer.next().await? {
        import.keep_feed_id(&delivery.bookmark().feed).await?;
        import.add(Publication::Atom(entry_of(&delivery)?)).await?;
        // The bookmark moves only past what is stored.
        if consumer.ready() == 0 {
            import.send().await?;
            consumer.accept(&delivery).await?;
        }
    }
    import.send().await
}

/// Returns an entry as it can be published. Where its references are relative, it says to what: in a
/// feed from elsewhere, that is where the documents are.
fn entry_of(delivery: &Delivery) -> anyhow::Result<String> {
    let entry = std::str::from_utf8(delivery.raw()).context("an entry is not UTF-8")?;
    // Not the document itself: the entry moves from one to the next, and must come out the same.
    let folder = delivery
        .document()
        .and_then(|document| document.join(".").ok());
    let (Err(_), Some(base)) = (elements(entry), folder) else {
        return Ok(entry.into());
    };
    let base = base.as_str().replace('&', "&amp;").replace('"', "&quot;");
    let based = format!("<feed xmlns=\"{ATOM}\" xml:base=\"{base}\">{entry}</feed>");
    let based = elements(&based).ok().and_then(|mut based| based.pop());
    // What is wrong with it otherwise, the server says best.
    Ok(based.unwrap_or_else(|| entry.into()))
}

async fn import_file(path: &str, import: &mut Import<'_>) -> anyhow::Result<()> {
    let bytes = std::fs::read(path)?;
    let text = String::from_utf8(bytes).context("it is not UTF-8")?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
    if text.trim_start().starts_with('<') {
        let place = Url::parse("file:///").context("no base")?;
        if let Ok(feed) = Document::read(text.to_owned().into(), &place) {
            import.keep_feed_id(&feed.feed).await?;
        }
        for element in elements(text)? {
            import.add(Publication::Atom(element)).await?;
        }
    } else {
        for (number, line) in (1_u64..).zip(text.lines()) {
            if !line.trim().is_empty() {
                let line = with_id(number, line);
                import.add(Publication::Line(line)).await?;
            }
        }
    }
    import.send().await
}

/// Gives an event that has no id one that it gets in every run, made of the line and its number.
fn with_id(number: u64, line: &str) -> String {
    let event: Option<serde_json::Map<String, serde_json::Value>> = serde_json::from_str(line).ok();
    let Some(event) = event.filter(|event| !event.contains_key("id")) else {
        return line.into();
    };
    let name = format!("{number}\0{line}");
    let id = Uuid::new_v5(&Uuid::NAMESPACE_OID, name.as_bytes()).urn();
    let comma = if event.is_empty() { "" } else { "," };
    // Numbers stay as they are written.
    let rest = line.trim_start().strip_prefix('{').unwrap_or_default();
    format!("{{\"id\":\"{id}\"{comma}{rest}")
}

/// Entries on their way from elsewhere: in batches, into a feed that has the id of theirs.
struct Import<'p> {
    publisher: &'p Publisher,
    report: Report,
    batch: Vec<Publication>,
    /// Whether the feed is there.
    created: bool,
    conflicts: u64,
}

impl<'p> Import<'p> {
    fn new(publisher: &'p Publisher) -> Self {
        Self {
            publisher,
            report: Report::new("entries imported"),
            batch: vec![],
            created: false,
            conflicts: 0,
        }
    }

    /// Creates the feed with an id, if it is not there yet.
    async fn keep_feed_id(&mut self, id: &str) -> anyhow::Result<()> {
        if !self.created {
            match self.publisher.create(id).await {
                Err(PublishError::Refused {
                    status: 422,
                    detail,
                    ..
                }) => say::warning(&format!("the feed gets an id of its own: {detail}")),
                created => drop(created?),
            }
            self.created = true;
        }
        Ok(())
    }

    /// Adds an entry to the batch, which is sent when it is full.
    async fn add(&mut self, entry: Publication) -> anyhow::Result<()> {
        self.batch.push(entry);
        if self.batch.len() >= BATCH_ENTRIES {
            self.send().await?;
        }
        Ok(())
    }

    /// Sends the batch. An entry that is there with another content stays as it is: where it came from,
    /// it may have been revised.
    async fn send(&mut self) -> anyhow::Result<()> {
        let batch = std::mem::take(&mut self.batch);
        let before = self.report.entries;
        let Err(error) = publish(self.publisher, batch.clone(), &mut self.report).await else {
            return Ok(());
        };
        if !is_conflict(&error) {
            return Err(error);
        }
        let published = self.report.entries - before;
        for entry in batch.into_iter().skip(published) {
            match publish(self.publisher, [entry], &mut self.report).await {
                Err(error) if is_conflict(&error) => {
                    self.conflicts += 1;
                    say::warning(&format!("conflict: {error}"));
                }
                published => published?,
            }
        }
        Ok(())
    }

    /// Reports, and returns how many entries were there with another content.
    fn finish(self) -> u64 {
        self.report.finish();
        if self.conflicts > 0 {
            say::note(&format!(
                "{} entries were there with another content, which stays.",
                self.conflicts
            ));
        }
        self.conflicts
    }
}

fn is_conflict(error: &anyhow::Error) -> bool {
    matches!(
        error.downcast_ref(),
        Some(PublishError::Refused { status: 409, .. })
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
