//! What the tests of a watch share.

use std::fmt::Write as _;

use super::{feeds::CACHED, *};

mod feeds;
mod sources;

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
fn document(since: u32, until: u32, pairs: &[(&str, &str)], more: &str) -> SupResult {
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
    SupResult::Document(SupDocument::read(text.as_bytes()).unwrap())
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

fn seen(news: bool, sup: Announcement) -> LookResult {
    let stale = false;
    LookResult::Read { news, stale, sup }
}

const NOTHING: SupResult = SupResult::Nothing { retry_after: None };

fn failed(for_good: bool) -> LookResult {
    LookResult::Failed {
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
fn hear(watch: &mut Watch, now: Duration, heard: SupResult) -> String {
    match watch.next(now) {
        NextAction::Hear { source, url, .. } => {
            let heard = match heard {
                SupResult::Document(document) => SupResult::Document(document.resolved(&url)),
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
    mut answer: impl FnMut(&mut Watch, NextAction, Duration),
) {
    let mut now = from;
    while now < until {
        now += S;
        loop {
            match watch.next(now) {
                NextAction::Wait(_) | NextAction::Nothing => break,
                next => answer(watch, next, now),
            }
        }
    }
}

/// Answers as a feed and a document do that go well: it begins at second 0 and ends now.
fn all_is_well(watch: &mut Watch, next: &NextAction, now: Duration, more: &str) {
    match next {
        NextAction::Look { feed, .. } => read(watch, *feed, now, false, "a"),
        NextAction::Hear { source, .. } => {
            let second = 1_000 + u32::try_from(now.as_secs()).unwrap();
            watch.heard(*source, now, document(0, second, &[], more));
        }
        NextAction::Wait(_) | NextAction::Nothing => {}
    }
}

/// Returns the feeds that are looked at now, or as soon as no cache has what was before.
fn looks(watch: &mut Watch, now: Duration) -> Vec<u32> {
    let mut looks = vec![];
    while let NextAction::Look { feed, .. } = watch.next_feed(now + CACHED) {
        looks.push(feed.0);
    }
    looks.sort_unstable();
    looks
}
