//! Shutdown, as a token that threads share.
//!
//! Shell: a lock. A thread that pauses waits for the token, so nobody polls for the end.

use std::{sync::Arc, time::Duration};

use parking_lot::{Condvar, Mutex};

/// Token of a shutdown, which clones share.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<StopState>);

#[derive(Debug, Default)]
struct StopState {
    is_requested: Mutex<bool>,
    changed: Condvar,
}

impl Stop {
    /// Requests the shutdown, and wakes every thread that waits for the request.
    pub fn request(&self) {
        let mut is_requested = self.0.is_requested.lock();
        *is_requested = true;
        self.0.changed.notify_all();
    }

    /// Returns whether the shutdown was requested.
    pub fn is_requested(&self) -> bool {
        self.is_requested_within(Duration::ZERO)
    }

    /// Waits for `time`, or for the request if that comes sooner. Returns whether the shutdown was
    /// requested.
    pub fn is_requested_within(&self, time: Duration) -> bool {
        let mut is_requested = self.0.is_requested.lock();
        // A year is longer than any program runs. The bound is needed because the wait computes a
        // deadline, which must not overflow.
        let time = time.min(Duration::from_hours(24 * 365));
        self.0
            .changed
            .wait_while_for(&mut is_requested, |is_requested| !*is_requested, time);
        *is_requested
    }
}
