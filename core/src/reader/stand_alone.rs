//! An entry of a foreign feed as an element of its own: with what its feed says for it.
//!
//! Pure.

use bytes::Bytes;
use quick_xml::{Reader, events::Event};

use super::Document;
use crate::entry::push_attribute;

impl Document {
    /// Returns an entry as an element that stands alone.
    ///
    /// Ours do as they are. One of a foreign feed gets the namespace declarations, the base, the language
    /// and the authors that its feed has for it, unless it has its own.
    pub fn stand_alone(&self, index: usize) -> Option<Bytes> {
        let fragment = self.fragment(index)?;
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
        whole.extend_from_slice(fragment.get(1 + name.len()..inside)?);
        let rest = fragment.get(inside..)?;
        if !rest.is_empty() && !names_author(rest) {
            for author in &self.authors {
                whole.extend_from_slice(self.body.get(author.clone())?);
            }
        }
        whole.extend_from_slice(rest);
        Some(whole.into())
    }
}

/// Whether an entry, given from behind its start tag on, names an author, or a source that may.
fn names_author(children: &[u8]) -> bool {
    let mut reader = Reader::from_reader(children);
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
