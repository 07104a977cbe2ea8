//! Changes of the file of tokens.
//!
//! Shell: that file. A change replaces the file as a whole, so a power cut leaves either the old
//! lines or the new ones, and a server can read both. If no new file can replace the old one, a
//! line is added in place; a starting server leaves out a line that a power cut has torn. Once a
//! change has returned, no power cut undoes the change.

use std::{
    fs::{self, File, Metadata, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use simplefeed_http::access;
use simplefeed_log::durable::{self, parent_of};
use simplefeed_process::regular;

/// A file of tokens, locked against changes by other commands.
#[derive(Debug)]
pub(crate) struct TokenFile {
    path: PathBuf,
    /// Text of the file; empty if there is none yet.
    pub(crate) text: String,
    /// Metadata of the file; `None` if there is no file yet.
    found: Option<Metadata>,
    /// The lock ends with the handle.
    _locked: File,
}

impl TokenFile {
    /// Opens a file that may not be there yet. Waits while another command changes the file.
    ///
    /// # Errors
    ///
    /// Returns why the file cannot be read, or the folder cannot be locked.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let path = behind_links(path)?;
        // The lock is on the folder, because each change puts a new file there. A folder that may
        // not be opened mostly allows no new file, either. Then the file stays the same, and the
        // lock is on the file.
        let locked = match File::open(parent_of(&path)) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => File::open(&path)?,
            folder => folder?,
        };
        locked.lock()?;
        let (text, found) = match regular::read(&path) {
            Ok(bytes) => {
                let text = access::text_of(bytes).map_err(io::Error::other)?;
                (text, Some(fs::metadata(&path)?))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => (String::new(), None),
            Err(error) => return Err(error),
        };
        Ok(Self {
            path,
            text,
            found,
            _locked: locked,
        })
    }

    /// Adds a line, behind a line break if the last line has none.
    ///
    /// # Errors
    ///
    /// Returns why the file cannot be written.
    pub(crate) fn add(&self, line: &str) -> io::Result<()> {
        // A torn last line is left out, because with a line break it would count as a wrong line.
        let whole = access::whole_lines(&self.text);
        let is_ended = whole.is_empty() || whole.ends_with('\n');
        let end = if is_ended { "" } else { "\n" };
        let added = format!("{end}{line}\n");
        match self.replace_text(&format!("{whole}{added}")) {
            // No new file can replace this one: the file is a mount of its own, or the command may
            // write only the file and not the folder, or may not set the file's owner.
            Err(error) if self.stays_behind(&error) => self.add_in_place(whole, &added),
            replaced => replaced,
        }
    }

    /// Removes a line that [`add`](Self::add) has just added.
    ///
    /// # Errors
    ///
    /// Returns why the file cannot be written.
    pub(crate) fn take_back(&self, line: &str) -> io::Result<()> {
        match self.keep(|found| found != line) {
            Err(error) if self.stays_behind(&error) => {
                // In place, only a line at the end of the file can be removed.
                let before = self.text.strip_suffix(&format!("{line}\n"));
                before.map_or(Err(error), |before| self.add_in_place(before, ""))
            }
            kept => kept,
        }
    }

    /// Returns whether an error says that no new file can replace this one.
    fn stays_behind(&self, error: &io::Error) -> bool {
        let refused = matches!(
            error.kind(),
            io::ErrorKind::PermissionDenied
                | io::ErrorKind::ReadOnlyFilesystem
                | io::ErrorKind::ResourceBusy
        );
        refused && self.found.is_some()
    }

    /// Cuts the file off behind its beginning `whole`, and adds lines there.
    fn add_in_place(&self, whole: &str, added: &str) -> io::Result<()> {
        let mut file = File::options().append(true).open(&self.path)?;
        if whole.len() < self.text.len() {
            file.set_len(u64::try_from(whole.len()).unwrap_or(u64::MAX))?;
        }
        file.write_all(added.as_bytes())?;
        file.sync_all()
    }

    /// Keeps the lines for which `is_kept` returns true, and removes all others.
    ///
    /// # Errors
    ///
    /// Returns why the file cannot be written.
    pub(crate) fn keep(&self, is_kept: impl Fn(&str) -> bool) -> io::Result<()> {
        let kept = access::whole_lines(&self.text).lines();
        let kept = kept.filter(|line| is_kept(line));
        let kept: String = kept.flat_map(|line| [line, "\n"]).collect();
        self.replace_text(&kept)
    }

    /// Replaces the text. The file keeps owner and mode; only the owner can read a new file.
    ///
    /// # Errors
    ///
    /// Returns why the file cannot be written.
    fn replace_text(&self, text: &str) -> io::Result<()> {
        let mut temporary = self.path.as_os_str().to_owned();
        temporary.push(".new");
        let temporary = PathBuf::from(temporary);
        let replaced = self.replace_by(&temporary, text);
        if replaced.is_err() {
            // A copy of the file of tokens must not stay behind.
            remove_temporary(&temporary);
        }
        replaced
    }

    /// Returns an error, with an explanation if the file is a mount of its own.
    pub(crate) fn explained(&self, error: io::Error) -> io::Error {
        if error.kind() != io::ErrorKind::ResourceBusy {
            return error;
        }
        let path = self.path.display();
        io::Error::other(format!(
            "{path} is a mount of its own, so no new file can take its place: mount its folder"
        ))
    }

    fn replace_by(&self, temporary: &Path, text: &str) -> io::Result<()> {
        let mut file = create_private(temporary)?;
        file.write_all(text.as_bytes())?;
        if let Some(found) = &self.found {
            let new = file.metadata()?;
            if (found.uid(), found.gid()) != (new.uid(), new.gid()) {
                std::os::unix::fs::fchown(&file, Some(found.uid()), Some(found.gid()))?;
            }
            file.set_permissions(found.permissions())?;
        }
        // A power cut after the rename must not leave an empty file instead of the tokens.
        file.sync_all()?;
        #[cfg(planted)]
        if crate::planted::is("revoke-unsynced") {
            return fs::rename(temporary, &self.path);
        }
        durable::rename(temporary, &self.path)
    }
}

/// Follows symbolic links to the path of the file itself, because a change must replace the file,
/// and not a link. The file need not exist yet.
fn behind_links(path: &Path) -> io::Result<PathBuf> {
    match fs::read_link(path) {
        Ok(target) => match fs::canonicalize(path) {
            // The file need not exist yet, and `canonicalize` finds only files that exist.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                behind_links(&parent_of(path).join(target))
            }
            found => found,
        },
        Err(_) => Ok(path.into()),
    }
}

/// Removes the temporary file of a change that failed, if there is one.
#[expect(
    clippy::disallowed_methods,
    reason = "the name is temporary: the next change takes one that comes back"
)]
fn remove_temporary(temporary: &Path) {
    let _none = fs::remove_file(temporary);
}

/// Creates a file that others cannot read, until the file has the mode and owner of the old one.
#[expect(
    clippy::disallowed_methods,
    reason = "the name is temporary: the next change takes one that is left"
)]
fn create_private(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.create(true).write(true).truncate(true).mode(0o600);
    options.open(path)
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "the files of a test")]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn names_in(folder: &Path) -> Vec<String> {
        let items = fs::read_dir(folder).unwrap();
        let name = |item: io::Result<fs::DirEntry>| item.unwrap().file_name().into_string();
        let mut names: Vec<String> = items.map(|item| name(item).unwrap()).collect();
        names.sort();
        names
    }

    /// Goal: a link stays a link, even if the link leads through several folders, or to a file that
    /// does not exist yet.
    #[test]
    fn a_link_is_never_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let (link, other) = (folder.path().join("link"), folder.path().join("other"));
        fs::create_dir(&other).unwrap();
        symlink("other/second", &link).unwrap();
        symlink("tokens", other.join("second")).unwrap();
        for (line, text) in [("one", "one\n"), ("two", "one\ntwo\n")] {
            TokenFile::open(&link).unwrap().add(line).unwrap();
            assert_eq!(fs::read_to_string(other.join("tokens")).unwrap(), text);
            assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
            assert_eq!(names_in(&other), ["second", "tokens"]);
        }
    }

    /// Goal: a circle of links is an error, and not a search without end.
    #[test]
    fn a_circle_of_links_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let link = folder.path().join("link");
        symlink("link", &link).unwrap();
        assert!(TokenFile::open(&link).is_err());
    }

    /// Goal: the next change drops the part of an added line that a power cut has kept.
    #[test]
    fn a_torn_line_is_dropped() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokens");
        let whole = format!("one:{}:read:*\n", "0".repeat(64));
        let wanted = format!("{whole}# next\n");
        for torn in ["two:00", "\0\0\0\0", "\0\0\0\0:read:*\n", "two:0\0\0"] {
            let text = format!("{whole}{torn}");
            assert_eq!(access::whole_lines(&text), whole);
            fs::write(&path, &text).unwrap();
            TokenFile::open(&path).unwrap().add("# next").unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), wanted);
            fs::write(&path, &text).unwrap();
            let file = TokenFile::open(&path).unwrap();
            file.add_in_place(access::whole_lines(&text), "# next\n")
                .unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), wanted);
        }
        // A name that was cut within a character, and noise.
        for torn in [&b"caf\xc3"[..], b"\xff\xfe:\n\x80read:*\n"] {
            let bytes = [whole.as_bytes(), torn].concat();
            let text = access::text_of(bytes.clone()).unwrap();
            assert_eq!(access::whole_lines(&text), whole);
            fs::write(&path, &bytes).unwrap();
            TokenFile::open(&path).unwrap().add("# next").unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), wanted);
        }
        let latin = [b"caf\xe9:0:read:*\n", whole.as_bytes()].concat();
        assert!(access::text_of(latin).is_err());
        // A token whose line has no line break at its end stays, even if a power cut has kept only
        // the length of an added line.
        let unended = whole.trim_end();
        for torn in ["", "\0\0\0"] {
            assert_eq!(access::whole_lines(&format!("{unended}{torn}")), unended);
        }
        // A mistake of a person is not taken for the trace of a power cut.
        for wrong in [
            format!("{whole}two:00\n"),
            format!("two:00\n{whole}"),
            format!("\0\0\n{whole}"),
        ] {
            assert_eq!(access::whole_lines(&wrong), wrong);
            assert!(access::TokenGrants::parse(&wrong).is_err());
        }
    }

    /// Goal: a new file that could not take the place of the old one is removed, because it has all
    /// tokens.
    #[test]
    fn a_failed_change_leaves_no_copy() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokens");
        let file = TokenFile::open(&path).unwrap();
        // No file takes the place of a folder.
        fs::create_dir(&path).unwrap();
        assert!(file.replace_text("secret\n").is_err());
        assert_eq!(names_in(folder.path()), ["tokens"]);
    }
}
