//! Foreign entries as elements of their own, with the context of their feed.
//!
//! Pure.

use bytes::Bytes;
use quick_xml::{Reader, events::Event};

use super::Document;
use crate::entry::push_attribute;

impl Document {
    /// Returns an entry as an element that stands alone.
    ///
    /// Entries of our own feeds stand alone already. An entry of a foreign feed gets the feed's
    /// namespace declarations, base, language and authors, unless the entry has such parts of its
    /// own.
    pub fn stand_alone(&self, index: usize) -> Option<Bytes> {
        let fragment = self.fragment(index)?;
        // Entries with positions stand alone as they were stored.
        if self.history.is_some() || self.scope.is_empty() {
            return Some(fragment);
        }
        let mut reader = Reader::from_reader(&fragment[..]);
        let Ok(Event::Start(tag) | Event::Empty(tag)) = reader.read_event() else {
            return Some(fragment);
        };
        let inside = usize::try_from(reader.buffer_position()).ok()?;
        let name = String::from_utf8_lossy(tag.name().as_ref()).into_owned();
        let mut element = format!("<{name}");
        for (prefix, uri) in &self.scope {
            let attribute = if prefix.is_empty() {
                "xmlns".to_owned()
            } else {
                format!("xmlns:{prefix}")
            };
            // The entry's own declaration overrides the feed's, and an attribute must not stand
            // twice.
            if !matches!(tag.try_get_attribute(&attribute), Ok(Some(_))) {
                push_attribute(&attribute, uri, &mut element);
            }
        }
        for (name, value) in &self.inherited {
            if !matches!(tag.try_get_attribute(name), Ok(Some(_))) {
                push_attribute(name, value, &mut element);
            }
        }
        let mut whole = element.into_bytes();
        // `1 +` skips the `<` before the name; the entry's own attributes follow as they stand.
        whole.extend_from_slice(fragment.get(1 + name.len()..inside)?);
        let rest = fragment.get(inside..)?;
        // An empty element has no inside to put authors into.
        if !rest.is_empty() && !names_author(rest) {
            for author in &self.authors {
                whole.extend_from_slice(self.body.get(author.clone())?);
            }
        }
        whole.extend_from_slice(rest);
        Some(whole.into())
    }
}

/// Returns whether an entry names an author, or has a source that may name one. `children` are the
/// entry's bytes behind the start tag.
fn names_author(children: &[u8]) -> bool {
    let mut reader = Reader::from_reader(children);
    // The slice ends with the entry's end tag, whose start tag is not part of the slice.
    reader.config_mut().check_end_names = false;
    let mut depth = 0_u32;
    loop {
        match reader.read_event() {
            Ok(Event::Start(tag)) => {
                if depth == 0 && matches!(tag.local_name().as_ref(), b"author" | b"source") {
                    return true;
                }
                depth += 1;
            }
            Ok(Event::End(_)) if depth > 0 => depth -= 1,
            Ok(Event::Eof | Event::End(_)) | Err(_) => return false,
            Ok(_) => {}
        }
    }
}
