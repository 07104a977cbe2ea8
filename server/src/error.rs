//! Errors of a running server.
//!
//! Pure.

use simplefeed_core::timestamp::Timestamp;
use simplefeed_log::{LogError, store::StoreError};

use crate::config::{ConfigError, ListenAddress};

/// Reason why a server cannot run, or did not end in order.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// A listener cannot be bound, for example because the address is in use.
    #[error("cannot listen on {door}")]
    Listen {
        /// Listener that could not be bound.
        door: ListenAddress,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// The system refuses the server a thread, a signal or a listener.
    #[error("cannot start")]
    Start(#[source] std::io::Error),
    /// A file or a folder of the log cannot be used: the file or folder may be of another kind, or
    /// of another user. Nothing was served.
    #[error("the folder of the log cannot be used")]
    Folder(#[source] StoreError),
    /// The file of tokens, or a socket that systemd handed over, cannot be used. Nothing was
    /// served.
    #[error("the configuration cannot be used")]
    Config(#[from] ConfigError),
    /// The epoch of a restored log cannot begin. Nothing was served.
    #[error("the epoch of a restored log cannot begin")]
    Epoch(#[source] LogError),
    /// The epoch of a restored log would be numbered by a system clock that is refused. Nothing was
    /// served.
    #[error(
        "the log was restored, and the system clock ({now}) is more than five years ahead of all that the data folder knows \
         ({known}): set the clock or, if it is right, run `simplefeed-server clock accept`"
    )]
    Clock {
        /// The last moment that the data folder knows.
        known: Timestamp,
        /// The time on the system clock.
        now: Timestamp,
    },
    /// The epoch of a restored log would be numbered by a system clock that is earlier than any
    /// log. Nothing was served.
    #[error("the log was restored, and the system clock ({now}) is before any log: set the clock")]
    EarlyClock {
        /// The time on the system clock.
        now: Timestamp,
    },
    /// The log cannot be used. Nothing was served.
    #[error("the log cannot be served")]
    Log(#[from] LogError),
    /// The data folder was not what the server had opened, so the server took no entries any more.
    /// Nothing acknowledged is lost.
    #[error("the data folder was not what the server had opened, so it took no entries any more")]
    Displaced,
    /// The log cannot be closed cleanly. Nothing is lost.
    #[error("cannot close the log cleanly; nothing is lost, the next start takes longer")]
    Close(#[source] StoreError),
}
