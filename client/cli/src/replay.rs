//! `replay` and `tail`: a feed's entries on stdout, or to a command, oldest first.
//!
//! Shell: stdout. The bookmark moves past an entry only after the entry is written to stdout
//! (durably, if stdout is a file), or the command has accepted the entry.

use std::{
    io::{self, IsTerminal as _, Write as _},
    num::NonZeroU32,
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use clap::Args;
use simplefeed_client::{
    Consumer, ConsumerError, Delivery, FileBookmark, Observer, Since, Worker, error_text,
    worker::{Attempt, HandlerError, Interruption},
};
use simplefeed_core::{reader::FeedFault, replay::WalkError};
use tokio::{
    sync::{Mutex, watch},
    time,
};

use crate::{
    batch::{Batches, is_of_entry},
    chosen::ChosenArgs,
    duration,
    exit::{self, Usage},
    format::{Format, Paint},
    handler::HandlerArgs,
    printed::EntryPrinter,
    progress,
    reversed::ReversedEntries,
    say,
    signals::Ends,
    since,
    source::{Gap, Means, SourceArgs},
    state::StateArgs,
    stdout::stdout,
};

/// Longest time between two moves of the bookmark while entries are written.
const SETTLE_EVERY: Duration = Duration::from_secs(1);

/// Shortest time between two equal warnings.
const REPEAT_EVERY: Duration = Duration::from_mins(1);

/// Longest time between the end of a command by a signal and the same signal to this process.
const SIGNAL_DELAY: Duration = Duration::from_millis(500);

/// Warning about a cache that cannot reach the server.
const PAST: &str = "the newest document came from a cache that could not ask the server; \
    there may be newer entries";

/// Print a feed's entries, oldest first
#[derive(Args, Debug)]
pub(crate) struct ReplayArgs {
    /// URL of the feed, or of any of its documents
    url: String,
    /// Where to begin if there is no bookmark: oldest, newest, a date-time, a date, an age such as
    /// 90m or 2d, or the id of the entry to begin after [default: oldest; newest for tail]
    #[arg(long, value_parser = since::parse)]
    since: Option<Since>,
    /// File that remembers the last entry printed; the next run begins after it. The empty file
    /// .NAME.lock beside it keeps two runs apart
    #[arg(long, value_name = "FILE", conflicts_with_all = ["state", "exec"])]
    bookmark: Option<PathBuf>,
    #[command(flatten)]
    state: StateArgs,
    /// How to print an entry [default: text on a terminal, else ndjson]
    #[arg(long, value_enum)]
    pub(crate) format: Option<Format>,
    /// Stop after this many entries; not with --exec
    #[arg(long, value_name = "N", conflicts_with = "exec")]
    limit: Option<u64>,
    /// Hand over at most this many entries a second
    #[arg(long, value_name = "N")]
    rate: Option<NonZeroU32>,
    /// Action at a gap (entries have left the feed): stop with exit code 13, or warn and go on from
    /// the oldest entry left
    #[arg(long, value_enum, default_value = "stop")]
    on_gap: Gap,
    /// Time between looks at a feed without freshness information (Cache-Control, Expires)
    /// [default: 15m]
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    interval: Option<Duration>,
    /// How `tail` learns of new entries, if the server offers it: by a stream of events, by waits,
    /// or by polls alone
    #[arg(long, value_enum, default_value = "events", value_name = "MEANS")]
    wait: Means,
    /// Hand over entries of foreign feeds again that come again with a later date
    #[arg(long)]
    revisions: bool,
    #[command(flatten)]
    chosen: ChosenArgs,
    /// Print the newest entry first. All are read and kept in a temporary file before the first is
    /// printed, since an archive is only proven from its beginning on; with --limit, the newest so
    /// many. Not for tail
    #[arg(long, conflicts_with_all = ["exec", "bookmark", "state", "count"])]
    reverse: bool,
    #[command(flatten)]
    handler: HandlerArgs,
    #[command(flatten)]
    source: SourceArgs,
}

impl ReplayArgs {
    /// Returns whether the command handles signals by itself.
    pub(crate) fn ends_by_itself(&self) -> bool {
        self.handler.exec.is_some()
    }

    fn make_consumer(&self, follow: bool) -> anyhow::Result<simplefeed_client::consumer::Builder> {
        let default = if follow { Since::Newest } else { Since::Oldest };
        let mut builder = self.source.consumer(&self.url)?.on_gap(self.on_gap.into());
        if let Some(interval) = self.interval {
            builder = builder.interval(interval);
        }
        Ok(builder
            .follow(follow)
            .since(self.since.clone().unwrap_or(default))
            .wake_by(self.wait.into())
            .revisions(self.revisions)
            .observer(Warnings::default()))
    }
}

pub(crate) async fn replay(args: ReplayArgs, follow: bool) -> anyhow::Result<u8> {
    if follow && args.reverse {
        return Err(
            Usage("tail has no last entry to begin with; replay --reverse has".into()).into(),
        );
    }
    match (&args.handler.exec, args.handler.batch) {
        (Some(command), Some(size)) => run_for_batches(&args, command, size, follow).await,
        (Some(command), None) => run_for_each(&args, command, follow).await,
        (None, _) => print_entries(args, follow).await,
    }
}

/// Prints entries to stdout, up to the limit.
async fn print_entries(args: ReplayArgs, follow: bool) -> anyhow::Result<u8> {
    let mut builder = args.make_consumer(follow)?;
    if let Some(path) = &args.bookmark {
        let store = FileBookmark::open(path)
            .with_context(|| format!("cannot use the bookmark {}", path.display()))?;
        builder = builder.bookmark(store);
    } else if args.state.state.is_some() {
        builder = builder.bookmark(args.state.open(&args.url)?);
    }
    let mut output = ReplayOutput {
        consumer: builder.build()?,
        out: EntryPrinter::new(args.bookmark.is_some() || args.state.state.is_some())?,
        written: None,
        settled: Instant::now(),
        unsettled: 0,
        line: vec![],
        skipped: 0,
        reversed: if args.reverse {
            Some(ReversedEntries::new().context("cannot make a temporary file")?)
        } else {
            None
        },
        bar: progress::counter("entries"),
        paint: Paint::of_stdout(),
        pace: EntryPace::new(args.rate),
        chosen: args.chosen.clone(),
        is_count: args.chosen.count,
        printed: 0,
    };
    let format = args.format.unwrap_or_else(|| {
        let to_a_person = io::stdout().is_terminal();
        if to_a_person {
            Format::Text
        } else {
            Format::Ndjson
        }
    });
    // With `--reverse`, the limit counts from the newest entry, which is read last. So all entries
    // must be read.
    let limit = args.limit.filter(|_| !args.reverse);
    let outcome = output.copy_entries(format, limit, follow).await;
    // Before an error is printed: the bar is on the same terminal.
    output.bar.finish_and_clear();
    outcome?;
    if let Some(reversed) = output.reversed {
        reversed.print(args.limit.unwrap_or(u64::MAX), &mut output.out)?;
    }
    if args.chosen.count {
        writeln!(stdout(), "{}", output.printed)?;
    }
    // `tail` ends only on request, by a signal or a limit, so the exit code is not about skipped
    // entries.
    Ok(if output.skipped > 0 && !follow {
        exit::PARTIAL
    } else {
        exit::OK
    })
}

/// Runs a command for batches of at most `size` entries.
async fn run_for_batches(
    args: &ReplayArgs,
    command: &str,
    size: NonZeroU32,
    follow: bool,
) -> anyhow::Result<u8> {
    let state = args.state.open(&args.url)?;
    say::detail(&format!("the state is in {}", state.path().display()));
    let format = args.format.unwrap_or(Format::Ndjson);
    let batches = Batches {
        consumer: args.make_consumer(follow)?.bookmark(state).build()?,
        handler: args.handler.rules.handler(command, format),
        format,
        size: usize::try_from(size.get())?,
        follow,
    };
    batches.run(&mut Ends::listen()?).await
}

/// Runs a command for each entry.
async fn run_for_each(args: &ReplayArgs, command: &str, follow: bool) -> anyhow::Result<u8> {
    // Before the folder is made or locked: a wrong option must change nothing.
    args.handler.rules.check()?;
    let state = args.state.open(&args.url)?;
    say::detail(&format!("the state is in {}", state.path().display()));
    let worker = Worker::new(args.make_consumer(follow)?, state)?;
    let mut worker = args.handler.rules.worker(worker);
    let handler = args
        .handler
        .rules
        .handler(command, args.format.unwrap_or(Format::Ndjson));
    let mut ends = Ends::listen()?;
    let (ask_to_stop, was_asked) = watch::channel(false);
    let mut asked = was_asked.clone();
    let stop = async move {
        // An error means that the sender is gone, and the run with it.
        let _gone = asked.wait_for(|asked| *asked).await.is_err();
    };
    // One entry is handled at a time, so nobody ever waits for this lock.
    let pace = Mutex::new(EntryPace::new(args.rate));
    let tally = worker.run_until(stop, async |delivery| {
        pace.lock().await.wait_for_pace().await;
        let handled = handler.handle(&delivery).await;
        interrupted_if_asked(handled, was_asked.clone()).await
    });
    tokio::pin!(tally);
    let mut ended_by = exit::OK;
    let tally = loop {
        let code = tokio::select! {
            tally = &mut tally => break tally?,
            code = ends.told() => code,
        };
        ended_by = code;
        if ask_to_stop.send_replace(true) {
            // The second signal: dropping the run kills the command and its process group.
            return Ok(code);
        }
        say::note("Waiting for the command to end. Send the signal once more, and it is killed.");
    };
    if tally.skipped + tally.parked > 0 {
        say::note(&format!(
            "{} handled, {} skipped, {} parked.",
            say::count(tally.handled, "entry was", "entries were"),
            tally.skipped,
            tally.parked
        ));
        // `tail` has warned of each entry, and ends on request.
        if !follow && ended_by == exit::OK {
            return Ok(exit::PARTIAL);
        }
    }
    Ok(ended_by)
}

/// Turns a failure into an interruption, if a stop was asked for, or is asked for within
/// `SIGNAL_DELAY`. A service manager sends the signal to the command, too, and the command may end
/// before this process gets the signal.
async fn interrupted_if_asked(
    handled: Result<(), HandlerError>,
    mut asked: watch::Receiver<bool>,
) -> Result<(), HandlerError> {
    let Err(error) = handled else {
        return Ok(());
    };
    match time::timeout(SIGNAL_DELAY, asked.wait_for(|asked| *asked)).await {
        Ok(_) => Err(Interruption.into()),
        Err(_) => Err(error),
    }
}

/// Spreads entries over time.
struct EntryPace {
    apart: Duration,
    next: Option<time::Instant>,
}

impl EntryPace {
    fn new(rate: Option<NonZeroU32>) -> Self {
        let apart = rate.map_or(Duration::ZERO, |rate| Duration::from_secs(1) / rate.get());
        Self { apart, next: None }
    }

    async fn wait_for_pace(&mut self) {
        if self.apart.is_zero() {
            return;
        }
        let now = time::Instant::now();
        // After a slow command, the next entries come at the rate, and not in a burst.
        let due = self.next.map_or(now, |next| next.max(now));
        time::sleep_until(due).await;
        self.next = Some(due + self.apart);
    }
}

/// Warns of the consumer's events. Equal warnings come at most once a minute.
#[derive(Default)]
pub(crate) struct Warnings {
    told: Option<(String, Instant)>,
}

impl Warnings {
    fn warn_of(&mut self, message: String) {
        self.warn_with(message, "");
    }

    /// Warns. `rest` ends the text: two warnings that differ in `rest` only count as equal.
    fn warn_with(&mut self, message: String, rest: &str) {
        let repeats =
            |(last, at): &(String, Instant)| *last == message && at.elapsed() < REPEAT_EVERY;
        if !self.told.as_ref().is_some_and(repeats) {
            say::warning(&format!("{message}{rest}"));
            self.told = Some((message, Instant::now()));
        }
    }
}

impl Observer for Warnings {
    fn retrying(&mut self, error: &ConsumerError, pause: Duration) {
        self.warn_with(error_text(error), &say::again_in(pause));
    }

    fn is_stale(&mut self) {
        self.warn_of(PAST.into());
    }

    fn gap(&mut self, gap: &WalkError) {
        self.warn_of(format!(
            "{gap}; entries may be lost, it goes on from what there is"
        ));
    }

    fn fault(&mut self, fault: &FeedFault) {
        say::warning(&format!("the feed has a fault: {fault}"));
    }

    fn behind(&mut self, entries: u64) {
        say::detail(&format!(
            "{} to go",
            say::count(entries, "entry", "entries")
        ));
    }

    fn caught_up(&mut self) {
        say::detail("nothing newer");
    }

    fn failed(&mut self, delivery: &Delivery, attempt: &Attempt) {
        // Every attempt has a warning of its own, however alike the warnings are.
        let why = attempt.error.as_deref().unwrap_or_default();
        let (id, count) = (delivery.id(), attempt.count);
        say::warning(&format!("entry {id} failed, attempt {count}: {why}"));
    }

    fn skipped(&mut self, delivery: &Delivery) {
        say::warning(&format!("entry {} is skipped", delivery.id()));
    }

    fn parked(&mut self, delivery: &Delivery, waits: bool) {
        let why = if waits {
            ", behind one with the same key"
        } else {
            ""
        };
        say::warning(&format!("entry {} is parked{why}", delivery.id()));
    }
}

struct ReplayOutput {
    consumer: Consumer,
    out: EntryPrinter,
    /// Last written entry that is not accepted yet.
    written: Option<Delivery>,
    settled: Instant,
    /// Entries written since `settled`.
    unsettled: u64,
    line: Vec<u8>,
    /// Number of entries that could not be printed.
    skipped: u64,
    /// Entries that are kept until the end of the feed.
    reversed: Option<ReversedEntries>,
    bar: indicatif::ProgressBar,
    paint: Paint,
    pace: EntryPace,
    chosen: ChosenArgs,
    /// Whether entries are counted, and not written.
    is_count: bool,
    printed: u64,
}

impl ReplayOutput {
    async fn copy_entries(
        &mut self,
        format: Format,
        limit: Option<u64>,
        follow: bool,
    ) -> anyhow::Result<()> {
        let mut left = limit.unwrap_or(u64::MAX);
        while left > 0 {
            // The bookmark moves before each wait, and at least once a second.
            let waits = self.consumer.ready() == 0 || !self.pace.apart.is_zero();
            if waits || self.settled.elapsed() >= SETTLE_EVERY {
                self.settle_output().await?;
            }
            let delivery = match self.consumer.next().await {
                Ok(Some(delivery)) => delivery,
                Ok(None) => return self.settle_output().await,
                // The consumer keeps to the pause before the next attempt.
                Err(error) if follow && error.is_transient() => {
                    let again = say::again_in(self.consumer.retries_in());
                    say::warning(&format!("{}{again}", error_text(&error)));
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            if !self.chosen.takes(&delivery) {
                self.written = Some(delivery);
                continue;
            }
            self.pace.wait_for_pace().await;
            self.line.clear();
            let written = if self.is_count {
                Ok(())
            } else {
                format.write_painted(&delivery, self.paint, &mut self.line)
            };
            match written {
                Ok(()) => {
                    match &mut self.reversed {
                        Some(reversed) => reversed.keep(&self.line)?,
                        None => self.out.write_all(&self.line)?,
                    }
                    self.unsettled += 1;
                    self.printed += 1;
                    left -= 1;
                }
                // The fault is this entry's alone. The entries behind this one are printed.
                Err(error) if is_of_entry(&error) => {
                    say::skipped(delivery.id(), &error);
                    self.skipped += 1;
                }
                Err(error) => return Err(error),
            }
            // An entry that cannot be printed is passed over for good.
            self.written = Some(delivery);
        }
        self.settle_output().await
    }

    /// Settles the output, and then moves the bookmark past the entries written.
    async fn settle_output(&mut self) -> anyhow::Result<()> {
        // First: the bookmark must not move past bytes that may still be lost.
        self.out.settle()?;
        if let Some(delivery) = self.written.take() {
            self.consumer.accept(&delivery).await?;
        }
        self.settled = Instant::now();
        self.bar.inc(std::mem::take(&mut self.unsettled));
        if let Some(left) = self.consumer.remaining().filter(|left| *left > 0) {
            let ready = u64::try_from(self.consumer.ready())?;
            progress::expect(&self.bar, ready + left);
        }
        Ok(())
    }
}
