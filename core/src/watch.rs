//! When to look at which of many feeds.
//!
//! Pure: times go in and come out as durations since some beginning. Rules SUP-C1 to SUP-C12.
//!
//! Feeds that announce a SUP document are grouped by it. As long as that document is heard, only what it
//! tells of is looked at (a *ping*), and all the rest ten times more rarely than without it, as a safety
//! net; not at all where the publisher archives what it tells, because then nothing is missed. What is
//! missed otherwise (a *gap*: the document begins after the end of the last one) is found out from the
//! archived documents, else from one with a longer window, else by looking at every feed once.
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
//! What follows from a look stands in `watch/feeds.rs`, what follows from a document in `watch/sources.rs`, and
//! which of its pairs are new in `watch/pairs.rs`.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    hash::RandomState,
    time::Duration,
};

use url::Url;

use crate::{
    instant::Instant,
    limits::{WATCH_SECONDS_MAX, WATCH_SECONDS_MIN},
    sup::{Announcement, SupAddress, SupDocument},
};

mod feeds;
mod pairs;
mod sources;

use feeds::{Feed, Why};
use sources::Source;

/// How often to look. What is shorter or longer than a clock can bear is taken for
/// [`WATCH_SECONDS_MIN`] or [`WATCH_SECONDS_MAX`].
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// At a feed that nothing tells about.
    pub interval: Duration,
    /// At a SUP document, if it need not be heard as often as its period wants it.
    pub sup_interval: Duration,
}

/// A feed that is watched, by the order in which feeds were added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FeedNumber(pub u32);

/// A SUP document, by the order in which they were announced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SourceNumber(pub u64);

/// What to do now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// Look at a feed, then tell with [`Watch::looked`].
    Look {
        /// The feed.
        feed: FeedNumber,
        /// Whether no cache may answer by itself, since something has changed (rule SUP-C12).
        fresh: bool,
    },
    /// Fetch a SUP document, then tell with [`Watch::heard`].
    Hear {
        /// Whose it is.
        source: SourceNumber,
        /// As feeds announce it.
        document: Url,
        /// What to ask for: this, another window of it, or something archived.
        url: Url,
        /// Whether no cache may answer by itself.
        fresh: bool,
    },
    /// Nothing before this time.
    Wait(Duration),
    /// Nothing before something that is being done is told.
    Nothing,
}

impl Next {
    /// Returns when there is something to do, if that is known.
    pub fn due(&self) -> Option<Duration> {
        match self {
            Self::Wait(due) => Some(*due),
            Self::Look { .. } | Self::Hear { .. } | Self::Nothing => None,
        }
    }
}

/// What came of looking at a feed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Looked {
    /// It was read, and everything new is handled. It announces this about its updates, if it was there to
    /// announce anything.
    Read {
        /// Whether there were new entries.
        news: bool,
        /// Whether a cache has shown a copy that is past its time.
        stale: bool,
        /// What it announces.
        sup: Announcement,
    },
    /// It could not be read, or not to its end.
    Failed {
        /// Whether there were new entries all the same.
        news: bool,
        /// Whether trying again is no use before somebody mends it.
        for_good: bool,
        /// How long the server asks to wait.
        retry_after: Option<Duration>,
    },
}

/// What came of asking for a SUP document.
#[derive(Clone, Debug)]
pub enum Heard {
    /// It is this, with absolute URLs ([`SupDocument::resolved`]).
    Document(SupDocument),
    /// It is the same as before.
    Same,
    /// It cannot be had, or says nothing that makes sense.
    Nothing {
        /// How long the server asks to wait.
        retry_after: Option<Duration>,
    },
}

/// How it goes with a SUP document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// It was never heard.
    New,
    /// Its pings are relied on.
    Working,
    /// Its feeds are looked at as if there were none.
    Broken,
}

/// How often what was done, for an operator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Looks because a SUP document told of an update.
    pub pings: u64,
    /// Looks to find out where updates are told.
    pub first: u64,
    /// Looks for safety: in the background, in a sweep, or while SUP is broken.
    pub background: u64,
    /// SUP documents asked for, archived ones included.
    pub documents: u64,
    /// Gaps found.
    pub gaps: u64,
    /// Gaps that only a look at every feed could close.
    pub sweeps: u64,
}

/// The feeds, the SUP documents, and when it is whose turn.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use simplefeed_core::{
///     sup::{SupAddress, SupDocument},
///     watch::{Heard, Looked, Next, Pace, Watch},
/// };
///
/// let half_an_hour = Duration::from_secs(1800);
/// let mut watch = Watch::new(Pace { interval: half_an_hour, sup_interval: Duration::ZERO }, 0);
/// let feed = watch.add_feed(None, None);
/// let mut now = Duration::ZERO;
/// assert_eq!(watch.next(now), Next::Look { feed, fresh: true });
/// let sup = SupAddress::parse("https://e/sup.json#a", &"https://e/".parse()?);
/// watch.looked(feed, now, Looked::Read { news: false, stale: false, sup: sup.into() });
///
/// let Next::Hear { source, .. } = watch.next(now) else { panic!() };
/// let document = br#"{"updated_time":"2009-01-06T01:16:45Z","since_time":"2009-01-06T01:15:35Z",
///     "period":60,"updates":[["a","1"]]}"#;
/// watch.heard(source, now, Heard::Document(SupDocument::read(document)?));
/// now += Duration::from_secs(2); // for caches that do not listen
/// assert_eq!(watch.next(now), Next::Look { feed, fresh: true });
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Watch {
    pace: Pace,
    feeds: Vec<Feed>,
    /// Those that some feed announces.
    sources: HashMap<SourceNumber, Source>,
    sources_before: u64,
    by_url: HashMap<Url, SourceNumber>,
    /// Who is due, and when.
    feed_turns: BTreeSet<(Duration, FeedNumber)>,
    source_turns: BTreeSet<(Duration, SourceNumber)>,
    hashing: RandomState,
    dice: u64,
    tally: Tally,
    /// The feeds of which [`Watch::told_by`] may return something else than before.
    changed: HashSet<FeedNumber>,
}

impl Watch {
    /// Watches nothing yet; `seed` decides how looks are spread.
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
            hashing: RandomState::new(),
            dice: seed,
            tally: Tally::default(),
            changed: HashSet::new(),
        }
    }

    /// Adds a feed, with what [`told_by`](Self::told_by) returned of it when this was remembered. One that is
    /// known to be told about, by a document of which it is known up to where it was heard, is not looked at
    /// before that tells of it; any other is, at once.
    pub fn add_feed(&mut self, known: Option<SupAddress>, update: Option<&str>) -> FeedNumber {
        let count = u32::try_from(self.feeds.len()).expect("feeds are counted in 32 bits");
        let number = FeedNumber(count);
        self.feeds.push(Feed::new(update));
        let is_heard = |address: &SupAddress| {
            let source = self.by_url.get(&address.document);
            source.is_some_and(|source| self.source(*source).updated.is_some())
        };
        if let Some(address) = known.filter(is_heard) {
            self.take_up(number, address, Duration::ZERO);
            self.recognise(number);
            self.rest(number, Duration::ZERO);
            // That is what is remembered.
            self.changed.remove(&number);
        } else {
            self.call(number, Duration::ZERO, Why::First);
            self.changed.insert(number);
        }
        number
    }

    /// Says up to where a SUP document was heard before this program began, as
    /// [`heard_until`](Self::heard_until) returned it. To be told before the feeds are added that it tells
    /// about, of which there must be one.
    pub fn heard_before(&mut self, document: &Url, updated: Instant) {
        let number = self.source_at(document, Duration::ZERO);
        let source = self.source_mut(number);
        source.updated = Some(updated);
        source.heard_at = Some(Duration::ZERO);
    }

    /// Returns up to where each SUP document was heard: what may be remembered of it, once what
    /// [`told_by`](Self::told_by) returns of every feed is.
    pub fn heard_until(&self) -> impl Iterator<Item = (&Url, Instant)> {
        let sources = self.sources.values();
        sources.filter_map(|source| Some((&source.announced, source.updated?)))
    }

    /// Returns where a feed's updates are told, and what was told last: what may be remembered of it. Nothing
    /// as long as it is owed a look, or cannot be read: whoever begins anew must look at it.
    pub fn told_by(&self, number: FeedNumber) -> Option<(SupAddress, Option<&str>)> {
        let feed = self.feed(number);
        let source = feed.source.filter(|_| !feed.owed)?;
        let address = SupAddress {
            document: self.source(source).announced.clone(),
            id: feed.id.clone(),
        };
        Some((address, feed.update.as_deref()))
    }

    /// Takes the feeds of which [`told_by`](Self::told_by) may return something else than when this was
    /// called last.
    pub fn take_changed(&mut self) -> HashSet<FeedNumber> {
        std::mem::take(&mut self.changed)
    }

    /// Returns what was done so far.
    pub fn tally(&self) -> Tally {
        self.tally
    }

    /// Returns the SUP documents and how it goes with them.
    pub fn conditions(&self) -> impl Iterator<Item = (&Url, Condition)> {
        let sources = self.sources.values();
        sources.map(|source| (&source.announced, source.condition))
    }

    /// Returns what to do now: SUP documents first, since they tell which feeds need no look. What is
    /// returned once is not again before it is told what came of it.
    pub fn next(&mut self, now: Duration) -> Next {
        let document = self.next_document(now);
        if matches!(document, Next::Hear { .. }) {
            return document;
        }
        match (document, self.next_feed(now)) {
            (Next::Wait(one), Next::Wait(other)) => Next::Wait(one.min(other)),
            (wait, Next::Nothing) => wait,
            (_, feed) => feed,
        }
    }

    /// Returns which SUP document to ask for now.
    pub fn next_document(&mut self, now: Duration) -> Next {
        let Some((due, number)) = self.source_turns.first().copied() else {
            return Next::Nothing;
        };
        if due > now {
            return Next::Wait(due);
        }
        self.source_turns.pop_first();
        self.hear(number, now)
    }

    /// Returns which feed to look at now.
    pub fn next_feed(&mut self, now: Duration) -> Next {
        let Some((due, number)) = self.feed_turns.first().copied() else {
            return Next::Nothing;
        };
        if due > now {
            return Next::Wait(due);
        }
        self.feed_turns.pop_first();
        self.look(number, now)
    }

    /// Returns a time up to `most`, another one each time.
    fn spread(&mut self, most: Duration) -> Duration {
        // splitmix64
        self.dice = self.dice.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.dice;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^= bits >> 31;
        let millis = u64::try_from(most.as_millis()).unwrap_or(u64::MAX);
        Duration::from_millis(bits % millis.saturating_add(1))
    }

    fn source(&self, number: SourceNumber) -> &Source {
        self.sources.get(&number).expect("it has feeds")
    }

    fn source_mut(&mut self, number: SourceNumber) -> &mut Source {
        self.sources.get_mut(&number).expect("it has feeds")
    }

    fn feed(&self, number: FeedNumber) -> &Feed {
        let index = usize::try_from(number.0).expect("32 bits fit into an index");
        self.feeds.get(index).expect("numbers are given by us")
    }

    fn feed_mut(&mut self, number: FeedNumber) -> &mut Feed {
        let index = usize::try_from(number.0).expect("32 bits fit into an index");
        self.feeds.get_mut(index).expect("numbers are given by us")
    }
}

#[cfg(test)]
mod tests;
