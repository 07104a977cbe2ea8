//! `append`: events or entries from a file or a pipe into a feed.
//!
//! Shell: stdin. Lines are gathered into batches. A batch is published at 1,000 events, at 1 MiB,
//! or after 100 ms without a new event: many events share a request, and no event waits long.
use std::{
    fs::File,
    io::{self, BufRead, BufReader, Read as _, Write as _},
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Context as _;
use clap::Args;
use simplefeed_client::{
    Publication, PublishError, Publisher,
    publisher::{Acknowledgement, BATCH_BYTES, BATCH_ENTRIES, Status},
};
use simplefeed_core::scanner::elements;
use tokio::sync::mpsc;

use crate::{
    events::{Events, LineEvent},
    exit,
    progress::counter,
    say,
    stdout::stdout,
    token::TokenArgs,
    wrap::Wrap,
};

/// Longest wait of a batch for another event.
const QUIET: Duration = Duration::from_millis(100);

/// Publish NDJSON events, or Atom entries, to a feed
#[derive(Args, Debug)]
pub(crate) struct AppendArgs {
    /// URL of the feed
    url: String,
    /// File to read; stdin if it is - or absent
    file: Option<PathBuf>,
    /// Take each JSON value of the input as the content of an entry, as other programs print them
    #[arg(long)]
    wrap: bool,
    /// With --wrap: JSON pointer, such as /order/id, to the part of each value that tells it from
    /// others. The entry's id is made of the feed's URL and of it, so that what was published is
    /// found when the input comes again
    #[arg(long, value_name = "POINTER", requires = "wrap")]
    id_from: Option<String>,
    /// Append only if the feed's head has this tag, and nobody else appends meanwhile: the ETag of
    /// its recent.atom
    #[arg(long, value_name = "TAG")]
    if_match: Option<String>,
    #[command(flatten)]
    token: TokenArgs,
}

pub(crate) async fn append(args: AppendArgs) -> anyhow::Result<u8> {
    let mut publisher = args.token.publisher(&args.url)?;
    if let Some(tag) = &args.if_match {
        publisher = publisher.if_match(tag);
    }
    let mut report = AppendReport::new("entries published");
    let wrap = match (args.wrap, &args.id_from) {
        (false, _) => None,
        (true, pointer) => Some(Wrap::new(&args.url, pointer.as_deref())?),
    };
    let outcome = append_all(&publisher, args.file.as_deref(), wrap, &mut report).await;
    report.finish(outcome.is_ok());
    outcome.map(|()| exit::OK)
}

async fn append_all(
    publisher: &Publisher,
    file: Option<&Path>,
    wrap: Option<Wrap>,
    report: &mut AppendReport,
) -> anyhow::Result<()> {
    let mut input = open_input(file)?;
    let (first, line) = first_byte(&mut input)?;
    if first == Some(b'<') && wrap.is_none() {
        // The input is read as a whole, because a feed document lists the newest entry first.
        let mut text = vec![];
        input
            .read_to_end(&mut text)
            .context("cannot read the input")?;
        let text = String::from_utf8(text).context("the input is not UTF-8")?;
        let entries = elements(&text)?.into_iter().map(Publication::Atom);
        return publish(publisher, entries, report).await;
    }
    append_events(publisher, input, line, wrap, report).await
}

/// Publishes entries, and prints the result of each.
pub(crate) async fn publish(
    publisher: &Publisher,
    entries: impl IntoIterator<Item = Publication>,
    report: &mut AppendReport,
) -> anyhow::Result<()> {
    let mut told = Ok(());
    let published = publisher
        .append_reporting(entries, |batch| {
            let outcome = report.print_results(batch);
            // The first error counts: later errors come from the same output.
            if told.is_ok() {
                told = outcome;
            }
        })
        .await;
    // A refusal goes first: a report that cannot be printed must not hide the refusal.
    published?;
    told
}

async fn append_events(
    publisher: &Publisher,
    input: Input,
    first: u64,
    wrap: Option<Wrap>,
    report: &mut AppendReport,
) -> anyhow::Result<()> {
    // The reader is at most about one batch ahead: a large file must not fill the memory.
    let (sender, mut events) = mpsc::channel(BATCH_ENTRIES);
    // The input is read on another thread: a read of a pipe blocks, and the batch must be published
    // meanwhile.
    let reader = std::thread::Builder::new();
    let reader = reader
        .spawn(move || read_events(input, first, wrap.as_ref(), &sender))
        .context("cannot start a thread")?;
    let (mut batch, mut lines) = (vec![], vec![]);
    let mut bytes = 0;
    loop {
        // An empty batch may wait for ever. A batch with an event is published after a quiet
        // moment.
        let next = if batch.is_empty() {
            Ok(events.recv().await)
        } else {
            tokio::time::timeout(QUIET, events.recv()).await
        };
        let ended = matches!(next, Ok(None));
        if let Ok(Some((line, event))) = next {
            bytes += event.len();
            lines.push(line);
            batch.push(Publication::Line(event));
            if batch.len() < BATCH_ENTRIES && bytes < BATCH_BYTES {
                continue;
            }
        }
        if !batch.is_empty() {
            let published = publish(publisher, std::mem::take(&mut batch), report).await;
            published.map_err(|error| at_line(error, &lines))?;
            lines.clear();
            bytes = 0;
        }
        if ended {
            break;
        }
    }
    // The error of the reader comes last: a fault in the input must not hold back the events before
    // the fault.
    match reader.join() {
        Ok(read) => read,
        Err(_) => anyhow::bail!("reading the input failed"),
    }
}

/// Adds the number of the refused entry's input line to an error.
pub(crate) fn at_line(error: anyhow::Error, lines: &[u64]) -> anyhow::Error {
    let entry = match error.downcast_ref() {
        // The refusal of a batch that is too large names no entry. In a batch of one event, the
        // entry is known.
        Some(PublishError::Refused {
            entry: None,
            status: 413,
            ..
        }) if lines.len() == 1 => Some(0),
        Some(PublishError::Refused { entry, .. }) => *entry,
        _ => None,
    };
    match entry.and_then(|entry| lines.get(entry)) {
        Some(line) => error.context(format!(
            "the event on line {line} is wrong; nothing of its batch was published"
        )),
        None => error,
    }
}

/// Reads events from an input whose first line has the number `first`.
fn read_events(
    input: Input,
    first: u64,
    wrap: Option<&Wrap>,
    sender: &mpsc::Sender<LineEvent>,
) -> anyhow::Result<()> {
    let wrapped = |(line, event): LineEvent| -> anyhow::Result<LineEvent> {
        let Some(wrap) = wrap else {
            return Ok((line, event));
        };
        let wrapped = wrap.event(&event);
        Ok((
            line,
            wrapped.with_context(|| format!("line {line} of the input"))?,
        ))
    };
    let mut events = Events::default();
    let mut found = vec![];
    for (number, line) in (first..).zip(input.split(b'\n')) {
        let line = String::from_utf8(line.context("cannot read the input")?);
        let line = line.with_context(|| format!("line {number} of the input is not UTF-8"))?;
        events.line(number, &line, &mut found);
        for event in found.drain(..) {
            // Without a receiver, a publish has failed; `append_events` returns that error.
            if sender.blocking_send(wrapped(event)?).is_err() {
                return Ok(());
            }
        }
    }
    events.end(&mut found);
    for event in found {
        // The publish has failed, as above.
        if sender.blocking_send(wrapped(event)?).is_err() {
            break;
        }
    }
    Ok(())
}

type Input = Box<dyn BufRead + Send>;

fn open_input(file: Option<&Path>) -> anyhow::Result<Input> {
    match file.filter(|file| *file != Path::new("-")) {
        Some(path) => {
            let file =
                File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
            Ok(Box::new(BufReader::new(file)))
        }
        None => Ok(Box::new(BufReader::new(io::stdin()))),
    }
}

/// Returns the first byte that is neither white space nor part of a byte order mark, and the number
/// of the byte's line. The byte stays unread.
fn first_byte(input: &mut Input) -> anyhow::Result<(Option<u8>, u64)> {
    let mut line = 1;
    loop {
        let buffered = input.fill_buf().context("cannot read the input")?;
        let blank = buffered
            .iter()
            .take_while(|byte| byte.is_ascii_whitespace())
            .count();
        let buffered_bytes = buffered.len();
        // A byte order mark may stand before any input, be it Atom or JSON.
        let rest = buffered.get(blank..).unwrap_or_default();
        if let Some(first) = rest
            .strip_prefix(b"\xef\xbb\xbf")
            .unwrap_or(rest)
            .first()
            .copied()
        {
            line += lines_in(buffered, blank);
            input.consume(blank);
            return Ok((Some(first), line));
        }
        if buffered_bytes == 0 {
            return Ok((None, line));
        }
        line += lines_in(buffered, blank);
        input.consume(blank);
    }
}

/// Returns the number of line ends in the first `length` bytes.
fn lines_in(bytes: &[u8], length: usize) -> u64 {
    let ends = bytes.iter().take(length).filter(|byte| **byte == b'\n');
    u64::try_from(ends.count()).unwrap_or(0)
}

/// Counts of published entries, and the report of each on stdout.
pub(crate) struct AppendReport {
    pub(crate) entries: usize,
    appended: u64,
    duplicates: u64,
    bar: indicatif::ProgressBar,
    /// Whether the reader of stdout has closed the pipe.
    is_unread: bool,
}

impl AppendReport {
    pub(crate) fn new(what: &'static str) -> Self {
        Self {
            entries: 0,
            appended: 0,
            duplicates: 0,
            bar: counter(what),
            is_unread: false,
        }
    }

    /// Prints the number of published entries; after an error, only if the number is not 0.
    pub(crate) fn finish(&self, is_all: bool) {
        self.bar.finish_and_clear();
        if self.is_unread {
            say::warning(
                "stdout is closed, so nobody reads the report of each entry; the entries are published all the same",
            );
        }
        if is_all || self.entries > 0 {
            say::note(&format!(
                "Appended {}, {} there before.",
                say::count(self.appended, "entry", "entries"),
                say::count(self.duplicates, "was", "were")
            ));
        }
    }

    /// Prints the results of a batch: `appended|duplicate TAB position TAB id`.
    fn print_results(&mut self, published: &[Acknowledgement]) -> anyhow::Result<()> {
        let mut out = vec![];
        for entry in published {
            let status = match entry.status {
                Status::Appended => {
                    self.appended += 1;
                    "appended"
                }
                Status::Duplicate => {
                    self.duplicates += 1;
                    "duplicate"
                }
            };
            writeln!(out, "{status}\t{}\t{}", entry.position, entry.id)?;
        }
        // Counted even when nobody reads the report: the entries are published all the same.
        self.entries += published.len();
        self.bar.inc(u64::try_from(published.len()).unwrap_or(0));
        if self.is_unread {
            return Ok(());
        }
        let mut report = stdout();
        match report.write_all(&out).and_then(|()| report.flush()) {
            // `append … | head` closes the pipe early. The command goes on to publish, without a
            // report.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                self.is_unread = true;
                Ok(())
            }
            written => Ok(written?),
        }
    }
}
