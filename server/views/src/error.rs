//! Errors of views, and the error of a read that follows from each.
//!
//! Pure.

use std::{io, path::PathBuf};

use simplefeed_log::{LogError, held::visible_path};
use simplefeed_process::lack::is_momentary;
use simplefeed_resource::read_error::ReadError;

/// Reason why files of a view cannot be written or read.
#[derive(Debug, thiserror::Error)]
pub enum ViewError {
    /// The log cannot be read.
    #[error("the log cannot be read")]
    Log(#[from] LogError),
    /// A document that was shown is of another log.
    #[error("{} is of another log", visible_path(path).display())]
    Replaced {
        /// Path of the document's file.
        path: PathBuf,
        /// Error of the log, a [`LogError::Replaced`].
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
    /// A record in a manifest differs from the record that was written. `rebuild` makes the record
    /// anew.
    #[error("{} is damaged at document {document}; run `simplefeed-server rebuild`", visible_path(path).display())]
    DamagedRecord {
        /// Path of the file of records, which belongs to one feed.
        path: PathBuf,
        /// Number of the document with the damaged record.
        document: u64,
    },
}

impl From<ViewError> for ReadError {
    fn from(error: ViewError) -> Self {
        match &error {
            // A server that has just started still reads the follows of timelines. A later request
            // succeeds.
            ViewError::Log(LogError::Behind) => {
                Self::NotReady("what timelines follow is being read")
            }
            // After a failed write, sled may have left a tree that only the next opening repairs.
            ViewError::Log(LogError::Storage(_) | LogError::Stopped) => Self::Lasting {
                reason: "the log cannot be read now; if that lasts, the server must be restarted",
                source: error.into(),
            },
            ViewError::Log(LogError::Lacking { .. }) => Self::Momentary {
                reason: "the server cannot open what is settled",
                source: error.into(),
            },
            _ if is_momentary(&error) => Self::Momentary {
                reason: "the server has too many files open, or too little memory",
                source: error.into(),
            },
            _ => Self::Failed(error.into()),
        }
    }
}
