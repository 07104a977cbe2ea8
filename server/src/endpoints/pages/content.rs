//! The content of an entry as HTML.
//!
//! Pure. Everything is escaped or cleaned here: whatever an entry holds, no script of it runs and nothing of it is asked
//! from elsewhere. Markup stands in a frame that runs no script, under the policy of the page.

use std::fmt::Write as _;

use serde_json::Value;
use simplefeed_core::event::Event;

/// Longest content that is shown whole, in bytes.
const SHOWN_BYTES_MAX: usize = 64 * 1024;
/// Longest markup that is cleaned, in bytes.
const MARKUP_BYTES_MAX: usize = 256 * 1024;
/// Values of JSON that are shown one by one.
const VALUES_MAX: usize = 2_000;
/// Depth of JSON that is open at first.
const OPEN_DEPTH: usize = 2;

/// Returns the content of an event as HTML.
pub(super) fn shown(event: &Event) -> String {
    let Some(raw) = &event.content else {
        return "<p class=\"faint\">It has no content.</p>".into();
    };
    let kind = event.kind.as_deref();
    let text = serde_json::from_str::<String>(raw.get()).ok();
    match (kind, text) {
        (Some("html" | "xhtml"), Some(markup)) => markup_of(&markup),
        (None | Some("text"), Some(text)) => plain(&text),
        (_, None) => json(raw.get()),
        (Some(kind), Some(text)) if is_json(kind) => json(&text),
        (Some(kind), Some(text)) => typed(kind, &text),
    }
}

fn is_json(kind: &str) -> bool {
    let essence = kind.split(';').next().unwrap_or_default().trim();
    essence.ends_with("/json") || essence.ends_with("+json")
}

fn typed(kind: &str, text: &str) -> String {
    let is_text = kind.starts_with("text/") || kind.contains("xml");
    if is_text {
        return plain(text);
    }
    let mut out = String::from("<p>Content of the type <code>");
    escape(kind, &mut out);
    let _written = write!(out, "</code>, {} characters of Base64. ", text.len());
    out.push_str("The document has them.</p>");
    out
}

fn plain(text: &str) -> String {
    let mut out = String::from("<pre>");
    let shown = beginning(text, SHOWN_BYTES_MAX);
    escape(shown, &mut out);
    out.push_str("</pre>");
    if shown.len() < text.len() {
        out.push_str("<p class=\"faint\">This is its beginning; all of it is in the document.</p>");
    }
    out
}

/// Returns the beginning of a text, of so many bytes at most.
pub(super) fn beginning(text: &str, bytes: usize) -> &str {
    text.get(..text.floor_char_boundary(bytes)).unwrap_or(text)
}

fn markup_of(markup: &str) -> String {
    if markup.len() > MARKUP_BYTES_MAX {
        return plain(markup);
    }
    // Images would be asked from elsewhere, which the policy of the page forbids.
    let mut cleaner = ammonia::Builder::default();
    cleaner
        .rm_tags(["img"])
        .link_rel(Some("noopener noreferrer"));
    let clean = cleaner.clean(markup).to_string();
    let mut out = String::from("<iframe sandbox title=\"Content\" srcdoc=\"");
    escape(&clean, &mut out);
    out.push_str("\"></iframe>");
    out
}

fn json(text: &str) -> String {
    let Ok(value) = serde_json::from_str::<Value>(text) else {
        return plain(text);
    };
    let mut left = VALUES_MAX;
    let mut out = String::from("<div class=\"json\">");
    if text.len() > SHOWN_BYTES_MAX || !push(&value, None, 0, &mut left, &mut out) {
        return plain(text);
    }
    out.push_str("</div>");
    out
}

/// Adds a value; `false` if there are too many.
fn push(
    value: &Value,
    key: Option<&str>,
    depth: usize,
    left: &mut usize,
    out: &mut String,
) -> bool {
    let Some(less) = left.checked_sub(1) else {
        return false;
    };
    *left = less;
    let (open, close, count) = match value {
        Value::Object(members) => ('{', '}', members.len()),
        Value::Array(items) => ('[', ']', items.len()),
        scalar => {
            out.push_str("<div class=\"pair\">");
            push_key(key, out);
            let kind = if scalar.is_string() {
                "string"
            } else {
                "other"
            };
            let _written = write!(out, "<span class=\"{kind}\">");
            escape(&scalar.to_string(), out);
            out.push_str("</span></div>");
            return true;
        }
    };
    out.push_str(if depth < OPEN_DEPTH {
        "<details open>"
    } else {
        "<details>"
    });
    out.push_str("<summary>");
    push_key(key, out);
    let _written = write!(
        out,
        "{open}{close} <span class=\"faint\">{count}</span></summary>"
    );
    let is_whole = match value {
        Value::Object(members) => members
            .iter()
            .all(|(key, value)| push(value, Some(key), depth + 1, left, out)),
        Value::Array(items) => items
            .iter()
            .all(|item| push(item, None, depth + 1, left, out)),
        _ => true,
    };
    out.push_str("</details>");
    is_whole
}

fn push_key(key: Option<&str>, out: &mut String) {
    if let Some(key) = key {
        out.push_str("<span class=\"key\">");
        escape(key, out);
        out.push_str("</span>: ");
    }
}

/// Adds a text as the content of an element, or the value of an attribute in double quotes.
fn escape(text: &str, out: &mut String) {
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

    /// Goal: the size of a page is bounded, whatever the content is.
    #[test]
    fn pages_of_large_content_are_bounded() {
        let large = [
            of(None, &Value::Array(vec![0.into(); 500_000])),
            of(None, &"<".repeat(1_000_000).into()),
            of(Some("html"), &"<b>".repeat(300_000).into()),
            of(Some("text/json"), &"[".repeat(100_000).into()),
            of(
                None,
                &(0..120).fold(Value::Null, |inner, _| Value::Array(vec![inner])),
            ),
        ];
        for page in large {
            assert!(page.len() < 1_000_000, "{}", page.len());
        }
    }
}
