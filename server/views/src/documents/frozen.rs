//! A closed document, rendered from the log with the same bytes at any time.
//!
//! Pure, over a log that the caller passes.

use bytes::Bytes;
use simplefeed_core::{
    document::feed_document,
    entry::Entry,
    feed::{DocumentNumber, FeedKey},
    header::{DocumentForm, header},
    plan::Opening,
    settings::Settings,
};
use simplefeed_log::{LogError, Series, settings_of};

use super::manifest::ManifestRecord;
use crate::files::CodedFile;

/// An archived document, rendered from the log.
#[derive(Clone, Debug)]
pub struct FrozenDocument {
    /// Opening of the document: names, first position and revision of settings.
    pub opening: Opening,
    /// Opening of the next document, which closed this one.
    pub successor: Opening,
    /// Settings that the header is made of.
    pub settings: Settings,
    /// Entries of the document, oldest first.
    pub entries: Vec<Entry>,
    /// Bytes of the whole document, without a coding.
    pub bytes: Bytes,
}

impl FrozenDocument {
    /// Renders document `number`. Returns `None` if the document is not closed, or has lost
    /// entries.
    ///
    /// # Errors
    ///
    /// Returns why the log cannot be read.
    pub fn render(
        log: &dyn Series,
        feed: FeedKey,
        number: DocumentNumber,
    ) -> Result<Option<Self>, LogError> {
        let opening = log.opening(feed, number)?;
        let successor = log.opening(feed, number.next())?;
        // A document with lost entries is never rendered, because its bytes would differ from those
        // that readers know.
        let successor = successor.filter(|successor| !successor.after_loss);
        let Some((opening, successor)) = opening.zip(successor) else {
            return Ok(None);
        };
        let settings = settings_of(log, feed, opening.revision)?;
        let entries = log.entries(feed, opening.first..successor.first)?;
        let expected = successor.first.0 - opening.first.0;
        let found = u64::try_from(entries.len()).unwrap_or(u64::MAX);
        // If the number of entries differs from the number in the openings, the log contradicts
        // itself.
        let Some(newest) = entries.last().filter(|_| found == expected) else {
            let what = format!(
                "document {number} of {} has {found} of {expected} entries",
                settings.name
            );
            return Err(LogError::Damaged { what });
        };
        // The link has the name that was known at the cut, so a later epoch does not change these
        // bytes.
        let form = DocumentForm::Archived {
            next: successor.linked,
        };
        let header = header(&opening, &settings, form, newest.instant);
        let fragments: Vec<&Bytes> = entries.iter().map(|entry| &entry.fragment).collect();
        let bytes = feed_document(&header, &fragments);
        Ok(Some(Self {
            opening,
            successor,
            settings,
            entries,
            bytes,
        }))
    }

    /// Returns the record for the manifest, given the facts of the compressed twin.
    pub(crate) fn archived_as(&self, gzip: CodedFile) -> ManifestRecord {
        ManifestRecord {
            name: self.opening.name,
            closed_in: self.successor.linked.epoch,
            first: self.opening.first,
            entries: self.successor.first.0 - self.opening.first.0,
            opened: self.opening.opened,
            updated: self
                .entries
                .last()
                .map_or(self.opening.opened, |entry| entry.instant),
            closed: self.successor.opened,
            identity: CodedFile::of(&self.bytes),
            gzip,
        }
    }
}
