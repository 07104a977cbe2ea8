//! The feeds of a watch: when each is looked at, and what follows from a look.
//!
//! Pure.

use std::time::Duration;

use super::{Condition, FeedNumber, Looked, Next, SourceNumber, Watch};
use crate::{
    limits::PAUSE_SECONDS_MAX,
    sup::{Announcement, SupAddress},
};

/// How much more rarely than the interval a feed is looked at while SUP tells of it (rule SUP-C7).
const SAFETY_NET: u32 = 10;
/// A feed that shows nothing new after a ping is looked at again after so long, and once more after the
/// usual interval (rule SUP-C9): a replica may lag.
const LOOKS_AGAIN: [Duration; 2] = [Duration::from_secs(2), Duration::from_secs(10)];
/// How far a replica may lag.
pub(super) const LAG: Duration = Duration::from_secs(12);
/// The pause after a failed look at a feed, doubled each time up to the usual interval.
const BACK_OFF: Duration = Duration::from_secs(5);
/// How far a cache that does not listen may be behind our own server: what that says may be kept for a
/// second, and be shown for another one while it is asked for again.
pub(super) const CACHED: Duration = Duration::from_secs(2);

/// Why it is a feed's turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Why {
    /// It is not known where its updates are told.
    First,
    Ping,
    Background,
}

#[derive(Debug)]
pub(super) struct Feed {
    pub(super) source: Option<SourceNumber>,
    /// What stands for it there.
    pub(super) id: Box<str>,
    /// The update that was told last.
    pub(super) update: Option<Box<str>>,
    /// Something is known to have changed, or to be unknown, and what came of it is not handled.
    pub(super) owed: bool,
    /// How often in a row it showed nothing new after a ping.
    pub(super) vain: usize,
    /// The time up to which it was read: when the last look began for which caches were told not to answer.
    pub(super) seen_until: Option<Duration>,
    turn: Turn,
    why: Why,
    /// How often in a row it could not be read.
    failures: u32,
    /// Its server wants no look before.
    not_before: Duration,
    /// When it was told of last.
    pub(super) told_at: Option<Duration>,
}

/// When it is a feed's turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    /// When SUP tells of it.
    Rests,
    /// At this time, or sooner if SUP tells of it.
    Due(Duration),
    /// Now. The look began at `since`; `fresh` if it is past all caches, and `called` if what it reads may be
    /// older than what was told meanwhile.
    Looking {
        since: Duration,
        fresh: bool,
        called: bool,
    },
}

impl Feed {
    pub(super) fn new(update: Option<&str>) -> Self {
        Self {
            source: None,
            id: "".into(),
            update: update.map(Into::into),
            owed: false,
            vain: 0,
            seen_until: None,
            turn: Turn::Rests,
            why: Why::First,
            failures: 0,
            not_before: Duration::ZERO,
            told_at: None,
        }
    }

    /// Whether it is its turn for safety only.
    pub(super) fn is_in_background(&self) -> bool {
        let is_looking = matches!(self.turn, Turn::Looking { .. });
        self.why == Why::Background && !is_looking && !self.owed
    }
}

impl Watch {
    pub(super) fn look(&mut self, number: FeedNumber, now: Duration) -> Next {
        let feed = self.feed_mut(number);
        let fresh = feed.owed || feed.why != Why::Background;
        feed.turn = Turn::Looking {
            since: now,
            fresh,
            // A cache may still have what was before that.
            called: feed.told_at.is_some_and(|told_at| now < told_at + CACHED),
        };
        match feed.why {
            Why::First => self.tally.first += 1,
            Why::Ping => self.tally.pings += 1,
            Why::Background => self.tally.background += 1,
        }
        Next::Look {
            feed: number,
            fresh,
        }
    }

    /// Takes what came of looking at a feed.
    pub fn looked(&mut self, number: FeedNumber, now: Duration, looked: Looked) {
        let feed = self.feed_mut(number);
        let Turn::Looking {
            since,
            fresh,
            called,
        } = std::mem::replace(&mut feed.turn, Turn::Rests)
        else {
            return;
        };
        match looked {
            Looked::Failed {
                news,
                for_good,
                retry_after,
            } => {
                if news {
                    // There is more where that came from.
                    self.owe(number);
                }
                self.failed(number, now, called, for_good, retry_after);
            }
            Looked::Read { news, stale, sup } => {
                feed.failures = 0;
                if fresh && !stale {
                    feed.seen_until = Some(since.saturating_sub(CACHED));
                }
                let came_late = match sup {
                    Announcement::At(address) => self.join(number, address, now),
                    Announcement::Nowhere => {
                        self.leave(number);
                        false
                    }
                    Announcement::Untold => false,
                };
                if stale && self.feed(number).why == Why::First {
                    // Nobody knows yet what it is.
                    self.owe(number);
                }
                if called {
                    self.feed_mut(number).vain = 0;
                    self.call(number, now + CACHED, Why::Ping);
                } else if came_late {
                    self.owe(number);
                    self.call(number, now + CACHED, Why::Background);
                } else {
                    self.plan(number, now, news, stale);
                }
            }
        }
    }

    /// Decides when a feed that was read is looked at again.
    fn plan(&mut self, number: FeedNumber, now: Duration, news: bool, stale: bool) {
        let interval = self.pace.interval;
        let feed = self.feed_mut(number);
        let in_vain = feed.owed && (stale || (feed.why == Why::Ping && !news));
        let mut pauses = LOOKS_AGAIN.into_iter().chain([interval]);
        let pause = pauses.nth(feed.vain).or(stale.then_some(interval));
        if let Some(pause) = pause.filter(|_| in_vain) {
            feed.vain = feed.vain.saturating_add(1);
            let why = feed.why;
            self.call(number, now + pause, why);
        } else {
            // Something may have been missed, which is often so of many feeds at once: of all of a document,
            // or of those that were looked at before it was.
            let was_with_others = feed.owed && feed.why == Why::Background;
            feed.vain = 0;
            self.pay(number);
            if was_with_others {
                self.rest_apart(number, now);
            } else {
                self.rest(number, now);
            }
        }
    }

    fn failed(
        &mut self,
        number: FeedNumber,
        now: Duration,
        called: bool,
        for_good: bool,
        retry_after: Option<Duration>,
    ) {
        let interval = self.pace.interval;
        let feed = self.feed_mut(number);
        if called {
            feed.why = Why::Ping;
        }
        let back_off = BACK_OFF.saturating_mul(1 << feed.failures.min(24));
        feed.failures = feed.failures.saturating_add(1);
        let asked = retry_after.unwrap_or_default();
        let asked = asked.min(Duration::from_secs(PAUSE_SECONDS_MAX));
        let is_wanted = feed.owed || feed.why != Why::Background;
        let mut pause = if is_wanted {
            back_off.min(interval)
        } else {
            interval
        };
        if for_good {
            // Nothing is known of it any more.
            feed.why = Why::First;
            self.leave(number);
            self.pay(number);
            pause = interval + self.spread(interval);
        }
        let at = now + pause.max(asked);
        self.feed_mut(number).not_before = at;
        self.due_at(number, Some(at));
    }

    /// Makes it a feed's turn at some time, unless it is its turn before.
    pub(super) fn call(&mut self, number: FeedNumber, at: Duration, why: Why) {
        let feed = self.feed_mut(number);
        let at = at.max(feed.not_before);
        let is_sooner = match &mut feed.turn {
            Turn::Looking { called, .. } => {
                // What it reads may be older.
                *called |= feed.owed;
                return;
            }
            Turn::Due(due) => at < *due,
            Turn::Rests => true,
        };
        if why == Why::Ping || (is_sooner && feed.why != Why::Ping) {
            feed.why = why;
        }
        if is_sooner {
            self.due_at(number, Some(at));
        }
    }

    /// Lets a feed rest until its turn comes for safety.
    pub(super) fn rest(&mut self, number: FeedNumber, now: Duration) {
        let usual = self.usual(number);
        let pause = match self.feed(number).why {
            // So that feeds that were looked at together are not for ever.
            Why::First => usual.map(|usual| self.spread(usual)),
            Why::Ping | Why::Background => usual,
        };
        self.feed_mut(number).why = Why::Background;
        self.due_at(number, pause.map(|pause| now + pause));
    }

    /// Lets a feed rest like the others of its document, each until another time.
    pub(super) fn rest_apart(&mut self, number: FeedNumber, now: Duration) {
        self.feed_mut(number).why = Why::First;
        self.rest(number, now);
    }

    /// Returns how long a feed rests without a ping.
    fn usual(&self, number: FeedNumber) -> Option<Duration> {
        let source = self.feed(number).source.map(|source| self.source(source));
        match source {
            Some(source) if source.condition != Condition::Broken => {
                (!source.is_archived).then(|| self.pace.interval * SAFETY_NET)
            }
            _ => Some(self.pace.interval),
        }
    }

    fn due_at(&mut self, number: FeedNumber, at: Option<Duration>) {
        let turn = at.map_or(Turn::Rests, Turn::Due);
        let before = std::mem::replace(&mut self.feed_mut(number).turn, turn);
        if let Turn::Due(before) = before {
            self.feed_turns.remove(&(before, number));
        }
        if let Some(at) = at {
            self.feed_turns.insert((at, number));
        }
    }

    /// Whether a feed is looked at to find out where its updates are told, which only a whole document may
    /// say.
    pub fn wants_announcement(&self, number: FeedNumber) -> bool {
        self.feed(number).why == Why::First
    }

    /// Takes up what a feed that was read announces (rule SUP-C1). Returns whether something may have been
    /// told of it before it was known there.
    fn join(&mut self, number: FeedNumber, address: SupAddress, now: Duration) -> bool {
        let feed = self.feed(number);
        if let Some(source) = feed.source
            && feed.id == address.id
            && self.source(source).announced == address.document
        {
            return false;
        }
        let seen_until = feed.seen_until;
        let source = self.take_up(number, address, now);
        self.feed_mut(number).update = None;
        let heard_at = self.source(source).heard_at;
        heard_at.is_some_and(|heard_at| seen_until.is_none_or(|seen| seen <= heard_at))
    }

    pub(super) fn take_up(
        &mut self,
        number: FeedNumber,
        address: SupAddress,
        now: Duration,
    ) -> SourceNumber {
        let SupAddress { document, id } = address;
        let found = self.source_at(&document, now);
        if self.source_mut(found).add(id.clone(), number) {
            self.ask_at(found, now);
        }
        // Only now, so that a document that it announces by another id is not forgotten.
        self.leave(number);
        let feed = self.feed_mut(number);
        feed.source = Some(found);
        feed.id = id;
        self.changed.insert(number);
        found
    }

    fn leave(&mut self, number: FeedNumber) {
        let feed = self.feed_mut(number);
        let Some(left) = feed.source.take() else {
            return;
        };
        let id = std::mem::take(&mut feed.id);
        self.source_mut(left).remove(&id, number);
        if self.source(left).is_idle() {
            self.forget(left);
        }
        self.changed.insert(number);
    }

    /// Notes that a feed is owed a look.
    pub(super) fn owe(&mut self, number: FeedNumber) {
        self.feed_mut(number).owed = true;
        self.changed.insert(number);
    }

    /// Notes that it is no more.
    fn pay(&mut self, number: FeedNumber) {
        self.feed_mut(number).owed = false;
        self.changed.insert(number);
    }
}
