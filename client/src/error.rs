//! Why a consumer stopped.
//!
//! Pure.

use std::io;

use simplefeed_core::replay::WalkError;
use url::Url;

use crate::{fetch::FetchError, transport::TransportError};

/// Why a consumer stopped.
///
/// An error does not take back entries that were delivered before. Only a transient error may go
/// away by itself.
///
/// # Examples
///
/// ```
/// use simplefeed_client::ConsumerError;
/// use simplefeed_client::WalkError;
///
/// fn what_to_do(error: &ConsumerError) -> &'static str {
///     match error {
///         error if error.is_transient() => "call next() again",
///         ConsumerError::Walk(error) if error.is_gap() => "entries are gone",
///         ConsumerError::Walk(WalkError::AnotherFeed { .. }) => "this bookmark is another feed's",
///         ConsumerError::Walk(WalkError::HistoryChanged { .. }) => "the server was rolled back",
///         _ => "ask a person",
///     }
/// }
///
/// let gap = WalkError::Gap { entry: "urn:order:7".into() };
/// assert_eq!(what_to_do(&gap.into()), "entries are gone");
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConsumerError {
    /// The feed's URL is not a URL.
    #[error("{url:?} is not a URL")]
    Url {
        /// Text that was given as the feed's URL, without a password.
        url: String,
        /// Fault found by the URL parser.
        source: url::ParseError,
    },
    /// The feed's URL is no HTTP URL.
    #[error("{url} begins with neither http nor https")]
    Scheme {
        /// URL that was given, without a password.
        url: Url,
    },
    /// The transport cannot be set up.
    #[error("the HTTP client cannot be set up")]
    Transport(#[source] TransportError),
    /// The bookmark cannot be read or kept.
    #[error("the bookmark cannot be {action}")]
    Bookmark {
        /// Action that failed: `read` or `kept`.
        action: &'static str,
        /// Error that the bookmark store returned.
        source: io::Error,
    },
    /// The entry to accept was delivered by another consumer, or is a parked one.
    #[error("entry {entry} was not delivered by this consumer, so it cannot be accepted here")]
    NotDelivered {
        /// Id of the entry.
        entry: String,
    },
    /// Too many entries were accepted behind an entry that was not accepted. The bookmark stays
    /// before that entry.
    #[error("{max} entries were accepted behind one that was not; the bookmark waits for it")]
    NeverAccepted {
        /// Number of entries that may be accepted behind an unaccepted one, from
        /// [`UNACCEPTED_MAX`](simplefeed_core::limits::UNACCEPTED_MAX).
        max: u64,
    },
    /// A document cannot be fetched or read.
    #[error(transparent)]
    Fetch(#[from] FetchError),
    /// The feed does not continue the history read before.
    #[error(transparent)]
    Walk(#[from] WalkError),
}

impl ConsumerError {
    /// Returns whether the same call, repeated without a change, may succeed later.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Fetch(error) => error.is_transient(),
            // A stale copy goes away at the end of the copy's lifetime. No other fault of the
            // history goes away by itself.
            Self::Walk(error) => matches!(error, WalkError::Stale { .. }),
            Self::Url { .. }
            | Self::Scheme { .. }
            | Self::Transport(_)
            | Self::Bookmark { .. }
            | Self::NotDelivered { .. }
            | Self::NeverAccepted { .. } => false,
        }
    }
}

/// Returns the messages of an error and of all its causes, on one line.
///
/// An error of this crate prints its own message alone. The reason is often in the messages of the
/// causes.
///
/// # Examples
///
/// ```
/// use simplefeed_client::Consumer;
///
/// let error = Consumer::builder("ftp://example.org/feed").build().unwrap_err();
/// eprintln!("error: {}", simplefeed_client::error_text(&error));
/// ```
pub fn error_text(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
