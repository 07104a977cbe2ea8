//! `watch`: the first look at a thousand plain feeds, against one consumer after the other.
//!
//! Shell. The feeds are files behind nginx, as most of the world's are.

use std::{fs, process::Command};

use anyhow::bail;
use simplefeed_client::{Consumer, FeedWatcher, Since, watcher::WatchEvent};

use crate::{
    process::{Program, Used, folder, run},
    table::{Must, Row, Table},
};

const FEEDS: u32 = 1_000;
const FEED_ENTRIES: u32 = 20;
/// An item of a blog: some paragraphs.
const CONTENT_BYTES: usize = 2_000;

pub(crate) fn measure(table: &mut Table, rounds: usize) -> anyhow::Result<()> {
    let folder = folder()?;
    let www = folder.path().join("www");
    fs::create_dir(&www)?;
    for feed in 0..FEEDS {
        fs::write(www.join(format!("{feed}.atom")), plain_feed(feed))?;
    }
    let nginx = Program::nginx(folder.path(), &format!("root {};", www.display()))?;
    let base = format!("http://{}", nginx.address);
    let own = std::env::current_exe()?;
    let once = |task: &str| run(Command::new(&own).args([task, &base]));
    let (mut watched, mut each) = (vec![], vec![]);
    // Once for warming up.
    once("library-watch")?;
    for _ in 0..rounds {
        watched.push(once("library-watch")?);
        each.push(once("library-each")?);
    }
    table.add_all(rows(&watched, &each));
    Ok(())
}

fn rows(watched: &[Used], each: &[Used]) -> [Row; 3] {
    let entries = f64::from(FEEDS * FEED_ENTRIES);
    let all = |used: &[Used], pick: &dyn Fn(&Used) -> f64| -> Vec<f64> {
        used.iter().map(pick).collect()
    };
    let rate = |used: &Used| entries / used.seconds;
    let cpu = |used: &Used| used.cpu_seconds * 1e6 / entries;
    let row = |unit, ours, peer: &str, theirs, must| Row {
        what: format!("{FEEDS} plain feeds"),
        unit,
        ours,
        peer: peer.into(),
        theirs,
        must,
    };
    let peer = "one consumer after the other";
    let budget = vec![64.0; watched.len()];
    let memory = all(watched, &|used| used.memory_mib);
    [
        row(
            "entries/s",
            all(watched, &rate),
            peer,
            all(each, &rate),
            None,
        ),
        row(
            "CPU µs/entry",
            all(watched, &cpu),
            peer,
            all(each, &cpu),
            None,
        ),
        row("MiB", memory, "budget", budget, Some(Must::AtMost(1.0))),
    ]
}

fn plain_feed(feed: u32) -> String {
    let content = "word ".repeat(CONTENT_BYTES / 5);
    let entry = |number: u32| {
        format!(
            "<entry><id>urn:{feed}:{number}</id><title>Title {number}</title>\
             <updated>2026-01-01T00:00:{number:02}Z</updated><content>{content}</content></entry>\n"
        )
    };
    let entries: String = (0..FEED_ENTRIES).rev().map(entry).collect();
    format!(
        "<feed xmlns=\"http://www.w3.org/2005/Atom\"><id>urn:{feed}</id><title>Feed {feed}</title>\n{entries}</feed>\n"
    )
}

fn urls(base: &str) -> Vec<String> {
    (0..FEEDS)
        .map(|feed| format!("{base}/{feed}.atom"))
        .collect()
}

fn is_whole(entries: u32) -> anyhow::Result<()> {
    if entries != FEEDS * FEED_ENTRIES {
        bail!("{entries} entries were delivered");
    }
    Ok(())
}

/// Looks once at all feeds with a watcher, as an embedder does.
pub(crate) fn library(base: &str) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let mut feeds = FeedWatcher::builder(urls(base))
            .since(Since::Oldest)
            .build()?;
        let (mut entries, mut together) = (0, vec![]);
        while entries < FEEDS * FEED_ENTRIES {
            match feeds.next().await? {
                WatchEvent::Entry(entry) => {
                    entries += u32::from(!entry.delivery.raw().is_empty());
                    together.push(entry);
                }
                other => bail!("{other:?}"),
            }
            if feeds.ready() == 0 {
                feeds.accept(&together).await?;
                together.clear();
            }
        }
        is_whole(entries)
    })
}

/// Looks at one feed after the other.
pub(crate) fn each(base: &str) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let mut entries = 0;
        for url in urls(base) {
            let mut feed = Consumer::builder(url).since(Since::Oldest).build()?;
            while let Some(delivery) = feed.next().await? {
                entries += u32::from(!delivery.raw().is_empty());
                feed.accept(&delivery).await?;
            }
        }
        is_whole(entries)
    })
}
