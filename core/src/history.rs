//! The hashes that chain entries and commits, so that losses and changes can be proved.
//!
//! Pure. Both hashes are for ever: the history hash stands in frozen documents and in bookmarks,
//! the chain hash in every log. The golden vectors in the tests must never change.

use serde::{Deserialize, Serialize};

use crate::{digest::Digest, feed::FeedId};

/// The history hash of a feed after some number of entries.
///
/// H₀ = SHA-256(feed id as UTF-8), Hᵢ₊₁ = SHA-256(Hᵢ ‖ SHA-256(fragmentᵢ)), binary digests.
///
/// # Examples
///
/// ```
/// use simplefeed_core::{feed::FeedId, history::HistoryHash};
///
/// let id = FeedId::parse("urn:uuid:ff31a040-75bc-11e2-bcfd-0800200c9a66").unwrap();
/// let after_one = HistoryHash::start(&id).extend(b"<entry>1</entry>");
/// assert_ne!(after_one, HistoryHash::start(&id));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct HistoryHash(pub Digest);

impl HistoryHash {
    /// Returns H₀, the hash of the feed without entries.
    pub fn start(feed: &FeedId) -> Self {
        Self::start_of_text(feed.as_str())
    }

    /// Returns H₀ for a feed id from a document, even for an id that the gate would refuse.
    pub fn start_of_text(feed: &str) -> Self {
        Self(Digest::of(feed.as_bytes()))
    }

    /// Returns the hash after one more entry, given the entry's fragment.
    #[must_use]
    pub fn extend(self, fragment: &[u8]) -> Self {
        self.extend_with_digest(Digest::of(fragment))
    }

    /// Returns the hash after one more entry, given the digest of the entry's fragment.
    #[must_use]
    pub fn extend_with_digest(self, fragment: Digest) -> Self {
        Self(Digest::of_parts(&[&self.0.0, &fragment.0]))
    }
}

impl std::fmt::Display for HistoryHash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// The chain hash of a log after some number of commits.
///
/// C₀ is 32 zero bytes, Cₙ = SHA-256(Cₙ₋₁ ‖ encoding of commit n); the encoding is
/// [`Commit::encode`](crate::commit::Commit::encode), the same for every kind of log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ChainHash(pub Digest);

impl ChainHash {
    /// The chain hash of an empty log.
    pub const START: Self = Self(Digest([0; 32]));

    /// Returns the hash after one more commit, given the commit's encoding.
    #[must_use]
    pub fn extend(self, encoding: &[u8]) -> Self {
        Self(Digest::of_parts(&[&self.0.0, encoding]))
    }
}

impl std::fmt::Display for ChainHash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The expected hashes come from the definition by Python's hashlib, not from this code.
    #[test]
    fn golden_history() {
        let id = FeedId::parse("urn:uuid:ff31a040-75bc-11e2-bcfd-0800200c9a66").unwrap();
        let zero = HistoryHash::start(&id);
        let one = zero.extend(b"<entry>1</entry>");
        let two = one.extend(b"<entry>2</entry>");
        assert_eq!(zero.to_string(), GOLDEN[0]);
        assert_eq!(one.to_string(), GOLDEN[1]);
        assert_eq!(two.to_string(), GOLDEN[2]);
    }

    const GOLDEN: [&str; 3] = [
        "704845df2f23f1bd4b2d7f430fd11d5958c2024e976148f38086fbb402886576",
        "f33e5cd9b94e2f8afb5efcb01c91fe980442b62be6b0637fafa138b362d9aba3",
        "09abc12f0167eaf0dc9db48a8a71abd978298d4b0728411d746f6981ce1758ab",
    ];
}
