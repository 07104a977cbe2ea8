//! Canonical form of a JSON event, equal for repeats of the same event.
//!
//! Pure. The text has already passed a JSON parser, so this module only follows its structure. It reads the text
//! once, at any depth of nesting.

use std::collections::BTreeMap;

use super::json_refusal;
use crate::{limits::DEPTH_MAX, refusal::Refusal};

/// Members that describe the place of an event in a feed.
const PLACE: [&str; 3] = ["document", "position", "feed"];

/// Returns the form of an event that its digest covers: members sorted, white space removed, strings in
/// one spelling, numbers as sent, and without the members of its place.
///
/// # Errors
///
/// `Malformed` if an object has a member twice (parsers disagree about which one counts), or if it is nested
/// too deeply.
pub(super) fn canonical_event(json: &str) -> Result<String, Refusal> {
    let mut reading = Reading { json, at: 0 };
    reading.skip_blanks();
    // Members are sorted because parsers do not keep their order.
    let mut members = reading.read_members(1)?;
    // `replay` adds the place, so `append` must find the same digest without it.
    members.retain(|name, _| !PLACE.contains(&name.as_str()));
    let mut out = String::with_capacity(json.len());
    push_members(&members, &mut out)?;
    Ok(out)
}

struct Reading<'a> {
    json: &'a str,
    at: usize,
}

impl<'a> Reading<'a> {
    fn peek(&self) -> Option<u8> {
        self.json.as_bytes().get(self.at).copied()
    }

    fn skip_blanks(&mut self) {
        while let Some(b' ' | b'\t' | b'\n' | b'\r') = self.peek() {
            self.at += 1;
        }
    }

    /// Passes over one byte and the white space behind it.
    fn sign(&mut self) {
        self.at += 1;
        self.skip_blanks();
    }

    fn value(&mut self, depth: usize, out: &mut String) -> Result<(), Refusal> {
        if depth > DEPTH_MAX {
            let detail = format!("JSON is nested deeper than {DEPTH_MAX}");
            return Err(Refusal::malformed(detail));
        }
        match self.peek() {
            Some(b'{') => push_members(&self.read_members(depth + 1)?, out)?,
            Some(b'[') => self.read_items(depth + 1, out)?,
            Some(b'"') => {
                let string = self.read_string();
                // Escapes can spell one string in many ways; a string without them has one.
                if string.contains('\\') {
                    out.push_str(&spelled(&unescape_string(string)?)?);
                } else {
                    out.push_str(string);
                }
            }
            // Numbers stay as sent: reading them as floats would make different amounts equal.
            _ => out.push_str(self.read_word()),
        }
        self.skip_blanks();
        Ok(())
    }

    fn read_items(&mut self, depth: usize, out: &mut String) -> Result<(), Refusal> {
        self.sign();
        out.push('[');
        while let Some(byte) = self.peek().filter(|byte| *byte != b']') {
            if byte == b',' {
                out.push(',');
                self.sign();
                continue;
            }
            self.value(depth, out)?;
        }
        self.sign();
        out.push(']');
        Ok(())
    }

    /// Returns the members of an object with their values in canonical form.
    fn read_members(&mut self, depth: usize) -> Result<BTreeMap<String, String>, Refusal> {
        self.sign();
        let mut members = BTreeMap::new();
        while let Some(byte) = self.peek().filter(|byte| *byte != b'}') {
            if byte == b',' {
                self.sign();
                continue;
            }
            let name = unescape_string(self.read_string())?;
            self.skip_blanks();
            self.sign();
            let mut value = String::new();
            self.value(depth, &mut value)?;
            // Parsers disagree about which of two equal members counts.
            if members.insert(name, value).is_some() {
                let detail = "a JSON object has the same member twice";
                return Err(Refusal::malformed(detail));
            }
        }
        self.sign();
        Ok(members)
    }

    /// Returns the string that begins here, with its quotes.
    fn read_string(&mut self) -> &'a str {
        let start = self.at;
        self.at += 1;
        while let Some(byte) = self.peek() {
            // An escaped quote does not end the string.
            self.at += if byte == b'\\' { 2 } else { 1 };
            if byte == b'"' {
                break;
            }
        }
        self.json.get(start..self.at).unwrap_or_default()
    }

    /// Returns the number, `true`, `false` or `null` that begins here.
    fn read_word(&mut self) -> &'a str {
        let rest = self.json.get(self.at..).unwrap_or_default();
        let is_end = |c: char| matches!(c, ',' | ']' | '}' | ' ' | '\t' | '\n' | '\r');
        let length = rest.find(is_end).unwrap_or(rest.len());
        // At least one byte, so that even text that is not JSON comes to its end.
        self.at += length.max(1);
        rest.get(..length).unwrap_or_default()
    }
}

fn push_members(members: &BTreeMap<String, String>, out: &mut String) -> Result<(), Refusal> {
    out.push('{');
    for (index, (name, value)) in members.iter().enumerate() {
        if index > 0 {
            out.push(',');
        }
        out.push_str(&spelled(name)?);
        out.push(':');
        out.push_str(value);
    }
    out.push('}');
    Ok(())
}

fn unescape_string(string: &str) -> Result<String, Refusal> {
    serde_json::from_str(string).map_err(|error| json_refusal(&error))
}

fn spelled(text: &str) -> Result<String, Refusal> {
    serde_json::to_string(text).map_err(|error| json_refusal(&error))
}
