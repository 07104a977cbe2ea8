//! Graph of follows, computed from commits.
//!
//! Pure, over a log that the caller passes; only [`each_gain`] takes a lock. Feeds and timelines
//! have small keys here, in the order of their creation, because a server has millions of follows.
//! A new entry changes only two numbers in the state of the entry's feed, however many timelines
//! follow the feed.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet, HashMap},
    ops::{Bound, Range},
    sync::Arc,
};

use simplefeed_core::sup::SupId;
use simplefeed_core::{
    commit::{ChangeOutline, Outline},
    feed::{CommitNumber, Epoch, FeedKey, FeedName, FeedPattern, Position, Revision},
    follow::{FollowChange, FollowItem},
    settings::{OwnEntries, Settings},
    timeline::{Entries, FeedMoment, Feeds, FollowState, Terms},
    timestamp::Timestamp,
};
use simplefeed_log::{LogError, Series, settings_of};

use parking_lot::RwLock;
use serde::{Deserialize, Serialize};
use tracing::warn;

use super::{
    entries::EntryCache,
    followers::{Followers, TimelineKey},
};

/// Key of a feed in the graph.
pub(super) type SourceKey = u32;
/// Revisions of settings or of defaults, each with the instant from which on the revision is in
/// force.
pub(super) type Revisions = Vec<(Timestamp, Revision)>;

/// A feed that timelines may follow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SourceState {
    pub(super) key: FeedKey,
    pub(super) name: FeedName,
    pub(super) is_closed: bool,
    /// Position that the next entry gets.
    pub(super) next: Position,
    /// Instant of the newest entry.
    pub(super) newest: Timestamp,
}

/// A timeline, with the followed feeds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct TimelineState {
    pub(super) key: FeedKey,
    pub(super) created: Timestamp,
    pub(super) sup_id: SupId,
    pub(super) is_closed: bool,
    pub(super) owner: Option<SourceKey>,
    /// Shared with readers, who look through the follows without a lock.
    pub(super) following: Arc<FollowState<SourceKey>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Node {
    Feed(SourceKey),
    Timeline(TimelineKey),
}

/// Feeds and timelines as of a commit. A snapshot lacks the indexes, because these follow from the
/// rest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Graph {
    pub(super) applied: CommitNumber,
    pub(super) epochs: Vec<(Timestamp, Epoch)>,
    pub(super) defaults: Revisions,
    pub(super) feeds: SourceIndex,
    pub(super) timelines: Vec<TimelineState>,
    #[serde(skip)]
    nodes: HashMap<FeedKey, Node>,
    /// Revisions of settings after the first, of the few feeds that have any.
    later: HashMap<FeedKey, Revisions>,
    /// Instants at which timelines began anew, which happens after losses only.
    restarted: HashMap<FeedKey, Timestamp>,
    /// Timelines that follow patterns.
    #[serde(skip)]
    with_patterns: BTreeSet<TimelineKey>,
    /// Timelines by the feeds of their owners.
    #[serde(skip)]
    owned: HashMap<SourceKey, Vec<TimelineKey>>,
}

/// Feeds by their keys and names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SourceIndex {
    all: Vec<SourceState>,
    #[serde(skip)]
    names: BTreeMap<FeedName, SourceKey>,
    /// Followers of each feed, by the feed's key.
    #[serde(skip)]
    followers: Vec<FollowersOf>,
    /// Closed feeds, of which there are few.
    #[serde(skip)]
    closed: BTreeSet<SourceKey>,
    /// Positions whose entries are lost, of the few feeds that have any.
    lost: HashMap<SourceKey, Vec<Range<Position>>>,
}

/// Followers of a feed.
#[derive(Clone, Debug, Default)]
pub(super) struct FollowersOf {
    /// Timelines that get, or once got, new entries of the feed at the moment when the feed gains
    /// them. Backfill does not count.
    pub(super) all: Followers,
    /// Parts of these followers, which most feeds lack.
    parts: Option<Box<FollowerParts>>,
    /// When a timeline last began or ceased to get the feed's new entries, the feed's next entry
    /// had this position, or an earlier one. All timelines that still get new entries have each
    /// entry from this position on, so the follows of these timelines need not be read.
    changed: Position,
}

/// Parts of a feed's followers. No timeline is in both.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct FollowerParts {
    /// Followers that no longer get the feed's new entries.
    ended: Followers,
    /// Closed timelines that get the feed's new entries.
    closed: Followers,
}

static NONE: Followers = Followers::Few(Vec::new());

impl FollowersOf {
    /// Returns the followers that no longer get the feed's new entries.
    pub(super) fn ended(&self) -> &Followers {
        self.parts.as_ref().map_or(&NONE, |parts| &parts.ended)
    }

    /// Returns the closed timelines among the followers that still get the feed's new entries.
    pub(super) fn closed(&self) -> &Followers {
        self.parts.as_ref().map_or(&NONE, |parts| &parts.closed)
    }

    /// Returns the number of followers that still get the feed's new entries.
    pub(super) fn taking(&self) -> u64 {
        self.all.len() - self.ended().len()
    }

    /// Returns followers that still get the feed's new entries: at most `max` timelines whose keys
    /// are `first` or larger, in the order of their keys. Without `with_closed`, only open
    /// timelines are returned.
    pub(super) fn taking_from(
        &self,
        first: TimelineKey,
        max: usize,
        with_closed: bool,
    ) -> Vec<TimelineKey> {
        let closed = if with_closed { &NONE } else { self.closed() };
        self.all.outside([self.ended(), closed], first, max)
    }

    fn set_marks(&mut self, timeline: TimelineKey, gains: bool, takes: bool, is_closed: bool) {
        self.all.set(timeline, gains);
        let (has_ended, is_closed) = (gains && !takes, gains && takes && is_closed);
        if has_ended || is_closed || self.parts.is_some() {
            let parts = self.parts.get_or_insert_default();
            parts.ended.set(timeline, has_ended);
            parts.closed.set(timeline, is_closed);
        }
    }
}

impl PartialEq for FollowersOf {
    fn eq(&self, other: &Self) -> bool {
        (&self.all, self.ended(), self.closed()) == (&other.all, other.ended(), other.closed())
    }
}

impl Eq for FollowersOf {}

impl SourceIndex {
    pub(super) fn get(&self, source: SourceKey) -> Option<&SourceState> {
        self.all.get(usize::try_from(source).ok()?)
    }

    fn get_mut(&mut self, source: SourceKey) -> Option<&mut SourceState> {
        self.all.get_mut(usize::try_from(source).ok()?)
    }

    /// Returns who follows a feed.
    pub(super) fn followers(&self, source: SourceKey) -> Option<&FollowersOf> {
        self.followers.get(usize::try_from(source).ok()?)
    }

    /// Returns the closed feeds.
    pub(super) fn closed(&self) -> &BTreeSet<SourceKey> {
        &self.closed
    }

    fn add_feed(&mut self, feed: SourceState) -> SourceKey {
        let source = key_of(self.all.len());
        self.names.insert(feed.name.clone(), source);
        if feed.is_closed {
            self.closed.insert(source);
        }
        self.all.push(feed);
        self.followers.push(FollowersOf::default());
        source
    }

    /// Makes the indexes of feeds that were read from a snapshot. Returns the node of each feed.
    fn make_indexes(&mut self) -> Vec<(FeedKey, Node)> {
        self.all.shrink_to_fit();
        self.followers
            .resize_with(self.all.len(), FollowersOf::default);
        let mut nodes = Vec::with_capacity(self.all.len());
        for (index, feed) in self.all.iter().enumerate() {
            let source = key_of(index);
            self.names.insert(feed.name.clone(), source);
            if feed.is_closed {
                self.closed.insert(source);
            }
            nodes.push((feed.key, Node::Feed(source)));
        }
        nodes
    }

    /// Notes whether a feed is closed. Returns whether the feed was closed before.
    fn close_feed(&mut self, source: SourceKey, is_closed: bool) -> bool {
        if is_closed {
            self.closed.insert(source);
        } else {
            self.closed.remove(&source);
        }
        let state = self.get_mut(source);
        state.is_some_and(|state| std::mem::replace(&mut state.is_closed, is_closed))
    }

    /// Notes whether a timeline gets, or once got, new entries of a feed at the moment when the
    /// feed gains them, and whether the timeline still gets them.
    fn set_follower(
        &mut self,
        source: SourceKey,
        timeline: TimelineKey,
        following: &FollowState<SourceKey>,
    ) {
        let next = self.get(source).map_or(Position(0), |feed| feed.next);
        let index = usize::try_from(source).unwrap_or(usize::MAX);
        if let Some(followers) = self.followers.get_mut(index) {
            let (gains, takes) = (following.gains(source), following.takes(source));
            followers.set_marks(timeline, gains, takes, following.terms().is_closed);
            followers.changed = followers.changed.max(next);
        }
    }

    /// Returns the feeds that match a pattern, in the order of their names.
    pub(super) fn matching(&self, pattern: &FeedPattern) -> impl Iterator<Item = SourceKey> {
        let beginning = pattern.beginning();
        let from = Bound::Included(beginning);
        let found = self.names.range::<str, _>((from, Bound::Unbounded));
        let found = found.take_while(move |(name, _)| name.as_str().starts_with(beginning));
        let matching = found.filter(move |(name, _)| pattern.matches(name));
        matching.map(|(_, source)| *source)
    }
}

/// Number of followers that are looked at under one lock.
const FOLLOWERS_TOGETHER: usize = if cfg!(test) { 1 } else { 4_096 };

/// Calls `tell` with every timeline into which entries of a range came at the moment when the feed
/// gained them (not by backfill), and with each part of the range that came in this way.
///
/// The lock is released after each slice of followers, and commits may be applied then. Such a
/// commit changes nothing about these entries: a later follow brings such entries along by backfill
/// only, and a later unfollow leaves such entries in the timeline.
pub(super) fn each_gain(
    graph: &RwLock<Graph>,
    source: SourceKey,
    range: &Range<Position>,
    mut tell: impl FnMut(TimelineKey, &TimelineState, Range<Position>),
) {
    let mut next = 0;
    loop {
        let graph = graph.read();
        let Some(followers) = graph.feeds.followers(source) else {
            return;
        };
        let slice = followers.all.from(next, FOLLOWERS_TOGETHER);
        let have_all = followers.changed <= range.start;
        for timeline in &slice {
            let Some(state) = graph.at(*timeline) else {
                continue;
            };
            if have_all {
                // The follows of a timeline are elsewhere in memory. To look at them would be most
                // of the cost of a delivery.
                if !followers.ended().has(*timeline) {
                    tell(*timeline, state, range.clone());
                }
                continue;
            }
            for had in state.following.gained(source, range.clone()) {
                tell(*timeline, state, had);
            }
        }
        match slice.last().and_then(|last| last.checked_add(1)) {
            Some(behind) if slice.len() == FOLLOWERS_TOGETHER => next = behind,
            _ => return,
        }
    }
}

/// Adds a fact, unless the fact is there because the same commit was applied before.
fn push_new<T: PartialEq>(facts: &mut Vec<T>, fact: T) {
    if facts.last() != Some(&fact) {
        facts.push(fact);
    }
}

fn key_of(index: usize) -> u32 {
    u32::try_from(index).expect("there are fewer than 2^32 feeds")
}

impl Graph {
    /// Returns a timeline and its key in the graph, by its key in the log.
    pub(super) fn timeline(&self, feed: FeedKey) -> Option<(TimelineKey, &TimelineState)> {
        match self.nodes.get(&feed)? {
            Node::Timeline(timeline) => Some((*timeline, self.at(*timeline)?)),
            Node::Feed(_) => None,
        }
    }

    /// Returns a timeline by its key in the graph.
    pub(super) fn at(&self, timeline: TimelineKey) -> Option<&TimelineState> {
        self.timelines.get(usize::try_from(timeline).ok()?)
    }

    /// Returns the key of a feed in the graph, by the feed's key in the log.
    pub(super) fn source(&self, feed: FeedKey) -> Option<SourceKey> {
        match self.nodes.get(&feed)? {
            Node::Feed(source) => Some(*source),
            Node::Timeline(_) => None,
        }
    }

    /// Returns the timelines of an owner.
    pub(super) fn owned_by(&self, owner: SourceKey) -> &[TimelineKey] {
        self.owned.get(&owner).map_or(&[], Vec::as_slice)
    }

    /// Returns the revisions of a feed's settings after the first one, each with the instant from
    /// which on the revision is in force.
    pub(super) fn later_revisions(&self, feed: FeedKey) -> &[(Timestamp, Revision)] {
        self.later.get(&feed).map_or(&[], Vec::as_slice)
    }

    /// Returns the instant at which a timeline began anew, if there is one.
    pub(super) fn restarted(&self, timeline: FeedKey) -> Option<Timestamp> {
        self.restarted.get(&timeline).copied()
    }

    /// Applies the next commit. `entries` has entries of the log up to that commit, or beyond.
    ///
    /// # Errors
    ///
    /// Returns why the log cannot be read. The graph is ready for the same commit again then.
    pub(super) fn apply(
        &mut self,
        commit: &Outline,
        log: &dyn Series,
        entries: &EntryCache,
    ) -> Result<(), LogError> {
        let mut before = GraphBefore::default();
        let applied = self.apply_changes(commit, log, entries, &mut before);
        if applied.is_err() {
            self.put_back(before);
        }
        applied
    }

    /// Undoes those changes of a failed commit that would give the next attempt at the same commit
    /// another effect: a follow brings along the newest entries that the feed has at that moment,
    /// and both attempts must bring along the same entries. All other changes may be applied twice.
    fn put_back(&mut self, before: GraphBefore) {
        // Backwards, so that the oldest state of a feed that changed twice is put back last.
        for (source, next, newest) in before.feeds.into_iter().rev() {
            if let Some(state) = self.feeds.get_mut(source) {
                state.next = next;
                state.newest = newest;
            }
        }
        for (source, was_closed) in before.closed.into_iter().rev() {
            self.feeds.close_feed(source, was_closed);
        }
        for (timeline, following) in before.timelines.into_iter().rev() {
            let sources: BTreeSet<SourceKey> = match self.at(timeline) {
                Some(state) => state
                    .following
                    .sources()
                    .chain(following.sources())
                    .collect(),
                None => continue,
            };
            let index = usize::try_from(timeline).unwrap_or(usize::MAX);
            if let Some(state) = self.timelines.get_mut(index) {
                state.following = following;
            }
            self.index_timeline(timeline);
            self.index_feeds(timeline, sources);
        }
    }

    fn apply_changes(
        &mut self,
        commit: &Outline,
        log: &dyn Series,
        entries: &EntryCache,
        before: &mut GraphBefore,
    ) -> Result<(), LogError> {
        let mut instant = commit.instant;
        for change in &commit.changes {
            match change {
                ChangeOutline::Settings { feed, revision } => {
                    self.apply_settings(*feed, *revision, instant, log, before)?;
                }
                ChangeOutline::Entries { feed, first, count } => {
                    let newest = instant.plus_micros(count.saturating_sub(1));
                    if let Some(source) = self.source(*feed)
                        && let Some(state) = self.feeds.get_mut(source)
                    {
                        before.feeds.push((source, state.next, state.newest));
                        state.next = Position(first.0 + count);
                        state.newest = newest;
                    }
                    instant = instant.plus_micros(*count);
                }
                ChangeOutline::Following { feed, change } => {
                    before.timelines.extend(
                        self.timeline(*feed)
                            .map(|(timeline, state)| (timeline, Arc::clone(&state.following))),
                    );
                    self.follow_items(*feed, change, instant, log, entries)?;
                }
                ChangeOutline::Epoch { epoch } => push_new(&mut self.epochs, (instant, *epoch)),
                ChangeOutline::Defaults { revision } => {
                    push_new(&mut self.defaults, (instant, *revision));
                }
                ChangeOutline::Lost { feed, next, .. } => match self.source(*feed) {
                    Some(source) => self.pass_lost(source, *next),
                    None => drop(self.restarted.insert(*feed, instant)),
                },
                ChangeOutline::Opened { .. } => {}
            }
        }
        // Set last, so that a failed commit is applied again.
        self.applied = commit.number;
        Ok(())
    }

    /// Makes timelines skip the entries that a feed lost.
    fn pass_lost(&mut self, source: SourceKey, next: Position) {
        let Some(state) = self.feeds.get_mut(source) else {
            return;
        };
        let range = std::mem::replace(&mut state.next, next)..next;
        if range.is_empty() {
            // The loss was noted when the same commit was applied before.
            return;
        }
        self.feeds
            .lost
            .entry(source)
            .or_default()
            .push(range.clone());
        let followers = self.feeds.followers(source);
        for timeline in followers.map_or_else(Vec::new, |of| of.all.from(0, usize::MAX)) {
            let index = usize::try_from(timeline).unwrap_or(usize::MAX);
            if let Some(state) = self.timelines.get_mut(index) {
                Arc::make_mut(&mut state.following).lost(source, &range);
            }
        }
    }

    fn apply_settings(
        &mut self,
        feed: FeedKey,
        revision: Revision,
        instant: Timestamp,
        log: &dyn Series,
        before: &mut GraphBefore,
    ) -> Result<(), LogError> {
        let settings = settings_of(log, feed, revision)?;
        if revision > Revision::FIRST {
            let later = self.later.entry(feed).or_default();
            push_new(later, (instant, revision));
        }
        match (self.nodes.get(&feed).copied(), &settings.timeline) {
            (None, Some(_)) => self.create_timeline(feed, &settings, instant),
            (None, None) => {
                let source = self.feeds.add_feed(SourceState {
                    key: feed,
                    name: settings.name.clone(),
                    is_closed: settings.is_closed(),
                    next: Position(0),
                    newest: instant,
                });
                self.nodes.insert(feed, Node::Feed(source));
                self.take_appeared(source);
            }
            (Some(Node::Feed(source)), _) => {
                let was_closed = self.feeds.close_feed(source, settings.is_closed());
                before.closed.push((source, was_closed));
                // If the feed of a first revision is known already, an earlier attempt at the same
                // commit has failed. `put_back` may then have put a timeline back to a state
                // without the feed.
                let appears = was_closed || revision == Revision::FIRST;
                if appears && !settings.is_closed() {
                    self.take_appeared(source);
                }
            }
            (Some(Node::Timeline(_)), _) => {}
        }
        Ok(())
    }

    fn create_timeline(&mut self, feed: FeedKey, settings: &Settings, instant: Timestamp) {
        let kind = settings.timeline.as_ref();
        let owner = kind.and_then(|kind| self.feeds.names.get(kind.owner.as_ref()?).copied());
        let is_had = kind.is_some_and(|kind| kind.own == OwnEntries::Include);
        let terms = Terms {
            own: owner.map(|owner| (owner, is_had)),
            is_closed: settings.is_closed(),
        };
        let timeline = key_of(self.timelines.len());
        // A new timeline brings no entries along, so no entry is read.
        let following = FollowState::new(terms, &Now::without_entries(&self.feeds));
        self.timelines.push(TimelineState {
            key: feed,
            created: instant,
            sup_id: settings.sup_id(),
            is_closed: settings.is_closed(),
            owner,
            following: Arc::new(following),
        });
        self.index_timeline(timeline);
        self.index_feeds(timeline, owner);
    }

    /// Notes for feeds whether a timeline has their entries.
    fn index_feeds(&mut self, timeline: TimelineKey, feeds: impl IntoIterator<Item = SourceKey>) {
        let Some(state) = self.at(timeline) else {
            return;
        };
        let following = Arc::clone(&state.following);
        for feed in feeds {
            self.feeds.set_follower(feed, timeline, &following);
        }
    }

    /// Adds a timeline to the indexes by key, owner and pattern.
    fn index_timeline(&mut self, timeline: TimelineKey) {
        let Some(state) = self.at(timeline) else {
            return;
        };
        let (feed, owner) = (state.key, state.owner);
        let has_patterns = !state.following.patterns().is_empty();
        self.nodes.insert(feed, Node::Timeline(timeline));
        if let Some(owner) = owner {
            let owned = self.owned.entry(owner).or_default();
            if !owned.contains(&timeline) {
                owned.push(timeline);
            }
        }
        if has_patterns {
            self.with_patterns.insert(timeline);
        } else {
            self.with_patterns.remove(&timeline);
        }
    }

    /// Handles a feed that was created, or opened to all readers: timelines that follow patterns,
    /// and the timelines whose owner has this feed, may get the feed's entries from now on.
    fn take_appeared(&mut self, source: SourceKey) {
        let owned = self.owned_by(source).iter();
        let concerned: BTreeSet<TimelineKey> =
            self.with_patterns.iter().chain(owned).copied().collect();
        let now = Now::without_entries(&self.feeds);
        let mut changed = vec![];
        for timeline in concerned {
            let index = usize::try_from(timeline).unwrap_or(usize::MAX);
            if let Some(state) = self.timelines.get_mut(index) {
                Arc::make_mut(&mut state.following).appeared(source, &now);
                changed.push((timeline, Arc::clone(&state.following)));
            }
        }
        // Set after the loop, because `now` reads the feeds until then.
        for (timeline, following) in changed {
            self.feeds.set_follower(source, timeline, &following);
        }
    }

    fn follow_items(
        &mut self,
        feed: FeedKey,
        change: &FollowChange,
        instant: Timestamp,
        log: &dyn Series,
        entries: &EntryCache,
    ) -> Result<(), LogError> {
        let Some(Node::Timeline(timeline)) = self.nodes.get(&feed).copied() else {
            return Err(LogError::damaged(format!("{} is no timeline", feed.0)));
        };
        let change = FollowChange {
            follow: self.source_items(&change.follow),
            unfollow: self.source_items(&change.unfollow),
            backfill: change.backfill,
        };
        let now = Now {
            feeds: &self.feeds,
            entries: Some((entries, log)),
            failed: RefCell::default(),
        };
        let index = usize::try_from(timeline).unwrap_or(usize::MAX);
        let mut concerned = BTreeSet::new();
        if let Some(state) = self.timelines.get_mut(index) {
            let before = Arc::clone(&state.following);
            concerned = Arc::make_mut(&mut state.following).change(&change, instant, &now);
            // The whole follow is undone, because the commit is applied again later.
            if let Some(error) = now.failed.into_inner() {
                state.following = before;
                return Err(error);
            }
        }
        self.index_timeline(timeline);
        self.index_feeds(timeline, concerned);
        Ok(())
    }

    fn source_items(&self, items: &[FollowItem]) -> Vec<FollowItem<SourceKey>> {
        let known = items.iter().filter_map(|item| match item {
            FollowItem::Feed(feed) => self.source(*feed).map(FollowItem::Feed),
            FollowItem::Pattern(pattern) => Some(FollowItem::Pattern(pattern.clone())),
        });
        known.collect()
    }
}

impl Graph {
    /// Makes the indexes of a graph that was read from a snapshot.
    pub(super) fn make_indexes(&mut self) {
        let feeds = self.feeds.make_indexes();
        self.nodes.extend(feeds);
        for state in &mut self.timelines {
            // A long list has grown by doubling while it was read, and has unused room.
            Arc::make_mut(&mut state.following).shrink_to_fit();
        }
        let following: Vec<_> = self
            .timelines
            .iter()
            .map(|all| Arc::clone(&all.following))
            .collect();
        for (number, following) in (0..).zip(following) {
            let sources: Vec<SourceKey> = following.sources().collect();
            self.index_timeline(number);
            self.index_feeds(number, sources);
        }
    }
}

/// State of the graph before a commit, as far as the commit changed it.
#[derive(Default)]
struct GraphBefore {
    feeds: Vec<(SourceKey, Position, Timestamp)>,
    closed: Vec<(SourceKey, bool)>,
    timelines: Vec<(TimelineKey, Arc<FollowState<SourceKey>>)>,
}

/// Feeds as they are now.
struct Now<'g> {
    feeds: &'g SourceIndex,
    entries: Option<(&'g EntryCache, &'g dyn Series)>,
    /// First failure to read an entry.
    failed: RefCell<Option<LogError>>,
}

impl<'g> Now<'g> {
    fn without_entries(feeds: &'g SourceIndex) -> Self {
        Self {
            feeds,
            entries: None,
            failed: RefCell::default(),
        }
    }
}

impl Entries<SourceKey> for Now<'_> {
    fn next(&self, feed: SourceKey) -> Position {
        self.feeds.get(feed).map_or(Position(0), |feed| feed.next)
    }

    fn instant(&self, feed: SourceKey, at: Position) -> Timestamp {
        let (Some(feed), Some((entries, log))) = (self.feeds.get(feed), self.entries) else {
            // Without `entries`, no entry is brought along, so this instant has no effect.
            return Timestamp::MIN;
        };
        entries.instant(feed.key, at, log).unwrap_or_else(|error| {
            self.failed.borrow_mut().get_or_insert(error);
            Timestamp::MIN
        })
    }
}

impl Feeds<SourceKey> for Now<'_> {
    fn matching(&self, pattern: &FeedPattern) -> Vec<SourceKey> {
        self.feeds.matching(pattern).collect()
    }

    fn feed(&self, feed: SourceKey) -> Option<FeedMoment> {
        let feed = self.feeds.get(feed)?;
        Some(FeedMoment {
            name: feed.name.clone(),
            is_closed: feed.is_closed,
        })
    }

    fn lost(&self, feed: SourceKey) -> Vec<Range<Position>> {
        self.feeds.lost.get(&feed).cloned().unwrap_or_default()
    }

    fn there(&self, feed: SourceKey, at: Position) -> Option<Timestamp> {
        let state = self.feeds.get(feed)?;
        // A follow compares the newest entries of many feeds, and most of them are too old. The
        // graph has their instants, so they need no read.
        if at.next() == state.next {
            return Some(state.newest);
        }
        let (entries, log) = self.entries?;
        match entries.instant(state.key, at, log) {
            Ok(instant) => Some(instant),
            Err(error @ LogError::Damaged { .. }) => {
                // If damage counted as a failure, one damaged entry would stop all timelines for
                // ever.
                let error: &(dyn std::error::Error + 'static) = &error;
                warn!(error, feed = %state.name, "an entry is damaged; the timeline gets the follow without this entry");
                None
            }
            Err(error) => {
                self.failed.borrow_mut().get_or_insert(error);
                None
            }
        }
    }
}
