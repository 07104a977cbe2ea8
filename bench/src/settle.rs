//! `settle`: what becomes of single entries behind the journal: their cost with all that follows, over one feed and over
//! many; requests while a chapter is settled; memory; opening after a kill.
//!
//! Shell. Both logs take entries in turn, a second each, so that a machine that is slow for a while is slow for both. A
//! round goes on until each has got more entries than a chapter has. A second counts as settling if a settler of either
//! log was there at its beginning or at its end.

use std::{path::Path, process::Command, time::Instant};

use crate::{
    growth::{opened, settle},
    load::{Connection, Load, append, create},
    process::{Program, folder},
    table::{Must, Row, Table},
};

/// Feeds of the log whose entries are spread.
const FEEDS: u32 = 100_000;
/// Entries of a round: more than the longest chapter has. With the round that warms up, five rounds are ten million.
const ROUND_ENTRIES: f64 = 1_700_000.0;
const CONNECTIONS: usize = 64;

/// A server, and what was measured of it.
struct Log {
    server: Program,
    feeds: u32,
    requests: f64,
    memory: f64,
    /// CPU time before the round, its entries, and the rates of its seconds.
    before: f64,
    count: f64,
    seconds: Vec<f64>,
    measured: Measured,
}

/// Measurements of all rounds.
#[derive(Default)]
struct Measured {
    /// CPU time and entries of all rounds.
    used: f64,
    entries: f64,
    /// CPU time of an entry, and the rate, in each round.
    cpu: Vec<f64>,
    rates: Vec<f64>,
    /// The 99th percentiles of seconds, without and with a settling.
    p99: [Vec<f64>; 2],
}

impl Log {
    fn start(data: &Path, feeds: u32) -> anyhow::Result<Self> {
        let server = Program::simplefeed(data)?;
        create(&server, feeds)?;
        settle(&server)?;
        Ok(Self {
            server,
            feeds,
            requests: 0.0,
            memory: 0.0,
            before: 0.0,
            count: 0.0,
            seconds: vec![],
            measured: Measured::default(),
        })
    }

    fn begin_round(&mut self) -> anyhow::Result<()> {
        self.before = self.server.cpu_micros()?;
        self.count = 0.0;
        self.seconds.clear();
        Ok(())
    }

    /// Takes entries for a second.
    fn take(&mut self) -> anyhow::Result<Load> {
        let feed = format!(
            "'bench' .. (({:.0} + n) * 7919 % {})",
            self.requests, self.feeds
        );
        let load = append(&self.server, &feed, CONNECTIONS, 1, 1)?;
        self.requests += load.count;
        self.count += load.count;
        self.seconds.push(load.per_second);
        self.memory = self.server.memory_mib()?.max(self.memory);
        Ok(load)
    }

    fn end_round(&mut self) -> anyhow::Result<()> {
        self.memory = settle(&self.server)?.max(self.memory);
        let used = self.server.cpu_micros()? - self.before;
        self.measured.used += used;
        self.measured.entries += self.count;
        self.measured.cpu.push(used / self.count);
        self.measured.rates.push(median(&mut self.seconds));
        Ok(())
    }
}

fn round(logs: &mut [Log; 2]) -> anyhow::Result<()> {
    logs.iter_mut().try_for_each(Log::begin_round)?;
    while logs.iter().any(|log| log.count < ROUND_ENTRIES) {
        for turn in 0..logs.len() {
            let was_settling = is_settling(logs)?;
            let load = logs.get_mut(turn).map(Log::take).transpose()?;
            let was_settling = was_settling || is_settling(logs)?;
            if let Some((log, load)) = logs.get_mut(turn).zip(load) {
                let [without, with] = &mut log.measured.p99;
                let seconds = if was_settling { with } else { without };
                seconds.push(load.p99_micros);
            }
        }
    }
    logs.iter_mut().try_for_each(Log::end_round)
}

/// Returns whether a settler is at work.
fn is_settling(logs: &[Log; 2]) -> anyhow::Result<bool> {
    let [one, many] = logs;
    Ok(one.server.has_thread("settler")? || many.server.has_thread("settler")?)
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

pub(crate) fn measure(table: &mut Table, rounds: usize) -> anyhow::Result<()> {
    let folder = folder()?;
    let data = [1, FEEDS].map(|feeds| folder.path().join(format!("{feeds} feeds")));
    let [one, many] = &data;
    let mut logs = [Log::start(one, 1)?, Log::start(many, FEEDS)?];
    // Warms up, and leaves the cost of creating the feeds behind.
    round(&mut logs)?;
    for log in &mut logs {
        log.measured = Measured::default();
    }
    for _ in 0..rounds {
        round(&mut logs)?;
    }
    compare(table, &mut logs);
    for (log, data) in logs.into_iter().zip(&data) {
        open_again(table, log, data)?;
    }
    Ok(())
}

fn label(feeds: u32) -> String {
    format!("single entries, 64 connections, {feeds} feeds")
}

fn compare(table: &mut Table, logs: &mut [Log; 2]) {
    let [one, many] = &*logs;
    let (one, many) = (&one.measured, &many.measured);
    // All documents of the many feeds may be archived in one round, which no median shows.
    let all = |log: &Measured| vec![log.used / log.entries];
    let cpu = (many.cpu.clone(), one.cpu.clone());
    let rates = (many.rates.clone(), one.rates.clone());
    let most = Some(Must::AtMost(1.15));
    for (unit, (ours, theirs), must) in [
        ("CPU µs/entry, settled and archived", cpu, most),
        ("CPU µs/entry, of all rounds", (all(many), all(one)), None),
        ("durable entries/s", rates, None),
    ] {
        table.add(Row {
            what: label(FEEDS),
            unit,
            ours,
            peer: "one feed".into(),
            theirs,
            must,
        });
    }
    for log in logs {
        let [without, with] = &mut log.measured.p99;
        // Seconds of each kind come when they come, so their medians are compared.
        table.add(Row {
            what: label(log.feeds),
            unit: "p99 µs while a chapter is settled",
            ours: vec![median(with)],
            peer: "otherwise".into(),
            theirs: vec![median(without)],
            must: Some(Must::AtMost(2.0)),
        });
        let (unit, budget) = ("MiB of the server, at most", 300.0);
        table.add(bounded(label(log.feeds), unit, log.memory, budget));
    }
}

/// Measures what a kill costs.
fn open_again(table: &mut Table, log: Log, data: &Path) -> anyhow::Result<()> {
    let (feeds, address) = (log.feeds, log.server.address.clone());
    let mut row = |unit, value, budget| table.add(bounded(label(feeds), unit, value, budget));
    log.server.kill()?;
    drop_caches();
    let began = Instant::now();
    let server = opened(&address, data)?;
    row(
        "s to open, killed, cold",
        began.elapsed().as_secs_f64(),
        5.0,
    );
    Connection::open(&server.address)?.get("/feeds")?;
    row("MiB of the server, opened again", settle(&server)?, 300.0);
    let began = Instant::now();
    server.stop()?;
    row("s to stop", began.elapsed().as_secs_f64(), 2.0);
    Ok(())
}

fn bounded(what: String, unit: &'static str, value: f64, budget: f64) -> Row {
    Row {
        what,
        unit,
        ours: vec![value],
        peer: "budget".into(),
        theirs: vec![budget],
        must: Some(Must::AtMost(1.0)),
    }
}

/// Makes the next reads come from the disk. Without the right to do so, they may come from memory.
fn drop_caches() {
    let _synced = Command::new("sync").status();
    if std::fs::write("/proc/sys/vm/drop_caches", "3").is_err() {
        eprintln!("The system's cache stays warm, since only root can drop it.");
    }
}
