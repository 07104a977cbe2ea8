//! Lines on stderr, which no work waits for.
//!
//! Shell: stderr, a thread, the hook of panics. Whoever reads stderr may go away, stand still or have a full disk. A line
//! that cannot be written then is dropped and counted.

use std::{
    backtrace::{Backtrace, BacktraceStatus},
    io::{self, IsTerminal as _},
    panic::PanicHookInfo,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
        mpsc::{Receiver, Sender, channel},
    },
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, poll},
    io::Errno,
};
use tracing::warn;
use tracing_subscriber::{EnvFilter, filter::ParseError};

/// Most bytes of lines that wait for their reader.
const WAITING_BYTES_MAX: usize = 1024 * 1024;
/// Longest time that somebody waits for a line to be written.
const PATIENCE: Duration = Duration::from_secs(1);

static DROPPED: AtomicU64 = AtomicU64::new(0);
static LINES: OnceLock<Lines> = OnceLock::new();

/// Returns the number of lines that were dropped since the start of the process.
pub fn dropped_lines() -> u64 {
    DROPPED.load(Ordering::Relaxed)
}

/// Lets the process log what `filter` wants, and its panics. Lines that are left at the end are written by [`flush`].
///
/// # Errors
///
/// Returns what is wrong with the filter.
pub fn start(filter: &str) -> Result<(), ParseError> {
    // A parser of HTML warns of each tag that is out of place: thousands of lines for one entry on a page.
    let filter = EnvFilter::try_new(format!("{filter},html5ever=off"))?;
    let lines = LINES.get_or_init(Lines::start);
    std::panic::set_hook(Box::new(tell_panic));
    tracing_subscriber::fmt()
        .with_ansi(io::stderr().is_terminal())
        .with_env_filter(filter)
        // Results go to stdout, so the log must not.
        .with_writer(|| lines.clone())
        .init();
    Ok(())
}

/// Tells something to whoever started the process. Waits a second at most until it is written.
pub fn say(text: &str) {
    LINES
        .get_or_init(Lines::start)
        .put(format!("{text}\n").into());
    flush();
}

/// Waits until all lines are written, a second at most. If that was too short once, nobody waits until they are.
pub fn flush() {
    if let Some(lines) = LINES.get() {
        lines.flush();
    }
}

/// Tells a panic as the standard hook does, which would wait for stderr.
fn tell_panic(panic: &PanicHookInfo<'_>) {
    let thread = std::thread::current();
    let name = thread.name().unwrap_or("<unnamed>");
    let mut text = format!("\nthread '{name}' {panic}\n");
    let backtrace = Backtrace::capture();
    if backtrace.status() == BacktraceStatus::Captured {
        text = format!("{text}{backtrace}\n");
    }
    LINES.get_or_init(Lines::start).put(text.into());
}

/// Lines that wait for a thread which writes them.
#[derive(Clone, Debug)]
struct Lines {
    queue: Sender<Item>,
    waiting: Arc<Waiting>,
}

#[derive(Debug, Default)]
struct Waiting {
    /// Bytes of lines in the queue.
    bytes: AtomicUsize,
    /// Whether somebody has waited for them for too long.
    is_overdue: AtomicBool,
}

#[derive(Debug)]
enum Item {
    Line(Vec<u8>),
    /// Somebody waits for the lines before this.
    Flush(Sender<()>),
}

impl Lines {
    fn start() -> Self {
        let (queue, items) = channel();
        let waiting = Arc::new(Waiting::default());
        let writer = Writer {
            waiting: Arc::clone(&waiting),
            is_torn: false,
            told: 0,
        };
        let thread = std::thread::Builder::new().name("log".into());
        // Without the thread nobody takes lines, so each one is dropped and counted.
        let _thread = thread.spawn(move || writer.run(&items));
        Self { queue, waiting }
    }

    fn put(&self, line: Vec<u8>) {
        let length = line.len();
        let with = |bytes: usize| (bytes + length <= WAITING_BYTES_MAX).then_some(bytes + length);
        let (set, read) = (Ordering::AcqRel, Ordering::Acquire);
        let has_room = self.waiting.bytes.fetch_update(set, read, with).is_ok();
        if !has_room || self.queue.send(Item::Line(line)).is_err() {
            DROPPED.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn flush(&self) {
        let (done, written) = channel();
        if self.waiting.is_overdue.load(Ordering::Acquire)
            || self.queue.send(Item::Flush(done)).is_err()
        {
            return;
        }
        if written.recv_timeout(PATIENCE).is_err() {
            self.waiting.is_overdue.store(true, Ordering::Release);
        }
    }
}

impl io::Write for Lines {
    /// Takes a whole event: the formatter writes each at once.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.put(line.into());
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes lines, in a thread of its own.
struct Writer {
    waiting: Arc<Waiting>,
    /// Whether the last line was cut short.
    is_torn: bool,
    /// Dropped lines that the log tells of.
    told: u64,
}

impl Writer {
    fn run(mut self, items: &Receiver<Item>) {
        for item in items {
            match item {
                Item::Line(line) => {
                    self.write(&line);
                    let bytes = &self.waiting.bytes;
                    if bytes.fetch_sub(line.len(), Ordering::AcqRel) == line.len() {
                        self.waiting.is_overdue.store(false, Ordering::Release);
                    }
                }
                // Whoever waited may have gone.
                Item::Flush(done) => drop(done.send(())),
            }
        }
    }

    fn write(&mut self, line: &[u8]) {
        if self.is_torn {
            self.is_torn = write_to_stderr(b"\n").is_err();
        }
        let mut rest = line;
        while !rest.is_empty() {
            let Ok(written) = write_to_stderr(rest) else {
                self.is_torn = self.is_torn || rest.len() < line.len();
                DROPPED.fetch_add(1, Ordering::Relaxed);
                return;
            };
            rest = rest.get(written..).unwrap_or_default();
        }
        let dropped = dropped_lines();
        if dropped > self.told {
            let lines = dropped - self.told;
            self.told = dropped;
            warn!(lines, "the log has dropped lines that nobody took");
        }
    }
}

/// Writes a part of some bytes, however long that takes. Returns its length.
fn write_to_stderr(bytes: &[u8]) -> rustix::io::Result<usize> {
    let stderr = io::stderr();
    loop {
        match rustix::io::write(&stderr, bytes) {
            Err(Errno::INTR) => {}
            // Another program has set that the pipe does not wait.
            Err(Errno::AGAIN) => {
                let _ready = poll(&mut [PollFd::new(&stderr, PollFlags::OUT)], None);
            }
            written => return written,
        }
    }
}
