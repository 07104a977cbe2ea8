//! A tree of static files, which an export writes and any web server can serve.
//!
//! Shell: a folder. Links between documents are relative, so the tree works in any place.

use std::{
    collections::HashSet,
    fs::{self, File},
    io,
    path::{Path, PathBuf},
};

use simplefeed_log::{LogError, barrier::sync_large_tree, durable::create_folder};
use simplefeed_process::regular;
use simplefeed_resource::read_error::ReadError;

use super::{error::ViewError, files::replace_unsynced};

/// Why an export failed.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// A document cannot be read.
    #[error(transparent)]
    Document(#[from] ReadError),
    /// A document cannot be read.
    #[error("a document cannot be read")]
    View(#[from] ViewError),
    /// The log cannot be read.
    #[error("a document cannot be read")]
    Log(#[from] LogError),
    /// A file cannot be written.
    #[error("cannot write {path}")]
    Write {
        /// File that cannot be written.
        path: PathBuf,
        /// The operating system's answer.
        source: io::Error,
    },
}

/// A folder with static files.
#[derive(Debug)]
pub struct Tree {
    to: PathBuf,
    /// Handle of the folder, opened before anything is written, so that a sync reports every failed
    /// write.
    opened: Option<File>,
    /// Whether every entry gets a file of its own, too.
    pub with_entries: bool,
    /// Number of files given to [`Self::write`], unchanged ones included.
    files: u64,
    /// Paths of the final files, below the folder.
    frozen: Vec<String>,
    /// Names of the files written since the last [`Self::remove_others`].
    written: HashSet<String>,
}

impl Tree {
    /// Returns the tree at `to`.
    pub fn new(to: &Path, with_entries: bool) -> Self {
        Self {
            to: to.into(),
            opened: None,
            with_entries,
            files: 0,
            frozen: vec![],
            written: HashSet::new(),
        }
    }

    /// Returns the number of files.
    pub fn files(&self) -> u64 {
        self.files
    }

    /// Returns the paths of the final files.
    pub fn frozen(&self) -> &[String] {
        &self.frozen
    }

    /// Notes that a file is final. Only final files may be called immutable, because the bytes of
    /// all others may change.
    pub fn freeze(&mut self, path: String) {
        self.frozen.push(path);
    }

    /// Writes a file, under a temporary name first, because the tree may be served meanwhile. An
    /// unchanged file is left alone, so that a web server's validators stay the same.
    ///
    /// # Errors
    ///
    /// Returns why the file cannot be written.
    pub fn write(&mut self, name: &str, bytes: &[u8]) -> Result<(), ExportError> {
        let path = self.to.join(name);
        self.files += 1;
        self.written.insert(name.into());
        // An unchanged file keeps the time of modification, from which web servers make validators.
        if regular::read(&path).is_ok_and(|found| found == bytes) {
            return Ok(());
        }
        let parent = path.parent().unwrap_or(&self.to);
        // `create_folder` has made the tree's folder, so that the folder can be opened before the
        // write.
        let created = create_folder(parent).and_then(|()| self.open_folder());
        let written = created.and_then(|()| replace_unsynced(&path, bytes));
        written.map_err(|source| ExportError::Write { path, source })
    }

    /// Opens the folder, if that is not done yet.
    fn open_folder(&mut self) -> io::Result<()> {
        if self.opened.is_none() {
            self.opened = Some(regular::open_folder(&self.to)?);
        }
        Ok(())
    }

    /// Makes the files durable, also those that an earlier export has written.
    ///
    /// # Errors
    ///
    /// Returns why they cannot be synced.
    pub fn sync(&mut self) -> Result<(), ExportError> {
        // An export without files has no folder.
        let opened = if self.to.exists() {
            self.open_folder()
        } else {
            Ok(())
        };
        let synced = opened.and_then(|()| match &self.opened {
            Some(folder) => sync_large_tree(&self.to, folder),
            None => Ok(()),
        });
        synced.map_err(|source| ExportError::Write {
            path: self.to.clone(),
            source,
        })
    }

    /// Removes each file of a folder that `is_ours` accepts and that was not written since the last
    /// call of this function. Otherwise, files that remain from an export of another history would
    /// lead readers into that history.
    ///
    /// # Errors
    ///
    /// Returns why the folder cannot be read, or a file not be removed.
    #[expect(
        clippy::disallowed_methods,
        reason = "`sync` follows at the end of the export"
    )]
    pub(crate) fn remove_others(
        &mut self,
        folder: &str,
        is_ours: impl Fn(&str) -> bool,
    ) -> Result<(), ExportError> {
        let path = self.to.join(folder);
        let failed = |path: &Path| {
            let path = path.to_path_buf();
            move |source| ExportError::Write { path, source }
        };
        for item in fs::read_dir(&path).map_err(failed(&path))? {
            let path = item.map_err(failed(&path))?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            // `is_ours` knows names without the ending of a twin.
            let plain = name.strip_suffix(".gz").unwrap_or(&name);
            if is_ours(plain) && !self.written.contains(&format!("{folder}/{name}")) {
                fs::remove_file(&path).map_err(failed(&path))?;
            }
        }
        self.written.clear();
        Ok(())
    }
}
