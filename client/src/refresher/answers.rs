//! Answers of a provider: the parts that count, and the event that is published.
//!
//! Pure.

use std::collections::BTreeMap;

use serde_json::value::RawValue;
use simplefeed_core::{
    digest::Digest,
    event::{Event, Link, canonical_json},
    refresh::{EventContent, ItemEvent, Value},
};

/// Returns the digests of an answer. `ignored` are JSON pointers to parts whose change does not
/// count.
pub(super) fn value_of(answer: &RawValue, ignored: &[String]) -> Value {
    let exact = Digest::of(answer.get().as_bytes());
    let mut rest = answer.to_owned();
    for pointer in ignored {
        // A pointer begins with `/`, so the first part is empty (RFC 6901, 3).
        let names: Vec<String> = pointer.split('/').skip(1).map(unescape_pointer).collect();
        rest = value_without(&rest, &names).unwrap_or(rest);
    }
    // The order of members does not count, and numbers keep all their digits. An answer that has a
    // member twice is compared by the exact text.
    let counted = canonical_json(rest.get()).map_or(exact, |text| Digest::of(text.as_bytes()));
    Value { counted, exact }
}

/// Returns a name in a JSON pointer without its escapes.
fn unescape_pointer(name: &str) -> String {
    // In this order, so that `~01` becomes `~1` and not `/` (RFC 6901, 4).
    name.replace("~1", "/").replace("~0", "~")
}

/// Returns a value without the part to which `names` lead; `None` if there is no such part. If that
/// part is an item of an array, the item becomes `null`.
fn value_without(value: &RawValue, names: &[String]) -> Option<Box<RawValue>> {
    let (name, below) = names.split_first()?;
    // Members stay text: a parsed number would lose digits.
    if let Ok(mut members) = serde_json::from_str::<BTreeMap<String, Box<RawValue>>>(value.get()) {
        let member = members.remove(name)?;
        if !below.is_empty() {
            members.insert(name.clone(), value_without(&member, below)?);
        }
        return serde_json::value::to_raw_value(&members).ok();
    }
    let mut items: Vec<Box<RawValue>> = serde_json::from_str(value.get()).ok()?;
    let item = items.get_mut(name.parse::<usize>().ok()?)?;
    *item = if below.is_empty() {
        RawValue::from_string("null".to_owned()).ok()?
    } else {
        value_without(item, below)?
    };
    serde_json::value::to_raw_value(&items).ok()
}

/// Returns the event to be published about an item.
pub(super) fn event_of(
    publication: &ItemEvent,
    answer: Option<&RawValue>,
    related: Option<String>,
) -> Event {
    let link = |href| Link {
        rel: Some("related".into()),
        href,
        kind: None,
        hreflang: None,
        title: None,
        length: None,
    };
    let content = match publication.what {
        EventContent::Value(_) => answer.map(ToOwned::to_owned),
        EventContent::Ended => RawValue::from_string(r#"{"ended":true}"#.to_owned()).ok(),
    };
    // Id and date follow from the slot, so that a repeat after a crash is a duplicate.
    Event {
        id: Some(publication.event_id().urn().to_string()),
        title: Some(publication.id.clone()),
        updated: Some(publication.slot.to_string()),
        links: related.map(|href| vec![link(href)]),
        content,
        ..Event::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(answer: &str, ignored: &[&str]) -> Digest {
        let ignored: Vec<String> = ignored.iter().map(ToString::to_string).collect();
        let answer = RawValue::from_string(answer.to_owned()).unwrap();
        value_of(&answer, &ignored).counted
    }

    /// Goal: each change is seen, also in digits that a float would lose. Another form of the same
    /// value is no change.
    #[test]
    fn what_counts_is_the_value() {
        let same = |one: &str, other: &str| counted(one, &[]) == counted(other, &[]);
        assert!(same(r#"{"a":1,"b":[2]}"#, "{ \"b\": [2], \"a\": 1 }"));
        assert!(!same("36893488147419103232", "36893488147419103233"));
        assert!(!same("0.12345678901234567890", "0.12345678901234567891"));
    }

    #[test]
    fn ignored_parts_do_not_count() {
        let ignored = ["/seen", "/of/0/at", "/a~1b"];
        let same = |one: &str, other: &str| counted(one, &ignored) == counted(other, &ignored);
        let answer = r#"{"n":1,"seen":5,"of":[{"at":1,"x":2}],"a/b":3}"#;
        assert!(same(answer, r#"{"n":1,"of":[{"at":9,"x":2}],"a/b":4}"#));
        assert!(!same(answer, r#"{"n":1,"of":[{"at":9,"x":3}],"a/b":4}"#));
    }
}
