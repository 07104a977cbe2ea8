//! The parts of an entry: text, dates, people, links, categories, content.
//!
//! Pure. One function per construct of RFC 4287, each reading to the end of the element.

use data_encoding::BASE64;

use super::{EntryFacts, JsonForm, Rewrite, Scan, essence, is_xml_type};
use crate::{
    entry::Person,
    feed::{EntryId, has_scheme},
    limits::ENTRY_ID_BYTES_MAX,
    refusal::Refusal,
    timestamp::Timestamp,
    xml::{ATOM, Tag, Token, XHTML},
};

/// Maximum length of a wrong value in a message, in characters.
const SHOWN_CHARS_MAX: usize = 80;

/// Returns a wrong value, cut to the first [`SHOWN_CHARS_MAX`] characters.
fn shorten_value(text: &str) -> String {
    let mut chars = text.chars();
    let mut shown: String = chars.by_ref().take(SHOWN_CHARS_MAX).collect();
    if chars.next().is_some() {
        shown.push('…');
    }
    shown
}

/// Returns a suggestion for an id that is only a number or a word; empty for any other id.
fn hint_for_id(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if text.is_empty() || text.len() > SHOWN_CHARS_MAX || !text.chars().all(is_plain) {
        return String::new();
    }
    format!("; it could be urn:example:{text}")
}

impl<'a> Scan<'a> {
    /// Reads an `atom:id`: an absolute IRI without white space (RFC 4287, 4.2.6).
    pub(super) fn id(&mut self, tag: &Tag<'a>) -> Result<EntryId, Refusal> {
        let text = self.only_text(tag, "RFC 4287, 4.2.6")?;
        EntryId::parse(&text).ok_or_else(|| {
            let detail = format!(
                "id {:?} is not an absolute IRI without white space, of at most {ENTRY_ID_BYTES_MAX} bytes{}",
                shorten_value(&text),
                hint_for_id(&text)
            );
            self.unacceptable(tag, detail, "RFC 4287, 4.2.6 (A-2)")
        })
    }

    /// Reads a date construct: an RFC 3339 date-time (RFC 4287, 3.3).
    pub(super) fn date(&mut self, tag: &Tag<'a>) -> Result<(), Refusal> {
        let text = self.only_text(tag, "RFC 4287, 3.3")?;
        if Timestamp::parse(&text).is_none() {
            let detail = format!(
                "{} {:?} is not an RFC 3339 date-time such as 2026-11-20T08:00:00Z, which ends in Z or an offset",
                tag.local,
                shorten_value(&text)
            );
            return Err(self.unacceptable(tag, detail, "RFC 4287, 3.3 (A-2)"));
        }
        Ok(())
    }

    /// Reads a text construct: the types `text` and `html` hold no elements, `xhtml` holds one
    /// `div` (RFC 4287, 3.1).
    pub(super) fn text_construct(&mut self, tag: &Tag<'a>) -> Result<(), Refusal> {
        let kind = self.attribute_value(tag, "type")?;
        match kind.as_deref() {
            None | Some("text" | "html") => self.only_text(tag, "RFC 4287, 3.1.1").map(drop),
            Some("xhtml") => self.one_div(tag),
            Some(_) => {
                let detail = format!("type of {} is not text, html or xhtml", tag.local);
                Err(self.unacceptable(tag, detail, "RFC 4287, 3.1.1"))
            }
        }
    }

    /// Reads a text construct of type `xhtml`: exactly one XHTML `div` (RFC 4287, 3.1.1.3).
    fn one_div(&mut self, tag: &Tag<'a>) -> Result<(), Refusal> {
        let mut children = vec![];
        while let Some(child) = self.next_child(tag)? {
            children.push(child.is(XHTML, "div"));
            self.skip_element()?;
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

    /// Reads a person: one name, at most one uri and one email (RFC 4287, 3.2).
    pub(super) fn person(&mut self, tag: &Tag<'a>, based: bool) -> Result<Person, Refusal> {
        let rule = "RFC 4287, 3.2";
        let based = self.is_based(based, tag)?;
        let (mut name, mut uri, mut email) = (None, None, None);
        while let Some(child) = self.next_child(tag)? {
            let slot = match child.local {
                "name" if child.namespace == *ATOM => &mut name,
                "uri" if child.namespace == *ATOM => &mut uri,
                "email" if child.namespace == *ATOM => &mut email,
                // Foreign elements are legal in a person, and change nothing.
                _ => {
                    self.skip_element()?;
                    continue;
                }
            };
            if slot.is_some() {
                let detail = format!("{} is given twice", child.local);
                return Err(self.unacceptable(&child, detail, rule));
            }
            *slot = Some(self.only_text(&child, rule)?);
            if let ("uri", Some(uri)) = (child.local, &slot) {
                let based = self.is_based(based, &child)?;
                self.check_reference(&child, "uri", uri, based)?;
            }
        }
        let Some(name) = name else {
            return Err(self.unacceptable(tag, format!("{} has no name", tag.local), rule));
        };
        Ok(Person { name, uri, email })
    }

    /// Reads a link: an `href`, and no second alternate of the same type and language (RFC 4287,
    /// 4.2.7).
    pub(super) fn link(
        &mut self,
        tag: &Tag<'a>,
        based: bool,
        findings: &mut EntryFacts,
    ) -> Result<(), Refusal> {
        let rule = "RFC 4287, 4.2.7";
        let based = self.is_based(based, tag)?;
        let Some(href) = self.attribute_value(tag, "href")? else {
            return Err(self.unacceptable(tag, "link has no href", rule));
        };
        self.check_reference(tag, "href", &href, based)?;
        // A missing `rel` means `alternate`.
        let rel = self
            .attribute_value(tag, "rel")?
            .unwrap_or("alternate".into());
        if rel.trim().is_empty() {
            return Err(self.unacceptable(tag, "link has an empty rel", "RFC 4287, 4.2.7.2 (A-5)"));
        }
        if rel == "alternate" || rel == "http://www.iana.org/assignments/relation/alternate" {
            let kind = self
                .attribute_value(tag, "type")?
                .unwrap_or_default()
                .into_owned();
            let language = self
                .attribute_value(tag, "hreflang")?
                .unwrap_or_default()
                .into_owned();
            if !findings.alternates.insert((kind, language)) {
                let detail = "two alternate links have the same type and hreflang";
                return Err(self.unacceptable(tag, detail, "RFC 4287, 4.1.2 (A-10)"));
            }
        }
        self.skip_element()
    }

    /// Reads a category: `term` is the only required attribute (RFC 4287, 4.2.2).
    pub(super) fn category(&mut self, tag: &Tag<'a>) -> Result<(), Refusal> {
        if tag.attribute("term").is_none() {
            return Err(self.unacceptable(tag, "category has no term", "RFC 4287, 4.2.2.1"));
        }
        self.skip_element()
    }

    /// Reads a source (RFC 4287, 4.2.11). Returns whether the source names an author, whom the
    /// entry inherits (rule A-12).
    pub(super) fn source(&mut self, tag: &Tag<'a>, based: bool) -> Result<bool, Refusal> {
        let based = self.is_based(based, tag)?;
        let mut author = false;
        while let Some(child) = self.next_child(tag)? {
            if child.namespace == *ATOM && ["author", "contributor"].contains(&child.local) {
                author |= child.local == "author";
                self.person(&child, based)?;
                continue;
            }
            // The children of a source differ in kind, but a relative reference is wrong in any of
            // them.
            if child.namespace == *ATOM {
                let based = self.is_based(based, &child)?;
                for name in ["href", "uri"] {
                    if let Some(reference) = self.attribute_value(&child, name)? {
                        self.check_reference(&child, name, &reference, based)?;
                    }
                }
            }
            self.skip_element()?;
        }
        Ok(author)
    }

    /// Reads the content: inline, in Base64, or elsewhere under `src` (RFC 4287, 4.1.3).
    pub(super) fn content(
        &mut self,
        tag: &Tag<'a>,
        based: bool,
        findings: &mut EntryFacts,
    ) -> Result<(), Refusal> {
        let rule = "RFC 4287, 4.1.3.3";
        let kind = self.attribute_value(tag, "type")?;
        let source = self.attribute_value(tag, "src")?;
        let keyword = matches!(kind.as_deref(), Some("text" | "html" | "xhtml"));
        // The three keywords are no media types.
        if let Some(kind) = kind.as_deref().filter(|_| !keyword) {
            self.check_media_type(tag, kind)?;
        }
        if let Some(source) = source {
            let based = self.is_based(based, tag)?;
            self.check_reference(tag, "src", &source, based)?;
            if keyword {
                let detail = "content with src has a type that is no media type";
                return Err(self.unacceptable(tag, detail, "RFC 4287, 4.1.3.2 (A-14)"));
            }
            // Content elsewhere needs a summary (rule A-11).
            findings.opaque = true;
            return self.read_nothing(tag);
        }
        // The order of the arms is that of the rules in RFC 4287, 4.1.3.3.
        match kind.as_deref() {
            None | Some("text" | "html") => self.only_text(tag, rule).map(drop),
            Some("xhtml") => self.one_div(tag),
            Some(kind) if is_xml_type(kind) => self.skip_element(),
            Some(kind) if essence(kind).starts_with("text/") => self.only_text(tag, rule).map(drop),
            Some(kind) => {
                if let Some(form) = JsonForm::of(kind) {
                    return self.read_json(tag, form, findings);
                }
                // Base64 content needs a summary (rule A-11).
                findings.opaque = true;
                let text = self.only_text(tag, rule)?;
                self.check_base64(tag, text, "content is not Base64")
            }
        }
    }

    /// Reads JSON under a type that RFC 4287 wants in Base64. The gate also accepts verbatim JSON,
    /// and stores the JSON in a form that every consumer reads.
    fn read_json(
        &mut self,
        tag: &Tag<'a>,
        form: JsonForm,
        findings: &mut EntryFacts,
    ) -> Result<(), Refusal> {
        let text = self.only_text(tag, "RFC 4287, 4.1.3.3")?;
        // JSON comes first: a number such as `1234` is also valid Base64.
        if serde_json::from_str::<serde::de::IgnoredAny>(&text).is_ok() {
            let inner = tag.range.end..self.start_of_end(tag);
            findings.rewrite = Rewrite::new(self.text, tag, inner, form, &text);
            return Ok(());
        }
        findings.opaque = true;
        self.check_base64(tag, text, "content is neither JSON nor JSON in Base64")
    }

    /// Returns the offset of the end tag that was read last.
    fn start_of_end(&self, tag: &Tag<'a>) -> usize {
        let read = self.text.get(..self.tokens.position());
        // The last `<` read begins the end tag. An empty element has no end tag, hence the bound.
        let end = read.and_then(|read| read.rfind('<'));
        end.unwrap_or(tag.range.end).max(tag.range.end)
    }

    fn read_nothing(&mut self, tag: &Tag<'a>) -> Result<(), Refusal> {
        if let Some(Token::End(_)) = self.next_token()? {
            Ok(())
        } else {
            let detail = "content with src is not empty";
            Err(self.unacceptable(tag, detail, "RFC 4287, 4.1.3.2 (A-14)"))
        }
    }

    fn check_base64(&self, tag: &Tag<'a>, mut text: String, detail: &str) -> Result<(), Refusal> {
        // Encoders wrap Base64 into lines, and the decoder refuses white space.
        text.retain(|c| !c.is_ascii_whitespace());
        match BASE64.decode(text.as_bytes()) {
            Ok(_) => Ok(()),
            Err(_) => Err(self.unacceptable(tag, detail, "RFC 4287, 4.1.3.3")),
        }
    }

    /// Checks that a media type may stand in an entry: not a composite one (RFC 4287, 4.1.3.1).
    fn check_media_type(&self, tag: &Tag<'a>, kind: &str) -> Result<(), Refusal> {
        let bare = essence(kind);
        // The characters of `restricted-name` in RFC 6838.
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

    /// Checks that a reference does not depend on the place where the entry stands.
    fn check_reference(
        &self,
        tag: &Tag<'a>,
        attribute: &str,
        reference: &str,
        based: bool,
    ) -> Result<(), Refusal> {
        if reference.contains(|c: char| c.is_whitespace() || c.is_control()) {
            let detail = format!("{attribute} of {} contains white space", tag.local);
            return Err(self.unacceptable(tag, detail, "RFC 4287, 2 (A-2)"));
        }
        if has_scheme(reference) || based {
            return Ok(());
        }
        let detail = format!(
            "{attribute} of {} is the relative reference {reference:?} without an absolute xml:base",
            tag.local
        );
        Err(self.unacceptable(tag, detail, "Simplefeed profile: entries stand alone"))
    }
}
