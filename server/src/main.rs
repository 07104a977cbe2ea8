//! The `simplefeed-server` command.
//!
//! Shell: the command line, the environment, the terminal. Parses, calls the library, prints, and
//! maps errors to exit codes.
use std::{
    fs,
    io::{self, Write as _},
    net::SocketAddr,
    os::unix::fs::MetadataExt as _,
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
use rustix::fs::OFlags;
use sd_notify::NotifyState;
use simplefeed_core::feed::FeedPattern;
use simplefeed_http::access::{self, Day, Right};
use simplefeed_log::{
    Commits as _, EntryLog,
    sled::{
        folder::{CONTROL_SOCKET, OpenError},
        opening::{self, OpenedLog, SledStore},
        sled_log::SledLog,
    },
};
use simplefeed_process::{
    clock,
    lack::{raise_files, survive_long_files},
    regular,
};
use simplefeed_server::{
    config::{self, Config, ConfigError, LISTEN_DEFAULT, ServeArgs},
    control::{self, Order},
    exit, health,
    listening::{Listening, StopSignals},
    logging::{self, say},
    serve::Server,
    stdout::print_line,
    upkeep::{self, OutputLine, Task, recover},
    views::FileViews,
};
use simplefeed_views::{folders::Folders, timelines::merged::with_timelines};

#[cfg(planted)]
#[path = "../../tests/planted.rs"]
mod planted;

mod demo;
mod token_file;

use token_file::TokenFile;

/// jemalloc, because glibc's allocator took a quarter of the CPU time of an append, and mimalloc
/// took half as much memory again with many feeds.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Number of files that a command may have to open, beside the sockets of connections.
const FILES_LEAST: u64 = 48;

/// An append-only event log over plain HTTP, as Atom documents that caches keep for ever
///
/// `verify`, `rebuild`, `export` and `backup` also work while a server has the log open.
///
/// Exit codes: 0 ok, 1 other, 2 usage, 10 not found, 11 data folder locked, 15 integrity, 16 data
/// folder changed under the server, 130 interrupted, 143 terminated by a second signal, 101 or 134
/// a fault of this program.
#[derive(Debug, Parser)]
#[command(name = "simplefeed-server", version)]
struct CommandLine {
    /// What to log to stderr: a level, or a filter such as `info,simplefeed_http=debug`
    #[arg(long, env = "SIMPLEFEED_LOG", default_value = "info", global = true)]
    log: String,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve the log in a data folder
    Serve(Box<ServeArgs>),
    /// Serve sample feeds from a temporary folder, with one more event a second
    Demo(demo::DemoArgs),
    /// Ask the server that runs here whether it is ready; exit code 0 if it is, else 1
    Health(HealthArgs),
    /// Look at the configuration that `serve` would have
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Make a token, list all, or take one back
    #[command(subcommand)]
    Token(TokenCommand),
    /// Vouch for the system clock
    #[command(subcommand)]
    Clock(ClockCommand),
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
    #[arg(long, env = "SIMPLEFEED_LISTEN", value_name = "ADDR")]
    listen: Option<SocketAddr>,
    /// TOML file with settings, such as `listen`
    #[arg(long, env = "SIMPLEFEED_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
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
    /// Print the name, right, feeds and last day of each token
    List(TokensArgs),
    /// Take a token back: remove its holder's lines from the file of tokens
    ///
    /// A running server takes note with SIGHUP.
    Revoke(RevokeArgs),
}

#[derive(Debug, Subcommand)]
enum ClockCommand {
    /// Let a log be stamped by the system clock although it has leapt far ahead; look at `date`
    /// first
    ///
    /// A leap of more than a month is not followed before. Where the clock is more than five years
    /// ahead of all that the data folder knows, a server publishes nothing before.
    Accept(AcceptArgs),
}

#[derive(Args, Debug)]
struct AcceptArgs {
    /// Folder that holds the log
    #[arg(long, env = "SIMPLEFEED_DATA", value_name = "DIR")]
    data: PathBuf,
}

#[derive(Args, Debug)]
struct TokensArgs {
    /// File of tokens that `serve` reads
    #[arg(long, env = "SIMPLEFEED_TOKENS", value_name = "FILE")]
    tokens: PathBuf,
}

#[derive(Args, Debug)]
struct RevokeArgs {
    /// Name of its holder
    name: String,
    #[command(flatten)]
    tokens: TokensArgs,
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
    /// Last day on which it counts, in UTC, as 2027-12-31 [default: it counts until it is revoked]
    #[arg(long, value_name = "DATE", value_parser = parse_day)]
    until: Option<Day>,
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

fn parse_day(text: &str) -> Result<Day, &'static str> {
    Day::parse(text).ok_or("a day is written as 2027-12-31")
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
    // Called before anything is written: a write beyond the limit on the length of a file must
    // fail, and must not end the process by a signal.
    survive_long_files();
    let parsed = CommandLine::command().try_get_matches();
    let parsed = parsed.and_then(|matches| Ok((CommandLine::from_arg_matches(&matches)?, matches)));
    let (line, matches) = match parsed {
        Ok(parsed) => parsed,
        Err(error) if error.use_stderr() => {
            say(error.render().to_string().trim_end());
            return ExitCode::from(exit::USAGE);
        }
        Err(help) => help.exit(),
    };
    if let Err(error) = logging::start(&line.log) {
        say(&format!("error: --log: {error}"));
        return ExitCode::from(exit::USAGE);
    }
    let outcome = match raise_files(FILES_LEAST).map(|()| line.command) {
        Err(error) => Err(error.into()),
        Ok(command) => carry_out(command, &matches),
    };
    let code = outcome.unwrap_or_else(|error| {
        for text in exit::texts_of(&error) {
            say(&text);
        }
        exit::code_of(&error)
    });
    // The lines that wait are written now, because the thread that writes them ends with the
    // process.
    logging::flush();
    ExitCode::from(code)
}

fn carry_out(command: Command, matches: &ArgMatches) -> anyhow::Result<u8> {
    match command {
        Command::Serve(args) => serve_feeds(*args, matches),
        Command::Health(args) => ask_health(&args),
        Command::Config(ConfigCommand::Check(args)) => {
            checked_config(*args, matches).map(|_config| exit::OK)
        }
        Command::Config(ConfigCommand::Show(args)) => show_config(args, matches),
        Command::Demo(args) => demo::demo(&args),
        Command::Token(TokenCommand::New(args)) => new_token(&args),
        Command::Token(TokenCommand::List(args)) => list_tokens(&args),
        Command::Token(TokenCommand::Revoke(args)) => revoke_token(&args),
        Command::Clock(ClockCommand::Accept(args)) => accept_clock(&args.data),
        Command::Verify(args) => look_after(&args, &Task::Verify),
        Command::Rebuild(args) => look_after(&args, &Task::Rebuild),
        Command::Export(args) => check_target(&args.to, &args.data.data).and_then(|to| {
            let entries = args.entries;
            look_after(&args.data, &Task::Export { to, entries })
        }),
        Command::Backup(args) => {
            let to = check_target(&args.to, &args.data.data);
            to.and_then(|to| look_after(&args.data, &Task::Backup { to }))
        }
        Command::Recover(args) => recover_log(&args),
    }
}

/// Returns where the value of a setting comes from, as far as clap knows: the command line or the
/// environment. `None` for a default, and for a value of the file, which clap does not read.
fn source_of(name: &str, matches: &ArgMatches) -> Option<ValueSource> {
    let mut given = matches;
    while let Some((_, of_subcommand)) = given.subcommand() {
        given = of_subcommand;
    }
    let source = given.value_source(name);
    source.filter(|source| *source != ValueSource::DefaultValue)
}

fn checked_config(args: ServeArgs, matches: &ArgMatches) -> anyhow::Result<Config> {
    // `Config::new` also reads the tokens, so that a wrong file of tokens is found before anything
    // is opened.
    Ok(Config::new(args, |name| {
        source_of(name, matches).is_some()
    })?)
}

/// Prints each setting in TOML, with the origin on request.
fn show_config(args: ShowArgs, matches: &ArgMatches) -> anyhow::Result<u8> {
    let keys = match &args.serve.config {
        Some(path) => config::keys_in(path)?,
        None => vec![],
    };
    let config = checked_config(*args.serve, matches)?;
    let mut output = TaskOutput::default();
    for (name, value) in config.in_toml()? {
        let origin = match source_of(&name, matches) {
            Some(ValueSource::EnvVariable) => "environment",
            Some(_) => "flag",
            None if keys.contains(&name) => "file",
            None => "default",
        };
        let shown = if args.origin {
            format!("{name} = {value} # {origin}")
        } else {
            format!("{name} = {value}")
        };
        output.print_line(OutputLine::Result(shown));
    }
    output.end_task(exit::OK)
}

/// Prints whether a server is ready.
fn ask_health(args: &HealthArgs) -> anyhow::Result<u8> {
    let listen = match (args.listen, &args.config) {
        (Some(listen), _) => Some(listen),
        (None, Some(file)) => config::listen_in(file)?,
        (None, None) => None,
    };
    let listen = listen.unwrap_or(LISTEN_DEFAULT);
    let (is_ready, said) = health::ask(listen).map_err(anyhow::Error::msg)?;
    // The exit code is the result. The text is for people, so a failure to print does not matter.
    let _unread = print_line(&said);
    Ok(if is_ready { exit::OK } else { exit::OTHER })
}

fn serve_feeds(args: ServeArgs, matches: &ArgMatches) -> anyhow::Result<u8> {
    let config = checked_config(args, matches)?;
    let listening = Listening::bind(&config)?;
    // The signals come before the log, so that a signal during or after the opening ends the server
    // in order.
    let signals = listening.stop_signals()?;
    // The log comes after the listener, so that an address in use is found before the log is
    // changed.
    let opened = opening::open(config.data())?;
    let server = Server::start(&config, listening, SledStore::from(opened))?;
    let listening = server.listening();
    say(&format!("listening on http://{}", listening.address()));
    for address in listening.others() {
        say(&format!("listening on http://{address}"));
    }
    if let Some(door) = listening.publishing() {
        say(&format!("publishing on {door}"));
    }
    if let Some(address) = listening.metrics() {
        say(&format!("metrics on http://{address}/metrics"));
    }
    run(server, signals)
}

/// Makes a token. Adds the line for the token to the file of tokens, or prints that line to stderr
/// if no file is named. Prints the token last.
fn new_token(args: &NewTokenArgs) -> anyhow::Result<u8> {
    if is_stdout_closed() {
        anyhow::bail!("stdout is closed, so nobody would see the token");
    }
    let (token, line) = access::new_token(&args.name, args.right, &args.feeds, args.until)?;
    if let Some(until) = args.until.filter(|until| until.has_passed()) {
        say(&format!(
            "warning: {until} has passed, so nobody is let in with this token"
        ));
    }
    match &args.tokens {
        None => writeln!(io::stderr(), "{line}").context("cannot print the line for a file")?,
        Some(path) => {
            let file = TokenFile::open(path);
            let file = file.and_then(|file| file.add(&line).map(|()| file));
            let file = file.with_context(|| format!("cannot write to {}", path.display()))?;
            tell_dropped(&file, path);
            if tokens_of(access::whole_lines(&file.text), &args.name).count() > 0 {
                say(&format!(
                    "note: {} has another token there; `token revoke` revokes both",
                    args.name
                ));
            }
        }
    }
    // The token is printed only once the file has the line.
    let printed = print_line(&token).context("cannot print the token");
    if let (Err(_), Some(path)) = (&printed, &args.tokens) {
        // Nobody has a token that was not printed, so the line is removed again.
        let taken_back = TokenFile::open(path).and_then(|file| file.take_back(&line));
        if let Err(error) = taken_back {
            let path = path.display();
            say(&format!(
                "warning: cannot take the token of {} back from {path}: {error}",
                args.name
            ));
        }
    }
    printed.map(|()| exit::OK)
}

/// Returns whether stdout was closed when the program began. The runtime then opens the null device
/// as stdout, for reading and writing. A shell's `>/dev/null` opens the device for writing only.
fn is_stdout_closed() -> bool {
    let stdout = io::stdout();
    let null = fs::metadata("/dev/null").map(|null| null.rdev());
    let is_null =
        rustix::fs::fstat(&stdout).is_ok_and(|found| null.is_ok_and(|null| null == found.st_rdev));
    let mode = rustix::fs::fcntl_getfl(&stdout).map(|flags| flags & OFlags::RWMODE);
    is_null && mode == Ok(OFlags::RDWR)
}

/// Prints the tokens of a file, a line each: name, right, feeds, last day.
fn list_tokens(args: &TokensArgs) -> anyhow::Result<u8> {
    let text = read_tokens(&args.tokens)?;
    let mut output = TaskOutput::default();
    for line in text.lines().filter(|line| access::is_grant(line)) {
        let fields: Vec<&str> = line.trim().splitn(5, ':').collect();
        if let [name, _secret, right, feeds, until @ ..] = &fields[..] {
            let until = until.first().unwrap_or(&"-");
            let shown = format!("{name}\t{right}\t{feeds}\t{until}");
            output.print_line(OutputLine::Result(shown));
        }
    }
    output.end_task(exit::OK)
}

/// Removes the lines of a holder from a file of tokens, which is replaced as a whole.
fn revoke_token(args: &RevokeArgs) -> anyhow::Result<u8> {
    let path = &args.tokens.tokens;
    // The file is read before the lock: without a file, the lock might fail with a message about
    // the folder.
    read_tokens(path)?;
    let failed = || format!("cannot write {}", path.display());
    let file = TokenFile::open(path).with_context(failed)?;
    // The tokens are counted under the lock, because another command may have changed the file
    // after the read above.
    let revoked = tokens_of(access::whole_lines(&file.text), &args.name).count();
    if revoked == 0 {
        say(&format!(
            "error: nobody called {:?} has a token in {}",
            args.name,
            path.display()
        ));
        return Ok(exit::NOT_FOUND);
    }
    file.keep(|line| !is_of(line, &args.name))
        .map_err(|error| file.explained(error))
        .with_context(failed)?;
    tell_dropped(&file, path);
    let (tokens, are) = if revoked == 1 {
        ("token", "is")
    } else {
        ("tokens", "are")
    };
    let name = &args.name;
    say(&format!(
        "{revoked} {tokens} of {name} {are} revoked; a running server takes note with SIGHUP."
    ));
    Ok(exit::OK)
}

/// Tells the user if a change has dropped a last line that was cut short.
fn tell_dropped(file: &TokenFile, path: &Path) {
    if access::is_torn(&file.text) {
        say(&format!(
            "note: the last line of {} was cut short and is removed",
            path.display()
        ));
    }
}

/// Returns the lines of a holder in a file of tokens.
fn tokens_of<'a>(text: &'a str, name: &str) -> impl Iterator<Item = &'a str> {
    text.lines().filter(move |line| is_of(line, name))
}

/// Returns whether a line of a file of tokens is the line of the holder `name`.
fn is_of(line: &str, name: &str) -> bool {
    access::is_grant(line) && line.trim().split(':').next() == Some(name)
}

/// Returns the lines of a file of tokens that a starting server would use.
fn read_tokens(path: &Path) -> anyhow::Result<String> {
    let text = regular::read(path)
        .map_err(anyhow::Error::from)
        .and_then(|bytes| Ok(access::text_of(bytes)?));
    let text = text.with_context(|| format!("cannot read {}", path.display()))?;
    let whole = access::whole_lines(&text);
    match access::TokenGrants::parse(whole) {
        Ok(_) => Ok(whole.into()),
        Err(problems) => anyhow::bail!("{}: {}", path.display(), problems.join("; ")),
    }
}

/// Runs a server until the process is asked to end.
fn run(server: Server, signals: StopSignals) -> anyhow::Result<u8> {
    notify_systemd(NotifyState::Ready);
    let interrupted = Arc::new(AtomicBool::new(false));
    let note = Arc::clone(&interrupted);
    server.run(async move {
        note.store(signals.received().await, Ordering::Release);
        notify_systemd(NotifyState::Stopping);
    })?;
    let interrupted = interrupted.load(Ordering::Acquire);
    Ok(if interrupted {
        exit::INTERRUPTED
    } else {
        exit::OK
    })
}

/// Notifies systemd. A failure does not matter, because there may be no systemd. A reader that does
/// not read the notification never delays the end of the process.
fn notify_systemd(state: NotifyState<'static>) {
    let is_start = matches!(state, NotifyState::Ready);
    let notify = move || drop(sd_notify::notify(&[state]));
    // If no thread starts, this thread sends the message, and may have to wait for the reader. Only
    // the message about a start is worth that wait: a start without the message counts as failed.
    if std::thread::Builder::new().spawn(notify.clone()).is_err() && is_start {
        notify();
    }
}

/// Gives an order to the server that has a log open.
fn ask_server(data: &Path, order: &Order, locked: OpenError) -> anyhow::Result<u8> {
    let socket = data.join(CONTROL_SOCKET);
    let mut output = TaskOutput::default();
    let code = control::ask(&socket, order, &mut |line| output.print_line(line));
    let code = code.map_err(|error| {
        let is_ended = error.kind() == io::ErrorKind::UnexpectedEof;
        let what = if is_ended {
            "the server closed its control socket before the task was done"
        } else {
            "the server cannot be given the task, or its answer cannot be read"
        };
        anyhow::Error::from(error).context(what)
    })?;
    if code.is_none() {
        say(&format!(
            "hint: nobody listens at {}; stop the server first",
            socket.display()
        ));
    }
    // If nobody listens at the socket, the lock is the error, because some process holds the lock.
    code.map_or_else(|| Err(locked.into()), |code| output.end_task(code))
}

/// Accepts the system clock, for the server that has the log open or for the next start.
fn accept_clock(data: &Path) -> anyhow::Result<u8> {
    let opened = match opening::open_existing(data) {
        Ok(opened) => opened,
        Err(error @ OpenError::Locked { .. }) => {
            return ask_server(data, &Order::AcceptClock, error);
        }
        Err(error) => return Err(error.into()),
    };
    // The next start takes the moment in this file as known, and therefore does not refuse the
    // clock.
    let now = clock::system().wall;
    let noted = opened.folder.moment().write(now);
    noted.context("the moment cannot be noted in the file `clock` of the data folder")?;
    let last = opened.log.head().last;
    opened.close()?;
    say(&control::accepted(now, last));
    Ok(exit::OK)
}

/// Does a task within the server that has the log open, or else in this process.
fn look_after(args: &DataArgs, task: &Task) -> anyhow::Result<u8> {
    let OpenedLog { log, folder } = match opening::open_existing(&args.data) {
        Ok(opened) => opened,
        // A server has the log open and does the task itself.
        Err(error @ OpenError::Locked { .. }) => {
            return ask_server(&args.data, &Order::Do(task.clone()), error);
        }
        Err(error) => return Err(error.into()),
    };
    let log = Arc::new(log);
    let shared: Arc<dyn EntryLog> = Arc::<SledLog>::clone(&log);
    // The folders are locked, too: `--www` may name the folder of another server.
    let folders = Folders::held(folder.held(), args.www.as_deref()).locked()?;
    let views = FileViews::of_upkeep(&folders).all();
    let shown = with_timelines(&shared).context("the log cannot be read")?;
    let mut output = TaskOutput::default();
    let outcome = upkeep::run(task, &shared, &shown, &views, &mut |line| {
        output.print_line(line);
    });
    // Only the last owner of the log can close the log.
    drop((shared, shown));
    // After any fault the log is not closed, so that all files stay as they are.
    let sound = matches!(outcome, Ok(exit::OK));
    if let Some(log) = Arc::into_inner(log).filter(|_| sound) {
        OpenedLog { log, folder }.close()?;
    }
    outcome.and_then(|code| output.end_task(code))
}

/// Recovers a log that no server has open.
fn recover_log(args: &NewFolderArgs) -> anyhow::Result<u8> {
    let NewFolderArgs { data, to } = args;
    let to = &check_target(to, &data.data)?;
    let report = recover::recover(&data.data, data.www.as_deref(), to)?;
    let mut output = TaskOutput::default();
    let code = if report.missing.is_empty() {
        exit::OK
    } else {
        exit::INTEGRITY
    };
    for missing in report.missing {
        output.print_line(OutputLine::Result(missing));
    }
    let (feeds, entries, documents) = (report.feeds, report.entries, report.documents);
    say(&format!(
        "Recovered {entries} entries of {feeds} feeds, and {documents} archived documents byte for byte, in {}.",
        to.display()
    ));
    if report.timelines > 0 {
        let timelines = report.timelines;
        say(&format!(
            "{timelines} timelines begin anew: their documents have new names, and the old ones answer 404. Their \
             consumers are told that the history changed."
        ));
    }
    output.end_task(code)
}

/// Returns the absolute path of the folder that a task makes, because the server that does the task
/// may have another working directory.
///
/// # Errors
///
/// Returns that the folder lies within the data folder, where everything counts as a part of the
/// log.
fn check_target(to: &Path, data: &Path) -> anyhow::Result<PathBuf> {
    let absolute = |path: &Path| {
        std::path::absolute(path).with_context(|| format!("cannot find {}", path.display()))
    };
    let to = absolute(to)?;
    // Links may lead into the data folder, so the nearest existing folder is checked without links.
    let real = to.ancestors().find_map(|path| path.canonicalize().ok());
    let data = absolute(data)?;
    // The task itself reports a data folder that does not exist.
    let data = data.canonicalize().unwrap_or(data);
    if to.starts_with(&data) || real.is_some_and(|real| real.starts_with(&data)) {
        let problem = format!("--to {} lies within the data folder", to.display());
        return Err(ConfigError::of(problem).into());
    }
    Ok(to)
}

/// Output of a task. The task goes on even if lines cannot be printed.
#[derive(Debug, Default)]
struct TaskOutput {
    failure: Option<io::Error>,
}

impl TaskOutput {
    fn print_line(&mut self, line: OutputLine) {
        match line {
            OutputLine::Result(text) => {
                let printed = print_line(&text);
                self.failure = self.failure.take().or(printed.err());
            }
            OutputLine::Note(text) => say(&text),
        }
    }

    /// Returns the exit code of a task, or an error if a successful task has lines that could not
    /// be printed.
    fn end_task(self, code: u8) -> anyhow::Result<u8> {
        // A closed pipe is no failure: a reader such as `head` closes the pipe early.
        let failure = self
            .failure
            .filter(|error| error.kind() != io::ErrorKind::BrokenPipe);
        match failure {
            Some(error) if code == exit::OK => {
                Err(anyhow::Error::from(error).context("cannot print the result"))
            }
            Some(error) => {
                say(&format!("warning: cannot print all of the result: {error}"));
                Ok(code)
            }
            None => Ok(code),
        }
    }
}
