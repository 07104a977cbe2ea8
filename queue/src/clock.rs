//! The time of a keeper, and waits by that time.
//!
//! Shell: the clock of this machine, and timers.

use std::{future::pending, sync::Arc, time::Duration};

use chrono::{DateTime, Utc};
use tokio::sync::watch;

/// A clock that tests set.
#[derive(Clone, Debug)]
pub struct Manual(Arc<watch::Sender<DateTime<Utc>>>);

impl Manual {
    /// Returns a clock that stands at `now`.
    pub fn new(now: DateTime<Utc>) -> Self {
        Self(Arc::new(watch::Sender::new(now)))
    }

    /// Sets the time, forwards or backwards.
    pub fn set(&self, now: DateTime<Utc>) {
        self.0.send_replace(now);
    }

    /// Moves the time forward.
    pub fn advance(&self, span: Duration) {
        self.0
            .send_modify(|now| *now = crate::instant::later(*now, span));
    }

    /// Returns the time at which the clock stands.
    pub fn now(&self) -> DateTime<Utc> {
        *self.0.borrow()
    }
}

/// The clock of a keeper.
#[derive(Clone, Debug, Default)]
pub enum Clock {
    /// The real clock: that of this machine or, for PostgreSQL, that of the server.
    #[default]
    Real,
    /// A clock that tests set.
    Manual(Manual),
}

impl From<Manual> for Clock {
    fn from(clock: Manual) -> Self {
        Self::Manual(clock)
    }
}

impl Clock {
    /// Returns the time. The real clock gives the time of this machine here, also for PostgreSQL.
    pub fn now(&self) -> DateTime<Utc> {
        match self {
            Self::Real => Utc::now(),
            Self::Manual(clock) => clock.now(),
        }
    }

    /// Returns the time if a test has set it.
    #[cfg(feature = "postgres")]
    pub(crate) fn manual(&self) -> Option<DateTime<Utc>> {
        match self {
            Self::Real => None,
            Self::Manual(clock) => Some(clock.now()),
        }
    }

    /// Waits from `now` until `next`, both by the keeper's clock. With the real clock, the wait is
    /// no longer than `poll`; with a manual clock, `poll` has no effect.
    pub(crate) async fn wait(
        &self,
        now: DateTime<Utc>,
        next: Option<DateTime<Utc>>,
        poll: Duration,
    ) {
        match self {
            Self::Real => {
                // An instant that has passed is a negative span, which `to_std` refuses.
                let until_next = next.map(|next| (next - now).to_std().unwrap_or_default());
                // Timers are coarser than instants: after a wait of no time, a worker would ask
                // again and again.
                let until_next = until_next.map(|span| span.max(Duration::from_millis(1)));
                tokio::time::sleep(until_next.map_or(poll, |span| span.min(poll))).await;
            }
            Self::Manual(clock) => {
                let mut changes = clock.0.subscribe();
                let is_reached = |now: &DateTime<Utc>| next.is_some_and(|next| next <= *now);
                // The sender lives as long as `self`, so the wait cannot fail.
                if changes.wait_for(is_reached).await.is_err() {
                    pending::<()>().await;
                }
            }
        }
    }
}
