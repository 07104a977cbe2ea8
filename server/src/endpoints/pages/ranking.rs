//! Orders of feeds other than by name: the busiest feeds first, or those with the newest entries.
//!
//! Shell: the log, the counts, and the clock, which tells how old a kept order is.

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

/// Time for which the orders are kept, because making them takes a look at each feed that got
/// entries in the last day.
const KEPT: Duration = Duration::from_secs(10);
/// Maximum number of feeds in an order.
const RANKED_MAX: usize = 100_000;
/// Number of newest commits that are searched for feeds with new entries.
const COMMITS_MAX: u64 = 1_000;
/// Number of these commits that are read at a time.
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

    /// Returns the order that a text in a query names; the order by name for the empty text.
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
        // The lock is held while the orders are made, so that parallel requests share the orders.
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
        // Keys decide between feeds that are equal otherwise, so that the pages of an order fit
        // together.
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

    /// Returns at most `max` feeds in an order, after the first `skip`. Only feeds count that the
    /// reader may see, and that have `text`, which is in lower case, in their name or title.
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
        // Feeds of the newest commits come first, in their exact order. The counts order the other
        // feeds by minutes and hours.
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

/// Returns the feeds with entries in the newest commits, each once, the newest first.
fn newest_feeds(log: &dyn EntryLog) -> Result<Vec<FeedKey>, LogError> {
    let (mut seen, mut newest) = (HashSet::new(), vec![]);
    let mut end = log.head().number.0;
    let least = end.saturating_sub(COMMITS_MAX);
    while end > least {
        let begin = end.saturating_sub(COMMITS_TOGETHER).max(least);
        let mut next = begin + 1;
        let mut outlines = vec![];
        while next <= end {
            // One read returns fewer commits than wanted if the commits have many changes.
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
