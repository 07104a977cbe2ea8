//! `growth`: what things cost as a log grows, against itself while it was small.
//!
//! Shell. A settling comes once in a chapter, so entries are taken until each log has begun another chapter: a slice of
//! some seconds would have a settling or none. A chapter of single entries over many feeds takes too long for that. They
//! are taken in slices here, once each feed has had an entry since the server was started. `settle` has whole chapters
//! of them.

use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};

use crate::{
    load::{Connection, append, create, event, fill, read, wait_until_frozen},
    process::{Program, folder, release_program, run},
    table::{Must, Row, Table},
};

/// Entries of a log with one feed, and feeds of a log with a few entries each. All are compared with the
/// first.
const ENTRIES: [u32; 3] = [1_000, 100_000, 10_000_000];
const FEEDS: [u32; 2] = [1_000, 100_000];
const RECENT: &str = "/feeds/bench0/recent.atom";
const ARCHIVED: &str = "/feeds/bench0/1.atom";

/// What is measured at one size.
#[derive(Debug, Default)]
struct Size {
    label: String,
    batches: Vec<f64>,
    singles: Vec<f64>,
    archived: Vec<f64>,
    unchanged: Vec<f64>,
    memory: f64,
    replay: f64,
    disk: f64,
    stop: f64,
    clean_open: f64,
    unclean_open: f64,
}

pub(crate) fn measure(table: &mut Table, rounds: usize, seconds: u64) -> anyhow::Result<()> {
    let folder = folder()?;
    // There is much to measure, and ten minutes to do it in.
    let seconds = seconds.div_ceil(2);
    let mut grown = vec![];
    for entries in ENTRIES {
        let data = folder.path().join(format!("{entries} entries"));
        let server = Program::simplefeed(&data)?;
        fill(&server, "bench0", 0..u64::from(entries))?;
        let label = format!("{entries} entries");
        grown.push(Grown::look(label, server, &data, 1)?);
    }
    for feeds in FEEDS {
        let data = folder.path().join(format!("{feeds} feeds"));
        let server = Program::simplefeed(&data)?;
        create(&server, feeds)?;
        let label = format!("{feeds} feeds");
        let mut one = Grown::look(label, server, &data, feeds)?;
        // What a feed takes beside its entries says nothing about those.
        one.size.disk = f64::NAN;
        grown.push(one);
    }
    table.add_all(rows(&compare(grown, rounds, seconds)?));
    Ok(())
}

/// A log of some size, and a server that has it open.
struct Grown {
    size: Size,
    server: Program,
    journal: PathBuf,
    feeds: u32,
    /// The requests that were sent to them.
    requests: f64,
}

impl Grown {
    /// Looks at what a server takes that was filled just now, and opens its log twice.
    fn look(label: String, server: Program, data: &Path, feeds: u32) -> anyhow::Result<Self> {
        let mut size = Size {
            label,
            ..Size::default()
        };
        wait_until_frozen(&server, ARCHIVED)?;
        settle(&server)?;
        let url = format!("http://{}/feeds/bench0", server.address);
        let replay = ["replay", "--format", "atom", &url];
        let replayed = run(Command::new(release_program("simplefeed")?).args(replay))?;
        size.replay = replayed.memory_mib;
        size.memory = server.memory_mib()?;
        let entries = count(&mut Connection::open(&server.address)?)?;
        let address = server.address.clone();
        let began = Instant::now();
        server.stop()?;
        size.stop = began.elapsed().as_secs_f64();
        let parts = ["journal", "sled", "ids"].map(|name| bytes(&data.join(name)));
        let bytes = parts.into_iter().sum::<anyhow::Result<f64>>()?;
        size.disk = bytes / (f64::from(entries) * f64::from(u32::try_from(event(0).len())?));
        let began = Instant::now();
        let server = opened(&address, data)?;
        size.clean_open = began.elapsed().as_secs_f64();
        server.kill()?;
        let began = Instant::now();
        let server = opened(&address, data)?;
        size.unclean_open = began.elapsed().as_secs_f64();
        Ok(Self {
            size,
            server,
            journal: data.join("journal"),
            feeds,
            requests: 0.0,
        })
    }

    /// Takes entries for some seconds. Returns their number.
    fn take(&mut self, connections: usize, batch: usize, seconds: u64) -> anyhow::Result<f64> {
        // Another feed each time, in no order.
        let feed = format!(
            "'bench' .. (({:.0} + n) * 7919 % {})",
            self.requests, self.feeds
        );
        let load = append(&self.server, &feed, connections, batch, seconds)?;
        self.requests += load.count / f64::from(u32::try_from(batch)?);
        Ok(load.count)
    }

    /// Takes a single entry in each feed. The first one after a start reads the feed's record from sled.
    fn touch(&mut self) -> anyhow::Result<()> {
        let end = self.requests + f64::from(self.feeds);
        while self.requests < end {
            self.take(64, 1, 1)?;
        }
        settle(&self.server)?;
        Ok(())
    }

    /// Returns the CPU time of a single entry in a slice, until nothing is left to do for it.
    fn slice(&mut self, seconds: u64) -> anyhow::Result<f64> {
        let before = self.server.cpu_micros()?;
        let count = self.take(64, 1, seconds)?;
        settle(&self.server)?;
        Ok((self.server.cpu_micros()? - before) / count)
    }

    /// Returns the name of the newest file of the journal, which is the number of its first commit.
    fn newest_file(&self) -> anyhow::Result<Option<OsString>> {
        let mut newest = None;
        for item in fs::read_dir(&self.journal)? {
            let name = item?.file_name();
            if name != "spare" {
                newest = newest.max(Some(name));
            }
        }
        Ok(newest)
    }

    /// Returns the CPU time of a 304 on the recent document.
    fn unchanged(&self, seconds: u64) -> anyhow::Result<f64> {
        let (head, _) = Connection::open(&self.server.address)?.get(RECENT)?;
        let tag = head.lines().find_map(|line| line.strip_prefix("etag: "));
        let known = [("If-None-Match", tag.context("documents have tags")?)];
        Ok(read(&self.server, RECENT, &known, seconds)?.cpu_micros)
    }
}

/// Takes entries in turn, a second for each log, until each has begun another chapter. Returns the CPU time of an entry
/// in each log, until nothing is left to do for it. The others of `grown` are paused meanwhile: the scrubber works by
/// time, ten documents a second, and five turns of it would count for one turn of entries.
fn chapter(grown: &mut [Grown], connections: usize, batch: usize) -> anyhow::Result<Vec<f64>> {
    let mut taken = vec![];
    for one in &*grown {
        taken.push((one.newest_file()?, one.server.cpu_micros()?, 0.0));
        one.server.pause()?;
    }
    loop {
        let mut is_over = true;
        for (one, (newest, _, count)) in grown.iter_mut().zip(&mut taken) {
            if one.newest_file()? == *newest {
                one.server.resume()?;
                *count += one.take(connections, batch, 1)?;
                one.server.pause()?;
                is_over = false;
            }
        }
        if is_over {
            break;
        }
    }
    let costs = grown.iter().zip(taken).map(|(one, (_, before, count))| {
        one.server.resume()?;
        settle(&one.server)?;
        Ok((one.server.cpu_micros()? - before) / count)
    });
    costs.collect()
}

/// Measures the costs at each size in turn, while it grows from there.
fn compare(mut grown: Vec<Grown>, rounds: usize, seconds: u64) -> anyhow::Result<Vec<Size>> {
    // Warms up what was just opened, and brings each to the beginning of a chapter.
    chapter(&mut grown, 1, 1_000)?;
    for one in grown.iter_mut().skip(ENTRIES.len()) {
        one.touch()?;
    }
    for _ in 0..rounds {
        let costs = chapter(&mut grown, 1, 1_000)?;
        for (one, cost) in grown.iter_mut().zip(costs) {
            one.size.batches.push(cost);
        }
        let few_feeds = grown.get_mut(..ENTRIES.len()).unwrap_or_default();
        let costs = chapter(few_feeds, 64, 1)?;
        for (one, cost) in few_feeds.iter_mut().zip(costs) {
            one.size.singles.push(cost);
        }
        for one in grown.iter_mut().skip(ENTRIES.len()) {
            let cost = one.slice(seconds)?;
            one.size.singles.push(cost);
        }
        for one in &mut grown {
            let cost = read(&one.server, ARCHIVED, &[], seconds)?.cpu_micros;
            one.size.archived.push(cost);
        }
        for one in &mut grown {
            let cost = one.unchanged(seconds)?;
            one.size.unchanged.push(cost);
        }
    }
    Ok(grown.into_iter().map(|one| one.size).collect())
}

/// Waits until a server has nothing left to do. Returns the most memory that it was seen with, in MiB.
pub(crate) fn settle(server: &Program) -> anyhow::Result<f64> {
    let mut memory = 0.0;
    // Ten minutes: as many feeds may close a document at the same time.
    for _ in 0..3_000 {
        let before = server.cpu_micros()?;
        std::thread::park_timeout(Duration::from_millis(200));
        memory = server.memory_mib()?.max(memory);
        if server.cpu_micros()? - before < 10_000.0 {
            return Ok(memory);
        }
    }
    bail!("a server has something to do all the time")
}

/// Returns the number of entries of the first feed.
fn count(connection: &mut Connection) -> anyhow::Result<u32> {
    let (_, body) = connection.get("/feeds")?;
    let catalogue: serde_json::Value = serde_json::from_slice(&body)?;
    let entries = catalogue.pointer("/feeds/0/entries");
    let entries = entries.and_then(serde_json::Value::as_u64);
    Ok(u32::try_from(entries.unwrap_or(0))?)
}

/// Starts a server that has answered a request, where it was before: its URL is in every document, and
/// with another URL the next entry of each feed would begin a new document.
pub(crate) fn opened(address: &str, data: &Path) -> anyhow::Result<Program> {
    let server = Program::simplefeed_at(address, data, &[])?;
    Connection::open(&server.address)?.get(RECENT)?;
    Ok(server)
}

fn bytes(folder: &Path) -> anyhow::Result<f64> {
    let mut sum = 0;
    for item in fs::read_dir(folder)? {
        let item = item?;
        if item.file_type()?.is_file() {
            sum += item.metadata()?.len() >> 10;
        }
    }
    Ok(f64::from(u32::try_from(sum)?) * 1024.0)
}

fn rows(sizes: &[Size]) -> Vec<Row> {
    match sizes.split_first() {
        Some((small, larger)) => larger
            .iter()
            .flat_map(|size| against(small, size))
            .collect(),
        None => vec![],
    }
}

/// Costs are to be what they were while it was small; what a budget names is to keep it at full size.
fn against(small: &Size, size: &Size) -> Vec<Row> {
    let row = |unit, ours: &[f64], peer: &str, theirs: &[f64], must| Row {
        what: size.label.clone(),
        unit,
        ours: ours.to_vec(),
        peer: peer.into(),
        theirs: theirs.to_vec(),
        must,
    };
    let many_feeds = size.label.ends_with("feeds");
    let most = if many_feeds { 1.15 } else { 1.05 };
    let flat = |unit, ours: &[f64], theirs: &[f64]| {
        row(unit, ours, &small.label, theirs, Some(Must::AtMost(most)))
    };
    // In a slice over 1,000 feeds, each of them closes a document, or none does.
    let is_even = !size.label.starts_with("1000 ");
    let is_full = size.label.starts_with("10000000 ");
    let bounded = |unit, ours: f64, budget: f64| {
        if is_full {
            row(unit, &[ours], "budget", &[budget], Some(Must::AtMost(1.0)))
        } else {
            row(unit, &[ours], "", &[], None)
        }
    };
    let mut rows = vec![
        flat(
            "CPU µs/entry, batches of 1000",
            &size.batches,
            &small.batches,
        ),
        Row {
            must: is_even.then_some(Must::AtMost(most)),
            ..flat(
                "CPU µs/entry, 64 connections",
                &size.singles,
                &small.singles,
            )
        },
        flat("CPU µs/archived document", &size.archived, &small.archived),
        flat("CPU µs/304", &size.unchanged, &small.unchanged),
        bounded("MiB of the server", size.memory, 300.0),
        bounded("MiB of a replay of a feed", size.replay, 64.0),
        bounded("bytes of log per byte", size.disk, 2.0),
        bounded("s to stop", size.stop, 2.0),
        bounded("s to open, stopped cleanly", size.clean_open, 1.0),
        bounded("s to open, killed", size.unclean_open, 5.0),
    ];
    rows.retain(|row| row.ours.iter().all(|value| value.is_finite()));
    rows
}
