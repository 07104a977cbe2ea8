//! The handler: from a request to an answer.
//!
//! Shell: reads bodies, and moves disk work off the threads that serve connections. Other files make the decisions:
//! routes, conditions, codings, publishing.

use std::{sync::Arc, time::Duration};

use http_body_util::Full;
use hyper::{
    HeaderMap, Method, Request, Response, StatusCode, Uri,
    body::{Body as _, Incoming},
    header::{
        ACCEPT, ALLOW, AUTHORIZATION, CACHE_CONTROL, CONNECTION, CONTENT_LENGTH, CONTENT_TYPE,
        ETAG, HeaderName, HeaderValue, LOCATION, VARY,
    },
};
use simplefeed_core::{
    feed::{DocumentName, FeedName},
    instant::Instant,
    limits::FEED_NAME_BYTES_MAX,
    settings::Settings,
    sup::SUP_HEADER,
};
use tokio::sync::Semaphore;
use tracing::{Level, debug, enabled, error};

use super::{
    answers::{
        Answer, absent, answer_to, denied_answer, failed, header_value, json, plain,
        problem_answer, publish_error, redirect,
    },
    catalogue,
    coding::negotiate,
    conditional::Verdict,
    problem::Problem,
    publishing::{self, EntryMedia},
    ready::{Ready, ReadyAnswers},
    reply::{Audience, Lifetimes, NO_STORE, Reply, repr_digest},
    request::{check_request, drain, is_reading, read_body, waits_to_send},
    routes::Route,
};
use crate::{
    access::{Access, Right},
    config::Limits,
    log::{Closed, EntryLog, LogError},
    metrics::{DOCUMENT, Fate, Metrics, form_of},
    publish::{Append, Configure, Publisher},
    sup::Sup,
    views::{
        documents::{Address, Body, Coding, Documents, Resource, growing_listing},
        error::ArchiveError,
        sup::Circle,
    },
    watermark::Watermark,
};

mod updates;

/// Largest body that is parsed on the thread of its connection, in bytes. A larger one gets a blocking thread.
const INLINE_BODY_BYTES: usize = 16 * 1024;

/// Memory for the bodies of all requests that are being read or wait to be stored, in KiB.
const BODIES_KIB_MAX: usize = 128 * 1024;

/// Lag of the clock behind the last commit at which `/readyz` fails, in microseconds.
const CLOCK_LAG_MICROS_MAX: i64 = 60_000_000;

/// Handler of all requests but those for metrics.
#[derive(Debug)]
pub struct Handler {
    log: Arc<dyn EntryLog>,
    documents: Arc<Documents>,
    publisher: Publisher,
    ready: ReadyAnswers,
    lifetimes: Lifetimes,
    public_url: String,
    prefix: String,
    limits: Limits,
    /// Room for the bodies of requests, in KiB.
    bodies: Arc<Semaphore>,
    watermark: Arc<Watermark>,
    metrics: Arc<Metrics>,
    /// Source of SUP documents; `None` if the server offers none.
    sup: Option<Arc<Sup>>,
    /// One permit, held while a SUP document is made for one reader.
    apart: Semaphore,
    clock: fn() -> Instant,
}

/// Audience and SUP announcement of an answer about a feed, and the last second that was over before its lookup.
#[derive(Clone, Debug)]
struct Shown {
    audience: Audience,
    sup: Option<HeaderValue>,
    over: i64,
}

/// Caching terms and extra headers of an answer.
#[derive(Debug)]
struct Terms {
    audience: Audience,
    /// Value of `Cache-Control`, for this audience.
    policy: HeaderValue,
    more: Vec<(HeaderName, HeaderValue)>,
    /// Last second that the writer had left behind before the resource was looked up.
    over: i64,
}

impl Handler {
    /// Returns a handler; `public_url` is the URL at which clients see the server.
    #[expect(clippy::too_many_arguments, reason = "it is put together in one place")]
    pub fn new(
        log: Arc<dyn EntryLog>,
        documents: Arc<Documents>,
        publisher: Publisher,
        recent_max_age: u32,
        public_url: &url::Url,
        limits: Limits,
        metrics: Arc<Metrics>,
        watermark: Arc<Watermark>,
        clock: fn() -> Instant,
    ) -> Self {
        Self {
            log,
            documents,
            publisher,
            ready: ReadyAnswers::default(),
            lifetimes: Lifetimes::new(recent_max_age),
            public_url: public_url.as_str().trim_end_matches('/').into(),
            prefix: public_url.path().trim_end_matches('/').into(),
            limits,
            bodies: Arc::new(Semaphore::new(BODIES_KIB_MAX)),
            watermark,
            metrics,
            sup: None,
            apart: Semaphore::new(1),
            clock,
        }
    }

    /// Returns the server's metrics.
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }

    /// Adds the SUP documents. Without them, feeds announce none and `/sup.json` is not found.
    #[must_use]
    pub fn telling(self, sup: Option<Arc<Sup>>) -> Self {
        Self { sup, ..self }
    }

    /// Answers one request under the access rules of its listener.
    pub async fn answer(&self, request: Request<Incoming>, access: &Access) -> Answer {
        let began = std::time::Instant::now();
        let is_head = request.method() == Method::HEAD;
        // Formatted only if it is logged, so a ready answer costs no allocation for it.
        let asked = enabled!(Level::DEBUG)
            .then(|| format!("{} {}", request.method(), request.uri().path()));
        // A ready answer is public, so it needs neither a token nor a route.
        let (route, answer) = if let Some(answer) = self.at_hand(&request) {
            (DOCUMENT, answer)
        } else {
            let route = Route::of(request.uri().path(), &self.prefix);
            let label = route.as_ref().map_or("none", Route::label);
            // Boxed, or every idle connection would keep room for its future.
            let answer = Box::pin(self.dispatch(request, route, access));
            (label, answer.await)
        };
        let mut answer = answer.unwrap_or_else(|problem| problem_answer(&problem));
        if let Some(asked) = asked {
            debug!(asked, status = answer.status().as_u16(), "answered");
        }
        if is_head {
            // The length is that of the GET (rule H-12); hyper sends no body.
            let length = answer.body().size_hint().exact().unwrap_or(0);
            if answer.status() != StatusCode::NOT_MODIFIED {
                answer
                    .headers_mut()
                    .insert(CONTENT_LENGTH, HeaderValue::from(length));
            }
            *answer.body_mut() = Full::default();
        }
        let status = answer.status().as_u16();
        self.metrics.answered(route, status, began.elapsed());
        self.metrics
            .sent(answer.body().size_hint().exact().unwrap_or(0));
        answer
    }

    /// Answers a request, and drains the rest of its body.
    async fn dispatch(
        &self,
        mut request: Request<Incoming>,
        route: Option<Route>,
        access: &Access,
    ) -> Result<Answer, Problem> {
        let waits = waits_to_send(&request);
        let answer = self.decide(&mut request, route, access).await;
        let mut answer = answer.unwrap_or_else(|problem| problem_answer(&problem));
        let body = request.body_mut();
        let is_left = !body.is_end_stream();
        // A client that waits for `100 Continue` has not sent its body, and reading would ask for it.
        if is_left && (waits || !drain(body).await) {
            let close = HeaderValue::from_static("close");
            answer.headers_mut().insert(CONNECTION, close);
        }
        Ok(answer)
    }

    async fn decide(
        &self,
        request: &mut Request<Incoming>,
        route: Option<Route>,
        access: &Access,
    ) -> Result<Answer, Problem> {
        if let Err(problem) = check_request(request) {
            let mut answer = problem_answer(&problem);
            // The next bytes may belong to this request, because its end is unknown.
            let close = HeaderValue::from_static("close");
            answer.headers_mut().insert(CONNECTION, close);
            return Ok(answer);
        }
        let reading = is_reading(request);
        let path = request.uri().path();
        let route = route.ok_or_else(|| nothing_at(path))?;
        let headers = request.headers();
        match (route, request.method()) {
            (Route::Resource(feed, address), _) if reading => {
                let shown = self.shown(&feed, headers, access).await?;
                self.read(path, headers, feed, address, shown).await
            }
            (Route::Feed(feed), _) if reading => {
                let shown = self.shown(&feed, headers, access).await?;
                let mut answer = redirect(&feed);
                announce(&mut answer, shown.sup);
                Ok(answer)
            }
            (Route::Feed(feed), &Method::POST) => {
                // Rights come before the body: a request without them takes no memory for it.
                match access.check(headers, Right::Publish, &feed) {
                    Ok(()) => self.append(feed, request).await,
                    Err(denied) => Ok(denied_answer(denied)),
                }
            }
            (Route::Feed(feed), &Method::PUT) => match access.check(headers, Right::Admin, &feed) {
                Ok(()) => self.configure(feed, request).await,
                Err(denied) => Ok(denied_answer(denied)),
            },
            (Route::Catalogue, _) if reading => {
                let query = request.uri().query().unwrap_or_default();
                self.catalogue(path, query, headers, access).await
            }
            (Route::Sup(circle, window), _) if reading => {
                // A wrong token is refused here, because it would otherwise get an empty list without an error.
                if circle == Circle::Apart
                    && let Err(denied) = access.knows_caller(headers)
                {
                    return Ok(denied_answer(denied));
                }
                self.updates(request.uri(), headers, circle, window, access)
                    .await
            }
            (Route::Health, _) if reading => Ok(plain(StatusCode::OK, "ok\n")),
            (Route::Ready, _) if reading => self.ready().await,
            (route, _) => {
                let mut answer = problem_answer(&Problem::method(route.methods()));
                answer
                    .headers_mut()
                    .insert(ALLOW, HeaderValue::from_static(route.methods()));
                Ok(answer)
            }
        }
    }

    /// Returns the audience and the announcement of a feed. For all other readers the feed does not exist.
    async fn shown(
        &self,
        feed: &FeedName,
        headers: &HeaderMap,
        access: &Access,
    ) -> Result<Shown, Problem> {
        // Before the lookup: a commit that the lookup misses then lies in a second after this one.
        let over = self.left_behind();
        let mut state = self.documents.current(feed);
        if state.is_none() {
            let (documents, name) = (Arc::clone(&self.documents), feed.clone());
            state = off_thread(move || documents.snapshot(&name)).await?;
        }
        let state = state.ok_or_else(|| absent(feed))?;
        let audience = if !state.settings.is_closed() {
            Audience::Everybody
        } else if access.sight(headers).shows(feed) {
            Audience::Entitled
        } else {
            // The answer is the same as for a feed that does not exist.
            return Err(absent(feed));
        };
        let sup = self.announcement(&state.settings);
        Ok(Shown {
            audience,
            sup,
            over,
        })
    }

    /// Returns the last second that the writer has left behind.
    fn left_behind(&self) -> i64 {
        let newest = self.log.head().last;
        self.watermark.leave((self.clock)(), newest)
    }

    /// Returns the SUP announcement in answers about a feed (rules SUP-A1, SUP-A4).
    fn announcement(&self, settings: &Settings) -> Option<HeaderValue> {
        self.sup.as_ref()?;
        Some(header_value(&settings.sup_address_at(&self.public_url)))
    }

    async fn read(
        &self,
        path: &str,
        headers: &HeaderMap,
        feed: FeedName,
        address: Address,
        shown: Shown,
    ) -> Result<Answer, Problem> {
        // Only a lookup that may read from the disk leaves this thread.
        if let Some(resource) = self.documents.at_once(&feed, &address) {
            return self.show(path, headers, resource, shown).await;
        }
        let documents = Arc::clone(&self.documents);
        let wanted = (feed.clone(), address.clone());
        let found = off_thread(move || documents.resource(&wanted.0, &wanted.1)).await?;
        match (found, address) {
            (Some(resource), _) => self.show(path, headers, resource, shown).await,
            (None, Address::Document(name)) => {
                let mut answer = self.renamed(feed, name, shown.audience).await?;
                announce(&mut answer, shown.sup);
                Ok(answer)
            }
            (None, _) => Err(absent(&feed)),
        }
    }

    /// Redirects to a document that a restoration has renamed: its predecessor links to the old name for ever. Caches
    /// keep the redirect as long as the document, or they would lack it while the server is away.
    async fn renamed(
        &self,
        feed: FeedName,
        name: DocumentName,
        audience: Audience,
    ) -> Result<Answer, Problem> {
        let documents = Arc::clone(&self.documents);
        let absent = absent(&feed);
        let found = off_thread(move || {
            let Some(renamed) = documents.renamed(&feed, name)? else {
                return Ok(None);
            };
            let resource = documents.resource(&feed, &Address::Document(renamed))?;
            Ok(resource.map(|resource| (renamed, resource)))
        });
        let (renamed, resource) = found.await?.ok_or(absent)?;
        // Relative, because both names are in the same folder, wherever a proxy shows it.
        let location = renamed.to_string();
        let mut answer = plain(StatusCode::TEMPORARY_REDIRECT, "");
        answer
            .headers_mut()
            .insert(LOCATION, header_value(&location));
        let policy = self.lifetimes.of(&resource, audience);
        answer.headers_mut().insert(CACHE_CONTROL, policy);
        Ok(answer)
    }

    /// Answers with a resource of a feed.
    async fn show(
        &self,
        path: &str,
        headers: &HeaderMap,
        resource: Resource,
        shown: Shown,
    ) -> Result<Answer, Problem> {
        let policy = self.lifetimes.of(&resource, shown.audience);
        let sup = shown
            .sup
            .map(|sup| (HeaderName::from_static(SUP_HEADER), sup));
        let terms = Terms {
            audience: shown.audience,
            policy,
            more: sup.into_iter().collect(),
            over: shown.over,
        };
        self.send(path, headers, resource, terms).await
    }

    /// Answers with a resource found at `path`.
    async fn send(
        &self,
        path: &str,
        headers: &HeaderMap,
        resource: Resource,
        terms: Terms,
    ) -> Result<Answer, Problem> {
        let coding = negotiate(headers).ok_or_else(Problem::not_acceptable)?;
        let Terms {
            audience,
            policy,
            more,
            over,
        } = terms;
        let mut reply = Reply::new(&resource, coding, policy, more, (self.clock)(), over);
        // Decided before the body is read: a 304 needs none.
        let verdict = reply.verdict(headers);
        let body = match verdict {
            Verdict::Send => {
                let body = self.body(&resource, coding).await?;
                if let Some(digest) = &body.digest {
                    let name = HeaderName::from_static("repr-digest");
                    reply.sent.insert(name, repr_digest(digest));
                }
                Some(body.bytes)
            }
            Verdict::NotModified | Verdict::Failed => None,
        };
        let answer = answer_to(verdict, &reply, body.as_ref());
        // A ready answer is given without a look at the token, so only public ones are kept.
        if audience == Audience::Everybody {
            self.ready.keep(path, coding, resource, reply, body);
        }
        answer
    }

    /// Returns the answer to a read, if a ready one is still right.
    fn at_hand(&self, request: &Request<Incoming>) -> Option<Result<Answer, Problem>> {
        // The same check as in `decide`, which a ready answer passes by.
        if !is_reading(request) || check_request(request).is_err() {
            return None;
        }
        let headers = request.headers();
        let coding = negotiate(headers)?;
        let ready = self
            .ready
            .get(place_of(request.uri()), coding, &self.documents)?;
        let Ready { reply, body, .. } = &*ready;
        let verdict = reply.verdict(headers);
        // So far only 304s were sent, and the body was never read.
        if verdict == Verdict::Send && body.is_none() {
            return None;
        }
        Some(answer_to(verdict, reply, body.as_ref()))
    }

    async fn body(&self, resource: &Resource, coding: Coding) -> Result<Body, Problem> {
        if let Some(body) = self.documents.body_at_once(resource, coding) {
            return Ok(body);
        }
        let documents = Arc::clone(&self.documents);
        let resource = resource.clone();
        off_thread(move || documents.body(&resource, coding)).await
    }

    async fn append(
        &self,
        feed: FeedName,
        request: &mut Request<Incoming>,
    ) -> Result<Answer, Problem> {
        // All headers are checked before a byte of the body is read.
        let media = EntryMedia::of(request.headers())?;
        let key = publishing::idempotency_key(request.headers())?;
        let conditions = publishing::conditions(request.headers())?;
        let read = read_body(request.body_mut(), &self.limits, &self.bodies);
        let (body, room) = read.await?;
        let (drafts, room) = if body.len() <= INLINE_BODY_BYTES {
            (media.drafts(&body), room)
        } else {
            // The memory moves with the work, which goes on even if the client leaves.
            let work = tokio::task::spawn_blocking(move || (media.drafts(&body), room));
            work.await.map_err(|error| {
                error!(%error, "reading entries failed");
                Problem::internal()
            })?
        };
        let drafts = drafts.map_err(|refusal| Problem::from(&refusal))?;
        let append = Append {
            feed,
            drafts,
            key,
            conditions,
            room,
        };
        let offered = append.drafts.len();
        let appended = match self.publisher.append(append).await {
            Ok(appended) => appended,
            Err(error) => {
                self.metrics.published(Fate::Refused, offered);
                return Ok(publish_error(&error));
            }
        };
        let duplicates = appended.results.iter().filter(|one| one.duplicate).count();
        self.metrics.published(Fate::Duplicate, duplicates);
        self.metrics.published(Fate::Appended, offered - duplicates);
        // An empty batch makes no feed, so there is nothing to announce.
        let sup = self.announcement(&appended.settings);
        let sup = sup.filter(|_| appended.exists);
        let new = appended.results.iter().any(|outcome| !outcome.duplicate);
        let status = if new {
            StatusCode::CREATED
        } else {
            StatusCode::OK
        };
        let mut answer = json(status, publishing::append_answer(&appended), &appended.tag);
        if !appended.exists {
            answer.headers_mut().remove(ETAG);
        }
        if let Some(location) = publishing::entry_location(&appended) {
            answer
                .headers_mut()
                .insert(LOCATION, header_value(&location));
        }
        announce(&mut answer, sup);
        Ok(answer)
    }

    async fn configure(
        &self,
        feed: FeedName,
        request: &mut Request<Incoming>,
    ) -> Result<Answer, Problem> {
        let conditions = publishing::conditions(request.headers())?;
        // The memory of the body is given back with `_room`, after the commit.
        let read = read_body(request.body_mut(), &self.limits, &self.bodies);
        let (body, _room) = read.await?;
        let (choices, id) = publishing::settings_body(request.headers(), &body)?;
        let configure = Configure {
            feed,
            choices,
            id,
            conditions,
        };
        match self.publisher.configure(configure).await {
            Ok(configured) => {
                let status = if configured.created {
                    StatusCode::CREATED
                } else {
                    StatusCode::OK
                };
                let body = publishing::settings_answer(&configured);
                let mut answer = json(status, body, &configured.tag);
                announce(&mut answer, self.announcement(&configured.settings));
                Ok(answer)
            }
            Err(error) => Ok(publish_error(&error)),
        }
    }

    async fn catalogue(
        &self,
        path: &str,
        query: &str,
        headers: &HeaderMap,
        access: &Access,
    ) -> Result<Answer, Problem> {
        let after = catalogue::after(query)?;
        let documents = Arc::clone(&self.documents);
        let public_url = self.public_url.clone();
        // A request with a token may list closed feeds, so no shared cache may keep its answer.
        let audience = if headers.contains_key(AUTHORIZATION) {
            Audience::Entitled
        } else {
            Audience::Everybody
        };
        let sight = access.sight(headers);
        // Before the listing, for the same reason as in `shown`.
        let over = self.left_behind();
        let listing = off_thread(move || {
            let (log, open) = (&**documents.log(), documents.open());
            let (body, lists_closed) =
                catalogue::list(log, open, after.as_ref(), &public_url, &sight)?;
            Ok((growing_listing(body), lists_closed))
        });
        let (listing, lists_closed) = listing.await?;
        // Where no token is needed, the listing may show closed feeds, too.
        let audience = if lists_closed {
            Audience::Entitled
        } else {
            audience
        };
        let terms = Terms {
            audience,
            policy: self.lifetimes.of(&listing, audience),
            more: vec![],
            over,
        };
        let mut answer = self.send(path, headers, listing, terms).await?;
        depends_on_reader(&mut answer);
        Ok(answer)
    }

    /// Counts a request whose handler failed, and answers it with 500.
    pub fn failed(&self) -> Answer {
        let status = StatusCode::INTERNAL_SERVER_ERROR.as_u16();
        self.metrics.answered("none", status, Duration::ZERO);
        failed()
    }

    async fn ready(&self) -> Result<Answer, Problem> {
        let log = Arc::clone(&self.log);
        let now = (self.clock)();
        // Off the thread, because the room on the disk is looked up.
        off_thread(move || {
            let ahead = log.head().last.micros().saturating_sub(now.micros());
            let unwell = |text| plain(StatusCode::SERVICE_UNAVAILABLE, text);
            Ok(match log.takes_entries() {
                Err(Closed::Failed) => unwell("the log takes no entries\n"),
                Err(Closed::Full) => unwell("the disk is full: the log takes no entries\n"),
                Ok(()) if ahead > CLOCK_LAG_MICROS_MAX => {
                    unwell("the clock is behind the last entry\n")
                }
                Ok(()) => plain(StatusCode::OK, "ready\n"),
            })
        })
        .await
    }
}

/// Returns the 404 of a path without a route, which explains an illegal name of a feed.
fn nothing_at(path: &str) -> Problem {
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

/// Returns the key of a ready answer: the path, and the query of the SUP document.
fn place_of(uri: &Uri) -> &str {
    let told = |name: &str| uri.path().ends_with(name);
    match uri.path_and_query() {
        // No other answer that is kept ready depends on its query.
        Some(all) if told("/sup.json") => all.as_str(),
        _ => uri.path(),
    }
}

/// Adds the token to `Vary`: for another reader the same URL lists other feeds.
fn depends_on_reader(answer: &mut Answer) {
    let depends = HeaderValue::from_static("accept-encoding, authorization");
    answer.headers_mut().insert(VARY, depends);
}

/// Adds the SUP announcement to an answer about a feed.
fn announce(answer: &mut Answer, sup: Option<HeaderValue>) {
    let field = sup.map(|sup| (HeaderName::from_static(SUP_HEADER), sup));
    answer.headers_mut().extend(field);
}

/// Returns the period of a query (rule SUP-P4), which is the first one without a query.
fn period_of(query: &str, periods: &[u32]) -> Result<u32, Problem> {
    // Compared as text, so caches see one URL for each period.
    let offered = |period: &&u32| query == format!("seconds={period}");
    let wanted = match query {
        "" => periods.first(),
        _ => periods.iter().find(offered),
    };
    wanted.copied().ok_or_else(|| {
        let all: Vec<String> = periods.iter().map(u32::to_string).collect();
        Problem::malformed(format!(
            "the only query is seconds= with one of {}",
            all.join(", ")
        ))
    })
}

/// Answers a request to the listener for metrics.
pub async fn metrics(request: &Request<Incoming>, metrics: &Arc<Metrics>) -> Answer {
    if request.uri().path() != "/metrics" || request.method() != Method::GET {
        return problem_answer(&Problem::not_found("here is only GET /metrics"));
    }
    // Off the thread, because some metrics are measured on the disk.
    let metrics = Arc::clone(metrics);
    let Ok(text) = tokio::task::spawn_blocking(move || metrics.text()).await else {
        return failed();
    };
    let accept = request.headers().get(ACCEPT);
    let accept = accept.and_then(|accept| accept.to_str().ok());
    let (text, kind) = form_of(text, accept.unwrap_or_default());
    let mut answer = Response::new(Full::from(text));
    let headers = answer.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(VARY, HeaderValue::from_static("accept"));
    headers.insert(CACHE_CONTROL, NO_STORE);
    answer
}

/// Runs work that may read from the disk on a thread where it holds up no connection.
async fn off_thread<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ArchiveError> + Send + 'static,
) -> Result<T, Problem> {
    match tokio::task::spawn_blocking(work).await {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(unreadable)) => {
            let error: &(dyn std::error::Error + 'static) = &unreadable;
            error!(error, "a document cannot be read");
            Err(match unreadable {
                // After a failed write, sled may have left a tree that it repairs only when it is opened again.
                ArchiveError::Log(LogError::Storage(_)) => {
                    Problem::unavailable("the log cannot be read until the server is restarted")
                }
                _ => Problem::internal(),
            })
        }
        Err(error) => {
            error!(%error, "reading a document failed");
            Err(Problem::internal())
        }
    }
}
