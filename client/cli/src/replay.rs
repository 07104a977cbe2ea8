//! `replay` and `tail`: a feed's entries on stdout, oldest first.
//!
//! Shell: stdout. The bookmark moves only past what was written and flushed.

#![expect(clippy::print_stderr, reason = "this command warns")]

use std::{
    io::{self, BufWriter, Write as _},
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use clap::Args;
use simplefeed_client::{Consumer, ConsumerError, Delivery, FileBookmark, Observer, Since};

use crate::{exit, format::Format, progress::counter, since, token::TokenArgs};

/// How old the bookmark may get while entries are written.
const SETTLE_EVERY: Duration = Duration::from_secs(1);

/// How soon the same warning is given again.
const REPEAT_EVERY: Duration = Duration::from_mins(1);

/// What a cache that cannot reach the server means.
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
    /// File that remembers the last entry printed; the next run begins after it
    #[arg(long, value_name = "FILE")]
    bookmark: Option<PathBuf>,
    /// How to print an entry
    #[arg(long, value_enum, default_value_t = Format::Ndjson)]
    format: Format,
    /// Stop after this many entries
    #[arg(long, value_name = "N")]
    limit: Option<u64>,
    #[command(flatten)]
    token: TokenArgs,
}

pub(crate) async fn replay(args: ReplayArgs, follow: bool) -> anyhow::Result<u8> {
    let default = if follow { Since::Newest } else { Since::Oldest };
    let mut builder = Consumer::builder(args.url)
        .follow(follow)
        .since(args.since.unwrap_or(default));
    if let Some(path) = &args.bookmark {
        let store = FileBookmark::open(path)
            .with_context(|| format!("cannot use the bookmark {}", path.display()))?;
        builder = builder.bookmark(store);
    }
    if let Some(token) = args.token.token()? {
        builder = builder.bearer_token(token);
    }
    let mut output = Output {
        consumer: builder.observer(Warnings::default()).build()?,
        out: BufWriter::with_capacity(256 * 1024, io::stdout()),
        written: None,
        settled: Instant::now(),
        unsettled: 0,
        bar: counter("entries"),
    };
    let outcome = output.copy(args.format, args.limit, follow).await;
    output.bar.finish_and_clear();
    outcome.map(|()| exit::OK)
}

/// Warns of what the consumer bears; of the same thing once in a while.
#[derive(Default)]
struct Warnings {
    told: Option<(String, Instant)>,
}

impl Warnings {
    fn warn(&mut self, message: String) {
        let repeats =
            |(last, at): &(String, Instant)| *last == message && at.elapsed() < REPEAT_EVERY;
        if !self.told.as_ref().is_some_and(repeats) {
            eprintln!("warning: {message}");
            self.told = Some((message, Instant::now()));
        }
    }
}

impl Observer for Warnings {
    fn retrying(&mut self, error: &ConsumerError) {
        let cause = std::error::Error::source(error);
        let cause = cause.map_or(String::new(), |cause| format!(": {cause}"));
        self.warn(format!("{error}{cause}; trying again"));
    }

    fn sees_the_past(&mut self) {
        self.warn(PAST.into());
    }
}

struct Output {
    consumer: Consumer,
    out: BufWriter<io::Stdout>,
    /// The last entry written, while it is not accepted.
    written: Option<Delivery>,
    settled: Instant,
    /// The entries written since.
    unsettled: u64,
    bar: indicatif::ProgressBar,
}

impl Output {
    async fn copy(
        &mut self,
        format: Format,
        limit: Option<u64>,
        follow: bool,
    ) -> anyhow::Result<()> {
        let mut left = limit.unwrap_or(u64::MAX);
        while left > 0 {
            // Before anything is waited for, and at least once a second.
            if self.consumer.ready() == 0 || self.settled.elapsed() >= SETTLE_EVERY {
                self.settle().await?;
            }
            let delivery = match self.consumer.next().await {
                Ok(Some(delivery)) => delivery,
                Ok(None) => return self.settle().await,
                Err(error) if follow && error.is_transient() => {
                    eprintln!("warning: {error}; trying again");
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            if let Err(error) = format.write(&delivery, &mut self.out) {
                // What stands before it is printed and need not come again.
                self.settle().await?;
                return Err(error);
            }
            self.written = Some(delivery);
            self.unsettled += 1;
            left -= 1;
        }
        self.settle().await
    }

    /// Flushes, and then moves the bookmark past what was written.
    async fn settle(&mut self) -> anyhow::Result<()> {
        self.out.flush()?;
        if let Some(delivery) = self.written.take() {
            self.consumer.accept(&delivery).await?;
        }
        self.settled = Instant::now();
        self.bar.inc(std::mem::take(&mut self.unsettled));
        Ok(())
    }
}
