//! Timelines, as the writer asks for them.
//!
//! Shell: the timelines in memory. The writer and the views do not know each other, so this file
//! stands between them.

use std::sync::Arc;

use simplefeed_core::{feed::FeedKey, follow::FollowItem, plan::FeedHead};
use simplefeed_publish::follows::Follows;
use simplefeed_views::timelines::Timelines;

/// Follows of the timelines of a server.
#[derive(Clone, Debug)]
pub(crate) struct TimelineFollows(pub(crate) Arc<Timelines>);

impl Follows for TimelineFollows {
    fn items(&self, timeline: FeedKey) -> Option<Vec<FollowItem>> {
        self.0.items_at_once(timeline)
    }

    fn head(&self, timeline: FeedKey) -> Option<FeedHead> {
        self.0.head_at_once(timeline)
    }

    fn timelines(&self) -> Option<u64> {
        self.0.count_at_once()
    }
}
