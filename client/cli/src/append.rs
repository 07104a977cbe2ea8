//! `append`: events or entries from a file or a pipe into a feed.
//!
//! Shell: stdin. Lines are gathered into batches that close at 1,000 events, 1 MiB or 100 ms of
//! quiet, so that a pipe of single events is neither slow nor late.
use std::{
    fs::File,
    io::{self, BufRead, BufReader, Read as _, Write as _},
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Context as _;
use clap::Args;
use simplefeed_client::{
    Publication, Publisher,
    publisher::{BATCH_BYTES, BATCH_ENTRIES, Published, Status},
};
use simplefeed_core::scanner::elements;
use tokio::sync::mpsc;

use crate::{exit, progress::counter, say, token::TokenArgs};

/// How long a batch waits for more.
const QUIET: Duration = Duration::from_millis(100);

/// Publish NDJSON events, or Atom entries, to a feed
#[derive(Args, Debug)]
pub(crate) struct AppendArgs {
    /// URL of the feed
    url: String,
    /// File to read; stdin if it is - or absent
    file: Option<PathBuf>,
    #[command(flatten)]
    token: TokenArgs,
}

pub(crate) async fn append(args: AppendArgs) -> anyhow::Result<u8> {
    let publisher = args.token.publisher(&args.url)?;
    let mut report = Report::new("entries published");
    let outcome = append_all(&publisher, args.file.as_deref(), &mut report).await;
    report.finish();
    outcome.map(|()| exit::OK)
}

async fn append_all(
    publisher: &Publisher,
    file: Option<&Path>,
    report: &mut Report,
) -> anyhow::Result<()> {
    let mut input = open(file)?;
    let first = first_byte(&mut input)?;
    if first == Some(b'<') {
        let mut text = String::new();
        input
            .read_to_string(&mut text)
            .context("cannot read the input")?;
        let entries = elements(&text)?.into_iter().map(Publication::Atom);
        return publish(publisher, entries, report).await;
    }
    append_lines(publisher, input, report).await
}

/// Publishes entries, and prints what became of each.
pub(crate) async fn publish(
    publisher: &Publisher,
    entries: impl IntoIterator<Item = Publication>,
    report: &mut Report,
) -> anyhow::Result<()> {
    let mut told = Ok(());
    let published = publisher
        .append_reporting(entries, |batch| {
            let outcome = report.add(batch);
            if told.is_ok() {
                told = outcome;
            }
        })
        .await;
    // What was published comes first: it is stored whatever happened to the rest.
    told?;
    Ok(published?)
}

async fn append_lines(
    publisher: &Publisher,
    input: Input,
    report: &mut Report,
) -> anyhow::Result<()> {
    let (sender, mut lines) = mpsc::channel(BATCH_ENTRIES);
    // A thread of its own, because reading a pipe blocks and the batch must close meanwhile.
    let reader = std::thread::spawn(move || read_lines(input, &sender));
    let mut batch = vec![];
    let mut bytes = 0;
    loop {
        let next = if batch.is_empty() {
            Ok(lines.recv().await)
        } else {
            tokio::time::timeout(QUIET, lines.recv()).await
        };
        let ended = matches!(next, Ok(None));
        if let Ok(Some(line)) = next {
            bytes += line.len();
            batch.push(Publication::Line(line));
            if batch.len() < BATCH_ENTRIES && bytes < BATCH_BYTES {
                continue;
            }
        }
        if !batch.is_empty() {
            publish(publisher, std::mem::take(&mut batch), report).await?;
            bytes = 0;
        }
        if ended {
            break;
        }
    }
    match reader.join() {
        Ok(read) => read.context("cannot read the input"),
        Err(_) => anyhow::bail!("reading the input failed"),
    }
}

fn read_lines(input: Input, sender: &mpsc::Sender<String>) -> io::Result<()> {
    for line in input.lines() {
        let line = line?;
        // Without a receiver, publishing has failed and said so.
        if !line.trim().is_empty() && sender.blocking_send(line).is_err() {
            break;
        }
    }
    Ok(())
}

type Input = Box<dyn BufRead + Send>;

fn open(file: Option<&Path>) -> anyhow::Result<Input> {
    match file.filter(|file| *file != Path::new("-")) {
        Some(path) => {
            let file =
                File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
            Ok(Box::new(BufReader::new(file)))
        }
        None => Ok(Box::new(BufReader::new(io::stdin()))),
    }
}

/// Returns the first byte that is not white space, leaving it to be read.
fn first_byte(input: &mut Input) -> anyhow::Result<Option<u8>> {
    loop {
        let buffered = input.fill_buf().context("cannot read the input")?;
        let blank = buffered
            .iter()
            .take_while(|byte| byte.is_ascii_whitespace())
            .count();
        let buffered_bytes = buffered.len();
        // A byte order mark says nothing about what follows it; Atom begins behind it.
        let rest = buffered.get(blank..).unwrap_or_default();
        if let Some(first) = rest
            .strip_prefix(b"\xef\xbb\xbf")
            .unwrap_or(rest)
            .first()
            .copied()
        {
            input.consume(blank);
            return Ok(Some(first));
        }
        if buffered_bytes == 0 {
            return Ok(None);
        }
        input.consume(blank);
    }
}

/// What was published.
pub(crate) struct Report {
    pub(crate) entries: usize,
    appended: u64,
    duplicates: u64,
    bar: indicatif::ProgressBar,
}

impl Report {
    pub(crate) fn new(what: &'static str) -> Self {
        Self {
            entries: 0,
            appended: 0,
            duplicates: 0,
            bar: counter(what),
        }
    }

    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
        say::note(&format!(
            "Appended {} entries, {} were there before.",
            self.appended, self.duplicates
        ));
    }

    /// Prints what became of a batch: `appended|duplicate TAB position TAB id`.
    fn add(&mut self, published: &[Published]) -> anyhow::Result<()> {
        let mut out = io::stdout().lock();
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
        out.flush()?;
        self.entries += published.len();
        self.bar.inc(u64::try_from(published.len()).unwrap_or(0));
        Ok(())
    }
}
