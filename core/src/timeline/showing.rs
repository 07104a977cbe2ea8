//! Form of an entry in a timeline: the entry as the feed has it, and the origin.
//!
//! Pure. These bytes stand in frozen documents, so the form is for ever. Two elements are added
//! before the end tag: a link to the entry's own document, and the feed as the `source`, unless the
//! entry has a `source`. Each added element declares Atom's namespace as the default, because an
//! entry may use any prefixes. An entry that is too large is *linked*: a link to the entry's own
//! document replaces the content. An entry that is too large even so is reduced to the id, the
//! dates and an author.

use bytes::Bytes;

use crate::{
    entry::{push_attribute, push_element},
    scanner::outline,
    settings::Embed,
    timestamp::Timestamp,
    xml::{ATOM, Namespace, Tag, Token, Tokens, XmlError},
};

/// Media type of an entry document in links.
const ENTRY_TYPE: &str = "application/atom+xml;type=entry";
/// Maximum length of an author and the entry's `xml:base` together, in bytes, with which a reduced
/// entry keeps the author.
const AUTHOR_BYTES_MAX: usize = 2_048;

/// Where an entry comes from. All URLs are absolute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryOrigin<'o> {
    /// URL of the entry's own document.
    pub entry_url: &'o str,
    /// The `atom:id` of the entry's feed.
    pub feed_id: &'o str,
    /// Title of the entry's feed.
    pub title: &'o str,
    /// Instant of the entry.
    pub instant: Timestamp,
    /// URL of the recent document of the entry's feed.
    pub feed_url: &'o str,
}

/// Returns a fragment in the form that timelines show.
///
/// # Errors
///
/// Returns the fault of a fragment that the gate would not have accepted.
pub fn shown(fragment: &Bytes, origin: &EntryOrigin<'_>, embed: Embed) -> Result<Bytes, XmlError> {
    let text = std::str::from_utf8(fragment)
        .map_err(|error| XmlError::new("an entry is not UTF-8", error.valid_up_to()))?;
    let is_whole = embed.takes(text.len());
    // Without the word `source`, an entry has no such element, so the entry need not be parsed.
    if is_whole && !text.contains("source") {
        return Ok(with_origin(text, origin, true));
    }
    let parts = EntryParts::of_text(text)?;
    if is_whole {
        return Ok(with_origin(text, origin, !parts.has_source));
    }
    let linked = parts.with_link(text, origin);
    Ok(match linked.filter(|linked| embed.takes(linked.len())) {
        Some(linked) => with_origin(&linked, origin, !parts.has_source),
        // The entry has no content, or is too large even with a link instead. The reduced form has
        // lost a source of the entry's own, so the feed is the source.
        None => with_origin(&parts.reduce_to(origin), origin, true),
    })
}

/// Returns an entry with the `via` link added, and with the feed added as the `source` if
/// `adds_source` is set.
fn with_origin(entry: &str, origin: &EntryOrigin<'_>, adds_source: bool) -> Bytes {
    // The last `</` of an entry begins the end tag of the entry.
    let (before, end) = entry.split_at(entry.rfind("</").unwrap_or(entry.len()));
    let mut out = String::with_capacity(entry.len() + 640);
    out.push_str(before);
    out.push_str("<link");
    push_attribute("xmlns", ATOM, &mut out);
    push_attribute("rel", "via", &mut out);
    push_attribute("href", origin.entry_url, &mut out);
    push_attribute("type", ENTRY_TYPE, &mut out);
    out.push_str("/>");
    if adds_source {
        out.push_str("<source");
        push_attribute("xmlns", ATOM, &mut out);
        out.push('>');
        push_element("id", origin.feed_id, &mut out);
        push_element("title", origin.title, &mut out);
        push_element("updated", &origin.instant.to_string(), &mut out);
        out.push_str("<link");
        push_attribute("rel", "self", &mut out);
        push_attribute("href", origin.feed_url, &mut out);
        out.push_str("/></source>");
    }
    out.push_str(end);
    out.into()
}

/// Appends the link that replaces the content of an entry.
fn push_linked_content(origin: &EntryOrigin<'_>, has_summary: bool, out: &mut String) {
    out.push_str("<content");
    push_attribute("xmlns", ATOM, out);
    push_attribute("type", ENTRY_TYPE, out);
    push_attribute("src", origin.entry_url, out);
    out.push_str("/>");
    // RFC 4287, 4.1.2: content with `src` needs a summary.
    if !has_summary {
        out.push_str("<summary");
        push_attribute("xmlns", ATOM, out);
        out.push_str("/>");
    }
}

/// Parts of an entry that matter to a timeline.
#[derive(Debug, Default)]
struct EntryParts {
    has_source: bool,
    has_summary: bool,
    /// Range of the content element in the text of the entry.
    content: Option<std::ops::Range<usize>>,
    id: String,
    updated: String,
    published: Option<String>,
    /// The `xml:base` of the entry, against which a relative reference in the author is resolved.
    base: Option<String>,
    /// First author that is not too long together with the base, as an element that can stand
    /// alone.
    author: Option<String>,
}

impl EntryParts {
    fn of_text(text: &str) -> Result<Self, XmlError> {
        let mut tokens = Tokens::new(text)?;
        let mut parts = Self::default();
        // The first token is the entry itself.
        if let Some(Token::Start(entry)) = tokens.read()? {
            parts.base = entry.value("xml:base")?.map(Into::into);
        }
        while let Some(token) = tokens.read()? {
            if let Token::Start(tag) = token {
                parts.take_element(&tag, &mut tokens)?;
            }
        }
        Ok(parts)
    }

    fn take_element(&mut self, tag: &Tag<'_>, tokens: &mut Tokens<'_>) -> Result<(), XmlError> {
        let is = |local| tag.is(ATOM, local);
        if is("id") {
            self.id = text_of(tokens)?;
        } else if is("updated") {
            self.updated = text_of(tokens)?;
        } else if is("published") {
            self.published = Some(text_of(tokens)?);
        } else {
            let mut scope: Vec<(&str, Namespace<'_>)> = vec![];
            if is("author") {
                scope.extend(
                    tokens
                        .inherited_scope()
                        .map(|(prefix, uri)| (prefix, uri.clone())),
                );
            }
            tokens.skip()?;
            self.has_source |= is("source");
            self.has_summary |= is("summary");
            if is("content") {
                self.content = Some(tag.range.start..tokens.position());
            } else if is("author") && self.author.is_none() {
                let author = outline(tokens.text(), tag, tokens.position(), &scope);
                let base = self.base.as_ref().map_or(0, String::len);
                let fits = |author: &String| author.len() + base <= AUTHOR_BYTES_MAX;
                self.author = Some(author).filter(fits);
            }
        }
        Ok(())
    }

    /// Returns the entry with a link instead of the content, or `None` if there is no content.
    fn with_link(&self, text: &str, origin: &EntryOrigin<'_>) -> Option<String> {
        let content = self.content.clone()?;
        let mut out = String::from(text.get(..content.start)?);
        push_linked_content(origin, self.has_summary, &mut out);
        out.push_str(text.get(content.end..)?);
        Some(out)
    }

    /// Returns the reduced entry: the id, the id as the title, the dates, the author if there is
    /// room, and a link as the content.
    fn reduce_to(&self, origin: &EntryOrigin<'_>) -> String {
        let mut out = String::from("<entry");
        push_attribute("xmlns", ATOM, &mut out);
        // Only an author may have a relative reference here.
        if let (Some(base), Some(_)) = (&self.base, &self.author) {
            push_attribute("xml:base", base, &mut out);
        }
        out.push('>');
        push_element("id", &self.id, &mut out);
        push_element("title", &self.id, &mut out);
        push_element("updated", &self.updated, &mut out);
        if let Some(published) = &self.published {
            push_element("published", published, &mut out);
        }
        out.push_str(self.author.as_deref().unwrap_or_default());
        push_linked_content(origin, false, &mut out);
        out.push_str("</entry>");
        out
    }
}

/// Returns the text of the element whose start tag was the last token.
fn text_of(tokens: &mut Tokens<'_>) -> Result<String, XmlError> {
    let mut text = String::new();
    loop {
        match tokens.read()? {
            Some(Token::Text(piece)) => text.push_str(&piece),
            // The gate accepts no element in an id or a date.
            Some(Token::Start(_)) => tokens.skip()?,
            Some(Token::End(_)) | None => return Ok(text.trim().into()),
        }
    }
}

#[cfg(test)]
mod tests;
