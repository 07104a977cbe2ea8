//! The archive index: a list of the archived documents, so that a consumer finds them without a
//! walk.
//!
//! Shell: reads manifests. Closed blocks of 1,000 documents are frozen; the growing block holds the
//! rest. The index lists the records of the manifest, and a document gets its record some time
//! after the commit that closed the document. So the index may lack the newest documents of the
//! chain, and never lists a document that the chain lacks.

use bytes::Bytes;
use simplefeed_core::{
    feed::{DocumentNumber, EpochNumber, FeedId, FeedName},
    index::{IndexBlock, IndexedDocument},
    limits::INDEX_BLOCK_DOCUMENTS,
    timestamp::Timestamp,
};

use super::manifest::{ManifestRecord, Manifests};
use crate::error::ViewError;

/// A closed block of the index.
#[derive(Clone, Debug)]
pub(crate) struct ClosedBlock {
    /// Name of the block's file in the folder of the feed.
    pub name: String,
    /// Bytes of the JSON, without a coding.
    pub bytes: Bytes,
    /// Timestamp at which the last document in the block was closed.
    pub closed: Timestamp,
}

/// Returns closed block `block` (1 is the oldest), or `None` while the block is not closed.
///
/// # Errors
///
/// See [`ViewError`].
pub(crate) fn closed_block(
    manifests: &Manifests,
    feed: &FeedName,
    id: &FeedId,
    block: u64,
) -> Result<Option<ClosedBlock>, ViewError> {
    let last = block
        .checked_mul(INDEX_BLOCK_DOCUMENTS)
        .and_then(DocumentNumber::new);
    let Some(last) = last else { return Ok(None) };
    match manifests.get(feed, last)? {
        Some(last) => block_closed_by(manifests, feed, id, &last),
        None => Ok(None),
    }
}

/// Returns the block that the record `last` completes, if any. The manifest need not have this
/// record yet.
///
/// # Errors
///
/// See [`ViewError`].
pub(crate) fn block_closed_by(
    manifests: &Manifests,
    feed: &FeedName,
    id: &FeedId,
    last: &ManifestRecord,
) -> Result<Option<ClosedBlock>, ViewError> {
    let number = last.name.number.get();
    if !number.is_multiple_of(INDEX_BLOCK_DOCUMENTS) {
        return Ok(None);
    }
    let block = number / INDEX_BLOCK_DOCUMENTS;
    // The caller passes `last`, because this record may be missing in the manifest, or damaged.
    let mut documents = documents_of(manifests, feed, block, INDEX_BLOCK_DOCUMENTS - 1)?;
    documents.push(*last);
    let prev = name_of_closed(manifests, feed, block - 1)?;
    let bytes = block_json(id, prev, documents);
    Ok(Some(ClosedBlock {
        name: name_of(block, last),
        bytes,
        closed: last.closed,
    }))
}

/// Returns the growing block of a feed with `archived` documents in the manifest.
///
/// # Errors
///
/// See [`ViewError`].
pub(crate) fn growing_block(
    manifests: &Manifests,
    feed: &FeedName,
    id: &FeedId,
    archived: u64,
) -> Result<Bytes, ViewError> {
    let closed = archived / INDEX_BLOCK_DOCUMENTS;
    // Only as many documents as were counted, because the manifest may have grown since then.
    let count = archived - closed * INDEX_BLOCK_DOCUMENTS;
    let documents = documents_of(manifests, feed, closed + 1, count)?;
    let prev = name_of_closed(manifests, feed, closed)?;
    Ok(block_json(id, prev, documents))
}

/// Returns the number in the name of a closed block, if the name is canonical.
pub(crate) fn block_of_name(name: &str) -> Option<EpochNumber> {
    let numbered = EpochNumber::parse(name.strip_prefix("index-")?.strip_suffix(".json")?)?;
    (numbered.number > 0).then_some(numbered)
}

/// Returns the first `count` documents of a block.
fn documents_of(
    manifests: &Manifests,
    feed: &FeedName,
    block: u64,
    count: u64,
) -> Result<Vec<ManifestRecord>, ViewError> {
    let first = block
        .checked_sub(1)
        .and_then(|before| before.checked_mul(INDEX_BLOCK_DOCUMENTS));
    match first.and_then(|before| DocumentNumber::new(before + 1)) {
        Some(first) => manifests.range(feed, first, count),
        None => Ok(vec![]),
    }
}

fn name_of_closed(
    manifests: &Manifests,
    feed: &FeedName,
    block: u64,
) -> Result<Option<String>, ViewError> {
    let last = block.checked_mul(INDEX_BLOCK_DOCUMENTS);
    // Block 0 does not exist, so block 1 links to no block.
    let Some(last) = last.and_then(DocumentNumber::new) else {
        return Ok(None);
    };
    Ok(manifests.get(feed, last)?.map(|last| name_of(block, &last)))
}

fn name_of(block: u64, last: &ManifestRecord) -> String {
    format!(
        "index-{}.json",
        EpochNumber {
            number: block,
            epoch: last.closed_in
        }
    )
}

fn block_json(feed: &FeedId, prev: Option<String>, documents: Vec<ManifestRecord>) -> Bytes {
    // A lost document has a record, but no file to link to.
    let there = documents.into_iter().filter(|document| !document.is_lost());
    let documents = there.map(|document| IndexedDocument {
        href: document.name.to_string(),
        first: document.first.0,
        entries: document.entries,
        opened: document.opened.to_string(),
        updated: document.updated.to_string(),
        sha256: document.identity.digest,
    });
    let block = IndexBlock {
        feed: feed.to_string(),
        prev,
        documents: documents.collect(),
    };
    block.to_bytes()
}
