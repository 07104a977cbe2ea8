//! `status`: how far behind a consumer is.
//!
//! Shell: the feed, and the consumer's state folder, which stays unlocked: the consumer may run
//! meanwhile. The command walks as the consumer will walk next, and hands no entry over. So a gap,
//! another feed or a changed history shows here, too.

use std::{
    collections::{BTreeMap, HashSet},
    fs,
    io::{self, Write as _},
    path::Path,
    str::FromStr,
    time::{Duration, SystemTime},
};

use anyhow::{Context as _, bail};
use clap::Args;
use serde::Serialize;
use simplefeed_client::{
    Bookmark, Consumer, ConsumerError, Delivery, FileBookmark,
    fetch::{FetchOutcome, Fetcher},
    state::parked,
    worker::Attempt,
};
use simplefeed_core::{
    feed::Position,
    index::IndexedDocument,
    replay::{Validators, WalkError},
    timestamp::Timestamp,
};
use url::Url;

use crate::{
    duration::shown, exit, format::one_line, say, since, source::SourceArgs, state::StateArgs,
    stdout::stdout,
};

/// Tell how far behind a consumer is
#[derive(Args, Debug)]
pub(crate) struct StatusArgs {
    /// URL of the feed, as the consumer was given it
    pub(crate) url: String,
    #[command(flatten)]
    state: StateArgs,
    /// Print a JSON object
    #[arg(long)]
    pub(crate) json: bool,
    /// Exit 1 if there is more than this: entries=N, documents=N, seconds=N, idle=N (seconds since
    /// the last success) or parked=N
    #[arg(long, value_name = "WHAT=N")]
    warn: Vec<Threshold>,
    /// Exit 2 if there is more than this
    #[arg(long, value_name = "WHAT=N")]
    crit: Vec<Threshold>,
    #[command(flatten)]
    pub(crate) source: SourceArgs,
}

/// Entries that a consumer has not handled.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lag {
    pub(crate) entries: u64,
    /// Instant at or before which the oldest of these entries was stored. If the server publishes
    /// no commit instants, the date of that entry.
    pub(crate) since: Option<Timestamp>,
}

impl StatusArgs {
    /// Returns the arguments for a consumer, without thresholds.
    pub(crate) fn of(url: String, state: StateArgs, source: SourceArgs) -> Self {
        Self {
            url,
            state,
            json: false,
            warn: vec![],
            crit: vec![],
            source,
        }
    }

    /// Returns how far behind the consumer is.
    pub(crate) async fn lag(&self) -> anyhow::Result<Lag> {
        let status = Box::pin(read_status(self)).await?;
        let ago = i64::try_from(status.seconds).unwrap_or(i64::MAX);
        let micros = since::now().micros();
        let since = Timestamp::from_micros(micros.saturating_sub(ago.saturating_mul(1_000_000)));
        Ok(Lag {
            entries: status.entries,
            since: (status.entries > 0).then_some(since),
        })
    }
}

/// Lag and health of a consumer.
#[derive(Debug, Serialize)]
struct ConsumerStatus {
    url: String,
    /// Entries behind the bookmark.
    entries: u64,
    /// Documents that hold the entries behind the bookmark.
    documents: u64,
    /// Age of the oldest pending entry, in seconds. Counted from a commit instant, the age is a
    /// lower bound. If the server publishes no commit instants, the age is by the publisher's date.
    seconds: u64,
    /// Origin of `seconds`: `commit` or `date`.
    counted_from: &'static str,
    /// Age of the oldest pending entry by the publisher's date, in seconds.
    dated_seconds: u64,
    parked: u64,
    /// Time at which the consumer last finished an entry, or found nothing newer.
    last_success: Option<String>,
    /// Seconds since the last success.
    idle: Option<u64>,
    /// Id of the last finished entry; `position` is the position of the same entry.
    entry: Option<String>,
    position: Option<u64>,
    /// Attempt at the first entry behind the bookmark, if an attempt was begun.
    attempt: Option<Attempt>,
}

/// One of the numbers by name, and the highest value that is no alarm.
#[derive(Clone, Debug)]
struct Threshold {
    what: &'static str,
    most: u64,
}

impl FromStr for Threshold {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let kinds = ["entries", "documents", "seconds", "idle", "parked"];
        let read = || {
            let (what, most) = text.split_once('=')?;
            let what = kinds.into_iter().find(|kind| *kind == what)?;
            let most = most.parse().ok()?;
            Some(Self { what, most })
        };
        read().ok_or_else(|| format!("one of {} with =N behind it", kinds.join(", ")))
    }
}

const WARNING: u8 = 1;
const CRITICAL: u8 = 2;
const UNKNOWN: u8 = 3;

pub(crate) async fn status(args: StatusArgs) -> anyhow::Result<u8> {
    let status = match Box::pin(read_status(&args)).await {
        Ok(status) => status,
        Err(error) => {
            // A server that is away for a moment proves nothing about the consumer.
            let code = if is_final(&error) { CRITICAL } else { UNKNOWN };
            say::error(&error, exit::hint_of(&error), code);
            return Ok(code);
        }
    };
    print_status(&status, args.json)?;
    let numbers = status.numbers_by_name();
    let broken = |threshold: &&Threshold| {
        numbers
            .get(threshold.what)
            .is_some_and(|number| *number > threshold.most)
    };
    // The critical thresholds first: a number can exceed thresholds of both kinds.
    for (thresholds, code) in [(&args.crit, CRITICAL), (&args.warn, WARNING)] {
        if let Some(threshold) = thresholds.iter().find(broken) {
            say::warning(&format!("more than {} {}", threshold.most, threshold.what));
            return Ok(code);
        }
    }
    Ok(exit::OK)
}

/// Returns whether the consumer needs a person.
fn is_final(error: &anyhow::Error) -> bool {
    match error.downcast_ref() {
        Some(ConsumerError::Walk(error)) => {
            error.is_gap()
                || matches!(
                    error,
                    WalkError::AnotherFeed { .. } | WalkError::HistoryChanged { .. }
                )
        }
        _ => false,
    }
}

impl ConsumerStatus {
    fn numbers_by_name(&self) -> BTreeMap<&'static str, u64> {
        // A consumer that never succeeded is idle for ever.
        let idle = self.idle.unwrap_or(u64::MAX);
        [
            ("entries", self.entries),
            ("documents", self.documents),
            ("seconds", self.seconds),
            ("idle", idle),
            ("parked", self.parked),
        ]
        .into()
    }
}

async fn read_status(args: &StatusArgs) -> anyhow::Result<ConsumerStatus> {
    let folder = args.state.folder(&args.url)?;
    let nothing = || format!("nothing is remembered in {}", folder.display());
    let file = match FileBookmark::open(folder.join("bookmark")) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => bail!(nothing()),
        Err(error) => return Err(error.into()),
    };
    // Read without the lock, which a running consumer holds.
    let bookmark = file.peek()?.with_context(nothing)?;
    let last = last_success(&folder);
    let idle = last.and_then(|last| SystemTime::now().duration_since(last).ok());
    let mut status = ConsumerStatus {
        url: args.url.clone(),
        entries: 0,
        documents: 0,
        seconds: 0,
        counted_from: "commit",
        dated_seconds: 0,
        // Unreadable entries count, too: they are parked all the same.
        parked: u64::try_from(parked::iter(&folder)?.count())?,
        last_success: last.map(|last| instant_of(last).to_string()),
        idle: idle.map(|idle| idle.as_secs()),
        entry: bookmark.entry.clone(),
        position: bookmark.position.map(|position| position.0),
        attempt: file.attempt()?,
    };
    // The walk has no bookmark store, so this command leaves no trace.
    let builder = args.source.consumer(&args.url)?.resume(bookmark.clone());
    let mut consumer = builder.build()?;
    if let Some(first) = consumer.next().await? {
        status.dated_seconds = age_of(&first);
        status.seconds = status.dated_seconds;
        // The server has recorded the instant of the commit, but a date is any time that the
        // publisher chose.
        if let Some(committed) = first.committed_by() {
            status.seconds = seconds_since(committed);
        } else {
            status.counted_from = "date";
        }
        count_from(args, &mut status, consumer, &first, &bookmark).await?;
    }
    Ok(status)
}

/// Counts the entries and documents from `first` on: by positions and the archive index, or else by
/// reading all entries.
async fn count_from(
    args: &StatusArgs,
    status: &mut ConsumerStatus,
    mut consumer: Consumer,
    first: &Delivery,
    bookmark: &Bookmark,
) -> anyhow::Result<()> {
    let ready = u64::try_from(consumer.ready())?;
    if let (Some(left), Some(position)) = (consumer.remaining(), first.position()) {
        status.entries = 1 + ready + left;
        let url: Url = args.url.parse()?;
        // A bookmark without a position has no place in the index.
        let listed = match (left, bookmark.position) {
            (0, _) | (_, None) => None,
            _ => documents_from(&args.source.fetcher(&url)?, &url, position).await,
        };
        if let Some(documents) = listed.or_else(|| (left == 0).then_some(1)) {
            status.documents = documents;
            return Ok(());
        }
    }
    // Without positions or a complete index, only a read of all entries counts them.
    let mut documents: HashSet<Option<Url>> = [first.document().cloned()].into();
    let mut entries = 1;
    while let Some(delivery) = consumer.next().await? {
        entries += 1;
        documents.insert(delivery.document().cloned());
    }
    status.entries = entries;
    status.documents = u64::try_from(documents.len())?;
    Ok(())
}

/// Counts the documents that end behind a position, if the feed has an archive index that reaches
/// back to the position.
async fn documents_from(fetcher: &Fetcher, url: &Url, position: Position) -> Option<u64> {
    let fetched = fetcher.document(url, &Validators::default(), false).await;
    let Ok(FetchOutcome::Document { document, .. }) = fetched else {
        return None;
    };
    // The index lists archives only, so the recent document is counted apart.
    let mut documents = u64::from(!document.is_empty());
    let (Position(mut end), _) = document.history?;
    let mut next = document.link("index").cloned();
    let mut seen = HashSet::new();
    while let Some(url) = next.take().filter(|url| seen.insert(url.clone())) {
        let (url, block) = fetcher.index(&url).await.ok()?;
        // An index that lags behind does not list every document.
        if block
            .documents
            .last()
            .is_some_and(|last| end_of(last) != end)
        {
            return None;
        }
        end = block.documents.first().map_or(end, |first| first.first);
        let behind = |listed: &&IndexedDocument| end_of(listed) > position.0;
        let found = block.documents.iter().filter(behind).count();
        documents += u64::try_from(found).ok()?;
        // A block that reaches back beyond the position is the last one needed.
        let whole = found > 0 && found == block.documents.len();
        if whole || block.documents.is_empty() {
            next = block.prev.and_then(|prev| url.join(&prev).ok());
        }
    }
    // An index that does not reach back to the position counts too few documents.
    (end <= position.0 || end == 0).then_some(documents)
}

fn end_of(listed: &IndexedDocument) -> u64 {
    listed.first.saturating_add(listed.entries)
}

/// Returns the age of an entry by the entry's date, in seconds.
fn age_of(delivery: &Delivery) -> u64 {
    let updated = delivery.event().ok().and_then(|event| event.updated);
    let updated = updated.and_then(|updated| Timestamp::parse(&updated));
    updated.map_or(0, seconds_since)
}

fn seconds_since(instant: Timestamp) -> u64 {
    // A clock that is behind the server's gives 0.
    let age = since::now().micros().saturating_sub(instant.micros());
    u64::try_from(age / 1_000_000).unwrap_or(0)
}

/// Returns the time when the consumer last finished an entry or found nothing newer.
fn last_success(folder: &Path) -> Option<SystemTime> {
    fs::metadata(folder.join("succeeded")).ok()?.modified().ok()
}

fn instant_of(time: SystemTime) -> Timestamp {
    let since = time.duration_since(SystemTime::UNIX_EPOCH);
    let micros = since.unwrap_or(Duration::ZERO).as_micros();
    Timestamp::from_micros(i64::try_from(micros).unwrap_or(i64::MAX))
}

fn print_status(status: &ConsumerStatus, json: bool) -> anyhow::Result<()> {
    let mut out = stdout();
    if json {
        serde_json::to_writer(&mut out, status)?;
        writeln!(out)?;
        return Ok(out.flush()?);
    }
    match status.entries {
        0 => writeln!(out, "lag           caught up")?,
        entries => {
            let (seconds, dated) = (shown(status.seconds), shown(status.dated_seconds));
            let age = match status.counted_from {
                "commit" => format!("committed at least {seconds} ago, dated {dated} ago"),
                _ => format!("dated {dated} ago"),
            };
            let documents = status.documents;
            writeln!(
                out,
                "lag           {entries} entries in {documents} documents, the oldest {age}"
            )?;
        }
    }
    let never = || "never".to_owned();
    let last = status.last_success.clone().unwrap_or_else(never);
    let idle = status
        .idle
        .map_or(String::new(), |idle| format!(", {} ago", shown(idle)));
    writeln!(out, "last success  {last}{idle}")?;
    writeln!(out, "parked        {}", status.parked)?;
    if let Some(Attempt {
        entry,
        count,
        error,
        ..
    }) = &status.attempt
    {
        let why = error
            .as_ref()
            .map_or(String::new(), |error| format!(", last time: {error}"));
        writeln!(
            out,
            "trying        {}",
            one_line(&format!("{entry}, begun {count} times{why}"))
        )?;
    }
    Ok(out.flush()?)
}
