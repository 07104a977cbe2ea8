//! The `simplefeed` command.
//!
//! Shell: the command line and the terminal. Data goes to stdout, everything else to stderr; each
//! subcommand and each output format has a file of its own.

use std::{env, io, process::ExitCode, sync::RwLock, time::Duration};

use anyhow::Context as _;
use clap::{CommandFactory as _, Parser, Subcommand};
use clap_complete::Shell;
use tokio::runtime::{Builder, Runtime};

#[cfg(planted)]
#[path = "../../../tests/planted.rs"]
mod planted;

mod append;
mod batch;
mod bookmark;
mod catalogue;
mod child;
mod chosen;
mod duration;
mod events;
mod exit;
mod format;
mod get;
mod handler;
mod import;
mod lint;
mod mirror;
mod parked;
mod plot;
mod printed;
mod progress;
mod refresh;
mod replay;
mod reversed;
mod say;
mod signals;
mod since;
mod source;
mod state;
mod status;
mod stdout;
mod sup;
mod timeline;
mod token;
mod watch;
mod wrap;

use format::Format;
use say::Loudness;

/// Publish, replay and follow feeds
#[derive(Debug, Parser)]
#[command(name = "simplefeed", version, after_help = AFTER_HELP)]
struct CommandLine {
    #[command(subcommand)]
    command: Command,
    /// Say nothing but errors
    #[arg(long, short, global = true, conflicts_with = "verbose")]
    quiet: bool,
    /// Say more, such as where the state is
    #[arg(long, short, global = true)]
    verbose: bool,
}

const AFTER_HELP: &str = "\
Examples:
  simplefeed append https://example.org/feeds/orders events.ndjson
  simplefeed replay https://example.org/feeds/orders --since 2026-11-01 | jq .title
  simplefeed tail https://example.org/feeds/orders --exec ./ship --policy park
  simplefeed status https://example.org/feeds/orders --warn entries=1000 --crit parked=0

Exit codes:
  0 ok, 1 other, 2 usage, 3 some entries could not be handled (they are skipped or parked),
  10 not found, 11 the state is used by another process, 12 not authorised, 13 gap,
  14 unavailable after retries (or nothing but an old copy), 15 integrity (history changed, or --if-match does not hold),
  16 another feed, 130 interrupted, 143 terminated twice. status has its own.";

#[derive(Debug, Subcommand)]
enum Command {
    /// Publish NDJSON events, or Atom entries, to a feed
    #[command(after_help = "Examples:\n  \
        printf '%s\\n' '{\"id\":\"urn:order:1\",\"content\":{\"total\":3}}' | simplefeed append URL\n  \
        simplefeed replay URL1 | simplefeed append URL2\n\n\
        A server that gives no answer is asked 8 times in two and a half minutes; each failure is a warning. Then the\n\
        exit code is 14, and whether the last batch is stored is unknown: publish it again, with the same ids.\n\
        Lines without ids get one each time they are read, and are then stored twice.")]
    Append(append::AppendArgs),
    /// Publish a feed from elsewhere, with its ids
    #[command(
        after_help = "Example:\n  simplefeed import http://127.0.0.1:8080/feeds/news https://example.com/news.atom"
    )]
    Import(import::ImportArgs),
    /// Print a feed's entries, oldest first, up to the newest there is, or run a command for each
    #[command(after_help = "Examples:\n  \
        simplefeed replay URL --since 7d --format text\n  \
        simplefeed replay URL --exec ./load --batch 1000 --state DIR\n\n\
        What a program reads from a pipe is lost if it fails, because the bookmark has moved on. With --exec it moves\n\
        when the command has ended with exit code 0.")]
    Replay(Box<replay::ReplayArgs>),
    /// Print entries as they come, or run a command for each
    #[command(after_help = "Examples:\n  \
        simplefeed tail URL --format id\n  \
        simplefeed tail URL --exec 'curl -fsS -d @- http://127.0.0.1:9000/orders' --policy park-by-key --key /customer\n\n\
        It ends with 0 when it is terminated and 130 when it is interrupted, whatever was skipped or parked;\n\
        replay, which comes to an end, with 3 then.")]
    Tail(Box<replay::ReplayArgs>),
    /// List, show, retry or drop the entries that were set aside
    #[command(after_help = "Examples:\n  \
        simplefeed parked list --state DIR\n  \
        simplefeed parked retry --state DIR --exec ./ship\n  \
        simplefeed parked drop --state DIR urn:order:7 --reason 'a test order'")]
    Parked(parked::ParkedArgs),
    /// Tell how far behind a consumer is
    #[command(
        after_help = "Example:\n  simplefeed status URL --state DIR --warn seconds=60 --crit seconds=600 --crit parked=0\n\n\
        Exit codes, as monitoring has them:\n  \
        0 fine, 1 more than --warn, 2 more than --crit (or a gap, another feed, a changed history),\n  \
        3 it cannot be told"
    )]
    Status(Box<status::StatusArgs>),
    /// Draw a feed's entries over time, and what a consumer has not handled
    #[command(after_help = "Examples:\n  \
        simplefeed plot http://127.0.0.1:8080/feeds/orders --since 7d\n  \
        simplefeed plot http://127.0.0.1:8080/feeds/orders --state DIR --svg orders.svg\n\n\
        A server of ours has counted them, by the instants at which they were stored. Of a timeline, or of anybody's\n\
        feed, all entries are read, and counted by their dates.")]
    Plot(Box<plot::PlotArgs>),
    /// Print the new entries of many feeds, with few requests
    #[command(
        after_help = "Example:\n  simplefeed watch subscriptions.opml --state DIR >> entries.ndjson\n\n\
        Feeds that announce a SUP document are looked at when it tells of them, all others every --interval.\n\
        Each line says of which feed it is; it ends with 0 when it is terminated and 130 when it is interrupted."
    )]
    Watch(Box<watch::WatchArgs>),
    /// Check a SUP document: which of many feeds changed
    #[command(after_help = "Example:\n  simplefeed sup check http://127.0.0.1:8080/sup.json")]
    Sup(sup::SupArgs),
    /// Check anybody's feed and its archive
    #[command(
        after_help = "Examples:\n  simplefeed lint https://example.com/news.atom\n  simplefeed lint --explain FH-5\n\n\
        Exit codes:\n  \
        0 nothing but notes, 1 something is wrong; others if the feed cannot be read"
    )]
    Lint(Box<lint::LintArgs>),
    /// Keep a static copy of a feed, byte for byte
    #[command(
        after_help = "Example, from cron:\n  simplefeed mirror https://example.org/feeds/orders /srv/www/orders"
    )]
    Mirror(Box<mirror::MirrorArgs>),
    /// Look at a bookmark, move it, or forget it
    #[command(
        after_help = "Example:\n  simplefeed bookmark set orders.bookmark --url URL --entry urn:order:7"
    )]
    Bookmark(bookmark::BookmarkArgs),
    /// Follow feeds of the same server in a timeline
    #[command(
        after_help = "Examples:\n  simplefeed follow http://127.0.0.1:8080/feeds/home orders-eu orders-us --backfill 20\n  \
        simplefeed follow http://127.0.0.1:8080/feeds/all '*'\n\n\
        The timeline is created if it does not exist, which needs the right to administer it."
    )]
    Follow(timeline::FollowArgs),
    /// Follow feeds no longer in a timeline
    #[command(
        after_help = "Example:\n  simplefeed unfollow http://127.0.0.1:8080/feeds/home orders-us\n\n\
        Entries that came before stay in the timeline."
    )]
    Unfollow(timeline::UnfollowArgs),
    /// List the feeds that a timeline follows
    #[command(after_help = "Example:\n  simplefeed following http://127.0.0.1:8080/feeds/home")]
    Following(timeline::ListArgs),
    /// List the timelines that follow a feed
    #[command(
        after_help = "Example:\n  simplefeed followers http://127.0.0.1:8080/feeds/orders-eu"
    )]
    Followers(timeline::ListArgs),
    /// List the feeds of a server, given the URL of its catalogue
    #[command(after_help = "Example:\n  simplefeed ls http://127.0.0.1:8080/feeds")]
    Ls(catalogue::CatalogueArgs),
    /// Print one document or entry, as it is
    #[command(
        after_help = "Example:\n  simplefeed get http://127.0.0.1:8080/feeds/orders/entries/0.atom"
    )]
    Get(get::GetArgs),
    /// Keep copies of a provider's items fresh, often while they are young, and publish what
    /// changed
    #[command(after_help = "Examples:\n  \
        simplefeed refresh URL/feeds/posts --lookup 'https://api.example/posts?ids={ids}' --into URL/feeds/counts --queue posts.queue\n  \
        simplefeed refresh URL/feeds/parcels --lookup-exec ./lookup --into URL/feeds/moves --queue postgres://jobs@db/jobs\n  \
        simplefeed refresh status --queue posts.queue\n\n\
        Jobs in PostgreSQL are shared by any number of these commands, on any machine: to add a worker, start one more.\n\
        It ends with 0 when it is terminated and 130 when it is interrupted; what it was doing is given back.")]
    Refresh(refresh::RefreshArgs),
    /// Print completions for a shell
    #[command(
        after_help = "Example:\n  simplefeed completions bash > /etc/bash_completion.d/simplefeed"
    )]
    Completions {
        /// Shell to print the completions for
        shell: Shell,
    },
    /// Print the manual page, or that of a command
    #[command(after_help = "Example:\n  simplefeed man tail | man -l -")]
    Man {
        /// Command to print the page of [default: the program's own page]
        command: Option<String>,
    },
}

fn main() -> ExitCode {
    let line = match CommandLine::try_parse() {
        Ok(line) => line,
        Err(error) if error.use_stderr() => {
            say::misuse(&error.render().to_string());
            return ExitCode::from(exit::USAGE);
        }
        Err(help) => help.exit(),
    };
    say::speak(line.message_voice());
    let outcome = match start_runtime() {
        Ok(runtime) => runtime.block_on(run_until_interrupted(line.command)),
        Err(error) => Err(error),
    };
    match outcome {
        Ok(code) => ExitCode::from(code),
        // The reader of our output has closed the pipe: `replay | head` is no error.
        Err(error) if is_broken_pipe(&error) => ExitCode::from(exit::OK),
        Err(error) => {
            let code = exit::code_of(&error);
            say::error(&error, exit::hint_of(&error), code);
            ExitCode::from(code)
        }
    }
}

/// Largest number of threads for blocking work. Each thread stays until the process ends.
const BLOCKING_MAX: usize = 64;

/// Starts the threads of a command: two for tasks, and one for blocking work, such as the look-up
/// of a host name.
fn start_runtime() -> anyhow::Result<Runtime> {
    // tokio panics if the system has no file descriptor or thread left. The numbers are higher than
    // tokio needs: the input and a queue need some, too.
    ask_for_files(16).context("the system lets this command open fewer than 16 more files")?;
    ask_for_threads(8).context("the system gives this command fewer than 8 more threads")?;
    // Documents are read on one thread while the other thread hands entries over.
    let runtime = Builder::new_multi_thread()
        .worker_threads(2)
        // Threads stay: if the system gives no further thread later, work waits for one of these.
        .thread_keep_alive(Duration::MAX)
        .max_blocking_threads(BLOCKING_MAX)
        .enable_all()
        .build()?;
    // The first thread for blocking work starts now, because `ask_for_threads` has just shown that
    // a thread is left.
    drop(runtime.spawn_blocking(|| ()));
    Ok(runtime)
}

/// Opens `count` files at the same time, and closes them.
fn ask_for_files(count: usize) -> io::Result<()> {
    // A pipe takes two file descriptors.
    let pipes = (0..count / 2).map(|_| io::pipe());
    pipes.collect::<io::Result<Vec<_>>>().map(drop)
}

/// Starts `count` threads at the same time, and ends them.
fn ask_for_threads(count: usize) -> io::Result<()> {
    let gate = RwLock::new(());
    std::thread::scope(|scope| {
        // The closed gate keeps all threads alive at the same time: threads that run one after the
        // other would prove nothing.
        let closed = gate.write();
        let wait = || drop(gate.read());
        let threads = (0..count).map(|_| std::thread::Builder::new().spawn_scoped(scope, wait));
        let begun: io::Result<Vec<_>> = threads.collect();
        drop(closed);
        // Threads count in the system's limit until they have ended.
        for thread in begun? {
            drop(thread.join());
        }
        Ok(())
    })
}

impl CommandLine {
    /// Returns the form of messages that the options of the command line set.
    fn message_voice(&self) -> say::Voice {
        let json = match &self.command {
            Command::Replay(args) | Command::Tail(args) => args.format == Some(Format::Ndjson),
            Command::Status(args) => args.json,
            Command::Lint(args) => args.json,
            Command::Sup(args) => args.json(),
            Command::Refresh(args) => args.json(),
            _ => false,
        };
        let loudness = match (self.quiet, self.verbose) {
            (true, _) => Loudness::Quiet,
            (_, true) => Loudness::Verbose,
            _ => Loudness::Normal,
        };
        say::Voice {
            loudness,
            json,
            // An empty value counts as no value (no-color.org).
            plain: env::var_os("NO_COLOR").is_some_and(|set| !set.is_empty()),
        }
    }
}

async fn run_until_interrupted(command: Command) -> anyhow::Result<u8> {
    signals::survive_long_files()?;
    let ends_by_itself = match &command {
        Command::Replay(args) | Command::Tail(args) => args.ends_by_itself(),
        Command::Watch(_) => true,
        Command::Refresh(args) => args.ends_by_itself(),
        _ => false,
    };
    // These commands handle signals by themselves: they save their state, or let the user's command
    // end.
    if ends_by_itself {
        return Box::pin(run(command)).await;
    }
    // A write to a full pipe blocks the thread, and with it the wait for signals below.
    signals::end_in_any_case()?;
    let mut ends = signals::Ends::listen()?;
    tokio::select! {
        outcome = run(command) => outcome,
        code = ends.told() => Ok(code),
    }
}

async fn run(command: Command) -> anyhow::Result<u8> {
    match command {
        Command::Append(args) => append::append(args).await,
        Command::Import(args) => import::import(args).await,
        Command::Replay(args) => replay::replay(*args, false).await,
        Command::Tail(args) => replay::replay(*args, true).await,
        Command::Parked(args) => parked::parked(args).await,
        Command::Status(args) => status::status(*args).await,
        Command::Plot(args) => Box::pin(plot::plot(*args)).await,
        Command::Watch(args) => watch::watch(*args).await,
        Command::Sup(args) => sup::sup(args).await,
        Command::Lint(args) => lint::lint(*args).await,
        Command::Mirror(args) => mirror::mirror(*args).await,
        Command::Bookmark(args) => Box::pin(bookmark::bookmark(args)).await,
        Command::Ls(args) => catalogue::list(args).await,
        Command::Follow(args) => timeline::follow(args).await,
        Command::Unfollow(args) => timeline::unfollow(args).await,
        Command::Following(args) => timeline::following(args).await,
        Command::Followers(args) => timeline::followers(args).await,
        Command::Refresh(args) => refresh::refresh(args).await,
        Command::Get(args) => get::get(args).await,
        Command::Completions { shell } => {
            let mut out = vec![];
            clap_complete::generate(shell, &mut CommandLine::command(), "simplefeed", &mut out);
            print_text(&out)
        }
        Command::Man { command } => print_text(&manual_page(command.as_deref())?),
    }
}

/// Returns the manual page of the program, or of one of its commands.
fn manual_page(command: Option<&str>) -> anyhow::Result<Vec<u8>> {
    let mut program = CommandLine::command();
    // clap fills in the names and global options of commands only in `build`.
    program.build();
    let page = match command {
        None => Some(program),
        Some(name) => program.find_subcommand(name).cloned(),
    };
    let page =
        page.with_context(|| format!("there is no command {}", command.unwrap_or_default()))?;
    let mut out = vec![];
    clap_mangen::Man::new(page).render(&mut out)?;
    Ok(out)
}

fn print_text(text: &[u8]) -> anyhow::Result<u8> {
    let mut out = stdout::stdout();
    io::Write::write_all(&mut out, text)?;
    io::Write::flush(&mut out)?;
    Ok(exit::OK)
}

/// Returns whether the pipe of our own output broke. A broken pipe to a server is wrapped in
/// another error.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .downcast_ref::<io::Error>()
        .is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}
