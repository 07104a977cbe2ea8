//! The router: which endpoint of a table a path leads to.
//!
//! Pure.

use hyper::{Request, body::Incoming};
use simplefeed_core::{feed::FeedName, limits::FEED_NAME_BYTES_MAX};

use super::{
    answers::Answer,
    endpoint::{Endpoint, Params},
    problem::Problem,
};

/// Endpoints, and the parts of the pipeline that depend on them.
#[derive(Debug)]
pub struct EndpointTable<S: 'static> {
    /// The endpoints, in one table for each subject.
    pub endpoints: &'static [&'static [Endpoint<S>]],
    /// Returns whether the cookie of a signed-in reader counts for reads of a path, as a token
    /// would.
    pub takes_cookie: fn(path: &str) -> bool,
    /// Returns a problem as a page for people, if the request was for such a page.
    pub explain: fn(&S, &Request<Incoming>, &Problem) -> Option<Answer>,
}

impl<S> Clone for EndpointTable<S> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<S> Copy for EndpointTable<S> {}

/// Endpoint to which a path leads, with the parameters in the path; `None` if there is no endpoint.
pub(crate) type FoundEndpoint<S> = Option<(&'static Endpoint<S>, Params)>;

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
    // The path without the prefix is tried first, because the prefix may look like a part of an
    // endpoint's path.
    below.and_then(find).or_else(|| find(path))
}

/// Returns the 404 for a path without an endpoint. If the path has an illegal name of a feed, the
/// 404 says so.
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
