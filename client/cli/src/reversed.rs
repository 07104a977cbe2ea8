//! Entries in reverse order.
//!
//! Shell: a temporary file, which has no name and disappears with the process.

use std::{
    fs::File,
    io::{self, BufWriter, Seek as _, SeekFrom, Write},
    os::unix::fs::FileExt as _,
};

/// Entries in printed form, in a temporary file.
#[derive(Debug)]
pub(crate) struct ReversedEntries {
    file: BufWriter<File>,
    /// End of each entry in the file.
    ends: Vec<u64>,
}

/// Adds the file's folder, and the number of bytes in the file, to an error of the temporary file.
fn about_file(bytes: u64, error: &io::Error) -> io::Error {
    let folder = std::env::temp_dir();
    let detail = format!(
        "{bytes} bytes and more of entries cannot be kept in {}, whose folder TMPDIR names: {error}",
        folder.display()
    );
    io::Error::new(error.kind(), detail)
}

impl ReversedEntries {
    pub(crate) fn new() -> io::Result<Self> {
        let file = tempfile::tempfile().map_err(|error| about_file(0, &error))?;
        Ok(Self {
            file: BufWriter::new(file),
            ends: vec![],
        })
    }

    /// Adds an entry at the end of the file.
    pub(crate) fn keep(&mut self, line: &[u8]) -> io::Result<()> {
        let bytes = self.ends.last().copied().unwrap_or(0);
        self.file
            .write_all(line)
            .map_err(|error| about_file(bytes, &error))?;
        let length = u64::try_from(line.len()).unwrap_or(u64::MAX);
        let end = self.ends.last().copied().unwrap_or(0) + length;
        self.ends.push(end);
        Ok(())
    }

    /// Prints at most so many entries, the last one first.
    pub(crate) fn print(self, limit: u64, out: &mut impl Write) -> io::Result<()> {
        let bytes = self.ends.last().copied().unwrap_or(0);
        // The last entries are still in the buffer, and the write of the buffer may fail.
        let mut file = self
            .file
            .into_inner()
            .map_err(|error| about_file(bytes, &error.into_error()))?;
        file.seek(SeekFrom::Start(0))?;
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let starts = [0].iter().chain(&self.ends);
        let entries = starts.zip(&self.ends).collect::<Vec<_>>();
        let mut line = vec![];
        for (start, end) in entries.into_iter().rev().take(limit) {
            line.resize(usize::try_from(end - start).unwrap_or(0), 0);
            file.read_exact_at(&mut line, *start)?;
            out.write_all(&line)?;
        }
        out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_entries_come_first() {
        for (limit, expected) in [(0, ""), (2, "three\ntwo\n"), (9, "three\ntwo\n\none\n")] {
            let mut reversed = ReversedEntries::new().unwrap();
            for line in ["one\n", "\n", "two\n", "three\n"] {
                reversed.keep(line.as_bytes()).unwrap();
            }
            let mut out = vec![];
            reversed.print(limit, &mut out).unwrap();
            assert_eq!(String::from_utf8(out).unwrap(), expected);
        }
    }
}
