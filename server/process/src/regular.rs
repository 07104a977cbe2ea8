//! Regular files and folders, opened without waiting.
//!
//! Shell: the file system. The opening of a pipe waits for the other end, and a device may do
//! anything. So a path that leads to no regular file is an error.

use std::{
    error::Error,
    fs::{File, OpenOptions},
    io::{self, Read as _, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
};

use rustix::{fs::OFlags, io::Errno};
use simplefeed_core::limits::CLIENT_DOCUMENT_BYTES_MAX;

/// Opens a file for reading.
///
/// # Errors
///
/// Returns why the file cannot be opened; [`io::ErrorKind::InvalidInput`] if the path leads to no
/// regular file.
pub fn open(path: impl AsRef<Path>) -> io::Result<File> {
    open_as(path, File::options().read(true))
}

/// Opens a file with `options`. Custom flags of the system in `options` are replaced.
///
/// # Errors
///
/// As [`open`].
pub fn open_as(path: impl AsRef<Path>, options: &mut OpenOptions) -> io::Result<File> {
    let opened = options.custom_flags(flag_bits(OFlags::NONBLOCK)).open(path);
    match opened {
        Ok(file) if file.metadata()?.is_file() => Ok(file),
        // `ENXIO` is the error of a pipe that nobody reads, and of a socket.
        Err(error) if Errno::from_io_error(&error) != Some(Errno::NXIO) => Err(error),
        _ => Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "it is no regular file",
        )),
    }
}

/// Creates a file for writing, or empties an existing one.
///
/// # Errors
///
/// As [`open`].
#[expect(
    clippy::disallowed_methods,
    reason = "its callers say why the name may be lost"
)]
pub fn create(path: impl AsRef<Path>) -> io::Result<File> {
    let mut options = File::options();
    open_as(path, options.write(true).create(true).truncate(true))
}

/// Writes the whole contents of a file.
///
/// # Errors
///
/// As [`open`], or why the file cannot be written.
#[expect(
    clippy::disallowed_methods,
    reason = "its callers say why the name may be lost"
)]
pub fn write(path: impl AsRef<Path>, bytes: &[u8]) -> io::Result<()> {
    create(path)?.write_all(bytes)
}

/// Opens a folder, so that the names in the folder can be synced.
///
/// # Errors
///
/// Returns why the folder cannot be opened; [`io::ErrorKind::NotADirectory`] if the path leads to
/// no folder.
pub fn open_folder(path: impl AsRef<Path>) -> io::Result<File> {
    let mut options = File::options();
    let flags = flag_bits(OFlags::DIRECTORY);
    options.read(true).custom_flags(flags).open(path)
}

/// Length of the longest file that [`read`] takes, in bytes: no file of ours is so long.
const WHOLE_BYTES_MAX: u64 = 1024 * 1024 * 1024;
/// Length in bytes of the longest document, index block or sidecar that is read, plain or
/// compressed: none of ours is so long.
pub const DOCUMENT_BYTES_MAX: usize = CLIENT_DOCUMENT_BYTES_MAX;
/// Length of the longest file that [`read_text`] takes, in bytes: these files are notes of a few
/// lines.
const TEXT_BYTES_MAX: u64 = 1024 * 1024;
/// Length of the longest file that [`read_snapshot`] takes, in bytes.
const SNAPSHOT_BYTES_MAX: u64 = 4 * WHOLE_BYTES_MAX;

/// Returns the bytes of a file.
///
/// # Errors
///
/// As [`open`], or why the file cannot be read. See [`is_too_long`].
pub fn read(path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
    read_at_most(path, WHOLE_BYTES_MAX)
}

/// Returns the bytes of a document, or of a file that is written beside documents.
///
/// # Errors
///
/// As [`read`].
pub fn read_document(path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
    read_at_most(path, u64::try_from(DOCUMENT_BYTES_MAX).unwrap_or(u64::MAX))
}

/// Returns the bytes of a file that grows with the log.
///
/// # Errors
///
/// As [`read`].
pub fn read_snapshot(path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
    read_at_most(path, SNAPSHOT_BYTES_MAX)
}

/// Returns the bytes of a file that has at most `max` bytes.
///
/// # Errors
///
/// As [`read`].
pub fn read_at_most(path: impl AsRef<Path>, max: u64) -> io::Result<Vec<u8>> {
    let file = open(path)?;
    let length = file.metadata()?.len();
    // The length is checked before the read: a file in the place of another may be larger than the
    // memory.
    if length > max {
        return Err(too_long());
    }
    let mut bytes = Vec::with_capacity(usize::try_from(length).unwrap_or(0));
    // The file may have grown after the check of its length. One byte beyond `max` is read to show
    // such growth.
    let read = file.take(max.saturating_add(1)).read_to_end(&mut bytes)?;
    if u64::try_from(read).unwrap_or(u64::MAX) > max {
        return Err(too_long());
    }
    Ok(bytes)
}

/// Returns whether the content of a file is exactly `bytes`.
///
/// # Errors
///
/// As [`open`], or why the file cannot be read.
pub fn has(path: impl AsRef<Path>, bytes: &[u8]) -> io::Result<bool> {
    let max = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
    match read_at_most(path, max) {
        Ok(found) => Ok(found == bytes),
        Err(error) if is_too_long(&error) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Returns the text of a file.
///
/// # Errors
///
/// As [`read`], or why the bytes are not UTF-8.
pub fn read_text(path: impl AsRef<Path>) -> io::Result<String> {
    let bytes = read_at_most(path, TEXT_BYTES_MAX)?;
    String::from_utf8(bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

/// A file is longer than any that belongs there.
#[derive(Debug, thiserror::Error)]
#[error("it is longer than any file that belongs here")]
struct FileTooLong;

fn too_long() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, FileTooLong)
}

/// Returns whether the reading of a file failed because the file is longer than any that belongs
/// there.
pub fn is_too_long(error: &io::Error) -> bool {
    let inner = error.get_ref();
    inner.is_some_and(<dyn Error + Send + Sync>::is::<FileTooLong>)
}

fn flag_bits(flags: OFlags) -> i32 {
    i32::try_from(flags.bits()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;
    use rustix::fs::{CWD, FileType, Mode, mknodat};

    /// Goal: nothing that stands in the place of a file makes its reader or its writer wait.
    #[test]
    fn what_is_no_file_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name| folder.path().join(name);
        let wanted = path("file");
        std::fs::write(&wanted, "text").unwrap();
        assert_eq!(read(&wanted).unwrap(), b"text");
        assert_eq!(read_text(&wanted).unwrap(), "text");
        mknodat(CWD, path("pipe"), FileType::Fifo, Mode::RWXU, 0).unwrap();
        let _listener = UnixListener::bind(path("socket")).unwrap();
        for name in ["pipe", "socket", "."] {
            let wrong = path(name);
            let (read, created) = (read(&wrong), create(&wrong));
            read.unwrap_err();
            created.unwrap_err();
            assert_eq!(open_folder(&wrong).is_ok(), name == ".");
        }
        open_folder(&wanted).unwrap_err();
        create(&wanted).unwrap();
        assert_eq!(read(&wanted).unwrap(), b"");
    }
}
