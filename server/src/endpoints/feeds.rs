//! Endpoints of a feed: the table of a feed's paths.
//!
//! Pure.

use hyper::Method;
use simplefeed_core::feed::{DocumentName, DocumentNumber, EpochNumber};
use simplefeed_http::{
    access::Right,
    endpoint::{Endpoint, Exchange, Needs, OutcomeFuture, Query, Verb},
};
use simplefeed_views::documents::{pages::PageForm, reading::Address};

use super::{
    Site,
    documents::{entry, json, read, redirect},
    paged::{PageRoom, page},
    publishing, waits,
};
use crate::metrics::DOCUMENT;

/// Handles for documents and pages of feeds, beside the shelf.
#[derive(Debug)]
pub struct FeedParts {
    /// Memory of pages, where each page is made for one reader.
    pub pages: PageRoom,
    /// Whether there are pages for people.
    pub has_pages: bool,
}

/// Paths below a feed.
pub(crate) const ENDPOINTS: &[Endpoint<Site>] = &[
    Endpoint {
        path: "/feeds/{feed}",
        label: "feed",
        query: Query::Ignored,
        methods: &[
            Verb {
                method: Method::GET,
                needs: Needs::Sight,
                handle: |site, exchange| Box::pin(redirect(&site.shelf, exchange)),
            },
            Verb {
                method: Method::POST,
                needs: Needs::Right(Right::Publish),
                handle: |site, exchange| Box::pin(publishing::append(&site.publishing, exchange)),
            },
            Verb {
                method: Method::PUT,
                needs: Needs::Right(Right::Admin),
                handle: |site, exchange| {
                    Box::pin(publishing::configure(&site.publishing, exchange))
                },
            },
        ],
    },
    Endpoint {
        path: "/feeds/{feed}/settings.json",
        label: "settings",
        query: Query::Ignored,
        methods: &[
            Verb {
                method: Method::GET,
                needs: Needs::Right(Right::Publish),
                handle: |site, exchange| Box::pin(publishing::settings(&site.shelf, exchange)),
            },
            Verb {
                method: Method::PUT,
                needs: Needs::Right(Right::Admin),
                handle: |site, exchange| {
                    Box::pin(publishing::change_settings(&site.publishing, exchange))
                },
            },
        ],
    },
    Endpoint {
        path: "/feeds/{feed}/recent.atom",
        label: DOCUMENT,
        query: Query::Wait,
        methods: &[Verb {
            method: Method::GET,
            needs: Needs::Sight,
            handle: |site, exchange| match waits::seconds(exchange.query()) {
                Ok(None) => Box::pin(read(&site.shelf, exchange, |_| Some(Address::Recent))),
                Ok(Some(seconds)) => Box::pin(waits::recent(&site.waits, exchange, seconds)),
                Err(problem) => Box::pin(async { Err(problem) }),
            },
        }],
    },
    Endpoint {
        path: "/feeds/{feed}/{document}.atom",
        label: DOCUMENT,
        query: Query::Ignored,
        methods: &[Verb {
            method: Method::GET,
            needs: Needs::Sight,
            handle: |site, exchange| {
                let address = |number| document_name(number).map(Address::Document);
                Box::pin(read(&site.shelf, exchange, address))
            },
        }],
    },
    Endpoint {
        path: "/feeds/{feed}/recent.json",
        label: "json-feed",
        query: Query::Ignored,
        methods: &[Verb {
            method: Method::GET,
            needs: Needs::Sight,
            handle: |site, exchange| {
                Box::pin(json(&site.shelf, exchange, |_| Some(Address::Recent)))
            },
        }],
    },
    Endpoint {
        path: "/feeds/{feed}/{document}.json",
        label: "json-feed",
        query: Query::Ignored,
        methods: &[Verb {
            method: Method::GET,
            needs: Needs::Sight,
            handle: |site, exchange| {
                let address = |number| document_name(number).map(Address::Document);
                Box::pin(json(&site.shelf, exchange, address))
            },
        }],
    },
    Endpoint {
        path: "/feeds/{feed}/entries/{position}.atom",
        label: "entry",
        query: Query::Ignored,
        methods: &[Verb {
            method: Method::GET,
            needs: Needs::Sight,
            handle: |site, exchange| {
                let address = |number: Option<EpochNumber>| number.map(Address::Entry);
                Box::pin(read(&site.shelf, exchange, address))
            },
        }],
    },
    Endpoint {
        path: "/feeds/{feed}/entries/{position}",
        label: "entry",
        query: Query::Ignored,
        methods: &[Verb {
            method: Method::GET,
            needs: Needs::Sight,
            handle: |site, exchange| Box::pin(entry((&site.shelf, site.feeds.has_pages), exchange)),
        }],
    },
    Endpoint {
        path: "/feeds/{feed}/page.atom",
        label: "page",
        query: Query::Named,
        methods: &[Verb {
            method: Method::GET,
            needs: Needs::Sight,
            handle: |site, exchange| show_page(site, exchange, PageForm::Atom),
        }],
    },
    Endpoint {
        path: "/feeds/{feed}/page.json",
        label: "page",
        query: Query::Named,
        methods: &[Verb {
            method: Method::GET,
            needs: Needs::Sight,
            handle: |site, exchange| show_page(site, exchange, PageForm::Json),
        }],
    },
    Endpoint {
        path: "/feeds/{feed}/index.json",
        label: "index",
        query: Query::Ignored,
        methods: &[Verb {
            method: Method::GET,
            needs: Needs::Sight,
            handle: |site, exchange| {
                Box::pin(read(&site.shelf, exchange, |_| Some(Address::Index)))
            },
        }],
    },
    Endpoint {
        path: "/feeds/{feed}/index-{block}.json",
        label: "index",
        query: Query::Ignored,
        methods: &[Verb {
            method: Method::GET,
            needs: Needs::Sight,
            handle: |site, exchange| {
                let address = |number: Option<EpochNumber>| number.map(Address::IndexBlock);
                Box::pin(read(&site.shelf, exchange, address))
            },
        }],
    },
];

/// Shows a page of a feed in the given form.
fn show_page<'r>(site: &'r Site, exchange: Exchange<'r>, form: PageForm) -> OutcomeFuture<'r> {
    Box::pin(page((&site.shelf, &site.feeds.pages), exchange, form))
}

fn document_name(number: Option<EpochNumber>) -> Option<DocumentName> {
    let EpochNumber { number, epoch } = number?;
    let number = DocumentNumber::new(number)?;
    Some(DocumentName { number, epoch })
}
