//! The pipeline: from a request to an answer, for any table of endpoints.
//!
//! Shell: threads, which take disk work off the threads that serve connections. Endpoints decide
//! the answers. The pipeline finds the endpoint, demands the right, and decides the conditions and
//! the coding of a representation.

use std::{
    error::Error as _,
    fmt,
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

use hyper::{
    Method, Request, StatusCode,
    body::{Body as _, Incoming},
    header::{ALLOW, CONNECTION, CONTENT_LENGTH, HeaderName, HeaderValue},
};
use simplefeed_core::{feed::FeedName, limits::FEED_NAME_BYTES_MAX, timestamp::Timestamp};
use simplefeed_process::clock::Clock;
use simplefeed_resource::{Content, Resource, Visibility, read_error::ReadError};
use tokio::sync::Semaphore;
use tracing::{Level, debug, enabled, error};
use url::Url;

use super::{
    Ending, Rules,
    answers::{Answer, answer_to, denied_answer, empty, failed, for_once, options, problem_answer},
    coding::negotiate,
    conditional::Verdict,
    cookie::Cookie,
    endpoint::{Endpoint, Exchange, Needs, Outcome, Params, RequestBody, Shown},
    kernel_copies::KernelCopies,
    limits::Limits,
    problem::Problem,
    ready::{Ready, ReadyAnswers},
    reply::{FOR_EVERY_SITE, Reply, for_sites, repr_digest},
    request::{OwnHosts, check_request, drain, is_plain_read, is_reading, waits_to_send},
    traffic::Traffic,
};
use crate::access::{Access, Audience};

/// Memory for the bodies of all requests that are being read or wait to be stored, in KiB.
const BODIES_KIB_MAX: usize = 128 * 1024;
/// Label of requests for a path without an endpoint.
const NO_ENDPOINT: &str = "none";
/// Label of requests that wait for a change.
const WAIT: &str = "wait";

/// Endpoints, and the parts of the pipeline that depend on them.
#[derive(Debug)]
pub struct Table<S: 'static> {
    /// Rows, in tables by subject.
    pub endpoints: &'static [&'static [Endpoint<S>]],
    /// Returns whether the cookie of a signed-in reader counts for reads of a path, as a token
    /// would.
    pub takes_cookie: fn(path: &str) -> bool,
    /// Returns a problem in the form of the pages for people, if the path is one of these.
    pub explain: fn(&S, &Request<Incoming>, &Problem) -> Option<Answer>,
}

impl<S> Clone for Table<S> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<S> Copy for Table<S> {}

/// Pipeline over a table of endpoints, whose handlers share a site `S`.
pub struct Pipeline<S: 'static> {
    site: S,
    table: Table<S>,
    ready: ReadyAnswers,
    hosts: OwnHosts,
    usual_host: Option<HeaderValue>,
    cookie: Cookie,
    /// Path of the public URL. A proxy may leave the prefix on a request or take it off.
    prefix: String,
    limits: Limits,
    /// Room for the bodies of requests, in KiB.
    bodies: Arc<Semaphore>,
    traffic: Arc<dyn Traffic>,
    clock: Clock,
}

impl<S> fmt::Debug for Pipeline<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pipeline").finish_non_exhaustive()
    }
}

/// Facts of a request, kept until the answer.
struct RequestFacts {
    is_head: bool,
    /// Method and path, only if they are logged, so that a ready answer costs no allocation for
    /// them.
    line: Option<String>,
}

impl RequestFacts {
    fn by(request: &Request<Incoming>) -> Self {
        let (method, path) = (request.method(), request.uri().path());
        Self {
            is_head: method == Method::HEAD,
            line: enabled!(Level::DEBUG).then(|| format!("{method} {path}")),
        }
    }
}

/// Endpoint that a path has led to.
type FoundEndpoint<S> = Option<(&'static Endpoint<S>, Params)>;

impl<S: Send + Sync> Pipeline<S> {
    /// Returns the pipeline over `table`, for a server with a public URL.
    pub fn new(
        site: S,
        table: Table<S>,
        public_url: &Url,
        limits: Limits,
        traffic: Arc<dyn Traffic>,
        clock: Clock,
    ) -> Self {
        let hosts = OwnHosts::of(public_url.host_str().unwrap_or_default());
        Self {
            site,
            table,
            ready: ReadyAnswers::new(clock.clone()),
            cookie: Cookie::of(public_url),
            usual_host: hosts.usual(public_url),
            hosts,
            prefix: public_url.path().trim_end_matches('/').into(),
            limits,
            bodies: Arc::new(Semaphore::new(BODIES_KIB_MAX)),
            traffic,
            clock,
        }
    }

    /// Returns the hosts that a request may name.
    pub fn hosts(&self) -> &OwnHosts {
        &self.hosts
    }

    /// Returns the bodies that the kernel has copies of.
    pub fn copies(&self) -> &Arc<KernelCopies> {
        self.ready.copies()
    }

    /// Returns the answer to a request under the access rules of the listener, if the answer is
    /// ready. All readers with the rights of the sender get that answer, so neither a token nor an
    /// endpoint is looked up.
    pub fn at_hand(&self, request: &Request<Incoming>, rules: &Rules) -> Option<Answer> {
        let (label, answer) = self.ready_answer(request, rules)?;
        // Counted as no time: a look at the clock would be a large part of that time.
        let took = Duration::ZERO;
        Some(self.counted(RequestFacts::by(request), label, took, answer))
    }

    /// Answers one request that has no answer at hand.
    pub async fn answer(
        &self,
        request: Request<Incoming>,
        rules: &Arc<Rules>,
        ending: &Ending,
    ) -> Answer {
        let (asked, began) = (RequestFacts::by(&request), Instant::now());
        let found = self.find(request.uri().path());
        let label = match &found {
            None => NO_ENDPOINT,
            Some((found, _)) if found.is_wait(request.uri()) => WAIT,
            Some((found, _)) => found.label,
        };
        // A request with a body is complete only once a handler has read the body. A wait owes no
        // answer, since the peer may leave meanwhile.
        if label != WAIT && request.body().is_end_stream() {
            ending.owe_answer();
        }
        let answer = self.call_handler(request, found, rules, ending).await;
        self.counted(asked, label, began.elapsed(), answer)
    }

    /// Counts an answer, and takes the body from an answer to HEAD.
    fn counted(
        &self,
        asked: RequestFacts,
        label: &'static str,
        took: Duration,
        mut answer: Answer,
    ) -> Answer {
        if let Some(line) = asked.line {
            debug!(asked = line, status = answer.status().as_u16(), "answered");
        }
        if asked.is_head {
            // The length is that of the GET (rule H-12); hyper sends no body.
            let length = answer.body().size_hint().exact();
            if let Some(length) = length.filter(|_| answer.status() != StatusCode::NOT_MODIFIED) {
                answer
                    .headers_mut()
                    .insert(CONTENT_LENGTH, HeaderValue::from(length));
            }
            *answer.body_mut() = empty();
        }
        let status = answer.status().as_u16();
        self.traffic.answered(label, status, took);
        self.traffic
            .sent(answer.body().size_hint().exact().unwrap_or(0));
        answer
    }

    /// Counts a request whose handler panicked, and answers with 500.
    pub fn failed(&self) -> Answer {
        let status = StatusCode::INTERNAL_SERVER_ERROR.as_u16();
        self.traffic.answered(NO_ENDPOINT, status, Duration::ZERO);
        failed()
    }

    /// Returns the endpoint of a path.
    pub fn find(&self, path: &str) -> FoundEndpoint<S> {
        find(self.table.endpoints, &self.prefix, path)
    }

    /// Answers a request, and drains the rest of the body.
    async fn call_handler(
        &self,
        mut request: Request<Incoming>,
        found: FoundEndpoint<S>,
        rules: &Arc<Rules>,
        ending: &Ending,
    ) -> Answer {
        // Asked first: a handler takes the headers from the request.
        let waits = waits_to_send(&request);
        let decided = self.decide_ready(&mut request, found, rules, ending).await;
        let page = match &decided {
            Err(problem) => (self.table.explain)(&self.site, &request, problem),
            Ok(_) => None,
        };
        let is_for_scripts = page.is_none() && is_reading(&request);
        let mut answer = match (decided, page) {
            (_, Some(answer)) | (Ok(answer), None) => answer,
            (Err(problem), None) => problem_answer(&problem),
        };
        let is_error = answer.status().is_client_error() || answer.status().is_server_error();
        if is_error && is_for_scripts {
            // A script that reads has to tell an absent feed from an absent server.
            answer.headers_mut().extend(FOR_EVERY_SITE);
        }
        let body = request.body_mut();
        let is_unread = !body.is_end_stream();
        // A client that waits for `100 Continue` has not sent the body, and reading would ask for
        // the body. A client that stalled has had its time. Where the answer ends the connection,
        // an announced body may never come.
        let has_stalled = answer.status() == StatusCode::REQUEST_TIMEOUT;
        let is_last = answer.headers().contains_key(CONNECTION);
        if is_unread && (waits || has_stalled || is_last || !drain(body).await) {
            let close = HeaderValue::from_static("close");
            answer.headers_mut().insert(CONNECTION, close);
        }
        answer
    }

    async fn decide_ready(
        &self,
        request: &mut Request<Incoming>,
        found: FoundEndpoint<S>,
        rules: &Arc<Rules>,
        ending: &Ending,
    ) -> Result<Answer, Problem> {
        // One set of rules decides the rights, even if SIGHUP brings others meanwhile.
        let access = &*rules.now();
        if let Err(problem) = check_request(request) {
            let mut answer = problem_answer(&problem);
            // The end of this request is unknown, so the next bytes may still belong to that
            // request.
            let close = HeaderValue::from_static("close");
            answer.headers_mut().insert(CONNECTION, close);
            return Ok(answer);
        }
        if self.is_misled(request, rules) {
            return Err(Problem::misdirected());
        }
        if request.method() == Method::OPTIONS && request.uri().path() == "*" {
            // `*` asks about the server as a whole (RFC 9110, 9.3.7).
            return Ok(options("GET, HEAD, POST, PUT, DELETE"));
        }
        let (endpoint, params) = found.ok_or_else(|| nothing_at(request.uri().path()))?;
        let Some(verb) = endpoint.verb(request.method()) else {
            let allow = endpoint.allow();
            if request.method() == Method::OPTIONS {
                return Ok(options(&allow));
            }
            let mut answer = problem_answer(&Problem::method(&allow));
            // `Allow` is required in a 405 (RFC 9110, 15.5.6; rule H-14).
            let allow = HeaderValue::from_str(&allow).expect("methods are plain text");
            answer.headers_mut().insert(ALLOW, allow);
            return Ok(answer);
        };
        if is_reading(request) && (self.table.takes_cookie)(endpoint.path) {
            self.cookie.sign_in(request.headers_mut());
        }
        // Rights come before the body: a request without rights takes no memory for a body.
        let entitled = match verb.needs {
            Needs::Nothing | Needs::Sight => Ok(()),
            Needs::KnownCaller => access.knows_caller(request.headers()),
            Needs::Right(right) => access.check(request.headers(), right, params.feed()),
        };
        if let Err(denied) = entitled {
            return Ok(denied_answer(denied));
        }
        // Taken out, because the handler borrows the body of the request mutably.
        let (uri, headers) = (request.uri().clone(), std::mem::take(request.headers_mut()));
        let exchange = Exchange {
            uri: &uri,
            headers: &headers,
            params,
            access,
            rules,
            body: RequestBody {
                incoming: request.body_mut(),
                limits: &self.limits,
                rooms: &self.bodies,
                ending,
            },
            ready: &self.ready,
            ending,
        };
        match (verb.handle)(&self.site, exchange).await? {
            Outcome::Answer(answer) => Ok(answer),
            Outcome::Shown(shown) => {
                let url = endpoint.named(&uri);
                self.send(url, endpoint.label, (&headers, access), *shown)
                    .await
            }
            Outcome::Waited(shown) => {
                let url = endpoint.named(&uri);
                // `send` keeps the plain answer ready for other readers that wait for this change.
                // Only this copy says `no-store`.
                let answer = self.send(url, endpoint.label, (&headers, access), *shown);
                answer.await.map(for_once)
            }
        }
    }

    /// Answers with a representation of a resource, and keeps the answer for `url`.
    async fn send(
        &self,
        url: Option<&str>,
        label: &'static str,
        (headers, access): (&hyper::HeaderMap, &Access),
        shown: Shown,
    ) -> Result<Answer, Problem> {
        let coding = negotiate(headers).ok_or_else(Problem::not_acceptable)?;
        let Shown {
            resource,
            visibility,
            policy,
            headers: mut more,
            over,
            depends_on_reader,
        } = shown;
        more.extend(for_sites(visibility));
        let now = self.clock.now();
        let mut reply = Reply::new(&resource, coding, policy, more, now, over);
        if depends_on_reader {
            reply.vary_by_reader();
        }
        // Decided before the body is read: a 304 needs none.
        let verdict = reply.verdict(headers);
        let body = match verdict {
            Verdict::Send => {
                let content = content_of(&resource, coding).await?;
                if let Some(digest) = &content.digest {
                    let name = HeaderName::from_static("repr-digest");
                    reply.sent.insert(name, repr_digest(digest));
                }
                Some(content.bytes)
            }
            Verdict::NotModified | Verdict::Failed => None,
        };
        let answer = answer_to(verdict, &reply, body.as_ref())?;
        // A ready answer is given without a look at the token.
        let audience = if depends_on_reader {
            access.audience(headers)
        } else {
            (visibility == Visibility::Public).then_some(Audience::Strangers)
        };
        if let (Some(audience), Some(url)) = (audience, url) {
            let ready = Ready {
                resource,
                label,
                reply,
                body,
                copy: OnceLock::new(),
                made: now,
                depends_on_reader,
            };
            self.ready.keep(url, coding, audience, ready);
        }
        Ok(answer)
    }

    /// Returns whether a request may come from a page of another site, by DNS rebinding. Without
    /// tokens, such a page could do everything.
    fn is_misled(&self, request: &Request<Incoming>, rules: &Rules) -> bool {
        !self.hosts.have(request) && !rules.now().has_tokens()
    }

    /// Returns the answer to a read and the label, if a ready answer is still right.
    fn ready_answer(
        &self,
        request: &Request<Incoming>,
        rules: &Rules,
    ) -> Option<(&'static str, Answer)> {
        // The checks of `decide_ready`, which a ready answer does not reach.
        let is_sound = || {
            is_reading(request) && check_request(request).is_ok() && !self.is_misled(request, rules)
        };
        if !is_plain_read(request, self.usual_host.as_ref()) && !is_sound() {
            return None;
        }
        let uri = request.uri();
        let mut url = uri.path();
        if uri.query().is_some() {
            let endpoint = self.find(url)?.0;
            if endpoint.is_wait(uri) {
                return None;
            }
            // Only some endpoints have a query. At all others, no query may fill the memory with
            // copies of one answer.
            url = endpoint.named(uri)?;
        }
        let headers = request.headers();
        self.ready
            .answer(url, headers, || rules.now().audience(headers))
    }
}

/// Returns the endpoint of a path in a table, with the parameters in the path.
pub fn find<S>(
    endpoints: &'static [&'static [Endpoint<S>]],
    prefix: &str,
    path: &str,
) -> FoundEndpoint<S> {
    let find = |path: &str| {
        let all = endpoints.iter().copied().flatten();
        all.into_iter()
            .find_map(|endpoint| Some((endpoint, endpoint.params(path)?)))
    };
    let below = path.strip_prefix(prefix).filter(|_| !prefix.is_empty());
    // The path without the prefix comes first, because the prefix may look like a route.
    below.and_then(find).or_else(|| find(path))
}

/// Pipeline as a listener has it: endpoints under the access rules of the listener.
#[derive(Debug)]
pub struct Gated<S: 'static> {
    /// Pipeline that answers, shared with other listeners.
    pub pipeline: Arc<Pipeline<S>>,
    /// Rules of the listener, which others may replace at any time.
    pub rules: Arc<Rules>,
}

impl<S> Clone for Gated<S> {
    fn clone(&self) -> Self {
        Self {
            pipeline: Arc::clone(&self.pipeline),
            rules: Arc::clone(&self.rules),
        }
    }
}

impl<S: Send + Sync> super::Answers for Gated<S> {
    fn at_hand(&self, request: &Request<Incoming>) -> Option<Answer> {
        self.pipeline.at_hand(request, &self.rules)
    }

    async fn answer(&self, request: Request<Incoming>, ending: &Ending) -> Answer {
        self.pipeline.answer(request, &self.rules, ending).await
    }

    fn traffic(&self) -> &dyn Traffic {
        &*self.pipeline.traffic
    }

    fn failed(&self) -> Answer {
        self.pipeline.failed()
    }
}

/// Returns the bytes of a resource. Bytes that are not in memory are read on another thread.
async fn content_of(
    resource: &Resource,
    coding: simplefeed_resource::Coding,
) -> Result<Content, Problem> {
    if let Some(content) = resource.source().at_once(coding) {
        return Ok(content);
    }
    let source = Arc::clone(resource.source());
    off_thread(move || source.read(coding)).await
}

/// Returns the 404 of a path without an endpoint, which explains an illegal name of a feed.
pub fn nothing_at(path: &str) -> Problem {
    let feed = path
        .split("/feeds/")
        .nth(1)
        .and_then(|rest| rest.split('/').next());
    match feed.filter(|feed| FeedName::parse(feed).is_none()) {
        Some(feed) => Problem::not_found(format!(
            "there is nothing at {path}: {feed:?} is no name of a feed, which begins with a lower-case letter or a \
             digit and has letters, digits, '.', '_' and '-', {FEED_NAME_BYTES_MAX} at most"
        )),
        None => Problem::not_found(format!("there is nothing at {path}")),
    }
}

/// Returns whether the answer to a read would be a 304.
pub fn is_known(shown: &Shown, headers: &hyper::HeaderMap, now: Timestamp) -> bool {
    let Some(coding) = negotiate(headers) else {
        return false;
    };
    let policy = shown.policy.clone();
    // Further header fields decide no condition.
    let reply = Reply::new(&shown.resource, coding, policy, vec![], now, shown.over);
    reply.verdict(headers) == Verdict::NotModified
}

/// Runs work that may read from the disk, on a thread that serves no connection.
///
/// # Errors
///
/// A problem with status 500 or 503 if the disk or the log cannot be read.
pub async fn off_thread<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ReadError> + Send + 'static,
) -> Result<T, Problem> {
    match tokio::task::spawn_blocking(work).await {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => {
            // Only the log has the cause, which may name paths of files.
            if let Some(error) = error.source() {
                error!(error, "a document cannot be read");
            }
            Err(match error {
                ReadError::NotReady(reason) | ReadError::Momentary { reason, .. } => {
                    Problem::busy_with(reason)
                }
                ReadError::Lasting { reason, .. } => Problem::unavailable(reason),
                ReadError::Failed(_) => Problem::internal(),
            })
        }
        Err(error) => {
            error!(%error, "reading a document failed");
            Err(Problem::internal())
        }
    }
}
