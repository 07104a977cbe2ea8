//! What is kept for readers: for whom, how much, and in spite of which trouble.

use std::fs;

use super::*;

/// A world with so many timelines, which follow everything.
fn crowd(timelines: usize) -> World {
    let mut world = World::new();
    for timeline in TIMELINES..timelines {
        world.create_timeline(timeline);
    }
    for timeline in 0..timelines {
        let change = FollowChange {
            follow: vec![FollowItem::Pattern(FeedPattern::parse("*").unwrap())],
            ..FollowChange::default()
        };
        world.follow(timeline, change);
    }
    world
}

/// Behaviour 5 of SPECS 2.10: what is kept of timelines never exceeds its memory, and reads beyond it are right.
#[test]
fn what_is_kept_stays_within_its_memory() {
    let mut world = crowd(40);
    let keeping = Keeping {
        fan_out: FanOut::Cache,
        memory: 20_000,
    };
    let timelines = open(&world, None, keeping);
    let merged = MergedLog::new(Arc::clone(&timelines));
    for _ in 0..20 {
        world.take(&Step::Append(vec![2]));
        for timeline in 0..40 {
            let page = merged.page(timeline_key(timeline), None, 5).unwrap();
            assert_eq!(page.len(), world.timelines[timeline].shown.len().min(5));
            assert!(timelines.kept.weight() <= keeping.memory);
            assert!(timelines.kept.len() < 40);
        }
    }
    assert!(timelines.kept.weight() > keeping.memory / 2);
    compare(&world, &merged, &[]);
}

/// Behaviour 6 of SPECS 2.10: nothing is kept in memory for who never reads; the first read begins it.
#[test]
fn nothing_is_kept_for_who_never_reads() {
    let mut world = crowd(10);
    let kept = Kept::new(&world, FanOut::Cache);
    for _ in 0..20 {
        world.take(&Step::Append(vec![2]));
        kept.timelines.keep_course(|| false, || true).unwrap();
    }
    assert_eq!(kept.timelines.kept.len(), 0);
    let merged = MergedLog::new(Arc::clone(&kept.timelines));
    merged.feed(timeline_key(3)).unwrap().unwrap();
    assert_eq!(kept.timelines.kept.len(), 1);
}

/// Goal: a server that stops leaves the graph of follows in its file, so that the next opening replays no follow.
#[test]
fn the_graph_is_in_its_file_after_a_stop() {
    let mut world = crowd(10);
    let kept = Kept::new(&world, FanOut::Write);
    let in_file = || {
        let (graph, _) = snapshot::read(&kept.folder.path().join(SNAPSHOT)).unwrap();
        graph.applied
    };
    kept.timelines.keep_course(|| false, || true).unwrap();
    let written = in_file();
    for _ in 0..2 * STOPPED_COMMITS {
        world.take(&Step::Append(vec![2]));
    }
    kept.timelines.keep_course(|| false, || true).unwrap();
    assert_eq!(in_file(), written);
    kept.timelines.keep_course(|| true, || true).unwrap();
    assert_eq!(in_file(), world.log.head().number);
}

/// Behaviour 10 of SPECS 2.10, S-D7: a gathering that cannot write its files is tried again for ever, readers miss
/// nothing meanwhile, and it goes on once it can.
#[test]
fn gathering_is_tried_again_for_ever() {
    let mut world = crowd(TIMELINES);
    let kept = Kept::new(&world, FanOut::Write);
    let runs = kept.folder.path().join(RUNS);
    // Where the folder is to be, there is a file.
    fs::write(&runs, "").unwrap();
    for _ in 0..300 {
        world.take(&Step::Append(vec![2]));
        let _waits = kept.timelines.keep_course(|| false, || true).unwrap();
        kept.timelines.gathering.wait();
    }
    assert_eq!(kept.timelines.gathering.sizes().0, 0);
    let behind = kept.timelines.gathering.runs().reached().commit;
    assert!(behind < world.log.head().number, "the memory is bounded");
    kept.compare(&world, &[]);
    fs::remove_file(&runs).unwrap();
    while kept.timelines.gathering.runs().reached().commit < world.log.head().number {
        let _waits = kept.timelines.keep_course(|| false, || true).unwrap();
        kept.timelines.gathering.wait();
    }
    assert!(kept.timelines.gathering.sizes().0 > 0);
    kept.compare(&world, &[]);
}

/// Behaviour 8 of SPECS 2.10, S-D13: an entry is in each of many timelines at once, in each model, above the threshold of
/// `auto` and below it, while it is fanned out and afterwards.
#[test]
fn an_entry_is_in_many_timelines_at_once() {
    // A bitmap has followers from 4,097 on.
    const CROWD: usize = 4_200;
    let mut world = crowd(CROWD);
    let all = [FanOut::Write, FanOut::Auto].map(|fan_out| Kept::new(&world, fan_out));
    for round in 0..3_u64 {
        world.take(&Step::Append(vec![2]));
        for kept in &all {
            let merged = MergedLog::new(Arc::clone(&kept.timelines));
            let look = || {
                for timeline in (0..CROWD).step_by(7) {
                    let page = merged.page(timeline_key(timeline), None, 1).unwrap();
                    let expected = &world.timelines[timeline].shown.last().unwrap().0;
                    assert_eq!(page[0].entry.fragment, *expected);
                    let head = merged.feed(timeline_key(timeline)).unwrap().unwrap();
                    assert_eq!(head.next, Position(round + 1));
                }
            };
            look();
            while kept.timelines.gathering.runs().reached().commit < world.log.head().number {
                let _waits = kept.timelines.keep_course(|| false, || true).unwrap();
                kept.timelines.gathering.wait();
            }
            look();
        }
    }
    let apart = |kept: &Kept| kept.timelines.gathering.runs().apart.len();
    assert_eq!(all.each_ref().map(apart), [0, 1]);
}

/// Goal: another layout of the snapshot has another version. The layout follows from types, so that a moved field would
/// else be read as another one.
#[test]
fn the_layout_of_the_snapshot_has_its_version() {
    let mut world = World::new();
    let follow = |feeds: &[usize]| -> Vec<FollowItem> {
        feeds
            .iter()
            .map(|feed| FollowItem::Feed(key(*feed)))
            .collect()
    };
    let pattern = FollowItem::Pattern(FeedPattern::parse("x-*").unwrap());
    for step in [
        Step::Append(vec![1, 2, 1]),
        Step::Follow(0, follow(&[1, 2]), vec![pattern], 2),
        Step::Follow(
            0,
            vec![FollowItem::Pattern(FeedPattern::parse("*").unwrap())],
            follow(&[1]),
            0,
        ),
        Step::Append(vec![1, 2]),
        Step::Follow(0, follow(&[1]), vec![], 0),
        Step::Title(1),
        Step::Defaults,
        Step::Epoch,
        Step::Append(vec![1]),
        Step::Lose(2, 1),
    ] {
        world.take(&step);
    }
    let opened = open(&world, None, Keeping::default());
    let graph = opened.read_graph().unwrap().clone();
    let chain = world.log.chain(graph.applied).unwrap().unwrap();
    let bytes = snapshot::bytes_of(&graph, chain);
    assert_eq!(
        Digest::of(&bytes).to_string(),
        "cc8986a881a0fdc63daeb1027cb7f898b79db4abdb21cb6253645ce8a6cf7e65",
        "the layout of the snapshot has changed: raise the version in MAGIC, and take this digest"
    );
}
