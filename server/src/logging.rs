//! Lines on stderr, which no work waits for.
//!
//! Shell: stderr, a thread, the hook of panics. Whoever reads stderr may go away, stand still or
//! have a full disk. A line that cannot be written for that reason is dropped and counted.

use std::{
    backtrace::{Backtrace, BacktraceStatus},
    io::{self, IsTerminal as _},
    panic::PanicHookInfo,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
        mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    },
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
};
use tracing_subscriber::{EnvFilter, filter::ParseError};

/// Maximum length of all lines that wait to be written, in bytes.
const WAITING_BYTES_MAX: usize = 1024 * 1024;
/// Longest wait for a line to be written.
const PATIENCE: Duration = Duration::from_secs(1);

/// Name of the thread that writes.
const THREAD: &str = "log";

static DROPPED: AtomicU64 = AtomicU64::new(0);
static LINES: OnceLock<Lines> = OnceLock::new();

/// Returns the number of lines that were dropped since the start of the process.
pub(crate) fn dropped_lines() -> u64 {
    DROPPED.load(Ordering::Relaxed)
}

/// Makes the process log the events that `filter` selects, and every panic. At the end of the
/// process, [`flush`] writes the lines that are left.
///
/// # Errors
///
/// Returns the mistake in the filter.
pub fn start(filter: &str) -> Result<(), ParseError> {
    // The parser of HTML warns of each tag that is out of place, which can be thousands of lines
    // for one entry on a page.
    let filter = EnvFilter::try_new(format!("{filter},html5ever=off"))?;
    let lines = LINES.get_or_init(Lines::start_thread);
    std::panic::set_hook(Box::new(tell_panic));
    tracing_subscriber::fmt()
        .with_ansi(io::stderr().is_terminal())
        .with_env_filter(filter)
        // Results of commands go to stdout, so the log must not go there.
        .with_writer(|| lines.clone())
        .init();
    Ok(())
}

/// Writes a message for the operator to stderr. Waits a second at most.
pub fn say(text: &str) {
    let lines = LINES.get_or_init(Lines::start_thread);
    lines.put_or_write(format!("{text}\n").into());
    lines.flush_lines();
}

/// Waits until all lines are written, a second at most. After a timeout, later calls return at once
/// until the queue is empty.
pub fn flush() {
    if let Some(lines) = LINES.get() {
        lines.flush_lines();
    }
}

/// Logs a panic in the form of the standard hook. The standard hook itself would wait for stderr
/// for ever. A panic of the main thread ends the process, so the line is written first.
fn tell_panic(panic: &PanicHookInfo<'_>) {
    let thread = std::thread::current();
    let name = thread.name().unwrap_or("<unnamed>");
    let mut text = format!("\nthread '{name}' {panic}\n");
    let backtrace = Backtrace::capture();
    if backtrace.status() == BacktraceStatus::Captured {
        text = format!("{text}{backtrace}\n");
    }
    let lines = LINES.get_or_init(Lines::start_thread);
    lines.put_or_write(text.into());
    // The thread that writes the lines cannot wait for itself.
    if name != THREAD {
        lines.flush_lines();
    }
}

/// Lines that wait for a thread which writes them.
#[derive(Clone, Debug)]
struct Lines {
    queue: Sender<QueueItem>,
    waiting: Arc<LineQueue>,
}

#[derive(Debug, Default)]
struct LineQueue {
    /// Bytes of lines in the queue.
    bytes: AtomicUsize,
    /// Whether a wait for the queue has timed out.
    is_overdue: AtomicBool,
}

#[derive(Debug)]
enum QueueItem {
    Line(Vec<u8>),
    /// Answered once the lines before it are written.
    Flush(Sender<()>),
}

impl Lines {
    fn start_thread() -> Self {
        let (queue, items) = channel();
        let waiting = Arc::new(LineQueue::default());
        let writer = LineWriter {
            waiting: Arc::clone(&waiting),
            is_torn: false,
            told: 0,
        };
        let thread = std::thread::Builder::new().name(THREAD.into());
        // If the thread cannot be started, `put_line` fails.
        let _thread = thread.spawn(move || writer.run(&items));
        Self { queue, waiting }
    }

    /// Queues a line, or drops the line if too many bytes wait. Returns the line if there is no
    /// thread that writes.
    fn put_line(&self, line: Vec<u8>) -> Result<(), Vec<u8>> {
        let length = line.len();
        // An empty queue takes a line of any length, because the report of a command may be one
        // long line.
        let with = |bytes: usize| {
            let has_room = bytes == 0 || bytes + length <= WAITING_BYTES_MAX;
            has_room.then_some(bytes + length)
        };
        let (set, read) = (Ordering::AcqRel, Ordering::Acquire);
        if self.waiting.bytes.fetch_update(set, read, with).is_err() {
            DROPPED.fetch_add(1, Ordering::Relaxed);
            return Ok(());
        }
        self.queue.send(QueueItem::Line(line)).map_err(|refused| {
            // Without the thread, nobody else subtracts these bytes.
            self.waiting.bytes.fetch_sub(length, Ordering::AcqRel);
            match refused.0 {
                QueueItem::Line(line) => line,
                QueueItem::Flush(_) => vec![],
            }
        })
    }

    /// Queues a line, or writes the line on this thread: the line may be about a system that starts
    /// no thread.
    fn put_or_write(&self, line: Vec<u8>) {
        if let Err(line) = self.put_line(line) {
            let patience = Timespec::try_from(PATIENCE).ok();
            let stderr = io::stderr();
            let ready = poll(
                &mut [PollFd::new(&stderr, PollFlags::OUT)],
                patience.as_ref(),
            );
            let written = ready.is_ok_and(|ready| ready > 0) && write_to_stderr(&line).is_ok();
            DROPPED.fetch_add(u64::from(!written), Ordering::Relaxed);
        }
    }

    fn flush_lines(&self) {
        let (done, written) = channel();
        if self.waiting.is_overdue.load(Ordering::Acquire)
            || self.queue.send(QueueItem::Flush(done)).is_err()
        {
            return;
        }
        let is_late = written.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout);
        // The mark is set only while a line waits, because the thread clears the mark only after a
        // line.
        if is_late && self.waiting.bytes.load(Ordering::Acquire) > 0 {
            self.waiting.is_overdue.store(true, Ordering::Release);
        }
    }
}

impl io::Write for Lines {
    /// Queues a whole event: the formatter passes each event in one call.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if self.put_line(line.into()).is_err() {
            DROPPED.fetch_add(1, Ordering::Relaxed);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes lines, in a thread of its own.
struct LineWriter {
    waiting: Arc<LineQueue>,
    /// Whether the last line was cut short.
    is_torn: bool,
    /// Number of dropped lines that the log has reported so far.
    told: u64,
}

impl LineWriter {
    fn run(mut self, items: &Receiver<QueueItem>) {
        for item in items {
            match item {
                QueueItem::Line(line) => {
                    self.write_counted(&line);
                    let bytes = &self.waiting.bytes;
                    if bytes.fetch_sub(line.len(), Ordering::AcqRel) == line.len() {
                        self.waiting.is_overdue.store(false, Ordering::Release);
                    }
                }
                // The thread that asked may have stopped waiting.
                QueueItem::Flush(done) => drop(done.send(())),
            }
        }
    }

    /// Writes a line, and then the number of dropped lines that the log has not reported yet.
    fn write_counted(&mut self, line: &[u8]) {
        let dropped = dropped_lines();
        if !self.write_line(line) {
            DROPPED.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let lines = dropped - self.told;
        if lines > 0 {
            let told = format!("{lines} lines of the log were dropped, since nobody took them\n");
            // A number that could not be written is written behind a later line.
            if self.write_line(told.as_bytes()) {
                self.told = dropped;
            }
        }
    }

    /// Writes a line. Returns whether the whole line was written.
    fn write_line(&mut self, line: &[u8]) -> bool {
        if self.is_torn {
            // A line break ends the torn part of the line before, so that this line stands alone.
            self.is_torn = write_to_stderr(b"\n").is_err();
        }
        let mut rest = line;
        while !rest.is_empty() {
            let Ok(written) = write_to_stderr(rest) else {
                self.is_torn = self.is_torn || rest.len() < line.len();
                return false;
            };
            rest = rest.get(written..).unwrap_or_default();
        }
        true
    }
}

/// Writes a first part of `bytes`, however long that takes. Returns the length of that part.
fn write_to_stderr(bytes: &[u8]) -> rustix::io::Result<usize> {
    let stderr = io::stderr();
    loop {
        match rustix::io::write(&stderr, bytes) {
            Err(Errno::INTR) => {}
            // Another program has made the pipe non-blocking.
            Err(Errno::AGAIN) => {
                let _ready = poll(&mut [PollFd::new(&stderr, PollFlags::OUT)], None);
            }
            written => return written,
        }
    }
}
