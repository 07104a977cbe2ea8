//! Stored form of JSON content.
//!
//! Pure. RFC 4287 (4.1.3.3) wants verbatim text under `text/*`, and Base64 under all other types
//! but XML. Widespread feed readers garble verbatim JSON under `application/json`, so new entries
//! carry JSON as `text/json`.

use std::ops::Range;

use data_encoding::BASE64;
use serde::de::IgnoredAny;

use super::essence;
use crate::{
    entry::push_attribute,
    xml::{ATOM, Tag, Token, Tokens, XmlError},
};

/// Media type of JSON stored verbatim.
pub(crate) const TEXT_JSON: &str = "text/json";
/// The media type of JSON in events.
pub(crate) const JSON: &str = "application/json";

/// Stored form of JSON content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JsonForm {
    /// Verbatim, under `text/json`.
    Text,
    /// In Base64, under the media type as sent, with a summary (rule A-11).
    Base64,
}

impl JsonForm {
    /// Returns the form of content of a media type; `None` if the type is not JSON.
    pub fn of(media_type: &str) -> Option<Self> {
        let bare = essence(media_type);
        match bare.as_str() {
            JSON | TEXT_JSON => Some(Self::Text),
            _ => bare.ends_with("+json").then_some(Self::Base64),
        }
    }
}

/// Returns whether a media type is JSON.
pub fn is_json_type(media_type: &str) -> bool {
    JsonForm::of(media_type).is_some()
}

/// Returns whether an entry holds verbatim JSON under a type that RFC 4287 (4.1.3.3) wants in
/// Base64.
pub fn holds_raw_json(entry: &str) -> bool {
    is_raw(entry).unwrap_or(false)
}

fn is_raw(entry: &str) -> Result<bool, XmlError> {
    let mut tokens = Tokens::new(entry)?;
    let mut depth = 0_usize;
    let mut text = None;
    while let Some(token) = tokens.read()? {
        match token {
            Token::Start(tag) => {
                depth += 1;
                let kind = tag.value("type")?.unwrap_or_default();
                let wants_base64 = is_json_type(&kind) && essence(&kind) != TEXT_JSON;
                // Depth 2: content of a source or of foreign markup deeper inside does not count.
                if depth == 2 && tag.is(ATOM, "content") && wants_base64 {
                    text = Some(String::new());
                }
            }
            Token::Text(piece) => text.iter_mut().for_each(|text| text.push_str(&piece)),
            Token::End(_) => {
                depth -= 1;
                // RFC 4287 admits one content per entry, so the first one decides.
                if let Some(text) = text.take() {
                    return Ok(serde_json::from_str::<IgnoredAny>(&text).is_ok());
                }
            }
        }
    }
    Ok(false)
}

/// Content element with a stored form that differs from the sent form.
#[derive(Debug)]
pub(super) struct Rewrite {
    pub(super) form: JsonForm,
    /// The element's bytes up to the end tag. Both forms share the end tag.
    replaced: Range<usize>,
    replacement: String,
}

impl Rewrite {
    /// Returns the stored form of the content element that begins with `tag` and holds the bytes
    /// `inner`.
    pub(super) fn new(
        text: &str,
        tag: &Tag<'_>,
        inner: Range<usize>,
        form: JsonForm,
        json: &str,
    ) -> Option<Self> {
        let mut replacement = format!("<{}", tag.name);
        for attribute in &tag.attributes {
            match (attribute.name, form) {
                ("type", JsonForm::Text) => push_attribute("type", TEXT_JSON, &mut replacement),
                _ => super::push_raw(attribute, &mut replacement),
            }
        }
        replacement.push('>');
        match form {
            // The source text keeps the escapes, so the bytes stay as they were sent.
            JsonForm::Text => replacement.push_str(text.get(inner.clone())?),
            // Base64 holds the unescaped JSON; white space around JSON has no meaning.
            JsonForm::Base64 => BASE64.encode_append(json.trim().as_bytes(), &mut replacement),
        }
        Some(Self {
            form,
            replaced: tag.range.start..inner.end,
            replacement,
        })
    }

    /// Appends the bytes `range` of `text`, with the stored form in place of the content element
    /// inside.
    pub(super) fn push(&self, text: &str, range: Range<usize>, out: &mut String) {
        let before = range.start..self.replaced.start;
        let behind = self.replaced.end..range.end;
        out.push_str(text.get(before).unwrap_or_default());
        out.push_str(&self.replacement);
        out.push_str(text.get(behind).unwrap_or_default());
    }
}
