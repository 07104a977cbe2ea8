//! How commits, entries and feeds are laid out, in the journal and in sled.
//!
//! Pure. A key begins with a byte for its kind. Numbers in keys are big-endian, so that keys sort
//! by them. Every value but that of `V` ends with its CRC-32.
//!
//! ```text
//! V                            storage version
//! S                            end of the log at the last settling
//! p commit part                facts of consecutive commits: instant, chain, epoch, feeds, changes
//! e feed position part         consecutive entries: groups of one commit and one document, oldest first
//! f feed                       head of the feed, and its newest entries
//! d feed document              opening of a document
//! s feed revision part         settings, as JSON
//! g revision part              defaults, as JSON
//! n name                       feed that has the name
//! ```
//!
//! In the journal, a commit consists of facts (`c`), heads of feeds (`h`) and items (`e d s g n`),
//! without parts. sled holds facts and entries packed, so that sled has few keys, and heads beside
//! a feed's newest entries (`f`, see [`tail`]). A packed record is compressed, if the compressed
//! form is shorter. A record of entries that was a feed's tail may consist of several such blocks.
//!
//! No value in sled exceeds [`VALUE_BYTES_MAX`]: sled puts larger values into separate files, and
//! never syncs these files. A longer body continues in the next part.

use super::packing::PART_BYTES_MAX;
use crate::{LogError, codec::seal};

mod keys;
mod heads;
mod entries;
mod facts;

pub(super) use entries::{EntryRecord, count_entries, decode_entries};
pub(super) use facts::{CommitFacts, FactsRecord, decode_end, encode_end, facts_in};
pub(super) use heads::{decode_head, decode_opening, encode_head, encode_opening};
pub(super) use keys::{
    commit_key, commit_of_key, defaults_key, document_key, documents_prefix, entries_prefix,
    entry_key, entry_of_key, facts_key, feed_key, feed_of_key, head_key, name_key, name_of_key,
    part_key, revision_of_key, settings_key, settings_prefix,
};

/// Version of this layout. A log of another version is refused.
pub(super) const STORAGE_VERSION: u32 = 4;
/// Key of the storage version, the only one of its kind.
pub(super) const VERSION_KEY: &[u8] = b"V";

/// Maximum number of bytes of entries or facts that share a record in sled. Compressed, these bytes
/// usually fit into one part.
pub(super) const RECORD_BYTES: usize = 16 * 1024;
/// Key of the end of the log at the last settling, the only one of its kind.
pub(super) const SETTLED_KEY: &[u8] = b"S";
/// Bytes of the part number at the end of a key in sled.
pub(super) const PART_KEY_BYTES: usize = 4;

/// Returns `body` as parts, each with a number and a checksum.
pub(super) fn parts(body: &[u8]) -> impl Iterator<Item = (u32, Vec<u8>)> {
    (0..).zip(body.chunks(PART_BYTES_MAX).map(|part| seal(part.to_vec())))
}

/// Returns the number of parts of a body.
pub(super) fn count_parts(body: &[u8]) -> u32 {
    u32::try_from(body.len().div_ceil(PART_BYTES_MAX)).unwrap_or(u32::MAX)
}

/// Returns the error for a value that fails its checksum or cannot be decoded.
pub(super) fn damaged(kind: &str, key: &[u8]) -> LogError {
    LogError::damaged(format!("{kind} {}", data_encoding::HEXLOWER.encode(key)))
}
