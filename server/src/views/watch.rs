//! A slow look at the archive: files that are damaged behind the server's back are noticed.
//!
//! Shell: files. What is damaged is never served, because its digest is looked at first; but somebody
//! should know, before a web server that reads the folder itself serves it.

use std::time::Duration;

use simplefeed_core::{
    feed::{DocumentNumber, FeedName},
    limits::CATALOGUE_FEEDS_MAX,
};
use tracing::error;

use super::{archive_files::Archive, error::ArchiveError, sup::Circle, sup_files::SupFiles};
use crate::{log::Series, stop::Stop};

/// The pause between two documents, and between as many feeds as are listed together.
const PACE: Duration = Duration::from_millis(100);
/// The pause after all of them.
const REST: Duration = Duration::from_hours(1);

/// Compares archived documents and their twins with their digests, one after the other, again and
/// again, until the server stops. What is wrong is logged.
pub fn watch(archive: &Archive, log: &dyn Series, stop: &Stop) {
    loop {
        let mut after: Option<FeedName> = None;
        loop {
            let feeds = log.feeds(after.as_ref(), CATALOGUE_FEEDS_MAX);
            let names: Vec<FeedName> = match feeds {
                Ok(feeds) => feeds.into_iter().map(|(name, _)| name).collect(),
                Err(error) => {
                    report(&error.into());
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

/// Looks at one feed's documents. Returns whether to go on.
fn watch_feed(archive: &Archive, feed: &FeedName, stop: &Stop) -> bool {
    let archived = archive.manifests.count(feed).unwrap_or_else(|error| {
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

/// Looks at the archived SUP documents. Returns whether to go on.
fn watch_windows(files: &SupFiles, stop: &Stop) -> bool {
    for circle in Circle::ALL {
        for number in 1.. {
            if stop.is_requested_within(PACE) {
                return false;
            }
            let looked = match files.record(circle, number) {
                Ok(Some(record)) => files.look_at(circle, &record),
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
