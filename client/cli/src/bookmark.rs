//! `bookmark`: shows a bookmark, sets a bookmark to a place in the feed, or removes a bookmark.
//!
//! Shell: the file, and the feed in which a place is looked up.
use std::{
    fs,
    io::Write as _,
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use clap::{Args, Subcommand};
use simplefeed_client::{BookmarkStore as _, ConsumerError, FileBookmark, Since};

use crate::{exit, say, source::SourceArgs, stdout::stdout};

/// Look at a bookmark, move it, or forget it
#[derive(Args, Debug)]
pub(crate) struct BookmarkArgs {
    #[command(subcommand)]
    command: BookmarkCommand,
}

#[derive(Debug, Subcommand)]
enum BookmarkCommand {
    /// Print a bookmark, which is JSON
    Show {
        /// The file that holds it
        file: PathBuf,
    },
    /// Put a bookmark to a place that exists in the feed
    Set(SetArgs),
    /// Forget the place: the next run begins as if it were the first
    Clear {
        /// The file that holds it
        file: PathBuf,
    },
}

#[derive(Args, Debug)]
struct SetArgs {
    /// The file to write
    file: PathBuf,
    /// URL of the feed, or of any of its documents
    #[arg(long)]
    url: String,
    #[command(flatten)]
    place: BookmarkPlace,
    #[command(flatten)]
    source: SourceArgs,
}

#[derive(Args, Debug)]
#[group(required = true, multiple = false)]
struct BookmarkPlace {
    /// Begin after the entry with this id
    #[arg(long, value_name = "ID")]
    entry: Option<String>,
    /// Begin after the newest entry
    #[arg(long)]
    newest: bool,
    /// Begin with the oldest entry
    #[arg(long)]
    oldest: bool,
}

pub(crate) async fn bookmark(args: BookmarkArgs) -> anyhow::Result<u8> {
    match args.command {
        BookmarkCommand::Show { file } => show_bookmark(&file),
        BookmarkCommand::Set(args) => Box::pin(set_bookmark(args)).await,
        BookmarkCommand::Clear { file } => clear_bookmark(&file),
    }
}

fn show_bookmark(path: &Path) -> anyhow::Result<u8> {
    let loaded = open_bookmark(path)?.peek();
    let found = loaded.map_err(|source| {
        let action = "read";
        ConsumerError::Bookmark { action, source }
    })?;
    if found.is_none() {
        let error = anyhow::anyhow!("there is no bookmark at {}", path.display());
        say::error(&error, None, exit::NOT_FOUND);
        return Ok(exit::NOT_FOUND);
    }
    // The bytes are printed unchanged, so that the output can be kept as another bookmark.
    let text = fs::read(path).context("the bookmark cannot be read")?;
    let mut out = stdout();
    out.write_all(&text)?;
    out.flush()?;
    Ok(exit::OK)
}

async fn set_bookmark(args: SetArgs) -> anyhow::Result<u8> {
    let mut store = open_bookmark(&args.file)?;
    // Loaded only as a check: a file that is no bookmark belongs to something else, and must not be
    // overwritten.
    store
        .load()
        .await
        .context("the bookmark cannot be replaced")?;
    let since = match args.place.entry {
        Some(id) => Since::Entry(id),
        None if args.place.newest => Since::Newest,
        None => Since::Oldest,
    };
    // The place is looked up in the feed: a bookmark at an entry that the feed lacks would be a gap
    // at the next start.
    let builder = args.source.consumer(&args.url)?.since(since);
    let place = builder.build()?.locate().await?;
    let kept = store.save(&place).await;
    kept.context("the bookmark cannot be kept")?;
    match &place.entry {
        Some(entry) => say::note(&format!(
            "The next entry is the one after {entry} of {}.",
            place.feed
        )),
        None => say::note(&format!("The next entry is the oldest of {}.", place.feed)),
    }
    Ok(exit::OK)
}

fn clear_bookmark(path: &Path) -> anyhow::Result<u8> {
    let cleared = open_bookmark(path)?
        .clear()
        .context("the bookmark cannot be removed")?;
    if !cleared {
        say::note(&format!("There was no bookmark at {}.", path.display()));
    }
    Ok(exit::OK)
}

fn open_bookmark(path: &Path) -> anyhow::Result<FileBookmark> {
    FileBookmark::open(path).with_context(|| format!("cannot use the bookmark {}", path.display()))
}
