//! Feeds that others wrote: nothing but ids and links, and links that lead in odd ways.
//!
//! Pure.

use super::*;

/// A document: as it is asked for, where it comes from, its links, its entries, newest first.
type Page = (&'static str, &'static str, &'static str, &'static [usize]);

fn read(url: &Url, links: &str, newest_first: &[usize]) -> Document {
    let entries: String = newest_first.iter().fold(String::new(), |text, n| {
        text + &format!(
            "<entry><id>urn:{n}</id><updated>1970-01-01T00:00:{:02}Z</updated></entry>",
            n + 2
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
    let mut walk = Walk::new(url(RECENT), start).documents_max(100);
    let mut seen = vec![];
    for requests in 0..1_000 {
        let Some(ask) = walk.ask() else {
            return (seen, requests, Ok(()));
        };
        let found = pages
            .iter()
            .find(|(asked, at, ..)| url(asked) == ask.url || url(at) == ask.url);
        let outcome = match found {
            None => walk.missing().map(|()| None),
            Some((_, at, links, entries)) => walk.take(read(&url(at), links, entries), &url(at)),
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
        (RECENT, RECENT, "prev='1';", &[4, 2, 3]),
        ("1", "1", "", &[2, 1]),
    ];
    check(&in_the_next, Start::Oldest, &[1, 2, 3, 2, 4]);
    let far_on: [Page; 3] = [
        (RECENT, RECENT, "prev='2';", &[1, 6]),
        ("2", "2", "prev='1';", &[5, 4, 3]),
        ("1", "1", "", &[2, 1]),
    ];
    check(&far_on, after(1, "1"), &[2, 3, 4, 5, 6, 1]);
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
