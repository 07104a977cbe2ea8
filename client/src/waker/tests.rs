//! Simulations of consumers that are woken: a server, a cache and a network that fail in every way, in simulated time.

use std::{
    io,
    sync::{Arc, Mutex},
};

use bytes::Bytes;
use simplefeed_core::{
    history::HistoryHash,
    push::{Mark, event},
    replay::{Bookmark, WalkError},
};
use tokio::sync::watch;

use super::*;
use crate::{
    BookmarkStore, Consumer, ConsumerError, Since,
    transport::{Answer, Answering, Request, StreamedAnswer, Streaming, Transport, TransportError},
};

const FEED: &str = "http://h/recent";
const DOCUMENT_ENTRIES: usize = 3;
const MEANS: [WakeBy; 3] = [WakeBy::Events, WakeBy::Wait, WakeBy::Poll];
/// Time in which a consumer must have everything, once nothing fails any more.
const CALM: Duration = Duration::from_mins(4);

/// Numbers by chance, the same for the same seed.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % sides
    }

    fn is(&mut self, percent: u64) -> bool {
        self.roll(100) < percent
    }
}

/// A change of a world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// So many entries are appended at once.
    Append(usize),
    /// The server ends all streams and waits, and comes back after a while.
    Restart,
    /// All connections are lost.
    Cut,
    /// A cache begins, or ends, to ignore `no-cache`.
    Stale(bool),
    /// The next consumer goes on from the bookmark, by other means.
    Another,
    /// The server loses its newest entries, and appends others.
    Restore,
}

/// How often something fails, in percent.
#[derive(Clone, Copy, Debug, Default)]
struct Faults {
    lost: u64,
    busy: u64,
    /// Streams that never open, or are no streams.
    no_stream: u64,
    /// Events that come late.
    late: u64,
    /// Whether a proxy drops queries.
    drops_queries: bool,
}

/// A copy in the cache, with the time of its fetch.
type Copy = (Instant, Answer);

struct World {
    entries: Vec<String>,
    /// Number of restorations, for other ids.
    restored: usize,
    /// First position of the document that was open at the last of them.
    since: usize,
    down_until: Option<Instant>,
    is_stale: bool,
    /// Whether a proxy takes entity tags away.
    strips_tags: bool,
    cached: Option<Copy>,
    /// URLs that were asked for.
    asked: Vec<String>,
    faults: Faults,
    dice: Dice,
}

struct Site {
    world: Mutex<World>,
    /// Number of changes; and of cuts, with which all connections end.
    changes: watch::Sender<(u64, u64)>,
}

impl std::fmt::Debug for Site {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Site")
    }
}

fn lost() -> TransportError {
    TransportError {
        detail: "the connection is lost".into(),
        transient: true,
        source: None,
    }
}

impl World {
    fn fragment(id: &str) -> String {
        format!("<entry><id>{id}</id></entry>")
    }

    fn hash(&self, before: usize) -> HistoryHash {
        let entries = self.entries.iter().take(before);
        entries.fold(HistoryHash::start_of_text("urn:f"), |hash, id| {
            hash.extend(Self::fragment(id).as_bytes())
        })
    }

    /// Returns the number of the open document, from 0.
    fn open(&self) -> usize {
        self.entries.len().saturating_sub(1) / DOCUMENT_ENTRIES
    }

    fn document(&self, number: usize, is_recent: bool) -> String {
        let first = number * DOCUMENT_ENTRIES;
        let entries = self.entries.iter().skip(first).take(DOCUMENT_ENTRIES);
        let entries: Vec<String> = entries.map(|id| Self::fragment(id)).collect();
        let link = |rel: &str, number: usize| format!("<link rel='{rel}' href='{number}'/>");
        let via = is_recent.then(|| link("via", number));
        let before = number.checked_sub(1);
        let before = before.map(|before| link("prev-archive", before));
        let next = (number < self.open()).then(|| link("next-archive", number + 1));
        let current = "<link rel='current' href='recent'/>".to_owned();
        let links = [Some(current), via, before, next];
        let links: String = links.into_iter().flatten().collect();
        let entries: String = entries.into_iter().rev().collect();
        let epoch = if self.restored > 0 && first >= self.since {
            format!("epoch='{}' since='{}'", 1_000 + self.restored, self.since)
        } else {
            String::new()
        };
        format!(
            "<feed xmlns='http://www.w3.org/2005/Atom'><id>urn:f</id>\
             <history xmlns='urn:simplefeed:1' first='{first}' before='{}' {epoch}/>{links}{entries}</feed>",
            self.hash(first)
        )
    }

    fn recent_tag(&self) -> String {
        format!("\"{}-{}\"", self.restored, self.entries.len())
    }

    /// Returns the server's own answer.
    fn origin(&self, path: &str, known: Option<&str>) -> Answer {
        let is_recent = path == "/recent";
        let number = if is_recent {
            Some(self.open())
        } else {
            path.trim_start_matches('/').parse().ok()
        };
        let Some(number) = number.filter(|number| *number <= self.open()) else {
            return Answer {
                status: 404,
                headers: vec![],
                body: Bytes::new(),
            };
        };
        let tag = if is_recent {
            self.recent_tag()
        } else {
            format!("\"{number}-{}\"", self.recent_tag().len())
        };
        let mut headers: Vec<(String, String)> = vec![
            ("content-type".into(), "application/atom+xml".into()),
            ("etag".into(), tag.clone()),
            (
                "cache-control".into(),
                "max-age=1, stale-while-revalidate=1".into(),
            ),
        ];
        if is_recent {
            let links = "<recent?wait=15>; rel=\"urn:simplefeed:1#wait\", \
                <events>; rel=\"urn:simplefeed:1#events\"";
            headers.push(("link".into(), links.into()));
        }
        if self.strips_tags {
            headers.retain(|(name, _)| name != "etag");
        }
        let is_known = is_recent && !self.strips_tags && known == Some(tag.as_str());
        Answer {
            status: if is_known { 304 } else { 200 },
            headers,
            body: if is_known {
                Bytes::new()
            } else {
                self.document(number, is_recent).into()
            },
        }
    }

    /// Returns the answer of a cache in front of the server.
    fn through_cache(&mut self, path: &str, request: &Request) -> Answer {
        let field = |name: &str| {
            let mut fields = request.headers.iter();
            fields
                .find(|(found, _)| *found == name)
                .map(|(_, value)| value.clone())
        };
        let known = field("if-none-match");
        if path != "/recent" {
            return self.origin(path, known.as_deref());
        }
        let now = Instant::now();
        let is_past = field("cache-control").is_some() && !self.is_stale;
        let lifetime = Duration::from_secs(if self.is_stale { 20 } else { 1 });
        let fresh = self
            .cached
            .as_ref()
            .filter(|(at, _)| !is_past && *at + lifetime > now);
        let (at, whole) = match fresh {
            Some(copy) => copy.clone(),
            None => (now, self.origin(path, None)),
        };
        self.cached = Some((at, whole.clone()));
        let mut answer = whole;
        let age = (now - at).as_secs();
        answer.headers.push(("age".into(), age.to_string()));
        let tag = answer.header("etag");
        let is_known = tag.is_some() && tag == known.as_deref();
        if is_known {
            answer.status = 304;
            answer.body = Bytes::new();
        }
        answer
    }

    fn newest(&self) -> Option<PlaceId> {
        let position = self.entries.len().checked_sub(1)?;
        Some(PlaceId {
            position: Position(u64::try_from(position).unwrap()),
            mark: Mark::of_history(&self.hash(position + 1)),
        })
    }

    fn is_down(&self) -> bool {
        self.down_until.is_some_and(|until| Instant::now() < until)
    }
}

impl Site {
    fn changed(&self, cuts: bool) {
        self.changes.send_modify(|(changes, cut)| {
            *changes += 1;
            *cut += u64::from(cuts);
        });
    }

    async fn answer(&self, request: Request) -> Result<Answer, TransportError> {
        let (delay, is_lost, is_busy, drops) = {
            let mut world = self.world.lock().unwrap();
            world.asked.push(request.url.to_string());
            let faults = world.faults;
            let delay = Duration::from_millis(1 + world.dice.roll(30));
            let is_lost = world.dice.is(faults.lost);
            (
                delay,
                is_lost,
                world.dice.is(faults.busy),
                faults.drops_queries,
            )
        };
        time::sleep(delay).await;
        if self.world.lock().unwrap().is_down() {
            return Err(lost());
        }
        if is_busy {
            return Ok(Answer {
                status: 503,
                headers: vec![],
                body: Bytes::new(),
            });
        }
        let path = request.url.path().to_owned();
        if request.url.query().is_some() && !drops {
            return self.wait(&path, &request, is_lost).await;
        }
        if is_lost {
            return Err(lost());
        }
        Ok(self.world.lock().unwrap().through_cache(&path, &request))
    }

    async fn wait(
        &self,
        path: &str,
        request: &Request,
        is_lost: bool,
    ) -> Result<Answer, TransportError> {
        let known = request
            .headers
            .iter()
            .find(|(name, _)| *name == "if-none-match");
        let known = known.map(|(_, tag)| tag.as_str());
        let ends = Instant::now() + Duration::from_secs(15);
        let mut changes = self.changes.subscribe();
        let (_, cuts) = *changes.borrow_and_update();
        loop {
            let mut answer = self.world.lock().unwrap().origin(path, known);
            answer.headers.retain(|(name, _)| name != "cache-control");
            answer
                .headers
                .push(("cache-control".into(), "no-store".into()));
            if answer.status != 304 || Instant::now() >= ends {
                // Lost on the way back, which is worse than on the way there.
                return if is_lost { Err(lost()) } else { Ok(answer) };
            }
            tokio::select! {
                _ = changes.changed() => {
                    if changes.borrow_and_update().1 != cuts {
                        return Err(lost());
                    }
                }
                () = time::sleep_until(ends) => {}
            }
        }
    }

    /// Returns the pieces of a stream, until it is cut.
    fn told(self: &Arc<Self>) -> Pieces {
        let (site, mut changes) = (Arc::clone(self), self.changes.subscribe());
        let (_, cuts) = *changes.borrow_and_update();
        let begins = (site, changes, None);
        Box::pin(stream::unfold(
            begins,
            move |(site, mut changes, told)| async move {
                loop {
                    if changes.borrow_and_update().1 != cuts {
                        return None;
                    }
                    let (newest, late) = {
                        let mut world = site.world.lock().unwrap();
                        let late = world.faults.late;
                        (world.newest(), world.dice.is(late))
                    };
                    if newest != told {
                        if late {
                            time::sleep(Duration::from_secs(3)).await;
                        }
                        let text = newest.map(|newest| event(None, &newest.to_string(), ""));
                        let piece = Bytes::from(text.unwrap_or_default());
                        return Some((Ok(piece), (site, changes, newest)));
                    }
                    tokio::select! {
                        _ = changes.changed() => {}
                        () = time::sleep(Duration::from_secs(4)) => {
                            let piece = Bytes::from_static(b":\n\n");
                            return Some((Ok(piece), (site, changes, told)));
                        }
                    }
                }
            },
        ))
    }
}

/// The way to a site.
#[derive(Debug)]
struct Way(Arc<Site>);

impl Transport for Way {
    fn send(&self, request: Request) -> Answering<'_> {
        Box::pin(async move { self.0.answer(request).await })
    }

    fn stream(&self, _: Request) -> Streaming<'_> {
        Box::pin(async move {
            let (delay, kind, is_down) = {
                let mut world = self.0.world.lock().unwrap();
                let faults = world.faults;
                let kind = if world.dice.is(faults.no_stream) {
                    world.dice.roll(4)
                } else {
                    9
                };
                (
                    Duration::from_millis(1 + world.dice.roll(30)),
                    kind,
                    world.is_down(),
                )
            };
            time::sleep(delay).await;
            let answer = |status, kind: &str, body| StreamedAnswer {
                status,
                headers: vec![("content-type".into(), kind.into())],
                body,
            };
            let nothing: Pieces = Box::pin(stream::empty());
            match kind {
                _ if is_down => Err(lost()),
                0 => std::future::pending().await,
                1 => Ok(answer(404, EVENTS_TYPE, nothing)),
                2 => Ok(answer(200, "text/html", nothing)),
                3 => Err(lost()),
                _ => Ok(answer(200, EVENTS_TYPE, self.0.told())),
            }
        })
    }
}

/// A bookmark that outlives its consumer.
#[derive(Clone, Debug, Default)]
struct Kept(Arc<Mutex<Option<Bookmark>>>);

impl BookmarkStore for Kept {
    async fn load(&mut self) -> io::Result<Option<Bookmark>> {
        Ok(self.0.lock().unwrap().clone())
    }

    async fn save(&mut self, bookmark: &Bookmark) -> io::Result<()> {
        *self.0.lock().unwrap() = Some(bookmark.clone());
        Ok(())
    }
}

/// A world with its consumer.
struct Case {
    site: Arc<Site>,
    kept: Kept,
    means: WakeBy,
    consumer: Consumer,
    delivered: Vec<String>,
    ended: Option<ConsumerError>,
}

impl Case {
    fn new(means: WakeBy, faults: Faults, seed: u64) -> Self {
        let site = Arc::new(Site {
            world: Mutex::new(World {
                entries: vec!["urn:first".into()],
                restored: 0,
                since: 0,
                down_until: None,
                is_stale: false,
                strips_tags: false,
                cached: None,
                asked: vec![],
                faults,
                dice: Dice(seed),
            }),
            changes: watch::Sender::new((0, 0)),
        });
        let kept = Kept::default();
        let consumer = Self::consumer(&site, &kept, means);
        Self {
            site,
            kept,
            means,
            consumer,
            delivered: vec![],
            ended: None,
        }
    }

    fn consumer(site: &Arc<Site>, kept: &Kept, means: WakeBy) -> Consumer {
        Consumer::builder(FEED)
            .transport(Arc::new(Way(Arc::clone(site))))
            .bookmark(kept.clone())
            .since(Since::Oldest)
            .follow(true)
            .wake_by(means)
            .build()
            .unwrap()
    }

    fn world(&self) -> std::sync::MutexGuard<'_, World> {
        self.site.world.lock().unwrap()
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Append(count) => {
                let mut world = self.world();
                for _ in 0..count {
                    let id = format!("urn:{}:{}", world.restored, world.entries.len());
                    world.entries.push(id);
                }
            }
            Step::Restart => {
                let mut world = self.world();
                let pause = Duration::from_millis(world.dice.roll(4_000));
                world.down_until = Some(Instant::now() + pause);
            }
            Step::Stale(is_stale) => self.world().is_stale = is_stale,
            Step::Cut => {}
            Step::Another => {
                let next = MEANS.iter().position(|means| *means == self.means);
                self.means = MEANS[(next.unwrap() + 1) % MEANS.len()];
                self.consumer = Self::consumer(&self.site, &self.kept, self.means);
            }
            Step::Restore => {
                let mut world = self.world();
                let left = world.entries.len().saturating_sub(2).max(1);
                world.entries.truncate(left);
                world.since = world.open() * DOCUMENT_ENTRIES;
                world.restored += 1;
                world.cached = None;
                let id = format!("urn:{}:{left}", world.restored);
                world.entries.push(id);
            }
        }
        self.site
            .changed(matches!(step, Step::Restart | Step::Cut | Step::Restore));
    }

    /// Reads for a time. Each entry is accepted before the next.
    async fn read(&mut self, time: Duration) {
        let ends = Instant::now() + time;
        while self.ended.is_none() {
            let next = time::timeout_at(ends, self.consumer.next()).await;
            match next {
                Err(_over) => return,
                Ok(Ok(delivery)) => {
                    let delivery = delivery.expect("it follows");
                    self.delivered.push(delivery.id().into());
                    self.consumer.accept(&delivery).await.unwrap();
                }
                Ok(Err(error)) if error.is_transient() => {}
                Ok(Err(error)) => self.ended = Some(error),
            }
        }
    }

    /// Ends all failures, and checks that each entry came once, in order. Returns how long the last ones took.
    async fn check(mut self, what: &str) -> Duration {
        {
            let mut world = self.world();
            world.faults = Faults::default();
            world.is_stale = false;
        }
        let began = Instant::now();
        let complete = |case: &Self| case.delivered == case.world().entries;
        while !complete(&self) && self.ended.is_none() && began.elapsed() < CALM {
            self.read(Duration::from_millis(50)).await;
        }
        let entries = self.world().entries.clone();
        let was_restored = self.world().restored > 0;
        match &self.ended {
            None => assert_eq!(self.delivered, entries, "{what} {:?}", self.means),
            // The consumer may have seen lost entries without delivering one.
            Some(ConsumerError::Walk(
                WalkError::HistoryChanged { .. } | WalkError::Missing { .. },
            )) => {
                assert!(
                    was_restored,
                    "{what} {:?}: {:?}",
                    self.means, self.delivered
                );
            }
            Some(error) => panic!("{what} {:?}: {error:?}", self.means),
        }
        if self.ended.is_none() {
            // Nothing comes twice.
            self.read(Duration::from_secs(90)).await;
            assert_eq!(self.delivered, entries, "{what} {:?}", self.means);
        }
        began.elapsed()
    }
}

async fn simulate(seed: u64) {
    let mut dice = Dice(seed);
    let faults = Faults {
        lost: [0, 0, 10, 40][usize::try_from(dice.roll(4)).unwrap()],
        busy: [0, 0, 20][usize::try_from(dice.roll(3)).unwrap()],
        no_stream: [0, 0, 30, 100][usize::try_from(dice.roll(4)).unwrap()],
        late: [0, 30][usize::try_from(dice.roll(2)).unwrap()],
        drops_queries: dice.is(25),
    };
    let means = MEANS[usize::try_from(dice.roll(3)).unwrap()];
    let mut case = Case::new(means, faults, seed);
    let may_restore = dice.is(20);
    for _ in 0..dice.roll(30) {
        let step = match dice.roll(20) {
            0 => Step::Restart,
            1 | 2 => Step::Cut,
            3 => Step::Stale(true),
            4 => Step::Stale(false),
            5 | 6 => Step::Another,
            // Once, since the documents here name one epoch.
            7 if may_restore && case.world().restored == 0 => Step::Restore,
            _ => Step::Append(usize::try_from(1 + dice.roll(5)).unwrap()),
        };
        case.take(step);
        let pause = [0, 10, 300, 3_000, 40_000][usize::try_from(dice.roll(5)).unwrap()];
        case.read(Duration::from_millis(dice.roll(pause + 1))).await;
    }
    case.check(&format!("seed {seed}")).await;
}

/// Goal: between replay and following, no failure makes a consumer lose, repeat or reorder an entry.
#[tokio::test(start_paused = true)]
async fn each_entry_comes_once_by_whatever_means() {
    let cases = if std::env::var_os("SIMPLEFEED_TESTS_LONG").is_some() {
        10_000
    } else {
        2_000
    };
    for seed in 0..cases {
        Box::pin(simulate(seed)).await;
    }
}

/// Goal: the same for every sequence of a few steps, with every means.
#[tokio::test(start_paused = true)]
async fn each_entry_comes_once_in_every_small_world() {
    const STEPS: [Step; 6] = [
        Step::Append(1),
        Step::Append(4),
        Step::Restart,
        Step::Cut,
        Step::Stale(true),
        Step::Another,
    ];
    let length = if std::env::var_os("SIMPLEFEED_TESTS_LONG").is_some() {
        5
    } else {
        4
    };
    for means in MEANS {
        for number in 0..STEPS.len().pow(length) {
            let steps =
                (0..length).map(|place| STEPS[number / STEPS.len().pow(place) % STEPS.len()]);
            let steps: Vec<Step> = steps.collect();
            let mut case = Case::new(means, Faults::default(), 1);
            // Behind the replay, beside it, and before it.
            case.read(Duration::from_millis([0, 20, 5_000][number % 3]))
                .await;
            for step in &steps {
                case.take(*step);
                case.read(Duration::from_millis(15)).await;
            }
            case.check(&format!("{steps:?}")).await;
        }
    }
}

/// Goal: a wake brings an entry at once, by events and by waits, past a cache that has an old copy.
#[tokio::test(start_paused = true)]
async fn a_wake_is_quicker_than_a_poll() {
    for (means, most) in [
        (WakeBy::Events, 200),
        (WakeBy::Wait, 200),
        (WakeBy::Poll, 4_000),
    ] {
        let mut case = Case::new(means, Faults::default(), 3);
        case.read(Duration::from_secs(30)).await;
        for _ in 0..20 {
            case.take(Step::Append(1));
            let began = Instant::now();
            let expected = case.delivered.len() + 1;
            while case.delivered.len() < expected {
                case.read(Duration::from_millis(10)).await;
            }
            let took = began.elapsed();
            assert!(took < Duration::from_millis(most), "{means:?}: {took:?}");
            case.read(Duration::from_secs(7)).await;
        }
    }
}

/// Goal: a cache that ignores `no-cache` delays a wake, and does not swallow it.
#[tokio::test(start_paused = true)]
async fn a_cache_cannot_swallow_a_wake() {
    let mut case = Case::new(WakeBy::Events, Faults::default(), 3);
    case.read(Duration::from_secs(30)).await;
    case.take(Step::Stale(true));
    for _ in 0..5 {
        let expected = case.delivered.len() + 2;
        case.take(Step::Append(1));
        case.read(Duration::from_secs(2)).await;
        case.take(Step::Append(1));
        case.read(Duration::from_secs(45)).await;
        assert_eq!(case.delivered.len(), expected);
    }
}

/// Goal: a consumer whose stream was cut by a server with a shorter history says so at once.
#[tokio::test(start_paused = true)]
async fn a_lost_history_is_noticed_when_a_stream_ends() {
    let mut case = Case::new(WakeBy::Events, Faults::default(), 3);
    case.take(Step::Append(7));
    case.read(Duration::from_secs(30)).await;
    {
        let mut world = case.world();
        world.entries.truncate(4);
        (world.since, world.restored) = (3, 1);
        world.cached = None;
    }
    case.take(Step::Cut);
    case.read(Duration::from_secs(10)).await;
    let ended = case.ended.unwrap();
    assert!(
        matches!(ended, ConsumerError::Walk(WalkError::HistoryChanged { .. })),
        "{ended:?}"
    );
}

/// Goal: the URL of a wait is never taken for that of the feed; and a proxy that drops queries costs one request.
#[tokio::test(start_paused = true)]
async fn polls_behind_waits_are_no_waits() {
    let mut case = Case::new(WakeBy::Wait, Faults::default(), 3);
    case.read(Duration::from_secs(3)).await;
    case.take(Step::Append(1));
    case.read(Duration::from_secs(3)).await;
    assert_eq!(case.delivered.len(), 2);
    case.world().faults.drops_queries = true;
    // The wait that is on its way ends.
    case.read(Duration::from_secs(20)).await;
    case.take(Step::Append(1));
    case.world().asked.clear();
    case.read(Duration::from_secs(30)).await;
    let asked = case.world().asked.clone();
    assert_eq!(case.delivered.len(), 3);
    assert!(
        asked.len() > 10 && asked.iter().all(|url| url == FEED),
        "{asked:?}"
    );
}

/// Goal: where there is nothing to wait with, a consumer polls, and no more often than without waits.
#[tokio::test(start_paused = true)]
async fn waits_that_cannot_be_are_polls() {
    for (has_entries, strips_tags) in [(false, false), (true, true)] {
        let mut case = Case::new(WakeBy::Wait, Faults::default(), 3);
        if !has_entries {
            case.world().entries.clear();
        }
        case.world().strips_tags = strips_tags;
        case.read(Duration::from_mins(1)).await;
        let asked = case.world().asked.len();
        assert!((20..70).contains(&asked), "{asked}");
        case.take(Step::Append(2));
        case.read(Duration::from_secs(5)).await;
        assert_eq!(case.delivered, case.world().entries);
    }
}

/// Goal: a failure that passes does not end push for long.
#[tokio::test(start_paused = true)]
async fn a_short_failure_is_a_short_pause() {
    for means in [WakeBy::Events, WakeBy::Wait] {
        let mut case = Case::new(means, Faults::default(), 3);
        case.read(Duration::from_secs(30)).await;
        case.world().faults.lost = 100;
        case.take(Step::Restart);
        case.read(Duration::from_secs(8)).await;
        case.world().faults.lost = 0;
        case.read(Duration::from_secs(75)).await;
        case.take(Step::Append(1));
        let expected = case.delivered.len() + 1;
        case.read(Duration::from_millis(200)).await;
        assert_eq!(case.delivered.len(), expected, "{means:?}");
    }
}

/// Goal: while a stream is open, a consumer hardly polls; a stream that tells nonsense costs no more than polls.
#[tokio::test(start_paused = true)]
async fn a_stream_saves_requests() {
    let count = |means, lies| async move {
        let mut case = Case::new(means, Faults::default(), 3);
        case.read(Duration::from_secs(10)).await;
        let asked = Arc::new(Mutex::new(0));
        let way = Lying {
            inner: Way(Arc::clone(&case.site)),
            asked: Arc::clone(&asked),
            lies,
        };
        case.consumer = Consumer::builder(FEED)
            .transport(Arc::new(way))
            .bookmark(case.kept.clone())
            .follow(true)
            .wake_by(means)
            .build()
            .unwrap();
        case.read(Duration::from_mins(10)).await;
        *asked.lock().unwrap()
    };
    let (events, polls) = (
        count(WakeBy::Events, false).await,
        count(WakeBy::Poll, false).await,
    );
    assert!(events < 30 && polls > 400, "{events} {polls}");
    let lied_to = count(WakeBy::Events, true).await;
    assert!(lied_to < polls, "{lied_to} {polls}");
}

/// A way that counts requests; its streams may tell of an entry that there never is.
#[derive(Debug)]
struct Lying {
    inner: Way,
    asked: Arc<Mutex<usize>>,
    lies: bool,
}

impl Transport for Lying {
    fn send(&self, request: Request) -> Answering<'_> {
        *self.asked.lock().unwrap() += 1;
        self.inner.send(request)
    }

    fn stream(&self, request: Request) -> Streaming<'_> {
        *self.asked.lock().unwrap() += 1;
        if !self.lies {
            return self.inner.stream(request);
        }
        let lie = |number: u64| async move {
            time::sleep(Duration::from_millis(100)).await;
            let id = format!("{}-00000000000000aa", 1_000 + number);
            Some((Ok(Bytes::from(event(None, &id, ""))), number + 1))
        };
        Box::pin(async move {
            Ok(StreamedAnswer {
                status: 200,
                headers: vec![("content-type".into(), EVENTS_TYPE.into())],
                body: Box::pin(stream::unfold(0, lie)),
            })
        })
    }
}
