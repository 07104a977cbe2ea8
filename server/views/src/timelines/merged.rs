//! The log with timelines, which all readers use as their log.
//!
//! Shell: the log, which answers every lookup that is not about a timeline.

use std::{
    collections::HashMap,
    ops::Range,
    path::{Path, PathBuf},
    sync::Arc,
};

use simplefeed_core::{
    commit::{Commit, Outline},
    entry::Entry,
    feed::{CommitNumber, DocumentNumber, EntryId, FeedKey, FeedName, Position, Revision},
    history::ChainHash,
    plan::{FeedHead, KnownEntry, Opening},
    settings::{Defaults, Settings},
    timeline::Place,
};
use simplefeed_log::{
    Commits, EntryLog, Ids, LogError, LogHead, LogRoom, PlacedEntry, Series, Space,
    announcements::Announcements,
};

use super::{Timelines, fan_out::Keeping};
use crate::shown::{ShownLog, ShownSeries, SupIdentity, TimelineSources};

/// A log in which timelines look like feeds.
#[derive(Debug)]
pub struct MergedLog {
    log: Arc<dyn EntryLog>,
    timelines: Arc<Timelines>,
}

impl MergedLog {
    /// Returns the log of `timelines` in a form in which the timelines look like feeds.
    pub fn new(timelines: Arc<Timelines>) -> Self {
        let log = Arc::clone(&timelines.log);
        Self { log, timelines }
    }

    /// Returns the head of a feed as readers see it, given the head in the log.
    fn shown_head(&self, head: Option<FeedHead>) -> Result<Option<FeedHead>, LogError> {
        // In the log, each timeline is empty, because commits do not record deliveries.
        match head {
            Some(head) if self.timelines.is_timeline(head.feed)? => self.timelines.head(head.feed),
            head => Ok(head),
        }
    }
}

/// Returns a log with timelines, for one task.
///
/// # Errors
///
/// Returns why the log cannot be read.
pub fn with_timelines(log: &Arc<dyn EntryLog>) -> Result<Arc<dyn ShownLog>, LogError> {
    let timelines = Timelines::new(Arc::clone(log), None, Keeping::default())?;
    Ok(Arc::new(MergedLog::new(Arc::new(timelines))))
}

impl Commits for MergedLog {
    fn announcements(&self) -> &Announcements {
        self.log.announcements()
    }

    fn head(&self) -> LogHead {
        self.log.head()
    }

    fn commits(&self, from: CommitNumber, max: usize) -> Result<Vec<Commit>, LogError> {
        self.log.commits(from, max)
    }

    fn outlines(&self, from: CommitNumber, max: usize) -> Result<Vec<Outline>, LogError> {
        self.log.outlines(from, max)
    }

    fn chain(&self, number: CommitNumber) -> Result<Option<ChainHash>, LogError> {
        self.log.chain(number)
    }

    fn check_seen(&self) -> Result<(), LogError> {
        self.log.check_seen()
    }
}

impl Series for MergedLog {
    fn entries(&self, feed: FeedKey, range: Range<Position>) -> Result<Vec<Entry>, LogError> {
        if self.timelines.is_timeline(feed)? {
            return self.timelines.entries(feed, range);
        }
        self.log.entries(feed, range)
    }

    fn feed(&self, feed: FeedKey) -> Result<Option<FeedHead>, LogError> {
        self.shown_head(self.log.feed(feed)?)
    }

    fn named(&self, name: &FeedName) -> Result<Option<FeedHead>, LogError> {
        self.shown_head(self.log.named(name)?)
    }

    fn settings(&self, feed: FeedKey, revision: Revision) -> Result<Option<Settings>, LogError> {
        if self.timelines.is_timeline(feed)? {
            return self.timelines.settings(feed, revision);
        }
        self.log.settings(feed, revision)
    }

    fn defaults(&self, revision: Revision) -> Result<Option<Defaults>, LogError> {
        self.log.defaults(revision)
    }

    fn opening(
        &self,
        feed: FeedKey,
        document: DocumentNumber,
    ) -> Result<Option<Opening>, LogError> {
        if self.timelines.is_timeline(feed)? {
            return self.timelines.opening(feed, document);
        }
        self.log.opening(feed, document)
    }

    fn feeds(
        &self,
        after: Option<&FeedName>,
        max: usize,
    ) -> Result<Vec<(FeedName, FeedHead)>, LogError> {
        let mut feeds = vec![];
        for (name, head) in self.log.feeds(after, max)? {
            if let Some(head) = self.shown_head(Some(head))? {
                feeds.push((name, head));
            }
        }
        Ok(feeds)
    }

    fn page(
        &self,
        feed: FeedKey,
        anchor: Option<Place>,
        limit: i64,
    ) -> Result<Vec<PlacedEntry>, LogError> {
        if self.timelines.is_timeline(feed)? {
            return self.timelines.page(feed, anchor, limit);
        }
        self.log.page(feed, anchor, limit)
    }
}

impl ShownSeries for MergedLog {
    fn is_timeline(&self, feed: FeedKey) -> Result<bool, LogError> {
        self.timelines.is_timeline(feed)
    }

    fn timeline_number(&self, feed: FeedKey) -> Result<Option<u32>, LogError> {
        self.timelines.number(feed)
    }

    fn concerned(&self, commit: &Outline, add: &mut dyn FnMut(u32)) -> Result<(), LogError> {
        self.timelines.concerned(commit, add)
    }

    fn identities(&self, timelines: &[u32]) -> Vec<Option<SupIdentity>> {
        self.timelines.identities(timelines)
    }

    fn sources(&self, feed: FeedKey) -> Result<Option<TimelineSources>, LogError> {
        self.timelines.sources(feed)
    }
}

impl Ids for MergedLog {
    fn find_all(
        &self,
        feed: FeedKey,
        ids: &[&EntryId],
    ) -> Result<HashMap<EntryId, KnownEntry>, LogError> {
        self.log.find_all(feed, ids)
    }
}

impl LogRoom for MergedLog {
    fn is_open(&self) -> bool {
        self.log.is_open()
    }

    fn is_displaced(&self) -> bool {
        self.log.is_displaced()
    }

    fn is_lacking(&self) -> bool {
        self.log.is_lacking()
    }

    fn end_as_replaced(&self, document: &Path) {
        self.log.end_as_replaced(document);
    }

    fn replaced_by(&self) -> Option<PathBuf> {
        self.log.replaced_by()
    }

    fn room_for(&self, bytes: u64) -> Result<Space, LogError> {
        self.log.room_for(bytes)
    }
}
