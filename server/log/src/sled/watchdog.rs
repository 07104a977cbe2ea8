//! A way out of a flush that sled forgets about.
//!
//! Shell: a thread beside the log. Where one of sled's own threads cannot write, sled notes the
//! error, but does not wake every waiting thread (sled 0.34, `exit_reservation`). The next flush
//! finds the error and wakes all, so another flush follows a flush that takes long.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    },
    thread::JoinHandle,
    time::Duration,
};

use tracing::warn;

/// How long a flush may take before another one follows.
const PATIENCE: Duration = Duration::from_secs(1);

/// Watches flushes, so that a flush that sled forgets about returns with an error.
#[derive(Debug)]
pub(super) struct Watchdog {
    /// Counts beginnings and ends: odd while a flush is under way.
    turns: Arc<AtomicU64>,
    thread: Option<(Sender<()>, JoinHandle<()>)>,
}

impl Watchdog {
    /// Starts the thread, which calls `flush` when a flush takes long. Where the system gives no
    /// thread, nobody watches.
    pub(super) fn new(flush: impl Fn() + Clone + Send + 'static) -> Self {
        Self::with_patience(PATIENCE, flush)
    }

    fn with_patience(patience: Duration, flush: impl Fn() + Clone + Send + 'static) -> Self {
        let turns = Arc::new(AtomicU64::new(0));
        let (end, ended) = channel();
        let watched = Arc::clone(&turns);
        let thread = std::thread::Builder::new()
            .name("watchdog".into())
            .spawn(move || watch_flushes(patience, &flush, &watched, &ended));
        if let Err(error) = &thread {
            warn!(%error, "no thread can be started to watch over a flush");
        }
        Self {
            turns,
            thread: thread.ok().map(|thread| (end, thread)),
        }
    }

    /// Runs a flush that the thread watches, and returns its result.
    pub(super) fn during<T>(&self, flush: impl FnOnce() -> T) -> T {
        self.turns.fetch_add(1, Ordering::AcqRel);
        let flushed = flush();
        self.turns.fetch_add(1, Ordering::AcqRel);
        flushed
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        // The database can only be closed once the thread has dropped its handle.
        if let Some((end, thread)) = self.thread.take() {
            drop(end);
            drop(thread.join());
        }
    }
}

fn watch_flushes(
    patience: Duration,
    flush: &(impl Fn() + Clone + Send + 'static),
    turns: &AtomicU64,
    ended: &Receiver<()>,
) {
    let (mut before, mut seconds) = (0, 0_u64);
    while ended.recv_timeout(patience) == Err(RecvTimeoutError::Timeout) {
        let now = turns.load(Ordering::Acquire);
        // The same odd turn as a second ago means the same flush.
        let stuck = now == before && !now.is_multiple_of(2);
        seconds = if stuck { seconds + 1 } else { 0 };
        // The extra flush may have to wait, too; a later one then wakes both. Extra flushes become
        // ever rarer, because a disk may just be slow.
        if seconds.is_power_of_two() {
            warn!(seconds, "a flush takes long");
            if let Err(error) = std::thread::Builder::new().spawn(flush.clone()) {
                warn!(%error, "it cannot be followed by another one");
            }
        }
        before = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_millis(20);

    /// Goal: a flush that waits for somebody to flush comes to its end.
    #[test]
    fn a_flush_that_is_forgotten_is_followed_by_another() {
        let (send, woken) = channel();
        let watchdog = Watchdog::with_patience(SHORT, move || send.send(()).unwrap());
        watchdog
            .during(|| woken.recv_timeout(PATIENCE * 20))
            .unwrap();
    }

    /// Goal: time without a flush is not taken for a long flush.
    #[test]
    fn a_flush_that_is_over_is_left_alone() {
        let (send, woken) = channel();
        let watchdog = Watchdog::with_patience(SHORT, move || send.send(()).unwrap());
        watchdog.during(|| ());
        std::thread::park_timeout(SHORT * 10);
        drop(watchdog);
        assert!(woken.try_recv().is_err());
    }
}
