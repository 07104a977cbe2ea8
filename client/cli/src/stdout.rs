//! Stdout of a command: writes wait for the reader, and errors name stdout.
//!
//! Shell: stdout.

use std::io::{self, ErrorKind, Stdout, Write};

use rustix::{
    event::{PollFd, PollFlags, poll},
    fs::{OFlags, fcntl_getfl},
    io::Errno,
};

/// Stdout could not be written to.
#[derive(Debug, thiserror::Error)]
#[error("cannot write to stdout")]
struct Unwritable(#[source] io::Error);

/// Stdout. A write waits for the reader, even if another process has made the pipe non-blocking.
#[derive(Debug)]
pub(crate) struct Out(Stdout);

/// Returns stdout, whose writes wait for the reader.
pub(crate) fn stdout() -> Out {
    Out(io::stdout())
}

/// Checks that stdout can be written to.
///
/// # Errors
///
/// If stdout is open for reading only. The standard library reports no error for such a write.
pub(crate) fn check() -> io::Result<()> {
    match fcntl_getfl(io::stdout()) {
        Ok(flags) if flags & OFlags::RWMODE == OFlags::RDONLY => {
            let error = io::Error::other("it is open for reading only");
            Err(io::Error::other(Unwritable(error)))
        }
        _ => Ok(()),
    }
}

impl Write for Out {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        check()?;
        write_patiently(|| self.0.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        write_patiently(|| self.0.flush())
    }
}

fn write_patiently<T>(mut write: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match write() {
            Err(error) if error.kind() == ErrorKind::WouldBlock => wait_for_reader()?,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            // `replay | head` is no failure: a broken pipe stays unwrapped, and `main` recognises
            // the error by the kind.
            Err(error) if error.kind() != ErrorKind::BrokenPipe => {
                return Err(io::Error::new(error.kind(), Unwritable(error)));
            }
            written => return written,
        }
    }
}

fn wait_for_reader() -> io::Result<()> {
    match poll(&mut [PollFd::new(&io::stdout(), PollFlags::OUT)], None) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
