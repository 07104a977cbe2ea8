//! A slow look at the archive, which notices files that were damaged behind the server's back.
//!
//! Shell: files. The server never serves a damaged file, because it checks the digest first. A web server that reads
//! the folder by itself does, so damage is logged early.

use std::time::Duration;

use simplefeed_core::{
    feed::{DocumentNumber, FeedName},
    limits::CATALOGUE_FEEDS_MAX,
};
use tracing::error;

use super::{archive_files::Archive, error::ArchiveError, sup::Circle, sup_files::SupFiles};
use crate::{log::Series, stop::Stop};

/// Pause between two documents, and between as many feeds as are listed together.
const PACE: Duration = Duration::from_millis(100);
/// Pause after a round over all of them.
const REST: Duration = Duration::from_hours(1);

/// Compares archived documents and their twins with their digests, one after the other, again and
/// again, until the server stops. Faults are logged.
pub fn watch(archive: &Archive, log: &dyn Series, stop: &Stop) {
    loop {
        let mut after: Option<FeedName> = None;
        loop {
            let feeds = log.feeds(after.as_ref(), CATALOGUE_FEEDS_MAX);
            let names: Vec<FeedName> = match feeds {
                Ok(feeds) => feeds.into_iter().map(|(name, _)| name).collect(),
                Err(error) => {
                    report(&error.into());
                    // This round ends here, and the next one tries again.
                    vec![]
                }
            };
            let Some(last) = names.last().cloned() else {
                break;
            };
            for name in names {
                if !watch_feed(archive, &name, stop) {
                    return;
                }
            }
            after = Some(last);
            if stop.is_requested_within(PACE) {
                return;
            }
        }
        if !watch_windows(&archive.sup_files(), stop) || stop.is_requested_within(REST) {
            return;
        }
    }
}

/// Checks one feed's documents. Returns false if the server stops.
fn watch_feed(archive: &Archive, feed: &FeedName, stop: &Stop) -> bool {
    let archived = archive.manifests.count(feed).unwrap_or_else(|error| {
        // A damaged manifest hides its documents; `rebuild` makes it anew.
        report(&error.into());
        0
    });
    for number in (1..=archived).filter_map(DocumentNumber::new) {
        if stop.is_requested_within(PACE) {
            return false;
        }
        let looked = archive
            .manifests
            .get(feed, number)
            .map_err(ArchiveError::from);
        let looked = looked.and_then(|archived| {
            // A lost document has a record, but no file.
            if let Some(archived) = archived.filter(|archived| !archived.is_lost()) {
                archive.read(feed, &archived, false)?;
                archive.read(feed, &archived, true)?;
            }
            Ok(())
        });
        if let Err(error) = looked {
            report(&error);
        }
    }
    !stop.is_requested()
}

/// Checks the archived SUP documents. Returns false if the server stops.
fn watch_windows(files: &SupFiles, stop: &Stop) -> bool {
    for circle in Circle::ALL {
        for number in 1.. {
            if stop.is_requested_within(PACE) {
                return false;
            }
            let looked = match files.record(circle, number) {
                Ok(Some(record)) => files.look_at(circle, &record),
                // The end of the records, or a damaged one, which the next start writes again.
                Ok(None) => break,
                Err(error) => {
                    report(&error);
                    break;
                }
            };
            if let Err(error) = looked {
                report(&error);
            }
        }
    }
    true
}

fn report(error: &ArchiveError) {
    let error: &(dyn std::error::Error + 'static) = error;
    error!(error, "the archive is damaged");
}
