//! Exit codes of both programs, and the error that each stands for.
//!
//! Pure.

use crate::{
    config::ConfigError,
    error::ServeError,
    log::{LogError, folder::OpenError},
    upkeep::recover::RecoverError,
};

/// The command succeeded and found no fault.
pub const OK: u8 = 0;
/// Any failure without a code of its own.
pub const OTHER: u8 = 1;
/// The command line or configuration is wrong.
pub const USAGE: u8 = 2;
/// The log, or whatever else was asked for, does not exist.
pub const NOT_FOUND: u8 = 10;
/// Another process holds the data folder.
pub const LOCKED: u8 = 11;
/// Stored data is damaged, or of a newer version.
pub const INTEGRITY: u8 = 15;
/// Ended by Ctrl-C.
pub const INTERRUPTED: u8 = 130;
/// Ended at once, by a second SIGTERM.
pub const TERMINATED: u8 = 143;

/// Returns the exit code of an error.
pub fn code_of(error: &anyhow::Error) -> u8 {
    let damaged = error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<LogError>())
        .any(|error| matches!(error, LogError::Damaged { .. }));
    // Anywhere in the chain, because `context` wraps errors.
    if error
        .chain()
        .any(<dyn std::error::Error>::is::<ConfigError>)
    {
        return USAGE;
    }
    // Before `damaged`, because an `OpenError` is more exact.
    match open_error(error) {
        Some(OpenError::Locked { .. }) => LOCKED,
        Some(OpenError::Damaged { .. } | OpenError::Newer { .. }) => INTEGRITY,
        Some(OpenError::Absent { .. }) => NOT_FOUND,
        Some(OpenError::Foreign { .. }) => USAGE,
        _ if damaged || is_behind(error) => INTEGRITY,
        _ => match error.downcast_ref() {
            Some(RecoverError::Nothing { .. }) => NOT_FOUND,
            _ => OTHER,
        },
    }
}

fn open_error(error: &anyhow::Error) -> Option<&OpenError> {
    error.chain().find_map(|cause| cause.downcast_ref())
}

/// Returns the lines to print for an error.
pub fn texts_of(error: &anyhow::Error) -> Vec<String> {
    let mut texts = vec![format!("error: {error}")];
    texts.extend(
        error
            .chain()
            .skip(1)
            .map(|cause| format!("caused by: {cause}")),
    );
    if let Some(OpenError::Damaged { .. }) = open_error(error) {
        let hint = "hint: keep the folder as it is, and restore a backup into another one";
        texts.push(format!("{hint}, or try `simplefeed-server recover`."));
    }
    if is_behind(error) {
        texts.push(
            "hint: restore a backup into another folder; `simplefeed-server rebuild` makes the documents of this log, \
             and caches may have others under the same URLs."
                .into(),
        );
    }
    texts
}

fn is_behind(error: &anyhow::Error) -> bool {
    let behind = |cause: &ServeError| matches!(cause, ServeError::Behind { .. });
    error
        .chain()
        .filter_map(|cause| cause.downcast_ref())
        .any(behind)
}
