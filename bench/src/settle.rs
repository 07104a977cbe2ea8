//! `settle`: what becomes of single entries behind the journal: their cost with all that follows, over one feed and over
//! many; requests while a chapter is settled; memory; opening after a kill.
//!
//! Shell. A round goes on until more entries came than two chapters have, so that each round has its settlings. A slice
//! of a round counts as settling if the settler's thread was there at its beginning or at its end.

use std::{path::Path, process::Command, time::Instant};

use crate::{
    growth::{opened, settle},
    load::{Connection, append, create},
    process::{Program, folder},
    table::{Must, Row, Table},
};

/// Feeds of the log whose entries are spread.
const FEEDS: u32 = 100_000;
/// Entries of a round: more than two chapters have. With the round that warms up, five rounds are ten million.
const ROUND_ENTRIES: f64 = 1_700_000.0;
const CONNECTIONS: usize = 64;

/// A server, and what was measured of it.
struct Log {
    server: Program,
    feeds: u32,
    requests: f64,
    /// CPU time and entries of all rounds.
    used: f64,
    entries: f64,
    /// CPU time of an entry, and the rate, in each round.
    cpu: Vec<f64>,
    rates: Vec<f64>,
    /// The 99th percentiles of slices, without and with a settling.
    p99: [Vec<f64>; 2],
    memory: f64,
}

impl Log {
    fn start(data: &Path, feeds: u32) -> anyhow::Result<Self> {
        let server = Program::simplefeed(data)?;
        create(&server, feeds)?;
        settle(&server)?;
        let mut log = Self {
            server,
            feeds,
            requests: 0.0,
            used: 0.0,
            entries: 0.0,
            cpu: vec![],
            rates: vec![],
            p99: [vec![], vec![]],
            memory: 0.0,
        };
        // Warms up, and leaves the cost of creating the feeds behind.
        log.round()?;
        log = Self {
            used: 0.0,
            entries: 0.0,
            cpu: vec![],
            rates: vec![],
            p99: [vec![], vec![]],
            ..log
        };
        Ok(log)
    }

    fn round(&mut self) -> anyhow::Result<()> {
        let (before, mut count, mut rates) = (self.server.cpu_micros()?, 0.0, vec![]);
        while count < ROUND_ENTRIES {
            let feed = format!(
                "'bench' .. (({:.0} + n) * 7919 % {})",
                self.requests, self.feeds
            );
            let was_settling = self.server.has_thread("settler")?;
            let load = append(&self.server, &feed, CONNECTIONS, 1, 1)?;
            let [without, with] = &mut self.p99;
            if was_settling || self.server.has_thread("settler")? {
                with.push(load.p99_micros);
            } else {
                without.push(load.p99_micros);
            }
            count += load.count;
            self.requests += load.count;
            rates.push(load.per_second);
            self.memory = self.server.memory_mib()?.max(self.memory);
        }
        self.memory = settle(&self.server)?.max(self.memory);
        let used = self.server.cpu_micros()? - before;
        self.used += used;
        self.entries += count;
        self.cpu.push(used / count);
        self.rates.push(median(&mut rates));
        Ok(())
    }
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
    for _ in 0..rounds {
        for log in &mut logs {
            log.round()?;
        }
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
    let [one, many] = logs;
    // All documents of the many feeds may be archived in one round, which no median shows.
    let all = |log: &Log| vec![log.used / log.entries];
    for (unit, ours, theirs, must) in [
        (
            "CPU µs/entry, settled and archived",
            many.cpu.clone(),
            one.cpu.clone(),
            Some(Must::AtMost(1.15)),
        ),
        ("CPU µs/entry, of all rounds", all(many), all(one), None),
        (
            "durable entries/s",
            many.rates.clone(),
            one.rates.clone(),
            None,
        ),
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
    for log in [one, many] {
        let [without, with] = &mut log.p99;
        // Slices of each kind come when they come, so their medians are compared.
        table.add(Row {
            what: label(log.feeds),
            unit: "p99 µs while a chapter is settled",
            ours: vec![median(with)],
            peer: "otherwise".into(),
            theirs: vec![median(without)],
            must: Some(Must::AtMost(2.0)),
        });
        table.add(bounded(
            label(log.feeds),
            "MiB of the server, at most",
            log.memory,
            300.0,
        ));
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
