//! A section of the page of a feed, in a file of its own.
//!
//! Pure. The page of a feed names no view: what a view has to say is a section, and a row in the
//! list of sections.

use std::fmt;

use simplefeed_core::{
    feed::{FeedKey, FeedName},
    timestamp::Timestamp,
};

use super::plot::PlotWindow;

/// Facts of the page that a section stands in.
#[derive(Clone, Copy, Debug)]
pub struct SectionPage<'p> {
    /// Feed that the page is about.
    pub feed: FeedKey,
    /// Name of the feed.
    pub name: &'p FeedName,
    /// Whether the feed is a timeline.
    pub is_timeline: bool,
    /// Window of time that the reader asks for; `None` for the whole history.
    pub(super) window: Option<&'p PlotWindow>,
    /// Relative URL of the pages.
    pub ui: &'p str,
    /// Time of the request.
    pub now: Timestamp,
}

/// Part of a feed's page.
pub trait Section: fmt::Debug + Send + Sync {
    /// Returns the HTML of the section; `None` if there is nothing to show, or the section cannot be
    /// made, which is logged.
    fn html(&self, page: &SectionPage<'_>) -> Option<String>;
}
