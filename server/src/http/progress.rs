//! Progress of a connection: the answer that it owes its peer, and the head that it waits for.
//!
//! Shell: a clock. hyper's own timeout for heads takes an allocation and a timer for each request. Here each answer only
//! notes the time, and a future beside hyper's looks at the note when the time for a head may be over.

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

/// Progress of a connection. Copies share it. All but one are used by the task of the connection alone, and that one, among
/// the open connections, looks for an idle one, which the task looks at again: so no order of memory matters.
#[derive(Clone, Debug)]
pub(super) struct Progress(Arc<Note>);

#[derive(Debug)]
struct Note {
    /// One of the four states below.
    answer: AtomicU8,
    began: Instant,
    /// Microseconds from the beginning to the time since when a head is waited for; [`NEVER`] while none is.
    head_since: AtomicU64,
    /// Whether the connection is to give way to a new one.
    gives_way: AtomicBool,
}

/// Nothing is owed, or a stream, which ends with the peer.
const NOTHING: u8 = 0;
/// A request has come. It is incomplete, asks for a wait, or its handler has not begun.
const PERHAPS: u8 = 1;
/// A request is complete, and its answer is being made.
const ANSWER: u8 = 2;
/// An answer is complete, and is being written.
const WRITING: u8 = 3;

/// Value of `head_since` while no head is waited for.
const NEVER: u64 = u64::MAX;

impl Progress {
    /// Returns the progress of a new connection, which waits for a head.
    pub(super) fn new() -> Self {
        Self(Arc::new(Note {
            answer: AtomicU8::new(NOTHING),
            began: Instant::now(),
            head_since: AtomicU64::new(0),
            gives_way: AtomicBool::new(false),
        }))
    }

    /// Notes that the head of a request has come.
    pub(super) fn begin(&self) {
        self.0.head_since.store(NEVER, Ordering::Relaxed);
        self.set(PERHAPS);
    }

    /// Notes that the request is complete and asks for no wait.
    pub(super) fn owe(&self) {
        self.set(ANSWER);
    }

    /// Notes that the answer is a stream. Returns its body, whose end is noted, too.
    pub(super) fn stream(
        &self,
        body: UnsyncBoxBody<Bytes, io::Error>,
    ) -> UnsyncBoxBody<Bytes, io::Error> {
        self.set(NOTHING);
        let progress = self.clone();
        UnsyncBoxBody::new(Streamed { body, progress })
    }

    /// Notes that the answer is complete.
    pub(super) fn write(&self) {
        self.set(WRITING);
    }

    /// Notes that everything buffered is written: behind a complete answer, a head is waited for. Returns whether nothing
    /// is owed now.
    pub(super) fn written(&self) -> bool {
        let is_whole = self.get() == WRITING;
        if is_whole {
            self.set(NOTHING);
            let micros = self.0.began.elapsed().as_micros();
            let since = u64::try_from(micros).unwrap_or(NEVER);
            self.0.head_since.store(since, Ordering::Relaxed);
        }
        is_whole || self.get() == NOTHING
    }

    /// Notes that the connection ends, and waits for no more heads.
    pub(super) fn end(&self) {
        self.0.head_since.store(NEVER, Ordering::Relaxed);
    }

    /// Returns whether a request has come that may turn out to be complete.
    pub(super) fn may_owe(&self) -> bool {
        self.get() == PERHAPS
    }

    /// Returns whether an answer is being made or written.
    pub(super) fn owes(&self) -> bool {
        self.get() >= ANSWER
    }

    /// Returns since when a head is waited for, if one is and the connection is not asked to give way already.
    pub(super) fn idle_since(&self) -> Option<Instant> {
        let since = self.0.head_since.load(Ordering::Relaxed);
        let is_idle = since != NEVER && !self.0.gives_way.load(Ordering::Relaxed);
        is_idle.then(|| self.0.began + Duration::from_micros(since))
    }

    /// Asks the connection to give way to a new one.
    pub(super) fn give_way(&self) {
        self.0.gives_way.store(true, Ordering::Relaxed);
    }

    /// Returns whether the connection was asked to give way, and a head has come since. It need not any more then.
    pub(super) fn is_wanted_again(&self) -> bool {
        self.0.head_since.load(Ordering::Relaxed) == NEVER
            && self.0.gives_way.swap(false, Ordering::Relaxed)
    }

    /// Waits until a head has been waited for longer than `idle`. Looks every `idle` whether one is waited for.
    pub(super) async fn head_is_late(&self, idle: Duration) {
        let Note {
            began, head_since, ..
        } = &*self.0;
        loop {
            let now = Instant::now();
            let latest = match head_since.load(Ordering::Relaxed) {
                NEVER => now + idle,
                since => *began + Duration::from_micros(since) + idle,
            };
            if latest <= now {
                return;
            }
            sleep_until(latest).await;
        }
    }

    fn set(&self, state: u8) {
        self.0.answer.store(state, Ordering::Relaxed);
    }

    fn get(&self) -> u8 {
        self.0.answer.load(Ordering::Relaxed)
    }
}

/// Body of a stream. Its end is noted when it is dropped. It tells no length, since hyper would take the end of the last
/// byte for the end of the body.
struct Streamed {
    body: UnsyncBoxBody<Bytes, io::Error>,
    progress: Progress,
}

impl Body for Streamed {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }
}

impl Drop for Streamed {
    fn drop(&mut self) {
        // hyper drops a body before it writes the last bytes.
        self.progress.write();
    }
}
