//! Archive index: a list of the frozen documents, which saves a consumer the walk back.
//!
//! Pure, and for ever: closed blocks are frozen bytes.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::{digest::Digest, timestamp::Timestamp};

/// One block of a feed's archive index. Documents link to the growing block with the relation
/// `index`, and that block leads back to the closed blocks.
///
/// The index may lag behind the chain of documents, and is never ahead of the chain.
///
/// # Examples
///
/// ```
/// use simplefeed_core::index::IndexBlock;
///
/// let block = IndexBlock { feed: "urn:f".into(), prev: None, documents: vec![] };
/// assert_eq!(&block.to_bytes()[..], b"{\"feed\":\"urn:f\",\"prev\":null,\"documents\":[]}\n");
/// assert_eq!(IndexBlock::read(&block.to_bytes())?, block);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IndexBlock {
    /// The feed's `atom:id`.
    pub feed: String,
    /// URL of the block before this block, relative to this block's URL; `None` in the first block.
    pub prev: Option<String>,
    /// Documents of the block, oldest first.
    pub documents: Vec<IndexedDocument>,
}

/// A frozen document, as listed in the index.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IndexedDocument {
    /// URL of the document, relative to the block's URL.
    pub href: String,
    /// The position of the document's oldest entry.
    pub first: u64,
    /// The number of the document's entries.
    pub entries: u64,
    /// Instant of the commit that opened the document, as RFC 3339 text.
    pub opened: String,
    /// Instant of the document's newest entry, as RFC 3339 text.
    pub updated: String,
    /// Digest of the document's bytes without a coding such as gzip.
    pub sha256: Digest,
}

impl IndexBlock {
    /// Returns the block's bytes: JSON and a line feed.
    pub fn to_bytes(&self) -> Bytes {
        let mut json = serde_json::to_vec(self).expect("an index block has a JSON form");
        json.push(b'\n');
        json.into()
    }

    /// Reads a block.
    ///
    /// # Errors
    ///
    /// Returns the fault in the JSON of the block. Unknown members are ignored.
    pub fn read(body: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(body)
    }
}

impl IndexedDocument {
    /// Returns whether the instant of the document's newest entry is before `instant`.
    pub(crate) fn is_before(&self, instant: Timestamp) -> bool {
        // An `updated` that is not a date proves nothing, so the answer is no.
        Timestamp::parse(&self.updated).is_some_and(|updated| updated < instant)
    }
}
