//! `watch`: the new entries of many feeds.
//!
//! Shell: the files that list feeds, and stdout. The saved state counts an entry as printed only
//! after the entry is written to stdout (durably, if stdout is a file).

use std::{
    fs,
    io::{self, Read as _, Write as _},
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use clap::Args;
use simplefeed_client::{
    ConsumerError, FeedWatcher, Since, StateFolder, WakeBy, error_text,
    watcher::{WatchEvent, WatchedEntry},
};
use simplefeed_core::{opml, watch::WatchTally};
use tokio::signal::unix::{SignalKind, signal};
use url::Url;

use crate::{
    duration, exit,
    exit::Usage,
    format::Format,
    printed::EntryPrinter,
    say, signals, since,
    source::{Gap, SourceArgs},
};

/// Longest wait for a blocked reader of stdout at shutdown.
const SETTLE_AT_END: Duration = Duration::from_secs(5);

/// Longest time between two saves of the state while entries are written.
const SETTLE_EVERY: Duration = Duration::from_secs(1);

/// How to learn of updates
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum SupMeans {
    /// Requests that the server answers once there is an update
    Wait,
    /// Requests from time to time
    Poll,
}

/// Print the new entries of many feeds
#[derive(Args, Debug)]
pub(crate) struct WatchArgs {
    /// URLs of feeds, and files that list some: one URL a line, or OPML; - is stdin
    #[arg(required = true, value_name = "FILE|URL")]
    feeds: Vec<String>,
    /// Folder that remembers what was printed of each feed [default: none; begins anew each time]
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
    /// Where to begin in a feed that was never seen: oldest, newest, a date-time, a date, or an age
    /// such as 2d
    #[arg(long, value_parser = since::parse, default_value = "newest")]
    since: Since,
    /// How often to look at a feed that no SUP document tells about
    #[arg(long, value_name = "TIME", value_parser = duration::parse, default_value = "30m")]
    interval: Duration,
    /// Hear SUP documents so often, where they allow it [default: a little faster than their
    /// period]
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    sup_interval: Option<Duration>,
    /// How to learn of updates, where SUP documents offer it: by waits, or by polls alone
    #[arg(long, value_enum, default_value = "wait", value_name = "MEANS")]
    wait: SupMeans,
    /// Action at a gap in a feed: warn and go on from the oldest entry left, or leave the feed
    /// alone
    #[arg(long, value_enum, default_value = "go-on")]
    on_gap: Gap,
    /// URL of a feed to begin anew, as one that was never seen; can be given more than once
    #[arg(long, value_name = "URL", requires = "state")]
    reset: Vec<String>,
    /// How to print an entry
    #[arg(long, value_enum, default_value = "ndjson")]
    pub(crate) format: Format,
    /// Stop after this many entries
    #[arg(long, value_name = "N")]
    limit: Option<u64>,
    /// Stop after this time
    #[arg(long = "for", value_name = "TIME", value_parser = duration::parse)]
    time: Option<Duration>,
    #[command(flatten)]
    source: SourceArgs,
}

pub(crate) async fn watch(args: WatchArgs) -> anyhow::Result<u8> {
    let urls = listed_urls(&args.feeds)?;
    // A misspelt URL would have no effect, and nobody would notice.
    if let Some(url) = args.reset.iter().find(|url| !urls.contains(url)) {
        anyhow::bail!("--reset {url}: no list contains this URL; spell it as the list does");
    }
    // A reader of stdout that blocks must not keep the process alive.
    signals::end_in_any_case()?;
    let mut builder = args
        .source
        .watcher(urls)?
        .since(args.since)
        .interval(args.interval)
        .on_gap(args.on_gap.into())
        .wake_by(match args.wait {
            SupMeans::Wait => WakeBy::Wait,
            SupMeans::Poll => WakeBy::Poll,
        });
    for url in &args.reset {
        builder = builder.anew(url);
    }
    if let Some(sup_interval) = args.sup_interval {
        builder = builder.sup_interval(sup_interval);
    }
    if let Some(folder) = &args.state {
        builder = builder.state(StateFolder::open(folder)?);
    }
    let mut output = WatchOutput {
        feeds: builder.build()?,
        out: EntryPrinter::new(args.state.is_some())?,
        line: vec![],
        written: vec![],
        settled: Instant::now(),
    };
    let ends = async {
        match args.time {
            Some(time) => tokio::time::sleep(time).await,
            None => std::future::pending().await,
        }
    };
    // Before the first request, so that no signal ends the process before the output is settled.
    let mut interrupted = signal(SignalKind::interrupt())?;
    let mut terminated = signal(SignalKind::terminate())?;
    let mut hung_up = signal(SignalKind::hangup())?;
    let limit = args.limit.unwrap_or(u64::MAX);
    // Entries that `copy_entries` has read and not written are not accepted, and come again.
    let code = tokio::select! {
        ended = output.copy_entries(args.format, limit) => ended.map(|()| exit::OK),
        () = ends => Ok(exit::OK),
        _ = interrupted.recv() => Ok(exit::INTERRUPTED),
        _ = terminated.recv() => Ok(exit::OK),
        _ = hung_up.recv() => Ok(exit::OK),
    };
    let code = code?;
    // Entries that a blocked reader has not taken stay unaccepted, and are printed again.
    let settled = tokio::time::timeout(SETTLE_AT_END, output.settle_output()).await;
    if let Ok(settled) = settled {
        settled?;
    }
    // The state of feeds without new entries may have changed, too. `accept` saves the state only
    // when entries are accepted.
    output.feeds.save().await?;
    say::note(&tally_text(output.feeds.tally()));
    Ok(code)
}

fn tally_text(tally: WatchTally) -> String {
    let WatchTally {
        pings,
        first,
        background,
        documents,
        gaps,
        sweeps,
    } = tally;
    format!(
        "Looks at feeds: {first} first ones, {pings} after news in a SUP document, {background} by interval. \
         SUP documents: {documents} requests, {gaps} gaps, {sweeps} of them closed by a look at every feed."
    )
}

/// Returns the URLs in the arguments and in the lists that they name.
fn listed_urls(arguments: &[String]) -> anyhow::Result<Vec<String>> {
    let mut urls = vec![];
    for argument in arguments {
        if argument.starts_with("http://") || argument.starts_with("https://") {
            urls.push(argument.clone());
            continue;
        }
        let mut text = vec![];
        if argument == "-" {
            io::stdin()
                .read_to_end(&mut text)
                .context("cannot read stdin")?;
        } else {
            text = fs::read(argument)
                .with_context(|| format!("cannot read the list of feeds {argument}"))?;
        }
        let text = String::from_utf8(text)
            .with_context(|| format!("the list of feeds {argument} is not UTF-8"))?;
        let found = in_list(&text).with_context(|| format!("in {argument}"))?;
        urls.extend(found);
    }
    if urls.is_empty() {
        return Err(Usage("there is no feed in what was given".into()).into());
    }
    Ok(urls)
}

fn in_list(text: &str) -> anyhow::Result<Vec<String>> {
    if text
        .trim_start_matches('\u{feff}')
        .trim_start()
        .starts_with('<')
    {
        return Ok(opml::feeds(text)?);
    }
    let mut urls = vec![];
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if Url::parse(line).is_err() {
            bail!("line {} is no URL: {line}", number + 1);
        }
        urls.push(line.into());
    }
    Ok(urls)
}

struct WatchOutput {
    feeds: FeedWatcher,
    out: EntryPrinter,
    line: Vec<u8>,
    /// Entries written and not accepted yet.
    written: Vec<WatchedEntry>,
    settled: Instant,
}

impl WatchOutput {
    async fn copy_entries(&mut self, format: Format, limit: u64) -> anyhow::Result<()> {
        let mut left = limit;
        while left > 0 {
            // The state is saved before each wait, and at least once a second.
            if self.feeds.ready() == 0 || self.settled.elapsed() >= SETTLE_EVERY {
                self.settle_output().await?;
            }
            match self.feeds.next().await? {
                WatchEvent::Gap { url, error } => {
                    say::warning(&format!(
                        "{url}: {}; entries may be lost, it goes on from what there is",
                        error_text(&*error)
                    ));
                }
                WatchEvent::Fault { url, fault } => {
                    say::warning(&format!("{url}: the feed has a fault: {fault}"));
                }
                WatchEvent::Trouble { url, error } => {
                    let is_gap = matches!(&*error, ConsumerError::Walk(walk) if walk.is_gap());
                    let then = if is_gap {
                        format!("go on with --on-gap go-on, or begin it anew with --reset {url}")
                    } else {
                        "it will be tried again".to_owned()
                    };
                    say::warning(&format!("{url}: {}; {then}", error_text(&*error)));
                }
                WatchEvent::Entry(entry) => {
                    self.write_entry(format, &entry)?;
                    // Accepted even if the print failed: the entry could not be printed the next
                    // time, either.
                    self.written.push(entry);
                    left -= 1;
                }
            }
        }
        Ok(())
    }

    /// Writes an entry as a whole. An entry that cannot be printed ends nothing: there are other
    /// feeds.
    fn write_entry(&mut self, format: Format, entry: &WatchedEntry) -> anyhow::Result<()> {
        self.line.clear();
        match format.write_of(&entry.feed, &entry.delivery, &mut self.line) {
            Ok(()) => self.out.write_all(&self.line)?,
            Err(error) => say::warning(&format!(
                "{}: entry {} is passed over: {error:#}",
                entry.feed,
                entry.delivery.id()
            )),
        }
        Ok(())
    }

    /// Settles the output, and then accepts the entries written.
    async fn settle_output(&mut self) -> anyhow::Result<()> {
        if !self.written.is_empty() {
            self.out.settle()?;
            self.feeds.accept(&self.written).await?;
            self.written.clear();
        }
        self.settled = Instant::now();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_lines_or_opml() {
        let lines = "\n# ours\n https://a.example/feed \nhttps://b.example/\n";
        assert_eq!(
            in_list(lines).unwrap(),
            ["https://a.example/feed", "https://b.example/"]
        );
        let opml = "\u{feff}<opml><body><outline xmlUrl='https://a.example/'/></body></opml>";
        assert_eq!(in_list(opml).unwrap(), ["https://a.example/"]);
        let error = in_list("https://a.example/\nnonsense\n").unwrap_err();
        assert_eq!(error.to_string(), "line 2 is no URL: nonsense");
    }
}
