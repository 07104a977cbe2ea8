//! Entries of feeds as timelines read them: a few neighbours at a time, kept in memory for the next
//! page.
//!
//! Shell: the log. Entries never change, so nothing is ever stale. A block at the end of a feed is
//! read again for an entry that the block lacks.

use std::sync::Arc;

use bytes::Bytes;
use quick_cache::{Weighter, sync::Cache};
use simplefeed_core::{
    entry::Entry,
    feed::{FeedKey, Position},
    timestamp::Timestamp,
};
use simplefeed_log::{LogError, Series};

/// Number of entries of a block.
const BLOCK_ENTRIES: u64 = 8;
/// Size of entries, in bytes, beyond which a block keeps only their instants.
const BLOCK_BYTES_MAX: usize = 64 * 1024;
/// Maximum size of all blocks in memory, in bytes.
const CACHE_BYTES_MAX: u64 = 32 * 1024 * 1024;
/// Approximate size of an entry besides its text, in bytes.
const ENTRY_BYTES: usize = 200;

/// Neighbouring entries of a feed.
#[derive(Debug)]
struct EntryBlock {
    instants: Vec<(Position, Timestamp)>,
    /// Empty if the entries are too large to be kept.
    entries: Vec<Entry>,
    bytes: usize,
}

#[derive(Clone)]
struct EntryBlockWeight;

impl Weighter<(FeedKey, u64), Arc<EntryBlock>> for EntryBlockWeight {
    fn weight(&self, _: &(FeedKey, u64), block: &Arc<EntryBlock>) -> u64 {
        u64::try_from(block.bytes).unwrap_or(u64::MAX)
    }
}

/// Cache of entries, which reads missing entries from the log.
pub(super) struct EntryCache(Cache<(FeedKey, u64), Arc<EntryBlock>, EntryBlockWeight>);

impl std::fmt::Debug for EntryCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EntryCache").finish_non_exhaustive()
    }
}

impl Default for EntryCache {
    fn default() -> Self {
        Self(Cache::with_weighter(
            10_000,
            CACHE_BYTES_MAX,
            EntryBlockWeight,
        ))
    }
}

impl EntryCache {
    /// Returns the instant of an entry.
    ///
    /// # Errors
    ///
    /// Returns why the log cannot be read, or that the log has no such entry.
    pub(super) fn instant(
        &self,
        feed: FeedKey,
        at: Position,
        log: &dyn Series,
    ) -> Result<Timestamp, LogError> {
        let block = self.read_block(feed, at, log)?;
        let found = block.instants.iter().find(|(position, _)| *position == at);
        found
            .map(|(_, instant)| *instant)
            .ok_or_else(|| missing_entry(feed, at))
    }

    /// Returns an entry.
    ///
    /// # Errors
    ///
    /// Returns why the log cannot be read, or that the log has no such entry.
    pub(super) fn entry(
        &self,
        feed: FeedKey,
        at: Position,
        log: &dyn Series,
    ) -> Result<Entry, LogError> {
        let block = self.read_block(feed, at, log)?;
        if let Some(entry) = block.entries.iter().find(|entry| entry.at == at) {
            return Ok(entry.clone());
        }
        // A block of large entries keeps only the instants.
        let entry = log.entries(feed, at..at.next())?.pop();
        entry.ok_or_else(|| missing_entry(feed, at))
    }

    fn read_block(
        &self,
        feed: FeedKey,
        at: Position,
        log: &dyn Series,
    ) -> Result<Arc<EntryBlock>, LogError> {
        let number = at.0 / BLOCK_ENTRIES;
        // A block that was read at the end of the feed may lack newer entries.
        if let Some(block) = self.0.get(&(feed, number))
            && block
                .instants
                .last()
                .is_some_and(|(newest, _)| *newest >= at)
        {
            return Ok(block);
        }
        let first = Position(number * BLOCK_ENTRIES);
        let entries = log.entries(feed, first..Position(first.0 + BLOCK_ENTRIES))?;
        let block = Arc::new(EntryBlock::of_entries(entries));
        self.0.insert((feed, number), Arc::clone(&block));
        Ok(block)
    }
}

impl EntryBlock {
    fn of_entries(mut entries: Vec<Entry>) -> Self {
        let instants: Vec<_> = entries
            .iter()
            .map(|entry| (entry.at, entry.instant))
            .collect();
        let sizes = entries
            .iter()
            .map(|entry| entry.fragment.len() + ENTRY_BYTES);
        let mut bytes = sizes.sum();
        if bytes > BLOCK_BYTES_MAX {
            entries = vec![];
            bytes = instants.len() * size_of::<(Position, Timestamp)>();
        }
        for entry in &mut entries {
            // A fragment shares the memory of its whole record, which may be much larger.
            entry.fragment = Bytes::copy_from_slice(&entry.fragment);
        }
        Self {
            instants,
            entries,
            bytes,
        }
    }
}

fn missing_entry(feed: FeedKey, at: Position) -> LogError {
    LogError::damaged(format!("entry {at} of feed {} is missing", feed.0))
}
