//! Bodies in flight, shared by all readers of the same bytes.
//!
//! Shell: locks, and a hasher with a random key. Sixty slow readers of one document hold one copy
//! of the bytes, and the last reader drops the copy.

use std::{
    collections::HashMap,
    hash::{BuildHasher as _, RandomState},
    sync::{Arc, Weak},
};

use bytes::Bytes;
use parking_lot::Mutex;
use simplefeed_core::digest::Digest;

/// Number of parts of the table. Each part has a lock, so that readers of different documents
/// rarely wait for each other.
const STRIPES: usize = 64;

/// Number of entries in a part from which on entries are removed whose bytes nobody holds any more.
const SWEEP_AT: usize = 64;

type Stripe = HashMap<Digest, Weak<Bytes>>;

/// Bodies in flight by the digest of their bytes.
#[derive(Debug)]
pub(super) struct InFlight {
    stripes: Vec<Mutex<Stripe>>,
    hasher: RandomState,
}

impl Default for InFlight {
    fn default() -> Self {
        Self {
            stripes: std::iter::repeat_with(Mutex::default)
                .take(STRIPES)
                .collect(),
            hasher: RandomState::new(),
        }
    }
}

/// Owner of a body in flight. A `Weak` keeps the whole allocation of the `Arc`. So the `Arc` holds
/// only a handle to the bytes, which lie elsewhere.
struct BodyOwner(Arc<Bytes>);

impl AsRef<[u8]> for BodyOwner {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl InFlight {
    /// Returns the bytes with this digest, shared if they are in flight, else from `read`. Parallel
    /// requests for the same bytes read them once.
    pub(super) fn get<E>(
        &self,
        digest: Digest,
        read: impl FnOnce() -> Result<Bytes, E>,
    ) -> Result<Bytes, E> {
        let index = usize::try_from(self.hasher.hash_one(digest)).unwrap_or_default() % STRIPES;
        let Some(stripe) = self.stripes.get(index) else {
            return read();
        };
        // A panic under the lock leaves the table whole.
        let mut stripe = stripe.lock();
        if let Some(bytes) = stripe.get(&digest).and_then(Weak::upgrade) {
            return Ok(Bytes::from_owner(BodyOwner(bytes)));
        }
        // Read under the lock, so that parallel requests for the same bytes wait for this read.
        let bytes = Arc::new(read()?);
        // The sweep happens only now and then, so that most requests do not go through the whole
        // part.
        if stripe.len() >= SWEEP_AT {
            stripe.retain(|_, bytes| bytes.strong_count() > 0);
        }
        stripe.insert(digest, Arc::downgrade(&bytes));
        Ok(Bytes::from_owner(BodyOwner(bytes)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Owner(Arc<[u8; 3]>);

    impl AsRef<[u8]> for Owner {
        fn as_ref(&self) -> &[u8] {
            &*self.0
        }
    }

    #[test]
    fn readers_of_one_document_share_its_bytes() {
        let in_flight = InFlight::default();
        let of = |name: &str| Digest::of(name.as_bytes());
        let read = |text: &'static str| in_flight.get(of("a"), || Ok::<_, ()>(text.into()));
        let first = read("one").unwrap();
        let second = read("two").unwrap();
        assert_eq!(&second[..], b"one");
        assert_eq!(first.as_ptr(), second.as_ptr());
        drop((first, second));
        assert_eq!(
            &read("three").unwrap()[..],
            b"three",
            "nobody holds the first"
        );
        assert_eq!(in_flight.get(of("b"), || Err(7)), Err(7));
        let held = Arc::new([0; 3]);
        let owner = Owner(Arc::clone(&held));
        drop(in_flight.get(of("c"), || Ok::<_, ()>(Bytes::from_owner(owner))));
        assert_eq!(Arc::strong_count(&held), 1, "the bytes are still held");
        for number in 0..100_000 {
            drop(in_flight.get(of(&number.to_string()), || Ok::<_, ()>(Bytes::from("x"))));
        }
        let left: usize = in_flight
            .stripes
            .iter()
            .map(|stripe| stripe.lock().len())
            .sum();
        assert!(left <= STRIPES * SWEEP_AT, "{left}");
    }
}
