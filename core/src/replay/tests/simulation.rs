//! A consumer in a world where everything goes wrong, ten thousand times.
//!
//! Pure: every run follows from its seed.

use super::*;
use crate::{digest::Digest, reader::ReadError};

/// Random numbers from a seed (`SplitMix64`).
pub(super) struct Dice(pub(super) u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end`.
    pub(super) fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % u64::try_from(end).unwrap()).unwrap()
    }

    pub(super) fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }
}

/// What comes back when something is asked for.
#[expect(clippy::large_enum_variant, reason = "one of it lives at a time")]
enum Answer {
    Document(Document, Validators),
    Index(IndexBlock),
    NotModified,
    Missing,
    /// No answer, or one that broke off.
    Lost,
}

/// How bad the world is, in percent.
#[derive(Clone, Copy, Debug)]
struct Weather {
    growth: usize,
    lost: usize,
    truncated: usize,
    /// A cache answers, if it has a copy.
    cached: usize,
    /// A cache gets its copy from another one that lags behind.
    lagging: usize,
    /// A cache answers although it was asked to be passed by.
    stubborn: usize,
    crash: usize,
    /// The consumer accepts what it was given last.
    accept: usize,
}

impl Weather {
    const CALM: Self = Self {
        growth: 0,
        lost: 0,
        truncated: 0,
        cached: 0,
        lagging: 0,
        stubborn: 0,
        crash: 0,
        accept: 100,
    };

    fn bad(dice: &mut Dice) -> Self {
        let mut up_to = |most: usize| dice.below(most + 1);
        Self {
            growth: up_to(60),
            lost: up_to(20),
            truncated: up_to(20),
            cached: up_to(90),
            lagging: up_to(60),
            stubborn: up_to(95),
            crash: up_to(15),
            accept: 10 + up_to(90),
        }
    }
}

/// A server, its past, and a cache in front of it.
struct World {
    feed: Feed,
    past: Vec<Feed>,
    cache: HashMap<Url, String>,
    dice: Dice,
    weather: Weather,
    /// What happened, so that a simulation that never meets a case is noticed.
    met: Met,
}

#[derive(Debug, Default)]
struct Met {
    not_modified: usize,
    stale: usize,
    truncated: usize,
    restarts: usize,
    index: usize,
    old_recent: usize,
    old_archived: usize,
    gaps: usize,
    grown_in_walk: usize,
    entries: usize,
}

impl World {
    fn new(mut dice: Dice) -> Self {
        let mut feed = Feed::new(u32::try_from(1 + dice.below(5)).unwrap());
        // Ours, or a foreign one, of which the poorest only links back.
        feed.numbered = dice.chance(70);
        feed.links_forward = feed.numbered || dice.chance(50);
        feed.marks_archives = feed.numbered || dice.chance(50);
        let mut past = vec![feed.clone()];
        for _ in 0..dice.below(4) {
            feed.append(dice.below(5));
            past.push(feed.clone());
        }
        let mut weather = Weather::bad(&mut dice);
        if !feed.numbered {
            // Where only ids are known, a cache that insists on old copies cannot be seen through.
            weather.stubborn = 0;
        }
        Self {
            past,
            feed,
            cache: HashMap::new(),
            dice,
            weather,
            met: Met::default(),
        }
    }

    fn end(&self) -> usize {
        self.feed.fragments.len()
    }

    fn grow(&mut self) {
        if self.end() < 40 && self.dice.chance(self.weather.growth) {
            let count = 1 + self.dice.below(3);
            self.feed.append(count);
            self.past.push(self.feed.clone());
            self.met.grown_in_walk += 1;
        }
    }

    fn answer(&mut self, ask: &Ask) -> Answer {
        self.grow();
        if self.dice.chance(self.weather.lost) {
            return Answer::Lost;
        }
        let name = ask.url.as_str().strip_prefix(BASE).unwrap();
        if ask.kind == AskKind::Index {
            self.met.index += 1;
            let lag = self.dice.below(3);
            let block = self.feed.index(name, 2, lag);
            return block
                .filter(|_| lag < 2)
                .map_or(Answer::Missing, Answer::Index);
        }
        let Some(text) = self.copy(ask, name) else {
            return Answer::Missing;
        };
        let tag = Validators {
            etag: Some(Digest::of(text.as_bytes()).to_string()),
            last_modified: None,
        };
        if ask.known == tag {
            self.met.not_modified += 1;
            return Answer::NotModified;
        }
        if self.dice.chance(self.weather.truncated) {
            let cut = self.dice.below(text.trim_end().len());
            let read = Document::read(text.as_bytes()[..cut].to_vec().into(), &ask.url);
            assert!(
                matches!(
                    read,
                    Err(ReadError::Malformed { .. } | ReadError::NoId { .. })
                ),
                "a document cut at {cut} is taken for {read:?}"
            );
            self.met.truncated += 1;
            return Answer::Lost;
        }
        let document = Document::read(text.into_bytes().into(), &ask.url).unwrap();
        Answer::Document(document, tag)
    }

    /// Returns a copy of a document, more or less fresh.
    fn copy(&mut self, ask: &Ask, name: &str) -> Option<String> {
        let copy = self.any_copy(ask, name)?;
        // A closed document, given as it was while it was open.
        if self.feed.text(name).is_some_and(|now| now != copy) {
            match ask.kind {
                AskKind::Recent => self.met.old_recent += 1,
                _ if name != RECENT => self.met.old_archived += 1,
                _ => {}
            }
        }
        Some(copy)
    }

    fn any_copy(&mut self, ask: &Ask, name: &str) -> Option<String> {
        let percent = if ask.again {
            self.weather.stubborn
        } else {
            self.weather.cached
        };
        if let Some(copy) = self.cache.get(&ask.url)
            && self.dice.chance(percent)
        {
            return Some(copy.clone());
        }
        let fresh = self.feed.text(name)?;
        let lags = self.dice.chance(if ask.again {
            self.weather.stubborn / 3
        } else {
            self.weather.lagging
        });
        let copy = if lags {
            let then = self.dice.below(self.past.len());
            self.past[then].text(name).unwrap_or(fresh)
        } else {
            fresh
        };
        self.cache.insert(ask.url.clone(), copy.clone());
        Some(copy)
    }
}

/// The number behind a document's newest entry.
fn end_number(document: &Document) -> usize {
    let newest = document
        .entry(0)
        .and_then(|entry| entry.id.strip_prefix("urn:"));
    newest.map_or(0, |newest| 1 + newest.parse::<usize>().unwrap())
}

/// A consumer that must see every number once, in order, whatever happens between.
struct Reader {
    start: Start,
    /// What survives a restart, as it is written down.
    kept: Option<String>,
    /// The number to be delivered next.
    next: usize,
    /// The number behind the last one accepted.
    accepted: usize,
}

impl Reader {
    fn new(world: &mut World) -> Self {
        let end = world.end();
        let (start, next) = match world.dice.below(3) {
            // Entry n was committed at second n + 2, and says so.
            0 => {
                let first = world.dice.below(end + 3);
                let second = i64::try_from(first + 2).unwrap();
                (
                    Start::Time(Timestamp::from_micros(second * 1_000_000)),
                    first,
                )
            }
            1 if end > 0 => {
                let last = world.dice.below(end);
                (Start::Entry(format!("urn:{last}")), last + 1)
            }
            _ => (Start::Oldest, 0),
        };
        Self {
            start,
            kept: None,
            next,
            accepted: next,
        }
    }

    fn keep(&mut self, bookmark: &Bookmark) {
        self.kept = Some(serde_json::to_string(bookmark).unwrap());
    }

    /// Runs from a start to a crash, or, in calm weather, to the second time it is caught up.
    fn run(&mut self, world: &mut World, seed: u64) {
        let start = match &self.kept {
            Some(kept) => Start::Bookmark(serde_json::from_str(kept).unwrap()),
            None => self.start.clone(),
        };
        // Any document leads to the recent one.
        let given = match world.dice.below(4) {
            0 => url("1.atom"),
            _ => url(RECENT),
        };
        self.next = self.accepted;
        let mut replay = Replay::new(given, start);
        let (mut began, mut pinned, mut rounds) = (self.next, 0, 0);
        for _ in 0..2_000 {
            if world.dice.chance(world.weather.crash) {
                world.met.restarts += 1;
                return;
            }
            let Some(ask) = replay.ask() else {
                // A round ends where the feed ended when it was looked at, not earlier and not later.
                if world.feed.numbered && self.next > began {
                    assert_eq!(self.next, pinned.max(began), "seed {seed}: another end");
                }
                (began, pinned) = (self.next, 0);
                let place = replay.next_round().unwrap();
                if let Some(place) = place.filter(|_| self.accepted == self.next) {
                    self.keep(&place);
                }
                rounds += 1;
                if rounds == 2 {
                    return;
                }
                continue;
            };
            let outcome = match world.answer(&ask) {
                Answer::Document(document, tag) => {
                    if ask.kind == AskKind::Recent {
                        pinned = end_number(&document);
                    }
                    replay.take(document, &ask.url, tag)
                }
                Answer::Index(block) => replay.take_index(&block, &ask.url).map(|()| None),
                Answer::NotModified => {
                    replay.not_modified();
                    Ok(None)
                }
                Answer::Missing => replay.missing().map(|()| None),
                Answer::Lost => Ok(None),
            };
            match outcome {
                Ok(Some(run)) => {
                    if self.read(world, &run, seed) {
                        return;
                    }
                }
                Ok(None) => {}
                Err(WalkError::Stale { url }) => {
                    world.met.stale += 1;
                    if world.dice.chance(50) {
                        world.cache.remove(&url);
                    }
                }
                // Nor can it by who was given an id only, and has no bookmark yet.
                Err(WalkError::Gap { .. }) if world.weather.stubborn > 0 && self.kept.is_none() => {
                    world.met.gaps += 1;
                    return;
                }
                Err(error) => panic!("seed {seed}: {error}, asking for {ask:?}"),
            }
        }
        assert!(
            world.weather.crash + world.weather.lost > 0,
            "seed {seed}: no end"
        );
    }

    /// Reads what was handed over. Returns whether it crashed meanwhile.
    fn read(&mut self, world: &mut World, run: &EntryRun, seed: u64) -> bool {
        for (entry, number) in run.entries.iter().zip(numbers(run)) {
            assert_eq!(
                number, self.next,
                "seed {seed}: lost, repeated or out of order"
            );
            self.next += 1;
            world.met.entries += 1;
            if world.dice.chance(world.weather.accept) {
                self.keep(&run.bookmark(entry).unwrap());
                self.accepted = self.next;
            }
            if world.dice.chance(world.weather.crash) {
                world.met.restarts += 1;
                return true;
            }
        }
        false
    }
}

/// Goal: no entry is lost, none is delivered again but what was not accepted, and no accident is
/// taken for a gap, another feed or another history.
/// Method: ten thousand worlds, each with growth during the walk, lost answers, truncated bodies,
/// 304s, old copies of recent and formerly open documents, an index that lags, and restarts; then
/// the weather turns calm, and everything there is must arrive.
#[test]
fn ten_thousand_bad_days() {
    let mut met = Met::default();
    for seed in 0..10_000 {
        let mut world = World::new(Dice(seed));
        let mut reader = Reader::new(&mut world);
        for _ in 0..=world.dice.below(4) {
            reader.run(&mut world, seed);
        }
        world.weather = Weather::CALM;
        reader.run(&mut world, seed);
        let end = world.end().max(reader.accepted);
        assert_eq!(reader.accepted, end, "seed {seed}: not all of it");
        met.not_modified += world.met.not_modified;
        met.stale += world.met.stale;
        met.truncated += world.met.truncated;
        met.restarts += world.met.restarts;
        met.index += world.met.index;
        met.old_recent += world.met.old_recent;
        met.old_archived += world.met.old_archived;
        met.gaps += world.met.gaps;
        met.grown_in_walk += world.met.grown_in_walk;
        met.entries += world.met.entries;
    }
    for (what, times) in [
        ("304", met.not_modified),
        ("stale copy that stayed", met.stale),
        ("truncated body", met.truncated),
        ("old copy of a recent document", met.old_recent),
        ("old copy of another document", met.old_archived),
        ("restart", met.restarts),
        ("index", met.index),
        ("growth", met.grown_in_walk),
        ("entry", met.entries),
    ] {
        assert!(times > 1_000, "{what} only {times} times: {met:?}");
    }
}

/// Goal: a consumer that stops after any entry resumes without a loss, and repeats only what it had
/// not accepted.
/// Method: every feed of up to 12 entries in documents of 1 to 5; the consumer stops after every
/// entry, having accepted it or only the one before it, before or after the cut that follows; the
/// server stays as it is or grows.
#[test]
fn a_consumer_that_stops_anywhere_resumes() {
    for size in 1..=5 {
        for end in 1..=12_usize {
            for stop in 0..end {
                for grown in 0..=6 {
                    for unaccepted in 0..=stop.min(2) {
                        let mut feed = Feed::new(size);
                        feed.append(end);
                        let mut kept = None;
                        let mut seen = vec![];
                        let mut replay = Replay::new(url(RECENT), Start::Oldest);
                        'stopped: while let Some(run) = next_run(&feed, &mut replay) {
                            for (entry, number) in run.entries.iter().zip(numbers(&run)) {
                                seen.push(number);
                                if number + unaccepted == stop {
                                    kept = run.bookmark(entry);
                                }
                                if number == stop {
                                    break 'stopped;
                                }
                            }
                        }
                        assert_eq!(seen, (0..=stop).collect::<Vec<_>>());
                        feed.append(grown);
                        let start = Start::Bookmark(kept.unwrap());
                        let mut replay = Replay::new(url(RECENT), start);
                        let mut seen = vec![];
                        while let Some(run) = next_run(&feed, &mut replay) {
                            seen.extend(numbers(&run));
                        }
                        let expected: Vec<_> = (stop - unaccepted + 1..end + grown).collect();
                        assert_eq!(
                            seen, expected,
                            "size {size}, end {end}+{grown}, stopped after {stop}, {unaccepted} unaccepted"
                        );
                    }
                }
            }
        }
    }
}

/// Returns what is handed over next, from a world where all is well.
fn next_run(feed: &Feed, replay: &mut Replay) -> Option<EntryRun> {
    while let Some(ask) = replay.ask() {
        if ask.kind == AskKind::Index {
            replay.missing().unwrap();
            continue;
        }
        let document = feed.get(&ask.url).unwrap();
        let run = replay
            .take(document, &ask.url, Validators::default())
            .unwrap();
        if run.is_some() {
            return run;
        }
    }
    None
}
