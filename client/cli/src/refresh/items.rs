//! Items in the entries of a feed.
//!
//! Pure.

use std::str::FromStr;

use serde_json::value::RawValue;
use simplefeed_client::{Delivery, Timestamp, refresher::RefreshItem};
use simplefeed_core::event::Event;

use super::answers::{raw_at, text_of};

/// Numbers above this bound count as milliseconds: as seconds, the bound is in the year 5138.
const SECONDS_MAX: i64 = 100_000_000_000;

/// Part of an entry: an element by the Atom name, or a JSON pointer into the content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ItemPart {
    Id,
    Title,
    Published,
    Updated,
    Content(String),
}

impl FromStr for ItemPart {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Ok(match text {
            "id" => Self::Id,
            "title" => Self::Title,
            "published" => Self::Published,
            "updated" => Self::Updated,
            pointer if pointer.starts_with('/') => Self::Content(pointer.to_owned()),
            _ => {
                return Err(
                    "it is one of id, title, published and updated, or a JSON pointer into the content, as /post/id"
                        .to_owned(),
                );
            }
        })
    }
}

impl ItemPart {
    fn text_at(&self, event: &Event) -> Option<String> {
        match self {
            Self::Id => event.id.clone(),
            Self::Title => event.title.clone(),
            Self::Published => event.published.clone(),
            Self::Updated => event.updated.clone(),
            Self::Content(pointer) => {
                let content: &RawValue = event.content.as_deref()?;
                text_of(raw_at(content, pointer)?)
            }
        }
    }
}

/// Where an entry has an item's id and birth.
#[derive(Clone, Debug)]
pub(super) struct ItemParts {
    pub(super) id: ItemPart,
    /// `None` stands for `published`, or else `updated`.
    pub(super) born: Option<ItemPart>,
}

impl ItemParts {
    /// Returns the item of an entry.
    pub(super) fn item(&self, delivery: &Delivery) -> anyhow::Result<RefreshItem> {
        let event = delivery.event()?;
        let id = self.id.text_at(&event).unwrap_or_default();
        let born = match &self.born {
            Some(place) => place.text_at(&event),
            None => event.published.clone().or_else(|| event.updated.clone()),
        };
        let born = born.as_deref().and_then(parse_instant);
        let born = born.ok_or_else(|| anyhow::anyhow!("it has no time of birth at --born"))?;
        if id.is_empty() {
            anyhow::bail!("it has no id of an item at --item-id");
        }
        let item = RefreshItem::new(id, born)?;
        let related = related_url(&event).or_else(|| delivery.document().map(ToString::to_string));
        Ok(match related {
            Some(url) => item.related(url),
            None => item,
        })
    }
}

/// Returns the URL of the subject of an entry: the source, or else the entry's page.
fn related_url(event: &Event) -> Option<String> {
    let links = event.links.as_deref().unwrap_or_default();
    let link = |wanted: &str| {
        let mut links = links.iter();
        // A link without a relation is `alternate` (RFC 4287, 4.2.7.2).
        links.find(|link| link.rel.as_deref().unwrap_or("alternate") == wanted)
    };
    let link = link("via").or_else(|| link("alternate"))?;
    Some(link.href.clone())
}

/// Reads an instant: a date-time, or seconds or milliseconds after 1970.
fn parse_instant(text: &str) -> Option<Timestamp> {
    if let Some(instant) = Timestamp::parse(text) {
        return Some(instant);
    }
    let number: i64 = text.parse().ok()?;
    let micros = if number > SECONDS_MAX {
        1_000
    } else {
        1_000_000
    };
    // A number that does not fit is no instant.
    Some(Timestamp::from_micros(number.checked_mul(micros)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instant_is_a_date_time_or_a_number() {
        let expected = Timestamp::parse("2026-01-01T00:00:00Z");
        assert_eq!(parse_instant("2026-01-01T01:00:00+01:00"), expected);
        assert_eq!(parse_instant("1767225600"), expected);
        assert_eq!(parse_instant("1767225600000"), expected);
        for text in ["", "yesterday", "1.5", "9223372036854775807"] {
            assert_eq!(parse_instant(text), None, "{text}");
        }
    }

    #[test]
    fn places_are_names_or_pointers() {
        let event: Event = serde_json::from_str(
            r#"{"id":"urn:1","title":"T","content":{"post":{"id":9007199254740993}}}"#,
        )
        .unwrap();
        let text = |place: &str| place.parse::<ItemPart>().unwrap().text_at(&event);
        assert_eq!(text("/post/id").as_deref(), Some("9007199254740993"));
        assert_eq!(text("id").as_deref(), Some("urn:1"));
        assert_eq!(text("/post"), None);
        assert!(
            "post/id"
                .parse::<ItemPart>()
                .unwrap_err()
                .contains("JSON pointer")
        );
    }

    #[test]
    fn the_source_of_an_entry_goes_before_its_page() {
        let event: Event = serde_json::from_str(
            r#"{"links":[{"href":"https://a.example/"},{"rel":"via","href":"https://b.example/"}]}"#,
        )
        .unwrap();
        assert_eq!(related_url(&event).as_deref(), Some("https://b.example/"));
    }
}
