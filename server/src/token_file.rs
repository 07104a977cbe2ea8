//! Changes of the file of tokens.
//!
//! Shell: that file. Each change replaces the file as a whole, so a power cut leaves the old lines or the new ones, and
//! a server can read both. Once a change returns, no power cut takes it back.

use std::{
    fs::{self, File, Metadata, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use simplefeed_server::log::durable::{self, parent_of};

/// A file of tokens that no other command changes meanwhile.
#[derive(Debug)]
pub(crate) struct TokenFile {
    path: PathBuf,
    /// Text of the file; empty if there is none yet.
    pub(crate) text: String,
    /// `None` if there is no file yet.
    found: Option<Metadata>,
    /// The lock ends with the handle.
    _locked: File,
}

impl TokenFile {
    /// Opens a file that may not be there yet. Waits while another command changes it.
    ///
    /// # Errors
    ///
    /// Returns why the file cannot be read, or its folder not be locked.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        // Behind a link, the file itself is replaced.
        let path = fs::canonicalize(path).unwrap_or_else(|_| path.into());
        // The folder, because the file is another one after each change.
        let folder = File::open(parent_of(&path))?;
        folder.lock()?;
        let (text, found) = match fs::read_to_string(&path) {
            Ok(text) => (text, Some(fs::metadata(&path)?)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => (String::new(), None),
            Err(error) => return Err(error),
        };
        Ok(Self {
            path,
            text,
            found,
            _locked: folder,
        })
    }

    /// Adds a line, behind a line break if the last line has none.
    ///
    /// # Errors
    ///
    /// Returns why the file cannot be written.
    pub(crate) fn add(&self, line: &str) -> io::Result<()> {
        let is_ended = self.text.is_empty() || self.text.ends_with('\n');
        let end = if is_ended { "" } else { "\n" };
        let added = format!("{end}{line}\n");
        match self.replace(&format!("{}{added}", self.text)) {
            // The folder, or the owner of the file, allows no new file in its place: a mount, or a group's file.
            Err(error)
                if self.found.is_some()
                    && matches!(
                        error.kind(),
                        io::ErrorKind::PermissionDenied | io::ErrorKind::ResourceBusy
                    ) =>
            {
                let mut file = File::options().append(true).open(&self.path)?;
                file.write_all(added.as_bytes())?;
                file.sync_all()
            }
            replaced => replaced,
        }
    }

    /// Replaces the text. The file keeps its owner and mode; only the owner can read a new one.
    ///
    /// # Errors
    ///
    /// Returns why the file cannot be written.
    pub(crate) fn replace(&self, text: &str) -> io::Result<()> {
        let mut temporary = self.path.as_os_str().to_owned();
        temporary.push(".new");
        let temporary = PathBuf::from(temporary);
        let mut file = create(&temporary)?;
        file.write_all(text.as_bytes())?;
        if let Some(found) = &self.found {
            let new = file.metadata()?;
            if (found.uid(), found.gid()) != (new.uid(), new.gid()) {
                std::os::unix::fs::fchown(&file, Some(found.uid()), Some(found.gid()))?;
            }
            file.set_permissions(found.permissions())?;
        }
        // A power cut after the rename must not leave an empty file in its place.
        file.sync_all()?;
        #[cfg(planted)]
        if crate::planted::is("revoke-unsynced") {
            return fs::rename(&temporary, &self.path);
        }
        durable::rename(&temporary, &self.path)
    }
}

/// Creates a file that others cannot read, until it has the mode and owner of the old one.
#[expect(
    clippy::disallowed_methods,
    reason = "the name is temporary: the next change takes one that is left"
)]
fn create(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.create(true).write(true).truncate(true).mode(0o600);
    options.open(path)
}
