//! Every claim about speed as one command.
//!
//! Shell: processes, sockets, the clock. Each subcommand makes its own data, starts the real release
//! programs and the real peers on free loopback ports, warms up, measures paired rounds in turn, and
//! prints one table, row by row. Only ratios within one run mean anything: machines differ and are shared.
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "this program prints tables"
)]
#![expect(
    clippy::disallowed_methods,
    reason = "the files of a benchmark are for that run only"
)]

use std::path::PathBuf;

use clap::{Parser, Subcommand};

mod append;
mod catch_up;
mod closed;
mod delay;
mod growth;
mod lists;
mod load;
mod pages;
mod plots;
mod process;
mod push;
mod refresh;
mod replay;
mod serve;
mod settle;
mod sup;
mod table;
mod timelines;
mod unfold;
mod watch;
#[path = "../../tests/black_box/families.rs"]
mod families;

use table::Table;

/// Measures Simplefeed against its peers
///
/// What a subcommand needs beside ours is in Debian's packages: nginx-light wrk redis-server postgresql
/// python3-feedparser curl beanstalkd nats-server
/// chromium-driver.
#[derive(Debug, Parser)]
#[command(name = "simplefeed-bench", version)]
struct CommandLine {
    /// Also write the table as JSON
    #[arg(long, value_name = "FILE", global = true)]
    json: Option<PathBuf>,
    /// Seconds of each measurement
    #[arg(long, default_value_t = 2, global = true)]
    seconds: u64,
    /// Rounds of each measurement
    #[arg(long, default_value_t = 5, global = true)]
    rounds: usize,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Documents, against nginx serving the same files with the same headers
    Serve,
    /// Durable appends, against PostgreSQL, Redis, and bare sled with the same barrier and batches
    Append,
    /// A million entries replayed, against Python's feedparser, and curl that only downloads them
    Replay,
    /// Catching up from 0 to 1,000 documents behind, against the walk from link to link
    CatchUp,
    /// What things cost with 10 million entries and 100,000 feeds, against few
    Growth,
    /// Single entries with all that follows, over one feed and over 100,000; requests while the journal is settled
    Settle,
    /// Time until a consumer has an entry, against Redis, PostgreSQL and NATS; 10,000 streams and waits
    Push,
    /// Pages for people on a large server, in Chromium; a page that follows live; what counting entries costs
    Pages(pages::Size),
    /// Which of many feeds changed: requests, time until an update is seen, sizes and costs, against polling
    Sup,
    /// The refresher: freshness and requests; its queue in a file and in PostgreSQL, against redb, beanstalkd and others
    Refresh(refresh::Plots),
    /// Bodies that are small and unfold to much, against ordinary entries; another publisher beside them
    Unfold,
    /// Timelines: fan-out, reads and a mixed workload, against Redis and PostgreSQL doing the same work
    Timelines(timelines::Scale),
    /// The first look at a thousand plain feeds, against one consumer after the other
    Watch,
    /// Whether the time of a 404 tells a closed feed from one that is not there
    Closed,
    /// Pages of lists of names, from ten names to a million
    Lists(lists::Names),
    /// Replay a feed with the library, for `replay`
    #[command(hide = true)]
    LibraryReplay { url: String },
    /// Look at many feeds with a watcher, for `watch`
    #[command(hide = true)]
    LibraryWatch { base: String },
    /// Look at many feeds with a consumer each, for `watch`
    #[command(hide = true)]
    LibraryEach { base: String },
}

fn main() -> anyhow::Result<()> {
    let CommandLine {
        json,
        seconds,
        rounds,
        command,
    } = CommandLine::parse();
    let table = &mut Table::default();
    let measured = match command {
        Command::Serve => serve::measure(table, rounds),
        Command::Append => append::measure(table, rounds, seconds),
        Command::Replay => replay::measure(table, rounds),
        Command::CatchUp => catch_up::measure(table, rounds),
        Command::Closed => closed::measure(table, rounds),
        Command::Growth => growth::measure(table, rounds, seconds),
        Command::Lists(size) => lists::measure(table, rounds, seconds, &size),
        Command::Pages(size) => pages::measure(table, rounds, seconds, &size),
        Command::Push => push::measure(table, rounds, seconds),
        Command::Refresh(plots) => refresh::measure(table, rounds, seconds, &plots),
        Command::Settle => settle::measure(table, rounds),
        Command::Sup => sup::measure(table, rounds, seconds),
        Command::Timelines(scale) => timelines::measure(table, rounds, seconds, &scale),
        Command::Unfold => unfold::measure(table, rounds, seconds),
        Command::Watch => watch::measure(table, rounds),
        Command::LibraryReplay { url } => return replay::library(&url),
        Command::LibraryWatch { base } => return watch::library(&base),
        Command::LibraryEach { base } => return watch::each(&base),
    };
    // Rows measured before a failure count, too.
    if let Some(path) = json {
        std::fs::write(&path, table.json())?;
        eprintln!("Wrote {}.", path.display());
    }
    measured
}
