use std::{
    io,
    pin::pin,
    sync::{Mutex, OnceLock, PoisonError},
};

use bytes::Bytes;
use futures_util::StreamExt as _;

use super::*;
use crate::bookmark::BookmarkStore;
use crate::drops::dropped;
use crate::transport::{Answer, Answering, Request, Transport};

/// Answers by URL, and what was asked for when.
#[derive(Debug, Default)]
pub(crate) struct Web {
    pages: Mutex<HashMap<String, Page>>,
    asked: Mutex<Vec<(Duration, Request)>>,
    /// Answers with 503 and this `Retry-After`, so many times.
    down: Mutex<(usize, Option<u64>)>,
    /// Answers these requests, counted from 0, with 503.
    down_for: Mutex<std::ops::Range<usize>>,
    /// How long an answer takes besides.
    slow: Mutex<Duration>,
    /// What never answers.
    hanging: Mutex<Vec<String>>,
    /// Whether a 304 leaves out what it may leave out.
    silent_304: Mutex<bool>,
    began: OnceLock<time::Instant>,
}

#[derive(Clone, Debug)]
pub(crate) struct Page {
    status: u16,
    headers: Vec<(String, String)>,
    body: String,
}

impl Page {
    pub(crate) fn status(self, status: u16) -> Self {
        Self { status, ..self }
    }

    pub(crate) fn new(kind: &str, body: &str) -> Self {
        let page = Self {
            status: 200,
            headers: vec![],
            body: body.into(),
        };
        let tag = format!("\"{}\"", body.len());
        page.with("content-type", kind).with("etag", &tag)
    }

    pub(crate) fn fails_with(&mut self, status: u16) {
        self.status = status;
    }

    pub(crate) fn with(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }
}

/// A document with these entries, newest first.
pub(crate) fn document(links: &str, ids: &[&str]) -> Page {
    let entries: String = ids.iter().fold(String::new(), |text, id| {
        text + "<entry><id>" + id + "</id></entry>"
    });
    let text =
        format!("<feed xmlns='http://www.w3.org/2005/Atom'><id>urn:f</id>{links}{entries}</feed>");
    Page::new("application/atom+xml", &text)
}

impl Web {
    pub(crate) fn serve(&self, url: &str, page: Page) {
        self.pages.lock().unwrap().insert(url.into(), page);
    }

    pub(crate) fn put(&self, url: &str, links: &str, ids: &[&str]) {
        self.serve(url, document(links, ids));
    }

    pub(crate) fn redirect(&self, url: &str, to: &str) {
        let mut page = Page::new("text/html", "moved").with("location", to);
        page.status = 302;
        self.serve(url, page);
    }

    /// Fails the next requests.
    fn fail(&self, times: usize, retry_after: Option<u64>) {
        *self.down.lock().unwrap() = (times, retry_after);
    }

    /// Fails so many requests after the `first` next ones.
    pub(crate) fn fail_from(&self, first: usize, times: usize) {
        let asked = self.asked() + first;
        *self.down_for.lock().unwrap() = asked..asked + times;
    }

    /// Answers so many requests after the `first` next ones with 503, asking for a rest.
    pub(crate) fn rest_from(&self, first: usize, times: usize, seconds: u64) {
        self.fail_from(first, times);
        self.down.lock().unwrap().1 = Some(seconds);
    }

    /// Forgets what was asked for.
    pub(crate) fn forget(&self) {
        self.asked.lock().unwrap().clear();
    }

    /// Answers later than otherwise.
    pub(crate) fn answer_after(&self, slow: Duration) {
        *self.slow.lock().unwrap() = slow;
    }

    /// Never answers at a URL.
    pub(crate) fn hang(&self, url: &str) {
        self.hanging.lock().unwrap().push(url.into());
    }

    /// The times at which something was asked for.
    pub(crate) fn times(&self) -> Vec<Duration> {
        self.asked
            .lock()
            .unwrap()
            .iter()
            .map(|(at, _)| *at)
            .collect()
    }

    fn asked(&self) -> usize {
        self.asked.lock().unwrap().len()
    }

    /// The URLs asked for, and the header field of this name sent there.
    pub(crate) fn sent(&self, name: &str) -> Vec<(String, Option<String>)> {
        let asked = self.asked.lock().unwrap();
        let found = asked.iter().map(|(_, request)| {
            let field = request.headers.iter().find(|(field, _)| *field == name);
            (
                request.url.to_string(),
                field.map(|(_, value)| value.clone()),
            )
        });
        found.collect()
    }

    /// The times between requests.
    pub(crate) fn pauses(&self) -> Vec<Duration> {
        let asked = self.asked.lock().unwrap();
        let apart = |pair: &[(Duration, Request)]| pair[1].0.saturating_sub(pair[0].0);
        asked.windows(2).map(apart).collect()
    }

    fn answer(&self, request: &Request) -> Answer {
        let mut down = self.down.lock().unwrap_or_else(PoisonError::into_inner);
        let retry_after = down
            .1
            .map(|seconds| ("retry-after".into(), seconds.to_string()));
        let planned = self.down_for.lock().unwrap().contains(&self.asked());
        if down.0 > 0 || planned {
            down.0 = down.0.saturating_sub(1);
            return Answer {
                status: 503,
                headers: retry_after.into_iter().collect(),
                body: "down".into(),
            };
        }
        let pages = self.pages.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(page) = pages.get(request.url.as_str()) else {
            return Answer {
                status: 404,
                headers: vec![],
                body: Bytes::new(),
            };
        };
        let tag = page.headers.iter().find(|(name, _)| name == "etag");
        let known = request.headers.iter().any(|(name, value)| {
            *name == "if-none-match" && tag.is_some_and(|(_, tag)| tag == value)
        });
        Answer {
            status: if known { 304 } else { page.status },
            headers: if known && *self.silent_304.lock().unwrap() {
                vec![]
            } else {
                page.headers.clone()
            },
            body: if known {
                Bytes::new()
            } else {
                page.body.clone().into()
            },
        }
    }
}

impl Transport for Web {
    fn send(&self, request: Request) -> Answering<'_> {
        let now = time::Instant::now();
        let since = now - *self.began.get_or_init(|| now);
        let answer = self.answer(&request);
        let hangs = self
            .hanging
            .lock()
            .unwrap()
            .iter()
            .any(|url| url == request.url.as_str());
        self.asked.lock().unwrap().push((since, request));
        let slow = *self.slow.lock().unwrap();
        Box::pin(async move {
            if hangs {
                std::future::pending::<()>().await;
            }
            // An answer takes its time, so that giving up in the middle is something.
            time::sleep(Duration::from_millis(1) + slow).await;
            Ok(answer)
        })
    }
}

/// A bookmark that the test can look at.
#[derive(Clone, Debug, Default)]
struct Kept(Arc<Mutex<Option<Bookmark>>>);

impl Kept {
    fn entry(&self) -> Option<String> {
        self.0
            .lock()
            .unwrap()
            .as_ref()
            .and_then(|bookmark| bookmark.entry.clone())
    }
}

impl BookmarkStore for Kept {
    async fn load(&mut self) -> io::Result<Option<Bookmark>> {
        Ok(self.0.lock().unwrap().clone())
    }

    async fn save(&mut self, bookmark: &Bookmark) -> io::Result<()> {
        *self.0.lock().unwrap() = Some(bookmark.clone());
        Ok(())
    }
}

pub(crate) const FEED: &str = "http://h/recent";

pub(crate) fn builder(web: &Arc<Web>) -> Builder {
    let transport: Arc<dyn Transport> = Arc::<Web>::clone(web);
    Consumer::builder(FEED).transport(transport)
}

fn consumer(web: &Arc<Web>, kept: &Kept, since: Since) -> Consumer {
    let builder = builder(web).bookmark(kept.clone()).since(since);
    builder.build().unwrap()
}

/// Delivers to the end. Returns the ids, without `urn:`.
async fn all(feed: &mut Consumer) -> Vec<String> {
    let mut ids = vec![];
    while let Some(delivery) = feed.next().await.unwrap() {
        ids.push(delivery.id().strip_prefix("urn:").unwrap().to_owned());
        feed.accept(&delivery).await.unwrap();
    }
    ids
}

/// Goal: a crash after the last delivery and before its acceptance loses nothing.
#[tokio::test(start_paused = true)]
async fn a_place_is_kept_only_behind_accepted_entries() {
    let (web, kept) = (Arc::new(Web::default()), Kept::default());
    web.put(FEED, "", &["urn:2", "urn:1"]);
    let mut feed = consumer(&web, &kept, Since::Oldest);
    let first = feed.next().await.unwrap().unwrap();
    assert_eq!(first.id(), "urn:1");
    assert_eq!(feed.next().await.unwrap().unwrap().id(), "urn:2");
    assert!(feed.next().await.unwrap().is_none());
    assert_eq!(kept.entry(), None, "nothing was accepted");

    feed.accept(&first).await.unwrap();
    let mut again = consumer(&web, &kept, Since::Oldest);
    let second = again.next().await.unwrap().unwrap();
    assert_eq!(second.id(), "urn:2");
    again.accept(&second).await.unwrap();
    assert!(again.next().await.unwrap().is_none());
    assert_eq!(kept.entry().as_deref(), Some("urn:2"));
}

/// Where nothing is delivered, the place is kept all the same: the next start goes on from here.
#[tokio::test(start_paused = true)]
async fn since_newest_is_a_place() {
    let (web, kept) = (Arc::new(Web::default()), Kept::default());
    web.put(FEED, "", &["urn:1"]);
    let mut feed = consumer(&web, &kept, Since::Newest);
    assert!(feed.next().await.unwrap().is_none());
    web.put(FEED, "", &["urn:2", "urn:1"]);
    let mut feed = consumer(&web, &kept, Since::Newest);
    assert_eq!(feed.next().await.unwrap().unwrap().id(), "urn:2");
}

/// An idle look costs one 304; a validator is sent only while the bookmarked entry is the newest.
#[tokio::test(start_paused = true)]
async fn an_idle_look_is_one_conditional_request() {
    let (web, kept) = (Arc::new(Web::default()), Kept::default());
    web.put(FEED, "", &["urn:2", "urn:1"]);
    let mut feed = consumer(&web, &kept, Since::Oldest);
    while let Some(delivery) = feed.next().await.unwrap() {
        feed.accept(&delivery).await.unwrap();
    }
    let before = web.asked();
    assert!(
        consumer(&web, &kept, Since::Oldest)
            .next()
            .await
            .unwrap()
            .is_none()
    );
    assert_eq!(web.asked(), before + 1);
    assert!(web.sent("if-none-match").last().unwrap().1.is_some());

    let bookmark = kept.0.lock().unwrap().clone().unwrap();
    let older = Bookmark {
        entry: Some("urn:1".into()),
        // As it was written before entries were remembered.
        known: None,
        etag: None,
        ..bookmark
    };
    *kept.0.lock().unwrap() = Some(older);
    assert_eq!(
        consumer(&web, &kept, Since::Oldest)
            .next()
            .await
            .unwrap()
            .unwrap()
            .id(),
        "urn:2"
    );
}

/// `current` may lead back and forth between two spellings of one URL.
#[tokio::test(start_paused = true)]
async fn a_link_to_the_recent_document_is_followed_once() {
    let (web, kept) = (Arc::new(Web::default()), Kept::default());
    web.put(
        FEED,
        "<link rel='current' href='http://h/other'/>",
        &["urn:1"],
    );
    web.put(
        "http://h/other",
        "<link rel='current' href='http://h/recent'/>",
        &["urn:1"],
    );
    let mut feed = consumer(&web, &kept, Since::Oldest);
    assert_eq!(feed.next().await.unwrap().unwrap().id(), "urn:1");
    assert!(feed.next().await.unwrap().is_none());
    assert!(web.asked() <= 3);
}

/// A chain of three documents: 1 and 2 archived, 3 recent.
pub(crate) fn chain(web: &Web) {
    web.put(
        "http://h/1",
        "<link rel='next-archive' href='2'/>",
        &["urn:2", "urn:1"],
    );
    let links = "<link rel='next-archive' href='3'/><link rel='prev-archive' href='1'/>";
    web.put("http://h/2", links, &["urn:4", "urn:3"]);
    let links = "<link rel='prev-archive' href='2'/>";
    web.put("http://h/3", links, &["urn:5"]);
    web.put(
        FEED,
        &format!("{links}<link rel='via' href='3'/>"),
        &["urn:5"],
    );
}

/// RFC 9110, 10.2.3: what a server asks for is given, if we follow; who waits for an end is told.
#[tokio::test(start_paused = true)]
async fn retry_after_is_honoured() {
    let web = Arc::new(Web::default());
    chain(&web);
    web.fail(1, Some(600));
    let mut feed = builder(&web).follow(true).build().unwrap();
    assert_eq!(feed.next().await.unwrap().unwrap().id(), "urn:1");
    let pause = web.pauses()[0];
    assert!((600..=750).contains(&pause.as_secs()), "{pause:?}");

    web.fail(1, Some(600));
    let mut feed = builder(&web).build().unwrap();
    let error = feed.next().await.unwrap_err();
    assert!(error.is_transient(), "{error}");
    // The next call waits as long as was asked.
    let before = time::Instant::now();
    assert_eq!(feed.next().await.unwrap().unwrap().id(), "urn:1");
    assert!(before.elapsed() >= Duration::from_mins(10));
}

#[tokio::test(start_paused = true)]
async fn an_outage_is_waited_out_by_who_follows_and_told() {
    let web = Arc::new(Web::default());
    chain(&web);
    web.fail(20, None);
    let told = Arc::new(Mutex::new(0));
    let count = Arc::clone(&told);
    let feed = builder(&web).observer(Counting(count));
    let mut feed = feed.follow(true).build().unwrap();
    assert_eq!(feed.next().await.unwrap().unwrap().id(), "urn:1");
    assert_eq!(*told.lock().unwrap(), 20);
    let pauses = web.pauses();
    assert!(pauses[0] >= Duration::from_secs(1) && pauses[0] < Duration::from_secs(2));
    assert!(pauses[19] >= Duration::from_mins(1) && pauses[19] < Duration::from_secs(76));

    // Who does not follow gives up, may ask again, and loses nothing.
    web.fail(5, None);
    let mut feed = builder(&web).build().unwrap();
    let error = feed.next().await.unwrap_err();
    assert!(matches!(
        error,
        ConsumerError::Fetch(FetchError::Status { status: 503, .. })
    ));
    assert_eq!(all(&mut feed).await, ["1", "2", "3", "4", "5"]);
}

/// The server's max-age is the floor between two looks; jitter only adds.
#[tokio::test(start_paused = true)]
async fn looks_are_as_far_apart_as_the_server_says() {
    let web = Arc::new(Web::default());
    let page = document("", &["urn:1"]).with("cache-control", "public, max-age=7");
    web.serve(FEED, page);
    let mut feed = builder(&web).follow(true).build().unwrap();
    assert_eq!(feed.next().await.unwrap().unwrap().id(), "urn:1");
    let waiting = time::timeout(Duration::from_mins(2), feed.next()).await;
    assert!(waiting.is_err(), "there is nothing new");
    let pauses = web.pauses();
    assert!(pauses.len() >= 12, "{pauses:?}");
    for pause in &pauses {
        let millis = pause.as_millis();
        assert!((7_000..=8_760).contains(&millis), "{pause:?}");
    }
    assert!(
        pauses.windows(2).any(|pair| pair[0] != pair[1]),
        "no jitter"
    );
}

/// Goal: a future of `next` that is dropped anywhere costs nothing: no entry, no pause.
#[tokio::test(start_paused = true)]
async fn next_can_be_given_up() {
    let web = Arc::new(Web::default());
    chain(&web);
    web.fail(3, None);
    let mut feed = builder(&web).follow(true).build().unwrap();
    let mut ids = vec![];
    for tenth_of_a_millisecond in 0..400_000 {
        let patience = Duration::from_micros(100 * (tenth_of_a_millisecond % 97));
        if let Ok(delivery) = time::timeout(patience, feed.next()).await {
            ids.push(delivery.unwrap().unwrap().id().to_owned());
        }
        if ids.len() == 5 {
            break;
        }
    }
    assert_eq!(ids, ["urn:1", "urn:2", "urn:3", "urn:4", "urn:5"]);
    // Some of the three failures may have been given up before they were known; after each that was
    // known, nothing was asked for too early.
    let pauses = web.pauses();
    assert!(
        pauses.iter().any(|pause| pause.as_secs() >= 1),
        "{pauses:?}"
    );
    assert!(web.asked() < 12, "{pauses:?}");
}

#[tokio::test(start_paused = true)]
async fn a_bookmark_never_moves_back() {
    let (web, kept) = (Arc::new(Web::default()), Kept::default());
    chain(&web);
    let mut feed = consumer(&web, &kept, Since::Oldest);
    let first = feed.next().await.unwrap().unwrap();
    let second = feed.next().await.unwrap().unwrap();
    feed.accept(&second).await.unwrap();
    feed.accept(&first).await.unwrap();
    assert_eq!(kept.entry().as_deref(), Some("urn:2"));
}

/// A stream is read far ahead of its handlers: only items that a handler accepted count.
#[tokio::test(start_paused = true)]
async fn an_item_of_a_stream_is_accepted_by_its_handler() {
    let (web, kept) = (Arc::new(Web::default()), Kept::default());
    chain(&web);
    let items: Vec<_> = consumer(&web, &kept, Since::Oldest)
        .into_stream()
        .map(Result::unwrap)
        .collect()
        .await;
    assert_eq!((items.len(), kept.entry()), (5, None));
    // Accepting out of order moves the place only behind an unbroken run of accepted items.
    items[1].accept().await.unwrap();
    items[2].accept().await.unwrap();
    assert_eq!(kept.entry(), None);
    time::sleep(Duration::from_secs(1)).await;
    items[0].accept().await.unwrap();
    assert_eq!(kept.entry().as_deref(), Some("urn:3"));
    items[3].accept().await.unwrap();
    assert_eq!(
        kept.entry().as_deref(),
        Some("urn:3"),
        "at most once a second"
    );
    // The last owner to be dropped saves the accepted place.
    drop(items);
    assert_eq!(kept.entry().as_deref(), Some("urn:4"));
    let rest = consumer(&web, &kept, Since::Oldest).into_stream();
    let rest: Vec<_> = rest
        .map(|item| item.unwrap().id().to_owned())
        .collect()
        .await;
    assert_eq!(rest, ["urn:5"]);
}

/// A store that takes its time, as a database does.
#[derive(Clone, Debug)]
struct Slow {
    kept: Kept,
    time: Duration,
    /// Entries in the order of the ends of their saves.
    saved: Arc<Mutex<Vec<u64>>>,
}

impl Slow {
    fn new(millis: u64) -> Self {
        Self {
            kept: Kept::default(),
            time: Duration::from_millis(millis),
            saved: Arc::default(),
        }
    }
}

impl BookmarkStore for Slow {
    async fn load(&mut self) -> io::Result<Option<Bookmark>> {
        time::sleep(self.time).await;
        Ok(self.kept.0.lock().unwrap().clone())
    }

    async fn save(&mut self, bookmark: &Bookmark) -> io::Result<()> {
        time::sleep(self.time).await;
        let entry = bookmark.entry.as_deref();
        let number = entry.and_then(|id| id.strip_prefix("urn:")?.parse::<u64>().ok());
        self.saved.lock().unwrap().extend(number);
        *self.kept.0.lock().unwrap() = Some(bookmark.clone());
        Ok(())
    }
}

/// Goal: a store that waits never gets an older place after a newer one, however many items are accepted at a time.
#[tokio::test(start_paused = true)]
async fn a_slow_store_never_gets_an_older_place() {
    let (web, slow) = (Arc::new(Web::default()), Slow::new(2_500));
    chain(&web);
    let feed = builder(&web).bookmark(slow.clone()).build().unwrap();
    let done = feed
        .into_stream()
        .map(Result::unwrap)
        .for_each_concurrent(None, async |item| {
            // More than a second apart, so each is due; and each save is still under way at the next two.
            let number: u64 = item.id()[4..].parse().unwrap();
            time::sleep(Duration::from_millis(20_000 + 1_100 * number)).await;
            item.accept().await.unwrap();
        });
    done.await;
    let saved = slow.saved.lock().unwrap().clone();
    assert!(saved.is_sorted() && saved.len() >= 3, "{saved:?}");
    assert_eq!(slow.kept.entry().as_deref(), Some("urn:5"));
}

/// Goal: an item that is dropped stops the bookmark with an error, and costs no memory for each entry behind it.
#[tokio::test(start_paused = true)]
async fn a_dropped_item_is_told() {
    let ledger = Ledger::new(None);
    let run = {
        let url: Url = FEED.parse().unwrap();
        let body = "<feed xmlns='http://www.w3.org/2005/Atom'><id>urn:f</id>\
            <entry><id>urn:1</id></entry></feed>";
        let document = simplefeed_core::reader::Document::read(body.into(), &url).unwrap();
        let mut replay = Replay::new(url.clone(), Start::Oldest);
        Arc::new(
            replay
                .take(document, &url, crate::Validators::default())
                .unwrap()
                .unwrap(),
        )
    };
    let items: Vec<Delivery> = (0..100_003)
        .map(|_| {
            let (consumer, number) = ledger.deliver();
            Delivery::new(&run, run.entries[0], consumer, number)
        })
        .collect();
    for item in &items[1..100_000] {
        ledger.accept(item).await.unwrap();
    }
    assert_eq!(ledger.runs(), 1, "one run, however long");
    let error = ledger.accept(&items[100_001]).await.unwrap_err();
    assert!(
        matches!(error, ConsumerError::NeverAccepted { .. }),
        "{error}"
    );
    // It may still come.
    ledger.accept(&items[0]).await.unwrap();
    for item in &items {
        ledger.accept(item).await.unwrap();
    }
    assert!(ledger.is_all_accepted());
}

/// Goal: an entry of a consumer before this one is never taken for one of this consumer.
#[tokio::test(start_paused = true)]
async fn an_entry_of_another_consumer_is_not_accepted() {
    let (web, kept) = (Arc::new(Web::default()), Kept::default());
    chain(&web);
    let mut before = consumer(&web, &Kept::default(), Since::Oldest);
    let mut old = before.next().await.unwrap().unwrap();
    while let Some(delivery) = before.next().await.unwrap() {
        old = delivery;
    }
    let mut feed = consumer(&web, &kept, Since::Oldest);
    let first = feed.next().await.unwrap().unwrap();
    let error = feed.accept(&old).await.unwrap_err();
    assert!(
        matches!(error, ConsumerError::NotDelivered { .. }),
        "{error}"
    );
    feed.accept(&first).await.unwrap();
    assert_eq!(kept.entry().as_deref(), Some("urn:1"));
}

/// Goal: no setting makes a follower ask without a pause.
#[tokio::test(start_paused = true)]
async fn a_follower_always_pauses() {
    for interval in [Duration::ZERO, Duration::MAX] {
        let web = Arc::new(Web::default());
        web.put(FEED, "", &["urn:1"]);
        let feed = builder(&web).follow(true).interval(interval);
        let mut feed = feed.build().unwrap();
        feed.next().await.unwrap();
        let waited = time::timeout(Duration::from_secs(10), feed.next()).await;
        assert!(waited.is_err());
        assert!(web.asked() <= 11, "{} in ten seconds", web.asked());
    }
}

/// Goal: futures that are dropped while the store waits cost nothing: no entry, and no acceptance that was awaited.
#[tokio::test(start_paused = true)]
async fn a_slow_store_can_be_given_up() {
    let (web, slow) = (Arc::new(Web::default()), Slow::new(3));
    chain(&web);
    let mut feed = builder(&web).bookmark(slow.clone()).build().unwrap();
    let mut ids = vec![];
    for tenth_of_a_millisecond in 0_u64.. {
        let patience = Duration::from_micros(100 * (tenth_of_a_millisecond % 97));
        let Ok(delivery) = time::timeout(patience, feed.next()).await else {
            continue;
        };
        let Some(delivery) = delivery.unwrap() else {
            break;
        };
        ids.push(delivery.id().to_owned());
        let first = time::timeout(Duration::from_millis(1), feed.accept(&delivery)).await;
        assert!(first.is_err(), "the save takes longer");
        feed.accept(&delivery).await.unwrap();
        assert_eq!(slow.kept.entry().as_deref(), Some(delivery.id()));
    }
    assert_eq!(ids, ["urn:1", "urn:2", "urn:3", "urn:4", "urn:5"]);
}

#[tokio::test(start_paused = true)]
async fn a_stream_goes_on_after_what_passes_and_ends_after_what_does_not() {
    let web = Arc::new(Web::default());
    chain(&web);
    web.fail(4, None);
    let mut stream = pin!(builder(&web).build().unwrap().into_stream());
    assert!(stream.next().await.unwrap().is_err());
    assert_eq!(stream.next().await.unwrap().unwrap().id(), "urn:1");
    assert_eq!(stream.next().await.unwrap().unwrap().id(), "urn:2");
    web.put("http://h/2", "", &[]);
    web.pages.lock().unwrap().remove("http://h/2");
    assert!(stream.next().await.unwrap().is_err());
    assert!(stream.next().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_place_can_be_found_without_reading() {
    let web = Arc::new(Web::default());
    chain(&web);
    let place = |since| {
        let feed = builder(&web).since(since).build().unwrap();
        async move { feed.locate().await.unwrap() }
    };
    assert_eq!(place(Since::Oldest).await.entry, None);
    assert_eq!(place(Since::Newest).await.entry.as_deref(), Some("urn:5"));
    for last in 1..=5 {
        let id = format!("urn:{last}");
        let found = place(Since::Entry(id.clone())).await;
        assert_eq!(found.entry.as_ref(), Some(&id));
        let mut feed = builder(&web).resume(found).build().unwrap();
        let expected: Vec<_> = (last + 1..=5).map(|n| n.to_string()).collect();
        assert_eq!(all(&mut feed).await, expected);
    }
    let mut feed = builder(&web)
        .resume(place(Since::Oldest).await)
        .build()
        .unwrap();
    assert_eq!(all(&mut feed).await.len(), 5);
    let missing = builder(&web)
        .since(Since::Entry("urn:9".into()))
        .build()
        .unwrap();
    let error = missing.locate().await.unwrap_err();
    assert!(
        matches!(error, ConsumerError::Walk(WalkError::Gap { .. })),
        "{error}"
    );
    // A place that is the newest already is found without a document.
    let mut kept = place(Since::Newest).await;
    kept.etag = web.pages.lock().unwrap()[FEED].headers[1].1.clone().into();
    let feed = builder(&web).resume(kept.clone()).build().unwrap();
    assert_eq!(feed.locate().await.unwrap().entry, kept.entry);
}

/// RFC 9211, RFC 9111: a cache that cannot reach the server may say so.
#[tokio::test(start_paused = true)]
async fn a_copy_past_its_time_is_noticed() {
    let fresh = "public, max-age=1, stale-while-revalidate=1, stale-if-error=86400";
    for (fields, past) in [
        (&[("cache-control", fresh)][..], false),
        (&[("cache-control", fresh), ("age", "2")], false),
        (&[("cache-control", fresh), ("age", "3")], true),
        (&[("age", "100")], false),
        (&[("cache-status", "nginx; hit; ttl=5")], false),
        (
            &[("cache-status", "nginx; hit; ttl=-1, outer; fwd=miss")],
            true,
        ),
    ] {
        let web = Arc::new(Web::default());
        let page = fields
            .iter()
            .fold(document("", &["urn:1"]), |page, (name, value)| {
                page.with(name, value)
            });
        web.serve(FEED, page);
        let mut feed = builder(&web).build().unwrap();
        assert_eq!(all(&mut feed).await, ["1"]);
        assert_eq!(feed.is_stale(), past, "{fields:?}");
    }
}

/// The index is never needed.
#[tokio::test(start_paused = true)]
async fn an_index_that_cannot_be_had_changes_nothing() {
    let index = "<link rel='index' href='index'/>";
    let history = |first: usize| {
        let feed = simplefeed_core::history::HistoryHash::start_of_text("urn:f");
        let hash = (1..=first).fold(feed, |hash, n| {
            hash.extend(format!("<entry><id>urn:{n}</id></entry>").as_bytes())
        });
        format!("<history xmlns='urn:simplefeed:1' first='{first}' before='{hash}'/>")
    };
    let link = |rel: &str, to: usize| format!("<link rel='{rel}' href='{to}'/>");
    for (index_page, requests) in [
        (None, 7),
        (Some(Page::new("text/html", "<html>log in</html>")), 7),
        (
            Some(Page::new(
                "application/json",
                "{\"feed\":\"urn:f\",\"prev\":null,\"documents\":[]}",
            )),
            7,
        ),
    ] {
        let web = Arc::new(Web::default());
        let put = |url: &str, links: String, n: usize| {
            web.put(
                url,
                &(links + index + &history(n - 1)),
                &[&format!("urn:{n}")],
            );
        };
        put("http://h/1", link("next-archive", 2), 1);
        put(
            "http://h/2",
            link("next-archive", 3) + &link("prev-archive", 1),
            2,
        );
        put("http://h/3", link("prev-archive", 2), 3);
        put(FEED, link("prev-archive", 2) + &link("via", 3), 3);
        if let Some(page) = index_page {
            web.serve("http://h/index", page);
        }
        let mut feed = builder(&web).build().unwrap();
        assert_eq!(all(&mut feed).await, ["1", "2", "3"]);
        // Recent, index, back over 2 to 1, forward over 2 and 3.
        assert!(web.asked() <= requests, "{}", web.asked());
        assert_eq!(web.sent("accept")[1].0, "http://h/index");
    }
}

/// The short URL always redirects; the target is what is polled.
#[tokio::test(start_paused = true)]
async fn a_redirect_is_followed_once_and_its_target_polled() {
    let web = Arc::new(Web::default());
    web.redirect("http://h/short", FEED);
    web.put(FEED, "", &["urn:1"]);
    let transport: Arc<dyn Transport> = Arc::<Web>::clone(&web);
    let short = Consumer::builder("http://h/short").transport(transport);
    let mut feed = short.build().unwrap();
    assert_eq!(all(&mut feed).await, ["1"]);
    web.put(FEED, "", &["urn:2", "urn:1"]);
    assert_eq!(all(&mut feed).await, ["2"]);
    let asked: Vec<_> = web.sent("accept").into_iter().map(|(url, _)| url).collect();
    assert_eq!(asked, ["http://h/short", FEED, FEED]);
}

/// Validators are kept while the bookmarked entry is the newest of what they came from, and no longer.
#[tokio::test(start_paused = true)]
async fn validators_belong_to_the_newest_entry() {
    let (web, kept) = (Arc::new(Web::default()), Kept::default());
    web.put(FEED, "", &["urn:2", "urn:1"]);
    let mut feed = consumer(&web, &kept, Since::Oldest);
    let first = feed.next().await.unwrap().unwrap();
    feed.accept(&first).await.unwrap();
    assert_eq!(
        kept.0.lock().unwrap().as_ref().unwrap().etag,
        None,
        "there is a newer one"
    );
    assert_eq!(all(&mut feed).await, ["2"]);
    for _ in 0..3 {
        assert_eq!(all(&mut feed).await.len(), 0);
    }
    let conditional: Vec<_> = web
        .sent("if-none-match")
        .iter()
        .map(|(_, tag)| tag.is_some())
        .collect();
    assert_eq!(conditional, [false, true, true, true]);

    // A date alone may belong to another document than the one given this time.
    let dated = Bookmark {
        etag: None,
        last_modified: Some("Sat, 21 Nov 2026 10:00:00 GMT".into()),
        ..kept.0.lock().unwrap().clone().unwrap()
    };
    let mut feed = builder(&web).resume(dated).build().unwrap();
    assert_eq!(all(&mut feed).await.len(), 0);
    assert_eq!(web.sent("if-modified-since").last().unwrap().1, None);
}

#[tokio::test(start_paused = true)]
async fn a_walk_is_as_long_as_it_may_be() {
    let web = Arc::new(Web::default());
    chain(&web);
    let mut feed = builder(&web).documents_max(1).build().unwrap();
    let error = feed.next().await.unwrap_err();
    assert!(
        matches!(error, ConsumerError::Walk(WalkError::TooMany { max: 1 })),
        "{error}"
    );
}

/// A request that takes longer than the caller's patience is answered all the same, once.
#[tokio::test(start_paused = true)]
async fn a_request_on_its_way_stays() {
    let web = Arc::new(Web::default());
    chain(&web);
    *web.slow.lock().unwrap() = Duration::from_millis(1_500);
    let mut feed = builder(&web).build().unwrap();
    let mut ids = vec![];
    for _ in 0..100 {
        if let Ok(Ok(delivery)) = time::timeout(Duration::from_secs(1), feed.next()).await {
            let Some(delivery) = delivery else { break };
            ids.push(delivery.id().to_owned());
        }
    }
    assert_eq!(ids.len(), 5);
    assert!(web.asked() <= 10, "{} requests", web.asked());
}

/// What a URL says about who asks goes to the server it was given for, and stands nowhere else.
#[tokio::test(start_paused = true)]
async fn a_password_in_the_url_stays_secret() {
    let web = Arc::new(Web::default());
    chain(&web);
    let transport: Arc<dyn Transport> = Arc::<Web>::clone(&web);
    let given = Consumer::builder("http://na%40me:s%C3%A9cret@h/recent").transport(transport);
    assert!(!format!("{given:?}").contains("cret"));
    let mut feed = given.build().unwrap();
    let delivery = feed.next().await.unwrap().unwrap();
    let kept = serde_json::to_string(&delivery.bookmark()).unwrap();
    assert!(
        !kept.contains("cret") && !format!("{feed:?}").contains("cret"),
        "{kept}"
    );
    for (url, sent) in web.sent("authorization") {
        assert_eq!(sent.as_deref(), Some("Basic bmFAbWU6c8OpY3JldA=="), "{url}");
    }
}

/// RFC 9111, 4.3.4: what a 304 does not say stays.
#[tokio::test(start_paused = true)]
async fn a_304_that_says_nothing_changes_no_pause() {
    let web = Arc::new(Web::default());
    let page = document("", &["urn:1"]).with("cache-control", "max-age=300");
    web.serve(FEED, page);
    *web.silent_304.lock().unwrap() = true;
    let mut feed = builder(&web).follow(true).build().unwrap();
    assert_eq!(feed.next().await.unwrap().unwrap().id(), "urn:1");
    let waiting = time::timeout(Duration::from_hours(1), feed.next()).await;
    assert!(waiting.is_err());
    assert!(web.asked() <= 13, "{} requests in an hour", web.asked());
}

/// Two foreign feeds may have the same tag at different URLs.
#[tokio::test(start_paused = true)]
async fn a_foreign_tag_belongs_to_its_url() {
    let web = Arc::new(Web::default());
    web.put(FEED, "", &["urn:1"]);
    let kept = Bookmark {
        feed: "urn:other".into(),
        entry: Some("urn:1".into()),
        document: Some("http://other/recent".parse().unwrap()),
        etag: web.pages.lock().unwrap()[FEED].headers[1].1.clone().into(),
        ..Bookmark::default()
    };
    let mut feed = builder(&web).resume(kept).build().unwrap();
    let error = feed.next().await.unwrap_err();
    assert!(
        matches!(error, ConsumerError::Walk(WalkError::AnotherFeed { .. })),
        "{error}"
    );
}

/// Counts what is tried again.
struct Counting(Arc<Mutex<usize>>);

impl Observer for Counting {
    fn retrying(&mut self, _error: &ConsumerError, _pause: Duration) {
        *self.0.lock().unwrap() += 1;
    }
}

/// A feed of one entry a document. Each look at the recent one finds a new entry, up to the last.
#[derive(Debug)]
struct Growing {
    newest: Mutex<u32>,
    last: u32,
}

impl Transport for Growing {
    fn send(&self, request: Request) -> Answering<'_> {
        let name = request.url.path().trim_start_matches('/');
        let number = name.parse().unwrap_or_else(|_recent| {
            let mut newest = self.newest.lock().unwrap();
            *newest = (*newest + 1).min(self.last);
            *newest
        });
        let link = match number {
            1 => String::new(),
            number => format!("<link rel='prev-archive' href='{}'/>", number - 1),
        };
        let page = document(&link, &[&format!("urn:{number}")]);
        Box::pin(async move {
            time::sleep(Duration::from_millis(1)).await;
            Ok(Answer {
                status: page.status,
                headers: page.headers,
                body: page.body.into(),
            })
        })
    }
}

/// Counts of `caught_up` calls: at the observer, and at the bookmark store, which marks them for health checks.
#[derive(Clone, Debug, Default)]
struct Ends(Arc<Mutex<[usize; 2]>>);

impl Observer for Ends {
    fn caught_up(&mut self) {
        self.0.lock().unwrap()[0] += 1;
    }
}

impl BookmarkStore for Ends {
    async fn load(&mut self) -> io::Result<Option<Bookmark>> {
        Ok(None)
    }

    async fn save(&mut self, _bookmark: &Bookmark) -> io::Result<()> {
        Ok(())
    }

    async fn caught_up(&mut self) {
        self.0.lock().unwrap()[1] += 1;
    }
}

/// Goal: behind a round that ended early, because the feed grew faster than it was read, the next look comes after a second
/// and not after the usual interval; `caught_up` comes at the end of the feed only.
#[tokio::test(start_paused = true)]
async fn a_round_that_ends_early_is_no_end() {
    let transport: Arc<dyn Transport> = Arc::new(Growing {
        newest: Mutex::new(1),
        last: 30,
    });
    let ends = Ends::default();
    let builder = Consumer::builder(FEED)
        .transport(transport)
        .since(Since::Oldest)
        .bookmark(ends.clone())
        .observer(ends.clone());
    let mut feed = builder.follow(true).build().unwrap();
    let began = time::Instant::now();
    for number in 1..=30 {
        let delivery = feed.next().await.unwrap().unwrap();
        assert_eq!(delivery.id(), format!("urn:{number}"));
        feed.accept(&delivery).await.unwrap();
        assert_eq!(*ends.0.lock().unwrap(), [0, 0], "{number}");
    }
    // Some rounds, and each had its pause.
    let took = began.elapsed();
    assert!(
        took > Duration::from_secs(3) && took < Duration::from_mins(1),
        "{took:?}"
    );
    let quiet = time::timeout(Duration::from_secs(1), feed.next()).await;
    assert!(quiet.is_err());
    assert_eq!(*ends.0.lock().unwrap(), [1, 1]);
}

/// With `OnGap::GoOn`, a consumer delivers all entries left behind a gap, and notifies its observer once.
#[tokio::test(start_paused = true)]
async fn a_gap_can_be_passed() {
    #[derive(Clone, Default)]
    struct Gaps(Arc<Mutex<Vec<String>>>);

    impl Observer for Gaps {
        fn gap(&mut self, gap: &WalkError) {
            self.0.lock().unwrap().push(gap.to_string());
        }
    }

    let (web, kept, gaps) = (Arc::new(Web::default()), Kept::default(), Gaps::default());
    web.put(FEED, "", &["urn:2", "urn:1"]);
    assert_eq!(
        all(&mut consumer(&web, &kept, Since::Oldest)).await,
        ["1", "2"]
    );
    web.put(FEED, "", &["urn:90", "urn:80"]);
    let stopped = consumer(&web, &kept, Since::Oldest).next().await;
    assert!(matches!(
        stopped,
        Err(ConsumerError::Walk(WalkError::Gap { .. }))
    ));
    let going_on = builder(&web).bookmark(kept.clone()).on_gap(OnGap::GoOn);
    let mut feed = going_on.observer(gaps.clone()).build().unwrap();
    assert_eq!(all(&mut feed).await, ["80", "90"]);
    assert_eq!(all(&mut feed).await, [""; 0]);
    assert_eq!(gaps.0.lock().unwrap().len(), 1);
    // The same in a chain of documents: one on the way is gone.
    let (web, kept) = (Arc::new(Web::default()), Kept::default());
    chain(&web);
    web.pages.lock().unwrap().remove("http://h/2");
    let going_on = builder(&web).bookmark(kept).on_gap(OnGap::GoOn);
    assert_eq!(all(&mut going_on.build().unwrap()).await, ["5"]);
}

/// An entry that a consumer has seen and not delivered before it stopped is delivered later, or reported as a gap.
#[tokio::test(start_paused = true)]
async fn a_deleted_entry_is_missed_aloud() {
    let (web, kept) = (Arc::new(Web::default()), Kept::default());
    web.put(FEED, "", &["urn:3", "urn:2", "urn:1"]);
    let mut first = consumer(&web, &kept, Since::Oldest);
    let delivery = first.next().await.unwrap().unwrap();
    first.accept(&delivery).await.unwrap();
    drop(first);
    web.put(FEED, "", &["urn:4", "urn:3", "urn:1"]);
    // All that is left comes first, and each start reports the gap until somebody passes it.
    for ids in [&["urn:3", "urn:4"][..], &[]] {
        let mut feed = consumer(&web, &kept, Since::Oldest);
        for id in ids {
            let delivery = feed.next().await.unwrap().unwrap();
            assert_eq!(delivery.id(), *id);
            feed.accept(&delivery).await.unwrap();
        }
        for _ in 0..2 {
            assert!(matches!(
                feed.next().await,
                Err(ConsumerError::Walk(WalkError::Deleted { entries: 1 }))
            ));
        }
    }
    let going_on = || builder(&web).bookmark(kept.clone()).on_gap(OnGap::GoOn);
    let mut feed = going_on().build().unwrap();
    assert_eq!(feed.next().await.unwrap().map(|_| ()), None);
    assert_eq!(
        feed.take_gap(),
        Some(WalkError::Deleted { entries: 1 }),
        "it was passed"
    );
    let mut feed = going_on().build().unwrap();
    assert_eq!(feed.next().await.unwrap().map(|_| ()), None);
    assert_eq!(feed.take_gap(), None);
}

/// A consumer that ends during its first entry begins there again, also if it began with the newest one.
#[tokio::test(start_paused = true)]
async fn the_beginning_is_kept() {
    for since in [Since::Oldest, Since::Newest] {
        let (web, kept) = (Arc::new(Web::default()), Kept::default());
        web.put(FEED, "", &["urn:1"]);
        let mut feed = consumer(&web, &kept, since.clone());
        if since == Since::Newest {
            assert_eq!(all(&mut feed).await, [""; 0]);
            web.put(FEED, "", &["urn:2", "urn:1"]);
        }
        let first = feed.next().await.unwrap().unwrap().id().to_owned();
        drop(feed);
        assert!(kept.0.lock().unwrap().is_some(), "{since:?}");
        let again = all(&mut consumer(&web, &kept, Since::Newest)).await;
        assert_eq!(again, [first.trim_start_matches("urn:")], "{since:?}");
    }
}

/// A recent document may be a window that slides beside archives: once all known entries have left it, others may
/// have come and gone.
#[tokio::test(start_paused = true)]
async fn a_window_that_slid_too_far_is_a_gap() {
    let (web, kept) = (Arc::new(Web::default()), Kept::default());
    chain(&web);
    assert_eq!(
        all(&mut consumer(&web, &kept, Since::Oldest)).await.len(),
        5
    );
    let link = "<link rel='prev-archive' href='2'/>";
    web.put(FEED, link, &["urn:7", "urn:6", "urn:5"]);
    assert_eq!(
        all(&mut consumer(&web, &kept, Since::Oldest)).await,
        ["6", "7"]
    );
    web.put(FEED, link, &["urn:12", "urn:11", "urn:10"]);
    assert!(matches!(
        consumer(&web, &kept, Since::Oldest).next().await,
        Err(ConsumerError::Walk(WalkError::Gap { .. }))
    ));
    let going_on = builder(&web).bookmark(kept.clone()).on_gap(OnGap::GoOn);
    assert_eq!(
        all(&mut going_on.build().unwrap()).await,
        ["10", "11", "12"]
    );
    assert_eq!(
        all(&mut consumer(&web, &kept, Since::Oldest)).await,
        [""; 0]
    );
}

/// A recent document that has lost its archive link once makes no archive new.
#[tokio::test(start_paused = true)]
async fn a_link_that_is_missing_once_repeats_nothing() {
    let (web, kept) = (Arc::new(Web::default()), Kept::default());
    chain(&web);
    assert_eq!(
        all(&mut consumer(&web, &kept, Since::Oldest)).await.len(),
        5
    );
    web.put(FEED, "", &["urn:6", "urn:5"]);
    assert_eq!(all(&mut consumer(&web, &kept, Since::Oldest)).await, ["6"]);
    let archive = kept.0.lock().unwrap().as_ref().unwrap().archive.clone();
    assert_eq!(archive.unwrap().as_str(), "http://h/2");
    web.put(
        FEED,
        "<link rel='prev-archive' href='2'/>",
        &["urn:7", "urn:6"],
    );
    web.forget();
    assert_eq!(all(&mut consumer(&web, &kept, Since::Oldest)).await, ["7"]);
    let asked = web.sent("accept");
    assert!(asked.iter().all(|(url, _)| url == FEED), "{asked:?}");
}

/// Archives that a consumer has walked over may leave the feed.
#[tokio::test(start_paused = true)]
async fn an_archive_that_was_read_may_go() {
    let (web, kept) = (Arc::new(Web::default()), Kept::default());
    chain(&web);
    let ids = all(&mut consumer(&web, &kept, Since::Oldest)).await;
    assert_eq!(ids, ["1", "2", "3", "4", "5"]);
    web.put(
        "http://h/3",
        "<link rel='prev-archive' href='2'/>",
        &["urn:7", "urn:6", "urn:5"],
    );
    web.put(FEED, "<link rel='prev-archive' href='3'/>", &["urn:8"]);
    web.pages.lock().unwrap().remove("http://h/2");
    let ids = all(&mut consumer(&web, &kept, Since::Oldest)).await;
    assert_eq!(ids, ["6", "7", "8"]);
}

/// A foreign server without freshness information is not polled every second.
#[tokio::test(start_paused = true)]
async fn a_stranger_is_asked_rarely() {
    let web = Arc::new(Web::default());
    web.put(FEED, "", &["urn:1"]);
    let mut feed = builder(&web).follow(true).build().unwrap();
    assert_eq!(feed.next().await.unwrap().unwrap().id(), "urn:1");
    time::timeout(Duration::from_mins(59), feed.next())
        .await
        .unwrap_err();
    assert!((3..=4).contains(&web.pauses().len()), "{:?}", web.pauses());
    let web = Arc::new(Web::default());
    web.put(FEED, "", &["urn:1"]);
    let builder = builder(&web).follow(true).interval(Duration::from_secs(10));
    let mut feed = builder.build().unwrap();
    assert_eq!(feed.next().await.unwrap().unwrap().id(), "urn:1");
    time::timeout(Duration::from_secs(59), feed.next())
        .await
        .unwrap_err();
    assert!((4..=6).contains(&web.pauses().len()), "{:?}", web.pauses());
}

/// Goal: what answers waits with another feed's document ends no consumer; polls go on.
#[tokio::test(start_paused = true)]
async fn a_wait_that_is_answered_by_another_feed_ends_nothing() {
    let web = Arc::new(Web::default());
    let link = "<wait>; rel=\"urn:simplefeed:1#wait\"";
    let recent = |ids: &[&str]| {
        document("", ids)
            .with("link", link)
            .with("cache-control", "max-age=5")
    };
    web.serve("http://h/recent", recent(&["urn:1"]));
    let other = "<feed xmlns='http://www.w3.org/2005/Atom'><id>urn:other</id><entry><id>urn:x</id></entry></feed>";
    web.serve("http://h/wait", Page::new("application/atom+xml", other));
    let builder = builder(&web).since(Since::Newest).follow(true);
    let mut feed = builder.wake_by(WakeBy::Wait).build().unwrap();
    let nothing = time::timeout(Duration::from_secs(20), feed.next()).await;
    assert!(nothing.is_err(), "{nothing:?}");
    web.serve("http://h/recent", recent(&["urn:2", "urn:1"]));
    let next = time::timeout(Duration::from_secs(20), feed.next()).await;
    assert_eq!(next.unwrap().unwrap().unwrap().id(), "urn:2");
    let waits = web.sent("accept");
    let waits = waits
        .iter()
        .filter(|(url, _)| url.ends_with("/wait"))
        .count();
    assert_eq!(waits, 1, "it is absent for a while");
}

/// Web with a stream that repeats one id as fast as it is read.
#[derive(Debug)]
struct Repeating(Arc<Web>);

impl Transport for Repeating {
    fn send(&self, request: Request) -> Answering<'_> {
        self.0.send(request)
    }

    fn stream(&self, _: Request) -> crate::transport::Streaming<'_> {
        let event = simplefeed_core::push::event(None, "7-00000000000000aa", "");
        let event = Bytes::from(event);
        let body = futures_util::stream::repeat_with(move || Ok(event.clone()));
        Box::pin(async move {
            Ok(crate::transport::StreamedAnswer {
                status: 200,
                headers: vec![("content-type".into(), "text/event-stream".into())],
                body: Box::pin(body),
            })
        })
    }
}

/// Goal: looks at a plain feed are a second apart, whatever wakes the consumer.
#[tokio::test(start_paused = true)]
async fn a_stream_that_repeats_itself_wakes_once_a_second() {
    let web = Arc::new(Web::default());
    let link = "<events>; rel=\"urn:simplefeed:1#events\"";
    let page = document("", &["urn:1"])
        .with("link", link)
        .with("cache-control", "max-age=600");
    web.serve("http://h/recent", page);
    let transport: Arc<dyn Transport> = Arc::new(Repeating(Arc::clone(&web)));
    let feed = Consumer::builder("http://h/recent")
        .transport(transport)
        .since(Since::Newest);
    let mut feed = feed.follow(true).build().unwrap();
    let nothing = time::timeout(Duration::from_mins(1), feed.next()).await;
    assert!(nothing.is_err(), "{nothing:?}");
    let asked = web.sent("accept").len();
    assert!((50..=62).contains(&asked), "{asked} looks in a minute");
    // A future that is dropped in the pause begins no look early.
    web.forget();
    for _ in 0..600 {
        drop(time::timeout(Duration::from_millis(100), feed.next()).await);
    }
    let asked = web.sent("accept").len();
    assert!((50..=62).contains(&asked), "{asked} looks in a minute");
}

/// A store that waits before and behind each of its steps.
#[derive(Clone, Debug, Default)]
struct Hesitant(Kept);

impl BookmarkStore for Hesitant {
    async fn load(&mut self) -> io::Result<Option<Bookmark>> {
        tokio::task::yield_now().await;
        BookmarkStore::load(&mut self.0).await
    }

    async fn save(&mut self, bookmark: &Bookmark) -> io::Result<()> {
        tokio::task::yield_now().await;
        BookmarkStore::save(&mut self.0, bookmark).await?;
        tokio::task::yield_now().await;
        Ok(())
    }
}

/// Goal: `next` and `accept`, dropped at any of their awaits, lose no entry, deliver none twice, and delay none.
#[tokio::test(start_paused = true)]
async fn a_consumer_that_is_dropped_anywhere_goes_on() {
    let mut awaits = 0;
    loop {
        let (web, kept) = (Arc::new(Web::default()), Hesitant::default());
        chain(&web);
        let build = || {
            let builder = builder(&web).bookmark(kept.clone()).since(Since::Oldest);
            builder.build().unwrap()
        };
        let (began, mut feed) = (time::Instant::now(), build());
        let (mut ids, mut was_dropped) = (vec![], false);
        while let Some(delivery) = dropped!(awaits, was_dropped, feed.next()).unwrap() {
            ids.push(delivery.id().to_owned());
            dropped!(awaits, was_dropped, feed.accept(&delivery)).unwrap();
        }
        assert_eq!(
            ids,
            ["urn:1", "urn:2", "urn:3", "urn:4", "urn:5"],
            "{awaits}"
        );
        assert_eq!(kept.0.entry().as_deref(), Some("urn:5"), "{awaits}");
        assert!(
            began.elapsed() < Duration::from_millis(200),
            "{awaits}: {:?}",
            began.elapsed()
        );
        assert!(build().next().await.unwrap().is_none(), "{awaits}");
        let place = dropped!(awaits, was_dropped, build().locate()).unwrap();
        assert_eq!(place.entry.as_deref(), Some("urn:5"), "{awaits}");
        awaits += 1;
        if !was_dropped {
            break;
        }
    }
    assert!(awaits > 5, "{awaits}");
}

/// Goal: a consumer that follows, and is dropped with each tick of a clock, delivers what comes.
#[tokio::test(start_paused = true)]
async fn a_follower_that_is_dropped_with_each_tick_goes_on() {
    let web = Arc::new(Web::default());
    web.put(FEED, "", &["urn:1"]);
    let mut feed = builder(&web)
        .since(Since::Oldest)
        .follow(true)
        .interval(Duration::from_secs(20))
        .build()
        .unwrap();
    let mut ids: Vec<String> = vec!["urn:1".into()];
    for number in 1..=5 {
        let began = time::Instant::now();
        let delivery = loop {
            let next = time::timeout(Duration::from_millis(500), feed.next());
            if let Ok(next) = next.await {
                break next.unwrap().unwrap();
            }
        };
        assert_eq!(delivery.id(), format!("urn:{number}"));
        // Not later than a poll without drops, with its jitter.
        assert!(
            began.elapsed() <= Duration::from_secs(31),
            "{number}: {:?}",
            began.elapsed()
        );
        feed.accept(&delivery).await.unwrap();
        ids.insert(0, format!("urn:{}", number + 1));
        let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
        web.put(FEED, "", &ids);
    }
}
