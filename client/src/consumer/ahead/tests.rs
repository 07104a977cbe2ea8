use std::{fmt::Write as _, sync::Arc, time::Duration};

use simplefeed_core::{history::HistoryHash, limits::AHEAD_DOCUMENTS_MAX};

use crate::{
    Consumer, ConsumerError, Since, Transport,
    consumer::{
        Builder,
        tests::{Page, Web},
    },
};

const FOLDER: &str = "http://h/f/";
const ENTRIES: usize = 3;

fn url(name: &str) -> String {
    format!("{FOLDER}{name}")
}

fn fragment(entry: usize) -> String {
    format!("<entry xmlns=\"http://www.w3.org/2005/Atom\"><id>urn:{entry}</id></entry>")
}

/// Serves a feed of `documents` documents, the last of them open. Returns the names of the others.
fn serve(web: &Web, documents: usize) -> Vec<String> {
    let mut before = HistoryHash::start_of_text("urn:f");
    for number in 1..=documents {
        let mut links = format!("<link rel='index' href='{}'/>", url("index"));
        if number > 1 {
            write!(links, "<link rel='prev-archive' href='{}'/>", number - 1).unwrap();
        }
        if number < documents {
            write!(links, "<link rel='next-archive' href='{}'/>", number + 1).unwrap();
        }
        let first = (number - 1) * ENTRIES;
        let entries: Vec<String> = (first..first + ENTRIES).map(fragment).collect();
        let newest_first: String = entries.iter().rev().map(String::as_str).collect();
        let history =
            format!("<history xmlns='urn:simplefeed:1' first='{first}' before='{before}'/>");
        let body = |more: &str| {
            let page = format!(
                "<feed xmlns='http://www.w3.org/2005/Atom'><id>urn:f</id>{links}{more}{history}{newest_first}</feed>"
            );
            Page::new("application/atom+xml", &page)
        };
        web.serve(&url(&format!("{number}")), body(""));
        let via = format!("<link rel='via' href='{number}'/>");
        web.serve(&url("newest"), body(&via));
        before = entries
            .iter()
            .fold(before, |hash, entry| hash.extend(entry.as_bytes()));
    }
    (1..documents).map(|number| format!("{number}")).collect()
}

/// Serves a block of the index.
fn index(web: &Web, name: &str, prev: Option<&str>, documents: &[String]) {
    let documents: Vec<_> = documents
        .iter()
        .map(|href| {
            serde_json::json!({"href": href, "first": 0, "entries": 0, "opened": "", "updated": "",
                "sha256": "0".repeat(64)})
        })
        .collect();
    let block = serde_json::json!({"feed": "urn:f", "prev": prev, "documents": documents});
    web.serve(
        &url(name),
        Page::new("application/json", &block.to_string()),
    );
}

/// Replays everything. Returns the ids, without `urn:`, or what stopped it.
async fn replay(web: &Arc<Web>) -> Result<Vec<usize>, ConsumerError> {
    deliver(web, |builder| builder.since(Since::Oldest)).await
}

async fn deliver(
    web: &Arc<Web>,
    from: impl FnOnce(Builder) -> Builder,
) -> Result<Vec<usize>, ConsumerError> {
    let transport: Arc<dyn Transport> = Arc::<Web>::clone(web);
    let builder = from(Consumer::builder(url("newest")));
    let mut feed = builder.transport(transport).build().unwrap();
    let mut ids = vec![];
    while let Some(delivery) = feed.next().await? {
        ids.push(delivery.id().strip_prefix("urn:").unwrap().parse().unwrap());
    }
    Ok(ids)
}

/// Goal: far documents are fetched many at a time, and no more at a time than may be, in any number of
/// blocks of the index; their entries come in order.
#[tokio::test(start_paused = true)]
async fn a_long_way_is_fetched_many_at_a_time() {
    for blocks in [1, 2, 5] {
        let web = Arc::new(Web::default());
        let archived = serve(&web, 200);
        let slow = Duration::from_millis(99);
        web.answer_after(slow);
        let chunks: Vec<_> = archived.chunks(200 / blocks).collect();
        for (number, chunk) in chunks.iter().enumerate() {
            let prev = number.checked_sub(1).map(|prev| format!("index-{prev}"));
            let newest = number + 1 == chunks.len();
            let name = if newest {
                "index".into()
            } else {
                format!("index-{number}")
            };
            index(&web, &name, prev.as_deref(), chunk);
        }
        let began = tokio::time::Instant::now();
        let ids = replay(&web).await.unwrap();
        assert_eq!(ids, (0..200 * ENTRIES).collect::<Vec<_>>());
        let took = began.elapsed();
        assert!(took < slow * 200 / 8, "{took:?} with {blocks} blocks");
        let times = web.times();
        let at_once = |at: &Duration| {
            times
                .iter()
                .filter(|t| (*at..*at + slow).contains(t))
                .count()
        };
        let most = times.iter().map(at_once).max().unwrap();
        assert!(
            (AHEAD_DOCUMENTS_MAX..AHEAD_DOCUMENTS_MAX + 3).contains(&most),
            "{most} at once"
        );
        check_once(&web);
    }
}

/// No document is asked for twice.
fn check_once(web: &Web) {
    let mut asked: Vec<String> = web.sent("accept").into_iter().map(|(url, _)| url).collect();
    asked.retain(|url| !url.contains("index"));
    asked.sort();
    let documents = asked.len();
    asked.dedup();
    assert_eq!(asked.len(), documents, "{asked:?}");
}

/// Goal: from a bookmark, too, whatever block of the index lists what comes next; nothing is asked for
/// twice, and nothing that need not be.
#[tokio::test(start_paused = true)]
async fn a_bookmark_far_behind_is_left_many_documents_at_a_time() {
    let web = Arc::new(Web::default());
    let archived = serve(&web, 100);
    index(&web, "index-1", None, &archived[..40]);
    index(&web, "index-2", Some("index-1"), &archived[40..80]);
    index(&web, "index", Some("index-2"), &archived[80..]);
    let mut bookmarks = vec![];
    let transport: Arc<dyn Transport> = Arc::<Web>::clone(&web);
    let builder = Consumer::builder(url("newest")).since(Since::Oldest);
    let mut feed = builder.transport(transport).build().unwrap();
    while let Some(delivery) = feed.next().await.unwrap() {
        bookmarks.push(delivery.bookmark());
    }
    let slow = Duration::from_millis(99);
    for behind in [95, 70, 50, 10, 4] {
        let last = (100 - behind) * ENTRIES - 1;
        let before = bookmarks[last].clone();
        web.forget();
        web.answer_after(slow);
        let began = tokio::time::Instant::now();
        let ids = deliver(&web, |builder| builder.resume(before))
            .await
            .unwrap();
        assert_eq!(ids, (last + 1..100 * ENTRIES).collect::<Vec<_>>());
        check_once(&web);
        let asked = web.sent("accept");
        let blocks = asked
            .iter()
            .filter(|(url, _)| url.contains("index"))
            .count();
        assert_eq!(asked.len() - blocks, behind + 2, "{behind} behind");
        assert!(blocks <= 6, "{blocks} blocks, {behind} behind");
        let rounds = u32::try_from(8 + behind / 10).unwrap();
        assert!(
            began.elapsed() < slow * rounds,
            "{:?}, {behind} behind",
            began.elapsed()
        );
    }
}

/// Goal: an index without an end, or in a circle, or elsewhere, costs a bounded number of requests.
#[tokio::test(start_paused = true)]
async fn an_index_that_leads_nowhere_is_given_up() {
    for prev in ["index", "index-1", "http://elsewhere/index"] {
        let web = Arc::new(Web::default());
        serve(&web, 60);
        index(&web, "index", Some(prev), &["1".into(), "999".into()]);
        index(&web, "index-1", Some("index"), &["998".into()]);
        assert_eq!(replay(&web).await.unwrap().len(), 60 * ENTRIES);
        let asked = web.sent("accept");
        // As many as without an index (60 back, 60 forward), and some.
        assert!(asked.len() < 135, "{} requests", asked.len());
    }
}

/// Goal: a server that asks for a rest gets it, although more was on the way.
#[tokio::test(start_paused = true)]
async fn a_rest_that_is_asked_for_is_given() {
    let web = Arc::new(Web::default());
    let archived = serve(&web, 60);
    index(&web, "index", None, &archived);
    web.rest_from(20, 16, 5);
    assert_eq!(replay(&web).await.unwrap().len(), 60 * ENTRIES);
    let times = web.times();
    let longest = times
        .windows(2)
        .map(|pair| pair[1].saturating_sub(pair[0]))
        .max();
    assert!(longest.unwrap() >= Duration::from_secs(5), "{longest:?}");
    let asked: Vec<_> = web.times().into_iter().zip(web.sent("accept")).collect();
    for (number, (at, (url, _))) in asked.iter().enumerate() {
        let soon = |(later, (again, _)): &(Duration, (String, _))| {
            again == url && *later < *at + Duration::from_secs(5)
        };
        assert!(
            !asked[number + 1..].iter().any(soon),
            "{url} at {at:?} and soon again"
        );
    }
}

/// Goal: a caller who gives up waiting and comes back loses nothing and gets nothing twice.
#[tokio::test(start_paused = true)]
async fn a_dropped_look_loses_nothing_on_the_way() {
    let web = Arc::new(Web::default());
    let archived = serve(&web, 60);
    index(&web, "index", None, &archived);
    web.answer_after(Duration::from_millis(99));
    let transport: Arc<dyn Transport> = Arc::<Web>::clone(&web);
    let builder = Consumer::builder(url("newest")).since(Since::Oldest);
    let mut feed = builder.transport(transport).build().unwrap();
    let mut ids = vec![];
    loop {
        // Shorter than any answer takes.
        let next = tokio::time::timeout(Duration::from_millis(30), feed.next()).await;
        match next {
            Ok(Ok(Some(delivery))) => ids.push(delivery.id().to_owned()),
            Ok(outcome) => break assert!(outcome.unwrap().is_none()),
            Err(_) => {}
        }
    }
    let expected: Vec<String> = (0..60 * ENTRIES).map(|id| format!("urn:{id}")).collect();
    assert_eq!(ids, expected);
    check_once(&web);
}

/// Goal: what is near is not worth a look into the index.
#[tokio::test(start_paused = true)]
async fn a_short_way_costs_no_more_requests() {
    let web = Arc::new(Web::default());
    serve(&web, 3);
    assert_eq!(replay(&web).await.unwrap().len(), 3 * ENTRIES);
    let asked: Vec<String> = web.sent("accept").into_iter().map(|(url, _)| url).collect();
    let index = asked
        .iter()
        .filter(|asked| asked.ends_with("index"))
        .count();
    assert_eq!(index, 1, "by the walk, to find the oldest: {asked:?}");
}

/// Goal: whatever the index says, the same entries are delivered, in the same order.
#[tokio::test(start_paused = true)]
async fn an_index_that_is_wrong_changes_nothing() {
    let names = |numbers: &mut dyn Iterator<Item = usize>| -> Vec<String> {
        numbers.map(|number| format!("{number}")).collect()
    };
    let wrong: [Vec<String>; 6] = [
        vec![],
        names(&mut (1..40).rev()),
        names(&mut (1..40).map(|number| number * 3)),
        names(&mut (1..40).map(|_| 1)),
        names(&mut (1..20).chain(30..40).chain(60..90)),
        names(&mut (1..40).map(|number| (number * 17) % 40 + 1)),
    ];
    for (case, mut documents) in wrong.into_iter().enumerate() {
        let web = Arc::new(Web::default());
        serve(&web, 40);
        if !documents.is_empty() {
            // Where the walk begins is not what this is about.
            documents.insert(0, "1".into());
        }
        index(&web, "index", None, &documents);
        let ids = replay(&web).await.unwrap();
        assert_eq!(ids, (0..40 * ENTRIES).collect::<Vec<_>>(), "case {case}");
        assert!(
            web.times().len() < 200,
            "case {case}: {} requests",
            web.times().len()
        );
    }
}

/// Goal: a failure ahead is no failure, unless it still is one when the walk gets there.
#[tokio::test(start_paused = true)]
async fn failures_ahead_are_met_when_the_walk_gets_there() {
    let web = Arc::new(Web::default());
    let archived = serve(&web, 60);
    index(&web, "index", None, &archived);
    web.fail_from(20, 5);
    assert_eq!(replay(&web).await.unwrap().len(), 60 * ENTRIES);

    let mut gone = Page::new("text/plain", "gone");
    gone.fails_with(410);
    web.serve(&url("30"), gone);
    let error = replay(&web).await.unwrap_err();
    assert!(error.to_string().contains("30"), "{error}");
}

/// Goal: nobody is sent for at another origin than the walk is at.
#[tokio::test(start_paused = true)]
async fn the_index_leads_to_no_other_origin() {
    let web = Arc::new(Web::default());
    let mut listed = serve(&web, 30);
    for number in [5, 12, 20] {
        listed.insert(number, format!("http://elsewhere/{number}"));
    }
    index(&web, "index", None, &listed);
    assert_eq!(replay(&web).await.unwrap().len(), 30 * ENTRIES);
    let asked = web.sent("accept");
    assert!(asked.iter().all(|(url, _)| url.starts_with("http://h/")));
}

/// Patience that a server asks for is given where there is another way, too.
#[tokio::test(start_paused = true)]
async fn another_way_is_not_taken_before_its_time() {
    let web = Arc::new(Web::default());
    serve(&web, 3);
    let busy = Page::new("application/json", "").status(429);
    web.serve(&url("index"), busy.with("retry-after", "600"));
    let error = replay(&web).await.unwrap_err();
    assert!(error.to_string().contains("429"), "{error}");
    let transport: Arc<dyn Transport> = Arc::<Web>::clone(&web);
    let follower = Consumer::builder(url("newest")).transport(transport);
    let mut follower = follower.follow(true).build().unwrap();
    for _ in 0..9 {
        follower.next().await.unwrap().unwrap();
    }
    let asked = web.sent("accept");
    let after_busy = asked.iter().rposition(|(url, _)| url.ends_with("index"));
    assert!(web.pauses()[after_busy.unwrap()] >= Duration::from_mins(10));
}
