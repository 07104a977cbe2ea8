//! `atom_syndication::Entry`, the type that Rust programs build and receive.
//!
//! Pure. The type is used only at the edges of the API, because an entry that is read into this
//! type and written again loses inline XML, extensions and `xml:base`. The type's writer trusts the
//! caller, so written entries pass the gate like any other input.

use atom_syndication::{Entry, WriteConfig};
use chrono::{DateTime, Utc};

use crate::refusal::Refusal;

/// Returns an entry as the Atom entry document to publish.
///
/// # Errors
///
/// `Unacceptable` if `id` or `updated` was never set (the defaults of the crate would be wrong), or
/// if the entry cannot be written.
///
/// # Examples
///
/// ```
/// use atom_syndication::Entry;
/// use simplefeed_core::{scanner::scan, syndication::to_atom};
///
/// let mut entry = Entry::default();
/// entry.set_id("urn:uuid:eb3ee5a0-75be-11e2-bcfd-0800200c9a66");
/// entry.set_title("Order 7");
/// entry.set_updated("2026-11-20T08:00:00Z".parse::<chrono::DateTime<chrono::FixedOffset>>()?);
/// let drafts = scan(to_atom(&entry)?.as_bytes())?;
/// assert_eq!(drafts[0].id.as_ref().unwrap().as_str(), entry.id());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn to_atom(entry: &Entry) -> Result<String, Refusal> {
    let unset = |name: &'static str| {
        Refusal::unacceptable(format!("{name} is not set"), "RFC 4287, 4.1.2").at_element(name)
    };
    if entry.id.is_empty() {
        return Err(unset("id"));
    }
    // This date is the crate's default for a date that was never set.
    if entry.updated == DateTime::<Utc>::UNIX_EPOCH {
        return Err(unset("updated"));
    }
    let config = WriteConfig {
        // The text must begin with `<entry` for the check below.
        write_document_declaration: false,
        // Indentation would add white space that the entry does not have.
        indent_size: None,
    };
    let wrong = |detail: String| Refusal::unacceptable(detail, "atom_syndication");
    let bytes = entry
        .write_with_config(Vec::new(), config)
        .map_err(|error| wrong(error.to_string()))?;
    let text = String::from_utf8(bytes).map_err(|error| wrong(error.to_string()))?;
    // The crate's writer declares Atom's namespace on a feed only.
    let declared = text
        .get(..text.find('>').unwrap_or(0))
        .is_some_and(|tag| tag.contains(" xmlns="));
    match text.strip_prefix("<entry") {
        Some(rest) if !declared => Ok(format!(
            "<entry xmlns=\"http://www.w3.org/2005/Atom\"{rest}"
        )),
        _ => Ok(text),
    }
}
