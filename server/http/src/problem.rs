//! Refusals as problem documents (RFC 9457).
//!
//! Pure. Every error answer of the server is a problem document, except at the pages for people and
//! at the health checks. No error answer is ever cached (rule H-22).

use hyper::StatusCode;
use serde::Serialize;
use simplefeed_core::{
    digest::Digest,
    refusal::{Refusal, RefusalKind},
};

use crate::access::Denial;

/// Media types that entries may have, as a list for messages and for `Accept`.
pub const ENTRY_TYPES: &str = "application/atom+xml, application/json, application/x-ndjson";

/// The media type of a problem document.
pub(crate) const PROBLEM_TYPE: &str = "application/problem+json";

/// A problem document, with the status of the answer.
#[derive(Clone, Debug, Serialize)]
pub struct Problem {
    #[serde(rename = "type")]
    kind: String,
    title: &'static str,
    #[serde(serialize_with = "as_number")]
    status: StatusCode,
    detail: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    entry: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    element: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rule: Option<&'static str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    conflicts: Vec<ConflictMember>,
    #[serde(skip)]
    accepts: Accepts,
}

/// Header field of a 415 that names the accepted form of the body.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Accepts {
    /// `Accept`, with the media types of entries.
    #[default]
    OtherType,
    /// `Accept-Encoding`, because the body has a content coding.
    NoCoding,
}

#[derive(Clone, Debug, Serialize)]
struct ConflictMember {
    entry: usize,
    id: String,
    stored: Digest,
    offered: Digest,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn as_number<S: serde::Serializer>(status: &StatusCode, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u16(status.as_u16())
}

impl Problem {
    /// Returns a problem whose type is a URI that ends with `kind`.
    pub fn new(
        kind: &str,
        title: &'static str,
        status: StatusCode,
        detail: impl Into<String>,
    ) -> Self {
        Self {
            // Programs recognise the kind of a problem by this URI (RFC 9457, 3.1.1).
            kind: format!("urn:simplefeed:problem:{kind}"),
            title,
            status,
            detail: detail.into(),
            entry: None,
            element: None,
            line: None,
            rule: None,
            conflicts: vec![],
            accepts: Accepts::default(),
        }
    }

    /// Returns the status of the answer with this document.
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// Returns what is wrong, for people.
    pub fn detail(&self) -> &str {
        &self.detail
    }

    /// Returns the document as JSON.
    pub fn body(&self) -> Vec<u8> {
        // The fields are texts, numbers and digests, so nothing here can fail.
        serde_json::to_vec(self).expect("a problem has a JSON form")
    }

    /// Returns the problem of a request for a host that is not this server's.
    pub fn misdirected() -> Self {
        let status = StatusCode::MISDIRECTED_REQUEST;
        let detail = "this server has no tokens and is reached by a name that is not its own; --public-url names it";
        Self::new("misdirected", "another host", status, detail)
    }

    /// Returns the problem of a request that no sender may make in this way.
    pub fn forbidden(detail: impl Into<String>) -> Self {
        Self::new("forbidden", "forbidden", StatusCode::FORBIDDEN, detail)
    }

    /// A request that the server does not accept as HTTP.
    pub fn malformed(detail: impl Into<String>) -> Self {
        Self::new(
            "malformed",
            "malformed request",
            StatusCode::BAD_REQUEST,
            detail,
        )
    }

    /// A request whose head is too long.
    pub(crate) fn head_too_long(detail: impl Into<String>) -> Self {
        let status = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
        Self::new("head-too-long", "request head too long", status, detail)
    }

    /// Nothing has this URL (yet).
    pub fn not_found(detail: impl Into<String>) -> Self {
        Self::new("not-found", "not found", StatusCode::NOT_FOUND, detail)
    }

    /// The resource does not answer this method.
    pub fn method(allowed: &str) -> Self {
        let detail = format!("this resource answers {allowed}");
        Self::new(
            "method",
            "method not allowed",
            StatusCode::METHOD_NOT_ALLOWED,
            detail,
        )
    }

    /// Neither of our codings is acceptable.
    pub(crate) fn not_acceptable() -> Self {
        let detail = "identity and gzip are excluded by Accept-Encoding";
        Self::new(
            "unacceptable",
            "not acceptable",
            StatusCode::NOT_ACCEPTABLE,
            detail,
        )
    }

    /// A precondition does not hold.
    pub fn precondition(detail: impl Into<String>) -> Self {
        Self::new(
            "precondition",
            "precondition failed",
            StatusCode::PRECONDITION_FAILED,
            detail,
        )
    }

    /// The body has a type or coding that cannot be published.
    pub fn media_type(detail: impl Into<String>) -> Self {
        Self::new(
            "media-type",
            "unsupported media type",
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            detail,
        )
    }

    /// The body has a content coding.
    pub fn content_coding(detail: impl Into<String>) -> Self {
        Self {
            accepts: Accepts::NoCoding,
            ..Self::media_type(detail)
        }
    }

    /// Returns the accepted form of a refused body (RFC 9110, 12.5.1 and 12.5.3).
    pub fn accepts(&self) -> Option<Accepts> {
        // Other problems have the default in this field, which says nothing about them.
        (self.status == StatusCode::UNSUPPORTED_MEDIA_TYPE).then_some(self.accepts)
    }

    /// The body is too long.
    pub fn too_large(detail: impl Into<String>) -> Self {
        Self::new(
            "too-large",
            "too large",
            StatusCode::PAYLOAD_TOO_LARGE,
            detail,
        )
    }

    /// The body did not arrive in time.
    pub fn timeout() -> Self {
        let detail = "the body did not arrive in time";
        Self::new(
            "malformed",
            "request timeout",
            StatusCode::REQUEST_TIMEOUT,
            detail,
        )
    }

    /// There is no room for the request now.
    pub fn busy() -> Self {
        let detail = "too many requests are being read; try again";
        Self::new("busy", "busy", StatusCode::SERVICE_UNAVAILABLE, detail)
    }

    /// Something is wrong on our side. The answer does not tell the cause.
    pub fn internal() -> Self {
        // The cause may name paths of files, so only the log lines of the server tell the cause.
        let detail = "the server cannot read this now";
        Self::new(
            "busy",
            "internal error",
            StatusCode::INTERNAL_SERVER_ERROR,
            detail,
        )
    }

    /// The same request may succeed soon.
    pub fn busy_with(detail: impl Into<String>) -> Self {
        Self::new("busy", "busy", StatusCode::SERVICE_UNAVAILABLE, detail)
    }

    /// The server is starting, stopping, or cannot write.
    pub fn unavailable(detail: impl Into<String>) -> Self {
        Self::new(
            "read-only",
            "unavailable",
            StatusCode::SERVICE_UNAVAILABLE,
            detail,
        )
    }
}

impl From<&Refusal> for Problem {
    fn from(refusal: &Refusal) -> Self {
        let (kind, title, status) = match refusal.kind {
            RefusalKind::Malformed => ("malformed", "malformed entry", StatusCode::BAD_REQUEST),
            RefusalKind::TooLarge => ("too-large", "too large", StatusCode::PAYLOAD_TOO_LARGE),
            RefusalKind::Conflict => ("conflict", "conflict", StatusCode::CONFLICT),
            RefusalKind::Precondition => (
                "precondition",
                "precondition failed",
                StatusCode::PRECONDITION_FAILED,
            ),
            // `Unacceptable`, and kinds that core may add: the enum is not exhaustive.
            _ => (
                "unacceptable",
                "unacceptable entry",
                StatusCode::UNPROCESSABLE_ENTITY,
            ),
        };
        let conflicts = refusal.conflicts.iter().map(|conflict| ConflictMember {
            entry: conflict.entry,
            id: conflict.id.to_string(),
            stored: conflict.stored,
            offered: conflict.offered,
        });
        Self {
            entry: refusal.entry,
            element: refusal.element.clone(),
            line: refusal.line,
            rule: refusal.rule,
            conflicts: conflicts.collect(),
            ..Self::new(kind, title, status, refusal.detail.clone())
        }
    }
}

impl From<Denial> for Problem {
    fn from(denied: Denial) -> Self {
        let (unauthorized, forbidden) = (StatusCode::UNAUTHORIZED, StatusCode::FORBIDDEN);
        let (kind, title, status, detail): (_, _, _, String) = match denied {
            Denial::NoToken => (
                "unauthorized",
                "unauthorized",
                unauthorized,
                "this needs a token: Authorization: Bearer".into(),
            ),
            Denial::WrongToken => (
                // An expired token counts as unknown.
                "unauthorized",
                "unauthorized",
                unauthorized,
                "this server knows no such token".into(),
            ),
            Denial::NotEntitled { detail } => ("forbidden", "forbidden", forbidden, detail),
            // No 401: no token would help at this listener.
            Denial::NotHere => (
                "forbidden",
                "forbidden",
                forbidden,
                "nothing is published here; the server has another listener for that".into(),
            ),
        };
        Self::new(kind, title, status, detail)
    }
}
