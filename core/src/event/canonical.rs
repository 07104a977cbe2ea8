//! Canonical form of a JSON event, equal for repeats of the same event.
//!
//! Pure. The text has already passed a JSON parser, so this module only follows the structure. One
//! pass over the text is enough at any depth of nesting.

use std::{borrow::Cow, ops::Range};

use super::json_refusal;
use crate::{limits::DEPTH_MAX, refusal::Refusal};

/// Members that describe the place of an event in a feed.
const PLACE: [&str; 3] = ["document", "position", "feed"];

/// Returns the form of an event that the digest covers: members sorted, white space removed,
/// strings in one spelling, numbers as sent, and without the members of the event's place.
///
/// # Errors
///
/// `Malformed` if an object has a member twice (parsers disagree about which one counts), or if the
/// nesting is too deep.
pub(super) fn canonical_event(json: &str) -> Result<String, Refusal> {
    let mut reading = CanonicalReader { json, at: 0 };
    reading.skip_blanks();
    let mut out = String::with_capacity(json.len());
    // `replay` adds the place, so `append` must find the same digest without the place.
    reading.read_members(1, &PLACE, &mut out)?;
    Ok(out)
}

/// Returns the canonical form of any JSON value, with all members. The text must have passed a
/// parser.
///
/// # Errors
///
/// If an object has a member twice, or the value is nested too deeply.
pub fn canonical_json(json: &str) -> Result<String, Refusal> {
    let mut reading = CanonicalReader { json, at: 0 };
    reading.skip_blanks();
    let mut out = String::with_capacity(json.len());
    reading.read_value(0, &mut out)?;
    Ok(out)
}

struct CanonicalReader<'a> {
    json: &'a str,
    at: usize,
}

impl<'a> CanonicalReader<'a> {
    fn peek_byte(&self) -> Option<u8> {
        self.json.as_bytes().get(self.at).copied()
    }

    fn skip_blanks(&mut self) {
        while let Some(b' ' | b'\t' | b'\n' | b'\r') = self.peek_byte() {
            self.at += 1;
        }
    }

    /// Passes over one byte and the white space that follows.
    fn skip_sign(&mut self) {
        self.at += 1;
        self.skip_blanks();
    }

    fn read_value(&mut self, depth: usize, out: &mut String) -> Result<(), Refusal> {
        if depth > DEPTH_MAX {
            let detail = format!("JSON is nested deeper than {DEPTH_MAX}");
            return Err(Refusal::malformed(detail));
        }
        match self.peek_byte() {
            Some(b'{') => self.read_members(depth + 1, &[], out)?,
            Some(b'[') => self.read_items(depth + 1, out)?,
            Some(b'"') => {
                let string = self.read_string();
                push_spelled(string, out)?;
            }
            // Numbers stay as sent: reading them as floats would make different amounts equal.
            _ => out.push_str(self.read_word()),
        }
        self.skip_blanks();
        Ok(())
    }

    fn read_items(&mut self, depth: usize, out: &mut String) -> Result<(), Refusal> {
        self.skip_sign();
        out.push('[');
        while let Some(byte) = self.peek_byte().filter(|byte| *byte != b']') {
            if byte == b',' {
                out.push(',');
                self.skip_sign();
                continue;
            }
            self.read_value(depth, out)?;
        }
        self.skip_sign();
        out.push(']');
        Ok(())
    }

    /// Appends the object that begins here, without the members named in `without`. The members are
    /// sorted by name, because parsers do not keep their order.
    fn read_members(
        &mut self,
        depth: usize,
        without: &[&str],
        out: &mut String,
    ) -> Result<(), Refusal> {
        self.skip_sign();
        let begin = out.len();
        // Name of each member, and the range of the member's bytes in `out`, counted from `begin`.
        let mut members: Vec<(Cow<'a, str>, Range<usize>)> = vec![];
        while let Some(byte) = self.peek_byte().filter(|byte| *byte != b'}') {
            if byte == b',' {
                self.skip_sign();
                continue;
            }
            out.push(if members.is_empty() { '{' } else { ',' });
            let from = out.len() - begin;
            let name = self.read_string();
            push_spelled(name, out)?;
            out.push(':');
            self.skip_blanks();
            self.skip_sign();
            self.read_value(depth, out)?;
            members.push((unescape_string(name)?, from..out.len() - begin));
        }
        self.skip_sign();
        let is_kept = |name: &str| !without.contains(&name);
        let are_in_order =
            |members: &[(Cow<'a, str>, _)]| members.is_sorted_by(|(one, _), (next, _)| one < next);
        let are_all_kept = members.iter().all(|(name, _)| is_kept(name));
        if !are_in_order(&members) || members.is_empty() || !are_all_kept {
            members.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
            // Parsers disagree about which of two members with the same name counts.
            if !are_in_order(&members) {
                let detail = "a JSON object has the same member twice";
                return Err(Refusal::malformed(detail));
            }
            let as_read = out.split_off(begin);
            out.push('{');
            for (name, place) in members {
                if is_kept(&name) {
                    if out.len() > begin + 1 {
                        out.push(',');
                    }
                    out.push_str(as_read.get(place).unwrap_or_default());
                }
            }
        }
        out.push('}');
        Ok(())
    }

    /// Returns the string that begins here, quotes included.
    fn read_string(&mut self) -> &'a str {
        let start = self.at;
        self.at += 1;
        while let Some(byte) = self.peek_byte() {
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
        // Each call moves on by at least one byte, so that reading ends even in text that is not
        // JSON.
        self.at += length.max(1);
        rest.get(..length).unwrap_or_default()
    }
}

/// Appends a string in the one canonical spelling. Escapes allow many spellings of a string; a
/// string without escapes has one.
fn push_spelled(string: &str, out: &mut String) -> Result<(), Refusal> {
    if string.contains('\\') {
        let spelled = serde_json::to_string(&*unescape_string(string)?);
        out.push_str(&spelled.map_err(|error| json_refusal(&error))?);
    } else {
        out.push_str(string);
    }
    Ok(())
}

/// Returns the text of a string that is given with quotes.
fn unescape_string(string: &str) -> Result<Cow<'_, str>, Refusal> {
    if string.contains('\\') {
        let text: Result<String, _> = serde_json::from_str(string);
        return text.map(Cow::Owned).map_err(|error| json_refusal(&error));
    }
    let inner = string
        .strip_prefix('"')
        .and_then(|rest| rest.strip_suffix('"'));
    Ok(Cow::Borrowed(inner.unwrap_or_default()))
}
