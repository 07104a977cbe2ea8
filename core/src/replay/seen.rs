//! Entries that the way back through a plain feed has seen, until the way forward hands them over.
//!
//! Pure. Each of the two ways requests the documents, and the two copies of a document need not be
//! the same: servers behind a balancer may differ, and entries may be deleted between the two
//! requests.

use std::collections::{HashMap, HashSet};

use url::Url;

use crate::{digest::Digest, reader::Document, timestamp::Timestamp};

/// Entry that was seen: the hash of the id, and the date where revisions count.
pub(super) type EntryStamp = (u64, Option<Timestamp>);

/// Returns the hash of an entry's id, and the entry's date.
pub(super) fn key(document: &Document, index: usize) -> Option<EntryStamp> {
    // Bookmarks store 8 bytes of the digest; `half` returns 16.
    let id = document.entry(index)?.id;
    let digest = Digest::of(id.as_bytes()).half();
    let first = digest.first_chunk().expect("16 bytes begin with 8");
    Some((u64::from_be_bytes(*first), document.updated_of(index)))
}

/// Entries seen on the way back, by the URL that was asked for. Entries beyond a bound are not
/// compared.
#[derive(Debug)]
pub(super) struct SeenEntries {
    documents: HashMap<Url, HashSet<EntryStamp>>,
    entries: usize,
    max: usize,
}

impl SeenEntries {
    pub(super) fn at_most(max: usize) -> Self {
        Self {
            documents: HashMap::new(),
            entries: 0,
            max,
        }
    }

    /// Notes entries of a document by their indices. Entries of an earlier copy stay noted.
    pub(super) fn note(
        &mut self,
        asked: &Url,
        document: &Document,
        indices: &[usize],
        dated: bool,
    ) {
        let seen = self.documents.entry(asked.clone()).or_default();
        for index in indices {
            if self.entries >= self.max {
                return;
            }
            let found = key(document, *index);
            if let Some((id, updated)) = found
                && seen.insert((id, updated.filter(|_| dated)))
            {
                self.entries += 1;
            }
        }
    }

    /// Returns whether an entry of a copy was noted without a date for the document asked for.
    pub(super) fn has(&self, asked: &Url, copy: &Document, index: usize) -> bool {
        let seen = self.documents.get(asked).zip(key(copy, index));
        seen.is_some_and(|(seen, (id, _))| seen.contains(&(id, None)))
    }

    /// Returns the entries seen in a document that this copy lacks, or has in an older revision
    /// only.
    pub(super) fn lost(&self, asked: &Url, copy: &Document) -> Vec<EntryStamp> {
        let Some(seen) = self.documents.get(asked).filter(|seen| !seen.is_empty()) else {
            return vec![];
        };
        let mut newest: HashMap<u64, Option<Timestamp>> = HashMap::with_capacity(copy.len());
        for (id, updated) in (0..copy.len()).filter_map(|index| key(copy, index)) {
            let date = newest.entry(id).or_default();
            *date = (*date).max(updated);
        }
        let is_lost =
            |(id, updated): &&EntryStamp| newest.get(id).is_none_or(|newest| newest < updated);
        seen.iter().filter(is_lost).copied().collect()
    }

    /// Forgets the entries seen in a document, and returns them.
    pub(super) fn take(&mut self, asked: &Url) -> Vec<EntryStamp> {
        let seen = self.documents.remove(asked).unwrap_or_default();
        self.entries -= seen.len();
        seen.into_iter().collect()
    }
}
