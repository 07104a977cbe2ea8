//! Complete answers, put together from their parts.
//!
//! Pure.

use std::io;

use bytes::Bytes;
use http_body_util::{Either, Full, combinators::UnsyncBoxBody};
use hyper::{
    Response, StatusCode,
    header::{
        ACCEPT, ACCEPT_ENCODING, ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS,
        ACCESS_CONTROL_MAX_AGE, ALLOW, CACHE_CONTROL, CONTENT_TYPE, ETAG, HeaderValue, RETRY_AFTER,
        VARY, WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS,
    },
};
use simplefeed_resource::head_tag::HeadTag;

use super::{
    conditional::Verdict,
    problem::{Accepts, ENTRY_TYPES, PROBLEM_TYPE, Problem},
    reply::{FOR_EVERY_SITE, NO_STORE, NOSNIFF, Reply},
};
use crate::access::Denial;

/// Body of an answer: bytes in memory, or a stream of them.
pub type Body = Either<Full<Bytes>, UnsyncBoxBody<Bytes, io::Error>>;

/// HTTP response whose body is in memory or a stream.
pub type Answer = Response<Body>;

/// Returns a body whose bytes are in memory.
pub fn whole(bytes: impl Into<Bytes>) -> Body {
    Either::Left(Full::new(bytes.into()))
}

/// Returns an empty body.
pub fn empty() -> Body {
    Either::Left(Full::default())
}

/// Returns the 500 for a request whose handler failed.
pub fn failed() -> Answer {
    problem_answer(&Problem::internal())
}

/// Returns the answer to a read; `body` is present if the verdict is to send the body.
///
/// # Errors
///
/// A problem with status 412 if a precondition failed.
pub fn answer_to(verdict: Verdict, reply: &Reply, body: Option<&Bytes>) -> Result<Answer, Problem> {
    let mut answer = Response::new(empty());
    match verdict {
        Verdict::Failed => {
            let detail = "the document is not what the request expects";
            return Err(Problem::precondition(detail));
        }
        Verdict::NotModified => {
            *answer.status_mut() = StatusCode::NOT_MODIFIED;
            // A 304 has no fields that describe content, because no content is sent (RFC 9110,
            // 15.4.5).
            answer.headers_mut().clone_from(&reply.not_modified);
        }
        Verdict::Send => {
            answer.headers_mut().clone_from(&reply.sent);
            *answer.body_mut() = whole(body.cloned().unwrap_or_default());
        }
    }
    Ok(answer)
}

/// Header fields that scripts of other sites may send. `Content-Type` is not among them. Browsers
/// let POST pass even if `Access-Control-Allow-Methods` does not name POST, so with `Content-Type`
/// a page could publish to a server in the network of the visitor.
const READING_HEADERS: &str = "cache-control, if-modified-since, if-none-match, last-event-id";

/// Returns the answer to OPTIONS: a script of any site may read.
pub fn options(allow: &str) -> Answer {
    let mut answer = Response::new(empty());
    *answer.status_mut() = StatusCode::NO_CONTENT;
    let headers = answer.headers_mut();
    headers.insert(ALLOW, header_value(allow));
    // Scripts may read, and no more: a page of another site must not publish.
    headers.extend(FOR_EVERY_SITE);
    let text = HeaderValue::from_static;
    headers.insert(ACCESS_CONTROL_ALLOW_METHODS, text("GET, HEAD"));
    headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, text(READING_HEADERS));
    headers.insert(ACCESS_CONTROL_MAX_AGE, text("86400"));
    answer
}

/// Returns the refusal of a request that lacks the right to something (RFC 6750, 3).
pub fn denied_answer(denied: Denial) -> Answer {
    let challenge = match denied {
        // A request without a token gets no error code (RFC 6750, 3.1).
        Denial::NoToken => Some("Bearer realm=\"simplefeed\""),
        Denial::WrongToken => Some("Bearer realm=\"simplefeed\", error=\"invalid_token\""),
        Denial::NotEntitled { .. } => {
            Some("Bearer realm=\"simplefeed\", error=\"insufficient_scope\"")
        }
        // No challenge, because no token helps at this listener.
        Denial::NotHere => None,
    };
    let mut answer = problem_answer(&Problem::from(denied));
    let challenge = challenge.map(HeaderValue::from_static);
    answer
        .headers_mut()
        .extend(challenge.map(|challenge| (WWW_AUTHENTICATE, challenge)));
    answer
}

/// Returns a text of ours as the value of a header field.
pub fn header_value(text: &str) -> HeaderValue {
    HeaderValue::from_str(text).expect("URLs we write are plain text")
}

/// Returns an answer of plain text that no cache may keep.
pub fn plain(status: StatusCode, text: impl Into<Bytes>) -> Answer {
    let mut answer = Response::new(whole(text));
    *answer.status_mut() = status;
    let kind = HeaderValue::from_static("text/plain;charset=utf-8");
    answer.headers_mut().insert(CONTENT_TYPE, kind);
    answer.headers_mut().insert(CACHE_CONTROL, NO_STORE);
    answer
}

/// Returns the answer to a publisher: JSON, with the entity tag of the feed's recent document if
/// that tag is known.
pub fn json(status: StatusCode, body: Vec<u8>, tag: Option<&HeadTag>) -> Answer {
    let mut answer = document(status, body);
    if let Some(tag) = tag {
        // This is the tag of the identity coding. Conditions of a publish ignore the letter of the
        // coding.
        let tag = header_value(&format!("\"{}i\"", tag.recent()));
        answer.headers_mut().insert(ETAG, tag);
    }
    answer
}

/// Returns an answer of JSON that no cache may keep.
pub fn document(status: StatusCode, body: Vec<u8>) -> Answer {
    let mut answer = Response::new(whole(body));
    *answer.status_mut() = status;
    let headers = answer.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(CACHE_CONTROL, NO_STORE);
    answer
}

/// Returns an answer that no cache may keep.
pub fn for_once(mut answer: Answer) -> Answer {
    answer.headers_mut().insert(CACHE_CONTROL, NO_STORE);
    answer
}

/// Returns a problem document as an answer.
pub fn problem_answer(problem: &Problem) -> Answer {
    let mut answer = Response::new(whole(problem.body()));
    *answer.status_mut() = problem.status();
    let headers = answer.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(PROBLEM_TYPE));
    headers.insert(CACHE_CONTROL, NO_STORE);
    // A detail repeats parts of the request, and no browser may take these for a page.
    headers.insert(X_CONTENT_TYPE_OPTIONS, NOSNIFF);
    if problem.status() == StatusCode::SERVICE_UNAVAILABLE {
        // Clients repeat a request whose refusal names a time.
        headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
    }
    match problem.accepts() {
        Some(Accepts::NoCoding) => {
            headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        }
        Some(Accepts::OtherType) => {
            headers.insert(ACCEPT, HeaderValue::from_static(ENTRY_TYPES));
        }
        None => {}
    }
    // Only this error depends on `Accept-Encoding` (rule H-15).
    if problem.status() == StatusCode::NOT_ACCEPTABLE {
        headers.insert(VARY, HeaderValue::from_static("accept-encoding"));
    }
    answer
}
