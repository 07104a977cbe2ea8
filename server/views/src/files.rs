//! Files that never change once they are in place, put on the disk several at a time.
//!
//! Shell: files. All files are written under temporary names and synced. Then they are renamed into
//! place, in the order in which they were written. Last, their names are synced. So a file under a
//! final name is whole.

use std::{
    collections::BTreeMap,
    fs::{self, File, FileTimes},
    io::{self, Read as _, Write as _},
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use flate2::{Compression, bufread::GzDecoder};
use simplefeed_core::{digest::Digest, timestamp::Timestamp};
#[cfg(planted)]
use simplefeed_log::barrier::sync_files;
use simplefeed_log::held::visible_path;
use simplefeed_process::regular;
use simplefeed_resource::gzip::gzip;

use super::{error::ViewError, folders::Folders};

/// Facts about one coded form of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CodedFile {
    /// Length in bytes; 0 if the document is lost.
    pub bytes: u64,
    /// SHA-256 of the coded bytes.
    pub digest: Digest,
}

impl CodedFile {
    /// Returns the facts of `bytes`.
    pub(crate) fn of(bytes: &[u8]) -> Self {
        let length = u64::try_from(bytes.len()).expect("a file in memory has a 64-bit length");
        Self {
            bytes: length,
            digest: Digest::of(bytes),
        }
    }
}

/// Outcome of making files again, from the best to the worst. Of several files, the worst outcome
/// counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Remade {
    /// The file was there, the same byte for byte.
    Identical,
    /// There was no file, and now there is.
    New,
    /// The file had other bytes, and has the right ones now.
    Different,
}

/// Ending of a file's name until the file is whole. The ending is fixed, and not random as with the
/// crate `tempfile`. So a killed process leaves at most one temporary file for each file, which the
/// next write of that file replaces.
pub(super) const TEMPORARY: &str = ".new";

/// Returns the name of a file until the file is whole.
pub(super) fn temporary_of(path: &Path) -> PathBuf {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(TEMPORARY);
    temporary.into()
}

/// Replaces a file as a whole: a killed process leaves the old file or the new one. A power cut may
/// leave neither, so only files that can be made again are replaced this way.
///
/// # Errors
///
/// Returns why the file cannot be written.
#[expect(clippy::disallowed_methods, reason = "for what can be made again")]
pub(super) fn replace_unsynced(path: &Path, bytes: &[u8]) -> io::Result<()> {
    // The temporary file is in the same folder, so that the rename replaces the file in one step.
    let temporary = temporary_of(path);
    regular::write(&temporary, bytes)?;
    fs::rename(&temporary, path)
}

/// Files on their way into place.
#[derive(Debug)]
pub(super) struct FrozenFiles {
    /// Temporary path of each file, and its final path.
    written: Vec<(PathBuf, PathBuf)>,
    /// Files that are synced before the files in `written` get their final names.
    unsynced: Vec<File>,
    /// Folders, each opened before anything is written there: the kernel reports a failed write
    /// only to handles that were open by then.
    opened: BTreeMap<PathBuf, File>,
    folders: Folders,
}

impl FrozenFiles {
    /// Returns an empty set of files. The note of the last commit that readers have seen is synced
    /// before the files get their names: an older log must not be taken for the log of these files.
    pub(super) fn of(folders: &Folders) -> Self {
        Self {
            // A log that is not in a folder has no such note.
            unsynced: regular::open(folders.seen()).into_iter().collect(),
            written: vec![],
            opened: BTreeMap::new(),
            folders: folders.clone(),
        }
    }

    /// Opens a folder. The names in the folder are synced after the files.
    ///
    /// # Errors
    ///
    /// Returns why the folder cannot be opened.
    pub(super) fn open_folder(&mut self, folder: &Path) -> Result<(), ViewError> {
        if !self.opened.contains_key(folder) {
            let opened = regular::open_folder(folder).map_err(failed("open", folder))?;
            self.opened.insert(folder.into(), opened);
        }
        Ok(())
    }

    /// Writes a file, and sets the time of modification to the instant at which the bytes became
    /// final. A file with the right bytes is left alone.
    ///
    /// # Errors
    ///
    /// Returns why the file cannot be written.
    #[expect(clippy::disallowed_methods, reason = "the name is temporary")]
    pub(super) fn write(
        &mut self,
        path: &Path,
        bytes: &[u8],
        mtime: Timestamp,
    ) -> Result<Remade, ViewError> {
        // The kernel reports a failed write only to handles that were open before the write.
        self.open_folder(path.parent().unwrap_or(path))?;
        let before = match regular::has(path, bytes) {
            Ok(true) => Remade::Identical,
            Ok(false) => Remade::Different,
            Err(_) => Remade::New,
        };
        if before == Remade::Identical {
            // A right file may have been written, but not synced, before a crash.
            let file = regular::open(path).map_err(failed("open", path))?;
            self.unsynced.push(file);
            return Ok(before);
        }
        let temporary = temporary_of(path);
        let write = || {
            let mut file = regular::create(&temporary)?;
            file.write_all(bytes)?;
            // A web server that serves the folder sends this time as `Last-Modified`.
            #[cfg(planted)]
            if crate::planted::is("document-time-unsynced") {
                file.sync_all()?;
            }
            file.set_times(FileTimes::new().set_modified(system_time(mtime)))?;
            Ok(file)
        };
        let file = write().map_err(failed("write", path))?;
        // The sync waits for `put_in_place`, so that many files share one.
        self.unsynced.push(file);
        self.written.push((temporary, path.into()));
        Ok(before)
    }

    /// Leaves a file unchanged, and has [`put_in_place`](Self::put_in_place) sync the file, because
    /// whoever wrote it may not have done so.
    ///
    /// # Errors
    ///
    /// Returns why the file, or the folder around the file, cannot be opened.
    pub(super) fn leave(&mut self, path: &Path) -> Result<(), ViewError> {
        self.open_folder(path.parent().unwrap_or(path))?;
        match regular::open(path) {
            Ok(file) => self.unsynced.push(file),
            // Of a document and its compressed twin, one may be missing.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(failed("open", path)(error)),
        }
        Ok(())
    }

    /// Copies a file, with its time of modification.
    ///
    /// # Errors
    ///
    /// Returns why the file cannot be read or written.
    pub(super) fn copy(&mut self, from: &Path, to: &Path) -> Result<Remade, ViewError> {
        // Web servers send the time as `Last-Modified`, so the copy must have the same time.
        let modified = fs::metadata(from).and_then(|file| file.modified());
        let modified = modified.map_err(failed("read", from))?;
        let since = modified.duration_since(SystemTime::UNIX_EPOCH);
        // Times before 1970 become 1970, as in `system_time`.
        let micros = i64::try_from(since.unwrap_or_default().as_micros()).unwrap_or(i64::MAX);
        let bytes = regular::read(from).map_err(failed("read", from))?;
        self.write(to, &bytes, Timestamp::from_micros(micros))
    }

    /// Writes the compressed twin of the file at `path`, unless there is a twin that decodes to
    /// `bytes` and matches `recorded`, if given. Readers may have that twin, and another version of
    /// the compressor may give other bytes. Returns the bytes of the twin, and the outcome.
    ///
    /// # Errors
    ///
    /// Returns why the twin cannot be written.
    pub(super) fn write_twin(
        &mut self,
        path: &Path,
        bytes: &[u8],
        mtime: Timestamp,
        level: Compression,
        recorded: Option<CodedFile>,
    ) -> Result<(Vec<u8>, Remade), ViewError> {
        let path = twin_of(path);
        if let Ok(twin) = regular::read(&path)
            && recorded.is_none_or(|recorded| recorded == CodedFile::of(&twin))
            && gunzip(&twin, bytes.len()).is_ok_and(|decoded| decoded == *bytes)
        {
            // `write` finds the file right, and only adds the file to those that are synced.
            let remade = self.write(&path, &twin, mtime)?;
            return Ok((twin, remade));
        }
        let twin = gzip(bytes, level);
        let remade = self.write(&path, &twin, mtime)?;
        Ok((twin, remade))
    }

    /// A planted bug: only the names are durable.
    #[cfg(planted)]
    pub(super) fn put_in_place_unsynced(self) -> Result<(), ViewError> {
        let folders: Vec<&File> = self.opened.values().collect();
        for (temporary, path) in &self.written {
            fs::rename(temporary, path).map_err(failed("write", path))?;
        }
        sync_files(&folders, &folders).map_err(failed("sync names in", Path::new("")))
    }

    /// Puts the files in place. They are durable on return.
    ///
    /// # Errors
    ///
    /// Returns the error of the first sync or rename that failed.
    #[expect(clippy::disallowed_methods, reason = "the sync of the folders follows")]
    pub(super) fn put_in_place(self) -> Result<(), ViewError> {
        let folders: Vec<&File> = self.opened.values().collect();
        // Several folders are synced together, and the message of a failed sync names the first of
        // them.
        let first = self.opened.keys().next().cloned().unwrap_or_default();
        // The bytes are synced before the renames, so no name ever leads to half a file.
        #[cfg(planted)]
        if crate::planted::is("documents-unsynced") {
            return self.put_in_place_unsynced();
        }
        let unsynced: Vec<&File> = self.unsynced.iter().collect();
        #[cfg(planted)]
        let unsynced = match crate::planted::is("document-time-unsynced") {
            true => vec![],
            false => unsynced,
        };
        let all = &self.folders;
        // For many files, one sync of the file systems of `folders` takes less time than a sync of
        // each file.
        all.sync(&unsynced, &folders)
            .map_err(failed("sync files in", &first))?;
        // The renames keep the order of the writes, which the caller has chosen: a twin comes
        // before the document.
        for (temporary, path) in &self.written {
            fs::rename(temporary, path).map_err(failed("write", path))?;
        }
        // The names are durable before the caller records the files.
        all.sync(&folders, &folders)
            .map_err(failed("sync names in", &first))
    }
}

/// Returns the bytes of a file, decoded from its compressed twin. At most `max` bytes are decoded.
///
/// # Errors
///
/// Returns why the twin cannot be read, or that the decoded bytes are more than `max`.
pub(super) fn decoded_twin(path: &Path, max: usize) -> io::Result<Vec<u8>> {
    regular::read_document(twin_of(path)).and_then(|twin| gunzip(&twin, max))
}

/// Returns the name of the compressed twin of a file.
pub(super) fn twin_of(path: &Path) -> PathBuf {
    let mut twin = path.as_os_str().to_owned();
    twin.push(".gz");
    twin.into()
}

fn system_time(instant: Timestamp) -> SystemTime {
    // Instants before 1970 become 1970.
    let micros = u64::try_from(instant.micros()).unwrap_or(0);
    SystemTime::UNIX_EPOCH + Duration::from_micros(micros)
}

/// Decompresses a file that Simplefeed has written, to at most `max` bytes.
///
/// # Errors
///
/// Returns the fault in the bytes, or that the decoded bytes are more than `max`.
pub fn gunzip(bytes: &[u8], max: usize) -> io::Result<Vec<u8>> {
    let mut decoder = GzDecoder::new(bytes);
    let mut decoded = vec![];
    // One byte more than allowed tells a file of `max` bytes from a longer one.
    let limit = u64::try_from(max).unwrap_or(u64::MAX).saturating_add(1);
    decoder.by_ref().take(limit).read_to_end(&mut decoded)?;
    let invalid = |what| Err(io::Error::new(io::ErrorKind::InvalidData, what));
    // A damaged file may decode to any number of bytes.
    if decoded.len() > max {
        return invalid("it decodes to more than it may");
    }
    // The decoder ignores bytes behind the end, which a right file does not have.
    if decoder.into_inner().is_empty() {
        return Ok(decoded);
    }
    invalid("there is something behind the end")
}

/// Returns a function that makes the error of a failed operation on a file. `action` is a verb.
pub fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> ViewError + use<> {
    let path = path.to_path_buf();
    move |source| ViewError::Io {
        action,
        path: visible_path(&path),
        source,
    }
}
