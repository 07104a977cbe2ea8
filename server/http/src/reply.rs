//! Headers of the answer to a read, and the decision between 200, 304 and 412.
//!
//! Pure: from a resource to an answer without a body.

use etag::EntityTag;
use hyper::header::{
    ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_EXPOSE_HEADERS, CACHE_CONTROL, CONTENT_ENCODING,
    CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, HeaderMap, HeaderName, HeaderValue, LAST_MODIFIED,
    VARY, X_CONTENT_TYPE_OPTIONS,
};
use simplefeed_core::{digest::Digest, timestamp::Timestamp};
use simplefeed_resource::{Coding, Resource, Visibility};

use super::conditional::{Validators, Verdict, http_date, plain_verdict, verdict};

/// Policy for a frozen resource that everybody may see.
const FROZEN: HeaderValue = HeaderValue::from_static("public, max-age=31536000, immutable");
/// Policy for a frozen resource of a closed feed.
const FROZEN_CLOSED: HeaderValue = HeaderValue::from_static("private, max-age=31536000, immutable");
/// Header fields of public answers (CORS): scripts of any site may read such answers, with `ETag`
/// and `Link`. No field allows credentials, so that no site reads by the rights of a visitor. No
/// option of the server changes these fields, because copies in caches live for a year.
pub(crate) const FOR_EVERY_SITE: [(HeaderName, HeaderValue); 2] = [
    (ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("*")),
    (
        ACCESS_CONTROL_EXPOSE_HEADERS,
        HeaderValue::from_static("etag, link"),
    ),
];
/// Content security policy for documents that are no pages: a browser may show such a document, and
/// runs no script in the document.
const SANDBOX: HeaderValue = HeaderValue::from_static("sandbox");
/// Value that keeps browsers from guessing another media type.
pub(crate) const NOSNIFF: HeaderValue = HeaderValue::from_static("nosniff");
/// Policy for an answer that no cache may keep.
pub const NO_STORE: HeaderValue = HeaderValue::from_static("no-store");

/// Returns the header fields for scripts of other sites: none, if only holders of a token may read.
pub fn for_sites(visibility: Visibility) -> Vec<(HeaderName, HeaderValue)> {
    match visibility {
        Visibility::Public => FOR_EVERY_SITE.to_vec(),
        Visibility::Private => Vec::new(),
    }
}

/// Cache policies of growing resources, for each visibility.
#[derive(Clone, Debug)]
pub struct Lifetimes {
    growing: HeaderValue,
    growing_closed: HeaderValue,
}

impl Lifetimes {
    /// Returns the lifetimes of a server whose recent documents may be `seconds` old.
    pub fn new(seconds: u32) -> Self {
        let growing = |caches: &str| {
            let policy = format!(
                "{caches}, max-age={seconds}, stale-while-revalidate={seconds}, stale-if-error=86400"
            );
            HeaderValue::from_str(&policy).expect("a policy is plain text")
        };
        Self {
            growing: growing("public"),
            growing_closed: growing("private"),
        }
    }

    /// Returns the policy for a resource that is made anew from time to time, and that readers poll
    /// every `period` seconds (rule SUP-P2).
    pub fn polled(period: u32, visibility: Visibility) -> HeaderValue {
        let caches = match visibility {
            Visibility::Public => "public",
            Visibility::Private => "private",
        };
        // A tenth of the period, so a copy from a cache is nearly new.
        let policy = format!("{caches}, max-age={}", period / 10);
        HeaderValue::from_str(&policy).expect("a policy is plain text")
    }

    /// Returns the policy for a resource and its readers.
    pub fn of(&self, resource: &Resource, visibility: Visibility) -> HeaderValue {
        match (resource.is_final(), visibility) {
            (true, Visibility::Public) => FROZEN,
            (true, Visibility::Private) => FROZEN_CLOSED,
            (false, Visibility::Public) => self.growing.clone(),
            (false, Visibility::Private) => self.growing_closed.clone(),
        }
    }
}

/// Answer about a resource in one coding, without the bytes. The answer is the same for all readers
/// that may see the resource.
#[derive(Clone, Debug)]
pub struct Reply {
    validators: Validators,
    /// Entity tag as a header field has it.
    tag: HeaderValue,
    /// Headers of a 304, which has no body.
    pub not_modified: HeaderMap,
    /// Headers of a 200, without those that need the bytes.
    pub sent: HeaderMap,
}

impl Reply {
    /// Prepares an answer with `policy` as `Cache-Control`. `now` is the time on our clock. `over`
    /// is the last finished second: no later commit gets an instant in that second or before.
    pub fn new(
        resource: &Resource,
        coding: Coding,
        policy: HeaderValue,
        more: Vec<(HeaderName, HeaderValue)>,
        now: Timestamp,
        over: i64,
    ) -> Self {
        let tag = EntityTag::strong(&resource.tag(coding));
        let modified = told_modification(resource.modified, resource.is_final(), now, over);

        let mut headers = HeaderMap::with_capacity(12);
        headers.insert(CACHE_CONTROL, policy);
        headers.insert(VARY, HeaderValue::from_static("accept-encoding"));
        // Formatted once, because most reads compare a tag as bytes (`plain_verdict`).
        let told = HeaderValue::from_str(&tag.to_string());
        let told = told.expect("a tag is plain text");
        headers.insert(ETAG, told.clone());
        if let Some(date) = modified.and_then(http_date) {
            headers.insert(LAST_MODIFIED, date);
        }
        headers.extend(more);
        // A 304 has the headers so far, and none about the content, which is not sent (RFC 9110,
        // 15.4.5).
        let not_modified = headers.clone();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(resource.media_type));
        // Entries may hold HTML, and no browser may take a document for a page.
        headers.insert(X_CONTENT_TYPE_OPTIONS, NOSNIFF);
        // Chromium runs scripts in XML. Pages bring a policy of their own in `more`.
        if !headers.contains_key(CONTENT_SECURITY_POLICY) {
            headers.insert(CONTENT_SECURITY_POLICY, SANDBOX);
        }
        if coding == Coding::Gzip {
            headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        }
        Self {
            validators: Validators { tag, modified },
            tag: told,
            not_modified,
            sent: headers,
        }
    }

    /// Tells caches that another reader may get other bytes from the same URL.
    pub(crate) fn vary_by_reader(&mut self) {
        for headers in [&mut self.not_modified, &mut self.sent] {
            let depends = HeaderValue::from_static("accept-encoding, authorization");
            headers.insert(VARY, depends);
        }
    }

    /// Decides a request by its conditions.
    pub fn verdict(&self, request: &HeaderMap) -> Verdict {
        plain_verdict(request, &self.tag).unwrap_or_else(|| verdict(request, &self.validators))
    }

    /// Returns whether a later answer has the same headers, as long as the resource is unchanged.
    pub(crate) fn is_stable(&self) -> bool {
        // `Last-Modified` is added once that second is finished. No other header changes.
        self.validators.modified.is_some()
    }
}

/// Returns the second for `Last-Modified` (rule H-4).
///
/// A growing resource can change again in the same second, so the writer must have finished that
/// second. A date later than `now` (the clock was set back) is left out.
fn told_modification(
    modified: Option<Timestamp>,
    frozen: bool,
    now: Timestamp,
    over: i64,
) -> Option<i64> {
    let second = modified?.second();
    // Frozen bytes cannot change again, even if the second in which they became final is not over.
    let is_final = frozen || second <= over;
    // The clock alone does not decide: a commit stamped in that second may still be unwritten.
    (is_final && second <= now.second()).then_some(second)
}

/// Returns the `Repr-Digest` of coded bytes (RFC 9530).
pub(crate) fn repr_digest(digest: &Digest) -> HeaderValue {
    let text = format!("sha-256=:{}:", data_encoding::BASE64.encode(&digest.0));
    HeaderValue::from_str(&text).expect("Base64 is plain text")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(frozen: bool, now: i64, over: i64) -> Option<i64> {
        let modified = Some(Timestamp::from_micros(5_300_000));
        told_modification(modified, frozen, Timestamp::from_micros(now), over)
    }

    #[test]
    fn h_4_what_grows_tells_its_date_once_the_writer_has_left_its_second() {
        assert_eq!(told(false, 5_999_999, 4), None);
        // The second is over on the clock, but a commit of that second is on its way.
        assert_eq!(told(false, 6_000_000, 4), None);
        assert_eq!(told(false, 6_000_000, 5), Some(5));
    }

    #[test]
    fn h_4_no_date_is_later_than_now() {
        assert_eq!(told(true, 4_999_999, 5), None);
        assert_eq!(told(true, 5_000_000, 4), Some(5));
        assert_eq!(told(false, 4_999_999, 5), None);
        assert_eq!(told_modification(None, true, Timestamp::MAX, 5), None);
    }
}
