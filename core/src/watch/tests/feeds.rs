//! Feeds: when they are looked at, and what follows from it.

use super::*;

#[test]
fn sup_c7_the_safety_net_is_ten_times_slower_and_off_where_nothing_is_missed() {
    for (more, looked) in [("", true), (ARCHIVED, false)] {
        let mut watch = heard(&["a"], more);
        let mut looks = 0;
        live(
            &mut watch,
            Duration::ZERO,
            INTERVAL * 21,
            |watch, next, now| {
                looks += u32::from(matches!(next, NextAction::Look { .. }));
                all_is_well(watch, &next, now, more);
            },
        );
        assert_eq!(looks > 0, looked);
        assert!(looks <= 3);
    }
}

#[test]
fn sup_c7_feeds_that_were_swept_together_are_not_for_ever() {
    // They are looked at twice at the beginning, and once more if a document has missed something.
    for missed in [false, true] {
        let mut watch = heard(&["a"], "");
        for _ in 0..100 {
            watch.add_feed(None, None);
        }
        let mut halves_of_hours = [0; 12];
        live(
            &mut watch,
            Duration::ZERO,
            INTERVAL * 11,
            |watch, next, now| match next {
                NextAction::Look { feed, .. } => {
                    let half = usize::try_from(now.as_secs() / INTERVAL.as_secs()).unwrap();
                    halves_of_hours[half] += u32::from(now > INTERVAL * 3 / 2);
                    read(watch, feed, now, false, "a");
                }
                NextAction::Hear { source, .. } => {
                    let second = u32::try_from(now.as_secs()).unwrap();
                    let is_gap = missed && second / 60 == 15;
                    let since = if is_gap { 990 + second } else { 0 };
                    let document = document(since, 1_000 + second, &[], "");
                    watch.heard(source, now, document);
                }
                NextAction::Wait(_) | NextAction::Nothing => {}
            },
        );
        let most = halves_of_hours.into_iter().max().unwrap();
        assert!((5..25).contains(&most), "{halves_of_hours:?}");
    }
}

#[test]
fn sup_c9_a_feed_that_lags_is_looked_at_again() {
    let mut watch = heard(&["a"], ARCHIVED);
    let feed = FeedNumber(0);
    let mut now = 48 * S;
    hear(&mut watch, now, document(90, 148, &[("a", "1")], ARCHIVED));
    assert_eq!(looks(&mut watch, now), [0]);
    read(&mut watch, feed, now, true, "a");
    // That it had news just now says nothing: there may have been two updates.
    now += 48 * S;
    hear(&mut watch, now, document(90, 196, &[("a", "2")], ARCHIVED));
    now += CACHED;
    for pause in [2, 10] {
        assert_eq!(watch.next_feed(now), NextAction::Look { feed, fresh: true });
        read(&mut watch, feed, now, false, "a");
        assert!(!is_told(&watch, feed), "an end now loses nothing");
        now += pause * S;
    }
    assert_eq!(watch.next(now), NextAction::Look { feed, fresh: true });
    read(&mut watch, feed, now, false, "a");
    let mut looked_at = vec![];
    live(&mut watch, now, now + 20 * INTERVAL, |watch, next, now| {
        if let NextAction::Look { fresh, .. } = next {
            assert!(fresh && !is_told(watch, feed));
            looked_at.push(now);
        }
        // A document that is away for a moment changes nothing.
        match next {
            NextAction::Hear { source, .. } if (600..620).contains(&now.as_secs()) => {
                watch.heard(source, now, NOTHING);
            }
            next => all_is_well(watch, &next, now, ARCHIVED),
        }
    });
    assert_eq!(looked_at.len(), 1, "once more, and enough of that");
    assert!(looked_at[0] <= now + INTERVAL);
    assert!(is_told(&watch, feed));
}

#[test]
fn sup_c1_a_feed_may_move_or_leave() {
    let mut watch = heard(&["a", "b"], "");
    let now = 48 * S;
    hear(
        &mut watch,
        now,
        document(78, 148, &[("a", "1"), ("b", "1")], ""),
    );
    assert_eq!(looks(&mut watch, now), [0, 1]);
    read(&mut watch, FeedNumber(0), now, true, "moved");
    let nowhere = Announcement::Nowhere;
    watch.looked(FeedNumber(1), now, seen(true, nowhere));
    // The first may have missed what was told while it was looked at.
    assert_eq!(looks(&mut watch, now), [0]);
    read(&mut watch, FeedNumber(0), now, false, "moved");
    let now = 96 * S;
    let pairs = [("a", "2"), ("b", "2"), ("moved", "1")];
    hear(&mut watch, now, document(126, 196, &pairs, ""));
    assert_eq!(looks(&mut watch, now), [0]);
    let now = now + INTERVAL;
    hear(&mut watch, now, SupResult::Same);
    assert_eq!(looks(&mut watch, now), [1], "as a feed without SUP");
}

/// Goal: what is remembered as heard is handled, so that an end at any moment loses nothing.
#[test]
fn nothing_counts_as_heard_before_it_is_handled() {
    let mut watch = heard(&["a", "b"], ARCHIVED);
    let (a, b) = (FeedNumber(0), FeedNumber(1));
    assert_eq!(watch.take_changed(), HashSet::from([a, b]));
    let now = 48 * S;
    hear(
        &mut watch,
        now,
        document(78, 148, &[("a", "1"), ("b", "1")], ARCHIVED),
    );
    assert_eq!(heard_until(&watch), 148);
    assert_eq!(
        watch.take_changed(),
        HashSet::from([a, b]),
        "in the same moment"
    );
    assert!(!is_told(&watch, a) && !is_told(&watch, b));
    assert_eq!(looks(&mut watch, now), [0, 1]);
    read(&mut watch, a, now, true, "a");
    assert!(is_told(&watch, a) && !is_told(&watch, b));
    watch.looked(b, now, failed(false));
    assert!(!is_told(&watch, b), "a feed that failed is owed a look");
    assert_eq!(watch.take_changed(), HashSet::from([a]));
    assert_eq!(watch.next(now + S), NextAction::Wait(now + 5 * S));
    let now = now + 5 * S;
    assert_eq!(looks(&mut watch, now), [1]);
    let sup = Announcement::Untold;
    watch.looked(b, now, seen(true, sup));
    assert_eq!(watch.take_changed(), HashSet::from([b]));
    assert_eq!(watch.told_by(b), Some((address("b"), Some("1"))));

    // What goes on from there knows what was told, and asks for the rest.
    let mut again = Watch::new(pace(), 9);
    let (document_of, updated) = watch.heard_until().next().unwrap();
    again.heard_before(document_of, updated);
    let (known, update) = watch.told_by(a).unwrap();
    again.add_feed(Some(known), update);
    again.add_feed(Some(address("b")), None);
    assert!(again.take_changed().is_empty(), "nothing is new");
    let now = Duration::ZERO;
    hear(
        &mut again,
        now,
        document(100, 170, &[("a", "1"), ("b", "2")], ARCHIVED),
    );
    assert_eq!(looks(&mut again, now), [1]);
}

/// Goal: what is told while a feed is looked at for the first time is not missed.
#[test]
fn what_is_told_during_the_first_look_is_looked_at() {
    let mut watch = Watch::new(pace(), 1);
    watch.add_feed(None, None);
    watch.add_feed(None, None);
    assert_eq!(looks(&mut watch, Duration::ZERO), [0, 1]);
    read(&mut watch, FeedNumber(0), S, false, "a");
    hear(
        &mut watch,
        2 * S,
        document(30, 100, &[("b", "1")], ARCHIVED),
    );
    // It was read before that, and is done only now.
    read(&mut watch, FeedNumber(1), 3 * S, false, "b");
    assert_eq!(
        watch.told_by(FeedNumber(1)),
        None,
        "an end now loses nothing"
    );
    assert_eq!(looks(&mut watch, 3 * S), [1]);
}

/// Goal: what a cache has answered is no proof of what a feed was at that time.
#[test]
fn what_a_cache_has_shown_is_looked_at_again() {
    let mut watch = heard(&["a"], ARCHIVED);
    let feed = watch.add_feed(None, None);
    assert_eq!(looks(&mut watch, Duration::ZERO), [1]);
    let sup = Announcement::Nowhere;
    watch.looked(feed, Duration::ZERO, seen(true, sup));
    let mut looks = vec![];
    live(&mut watch, S, 2 * INTERVAL, |watch, next, now| match next {
        NextAction::Look { feed, fresh } => {
            looks.push((feed.0, fresh));
            read(watch, feed, now, false, "b");
        }
        next => all_is_well(watch, &next, now, ARCHIVED),
    });
    assert_eq!(looks, [(1, false), (1, true)]);
}

/// Goal: while a cache shows what is past its time, a feed is owed a look.
#[test]
fn a_copy_of_the_past_pays_nothing() {
    let mut watch = heard(&["a"], ARCHIVED);
    let feed = FeedNumber(0);
    let pairs = [("a", "1")];
    hear(&mut watch, 48 * S, document(30, 148, &pairs, ARCHIVED));
    let mut looks = 0;
    live(
        &mut watch,
        48 * S,
        5 * INTERVAL,
        |watch, next, now| match next {
            NextAction::Look { fresh, .. } => {
                assert!(fresh && !is_told(watch, feed));
                looks += 1;
                let (news, stale) = (looks == 1, looks < 6);
                let sup = Announcement::Untold;
                watch.looked(feed, now, LookResult::Read { news, stale, sup });
            }
            next => all_is_well(watch, &next, now, ARCHIVED),
        },
    );
    assert_eq!(looks, 6, "2 s, 10 s, and then every half hour");
    assert!(is_told(&watch, feed));
}

/// Goal: also the first look at a feed is none while a cache shows what is past its time.
#[test]
fn a_first_copy_of_the_past_pays_nothing() {
    let mut watch = Watch::new(pace(), 1);
    let feed = watch.add_feed(None, None);
    assert_eq!(looks(&mut watch, Duration::ZERO), [0]);
    let (news, stale) = (true, true);
    let sup = Announcement::At(address("a"));
    watch.looked(feed, 3 * S, LookResult::Read { news, stale, sup });
    assert!(!is_told(&watch, feed));
    assert_eq!(looks(&mut watch, 3 * S), [0], "soon");
    read(&mut watch, feed, 6 * S, true, "a");
    assert!(is_told(&watch, feed));
}

/// Goal: an early look at a feed that was told of is not the one that its ping asks for.
#[test]
fn a_look_right_after_a_ping_is_followed_by_one() {
    let mut watch = heard(&["a"], ARCHIVED);
    let feed = FeedNumber(0);
    hear(
        &mut watch,
        48 * S,
        document(30, 148, &[("a", "1")], ARCHIVED),
    );
    assert_eq!(looks(&mut watch, 48 * S), [0]);
    // It shows nothing new, and is to be looked at again at 52 s; meanwhile it is told of once more.
    read(&mut watch, feed, 50 * S, false, "a");
    let NextAction::Wait(at) = watch.next_document(50 * S) else {
        panic!()
    };
    hear(&mut watch, at, document(30, 196, &[("a", "2")], ARCHIVED));
    assert_eq!(watch.next_feed(at), NextAction::Look { feed, fresh: true });
    read(&mut watch, feed, at + S, true, "a");
    assert!(!is_told(&watch, feed), "that look began too early");
    assert_eq!(looks(&mut watch, at + S), [0]);
    read(&mut watch, feed, at + 4 * S, true, "a");
    assert!(is_told(&watch, feed));
}

/// SUP-C9: also a ping that comes while a look fails is one.
#[test]
fn a_ping_during_a_look_that_fails_is_a_ping() {
    let mut watch = heard(&["a"], "");
    let feed = FeedNumber(0);
    let at = 10 * INTERVAL;
    assert_eq!(watch.next_feed(at), NextAction::Look { feed, fresh: false });
    hear(&mut watch, at, document(0, 18_100, &[("a", "1")], ""));
    watch.looked(feed, at, failed(false));
    let at = at + 5 * S;
    assert_eq!(watch.next_feed(at), NextAction::Look { feed, fresh: true });
    read(&mut watch, feed, at, false, "a");
    assert_eq!(watch.next_feed(at), NextAction::Wait(at + 2 * S));
}

/// SUP-F10: an id may be told twice. What is newer than a feed's first look counts, wherever it stands.
#[test]
fn the_newest_of_two_pairs_counts() {
    for both in [[("x", "1"), ("x", "2")], [("x", "2"), ("x", "1")]] {
        let mut watch = heard(&["a"], "");
        hear(&mut watch, S * 60, document(90, 160, &[("x", "1")], ""));
        hear(&mut watch, S * 120, document(150, 220, &both, ""));
        let late = watch.add_feed(None, None);
        assert_eq!(looks(&mut watch, S * 123), [late.0]);
        read(&mut watch, late, S * 125, true, "x");
        hear(&mut watch, S * 168, document(150, 270, &both, ""));
        assert_eq!(looks(&mut watch, S * 168), [late.0], "{both:?}");
    }
}

/// Goal: a document that was heard before a restart may have told of a feed that is found there only now.
#[test]
fn what_was_heard_before_the_beginning_counts() {
    let mut watch = Watch::new(pace(), 1);
    let updated = Timestamp::parse("2026-01-01T00:01:40Z").unwrap();
    watch.heard_before(&address("a").document, updated);
    watch.add_feed(Some(address("a")), None);
    let feed = watch.add_feed(None, None);
    hear(&mut watch, Duration::ZERO, NOTHING);
    assert_eq!(looks(&mut watch, Duration::ZERO), [1]);
    read(&mut watch, feed, S / 10, false, "b");
    assert!(!is_told(&watch, feed));
    assert_eq!(looks(&mut watch, S / 10), [1]);
}

/// Goal: what cannot be read is tried on, and looked at in any case by whoever begins anew.
#[test]
fn a_feed_that_cannot_be_read_is_tried_on() {
    for for_good in [true, false] {
        let mut watch = heard(&["a", "b"], ARCHIVED);
        let (a, b) = (FeedNumber(0), FeedNumber(1));
        let now = 48 * S;
        let pairs = [("a", "1"), ("b", "1")];
        hear(&mut watch, now, document(78, 148, &pairs, ARCHIVED));
        assert_eq!(looks(&mut watch, now), [0, 1]);
        read(&mut watch, b, now, true, "b");
        watch.looked(a, now, failed(for_good));
        // The first try was the ping's.
        let mut tries = vec![now];
        live(
            &mut watch,
            now,
            20 * INTERVAL,
            |watch, next, now| match next {
                NextAction::Look { feed, fresh } => {
                    assert!(fresh && feed == a);
                    tries.push(now);
                    if tries.len() <= 12 {
                        watch.looked(feed, now, failed(for_good));
                    } else {
                        read(watch, feed, now, true, "a");
                    }
                }
                next => {
                    assert!(tries.len() > 12 || !is_told(watch, a));
                    all_is_well(watch, &next, now, ARCHIVED);
                }
            },
        );
        // Once it works, it is told of again.
        assert_eq!(tries.len(), 13);
        assert!(is_told(&watch, a) && is_told(&watch, b));
        let pauses = tries.windows(2).map(|pair| pair[1].saturating_sub(pair[0]));
        let pauses: Vec<Duration> = pauses.collect();
        if for_good {
            let usual = INTERVAL..=2 * INTERVAL;
            assert!(
                pauses.iter().all(|pause| usual.contains(pause)),
                "{pauses:?}"
            );
        } else {
            assert_eq!(pauses[..2], [5 * S, 10 * S]);
            assert_eq!(pauses[11], INTERVAL);
        }
    }
}

#[test]
fn a_server_that_asks_to_wait_is_obeyed() {
    let mut watch = heard(&["a"], "");
    let busy = Some(100 * S);
    hear(&mut watch, 48 * S, SupResult::Nothing { retry_after: busy });
    let NextAction::Wait(until) = watch.next(49 * S) else {
        panic!()
    };
    assert!(until >= 148 * S, "{until:?}");
    hear(
        &mut watch,
        until.max(180 * S),
        document(30, 280, &[("a", "1")], ""),
    );
    let now = 180 * S;
    assert_eq!(looks(&mut watch, now), [0]);
    let asked = LookResult::Failed {
        news: false,
        for_good: false,
        retry_after: Some(77 * S),
    };
    watch.looked(FeedNumber(0), now, asked);
    hear(
        &mut watch,
        now + 48 * S,
        document(30, 330, &[("a", "2")], ""),
    );
    assert_eq!(
        watch.next_feed(now + 48 * S),
        NextAction::Wait(now + 77 * S),
        "also if it is told of meanwhile"
    );
}

/// Goal: a feed that announces something else each time is not looked at without a pause.
#[test]
fn a_feed_that_moves_all_the_time_gets_no_more_looks() {
    let base = "https://e/".parse().unwrap();
    let place = |name: &str| SupAddress::parse(&format!("https://e/{name}.json#{name}"), &base);
    let mut watch = Watch::new(pace(), 1);
    for _ in 0..3 {
        watch.add_feed(None, None);
    }
    let (mut looks, mut now) = (0, Duration::ZERO);
    while now < INTERVAL {
        match watch.next(now) {
            NextAction::Look { feed, .. } => {
                looks += 1;
                // Two keep their documents alive.
                let name = match feed.0 {
                    0 => "x",
                    1 => "y",
                    _ if looks % 2 == 0 => "x",
                    _ => "y",
                };
                watch.looked(feed, now, seen(false, place(name).into()));
            }
            NextAction::Hear { source, .. } => {
                let second = 1_000 + u32::try_from(now.as_secs()).unwrap();
                let SupResult::Document(mut heard) = document(second - 70, second, &[], ARCHIVED)
                else {
                    panic!()
                };
                heard.period = 1;
                watch.heard(source, now, SupResult::Document(heard));
            }
            NextAction::Wait(until) => now = until,
            NextAction::Nothing => panic!(),
        }
    }
    let most = INTERVAL.as_secs() / CACHED.as_secs() + 10;
    assert!(looks < most, "{looks}");
}

#[test]
fn an_interval_may_be_any_time() {
    for interval in [Duration::ZERO, Duration::MAX] {
        let pace = Pace {
            interval,
            sup_interval: interval,
        };
        let mut watch = Watch::new(pace, 1);
        let feed = watch.add_feed(None, None);
        for second in 0..10 {
            let now = 3 * second * S;
            if let NextAction::Look { .. } = watch.next_feed(now) {
                assert!(matches!(watch.next_feed(now), NextAction::Nothing));
                read(&mut watch, feed, now, false, "a");
            }
            if let NextAction::Hear { source, .. } = watch.next_document(now) {
                watch.heard(source, now, document(0, 100 + 3 * second, &[], ""));
            }
        }
    }
}
