//! Settings that only timelines have: kind, owner, and the size of embedded entries.
//!
//! Pure. The chain hash covers the JSON of these types, so the form of the JSON never changes.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

use super::Settings;
use crate::{
    feed::FeedName,
    limits::{EMBED_BYTES_DEFAULT, EMBED_BYTES_MAX, TIMELINE_DOCUMENT_BYTES_MAX},
    refusal::Refusal,
};

/// Whether a timeline has the entries of the owner's feed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OwnEntries {
    /// The timeline has none of these entries, whatever feeds are followed.
    #[default]
    Exclude,
    /// The timeline has these entries, as if the owner's feed were followed from the timeline's
    /// creation on.
    Include,
}

/// Choices that are made at the creation of a timeline, and never change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimelineKind {
    /// Version of the rule by which the timeline's documents are cut.
    pub rule: u32,
    /// Feed of the timeline's owner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<FeedName>,
    /// Whether the timeline has the owner's entries.
    #[serde(default)]
    pub own: OwnEntries,
}

impl TimelineKind {
    /// The newest version of the rule by which documents are cut.
    pub const RULE: u32 = 1;

    /// Returns the kind of a timeline that is created now.
    pub fn new(owner: Option<FeedName>, own: OwnEntries) -> Self {
        let rule = Self::RULE;
        Self { rule, owner, own }
    }
}

/// How much of each entry the documents of a timeline contain.
///
/// The JSON form is a number of bytes, or `"all"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Embed {
    /// Entries of at most this number of bytes as a whole, and larger entries with a link instead
    /// of the content.
    Bytes(u32),
    /// Every entry as a whole.
    All,
}

impl Default for Embed {
    fn default() -> Self {
        Self::Bytes(EMBED_BYTES_DEFAULT)
    }
}

impl Embed {
    /// Returns whether a timeline contains an entry as a whole if the fragment has `bytes` bytes.
    pub fn takes(self, bytes: usize) -> bool {
        match self {
            Self::Bytes(max) => u32::try_from(bytes).is_ok_and(|bytes| bytes <= max),
            Self::All => true,
        }
    }
}

const ALL: &str = "all";

impl Serialize for Embed {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Bytes(bytes) => serializer.serialize_u32(*bytes),
            Self::All => serializer.serialize_str(ALL),
        }
    }
}

impl<'de> Deserialize<'de> for Embed {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = serde_json::Value::deserialize(deserializer)?;
        if value.as_str() == Some(ALL) {
            return Ok(Self::All);
        }
        let bytes = value.as_u64().and_then(|bytes| u32::try_from(bytes).ok());
        let bytes = bytes.filter(|bytes| (1..=EMBED_BYTES_MAX).contains(bytes));
        let wrong = || {
            D::Error::custom(format!(
                "embed is neither \"all\" nor 1 to {EMBED_BYTES_MAX}"
            ))
        };
        bytes.ok_or_else(wrong).map(Self::Bytes)
    }
}

/// Returns the bounds of a timeline's document in entries and in bytes of fragments; `entries` and
/// `bytes` are the chosen or proposed bounds.
pub(super) fn bounds(embed: Embed, entries: u32, bytes: u64) -> (u32, u64) {
    match embed {
        Embed::All => (entries, bytes),
        // Defaults of a server may ask for more entries than this timeline may have in a document.
        Embed::Bytes(embed) => (entries.min(most_entries(embed)), u64::MAX),
    }
}

fn most_entries(embed: u32) -> u32 {
    (TIMELINE_DOCUMENT_BYTES_MAX / embed.max(1)).max(1)
}

pub(super) fn check(settings: &Settings) -> Result<(), Refusal> {
    let choices = &settings.choices;
    let refused = |detail: String, element| {
        Err(Refusal::unacceptable(detail, "settings").at_element(element))
    };
    if !settings.is_timeline() {
        return match choices.embed {
            Some(_) => refused("embed is a setting of timelines only".into(), "embed"),
            None => Ok(()),
        };
    }
    if choices.alternate_links.is_some() {
        let detail = "a timeline adds nothing to entries, and has no alternate_links";
        return refused(detail.into(), "alternate_links");
    }
    match settings.embed() {
        Embed::All => Ok(()),
        Embed::Bytes(_) if choices.document_bytes.is_some() => refused(
            "a timeline has document_bytes only with embed \"all\"".into(),
            "document_bytes",
        ),
        Embed::Bytes(embed) => match choices.document_entries {
            Some(entries) if entries > most_entries(embed) => refused(
                format!(
                    "with embed {embed}, document_entries is at most {}",
                    most_entries(embed)
                ),
                "document_entries",
            ),
            _ => Ok(()),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn embed_is_a_number_or_all() {
        for (text, embed) in [
            ("1", Some(Embed::Bytes(1))),
            ("16384", Some(Embed::default())),
            ("\"all\"", Some(Embed::All)),
            ("0", None),
            ("1048577", None),
            ("1.5", None),
            ("-1", None),
            ("\"All\"", None),
            ("null", None),
        ] {
            assert_eq!(serde_json::from_str(text).ok(), embed, "{text}");
            let again = embed.map(|embed| serde_json::to_string(&embed).unwrap());
            assert!(again.is_none_or(|again| again == text), "{text}");
        }
    }

    /// A document of a timeline has a bound in bytes, whatever defaults a server has.
    #[test]
    fn a_document_has_a_bound_in_bytes() {
        assert_eq!(bounds(Embed::Bytes(16_384), 100, 5), (100, u64::MAX));
        assert_eq!(bounds(Embed::Bytes(1_048_576), 100, 5), (32, u64::MAX));
        assert_eq!(bounds(Embed::All, 100, 5), (100, 5));
    }
}
