//! An entry's fragment, read back into an event.
//!
//! Pure. Lenient where it can be: it must read whatever a foreign feed holds. Markup of titles and
//! summaries is given as its text; foreign elements have no member and are left out.

use serde_json::value::RawValue;

use super::{Author, AuthorPerson, Authors, Category, Event, FullCategory, Link};
use crate::{
    scanner::{is_json_type, is_xml_type, outline},
    xml::{ATOM, Tag, Token, Tokens, XmlError},
};

impl Event {
    /// Returns the event that an entry's fragment stands for.
    ///
    /// JSON content is given verbatim, but on one line; inline XML as the text of its element with
    /// the declarations it needs; all else as a string.
    ///
    /// # Errors
    ///
    /// Returns what is not well-formed.
    pub fn from_entry(fragment: &str) -> Result<Self, XmlError> {
        let mut reading = Reading {
            tokens: Tokens::new(fragment)?,
            event: Self::default(),
        };
        reading.tokens.read()?;
        while let Some(child) = reading.child()? {
            if child.namespace == ATOM {
                reading.read(&child)?;
            } else {
                reading.tokens.skip()?;
            }
        }
        Ok(reading.event)
    }
}

struct Reading<'a> {
    tokens: Tokens<'a>,
    event: Event,
}

impl<'a> Reading<'a> {
    fn read(&mut self, tag: &Tag<'a>) -> Result<(), XmlError> {
        match tag.local {
            "id" => self.event.id = Some(self.text()?),
            "title" => self.event.title = Some(self.text()?),
            "updated" => self.event.updated = Some(self.text()?),
            "published" => self.event.published = Some(self.text()?),
            "summary" => self.event.summary = Some(self.text()?),
            "author" => self.author()?,
            "category" => self.category(tag)?,
            "link" => self.link(tag)?,
            "content" => self.content(tag)?,
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

    fn author(&mut self) -> Result<(), XmlError> {
        let mut person = AuthorPerson {
            name: String::new(),
            uri: None,
            email: None,
        };
        while let Some(child) = self.child()? {
            match child.local {
                "name" if child.namespace == ATOM => person.name = self.text()?,
                "uri" if child.namespace == ATOM => person.uri = Some(self.text()?),
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

    fn link(&mut self, tag: &Tag<'a>) -> Result<(), XmlError> {
        let link = Link {
            rel: owned(tag, "rel")?,
            href: owned(tag, "href")?.unwrap_or_default(),
            kind: owned(tag, "type")?,
            hreflang: owned(tag, "hreflang")?,
            title: owned(tag, "title")?,
            length: owned(tag, "length")?,
        };
        self.event.links.get_or_insert_default().push(link);
        self.tokens.skip()
    }

    fn content(&mut self, tag: &Tag<'a>) -> Result<(), XmlError> {
        let kind = owned(tag, "type")?.unwrap_or("text".into());
        if tag.attribute("src").is_some() {
            self.event.kind = Some(kind).filter(|kind| kind != "text");
            return self.tokens.skip();
        }
        let content = if kind == "xhtml" || is_xml_type(&kind) {
            to_json(&self.markup()?)
        } else {
            let text = self.text()?;
            json_content(&kind, &text).unwrap_or_else(|| to_json(&text))
        };
        self.event.content = Some(content);
        self.event.kind = Some(kind);
        Ok(())
    }

    /// Returns the elements inside the current one, each so that it stands alone.
    fn markup(&mut self) -> Result<String, XmlError> {
        let mut markup = String::new();
        while let Some(child) = self.child()? {
            let scope = self.tokens.in_scope();
            self.tokens.skip()?;
            let end = self.tokens.position();
            markup.push_str(&outline(self.tokens.text(), &child, end, &scope));
        }
        Ok(markup)
    }
}

fn owned(tag: &Tag<'_>, name: &str) -> Result<Option<String>, XmlError> {
    Ok(tag.value(name)?.map(std::borrow::Cow::into_owned))
}

/// Returns `text` as the JSON it is, on one line, or `None` if it is not JSON.
///
/// A line end in JSON can only be white space between tokens: strings may not contain one.
fn json_content(kind: &str, text: &str) -> Option<Box<RawValue>> {
    if !is_json_type(kind) {
        return None;
    }
    let one_line = text.replace(['\n', '\r'], " ");
    serde_json::from_str(one_line.trim()).ok()
}

fn to_json(text: &str) -> Box<RawValue> {
    serde_json::value::to_raw_value(text).expect("a string has a JSON form")
}
