//! Copies of a document: the file in one of the trees, and the twin beside the file.
//!
//! Shell: reads files.

use std::path::Path;

use simplefeed_process::{lack::unless_lacking, regular};

use crate::{
    error::ViewError,
    files::{decoded_twin, failed},
};

/// Files of a document in one of the trees.
#[derive(Debug)]
pub(super) struct FileCopies {
    pub(super) file: Option<Vec<u8>>,
    /// Content of the `.gz` twin, decompressed.
    pub(super) twin: Option<Vec<u8>>,
}

impl FileCopies {
    /// Reads the copies that can be read.
    pub(super) fn read(path: &Path) -> Self {
        // For `recover`, a copy that cannot be read counts as missing.
        Self {
            file: regular::read_document(path).ok(),
            twin: decoded_twin(path, regular::DOCUMENT_BYTES_MAX).ok(),
        }
    }
    /// Reads the copies. A copy that is missing or damaged is left out.
    ///
    /// # Errors
    ///
    /// Returns the lack of a resource, such as file handles, that keeps a copy from being read.
    pub(super) fn found(path: &Path) -> Result<Self, ViewError> {
        // A lack of file handles must not count as a missing copy, or `may_move` would write over a
        // right copy.
        let file = unless_lacking(regular::read_document(path));
        let twin = unless_lacking(decoded_twin(path, regular::DOCUMENT_BYTES_MAX));
        Ok(Self {
            file: file.map_err(failed("read", path))?,
            twin: twin.map_err(failed("read", path))?,
        })
    }
    pub(super) fn all(&self) -> impl Iterator<Item = &Vec<u8>> {
        [&self.file, &self.twin].into_iter().flatten()
    }
    /// Returns whether the file and the twin have the same content, so that each proves the other.
    pub(super) fn agree(&self) -> bool {
        self.file.is_some() && self.file == self.twin
    }
}
