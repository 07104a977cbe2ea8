//! Announcements of commits, by the log that holds them.
//!
//! Shell: locks. Threads and tasks wait here for commits: each begins at any number, and gets the
//! commits in order. Caches of feeds are invalidated here, in the same step that shows the commit
//! to readers.

use std::{collections::VecDeque, fmt};

use parking_lot::{Condvar, Mutex, MutexGuard, RwLock};
use simplefeed_core::{
    commit::{Commit, Outline},
    feed::CommitNumber,
};
use tokio::sync::watch;

/// Maximum number of outlines that are kept in memory for followers that are nearly up to date:
/// more commits than one publisher makes in the longest pause of a view.
const RECENT_OUTLINES_MAX: usize = 4_096;
/// Maximum number of changes in all outlines that are kept in memory. A read of outlines ends once
/// the outlines read have so many changes.
pub(super) const OUTLINE_CHANGES_MAX: usize = 65_536;

/// Function that is called with each commit.
type CommitListener = Box<dyn Fn(&Commit) + Send + Sync>;

/// Announcements of one log's commits.
pub struct Announcements {
    /// Called while the log shows a commit to readers, in the thread that appends.
    invalidators: RwLock<Vec<CommitListener>>,
    /// Called after the invalidators, once readers see the commit, in the same thread.
    listeners: RwLock<Vec<CommitListener>>,
    recent: Mutex<RecentOutlines>,
    grown: Condvar,
    /// `None` once the announcements have ended.
    newest: RwLock<Option<watch::Sender<CommitNumber>>>,
}

#[derive(Debug, Default)]
struct RecentOutlines {
    outlines: VecDeque<Outline>,
    /// Number of changes in all of these outlines.
    changes: usize,
    /// Number of wake-ups so far.
    wakes: u64,
    /// Newest commit for which all listeners have returned: no cache of a listener hides that
    /// commit.
    newest: CommitNumber,
    /// Whether no more commits come.
    has_ended: bool,
}

/// Why a thread waits no longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitEnd {
    /// Readers see the commit.
    Commit,
    /// There is new work for a thread. The number counts the wake-ups so far.
    Woken(u64),
    /// The announcements have ended.
    End,
}

impl Default for Announcements {
    fn default() -> Self {
        Self::behind(CommitNumber(0))
    }
}

impl fmt::Debug for Announcements {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Announcements").finish_non_exhaustive()
    }
}

impl Announcements {
    /// Returns the announcements of a log that has commits up to `newest`.
    pub fn behind(newest: CommitNumber) -> Self {
        Self {
            invalidators: RwLock::default(),
            listeners: RwLock::default(),
            recent: Mutex::new(RecentOutlines {
                newest,
                ..RecentOutlines::default()
            }),
            grown: Condvar::new(),
            newest: RwLock::new(Some(watch::Sender::new(newest))),
        }
    }

    /// Calls `listener` with every commit from now on, as soon as readers see it and before
    /// [`Append::append`](crate::Append::append) returns. A listener is quick and never appends.
    pub fn listen(&self, listener: impl Fn(&Commit) + Send + Sync + 'static) {
        let mut listeners = self.listeners.write();
        listeners.push(Box::new(listener));
    }

    /// Calls `invalidator` with every commit from now on, in one step with the appearance of the
    /// commit. A reader of the log sees the commit together with the invalidation, or neither. So a
    /// cache can tell that a value was made of an older state, even if the cache gets the value
    /// after the commit. An invalidator is quick and never reads the log, which is locked.
    pub fn invalidate_with(&self, invalidator: impl Fn(&Commit) + Send + Sync + 'static) {
        self.invalidators.write().push(Box::new(invalidator));
    }

    /// Invalidates all that was made of states before a commit. The log calls this under the lock
    /// under which readers get to see the commit.
    pub fn invalidate(&self, commit: &Commit) {
        for invalidator in &*self.invalidators.read() {
            invalidator(commit);
        }
    }

    /// Announces a commit that readers see from now on. The log calls this in the order of the
    /// commits.
    pub fn announce(&self, commit: &Commit) {
        let listeners = self.listeners.read();
        for listener in &*listeners {
            listener(commit);
        }
        drop(listeners);
        // Behind the listeners: a thread that is woken must find no stale cache.
        let outline = Outline::of(commit);
        let mut recent = self.lock_recent();
        recent.changes += outline.weight();
        recent.outlines.push_back(outline);
        recent.newest = commit.number;
        while (recent.outlines.len() > RECENT_OUTLINES_MAX || recent.changes > OUTLINE_CHANGES_MAX)
            && let Some(oldest) = recent.outlines.pop_front()
        {
            recent.changes -= oldest.weight();
        }
        drop(recent);
        self.grown.notify_all();
        if let Some(newest) = &*self.newest.read() {
            newest.send_replace(commit.number);
        }
    }

    /// Ends the announcements: threads and tasks that have seen every commit wait no longer.
    pub fn end(&self) {
        self.lock_recent().has_ended = true;
        self.grown.notify_all();
        // Receivers close once their sender is dropped.
        drop(self.newest.write().take());
    }

    /// Returns the number of the newest commit that readers see, for tasks. The receiver closes
    /// with the announcements.
    pub fn newest(&self) -> watch::Receiver<CommitNumber> {
        let newest = self.newest.read();
        // After the end, the receiver must be closed: its sender is dropped at once.
        newest.as_ref().map_or_else(
            || watch::Sender::new(CommitNumber(0)).subscribe(),
            watch::Sender::subscribe,
        )
    }

    /// Waits until commit `number` is announced, more than `wakes` wake-ups have happened, or the
    /// announcements end.
    pub fn comes(&self, number: CommitNumber, wakes: u64) -> WaitEnd {
        let mut recent = self.lock_recent();
        self.grown.wait_while(&mut recent, |recent| {
            number > recent.newest && recent.wakes == wakes && !recent.has_ended
        });
        // A commit counts before a wake-up and before the end: threads see every commit.
        if number <= recent.newest {
            WaitEnd::Commit
        } else if recent.wakes > wakes {
            WaitEnd::Woken(recent.wakes)
        } else {
            WaitEnd::End
        }
    }

    /// Wakes the threads that wait for a commit, because a reader has new work for one of them.
    pub fn wake(&self) {
        self.lock_recent().wakes += 1;
        self.grown.notify_all();
    }

    /// Returns the outlines of at most `max` commits from number `from` on; `None` if the memory
    /// does not reach back to `from`, or lacks `from` because nobody has announced that commit.
    pub fn recent(&self, from: CommitNumber, max: usize) -> Option<Vec<Outline>> {
        let recent = self.lock_recent();
        let oldest = recent.outlines.front()?.number.0;
        let skipped = usize::try_from(from.0.checked_sub(oldest)?).ok()?;
        // Readers see a commit shortly before its announcement, so memory may lack the newest
        // outlines.
        if skipped >= recent.outlines.len() {
            return None;
        }
        let found = recent.outlines.iter().skip(skipped).take(max);
        Some(found.cloned().collect())
    }

    fn lock_recent(&self) -> MutexGuard<'_, RecentOutlines> {
        self.recent.lock()
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, thread, time::Duration};

    use bytes::Bytes;
    use simplefeed_core::{
        commit::Change,
        digest::Digest,
        feed::{EntryId, Epoch, FeedKey, Position},
        timestamp::Timestamp,
    };
    use uuid::Uuid;

    use super::*;
    use crate::{Append as _, Commits as _, memory::MemoryLog};

    /// Goal: a follower that is far behind costs no memory.
    #[test]
    fn few_changes_are_kept_for_followers() {
        let announcements = Announcements::default();
        let entry = |feed| Change::Entry {
            feed: FeedKey(Uuid::from_u128(feed)),
            at: Position(0),
            id: EntryId::parse("urn:e").unwrap(),
            sent: Digest::of(b""),
            digest: Digest::of(b""),
            fragment: Bytes::from_static(b"<entry/>"),
        };
        for number in 1..=20 {
            announcements.announce(&Commit {
                number: CommitNumber(number),
                instant: Timestamp::default(),
                changes: (0..10_000).map(entry).collect(),
            });
        }
        let kept = (1..=20).filter(|number| {
            let found = announcements.recent(CommitNumber(*number), 1);
            found.is_some()
        });
        assert_eq!(kept.collect::<Vec<_>>(), [15, 16, 17, 18, 19, 20]);
    }

    fn append(log: &MemoryLog, number: u64) {
        let commit = Commit {
            number: CommitNumber(number),
            instant: Timestamp::from_micros(i64::try_from(number).unwrap()),
            changes: vec![Change::Epoch {
                epoch: Epoch(u32::try_from(number).unwrap()),
            }],
        };
        log.append(&commit).unwrap();
    }

    /// Goal: whoever follows a log that somebody else writes sees each commit, in order, in a
    /// thread and in a task. A listener has heard of each commit before the append returns.
    #[tokio::test(flavor = "multi_thread")]
    async fn every_commit_is_announced_to_threads_and_tasks() {
        const COMMITS: u64 = 200;
        let log = Arc::new(MemoryLog::default());
        // This commit comes before anybody listens or waits.
        append(&log, 1);
        let heard = Arc::new(Mutex::new(vec![]));
        let hears = Arc::clone(&heard);
        log.announcements()
            .listen(move |commit| hears.lock().push(commit.number.0));
        let threads = [1, 1, 50].map(|from| {
            let log = Arc::clone(&log);
            thread::spawn(move || {
                let mut seen = vec![];
                let mut next = CommitNumber(from);
                while log.announcements().comes(next, 0) == WaitEnd::Commit {
                    let outlines = log.recent_outlines(next, 7).unwrap();
                    for outline in outlines {
                        seen.push(outline.number.0);
                        next = outline.number.next();
                    }
                }
                (from, seen)
            })
        });
        let mut newest = log.announcements().newest();
        // Nobody waits for a commit that is there.
        assert_eq!(*newest.borrow(), CommitNumber(1));
        let task = tokio::spawn(async move {
            let last = newest.wait_for(|number| number.0 >= COMMITS).await;
            last.unwrap().0
        });
        let writer = Arc::clone(&log);
        let written = thread::spawn(move || {
            for number in 2..=COMMITS {
                append(&writer, number);
                assert_eq!(heard.lock().last(), Some(&number));
                if number % 20 == 0 {
                    thread::park_timeout(Duration::from_millis(1));
                }
            }
            writer.announcements().end();
        });
        assert_eq!(task.await.unwrap(), COMMITS);
        let mut ended = log.announcements().newest();
        assert!(ended.wait_for(|number| number.0 > COMMITS).await.is_err());
        written.join().unwrap();
        for thread in threads {
            let (from, seen) = thread.join().unwrap();
            assert!(seen.iter().copied().eq(from..=COMMITS), "{from}: {seen:?}");
        }
    }
}
