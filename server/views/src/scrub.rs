//! The scrubber: a slow comparison of all files with their digests.
//!
//! Shell: a thread. The server never serves a damaged file, because each read checks the digest
//! first. Another web server that serves the folder makes no such check, so the scrubber looks for
//! damage and logs it early.

use std::time::Duration;

use simplefeed_log::LogError;
use simplefeed_process::{lack::lack_in, stop::Stop};
use tracing::error;

use super::{Views, error::ViewError};

use crate::shown::ShownSeries;

/// Pause between two files, and between two batches of listed feeds.
const PACE: Duration = Duration::from_millis(100);
/// Pause after a round over all views.
const REST: Duration = Duration::from_hours(1);

/// Round of the scrubber over one view.
#[derive(Debug)]
pub struct Scrub<'s>(&'s Stop);

impl Scrub<'_> {
    /// Pauses before the next file. Returns whether to go on, which is false once the server stops.
    pub fn goes_on(&self) -> bool {
        !self.0.is_requested_within(PACE)
    }
}

/// Logs a fault that a view has found.
pub fn report(error: &ViewError) {
    if !is_fault(error) {
        return;
    }
    let error: &(dyn std::error::Error + 'static) = error;
    // Without file handles or memory, nothing was compared, and operators must not look for damage.
    if lack_in(error).is_some() {
        error!(error, "the archive cannot be compared");
    } else {
        error!(error, "the archive is damaged");
    }
}

/// Returns whether an error is to be logged. A server that has just started still reads the follows
/// of its timelines, so the next round compares their documents.
fn is_fault(error: &ViewError) -> bool {
    !matches!(error, ViewError::Log(LogError::Behind))
}

/// Compares the files of all views with their digests, again and again, until the server stops.
pub fn scrub(views: &Views, log: &dyn ShownSeries, stop: &Stop) {
    loop {
        for (view, _) in views.iter() {
            view.scrub(log, &Scrub(stop));
        }
        if stop.is_requested_within(REST) {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: an operator reads of damage only if there is damage.
    #[test]
    fn a_log_that_is_still_read_is_no_damage() {
        assert!(!is_fault(&LogError::Behind.into()));
        assert!(is_fault(&LogError::damaged("a commit is missing").into()));
    }
}
