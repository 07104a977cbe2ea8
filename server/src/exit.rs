//! Exit codes of `simplefeed-server`, and the errors that they stand for.
//!
//! Pure.

use std::io;

use simplefeed_log::{LogError, sled::folder::OpenError};
use simplefeed_process::lack::{advice, lack_in};

use crate::{config::ConfigError, error::ServeError, upkeep::recover::RecoverError};

/// The command succeeded and found no fault.
pub const OK: u8 = 0;
/// Any failure without a code of its own.
pub const OTHER: u8 = 1;
/// The command line or configuration is wrong.
pub const USAGE: u8 = 2;
/// The log, or the thing that the command names, does not exist.
pub const NOT_FOUND: u8 = 10;
/// Another process holds the lock of the data folder.
pub const LOCKED: u8 = 11;
/// Stored data is damaged, of another storage version, or not the log that readers have seen.
pub const INTEGRITY: u8 = 15;
/// The data folder of a server was moved, replaced or changed under it, so the server took no
/// entries any more.
pub const DISPLACED: u8 = 16;
/// The program was ended by Ctrl-C.
pub const INTERRUPTED: u8 = 130;
/// The program was ended at once, by a second SIGTERM.
pub(crate) const TERMINATED: u8 = 143;

/// Returns the exit code of an error.
pub fn code_of(error: &anyhow::Error) -> u8 {
    let damaged = error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<LogError>())
        .any(|error| matches!(error, LogError::Damaged { .. } | LogError::Replaced { .. }));
    // The whole chain is searched, because `context` wraps errors.
    if error
        .chain()
        .any(<dyn std::error::Error>::is::<ConfigError>)
    {
        return USAGE;
    }
    // An `OpenError` is asked for before `damaged`, because it is more exact.
    match open_error(error) {
        Some(OpenError::Locked { .. }) => LOCKED,
        Some(OpenError::Damaged { .. } | OpenError::Newer { .. } | OpenError::Older { .. }) => {
            INTEGRITY
        }
        Some(OpenError::Absent { .. }) => NOT_FOUND,
        Some(OpenError::Foreign { .. }) => USAGE,
        _ if is_displaced(error) => DISPLACED,
        _ if damaged => INTEGRITY,
        _ => match error.downcast_ref() {
            Some(RecoverError::Nothing { .. }) => NOT_FOUND,
            _ => OTHER,
        },
    }
}

fn is_displaced(error: &anyhow::Error) -> bool {
    let displaced = |cause: &ServeError| matches!(cause, ServeError::Displaced);
    error.downcast_ref().is_some_and(displaced)
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
    let replaced = |cause: &LogError| matches!(cause, LogError::Replaced { .. });
    if error
        .chain()
        .filter_map(|cause| cause.downcast_ref())
        .any(replaced)
    {
        texts.push(
            "hint: keep the folder as it is. If --www names another server's folder, name the right one; else \
             `simplefeed-server recover` makes a new log of this one and of the archived documents beside it, in which no \
             shown URL has other contents."
                .into(),
        );
    }
    texts.extend(hint_for_files(error).map(Into::into));
    let lack = lack_in(error.as_ref());
    let advice = lack.and_then(advice);
    let advice = advice.map(|advice| format!("hint: {advice}."));
    // The hint is about threads alone, so it replaces the advice, which fits any lack of the
    // system.
    texts.extend(hint_for_threads(error).map(Into::into).or(advice));
    let is_log = error
        .chain()
        .any(|cause| cause.is::<OpenError>() || cause.is::<LogError>());
    if is_log && lack.is_some_and(|lack| lack.kind() == io::ErrorKind::ReadOnlyFilesystem) {
        texts.push(
            "hint: opening a log writes: copy the data folder to another disk with `cp -a`, or lay a writable layer over \
             it with `mount -t overlay`."
                .into(),
        );
    }
    texts
}

/// Returns a hint about the limits that keep the system from starting a thread, if that is the
/// error.
fn hint_for_threads(error: &anyhow::Error) -> Option<&'static str> {
    let is_start = error.chain().any(|cause| {
        let of_serve = |error: &ServeError| matches!(error, ServeError::Start(_));
        let of_log = |error: &LogError| {
            matches!(
                error,
                LogError::Io {
                    action: "start",
                    ..
                }
            )
        };
        let of_open = |error: &OpenError| {
            matches!(
                error,
                OpenError::Io {
                    action: "start",
                    ..
                }
            )
        };
        cause.downcast_ref().is_some_and(of_serve)
            || cause.downcast_ref().is_some_and(of_log)
            || cause.downcast_ref().is_some_and(of_open)
    });
    let mut causes = error.chain().filter_map(|cause| cause.downcast_ref());
    // If a limit keeps a thread from starting, the error is EAGAIN (pthread_create(3)).
    let is_limited = |error: &io::Error| error.kind() == io::ErrorKind::WouldBlock;
    (is_start && causes.any(is_limited)).then_some(
        "hint: the system gives the server no more threads or memory: look at the limits of tasks (TasksMax, pids.max, \
         `ulimit -u`) and of memory (MemoryMax, `ulimit -v`; each thread needs room for its stack).",
    )
}

/// Names of the log's files and folders in a data folder, which something else may have by mistake.
const OF_THE_LOG: [&str; 10] = [
    "clock",
    "ids",
    "journal",
    "lock",
    "restored",
    "seen",
    "sled",
    "views",
    "watermark",
    "witness",
];

/// Returns a hint about a file that the operating system keeps from the log.
fn hint_for_files(error: &anyhow::Error) -> Option<&'static str> {
    let (path, source) =
        error
            .chain()
            .find_map(|cause| match (cause.downcast_ref(), cause.downcast_ref()) {
                (Some(OpenError::Io { path, source, .. }), _)
                | (_, Some(LogError::Io { path, source, .. })) => Some((path, source)),
                _ => None,
            })?;
    let mut names = path.iter();
    // The hints are about the data folder, so an error with another path gets no hint.
    names.find(|name| OF_THE_LOG.iter().any(|known| name == known))?;
    match source.kind() {
        io::ErrorKind::PermissionDenied => Some(
            "hint: the user of the server needs to read and to write the data folder and all in it.",
        ),
        io::ErrorKind::InvalidInput
        | io::ErrorKind::IsADirectory
        | io::ErrorKind::NotADirectory
        | io::ErrorKind::AlreadyExists => Some(
            "hint: something else has this name: move it away, and put back what was there. `lock` and `ids` are made again.",
        ),
        _ => None,
    }
}
