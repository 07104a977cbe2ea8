//! Open connections of a listener. An idle connection gives way to a new one.
//!
//! Shell: a lock, taken for a moment when a connection begins or ends, and when a new connection
//! needs the room of an old one.

use std::{
    collections::HashMap,
    sync::{Arc, atomic::AtomicU64},
};

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::progress::ConnectionProgress;

/// Open connections of a listener, each with its progress and the signal to end.
#[derive(Debug, Default)]
pub struct OpenConnections {
    all: Mutex<HashMap<u64, (ConnectionProgress, Arc<Notify>)>>,
    next: AtomicU64,
}

impl OpenConnections {
    /// Adds a connection, which stays here until the returned guard is dropped.
    pub(super) fn enter(
        self: &Arc<Self>,
        progress: ConnectionProgress,
        cut: Arc<Notify>,
    ) -> OpenPlace {
        let number = self.next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        self.all.lock().insert(number, (progress, cut));
        OpenPlace {
            number,
            open: Arc::clone(self),
        }
    }

    /// Waits until `count` connections are idle. The wait is needed because a client may receive an
    /// answer before the server notes that the answer is written.
    #[cfg(test)]
    pub(super) async fn until_idle(&self, count: usize) {
        let is_idle = |(progress, _): &&(ConnectionProgress, _)| progress.idle_since().is_some();
        while self.all.lock().values().filter(is_idle).count() < count {
            tokio::task::yield_now().await;
        }
    }

    /// Asks an idle connection to end: the connection that has been silent for longest or, if none
    /// is silent, the connection that has waited longest for the rest of a head. Returns whether
    /// there is an idle connection.
    pub(super) fn end_idlest(&self) -> bool {
        let all = self.all.lock();
        let idle = all
            .values()
            .filter_map(|(progress, cut)| Some((progress.idle_since()?, progress, cut)));
        let Some((_, progress, cut)) = idle.min_by_key(|(rank, ..)| *rank) else {
            return false;
        };
        // First the note, then the signal: a woken connection looks at the note.
        progress.give_way();
        cut.notify_one();
        true
    }
}

/// Guard of a connection among the open ones.
#[derive(Debug)]
pub(super) struct OpenPlace {
    number: u64,
    open: Arc<OpenConnections>,
}

impl Drop for OpenPlace {
    fn drop(&mut self) {
        self.open.all.lock().remove(&self.number);
    }
}
