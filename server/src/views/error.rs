//! Errors of views.
//!
//! Pure.

use std::{io, path::PathBuf};

use crate::log::{LogError, held::visible_path};

/// Reason why files of a view cannot be written or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ViewError {
    /// The log cannot be read.
    #[error("the log cannot be read")]
    Log(#[from] LogError),
    /// A document that was shown is of another log.
    #[error("{} is of another log", visible_path(path).display())]
    Replaced {
        /// Path of the document's file.
        path: PathBuf,
        /// [`LogError::Replaced`].
        source: LogError,
    },
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
    /// A file differs from its record.
    #[error("{} is not what was archived; run `simplefeed-server rebuild`", visible_path(path).display())]
    Damaged {
        /// Path of the file with the wrong bytes.
        path: PathBuf,
    },
    /// A record differs from the one that was written. `rebuild` makes it anew.
    #[error("{} is damaged at document {document}; run `simplefeed-server rebuild`", visible_path(path).display())]
    DamagedRecord {
        /// Path of the file of records, which belongs to one feed.
        path: PathBuf,
        /// Number of the document with the damaged record.
        document: u64,
    },
}
