//! Settling: a chapter of the journal becomes records in sled.
//!
//! Pure, but for reads of the chapter and of sled, and writes to sled. Groups of a feed's entries
//! are packed, and gather in the feed's record. Facts of commits are packed into records. Of a
//! feed's heads, the last one counts. A second settling of a chapter changes nothing, so a settling
//! that broke off is simply begun again.

use simplefeed_core::feed::{FeedKey, Position};

use super::{
    chapter::{Chapter, FeedChange},
    packing::pack,
    record::{self, CommitFacts, FactsRecord, RECORD_BYTES},
    settled::{Putting, SettledPart},
    tail::{FeedRecord, Tail},
};
use crate::codec;
use crate::{LogError, LogHead};

mod moved;

use moved::MovedEntries;

/// Returns an error if the settling is to end.
type GoOn<'g> = &'g dyn Fn() -> Result<(), LogError>;

/// Stores the content of a chapter, without the mark of the chapter's end.
///
/// # Errors
///
/// Returns the failure to read or to write, or the error of `go_on`, which is asked now and then.
pub(super) fn settle(
    chapter: &Chapter,
    settled: &SettledPart,
    go_on: GoOn<'_>,
) -> Result<(), LogError> {
    // Feeds come in the order of their keys. In this order, sled writes each page once.
    let feeds = chapter.sorted_feeds();
    let mut putting = settled.putting();
    let moved = MovedEntries::new(chapter, settled, go_on);
    for (feed, changed) in &feeds {
        go_on()?;
        settle_feed((*feed, changed), &moved, &mut putting)?;
    }
    for (key, place) in chapter.keyed_from(&[]) {
        let body = chapter.value(*place)?;
        // Of these values, only settings and defaults may be long, so only they are stored in
        // parts.
        match key.first() {
            Some(b's' | b'g') => putting.put(key, &body)?,
            _ => putting.put_value(key.clone(), codec::seal(body.to_vec()))?,
        }
    }
    pack_facts(chapter, &mut putting, go_on)?;
    putting.finish()
}

/// Returns the end of the log behind a chapter, if the chapter has commits.
///
/// # Errors
///
/// Returns the failure to read.
pub(super) fn end_of(chapter: &Chapter) -> Result<Option<LogHead>, LogError> {
    let Some((number, place)) = chapter.all_facts().last() else {
        return Ok(None);
    };
    let facts = CommitFacts::decode(&chapter.value(place)?);
    let damaged = || LogError::damaged(format!("the facts of commit {number}"));
    Ok(Some(facts.ok_or_else(damaged)?.end(number)))
}

/// Checks that sled has all of a settled chapter.
///
/// # Errors
///
/// Returns that a part is missing or differs, the failure to read, or the error of `go_on`.
pub(super) fn check_settled(
    chapter: &Chapter,
    settled: &SettledPart,
    go_on: GoOn<'_>,
) -> Result<(), LogError> {
    let lost = |what: &str| LogError::damaged(format!("sled has lost {what} of what was settled"));
    let moved = MovedEntries::new(chapter, settled, go_on);
    for (feed, changed) in &chapter.sorted_feeds() {
        go_on()?;
        let head = changed.head.ok_or_else(|| lost("a head"))?;
        let head = chapter.value(head)?;
        let record = settled.feed_record(*feed)?;
        let record = record.filter(|record| record.head == head);
        let record = record.ok_or_else(|| lost("a feed's record"))?;
        moved.check_entries((*feed, changed), &record.tail)?;
    }
    for (key, place) in chapter.keyed_from(&[]) {
        go_on()?;
        let found = match key.first() {
            Some(b's' | b'g') => settled.joined("value", key)?,
            _ => settled.value("value", key)?,
        };
        let body = chapter.value(*place)?;
        if found.is_none_or(|found| found != body) {
            return Err(lost("a value"));
        }
    }
    // The facts of one record are read together, and used up commit by commit.
    let mut found = vec![].into_iter();
    for (number, place) in chapter.all_facts() {
        go_on()?;
        if found.len() == 0 {
            found = settled.facts_from(number)?.into_iter();
        }
        let facts = chapter.value(place)?;
        if found.next().is_none_or(|found| found != facts) {
            return Err(lost("a commit"));
        }
    }
    Ok(())
}

/// Stores the entries and the head that a feed has gained. The feed's record comes last, and has
/// the head of the chapter from then on. So a settling that is begun again sees by the record that
/// the feed is settled.
fn settle_feed<'s>(
    (feed, changed): (FeedKey, &FeedChange),
    moved: &MovedEntries<'s>,
    putting: &mut Putting<'s>,
) -> Result<(), LogError> {
    let MovedEntries {
        chapter,
        settled,
        go_on,
        ..
    } = *moved;
    let missing = || LogError::damaged(format!("the journal has no head of feed {}", feed.0));
    let head = chapter.value(changed.head.ok_or_else(missing)?)?;
    // A damaged record stops the log: the tail in the record may be the only place of its entries.
    let before = settled.feed_record(feed)?;
    // A record with the head of the chapter has the chapter's entries, which must not be added to
    // the tail twice.
    if let Some(before) = before.as_ref().filter(|before| before.head == head) {
        return moved.check_entries((feed, changed), &before.tail);
    }
    let mut gathering = FeedGathering {
        feed,
        tail: before.map(|before| before.tail).unwrap_or_default(),
        gained: 0,
        // Only an earlier process can have divided the entries otherwise. The search costs reads,
        // and the removal of whole records makes sled join pages.
        leftovers: chapter.was_left.then_some((settled, go_on)),
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
                gathering.add_groups(full)?;
            }
        }
    }
    let end = open.as_ref().map(|(_, end, _)| *end);
    gathering.add_groups(open)?;
    if let Some(end) = end {
        gathering.remove_leftovers_behind(end)?;
    }
    let record = FeedRecord::encode(&head, &gathering.tail);
    putting.put_value(record::feed_key(feed), codec::seal(record))
}

/// The entries of a feed, gathering in its tail.
struct FeedGathering<'p, 's> {
    feed: FeedKey,
    tail: Tail,
    /// Packed bytes that were added.
    gained: usize,
    /// Place of records that a settling of an earlier process has left, if there may be any.
    /// Another version of the program may have divided the entries otherwise.
    leftovers: Option<(&'s SettledPart, GoOn<'p>)>,
    putting: &'p mut Putting<'s>,
}

impl FeedGathering<'_, '_> {
    /// Adds groups that follow, with their first position and the position behind them.
    fn add_groups(
        &mut self,
        groups: Option<(Position, Position, Vec<u8>)>,
    ) -> Result<(), LogError> {
        let Some((first, end, groups)) = groups else {
            return Ok(());
        };
        let next = Tail::of(first, end, groups);
        self.gained += next.stored.len();
        if self.tail.takes(&next) {
            self.tail.append(&next);
        } else {
            self.put_tail()?;
            self.tail = next;
        }
        if self.tail.is_full(self.gained) {
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
        if let Some((settled, go_on)) = self.leftovers {
            // The parts of this record itself stay, because their values are written next.
            let behind = record::part_key(&key, record::count_parts(&tail.stored));
            let end = record::entry_key(self.feed, tail.end);
            settled.remove_range(&behind, &end, go_on)?;
        }
        self.putting.put(&key, &tail.stored)
    }

    /// Removes records that an earlier settling has left of the entries in the tail. The last of
    /// these entries is before `end`.
    fn remove_leftovers_behind(&self, end: Position) -> Result<(), LogError> {
        let Some((settled, go_on)) = self.leftovers else {
            return Ok(());
        };
        let first = if self.tail.is_empty() {
            end
        } else {
            self.tail.first
        };
        // Entries behind the chapter are in no record yet, so the rest of the feed's keys are
        // leftovers.
        let all = record::entry_key(self.feed, Position(u64::MAX));
        settled.remove_range(&record::entry_key(self.feed, first), &all, go_on)
    }
}

fn pack_facts(
    chapter: &Chapter,
    putting: &mut Putting<'_>,
    go_on: GoOn<'_>,
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
        Some(record) => putting.put(&record::facts_key(record.first), &pack(record.encode())),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests;
