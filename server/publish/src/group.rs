//! A group: requests that become one commit.
//!
//! Shell: reads of the log, and random ids. A group plans each request on the state that earlier
//! requests leave, and keeps the answers until the commit is durable.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use quick_cache::unsync::Cache;
use simplefeed_core::{
    commit::Change,
    entry::Draft,
    feed::{EntryId, FeedId, FeedName},
    follow::{FollowChange, FollowItem},
    limits::{BATCH_ENTRIES_MAX, BODY_BYTES_MAX, FEEDS_MAX, GROUP_REQUESTS_MAX, TIMELINES_MAX},
    plan::{self, FeedHead, FeedState, KnownEntry, Plan, Stamp},
    refusal::Refusal,
    settings::{Choices, Defaults, Settings, TimelineKind},
    sup::SupId,
    timestamp::Timestamp,
};
use simplefeed_log::{EntryLog, FeedHeads, LogError, LogHead, settings_of};
use simplefeed_process::lack::lack_in;
use simplefeed_resource::head_tag::{HeadTag, SettingsTag};
use tracing::error;
use uuid::Uuid;

use super::{
    follows::Follows,
    refusal_log::RefusalLog,
    request::{
        AppendRequest, AppendResult, CommitRefusal, CommitResult, Conditions, Configure,
        ConfigureResult, FeedKindRule, FollowItems, Heads, PublishError, ReplySender,
        SettingsCondition, WriterRequest,
    },
};

/// An answer that waits for the barrier.
pub(super) type CommitAnswer = Box<dyn FnOnce(CommitResult) + Send>;

/// Requests that become one commit.
pub(super) struct CommitGroup<'w> {
    reads: Reads<'w>,
    defaults: &'w Arc<Defaults>,
    kept: &'w Cache<FeedName, FeedState>,
    pub(super) follows: &'w dyn Follows,
    stamp: Stamp,
    feeds: u64,
    /// Number of timelines that the group creates.
    timelines: u64,
    /// Feeds as the group leaves them so far, by name, with the ids that the group adds.
    pub(super) states: HashMap<FeedName, (FeedState, HashMap<EntryId, KnownEntry>)>,
    /// Items that timelines follow, as the group leaves them so far.
    pub(super) followed: HashMap<FeedName, Arc<BTreeSet<FollowItem>>>,
    pub(super) changes: Vec<Change>,
    /// Heads that feeds had before the group, for existing feeds whose first change in this group
    /// is an append.
    pub(super) before: FeedHeads,
    pub(super) answers: Vec<CommitAnswer>,
    /// Number of bytes of the entries that the group stores.
    bytes: usize,
}

/// The log, and the log lines about refused reads.
#[derive(Clone, Copy)]
pub(super) struct Reads<'w> {
    pub(super) log: &'w dyn EntryLog,
    pub(super) refusals: &'w RefusalLog,
}

impl<'w> CommitGroup<'w> {
    pub(super) fn new(
        reads: Reads<'w>,
        defaults: &'w Arc<Defaults>,
        kept: &'w Cache<FeedName, FeedState>,
        follows: &'w dyn Follows,
        head: LogHead,
        instant: Timestamp,
    ) -> Self {
        Self {
            reads,
            defaults,
            kept,
            follows,
            stamp: Stamp {
                instant,
                entries_before: 0,
                epoch: head.epoch,
            },
            feeds: head.feeds,
            timelines: 0,
            states: HashMap::new(),
            followed: HashMap::new(),
            changes: vec![],
            before: FeedHeads::new(),
            answers: vec![],
            bytes: 0,
        }
    }

    pub(super) fn has_room_for(&self, request: &WriterRequest) -> bool {
        let (entries, bytes) = size(request, &self.defaults.author);
        let entries_before = usize::try_from(self.stamp.entries_before).unwrap_or(usize::MAX);
        // Without this exception, a request larger than a group would wait for ever.
        self.answers.is_empty()
            || (self.answers.len() < GROUP_REQUESTS_MAX
                && entries_before + entries <= BATCH_ENTRIES_MAX
                && self.bytes + bytes <= BODY_BYTES_MAX)
    }

    pub(super) fn add(&mut self, request: WriterRequest) {
        match request {
            WriterRequest::Append(append, reply) => {
                let outcome = self.append_entries(append);
                self.answer_later(reply, outcome, |appended, commit| appended.commit = commit);
            }
            WriterRequest::Configure(configure, reply) => {
                let outcome = self.configure_feed(configure);
                self.answer_later(reply, outcome, |_, _| {});
            }
            WriterRequest::Follow(follow, reply) => {
                let outcome = self.follow(follow);
                self.answer_later(reply, outcome, |_, _| {});
            }
        }
    }

    /// Returns whether the group makes a timeline.
    pub(super) fn makes_timeline(&self) -> bool {
        self.timelines > 0
    }

    fn answer_later<T: Send + 'static>(
        &mut self,
        reply: ReplySender<T>,
        outcome: Result<T, PublishError>,
        number: impl FnOnce(&mut T, u64) + Send + 'static,
    ) {
        self.answers.push(Box::new(move |commit| {
            let outcome = match commit {
                Ok(commit) => outcome.map(|mut value| {
                    number(&mut value, commit);
                    value
                }),
                Err(why) => Err(why.into()),
            };
            // The client may have gone. The entries are stored all the same.
            drop(reply.send(outcome));
        }));
    }

    fn append_entries(&mut self, append: AppendRequest) -> Result<AppendResult, PublishError> {
        let AppendRequest {
            feed,
            mut drafts,
            key,
            conditions,
            // Reserved until the end of this function: the drafts take memory until then.
            room: _room,
        } = append;
        let (creation, state) = if let Some(state) = self.state(&feed)? {
            (vec![], state)
        } else {
            let plan = self.create_feed(&feed, Choices::default(), None, FeedKindRule::Feed)?;
            (plan.changes, plan.state)
        };
        if state.settings.is_timeline() {
            return Err(PublishError::IsTimeline(feed));
        }
        // Ids come first, because duplicates and conflicts are looked up by id.
        plan::give_ids(&mut drafts, state.head.feed, key.as_deref(), Uuid::now_v7);
        let known = self.known_entries(&feed, &state, &drafts)?;
        let plan = plan::plan(&state, &drafts, &known, self.defaults, self.stamp)?;
        let existed = creation.is_empty();
        // A request of duplicates only skips the conditions: the first attempt, whose answer may be
        // lost, changed the head.
        if !plan.changes.is_empty() {
            conditions.check_tag(existed, || self.head_tag(&feed, &state))?;
        }
        // Copied, because `take_plan` consumes the plan.
        let results = plan.results.clone();
        let exists = existed || !plan.changes.is_empty();
        let state = if plan.changes.is_empty() {
            // Nothing is stored, so a feed that does not exist is not created either.
            state
        } else {
            if existed && !self.states.contains_key(&feed) {
                self.before.insert(state.head.feed, state.head);
            }
            self.take_plan(&feed, creation, plan)
        };
        let tag = HeadTag::new(state.head.clone());
        // The answer shows the settings under today's defaults, even if a batch of duplicates does
        // not record these defaults.
        let current = state.settings.under(self.defaults);
        Ok(AppendResult {
            results,
            commit: 0,
            tag,
            settings: current.map_or(state.settings, Arc::new),
            exists,
        })
    }

    fn configure_feed(&mut self, configure: Configure) -> Result<ConfigureResult, PublishError> {
        let Configure {
            feed,
            choices,
            id,
            expected,
            kind,
            wanted,
        } = configure;
        choices.check()?;
        let mut follow = FollowChange::default();
        let (plan, created) = match self.state(&feed)? {
            None if matches!(expected, SettingsCondition::Settings(_)) => {
                return Err(PublishError::UnknownFeed(feed));
            }
            None => {
                let plan = self.create_feed(&feed, choices, id, kind)?;
                if plan.state.settings.is_timeline() {
                    self.followed.insert(feed.clone(), Arc::default());
                    let planned = self.planned_creation(&feed, &plan, &wanted);
                    // Removed again, because the timeline may be refused. For an accepted timeline,
                    // the entry is made anew below.
                    self.followed.remove(&feed);
                    follow = planned?;
                }
                (plan, true)
            }
            Some(state) => {
                if let Err(refusal) = expected.check_state(&state) {
                    // The request may repeat a change that was made (RFC 9110, 13.1.1), because the
                    // sender may not have received the answer.
                    let is_made = matches!(expected, SettingsCondition::Settings(_))
                        && choices.clone().over(&state.settings.choices) == *state.settings.choices;
                    if !is_made {
                        return Err(refusal.into());
                    }
                }
                check_kind(&state.settings, &kind, &wanted)?;
                if id.is_some_and(|id| id != state.settings.id) {
                    let detail = "the id of a feed is given at its creation and never changes";
                    return Err(Refusal::unacceptable(detail, "settings")
                        .at_element("id")
                        .into());
                }
                (
                    plan::plan_settings(&state, choices, self.defaults, self.stamp)?,
                    false,
                )
            }
        };
        let state = self.take_plan(&feed, vec![], plan);
        if created && state.settings.is_timeline() {
            self.timelines += 1;
            self.followed.insert(feed.clone(), Arc::default());
            self.take_follow(&feed, &state, follow);
        }
        Ok(ConfigureResult {
            // Only the views know the end of a timeline.
            tag: (!state.settings.is_timeline()).then(|| HeadTag::new(state.head.clone())),
            settings_tag: settings_tag(&state),
            settings: state.settings,
            created,
        })
    }

    /// Returns the tag that readers have of a feed, if they have a tag.
    fn head_tag(&self, feed: &FeedName, state: &FeedState) -> Option<HeadTag> {
        if !state.settings.is_timeline() {
            return Some(HeadTag::new(state.head.clone()));
        }
        // No reader has seen a change of this group, so a timeline that the group changes has no
        // tag yet.
        let is_seen = !self.states.contains_key(feed);
        let head = is_seen.then(|| self.follows.head(state.head.feed));
        head.flatten().map(HeadTag::new)
    }

    /// Returns the follows of a timeline that the group is about to create.
    fn planned_creation(
        &self,
        feed: &FeedName,
        plan: &Plan,
        wanted: &FollowItems,
    ) -> Result<FollowChange, PublishError> {
        self.check_owner(feed, &plan.state.settings, wanted)?;
        self.planned(feed, &plan.state, wanted)
    }

    /// Returns a feed as the group leaves the feed so far.
    pub(super) fn state(&self, feed: &FeedName) -> Result<Option<FeedState>, PublishError> {
        // The group's own state comes first, because the cache and the log are older.
        if let Some((state, _)) = self.states.get(feed) {
            return Ok(Some(state.clone()));
        }
        if let Some(kept) = self.kept.get(feed) {
            // Only the writer changes feeds, so the cache is never stale.
            let same = |head: Option<FeedHead>| head.as_ref() == Some(&kept.head);
            debug_assert!(
                self.reads.log.named(feed).map_or(true, same),
                "what is kept of feed {feed} is what the log has"
            );
            return Ok(Some(kept.clone()));
        }
        let Some(head) = self.read_log(self.reads.log.named(feed))? else {
            return Ok(None);
        };
        let settings = self.read_log(settings_of(self.reads.log, head.feed, head.revision))?;
        let settings = Arc::new(settings);
        Ok(Some(FeedState { head, settings }))
    }

    fn create_feed(
        &self,
        feed: &FeedName,
        choices: Choices,
        id: Option<FeedId>,
        kind: FeedKindRule,
    ) -> Result<Plan, PublishError> {
        let timeline = match kind {
            FeedKindRule::Any | FeedKindRule::Feed => None,
            FeedKindRule::Timeline {
                owner: None,
                own: Some(_),
            } => {
                let detail = "own says what is done with the feed of an owner";
                return Err(Refusal::unacceptable(detail, "settings")
                    .at_element("own")
                    .into());
            }
            FeedKindRule::Timeline { owner, own } => {
                Some(TimelineKind::new(owner, own.unwrap_or_default()))
            }
        };
        if timeline.is_some() {
            let timelines = self.follows.timelines().ok_or(PublishError::Behind)?;
            if timelines + self.timelines >= TIMELINES_MAX {
                return Err(PublishError::FullOfTimelines);
            }
        } else if self.feeds >= FEEDS_MAX {
            // `feeds` includes the feeds that this group creates.
            return Err(PublishError::Full);
        }
        let given = id.is_some();
        let id = id.unwrap_or_else(|| FeedId::of_uuid(Uuid::new_v4()));
        // A given id may belong to a feed of this group, which the log does not have yet. A random
        // id has 122 random bits, and is not looked up.
        let in_group = self
            .states
            .values()
            .any(|(state, _)| state.head.feed == id.key());
        if given && (in_group || self.read_log(self.reads.log.feed(id.key()))?.is_some()) {
            let detail = format!("another feed has the id {id}");
            return Err(Refusal::unacceptable(detail, "settings")
                .at_element("id")
                .into());
        }
        let defaults = Arc::clone(self.defaults);
        let mut choices = choices;
        if timeline.is_none() {
            // The choice is recorded for each new feed, so that older feeds without the choice stay
            // as they are.
            choices.alternate_links.get_or_insert(true);
        }
        let settings = Settings {
            name: feed.clone(),
            id,
            choices: choices.into(),
            defaults,
            sup_id: Some(SupId::of_bits(Uuid::new_v4().as_u128())),
            was_closed: false,
            timeline,
        };
        settings.check()?;
        Ok(plan::plan_creation(settings, self.stamp))
    }

    /// Returns the entries that have the ids of the drafts, from this group or the log.
    fn known_entries(
        &self,
        feed: &FeedName,
        state: &FeedState,
        drafts: &[Draft],
    ) -> Result<HashMap<EntryId, KnownEntry>, PublishError> {
        let in_group = self.states.get(feed).map(|(_, added)| added);
        let (mut known, mut others) = (HashMap::new(), Vec::with_capacity(drafts.len()));
        for id in drafts.iter().filter_map(|draft| draft.id.as_ref()) {
            match in_group.and_then(|added| added.get(id)) {
                Some(found) => {
                    known.insert(id.clone(), found.clone());
                }
                None => others.push(id),
            }
        }
        let in_log = self.reads.log.find_all(state.head.feed, &others);
        known.extend(self.read_log(in_log)?);
        Ok(known)
    }

    /// Returns the value that was read from the log, or the refusal that the publisher gets.
    fn read_log<T>(&self, found: Result<T, LogError>) -> Result<T, PublishError> {
        found.map_err(|error| {
            let error: &(dyn std::error::Error + 'static) = &error;
            if let Some(lack) = lack_in(error) {
                self.reads.refusals.log("read the log", lack);
                // This call is made because `is_lacking` makes the log open sled again. A commit
                // would do so, too, but perhaps no commit comes.
                let _known = self.reads.log.is_lacking();
                return CommitRefusal::lacking(lack).into();
            }
            // Logged here, because the publisher's answer does not show the cause.
            error!(error, "the log cannot be read");
            // A read may be the first to meet a file that was cut off, before any commit does.
            if self.reads.log.is_displaced() {
                PublishError::Displaced
            } else {
                PublishError::Unavailable
            }
        })
    }

    /// Adds a plan to the commit. Returns the feed as the commit leaves it so far.
    fn take_plan(&mut self, feed: &FeedName, creation: Vec<Change>, plan: Plan) -> FeedState {
        let changes: Vec<Change> = creation.into_iter().chain(plan.changes).collect();
        let (_, added) = self
            .states
            .entry(feed.clone())
            .or_insert_with(|| (plan.state.clone(), HashMap::new()));
        // Each result that is no duplicate belongs to an entry among the changes, in the same
        // order.
        let mut outcomes = plan.results.iter().filter(|outcome| !outcome.duplicate);
        for change in &changes {
            match change {
                // The first revision of settings creates the feed.
                Change::Settings {
                    revision, settings, ..
                } if revision.0 == 1 => self.feeds += u64::from(!settings.is_timeline()),
                Change::Entry {
                    at,
                    id,
                    sent,
                    digest,
                    fragment,
                    ..
                } => {
                    self.stamp.entries_before += 1;
                    self.bytes += fragment.len();
                    if let Some(outcome) = outcomes.next() {
                        let known = KnownEntry {
                            at: *at,
                            document: outcome.document,
                            sent: *sent,
                            fragment: *digest,
                        };
                        added.insert(id.clone(), known);
                    }
                }
                _ => {}
            }
        }
        self.changes.extend(changes);
        if let Some((state, _)) = self.states.get_mut(feed) {
            *state = plan.state.clone();
        }
        plan.state
    }
}

/// Checks that a request agrees with the kind of an existing feed, and lists nothing to follow.
fn check_kind(
    settings: &Settings,
    asked: &FeedKindRule,
    wanted: &FollowItems,
) -> Result<(), Refusal> {
    let refused =
        |detail, element| Err(Refusal::unacceptable(detail, "settings").at_element(element));
    match (asked, &settings.timeline) {
        (FeedKindRule::Timeline { .. }, None) => {
            return refused("a feed never becomes a timeline", "kind");
        }
        (FeedKindRule::Feed, Some(_)) => return refused("a timeline never becomes a feed", "kind"),
        // A value that the request leaves out stays as chosen.
        (FeedKindRule::Timeline { owner, own }, Some(kind))
            if owner.is_some() && *owner != kind.owner
                || own.is_some_and(|own| own != kind.own) =>
        {
            let detail = "owner and own are chosen at the creation of a timeline";
            return refused(detail, "owner");
        }
        _ => {}
    }
    if !wanted.follow.is_empty() {
        let detail = "the timeline is there already: change what it follows at its URL /following";
        return refused(detail, "following");
    }
    Ok(())
}

impl SettingsCondition {
    /// Checks that a feed meets the condition.
    fn check_state(&self, state: &FeedState) -> Result<(), Refusal> {
        match self {
            Self::NoFeed => Err(Refusal::precondition("the feed is there already")),
            Self::Settings(Some(tags)) if !settings_tag(state).is_among(tags) => {
                let detail = "the settings have changed since, or do not have the tag given";
                Err(Refusal::precondition(detail))
            }
            Self::Anything | Self::Settings(_) => Ok(()),
        }
    }
}

fn settings_tag(state: &FeedState) -> SettingsTag {
    SettingsTag::new(state.head.feed, state.head.revision, &state.settings)
}

impl Conditions {
    /// Checks the conditions. `exists` tells whether the feed exists, and `tag` returns the tag
    /// that readers have of the feed, if they have a tag.
    fn check_tag(&self, exists: bool, tag: impl Fn() -> Option<HeadTag>) -> Result<(), Refusal> {
        let matches = |heads: &Heads| match heads {
            Heads::Any => exists,
            Heads::Tags(tags) => exists && tag().is_some_and(|tag| tag.is_among(tags)),
        };
        // `If-Match` comes first (RFC 9110, 13.2.2).
        if self.if_match.as_ref().is_some_and(|heads| !matches(heads)) {
            let detail = "the feed has changed since, or does not have the tag given";
            return Err(Refusal::precondition(detail));
        }
        if self.if_none_match.as_ref().is_some_and(matches) {
            let detail = match self.if_none_match {
                Some(Heads::Any) => "the feed is there already",
                _ => "the feed has the tag given",
            };
            return Err(Refusal::precondition(detail));
        }
        Ok(())
    }
}

/// Usual length of an alternate link, in bytes. Groups are bounded roughly, so an estimate is
/// enough.
const ALTERNATE_BYTES: usize = 128;

/// Returns the number of entries of a request, and their bytes once completed with this author.
pub(super) fn size(request: &WriterRequest, author: &str) -> (usize, usize) {
    match request {
        WriterRequest::Append(append, _) => (
            append.drafts.len(),
            append
                .drafts
                .iter()
                .map(|draft| draft.size(author, ALTERNATE_BYTES))
                .sum(),
        ),
        // Settings and follows add no entries, but their lists of feeds may be long, so the bytes
        // of the lists count.
        WriterRequest::Configure(configure, _) => (0, configure.wanted.bytes()),
        WriterRequest::Follow(follow, _) => (0, follow.wanted.bytes()),
    }
}
