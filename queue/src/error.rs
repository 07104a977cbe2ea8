//! Reasons for which a call of a queue fails.
//!
//! Pure.

use std::{path::PathBuf, time::Duration};

use crate::limits::{
    CALL_JOBS_MAX, KEY_BYTES_MAX, LEASE_MIN, Limit, NAMESPACE_BYTES_MAX, PAYLOAD_BYTES_MAX,
};

/// Why a call failed. A failed call has changed nothing, but after [`QueueError::Lost`] the change
/// may have been made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QueueError {
    /// The name of a namespace has a wrong form.
    #[error("the namespace {0:?} is not 1 to {NAMESPACE_BYTES_MAX} of A-Z, a-z, 0-9 and ._:-")]
    Name(String),
    /// A key has a wrong form. The value is the start of the key, at most 64 characters.
    #[error("a key has 1 to {KEY_BYTES_MAX} bytes without U+0000, not as {0:?}")]
    Key(String),
    /// Length of a payload or note that is too large, in bytes.
    #[error("a payload has at most {PAYLOAD_BYTES_MAX} bytes, not {0}")]
    Payload(usize),
    /// Number of jobs that is out of range.
    #[error("a call takes 1 to {CALL_JOBS_MAX} jobs, not {0}")]
    Count(usize),
    /// A lease that is too short.
    #[error("a lease lasts at least {LEASE_MIN:?}, not {0:?}")]
    Lease(Duration),
    /// More requests than the credential's quota ever allows at once, or a quota without requests
    /// or time, or with a window that is too long.
    #[error("{requests} requests never fit into a quota of {} in {:?}", .limit.requests, .limit.window)]
    Quota {
        /// Requests that were to be reserved.
        requests: u32,
        /// Quota that the caller gave.
        limit: Limit,
    },
    /// Another process has the queue's file open.
    #[error("the queue {} is open in another process", .0.display())]
    InUse(PathBuf),
    /// The keeper's storage failed, or has data that belongs to no queue.
    #[error("{doing}")]
    Storage {
        /// Operation that failed, and its object.
        doing: String,
        /// Error of PostgreSQL, of its connections, or of the file.
        #[source]
        why: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The connection broke before the answer, or the file failed in a commit: the change was made,
    /// or not. Every call may be repeated. If a finish or a failure was made, the token is void,
    /// and the repeated call changes nothing.
    #[error("{doing}: no answer, so the change was made or not")]
    Lost {
        /// Operation that failed, and its object.
        doing: String,
        /// Error of the connection or of the commit.
        #[source]
        why: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The queue was closed.
    #[error("the queue is closed")]
    Closed,
    /// The file has failed, which has closed the queue. Only a new opening of the file shows which
    /// changes were made.
    #[error("the queue's file failed, so the queue is closed until it is opened again")]
    Failed {
        /// Failure that closed the queue.
        #[source]
        why: Box<dyn std::error::Error + Send + Sync>,
    },
}
