//! JSON of other programs as events: each value becomes the content of an entry.
//!
//! Pure.

use anyhow::{Context as _, bail, ensure};
use serde::Serialize;
use serde_json::{Value, value::RawValue};
use url::Url;
use uuid::Uuid;

/// Makes events of values.
#[derive(Debug)]
pub(crate) struct Wrap {
    feed: Url,
    /// Pointer to the part that tells a value from others (RFC 6901).
    pointer: Option<String>,
}

#[derive(Serialize)]
struct WrappedEvent<'v> {
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    content: &'v RawValue,
}

impl Wrap {
    /// Makes events for the feed at `url`.
    pub(crate) fn new(url: &str, pointer: Option<&str>) -> anyhow::Result<Self> {
        let is_pointer = pointer.is_none_or(|text| text.is_empty() || text.starts_with('/'));
        ensure!(
            is_pointer,
            "--id-from is no JSON pointer, which begins with /"
        );
        Ok(Self {
            feed: Url::parse(url).context("the URL of the feed")?,
            pointer: pointer.map(Into::into),
        })
    }

    /// Returns the event of a value, as a line.
    pub(crate) fn event(&self, value: &str) -> anyhow::Result<String> {
        let content: &RawValue = serde_json::from_str(value).context("no JSON value")?;
        let id = match &self.pointer {
            None => None,
            Some(pointer) => Some(self.content_id(content, pointer)?),
        };
        Ok(serde_json::to_string(&WrappedEvent { id, content })?)
    }

    /// Returns an id made of the feed's URL and the part of the value at `pointer`. Values with the
    /// same part have the same id; ids of different feeds differ.
    fn content_id(&self, content: &RawValue, pointer: &str) -> anyhow::Result<String> {
        let value: Value = serde_json::from_str(content.get())?;
        let part = match value.pointer(pointer) {
            Some(Value::String(text)) => text.clone(),
            Some(Value::Number(number)) => number.to_string(),
            Some(_) => bail!("{pointer} of the value is neither a text nor a number"),
            None => bail!("the value has nothing at {pointer}"),
        };
        let mut named = self.feed.clone();
        named.set_query(None);
        named.set_fragment(None);
        // The id has a fixed length, however long the part is.
        let name = format!("{named}\n{part}");
        let uuid = Uuid::new_v5(&Uuid::NAMESPACE_URL, name.as_bytes());
        Ok(format!("urn:uuid:{uuid}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(wrap: &Wrap, value: &str) -> String {
        let event: Value = serde_json::from_str(&wrap.event(value).unwrap()).unwrap();
        event["id"].as_str().unwrap().into()
    }

    #[test]
    fn the_same_part_has_the_same_id() {
        let wrap = Wrap::new("https://h/feeds/a", Some("/order/id")).unwrap();
        let one = id(&wrap, r#"{"order":{"id":7},"at":1}"#);
        assert_eq!(one, id(&wrap, r#"{"at":2,"order":{"id":7}}"#));
        assert_ne!(one, id(&wrap, r#"{"order":{"id":8}}"#));
        let other = Wrap::new("https://h/feeds/b", Some("/order/id")).unwrap();
        assert_ne!(one, id(&other, r#"{"order":{"id":7},"at":1}"#));
        for wrong in [r#"{"order":{}}"#, r#"{"order":{"id":[]}}"#, "7", "nonsense"] {
            assert!(wrap.event(wrong).is_err(), "{wrong}");
        }
        assert!(Wrap::new("https://h/feeds/a", Some("order")).is_err());
    }

    #[test]
    fn content_stands_as_it_came() {
        let wrap = Wrap::new("https://h/feeds/a", None).unwrap();
        let event = wrap.event(r#"{"b":1.50,"a":null}"#).unwrap();
        assert_eq!(event, r#"{"content":{"b":1.50,"a":null}}"#);
        assert_eq!(wrap.event("[1]").unwrap(), r#"{"content":[1]}"#);
    }
}
