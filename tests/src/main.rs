//! A server whose barrier is broken on purpose: the negative control of every durability test.
//!
//! Shell: `simplefeed-test-server DATA none` never syncs; `simplefeed-test-server DATA fail-after:N`
//! syncs N times and then fails. A test that passes with this server proves nothing.
#![expect(
    clippy::print_stderr,
    reason = "it says where it listens, like the real one"
)]

use std::{
    io,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
};

use anyhow::{Context as _, bail};
use simplefeed_server::{
    config::{Config, ServeArgs},
    log::{
        barrier::{Barrier, DiskBarrier},
        opening::open_with,
    },
    serve::{Listening, Server, asked_to_stop},
};

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

fn barrier(kind: &str, folder: &Path) -> io::Result<Box<dyn Barrier>> {
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
    let mut args = std::env::args().skip(1);
    let (Some(data), Some(kind)) = (args.next(), args.next()) else {
        bail!("usage: simplefeed-test-server DATA none|fail-after:N");
    };
    let data = PathBuf::from(data);
    let listen = Some(([127, 0, 0, 1], 0).into());
    // Nothing else may sync the file system meanwhile, as archiving a closed document would.
    let config = Config::new(ServeArgs {
        data: Some(data.clone()),
        listen,
        document_entries: Some(10_000),
        document_bytes: Some(32 * 1024 * 1024),
        ..ServeArgs::default()
    })?;
    let listening = Listening::bind(config.listen)?;
    let opened =
        open_with(&data, |folder| barrier(&kind, folder)).context("cannot open the log")?;
    let server = Server::start(&config, listening, opened)?;
    eprintln!("listening on http://{}", server.address());
    server.run(async {
        // Without signals it ends at once, which no test would take for success.
        drop(asked_to_stop().await);
    })?;
    Ok(())
}
