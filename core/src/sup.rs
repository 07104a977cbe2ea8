//! SUP, the Simple Update Protocol: one small document lists which of many feeds have changed.
//!
//! Pure, and for ever: SUP-IDs stand in settings, and archived SUP documents are frozen bytes.
//! Rules SUP-F, SUP-A.
//!
//! A feed announces a [`SupAddress`]: the URL of the publisher's SUP document, and the feed's id
//! there. The document ([`SupDocument`]) lists pairs of a feed's id and an update id.

use std::{fmt, str};

use serde::{Deserialize, Serialize};
use url::Url;

use crate::{
    digest::Digest,
    feed::FeedKey,
    limits::{LINK_BYTES_MAX, SUP_ID_BYTES_MAX},
    timestamp::Timestamp,
};

mod document;
pub mod rules;

pub use document::{Heading, InvalidSup, SupDocument};

/// Header field with a feed's SUP address (rule SUP-A1), in lower case.
pub const SUP_HEADER: &str = "x-sup-id";
/// Relation of the link to the same address (rule SUP-A2).
pub const SUP_REL: &str = "http://api.friendfeed.com/2008/03#sup";
/// Relation of the same link in the Internet-Draft (rule SUP-A3).
pub const SUP_DRAFT_REL: &str = "updates";
/// Name of the document about the public feeds, without the extension; archived documents are in a
/// folder of that name.
pub const SUP: &str = "sup";
/// Name of the document about feeds that are closed, or were closed once. Each reader finds in this
/// document only the feeds that this reader may see.
pub const SUP_CLOSED: &str = "sup-closed";
/// Name of the document about timelines that everybody may see. One entry of a popular feed is an
/// update of each timeline that follows the feed, so timelines are not in [`SUP`].
pub const SUP_TIMELINES: &str = "sup-timelines";
/// Name of the document about closed timelines. Each reader finds in this document only the
/// timelines that this reader may see.
pub const SUP_TIMELINES_CLOSED: &str = "sup-timelines-closed";
/// The media type of a SUP document.
pub const SUP_TYPE: &str = "application/json";

const ALPHABET: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";

/// Number of digits in [`ALPHABET`].
const BASE: i64 = 36;
/// Number of seconds after which update ids repeat: 36⁵, a year and eleven months.
const UPDATE_IDS: i64 = BASE.pow(5);

/// Id of a Simplefeed feed in SUP documents: 8 characters of `[a-z0-9]`, which reveal nothing about
/// the feed. Two feeds may share an id (rule SUP-F6): an update of one feed then makes watchers
/// look at the other feed in vain.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SupId([u8; 8]);

/// Reason why a text is not a SUP-ID of Simplefeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a SUP-ID is 8 characters of a-z and 0-9")]
pub struct InvalidSupId;

impl SupId {
    /// Returns an id that is made of random bits.
    pub fn of_bits(mut bits: u128) -> Self {
        Self([0; 8].map(|_: u8| {
            let digit = usize::try_from(bits % 36).expect("a remainder is small");
            bits /= 36;
            *ALPHABET.get(digit).expect("there are 36 digits")
        }))
    }

    /// Returns the id of a feed without an id in the settings: a function of the feed's key that
    /// does not lead back to the key.
    pub fn of_feed(feed: FeedKey) -> Self {
        // A hash does not lead back to the key, and gives every server the same id for the feed.
        let digest = Digest::of_parts(&[b"simplefeed sup\n", feed.0.as_bytes()]);
        Self::of_bits(u128::from_be_bytes(digest.half()))
    }

    /// Returns the id, or `None` if `text` is not 8 characters of `[a-z0-9]`.
    pub fn parse(text: &str) -> Option<Self> {
        let id: [u8; 8] = text.as_bytes().try_into().ok()?;
        id.iter()
            .all(|byte| ALPHABET.contains(byte))
            .then_some(Self(id))
    }

    /// Returns the id as text.
    pub fn as_str(&self) -> &str {
        str::from_utf8(&self.0).expect("digits and letters are text")
    }
}

impl fmt::Display for SupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for SupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SupId({self})")
    }
}

impl TryFrom<String> for SupId {
    type Error = InvalidSupId;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        Self::parse(&text).ok_or(InvalidSupId)
    }
}

impl From<SupId> for String {
    fn from(id: SupId) -> Self {
        id.as_str().into()
    }
}

/// Returns the id of a feed's updates in one second (counted from 1970): 5 characters, the second
/// modulo 36⁵, in base 36.
///
/// All updates of a second share the id. The shared id hides no update, because no published
/// document ends within a second: a document that lists the pair covers all updates of that second.
///
/// # Examples
///
/// ```
/// use simplefeed_core::sup::update_id;
///
/// assert_eq!(update_id(1_231_204_605), "d0zjx");
/// assert!(update_id(1_231_204_605) < update_id(1_231_204_606));
/// ```
pub fn update_id(second: i64) -> String {
    String::from_utf8_lossy(&update_digits(second)).into_owned()
}

/// Returns the value of the last digit of [`update_id`], 0 to 35.
pub fn last_digit(second: i64) -> i64 {
    second.rem_euclid(BASE)
}

fn update_digits(second: i64) -> [u8; 5] {
    // Seconds before 1970 wrap round, too, so that every second has an id.
    let mut rest = second.rem_euclid(UPDATE_IDS);
    let mut digits = [b'0'; 5];
    // The loop sets the last digit first.
    for digit in digits.iter_mut().rev() {
        let value = usize::try_from(last_digit(rest)).expect("a remainder is small");
        *digit = *ALPHABET.get(value).expect("there are 36 digits");
        rest /= BASE;
    }
    digits
}

/// Returns whether `text` is legal as an id in any publisher's SUP document (rule SUP-F6).
pub fn is_token(text: &str) -> bool {
    let legal = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    (1..=SUP_ID_BYTES_MAX).contains(&text.len()) && text.bytes().all(legal)
}

/// Address under which a SUP document lists a feed.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SupAddress {
    /// URL of the SUP document, absolute, without a fragment.
    pub document: Url,
    /// The feed's id in that document.
    pub id: Box<str>,
}

impl SupAddress {
    /// Parses the announcement of a feed that was retrieved from `base`: a URL, `#` and an id (rule
    /// SUP-A1). Returns `None` for anything else.
    ///
    /// # Examples
    ///
    /// ```
    /// use simplefeed_core::sup::SupAddress;
    ///
    /// let base = "http://mysite.com/feed".parse()?;
    /// let address = SupAddress::parse("http://mysite.com/sup.json#276b6c46", &base).unwrap();
    /// assert_eq!(address.document.as_str(), "http://mysite.com/sup.json");
    /// assert_eq!(&*address.id, "276b6c46");
    /// assert_eq!(SupAddress::parse("http://mysite.com/sup.json", &base), None);
    /// # Ok::<(), url::ParseError>(())
    /// ```
    pub fn parse(text: &str, base: &Url) -> Option<Self> {
        let (document, id) = text.trim().split_once('#')?;
        let document = base.join(document).ok()?;
        // A watcher must never be led to another scheme, such as that of local files.
        let fits = matches!(document.scheme(), "http" | "https")
            && document.as_str().len() <= LINK_BYTES_MAX
            && is_token(id);
        fits.then(|| Self {
            document,
            id: id.into(),
        })
    }
}

/// Announcement of a SUP document in a response about a feed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Announcement {
    /// The response has no announcement, which says nothing: a 304 without the header field.
    #[default]
    Untold,
    /// The feed has no SUP document.
    Nowhere,
    /// The SUP document at this address lists the feed.
    At(SupAddress),
}

impl From<Option<SupAddress>> for Announcement {
    fn from(address: Option<SupAddress>) -> Self {
        address.map_or(Self::Nowhere, Self::At)
    }
}

/// Returns a whole second as RFC 3339 text without a fraction, the form of SUP documents.
fn second_text(second: i64) -> String {
    // A second out of range gives the nearest instant that has a text.
    let micros = second.saturating_mul(1_000_000);
    let text = Timestamp::from_micros(micros).to_string();
    let whole = text.split_once('.').map_or(&*text, |(whole, _)| whole);
    format!("{whole}Z")
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    #[test]
    fn an_id_is_8_characters_and_comes_back() {
        for bits in [0, 1, 35, 36, u128::MAX, 0x1234_5678_9abc_def0] {
            let id = SupId::of_bits(bits);
            assert_eq!(SupId::parse(id.as_str()), Some(id));
            assert!(is_token(id.as_str()));
        }
        for bad in [
            "",
            "abcdefg",
            "abcdefghi",
            "ABCDEFGH",
            "abc-efgh",
            "abcdefgé",
        ] {
            assert_eq!(SupId::parse(bad), None, "{bad}");
        }
    }

    /// Golden: consumers remember these ids, and frozen documents hold them.
    #[test]
    fn the_id_of_a_feed_that_has_none_is_for_ever() {
        let feed = FeedKey(Uuid::from_u128(0xff31_a040_75bc_11e2_bcfd_0800_200c_9a66));
        assert_eq!(SupId::of_feed(feed).as_str(), "119scx0k");
        assert_ne!(SupId::of_feed(FeedKey(Uuid::nil())), SupId::of_feed(feed));
    }

    #[test]
    fn update_ids_have_a_fixed_width_and_increase() {
        assert_eq!(update_id(0), "00000");
        assert_eq!(update_id(35), "0000z");
        assert_eq!(update_id(UPDATE_IDS - 1), "zzzzz");
        assert_eq!(update_id(UPDATE_IDS), "00000");
        assert_eq!(update_id(-1), "zzzzz");
        let ids: Vec<String> = (1_700_000_000..1_700_001_000).map(update_id).collect();
        assert!(ids.is_sorted() && ids.iter().all(|id| id.len() == 5));
    }

    /// SUP-A1 and SUP-F6.
    #[test]
    fn an_address_is_split_at_the_first_hash() {
        let base: Url = "https://example.org/feeds/a/recent.atom".parse().unwrap();
        let parse = |text| SupAddress::parse(text, &base);
        let address = parse(" ../../sup.json?seconds=60#ab-1 ").unwrap();
        assert_eq!(
            address.document.as_str(),
            "https://example.org/sup.json?seconds=60"
        );
        assert_eq!(&*address.id, "ab-1");
        for bad in [
            "",
            "#",
            "https://example.org/sup.json",
            "https://example.org/sup.json#",
            "https://example.org/sup.json#a#b",
            "https://example.org/sup.json#a%20b",
            "ftp://example.org/sup.json#a",
            "mailto:a@b#c",
        ] {
            assert_eq!(parse(bad), None, "{bad}");
        }
        let [longest, longer] = [128, 129].map(|length| format!("/s#{}", "a".repeat(length)));
        assert_eq!(parse(&longer), None);
        assert!(parse(&longest).is_some());
    }
}
