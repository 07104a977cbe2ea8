//! The graph of follows, as the writer asks for it.
//!
//! Pure: the seam to the timelines.

use simplefeed_core::{feed::FeedKey, follow::Item, plan::FeedHead};

/// Graph of follows, after every commit of the log. It never makes the writer wait.
pub trait Follows: Send + Sync {
    /// Returns the items that a timeline follows; `None` while the graph lags far behind.
    fn items(&self, timeline: FeedKey) -> Option<Vec<Item>>;

    /// Returns the end of a timeline as readers see it, or `None` if that is not known yet.
    fn head(&self, timeline: FeedKey) -> Option<FeedHead>;

    /// Returns the number of timelines, or `None` if that is not known yet.
    fn timelines(&self) -> Option<u64>;
}
