//! Complete answers, put together from their parts.
//!
//! Pure.

use bytes::Bytes;
use http_body_util::Full;
use hyper::{
    Response, StatusCode,
    header::{
        ACCEPT, ACCEPT_ENCODING, CACHE_CONTROL, CONTENT_TYPE, ETAG, HeaderValue, LOCATION,
        RETRY_AFTER, VARY, WWW_AUTHENTICATE,
    },
};
use simplefeed_core::{feed::FeedName, header::RECENT};

use super::{
    conditional::Verdict,
    problem::{Accepts, PROBLEM_TYPE, Problem},
    publishing::ENTRY_TYPES,
    reply::{NO_STORE, Reply},
};
use crate::{access::Denied, head_tag::HeadTag, publish::PublishError};

/// A complete answer, with its whole body in memory.
pub type Answer = Response<Full<Bytes>>;

/// Returns the 500 for a request whose handler failed.
pub(super) fn failed() -> Answer {
    problem_answer(&Problem::internal())
}

/// Returns the answer to a read; `body` is present if the verdict is to send it.
pub(super) fn answer_to(
    verdict: Verdict,
    reply: &Reply,
    body: Option<&Bytes>,
) -> Result<Answer, Problem> {
    let mut answer = Response::new(Full::default());
    match verdict {
        Verdict::Failed => {
            let detail = "the document is not what the request expects";
            return Err(Problem::precondition(detail));
        }
        Verdict::NotModified => {
            *answer.status_mut() = StatusCode::NOT_MODIFIED;
            answer.headers_mut().clone_from(&reply.not_modified);
        }
        Verdict::Send => {
            answer.headers_mut().clone_from(&reply.sent);
            *answer.body_mut() = Full::new(body.cloned().unwrap_or_default());
        }
    }
    Ok(answer)
}

/// Leads to the feed's recent document. Some feed readers take 303 for a final answer; all take 307.
pub(super) fn redirect(feed: &FeedName) -> Answer {
    let mut answer = plain(StatusCode::TEMPORARY_REDIRECT, "");
    // Relative, so that it leads on wherever a proxy shows us.
    let location = format!("{feed}/{RECENT}");
    answer
        .headers_mut()
        .insert(LOCATION, header_value(&location));
    answer
}

/// Returns the refusal of a request that lacks the right to something (RFC 6750, 3).
pub(super) fn denied_answer(denied: Denied) -> Answer {
    let challenge = match denied {
        // Without a token there is no error code (RFC 6750, 3.1).
        Denied::NoToken => Some("Bearer realm=\"simplefeed\""),
        Denied::WrongToken => Some("Bearer realm=\"simplefeed\", error=\"invalid_token\""),
        Denied::NotEntitled { .. } => {
            Some("Bearer realm=\"simplefeed\", error=\"insufficient_scope\"")
        }
        // No challenge, because no token helps at this listener.
        Denied::NotHere => None,
    };
    let mut answer = problem_answer(&Problem::from(denied));
    let challenge = challenge.map(HeaderValue::from_static);
    answer
        .headers_mut()
        .extend(challenge.map(|challenge| (WWW_AUTHENTICATE, challenge)));
    answer
}

/// Returns the same problem for a feed that does not exist and for one that is closed to the reader.
pub(super) fn absent(feed: &FeedName) -> Problem {
    Problem::not_found(format!("feed {feed} has no such document"))
}

pub(super) fn header_value(text: &str) -> HeaderValue {
    HeaderValue::from_str(text).expect("URLs we write are plain text")
}

pub(super) fn plain(status: StatusCode, text: &'static str) -> Answer {
    let mut answer = Response::new(Full::from(text));
    *answer.status_mut() = status;
    let kind = HeaderValue::from_static("text/plain;charset=utf-8");
    answer.headers_mut().insert(CONTENT_TYPE, kind);
    answer.headers_mut().insert(CACHE_CONTROL, NO_STORE);
    answer
}

pub(super) fn json(status: StatusCode, body: Vec<u8>, tag: &HeadTag) -> Answer {
    let mut answer = Response::new(Full::from(body));
    *answer.status_mut() = status;
    let headers = answer.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(CACHE_CONTROL, NO_STORE);
    // The tag of the identity coding; conditions of a publish ignore the letter.
    headers.insert(ETAG, header_value(&format!("\"{}i\"", tag.recent())));
    answer
}

pub(super) fn publish_error(error: &PublishError) -> Answer {
    let mut answer = problem_answer(&Problem::from(error));
    // A 507, which `problem_answer` gives no `Retry-After`. Room on a disk takes a while.
    if matches!(error, PublishError::NoSpace) {
        let headers = answer.headers_mut();
        headers.insert(RETRY_AFTER, HeaderValue::from_static("60"));
    }
    answer
}

pub(super) fn problem_answer(problem: &Problem) -> Answer {
    let mut answer = Response::new(Full::from(problem.body()));
    *answer.status_mut() = problem.status();
    let headers = answer.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(PROBLEM_TYPE));
    headers.insert(CACHE_CONTROL, NO_STORE);
    if problem.status() == StatusCode::SERVICE_UNAVAILABLE {
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
    // The one error that depends on `Accept-Encoding` (rule H-15).
    if problem.status() == StatusCode::NOT_ACCEPTABLE {
        headers.insert(VARY, HeaderValue::from_static("accept-encoding"));
    }
    answer
}
