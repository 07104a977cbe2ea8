//! Reports of the writer about its work.
//!
//! Pure: the seam to the metrics.

use std::{fmt, time::Duration};

/// Receiver of the writer's reports. It is called on the writer's thread, so it must not wait for readers.
pub trait WriterObserver: fmt::Debug + Send + Sync {
    /// A commit of so many requests is stored. It took so long.
    fn committed(&self, requests: usize, took: Duration);

    /// The writer has panicked, and the process is about to abort: the last moment for log lines.
    fn panicked(&self);
}
