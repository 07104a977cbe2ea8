//! A server whose barrier is broken on purpose: the negative control of every durability test.
//!
//! Shell: `simplefeed-test-server DATA none` never syncs; `simplefeed-test-server DATA fail-after:N`
//! syncs N times, slowly, and then fails. `simplefeed-test-server DATA unfiltered` syncs, but lets sled believe that
//! `sync_file_range` does. A test of durability that passes with these proves nothing.
//! `simplefeed-test-server DATA marked:FILE` is honest but slow, and notes in FILE what is under way, for tests that
//! kill it there; `simplefeed-test-server DATA honest` is honest. Behind these, the entries of a document may be
//! named, the bytes of a chapter, after which the journal is settled, the address to listen at, the ids in memory that
//! become a file, and the public URL.
#![expect(
    clippy::print_stderr,
    reason = "it says where it listens, like the real one"
)]

use std::{
    fs::File,
    io,
    os::unix::fs::FileExt as _,
    path::PathBuf,
    process::ExitCode,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use anyhow::{Context as _, bail};
use simplefeed_core::timestamp::Timestamp;
use simplefeed_log::{
    barrier::{Barrier, DiskBarrier, LogStep},
    sled::opening::{Disk, SledStore, open_with},
};
use simplefeed_process::{
    clock::{self, ClockReading},
    lack::survive_long_files,
};
use simplefeed_server::{
    config::{Config, ServeArgs},
    exit,
    listening::Listening,
    serve::Server,
};

/// Variable that names the file of [`read_clocks`].
const CLOCK: &str = "SIMPLEFEED_TEST_CLOCK";
/// Half of what a sync of the slow disk takes at least.
const SLOW: Duration = Duration::from_millis(1);

struct NoBarrier;

impl Barrier for NoBarrier {
    fn sync(&self, _file: &File) -> io::Result<()> {
        Ok(())
    }
}

/// Time of a sync that may fail, so that requests of a test come together behind it.
const FAILING: Duration = Duration::from_millis(100);

struct FailingBarrier {
    disk: DiskBarrier,
    left: AtomicU64,
}

/// Syncs, and has not made sled sync.
struct UnfilteredBarrier;

impl Barrier for UnfilteredBarrier {
    fn sync(&self, file: &File) -> io::Result<()> {
        file.sync_data()
    }
}

impl Barrier for FailingBarrier {
    fn sync(&self, file: &File) -> io::Result<()> {
        let left = self
            .left
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |left| {
                left.checked_sub(1)
            });
        std::thread::park_timeout(FAILING);
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

    fn begins(&self, step: LogStep) {
        let mark = match step {
            LogStep::Opening => b"p",
            LogStep::Rotating => b"r",
            LogStep::Settling => b"s",
            LogStep::Reopening => b"o",
            LogStep::Recycling => b"c",
            LogStep::Done => b"-",
        };
        // The mark of the writer comes first, that of the settler second.
        let written = self.marker.write_all_at(mark, 1);
        assert!(written.is_ok(), "a test can write its own file");
        std::thread::park_timeout(SLOW);
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "a marker is for the test that runs now"
)]
fn disk(kind: &str) -> io::Result<Disk> {
    if let Some(marker) = kind.strip_prefix("marked:") {
        return Ok(Disk::behind(MarkedBarrier {
            disk: DiskBarrier::new()?,
            marker: File::create(marker)?,
        }));
    }
    match kind {
        "honest" => return Ok(Disk::behind(DiskBarrier::new()?)),
        "unfiltered" => return Ok(Disk::behind(UnfilteredBarrier)),
        _ => {}
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

/// Reads the system's clocks and adds a test's numbers: its file has the microseconds that the time of day has
/// leapt, and those in which the machine slept.
fn read_clocks() -> ClockReading {
    let mut reading = clock::system();
    if let Some(path) = std::env::var_os(CLOCK) {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let mut added = text.split_whitespace().filter_map(|word| word.parse().ok());
        let (leapt, slept) = (added.next().unwrap_or(0_i64), added.next().unwrap_or(0_i64));
        reading.wall = Timestamp::from_micros(reading.wall.micros() + leapt + slept);
        reading.boot += slept;
    }
    reading
}

fn main() -> ExitCode {
    survive_long_files();
    match serve() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // As the real program does.
            for text in exit::texts_of(&error) {
                eprintln!("{text}");
            }
            ExitCode::from(exit::code_of(&error))
        }
    }
}

fn serve() -> anyhow::Result<()> {
    // A test that fails shows what the server said.
    tracing_subscriber::fmt()
        .with_writer(io::stderr)
        .with_ansi(false)
        .init();
    let mut args = std::env::args().skip(1);
    let (Some(data), Some(kind)) = (args.next(), args.next()) else {
        bail!(
            "usage: simplefeed-test-server DATA none|honest|unfiltered|fail-after:N|marked:FILE [DOCUMENT-ENTRIES [CHAPTER-BYTES [ADDRESS [IDS [PUBLIC-URL]]]]]"
        );
    };
    // Nothing else may sync the file system meanwhile, as archiving a closed document would.
    let document_entries = args.next().map_or(Ok(10_000), |entries| entries.parse())?;
    let mut disk = disk(&kind)?;
    if let Some(bytes) = args.next() {
        disk.chapter_bytes = bytes.parse()?;
    }
    let listen = args.next().map(|listen| listen.parse()).transpose()?;
    if let Some(ids) = args.next() {
        disk.fresh_ids = ids.parse()?;
    }
    let public_url = args.next().map(|url| url.parse()).transpose()?;
    let data = PathBuf::from(data);
    let args = ServeArgs {
        data: Some(data.clone()),
        listen: listen.unwrap_or_else(|| ([127, 0, 0, 1], 0).into()),
        public_url,
        document_entries,
        document_bytes: 32 * 1024 * 1024,
        metrics_listen: std::env::var_os(CLOCK).map(|_| ([127, 0, 0, 1], 0).into()),
        ..ServeArgs::default()
    };
    let config = Config::new(args, |_| true)?;
    let listening = Listening::bind(&config)?;
    let signals = listening.stop_signals()?;
    let opened = open_with(&data, &disk).context("cannot open the log")?;
    let server = Server::start_by(&config, listening, SledStore::from(opened), read_clocks)?;
    // One write: a thread that panics meanwhile prints before or after it, and not within.
    let line = format!("listening on http://{}\n", server.listening().address());
    eprint!("{line}");
    if let Some(address) = server.listening().metrics() {
        eprintln!("metrics on http://{address}/metrics");
    }
    server.run(async {
        signals.received().await;
    })?;
    Ok(())
}
