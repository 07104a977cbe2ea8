//! A server whose barrier is broken on purpose: the negative control of every durability test.
//!
//! Shell: `simplefeed-test-server DATA none` never syncs; `simplefeed-test-server DATA fail-after:N`
//! syncs N times and then fails. A test of durability that passes with these proves nothing.
//! `simplefeed-test-server DATA marked:FILE` is honest but slow, and notes in FILE what is under way, for tests that
//! kill it there; `simplefeed-test-server DATA honest` is honest. Behind these, the entries of a document may be
//! named, and the bytes of a chapter, after which the journal is settled.
#![expect(
    clippy::print_stderr,
    reason = "it says where it listens, like the real one"
)]

use std::{
    fs::File,
    io,
    os::unix::fs::FileExt as _,
    path::PathBuf,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use anyhow::{Context as _, bail};
use simplefeed_server::{
    config::{Config, ServeArgs},
    listening::Listening,
    log::{
        barrier::{Barrier, DiskBarrier, Step},
        opening::{Disk, SledStore, open_with},
    },
    serve::Server,
};

/// Half of what a sync of the slow disk takes at least.
const SLOW: Duration = Duration::from_millis(1);

struct NoBarrier;

impl Barrier for NoBarrier {
    fn sync(&self, _file: &File) -> io::Result<()> {
        Ok(())
    }
}

struct FailingBarrier {
    disk: DiskBarrier,
    left: AtomicU64,
}

impl Barrier for FailingBarrier {
    fn sync(&self, file: &File) -> io::Result<()> {
        let left = self
            .left
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |left| {
                left.checked_sub(1)
            });
        match left {
            Ok(_) => self.disk.sync(file),
            Err(_) => Err(io::Error::other("injected failure")),
        }
    }
}

/// A slow disk that says when it is at work.
struct MarkedBarrier {
    disk: DiskBarrier,
    marker: File,
}

impl Barrier for MarkedBarrier {
    fn sync(&self, file: &File) -> io::Result<()> {
        self.marker.write_all_at(b"1", 0)?;
        std::thread::park_timeout(SLOW);
        self.disk.sync(file)?;
        std::thread::park_timeout(SLOW);
        self.marker.write_all_at(b"0", 0)
    }

    fn begins(&self, step: Step) {
        let mark = match step {
            Step::Rotating => b"r",
            Step::Settling => b"s",
            Step::Reopening => b"o",
            Step::Recycling => b"c",
            Step::Done => b"-",
        };
        // The mark of the writer comes first, that of the settler second.
        let written = self.marker.write_all_at(mark, 1);
        assert!(written.is_ok(), "a test can write its own file");
        std::thread::park_timeout(SLOW);
    }
}

fn disk(kind: &str) -> io::Result<Disk> {
    if let Some(marker) = kind.strip_prefix("marked:") {
        return Ok(Disk::behind(MarkedBarrier {
            disk: DiskBarrier::new()?,
            marker: File::create(marker)?,
        }));
    }
    if kind == "honest" {
        return Ok(Disk::behind(DiskBarrier::new()?));
    }
    match kind.strip_prefix("fail-after:") {
        None => Ok(Disk::behind(NoBarrier)),
        Some(times) => {
            let left = times.parse().map_err(io::Error::other)?;
            Ok(Disk::behind(FailingBarrier {
                disk: DiskBarrier::new()?,
                left: AtomicU64::new(left),
            }))
        }
    }
}

fn main() -> anyhow::Result<()> {
    // A test that fails shows what the server said.
    tracing_subscriber::fmt()
        .with_writer(io::stderr)
        .with_ansi(false)
        .init();
    let mut args = std::env::args().skip(1);
    let (Some(data), Some(kind)) = (args.next(), args.next()) else {
        bail!(
            "usage: simplefeed-test-server DATA none|honest|fail-after:N|marked:FILE [DOCUMENT-ENTRIES [CHAPTER-BYTES]]"
        );
    };
    // Nothing else may sync the file system meanwhile, as archiving a closed document would.
    let document_entries = args.next().map_or(Ok(10_000), |entries| entries.parse())?;
    let mut disk = disk(&kind)?;
    if let Some(bytes) = args.next() {
        disk.chapter_bytes = bytes.parse()?;
    }
    let data = PathBuf::from(data);
    let args = ServeArgs {
        data: Some(data.clone()),
        listen: ([127, 0, 0, 1], 0).into(),
        document_entries,
        document_bytes: 32 * 1024 * 1024,
        ..ServeArgs::default()
    };
    let config = Config::new(args, |_| true)?;
    let listening = Listening::bind(&config)?;
    let signals = listening.stop_signals()?;
    let opened = open_with(&data, &disk).context("cannot open the log")?;
    let server = Server::start(&config, listening, SledStore::from(opened))?;
    eprintln!("listening on http://{}", server.listening().address());
    server.run(async {
        signals.received().await;
    })?;
    Ok(())
}
