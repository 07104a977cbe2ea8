//! `ls`: the feeds of a server.
//!
//! Shell: stdout. One line per feed: `entries TAB title TAB URL`. `entries` is their number, or `-`
//! for a timeline.

use std::io::Write as _;

use anyhow::Context as _;
use clap::{Args, ValueEnum};
use serde::Deserialize;
use url::Url;

use crate::{exit, source::SourceArgs, stdout::stdout};

/// List the feeds of a server
#[derive(Args, Debug)]
pub(crate) struct CatalogueArgs {
    /// URL of the catalogue
    url: Url,
    /// Feeds of this kind only
    #[arg(long)]
    kind: Option<FeedKind>,
    #[command(flatten)]
    source: SourceArgs,
}

#[derive(Deserialize)]
struct CataloguePage {
    feeds: Vec<CatalogueFeed>,
    next: Option<String>,
}

/// Kind of a feed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum FeedKind {
    /// A feed that takes entries
    #[default]
    Feed,
    /// A feed made of others
    Timeline,
}

#[derive(Deserialize)]
struct CatalogueFeed {
    #[serde(default)]
    kind: FeedKind,
    title: String,
    /// Number of entries; `None` for a timeline.
    entries: Option<u64>,
    href: String,
}

pub(crate) async fn list(args: CatalogueArgs) -> anyhow::Result<u8> {
    let fetcher = args.source.fetcher(&args.url)?;
    let mut out = stdout();
    let mut next = Some(args.url);
    while let Some(url) = next {
        let body = fetcher.bytes(&url).await?;
        let catalogue: CataloguePage = serde_json::from_slice(&body)
            .with_context(|| format!("{url} is not a catalogue of feeds"))?;
        let is_wanted = |feed: &&CatalogueFeed| args.kind.is_none_or(|kind| kind == feed.kind);
        for feed in catalogue.feeds.iter().filter(is_wanted) {
            // The publisher chooses the title: control characters must not reach the terminal.
            let plain = |text: &str| text.replace(char::is_control, " ");
            let entries = feed
                .entries
                .map_or("-".into(), |entries| entries.to_string());
            writeln!(
                out,
                "{entries}\t{}\t{}",
                plain(&feed.title),
                plain(&feed.href)
            )?;
        }
        next = catalogue.next.map(|next| url.join(&next)).transpose()?;
    }
    out.flush()?;
    Ok(exit::OK)
}
