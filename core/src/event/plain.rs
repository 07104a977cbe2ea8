//! Entries in the form that the gate gives to most events, read without a tokenizer.
//!
//! Pure. Replays print millions of such entries. The general reader takes all other forms, and gives the same event for
//! this one.

use std::borrow::Cow;

use super::{
    Author, Authors, Category, Event,
    content::{content_of_text, has_any},
};

const BEGIN: &str = "<entry xmlns=\"http://www.w3.org/2005/Atom\">";
const END: &str = "</entry>";

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
