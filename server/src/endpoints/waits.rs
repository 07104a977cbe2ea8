//! Reads that wait for a change: of a recent document, or of a SUP document.
//!
//! Shell: timers, and the hubs of watched feeds. A reader that waits holds a connection and a watch
//! on a feed, and nothing else. The answer is that of the same URL without the query, so a proxy
//! that drops the query turns the wait into a poll.

use std::{sync::Arc, time::Duration};

use hyper::StatusCode;
use simplefeed_core::{feed::FeedKey, limits::WAIT_SECONDS_MAX};
use simplefeed_http::{
    answers::for_once,
    coding::negotiate,
    endpoint::{Exchange, Outcome},
    problem::Problem,
    sending::is_known,
};
use simplefeed_process::workers::idle;
use simplefeed_resource::Coding;
use simplefeed_views::{
    error::ViewError,
    push::Push,
    push::{Interest, Watching},
};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, sleep_until},
};

use super::{
    documents::recent_now,
    off_thread,
    shelf::{Shelf, seen_now},
};

/// Handles for readers that wait for a document.
#[derive(Debug)]
pub struct WaitParts {
    /// Feeds, and the rights to them.
    pub shelf: Arc<Shelf>,
    /// Hubs of readers that wait.
    pub push: Arc<Push>,
    /// Places for readers that wait.
    pub parking: WaitPlaces,
}

/// Places for requests that wait, and for streams: three quarters of all connections, so that other
/// requests find a connection.
#[derive(Clone, Debug)]
pub struct WaitPlaces(Arc<Semaphore>);

impl WaitPlaces {
    /// Returns the places of a server that takes this number of connections.
    pub(crate) fn beside(connections: usize) -> Self {
        let places = connections / 4 * 3;
        Self(Arc::new(Semaphore::new(
            places.clamp(1, Semaphore::MAX_PERMITS),
        )))
    }

    /// Returns a place, if one is free.
    pub(crate) fn place(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.0).try_acquire_owned().ok()
    }
}

/// Returns the seconds for which a query asks to wait; `None` without a wait.
///
/// # Errors
///
/// A problem with status 400 if the time is out of bounds.
pub fn seconds(query: &str) -> Result<Option<u64>, Problem> {
    let mut waits = query
        .split('&')
        .filter_map(|part| part.strip_prefix("wait="));
    let Some(text) = waits.next() else {
        return Ok(None);
    };
    let seconds = text.parse().ok().filter(|seconds: &u64| {
        (1..=WAIT_SECONDS_MAX).contains(seconds) && seconds.to_string() == text
    });
    match (seconds, waits.next()) {
        (Some(seconds), None) => Ok(Some(seconds)),
        _ => Err(Problem::malformed(format!(
            "a wait is asked for with one wait= of 1 to {WAIT_SECONDS_MAX} seconds"
        ))),
    }
}

/// Shows the recent document once that document differs from the reader's, or after `seconds`.
pub(super) async fn recent(
    parts: &WaitParts,
    exchange: Exchange<'_>,
    seconds: u64,
) -> Result<Outcome, Problem> {
    let deadline = Instant::now() + Duration::from_secs(seconds);
    // A reader that lacks the document gets an answer at once, and needs no place.
    let (outcome, is_known) = look_now(&parts.shelf, &exchange).await?;
    if !is_known {
        return Ok(outcome);
    }
    // Without a free place, the request is answered at once, as a poll is.
    let Some(_place) = parts.parking.place() else {
        return Ok(outcome);
    };
    drop(outcome);
    // A request that accepts no coding is refused later, when the answer is made.
    let coding = negotiate(exchange.headers).unwrap_or(Coding::Identity);
    let feed = Box::pin(seen_now(&parts.shelf, &exchange)).await?.feed;
    let watched = watch(
        (&parts.push, &parts.shelf),
        &exchange,
        feed,
        Interest::Document(coding),
    );
    let mut watching = Box::pin(watched).await?;
    let mut stopping = exchange.ending.is_near.clone();
    // The loop begins with a lookup, because a commit may have come before the watch began.
    let mut is_over = false;
    loop {
        let (outcome, is_known) = look_now(&parts.shelf, &exchange).await?;
        if !is_known || is_over {
            return Ok(outcome);
        }
        drop(outcome);
        watching.wish_again();
        idle(async {
            tokio::select! {
                () = watching.changed() => {}
                () = sleep_until(deadline) => is_over = true,
                _ = stopping.wait_for(|stopping| *stopping) => is_over = true,
            }
        })
        .await;
    }
}

/// Returns the current answer, and whether the reader has the current document already.
async fn look_now(shelf: &Shelf, exchange: &Exchange<'_>) -> Result<(Outcome, bool), Problem> {
    // Of the readers that are woken together, the first one makes the answer ready for all others.
    if let Some((_, answer)) = exchange
        .ready
        .answer(exchange.uri.path(), exchange.headers, || None)
    {
        let is_known = answer.status() == StatusCode::NOT_MODIFIED;
        return Ok((Outcome::Answer(for_once(answer)), is_known));
    }
    // Boxed, because otherwise each reader that waits would hold memory for this work.
    let shown = Box::pin(recent_now(shelf, exchange)).await?;
    let is_known = is_known(&shown, exchange.headers, shelf.clock.now());
    Ok((Outcome::Waited(Box::new(shown)), is_known))
}

/// Begins to watch a feed.
pub(super) async fn watch(
    (push, shelf): (&Arc<Push>, &Shelf),
    exchange: &Exchange<'_>,
    feed: FeedKey,
    interest: Interest,
) -> Result<Watching, Problem> {
    // A feed that others watch needs no lookup.
    if let Some(watching) = push.join(feed, interest) {
        return Ok(watching);
    }
    let (push, documents) = (Arc::clone(push), Arc::clone(&shelf.documents));
    let name = exchange.params.feed().clone();
    off_thread(move || {
        push.watch((feed, &name), interest, &**documents.log())
            .map_err(ViewError::from)
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_has_bounds_and_one_spelling() {
        assert_eq!(seconds("").unwrap(), None);
        assert_eq!(seconds("a=1&swait=2").unwrap(), None);
        assert_eq!(seconds("wait=1").unwrap(), Some(1));
        assert_eq!(seconds("since=5&wait=60").unwrap(), Some(60));
        for wrong in [
            "wait=",
            "wait=0",
            "wait=61",
            "wait=01",
            "wait=+1",
            "wait=1&wait=2",
        ] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn who_waits_leaves_connections_to_others() {
        let parking = WaitPlaces::beside(8);
        let places: Vec<_> = std::iter::from_fn(|| parking.place()).collect();
        assert_eq!(places.len(), 6);
        drop(places);
        assert!(parking.place().is_some() && WaitPlaces::beside(1).place().is_some());
    }
}
