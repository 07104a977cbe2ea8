//! The content of an entry as HTML.
//!
//! Pure. Everything is escaped or cleaned here: whatever an entry holds, no script of the entry
//! runs, and nothing is loaded from elsewhere. Markup is shown in a frame that runs no script,
//! under the content policy of the page.

use std::fmt::{self, Write as _};

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;
use simplefeed_core::event::Event;

use super::markup::is_bounded;

/// Longest content that is shown whole, in bytes.
const SHOWN_BYTES_MAX: usize = 64 * 1024;
/// Maximum number of JSON values that are shown one by one.
const VALUES_MAX: usize = 2_000;
/// Depth down to which JSON is unfolded at first.
const OPEN_DEPTH: usize = 2;
/// Depth down to which JSON is shown value by value.
const DEPTH_MAX: usize = 50;

/// Returns the content of an event as HTML.
pub(super) fn shown(event: &Event) -> String {
    let Some(raw) = &event.content else {
        return "<p class=\"faint\">It has no content.</p>".into();
    };
    let kind = event.kind.as_deref();
    let text = serde_json::from_str::<String>(raw.get()).ok();
    match (kind, text) {
        (Some("html" | "xhtml"), Some(markup)) => markup_of(&markup),
        (None | Some("text"), Some(text)) => plain_html(&text),
        (_, None) => json_html(raw.get()),
        (Some(kind), Some(_)) if is_json(kind) => json_html(raw.get()),
        (Some(kind), Some(text)) => typed_html(kind, &text),
    }
}

fn is_json(kind: &str) -> bool {
    let essence = kind.split(';').next().unwrap_or_default().trim();
    essence.ends_with("/json") || essence.ends_with("+json")
}

fn typed_html(kind: &str, text: &str) -> String {
    // Content of these types stands in an entry as text, and content of other types in Base64 (RFC
    // 4287, 4.1.3.3).
    let is_text = kind.starts_with("text/") || kind.contains("xml");
    if is_text {
        return plain_html(text);
    }
    let mut out = String::from("<p>Content of the type <code>");
    escape_into(kind, &mut out);
    let _written = write!(out, "</code>, {} characters of Base64. ", text.len());
    out.push_str("The document has them.</p>");
    out
}

fn plain_html(text: &str) -> String {
    let mut out = String::from("<pre>");
    let shown = beginning(text, SHOWN_BYTES_MAX);
    escape_into(shown, &mut out);
    out.push_str("</pre>");
    if shown.len() < text.len() {
        out.push_str("<p class=\"faint\">This is its beginning; all of it is in the document.</p>");
    }
    out
}

/// Returns the beginning of a text, of at most `bytes` bytes.
pub(super) fn beginning(text: &str, bytes: usize) -> &str {
    text.get(..text.floor_char_boundary(bytes)).unwrap_or(text)
}

fn markup_of(markup: &str) -> String {
    if !is_bounded(markup) {
        return plain_html(markup);
    }
    // Images would be loaded from elsewhere, which the content policy of the page forbids.
    let mut cleaner = ammonia::Builder::default();
    cleaner.rm_tags(["img"]);
    // The page behind a link must not learn the URL of our page, which names a feed.
    cleaner.link_rel(Some("noopener noreferrer"));
    cleaner.set_tag_attribute_value("a", "target", "_blank");
    let clean = cleaner.clean(markup).to_string();
    // The cleaner closes elements and escapes characters, so the result may be longer than
    // `markup`.
    if clean.len() > 4 * SHOWN_BYTES_MAX {
        return plain_html(markup);
    }
    // The frame may open other pages: a link opens one when a person clicks on the link.
    let mut out = String::from(
        "<iframe sandbox=\"allow-popups allow-popups-to-escape-sandbox\" title=\"Content\" srcdoc=\"",
    );
    escape_into(&clean, &mut out);
    out.push_str("\"></iframe>");
    out
}

fn json_html(text: &str) -> String {
    let mut left = VALUES_MAX;
    let mut out = String::from("<div class=\"json\">");
    let raw = serde_json::from_str::<&RawValue>(text).ok();
    let raw = raw.filter(|_| text.len() <= SHOWN_BYTES_MAX);
    match raw.and_then(|raw| push_value(raw, None, 0, &mut left, &mut out)) {
        Some(()) => {
            out.push_str("</div>");
            out
        }
        None => plain_html(text),
    }
}

/// Members of a JSON object in their order, with repeated keys.
struct Members<'j>(Vec<(String, &'j RawValue)>);

impl<'j> Deserialize<'j> for Members<'j> {
    fn deserialize<D: Deserializer<'j>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_map(MembersVisitor)
    }
}

struct MembersVisitor;

impl<'j> Visitor<'j> for MembersVisitor {
    type Value = Members<'j>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'j>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut members = vec![];
        while let Some(member) = map.next_entry()? {
            members.push(member);
        }
        Ok(Members(members))
    }
}

/// Adds a value as it was published: with the order and the repeats of members, and the digits of
/// numbers. `None` if there are too many values, or if they are nested too deep.
fn push_value(
    raw: &RawValue,
    key: Option<&str>,
    depth: usize,
    left: &mut usize,
    out: &mut String,
) -> Option<()> {
    // If there are too many values, the caller shows the whole content as text.
    *left = left.checked_sub(1)?;
    let text = raw.get().trim();
    let (brackets, members): (_, Vec<(Option<String>, &RawValue)>) = if text.starts_with('{') {
        let Members(members) = serde_json::from_str(text).ok()?;
        let members = members.into_iter().map(|(key, value)| (Some(key), value));
        ("{}", members.collect())
    } else if text.starts_with('[') {
        let items: Vec<&RawValue> = serde_json::from_str(text).ok()?;
        ("[]", items.into_iter().map(|item| (None, item)).collect())
    } else {
        out.push_str("<div class=\"pair\">");
        push_key(key, out);
        let kind = if text.starts_with('"') {
            "string"
        } else {
            "other"
        };
        let _written = write!(out, "<span class=\"{kind}\">");
        escape_into(text, out);
        out.push_str("</span></div>");
        return Some(());
    };
    let is_open = if depth < OPEN_DEPTH { " open" } else { "" };
    let _written = write!(out, "<details{is_open}><summary>");
    push_key(key, out);
    let count = members.len();
    let _written = write!(
        out,
        "{brackets} <span class=\"faint\">{count}</span></summary>"
    );
    // A value is parsed again at each level, so a bound on the depth bounds the work.
    let is_deep = depth >= DEPTH_MAX && !members.is_empty();
    for (key, value) in members.into_iter().filter(|_| !is_deep) {
        push_value(value, key.as_deref(), depth + 1, left, out)?;
    }
    out.push_str("</details>");
    (!is_deep).then_some(())
}

fn push_key(key: Option<&str>, out: &mut String) {
    if let Some(key) = key {
        out.push_str("<span class=\"key\">");
        escape_into(key, out);
        out.push_str("</span>: ");
    }
}

/// Adds a text, escaped for the content of an element or for the value of an attribute in quotes.
fn escape_into(text: &str, out: &mut String) {
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn of(kind: Option<&str>, content: &Value) -> String {
        let raw = serde_json::value::to_raw_value(content).unwrap();
        shown(&Event {
            kind: kind.map(Into::into),
            content: Some(raw),
            ..Event::default()
        })
    }

    #[test]
    fn each_type_has_a_form() {
        assert_eq!(of(None, &"a <b>".into()), "<pre>a &lt;b&gt;</pre>");
        let json = of(None, &serde_json::json!({"a": [1, "<x>"]}));
        assert!(
            json.contains("<span class=\"string\">&quot;&lt;x&gt;&quot;</span>"),
            "{json}"
        );
        assert!(
            json.starts_with("<div class=\"json\"><details open>"),
            "{json}"
        );
        let html = of(
            Some("html"),
            &"<p onclick=\"x()\">a<script>x()</script></p>".into(),
        );
        assert!(html.contains("srcdoc=\"&lt;p&gt;a&lt;/p&gt;\""), "{html}");
        let base64 = of(Some("image/png"), &"AAAA".into());
        assert!(
            base64.contains("image/png") && !base64.contains("AAAA"),
            "{base64}"
        );
        assert!(shown(&Event::default()).contains("no content"));
    }

    /// Tags that a parser opens again in each paragraph.
    fn nested(count: usize) -> String {
        let tags = (0..count).map(|number| format!("<i a{number}>"));
        format!("<p>{}", tags.collect::<String>())
    }

    /// Goal: JSON is shown as it was published.
    #[test]
    fn json_keeps_its_order_and_digits() {
        let text = r#"{"z":12.50,"a":1e400,"z":123456789012345678901234567890}"#;
        let shown = shown(&Event {
            content: Some(RawValue::from_string(text.into()).unwrap()),
            ..Event::default()
        });
        let z = shown.find("12.50").unwrap();
        assert!(z < shown.find("1e400").unwrap(), "{shown}");
        assert!(shown.contains("123456789012345678901234567890"), "{shown}");
        assert_eq!(shown.matches(">z<").count(), 2, "{shown}");
    }

    /// Goal: the size of a page is bounded, whatever the content is.
    #[test]
    fn pages_of_large_content_are_bounded() {
        let large = [
            of(None, &Value::Array(vec![0.into(); 500_000])),
            of(None, &"<".repeat(1_000_000).into()),
            of(Some("html"), &"<b>".repeat(300_000).into()),
            of(
                Some("html"),
                &format!("{}{}", nested(400), "<p>x".repeat(500)).into(),
            ),
            of(
                Some("html"),
                &format!("{}{}", nested(9_000), "<p>x".repeat(9_000)).into(),
            ),
            of(Some("text/json"), &"[".repeat(100_000).into()),
            of(
                None,
                &(0..120).fold(Value::Null, |inner, _| Value::Array(vec![inner])),
            ),
        ];
        for page in large {
            assert!(page.len() < 2_000_000, "{}", page.len());
        }
    }
}
