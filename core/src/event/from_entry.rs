//! An entry's fragment, read back into an event.
//!
//! Pure. Lenient where possible: the reader accepts the entries of foreign feeds, and the result
//! must be an event that a server accepts. Titles and summaries become text; those of type `html`
//! keep the markup. References become absolute. Foreign elements have no member and are left out.
//! Content that breaks the promise of the type (not JSON under a JSON type, not one element under
//! an XML type) becomes text.

use std::sync::Arc;

use url::Url;

use super::{
    Author, AuthorPerson, Authors, Category, Event, FullCategory, Link,
    content::{content_of_text, to_json},
    plain::Plain,
};
use crate::{
    feed::Position,
    limits::{UNFOLDED_BYTES_MIN, UNFOLDED_PER_BYTE_MAX},
    scanner::{is_xml_type, outline},
    xml::{ATOM, Tag, Token, Tokens, XmlError},
};

impl Event {
    /// Returns the event of an entry's fragment.
    ///
    /// JSON content stays verbatim, but on one line. Inline XML becomes a string: the element as
    /// written, with the namespace declarations in scope. All other content becomes a string, too.
    /// Content that is elsewhere becomes a link with the relation `related`.
    ///
    /// # Errors
    ///
    /// The fragment is not well-formed XML, or the event would be many times as long as the entry.
    pub fn from_entry(fragment: &str) -> Result<Self, XmlError> {
        Plain::read(fragment)
            .map_or_else(|| Self::from_any_entry(fragment), |entry| Ok(entry.event()))
    }

    /// Returns the event of a fragment as [one line](Self::line) of JSON, without making the event
    /// first. `None` for an entry that is not of a common form, that has no id, or whose JSON
    /// content has several lines or is not JSON. The line of such an entry is made of the event.
    ///
    /// # Examples
    ///
    /// ```
    /// use simplefeed_core::event::Event;
    ///
    /// let fragment = "<entry xmlns=\"http://www.w3.org/2005/Atom\"><id>urn:1</id><title>A &amp; B</title></entry>";
    /// let line = Event::line_of_common(fragment, None, None, None);
    /// assert_eq!(line.as_deref(), Some(r#"{"id":"urn:1","title":"A & B"}"#));
    /// ```
    pub fn line_of_common(
        fragment: &str,
        document: Option<&str>,
        feed: Option<&str>,
        position: Option<Position>,
    ) -> Option<String> {
        Plain::read(fragment)?.line(document, feed, position)
    }

    /// Returns the event of a fragment of any form.
    pub(super) fn from_any_entry(fragment: &str) -> Result<Self, XmlError> {
        let mut reading = EntryReader {
            tokens: Tokens::new(fragment)?,
            event: Self::default(),
            left: UNFOLDED_BYTES_MIN.max(UNFOLDED_PER_BYTE_MAX.saturating_mul(fragment.len())),
        };
        let base = match reading.tokens.read()? {
            Some(Token::Start(entry)) => reading.base_inside(None, &entry)?,
            _ => None,
        };
        while let Some(child) = reading.next_child()? {
            if child.namespace == *ATOM {
                let base = reading.base_inside(base.as_ref(), &child)?;
                reading.read_child(&child, base.as_ref())?;
            } else {
                reading.tokens.skip()?;
            }
        }
        Ok(reading.event)
    }
}

/// Absolute base of relative references (rule A-4), if there is one.
type BaseUrl = Option<Arc<Url>>;

struct EntryReader<'a> {
    tokens: Tokens<'a>,
    event: Event,
    /// Allowance of bytes from outside the entry's own text: bases and declarations that are
    /// written out at each use.
    left: usize,
}

/// Inside of a content element of an XML type.
enum Markup {
    /// Exactly one element, with the declarations to stand alone.
    Element(String),
    /// Anything else: the text only.
    Text(String),
}

impl<'a> EntryReader<'a> {
    fn read_child(&mut self, tag: &Tag<'a>, base: Option<&Arc<Url>>) -> Result<(), XmlError> {
        match tag.local {
            // A later element of the same name wins; foreign entries may repeat one.
            "id" => self.event.id = Some(self.read_text()?),
            "title" => self.event.title = Some(self.read_text()?),
            "updated" => self.event.updated = Some(self.read_text()?),
            "published" => self.event.published = Some(self.read_text()?),
            "summary" => self.event.summary = Some(self.read_text()?),
            "author" => self.read_author(base)?,
            "category" => self.read_category(tag)?,
            "link" => self.read_link(tag, base)?,
            "content" => self.read_content(tag, base)?,
            _ => self.tokens.skip()?,
        }
        Ok(())
    }

    /// Subtracts bytes from the allowance before they are written out.
    fn allow_bytes(&mut self, bytes: usize) -> Result<(), XmlError> {
        let left = self.left.checked_sub(bytes).ok_or_else(|| {
            let detail =
                "its bases and declarations, written out, are many times as long as the entry";
            XmlError::new(detail, self.tokens.position())
        })?;
        self.left = left;
        Ok(())
    }

    fn absolute_url(
        &mut self,
        reference: String,
        base: Option<&Arc<Url>>,
    ) -> Result<String, XmlError> {
        let Some(base) = base.filter(|_| Url::parse(&reference).is_err()) else {
            return Ok(reference);
        };
        // A short reference under a long base grows with each use.
        self.allow_bytes(base.as_str().len())?;
        Ok(base.join(&reference).map_or(reference, String::from))
    }

    /// Returns the base that applies inside `tag`.
    fn base_inside(
        &mut self,
        outer: Option<&Arc<Url>>,
        tag: &Tag<'_>,
    ) -> Result<BaseUrl, XmlError> {
        let Some(own) = tag.value("xml:base")? else {
            return Ok(outer.cloned());
        };
        let joined = match outer {
            Some(outer) => {
                self.allow_bytes(outer.as_str().len())?;
                outer.join(&own)
            }
            None => Url::parse(&own),
        };
        // Elements inside a base that does not resolve have no base.
        Ok(joined.ok().map(Arc::new))
    }

    fn next_child(&mut self) -> Result<Option<Tag<'a>>, XmlError> {
        loop {
            match self.tokens.read()? {
                Some(Token::Start(tag)) => return Ok(Some(tag)),
                Some(Token::Text(_)) => {}
                Some(Token::End(_)) | None => return Ok(None),
            }
        }
    }

    /// Returns all character data up to the end of the current element.
    fn read_text(&mut self) -> Result<String, XmlError> {
        let mut text = String::new();
        let mut depth = 0_usize;
        loop {
            match self.tokens.read()? {
                Some(Token::Text(piece)) => text.push_str(&piece),
                Some(Token::Start(_)) => depth += 1,
                Some(Token::End(_)) if depth > 0 => depth -= 1,
                Some(Token::End(_)) | None => return Ok(text),
            }
        }
    }

    fn read_author(&mut self, base: Option<&Arc<Url>>) -> Result<(), XmlError> {
        let mut person = AuthorPerson {
            name: String::new(),
            uri: None,
            email: None,
        };
        while let Some(child) = self.next_child()? {
            match child.local {
                "name" if child.namespace == *ATOM => person.name = self.read_text()?,
                "uri" if child.namespace == *ATOM => {
                    let base = self.base_inside(base, &child)?;
                    let uri = self.read_text()?;
                    person.uri = Some(self.absolute_url(uri, base.as_ref())?);
                }
                "email" if child.namespace == *ATOM => person.email = Some(self.read_text()?),
                _ => self.tokens.skip()?,
            }
        }
        // The short form keeps events of plain names small.
        let author = match person {
            AuthorPerson {
                name,
                uri: None,
                email: None,
            } => Author::Name(name),
            person => Author::Person(person),
        };
        // One author stays a single value; the second makes an array.
        self.event.author = Some(match self.event.author.take() {
            None => Authors::One(author),
            Some(Authors::One(first)) => Authors::Many(vec![first, author]),
            Some(Authors::Many(mut authors)) => {
                authors.push(author);
                Authors::Many(authors)
            }
        });
        Ok(())
    }

    fn read_category(&mut self, tag: &Tag<'a>) -> Result<(), XmlError> {
        let term = owned_attribute(tag, "term")?.unwrap_or_default();
        let category = match (
            owned_attribute(tag, "scheme")?,
            owned_attribute(tag, "label")?,
        ) {
            (None, None) => Category::Term(term),
            (scheme, label) => Category::Full(FullCategory {
                term,
                scheme,
                label,
            }),
        };
        self.event.categories.get_or_insert_default().push(category);
        self.tokens.skip()
    }

    fn read_link(&mut self, tag: &Tag<'a>, base: Option<&Arc<Url>>) -> Result<(), XmlError> {
        let link = Link {
            rel: owned_attribute(tag, "rel")?,
            href: self.absolute_url(owned_attribute(tag, "href")?.unwrap_or_default(), base)?,
            kind: owned_attribute(tag, "type")?,
            hreflang: owned_attribute(tag, "hreflang")?,
            title: owned_attribute(tag, "title")?,
            length: owned_attribute(tag, "length")?,
        };
        self.event.links.get_or_insert_default().push(link);
        self.tokens.skip()
    }

    fn read_content(&mut self, tag: &Tag<'a>, base: Option<&Arc<Url>>) -> Result<(), XmlError> {
        let kind = owned_attribute(tag, "type")?;
        if let Some(source) = owned_attribute(tag, "src")? {
            let href = self.absolute_url(source, base)?;
            let link = Link {
                rel: Some("related".into()),
                href,
                kind,
                ..Link::default()
            };
            self.event.links.get_or_insert_default().push(link);
            return self.tokens.skip();
        }
        // RFC 4287, 4.1.3.1: a missing type means `text`.
        let kind = kind.unwrap_or("text".into());
        let (kind, content) = if kind == "xhtml" || is_xml_type(&kind) {
            match self.read_markup()? {
                Markup::Element(element) => (kind, to_json(&element)),
                Markup::Text(text) => ("text".into(), to_json(&text)),
            }
        } else {
            content_of_text(kind, &self.read_text()?)
        };
        self.event.content = Some(content);
        self.event.kind = Some(kind);
        Ok(())
    }

    /// Returns the inside of the current element: the only element there, or the text.
    fn read_markup(&mut self) -> Result<Markup, XmlError> {
        let mut text = String::new();
        let mut elements = 0_usize;
        let mut blank_outside = true;
        let mut first = None;
        loop {
            match self.tokens.read()? {
                Some(Token::Text(piece)) => {
                    blank_outside &= piece.trim().is_empty();
                    text.push_str(&piece);
                }
                Some(Token::Start(tag)) => {
                    elements += 1;
                    // The scope is copied before the element is read, because the reader's scope
                    // moves on.
                    let scope: Option<Vec<_>> = (elements == 1).then(|| {
                        let scope = self.tokens.in_scope();
                        scope.map(|(prefix, uri)| (prefix, uri.clone())).collect()
                    });
                    text.push_str(&self.read_text()?);
                    if let Some(scope) = scope {
                        // The declarations are written onto the element, so they count before that.
                        self.allow_bytes(scope.iter().map(|(_, uri)| uri.len()).sum())?;
                        let end = self.tokens.position();
                        first = Some(outline(self.tokens.text(), &tag, end, &scope));
                    }
                }
                Some(Token::End(_)) | None => break,
            }
        }
        Ok(match first {
            // Text beside the element, or a second element, makes mixed content, which has no JSON
            // form.
            Some(element) if elements == 1 && blank_outside => Markup::Element(element),
            _ => Markup::Text(text),
        })
    }
}

fn owned_attribute(tag: &Tag<'_>, name: &str) -> Result<Option<String>, XmlError> {
    Ok(tag.value(name)?.map(std::borrow::Cow::into_owned))
}
