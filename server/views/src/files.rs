//! Files that are never to change, put on the disk several at a time.
//!
//! Shell: files. All files are written under temporary names, then synced, renamed into place in
//! the order in which they were written, and their names synced. So a file under a final name is
//! whole.

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

/// Ending of a file's name until the file is whole. Not a random one, as the crate `tempfile`
/// gives: a process that is killed leaves at most one such file, which the next write takes.
pub(super) const TEMPORARY: &str = ".new";

/// Returns the name of a file until the file is whole.
pub(super) fn temporary_of(path: &Path) -> PathBuf {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(TEMPORARY);
    temporary.into()
}

/// Replaces a file as a whole: a kill leaves the old one or the new one. A power cut may leave
/// neither, so only files that can be made again are replaced this way.
///
/// # Errors
///
/// Returns why the file cannot be written.
#[expect(clippy::disallowed_methods, reason = "for what can be made again")]
pub(super) fn replace_unsynced(path: &Path, bytes: &[u8]) -> io::Result<()> {
    // In the same folder, so that the rename replaces the file at once.
    let temporary = temporary_of(path);
    regular::write(&temporary, bytes)?;
    fs::rename(&temporary, path)
}

/// Files on their way into place.
#[derive(Debug)]
pub(super) struct FrozenFiles {
    /// Temporary path of each file, and its final path.
    written: Vec<(PathBuf, PathBuf)>,
    /// Files to sync before a name may lead to their bytes.
    unsynced: Vec<File>,
    /// Opened before anything is written: the kernel reports a failed write only to handles that
    /// were open by then.
    opened: BTreeMap<PathBuf, File>,
    folders: Folders,
}

impl FrozenFiles {
    /// Returns an empty set of files. The note of the last commit that readers have seen is synced
    /// before the files get their names: an older log must not be taken for the log of these files.
    pub(super) fn of(folders: &Folders) -> Self {
        Self {
            // A log that is no folder has no note.
            unsynced: regular::open(folders.seen()).into_iter().collect(),
            written: vec![],
            opened: BTreeMap::new(),
            folders: folders.clone(),
        }
    }

    /// Opens a folder, whose names are synced with the files.
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

    /// Leaves a file as found, and makes the file durable: nobody knows whether the writer has done
    /// that.
    ///
    /// # Errors
    ///
    /// Returns why the file, or the folder around the file, cannot be opened.
    pub(super) fn leave(&mut self, path: &Path) -> Result<(), ViewError> {
        self.open_folder(path.parent().unwrap_or(path))?;
        match regular::open(path) {
            Ok(file) => self.unsynced.push(file),
            // The other one of a document's two files is there.
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
        // Web servers send the time as `Last-Modified`, so the copy must have the same.
        let modified = fs::metadata(from).and_then(|file| file.modified());
        let modified = modified.map_err(failed("read", from))?;
        let since = modified.duration_since(SystemTime::UNIX_EPOCH);
        // Times before 1970 become 1970, as in `system_time`.
        let micros = i64::try_from(since.unwrap_or_default().as_micros()).unwrap_or(i64::MAX);
        let bytes = regular::read(from).map_err(failed("read", from))?;
        self.write(to, &bytes, Timestamp::from_micros(micros))
    }

    /// Writes the compressed twin of the file at `path`, unless a twin there decodes to the same
    /// bytes: readers may have that twin, and another version of the compressor may give other
    /// bytes. Returns the bytes of the twin, too.
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
        // The message of a failed sync names one folder of several.
        let first = self.opened.keys().next().cloned().unwrap_or_default();
        // The bytes before the names, so no name ever leads to half a file.
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
        // One sync of the file systems of `folders` takes less time where the files are many.
        all.sync(&unsynced, &folders)
            .map_err(failed("sync files in", &first))?;
        // In the order of the writes, which the caller has chosen: a twin comes before the
        // document.
        for (temporary, path) in &self.written {
            fs::rename(temporary, path).map_err(failed("write", path))?;
        }
        // The names are durable before the caller records the files.
        all.sync(&folders, &folders)
            .map_err(failed("sync names in", &first))
    }
}

/// Returns the bytes of a file as its compressed twin has them, if they are no more than `max`.
///
/// # Errors
///
/// Returns why there is no readable twin.
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

/// Decompresses one of our own files.
///
/// # Errors
///
/// Returns the fault in the bytes.
pub fn gunzip(bytes: &[u8], max: usize) -> io::Result<Vec<u8>> {
    let mut decoder = GzDecoder::new(bytes);
    let mut decoded = vec![];
    // One byte more than allowed tells a file of `max` bytes from a longer one.
    let limit = u64::try_from(max).unwrap_or(u64::MAX).saturating_add(1);
    decoder.by_ref().take(limit).read_to_end(&mut decoded)?;
    let invalid = |what| Err(io::Error::new(io::ErrorKind::InvalidData, what));
    // A file may decode to any number of bytes.
    if decoded.len() > max {
        return invalid("it decodes to more than it may");
    }
    // The decoder ignores bytes behind the end, which a right file does not have.
    if decoder.into_inner().is_empty() {
        return Ok(decoded);
    }
    invalid("there is something behind the end")
}

/// Returns the error of an operation on a file; `action` is a verb.
pub fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> ViewError + use<> {
    let path = path.to_path_buf();
    move |source| ViewError::Io {
        action,
        path: visible_path(&path),
        source,
    }
}
