//! Conditional requests (RFC 9110, 13; rules H-1 to H-9).
//!
//! Pure: from request headers and validators to a verdict. The etag crate holds and compares tags.
//! That crate parses no lists: in `"a", "b"`, the crate sees one tag. So this file parses lists.
//! The headers crate parses lists, too, but a tag outside of ASCII makes the crate ignore the whole
//! list, and the crate accepts `*` beside tags (rule H-9).

use std::time::{Duration, SystemTime};

use etag::EntityTag;
use hyper::header::{
    HeaderMap, HeaderName, HeaderValue, IF_MATCH, IF_MODIFIED_SINCE, IF_NONE_MATCH,
    IF_UNMODIFIED_SINCE,
};

/// Validators of a representation (RFC 9110, 8.8).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Validators {
    /// Entity tag of the bytes in one coding.
    pub tag: EntityTag,
    /// Second of the last change, counted from 1970; `None` while no `Last-Modified` is sent.
    pub modified: Option<i64>,
}

/// Outcome of the conditions of a GET or HEAD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// 200: the representation is sent.
    Send,
    /// 304: the client has the representation.
    NotModified,
    /// 412: a precondition does not hold.
    Failed,
}

/// A list of entity tags as in `If-Match` and `If-None-Match`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TagList {
    /// `*`, which stands for any content (rule H-9).
    Any,
    /// Tags, without those that cannot be ours.
    Tags(Vec<EntityTag>),
    /// A field that is not a list of tags.
    Invalid,
}

impl TagList {
    /// Returns the list that all header lines of this name form together, or `None` if there is no
    /// such line. Tags that are too long for ours, or not ASCII, are left out, because they cannot
    /// be ours.
    pub fn of(headers: &HeaderMap, name: &HeaderName) -> Option<Self> {
        let mut lines = headers.get_all(name).iter().peekable();
        lines.peek()?;
        let mut tags = vec![];
        let mut any = false;
        for line in lines {
            let text = line.as_bytes().trim_ascii();
            if text == b"*" {
                any = true;
            } else if parse_tags(text, &mut tags).is_none() {
                return Some(Self::Invalid);
            }
        }
        // `*` stands alone (rule H-9).
        Some(match (any, tags.is_empty()) {
            (true, true) => Self::Any,
            (true, false) => Self::Invalid,
            (false, _) => Self::Tags(tags),
        })
    }
}

/// Adds the tags of one line: `[ entity-tag ] *( OWS "," OWS [ entity-tag ] )`.
fn parse_tags(line: &[u8], tags: &mut Vec<EntityTag>) -> Option<()> {
    let mut rest = line;
    loop {
        rest = rest.trim_ascii_start();
        // An element of a list may be empty (RFC 9110, 5.6.1.2).
        if let Some(after) = rest.strip_prefix(b",") {
            rest = after;
            continue;
        }
        if rest.is_empty() {
            return Some(());
        }
        let (weak, quoted) = match rest.strip_prefix(b"W/") {
            Some(quoted) => (true, quoted),
            None => (false, rest),
        };
        let opaque = quoted.strip_prefix(b"\"")?;
        let end = opaque.iter().position(|byte| *byte == b'"')?;
        let (opaque, after) = opaque.split_at_checked(end)?;
        // The characters of `etagc` (RFC 9110, 8.8.3).
        let legal = |byte: &u8| matches!(byte, 0x21 | 0x23..=0x7e | 0x80..);
        if !opaque.iter().all(legal) {
            return None;
        }
        rest = after.strip_prefix(b"\"")?.trim_ascii_start();
        if !rest.is_empty() && !rest.starts_with(b",") {
            return None;
        }
        let text = std::str::from_utf8(opaque).ok();
        // The etag crate refuses tags that are not ASCII, or longer than any of ours.
        if let Some(tag) = text.and_then(|text| EntityTag::checked_new(weak, text).ok()) {
            tags.push(tag);
        }
    }
}

/// Names of the fields with conditions.
const CONDITIONS: [HeaderName; 4] = [
    IF_NONE_MATCH,
    IF_MODIFIED_SINCE,
    IF_MATCH,
    IF_UNMODIFIED_SINCE,
];

/// Decides most reads as [`verdict`] does, but in one pass over the fields: reads without a
/// condition, and reads whose only condition is `If-None-Match` with exactly the tag of the answer.
/// Returns `None` for all other reads.
pub(crate) fn plain_verdict(headers: &HeaderMap, tag: &HeaderValue) -> Option<Verdict> {
    let mut conditions = headers.iter().filter(|(name, _)| CONDITIONS.contains(name));
    match (conditions.next(), conditions.next()) {
        (None, _) => Some(Verdict::Send),
        (Some((name, value)), None) if name == IF_NONE_MATCH && value == tag => {
            Some(Verdict::NotModified)
        }
        _ => None,
    }
}

/// Decides a GET or HEAD (rule H-7: first `If-Match`, else `If-Unmodified-Since`; then
/// `If-None-Match`, else `If-Modified-Since`).
///
/// `If-Modified-Since` matches only the exact date in `Last-Modified` (rule H-4).
pub fn verdict(headers: &HeaderMap, validators: &Validators) -> Verdict {
    let tag = &validators.tag;
    let holds = match TagList::of(headers, &IF_MATCH) {
        Some(TagList::Any) => true,
        // Tags are compared strongly here, and weakly in `If-None-Match` (RFC 9110, 13.1.1 and
        // 13.1.2).
        Some(TagList::Tags(tags)) => tags.iter().any(|given| given.strong_eq(tag)),
        Some(TagList::Invalid) => false,
        None => match (date_of(headers, &IF_UNMODIFIED_SINCE), validators.modified) {
            (Some(date), Some(modified)) => modified <= date,
            _ => true,
        },
    };
    if !holds {
        return Verdict::Failed;
    }
    let known = match TagList::of(headers, &IF_NONE_MATCH) {
        Some(TagList::Any) => true,
        Some(TagList::Tags(tags)) => tags.iter().any(|given| given.weak_eq(tag)),
        // The field is present, so `If-Modified-Since` does not count (rule H-8). An invalid list
        // matches nothing.
        Some(TagList::Invalid) => false,
        None => {
            let date = date_of(headers, &IF_MODIFIED_SINCE);
            // Only the exact date in `Last-Modified` matches: a date from the clock of a client
            // does not tell which content the client has.
            date.is_some() && date == validators.modified
        }
    };
    if known {
        Verdict::NotModified
    } else {
        Verdict::Send
    }
}

/// Returns the second that a date header names (rule H-5: all three forms), if the request has
/// exactly one such header and the date is valid.
fn date_of(headers: &HeaderMap, name: &HeaderName) -> Option<i64> {
    let mut lines = headers.get_all(name).iter();
    // Two dates may contradict each other, so neither counts.
    let only = lines.next().filter(|_| lines.next().is_none())?;
    let date = httpdate::parse_http_date(only.to_str().ok()?).ok()?;
    let since = date.duration_since(SystemTime::UNIX_EPOCH).ok()?;
    i64::try_from(since.as_secs()).ok()
}

/// Returns a second, counted from 1970, as an HTTP date; `None` outside the years 1970 to 9999,
/// which httpdate cannot write.
pub(crate) fn http_date(second: i64) -> Option<HeaderValue> {
    let second = u64::try_from(second)
        .ok()
        .filter(|second| *second <= 253_402_300_799)?;
    let date = SystemTime::UNIX_EPOCH + Duration::from_secs(second);
    HeaderValue::from_str(&httpdate::fmt_http_date(date)).ok()
}

#[cfg(test)]
mod tests;
