//! The looks of a consumer at the recent document: their times, and their means.
//!
//! Shell: waits. A wake only ends a pause early; the walk decides everything else.

use std::time::Duration;

use simplefeed_core::{
    limits::{POLL_SECONDS_MIN, PUSH_LOOKS_MAX},
    replay::{Ask, Bookmark, Stand},
};
use tokio::time;
use url::Url;

use super::{AskAnswer, Consumer};
use crate::{
    fetch::{FetchError, FetchOutcome, Fetcher},
    patience::jittered,
    waker::{WaitOutcome, WakeReason},
};

/// Why a consumer looks at the recent document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look {
    /// The first look, a look whose poll is due, or one after a failure or an early end of a round.
    /// The look is due at the end of the pause.
    Next,
    /// The consumer has caught up, and rests until a poll is due or something wakes the consumer.
    Resting,
    /// The consumer was woken. The look goes past all caches, which may not have the news yet.
    Woken,
    /// The server answers once there is something new; the instant is the beginning of the wait.
    Waiting(time::Instant),
    /// The answer to a wait has come; `true` if the server waited before the answer.
    Waited(bool),
}

impl Consumer {
    /// Waits for the end of a pause. A pause between two looks ends early if something wakes the
    /// consumer.
    ///
    /// Cancel safe.
    pub(super) async fn pause_until(&mut self, due: time::Instant) {
        if self.look != Look::Resting {
            return time::sleep_until(due).await;
        }
        loop {
            match self.waker.rest(due, &self.fetcher).await {
                WakeReason::Due => self.look = Look::Next,
                WakeReason::Told(position) => {
                    if self.here >= Some(position) {
                        continue;
                    }
                    // Entries of a plain feed have no positions to compare.
                    self.told = Some((position, 0)).filter(|_| !self.replay.is_plain());
                    self.look = Look::Woken;
                    // The pause is kept in `self`, so that a dropped future does not lose the
                    // pause.
                    self.not_before = self.woken_from;
                    if let Some(from) = self.woken_from {
                        time::sleep_until(from).await;
                    }
                }
            }
            return;
        }
    }

    /// Decides when and by which means the next look comes, after a round that ended at `place`.
    pub(super) fn plan_look(&mut self, place: Option<&Bookmark>) {
        let now = time::Instant::now();
        let has_news = std::mem::take(&mut self.has_news);
        self.here = place.and_then(|place| place.position);
        // The copy of a cache may end before the position that woke the consumer. Then another look
        // follows.
        if let Some((position, looks)) = self
            .told
            .filter(|(position, _)| self.here < Some(*position))
            && looks < PUSH_LOOKS_MAX
        {
            self.told = Some((position, looks + 1));
            self.look = Look::Woken;
            self.not_before = Some(now + Duration::from_secs(looks.into()));
            return;
        }
        self.told = None;
        if self.look == Look::Waited(false) && !has_news {
            self.waker.waited(WaitOutcome::Absent);
        }
        // Apart from the looks above, no look follows a look without news within a second, whatever
        // wakes a server sends. At a plain feed no look follows any look within a second, because
        // nothing there shows whether a wake is sound.
        let least = Duration::from_secs(POLL_SECONDS_MIN);
        let looked_at = self
            .looked_at
            .filter(|_| self.replay.is_plain() || !has_news);
        self.woken_from = looked_at.map(|looked_at| looked_at + least);
        if place.is_some_and(is_behind) {
            (self.look, self.not_before) = (Look::Next, self.woken_from.or(Some(now + least)));
            return;
        }
        let pause = jittered(self.poll_after());
        // Without an entity tag, the server answers a wait at once.
        let has_tag = self
            .replay
            .ask()
            .is_some_and(|ask| ask.known.etag.is_some());
        (self.look, self.not_before) = if has_tag && self.waker.wait_url().is_some() {
            (Look::Waiting(now), self.woken_from)
        } else {
            (Look::Resting, Some(now + pause))
        };
    }
}

/// Returns whether a round ended without the recent document: the feed grew faster than the
/// consumer read, or the document is gone.
pub(super) fn is_behind(place: &Bookmark) -> bool {
    place.stand == Some(Stand::Archive)
}

/// Fetches the recent document once the document differs from the known copy, or after a while.
pub(super) async fn fetch_waiting(
    fetcher: &Fetcher,
    url: &Url,
    ask: &Ask,
) -> Result<AskAnswer, FetchError> {
    let mut fetched = fetcher.document(url, &ask.known, true).await?;
    // The document's own URL replaces that of the wait, so that the next look is at the document
    // itself.
    if let FetchOutcome::Document { url, .. } = &mut fetched {
        url.clone_from(&ask.url);
    }
    Ok(AskAnswer::Document(fetched))
}
