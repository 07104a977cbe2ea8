//! `catch-up`: what it costs to be some documents behind, against the walk from link to link.
//!
//! Shell. The peer is the same consumer of the same feed, to which nobody shows an archive index.

use std::{
    io,
    sync::{Arc, Mutex, PoisonError, atomic::Ordering},
    time::Instant,
};

use anyhow::{Context as _, bail};
use bytes::Bytes;
use simplefeed_client::{
    Bookmark, BookmarkStore, Consumer, Since, Transport,
    transport::{self, Answer, Answering, Request, Timeouts},
};

use crate::{
    delay::{self, Passed},
    load::{fill, wait_until_frozen},
    process::{Program, folder},
    table::{Must, Row, Table},
};

const DOCUMENTS: u32 = 1_100;
const DOCUMENT_ENTRIES: u32 = 100;
const BEHIND: [u32; 4] = [0, 1, 10, 1_000];
const ROUND_TRIP_MILLIS: u64 = 50;

/// What a catching-up has cost.
struct Cost {
    requests: f64,
    index_requests: f64,
    kib: f64,
    seconds: f64,
}

pub(crate) fn measure(table: &mut Table, rounds: usize) -> anyhow::Result<()> {
    let folder = folder()?;
    let server = Program::simplefeed(&folder.path().join("data"))?;
    fill(&server, "bench", 0..u64::from(DOCUMENTS * DOCUMENT_ENTRIES))?;
    wait_until_frozen(&server, &format!("/feeds/bench/{}.atom", DOCUMENTS - 1))?;
    let (address, passed) = delay::start(&server.address)?;
    let url = format!("http://{address}/feeds/bench/recent.atom");
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let bookmarks = runtime.block_on(bookmarks(&url))?;
    for (behind, bookmark) in &bookmarks {
        for delay in [0, ROUND_TRIP_MILLIS] {
            passed.delay_millis.store(delay, Ordering::Relaxed);
            let (mut ours, mut walk) = (vec![], vec![]);
            for _ in 0..rounds {
                let cost = |linear| catch_up(&url, bookmark, *behind, linear, &passed);
                ours.push(runtime.block_on(cost(false))?);
                walk.push(runtime.block_on(cost(true))?);
            }
            table.add_all(rows(*behind, delay, &ours, &walk));
        }
    }
    Ok(())
}

fn rows(behind: u32, delay: u64, ours: &[Cost], walk: &[Cost]) -> Vec<Row> {
    let row = |unit, pick: fn(&Cost) -> f64, must| Row {
        what: format!("{behind} documents behind, {delay} ms away"),
        unit,
        ours: ours.iter().map(pick).collect(),
        peer: "from link to link".into(),
        theirs: walk.iter().map(pick).collect(),
        must,
    };
    let times = row("s", |cost| cost.seconds, None);
    if delay > 0 {
        let must = (behind == 1_000).then_some(Must::AtMost(0.1));
        return vec![Row { must, ..times }];
    }
    let allowed = if behind == 0 {
        1.0
    } else {
        f64::from(behind) + 2.0
    };
    vec![
        Row {
            peer: if behind == 0 { "one 304" } else { "k + 2" }.into(),
            theirs: vec![allowed; ours.len()],
            must: Some(Must::AtMost(1.0)),
            ..row("requests, index apart", |cost| cost.requests, None)
        },
        row("requests for the index", |cost| cost.index_requests, None),
        row("KiB", |cost| cost.kib, None),
        times,
    ]
}

/// Returns a bookmark for each number of documents to be behind.
async fn bookmarks(url: &str) -> anyhow::Result<Vec<(u32, Bookmark)>> {
    let kept = Kept::default();
    let builder = Consumer::builder(url)
        .since(Since::Oldest)
        .bookmark(kept.clone());
    let mut feed = builder.build()?;
    let (mut bookmarks, mut entries) = (vec![], 0);
    while let Some(delivery) = feed.next().await? {
        entries += 1;
        let behind = DOCUMENTS - entries / DOCUMENT_ENTRIES;
        let ends = entries % DOCUMENT_ENTRIES == 0;
        if ends && behind > 0 && BEHIND.contains(&behind) {
            bookmarks.insert(0, (behind, delivery.bookmark()));
        }
        if entries == DOCUMENTS * DOCUMENT_ENTRIES {
            feed.accept(&delivery).await?;
        }
    }
    // What is kept at the end of a round also recognises the recent document.
    bookmarks.insert(0, (0, kept.found().context("a bookmark was kept")?));
    if bookmarks.len() == BEHIND.len() {
        return Ok(bookmarks);
    }
    bail!("{entries} entries were delivered")
}

async fn catch_up(
    url: &str,
    bookmark: &Bookmark,
    behind: u32,
    linear: bool,
    passed: &Passed,
) -> anyhow::Result<Cost> {
    let mut transport = transport::default_transport(Timeouts::default())?;
    if linear {
        transport = Arc::new(NoIndex(transport));
    }
    let builder = Consumer::builder(url)
        .transport(transport)
        .resume(bookmark.clone());
    let mut feed = builder.build()?;
    passed.reset();
    let (began, mut entries) = (Instant::now(), 0);
    while feed.next().await?.is_some() {
        entries += 1;
    }
    if entries != behind * DOCUMENT_ENTRIES {
        bail!("{entries} entries were delivered, {behind} documents behind");
    }
    let count = |counter: &std::sync::atomic::AtomicU64| -> anyhow::Result<f64> {
        Ok(f64::from(u32::try_from(counter.load(Ordering::Relaxed))?))
    };
    Ok(Cost {
        seconds: began.elapsed().as_secs_f64(),
        requests: count(&passed.requests)?,
        index_requests: count(&passed.index_requests)?,
        kib: count(&passed.bytes)? / 1024.0,
    })
}

/// A bookmark in memory.
#[derive(Clone, Debug, Default)]
struct Kept(Arc<Mutex<Option<Bookmark>>>);

impl BookmarkStore for Kept {
    async fn load(&mut self) -> io::Result<Option<Bookmark>> {
        Ok(self.found())
    }

    async fn save(&mut self, bookmark: &Bookmark) -> io::Result<()> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(bookmark.clone());
        Ok(())
    }
}

impl Kept {
    fn found(&self) -> Option<Bookmark> {
        let found = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        found.clone()
    }
}

/// A server without an archive index.
#[derive(Debug)]
struct NoIndex(Arc<dyn Transport>);

impl Transport for NoIndex {
    fn send(&self, request: Request) -> Answering<'_> {
        if request.url.path().ends_with("/index.json") {
            let gone = Answer {
                status: 404,
                headers: vec![],
                body: Bytes::new(),
            };
            return Box::pin(async move { Ok(gone) });
        }
        self.0.send(request)
    }
}
