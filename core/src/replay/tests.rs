use std::collections::HashMap;

use uuid::Uuid;

use super::{
    places::{bookmark, count, hash_entries},
    walk::is_closed,
    *,
};
use crate::{
    document::feed_document,
    event,
    feed::{Epoch, FeedId, FeedName},
    header::{DocumentForm, RECENT, header},
    index::{IndexBlock, IndexedDocument},
    plan::{FeedState, Opening, Stamp, give_ids, plan, plan_creation},
    settings::{Choices, Defaults, Settings},
    timestamp::Timestamp,
};

mod faults;
mod faulty;
mod foreign;
mod growing;
mod model;
mod simulation;

const BASE: &str = "http://h/feeds/a/";

/// A feed as a server would show it, made by the same plan, header and document.
#[derive(Clone)]
#[expect(clippy::struct_excessive_bools, reason = "four kinds of feeds")]
struct Feed {
    state: FeedState,
    fragments: Vec<Vec<u8>>,
    openings: Vec<Opening>,
    instant: Timestamp,
    epoch: Epoch,
    numbered: bool,
    /// Whether it is a timeline: its documents have positions without hashes, and all entries have the same id.
    is_timeline: bool,
    /// Whether archived documents link forward, and say that they are archived.
    links_forward: bool,
    marks_archives: bool,
}

impl Feed {
    fn new(document_entries: u32) -> Self {
        let settings = Settings {
            name: FeedName::parse("a").unwrap(),
            id: FeedId::of_uuid(Uuid::from_u128(7)),
            choices: std::sync::Arc::new(Choices {
                document_entries: Some(document_entries),
                ..Choices::default()
            }),
            defaults: Defaults::new("http://h").into(),
            sup_id: None,
            was_closed: false,
            timeline: None,
        };
        let instant = Timestamp::from_micros(1_000_000);
        let plan = plan_creation(settings, stamp(instant, Epoch::FIRST));
        let openings = vec![plan.state.head.open.opening];
        let (state, fragments) = (plan.state, vec![]);
        Self {
            state,
            fragments,
            openings,
            instant,
            epoch: Epoch::FIRST,
            numbered: true,
            is_timeline: false,
            links_forward: true,
            marks_archives: true,
        }
    }

    fn append(&mut self, count: usize) {
        for _ in 0..count {
            self.instant = self.instant.plus_micros(1_000_000);
            let line = format!("{{\"id\":\"urn:{}\"}}", self.fragments.len());
            let mut drafts = event::from_json(line.as_bytes()).unwrap();
            give_ids(&mut drafts, self.state.head.feed, None, Uuid::nil);
            let defaults = self.state.settings.defaults.clone();
            let known = HashMap::new();
            let planned = plan(
                &self.state,
                &drafts,
                &known,
                &defaults,
                stamp(self.instant, self.epoch),
            )
            .unwrap();
            for change in &planned.changes {
                if let crate::commit::Change::Entry { fragment, .. } = change {
                    self.fragments.push(fragment.to_vec());
                }
            }
            if planned.state.head.open.opening.name != self.state.head.open.opening.name {
                self.openings.push(planned.state.head.open.opening);
            }
            self.state = planned.state;
        }
    }

    /// Returns the feed as it is restored from a backup made when it had `kept` entries.
    fn restored(&self, kept: usize) -> Self {
        let mut feed = Self::new(self.state.settings.cut_policy().entries);
        feed.append(kept);
        // Later entries have the same ids, and are others.
        feed.instant = feed.instant.plus_micros(1_000);
        feed.epoch = Epoch(feed.epoch.0 + 1);
        let head = &mut feed.state.head;
        let renamed = head.renamed();
        head.apply(&renamed, feed.instant, feed.instant, feed.epoch);
        *feed.openings.last_mut().unwrap() = head.open.opening;
        feed
    }

    /// Returns a block of an archive index that lists all but the `lag` newest archived documents,
    /// in closed blocks of `size`.
    fn index(&self, name: &str, size: usize, lag: usize) -> Option<IndexBlock> {
        let archived = self.openings.len() - 1;
        let listed = archived.saturating_sub(lag);
        let block = match name {
            "index.json" => listed / size,
            name => name
                .strip_prefix("index-")?
                .strip_suffix(".json")?
                .parse()
                .ok()?,
        };
        let documents = (block * size + 1..=listed).take(size).map(|number| {
            let document = self.get(&url(&format!("{number}.atom"))).unwrap();
            IndexedDocument {
                href: format!("{number}.atom"),
                first: document.history.unwrap().0.0,
                entries: count(document.len()),
                opened: String::new(),
                updated: document.updated.unwrap().to_string(),
                sha256: crate::digest::Digest::of(b""),
            }
        });
        Some(IndexBlock {
            feed: self.state.settings.id.to_string(),
            prev: block
                .checked_sub(1)
                .map(|before| format!("index-{before}.json")),
            documents: documents.collect(),
        })
    }

    fn text(&self, name: &str) -> Option<String> {
        let called =
            |opening: &Opening| [opening.name, opening.linked].map(|own| own.to_string() == name);
        let number = match name {
            RECENT => self.openings.len(),
            _ => 1 + (self.openings.iter()).position(|opening| called(opening).contains(&true))?,
        };
        let opening = self.openings.get(number - 1)?;
        let next = self.openings.get(number);
        let first = usize::try_from(opening.first.0).unwrap();
        let end = next.map_or(self.fragments.len(), |next| {
            usize::try_from(next.first.0).unwrap()
        });
        let form = match (name, next) {
            (RECENT, _) => DocumentForm::Recent,
            (_, None) => DocumentForm::Open,
            (_, Some(next)) => DocumentForm::Archived { next: next.linked },
        };
        let updated = Timestamp::from_micros(1_000_000 * (1 + i64::try_from(end).unwrap()));
        let head = header(opening, &self.state.settings, form, updated);
        let bytes = feed_document(&head, &self.fragments[first..end]);
        let text = String::from_utf8(bytes.to_vec()).unwrap();
        let mut text = text;
        if self.is_timeline {
            let before = format!(" before=\"{}\"", opening.before);
            text = text.replace(&before, "");
            for number in first..end {
                let id = format!("<id>urn:{number}</id>");
                text = text.replace(&id, "<id>urn:same</id>");
            }
        }
        for (kept, what) in [
            (self.numbered, "<history"),
            (self.links_forward, "<link rel=\"next-archive\""),
            (self.marks_archives, "<fh:archive"),
        ] {
            if !kept {
                assert!(text.contains(what) || self.openings.len() == number);
                text = text.replace(what, "<nothing");
            }
        }
        Some(text)
    }

    fn get(&self, url: &Url) -> Option<Document> {
        let text = self.text(url.as_str().strip_prefix(BASE)?)?;
        Some(Document::read(text.into_bytes().into(), url).unwrap())
    }
}

fn stamp(instant: Timestamp, epoch: Epoch) -> Stamp {
    Stamp {
        instant,
        entries_before: 0,
        epoch,
    }
}

fn url(name: &str) -> Url {
    format!("{BASE}{name}").parse().unwrap()
}

/// Walks to the end, with `get` as the network, without an index. Returns the numbers handed over, and the bookmark.
fn walk(
    start: Start,
    get: impl FnMut(&Ask) -> Option<Document>,
) -> (Vec<usize>, Walk, Result<(), WalkError>) {
    walk_by_index(start, get, |_| None)
}

/// Walks to the end, with `get` and `index` as the network.
fn walk_by_index(
    start: Start,
    mut get: impl FnMut(&Ask) -> Option<Document>,
    mut index: impl FnMut(&Ask) -> Option<IndexBlock>,
) -> (Vec<usize>, Walk, Result<(), WalkError>) {
    let mut walk = Walk::new(url(RECENT), start).documents_max(100);
    let mut seen = vec![];
    for _ in 0..1_000 {
        let Some(ask) = walk.ask() else {
            return (seen, walk, Ok(()));
        };
        let outcome = if ask.kind == AskKind::Index {
            match index(&ask) {
                Some(block) => walk.take_index(&block, &ask.url).map(|()| None),
                None => walk.missing().map(|()| None),
            }
        } else {
            match get(&ask) {
                Some(document) => walk.take_redirected(document, &ask),
                None => walk.missing().map(|()| None),
            }
        };
        match outcome {
            Ok(run) => seen.extend(run.iter().flat_map(numbers)),
            Err(error) => return (seen, walk, Err(error)),
        }
    }
    panic!("the walk does not end");
}

/// As [`walk`], also for a plain feed.
fn replay_of(
    start: Start,
    mut get: impl FnMut(&Ask) -> Option<Document>,
) -> (Vec<usize>, Replay, Result<(), WalkError>) {
    let mut replay = Replay::new(url(RECENT), start).documents_max(100);
    let mut seen = vec![];
    for _ in 0..1_000 {
        let Some(ask) = replay.ask() else {
            return (seen, replay, Ok(()));
        };
        let outcome = match get(&ask) {
            Some(document) => replay.take(document, &ask.url, Validators::default()),
            None => replay.missing().map(|()| None),
        };
        match outcome {
            Ok(run) => seen.extend(run.iter().flat_map(numbers)),
            Err(error) => return (seen, replay, Err(error)),
        }
    }
    panic!("the walk does not end");
}

impl Walk {
    /// Takes a document, retrieved from the name that a new epoch gave it if it has one.
    fn take_redirected(
        &mut self,
        document: Document,
        ask: &Ask,
    ) -> Result<Option<EntryRun>, WalkError> {
        let renamed = !document.epoch.is_first() && ask.kind == AskKind::Document;
        let own = document.link("self").filter(|_| renamed).cloned();
        self.take(document, &own.unwrap_or_else(|| ask.url.clone()))
    }
}

fn numbers(run: &EntryRun) -> Vec<usize> {
    let entries = run.entries.iter();
    entries
        .map(|entry| number_of(&run.document, entry.index))
        .collect()
}

/// Returns the number of an entry, by its title: in a timeline, ids repeat.
fn number_of(document: &Document, index: usize) -> usize {
    let entry = document.entry(index).unwrap();
    let text = std::str::from_utf8(entry.fragment).unwrap();
    let title = text.split("<title>urn:").nth(1);
    let number = match title {
        Some(title) => title.split('<').next(),
        // Simulated feeds of others have no titles.
        None => entry.id.strip_prefix("urn:"),
    };
    number.unwrap().parse().unwrap()
}

/// Returns the bookmark a consumer has after accepting entry `last`, found at its permanent URL.
fn bookmark_after(feed: &Feed, last: usize) -> Bookmark {
    let holder = feed
        .openings
        .iter()
        .rfind(|opening| opening.first.0 <= u64::try_from(last).unwrap())
        .unwrap();
    let document = url(&holder.name.to_string());
    let read = feed.get(&document).unwrap();
    let mut indexes = 0..read.len();
    let index = indexes
        .find(|index| number_of(&read, *index) == last)
        .unwrap();
    let after = read.len() - index;
    let place = read.history.map(|(first, before)| {
        (
            Position(first.0 + count(after) - 1),
            before.map(|before| hash_entries(&read, before, after)),
        )
    });
    bookmark(&read, &document, &RunEntry { index, place }).unwrap()
}

/// Goal: no entry is lost or repeated, whatever the document size and the place.
/// Method: every feed of up to 12 entries in documents of 1 to 5, with every bookmark, taken when
/// the feed ended anywhere before, with and without positions.
#[test]
fn a_walk_hands_over_exactly_what_is_newer() {
    for size in 1..=5 {
        for end in 0..=12_usize {
            for (numbered, is_timeline) in [(true, false), (false, false), (true, true)] {
                let mut feed = Feed::new(size);
                feed.numbered = numbered;
                feed.is_timeline = is_timeline;
                feed.append(end);
                let get = |ask: &Ask| feed.get(&ask.url);
                let all: Vec<usize> = (0..end).collect();
                assert_eq!(walk(Start::Oldest, get).0, all, "size {size}, end {end}");
                assert_eq!(walk(Start::Newest, get).0, Vec::<usize>::new());
                for last in 0..end {
                    if !is_timeline {
                        let start = Start::Entry(format!("urn:{last}"));
                        assert_eq!(
                            walk(start, get).0,
                            all[last + 1..],
                            "size {size}, {last} of {end}"
                        );
                    }
                    for grown in 0..=4 {
                        let mut feed = feed.clone();
                        let bookmark = bookmark_after(&feed, last);
                        feed.append(grown);
                        let expected: Vec<usize> = (last + 1..end + grown).collect();
                        let (seen, walked, outcome) =
                            walk(Start::Bookmark(bookmark), |ask| feed.get(&ask.url));
                        assert_eq!(
                            (seen, outcome),
                            (expected, Ok(())),
                            "size {size}, {last} of {end}+{grown}"
                        );
                        let newest = format!("urn:{}", end + grown - 1);
                        let reached = walked.bookmark().unwrap();
                        assert!(is_timeline || reached.entry.as_ref() == Some(&newest));
                        let newest = Position(count(end + grown - 1));
                        assert!(!numbered || reached.position == Some(newest));
                    }
                }
            }
        }
    }
}

/// Goal: growth and cuts in mid-walk lose and repeat nothing; the end is where it was at the start.
/// Method: one or two entries are appended before every single answer.
#[test]
fn a_walk_is_right_while_the_feed_grows() {
    for size in 1..=5 {
        for end in 1..=12_usize {
            for (growth, is_timeline) in [(1, false), (2, false), (1, true), (2, true)] {
                let mut feed = Feed::new(size);
                feed.is_timeline = is_timeline;
                feed.append(end);
                let mut first = true;
                let (seen, _, outcome) = walk(Start::Oldest, |ask| {
                    if !std::mem::take(&mut first) {
                        feed.append(growth);
                    }
                    feed.get(&ask.url)
                });
                let expected: Vec<usize> = (0..end).collect();
                assert_eq!(
                    (seen, outcome),
                    (expected, Ok(())),
                    "size {size}, end {end}, growth {growth}"
                );
            }
        }
    }
}

/// Goal: where the entry at the place has another id than the bookmark says, the timeline has another history.
#[test]
fn a_timeline_with_another_entry_at_the_place_has_another_history() {
    let mut feed = Feed::new(2);
    feed.append(5);
    // The recent document begins behind entry 3, and shows nothing of it.
    for last in [0, 1, 2, 4] {
        let mut bookmark = bookmark_after(&feed, last);
        bookmark.history = None;
        let mut timeline = feed.clone();
        // Its ids are others by this.
        timeline.is_timeline = true;
        let (seen, _, outcome) = walk(Start::Bookmark(bookmark.clone()), |ask| {
            timeline.get(&ask.url)
        });
        assert!(seen.is_empty(), "{last}");
        assert!(
            matches!(outcome, Err(WalkError::HistoryChanged { .. })),
            "{last}"
        );
        bookmark.entry = Some("urn:same".into());
        let (seen, _, outcome) = walk(Start::Bookmark(bookmark), |ask| timeline.get(&ask.url));
        assert_eq!((seen, outcome), ((last + 1..5).collect(), Ok(())), "{last}");
    }
    // After a restoration it is looked for, and proves nothing where entries may have been lost.
    let mut now = feed.restored(4);
    now.append(1);
    for (last, id, grown) in [(1, "urn:same", 3), (1, "urn:other", 0), (3, "urn:same", 0)] {
        let mut bookmark = bookmark_after(&feed, last);
        bookmark.history = None;
        bookmark.entry = Some(id.into());
        now.is_timeline = true;
        let (seen, _, outcome) = walk(Start::Bookmark(bookmark), |ask| now.get(&ask.url));
        assert_eq!(
            (seen.len(), outcome.is_err()),
            (grown, grown == 0),
            "{last} {id}"
        );
    }
}

/// Goal: after a restoration, a consumer that had seen more is told that the history changed, and every
/// other one goes on, be the feed shorter now, as long, or longer.
/// Method: all small feeds, backups, losses and growths, for a bookmark after every entry.
#[test]
fn a_restoration_is_noticed_by_whoever_had_seen_more() {
    for size in 1..=3 {
        for kept in 0..=5_usize {
            for (lost, grown) in (1..=4).flat_map(|lost| (0..=5).map(move |grown| (lost, grown))) {
                let case = format!("size {size}, {kept} kept, {lost} lost, {grown} new");
                let mut before = Feed::new(size);
                before.append(kept + lost);
                let mut now = before.restored(kept);
                now.append(grown);
                for last in 0..kept + lost {
                    let bookmark = Start::Bookmark(bookmark_after(&before, last));
                    let (seen, _, outcome) = walk(bookmark, |ask| now.get(&ask.url));
                    if last < kept {
                        let expected: Vec<usize> = (last + 1..kept + grown).collect();
                        assert_eq!((seen, outcome), (expected, Ok(())), "{case}, after {last}");
                    } else {
                        assert!(
                            matches!(outcome, Err(WalkError::HistoryChanged { .. })),
                            "{case}, after {last}: {outcome:?}"
                        );
                    }
                }
            }
        }
    }
}

/// Goal: what a cache has kept from before a restoration is an old copy, not a changed history.
#[test]
fn a_copy_from_before_a_restoration_is_asked_for_again() {
    for size in 1..=3 {
        for kept in 1..=4_usize {
            let mut before = Feed::new(size);
            before.append(kept + 4);
            let mut now = before.restored(kept);
            now.append(4);
            for last in kept..kept + 4 {
                let bookmark = bookmark_after(&now, last);
                let (seen, _, outcome) = walk(Start::Bookmark(bookmark), |ask| {
                    let copy = before.get(&ask.url).filter(|_| !ask.again);
                    copy.or_else(|| now.get(&ask.url))
                });
                let expected: Vec<usize> = (last + 1..kept + 4).collect();
                assert_eq!(
                    (seen, outcome),
                    (expected, Ok(())),
                    "{kept} kept, after {last}"
                );
            }
            // Only what is frozen is kept; it is kept from everybody, until it is asked past.
            let bookmarks = (0..kept).map(|last| Start::Bookmark(bookmark_after(&before, last)));
            for (begin, start) in (0..).zip([Start::Oldest].into_iter().chain(bookmarks)) {
                let (seen, _, outcome) = walk(start, |ask| {
                    let copy = before.get(&ask.url).filter(is_closed);
                    let copy = copy.filter(|_| !ask.again && ask.kind != AskKind::Recent);
                    copy.or_else(|| now.get(&ask.url))
                });
                let expected: Vec<usize> = (begin..kept + 4).collect();
                assert_eq!(
                    (seen, outcome),
                    (expected, Ok(())),
                    "{kept} kept, from {begin}"
                );
            }
        }
    }
}

/// Goal: an old copy is recognised, never taken for a gap or an end.
/// Method: every copy that is not asked for past all caches is of the feed as it was before.
#[test]
fn a_stale_copy_is_asked_for_again() {
    for size in 1..=4 {
        for old in 1..=8_usize {
            for grown in 0..=4 {
                let mut before = Feed::new(size);
                before.append(old);
                let mut now = before.clone();
                now.append(grown);
                let bookmark = bookmark_after(&now, old - 1);
                // The recent document is fresh, all others are as old as they may be.
                let (seen, _, outcome) = walk(Start::Bookmark(bookmark), |ask| {
                    let fresh = ask.kind == AskKind::Recent || ask.again;
                    let copy = before.get(&ask.url).filter(|_| !fresh);
                    copy.or_else(|| now.get(&ask.url))
                });
                let expected: Vec<usize> = (old..old + grown).collect();
                assert_eq!(
                    (seen, outcome),
                    (expected, Ok(())),
                    "size {size}, {old}+{grown}"
                );
            }
        }
    }
}

#[test]
fn a_cache_that_never_lets_go_is_an_error_and_no_end() {
    let mut before = Feed::new(4);
    before.append(6);
    let mut now = before.clone();
    now.append(6);
    // The recent document itself is old.
    let bookmark = bookmark_after(&now, 8);
    let (seen, _, outcome) = walk(Start::Bookmark(bookmark), |ask| before.get(&ask.url));
    assert_eq!(
        (seen, outcome),
        (vec![], Err(WalkError::Stale { url: url(RECENT) }))
    );
    // The formerly open document is, on the way forward.
    let (seen, _, outcome) = walk(Start::Oldest, |ask| match ask.url.path() {
        "/feeds/a/2.atom" => before.get(&ask.url),
        _ => now.get(&ask.url),
    });
    assert_eq!(
        (seen, outcome),
        (
            (0..6).collect(),
            Err(WalkError::Stale { url: url("2.atom") })
        )
    );
    // It is the bookmark's own.
    let bookmark = bookmark_after(&now, 7);
    let (seen, _, outcome) = walk(Start::Bookmark(bookmark), |ask| {
        match (ask.url.path(), ask.again) {
            ("/feeds/a/2.atom", false) => before.get(&ask.url),
            _ => now.get(&ask.url),
        }
    });
    assert_eq!((seen, outcome), ((8..12).collect(), Ok(())));
}

#[test]
fn a_rolled_back_feed_is_no_gap() {
    let mut feed = Feed::new(3);
    feed.append(8);
    let bookmark = bookmark_after(&feed, 7);
    let mut rolled_back = Feed::new(3);
    rolled_back.append(5);
    rolled_back.instant = Timestamp::from_micros(9_000_000_000);
    rolled_back.append(5);
    let (_, _, outcome) = walk(Start::Bookmark(bookmark), |ask| rolled_back.get(&ask.url));
    assert!(
        matches!(outcome, Err(WalkError::HistoryChanged { .. })),
        "{outcome:?}"
    );
}

#[test]
fn an_entry_that_is_gone_is_a_gap() {
    let mut feed = Feed::new(3);
    feed.append(8);
    let (seen, _, outcome) = walk(Start::Entry("urn:99".into()), |ask| feed.get(&ask.url));
    assert_eq!(
        (seen, outcome),
        (
            vec![],
            Err(WalkError::Gap {
                entry: "urn:99".into()
            })
        )
    );
    // An archive that is gone is one, too, and says which.
    let (_, _, outcome) = walk(Start::Oldest, |ask| {
        Some(&ask.url)
            .filter(|url| !url.path().ends_with("/1.atom"))
            .and_then(|url| feed.get(url))
    });
    assert_eq!(outcome, Err(WalkError::Missing { url: url("1.atom") }));
}

#[test]
fn another_feed_is_recognised() {
    let mut feed = Feed::new(3);
    feed.append(4);
    let bookmark = Bookmark {
        feed: "urn:other".into(),
        ..bookmark_after(&feed, 1)
    };
    let (_, _, outcome) = walk(Start::Bookmark(bookmark), |ask| feed.get(&ask.url));
    assert!(
        matches!(outcome, Err(WalkError::AnotherFeed { .. })),
        "{outcome:?}"
    );
}

/// FH-16: a chain may be circular.
#[test]
fn loops_end() {
    let mut feed = Feed::new(2);
    feed.append(7);
    for numbered in [true, false] {
        feed.numbered = numbered;
        for (from, to) in [
            (
                "prev-archive\" href=\"1.atom",
                "prev-archive\" href=\"3.atom",
            ),
            (
                "next-archive\" href=\"3.atom",
                "next-archive\" href=\"2.atom",
            ),
        ] {
            let (_, _, outcome) = walk(Start::Oldest, |ask| {
                let text = feed
                    .text(ask.url.as_str().strip_prefix(BASE)?)?
                    .replace(from, to);
                Some(Document::read(text.into_bytes().into(), &ask.url).unwrap())
            });
            assert!(
                matches!(outcome, Err(WalkError::Loop { .. })),
                "{outcome:?}"
            );
        }
    }
    let mut long = Feed::new(1);
    long.append(150);
    let (_, _, outcome) = walk(Start::Oldest, |ask| long.get(&ask.url));
    assert_eq!(outcome, Err(WalkError::TooMany { max: 100 }));
}

#[test]
fn a_walk_begins_at_a_time() {
    let mut feed = Feed::new(3);
    feed.append(8);
    // Entry n was committed at second n + 2, and says so.
    for second in 0..=12_i64 {
        let start = Start::Time(Timestamp::from_micros(second * 1_000_000));
        let (seen, walked, outcome) = walk(start, |ask| feed.get(&ask.url));
        let first = usize::try_from(second.saturating_sub(2).clamp(0, 8)).unwrap();
        assert_eq!((seen, outcome), ((first..8).collect(), Ok(())), "{second}");
        assert_eq!(
            walked.bookmark().unwrap().entry.as_deref(),
            Some("urn:7"),
            "{second}"
        );
    }
}

/// A foreign feed: documents by name, without positions.
fn foreign(documents: &[(&str, &str, &[usize])]) -> impl Fn(&Ask) -> Option<Document> {
    let documents: Vec<(Url, String)> = documents
        .iter()
        .map(|(name, links, newest_first)| {
            let entries = newest_first.iter().fold(String::new(), |text, n| {
                let updated = format!("<updated>1970-01-01T00:00:{:02}Z</updated>", n + 2);
                text + &format!("<entry><id>urn:{n}</id>{updated}</entry>")
            });
            let links = links
                .replace("prev=", "<link rel='prev-archive' href=")
                .replace(';', "/>");
            let head = "<feed xmlns='http://www.w3.org/2005/Atom'><id>urn:f</id>";
            (url(name), format!("{head}{links}{entries}</feed>"))
        })
        .collect();
    move |ask| {
        let (url, text) = documents.iter().find(|(url, _)| *url == ask.url)?;
        Some(Document::read(text.clone().into_bytes().into(), url).unwrap())
    }
}

/// FH-13: a revised entry comes again with its old id. Its first coming is not the end.
#[test]
fn an_id_that_comes_again_is_not_the_end() {
    let get = foreign(&[(RECENT, "prev='1';", &[1, 5, 4]), ("1", "", &[3, 2, 1])]);
    let (seen, _, outcome) = replay_of(Start::Oldest, get);
    assert_eq!((seen, outcome), (vec![1, 2, 3, 4, 5], Ok(())));
}

/// Goal: without positions and forward links, entries that moved into an archive meanwhile are found.
#[test]
fn what_was_cut_out_on_the_way_is_walked_back_to() {
    let before = foreign(&[(RECENT, "prev='1';", &[4, 3]), ("1", "", &[2, 1])]);
    let after = foreign(&[
        (RECENT, "prev='2';", &[7, 6]),
        ("2", "prev='1';", &[5, 4, 3]),
        ("1", "", &[2, 1]),
    ]);
    let mut looks = 0;
    let (seen, _, outcome) = replay_of(Start::Oldest, |ask| {
        looks += 1;
        if looks == 1 { before(ask) } else { after(ask) }
    });
    assert_eq!(outcome, Ok(()));
    assert!(seen.starts_with(&[1, 2, 3, 4]), "{seen:?}");
    assert!(
        seen.windows(2).all(|pair| pair[0] + 1 == pair[1]),
        "{seen:?}"
    );
}

/// A copy from when a document was open cannot hide an entry that only its id names.
#[test]
fn a_stale_copy_on_the_way_back_is_asked_for_again() {
    let mut before = Feed::new(3);
    before.append(4);
    let mut now = before.clone();
    now.append(6);
    let (seen, _, outcome) = walk(Start::Entry("urn:5".into()), |ask| {
        match (ask.url.path(), ask.again) {
            ("/feeds/a/2.atom", false) => before.get(&ask.url),
            _ => now.get(&ask.url),
        }
    });
    assert_eq!((seen, outcome), (vec![6, 7, 8, 9], Ok(())));
}

#[test]
fn a_walk_goes_on_looking_for_its_time() {
    let mut feed = Feed::new(3);
    feed.append(3);
    let time = Timestamp::from_micros(7_000_000);
    let (seen, first, _) = walk(Start::Time(time), |ask| feed.get(&ask.url));
    assert_eq!((seen, first.seeking()), (vec![], Some(time)));
    feed.append(5);
    let start = Start::Bookmark(first.bookmark().unwrap().clone());
    let mut second = Walk::new(url(RECENT), start).seek(first.seeking());
    let mut seen = vec![];
    while let Some(ask) = second.ask() {
        let run = second.take(feed.get(&ask.url).unwrap(), &ask.url).unwrap();
        seen.extend(run.iter().flat_map(numbers));
    }
    // Entry n was committed at second n + 2: entries 3 and 4 are passed.
    assert_eq!((seen, second.seeking()), (vec![5, 6, 7], None));
}

#[test]
fn documents_of_two_feeds_are_never_mixed() {
    let mut feed = Feed::new(2);
    feed.append(5);
    let (seen, _, outcome) = walk(Start::Oldest, |ask| {
        let document = feed.get(&ask.url)?;
        if !ask.url.path().ends_with("/2.atom") {
            return Some(document);
        }
        let text = feed
            .text("2.atom")?
            .replace("<id>urn:uuid", "<id>urn:other");
        Some(Document::read(text.into_bytes().into(), &ask.url).unwrap())
    });
    assert!(
        matches!(outcome, Err(WalkError::AnotherFeed { .. })),
        "{outcome:?}"
    );
    assert!(seen.is_empty());
}

/// Goal: the index costs or saves requests and changes nothing else.
/// Method: every feed and start, with an index that is complete, lags, is of another feed, lists
/// nothing, or leads astray; the entries are those of the plain walk.
#[test]
fn the_index_only_tells_where_to_begin_looking() {
    for size in 1..=3 {
        for end in 0..=14_usize {
            let mut feed = Feed::new(size);
            feed.append(end);
            let times =
                (0..=16).map(|second| Start::Time(Timestamp::from_micros(second * 1_000_000)));
            for start in times.chain([Start::Oldest]) {
                let (plain, ..) = walk(start.clone(), |ask| feed.get(&ask.url));
                let name = |ask: &Ask| ask.url.as_str().strip_prefix(BASE).unwrap().to_owned();
                let honest = |lag| {
                    let feed = &feed;
                    move |ask: &Ask| feed.index(&name(ask), 2, lag)
                };
                let check = |what: &str, index: &dyn Fn(&Ask) -> Option<IndexBlock>| {
                    let (seen, _, outcome) =
                        walk_by_index(start.clone(), |ask| feed.get(&ask.url), index);
                    let context = format!("{what}: size {size}, end {end}, {start:?}");
                    assert_eq!((seen, outcome), (plain.clone(), Ok(())), "{context}");
                };
                check("complete", &honest(0));
                check("lagging", &honest(3));
                check("of another feed", &|ask| {
                    let block = honest(0)(ask)?;
                    Some(IndexBlock {
                        feed: "urn:other".into(),
                        ..block
                    })
                });
                check("empty", &|ask| {
                    let block = honest(0)(ask)?;
                    Some(IndexBlock {
                        documents: vec![],
                        ..block
                    })
                });
                check("newest first", &|ask| {
                    let mut block = honest(0)(ask)?;
                    block.documents.reverse();
                    Some(block)
                });
                check("with wrong times", &|ask| {
                    let mut block = honest(0)(ask)?;
                    for listed in &mut block.documents {
                        listed.updated = "1970-01-01T00:00:00Z".into();
                    }
                    Some(block)
                });
            }
        }
    }
}

/// Goal: replay from the oldest costs one request per document and one per index block.
#[test]
fn the_index_saves_the_way_back() {
    let mut feed = Feed::new(1);
    feed.append(30);
    let (mut documents, mut blocks) = (0, 0);
    let (seen, _, outcome) = walk_by_index(
        Start::Oldest,
        |ask| {
            documents += 1;
            feed.get(&ask.url)
        },
        |ask| {
            blocks += 1;
            feed.index(ask.url.as_str().strip_prefix(BASE)?, 10, 0)
        },
    );
    assert_eq!((seen, outcome), ((0..30).collect(), Ok(())));
    // The recent document, and all thirty at their permanent URLs; index, index-1, index-0.
    assert_eq!((documents, blocks), (31, 3));
}

/// Goal: a finished replay is proved complete: it ends with the history that was promised.
#[test]
fn the_end_has_the_history_that_was_promised() {
    let mut feed = Feed::new(3);
    feed.append(8);
    let mut other = Feed::new(3);
    other.append(4);
    other.instant = Timestamp::from_micros(9_000_000_000);
    other.append(4);
    // The recent document shows one history, everything else another.
    let (_, _, outcome) = walk(Start::Oldest, |ask| match ask.kind {
        AskKind::Recent => feed.get(&ask.url),
        _ => other.get(&ask.url),
    });
    let expected = WalkError::HistoryChanged {
        url: url("3.atom"),
        position: Position(7),
    };
    assert_eq!(outcome, Err(expected));
}

/// Where only an id is known, an old copy of the recent document looks like a gap.
#[test]
fn an_entry_that_a_stale_copy_hides_is_no_gap() {
    for size in 1..=4 {
        let mut before = Feed::new(size);
        before.append(4);
        let mut now = before.clone();
        now.append(5);
        for last in 0..9 {
            let (seen, _, outcome) = walk(Start::Entry(format!("urn:{last}")), |ask| {
                match (ask.kind, ask.again) {
                    (AskKind::Recent, false) => before.get(&ask.url),
                    _ => now.get(&ask.url),
                }
            });
            let newest = if last < 4 { 4 } else { 9 };
            assert_eq!(
                (seen, outcome),
                ((last + 1..newest).collect(), Ok(())),
                "size {size}, after {last}"
            );
        }
    }
}

/// The feed has moved; where it was once, an older history goes on.
#[test]
fn a_bookmark_from_another_origin_leads_nobody_there() {
    let mut feed = Feed::new(2);
    feed.append(9);
    let bookmark = Bookmark {
        document: Some("http://old.h/feeds/a/2.atom".parse().unwrap()),
        ..bookmark_after(&feed, 2)
    };
    let (seen, _, outcome) = walk(Start::Bookmark(bookmark), |ask| {
        assert_eq!(ask.url.host_str(), Some("h"));
        feed.get(&ask.url)
    });
    assert_eq!((seen, outcome), ((3..9).collect(), Ok(())));
}

/// The history of a feed begins with its id.
#[test]
fn a_history_that_begins_with_something_else_is_changed() {
    let mut feed = Feed::new(2);
    feed.append(5);
    let (seen, _, outcome) = walk(Start::Oldest, |ask| {
        let text = feed.text(ask.url.as_str().strip_prefix(BASE)?)?;
        let begins = HistoryHash::start_of_text(&feed.state.settings.id.to_string());
        let text = text.replace(&begins.to_string(), &"0".repeat(64));
        Some(Document::read(text.into_bytes().into(), &ask.url).unwrap())
    });
    let expected = WalkError::HistoryChanged {
        url: url("1.atom"),
        position: Position(0),
    };
    assert_eq!((seen, outcome), (vec![], Err(expected)));
}
