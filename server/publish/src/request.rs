//! Requests to the writer, and the answers of the writer.
//!
//! Pure.

use std::{io, sync::Arc};

use simplefeed_core::{
    entry::Draft,
    feed::{FeedId, FeedName, FeedPattern},
    limits::{FEEDS_MAX, TIMELINES_MAX},
    plan::EntryResult,
    refusal::Refusal,
    settings::{Choices, OwnEntries, Settings},
    sight::Sight,
};
use simplefeed_log::{Space, space::is_full};
use simplefeed_process::lack::advice;
use simplefeed_resource::head_tag::{HeadTag, SettingsTag};
use tokio::sync::{OwnedSemaphorePermit, oneshot};

/// Entries to append to a feed, which is created if need be.
#[derive(Debug)]
pub struct AppendRequest {
    /// Name of the feed, which the first entry creates.
    pub feed: FeedName,
    /// The entries, oldest first.
    pub drafts: Vec<Draft>,
    /// Idempotency key of the request, which gives ids to entries without one. Without a key, these
    /// ids are random.
    pub key: Option<String>,
    /// Conditions on the feed's head. They are not checked if every entry is a duplicate.
    pub conditions: Conditions,
    /// Memory reserved for the drafts; returned when the writer has planned the request, before the
    /// commit.
    pub room: WorkRoom,
}

/// Reserved memory of a piece of work, returned on drop when the work ends.
pub type WorkRoom = Option<OwnedSemaphorePermit>;

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
    /// Id of a feed to be created, random if absent. An existing feed accepts no other id than its
    /// own.
    pub id: Option<FeedId>,
    /// Condition of the request. Nothing changes unless the condition holds.
    pub expected: SettingsCondition,
    /// Kind of the feed.
    pub kind: FeedKindRule,
    /// Items that a new timeline follows.
    pub wanted: FollowItems,
}

/// Condition of a request for settings (RFC 9110, 13.1.1 and 13.1.2).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum SettingsCondition {
    /// No condition: a feed that does not exist is created.
    #[default]
    Anything,
    /// There must be no feed of this name: the request creates the feed.
    NoFeed,
    /// The feed must exist: no feed is created. The settings must have one of these tags, if any
    /// are given.
    Settings(Option<Vec<String>>),
}

/// Kind of feed that a request asks for. A feed never changes its kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum FeedKindRule {
    /// Whichever kind the feed has. A new feed has entries of its own.
    #[default]
    Any,
    /// A feed with entries of its own.
    Feed,
    /// A timeline, which has the entries of other feeds. Given values must equal those of an
    /// existing timeline.
    Timeline {
        /// Feed of the owner.
        owner: Option<FeedName>,
        /// Whether the timeline has the owner's entries.
        own: Option<OwnEntries>,
    },
}

/// Estimate of the memory that an item takes in a commit, in bytes.
const ITEM_BYTES: usize = 64;

/// Feeds that a timeline is to follow, or to follow no longer.
#[derive(Clone, Debug, Default)]
pub struct FollowItems {
    /// Feeds and patterns to follow.
    pub follow: Vec<FeedPattern>,
    /// Feeds and patterns to follow no longer.
    pub unfollow: Vec<FeedPattern>,
    /// Number of newest entries that each followed feed brings along.
    pub backfill: u32,
    /// Closed feeds that the caller may see.
    pub sight: Sight,
}

impl FollowItems {
    /// Returns the approximate bytes of the change in a commit.
    pub(super) fn bytes(&self) -> usize {
        (self.follow.len() + self.unfollow.len()) * ITEM_BYTES
    }
}

/// Request to change the follows of a timeline.
#[derive(Debug)]
pub struct Follow {
    /// Name of the timeline.
    pub feed: FeedName,
    /// Items to follow, and to follow no longer.
    pub wanted: FollowItems,
}

/// Result of a [`Follow`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FollowResult {
    /// Number of items that the timeline follows newly.
    pub followed: usize,
    /// Number of items that the timeline follows no longer.
    pub unfollowed: usize,
}

/// Result of an [`AppendRequest`].
#[derive(Clone, Debug)]
pub struct AppendResult {
    /// One result for each entry, in the order of the drafts.
    pub results: Vec<EntryResult>,
    /// Number of the commit that holds the appended entries; the log's last one if all were
    /// duplicates.
    pub commit: u64,
    /// Entity tags of the feed's head after the request.
    pub tag: HeadTag,
    /// Settings of the feed under the server's current defaults, whether these are recorded or not.
    pub settings: Arc<Settings>,
    /// Whether the feed exists: an empty batch creates no feed.
    pub exists: bool,
}

/// Result of a [`Configure`].
#[derive(Clone, Debug)]
pub struct ConfigureResult {
    /// Settings of the feed after the change.
    pub settings: Arc<Settings>,
    /// Whether the feed was created.
    pub created: bool,
    /// Entity tags of the feed's head after the change. A timeline has no tags here, because the
    /// entries of a timeline are those of other feeds.
    pub tag: Option<HeadTag>,
    /// Entity tag of the settings after the change.
    pub settings_tag: SettingsTag,
}

/// Reason why a request was not carried out.
#[derive(Debug, thiserror::Error)]
pub enum PublishError {
    /// The publisher must send something else.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The server has as many feeds as are allowed.
    #[error("the server has {FEEDS_MAX} feeds, which is its limit")]
    Full,
    /// The disk has too little room for a longer log to be opened again, so nothing is stored. If
    /// this very request filled the disk, a restart may find the request stored; a repeat is safe.
    #[error("{0}")]
    NoSpace(Space),
    /// The server has as many timelines as are allowed.
    #[error("the server has {TIMELINES_MAX} timelines, which is its limit")]
    FullOfTimelines,
    /// A timeline takes no entries.
    #[error("{0} is a timeline; publish to the feeds that it follows")]
    IsTimeline(FeedName),
    /// There is no timeline of that name.
    #[error("there is no timeline {0}")]
    NoTimeline(FeedName),
    /// A closed timeline would take entries to which the publisher has no right.
    #[error(
        "a closed timeline takes entries of closed feeds, so {0} is only for those with a right to all feeds that it may \
         match"
    )]
    NotCovered(FeedPattern),
    /// There is no feed of that name that the timeline may follow.
    #[error("there is no feed {0}")]
    UnknownFeed(FeedName),
    /// The graph of follows lags behind the log. The same request may succeed soon.
    #[error("what timelines follow is being read")]
    Behind,
    /// The queue is full. The same request may succeed soon.
    #[error("too many requests are waiting")]
    Busy,
    /// The data folder is not what the server has opened.
    #[error("the data folder is not what the server opened, so it takes no entries")]
    Displaced,
    /// A document beside the log belongs to another log.
    #[error("a document beside the log is of another one, so the log takes no entries")]
    Replaced,
    /// The system clock is far ahead of all that the data folder knows, so that clock stamps no
    /// commit.
    #[error(
        "the system clock is more than five years ahead of the last entry, so nothing is published; if it is right, run \
         `simplefeed-server clock accept` beside the server"
    )]
    Clock,
    /// The system lacks something, such as file handles. Nothing was stored.
    #[error("the log takes no entries now: {advice}; nothing is stored")]
    Lacking {
        /// Remedy for the operator.
        advice: &'static str,
        /// Whether room on the disk is missing.
        is_full: bool,
    },
    /// The log takes no commits. A restart may find this request stored; a repeat is safe.
    #[error("the log takes no entries now")]
    Unavailable,
}

pub(super) type ReplySender<T> = oneshot::Sender<Result<T, PublishError>>;

pub(super) enum WriterRequest {
    Append(AppendRequest, ReplySender<AppendResult>),
    Configure(Configure, ReplySender<ConfigureResult>),
    Follow(Follow, ReplySender<FollowResult>),
}

impl std::fmt::Debug for WriterRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Request")
    }
}

/// Reason why a group was not committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CommitRefusal {
    /// A commit has failed, and the log takes no more commits.
    Stopped,
    /// The system lacks something.
    Lacking {
        /// Remedy for the operator.
        advice: &'static str,
        /// Whether room on the disk is missing.
        is_full: bool,
    },
    /// The disk is full.
    NoSpace(Space),
    /// The data folder is not what the server has opened.
    Displaced,
    /// A document beside the log belongs to another log.
    Replaced,
    /// The system clock is not accepted.
    Clock,
}

impl CommitRefusal {
    /// Returns that the system lacks something.
    pub(super) fn lacking(lack: &io::Error) -> Self {
        Self::Lacking {
            advice: advice(lack).unwrap_or("the messages of the server say more"),
            // The answer to a full disk is 507, and 503 to any other lack.
            is_full: is_full(lack),
        }
    }
}

impl From<CommitRefusal> for PublishError {
    fn from(why: CommitRefusal) -> Self {
        match why {
            CommitRefusal::Stopped => Self::Unavailable,
            CommitRefusal::Lacking { advice, is_full } => Self::Lacking { advice, is_full },
            CommitRefusal::NoSpace(space) => Self::NoSpace(space),
            CommitRefusal::Displaced => Self::Displaced,
            CommitRefusal::Replaced => Self::Replaced,
            CommitRefusal::Clock => Self::Clock,
        }
    }
}

/// The number of the log's last commit, or why a group is not in it.
pub(super) type CommitResult = Result<u64, CommitRefusal>;
