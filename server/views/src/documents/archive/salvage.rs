//! For `recover`: the copies of archived documents that are left, whatever the manifests say.
//!
//! Shell: reads files, and writes none.

use std::{collections::BTreeSet, fs, path::Path};

use bytes::Bytes;
use simplefeed_core::{
    digest::Digest,
    feed::{DocumentName, DocumentNumber, FeedName},
};
use simplefeed_process::regular;

use crate::documents::{index, manifest::ManifestRecord, sidecar::Sidecar, stranger::name_in};

use super::{Archive, copies::FileCopies, trees::folder_in};

/// Evidence for a document's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Evidence {
    /// There is no evidence, so the bytes may be damaged.
    Nothing,
    /// The bytes are as some log wrote them: they come from a twin, which has a checksum.
    Intact,
    /// The bytes belong to this document: a digest proves that, or a file and a twin that agree.
    Proven,
}

/// Remains of an archived document, for `recover`.
#[derive(Debug)]
pub struct SalvageRemains {
    /// Bytes of the file, or of the decoded twin.
    pub bytes: Option<Bytes>,
    /// Evidence for the bytes. Bytes without evidence are given only where nothing contradicts
    /// them.
    pub evidence: Evidence,
    /// The sidecar, unless the file is missing, damaged, or about other bytes than `bytes`.
    pub sidecar: Option<Sidecar<'static>>,
    /// The record in the manifest, unless the record is missing, damaged, or about other bytes.
    pub record: Option<ManifestRecord>,
    /// Whether one of the trees has only another document under this name.
    pub is_elsewhere: bool,
    /// Whether the tree that a web server may serve has a file of this name, or a twin.
    pub is_shown: bool,
}

impl Archive {
    /// Returns the feeds with a folder in either tree or among the sidecars, or with records.
    pub fn feeds(&self) -> BTreeSet<FeedName> {
        let trees = [&self.folders.www, &self.folders.closed].map(|tree| tree.join("feeds"));
        let [open, closed] = trees;
        let folders = [open, closed, self.folders.sidecars.clone()];
        let named = folders.iter().flat_map(names_in);
        let named = named.filter_map(|name| FeedName::parse(&name));
        named.chain(self.manifests.feeds()).collect()
    }

    /// Returns the names of a feed's documents that have a file, a sidecar or a record.
    pub fn documents(&self, feed: &FeedName) -> BTreeSet<DocumentName> {
        let folders = self.folders_of_feeds().into_iter();
        let files = folders.flat_map(|folder| names_in(folder.join(feed.as_str())));
        let files: Vec<String> = files.collect();
        let sidecars = names_in(self.folders.sidecars.join(feed.as_str()));
        // Of a document, the file, the twin or the sidecar may be all that is left.
        let stems = files.iter().chain(&sidecars).filter_map(|name| {
            let name = name.strip_suffix(".gz").unwrap_or(name);
            name.strip_suffix(".atom").or(name.strip_suffix(".json"))
        });
        let recorded = (1..=self.manifests.count(feed).unwrap_or(0))
            .filter_map(DocumentNumber::new)
            .filter_map(|number| self.manifests.get(feed, number).ok().flatten())
            .map(|record| record.name);
        let names: BTreeSet<DocumentName> = stems.filter_map(DocumentName::of_stem).collect();
        // A restoration that renames a document leaves a file under the older name, too. The record
        // has the newer name. Without a record, the document's link to itself has the newer name.
        let is_second_name = |name: &DocumentName| {
            let record = self.manifests.get(feed, name.number).ok().flatten();
            if let Some(record) = record {
                let digest = record.identity.digest;
                let is_copy = |bytes: &Vec<u8>| Digest::of(bytes) == digest;
                // Where no file can be read, nothing contradicts the record.
                return name.epoch < record.name.epoch
                    && self.has_copies(feed, *name, is_copy) != Some(false);
            }
            let is_newer =
                |other: &DocumentName| other.number == name.number && other.epoch > name.epoch;
            let newer: Vec<_> = names.iter().filter(|other| is_newer(other)).collect();
            let is_copy = |bytes: &Vec<u8>| {
                let linked = name_in(bytes, feed);
                linked.is_some_and(|linked| newer.contains(&&linked))
            };
            // Without a record, only a copy that can be read proves a second name.
            !newer.is_empty() && self.has_copies(feed, *name, is_copy) == Some(true)
        };
        let found = names.iter().filter(|name| !is_second_name(name));
        found.copied().chain(recorded).collect()
    }

    /// Returns the copies of a document in the two trees.
    pub(super) fn copies(&self, feed: &FeedName, name: DocumentName) -> [FileCopies; 2] {
        let file = Path::new(feed.as_str()).join(name.to_string());
        self.folders_of_feeds()
            .map(|folder| FileCopies::read(&folder.join(&file)))
    }

    /// Returns whether every tree that has readable files of this name has a copy of the document
    /// among them; `None` if no tree has a readable file.
    pub(super) fn has_copies(
        &self,
        feed: &FeedName,
        name: DocumentName,
        is_copy: impl Fn(&Vec<u8>) -> bool,
    ) -> Option<bool> {
        let trees = self.copies(feed, name);
        let mut trees = trees
            .iter()
            .filter(|tree| tree.all().next().is_some())
            .peekable();
        trees.peek()?;
        // A copy in one tree does not excuse another document in the other tree, which may have
        // been shown to readers.
        Some(trees.all(|tree| tree.all().any(&is_copy)))
    }

    /// Returns the names of a feed's closed index blocks that have a file, in either tree.
    pub fn blocks(&self, feed: &FeedName) -> BTreeSet<String> {
        let folders = self.folders_of_feeds().into_iter();
        let files = folders.flat_map(|folder| names_in(folder.join(feed.as_str())));
        files
            .filter(|name| index::block_of_name(name).is_some())
            .collect()
    }

    /// Returns the bytes of a closed index block, if there is one. The tree for web servers comes
    /// first, because readers know the block that was shown.
    pub fn block(&self, feed: &FeedName, name: &str) -> Option<Vec<u8>> {
        let mut folders = self.folders_of_feeds().into_iter();
        folders
            .find_map(|folder| regular::read_document(folder.join(feed.as_str()).join(name)).ok())
    }

    /// Returns the remains of a document, as far as they can be read.
    pub fn salvage(&self, feed: &FeedName, document: DocumentName) -> SalvageRemains {
        let trees = self.copies(feed, document);
        let [shown, closed] = &trees;
        let sidecar = regular::read_document(self.sidecar_path(feed, document));
        let sidecar = sidecar.ok().and_then(|bytes| Sidecar::of_bytes(&bytes));
        let record = self.manifests.get(feed, document.number).ok().flatten();
        // The record of another epoch, or of a lost document, tells nothing about these bytes.
        let record = record.filter(|record| record.name == document && !record.is_lost());
        let expected = [
            sidecar.as_ref().map(|sidecar| sidecar.sha256),
            record.map(|record| record.identity.digest),
        ];
        let is_expected = |bytes: &&Vec<u8>| expected.contains(&Some(Digest::of(bytes)));
        let found = || shown.all().chain(closed.all());
        let agreed = |copies: &'_ FileCopies| copies.file.clone().filter(|_| copies.agree());
        // Another log may have shown a feed that is closed here. Readers know the shown documents,
        // so these come first.
        let is_closed = folder_in(&self.folders.closed, feed).is_dir();
        let nothing_tells = expected == [None, None];
        let sound = agreed(shown).filter(|_| is_closed);
        let sound = sound.or_else(|| found().find(is_expected).cloned());
        let sound = sound.or_else(|| {
            // Without any digest, a file and a twin that agree prove each other.
            let agreeing = agreed(shown).or_else(|| agreed(closed));
            agreeing.filter(|_| nothing_tells)
        });
        let proven = sound.is_some();
        // The bytes of a twin are as some log wrote them, because a twin has a checksum.
        let is_named = |bytes: &&Vec<u8>| name_in(bytes, feed) == Some(document);
        let twins = || [&shown.twin, &closed.twin].into_iter().flatten();
        let intact = twins().find(is_named).filter(|_| nothing_tells && !proven);
        let evidence = match intact {
            _ if proven => Evidence::Proven,
            Some(_) => Evidence::Intact,
            None => Evidence::Nothing,
        };
        // Bytes that contradict a digest are not returned at all.
        let bytes = sound.or_else(|| intact.cloned());
        let bytes = bytes.or_else(|| found().next().filter(|_| nothing_tells).cloned());
        let digest = bytes.as_ref().map(|bytes| Digest::of(bytes));
        let has_other = |copies: &FileCopies| {
            copies.all().next().is_some() && copies.all().all(|other| Some(other) != bytes.as_ref())
        };
        let is_elsewhere = if bytes.is_some() {
            trees.iter().any(has_other)
        } else {
            // Rot cannot explain a twin that decodes, because a twin has a checksum. Nor can it
            // explain a name that only another log has given.
            let named = |bytes: &Option<Vec<u8>>| bytes.as_ref().and_then(|it| name_in(it, feed));
            let has_document = |copies: &FileCopies| {
                let file = named(&copies.file);
                named(&copies.twin).is_some()
                    || file.is_some_and(|name| name.epoch > document.epoch)
            };
            trees.iter().any(has_document)
        };
        // A sidecar or a record with the digest of other bytes belongs to another log's document.
        let is_own = |told: Digest| !proven || Some(told) == digest;
        SalvageRemains {
            evidence,
            is_elsewhere,
            is_shown: shown.all().next().is_some(),
            sidecar: sidecar.filter(|sidecar| is_own(sidecar.sha256)),
            record: record.filter(|record| is_own(record.identity.digest)),
            bytes: bytes.map(Bytes::from),
        }
    }
}

/// Returns the names of the files in a folder, if there is one.
pub(super) fn names_in(folder: impl AsRef<Path>) -> Vec<String> {
    let items = fs::read_dir(folder).into_iter().flatten().flatten();
    let names = items.map(|item| item.file_name().to_string_lossy().into_owned());
    names.collect()
}
