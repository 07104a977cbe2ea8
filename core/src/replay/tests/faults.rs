//! Feeds with faults: links that lead nowhere, revisions in one document, pages, copies that differ.
//!
//! Pure. No fault lets a walk pass entries over and come to its end.

use super::*;
use crate::reader::FeedFault;

/// Targets that no server has: each is written into a link.
const NOWHERE: [&str; 8] = [
    "href='http://[::1'",
    "href='http://h:99999/1'",
    "href='http:///'",
    "href='http://%zz/1'",
    "xml:base='mailto:a@b' href='1'",
    "href='mailto:a@b'",
    "href='javascript:void(0)'",
    "",
];

/// A document as it is asked for: its links and entries as XML.
pub(super) type Page<'a> = (&'a str, String);

/// Returns an entry of a number and a day.
pub(super) fn entry(number: u32, day: u32) -> String {
    format!("<entry><id>urn:{number}</id><updated>2026-01-{day:02}T00:00:00Z</updated></entry>")
}

/// Returns entries, newest first, each on the day of its number.
pub(super) fn entries(newest_first: &[u32]) -> String {
    newest_first
        .iter()
        .map(|number| entry(*number, *number))
        .collect()
}

pub(super) fn link(rel: &str, target: &str) -> String {
    format!("<link rel='{rel}' {target}/>")
}

pub(super) fn read(at: &Url, inside: &str) -> Document {
    let text = format!("<feed xmlns='http://www.w3.org/2005/Atom'><id>urn:f</id>{inside}</feed>");
    Document::read(text.into_bytes().into(), at).unwrap()
}

/// Returns the number and the day of each entry of a run.
pub(super) fn days(run: &EntryRun) -> Vec<(u32, u32)> {
    let each = run.entries.iter().map(|entry| {
        let id = run.document.entry(entry.index).unwrap().id;
        let date = run.document.updated_of(entry.index).unwrap().to_string();
        let day = date.get(8..10).unwrap().parse().unwrap();
        (id.strip_prefix("urn:").unwrap().parse().unwrap(), day)
    });
    each.collect()
}

/// Walks to the end of a round, with the nth copy of a document at its nth request, and the last one then. Returns what was
/// handed over, and the outcome.
pub(super) fn walk_copies(
    replay: &mut Replay,
    pages: &[Page<'_>],
) -> (Vec<(u32, u32)>, Result<(), WalkError>) {
    let mut asked: HashMap<Url, usize> = HashMap::new();
    let mut seen = vec![];
    for _ in 0..100 {
        let Some(ask) = replay.ask() else {
            let ended = replay.next_round().map(drop);
            return (seen, ended);
        };
        let copies: Vec<&String> = pages
            .iter()
            .filter(|(name, _)| url(name) == ask.url)
            .map(|(_, inside)| inside)
            .collect();
        let count = asked.entry(ask.url.clone()).or_default();
        let copy = copies.get(*count).or(copies.last());
        *count += 1;
        let outcome = match copy {
            None => replay.missing().map(|()| None),
            Some(inside) => {
                let document = read(&ask.url, inside);
                replay.take(document, &ask.url, Validators::default())
            }
        };
        match outcome {
            Ok(run) => seen.extend(run.iter().flat_map(days)),
            Err(error) => return (seen, Err(error)),
        }
    }
    panic!("the walk does not end");
}

pub(super) fn from_oldest(pages: &[Page<'_>]) -> (Vec<(u32, u32)>, Result<(), WalkError>) {
    walk_copies(&mut Replay::new(url(RECENT), Start::Oldest), pages)
}

#[track_caller]
fn is_broken(outcome: &Result<(), WalkError>, rel: &str) {
    match outcome {
        Err(error @ WalkError::BrokenLink { link, .. }) if link.rel == rel => {
            assert!(!error.is_gap(), "no consumer goes on behind it");
        }
        other => panic!("{rel}: {other:?}"),
    }
}

/// Goal: a link to the archive that leads nowhere ends the walk, at its beginning and in the middle of a chain.
#[test]
fn a_broken_link_to_the_archive_is_no_end() {
    for target in NOWHERE {
        let (rel, mixed) = (link("prev-archive", target), link(" Prev-Archive", target));
        for broken in [rel, mixed] {
            let at_once = [(RECENT, broken.clone() + &entries(&[4, 3]))];
            let (seen, outcome) = from_oldest(&at_once);
            assert_eq!(seen, [], "{target}");
            is_broken(&outcome, "prev-archive");
            let within = [
                (RECENT, link("prev-archive", "href='2'") + &entries(&[4, 3])),
                ("2", broken + &entries(&[2, 1])),
            ];
            let (seen, outcome) = from_oldest(&within);
            assert_eq!(seen, [], "{target}");
            is_broken(&outcome, "prev-archive");
        }
    }
}

/// Goal: the same for a link that leads to the recent document, and for a feed whose links lead the wrong way round.
#[test]
fn a_broken_link_to_the_recent_document_is_no_end() {
    for target in NOWHERE {
        let archive = [("1", link("current", target) + &entries(&[2, 1]))];
        let mut replay = Replay::new(url("1"), Start::Oldest);
        let (seen, outcome) = walk_copies(&mut replay, &archive);
        assert_eq!(seen, [], "{target}");
        is_broken(&outcome, "current");
        let inverted = [(RECENT, link("next-archive", target) + &entries(&[4, 3]))];
        let (seen, outcome) = from_oldest(&inverted);
        assert_eq!(seen, [], "{target}");
        is_broken(&outcome, "prev-archive");
    }
}

/// Goal: a feed with positions does not end at a broken link to its next document either.
#[test]
fn a_broken_link_of_a_numbered_feed_is_no_end() {
    let mut feed = Feed::new(2);
    feed.append(6);
    for (name, rel, broken) in [
        (RECENT, "prev-archive", "prev-archive"),
        ("2.atom", "prev-archive", "prev-archive"),
        ("1.atom", "next-archive", "next-archive"),
    ] {
        let mut replay = Replay::new(url(RECENT), Start::Oldest);
        let outcome = loop {
            let Some(ask) = replay.ask() else {
                break Ok(());
            };
            if ask.kind == AskKind::Index {
                replay.missing().unwrap();
                continue;
            }
            let called = ask.url.as_str().strip_prefix(BASE).unwrap();
            let mut text = feed.text(called).unwrap();
            if called == name {
                let found = format!("<link rel=\"{rel}\" href=\"");
                assert!(text.contains(&found), "{text}");
                text = text.replace(&found, &format!("{found}http://[::1"));
            }
            let document = Document::read(text.into_bytes().into(), &ask.url).unwrap();
            if let Err(error) = replay.take(document, &ask.url, Validators::default()) {
                break Err(error);
            }
        };
        is_broken(&outcome, broken);
    }
}

/// Goal: a broken link that a walk does not need stops nobody, and is told.
#[test]
fn a_broken_link_that_is_not_needed_is_a_fault() {
    let broken = link("prev-archive", "href='http://[::1'");
    let mut replay = Replay::new(url(RECENT), Start::Newest);
    let looks = [
        broken.clone() + &entries(&[2, 1]),
        broken.clone() + &entries(&[3, 2, 1]),
    ];
    let mut seen = vec![];
    for look in looks {
        let (handed_over, outcome) = walk_copies(&mut replay, &[(RECENT, look)]);
        outcome.unwrap();
        seen.extend(handed_over);
    }
    assert_eq!(seen, [(3, 3)], "a known entry is in the document");
    for rel in ["index", "urn:simplefeed:1#wait", "updates", "NEXT"] {
        let document = read(
            &url(RECENT),
            &(link(rel, "href='http://[::1'") + &entries(&[1])),
        );
        let faults = document.faults(&url(RECENT));
        let told: Vec<String> = faults.iter().map(ToString::to_string).collect();
        assert!(
            told.iter().any(|fault| fault.contains("leads nowhere")),
            "{rel}: {told:?}"
        );
    }
    let many: String = (0..2_000)
        .map(|n| link("related", &format!("href='{n}'")))
        .collect();
    let behind_many = read(&url(RECENT), &(many + &link("prev-archive", "href='1'")));
    assert_eq!(behind_many.link("prev-archive"), Some(&url("1")));
}

/// Goal: of several revisions in one document, the newest is the entry, and with `revisions` all come, oldest first.
#[test]
fn of_revisions_in_one_document_the_newest_counts() {
    let documents = [
        // The order of the feed, the reverse, one that says nothing, and equal dates: the topmost.
        (
            entry(2, 9) + &entry(1, 5) + &entry(1, 3) + &entry(1, 1),
            vec![(1, 5), (2, 9)],
        ),
        (
            entry(1, 1) + &entry(1, 3) + &entry(1, 5) + &entry(2, 9),
            vec![(1, 5), (2, 9)],
        ),
        (
            entry(1, 3) + &entry(2, 9) + &entry(1, 5) + &entry(1, 1),
            vec![(1, 5), (2, 9)],
        ),
    ];
    for (inside, newest) in documents {
        let pages = [(RECENT, inside.clone())];
        let (seen, outcome) = from_oldest(&pages);
        outcome.unwrap();
        let mut sorted = seen.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, newest, "{inside}");
        let mut replay = Replay::new(url(RECENT), Start::Oldest).revisions(true);
        let (seen, outcome) = walk_copies(&mut replay, &pages);
        outcome.unwrap();
        let of_one: Vec<u32> = seen
            .iter()
            .filter(|(id, _)| *id == 1)
            .map(|(_, day)| *day)
            .collect();
        assert_eq!(of_one, [1, 3, 5], "{inside}");
        let faults = read(&url(RECENT), &inside).faults(&url(RECENT));
        assert_eq!(faults, [FeedFault::Repeats { entries: 2 }]);
    }
    let all_alike = "<entry><id>urn:1</id></entry>".repeat(3);
    let mut document = read(&url(RECENT), &all_alike);
    document.keep_newest_revisions();
    assert_eq!(document.len(), 1);
}

/// Goal: a consumer that stops after any entry gets each of the rest once, in order, whatever the order and the dates of
/// the revisions in the document.
#[test]
fn a_stop_among_revisions_repeats_and_loses_none() {
    let mixed = [(1, 6), (2, 5), (3, 4), (1, 3), (2, 2), (1, 1)];
    let wild = [(1, 1), (2, 6), (1, 3), (3, 4), (1, 6), (2, 2)];
    let equal = [(2, 4), (1, 3), (1, 3), (1, 2), (2, 4), (3, 1), (3, 1)];
    let entries = |all: &[(u32, u32)]| all.iter().map(|(id, day)| entry(*id, *day)).collect();
    let documents: [(String, usize); 3] = [
        (entries(&mixed), 6),
        (entries(&wild), 6),
        // Revisions of one date are one.
        (entries(&equal), 4),
    ];
    for (inside, expected) in documents {
        let (mut start, mut seen) = (Start::Oldest, vec![]);
        // `--limit 1`, again and again.
        for _ in 0..10 {
            let mut replay = Replay::new(url(RECENT), start.clone()).revisions(true);
            // The second time for a copy that comes past all caches.
            let mut take = || {
                let document = read(&url(RECENT), &inside);
                replay.take(document, &url(RECENT), Validators::default())
            };
            let run = take().unwrap().or_else(|| take().unwrap()).unwrap();
            let Some(entry) = run.entries.first() else {
                break;
            };
            seen.push(days(&run)[0]);
            start = Start::Bookmark(run.bookmark(entry).unwrap());
        }
        let mut replay = Replay::new(url(RECENT), Start::Oldest).revisions(true);
        let (at_once, outcome) = walk_copies(&mut replay, &[(RECENT, inside)]);
        outcome.unwrap();
        assert_eq!(at_once.len(), expected);
        assert_eq!(seen, at_once);
    }
}

/// Goal: a consumer that stopped on its way through the archive, and finds the way cut, is told, whether or not the
/// recent document has an entry that it knows.
#[test]
fn a_stop_on_the_way_does_not_hide_a_cut() {
    let archive = |target: &str| link("prev-archive", &format!("href='{target}'"));
    let before = [
        (RECENT, archive("3") + &entries(&[8, 7])),
        ("3", archive("2") + &entries(&[6, 5])),
        ("2", archive("1") + &entries(&[4, 3])),
        ("1", entries(&[2, 1])),
    ];
    let known = entry(3, 9);
    let broken = link("prev-archive", "href='http://[::1'");
    for (stop, known) in [(2, ""), (4, ""), (4, known.as_str()), (6, "")] {
        let mut replay = Replay::new(url(RECENT), Start::Oldest);
        let mut place = None;
        while place.is_none() {
            let ask = replay.ask().unwrap();
            let (_, inside) = before
                .iter()
                .find(|(name, _)| url(name) == ask.url)
                .unwrap();
            let document = read(&ask.url, inside);
            let run = replay.take(document, &ask.url, Validators::default());
            let Some(run) = run.unwrap() else { continue };
            let last = run
                .entries
                .iter()
                .find(|entry| run.document.entry(entry.index).unwrap().id == format!("urn:{stop}"));
            place = last.map(|last| run.bookmark(last).unwrap());
        }
        let start = Start::Bookmark(place.unwrap());
        let rest: Vec<(u32, u32)> = (stop + 1..=8).map(|number| (number, number)).collect();
        let (seen, outcome) = walk_copies(&mut Replay::new(url(RECENT), start.clone()), &before);
        assert_eq!((seen, outcome), (rest, Ok(())), "nothing is cut");
        let recent = known.to_owned() + &entries(&[8, 7]);
        let absent = [(RECENT, recent.clone())];
        let (_, outcome) = walk_copies(&mut Replay::new(url(RECENT), start.clone()), &absent);
        assert!(outcome.unwrap_err().is_gap(), "no link, after {stop}");
        let gone = [(RECENT, archive("3") + &recent)];
        let (_, outcome) = walk_copies(&mut Replay::new(url(RECENT), start.clone()), &gone);
        assert!(outcome.unwrap_err().is_gap(), "no archive, after {stop}");
        let cut = [(RECENT, broken.clone() + &recent)];
        let (_, outcome) = walk_copies(&mut Replay::new(url(RECENT), start.clone()), &cut);
        is_broken(&outcome, "prev-archive");
    }
}

/// Goal: a broken link is named also where no entry shows that nothing is behind it: all entries are new, or there is none.
#[test]
fn a_broken_link_of_a_document_that_has_slid_is_no_gap() {
    let archive = link("prev-archive", "href='1'");
    let broken = link("prev-archive", "href='http://[::1'");
    let first = [
        (RECENT, archive + &entries(&[4, 3])),
        ("1", entries(&[2, 1])),
    ];
    for inside in [entries(&[8, 7]), String::new()] {
        let mut replay = Replay::new(url(RECENT), Start::Oldest);
        walk_copies(&mut replay, &first).1.unwrap();
        let (seen, outcome) = walk_copies(&mut replay, &[(RECENT, broken.clone() + &inside)]);
        assert_eq!(seen, []);
        is_broken(&outcome, "prev-archive");
    }
    // A known entry stands below the new one: nothing is behind.
    let mut replay = Replay::new(url(RECENT), Start::Oldest);
    walk_copies(&mut replay, &first).1.unwrap();
    let (seen, outcome) = walk_copies(&mut replay, &[(RECENT, broken + &entries(&[5, 4, 3]))]);
    assert_eq!((seen, outcome), (vec![(5, 5)], Ok(())));
}

/// Goal: a page of a feed is not taken for the whole feed.
#[test]
fn a_page_is_not_the_feed() {
    let next = link("next", "href='?page=2'");
    let pages = [(RECENT, next.clone() + &entries(&[9, 8, 7]))];
    for start in [
        Start::Oldest,
        Start::Time(Timestamp::parse("2026-01-05T00:00:00Z").unwrap()),
    ] {
        let mut replay = Replay::new(url(RECENT), start);
        let (seen, outcome) = walk_copies(&mut replay, &pages);
        let error = outcome.unwrap_err();
        assert_eq!(seen, []);
        assert!(
            matches!(error, WalkError::Paged { .. }) && error.is_gap(),
            "{error}"
        );
        replay.pass_gap();
        let (seen, outcome) = walk_copies(&mut replay, &pages);
        outcome.unwrap();
        assert_eq!(seen, [(7, 7), (8, 8), (9, 9)]);
        let more = [(RECENT, next.clone() + &entries(&[10, 9, 8]))];
        let (seen, outcome) = walk_copies(&mut replay, &more);
        outcome.unwrap();
        assert_eq!(seen, [(10, 10)], "the place is on the page");
    }
    for start in [
        Start::Newest,
        Start::Time(Timestamp::parse("2026-01-08T00:00:00Z").unwrap()),
        Start::Entry("urn:8".into()),
    ] {
        let mut replay = Replay::new(url(RECENT), start);
        let (_, outcome) = walk_copies(&mut replay, &pages);
        outcome.unwrap();
    }
    // The page has turned over since the last look.
    let mut replay = Replay::new(url(RECENT), Start::Newest);
    walk_copies(&mut replay, &pages).1.unwrap();
    let later = [(RECENT, next + &entries(&[19, 18, 17]))];
    let (_, outcome) = walk_copies(&mut replay, &later);
    assert!(outcome.unwrap_err().is_gap());
}

/// Goal: a feed with an archive, or one that links to itself, is not taken for a page; a broken link to the next page is.
#[test]
fn what_is_no_page_is_the_feed() {
    let archived = [
        (
            RECENT,
            link("next", "href='x'") + &link("prev-archive", "href='1'") + &entries(&[2]),
        ),
        ("1", entries(&[1])),
    ];
    let (seen, outcome) = from_oldest(&archived);
    assert_eq!((seen, outcome), (vec![(1, 1), (2, 2)], Ok(())));
    let itself = [(
        RECENT,
        link("next", &format!("href='{RECENT}'")) + &entries(&[1]),
    )];
    assert_eq!(from_oldest(&itself).1, Ok(()));
    let broken = [(RECENT, link("Next", "href='http://[::1'") + &entries(&[1]))];
    assert!(from_oldest(&broken).1.unwrap_err().is_gap());
}

/// Goal: an entry that only the first copy of an archive has is a gap.
/// Method: two servers behind a balancer answer the way back and the way forward.
#[test]
fn copies_that_differ_are_a_gap() {
    let recent = (RECENT, link("prev-archive", "href='1'") + &entries(&[5, 4]));
    let pages = [
        recent.clone(),
        ("1", entries(&[3, 2, 1])),
        ("1", entries(&[3, 1])),
    ];
    let mut replay = Replay::new(url(RECENT), Start::Oldest);
    let (seen, outcome) = walk_copies(&mut replay, &pages);
    assert_eq!(
        seen,
        [(1, 1), (3, 3), (4, 4), (5, 5)],
        "what was seen is handed over"
    );
    assert_eq!(outcome, Err(WalkError::Deleted { entries: 1 }));
    replay.pass_gap();
    let (seen, outcome) = walk_copies(&mut replay, &pages);
    assert_eq!((seen, outcome), (vec![], Ok(())), "the gap is accepted");
    // A third copy that has it is asked for, past all caches.
    let pages = [
        recent,
        ("1", entries(&[3, 2, 1])),
        ("1", entries(&[3, 1])),
        ("1", entries(&[3, 2, 1])),
    ];
    let (seen, outcome) = from_oldest(&pages);
    assert_eq!((seen.len(), outcome), (5, Ok(())));
}

/// Goal: entries of a chain of archives that a second look leads past are a gap, above a known one.
#[test]
fn two_chains_are_a_gap() {
    let archive = |target: &str| link("prev-archive", &format!("href='{target}'"));
    let first = [
        (RECENT, archive("1") + &entries(&[4, 3])),
        ("1", entries(&[2, 1])),
    ];
    let mut replay = Replay::new(url(RECENT), Start::Oldest);
    walk_copies(&mut replay, &first).1.unwrap();
    // The first look leads to documents without the place, the second one to the place.
    let pages = [
        (RECENT, archive("9") + &entries(&[6, 5])),
        (RECENT, archive("9") + &entries(&[6, 5])),
        (RECENT, archive("1") + &entries(&[6, 5, 4])),
        ("9", entries(&[8, 7, 4])),
        ("1", entries(&[3, 2, 1])),
    ];
    let (seen, outcome) = walk_copies(&mut replay, &pages);
    assert_eq!(seen, [(5, 5), (6, 6)]);
    assert_eq!(outcome, Err(WalkError::Deleted { entries: 2 }));
}

/// Returns the bookmark after the entry of a number, as a process before this one has kept it.
fn stopped_at(mut replay: Replay, pages: &[Page<'_>], stop: u32) -> Start {
    loop {
        let ask = replay.ask().unwrap();
        let (_, inside) = pages.iter().find(|(name, _)| url(name) == ask.url).unwrap();
        let document = read(&ask.url, inside);
        let run = replay.take(document, &ask.url, Validators::default());
        let Some(run) = run.unwrap() else { continue };
        let is_last = |entry: &&RunEntry| {
            run.document.entry(entry.index).unwrap().id == format!("urn:{stop}")
        };
        if let Some(last) = run.entries.iter().find(is_last) {
            let kept = serde_json::to_string(&run.bookmark(last).unwrap()).unwrap();
            return Start::Bookmark(serde_json::from_str(&kept).unwrap());
        }
    }
}

/// Goal: a consumer that stopped within the recent document goes on there while an entry that it owes is left.
#[test]
fn a_stop_within_the_recent_document_is_no_gap() {
    let archive = link("prev-archive", "href='1'");
    for archive in [String::new(), archive] {
        let behind = ("1", entries(&[]));
        let first = [
            (RECENT, archive.clone() + &entries(&[3, 2, 1])),
            behind.clone(),
        ];
        let start = stopped_at(Replay::new(url(RECENT), Start::Oldest), &first, 1);
        for later in [[4, 3, 2].as_slice(), &[3, 2]] {
            let pages = [(RECENT, archive.clone() + &entries(later)), behind.clone()];
            let (seen, outcome) = walk_copies(&mut Replay::new(url(RECENT), start.clone()), &pages);
            let rest: Vec<(u32, u32)> = later.iter().rev().map(|n| (*n, *n)).collect();
            assert_eq!((seen, outcome), (rest, Ok(())));
        }
    }
}

/// Goal: a feed that was followed from its newest entry may give its archives other names: what is older than the
/// beginning is not owed.
#[test]
fn what_is_older_than_the_beginning_is_not_owed() {
    let archive = |target: &str| link("prev-archive", &format!("href='{target}'"));
    for start in [
        Start::Newest,
        Start::Time(Timestamp::parse("2026-01-05T00:00:00Z").unwrap()),
    ] {
        let mut replay = Replay::new(url(RECENT), start);
        let mut pages = vec![
            (RECENT, archive("2") + &entries(&[6, 5])),
            ("2", archive("1") + &entries(&[4, 3])),
            ("1", entries(&[2, 1])),
        ];
        walk_copies(&mut replay, &pages).1.unwrap();
        pages[0].1 = archive("3") + &entries(&[8, 7]);
        pages.push(("3", archive("2") + &entries(&[6, 5])));
        let (seen, outcome) = walk_copies(&mut replay, &pages);
        assert_eq!((seen, outcome), (vec![(7, 7), (8, 8)], Ok(())));
        // A server that lags by a cut answers twice, or the archives have other names.
        let stale = (RECENT, archive("2") + &entries(&[6, 5]));
        let mut lagging = vec![stale.clone(), stale];
        lagging.extend(pages.clone());
        let last = lagging
            .iter_mut()
            .filter(|(name, _)| *name == RECENT)
            .last();
        last.unwrap().1 = archive("3") + &entries(&[9, 8, 7]);
        let renamed = vec![
            (RECENT, archive("c") + &entries(&[10, 9, 8, 7])),
            ("c", archive("b") + &entries(&[6, 5])),
            ("b", archive("a") + &entries(&[4, 3])),
            ("a", entries(&[2, 1])),
        ];
        for (pages, new) in [(lagging, 9), (renamed, 10)] {
            let (seen, outcome) = walk_copies(&mut replay, &pages);
            assert_eq!((seen, outcome), (vec![(new, new)], Ok(())));
        }
    }
}

/// Goal: a feed at another URL, without its archive or with a broken link to it, is the same feed.
#[test]
fn a_feed_that_moves_is_followed() {
    let moved = |replay: &mut Replay, inside: &str| {
        let mut seen = vec![];
        while let Some(ask) = replay.ask() {
            assert!(ask.url == url(RECENT) || ask.url == url("moved"));
            let document = read(&url("moved"), inside);
            match replay.take(document, &url("moved"), Validators::default()) {
                Ok(run) => seen.extend(run.iter().flat_map(days)),
                Err(error) => return (seen, Err(error)),
            }
        }
        (seen, replay.next_round().map(drop))
    };
    let first = [
        (RECENT, link("prev-archive", "href='1'") + &entries(&[4, 3])),
        ("1", entries(&[2, 1])),
    ];
    let start = stopped_at(Replay::new(url(RECENT), Start::Oldest), &first, 4);
    for lost in ["", "<link rel='prev-archive' href='http://[::1'/>"] {
        let mut replay = Replay::new(url(RECENT), start.clone());
        let outcome = moved(&mut replay, &(lost.to_owned() + &entries(&[5, 4, 3])));
        assert_eq!(outcome, (vec![(5, 5)], Ok(())), "{lost}");
    }
}

/// Goal: an empty recent document that loses its link is no gap; one that has new entries at once may be one.
#[test]
fn an_empty_recent_document_may_lose_its_link() {
    let archive = link("prev-archive", "href='1'");
    let first = [(RECENT, archive), ("1", entries(&[2, 1]))];
    for (inside, is_gap) in [
        (String::new(), false),
        (entries(&[3, 2]), false),
        (entries(&[4]), true),
    ] {
        let mut replay = Replay::new(url(RECENT), Start::Oldest);
        walk_copies(&mut replay, &first).1.unwrap();
        let (_, outcome) = walk_copies(&mut replay, &[(RECENT, inside)]);
        assert_eq!(outcome.is_err_and(|error| error.is_gap()), is_gap);
    }
}

/// Goal: a recent document that leads past the document of a stop is a gap, and so is one that loses its link, and all that
/// the look has shown, while the walk is on its way.
#[test]
fn documents_that_vanish_are_a_gap() {
    let archive = |target: &str| link("prev-archive", &format!("href='{target}'"));
    let before = [
        (RECENT, archive("3") + &entries(&[8, 7])),
        ("3", archive("2") + &entries(&[6, 5])),
        ("2", archive("1") + &entries(&[4, 3])),
        ("1", entries(&[2, 1])),
    ];
    for stop in [3, 4] {
        let start = stopped_at(Replay::new(url(RECENT), Start::Oldest), &before, stop);
        let past = [
            (RECENT, archive("1") + &entries(&[8, 7])),
            ("1", entries(&[2, 1])),
        ];
        let (_, outcome) = walk_copies(&mut Replay::new(url(RECENT), start), &past);
        assert!(outcome.unwrap_err().is_gap());
    }
    // In the oldest document, with an entry of it that has moved up.
    let start = stopped_at(Replay::new(url(RECENT), Start::Oldest), &before, 2);
    let cut = [(RECENT, entry(1, 9) + &entries(&[8, 7]))];
    let (_, outcome) = walk_copies(&mut Replay::new(url(RECENT), start), &cut);
    assert!(outcome.unwrap_err().is_gap());
    for (broken, lost) in [
        (false, String::new()),
        (false, archive("1")),
        (true, link("prev-archive", "href='http://[::1'")),
    ] {
        let pages = [
            (RECENT, archive("1") + &entries(&[4, 3])),
            (RECENT, lost + &entries(&[8, 7])),
            ("1", entries(&[2, 1])),
        ];
        let (seen, outcome) = from_oldest(&pages);
        assert_eq!(seen, [(1, 1), (2, 2), (3, 3), (4, 4)], "what was shown");
        assert_eq!(outcome.as_ref().unwrap_err().is_gap(), !broken);
        if broken {
            is_broken(&outcome, "prev-archive");
        }
    }
}

/// Goal: where the oldest documents are dropped, and the place with them, that is a gap: an oldest document need not be
/// the one behind which nothing was.
#[test]
fn documents_that_are_dropped_are_a_gap() {
    let archive = |target: &str| link("prev-archive", &format!("href='{target}'"));
    let mut replay = Replay::new(url(RECENT), Start::Oldest);
    let single = [(RECENT, entries(&[2, 1]))];
    walk_copies(&mut replay, &single).1.unwrap();
    let dropped = [
        (RECENT, archive("9") + &entries(&[20, 19])),
        ("9", archive("8") + &entries(&[18, 17])),
        ("8", entries(&[16, 15])),
    ];
    assert!(walk_copies(&mut replay, &dropped).1.unwrap_err().is_gap());
    let before = [
        (RECENT, archive("3") + &entries(&[8, 7])),
        ("3", archive("2") + &entries(&[6, 5])),
        ("2", archive("1") + &entries(&[4, 3])),
        ("1", entries(&[2, 1])),
    ];
    let start = stopped_at(Replay::new(url(RECENT), Start::Oldest), &before, 2);
    let dropped = [before[0].clone(), ("3", entries(&[6, 5]))];
    let (_, outcome) = walk_copies(&mut Replay::new(url(RECENT), start.clone()), &dropped);
    assert!(outcome.unwrap_err().is_gap());
    // With the place left, nothing is missing.
    let left = [
        before[0].clone(),
        before[1].clone(),
        ("2", entries(&[4, 3, 2])),
    ];
    let (seen, outcome) = walk_copies(&mut Replay::new(url(RECENT), start), &left);
    assert_eq!((seen.len(), outcome), (6, Ok(())));
}

/// Goal: a feed that moves, and has none of its entries left, is a gap; one whose entries were all deleted before is not.
#[test]
fn where_a_consumer_stood_is_no_matter_of_urls() {
    let archive = link("prev-archive", "href='1'");
    let first = [
        (RECENT, archive.clone() + &entries(&[4, 3])),
        ("1", entries(&[2, 1])),
    ];
    let mut replay = Replay::new(url(RECENT), Start::Oldest);
    walk_copies(&mut replay, &first).1.unwrap();
    let mut gap = None;
    while let Some(ask) = replay.ask() {
        let document = read(&url("moved"), &(archive.clone() + &entries(&[8, 7])));
        assert!(ask.kind == AskKind::Recent, "{ask:?}");
        if let Err(error) = replay.take(document, &url("moved"), Validators::default()) {
            gap = Some(error);
            break;
        }
    }
    assert!(gap.is_some_and(|gap| gap.is_gap()));
    let mut replay = Replay::new(url(RECENT), Start::Oldest);
    for (inside, new) in [
        (entries(&[4, 3]), 4),
        (String::new(), 0),
        (entries(&[5]), 1),
    ] {
        let pages = [(RECENT, archive.clone() + &inside), first[1].clone()];
        let (seen, outcome) = walk_copies(&mut replay, &pages);
        assert_eq!((seen.len(), outcome), (new, Ok(())));
    }
}

/// Goal: a bookmark of an older program, which does not say where it stood, goes on; where it may hide a cut, it tells.
#[test]
fn an_older_bookmark_goes_on() {
    let archive = |target: &str| link("prev-archive", &format!("href='{target}'"));
    let before = [
        (RECENT, archive("3") + &entries(&[8, 7])),
        ("3", archive("2") + &entries(&[6, 5])),
        ("2", archive("1") + &entries(&[4, 3])),
        ("1", entries(&[2, 1])),
    ];
    for stop in 1..=8 {
        let start = stopped_at(Replay::new(url(RECENT), Start::Oldest), &before, stop);
        let Start::Bookmark(place) = start else {
            panic!()
        };
        let old = Start::Bookmark(Bookmark {
            stand: None,
            ..place
        });
        let rest: Vec<(u32, u32)> = (stop + 1..=8).map(|number| (number, number)).collect();
        let (seen, outcome) = walk_copies(&mut Replay::new(url(RECENT), old.clone()), &before);
        assert_eq!((seen, outcome), (rest, Ok(())), "{stop}");
        let cut = [(RECENT, entries(&[8, 7]))];
        let (_, outcome) = walk_copies(&mut Replay::new(url(RECENT), old), &cut);
        assert_eq!(outcome.is_err(), stop < 7, "{stop}: {outcome:?}");
    }
}

/// Goal: an entry that only a copy of the way forward shows, which is set aside for another one, is a gap.
/// Method: two servers have cut their archives at other places.
#[test]
fn a_copy_that_is_set_aside_is_a_gap() {
    let archive = |target: &str| link("prev-archive", &format!("href='{target}'"));
    let recent = (RECENT, archive("2") + &entries(&[12, 11]));
    let (first, second) = (
        archive("1") + &entries(&[10, 9, 8, 7, 6]),
        archive("1") + &entries(&[6, 5, 4]),
    );
    let pages = [
        recent.clone(),
        recent,
        ("2", first.clone()),
        ("2", second),
        ("2", first),
        ("1", entries(&[3, 2, 1])),
    ];
    let (seen, outcome) = from_oldest(&pages);
    assert_eq!(seen.len(), 10);
    assert_eq!(outcome, Err(WalkError::Deleted { entries: 2 }));
}
