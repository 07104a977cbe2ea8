//! The single writer: every publish passes here, one after the other.
//!
//! Shell: a thread, a queue and a lock. [`simplefeed_core::plan`] decides the changes of each
//! request; this file decides which requests share a commit. While one commit waits for the disk,
//! the next requests queue up. All waiting requests then become one commit and pass the barrier
//! once (group commit). The thread serves the queue. The thread of a connection serves a lone
//! request itself, if all other connections of that thread are idle and the disk is quick: two
//! changes of threads would take longer than the sync.
//!
//! Some answers depend on changes that have not passed the barrier yet: a duplicate of an entry of
//! the same group, a conflict with such an entry, a failed precondition. These answers leave after
//! the barrier, too. If the barrier fails, they become "unavailable". So a power cut cannot make an
//! answer untrue.

use std::{
    collections::HashMap,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc::{Receiver, SyncSender, TrySendError, sync_channel},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use quick_cache::unsync::Cache;
use simplefeed_core::{
    commit::{Change, Commit},
    feed::{EntryId, FeedName, Revision},
    limits::GROUP_REQUESTS_MAX,
    plan::{FeedState, KnownEntry},
    settings::Defaults,
    timestamp::Timestamp,
};
use simplefeed_log::{
    EntryLog, FeedHeads, LogError, LogHead, Space, WritableLog, space::is_full,
    watermark::Watermark,
};
use simplefeed_process::{clock::Clock, workers::block_alone};
use tokio::sync::oneshot;
use tracing::{debug, error, info};

mod alike;
mod following;
pub mod follows;
mod group;
pub mod observer;
mod pulse;
mod refusal_log;
mod request;

use alike::Alike;
use follows::Follows;
use group::{CommitGroup, Reads, size};
use observer::WriterObserver;
pub use pulse::WriterStandstill;
use pulse::{Pulse, WriterStage};
use refusal_log::RefusalLog;
pub use request::{
    AppendRequest, AppendResult, Conditions, Configure, ConfigureResult, FeedKindRule, Follow,
    FollowItems, FollowResult, Heads, PublishError, SettingsCondition, WorkRoom,
};
use request::{CommitRefusal, CommitResult, WriterRequest};

/// Largest number of feeds whose head and settings stay in the writer's memory; other feeds are
/// read from the log.
const KEPT_FEEDS_MAX: usize = 100_000;
/// Upper bounds of a request that is served on the thread of the connection: of the number of
/// entries, and of their bytes.
const ALONE_ENTRIES_MAX: usize = 16;
const ALONE_BYTES_MAX: usize = 64 * 1024;
/// If recent commits take so long on average, no connection's thread serves a request: other
/// requests on that thread would have to wait.
const ALONE_MAX: Duration = Duration::from_millis(2);
/// Largest number of requests that wait in the queue; further requests are refused as busy.
const QUEUE_MAX: usize = GROUP_REQUESTS_MAX;

/// Hands requests to the writer. A clone is cheap; the writer's thread ends with the last clone.
#[derive(Clone, Debug)]
pub struct WriterHandle {
    queue: SyncSender<WriterRequest>,
    writer: Arc<Mutex<Writer>>,
    /// Number of requests in the queue.
    waiting: Arc<AtomicUsize>,
    pulse: Arc<Pulse>,
}

impl WriterHandle {
    /// Returns why the writer is taken for dead. `None` as long as the writer may just be slow.
    pub fn stuck(&self) -> Option<WriterStandstill> {
        self.pulse.stuck(Instant::now())
    }

    /// Appends entries. Returns once they are durable.
    ///
    /// # Errors
    ///
    /// See [`PublishError`].
    pub async fn append(&self, append: AppendRequest) -> Result<AppendResult, PublishError> {
        let (reply, answer) = oneshot::channel();
        self.send_request(WriterRequest::Append(append, reply), answer)
            .await
    }

    /// Changes settings. Returns once they are durable.
    ///
    /// # Errors
    ///
    /// See [`PublishError`].
    pub async fn configure(&self, configure: Configure) -> Result<ConfigureResult, PublishError> {
        let (reply, answer) = oneshot::channel();
        self.send_request(WriterRequest::Configure(configure, reply), answer)
            .await
    }

    /// Changes what a timeline follows. Returns once the change is durable.
    ///
    /// # Errors
    ///
    /// See [`PublishError`].
    pub async fn follow(&self, follow: Follow) -> Result<FollowResult, PublishError> {
        let (reply, answer) = oneshot::channel();
        self.send_request(WriterRequest::Follow(follow, reply), answer)
            .await
    }

    async fn send_request<T>(
        &self,
        request: WriterRequest,
        answer: oneshot::Receiver<Result<T, PublishError>>,
    ) -> Result<T, PublishError> {
        let Some(request) = self.serve_alone(request) else {
            return answer.await.unwrap_or(Err(PublishError::Unavailable));
        };
        // Counted before the send, because the writer may receive the request, and subtract 1, at
        // once.
        self.waiting.fetch_add(1, Ordering::AcqRel);
        match self.queue.try_send(request) {
            // Without a reply, the writer is gone.
            Ok(()) => answer.await.unwrap_or(Err(PublishError::Unavailable)),
            Err(refused) => {
                self.waiting.fetch_sub(1, Ordering::AcqRel);
                Err(match refused {
                    TrySendError::Full(_) => PublishError::Busy,
                    TrySendError::Disconnected(_) => PublishError::Unavailable,
                })
            }
        }
    }

    /// Serves a request on this thread if no other request waits, the request is small, all other
    /// connections of the thread are idle, and the writer is free and quick. Otherwise returns the
    /// request.
    fn serve_alone(&self, request: WriterRequest) -> Option<WriterRequest> {
        // If other requests wait, this request joins the queue, so that all of them share a commit.
        if self.waiting.load(Ordering::Acquire) > 0 || !is_small(&request) {
            return Some(request);
        }
        let Some(_blocking) = block_alone() else {
            return Some(request);
        };
        // While the writer works, the request joins the next group and does not wait here.
        match self.writer.try_lock() {
            Some(mut writer) if writer.took < ALONE_MAX => {
                let left = serve_or_abort(&mut writer, request, || None);
                assert!(left.is_none(), "a request fits into an empty group");
                None
            }
            _ => Some(request),
        }
    }
}

/// Returns whether planning a request takes little time.
fn is_small(request: &WriterRequest) -> bool {
    let (entries, bytes) = size(request, "");
    entries <= ALONE_ENTRIES_MAX && bytes <= ALONE_BYTES_MAX
}

/// Serves a group of requests: the first one, and those from `next`. Returns a request that did not
/// fit.
fn serve_or_abort(
    writer: &mut Writer,
    first: WriterRequest,
    next: impl FnMut() -> Option<WriterRequest>,
) -> Option<WriterRequest> {
    let observer = Arc::clone(&writer.observer);
    let served = catch_unwind(AssertUnwindSafe(|| writer.serve_group(first, next)));
    served.unwrap_or_else(|_| {
        // Without its writer the server would answer no publisher, and the panic may have left
        // anything half done. An abort is an unclean stop, after which the next start checks the
        // log.
        error!("the writer panicked; nothing acknowledged is lost");
        observer.panicked();
        std::process::abort();
    })
}

/// Starts the writer.
///
/// Each commit is later than the commit before, and than all seconds that `watermark` has
/// published, even if `clock` tells an earlier time.
///
/// # Errors
///
/// Returns why the log cannot be read, or the system starts no thread.
pub fn start(
    log: Arc<dyn WritableLog>,
    follows: Arc<dyn Follows>,
    defaults: Defaults,
    clock: Clock,
    watermark: Arc<Watermark>,
    observer: Arc<dyn WriterObserver>,
) -> Result<(WriterHandle, JoinHandle<()>), LogError> {
    let (queue, requests) = sync_channel(QUEUE_MAX);
    let pulse = Arc::new(Pulse::new());
    let writer = Arc::new(Mutex::new(Writer {
        recorded: recorded_defaults(&*log)?,
        log,
        follows,
        defaults: Arc::new(defaults),
        clock,
        watermark,
        observer,
        kept: Cache::new(KEPT_FEEDS_MAX),
        alike: Alike::default(),
        has_room: true,
        refusals: RefusalLog::default(),
        stopped: CommitRefusal::Stopped,
        took: Duration::ZERO,
        pulse: Arc::clone(&pulse),
    }));
    let waiting = Arc::new(AtomicUsize::new(0));
    let publisher = WriterHandle {
        queue,
        writer: Arc::clone(&writer),
        waiting: Arc::clone(&waiting),
        pulse,
    };
    let thread = std::thread::Builder::new()
        .name("writer".into())
        .spawn(move || serve_queue(&writer, &requests, &waiting))
        .map_err(LogError::io("start", "the thread of the writer"))?;
    Ok((publisher, thread))
}

/// Returns the newest defaults that the log has for timelines, with their revision.
fn recorded_defaults(log: &dyn EntryLog) -> Result<Option<(Revision, Defaults)>, LogError> {
    let (mut newest, mut revision) = (None, Revision::FIRST);
    // Revisions have no holes, so the newest revision is the one before the first missing revision.
    while let Some(defaults) = log.defaults(revision)? {
        newest = Some((revision, defaults));
        revision = revision.next();
    }
    Ok(newest)
}

/// Serves the requests of the queue until the last [`WriterHandle`] is gone.
fn serve_queue(writer: &Mutex<Writer>, requests: &Receiver<WriterRequest>, waiting: &AtomicUsize) {
    let taken = |request| {
        waiting.fetch_sub(1, Ordering::AcqRel);
        request
    };
    let mut carried = None;
    while let Some(first) = carried.or_else(|| requests.recv().ok().map(taken)) {
        // Takes waiting requests only: a lone request is committed at once. A request that did not
        // fit begins the next group, so that requests keep their order.
        let next = || requests.try_recv().ok().map(taken);
        // The lock is free between two groups, so that a connection's thread may serve a request.
        carried = serve_or_abort(&mut writer.lock(), first, next);
    }
}

struct Writer {
    log: Arc<dyn WritableLog>,
    follows: Arc<dyn Follows>,
    defaults: Arc<Defaults>,
    /// Newest defaults that the log has for timelines; `None` while there is no timeline.
    recorded: Option<(Revision, Defaults)>,
    clock: Clock,
    watermark: Arc<Watermark>,
    observer: Arc<dyn WriterObserver>,
    /// States of feeds, each after the last commit that changed the feed.
    kept: Cache<FeedName, FeedState>,
    alike: Alike,
    /// Whether the last check found enough room on the disk; only a change is logged.
    has_room: bool,
    /// Times of the last log lines about refused commits.
    refusals: RefusalLog,
    /// Reason given to publishers once the log has failed.
    stopped: CommitRefusal,
    /// Average time of recent commits.
    took: Duration,
    pulse: Arc<Pulse>,
}

impl std::fmt::Debug for Writer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Writer")
    }
}

impl Writer {
    /// Commits a group that begins with `first`. Returns a request that did not fit into the group.
    fn serve_group(
        &mut self,
        first: WriterRequest,
        mut others: impl FnMut() -> Option<WriterRequest>,
    ) -> Option<WriterRequest> {
        let head = self.log.head();
        let clock = self.clock.now();
        // After a failure, the pending stamp stays that of the failed commit, because a restart may
        // find that commit. With a new stamp, the watermark could publish the second of the failed
        // commit.
        let instant = if self.log.is_open() {
            self.watermark.stamp(clock, head.last)
        } else {
            clock.max(head.last.plus_micros(2))
        };
        let reads = Reads {
            log: &*self.log,
            refusals: &self.refusals,
        };
        let follows = &*self.follows;
        let mut group = CommitGroup::new(reads, &self.defaults, &self.kept, follows, head, instant);
        let mut next = Some(first);
        while let Some(request) = next.take() {
            if !group.has_room_for(&request) {
                next = Some(request);
                break;
            }
            // Planning a request may read from the disk, so each request gives a sign of life.
            self.pulse.begin(WriterStage::Busy, Instant::now());
            group.add(request);
            next = others();
        }
        let makes_timeline = group.makes_timeline();
        let CommitGroup {
            mut changes,
            before,
            answers,
            states,
            ..
        } = group;
        let recorded = self.record_defaults(&mut changes, makes_timeline);
        let (began, is_stored) = (Instant::now(), !changes.is_empty());
        self.pulse.begin(WriterStage::Storing, began);
        let committed = self.commit_group(head, instant, changes, &before);
        let stored = Instant::now();
        self.pulse.begin(WriterStage::Busy, stored);
        // After a failure, a restart may find the failed commit, so the second of that commit must
        // stay unpublished.
        if committed.is_ok() || self.log.is_open() {
            self.watermark.release();
        }
        if committed.is_ok() {
            self.recorded = recorded;
            if is_stored {
                let took = stored - began;
                // An average over several commits, so that one slow sync has little weight.
                self.took = (self.took * 7 + took) / 8;
                self.observer.committed(answers.len(), took);
            }
            // The states are kept only after the commit: the cache must not hold entries that a
            // failed commit did not store.
            self.keep_states(states);
        }
        // Answers leave last, so that a client that reads after an answer finds the entries.
        for answer in answers {
            answer(committed);
        }
        self.pulse.begin(WriterStage::Idle, stored);
        next
    }

    /// Puts the server's defaults before the changes of a commit, if the commit makes the first
    /// timeline, or if the log has other defaults for timelines. Returns the defaults that the log
    /// has after the commit.
    fn record_defaults(
        &self,
        changes: &mut Vec<Change>,
        makes_timeline: bool,
    ) -> Option<(Revision, Defaults)> {
        let revision = match &self.recorded {
            None if !makes_timeline => return None,
            None => Revision::FIRST,
            Some((revision, defaults)) if changes.is_empty() || *defaults == *self.defaults => {
                return Some((*revision, defaults.clone()));
            }
            Some((revision, _)) => revision.next(),
        };
        let defaults = Defaults::clone(&self.defaults);
        let change = Change::Defaults {
            revision,
            defaults: defaults.clone(),
        };
        // Put in front, so that these defaults are in force for all entries of the commit.
        changes.insert(0, change);
        Some((revision, defaults))
    }

    fn keep_states(
        &mut self,
        states: HashMap<FeedName, (FeedState, HashMap<EntryId, KnownEntry>)>,
    ) {
        for (name, (state, _)) in states {
            // The common case: only the head has changed, and the shared settings stay.
            if let Some(mut kept) = self.kept.get_mut(&name)
                && Arc::ptr_eq(&kept.settings, &state.settings)
            {
                kept.head = state.head;
            } else {
                self.kept.insert(name, self.alike.share(state));
            }
        }
    }

    /// Commits the changes, if there are any. Returns the number of the log's last commit, or the
    /// reason why nothing was committed.
    fn commit_group(
        &mut self,
        head: LogHead,
        instant: Timestamp,
        changes: Vec<Change>,
        before: &FeedHeads,
    ) -> CommitResult {
        if !self.log.is_open() {
            // Even an answer without changes may rest on the commit that failed, which may be gone
            // after a restart.
            if self.log.replaced_by().is_some() {
                self.stopped = CommitRefusal::Replaced;
            } else if self.log.is_displaced() {
                self.stopped = CommitRefusal::Displaced;
            } else {
                // A full disk is not stored in `stopped`: once there is room again, the reason in
                // `stopped` holds.
                let space = self.space_left(0);
                if !space.is_enough() {
                    return Err(CommitRefusal::NoSpace(space));
                }
            }
            return Err(self.stopped);
        }
        // Answers without changes, such as duplicates and refusals, rest on commits that have
        // passed the barrier.
        if changes.is_empty() {
            return Ok(head.number.0);
        }
        let commit = Commit {
            number: head.number.next(),
            instant,
            changes,
        };
        // The instant of a commit counts for ever, so a doubtful clock stamps none.
        if self.clock.is_refused() {
            return Err(CommitRefusal::Clock);
        }
        // Checked before sled writes anything, because a log on a full disk cannot be opened again.
        let space = self.space_for(&commit);
        if !space.is_enough() {
            return Err(CommitRefusal::NoSpace(space));
        }
        match self.log.append_after(&commit, before) {
            Ok(_) => {
                debug!(
                    commit = commit.number.0,
                    entries = commit.entries(),
                    "appended"
                );
                note_changes(&commit);
                Ok(commit.number.0)
            }
            Err(LogError::Stopped) => Err(self.stopped),
            // Nothing was stored, and a later commit may succeed, so the log stays open.
            Err(LogError::Lacking { action, source }) => {
                self.refusals.log(action, &source);
                Err(CommitRefusal::lacking(&source))
            }
            Err(error) => {
                let error: &(dyn std::error::Error + 'static) = &error;
                error!(
                    error,
                    "the log failed; it takes no entries until the server is restarted"
                );
                // The disk filled up although the check found room; later publishers get this
                // cause, too.
                if is_full(error) {
                    self.stopped = CommitRefusal::NoSpace(self.space_left(0));
                }
                if self.log.is_displaced() {
                    self.stopped = CommitRefusal::Displaced;
                }
                Err(self.stopped)
            }
        }
    }

    /// Returns the room on the disk, and the room that the log needs to be opened again with this
    /// commit. Logs a line when there is too little room, and another when there is enough again.
    fn space_for(&mut self, commit: &Commit) -> Space {
        let bytes = u64::try_from(commit.bytes()).unwrap_or(u64::MAX);
        let space = self.space_left(bytes);
        let has_room = space.is_enough();
        if has_room != self.has_room {
            self.has_room = has_room;
            if has_room {
                info!("there is room on the disk again");
            } else {
                let Space { free, needed, .. } = space;
                error!(
                    free,
                    needed, "nothing is stored until there is more room: {space}"
                );
            }
        }
        space
    }

    /// Returns the room on the disk, and the room that the log needs with `bytes` more bytes. An
    /// unknown amount of room counts as enough: the append itself fails if there is no room.
    fn space_left(&self, bytes: u64) -> Space {
        self.log.room_for(bytes).unwrap_or_else(|error| {
            let error: &(dyn std::error::Error + 'static) = &error;
            error!(error, "nobody knows how much room there is on the disk");
            Space {
                free: u64::MAX,
                needed: 0,
                is_of_files: false,
            }
        })
    }
}

fn note_changes(commit: &Commit) {
    for change in &commit.changes {
        if let Change::Settings {
            revision, settings, ..
        } = change
        {
            info!(feed = %settings.name, revision = revision.0, "settings changed");
        }
    }
}

#[cfg(test)]
mod tests;
