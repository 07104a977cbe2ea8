//! Reports of the writer about commits and panics.
//!
//! Pure: the seam to the metrics.

use std::{fmt, time::Duration};

/// Receiver of the writer's reports. The calls hold up all other publishers, so no call may wait
/// for readers.
pub trait WriterObserver: fmt::Debug + Send + Sync {
    /// A commit of `requests` requests is stored. Storing the commit took the time `took`.
    fn committed(&self, requests: usize, took: Duration);

    /// The writer has panicked, and the process is about to abort: the last moment for log lines.
    fn panicked(&self);
}
