//! Feeds that others wrote: nothing but ids and links, and links that lead in odd ways.
//!
//! Pure.

use super::*;

/// What is added to the number of an entry that comes again, revised.
const REVISED: usize = 100;

/// A document: as it is asked for, where it comes from, its links, its entries, newest first.
type Page = (&'static str, &'static str, &'static str, &'static [usize]);

fn read(url: &Url, links: &str, newest_first: &[usize]) -> Document {
    let entries: String = newest_first.iter().fold(String::new(), |text, n| {
        text + &format!(
            "<entry><id>urn:{}</id><updated>1970-01-01T{:02}:{:02}:00Z</updated></entry>",
            n % REVISED,
            n / 60,
            n % 60
        )
    });
    let links = links
        .replace("prev=", "<link rel='prev-archive' href=")
        .replace("next=", "<link rel='next-archive' href=")
        .replace("via=", "<link rel='via' href=")
        .replace(';', "/>")
        .replace(
            "archive!",
            "<h:archive xmlns:h='http://purl.org/syndication/history/1.0'/>",
        );
    let text =
        format!("<feed xmlns='http://www.w3.org/2005/Atom'><id>urn:f</id>{links}{entries}</feed>");
    Document::read(text.into_bytes().into(), url).unwrap()
}

/// Walks over pages to the end. Returns the numbers handed over, the requests, and the outcome.
fn walk_pages(pages: &[Page], start: Start) -> (Vec<usize>, usize, Result<(), WalkError>) {
    let replay = Replay::new(url(RECENT), start).documents_max(100);
    let mut replay = replay.revisions(true);
    let mut seen = vec![];
    for requests in 0..1_000 {
        let Some(ask) = replay.ask() else {
            return (seen, requests, Ok(()));
        };
        let found = pages
            .iter()
            .find(|(asked, at, ..)| url(asked) == ask.url || url(at) == ask.url);
        let outcome = match found {
            None => replay.missing().map(|()| None),
            Some((_, at, links, entries)) => {
                let document = read(&url(at), links, entries);
                replay.take(document, &url(at), Validators::default())
            }
        };
        match outcome {
            Ok(run) => seen.extend(run.iter().flat_map(numbers)),
            Err(error) => return (seen, requests, Err(error)),
        }
    }
    panic!("the walk does not end: {pages:?}");
}

#[track_caller]
fn check(pages: &[Page], start: Start, expected: &[usize]) {
    let (seen, _, outcome) = walk_pages(pages, start);
    assert_eq!((seen, outcome), (expected.to_vec(), Ok(())));
}

fn after(last: usize, document: &str) -> Start {
    Start::Bookmark(Bookmark {
        feed: "urn:f".into(),
        entry: Some(format!("urn:{last}")),
        document: Some(url(document)),
        ..Bookmark::default()
    })
}

/// The URL that a link names and the one a redirect leads to are one document.
#[test]
fn archives_behind_redirects() {
    let pages: [Page; 3] = [
        (RECENT, RECENT, "prev='2';", &[6, 5]),
        ("2", "2/", "prev='../1';", &[4, 3]),
        ("1", "1/", "", &[2, 1]),
    ];
    check(&pages, Start::Oldest, &[1, 2, 3, 4, 5, 6]);
    check(&pages, after(3, "2/"), &[4, 5, 6]);
}

#[test]
fn an_archive_without_entries() {
    let pages: [Page; 3] = [
        (RECENT, RECENT, "prev='2';", &[4, 3]),
        ("2", "2", "prev='1';", &[]),
        ("1", "1", "", &[2, 1]),
    ];
    check(&pages, Start::Oldest, &[1, 2, 3, 4]);
    check(&pages, after(1, "1"), &[2, 3, 4]);
}

/// FH-13: a revised entry comes again with its old id, and hides none of those around it.
#[test]
fn a_revision_is_no_place() {
    let in_the_next: [Page; 2] = [
        (RECENT, RECENT, "prev='1';", &[4, REVISED + 2, 3]),
        ("1", "1", "", &[2, 1]),
    ];
    check(&in_the_next, Start::Oldest, &[1, 2, 3, 2, 4]);
    let far_on: [Page; 3] = [
        (RECENT, RECENT, "prev='2';", &[REVISED + 1, 6]),
        ("2", "2", "prev='1';", &[5, 4, 3]),
        ("1", "1", "", &[2, 1]),
    ];
    check(&far_on, after(1, "1"), &[2, 3, 4, 5, 6, 1]);
}

/// ICT4H's documents list their oldest entry first; one entry, or dates that say nothing, have no order.
#[test]
fn documents_that_begin_with_their_oldest_entry() {
    let pages: [Page; 4] = [
        (RECENT, RECENT, "prev='3';", &[8]),
        ("3", "3", "prev='2';next='recent.atom';", &[5, 6, 7]),
        ("2", "2", "prev='1';next='3';", &[3, 4]),
        ("1", "1", "next='2';", &[1, 2]),
    ];
    check(&pages, Start::Oldest, &[1, 2, 3, 4, 5, 6, 7, 8]);
    let turned = |last, document| match after(last, document) {
        Start::Bookmark(bookmark) => Start::Bookmark(Bookmark {
            oldest_first: true,
            ..bookmark
        }),
        other => other,
    };
    check(&pages, turned(3, "2"), &[4, 5, 6, 7, 8]);
    check(&pages, after(6, "3"), &[7, 8]);
    let up_and_down: [Page; 1] = [(RECENT, RECENT, "", &[3, 1, 4])];
    check(&up_and_down, Start::Oldest, &[4, 1, 3]);
}

/// The newest entry of such a document is the pinned end, and the place to go on from.
#[test]
fn a_document_that_begins_with_its_oldest_entry_grows() {
    let before: [Page; 1] = [(RECENT, RECENT, "", &[1, 2, 3])];
    check(&before, Start::Newest, &[]);
    let now: [Page; 1] = [(RECENT, RECENT, "", &[1, 2, 3, 4])];
    check(&now, after(2, RECENT), &[3, 4]);
}

/// Dates that happen to rise in one document decide the order of its own entries only, never of another
/// document's.
#[test]
fn one_odd_document_does_not_turn_a_feed_round() {
    let pages: [Page; 3] = [
        (RECENT, RECENT, "prev='2';", &[8, 7, 6]),
        ("2", "2", "prev='1';", &[3, 4, 5]),
        ("1", "1", "", &[2, 1]),
    ];
    check(&pages, Start::Oldest, &[1, 2, 3, 4, 5, 6, 7, 8]);
    let two: [Page; 2] = [
        (RECENT, RECENT, "prev='1';", &[5, 4]),
        ("1", "1", "", &[1, REVISED]),
    ];
    check(&two, Start::Oldest, &[0, 1, 4, 5]);
}

/// ICT4H's entries are known by their ids, even where a burst has one date.
#[test]
fn entries_of_one_second_have_an_order() {
    let document = |numbers: std::ops::RangeInclusive<u32>| {
        let entries = numbers.fold(String::new(), |entries, number| {
            entries
                + &format!(
                    "<entry><id>tag:atomfeed.ict4h.org:{number}</id>\
                     <updated>2026-01-01T00:00:00Z</updated></entry>"
                )
        });
        let text =
            format!("<feed xmlns='http://www.w3.org/2005/Atom'><id>x+1</id>{entries}</feed>");
        Document::read(text.into_bytes().into(), &url(RECENT)).unwrap()
    };
    let mut replay = Replay::new(url(RECENT), Start::Oldest);
    let mut seen: Vec<String> = vec![];
    for end in [2, 4] {
        while replay.ask().is_some() {
            let run = replay.take(document(1..=end), &url(RECENT), Validators::default());
            let run = run.unwrap().unwrap();
            let ids = run
                .entries
                .iter()
                .map(|entry| run.document.entry(entry.index).unwrap().id);
            seen.extend(ids.map(|id| id.rsplit(':').next().unwrap().to_owned()));
        }
        replay.next_round().unwrap();
    }
    assert_eq!(seen, ["1", "2", "3", "4"]);
}

/// Atom Hopper's `next-archive` leads to what is older, its `prev-archive` to what is newer.
#[test]
fn archive_links_the_wrong_way_round() {
    let pages: [Page; 3] = [
        (RECENT, RECENT, "next='2';", &[6, 5]),
        ("2", "2", "archive!prev='recent.atom';next='1';", &[4, 3]),
        ("1", "1", "archive!prev='2';", &[2, 1]),
    ];
    check(&pages, Start::Oldest, &[1, 2, 3, 4, 5, 6]);
    check(&pages, after(2, "1"), &[3, 4, 5, 6]);
    check(&pages, after(3, "2"), &[4, 5, 6]);
    check(&pages, after(6, RECENT), &[]);
}

/// Links that lead forward from the document given are no links back.
#[test]
fn the_oldest_document_is_not_taken_for_the_recent_one() {
    let page = |url: &Url, updated: u8, links: &str| {
        let text = format!(
            "<feed xmlns='http://www.w3.org/2005/Atom'><id>urn:f</id>{links}\
             <updated>2026-01-0{updated}T00:00:00Z</updated>\
             <entry><id>urn:{updated}</id></entry></feed>"
        );
        Document::read(text.into_bytes().into(), url).unwrap()
    };
    let (seen, _, outcome) = replay_of(Start::Oldest, |ask| {
        Some(match ask.kind {
            AskKind::Recent => page(&ask.url, 1, "<link rel='next-archive' href='2'/>"),
            _ => page(&ask.url, 2, "<link rel='prev-archive' href='recent.atom'/>"),
        })
    });
    assert_eq!(outcome, Err(WalkError::Backwards { url: url("2") }));
    assert!(seen.is_empty());
}

/// Each of ICT4H's documents has an id of its own, which differs by a number at its end. One that differs
/// by more is another feed, and so is any other one of ours.
#[test]
fn a_number_at_the_end_of_a_feeds_id_is_the_documents() {
    let document = |id: &str, history: &str| {
        let text =
            format!("<feed xmlns='http://www.w3.org/2005/Atom'><id>{id}</id>{history}</feed>");
        Document::read(text.into_bytes().into(), &url(RECENT)).unwrap()
    };
    let id = "http://h/feed/patients+";
    for (other, same) in [
        ("http://h/feed/patients+12", true),
        ("http://h/feed/patients+1", true),
        ("http://h/feed/patients+", false),
        ("http://h/feed/visits+2", false),
        ("http://h/feed/patients/12", false),
        ("2", false),
    ] {
        let found = is_same_feed(&format!("{id}1"), &document(other, ""));
        assert_eq!(found, same, "{other}");
    }
    // Only behind a plus sign: feeds that are numbered themselves are many.
    assert!(!is_same_feed(
        "http://h/feeds/1",
        &document("http://h/feeds/2", "")
    ));
    let positions = format!(
        "<history xmlns='urn:simplefeed:1' first='1' before='{}'/>",
        "0".repeat(64)
    );
    assert!(!is_same_feed("urn:f:1", &document("urn:f:2", &positions)));
}

/// Replays pages as they are at each of several looks; returns what each handed over.
fn replay_looks(looks: &[&[Page]], revisions: bool) -> Vec<Vec<usize>> {
    let mut replay = Replay::new(url(RECENT), Start::Oldest).revisions(revisions);
    let mut handed_over = vec![];
    for pages in looks {
        let mut seen = vec![];
        while let Some(ask) = replay.ask() {
            let (_, at, links, entries) = *pages
                .iter()
                .find(|(asked, ..)| url(asked) == ask.url)
                .unwrap();
            let document = read(&url(at), links, entries);
            let run = replay.take(document, &url(at), Validators::default());
            seen.extend(run.unwrap().iter().flat_map(numbers));
        }
        replay.next_round().unwrap();
        handed_over.push(seen);
    }
    handed_over
}

/// FH-10, FH-13: what stands in two documents is handed over once; what was revised, again if wanted.
#[test]
fn documents_may_overlap() {
    let first: [Page; 2] = [
        (RECENT, RECENT, "prev='1';", &[4, 3, 2]),
        ("1", "1", "", &[3, 2, 1]),
    ];
    let second: [Page; 2] = [
        (RECENT, RECENT, "prev='1';", &[5, REVISED + 1, 4, 3]),
        first[1],
    ];
    let looks: [&[Page]; 3] = [&first, &second, &second];
    let once = [vec![1, 2, 3, 4], vec![5], vec![]];
    assert_eq!(replay_looks(&looks, false), once);
    let again = [vec![1, 2, 3, 4], vec![1, 5], vec![]];
    assert_eq!(replay_looks(&looks, true), again);
}

/// FH-9: the newest archive need not lead on to the recent document, and no archive need lead forward at all.
#[test]
fn a_way_forward_that_ends_before_the_recent_document() {
    let pages: [Page; 4] = [
        (RECENT, RECENT, "prev='3';", &[8, 7]),
        ("3", "3", "archive!prev='2';", &[6, 5]),
        ("2", "2", "archive!prev='1';next='3';", &[4, 3]),
        ("1", "1", "archive!next='2';", &[2, 1]),
    ];
    check(&pages, Start::Oldest, &[1, 2, 3, 4, 5, 6, 7, 8]);
    for last in 1..8 {
        let document = ["1", "2", "3", RECENT][(last - 1) / 2];
        let rest: Vec<usize> = (last + 1..=8).collect();
        check(&pages, after(last, document), &rest);
    }
    let backwards_only: [Page; 4] = [
        (RECENT, RECENT, "prev='3';", &[8, 7]),
        ("3", "3", "archive!prev='2';", &[6, 5]),
        ("2", "2", "archive!prev='1';", &[4, 3]),
        ("1", "1", "archive!", &[2, 1]),
    ];
    for last in 1..8 {
        let document = ["1", "2", "3", RECENT][(last - 1) / 2];
        let rest: Vec<usize> = (last + 1..=8).collect();
        check(&backwards_only, after(last, document), &rest);
    }
}

/// RFC 4287, 4.2.7.2: `via` leads to where a feed's information comes from.
#[test]
fn via_is_another_thing_in_foreign_feeds() {
    let pages: [Page; 2] = [
        (RECENT, RECENT, "via='page.html';prev='1';", &[4, 3]),
        ("1", "1", "", &[2, 1]),
    ];
    check(&pages, Start::Oldest, &[1, 2, 3, 4]);
}

/// Goal: archives that say so are fetched once on the way back and once on the way forward.
#[test]
fn marked_archives_are_not_asked_for_again() {
    const NAMES: [&str; 4] = ["1", "2", "3", "4"];
    let pages: Vec<Page> = vec![
        (RECENT, RECENT, "prev='4';", &[5]),
        (NAMES[3], NAMES[3], "archive!prev='3';", &[4]),
        (NAMES[2], NAMES[2], "archive!prev='2';", &[3]),
        (NAMES[1], NAMES[1], "archive!prev='1';", &[2]),
        (NAMES[0], NAMES[0], "archive!", &[1]),
    ];
    let (seen, requests, outcome) = walk_pages(&pages, Start::Oldest);
    assert_eq!((seen, outcome), (vec![1, 2, 3, 4, 5], Ok(())));
    // Recent, 4 3 2 1 back, 2 3 4 forward, recent, and recent once more past all caches.
    assert!(requests <= 10, "{requests}");
}

/// A feed that has moved here: what it had before has no positions.
#[test]
fn positions_may_begin_somewhere() {
    let mut feed = Feed::new(2);
    feed.append(7);
    let (seen, _, outcome) = walk(Start::Entry("urn:0".into()), |ask| {
        let text = feed.text(ask.url.as_str().strip_prefix(BASE)?)?;
        let text = match ask.kind {
            AskKind::Recent => text,
            _ => text.replace("<history", "<nothing"),
        };
        Some(Document::read(text.into_bytes().into(), &ask.url).unwrap())
    });
    assert_eq!((seen, outcome), ((1..7).collect(), Ok(())));
}

/// A bookmark that somebody wrote by hand may have a position and no hash.
#[test]
fn a_position_without_a_hash_is_no_gap() {
    let mut before = Feed::new(3);
    before.append(4);
    let mut now = before.clone();
    now.append(5);
    let bookmark = Bookmark {
        history: None,
        document: None,
        ..bookmark_after(&now, 6)
    };
    let (seen, _, outcome) = walk(Start::Bookmark(bookmark), |ask| {
        match (ask.kind, ask.again) {
            (AskKind::Recent, false) => before.get(&ask.url),
            _ => now.get(&ask.url),
        }
    });
    assert_eq!((seen, outcome), (vec![7, 8], Ok(())));
}

#[test]
fn the_way_forward_has_a_bound() {
    let mut feed = Feed::new(1);
    feed.append(3);
    let bookmark = bookmark_after(&feed, 0);
    feed.append(147);
    let (seen, _, outcome) = walk(Start::Bookmark(bookmark), |ask| feed.get(&ask.url));
    assert_eq!(outcome, Err(WalkError::TooMany { max: 100 }));
    assert!(seen.len() <= 100);
}

/// An index that leads in a circle, or to a document that is gone, costs requests.
#[test]
fn a_broken_index_is_no_broken_feed() {
    let mut feed = Feed::new(2);
    feed.append(9);
    let honest = feed.index("index.json", 100, 0).unwrap();
    let circle = IndexBlock {
        prev: Some("index.json".into()),
        documents: vec![],
        ..honest.clone()
    };
    let mut gone = honest;
    gone.documents[0].href = "gone.atom".into();
    for block in [circle, gone] {
        let (seen, _, outcome) = walk_by_index(
            Start::Oldest,
            |ask| feed.get(&ask.url),
            |_| Some(block.clone()),
        );
        assert_eq!((seen, outcome), ((0..9).collect(), Ok(())), "{block:?}");
    }
}

/// An entry that is edited and moves up hides none of those below it; one that is put in below the newest is
/// new; a revision in place is handed over where that is wanted.
#[test]
fn whatever_was_not_handed_over_is() {
    let looks: [&[Page]; 5] = [
        &[(RECENT, RECENT, "", &[3, 2, 1])],
        &[(RECENT, RECENT, "", &[REVISED + 3, 4, 2, 1])],
        &[(RECENT, RECENT, "", &[REVISED + 3, 4, 5, 2, 6])],
        &[(RECENT, RECENT, "", &[REVISED + 3, REVISED + 4, 5])],
        &[(RECENT, RECENT, "", &[5, REVISED + 4, 1])],
    ];
    let once = [vec![1, 2, 3], vec![4], vec![6, 5], vec![], vec![]];
    assert_eq!(replay_looks(&looks, false), once);
    let again = [vec![1, 2, 3], vec![4, 3], vec![6, 5], vec![4], vec![]];
    assert_eq!(replay_looks(&looks, true), again);
    // The same where the place was read in the recent document and there are archives since.
    let looks: [&[Page]; 2] = [
        &[(RECENT, RECENT, "", &[3, 2, 1])],
        &[
            (RECENT, RECENT, "prev='1';", &[REVISED + 3, 5]),
            ("1", "1", "archive!", &[4, 2, 1]),
        ],
    ];
    assert_eq!(replay_looks(&looks, false), [vec![1, 2, 3], vec![4, 5]]);
}

/// Posts that were saved again, newest first, have dates that rise: by chance, and not for good.
#[test]
fn dates_that_rise_by_chance_stop_nobody() {
    let looks: [&[Page]; 4] = [
        &[(RECENT, RECENT, "", &[1, 2, 3])],
        &[(RECENT, RECENT, "", &[4, 1, 2, 3])],
        &[(RECENT, RECENT, "", &[5, 4, 1, 2])],
        &[(RECENT, RECENT, "", &[6, 5, 4])],
    ];
    let expected = [vec![1, 2, 3], vec![4], vec![5], vec![6]];
    assert_eq!(replay_looks(&looks, false), expected);
}
