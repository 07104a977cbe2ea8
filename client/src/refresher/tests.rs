//! Goal: what a provider shows is in the feed, once, whatever happens on the way.
//! Method: jobs in memory with a clock that the test sets, and a feed that holds what is posted to it.

use std::collections::{BTreeMap, HashSet};

use chrono::{DateTime, Utc};
use parking_lot::Mutex;
use simplefeed_core::event::Event;
use simplefeed_queue::{Limit, Manual, Memory, Stats};

use super::*;
use crate::drops::dropped;
use crate::transport::{Answer, Answering, Request, Transport};

/// Instant at which the tests begin: 2026-01-01.
const BEGIN: i64 = 1_767_225_600_000_000;

/// A feed in memory, which refuses what a server refuses.
#[derive(Debug, Default)]
struct Feed {
    /// Events in the order of their publication.
    events: Mutex<Vec<Event>>,
    /// Title that it refuses.
    refuses: Mutex<Option<String>>,
    /// Status with which it refuses everything, and says nothing more.
    refuses_all: Mutex<Option<u16>>,
    /// Whether it answers at all.
    is_down: Mutex<bool>,
}

impl Feed {
    fn take(&self, body: &[u8]) -> (u16, String) {
        if *self.is_down.lock() {
            return (503, String::new());
        }
        if let Some(status) = *self.refuses_all.lock() {
            return (status, String::new());
        }
        let text = std::str::from_utf8(body).unwrap();
        let batch: Vec<Event> = text
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        let mut events = self.events.lock();
        let refused = batch
            .iter()
            .position(|event| event.title == *self.refuses.lock());
        if let Some(entry) = refused.filter(|_| self.refuses.lock().is_some()) {
            return (422, format!("{{\"detail\":\"no\",\"entry\":{entry}}}"));
        }
        let mut results = Vec::new();
        for event in batch {
            let id = event.id.clone().unwrap();
            let known = events.iter().position(|known| known.id == event.id);
            let status = if let Some(known) = known {
                let content = |event: &Event| {
                    event
                        .content
                        .as_ref()
                        .map(|content| content.get().to_owned())
                };
                assert_eq!(content(&events[known]), content(&event), "a conflict");
                "duplicate"
            } else {
                events.push(event);
                "appended"
            };
            results.push(serde_json::json!({"id": id, "position": results.len(), "document": "http://localhost/1", "status": status}));
        }
        (201, serde_json::json!({"results": results}).to_string())
    }

    /// Returns titles and contents.
    fn shown(&self) -> Vec<(String, String)> {
        let shown = |event: &Event| {
            let content = event.content.as_ref().unwrap().get().to_owned();
            (event.title.clone().unwrap(), content)
        };
        self.events.lock().iter().map(shown).collect()
    }
}

impl Transport for Feed {
    fn send(&self, request: Request) -> Answering<'_> {
        Box::pin(async move {
            // So that a drop may come before a request, and before its answer.
            tokio::task::yield_now().await;
            let (status, body) = self.take(&request.body);
            tokio::task::yield_now().await;
            Ok(Answer {
                status,
                headers: vec![],
                body: body.into(),
            })
        })
    }
}

/// A provider: values by id.
#[derive(Clone, Default)]
struct Provider(Arc<Mutex<Provided>>);

#[derive(Default)]
struct Provided {
    values: BTreeMap<String, u64>,
    requests: Vec<Vec<String>>,
    /// Answers to the next requests, in place of values.
    errors: Vec<LookupError>,
    poison: Vec<String>,
    /// Time that it takes for an answer.
    delay: Duration,
}

impl Lookup for Provider {
    async fn lookup(&self, ids: &[String], _: &Credential) -> Result<LookupAnswer, LookupError> {
        let delay = {
            let mut provided = self.0.lock();
            provided.requests.push(ids.to_vec());
            provided.delay
        };
        tokio::time::sleep(delay).await;
        let mut provided = self.0.lock();
        if let Some(error) = provided.errors.pop() {
            return Err(error);
        }
        if provided.poison.iter().any(|poison| ids.contains(poison)) {
            let detail = "an id is wrong".to_owned();
            return Err(LookupError::Refused {
                status: 400,
                detail,
            });
        }
        let mut found = LookupAnswer::default();
        let seen = provided.requests.len();
        for (id, value) in &provided.values {
            if ids.contains(id) {
                found.insert(id, &serde_json::json!({"likes": value, "seen": seen}))?;
            }
        }
        Ok(found)
    }
}

/// All parts, and their refresher.
struct Parts {
    clock: Manual,
    feed: Arc<Feed>,
    provider: Provider,
    refresher: Refresher<Memory>,
}

impl Parts {
    fn new() -> Self {
        let now: DateTime<Utc> = DateTime::from_timestamp_micros(BEGIN).unwrap();
        let clock = Manual::new(now);
        let feed = Arc::new(Feed::default());
        let publisher = Publisher::new("http://localhost/updates").unwrap();
        let transport: Arc<dyn Transport> = feed.clone();
        let publisher = publisher.transport(transport);
        let limit = Limit {
            requests: 100_000,
            window: Duration::from_secs(1),
        };
        let queue = Memory::new(clock.clone().into());
        let refresher = Refresher::new(queue, Namespace::new("things").unwrap(), publisher)
            .credential(Credential::new("key", limit))
            .ignore(["/seen"]);
        Self {
            clock,
            feed,
            provider: Provider::default(),
            refresher,
        }
    }

    /// Begins items that were born now, with the value 0.
    async fn start(&self, items: usize) {
        let items: Vec<RefreshItem> = (0..items)
            .map(|number| {
                RefreshItem::new(number.to_string(), core_instant(self.clock.now())).unwrap()
            })
            .collect();
        for item in &items {
            self.provider.0.lock().values.insert(item.id.clone(), 0);
        }
        let count = items.len();
        assert_eq!(self.refresher.start(items.clone()).await.unwrap(), count);
        // A starter that repeats itself starts nothing anew.
        assert_eq!(self.refresher.start(items).await.unwrap(), 0);
    }

    fn worker(&self) -> tokio::task::JoinHandle<()> {
        let (refresher, provider) = (self.refresher.clone(), self.provider.clone());
        tokio::spawn(async move {
            let never = std::future::pending::<()>();
            refresher.work_until(&provider, never).await.unwrap();
        })
    }

    /// Returns the counts of the queue, without the time that is next.
    async fn stats(&self) -> Stats {
        let stats = self.refresher.queue.stats(&self.refresher.name).await;
        Stats {
            next_due: None,
            ..stats.unwrap()
        }
    }

    /// Lets the time of a refresh come, and waits until all are done with it.
    async fn refresh(&self, minutes: u64) {
        self.clock.advance(Duration::from_mins(minutes));
        self.settle().await;
    }

    /// Waits until nothing is due and nobody has a job, with the time of the buffer.
    async fn settle(&self) {
        self.clock.advance(BUFFER);
        for _ in 0..20_000 {
            tokio::time::sleep(Duration::from_millis(1)).await;
            let Stats { due, leased, .. } = self.stats().await;
            if due + leased == 0 {
                return;
            }
        }
        panic!("{:?}", self.stats().await);
    }
}

#[tokio::test]
async fn each_change_is_published_once() {
    let parts = Parts::new();
    parts.start(3).await;
    let worker = parts.worker();
    parts.refresh(2).await;
    let shown = parts.feed.shown();
    assert_eq!(shown.len(), 3);
    assert_eq!(
        shown[0],
        ("0".to_owned(), r#"{"likes":0,"seen":1}"#.to_owned())
    );
    // `seen` changes and does not count.
    parts.refresh(3).await;
    assert_eq!(parts.feed.shown().len(), 3);
    parts.provider.0.lock().values.insert("1".to_owned(), 7);
    parts.refresh(3).await;
    let shown = parts.feed.shown();
    assert_eq!(shown.len(), 4);
    assert_eq!(
        shown[3],
        ("1".to_owned(), r#"{"likes":7,"seen":3}"#.to_owned())
    );
    let updated = parts.feed.events.lock()[3].updated.clone().unwrap();
    assert!(updated.starts_with("2026-01-01T00:0"), "{updated}");
    // It vanishes: three answers later that is published, and it is asked for no longer.
    parts.provider.0.lock().values.remove("1");
    for _ in 0..4 {
        parts.refresh(5).await;
    }
    assert_eq!(parts.feed.shown().last().unwrap().1, r#"{"ended":true}"#);
    assert_eq!(parts.stats().await.waiting, 2);
    let requests = &parts.provider.0.lock().requests;
    assert_eq!(
        requests
            .iter()
            .filter(|ids| ids.contains(&"1".to_owned()))
            .count(),
        6
    );
    worker.abort();
}

/// TU-4, TU-8, I2: requests are full and have distinct ids, whatever the number of workers; and each event is there once.
#[tokio::test]
async fn workers_share_the_items() {
    let parts = Parts::new();
    parts.start(350).await;
    let workers: Vec<_> = (0..5).map(|_| parts.worker()).collect();
    parts.refresh(2).await;
    assert_eq!(parts.feed.shown().len(), 350);
    let mut sizes: Vec<usize> = Vec::new();
    for ids in &parts.provider.0.lock().requests {
        assert_eq!(ids.iter().collect::<HashSet<_>>().len(), ids.len());
        sizes.push(ids.len());
    }
    sizes.sort_unstable();
    assert_eq!(sizes, [50, 100, 100, 100]);
    workers.iter().for_each(tokio::task::JoinHandle::abort);
}

/// TU-D10: errors of the provider and of the feed lose nothing and count against no item.
#[tokio::test]
async fn errors_lose_nothing() {
    let parts = Parts::new();
    parts.start(5).await;
    let errors = |status: Option<u16>| LookupError::Failed {
        status,
        pause: Some(Duration::from_millis(1)),
        why: "no luck".to_owned(),
    };
    parts.provider.0.lock().errors = vec![errors(None), errors(Some(503)), errors(Some(429))];
    let worker = parts.worker();
    parts.clock.advance(Duration::from_mins(2) + BUFFER);
    while parts.provider.0.lock().requests.len() < 4 {
        // The pause is over by the queue's clock.
        parts.clock.advance(Duration::from_millis(10));
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    parts.settle().await;
    assert_eq!(parts.feed.shown().len(), 5);
    assert_eq!(
        parts.stats().await,
        Stats {
            waiting: 5,
            ..Stats::default()
        }
    );
    worker.abort();
}

/// An item that the provider, or the feed, does not take fails alone, and is dead in the end.
#[tokio::test]
async fn what_is_at_fault_fails_alone() {
    let parts = Parts::new();
    parts.start(20).await;
    parts.provider.0.lock().poison = vec!["13".to_owned()];
    *parts.feed.refuses.lock() = Some("4".to_owned());
    let worker = parts.worker();
    parts.refresh(2).await;
    assert_eq!(parts.feed.shown().len(), 18);
    for _ in 0..10 {
        parts.refresh(10).await;
    }
    let dead = parts
        .refresher
        .queue
        .dead(&parts.refresher.name, None, 10)
        .await
        .unwrap();
    let reasons: Vec<_> = dead
        .iter()
        .map(|dead| (dead.job.key.as_str(), dead.reason.as_str()))
        .collect();
    assert_eq!(
        reasons,
        [
            ("13", "the provider answered 400 for this item alone"),
            ("4", "the feed refused it: no"),
        ]
    );
    assert_eq!(parts.stats().await.waiting, 18);
    worker.abort();
}

/// I1, I8: workers that are killed at any time lose no item and no change. The feed would refuse a conflict.
#[tokio::test]
async fn killed_workers_lose_nothing() {
    let parts = Parts::new();
    parts.start(40).await;
    for round in 0..60_u64 {
        for value in parts.provider.0.lock().values.values_mut() {
            *value += round % 2;
        }
        let workers: Vec<_> = (0..3).map(|_| parts.worker()).collect();
        parts.clock.advance(Duration::from_mins(3));
        tokio::time::sleep(Duration::from_micros(50 * (round % 30))).await;
        for worker in workers {
            worker.abort();
            let _killed = worker.await;
        }
        // What they had is due again.
        parts.clock.advance(LEASE);
    }
    let worker = parts.worker();
    parts.refresh(60).await;
    let newest: BTreeMap<String, String> = parts.feed.shown().into_iter().collect();
    assert_eq!(newest.len(), 40);
    for content in newest.values() {
        assert!(content.starts_with(r#"{"likes":30,"#), "{content}");
    }
    assert_eq!(
        parts.stats().await,
        Stats {
            waiting: 40,
            ..Stats::default()
        }
    );
    worker.abort();
}

/// Goal: `start` and `work_until`, dropped at any of their awaits, lose no item and no change; what was under way comes once
/// its lease is over.
#[tokio::test]
async fn work_that_is_dropped_anywhere_goes_on() {
    let mut awaits = 0;
    loop {
        let (parts, mut was_dropped) = (Parts::new(), false);
        let item = |number: u32| {
            RefreshItem::new(number.to_string(), core_instant(parts.clock.now())).unwrap()
        };
        for number in 0..5 {
            parts.provider.0.lock().values.insert(number.to_string(), 0);
        }
        let items = || (0..5).map(item);
        dropped!(awaits, was_dropped, parts.refresher.start(items())).unwrap();
        parts.clock.advance(Duration::from_mins(2) + BUFFER);
        for _ in 0..3 {
            let never = std::future::pending::<()>();
            let work = parts.refresher.work_until(&parts.provider, never);
            was_dropped |= crate::drops::polled(
                awaits,
                tokio::time::timeout(Duration::from_millis(20), work),
            )
            .await
            .is_none();
        }
        parts.clock.advance(LEASE);
        let worker = parts.worker();
        parts.settle().await;
        // A change that was published, and not noted as such, comes again.
        let newest: BTreeMap<String, String> = parts.feed.shown().into_iter().collect();
        let is_right = |content: &String| content.starts_with(r#"{"likes":0,"#);
        assert!(
            newest.len() == 5 && newest.values().all(is_right),
            "{awaits}"
        );
        let all = Stats {
            waiting: 5,
            ..Stats::default()
        };
        assert_eq!(parts.stats().await, all, "{awaits}");
        worker.abort();
        awaits += 1;
        if !was_dropped {
            break;
        }
    }
    assert!(awaits > 5, "{awaits}");
}

/// Advances the clock until the provider has been asked so often. Returns how long that took.
async fn until_asked(parts: &Parts, requests: usize) -> Duration {
    let step = Duration::from_secs(1);
    let mut waited = Duration::ZERO;
    while parts.provider.0.lock().requests.len() < requests {
        parts.clock.advance(step);
        tokio::time::sleep(step).await;
        waited += step;
        assert!(waited < Duration::from_mins(10), "{requests} requests");
    }
    waited
}

/// Goal: whatever the clock does, no lookup is put off beyond its longest interval, and no item ends.
#[tokio::test(start_paused = true)]
async fn a_clock_that_leaps_puts_nothing_off() {
    let parts = Parts::new();
    parts.start(3).await;
    let worker = parts.worker();
    assert!(until_asked(&parts, 1).await < Duration::from_mins(3));
    let now = parts.clock.now();
    for (requests, years) in [(2, 72), (4, -50)] {
        parts.clock.set(now + chrono::TimeDelta::days(365 * years));
        until_asked(&parts, requests).await;
        tokio::time::sleep(CLOCK_LOOK).await;
        parts.clock.set(now);
        let waited = until_asked(&parts, requests + 1).await;
        assert!(waited < Duration::from_mins(3), "{waited:?}");
    }
    // An item is started while the clock is wrong, for less time than passes between two looks at it.
    parts.clock.set(now + chrono::TimeDelta::days(365 * 72));
    let late = RefreshItem::new("late", core_instant(parts.clock.now())).unwrap();
    parts.provider.0.lock().values.insert("late".to_owned(), 0);
    assert_eq!(parts.refresher.start([late]).await.unwrap(), 1);
    parts.clock.set(now);
    let is_late = |ids: &Vec<String>| ids.contains(&"late".to_owned());
    let is_asked = || parts.provider.0.lock().requests.iter().any(is_late);
    let mut waited = 0;
    while !is_asked() {
        parts.clock.advance(Duration::from_secs(1));
        tokio::time::sleep(Duration::from_secs(1)).await;
        waited += 1;
        assert!(waited < 180, "it is put off");
    }
    // The worker ends while the clock is wrong.
    let asked = parts.provider.0.lock().requests.len();
    parts.clock.set(now + chrono::TimeDelta::days(365 * 72));
    until_asked(&parts, asked + 1).await;
    worker.abort();
    let _killed = worker.await;
    parts.clock.set(now);
    let worker = parts.worker();
    assert!(until_asked(&parts, asked + 2).await < Duration::from_mins(3));
    let stats = parts.stats().await;
    assert_eq!(stats.waiting + stats.due + stats.leased, 4, "{stats:?}");
    worker.abort();
}

/// Goal: a floor that is longer than all intervals is no clock that was wrong.
#[tokio::test(start_paused = true)]
async fn a_long_floor_is_kept() {
    let parts = Parts::new();
    let floor = Duration::from_hours(9 * 24);
    let item = RefreshItem::new("a", core_instant(parts.clock.now())).unwrap();
    parts.refresher.start([item.floor(floor)]).await.unwrap();
    for _ in 0..3 {
        let worker = parts.worker();
        for _ in 0..20 {
            parts.clock.advance(Duration::from_mins(1));
            tokio::time::sleep(Duration::from_mins(1)).await;
        }
        worker.abort();
        let _ended = worker.await;
    }
    assert!(parts.provider.0.lock().requests.is_empty());
    let worker = parts.worker();
    parts.clock.advance(floor);
    until_asked(&parts, 1).await;
    worker.abort();
}

/// Answers without any of the items make one warning.
#[tokio::test]
async fn answers_without_items_are_told_of() {
    let mut parts = Parts::new();
    let told = Arc::new(Mutex::new(Vec::new()));
    let heard = Arc::clone(&told);
    parts.refresher = parts
        .refresher
        .on_trouble(move |text| heard.lock().push(text.to_owned()));
    let born = core_instant(parts.clock.now());
    let items = ["one", "two"].map(|id| RefreshItem::new(id, born).unwrap());
    parts.refresher.start(items).await.unwrap();
    let worker = parts.worker();
    for requests in 1..4 {
        parts.clock.advance(Duration::from_mins(2) + BUFFER);
        while parts.provider.0.lock().requests.len() < requests {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    worker.abort();
    let expected = ["the provider's answer has none of 2 items"];
    assert_eq!(*told.lock(), expected);
}

/// An item whose publisher lies about its birth, or has a fast clock, is not young for ever.
#[tokio::test]
async fn an_item_of_the_future_is_as_old_as_its_job() {
    let parts = Parts::new();
    let born = core_instant(parts.clock.now() + chrono::TimeDelta::days(3_650));
    let ahead = RefreshItem::new("ahead", born).unwrap();
    assert_eq!(parts.refresher.start([ahead]).await.unwrap(), 1);
    parts.provider.0.lock().values.insert("ahead".to_owned(), 7);
    let worker = parts.worker();
    parts.clock.advance(Duration::from_mins(2) + BUFFER);
    while parts.feed.shown().is_empty() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    // After the end of a life of 30 days it is asked for until two readings of the clock say so, and then never again.
    for expected in [2, 3, 3] {
        parts.clock.advance(Duration::from_hours(31 * 24));
        for _ in 0..200 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(parts.provider.0.lock().requests.len(), expected);
    }
    worker.abort();
}

/// Items that are all at fault do not hold a worker: others are refreshed meanwhile.
#[tokio::test(start_paused = true)]
async fn a_batch_of_faults_holds_no_worker() {
    let parts = Parts::new();
    parts.start(2).await;
    parts.provider.0.lock().poison = vec!["0".to_owned(), "1".to_owned()];
    let worker = parts.worker();
    parts.clock.advance(Duration::from_mins(2) + BUFFER);
    while parts.provider.0.lock().requests.len() < 3 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let born = core_instant(parts.clock.now());
    let other = RefreshItem::new("other", born).unwrap();
    parts.provider.0.lock().values.insert("other".to_owned(), 7);
    assert_eq!(parts.refresher.start([other]).await.unwrap(), 1);
    while parts.feed.shown().is_empty() {
        parts.clock.advance(Duration::from_secs(20));
        tokio::time::sleep(Duration::from_secs(20)).await;
    }
    assert_eq!(parts.feed.shown()[0].0, "other");
    worker.abort();
}

/// A feed that refuses whatever it is sent is at fault, and no item is.
#[tokio::test]
async fn a_feed_that_refuses_everything_kills_no_item() {
    let parts = Parts::new();
    parts.start(5).await;
    *parts.feed.refuses_all.lock() = Some(413);
    let mut parts = parts;
    let told = Arc::new(Mutex::new(Vec::new()));
    let heard = Arc::clone(&told);
    parts.refresher = parts
        .refresher
        .on_trouble(move |text| heard.lock().push(text.to_owned()));
    let worker = parts.worker();
    parts.clock.advance(Duration::from_mins(2) + BUFFER);
    while told.lock().is_empty() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let said = told.lock()[0].clone();
    assert!(
        said.starts_with("changes cannot be published; trying again: "),
        "{said}"
    );
    worker.abort();
    assert_eq!(parts.refresher.refreshed().failures, 0);
    assert_eq!(parts.stats().await.leased, 5);
}

/// A worker that waits for its quota stops at once, and what it had is due.
#[tokio::test]
async fn a_worker_that_waits_stops_when_it_is_told() {
    let mut parts = Parts::new();
    let once = Limit {
        requests: 1,
        window: Duration::from_hours(1),
    };
    parts.refresher.credentials = vec![Credential::new("key", once)];
    let reserved = parts.refresher.queue.reserve("key", 1, once).await;
    assert_eq!(reserved.unwrap(), queue::Reservation::Now);
    parts.start(3).await;
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let (refresher, provider) = (parts.refresher.clone(), parts.provider.clone());
    let worker = tokio::spawn(async move { refresher.work_until(&provider, stopped).await });
    parts.clock.advance(Duration::from_mins(2) + BUFFER);
    while parts.stats().await.leased < 3 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    stop.send(()).unwrap();
    worker.await.unwrap().unwrap();
    parts.clock.advance(Duration::from_millis(1));
    let Stats { due, leased, .. } = parts.stats().await;
    assert_eq!((due, leased), (3, 0));
    assert_eq!(parts.refresher.refreshed(), RefreshTally::default());
}

/// A backlog does not keep a worker from its end.
#[tokio::test]
async fn a_worker_with_a_backlog_stops_when_it_is_told() {
    let parts = Parts::new();
    parts.start(350).await;
    parts.clock.advance(Duration::from_mins(2) + BUFFER);
    let refresher = parts.refresher.clone().batch(1, BUFFER);
    let stop = std::future::ready(());
    refresher.work_until(&parts.provider, stop).await.unwrap();
    let requests = parts.refresher.refreshed().requests;
    assert!(requests <= 1, "{requests}");
    assert_eq!(parts.stats().await.leased, 0);
}

/// A provider that never answers is given up, and asked again.
#[tokio::test(start_paused = true)]
async fn an_answer_that_never_comes_is_not_waited_for() {
    let parts = Parts::new();
    parts.start(1).await;
    parts.provider.0.lock().delay = Duration::from_hours(1);
    let worker = parts.worker();
    parts.clock.advance(Duration::from_mins(2) + BUFFER);
    while parts.provider.0.lock().requests.is_empty() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    parts.provider.0.lock().delay = Duration::ZERO;
    let began = tokio::time::Instant::now();
    while parts.feed.shown().is_empty() {
        // The pause is over by the queue's clock.
        parts.clock.advance(Duration::from_millis(10));
        tokio::time::sleep(Duration::from_millis(10)).await;
        assert!(began.elapsed() < Duration::from_mins(5), "no answer");
    }
    worker.abort();
}

/// A worker that waits longer than its leases last keeps its items.
#[tokio::test(start_paused = true)]
async fn a_slow_answer_costs_no_second_request() {
    let parts = Parts::new();
    parts.start(3).await;
    parts.provider.0.lock().delay = Duration::from_secs(100);
    let workers = [parts.worker(), parts.worker()];
    parts.clock.advance(Duration::from_mins(2) + BUFFER);
    while parts.feed.shown().is_empty() {
        parts.clock.advance(Duration::from_secs(1));
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert_eq!(parts.provider.0.lock().requests.len(), 1);
    workers.iter().for_each(tokio::task::JoinHandle::abort);
}

#[tokio::test]
async fn a_refresher_without_credential_says_so() {
    let mut parts = Parts::new();
    parts.refresher.credentials.clear();
    let error = parts
        .refresher
        .work_until(&parts.provider, std::future::pending::<()>())
        .await;
    assert_eq!(
        error.unwrap_err().to_string(),
        "a refresher has at least one credential"
    );
}
