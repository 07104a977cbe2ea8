//! Reasons why a publication was refused, in words on which the publisher can act.
//!
//! Pure. A refusal changes nothing. Over HTTP, a refusal becomes a problem document (RFC 9457) with
//! the same members.

use crate::{digest::Digest, feed::EntryId, xml::XmlError};

/// Kind of a refusal. Each kind has one problem type and one HTTP status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RefusalKind {
    /// Not well-formed XML, not JSON, or beyond a limit of form such as nesting. Status 400.
    Malformed,
    /// Well-formed, but breaks a rule of Atom or of Simplefeed. Status 422.
    Unacceptable,
    /// Larger than a bound. Status 413.
    TooLarge,
    /// An entry with this id and other content exists, or the request names a thing of the wrong
    /// kind. Status 409.
    Conflict,
    /// The feed has changed since the state that `If-Match` names. Status 412.
    Precondition,
}

/// An id with two different contents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// Index of the offered entry in the batch, from 0.
    pub entry: usize,
    /// The id that both contents have.
    pub id: EntryId,
    /// Digest of the sent form of the first entry with the id.
    pub stored: Digest,
    /// Digest of the sent form of the offered entry.
    pub offered: Digest,
}

/// Refusal: the fault and, as exactly as possible, where the fault lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Kind of the refusal, which sets the HTTP status.
    pub kind: RefusalKind,
    /// One sentence for the publisher, lower case, without a period.
    pub detail: String,
    /// Index of the entry at fault in the batch, from 0, in the order of appending.
    pub entry: Option<usize>,
    /// The element or member at fault.
    pub element: Option<String>,
    /// The line of the request body, from 1.
    pub line: Option<usize>,
    /// The rule that was broken, such as `RFC 4287, 4.1.2`.
    pub rule: Option<&'static str>,
    /// All conflicts of the batch; none unless the kind is [`RefusalKind::Conflict`].
    pub conflicts: Vec<Conflict>,
}

impl Refusal {
    fn new(kind: RefusalKind, detail: String) -> Self {
        Self {
            kind,
            detail,
            entry: None,
            element: None,
            line: None,
            rule: None,
            conflicts: vec![],
        }
    }

    /// Returns a refusal of input that has no readable form.
    pub fn malformed(detail: impl Into<String>) -> Self {
        Self::new(RefusalKind::Malformed, detail.into())
    }

    /// Returns a refusal of `text`, which is not acceptable XML.
    pub(crate) fn not_xml(error: XmlError, text: &str) -> Self {
        let line = error.line(text);
        Self::malformed(error.detail).at_line(line)
    }

    /// Returns a refusal of readable input that breaks `rule`.
    pub fn unacceptable(detail: impl Into<String>, rule: &'static str) -> Self {
        Self {
            rule: Some(rule),
            ..Self::new(RefusalKind::Unacceptable, detail.into())
        }
    }

    /// Returns a refusal of input beyond a bound.
    pub fn too_large(detail: impl Into<String>) -> Self {
        Self::new(RefusalKind::TooLarge, detail.into())
    }

    /// Returns a refusal because the feed has changed since the state that the publisher names.
    pub fn precondition(detail: impl Into<String>) -> Self {
        Self::new(RefusalKind::Precondition, detail.into())
    }

    /// Returns a refusal because ids already have other contents.
    pub fn conflict(conflicts: Vec<Conflict>) -> Self {
        let detail = match conflicts.as_slice() {
            [one] => format!("entry {} exists with other content", one.id),
            many => format!("{} entries exist with other content", many.len()),
        };
        // The refusal names the entry of the first conflict; `conflicts` has all conflicts.
        let entry = conflicts.first().map(|conflict| conflict.entry);
        Self {
            entry,
            conflicts,
            ..Self::new(RefusalKind::Conflict, detail)
        }
    }

    /// Returns a refusal because the request names a thing of another kind.
    pub fn contradiction(detail: impl Into<String>, rule: &'static str) -> Self {
        Self {
            rule: Some(rule),
            ..Self::new(RefusalKind::Conflict, detail.into())
        }
    }

    /// Names the element or member at fault.
    #[must_use]
    pub fn at_element(self, element: &str) -> Self {
        Self {
            element: Some(element.into()),
            ..self
        }
    }

    /// Names the line, from 1.
    #[must_use]
    pub fn at_line(self, line: usize) -> Self {
        Self {
            line: Some(line),
            ..self
        }
    }

    /// Names the entry, from 0, in the order of appending.
    #[must_use]
    pub fn at_entry(self, entry: usize) -> Self {
        Self {
            entry: Some(entry),
            ..self
        }
    }
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.detail)?;
        if let Some(line) = self.line {
            write!(f, " (line {line})")?;
        }
        if let Some(rule) = self.rule {
            write!(f, " ({rule})")?;
        }
        Ok(())
    }
}

impl std::error::Error for Refusal {}
