//! Entries that a settling has moved to records: those of a feed's tail, and those of the chapter.
//!
//! Pure, but for reads. A settling that is begun again passes over a feed whose own record has the chapter's head. Damage
//! may have taken the records of its entries since: the rehearsal accepts what a settling of all values would mend. So
//! they are looked for, before the room of the journal is used again.

use simplefeed_core::{
    commit::ChangeOutline,
    feed::{CommitNumber, FeedKey, Position},
};

use crate::log::{
    LogError,
    chapter::{Changed, Chapter},
    record::{self, CommitFacts},
    settled::Settled,
    tail::Tail,
};

/// Checks that each entry that a feed has gained in a chapter is settled, and the one before them.
///
/// # Errors
///
/// Returns the failure to read, or which entry is missing.
pub(super) fn check_entries(
    chapter: &Chapter,
    (feed, changed): (FeedKey, &Changed),
    tail: &Tail,
    settled: &Settled,
) -> Result<(), LogError> {
    let Some((first, _)) = changed.groups.first() else {
        return Ok(());
    };
    // All that was in the former tail is in one record, up to this entry.
    let before = first.0.checked_sub(1).map(Position);
    let groups = changed.groups.iter().map(|(first, _)| *first);
    let mut found = Position(0);
    for at in before.into_iter().chain(groups) {
        if !tail.is_empty() && at >= tail.first {
            break;
        }
        if at < found {
            continue;
        }
        match end_of_record(settled, feed, at)? {
            Some(end) => found = end,
            None if at < *first && is_lost_before(chapter, settled, feed, *first)? => {}
            None => {
                let what = format!("entry {at} of feed {} is missing", feed.0);
                return Err(LogError::damaged(what));
            }
        }
    }
    Ok(())
}

/// Returns the position behind the record that has an entry.
fn end_of_record(
    settled: &Settled,
    feed: FeedKey,
    at: Position,
) -> Result<Option<Position>, LogError> {
    let (from, end) = (
        record::entry_key(feed, at),
        record::entry_key(feed, at.next()),
    );
    let prefix = record::entries_prefix(feed).len();
    for (key, body) in settled.records("entry", &from, &end, prefix)? {
        let damaged = || record::damaged("entry", &key);
        let (_, first) = record::entry_of_key(&key).ok_or_else(damaged)?;
        let entries = record::decode_entries(first, &body.into()).ok_or_else(damaged)?;
        if let Some(last) = entries.last().filter(|last| last.at >= at) {
            return Ok(Some(last.at.next()));
        }
    }
    Ok(None)
}

/// Returns whether the log says that the entry before a position is lost. It reads the facts of all commits, which only
/// damage and recovered logs make necessary.
fn is_lost_before(
    chapter: &Chapter,
    settled: &Settled,
    feed: FeedKey,
    position: Position,
) -> Result<bool, LogError> {
    let says_so = |number: CommitNumber, facts: &[u8]| {
        let damaged = || LogError::damaged(format!("the facts of commit {number}"));
        let changes = CommitFacts::decode(facts).ok_or_else(damaged)?.changes;
        Ok::<_, LogError>(changes.iter().any(|change| {
            matches!(change, ChangeOutline::Lost { feed: of, next, .. } if (*of, *next) == (feed, position))
        }))
    };
    let mut number = CommitNumber(1);
    while number < chapter.file.first {
        let all = settled.facts_from(number)?;
        if all.is_empty() {
            return Err(LogError::damaged(format!("the facts of commit {number}")));
        }
        for facts in all {
            if says_so(number, &facts)? {
                return Ok(true);
            }
            number = number.next();
        }
    }
    for (number, place) in chapter.all_facts() {
        if says_so(number, &chapter.value(place)?)? {
            return Ok(true);
        }
    }
    Ok(false)
}
