//! The definition of a timeline, told as simply as possible, and all small histories.

use std::collections::BTreeMap;

use proptest::prelude::*;
use uuid::Uuid;

use super::*;

/// A log with some feeds, each with the instants of its entries.
#[derive(Clone, Default)]
struct World {
    feeds: BTreeMap<FeedKey, (FeedName, bool, Vec<Timestamp>)>,
    lost: BTreeMap<FeedKey, Vec<Range<Position>>>,
    clock: i64,
}

fn key(n: u128) -> FeedKey {
    FeedKey(Uuid::from_u128(n))
}

impl World {
    fn tick(&mut self) -> Timestamp {
        self.clock += 1;
        Timestamp::from_micros(self.clock)
    }

    fn create(&mut self, feed: FeedKey, name: &str, is_closed: bool) {
        let name = FeedName::parse(name).unwrap();
        self.feeds.insert(feed, (name, is_closed, vec![]));
    }
}

impl Feeds for World {
    fn matching(&self, pattern: &FeedPattern) -> Vec<FeedKey> {
        let matching = self
            .feeds
            .iter()
            .filter(|(_, (name, ..))| pattern.matches(name));
        matching.map(|(feed, _)| *feed).collect()
    }

    fn feed(&self, feed: FeedKey) -> Option<FeedMoment> {
        let (name, is_closed, _) = self.feeds.get(&feed)?;
        Some(FeedMoment {
            name: name.clone(),
            is_closed: *is_closed,
        })
    }

    fn lost(&self, feed: FeedKey) -> Vec<Range<Position>> {
        self.lost.get(&feed).cloned().unwrap_or_default()
    }
}

impl World {
    fn is_lost(&self, feed: FeedKey, at: Position) -> bool {
        let lost = self.lost.get(&feed);
        lost.is_some_and(|lost| lost.iter().any(|range| range.contains(&at)))
    }
}

impl Entries for World {
    fn next(&self, feed: FeedKey) -> Position {
        Position(u64::try_from(self.feeds[&feed].2.len()).unwrap())
    }

    fn instant(&self, feed: FeedKey, at: Position) -> Timestamp {
        assert!(!self.is_lost(feed, at), "nobody asks for lost entries");
        self.feeds[&feed].2[usize::try_from(at.0).unwrap()]
    }
}

/// A timeline's entries as they are gathered while they come, but for those of some feeds.
#[derive(Default)]
struct Kept {
    without: Vec<FeedKey>,
    reached: BTreeMap<FeedKey, Position>,
    list: Vec<TimelineEntry>,
    apart: Vec<(FeedKey, Range<Position>)>,
}

impl Kept {
    fn gather(&mut self, following: &FollowState, world: &World) {
        for feed in world.feeds.keys() {
            let next = world.next(*feed);
            let reached = self.reached.insert(*feed, next).unwrap_or_default();
            for range in following.gained(*feed, reached..next) {
                if self.without.contains(feed) {
                    self.apart.push((*feed, range));
                    continue;
                }
                self.list
                    .extend((range.start.0..range.end.0).map(|at| TimelineEntry {
                        place: Place::of_entry(world.instant(*feed, Position(at))),
                        feed: *feed,
                        at: Position(at),
                    }));
            }
        }
        self.list.sort_by_key(|delivery| delivery.place);
    }
}

impl GatheredEntries<FeedKey> for Kept {
    fn count(&self) -> u64 {
        count(self.list.iter())
    }

    fn delivery(&self, index: u64) -> TimelineEntry {
        self.list[usize::try_from(index).unwrap()]
    }

    fn apart(&self) -> &[(FeedKey, Range<Position>)] {
        &self.apart
    }
}

/// A log for which entries were gathered.
struct WithKept<'w>(&'w World, &'w Kept);

impl Entries for WithKept<'_> {
    fn next(&self, _: FeedKey) -> Position {
        panic!("no feed is merged to its end")
    }

    fn instant(&self, feed: FeedKey, at: Position) -> Timestamp {
        assert!(self.1.without.contains(&feed), "only feeds apart are read");
        self.0.instant(feed, at)
    }

    fn gathered(&self) -> Option<&dyn GatheredEntries<FeedKey>> {
        Some(self.1)
    }
}

/// The definition: a list to which entries are added as they come.
#[derive(Clone, Default)]
struct Naive {
    items: Vec<FollowItem>,
    entries: Vec<(FeedKey, Position)>,
}

impl Naive {
    fn takes(&self, feed: FeedKey, terms: Terms, world: &World) -> bool {
        let Some(now) = world.feed(feed) else {
            return false;
        };
        if now.is_closed && !terms.is_closed {
            return false;
        }
        if let Some((own, is_had)) = terms.own
            && own == feed
        {
            return is_had;
        }
        self.items.iter().any(|item| match item {
            FollowItem::Feed(one) => *one == feed,
            FollowItem::Pattern(pattern) => pattern.matches(&now.name),
        })
    }

    fn change(&mut self, change: &FollowChange, terms: Terms, world: &World) {
        let before: Vec<FeedKey> = self.taken(terms, world);
        self.items.retain(|item| !change.unfollow.contains(item));
        self.items.extend(change.follow.iter().cloned());
        let mut brought = vec![];
        for feed in self.taken(terms, world) {
            if before.contains(&feed) {
                continue;
            }
            let next = world.next(feed).0;
            let there = (0..next)
                .rev()
                .filter(|at| !world.is_lost(feed, Position(*at)));
            for at in there.take(usize::try_from(change.backfill).unwrap()) {
                if !self.entries.contains(&(feed, Position(at))) {
                    brought.push((feed, Position(at)));
                }
            }
        }
        brought.sort_by_key(|(feed, at)| world.instant(*feed, *at));
        self.entries.extend(brought);
    }

    fn taken(&self, terms: Terms, world: &World) -> Vec<FeedKey> {
        let all = world.feeds.keys().copied();
        all.filter(|feed| self.takes(*feed, terms, world)).collect()
    }
}

/// Something that happens in a log.
#[derive(Clone, Debug)]
enum Step {
    Append(u128),
    Change(FollowChange),
    /// A feed loses entries.
    Lose(u128, u8),
    /// A feed that the pattern matches is created.
    Create,
    /// The closed feed is opened.
    Open,
}

const CLOSED: u128 = 3;
const LATER: u128 = 4;

fn all() -> FollowItem {
    FollowItem::Pattern(FeedPattern::parse("x-*").unwrap())
}

fn follow(item: FollowItem, backfill: u32) -> Step {
    Step::Change(FollowChange {
        follow: vec![item],
        backfill,
        ..FollowChange::default()
    })
}

fn unfollow(item: FollowItem) -> Step {
    Step::Change(FollowChange {
        unfollow: vec![item],
        ..FollowChange::default()
    })
}

/// Lets it happen, and compares after each step.
fn run(terms: Terms, steps: &[Step]) {
    let mut world = World::default();
    for (feed, name) in [(1, "x-one"), (2, "x-two")] {
        world.create(key(feed), name, false);
    }
    world.create(key(CLOSED), "x-closed", true);
    let mut following = FollowState::new(terms, &world);
    let mut naive = Naive::default();
    // Every feed is gathered, and all but some.
    let mut kept = [vec![], vec![key(1), key(CLOSED)]].map(|without| Kept {
        without,
        ..Kept::default()
    });
    for (index, step) in steps.iter().enumerate() {
        // Gathering may lag behind.
        if index % 3 == 2 {
            for kept in &mut kept {
                kept.gather(&following, &world);
            }
        }
        let instant = world.tick();
        match step {
            Step::Append(feed) => {
                let feed = key(*feed);
                if world.feed(feed).is_none() {
                    continue;
                }
                assert_eq!(following.takes(feed), naive.takes(feed, terms, &world));
                if naive.takes(feed, terms, &world) {
                    naive.entries.push((feed, world.next(feed)));
                }
                world.feeds.get_mut(&feed).unwrap().2.push(instant);
            }
            Step::Change(change) => {
                naive.change(change, terms, &world);
                following.change(change, instant, &world);
            }
            Step::Lose(feed, count) => {
                let Some((_, _, instants)) = world.feeds.get_mut(&key(*feed)) else {
                    continue;
                };
                let first = Position(u64::try_from(instants.len()).unwrap());
                instants.extend((0..*count).map(|_| Timestamp::MIN));
                let range = first..Position(first.0 + u64::from(*count));
                let lost = world.lost.entry(key(*feed)).or_default();
                lost.push(range.clone());
                following.lost(key(*feed), &range);
            }
            Step::Create => {
                if world.feed(key(LATER)).is_none() {
                    world.create(key(LATER), "x-later", false);
                    following.appeared(key(LATER), &world);
                }
            }
            Step::Open => {
                world.feeds.get_mut(&key(CLOSED)).unwrap().1 = false;
                following.appeared(key(CLOSED), &world);
            }
        }
    }
    compare(&following, &naive, &world, steps);
    for kept in &mut kept {
        kept.gather(&following, &world);
        compare(&following, &naive, &WithKept(&world, kept), steps);
    }
}

/// Compares every page with the list.
fn compare(following: &FollowState, naive: &Naive, world: &impl Entries, steps: &[Step]) {
    let mut all = following.older(None, usize::MAX, world);
    let newest_first: Vec<_> = all.iter().map(|one| (one.feed, one.at)).collect();
    let mut expected = naive.entries.clone();
    expected.reverse();
    assert_eq!(newest_first, expected, "{steps:?}");
    all.reverse();
    assert!(
        all.is_sorted_by(|one, next| one.place < next.place),
        "{steps:?}"
    );
    for (index, anchor) in all.iter().enumerate() {
        for limit in [1, 2, 7] {
            let mut older = all[index.saturating_sub(limit)..index].to_vec();
            older.reverse();
            assert_eq!(following.older(Some(anchor.place), limit, world), older);
            let end = all.len().min(index + 1 + limit);
            let mut newer = all[index + 1..end].to_vec();
            newer.reverse();
            assert_eq!(following.newer(Some(anchor.place), limit, world), newer);
        }
    }
    assert_eq!(following.older(None, 0, world), []);
    assert_eq!(following.count(world), count(all.iter()));
    for (at, one) in (0..).map(Position).zip(&all) {
        assert_eq!(following.place(at, world), Some(one.place), "{steps:?}");
        let instant = one.place.instant();
        let before = all.iter().filter(|other| other.place.instant() < instant);
        assert_eq!(following.rank(instant, world), count(before), "{steps:?}");
    }
    assert_eq!(following.place(Position(count(all.iter())), world), None);
    let oldest: Vec<_> = all.iter().take(3).rev().copied().collect();
    assert_eq!(following.newer(None, 3, world), oldest);
}

fn count<'d>(deliveries: impl Iterator<Item = &'d TimelineEntry>) -> u64 {
    u64::try_from(deliveries.count()).unwrap()
}

/// Goal: the ranges give the entries that the definition gives, each once, on every page.
/// Method: all histories of six steps over two feeds, and of five with a closed feed, a later one and a pattern.
#[test]
fn every_small_history_gives_what_the_definition_gives() {
    let (one, two) = (FollowItem::Feed(key(1)), FollowItem::Feed(key(2)));
    let both = Step::Change(FollowChange {
        follow: vec![one.clone(), two.clone()],
        unfollow: vec![],
        backfill: 2,
    });
    let few = [
        Step::Append(1),
        Step::Append(2),
        follow(one.clone(), 1),
        both,
        unfollow(one.clone()),
    ];
    exhaust(&few, 6, Terms::default());
    let more = [
        Step::Append(1),
        Step::Append(CLOSED),
        Step::Append(LATER),
        follow(one.clone(), 0),
        follow(all(), 2),
        unfollow(all()),
        unfollow(one),
        Step::Lose(1, 1),
        Step::Create,
        Step::Open,
    ];
    for terms in [
        Terms::default(),
        Terms {
            is_closed: true,
            ..Terms::default()
        },
        Terms {
            own: Some((key(1), false)),
            ..Terms::default()
        },
        Terms {
            own: Some((key(1), true)),
            ..Terms::default()
        },
    ] {
        exhaust(&more, 5, terms);
    }
}

fn exhaust(steps: &[Step], length: u32, terms: Terms) {
    let count = steps.len().pow(length);
    for number in 0..count {
        let mut rest = number;
        let history: Vec<Step> = (0..length)
            .map(|_| {
                let step = steps[rest % steps.len()].clone();
                rest /= steps.len();
                step
            })
            .collect();
        run(terms, &history);
    }
}

fn long_histories() -> u32 {
    if std::env::var_os("SIMPLEFEED_TESTS_LONG").is_some() {
        10_000
    } else {
        400
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(long_histories()))]

    /// Goal: as above, for long histories.
    #[test]
    fn long_histories_give_what_the_definition_gives(
        steps in prop::collection::vec(any_step(), 0..120),
        is_closed in any::<bool>(),
        own in prop::option::of((1_u128..3, any::<bool>())),
    ) {
        let own = own.map(|(feed, is_had)| (key(feed), is_had));
        run(Terms { own, is_closed }, &steps);
    }
}

fn any_item() -> impl Strategy<Value = FollowItem> {
    let feeds = (1_u128..=LATER).prop_map(|feed| FollowItem::Feed(key(feed)));
    let patterns = prop_oneof![Just("x-*"), Just("*"), Just("x-t*"), Just("x-l*")];
    let pattern = |text| FollowItem::Pattern(FeedPattern::parse(text).unwrap());
    prop_oneof![feeds, patterns.prop_map(pattern)]
}

fn any_step() -> impl Strategy<Value = Step> {
    let change = (
        prop::collection::vec(any_item(), 0..3),
        prop::collection::vec(any_item(), 0..3),
        0_u32..6,
    );
    prop_oneof![
        12 => (1_u128..=LATER).prop_map(Step::Append),
        4 => change.prop_map(|(follow, mut unfollow, backfill)| {
            // One request does not ask for both.
            unfollow.retain(|item| !follow.contains(item));
            Step::Change(FollowChange { follow, unfollow, backfill })
        }),
        1 => (1_u128..=LATER, 1_u8..4).prop_map(|(feed, count)| Step::Lose(feed, count)),
        1 => Just(Step::Create),
        1 => Just(Step::Open),
    ]
}

/// Goal: two requests at one instant have places of their own.
#[test]
fn requests_at_one_instant_share_the_indexes() {
    let mut world = World::default();
    for (feed, name) in [(1, "x-one"), (2, "x-two")] {
        world.create(key(feed), name, false);
    }
    for feed in [1, 2, 1] {
        let instant = world.tick();
        world.feeds.get_mut(&key(feed)).unwrap().2.push(instant);
    }
    let mut following = FollowState::new(Terms::default(), &world);
    let instant = world.tick();
    for feed in [1, 2] {
        let change = FollowChange {
            follow: vec![FollowItem::Feed(key(feed))],
            backfill: 5,
            ..FollowChange::default()
        };
        following.change(&change, instant, &world);
    }
    let places: Vec<Place> = following
        .older(None, 9, &world)
        .into_iter()
        .map(|one| one.place)
        .collect();
    let expected = [2, 1, 0].map(|index| Place::of_backfill(instant, index));
    assert_eq!(places, expected);
}

/// Goal: what a request brings along has a bound in all, and the newest come.
#[test]
fn one_request_brings_the_newest_entries_of_all_feeds() {
    let mut world = World::default();
    let feeds: Vec<FeedKey> = (1..=15).map(key).collect();
    for feed in &feeds {
        world.create(*feed, "f", false);
    }
    // The first feed has the oldest entries.
    for feed in &feeds {
        for _ in 0..1_000 {
            let instant = world.tick();
            world.feeds.get_mut(feed).unwrap().2.push(instant);
        }
    }
    let mut following = FollowState::new(Terms::default(), &world);
    let change = FollowChange {
        follow: feeds.iter().copied().map(FollowItem::Feed).collect(),
        unfollow: vec![],
        backfill: 1_000,
    };
    let instant = world.tick();
    following.change(&change, instant, &world);
    let all = following.older(None, usize::MAX, &world);
    assert_eq!(all.len(), BACKFILL_TOTAL_MAX);
    let oldest = all.last().unwrap();
    assert_eq!((oldest.feed, oldest.at), (key(6), Position(0)));
}

#[test]
fn a_place_has_one_text() {
    let places = [
        Place::of_entry(Timestamp::from_micros(0)),
        Place::of_backfill(Timestamp::from_micros(0), 0),
        Place::of_entry(Timestamp::MAX),
        Place::of_backfill(Timestamp::MIN, u32::MAX - 1),
    ];
    for place in places {
        assert_eq!(Place::parse(&place.to_string()), Some(place));
    }
    for text in [
        "",
        "x",
        "01",
        "+1",
        "1.",
        ".1",
        "1.01",
        "1.+1",
        "1.4294967295",
        "1.2.3",
        "1 ",
        "-0",
        "999999999999999999999",
    ] {
        assert_eq!(Place::parse(text), None, "{text}");
    }
}
