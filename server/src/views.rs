//! Views: everything a reader sees, computed from commits.
//!
//! Pure: the trait, and the queue between the writer and the views that work behind its back. A view
//! reads commits (and what the log can look up) and nothing else: no clock, no configuration. So its
//! files can be deleted and made again, the same.

use std::{
    collections::VecDeque,
    sync::{Arc, Condvar, Mutex, PoisonError},
};

use simplefeed_core::{commit::Commit, feed::CommitNumber};

use crate::log::{EntryLog, LogError};

pub mod documents;
pub mod manifest;
pub mod frozen;
pub mod frozen_files;
pub mod sidecar;
pub mod archive_files;
mod in_flight;
pub mod open_feeds;
pub mod index;
pub mod watch;
pub mod sup;
pub mod sup_files;

/// A deterministic function of commits.
pub trait View {
    /// The name of its folder.
    const NAME: &'static str;
    /// What a shell has to do for it. Doing it twice is as good as once.
    type Effect;

    /// Takes the next commit into account.
    ///
    /// # Errors
    ///
    /// Returns what cannot be read from the log.
    fn apply(&mut self, commit: &Commit, log: &dyn EntryLog)
    -> Result<Vec<Self::Effect>, LogError>;
}

/// Commits kept for followers that are nearly up to date: so many of them, and so many bytes.
const RECENT_COMMITS_MAX: usize = 1_024;
const RECENT_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Hands new commits to views on other threads, which read older ones from the log.
#[derive(Debug, Default)]
pub struct CommitQueue {
    state: Mutex<QueueState>,
    grown: Condvar,
    /// Apart, so that who waits for the end is not woken by every commit.
    ended: Condvar,
}

#[derive(Debug, Default)]
struct QueueState {
    recent: VecDeque<Arc<Commit>>,
    /// The bytes of their entries.
    bytes: usize,
    closed: bool,
}

impl CommitQueue {
    /// Adds the commit that readers may see from now on.
    pub fn push(&self, commit: Arc<Commit>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.bytes += commit.bytes();
        state.recent.push_back(commit);
        while (state.recent.len() > RECENT_COMMITS_MAX || state.bytes > RECENT_BYTES_MAX)
            && let Some(oldest) = state.recent.pop_front()
        {
            state.bytes -= oldest.bytes();
        }
        self.grown.notify_all();
    }

    /// Lets followers end once they have seen everything.
    pub fn close(&self) {
        self.state
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .closed = true;
        self.grown.notify_all();
        self.ended.notify_all();
    }

    /// Returns whether the queue was closed.
    pub fn is_closed(&self) -> bool {
        self.state
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .closed
    }

    /// Waits, and returns whether the queue was closed meanwhile, in which case the wait is over.
    pub fn is_closed_within(&self, time: std::time::Duration) -> bool {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self
            .ended
            .wait_timeout_while(state, time, |state| !state.closed);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.closed
    }

    /// Returns commit `number`, waiting for it; `None` if the queue was closed before it came.
    ///
    /// # Errors
    ///
    /// Returns what cannot be read from the log.
    pub fn wait_for(
        &self,
        number: CommitNumber,
        log: &dyn EntryLog,
    ) -> Result<Option<Arc<Commit>>, LogError> {
        if self.comes(number, log) {
            self.ready(number, log)
        } else {
            Ok(None)
        }
    }

    /// Waits until readers see commit `number`. Returns whether they do; if not, the queue was closed.
    pub fn comes(&self, number: CommitNumber, log: &dyn EntryLog) -> bool {
        loop {
            if number <= log.head().number {
                return true;
            }
            let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            // Looked at again under the lock, so that a commit pushed meanwhile is not slept over.
            if number <= log.head().number {
                return true;
            }
            if state.closed {
                return false;
            }
            let patience = std::time::Duration::from_millis(200);
            drop(self.grown.wait_timeout(state, patience));
        }
    }

    fn ready(
        &self,
        number: CommitNumber,
        log: &dyn EntryLog,
    ) -> Result<Option<Arc<Commit>>, LogError> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let found = state
            .recent
            .iter()
            .find(|commit| commit.number == number)
            .cloned();
        drop(state);
        match found {
            Some(commit) => Ok(Some(commit)),
            None => Ok(log.commits(number, 1)?.pop().map(Arc::new)),
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use simplefeed_core::{
        commit::Change,
        digest::Digest,
        feed::{EntryId, FeedKey, Position},
        instant::Instant,
    };
    use uuid::Uuid;

    use super::*;
    use crate::log::memory::MemoryLog;

    /// Goal: a follower that is far behind costs no memory.
    #[test]
    fn few_bytes_are_kept_for_followers() {
        let queue = CommitQueue::default();
        let entry = Change::Entry {
            feed: FeedKey(Uuid::nil()),
            at: Position(0),
            id: EntryId::parse("urn:e").unwrap(),
            sent: Digest::of(b""),
            digest: Digest::of(b""),
            fragment: Bytes::from(vec![b' '; RECENT_BYTES_MAX / 4 - 1_000]),
        };
        for number in 1..=20 {
            queue.push(Arc::new(Commit {
                number: CommitNumber(number),
                instant: Instant::default(),
                changes: vec![entry.clone()],
            }));
        }
        let log = MemoryLog::default();
        let kept = (1..=20).filter(|number| {
            let ready = queue.ready(CommitNumber(*number), &log).unwrap();
            ready.is_some()
        });
        assert_eq!(kept.collect::<Vec<_>>(), [17, 18, 19, 20]);
    }
}
