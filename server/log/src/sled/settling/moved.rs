//! Entries that a settling has moved to records: entries of a feed's tail, and entries of the
//! chapter.
//!
//! Pure, but for reads. A settling that is begun again passes over a feed whose own record has the
//! chapter's head. The records of its entries may be lost by then, because the rehearsal accepts
//! some damage to values of a settling that broke off. The journal still has the entries of the
//! chapter, but the file is used again after the settling. So the settling looks for each entry
//! before it ends.

use std::{cell::OnceCell, collections::HashMap};

use simplefeed_core::{
    commit::ChangeOutline,
    feed::{CommitNumber, FeedKey, Position},
};

use super::GoOn;
use crate::{
    LogError,
    sled::{
        chapter::{Chapter, FeedChange},
        record::{self, CommitFacts},
        settled::SettledPart,
        tail::Tail,
    },
};

/// A chapter whose entries are looked for in sled.
pub(super) struct MovedEntries<'m> {
    pub(super) chapter: &'m Chapter,
    pub(super) settled: &'m SettledPart,
    pub(super) go_on: GoOn<'m>,
    /// Losses that the log records; read for the first feed that needs them.
    losses: OnceCell<Losses>,
}

/// The last entry before each loss, by the feed and the position behind the loss.
type Losses = HashMap<(FeedKey, Position), Option<Position>>;

impl<'m> MovedEntries<'m> {
    pub(super) fn new(chapter: &'m Chapter, settled: &'m SettledPart, go_on: GoOn<'m>) -> Self {
        Self {
            chapter,
            settled,
            go_on,
            losses: OnceCell::new(),
        }
    }

    /// Checks that sled has each entry that a feed has gained in the chapter, and the entry before
    /// them.
    ///
    /// # Errors
    ///
    /// Returns a failure to read, or that an entry is missing.
    pub(super) fn check_entries(
        &self,
        (feed, changed): (FeedKey, &FeedChange),
        tail: &Tail,
    ) -> Result<(), LogError> {
        let Some((first, _)) = changed.groups.first() else {
            return Ok(());
        };
        (self.go_on)()?;
        let is_in_record = |at: &Position| tail.is_empty() || *at < tail.first;
        // If the former tail became a record, that record has the last entry before the chapter. So
        // one look for that entry is enough.
        let before = first.0.checked_sub(1).map(Position).filter(is_in_record);
        if let Some(before) = before
            && self.end_of_record(feed, before)?.is_none()
        {
            // After a loss, the last entry before the chapter is not at the position just before
            // `first`.
            let lost = self.all_losses()?.get(&(feed, *first));
            let before = lost.ok_or_else(|| missing_entry(feed, before))?;
            if let Some(before) = before.filter(is_in_record) {
                let found = self.end_of_record(feed, before)?;
                found.ok_or_else(|| missing_entry(feed, before))?;
            }
        }
        let mut found = Position(0);
        let groups = changed.groups.iter().map(|(first, _)| *first);
        for at in groups.take_while(is_in_record) {
            // A record may have many groups, and is read only once.
            if at >= found {
                let end = self.end_of_record(feed, at)?;
                found = end.ok_or_else(|| missing_entry(feed, at))?;
            }
        }
        Ok(())
    }

    /// Returns the position behind the record that has an entry.
    fn end_of_record(&self, feed: FeedKey, at: Position) -> Result<Option<Position>, LogError> {
        let from = record::entry_key(feed, at);
        let end = record::entry_key(feed, at.next());
        let prefix = record::entries_prefix(feed).len();
        for (key, body) in self.settled.records("entry", &from, &end, prefix)? {
            let damaged = || record::damaged("entry", &key);
            let (_, first) = record::entry_of_key(&key).ok_or_else(damaged)?;
            let entries = record::decode_entries(first, &body.into()).ok_or_else(damaged)?;
            if let Some(last) = entries.last().filter(|last| last.at >= at) {
                return Ok(Some(last.at.next()));
            }
        }
        Ok(None)
    }

    /// Returns all losses, read from the facts of all commits. Only damaged and recovered logs need
    /// them.
    fn all_losses(&self) -> Result<&Losses, LogError> {
        if let Some(losses) = self.losses.get() {
            return Ok(losses);
        }
        let (mut losses, mut last) = (Losses::new(), HashMap::new());
        let mut note = |number: CommitNumber, facts: &[u8]| {
            let damaged = || damaged_facts(number);
            for change in CommitFacts::decode(facts).ok_or_else(damaged)?.changes {
                match change {
                    ChangeOutline::Entries { feed, first, count } => {
                        last.insert(feed, Position(first.0 + count - 1));
                    }
                    ChangeOutline::Lost { feed, next, .. } => {
                        losses.insert((feed, next), last.get(&feed).copied());
                    }
                    _ => {}
                }
            }
            Ok(())
        };
        let mut number = CommitNumber(1);
        while number < self.chapter.file.first {
            (self.go_on)()?;
            let all = self.settled.facts_from(number)?;
            // Commits have no holes, so an empty answer is damage. Without the error, the loop
            // would never end.
            if all.is_empty() {
                return Err(damaged_facts(number));
            }
            for facts in all {
                note(number, &facts)?;
                number = number.next();
            }
        }
        for (number, place) in self.chapter.all_facts() {
            note(number, &self.chapter.value(place)?)?;
        }
        Ok(self.losses.get_or_init(|| losses))
    }
}

fn missing_entry(feed: FeedKey, at: Position) -> LogError {
    LogError::damaged(format!("entry {at} of feed {} is missing", feed.0))
}

fn damaged_facts(number: CommitNumber) -> LogError {
    LogError::damaged(format!("the facts of commit {number}"))
}
