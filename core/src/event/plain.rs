//! Common events to entries and back, without a tokenizer.
//!
//! Pure. Servers take, and replays print, millions of them. The gate and the general reader take all other forms, and
//! give the same for this one.

use std::{borrow::Cow, sync::Arc};

use super::{Author, Authors, Category, Event, Link, content::content_of_text};
use crate::{
    digest::Digest,
    entry::{ALTERNATE, Draft, Missing},
    feed::EntryId,
    limits::ENTRY_BYTES_MAX,
    scanner::JsonForm,
    timestamp::Timestamp,
    xml::has_any,
};

/// Start tag of an event's entry.
pub(super) const BEGIN: &str = "<entry xmlns=\"http://www.w3.org/2005/Atom\">";
const END: &str = "</entry>";

/// Returns the draft of an event whose Atom is `atom`, without its digest. Returns the Atom again if it needs the gate:
/// if a member besides ids and dates has rules of its own, or breaks them.
///
/// The Atom was written from the event, with characters that XML admits, so its form is right.
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
            // Those with links are not plain.
            alternate: true,
            // JSON as text needs none.
            summary: false,
        },
    })
}

/// Returns the event of a fragment, if it is of the plain form.
pub(super) fn read_plain(fragment: &str) -> Option<Event> {
    // Line ends other than `\n`, characters that XML does not have, and the end of a CDATA section.
    let is_unusual = |byte: u8| matches!(byte, 0..=8 | 11..=31 | 0xef);
    if has_any(fragment, is_unusual) || fragment.contains("]]>") {
        return None;
    }
    let mut rest = fragment.strip_prefix(BEGIN)?.strip_suffix(END)?;
    let mut event = Event::default();
    while !rest.is_empty() {
        let (tag, behind) = rest.strip_prefix('<')?.split_once('>')?;
        rest = read_element(&mut event, tag, behind)?;
    }
    Some(event)
}

/// Reads the inside of an element. Returns the rest behind its end.
fn read_element<'f>(event: &mut Event, tag: &str, inside: &'f str) -> Option<&'f str> {
    let (member, end) = match tag {
        "id" => (&mut event.id, "</id>"),
        "title" | "title type=\"text\"" => (&mut event.title, "</title>"),
        "updated" => (&mut event.updated, "</updated>"),
        "published" => (&mut event.published, "</published>"),
        "summary" | "summary type=\"text\"" => (&mut event.summary, "</summary>"),
        "author" if event.author.is_none() => {
            let (name, rest) = read_text(inside.strip_prefix("<name>")?, "</name></author>")?;
            event.author = Some(Authors::One(Author::Name(name.into_owned())));
            return Some(rest);
        }
        "content" | "content type=\"text\"" | "content type=\"text/json\"" => {
            let kind = if tag.ends_with("json\"") {
                "text/json"
            } else {
                "text"
            };
            let (text, rest) = read_text(inside, "</content>")?;
            let (kind, content) = content_of_text(kind.into(), &text);
            (event.kind, event.content) = (Some(kind), Some(content));
            return Some(rest);
        }
        _ if tag.starts_with(ALTERNATE) => {
            let url = tag.strip_prefix(ALTERNATE)?.strip_suffix("\"/")?;
            if url.contains(['"', '&', '<', '\n', '\t']) {
                return None;
            }
            event.links.get_or_insert_default().push(Link {
                rel: Some("alternate".into()),
                kind: Some("text/html".into()),
                href: url.into(),
                ..Link::default()
            });
            return Some(inside);
        }
        _ => {
            let term = tag.strip_prefix("category term=\"")?.strip_suffix("\"/")?;
            if term.contains(['"', '&', '<', '\n', '\t']) {
                return None;
            }
            let category = Category::Term(term.into());
            event.categories.get_or_insert_default().push(category);
            return Some(inside);
        }
    };
    let (text, rest) = read_text(inside, end)?;
    *member = Some(text.into_owned());
    Some(rest)
}

/// Returns the text before an end tag, and the rest behind the tag.
fn read_text<'f>(inside: &'f str, end: &str) -> Option<(Cow<'f, str>, &'f str)> {
    let (text, _) = inside.split_once('<')?;
    let rest = inside.get(text.len()..)?.strip_prefix(end)?;
    if !text.contains('&') {
        return Some((text.into(), rest));
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
    Some((unescaped.into(), rest))
}
