//! An entry on its way into the log: a draft, and how the gate completes it into a fragment.
//!
//! Pure. A fragment is what is stored and shown for ever: the element as sent, with the inherited
//! declarations it needs, so that it stands alone wherever it is put, and with what Atom requires
//! but its publisher left out. It is never re-serialised.

use std::sync::Arc;

use bytes::Bytes;

use crate::{
    digest::Digest,
    feed::{CommitNumber, DocumentName, EntryId, Position},
    instant::Instant,
    limits::ENTRY_BYTES_MAX,
    refusal::Refusal,
    xml::{escape_attribute, escape_text, escaped_len},
};

/// The summary of JSON that is stored in Base64, if its publisher gave none.
pub(crate) const SUMMARY: &str = "JSON";

/// A person as Atom has it (RFC 4287, 3.2).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Person {
    /// The name, which alone is required.
    pub name: String,
    /// An IRI associated with the person.
    pub uri: Option<String>,
    /// An e-mail address.
    pub email: Option<String>,
}

impl Person {
    /// Returns the bytes of the element that names the person, at most.
    pub(crate) fn size(&self) -> usize {
        let parts = [Some(&self.name), self.uri.as_ref(), self.email.as_ref()];
        let parts = parts.into_iter().flatten();
        parts.map(|part| escaped_len(part) + 32).sum::<usize>() + 32
    }
}

/// What an entry lacks that the gate gives it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "six independent facts")]
pub struct Missing {
    /// It has no `id`.
    pub id: bool,
    /// It has no `title`.
    pub title: bool,
    /// It has no `updated`.
    pub updated: bool,
    /// It has no `author`, nor does its `source`.
    pub author: bool,
    /// It has neither `content` nor an alternate link.
    pub content: bool,
    /// Its content is put into Base64, which needs a `summary` (rule A-11), and it has none.
    pub summary: bool,
}

/// A checked entry whose fragment is complete but for what only the log can know.
#[derive(Clone, Debug)]
pub struct Draft {
    /// The entry's id, unless it is to be given one.
    pub id: Option<EntryId>,
    /// Digest of the sent form: an Atom entry's bytes with its inherited context, or a JSON event's canonical
    /// form.
    pub sent: Digest,
    /// Authors inherited from the feed document it was sent in; used if it names none.
    pub(crate) authors: Arc<[Person]>,
    pub(crate) element: String,
    /// Where in `element` the completions go: behind the start tag.
    pub(crate) inside: usize,
    /// The prefix that stands for Atom's namespace in the element, with its colon, or nothing.
    pub(crate) prefix: String,
    pub(crate) missing: Missing,
}

impl Draft {
    /// Returns the bytes that the finished fragment has at most, in a feed with this author.
    pub fn size(&self, author: &str) -> usize {
        // Names of elements, their ends, a date, and an id made here.
        const COMPLETIONS: usize = 384;
        let id = self.id.as_ref().map_or(0, |id| escaped_len(id.as_str()));
        let authors = match (self.missing.author, &*self.authors) {
            (false, _) => 0,
            (true, []) => escaped_len(author),
            (true, authors) => authors.iter().map(Person::size).sum(),
        };
        let elements = 6 + 4 * self.authors.len().max(1);
        let prefixes = 2 * elements * self.prefix.len();
        self.element.len() + COMPLETIONS + prefixes + 2 * id + authors
    }

    /// Returns the fragment: the element with all that Atom requires.
    ///
    /// The title defaults to the id, `updated` to the commit instant, the author to the feed's.
    ///
    /// # Errors
    ///
    /// Returns [`TooLarge`](crate::refusal::RefusalKind::TooLarge) if the fragment is larger than
    /// [`ENTRY_BYTES_MAX`].
    pub fn complete(&self, id: &EntryId, instant: Instant, author: &str) -> Result<Bytes, Refusal> {
        let (start, rest) = self.element.split_at(self.inside);
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
            self.complete_authors(author, &mut fragment);
        }
        if self.missing.summary {
            self.element_with("summary", SUMMARY, &mut fragment);
        }
        if self.missing.content {
            self.element_with("content", "", &mut fragment);
        }
        fragment.push_str(rest);
        if fragment.len() > ENTRY_BYTES_MAX {
            let detail = format!("entry {id} is larger than {ENTRY_BYTES_MAX} bytes");
            return Err(Refusal::too_large(detail));
        }
        Ok(fragment.into())
    }

    /// Returns the element as it is to be sent on: with the authors it inherited.
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

/// An entry as the log holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its place in its feed.
    pub at: Position,
    /// Its id.
    pub id: EntryId,
    /// The document it is in.
    pub document: DocumentName,
    /// The commit that stored it.
    pub commit: CommitNumber,
    /// The commit's instant plus one microsecond for every entry of the commit before it.
    pub instant: Instant,
    /// The digest of what was sent.
    pub sent: Digest,
    /// The bytes from `<entry` to `</entry>`, as they stand in every document.
    pub fragment: Bytes,
}

/// Appends ` name="value"`.
pub(crate) fn push_attribute(name: &str, value: &str, out: &mut String) {
    out.push(' ');
    out.push_str(name);
    out.push_str("=\"");
    escape_attribute(value, out);
    out.push('"');
}

/// Appends `<name>text</name>`.
pub(crate) fn push_element(name: &str, text: &str, out: &mut String) {
    out.push('<');
    out.push_str(name);
    out.push('>');
    escape_text(text, out);
    out.push_str("</");
    out.push_str(name);
    out.push('>');
}
