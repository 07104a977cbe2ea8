//! Counting of connections and answers.
//!
//! Pure: the seam to the metrics.

use std::{fmt, time::Duration};

/// Counters of connections and answers. Each request calls them, so they must not wait.
pub trait Traffic: fmt::Debug + Send + Sync {
    /// Counts a connection that was opened.
    fn opened(&self);

    /// Counts the end of a connection.
    fn closed(&self);

    /// Counts an answer of the endpoint with a label, and the time until that answer. The time is
    /// zero for an answer at hand.
    fn answered(&self, label: &'static str, status: u16, took: Duration);

    /// Counts bytes of a body that is sent.
    fn sent(&self, bytes: u64);
}
