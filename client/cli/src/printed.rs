//! Entries on stdout, and when a place may move past them.
//!
//! Shell: stdout.

use std::{
    fs::{self, File},
    io::{self, BufWriter, Stdout, Write},
    os::{fd::AsFd as _, unix::fs::FileExt as _},
    path::Path,
};

/// Bytes that are collected before they are written.
const BUFFER_BYTES: usize = 256 * 1024;

/// Stdout, for entries that a bookmark or a state moves past.
#[derive(Debug)]
pub(crate) struct Printed {
    out: BufWriter<Stdout>,
    /// Stdout, if it is a file and a place is kept.
    file: Option<File>,
    is_settled: bool,
}

impl Printed {
    /// Returns stdout. With `keeps_place`, entries in a file are on the disk before the place moves past them.
    ///
    /// # Errors
    ///
    /// Returns why stdout cannot be looked at.
    pub(crate) fn new(keeps_place: bool) -> io::Result<Self> {
        let file = if keeps_place {
            let file = File::from(io::stdout().as_fd().try_clone_to_owned()?);
            let file = file.metadata()?.is_file().then_some(file);
            if let Some(file) = &file {
                sync_name();
                end_torn_line(file)?;
            }
            file
        } else {
            None
        };
        Ok(Self {
            out: BufWriter::with_capacity(BUFFER_BYTES, io::stdout()),
            file,
            is_settled: true,
        })
    }

    /// Passes on all that was written, and makes it durable where stdout is a file: a power cut must not take entries
    /// that the place is behind.
    ///
    /// # Errors
    ///
    /// Returns the first write that failed.
    pub(crate) fn settle(&mut self) -> io::Result<()> {
        self.out.flush()?;
        if !self.is_settled {
            self.file.as_ref().map_or(Ok(()), File::sync_data)?;
            self.is_settled = true;
        }
        Ok(())
    }
}

/// Makes the name of the file that stdout is durable, where the system tells it: a shell may have made it just now.
fn sync_name() {
    let path = fs::read_link("/proc/self/fd/1").ok();
    let folder = path.as_deref().and_then(Path::parent).map(File::open);
    // A folder that cannot be read had the file before.
    let _best_effort = folder.map(|folder| folder.and_then(|folder| folder.sync_all()));
}

/// Ends a line that a crash has cut short at the end of a file that is appended to: the next entry is a line of its own.
fn end_torn_line(mut file: &File) -> io::Result<()> {
    let length = file.metadata()?.len();
    let appends = rustix::fs::fcntl_getfl(file)?.contains(rustix::fs::OFlags::APPEND);
    // The file may be open for writing only. Where it cannot be read, its last line is taken for a whole one.
    let read = File::open("/proc/self/fd/1")
        .ok()
        .filter(|_| appends && length > 0);
    let mut last = [0];
    match read.map(|read| read.read_exact_at(&mut last, length - 1)) {
        Some(Ok(())) if last != *b"\n" => file.write_all(b"\n"),
        _ => Ok(()),
    }
}

impl Write for Printed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.is_settled = false;
        self.out.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}
