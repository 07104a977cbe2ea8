//! A document is a concatenation: a header, the fragments (newest first) and a footer.
//!
//! Pure. The form never changes (see [`header`](crate::header)).

use bytes::Bytes;

/// End of a feed document, the same for all.
const FOOTER: &str = "</feed>\n";

/// Returns the bytes of a feed document: `header`, then the fragments, each with a line feed, then
/// the footer. `fragments` has the oldest fragment first, and the document has the newest first
/// (rule SF-1).
///
/// # Examples
///
/// ```
/// use simplefeed_core::document::feed_document;
///
/// let document = feed_document("<feed>\n", &["<entry>1</entry>", "<entry>2</entry>"]);
/// assert_eq!(document, "<feed>\n<entry>2</entry>\n<entry>1</entry>\n</feed>\n");
/// ```
pub fn feed_document<F: AsRef<[u8]>>(header: &str, fragments: &[F]) -> Bytes {
    // A line feed follows each fragment, hence `+ 1`.
    let entries: usize = fragments
        .iter()
        .map(|fragment| fragment.as_ref().len() + 1)
        .sum();
    let mut out = Vec::with_capacity(header.len() + entries + FOOTER.len());
    out.extend_from_slice(header.as_bytes());
    // The log holds the oldest entry first, a document shows the newest first (rule SF-1).
    for fragment in fragments.iter().rev() {
        out.extend_from_slice(fragment.as_ref());
        out.push(b'\n');
    }
    out.extend_from_slice(FOOTER.as_bytes());
    out.into()
}

/// Returns the bytes of an Atom Entry Document.
pub fn entry_document(fragment: &[u8]) -> Bytes {
    [
        b"<?xml version=\"1.0\" encoding=\"utf-8\"?>\n",
        fragment,
        b"\n",
    ]
    .concat()
    .into()
}
