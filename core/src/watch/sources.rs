//! The SUP documents of a watch: the next request for each, and the consequences of an answer.
//!
//! Pure.

use std::{collections::HashMap, time::Duration};

use url::Url;

use super::{
    Condition, FeedNumber, NextAction, SourceNumber, SupResult, Watch,
    feeds::{CACHED, Why},
};
use crate::{
    limits::{BACK_OFF_SECONDS_MAX, PAUSE_SECONDS_MAX, SUP_PERIOD_SECONDS_MAX, SUP_WALK_MAX},
    sup::SupDocument,
    timestamp::Timestamp,
};

/// Number of requests for an archived document that may fail before the watch closes the gap in
/// another way.
const ARCHIVE_TRIES: u32 = 3;
/// Shortest time between two looks at a SUP document. `EVERY_MAX` is the longest time that a
/// document's period gives.
const EVERY_MIN: Duration = Duration::from_secs(1);
const EVERY_MAX: Duration = Duration::from_hours(1);
/// Time, in addition to two periods, for which a document may stand still before the document
/// counts as broken.
const STILL_SLACK: Duration = Duration::from_secs(10);
/// Time over which to spread the looks at feeds that were read before the first document was heard.
const FIRST_WITHIN: Duration = Duration::from_mins(1);
#[derive(Debug)]
pub(super) struct SupSource {
    /// URL of the document in the announcements of feeds.
    pub(super) announced: Url,
    /// URL of the window in use: the announced window, or a longer window that suits the pace.
    url: Url,
    /// Whether requests for another window failed, so that the watch uses the announced window.
    has_no_other: bool,
    pub(super) feeds: HashMap<Box<str>, Vec<FeedNumber>>,
    pub(super) condition: Condition,
    pub(super) is_archived: bool,
    pub(super) period: Duration,
    due: Option<Duration>,
    asking: SourceRequest,
    is_asked: bool,
    asked_at: Duration,
    /// End of the known updates; `None` until the first document.
    pub(super) updated: Option<Timestamp>,
    /// Time at which `updated` was set last.
    moved_at: Duration,
    /// Time at which the watch last handled the pairs of a document.
    pub(super) heard_at: Option<Duration>,
    /// End of the current document that was heard last, even if the document was an old copy.
    glimpsed: Option<Timestamp>,
    /// The feeds that documents have listed since the last pings, with the newest update of each.
    /// The pings wait until no other document must be heard first.
    pub(super) told: HashMap<FeedNumber, Box<str>>,
    /// Known pairs, with the end of the last document that listed each.
    pub(super) seen: HashMap<u64, Timestamp>,
    /// The pairs of the last window that belong to no watched feed, with the time at which each was
    /// first listed. For a feed that joins later, this time shows whether the feed was read after
    /// the update was listed.
    pub(super) others: HashMap<u64, Duration>,
    failures: u32,
}

/// The next request for a source.
#[derive(Clone, Debug)]
enum SourceRequest {
    Current,
    Archived(Chase),
    /// A longer window, which must reach from the known updates to `since`; after that, all updates
    /// up to `until` are known.
    Longer {
        url: Url,
        since: Timestamp,
        until: Timestamp,
    },
}

/// A walk back over archived documents.
#[derive(Clone, Debug)]
struct Chase {
    /// URL of the next archived document, absolute.
    url: Url,
    /// End of the known updates once the walk ends.
    until: Timestamp,
    /// Beginning of the document that the walk heard last: the next document must end no earlier.
    since: Timestamp,
    /// Beginning of the newest document.
    newest: Timestamp,
    walked: usize,
    /// Number of failed requests for this document.
    tries: u32,
    /// URL of a window that reaches back to the known updates; `None` if the publisher offers no
    /// such window.
    longer: Option<Url>,
}

impl SupSource {
    fn new(document: &Url, now: Duration) -> Self {
        Self {
            announced: document.clone(),
            url: document.clone(),
            has_no_other: false,
            feeds: HashMap::new(),
            condition: Condition::New,
            is_archived: false,
            period: Duration::from_mins(1),
            due: None,
            asking: SourceRequest::Current,
            is_asked: false,
            asked_at: now,
            updated: None,
            moved_at: now,
            heard_at: None,
            glimpsed: None,
            told: HashMap::new(),
            seen: HashMap::new(),
            others: HashMap::new(),
            failures: 0,
        }
    }

    /// Returns the URL of the next request.
    fn next_url(&self) -> Url {
        match &self.asking {
            SourceRequest::Current => self.url.clone(),
            SourceRequest::Archived(chase) => chase.url.clone(),
            SourceRequest::Longer { url, .. } => url.clone(),
        }
    }

    /// Whether no feed announces this document any more.
    pub(super) fn is_idle(&self) -> bool {
        self.feeds.is_empty()
    }

    /// Adds a feed. Returns whether the document must be requested now.
    pub(super) fn add(&mut self, id: Box<str>, feed: FeedNumber) -> bool {
        self.feeds.entry(id).or_default().push(feed);
        self.due.is_none() && !self.is_asked
    }

    pub(super) fn remove(&mut self, id: &str, feed: FeedNumber) {
        if let Some(together) = self.feeds.get_mut(id) {
            together.retain(|other| *other != feed);
            if together.is_empty() {
                self.feeds.remove(id);
            }
        }
    }

    fn all_feeds(&self) -> Vec<FeedNumber> {
        self.feeds.values().flatten().copied().collect()
    }
}

/// Returns the time between two looks at a document of this period: a little less than the period
/// (rule SUP-C3).
fn look_interval(period: Duration) -> Duration {
    // The bound comes first: a publisher can announce any period, and the product must not
    // overflow.
    (period.min(2 * EVERY_MAX) * 4 / 5).clamp(EVERY_MIN, EVERY_MAX)
}

impl Watch {
    pub(super) fn source_at(&mut self, document: &Url, now: Duration) -> SourceNumber {
        if let Some(source) = self.by_url.get(document) {
            return *source;
        }
        let number = SourceNumber(self.sources_before);
        // A request in flight may hold the number of a forgotten document, so numbers are never
        // reused.
        self.sources_before += 1;
        self.sources.insert(number, SupSource::new(document, now));
        self.by_url.insert(document.clone(), number);
        number
    }

    /// Removes a SUP document that no feed announces any more.
    pub(super) fn forget(&mut self, number: SourceNumber) {
        if let Some(source) = self.sources.remove(&number) {
            self.by_url.remove(&source.announced);
            if let Some(due) = source.due {
                self.source_turns.remove(&(due, number));
            }
        }
    }

    pub(super) fn hear(&mut self, number: SourceNumber, now: Duration) -> NextAction {
        self.tally.documents += 1;
        let source = self.source_mut(number);
        // A request in flight has no turn: `heard` sets the next turn.
        source.due = None;
        source.is_asked = true;
        source.asked_at = now;
        NextAction::Hear {
            source: number,
            document: source.announced.clone(),
            url: source.next_url(),
            // A stale cache can be the reason for the failure.
            fresh: source.condition == Condition::Broken,
        }
    }

    /// Handles the result of a request for a SUP document.
    pub fn heard(&mut self, number: SourceNumber, now: Duration, heard: SupResult) {
        let Some(source) = self.sources.get_mut(&number) else {
            // The last feed that announced the document left while the request was in flight.
            return;
        };
        source.is_asked = false;
        self.take_answer(number, now, heard);
        // Pings wait for the end of the walk: only then does `told` hold the newest update of each
        // feed.
        if matches!(self.source_numbered(number).asking, SourceRequest::Current) {
            self.ping(number, now);
        }
    }

    /// Handles the newest document of a source that came without a request of the watch. The
    /// document is ignored while a request is under way or the watch closes a gap, because the
    /// answers bring the same updates.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use simplefeed_core::{sup::SupDocument, watch::{Pace, SourceNumber, Watch}};
    ///
    /// let pace = Pace { interval: Duration::from_secs(60), sup_interval: Duration::ZERO };
    /// let mut watch = Watch::new(pace, 7);
    /// let document = r#"{"updated_time":"2026-01-01T00:01:10Z","since_time":"2026-01-01T00:00:00Z",
    ///     "period":60,"updates":[]}"#;
    /// let document = SupDocument::read(document.as_bytes())?;
    /// watch.overheard(SourceNumber(1), Duration::ZERO, document); // of a source that nobody announces
    /// # Ok::<(), simplefeed_core::sup::InvalidSup>(())
    /// ```
    pub fn overheard(&mut self, number: SourceNumber, now: Duration, document: SupDocument) {
        self.tally.documents += 1;
        let is_free = self.sources.get(&number).is_some_and(|source| {
            !source.is_asked && matches!(source.asking, SourceRequest::Current)
        });
        if is_free {
            self.heard(number, now, SupResult::Document(document));
        }
    }

    fn take_answer(&mut self, number: SourceNumber, now: Duration, heard: SupResult) {
        let source = self.source_mut(number);
        // The next request is for the current document, unless an arm begins or continues to close
        // a gap.
        let asked = std::mem::replace(&mut source.asking, SourceRequest::Current);
        match (asked, heard) {
            (SourceRequest::Current, SupResult::Document(document)) => {
                self.take_current(number, now, &document);
            }
            (SourceRequest::Current, SupResult::Same) => {
                source.failures = 0;
                self.stands_still(number, now, None);
                self.ask_later(number, now);
            }
            (SourceRequest::Current, SupResult::Nothing { retry_after }) => {
                self.note_source_failure(number, now, retry_after);
            }
            (SourceRequest::Archived(chase), SupResult::Document(document)) => {
                self.take_archived(number, now, &document, chase);
            }
            (SourceRequest::Archived(chase), SupResult::Nothing { retry_after }) => {
                self.archive_unheard(number, now, chase, retry_after);
            }
            // The watch holds no copy of an archived document, so "unchanged" is no answer.
            (SourceRequest::Archived(chase), SupResult::Same) => {
                self.archive_unheard(number, now, chase, None);
            }
            (SourceRequest::Longer { since, until, .. }, SupResult::Document(document)) => {
                let last = source.updated;
                self.take_window(number, now, &document);
                // The window must overlap the known updates on one side and the newest document on
                // the other.
                let is_late = last.is_some_and(|last| document.since > last);
                if is_late || document.updated < since {
                    self.sweep_feeds(number, now);
                }
                self.know_until(number, now, until.max(document.updated));
                self.ask_later(number, now);
            }
            (SourceRequest::Longer { until, .. }, _) => {
                self.sweep_feeds(number, now);
                self.know_until(number, now, until);
                self.ask_later(number, now);
            }
        }
    }

    /// Handles the newest document.
    fn take_current(&mut self, number: SourceNumber, now: Duration, document: &SupDocument) {
        if self.turns_to_another_window(number, now, document) {
            return;
        }
        // Periods come from the publisher, so they are bounded before any arithmetic.
        let source = self.source_mut(number);
        source.failures = 0;
        source.period = Duration::from_secs(document.period).clamp(
            EVERY_MIN,
            Duration::from_secs(SUP_PERIOD_SECONDS_MAX.into()),
        );
        let had = std::mem::replace(&mut source.is_archived, document.is_archived);
        let relies_otherwise = had != document.is_archived;
        // `updated` keeps its value until a gap is closed; each document sets `glimpsed`.
        let (last, glimpsed) = (source.updated, source.glimpsed.replace(document.updated));
        if relies_otherwise && source.condition == Condition::Working {
            self.relax_feeds(number, now);
        }
        // The pairs count in any case, even if a gap hides other pairs.
        self.take_window(number, now, document);
        match last {
            Some(last) if document.updated <= last => {
                self.stands_still(
                    number,
                    now,
                    glimpsed.filter(|before| document.updated > *before),
                );
                self.ask_later(number, now);
            }
            Some(last) if document.since > last => self.begin_gap(number, now, document, last),
            Some(_) => {
                self.know_until(number, now, document.updated);
                self.ask_later(number, now);
            }
            None => {
                // No older updates precede an archived document without a predecessor.
                if document.prev_archive.is_some() || !document.is_archived {
                    self.look_at_what_is_older(number, now, document);
                }
                self.know_until(number, now, document.updated);
                self.ask_later(number, now);
            }
        }
    }

    /// Chooses a window that need not be heard more often than the pace wants (rule SUP-C6).
    /// Returns whether the watch requests another window now.
    fn turns_to_another_window(
        &mut self,
        number: SourceNumber,
        now: Duration,
        document: &SupDocument,
    ) -> bool {
        let wanted = self.pace.sup_interval;
        let suits = |seconds: u64| look_interval(Duration::from_secs(seconds)) >= wanted;
        let source = self.source_mut(number);
        // The announced window suits, or another window is in use already or has failed.
        if suits(document.period) || source.url != source.announced || source.has_no_other {
            return false;
        }
        let longer = document
            .periods
            .iter()
            .find(|(seconds, _)| suits(**seconds));
        let longest = || document.periods.iter().next_back();
        let longer = longer.or_else(longest);
        let longer = longer.filter(|(seconds, _)| **seconds > document.period);
        let url = longer.and_then(|(_, url)| Url::parse(url).ok());
        let Some(url) = url.filter(|url| *url != source.url) else {
            return false;
        };
        source.url = url;
        self.ask_at(number, now);
        true
    }

    /// Starts to close a gap (rule SUP-C5).
    fn begin_gap(
        &mut self,
        number: SourceNumber,
        now: Duration,
        document: &SupDocument,
        last: Timestamp,
    ) {
        let until = document.updated;
        if document.is_archived && document.prev_archive.is_none() {
            // No document precedes this one, so there is nothing to miss.
            self.know_until(number, now, until);
            return self.ask_later(number, now);
        }
        self.tally.gaps += 1;
        let source = self.source_mut(number);
        let missed = until.second().saturating_sub(last.second());
        let reaches = |seconds: u64| i64::try_from(seconds).is_ok_and(|seconds| seconds >= missed);
        let mut periods = document.periods.iter();
        let longer = periods.find(|(seconds, _)| reaches(**seconds));
        let longer = longer.and_then(|(_, url)| Url::parse(url).ok());
        // The gap lies before the window in use, so that window cannot close the gap.
        let longer = longer.filter(|url| *url != source.url);
        let previous = document.prev_archive.as_deref();
        match previous.and_then(|previous| Url::parse(previous).ok()) {
            Some(url) => {
                source.asking = SourceRequest::Archived(Chase {
                    url,
                    until,
                    since: document.since,
                    newest: document.since,
                    // The newest document is the first of the walk.
                    walked: 1,
                    tries: 0,
                    longer,
                });
                self.ask_at(number, now);
            }
            None => self.another_way(number, now, document.since, until, longer),
        }
    }

    /// Handles an archived document, and walks on to the document before if need be.
    fn take_archived(
        &mut self,
        number: SourceNumber,
        now: Duration,
        document: &SupDocument,
        chase: Chase,
    ) {
        // A current window never lists archived pairs again, so the walk need not remember these
        // pairs.
        self.take_pairs(number, now, document);
        let (newest, until) = (chase.newest, chase.until);
        if document.updated < chase.since {
            // A document between this document and the last one of the walk is missing.
            return self.another_way(number, now, newest, until, chase.longer);
        }
        let last = self.source_numbered(number).updated;
        let reaches = last.is_none_or(|last| document.since <= last);
        if reaches || (document.is_archived && document.prev_archive.is_none()) {
            self.know_until(number, now, chase.until);
            return self.ask_later(number, now);
        }
        let previous = document.prev_archive.as_deref();
        let previous = previous.and_then(|previous| Url::parse(previous).ok());
        // A walk that does not lead back in time could go in a circle.
        let leads = document.since < chase.since && chase.walked < SUP_WALK_MAX;
        match previous.filter(|_| leads) {
            Some(url) => {
                self.source_mut(number).asking = SourceRequest::Archived(Chase {
                    url,
                    since: document.since,
                    walked: chase.walked + 1,
                    tries: 0,
                    ..chase
                });
                self.ask_at(number, now);
            }
            None => self.another_way(number, now, newest, until, chase.longer),
        }
    }

    fn archive_unheard(
        &mut self,
        number: SourceNumber,
        now: Duration,
        chase: Chase,
        retry_after: Option<Duration>,
    ) {
        let tries = chase.tries + 1;
        if tries == ARCHIVE_TRIES {
            let Chase {
                newest,
                until,
                longer,
                ..
            } = chase;
            return self.another_way(number, now, newest, until, longer);
        }
        self.source_mut(number).asking = SourceRequest::Archived(Chase { tries, ..chase });
        let most = Duration::from_secs(BACK_OFF_SECONDS_MAX);
        // Pings wait for the walk, so `Retry-After` counts up to a minute only.
        let asked = retry_after.unwrap_or_default().min(most);
        // The pauses are 2 and 4 seconds: no pause follows the last try.
        self.ask_at(number, now + Duration::from_secs(1 << tries).max(asked));
    }

    /// Closes a gap from a longer window, or by looking at every feed.
    fn another_way(
        &mut self,
        number: SourceNumber,
        now: Duration,
        since: Timestamp,
        until: Timestamp,
        longer: Option<Url>,
    ) {
        if let Some(url) = longer {
            self.source_mut(number).asking = SourceRequest::Longer { url, since, until };
            return self.ask_at(number, now);
        }
        self.sweep_feeds(number, now);
        self.know_until(number, now, until);
        self.ask_later(number, now);
    }

    /// Sets the end of the known updates to `until`.
    fn know_until(&mut self, number: SourceNumber, now: Duration, until: Timestamp) {
        let source = self.source_mut(number);
        source.updated = Some(until);
        source.moved_at = now;
        let had = std::mem::replace(&mut source.condition, Condition::Working);
        if had != Condition::Working {
            self.relax_feeds(number, now);
        }
    }

    /// Handles a document that has not changed, or that ends no later than the known updates. For a
    /// while, such a document counts as an old copy from a cache. `revived` is `Some` if the
    /// document nevertheless ends later than the copy that was heard before.
    fn stands_still(&mut self, number: SourceNumber, now: Duration, revived: Option<Timestamp>) {
        let source = self.source_mut(number);
        // The time to wait depends on the slower of the publisher and the watch.
        if now < source.moved_at + 2 * source.period.max(self.pace.sup_interval) + STILL_SLACK {
            return;
        }
        match revived.and(self.source_numbered(number).glimpsed) {
            Some(ends) => {
                // The publisher's clock was set back. Updates listed under the old clock can be
                // missing.
                self.sweep_feeds(number, now);
                self.know_until(number, now, ends);
            }
            None => self.break_off(number, now),
        }
    }

    /// Handles a failed request for the document (rule SUP-C8).
    fn note_source_failure(
        &mut self,
        number: SourceNumber,
        now: Duration,
        retry_after: Option<Duration>,
    ) {
        let source = self.source_mut(number);
        // 6 doublings exceed the longest pause already, and bound the shift.
        let pause = Duration::from_secs(1 << source.failures.min(6));
        let pause = pause.min(Duration::from_secs(BACK_OFF_SECONDS_MAX));
        source.failures = source.failures.saturating_add(1);
        if source.url == source.announced {
            // The announced document fails as well, so the longer window was not the cause.
            source.has_no_other = false;
        } else if source.failures > 2 {
            // The publisher may have dropped the window, or the client may not access the URL.
            source.url = source.announced.clone();
            source.has_no_other = true;
        }
        self.break_off(number, now);
        let asked = retry_after.unwrap_or_default();
        let pause = pause.max(asked.min(Duration::from_secs(PAUSE_SECONDS_MAX)));
        // Watchers that lost the same server must not return all at once.
        let jitter = self.spread_over(pause / 4);
        self.ask_at(number, now + pause + jitter);
    }

    /// Stops relying on a document until the document works again.
    fn break_off(&mut self, number: SourceNumber, now: Duration) {
        let source = self.source_mut(number);
        let had = std::mem::replace(&mut source.condition, Condition::Broken);
        // Feeds already wait at the usual interval while the document is broken.
        if had != Condition::Broken {
            for feed in self.source_numbered(number).all_feeds() {
                let pause = self.spread_over(self.pace.interval);
                self.call(feed, now + pause, Why::Background);
            }
        }
    }

    /// Plans anew the next look at each feed whose next look is for safety only.
    fn relax_feeds(&mut self, number: SourceNumber, now: Duration) {
        for feed in self.source_numbered(number).all_feeds() {
            if self.feed_numbered(feed).is_in_background() {
                self.rest_apart(feed, now);
            }
        }
    }

    /// Schedules a look at every feed, because updates may have been missed.
    fn sweep_feeds(&mut self, number: SourceNumber, now: Duration) {
        self.tally.sweeps += 1;
        let over = self.pace.interval;
        self.look_at_all(number, now, over, |_| true);
    }

    /// Schedules a look at each feed that may have changed between the last look and the beginning
    /// of the first document.
    fn look_at_what_is_older(
        &mut self,
        number: SourceNumber,
        now: Duration,
        document: &SupDocument,
    ) {
        let source = self.source_numbered(number);
        // The window has ended by now, so this is the latest time at which the window can have
        // begun. A look before the request for the document does not count, either.
        let window = document.updated.micros().abs_diff(document.since.micros());
        let begins = now.saturating_sub(Duration::from_micros(window));
        let begins = begins.max(source.asked_at);
        // A new document has few feeds to look at; after a long failure, there are many.
        let over = match source.condition {
            Condition::New => FIRST_WITHIN,
            Condition::Working | Condition::Broken => self.pace.interval,
        };
        self.look_at_all(number, now, over, |seen_until| {
            seen_until.is_none_or(|seen_until| seen_until < begins)
        });
    }

    /// Schedules looks at feeds, spread over `over`, if `is_wanted` accepts the time up to which a
    /// feed was read.
    fn look_at_all(
        &mut self,
        number: SourceNumber,
        now: Duration,
        over: Duration,
        is_wanted: impl Fn(Option<Duration>) -> bool,
    ) {
        for feed in self.source_numbered(number).all_feeds() {
            if is_wanted(self.feed_numbered(feed).seen_until) {
                self.owe(feed);
                let pause = self.spread_over(over);
                self.call(feed, now + pause, Why::Background);
            }
        }
    }

    fn ask_later(&mut self, number: SourceNumber, now: Duration) {
        let source = self.source_numbered(number);
        let wanted = self.pace.sup_interval;
        let every = look_interval(source.period);
        // Without archives, a pace slower than the period allows would cause a gap at each look.
        let overlaps = source.is_archived || wanted <= source.period * 4 / 5;
        let pause = if wanted > Duration::ZERO && overlaps {
            // The pace includes the pause for caches before each ping.
            wanted.saturating_sub(CACHED).max(EVERY_MIN)
        } else {
            every
        };
        self.ask_at(number, now + pause);
    }

    pub(super) fn ask_at(&mut self, number: SourceNumber, at: Duration) {
        let source = self.source_mut(number);
        // Each source has one turn at most.
        let before = source.due.replace(at);
        if let Some(before) = before {
            self.source_turns.remove(&(before, number));
        }
        self.source_turns.insert((at, number));
    }
}
