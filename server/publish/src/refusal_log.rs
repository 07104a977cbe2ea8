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

/// Time between two lines about one lack, which every request may meet.
const LOGGED_AGAIN: Duration = Duration::from_mins(1);

/// Time of the last log line about each kind of lack.
#[derive(Debug, Default)]
pub(super) struct RefusalLog(RefCell<HashMap<io::ErrorKind, Instant>>);

impl RefusalLog {
    /// Logs which limit to raise, unless a line about that was logged a moment ago. `action` is a
    /// verb for the refused work.
    pub(super) fn log(&self, action: &str, lack: &io::Error) {
        let now = Instant::now();
        let before = self.0.borrow_mut().insert(lack.kind(), now);
        if let Some(before) = before.filter(|before| now - *before < LOGGED_AGAIN) {
            // The time of the last line counts. Else steady refusals would never be logged again.
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
