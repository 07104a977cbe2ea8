//! Timer for the heads of requests.
//!
//! Shell: a clock. hyper sets a timer for each head and takes it back once the head has come. A timer of the runtime would
//! be put into its wheel and taken out again each time; this one only notes the time, and a task of the connection
//! looks at the note when it may be over.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::{Duration, Instant},
};

use hyper::rt::{Sleep, Timer};

/// Latest time for the head of a connection's next request.
#[derive(Clone, Debug)]
pub(super) struct HeadTimer(Arc<Note>);

#[derive(Debug)]
struct Note {
    began: Instant,
    /// Microseconds from the beginning to the latest time; [`NONE`] while no head is waited for.
    due: AtomicU64,
    /// Whether that time is over.
    is_over: AtomicBool,
}

/// Returns the time on the clock of the runtime, which tests may stop.
fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

/// Value of `due` while no head is waited for.
const NONE: u64 = u64::MAX;

impl HeadTimer {
    /// Returns the timer of a new connection.
    pub(super) fn new() -> Self {
        Self(Arc::new(Note {
            began: now(),
            due: AtomicU64::new(NONE),
            is_over: AtomicBool::new(false),
        }))
    }

    /// Waits until a head is late. From then on, hyper's own wait for it is over: it has to be polled again. Looks every
    /// `idle` whether one is waited for, which is the time that hyper gives it.
    pub(super) async fn head_is_late(&self, idle: Duration) {
        let Note {
            began,
            due,
            is_over,
        } = &*self.0;
        loop {
            let now = now();
            let latest = match due.load(Ordering::Relaxed) {
                NONE => now + idle,
                micros => *began + Duration::from_micros(micros),
            };
            if latest <= now {
                is_over.store(true, Ordering::Relaxed);
                // Once: hyper may keep its wait, as while it refuses a head.
                due.store(NONE, Ordering::Relaxed);
                return;
            }
            tokio::time::sleep_until(latest.into()).await;
        }
    }
}

impl Timer for HeadTimer {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Sleep>> {
        self.sleep_until(self.now() + duration)
    }

    fn now(&self) -> Instant {
        now()
    }

    fn sleep_until(&self, deadline: Instant) -> Pin<Box<dyn Sleep>> {
        self.0.wait_until(deadline);
        Box::pin(Waiting(Arc::clone(&self.0)))
    }

    fn reset(&self, _: &mut Pin<Box<dyn Sleep>>, deadline: Instant) {
        // Another wait would take its note back when the one before is dropped.
        self.0.wait_until(deadline);
    }
}

impl Note {
    fn wait_until(&self, deadline: Instant) {
        let micros = deadline.saturating_duration_since(self.began).as_micros();
        self.is_over.store(false, Ordering::Relaxed);
        let due = u64::try_from(micros).unwrap_or(NONE);
        self.due.store(due, Ordering::Relaxed);
    }
}

/// hyper's wait for a head: over once the connection's task has found it late.
struct Waiting(Arc<Note>);

impl Future for Waiting {
    type Output = ();

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        // No waker is kept, since the task that finds a head late polls hyper itself.
        if self.0.is_over.load(Ordering::Relaxed) {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }
}

impl Sleep for Waiting {}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.due.store(NONE, Ordering::Relaxed);
    }
}
