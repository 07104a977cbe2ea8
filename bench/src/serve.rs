//! `serve`: documents, against nginx serving the same files with the same headers.
//!
//! Shell. Cost is CPU time per request over all of a server's processes, beside throughput and latency. nginx's cost
//! depends on how many of the connections each of its processes happens to take: a sixth less if one takes them all. So
//! each round has many sets of connections, in turn with ours.

use std::{
    fs,
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail, ensure};

use crate::{
    load::{Connection, Load, event, fill, read, wait_until_frozen},
    process::{Program, folder, same_fields},
    table::{Must, Row, Table},
};

const ARCHIVED: &str = "/feeds/bench/1.atom";
const RECENT: &str = "/feeds/bench/recent.atom";
const LIVE: &str = "/feeds/live/recent.atom";
/// Sets of connections of a round. Each lasts a second.
const SETS: usize = 8;
/// A way to read.
struct Case {
    what: &'static str,
    path: &'static str,
    headers: Vec<(&'static str, String)>,
    /// Whether the reader has the document already.
    is_known: bool,
    /// Whether entries arrive meanwhile.
    growing: bool,
    must: Option<Must>,
}

pub(crate) fn measure(table: &mut Table, rounds: usize) -> anyhow::Result<()> {
    let folder = folder()?;
    let data = folder.path().join("data");
    let ours = Program::simplefeed(&data)?;
    for feed in ["bench", "live"] {
        fill(&ours, feed, 0..1_050)?;
    }
    wait_until_frozen(&ours, ARCHIVED)?;
    let www = data.join("www");
    // The recent documents as files, so that nginx can serve the same bytes.
    let mut connection = Connection::open(&ours.address)?;
    for path in [RECENT, LIVE] {
        let file = www.join(path.trim_start_matches('/'));
        fs::create_dir_all(file.parent().unwrap_or(&www))?;
        fs::write(file.with_extension("atom.gz"), connection.get_gzip(path)?.1)?;
        fs::write(file, connection.get(path)?.1)?;
    }
    for case in &cases() {
        let nginx = peer(&folder.path().join("nginx"), &www, &ours, case)?;
        table.add_all(compare(&ours, &nginx, case, rounds)?);
    }
    Ok(())
}

/// Starts nginx on the files, with the header fields that our answers of a case have. It adds `Server`, `Connection`, and
/// to documents `Accept-Ranges`.
fn peer(folder: &Path, www: &Path, ours: &Program, case: &Case) -> anyhow::Result<Program> {
    fs::create_dir_all(folder)?;
    let ours = case.head(ours)?;
    let root = www.display();
    let files = format!("root {root}; gzip_static on; gzip_vary on;");
    let nginx = Program::nginx(folder, &(files + &same_fields(&ours)))?;
    let theirs = case.head(&nginx)?;
    let has = |head: &str, name| {
        head.lines()
            .any(|line| line.starts_with(&format!("{name}:")))
    };
    for (name, _) in ours.lines().filter_map(|line| line.split_once(": ")) {
        ensure!(has(&theirs, name), "nginx has no {name}");
    }
    let status = |head: &str| head.split(' ').nth(1).map(ToOwned::to_owned);
    ensure!(status(&ours) == status(&theirs), "{ours} {theirs}");
    Ok(nginx)
}

impl Case {
    /// Returns the head of a server's answer.
    fn head(&self, program: &Program) -> anyhow::Result<String> {
        let headers = self.headers(program)?;
        let (head, _) = Connection::open(&program.address)?.get_with(self.path, &headers)?;
        Ok(head)
    }

    /// Returns the header fields of its requests to a server.
    fn headers(&self, program: &Program) -> anyhow::Result<Vec<(&'static str, String)>> {
        let mut headers = self.headers.clone();
        if self.is_known {
            let (head, _) = Connection::open(&program.address)?.get_with(self.path, &headers)?;
            let tag = head.lines().find_map(|line| line.strip_prefix("etag: "));
            headers.push(("If-None-Match", tag.context("documents have tags")?.into()));
        }
        Ok(headers)
    }
}

fn cases() -> [Case; 5] {
    let case = |what, path| Case {
        what,
        path,
        headers: vec![],
        is_known: false,
        growing: false,
        must: Some(Must::AtMost(1.05)),
    };
    [
        case("archived document, 100 entries", ARCHIVED),
        Case {
            headers: vec![("Accept-Encoding", "gzip".to_owned())],
            ..case("archived document, gzip", ARCHIVED)
        },
        Case {
            is_known: true,
            ..case("304 on an archived document", ARCHIVED)
        },
        Case {
            is_known: true,
            ..case("304 on a recent document", RECENT)
        },
        Case {
            growing: true,
            must: None,
            ..case("recent document, 100 appends/s", LIVE)
        },
    ]
}

fn compare(
    ours: &Program,
    nginx: &Program,
    case: &Case,
    rounds: usize,
) -> anyhow::Result<[Row; 4]> {
    let growing = AtomicBool::new(case.growing);
    let rounds = std::thread::scope(|threads| {
        let writer = threads.spawn(|| keep_appending(ours, &growing));
        let one = |program: &Program| -> anyhow::Result<Load> {
            let headers = case.headers(program)?;
            let headers = headers.iter().map(|(name, value)| (*name, &**value));
            read(program, case.path, &headers.collect::<Vec<_>>(), 1)
        };
        let round = || -> anyhow::Result<(Load, Load)> {
            let (mut of_ours, mut theirs) = (vec![], vec![]);
            for _ in 0..SETS {
                of_ours.push(one(ours)?);
                theirs.push(one(nginx)?);
            }
            Ok((Load::of_all(&of_ours), Load::of_all(&theirs)))
        };
        let all = || -> anyhow::Result<Vec<(Load, Load)>> {
            one(ours)?;
            one(nginx)?;
            (0..rounds).map(|_| round()).collect()
        };
        let rounds = all();
        growing.store(false, Ordering::Release);
        match writer.join() {
            Ok(written) => written.and(rounds),
            Err(_) => bail!("the writer failed"),
        }
    })?;
    let row = |unit, pick: fn(&Load) -> f64, must| Row {
        what: case.what.into(),
        unit,
        ours: rounds.iter().map(|(ours, _)| pick(ours)).collect(),
        peer: "nginx".into(),
        theirs: rounds.iter().map(|(_, theirs)| pick(theirs)).collect(),
        must,
    };
    Ok([
        row("CPU µs/request", |load| load.cpu_micros, case.must),
        row("requests/s", |load| load.per_second, None),
        row("p50 µs", |load| load.p50_micros, None),
        row("p99 µs", |load| load.p99_micros, None),
    ])
}

/// Appends 100 entries a second while told to.
fn keep_appending(ours: &Program, growing: &AtomicBool) -> anyhow::Result<()> {
    let mut serial = 10_000_000;
    let mut connection = Connection::open(&ours.address)?;
    let mut due = Instant::now();
    while growing.load(Ordering::Acquire) {
        serial += 1;
        connection.publish("live", &event(serial))?;
        due += Duration::from_millis(10);
        std::thread::park_timeout(due.saturating_duration_since(Instant::now()));
    }
    Ok(())
}
