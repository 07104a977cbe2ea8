//! Exit codes, and the errors that they stand for.
//!
//! Pure.

use std::io;

use rustix::io::Errno;
use simplefeed_client::{
    ConsumerError, EntryError, PublishError, fetch::FetchError, state::StateError,
    watcher::WatchError, worker::WorkerError,
};
use simplefeed_core::replay::WalkError;
use simplefeed_queue::QueueError;

use crate::refresh::control::NoQueue;

/// Success, also of a command that was asked to end.
pub(crate) const OK: u8 = 0;
/// Any failure without a code of its own.
pub(crate) const OTHER: u8 = 1;
pub(crate) const USAGE: u8 = 2;
/// Some entries could not be handled, and were skipped or parked.
pub(crate) const PARTIAL: u8 = 3;
pub(crate) const NOT_FOUND: u8 = 10;
const LOCKED: u8 = 11;
const UNAUTHORIZED: u8 = 12;
pub(crate) const GAP: u8 = 13;
const UNAVAILABLE: u8 = 14;
pub(crate) const INTEGRITY: u8 = 15;
pub(crate) const ANOTHER_FEED: u8 = 16;
/// Ended by SIGINT (Ctrl-C). As in shells, the code is 128 plus the number of the signal.
pub(crate) const INTERRUPTED: u8 = 130;

/// A command line that clap accepts and the command refuses.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Usage(pub(crate) String);

/// Returns the exit code of an error.
pub(crate) fn code_of(error: &anyhow::Error) -> u8 {
    if error.downcast_ref::<Usage>().is_some() {
        return USAGE;
    }
    if let Some(error) = error.downcast_ref::<ConsumerError>() {
        return code_of_consumer(error);
    }
    if error.is::<NoQueue>() {
        return NOT_FOUND;
    }
    if let Some(QueueError::InUse(_)) = error.downcast_ref() {
        return LOCKED;
    }
    if let Some(error) = error.downcast_ref::<FetchError>() {
        return code_of_fetch(error);
    }
    if let Some(error) = error.downcast_ref::<PublishError>() {
        return match error {
            PublishError::Url { .. } => USAGE,
            PublishError::Refused {
                status: 401 | 403, ..
            } => UNAUTHORIZED,
            PublishError::Refused { status: 404, .. } => NOT_FOUND,
            PublishError::Refused {
                status: 409 | 412, ..
            }
            | PublishError::Unacknowledged { .. } => INTEGRITY,
            // The publisher's retries are over when the error comes here.
            error if error.is_transient() => UNAVAILABLE,
            _ => OTHER,
        };
    }
    if let Some(error) = error.downcast_ref::<WorkerError>() {
        return match error {
            WorkerError::Consumer(error) => code_of_consumer(error),
            WorkerError::State(error) => code_of_state(error),
            // The same code as for skipped entries: some entries could not be handled.
            WorkerError::TooManyParked { .. } => PARTIAL,
            _ => OTHER,
        };
    }
    if let Some(error) = error.downcast_ref::<StateError>() {
        return code_of_state(error);
    }
    if let Some(error) = error.downcast_ref::<WatchError>() {
        return match error {
            WatchError::Consumer(error) => code_of_consumer(error),
            WatchError::State(error) => code_of_state(error),
            WatchError::Count { .. } | WatchError::Token { .. } => USAGE,
            _ => OTHER,
        };
    }
    if let Some(error) = error.downcast_ref::<io::Error>() {
        return code_of_file(error);
    }
    // The entry in the feed does not change, so no retry helps.
    if error.downcast_ref::<EntryError>().is_some() {
        return INTEGRITY;
    }
    OTHER
}

fn code_of_consumer(error: &ConsumerError) -> u8 {
    match error {
        ConsumerError::Url { .. } | ConsumerError::Scheme { .. } => USAGE,
        ConsumerError::Fetch(error) => code_of_fetch(error),
        ConsumerError::Bookmark { source, .. } => code_of_file(source),
        ConsumerError::Walk(error) => match error {
            // All kinds of gaps have one code. A broken link has the same code, because a gap may
            // lie behind the link.
            error if error.is_gap() => GAP,
            WalkError::BrokenLink { .. } => GAP,
            WalkError::AnotherFeed { .. } => ANOTHER_FEED,
            WalkError::HistoryChanged { .. }
            | WalkError::Loop { .. }
            | WalkError::Backwards { .. } => INTEGRITY,
            // A cache or a server may recover, unlike a changed history.
            WalkError::Stale { .. } => UNAVAILABLE,
            _ => OTHER,
        },
        _ => OTHER,
    }
}

fn code_of_state(error: &StateError) -> u8 {
    match error {
        StateError::Locked { .. } => LOCKED,
        // A folder that belongs to something else is a wrong argument, such as a mistyped path.
        StateError::Foreign { .. } => USAGE,
        StateError::Io { source, .. } => code_of_file(source),
        _ => OTHER,
    }
}

/// Returns the exit code of a file error. A bookmark whose content is malformed or incomplete
/// counts as damaged.
fn code_of_file(error: &io::Error) -> u8 {
    match error.kind() {
        io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof => INTEGRITY,
        // The error of a bookmark that another process has locked.
        io::ErrorKind::ResourceBusy => LOCKED,
        _ => OTHER,
    }
}

fn code_of_fetch(error: &FetchError) -> u8 {
    match error {
        FetchError::Missing { .. } => NOT_FOUND,
        FetchError::Unauthorized { .. } => UNAUTHORIZED,
        FetchError::Changed { .. } => INTEGRITY,
        error if error.is_transient() => UNAVAILABLE,
        _ => OTHER,
    }
}

const HINT_URL: &str = "a URL begins with http:// or https://.";
const HINT_TOKEN: &str = "give a token with --token-file FILE, or in $SIMPLEFEED_TOKEN.";

/// Returns the remedy for an error of the system, if a remedy is known.
fn advice_for(error: &io::Error) -> Option<&'static str> {
    use io::ErrorKind as Kind;
    Some(match error.kind() {
        Kind::FileTooLarge => {
            "a file may not become so long: raise `ulimit -f`, or LimitFSIZE= of its unit."
        }
        Kind::StorageFull => "the disk is full: `df` and `df -i` show which one.",
        Kind::QuotaExceeded => "the quota of the disk is exhausted: `quota` shows it.",
        Kind::ReadOnlyFilesystem => {
            "the file system is mounted for reading only: name a place that can be written to."
        }
        // The error of a thread or a process that cannot start. All other calls of the command
        // wait, and never fail in this way.
        Kind::WouldBlock => {
            "look at the limits of tasks (`ulimit -u`, TasksMax, pids.max) and of memory (`ulimit -v`, MemoryMax; each \
             thread needs room for its stack)."
        }
        _ => match Errno::from_io_error(error)? {
            Errno::MFILE | Errno::NFILE => {
                "too many files are open: raise `ulimit -n`, or LimitNOFILE= of its unit."
            }
            _ => return None,
        },
    })
}

/// Returns advice about an error that has one remedy.
pub(crate) fn hint_of(error: &anyhow::Error) -> Option<&'static str> {
    let mut causes = error.chain().filter_map(|cause| cause.downcast_ref());
    // Before all other advice: a full disk or a limit may be the cause of any error of a feed or a
    // state.
    if let Some(advice) = causes.find_map(advice_for) {
        return Some(advice);
    }
    match error.downcast_ref() {
        // For a timeline, the hint would be wrong: the URL is that of a feed, and the server's
        // message says where to publish.
        Some(PublishError::Refused {
            status: 405,
            detail,
            ..
        }) if !detail.contains("timeline") => {
            return Some("publish to the feed's own URL, which ends in its name.");
        }
        Some(PublishError::Refused { status: 401, .. }) => return Some(HINT_TOKEN),
        Some(PublishError::Url { .. }) => return Some(HINT_URL),
        _ => {}
    }
    // In commands without a consumer, no `ConsumerError` wraps the error of the fetcher.
    if let Some(FetchError::Unauthorized { status: 401, .. }) = error.downcast_ref() {
        return Some(HINT_TOKEN);
    }
    if let Some(WorkerError::TooManyParked { .. }) = error.downcast_ref() {
        return Some(
            "see `simplefeed parked list`; when the cause is mended, `simplefeed parked retry`.",
        );
    }
    // A worker wraps the consumer's error, and the advice below is about the consumer's error.
    let of_worker = match error.downcast_ref() {
        Some(WorkerError::Consumer(error)) => Some(error),
        _ => None,
    };
    match of_worker.or_else(|| error.downcast_ref())? {
        ConsumerError::Fetch(FetchError::Elsewhere { .. }) => {
            Some("to follow links and redirects there, say so with --allow-origin.")
        }
        ConsumerError::Walk(WalkError::Backwards { .. }) => {
            Some("give the URL of the feed's newest document.")
        }
        ConsumerError::Url { .. } | ConsumerError::Scheme { .. } => Some(HINT_URL),
        ConsumerError::Fetch(FetchError::Unauthorized { status: 401, .. }) => Some(HINT_TOKEN),
        ConsumerError::Walk(error) if error.is_gap() => Some(
            "to go on from what there is, use --on-gap go-on; to begin after another entry, --since ID or \
             `simplefeed bookmark set`. `simplefeed replay URL --format id` prints the ids there are.",
        ),
        ConsumerError::Walk(WalkError::HistoryChanged { .. }) => Some(
            "the server was rolled back or rebuilt, or a document was changed; what was read before \
             may not be there any more. To go on from a place of your choice, use \
             `simplefeed bookmark set`.",
        ),
        ConsumerError::Walk(WalkError::Stale { .. }) => {
            Some("a cache gives an old copy, or the server has lost its newest entries.")
        }
        ConsumerError::Walk(WalkError::AnotherFeed { .. }) => {
            Some("a bookmark or a mirror belongs to one feed; use another place for this one.")
        }
        _ => None,
    }
}
