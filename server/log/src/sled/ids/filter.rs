//! Bloom filter of the ids of a segment, which excludes most absent ids without a search.
//!
//! Pure.

use super::{Fingerprint, fingerprint_halves};

/// Number of ids for each 64-bit word of the filter, hence 16 bits for each id.
const WORD_IDS: usize = 4;
/// Maximum number of bits that an id sets in its word.
const BITS: u32 = 5;

/// Bloom filter in memory.
#[derive(Debug)]
pub(super) struct Filter(Vec<u64>);

impl Filter {
    /// Returns an empty filter with room for some ids.
    pub(super) fn for_ids(ids: u64) -> Self {
        let ids = usize::try_from(ids).unwrap_or(usize::MAX);
        Self(vec![0; ids.div_ceil(WORD_IDS).max(1)])
    }

    /// Returns the index of an id's word, and the id's bits in that word.
    fn place_of(&self, fingerprint: &Fingerprint) -> (usize, u64) {
        // Word and bits come from different halves, so that ids of one word still differ in their
        // bits.
        let (sorted, other) = fingerprint_halves(fingerprint);
        let words = u64::try_from(self.0.len()).unwrap_or(u64::MAX);
        let word = usize::try_from(other % words).unwrap_or(0);
        let bits = (0..BITS).map(|bit| 1 << ((sorted >> (6 * bit)) & 63));
        (word, bits.fold(0, |bits, bit: u64| bits | bit))
    }

    pub(super) fn add(&mut self, fingerprint: &Fingerprint) {
        let (word, bits) = self.place_of(fingerprint);
        if let Some(word) = self.0.get_mut(word) {
            *word |= bits;
        }
    }

    /// Returns for each id whether the segment may have that id. The function takes many ids,
    /// because a large filter misses the processor's caches: in a loop as short as this, the
    /// processor overlaps the reads.
    pub(super) fn may_have<'f>(
        &self,
        fingerprints: impl Iterator<Item = &'f Fingerprint>,
    ) -> Vec<bool> {
        let may_have = |fingerprint| {
            let (word, bits) = self.place_of(fingerprint);
            // A bit that is not set proves that the id is absent; set bits prove nothing.
            self.0.get(word).is_none_or(|word| word & bits == bits)
        };
        fingerprints.map(may_have).collect()
    }

    pub(super) fn to_bytes(&self) -> Vec<u8> {
        self.0.iter().flat_map(|word| word.to_be_bytes()).collect()
    }

    pub(super) fn of_bytes(bytes: &[u8]) -> Self {
        let (words, _) = bytes.as_chunks::<8>();
        Self(words.iter().copied().map(u64::from_be_bytes).collect())
    }
}

#[cfg(test)]
mod tests {
    use simplefeed_core::digest::Digest;

    use super::*;

    fn fingerprint(number: u64) -> Fingerprint {
        Digest::of(&number.to_be_bytes()).half()
    }

    /// Goal: a new id hardly ever costs a read of the disk; an id that is there is always looked
    /// for.
    #[test]
    fn most_absent_ids_are_known() {
        let mut filter = Filter::for_ids(20_000);
        let ids: Vec<Fingerprint> = (0..120_000).map(fingerprint).collect();
        let (present, absent) = ids.split_at(20_000);
        for id in present {
            filter.add(id);
        }
        for filter in [Filter::of_bytes(&filter.to_bytes()), filter] {
            assert!(filter.may_have(present.iter()).into_iter().all(|may| may));
            let may = filter.may_have(absent.iter()).into_iter();
            let may = may.filter(|may| *may).count();
            assert!(may < 1_000, "{may} of 100,000");
        }
    }
}
