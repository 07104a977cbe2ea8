//! The bytes of a file, in pages that versions of the file share.
//!
//! Pure. A crash state differs from its neighbours in a few pages, so a version costs its changed pages, and two
//! versions are compared by digests that each change keeps up to date.

use std::sync::Arc;

use simplefeed_core::digest::Digest;

/// Bytes of a page; also the unit in which a growing file reaches the disk.
pub(super) const PAGE: usize = 4_096;

/// A page that has a byte other than 0.
#[derive(Debug)]
struct Page {
    bytes: Box<[u8]>,
    digest: u128,
}

/// The bytes of a file at one time.
#[derive(Clone, Debug, Default)]
pub(super) struct Content {
    /// `None` is a page of zeros.
    pages: Vec<Option<Arc<Page>>>,
    length: usize,
    /// Sum over the pages, each with its place.
    digest: u128,
}

impl Content {
    pub(super) fn of(bytes: &[u8]) -> Self {
        let mut content = Self::default();
        content.write(0, bytes);
        content
    }

    pub(super) fn len(&self) -> usize {
        self.length
    }

    /// Returns a digest that is equal for equal contents only.
    pub(super) fn digest(&self) -> u128 {
        self.digest ^ mixed(u128::MAX, self.length)
    }

    pub(super) fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.length];
        for (index, page) in self.pages.iter().enumerate() {
            if let Some(page) = page {
                let at = index * PAGE;
                let end = self.length.min(at + PAGE);
                bytes[at..end].copy_from_slice(&page.bytes[..end - at]);
            }
        }
        bytes
    }

    /// Returns `length` bytes from `at` on; zeros behind the end.
    pub(super) fn read(&self, at: usize, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        let mut done = 0;
        while done < length {
            let (index, within) = ((at + done) / PAGE, (at + done) % PAGE);
            let part = (PAGE - within).min(length - done);
            if let Some(Some(page)) = self.pages.get(index) {
                bytes[done..done + part].copy_from_slice(&page.bytes[within..within + part]);
            }
            done += part;
        }
        bytes
    }

    /// Writes bytes, and zeros between the end and a place behind it.
    pub(super) fn write(&mut self, at: usize, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        self.lengthen(at + bytes.len());
        let mut done = 0;
        while done < bytes.len() {
            let (index, within) = ((at + done) / PAGE, (at + done) % PAGE);
            let part = (PAGE - within).min(bytes.len() - done);
            self.write_page(index, within, &bytes[done..done + part]);
            done += part;
        }
    }

    /// Gives the file this length, with zeros where it grows.
    pub(super) fn truncate(&mut self, length: usize) {
        if length >= self.length {
            return self.lengthen(length);
        }
        let kept = length.div_ceil(PAGE);
        for (index, page) in self.pages.drain(kept..).enumerate() {
            if let Some(page) = page {
                self.digest = self.digest.wrapping_sub(mixed(page.digest, kept + index));
            }
        }
        if length < kept * PAGE {
            let within = length % PAGE;
            self.write_page(kept - 1, within, &[0; PAGE][within..]);
        }
        self.length = length;
    }

    fn lengthen(&mut self, length: usize) {
        if length > self.length {
            self.pages.resize(length.div_ceil(PAGE), None);
            self.length = length;
        }
    }

    fn write_page(&mut self, index: usize, within: usize, bytes: &[u8]) {
        const ZEROS: &[u8] = &[0; PAGE];
        let mut page = [0; PAGE];
        if let Some(before) = &self.pages[index] {
            page.copy_from_slice(&before.bytes);
            self.digest = self.digest.wrapping_sub(mixed(before.digest, index));
        }
        page[within..within + bytes.len()].copy_from_slice(bytes);
        self.pages[index] = (page != ZEROS).then(|| {
            let digest = folded(&page);
            self.digest = self.digest.wrapping_add(mixed(digest, index));
            Arc::new(Page {
                bytes: page.into(),
                digest,
            })
        });
    }
}

/// Returns a digest of bytes that fits a number.
pub(super) fn folded(bytes: &[u8]) -> u128 {
    let digest = Digest::of(bytes).0;
    let halves = digest.as_chunks::<16>().0.iter();
    halves.fold(0, |sum, half| sum ^ u128::from_be_bytes(*half))
}

/// Returns a number that two pairs of a digest and a place share by chance only.
pub(super) fn mixed(digest: u128, place: usize) -> u128 {
    let place = u128::try_from(place).unwrap() + 1;
    // Odd constants from the digits of the golden ratio and of pi: their products spread over all bits.
    let product = digest
        .wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835)
        .wrapping_add(place.wrapping_mul(0x3243_f6a8_885a_308d_3131_98a2_e037_0735));
    (product ^ (product >> 61)).wrapping_mul(0xd131_0ba6_98df_b5ac_2ffd_72db_d01a_df4b)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Method: random writes and truncations, each compared with the same on a vector.
    #[test]
    fn content_is_the_bytes_that_were_written() {
        let mut dice = crate::dice::Dice::new(1);
        let (mut content, mut expected) = (Content::default(), vec![]);
        for _ in 0..500 {
            let at = dice.below(20_000);
            if dice.below(4) == 0 {
                content.truncate(at);
                expected.resize(at, 0);
            } else {
                let byte = u8::try_from(dice.below(3)).unwrap();
                let bytes = vec![byte; 1 + dice.below(9_000)];
                content.write(at, &bytes);
                expected.resize(expected.len().max(at + bytes.len()), 0);
                expected[at..at + bytes.len()].copy_from_slice(&bytes);
            }
            assert_eq!(content.len(), expected.len());
            assert!(content.bytes() == expected, "other bytes");
            assert_eq!(content.digest(), Content::of(&expected).digest());
            assert_eq!(content.read(5, 9_000)[..10], content.read(5, 10));
        }
        content.write(content.len(), b"x");
        assert_ne!(content.digest(), Content::of(&expected).digest());
    }
}
