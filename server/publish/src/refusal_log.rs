//! Log lines about requests that are refused while the system lacks something.
//!
//! Shell: a clock.

use std::{
    cell::Cell,
    io,
    time::{Duration, Instant},
};

use simplefeed_process::lack::advice;
use tracing::warn;

/// Time between two lines about one lack, which every request may meet.
const LOGGED_AGAIN: Duration = Duration::from_mins(1);

/// The last line, and when it was logged.
#[derive(Debug, Default)]
pub(super) struct RefusalLog(Cell<Option<(io::ErrorKind, Instant)>>);

impl RefusalLog {
    /// Logs which limit to raise, unless that was logged a moment ago. `action` is what the server cannot do.
    pub(super) fn log(&self, action: &str, lack: &io::Error) {
        let (kind, now) = (lack.kind(), Instant::now());
        let is_logged = |(before, at)| before == kind && now - at < LOGGED_AGAIN;
        if self.0.get().is_some_and(is_logged) {
            return;
        }
        self.0.set(Some((kind, now)));
        warn!(
            error = %lack,
            advice = advice(lack),
            "entries are refused for now, since the server cannot {action}"
        );
    }
}
