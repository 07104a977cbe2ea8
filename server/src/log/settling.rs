//! Settling: a chapter of the journal becomes records in sled.
//!
//! Pure, but for reads of the chapter and of sled, and writes to sled. Groups of a feed's entries are packed, and gather
//! in the feed's record; the facts of commits are packed into records; of a feed's heads, the last one counts. Settling
//! a chapter twice is the same as once, so a settling that broke off is simply begun again.

use simplefeed_core::feed::{FeedKey, Position};

use super::{
    LogError, LogHead,
    chapter::{Changed, Chapter},
    record::{self, CommitFacts, FactsRecord, RECORD_BYTES, SETTLED_KEY},
    settled::{Putting, Settled},
    tail::{FeedRecord, Tail},
};
use crate::codec;

/// Stores the content of a chapter, all but where it ends.
///
/// # Errors
///
/// Returns the failure to read or to write, or that of `go_on`, which is asked now and then.
pub(super) fn settle(
    chapter: &Chapter,
    settled: &Settled,
    go_on: &dyn Fn() -> Result<(), LogError>,
) -> Result<(), LogError> {
    let feeds = chapter.sorted_feeds();
    let mut putting = settled.putting();
    for (feed, changed) in &feeds {
        go_on()?;
        settle_feed(chapter, (*feed, changed), settled, &mut putting, go_on)?;
    }
    for (key, place) in chapter.keyed_from(&[]) {
        let body = chapter.value(*place)?;
        // Only settings and defaults may be long; they alone are stored in parts.
        match key.first() {
            Some(b's' | b'g') => putting.put(key, &body)?,
            _ => putting.put_value(key.clone(), codec::seal(body.to_vec()))?,
        }
    }
    pack_facts(chapter, &mut putting, go_on)?;
    putting.finish()
}

/// Stores where a chapter ends: from now on, it counts as settled. Returns that end, if the chapter has commits.
///
/// # Errors
///
/// Returns the failure to read or to write.
pub(super) fn settle_end(
    chapter: &Chapter,
    settled: &Settled,
) -> Result<Option<LogHead>, LogError> {
    let Some((number, place)) = chapter.all_facts().last() else {
        return Ok(None);
    };
    let facts = CommitFacts::decode(&chapter.value(place)?);
    let damaged = || LogError::damaged(format!("the facts of commit {number}"));
    let end = facts.ok_or_else(damaged)?.end(number);
    settled.put(SETTLED_KEY, &record::encode_end(&end))?;
    Ok(Some(end))
}

/// Stores what a feed has gained. Its record comes last, and has the head of the chapter from then on: a settling that
/// is begun again finds there that the feed is settled.
fn settle_feed(
    chapter: &Chapter,
    (feed, changed): (FeedKey, &Changed),
    settled: &Settled,
    putting: &mut Putting<'_>,
    go_on: &dyn Fn() -> Result<(), LogError>,
) -> Result<(), LogError> {
    let missing = || LogError::damaged(format!("the journal has no head of feed {}", feed.0));
    let head = chapter.value(changed.head.ok_or_else(missing)?)?;
    // If it is damaged, the log stops: the tail may be the only place of its entries.
    let before = settled.feed_record(feed)?;
    if before.as_ref().is_some_and(|before| before.head == head) {
        return putting.remove(record::head_key(feed));
    }
    if chapter.was_left
        && let Some((first, _)) = changed.groups.first()
    {
        // The program that broke off may have divided the entries otherwise.
        settled.remove_entries(feed, *first)?;
    }
    let is_new = before.is_none();
    let mut gathering = Gathering {
        feed,
        tail: before.map(|before| before.tail).unwrap_or_default(),
        putting,
    };
    let mut open: Option<(Position, Position, Vec<u8>)> = None;
    for (first, place) in &changed.groups {
        let group = chapter.value(*place)?;
        let count = record::count_entries(&group);
        let count = count.ok_or_else(|| LogError::damaged(format!("the group at {first}")))?;
        let next = Position(first.0 + count);
        match &mut open {
            // Positions behind lost entries begin another record.
            Some((_, end, body)) if *end == *first && body.len() + group.len() <= RECORD_BYTES => {
                body.extend_from_slice(&group);
                *end = next;
            }
            _ => {
                go_on()?;
                let full = open.replace((*first, next, group.to_vec()));
                gathering.add(full)?;
            }
        }
    }
    gathering.add(open)?;
    let record = FeedRecord::encode(&head, &gathering.tail);
    putting.put_value(record::feed_key(feed), codec::seal(record))?;
    if is_new {
        // Of a log that had no such records.
        putting.remove(record::head_key(feed))?;
    }
    Ok(())
}

/// The entries of a feed, gathering in its tail.
struct Gathering<'p, 's> {
    feed: FeedKey,
    tail: Tail,
    putting: &'p mut Putting<'s>,
}

impl Gathering<'_, '_> {
    /// Adds groups that follow, with their first position and the one behind them.
    fn add(&mut self, groups: Option<(Position, Position, Vec<u8>)>) -> Result<(), LogError> {
        let Some((first, end, groups)) = groups else {
            return Ok(());
        };
        let next = Tail::of(first, end, groups);
        if self.tail.takes(&next) {
            self.tail.append(&next);
        } else {
            self.put_tail()?;
            self.tail = next;
        }
        if self.tail.is_full() {
            self.put_tail()?;
        }
        Ok(())
    }

    /// Makes a record of the tail.
    fn put_tail(&mut self) -> Result<(), LogError> {
        let tail = std::mem::take(&mut self.tail);
        if tail.is_empty() {
            return Ok(());
        }
        let key = record::entry_key(self.feed, tail.first);
        self.putting.put(&key, &tail.stored)
    }
}

fn pack_facts(
    chapter: &Chapter,
    putting: &mut Putting<'_>,
    go_on: &dyn Fn() -> Result<(), LogError>,
) -> Result<(), LogError> {
    let mut open: Option<FactsRecord> = None;
    for (number, place) in chapter.all_facts() {
        let facts = chapter.value(place)?;
        if open.as_ref().is_none_or(|record| !record.takes(&facts)) {
            go_on()?;
            put_facts(open.replace(FactsRecord::new(number)), putting)?;
        }
        if let Some(record) = &mut open {
            record.push(&facts);
        }
    }
    put_facts(open, putting)
}

fn put_facts(record: Option<FactsRecord>, putting: &mut Putting<'_>) -> Result<(), LogError> {
    match record {
        Some(record) => putting.put(
            &record::facts_key(record.first),
            &record::pack(record.encode()),
        ),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, path::Path, sync::atomic::Ordering};

    use simplefeed_core::{
        commit::{Change, Commit},
        digest::Digest,
        entry::Entry,
        feed::CommitNumber,
        history::HistoryHash,
        timestamp::Timestamp,
    };

    use super::*;
    use crate::{
        log::{
            Commits as _, Series as _,
            barrier::DiskBarrier,
            contract::{create, entry, settings},
            memory::MemoryLog,
            opening::{Disk, OpenedLog, open_with},
            sled_log::SledLog,
        },
        upkeep::recover::recover,
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

    /// Commits of each round: most feeds gain little, one has records in parts, one loses positions.
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
                    (1, _) => (1, 20),
                    (2, 1) | (3, 0..3) => (0, 0),
                    (2, _) => (3, 300),
                    (3, _) => (8, 9_000),
                    (_, _) => (2, 100),
                };
                if (feed, round) == (5, 6) {
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
            whole.settle_all();
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

    /// Goal: a settling that broke off hinders none that divides the entries otherwise, as another version of the
    /// program may.
    #[test]
    fn records_of_a_settling_that_broke_off_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let opened = open(folder.path());
        let (log, memory) = (&opened.log, MemoryLog::default());
        for round in rounds().into_iter().take(4) {
            for commit in &round {
                memory.append(commit).unwrap();
                log.append(commit).unwrap();
            }
            for (feed, Position(end)) in ends(&memory) {
                let key = settings(feed).id.key();
                let settled = log.settled.feed_record(key).unwrap();
                let settled = settled.map_or(0, |record| {
                    record::decode_head(&record.head).unwrap().next.0
                });
                // Each new entry with a record of its own, but the last one.
                for at in (settled..end).skip(1) {
                    let place = log
                        .chapters
                        .read()
                        .newest
                        .groups(key, &(Position(at)..Position(at + 1)))[0]
                        .1;
                    let group = log.chapters.read().newest.value(place).unwrap();
                    let key = record::part_key(&record::entry_key(key, Position(at)), 0);
                    log.settled.put(&key, &codec::seal(group.to_vec())).unwrap();
                }
            }
            assert!(settle_until(log, usize::MAX));
            log.settle_all();
            for (feed, end) in ends(&memory) {
                let expected = memory
                    .entries(settings(feed).id.key(), Position(0)..end)
                    .unwrap();
                assert_eq!(settled_entries(log, feed, end), expected, "{feed}");
            }
        }
    }

    /// Goal: heads of a log that had no feeds' records are found until there are, and gone then.
    #[test]
    fn a_head_of_an_older_log_becomes_a_feeds_record() {
        let folder = tempfile::tempdir().unwrap();
        let opened = open(folder.path());
        let (log, memory) = (&opened.log, MemoryLog::default());
        let mut all = rounds().into_iter();
        for commit in all.next().unwrap() {
            memory.append(&commit).unwrap();
            log.append(&commit).unwrap();
        }
        log.settle_all();
        for feed in 1..=FEEDS {
            let key = settings(feed).id.key();
            let head = log.settled.head(key).unwrap().unwrap();
            log.settled.remove(&record::feed_key(key)).unwrap();
            log.settled
                .put(&record::head_key(key), &codec::seal(head.to_vec()))
                .unwrap();
        }
        for round in all.take(2) {
            for commit in &round {
                memory.append(commit).unwrap();
                log.append(commit).unwrap();
            }
            log.settle_all();
            for feed in 1..=FEEDS {
                let key = settings(feed).id.key();
                assert_eq!(log.feed(key).unwrap(), memory.feed(key).unwrap());
                let has_gained = ends(&memory).contains(&(feed, Position(0)));
                let old = log.settled.raw_value(&record::head_key(key)).unwrap();
                assert_eq!(old.is_some(), has_gained, "{feed}");
            }
        }
    }

    /// Goal: a log whose settling broke off, after whichever value, is recovered whole.
    #[test]
    fn a_log_is_recovered_from_a_settling_that_broke_off() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: String| folder.path().join(name);
        let memory = MemoryLog::default();
        let opened = open(&path("log".into()));
        let mut rounds: Vec<_> = rounds().into_iter().take(5).collect();
        let last = rounds.pop().unwrap();
        for commit in rounds.iter().flatten() {
            memory.append(commit).unwrap();
            opened.log.append(commit).unwrap();
            if commit.number.0 % 7 == 0 {
                opened.log.settle_all();
            }
        }
        for commit in &last {
            memory.append(commit).unwrap();
            opened.log.append(commit).unwrap();
        }
        for puts in 0.. {
            let is_whole = settle_until(&opened.log, puts);
            opened.log.settled.flush().unwrap();
            let (damaged, to) = (path(format!("at{puts}")), path(format!("to{puts}")));
            crate::log::folder::copy_folder(&path("log".into()), &damaged).unwrap();
            let report = recover(&damaged, None, &to).unwrap();
            assert!(report.missing.is_empty(), "{puts}: {:?}", report.missing);
            let recovered = open(&to);
            for (feed, end) in ends(&memory) {
                let key = settings(feed).id.key();
                let fragments = |entries: Vec<Entry>| -> Vec<_> {
                    entries
                        .into_iter()
                        .map(|entry| (entry.at, entry.fragment))
                        .collect()
                };
                let found = recovered.log.entries(key, Position(0)..end).unwrap();
                let expected = memory.entries(key, Position(0)..end).unwrap();
                assert_eq!(fragments(found), fragments(expected), "{puts}: {feed}");
            }
            if is_whole {
                break;
            }
        }
    }
}
