//! An entry's fragment, read back into an event.
//!
//! Pure. Lenient where it can be: it must read whatever a foreign feed holds, and what it returns
//! must be an event that a server takes. Titles and summaries are given as text, `html` ones with their
//! markup;
//! references are made absolute; foreign elements have no member and are left out. Content that its
//! type promises and does not keep (JSON that is none, XML that is not one element) is given as text.

use serde_json::value::RawValue;
use url::Url;

use super::{Author, AuthorPerson, Authors, Category, Event, FullCategory, Link};
use crate::{
    scanner::{is_json_type, is_xml_type, outline},
    xml::{ATOM, Tag, Token, Tokens, XmlError},
};

impl Event {
    /// Returns the event that an entry's fragment stands for.
    ///
    /// JSON content is given verbatim, but on one line; inline XML as the text of its element with
    /// the declarations it needs; all else as a string. Content that is elsewhere becomes a link
    /// with the relation `related`.
    ///
    /// # Errors
    ///
    /// Returns what is not well-formed.
    pub fn from_entry(fragment: &str) -> Result<Self, XmlError> {
        let mut tokens = Tokens::new(fragment)?;
        let base = match tokens.read()? {
            Some(Token::Start(entry)) => inside(None, &entry)?,
            _ => None,
        };
        let mut reading = Reading {
            tokens,
            event: Self::default(),
        };
        while let Some(child) = reading.child()? {
            if child.namespace == ATOM {
                let base = inside(base.as_ref(), &child)?;
                reading.read(&child, base.as_ref())?;
            } else {
                reading.tokens.skip()?;
            }
        }
        Ok(reading.event)
    }
}

/// Returns what references inside `tag` are resolved against (rule A-4), as far as it is absolute.
fn inside(outer: Option<&Url>, tag: &Tag<'_>) -> Result<Option<Url>, XmlError> {
    let Some(own) = tag.value("xml:base")? else {
        return Ok(outer.cloned());
    };
    Ok(match outer {
        Some(outer) => outer.join(&own).ok(),
        None => Url::parse(&own).ok(),
    })
}

fn absolute(reference: String, base: Option<&Url>) -> String {
    if Url::parse(&reference).is_ok() {
        return reference;
    }
    match base.and_then(|base| base.join(&reference).ok()) {
        Some(url) => url.into(),
        None => reference,
    }
}

struct Reading<'a> {
    tokens: Tokens<'a>,
    event: Event,
}

/// What is inside a content element of an XML type.
enum Markup {
    /// One element, standing alone.
    Element(String),
    /// Anything else: its text.
    Text(String),
}

impl<'a> Reading<'a> {
    fn read(&mut self, tag: &Tag<'a>, base: Option<&Url>) -> Result<(), XmlError> {
        match tag.local {
            "id" => self.event.id = Some(self.text()?),
            "title" => self.event.title = Some(self.text()?),
            "updated" => self.event.updated = Some(self.text()?),
            "published" => self.event.published = Some(self.text()?),
            "summary" => self.event.summary = Some(self.text()?),
            "author" => self.author(base)?,
            "category" => self.category(tag)?,
            "link" => self.link(tag, base)?,
            "content" => self.content(tag, base)?,
            _ => self.tokens.skip()?,
        }
        Ok(())
    }

    fn child(&mut self) -> Result<Option<Tag<'a>>, XmlError> {
        loop {
            match self.tokens.read()? {
                Some(Token::Start(tag)) => return Ok(Some(tag)),
                Some(Token::Text(_)) => {}
                Some(Token::End(_)) | None => return Ok(None),
            }
        }
    }

    /// Returns all character data up to the end of the current element.
    fn text(&mut self) -> Result<String, XmlError> {
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

    fn author(&mut self, base: Option<&Url>) -> Result<(), XmlError> {
        let mut person = AuthorPerson {
            name: String::new(),
            uri: None,
            email: None,
        };
        while let Some(child) = self.child()? {
            match child.local {
                "name" if child.namespace == ATOM => person.name = self.text()?,
                "uri" if child.namespace == ATOM => {
                    let base = inside(base, &child)?;
                    person.uri = Some(absolute(self.text()?, base.as_ref()));
                }
                "email" if child.namespace == ATOM => person.email = Some(self.text()?),
                _ => self.tokens.skip()?,
            }
        }
        let author = match person {
            AuthorPerson {
                name,
                uri: None,
                email: None,
            } => Author::Name(name),
            person => Author::Person(person),
        };
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

    fn category(&mut self, tag: &Tag<'a>) -> Result<(), XmlError> {
        let term = owned(tag, "term")?.unwrap_or_default();
        let category = match (owned(tag, "scheme")?, owned(tag, "label")?) {
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

    fn link(&mut self, tag: &Tag<'a>, base: Option<&Url>) -> Result<(), XmlError> {
        let link = Link {
            rel: owned(tag, "rel")?,
            href: absolute(owned(tag, "href")?.unwrap_or_default(), base),
            kind: owned(tag, "type")?,
            hreflang: owned(tag, "hreflang")?,
            title: owned(tag, "title")?,
            length: owned(tag, "length")?,
        };
        self.event.links.get_or_insert_default().push(link);
        self.tokens.skip()
    }

    fn content(&mut self, tag: &Tag<'a>, base: Option<&Url>) -> Result<(), XmlError> {
        let kind = owned(tag, "type")?;
        if let Some(source) = owned(tag, "src")? {
            let href = absolute(source, base);
            let link = Link {
                rel: Some("related".into()),
                href,
                kind,
                ..Link::default()
            };
            self.event.links.get_or_insert_default().push(link);
            return self.tokens.skip();
        }
        let kind = kind.unwrap_or("text".into());
        let (kind, content) = if kind == "xhtml" || is_xml_type(&kind) {
            match self.markup()? {
                Markup::Element(element) => (kind, to_json(&element)),
                Markup::Text(text) => ("text".into(), to_json(&text)),
            }
        } else {
            let text = self.text()?;
            if !is_json_type(&kind) {
                (kind, to_json(&text))
            } else if let Some(json) = one_line_json(&text) {
                (kind, json)
            } else {
                ("text".into(), to_json(&text))
            }
        };
        self.event.content = Some(content);
        self.event.kind = Some(kind);
        Ok(())
    }

    /// Returns what is inside the current element.
    fn markup(&mut self) -> Result<Markup, XmlError> {
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
                    let scope = self.tokens.in_scope();
                    let within = self.text()?;
                    let end = self.tokens.position();
                    elements += 1;
                    if elements == 1 {
                        first = Some(outline(self.tokens.text(), &tag, end, &scope));
                    }
                    text.push_str(&within);
                }
                Some(Token::End(_)) | None => break,
            }
        }
        Ok(match first {
            Some(element) if elements == 1 && blank_outside => Markup::Element(element),
            _ => Markup::Text(text),
        })
    }
}

fn owned(tag: &Tag<'_>, name: &str) -> Result<Option<String>, XmlError> {
    Ok(tag.value(name)?.map(std::borrow::Cow::into_owned))
}

/// Returns `text` as the JSON it is, on one line, or `None` if it is not JSON.
///
/// A line end in JSON can only be white space between tokens: strings may not contain one.
fn one_line_json(text: &str) -> Option<Box<RawValue>> {
    let one_line = text.replace(['\n', '\r'], " ");
    serde_json::from_str(one_line.trim()).ok()
}

fn to_json(text: &str) -> Box<RawValue> {
    serde_json::value::to_raw_value(text).expect("a string has a JSON form")
}
