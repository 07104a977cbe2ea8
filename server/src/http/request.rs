//! What of a request is checked before anything else, and its body.
//!
//! Shell: reads from the connection.

use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use hyper::{
    HeaderMap, Method, Request, Version,
    body::{Body as _, Incoming},
    header::{CONTENT_LENGTH, EXPECT, HOST, TRANSFER_ENCODING},
};
use simplefeed_core::limits::BODY_BYTES_MAX;
use tokio::time::Instant as Moment;
use tracing::debug;

use super::problem::Problem;
use crate::config::Limits;

pub(super) fn is_reading(request: &Request<Incoming>) -> bool {
    matches!(*request.method(), Method::GET | Method::HEAD)
}

/// Checks what hyper leaves to us.
pub(super) fn check_request(request: &Request<Incoming>) -> Result<(), Problem> {
    check_host(request)?;
    check_framing(request.headers())?;
    if is_reading(request) {
        check_bodiless(request)?;
    }
    Ok(())
}

/// One Host, as HTTP/1.1 demands (RFC 9110, 7.2); hyper accepts none and two.
fn check_host(request: &Request<Incoming>) -> Result<(), Problem> {
    let hosts = request.headers().get_all(HOST).iter().count();
    match (hosts, request.version()) {
        (1, _) | (0, Version::HTTP_10) => Ok(()),
        (0, _) => Err(Problem::malformed("the request has no Host")),
        _ => Err(Problem::malformed("the request has several Hosts")),
    }
}

/// Chunks and nothing else, if there is no length (RFC 9112, 6.1); hyper would give us what is compressed as it
/// is.
fn check_framing(headers: &HeaderMap) -> Result<(), Problem> {
    let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
    let coding = codings.next();
    let chunked = coding.is_none_or(|coding| coding.as_bytes().eq_ignore_ascii_case(b"chunked"));
    if !chunked || codings.next().is_some() {
        return Err(Problem::malformed("the only transfer coding is chunked"));
    }
    Ok(())
}

/// A read has no body; one that has may be an attempt to smuggle a second request.
fn check_bodiless(request: &Request<Incoming>) -> Result<(), Problem> {
    let headers = request.headers();
    let length = headers
        .get(CONTENT_LENGTH)
        .is_some_and(|length| length != "0");
    if length || headers.contains_key(TRANSFER_ENCODING) {
        return Err(Problem::malformed("a GET or HEAD has no body"));
    }
    Ok(())
}

pub(super) async fn read_body(
    request: Request<Incoming>,
    limits: &Limits,
) -> Result<Bytes, Problem> {
    let too_large = || Problem::too_large(format!("a body has at most {BODY_BYTES_MAX} bytes"));
    let announced = request.body().size_hint().lower();
    let continues = request.headers().contains_key(EXPECT);
    if usize::try_from(announced).map_or(true, |announced| announced > BODY_BYTES_MAX) {
        debug!(announced, continues, "a body is too large");
        return Err(too_large());
    }
    let mut body = Limited::new(request.into_body(), BODY_BYTES_MAX);
    let mut read = BytesMut::new();
    let deadline = Moment::now() + limits.body;
    loop {
        // Neither may it take long as a whole, nor may it stall.
        let patience = deadline.min(Moment::now() + limits.stall);
        match tokio::time::timeout_at(patience, body.frame()).await {
            Err(_) => return Err(Problem::timeout()),
            Ok(None) => return Ok(read.freeze()),
            Ok(Some(Ok(frame))) => read.extend(frame.into_data().ok()),
            Ok(Some(Err(error))) if error.is::<LengthLimitError>() => return Err(too_large()),
            Ok(Some(Err(error))) => {
                return Err(Problem::malformed(format!("the body is broken: {error}")));
            }
        }
    }
}
