//! The parts of an entry: text, dates, people, links, categories, content.
//!
//! Pure. One function per construct of RFC 4287, each reading to the end of its element.

use data_encoding::BASE64;

use super::{Base, Findings, Scan, essence, is_json_type, is_xml_type};
use crate::{
    entry::Person,
    feed::{EntryId, has_scheme},
    instant::Instant,
    refusal::Refusal,
    xml::{ATOM, Tag, Token, XHTML},
};

impl<'a> Scan<'a> {
    /// RFC 4287, 4.2.6.
    pub(super) fn id(&mut self, tag: &Tag<'a>) -> Result<EntryId, Refusal> {
        let text = self.only_text(tag, "RFC 4287, 4.2.6")?;
        EntryId::parse(&text).ok_or_else(|| {
            let detail = "id is not an absolute IRI without white space, of at most 2048 bytes";
            self.unacceptable(tag, detail, "RFC 4287, 4.2.6 (A-2)")
        })
    }

    /// RFC 4287, 3.3.
    pub(super) fn date(&mut self, tag: &Tag<'a>) -> Result<(), Refusal> {
        let text = self.only_text(tag, "RFC 4287, 3.3")?;
        if Instant::parse(&text).is_none() {
            let detail = format!("{} is not an RFC 3339 date-time", tag.local);
            return Err(self.unacceptable(tag, detail, "RFC 4287, 3.3 (A-2)"));
        }
        Ok(())
    }

    /// RFC 4287, 3.1: `text` and `html` hold no elements, `xhtml` one `div`.
    pub(super) fn text_construct(&mut self, tag: &Tag<'a>) -> Result<(), Refusal> {
        let kind = self.value(tag, "type")?;
        match kind.as_deref() {
            None | Some("text" | "html") => self.only_text(tag, "RFC 4287, 3.1.1").map(drop),
            Some("xhtml") => self.one_div(tag),
            Some(_) => {
                let detail = format!("type of {} is not text, html or xhtml", tag.local);
                Err(self.unacceptable(tag, detail, "RFC 4287, 3.1.1"))
            }
        }
    }

    /// RFC 4287, 3.1.1.3.
    fn one_div(&mut self, tag: &Tag<'a>) -> Result<(), Refusal> {
        let mut children = vec![];
        while let Some(child) = self.child(tag)? {
            children.push(child.is(XHTML, "div"));
            self.skip()?;
        }
        if children == [true] {
            return Ok(());
        }
        let detail = format!(
            "{} of type xhtml does not hold exactly one XHTML div",
            tag.local
        );
        Err(self.unacceptable(tag, detail, "RFC 4287, 3.1.1.3"))
    }

    /// RFC 4287, 3.2: one name, at most one uri and one email.
    pub(super) fn person(&mut self, tag: &Tag<'a>, base: &Base) -> Result<Person, Refusal> {
        let rule = "RFC 4287, 3.2";
        let base = self.inside(base, tag)?;
        let (mut name, mut uri, mut email) = (None, None, None);
        while let Some(child) = self.child(tag)? {
            let slot = match child.local {
                "name" if child.namespace == ATOM => &mut name,
                "uri" if child.namespace == ATOM => &mut uri,
                "email" if child.namespace == ATOM => &mut email,
                _ => {
                    self.skip()?;
                    continue;
                }
            };
            if slot.is_some() {
                let detail = format!("{} is given twice", child.local);
                return Err(self.unacceptable(&child, detail, rule));
            }
            *slot = Some(self.only_text(&child, rule)?);
            if let ("uri", Some(uri)) = (child.local, &slot) {
                let base = self.inside(&base, &child)?;
                self.check_reference(&child, "uri", uri, &base)?;
            }
        }
        let Some(name) = name else {
            return Err(self.unacceptable(tag, format!("{} has no name", tag.local), rule));
        };
        Ok(Person { name, uri, email })
    }

    /// RFC 4287, 4.2.7.
    pub(super) fn link(
        &mut self,
        tag: &Tag<'a>,
        base: &Base,
        findings: &mut Findings,
    ) -> Result<(), Refusal> {
        let rule = "RFC 4287, 4.2.7";
        let base = self.inside(base, tag)?;
        let Some(href) = self.value(tag, "href")? else {
            return Err(self.unacceptable(tag, "link has no href", rule));
        };
        self.check_reference(tag, "href", &href, &base)?;
        let rel = self.value(tag, "rel")?.unwrap_or("alternate".into());
        if rel.trim().is_empty() {
            return Err(self.unacceptable(tag, "link has an empty rel", "RFC 4287, 4.2.7.2 (A-5)"));
        }
        if rel == "alternate" || rel == "http://www.iana.org/assignments/relation/alternate" {
            let kind = self.value(tag, "type")?.unwrap_or_default().into_owned();
            let language = self
                .value(tag, "hreflang")?
                .unwrap_or_default()
                .into_owned();
            if findings
                .alternates
                .contains(&(kind.clone(), language.clone()))
            {
                let detail = "two alternate links have the same type and hreflang";
                return Err(self.unacceptable(tag, detail, "RFC 4287, 4.1.2 (A-10)"));
            }
            findings.alternates.push((kind, language));
        }
        self.skip()
    }

    /// RFC 4287, 4.2.2.
    pub(super) fn category(&mut self, tag: &Tag<'a>) -> Result<(), Refusal> {
        if tag.attribute("term").is_none() {
            return Err(self.unacceptable(tag, "category has no term", "RFC 4287, 4.2.2.1"));
        }
        self.skip()
    }

    /// RFC 4287, 4.2.11. Returns whether the source names an author, which the entry inherits
    /// (rule A-12).
    pub(super) fn source(&mut self, tag: &Tag<'a>, base: &Base) -> Result<bool, Refusal> {
        let base = self.inside(base, tag)?;
        let mut author = false;
        while let Some(child) = self.child(tag)? {
            if child.namespace == ATOM && ["author", "contributor"].contains(&child.local) {
                author |= child.local == "author";
                self.person(&child, &base)?;
                continue;
            }
            if child.namespace == ATOM {
                let base = self.inside(&base, &child)?;
                for name in ["href", "uri"] {
                    if let Some(reference) = self.value(&child, name)? {
                        self.check_reference(&child, name, &reference, &base)?;
                    }
                }
            }
            self.skip()?;
        }
        Ok(author)
    }

    /// RFC 4287, 4.1.3. Returns whether the content is elsewhere or in Base64.
    pub(super) fn content(&mut self, tag: &Tag<'a>, base: &Base) -> Result<bool, Refusal> {
        let rule = "RFC 4287, 4.1.3.3";
        let kind = self.value(tag, "type")?;
        let source = self.value(tag, "src")?;
        let keyword = matches!(kind.as_deref(), Some("text" | "html" | "xhtml"));
        if let Some(kind) = kind.as_deref().filter(|_| !keyword) {
            self.check_media_type(tag, kind)?;
        }
        if let Some(source) = source {
            let base = self.inside(base, tag)?;
            self.check_reference(tag, "src", &source, &base)?;
            if keyword {
                let detail = "content with src has a type that is no media type";
                return Err(self.unacceptable(tag, detail, "RFC 4287, 4.1.3.2 (A-14)"));
            }
            return self.nothing(tag).map(|()| true);
        }
        match kind.as_deref() {
            None | Some("text" | "html") => self.only_text(tag, rule).map(|_| false),
            Some("xhtml") => self.one_div(tag).map(|()| false),
            Some(kind) if is_xml_type(kind) => self.skip().map(|()| false),
            Some(kind) if essence(kind).starts_with("text/") || is_json_type(kind) => {
                self.only_text(tag, rule).map(|_| false)
            }
            Some(_) => self.base64(tag).map(|()| true),
        }
    }

    fn nothing(&mut self, tag: &Tag<'a>) -> Result<(), Refusal> {
        if let Some(Token::End(_)) = self.next()? {
            Ok(())
        } else {
            let detail = "content with src is not empty";
            Err(self.unacceptable(tag, detail, "RFC 4287, 4.1.3.2 (A-14)"))
        }
    }

    fn base64(&mut self, tag: &Tag<'a>) -> Result<(), Refusal> {
        let rule = "RFC 4287, 4.1.3.3";
        let mut text = self.only_text(tag, rule)?;
        text.retain(|c| !c.is_ascii_whitespace());
        match BASE64.decode(text.as_bytes()) {
            Ok(_) => Ok(()),
            Err(_) => Err(self.unacceptable(tag, "content is not Base64", rule)),
        }
    }

    /// A media type that may stand in an entry: not a composite one (RFC 4287, 4.1.3.1).
    fn check_media_type(&self, tag: &Tag<'a>, kind: &str) -> Result<(), Refusal> {
        let bare = essence(kind);
        let token = |part: &str| {
            !part.is_empty()
                && part
                    .bytes()
                    .all(|b| b.is_ascii_alphanumeric() || b"!#$&^_.+-".contains(&b))
        };
        let composite = bare.starts_with("multipart/") || bare.starts_with("message/");
        match bare.split_once('/') {
            Some((kind, sub)) if token(kind) && token(sub) && !composite => Ok(()),
            _ => {
                let detail = format!("type {kind:?} is not a media type that content can have");
                Err(self.unacceptable(tag, detail, "RFC 4287, 4.1.3.1"))
            }
        }
    }

    /// A reference must not depend on where the entry stands.
    fn check_reference(
        &self,
        tag: &Tag<'a>,
        attribute: &str,
        reference: &str,
        base: &Base,
    ) -> Result<(), Refusal> {
        if reference.contains(|c: char| c.is_whitespace() || c.is_control()) {
            let detail = format!("{attribute} of {} contains white space", tag.local);
            return Err(self.unacceptable(tag, detail, "RFC 4287, 2 (A-2)"));
        }
        if has_scheme(reference) || base.0.is_some() {
            return Ok(());
        }
        let detail = format!(
            "{attribute} of {} is the relative reference {reference:?} without an absolute xml:base",
            tag.local
        );
        Err(self.unacceptable(tag, detail, "Simplefeed profile: entries stand alone"))
    }
}
