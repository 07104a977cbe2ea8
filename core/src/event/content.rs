//! Content of an event, from the text of a content element.
//!
//! Pure.

use data_encoding::BASE64;
use serde_json::value::RawValue;

use crate::{
    scanner::{JSON, TEXT_JSON, essence, is_json_type},
    xml::has_any,
};

/// Returns the type and content of an event, given the type and text of a content element without
/// markup.
pub(super) fn content_of_text(kind: String, text: &str) -> (String, Box<RawValue>) {
    // JSON occurs verbatim (this server) and in Base64 (RFC 4287, 4.1.3.3).
    if !is_json_type(&kind) {
        (kind, to_json(text))
    } else if let Some(json) = one_line_json(text).or_else(|| json_in_base64(text)) {
        let is_plain = essence(&kind) == TEXT_JSON;
        (if is_plain { JSON.into() } else { kind }, json)
    } else {
        ("text".into(), to_json(text))
    }
}

/// Returns `text` on one line if it is JSON.
///
/// A line end in JSON can only be white space between tokens: strings may not contain one.
fn one_line_json(text: &str) -> Option<Box<RawValue>> {
    if !has_any(text, |byte| byte == b'\n' || byte == b'\r') {
        return serde_json::from_str(text.trim()).ok();
    }
    let one_line = text.replace(['\n', '\r'], " ");
    serde_json::from_str(one_line.trim()).ok()
}

/// Returns the JSON in `text`, decoded from Base64 (RFC 4287, 4.1.3.3, rule 6), on one line.
///
/// No text is both JSON and the Base64 of JSON: the Base64 of a JSON text begins with a capital
/// letter, with one of `b`, `d`, `e`, or, if there is a byte order mark, with `77u`. No JSON text
/// begins like that.
fn json_in_base64(text: &str) -> Option<Box<RawValue>> {
    // Publishers wrap Base64 into lines, and the decoder refuses white space.
    let bare: String = text.chars().filter(|c| !c.is_ascii_whitespace()).collect();
    let decoded = String::from_utf8(BASE64.decode(bare.as_bytes()).ok()?).ok()?;
    // A byte order mark is not part of JSON (RFC 8259, 8.1), but some writers add one.
    one_line_json(decoded.strip_prefix('\u{feff}').unwrap_or(&decoded))
}

/// Returns a text as a JSON string.
pub(super) fn to_json(text: &str) -> Box<RawValue> {
    serde_json::value::to_raw_value(text).expect("a string has a JSON form")
}
