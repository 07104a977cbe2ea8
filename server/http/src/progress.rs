//! Progress of a connection: the answer that is owed, and the head that is to come.
//!
//! Shell: a clock. hyper's own timeout for heads takes an allocation and a timer for each request.
//! Here, each answer only leaves a note of the time. Another future of the connection reads the
//! note when the time for a head may be over.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::{Body, Frame};
use tokio::time::{Instant, sleep_until};

/// Progress of a connection. All clones share the notes.
///
/// Only the task of the connection changes the notes, except for `gives_way`. Other tasks read the
/// notes to find an idle connection, and the task of that connection checks again before the
/// connection gives way. So relaxed atomic operations are enough.
#[derive(Clone, Debug)]
pub(super) struct ConnectionProgress(Arc<ProgressNote>);

#[derive(Debug)]
struct ProgressNote {
    /// One of the four states below.
    answer: AtomicU8,
    began: Instant,
    /// Microseconds from the beginning of the connection to the beginning of the wait for a head;
    /// [`NEVER`] while there is no such wait.
    head_since: AtomicU64,
    /// Whether bytes of the awaited head have come.
    has_bytes: AtomicBool,
    /// Whether the connection is to give way to a new one: one of the three values below.
    gives_way: AtomicU8,
}

/// No answer is owed, or the answer is a stream, which need not go on once the peer is gone.
const NOTHING: u8 = 0;
/// A request has come. The request is incomplete or asks for a wait, or the handler has not begun.
const PERHAPS: u8 = 1;
/// A request is complete, and the answer is being made.
const ANSWER: u8 = 2;
/// An answer is complete, and is being written.
const WRITING: u8 = 3;

/// The connection is not asked to give way.
const STAYS: u8 = 0;
/// The connection gives way unless bytes come.
const IS_SILENT: u8 = 1;
/// The connection gives way unless the head of a request comes.
const IS_SLOW: u8 = 2;

/// Value of `head_since` while the connection waits for no head.
const NEVER: u64 = u64::MAX;

impl ConnectionProgress {
    /// Returns the progress of a new connection, which waits for a head.
    pub(super) fn new() -> Self {
        Self(Arc::new(ProgressNote {
            answer: AtomicU8::new(NOTHING),
            began: Instant::now(),
            head_since: AtomicU64::new(0),
            has_bytes: AtomicBool::new(false),
            gives_way: AtomicU8::new(STAYS),
        }))
    }

    /// Notes that the head of a request has come.
    pub(super) fn begin(&self) {
        self.0.head_since.store(NEVER, Ordering::Relaxed);
        self.0.has_bytes.store(false, Ordering::Relaxed);
        self.set_state(PERHAPS);
    }

    /// Notes that bytes have come, if the connection waits for a head.
    pub(super) fn received(&self) {
        if self.0.head_since.load(Ordering::Relaxed) != NEVER {
            self.0.has_bytes.store(true, Ordering::Relaxed);
        }
    }

    /// Notes that the request is complete and asks for no wait.
    pub(super) fn owe(&self) {
        self.set_state(ANSWER);
    }

    /// Notes that the answer is a stream. Returns the stream as a body that also notes the end of
    /// the stream.
    pub(super) fn stream(
        &self,
        body: UnsyncBoxBody<Bytes, io::Error>,
    ) -> UnsyncBoxBody<Bytes, io::Error> {
        self.set_state(NOTHING);
        let progress = self.clone();
        UnsyncBoxBody::new(NotedStream { body, progress })
    }

    /// Notes that the answer is complete.
    pub(super) fn write(&self) {
        self.set_state(WRITING);
    }

    /// Notes that everything buffered is written. After a complete answer, the connection waits for
    /// a head. Returns whether nothing is owed now.
    pub(super) fn written(&self) -> bool {
        // hyper also flushes in the middle of a stream, when no head is expected yet.
        let is_whole = self.get_state() == WRITING;
        if is_whole {
            self.set_state(NOTHING);
            // Unlike an `Instant`, a time relative to the beginning fits into an atomic number.
            let micros = self.0.began.elapsed().as_micros();
            let since = u64::try_from(micros).unwrap_or(NEVER);
            self.0.head_since.store(since, Ordering::Relaxed);
        }
        is_whole || self.get_state() == NOTHING
    }

    /// Notes that the connection ends, and waits for no more heads.
    pub(super) fn end(&self) {
        self.0.head_since.store(NEVER, Ordering::Relaxed);
    }

    /// Returns whether a request has come that may turn out to be complete.
    pub(super) fn may_owe(&self) -> bool {
        self.get_state() == PERHAPS
    }

    /// Returns whether an answer is being made or written.
    pub(super) fn owes(&self) -> bool {
        self.get_state() >= ANSWER
    }

    /// Returns the rank of an idle connection among those that may give way: whether bytes of a
    /// head have come, and the beginning of the wait for that head. The connection of the least
    /// rank gives way first. `None` if the connection waits for no head, or was already asked to
    /// give way.
    pub(super) fn idle_since(&self) -> Option<(bool, Instant)> {
        let since = self.0.head_since.load(Ordering::Relaxed);
        let is_idle = since != NEVER && self.0.gives_way.load(Ordering::Relaxed) == STAYS;
        let has_bytes = self.0.has_bytes.load(Ordering::Relaxed);
        is_idle.then(|| (has_bytes, self.0.began + Duration::from_micros(since)))
    }

    /// Asks the connection to give way to a new one.
    pub(super) fn give_way(&self) {
        let has_bytes = self.0.has_bytes.load(Ordering::Relaxed);
        // A head that comes slowly is no reason to stay: with one byte a second, a peer could keep
        // a connection.
        let state = if has_bytes { IS_SLOW } else { IS_SILENT };
        self.0.gives_way.store(state, Ordering::Relaxed);
    }

    /// Returns whether the connection was asked to give way, and has received the missing bytes or
    /// head meanwhile. Such a connection stays, and can be asked again later.
    pub(super) fn is_wanted_again(&self) -> bool {
        let has_head = self.0.head_since.load(Ordering::Relaxed) == NEVER;
        let has_bytes = self.0.has_bytes.load(Ordering::Relaxed);
        match self.0.gives_way.load(Ordering::Relaxed) {
            IS_SILENT if has_head || has_bytes => {}
            IS_SLOW if has_head => {}
            _ => return false,
        }
        self.0.gives_way.store(STAYS, Ordering::Relaxed);
        true
    }

    /// Waits until a head is late: until the connection has waited for the head as long as `idle`.
    /// While no head is awaited, checks again after each `idle`.
    pub(super) async fn head_is_late(&self, idle: Duration) {
        let ProgressNote {
            began, head_since, ..
        } = &*self.0;
        loop {
            let now = Instant::now();
            let latest = match head_since.load(Ordering::Relaxed) {
                NEVER => now + idle,
                since => *began + Duration::from_micros(since) + idle,
            };
            // A request during the sleep sets the time anew, so the end of a sleep alone does not
            // prove that a head is late.
            if latest <= now {
                return;
            }
            sleep_until(latest).await;
        }
    }

    fn set_state(&self, state: u8) {
        self.0.answer.store(state, Ordering::Relaxed);
    }

    fn get_state(&self) -> u8 {
        self.0.answer.load(Ordering::Relaxed)
    }
}

/// Body of a stream. When dropped, the body notes the end of the stream. The body tells no length:
/// with a length, hyper would take the last byte for the end of the body.
struct NotedStream {
    body: UnsyncBoxBody<Bytes, io::Error>,
    progress: ConnectionProgress,
}

impl Body for NotedStream {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }
}

impl Drop for NotedStream {
    fn drop(&mut self) {
        // hyper drops a body before writing the last bytes, so an answer is still to be written.
        self.progress.write();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a connection on which a head has begun to come gives way after all silent ones. A
    /// connection that was asked to give way while silent stays if bytes come.
    #[test]
    fn a_head_that_has_begun_gives_way_last() {
        let (begun, silent) = (ConnectionProgress::new(), ConnectionProgress::new());
        begun.received();
        assert!(silent.idle_since().unwrap() < begun.idle_since().unwrap());
        silent.give_way();
        assert_eq!(silent.idle_since(), None, "it is asked once");
        assert!(!silent.is_wanted_again());
        silent.received();
        assert!(silent.is_wanted_again());
        begun.give_way();
        begun.received();
        assert!(!begun.is_wanted_again(), "one byte a second keeps no place");
        begun.begin();
        assert!(begun.is_wanted_again());
        assert_eq!(begun.idle_since(), None);
        // Bytes of a body do not count as bytes of a head.
        begun.received();
        begun.write();
        assert!(begun.written());
        assert!(!begun.idle_since().unwrap().0);
    }
}
