//! `pages`: pages for people on a large server, in a real browser, and what counting entries costs.
//!
//! Shell. Each figure is compared with its bound.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use clap::Args;

use crate::{
    load::{Connection, append, create, event, fill},
    process::{Program, folder},
    table::{Must, Row, Table},
};

mod browser;

use browser::Browser;

/// Requests for a page in each round.
const REQUESTS: u32 = 300;
/// Times that a page is opened in a browser in each round.
const OPENED: usize = 5;
/// Entries a second of the live page, and at a time.
const LIVE_RATE: u64 = 1_000;
const LIVE_TOGETHER: u64 = 10;

/// Sizes of the server.
#[derive(Args, Clone, Debug)]
pub(crate) struct Size {
    /// Its feeds
    #[arg(long, default_value_t = 100_000)]
    feeds: u32,
    /// Entries of its largest feed
    #[arg(long, default_value_t = 10_000_000)]
    entries: u32,
}

/// A page, its times in milliseconds, and its bytes.
struct Page {
    name: &'static str,
    path: String,
    p99: Vec<f64>,
    kilobytes: Vec<f64>,
    painted: Vec<f64>,
    moved: Vec<f64>,
}

impl Page {
    fn new(name: &'static str, path: impl Into<String>) -> Self {
        Self {
            name,
            path: path.into(),
            p99: vec![],
            kilobytes: vec![],
            painted: vec![],
            moved: vec![],
        }
    }

    fn ask(&mut self, connection: &mut Connection) -> anyhow::Result<()> {
        let mut times = vec![];
        let mut bytes = 0;
        for _ in 0..REQUESTS {
            let begun = Instant::now();
            let (head, body) = connection.get_gzip(&self.path)?;
            times.push(begun.elapsed().as_secs_f64() * 1e3);
            let is_well = head.starts_with("http/1.1 200") && head.contains("gzip");
            anyhow::ensure!(is_well, "{}: {head}", self.path);
            bytes = body.len();
        }
        times.sort_by(f64::total_cmp);
        let p99 = times.get(times.len() * 99 / 100);
        self.p99.extend(p99);
        let kilobytes = f64::from(u32::try_from(bytes)?) / 1e3;
        self.kilobytes.push(kilobytes);
        Ok(())
    }

    fn rows(self, rows: &mut Vec<Row>) {
        let name = self.name;
        let mut row = |what: &str, unit, ours: Vec<f64>, bound: f64, peer: &str| {
            rows.push(Row {
                what: format!("{name}: {what}"),
                unit,
                theirs: vec![bound; ours.len()],
                ours,
                peer: peer.into(),
                must: Some(Must::AtMost(1.0)),
            });
        };
        row("time of the server, p99", "ms", self.p99, 20.0, "20 ms");
        row("size, gzip", "kB", self.kilobytes, 60.0, "60 kB");
        row("largest part painted", "ms", self.painted, 500.0, "500 ms");
        // No part may move; the bound is what browsers round to nothing.
        row("layout shift", "", self.moved, 0.001, "none");
    }
}

pub(crate) fn measure(
    table: &mut Table,
    rounds: usize,
    seconds: u64,
    size: &Size,
) -> anyhow::Result<()> {
    let data = folder()?;
    let server = Program::simplefeed(data.path())?;
    create(&server, size.feeds)?;
    fill(&server, "large", 0..u64::from(size.entries))?;
    thread::park_timeout(Duration::from_secs(5));
    let middle = size.entries / 2;
    let mut pages = [
        Page::new("feeds by name", "/ui/"),
        Page::new("feeds, the busiest", "/ui/?order=busiest"),
        Page::new("feeds, the newest", "/ui/?order=newest"),
        Page::new("a large feed", "/ui/feeds/large"),
        Page::new("its middle", format!("/ui/feeds/large?before={middle}")),
        Page::new("an entry", format!("/ui/feeds/large/{middle}")),
        Page::new("its documents", "/ui/feeds/large/documents"),
    ];
    let browser = Browser::start(data.path())?;
    let mut connection = Connection::open(&server.address)?;
    let mut live = Live::default();
    for _ in 0..rounds {
        for page in &mut pages {
            page.ask(&mut connection)?;
            let mut painted = vec![];
            let mut moved = 0.0_f64;
            for _ in 0..OPENED {
                let url = format!("http://{}{}", server.address, page.path);
                let (at, by) = browser.painted(&url)?;
                painted.push(at);
                moved = moved.max(by);
            }
            painted.sort_by(f64::total_cmp);
            page.painted.extend(painted.get(painted.len() / 2));
            page.moved.push(moved);
        }
        live.watch(&browser, &server, seconds)?;
    }
    let mut rows = vec![];
    for page in pages {
        page.rows(&mut rows);
    }
    rows.extend(live.rows());
    table.add_all(rows);
    drop(browser);
    table.add_all(counting(&server, rounds, seconds)?);
    server.stop()
}

/// Measurements of a page that follows a feed live.
#[derive(Default)]
struct Live {
    frame_p99: Vec<f64>,
    rows: Vec<f64>,
    rate: Vec<f64>,
}

impl Live {
    /// Follows a feed that grows fast, for some seconds.
    fn watch(&mut self, browser: &Browser, server: &Program, seconds: u64) -> anyhow::Result<()> {
        static SERIAL: AtomicU64 = AtomicU64::new(1 << 40);
        // At least as long as it takes to fill the page.
        let seconds = seconds.max(3);
        let feed = "live";
        let first = SERIAL.fetch_add(1, Ordering::Relaxed);
        Connection::open(&server.address)?.publish(feed, &event(first))?;
        browser.open(&format!("http://{}/ui/feeds/{feed}", server.address))?;
        let has_ended = AtomicBool::new(false);
        let publish = || -> anyhow::Result<()> {
            let mut connection = Connection::open(&server.address)?;
            let (begun, mut sent) = (Instant::now(), 0);
            while !has_ended.load(Ordering::Relaxed) {
                let due = begun + Duration::from_micros(sent * 1_000_000 / LIVE_RATE);
                thread::park_timeout(due.saturating_duration_since(Instant::now()));
                let serials = SERIAL.fetch_add(LIVE_TOGETHER, Ordering::Relaxed);
                let lines: String = (serials..serials + LIVE_TOGETHER).map(event).collect();
                connection.publish(feed, &lines)?;
                sent += LIVE_TOGETHER;
            }
            Ok(())
        };
        let script = "document.getElementById('live').click(); const times = []; let last = 0, most = 0; \
            const begun = performance.now(); const look = now => { \
                if (last) times.push(now - last); last = now; \
                most = Math.max(most, document.querySelectorAll('ol.entries li').length); \
                if (now - begun < MILLIS) return requestAnimationFrame(look); \
                times.sort((a, b) => a - b); \
                done([times[Math.floor(times.length * 0.99)], most, document.getElementById('live-status').textContent]); \
            }; requestAnimationFrame(look);";
        let script = script.replace("MILLIS", &(seconds * 1_000).to_string());
        let (found, published) = thread::scope(|threads| {
            let publisher = threads.spawn(publish);
            let found = browser.run(&script);
            has_ended.store(true, Ordering::Relaxed);
            (found, publisher.join())
        });
        let (frame, rows, text): (f64, f64, String) = found?;
        match published {
            Ok(published) => published?,
            Err(_) => anyhow::bail!("the publisher panicked"),
        }
        self.frame_p99.push(frame);
        self.rows.push(rows);
        let shown = text.split_whitespace().find_map(|word| word.parse().ok());
        let shown: f64 = shown.with_context(|| format!("the page says: {text}"))?;
        let seconds = f64::from(u32::try_from(seconds)?);
        self.rate.push(shown / seconds);
        Ok(())
    }

    fn rows(self) -> Vec<Row> {
        let row = |what: &str, unit, ours: Vec<f64>, bound: f64, peer: &str, must| Row {
            what: format!("a page that follows live: {what}"),
            unit,
            theirs: vec![bound; ours.len()],
            ours,
            peer: peer.into(),
            must,
        };
        let most = Some(Must::AtMost(1.0));
        vec![
            row(
                "time between frames, p99",
                "ms",
                self.frame_p99,
                50.0,
                "50 ms",
                most,
            ),
            row("rows, at most", "", self.rows, 500.0, "500", most),
            row(
                "entries a second",
                "",
                self.rate,
                1_000.0,
                "published",
                None,
            ),
        ]
    }
}

/// Measures what the view of rates takes of the server's CPU time while entries come.
fn counting(server: &Program, rounds: usize, seconds: u64) -> anyhow::Result<Vec<Row>> {
    let mut rows = vec![];
    for (what, feed, connections, batch) in [
        ("single entries over one connection", "'bench1'", 1, 1),
        ("single entries over 64 connections", "'bench1'", 64, 1),
        (
            "single entries over many feeds",
            "'bench' .. (n * 7919 % 100000)",
            64,
            1,
        ),
        ("batches of 100", "'bench1'", 3, 100),
    ] {
        let (mut own, mut all) = (vec![], vec![]);
        for _ in 0..rounds {
            let before = (server.cpu_micros_of("rates")?, server.cpu_micros()?);
            append(server, feed, connections, batch, seconds.max(5))?;
            // It counts twice a second.
            thread::park_timeout(Duration::from_secs(1));
            own.push((server.cpu_micros_of("rates")? - before.0) / 1e3);
            all.push((server.cpu_micros()? - before.1) / 1e3);
        }
        rows.push(Row {
            what: format!("counting entries, CPU: {what}"),
            unit: "ms",
            ours: own,
            peer: "the whole server".into(),
            theirs: all,
            must: Some(Must::AtMost(0.01)),
        });
    }
    Ok(rows)
}
