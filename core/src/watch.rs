//! Schedule of looks at many feeds.
//!
//! Pure: times are durations since an arbitrary beginning. Rules SUP-C1 to SUP-C12.
//!
//! The watch groups feeds by the SUP document that they announce. While the document works, a
//! prompt look at a feed needs a *ping*: a new pair in the document. As a safety net, the watch
//! also looks at feeds without a ping, ten times less often than without SUP. Feeds whose publisher
//! archives SUP documents need no safety net, because archives close every gap. A *gap* arises if a
//! document begins after the end of the last document that the watch has heard. The watch closes a
//! gap with the archived documents, or else with a document of a longer window, or else with one
//! look at every feed.
//!
//! ```text
//!             heard                 ping        feed's turn
//! document ──────────► pairs ──────────────► look ──────► its entries
//!     │                                        ▲
//!     ├── gap ──► archived documents ──► pairs ─┤
//!     │           or a longer window            │
//!     │           or else ──► a sweep ──────────┤
//!     └── broken ──► every feed, at the usual interval
//! ```
//!
//! `watch/feeds.rs` handles the result of a look, `watch/sources.rs` handles the result of a
//! request for a document, and `watch/pairs.rs` finds the new pairs of a document.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    hash::RandomState,
    time::Duration,
};

use url::Url;

use crate::{
    limits::{WATCH_SECONDS_MAX, WATCH_SECONDS_MIN},
    sup::{Announcement, SupAddress, SupDocument},
    timestamp::Timestamp,
};

mod feeds;
mod pairs;
mod sources;

use feeds::{FeedSchedule, Why};
use sources::SupSource;

/// Times between looks. A longer time counts as [`WATCH_SECONDS_MAX`], and a shorter `interval` as
/// [`WATCH_SECONDS_MIN`].
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Time between looks at a feed without SUP.
    pub interval: Duration,
    /// Time between looks at a SUP document. Zero means that the document's period sets this time.
    /// So does the period if looks at this pace would cause gaps.
    pub sup_interval: Duration,
}

/// Number of a watched feed, in the order of the calls of [`Watch::add_feed`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FeedNumber(pub u32);

/// Number of a SUP document, in the order in which feeds first announced them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SourceNumber(pub u64);

/// Next action of the caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NextAction {
    /// Look at a feed, then report the result with [`Watch::looked`].
    Look {
        /// Feed to look at.
        feed: FeedNumber,
        /// Whether the request must bypass caches: at the first look, and if the feed may have
        /// changed (rule SUP-C12).
        fresh: bool,
    },
    /// Request a SUP document, then report the result with [`Watch::heard`].
    Hear {
        /// Number under which to report the result.
        source: SourceNumber,
        /// URL of the document in the announcements of feeds.
        document: Url,
        /// URL to request: the announced URL, or the URL of another window or of an archived
        /// document.
        url: Url,
        /// Whether the request must bypass caches, because the document counts as broken.
        fresh: bool,
    },
    /// Nothing to do before this time.
    Wait(Duration),
    /// Nothing to do before the caller reports a result.
    Nothing,
}

impl NextAction {
    /// Returns the time before which there is nothing to do; `None` unless the action is to wait.
    pub fn due(&self) -> Option<Duration> {
        match self {
            Self::Wait(due) => Some(*due),
            Self::Look { .. } | Self::Hear { .. } | Self::Nothing => None,
        }
    }
}

/// Result of a look at a feed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LookResult {
    /// The look read the feed, and every new entry is handled.
    Read {
        /// Whether the feed had new entries.
        news: bool,
        /// Whether a cache served a copy past the freshness lifetime.
        stale: bool,
        /// Announcement of a SUP document, as far as the representation shows one.
        sup: Announcement,
    },
    /// The look could not read the feed, or not to the end.
    Failed {
        /// Whether the feed had new entries before the failure.
        news: bool,
        /// Whether retries are useless before the feed is repaired.
        for_good: bool,
        /// Pause that the server asks for (`Retry-After`).
        retry_after: Option<Duration>,
    },
}

/// Result of a request for a SUP document.
#[derive(Clone, Debug)]
pub enum SupResult {
    /// A document with absolute URLs ([`SupDocument::resolved`]).
    Document(SupDocument),
    /// The document has not changed since the last request (304).
    Same,
    /// No document arrived, or an invalid one.
    Nothing {
        /// Pause that the server asks for (`Retry-After`).
        retry_after: Option<Duration>,
    },
}

/// Condition of a SUP document, which decides whether the watch relies on the document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// No request for the document has succeeded yet.
    New,
    /// The watch relies on the document's pings.
    Working,
    /// The document fails, so the watch looks at the document's feeds at the usual interval.
    Broken,
}

/// Counts of actions since the start, for an operator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WatchTally {
    /// Looks because a SUP document listed an update.
    pub pings: u64,
    /// Looks to find the announcement of a SUP document.
    pub first: u64,
    /// Looks for safety: in the background, in a sweep, or while SUP is broken.
    pub background: u64,
    /// Requests for SUP documents, archived ones included.
    pub documents: u64,
    /// Gaps between two SUP documents, whether closed or not.
    pub gaps: u64,
    /// Times that all feeds of a document were owed a look: a gap that nothing else closed, or a
    /// publisher's clock that was set back.
    pub sweeps: u64,
}

/// Schedule of feeds and SUP documents.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use simplefeed_core::{
///     sup::{SupAddress, SupDocument},
///     watch::{SupResult, LookResult, NextAction, Pace, Watch},
/// };
///
/// let half_an_hour = Duration::from_secs(1800);
/// let mut watch = Watch::new(Pace { interval: half_an_hour, sup_interval: Duration::ZERO }, 0);
/// let feed = watch.add_feed(None, None);
/// let mut now = Duration::ZERO;
/// assert_eq!(watch.next(now), NextAction::Look { feed, fresh: true });
/// let sup = SupAddress::parse("https://e/sup.json#a", &"https://e/".parse()?);
/// watch.looked(feed, now, LookResult::Read { news: false, stale: false, sup: sup.into() });
///
/// let NextAction::Hear { source, .. } = watch.next(now) else { panic!() };
/// let document = br#"{"updated_time":"2009-01-06T01:16:45Z","since_time":"2009-01-06T01:15:35Z",
///     "period":60,"updates":[["a","1"]]}"#;
/// watch.heard(source, now, SupResult::Document(SupDocument::read(document)?));
/// now += Duration::from_secs(2); // for caches that do not listen
/// assert_eq!(watch.next(now), NextAction::Look { feed, fresh: true });
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Watch {
    pace: Pace,
    feeds: Vec<FeedSchedule>,
    /// The documents that at least one feed announces.
    sources: HashMap<SourceNumber, SupSource>,
    sources_before: u64,
    by_url: HashMap<Url, SourceNumber>,
    /// Turns of the feeds, the earliest first; `source_turns` has the turns of the documents.
    feed_turns: BTreeSet<(Duration, FeedNumber)>,
    source_turns: BTreeSet<(Duration, SourceNumber)>,
    hashing: RandomState,
    dice: u64,
    tally: WatchTally,
    /// The feeds whose [`Watch::told_by`] may have changed since the last call of
    /// [`Watch::take_changed`].
    changed: HashSet<FeedNumber>,
}

impl Watch {
    /// Creates a watch without feeds. `seed` begins the pseudo-random times that spread the looks.
    pub fn new(pace: Pace, seed: u64) -> Self {
        let most = Duration::from_secs(WATCH_SECONDS_MAX);
        let pace = Pace {
            interval: pace
                .interval
                .clamp(Duration::from_secs(WATCH_SECONDS_MIN), most),
            sup_interval: pace.sup_interval.min(most),
        };
        Self {
            pace,
            feeds: vec![],
            sources: HashMap::new(),
            sources_before: 0,
            by_url: HashMap::new(),
            feed_turns: BTreeSet::new(),
            source_turns: BTreeSet::new(),
            // A random key keeps publishers from choosing pairs that collide. Otherwise no result
            // depends on the key.
            hashing: RandomState::new(),
            dice: seed,
            tally: WatchTally::default(),
            changed: HashSet::new(),
        }
    }

    /// Adds a feed, with the result of [`told_by`](Self::told_by) from the caller's store. If the
    /// SUP document in that result was heard already, in this process or before
    /// ([`heard_before`](Self::heard_before)), the first look waits for a ping, or for the usual
    /// turn of a feed without a ping. Any other feed is due at once.
    pub fn add_feed(&mut self, known: Option<SupAddress>, update: Option<&str>) -> FeedNumber {
        let count = u32::try_from(self.feeds.len()).expect("feeds are counted in 32 bits");
        let number = FeedNumber(count);
        self.feeds.push(FeedSchedule::new(update));
        let is_heard = |address: &SupAddress| {
            let source = self.by_url.get(&address.document);
            source.is_some_and(|source| self.source_numbered(*source).updated.is_some())
        };
        if let Some(address) = known.filter(is_heard) {
            // The order matters: `recognise` and `rest` need the feed's source, which `take_up`
            // sets.
            self.take_up(number, address, Duration::ZERO);
            self.recognise(number);
            self.rest(number, Duration::ZERO);
            // The caller already stores this state.
            self.changed.remove(&number);
        } else {
            self.call(number, Duration::ZERO, Why::First);
            // The feed has no source before the first look, so a state in the caller's store is
            // void.
            self.changed.insert(number);
        }
        number
    }

    /// Sets the end of a SUP document's known updates from an earlier process, as
    /// [`heard_until`](Self::heard_until) returned this end. Call this function before adding the
    /// document's feeds; at least one feed must follow.
    pub fn heard_before(&mut self, document: &Url, updated: Timestamp) {
        let number = self.source_at(document, Duration::ZERO);
        let source = self.source_mut(number);
        source.updated = Some(updated);
        source.heard_at = Some(Duration::ZERO);
    }

    /// Returns the end of each SUP document's known updates. Store these ends only after the
    /// results of [`told_by`](Self::told_by) for all feeds.
    pub fn heard_until(&self) -> impl Iterator<Item = (&Url, Timestamp)> {
        let sources = self.sources.values();
        sources.filter_map(|source| Some((&source.announced, source.updated?)))
    }

    /// Returns the SUP address of a feed and the feed's last listed update, for storing. `None` if
    /// the feed announces no SUP document. Also `None` while the feed is owed a look or cannot be
    /// read, because a new process must look at the feed then.
    pub fn told_by(&self, number: FeedNumber) -> Option<(SupAddress, Option<&str>)> {
        let feed = self.feed_numbered(number);
        let source = feed.source.filter(|_| !feed.owed)?;
        let address = SupAddress {
            document: self.source_numbered(source).announced.clone(),
            id: feed.id.clone(),
        };
        Some((address, feed.update.as_deref()))
    }

    /// Returns the feeds whose [`told_by`](Self::told_by) may have changed since the last call.
    pub fn take_changed(&mut self) -> HashSet<FeedNumber> {
        std::mem::take(&mut self.changed)
    }

    /// Returns the counts of actions so far.
    pub fn tally(&self) -> WatchTally {
        self.tally
    }

    /// Returns the announced URL and the condition of each SUP document.
    pub fn conditions(&self) -> impl Iterator<Item = (&Url, Condition)> {
        let sources = self.sources.values();
        sources.map(|source| (&source.announced, source.condition))
    }

    /// Returns the next action. SUP documents come first, because they save looks at feeds. The
    /// same action is not returned again before the caller reports the result.
    pub fn next(&mut self, now: Duration) -> NextAction {
        let document = self.next_document(now);
        if matches!(document, NextAction::Hear { .. }) {
            return document;
        }
        match (document, self.next_feed(now)) {
            (NextAction::Wait(one), NextAction::Wait(other)) => NextAction::Wait(one.min(other)),
            // No feed has a turn here; `wait` is a document's turn or `Nothing`.
            (wait, NextAction::Nothing) => wait,
            (_, feed) => feed,
        }
    }

    /// Returns the next action among SUP documents.
    pub fn next_document(&mut self, now: Duration) -> NextAction {
        let Some((due, number)) = self.source_turns.first().copied() else {
            return NextAction::Nothing;
        };
        if due > now {
            return NextAction::Wait(due);
        }
        self.source_turns.pop_first();
        self.hear(number, now)
    }

    /// Returns the next action among feeds.
    pub fn next_feed(&mut self, now: Duration) -> NextAction {
        let Some((due, number)) = self.feed_turns.first().copied() else {
            return NextAction::Nothing;
        };
        if due > now {
            return NextAction::Wait(due);
        }
        self.feed_turns.pop_first();
        self.look(number, now)
    }

    /// Returns a pseudo-random time up to `most`.
    fn spread_over(&mut self, most: Duration) -> Duration {
        // splitmix64: looks need spreading, not secrecy, and a seed makes tests repeatable.
        self.dice = self.dice.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.dice;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^= bits >> 31;
        let millis = u64::try_from(most.as_millis()).unwrap_or(u64::MAX);
        // `+ 1` includes `most`, and keeps the divisor above zero.
        Duration::from_millis(bits % millis.saturating_add(1))
    }

    fn source_numbered(&self, number: SourceNumber) -> &SupSource {
        // A source is removed only after its last feed, so each number that a feed holds has a
        // source.
        self.sources.get(&number).expect("it has feeds")
    }

    fn source_mut(&mut self, number: SourceNumber) -> &mut SupSource {
        self.sources.get_mut(&number).expect("it has feeds")
    }

    fn feed_numbered(&self, number: FeedNumber) -> &FeedSchedule {
        let index = usize::try_from(number.0).expect("32 bits fit into an index");
        self.feeds.get(index).expect("numbers are given by us")
    }

    fn feed_mut(&mut self, number: FeedNumber) -> &mut FeedSchedule {
        let index = usize::try_from(number.0).expect("32 bits fit into an index");
        self.feeds.get_mut(index).expect("numbers are given by us")
    }
}

#[cfg(test)]
mod tests;
