//! Answers of a provider: what of them counts, and what is published.
//!
//! Pure.

use serde_json::value::RawValue;
use simplefeed_core::{
    digest::Digest,
    event::{Event, Link},
    refresh::{Publication, Value, What},
};

/// Returns the digests of an answer; nothing if it is no JSON, which is as good as no answer. `ignored` are JSON pointers to
/// parts whose change does not count.
pub(super) fn value_of(answer: &RawValue, ignored: &[String]) -> Option<Value> {
    let exact = Digest::of(answer.get().as_bytes());
    // A number out of range, or a deep nesting, is an answer all the same.
    let Ok(mut parsed) = serde_json::from_str(answer.get()) else {
        let counted = exact;
        return Some(Value { counted, exact });
    };
    for pointer in ignored {
        remove(&mut parsed, pointer);
    }
    // Members of an object are sorted here.
    let counted = Digest::of(&serde_json::to_vec(&parsed).ok()?);
    Some(Value { counted, exact })
}

/// Removes the value at a JSON pointer.
fn remove(value: &mut serde_json::Value, pointer: &str) {
    let Some((parent, name)) = pointer.rsplit_once('/') else {
        return;
    };
    let name = name.replace("~1", "/").replace("~0", "~");
    match value.pointer_mut(parent) {
        Some(serde_json::Value::Object(members)) => drop(members.remove(&name)),
        Some(serde_json::Value::Array(items)) => {
            let item = name.parse().ok();
            let item = item.and_then(|index: usize| items.get_mut(index));
            if let Some(item) = item {
                *item = serde_json::Value::Null;
            }
        }
        _ => {}
    }
}

/// Returns the event of a publication.
pub(super) fn event_of(
    publication: &Publication,
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
        What::Value(_) => answer.map(ToOwned::to_owned),
        What::Ended => RawValue::from_string(r#"{"ended":true}"#.to_owned()).ok(),
    };
    Event {
        id: Some(publication.event_id().urn().to_string()),
        title: Some(publication.id.clone()),
        updated: Some(publication.slot.to_string()),
        links: related.map(|href| vec![link(href)]),
        content,
        ..Event::default()
    }
}
