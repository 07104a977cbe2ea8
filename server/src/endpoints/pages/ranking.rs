//! Orders of feeds other than by name: the busiest, and those with the newest entries.
//!
//! Shell: the clock, for the time that an order is kept.

use std::{
    cmp::Reverse,
    collections::HashSet,
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use simplefeed_core::{
    commit::ChangeOutline,
    feed::{CommitNumber, FeedKey},
    plan::FeedHead,
    settings::Settings,
    sight::Sight,
};
use simplefeed_log::{EntryLog, LogError, settings_of};
use simplefeed_views::{error::ViewError, rates::Active};

use super::{PageReading, plot::Spark};
use crate::endpoints::may_see;

/// Time that an order by counts is kept: to make it takes a look at each feed of the last day.
const KEPT: Duration = Duration::from_secs(10);
/// Feeds of an order that are looked at.
const RANKED_MAX: usize = 100_000;
/// Newest commits that are looked at for their feeds, in all and at a time.
const COMMITS_MAX: u64 = 1_000;
const COMMITS_TOGETHER: u64 = 500;

/// Order of a list of feeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ListOrder {
    /// By name, in ascending order.
    Name,
    /// Most entries in the last day first.
    Busiest,
    /// Feed with the newest entry first.
    Newest,
}

impl ListOrder {
    /// All orders, as the page of feeds offers them.
    pub(super) const ALL: [Self; 3] = [Self::Name, Self::Busiest, Self::Newest];

    /// Returns the text of an order in a query.
    pub(super) fn text(self) -> &'static str {
        match self {
            Self::Name => "name",
            Self::Busiest => "busiest",
            Self::Newest => "newest",
        }
    }

    /// Returns the order for people.
    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Name => "Name",
            Self::Busiest => "Busiest today",
            Self::Newest => "Newest",
        }
    }

    /// Returns the order that a query names; by name without one.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let named = |order: &Self| order.text() == text;
        match text {
            "" => Some(Self::Name),
            _ => Self::ALL.into_iter().find(named),
        }
    }
}

/// Active feeds in both orders, as they were a short time ago.
#[derive(Debug)]
struct RankedFeeds {
    made: Instant,
    busiest: Arc<[FeedKey]>,
    newest: Arc<[FeedKey]>,
}

/// Orders of the feeds that got entries in the last day.
#[derive(Debug, Default)]
pub struct Ranking(Mutex<Option<RankedFeeds>>);

impl Ranking {
    fn ranked_feeds(
        &self,
        reading: &PageReading,
        order: ListOrder,
    ) -> Result<Arc<[FeedKey]>, ViewError> {
        // Held while the orders are made, so that parallel requests share them.
        let mut kept = self.0.lock();
        let of = |ranked: &RankedFeeds| match order {
            ListOrder::Busiest => Arc::clone(&ranked.busiest),
            ListOrder::Newest | ListOrder::Name => Arc::clone(&ranked.newest),
        };
        let is_fresh = |ranked: &&RankedFeeds| ranked.made.elapsed() < KEPT;
        if let Some(ranked) = kept.as_ref().filter(is_fresh) {
            return Ok(of(ranked));
        }
        let mut active = reading.rates.active(Spark::hours(reading.now))?;
        let keys = |active: &[Active]| active.iter().take(RANKED_MAX).map(|one| one.feed).collect();
        // Keys decide between equals, so that the pages of an order fit together.
        active.sort_unstable_by_key(|one| (Reverse(one.entries), one.feed));
        let busiest = keys(&active);
        active.sort_unstable_by_key(|one| (Reverse(one.newest), one.feed));
        let newest = keys(&active);
        let ranked = RankedFeeds {
            made: Instant::now(),
            busiest,
            newest,
        };
        let found = of(&ranked);
        *kept = Some(ranked);
        Ok(found)
    }

    /// Returns at most `max` feeds in an order behind the first `skip`, of those that a reader may
    /// see, and whose name or title has a text in lower case.
    ///
    /// # Errors
    ///
    /// Returns why the log, or the counts, cannot be read.
    pub(super) fn list(
        &self,
        reading: &PageReading,
        log: &dyn EntryLog,
        (order, text): (ListOrder, &str),
        sight: &Sight,
        (skip, max): (usize, usize),
    ) -> Result<Vec<(FeedHead, Settings)>, ViewError> {
        let ranked = self.ranked_feeds(reading, order)?;
        // Those of the last seconds first, exactly; then by minutes and hours.
        let first = match order {
            ListOrder::Newest => newest_feeds(log)?,
            ListOrder::Busiest | ListOrder::Name => vec![],
        };
        let (mut found, mut skipped, mut seen) = (vec![], 0, HashSet::new());
        let series = &**reading.shelf.documents.log();
        for &feed in first.iter().chain(&*ranked) {
            if !seen.insert(feed) {
                continue;
            }
            let Some(head) = series.feed(feed)? else {
                continue;
            };
            let settings = settings_of(series, feed, head.revision)?;
            let has_text = settings.name.as_str().contains(text)
                || settings.title().to_lowercase().contains(text);
            if has_text && may_see(&reading.shelf.timelines, feed, &settings, sight)? {
                if skipped < skip {
                    skipped += 1;
                } else {
                    found.push((head, settings));
                }
            }
            if found.len() == max {
                break;
            }
        }
        Ok(found)
    }
}

/// Returns the feeds of the newest commits, each once, the newest first.
fn newest_feeds(log: &dyn EntryLog) -> Result<Vec<FeedKey>, LogError> {
    let (mut seen, mut newest) = (HashSet::new(), vec![]);
    let mut end = log.head().number.0;
    let least = end.saturating_sub(COMMITS_MAX);
    while end > least {
        let begin = end.saturating_sub(COMMITS_TOGETHER).max(least);
        let mut next = begin + 1;
        let mut outlines = vec![];
        while next <= end {
            // One read returns fewer commits than wanted where these have many changes.
            let wanted = usize::try_from(end - next + 1).unwrap_or(usize::MAX);
            let some = log.outlines(CommitNumber(next), wanted)?;
            let Some(last) = some.last() else { break };
            next = last.number.0 + 1;
            outlines.extend(some);
        }
        let changes = outlines
            .iter()
            .rev()
            .flat_map(|outline| outline.changes.iter().rev());
        for change in changes {
            if let ChangeOutline::Entries { feed, .. } = change
                && seen.insert(*feed)
            {
                newest.push(*feed);
            }
        }
        end = begin;
    }
    Ok(newest)
}
