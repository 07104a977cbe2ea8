//! Errors of views that keep files.
//!
//! Pure.

use std::{io, path::PathBuf};

use super::manifest::ManifestError;
use crate::log::LogError;

/// Reason why archived documents cannot be written or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ArchiveError {
    /// The log cannot be read.
    #[error("the log cannot be read")]
    Log(#[from] LogError),
    /// The manifest cannot be used.
    #[error("the manifest cannot be used")]
    Manifest(#[from] ManifestError),
    /// A file cannot be used.
    #[error("cannot {action} {path}")]
    Io {
        /// Operation that failed, as a verb for the message.
        action: &'static str,
        /// File or folder of that operation.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// A file differs from its record in the manifest.
    #[error("{path} is not what was archived; run `simplefeed-server rebuild`")]
    Damaged {
        /// Path of the file with the wrong bytes.
        path: PathBuf,
    },
}
