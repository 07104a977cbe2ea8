//! A section of the page of a feed, in a file of its own.
//!
//! Pure. The page of a feed names no view. A view that shows something there adds a section, and a
//! row in the list of sections.

use std::fmt;

use simplefeed_core::{
    feed::{FeedKey, FeedName},
    timestamp::Timestamp,
};

use super::plot::PlotWindow;

/// Facts about the page that a section is a part of.
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
    /// URL of `/ui/`, relative to the URL of the page.
    pub ui: &'p str,
    /// Time of the request.
    pub now: Timestamp,
}

/// Part of a feed's page.
pub trait Section: fmt::Debug + Send + Sync {
    /// Returns the HTML of the section; `None` if there is nothing to show, or if the section
    /// cannot be made. Such a failure is logged.
    fn html(&self, page: &SectionPage<'_>) -> Option<String>;
}
