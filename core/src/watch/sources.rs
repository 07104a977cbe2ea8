//! The SUP documents of a watch: which one is asked for, and what follows from it.
//!
//! Pure.

use std::{collections::HashMap, time::Duration};

use url::Url;

use super::{
    Condition, FeedNumber, Heard, Next, SourceNumber, Watch,
    feeds::{CACHED, Why},
};
use crate::{
    instant::Instant,
    limits::{BACK_OFF_SECONDS_MAX, PAUSE_SECONDS_MAX, SUP_PERIOD_SECONDS_MAX, SUP_WALK_MAX},
    sup::SupDocument,
};

/// How often an archived document is asked for before there must be another way.
const ARCHIVE_TRIES: u32 = 3;
/// The shortest and the longest time between two looks at a SUP document.
const EVERY_MIN: Duration = Duration::from_secs(1);
const EVERY_MAX: Duration = Duration::from_hours(1);
/// How long a document may stand still beside two periods before it is taken for broken.
const STILL_SLACK: Duration = Duration::from_secs(10);
/// How long it takes to look again at what was looked at before the first document was.
const FIRST_WITHIN: Duration = Duration::from_mins(1);
#[derive(Debug)]
pub(super) struct Source {
    /// As announced.
    pub(super) announced: Url,
    /// Where the window is that suits us.
    url: Url,
    /// Whether another one could not be had.
    has_no_other: bool,
    pub(super) feeds: HashMap<Box<str>, Vec<FeedNumber>>,
    pub(super) condition: Condition,
    pub(super) is_archived: bool,
    pub(super) period: Duration,
    due: Option<Duration>,
    asking: Asking,
    is_asked: bool,
    asked_at: Duration,
    /// Every update up to here is known.
    pub(super) updated: Option<Instant>,
    /// When that last moved.
    moved_at: Duration,
    /// When pairs were taken last.
    pub(super) heard_at: Option<Duration>,
    /// The end of the document that was heard last.
    glimpsed: Option<Instant>,
    /// The feeds that documents have told of, and the newest update of each, until it is known that no
    /// other document is to be heard first.
    pub(super) told: HashMap<FeedNumber, Box<str>>,
    /// The pairs that are known, and the end of the last document that had them.
    pub(super) seen: HashMap<u64, Instant>,
    /// The pairs of the last window that are of no feed of ours, and when they were told first: whoever joins
    /// later was looked at after that.
    pub(super) others: HashMap<u64, Duration>,
    failures: u32,
}

/// What is asked for next.
#[derive(Clone, Debug)]
enum Asking {
    Current,
    Archived(Chase),
    /// A longer window, which must reach from what is known to `since`; then everything up to `until` is.
    Longer {
        url: Url,
        since: Instant,
        until: Instant,
    },
}

/// A walk back over archived documents.
#[derive(Clone, Debug)]
struct Chase {
    /// The next one.
    url: Url,
    /// When the last of them is heard, everything up to here is known.
    until: Instant,
    /// Where the one before began: this one must reach there.
    since: Instant,
    /// Where the newest document began.
    newest: Instant,
    walked: usize,
    /// How often this one was asked for in vain.
    tries: u32,
    /// The window that reaches back as far, if there is one.
    longer: Option<Url>,
}

impl Source {
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
            asking: Asking::Current,
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

    /// Returns what to ask for.
    fn wanted(&self) -> Url {
        match &self.asking {
            Asking::Current => self.url.clone(),
            Asking::Archived(chase) => chase.url.clone(),
            Asking::Longer { url, .. } => url.clone(),
        }
    }

    /// Whether nobody announces it.
    pub(super) fn is_idle(&self) -> bool {
        self.feeds.is_empty()
    }

    /// Adds a feed. Returns whether it must be asked for now.
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

/// Returns how often to look at a document of a period: a little faster than that (rule SUP-C3).
fn every(period: Duration) -> Duration {
    // Bounded first: a publisher may say anything.
    (period.min(2 * EVERY_MAX) * 4 / 5).clamp(EVERY_MIN, EVERY_MAX)
}

impl Watch {
    pub(super) fn source_at(&mut self, document: &Url, now: Duration) -> SourceNumber {
        if let Some(source) = self.by_url.get(document) {
            return *source;
        }
        let number = SourceNumber(self.sources_before);
        self.sources_before += 1;
        self.sources.insert(number, Source::new(document, now));
        self.by_url.insert(document.clone(), number);
        number
    }

    /// Forgets a SUP document that no feed announces any more.
    pub(super) fn forget(&mut self, number: SourceNumber) {
        if let Some(source) = self.sources.remove(&number) {
            self.by_url.remove(&source.announced);
            if let Some(due) = source.due {
                self.source_turns.remove(&(due, number));
            }
        }
    }

    pub(super) fn hear(&mut self, number: SourceNumber, now: Duration) -> Next {
        self.tally.documents += 1;
        let source = self.source_mut(number);
        source.due = None;
        source.is_asked = true;
        source.asked_at = now;
        Next::Hear {
            source: number,
            document: source.announced.clone(),
            url: source.wanted(),
            fresh: source.condition == Condition::Broken,
        }
    }

    /// Takes what came of asking for a SUP document.
    pub fn heard(&mut self, number: SourceNumber, now: Duration, heard: Heard) {
        let Some(source) = self.sources.get_mut(&number) else {
            // Nobody announces it any more.
            return;
        };
        source.is_asked = false;
        self.take(number, now, heard);
        if matches!(self.source(number).asking, Asking::Current) {
            self.ping(number, now);
        }
    }

    fn take(&mut self, number: SourceNumber, now: Duration, heard: Heard) {
        let source = self.source_mut(number);
        let asked = std::mem::replace(&mut source.asking, Asking::Current);
        match (asked, heard) {
            (Asking::Current, Heard::Document(document)) => self.current(number, now, &document),
            (Asking::Current, Heard::Same) => {
                source.failures = 0;
                self.stands_still(number, now, None);
                self.ask_later(number, now);
            }
            (Asking::Current, Heard::Nothing { retry_after }) => {
                self.unheard(number, now, retry_after);
            }
            (Asking::Archived(chase), Heard::Document(document)) => {
                self.archived(number, now, &document, chase);
            }
            (Asking::Archived(chase), Heard::Nothing { retry_after }) => {
                self.archive_unheard(number, now, chase, retry_after);
            }
            (Asking::Archived(chase), Heard::Same) => {
                self.archive_unheard(number, now, chase, None);
            }
            (Asking::Longer { since, until, .. }, Heard::Document(document)) => {
                let last = source.updated;
                self.take_window(number, now, &document);
                let is_late = last.is_some_and(|last| document.since > last);
                if is_late || document.updated < since {
                    self.sweep(number, now);
                }
                self.know(number, now, until.max(document.updated));
                self.ask_later(number, now);
            }
            (Asking::Longer { until, .. }, _) => {
                self.sweep(number, now);
                self.know(number, now, until);
                self.ask_later(number, now);
            }
        }
    }

    /// Takes the newest document.
    fn current(&mut self, number: SourceNumber, now: Duration, document: &SupDocument) {
        if self.turns_to_another_window(number, now, document) {
            return;
        }
        let source = self.source_mut(number);
        source.failures = 0;
        source.period = Duration::from_secs(document.period).clamp(
            EVERY_MIN,
            Duration::from_secs(SUP_PERIOD_SECONDS_MAX.into()),
        );
        let had = std::mem::replace(&mut source.is_archived, document.is_archived);
        let relies_otherwise = had != document.is_archived;
        let (last, glimpsed) = (source.updated, source.glimpsed.replace(document.updated));
        if relies_otherwise && source.condition == Condition::Working {
            self.relax(number, now);
        }
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
            Some(last) if document.since > last => self.gap(number, now, document, last),
            Some(_) => {
                self.know(number, now, document.updated);
                self.ask_later(number, now);
            }
            None => {
                if document.prev_archive.is_some() || !document.is_archived {
                    self.look_at_what_is_older(number, now, document);
                }
                self.know(number, now, document.updated);
                self.ask_later(number, now);
            }
        }
    }

    /// Chooses a window that need not be heard more often than is wanted (rule SUP-C6). Returns whether
    /// another one is asked for now.
    fn turns_to_another_window(
        &mut self,
        number: SourceNumber,
        now: Duration,
        document: &SupDocument,
    ) -> bool {
        let wanted = self.pace.sup_interval;
        let suits = |seconds: u64| every(Duration::from_secs(seconds)) >= wanted;
        let source = self.source_mut(number);
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

    /// Finds out what was missed (rule SUP-C5).
    fn gap(&mut self, number: SourceNumber, now: Duration, document: &SupDocument, last: Instant) {
        let until = document.updated;
        if document.is_archived && document.prev_archive.is_none() {
            // There was nothing before it.
            self.know(number, now, until);
            return self.ask_later(number, now);
        }
        self.tally.gaps += 1;
        let source = self.source_mut(number);
        let missed = until.second().saturating_sub(last.second());
        let reaches = |seconds: u64| i64::try_from(seconds).is_ok_and(|seconds| seconds >= missed);
        let mut periods = document.periods.iter();
        let longer = periods.find(|(seconds, _)| reaches(**seconds));
        let longer = longer.and_then(|(_, url)| Url::parse(url).ok());
        let longer = longer.filter(|url| *url != source.url);
        let previous = document.prev_archive.as_deref();
        match previous.and_then(|previous| Url::parse(previous).ok()) {
            Some(url) => {
                source.asking = Asking::Archived(Chase {
                    url,
                    until,
                    since: document.since,
                    newest: document.since,
                    walked: 1,
                    tries: 0,
                    longer,
                });
                self.ask_at(number, now);
            }
            None => self.another_way(number, now, document.since, until, longer),
        }
    }

    /// Takes an archived document, and goes on to the one before if need be.
    fn archived(
        &mut self,
        number: SourceNumber,
        now: Duration,
        document: &SupDocument,
        chase: Chase,
    ) {
        // What is archived is told no more: its pairs need not be known again.
        self.take_pairs(number, now, document);
        let (newest, until) = (chase.newest, chase.until);
        if document.updated < chase.since {
            // Something is missing between them.
            return self.another_way(number, now, newest, until, chase.longer);
        }
        let last = self.source(number).updated;
        let reaches = last.is_none_or(|last| document.since <= last);
        if reaches || (document.is_archived && document.prev_archive.is_none()) {
            self.know(number, now, chase.until);
            return self.ask_later(number, now);
        }
        let previous = document.prev_archive.as_deref();
        let previous = previous.and_then(|previous| Url::parse(previous).ok());
        // A way that does not lead back leads nowhere.
        let leads = document.since < chase.since && chase.walked < SUP_WALK_MAX;
        match previous.filter(|_| leads) {
            Some(url) => {
                self.source_mut(number).asking = Asking::Archived(Chase {
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
        self.source_mut(number).asking = Asking::Archived(Chase { tries, ..chase });
        let most = Duration::from_secs(BACK_OFF_SECONDS_MAX);
        let asked = retry_after.unwrap_or_default().min(most);
        self.ask_at(number, now + Duration::from_secs(1 << tries).max(asked));
    }

    /// Closes a gap from a longer window, or by looking at every feed.
    fn another_way(
        &mut self,
        number: SourceNumber,
        now: Duration,
        since: Instant,
        until: Instant,
        longer: Option<Url>,
    ) {
        if let Some(url) = longer {
            self.source_mut(number).asking = Asking::Longer { url, since, until };
            return self.ask_at(number, now);
        }
        self.sweep(number, now);
        self.know(number, now, until);
        self.ask_later(number, now);
    }

    /// Takes it that every update up to `until` is known.
    fn know(&mut self, number: SourceNumber, now: Duration, until: Instant) {
        let source = self.source_mut(number);
        source.updated = Some(until);
        source.moved_at = now;
        let had = std::mem::replace(&mut source.condition, Condition::Working);
        if had != Condition::Working {
            self.relax(number, now);
        }
    }

    /// Bears a document that ends no later than what is known: an old copy from some cache, for a while.
    /// `revived` is there if it has moved all the same since it was heard before.
    fn stands_still(&mut self, number: SourceNumber, now: Duration, revived: Option<Instant>) {
        let source = self.source_mut(number);
        if now < source.moved_at + 2 * source.period.max(self.pace.sup_interval) + STILL_SLACK {
            return;
        }
        match revived.and(self.source(number).glimpsed) {
            Some(ends) => {
                // Its clock was set back. What was told by the old one is not known.
                self.sweep(number, now);
                self.know(number, now, ends);
            }
            None => self.break_off(number, now),
        }
    }

    /// Bears that there is no document (rule SUP-C8).
    fn unheard(&mut self, number: SourceNumber, now: Duration, retry_after: Option<Duration>) {
        let source = self.source_mut(number);
        let pause = Duration::from_secs(1 << source.failures.min(6));
        let pause = pause.min(Duration::from_secs(BACK_OFF_SECONDS_MAX));
        source.failures = source.failures.saturating_add(1);
        if source.url == source.announced {
            // Then it was not for that window alone.
            source.has_no_other = false;
        } else if source.failures > 2 {
            // It may be offered no more, or be where we may not go.
            source.url = source.announced.clone();
            source.has_no_other = true;
        }
        self.break_off(number, now);
        let asked = retry_after.unwrap_or_default();
        let pause = pause.max(asked.min(Duration::from_secs(PAUSE_SECONDS_MAX)));
        let jitter = self.spread(pause / 4);
        self.ask_at(number, now + pause + jitter);
    }

    /// Relies on a document no more, until it works again.
    fn break_off(&mut self, number: SourceNumber, now: Duration) {
        let source = self.source_mut(number);
        let had = std::mem::replace(&mut source.condition, Condition::Broken);
        if had != Condition::Broken {
            for feed in self.source(number).all_feeds() {
                let pause = self.spread(self.pace.interval);
                self.call(feed, now + pause, Why::Background);
            }
        }
    }

    /// Lets all feeds rest that are not owed a look.
    fn relax(&mut self, number: SourceNumber, now: Duration) {
        for feed in self.source(number).all_feeds() {
            if self.feed(feed).is_in_background() {
                self.rest_apart(feed, now);
            }
        }
    }

    /// Has every feed looked at once, because something may have been missed.
    fn sweep(&mut self, number: SourceNumber, now: Duration) {
        self.tally.sweeps += 1;
        let over = self.pace.interval;
        self.look_at_all(number, now, over, |_| true);
    }

    /// Has those feeds looked at that may have changed between the last look at them and the beginning of the
    /// first document.
    fn look_at_what_is_older(
        &mut self,
        number: SourceNumber,
        now: Duration,
        document: &SupDocument,
    ) {
        let source = self.source(number);
        // It begins before it was asked for, unless that took longer than it lasts.
        let window = document.updated.micros().abs_diff(document.since.micros());
        let begins = now.saturating_sub(Duration::from_micros(window));
        let begins = begins.max(source.asked_at);
        // Those are few, unless there was no document for long.
        let over = match source.condition {
            Condition::New => FIRST_WITHIN,
            Condition::Working | Condition::Broken => self.pace.interval,
        };
        self.look_at_all(number, now, over, |seen_until| {
            seen_until.is_none_or(|seen_until| seen_until < begins)
        });
    }

    /// Has feeds looked at, over some time, if that is wanted by the time up to which they were read.
    fn look_at_all(
        &mut self,
        number: SourceNumber,
        now: Duration,
        over: Duration,
        is_wanted: impl Fn(Option<Duration>) -> bool,
    ) {
        for feed in self.source(number).all_feeds() {
            if is_wanted(self.feed(feed).seen_until) {
                self.owe(feed);
                let pause = self.spread(over);
                self.call(feed, now + pause, Why::Background);
            }
        }
    }

    fn ask_later(&mut self, number: SourceNumber, now: Duration) {
        let source = self.source(number);
        let wanted = self.pace.sup_interval;
        let every = every(source.period);
        // Whoever asks more rarely than windows overlap misses something each time.
        let overlaps = source.is_archived || wanted <= source.period * 4 / 5;
        let pause = if wanted > Duration::ZERO && overlaps {
            // So that feeds are looked at as often as is wanted.
            wanted.saturating_sub(CACHED).max(EVERY_MIN)
        } else {
            every
        };
        self.ask_at(number, now + pause);
    }

    pub(super) fn ask_at(&mut self, number: SourceNumber, at: Duration) {
        let source = self.source_mut(number);
        let before = source.due.replace(at);
        if let Some(before) = before {
            self.source_turns.remove(&(before, number));
        }
        self.source_turns.insert((at, number));
    }
}
