//! An entry on its way into the log: a draft, and how the gate completes it into a fragment.
//!
//! Pure. A fragment is stored and shown for ever. The fragment is the element as sent, with the
//! inherited declarations without which the element cannot stand alone, and with the elements that
//! the gate adds because the publisher left them out. Nothing re-serialises a fragment.

use std::sync::Arc;

use bytes::Bytes;

use crate::{
    digest::Digest,
    feed::{CommitNumber, DocumentName, EntryId, Position},
    limits::ENTRY_BYTES_MAX,
    refusal::Refusal,
    timestamp::Timestamp,
    xml::{escape_attribute, escape_text, escaped_len},
};

/// Default summary of JSON that is stored in Base64.
pub(crate) const SUMMARY: &str = "JSON";

/// A person construct of Atom (RFC 4287, 3.2).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Person {
    /// The name, the only part that is required.
    pub name: String,
    /// An IRI associated with the person.
    pub uri: Option<String>,
    /// An e-mail address.
    pub email: Option<String>,
}

impl Person {
    /// Returns an upper bound on the size of the person's element, in bytes.
    pub(crate) fn size(&self) -> usize {
        let parts = [Some(&self.name), self.uri.as_ref(), self.email.as_ref()];
        let parts = parts.into_iter().flatten();
        // 32 bytes hold a pair of tags such as `<email>` and `</email>`.
        parts.map(|part| escaped_len(part) + 32).sum::<usize>() + 32
    }
}

/// Beginning of a link to an entry's page, between the prefix of the element's name and the URL.
pub(crate) const ALTERNATE: &str = "link rel=\"alternate\" type=\"text/html\" href=\"";

/// Parts that the gate adds because an entry lacks them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "seven independent facts")]
pub struct Missing {
    /// The entry has no `id`.
    pub id: bool,
    /// The entry has no `title`.
    pub title: bool,
    /// The entry has no `updated`.
    pub updated: bool,
    /// Neither the entry nor the `source` in the entry has an `author`.
    pub author: bool,
    /// The entry has neither `content` nor an alternate link.
    pub content: bool,
    /// The entry has no alternate link.
    pub alternate: bool,
    /// The entry has content in Base64, but no `summary`, which such content needs (rule A-11).
    pub summary: bool,
}

/// Parts that a feed adds to entries that lack them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Additions<'s> {
    /// Author for entries without an author.
    pub author: &'s str,
    /// URL of the entry's page, for entries without an alternate link; `None` in feeds that add no
    /// link.
    pub alternate: Option<String>,
}

/// Checked entry whose fragment is complete except for facts that only the log knows.
#[derive(Clone, Debug)]
pub struct Draft {
    /// The entry's id; `None` until the server assigns one.
    pub id: Option<EntryId>,
    /// Digest of the sent form: an Atom entry's bytes with the inherited context, or a JSON event's
    /// canonical form.
    pub sent: Digest,
    /// Authors inherited from the feed document in which the entry was sent; used if the entry
    /// names no author.
    pub(crate) authors: Arc<[Person]>,
    pub(crate) element: String,
    /// Offset in `element`, behind the start tag, at which the missing parts are inserted.
    pub(crate) inside: usize,
    /// Prefix of Atom's namespace in the element, with the colon; empty for the default namespace.
    pub(crate) prefix: String,
    pub(crate) missing: Missing,
}

impl Draft {
    /// Returns an upper bound on the size of the finished fragment, in bytes. `author` is the
    /// feed's author, and `alternate` is the maximum length of the feed's alternate links, in
    /// bytes.
    pub fn size(&self, author: &str, alternate: usize) -> usize {
        // Room for the names of the completed elements, a date, and an id from the server.
        const COMPLETIONS: usize = 384;
        let id = self.id.as_ref().map_or(0, |id| escaped_len(id.as_str()));
        let authors = match (self.missing.author, &*self.authors) {
            (false, _) => 0,
            (true, []) => escaped_len(author),
            (true, authors) => authors.iter().map(Person::size).sum(),
        };
        let alternate = if self.missing.alternate { alternate } else { 0 };
        // At most seven elements are added. An author is an element with at most three children.
        let elements = 7 + 4 * self.authors.len().max(1);
        // Each element has a start and an end tag.
        let prefixes = 2 * elements * self.prefix.len();
        // The id can appear twice: as the id and as the title.
        self.element.len() + COMPLETIONS + prefixes + 2 * id + authors + alternate
    }

    /// Returns the fragment: the element with the parts that were missing.
    ///
    /// The title defaults to the id, and `updated` to `instant`. The author defaults to the
    /// inherited authors, or else to the feed's author. The alternate link leads to the entry's
    /// page, if the feed adds such links.
    ///
    /// # Errors
    ///
    /// Returns [`TooLarge`](crate::refusal::RefusalKind::TooLarge) if the fragment is larger than
    /// [`ENTRY_BYTES_MAX`].
    pub fn complete(
        &self,
        id: &EntryId,
        instant: Timestamp,
        additions: &Additions<'_>,
    ) -> Result<Bytes, Refusal> {
        let (start, rest) = self.element.split_at(self.inside);
        // 256 bytes hold the usual completions.
        let mut fragment = String::with_capacity(self.element.len() + 256);
        fragment.push_str(start);
        if self.missing.id {
            self.element_with("id", id.as_str(), &mut fragment);
        }
        if self.missing.title {
            self.element_with("title", id.as_str(), &mut fragment);
        }
        if self.missing.updated {
            self.element_with("updated", &instant.to_string(), &mut fragment);
        }
        if self.missing.author {
            self.complete_authors(additions.author, &mut fragment);
        }
        if let Some(url) = additions
            .alternate
            .as_ref()
            .filter(|_| self.missing.alternate)
        {
            fragment.push('<');
            fragment.push_str(&self.prefix);
            fragment.push_str(ALTERNATE);
            escape_attribute(url, &mut fragment);
            fragment.push_str("\"/>");
        }
        if self.missing.summary {
            self.element_with("summary", SUMMARY, &mut fragment);
        }
        // An entry without an alternate link must have content (RFC 4287, 4.1.2), even if empty.
        if self.missing.content {
            self.element_with("content", "", &mut fragment);
        }
        fragment.push_str(rest);
        // The bound holds for the whole fragment, including parts that only the log knows.
        if fragment.len() > ENTRY_BYTES_MAX {
            let detail = format!("entry {id} is larger than {ENTRY_BYTES_MAX} bytes");
            return Err(Refusal::too_large(detail));
        }
        Ok(fragment.into())
    }

    /// Returns the element, with the inherited authors if the entry names no author.
    pub(crate) fn into_element(self) -> String {
        if !self.missing.author || self.authors.is_empty() {
            return self.element;
        }
        let (start, rest) = self.element.split_at(self.inside);
        let mut element = String::with_capacity(self.element.len() + 128);
        element.push_str(start);
        for person in self.authors.iter() {
            self.author_with(person, &mut element);
        }
        element.push_str(rest);
        element
    }

    fn complete_authors(&self, author: &str, out: &mut String) {
        // The feed's author is a name alone, because a person needs nothing else.
        if self.authors.is_empty() {
            self.author_with(
                &Person {
                    name: author.into(),
                    ..Person::default()
                },
                out,
            );
        }
        for person in self.authors.iter() {
            self.author_with(person, out);
        }
    }

    fn author_with(&self, person: &Person, out: &mut String) {
        let name = format!("{}author>", self.prefix);
        out.push('<');
        out.push_str(&name);
        self.element_with("name", &person.name, out);
        if let Some(uri) = &person.uri {
            self.element_with("uri", uri, out);
        }
        if let Some(email) = &person.email {
            self.element_with("email", email, out);
        }
        out.push_str("</");
        out.push_str(&name);
    }

    fn element_with(&self, name: &str, text: &str, out: &mut String) {
        push_element(&format!("{}{name}", self.prefix), text, out);
    }
}

/// Entry as stored in the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Position of the entry in the feed.
    pub at: Position,
    /// The entry's `atom:id`, sent or assigned.
    pub id: EntryId,
    /// Document that shows the entry.
    pub document: DocumentName,
    /// Commit that stored the entry.
    pub commit: CommitNumber,
    /// Instant of the entry: the commit's instant, plus one microsecond for every earlier entry of
    /// the commit.
    pub instant: Timestamp,
    /// Digest of the sent form of the entry.
    pub sent: Digest,
    /// The bytes from `<entry` to `</entry>`, as they stand in every document of the feed.
    pub fragment: Bytes,
}

/// Appends the attribute ` name="value"` to a start tag, escaping the value.
pub(crate) fn push_attribute(name: &str, value: &str, out: &mut String) {
    out.push(' ');
    out.push_str(name);
    out.push_str("=\"");
    escape_attribute(value, out);
    out.push('"');
}

/// Appends the element `<name>text</name>`, escaping the text.
pub(crate) fn push_element(name: &str, text: &str, out: &mut String) {
    out.push('<');
    out.push_str(name);
    out.push('>');
    escape_text(text, out);
    out.push_str("</");
    out.push_str(name);
    out.push('>');
}
