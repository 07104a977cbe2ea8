//! Events: entries as JSON, one object each, for publishers and pipelines that speak no XML.
//!
//! Pure. An event becomes an Atom entry, under the same rules as any other entry; an entry becomes
//! an event for `replay --format ndjson`. The output of one server is valid input of another:
//! `replay A | append B` gives B the same events.
//!
//! An entry keeps JSON content verbatim, numbers and order of members included: as `text/json`,
//! which RFC 4287 (4.1.3.3) stores verbatim, or in Base64 under a type such as
//! `application/ld+json`.

use data_encoding::BASE64;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::{
    digest::Digest,
    entry::{Draft, SUMMARY, push_attribute, push_element},
    feed::Position,
    limits::BATCH_ENTRIES_MAX,
    refusal::Refusal,
    scanner::{JsonForm, TEXT_JSON, essence, inline, is_json_type, is_xml_type, scan},
    xml::{escape_text, find_forbidden},
};

mod canonical;
mod content;
mod from_entry;
mod listed;
mod one_or_more;
mod plain;

use canonical::canonical_event;
pub use canonical::canonical_json;
use listed::BoundedItems;
use plain::plain_draft;

/// Entry as JSON. Unknown members are refused; the gate completes absent ones.
///
/// # Examples
///
/// ```
/// use simplefeed_core::event::Event;
///
/// let event: Event = serde_json::from_str(r#"{"title":"Order 7","content":{"total":12.50}}"#)?;
/// assert_eq!(event.content.unwrap().get(), r#"{"total":12.50}"#);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, expecting = "an event (a JSON object)")]
pub struct Event {
    /// The entry's id, an absolute IRI.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// A title; the id if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// An RFC 3339 date-time; the commit instant if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub updated: Option<String>,
    /// Date of the first publication, an RFC 3339 date-time; left out of the entry if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub published: Option<String>,
    /// One author or several: a name, or an object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub author: Option<Authors>,
    /// Categories, each as a term alone or as an object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub categories: Option<Vec<Category>>,
    /// Links with at least an `href`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub links: Option<Vec<Link>>,
    /// A summary as plain text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub summary: Option<String>,
    /// `text`, `html`, `xhtml` or a media type. If absent: `text` for a JSON string,
    /// `application/json` for any other content. `application/json` stands as `text/json` in Atom.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Under a JSON type any JSON value, else a string: plain text, HTML, XML or Base64.
    #[serde(
        default,
        deserialize_with = "keep_null",
        skip_serializing_if = "Option::is_none"
    )]
    pub content: Option<Box<RawValue>>,
    /// URL of the document in which the entry was read. Printed by `replay`, ignored by `append`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub document: Option<String>,
    /// Position at which the entry was read. Printed by `replay`, ignored by `append`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub position: Option<u64>,
    /// Feed of the entry. Printed by `watch`, ignored by `append`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub feed: Option<String>,
}

/// Reads a member that is present, so that a JSON `null` is a value and not an absence.
fn keep_null<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<Box<RawValue>>, D::Error> {
    Box::<RawValue>::deserialize(from).map(Some)
}

/// One author or several.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Authors {
    /// One author, given without an array.
    One(Author),
    /// Several authors in an array, which may be empty.
    Many(Vec<Author>),
}

/// A person: a name alone, or with more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Author {
    /// A name alone, as a JSON string.
    Name(String),
    /// A name with an address.
    Person(AuthorPerson),
}

/// A person with more than a name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(
    deny_unknown_fields,
    expecting = "a person (a JSON object with a name)"
)]
pub struct AuthorPerson {
    /// Name of the person, the only required member.
    pub name: String,
    /// Absolute IRI of the person, such as a home page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uri: Option<String>,
    /// An e-mail address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub email: Option<String>,
}

/// A category: a term alone, or with more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Category {
    /// A term alone, as a JSON string.
    Term(String),
    /// A term with a scheme or label.
    Full(FullCategory),
}

/// A category with more than a term.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(
    deny_unknown_fields,
    expecting = "a category (a JSON object with a term)"
)]
pub struct FullCategory {
    /// Term that identifies the category within the scheme.
    pub term: String,
    /// IRI of the vocabulary that the term belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheme: Option<String>,
    /// A label for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
}

/// Link of an entry, with the attributes of RFC 4287, 4.2.7.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a link (a JSON object with an href)")]
pub struct Link {
    /// The relation; `alternate` if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rel: Option<String>,
    /// Target of the link, an absolute IRI.
    pub href: String,
    /// Media type of the target.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Language of the target.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hreflang: Option<String>,
    /// A title for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// Length of the target in bytes, as written; a JSON number is accepted, too.
    #[serde(
        default,
        deserialize_with = "read_length",
        skip_serializing_if = "Option::is_none"
    )]
    pub length: Option<String>,
}

fn read_length<'de, D: serde::Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<String>, D::Error> {
    use serde_json::Value;
    match Option::<Value>::deserialize(deserializer)? {
        None => Ok(None),
        Some(Value::String(length)) => Ok(Some(length)),
        // RFC 4287 (4.2.7.6) has a length in octets, so a negative number or a fraction is none.
        Some(Value::Number(length)) if length.is_u64() => Ok(Some(length.to_string())),
        Some(_) => Err(serde::de::Error::custom(
            "the length of a link is a number of bytes",
        )),
    }
}

/// Returns the drafts of a JSON body: one event, or an array of events, oldest first.
///
/// # Errors
///
/// Returns a refusal of the first event that is not JSON (`Malformed`) or that breaks a rule
/// (`Unacceptable`), or of too many entries (`TooLarge`).
pub fn from_json(body: &[u8]) -> Result<Vec<Draft>, Refusal> {
    let raw: &RawValue = serde_json::from_slice(body).map_err(|error| json_refusal(&error))?;
    // One object is an event; the parser has already removed the white space around the value.
    if raw.get().starts_with('{') {
        return Ok(vec![draft_of(raw.get())?]);
    }
    // The list stops keeping items beyond the bound, so that an oversized array takes no memory for
    // them.
    let BoundedItems(events) =
        serde_json::from_str(raw.get()).map_err(|error| json_refusal(&error))?;
    check_count(events.len())?;
    events
        .into_iter()
        .enumerate()
        .map(|(entry, raw)| draft_of(raw.get()).map_err(|refusal| refusal.at_entry(entry)))
        .collect()
}

/// Returns the drafts of an NDJSON body: one event a line, oldest first. Blank lines are ignored.
///
/// # Errors
///
/// As [`from_json`], naming the line.
pub fn from_ndjson(body: &[u8]) -> Result<Vec<Draft>, Refusal> {
    let mut drafts = vec![];
    // Splitting bytes keeps line numbers right, even where a line is not UTF-8.
    for (line, text) in body.split(|byte| *byte == b'\n').enumerate() {
        if text.trim_ascii().is_empty() {
            continue;
        }
        // The check comes before the line is parsed: an event beyond the bound costs nothing.
        check_count(drafts.len() + 1)?;
        let entry = drafts.len();
        let place = |refusal: Refusal| refusal.at_entry(entry).at_line(line + 1);
        let text = std::str::from_utf8(text)
            .map_err(|error| place(Refusal::malformed(format!("not JSON: {error}"))))?;
        drafts.push(draft_of(text).map_err(place)?);
    }
    Ok(drafts)
}

fn check_count(events: usize) -> Result<(), Refusal> {
    if events <= BATCH_ENTRIES_MAX {
        return Ok(());
    }
    Err(Refusal::too_large(format!(
        "there are more than {BATCH_ENTRIES_MAX} entries"
    )))
}

fn json_refusal(error: &serde_json::Error) -> Refusal {
    let mut detail = error.to_string();
    // serde_json's own message does not explain that an escape such as `\ud83d` is half a
    // character.
    if detail.contains("surrogate") || detail.contains("hex escape") {
        detail += " (an escape such as \\ud83d is half a character and needs the other half)";
    }
    let refusal = if error.is_data() {
        Refusal::unacceptable(detail, "Simplefeed profile: events")
    } else {
        Refusal::malformed(format!("not JSON: {detail}"))
    };
    // serde_json reports line 0 for errors without a place.
    if error.line() > 0 {
        refusal.at_line(error.line())
    } else {
        refusal
    }
}

/// Returns the draft of one event.
fn draft_of(text: &str) -> Result<Draft, Refusal> {
    let event: Event = serde_json::from_str(text).map_err(|error| {
        // A syntax error anywhere in the text is reported first: text with such an error is not
        // JSON at all.
        let syntax = serde_json::from_str::<&RawValue>(text).err();
        json_refusal(&syntax.unwrap_or(error))
    })?;
    // serde also deserializes a struct from an array of fields.
    if !text.trim_start().starts_with('{') {
        let detail = "an event is a JSON object, not an array";
        return Err(Refusal::unacceptable(detail, "Simplefeed profile: events"));
    }
    // Servers take millions of common events, which need no tokenizer; the gate takes the others.
    let mut draft = match plain_draft(&event, event.to_atom()?) {
        Ok(draft) => draft,
        Err(atom) => draft_of_atom(&atom)?,
    };
    // The digest covers the event, not the Atom made from it, so that the form of that Atom can
    // change without a change of digests.
    draft.sent = Digest::of(canonical_event(text)?.as_bytes());
    Ok(draft)
}

/// Returns the draft of an event's Atom, from the gate.
fn draft_of_atom(atom: &str) -> Result<Draft, Refusal> {
    let mut drafts = scan(atom.as_bytes()).map_err(without_line)?;
    Ok(drafts.pop().expect("an entry document has one entry"))
}

/// Removes the line, which is a line of the Atom made from the event. The publisher has never seen
/// that text.
fn without_line(refusal: Refusal) -> Refusal {
    Refusal {
        line: None,
        ..refusal
    }
}

impl Event {
    /// Returns an event with `content` as JSON.
    ///
    /// # Errors
    ///
    /// Returns the reason why `content` has no JSON form.
    pub fn json<T: Serialize>(content: &T) -> Result<Self, serde_json::Error> {
        let content = Some(serde_json::value::to_raw_value(content)?);
        Ok(Self {
            kind: Some("application/json".into()),
            content,
            ..Self::default()
        })
    }

    /// Returns the event as one line of JSON, without the line feed, as `replay --format ndjson`
    /// and streams of events show events. The line has the URL of the entry's document, the feed
    /// where the caller reads several feeds, and the position.
    ///
    /// # Examples
    ///
    /// ```
    /// use simplefeed_core::{event::Event, feed::Position};
    ///
    /// let event = Event { id: Some("urn:1".into()), ..Event::default() };
    /// let line = event.line(Some("https://example.org/feeds/a/1.atom".into()), None, Some(Position(7)));
    /// assert_eq!(line, r#"{"id":"urn:1","document":"https://example.org/feeds/a/1.atom","position":7}"#);
    /// ```
    pub fn line(
        mut self,
        document: Option<String>,
        feed: Option<String>,
        position: Option<Position>,
    ) -> String {
        self.document = document;
        self.feed = feed;
        self.position = position.map(|position| position.0);
        serde_json::to_string(&self).expect("an event has a JSON form")
    }

    /// Returns the event as an Atom entry, before the gate's completions.
    fn to_atom(&self) -> Result<String, Refusal> {
        let mut out = String::from(plain::BEGIN);
        for (name, text) in [
            ("id", &self.id),
            ("title", &self.title),
            ("updated", &self.updated),
            ("published", &self.published),
        ] {
            if let Some(text) = text {
                push_element(name, check_chars(name, text)?, &mut out);
            }
        }
        self.push_authors(&mut out)?;
        for category in self.categories.iter().flatten() {
            push_category(category, &mut out)?;
        }
        for link in self.links.iter().flatten() {
            push_link(link, &mut out)?;
        }
        if let Some(summary) = &self.summary {
            push_element("summary", check_chars("summary", summary)?, &mut out);
        }
        self.push_content(&mut out)?;
        out.push_str("</entry>");
        Ok(out)
    }

    fn push_authors(&self, out: &mut String) -> Result<(), Refusal> {
        let authors = match &self.author {
            None => &[],
            Some(Authors::One(author)) => std::slice::from_ref(author),
            Some(Authors::Many(authors)) => authors.as_slice(),
        };
        for author in authors {
            out.push_str("<author>");
            match author {
                Author::Name(name) => push_element("name", check_chars("author", name)?, out),
                Author::Person(person) => {
                    push_element("name", check_chars("author", &person.name)?, out);
                    for (name, text) in [("uri", &person.uri), ("email", &person.email)] {
                        if let Some(text) = text {
                            push_element(name, check_chars("author", text)?, out);
                        }
                    }
                }
            }
            out.push_str("</author>");
        }
        Ok(())
    }

    fn push_content(&self, out: &mut String) -> Result<(), Refusal> {
        let Some(raw) = self.given_content() else {
            return match &self.kind {
                Some(_) => Err(wrong_content("there is a type but no content")),
                None => Ok(()),
            };
        };
        let is_string = raw.get().starts_with('"');
        // Content under `application/json` would be stored as `text/json` anyway.
        let default = if is_string { "text" } else { TEXT_JSON };
        let kind = check_chars("type", self.kind.as_deref().unwrap_or(default))?;
        let form = JsonForm::of(kind);
        // Base64 content needs a summary (rule A-11).
        if form == Some(JsonForm::Base64) && self.summary.is_none() {
            push_element("summary", SUMMARY, out);
        }
        out.push_str("<content");
        let stored = match form {
            Some(JsonForm::Text) => TEXT_JSON,
            Some(JsonForm::Base64) | None => kind,
        };
        push_attribute("type", stored, out);
        out.push('>');
        match form {
            // The raw text keeps the spelling of numbers and the order of members.
            Some(JsonForm::Text) => escape_text(check_chars("content", raw.get())?, out),
            Some(JsonForm::Base64) => BASE64.encode_append(raw.get().as_bytes(), out),
            None if is_string => {
                let text: String = serde_json::from_str(raw.get()).map_err(|e| json_refusal(&e))?;
                push_string_content(kind, &text, out)?;
            }
            None => return Err(wrong_content("content of this type is not a string")),
        }
        out.push_str("</content>");
        Ok(())
    }

    /// Returns the content; `None` if absent. Without a JSON type, `null` means absence, as in
    /// other members.
    fn given_content(&self) -> Option<&RawValue> {
        let has_json_type = || self.kind.as_deref().is_some_and(is_json_type);
        let content = self.content.as_deref();
        content.filter(|raw| raw.get() != "null" || has_json_type())
    }
}

fn push_string_content(kind: &str, text: &str, out: &mut String) -> Result<(), Refusal> {
    if essence(kind) == "xhtml" || is_xml_type(kind) {
        let element =
            inline(text).map_err(|error| Refusal::malformed(error.detail).at_element("content"))?;
        out.push_str(&element);
    } else {
        escape_text(check_chars("content", text)?, out);
    }
    Ok(())
}

fn push_category(category: &Category, out: &mut String) -> Result<(), Refusal> {
    let (term, scheme, label) = match category {
        Category::Term(term) => (Some(term), None, None),
        Category::Full(full) => (Some(&full.term), full.scheme.as_ref(), full.label.as_ref()),
    };
    push_empty(
        "category",
        &[("term", term), ("scheme", scheme), ("label", label)],
        out,
    )
}

fn push_link(link: &Link, out: &mut String) -> Result<(), Refusal> {
    let attributes = [
        ("rel", link.rel.as_ref()),
        ("href", Some(&link.href)),
        ("type", link.kind.as_ref()),
        ("hreflang", link.hreflang.as_ref()),
        ("title", link.title.as_ref()),
        ("length", link.length.as_ref()),
    ];
    push_empty("link", &attributes, out)
}

fn push_empty(
    name: &str,
    attributes: &[(&str, Option<&String>)],
    out: &mut String,
) -> Result<(), Refusal> {
    out.push('<');
    out.push_str(name);
    for (attribute, value) in attributes {
        if let Some(value) = value {
            push_attribute(attribute, check_chars(name, value)?, out);
        }
    }
    out.push_str("/>");
    Ok(())
}

fn check_chars<'a>(member: &str, text: &'a str) -> Result<&'a str, Refusal> {
    // JSON strings can hold characters that XML 1.0 cannot carry, not even as references.
    match find_forbidden(text) {
        None => Ok(text),
        Some((_, bad)) => {
            let detail = format!("{member} has the character U+{:04X}", u32::from(bad));
            Err(Refusal::unacceptable(detail, "XML 1.0, 2.2").at_element(member))
        }
    }
}

fn wrong_content(detail: &str) -> Refusal {
    Refusal::unacceptable(detail, "Simplefeed profile: events").at_element("content")
}

#[cfg(test)]
mod tests;
