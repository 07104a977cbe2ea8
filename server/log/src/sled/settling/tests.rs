//! Settlings that break off after each change, among feeds of all kinds.

use std::{
    collections::BTreeSet,
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
    sync::{Arc, atomic::Ordering},
    thread,
    time::{Duration, Instant},
};

use simplefeed_core::{
    commit::{Change, Commit},
    digest::Digest,
    entry::Entry,
    feed::CommitNumber,
    history::HistoryHash,
    timestamp::Timestamp,
};

use simplefeed_process::lack::lack_in;

use super::*;
use crate::{
    Append as _, Commits as _, Series as _,
    barrier::{Barrier, DiskBarrier, LogStep},
    fixtures::{create, entry, settings},
    memory::MemoryLog,
    sled::{
        opening::{Disk, OpenedLog, open_with},
        settled::{Meanwhile, quietly},
        sled_log::SledLog,
        snapshots,
    },
};

const FEEDS: u128 = 5;
const ROUNDS: u64 = 12;

fn open(folder: &Path) -> OpenedLog {
    let disk = Disk {
        chapter_bytes: u64::MAX,
        ..Disk::behind(DiskBarrier::new().unwrap())
    };
    open_with(folder, &disk).unwrap()
}

/// An entry that does not get shorter when it is packed.
fn random_entry(feed: u128, at: u64, bytes: usize) -> Change {
    let mut change = entry(feed, at, 0);
    if let Change::Entry {
        digest, fragment, ..
    } = &mut change
    {
        let mut text = String::from_utf8(fragment.to_vec()).unwrap();
        for part in 0..bytes / 43 {
            let noise = Digest::of(format!("{feed} {at} {part}").as_bytes());
            text += &data_encoding::BASE64_NOPAD.encode(&noise.0);
        }
        *fragment = text.into();
        *digest = Digest::of(fragment);
    }
    change
}

/// Commits of each round: most feeds gain little, one at last too much for its tail, one has records in parts, two lose
/// positions.
fn rounds() -> Vec<Vec<Commit>> {
    let (mut number, mut next) = (0, [0; 5]);
    let mut commit = |changes: Vec<Change>| {
        number += 1;
        Commit {
            number: CommitNumber(number),
            instant: Timestamp::from_micros(1_000_000 * i64::try_from(number).unwrap()),
            changes,
        }
    };
    let created = (1..=FEEDS).flat_map(create).collect();
    let mut rounds = vec![vec![commit(created)]];
    for round in 0..ROUNDS {
        let mut commits = vec![];
        for (feed, next) in (1..=FEEDS).zip(&mut next) {
            let (count, bytes) = match (feed, round % 4) {
                (1, 10) => (1, 9_000),
                (1, _) => (1, 20),
                (2, 1) | (3, 0..3) => (0, 0),
                (2, _) => (3, 300),
                (3, _) => (8, 9_000),
                (_, _) => (2, 100),
            };
            if [(5, 6), (4, 9)].contains(&(feed, round)) {
                *next += 10;
                let (next, history) = (Position(*next), HistoryHash(Digest::of(b"lost")));
                let feed = settings(feed).id.key();
                commits.push(commit(vec![Change::Lost {
                    feed,
                    next,
                    history,
                }]));
            }
            for _ in 0..count {
                commits.push(commit(vec![random_entry(feed, *next, bytes)]));
                *next += 1;
            }
        }
        rounds.push(commits);
    }
    rounds
}

/// Returns the settled entries of a feed before `end`, read from several places on.
fn settled_entries(log: &SledLog, feed: u128, end: Position) -> Vec<Entry> {
    let key = settings(feed).id.key();
    let read = |from: u64, to: u64| {
        let mut found = vec![];
        let range = Position(from)..Position(to);
        log.settled.entries(key, &range, &mut found).unwrap();
        found
    };
    let all = read(0, end.0);
    for from in 0..end.0 {
        let here = all.iter().filter(|entry| entry.at.0 >= from);
        let to = end.0.min(from + 3);
        let few = here.clone().filter(|entry| entry.at.0 < to);
        assert!(read(from, end.0).iter().eq(here), "{feed}: from {from}");
        assert!(read(from, to).iter().eq(few), "{feed}: {from} to {to}");
    }
    all
}

fn ends(log: &MemoryLog) -> Vec<(u128, Position)> {
    let end = |feed| Some((feed, log.feed(settings(feed).id.key()).unwrap()?.next));
    (1..=FEEDS).filter_map(end).collect()
}

fn pairs(log: &SledLog) -> Vec<(Vec<u8>, Vec<u8>)> {
    let pairs = log.settled.pairs(b"", b"", usize::MAX).unwrap();
    // A process that ended may have sent keys ahead.
    pairs
        .into_iter()
        .filter(|(_, value)| !value.is_empty())
        .collect()
}

/// Begins to settle the newest chapter, and ends after so many stored values. Returns whether it came to its end.
fn settle_until(log: &SledLog, puts: usize) -> bool {
    log.settled.puts_left.store(puts, Ordering::Release);
    log.chapters.write().newest.was_left = true;
    let settled = settle(&log.chapters.read().newest, &log.settled, &|| Ok(()));
    log.settled.puts_left.store(usize::MAX, Ordering::Release);
    settled.is_ok()
}

/// Goal: entries gather in few records; after whichever value a settling breaks off, the next one gives what one
/// alone gives, and nothing that was settled before is missing or there twice.
#[test]
fn a_settling_that_broke_off_is_begun_again() {
    let folder = tempfile::tempdir().unwrap();
    let opened = ["whole", "broken"].map(|name| open(&folder.path().join(name)));
    let [whole, broken] = opened.each_ref().map(|opened| &opened.log);
    let memory = MemoryLog::default();
    let (mut before, mut breaks, mut gains) = (vec![], 0, 0);
    for round in rounds() {
        for commit in &round {
            memory.append(commit).unwrap();
            whole.append(commit).unwrap();
            broken.append(commit).unwrap();
        }
        let changed = whole.chapters.read().feeds();
        assert!(changed == feeds_of(&round).len() || before.is_empty());
        whole.settle_all();
        assert_eq!(whole.chapters.read().feeds(), 0);
        for puts in 0.. {
            let is_whole = settle_until(broken, puts);
            for (feed, end) in &before {
                settled_entries(broken, *feed, *end);
            }
            breaks += 1;
            if is_whole {
                break;
            }
        }
        broken.settle_all();
        assert!(pairs(whole) == pairs(broken));
        gains += feeds_of(&round).len();
        before = ends(&memory);
        for (feed, end) in &before {
            let key = settings(*feed).id.key();
            let expected = memory.entries(key, Position(0)..*end).unwrap();
            assert_eq!(settled_entries(broken, *feed, *end), expected);
        }
    }
    let is_record = |key: &[u8]| record::entry_of_key(key).is_some();
    let of_large = record::entries_prefix(settings(3).id.key());
    let records = pairs(whole);
    let mut records = records.iter().filter(|(key, _)| is_record(key));
    assert!(
        records.clone().any(|(key, _)| key.last() == Some(&1)),
        "one in parts"
    );
    let small = records
        .by_ref()
        .filter(|(key, _)| !key.starts_with(&of_large))
        .count();
    assert!(
        breaks > 100 && small > 3 && small * 2 < gains,
        "{breaks}, {small} of {gains}"
    );
}

fn feeds_of(round: &[Commit]) -> BTreeSet<FeedKey> {
    let changes = round.iter().flat_map(|commit| &commit.changes);
    let feeds = changes.filter_map(|change| match change {
        Change::Entry { feed, .. } => Some(*feed),
        _ => None,
    });
    feeds.collect()
}

/// Stores a record of its own for each entry of the newest chapter, but a feed's first one.
fn divide_otherwise(log: &SledLog, memory: &MemoryLog) {
    for (feed, Position(end)) in ends(memory) {
        let key = settings(feed).id.key();
        let record = log.settled.feed_record(key).unwrap();
        let next = record.map(|record| record::decode_head(&record.head).unwrap().next);
        for at in (next.map_or(0, |next| next.0)..end).skip(1).map(Position) {
            let chapters = log.chapters.read();
            let groups = chapters.newest.groups(key, &(at..at.next()));
            let Some((first, place)) = groups.first().filter(|(first, _)| *first == at) else {
                continue;
            };
            let group = chapters.newest.value(*place).unwrap();
            for (part, value) in record::parts(&group) {
                let key = record::part_key(&record::entry_key(key, *first), part);
                log.settled.put(&key, &value).unwrap();
            }
        }
    }
}

/// Goal: a settling that finds the disk full, wherever that is, is begun again in the same process, and loses nothing; nor does
/// a process that ends before. A marked chapter is not written again: its mark would stand beside half a chapter.
#[test]
fn a_settling_that_lacked_something_is_begun_again() {
    let mut marks = 0;
    for puts in 0.. {
        let folder = tempfile::tempdir().unwrap();
        let (mut opened, memory) = (open(folder.path()), MemoryLog::default());
        let mut has_ended = true;
        for (number, round) in rounds().into_iter().take(2).enumerate() {
            let ends_before = (puts + number).is_multiple_of(2);
            for commit in &round {
                memory.append(commit).unwrap();
                opened.log.append(commit).unwrap();
            }
            let puts_left = &opened.log.settled.puts_left;
            puts_left.store(puts, Ordering::Release);
            opened.log.rotate();
            let left = opened.log.chapters.read().full.front().map(Arc::clone);
            has_ended &= left.is_none();
            let is_marked = left.is_some_and(|left| {
                let end = end_of(&left).unwrap().unwrap();
                let marked = opened.log.settled.raw_value(record::SETTLED_KEY).unwrap();
                marked == Some(record::encode_end(&end))
            });
            if ends_before {
                opened.close().unwrap();
                opened = open(folder.path());
            } else {
                puts_left.store(usize::MAX, Ordering::Release);
                let deadline = Instant::now() + Duration::from_mins(1);
                while !opened.log.chapters.read().full.is_empty() && Instant::now() < deadline {
                    thread::yield_now();
                }
                let made = usize::MAX - puts_left.load(Ordering::Acquire);
                assert!(!is_marked || made == 1, "{puts}: {made}");
            }
            marks += usize::from(is_marked);
            opened.log.settle_rest();
            opened.log.wait_for_settling();
            assert!(opened.log.chapters.read().full.is_empty(), "{puts}");
            for (feed, end) in ends(&memory) {
                let expected = memory.entries(settings(feed).id.key(), Position(0)..end);
                assert_eq!(settled_entries(&opened.log, feed, end), expected.unwrap());
            }
        }
        opened.close().unwrap();
        if has_ended {
            break;
        }
    }
    assert!(marks > 0);
}

/// Goal: sled is opened again behind a failure that makes it refuse reads, also where nothing is settled.
#[test]
fn an_idle_settler_opens_sled_again() {
    let folder = tempfile::tempdir().unwrap();
    let opened = open(folder.path());
    let mut rounds = rounds().into_iter();
    for commit in rounds.next().into_iter().flatten() {
        opened.log.append(&commit).unwrap();
    }
    opened.log.settle_all();
    let settled = &opened.log.settled;
    // Reads make sled write, too: its next snapshot is another one. The key is one that nobody reads.
    settled.put(b"~", b"1").unwrap();
    settled.flush().unwrap();
    // The first try lacks something, too.
    settled.puts_left.store(0, Ordering::Release);
    settled.note_failure();
    assert!(opened.log.refuses());
    opened.log.wait_for_settling();
    assert!(opened.log.refuses());
    settled.puts_left.store(usize::MAX, Ordering::Release);
    let deadline = Instant::now() + Duration::from_mins(1);
    while opened.log.refuses() && Instant::now() < deadline {
        thread::yield_now();
    }
    assert!(!settled.is_lacking());
    opened.log.check_others().unwrap();
    for commit in rounds.next().into_iter().flatten() {
        opened.log.append(&commit).unwrap();
    }
    opened.log.rotate();
    // It rests before it settles.
    let is_settled = || opened.log.chapters.read().full.is_empty();
    while !is_settled() && Instant::now() < deadline {
        thread::yield_now();
    }
    assert!(is_settled());
    opened.log.check_others().unwrap();
}

/// Goal: reads say why sled is closed: for want of something, until it is opened again; or because it may have lost something,
/// for good.
#[test]
fn reads_say_why_sled_is_closed() {
    let folder = tempfile::tempdir().unwrap();
    let opened = open(folder.path());
    for commit in rounds().into_iter().take(2).flatten() {
        opened.log.append(&commit).unwrap();
    }
    opened.log.settle_all();
    let settled = &opened.log.settled;
    let read = || settled.raw_value(record::SETTLED_KEY);
    let lack = || LogError::lacking("open", std::io::ErrorKind::StorageFull.into());
    let refused = settled.reopen(|| Err(lack())).unwrap_err();
    assert!(lack_in(&refused).is_some(), "{refused:?}");
    assert!(matches!(read(), Err(LogError::Lacking { .. })));
    settled.reopen(|| Ok(())).unwrap();
    assert!(read().unwrap().is_some());
    settled.give_up();
    assert!(matches!(read(), Err(LogError::Stopped)));
}

/// Goal: what a settling that broke off has left hinders none that divides the entries otherwise, as another version of
/// the program may: also where that breaks off, and where it comes with the first feeds' records.
#[test]
fn records_of_a_settling_that_broke_off_are_removed() {
    let folder = tempfile::tempdir().unwrap();
    let (mut opened, memory) = (open(folder.path()), MemoryLog::default());
    let mut all = rounds();
    let rest = all.split_off(7);
    let mut first: Vec<Commit> = all.into_iter().flatten().collect();
    let second = first.split_off(30);
    for (turn, commits) in [first, second].into_iter().enumerate() {
        let before = ends(&memory);
        for commit in &commits {
            memory.append(commit).unwrap();
            opened.log.append(commit).unwrap();
        }
        divide_otherwise(&opened.log, &memory);
        opened.log.end_settling();
        opened.log.rotate();
        opened.close().unwrap();
        opened = open(folder.path());
        let log = &opened.log;
        let left = Arc::clone(log.chapters.read().full.front().unwrap());
        for puts in 0.. {
            log.settled.puts_left.store(puts, Ordering::Release);
            let settled = settle(&left, &log.settled, &|| Ok(()));
            log.settled.puts_left.store(usize::MAX, Ordering::Release);
            for (feed, end) in &before {
                settled_entries(log, *feed, *end);
            }
            if settled.is_ok() {
                break;
            }
        }
        drop(left);
        log.settle_rest();
        log.wait_for_settling();
        assert!(log.chapters.read().full.is_empty());
        for (feed, end) in ends(&memory) {
            let expected = memory.entries(settings(feed).id.key(), Position(0)..end);
            let found = settled_entries(log, feed, end);
            assert_eq!(found, expected.unwrap(), "{turn}: {feed}");
        }
    }
    // Leftovers in a tail would show once it is a record.
    for round in rest {
        for commit in &round {
            memory.append(commit).unwrap();
            opened.log.append(commit).unwrap();
        }
        opened.log.settle_all();
        for (feed, end) in ends(&memory) {
            let expected = memory.entries(settings(feed).id.key(), Position(0)..end);
            assert_eq!(settled_entries(&opened.log, feed, end), expected.unwrap());
        }
    }
}

/// Goal: a settling that is begun again fails if a record of a feed that it passes over is gone, also if the record's
/// entries were settled before.
#[test]
fn a_settling_that_is_begun_again_misses_no_record() {
    let folder = tempfile::tempdir().unwrap();
    let opened = open(folder.path());
    let log = &opened.log;
    let (mut gone, mut gone_before) = (0, 0);
    for round in rounds() {
        for commit in &round {
            log.append(commit).unwrap();
        }
        let before = pairs(log);
        assert!(settle_until(log, usize::MAX));
        let new = pairs(log);
        let new = new.iter().filter(|pair| !before.contains(pair));
        for (key, value) in new.filter(|(key, _)| record::entry_of_key(key).is_some()) {
            log.settled.remove(key).unwrap();
            assert!(!settle_until(log, usize::MAX), "{key:?}");
            log.settled.put(key, value).unwrap();
            gone += 1;
            let (feed, first) = record::entry_of_key(key).unwrap();
            let chapters = log.chapters.read();
            let groups = chapters
                .newest
                .groups(feed, &(Position(0)..Position(u64::MAX)));
            gone_before += usize::from(groups.first().is_some_and(|(at, _)| first < *at));
        }
        assert!(settle_until(log, usize::MAX));
        log.settle_all();
    }
    assert!(gone > 20 && gone_before > 5, "{gone}, {gone_before}");
}

/// Goal: a reader finds each entry and each head, also when a settling comes between two of its reads.
#[test]
fn readers_miss_nothing_while_a_chapter_is_settled() {
    let folder = tempfile::tempdir().unwrap();
    let opened = open(folder.path());
    let log = Arc::new(opened.log);
    let key = settings(1).id.key();
    let commits = [create(1)].into_iter().chain((0..240).map(|at| {
        let bytes = usize::try_from(at % 7).unwrap() * 43;
        vec![random_entry(1, at, bytes)]
    }));
    let mut met = [0; 3];
    for (number, changes) in (1..).zip(commits) {
        let commit = Commit {
            number: CommitNumber(number),
            instant: Timestamp::from_micros(1_000_000 * i64::try_from(number).unwrap()),
            changes,
        };
        let had = log.settled.feed_record(key).unwrap();
        log.append(&commit).unwrap();
        let reads = usize::try_from(number % 3).unwrap();
        let settles = || -> Option<Meanwhile> {
            let log = Arc::clone(&log);
            let work = move || assert!(settle_until(&log, usize::MAX));
            Some((reads, Box::new(work)))
        };
        if let Some(had) = had {
            let end = record::decode_head(&had.head).unwrap().next;
            *log.settled.meanwhile.lock() = settles();
            let mut found = vec![];
            let all = Position(0)..end;
            log.settled.entries(key, &all, &mut found).unwrap();
            let found: Vec<_> = found.iter().map(|entry| entry.at.0).collect();
            assert!(found.iter().copied().eq(0..end.0), "{number}: {found:?}");
            let has = log.settled.feed_record(key).unwrap().unwrap();
            let has_moved = !had.tail.is_empty() && has.tail.first != had.tail.first;
            assert!(log.settled.head(key).unwrap().is_some(), "{number}");
            met[reads] += usize::from(has_moved && log.settled.meanwhile.lock().is_none());
        }
        log.settled.meanwhile.lock().take();
        log.settle_all();
    }
    assert!(met.iter().all(|met| *met > 5), "{met:?}");
}

/// Returns the entries of each feed; `None` in the place of an error.
fn found(log: &SledLog) -> Vec<Option<Vec<Entry>>> {
    let of_feed = |feed| {
        let key = settings(feed).id.key();
        let end = log.feed(key).ok()?.map_or(Position(0), |feed| feed.next);
        log.entries(key, Position(0)..end).ok()
    };
    // sled panics on some damage.
    let found = (1..=FEEDS).map(|feed| quietly(|| of_feed(feed)).flatten());
    found.collect()
}

/// Goal: files that are damaged under a running server are not made a whole log of less: the next opening refuses them,
/// or each feed is as it was, or unreadable.
/// Method: zeros in the place of the end of sled's file, before some more settlings. The reopening that ends each is a
/// recovery.
#[test]
fn a_settling_over_damage_hides_none_of_it() {
    let (mut refused, mut whole) = (0, 0);
    for case in 0..24 {
        let (settlings, eighth) = (case / 8, case % 8);
        let folder = tempfile::tempdir().unwrap();
        let opened = open(folder.path());
        let (log, memory) = (&opened.log, MemoryLog::default());
        let mut all = rounds().into_iter();
        // Returns whether the log has taken them all.
        let mut append = || {
            let mut commits = all.next().unwrap().into_iter();
            commits.all(|commit| {
                let taken = log.append(&commit).is_ok();
                taken && memory.append(&commit).is_ok()
            })
        };
        assert!(append());
        if settlings == 0 {
            // The keys that go ahead are there.
            assert!(!settle_until(log, 3));
            log.settled.flush().unwrap();
        }
        for _ in 0..settlings {
            assert!(append());
            log.settle_all();
        }
        let db = folder.path().join("sled/db");
        let bytes = std::fs::read(&db).unwrap();
        let used = bytes.iter().rposition(|byte| *byte != 0).unwrap() + 1;
        let from = used * eighth / 8;
        let file = std::fs::OpenOptions::new().write(true).open(&db).unwrap();
        file.write_all_at(&vec![0; used - from], u64::try_from(from).unwrap())
            .unwrap();
        // A log that has failed keeps its chapters.
        for _ in 0..4 {
            if !append() || !log.chapters.read().full.is_empty() {
                break;
            }
            log.rotate();
        }
        // A log that has failed is closed, too.
        opened.close().unwrap_or_default();
        let expected: Vec<_> = (1..=FEEDS)
            .map(|feed| {
                let key = settings(feed).id.key();
                let end = memory.feed(key).unwrap().unwrap().next;
                Some(memory.entries(key, Position(0)..end).unwrap())
            })
            .collect();
        let disk = Disk {
            chapter_bytes: u64::MAX,
            ..Disk::behind(DiskBarrier::new().unwrap())
        };
        let Some(Ok(opened)) = quietly(|| open_with(folder.path(), &disk)) else {
            refused += 1;
            continue;
        };
        let found = found(&opened.log);
        whole += usize::from(found == expected);
        for (feed, (found, expected)) in (1..).zip(found.iter().zip(&expected)) {
            assert!(
                found.is_none() || found == expected,
                "{case}: feed {feed} has lost entries"
            );
        }
    }
    assert!(refused > 5 && whole > 3, "{refused}, {whole}");
}

/// Goal: no part of a settling is lost in the middle of sled's file, where its end does not tell.
/// Method: one segment of it after the other is zeros when sled is opened again.
#[test]
fn a_settling_with_a_hole_is_none() {
    const SEGMENT: usize = 512 * 1024;
    let (mut failed, mut refused) = (0, 0);
    // First without one.
    for hole in (0_usize..).map(|number| number.checked_sub(1)) {
        let folder = tempfile::tempdir().unwrap();
        let opened = open(folder.path());
        let log = &opened.log;
        let created = (1..=FEEDS).flat_map(create).collect();
        let entries = (0..40).flat_map(|at| {
            let feeds = 1..=FEEDS;
            feeds.map(move |feed| vec![random_entry(feed, at, 9_000)])
        });
        let all = std::iter::once(created).chain(entries);
        for (number, changes) in (1..).zip(all) {
            let instant = Timestamp::from_micros(1_000_000 * i64::try_from(number).unwrap());
            let number = CommitNumber(number);
            log.append(&Commit {
                number,
                instant,
                changes,
            })
            .unwrap();
            if number.0 == 60 {
                log.settle_all();
            }
        }
        let before = found(log);
        assert!(settle_until(log, usize::MAX));
        log.settled.flush().unwrap();
        let db = folder.path().join("sled/db");
        let length = std::fs::metadata(&db).unwrap().len();
        if let Some(hole) = hole {
            let at = u64::try_from(hole * SEGMENT).unwrap();
            if at >= length {
                break;
            }
            put_zeros(&db, hole * SEGMENT, SEGMENT);
        }
        log.rotate();
        let is_settled = log.chapters.read().full.is_empty();
        assert!(is_settled || hole.is_some());
        failed += usize::from(!is_settled);
        if is_settled {
            assert!(found(log) == before, "segment {hole:?} is lost");
        }
        opened.close().unwrap_or_default();
        // The journal's copy is there still, and must not be given up unread.
        let disk = Disk::behind(DiskBarrier::new().unwrap());
        if let Some(Ok(opened)) = quietly(|| open_with(folder.path(), &disk)) {
            assert!(found(&opened.log) == before, "segment {hole:?} is lost");
        } else {
            refused += 1;
            assert!(!is_settled, "segment {hole:?}");
        }
    }
    assert!(failed > 2 && refused > 0, "{failed}, {refused}");
}

/// A disk that gets a hole before the opening that ends a settling.
#[derive(Debug, Default)]
struct Holes {
    /// Content of sled's file before, and which of the segments that are others now becomes zeros.
    armed: parking_lot::Mutex<Option<(PathBuf, Vec<u8>, usize)>>,
}

impl Barrier for Holes {
    fn begins(&self, step: LogStep) {
        const SEGMENT: usize = 512 * 1024;
        let mut armed = self.armed.lock();
        let Some((path, before, number)) = armed.take_if(|_| step == LogStep::Reopening) else {
            return;
        };
        let now = std::fs::read(&path).unwrap();
        let mut changed = now.chunks(SEGMENT).enumerate().filter(|(at, segment)| {
            let at = at * SEGMENT;
            before.get(at..at + segment.len()) != Some(segment)
        });
        match changed.nth(number) {
            Some((at, _)) => put_zeros(&path, at * SEGMENT, SEGMENT),
            None => *armed = Some((path, before, number)),
        }
    }

    fn sync(&self, file: &std::fs::File) -> std::io::Result<()> {
        file.sync_data()
    }
}

fn put_zeros(path: &Path, at: usize, count: usize) {
    let file = std::fs::OpenOptions::new().write(true).open(path);
    let at = u64::try_from(at).unwrap();
    file.unwrap().write_all_at(&vec![0; count], at).unwrap();
}

/// A log of many feeds, whose records are most of sled's pages.
struct Crowd {
    folder: tempfile::TempDir,
    opened: OpenedLog,
    holes: Arc<Holes>,
    commits: u64,
}

impl Crowd {
    const FEEDS: u128 = 1_200;

    /// Returns a log with two settled entries of each feed, all pages of which sled has in memory.
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let holes = Arc::new(Holes::default());
        let disk = Disk {
            chapter_bytes: u64::MAX,
            barrier: holes.clone(),
            ..Disk::behind(DiskBarrier::new().unwrap())
        };
        let opened = open_with(folder.path(), &disk).unwrap();
        let mut crowd = Self {
            folder,
            opened,
            holes,
            commits: 0,
        };
        assert!(crowd.commit((1..=Self::FEEDS).flat_map(create).collect()));
        for at in 0..2 {
            assert!(crowd.append(at));
            crowd.opened.log.settle_all();
        }
        assert!(
            Self::entries(&crowd.opened.log, 1)
                .iter()
                .all(Option::is_some)
        );
        crowd
    }

    fn commit(&mut self, changes: Vec<Change>) -> bool {
        self.commits += 1;
        let number = self.commits;
        let commit = Commit {
            number: CommitNumber(number),
            instant: Timestamp::from_micros(1_000_000 * i64::try_from(number).unwrap()),
            changes,
        };
        self.opened.log.append(&commit).is_ok()
    }

    /// Appends the entry at a position to each feed.
    fn append(&mut self, at: u64) -> bool {
        let feeds = 1..=Self::FEEDS;
        self.commit(feeds.map(|feed| random_entry(feed, at, 1_500)).collect())
    }

    /// Returns the entry at a position of each feed; `None` where it cannot be read.
    fn entries(log: &SledLog, at: u64) -> Vec<Option<Entry>> {
        let of_feed = |feed| {
            let key = settings(feed).id.key();
            let found = quietly(|| log.entries(key, Position(at)..Position(at + 1)));
            found.and_then(Result::ok)?.pop()
        };
        (1..=Self::FEEDS).map(of_feed).collect()
    }

    fn db(&self) -> PathBuf {
        self.folder.path().join("sled/db")
    }

    /// Ends the log, and opens it again. Returns whether that is refused; the entries at position 2 are there otherwise.
    fn ends_refused(self, expected: &[Option<Entry>]) -> bool {
        self.opened.close().unwrap_or_default();
        let disk = Disk {
            chapter_bytes: u64::MAX,
            ..Disk::behind(DiskBarrier::new().unwrap())
        };
        let Some(Ok(opened)) = quietly(|| open_with(self.folder.path(), &disk)) else {
            return true;
        };
        assert!(
            Self::entries(&opened.log, 2) == expected,
            "entries are lost"
        );
        false
    }
}

/// Goal: the journal is not given up for a settling that a hole makes a part of, neither at its end nor at the next start.
/// Method: one segment of the settling after the other is zeros when sled is opened behind it.
#[test]
fn a_hole_in_a_settling_is_found_again_at_the_start() {
    let (mut failed, mut refused) = (0, 0);
    for case in 0.. {
        let mut crowd = Crowd::new();
        assert!(crowd.append(2));
        let expected = Crowd::entries(&crowd.opened.log, 2);
        let before = std::fs::read(crowd.db()).unwrap();
        *crowd.holes.armed.lock() = Some((crowd.db(), before, case));
        crowd.opened.log.rotate();
        if crowd.holes.armed.lock().is_some() {
            break;
        }
        failed += usize::from(!crowd.opened.log.chapters.read().full.is_empty());
        refused += usize::from(crowd.ends_refused(&expected));
    }
    assert!(failed > 0 && refused > 0, "{failed}, {refused}");
}

/// Goal: what is acknowledged over a damaged page is there at the next start, or the journal keeps it.
/// Method: a part of a page is zeros while sled has the page in memory; then each feed gains an entry, which is settled.
#[test]
fn a_change_of_a_damaged_page_is_no_copy() {
    const PART: usize = 4_096;
    const CASES: usize = 12;
    let mut refused = 0;
    for case in 0..CASES {
        let mut crowd = Crowd::new();
        let bytes = std::fs::read(crowd.db()).unwrap();
        let used = bytes.chunks(PART).enumerate();
        let used = used.filter(|(_, part)| part.iter().any(|byte| *byte != 0));
        let used: Vec<usize> = used.map(|(at, _)| at * PART).collect();
        assert!(crowd.append(2));
        let expected = Crowd::entries(&crowd.opened.log, 2);
        // The head of a segment stays.
        put_zeros(&crowd.db(), used[case * used.len() / CASES] + 64, PART - 64);
        crowd.opened.log.rotate();
        refused += usize::from(crowd.ends_refused(&expected));
    }
    assert!(refused > 0);
}

/// Goal: the folder of a server that stops within a settling is the one that it has opened, also where the settling has left
/// a snapshot that nobody notes any more.
#[test]
fn a_stop_within_a_settling_displaces_nothing() {
    for stops in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let opened = open(folder.path());
        let log = &opened.log;
        for commit in rounds().concat() {
            log.append(&commit).unwrap();
        }
        log.settle_all();
        log.check_place().unwrap();
        let sled = folder.path().join("sled");
        let noted = snapshots::newest_number(&sled).unwrap();
        let [noted, next] = [noted, noted + 1].map(|number| snapshots::path_of(&sled, number));
        std::fs::rename(noted, next).unwrap();
        if stops {
            log.end_settling();
        }
        assert_eq!(log.check_place().is_ok(), stops);
    }
}

/// Goal: a start is not locked out by its own first look at the journal.
/// Method: the settled file has its old name still, as after a kill before it was used again, and the witness lags behind, so
/// the journal is read twice.
#[test]
fn a_start_reads_the_journal_twice() {
    let folder = tempfile::tempdir().unwrap();
    let opened = open(folder.path());
    let mut commits = rounds().concat();
    let last = commits.pop().unwrap();
    for commit in &commits {
        opened.log.append(commit).unwrap();
    }
    let at = |name: &str| folder.path().join(name);
    let settled = at("journal/00000000000000000001");
    let journal = std::fs::read(&settled).unwrap();
    opened.log.settle_all();
    std::fs::write(&settled, journal).unwrap();
    let witness = std::fs::read(at("witness")).unwrap();
    opened.log.append(&last).unwrap();
    opened.close().unwrap();
    std::fs::write(at("witness"), witness).unwrap();
    let opened = open(folder.path());
    assert_eq!(opened.log.head().number, last.number);
    opened.close().unwrap();
}
