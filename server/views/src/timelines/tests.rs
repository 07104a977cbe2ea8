//! Timelines of random histories, against a list to which entries are added as they come.

use std::collections::{BTreeSet, HashMap};

use bytes::Bytes;
use proptest::prelude::*;
use simplefeed_core::{
    cut::{Fill, Period},
    digest::Digest,
    feed::{EntryId, Epoch, FeedId, FeedPattern},
    follow::FollowChange,
    settings::{Choices, Defaults, Embed, OwnEntries, TimelineKind},
    timeline::showing::{EntryOrigin, shown},
    timestamp::Timestamp,
};
use simplefeed_log::{Append as _, Commits as _, Series as _, memory::MemoryLog};
use uuid::Uuid;

use super::{
    lists::{ClosedSight, FeedListPart, ListStretch},
    merged::MergedLog,
    *,
};

mod gathering;
mod keeping;
mod retrying;

const CLOSED: usize = 3;
const FEEDS: usize = 4;
const TIMELINES: usize = 2;

/// Something that happens in a log.
#[derive(Clone, Debug)]
enum Step {
    /// Entries of these feeds, in one commit.
    Append(Vec<usize>),
    Follow(usize, Vec<FollowItem>, Vec<FollowItem>, u32),
    Timeline(usize, u32, bool, Option<u32>),
    Title(usize),
    Defaults,
    Epoch,
    /// A feed loses entries, as after a recovery.
    Lose(usize, u64),
    Create,
    Open,
}

fn key(feed: usize) -> FeedKey {
    FeedKey(Uuid::from_u128(feed.try_into().unwrap()))
}

fn settings_for(key: FeedKey, name: &str, choices: Choices) -> Settings {
    Settings {
        name: FeedName::parse(name).unwrap(),
        id: FeedId::of_uuid(key.0),
        choices: choices.into(),
        defaults: Defaults::new("http://h").into(),
        sup_id: None,
        was_closed: false,
        timeline: None,
    }
}

fn timeline_key(timeline: usize) -> FeedKey {
    FeedKey(Uuid::from_u128(100 + u128::try_from(timeline).unwrap()))
}

/// A feed, as the definition has it.
#[derive(Clone)]
struct NaiveFeed {
    settings: Settings,
    revision: Revision,
    /// None if it is lost.
    entries: Vec<Option<(Timestamp, Bytes, DocumentName)>>,
}

/// A timeline, as the definition has it.
struct Naive {
    settings: Settings,
    revision: Revision,
    followed: Vec<FollowItem>,
    own: (FeedKey, bool),
    /// Where each entry comes from.
    had: Vec<(FeedKey, Position)>,
    /// Entries as they are shown, with the instants of their places and the epoch.
    shown: Vec<(Bytes, Timestamp, DocumentName)>,
    documents: Vec<(Opening, Settings)>,
    fill: Fill,
    outdated: bool,
}

/// The log, and what is to be seen of it.
struct World {
    log: Arc<MemoryLog>,
    feeds: HashMap<FeedKey, NaiveFeed>,
    timelines: Vec<Naive>,
    defaults: (Revision, Defaults),
    epoch: Epoch,
    clock: i64,
}

impl World {
    fn new() -> Self {
        let mut world = Self {
            log: Arc::default(),
            feeds: HashMap::new(),
            timelines: vec![],
            defaults: (Revision::FIRST, Defaults::new("http://h")),
            epoch: Epoch::FIRST,
            clock: 0,
        };
        let (revision, defaults) = world.defaults.clone();
        world.commit(vec![Change::Defaults { revision, defaults }]);
        for (feed, name) in [(1, "x-one"), (2, "y-two"), (CLOSED, "x-closed")] {
            world.create(feed, name, feed == CLOSED);
        }
        for timeline in 0..TIMELINES {
            world.create_timeline(timeline);
        }
        world
    }

    fn commit(&mut self, changes: Vec<Change>) -> Timestamp {
        self.clock += 1_000_000;
        let instant = Timestamp::from_micros(self.clock);
        let number = self.log.head().number.next();
        self.log
            .append(&Commit {
                number,
                instant,
                changes,
            })
            .unwrap();
        instant
    }

    fn create(&mut self, feed: usize, name: &str, closed: bool) {
        let closed = Some(closed);
        let settings = settings_for(
            key(feed),
            name,
            Choices {
                closed,
                ..Choices::default()
            },
        );
        let revision = Revision::FIRST;
        self.feeds.insert(
            key(feed),
            NaiveFeed {
                settings: settings.clone(),
                revision,
                entries: vec![],
            },
        );
        let feed = key(feed);
        let document = DocumentNumber::OLDEST;
        let first = Position(0);
        self.commit(vec![
            Change::Settings {
                feed,
                revision,
                settings,
            },
            Change::Opened {
                feed,
                document,
                first,
                revision,
            },
        ]);
    }

    /// The first timeline is closed and has its owner's feed; the second one is open and leaves it out.
    fn create_timeline(&mut self, timeline: usize) {
        let (feed, is_first) = (timeline_key(timeline), timeline == 0);
        let own = if is_first {
            OwnEntries::Include
        } else {
            OwnEntries::Exclude
        };
        let choices = Choices {
            closed: Some(is_first),
            ..Choices::default()
        };
        let settings = Settings {
            timeline: Some(TimelineKind::new(FeedName::parse("x-one"), own)),
            ..settings_for(feed, &format!("t-{timeline}"), choices)
        };
        let revision = Revision::FIRST;
        let instant = self.commit(vec![Change::Settings {
            feed,
            revision,
            settings: settings.clone(),
        }]);
        let mut naive = Naive {
            settings,
            revision,
            followed: vec![],
            own: (key(1), is_first),
            had: vec![],
            shown: vec![],
            documents: vec![],
            fill: Fill {
                entries: 0,
                bytes: 0,
                newest: instant,
            },
            outdated: false,
        };
        naive.open(1, instant, self.epoch);
        self.timelines.push(naive);
    }

    fn takes(&self, timeline: &Naive, feed: FeedKey) -> bool {
        let Some(now) = self.feeds.get(&feed) else {
            return false;
        };
        if now.settings.is_closed() && !timeline.settings.is_closed() {
            return false;
        }
        if timeline.own.0 == feed {
            return timeline.own.1;
        }
        timeline.followed.iter().any(|item| match item {
            FollowItem::Feed(one) => *one == feed,
            FollowItem::Pattern(pattern) => pattern.matches(&now.settings.name),
        })
    }

    fn taken(&self, timeline: usize) -> Vec<FeedKey> {
        let all = self.feeds.keys().copied();
        let naive = &self.timelines[timeline];
        all.filter(|feed| self.takes(naive, *feed)).collect()
    }

    fn deliver(&mut self, timeline: usize, feed: FeedKey, at: usize, instant: Timestamp) {
        let source = &self.feeds[&feed];
        let (written, fragment, document) = source.entries[at].clone().unwrap();
        let base = format!(
            "{}/feeds/{}/",
            self.defaults.1.public_url, source.settings.name
        );
        let suffix = match document.epoch {
            Epoch::FIRST => String::new(),
            epoch => format!("-{epoch}"),
        };
        let origin = EntryOrigin {
            entry_url: &format!("{base}entries/{at}{suffix}.atom"),
            feed_id: source.settings.id.as_str(),
            title: source.settings.title(),
            instant: written,
            feed_url: &format!("{base}recent.atom"),
        };
        let naive = &mut self.timelines[timeline];
        naive.settings.defaults = self.defaults.1.clone().into();
        let fragment_shown = shown(&fragment, &origin, naive.settings.embed()).unwrap();
        naive.had.push((feed, Position(at.try_into().unwrap())));
        naive.add(fragment_shown, fragment.len(), instant, self.epoch);
    }

    fn take(&mut self, step: &Step) {
        match step {
            Step::Append(feeds) => self.append(feeds),
            Step::Follow(timeline, follow, unfollow, backfill) => {
                let change = FollowChange {
                    follow: follow.clone(),
                    unfollow: unfollow.clone(),
                    backfill: *backfill,
                };
                self.follow(*timeline, change);
            }
            Step::Timeline(timeline, entries, by_hour, bytes) => {
                let period = if *by_hour { Period::Hour } else { Period::None };
                let naive = &mut self.timelines[*timeline];
                let choices = Arc::make_mut(&mut naive.settings.choices);
                choices.document_entries = Some(*entries);
                choices.document_period = Some(period);
                choices.embed = Some(bytes.map_or(Embed::All, Embed::Bytes));
                naive.revision = naive.revision.next();
                let (revision, settings) = (naive.revision, naive.settings.clone());
                let feed = timeline_key(*timeline);
                let instant = self.commit(vec![Change::Settings {
                    feed,
                    revision,
                    settings,
                }]);
                let defaults = self.defaults.1.clone();
                self.timelines[*timeline].change_settings(instant, defaults);
            }
            Step::Title(feed) => self.change_feed(key(*feed), |settings| {
                let title = format!("title {}", settings.title().len());
                Arc::make_mut(&mut settings.choices).title = Some(title);
            }),
            Step::Open => self.change_feed(key(CLOSED), |settings| {
                Arc::make_mut(&mut settings.choices).closed = Some(false);
            }),
            Step::Defaults => {
                let (revision, mut defaults) = self.defaults.clone();
                defaults.public_url.push('x');
                self.defaults = (revision.next(), defaults.clone());
                let revision = revision.next();
                let instant = self.commit(vec![Change::Defaults {
                    revision,
                    defaults: defaults.clone(),
                }]);
                for naive in &mut self.timelines {
                    naive.change_settings(instant, defaults.clone());
                }
            }
            Step::Epoch => self.begin_epoch(),
            Step::Lose(feed, count) => self.lose(key(*feed), *count),
            Step::Create => {
                if !self.feeds.contains_key(&key(FEEDS)) {
                    self.create(FEEDS, "x-later", false);
                }
            }
        }
    }

    fn begin_epoch(&mut self) {
        self.epoch = Epoch(self.epoch.0 + 1);
        let epoch = self.epoch;
        self.commit(vec![Change::Epoch { epoch }]);
        for naive in &mut self.timelines {
            let (open, _) = naive.documents.last_mut().unwrap();
            open.name.epoch = epoch;
            open.since = open.first;
        }
        // Feeds get their names as a restoration gives them.
        let heads = self.log.feeds(None, 100).unwrap();
        let renamed = heads
            .iter()
            .filter(|(name, _)| !name.as_str().starts_with("t-"));
        let renamed = renamed.map(|(_, head)| head.renamed()).collect();
        self.commit(renamed);
    }

    fn lose(&mut self, feed: FeedKey, count: u64) {
        let (Some(naive), Some(head)) = (self.feeds.get_mut(&feed), self.log.feed(feed).unwrap())
        else {
            return;
        };
        naive.entries.extend((0..count).map(|_| None));
        let (next, history) = (Position(head.next.0 + count), head.history);
        self.commit(vec![Change::Lost {
            feed,
            next,
            history,
        }]);
    }

    fn change_feed(&mut self, feed: FeedKey, change: impl Fn(&mut Settings)) {
        let Some(naive) = self.feeds.get_mut(&feed) else {
            return;
        };
        change(&mut naive.settings);
        naive.revision = naive.revision.next();
        let (revision, settings) = (naive.revision, naive.settings.clone());
        self.commit(vec![Change::Settings {
            feed,
            revision,
            settings,
        }]);
    }

    fn append(&mut self, feeds: &[usize]) {
        let (mut changes, mut places) = (vec![], vec![]);
        for feed in feeds {
            let feed = key(*feed);
            let Some(head) = self.log.feed(feed).unwrap() else {
                continue;
            };
            let naive = self.feeds.get_mut(&feed).unwrap();
            let at = naive.entries.len();
            let id = EntryId::parse(&format!("urn:{}:{at}", feed.0)).unwrap();
            let fragment = Bytes::from(format!(
                "<entry xmlns=\"http://www.w3.org/2005/Atom\"><id>{id}</id><updated>2020-01-01T00:00:00Z</updated>\
                 <content>{}</content></entry>",
                "c".repeat(at * 37 % 200)
            ));
            let document = head.open.opening.name;
            naive
                .entries
                .push(Some((Timestamp::MIN, fragment.clone(), document)));
            places.push((feed, at));
            changes.push(Change::Entry {
                feed,
                at: Position(at.try_into().unwrap()),
                id,
                sent: Digest::of(b""),
                digest: Digest::of(&fragment),
                fragment,
            });
        }
        if changes.is_empty() {
            return;
        }
        let instant = self.commit(changes);
        for ((feed, at), micros) in places.iter().zip(0..) {
            let entry = &mut self.feeds.get_mut(feed).unwrap().entries[*at];
            entry.as_mut().unwrap().0 = instant.plus_micros(micros);
        }
        for ((feed, at), micros) in places.into_iter().zip(0..) {
            for timeline in 0..self.timelines.len() {
                if self.takes(&self.timelines[timeline], feed) {
                    self.deliver(timeline, feed, at, instant.plus_micros(micros));
                }
            }
        }
    }

    fn follow(&mut self, timeline: usize, mut change: FollowChange) {
        // The writer refuses feeds that are not there, or not for everybody.
        let is_closed = self.timelines[timeline].settings.is_closed();
        change.follow.retain(|item| match item {
            FollowItem::Feed(feed) => {
                let feed = self.feeds.get(feed);
                feed.is_some_and(|feed| is_closed || !feed.settings.is_closed())
            }
            FollowItem::Pattern(_) => true,
        });
        let before = self.taken(timeline);
        let followed = &mut self.timelines[timeline].followed;
        followed.retain(|item| !change.unfollow.contains(item));
        followed.extend(change.follow.iter().cloned());
        let backfill = usize::try_from(change.backfill).unwrap();
        let instant = self.commit(vec![Change::Following {
            feed: timeline_key(timeline),
            change: change.into(),
        }]);
        let mut brought = vec![];
        for feed in self.taken(timeline) {
            if before.contains(&feed) {
                continue;
            }
            let entries = &self.feeds[&feed].entries;
            let there = entries.iter().enumerate().rev();
            let there = there.filter_map(|(at, entry)| Some((at, entry.as_ref()?)));
            for (at, (written, ..)) in there.take(backfill) {
                let position = Position(at.try_into().unwrap());
                if !self.timelines[timeline].had.contains(&(feed, position)) {
                    brought.push((*written, feed, at));
                }
            }
        }
        brought.sort();
        for (_, feed, at) in brought {
            self.deliver(timeline, feed, at, instant);
        }
    }
}

impl Naive {
    fn open(&mut self, number: u64, instant: Timestamp, epoch: Epoch) {
        let name = DocumentName {
            number: DocumentNumber::new(number).unwrap(),
            epoch,
        };
        let before = self.documents.last().map(|(before, _)| *before);
        let opening = Opening {
            name,
            linked: name,
            previous: before.map(|before| before.name),
            first: Position(self.shown.len().try_into().unwrap()),
            // Neither is shown.
            before: simplefeed_core::history::HistoryHash(Digest::of(b"")),
            revision: Revision::FIRST,
            opened: instant,
            after_loss: false,
            since: before.map_or(Position(0), |before| before.since),
        };
        self.documents.push((opening, self.settings.clone()));
        self.fill.entries = 0;
        self.fill.bytes = 0;
        self.outdated = false;
    }

    fn change_settings(&mut self, _: Timestamp, defaults: Defaults) {
        self.settings.defaults = defaults.into();
        if self.fill.entries == 0 {
            self.documents.last_mut().unwrap().1 = self.settings.clone();
        } else {
            self.outdated = true;
        }
    }

    fn add(&mut self, entry: Bytes, bytes: usize, instant: Timestamp, epoch: Epoch) {
        let bytes = u64::try_from(bytes).unwrap();
        let policy = self.settings.cut_policy();
        if self.outdated || policy.cuts_before(self.fill, bytes, instant) {
            let next = self.documents.last().unwrap().0.name.number.next();
            self.open(next.get(), instant, epoch);
        }
        self.fill.entries += 1;
        self.fill.bytes += bytes;
        self.fill.newest = instant;
        let number = self.documents.last().unwrap().0.name.number;
        self.shown
            .push((entry, instant, DocumentName { number, epoch }));
    }
}

/// Compares everything that can be seen of the timelines.
fn compare(world: &World, log: &MergedLog, steps: &[Step]) {
    for (timeline, naive) in world.timelines.iter().enumerate() {
        let feed = timeline_key(timeline);
        let head = log.feed(feed).unwrap().unwrap();
        let count = u64::try_from(naive.shown.len()).unwrap();
        assert_eq!(head.next, Position(count), "{steps:?}");
        assert_eq!(
            log.named(&naive.settings.name).unwrap().as_ref(),
            Some(&head)
        );
        let entries = log.entries(feed, Position(0)..Position(count + 5)).unwrap();
        let found: Vec<_> = entries
            .iter()
            .map(|entry| (entry.fragment.clone(), entry.instant, entry.document))
            .collect();
        assert_eq!(found, naive.shown, "{steps:?}");
        for (at, entry) in (0..).map(Position).zip(&entries) {
            assert_eq!(
                log.entries(feed, at..at.next()).unwrap(),
                std::slice::from_ref(entry)
            );
        }
        let mut placed = log.page(feed, None, 1_000).unwrap();
        placed.reverse();
        let fragments = placed.iter().map(|placed| &placed.entry.fragment);
        assert!(fragments.eq(naive.shown.iter().map(|(fragment, ..)| fragment)));
        for (index, anchor) in placed.iter().enumerate().step_by(5) {
            let (older, newer) = (&placed[..index], &placed[index + 1..]);
            let mut older = older[older.len().saturating_sub(3)..].to_vec();
            older.reverse();
            assert_eq!(log.page(feed, Some(anchor.place), 3).unwrap(), older);
            let mut newer = newer[..newer.len().min(3)].to_vec();
            newer.reverse();
            assert_eq!(log.page(feed, Some(anchor.place), -3).unwrap(), newer);
        }
        for (number, (opening, settings)) in (1..).zip(&naive.documents) {
            let number = DocumentNumber::new(number).unwrap();
            let found = log.opening(feed, number).unwrap().unwrap();
            let settings_found = log.settings(feed, found.revision).unwrap().unwrap();
            assert!(settings_found.shapes_like(settings), "{steps:?}");
            let comparable = Opening {
                before: opening.before,
                revision: opening.revision,
                ..found
            };
            assert_eq!(comparable, *opening, "{steps:?}");
        }
        let newest = DocumentNumber::new(naive.documents.len().try_into().unwrap()).unwrap();
        assert_eq!(Some(head.open.opening), log.opening(feed, newest).unwrap());
        assert_eq!(log.opening(feed, newest.next()).unwrap(), None);
    }
}

fn any_item() -> impl Strategy<Value = FollowItem> {
    let feeds = (1..=FEEDS).prop_map(|feed| FollowItem::Feed(key(feed)));
    let patterns = prop_oneof![Just("x-*"), Just("*"), Just("x-l*")];
    let pattern = |text| FollowItem::Pattern(FeedPattern::parse(text).unwrap());
    prop_oneof![2 => feeds, 1 => patterns.prop_map(pattern)]
}

fn any_step() -> impl Strategy<Value = Step> {
    let items = || prop::collection::vec(any_item(), 0..3);
    let bytes = prop::option::of(150_u32..400);
    prop_oneof![
        12 => prop::collection::vec(1..=FEEDS, 1..4).prop_map(Step::Append),
        5 => (0..TIMELINES, items(), items(), 0_u32..6).prop_map(
            |(timeline, mut follow, mut unfollow, backfill)| {
                // One request does not ask for both, nor twice.
                follow.sort();
                follow.dedup();
                unfollow.retain(|item| !follow.contains(item));
                Step::Follow(timeline, follow, unfollow, backfill)
            }
        ),
        1 => (0..TIMELINES, 1_u32..5, any::<bool>(), bytes)
            .prop_map(|(timeline, entries, hour, bytes)| Step::Timeline(timeline, entries, hour, bytes)),
        1 => (1..=FEEDS).prop_map(Step::Title),
        1 => Just(Step::Defaults),
        1 => Just(Step::Epoch),
        1 => (1..=FEEDS, 1_u64..4).prop_map(|(feed, count)| Step::Lose(feed, count)),
        1 => Just(Step::Create),
        1 => Just(Step::Open),
    ]
}

/// Timelines that are kept in one way, in a folder of their own.
struct Kept {
    folder: tempfile::TempDir,
    keeping: Keeping,
    timelines: Arc<Timelines>,
}

impl Kept {
    fn new(world: &World, fan_out: FanOut) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let keeping = Keeping {
            fan_out,
            ..Keeping::default()
        };
        let timelines = open(world, Some(folder.path()), keeping);
        Self {
            folder,
            keeping,
            timelines,
        }
    }

    fn compare(&self, world: &World, steps: &[Step]) {
        compare(world, &MergedLog::new(Arc::clone(&self.timelines)), steps);
        self.compare_lists(world, steps);
    }

    /// Compares the lists of follows and followers, for readers of no closed timeline, of all, and of some.
    fn compare_lists(&self, world: &World, steps: &[Step]) {
        for (timeline, naive) in world.timelines.iter().enumerate() {
            let named = naive.followed.iter().filter_map(|item| match item {
                FollowItem::Feed(feed) => Some(*feed),
                FollowItem::Pattern(_) => None,
            });
            let listed = all_parts(|wanted| {
                let part = self.timelines.following(timeline_key(timeline), wanted);
                part.unwrap().unwrap()
            });
            assert_eq!(listed, named.collect(), "{steps:?}");
        }
        let takers = |feed, sees_closed: &dyn Fn(FeedKey) -> bool| -> BTreeSet<FeedKey> {
            let all = world.timelines.iter().enumerate();
            let takers = all.filter(|(_, naive)| world.takes(naive, feed));
            let seen = takers.filter(|(timeline, naive)| {
                !naive.settings.is_closed() || sees_closed(timeline_key(*timeline))
            });
            seen.map(|(timeline, _)| timeline_key(timeline)).collect()
        };
        let is_odd = |timeline: FeedKey| timeline.0.as_u128() % 2 == 1;
        let sees_odd = |timeline| Ok(is_odd(timeline));
        for feed in world.feeds.keys() {
            let listed =
                |seen| all_parts(|wanted| self.timelines.followers(*feed, wanted, seen).unwrap());
            let of_none = listed(ClosedSight::None);
            assert_eq!(of_none, takers(*feed, &|_| false), "{steps:?}");
            let of_all = listed(ClosedSight::All);
            assert_eq!(of_all, takers(*feed, &|_| true), "{steps:?}");
            let of_some = listed(ClosedSight::Some(&sees_odd));
            assert_eq!(of_some, takers(*feed, &is_odd), "{steps:?}");
        }
    }

    /// Stops, and begins again in another way.
    fn restart(&mut self, world: &World, fan_out: FanOut) {
        self.keeping.fan_out = fan_out;
        self.timelines = open(world, Some(self.folder.path()), self.keeping);
    }
}

/// Returns the feeds of a list that is read in parts, each once, and checks what each part says of the whole.
fn all_parts(part: impl Fn(ListStretch) -> FeedListPart) -> BTreeSet<FeedKey> {
    let (mut all, mut after, mut said) = (vec![], None, vec![]);
    loop {
        let part = part(ListStretch { after, max: 2 });
        assert!(part.feeds.len() <= 2);
        all.extend(part.feeds.iter().copied());
        said.push(part.count);
        after = part.feeds.last().copied();
        if !part.has_more {
            break;
        }
        assert!(after.is_some());
    }
    let feeds: BTreeSet<FeedKey> = all.iter().copied().collect();
    assert_eq!(feeds.len(), all.len(), "a feed stands in two parts");
    let count = u64::try_from(all.len()).unwrap();
    assert!(
        said.iter().all(|said| *said == count),
        "{said:?} of {count}"
    );
    feeds
}

fn open(world: &World, folder: Option<&Path>, keeping: Keeping) -> Arc<Timelines> {
    let log: Arc<dyn EntryLog> = Arc::<MemoryLog>::clone(&world.log);
    Arc::new(Timelines::new(log, folder, keeping).unwrap())
}

const MODELS: [FanOut; 4] = [FanOut::Auto, FanOut::Read, FanOut::Write, FanOut::Cache];

fn any_model() -> impl Strategy<Value = FanOut> {
    prop::sample::select(MODELS.to_vec())
}

/// Work of a view, or of its server, beside the log.
#[derive(Clone, Debug)]
enum Beside {
    Nothing,
    /// Somebody reads.
    Read,
    /// The view carries out its work.
    Keep,
    /// The work is carried out, and files are merged.
    Merge,
    /// The server starts again.
    Restart(FanOut),
}

fn any_beside() -> impl Strategy<Value = Beside> {
    prop_oneof![
        4 => Just(Beside::Nothing),
        4 => Just(Beside::Read),
        4 => Just(Beside::Keep),
        2 => Just(Beside::Merge),
        1 => any_model().prop_map(Beside::Restart),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Goal: every document, position and entry of a timeline is what the definition says, whenever it is read and however
    /// it is kept (SPECS 2.10 items 1, 2, 4, 11 and 12; S-D2, S-D3): the rule of a timeline, settings and titles in force at
    /// each place, names after restorations. Changes of the model do not change a byte.
    #[test]
    fn timelines_are_what_their_commits_say(
        steps in prop::collection::vec(any_step(), 0..50),
        beside in prop::collection::vec(any_beside(), 50),
    ) {
        let mut world = World::new();
        let mut all = MODELS.map(|fan_out| Kept::new(&world, fan_out));
        for (step, beside) in steps.iter().zip(beside) {
            world.take(step);
            for (index, kept) in all.iter_mut().enumerate() {
                match beside {
                    Beside::Nothing => {}
                    Beside::Read => kept.compare(&world, &steps),
                    Beside::Keep => drop(kept.timelines.keep_course(|| false, || true).unwrap()),
                    Beside::Merge => {
                        kept.timelines.keep_course(|| false, || true).unwrap();
                        kept.timelines.gathering.wait();
                    }
                    // The first of them changes its model now and then.
                    Beside::Restart(fan_out) if index == 0 => kept.restart(&world, fan_out),
                    Beside::Restart(_) => kept.restart(&world, kept.keeping.fan_out),
                }
            }
        }
        for kept in &all {
            kept.compare(&world, &steps);
        }
        // One that begins now sees the same.
        let again = open(&world, None, Keeping::default());
        let graph = again.read_graph().unwrap().clone();
        compare(&world, &MergedLog::new(again), &steps);
        // A snapshot has all of it.
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(SNAPSHOT);
        let chain = world.log.chain(graph.applied).unwrap().unwrap();
        snapshot::write(&path, &snapshot::bytes_of(&graph, chain)).unwrap();
        let read = open(&world, Some(folder.path()), Keeping::default());
        assert!(*read.graph.read() == graph);
    }
}
