//! The single writer: every publish passes here, one after the other.
//!
//! Shell: a thread, a queue and a lock. [`simplefeed_core::plan`] decides the changes of each request; this file
//! decides which requests share a commit. While one commit waits for the disk, the next requests queue up;
//! all that wait then become one commit and pass the barrier once (group commit). The thread serves the queue. A lone
//! request of a thread with one connection is served there, if the disk is quick: two changes of threads would take longer
//! than the sync.
//!
//! An answer that depends on state before the barrier (a duplicate of an entry of the same group, a
//! conflict with one, a failed precondition) leaves after the barrier too, and becomes "unavailable" if the
//! barrier fails. So a power cut cannot make an answer untrue.

use std::{
    collections::HashMap,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc::{Receiver, SyncSender, TrySendError, sync_channel},
    },
    thread::JoinHandle,
    time::Duration,
};

use parking_lot::Mutex;
use quick_cache::unsync::Cache;
use simplefeed_core::{
    commit::{Change, Commit},
    entry::Draft,
    feed::{EntryId, FeedId, FeedName},
    limits::{BATCH_ENTRIES_MAX, BODY_BYTES_MAX, FEEDS_MAX, GROUP_REQUESTS_MAX},
    plan::{self, FeedHead, FeedState, Known, Outcome, Plan, Stamp},
    refusal::Refusal,
    settings::{Choices, Defaults, Settings},
    sup::SupId,
    timestamp::Timestamp,
};
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tracing::{debug, error, info};
use uuid::Uuid;

use crate::{
    head_tag::HeadTag,
    log::{EntryLog, LogError, LogHead, settings_of, space::is_full},
    metrics::Metrics,
    watermark::Watermark,
    workers::is_alone,
};

/// Feeds whose head and settings stay in the writer's memory; others are read from the log.
const KEPT_FEEDS_MAX: usize = 100_000;
/// Most entries, and bytes of entries, of a request that is served on the thread of its connection.
const ALONE_ENTRIES_MAX: usize = 16;
const ALONE_BYTES_MAX: usize = 64 * 1024;
/// Time of recent commits from which on no request is served there: others on that thread would have to wait.
const ALONE_MAX: Duration = Duration::from_millis(2);
/// Requests that may wait in the queue; further ones are refused as busy.
const QUEUE_MAX: usize = GROUP_REQUESTS_MAX;

/// Entries to append to a feed, which is created if need be.
#[derive(Debug)]
pub struct Append {
    /// Name of the feed, which the first entry creates.
    pub feed: FeedName,
    /// The entries, oldest first.
    pub drafts: Vec<Draft>,
    /// Idempotency key of the request, from which entries without an id get theirs; random ids if it is
    /// absent.
    pub key: Option<String>,
    /// Conditions on the feed's head; not checked if every entry is a duplicate.
    pub conditions: Conditions,
    /// Memory reserved for the drafts; returned when the writer has planned the request, before the commit.
    pub room: Room,
}

/// Reserved memory of a piece of work, returned on drop when the work ends.
pub type Room = Option<OwnedSemaphorePermit>;

/// Conditions on the head of a feed (RFC 9110, 13.1.1 and 13.1.2).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Conditions {
    /// Heads, one of which the feed must have.
    pub if_match: Option<Heads>,
    /// Heads, none of which the feed may have.
    pub if_none_match: Option<Heads>,
}

/// Heads that a feed may have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Heads {
    /// Any head, hence any feed that exists (`*`).
    Any,
    /// One of these opaque tags, with or without the letter of a coding.
    Tags(Vec<String>),
}

/// Settings to give to a feed, which is created if need be.
#[derive(Debug)]
pub struct Configure {
    /// Name of the feed, which is created if it does not exist.
    pub feed: FeedName,
    /// Settings to change; absent ones stay as they are.
    pub choices: Choices,
    /// Id of a feed to be created, random if absent. An existing feed accepts only its own id.
    pub id: Option<FeedId>,
    /// Conditions on the feed's head; nothing changes unless they hold.
    pub conditions: Conditions,
}

/// Result of an [`Append`].
#[derive(Clone, Debug)]
pub struct Appended {
    /// One result for each entry, in the order of the drafts.
    pub results: Vec<Outcome>,
    /// Number of the commit that holds the appended entries; the log's last one if all were duplicates.
    pub commit: u64,
    /// Entity tags of the feed's head after the request.
    pub tag: HeadTag,
    /// Settings of the feed under the server's current defaults, even if these are not recorded yet.
    pub settings: Arc<Settings>,
    /// Whether there is such a feed: an empty batch creates none.
    pub exists: bool,
}

/// Result of a [`Configure`].
#[derive(Clone, Debug)]
pub struct Configured {
    /// Settings of the feed after the change.
    pub settings: Arc<Settings>,
    /// Whether the feed was created.
    pub created: bool,
    /// Entity tags of the feed's head after the change.
    pub tag: HeadTag,
}

/// Reason why a request was not carried out.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PublishError {
    /// The publisher must send something else.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// There are as many feeds as there may be.
    #[error("the server has {FEEDS_MAX} feeds, which is its limit")]
    Full,
    /// The disk is too full to open the log again with more in it, so nothing is stored. If this very
    /// request filled the disk, a restart may find it stored; a repeat is safe.
    #[error("the disk is full")]
    NoSpace,
    /// More requests wait than may wait. The same request may succeed soon.
    #[error("too many requests are waiting")]
    Busy,
    /// The log takes no commits. A restart may find this request stored; a repeat is safe.
    #[error("the log takes no entries now")]
    Unavailable,
}

type Reply<T> = oneshot::Sender<Result<T, PublishError>>;

enum Request {
    Append(Append, Reply<Appended>),
    Configure(Configure, Reply<Configured>),
}

/// Hands requests to the writer. Cloning it is cheap; the writer's thread ends with the last clone.
#[derive(Clone, Debug)]
pub struct Publisher {
    queue: SyncSender<Request>,
    writer: Arc<Mutex<Writer>>,
    /// Requests in the queue.
    waiting: Arc<AtomicUsize>,
}

impl Request {
    /// Returns whether planning it takes little time.
    fn is_small(&self) -> bool {
        let (entries, bytes) = size(self, "");
        entries <= ALONE_ENTRIES_MAX && bytes <= ALONE_BYTES_MAX
    }
}

impl std::fmt::Debug for Request {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Request")
    }
}

impl Publisher {
    /// Appends entries. Returns once they are durable.
    ///
    /// # Errors
    ///
    /// See [`PublishError`].
    pub async fn append(&self, append: Append) -> Result<Appended, PublishError> {
        let (reply, answer) = oneshot::channel();
        self.send(Request::Append(append, reply), answer).await
    }

    /// Changes settings. Returns once they are durable.
    ///
    /// # Errors
    ///
    /// See [`PublishError`].
    pub async fn configure(&self, configure: Configure) -> Result<Configured, PublishError> {
        let (reply, answer) = oneshot::channel();
        self.send(Request::Configure(configure, reply), answer)
            .await
    }

    async fn send<T>(
        &self,
        request: Request,
        answer: oneshot::Receiver<Result<T, PublishError>>,
    ) -> Result<T, PublishError> {
        let Some(request) = self.serve_alone(request) else {
            return answer.await.unwrap_or(Err(PublishError::Unavailable));
        };
        self.waiting.fetch_add(1, Ordering::AcqRel);
        match self.queue.try_send(request) {
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

    /// Serves a request on this thread if no other request and no other connection waits for it, and it takes little
    /// time. Returns it if not.
    fn serve_alone(&self, request: Request) -> Option<Request> {
        // Requests in the queue share a commit with it. A disk that stalls must not stall readers on this thread.
        if self.waiting.load(Ordering::Acquire) > 0 || !is_alone() || !request.is_small() {
            return Some(request);
        }
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

/// Serves a group of requests: the first one, and those that `next` returns. Returns one that did not fit.
fn serve_or_abort(
    writer: &mut Writer,
    first: Request,
    next: impl FnMut() -> Option<Request>,
) -> Option<Request> {
    let served = catch_unwind(AssertUnwindSafe(|| writer.serve(first, next)));
    served.unwrap_or_else(|_| {
        // Without its writer the server would answer no publisher, and the panic may have left anything
        // half done. An abort is an unclean stop, after which the next start checks the log.
        error!("the writer panicked; nothing acknowledged is lost");
        std::process::abort();
    })
}

/// Starts the writer.
///
/// `clock` returns the machine's time. Each commit is later than the one before it and than everything
/// `watermark` has published, even if the clock is not.
pub fn start(
    log: Arc<dyn EntryLog>,
    defaults: Defaults,
    clock: impl Fn() -> Timestamp + Send + 'static,
    watermark: Arc<Watermark>,
    metrics: Arc<Metrics>,
) -> (Publisher, JoinHandle<()>) {
    let (queue, requests) = sync_channel(QUEUE_MAX);
    let writer = Arc::new(Mutex::new(Writer {
        log,
        defaults,
        clock: Box::new(clock),
        watermark,
        metrics,
        kept: Cache::new(KEPT_FEEDS_MAX),
        has_room: true,
        stopped: NotCommitted::Stopped,
        took: Duration::ZERO,
    }));
    let waiting = Arc::new(AtomicUsize::new(0));
    let publisher = Publisher {
        queue,
        writer: Arc::clone(&writer),
        waiting: Arc::clone(&waiting),
    };
    let thread = std::thread::Builder::new()
        .name("writer".into())
        .spawn(move || serve_queue(&writer, &requests, &waiting))
        .expect("the system lets a server start its writer");
    (publisher, thread)
}

/// Serves the requests of the queue until the last [`Publisher`] is gone.
fn serve_queue(writer: &Mutex<Writer>, requests: &Receiver<Request>, waiting: &AtomicUsize) {
    let taken = |request| {
        waiting.fetch_sub(1, Ordering::AcqRel);
        request
    };
    let mut carried = None;
    while let Some(first) = carried.or_else(|| requests.recv().ok().map(taken)) {
        // Takes waiting requests only: a lone request is committed at once. One that did not fit begins the next
        // group, so that requests keep their order.
        let next = || requests.try_recv().ok().map(taken);
        carried = serve_or_abort(&mut writer.lock(), first, next);
    }
}

struct Writer {
    log: Arc<dyn EntryLog>,
    defaults: Defaults,
    clock: Box<dyn Fn() -> Timestamp + Send>,
    watermark: Arc<Watermark>,
    metrics: Arc<Metrics>,
    /// Feeds as the last commit that changed them has left them.
    kept: Cache<FeedName, FeedState>,
    /// Result of the last look at the disk; only a change is logged.
    has_room: bool,
    /// Reason given to publishers once the log has failed.
    stopped: NotCommitted,
    /// Time that commits took of late.
    took: Duration,
}

impl std::fmt::Debug for Writer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Writer")
    }
}

/// Why a group was not committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NotCommitted {
    /// The log takes no commits since one failed.
    Stopped,
    /// The disk is full.
    NoSpace,
}

impl From<NotCommitted> for PublishError {
    fn from(why: NotCommitted) -> Self {
        match why {
            NotCommitted::Stopped => Self::Unavailable,
            NotCommitted::NoSpace => Self::NoSpace,
        }
    }
}

/// The number of the log's last commit, or why a group is not in it.
type Committed = Result<u64, NotCommitted>;

impl Writer {
    /// Commits a group that begins with `first`. Returns a request that did not fit into it.
    fn serve(
        &mut self,
        first: Request,
        mut others: impl FnMut() -> Option<Request>,
    ) -> Option<Request> {
        let head = self.log.head();
        let clock = (self.clock)();
        // After a failure, the pending stamp stays that of the failed commit, which a restart may find. A
        // new stamp would free its second for publication.
        let instant = if self.log.is_open() {
            self.watermark.stamp(clock, head.last)
        } else {
            clock.max(head.last.plus_micros(1))
        };
        let mut group = Group::new(&*self.log, &self.defaults, &self.kept, head, instant);
        let mut next = Some(first);
        while let Some(request) = next.take() {
            if !group.has_room_for(&request) {
                next = Some(request);
                break;
            }
            group.add(request);
            next = others();
        }
        let Group {
            changes,
            answers,
            states,
            ..
        } = group;
        let (began, is_stored) = (std::time::Instant::now(), !changes.is_empty());
        let committed = self.commit(head, instant, changes);
        // A restart may find the commit that failed, so its second stays unpublished.
        if committed.is_ok() || self.log.is_open() {
            self.watermark.release();
        }
        if committed.is_ok() {
            if is_stored {
                let took = began.elapsed();
                self.took = (self.took * 7 + took) / 8;
                self.metrics.committed(answers.len(), took);
            }
            // After the commit only: the cache must not hold entries that a failed commit did not store.
            self.keep(states);
        }
        // Answers leave last: a client that reads after its answer finds its entries.
        for answer in answers {
            answer(committed);
        }
        next
    }

    fn keep(&mut self, states: HashMap<FeedName, (FeedState, HashMap<EntryId, Known>)>) {
        for (name, (state, _)) in states {
            self.kept.insert(name, state);
        }
    }

    /// Returns the number of the log's last commit, or the reason why nothing was committed.
    fn commit(&mut self, head: LogHead, instant: Timestamp, changes: Vec<Change>) -> Committed {
        if !self.log.is_open() {
            // Even an answer without changes may rest on the commit that failed, which may be gone after a
            // restart.
            if self.log.has_filled_up() {
                self.stopped = NotCommitted::NoSpace;
            }
            return Err(self.stopped);
        }
        // Duplicates and refusals without changes rest on commits behind the barrier.
        if changes.is_empty() {
            return Ok(head.number.0);
        }
        let commit = Commit {
            number: head.number.next(),
            instant,
            changes,
        };
        // Before sled writes anything: a log on a full disk cannot be opened again.
        if !self.has_room_for(&commit) {
            return Err(NotCommitted::NoSpace);
        }
        match self.log.append(&commit) {
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
            Err(error) => {
                let error: &(dyn std::error::Error + 'static) = &error;
                error!(
                    error,
                    "the log failed; it takes no entries until the server is restarted"
                );
                // The disk filled up although the check found room; later publishers get this cause, too.
                if is_full(error) {
                    self.stopped = NotCommitted::NoSpace;
                }
                Err(self.stopped)
            }
        }
    }

    /// Returns whether the log could be opened again with this commit in it, and logs when that changes.
    fn has_room_for(&mut self, commit: &Commit) -> bool {
        let bytes = u64::try_from(commit.bytes()).unwrap_or(u64::MAX);
        // An unknown amount counts as room: the append itself fails if there is none.
        let has_room = self.log.has_room_for(bytes).unwrap_or_else(|error| {
            let error: &(dyn std::error::Error + 'static) = &error;
            error!(error, "nobody knows how much room there is on the disk");
            true
        });
        if has_room != self.has_room {
            self.has_room = has_room;
            if has_room {
                info!("there is room on the disk again");
            } else {
                error!("the disk is nearly full; nothing is stored until there is more room");
            }
        }
        has_room
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

/// An answer that waits for the barrier.
type Answer = Box<dyn FnOnce(Committed) + Send>;

/// Requests that become one commit.
struct Group<'w> {
    log: &'w dyn EntryLog,
    defaults: &'w Defaults,
    kept: &'w Cache<FeedName, FeedState>,
    stamp: Stamp,
    feeds: u64,
    /// Feeds as the group leaves them so far, by name, with the ids it adds.
    states: HashMap<FeedName, (FeedState, HashMap<EntryId, Known>)>,
    changes: Vec<Change>,
    answers: Vec<Answer>,
    /// Bytes of the entries that the group stores.
    bytes: usize,
}

impl<'w> Group<'w> {
    fn new(
        log: &'w dyn EntryLog,
        defaults: &'w Defaults,
        kept: &'w Cache<FeedName, FeedState>,
        head: LogHead,
        instant: Timestamp,
    ) -> Self {
        Self {
            log,
            defaults,
            kept,
            stamp: Stamp {
                instant,
                entries_before: 0,
                epoch: head.epoch,
            },
            feeds: head.feeds,
            states: HashMap::new(),
            changes: vec![],
            answers: vec![],
            bytes: 0,
        }
    }

    fn has_room_for(&self, request: &Request) -> bool {
        let (entries, bytes) = size(request, &self.defaults.author);
        let entries_before = usize::try_from(self.stamp.entries_before).unwrap_or(usize::MAX);
        // Without this exception, a request larger than a group would wait for ever.
        self.answers.is_empty()
            || (self.answers.len() < GROUP_REQUESTS_MAX
                && entries_before + entries <= BATCH_ENTRIES_MAX
                && self.bytes + bytes <= BODY_BYTES_MAX)
    }

    fn add(&mut self, request: Request) {
        match request {
            Request::Append(append, reply) => {
                let outcome = self.append(append);
                self.answer(reply, outcome, |appended, commit| appended.commit = commit);
            }
            Request::Configure(configure, reply) => {
                let outcome = self.configure(configure);
                self.answer(reply, outcome, |_, _| {});
            }
        }
    }

    fn answer<T: Send + 'static>(
        &mut self,
        reply: Reply<T>,
        outcome: Result<T, PublishError>,
        number: impl FnOnce(&mut T, u64) + Send + 'static,
    ) {
        self.answers.push(Box::new(move |commit| {
            let outcome = match commit {
                Ok(commit) => outcome.map(|mut value| {
                    number(&mut value, commit);
                    value
                }),
                Err(why) => Err(why.into()),
            };
            // The client may have gone; its entries are stored all the same.
            drop(reply.send(outcome));
        }));
    }

    fn append(&mut self, append: Append) -> Result<Appended, PublishError> {
        let Append {
            feed,
            mut drafts,
            key,
            conditions,
            room: _room,
        } = append;
        let (creation, state) = if let Some(state) = self.state(&feed)? {
            (vec![], state)
        } else {
            let plan = self.create(&feed, Choices::default(), None)?;
            (plan.changes, plan.state)
        };
        // Ids come first, because duplicates and conflicts are looked up by id.
        plan::give_ids(&mut drafts, state.head.feed, key.as_deref(), Uuid::now_v7);
        let known = self.known(&feed, &state, &drafts)?;
        let plan = plan::plan(&state, &drafts, &known, self.defaults, self.stamp)?;
        let existed = creation.is_empty();
        // A duplicate skips the conditions: its first attempt, whose answer was lost, changed the head itself.
        if !plan.changes.is_empty() {
            conditions.check(&state, existed)?;
        }
        let results = plan.results.clone();
        let exists = existed || !plan.changes.is_empty();
        let state = if plan.changes.is_empty() {
            // Nothing is stored, so a feed that does not exist is not created either.
            state
        } else {
            self.take(&feed, creation, plan)
        };
        let tag = HeadTag::new(state.head.clone());
        // The answer shows the settings under today's defaults, which a batch of duplicates does not
        // record.
        let current = state.settings.under(self.defaults);
        Ok(Appended {
            results,
            commit: 0,
            tag,
            settings: current.map_or(state.settings, Arc::new),
            exists,
        })
    }

    fn configure(&mut self, configure: Configure) -> Result<Configured, PublishError> {
        let Configure {
            feed,
            choices,
            id,
            conditions,
        } = configure;
        choices.check()?;
        let (plan, created) = match self.state(&feed)? {
            None => {
                let plan = self.create(&feed, choices, id)?;
                // The planned feed does not exist yet: `If-Match` fails, `If-None-Match: *` passes.
                conditions.check(&plan.state, false)?;
                (plan, true)
            }
            Some(state) => {
                conditions.check(&state, true)?;
                if id.is_some_and(|id| id != state.settings.id) {
                    let detail = "the id of a feed is given at its creation and never changes";
                    return Err(Refusal::unacceptable(detail, "settings")
                        .at_element("id")
                        .into());
                }
                (
                    plan::plan_settings(&state, choices, self.defaults, self.stamp)?,
                    false,
                )
            }
        };
        let state = self.take(&feed, vec![], plan);
        Ok(Configured {
            tag: HeadTag::new(state.head.clone()),
            settings: state.settings,
            created,
        })
    }

    /// Returns a feed as the group leaves it.
    fn state(&self, feed: &FeedName) -> Result<Option<FeedState>, PublishError> {
        // The group's own state comes first, because it is newer than the cache and the log.
        if let Some((state, _)) = self.states.get(feed) {
            return Ok(Some(state.clone()));
        }
        if let Some(kept) = self.kept.get(feed) {
            // Only the writer changes feeds, so the cache is never stale.
            let same = |head: Option<FeedHead>| head.as_ref() == Some(&kept.head);
            debug_assert!(
                self.log.named(feed).map_or(true, same),
                "what is kept of feed {feed} is what the log has"
            );
            return Ok(Some(kept.clone()));
        }
        let Some(head) = self.log.named(feed).map_err(log_unavailable)? else {
            return Ok(None);
        };
        let settings = settings_of(self.log, head.feed, head.revision).map_err(log_unavailable)?;
        let settings = Arc::new(settings);
        Ok(Some(FeedState { head, settings }))
    }

    fn create(
        &self,
        feed: &FeedName,
        choices: Choices,
        id: Option<FeedId>,
    ) -> Result<Plan, PublishError> {
        // `feeds` includes those that this group creates.
        if self.feeds >= FEEDS_MAX {
            return Err(PublishError::Full);
        }
        let given = id.is_some();
        let id = id.unwrap_or_else(|| FeedId::of_uuid(Uuid::new_v4()));
        // A given id may belong to a feed of this group, which the log does not have yet. A random one, of
        // 122 random bits, is not looked up.
        let in_group = self
            .states
            .values()
            .any(|(state, _)| state.head.feed == id.key());
        if given && (in_group || self.log.feed(id.key()).map_err(log_unavailable)?.is_some()) {
            let detail = format!("another feed has the id {id}");
            return Err(Refusal::unacceptable(detail, "settings")
                .at_element("id")
                .into());
        }
        let defaults = self.defaults.clone();
        let settings = Settings {
            name: feed.clone(),
            id,
            choices,
            defaults,
            sup_id: Some(SupId::of_bits(Uuid::new_v4().as_u128())),
            was_closed: false,
        };
        Ok(plan::plan_creation(settings, self.stamp))
    }

    /// Returns the entries that have the ids of the drafts, from this group or the log.
    fn known(
        &self,
        feed: &FeedName,
        state: &FeedState,
        drafts: &[Draft],
    ) -> Result<HashMap<EntryId, Known>, PublishError> {
        let in_group = self.states.get(feed).map(|(_, added)| added);
        let mut known = HashMap::new();
        for id in drafts.iter().filter_map(|draft| draft.id.as_ref()) {
            let found = match in_group.and_then(|added| added.get(id)) {
                Some(found) => Some(found.clone()),
                None => self
                    .log
                    .find(state.head.feed, id)
                    .map_err(log_unavailable)?,
            };
            if let Some(found) = found {
                known.insert(id.clone(), found);
            }
        }
        Ok(known)
    }

    /// Adds a plan to the commit. Returns the feed as the commit leaves it so far.
    fn take(&mut self, feed: &FeedName, creation: Vec<Change>, plan: Plan) -> FeedState {
        let changes: Vec<Change> = creation.into_iter().chain(plan.changes).collect();
        let (_, added) = self
            .states
            .entry(feed.clone())
            .or_insert_with(|| (plan.state.clone(), HashMap::new()));
        // The results that are no duplicates belong to the entries among the changes, in the same order.
        let mut outcomes = plan.results.iter().filter(|outcome| !outcome.duplicate);
        for change in &changes {
            match change {
                // The first revision of its settings creates a feed.
                Change::Settings { revision, .. } if revision.0 == 1 => self.feeds += 1,
                Change::Entry {
                    at,
                    id,
                    sent,
                    digest,
                    fragment,
                    ..
                } => {
                    self.stamp.entries_before += 1;
                    self.bytes += fragment.len();
                    if let Some(outcome) = outcomes.next() {
                        let known = Known {
                            at: *at,
                            document: outcome.document,
                            sent: *sent,
                            fragment: *digest,
                        };
                        added.insert(id.clone(), known);
                    }
                }
                _ => {}
            }
        }
        self.changes.extend(changes);
        if let Some((state, _)) = self.states.get_mut(feed) {
            *state = plan.state.clone();
        }
        plan.state
    }
}

impl Conditions {
    fn check(&self, state: &FeedState, exists: bool) -> Result<(), Refusal> {
        // `exists` is apart from the state, because a feed to be created has a planned one.
        let matches = |heads: &Heads| match heads {
            Heads::Any => exists,
            Heads::Tags(tags) => exists && HeadTag::new(state.head.clone()).is_among(tags),
        };
        // `If-Match` comes first (RFC 9110, 13.2.2).
        if self.if_match.as_ref().is_some_and(|heads| !matches(heads)) {
            let detail = "the feed has changed since, or does not have the tag given";
            return Err(Refusal::precondition(detail));
        }
        if self.if_none_match.as_ref().is_some_and(matches) {
            let detail = match self.if_none_match {
                Some(Heads::Any) => "the feed is there already",
                _ => "the feed has the tag given",
            };
            return Err(Refusal::precondition(detail));
        }
        Ok(())
    }
}

/// Returns the entries of a request, and their bytes once they are completed with this author.
fn size(request: &Request, author: &str) -> (usize, usize) {
    match request {
        Request::Append(append, _) => (
            append.drafts.len(),
            append.drafts.iter().map(|draft| draft.size(author)).sum(),
        ),
        // Settings add no entries; `GROUP_REQUESTS_MAX` bounds them.
        Request::Configure(..) => (0, 0),
    }
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn log_unavailable(error: LogError) -> PublishError {
    let error: &(dyn std::error::Error + 'static) = &error;
    // Logged here, because the publisher's answer does not show the cause.
    error!(error, "the log cannot be read");
    PublishError::Unavailable
}

#[cfg(test)]
mod tests;
