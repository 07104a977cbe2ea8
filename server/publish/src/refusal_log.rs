//! Log lines about requests that are refused while the system lacks something.
//!
//! Shell: a clock.

use std::{
    cell::RefCell,
    collections::HashMap,
    io,
    time::{Duration, Instant},
};

use simplefeed_process::lack::advice;
use tracing::warn;

/// Least time between two log lines about the same lack, because every request may meet the lack.
const LOGGED_AGAIN: Duration = Duration::from_mins(1);

/// Time of the last log line about each kind of lack.
#[derive(Debug, Default)]
pub(super) struct RefusalLog(RefCell<HashMap<io::ErrorKind, Instant>>);

impl RefusalLog {
    /// Logs the lack, with advice, unless a line about the same kind of lack was logged a moment
    /// ago. `action` names the refused work, as a verb.
    pub(super) fn log(&self, action: &str, lack: &io::Error) {
        let now = Instant::now();
        let before = self.0.borrow_mut().insert(lack.kind(), now);
        if let Some(before) = before.filter(|before| now - *before < LOGGED_AGAIN) {
            // The time of the last log line is put back. Otherwise, steady refusals would never be
            // logged again.
            self.0.borrow_mut().insert(lack.kind(), before);
            return;
        }
        warn!(
            error = %lack,
            advice = advice(lack),
            "entries are refused for now, since the server cannot {action}"
        );
    }
}
