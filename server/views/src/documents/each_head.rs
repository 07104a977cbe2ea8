//! All feeds of a log, in steps.
//!
//! Pure, but for the reads of the log.

use simplefeed_core::{feed::FeedName, limits::CATALOGUE_FEEDS_MAX, plan::FeedHead};
use simplefeed_log::{LogError, Series};

/// Calls `each` with every feed of a log, in the order of the feeds' names.
pub(super) fn each_head<E: From<LogError>>(
    log: &(impl Series + ?Sized),
    mut each: impl FnMut(&FeedName, &FeedHead) -> Result<(), E>,
) -> Result<(), E> {
    let mut after: Option<FeedName> = None;
    loop {
        // A server may have a million feeds, so no step holds all of their heads.
        let feeds = log.feeds(after.as_ref(), CATALOGUE_FEEDS_MAX)?;
        let Some((last, _)) = feeds.last() else {
            return Ok(());
        };
        after = Some(last.clone());
        for (name, head) in &feeds {
            each(name, head)?;
        }
    }
}
