//! `replay`: a million entries, against a feed parser on the same documents, and against curl that only
//! downloads them, one after the other.
//!
//! Shell.

use std::{fs, path::Path, process::Command};

use anyhow::{Context as _, bail};
use simplefeed_client::{Consumer, Since};

use crate::{
    load::{fill, wait_until_frozen},
    process::{Program, Used, folder, installed, release_program, run},
    table::{Must, Row, Table},
};

const ENTRIES: u32 = 1_000_000;
const DOCUMENT_ENTRIES: u32 = 100;
/// feedparser would take minutes for all of them.
const PARSED_DOCUMENTS: u32 = 100;

const PARSE: &str = "
import sys, time, urllib.request, feedparser
bodies = [urllib.request.urlopen(url).read() for url in sys.argv[1:]]
began = time.time()
entries = sum(len(feedparser.parse(body).entries) for body in bodies)
print(entries / (time.time() - began + 1e-9))
";

/// What each way of reading the feed has used, a value a round.
#[derive(Default)]
struct Rounds {
    command: Vec<Used>,
    library: Vec<Used>,
    curl: Vec<Used>,
    /// Entries per second, parsing alone.
    parser: Vec<f64>,
}

pub(crate) fn measure(table: &mut Table, rounds: usize) -> anyhow::Result<()> {
    // Before the long part, so that what is missing is told at once.
    feedparser(std::iter::empty())?;
    installed("curl", "curl")?;
    let folder = folder()?;
    let server = Program::simplefeed(&folder.path().join("data"))?;
    fill(&server, "bench", 0..u64::from(ENTRIES))?;
    let documents = ENTRIES / DOCUMENT_ENTRIES;
    wait_until_frozen(&server, &format!("/feeds/bench/{}.atom", documents - 1))?;
    let base = format!("http://{}/feeds/bench", server.address);
    let urls: Vec<String> = (1..=documents)
        .map(|number| format!("{base}/{number}.atom"))
        .collect();
    let config = folder.path().join("curl");
    write_config(&config, &urls)?;
    let mut measured = Rounds::default();
    // Once for warming up.
    read_once(&base, &config, &urls, &mut Rounds::default())?;
    for _ in 0..rounds {
        read_once(&base, &config, &urls, &mut measured)?;
    }
    for (what, ours) in [
        ("simplefeed replay", &measured.command),
        ("the library", &measured.library),
    ] {
        table.add_all(rows(what, ours, &measured));
    }
    Ok(())
}

fn read_once(
    base: &str,
    config: &Path,
    urls: &[String],
    rounds: &mut Rounds,
) -> anyhow::Result<()> {
    let replay = ["replay", "--format", "atom", base];
    let command = run(Command::new(release_program("simplefeed")?).args(replay))?;
    let own = std::env::current_exe()?;
    let library = run(Command::new(own).args(["library-replay", base]))?;
    let curl = run(Command::new(installed("curl", "curl")?)
        .arg("-K")
        .arg(config))?;
    rounds.command.push(command);
    rounds.library.push(library);
    rounds.curl.push(curl);
    let parsed = urls.iter().take(usize::try_from(PARSED_DOCUMENTS)?);
    rounds.parser.push(feedparser(parsed)?);
    Ok(())
}

fn rows(what: &str, ours: &[Used], rounds: &Rounds) -> [Row; 5] {
    let entries = f64::from(ENTRIES);
    let all =
        |used: &[Used], pick: fn(&Used) -> f64| -> Vec<f64> { used.iter().map(pick).collect() };
    let rates =
        |used: &[Used]| -> Vec<f64> { used.iter().map(|used| entries / used.seconds).collect() };
    let cpu = |used: &[Used]| -> Vec<f64> {
        let micros = |used: &Used| used.cpu_seconds * 1e6 / entries;
        used.iter().map(micros).collect()
    };
    let budget = |value: f64| vec![value; ours.len()];
    let row = |unit, ours: Vec<f64>, peer: &str, theirs, must| Row {
        what: what.into(),
        unit,
        ours,
        peer: peer.into(),
        theirs,
        must,
    };
    let (curl, faster) = ("curl, one connection", |must| Some(Must::AtLeast(must)));
    let (parser, must) = ("Python feedparser", Some(Must::AtMost(1.0)));
    [
        row(
            "entries/s",
            rates(ours),
            "budget",
            budget(500_000.0),
            faster(1.0),
        ),
        row(
            "entries/s",
            rates(ours),
            parser,
            rounds.parser.clone(),
            faster(100.0),
        ),
        row("entries/s", rates(ours), curl, rates(&rounds.curl), None),
        row("CPU µs/entry", cpu(ours), curl, cpu(&rounds.curl), None),
        row(
            "MiB",
            all(ours, |used| used.memory_mib),
            "budget",
            budget(64.0),
            must,
        ),
    ]
}

/// One connection, one document after the other, compressed as for us.
fn write_config(path: &Path, urls: &[String]) -> anyhow::Result<()> {
    let one = |url: &String| format!("url = \"{url}\"\noutput = \"/dev/null\"\n");
    let all: String = urls.iter().map(one).collect();
    Ok(fs::write(path, format!("silent\nfail\ncompressed\n{all}"))?)
}

/// Returns entries/s, parsing alone.
fn feedparser<'a>(urls: impl Iterator<Item = &'a String>) -> anyhow::Result<f64> {
    // Debian's own Python has Debian's package.
    let python = installed("python3", "python3")?;
    let output = Command::new(python)
        .args(["-c", PARSE])
        .args(urls)
        .output()?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("feedparser is missing: apt-get install python3-feedparser\n{said}");
    }
    let said = String::from_utf8_lossy(&output.stdout);
    said.trim().parse().context("feedparser counts")
}

/// Replays a feed to its end with the library, as an embedder does.
pub(crate) fn library(url: &str) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let mut feed = Consumer::builder(url).since(Since::Oldest).build()?;
        let mut entries = 0_u32;
        while let Some(delivery) = feed.next().await? {
            entries += u32::from(!delivery.raw().is_empty());
        }
        if entries != ENTRIES {
            bail!("{entries} entries were delivered, not {ENTRIES}");
        }
        Ok(())
    })
}
