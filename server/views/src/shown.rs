//! The log as readers see it: with timelines among its feeds.
//!
//! Pure: the contract. Views ask these lookups for facts about timelines, which a log alone does
//! not know.

use std::fmt;

use simplefeed_core::{commit::Outline, feed::FeedKey, sup::SupId};
use simplefeed_log::{EntryLog, LogError, Series, memory::MemoryLog};

/// The series of feeds and of timelines. The entries of a timeline are those of other feeds. The
/// default methods know no timelines.
pub trait ShownSeries: Series {
    /// Returns whether a feed is a timeline.
    ///
    /// # Errors
    ///
    /// See [`LogError`].
    fn is_timeline(&self, _feed: FeedKey) -> Result<bool, LogError> {
        Ok(false)
    }

    /// Returns the number of a timeline, as in [`concerned`](Self::concerned); `None` for a feed
    /// that is no timeline.
    ///
    /// # Errors
    ///
    /// See [`LogError`].
    fn timeline_number(&self, _feed: FeedKey) -> Result<Option<u32>, LogError> {
        Ok(None)
    }

    /// Returns the feeds whose entries a timeline has, or may get; `None` for a feed that has
    /// entries of its own.
    ///
    /// # Errors
    ///
    /// See [`LogError`].
    fn sources(&self, _feed: FeedKey) -> Result<Option<TimelineSources>, LogError> {
        Ok(None)
    }

    /// Calls `add` with the number of each timeline that a commit changes or that has an entry of
    /// the commit. Numbers begin at 0, in the order of creation. A number may come several times.
    ///
    /// # Errors
    ///
    /// See [`LogError`].
    fn concerned(&self, _commit: &Outline, _add: &mut dyn FnMut(u32)) -> Result<(), LogError> {
        Ok(())
    }

    /// Returns the identity of each timeline in a list of numbers from
    /// [`concerned`](Self::concerned), in the same order; `None` for an unknown number.
    fn identities(&self, timelines: &[u32]) -> Vec<Option<SupIdentity>> {
        vec![None; timelines.len()]
    }
}

/// An entry log with timelines. The holder can read:
///
/// ```
/// # use simplefeed_core::commit::Commit;
/// use simplefeed_log::{Append as _, Commits as _};
/// use simplefeed_views::shown::ShownLog;
///
/// fn is_next(log: &dyn ShownLog, commit: &Commit) -> bool {
///     log.head().number.next() == commit.number
/// }
/// # fn append(log: &simplefeed_log::memory::MemoryLog, commit: &Commit) {
/// #     log.append(commit);
/// # }
/// ```
///
/// but not append:
///
/// ```compile_fail
/// # use simplefeed_core::commit::Commit;
/// use simplefeed_log::{Append as _, Commits as _};
/// use simplefeed_views::shown::ShownLog;
///
/// fn append(log: &dyn ShownLog, commit: &Commit) {
///     log.append(commit);
/// }
/// ```
pub trait ShownLog: EntryLog + ShownSeries {}

impl<L: EntryLog + ShownSeries + ?Sized> ShownLog for L {}

impl fmt::Debug for dyn ShownLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShownLog").finish_non_exhaustive()
    }
}

/// Identity of a timeline in SUP documents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SupIdentity {
    /// Key of the timeline.
    pub timeline: FeedKey,
    /// Id of the timeline in SUP documents.
    pub sup_id: SupId,
    /// Whether a reader needs a right to see the timeline.
    pub is_closed: bool,
}

/// Feeds whose entries a timeline has, or may get.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TimelineSources {
    /// These feeds, and no other.
    These(Vec<FeedKey>),
    /// So many feeds that any feed may be one of them.
    Any,
}

/// A log in memory, for tests and models, has no timelines.
impl ShownSeries for MemoryLog {}
