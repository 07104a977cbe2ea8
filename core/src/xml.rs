//! Strict, namespace-aware XML, as tokens with their byte ranges.
//!
//! Pure. quick-xml finds the tokens; this module makes all checks that quick-xml leaves to the
//! caller. Accepted text stands in frozen documents for ever, next to other publishers' entries, so
//! the text must be well-formed for every parser: one root element and no text outside the root,
//! XML 1.0 characters and names only, declared prefixes, no attribute twice, no DOCTYPE, and no
//! entity references but the five predefined ones. A parser that only tokenises accepts violations
//! of all these rules.

use std::{borrow::Cow, ops::Range};

use quick_xml::{Reader, events::Event};

use crate::limits::{BINDINGS_MAX, DEPTH_MAX};

mod names;
mod namespace;
mod tag;
mod text;

pub use namespace::Namespace;
use namespace::NamespaceScope;
pub use tag::{Attribute, Tag};
pub use text::{
    attribute_value, escape_attribute, escape_text, escaped_len, is_char, resolve_reference,
};
pub(crate) use text::{find_forbidden, has_any};
use text::{is_blank, is_nc_name, normalize_lines};

/// The namespace of Atom (RFC 4287, 1.2).
pub const ATOM: &str = "http://www.w3.org/2005/Atom";
/// The namespace of RFC 5005's markers.
pub const HISTORY: &str = "http://purl.org/syndication/history/1.0";
/// The namespace of XHTML.
pub const XHTML: &str = "http://www.w3.org/1999/xhtml";
/// The namespace of this profile's own elements.
pub const SIMPLEFEED: &str = "urn:simplefeed:1";
/// The namespace to which the prefix `xml` is always bound.
pub const XML: &str = "http://www.w3.org/XML/1998/namespace";
/// The namespace of namespace declarations.
pub const XMLNS: &str = "http://www.w3.org/2000/xmlns/";

/// Reason why a text is not acceptable XML.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{detail}")]
pub struct XmlError {
    /// Description of the fault, lower case, without a period.
    pub detail: String,
    /// Byte offset at which the fault was noticed.
    pub offset: usize,
}

impl XmlError {
    pub(crate) fn new(detail: impl Into<String>, offset: usize) -> Self {
        Self {
            detail: detail.into(),
            offset,
        }
    }

    /// Returns the line of `text` at which the fault was noticed, from 1.
    pub fn line(&self, text: &str) -> usize {
        line_of(text, self.offset)
    }
}

/// Returns whether two prefixes are the same.
///
/// Nearly all prefixes are empty, and empty text may point to no memory. On processors with
/// AVX-512, glibc's comparison of such text takes twenty times as long as any other comparison.
pub(crate) fn is_prefix(one: &str, other: &str) -> bool {
    one.len() == other.len() && (one.is_empty() || one == other)
}

/// Returns the line of `text` in which the byte at `offset` lies, from 1.
pub fn line_of(text: &str, offset: usize) -> usize {
    let before = text.as_bytes().get(..offset).unwrap_or(text.as_bytes());
    1 + before
        .split(|byte| *byte == b'\n')
        .count()
        .saturating_sub(1)
}

/// A piece of a document. Comments and processing instructions are checked and passed over.
#[derive(Debug)]
pub enum Token<'a> {
    /// A start tag, or an empty-element tag (an [`Token::End`] follows all the same).
    Start(Tag<'a>),
    /// The end of the innermost open element, and the bytes of the end tag (none for an
    /// empty-element tag).
    End(Range<usize>),
    /// Character data, decoded, as one of possibly several pieces.
    Text(Cow<'a, str>),
}

/// The tokens of a document, up to the end or the first fault.
#[derive(Debug)]
pub struct Tokens<'a> {
    text: &'a str,
    reader: Reader<&'a [u8]>,
    scope: NamespaceScope<'a>,
    depth: usize,
    root_seen: bool,
    end_owed: bool,
}

impl<'a> Tokens<'a> {
    /// Begins at the start of `text`, which may carry a byte order mark.
    ///
    /// # Errors
    ///
    /// Returns the first character that XML 1.0 does not admit.
    pub fn new(text: &'a str) -> Result<Self, XmlError> {
        if let Some((offset, bad)) = find_forbidden(text) {
            let code = u32::from(bad);
            return Err(XmlError::new(
                format!("character U+{code:04X} is not allowed"),
                offset,
            ));
        }
        let body = text.strip_prefix('\u{feff}').unwrap_or(text);
        let mut reader = Reader::from_str(body);
        // The reader checks comments only on request.
        reader.config_mut().check_comments = true;
        Ok(Self {
            text: body,
            reader,
            scope: NamespaceScope::default(),
            depth: 0,
            root_seen: false,
            end_owed: false,
        })
    }

    /// Returns the text to which all ranges refer: the input without a byte order mark.
    pub fn text(&self) -> &'a str {
        self.text
    }

    /// Returns the byte after the last token.
    pub fn position(&self) -> usize {
        usize::try_from(self.reader.buffer_position()).expect("a slice has at most usize bytes")
    }

    /// Returns the namespace declarations in scope, the innermost for each prefix, in order of
    /// declaration. The default namespace has the prefix `""`.
    pub fn in_scope(&self) -> impl Iterator<Item = (&'a str, &Namespace<'a>)> {
        self.scope.down_to(self.depth)
    }

    /// Returns the declarations [in scope](Tokens::in_scope) that the innermost open element
    /// inherits, without those of the element itself.
    pub fn inherited_scope(&self) -> impl Iterator<Item = (&'a str, &Namespace<'a>)> {
        self.scope.down_to(self.depth.saturating_sub(1))
    }

    /// Returns the next token, or `None` at the end of a complete document.
    ///
    /// # Errors
    ///
    /// Returns the first fault in form, or the first construct that is not admitted. Nothing after
    /// the fault is read.
    pub fn read(&mut self) -> Result<Option<Token<'a>>, XmlError> {
        // An empty-element tag counts as a start and an end, so callers need one case only.
        if self.end_owed {
            self.end_owed = false;
            return Ok(Some(self.close_element(self.position()..self.position())));
        }
        loop {
            let start = self.position();
            let event = self.reader.read_event().map_err(|error| {
                let at = usize::try_from(self.reader.error_position()).unwrap_or(start);
                XmlError::new(error.to_string(), at)
            })?;
            let range = start..self.position();
            let raw = self.text.get(range.clone()).unwrap_or_default();
            match event {
                Event::Start(_) => return self.open_element(raw, range, false).map(Some),
                Event::Empty(_) => return self.open_element(raw, range, true).map(Some),
                Event::End(_) => return Ok(Some(self.close_element(range))),
                Event::Text(_) => {
                    if let Some(token) = self.read_characters(raw, start)? {
                        return Ok(Some(token));
                    }
                }
                Event::CData(data) => {
                    self.inside_root("CDATA", start)?;
                    // 9 is the length of `<![CDATA[`.
                    let data = raw.get(9..9 + data.len()).unwrap_or_default();
                    return Ok(Some(Token::Text(normalize_lines(data))));
                }
                Event::GeneralRef(_) => {
                    self.inside_root("reference", start)?;
                    return read_reference(raw, start).map(Some);
                }
                // XML 1.0, 2.5: a comment must not end in `--->`; the check of quick-xml does not
                // notice such an end.
                Event::Comment(_) if raw.ends_with("--->") => {
                    return Err(XmlError::new("a comment ends with --->", start));
                }
                Event::Comment(_) => {}
                Event::PI(_) => check_instruction(raw, start)?,
                // XML 1.0, 2.8: nothing may precede the declaration, not even white space.
                Event::Decl(_) if start == 0 => check_declaration(raw)?,
                Event::Decl(_) => {
                    return Err(XmlError::new(
                        "an XML declaration is not at the start",
                        start,
                    ));
                }
                Event::DocType(_) => {
                    return Err(XmlError::new("a DOCTYPE is not accepted", start));
                }
                Event::Eof => return self.check_end().map(|()| None),
            }
        }
    }

    /// Reads to the end of the element whose start tag was the last token, and checks the whole
    /// element.
    ///
    /// # Errors
    ///
    /// As [`Tokens::read`].
    pub fn skip(&mut self) -> Result<(), XmlError> {
        // The element's own end tag takes the depth below `inside`.
        let inside = self.depth;
        while self.depth >= inside {
            self.read()?;
        }
        Ok(())
    }

    fn open_element(
        &mut self,
        raw: &'a str,
        range: Range<usize>,
        empty: bool,
    ) -> Result<Token<'a>, XmlError> {
        // White space and comments may follow the root; another element may not.
        if self.depth == 0 && self.root_seen {
            return Err(XmlError::new("there is a second root element", range.start));
        }
        if self.depth >= DEPTH_MAX {
            let detail = format!("elements are nested deeper than {DEPTH_MAX}");
            return Err(XmlError::new(detail, range.start));
        }
        self.depth += 1;
        self.root_seen = true;
        let mut tag = Tag::parse(raw, range)?;
        // The order matters: an element's declarations apply to the element's name, too.
        self.declare_prefixes(&tag)?;
        tag.resolve(&self.scope)?;
        self.end_owed = empty;
        Ok(Token::Start(tag))
    }

    fn close_element(&mut self, range: Range<usize>) -> Token<'a> {
        // The bindings of the closed element must go before another element reuses the depth.
        self.scope.close(self.depth);
        self.depth = self.depth.saturating_sub(1);
        Token::End(range)
    }

    fn declare_prefixes(&mut self, tag: &Tag<'a>) -> Result<(), XmlError> {
        for attribute in &tag.attributes {
            let Some(prefix) = attribute.declared_prefix() else {
                continue;
            };
            let uri = attribute.value()?;
            let at = attribute.offset;
            // Namespaces in XML 1.0, 3: `xml` and `xmlns` are bound for ever, and no other prefix
            // may be bound to their namespaces.
            let reserved = prefix == "xmlns" || uri == XMLNS || (prefix == "xml") != (uri == XML);
            if reserved {
                return Err(XmlError::new(
                    "a reserved prefix or namespace is declared",
                    at,
                ));
            }
            let named = attribute.name != "xmlns";
            // Each declaration takes memory until the element ends.
            if self.scope.len() >= BINDINGS_MAX {
                let detail = format!("more than {BINDINGS_MAX} namespaces are declared");
                return Err(XmlError::new(detail, at));
            }
            // Namespaces in XML 1.0 can undeclare the default namespace, and no prefix.
            if named && (uri.is_empty() || !is_nc_name(prefix)) {
                return Err(XmlError::new(
                    format!("prefix {prefix} is declared wrongly"),
                    at,
                ));
            }
            self.scope.declare(self.depth, prefix, Namespace::new(uri));
        }
        Ok(())
    }

    fn read_characters(&self, raw: &'a str, start: usize) -> Result<Option<Token<'a>>, XmlError> {
        // White space around the root is no content.
        if self.depth == 0 && is_blank(raw) {
            return Ok(None);
        }
        self.inside_root("text", start)?;
        // XML 1.0, 2.4: `]]>` must not appear in character data.
        match raw.find("]]>") {
            Some(at) => Err(XmlError::new("text contains ]]>", start + at)),
            None => Ok(Some(Token::Text(normalize_lines(raw)))),
        }
    }

    fn inside_root(&self, what: &str, start: usize) -> Result<(), XmlError> {
        if self.depth == 0 {
            return Err(XmlError::new(
                format!("{what} outside the root element"),
                start,
            ));
        }
        Ok(())
    }

    fn check_end(&self) -> Result<(), XmlError> {
        let at = self.text.len();
        match (self.depth, self.root_seen) {
            (0, true) => Ok(()),
            (0, false) => Err(XmlError::new("there is no root element", at)),
            _ => Err(XmlError::new("the document ends inside an element", at)),
        }
    }
}

fn read_reference<'a>(raw: &str, start: usize) -> Result<Token<'a>, XmlError> {
    let name = raw
        .strip_prefix('&')
        .and_then(|rest| rest.strip_suffix(';'))
        .unwrap_or(raw);
    match resolve_reference(name) {
        Some(c) => Ok(Token::Text(Cow::Owned(c.into()))),
        None => Err(XmlError::new(
            format!("reference &{name}; is not accepted"),
            start,
        )),
    }
}

fn check_instruction(raw: &str, start: usize) -> Result<(), XmlError> {
    let target = raw.get(2..raw.len().saturating_sub(2)).unwrap_or_default();
    let target = target
        .split([' ', '\t', '\r', '\n'])
        .next()
        .unwrap_or_default();
    // XML 1.0, 2.6, reserves `xml` in upper and lower case; Namespaces in XML 1.0, 7, forbids a
    // colon.
    if is_nc_name(target) && !target.eq_ignore_ascii_case("xml") {
        return Ok(());
    }
    Err(XmlError::new(
        "a processing instruction has no acceptable target",
        start,
    ))
}

/// Checks `<?xml version="1.0" encoding="utf-8" standalone="yes"?>`, where the last two parts are
/// optional.
fn check_declaration(raw: &str) -> Result<(), XmlError> {
    let inner = raw
        .strip_prefix("<?xml")
        .and_then(|rest| rest.strip_suffix("?>"));
    // 5 is the length of `<?xml`, the offset at which the attributes begin.
    let parts = tag::parse_attributes(inner.unwrap_or_default(), 5)?;
    let mut expected = ["version", "encoding", "standalone"].into_iter();
    for part in &parts {
        // `find` continues behind the last match, so the parts must come in this order.
        let known = expected.find(|name| *name == part.name);
        let fits = match known {
            // Any `1.x` counts as XML 1.0 (XML 1.0, 2.8).
            Some("version") => part.raw.len() == 3 && part.raw.starts_with("1."),
            Some("encoding") => {
                part.raw.eq_ignore_ascii_case("utf-8") || part.raw.eq_ignore_ascii_case("us-ascii")
            }
            Some(_) => ["yes", "no"].contains(&part.raw),
            None => false,
        };
        if !fits {
            let detail = format!(
                "the XML declaration has {}={:?}, only UTF-8 is accepted",
                part.name, part.raw
            );
            return Err(XmlError::new(detail, part.offset));
        }
    }
    match parts.first() {
        Some(first) if first.name == "version" => Ok(()),
        _ => Err(XmlError::new("the XML declaration has no version", 0)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<usize, XmlError> {
        let mut tokens = Tokens::new(text)?;
        let mut count = 0;
        while tokens.read()?.is_some() {
            count += 1;
        }
        Ok(count)
    }

    #[track_caller]
    fn refused(text: &str, why: &str) {
        let error = read(text).expect_err(text);
        assert!(error.detail.contains(why), "{text}: {}", error.detail);
    }

    #[test]
    fn what_is_not_well_formed_is_refused() {
        refused("", "no root");
        refused("<a>", "ends inside");
        refused("<a></b>", "expected");
        refused("<a/><b/>", "second root");
        refused("<a/>x", "outside the root");
        refused("x<a/>", "outside the root");
        refused("<a/>&amp;", "outside the root");
        refused("<a/><![CDATA[x]]>", "outside the root");
        refused("<a>]]></a>", "]]>");
        refused("<a>&nbsp;</a>", "&nbsp;");
        refused("<a>&#0;</a>", "&#0;");
        refused("<a>&#xD800;</a>", "&#xD800;");
        refused("<a>& b</a>", "");
        refused("<a b='&x;'/>", "&x;");
        refused("<a>\u{1}</a>", "U+0001");
        refused("<a>\u{ffff}</a>", "U+FFFF");
        refused("<!DOCTYPE a><a/>", "DOCTYPE");
        refused("<a><?xml version='1.0'?></a>", "not at the start");
        refused(" <?xml version='1.0'?><a/>", "not at the start");
        refused("<a><?XML x?></a>", "target");
        refused("<a><!-- a--b --></a>", "");
        refused("<a><!-- a---></a>", "");
        refused("<a b='1' b='2'/>", "twice");
        refused("<a xmlns:p='u' xmlns:q='u' p:b='1' q:b='2'/>", "twice");
        refused("<a b=1/>", "");
        refused("<a b/>", "");
        refused("<a b='1'c='2'/>", "");
        refused("<a b='<'/>", "<");
        refused("<1a/>", "name");
        refused("<a:b:c xmlns:a='u'/>", "name");
        refused("<p:a/>", "prefix p");
        refused("<a p:b='1'/>", "prefix p");
        refused("<a xmlns:p=''/>", "prefix p");
        refused("<a xmlns:='u'/>", "declared wrongly");
        refused("<a xmlns:xmlns='u'/>", "reserved");
        refused("<a xmlns:xml='u'/>", "reserved");
        refused("<a xmlns='http://www.w3.org/2000/xmlns/'/>", "reserved");
        refused("<?xml version='1.0' encoding='utf-16'?><a/>", "UTF-8");
        refused("<?xml encoding='utf-8'?><a/>", "version");
        refused(
            "<?xml version='1.0' standalone='no' encoding='utf-8'?><a/>",
            "declaration",
        );
        refused(&"<a>".repeat(65), "nested");
    }

    #[test]
    fn what_is_well_formed_is_accepted() {
        for good in [
            "<a/>",
            "\u{feff}<?xml version=\"1.0\" encoding=\"UTF-8\" standalone='yes'?>\n<a/>\n<!-- c --><?p i?>",
            "<a>&lt;&#10;&#x1F600;<![CDATA[<&]]></a >",
            "<p:a xmlns:p='u' p:b='1' b='2'\t/>",
            "<a xml:lang='en' xmlns:xml='http://www.w3.org/XML/1998/namespace'/>",
            "<a xmlns='u'><b xmlns=''/></a>",
            "<\u{e9}t\u{e9} \u{e0}='>'/>",
        ] {
            assert!(read(good).is_ok(), "{good}: {:?}", read(good));
        }
        let deepest = format!("{}{}", "<a>".repeat(64), "</a>".repeat(64));
        assert!(read(&deepest).is_ok());
    }

    #[test]
    fn names_are_resolved_by_the_innermost_declaration() {
        let mut tokens =
            Tokens::new("<a xmlns='u'><b xmlns='v' xmlns:p='w'><p:c/></b><d/></a>").unwrap();
        let mut seen = vec![];
        while let Some(token) = tokens.read().unwrap() {
            if let Token::Start(tag) = token {
                seen.push(format!("{{{}}}{}", &*tag.namespace, tag.local));
            }
        }
        assert_eq!(seen, ["{u}a", "{v}b", "{w}c", "{u}d"]);
    }

    #[test]
    fn character_data_is_decoded_and_lines_are_normalized() {
        let mut tokens = Tokens::new("<a>x\r\ny\rz&#13;&amp;<![CDATA[&\r\n]]></a>").unwrap();
        let mut text = String::new();
        while let Some(token) = tokens.read().unwrap() {
            if let Token::Text(piece) = token {
                text.push_str(&piece);
            }
        }
        assert_eq!(text, "x\ny\nz\r&&\n");
    }

    proptest::proptest! {
        /// Whatever is accepted here, an independent strict parser accepts too.
        #[test]
        fn another_parser_accepts_what_we_accept(text in "(<[ab:]{1,3}( (xmlns)?[bx:]{1,3}=['\"][<&a;]{0,2}['\"]){0,2}/?>|</[ab:]{1,3}>|&[a-z#0-9]{1,4};|[\\]>&a ]|<!-- ?-? ?-->|<[?][xp]l? ?[?]>|<!\\[CDATA\\[[\\]>]{0,3}\\]\\]>){1,8}") {
            let wrapped = format!("<r xmlns:a='u' xmlns:b='u'>{text}</r>");
            if read(&wrapped).is_ok() {
                proptest::prop_assert!(roxmltree::Document::parse(&wrapped).is_ok(), "{wrapped}");
            }
        }
    }
}
