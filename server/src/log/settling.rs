//! Settling: a chapter of the journal becomes records in sled.
//!
//! Pure, but for reads of the chapter and writes to sled. Groups of a feed's entries are packed into records,
//! and so are the facts of commits; of a feed's heads, the last one counts. The result depends on the chapter alone, so
//! a settling that broke off is simply begun again.

use simplefeed_core::feed::{FeedKey, Position};

use super::{
    LogError, LogHead,
    chapter::{Changed, Chapter},
    record::{self, CommitFacts, FactsRecord, RECORD_BYTES, SETTLED_KEY},
    settled::{Putting, Settled},
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
        pack_entries(chapter, *feed, changed, &mut putting, go_on)?;
    }
    for (key, place) in chapter.keyed_from(&[]) {
        let body = chapter.value(*place)?;
        // Only settings and defaults may be long; they alone are stored in parts.
        match key.first() {
            Some(b's' | b'g') => putting.put(key, &body)?,
            _ => putting.put_value(key.clone(), codec::seal(body.to_vec()))?,
        }
    }
    for (feed, changed) in &feeds {
        go_on()?;
        if let Some(head) = changed.head {
            let head = codec::seal(chapter.value(head)?.to_vec());
            putting.put_value(record::head_key(*feed), head)?;
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

fn pack_entries(
    chapter: &Chapter,
    feed: FeedKey,
    changed: &Changed,
    putting: &mut Putting<'_>,
    go_on: &dyn Fn() -> Result<(), LogError>,
) -> Result<(), LogError> {
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
                put_entries(feed, full, putting)?;
            }
        }
    }
    put_entries(feed, open, putting)
}

fn put_entries(
    feed: FeedKey,
    record: Option<(Position, Position, Vec<u8>)>,
    putting: &mut Putting<'_>,
) -> Result<(), LogError> {
    match record {
        Some((first, _, body)) => putting.put(&record::entry_key(feed, first), &record::pack(body)),
        None => Ok(()),
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
