//! Events of a consumer that runs by itself, for its operator.
//!
//! Pure: the seam to metrics and logs.

use std::time::Duration;

use simplefeed_core::{
    reader::FeedFault,
    replay::{EntryRun, WalkError},
};

use crate::{bookmark::Attempt, delivery::Delivery, error::ConsumerError};

/// Receives the events of a consumer. Every method has an empty default.
///
/// The methods run on the consumer's own task, which waits for them.
///
/// # Examples
///
/// A gauge for a dashboard:
///
/// ```
/// use std::{
///     sync::{
///         Arc,
///         atomic::{AtomicU64, Ordering},
///     },
///     time::Duration,
/// };
/// use simplefeed_client::{Consumer, ConsumerError, Observer};
///
/// struct Lag(Arc<AtomicU64>);
///
/// impl Observer for Lag {
///     fn behind(&mut self, entries: u64) {
///         self.0.store(entries, Ordering::Relaxed);
///     }
///     fn retrying(&mut self, error: &ConsumerError, pause: Duration) {
///         eprintln!("{error}; trying again in {} s", pause.as_secs());
///     }
/// }
///
/// let lag = Arc::new(AtomicU64::new(0));
/// let orders = Consumer::builder("https://example.org/feeds/orders").observer(Lag(lag.clone()));
/// ```
pub trait Observer: Send {
    /// Something failed and is tried again after a pause, or at once if the pause is zero.
    fn retrying(&mut self, _error: &ConsumerError, _pause: Duration) {}

    /// The recent document came from a cache with a stale copy, as may happen while the server is
    /// down: newer entries may exist. Called once for stale copies in a row, at the first one.
    fn is_stale(&mut self) {}

    /// The consumer passes a gap ([`OnGap::GoOn`](crate::OnGap::GoOn)): the bookmarked entry, or a
    /// document on the way, has left the feed. Entries may be lost.
    fn gap(&mut self, _gap: &WalkError) {}

    /// A document has a fault, but the consumer can read the document all the same. Called once for
    /// each kind of fault.
    fn fault(&mut self, _fault: &FeedFault) {}

    /// A document was read. The number is that of the entries that wait to be delivered or are
    /// still to be fetched, up to the newest one at the last look. In a foreign feed, only entries
    /// that were read are counted.
    fn behind(&mut self, _entries: u64) {}

    /// There was nothing newer at the last look.
    fn caught_up(&mut self) {}

    /// A [`Worker`](crate::Worker)'s handler handled an entry.
    fn handled(&mut self, _delivery: &Delivery) {}

    /// A worker's handler failed. Unless the worker retries, [`skipped`](Self::skipped) or
    /// [`parked`](Self::parked) follows.
    fn failed(&mut self, _delivery: &Delivery, _attempt: &Attempt) {}

    /// A worker passed over an entry, for good.
    fn skipped(&mut self, _delivery: &Delivery) {}

    /// A worker set an entry aside, because the entry failed or (`waits`) because an entry with the
    /// same key is set aside.
    fn parked(&mut self, _delivery: &Delivery, _waits: bool) {}
}

/// Returns the number of entries in a run and behind it.
pub(crate) fn behind(run: &EntryRun, left: Option<u64>) -> u64 {
    let here = u64::try_from(run.entries.len()).unwrap_or(u64::MAX);
    here.saturating_add(left.unwrap_or(0))
}
