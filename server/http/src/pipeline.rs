//! The pipeline: from a request to an answer, for any table of endpoints.
//!
//! Shell: the limits, the counting and the clock of a server. The [router](super::router) finds the
//! endpoint, the gate checks the request, and the [sender](super::sending) sends a
//! representation. Endpoints decide the answers.

use std::{
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

use hyper::{
    Method, Request, StatusCode,
    body::{Body as _, Incoming},
    header::{CONNECTION, CONTENT_LENGTH, HeaderValue},
};
use simplefeed_process::clock::Clock;
use tokio::sync::Semaphore;
use tracing::{Level, debug, enabled};
use url::Url;

use super::{
    AccessRules, ConnectionEnd,
    answers::{Answer, empty, failed, for_once, problem_answer},
    endpoint::{Exchange, Outcome, RequestBody},
    gate::{Admission, Gate},
    kernel_copies::KernelCopies,
    limits::Limits,
    problem::Problem,
    reply::FOR_EVERY_SITE,
    request::{OwnHosts, drain, is_reading, waits_to_send},
    router::{EndpointTable, FoundEndpoint, find},
    sending::ResourceSender,
    traffic::Traffic,
};

/// Memory for the bodies of all requests, in KiB: for bodies that are being read, and for bodies
/// that wait for the writer.
const BODIES_KIB_MAX: usize = 128 * 1024;
/// Label of requests for a path without an endpoint.
const NO_ENDPOINT: &str = "none";
/// Label of requests that wait for a change.
const WAIT: &str = "wait";

/// Pipeline over a table of endpoints, whose handlers share a site `S`.
pub struct Pipeline<S: 'static> {
    site: S,
    table: EndpointTable<S>,
    gate: Gate,
    sender: ResourceSender,
    /// Path of the public URL. A proxy may keep this prefix in the path of a request, or remove the
    /// prefix.
    prefix: String,
    limits: Limits,
    /// Room for the bodies of requests, in KiB.
    bodies: Arc<Semaphore>,
    traffic: Arc<dyn Traffic>,
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
    fn of_request(request: &Request<Incoming>) -> Self {
        let (method, path) = (request.method(), request.uri().path());
        Self {
            is_head: method == Method::HEAD,
            line: enabled!(Level::DEBUG).then(|| format!("{method} {path}")),
        }
    }
}

impl<S: Send + Sync> Pipeline<S> {
    /// Returns the pipeline over `table`, for a server with a public URL.
    pub fn new(
        site: S,
        table: EndpointTable<S>,
        public_url: &Url,
        limits: Limits,
        traffic: Arc<dyn Traffic>,
        clock: Clock,
    ) -> Self {
        Self {
            site,
            table,
            gate: Gate::new(public_url, table.takes_cookie),
            sender: ResourceSender::new(clock),
            prefix: public_url.path().trim_end_matches('/').into(),
            limits,
            bodies: Arc::new(Semaphore::new(BODIES_KIB_MAX)),
            traffic,
        }
    }

    /// Returns the hosts that a request may name.
    pub fn hosts(&self) -> &OwnHosts {
        self.gate.hosts()
    }

    /// Returns the bodies that the kernel has copies of.
    pub fn copies(&self) -> &Arc<KernelCopies> {
        self.sender.ready.copies()
    }

    /// Returns the answer to a request under the access rules of the listener, if the answer is
    /// ready. No token is looked up, because all readers with the rights of the sender get the same
    /// answer. An endpoint is looked up only for a URL with a query.
    pub fn at_hand(&self, request: &Request<Incoming>, rules: &AccessRules) -> Option<Answer> {
        let (label, answer) = self.ready_answer(request, rules)?;
        // The time counts as zero: reading the clock would take a large part of the time for such
        // an answer.
        let took = Duration::ZERO;
        Some(self.count_answer(RequestFacts::of_request(request), label, took, answer))
    }

    /// Answers one request that has no answer at hand.
    pub async fn answer(
        &self,
        request: Request<Incoming>,
        rules: &Arc<AccessRules>,
        ending: &ConnectionEnd,
    ) -> Answer {
        let (asked, began) = (RequestFacts::of_request(&request), Instant::now());
        let found = self.find_endpoint(request.uri().path());
        let label = match &found {
            None => NO_ENDPOINT,
            Some((found, _)) if found.is_wait(request.uri()) => WAIT,
            Some((found, _)) => found.label,
        };
        // A request with a body is complete only once a handler has read the body. A wait owes no
        // answer, because the peer may leave meanwhile.
        if label != WAIT && request.body().is_end_stream() {
            ending.owe_answer();
        }
        let answer = self.call_handler(request, found, rules, ending).await;
        self.count_answer(asked, label, began.elapsed(), answer)
    }

    /// Counts an answer, and removes the body from an answer to HEAD.
    fn count_answer(
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

    fn find_endpoint(&self, path: &str) -> FoundEndpoint<S> {
        find(self.table.endpoints, &self.prefix, path)
    }

    /// Counts a request whose handler panicked, and answers with 500.
    pub fn failed(&self) -> Answer {
        let status = StatusCode::INTERNAL_SERVER_ERROR.as_u16();
        self.traffic.answered(NO_ENDPOINT, status, Duration::ZERO);
        failed()
    }

    /// Answers a request, and drains the rest of the body.
    async fn call_handler(
        &self,
        mut request: Request<Incoming>,
        found: FoundEndpoint<S>,
        rules: &Arc<AccessRules>,
        ending: &ConnectionEnd,
    ) -> Answer {
        // Asked first, because `decide_ready` takes the headers out of the request.
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
            // A script must be able to distinguish an absent feed from an absent server.
            answer.headers_mut().extend(FOR_EVERY_SITE);
        }
        let body = request.body_mut();
        let is_unread = !body.is_end_stream();
        // Three kinds of bodies are not drained. A client that waits for `100 Continue` has not
        // sent the body, and reading would ask for the body. A client that stalled has had its
        // time. If the answer ends the connection anyway, an announced body may never come.
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
        rules: &Arc<AccessRules>,
        ending: &ConnectionEnd,
    ) -> Result<Answer, Problem> {
        // One set of rules decides all rights of the request, even if SIGHUP replaces the rules
        // meanwhile.
        let access = &*rules.now();
        let (endpoint, verb, params) = match self.gate.admit(request, found, access)? {
            Admission::Handled(endpoint, verb, params) => (endpoint, verb, params),
            Admission::Answered(answer) => return Ok(answer),
        };
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
            ready: &self.sender.ready,
            ending,
        };
        match (verb.handle)(&self.site, exchange).await? {
            Outcome::Answer(answer) => Ok(answer),
            Outcome::Shown(shown) => {
                let url = endpoint.named(&uri);
                self.sender
                    .send_resource(url, endpoint.label, (&headers, access), *shown)
                    .await
            }
            Outcome::Waited(shown) => {
                let url = endpoint.named(&uri);
                // `send_resource` keeps the plain answer ready for other readers that wait for this
                // change. Only the answer that is sent here says `no-store`.
                let answer =
                    self.sender
                        .send_resource(url, endpoint.label, (&headers, access), *shown);
                answer.await.map(for_once)
            }
        }
    }

    /// Returns the answer to a read and the label, if a ready answer is still right.
    fn ready_answer(
        &self,
        request: &Request<Incoming>,
        rules: &AccessRules,
    ) -> Option<(&'static str, Answer)> {
        if !self.gate.lets_read(request, || rules.now()) {
            return None;
        }
        let uri = request.uri();
        let mut url = uri.path();
        if uri.query().is_some() {
            let endpoint = self.find_endpoint(url)?.0;
            if endpoint.is_wait(uri) {
                return None;
            }
            // `named` drops a query that the answers of the endpoint do not depend on. Otherwise,
            // varied queries could fill the memory with copies of one answer.
            url = endpoint.named(uri)?;
        }
        let headers = request.headers();
        self.sender
            .ready
            .answer(url, headers, || rules.now().audience(headers))
    }
}

/// Pipeline for one listener: the shared pipeline, with the access rules of the listener.
#[derive(Debug)]
pub struct ListenerPipeline<S: 'static> {
    /// Pipeline that answers, shared with other listeners.
    pub pipeline: Arc<Pipeline<S>>,
    /// Access rules of the listener, which may be replaced at any time.
    pub rules: Arc<AccessRules>,
}

impl<S> Clone for ListenerPipeline<S> {
    fn clone(&self) -> Self {
        Self {
            pipeline: Arc::clone(&self.pipeline),
            rules: Arc::clone(&self.rules),
        }
    }
}

impl<S: Send + Sync> super::Answers for ListenerPipeline<S> {
    fn at_hand(&self, request: &Request<Incoming>) -> Option<Answer> {
        self.pipeline.at_hand(request, &self.rules)
    }

    async fn answer(&self, request: Request<Incoming>, ending: &ConnectionEnd) -> Answer {
        self.pipeline.answer(request, &self.rules, ending).await
    }

    fn traffic(&self) -> &dyn Traffic {
        &*self.pipeline.traffic
    }

    fn failed(&self) -> Answer {
        self.pipeline.failed()
    }
}
