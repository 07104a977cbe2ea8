//! The feeds of a watch: the turn of each, and the consequences of a look.
//!
//! Pure.

use std::time::Duration;

use super::{Condition, FeedNumber, LookResult, NextAction, SourceNumber, Watch};
use crate::{
    limits::PAUSE_SECONDS_MAX,
    sup::{Announcement, SupAddress},
};

/// Factor on the interval for feeds that SUP covers (rule SUP-C7).
const SAFETY_NET: u32 = 10;
/// Pauses before further looks at a feed that shows nothing new after a ping, because a replica may
/// lag. One more look follows after the usual interval (rule SUP-C9).
const LOOKS_AGAIN: [Duration; 2] = [Duration::from_secs(2), Duration::from_secs(10)];
/// Longest lag expected of a replica.
pub(super) const LAG: Duration = Duration::from_secs(12);
/// Pause after a failed look at a feed, doubled each time up to the usual interval.
const BACK_OFF: Duration = Duration::from_secs(5);
/// Longest time for which a cache before a Simplefeed server serves an old response: a cache may
/// keep a response for a second, and serve that response for another second while revalidating.
pub(super) const CACHED: Duration = Duration::from_secs(2);

/// Reason for a feed's turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Why {
    /// The feed's announcement of a SUP document is unknown.
    First,
    Ping,
    Background,
}

#[derive(Debug)]
pub(super) struct FeedSchedule {
    pub(super) source: Option<SourceNumber>,
    /// The feed's SUP-ID in the SUP document; empty if the feed announces no SUP document.
    pub(super) id: Box<str>,
    /// Id of the feed's update that a SUP document listed last.
    pub(super) update: Option<Box<str>>,
    /// Whether an update is known to wait, or may have been missed, and no look has handled the
    /// update yet.
    pub(super) owed: bool,
    /// Number of successive looks that showed nothing new after a ping, or got a stale copy.
    pub(super) vain: usize,
    /// Time up to which the feed was read: the start of the last look that bypassed caches, less
    /// [`CACHED`].
    pub(super) seen_until: Option<Duration>,
    turn: FeedTurn,
    why: Why,
    /// Number of successive failed looks.
    failures: u32,
    /// Earliest time of the next look, after a failure.
    not_before: Duration,
    /// Time of the last ping.
    pub(super) told_at: Option<Duration>,
}

/// Turn of a feed: resting, due at a time, or being looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FeedTurn {
    /// No time is set: only a ping makes the feed due.
    Rests,
    /// The feed is due at this time, or sooner after a ping.
    Due(Duration),
    /// A look has been under way since `since`. `fresh` means that the look bypasses caches.
    /// `called` means that the look may miss the update of a ping.
    Looking {
        since: Duration,
        fresh: bool,
        called: bool,
    },
}

impl FeedSchedule {
    pub(super) fn new(update: Option<&str>) -> Self {
        Self {
            source: None,
            id: "".into(),
            update: update.map(Into::into),
            owed: false,
            vain: 0,
            seen_until: None,
            turn: FeedTurn::Rests,
            why: Why::First,
            failures: 0,
            not_before: Duration::ZERO,
            told_at: None,
        }
    }

    /// Whether the feed's next look is for safety only.
    pub(super) fn is_in_background(&self) -> bool {
        let is_looking = matches!(self.turn, FeedTurn::Looking { .. });
        self.why == Why::Background && !is_looking && !self.owed
    }
}

impl Watch {
    pub(super) fn look(&mut self, number: FeedNumber, now: Duration) -> NextAction {
        let feed = self.feed_mut(number);
        let fresh = feed.owed || feed.why != Why::Background;
        feed.turn = FeedTurn::Looking {
            since: now,
            fresh,
            // A cache may still serve a copy from before the ping.
            called: feed.told_at.is_some_and(|told_at| now < told_at + CACHED),
        };
        match feed.why {
            Why::First => self.tally.first += 1,
            Why::Ping => self.tally.pings += 1,
            Why::Background => self.tally.background += 1,
        }
        NextAction::Look {
            feed: number,
            fresh,
        }
    }

    /// Handles the result of a look at a feed.
    pub fn looked(&mut self, number: FeedNumber, now: Duration, looked: LookResult) {
        let feed = self.feed_mut(number);
        // A result without a look under way is ignored.
        let FeedTurn::Looking {
            since,
            fresh,
            called,
        } = std::mem::replace(&mut feed.turn, FeedTurn::Rests)
        else {
            return;
        };
        match looked {
            LookResult::Failed {
                news,
                for_good,
                retry_after,
            } => {
                if news {
                    // The entries before the failure show that more may follow.
                    self.owe(number);
                }
                self.note_look_failure(number, now, called, for_good, retry_after);
            }
            LookResult::Read { news, stale, sup } => {
                feed.failures = 0;
                if fresh && !stale {
                    // The copy may be as old as a cache allows, so the safe time lies before the
                    // look.
                    feed.seen_until = Some(since.saturating_sub(CACHED));
                }
                let came_late = match sup {
                    Announcement::At(address) => self.join_source(number, address, now),
                    Announcement::Nowhere => {
                        self.leave_source(number);
                        false
                    }
                    Announcement::Untold => false,
                };
                if stale && self.feed_numbered(number).why == Why::First {
                    // A stale copy may lack the announcement, so the first look must be repeated.
                    self.owe(number);
                }
                if called {
                    // A ping during the look, or just before, means a change that the look may have
                    // missed.
                    self.feed_mut(number).vain = 0;
                    self.call(number, now + CACHED, Why::Ping);
                } else if came_late {
                    self.owe(number);
                    self.call(number, now + CACHED, Why::Background);
                } else {
                    self.plan_look(number, now, news, stale);
                }
            }
        }
    }

    /// Schedules the next look at a feed that was read.
    fn plan_look(&mut self, number: FeedNumber, now: Duration, news: bool, stale: bool) {
        let interval = self.pace.interval;
        let feed = self.feed_mut(number);
        let in_vain = feed.owed && (stale || (feed.why == Why::Ping && !news));
        // The pauses for a lagging replica come first, then one usual interval. After that, a stale
        // copy causes a look after each usual interval.
        let mut pauses = LOOKS_AGAIN.into_iter().chain([interval]);
        let pause = pauses.nth(feed.vain).or(stale.then_some(interval));
        if let Some(pause) = pause.filter(|_| in_vain) {
            feed.vain = feed.vain.saturating_add(1);
            let why = feed.why;
            self.call(number, now + pause, why);
        } else {
            // The look was one of many looks after a gap or before the first document. The next
            // looks at these feeds must not coincide.
            let was_with_others = feed.owed && feed.why == Why::Background;
            feed.vain = 0;
            self.pay_look(number);
            if was_with_others {
                self.rest_apart(number, now);
            } else {
                self.rest(number, now);
            }
        }
    }

    fn note_look_failure(
        &mut self,
        number: FeedNumber,
        now: Duration,
        called: bool,
        for_good: bool,
        retry_after: Option<Duration>,
    ) {
        let interval = self.pace.interval;
        let feed = self.feed_mut(number);
        // A ping during the failed look keeps the priority of a ping.
        if called {
            feed.why = Why::Ping;
        }
        // 24 doublings exceed any interval, and bound the shift.
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
            // A dead feed's announcement is void.
            feed.why = Why::First;
            self.leave_source(number);
            self.pay_look(number);
            // Spreading keeps feeds of one dead server from returning together.
            pause = interval + self.spread_over(interval);
        }
        // The server's own wish extends the pause, and never shortens it.
        let at = now + pause.max(asked);
        self.feed_mut(number).not_before = at;
        self.due_at(number, Some(at));
    }

    /// Sets a feed's turn to `at`, unless the feed has an earlier turn.
    pub(super) fn call(&mut self, number: FeedNumber, at: Duration, why: Why) {
        let feed = self.feed_mut(number);
        // A ping does not override a failure's pause.
        let at = at.max(feed.not_before);
        let is_sooner = match &mut feed.turn {
            FeedTurn::Looking { called, .. } => {
                // The look under way may have read an older state.
                *called |= feed.owed;
                return;
            }
            FeedTurn::Due(due) => at < *due,
            FeedTurn::Rests => true,
        };
        // A ping stays a ping even if another turn is sooner.
        if why == Why::Ping || (is_sooner && feed.why != Why::Ping) {
            feed.why = why;
        }
        if is_sooner {
            self.due_at(number, Some(at));
        }
    }

    /// Sets a feed's turn to the next look for safety.
    pub(super) fn rest(&mut self, number: FeedNumber, now: Duration) {
        let usual = self.usual_pause(number);
        let pause = match self.feed_numbered(number).why {
            // Feeds that were first looked at together spread over the interval.
            Why::First => usual.map(|usual| self.spread_over(usual)),
            Why::Ping | Why::Background => usual,
        };
        self.feed_mut(number).why = Why::Background;
        self.due_at(number, pause.map(|pause| now + pause));
    }

    /// Does the same as [`rest`](Self::rest), but spreads the turns of feeds that share a document.
    pub(super) fn rest_apart(&mut self, number: FeedNumber, now: Duration) {
        // `First` makes `rest` draw a random pause; `rest` then sets the reason to `Background`.
        self.feed_mut(number).why = Why::First;
        self.rest(number, now);
    }

    /// Returns the pause of a feed without a ping; `None` if archives make looks for safety
    /// needless.
    fn usual_pause(&self, number: FeedNumber) -> Option<Duration> {
        let source = self
            .feed_numbered(number)
            .source
            .map(|source| self.source_numbered(source));
        match source {
            Some(source) if source.condition != Condition::Broken => {
                (!source.is_archived).then(|| self.pace.interval * SAFETY_NET)
            }
            _ => Some(self.pace.interval),
        }
    }

    fn due_at(&mut self, number: FeedNumber, at: Option<Duration>) {
        let turn = at.map_or(FeedTurn::Rests, FeedTurn::Due);
        let before = std::mem::replace(&mut self.feed_mut(number).turn, turn);
        if let FeedTurn::Due(before) = before {
            self.feed_turns.remove(&(before, number));
        }
        // At most one turn per feed stands in the queue.
        if let Some(at) = at {
            self.feed_turns.insert((at, number));
        }
    }

    /// Whether the look must request a whole document, because only a whole document can hold the
    /// announcement.
    pub fn wants_announcement(&self, number: FeedNumber) -> bool {
        self.feed_numbered(number).why == Why::First
    }

    /// Applies the announcement of a feed that was read (rule SUP-C1). Returns whether the SUP
    /// document may have listed an unread update of the feed before the feed joined.
    fn join_source(&mut self, number: FeedNumber, address: SupAddress, now: Duration) -> bool {
        let feed = self.feed_numbered(number);
        if let Some(source) = feed.source
            && feed.id == address.id
            && self.source_numbered(source).announced == address.document
        {
            return false;
        }
        let seen_until = feed.seen_until;
        let source = self.take_up(number, address, now);
        // The last update came from another document, or under another id.
        self.feed_mut(number).update = None;
        let heard_at = self.source_numbered(source).heard_at;
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
        // The feed joins before leaving the old source. If only the id changes, both are the same
        // source, and that source always has a feed.
        self.leave_source(number);
        let feed = self.feed_mut(number);
        feed.source = Some(found);
        feed.id = id;
        self.changed.insert(number);
        found
    }

    fn leave_source(&mut self, number: FeedNumber) {
        let feed = self.feed_mut(number);
        let Some(left) = feed.source.take() else {
            return;
        };
        let id = std::mem::take(&mut feed.id);
        self.source_mut(left).remove(&id, number);
        if self.source_numbered(left).is_idle() {
            self.forget(left);
        }
        self.changed.insert(number);
    }

    /// Marks a feed as owed a look.
    pub(super) fn owe(&mut self, number: FeedNumber) {
        self.feed_mut(number).owed = true;
        self.changed.insert(number);
    }

    /// Marks a feed as no longer owed a look.
    fn pay_look(&mut self, number: FeedNumber) {
        self.feed_mut(number).owed = false;
        self.changed.insert(number);
    }
}
