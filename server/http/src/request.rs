//! First checks of a request, and the reading of bodies.
//!
//! Shell: reads from the connection.

use std::{
    net::{Ipv4Addr, Ipv6Addr},
    sync::Arc,
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use hyper::{
    HeaderMap, Method, Request, Version,
    body::{Body as _, Incoming},
    header::{
        CONTENT_LENGTH, CONTENT_TYPE, EXPECT, HOST, HeaderName, HeaderValue, TRANSFER_ENCODING,
    },
    http::uri::Authority,
};
use simplefeed_core::limits::BODY_BYTES_MAX;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::Instant,
};
use tracing::debug;
use url::Url;

use super::limits::Limits;
use super::problem::Problem;

pub(super) fn is_reading(request: &Request<Incoming>) -> bool {
    matches!(*request.method(), Method::GET | Method::HEAD)
}

/// Returns whether a request is a read of the common form: with the usual Host, and without any
/// field that [`check_request`] would have to check.
pub(super) fn is_plain_read(request: &Request<Incoming>, usual: Option<&HeaderValue>) -> bool {
    // One look at each field costs less than a search for each name.
    let mut hosts = 0;
    let is_plain = |(name, value): (&HeaderName, &HeaderValue)| {
        if name == HOST {
            hosts += 1;
            return Some(value) == usual;
        }
        name != CONTENT_LENGTH && name != TRANSFER_ENCODING && name != CONTENT_TYPE
    };
    let names_no_host = request.uri().authority().is_none();
    is_reading(request) && names_no_host && request.headers().iter().all(is_plain) && hosts == 1
}

/// Checks a request where hyper is lenient.
pub(super) fn check_request(request: &Request<Incoming>) -> Result<(), Problem> {
    check_host(request)?;
    check_framing(request.headers())?;
    // With two media types, the form of the body would be a guess.
    if request.headers().get_all(CONTENT_TYPE).iter().count() > 1 {
        return Err(Problem::malformed("the request has several Content-Types"));
    }
    if is_reading(request) {
        check_bodiless(request)?;
    }
    Ok(())
}

/// Checks that there is one Host, as HTTP/1.1 demands (RFC 9110, 7.2). hyper accepts a request
/// without a Host, with two Hosts, or with any text as Host.
fn check_host(request: &Request<Incoming>) -> Result<(), Problem> {
    let mut hosts = request.headers().get_all(HOST).iter();
    let first = hosts.next();
    let count = first.iter().count() + hosts.count();
    match (count, request.version()) {
        (1, _) if !first.is_some_and(is_host) => Err(Problem::malformed(
            "Host is not a host with an optional port",
        )),
        (1, _) | (0, Version::HTTP_10) => Ok(()),
        (0, _) => Err(Problem::malformed("the request has no Host")),
        _ => Err(Problem::malformed("the request has several Hosts")),
    }
}

/// Hosts that DNS rebinding cannot forge.
#[derive(Clone, Debug)]
pub struct OwnHosts {
    /// Host of the public URL, in lower case.
    public: String,
}

impl OwnHosts {
    /// Returns the hosts of a server with this host in its public URL.
    pub(super) fn of(public: &str) -> Self {
        Self {
            public: public.to_ascii_lowercase(),
        }
    }

    /// Returns the Host of most requests, which is that of the public URL, if that Host needs no
    /// further check.
    pub(super) fn usual(&self, public_url: &Url) -> Option<HeaderValue> {
        let host = public_url.authority();
        let host = HeaderValue::from_str(host).ok().filter(is_host)?;
        self.has_host(public_url.authority()).then_some(host)
    }

    /// Returns whether the host that a request names is one of these hosts.
    pub fn have<B>(&self, request: &Request<B>) -> bool {
        // The host in an absolute target counts, and `Host` does not (RFC 9112, 3.2.2).
        let target = request.uri().authority().map(Authority::as_str);
        let field = || request.headers().get(HOST)?.to_str().ok();
        target.or_else(field).is_none_or(|host| self.has_host(host))
    }

    /// Returns whether a host, with or without a port, is an address, a name without a dot, a name
    /// below `localhost`, or the host of the public URL.
    fn has_host(&self, host: &str) -> bool {
        // Browsers send no user name. If there is a user name, the host stands behind the `@`.
        let host = host.rsplit('@').next().unwrap_or(host);
        let name = match host.rfind(':').filter(|_| !host.ends_with(']')) {
            Some(colon) => host.get(..colon).unwrap_or_default(),
            None => host,
        };
        // To browsers, a name with a dot at the end is the same name.
        let name = name.strip_suffix('.').unwrap_or(name);
        // An attacker makes a domain in DNS lead to this server. An address cannot be such a
        // domain, nor can a name without a dot, or a name below `localhost`.
        let is_address = name.starts_with('[') || name.parse::<Ipv4Addr>().is_ok();
        is_address
            || !name.contains('.')
            || name.eq_ignore_ascii_case(&self.public)
            || name.to_ascii_lowercase().ends_with(".localhost")
    }
}

/// Returns whether a value can be a host and a port (RFC 3986, 3.2.2 and 3.2.3). An empty value is
/// allowed (RFC 9112, 3.2).
fn is_host(value: &HeaderValue) -> bool {
    let Ok(text) = value.to_str() else {
        return false;
    };
    // A colon within the brackets of an IPv6 address begins no port.
    let (host, port) = match text.rfind(':').filter(|_| !text.ends_with(']')) {
        Some(colon) => (text.get(..colon).unwrap_or_default(), text.get(colon + 1..)),
        None => (text, None),
    };
    let is_port = |port: &str| port.is_empty() || port.parse::<u16>().is_ok();
    let literal = host
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'));
    let is_host = match literal {
        Some(address) => address.parse::<Ipv6Addr>().is_ok(),
        None => is_name(host.as_bytes()),
    };
    is_host && port.is_none_or(is_port)
}

/// Returns whether a host is a registered name or an IPv4 address: RFC 3986's `reg-name`.
fn is_name(mut name: &[u8]) -> bool {
    while let Some((first, rest)) = name.split_first() {
        name = rest;
        match first {
            // Checked but not decoded, because no URL is ever made from a Host.
            b'%' => {
                let Some((digits, rest)) = rest.split_first_chunk::<2>() else {
                    return false;
                };
                if !digits.iter().all(u8::is_ascii_hexdigit) {
                    return false;
                }
                name = rest;
            }
            byte if byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=".contains(byte) => {}
            _ => return false,
        }
    }
    true
}

/// Checks that a body has no transfer coding but `chunked` (RFC 9112, 6.1). hyper would pass
/// compressed bytes on as if they were the body.
fn check_framing(headers: &HeaderMap) -> Result<(), Problem> {
    let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
    let coding = codings.next();
    // hyper lets `gzip, chunked` through.
    let chunked = coding.is_none_or(|coding| coding.as_bytes().eq_ignore_ascii_case(b"chunked"));
    if !chunked || codings.next().is_some() {
        return Err(Problem::malformed("the only transfer coding is chunked"));
    }
    Ok(())
}

/// Checks that a read has no body. A read with a body may be an attempt to smuggle a second
/// request.
fn check_bodiless(request: &Request<Incoming>) -> Result<(), Problem> {
    let headers = request.headers();
    let length = headers
        .get(CONTENT_LENGTH)
        .is_some_and(|length| length != "0");
    // `Content-Length: 0` announces no body, while a transfer coding always announces one.
    if length || headers.contains_key(TRANSFER_ENCODING) {
        return Err(Problem::malformed("a GET or HEAD has no body"));
    }
    Ok(())
}

/// Number of first bytes of each body that need no reserved memory, so that small requests are
/// always read.
const FREE_BYTES: usize = 16 * 1024;

/// Amount of memory that is reserved in one step, in KiB.
const STEP_KIB: u32 = 64;

/// Upper bound of the bytes of a refused body that are read and thrown away, so that the client can
/// read the answer.
const DRAINED_BYTES_MAX: usize = 2 * BODY_BYTES_MAX;

/// Longest time for reading the rest of a refused body.
const DRAIN_TIME: Duration = Duration::from_secs(10);

/// Memory that is reserved for the body of a request; `None` for a small body.
pub(crate) type BodyRoom = Option<OwnedSemaphorePermit>;

/// Reads a body, and reserves memory as the bytes arrive. An announced length reserves no memory.
pub(super) async fn read_body(
    body: &mut Incoming,
    bytes_max: usize,
    limits: &Limits,
    rooms: &Arc<Semaphore>,
) -> Result<(Bytes, BodyRoom), Problem> {
    let too_large = || Problem::too_large(format!("a body has at most {bytes_max} bytes"));
    let announced = body.size_hint().lower();
    // If the announced length is too large, no byte is read.
    if usize::try_from(announced).map_or(true, |announced| announced > bytes_max) {
        debug!(announced, "a body is too large");
        return Err(too_large());
    }
    let mut body = Limited::new(body, bytes_max);
    let mut read = BytesMut::new();
    let mut room: BodyRoom = None;
    let mut paid = FREE_BYTES;
    let deadline = Instant::now() + limits.body;
    loop {
        // Two bounds: a deadline for the whole body, and a limit for each pause.
        let patience = deadline.min(Instant::now() + limits.stall);
        match tokio::time::timeout_at(patience, body.frame()).await {
            Err(_) => return Err(Problem::timeout()),
            Ok(None) => return Ok((read.freeze(), room)),
            Ok(Some(Ok(frame))) => read.extend(frame.into_data().ok()),
            // A body in chunks announces no length, so the bound is met while reading.
            Ok(Some(Err(error))) if error.is::<LengthLimitError>() => return Err(too_large()),
            Ok(Some(Err(error))) => {
                return Err(Problem::malformed(format!("the body is broken: {error}")));
            }
        }
        while paid < read.len() {
            // Waiting here would deadlock: every waiting request would keep the memory that the
            // request has reserved before.
            let more = Arc::clone(rooms).try_acquire_many_owned(STEP_KIB);
            let more = more.map_err(|_full| Problem::busy())?;
            match &mut room {
                Some(room) => room.merge(more),
                None => room = Some(more),
            }
            paid += usize::try_from(STEP_KIB * 1024).unwrap_or(usize::MAX);
        }
    }
}

/// Reads and throws away the rest of a request's body before the answer is sent. Otherwise, a
/// client that is still sending could not read the answer. Returns whether the connection can be
/// reused.
pub(super) async fn drain(body: &mut Incoming) -> bool {
    if body.is_end_stream() {
        return true;
    }
    // If a longer body is announced, the connection ends instead.
    let announced = usize::try_from(body.size_hint().lower());
    if announced.map_or(true, |announced| announced > DRAINED_BYTES_MAX) {
        return false;
    }
    let mut body = Limited::new(body, DRAINED_BYTES_MAX);
    let drained = async {
        loop {
            match body.frame().await {
                None => return true,
                Some(Ok(_)) => {}
                Some(Err(_)) => return false,
            }
        }
    };
    tokio::time::timeout(DRAIN_TIME, drained)
        .await
        .unwrap_or(false)
}

/// Returns whether the client waits for `100 Continue` before sending a body (RFC 9110, 10.1.1).
/// Reading the body would send `100 Continue`.
pub(super) fn waits_to_send(request: &Request<Incoming>) -> bool {
    request.headers().contains_key(EXPECT)
}
