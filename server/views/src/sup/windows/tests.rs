use std::collections::BTreeMap;

use proptest::prelude::*;
use simplefeed_core::{
    commit::{Change, ChangeOutline, Commit},
    feed::{DocumentNumber, FeedId, FeedName, Position, Revision},
    settings::{Choices, Defaults, Settings},
    timestamp::Timestamp,
};
use simplefeed_log::{Append as _, memory::MemoryLog, watermark::Watermark};
use uuid::Uuid;

use super::*;

fn key(feed: u128) -> FeedKey {
    FeedKey(Uuid::from_u128(feed))
}

/// A log that knows so many feeds; the commits of the tests are not in it. Every tenth is closed.
fn log_of(feeds: u128) -> MemoryLog {
    let mut changes = vec![];
    for feed in 0..feeds {
        let settings = Settings {
            name: FeedName::parse(&format!("feed{feed}")).unwrap(),
            id: FeedId::of_uuid(Uuid::from_u128(feed)),
            choices: std::sync::Arc::new(Choices {
                closed: (feed % 10 == 9).then_some(true),
                ..Choices::default()
            }),
            defaults: Defaults::new("http://h").into(),
            sup_id: Some(SupId::of_bits(feed)),
            was_closed: false,
            timeline: None,
        };
        let (feed, revision) = (settings.id.key(), Revision::FIRST);
        changes.push(Change::Settings {
            feed,
            revision,
            settings,
        });
        changes.push(Change::Opened {
            feed,
            document: DocumentNumber::OLDEST,
            first: Position(0),
            revision,
        });
    }
    let log = MemoryLog::default();
    let commit = Commit {
        number: CommitNumber(1),
        instant: Timestamp::from_micros(0),
        changes,
    };
    log.append(&commit).unwrap();
    log
}

fn outline(number: u64, instant: Timestamp, feeds: &[u128]) -> Outline {
    let updated = |feed: &u128| ChangeOutline::Entries {
        feed: key(*feed),
        first: Position(0),
        count: 1,
    };
    Outline {
        number: CommitNumber(number),
        instant,
        changes: feeds.iter().map(updated).collect(),
    }
}

fn view() -> SupWindows {
    SupWindows::new(SeriesStart::default(), SeriesStart::default(), 3_600)
}

/// What a document must hold: each feed's last update in a window, from everything that ever happened.
fn expected(outlines: &[Outline], since: i64, until: i64) -> Vec<(FeedKey, i64)> {
    let mut last = HashMap::new();
    for outline in outlines {
        let second = outline.instant.second();
        for feed in &outline.feeds() {
            if (since..=until).contains(&second) && feed.0.as_u128() % 10 != 9 {
                last.insert(*feed, second);
            }
        }
    }
    let mut last: Vec<_> = last.into_iter().collect();
    last.sort_unstable();
    last
}

fn told(updates: &[Update]) -> Vec<(FeedKey, i64)> {
    let told = updates.iter().map(|(feed, _, second)| (*feed, *second));
    let mut told: Vec<_> = told.collect();
    told.sort_unstable();
    told
}

#[derive(Clone, Debug)]
enum Step {
    /// The clock goes on, or back, by milliseconds.
    Clock(i64),
    /// A commit changes feeds.
    Commit(Vec<u128>),
    /// Somebody asks.
    Publish(u32),
    /// The documents of what is over become durable.
    Archive,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0_i64..3_000).prop_map(Step::Clock),
        1 => prop_oneof![Just(-3_700_000_i64), -5_000_i64..0, Just(3_700_000)].prop_map(Step::Clock),
        10 => prop::collection::vec(0_u128..20, 0..4).prop_map(Step::Commit),
        5 => prop_oneof![Just(60_u32), Just(3_600)].prop_map(Step::Publish),
        1 => Just(Step::Archive),
    ]
}

proptest! {
    /// SUP-P5, SUP-F3: whatever the clock does, a document lists exactly the last updates that ever became
    /// visible in its window; so no update hides behind an earlier pair, and the ids of a feed increase.
    /// The windows follow each other without a hole, and a view that begins anywhere comes to the same.
    #[test]
    fn every_document_tells_all_there_will_ever_be(steps in prop::collection::vec(step(), 1..150)) {
        let log = log_of(20);
        let (watermark, mut view) = (Watermark::in_memory(), view());
        let (mut clock, mut last) = (1_800_000_000_000_000_i64, Timestamp::MIN);
        let (mut outlines, mut published, mut windows) = (vec![], vec![], vec![]);
        let mut pending = vec![];
        for step in steps {
            let now = Timestamp::from_micros(clock);
            match step {
                Step::Clock(millis) => clock += millis * 1_000,
                Step::Commit(feeds) => {
                    last = watermark.stamp(now, last);
                    let number = u64::try_from(outlines.len()).unwrap() + 1;
                    let outline = outline(number, last, &feeds);
                    let over = view.take(&outline, &log).unwrap();
                    outlines.push(outline);
                    watermark.release();
                    let over = over.into_iter().filter(|(visibility, _)| *visibility == Visibility::Public);
                    pending.extend(over.map(|(_, window)| window));
                }
                Step::Publish(period) => {
                    let until = watermark.publish(now, last).unwrap();
                    let current = view.current(Visibility::Public, period, until);
                    prop_assert!(current.since <= until - i64::from(period) - SUP_OVERLAP_SECONDS);
                    let archived = windows.last().map(|window: &SupWindow| window.until);
                    prop_assert!(archived.is_none_or(|end| current.since <= end));
                    let first = outlines.iter().find(|outline: &&Outline| {
                        outline.feeds().iter().any(|feed| feed.0.as_u128() % 10 != 9)
                    });
                    let reaches = first.is_none_or(|first| current.since < first.instant.second());
                    prop_assert!(current.previous.is_some() || reaches, "null means nothing before");
                    published.push(current);
                }
                Step::Archive => {
                    for window in pending.drain(..) {
                        view.archived(Visibility::Public, &window);
                        windows.push(window);
                    }
                }
            }
        }
        windows.append(&mut pending);
        let mut known: BTreeMap<FeedKey, i64> = BTreeMap::new();
        for document in &published {
            let should = expected(&outlines, document.since, document.until);
            prop_assert_eq!(told(&document.updates), should);
            for (feed, _, second) in &document.updates {
                let before = known.insert(*feed, *second);
                prop_assert!(before.is_none_or(|before| before <= *second));
            }
        }
        prop_assert!(published.is_sorted_by_key(|document| document.until));
        let mut since = None;
        for (number, window) in (1..).zip(&windows) {
            prop_assert_eq!(window.name.number, number);
            prop_assert!(since.is_none_or(|since| since == window.since) && window.until > window.since);
            prop_assert_eq!(told(&window.updates), expected(&outlines, window.since, window.until));
            since = Some(window.until);
        }
        // Any window is as good as the beginning.
        for begin in 0..=windows.len() {
            let beginning = begin.checked_sub(1).map(|before| SeriesStart {
                cut: Some((windows[before].name, windows[before].until)),
                commit: windows[before].commit,
                idle: None,
            });
            let beginning = beginning.unwrap_or_default();
            let mut again = SupWindows::new(beginning, SeriesStart::default(), 3_600);
            let mut over = vec![];
            for outline in &outlines {
                over.extend(again.take(outline, &log).unwrap());
            }
            let over = over.into_iter().filter(|(visibility, _)| *visibility == Visibility::Public);
            let over: Vec<SupWindow> = over.map(|(_, window)| window).collect();
            prop_assert_eq!(&over, &windows[begin..]);
        }
    }
}

/// Goal: what the server was told before a restart, it tells after it.
#[test]
fn a_restart_answers_the_same_windows_as_before() {
    let log = log_of(200);
    let mut before = view();
    let (mut outlines, mut windows) = (vec![], vec![]);
    for number in 1..=9_000_u64 {
        let second = 1_800_000_000 + i64::try_from(number).unwrap() * 2;
        let feeds = [u128::from(number * number % 199), u128::from(number % 97)];
        let outline = outline(number, Timestamp::from_micros(second * 1_000_000), &feeds);
        for (visibility, window) in before.take(&outline, &log).unwrap() {
            before.archived(visibility, &window);
            windows.push((visibility, window));
        }
        outlines.push(outline);
    }
    let newest = before.newest();
    let beginning = |visibility: Visibility| {
        let old = |(of, window): &&(Visibility, SupWindow)| {
            *of == visibility && window.until < newest - 3_611
        };
        let (_, window) = windows.iter().rev().find(old).unwrap();
        SeriesStart {
            cut: Some((window.name, window.until)),
            commit: window.commit,
            idle: None,
        }
    };
    let mut after = SupWindows::new(
        beginning(Visibility::Public),
        beginning(Visibility::Private),
        3_600,
    );
    assert!(after.applied() > CommitNumber(1_000));
    for outline in outlines
        .iter()
        .filter(|outline| outline.number > after.applied())
        .cloned()
        .collect::<Vec<_>>()
    {
        for (visibility, window) in after.take(&outline, &log).unwrap() {
            after.archived(visibility, &window);
        }
    }
    for visibility in Visibility::ALL {
        for period in [60, 300, 600, 3_600] {
            for until in [newest - 1, newest, newest + 100] {
                let documents =
                    [&before, &after].map(|view| view.current(visibility, period, until));
                assert_eq!(documents[0], documents[1]);
                assert!(!documents[0].updates.is_empty());
            }
        }
    }
}

/// Goal: a visibility in which nothing happens costs a restart nothing.
#[test]
fn what_is_idle_is_passed_over() {
    let (log, mut before) = (log_of(20), view());
    let mut outlines = vec![];
    for number in 1..=1_000_u64 {
        // The closed feed changes twice, long ago and in one second.
        let feed = if number == 2 || number == 3 { 9 } else { 1 };
        let micros = 1_800_000_000_000_000 + i64::try_from(number).unwrap() * 10_000_000;
        let micros = if number == 3 {
            micros - 9_500_000
        } else {
            micros
        };
        outlines.push(outline(number, Timestamp::from_micros(micros), &[feed]));
    }
    let mut cut = None;
    for outline in &outlines {
        for (visibility, window) in before.take(outline, &log).unwrap() {
            before.archived(visibility, &window);
            if visibility == Visibility::Private {
                cut = Some(window);
            }
        }
    }
    let cut = cut.unwrap();
    assert_eq!(before.idle_after(Visibility::Private), Some(1));
    assert_eq!(before.idle_after(Visibility::Public), None);
    let private = SeriesStart {
        cut: Some((cut.name, cut.until)),
        commit: cut.commit,
        idle: Some(before.applied()),
    };
    let public = SeriesStart {
        idle: Some(before.applied()),
        ..SeriesStart::default()
    };
    let mut after = SupWindows::new(public, private, 3_600);
    assert_eq!(after.applied(), before.applied());
    let recalled = outlines
        .iter()
        .filter(|outline| outline.number > cut.commit);
    let recalled = recalled.map_while(|outline| {
        after
            .recall(Visibility::Private, outline, &log)
            .unwrap()
            .then_some(outline.number.0)
    });
    assert_eq!(recalled.collect::<Vec<_>>(), [2, 3]);
    let later = outline(1_001, Timestamp::from_micros(1_900_000_000_000_000), &[9]);
    let last = outline(1_002, Timestamp::from_micros(1_900_100_000_000_000), &[1]);
    let windows = |view: &mut SupWindows| {
        let mut over = view.take(&later, &log).unwrap();
        over.extend(view.take(&last, &log).unwrap());
        over.retain(|(visibility, _)| *visibility == Visibility::Private);
        over
    };
    let (before, after) = (windows(&mut before), windows(&mut after));
    assert_eq!(before, after);
    assert_eq!(before.len(), 1);
}

/// What is final has the same bytes in every version.
#[test]
fn the_order_of_pairs_is_a_promise() {
    let (log, mut view) = (log_of(8), view());
    // The last digits of 1,000 and 1,036 are alike.
    let commits = [
        (1_000, [7, 3]),
        (1_001, [2, 6]),
        (1_035, [5, 0]),
        (1_036, [4, 1]),
    ];
    for (number, (second, feeds)) in (1..).zip(commits) {
        let instant = Timestamp::from_micros(second * 1_000_000);
        view.take(&outline(number, instant, &feeds), &log).unwrap();
    }
    let told = view.current(Visibility::Public, 60, 1_036).updates;
    let told: Vec<(i64, String)> = told
        .into_iter()
        .map(|(_, id, second)| (second, id.to_string()))
        .collect();
    let expected = [
        (1_035, "00000000"),
        (1_035, "50000000"),
        (1_000, "30000000"),
        (1_000, "70000000"),
        (1_036, "10000000"),
        (1_036, "40000000"),
        (1_001, "20000000"),
        (1_001, "60000000"),
    ];
    assert_eq!(told, expected.map(|(second, id)| (second, id.to_owned())));
}

/// Goal: a window ends after the second in which it has enough feeds, and not within it.
#[test]
fn a_window_of_many_feeds_ends_with_its_second() {
    let feeds = 12_000;
    let (log, mut view) = (log_of(feeds), view());
    let mut over = vec![];
    for feed in 0..feeds {
        // A hundred a second, of which ninety are public.
        let second = 100 + i64::try_from(feed / 100).unwrap();
        let number = u64::try_from(feed).unwrap() + 1;
        let outline = outline(
            number,
            Timestamp::from_micros(second * 1_000_000 + i64::try_from(feed).unwrap()),
            &[feed],
        );
        over.extend(view.take(&outline, &log).unwrap());
    }
    let [(Visibility::Public, window)] = over.as_slice() else {
        panic!("{} windows are over", over.len());
    };
    assert_eq!(
        (window.since, window.until),
        (99, 211),
        "the 10,000th of them came in second 211"
    );
    assert_eq!(window.updates.len(), 112 * 90);
}

/// Goal: what nobody is told any more takes no memory, however many feeds there were.
#[test]
fn few_feeds_are_kept() {
    let (log, mut view) = (log_of(20), view());
    let mut most = 0;
    for number in 1..=200_000_u64 {
        let second = 1_800_000_000 + i64::try_from(number).unwrap() * 10;
        let feed = key(u128::from(number % 9));
        let instant = Timestamp::from_micros(second * 1_000_000);
        let outline = outline(number, instant, &[feed.0.as_u128()]);
        for (visibility, window) in view.take(&outline, &log).unwrap() {
            view.archived(visibility, &window);
        }
        // As if each commit were of another feed.
        let told = view.public.feeds.remove(&feed).unwrap();
        view.public
            .feeds
            .insert(key(u128::from(number) + 1_000), told);
        most = most.max(view.public.feeds.len());
    }
    assert!(most < 5_000, "{most}");
}
