//! The note for the next start that the archive has documents of another log.
//!
//! Shell: one small file. If somebody puts an older log in the place of a later one, the documents
//! of the later log may stay. These documents are immutable, so the older log must not give their
//! URLs other contents.

use std::{
    ffi::OsStr,
    io::{self, Write as _},
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
};

use simplefeed_core::{digest::Digest, feed::CommitNumber, history::ChainHash};
use simplefeed_log::{
    Commits, EntryLog, LogError,
    barrier::sync_folder,
    codec::{Reader, RecordWriter, seal, unseal},
    durable::{self, create_folders},
    held::visible_path,
    seen::ReadersEnd,
};
use simplefeed_process::regular;
use tracing::warn;

use super::archive::Archive;
use crate::files::decoded_twin;

/// Name of the note in the folder of the view.
const NAME: &str = "replaced";
/// Maximum length of the note, in bytes.
const BYTES_MAX: u64 = 4_096;
/// Length of the facts before the path in the note, in bytes.
const FACTS_BYTES: usize = 72;

impl Archive {
    /// Checks that no note says that a document belongs to another log than this one.
    ///
    /// # Errors
    ///
    /// Returns [`LogError::Replaced`] if a note says that, and the document is still there.
    pub(super) fn check_noted(&self, log: &dyn EntryLog) -> Result<(), LogError> {
        let note = ReplacementNote::read_note(&self.folder_of_records().join(NAME));
        match note.and_then(|note| note.find_document(log, self.folders_of_feeds())) {
            Some(document) => Err(LogError::replaced_beside(&visible_path(&document))),
            None => Ok(()),
        }
    }

    /// Notes for the next start that a document is of another log than this one.
    pub(super) fn note_other_log(&self, log: &dyn EntryLog, document: &Path) {
        let path = self.folder_of_records().join(NAME);
        let note = ReplacementNote::of_replacement(ReadersEnd::of(&log.head()), document);
        // This server takes no entries any more, with or without the note.
        if let Err(error) = note.and_then(|note| note.write_note(&path)) {
            let path = visible_path(&path);
            warn!(%error, path = %path.display(), "the next start will take the log for the right one");
        }
    }
}

/// Note that a log has replaced the one that was served.
#[derive(Debug)]
struct ReplacementNote {
    /// End of the log when the note was made. The note is void for a log without this commit.
    end: ReadersEnd,
    /// File of a document of the other log: folder and name.
    file: PathBuf,
    /// Digest of that document. The note is void where no file and no twin has this digest.
    digest: Digest,
}

impl ReplacementNote {
    /// Returns the note of a log with this end, and of a document.
    ///
    /// # Errors
    ///
    /// Returns why the document cannot be read.
    fn of_replacement(end: ReadersEnd, document: &Path) -> io::Result<Self> {
        let bytes = regular::read_document(document);
        // The twin has the same bytes, and may be the only file that can be read.
        let bytes = bytes.or_else(|_| decoded_twin(document, regular::DOCUMENT_BYTES_MAX))?;
        let digest = Digest::of(&bytes);
        let folder = document.parent().and_then(Path::file_name);
        let name = document.file_name();
        // The path of the tree is left out, because the tree may be elsewhere at the next start.
        let file = folder.into_iter().chain(name).collect();
        Ok(Self { end, file, digest })
    }

    /// Returns the note at a path, if the note can be read.
    fn read_note(path: &Path) -> Option<Self> {
        let note = regular::read_at_most(path, BYTES_MAX).ok()?;
        let (facts, file) = unseal(&note)?.split_at_checked(FACTS_BYTES)?;
        let mut from = Reader(facts);
        let commit = CommitNumber(from.long()?);
        let chain = ChainHash(from.digest()?);
        Some(Self {
            end: ReadersEnd { commit, chain },
            digest: from.digest()?,
            file: OsStr::from_bytes(file).into(),
        })
    }

    /// Writes the note, durably.
    ///
    /// # Errors
    ///
    /// Returns why the note cannot be written.
    #[expect(clippy::disallowed_methods, reason = "`sync_folder` follows")]
    fn write_note(&self, path: &Path) -> io::Result<()> {
        let mut note = RecordWriter::default();
        note.long(self.end.commit.0);
        note.bytes(&self.end.chain.0.0);
        note.bytes(&self.digest.0);
        note.bytes(self.file.as_os_str().as_bytes());
        // There is no folder before the first document is archived.
        create_folders(&[durable::parent_of(path)]).map_err(|(_, error)| error)?;
        let mut file = regular::create(path)?;
        file.write_all(&seal(note.0))?;
        file.sync_all()?;
        sync_folder(durable::parent_of(path))
    }

    /// Returns the document of the other log, if the note is about this log and one of the folders
    /// of feeds has the document. These may be other folders than at the last start.
    fn find_document(
        &self,
        log: &(impl Commits + ?Sized),
        folders: [PathBuf; 2],
    ) -> Option<PathBuf> {
        let chain = log.chain(self.end.commit).ok()??;
        let has_digest = |path: &PathBuf| {
            let is_it = |found: Vec<u8>| Digest::of(&found) == self.digest;
            regular::read_document(path).is_ok_and(is_it)
                || decoded_twin(path, regular::DOCUMENT_BYTES_MAX).is_ok_and(is_it)
        };
        let mut paths = folders.into_iter().map(|folder| folder.join(&self.file));
        paths.find(|path| chain == self.end.chain && has_digest(path))
    }
}
