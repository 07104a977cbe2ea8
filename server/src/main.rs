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
    path::PathBuf,
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use clap::{Args, Parser, Subcommand};
use simplefeed_server::{
    config::{Config, ServeArgs},
    exit, export,
    log::{
        EntryLog, LogError,
        opening::{self, OpenError, OpenedLog},
        sled_log::SledLog,
    },
    rebuild,
    serve::{Listening, Server, asked_to_stop},
    verify,
    views::archive_files::Archive,
};
use tracing_subscriber::EnvFilter;

mod demo;

/// An append-only event log over plain HTTP, as Atom documents that caches keep for ever
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

fn main() -> ExitCode {
    let line = CommandLine::parse();
    if let Err(error) = start_logging(&line.log) {
        eprintln!("error: --log: {error}");
        return ExitCode::from(exit::USAGE);
    }
    let outcome = match line.command {
        Command::Serve(args) => serve(args),
        Command::Demo => demo::demo(),
        Command::Verify(args) => with_log(&args, |log, archive| {
            let report = verify::verify(&**log, archive)?;
            for fault in &report.faults {
                println!("{fault}");
            }
            let (commits, entries, documents) = (report.commits, report.entries, report.documents);
            let faults = report.faults.len();
            eprintln!(
                "Checked {commits} commits, {entries} entries, {documents} archived documents: {faults} faults."
            );
            Ok(if faults == 0 {
                exit::OK
            } else {
                exit::INTEGRITY
            })
        }),
        Command::Rebuild(args) => with_log(&args, |log, archive| {
            let report = rebuild::rebuild(&**log, archive)?;
            for document in &report.different {
                println!("{document} was different");
            }
            let (identical, new, different) =
                (report.identical, report.new, report.different.len());
            eprintln!(
                "Archived documents: {identical} came out identical, {new} were missing, {different} were different."
            );
            Ok(exit::OK)
        }),
        Command::Export(args) => with_log(&args.data, |log, archive| {
            let files = export::export(log, archive, &args.to, args.entries)?;
            eprintln!(
                "Wrote {files} files to {}, among them {}.",
                args.to.display(),
                export::INCLUDE
            );
            Ok(exit::OK)
        }),
    };
    match outcome {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            print_error(&error);
            ExitCode::from(code_of(&error))
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
    let opened = opening::open(&config.data)?;
    let server = Server::start(&config, listening, opened)?;
    eprintln!("listening on http://{}", server.address());
    run(server)
}

/// Runs a server until the process is asked to end.
fn run(server: Server) -> anyhow::Result<u8> {
    let interrupted = Arc::new(AtomicBool::new(false));
    let note = Arc::clone(&interrupted);
    server.run(async move {
        match asked_to_stop().await {
            Ok(by_interrupt) => note.store(by_interrupt, Ordering::Release),
            Err(error) => eprintln!("error: signals cannot be received: {error}"),
        }
    })?;
    let interrupted = interrupted.load(Ordering::Acquire);
    Ok(if interrupted {
        exit::INTERRUPTED
    } else {
        exit::OK
    })
}

/// Opens a log that no server has open, works on it, and closes it again.
fn with_log(
    args: &DataArgs,
    work: impl FnOnce(&Arc<dyn EntryLog>, &Archive) -> anyhow::Result<u8>,
) -> anyhow::Result<u8> {
    let OpenedLog { log, folder } = opening::open_existing(&args.data)?;
    let log = Arc::new(log);
    let shared: Arc<dyn EntryLog> = Arc::<SledLog>::clone(&log);
    let archive = Archive::new(&args.data, args.www.as_deref());
    let outcome = work(&shared, &archive);
    drop(shared);
    // Where something is wrong, all is left as it is, the original of an unclean stop included.
    let sound = matches!(outcome, Ok(exit::OK));
    if let Some(log) = Arc::into_inner(log).filter(|_| sound) {
        OpenedLog { log, folder }.close()?;
    }
    outcome
}

fn print_error(error: &anyhow::Error) {
    eprintln!("error: {error}");
    for cause in error.chain().skip(1) {
        eprintln!("caused by: {cause}");
    }
    if let Some(OpenError::Damaged { .. }) = error.downcast_ref::<OpenError>() {
        eprintln!("hint: keep the folder as it is, and restore a backup into another one.");
    }
}

fn code_of(error: &anyhow::Error) -> u8 {
    let damaged = error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<LogError>())
        .any(|error| matches!(error, LogError::Damaged { .. }));
    match error.downcast_ref::<OpenError>() {
        Some(OpenError::Locked { .. }) => exit::LOCKED,
        Some(OpenError::Damaged { .. } | OpenError::Newer { .. }) => exit::INTEGRITY,
        Some(OpenError::Absent { .. }) => exit::NOT_FOUND,
        _ if damaged => exit::INTEGRITY,
        _ => exit::OTHER,
    }
}
