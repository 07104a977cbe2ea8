//! Vocabulary: names, positions and numbers of feeds, entries, documents and commits.
//!
//! Pure. Each kind of number has a separate type, so that a position cannot be passed for a
//! document's number.

use std::{borrow::Borrow, fmt, num::NonZeroU64, sync::Arc};

use serde::{Deserialize, Serialize};
use smol_str::SmolStr;
use uuid::Uuid;

use crate::{
    limits::{ENTRY_ID_BYTES_MAX, FEED_NAME_BYTES_MAX},
    timestamp::Timestamp,
    xml::is_char,
};

/// The name of a feed, a segment of the feed's URL: `[a-z0-9][a-z0-9._-]{0,127}`.
///
/// # Examples
///
/// ```
/// use simplefeed_core::feed::FeedName;
///
/// assert!(FeedName::parse("orders-2026.eu").is_some());
/// assert!(FeedName::parse("Orders").is_none());
/// assert!(FeedName::parse("../etc").is_none());
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct FeedName(SmolStr);

/// Reason why a text is not a feed name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a feed name matches [a-z0-9][a-z0-9._-]{{0,127}}")]
pub struct InvalidFeedName;

impl FeedName {
    /// Returns the name, or `None` if `text` does not match `[a-z0-9][a-z0-9._-]{0,127}`.
    pub fn parse(text: &str) -> Option<Self> {
        let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        // A first character such as `.` could make the name `..`, or the name of a hidden file.
        let first = text.bytes().next().is_some_and(plain);
        let rest = text
            .bytes()
            .all(|byte| plain(byte) || b"._-".contains(&byte));
        (first && rest && text.len() <= FEED_NAME_BYTES_MAX).then(|| Self(text.into()))
    }

    /// Returns the name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Borrow<str> for FeedName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for FeedName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for FeedName {
    type Error = InvalidFeedName;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        Self::parse(&text).ok_or(InvalidFeedName)
    }
}

impl std::str::FromStr for FeedName {
    type Err = InvalidFeedName;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::parse(text).ok_or(InvalidFeedName)
    }
}

impl From<FeedName> for String {
    fn from(name: FeedName) -> Self {
        name.0.into()
    }
}

/// Set of feeds: one feed, by name, or all feeds whose names begin with the text before a final
/// `*`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct FeedPattern {
    beginning: String,
    is_exact: bool,
}

impl FeedPattern {
    /// Returns the pattern of a text, or `None` if no feed can match the text.
    pub fn parse(text: &str) -> Option<Self> {
        let beginning = text.strip_suffix('*').unwrap_or(text);
        // The text before `*` must be a possible beginning of a name, or no feed could ever match.
        let can_match = beginning.is_empty() || FeedName::parse(beginning).is_some();
        let is_exact = beginning == text;
        (can_match && !text.is_empty()).then(|| Self {
            beginning: beginning.into(),
            is_exact,
        })
    }

    /// Returns the pattern that all feeds match.
    pub fn all() -> Self {
        Self {
            beginning: String::new(),
            is_exact: false,
        }
    }

    /// Returns the pattern that only the feed `name` matches.
    pub fn of(name: &FeedName) -> Self {
        Self {
            beginning: name.as_str().into(),
            is_exact: true,
        }
    }

    /// Returns the name of the only feed that can match; `None` if several feeds can match.
    pub fn exact(&self) -> Option<FeedName> {
        FeedName::parse(&self.beginning).filter(|_| self.is_exact)
    }

    /// Returns whether every feed that matches `other` matches this pattern.
    pub fn covers(&self, other: &Self) -> bool {
        if self.is_exact {
            return self == other;
        }
        other.beginning.starts_with(&self.beginning)
    }

    /// Returns the beginning of the names that match.
    pub fn beginning(&self) -> &str {
        &self.beginning
    }

    /// Returns whether a feed matches.
    pub fn matches(&self, feed: &FeedName) -> bool {
        let rest = feed.as_str().strip_prefix(&*self.beginning);
        rest.is_some_and(|rest| rest.is_empty() || !self.is_exact)
    }
}

/// The text is no [`FeedPattern`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a pattern is the name of a feed, or the beginning of names with a star behind")]
pub struct InvalidPattern;

impl TryFrom<String> for FeedPattern {
    type Error = InvalidPattern;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        Self::parse(&text).ok_or(InvalidPattern)
    }
}

impl From<FeedPattern> for String {
    fn from(pattern: FeedPattern) -> Self {
        pattern.to_string()
    }
}

impl fmt::Display for FeedPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let star = if self.is_exact { "" } else { "*" };
        write!(f, "{}{star}", self.beginning)
    }
}

/// Returns whether `text` can be an `atom:id`: an absolute IRI without white space or control
/// characters.
///
/// RFC 4287, 4.2.6 and rule A-2. Of an IRI's parts, only the scheme is checked, because ids are
/// compared character by character and never dereferenced.
pub fn is_absolute_iri(text: &str) -> bool {
    let forbidden = |c: char| c.is_whitespace() || c.is_control() || !is_char(c);
    has_scheme(text) && !text.contains(forbidden)
}

/// Returns whether `reference` begins with a URI scheme (RFC 3986, 3.1) and has text behind the
/// colon, hence is not relative.
pub fn has_scheme(reference: &str) -> bool {
    let Some((scheme, rest)) = reference.split_once(':') else {
        return false;
    };
    let mut bytes = scheme.bytes();
    bytes.next().is_some_and(|byte| byte.is_ascii_alphabetic())
        && bytes.all(|byte| byte.is_ascii_alphanumeric() || b"+.-".contains(&byte))
        && !rest.is_empty()
}

/// The `atom:id` of an entry, compared character by character (RFC 4287, 4.2.6.1).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct EntryId(Arc<str>);

/// Reason why a text is not an `atom:id`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an id is an absolute IRI of at most {ENTRY_ID_BYTES_MAX} bytes without white space")]
pub struct InvalidId;

impl EntryId {
    /// Returns the id, or `None` if `text` is no absolute IRI, or is longer than
    /// [`ENTRY_ID_BYTES_MAX`].
    pub fn parse(text: &str) -> Option<Self> {
        (text.len() <= ENTRY_ID_BYTES_MAX && is_absolute_iri(text)).then(|| Self(text.into()))
    }

    /// Returns `urn:uuid:` followed by `uuid` in lower case.
    pub fn of_uuid(uuid: Uuid) -> Self {
        Self(uuid.urn().to_string().into())
    }

    /// Returns the id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for EntryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for EntryId {
    type Error = InvalidId;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        Self::parse(&text).ok_or(InvalidId)
    }
}

impl From<EntryId> for String {
    fn from(id: EntryId) -> Self {
        (*id.0).into()
    }
}

/// Permanent `atom:id` of a feed: `urn:uuid:…`, unless the feed was created with another id.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct FeedId(EntryId);

impl FeedId {
    /// Returns the id, under the conditions of [`EntryId::parse`].
    pub fn parse(text: &str) -> Option<Self> {
        EntryId::parse(text).map(Self)
    }

    /// Returns the id that a new feed gets: `urn:uuid:` and `uuid`.
    pub fn of_uuid(uuid: Uuid) -> Self {
        Self(EntryId::of_uuid(uuid))
    }

    /// Returns the id as text.
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }

    /// Returns the 16 bytes that represent this id in the log and in the encoding of commits. They
    /// are also the name space of entry ids that are derived from an idempotency key.
    ///
    /// The key of a lower-case `urn:uuid:` id is the UUID. The key of any other id is the version 5
    /// UUID of the id in the URL name space.
    pub fn key(&self) -> FeedKey {
        let text = self.as_str();
        let own = text
            .strip_prefix("urn:uuid:")
            .and_then(|uuid| Uuid::try_parse(uuid).ok());
        match own {
            // Another spelling of the same UUID is another id, so the two must not share a key.
            Some(uuid) if uuid.urn().to_string() == text => FeedKey(uuid),
            _ => FeedKey(Uuid::new_v5(&Uuid::NAMESPACE_URL, text.as_bytes())),
        }
    }
}

impl fmt::Display for FeedId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl TryFrom<String> for FeedId {
    type Error = InvalidId;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        Self::parse(&text).ok_or(InvalidId)
    }
}

impl From<FeedId> for String {
    fn from(id: FeedId) -> Self {
        id.0.into()
    }
}

/// The 16 bytes that represent a feed's id inside the log (see [`FeedId::key`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct FeedKey(pub Uuid);

/// The number of an entry in the feed: 0 is the oldest entry, and each new entry has the next
/// number.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Position(pub u64);

impl Position {
    /// Returns the position after this one.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// The number of a document in the feed: 1 is the oldest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct DocumentNumber(NonZeroU64);

impl DocumentNumber {
    /// Number of the first document of every feed.
    pub const OLDEST: Self = Self(NonZeroU64::MIN);

    /// Returns document `number`, or `None` for 0.
    pub fn new(number: u64) -> Option<Self> {
        NonZeroU64::new(number).map(Self)
    }

    /// Returns the number as an integer, 1 or more.
    pub fn get(self) -> u64 {
        self.0.get()
    }

    /// Returns the number after this one.
    #[must_use]
    pub fn next(self) -> Self {
        Self(
            self.0
                .checked_add(1)
                .expect("a feed has fewer than 2^64 documents"),
        )
    }

    /// Returns the number before this one, or `None` for the oldest document.
    pub fn previous(self) -> Option<Self> {
        Self::new(self.get() - 1)
    }
}

impl fmt::Display for DocumentNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Number of the time between two restorations, each of which may have lost entries. The first
/// epoch has the number 1. Each later epoch has the number of the second (since 1970) in which the
/// epoch began. If the clock is not past the number of the epoch before, the new number is the sum
/// of that number and the seconds since 2026.
///
/// A plain count is not enough, because the same backup may be restored twice, and the two
/// histories would get the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Epoch(pub u32);

impl Default for Epoch {
    fn default() -> Self {
        Self::FIRST
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl Epoch {
    /// The second in which 2026 began, counted from 1970. No log is older, so an earlier clock is
    /// wrong.
    pub const NONE_BEFORE: i64 = 1_767_225_600;

    /// The epoch of a log without restorations.
    pub const FIRST: Self = Self(1);

    /// Returns the epoch that follows this epoch and begins at `instant`; `None` if no number is
    /// left, or the second is before [`NONE_BEFORE`](Self::NONE_BEFORE).
    ///
    /// Of two epochs that follow the same epoch, the epoch that begins in a later second has the
    /// higher number. This holds if the clock is past the number of the epoch before at both
    /// beginnings, and if it is behind that number at both.
    #[must_use]
    pub fn next(self, instant: Timestamp) -> Option<Self> {
        // A clock before 2026 may begin at the same time after each start, and would give two
        // histories the same number.
        let since = instant.second() - Self::NONE_BEFORE;
        let since = u32::try_from(since).ok()?.max(1);
        match u32::try_from(instant.second()) {
            Ok(second) if second > self.0 => Some(Self(second)),
            // This case includes seconds after the year 2106, which do not fit into 32 bits.
            _ => Some(Self(self.0.checked_add(since)?)),
        }
    }

    /// Returns the second whose number, counted from 1970, is the epoch's number. The epoch began
    /// in that second, unless the clock was behind the epoch before. For the first epoch, this is
    /// the second 1 of 1970.
    pub fn began(self) -> Timestamp {
        Timestamp::from_micros(i64::from(self.0) * 1_000_000)
    }

    /// Returns whether this is the first epoch, before any restoration.
    pub fn is_first(&self) -> bool {
        *self == Self::FIRST
    }

    /// Returns the part of a file name that keeps epochs apart: empty in the first epoch.
    ///
    /// Positions and document numbers repeat after a restoration, and no URL may ever name two
    /// contents (invariant 4).
    fn name_suffix(self) -> String {
        if self.is_first() {
            String::new()
        } else {
            format!("-{}", self.0)
        }
    }
}

/// The last segment of a permanent URL without the extension: a number, and the epoch in which the
/// number was assigned.
///
/// # Examples
///
/// ```
/// use simplefeed_core::feed::{Epoch, EpochNumber};
///
/// assert_eq!(EpochNumber { number: 7, epoch: Epoch(1) }.to_string(), "7");
/// assert_eq!(EpochNumber { number: 7, epoch: Epoch(2) }.to_string(), "7-2");
/// assert_eq!(EpochNumber::parse("7-2"), Some(EpochNumber { number: 7, epoch: Epoch(2) }));
/// assert_eq!(EpochNumber::parse("07"), None);
/// assert_eq!(EpochNumber::parse("7-1"), None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EpochNumber {
    /// A document number, a position, or the number of an index block.
    pub number: u64,
    /// Epoch in which the number was assigned; the first epoch is not written.
    pub epoch: Epoch,
}

impl EpochNumber {
    /// Returns the parts of a canonical text: decimals without leading zeros, and no epoch if the
    /// epoch is 1.
    pub fn parse(text: &str) -> Option<Self> {
        let (number, epoch) = text.split_once('-').unwrap_or((text, "1"));
        let numbered = Self {
            number: number.parse().ok()?,
            epoch: Epoch(epoch.parse().ok()?),
        };
        // Only the server's own spelling names a resource.
        (numbered.to_string() == text && numbered.epoch >= Epoch::FIRST).then_some(numbered)
    }
}

impl fmt::Display for EpochNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.number, self.epoch.name_suffix())
    }
}

/// Permanent name of a document: the number, and the epoch in which the document was opened or
/// renamed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct DocumentName {
    /// Number of the document in the feed, from 1; numbers repeat after a restoration.
    pub number: DocumentNumber,
    /// Epoch in which the document was opened, or the later epoch in which the open document was
    /// renamed.
    pub epoch: Epoch,
}

impl DocumentName {
    /// Returns the name that the canonical text `stem` stands for, such as `12` or `12-2`.
    pub fn of_stem(stem: &str) -> Option<Self> {
        let EpochNumber { number, epoch } = EpochNumber::parse(stem)?;
        let number = DocumentNumber::new(number)?;
        Some(Self { number, epoch })
    }

    /// Returns the name of the document whose permanent URL ends with the segment `name`, such as
    /// `12.atom` or `12-2.atom`.
    pub fn of_file(name: &str) -> Option<Self> {
        Self::of_stem(name.strip_suffix(".atom")?)
    }
}

impl fmt::Display for DocumentName {
    /// Writes the last segment of the document's permanent URL, such as `12.atom` or `12-2.atom`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}.atom",
            EpochNumber {
                number: self.number.get(),
                epoch: self.epoch
            }
        )
    }
}

/// The number of a commit: 1 is the first; 0 stands for "no commit yet".
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct CommitNumber(pub u64);

impl CommitNumber {
    /// Returns the number after this one.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl fmt::Display for CommitNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// The revision of a feed's settings: 1 at creation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Revision(pub u32);

impl Revision {
    /// The revision of a new feed.
    pub const FIRST: Self = Self(1);

    /// Returns the revision after this one.
    #[must_use]
    pub fn next(self) -> Self {
        Self(
            self.0
                .checked_add(1)
                .expect("settings change fewer than 2^32 times"),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_feed_name_is_one_safe_path_segment() {
        let longest = "a".repeat(128);
        for good in ["a", "0", "a.b", "a..b", "a-_.", longest.as_str()] {
            assert!(FeedName::parse(good).is_some(), "{good}");
        }
        let too_long = "a".repeat(129);
        for bad in [
            "",
            ".",
            "..",
            "-a",
            "_a",
            "A",
            "a/b",
            "a%2f",
            "é",
            "a b",
            too_long.as_str(),
        ] {
            assert!(FeedName::parse(bad).is_none(), "{bad}");
        }
    }

    /// RFC 4287, 4.2.6.1: the first four of these ids differ, and so do the last three.
    #[test]
    fn ids_are_compared_character_by_character() {
        let ids = [
            "http://www.example.org/thing",
            "http://www.example.org/Thing",
            "http://www.EXAMPLE.org/thing",
            "HTTP://www.example.org/thing",
            "http://www.example.com/~bob",
            "http://www.example.com/%7ebob",
            "http://www.example.com/%7Ebob",
        ];
        let distinct: std::collections::HashSet<_> =
            ids.iter().map(|id| EntryId::parse(id).unwrap()).collect();
        assert_eq!(distinct.len(), 7);
    }

    #[test]
    fn an_id_is_absolute_and_free_of_white_space() {
        for good in [
            "urn:a",
            "tag:a,2005:b c".split(' ').next().unwrap(),
            "http://é/ü",
            "a+b.c-d:x",
        ] {
            assert!(EntryId::parse(good).is_some(), "{good}");
        }
        for bad in [
            "",
            "a",
            "/a",
            "urn:",
            ":a",
            "1a:b",
            "urn:a b",
            "urn:a\n",
            "urn:\u{a0}a",
            "urn:\u{ffff}",
        ] {
            assert!(EntryId::parse(bad).is_none(), "{bad}");
        }
    }

    #[test]
    fn a_feed_key_is_the_uuid_or_derived() {
        let uuid = Uuid::parse_str("ff31a040-75bc-11e2-bcfd-0800200c9a66").unwrap();
        assert_eq!(FeedId::of_uuid(uuid).key(), FeedKey(uuid));
        let upper = FeedId::parse("urn:uuid:FF31A040-75BC-11E2-BCFD-0800200C9A66").unwrap();
        assert_ne!(upper.key(), FeedKey(uuid), "another spelling is another id");
        let foreign = FeedId::parse("http://example.org/feed").unwrap();
        assert_eq!(foreign.key().0.get_version_num(), 5);
    }

    #[test]
    fn only_canonical_numbers_name_a_document() {
        for bad in [
            "",
            "-",
            "0x1",
            "01",
            "+1",
            "1-",
            "1-0",
            "1-1",
            "1-02",
            "1-2-3",
            "18446744073709551616",
        ] {
            assert_eq!(EpochNumber::parse(bad), None, "{bad}");
        }
        assert_eq!(
            EpochNumber::parse("0"),
            Some(EpochNumber {
                number: 0,
                epoch: Epoch(1)
            })
        );
    }
}
