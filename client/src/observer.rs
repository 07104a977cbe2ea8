//! What an operator may want to know while a consumer goes on by itself.
//!
//! Pure: the seam to metrics and logs.

use simplefeed_core::replay::{Run, WalkError};

use crate::{bookmark::Attempt, delivery::Delivery, error::ConsumerError};

/// Is told what a consumer does and bears. Every method has an empty default.
///
/// They are called on the consumer's own task, which waits for them.
///
/// # Examples
///
/// A gauge for a dashboard:
///
/// ```
/// use std::sync::{
///     Arc,
///     atomic::{AtomicU64, Ordering},
/// };
/// use simplefeed_client::{Consumer, ConsumerError, Observer};
///
/// struct Lag(Arc<AtomicU64>);
///
/// impl Observer for Lag {
///     fn behind(&mut self, entries: u64) {
///         self.0.store(entries, Ordering::Relaxed);
///     }
///     fn retrying(&mut self, error: &ConsumerError) {
///         eprintln!("waiting: {error}");
///     }
/// }
///
/// let lag = Arc::new(AtomicU64::new(0));
/// let orders = Consumer::builder("https://example.org/feeds/orders").observer(Lag(lag.clone()));
/// ```
pub trait Observer: Send {
    /// Something failed and will be tried again.
    fn retrying(&mut self, _error: &ConsumerError) {}

    /// The recent document came from a cache whose copy is past its time, as may be while the server is
    /// down: there may be entries that are not seen yet. Told when it begins.
    fn sees_the_past(&mut self) {}

    /// The consumer passes a gap ([`OnGap::GoOn`](crate::OnGap::GoOn)): the bookmarked entry, or a document on the
    /// way, has left the feed. Entries may be lost.
    fn gap(&mut self, _gap: &WalkError) {}

    /// A document was read. So many entries are waiting now to be delivered, or to be fetched up to what
    /// was newest at the last look; of a foreign feed only those that were read are counted.
    fn behind(&mut self, _entries: u64) {}

    /// There was nothing newer at the last look.
    fn caught_up(&mut self) {}

    /// A [`Worker`](crate::Worker)'s handler took an entry.
    fn handled(&mut self, _delivery: &Delivery) {}

    /// A worker's handler failed; what comes of it is told next, unless it is tried again.
    fn failed(&mut self, _delivery: &Delivery, _attempt: &Attempt) {}

    /// A worker passed over an entry, for good.
    fn skipped(&mut self, _delivery: &Delivery) {}

    /// A worker set an entry aside, because it failed or (`waits`) because one with the same key did.
    fn parked(&mut self, _delivery: &Delivery, _waits: bool) {}
}

/// Returns how many entries there are in a run and behind it.
pub(crate) fn behind(run: &Run, left: Option<u64>) -> u64 {
    let here = u64::try_from(run.entries.len()).unwrap_or(u64::MAX);
    here.saturating_add(left.unwrap_or(0))
}
