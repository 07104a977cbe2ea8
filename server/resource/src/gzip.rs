//! Compression of bytes in memory.
//!
//! Pure.

use std::io::Write as _;

use flate2::{Compression, write::GzEncoder};

/// The level at which zlib-rs makes our documents smallest. Level 8 takes up to three times as
/// long, and the result is no smaller. At level 9, called "best", Atom is as large or up to 8 %
/// larger, and SUP documents are 3 % larger.
pub const SMALLEST: Compression = Compression::new(7);

/// Compresses bytes with gzip, in memory.
pub fn gzip(bytes: &[u8], level: Compression) -> Vec<u8> {
    // A guess at the size: Atom shrinks to a third or less.
    let mut encoder = GzEncoder::new(Vec::with_capacity(bytes.len() / 4), level);
    encoder
        .write_all(bytes)
        .and_then(|()| encoder.finish())
        .expect("writing to memory does not fail")
}
