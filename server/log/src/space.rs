//! Room on the disk: the log keeps enough free for settling the whole journal and for opening sled.
//!
//! Shell: the file system.

use std::{
    fs::{self, File},
    io,
    path::Path,
};

use rustix::{
    fs::StatVfs,
    process::{Resource, getrlimit},
};
use simplefeed_process::regular;

/// Bytes that are kept free in any case, for sled's snapshot and segments, the witness and small
/// files.
const SLACK_BYTES: u64 = 16 * 1024 * 1024;
/// Maximum number of bytes, live and dead, that sled takes on the disk to settle one byte of the
/// journal.
const SETTLED_BYTES: u64 = 3;
/// Bytes that sled takes in addition for each feed that changes in the journal: sled writes the
/// feed's tail again, and all records on the same page. Measured with full tails of 300,000 feeds.
const FEED_BYTES: u64 = 4 * 1024;
/// Maximum number of bytes on the disk for each byte of an entry to come: journal, sled, index,
/// archive.
const BYTES_PER_BYTE: u64 = 6;

/// Returns the bytes that may still be written to the file system of `folder`.
///
/// # Errors
///
/// Returns why the file system gives no answer.
pub fn free_bytes(folder: &Path) -> io::Result<u64> {
    Ok(free_in(&rustix::fs::statvfs(folder)?))
}

/// Returns the bytes that may still be written to the file system of an opened folder. A look-up of
/// a path would take longer than the answer.
///
/// # Errors
///
/// Returns why the file system gives no answer.
#[cfg_attr(
    not(feature = "sled"),
    expect(dead_code, reason = "a log in memory has no files")
)]
pub(crate) fn free_bytes_of(folder: &File) -> io::Result<u64> {
    Ok(free_in(&rustix::fs::fstatvfs(folder)?))
}

fn free_in(system: &StatVfs) -> u64 {
    // `f_bfree` would count the blocks that only root may use.
    system.f_bavail.saturating_mul(system.f_frsize)
}

/// Returns by how many bytes a file may grow before the system refuses writes of this process;
/// `None` if there is no limit. A file that is shorter than `least` bytes counts as `least` bytes
/// long.
#[cfg_attr(
    not(feature = "sled"),
    expect(dead_code, reason = "a log in memory has no files")
)]
pub(crate) fn bytes_left_for(path: &Path, least: u64) -> Option<u64> {
    let limit = getrlimit(Resource::Fsize).current?;
    let length = fs::metadata(path).map_or(0, |file| file.len());
    Some(limit.saturating_sub(length.max(least)))
}

/// Returns the length of all files below a folder together, in bytes.
///
/// # Errors
///
/// Returns why the folder cannot be read.
pub fn folder_bytes(folder: &Path) -> io::Result<u64> {
    let mut bytes = 0;
    for item in fs::read_dir(folder)? {
        let item = item?;
        bytes += if item.file_type()?.is_dir() {
            folder_bytes(&item.path())?
        } else {
            item.metadata()?.len()
        };
    }
    Ok(bytes)
}

/// Returns how many bytes must be free before `payload` bytes of entries are appended to a log.
/// `unsettled` is the number of unsettled bytes in the journal, which change `feeds` feeds.
pub fn needed_bytes(unsettled: u64, feeds: u64, payload: u64) -> u64 {
    unsettled
        .saturating_mul(SETTLED_BYTES)
        .saturating_add(feeds.saturating_mul(FEED_BYTES))
        .saturating_add(payload.saturating_mul(BYTES_PER_BYTE))
        .saturating_add(SLACK_BYTES)
}

/// Writes so many bytes to a file beside `folder`, and removes that file. Free space alone does not
/// tell whether the bytes fit: quotas and reserves count, too.
///
/// # Errors
///
/// Returns why the bytes do not fit.
#[expect(
    clippy::disallowed_methods,
    reason = "the next opening removes a probe that comes back"
)]
pub fn try_room(folder: &Path, bytes: usize) -> io::Result<()> {
    let probe = folder.with_extension("probe");
    let written = regular::write(&probe, &vec![0; bytes]);
    // Removed even after a failure: the written part would take room that the log needs.
    let _absent = fs::remove_file(&probe);
    written
}

/// Returns whether not even a small file fits into the file system of `folder`. sled panics on a
/// full disk, and the panic does not tell why.
pub fn is_full_at(folder: &Path) -> bool {
    try_room(folder, 4_096).is_err_and(|error| is_full(&error))
}

/// Returns whether an error, or one of its causes, is a full disk or an exhausted quota.
pub fn is_full(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(error) = cause {
        let full = error.downcast_ref::<io::Error>().is_some_and(|error| {
            // A limit on the length of files stops a log just as a full disk does.
            use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
            matches!(error.kind(), FileTooLarge | QuotaExceeded | StorageFull)
        });
        if full {
            return true;
        }
        cause = error.source();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LogError;

    #[test]
    fn a_full_disk_is_found_under_other_errors() {
        let full = || io::Error::from(io::ErrorKind::StorageFull);
        assert!(is_full(&LogError::io("write", "x")(full())));
        assert!(is_full(&LogError::Storage(Box::new(full()))));
        assert!(!is_full(&LogError::io("write", "x")(io::Error::other("x"))));
        assert!(!is_full(&LogError::Stopped));
    }

    #[test]
    fn what_is_needed_never_overflows() {
        assert_eq!(needed_bytes(0, 0, 0), SLACK_BYTES);
        assert_eq!(needed_bytes(u64::MAX, 1, 1), u64::MAX);
        assert_eq!(needed_bytes(1, u64::MAX, 1), u64::MAX);
        assert_eq!(needed_bytes(1, 1, u64::MAX), u64::MAX);
    }
}
