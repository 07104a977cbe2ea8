//! `serve`: documents, against nginx serving the same files with the same headers.
//!
//! Shell. Cost is CPU time per request over all of a server's processes, beside throughput and latency.

use std::{
    fs,
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};

use crate::{
    load::{Connection, Load, event, fill, read, wait_until_frozen},
    process::{Program, folder},
    table::{Must, Row, Table},
};

const ARCHIVED: &str = "/feeds/bench/1.atom";
const RECENT: &str = "/feeds/bench/recent.atom";
const LIVE: &str = "/feeds/live/recent.atom";

/// A way to read.
struct Case {
    what: &'static str,
    path: &'static str,
    headers: Vec<(&'static str, String)>,
    peer_headers: Vec<(&'static str, String)>,
    /// Whether entries arrive meanwhile.
    growing: bool,
    must: Option<Must>,
}

pub(crate) fn measure(table: &mut Table, rounds: usize, seconds: u64) -> anyhow::Result<()> {
    let folder = folder()?;
    let data = folder.path().join("data");
    let ours = Program::simplefeed(&data)?;
    for feed in ["bench", "live"] {
        fill(&ours, feed, 0..1_050)?;
    }
    wait_until_frozen(&ours, ARCHIVED)?;
    let www = data.join("www");
    // The recent document as a file, so that nginx can serve the same bytes.
    let mut connection = Connection::open(&ours.address)?;
    for path in [RECENT, LIVE] {
        let file = www.join(path.trim_start_matches('/'));
        fs::create_dir_all(file.parent().unwrap_or(&www))?;
        fs::write(file, connection.get(path)?.1)?;
    }
    let server = format!(
        "root {}; gzip_static on; gzip_vary on; add_header Cache-Control \"public, max-age=31536000, immutable\";",
        www.display()
    );
    let nginx = Program::nginx(folder.path(), &server)?;

    for case in &cases(&ours, &nginx)? {
        table.add_all(compare(&ours, &nginx, case, rounds, seconds)?);
    }
    Ok(())
}

fn cases(ours: &Program, nginx: &Program) -> anyhow::Result<Vec<Case>> {
    let tag = |program: &Program, path: &str| -> anyhow::Result<String> {
        let (head, _) = Connection::open(&program.address)?.get(path)?;
        let tag = head.lines().find_map(|line| line.strip_prefix("etag: "));
        Ok(tag.context("documents have tags")?.to_owned())
    };
    let case = |what, path, must| Case {
        what,
        path,
        headers: vec![],
        peer_headers: vec![],
        growing: false,
        must,
    };
    let gzip = vec![("Accept-Encoding", "gzip".to_owned())];
    let must = Some(Must::AtMost(1.05));
    let known = |what, path| -> anyhow::Result<Case> {
        Ok(Case {
            headers: vec![("If-None-Match", tag(ours, path)?)],
            peer_headers: vec![("If-None-Match", tag(nginx, path)?)],
            ..case(what, path, must)
        })
    };
    Ok(vec![
        case("archived document, 100 entries", ARCHIVED, must),
        Case {
            headers: gzip.clone(),
            peer_headers: gzip,
            ..case("archived document, gzip", ARCHIVED, must)
        },
        known("304 on an archived document", ARCHIVED)?,
        known("304 on a recent document", RECENT)?,
        Case {
            growing: true,
            ..case("recent document, 100 appends/s", LIVE, None)
        },
    ])
}

fn compare(
    ours: &Program,
    nginx: &Program,
    case: &Case,
    rounds: usize,
    seconds: u64,
) -> anyhow::Result<[Row; 4]> {
    let growing = AtomicBool::new(case.growing);
    let rounds = std::thread::scope(|threads| {
        let writer = threads.spawn(|| keep_appending(ours, &growing));
        let one = |program: &Program, headers: &[(&'static str, String)], seconds| {
            let headers: Vec<(&str, &str)> = headers
                .iter()
                .map(|(name, value)| (*name, value.as_str()))
                .collect();
            read(program, case.path, &headers, seconds)
        };
        let all = || -> anyhow::Result<Vec<(Load, Load)>> {
            one(ours, &case.headers, 1)?;
            one(nginx, &case.peer_headers, 1)?;
            (0..rounds)
                .map(|_| {
                    Ok((
                        one(ours, &case.headers, seconds)?,
                        one(nginx, &case.peer_headers, seconds)?,
                    ))
                })
                .collect()
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
