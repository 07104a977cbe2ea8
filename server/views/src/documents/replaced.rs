//! Documents of another log in the archive: how they are told from damage, and the note for the next start.
//!
//! Shell: reads and one small file. Whoever puts an older log in the place of a later one may leave the documents of the
//! later one. They are immutable, so the older log must not give their URLs other contents.

use std::{
    ffi::OsStr,
    io::{self, Write as _},
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
};

use simplefeed_core::{
    digest::Digest,
    feed::{CommitNumber, DocumentName, FeedName},
    history::ChainHash,
    reader::Document,
};
use simplefeed_log::{
    Commits, EntryLog, LogError,
    barrier::sync_folder,
    codec::{Reader, Writer, seal, unseal},
    durable::{self, create_folders},
    held::visible_path,
    seen::Seen,
};
use simplefeed_process::regular;
use tracing::warn;
use url::Url;

use super::{archive::Archive, frozen::Frozen};
use crate::files::decoded_twin;

/// Name of the note in the folder of the view.
const NAME: &str = "replaced";
/// The longest note, in bytes.
const BYTES_MAX: u64 = 4_096;
/// Bytes of the note before the path.
const FACTS_BYTES: usize = 72;

/// A document of this log that is to have a place.
pub(super) struct Own<'a> {
    pub(super) feed: &'a FeedName,
    /// Its name, which its own link has. The file's name is an older one, where a restoration has renamed the document.
    pub(super) name: DocumentName,
    /// Its bytes, or, where these may be damaged, each copy of them.
    pub(super) copies: Vec<&'a [u8]>,
}

impl<'a> Own<'a> {
    pub(super) fn of(frozen: &'a Frozen) -> Self {
        Self {
            feed: &frozen.settings.name,
            name: frozen.opening.name,
            copies: vec![&frozen.bytes],
        }
    }

    pub(super) fn has(&self, bytes: Option<&Vec<u8>>) -> bool {
        bytes.is_some_and(|bytes| self.copies.contains(&bytes.as_slice()))
    }

    /// Returns the evidence that bytes in this one's place are a document of another log that belongs there, by its name or
    /// by the one before a restoration. A copy of another document does not belong there.
    fn displaced_by(&self, bytes: Option<&Vec<u8>>, place: DocumentName) -> Option<Stranger> {
        let found = bytes.and_then(|bytes| name_in(bytes, self.feed))?;
        let is_of_place = found.number == place.number;
        if is_of_place && found.epoch > place.epoch && found != self.name {
            return Some(Stranger::Proven);
        }
        (found == place).then_some(Stranger::Likely)
    }
}

/// Evidence of another log's document in the place of one's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stranger {
    /// No rot: a compressed twin, which has a checksum, or a name that only another log has given.
    Proven,
    /// A file of the right name. It might be the own one with rot.
    Likely,
}

/// Looks for a document of another log in a file or its twin. If either has the own bytes, the other one is damaged: rot
/// changes only one of them.
///
/// # Errors
///
/// Returns why a file that is there cannot be read: it may be another log's.
pub(super) fn document_of_another_log(path: &Path, own: &Own<'_>) -> io::Result<Option<Stranger>> {
    let place = path.file_name().and_then(OsStr::to_str);
    let Some(place) = place.and_then(DocumentName::of_file) else {
        return Ok(None);
    };
    let file = there(regular::read_document(path))?;
    if own.has(file.as_ref()) {
        return Ok(None);
    }
    let twin = there(decoded_twin(path, regular::DOCUMENT_BYTES_MAX))?;
    if own.has(twin.as_ref()) {
        return Ok(None);
    }
    if own.displaced_by(twin.as_ref(), place).is_some() {
        return Ok(Some(Stranger::Proven));
    }
    Ok(own.displaced_by(file.as_ref(), place))
}

/// Returns what was read, or `None` if it is no document: there is nothing, no regular file, or rot.
fn there(read: io::Result<Vec<u8>>) -> io::Result<Option<Vec<u8>>> {
    use io::ErrorKind::{
        InvalidData, InvalidInput, IsADirectory, NotADirectory, NotFound, UnexpectedEof,
    };
    match read {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) => match error.kind() {
            NotFound | NotADirectory | IsADirectory | InvalidInput | InvalidData
            | UnexpectedEof => Ok(None),
            _ => Err(error),
        },
    }
}

/// Returns the name in the own link of a document of this feed.
pub(super) fn name_in(bytes: &[u8], feed: &FeedName) -> Option<DocumentName> {
    // Only the end of the path counts.
    let base = Url::parse(&format!("http://localhost/feeds/{feed}/")).ok()?;
    let document = Document::read(bytes.to_vec().into(), &base).ok()?;
    let mut path = document.link("self")?.path_segments()?;
    let name = DocumentName::of_file(path.next_back()?);
    name.filter(|_| path.next_back() == Some(feed.as_str()))
}

impl Archive {
    /// Checks that no document is known to be of another log than this one.
    ///
    /// # Errors
    ///
    /// Returns [`LogError::Replaced`] if one is.
    pub(super) fn check_noted(&self, log: &dyn EntryLog) -> Result<(), LogError> {
        let note = Note::read(&self.folder_of_records().join(NAME));
        match note.and_then(|note| note.document(log, self.folders_of_feeds())) {
            Some(document) => Err(LogError::replaced_beside(&visible_path(&document))),
            None => Ok(()),
        }
    }

    /// Notes for the next start that a document is of another log than this one.
    pub(super) fn note_other_log(&self, log: &dyn EntryLog, document: &Path) {
        let path = self.folder_of_records().join(NAME);
        let note = Note::of(Seen::of(&log.head()), document);
        if let Err(error) = note.and_then(|note| note.write(&path)) {
            let path = visible_path(&path);
            warn!(%error, path = %path.display(), "the next start will take the log for the right one");
        }
    }
}

/// Note that a log has replaced the one that was served.
#[derive(Debug)]
struct Note {
    /// End of the log. The note is void for a log without this commit.
    end: Seen,
    /// File of a document of the other log: its folder and its name.
    file: PathBuf,
    /// Digest of that document. The note is void where no file and no twin has it.
    digest: Digest,
}

impl Note {
    /// Returns the note of a log with this end, and of a document.
    ///
    /// # Errors
    ///
    /// Returns why the document cannot be read.
    fn of(end: Seen, document: &Path) -> io::Result<Self> {
        let bytes = regular::read_document(document);
        let bytes = bytes.or_else(|_| decoded_twin(document, regular::DOCUMENT_BYTES_MAX))?;
        let digest = Digest::of(&bytes);
        let folder = document.parent().and_then(Path::file_name);
        let name = document.file_name();
        let file = folder.into_iter().chain(name).collect();
        Ok(Self { end, file, digest })
    }

    /// Returns the note at a path, if it can be read.
    fn read(path: &Path) -> Option<Self> {
        let note = regular::read_at_most(path, BYTES_MAX).ok()?;
        let (facts, file) = unseal(&note)?.split_at_checked(FACTS_BYTES)?;
        let mut from = Reader(facts);
        let commit = CommitNumber(from.long()?);
        let chain = ChainHash(from.digest()?);
        Some(Self {
            end: Seen { commit, chain },
            digest: from.digest()?,
            file: OsStr::from_bytes(file).into(),
        })
    }

    /// Writes it, durably.
    ///
    /// # Errors
    ///
    /// Returns why it cannot be written.
    #[expect(clippy::disallowed_methods, reason = "`sync_folder` follows")]
    fn write(&self, path: &Path) -> io::Result<()> {
        let mut note = Writer::default();
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

    /// Returns the document of the other log, if the note is about this log, and one of the folders of feeds has the
    /// document. They may be others than at the last start.
    fn document(&self, log: &(impl Commits + ?Sized), folders: [PathBuf; 2]) -> Option<PathBuf> {
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a document that is there and cannot be read is not taken for none, so it is not overwritten.
    #[test]
    fn what_cannot_be_read_is_there() {
        let folder = tempfile::tempdir().unwrap();
        let (feed, path) = (FeedName::parse("a").unwrap(), folder.path().join("1.atom"));
        let own = Own {
            feed: &feed,
            name: DocumentName::of_file("1.atom").unwrap(),
            copies: vec![b"own"],
        };
        let look = || document_of_another_log(&path, &own);
        assert_eq!(look().unwrap(), None);
        std::fs::write(&path, "rot").unwrap();
        assert_eq!(look().unwrap(), None);
        std::fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("1.atom", &path).unwrap();
        assert!(look().is_err(), "a link that leads to itself");
    }
}
