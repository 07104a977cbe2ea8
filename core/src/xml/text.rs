//! Characters, references and escapes.
//!
//! Pure.

use std::borrow::Cow;

use super::names::{is_name_char, is_name_start};

/// Returns whether XML 1.0 admits the character (XML 1.0, 2.2).
pub fn is_char(c: char) -> bool {
    match c {
        '\t' | '\n' | '\r' => true,
        // Rust's `char` already excludes surrogates; these two are the only others that XML
        // excludes above space.
        '\u{fffe}' | '\u{ffff}' => false,
        _ => c >= ' ',
    }
}

/// Returns the first character that XML 1.0 does not admit, and the offset in bytes.
pub(crate) fn find_forbidden(text: &str) -> Option<(usize, char)> {
    // Control characters, and the first byte of all characters from U+F000 to U+FFFF in UTF-8.
    let may_be = |byte: u8| matches!(byte, 0..=8 | 11 | 12 | 14..=31 | 0xef);
    if !has_any(text, may_be) {
        return None;
    }
    text.char_indices().find(|(_, c)| !is_char(*c))
}

/// Returns whether `is_such` holds for any byte of a text.
pub(crate) fn has_any(text: &str, is_such: impl Fn(u8) -> bool) -> bool {
    text.bytes()
        // All bytes are looked at, several at a time, which is quicker than to stop at the first
        // one.
        .fold(false, |found, byte| found | is_such(byte))
}

/// Returns whether `text` is white space only, as XML defines white space.
pub(super) fn is_blank(text: &str) -> bool {
    text.bytes()
        .all(|byte| matches!(byte, b' ' | b'\t' | b'\r' | b'\n'))
}

/// Returns whether `text` is a name without a colon (Namespaces in XML, 3).
pub(super) fn is_nc_name(text: &str) -> bool {
    let mut chars = text.chars();
    chars.next().is_some_and(is_name_start) && chars.all(is_name_char)
}

/// Returns the character of the reference `&name;`: one of the five predefined entities, or a
/// character reference to a character that XML admits.
///
/// # Examples
///
/// ```
/// use simplefeed_core::xml::resolve_reference;
///
/// assert_eq!(resolve_reference("amp"), Some('&'));
/// assert_eq!(resolve_reference("#x41"), Some('A'));
/// assert_eq!(resolve_reference("#0"), None);
/// assert_eq!(resolve_reference("nbsp"), None);
/// ```
pub fn resolve_reference(name: &str) -> Option<char> {
    let code = match name {
        "amp" => return Some('&'),
        "lt" => return Some('<'),
        "gt" => return Some('>'),
        "quot" => return Some('"'),
        "apos" => return Some('\''),
        _ => name.strip_prefix('#')?,
    };
    // `from_str_radix` accepts a sign, XML does not.
    let (digits, radix) = match code.strip_prefix('x') {
        Some(hex) => (hex, 16),
        None => (code, 10),
    };
    if !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    let number = u32::from_str_radix(digits, radix).ok()?;
    char::from_u32(number).filter(|c| is_char(*c))
}

/// Returns character data with line ends as XML parsers report them (XML 1.0, 2.11).
pub(super) fn normalize_lines(text: &str) -> Cow<'_, str> {
    // XML 1.0, 2.11: `\r\n` is one line end, so the pair is replaced first.
    if text.contains('\r') {
        Cow::Owned(text.replace("\r\n", "\n").replace('\r', "\n"))
    } else {
        Cow::Borrowed(text)
    }
}

/// Returns the value of an attribute written as `raw` (XML 1.0, 3.3.3).
///
/// # Errors
///
/// Returns the first reference that is not accepted, without `&` and `;`.
pub fn attribute_value(raw: &str) -> Result<Cow<'_, str>, String> {
    if !raw.contains(['&', '\t', '\n', '\r']) {
        return Ok(Cow::Borrowed(raw));
    }
    let normalized = normalize_lines(raw);
    let mut value = String::with_capacity(raw.len());
    let mut rest: &str = &normalized;
    while let Some(at) = rest.find(['&', '\t', '\n']) {
        let (plain, special) = rest.split_at(at);
        value.push_str(plain);
        let Some(reference) = special.strip_prefix('&') else {
            // XML 1.0, 3.3.3: white space in an attribute counts as a space, unless a reference
            // stands for the character.
            value.push(' ');
            rest = special.get(1..).unwrap_or_default();
            continue;
        };
        let (name, after) = reference.split_once(';').ok_or(reference)?;
        value.push(resolve_reference(name).ok_or(name)?);
        rest = after;
    }
    value.push_str(rest);
    Ok(Cow::Owned(value))
}

/// Appends `text` as character data, escaping only the characters that need an escape.
///
/// A carriage return is written as a reference, because parsers turn a literal one into a line
/// feed.
pub fn escape_text(text: &str, out: &mut String) {
    escape_into(text, out, |byte| matches!(byte, b'&' | b'<' | b'>' | b'\r'));
}

/// Appends `text` as the value of an attribute in double quotes.
pub fn escape_attribute(text: &str, out: &mut String) {
    escape_into(text, out, |byte| {
        matches!(byte, b'&' | b'<' | b'"' | b'\r' | b'\n' | b'\t')
    });
}

/// Returns the length of `text` as the value of an attribute in double quotes, in bytes.
pub fn escaped_len(text: &str) -> usize {
    // These lengths must match the escapes of `escape_attribute`.
    let bytes = text.bytes().map(|byte| match byte {
        b'&' | b'\r' | b'\n' => 5,
        b'<' | b'\t' => 4,
        b'"' => 6,
        _ => 1,
    });
    bytes.sum()
}

fn escape_into(text: &str, out: &mut String, is_special: impl Fn(u8) -> bool) {
    let mut rest = text;
    // All special characters are of one byte, which is part of no other character.
    while let Some(at) = rest.bytes().position(&is_special) {
        let (plain, tail) = rest.split_at(at);
        out.push_str(plain);
        let mut chars = tail.chars();
        match chars.next() {
            Some('&') => out.push_str("&amp;"),
            Some('<') => out.push_str("&lt;"),
            Some('>') => out.push_str("&gt;"),
            Some('"') => out.push_str("&quot;"),
            Some('\r') => out.push_str("&#13;"),
            Some('\n') => out.push_str("&#10;"),
            _ => out.push_str("&#9;"),
        }
        rest = chars.as_str();
    }
    out.push_str(rest);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_resolved_strictly() {
        for bad in [
            "", "#", "#x", "#+1", "#-1", "#xFFFE", "#1114112", "#x 41", "AMP", "#8",
        ] {
            assert_eq!(resolve_reference(bad), None, "{bad}");
        }
        assert_eq!(resolve_reference("#9"), Some('\t'));
    }

    #[test]
    fn attribute_values_are_normalized() {
        assert_eq!(attribute_value("a\r\nb\tc&#10;&amp;").unwrap(), "a b c\n&");
        assert_eq!(attribute_value("a&b;c"), Err("b".into()));
        assert_eq!(attribute_value("a&amp"), Err("amp".into()));
    }

    proptest::proptest! {
        #[test]
        fn escaped_text_reads_back(text in "[a<>&\"'\r\n\t \u{e9}]{0,20}") {
            let mut document = String::from("<a b=\"");
            escape_attribute(&text, &mut document);
            document.push_str("\">");
            escape_text(&text, &mut document);
            document.push_str("</a>");
            let parsed = roxmltree::Document::parse(&document).unwrap();
            let root = parsed.root_element();
            proptest::prop_assert_eq!(root.attribute("b"), Some(text.as_str()));
            proptest::prop_assert_eq!(root.text().unwrap_or_default(), text.as_str());
        }
    }
}
