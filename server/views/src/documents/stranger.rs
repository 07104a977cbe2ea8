//! Documents of another log under names of this log's documents, and how they are told from damage.
//!
//! Shell: reads files.

use std::{ffi::OsStr, io, path::Path};

use simplefeed_core::{
    feed::{DocumentName, FeedName},
    reader::Document,
};
use simplefeed_process::regular;
use url::Url;

use super::frozen::FrozenDocument;
use crate::files::decoded_twin;

/// A document of this log, whose file name another log's document may have.
pub(super) struct OwnDocument<'a> {
    pub(super) feed: &'a FeedName,
    /// Name in the document's link to itself. Where a restoration has renamed the document, the
    /// file may have an older name.
    pub(super) name: DocumentName,
    /// Bytes of the document. Where these may be damaged, the bytes of each copy.
    pub(super) copies: Vec<&'a [u8]>,
}

impl<'a> OwnDocument<'a> {
    pub(super) fn of(frozen: &'a FrozenDocument) -> Self {
        Self {
            feed: &frozen.settings.name,
            name: frozen.opening.name,
            copies: vec![&frozen.bytes],
        }
    }

    pub(super) fn has(&self, bytes: Option<&Vec<u8>>) -> bool {
        bytes.is_some_and(|bytes| self.copies.contains(&bytes.as_slice()))
    }

    /// Returns the evidence that bytes found under the name of this document are another log's
    /// document. That document has the same number, and its own link names this file or a later
    /// epoch. A copy of a document with another number is no evidence.
    fn displaced_by(&self, bytes: Option<&Vec<u8>>, place: DocumentName) -> Option<Stranger> {
        let found = bytes.and_then(|bytes| name_in(bytes, self.feed))?;
        let is_of_place = found.number == place.number;
        // This log gave the document no other name of a later epoch, so another log has given this
        // name.
        if is_of_place && found.epoch > place.epoch && found != self.name {
            return Some(Stranger::Proven);
        }
        (found == place).then_some(Stranger::Likely)
    }
}

/// Evidence that another log's document has the name of this log's document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stranger {
    /// Proof: a compressed twin, which has a checksum, or a name that only another log has given.
    /// Rot explains neither.
    Proven,
    /// A file of the right name, which might be this log's own document with rot.
    Likely,
}

/// Looks for a document of another log in a file or its twin. If one of the two has this log's
/// bytes, the other is only damaged, because rot changes only one of them.
///
/// # Errors
///
/// Returns why an existing file cannot be read: that file may be another log's.
pub(super) fn document_of_another_log(
    path: &Path,
    own: &OwnDocument<'_>,
) -> io::Result<Option<Stranger>> {
    let place = path.file_name().and_then(OsStr::to_str);
    let Some(place) = place.and_then(DocumentName::of_file) else {
        return Ok(None);
    };
    let file = if_there(regular::read_document(path))?;
    if own.has(file.as_ref()) {
        return Ok(None);
    }
    let twin = if_there(decoded_twin(path, regular::DOCUMENT_BYTES_MAX))?;
    if own.has(twin.as_ref()) {
        return Ok(None);
    }
    // A twin that decodes has a right checksum, so rot does not explain other bytes.
    if own.displaced_by(twin.as_ref(), place).is_some() {
        return Ok(Some(Stranger::Proven));
    }
    Ok(own.displaced_by(file.as_ref(), place))
}

/// Returns the bytes that were read, or `None` if there is no document: no file, no regular file,
/// or a damaged one.
fn if_there(read: io::Result<Vec<u8>>) -> io::Result<Option<Vec<u8>>> {
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

/// Returns the name in a document's link to itself, if the link is below this feed.
pub(super) fn name_in(bytes: &[u8], feed: &FeedName) -> Option<DocumentName> {
    // Any base will do, because only the end of the path counts.
    let base = Url::parse(&format!("http://localhost/feeds/{feed}/")).ok()?;
    let document = Document::read(bytes.to_vec().into(), &base).ok()?;
    let mut path = document.link("self")?.path_segments()?;
    let name = DocumentName::of_file(path.next_back()?);
    name.filter(|_| path.next_back() == Some(feed.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a document that is there and cannot be read does not count as missing, so it is not
    /// overwritten.
    #[test]
    fn what_cannot_be_read_is_there() {
        let folder = tempfile::tempdir().unwrap();
        let (feed, path) = (FeedName::parse("a").unwrap(), folder.path().join("1.atom"));
        let own = OwnDocument {
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
