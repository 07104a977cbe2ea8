//! Gate for Atom: a posted entry or feed document becomes drafts, or is refused.
//!
//! Pure. Every entry of the log has passed here; JSON events and `atom_syndication` entries become
//! Atom first. Common events are the exception: for them, `event/plain.rs` gives the same result
//! faster. One bad entry spoils a document, so the rules are RFC 4287's for producers. Peculiar
//! entries are useful, so merely unusual input passes (foreign markup, any order, unknown
//! relations).
//!
//! An entry appears in several documents at several URLs, so no entry may depend on the
//! surroundings. The gate writes the inherited context onto the entry, and a relative reference in
//! Atom's own attributes needs an absolute `xml:base`.

use std::{borrow::Cow, collections::HashSet, ops::Range, sync::Arc};

use crate::{
    digest::Digest,
    entry::{Draft, Missing, Person, push_attribute},
    feed::EntryId,
    limits::{
        BATCH_ENTRIES_MAX, ENTRY_BYTES_MAX, INHERITED_BATCH_BYTES_MIN, INHERITED_BYTES_MAX,
        INHERITED_PER_BYTE_MAX,
    },
    refusal::Refusal,
    xml::{ATOM, Attribute, Namespace, Tag, Token, Tokens, XmlError, line_of},
};

mod constructs;
mod inherited;
mod json;

use inherited::InheritedContext;
use json::Rewrite;
pub(crate) use json::{JSON, TEXT_JSON};
pub use json::{JsonForm, holds_raw_json, is_json_type};

/// Returns the drafts of an Atom entry or feed document, in the order to append them: a feed's
/// entries last to first, because feeds list the newest entry first.
///
/// # Errors
///
/// Returns the first error. `Malformed` marks input that is not acceptable XML, `Unacceptable` a
/// broken rule of Atom, `TooLarge` a bound exceeded.
///
/// # Examples
///
/// ```
/// use simplefeed_core::scanner::scan;
///
/// let drafts = scan(b"<entry xmlns='http://www.w3.org/2005/Atom'><title>Hi</title></entry>")?;
/// assert_eq!(drafts.len(), 1);
///
/// let refused = scan(b"<entry xmlns='http://www.w3.org/2005/Atom'><title>Hi</entry>");
/// assert!(refused.is_err());
/// # Ok::<(), simplefeed_core::refusal::Refusal>(())
/// ```
pub fn scan(body: &[u8]) -> Result<Vec<Draft>, Refusal> {
    let text = std::str::from_utf8(body).map_err(|error| {
        let line = 1 + body
            .iter()
            .take(error.valid_up_to())
            .filter(|b| **b == b'\n')
            .count();
        Refusal::malformed("the document is not UTF-8").at_line(line)
    })?;
    Scan::new(text, BATCH_ENTRIES_MAX)?.read_document()
}

/// Returns the entries of an Atom entry or feed document, or of entries one after the other, in the
/// order to append them, each as an element that stands alone.
///
/// A feed lists the newest entry first, so this function returns a feed's entries last to first.
/// Entries one after the other, as `replay --format atom` prints them, keep their order.
///
/// # Errors
///
/// As [`scan`].
pub fn elements(text: &str) -> Result<Vec<String>, Refusal> {
    let mut tokens = Tokens::new(text).map_err(|error| Refusal::not_xml(error, text))?;
    let text = tokens.text();
    let first = tokens
        .read()
        .map_err(|error| Refusal::not_xml(error, text))?;
    let drafts = match first {
        Some(Token::Start(root)) if root.is(ATOM, "entry") => {
            // Wrapping turns a sequence of entries into one document, which has a single root.
            let entries = text.get(root.range.start..).unwrap_or_default();
            let feed = format!("<feed xmlns=\"{ATOM}\">{entries}</feed>");
            // `BATCH_ENTRIES_MAX` bounds a request, and this text is no request.
            let mut drafts = Scan::new(&feed, usize::MAX)?.read_document()?;
            // The scan returns a feed's entries last to first; a sequence stands in order of
            // appending.
            drafts.reverse();
            drafts
        }
        _ => Scan::new(text, usize::MAX)?.read_document()?,
    };
    Ok(drafts.into_iter().map(Draft::into_element).collect())
}

/// Absolute base of a feed or an entry, if there is one.
#[derive(Clone, Debug, Default)]
struct Base(Option<Arc<str>>);

impl Base {
    /// Returns the base inside `tag`.
    fn base_inside(&self, tag: &Tag<'_>) -> Result<Self, XmlError> {
        let Some(own) = tag.value("xml:base")? else {
            // The clone shares the text: `Arc` keeps a feed of many entries cheap.
            return Ok(self.clone());
        };
        let joined = match &self.0 {
            Some(outer) => url::Url::parse(outer)
                .and_then(|outer| outer.join(&own))
                .ok(),
            None => None,
        };
        let base = match joined {
            Some(absolute) => Some(absolute.into()),
            None => Some(own.into_owned()),
        };
        // A base such as `urn:x` resolves nothing, and so counts as none.
        let base = base.filter(|base: &String| is_base(base));
        Ok(Self(base.map(Arc::from)))
    }

    fn is_absolute(&self) -> bool {
        self.0.is_some()
    }
}

/// Returns whether an absolute base applies inside `tag`, given whether one applies outside.
///
/// Below an entry, only this answer matters. Resolving each base would cost the length of the outer
/// base for every element with a base.
fn is_based_inside(based: bool, tag: &Tag<'_>) -> Result<bool, XmlError> {
    let Some(own) = tag.value("xml:base")? else {
        return Ok(based);
    };
    Ok(match url::Url::parse(&own) {
        Ok(absolute) => !absolute.cannot_be_a_base(),
        // A relative base resolves against the outer base, and is absolute only if the outer base
        // is.
        Err(url::ParseError::RelativeUrlWithoutBase) => based,
        Err(_) => false,
    })
}

/// Returns whether references can be resolved against this base: not against `urn:x`, for instance.
fn is_base(text: &str) -> bool {
    url::Url::parse(text).is_ok_and(|url| !url.cannot_be_a_base())
}

/// Facts about an entry, found in the entry's children.
#[derive(Debug, Default)]
struct EntryFacts {
    seen: Vec<&'static str>,
    id: Option<EntryId>,
    alternates: HashSet<(String, String)>,
    author: bool,
    /// Whether the content is elsewhere or in Base64, so that a summary must be there (rule A-11).
    opaque: bool,
    /// Stored form of JSON content; `None` if the content is stored as sent.
    rewrite: Option<Rewrite>,
}

impl EntryFacts {
    fn has_element(&self, name: &str) -> bool {
        self.seen.contains(&name)
    }
}

/// State of scanning one document.
struct Scan<'a> {
    tokens: Tokens<'a>,
    text: &'a str,
    entries_max: usize,
    /// Bytes that the remaining entries may still inherit.
    inherited_left: usize,
}

impl<'a> Scan<'a> {
    fn new(text: &'a str, entries_max: usize) -> Result<Self, Refusal> {
        let tokens = Tokens::new(text).map_err(|error| Refusal::not_xml(error, text))?;
        let text = tokens.text();
        // The allowance grows with the document, so many small entries may share a common context.
        let inherited_left =
            INHERITED_BATCH_BYTES_MIN.max(INHERITED_PER_BYTE_MAX.saturating_mul(text.len()));
        Ok(Self {
            tokens,
            text,
            entries_max,
            inherited_left,
        })
    }

    fn read_document(&mut self) -> Result<Vec<Draft>, Refusal> {
        let Some(Token::Start(root)) = self.next_token()? else {
            return Err(Refusal::malformed("there is no root element"));
        };
        let drafts = if root.is(ATOM, "entry") {
            vec![self.read_entry(&root, None)?]
        } else if root.is(ATOM, "feed") {
            self.read_feed(&root)?
        } else {
            let detail = format!(
                "the root element {} in namespace {:?} is not an entry or feed in {ATOM:?}",
                root.name, root.namespace
            );
            return Err(self.unacceptable(&root, detail, "RFC 4287, 2"));
        };
        // Only comments, processing instructions and white space may follow the root; reading them
        // checks them.
        while self.next_token()?.is_some() {}
        Ok(drafts)
    }

    fn read_feed(&mut self, feed: &Tag<'a>) -> Result<Vec<Draft>, Refusal> {
        let base = self.base_of(&Base::default(), feed)?;
        let mut authors = vec![];
        let mut drafts: Vec<Draft> = vec![];
        while let Some(child) = self.next_child(feed)? {
            if child.is(ATOM, "entry") {
                // The check comes before the entry is scanned: an entry beyond the bound costs
                // nothing.
                if drafts.len() == self.entries_max {
                    let detail = format!("there are more than {} entries", self.entries_max);
                    return Err(Refusal::too_large(detail));
                }
                drafts.push(self.read_entry(&child, Some((feed, &base)))?);
            } else if child.is(ATOM, "author") {
                authors.push(self.person(&child, base.is_absolute())?);
            } else {
                self.skip_element()?;
            }
        }
        // Authors count wherever the feed names them: order has no meaning (rule A-6).
        self.give_authors(&mut drafts, authors, feed)?;
        // Feeds list the newest entry first, and the log appends the oldest first.
        drafts.reverse();
        Ok(drafts)
    }

    /// Adds the feed's authors to the entries that name none.
    fn give_authors(
        &mut self,
        drafts: &mut [Draft],
        authors: Vec<Person>,
        feed: &Tag<'a>,
    ) -> Result<(), Refusal> {
        if authors.is_empty() {
            return Ok(());
        }
        let bytes = authors.iter().map(Person::size).sum();
        let context = inherited::of_authors(&authors);
        let authors: Arc<[Person]> = authors.into();
        for draft in drafts.iter_mut().filter(|draft| draft.missing.author) {
            self.allow_inherited(bytes, feed)?;
            // The authors change the entry's meaning, so they are part of the digest of the sent
            // form.
            draft.sent = Digest::of_parts(&[&draft.sent.0, context.as_bytes()]);
            // One allocation serves all entries of the feed.
            draft.authors = Arc::clone(&authors);
        }
        Ok(())
    }

    /// Subtracts from the allowance the bytes that an entry inherits, before they are written onto
    /// the entry.
    fn allow_inherited(&mut self, bytes: usize, tag: &Tag<'a>) -> Result<(), Refusal> {
        let too_large = |detail: String| {
            Refusal::too_large(detail)
                .at_element(tag.local)
                .at_line(line_of(self.text, tag.range.start))
        };
        if bytes > INHERITED_BYTES_MAX {
            return Err(too_large(format!(
                "an entry inherits {bytes} bytes of namespaces, base, language and authors from its feed, \
                 more than {INHERITED_BYTES_MAX}"
            )));
        }
        let left = self.inherited_left.checked_sub(bytes).ok_or_else(|| {
            too_large(
                "the entries inherit more bytes from their feed than one request may; \
                 send fewer entries at once, or declare less on the feed"
                    .into(),
            )
        })?;
        self.inherited_left = left;
        Ok(())
    }

    fn read_entry(
        &mut self,
        tag: &Tag<'a>,
        outer: Option<(&Tag<'a>, &Base)>,
    ) -> Result<Draft, Refusal> {
        let inherited = match outer {
            Some((feed, base)) => {
                let scope = self.tokens.inherited_scope();
                // The size is counted before anything is copied: a small feed could otherwise
                // unfold to gigabytes.
                let bytes = inherited::size(feed, base.0.as_deref(), tag, scope);
                self.allow_inherited(bytes, tag)?;
                let base_inside = self.base_of(base, tag)?;
                InheritedContext::new(
                    feed,
                    base.0.as_deref(),
                    base_inside.0.as_deref(),
                    tag,
                    self.tokens.inherited_scope(),
                )
            }
            None => InheritedContext::nothing(self.base_of(&Base::default(), tag)?.0.as_deref()),
        };
        let has_default = tag.attribute("xmlns").is_some() || inherited.has_default();
        let mut findings = EntryFacts::default();
        while let Some(child) = self.next_child(tag)? {
            self.entry_child(&child, inherited.has_base(), &mut findings)?;
            // A check after each child stops an oversized entry before the whole entry is read.
            self.check_size(tag)?;
        }
        // The end tag and text behind the last child count, too.
        self.check_size(tag)?;
        self.check_entry(tag, &findings)?;
        let range = tag.range.start..self.tokens.position();
        let sent = self.text.get(range.clone()).unwrap_or_default();
        let changed = !inherited.is_empty() || !has_default || findings.rewrite.is_some();
        let (element, inside) = self.stand_alone(
            tag,
            range,
            &inherited,
            has_default,
            findings.rewrite.as_ref(),
        );
        // An unchanged entry was scanned in the stored form already.
        if changed {
            self.check_stored(tag, &element)?;
        }
        let wants_summary = |rewrite: &Rewrite| rewrite.form == JsonForm::Base64;
        Ok(Draft {
            sent: inherited.sent(sent),
            authors: Arc::default(),
            element,
            inside,
            prefix: if tag.prefix.is_empty() {
                String::new()
            } else {
                format!("{}:", tag.prefix)
            },
            missing: Missing {
                id: findings.id.is_none(),
                title: !findings.has_element("title"),
                updated: !findings.has_element("updated"),
                author: !findings.author,
                content: !findings.has_element("content") && findings.alternates.is_empty(),
                alternate: findings.alternates.is_empty(),
                summary: !findings.has_element("summary")
                    && findings.rewrite.as_ref().is_some_and(wants_summary),
            },
            id: findings.id,
        })
    }

    /// Scans the stored form of an element. With the inherited context, this form can exceed a
    /// bound of the XML reader, even if the sent form does not.
    fn check_stored(&self, tag: &Tag<'a>, element: &str) -> Result<(), Refusal> {
        let scanned = Tokens::new(element).and_then(|mut tokens| {
            while tokens.read()?.is_some() {}
            Ok(())
        });
        scanned.map_err(|error| {
            let detail = format!("the entry with what it inherits: {}", error.detail);
            self.unacceptable(tag, detail, "Simplefeed profile: entries stand alone")
        })
    }

    /// Writes the entry with the inherited context. Returns the element and the offset behind the
    /// start tag.
    fn stand_alone(
        &self,
        tag: &Tag<'a>,
        range: Range<usize>,
        inherited: &InheritedContext<'_>,
        has_default: bool,
        rewrite: Option<&Rewrite>,
    ) -> (String, usize) {
        let mut element = format!("<{}", tag.name);
        // A document declares Atom as the default, so an entry without a default namespace must
        // cancel that declaration.
        if !has_default {
            push_attribute("xmlns", "", &mut element);
        }
        inherited.push(&mut element);
        for attribute in &tag.attributes {
            // An attribute must not stand twice.
            if !(inherited.replaces_base() && attribute.name == "xml:base") {
                push_raw(attribute, &mut element);
            }
        }
        element.push('>');
        let inside = element.len();
        let rest = tag.range.end..range.end;
        match rewrite {
            Some(rewrite) => rewrite.push(self.text, rest, &mut element),
            None => element.push_str(self.text.get(rest).unwrap_or_default()),
        }
        // `<entry/>` becomes a pair of tags, so that completions can go inside.
        if tag.empty {
            element.push_str("</");
            element.push_str(tag.name);
            element.push('>');
        }
        (element, inside)
    }

    fn entry_child(
        &mut self,
        child: &Tag<'a>,
        based: bool,
        findings: &mut EntryFacts,
    ) -> Result<(), Refusal> {
        if child.namespace != *ATOM {
            return self.skip_element();
        }
        // Elements that RFC 4287, 4.1.2 admits at most once.
        let once = [
            "id",
            "title",
            "updated",
            "published",
            "rights",
            "source",
            "summary",
            "content",
        ];
        if let Some(name) = once.iter().find(|name| **name == child.local) {
            if findings.has_element(name) {
                let detail = format!("{name} is given twice");
                return Err(self.unacceptable(child, detail, "RFC 4287, 4.1.2"));
            }
            findings.seen.push(name);
        }
        match child.local {
            "id" => findings.id = Some(self.id(child)?),
            "title" | "summary" | "rights" => self.text_construct(child)?,
            "updated" | "published" => self.date(child)?,
            "author" => {
                self.person(child, based)?;
                findings.author = true;
            }
            // The contributors matter to no rule of the entry, but each must be a valid person.
            "contributor" => drop(self.person(child, based)?),
            "link" => self.link(child, based, findings)?,
            "category" => self.category(child)?,
            "content" => self.content(child, based, findings)?,
            // An entry inherits the author of the source (rule A-12).
            "source" => findings.author |= self.source(child, based)?,
            // Unknown elements of Atom's namespace are foreign markup, which passes.
            _ => self.skip_element()?,
        }
        Ok(())
    }

    fn check_entry(&self, tag: &Tag<'a>, findings: &EntryFacts) -> Result<(), Refusal> {
        if findings.opaque && !findings.has_element("summary") {
            let detail = "content that is elsewhere or in Base64 needs a summary";
            return Err(self
                .unacceptable(tag, detail, "RFC 4287, 4.1.2 (A-11)")
                .at_element("summary"));
        }
        Ok(())
    }

    fn check_size(&self, tag: &Tag<'a>) -> Result<(), Refusal> {
        if self.tokens.position() - tag.range.start <= ENTRY_BYTES_MAX {
            return Ok(());
        }
        let detail = format!("an entry is larger than {ENTRY_BYTES_MAX} bytes");
        Err(Refusal::too_large(detail).at_line(line_of(self.text, tag.range.start)))
    }

    // ---- the tokens, with their errors as refusals -------------------------------------------

    fn next_token(&mut self) -> Result<Option<Token<'a>>, Refusal> {
        self.tokens
            .read()
            .map_err(|error| Refusal::not_xml(error, self.text))
    }

    fn skip_element(&mut self) -> Result<(), Refusal> {
        self.tokens
            .skip()
            .map_err(|error| Refusal::not_xml(error, self.text))
    }

    fn base_of(&self, base: &Base, tag: &Tag<'a>) -> Result<Base, Refusal> {
        base.base_inside(tag)
            .map_err(|error| Refusal::not_xml(error, self.text))
    }

    fn is_based(&self, based: bool, tag: &Tag<'a>) -> Result<bool, Refusal> {
        is_based_inside(based, tag).map_err(|error| Refusal::not_xml(error, self.text))
    }

    fn attribute_value(&self, tag: &Tag<'a>, name: &str) -> Result<Option<Cow<'a, str>>, Refusal> {
        tag.value(name)
            .map_err(|error| Refusal::not_xml(error, self.text))
    }

    /// Returns the next child element of `parent`, or `None` at the end of `parent`; passes over
    /// white space.
    fn next_child(&mut self, parent: &Tag<'a>) -> Result<Option<Tag<'a>>, Refusal> {
        loop {
            match self.next_token()? {
                Some(Token::Start(tag)) => return Ok(Some(tag)),
                Some(Token::End(_)) | None => return Ok(None),
                Some(Token::Text(text)) if text.trim().is_empty() => {}
                Some(Token::Text(_)) => {
                    let detail = format!("{} has text between its elements", parent.local);
                    return Err(self.unacceptable(parent, detail, "RFC 4287, 4.1"));
                }
            }
        }
    }

    /// Returns the text of an element that must not hold other elements.
    fn only_text(&mut self, tag: &Tag<'a>, rule: &'static str) -> Result<String, Refusal> {
        let mut text = String::new();
        loop {
            match self.next_token()? {
                Some(Token::Text(piece)) => text.push_str(&piece),
                Some(Token::Start(child)) => {
                    let detail = format!("{} holds an element, {}", tag.local, child.name);
                    return Err(self.unacceptable(tag, detail, rule));
                }
                Some(Token::End(_)) | None => return Ok(text),
            }
        }
    }

    fn unacceptable(
        &self,
        tag: &Tag<'_>,
        detail: impl Into<String>,
        rule: &'static str,
    ) -> Refusal {
        Refusal::unacceptable(detail, rule)
            .at_element(tag.local)
            .at_line(line_of(self.text, tag.range.start))
    }
}

fn push_raw(attribute: &Attribute<'_>, out: &mut String) {
    out.push(' ');
    // The sent spelling stays, references and quotes included: no step spells an entry anew.
    out.push_str(attribute.name);
    out.push('=');
    out.push(attribute.quote);
    out.push_str(attribute.raw);
    out.push(attribute.quote);
}

/// Returns one complete XML element in a form that can go inside another: without XML declaration,
/// and with a declared default namespace.
///
/// # Errors
///
/// Returns the first error in the XML.
pub fn inline(text: &str) -> Result<String, XmlError> {
    let mut tokens = Tokens::new(text)?;
    let text = tokens.text();
    // 16 bytes hold the only addition, ` xmlns=""`.
    let mut element = String::with_capacity(text.len() + 16);
    if let Some(Token::Start(root)) = tokens.read()? {
        tokens.skip()?;
        let end = tokens.position();
        element.push('<');
        element.push_str(root.name);
        // Inside another element, a missing default namespace would become the outer one.
        if root.attribute("xmlns").is_none() {
            push_attribute("xmlns", "", &mut element);
        }
        // `1 +` is the `<` before the name.
        let rest = root.range.start + 1 + root.name.len();
        element.push_str(text.get(rest..end).unwrap_or_default());
    }
    // Reading to the end refuses any element or text behind the root.
    while tokens.read()?.is_some() {}
    Ok(element)
}

/// Returns the element from `tag` to byte `end`, with the declarations in scope, so that the
/// element stands alone.
pub(crate) fn outline(
    text: &str,
    tag: &Tag<'_>,
    end: usize,
    scope: &[(&str, Namespace<'_>)],
) -> String {
    let mut element = format!("<{}", tag.name);
    for (prefix, uri) in scope {
        let declared = tag
            .attributes
            .iter()
            .any(|a| a.declared_prefix() == Some(prefix));
        match (declared, *prefix) {
            (true, _) => {}
            (false, "") => push_attribute("xmlns", uri, &mut element),
            (false, _) => push_attribute(&format!("xmlns:{prefix}"), uri, &mut element),
        }
    }
    let rest = tag.range.start + 1 + tag.name.len();
    element.push_str(text.get(rest..end).unwrap_or_default());
    element
}

/// Returns whether a media type is XML (rule 4 of RFC 4287, 4.1.3.3).
pub fn is_xml_type(media_type: &str) -> bool {
    let lower = essence(media_type);
    lower.ends_with("+xml") || lower.ends_with("/xml")
}

/// Returns a media type in lower case without parameters.
pub fn essence(media_type: &str) -> String {
    let bare = media_type.split(';').next().unwrap_or_default();
    bare.trim().to_ascii_lowercase()
}

#[cfg(test)]
mod tests;
