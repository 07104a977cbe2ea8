//! `parked`: look at entries that were set aside, hand them to a command again, or give them up.
//!
//! Shell: the state folder. `list` and `show` need no lock, so they work while the consumer runs.

use std::{
    collections::HashSet,
    io::{self, Write as _},
    path::PathBuf,
    time::Duration,
};

use anyhow::bail;
use clap::{Args, Subcommand};
use serde::Serialize;
use simplefeed_client::{
    state::parked::{self, ParkedEntry},
    worker,
};

use crate::{
    duration, exit,
    format::{Format, one_line},
    handler::Handler,
    replay::Warnings,
    say,
    state::{self, StateArgs},
    stdout::stdout,
};

/// List, show, retry or drop the entries that were set aside
#[derive(Args, Debug)]
pub(crate) struct ParkedArgs {
    #[command(subcommand)]
    command: ParkedCommand,
}

#[derive(Debug, Subcommand)]
enum ParkedCommand {
    /// Print a line for each: number of attempts, time, key, id, and why it failed
    List {
        #[command(flatten)]
        folder: FolderArgs,
        /// Print one JSON object a line
        #[arg(long)]
        json: bool,
    },
    /// Print the entries as they would be handed over
    Show {
        #[command(flatten)]
        folder: FolderArgs,
        /// Ids of the entries; all of them if none is given
        ids: Vec<String>,
        /// How to print an entry
        #[arg(long, value_enum, default_value_t = Format::Ndjson)]
        format: Format,
    },
    /// Hand entries to a command again, in their order; those it accepts are parked no more
    Retry {
        #[command(flatten)]
        folder: FolderArgs,
        /// Ids of the entries; all of them if none is given
        ids: Vec<String>,
        /// Command to run for each entry, as with tail
        #[arg(long, value_name = "COMMAND")]
        exec: String,
        /// How long the command may take for one entry; then it is killed
        #[arg(long, value_name = "TIME", value_parser = duration::parse, default_value = "5m")]
        attempt_timeout: Duration,
        /// How to hand over an entry
        #[arg(long, value_enum, default_value_t = Format::Ndjson)]
        format: Format,
    },
    /// Give entries up; the record says why
    Drop {
        #[command(flatten)]
        folder: FolderArgs,
        /// Ids of the entries
        #[arg(required = true)]
        ids: Vec<String>,
        /// Why they need not be handled
        #[arg(long)]
        reason: String,
    },
}

#[derive(Args, Debug)]
#[group(required = true, multiple = false)]
struct FolderArgs {
    /// Folder that the consumer was given
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
    /// URL that the consumer was given, if it was given no folder
    #[arg(long)]
    url: Option<String>,
}

impl FolderArgs {
    fn folder_path(&self) -> anyhow::Result<PathBuf> {
        let args = StateArgs {
            state: self.state.clone(),
        };
        let folder = args.folder(self.url.as_deref().unwrap_or_default())?;
        // Opening would make the folder: a mistyped path must not become a state folder.
        if !folder.is_dir() {
            bail!("there is no folder {}", folder.display());
        }
        Ok(folder)
    }

    /// Returns the parked entries, without locking the folder.
    fn open_parked(&self) -> anyhow::Result<impl Iterator<Item = io::Result<ParkedEntry>> + use<>> {
        Ok(parked::iter(&self.folder_path()?)?)
    }
}

#[derive(Serialize)]
struct ParkedLine<'a> {
    id: &'a str,
    position: Option<u64>,
    key: Option<&'a str>,
    waits: bool,
    attempts: u32,
    error: Option<&'a str>,
    at: &'a str,
}

pub(crate) async fn parked(args: ParkedArgs) -> anyhow::Result<u8> {
    match args.command {
        ParkedCommand::List { folder, json } => list_parked(folder.open_parked()?, json),
        ParkedCommand::Show {
            folder,
            ids,
            format,
        } => show_parked(folder.open_parked()?, &ids, format),
        ParkedCommand::Retry {
            folder,
            ids,
            exec,
            attempt_timeout,
            format,
        } => {
            let handler = Handler::new(exec, format, attempt_timeout);
            retry_parked(&folder, &ids, &handler, attempt_timeout).await
        }
        ParkedCommand::Drop {
            folder,
            ids,
            reason,
        } => drop_all(&folder, &ids, &reason),
    }
}

/// Calls `work` with the parked entries of these ids, or with all if no id is given. An id that no
/// parked entry has is an error.
fn each_parked(
    all: impl Iterator<Item = io::Result<ParkedEntry>>,
    ids: &[String],
    mut work: impl FnMut(ParkedEntry) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let mut missing: HashSet<&str> = ids.iter().map(String::as_str).collect();
    for parked in all {
        let parked = parked?;
        let wanted = {
            let delivery = parked.delivery();
            missing.remove(delivery.id());
            ids.is_empty() || ids.iter().any(|id| id == delivery.id())
        };
        if wanted {
            work(parked)?;
        }
    }
    // The smallest of the missing ids, so that the message is the same each time.
    match missing.into_iter().min() {
        Some(id) => bail!("entry {id} is not parked"),
        None => Ok(()),
    }
}

fn list_parked(
    all: impl Iterator<Item = io::Result<ParkedEntry>>,
    json: bool,
) -> anyhow::Result<u8> {
    let mut out = stdout();
    for parked in all {
        let parked = parked?;
        let delivery = parked.delivery();
        let line = ParkedLine {
            id: delivery.id(),
            position: delivery.position().map(|position| position.0),
            key: parked.key.as_deref(),
            waits: parked.waits,
            attempts: parked.attempts,
            error: parked.error.as_deref(),
            at: &parked.at,
        };
        let text = if json {
            serde_json::to_string(&line)?
        } else {
            let why = if line.waits {
                "waits"
            } else {
                line.error.unwrap_or_default()
            };
            let key = line.key.unwrap_or("-");
            // Text of strangers: control characters must not reach the terminal.
            one_line(&format!(
                "{}  {}  {key}  {}  {why}",
                line.attempts, line.at, line.id
            ))
        };
        writeln!(out, "{text}")?;
    }
    out.flush()?;
    Ok(exit::OK)
}

fn show_parked(
    all: impl Iterator<Item = io::Result<ParkedEntry>>,
    ids: &[String],
    format: Format,
) -> anyhow::Result<u8> {
    let mut out = stdout();
    each_parked(all, ids, |parked| {
        format.write(&parked.delivery(), &mut out)
    })?;
    out.flush()?;
    Ok(exit::OK)
}

async fn retry_parked(
    folder: &FolderArgs,
    ids: &[String],
    handler: &Handler,
    timeout: Duration,
) -> anyhow::Result<u8> {
    // Before the lock: a mistyped id fails even while the consumer runs.
    let mut wanted = HashSet::new();
    each_parked(folder.open_parked()?, ids, |parked| {
        wanted.insert(parked.number);
        Ok(())
    })?;
    let state = state::open(&folder.folder_path()?)?;
    // A number belongs to one parked entry; several parked entries may have the same id.
    let is_wanted = |parked: &ParkedEntry| wanted.contains(&parked.number);
    // Longer than the timeout of the command, which comes first and kills the command with all
    // processes of the command's group.
    let time = timeout.saturating_add(Duration::from_secs(10));
    let mut warnings = Warnings::default();
    let retried = worker::retry(&state, is_wanted, time, &mut warnings, async |entry| {
        handler.handle(&entry).await
    });
    let retried = retried.await?;
    say::note(&format!(
        "{} handled, {} failed, {} behind one with the same key.",
        say::count(retried.handled, "entry was", "entries were"),
        retried.failed,
        say::count(retried.waiting, "waits", "wait")
    ));
    let done = retried.failed + retried.waiting == 0;
    Ok(if done { exit::OK } else { exit::PARTIAL })
}

fn drop_all(folder: &FolderArgs, ids: &[String], reason: &str) -> anyhow::Result<u8> {
    // The lock keeps the consumer from running: a running consumer has the keys of parked entries
    // in memory, and would not notice the change.
    let state = state::open(&folder.folder_path()?)?;
    each_parked(folder.open_parked()?, ids, |parked| {
        Ok(worker::drop_parked(&state, &parked, reason)?)
    })?;
    Ok(exit::OK)
}
