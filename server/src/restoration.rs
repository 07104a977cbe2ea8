//! What begins when a restored log is served: an epoch.
//!
//! Pure over the log. Whoever restores a backup goes on from an earlier state, and what was published
//! since may still be known elsewhere: in caches, at consumers, under the very URLs that are given out
//! next. So every document that was open then gets a name that was never used. Its predecessor, whose
//! bytes are final, links to the old name; whoever asks for that is led on.

use simplefeed_core::{
    commit::{Change, Commit},
    feed::{Epoch, FeedName},
    instant::Instant,
    limits::BATCH_ENTRIES_MAX,
};

use crate::log::{EntryLog, LogError};

/// Begins an epoch at `now`, durably. Returns it.
///
/// Nothing may have been served since the log was restored. If it is interrupted, it is to be begun
/// again.
///
/// # Errors
///
/// See [`LogError`].
pub fn begin_epoch(log: &dyn EntryLog, now: Instant) -> Result<Epoch, LogError> {
    let epoch = log.head().epoch.next(now);
    append(log, now, vec![Change::Epoch { epoch }])?;
    let mut after: Option<FeedName> = None;
    loop {
        let feeds = log.feeds(after.as_ref(), BATCH_ENTRIES_MAX)?;
        let Some((last, _)) = feeds.last() else {
            return Ok(epoch);
        };
        after = Some(last.clone());
        let renamed = feeds.iter().map(|(_, head)| head.renamed());
        append(log, now, renamed.collect())?;
    }
}

fn append(log: &dyn EntryLog, now: Instant, changes: Vec<Change>) -> Result<(), LogError> {
    let head = log.head();
    log.append(&Commit {
        number: head.number.next(),
        instant: now.max(head.last.plus_micros(1)),
        changes,
    })
    .map(drop)
}
