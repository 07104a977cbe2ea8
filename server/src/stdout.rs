//! Stdout of a command, which is written line by line.
//!
//! Shell: stdout.

use std::io;

use rustix::{
    event::{PollFd, PollFlags, poll},
    io::{Errno, write},
};

/// Prints a line. Waits for the reader, even of a pipe that another process has made non-blocking.
///
/// # Errors
///
/// Returns why the line cannot be written.
pub fn print_line(line: &str) -> io::Result<()> {
    let stdout = io::stdout().lock();
    let line = format!("{line}\n");
    let mut rest = line.as_bytes();
    while !rest.is_empty() {
        // The system is called directly: if stdout is open for reading only, the standard library
        // takes a line for written.
        let written = match write(&stdout, rest) {
            Err(Errno::AGAIN) => poll(&mut [PollFd::new(&stdout, PollFlags::OUT)], None).map(|_| 0),
            written => written,
        };
        match written {
            Ok(written) => rest = rest.get(written..).unwrap_or_default(),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
