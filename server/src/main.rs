//! The `simplefeed-server` command.
//!
//! Shell: the command line, the environment, the terminal. Parses, calls the library, prints, and
//! maps errors to exit codes.
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "this file is the terminal"
)]

use std::{
    io::IsTerminal as _,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use anyhow::Context as _;
use clap::{Args, Parser, Subcommand};
use simplefeed_server::{
    config::{Config, ServeArgs},
    control, exit,
    log::{
        EntryLog,
        folder::{CONTROL_SOCKET, OpenError},
        opening::{self, OpenedLog},
        sled_log::SledLog,
    },
    recover,
    serve::{Listening, Server, StopSignals},
    upkeep::{self, Line, Task},
    views::archive_files::Archive,
};
use tracing_subscriber::EnvFilter;

mod demo;

/// glibc's allocator took a quarter of the CPU of an append.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// An append-only event log over plain HTTP, as Atom documents that caches keep for ever
///
/// `verify`, `rebuild`, `export` and `backup` also work while a server has the log open.
///
/// Exit codes: 0 ok, 1 other, 2 usage, 10 not found, 11 data folder locked, 15 integrity, 130
/// interrupted.
#[derive(Debug, Parser)]
#[command(name = "simplefeed-server", version)]
struct CommandLine {
    /// What to log to stderr: a level, or a filter such as `info,simplefeed_server::http=debug`
    #[arg(long, env = "SIMPLEFEED_LOG", default_value = "info", global = true)]
    log: String,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve the log in a data folder
    Serve(ServeArgs),
    /// Serve a sample feed from a temporary folder, with one more event a second
    Demo,
    /// Check everything stored; print a line per fault
    Verify(DataArgs),
    /// Make the archive files again from the log
    Rebuild(DataArgs),
    /// Write all documents as static files
    Export(ExportArgs),
    /// Copy the log and its archive into a new folder
    Backup(NewFolderArgs),
    /// Make a new log of what is left of a damaged one; print a line per thing that is missing
    Recover(NewFolderArgs),
}

#[derive(Args, Debug)]
struct DataArgs {
    /// Folder that holds the log
    #[arg(long, env = "SIMPLEFEED_DATA", value_name = "DIR")]
    data: PathBuf,
    /// Folder for archived documents, if not DIR/www
    #[arg(long, env = "SIMPLEFEED_WWW", value_name = "DIR")]
    www: Option<PathBuf>,
}

#[derive(Args, Debug)]
struct ExportArgs {
    #[command(flatten)]
    data: DataArgs,
    /// Folder to write to
    #[arg(long, value_name = "DIR")]
    to: PathBuf,
    /// Write every entry as a document of its own, too
    #[arg(long)]
    entries: bool,
}

#[derive(Args, Debug)]
struct NewFolderArgs {
    #[command(flatten)]
    data: DataArgs,
    /// Folder to make; it takes its name when it is complete
    #[arg(long, value_name = "DIR")]
    to: PathBuf,
}

fn main() -> ExitCode {
    let line = CommandLine::parse();
    if let Err(error) = start_logging(&line.log) {
        eprintln!("error: --log: {error}");
        return ExitCode::from(exit::USAGE);
    }
    let outcome = match line.command {
        Command::Serve(args) => serve(args),
        Command::Demo => demo::demo(),
        Command::Verify(args) => look_after(&args, &Task::Verify),
        Command::Rebuild(args) => look_after(&args, &Task::Rebuild),
        Command::Export(args) => absolute(&args.to).and_then(|to| {
            let entries = args.entries;
            look_after(&args.data, &Task::Export { to, entries })
        }),
        Command::Backup(args) => {
            absolute(&args.to).and_then(|to| look_after(&args.data, &Task::Backup { to }))
        }
        Command::Recover(args) => recover(&args),
    };
    match outcome {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            for text in exit::texts_of(&error) {
                eprintln!("{text}");
            }
            ExitCode::from(exit::code_of(&error))
        }
    }
}

fn start_logging(filter: &str) -> Result<(), tracing_subscriber::filter::ParseError> {
    let filter = EnvFilter::try_new(filter)?;
    let color = std::io::stderr().is_terminal();
    tracing_subscriber::fmt()
        .with_ansi(color)
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .init();
    Ok(())
}

fn serve(args: ServeArgs) -> anyhow::Result<u8> {
    let config = match Config::new(args) {
        Ok(config) => config,
        Err(error) => {
            eprintln!("error: {error}");
            return Ok(exit::USAGE);
        }
    };
    let listening = Listening::bind(config.listen)?;
    let signals = listening.stop_signals()?;
    let opened = opening::open(&config.data)?;
    let server = Server::start(&config, listening, opened)?;
    eprintln!("listening on http://{}", server.address());
    run(server, signals)
}

/// Runs a server until the process is asked to end.
fn run(server: Server, signals: StopSignals) -> anyhow::Result<u8> {
    let interrupted = Arc::new(AtomicBool::new(false));
    let note = Arc::clone(&interrupted);
    server.run(async move {
        note.store(signals.received().await, Ordering::Release);
    })?;
    let interrupted = interrupted.load(Ordering::Acquire);
    Ok(if interrupted {
        exit::INTERRUPTED
    } else {
        exit::OK
    })
}

/// Does a task: within the server that has the log open, or else here.
fn look_after(args: &DataArgs, task: &Task) -> anyhow::Result<u8> {
    let OpenedLog { log, folder } = match opening::open_existing(&args.data) {
        Ok(opened) => opened,
        Err(error @ OpenError::Locked { .. }) => {
            let socket = args.data.join(CONTROL_SOCKET);
            let code = control::ask(&socket, task, &mut print_line);
            let code = code.context("the server broke off")?;
            if code.is_none() {
                eprintln!(
                    "hint: nobody listens at {}; stop the server first",
                    socket.display()
                );
            }
            return code.ok_or_else(|| error.into());
        }
        Err(error) => return Err(error.into()),
    };
    let log = Arc::new(log);
    let shared: Arc<dyn EntryLog> = Arc::<SledLog>::clone(&log);
    let archive = Archive::new(&args.data, args.www.as_deref());
    let outcome = upkeep::run(task, &shared, &archive, &mut print_line);
    drop(shared);
    // Where something is wrong, all is left as it is, the original of an unclean stop included.
    let sound = matches!(outcome, Ok(exit::OK));
    if let Some(log) = Arc::into_inner(log).filter(|_| sound) {
        OpenedLog { log, folder }.close()?;
    }
    outcome
}

/// Recovers a log that no server has open.
fn recover(args: &NewFolderArgs) -> anyhow::Result<u8> {
    let NewFolderArgs { data, to } = args;
    let report = recover::recover(&data.data, data.www.as_deref(), to)?;
    for missing in &report.missing {
        println!("{missing}");
    }
    let (feeds, entries, documents) = (report.feeds, report.entries, report.documents);
    eprintln!(
        "Recovered {entries} entries of {feeds} feeds, and {documents} archived documents byte for byte, in {}.",
        to.display()
    );
    Ok(if report.missing.is_empty() {
        exit::OK
    } else {
        exit::INTEGRITY
    })
}

/// The server that does a task may be in another folder.
fn absolute(path: &Path) -> anyhow::Result<PathBuf> {
    std::path::absolute(path).with_context(|| format!("cannot find {}", path.display()))
}

fn print_line(line: Line) {
    match line {
        Line::Result(text) => println!("{text}"),
        Line::Note(text) => eprintln!("{text}"),
    }
}
