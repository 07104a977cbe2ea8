//! A file that must stay where the opening found the file.
//!
//! Shell: looks by name.

use std::{fs, io, path::PathBuf};

use crate::{
    LogError,
    held::{FileIdentity, look},
};

/// A file that must stay at the place where the opening found the file.
#[derive(Debug)]
pub(super) struct FoundFile {
    path: PathBuf,
    identity: FileIdentity,
    /// The fewest bytes that the file may have.
    least: u64,
}

impl FoundFile {
    /// Finds a file. `name` is the path by which the next process looks for the file.
    ///
    /// # Errors
    ///
    /// Returns why the file cannot be found.
    pub(super) fn find(name: PathBuf) -> io::Result<Self> {
        let found = fs::metadata(&name)?;
        Ok(Self {
            path: name,
            identity: FileIdentity::of(&found),
            least: 0,
        })
    }

    /// Returns the file with the demand that it does not get shorter.
    ///
    /// # Errors
    ///
    /// Returns why the file cannot be measured.
    pub(super) fn whole(self) -> io::Result<Self> {
        let least = fs::metadata(&self.path)?.len();
        Ok(Self { least, ..self })
    }

    /// Returns the file with the demand that it has at least so many bytes.
    pub(super) fn at_least(self, least: u64) -> Self {
        Self { least, ..self }
    }

    /// Checks that the file is at its place, with enough bytes.
    ///
    /// # Errors
    ///
    /// Returns [`LogError::Displaced`] if the file was removed, replaced, cut or moved.
    pub(super) fn check(&self) -> Result<(), LogError> {
        let is_there = |(found, length)| found == self.identity && length >= self.least;
        if look(&self.path).is_ok_and(is_there) {
            return Ok(());
        }
        let what = format!(
            "{} was removed, replaced, cut or moved",
            self.path.display()
        );
        Err(LogError::Displaced { what })
    }
}
