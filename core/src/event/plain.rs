//! Common events to entries and back, without a tokenizer.
//!
//! Pure. Servers take, and replays print, millions of such events. The gate and the general reader
//! take all other forms, and would give the same result for this form.

use std::{borrow::Cow, sync::Arc};

use serde_json::value::RawValue;

use super::{Author, Authors, Category, Event, Link, content::content_of_text};
use crate::{
    digest::Digest,
    entry::{ALTERNATE, Draft, Missing},
    feed::{EntryId, Position},
    limits::ENTRY_BYTES_MAX,
    scanner::{JsonForm, TEXT_JSON},
    timestamp::Timestamp,
    xml::has_any,
};

/// Start tag of an event's entry.
pub(super) const BEGIN: &str = "<entry xmlns=\"http://www.w3.org/2005/Atom\">";
const END: &str = "</entry>";
/// Start of the tag of a category with nothing but a term.
const CATEGORY: &str = "category term=\"";
/// Relation and media type of links to the entry's page, as in [`ALTERNATE`].
const PAGE_RELATION: &str = "alternate";
const PAGE_TYPE: &str = "text/html";

/// Returns the draft of an event whose Atom is `atom`, without the digest. Returns the Atom as an
/// error if the entry needs the gate: the event has links, authors with more than a name or a type
/// that is not stored as JSON text, or the id, a date or the size breaks a rule.
///
/// The Atom was written from the event, with characters that XML admits, so the Atom is
/// well-formed.
pub(super) fn plain_draft(event: &Event, atom: String) -> Result<Draft, String> {
    let authors = match &event.author {
        None => &[],
        Some(Authors::One(author)) => std::slice::from_ref(author),
        Some(Authors::Many(authors)) => authors.as_slice(),
    };
    let is_name = |author: &Author| matches!(author, Author::Name(_));
    let is_text = |kind: &String| JsonForm::of(kind) == Some(JsonForm::Text);
    let dates = [&event.updated, &event.published];
    let are_dates = |text: &String| Timestamp::parse(text).is_some();
    let id = event.id.as_deref().map(EntryId::parse);
    let is_plain = event.links.is_none()
        && authors.iter().all(is_name)
        && event.kind.as_ref().is_none_or(is_text)
        && dates.into_iter().flatten().all(are_dates)
        && id != Some(None)
        && atom.len() <= ENTRY_BYTES_MAX;
    if !is_plain {
        return Err(atom);
    }
    Ok(Draft {
        id: id.flatten(),
        // The caller sets the digest, which covers the event and not this Atom.
        sent: Digest([0; 32]),
        authors: Arc::default(),
        element: atom,
        inside: BEGIN.len(),
        prefix: String::new(),
        missing: Missing {
            id: event.id.is_none(),
            title: event.title.is_none(),
            updated: event.updated.is_none(),
            author: authors.is_empty(),
            content: event.given_content().is_none(),
            // Events with links are not plain.
            alternate: true,
            // JSON as text needs no summary.
            summary: false,
        },
    })
}

/// An entry of the plain form. Texts stand as in the fragment, with their references.
#[derive(Debug, Default)]
pub(super) struct Plain<'f> {
    id: Option<&'f str>,
    title: Option<&'f str>,
    updated: Option<&'f str>,
    published: Option<&'f str>,
    author: Option<&'f str>,
    /// Terms of the categories, which have no scheme and no label.
    categories: Vec<&'f str>,
    /// URLs of links to the entry's page.
    pages: Vec<&'f str>,
    summary: Option<&'f str>,
    content: Option<ContentText<'f>>,
    /// Length of the fragment, in bytes.
    bytes: usize,
}

/// Text of a content element.
#[derive(Clone, Copy, Debug)]
enum ContentText<'f> {
    Text(&'f str),
    Json(&'f str),
}

impl<'f> Plain<'f> {
    /// Returns the entry of a fragment of the plain form; `None` for any other form.
    pub(super) fn read(fragment: &'f str) -> Option<Self> {
        // The general reader takes fragments with line ends other than `\n`, with characters that
        // XML may not admit, or with `]]>`.
        let is_unusual = |byte: u8| matches!(byte, 0..=8 | 11..=31 | 0xef);
        if has_any(fragment, is_unusual) || fragment.contains("]]>") {
            return None;
        }
        let mut rest = fragment.strip_prefix(BEGIN)?.strip_suffix(END)?;
        let mut entry = Self {
            bytes: fragment.len(),
            ..Self::default()
        };
        while !rest.is_empty() {
            let (tag, behind) = rest.strip_prefix('<')?.split_once('>')?;
            rest = entry.read_element(tag, behind)?;
        }
        Some(entry)
    }

    /// Reads the element that `tag` begins, given all text behind that tag. Returns the text behind
    /// the element; `None` if the element has another form.
    fn read_element(&mut self, tag: &'f str, inside: &'f str) -> Option<&'f str> {
        let (member, end) = match tag {
            "id" => (&mut self.id, "</id>"),
            "title" | "title type=\"text\"" => (&mut self.title, "</title>"),
            "updated" => (&mut self.updated, "</updated>"),
            "published" => (&mut self.published, "</published>"),
            "summary" | "summary type=\"text\"" => (&mut self.summary, "</summary>"),
            "author" if self.author.is_none() => {
                let (name, rest) = read_text(inside.strip_prefix("<name>")?, "</name></author>")?;
                self.author = Some(name);
                return Some(rest);
            }
            "content" | "content type=\"text\"" | "content type=\"text/json\"" => {
                let (text, rest) = read_text(inside, "</content>")?;
                let is_json = tag.ends_with("json\"");
                self.content = Some(if is_json {
                    ContentText::Json(text)
                } else {
                    ContentText::Text(text)
                });
                return Some(rest);
            }
            _ => {
                let (list, value) = match tag.strip_prefix(ALTERNATE) {
                    Some(url) => (&mut self.pages, url),
                    None => (&mut self.categories, tag.strip_prefix(CATEGORY)?),
                };
                let value = value.strip_suffix("\"/")?;
                if value.contains(['"', '&', '<', '\n', '\t']) {
                    return None;
                }
                list.push(value);
                return Some(inside);
            }
        };
        let (text, rest) = read_text(inside, end)?;
        *member = Some(text);
        Some(rest)
    }

    /// Returns the entry as an event.
    pub(super) fn event(self) -> Event {
        let text = |text: &str| unescape_text(text).unwrap_or_default().into_owned();
        let (kind, content) = match self.content {
            None => (None, None),
            Some(content) => {
                let (kind, raw) = match content {
                    ContentText::Text(raw) => ("text", raw),
                    ContentText::Json(raw) => (TEXT_JSON, raw),
                };
                let (kind, content) = content_of_text(kind.into(), &text(raw));
                (Some(kind), Some(content))
            }
        };
        let category = |term: &str| Category::Term(term.into());
        let link = |url: &str| Link {
            rel: Some(PAGE_RELATION.into()),
            kind: Some(PAGE_TYPE.into()),
            href: url.into(),
            ..Link::default()
        };
        let (categories, pages) = (self.categories, self.pages);
        Event {
            id: self.id.map(text),
            title: self.title.map(text),
            updated: self.updated.map(text),
            published: self.published.map(text),
            author: self
                .author
                .map(|name| Authors::One(Author::Name(text(name)))),
            categories: (!categories.is_empty())
                .then(|| categories.into_iter().map(category).collect()),
            links: (!pages.is_empty()).then(|| pages.into_iter().map(link).collect()),
            summary: self.summary.map(text),
            kind,
            content,
            ..Event::default()
        }
    }

    /// Returns the entry as one line of JSON, the same as [`Event::line`] gives. `None` without an
    /// id, and if JSON content has several lines or is not JSON.
    pub(super) fn line(
        &self,
        document: Option<&str>,
        feed: Option<&str>,
        position: Option<Position>,
    ) -> Option<String> {
        let mut out = JsonWriter(String::with_capacity(self.bytes + LINE_BYTES));
        out.push_text("id", self.id.filter(|id| !id.trim().is_empty())?);
        let texts = [
            ("title", self.title),
            ("updated", self.updated),
            ("published", self.published),
            ("author", self.author),
        ];
        for (name, text) in texts {
            if let Some(text) = text {
                out.push_text(name, text);
            }
        }
        out.push_list("categories", &self.categories, push_string);
        out.push_list("links", &self.pages, |url, out| {
            out.push_str("{\"rel\":\"alternate\",\"href\":");
            push_string(url, out);
            out.push_str(",\"type\":\"text/html\"}");
        });
        if let Some(text) = self.summary {
            out.push_text("summary", text);
        }
        match self.content {
            None => {}
            Some(ContentText::Text(text)) => {
                out.begin_member("type").push_str("\"text\"");
                out.push_text("content", text);
            }
            Some(ContentText::Json(text)) => {
                let text = unescape_text(text)?;
                if text.contains('\n') {
                    return None;
                }
                let json: &RawValue = serde_json::from_str(text.trim()).ok()?;
                out.begin_member("type").push_str("\"application/json\"");
                out.begin_member("content").push_str(json.get());
            }
        }
        if let Some(document) = document {
            push_string(document, out.begin_member("document"));
        }
        if let Some(position) = position {
            out.begin_member("position")
                .push_str(&position.0.to_string());
        }
        if let Some(feed) = feed {
            push_string(feed, out.begin_member("feed"));
        }
        Some(out.into_json())
    }
}

/// Number of bytes that a line usually has beyond the length of the fragment: names of members,
/// document, position.
const LINE_BYTES: usize = 128;

/// A JSON object being written.
#[derive(Debug)]
struct JsonWriter(String);

impl JsonWriter {
    /// Begins a member, and returns the text to which the value is to be appended.
    fn begin_member(&mut self, name: &str) -> &mut String {
        let out = &mut self.0;
        out.push(if out.is_empty() { '{' } else { ',' });
        out.push('"');
        out.push_str(name);
        out.push_str("\":");
        out
    }

    /// Writes a member with a text that stands as in the fragment, with references.
    fn push_text(&mut self, name: &str, text: &str) {
        let out = self.begin_member(name);
        match unescape_text(text) {
            Some(text) => push_string(&text, out),
            None => push_string(text, out),
        }
    }

    /// Writes a list, but no member for an empty one.
    fn push_list(&mut self, name: &str, items: &[&str], push: impl Fn(&str, &mut String)) {
        for (index, item) in items.iter().enumerate() {
            let out = if index == 0 {
                self.begin_member(name)
            } else {
                &mut self.0
            };
            out.push(if index == 0 { '[' } else { ',' });
            push(item, out);
        }
        if !items.is_empty() {
            self.0.push(']');
        }
    }

    fn into_json(mut self) -> String {
        self.0.push('}');
        self.0
    }
}

/// Adds a text as a JSON string.
fn push_string(text: &str, out: &mut String) {
    // Most texts stand for themselves (RFC 8259, 7).
    if has_any(text, |byte| matches!(byte, 0..=31 | b'"' | b'\\')) {
        let string = serde_json::to_string(text);
        out.push_str(&string.expect("a text has a JSON form"));
    } else {
        out.push('"');
        out.push_str(text);
        out.push('"');
    }
}

/// Returns the text before the end tag `end`, and the rest behind that tag. `None` if another tag
/// comes first, or if the text has a reference that `unescape_text` does not know.
fn read_text<'f>(inside: &'f str, end: &str) -> Option<(&'f str, &'f str)> {
    let (text, _) = inside.split_once('<')?;
    let rest = inside.get(text.len()..)?.strip_prefix(end)?;
    unescape_text(text)?;
    Some((text, rest))
}

/// Returns a text with characters in place of references, or `None` if there is a reference to
/// anything but XML's own entities.
fn unescape_text(text: &str) -> Option<Cow<'_, str>> {
    if !text.contains('&') {
        return Some(text.into());
    }
    let mut unescaped = String::with_capacity(text.len());
    let mut pieces = text.split('&');
    unescaped.push_str(pieces.next()?);
    for piece in pieces {
        let (name, behind) = piece.split_once(';')?;
        unescaped.push(match name {
            "amp" => '&',
            "lt" => '<',
            "gt" => '>',
            "quot" => '"',
            "apos" => '\'',
            _ => return None,
        });
        unescaped.push_str(behind);
    }
    Some(unescaped.into())
}
