//! Plain feeds that grow while they are read.
//!
//! Pure. Whatever comes, moves or goes during a round is handed over, left to the next round, or reported as a gap.

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
fn numbers(run: Option<&EntryRun>) -> Vec<u32> {
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
/// rest, and an entry that is gone by then is reported as a gap.
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

/// Goal: what a copy of the recent document shows that is set aside, while the archive grows again and again, is handed
/// over, or reported as a gap at the end of the next round; and entries that overlap from copy to copy are no gap.
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
    let mut replay = Replay::new(url(RECENT), Start::Oldest);
    let mut seen_of = |more: Vec<Page<'_>>| {
        replay = Replay::new(url(RECENT), Start::Oldest);
        walk(&mut replay, &[begun(), more].concat())
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
    let last = &gone[1..3];
    assert_eq!(seen_of(gone.clone()), (vec![1, 2, 3, 4, 7], Ok(())));
    let deleted = Err(WalkError::Deleted { entries: 2 });
    assert_eq!(walk(&mut replay, last), (vec![], deleted));
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
    let (seen, place) = walk_tagged(&mut replay, |at| cut_at_each_look(&mut looks, at));
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

/// Walks to the end of a round, and returns the numbers handed over, and the outcome.
fn walk(replay: &mut Replay, pages: &[Page<'_>]) -> (Vec<u32>, Result<(), WalkError>) {
    let (seen, outcome) = walk_copies(replay, pages);
    (seen.iter().map(|(number, _)| *number).collect(), outcome)
}

/// Answers with the nth copy of a document at its nth request, and with the last one then.
fn copies(pages: Vec<Page<'_>>) -> impl FnMut(&Url) -> String {
    let mut asked: HashMap<Url, usize> = HashMap::new();
    move |at| {
        let copies = pages.iter().filter(|(name, _)| url(name) == *at);
        let copies: Vec<&String> = copies.map(|(_, inside)| inside).collect();
        let count = asked.entry(at.clone()).or_default();
        let copy = copies.get(*count).or(copies.last()).unwrap();
        *count += 1;
        (*copy).clone()
    }
}

/// Returns a copy of the recent document, which leads to archive 1.
fn recent(newest_first: &[u32]) -> Page<'static> {
    (RECENT, archive("1") + &entries(newest_first))
}

/// Returns a copy of archive 1, which is not marked as one.
fn first(newest_first: &[u32]) -> Page<'static> {
    ("1", entries(newest_first))
}

/// Returns the copies of archive 1 before the recent document is requested again.
fn first_thrice() -> Vec<Page<'static>> {
    vec![first(&[2, 1]); 3]
}

/// Goal: entries that move to the archive after a copy of the recent document was set aside are read there, whatever part
/// of it they are.
#[test]
fn what_moves_to_an_archive_after_it_was_read_again_is_read() {
    let six = [6, 5, 4, 3, 2, 1];
    for (what, pages, expected) in [
        (
            "a part of the copy that was set aside",
            vec![
                recent(&[5, 4, 3]),
                recent(&[8, 7, 6]),
                first(&six[1..]),
                recent(&[9, 8, 7]),
                first(&six),
            ],
            (1..=9).collect(),
        ),
        (
            "all of it, so that the recent document is empty",
            vec![
                recent(&[4, 3]),
                recent(&[6, 5, 4, 3]),
                first(&[2, 1]),
                recent(&[]),
                first(&six),
            ],
            (1..=6).collect(),
        ),
        (
            "all but the entry on top",
            vec![
                recent(&[30, 4, 3]),
                recent(&[30, 4, 3]),
                first(&[2, 1]),
                recent(&[30, 8, 7]),
                first(&six),
            ],
            vec![1, 2, 3, 4, 5, 6, 7, 8, 30],
        ),
        (
            "entries that no copy of the recent document shows, below the entry on top",
            vec![
                recent(&[30, 4, 3]),
                recent(&[30, 4, 3]),
                first(&six[2..]),
                recent(&[30, 8, 7]),
                first(&six),
            ],
            vec![1, 2, 3, 4, 5, 6, 7, 8, 30],
        ),
        (
            "entries that no copy shows, behind an empty one",
            vec![
                recent(&[4, 3]),
                recent(&[]),
                first(&six[2..]),
                recent(&[7]),
                first(&six),
            ],
            (1..=7).collect(),
        ),
    ] {
        let pages = [first_thrice(), pages].concat();
        let mut replay = Replay::new(url(RECENT), Start::Oldest);
        assert_eq!(walk(&mut replay, &pages), (expected, Ok(())), "{what}");
    }
}

/// Goal: a server that lags behind the other is no gap. The next round hands over what only a copy set aside has shown,
/// also from an archive, or reports it as deleted; a consumer that was stopped in between does the same.
#[test]
fn what_a_lagging_server_lacks_is_due_in_the_next_round() {
    let first_round = [
        first_thrice(),
        vec![recent(&[4, 3]), recent(&[6, 5, 4, 3]), recent(&[4, 3])],
    ]
    .concat();
    let deleted = WalkError::Deleted { entries: 2 };
    for (pages, expected) in [
        ([recent(&[6, 5, 4, 3]), first(&[2, 1])], (vec![5, 6], None)),
        (
            [recent(&[8, 7]), first(&[6, 5, 4, 3, 2, 1])],
            (vec![5, 6, 7, 8], None),
        ),
        ([recent(&[4, 3]), first(&[2, 1])], (vec![], Some(deleted))),
    ] {
        let mut running = Replay::new(url(RECENT), Start::Oldest);
        let (seen, place) = walk_tagged(&mut running, copies(first_round.clone()));
        let place = place.unwrap();
        assert_eq!(seen, [1, 2, 3, 4]);
        assert_eq!(
            (place.stand, place.pending.len()),
            (Some(Stand::Archive), 2)
        );
        let kept = serde_json::to_string(&place).unwrap();
        let start = Start::Bookmark(serde_json::from_str(&kept).unwrap());
        for mut replay in [running, Replay::new(url(RECENT), start)] {
            let (seen, outcome) = walk_tagged(&mut replay, copies(pages.to_vec()));
            assert_eq!((seen, outcome.err()), expected);
        }
    }
}

/// Goal: an archive that grows before a newer one is cut is read again, whether or not a copy of the recent document was
/// set aside before.
#[test]
fn an_archive_that_grows_and_is_then_followed_by_another_is_read_again() {
    let cut = vec![
        (RECENT, archive("2") + &entries(&[10, 9])),
        ("2", archive("1") + &entries(&[8, 7])),
        first(&[6, 5, 4, 3, 2, 1]),
    ];
    let aside = vec![recent(&[4, 3]), first(&[2, 1])];
    for aside in [aside, vec![]] {
        let pages = [vec![recent(&[4, 3])], first_thrice(), aside, cut.clone()].concat();
        let mut replay = Replay::new(url(RECENT), Start::Oldest);
        assert_eq!(walk(&mut replay, &pages), ((1..=10).collect(), Ok(())));
    }
}

/// Returns a document of a feed whose recent document has a newer archive before it at each request: 14 entries, of which
/// each archive has one.
fn cut_at_each_look(looks: &mut u32, at: &Url) -> String {
    if let Some(number) = number_of(at) {
        return previous_of(number) + &entry(number, 1);
    }
    *looks += 1;
    let listed = (*looks + 1..=*looks + 14).rev();
    let listed = listed.map(|number| entry(number, 1));
    archive(&looks.to_string()) + &listed.collect::<String>()
}

/// Goal: a consumer that stops at the last entry of a round that ends early stands where that round ends, and owes the same.
#[test]
fn a_stop_within_an_early_end_stands_at_its_end() {
    let mut replay = Replay::new(url(RECENT), Start::Oldest);
    let (mut looks, mut stopped) = (0, None);
    while let Some(ask) = replay.ask() {
        let document = read(&ask.url, &cut_at_each_look(&mut looks, &ask.url));
        let run = replay.take(document, &ask.url, Validators::default());
        let last = run
            .unwrap()
            .and_then(|run| run.bookmark(run.entries.last()?));
        stopped = last.or(stopped);
    }
    let (stopped, ended) = (stopped.unwrap(), replay.next_round().unwrap().unwrap());
    let without_memory = |place: &Bookmark| Bookmark {
        known: None,
        ..place.clone()
    };
    assert_eq!(without_memory(&stopped), without_memory(&ended));
    assert_eq!(
        (stopped.stand, stopped.pending.len()),
        (Some(Stand::Archive), 9)
    );
    // What came since is gone with the link to the archives.
    let mut again = Replay::new(url(RECENT), Start::Bookmark(stopped));
    let (_, outcome) = walk(&mut again, &[(RECENT, entries(&[30, 15]))]);
    assert!(outcome.unwrap_err().is_gap());
}

/// Goal: entries that an early end leaves to the next round, and that are handed over after a gap was passed, are no gap.
#[test]
fn what_an_early_end_leaves_is_no_gap_behind_a_passed_one() {
    let mut replay = Replay::new(url(RECENT), Start::Oldest);
    let ask = replay.ask().unwrap();
    let document = read(&ask.url, &entries(&[2, 1]));
    let run = replay.take(document, &ask.url, Validators::default());
    let run = run.unwrap().unwrap();
    // 2 is owed, and deleted.
    let place = run.bookmark(&run.entries[0]).unwrap();
    let mut replay = Replay::new(url(RECENT), Start::Bookmark(place));
    let archives = [
        ("1", entries(&[3, 1])),
        ("2", archive("1") + &entries(&[5])),
        ("3", archive("2") + &entries(&[7])),
        ("4", archive("3") + &entries(&[8])),
    ];
    let ahead = [
        recent(&[5]),
        recent(&[5]),
        (RECENT, archive("2") + &entries(&[7])),
        (RECENT, archive("3") + &entries(&[8])),
    ];
    let (_, outcome) = walk(&mut replay, &[&ahead[..], &archives].concat());
    assert_eq!(outcome, Err(WalkError::Deleted { entries: 1 }));
    replay.pass_gap();
    let later = [&archives[..], &[(RECENT, archive("4") + &entries(&[9]))]].concat();
    let (seen, outcome) = walk(&mut replay, &later);
    assert_eq!((seen.last(), outcome), (Some(&9), Ok(())));
    assert_eq!(walk(&mut replay, &later), (vec![], Ok(())));
}

/// Goal: behind an early end that handed over the copy of its look, an archive that grows is no gap: neither in the next
/// round nor for a consumer that was stopped among the entries of that copy.
#[test]
fn an_archive_that_grows_behind_an_early_end_is_no_gap() {
    let mut replay = Replay::new(url(RECENT), Start::Oldest);
    let (mut newest, mut places) = (2, vec![]);
    let mut inside = |at: &Url, growth: u32| {
        if number_of(at).is_some() {
            // 3 is deleted after the first look.
            let left = (1..=newest - 2).rev().filter(|number| *number != 3);
            return left.map(|number| entry(number, 1)).collect();
        }
        newest += growth;
        archive("1") + &entry(newest, 1) + &entry(newest - 1, 1)
    };
    while let Some(ask) = replay.ask() {
        let document = read(&ask.url, &inside(&ask.url, 2));
        let run = replay.take(document, &ask.url, Validators::default());
        let run = run.unwrap().filter(|run| run.url == url(RECENT));
        places.extend(run.and_then(|run| run.bookmark(run.entries.last()?)));
    }
    assert_eq!(places.len(), 1, "the copy of the look");
    places.extend(replay.next_round().unwrap());
    let restarts = places.into_iter().map(Start::Bookmark);
    let restarts = restarts.map(|start| Replay::new(url(RECENT), start));
    for mut replay in restarts.chain([replay]) {
        let (seen, outcome) = walk_tagged(&mut replay, |at| inside(at, 0));
        assert_eq!((seen.len() > 1, outcome.err()), (true, None));
    }
}

/// Goal: an entry that only a copy set aside has shown is not lost where old entries may be forgotten.
#[test]
fn a_copy_that_is_set_aside_counts_where_old_entries_are_forgotten() {
    let bounds = Bounds {
        kept: 2,
        running: 100_000,
        compared: 100_000,
    };
    let mut replay = Replay::new(url(RECENT), Start::Oldest).bounds(bounds);
    let (_, place) = walk_tagged(&mut replay, copies(vec![recent(&[7]), first(&[6, 5, 4])]));
    let mut replay = Replay::new(url(RECENT), Start::Bookmark(place.unwrap())).bounds(bounds);
    let second = |newest_first| (RECENT, archive("2") + &entries(newest_first));
    let pages = vec![
        second(&[9]),
        second(&[9]),
        second(&[10, 9]),
        second(&[9]),
        ("2", archive("1") + &entries(&[8, 7])),
    ];
    let (seen, place) = walk_tagged(&mut replay, copies(pages));
    assert_eq!((seen, place.unwrap().pending.len()), (vec![8, 9], 1));
}

/// Goal: an early end leaves to the next round what each copy set aside has shown, not only the last copy.
#[test]
fn an_early_end_owes_what_copies_set_aside_have_shown() {
    let mut replay = Replay::new(url(RECENT), Start::Oldest);
    let last = [recent(&[12, 11]), first(&[4, 3, 2, 1])];
    let pages = [
        vec![recent(&[4, 3]), recent(&[6, 5]), recent(&[9, 8])],
        first_thrice(),
        last.to_vec(),
    ];
    let (seen, place) = walk_tagged(&mut replay, copies(pages.concat()));
    assert_eq!((seen, place.unwrap().pending.len()), (vec![1, 2, 3, 4], 6));
    let deleted = Err(WalkError::Deleted { entries: 4 });
    assert_eq!(walk(&mut replay, &last), (vec![11, 12], deleted));
}

/// Goal: an entry that two rounds leave, each because it ends early, is no gap.
#[test]
fn an_entry_that_two_early_ends_leave_is_no_gap() {
    let leads = |number, newest_first| (RECENT, archive(number) + &entries(newest_first));
    let archives = vec![
        ("1", entries(&[6, 5])),
        ("2", archive("1") + &entries(&[7])),
        ("3", archive("2") + &entries(&[8])),
        ("4", archive("3") + &entries(&[20])),
        ("5", archive("4") + &entries(&[10])),
        ("6", archive("5") + &entries(&[11])),
    ];
    let mut replay = Replay::new(url(RECENT), Start::Oldest);
    let rounds = [
        (
            vec![leads("1", &[7]), leads("2", &[8]), leads("3", &[9])],
            1,
        ),
        (
            vec![
                leads("4", &[10]),
                leads("4", &[10]),
                leads("5", &[11, 9]),
                leads("6", &[12, 9]),
            ],
            2,
        ),
        (vec![leads("6", &[12, 9])], 0),
    ];
    for (pages, left) in rounds {
        let (_, place) = walk_tagged(&mut replay, copies([pages, archives.clone()].concat()));
        assert_eq!(place.unwrap().pending.len(), left);
    }
}

/// Goal: an archive that is marked as one cannot grow, so it is not requested again when entries are gone.
#[test]
fn a_marked_archive_is_not_read_again() {
    let mark = "<h:archive xmlns:h='http://purl.org/syndication/history/1.0'/>";
    let mut answer = copies(vec![
        recent(&[4, 3]),
        recent(&[6, 5, 4]),
        ("1", mark.to_owned() + &entries(&[2, 1])),
    ]);
    let mut requests = 0;
    let mut replay = Replay::new(url(RECENT), Start::Oldest);
    let (seen, outcome) = walk_tagged(&mut replay, |at| {
        requests += u32::from(number_of(at).is_some());
        answer(at)
    });
    assert_eq!((seen, outcome.err()), ((1..=6).collect(), None));
    assert_eq!(requests, 2, "on the way back and on the way forward");
}
