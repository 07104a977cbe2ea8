//! Conversion of foreign feeds from other encodings to UTF-8.
//!
//! Pure.

use bytes::Bytes;
use encoding_rs::{Encoding, UTF_8};

/// Maximum length of an XML declaration, in bytes from the document's beginning.
const DECLARATION_BYTES_MAX: usize = 256;

/// Byte order mark of UTF-8, which overrides the XML declaration.
const UTF_8_MARK: &[u8] = b"\xef\xbb\xbf";

/// Returns a document in UTF-8, given the charset of the media type. The byte order mark overrides
/// the media type, and the media type overrides the XML declaration (RFC 7303, 3).
///
/// A converted document begins with UTF-8's mark. A document in UTF-8 stays unchanged, but gets the
/// mark if the XML declaration names another encoding. A document with an unknown encoding counts
/// as UTF-8; the reader then refuses any bytes that are not UTF-8.
///
/// # Examples
///
/// ```
/// use simplefeed_core::reader::to_utf8;
///
/// let latin = b"<?xml version='1.0' encoding='iso-8859-1'?><a>caf\xe9</a>";
/// let text = to_utf8(latin.to_vec().into(), None);
/// assert!(text.ends_with("<a>caf\u{e9}</a>".as_bytes()));
/// ```
pub fn to_utf8(body: Bytes, charset: Option<&str>) -> Bytes {
    let marked = Encoding::for_bom(&body).map(|(encoding, _)| encoding);
    let told = || charset.and_then(|label| Encoding::for_label(label.as_bytes()));
    let declared = || declared_encoding(&body).and_then(Encoding::for_label);
    let encoding = marked.or_else(told).or_else(declared).unwrap_or(UTF_8);
    if encoding == UTF_8 {
        // Without the mark, a later call without the charset would trust the declaration.
        let doubted = marked.is_none() && declared().is_some_and(|declared| declared != UTF_8);
        return if doubted {
            [UTF_8_MARK, &body[..]].concat().into()
        } else {
            body
        };
    }
    let (text, _) = encoding.decode_with_bom_removal(&body);
    // The text still declares the old encoding; the mark overrides the declaration.
    [UTF_8_MARK, text.as_bytes()].concat().into()
}

/// Returns the encoding in the XML declaration, if there is one.
fn declared_encoding(body: &[u8]) -> Option<&[u8]> {
    // UTF-16 without a mark does not match, and counts as UTF-8.
    let start = body.get(..DECLARATION_BYTES_MAX.min(body.len()))?;
    let start = start.strip_prefix(b"<?xml")?;
    let end = start.windows(2).position(|pair| pair == b"?>")?;
    let declaration = start.get(..end)?;
    let name = b"encoding";
    let at = declaration
        .windows(name.len())
        .position(|word| word == name)?;
    let value = declaration.get(at + name.len()..)?.trim_ascii_start();
    let value = value.strip_prefix(b"=")?.trim_ascii_start();
    let (quote, value) = value.split_first()?;
    let end = value.iter().position(|byte| byte == quote)?;
    value.get(..end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(body: &[u8], charset: Option<&str>, want: &str) {
        let text = to_utf8(body.to_vec().into(), charset);
        let text = text.strip_prefix(UTF_8_MARK).unwrap_or(&text);
        assert_eq!(String::from_utf8_lossy(text), want);
    }

    #[test]
    fn the_mark_goes_before_the_media_type_and_that_before_the_declaration() {
        check("é".as_bytes(), None, "é");
        check(b"\xe9", Some("ISO-8859-1"), "é");
        check("\u{feff}é".as_bytes(), Some("iso-8859-1"), "é");
        let declared = "<?xml version='1.0'\n encoding = \"latin1\"?>";
        let body = [declared.as_bytes(), b"\xe9"].concat();
        check(&body, None, &format!("{declared}é"));
        let body = format!("{declared}é");
        check(body.as_bytes(), Some("utf-8"), &body);
        check(b"\xff\xfe<\0a\0", None, "<a");
        // These encodings are unknown: the bytes stay, and the reader refuses those that are not
        // UTF-8.
        check(b"\xe9", Some("klingon"), "\u{fffd}");
        check(b"\xe9", None, "\u{fffd}");
        check(b"<?xml encoding='latin1", None, "<?xml encoding='latin1");
    }

    /// A converted document still declares the old encoding, and is not converted again.
    #[test]
    fn what_was_converted_stays() {
        let body = b"<?xml version='1.0' encoding='latin1'?>\xe9".to_vec();
        let once = to_utf8(body.into(), None);
        assert_eq!(to_utf8(once.clone(), None), once);
        // A document that is UTF-8 by the media type is not converted either, whatever encoding the
        // document declares.
        let body = "<?xml version='1.0' encoding='latin1'?>é"
            .as_bytes()
            .to_vec();
        let once = to_utf8(body.into(), Some("utf-8"));
        assert!(once.ends_with("é".as_bytes()));
        assert_eq!(to_utf8(once.clone(), None), once);
    }
}
