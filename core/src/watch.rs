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

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap},
    hash::RandomState,
    time::Duration,
};

use url::Url;

use crate::{
    instant::Instant,
    sup::{Announcement, SupAddress, SupDocument},
};

mod sources;

use sources::Source;

/// How much more rarely than the interval a feed is looked at while SUP tells of it (rule SUP-C7).
const SAFETY_NET: u32 = 10;
/// A feed that shows nothing new after a ping is looked at again after so long (rule SUP-C9): a replica may
/// lag.
const LOOKS_AGAIN: [Duration; 2] = [Duration::from_secs(2), Duration::from_secs(10)];
/// The pause after a failed look at a feed, doubled each time.
const BACK_OFF: Duration = Duration::from_secs(5);
/// How often to look.
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
pub struct SourceNumber(pub u32);

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
        /// Where it is.
        url: Url,
        /// Whether no cache may answer by itself.
        fresh: bool,
    },
    /// Nothing before this time.
    Wait(Duration),
    /// Nothing before something that is being done is told.
    Nothing,
}

/// What came of looking at a feed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Looked {
    /// It was read, and announces this about its updates, if it was there to announce anything.
    Read {
        /// Whether there were new entries.
        news: bool,
        /// What it announces.
        sup: Announcement,
    },
    /// It could not be read; `for_good` if trying again is no use.
    Failed {
        /// See there.
        for_good: bool,
    },
}

/// What came of asking for a SUP document.
#[derive(Clone, Debug)]
pub enum Heard {
    /// It is this.
    Document(SupDocument),
    /// It is the same as before.
    Same,
    /// It cannot be had, or says nothing that makes sense.
    Nothing,
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
/// assert_eq!(watch.next(now), Next::Look { feed, fresh: false });
/// let sup = SupAddress::parse("https://e/sup.json#a", &"https://e/".parse()?);
/// watch.looked(feed, now, Looked::Read { news: false, sup: sup.into() });
/// watch.handled(feed);
///
/// let Next::Hear { source, .. } = watch.next(now) else { panic!() };
/// let document = br#"{"updated_time":"2009-01-06T01:16:45Z","since_time":"2009-01-06T01:15:35Z",
///     "period":60,"updates":[["a","1"]]}"#;
/// watch.heard(source, now, Heard::Document(SupDocument::read(document)?));
/// assert_eq!(watch.next(now), Next::Look { feed, fresh: true });
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Watch {
    pace: Pace,
    feeds: Vec<Feed>,
    sources: Vec<Source>,
    by_url: HashMap<Url, SourceNumber>,
    turns: BinaryHeap<Reverse<(Duration, Turn)>>,
    hashing: RandomState,
    dice: u64,
    tally: Tally,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Turn {
    Source(SourceNumber),
    Feed(FeedNumber),
}

/// Why it is a feed's turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Why {
    /// It was never looked at.
    First,
    Ping,
    Background,
}

#[derive(Debug)]
struct Feed {
    source: Option<SourceNumber>,
    id: Box<str>,
    /// The update that was told last.
    update: Option<Box<str>>,
    /// When it is its turn, if ever.
    due: Option<Duration>,
    why: Why,
    looking: bool,
    /// When the last look began.
    began: Duration,
    /// It was called while it was looked at.
    pinged_meanwhile: bool,
    /// Something is known to have changed, or to be unknown, and what came of it is not handled.
    owed: bool,
    /// How often in a row it showed nothing new after a ping, or failed.
    vain: u8,
    /// When it last showed something new, or was first looked at.
    news_at: Duration,
}

impl Watch {
    /// Watches nothing yet; `seed` decides how looks are spread.
    pub fn new(pace: Pace, seed: u64) -> Self {
        Self {
            pace,
            feeds: vec![],
            sources: vec![],
            by_url: HashMap::new(),
            turns: BinaryHeap::new(),
            hashing: RandomState::new(),
            dice: seed,
            tally: Tally::default(),
        }
    }

    /// Adds a feed. One that is known to be told about, by a document of which it is known up to where it
    /// was heard, is not looked at before that tells of it; any other is, at once. `update` is what was told of
    /// it last, and handled.
    pub fn add_feed(&mut self, known: Option<SupAddress>, update: Option<&str>) -> FeedNumber {
        let count = u32::try_from(self.feeds.len()).expect("feeds are counted in 32 bits");
        let number = FeedNumber(count);
        self.feeds.push(Feed {
            source: None,
            id: "".into(),
            update: update.map(Into::into),
            due: None,
            why: Why::First,
            looking: false,
            began: Duration::ZERO,
            pinged_meanwhile: false,
            owed: false,
            vain: 0,
            news_at: Duration::ZERO,
        });
        let is_heard = |address: &SupAddress| {
            let source = self.by_url.get(&address.document);
            source.is_some_and(|source| self.source(*source).updated.is_some())
        };
        let is_known = known.as_ref().is_some_and(is_heard);
        if let Some(address) = known {
            self.join(number, address, Duration::ZERO);
            self.recognise(number);
        }
        if is_known {
            self.rest(number, Duration::ZERO);
        } else {
            self.call(number, Duration::ZERO, Why::First);
        }
        number
    }

    /// Says up to where a SUP document was heard before this program began. To be told before the feeds
    /// are added that it tells about.
    pub fn heard_before(&mut self, document: &Url, updated: Instant) {
        let number = self.source_at(document, Duration::ZERO);
        let source = self.source_mut(number);
        source.updated = Some(updated);
        source.settled = Some(updated);
    }

    /// Returns up to where each SUP document was heard, and everything that came of it handled.
    pub fn settled(&self) -> impl Iterator<Item = (&Url, Instant)> {
        let sources = self.sources.iter();
        sources.filter_map(|source| Some((&source.announced, source.settled?)))
    }

    /// Returns the update of a feed that was told last, if everything that came of it is handled.
    pub fn handled_update(&self, number: FeedNumber) -> Option<&str> {
        let feed = self.feed(number);
        feed.update.as_deref().filter(|_| !feed.owed)
    }

    /// Returns what was done so far.
    pub fn tally(&self) -> Tally {
        self.tally
    }

    /// Returns the SUP documents and how it goes with them.
    pub fn conditions(&self) -> impl Iterator<Item = (&Url, Condition)> {
        let sources = self.sources.iter();
        sources.map(|source| (&source.announced, source.condition))
    }

    /// Returns what to do now. What is returned once is not again before it is told what came of it.
    pub fn next(&mut self, now: Duration) -> Next {
        loop {
            let Some(Reverse((due, turn))) = self.turns.peek().copied() else {
                return Next::Nothing;
            };
            if !self.is_still(due, turn) {
                self.turns.pop();
                continue;
            }
            if due > now {
                return Next::Wait(due);
            }
            self.turns.pop();
            return match turn {
                Turn::Feed(number) => self.look(number, now),
                Turn::Source(number) => self.hear(number),
            };
        }
    }

    /// Whether it is a turn that was not moved.
    fn is_still(&self, due: Duration, turn: Turn) -> bool {
        match turn {
            Turn::Feed(number) => {
                let feed = self.feed(number);
                feed.due == Some(due) && !feed.looking
            }
            Turn::Source(number) => {
                let source = self.source(number);
                source.due == Some(due) && !source.is_asked
            }
        }
    }

    fn look(&mut self, number: FeedNumber, now: Duration) -> Next {
        let feed = self.feed_mut(number);
        feed.looking = true;
        feed.began = now;
        feed.due = None;
        let why = feed.why;
        let fresh = why == Why::Ping;
        match why {
            Why::First => self.tally.first += 1,
            Why::Ping => self.tally.pings += 1,
            Why::Background => self.tally.background += 1,
        }
        Next::Look {
            feed: number,
            fresh,
        }
    }

    fn hear(&mut self, number: SourceNumber) -> Next {
        self.tally.documents += 1;
        let source = self.source_mut(number);
        source.is_asked = true;
        source.due = None;
        Next::Hear {
            source: number,
            url: source.wanted(),
            fresh: source.condition == Condition::Broken,
        }
    }

    // ---- feeds ---------------------------------------------------------------------------------

    /// Takes what came of looking at a feed.
    pub fn looked(&mut self, number: FeedNumber, now: Duration, looked: Looked) {
        let feed = self.feed_mut(number);
        feed.looking = false;
        match looked {
            Looked::Failed { for_good } => self.failed(number, now, for_good),
            Looked::Read { news, sup } => {
                let was_pinged = feed.why == Why::Ping;
                if news || feed.why == Why::First {
                    feed.news_at = now;
                }
                if news || !was_pinged {
                    feed.vain = 0;
                }
                match sup {
                    Announcement::At(address) => self.join(number, address, now),
                    Announcement::Nowhere => self.leave(number),
                    Announcement::Untold => {}
                }
                self.plan(number, now, was_pinged && !news);
            }
        }
    }

    /// Takes the news that everything that came of the last look is handled, or that there is no use in
    /// trying.
    pub fn handled(&mut self, number: FeedNumber) {
        let feed = self.feed_mut(number);
        // A look that is to come is owed all the same, be it the second one after a ping.
        let will_look = feed.due.is_some() && feed.why == Why::Ping;
        let pending = feed.pinged_meanwhile || feed.looking || will_look;
        if feed.owed && !pending {
            feed.owed = false;
            if let Some(source) = feed.source {
                self.source_mut(source).owing -= 1;
                self.settle(source);
            }
        }
    }

    /// Decides when a feed that was read is looked at again; `in_vain` if a ping led to nothing new.
    fn plan(&mut self, number: FeedNumber, now: Duration, in_vain: bool) {
        let feed = self.feed(number);
        if feed.pinged_meanwhile {
            self.feed_mut(number).pinged_meanwhile = false;
            self.feed_mut(number).vain = 0;
            return self.call(number, now, Why::Ping);
        }
        let period = feed
            .source
            .map_or(Duration::ZERO, |source| self.source(source).period);
        // What the ping was about may have come with the look before.
        let came_before = feed.news_at + 2 * period >= now;
        let pause = LOOKS_AGAIN.get(usize::from(feed.vain)).copied();
        match pause {
            Some(pause) if in_vain && !came_before => {
                self.feed_mut(number).vain += 1;
                self.call(number, now + pause, Why::Ping);
            }
            _ => {
                self.feed_mut(number).vain = 0;
                self.rest(number, now);
            }
        }
    }

    fn failed(&mut self, number: FeedNumber, now: Duration, for_good: bool) {
        let usual = self.usual(number).unwrap_or(self.pace.interval);
        let feed = self.feed_mut(number);
        feed.pinged_meanwhile = false;
        let pause = BACK_OFF.saturating_mul(1 << feed.vain.min(16)).min(usual);
        feed.vain = feed.vain.saturating_add(1);
        let why = feed.why;
        if for_good {
            let pause = self.spread(self.pace.interval);
            self.call(number, now + self.pace.interval + pause, Why::Background);
            self.handled(number);
        } else {
            self.call(number, now + pause, why);
        }
    }

    /// Makes it a feed's turn at some time, unless it is its turn before.
    fn call(&mut self, number: FeedNumber, at: Duration, why: Why) {
        let feed = self.feed_mut(number);
        if feed.looking {
            // What it reads may be older.
            feed.pinged_meanwhile = true;
            return;
        }
        let sooner = feed.due.is_none_or(|due| at < due);
        if why == Why::Ping || sooner {
            feed.why = why;
        }
        if sooner {
            feed.due = Some(at);
            self.turns.push(Reverse((at, Turn::Feed(number))));
        }
    }

    /// Lets a feed rest until its turn comes for safety.
    fn rest(&mut self, number: FeedNumber, now: Duration) {
        let usual = self.usual(number);
        let pause = match self.feed(number).why {
            // So that feeds that were looked at together are not for ever.
            Why::First => usual.map(|usual| self.spread(usual)),
            Why::Ping | Why::Background => usual,
        };
        let at = pause.map(|pause| now + pause);
        let feed = self.feed_mut(number);
        feed.due = at;
        feed.why = Why::Background;
        if let Some(at) = at {
            self.turns.push(Reverse((at, Turn::Feed(number))));
        }
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

    /// Takes up what a feed announces (rule SUP-C1).
    fn join(&mut self, number: FeedNumber, address: SupAddress, now: Duration) {
        let SupAddress { document, id } = address;
        let source = self.source_at(&document, now);
        let feed = self.feed(number);
        if feed.source == Some(source) && feed.id == id {
            return;
        }
        self.leave(number);
        self.source_mut(source).add(id.clone(), number);
        let feed = self.feed_mut(number);
        feed.source = Some(source);
        feed.id = id;
        let (owed, began) = (feed.owed, feed.began);
        let source = self.source_mut(source);
        source.owing += usize::from(owed);
        if source.heard_at.is_some_and(|heard_at| heard_at >= began) {
            // What was told meanwhile may have been about it.
            self.feed_mut(number).pinged_meanwhile = true;
            self.owe(number);
        }
    }

    fn leave(&mut self, number: FeedNumber) {
        let feed = self.feed_mut(number);
        let (Some(source), id, owed) =
            (feed.source.take(), std::mem::take(&mut feed.id), feed.owed)
        else {
            return;
        };
        self.source_mut(source).remove(&id, number);
        if owed {
            self.source_mut(source).owing -= 1;
            self.settle(source);
        }
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
        let index = usize::try_from(number.0).expect("32 bits fit into an index");
        self.sources.get(index).expect("numbers are given by us")
    }

    fn source_mut(&mut self, number: SourceNumber) -> &mut Source {
        let index = usize::try_from(number.0).expect("32 bits fit into an index");
        self.sources
            .get_mut(index)
            .expect("numbers are given by us")
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
