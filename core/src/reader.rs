//! Parsed feed documents: the entries as byte slices, the links as URLs.
//!
//! Pure. A consumer derives the place in the feed from the result. So a document that is cut short,
//! has something after the end or is no Atom feed is an error, and never a shorter document. The
//! reader passes over the inside of entries, so that one odd entry cannot stop a replay; callers
//! that need more parse the slice.
//!
//! Foreign feeds differ from Simplefeed's profile: the reader converts their encoding to UTF-8, and
//! notes the signs of feeds that list their oldest entry first.

use std::{borrow::Cow, ops::Range};

use bytes::Bytes;
use data_encoding::HEXLOWER;
use quick_xml::{
    Reader,
    events::{BytesStart, Event},
};
use url::Url;

use crate::{
    digest::Digest,
    feed::{Epoch, Position},
    history::HistoryHash,
    limits::{DEPTH_MAX, INHERITED_BYTES_MAX},
    sup::{SUP_DRAFT_REL, SUP_REL, SupAddress},
    timestamp::Timestamp,
    xml::{ATOM, HISTORY, SIMPLEFEED, attribute_value, is_prefix, line_of, resolve_reference},
};

mod encoding;
mod links;
mod listing;
mod repeats;
mod stand_alone;

pub use encoding::to_utf8;
pub use links::{BrokenLink, DocumentLink, FeedFault};
use links::{Links, relation, resolve};
pub use listing::Listing;

/// The deepest nesting of elements that the reader accepts. An entry as deep as the gate admits is
/// one level deeper in a feed document; foreign feeds may nest deeper.
const READER_DEPTH_MAX: usize = 2 * DEPTH_MAX;

/// Prefix of the id of a foreign entry without one.
const STAND_IN: &str = "urn:simplefeed:entry:";

/// Reason why bytes are not a feed document.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The bytes are not XML that the reader accepts, or end too early.
    #[error("line {line}: {detail}")]
    Malformed {
        /// Description of the error, for people.
        detail: String,
        /// Line of the error, from 1.
        line: usize,
    },
    /// The bytes are XML with another root element: a login page, for instance.
    #[error("the root element is {root}, not an Atom feed")]
    NotAFeed {
        /// Qualified name of the root element.
        root: String,
    },
    /// A feed, or an entry of a feed with positions, has no `atom:id`. Without the id, a consumer
    /// cannot keep a place.
    #[error("line {line}: {element} has no id")]
    NoId {
        /// Element without an id: `feed` or `entry`.
        element: &'static str,
        /// Line on which the element begins, from 1.
        line: usize,
    },
}

/// Feed document, parsed; entries are slices of the document's bytes.
#[derive(Clone, Debug)]
pub struct Document {
    body: Bytes,
    /// The feed's `atom:id`.
    pub feed: String,
    /// The feed's title, if the title is plain text.
    pub title: Option<String>,
    /// The feed-level `updated`, if the text is a date.
    pub updated: Option<Timestamp>,
    /// The feed-level links: the first of each relation that a consumer follows, and at most
    /// [`DOCUMENT_LINKS_MAX`](crate::limits::DOCUMENT_LINKS_MAX) others.
    pub links: Vec<DocumentLink>,
    /// The feed-level links without a usable target, of relations that a consumer follows; one for
    /// each relation.
    pub broken_links: Vec<BrokenLink>,
    /// The position of the oldest entry and the history hash before it; `None` in a plain feed. A
    /// timeline has positions, and no hash.
    pub history: Option<(Position, Option<HistoryHash>)>,
    /// The epoch in which the document was opened; the first if the document names none.
    pub epoch: Epoch,
    /// First position of the document that was open when that epoch began.
    pub since: Position,
    /// Whether the document carries RFC 5005's mark of an archive.
    pub archived: bool,
    /// Address of the SUP document that lists this feed's updates, if the feed links to one (rules
    /// SUP-A2, SUP-A3).
    pub sup: Option<SupAddress>,
    entries: Vec<Slice>,
    /// Namespace declarations of the feed element.
    scope: PrefixScope,
    /// The feed element's `xml:base`, made absolute, and its `xml:lang`.
    inherited: Vec<(&'static str, String)>,
    /// The feed's authors, as ranges of bytes of the body. Entries without an author have the
    /// feed's authors (RFC 4287, 4.1.2).
    authors: Vec<Range<usize>>,
    listing: Option<Listing>,
    oldest_first: bool,
    /// Number of entries of a plain feed that repeat the id of another entry: all but one of each
    /// id.
    repeats: usize,
}

#[derive(Clone, Debug)]
struct Slice {
    id: String,
    /// Date of the entry, read in plain feeds only; a document with positions parses the entry on
    /// demand.
    updated: Option<Timestamp>,
    range: Range<usize>,
}

/// Entry of a document, borrowed from the document's bytes.
#[derive(Clone, Copy, Debug)]
pub struct EntrySlice<'a> {
    /// The entry's `atom:id`. For a foreign entry without an id, a stand-in made of the entry's
    /// bytes, so that one such entry stops none of the others: `urn:simplefeed:entry:` and 32 hex
    /// digits.
    pub id: &'a str,
    /// The entry's bytes, from `<entry` to `</entry>`, as they stand in the document.
    pub fragment: &'a [u8],
}

impl Document {
    /// Reads a document that was retrieved from `url`; relative links are resolved against that
    /// URL.
    ///
    /// # Errors
    ///
    /// See [`ReadError`].
    ///
    /// # Examples
    ///
    /// ```
    /// use simplefeed_core::reader::Document;
    ///
    /// let body = "<feed xmlns='http://www.w3.org/2005/Atom'><id>urn:f</id>\
    ///     <link rel='prev-archive' href='1.atom'/><entry><id>urn:e</id></entry></feed>";
    /// let url = "https://example.org/feeds/a/2.atom".parse()?;
    /// let document = Document::read(body.into(), &url)?;
    /// assert_eq!(document.entry(0).unwrap().id, "urn:e");
    /// assert_eq!(
    ///     document.link("prev-archive").unwrap().as_str(),
    ///     "https://example.org/feeds/a/1.atom",
    /// );
    ///
    /// let cut = &body.as_bytes()[..body.len() - 7];
    /// assert!(Document::read(cut.to_vec().into(), &url).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn read(body: Bytes, url: &Url) -> Result<Self, ReadError> {
        let mut body = to_utf8(body, None);
        // A byte order mark is not part of the XML, and would shift every entry's range.
        if body.starts_with(b"\xef\xbb\xbf") {
            body = body.slice(3..);
        }
        let text = std::str::from_utf8(&body).map_err(|error| ReadError::Malformed {
            detail: "not UTF-8".into(),
            line: 1 + body
                .iter()
                .take(error.valid_up_to())
                .filter(|b| **b == b'\n')
                .count(),
        })?;
        let mut reading = DocumentReader::new(text, url);
        reading.read_document()?;
        let DocumentReader {
            head,
            entries,
            scope,
            inherited,
            authors,
            ..
        } = reading;
        let Head {
            feed,
            title,
            updated,
            links,
            history,
            epoch,
            since,
            archived,
            sup,
        } = head;
        let feed = feed.ok_or(ReadError::NoId {
            element: "feed",
            line: 1,
        })?;
        // Positions that would overflow count as none. `+ 1` leaves room for the position after the
        // newest entry.
        let room = u64::try_from(entries.len())
            .ok()
            .and_then(|entries| entries.checked_add(1));
        let history = history.filter(|(first, _): &(Position, Option<HistoryHash>)| {
            room.is_some_and(|room| first.0.checked_add(room).is_some())
        });
        let mut document = Self {
            body,
            feed,
            title,
            updated,
            links: links.sound,
            broken_links: links.broken,
            history,
            epoch,
            since,
            archived,
            sup,
            entries,
            scope,
            inherited,
            authors,
            listing: None,
            oldest_first: false,
            repeats: 0,
        };
        // Both facts depend on positions, ids and dates, so they are found once the document is
        // complete.
        document.listing = document.listing();
        document.repeats = document.count_repeats();
        Ok(document)
    }

    /// Returns the `updated` of the entry at an index, counted from the top, where the newest entry
    /// is.
    pub fn updated_of(&self, index: usize) -> Option<Timestamp> {
        let slice = self.entries.get(index)?;
        // Plain documents need every date to find the order of entries, so the reader keeps the
        // dates. Other documents parse the entry on demand.
        if self.history.is_none() {
            return slice.updated;
        }
        let text = self.body.get(slice.range.clone())?;
        let event = crate::event::Event::from_entry(std::str::from_utf8(text).ok()?).ok()?;
        Timestamp::parse(&event.updated?)
    }

    /// Returns the history hash after all entries; `None` in timelines and in plain feeds.
    pub fn history_after(&self) -> Option<HistoryHash> {
        let (_, before) = self.history?;
        // Documents list the newest entry first, and the hash begins with the oldest.
        let entries = (0..self.len()).rev().filter_map(|index| self.entry(index));
        Some(entries.fold(before?, |hash, entry| hash.extend(entry.fragment)))
    }

    /// Returns the number of entries in this document.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns the size of the document in bytes, after conversion to UTF-8.
    pub fn bytes(&self) -> usize {
        self.body.len()
    }

    /// Returns whether the document has no entries.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns the entry at an index, counted from the top of the document, where the newest entry
    /// is.
    pub fn entry(&self, index: usize) -> Option<EntrySlice<'_>> {
        let slice = self.entries.get(index)?;
        let fragment = self.body.get(slice.range.clone())?;
        Some(EntrySlice {
            id: &slice.id,
            fragment,
        })
    }

    /// Returns the bytes of an entry; the document shares them without a copy.
    pub fn fragment(&self, index: usize) -> Option<Bytes> {
        Some(self.body.slice(self.entries.get(index)?.range.clone()))
    }

    /// Returns the index of the topmost entry with this id.
    pub fn find(&self, id: &str) -> Option<usize> {
        self.entries.iter().position(|slice| slice.id == id)
    }
}

#[derive(Debug, Default)]
struct Head {
    feed: Option<String>,
    title: Option<String>,
    updated: Option<Timestamp>,
    links: Links,
    history: Option<(Position, Option<HistoryHash>)>,
    epoch: Epoch,
    since: Position,
    archived: bool,
    sup: Option<SupAddress>,
}

/// Namespace declarations: the prefix (`""` for the default namespace) and the namespace. The last
/// declaration of a prefix counts.
type PrefixScope = Vec<(Cow<'static, str>, Cow<'static, str>)>;

/// Namespace declaration on the entries that the server writes.
const OWN_DECLARATION: &[u8] = b"xmlns=\"http://www.w3.org/2005/Atom\"";

struct DocumentReader<'a> {
    text: &'a str,
    url: &'a Url,
    reader: Reader<&'a [u8]>,
    head: Head,
    entries: Vec<Slice>,
    scope: PrefixScope,
    inherited: Vec<(&'static str, String)>,
    authors: Vec<Range<usize>>,
}

impl<'a> DocumentReader<'a> {
    fn new(text: &'a str, url: &'a Url) -> Self {
        let reader = Reader::from_str(text);
        Self {
            text,
            url,
            reader,
            head: Head::default(),
            entries: vec![],
            scope: vec![],
            inherited: vec![],
            authors: vec![],
        }
    }

    fn read_document(&mut self) -> Result<(), ReadError> {
        let (root, empty) = loop {
            match self.next_event()? {
                Event::Start(tag) => break (tag, false),
                Event::Empty(tag) => break (tag, true),
                Event::Text(text) if text.trim_ascii().is_empty() => {}
                Event::Decl(_) | Event::Comment(_) | Event::PI(_) => {}
                // An internal DTD can define entities that expand without bound.
                Event::DocType(_) => return Err(self.malformed_at("a DOCTYPE is not accepted")),
                Event::Eof => return Err(self.malformed_at("there is no document")),
                _ => return Err(self.malformed_at("text before the root element")),
            }
        };
        let feed = self.read_declarations(&root)?;
        if !Self::is_element(&root, &vec![], &feed, ATOM, b"feed") {
            let root = String::from_utf8_lossy(root.name().as_ref()).into_owned();
            return Err(ReadError::NotAFeed { root });
        }
        // A foreign entry gets these declarations when handed over alone.
        self.scope.clone_from(&feed);
        let base = Self::base_inside(Some(self.url), &root);
        if Self::attribute_of(&root, "xml:base").is_some() {
            // The base is absolute here, because an entry outside the document has lost the
            // document's URL.
            let base = base.as_ref().unwrap_or(self.url).to_string();
            self.inherited.push(("xml:base", base));
        }
        let lang = Self::attribute_of(&root, "xml:lang");
        self.inherited.extend(lang.map(|lang| ("xml:lang", lang)));
        if !empty {
            self.read_children(&feed, base.as_ref())?;
        }
        // The check comes last, because authors may stand behind the entries.
        self.check_inherited()?;
        // A body with bytes behind the root element is a broken response, and must not count as
        // complete.
        loop {
            match self.next_event()? {
                Event::Eof => return Ok(()),
                Event::Text(text) if text.trim_ascii().is_empty() => {}
                Event::Comment(_) | Event::PI(_) => {}
                _ => return Err(self.malformed_at("something after the root element")),
            }
        }
    }

    /// Bounds the bytes that each entry inherits from the feed, because each entry gets a copy of
    /// these bytes.
    fn check_inherited(&self) -> Result<(), ReadError> {
        let declarations = self
            .scope
            .iter()
            .map(|(prefix, uri)| prefix.len() + uri.len());
        let attributes = self.inherited.iter().map(|(_, value)| value.len());
        let authors = self.authors.iter().map(ExactSizeIterator::len);
        let bytes: usize = declarations.chain(attributes).chain(authors).sum();
        // Entries with positions stand alone, and inherit nothing.
        if self.head.history.is_none() && bytes > INHERITED_BYTES_MAX {
            return Err(self.malformed_at("what its entries inherit from the feed is too long"));
        }
        Ok(())
    }

    fn read_children(&mut self, feed: &PrefixScope, base: Option<&Url>) -> Result<(), ReadError> {
        loop {
            // The position before the event is where the child's tag begins.
            let start = self.byte_position();
            let (tag, empty) = match self.next_event()? {
                Event::Start(tag) => (tag, false),
                Event::Empty(tag) => (tag, true),
                Event::End(_) => return Ok(()),
                event => {
                    self.passed_over(&event)?;
                    continue;
                }
            };
            let own = self.read_declarations(&tag)?;
            if Self::is_element(&tag, &own, feed, ATOM, b"entry") {
                self.read_entry(start, feed, &own, empty)?;
            } else {
                let is_author = Self::is_element(&tag, &own, feed, ATOM, b"author");
                self.head_child(&tag, &own, feed, base, empty)?;
                // Authors are slices of the body, so the range is known only after the child was
                // read.
                if is_author {
                    self.authors.push(start..self.byte_position());
                }
            }
        }
    }

    fn head_child(
        &mut self,
        tag: &BytesStart<'a>,
        own: &PrefixScope,
        feed: &PrefixScope,
        base: Option<&Url>,
        empty: bool,
    ) -> Result<(), ReadError> {
        if Self::is_element(tag, own, feed, ATOM, b"id") && !empty {
            self.head.feed = Some(self.read_content()?);
            return Ok(());
        }
        if Self::is_element(tag, own, feed, ATOM, b"title") && !empty {
            let kind = Self::attribute_of(tag, "type");
            let title = self.simple_content()?;
            self.head.title = title.filter(|_| kind.is_none_or(|kind| kind == "text"));
            return Ok(());
        }
        if Self::is_element(tag, own, feed, ATOM, b"updated") && !empty {
            self.head.updated = Timestamp::parse(&self.read_content()?);
            return Ok(());
        }
        if Self::is_element(tag, own, feed, ATOM, b"link") {
            self.read_link(tag, base);
        } else if Self::is_element(tag, own, feed, HISTORY, b"archive") {
            self.head.archived = true;
        } else if Self::is_element(tag, own, feed, SIMPLEFEED, b"history") {
            let first = Self::attribute_of(tag, "first").and_then(|text| text.parse().ok());
            let before = Self::attribute_of(tag, "before");
            // A document with a broken hash counts as one of a plain feed.
            let before = before
                .map(|text| Digest::parse(&text))
                .map_or(Some(None), |before| {
                    before.map(|before| Some(HistoryHash(before)))
                });
            self.head.history = first.map(Position).zip(before);
            let epoch = Self::attribute_of(tag, "epoch").and_then(|text| text.parse().ok());
            self.head.epoch = epoch.map(Epoch).unwrap_or_default();
            let since = Self::attribute_of(tag, "since").and_then(|text| text.parse().ok());
            self.head.since = since.map(Position).unwrap_or_default();
        }
        if empty {
            Ok(())
        } else {
            // Depth 2: a child of the feed element.
            self.skip_element(2).map(drop)
        }
    }

    fn read_link(&mut self, tag: &BytesStart<'a>, base: Option<&Url>) {
        let rel = Self::attribute_of(tag, "rel").unwrap_or("alternate".into());
        let rel = relation(&rel);
        let base = Self::base_inside(base, tag);
        let href = Self::attribute_of(tag, "href");
        let is_sup = rel == SUP_REL || rel == SUP_DRAFT_REL;
        let sup = is_sup.then(|| SupAddress::parse(href.as_deref()?, base.as_ref()?));
        match sup {
            // A link of SUP is broken if the URL is no address of SUP.
            Some(None) => self.head.links.add_broken(rel, href.as_deref()),
            Some(found) => {
                // The registered relation takes precedence over the draft's, in whatever order the
                // links stand.
                if rel == SUP_REL || self.head.sup.is_none() {
                    self.head.sup = found;
                }
                self.head.links.add(rel, base.as_ref(), href.as_deref());
            }
            None => self.head.links.add(rel, base.as_ref(), href.as_deref()),
        }
    }

    /// Reads an entry to the end, and keeps only the range of bytes, the id and, in plain feeds,
    /// the date.
    fn read_entry(
        &mut self,
        start: usize,
        feed: &PrefixScope,
        entry: &PrefixScope,
        empty: bool,
    ) -> Result<(), ReadError> {
        let foreign = self.head.history.is_none();
        let no_id = |text| ReadError::NoId {
            element: "entry",
            line: line_of(text, start),
        };
        if empty {
            // An empty element has no entry to hand over.
            return if foreign {
                Ok(())
            } else {
                // Positions count entries, so none may be left out.
                Err(no_id(self.text))
            };
        }
        let mut id: Option<String> = None;
        let mut updated = None;
        loop {
            match self.next_event()? {
                Event::Start(tag) if foreign && tag.local_name().as_ref() == b"updated" => {
                    let own = self.read_declarations(&tag)?;
                    // The element's own declarations stand last, because `is_element` searches
                    // backwards.
                    let inner = entry.iter().cloned().chain(own).collect();
                    if Self::is_element(&tag, &inner, feed, ATOM, b"updated") {
                        updated = self
                            .simple_content()?
                            .and_then(|text| Timestamp::parse(&text));
                    } else {
                        // Depth 3: a child of an entry.
                        self.skip_element(3)?;
                    }
                }
                Event::Start(tag) if id.is_none() && tag.local_name().as_ref() == b"id" => {
                    let own = self.read_declarations(&tag)?;
                    // `is_element` searches from the inside: the id's own declarations, the
                    // entry's, the feed's.
                    let inner = entry.iter().cloned().chain(own).collect();
                    if Self::is_element(&tag, &inner, feed, ATOM, b"id") {
                        id = Some(self.read_content()?);
                    } else {
                        self.skip_element(3)?;
                    }
                }
                Event::Start(_) => self.skip_element(3)?,
                Event::End(_) => break,
                event => self.passed_over(&event)?,
            }
        }
        let range = start..self.byte_position();
        let stand_in = || {
            // The same bytes have the same stand-in id in every document, so repeats are
            // recognised.
            let bytes = self.text.as_bytes().get(range.clone());
            let hash = Digest::of(bytes.unwrap_or_default()).half();
            format!("{STAND_IN}{}", HEXLOWER.encode(&hash))
        };
        let id = match id.filter(|id| !id.trim().is_empty()) {
            Some(id) => id,
            None if foreign => stand_in(),
            None => return Err(no_id(self.text)),
        };
        self.entries.push(Slice { id, updated, range });
        Ok(())
    }

    /// Reads to the end of the current element, which is `depth` levels deep.
    fn skip_element(&mut self, depth: usize) -> Result<(), ReadError> {
        let mut inside = 1_usize;
        // The loop counts levels instead of recursing: hostile nesting must not exhaust the stack.
        while inside > 0 {
            match self.next_event()? {
                Event::Start(_) if depth + inside > READER_DEPTH_MAX => {
                    return Err(self.malformed_at("elements are nested too deeply"));
                }
                Event::Start(_) => inside += 1,
                Event::End(_) => inside -= 1,
                event => self.passed_over(&event)?,
            }
        }
        Ok(())
    }

    /// Returns the text of the current element, and reads the element to the end.
    fn read_content(&mut self) -> Result<String, ReadError> {
        let mut content = String::new();
        loop {
            match self.next_event()? {
                Event::Text(text) => content.push_str(&String::from_utf8_lossy(&text)),
                Event::CData(text) => content.push_str(&String::from_utf8_lossy(&text)),
                Event::GeneralRef(name) => {
                    let name = String::from_utf8_lossy(&name);
                    let c = resolve_reference(&name);
                    content.push(c.ok_or_else(|| self.unknown_entity(&name))?);
                }
                Event::Start(_) => return Err(self.malformed_at("an element where text belongs")),
                Event::End(_) => return Ok(content),
                event => self.passed_over(&event)?,
            }
        }
    }

    /// Returns the text of the current element, and reads the element to the end. Returns `None` if
    /// the element contains other elements.
    fn simple_content(&mut self) -> Result<Option<String>, ReadError> {
        let mut content = Some(String::new());
        loop {
            match self.next_event()? {
                Event::Text(text) => {
                    let text = String::from_utf8_lossy(&text);
                    content = content.map(|content| content + &text);
                }
                Event::CData(text) => {
                    let text = String::from_utf8_lossy(&text);
                    content = content.map(|content| content + &text);
                }
                Event::GeneralRef(name) => {
                    let name = String::from_utf8_lossy(&name);
                    let c = resolve_reference(&name).ok_or_else(|| self.unknown_entity(&name))?;
                    if let Some(content) = &mut content {
                        content.push(c);
                    }
                }
                Event::Start(_) => {
                    // Depth 4: an element inside a child of an entry. (Inside a child of the feed,
                    // the depth is 3; counting one level too many does no harm.)
                    self.skip_element(4)?;
                    content = None;
                }
                Event::End(_) => return Ok(content),
                event => self.passed_over(&event)?,
            }
        }
    }

    /// Checks an event whose content the reader ignores.
    fn passed_over(&self, event: &Event<'_>) -> Result<(), ReadError> {
        match event {
            Event::Eof => Err(self.malformed_at("the document ends before its last element")),
            Event::DocType(_) => Err(self.malformed_at("a DOCTYPE is not accepted")),
            // Without a DTD, XML knows five entities; any other name is an error.
            Event::GeneralRef(name) => {
                let name = String::from_utf8_lossy(name);
                match resolve_reference(&name) {
                    Some(_) => Ok(()),
                    None => Err(self.unknown_entity(&name)),
                }
            }
            _ => Ok(()),
        }
    }

    fn next_event(&mut self) -> Result<Event<'a>, ReadError> {
        self.reader.read_event().map_err(|error| {
            // A position beyond `usize` cannot occur in a slice; line 1 is a harmless answer.
            let at = usize::try_from(self.reader.error_position()).unwrap_or_default();
            ReadError::Malformed {
                detail: error.to_string(),
                line: line_of(self.text, at),
            }
        })
    }

    fn byte_position(&self) -> usize {
        usize::try_from(self.reader.buffer_position()).expect("a slice has at most usize bytes")
    }

    fn malformed_at(&self, detail: &str) -> ReadError {
        let line = line_of(self.text, self.byte_position());
        ReadError::Malformed {
            detail: detail.into(),
            line,
        }
    }

    /// Returns the namespaces that a tag declares.
    fn read_declarations(&self, tag: &BytesStart<'a>) -> Result<PrefixScope, ReadError> {
        // Most tags declare nothing, and all entries of our own server have the same declaration.
        // In both cases, no attribute is parsed.
        let attributes = tag.attributes_raw().trim_ascii();
        if attributes == OWN_DECLARATION {
            return Ok(vec![(Cow::Borrowed(""), Cow::Borrowed(ATOM))]);
        }
        let declares = |window: &[u8]| matches!(window, [b'x', b'm', b'l', b'n', b's']);
        if !attributes.windows(5).any(declares) {
            return Ok(vec![]);
        }
        let mut scope = vec![];
        for attribute in tag.attributes() {
            let attribute = attribute.map_err(|error| self.malformed_at(&error.to_string()))?;
            let key = String::from_utf8_lossy(attribute.key.as_ref());
            let prefix = if key == "xmlns" {
                Some("")
            } else {
                key.strip_prefix("xmlns:")
            };
            if let Some(prefix) = prefix {
                let raw = String::from_utf8_lossy(&attribute.value);
                let uri = attribute_value(&raw).map_err(|name| self.unknown_entity(&name))?;
                scope.push((prefix.to_owned().into(), uri.into_owned().into()));
            }
        }
        Ok(scope)
    }

    fn unknown_entity(&self, name: &str) -> ReadError {
        self.malformed_at(&format!("&{name}; is not accepted"))
    }

    /// Returns whether a tag is the element `local` of `namespace`, given the declarations on and
    /// around the tag.
    fn is_element(
        tag: &BytesStart<'_>,
        own: &PrefixScope,
        outer: &PrefixScope,
        namespace: &str,
        local: &[u8],
    ) -> bool {
        if tag.local_name().as_ref() != local {
            return false;
        }
        let prefix = tag.name().prefix();
        let prefix = prefix.map_or(&b""[..], |prefix| prefix.into_inner());
        let prefix = std::str::from_utf8(prefix).unwrap_or_default();
        let bound = |scope: &PrefixScope| {
            scope
                .iter()
                .rev()
                .find(|(name, _)| is_prefix(name, prefix))
                .map(|(_, uri)| uri == namespace)
        };
        bound(own).or_else(|| bound(outer)).unwrap_or(false)
    }

    /// Returns the decoded value of the attribute with this qualified name.
    fn attribute_of(tag: &BytesStart<'_>, name: &str) -> Option<String> {
        // A broken attribute counts as absent: consumers read feeds that no gate has checked.
        let attribute = tag.try_get_attribute(name).ok()??;
        let raw = String::from_utf8_lossy(&attribute.value).into_owned();
        attribute_value(&raw).ok().map(Cow::into_owned)
    }

    /// Returns the base of the references inside `tag` (rule A-4). `None` if the `xml:base` of the
    /// tag is no URL: then only absolute references mean something.
    fn base_inside(outer: Option<&Url>, tag: &BytesStart<'_>) -> Option<Url> {
        match Self::attribute_of(tag, "xml:base") {
            None => outer.cloned(),
            Some(own) => resolve(outer, &own),
        }
    }
}

#[cfg(test)]
mod tests;
