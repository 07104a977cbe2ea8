//! SUP documents: when they are heard, and what follows from them.

use super::*;

#[test]
fn sup_c2_c4_new_pairs_of_known_feeds_are_pings() {
    let mut watch = heard(&["a", "b", "a"], "");
    let now = 48 * S;
    let pairs = [("a", "1"), ("unknown", "1")];
    hear(&mut watch, now, document(78, 148, &pairs, ""));
    assert_eq!(looks(&mut watch, now), [0, 2], "both feeds of the id");
    for feed in [0, 2] {
        read(&mut watch, FeedNumber(feed), now, true, "a");
    }
    let now = 96 * S;
    hear(
        &mut watch,
        now,
        document(126, 196, &[("a", "1"), ("b", "9")], ""),
    );
    assert_eq!(
        looks(&mut watch, now),
        [1],
        "a pair that is known is no news"
    );
}

#[test]
fn sup_c3_a_document_is_heard_a_little_faster_than_its_period() {
    let mut watch = heard(&["a"], "");
    assert_eq!(watch.next(47 * S), NextAction::Wait(48 * S));
}

#[test]
fn sup_c5_a_gap_is_closed_from_archives() {
    let mut watch = heard(&["a", "b", "c"], ARCHIVED);
    let now = 48 * S;
    hear(
        &mut watch,
        now,
        document(5_000, 6_000, &[("a", "1")], ARCHIVED),
    );
    let older = ",\"prev_archive\":\"6.json\"";
    let asked = hear(
        &mut watch,
        now,
        document(2_000, 5_000, &[("b", "1")], older),
    );
    assert_eq!(asked, "https://e/sup/7.json");
    assert_eq!(heard_until(&watch), 100);
    let asked = hear(&mut watch, now, document(90, 2_000, &[("a", "0")], older));
    assert_eq!(asked, "https://e/sup/6.json");
    assert_eq!(looks(&mut watch, now), [0, 1]);
    let tally = watch.tally();
    assert_eq!((tally.gaps, tally.sweeps, tally.background), (1, 0, 0));
}

/// Goal: documents that leave a hole between them close no gap.
#[test]
fn a_hole_between_documents_is_a_gap() {
    let mut watch = heard(&["a"], ARCHIVED);
    let now = 48 * S;
    hear(&mut watch, now, document(5_000, 6_000, &[], ARCHIVED));
    hear(&mut watch, now, document(50, 4_999, &[], ARCHIVED));
    assert_eq!(watch.tally().sweeps, 1);

    let mut watch = heard(&["a"], "");
    let periods = ",\"available_periods\":{\"300\":\"sup.json?seconds=300\"}";
    hear(&mut watch, now, document(290, 360, &[], periods));
    hear(&mut watch, now, document(50, 289, &[], periods));
    assert_eq!(watch.tally().sweeps, 1, "an old copy of a longer window");
}

/// SUP-C10: a period that no clock can count is only a number.
#[test]
fn a_period_may_be_any_number() {
    let mut watch = heard(&["a"], "");
    let most = u64::MAX;
    let text = format!(
        "{{\"updated_time\":\"2026-01-01T00:03:00Z\",\"since_time\":\"2026-01-01T00:01:00Z\",\
         \"period\":{most},\"available_periods\":{{\"{most}\":\"x\"}},\"updates\":[]}}"
    );
    let document = SupDocument::read(text.as_bytes()).unwrap();
    hear(&mut watch, 48 * S, SupResult::Document(document));
    assert!(matches!(watch.next(49 * S), NextAction::Wait(_)));
}

/// SUP-C10: a way back that goes in circles is left.
#[test]
fn archives_that_lead_nowhere_are_left() {
    let mut watch = heard(&["a"], ARCHIVED);
    let now = 48 * S;
    hear(&mut watch, now, document(5_000, 6_000, &[], ARCHIVED));
    hear(
        &mut watch,
        now,
        document(4_000, 5_000, &[], ",\"prev_archive\":\"8.json\""),
    );
    hear(
        &mut watch,
        now,
        document(4_000, 5_000, &[], ",\"prev_archive\":\"7.json\""),
    );
    assert!(matches!(watch.next(now), NextAction::Wait(_)));
    assert_eq!(watch.tally().sweeps, 1);
}

#[test]
fn sup_c5_a_gap_is_closed_from_a_longer_window() {
    let mut watch = heard(&["a", "b"], "");
    let periods = ",\"available_periods\":{\"60\":\"sup.json\",\"300\":\"sup.json?seconds=300\",\"600\":\"x\"}";
    let now = 48 * S;
    hear(&mut watch, now, document(290, 360, &[], periods));
    let asked = hear(&mut watch, now, document(50, 360, &[("b", "1")], periods));
    assert_eq!(asked, "https://e/sup.json?seconds=300");
    assert_eq!(looks(&mut watch, now), [1]);
}

#[test]
fn sup_c5_a_gap_that_nothing_closes_is_a_sweep() {
    for (more, archive) in [("", None), (ARCHIVED, Some(NOTHING))] {
        let mut watch = heard(&["a", "b", "c", "d"], more);
        let mut now = 48 * S;
        hear(&mut watch, now, document(50_000, 50_070, &[], more));
        if let Some(archive) = archive {
            let mut asked = 0;
            while asked < 3 {
                match watch.next(now) {
                    NextAction::Hear { source, .. } => {
                        asked += 1;
                        watch.heard(source, now, archive.clone());
                    }
                    NextAction::Wait(until) => now = until,
                    other => panic!("{other:?}"),
                }
            }
        }
        assert_eq!(watch.tally().sweeps, 1);
        assert!(looks(&mut watch, now).is_empty(), "not all at once");
        let mut swept = vec![];
        while swept.len() < 4 {
            now += S;
            match watch.next(now) {
                NextAction::Look { feed, .. } => swept.push(feed.0),
                NextAction::Hear { source, .. } => watch.heard(source, now, SupResult::Same),
                _ => {}
            }
            assert!(now < INTERVAL + 100 * S);
        }
    }
}

#[test]
fn sup_c8_while_a_document_is_broken_feeds_are_polled() {
    let mut watch = heard(&["a"], ARCHIVED);
    let mut now = 48 * S;
    hear(&mut watch, now, NOTHING);
    assert_eq!(watch.conditions().next().unwrap().1, Condition::Broken);
    let mut looks = 0;
    while now < INTERVAL * 3 {
        now += S;
        match watch.next(now) {
            NextAction::Look { feed, .. } => {
                looks += 1;
                read(&mut watch, feed, now, false, "a");
            }
            NextAction::Hear { source, fresh, .. } => {
                assert!(fresh, "past whatever keeps the broken one");
                watch.heard(source, now, NOTHING);
            }
            _ => {}
        }
    }
    assert!((2..=4).contains(&looks), "{looks}");
    // It works again, and tells what was missed.
    let NextAction::Wait(until) = watch.next(now) else {
        panic!()
    };
    hear(
        &mut watch,
        until,
        document(90, 5_500, &[("a", "1")], ARCHIVED),
    );
    assert_eq!(watch.conditions().next().unwrap().1, Condition::Working);
}

/// An old copy is borne for two periods; a clock that was set back is believed then.
#[test]
fn a_document_that_stands_still_is_broken() {
    let mut watch = heard(&["a"], "");
    let mut now = Duration::ZERO;
    for _ in 0..2 {
        now += 48 * S;
        hear(&mut watch, now, document(30, 100, &[], ""));
        assert_eq!(watch.conditions().next().unwrap().1, Condition::Working);
    }
    now += 48 * S;
    hear(&mut watch, now, document(30, 100, &[], ""));
    assert_eq!(watch.conditions().next().unwrap().1, Condition::Broken);
    now += 48 * S;
    hear(&mut watch, now, document(0, 70, &[], ""));
    now += 48 * S;
    hear(&mut watch, now, document(30, 99, &[], ""));
    assert_eq!(watch.conditions().next().unwrap().1, Condition::Working);
    assert_eq!(
        watch.tally().sweeps,
        1,
        "what the old clock told is not known"
    );
}

#[test]
fn sup_c6_who_wants_to_hear_rarely_takes_a_longer_window() {
    let mut watch = Watch::new(
        Pace {
            interval: INTERVAL,
            sup_interval: 180 * S,
        },
        1,
    );
    watch.add_feed(None, None);
    assert_eq!(looks(&mut watch, Duration::ZERO), [0]);
    read(&mut watch, FeedNumber(0), Duration::ZERO, false, "a");
    let periods = ",\"available_periods\":{\"60\":\"sup.json\",\"300\":\"sup.json?seconds=300\"}";
    hear(&mut watch, Duration::ZERO, document(30, 100, &[], periods));
    let SupResult::Document(mut longer) = document(0, 100, &[], periods) else {
        panic!()
    };
    longer.period = 300;
    let asked = hear(&mut watch, Duration::ZERO, SupResult::Document(longer));
    assert_eq!(asked, "https://e/sup.json?seconds=300");
    assert_eq!(watch.next(S), NextAction::Wait(178 * S));
}

/// Goal: nothing is believed of the time between a feed's first look and the first document that tells of it.
#[test]
fn what_changed_before_the_first_document_is_looked_at() {
    let mut watch = Watch::new(pace(), 1);
    let feed = watch.add_feed(None, None);
    assert_eq!(looks(&mut watch, Duration::ZERO), [0]);
    read(&mut watch, feed, Duration::ZERO, false, "a");
    hear(&mut watch, Duration::ZERO, NOTHING);
    let NextAction::Wait(now) = watch.next(S / 10) else {
        panic!()
    };
    hear(&mut watch, now, document(4_000, 4_070, &[], ARCHIVED));
    assert_eq!(
        watch.told_by(feed),
        None,
        "it may have changed before 4,000"
    );
    let mut looked = 0;
    live(&mut watch, now, now + INTERVAL, |watch, next, now| {
        if let NextAction::Look { fresh, .. } = next {
            looked += 1;
            assert!(fresh, "a cache may hold what it was");
        }
        let at = Duration::from_secs(4_000) + now;
        match next {
            NextAction::Hear { source, .. } => {
                let until = u32::try_from(at.as_secs()).unwrap();
                watch.heard(source, now, document(4_000, until + 70, &[], ARCHIVED));
            }
            next => all_is_well(watch, &next, now, ARCHIVED),
        }
    });
    assert_eq!(looked, 1);
    assert!(watch.told_by(feed).is_some());
}

/// Goal: while thousands of feeds are looked at for the first time, their document is heard all the same.
#[test]
fn a_document_goes_before_feeds() {
    let mut watch = Watch::new(pace(), 1);
    for _ in 0..100 {
        watch.add_feed(None, None);
    }
    let NextAction::Look { feed, .. } = watch.next(Duration::ZERO) else {
        panic!()
    };
    read(&mut watch, feed, Duration::ZERO, false, "a");
    hear(&mut watch, S, document(30, 100, &[], ARCHIVED));
    let others: Vec<u32> = (1..100).collect();
    assert_eq!(looks(&mut watch, 4 * S), others);
    for feed in (1..100).map(FeedNumber) {
        read(&mut watch, feed, 5 * S, false, "a");
    }
    let mut again = vec![];
    live(&mut watch, 5 * S, 3 * INTERVAL, |watch, next, now| {
        if let NextAction::Look { feed, .. } = next {
            again.push(feed.0);
        }
        all_is_well(watch, &next, now, ARCHIVED);
    });
    assert_eq!(again, [0], "the only one that was looked at before");
}

/// Goal: what was told before a feed was looked at is no news of it, now or after a restart.
#[test]
fn what_was_told_before_the_first_look_is_no_news() {
    let mut watch = Watch::new(pace(), 1);
    let (first, second) = (watch.add_feed(None, None), watch.add_feed(None, None));
    assert_eq!(
        watch.next(Duration::ZERO),
        NextAction::Look {
            feed: first,
            fresh: true
        }
    );
    read(&mut watch, first, Duration::ZERO, false, "a");
    let pairs = [("b", "7")];
    hear(
        &mut watch,
        Duration::ZERO,
        document(30, 100, &pairs, ARCHIVED),
    );
    let now = 20 * S;
    assert_eq!(looks(&mut watch, now), [1]);
    read(&mut watch, second, now + CACHED, false, "b");
    hear(&mut watch, 48 * S, document(30, 148, &pairs, ARCHIVED));
    assert!(looks(&mut watch, 90 * S).is_empty());
    // But what a replica may have held back is.
    let third = watch.add_feed(None, None);
    hear(
        &mut watch,
        100 * S,
        document(30, 200, &[("c", "7")], ARCHIVED),
    );
    assert_eq!(looks(&mut watch, 104 * S), [2]);
    read(&mut watch, third, 107 * S, false, "c");
    hear(
        &mut watch,
        150 * S,
        document(30, 250, &[("c", "7")], ARCHIVED),
    );
    assert_eq!(looks(&mut watch, 150 * S), [2]);
    let (known, update) = watch.told_by(second).unwrap();
    assert_eq!(update, Some("7"));
    let mut again = Watch::new(pace(), 1);
    let (document_of, updated) = watch.heard_until().next().unwrap();
    again.heard_before(document_of, updated);
    again.add_feed(Some(known), update);
    hear(&mut again, S, document(30, 196, &pairs, ARCHIVED));
    assert!(looks(&mut again, S).is_empty());
    hear(
        &mut again,
        49 * S,
        document(30, 244, &[("b", "8")], ARCHIVED),
    );
    assert_eq!(looks(&mut again, 49 * S), [0]);
}

/// SUP-C10: an archive that is no URL is not taken for none.
#[test]
fn an_archive_that_is_no_url_closes_no_gap() {
    let none = ",\"prev_archive\":\"https://\"";
    let mut watch = heard(&["a"], none);
    hear(&mut watch, 48 * S, document(5_000, 6_000, &[], none));
    assert_eq!(watch.tally().sweeps, 1);
}

/// Goal: what nobody announces is not asked for, however many were announced.
#[test]
fn a_document_that_no_feed_announces_is_forgotten() {
    let mut watch = Watch::new(pace(), 1);
    let feed = watch.add_feed(None, None);
    let base = "https://e/".parse().unwrap();
    let mut now = Duration::ZERO;
    for number in 0..1_000 {
        now += 11 * INTERVAL;
        let NextAction::Look { feed, .. } = watch.next_feed(now) else {
            panic!("{number}")
        };
        let sup = SupAddress::parse(&format!("https://e/{number}.json#a"), &base).into();
        watch.looked(feed, now, seen(true, sup));
        let NextAction::Hear { source, .. } = watch.next_document(now) else {
            panic!("{number}")
        };
        // The one before comes late, or never.
        if number % 2 == 0 {
            watch.heard(source, now, NOTHING);
        }
    }
    assert_eq!((watch.sources.len(), watch.by_url.len()), (1, 1));
    let sup = Announcement::Nowhere;
    now += 11 * INTERVAL;
    assert!(matches!(watch.next_feed(now), NextAction::Look { .. }));
    watch.looked(feed, now, seen(true, sup));
    assert_eq!((watch.sources.len(), watch.by_url.len()), (0, 0));
    assert_eq!(watch.next_document(now + INTERVAL), NextAction::Nothing);
}

/// SUP-C10: a publisher that tells ever more of one feed takes no memory and no time.
#[test]
fn pairs_without_end_are_borne() {
    let mut watch = heard(&["a"; 50], ARCHIVED);
    let mut second = 100;
    for round in 0..20 {
        let now = Duration::from_secs(u64::from(second));
        second += 48;
        let updates: Vec<String> = (0..10_000).map(|n| format!("{round}-{n}")).collect();
        let pairs: Vec<(&str, &str)> = updates.iter().map(|update| ("a", &**update)).collect();
        hear(&mut watch, now, document(0, second, &pairs, ARCHIVED));
        let called = looks(&mut watch, now);
        assert_eq!(called.len(), 50);
        for feed in called {
            read(&mut watch, FeedNumber(feed), now, true, "a");
        }
        let known: usize = watch.sources.values().map(SupSource::known_pairs).sum();
        assert!(known <= 30_000, "{known}");
        assert!(watch.feed_turns.len() <= 50 && watch.source_turns.len() <= 1);
    }
}

/// SUP-C7: who archives no more can tell too little.
#[test]
fn a_publisher_that_stops_archiving_gets_a_safety_net() {
    let mut watch = heard(&["a"], ARCHIVED);
    assert_eq!(watch.next_feed(S), NextAction::Nothing);
    hear(&mut watch, 48 * S, document(78, 148, &[], ""));
    assert!(matches!(watch.next_feed(49 * S), NextAction::Wait(_)));
    hear(&mut watch, 96 * S, document(78, 196, &[], ARCHIVED));
    assert_eq!(watch.next_feed(97 * S), NextAction::Nothing);
}

/// Goal: who asks more rarely than a window lasts, and has no other, asks as often as that all the same.
#[test]
fn a_window_that_is_too_short_is_no_gap() {
    for (more, pause) in [("", 48), (ARCHIVED, 178)] {
        let pace = Pace {
            interval: INTERVAL,
            sup_interval: 180 * S,
        };
        let mut watch = Watch::new(pace, 1);
        watch.add_feed(None, None);
        assert_eq!(looks(&mut watch, Duration::ZERO), [0]);
        read(&mut watch, FeedNumber(0), Duration::ZERO, false, "a");
        hear(&mut watch, Duration::ZERO, document(30, 100, &[], more));
        assert_eq!(watch.next_document(S), NextAction::Wait(pause * S));
    }
}

/// SUP-C10: a window that may not be had is not asked for again and again.
#[test]
fn a_window_that_cannot_be_had_is_left() {
    let pace = Pace {
        interval: INTERVAL,
        sup_interval: 180 * S,
    };
    let mut watch = Watch::new(pace, 1);
    watch.add_feed(None, None);
    assert_eq!(looks(&mut watch, Duration::ZERO), [0]);
    read(&mut watch, FeedNumber(0), Duration::ZERO, false, "a");
    let periods = ",\"available_periods\":{\"300\":\"https://elsewhere/sup.json\"}";
    let (mut now, mut elsewhere) = (Duration::ZERO, 0);
    for second in 0..3_600 {
        now = second * S;
        if let NextAction::Hear { source, url, .. } = watch.next_document(now) {
            let is_ours = url.host_str() == Some("e");
            elsewhere += u32::from(!is_ours);
            let heard = if is_ours {
                document(0, second + 1, &[], periods)
            } else {
                NOTHING
            };
            watch.heard(source, now, heard);
        }
    }
    assert_eq!(elsewhere, 3, "{now:?}");
    assert_eq!(watch.conditions().next().unwrap().1, Condition::Working);
}
