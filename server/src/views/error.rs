//! Errors of views that keep files.
//!
//! Pure.

use std::{io, path::PathBuf};

use super::manifest::ManifestError;
use crate::log::LogError;

/// Why archived documents cannot be written or read.
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
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// The operating system's answer.
        source: io::Error,
    },
    /// A file is not what the manifest says.
    #[error("{path} is not what was archived; run `simplefeed-server rebuild`")]
    Damaged {
        /// The file.
        path: PathBuf,
    },
}
