//! SUP documents for readers.
//!
//! Shell: the view's windows, the clock, and documents kept in memory. [`Sup`] decides the content
//! of a document about feeds, and [`TimelineUpdates`] that of a document about timelines. The
//! [`Watermark`] decides the last second of a document.
//!
//! A document ends with a second that is over: readers see every commit of that second, the view
//! has applied each of them, and no later commit gets that second (rule SUP-P5).

use std::{collections::HashMap, sync::Arc, time::Duration};

use bytes::Bytes;
use hyper::{Method, header::LINK};
use parking_lot::Mutex;
use simplefeed_core::{
    feed::{EpochNumber, FeedKey},
    push::WAIT_REL,
    sup::{Heading, SUP_TYPE, SupId},
    timestamp::Timestamp,
};
use simplefeed_http::{
    answers::{denied_answer, header_value},
    endpoint::{Endpoint, Exchange, Needs, Outcome, Query, Representation, Verb},
    problem::Problem,
    reply::Lifetimes,
    router::nothing_at,
};
use simplefeed_log::{LogError, watermark::Watermark};
use simplefeed_process::{clock::Clock, workers::idle};
use simplefeed_resource::{Resource, Validity, Visibility};
use simplefeed_views::{
    error::ViewError,
    shown::ShownLog,
    sup::{
        PACE, Sup,
        updates::TimelineUpdates,
        windows::{Current, SupSubject, document_name, file_name},
    },
};
use tokio::{
    sync::Semaphore,
    time::{Instant, sleep, sleep_until},
};
use url::Url;

use super::{
    Handles, Site, may_see_row, off_thread, shelf::Shelf, waits, waits::WaitPlaces, without_slash,
};
use crate::config::Config;

/// Subject of a document, and its readers.
type DocumentKind = (SupSubject, Visibility);

const FEEDS: DocumentKind = (SupSubject::Feeds, Visibility::Public);
const CLOSED_FEEDS: DocumentKind = (SupSubject::Feeds, Visibility::Private);
const TIMELINES: DocumentKind = (SupSubject::Timelines, Visibility::Public);
const CLOSED_TIMELINES: DocumentKind = (SupSubject::Timelines, Visibility::Private);

/// Handles for updates of feeds and timelines.
#[derive(Debug)]
pub struct SupParts {
    /// Feeds, and the rights to them.
    pub shelf: Arc<Shelf>,
    /// Documents; `None` if the server offers none.
    pub updates: Option<Arc<SupUpdates>>,
    /// Places for readers that wait.
    pub parking: WaitPlaces,
}

/// Paths of SUP documents: the current ones, and archived windows.
pub(crate) const ENDPOINTS: &[Endpoint<Site>] = &[
    Endpoint {
        path: "/sup.json",
        label: "sup",
        query: Query::Named,
        methods: &[Verb {
            method: Method::GET,
            needs: Needs::Sight,
            handle: |site, exchange| Box::pin(show_updates(&site.sup, exchange, FEEDS)),
        }],
    },
    Endpoint {
        path: "/sup/{window}.json",
        label: "sup",
        query: Query::Ignored,
        methods: &[Verb {
            method: Method::GET,
            needs: Needs::Sight,
            handle: |site, exchange| Box::pin(show_updates(&site.sup, exchange, FEEDS)),
        }],
    },
    Endpoint {
        path: "/sup-closed.json",
        label: "sup",
        query: Query::Named,
        methods: &[Verb {
            method: Method::GET,
            needs: Needs::KnownCaller,
            handle: |site, exchange| Box::pin(show_updates(&site.sup, exchange, CLOSED_FEEDS)),
        }],
    },
    Endpoint {
        path: "/sup-timelines.json",
        label: "sup",
        query: Query::Named,
        methods: &[Verb {
            method: Method::GET,
            needs: Needs::Sight,
            handle: |site, exchange| Box::pin(show_updates(&site.sup, exchange, TIMELINES)),
        }],
    },
    Endpoint {
        path: "/sup-timelines-closed.json",
        label: "sup",
        query: Query::Named,
        methods: &[Verb {
            method: Method::GET,
            needs: Needs::KnownCaller,
            handle: |site, exchange| Box::pin(show_updates(&site.sup, exchange, CLOSED_TIMELINES)),
        }],
    },
    Endpoint {
        path: "/sup-closed/{window}.json",
        label: "sup",
        query: Query::Ignored,
        methods: &[Verb {
            method: Method::GET,
            needs: Needs::KnownCaller,
            handle: |site, exchange| Box::pin(show_updates(&site.sup, exchange, CLOSED_FEEDS)),
        }],
    },
];

/// Number of renderings of a small document in one period of at least two minutes.
const FRESH_PART: u32 = 60;
/// For each such number of bytes, a document is kept a second longer, up to `FRESH_LARGE` seconds.
/// Rendering so many bytes takes a quarter of a second, compressing them half a second.
const BYTES_A_SECOND: usize = 25_000_000;
const FRESH_LARGE: u32 = 10;
/// Time until the views have applied the last commits of a second that is over.
const LAG: Duration = PACE.saturating_add(Duration::from_millis(10));
/// Pause after a commit. After this pause, a document may tell of the commit.
const SECOND_AND_LAG: Duration = LAG.saturating_add(Duration::from_secs(1));
/// Seconds of the wait to which documents link: fewer than a client waits for an answer.
const SUP_WAIT: u64 = 15;
/// Shortest time for which a document is kept.
const FRESH_MIN: Duration = Duration::from_millis(200);

/// Decides whether a reader may see the updates of a feed.
pub(crate) type SightCheck<'a> = &'a dyn Fn(FeedKey) -> Result<bool, LogError>;

/// SUP document for one reader, or for everybody.
#[derive(Clone, Debug)]
pub(crate) struct SupResource {
    /// Document with its validators and its lifetime.
    pub resource: Resource,
    /// URL of the archived document before this one, relative to the URL of this one; `None` if
    /// there is no such document.
    pub previous: Option<String>,
    /// Seconds that a current document tells of; `None` for an archived one.
    pub span: Option<SecondSpan>,
}

/// Seconds that a document tells of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SecondSpan {
    /// First second of the window.
    pub since: i64,
    /// Last second of the window.
    pub until: i64,
    /// Second of the last update in the window.
    pub newest: Option<i64>,
}

impl SecondSpan {
    /// Returns whether there may be updates later than a second.
    fn tells_after(&self, second: i64) -> bool {
        // Updates between that second and this window would be in archived documents only.
        second < self.since - 1 || self.newest.is_some_and(|newest| newest > second)
    }
}

/// Meaning of a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SupQuery {
    period: u32,
    wait: Option<Wait>,
}

/// A wait for updates later than a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Wait {
    seconds: u64,
    since: i64,
}

/// SUP documents by their periods, in seconds.
type RenderedDocuments = HashMap<u32, SupResource>;

/// Source of SUP documents: one for each period, and the archived windows.
pub struct SupUpdates {
    log: Arc<dyn ShownLog>,
    view: Arc<Sup>,
    timelines: Arc<TimelineUpdates>,
    watermark: Arc<Watermark>,
    /// Offered periods, in seconds, the default one first.
    periods: Vec<u32>,
    public_url: String,
    clock: Clock,
    /// Last public documents about feeds, and about timelines. They are kept, because a document
    /// about many feeds takes a while to make.
    rendered: [Mutex<RenderedDocuments>; 2],
    /// One permit, held while a document is made for a reader who may see closed feeds.
    turn: Arc<Semaphore>,
}

impl std::fmt::Debug for SupUpdates {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Updates").finish_non_exhaustive()
    }
}

impl SupUpdates {
    /// Returns the documents of both views of a server, if the server offers any.
    pub(super) fn of(config: &Config, public_url: &Url, handles: &Handles) -> Option<Arc<Self>> {
        let view = handles.views.files.sup.as_ref()?;
        let timelines = handles.views.updates.as_ref()?;
        Some(Arc::new(Self {
            log: Arc::clone(&handles.shown),
            view: Arc::clone(view),
            timelines: Arc::clone(timelines),
            watermark: Arc::clone(&handles.watermark),
            periods: config.sup_periods.to_vec(),
            public_url: without_slash(public_url.as_str()),
            clock: handles.clock.clone(),
            rendered: Default::default(),
            turn: Arc::new(Semaphore::new(1)),
        }))
    }

    /// Returns the offered periods, in seconds, the default one first.
    pub(crate) fn periods(&self) -> &[u32] {
        &self.periods
    }

    /// Returns the public document of a period. `None` while the commits from before the start are
    /// being read, or if no second could be published yet.
    pub(crate) fn public(&self, subject: SupSubject, period: u32) -> Option<SupResource> {
        if let Some(made) = self.public_at_once(subject, period) {
            return Some(made);
        }
        // The lock is held while the document is made, so that parallel requests wait, and share
        // the document.
        let mut kept = self.rendered_documents(subject).lock();
        if let Some(made) = fresh_document(&kept, period) {
            return Some(made);
        }
        let told = (subject, Visibility::Public);
        let current = self.current_window(told, period, true)?;
        let updates: Vec<(SupId, i64)> = current
            .updates
            .iter()
            .map(|(_, id, second)| (*id, *second))
            .collect();
        let made = self.resource_of(told, period, &current, &updates);
        kept.insert(period, made.clone());
        Some(made)
    }

    /// Returns the public document of a period if a fresh one is in memory. Never waits.
    pub(crate) fn public_at_once(&self, subject: SupSubject, period: u32) -> Option<SupResource> {
        // If the lock is taken, another thread makes the document. This thread serves connections,
        // so it must not wait.
        let kept = self.rendered_documents(subject).try_lock()?;
        fresh_document(&kept, period)
    }

    /// Returns the document of a period about feeds that are or were closed, limited to those that
    /// `shows` allows; `None` as in [`public`](Self::public). A stranger sees no closed timeline,
    /// so for a stranger no timeline is looked up.
    ///
    /// # Errors
    ///
    /// Returns why the log cannot be read.
    pub(crate) fn private(
        &self,
        subject: SupSubject,
        period: u32,
        is_stranger: bool,
        shows: SightCheck<'_>,
    ) -> Result<Option<SupResource>, LogError> {
        let told = (subject, Visibility::Private);
        let has_updates = !(is_stranger && subject == SupSubject::Timelines);
        let Some(current) = self.current_window(told, period, has_updates) else {
            return Ok(None);
        };
        // The view's state is not locked here, because `shows` reads the log.
        let mut updates = vec![];
        for (feed, id, second) in &current.updates {
            if shows(*feed)? {
                updates.push((*id, *second));
            }
        }
        Ok(Some(self.resource_of(told, period, &current, &updates)))
    }

    fn resource_of(
        &self,
        (subject, visibility): DocumentKind,
        period: u32,
        current: &Current,
        updates: &[(SupId, i64)],
    ) -> SupResource {
        let name = document_name(subject, visibility);
        let periods = self.periods.iter().map(|seconds| {
            let url = format!("{}/{name}.json?seconds={seconds}", self.public_url);
            (*seconds, url)
        });
        let periods: Vec<(u32, String)> = periods.collect();
        let previous = current
            .previous
            .map(|window| format!("{name}/{}", file_name(window)));
        let heading = Heading {
            updated: current.until,
            since: current.since,
            period: i64::from(period),
            periods: &periods,
            prev_archive: previous.as_deref(),
        };
        let document: Bytes = heading.document(updates).into();
        let resource = match visibility {
            Visibility::Public => {
                let lasts = time_to_live(self.clock.now(), current.until, period, document.len());
                Resource::renewed(SUP_TYPE, document, lasts)
            }
            Visibility::Private => for_one_reader(document),
        };
        let span = Some(SecondSpan {
            since: current.since,
            until: current.until,
            newest: updates.iter().map(|(_, second)| *second).max(),
        });
        SupResource {
            resource,
            previous,
            span,
        }
    }

    /// Returns the current window of a document, or `None` while the view has not applied every
    /// commit from before the start, or if no second could be published yet.
    fn current_window(
        &self,
        (subject, visibility): DocumentKind,
        period: u32,
        has_updates: bool,
    ) -> Option<Current> {
        let published = |newest| self.watermark.publish(self.clock.now(), newest);
        let log = &*self.log;
        match subject {
            SupSubject::Feeds => self.view.current(log, visibility, period, published),
            SupSubject::Timelines => {
                self.timelines
                    .current(log, visibility, period, has_updates, published)
            }
        }
    }

    /// Returns the archived document of that name, if there is one. `shows` limits a document about
    /// closed feeds.
    ///
    /// # Errors
    ///
    /// See [`ViewError`].
    pub(crate) fn archived(
        &self,
        visibility: Visibility,
        name: EpochNumber,
        shows: SightCheck<'_>,
    ) -> Result<Option<SupResource>, ViewError> {
        let record = self.view.files().record(visibility, name.number)?;
        // A window of another epoch may have the same number.
        let Some(record) = record.filter(|record| record.name == name) else {
            return Ok(None);
        };
        let modified = Timestamp::from_micros(record.until * 1_000_000);
        let before = match name.number.checked_sub(1) {
            Some(before) => self.view.files().record(visibility, before)?,
            None => None,
        };
        let previous = before.map(|before| file_name(before.name));
        let resource = match visibility {
            Visibility::Public => {
                let (bytes, twin) = self.view.files().document(&record)?;
                Resource::frozen(SUP_TYPE, modified, bytes, twin)
            }
            Visibility::Private => {
                // This document depends on the reader's rights, so the bytes are never final.
                let mut window = self.view.files().window(&record)?;
                let mut made = vec![];
                for update in window.updates {
                    if shows(update.0)? {
                        made.push(update);
                    }
                }
                window.updates = made;
                for_one_reader(window.document(|_| true).into())
            }
        };
        Ok(Some(SupResource {
            resource,
            previous,
            span: None,
        }))
    }

    fn rendered_documents(&self, subject: SupSubject) -> &Mutex<RenderedDocuments> {
        let [feeds, timelines] = &self.rendered;
        match subject {
            SupSubject::Feeds => feeds,
            SupSubject::Timelines => timelines,
        }
    }
}

/// Shows a SUP document: the current one of a period, or an archived window.
async fn show_updates(
    parts: &SupParts,
    exchange: Exchange<'_>,
    told: DocumentKind,
) -> Result<Outcome, Problem> {
    let nothing = || nothing_at(exchange.uri.path());
    let updates = parts.updates.as_ref().ok_or_else(nothing)?;
    let periods = updates.periods();
    // A window has no query. The default period sets the lifetime of a window that is made for one
    // reader.
    let asked = match exchange.params.number() {
        None => parse_query(exchange.query(), periods)?,
        Some(_) => parse_query("", periods)?,
    };
    let Some(wait) = asked.wait else {
        let (shown, _) = look_up(parts, updates, &exchange, told, asked.period).await?;
        return Ok(Outcome::Shown(Box::new(shown)));
    };
    // Without a free place to wait, the request is answered at once, as a poll is.
    let place = parts.parking.place();
    let deadline = Instant::now() + Duration::from_secs(wait.seconds);
    let mut stopping = exchange.ending.is_near.clone();
    // The receiver is made before the lookup, so that a commit that the lookup misses wakes this
    // task.
    let mut commits = parts.shelf.log.announcements().newest();
    loop {
        commits.mark_unchanged();
        // The token may have been revoked during the wait.
        if let (_, Visibility::Private) = told
            && let Err(denied) = exchange.rules.now().knows_caller(exchange.headers)
        {
            return Ok(Outcome::Answer(denied_answer(denied)));
        }
        let (shown, span) = look_up(parts, updates, &exchange, told, asked.period).await?;
        let is_answer = span.is_none_or(|span| span.tells_after(wait.since));
        if is_answer || place.is_none() || deadline <= Instant::now() || *stopping.borrow() {
            return Ok(Outcome::Waited(Box::new(shown)));
        }
        // A document tells of a commit only once the commit's second is over, because more commits
        // may come in that second. If such a commit is there, this task waits for no other commit,
        // but only for time to pass.
        let is_untold = span.is_some_and(|span| parts.shelf.log.head().last.second() > span.until);
        let next = async {
            if !is_untold {
                let _ended = commits.changed().await;
            }
            sleep(SECOND_AND_LAG).await;
        };
        idle(async {
            tokio::select! {
                () = next => {}
                () = sleep_until(deadline) => {}
                _ = stopping.wait_for(|stopping| *stopping) => {}
            }
        })
        .await;
    }
}

/// Returns the SUP document that a request asks for, with the links, and the seconds that a current
/// document tells of.
async fn look_up(
    parts: &SupParts,
    updates: &Arc<SupUpdates>,
    exchange: &Exchange<'_>,
    told: DocumentKind,
    period: u32,
) -> Result<(Representation, Option<SecondSpan>), Problem> {
    let (_, visibility) = told;
    let window = exchange.params.number();
    // Read before the lookup, so that a commit that the lookup misses lies in a later second.
    let over = parts.shelf.left_behind();
    let found = document_for(parts, updates, exchange, told, period).await?;
    let SupResource {
        resource,
        previous,
        span,
    } = found.ok_or_else(|| match window {
        Some(_) => nothing_at(exchange.uri.path()),
        None => Problem::unavailable(
            "updates cannot be told yet: commits are being read, or the disk takes nothing",
        ),
    })?;
    let policy = if resource.is_final() {
        parts.shelf.lifetimes.of(&resource, visibility)
    } else {
        Lifetimes::polled(period, visibility)
    };
    let mut links = vec![];
    if let Some(previous) = previous {
        links.push(format!("<{previous}>; rel=\"prev-archive\""));
    }
    if let (None, Some(span)) = (window, span) {
        // The link leads to a wait for updates that are later than this document.
        let name = exchange.uri.path().rsplit('/').next().unwrap_or_default();
        let since = span.until;
        links.push(format!(
            "<{name}?seconds={period}&since={since}&wait={SUP_WAIT}>; rel=\"{WAIT_REL}\""
        ));
    }
    let headers = links.iter().map(|link| (LINK, header_value(link)));
    let shown = Representation {
        headers: headers.collect(),
        resource,
        visibility,
        policy,
        over,
        depends_on_reader: visibility == Visibility::Private,
    };
    Ok((shown, span))
}

/// Returns the SUP document that a request asks for, if there is one.
async fn document_for(
    parts: &SupParts,
    updates: &Arc<SupUpdates>,
    exchange: &Exchange<'_>,
    (subject, visibility): DocumentKind,
    period: u32,
) -> Result<Option<SupResource>, Problem> {
    let window = exchange.params.number();
    // The usual request is answered from memory, without a thread.
    if (visibility, window) == (Visibility::Public, None)
        && let Some(document) = updates.public_at_once(subject, period)
    {
        return Ok(Some(document));
    }
    let sight = exchange.rules.now().sight(exchange.headers);
    // Documents for readers who may see closed feeds are made one at a time. A document for another
    // reader is cheap, and does not queue.
    let turn = if visibility == Visibility::Private && !sight.is_none() {
        Some(Arc::clone(&updates.turn).acquire_owned().await)
    } else {
        None
    };
    let updates = Arc::clone(updates);
    let timelines = Arc::clone(&parts.shelf.timelines);
    let catalogue = Arc::clone(&parts.shelf.catalogue);
    off_thread(move || {
        // The work holds the turn, and not the request, because the work goes on when the reader is
        // gone.
        let _turn = turn;
        let shows = |feed| match catalogue.row(feed)? {
            Some(row) => may_see_row(&timelines, &row, &sight),
            None => Ok(false),
        };
        match (visibility, window) {
            (_, Some(name)) => updates.archived(visibility, name, &shows),
            (Visibility::Public, None) => Ok(updates.public(subject, period)),
            (Visibility::Private, None) => {
                Ok(updates.private(subject, period, sight.is_none(), &shows)?)
            }
        }
    })
    .await
}

/// Returns the meaning of a query: a period (rule SUP-P4), and a wait if the query asks for one.
/// Without a period in the query, the first of `periods` counts.
fn parse_query(query: &str, periods: &[u32]) -> Result<SupQuery, Problem> {
    let all: Vec<String> = periods.iter().map(u32::to_string).collect();
    let wrong = || {
        Problem::malformed(format!(
            "the only query is seconds= with one of {}, and wait= with since=, a second from 1970",
            all.join(", ")
        ))
    };
    let (mut period, mut since) = (None, None);
    for part in query.split('&').filter(|_| !query.is_empty()) {
        // The value is compared as text, so that caches see only one URL for each period.
        match part.split_once('=') {
            Some(("seconds", text)) if period.is_none() => {
                let offered = periods.iter().find(|period| text == period.to_string());
                period = Some(*offered.ok_or_else(wrong)?);
            }
            Some(("since", text)) if since.is_none() => {
                since = Some(text.parse().ok().ok_or_else(wrong)?);
            }
            // `waits::seconds` reads this part below.
            Some(("wait", _)) => {}
            _ => return Err(wrong()),
        }
    }
    let wait = match (waits::seconds(query)?, since) {
        (None, None) => None,
        (Some(seconds), Some(since)) => Some(Wait { seconds, since }),
        _ => return Err(wrong()),
    };
    let period = period.or_else(|| periods.first().copied());
    let period = period.ok_or_else(wrong)?;
    Ok(SupQuery { period, wait })
}

/// Returns the resource of a document that is made anew for each request.
fn for_one_reader(document: Bytes) -> Resource {
    Resource::of_bytes(SUP_TYPE, None, Validity::Once, document)
}

/// Returns the last document of a period, as long as it is fresh.
fn fresh_document(kept: &RenderedDocuments, period: u32) -> Option<SupResource> {
    let kept = kept.get(&period)?;
    kept.resource.is_current().then(|| kept.clone())
}

/// Returns the time until a document is rendered again: until the views have the next complete
/// second, so that an update is listed as early as possible. A large document, or one of a long
/// period, is rendered less often.
fn time_to_live(clock: Timestamp, until: i64, period: u32, bytes: usize) -> Duration {
    let size = u32::try_from(bytes / BYTES_A_SECOND).unwrap_or(u32::MAX);
    let seconds = (period / FRESH_PART).max(size.saturating_add(1).min(FRESH_LARGE));
    // The document lacks a second that is complete by now, for example because that second ended
    // during the rendering.
    if seconds == 1 && until < clock.second() - 1 {
        return FRESH_MIN;
    }
    let begun = clock.micros().rem_euclid(1_000_000).unsigned_abs();
    let whole = Duration::from_micros(u64::from(seconds) * 1_000_000 - begun);
    (whole + LAG).max(FRESH_MIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a document with every complete second is kept until the next second is complete. A
    /// document that lacks a second is rendered again soon, a large document rarely.
    #[test]
    fn an_update_is_told_once_its_second_is_over() {
        let lasts = |millis: i64, until, period, bytes| {
            time_to_live(Timestamp::from_micros(millis * 1_000), until, period, bytes).as_millis()
        };
        assert_eq!(lasts(10_000, 9, 60, 400), 1_060);
        assert_eq!(lasts(10_300, 9, 60, 400), 760);
        // The clock is behind the log.
        assert_eq!(lasts(10_300, 15, 60, 400), 760);
        assert_eq!(lasts(10_300, 8, 60, 400), 200);
        assert_eq!(lasts(10_999, 9, 60, 400), 200);
        assert_eq!(lasts(10_300, 9, 600, 400), 9_760);
        assert_eq!(lasts(10_300, 9, 60, 24_000_000), 760);
        assert_eq!(lasts(10_300, 8, 60, 75_000_000), 3_760);
        assert_eq!(lasts(10_300, 9, 60, 2_000_000_000), 9_760);
    }
}
