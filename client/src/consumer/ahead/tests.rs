use std::{fmt::Write as _, sync::Arc, time::Duration};

use simplefeed_core::history::HistoryHash;

use super::DOCUMENTS_MAX;
use crate::{
    Consumer, ConsumerError, Since, Transport,
    consumer::tests::{Page, Web},
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
    let transport: Arc<dyn Transport> = Arc::<Web>::clone(web);
    let builder = Consumer::builder(url("newest")).since(Since::Oldest);
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
            (DOCUMENTS_MAX..DOCUMENTS_MAX + 3).contains(&most),
            "{most} at once"
        );
        assert!(web.times().len() <= 200 + 2 + 2 * chunks.len());
    }
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
