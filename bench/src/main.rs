//! Every claim about speed as one command.
//!
//! Shell: processes, sockets, the clock. Each subcommand makes its own data, starts the real release
//! programs and the real peers on free loopback ports, warms up, measures paired rounds in turn, and
//! prints one table. Only ratios within one run mean anything: machines differ and are shared.
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "this program prints tables"
)]

use std::path::PathBuf;

use clap::{Parser, Subcommand};

mod append;
mod load;
mod process;
mod serve;
mod table;

/// Measures Simplefeed against its peers
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

#[derive(Clone, Copy, Debug, Subcommand)]
enum Command {
    /// Documents, against nginx serving the same files with the same headers
    Serve,
    /// Durable appends, against bare sled with the same barrier, batches and id index
    Append,
}

fn main() -> anyhow::Result<()> {
    let line = CommandLine::parse();
    let table = match line.command {
        Command::Serve => serve::measure(line.rounds, line.seconds)?,
        Command::Append => append::measure(line.rounds, line.seconds)?,
    };
    println!("{}", table.text());
    if let Some(path) = line.json {
        std::fs::write(&path, table.json())?;
        eprintln!("Wrote {}.", path.display());
    }
    Ok(())
}
