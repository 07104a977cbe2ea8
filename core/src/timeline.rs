//! Timelines: which entries of the followed feeds a timeline has, and in which order.
//!
//! Pure. A timeline has an entry if the timeline followed the entry's feed when the entry was
//! committed, or if a follow brought the entry along (*backfill*). No entry comes twice. So the
//! commits alone decide which entries a timeline has, and every way of storing a timeline gives the
//! same entries in the same order.
//!
//! ```text
//! log        a0   b0   follow a, b and 1 back   a1   unfollow a   a2   b1
//! timeline             a0 b0                    a1                     b1
//! place                backfill 0, 1 of t       t'                     t''
//! ```
//!
//! Entries stand in the order of their *places*, which are instants of the log. Publishers' dates
//! have no effect on the order.
//!
//! [`FollowState`] keeps, for each feed, which ranges of positions came in which way, and a list of
//! the entries that follows brought along. So the size of the state grows with follows and
//! unfollows, and never with the entries that feeds gain. A server has millions of follows, so a
//! small key `S` stands for a feed.

use std::{
    collections::{BTreeSet, BinaryHeap},
    fmt,
    ops::Range,
};

use serde::{Deserialize, Serialize};

use crate::{
    feed::{FeedKey, FeedName, FeedPattern, Position},
    follow::{FollowChange, FollowItem},
    limits::BACKFILL_TOTAL_MAX,
    timestamp::Timestamp,
};

pub mod cuts;
mod pages;
pub mod showing;

/// Place of an entry in a timeline: the instant at which the entry came into the timeline. Each
/// entry that a feed gains has an instant that no other entry has. Entries that a follow brings
/// along share the follow's instant: they stand oldest first, before an entry that a feed gained at
/// that instant.
///
/// The text of a place is opaque to clients, who may rely on no sort order.
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
    /// Index among the entries that follows at this instant brought along; `u32::MAX` for an entry
    /// that a feed gained at this instant.
    rank: u32,
}

impl Place {
    /// Returns the place of an entry that a feed gained at `instant`.
    pub fn of_entry(instant: Timestamp) -> Self {
        Self {
            instant,
            rank: u32::MAX,
        }
    }

    /// Returns the place of the entry with this index among the entries that follows at `instant`
    /// brought along.
    pub fn of_backfill(instant: Timestamp, index: u32) -> Self {
        Self {
            instant,
            // A request brings at most `BACKFILL_TOTAL_MAX` entries along, so this bound is never
            // reached.
            rank: index.min(u32::MAX - 1),
        }
    }

    /// Returns the instant at which the entry came into the timeline.
    pub fn instant(self) -> Timestamp {
        self.instant
    }

    /// Returns the place that a text stands for, or `None` if the text stands for no place. Only
    /// the form that [`Display`](fmt::Display) writes is accepted, so that each place has one URL.
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

/// Entry of a timeline: an entry of a followed feed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimelineEntry<S = FeedKey> {
    /// Place of the entry in the timeline.
    pub place: Place,
    /// Feed that the entry was appended to.
    pub feed: S,
    /// Position of the entry in that feed.
    pub at: Position,
}

/// Choices of a timeline, made at creation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Terms<S = FeedKey> {
    /// Feed of the timeline's owner, and whether the timeline has that feed's entries. If not, that
    /// feed is left out even if a followed item names or matches that feed.
    pub own: Option<(S, bool)>,
    /// Whether the timeline is closed. An open timeline takes nothing from a closed feed.
    pub is_closed: bool,
}

impl<S> Default for Terms<S> {
    fn default() -> Self {
        Self {
            own: None,
            is_closed: false,
        }
    }
}

/// Entries of feeds, as far as a reader sees them.
pub trait Entries<S = FeedKey> {
    /// Returns the position that the next entry of a feed gets.
    fn next(&self, feed: S) -> Position;

    /// Returns the instant of an entry that the feed has.
    fn instant(&self, feed: S, at: Position) -> Timestamp;

    /// Returns the timeline's entries, as far as they were gathered beforehand. By default, no
    /// entries were gathered, and the timeline is merged from the feeds.
    fn gathered(&self) -> Option<&dyn GatheredEntries<S>> {
        None
    }
}

/// Entries that came into a timeline when their feeds gained them, and not by backfill; gathered
/// beforehand.
///
/// Each entry in a range of [`FollowState::gained`] is either in the list, or in a range apart from
/// the list.
pub trait GatheredEntries<S> {
    /// Returns the number of entries in the list.
    fn count(&self) -> u64;

    /// Returns the entry at an index of the list. The list has the order of places.
    fn delivery(&self, index: u64) -> TimelineEntry<S>;

    /// Returns the ranges that are not in the list; a reader merges them with the list.
    fn apart(&self) -> &[(S, Range<Position>)];
}

/// Feeds, as they are at one instant of the log.
pub trait Feeds<S = FeedKey>: Entries<S> {
    /// Returns the feeds that match a pattern. Timelines are not among these feeds.
    fn matching(&self, pattern: &FeedPattern) -> Vec<S>;

    /// Returns the name of a feed and whether it is closed; `None` if there is no such feed.
    fn feed(&self, feed: S) -> Option<FeedMoment>;

    /// Returns the ranges of a feed's positions whose entries are lost, in the order of positions;
    /// by default none.
    fn lost(&self, _feed: S) -> Vec<Range<Position>> {
        vec![]
    }

    /// Returns the instant of an entry that a follow is to bring along, or `None` if the entry is
    /// no longer available. By default, all entries are available.
    fn there(&self, feed: S, at: Position) -> Option<Timestamp> {
        Some(self.instant(feed, at))
    }
}

/// A feed at one instant of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FeedMoment {
    /// Name with which patterns are compared.
    pub name: FeedName,
    /// Whether only readers with a right to the feed may see the feed.
    pub is_closed: bool,
}

/// Items that a timeline follows, and the positions of each feed whose entries the timeline has.
///
/// Serialised only for snapshots, which a server of another version may refuse.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FollowState<S = FeedKey> {
    terms: Terms<S>,
    /// Feeds that are followed by their names, in the order of their keys.
    items: Vec<S>,
    patterns: Vec<FeedPattern>,
    /// Feeds of which the timeline has, or may get, entries, in the order of their keys.
    feeds: Vec<HeldFeed<S>>,
    /// Entries that follows brought along, in the order of their places.
    batches: Vec<BroughtEntries<S>>,
}

/// A feed in a timeline. No position is in two ranges of the feed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct HeldFeed<S> {
    feed: S,
    /// First position of the range that still grows; `None` if the timeline gets no new entries of
    /// the feed.
    live: Option<Position>,
    /// All other ranges. The box keeps the common case small: few feeds have such ranges, and a
    /// server has millions of follows.
    other: Option<Box<Other>>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Other {
    /// Ranges of entries that came when the feed gained them; these ranges grow no more.
    past: Vec<Range<Position>>,
    /// Ranges of entries that follows brought along.
    brought: Vec<Range<Position>>,
}

/// Entries that a request brought along.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct BroughtEntries<S> {
    instant: Timestamp,
    /// Index of the request's first entry. Requests at one instant share one sequence of indexes.
    first: u32,
    /// Entries in the order of their places.
    entries: Vec<(S, Position)>,
}

impl<S: Copy + Ord> FollowState<S> {
    /// Returns the state of a new timeline. If the timeline has the entries of the owner's feed,
    /// that feed counts as followed from the instant of `feeds` on.
    pub fn new(terms: Terms<S>, feeds: &impl Feeds<S>) -> Self {
        let mut following = Self {
            terms,
            items: vec![],
            patterns: vec![],
            feeds: vec![],
            batches: vec![],
        };
        if let Some((own, true)) = terms.own {
            following.adjust_feeds(&BTreeSet::from([own]), feeds);
        }
        following
    }

    /// Releases the spare memory of the list of feeds.
    pub fn shrink_to_fit(&mut self) {
        self.feeds.shrink_to_fit();
    }

    /// Returns the choices of the timeline.
    pub fn terms(&self) -> Terms<S> {
        self.terms
    }

    /// Returns the followed items, feeds first.
    pub fn items(&self) -> impl Iterator<Item = FollowItem<S>> {
        let feeds = self.items.iter().copied().map(FollowItem::Feed);
        let patterns = self.patterns.iter().cloned().map(FollowItem::Pattern);
        feeds.chain(patterns)
    }

    /// Returns the feeds that are followed by their names, in the order of their keys.
    pub fn named(&self) -> &[S] {
        &self.items
    }

    /// Returns the patterns that are followed.
    pub fn patterns(&self) -> &[FeedPattern] {
        &self.patterns
    }

    /// Returns whether an item itself is followed; a feed that only matches a followed pattern is
    /// not.
    pub fn has(&self, item: &FollowItem<S>) -> bool {
        match item {
            FollowItem::Feed(feed) => self.items.binary_search(feed).is_ok(),
            FollowItem::Pattern(pattern) => self.patterns.contains(pattern),
        }
    }

    /// Returns whether new entries of a feed come into the timeline.
    pub fn takes(&self, feed: S) -> bool {
        self.held_feed(feed).is_some_and(|held| held.live.is_some())
    }

    /// Returns whether the timeline follows a feed by name, or has, or may get, entries of the
    /// feed.
    pub fn is_source(&self, feed: S) -> bool {
        self.held_feed(feed).is_some() || self.has(&FollowItem::Feed(feed))
    }

    /// Returns every feed of which the timeline has, or may get, entries.
    pub fn sources(&self) -> impl ExactSizeIterator<Item = S> {
        self.feeds.iter().map(|held| held.feed)
    }

    /// Returns the ranges within `range` whose entries came into the timeline when the feed gained
    /// them. For positions that the feed already has, the answer never changes.
    pub fn gained(
        &self,
        feed: S,
        range: Range<Position>,
    ) -> impl Iterator<Item = Range<Position>> + use<'_, S> {
        let held = self.held_feed(feed).into_iter();
        held.flat_map(move |held| {
            let other = held.other.iter();
            let past = other.flat_map(|other| other.past.iter().cloned());
            let live = held.live.map(|first| first..range.end);
            let (start, end) = (range.start, range.end);
            let common = past
                .chain(live)
                .map(move |gained| gained.start.max(start)..gained.end.min(end));
            common.filter(|common| common.start < common.end)
        })
    }

    /// Returns the number of requests that brought entries along.
    pub fn requests(&self) -> usize {
        self.batches.len()
    }

    /// Returns the entries that requests brought along, in the order of places; skips the first
    /// `requests` requests.
    pub fn brought(&self, requests: usize) -> impl Iterator<Item = TimelineEntry<S>> {
        self.batches.iter().skip(requests).flat_map(|batch| {
            let entries = batch.entries.iter().enumerate();
            entries.map(|(index, (feed, at))| TimelineEntry {
                place: batch.place_of(index),
                feed: *feed,
                at: *at,
            })
        })
    }

    /// Returns whether any entry of a feed came, or may come, into the timeline when the feed
    /// gained the entry.
    pub fn gains(&self, feed: S) -> bool {
        self.held_feed(feed).is_some_and(|held| {
            held.live.is_some() || held.other.iter().any(|other| !other.past.is_empty())
        })
    }

    /// Applies a request at an instant of the log. `feeds` show the feeds at that instant. Returns
    /// the feeds of all items that are newly followed or unfollowed.
    pub fn change(
        &mut self,
        change: &FollowChange<S>,
        instant: Timestamp,
        feeds: &impl Feeds<S>,
    ) -> BTreeSet<S> {
        let mut touched = BTreeSet::new();
        for item in &change.unfollow {
            if self.set_followed(item, false) {
                touched.extend(feeds_of(item, feeds));
            }
        }
        for item in &change.follow {
            if self.set_followed(item, true) {
                touched.extend(feeds_of(item, feeds));
            }
        }
        // One adjustment covers both lists, so that the range of a feed that stays followed
        // continues.
        let began = self.adjust_feeds(&touched, feeds);
        // A server has millions of these lists, and changes them rarely.
        self.items.shrink_to_fit();
        self.feeds.shrink_to_fit();
        if !change.unfollow.is_empty() {
            // A feed without a live range or entries needs no record.
            self.feeds
                .retain(|held| held.live.is_some() || held.other.is_some());
        }
        self.bring_newest(&began, change.backfill, instant, feeds);
        touched
    }

    /// Handles a feed that was created, or opened to all readers. The timeline may follow the feed
    /// by name or by a pattern.
    pub fn appeared(&mut self, feed: S, feeds: &impl Feeds<S>) {
        self.adjust_feeds(&BTreeSet::from([feed]), feeds);
    }

    /// Handles the loss of a range of a feed's entries. The range begins with the feed's next
    /// position. Entries behind the range come into the timeline as before.
    pub fn lost(&mut self, feed: S, range: &Range<Position>) {
        let Some(held) = self.held_mut(feed) else {
            return;
        };
        // A follow that began behind the range has none of these positions.
        let Some(first) = held.live.filter(|first| *first < range.end) else {
            return;
        };
        held.live = Some(range.end);
        if first < range.start {
            let other = held.other.get_or_insert_default();
            other.past.push(first..range.start);
        }
    }

    fn held_feed(&self, feed: S) -> Option<&HeldFeed<S>> {
        let found = self.feeds.binary_search_by_key(&feed, |held| held.feed);
        found.ok().and_then(|index| self.feeds.get(index))
    }

    fn held_mut(&mut self, feed: S) -> Option<&mut HeldFeed<S>> {
        let found = self.feeds.binary_search_by_key(&feed, |held| held.feed);
        found.ok().and_then(|index| self.feeds.get_mut(index))
    }

    /// Notes whether an item is followed. Returns whether this changes anything.
    fn set_followed(&mut self, item: &FollowItem<S>, is_followed: bool) -> bool {
        if self.has(item) == is_followed {
            return false;
        }
        match item {
            FollowItem::Pattern(pattern) if is_followed => {
                self.patterns.push(pattern.clone());
                self.patterns.sort();
            }
            FollowItem::Pattern(pattern) => self.patterns.retain(|one| one != pattern),
            // `has` differs from `is_followed`, so a feed that is present must be removed.
            FollowItem::Feed(feed) => match self.items.binary_search(feed) {
                Err(index) => self.items.insert(index, *feed),
                Ok(index) => drop(self.items.remove(index)),
            },
        }
        true
    }

    /// Returns a feed of the timeline; inserts the feed if absent.
    fn feed_mut(&mut self, feed: S) -> &mut HeldFeed<S> {
        let found = self.feeds.binary_search_by_key(&feed, |held| held.feed);
        let index = found.unwrap_or_else(|index| {
            let held = HeldFeed {
                feed,
                live: None,
                other: None,
            };
            self.feeds.insert(index, held);
            index
        });
        self.feeds.get_mut(index).expect("it is there")
    }

    /// Begins or ends the growing ranges of feeds, according to the items and terms. Returns the
    /// feeds whose growing ranges begin.
    fn adjust_feeds(&mut self, touched: &BTreeSet<S>, feeds: &impl Feeds<S>) -> Vec<S> {
        let mut began = vec![];
        for feed in touched {
            let Some(now) = feeds.feed(*feed) else {
                continue;
            };
            let is_wanted = self.wants_feed(*feed, &now);
            let next = feeds.next(*feed);
            let live = self.held_feed(*feed).and_then(|held| held.live);
            match (live, is_wanted) {
                (None, true) => {
                    self.feed_mut(*feed).live = Some(next);
                    began.push(*feed);
                }
                // Entries that are already in the timeline stay when the growing range ends: they
                // become a past range.
                (Some(first), false) => {
                    let held = self.feed_mut(*feed);
                    held.live = None;
                    if first < next {
                        held.other.get_or_insert_default().past.push(first..next);
                    }
                }
                _ => {}
            }
        }
        began
    }

    fn wants_feed(&self, feed: S, now: &FeedMoment) -> bool {
        let is_seen = self.terms.is_closed || !now.is_closed;
        let is_followed = match self.terms.own {
            Some((own, is_had)) if own == feed => is_had,
            _ => {
                self.has(&FollowItem::Feed(feed))
                    || self
                        .patterns
                        .iter()
                        .any(|pattern| pattern.matches(&now.name))
            }
        };
        is_seen && is_followed
    }

    /// Brings the newest `count` entries of each feed along, except entries that the timeline has;
    /// of all feeds together, at most `BACKFILL_TOTAL_MAX` entries.
    fn bring_newest(&mut self, began: &[S], count: u32, instant: Timestamp, feeds: &impl Feeds<S>) {
        let mut left: Vec<(S, Vec<Range<Position>>)> = vec![];
        for feed in began {
            let Some(held) = self.held_feed(*feed).filter(|_| count > 0) else {
                continue;
            };
            let newest = newest_of(held.live.unwrap_or_default(), count, &feeds.lost(*feed));
            let missing = newest.iter().flat_map(|range| held.missing_parts(range));
            left.push((*feed, missing.collect()));
        }
        // Of all feeds together, only the newest entries come. The heap holds one candidate of each
        // feed, so that entries older than the candidates are not read.
        let mut heads = BinaryHeap::new();
        let mut entries = vec![];
        let push = |heads: &mut BinaryHeap<_>, index: usize, left: &mut Vec<(S, Vec<_>)>| {
            let Some((feed, ranges)) = left.get_mut(index) else {
                return;
            };
            while let Some(at) = take_last(ranges) {
                if let Some(instant) = feeds.there(*feed, at) {
                    heads.push((instant, *feed, at, index));
                    return;
                }
            }
        };
        for index in 0..left.len() {
            push(&mut heads, index, &mut left);
        }
        while entries.len() < BACKFILL_TOTAL_MAX
            && let Some((_, feed, at, index)) = heads.pop()
        {
            entries.push((feed, at));
            push(&mut heads, index, &mut left);
        }
        // The heap gave the newest first, and places count from the oldest.
        entries.reverse();
        if entries.is_empty() {
            return;
        }
        for (feed, at) in &entries {
            if let Some(held) = self.held_mut(*feed) {
                // Positions of each feed rise in this order, so neighbours share a range.
                held.note_brought(*at);
            }
        }
        let last = self.batches.last().filter(|batch| batch.instant == instant);
        let first = last.map_or(0, |batch| batch.first + count_of(batch.entries.len()));
        self.batches.push(BroughtEntries {
            instant,
            first,
            entries,
        });
    }
}

/// Returns the ranges of the newest `count` entries before a position, without lost positions.
fn newest_of(end: Position, count: u32, lost: &[Range<Position>]) -> Vec<Range<Position>> {
    let (mut ranges, mut end, mut wanted) = (vec![], end.0, u64::from(count));
    let holes = lost.iter().rev().map(|range| range.start.0..range.end.0);
    let beginning = 0..0;
    for hole in holes.chain(std::iter::once(beginning)) {
        if hole.start >= end {
            continue;
        }
        let begin = hole.end.max(end.saturating_sub(wanted));
        if begin < end {
            ranges.push(Position(begin)..Position(end));
            wanted -= end - begin;
        }
        end = hole.start;
    }
    ranges.reverse();
    ranges
}

/// Removes the last position from ranges, and returns this position.
fn take_last(ranges: &mut Vec<Range<Position>>) -> Option<Position> {
    let last = ranges.last_mut()?;
    last.end = Position(last.end.0 - 1);
    let at = last.end;
    if last.start == last.end {
        ranges.pop();
    }
    Some(at)
}

impl<S> HeldFeed<S> {
    /// Returns the parts of a range that the timeline does not have.
    fn missing_parts(&self, wanted: &Range<Position>) -> Vec<Range<Position>> {
        let mut had: Vec<&Range<Position>> = match &self.other {
            Some(other) => other.past.iter().chain(&other.brought).collect(),
            None => vec![],
        };
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

    /// Notes that an entry was brought along.
    fn note_brought(&mut self, at: Position) {
        let brought = &mut self.other.get_or_insert_default().brought;
        match brought.last_mut().filter(|last| last.end == at) {
            Some(last) => last.end = at.next(),
            None => brought.push(at..at.next()),
        }
    }
}

impl<S> BroughtEntries<S> {
    fn place_of(&self, index: usize) -> Place {
        Place::of_backfill(self.instant, self.first + count_of(index))
    }
}

fn count_of(entries: usize) -> u32 {
    u32::try_from(entries).unwrap_or(u32::MAX)
}

fn feeds_of<S: Copy>(item: &FollowItem<S>, feeds: &impl Feeds<S>) -> Vec<S> {
    match item {
        FollowItem::Feed(feed) => vec![*feed],
        FollowItem::Pattern(pattern) => feeds.matching(pattern),
    }
}

#[cfg(test)]
mod tests;
