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
    fs::OpenOptions,
    io::{IsTerminal as _, Read as _, Write as _},
    net::SocketAddr,
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use anyhow::Context as _;
use clap::{
    ArgMatches, Args, CommandFactory as _, FromArgMatches as _, Parser, Subcommand,
    parser::ValueSource,
};
use sd_notify::NotifyState;
use simplefeed_server::{
    access::{self, FeedPattern, Right},
    config::{self, Config, LISTEN_DEFAULT, ServeArgs},
    control, exit, health,
    listening::{Listening, StopSignals},
    log::{
        EntryLog,
        folder::{CONTROL_SOCKET, OpenError},
        opening::{self, OpenedLog},
        sled_log::SledLog,
    },
    recover,
    serve::Server,
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
    Serve(Box<ServeArgs>),
    /// Serve a sample feed from a temporary folder, with one more event a second
    Demo,
    /// Ask the server that runs here whether it is ready; exit code 0 if it is, else 1
    Health(HealthArgs),
    /// Look at the configuration that `serve` would have
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Make a token
    #[command(subcommand)]
    Token(TokenCommand),
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
struct HealthArgs {
    /// Address the server listens on
    #[arg(long, env = "SIMPLEFEED_LISTEN", value_name = "ADDR", default_value = LISTEN_DEFAULT)]
    listen: SocketAddr,
}

#[derive(Debug, Subcommand)]
enum ConfigCommand {
    /// Say what is wrong with it, if anything is; open nothing
    Check(Box<ServeArgs>),
    /// Print it as a TOML file
    Show(ShowArgs),
}

#[derive(Args, Debug)]
struct ShowArgs {
    #[command(flatten)]
    serve: Box<ServeArgs>,
    /// Say where each setting comes from
    #[arg(long)]
    origin: bool,
}

#[derive(Debug, Subcommand)]
enum TokenCommand {
    /// Print a new token, and note what it is for in the file of tokens
    ///
    /// A running server takes note with SIGHUP. Whoever has only the file cannot use the token.
    New(NewTokenArgs),
}

#[derive(Args, Debug)]
struct NewTokenArgs {
    /// Who gets it, for people; not a secret
    #[arg(value_parser = parse_holder)]
    name: String,
    /// What it is for; each includes the ones before
    #[arg(long, value_name = "read|publish|admin", value_parser = parse_right)]
    right: Right,
    /// The feed it is for, or what the names of its feeds begin with, and `*`
    #[arg(long, value_name = "FEED|BEGIN*", value_parser = parse_feeds)]
    feeds: FeedPattern,
    /// File of tokens to add it to; else the line for it is printed to stderr
    #[arg(long, env = "SIMPLEFEED_TOKENS", value_name = "FILE")]
    tokens: Option<PathBuf>,
}

fn parse_holder(text: &str) -> Result<String, &'static str> {
    if access::is_holder(text) {
        Ok(text.into())
    } else {
        Err("a name has no colon, no control character, and no # at its beginning")
    }
}

fn parse_right(text: &str) -> Result<Right, &'static str> {
    Right::parse(text).ok_or("the rights are read, publish and admin")
}

fn parse_feeds(text: &str) -> Result<FeedPattern, &'static str> {
    FeedPattern::parse(text).ok_or("no feed has such a name")
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
    let matches = CommandLine::command().get_matches();
    let line = CommandLine::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    if let Err(error) = start_logging(&line.log) {
        eprintln!("error: --log: {error}");
        return ExitCode::from(exit::USAGE);
    }
    let outcome = match line.command {
        Command::Serve(args) => serve(*args),
        Command::Health(args) => health(&args),
        Command::Config(ConfigCommand::Check(args)) => configured(*args).and_then(|config| {
            config.access()?;
            Ok(exit::OK)
        }),
        Command::Config(ConfigCommand::Show(args)) => show(args, &matches),
        Command::Demo => demo::demo(),
        Command::Token(TokenCommand::New(args)) => new_token(&args),
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

fn configured(args: ServeArgs) -> anyhow::Result<Config> {
    let config = Config::new(args)?;
    config.access()?;
    Ok(config)
}

/// Prints a configuration.
fn show(args: ShowArgs, matches: &ArgMatches) -> anyhow::Result<u8> {
    let keys = match &args.serve.config {
        Some(path) => config::keys_in(path)?,
        None => vec![],
    };
    let config = configured(*args.serve)?;
    let given = matches
        .subcommand()
        .and_then(|(_, config)| config.subcommand());
    for (name, value) in config.settings() {
        let source = given.and_then(|(_, given)| given.value_source(name));
        let origin = match source {
            Some(ValueSource::CommandLine) => "flag",
            Some(ValueSource::EnvVariable) => "environment",
            _ if keys.iter().any(|key| key == name) => "file",
            _ => "default",
        };
        if args.origin {
            println!("{name} = {value} # {origin}");
        } else {
            println!("{name} = {value}");
        }
    }
    Ok(exit::OK)
}

/// Asks a server whether it is ready.
fn health(args: &HealthArgs) -> anyhow::Result<u8> {
    let asked = health::ask(args.listen);
    let (is_ready, said) = asked.with_context(|| format!("nobody answers at {}", args.listen))?;
    println!("{said}");
    Ok(if is_ready { exit::OK } else { exit::OTHER })
}

fn serve(args: ServeArgs) -> anyhow::Result<u8> {
    let config = configured(args)?;
    let listening = Listening::bind(&config)?;
    let signals = listening.stop_signals()?;
    let opened = opening::open(&config.data)?;
    let server = Server::start(&config, listening, opened)?;
    let listening = server.listening();
    eprintln!("listening on http://{}", listening.address());
    if let Some(door) = listening.publishing() {
        eprintln!("publishing on {door}");
    }
    if let Some(address) = listening.metrics() {
        eprintln!("metrics on http://{address}/metrics");
    }
    run(server, signals)
}

/// Makes a token.
fn new_token(args: &NewTokenArgs) -> anyhow::Result<u8> {
    let (token, line) = access::new_token(&args.name, args.right, &args.feeds)?;
    match &args.tokens {
        None => eprintln!("{line}"),
        Some(path) => {
            add_token(path, &line)
                .with_context(|| format!("cannot write to {}", path.display()))?;
        }
    }
    println!("{token}");
    Ok(exit::OK)
}

/// Adds a line to a file of tokens, which stays one that a server can read.
fn add_token(path: &Path, line: &str) -> std::io::Result<()> {
    let mut options = OpenOptions::new();
    let mut file = options
        .create(true)
        .read(true)
        .append(true)
        .mode(0o600)
        .open(path)?;
    let mut before = String::new();
    file.read_to_string(&mut before)?;
    let end = if before.is_empty() || before.ends_with('\n') {
        ""
    } else {
        "\n"
    };
    file.write_all(format!("{end}{line}\n").as_bytes())
}

/// Runs a server until the process is asked to end.
fn run(server: Server, signals: StopSignals) -> anyhow::Result<u8> {
    notify(NotifyState::Ready);
    let interrupted = Arc::new(AtomicBool::new(false));
    let note = Arc::clone(&interrupted);
    server.run(async move {
        note.store(signals.received().await, Ordering::Release);
        notify(NotifyState::Stopping);
    })?;
    let interrupted = interrupted.load(Ordering::Acquire);
    Ok(if interrupted {
        exit::INTERRUPTED
    } else {
        exit::OK
    })
}

/// Tells systemd, if it is there. To whom it is not, nothing is to be told.
fn notify(state: NotifyState<'_>) {
    drop(sd_notify::notify(&[state]));
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
