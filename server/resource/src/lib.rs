//! Resources: representations that can be sent for a URL.
//!
//! Shell: a clock, and counters that other threads change.
//!
//! A resource knows media type, validity and validators before any byte is there, so that a
//! conditional request can be answered without reading the bytes. The bytes come from a
//! [`ByteSource`] on demand, in either content coding. Views and endpoints make resources, and the
//! HTTP pipeline sends them; neither knows the other.

pub mod gzip;
pub mod head_tag;
pub mod read_error;

use std::{
    fmt,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use data_encoding::BASE64URL_NOPAD;
use flate2::Compression;
use simplefeed_core::{digest::Digest, timestamp::Timestamp};

use self::{
    gzip::{SMALLEST, gzip},
    read_error::ReadError,
};

/// Content coding of the bytes that are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Coding {
    /// The bytes as they are, without a coding.
    Identity,
    /// Compressed with gzip (RFC 1952).
    Gzip,
}

impl Coding {
    /// Returns the letter that ends the entity tags of this coding (rule H-2).
    pub fn letter(self) -> char {
        match self {
            Self::Identity => 'i',
            Self::Gzip => 'g',
        }
    }
}

/// Readers that may see a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Visibility {
    /// Everybody: any cache may keep the resource.
    Public,
    /// Holders of a token that shows the resource: only a cache of their own may keep the resource.
    Private,
}

impl Visibility {
    /// Both visibilities, the public one first.
    pub const ALL: [Self; 2] = [Self::Public, Self::Private];
}

/// Time for which a resource stays unchanged.
#[derive(Clone, Debug)]
pub enum Validity {
    /// For ever: the bytes are final, and durable.
    Forever,
    /// Until a moment, after which the URL may have other bytes.
    Until(Instant),
    /// As long as a generation lasts.
    Generation(Generation),
    /// For one request: the resource is not kept for later ones.
    Once,
}

/// Values of counters at one moment. The counters grow with each change of the data behind a
/// resource.
#[derive(Clone, Debug)]
pub struct Generation {
    counters: Arc<[AtomicU64]>,
    watched: WatchScope,
    /// Sum of the watched counters, none of which ever shrinks.
    seen: u64,
}

#[derive(Clone, Debug)]
enum WatchScope {
    One(usize),
    Many {
        indexes: Arc<[usize]>,
        /// Counter that grows after each growth of any watched counter.
        after: usize,
        /// Value of the counter `after` at the last check that found the generation current. As
        /// long as that counter stands still, the other counters are not read.
        lasted: Arc<AtomicU64>,
    },
}

impl Generation {
    /// Returns the current generation, which lasts until counter `index` of `counters` grows.
    pub fn of(counters: &Arc<[AtomicU64]>, index: usize) -> Self {
        Self::watch_feeds(counters, WatchScope::One(index))
    }

    /// Returns the current generation, which lasts until any of the counters at `indexes` grows.
    /// The counter at `after` must grow after each growth of one of them.
    pub fn of_all(
        counters: &Arc<[AtomicU64]>,
        indexes: impl Into<Arc<[usize]>>,
        after: usize,
    ) -> Self {
        let watched = WatchScope::Many {
            indexes: indexes.into(),
            after,
            // No counter reaches this value, so the first check reads all counters.
            lasted: Arc::new(AtomicU64::new(u64::MAX)),
        };
        Self::watch_feeds(counters, watched)
    }

    fn watch_feeds(counters: &Arc<[AtomicU64]>, watched: WatchScope) -> Self {
        Self {
            seen: watched.sum_of(counters),
            counters: Arc::clone(counters),
            watched,
        }
    }

    /// Returns whether the generation still lasts.
    pub fn is_current(&self) -> bool {
        let WatchScope::Many { after, lasted, .. } = &self.watched else {
            return self.watched.sum_of(&self.counters) == self.seen;
        };
        // This counter is read before the others, so that the sum below includes each growth that
        // this counter tells of.
        let now = count_of(&self.counters, *after);
        if lasted.load(Ordering::Acquire) == now {
            return true;
        }
        let lasts = self.watched.sum_of(&self.counters) == self.seen;
        if lasts {
            // `now` was read before the sum, so a later growth leads to another check.
            lasted.store(now, Ordering::Release);
        }
        lasts
    }
}

impl WatchScope {
    fn sum_of(&self, counters: &[AtomicU64]) -> u64 {
        match self {
            Self::One(index) => count_of(counters, *index),
            Self::Many { indexes, .. } => {
                let counts = indexes.iter().map(|index| count_of(counters, *index));
                counts.sum()
            }
        }
    }
}

fn count_of(counters: &[AtomicU64], index: usize) -> u64 {
    let counter = counters.get(index);
    counter.map_or(0, |counter| counter.load(Ordering::Acquire))
}

/// Opaque part of a resource's entity tags.
#[derive(Clone, Debug)]
pub enum EntityTag {
    /// The tags of both codings have this part, and differ in the letter of the coding.
    Shared(String),
    /// Digests of the bytes in each coding.
    Digests {
        /// SHA-256 of the bytes as they are.
        identity: Digest,
        /// SHA-256 of the compressed bytes.
        gzip: Digest,
    },
}

impl EntityTag {
    /// Returns the tag of bytes by their digest. Both codings share that digest, because the
    /// compressed bytes may not exist yet.
    pub(crate) fn of_digest(digest: &Digest) -> Self {
        Self::Shared(BASE64URL_NOPAD.encode(&digest.half()))
    }

    /// Returns the opaque part of the entity tag in a coding, without its quotes.
    pub fn in_coding(&self, coding: Coding) -> String {
        let part = match (self, coding) {
            (Self::Shared(part), _) => part.clone(),
            (Self::Digests { identity, .. }, Coding::Identity) => {
                BASE64URL_NOPAD.encode(&identity.half())
            }
            (Self::Digests { gzip, .. }, Coding::Gzip) => BASE64URL_NOPAD.encode(&gzip.half()),
        };
        format!("{part}{}", coding.letter())
    }
}

/// Bytes of a resource in one coding.
#[derive(Clone, Debug)]
pub struct CodedBytes {
    /// Coded bytes, as they are sent.
    pub bytes: Bytes,
    /// SHA-256 of the coded bytes; `None` unless the resource is final.
    pub digest: Option<Digest>,
}

/// Source of a resource's bytes.
pub trait ByteSource: fmt::Debug + Send + Sync {
    /// Returns the bytes if they are in memory. Never waits.
    fn at_once(&self, coding: Coding) -> Option<CodedBytes>;

    /// Returns the bytes. May read from the disk.
    ///
    /// # Errors
    ///
    /// See [`ReadError`].
    fn read(&self, coding: Coding) -> Result<CodedBytes, ReadError>;

    /// Returns how many bytes of memory the source holds, once both codings are made.
    fn held_bytes(&self) -> usize {
        0
    }
}

/// State of a URL at one moment: the validators, and the source of the bytes.
#[derive(Clone, Debug)]
pub struct Resource {
    /// Media type, as in `Content-Type`.
    pub media_type: &'static str,
    /// Timestamp of the last change, if that can serve as a validator.
    pub modified: Option<Timestamp>,
    validity: Validity,
    tag: EntityTag,
    source: Arc<dyn ByteSource>,
}

impl Resource {
    /// Returns a resource whose bytes come from `source`.
    pub fn new(
        media_type: &'static str,
        modified: Option<Timestamp>,
        validity: Validity,
        tag: EntityTag,
        source: Arc<dyn ByteSource>,
    ) -> Self {
        Self {
            media_type,
            modified,
            validity,
            tag,
            source,
        }
    }

    /// Returns a resource whose bytes are in memory.
    pub fn of_bytes(
        media_type: &'static str,
        modified: Option<Timestamp>,
        validity: Validity,
        bytes: Bytes,
    ) -> Self {
        // The fast level, because most of these bytes are sent only once.
        let level = Compression::fast();
        Self::in_memory(media_type, modified, validity, bytes, None, level)
    }

    /// Returns a final and durable resource in memory. `closed` is the time of the last change, and
    /// `twin` is the compressed form of `bytes`.
    pub fn frozen(media_type: &'static str, closed: Timestamp, bytes: Bytes, twin: Bytes) -> Self {
        let validity = Validity::Forever;
        Self::in_memory(
            media_type,
            Some(closed),
            validity,
            bytes,
            Some(twin),
            SMALLEST,
        )
    }

    /// Returns a resource in memory that another one replaces after `lasts`.
    pub fn renewed(media_type: &'static str, bytes: Bytes, lasts: Duration) -> Self {
        let validity = Validity::Until(Instant::now() + lasts);
        // The level that compresses best, because the result is sent more than once.
        Self::in_memory(media_type, None, validity, bytes, None, SMALLEST)
    }

    /// Returns the resource under another tag than the digest of the bytes.
    #[must_use]
    pub fn tagged(self, part: &str) -> Self {
        Self {
            tag: EntityTag::Shared(part.into()),
            ..self
        }
    }

    /// Returns the same content in another form, which `convert` makes of the bytes on demand. In
    /// the tags, `letter` stands behind the opaque part of the content's tag.
    #[must_use]
    pub fn in_form(&self, media_type: &'static str, letter: char, convert: Convert) -> Self {
        // The tag is needed before the form has any bytes, so the tag is made from the tag of the
        // content.
        let part = match &self.tag {
            EntityTag::Shared(part) => part.clone(),
            EntityTag::Digests { identity, .. } => BASE64URL_NOPAD.encode(&identity.half()),
        };
        let source = ConvertedSource {
            of: Arc::clone(&self.source),
            convert,
            is_final: self.is_final(),
            made: OnceLock::new(),
        };
        Self {
            media_type,
            modified: self.modified,
            validity: self.validity.clone(),
            tag: EntityTag::Shared(format!("{part}{letter}")),
            source: Arc::new(source),
        }
    }

    fn in_memory(
        media_type: &'static str,
        modified: Option<Timestamp>,
        validity: Validity,
        bytes: Bytes,
        twin: Option<Bytes>,
        level: Compression,
    ) -> Self {
        let digest = Digest::of(&bytes);
        let source = InMemory {
            is_final: matches!(validity, Validity::Forever),
            level,
            identity: (bytes, digest),
            gzip: twin
                .map(with_digest)
                .map_or_else(OnceLock::new, OnceLock::from),
        };
        let tag = EntityTag::of_digest(&digest);
        Self::new(media_type, modified, validity, tag, Arc::new(source))
    }

    /// Returns whether the bytes are final and durable.
    pub fn is_final(&self) -> bool {
        matches!(self.validity, Validity::Forever)
    }

    /// Returns whether the resource is still the one at the URL.
    pub fn is_current(&self) -> bool {
        match &self.validity {
            Validity::Forever => true,
            Validity::Until(moment) => Instant::now() < *moment,
            Validity::Generation(generation) => generation.is_current(),
            Validity::Once => false,
        }
    }

    /// Returns whether [`is_current`](Self::is_current) can find out later that the resource is
    /// unchanged.
    pub fn may_be_kept(&self) -> bool {
        !matches!(self.validity, Validity::Once)
    }

    /// Returns the opaque part of the entity tag in a coding, without its quotes.
    pub fn tag(&self, coding: Coding) -> String {
        self.tag.in_coding(coding)
    }

    /// Returns the source of the bytes.
    pub fn source(&self) -> &Arc<dyn ByteSource> {
        &self.source
    }
}

/// Function that makes another form of some bytes.
pub(crate) type Convert = fn(Bytes) -> Result<Bytes, ReadError>;

/// Another form of a source's bytes.
#[derive(Debug)]
struct ConvertedSource {
    of: Arc<dyn ByteSource>,
    convert: Convert,
    is_final: bool,
    made: OnceLock<InMemory>,
}

impl ByteSource for ConvertedSource {
    fn at_once(&self, coding: Coding) -> Option<CodedBytes> {
        // No conversion here, because a conversion takes time and may read from the disk.
        self.made.get()?.at_once(coding)
    }

    fn read(&self, coding: Coding) -> Result<CodedBytes, ReadError> {
        if let Some(made) = self.made.get() {
            return made.read(coding);
        }
        // The form is made outside of `get_or_init`, which accepts no function that can fail. If
        // two readers convert at the same time, one result stays.
        let bytes = (self.convert)(self.of.read(Coding::Identity)?.bytes)?;
        let made = InMemory {
            is_final: self.is_final,
            level: Compression::fast(),
            identity: with_digest(bytes),
            gzip: OnceLock::new(),
        };
        self.made.get_or_init(|| made).read(coding)
    }

    fn held_bytes(&self) -> usize {
        // The source of the content keeps its own bytes as well.
        self.of.held_bytes() + self.made.get().map_or(0, ByteSource::held_bytes)
    }
}

/// Bytes in both codings; the compressed ones are made on first demand.
#[derive(Debug)]
struct InMemory {
    is_final: bool,
    level: Compression,
    identity: (Bytes, Digest),
    gzip: OnceLock<(Bytes, Digest)>,
}

fn with_digest(bytes: Bytes) -> (Bytes, Digest) {
    let digest = Digest::of(&bytes);
    (bytes, digest)
}

impl InMemory {
    fn coded_content(&self, (bytes, digest): &(Bytes, Digest)) -> CodedBytes {
        CodedBytes {
            bytes: bytes.clone(),
            digest: self.is_final.then_some(*digest),
        }
    }
}

impl ByteSource for InMemory {
    fn at_once(&self, coding: Coding) -> Option<CodedBytes> {
        let coded = match coding {
            Coding::Identity => Some(&self.identity),
            Coding::Gzip => self.gzip.get(),
        };
        coded.map(|coded| self.coded_content(coded))
    }

    fn read(&self, coding: Coding) -> Result<CodedBytes, ReadError> {
        Ok(match coding {
            Coding::Identity => self.coded_content(&self.identity),
            Coding::Gzip => {
                let compress = || with_digest(gzip(&self.identity.0, self.level).into());
                self.coded_content(self.gzip.get_or_init(compress))
            }
        })
    }

    fn held_bytes(&self) -> usize {
        // Twice the length, because the compressed bytes are usually not longer than the others.
        2 * self.identity.0.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a generation lasts until a watched counter has grown, and no longer, however often the
    /// generation is checked.
    #[test]
    fn a_generation_lasts_until_what_it_watches_grows() {
        const AFTER: usize = 3;
        let counters: Arc<[AtomicU64]> =
            std::iter::repeat_with(AtomicU64::default).take(4).collect();
        let grow = |index: usize| {
            for index in [index, AFTER] {
                let counter = counters.get(index).unwrap();
                counter.fetch_add(1, Ordering::Release);
            }
        };
        grow(0);
        let generation = Generation::of_all(&counters, vec![0, 1], AFTER);
        for _ in 0..3 {
            assert!(generation.is_current() && generation.clone().is_current());
            grow(2);
        }
        grow(1);
        assert!(!generation.is_current() && !generation.clone().is_current());
        grow(2);
        assert!(!generation.is_current());
        let of_one = Generation::of(&counters, 2);
        assert!(of_one.is_current());
        grow(2);
        assert!(!of_one.is_current());
    }
}
