//! The gate: which requests a handler may see.
//!
//! Pure. The gate checks the form, host, endpoint, method and right of a request, in this order. A
//! request that gets a ready answer reaches no endpoint, so only form and host are checked.

use std::{fmt, sync::Arc};

use hyper::{
    Method, Request,
    body::Incoming,
    header::{ALLOW, CONNECTION, HeaderValue},
};
use url::Url;

use super::{
    access::Access,
    answers::{Answer, denied_answer, options, problem_answer},
    cookie::Cookie,
    endpoint::{Endpoint, Needs, Params, Verb},
    problem::Problem,
    request::{OwnHosts, check_request, is_plain_read, is_reading},
    router::{FoundEndpoint, nothing_at},
};

/// Checks that a request must pass before any handler sees the request.
pub(super) struct Gate {
    hosts: OwnHosts,
    usual_host: Option<HeaderValue>,
    cookie: Cookie,
    takes_cookie: fn(path: &str) -> bool,
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gate").finish_non_exhaustive()
    }
}

/// Outcome of the checks of a request.
pub(super) enum Admission<S: 'static> {
    /// A handler answers the request.
    Handled(&'static Endpoint<S>, &'static Verb<S>, Params),
    /// The request has an answer without a handler.
    Answered(Answer),
}

impl Gate {
    /// Returns the gate of a server with a public URL. `takes_cookie` is the function of the table
    /// of endpoints.
    pub(super) fn new(public_url: &Url, takes_cookie: fn(path: &str) -> bool) -> Self {
        let hosts = OwnHosts::of(public_url.host_str().unwrap_or_default());
        Self {
            cookie: Cookie::of(public_url),
            usual_host: hosts.usual(public_url),
            hosts,
            takes_cookie,
        }
    }

    /// Returns the hosts that a request may name.
    pub(super) fn hosts(&self) -> &OwnHosts {
        &self.hosts
    }

    /// Returns whether a request may have an answer that is ready. `access` is called only if the
    /// host of the request is none of the server's own hosts.
    pub(super) fn lets_read(
        &self,
        request: &Request<Incoming>,
        access: impl Fn() -> Arc<Access>,
    ) -> bool {
        is_plain_read(request, self.usual_host.as_ref())
            || is_reading(request)
                && check_request(request).is_ok()
                && (self.hosts.have(request) || access().has_tokens())
    }

    /// Checks a request, and lets the cookie of a signed-in reader stand for the token.
    ///
    /// # Errors
    ///
    /// A problem with status 404 or 421. Other refusals are returned as [`Admission::Answered`].
    pub(super) fn admit<S>(
        &self,
        request: &mut Request<Incoming>,
        found: FoundEndpoint<S>,
        access: &Access,
    ) -> Result<Admission<S>, Problem> {
        if let Err(problem) = check_request(request) {
            let mut answer = problem_answer(&problem);
            // The end of this request is unknown, so the next bytes may still belong to that
            // request.
            let close = HeaderValue::from_static("close");
            answer.headers_mut().insert(CONNECTION, close);
            return Ok(Admission::Answered(answer));
        }
        if self.is_misled(request, access) {
            return Err(Problem::misdirected());
        }
        if request.method() == Method::OPTIONS && request.uri().path() == "*" {
            // `*` asks about the server as a whole (RFC 9110, 9.3.7).
            return Ok(Admission::Answered(options("GET, HEAD, POST, PUT, DELETE")));
        }
        let (endpoint, params) = found.ok_or_else(|| nothing_at(request.uri().path()))?;
        let Some(verb) = endpoint.verb(request.method()) else {
            let allow = endpoint.allow();
            if request.method() == Method::OPTIONS {
                return Ok(Admission::Answered(options(&allow)));
            }
            let mut answer = problem_answer(&Problem::method(&allow));
            // `Allow` is required in a 405 (RFC 9110, 15.5.6; rule H-14).
            let allow = HeaderValue::from_str(&allow).expect("methods are plain text");
            answer.headers_mut().insert(ALLOW, allow);
            return Ok(Admission::Answered(answer));
        };
        if is_reading(request) && (self.takes_cookie)(endpoint.path) {
            self.cookie.sign_in(request.headers_mut());
        }
        // Rights come before the body: a request without rights takes no memory for a body.
        let entitled = match verb.needs {
            Needs::Nothing | Needs::Sight => Ok(()),
            Needs::KnownCaller => access.knows_caller(request.headers()),
            Needs::Right(right) => access.check(request.headers(), right, params.feed()),
        };
        if let Err(denied) = entitled {
            return Ok(Admission::Answered(denied_answer(denied)));
        }
        Ok(Admission::Handled(endpoint, verb, params))
    }

    /// Returns whether a request may come from a page of another site, by DNS rebinding. Without
    /// tokens, such a page could do everything.
    fn is_misled(&self, request: &Request<Incoming>, access: &Access) -> bool {
        !self.hosts.have(request) && !access.has_tokens()
    }
}
