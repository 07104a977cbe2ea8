//! Errors of reading a resource.
//!
//! Pure.

use std::error::Error;

/// Underlying error, from the crate that failed.
pub type Cause = Box<dyn Error + Send + Sync>;

/// Reason why the bytes of a resource cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The bytes are being prepared, and another request may get them soon. Nothing is wrong.
    #[error("{0}")]
    NotReady(&'static str),
    /// The system refused something for a moment.
    #[error("{reason}")]
    Momentary {
        /// Short reason for the reader, without names of files.
        reason: &'static str,
        /// Error with its details.
        source: Cause,
    },
    /// The bytes cannot be read until the server is restarted.
    #[error("{reason}")]
    Lasting {
        /// Short reason for the reader, without names of files.
        reason: &'static str,
        /// Error with its details.
        source: Cause,
    },
    /// The bytes are damaged, or the disk fails.
    #[error("a document cannot be read")]
    Failed(#[source] Cause),
}
