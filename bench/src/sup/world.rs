//! A publisher with many feeds and a consumer of all of them, by a clock of their own.
//!
//! Pure: the real view on the one side, the real schedule on the other, and in between the real bytes of SUP
//! documents. Only the feeds themselves are numbers: how many updates there were, and how many were seen.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap, HashMap},
    time::Duration,
};

use simplefeed_core::{
    commit::{Change, ChangeOutline, Commit, Outline},
    feed::{
        CommitNumber, DocumentNumber, Epoch, EpochNumber, FeedId, FeedKey, FeedName, Position,
        Revision,
    },
    limits::{HEARD_TOGETHER_MAX, WATCHED_TOGETHER_MAX},
    settings::{Choices, Defaults, Settings},
    sup::{Announcement, Heading, SupAddress, SupDocument, SupId},
    timestamp::Timestamp,
    watch::{FeedNumber, LookResult, NextAction, Pace, SourceNumber, SupResult, Watch, WatchTally},
};
use simplefeed_log::{Append as _, memory::MemoryLog, watermark::Watermark};
use simplefeed_resource::Visibility;
use simplefeed_views::sup::windows::{SeriesStart, SupWindow, SupWindows, file_name};
use url::Url;
use uuid::Uuid;

const PERIODS: [u32; 4] = [60, 300, 600, 3_600];
const BASE: &str = "https://feeds.example";
/// When the publisher's clock begins, in seconds since 1970.
const BEGINS: i64 = 1_800_000_000;

/// How a consumer is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Telling {
    /// Not at all: it polls.
    Nothing,
    /// By SUP as others have it.
    Windows,
    /// By SUP that is archived.
    Archived,
}

/// Numbers that look random and are the same each time.
#[derive(Clone, Debug)]
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }

    /// Returns the pause until the next of some events that come so often on the average.
    pub(crate) fn pause(&mut self, mean: Duration) -> Duration {
        let dice = u32::try_from(self.below(1 << 24)).unwrap_or(0);
        let part = (f64::from(dice) + 1.0) / f64::from(1 << 24);
        mean.mul_f64(-part.ln())
    }
}

/// The publisher.
pub(crate) struct Publisher {
    log: MemoryLog,
    view: SupWindows,
    watermark: Watermark,
    last: Timestamp,
    commits: u64,
    /// How far the clock is off, in seconds.
    pub(crate) clock_off: i64,
    windows: HashMap<EpochNumber, Vec<u8>>,
    /// How many updates each feed has, and when they were made.
    pub(crate) updates: Vec<Vec<Duration>>,
    outlines: Vec<Outline>,
    telling: Telling,
}

impl Publisher {
    /// Creates feeds; with `shared` ids each id stands for several.
    pub(crate) fn new(feeds: u32, telling: Telling, shared: u32) -> anyhow::Result<Self> {
        let mut changes = vec![];
        for number in 0..feeds {
            let settings = Settings {
                name: FeedName::parse(&format!("feed{number}"))
                    .ok_or_else(|| anyhow::anyhow!("a name"))?,
                id: FeedId::of_uuid(Uuid::from_u128(u128::from(number) + 1)),
                choices: Choices::default().into(),
                defaults: Defaults::new(BASE).into(),
                sup_id: Some(sup_id(number / shared)),
                was_closed: false,
                timeline: None,
            };
            let (feed, revision) = (settings.id.key(), Revision::FIRST);
            changes.push(Change::Settings {
                feed,
                revision,
                settings,
            });
            changes.push(Change::Opened {
                feed,
                document: DocumentNumber::OLDEST,
                first: Position(0),
                revision,
            });
        }
        let log = MemoryLog::default();
        log.append(&Commit {
            number: CommitNumber(1),
            instant: Timestamp::from_micros(0),
            changes,
        })?;
        let count = usize::try_from(feeds)?;
        Ok(Self {
            log,
            view: SupWindows::new(SeriesStart::default(), SeriesStart::default(), 3_600),
            watermark: Watermark::in_memory(),
            last: Timestamp::MIN,
            commits: 0,
            clock_off: 0,
            windows: HashMap::new(),
            updates: vec![vec![]; count],
            outlines: vec![],
            telling,
        })
    }

    fn clock(&self, now: Duration) -> Timestamp {
        let micros = i64::try_from(now.as_micros()).unwrap_or(i64::MAX);
        Timestamp::from_micros((BEGINS + self.clock_off) * 1_000_000 + micros)
    }

    /// Updates feeds with one commit.
    pub(crate) fn update(&mut self, feeds: &[u32], now: Duration) -> anyhow::Result<()> {
        for feed in feeds {
            if let Some(updates) = self.updates.get_mut(usize::try_from(*feed)?) {
                updates.push(now);
            }
        }
        self.commit(feeds, now, None)
    }

    fn commit(&mut self, feeds: &[u32], now: Duration, epoch: Option<Epoch>) -> anyhow::Result<()> {
        self.last = self.watermark.stamp(self.clock(now), self.last);
        self.commits += 1;
        let updates = feeds.iter().map(|feed| ChangeOutline::Entries {
            feed: key(*feed),
            first: Position(0),
            count: 1,
        });
        let epoch = epoch.map(|epoch| ChangeOutline::Epoch { epoch });
        let outline = Outline {
            number: CommitNumber(self.commits),
            instant: self.last,
            changes: epoch.into_iter().chain(updates).collect(),
        };
        self.take(&outline)?;
        self.outlines.push(outline);
        self.watermark.release();
        Ok(())
    }

    fn take(&mut self, outline: &Outline) -> anyhow::Result<()> {
        for (visibility, window) in self.view.take(outline, &self.log)? {
            self.view.archived(visibility, &window);
            self.keep(&window);
        }
        Ok(())
    }

    fn keep(&mut self, window: &SupWindow) {
        self.windows.insert(window.name, window.document(|_| true));
    }

    /// Goes back to an earlier state, as a restored backup does: so many commits are lost, and an epoch
    /// begins.
    #[cfg(test)]
    pub(crate) fn restore(&mut self, lost: usize, now: Duration) -> anyhow::Result<()> {
        let kept = self.outlines.len().saturating_sub(lost);
        let outlines: Vec<Outline> = self.outlines.drain(..).take(kept).collect();
        self.view = SupWindows::new(SeriesStart::default(), SeriesStart::default(), 3_600);
        self.watermark = Watermark::in_memory();
        self.windows.clear();
        self.commits = 0;
        self.last = Timestamp::MIN;
        for outline in &outlines {
            self.take(outline)?;
            (self.commits, self.last) = (outline.number.0, outline.instant);
        }
        self.outlines = outlines;
        let epoch = Epoch::FIRST.next(self.clock(now));
        let all: Vec<u32> = (0..u32::try_from(self.updates.len())?).collect();
        self.commit(&[], now, epoch)?;
        // Every feed is another one now: who has seen it looks again.
        for updates in &mut self.updates {
            updates.push(now);
        }
        self.commit(&all, now, None)
    }

    /// Returns the SUP document at a URL.
    pub(crate) fn document(&self, url: &Url, now: Duration) -> Option<Vec<u8>> {
        let path = url.path().trim_start_matches('/');
        if let Some(file) = path.strip_prefix("sup/") {
            let name = EpochNumber::parse(file.strip_suffix(".json")?)?;
            return self.windows.get(&name).cloned();
        }
        let period = match url.query() {
            Some(query) => query.strip_prefix("seconds=")?.parse().ok()?,
            None => 60,
        };
        let until = self.watermark.publish(self.clock(now), self.last)?;
        let current = self.view.current(Visibility::Public, period, until);
        let is_archived = self.telling == Telling::Archived;
        let since = if is_archived {
            current.since
        } else {
            until - i64::from(period) - 10
        };
        let told = current
            .updates
            .iter()
            .filter(|(_, _, second)| *second >= since);
        let updates: Vec<(SupId, i64)> = told.map(|(_, id, second)| (*id, *second)).collect();
        let periods =
            PERIODS.map(|seconds| (seconds, format!("{BASE}/sup.json?seconds={seconds}")));
        let previous = current
            .previous
            .map(|window| format!("sup/{}", file_name(window)));
        let heading = Heading {
            updated: until,
            since,
            period: i64::from(period),
            periods: &periods,
            prev_archive: previous.as_deref(),
        };
        let document = heading.document(&updates);
        if is_archived {
            return Some(document);
        }
        // As publishers have it who archive nothing.
        let text = String::from_utf8(document).ok()?;
        let (head, rest) = text.split_once(",\"prev_archive\":")?;
        let (_, updates) = rest.split_once(",\"updates\":")?;
        Some(format!("{head},\"updates\":{updates}").into_bytes())
    }

    fn announces(&self, feed: FeedNumber, shared: u32) -> Announcement {
        if self.telling == Telling::Nothing {
            return Announcement::Nowhere;
        }
        let text = format!("{BASE}/sup.json#{}", sup_id(feed.0 / shared));
        let base = Url::parse(BASE).ok();
        base.and_then(|base| SupAddress::parse(&text, &base)).into()
    }
}

fn key(feed: u32) -> FeedKey {
    FeedKey(Uuid::from_u128(u128::from(feed) + 1))
}

fn sup_id(number: u32) -> SupId {
    // As random as they are: the size of what is compressed depends on it.
    let mut dice = Dice(u64::from(number) + 7);
    let bits = u128::from(dice.below(1 << 31)) << 31 | u128::from(dice.below(1 << 31));
    SupId::of_bits(bits)
}

/// How a look goes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sight {
    /// How old what it shows is.
    pub(crate) age: Duration,
    /// Whether it fails, and if so, whether for good.
    pub(crate) fails: Option<bool>,
}

/// What may go wrong between the two.
pub(crate) trait Weather {
    /// Returns how long one half of a request's way takes.
    fn way(&mut self, is_look: bool) -> Duration;

    /// Returns what the consumer gets instead of a document.
    fn document(&mut self, url: &Url, document: Option<Vec<u8>>) -> Option<Vec<u8>>;

    /// Returns how a look at a feed goes; `fresh` if no cache answers.
    fn look(&mut self, feed: FeedNumber, fresh: bool) -> Sight;

    /// Whether feeds are updated several times in a few seconds.
    fn has_bursts(&self) -> bool {
        false
    }
}

/// Nothing does.
pub(crate) struct Fair;

impl Weather for Fair {
    fn way(&mut self, _: bool) -> Duration {
        Duration::ZERO
    }

    fn document(&mut self, _: &Url, document: Option<Vec<u8>>) -> Option<Vec<u8>> {
        document
    }

    fn look(&mut self, _: FeedNumber, _: bool) -> Sight {
        Sight::default()
    }
}

/// A request on its way there, and an answer on its way back.
enum Pending {
    Look(FeedNumber, bool),
    /// How many updates a feed shows; or it fails, for good or not.
    Looked(FeedNumber, Result<usize, bool>),
    Hear(SourceNumber, Url),
    Heard(SourceNumber, SupResult),
}

/// What a consumer has on its disk.
#[derive(Default)]
struct Book {
    feeds: HashMap<FeedNumber, (SupAddress, Option<Box<str>>)>,
    heard_until: Vec<(Url, Timestamp)>,
    saved_at: Duration,
}

/// How old the book may get, as in the real watcher.
const SAVE_EVERY: Duration = Duration::from_secs(5);

/// The consumer.
pub(crate) struct Follower {
    watch: Watch,
    /// When its watch began.
    began: Duration,
    /// How many updates of each feed it has seen.
    pub(crate) seen: Vec<usize>,
    book: Book,
    pending: BTreeMap<(Duration, u64), Pending>,
    looks: usize,
    sent: u64,
    shared: u32,
    /// The times until updates were seen.
    pub(crate) delays: Vec<Duration>,
    /// What was done by watches before this one.
    before: Vec<WatchTally>,
}

impl Follower {
    pub(crate) fn new(feeds: u32, pace: Pace, shared: u32) -> anyhow::Result<Self> {
        let mut watch = Watch::new(pace, 1);
        for _ in 0..feeds {
            watch.add_feed(None, None);
        }
        Ok(Self {
            watch,
            began: Duration::ZERO,
            seen: vec![0; usize::try_from(feeds)?],
            book: Book::default(),
            pending: BTreeMap::new(),
            looks: 0,
            sent: 0,
            shared,
            delays: vec![],
            before: vec![],
        })
    }

    /// Is killed, and begins again with what is in its book.
    #[cfg(test)]
    pub(crate) fn restart(&mut self, pace: Pace, now: Duration) {
        let mut watch = Watch::new(pace, 2);
        for (document, updated) in &self.book.heard_until {
            watch.heard_before(document, *updated);
        }
        for number in (0..).map(FeedNumber).take(self.seen.len()) {
            let (known, update) = self.book.feeds.get(&number).cloned().unzip();
            watch.add_feed(known, update.flatten().as_deref());
        }
        self.before.push(self.watch.tally());
        self.watch = watch;
        self.began = now;
        self.pending.clear();
        self.looks = 0;
    }

    fn save(&mut self, now: Duration) {
        for number in self.watch.take_changed() {
            match self.watch.told_by(number) {
                Some((address, update)) => {
                    let update = update.map(Into::into);
                    self.book.feeds.insert(number, (address, update));
                }
                None => {
                    self.book.feeds.remove(&number);
                }
            }
        }
        let heard_until = self.watch.heard_until();
        self.book.heard_until = heard_until
            .map(|(url, updated)| (url.clone(), updated))
            .collect();
        self.book.saved_at = now;
    }

    /// Returns what was done.
    pub(crate) fn tally(&self) -> WatchTally {
        let mut sum = self.watch.tally();
        for tally in &self.before {
            sum.pings += tally.pings;
            sum.first += tally.first;
            sum.background += tally.background;
            sum.documents += tally.documents;
            sum.gaps += tally.gaps;
            sum.sweeps += tally.sweeps;
        }
        sum
    }

    /// Does what is due; returns when something is next.
    pub(crate) fn act(
        &mut self,
        publisher: &Publisher,
        weather: &mut dyn Weather,
        now: Duration,
    ) -> anyhow::Result<Option<Duration>> {
        loop {
            while let Some(first) = self.pending.first_entry() {
                if first.key().0 > now {
                    break;
                }
                let arrived = first.remove();
                self.arrive(publisher, weather, arrived, now)?;
            }
            if now >= self.book.saved_at + SAVE_EVERY {
                self.save(now);
            }
            let own = now.saturating_sub(self.began);
            let documents = self.pending.len() - self.looks;
            let mut next = NextAction::Nothing;
            if documents < HEARD_TOGETHER_MAX {
                next = self.watch.next_document(own);
            }
            let mut due = next.due();
            if !matches!(next, NextAction::Hear { .. }) && self.looks < WATCHED_TOGETHER_MAX {
                next = self.watch.next_feed(own);
                due = due.into_iter().chain(next.due()).min();
            }
            match next {
                NextAction::Hear { source, url, .. } => {
                    self.send(now + weather.way(false), Pending::Hear(source, url));
                }
                NextAction::Look { feed, fresh } => {
                    self.looks += 1;
                    self.send(now + weather.way(true), Pending::Look(feed, fresh));
                }
                NextAction::Wait(_) | NextAction::Nothing => {
                    let pending = self.pending.keys().next().map(|(end, _)| *end);
                    let due = due.map(|due| self.began + due);
                    // Never this moment again: nothing more is due in it.
                    let soon = now + Duration::from_millis(1);
                    let next = pending.into_iter().chain(due).min();
                    return Ok(next.map(|next| next.max(soon)));
                }
            }
        }
    }

    fn send(&mut self, arrives: Duration, what: Pending) {
        self.sent += 1;
        self.pending.insert((arrives, self.sent), what);
    }

    fn arrive(
        &mut self,
        publisher: &Publisher,
        weather: &mut dyn Weather,
        what: Pending,
        now: Duration,
    ) -> anyhow::Result<()> {
        let own = now.saturating_sub(self.began);
        match what {
            Pending::Hear(source, url) => {
                let document = weather.document(&url, publisher.document(&url, now));
                let heard = match document.map(|body| SupDocument::read(&body)) {
                    Some(Ok(document)) => SupResult::Document(document.resolved(&url)),
                    _ => SupResult::Nothing { retry_after: None },
                };
                self.send(now + weather.way(false), Pending::Heard(source, heard));
            }
            Pending::Heard(source, heard) => self.watch.heard(source, own, heard),
            Pending::Look(feed, fresh) => {
                let sight = weather.look(feed, fresh);
                let at = now.saturating_sub(sight.age);
                let updates = publisher.updates.get(usize::try_from(feed.0)?);
                let updates = updates.map_or(&[][..], Vec::as_slice);
                let shows = match sight.fails {
                    Some(for_good) => Err(for_good),
                    None => Ok(updates.partition_point(|made| *made <= at)),
                };
                self.send(now + weather.way(true), Pending::Looked(feed, shows));
            }
            Pending::Looked(feed, shows) => {
                self.looks -= 1;
                let index = usize::try_from(feed.0)?;
                let Some(seen) = self.seen.get_mut(index) else {
                    return Ok(());
                };
                let shows = match shows {
                    Ok(shows) => shows.max(*seen),
                    Err(for_good) => {
                        let looked = LookResult::Failed {
                            news: false,
                            for_good,
                            retry_after: None,
                        };
                        self.watch.looked(feed, own, looked);
                        return Ok(());
                    }
                };
                let updates = publisher.updates.get(index).map_or(&[][..], Vec::as_slice);
                let new = updates.get(*seen..shows).unwrap_or_default();
                let news = *seen != shows;
                self.delays
                    .extend(new.iter().map(|at| now.saturating_sub(*at)));
                *seen = shows;
                let sup = publisher.announces(feed, self.shared);
                let stale = false;
                self.watch
                    .looked(feed, own, LookResult::Read { news, stale, sup });
                if news {
                    self.save(now);
                }
            }
        }
        Ok(())
    }
}

/// Lets both live until `end`: updates come at random, so often in all.
pub(crate) fn live(
    publisher: &mut Publisher,
    follower: &mut Follower,
    weather: &mut dyn Weather,
    dice: &mut Dice,
    mean: Duration,
    from: Duration,
    end: Duration,
) -> anyhow::Result<()> {
    let feeds = u64::try_from(publisher.updates.len())?;
    let mut due = BinaryHeap::from([
        Reverse((from, Event::Act)),
        Reverse((from + dice.pause(mean), Event::Update)),
    ]);
    while let Some(Reverse((now, event))) = due.pop() {
        if now >= end {
            continue;
        }
        match event {
            Event::Act => {
                if let Some(next) = follower.act(publisher, weather, now)? {
                    due.push(Reverse((next, Event::Act)));
                }
            }
            Event::Update => {
                let feed = u32::try_from(dice.below(feeds))?;
                publisher.update(&[feed], now)?;
                due.push(Reverse((now + dice.pause(mean), Event::Update)));
                if weather.has_bursts() && dice.below(3) == 0 {
                    let soon = Duration::from_millis(dice.below(3_000));
                    due.push(Reverse((now + soon, Event::Again(feed))));
                }
            }
            Event::Again(feed) => publisher.update(&[feed], now)?,
        }
    }
    Ok(())
}

/// What happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// The consumer does what is due.
    Act,
    /// Some feed is updated.
    Update,
    /// This one is, once more.
    Again(u32),
}
