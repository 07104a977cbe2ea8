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
    let before = settled.feed_record(feed)?;
    if before.as_ref().is_some_and(|before| before.head == head) {
        return Ok(());
    }
    let mut gathering = Gathering {
        feed,
        // A log that had no such records may have records of entries from a settling that broke off. No record here
        // may reach over the beginning of one of them.
        joins: before.is_some(),
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
    putting.put_value(record::feed_key(feed), codec::seal(record))
}

/// The entries of a feed, gathering in its tail.
struct Gathering<'p, 's> {
    feed: FeedKey,
    /// Whether several groups may share a record.
    joins: bool,
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
        if self.joins && self.tail.takes(&next) {
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
    use std::{cell::Cell, path::Path};

    use simplefeed_core::{
        commit::{Change, Commit},
        entry::Entry,
        feed::CommitNumber,
        timestamp::Timestamp,
    };

    use super::*;
    use crate::log::{
        Commits as _, Series as _,
        barrier::DiskBarrier,
        contract::{create, entry, settings},
        memory::MemoryLog,
        opening::{Disk, OpenedLog, open_with},
        sled_log::SledLog,
    };

    const FEEDS: u128 = 4;
    const ROUNDS: u64 = 12;

    fn open(folder: &Path) -> OpenedLog {
        let disk = Disk {
            chapter_bytes: u64::MAX,
            ..Disk::behind(DiskBarrier::new().unwrap())
        };
        open_with(folder, &disk).unwrap()
    }

    /// Commits of each round: most feeds gain little, one of them more than a part has room for.
    fn rounds() -> Vec<Vec<Commit>> {
        let (mut number, mut next) = (0, [0; 4]);
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
                    (3, _) => (60, 9_000),
                    (_, _) => (2, 7_000),
                };
                for _ in 0..count {
                    commits.push(commit(vec![entry(feed, *next, bytes)]));
                    *next += 1;
                }
            }
            rounds.push(commits);
        }
        rounds
    }

    fn settled_entries(log: &SledLog, feed: u128, end: Position) -> Vec<Entry> {
        let mut found = vec![];
        let key = settings(feed).id.key();
        for at in [0, end.0 / 2, end.0.saturating_sub(1)] {
            let (mut part, range) = (vec![], Position(at)..end);
            log.settled.entries(key, &range, &mut part).unwrap();
            found = if at == 0 { part.clone() } else { found };
            assert_eq!(
                part.len(),
                usize::try_from(end.0 - at).unwrap(),
                "{feed}: {range:?}"
            );
        }
        found
    }

    fn pairs(log: &SledLog) -> Vec<(Vec<u8>, Vec<u8>)> {
        log.settled.pairs(b"", b"", usize::MAX).unwrap()
    }

    /// Settles the newest chapter once for every place where a settling can break off, each time a bit further. Returns
    /// how often. Entries that were settled before must be there at each.
    fn break_off(log: &SledLog, before: &[Position]) -> usize {
        for places in 0_usize.. {
            let left = Cell::new(places);
            let go_on = || {
                let is_over = left.get() == 0;
                left.set(left.get().saturating_sub(1));
                if is_over {
                    Err(LogError::Closing)
                } else {
                    Ok(())
                }
            };
            let broken = settle(&log.chapters.read().newest, &log.settled, &go_on).is_err();
            for (feed, end) in (1..).zip(before) {
                settled_entries(log, feed, *end);
            }
            if !broken {
                return places;
            }
        }
        unreachable!()
    }

    /// Goal: entries gather in few records; wherever a settling breaks off, the next one gives what one alone gives, and
    /// nothing that was settled before is missing or there twice.
    #[test]
    fn a_settling_that_broke_off_is_begun_again() {
        let folder = tempfile::tempdir().unwrap();
        let opened = ["whole", "broken"].map(|name| open(&folder.path().join(name)));
        let [whole, broken] = opened.each_ref().map(|opened| &opened.log);
        let memory = MemoryLog::default();
        let (mut before, mut breaks, mut changed) = (vec![], 0, 0);
        for round in rounds() {
            for commit in &round {
                memory.append(commit).unwrap();
                whole.append(commit).unwrap();
                broken.append(commit).unwrap();
            }
            whole.settle_all();
            breaks += break_off(broken, &before);
            broken.settle_all();
            assert!(pairs(whole) == pairs(broken));
            changed += feeds_in(&round);
            before = (1..=FEEDS)
                .map(|feed| memory.feed(settings(feed).id.key()).unwrap().unwrap().next)
                .collect();
            for (feed, end) in (1..).zip(&before) {
                let key = settings(feed).id.key();
                let expected = memory.entries(key, Position(0)..*end).unwrap();
                assert_eq!(settled_entries(broken, feed, *end), expected);
            }
        }
        let records = pairs(whole);
        let of_small = |key: &[u8]| {
            record::entry_of_key(key).is_some_and(|(feed, _)| feed != settings(3).id.key())
        };
        let small = records.iter().filter(|(key, _)| of_small(key)).count();
        assert!(
            breaks > 100 && small > 0 && small * 3 < changed,
            "{breaks}, {small} of {changed}"
        );
    }

    /// Returns how many feeds have gained entries.
    fn feeds_in(round: &[Commit]) -> usize {
        let changes = round.iter().flat_map(|commit| &commit.changes);
        let feeds = changes.filter_map(|change| match change {
            Change::Entry { feed, .. } => Some(*feed),
            _ => None,
        });
        feeds.collect::<std::collections::BTreeSet<_>>().len()
    }
}
