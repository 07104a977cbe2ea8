//! Endpoints of the counts view, which exists for tests only: a count, and a stream of the numbers
//! of commits that lasts until the server stops.
//!
//! Shell: the log's announcements.

use std::{convert::identity, future::ready, io, sync::Arc, time::Duration};

use crate::views::counts::CountsView;
use bytes::Bytes;
use futures_util::stream;
use http_body_util::{BodyExt as _, Either, StreamBody};
use hyper::{Method, Response, body::Frame};
use simplefeed_http::{
    endpoint::{Endpoint, Exchange, Needs, Outcome, Query, Representation, Verb},
    problem::Problem,
};
use simplefeed_resource::{Resource, Visibility};

use super::{
    Site,
    pages::section::{Section, SectionPage},
    shelf::Shelf,
};

/// Handles for the counts view.
#[derive(Debug)]
pub struct CountParts {
    /// Feeds, and the rights to them.
    pub shelf: Arc<Shelf>,
    /// The view that counts.
    pub counts: Arc<CountsView>,
}

impl CountParts {
    /// Returns the handles for the endpoints of the view.
    pub(crate) fn of(shelf: Arc<Shelf>, counts: Arc<CountsView>) -> Self {
        Self { shelf, counts }
    }
}

/// Section with the count, on the page of a feed.
#[derive(Debug)]
pub(crate) struct CountSection(pub Arc<CountsView>);

impl Section for CountSection {
    fn html(&self, page: &SectionPage<'_>) -> Option<String> {
        Some(format!("<p>{} counted</p>", self.0.entries(page.feed)))
    }
}

/// Paths of the counts view.
pub(crate) const ENDPOINTS: &[Endpoint<Site>] = &[
    Endpoint {
        path: "/feeds/{feed}/count.txt",
        label: "count",
        query: Query::Ignored,
        methods: &[Verb {
            method: Method::GET,
            needs: Needs::Sight,
            handle: |site, exchange| Box::pin(ready(show_count(&site.counts, &exchange))),
        }],
    },
    Endpoint {
        path: "/feeds/{feed}/counts",
        label: "count",
        query: Query::Ignored,
        methods: &[Verb {
            method: Method::GET,
            needs: Needs::Sight,
            handle: |site, exchange| Box::pin(ready(Ok(stream_counts(&site.counts, &exchange)))),
        }],
    },
];

fn counted_entries(parts: &CountParts, exchange: &Exchange<'_>) -> Option<(Arc<CountsView>, u64)> {
    let head = parts.shelf.log.named(exchange.params.feed()).ok()??;
    let view = Arc::clone(&parts.counts);
    let entries = view.entries(head.feed);
    Some((view, entries))
}

fn show_count(parts: &CountParts, exchange: &Exchange<'_>) -> Result<Outcome, Problem> {
    let (_, entries) =
        counted_entries(parts, exchange).ok_or_else(|| Problem::not_found("no such feed"))?;
    // The next commit may change the count.
    let lasts = Duration::ZERO;
    let resource = Resource::renewed("text/plain", entries.to_string().into(), lasts);
    Ok(Outcome::Shown(Box::new(Representation {
        policy: parts.shelf.lifetimes.of(&resource, Visibility::Public),
        resource,
        visibility: Visibility::Public,
        headers: vec![],
        over: parts.shelf.left_behind(),
        depends_on_reader: false,
    })))
}

/// Sends a line with the number of the newest commit whenever there is a newer one, and ends when
/// the server stops.
fn stream_counts(parts: &CountParts, exchange: &Exchange<'_>) -> Outcome {
    let newest = parts.shelf.log.announcements().newest();
    let stopping = exchange.ending.is_near.clone();
    let lines = stream::unfold((newest, stopping), |(mut newest, mut stopping)| async {
        let commit = tokio::select! {
            changed = newest.changed() => changed.ok().map(|()| newest.borrow().0),
            _ = stopping.wait_for(|stopping| identity(*stopping)) => None,
        };
        let line = Bytes::from(format!("{}\n", commit?));
        Some((Ok::<_, io::Error>(Frame::data(line)), (newest, stopping)))
    });
    let body = StreamBody::new(lines).boxed_unsync();
    Outcome::Answer(Response::new(Either::Right(body)))
}
