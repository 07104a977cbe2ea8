//! Reports of the writer about commits and panics.
//!
//! Pure: the seam to the metrics.

use std::{fmt, time::Duration};

/// Receiver of the writer's reports. The calls are made on the writer's thread, so none may wait
/// for readers.
pub trait WriterObserver: fmt::Debug + Send + Sync {
    /// A commit of so many requests is stored, and took so long.
    fn committed(&self, requests: usize, took: Duration);

    /// The writer has panicked, and the process is about to abort: the last moment for log lines.
    fn panicked(&self);
}
