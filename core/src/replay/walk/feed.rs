//! Identity of a document's feed, and its closed mark.
//!
//! Pure.

use url::Url;

use crate::reader::Document;

/// Returns whether a document belongs to the feed with this id. Documents of ICT4H's feeds have an id each,
/// which differ by a number behind a plus sign at their end.
pub fn is_same_feed(known: &str, document: &Document) -> bool {
    let stem = |id: &str| {
        let bare = id.trim_end_matches(|c: char| c.is_ascii_digit());
        (bare.len() < id.len() && bare.ends_with('+')).then_some(bare.len())
    };
    let (ours, theirs) = (known, document.feed.as_str());
    let numbered = || {
        let (one, other) = (stem(ours)?, stem(theirs)?);
        Some(ours.get(..one)? == theirs.get(..other)?)
    };
    ours == theirs || document.history.is_none() && numbered().unwrap_or(false)
}

/// Returns a recent document's permanent URL. In a foreign feed `via` leads to where its information
/// comes from, which is something else (RFC 4287, 4.2.7.2).
pub(super) fn permanent_url(document: &Document, url: &Url) -> Url {
    let via = document.link("via").filter(|_| document.history.is_some());
    via.unwrap_or(url).clone()
}

/// Whether a document is marked as closed (`fh:archive`, or a newer one follows).
pub(in crate::replay) fn is_closed(document: &Document) -> bool {
    document.archived || document.link("next-archive").is_some()
}
