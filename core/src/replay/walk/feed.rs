//! Identity of a document's feed, and the closed mark of a document.
//!
//! Pure.

use url::Url;

use crate::reader::Document;

/// Returns whether a document belongs to the feed with this id. Each document of an ICT4H feed has
/// a feed id of its own, which ends in a plus sign and a number.
pub fn is_same_feed(known: &str, document: &Document) -> bool {
    let stem = |id: &str| {
        let bare = id.trim_end_matches(|c: char| c.is_ascii_digit());
        // Digits without a plus sign before them belong to the id: `feeds/1` and `feeds/2` are two
        // feeds.
        (bare.len() < id.len() && bare.ends_with('+')).then_some(bare.len())
    };
    let (ours, theirs) = (known, document.feed.as_str());
    let numbered = || {
        let (one, other) = (stem(ours)?, stem(theirs)?);
        Some(ours.get(..one)? == theirs.get(..other)?)
    };
    // A document with positions carries the permanent id of the feed, so only the ids of plain
    // documents may differ in the number.
    ours == theirs || document.history.is_none() && numbered().unwrap_or(false)
}

/// Returns a recent document's permanent URL: the link `via`, or `url` if there is no such link. In
/// a foreign feed, `via` names the source of the feed's information instead (RFC 4287, 4.2.7.2), so
/// `url` counts there.
pub(super) fn permanent_url(document: &Document, url: &Url) -> Url {
    let via = document.link("via").filter(|_| document.history.is_some());
    via.unwrap_or(url).clone()
}

/// Whether a document is marked as closed: by `fh:archive`, or by a link to a newer document.
pub(in crate::replay) fn is_closed(document: &Document) -> bool {
    document.archived || document.has_link("next-archive")
}
