//! Timelines: which entries of the feeds that it follows a timeline has, and in which order.
//!
//! Pure. A timeline has an entry if it followed the entry's feed at the entry's place in the log, or if a follow
//! brought the entry along (*backfill*); it has each entry at most once. So a timeline follows from commits alone, and
//! any way of keeping it gives the same entries in the same order.
//!
//! ```text
//! log        a0   b0   follow a, b and 1 back   a1   unfollow a   a2   b1
//! timeline             a0 b0                    a1                     b1
//! place                backfill 0, 1 of t       t'                     t''
//! ```
//!
//! The order is that of *places*, which are instants of the log. No publisher's date orders anything.
//!
//! [`Following`] keeps, of each feed, which positions came in which way: ranges, and a list of what follows brought
//! along. So its size grows with follows and unfollows, and never with the entries that feeds gain.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    ops::Range,
};

use crate::{
    feed::{FeedKey, FeedName, FeedPattern, Position},
    timestamp::Timestamp,
};

mod pages;

/// Place of an entry in a timeline: the instant at which it came, unique in the log. What a follow brings along comes at
/// the follow's instant, oldest first, before an entry of that instant.
///
/// Its text is opaque to clients, and sorts in no order that they may rely on.
///
/// # Examples
///
/// ```
/// use simplefeed_core::{timeline::Place, timestamp::Timestamp};
///
/// let instant = Timestamp::from_micros(1_700_000_000_000_001);
/// let (entry, brought) = (Place::of_entry(instant), Place::of_backfill(instant, 7));
/// assert!(brought < entry);
/// assert_eq!(brought.to_string(), "1700000000000001.7");
/// assert_eq!(Place::parse("1700000000000001.7"), Some(brought));
/// assert_eq!(Place::parse(&entry.to_string()), Some(entry));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    instant: Timestamp,
    /// Index among the entries that a follow brought along; the largest number for an entry of the instant itself.
    rank: u32,
}

impl Place {
    /// Returns the place of an entry that its feed gained at `instant`.
    pub fn of_entry(instant: Timestamp) -> Self {
        Self {
            instant,
            rank: u32::MAX,
        }
    }

    /// Returns the place of the entry with this index among those that follows at `instant` brought along.
    pub fn of_backfill(instant: Timestamp, index: u32) -> Self {
        Self {
            instant,
            // A request brings at most some thousand entries along.
            rank: index.min(u32::MAX - 1),
        }
    }

    /// Returns the instant at which the entry came into the timeline.
    pub fn instant(self) -> Timestamp {
        self.instant
    }

    /// Returns the place of a text, or `None` if there is no such place. Only the form that [`Display`](fmt::Display)
    /// writes is one, so that each place has one URL.
    pub fn parse(text: &str) -> Option<Self> {
        let (instant, index) = match text.split_once('.') {
            Some((instant, index)) => (instant, Some(index.parse().ok()?)),
            None => (text, None),
        };
        let instant = Timestamp::from_micros(instant.parse().ok()?);
        let place = index.map_or_else(
            || Self::of_entry(instant),
            |index| Self::of_backfill(instant, index),
        );
        (place.to_string() == text).then_some(place)
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.instant.micros())?;
        if self.rank < u32::MAX {
            write!(f, ".{}", self.rank)?;
        }
        Ok(())
    }
}

/// Entry of a timeline: an entry of a feed that it follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// Place of the entry in the timeline.
    pub place: Place,
    /// Feed that the entry was appended to.
    pub feed: FeedKey,
    /// Position of the entry in that feed.
    pub at: Position,
}

/// Something to follow: a feed, or the feeds that match a pattern, later ones included.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Item {
    /// One feed.
    Feed(FeedKey),
    /// All feeds whose names match.
    Pattern(FeedPattern),
}

/// Request to change what a timeline follows. All of it counts at once: what is unfollowed ends, what is followed
/// begins, and a feed that goes on being followed is left alone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// Items to follow from now on. An item that is followed already stays as it is.
    pub follow: Vec<Item>,
    /// Items to follow no longer. What they brought stays.
    pub unfollow: Vec<Item>,
    /// Newest entries that each feed brings along which was not followed before.
    pub backfill: u32,
}

/// Choices of a timeline, made at its creation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Terms {
    /// Feed of the timeline's owner, and whether the timeline has its entries. Without them it is left out, whatever is
    /// followed.
    pub own: Option<(FeedKey, bool)>,
    /// Whether the timeline is closed. An open one takes nothing from a closed feed.
    pub is_closed: bool,
}

/// Feeds, as they are at one instant of the log.
pub trait Feeds {
    /// Returns the feeds that match a pattern. Timelines are none of them.
    fn matching(&self, pattern: &FeedPattern) -> Vec<FeedKey>;

    /// Returns what there is of a feed.
    fn feed(&self, feed: FeedKey) -> Option<Feed>;

    /// Returns the instant of an entry that the feed has.
    fn instant(&self, feed: FeedKey, at: Position) -> Timestamp;
}

/// A feed at one instant of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Feed {
    /// Name that patterns match.
    pub name: FeedName,
    /// Position that its next entry gets.
    pub next: Position,
    /// Whether only those with a right to it may see it.
    pub is_closed: bool,
}

/// What a timeline follows, and which positions of each feed it has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Following {
    terms: Terms,
    items: BTreeSet<Item>,
    feeds: BTreeMap<FeedKey, Held>,
    /// What follows brought along, in the order of their places.
    batches: Vec<Batch>,
}

/// Positions of a feed that a timeline has. No position is in two ranges.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Held {
    /// Ranges that came as the feed gained them, and are over.
    past: Vec<Range<Position>>,
    /// First position of the range that goes on.
    live: Option<Position>,
    /// Ranges that follows brought along.
    brought: Vec<Range<Position>>,
}

/// Entries that a request brought along.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Batch {
    instant: Timestamp,
    /// Index of its first entry: requests at one instant share the indexes.
    first: u32,
    /// Entries in the order of their places.
    entries: Vec<(FeedKey, Position)>,
}

impl Following {
    /// Returns the state of a new timeline. If it has its owner's feed, that counts as followed from `feeds` on.
    pub fn new(terms: Terms, feeds: &impl Feeds) -> Self {
        let mut following = Self {
            terms,
            ..Self::default()
        };
        if let Some((own, true)) = terms.own {
            following.adjust(own, feeds);
        }
        following
    }

    /// Returns what is followed, feeds first.
    pub fn items(&self) -> impl Iterator<Item = &Item> {
        self.items.iter()
    }

    /// Returns whether a feed's entries come into the timeline now.
    pub fn takes(&self, feed: FeedKey) -> bool {
        self.feeds
            .get(&feed)
            .is_some_and(|held| held.live.is_some())
    }

    /// Returns every feed of which the timeline has, or may get, entries.
    pub fn sources(&self) -> impl Iterator<Item = FeedKey> {
        self.feeds.keys().copied()
    }

    /// Changes what is followed, at an instant of the log. `feeds` are as they are there.
    pub fn change(&mut self, change: &Change, instant: Timestamp, feeds: &impl Feeds) {
        let mut touched = BTreeSet::new();
        for item in &change.unfollow {
            if self.items.remove(item) {
                touched.extend(feeds_of(item, feeds));
            }
        }
        for item in &change.follow {
            if self.items.insert(item.clone()) {
                touched.extend(feeds_of(item, feeds));
            }
        }
        let began: Vec<FeedKey> = touched
            .into_iter()
            .filter(|feed| self.adjust(*feed, feeds))
            .collect();
        self.bring(&began, change.backfill, instant, feeds);
    }

    /// Takes note of a feed that was created or opened, which a pattern may match.
    pub fn appeared(&mut self, feed: FeedKey, feeds: &impl Feeds) {
        self.adjust(feed, feeds);
    }

    /// Begins or ends to take the entries of a feed, as the items and terms want it. Returns whether it begins.
    fn adjust(&mut self, feed: FeedKey, feeds: &impl Feeds) -> bool {
        let Some(now) = feeds.feed(feed) else {
            return false;
        };
        let is_wanted = self.wants(feed, &now);
        let held = self.feeds.get(&feed).and_then(|held| held.live);
        match (held, is_wanted) {
            (None, true) => {
                self.feeds.entry(feed).or_default().live = Some(now.next);
                true
            }
            (Some(first), false) => {
                let held = self.feeds.entry(feed).or_default();
                held.live = None;
                if first < now.next {
                    held.past.push(first..now.next);
                }
                false
            }
            _ => false,
        }
    }

    fn wants(&self, feed: FeedKey, now: &Feed) -> bool {
        let is_seen = self.terms.is_closed || !now.is_closed;
        let is_followed = match self.terms.own {
            Some((own, is_had)) if own == feed => is_had,
            _ => self.items.iter().any(|item| match item {
                Item::Feed(followed) => *followed == feed,
                Item::Pattern(pattern) => pattern.matches(&now.name),
            }),
        };
        is_seen && is_followed
    }

    /// Brings the newest `count` entries of each feed along, but those that the timeline has.
    fn bring(&mut self, began: &[FeedKey], count: u32, instant: Timestamp, feeds: &impl Feeds) {
        let mut entries = vec![];
        for feed in began {
            let Some(held) = self.feeds.get_mut(feed) else {
                continue;
            };
            let end = held.live.unwrap_or_default();
            let begin = Position(end.0.saturating_sub(count.into()));
            let missing = held.missing(begin..end);
            for range in &missing {
                entries.extend((range.start.0..range.end.0).map(|at| (*feed, Position(at))));
            }
            held.brought.extend(missing);
        }
        if entries.is_empty() {
            return;
        }
        entries.sort_by_key(|(feed, at)| feeds.instant(*feed, *at));
        let last = self.batches.last().filter(|batch| batch.instant == instant);
        let first = last.map_or(0, |batch| batch.first + count_of(batch.entries.len()));
        self.batches.push(Batch {
            instant,
            first,
            entries,
        });
    }
}

impl Held {
    /// Returns the parts of a range that the timeline does not have.
    fn missing(&self, wanted: Range<Position>) -> Vec<Range<Position>> {
        let mut had: Vec<&Range<Position>> = self.past.iter().chain(&self.brought).collect();
        had.sort_by_key(|range| range.start);
        let (mut missing, mut next) = (vec![], wanted.start);
        for range in had {
            let gap = next..range.start.min(wanted.end);
            if gap.start < gap.end {
                missing.push(gap);
            }
            next = next.max(range.end);
        }
        if next < wanted.end {
            missing.push(next..wanted.end);
        }
        missing
    }
}

impl Batch {
    fn place(&self, index: usize) -> Place {
        Place::of_backfill(self.instant, self.first + count_of(index))
    }
}

fn count_of(entries: usize) -> u32 {
    u32::try_from(entries).unwrap_or(u32::MAX)
}

fn feeds_of(item: &Item, feeds: &impl Feeds) -> Vec<FeedKey> {
    match item {
        Item::Feed(feed) => vec![*feed],
        Item::Pattern(pattern) => feeds.matching(pattern),
    }
}

#[cfg(test)]
mod tests;
