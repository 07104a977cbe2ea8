//! Pages for people, below `/ui/`.
//!
//! Shell: the clock. Each page is made for one reader, and nobody keeps the page. Templates escape
//! the texts that they show. The content policy of the pages lets only our own script run, and lets
//! no request leave for another origin.

use std::sync::{Arc, LazyLock};

use askama::Template;
use bytes::Bytes;
use hyper::{
    Method, Request, StatusCode,
    body::Incoming,
    header::{
        AUTHORIZATION, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName,
        HeaderValue, LOCATION, REFERRER_POLICY, WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS,
        X_FRAME_OPTIONS,
    },
};
use simplefeed_core::timestamp::Timestamp;
use simplefeed_http::{
    answers::{Answer, header_value, plain, whole},
    cookie::Cookie,
    endpoint::{Endpoint, Exchange, Needs, Outcome, Query, Representation, Verb},
    problem::Problem,
    reply::NO_STORE,
};
use simplefeed_resource::{Resource, Validity, Visibility};
use simplefeed_views::{Views, error::ViewError, rates::RatesView};
use tokio::sync::Semaphore;
use url::Url;

use super::{Handles, SharedBounds, Site, paged::PageRoom, shelf::Shelf, without_slash};
use crate::{
    config::{Config, Ui},
    metrics::Metrics,
    views::ServedViews,
};

mod content;
mod documents;
mod entry;
mod feed;
mod feeds;
mod markup;
mod moment;
mod over_time;
mod plot;
mod ranking;
pub mod section;
mod server;
mod signing;

use over_time::OverTimeSection;
pub use ranking::Ranking;
use section::{Section, SectionPage};

/// Style sheet of all pages, and the script of pages with live rows. Their URLs change with their
/// bytes.
const STYLE: &str = include_str!("../../assets/style.css");
const SCRIPT: &str = include_str!("../../assets/script.js");
static STYLE_NUMBER: LazyLock<u64> = LazyLock::new(|| number_of(STYLE));
static SCRIPT_NUMBER: LazyLock<u64> = LazyLock::new(|| number_of(SCRIPT));

/// Maximum number of searches through all names at the same time.
pub(crate) const SEARCHES_MAX: usize = 2;

/// Cache policy for an asset, whose URL names its bytes.
const IMMUTABLE: HeaderValue = HeaderValue::from_static("public, max-age=31536000, immutable");
/// Policy for the content of a page: nothing is loaded from elsewhere, and no script or style in
/// the page itself counts.
const CONTENT_POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src data:; form-action 'self'; \
     base-uri 'none'; frame-ancestors 'none'",
);
const HTML: &str = "text/html;charset=utf-8";

/// Makes the row of a page: the path, the meaning of a query, and a handler for each method.
macro_rules! page {
    ($path:literal, $query:ident, $($method:ident => $handle:expr),+) => {
        Endpoint {
            path: $path,
            label: "ui",
            query: Query::$query,
            methods: &[$(Verb {
                method: Method::$method,
                needs: Needs::Sight,
                handle: $handle,
            }),+],
        }
    };
}

/// Handles for pages for people.
#[derive(Debug)]
pub struct PageParts {
    /// Whether there are pages for people.
    pub is_on: bool,
    /// Feeds, and the rights to them.
    pub shelf: Arc<Shelf>,
    /// Counts of entries, for the list of feeds.
    pub rates: Arc<RatesView>,
    /// Sections of the page of a feed.
    pub sections: Arc<[Box<dyn Section>]>,
    /// Memory of pages, where each page is made for one reader.
    pub pages: PageRoom,
    /// Feeds in orders other than by name.
    pub ranking: Arc<Ranking>,
    /// Permits for searches through all names, one for each search that may run at the same time.
    pub searches: Arc<Semaphore>,
    /// Cookie of readers who have signed in.
    pub cookie: Cookie,
    /// Path of the public URL, without a slash at the end.
    pub prefix: String,
    /// Origin of the public URL, as browsers write it.
    pub origin: String,
    /// Views, with the progress of their followers.
    pub views: Views,
    /// Counters, of open connections among others.
    pub metrics: Arc<Metrics>,
}

impl PageParts {
    /// Returns the handles of a server whose public URL is `public_url`.
    pub(super) fn of(
        config: &Config,
        public_url: &Url,
        handles: &Handles,
        shelf: &Arc<Shelf>,
        shared: &SharedBounds,
    ) -> Self {
        Self {
            is_on: config.ui == Ui::On,
            shelf: Arc::clone(shelf),
            rates: Arc::clone(&handles.views.files.rates),
            sections: sections_of(&handles.views),
            pages: shared.pages.clone(),
            ranking: Arc::default(),
            searches: Arc::clone(&shared.searches),
            cookie: Cookie::of(public_url),
            prefix: without_slash(public_url.path()),
            origin: public_url.origin().ascii_serialization(),
            views: handles.followed.clone(),
            metrics: Arc::clone(&handles.metrics),
        }
    }
}

/// Returns the sections of a server with these views, in the order in which a page shows them.
fn sections_of(views: &ServedViews) -> Arc<[Box<dyn Section>]> {
    Arc::new([
        Box::new(OverTimeSection(Arc::clone(&views.files.rates))),
        #[cfg(test)]
        Box::new(super::counts::CountSection(views.files.counts.clone())),
    ])
}

/// Endpoints of the pages for people, with their style sheet and their script.
pub(crate) const ENDPOINTS: &[Endpoint<Site>] = &[
    page!("/", Ignored, GET => |_, _| Box::pin(async { Ok(redirect_to("ui/")) })),
    page!("/ui", Ignored, GET => |_, _| Box::pin(async { Ok(redirect_to("ui/")) })),
    page!("/ui/", Named, GET => |site, exchange| Box::pin(feeds::show(&site.pages, exchange))),
    page!("/ui/feeds/{feed}", Named, GET => |site, exchange| Box::pin(feed::show(&site.pages, exchange))),
    page!("/ui/feeds/{feed}/documents", Named,
        GET => |site, exchange| Box::pin(documents::show(&site.pages, exchange))),
    page!("/ui/feeds/{feed}/{position}", Ignored,
        GET => |site, exchange| Box::pin(entry::show(&site.pages, exchange))),
    page!("/ui/server", Ignored, GET => |site, exchange| Box::pin(server::show(&site.pages, exchange))),
    page!("/ui/sign-in", Ignored,
        GET => |_, exchange| { let form = signing::form(&exchange); Box::pin(async { form }) },
        POST => |site, exchange| Box::pin(signing::sign_in(&site.pages, exchange))),
    page!("/ui/sign-out", Ignored,
        POST => |site, exchange| { let out = signing::sign_out(&site.pages, &exchange); Box::pin(async { out }) }),
    page!("/ui/style-{version}.css", Ignored, GET => |_, exchange| {
        let asset = find_asset(&exchange, *STYLE_NUMBER, "text/css;charset=utf-8", STYLE);
        Box::pin(async { asset })
    }),
    page!("/ui/script-{version}.js", Ignored, GET => |_, exchange| {
        let asset = find_asset(&exchange, *SCRIPT_NUMBER, "text/javascript;charset=utf-8", SCRIPT);
        Box::pin(async { asset })
    }),
];

/// Returns whether a path is that of a page. The path must not contain the path of the public URL.
pub(crate) fn is_below(path: &str) -> bool {
    path.starts_with("/ui/")
}

/// Parts of every page.
#[derive(Debug)]
struct Top {
    /// URL of `/ui/`, relative to the URL of this page.
    ui: &'static str,
    style: String,
    script: String,
    version: &'static str,
    has_tokens: bool,
    is_signed_in: bool,
}

impl Top {
    /// Returns the parts of a page whose path has `depth` slashes behind `/ui/`.
    fn of_exchange(exchange: &Exchange<'_>, depth: usize) -> Self {
        Self {
            has_tokens: exchange.access.has_tokens(),
            is_signed_in: exchange.headers.contains_key(AUTHORIZATION)
                && exchange.access.knows_caller(exchange.headers).is_ok(),
            ..Self::of_depth(depth)
        }
    }

    fn of_depth(depth: usize) -> Self {
        Self {
            ui: match depth {
                0 => "./",
                1 => "../",
                2 => "../../",
                3 => "../../../",
                // No page is so deep. Where a problem is shown deeper still, the links lead to no
                // page.
                _ => "../../../../",
            },
            style: format!("style-{}.css", *STYLE_NUMBER),
            script: format!("script-{}.js", *SCRIPT_NUMBER),
            version: env!("CARGO_PKG_VERSION"),
            has_tokens: false,
            is_signed_in: false,
        }
    }
}

/// Returns the number by which a URL names some bytes: their CRC-32 plus 1, which is never 0.
fn number_of(text: &str) -> u64 {
    u64::from(crc32fast::hash(text.as_bytes())) + 1
}

/// Returns a redirect to a relative URL.
fn redirect_to(location: &str) -> Outcome {
    let mut answer = plain(StatusCode::TEMPORARY_REDIRECT, "");
    answer
        .headers_mut()
        .insert(LOCATION, header_value(location));
    Outcome::Answer(answer)
}

/// Returns an asset, if the URL names the asset's bytes.
fn find_asset(
    exchange: &Exchange<'_>,
    number: u64,
    media_type: &'static str,
    text: &'static str,
) -> Result<Outcome, Problem> {
    let asked = exchange.params.number().map(|asked| asked.number);
    // Caches keep an asset for ever, so no URL may answer with other bytes.
    if asked != Some(number) {
        return Err(Problem::not_found(
            "the page that names this is of another version",
        ));
    }
    let bytes = Bytes::from_static(text.as_bytes());
    let resource = Resource::of_bytes(media_type, None, Validity::Once, bytes);
    Ok(Outcome::Shown(Box::new(Representation {
        policy: IMMUTABLE,
        resource,
        visibility: Visibility::Public,
        headers: vec![],
        over: 0,
        depends_on_reader: false,
    })))
}

/// Header fields of a page.
fn page_fields() -> Vec<(HeaderName, HeaderValue)> {
    vec![
        (CONTENT_SECURITY_POLICY, CONTENT_POLICY),
        (X_FRAME_OPTIONS, HeaderValue::from_static("DENY")),
        // Other sites must not see the URL of a page, because it names a feed.
        (REFERRER_POLICY, HeaderValue::from_static("same-origin")),
    ]
}

/// Returns a page for one reader alone.
fn private_page(html: String) -> Outcome {
    let resource = Resource::of_bytes(HTML, None, Validity::Once, html.into());
    Outcome::Shown(Box::new(Representation {
        policy: NO_STORE,
        resource,
        // A private page lacks the fields that let scripts of other sites read it.
        visibility: Visibility::Private,
        headers: page_fields(),
        over: 0,
        depends_on_reader: true,
    }))
}

/// Returns the text of a page.
fn render_page(template: &impl Template) -> Result<String, Problem> {
    template.render().map_err(|error| {
        tracing::error!(%error, "a page cannot be made");
        Problem::internal()
    })
}

/// Returns a complete answer with a page.
fn page_answer(status: StatusCode, template: &impl Template) -> Result<Answer, Problem> {
    let mut answer = Answer::new(whole(render_page(template)?));
    *answer.status_mut() = status;
    let headers = answer.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(HTML));
    headers.insert(CACHE_CONTROL, NO_STORE);
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.extend(page_fields());
    Ok(answer)
}

#[derive(Template)]
#[template(path = "problem.html")]
struct ProblemPage {
    top: Top,
    status: StatusCode,
    detail: String,
    near: Vec<String>,
    wants_token: bool,
}

/// Returns a problem as a page, if the request was for a page.
pub fn explain(site: &Site, request: &Request<Incoming>, problem: &Problem) -> Option<Answer> {
    let path = request.uri().path();
    // Some proxies pass a path on with the path of the public URL before it, and some without.
    let below = path.strip_prefix(&site.pages.prefix);
    let path = below.filter(|path| is_below(path)).unwrap_or(path);
    let rest = path.strip_prefix("/ui/").filter(|_| site.pages.is_on)?;
    let status = problem.status();
    let feed = rest
        .strip_prefix("feeds/")
        .and_then(|rest| rest.split('/').next());
    let near = match feed {
        Some(feed) if status == StatusCode::NOT_FOUND => site.pages.shelf.catalogue.near(feed),
        _ => vec![],
    };
    let is_refused = [StatusCode::UNAUTHORIZED, StatusCode::FORBIDDEN].contains(&status);
    let page = ProblemPage {
        top: Top::of_depth(rest.matches('/').count()),
        status,
        detail: problem.detail().into(),
        near: near.iter().map(ToString::to_string).collect(),
        // For a reader without the right, a closed feed is a 404, so a token may help there, too.
        wants_token: is_refused || status == StatusCode::NOT_FOUND,
    };
    let mut answer = page_answer(status, &page).ok()?;
    if status == StatusCode::UNAUTHORIZED {
        // A 401 must have a challenge (RFC 9110, 15.5.2).
        let challenge = HeaderValue::from_static("Bearer realm=\"simplefeed\"");
        answer.headers_mut().insert(WWW_AUTHENTICATE, challenge);
    }
    Some(answer)
}

/// Returns counts, or `None` if they cannot be read. The error is logged, and the page does without
/// the plot.
fn logged_none<T>(read: Result<Option<T>, ViewError>) -> Option<T> {
    read.unwrap_or_else(|unreadable| {
        let error: &(dyn std::error::Error + 'static) = &unreadable;
        tracing::error!(error, "counts cannot be read");
        None
    })
}

/// Returns the value of a field in a query or a form, decoded.
fn field_value(query: &str, name: &str) -> Option<String> {
    let pairs = url::form_urlencoded::parse(query.as_bytes());
    let mut values = pairs.filter(|(key, _)| key == name);
    values.next().map(|(_, value)| value.trim().to_owned())
}

/// Handles of the log, the timelines and the counts, and the time, for one page.
#[derive(Clone, Debug)]
struct PageReading {
    shelf: Arc<Shelf>,
    rates: Arc<RatesView>,
    sections: Arc<[Box<dyn Section>]>,
    now: Timestamp,
}

impl PageReading {
    fn of_parts(parts: &PageParts) -> Self {
        Self {
            shelf: Arc::clone(&parts.shelf),
            rates: Arc::clone(&parts.rates),
            sections: Arc::clone(&parts.sections),
            now: parts.shelf.clock.now(),
        }
    }

    /// Returns the HTML of all sections that have something to show.
    fn sections_of(&self, page: &SectionPage<'_>) -> Vec<String> {
        let sections = self.sections.iter();
        sections.filter_map(|section| section.html(page)).collect()
    }
}
