//! Wakes a consumer that follows before its next poll is due: by a stream of events, or by a wait.
//!
//! Shell: keeps a stream open. A failure here is never an error of the consumer: the consumer
//! polls, as where a server offers nothing better, and tries again later.

use std::{pin::Pin, time::Duration};

use futures_core::Stream;
use futures_util::{StreamExt as _, stream};
use simplefeed_core::{
    feed::Position,
    limits::{PUSH_ABSENT_SECONDS, PUSH_OPEN_SECONDS, PUSH_POLL_SECONDS},
    push::{EVENTS_TYPE, Message, Messages, PlaceId, STATE},
};
use tokio::time::{self, Instant};
use url::Url;

use crate::{
    fetch::{Fetcher, ServerLinks},
    patience::{back_off, jittered},
    transport::Pieces,
};

/// The best means by which a consumer that follows may learn of a new entry. Where a server or a
/// proxy does not offer a means, the consumer falls back to the next one.
///
/// # Examples
///
/// ```
/// use simplefeed_client::{Consumer, WakeBy};
///
/// // A server that counts each open connection as a cost.
/// let orders = Consumer::builder("https://example.org/feeds/orders").wake_by(WakeBy::Poll);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WakeBy {
    /// A stream of events, which stays open.
    #[default]
    Events,
    /// Requests that the server answers once there is something new.
    Wait,
    /// Looks from time to time.
    Poll,
}

/// Places that a stream of events names.
type PlaceStream = Pin<Box<dyn Stream<Item = Option<PlaceId>> + Send>>;

/// Why a consumer rests no longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WakeReason {
    /// A poll is due.
    Due,
    /// There is an entry at this position.
    Told(Position),
}

/// How a wait has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitOutcome {
    /// With an answer of the server.
    Answered,
    /// Without an answer, as may happen at any time.
    Failed,
    /// In a way that shows that the server offers no waits.
    Absent,
}

/// How opening a stream has ended.
enum OpenOutcome {
    Stream(PlaceStream),
    /// The opening failed, as may happen at any time.
    Failed,
    /// The server offers no streams.
    Absent,
}

/// Pause after a server or a proxy has shown that it offers no streams, or no waits.
const ABSENT: Duration = Duration::from_secs(PUSH_ABSENT_SECONDS);

/// The stream of a consumer, and the times of the next attempts.
pub(crate) struct Waker {
    best: WakeBy,
    links: ServerLinks,
    state: WakerState,
    /// Number of streams in a row that did not open, or ended soon.
    failures: u32,
    /// Before this time, no stream is tried.
    streams_from: Option<Instant>,
    /// Before this time, no wait is tried.
    waits_from: Option<Instant>,
    /// Number of waits in a row that failed.
    failed_waits: u32,
}

enum WakerState {
    Closed,
    Opening(Pin<Box<dyn Future<Output = OpenOutcome> + Send>>),
    Open { told: PlaceStream, since: Instant },
}

impl std::fmt::Debug for Waker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Waker")
            .field("best", &self.best)
            .field("links", &self.links)
            .finish_non_exhaustive()
    }
}

impl Waker {
    pub(crate) fn new(best: WakeBy) -> Self {
        Self {
            best,
            links: ServerLinks::default(),
            state: WakerState::Closed,
            failures: 0,
            streams_from: None,
            waits_from: None,
            failed_waits: 0,
        }
    }

    /// Takes over the links of an answer about the recent document.
    pub(crate) fn learn(&mut self, links: ServerLinks) {
        if links.events != self.links.events {
            // The open stream is at a URL that the server offers no longer.
            self.state = WakerState::Closed;
        }
        self.links = links;
    }

    /// Returns the URL of a wait, if the next look may be a wait.
    pub(crate) fn wait_url(&self) -> Option<Url> {
        let may_wait = self.best != WakeBy::Poll && !self.has_stream() && is_over(self.waits_from);
        self.links.wait.clone().filter(|_| may_wait)
    }

    /// Notes how a wait has ended.
    pub(crate) fn waited(&mut self, ended: WaitOutcome) {
        let pause = match ended {
            WaitOutcome::Answered => {
                self.failed_waits = 0;
                return;
            }
            WaitOutcome::Failed => {
                self.failed_waits += 1;
                back_off(self.failed_waits, None)
            }
            WaitOutcome::Absent => ABSENT,
        };
        self.waits_from = Some(Instant::now() + jittered(pause));
    }

    /// Returns whether a stream is open, or may open soon.
    fn has_stream(&self) -> bool {
        !matches!(self.state, WakerState::Closed) || self.may_open()
    }

    fn may_open(&self) -> bool {
        let may = self.best == WakeBy::Events && self.links.events.is_some();
        may && is_over(self.streams_from)
    }

    /// Rests until `due`, or longer while a stream is open. An event of the stream ends the rest.
    ///
    /// Cancel safe: the stream stays open, and nothing that it tells is lost.
    pub(crate) async fn rest(&mut self, due: Instant, fetcher: &Fetcher) -> WakeReason {
        loop {
            match &mut self.state {
                WakerState::Closed => {
                    if let Some(url) = self.links.events.clone().filter(|_| self.may_open()) {
                        let fetcher = fetcher.clone();
                        self.state = WakerState::Opening(Box::pin(open_stream(fetcher, url)));
                        continue;
                    }
                    // If a stream has ended, the next one may open before the next poll.
                    let may = self.best == WakeBy::Events && self.links.events.is_some();
                    let next = self.streams_from.filter(|next| may && *next < due);
                    time::sleep_until(next.unwrap_or(due)).await;
                    if next.is_none() {
                        return WakeReason::Due;
                    }
                }
                WakerState::Opening(opening) => {
                    let opened = tokio::select! {
                        opened = opening => opened,
                        // The opening stays in `state`, and goes on at the next rest.
                        () = time::sleep_until(due) => return WakeReason::Due,
                    };
                    let since = Instant::now();
                    match opened {
                        // A stream begins with the newest place, so no entry is missed between the
                        // last look and now.
                        OpenOutcome::Stream(told) => self.state = WakerState::Open { told, since },
                        OpenOutcome::Failed => self.has_ended(since),
                        OpenOutcome::Absent => {
                            self.state = WakerState::Closed;
                            self.streams_from = Some(since + jittered(ABSENT));
                        }
                    }
                }
                WakerState::Open { told, since } => {
                    let since = *since;
                    // A poll finds states that a stream does not show, such as a missing feed.
                    let due = due + Duration::from_secs(PUSH_POLL_SECONDS);
                    let next = tokio::select! {
                        next = told.next() => next,
                        () = time::sleep_until(due) => return WakeReason::Due,
                    };
                    match next.flatten() {
                        Some(place) => return WakeReason::Told(place.position),
                        None => self.has_ended(since),
                    }
                }
            }
        }
    }

    /// Handles the end of a stream. A stream that ends soon after the opening counts as failed; a
    /// later end is usual.
    fn has_ended(&mut self, since: Instant) {
        self.state = WakerState::Closed;
        let is_short = since.elapsed() < Duration::from_secs(PUSH_OPEN_SECONDS);
        self.failures = if is_short { self.failures + 1 } else { 0 };
        let pause = jittered(back_off(self.failures, None));
        self.streams_from = Some(Instant::now() + pause);
    }
}

fn is_over(pause: Option<Instant>) -> bool {
    pause.is_none_or(|until| until <= Instant::now())
}

/// Opens the stream at a URL.
async fn open_stream(fetcher: Fetcher, url: Url) -> OpenOutcome {
    let opening = fetcher.stream(&url, EVENTS_TYPE);
    // A transport without streams waits for the end of the answer, which never comes.
    let patience = Duration::from_secs(PUSH_OPEN_SECONDS);
    let Ok(Ok(answer)) = time::timeout(patience, opening).await else {
        return OpenOutcome::Failed;
    };
    let is_stream = |(name, value): &(String, String)| {
        name == "content-type" && value.to_ascii_lowercase().starts_with(EVENTS_TYPE)
    };
    match answer.status {
        200 if answer.headers.iter().any(is_stream) => {
            OpenOutcome::Stream(told_places(answer.body))
        }
        408 | 425 | 429 | 500..=599 => OpenOutcome::Failed,
        _ => OpenOutcome::Absent,
    }
}

/// Returns the places that a stream tells. An item without a place ends the stream.
fn told_places(body: Pieces) -> PlaceStream {
    let messages = stream::unfold(
        (body, Messages::default()),
        |(mut body, mut messages)| async {
            let piece = body.next().await?.ok()?;
            let read = messages.take(&piece).ok()?;
            Some((stream::iter(read), (body, messages)))
        },
    );
    Box::pin(messages.flatten().map(|message: Message| {
        // A message about the state of the feed has no place: the walk finds the state by itself.
        let is_place = message.kind != STATE;
        message.id.parse().ok().filter(|_| is_place)
    }))
}

#[cfg(test)]
mod tests;
