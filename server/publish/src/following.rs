//! Follow requests, which are checked against the feeds as the group leaves them so far.
//!
//! Shell: reads of the log and of the graph of follows.

use std::{collections::BTreeSet, sync::Arc};

use simplefeed_core::{
    commit::Change,
    feed::{FeedName, FeedPattern},
    follow::{FollowChange, FollowItem},
    limits::{BACKFILL_MAX, FOLLOWED_FEEDS_MAX, FOLLOWED_PATTERNS_MAX},
    plan::FeedState,
    refusal::Refusal,
    settings::Settings,
};

use super::{
    group::CommitGroup,
    request::{Follow, FollowItems, FollowResult, PublishError},
};

/// Rule that refusals name.
const RULE: &str = "Simplefeed profile: following";

impl CommitGroup<'_> {
    /// Plans a follow request, and adds the change to the commit.
    pub(super) fn follow(&mut self, follow: Follow) -> Result<FollowResult, PublishError> {
        let Follow { feed, wanted } = follow;
        let state = self.state(&feed)?;
        let state = state.filter(|state| state.settings.is_timeline());
        let Some(state) = state else {
            return Err(PublishError::NoTimeline(feed));
        };
        let change = self.planned(&feed, &state, &wanted)?;
        Ok(self.take_follow(&feed, &state, change))
    }

    /// Returns the part of a request that changes something. `state` is the state of the timeline,
    /// which this group may create.
    pub(super) fn planned(
        &self,
        timeline: &FeedName,
        state: &FeedState,
        wanted: &FollowItems,
    ) -> Result<FollowChange, PublishError> {
        if wanted.backfill > BACKFILL_MAX {
            let detail = format!("backfill is at most {BACKFILL_MAX}");
            return Err(Refusal::unacceptable(detail, RULE)
                .at_element("backfill")
                .into());
        }
        let items = self.items_of(timeline, state)?;
        let mut change = FollowChange {
            backfill: wanted.backfill,
            ..FollowChange::default()
        };
        let (mut gone, mut new) = (BTreeSet::new(), BTreeSet::new());
        for pattern in &wanted.unfollow {
            let item = self.item_to_unfollow(pattern, wanted)?;
            if let Some(item) = item.filter(|item| items.contains(item))
                && gone.insert(item.clone())
            {
                change.unfollow.push(item);
            }
        }
        // A set, because the comparison of two long lists would take quadratic time.
        let unfollowed: BTreeSet<&FeedPattern> = wanted.unfollow.iter().collect();
        for pattern in &wanted.follow {
            let item = self.item_to_follow(timeline, &state.settings, pattern, wanted)?;
            if unfollowed.contains(pattern) {
                let detail = format!("{pattern} is to be followed and unfollowed at once");
                return Err(Refusal::unacceptable(detail, RULE)
                    .at_element("unfollow")
                    .into());
            }
            if !items.contains(&item) && new.insert(item.clone()) {
                change.follow.push(item);
            }
        }
        check_bounds(&items, &change)?;
        Ok(change)
    }

    /// Adds a change to the commit.
    pub(super) fn take_follow(
        &mut self,
        timeline: &FeedName,
        state: &FeedState,
        change: FollowChange,
    ) -> FollowResult {
        // `planned` has just read the same items, and no commit has come in between, so this read
        // cannot fail.
        let mut shared = self.items_of(timeline, state).unwrap_or_default();
        // Only the group holds another reference to the set. Once that reference is removed,
        // `make_mut` copies nothing.
        self.followed.remove(timeline);
        let items = Arc::make_mut(&mut shared);
        for item in &change.unfollow {
            items.remove(item);
        }
        items.extend(change.follow.iter().cloned());
        let followed = FollowResult {
            followed: change.follow.len(),
            unfollowed: change.unfollow.len(),
        };
        self.followed.insert(timeline.clone(), shared);
        // A repeated request changes nothing, and needs no commit.
        if !change.follow.is_empty() || !change.unfollow.is_empty() {
            self.changes.push(Change::Following {
                feed: state.head.feed,
                change: change.into(),
            });
        }
        followed
    }

    /// Returns the items that a timeline follows, as the group leaves them so far.
    fn items_of(
        &self,
        timeline: &FeedName,
        state: &FeedState,
    ) -> Result<Arc<BTreeSet<FollowItem>>, PublishError> {
        if let Some(items) = self.followed.get(timeline) {
            return Ok(Arc::clone(items));
        }
        let items = self.follows.items(state.head.feed);
        let items: BTreeSet<FollowItem> = items.ok_or(PublishError::Behind)?.into_iter().collect();
        Ok(items.into())
    }

    /// Returns the item of a pattern that is to be followed.
    fn item_to_follow(
        &self,
        timeline: &FeedName,
        settings: &Settings,
        pattern: &FeedPattern,
        wanted: &FollowItems,
    ) -> Result<FollowItem, PublishError> {
        let Some(name) = pattern.exact() else {
            // In a closed timeline, a pattern shows entries of closed feeds, also of feeds created
            // later, and so would reveal these feeds.
            if settings.is_closed() && !wanted.sight.covers(pattern) {
                return Err(PublishError::NotCovered(pattern.clone()));
            }
            return Ok(FollowItem::Pattern(pattern.clone()));
        };
        // Asked before the lookup, because a new timeline is not found yet.
        if name == *timeline {
            let detail = format!("timeline {timeline} cannot follow itself");
            return Err(Refusal::contradiction(detail, RULE).into());
        }
        let found = self.state(&name)?;
        let unknown = || PublishError::UnknownFeed(name.clone());
        let found = found.ok_or_else(unknown)?;
        // A closed feed counts as unknown if the timeline is open, or if the caller may not see the
        // feed.
        if found.settings.is_closed() && !(settings.is_closed() && wanted.sight.shows(&name)) {
            return Err(unknown());
        }
        if found.settings.is_timeline() {
            let detail = format!("{name} is a timeline, and a timeline follows feeds only");
            return Err(Refusal::contradiction(detail, RULE).into());
        }
        Ok(FollowItem::Feed(found.head.feed))
    }

    /// Returns the item of a pattern that is to be followed no longer; `None` if the pattern names
    /// a feed that does not exist, or that the caller may not see.
    fn item_to_unfollow(
        &self,
        pattern: &FeedPattern,
        wanted: &FollowItems,
    ) -> Result<Option<FollowItem>, PublishError> {
        let Some(name) = pattern.exact() else {
            return Ok(Some(FollowItem::Pattern(pattern.clone())));
        };
        // The answer must not reveal whether the timeline follows a feed that the caller may not
        // see.
        let found = self
            .state(&name)?
            .filter(|found| !found.settings.is_closed() || wanted.sight.shows(&name));
        Ok(found.map(|found| FollowItem::Feed(found.head.feed)))
    }

    /// Checks the feed of the owner of a new timeline like a feed that is to be followed.
    pub(super) fn check_owner(
        &self,
        timeline: &FeedName,
        settings: &Settings,
        wanted: &FollowItems,
    ) -> Result<(), PublishError> {
        let owner = settings
            .timeline
            .as_ref()
            .and_then(|kind| kind.owner.as_ref());
        let Some(owner) = owner else { return Ok(()) };
        let pattern = FeedPattern::of(owner);
        self.item_to_follow(timeline, settings, &pattern, wanted)
            .map(drop)
    }
}

/// Checks the number of items that a timeline would follow.
fn check_bounds(items: &BTreeSet<FollowItem>, change: &FollowChange) -> Result<(), Refusal> {
    let is_pattern = |item: &&FollowItem| matches!(item, FollowItem::Pattern(_));
    let count = |items: &mut dyn Iterator<Item = &FollowItem>| {
        let (mut patterns, mut feeds) = (0, 0);
        for item in items {
            *(if is_pattern(&item) {
                &mut patterns
            } else {
                &mut feeds
            }) += 1;
        }
        (patterns, feeds)
    };
    let had = count(&mut items.iter());
    let gone = count(&mut change.unfollow.iter());
    let new = count(&mut change.follow.iter());
    // No difference is negative, because every item in `gone` was among the items.
    let detail = if had.0 + new.0 - gone.0 > FOLLOWED_PATTERNS_MAX {
        format!("a timeline follows at most {FOLLOWED_PATTERNS_MAX} patterns")
    } else if had.1 + new.1 - gone.1 > FOLLOWED_FEEDS_MAX {
        format!("a timeline follows at most {FOLLOWED_FEEDS_MAX} feeds by their names")
    } else {
        return Ok(());
    };
    Err(Refusal::unacceptable(detail, RULE).at_element("follow"))
}
