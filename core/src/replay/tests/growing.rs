//! Plain feeds that grow while they are read.
//!
//! Pure. Whatever comes, moves or goes during a round is handed over, left to the next round, or missed aloud.

use super::{
    super::known::Bounds,
    faults::{Page, days, entries, entry, from_oldest, link, read, walk_copies},
    *,
};

/// Returns the number of an archive; the recent document has none.
fn number_of(url: &Url) -> Option<u32> {
    url.path().rsplit('/').next().unwrap().parse().ok()
}

/// Returns a document of entries, newest first, with the number of the archive before it; 0 is none.
fn numbered(at: &Url, newest_first: &[u32], previous: u32) -> Document {
    let link = match previous {
        0 => String::new(),
        previous => link("prev-archive", &format!("href='{previous}'")),
    };
    let entries = newest_first.iter().map(|number| entry(*number, 1));
    read(at, &(link + &entries.collect::<String>()))
}

/// Returns the numbers of the entries of a run.
fn numbers(run: Option<&Run>) -> Vec<u32> {
    let each = run.into_iter().flat_map(days);
    each.map(|(number, _)| number).collect()
}

/// Goal: a feed that is cut faster than a consumer reads is no loop: each round ends, and the next one goes on there.
#[test]
fn a_feed_that_grows_faster_than_it_is_read_is_followed() {
    let mut replay = Replay::new(url(RECENT), Start::Oldest);
    let (mut newest, mut seen, mut rounds) = (1, vec![], 0);
    while seen.len() < 50 {
        let Some(ask) = replay.ask() else {
            rounds += 1;
            let kept = serde_json::to_string(&replay.next_round().unwrap().unwrap()).unwrap();
            if rounds % 3 == 0 {
                let start = Start::Bookmark(serde_json::from_str(&kept).unwrap());
                replay = Replay::new(url(RECENT), start);
            }
            continue;
        };
        // Each document has one entry, and each look at the recent one finds a new one.
        let number = number_of(&ask.url).unwrap_or_else(|| {
            newest = (newest + 1).min(50);
            newest
        });
        let document = numbered(&ask.url, &[number], number - 1);
        let run = replay
            .take(document, &ask.url, Validators::default())
            .unwrap();
        seen.extend(numbers(run.as_ref()));
    }
    assert!(seen.iter().copied().eq(1..=50), "{seen:?}");
    assert!(rounds > 3, "{rounds}");
}

/// Walks to the end of a round over archives of one entry each, with the nth recent document at its nth request: the number
/// of its entry, and that of the archive that it leads to.
fn walk_fast(
    replay: &mut Replay,
    recent: &[(u32, u32)],
) -> (Vec<u32>, Result<Bookmark, WalkError>) {
    let (mut seen, mut looks) = (vec![], 0);
    loop {
        let Some(ask) = replay.ask() else {
            return (seen, replay.next_round().map(Option::unwrap));
        };
        let (number, previous) = if let Some(number) = number_of(&ask.url) {
            (number, number - 1)
        } else {
            looks += 1;
            recent[(looks - 1).min(recent.len() - 1)]
        };
        // An entry that each document has on top shows nothing about its place.
        let document = numbered(&ask.url, &[99, number], previous);
        let tag = Validators {
            etag: Some(format!("{number}")),
            last_modified: None,
        };
        if ask.known == tag {
            replay.not_modified();
            continue;
        }
        match replay.take(document, &ask.url, tag) {
            Ok(run) => seen.extend(numbers(run.as_ref())),
            Err(error) => return (seen, Err(error)),
        }
    }
}

/// Goal: a round that ends before the recent document leaves what that one shows to the next: no validator of it hides the
/// rest, and an entry that is gone by then is missed aloud.
#[test]
fn a_round_that_ends_early_leaves_the_rest_to_the_next() {
    for (later, left, is_gap) in [
        ((5, 4), vec![3, 4, 5], false),
        ((6, 4), vec![3, 4, 6], true),
    ] {
        let mut replay = Replay::new(url(RECENT), Start::Oldest);
        let (seen, place) = walk_fast(&mut replay, &[(2, 1), (3, 2), (5, 4)]);
        let place = place.unwrap();
        assert_eq!((seen, place.stand), (vec![1, 99, 2], Some(Stand::Archive)));
        assert_eq!((place.etag, place.pending.len()), (None, 1));
        let (seen, outcome) = walk_fast(&mut replay, &[later]);
        assert_eq!(seen, left);
        assert_eq!(outcome.is_err_and(|error| error.is_gap()), is_gap);
    }
}

/// Goal: a feed whose documents are cut in part while they are read is whole, however often that happens.
#[test]
fn a_feed_that_is_cut_in_part_again_and_again_is_no_gap() {
    let mut replay = Replay::new(url(RECENT), Start::Oldest);
    let (mut looks, mut seen) = (0, vec![]);
    while seen.len() < 54 {
        let Some(ask) = replay.ask() else {
            replay.next_round().unwrap();
            continue;
        };
        let (newest_first, previous) = if let Some(number) = number_of(&ask.url) {
            (vec![number], number - 1)
        } else {
            looks = (looks + 1).min(40);
            ((looks + 1..=looks + 14).rev().collect(), looks)
        };
        let document = numbered(&ask.url, &newest_first, previous);
        let run = replay
            .take(document, &ask.url, Validators::default())
            .unwrap();
        seen.extend(numbers(run.as_ref()));
    }
    assert!(seen.iter().copied().eq(1..=54), "{seen:?}");
}

/// Goal: what fills an empty feed is new, and an archive that grows has what the look has shown: neither is a gap.
#[test]
fn what_comes_after_nothing_is_no_gap() {
    let archive = |target: &str| link("prev-archive", &format!("href='{target}'"));
    let mut replay = Replay::new(url(RECENT), Start::Oldest);
    for (pages, expected) in [
        (vec![(RECENT, entries(&[2, 1]))], vec![1, 2]),
        (vec![(RECENT, String::new())], vec![]),
        (vec![(RECENT, entries(&[3]))], vec![3]),
        (vec![(RECENT, String::new())], vec![]),
        (
            vec![
                (RECENT, archive("1") + &entries(&[6])),
                ("1", entries(&[5, 4])),
            ],
            vec![4, 5, 6],
        ),
    ] {
        let (seen, outcome) = walk_copies(&mut replay, &pages);
        let seen: Vec<u32> = seen.iter().map(|(id, _)| *id).collect();
        assert_eq!((seen, outcome), (expected, Ok(())));
    }
    let grows = [
        (RECENT, archive("1") + &entries(&[4, 3])),
        (RECENT, archive("1") + &entries(&[6, 5])),
        ("1", entries(&[2, 1])),
        ("1", entries(&[2, 1])),
        ("1", entries(&[4, 3, 2, 1])),
    ];
    let (seen, outcome) = from_oldest(&grows);
    assert_eq!((seen.len(), outcome), (6, Ok(())));
}

fn archive(target: &str) -> String {
    link("prev-archive", &format!("href='{target}'"))
}

/// Walks to the end of a round, each document with its tag. Returns the numbers handed over, and the outcome.
fn walk_tagged(
    replay: &mut Replay,
    mut inside: impl FnMut(&Url) -> String,
) -> (Vec<u32>, Result<Bookmark, WalkError>) {
    let mut seen = vec![];
    while let Some(ask) = replay.ask() {
        let inside = inside(&ask.url);
        let tag = Validators {
            etag: Some(inside.clone()),
            last_modified: None,
        };
        if ask.known == tag {
            replay.not_modified();
            continue;
        }
        match replay.take(read(&ask.url, &inside), &ask.url, tag) {
            Ok(run) => seen.extend(numbers(run.as_ref())),
            Err(error) => return (seen, Err(error)),
        }
    }
    (seen, replay.next_round().map(Option::unwrap))
}

/// Goal: what a copy of the recent document shows that is set aside, while the archive grows again and again, comes or is
/// missed aloud; and entries that overlap from copy to copy are no gap.
#[test]
fn an_archive_that_grows_again_is_read_again() {
    let first = "1";
    let recent = |newest_first| (RECENT, archive(first) + &entries(newest_first));
    let grown = |newest_first| (first, entries(newest_first));
    let begun = || {
        vec![
            recent(&[4, 3]),
            grown(&[2, 1]),
            grown(&[2, 1]),
            grown(&[2, 1]),
        ]
    };
    let seen_of = |more: Vec<Page<'_>>| {
        let (seen, outcome) = from_oldest(&[begun(), more].concat());
        let seen: Vec<u32> = seen.iter().map(|(id, _)| *id).collect();
        (seen, outcome)
    };
    for (more, last) in [
        // All of the recent document moves, twice.
        (
            vec![
                recent(&[6, 5]),
                recent(&[8, 7]),
                grown(&[4, 3, 2, 1]),
                grown(&[6, 5, 4, 3, 2, 1]),
            ],
            8,
        ),
        // A part of it.
        (
            vec![
                recent(&[5, 4]),
                recent(&[6, 5]),
                grown(&[3, 2, 1]),
                grown(&[4, 3, 2, 1]),
            ],
            6,
        ),
    ] {
        assert_eq!(seen_of(more), ((1..=last).collect(), Ok(())));
    }
    // The copy that is set aside has entries that nothing else shows.
    let gone = vec![
        recent(&[6, 5, 4]),
        recent(&[7, 4]),
        grown(&[3, 2, 1]),
        grown(&[3, 2, 1]),
    ];
    let (seen, outcome) = seen_of(gone);
    assert_eq!(seen, [1, 2, 3, 4, 7]);
    assert_eq!(outcome, Err(WalkError::Deleted { entries: 2 }));
}

/// Goal: a feed whose archive grows faster than it is read ends no round late, and loses nothing.
#[test]
fn an_archive_that_grows_faster_than_it_is_read_is_followed() {
    let mut replay = Replay::new(url(RECENT), Start::Oldest);
    let (mut newest, mut seen, mut rounds) = (2, vec![], 0);
    while seen.len() < 60 {
        let (new, place) = walk_tagged(&mut replay, |at| {
            if number_of(at).is_some() {
                let newest_first: Vec<u32> = (1..=newest - 2).rev().collect();
                return newest_first
                    .iter()
                    .map(|number| entry(*number, 1))
                    .collect();
            }
            newest = (newest + 2).min(60);
            archive("1") + &entry(newest, 1) + &entry(newest - 1, 1)
        });
        place.unwrap();
        seen.extend(new);
        rounds += 1;
    }
    assert!(seen.iter().copied().eq(1..=60), "{seen:?}");
    assert!(rounds > 1, "{rounds}");
}

/// Goal: a round that ends early behind the copy of its look leaves the rest to the next one: no validator hides it, and a
/// start there takes no lost link for an end.
#[test]
fn a_round_that_ends_early_behind_its_look_leaves_the_rest() {
    // An entry that stays on top is the newest one of each copy.
    let copies = [
        archive("1") + &entries(&[30, 3]),
        archive("2") + &entries(&[30, 6]),
        archive("2") + &entries(&[30, 6]),
        archive("2") + &entries(&[30, 6]),
        archive("3") + &entries(&[30, 9]),
    ];
    let archives = [
        entries(&[2, 1]),
        archive("1") + &entries(&[5, 4]),
        archive("2") + &entries(&[8, 7, 6]),
    ];
    let mut looks = 0;
    let mut inside = |at: &Url| {
        if let Some(number) = number_of(at) {
            return archives[usize::try_from(number).unwrap() - 1].clone();
        }
        looks += 1;
        copies[(looks - 1).min(4)].clone()
    };
    let mut replay = Replay::new(url(RECENT), Start::Oldest);
    let (seen, place) = walk_tagged(&mut replay, &mut inside);
    let place = place.unwrap();
    assert_eq!(seen, [1, 2, 4, 5, 3, 30]);
    assert_eq!((place.stand, &place.etag), (Some(Stand::Archive), &None));
    let mut again = Replay::new(url(RECENT), Start::Bookmark(place));
    let (_, outcome) = walk_copies(&mut again, &[(RECENT, entries(&[30, 9]))]);
    assert!(outcome.is_err_and(|error| error.is_gap()));
    let (seen, place) = walk_tagged(&mut replay, inside);
    assert_eq!(
        (seen, place.unwrap().stand),
        (vec![6, 7, 8, 9], Some(Stand::Recent))
    );
}

/// Goal: one round hands over all that its first look has shown, even where it gives up waiting for the recent document.
#[test]
fn a_round_hands_over_what_its_look_has_shown() {
    let mut replay = Replay::new(url(RECENT), Start::Oldest);
    let mut looks = 0;
    let (seen, place) = walk_tagged(&mut replay, |at| {
        let (newest_first, previous) = if let Some(number) = number_of(at) {
            (vec![number], number - 1)
        } else {
            looks += 1;
            ((looks + 1..=looks + 14).rev().collect(), looks)
        };
        let listed = newest_first.iter().map(|number| entry(*number, 1));
        let link = if previous == 0 {
            String::new()
        } else {
            archive(&previous.to_string())
        };
        link + &listed.collect::<String>()
    });
    // The first look leads to 1, and shows 2 to 15.
    assert!(seen.iter().copied().eq(1..=15), "{seen:?}");
    assert_eq!(place.unwrap().stand, Some(Stand::Archive));
}

/// Goal: a feed that is always ahead, and deletes what each round leaves, has its gaps told, and fills no memory.
#[test]
fn a_feed_that_is_always_ahead_has_gaps() {
    let mut replay = Replay::new(url(RECENT), Start::Oldest);
    let mut looks = 1;
    let mut inside = |at: &Url| {
        if let Some(number) = number_of(at) {
            return entry(number, 1) + &previous_of(number);
        }
        looks += 1;
        let gone = (0..100).map(|gone| entry(1_000 * looks + gone, 1));
        gone.collect::<String>() + &entry(looks, 1) + &previous_of(looks)
    };
    let (_, first) = walk_tagged(&mut replay, &mut inside);
    assert!(first.unwrap().pending.len() <= 101);
    let (_, second) = walk_tagged(&mut replay, &mut inside);
    assert_eq!(second.unwrap_err(), WalkError::Deleted { entries: 100 });
}

fn previous_of(number: u32) -> String {
    match number {
        1 => String::new(),
        number => archive(&(number - 1).to_string()),
    }
}

/// Goal: what an early end owes follows the rules of every look: also where old entries are forgotten, by the time to begin
/// at, and by revisions.
#[test]
fn what_an_early_end_leaves_is_what_is_wanted() {
    // Each copy of the recent document has a newer archive before it; the last one is left to the next round.
    let left = |last: String| {
        vec![
            (RECENT, archive("1") + &entries(&[7])),
            (RECENT, archive("2") + &entries(&[8])),
            (RECENT, archive("3") + &last),
            ("1", entries(&[6, 5])),
            ("2", archive("1") + &entries(&[7])),
            ("3", archive("2") + &entries(&[8])),
        ]
    };
    let next = [
        &left(String::new())[3..],
        &[(RECENT, archive("3") + &entries(&[9]))],
    ]
    .concat();
    let since = |start, revisions, last| {
        let mut replay = Replay::new(url(RECENT), start).revisions(revisions);
        let (_, first) = walk_copies(&mut replay, &left(last));
        assert_eq!(first, Ok(()));
        walk_copies(&mut replay, &next).1
    };
    let deleted = || Err(WalkError::Deleted { entries: 1 });
    let time = Timestamp::parse("2026-01-05T00:00:00Z").unwrap();
    let old = || entries(&[9]) + &entry(3, 3);
    assert_eq!(since(Start::Time(time), false, old()), Ok(()));
    assert_eq!(since(Start::Oldest, false, old()), deleted());
    let revised = || entry(6, 20) + &entries(&[9]);
    assert_eq!(since(Start::Oldest, false, revised()), Ok(()));
    assert_eq!(since(Start::Oldest, true, revised()), deleted());

    let bounds = Bounds {
        kept: 2,
        running: 100_000,
        compared: 100_000,
    };
    let mut replay = Replay::new(url(RECENT), Start::Oldest).bounds(bounds);
    let (_, place) = walk_tagged(&mut replay, |at| match number_of(at) {
        Some(_) => entries(&[6, 5, 4]),
        None => archive("1") + &entries(&[7]),
    });
    let mut replay = Replay::new(url(RECENT), Start::Bookmark(place.unwrap())).bounds(bounds);
    let ahead = [
        (RECENT, archive("2") + &entries(&[9])),
        (RECENT, archive("2") + &entries(&[9])),
        (RECENT, archive("3") + &entries(&[10])),
        (RECENT, archive("4") + &entries(&[12, 11])),
        ("2", archive("1") + &entries(&[8, 7])),
        ("3", archive("2") + &entries(&[9])),
        ("4", archive("3") + &entries(&[10])),
    ];
    let (_, first) = walk_copies(&mut replay, &ahead);
    assert_eq!(first, Ok(()));
    let next = [(RECENT, archive("4") + &entries(&[12]))];
    let (_, outcome) = walk_copies(&mut replay, &[&ahead[4..], &next].concat());
    assert_eq!(outcome, deleted());
}
