//! `serve`: documents, against nginx serving the same files with the same headers.
//!
//! Shell. Cost is CPU time per request over all of a server's processes, beside throughput.

use std::{
    fs,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use anyhow::{Context as _, bail};

use crate::{
    load::{Connection, Reads, event, publish, read},
    process::Program,
    table::{Row, Table},
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
}

pub(crate) fn measure(rounds: usize, seconds: u64) -> anyhow::Result<Table> {
    let folder = tempfile::tempdir()?;
    let data = folder.path().join("data");
    let ours = Program::simplefeed(&data)?;
    fill(&ours)?;
    let www = data.join("www");
    // The recent document as a file, so that nginx can serve the same bytes.
    fs::write(www.join("feeds/bench/recent.atom"), get(&ours, RECENT)?.1)?;
    fs::create_dir_all(www.join("feeds/live"))?;
    fs::write(www.join("feeds/live/recent.atom"), get(&ours, LIVE)?.1)?;
    let server = format!(
        "root {}; gzip_static on; gzip_vary on; add_header Cache-Control \"public, max-age=31536000, immutable\";",
        www.display()
    );
    let nginx = Program::nginx(folder.path(), &server)?;

    let cases = cases(&ours, &nginx)?;
    let mut rows = vec![];
    for case in &cases {
        rows.extend(compare(&ours, &nginx, case, rounds, seconds)?);
    }
    Ok(Table {
        peer: "nginx",
        rows,
    })
}

fn cases(ours: &Program, nginx: &Program) -> anyhow::Result<Vec<Case>> {
    let tag = |program: &Program, path: &str| -> anyhow::Result<String> {
        let (head, _) = get(program, path)?;
        let tag = head.lines().find_map(|line| line.strip_prefix("etag: "));
        Ok(tag.context("documents have tags")?.to_owned())
    };
    let plain = |what, path, growing| Case {
        what,
        path,
        headers: vec![],
        peer_headers: vec![],
        growing,
    };
    let gzip = vec![("Accept-Encoding", "gzip".to_owned())];
    Ok(vec![
        plain("archived document, 100 entries", ARCHIVED, false),
        Case {
            headers: gzip.clone(),
            peer_headers: gzip,
            ..plain("archived document, gzip", ARCHIVED, false)
        },
        Case {
            headers: vec![("If-None-Match", tag(ours, ARCHIVED)?)],
            peer_headers: vec![("If-None-Match", tag(nginx, ARCHIVED)?)],
            ..plain("304 on it", ARCHIVED, false)
        },
        plain("recent document, 100 appends/s", LIVE, true),
    ])
}

fn compare(
    ours: &Program,
    nginx: &Program,
    case: &Case,
    rounds: usize,
    seconds: u64,
) -> anyhow::Result<[Row; 3]> {
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
        let all = || -> anyhow::Result<Vec<(Reads, Reads)>> {
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
    let row = |unit, pick: fn(&Reads) -> f64| Row {
        what: case.what.into(),
        unit,
        ours: rounds.iter().map(|(ours, _)| pick(ours)).collect(),
        peer: rounds.iter().map(|(_, peer)| pick(peer)).collect(),
    };
    Ok([
        row("CPU µs/request", |reads| reads.cpu_micros),
        row("requests/s", |reads| reads.per_second),
        row("p99 µs", |reads| reads.p99_micros),
    ])
}

/// Appends 100 entries a second while told to.
fn keep_appending(ours: &Program, growing: &AtomicBool) -> anyhow::Result<()> {
    let mut serial = 10_000_000;
    let mut connection = Connection::open(&ours.address)?;
    while growing.load(Ordering::Acquire) {
        serial += 1;
        connection.exchange(&publish("live", &event(serial)))?;
        std::thread::park_timeout(Duration::from_millis(10));
    }
    Ok(())
}

fn fill(ours: &Program) -> anyhow::Result<()> {
    let mut connection = Connection::open(&ours.address)?;
    let lines: Vec<String> = (0..1_050).map(event).collect();
    for feed in ["bench", "live"] {
        connection.exchange(&publish(feed, &lines.concat()))?;
    }
    for _ in 0..500 {
        if get(ours, ARCHIVED)?.0.contains("immutable") {
            return Ok(());
        }
        std::thread::park_timeout(Duration::from_millis(20));
    }
    bail!("the archived document never became a file")
}

/// Returns head and body of a document.
fn get(program: &Program, path: &str) -> anyhow::Result<(String, Vec<u8>)> {
    let mut connection = Connection::open(&program.address)?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: bench\r\n\r\n");
    connection
        .answer(request.as_bytes())
        .context("a document cannot be read")
}
