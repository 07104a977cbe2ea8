//! A server whose barrier is broken on purpose: the negative control of every durability test.
//!
//! Shell: `simplefeed-test-server DATA none` never syncs; `simplefeed-test-server DATA fail-after:N`
//! syncs N times and then fails. A test of durability that passes with these proves nothing.
//! `simplefeed-test-server DATA marked:FILE [DOCUMENT-ENTRIES]` is honest but slow, and notes in FILE
//! whether a sync is under way, for tests that kill it there.
#![expect(
    clippy::print_stderr,
    reason = "it says where it listens, like the real one"
)]

use std::{
    fs::File,
    io,
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use anyhow::{Context as _, bail};
use simplefeed_server::{
    config::{Config, ServeArgs},
    listening::Listening,
    log::{
        barrier::{Barrier, DiskBarrier},
        opening::{SledStore, open_with},
    },
    serve::Server,
};

/// Half of what a sync of the slow disk takes at least.
const SLOW: Duration = Duration::from_millis(1);

struct NoBarrier;

impl Barrier for NoBarrier {
    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}

struct FailingBarrier {
    disk: DiskBarrier,
    left: AtomicU64,
}

impl Barrier for FailingBarrier {
    fn sync(&self) -> io::Result<()> {
        let left = self
            .left
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |left| {
                left.checked_sub(1)
            });
        match left {
            Ok(_) => self.disk.sync(),
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
    fn sync(&self) -> io::Result<()> {
        self.marker.write_all_at(b"1", 0)?;
        std::thread::park_timeout(SLOW);
        self.disk.sync()?;
        std::thread::park_timeout(SLOW);
        self.marker.write_all_at(b"0", 0)
    }
}

fn barrier(kind: &str, folder: &Path) -> io::Result<Box<dyn Barrier>> {
    if let Some(marker) = kind.strip_prefix("marked:") {
        return Ok(Box::new(MarkedBarrier {
            disk: DiskBarrier::new(folder)?,
            marker: File::create(marker)?,
        }));
    }
    match kind.strip_prefix("fail-after:") {
        None => Ok(Box::new(NoBarrier)),
        Some(times) => {
            let left = times.parse().map_err(io::Error::other)?;
            Ok(Box::new(FailingBarrier {
                disk: DiskBarrier::new(folder)?,
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
            "usage: simplefeed-test-server DATA none|fail-after:N|marked:FILE [DOCUMENT-ENTRIES]"
        );
    };
    // Nothing else may sync the file system meanwhile, as archiving a closed document would.
    let document_entries = args.next().map_or(Ok(10_000), |entries| entries.parse())?;
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
    let opened =
        open_with(&data, |folder| barrier(&kind, folder)).context("cannot open the log")?;
    let server = Server::start(&config, listening, SledStore::from(opened))?;
    eprintln!("listening on http://{}", server.listening().address());
    server.run(async {
        signals.received().await;
    })?;
    Ok(())
}
