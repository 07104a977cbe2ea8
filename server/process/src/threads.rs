//! Threads that work until a server stops.
//!
//! Shell: threads. A thread that panics begins again, and the server is not ready for a while: no
//! thread ends in silence.

use std::{
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use tracing::error;

use crate::stop::Stop;

/// Pause before a thread begins again.
const RETRY: Duration = Duration::from_secs(1);
/// Time after a panic in which a server is not ready. A thread that panics again and again keeps
/// the server in that state.
const UNWELL: Duration = Duration::from_mins(1);

/// Threads of a server. Clones share the count of panics.
#[derive(Clone, Debug, Default)]
pub struct Threads(Arc<Panics>);

#[derive(Debug, Default)]
struct Panics {
    count: AtomicU64,
    /// Name of the thread that panicked last, and when.
    last: Mutex<Option<(String, Instant)>>,
}

impl Threads {
    /// Starts a thread, whose work ends when `stop` is requested. Work that panics begins again.
    ///
    /// # Errors
    ///
    /// Returns the reason why the system starts no thread.
    pub fn spawn(
        &self,
        name: &str,
        stop: &Stop,
        mut work: impl FnMut(&Stop) + Send + 'static,
    ) -> io::Result<JoinHandle<()>> {
        let (threads, stop, name) = (self.clone(), stop.clone(), name.to_owned());
        let thread = std::thread::Builder::new().name(name.clone());
        thread.spawn(move || {
            while catch_unwind(AssertUnwindSafe(|| work(&stop))).is_err() {
                error!(thread = name, "a thread panicked; it begins again");
                // The panic is noted before the pause, so that the server is not ready from now on.
                threads.note_panic(&name);
                // A thread that panics during the stop does not begin again.
                if stop.is_requested_within(RETRY) {
                    return;
                }
            }
        })
    }

    fn note_panic(&self, name: &str) {
        self.0.count.fetch_add(1, Ordering::Relaxed);
        *self.0.last.lock() = Some((name.into(), Instant::now()));
    }

    /// Returns the number of panics since the start.
    pub fn panics(&self) -> u64 {
        self.0.count.load(Ordering::Relaxed)
    }

    /// Returns the name of the thread that panicked last, if that was a short time ago.
    pub fn panicked(&self) -> Option<String> {
        let last = self.0.last.lock();
        let last = last.as_ref().filter(|(_, at)| at.elapsed() < UNWELL);
        last.map(|(name, _)| name.clone())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    /// Goal: a panic of a thread's work is told, and the work begins again until it ends.
    #[test]
    fn a_thread_that_panics_is_told_and_begins_again() {
        let (threads, stop) = (Threads::default(), Stop::default());
        let (begun, turns) = channel();
        let mut left = 2;
        let thread = threads.spawn("fragile", &stop, move |_| {
            begun.send(()).unwrap();
            left -= 1;
            assert_eq!(left, 0, "planted");
        });
        thread.unwrap().join().unwrap();
        assert_eq!(turns.iter().count(), 2);
        assert_eq!(threads.panics(), 1);
        assert_eq!(threads.panicked().as_deref(), Some("fragile"));
    }

    /// Goal: the control of the test above: work that ends counts as no panic, also if the server
    /// stops.
    #[test]
    fn a_thread_that_ends_is_well() {
        let (threads, stop) = (Threads::default(), Stop::default());
        stop.request();
        let thread = threads.spawn("well", &stop, |stop| assert!(stop.is_requested()));
        thread.unwrap().join().unwrap();
        assert_eq!((threads.panics(), threads.panicked()), (0, None));
        // A thread that panics during the stop does not begin again.
        let thread = threads.spawn("late", &stop, |_| panic!("planted"));
        thread.unwrap().join().unwrap();
        assert_eq!(threads.panics(), 1);
    }
}
