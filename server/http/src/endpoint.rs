//! Endpoints as the pipeline sees them: a table of paths, methods, rights and handlers.
//!
//! Shell: the bodies of requests, which arrive over a connection. A path is matched as sent: no
//! decoding, no dot segments, no second spelling of a number, and no path ever reaches the file
//! system. `Allow`, the labels of metrics, the tests of access and the table in `docs/protocol.md`
//! follow from the same table.

use std::{fmt, pin::Pin, sync::Arc};

use bytes::Bytes;
use hyper::{
    HeaderMap, Method, Uri,
    body::Incoming,
    header::{HeaderName, HeaderValue},
    http::uri::PathAndQuery,
};
use simplefeed_core::{
    feed::{EpochNumber, FeedName, FeedPattern},
    limits::BODY_BYTES_MAX,
};
use simplefeed_resource::{Resource, Visibility};
use tokio::sync::Semaphore;

use super::{
    answers::Answer,
    problem::Problem,
    ready::ReadyAnswers,
    request::{BodyRoom, read_body},
};
use crate::{
    AccessRules, ConnectionEnd,
    access::{Access, Right},
    limits::Limits,
};

/// Future that a handler returns.
pub type OutcomeFuture<'r> = Pin<Box<dyn Future<Output = Result<Outcome, Problem>> + Send + 'r>>;

/// Handler of one method of an endpoint. All handlers share the value of type `S`.
pub type Handle<S> = for<'r> fn(&'r S, Exchange<'r>) -> OutcomeFuture<'r>;

/// Row of the table: a path, and the methods for that path.
#[derive(Debug)]
pub struct Endpoint<S: 'static> {
    /// Path below the public URL. `{feed}` stands for the name of a feed, `{item}` for the name of
    /// a feed or a pattern, `{position}` for a number from 0, and any other word in braces for a
    /// number from 1. A number may have an epoch.
    pub path: &'static str,
    /// Label of the endpoint's requests in the metrics.
    pub label: &'static str,
    /// Meaning of a query.
    pub query: Query,
    /// Methods that the endpoint answers. HEAD is answered as GET.
    pub methods: &'static [Verb<S>],
}

/// Meaning of a query to an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Query {
    /// None: the answer depends on the path alone.
    Ignored,
    /// Answers depend on the query.
    Named,
    /// None, unless the query asks the server to wait.
    Wait,
}

/// Method of an endpoint.
pub struct Verb<S: 'static> {
    /// HTTP method; GET covers HEAD, too.
    pub method: Method,
    /// Right that the pipeline demands before any body is read.
    pub needs: Needs,
    /// Handler of the requests with this method.
    pub handle: Handle<S>,
}

impl<S> fmt::Debug for Verb<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({:?})", self.method, self.needs)
    }
}

/// Right that a request needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    /// No right, with or without a token.
    Nothing,
    /// No right for open feeds. Closed feeds are absent from the answer unless the token may read
    /// them.
    Sight,
    /// As [`Sight`](Self::Sight), but a wrong token is refused. Otherwise, the answer to a request
    /// with a wrong token could be empty, without an error.
    KnownCaller,
    /// A right to the feed of the path.
    Right(Right),
}

/// Parameters in a path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Params {
    feed: Option<FeedName>,
    number: Option<EpochNumber>,
    item: Option<FeedPattern>,
}

impl Params {
    /// Returns the feed that the path names.
    pub fn feed(&self) -> &FeedName {
        self.feed
            .as_ref()
            .expect("the path of the endpoint has {feed}")
    }

    /// Returns the feed, or the pattern, that the path names behind its first feed.
    pub fn item(&self) -> &FeedPattern {
        self.item
            .as_ref()
            .expect("the path of the endpoint has {item}")
    }

    /// Returns the number that the path names, if there is one.
    pub fn number(&self) -> Option<EpochNumber> {
        self.number
    }
}

/// Request on its way to a handler.
#[derive(Debug)]
pub struct Exchange<'r> {
    /// URL of the request.
    pub uri: &'r Uri,
    /// Header fields of the request.
    pub headers: &'r HeaderMap,
    /// Parameters in the path.
    pub params: Params,
    /// Access rules of the listener that held when the request came.
    pub access: &'r Access,
    /// Rules of the listener, for a handler that waits: after the wait, other rules may hold.
    pub rules: &'r Arc<AccessRules>,
    /// Body of the request.
    pub body: RequestBody<'r>,
    /// Answers that are ready, for a handler that waits.
    pub ready: &'r ReadyAnswers,
    /// End of the connection. A handler that waits, or streams, ends when that end is near.
    pub ending: &'r ConnectionEnd,
}

impl Exchange<'_> {
    /// Returns the query, or the empty text.
    pub fn query(&self) -> &str {
        self.uri.query().unwrap_or_default()
    }
}

/// Body of a request, which takes memory only as bytes arrive.
#[derive(Debug)]
pub struct RequestBody<'r> {
    pub(super) incoming: &'r mut Incoming,
    pub(super) limits: &'r Limits,
    pub(super) rooms: &'r Arc<Semaphore>,
    pub(super) ending: &'r ConnectionEnd,
}

impl RequestBody<'_> {
    /// Reads the body, and reserves memory for the bytes.
    ///
    /// # Errors
    ///
    /// A problem for a body that is too large, too slow or broken, or if too many other bodies are
    /// being read.
    pub async fn read(self) -> Result<(Bytes, BodyRoom), Problem> {
        self.read_at_most(BODY_BYTES_MAX).await
    }

    /// Reads a body of at most `bytes` bytes. A small body takes no memory away from the bodies of
    /// publishers.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read).
    pub async fn read_at_most(self, bytes: usize) -> Result<(Bytes, BodyRoom), Problem> {
        let body = read_body(self.incoming, bytes, self.limits, self.rooms).await?;
        // The request is complete now: the peer may close its half of the connection, and still
        // gets the answer.
        self.ending.owe_answer();
        Ok(body)
    }
}

/// Outcome of a handler.
#[derive(Debug)]
pub enum Outcome {
    /// A representation. The pipeline chooses the coding and decides the conditions of the request.
    Shown(Box<Representation>),
    /// A representation, in answer to a wait: no cache may keep the answer.
    Waited(Box<Representation>),
    /// A complete answer, to which the pipeline applies no coding and no condition.
    Answer(Answer),
}

/// Representation, with terms for caches.
#[derive(Debug)]
pub struct Representation {
    /// Resource to be sent.
    pub resource: Resource,
    /// Readers that may see the resource.
    pub visibility: Visibility,
    /// Value of `Cache-Control`, for these readers.
    pub policy: HeaderValue,
    /// Further header fields of the answer, also of a 304.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// Last second that was finished before the lookup of the resource: no later commit gets an
    /// instant in that second or before.
    pub over: i64,
    /// Whether another reader may get other bytes from the same URL.
    pub depends_on_reader: bool,
}

impl<S> Endpoint<S> {
    /// Returns the parameters in a path, if the path belongs to this endpoint.
    pub fn params(&self, path: &str) -> Option<Params> {
        let mut params = Params::default();
        let mut segments = path.strip_prefix('/')?.split('/');
        for wanted in self.path.strip_prefix('/')?.split('/') {
            let segment = segments.next()?;
            let Some((before, rest)) = wanted.split_once('{') else {
                if wanted == segment {
                    continue;
                }
                return None;
            };
            let (name, after) = rest.split_once('}')?;
            let value = segment.strip_prefix(before)?.strip_suffix(after)?;
            if name == "feed" {
                params.feed = Some(FeedName::parse(value)?);
            } else if name == "item" {
                params.item = Some(FeedPattern::parse(value)?);
            } else {
                let number = EpochNumber::parse(value)?;
                // Positions begin with 0. Documents, and other things with numbers, begin with 1.
                let least = u64::from(name != "position");
                params.number = Some(number).filter(|number| number.number >= least);
                // A number below the least one names nothing, so this endpoint has no such path.
                params.number?;
            }
        }
        segments.next().is_none().then_some(params)
    }

    /// Returns the part of the URL that an answer depends on. Returns `None` for a wait at an
    /// endpoint whose answers depend on the query, because that answer serves one request only.
    pub fn named<'u>(&self, uri: &'u Uri) -> Option<&'u str> {
        match self.query {
            Query::Named if self.is_wait(uri) => None,
            Query::Named => uri.path_and_query().map(PathAndQuery::as_str),
            // Once a wait is over, its answer is that of the plain URL.
            Query::Ignored | Query::Wait => Some(uri.path()),
        }
    }

    /// Returns whether a request asks the server to wait.
    pub(crate) fn is_wait(&self, uri: &Uri) -> bool {
        let mut parts = uri.query().unwrap_or_default().split('&');
        self.query != Query::Ignored && parts.any(|part| part.starts_with("wait="))
    }

    /// Returns the methods of the endpoint, as in an `Allow` header (rule H-14).
    pub fn allow(&self) -> String {
        let mut methods = vec![];
        for verb in self.methods {
            methods.push(verb.method.as_str());
            if verb.method == Method::GET {
                methods.push("HEAD");
            }
        }
        methods.join(", ")
    }

    /// Returns the endpoint's entry for the method of a request, if there is one.
    pub fn verb(&self, method: &Method) -> Option<&'static Verb<S>> {
        // A HEAD is a GET whose body is left out.
        let wanted = if method == Method::HEAD {
            &Method::GET
        } else {
            method
        };
        self.methods.iter().find(|verb| verb.method == *wanted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a client that varies a query does not fill the memory with copies of one answer.
    #[test]
    fn an_answer_is_kept_under_what_it_depends_on() {
        let named = |query, url: &str| {
            let endpoint: Endpoint<()> = Endpoint {
                path: "/a",
                label: "a",
                query,
                methods: &[],
            };
            let uri: Uri = url.parse().unwrap();
            endpoint.named(&uri).map(ToOwned::to_owned)
        };
        for query in [Query::Ignored, Query::Named, Query::Wait] {
            assert_eq!(named(query, "/a").as_deref(), Some("/a"));
        }
        assert_eq!(named(Query::Ignored, "/a?wait=1").as_deref(), Some("/a"));
        assert_eq!(named(Query::Wait, "/a?wait=1&b").as_deref(), Some("/a"));
        assert_eq!(named(Query::Named, "/a?b").as_deref(), Some("/a?b"));
        assert_eq!(named(Query::Named, "/a?since=1&wait=1"), None);
    }
}
