//! The form of records in sled: compressed.
//!
//! Pure.

use bytes::Bytes;

use crate::codec::{Reader, RecordWriter};

/// Length of the longest value, in bytes, checksum included. A page of sled has at most 17 values.
/// Together, they stay below 128 KiB, from where on sled writes a page to a blob file.
pub(super) const VALUE_BYTES_MAX: usize = 7_500;
/// Length of the longest body of a part, in bytes.
pub(super) const PART_BYTES_MAX: usize = VALUE_BYTES_MAX - 4;
/// Maximum number of bytes that a compressed byte stands for (LZ4).
const UNPACKED_PER_BYTE_MAX: usize = 256;

/// Returns the stored form of a record: compressed, if the compressed form is shorter.
pub(super) fn pack(record: Vec<u8>) -> Vec<u8> {
    let compressed = lz4_flex::block::compress(&record);
    let mut out = RecordWriter(Vec::with_capacity(compressed.len() + 4));
    // No uncompressed record begins with 0: such a record begins with the number of entries in a
    // group, or with the length of a commit's facts, and neither is 0.
    out.number(0);
    out.length(record.len());
    out.bytes(&compressed);
    if out.0.len() < record.len() {
        out.0
    } else {
        record
    }
}

/// Returns a record that was [packed](pack).
pub(super) fn unpack(stored: &Bytes) -> Option<Bytes> {
    let mut from = Reader(stored);
    if from.number()? != 0 {
        return Some(stored.clone());
    }
    let length = from.length()?;
    // A damaged length could be of any size.
    let is_possible = length <= from.0.len().saturating_mul(UNPACKED_PER_BYTE_MAX);
    let record = lz4_flex::block::decompress(from.0, is_possible.then_some(length)?).ok()?;
    (record.len() == length).then(|| Bytes::from(record))
}
