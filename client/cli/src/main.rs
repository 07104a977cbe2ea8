//! The `simplefeed` command.
//!
//! Shell: the command line and the terminal. Data goes to stdout, everything else to stderr; each
//! subcommand and each output format has a file of its own.
#![expect(clippy::print_stderr, reason = "this file is the terminal")]

use std::{io, process::ExitCode};

use clap::{Parser, Subcommand};

mod append;
mod bookmark;
mod catalogue;
mod exit;
mod format;
mod get;
mod import;
mod progress;
mod replay;
mod since;
mod token;

/// Publish, replay and follow feeds
///
/// Exit codes: 0 ok, 1 other, 2 usage, 10 not found, 12 not authorised, 13 gap, 14 unavailable after
/// retries (or nothing but an old copy), 15 integrity (history changed), 16 another feed,
/// 130 interrupted.
#[derive(Debug, Parser)]
#[command(name = "simplefeed", version)]
struct CommandLine {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Publish NDJSON events, or Atom entries, to a feed
    Append(append::AppendArgs),
    /// Publish a feed from elsewhere, with its ids
    Import(import::ImportArgs),
    /// Print a feed's entries, oldest first, up to the newest there is
    Replay(replay::ReplayArgs),
    /// Print entries as they come
    Tail(replay::ReplayArgs),
    /// Look at a bookmark, move it, or forget it
    Bookmark(bookmark::BookmarkArgs),
    /// List the feeds of a server, given the URL of its catalogue
    Ls(catalogue::CatalogueArgs),
    /// Print one document or entry, as it is
    Get(get::GetArgs),
}

fn main() -> ExitCode {
    let line = CommandLine::parse();
    // Documents are read on one thread while the other hands entries over.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    let outcome = match runtime {
        Ok(runtime) => runtime.block_on(run_until_interrupted(line.command)),
        Err(error) => Err(error.into()),
    };
    match outcome {
        Ok(code) => ExitCode::from(code),
        // Whoever read our output has had enough: `replay | head` is no error.
        Err(error) if is_broken_pipe(&error) => ExitCode::from(exit::OK),
        Err(error) => {
            eprintln!("error: {error}");
            for cause in error.chain().skip(1) {
                eprintln!("caused by: {cause}");
            }
            if let Some(hint) = exit::hint_of(&error) {
                eprintln!("hint: {hint}");
            }
            ExitCode::from(exit::code_of(&error))
        }
    }
}

async fn run_until_interrupted(command: Command) -> anyhow::Result<u8> {
    tokio::select! {
        outcome = run(command) => outcome,
        _ = tokio::signal::ctrl_c() => Ok(exit::INTERRUPTED),
    }
}

async fn run(command: Command) -> anyhow::Result<u8> {
    match command {
        Command::Append(args) => append::append(args).await,
        Command::Import(args) => import::import(args).await,
        Command::Replay(args) => replay::replay(args, false).await,
        Command::Tail(args) => replay::replay(args, true).await,
        Command::Bookmark(args) => bookmark::bookmark(args).await,
        Command::Ls(args) => catalogue::list(args).await,
        Command::Get(args) => get::get(args).await,
    }
}

/// A pipe to a server may break, too; only our own output is an error of its own here.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .downcast_ref::<io::Error>()
        .is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}
