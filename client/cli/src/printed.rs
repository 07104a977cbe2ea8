//! Entries on stdout, and the moment from which a bookmark or a state may move past them.
//!
//! Shell: stdout.

use std::{
    fs::{self, File},
    io::{self, BufWriter, Stdout, Write},
    os::{
        fd::AsFd as _,
        unix::fs::{FileExt as _, MetadataExt as _},
    },
    path::Path,
};

use rustix::fs::OFlags;

use crate::stdout::{Out, check, stdout};

/// Bytes that are collected before they are written.
const BUFFER_BYTES: usize = 256 * 1024;

/// Stdout, for entries that a bookmark or a state moves past.
#[derive(Debug)]
pub(crate) struct EntryPrinter {
    out: BufWriter<Out>,
    /// Stdout as a file, if stdout is a file and a bookmark or a state is kept.
    file: Option<File>,
    /// Whether something was written.
    has_begun: bool,
    is_settled: bool,
}

impl EntryPrinter {
    /// Returns a printer to stdout. `keeps_place` says that a bookmark or a state is kept: then
    /// [`settle`](Self::settle) also makes entries in a file durable.
    ///
    /// # Errors
    ///
    /// If stdout is closed or open for reading only, or if the name of stdout's file cannot be made
    /// durable.
    pub(crate) fn new(keeps_place: bool) -> io::Result<Self> {
        if is_closed(&io::stdout()) {
            return Err(io::Error::other(
                "stdout is closed, or the null device for reading and writing, as which the system shows a closed one: \
                 entries would be lost",
            ));
        }
        check()?;
        let file = if keeps_place {
            // A copy of the descriptor: when a file is dropped, the descriptor is closed, and
            // stdout must stay open.
            let file = File::from(io::stdout().as_fd().try_clone_to_owned()?);
            let file = file.metadata()?.is_file().then_some(file);
            if let Some(file) = &file {
                sync_name(file)?;
            }
            file
        } else {
            None
        };
        Ok(Self {
            out: BufWriter::with_capacity(BUFFER_BYTES, stdout()),
            file,
            has_begun: false,
            is_settled: true,
        })
    }

    /// Writes out the collected bytes. If stdout is a file and a bookmark or a state is kept, also
    /// makes the bytes durable: a power cut must not take entries that the bookmark has passed.
    ///
    /// # Errors
    ///
    /// Returns why a write or the sync failed.
    pub(crate) fn settle(&mut self) -> io::Result<()> {
        self.out.flush()?;
        // Without new bytes, a sync would cost time for nothing.
        if !self.is_settled {
            self.file.as_ref().map_or(Ok(()), File::sync_data)?;
            self.is_settled = true;
        }
        Ok(())
    }
}

/// Returns whether stdout was closed when the program began. In that case, the runtime has opened
/// the null device, for reading and writing; a shell's `>/dev/null` is for writing only.
fn is_closed(stdout: &Stdout) -> bool {
    let Ok(found) = rustix::fs::fstat(stdout) else {
        return true;
    };
    let is_null = fs::metadata("/dev/null").is_ok_and(|null| null.rdev() == found.st_rdev);
    let mode = rustix::fs::fcntl_getfl(stdout).map(|flags| flags & OFlags::RWMODE);
    is_null && mode == Ok(OFlags::RDWR)
}

/// Makes the name of stdout's file durable: a shell may have made it just now.
fn sync_name(file: &File) -> io::Result<()> {
    let path = fs::read_link("/proc/self/fd/1").ok();
    let folder = path.as_deref().and_then(Path::parent).map(File::open);
    match folder.and_then(Result::ok).map(|folder| folder.sync_all()) {
        Some(Ok(())) => Ok(()),
        // The folder cannot be read or synced, or the system does not name the folder. So the whole
        // file system is synced.
        _ => sync_file_system(file),
    }
}

#[cfg(target_os = "linux")]
fn sync_file_system(file: &File) -> io::Result<()> {
    Ok(rustix::fs::syncfs(file)?)
}

#[cfg(not(target_os = "linux"))]
fn sync_file_system(file: &File) -> io::Result<()> {
    file.sync_all()
}

/// Ends a line that a crash has cut short at the end of a file in append mode, so that the next
/// entry has a line of its own. `read` opens the file for reading. The last line of an unreadable
/// file counts as torn: an empty line is better than a lost entry.
fn end_torn_line(mut file: &File, read: impl FnOnce() -> io::Result<File>) -> io::Result<()> {
    let length = file.metadata()?.len();
    let appends = rustix::fs::fcntl_getfl(file)?.contains(OFlags::APPEND);
    // A file that is written from the beginning has no line to end.
    if !appends || length == 0 {
        return Ok(());
    }
    let mut last = [0];
    match read().and_then(|read| read.read_exact_at(&mut last, length - 1)) {
        Ok(()) if last == *b"\n" => Ok(()),
        _ => file.write_all(b"\n"),
    }
}

impl Write for EntryPrinter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.is_settled = false;
        if !self.has_begun {
            // Only at the first write, when the bookmark or the state is locked: before, another
            // process may be in the middle of a line.
            if let Some(file) = &self.file {
                end_torn_line(file, || File::open("/proc/self/fd/1"))?;
            }
            self.has_begun = true;
        }
        self.out.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "the files of a test")]
mod tests {
    use super::*;

    /// Goal: an entry behind a line that was cut short is a line of its own; a whole file stays as
    /// it is.
    #[test]
    fn a_torn_line_is_ended() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out");
        for (found, wanted) in [
            ("one\ntw", "one\ntw\nnext\n"),
            ("one\n", "one\nnext\n"),
            ("", "next\n"),
        ] {
            fs::write(&path, found).unwrap();
            let mut file = File::options().append(true).open(&path).unwrap();
            end_torn_line(&file, || File::open(&path)).unwrap();
            file.write_all(b"next\n").unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), wanted);
        }
        // A file that others may not read.
        fs::write(&path, "tw").unwrap();
        let file = File::options().append(true).open(&path).unwrap();
        end_torn_line(&file, || Err(io::ErrorKind::PermissionDenied.into())).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "tw\n");
        // A file that is written from its beginning has no line to end.
        fs::write(&path, "old").unwrap();
        let file = File::options().write(true).open(&path).unwrap();
        end_torn_line(&file, || File::open(&path)).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "old");
    }
}
