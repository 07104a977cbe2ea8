//! Documents as static files, as an export writes them.
//!
//! Shell: writes into a [`Tree`].

use std::sync::Arc;

use simplefeed_core::{
    feed::{DocumentName, DocumentNumber, EpochNumber, FeedName, Position},
    header::{INDEX, RECENT},
    limits::INDEX_BLOCK_DOCUMENTS,
    plan::{FeedHead, Opening},
};
use simplefeed_resource::{Coding, Resource};

use super::{
    archive::Archive,
    each_head::each_head,
    index,
    reading::{Address, Documents},
};
use crate::tree::{ExportError, Tree};

use crate::shown::ShownSeries;

/// Writes all documents of the feeds that are not closed, and a file for each entry if the tree has
/// entries.
///
/// # Errors
///
/// See [`ExportError`].
pub(super) fn export(
    log: &Arc<dyn ShownSeries>,
    archive: &Archive,
    tree: &mut Tree,
) -> Result<(), ExportError> {
    let mut export = Export {
        documents: Arc::new(Documents::new(Arc::clone(log), archive.clone())),
        archive,
        tree,
    };
    each_head(&**log, |name, head| export.export_feed(name, head))
}

struct Export<'a> {
    documents: Arc<Documents>,
    archive: &'a Archive,
    tree: &'a mut Tree,
}

impl Export<'_> {
    fn export_feed(&mut self, feed: &FeedName, head: &FeedHead) -> Result<(), ExportError> {
        let archive = self.archive;
        let snapshot = self.documents.snapshot(feed)?;
        // An exported tree asks nobody for a token, so closed feeds stay out.
        if snapshot.is_none_or(|snapshot| snapshot.settings.is_closed()) {
            return Ok(());
        }
        let archived = archive.manifests.count(feed)?;
        for number in 1..head.open.opening.name.number.get() {
            let Some(number) = DocumentNumber::new(number) else {
                continue;
            };
            let opening = self.documents.log().opening(head.feed, number)?;
            if let Some(opening) = opening {
                self.export_document(feed, &opening)?;
            }
        }
        self.export_document(feed, &head.open.opening)?;
        self.resource_at(feed, RECENT, &Address::Recent)?;
        self.resource_at(feed, INDEX, &Address::Index)?;
        // The division leaves out the documents of the growing block, which `INDEX` has.
        for block in 1..=archived / INDEX_BLOCK_DOCUMENTS {
            let id = self
                .documents
                .snapshot(feed)?
                .map(|state| state.settings.id.clone());
            let Some(id) = id else { continue };
            let found = index::closed_block(&archive.manifests, feed, &id, block)?;
            if let Some(found) = found {
                let numbered = index::block_of_name(&found.name);
                let numbered = numbered.expect("a block has the name of a block");
                self.resource_at(feed, &found.name, &Address::IndexBlock(numbered))?;
            }
        }
        if self.tree.with_entries {
            self.export_entries(feed, head)?;
        }
        let is_ours = |name: &str| {
            // Files with other names do not come from an export, and stay.
            DocumentName::of_file(name).is_some() || index::block_of_name(name).is_some()
        };
        self.tree.remove_others(&format!("feeds/{feed}"), is_ours)
    }

    /// Writes a document under its name, and also under the name by which the document before links
    /// to it.
    fn export_document(&mut self, feed: &FeedName, opening: &Opening) -> Result<(), ExportError> {
        let (name, linked) = (opening.name, opening.linked);
        self.resource_at(feed, &name.to_string(), &Address::Document(name))?;
        if linked == name {
            return Ok(());
        }
        let Some(resource) = self.documents.resource(feed, &Address::Document(name))? else {
            return Ok(());
        };
        // A server redirects from this name, so the file is never called final.
        self.files_of(&format!("feeds/{feed}/{linked}"), &resource)
    }

    fn export_entries(&mut self, feed: &FeedName, head: &FeedHead) -> Result<(), ExportError> {
        for at in 0..head.next.0 {
            let entry = self
                .documents
                .log()
                .entries(head.feed, Position(at)..Position(at + 1));
            let entry = entry?.pop();
            // A recovered log may lack positions.
            let Some(entry) = entry else { continue };
            let numbered = EpochNumber {
                number: at,
                epoch: entry.document.epoch,
            };
            self.resource_at(
                feed,
                &format!("entries/{numbered}.atom"),
                &Address::Entry(numbered),
            )?;
        }
        Ok(())
    }

    fn resource_at(
        &mut self,
        feed: &FeedName,
        name: &str,
        address: &Address,
    ) -> Result<(), ExportError> {
        let Some(resource) = self.documents.resource(feed, address)? else {
            return Ok(());
        };
        let path = format!("feeds/{feed}/{name}");
        self.files_of(&path, &resource)?;
        // Only final resources may be called immutable, because the bytes of all others may change.
        if resource.is_final() {
            self.tree.freeze(path);
        }
        Ok(())
    }

    fn files_of(&mut self, path: &str, resource: &Resource) -> Result<(), ExportError> {
        for (coding, suffix) in [(Coding::Identity, ""), (Coding::Gzip, ".gz")] {
            let content = resource.source().read(coding)?;
            self.tree
                .write(&format!("{path}{suffix}"), &content.bytes)?;
        }
        Ok(())
    }
}
