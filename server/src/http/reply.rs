//! The answer to a read: status, headers and whether there is a body.
//!
//! Pure: from a request's headers and a resource to an answer whose body is yet to be fetched.

use etag::EntityTag;
use hyper::{
    StatusCode,
    header::{
        CACHE_CONTROL, CONTENT_ENCODING, CONTENT_TYPE, ETAG, HeaderMap, HeaderName, HeaderValue,
        LAST_MODIFIED, VARY,
    },
};
use simplefeed_core::{digest::Digest, instant::Instant};

use super::{
    coding::negotiate,
    conditional::{Validators, Verdict, http_date, verdict},
    problem::Problem,
};
use crate::views::documents::{Coding, Resource};

/// What may be kept for ever.
const FROZEN: HeaderValue = HeaderValue::from_static("public, max-age=31536000, immutable");
/// What must not be kept at all.
pub const NO_STORE: HeaderValue = HeaderValue::from_static("no-store");

/// The lifetime of what grows.
#[derive(Clone, Debug)]
pub struct Growing(HeaderValue);

impl Growing {
    /// Returns the policy for a recent document that may be `seconds` old.
    pub fn new(seconds: u32) -> Self {
        let policy = format!(
            "public, max-age={seconds}, stale-while-revalidate={seconds}, stale-if-error=86400"
        );
        Self(HeaderValue::from_str(&policy).expect("a policy is plain text"))
    }
}

/// An answer to a GET or HEAD.
#[derive(Debug)]
pub struct Reply {
    /// 200 or 304.
    pub status: StatusCode,
    /// Its headers, but for those that need the bytes.
    pub headers: HeaderMap,
    /// The coding of the body, if there is one to send.
    pub coding: Option<Coding>,
}

/// Decides the answer. `now` is the time on our clock.
///
/// # Errors
///
/// Returns the problem to answer with instead: no acceptable coding, or a failed precondition.
pub fn reply(
    request: &HeaderMap,
    resource: &Resource,
    growing: &Growing,
    now: Instant,
) -> Result<Reply, Problem> {
    let coding = negotiate(request).ok_or_else(Problem::not_acceptable)?;
    let tag = EntityTag::strong(&resource.tag(coding));
    let modified = told_modification(resource.modified, resource.frozen, now);
    let validators = Validators { tag, modified };

    let mut headers = HeaderMap::with_capacity(10);
    let policy = if resource.frozen {
        FROZEN
    } else {
        growing.0.clone()
    };
    headers.insert(CACHE_CONTROL, policy);
    headers.insert(VARY, HeaderValue::from_static("accept-encoding"));
    let tag = HeaderValue::from_str(&validators.tag.to_string());
    headers.insert(ETAG, tag.expect("a tag is plain text"));
    if let Some(date) = modified.and_then(http_date) {
        headers.insert(LAST_MODIFIED, date);
    }
    match verdict(request, &validators) {
        Verdict::Failed => Err(Problem::precondition(
            "the document is not what the request expects",
        )),
        Verdict::NotModified => Ok(Reply {
            status: StatusCode::NOT_MODIFIED,
            headers,
            coding: None,
        }),
        Verdict::Send => {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static(resource.media_type));
            headers.insert(
                HeaderName::from_static("x-content-type-options"),
                HeaderValue::from_static("nosniff"),
            );
            if coding == Coding::Gzip {
                headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
            }
            Ok(Reply {
                status: StatusCode::OK,
                headers,
                coding: Some(coding),
            })
        }
    }
}

/// Returns the second to tell as `Last-Modified` (rule H-4).
///
/// What grows may change again in the same second, so that second must be over. What is final may
/// not claim to be from the future, which our clock can be behind.
fn told_modification(modified: Option<Instant>, frozen: bool, now: Instant) -> Option<i64> {
    let second = modified?.second();
    let over = if frozen {
        second <= now.second()
    } else {
        second < now.second()
    };
    over.then_some(second)
}

/// Returns the `Repr-Digest` of coded bytes (RFC 9530).
pub fn repr_digest(digest: &Digest) -> HeaderValue {
    let text = format!("sha-256=:{}:", data_encoding::BASE64.encode(&digest.0));
    HeaderValue::from_str(&text).expect("Base64 is plain text")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(frozen: bool, now: i64) -> Option<i64> {
        let modified = Some(Instant::from_micros(5_300_000));
        told_modification(modified, frozen, Instant::from_micros(now))
    }

    #[test]
    fn h_4_what_grows_tells_its_date_once_the_second_is_over() {
        assert_eq!(told(false, 5_300_000), None);
        assert_eq!(told(false, 5_999_999), None);
        assert_eq!(told(false, 6_000_000), Some(5));
    }

    #[test]
    fn h_4_no_date_is_later_than_now() {
        assert_eq!(told(true, 4_999_999), None);
        assert_eq!(told(true, 5_000_000), Some(5));
        assert_eq!(told(false, 4_999_999), None);
        assert_eq!(told_modification(None, true, Instant::MAX), None);
    }
}
