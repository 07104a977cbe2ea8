use std::fmt::Write as _;

use super::{feeds::CACHED, *};

const S: Duration = Duration::from_secs(1);
const INTERVAL: Duration = Duration::from_mins(30);

fn pace() -> Pace {
    Pace {
        interval: INTERVAL,
        sup_interval: Duration::ZERO,
    }
}

fn address(id: &str) -> SupAddress {
    let base = "https://e/".parse().unwrap();
    SupAddress::parse(&format!("https://e/sup.json#{id}"), &base).unwrap()
}

/// A document from second `since` to `until`, with more members.
fn document(since: u32, until: u32, pairs: &[(&str, &str)], more: &str) -> Heard {
    let time = |second: u32| {
        format!(
            "2026-01-01T{:02}:{:02}:{:02}Z",
            second / 3600,
            second / 60 % 60,
            second % 60
        )
    };
    let mut updates = String::new();
    for (id, update) in pairs {
        let comma = if updates.is_empty() { "" } else { "," };
        write!(updates, "{comma}[\"{id}\",\"{update}\"]").unwrap();
    }
    let text = format!(
        "{{\"updated_time\":\"{}\",\"since_time\":\"{}\",\"period\":60,\"updates\":[{updates}]{more}}}",
        time(until),
        time(since)
    );
    Heard::Document(SupDocument::read(text.as_bytes()).unwrap())
}

const ARCHIVED: &str = ",\"prev_archive\":\"sup/7.json\"";

/// A watch of feeds that were all looked at, and whose document was heard up to second 100.
fn heard(ids: &[&str], more: &str) -> Watch {
    let mut watch = Watch::new(pace(), 3);
    for _ in ids {
        watch.add_feed(None, None);
    }
    let all: Vec<u32> = (0..).take(ids.len()).collect();
    assert_eq!(
        looks(&mut watch, Duration::ZERO),
        all,
        "every feed is looked at first"
    );
    for (feed, id) in (0..).map(FeedNumber).zip(ids) {
        read(&mut watch, feed, Duration::ZERO, true, id);
    }
    hear(&mut watch, Duration::ZERO, document(30, 100, &[], more));
    watch
}

fn read(watch: &mut Watch, feed: FeedNumber, now: Duration, news: bool, id: &str) {
    let sup = Announcement::At(address(id));
    watch.looked(feed, now, seen(news, sup));
}

fn seen(news: bool, sup: Announcement) -> Looked {
    let stale = false;
    Looked::Read { news, stale, sup }
}

const NOTHING: Heard = Heard::Nothing { retry_after: None };

fn failed(for_good: bool) -> Looked {
    Looked::Failed {
        news: false,
        for_good,
        retry_after: None,
    }
}

/// Returns up to which second the document was heard.
fn heard_until(watch: &Watch) -> i64 {
    watch.heard_until().next().unwrap().1.second() - 1_767_225_600
}

/// Whether a feed may be remembered as one that is told of.
fn is_told(watch: &Watch, feed: FeedNumber) -> bool {
    watch.told_by(feed).is_some()
}

/// Expects that a document is asked for, and gives it. Returns where it was asked for.
#[track_caller]
fn hear(watch: &mut Watch, now: Duration, heard: Heard) -> String {
    match watch.next(now) {
        Next::Hear { source, url, .. } => {
            let heard = match heard {
                Heard::Document(document) => Heard::Document(document.resolved(&url)),
                other => other,
            };
            watch.heard(source, now, heard);
            url.to_string()
        }
        other => panic!("no document is asked for: {other:?}"),
    }
}

/// Lets time pass: what is to be done each second is given to `answer`.
fn live(
    watch: &mut Watch,
    from: Duration,
    until: Duration,
    mut answer: impl FnMut(&mut Watch, Next, Duration),
) {
    let mut now = from;
    while now < until {
        now += S;
        loop {
            match watch.next(now) {
                Next::Wait(_) | Next::Nothing => break,
                next => answer(watch, next, now),
            }
        }
    }
}

/// Answers as a feed and a document do that go well: it begins at second 0 and ends now.
fn all_is_well(watch: &mut Watch, next: &Next, now: Duration, more: &str) {
    match next {
        Next::Look { feed, .. } => read(watch, *feed, now, false, "a"),
        Next::Hear { source, .. } => {
            let second = 1_000 + u32::try_from(now.as_secs()).unwrap();
            watch.heard(*source, now, document(0, second, &[], more));
        }
        Next::Wait(_) | Next::Nothing => {}
    }
}

/// Returns the feeds that are looked at now, or as soon as no cache has what was before.
fn looks(watch: &mut Watch, now: Duration) -> Vec<u32> {
    let mut looks = vec![];
    while let Next::Look { feed, .. } = watch.next_feed(now + CACHED) {
        looks.push(feed.0);
    }
    looks.sort_unstable();
    looks
}

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
    assert_eq!(watch.next(47 * S), Next::Wait(48 * S));
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
    hear(&mut watch, 48 * S, Heard::Document(document));
    assert!(matches!(watch.next(49 * S), Next::Wait(_)));
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
    assert!(matches!(watch.next(now), Next::Wait(_)));
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
                    Next::Hear { source, .. } => {
                        asked += 1;
                        watch.heard(source, now, archive.clone());
                    }
                    Next::Wait(until) => now = until,
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
                Next::Look { feed, .. } => swept.push(feed.0),
                Next::Hear { source, .. } => watch.heard(source, now, Heard::Same),
                _ => {}
            }
            assert!(now < INTERVAL + 100 * S);
        }
    }
}

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
                looks += u32::from(matches!(next, Next::Look { .. }));
                all_is_well(watch, &next, now, more);
            },
        );
        assert_eq!(looks > 0, looked);
        assert!(looks <= 3);
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
            Next::Look { feed, .. } => {
                looks += 1;
                read(&mut watch, feed, now, false, "a");
            }
            Next::Hear { source, fresh, .. } => {
                assert!(fresh, "past whatever keeps the broken one");
                watch.heard(source, now, NOTHING);
            }
            _ => {}
        }
    }
    assert!((2..=4).contains(&looks), "{looks}");
    // It works again, and tells what was missed.
    let Next::Wait(until) = watch.next(now) else {
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
        assert_eq!(watch.next_feed(now), Next::Look { feed, fresh: true });
        read(&mut watch, feed, now, false, "a");
        assert!(!is_told(&watch, feed), "an end now loses nothing");
        now += pause * S;
    }
    assert_eq!(watch.next(now), Next::Look { feed, fresh: true });
    read(&mut watch, feed, now, false, "a");
    let mut looked_at = vec![];
    live(&mut watch, now, now + 20 * INTERVAL, |watch, next, now| {
        if let Next::Look { fresh, .. } = next {
            assert!(fresh && !is_told(watch, feed));
            looked_at.push(now);
        }
        // A document that is away for a moment changes nothing.
        match next {
            Next::Hear { source, .. } if (600..620).contains(&now.as_secs()) => {
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
    hear(&mut watch, now, Heard::Same);
    assert_eq!(looks(&mut watch, now), [1], "as a feed without SUP");
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
    let Heard::Document(mut longer) = document(0, 100, &[], periods) else {
        panic!()
    };
    longer.period = 300;
    let asked = hear(&mut watch, Duration::ZERO, Heard::Document(longer));
    assert_eq!(asked, "https://e/sup.json?seconds=300");
    assert_eq!(watch.next(S), Next::Wait(178 * S));
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
    assert_eq!(watch.next(now + S), Next::Wait(now + 5 * S));
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

/// Goal: nothing is believed of the time between a feed's first look and the first document that tells of it.
#[test]
fn what_changed_before_the_first_document_is_looked_at() {
    let mut watch = Watch::new(pace(), 1);
    let feed = watch.add_feed(None, None);
    assert_eq!(looks(&mut watch, Duration::ZERO), [0]);
    read(&mut watch, feed, Duration::ZERO, false, "a");
    hear(&mut watch, Duration::ZERO, NOTHING);
    let Next::Wait(now) = watch.next(S / 10) else {
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
        if let Next::Look { fresh, .. } = next {
            looked += 1;
            assert!(fresh, "a cache may hold what it was");
        }
        let at = Duration::from_secs(4_000) + now;
        match next {
            Next::Hear { source, .. } => {
                let until = u32::try_from(at.as_secs()).unwrap();
                watch.heard(source, now, document(4_000, until + 70, &[], ARCHIVED));
            }
            next => all_is_well(watch, &next, now, ARCHIVED),
        }
    });
    assert_eq!(looked, 1);
    assert!(watch.told_by(feed).is_some());
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
        Next::Look { feed, fresh } => {
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
            Next::Look { fresh, .. } => {
                assert!(fresh && !is_told(watch, feed));
                looks += 1;
                let (news, stale) = (looks == 1, looks < 6);
                let sup = Announcement::Untold;
                watch.looked(feed, now, Looked::Read { news, stale, sup });
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
    watch.looked(feed, 3 * S, Looked::Read { news, stale, sup });
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
    let Next::Wait(at) = watch.next_document(50 * S) else {
        panic!()
    };
    hear(&mut watch, at, document(30, 196, &[("a", "2")], ARCHIVED));
    assert_eq!(watch.next_feed(at), Next::Look { feed, fresh: true });
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
    assert_eq!(watch.next_feed(at), Next::Look { feed, fresh: false });
    hear(&mut watch, at, document(0, 18_100, &[("a", "1")], ""));
    watch.looked(feed, at, failed(false));
    let at = at + 5 * S;
    assert_eq!(watch.next_feed(at), Next::Look { feed, fresh: true });
    read(&mut watch, feed, at, false, "a");
    assert_eq!(watch.next_feed(at), Next::Wait(at + 2 * S));
}

/// Goal: a document that was heard before a restart may have told of a feed that is found there only now.
#[test]
fn what_was_heard_before_the_beginning_counts() {
    let mut watch = Watch::new(pace(), 1);
    let updated = Instant::parse("2026-01-01T00:01:40Z").unwrap();
    watch.heard_before(&address("a").document, updated);
    watch.add_feed(Some(address("a")), None);
    let feed = watch.add_feed(None, None);
    hear(&mut watch, Duration::ZERO, NOTHING);
    assert_eq!(looks(&mut watch, Duration::ZERO), [1]);
    read(&mut watch, feed, S / 10, false, "b");
    assert!(!is_told(&watch, feed));
    assert_eq!(looks(&mut watch, S / 10), [1]);
}

/// Goal: while thousands of feeds are looked at for the first time, their document is heard all the same.
#[test]
fn a_document_goes_before_feeds() {
    let mut watch = Watch::new(pace(), 1);
    for _ in 0..100 {
        watch.add_feed(None, None);
    }
    let Next::Look { feed, .. } = watch.next(Duration::ZERO) else {
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
        if let Next::Look { feed, .. } = next {
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
        Next::Look {
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
                Next::Look { feed, fresh } => {
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
    hear(&mut watch, 48 * S, Heard::Nothing { retry_after: busy });
    let Next::Wait(until) = watch.next(49 * S) else {
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
    let asked = Looked::Failed {
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
        Next::Wait(now + 77 * S),
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
            Next::Look { feed, .. } => {
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
            Next::Hear { source, .. } => {
                let second = 1_000 + u32::try_from(now.as_secs()).unwrap();
                let Heard::Document(mut heard) = document(second - 70, second, &[], ARCHIVED)
                else {
                    panic!()
                };
                heard.period = 1;
                watch.heard(source, now, Heard::Document(heard));
            }
            Next::Wait(until) => now = until,
            Next::Nothing => panic!(),
        }
    }
    let most = INTERVAL.as_secs() / CACHED.as_secs() + 10;
    assert!(looks < most, "{looks}");
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
        let Next::Look { feed, .. } = watch.next_feed(now) else {
            panic!("{number}")
        };
        let sup = SupAddress::parse(&format!("https://e/{number}.json#a"), &base).into();
        watch.looked(feed, now, seen(true, sup));
        let Next::Hear { source, .. } = watch.next_document(now) else {
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
    assert!(matches!(watch.next_feed(now), Next::Look { .. }));
    watch.looked(feed, now, seen(true, sup));
    assert_eq!((watch.sources.len(), watch.by_url.len()), (0, 0));
    assert_eq!(watch.next_document(now + INTERVAL), Next::Nothing);
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
        let known: usize = watch.sources.values().map(Source::known_pairs).sum();
        assert!(known <= 30_000, "{known}");
        assert!(watch.feed_turns.len() <= 50 && watch.source_turns.len() <= 1);
    }
}

/// SUP-C7: who archives no more can tell too little.
#[test]
fn a_publisher_that_stops_archiving_gets_a_safety_net() {
    let mut watch = heard(&["a"], ARCHIVED);
    assert_eq!(watch.next_feed(S), Next::Nothing);
    hear(&mut watch, 48 * S, document(78, 148, &[], ""));
    assert!(matches!(watch.next_feed(49 * S), Next::Wait(_)));
    hear(&mut watch, 96 * S, document(78, 196, &[], ARCHIVED));
    assert_eq!(watch.next_feed(97 * S), Next::Nothing);
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
            if let Next::Look { .. } = watch.next_feed(now) {
                assert!(matches!(watch.next_feed(now), Next::Nothing));
                read(&mut watch, feed, now, false, "a");
            }
            if let Next::Hear { source, .. } = watch.next_document(now) {
                watch.heard(source, now, document(0, 100 + 3 * second, &[], ""));
            }
        }
    }
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
        assert_eq!(watch.next_document(S), Next::Wait(pause * S));
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
        if let Next::Hear { source, url, .. } = watch.next_document(now) {
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
