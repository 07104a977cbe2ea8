//! The hot paths of core: the gate, the writing of documents, the reading of documents.
//!
//! `cargo bench -p simplefeed-core`; figures are per document of 100 entries of about 350 bytes.

use bytes::Bytes;
use divan::{Bencher, counter::BytesCount};
use simplefeed_core::{
    document::feed_document,
    entry::{Additions, Draft},
    event,
    feed::{DocumentName, DocumentNumber, Epoch, FeedId, FeedName, Position, Revision},
    header::{DocumentForm, header},
    history::HistoryHash,
    plan::Opening,
    reader::Document,
    scanner::scan,
    settings::{Choices, Defaults, Settings},
    timestamp::Timestamp,
};

fn main() {
    divan::main();
}

const ENTRIES: u32 = 100;

fn events() -> String {
    let event = |n: u32| {
        format!(
            "{{\"id\":\"urn:uuid:00000000-0000-4000-8000-{n:012x}\",\"title\":\"Order placed\",\
             \"updated\":\"2026-01-01T00:00:00Z\",\"content\":{{\"order\":{n},\"customer\":\"c-{n:06}\",\
             \"total\":\"{n}.90\",\"lines\":[{{\"sku\":\"A-1\",\"n\":2}},{{\"sku\":\"B-7\",\"n\":1}}],\
             \"note\":\"leave it with the neighbours if nobody is in\"}}}}\n"
        )
    };
    (0..ENTRIES).map(event).collect()
}

fn fragments() -> Vec<Bytes> {
    let drafts = event::from_ndjson(events().as_bytes()).expect("the events are good");
    let complete = |draft: &Draft| {
        let id = draft.id.clone().expect("the events have ids");
        let additions = Additions {
            author: "Simplefeed",
            alternate: Some("https://example.org/feeds/bench/entries/0".into()),
        };
        draft.complete(&id, Timestamp::default(), &additions)
    };
    let fragments = drafts.iter().map(complete);
    fragments
        .collect::<Result<_, _>>()
        .expect("the events are small")
}

fn head() -> String {
    let name = DocumentName {
        number: DocumentNumber::OLDEST,
        epoch: Epoch::FIRST,
    };
    let settings = Settings {
        name: FeedName::parse("orders").expect("a name"),
        id: FeedId::parse("urn:uuid:ff31a040-75bc-11e2-bcfd-0800200c9a66").expect("an id"),
        choices: Choices::default().into(),
        defaults: Defaults::new("https://example.org").into(),
        sup_id: None,
        was_closed: false,
        timeline: None,
    };
    let opening = Opening {
        name,
        linked: name,
        previous: None,
        first: Position(0),
        before: HistoryHash::start(&settings.id),
        revision: Revision::FIRST,
        opened: Timestamp::default(),
        after_loss: false,
        since: Position(0),
    };
    header(
        &opening,
        &settings,
        DocumentForm::Open,
        Timestamp::default(),
    )
}

#[divan::bench]
fn gate_of_events(bencher: Bencher<'_, '_>) {
    let events = events();
    let read = event::from_ndjson(events.as_bytes());
    assert!(read.is_ok());
    bencher
        .counter(BytesCount::of_str(&events))
        .bench(|| event::from_ndjson(events.as_bytes()));
}

#[divan::bench]
fn gate_of_atom(bencher: Bencher<'_, '_>) {
    let fragments = fragments();
    let bytes: usize = fragments.iter().map(Bytes::len).sum();
    bencher
        .counter(BytesCount::new(bytes))
        .bench(|| fragments.iter().all(|fragment| scan(fragment).is_ok()));
}

#[divan::bench]
fn document_written(bencher: Bencher<'_, '_>) {
    let (head, fragments) = (head(), fragments());
    let fragments: Vec<&Bytes> = fragments.iter().collect();
    bencher
        .counter(BytesCount::of_slice(&feed_document(&head, &fragments)))
        .bench(|| feed_document(&head, &fragments));
}

#[divan::bench]
fn document_read(bencher: Bencher<'_, '_>) {
    let (head, fragments) = (head(), fragments());
    let fragments: Vec<&Bytes> = fragments.iter().collect();
    let body = feed_document(&head, &fragments);
    let url = "https://example.org/feeds/orders/1.atom"
        .parse()
        .expect("a URL");
    assert!(Document::read(body.clone(), &url).is_ok());
    bencher
        .counter(BytesCount::of_slice(&body))
        .bench(|| Document::read(body.clone(), &url));
}

#[divan::bench]
fn document_hashed(bencher: Bencher<'_, '_>) {
    let fragments = fragments();
    let bytes: usize = fragments.iter().map(Bytes::len).sum();
    let start = HistoryHash::start_of_text("urn:f");
    bencher.counter(BytesCount::new(bytes)).bench(|| {
        let extend = |hash: HistoryHash, fragment: &Bytes| hash.extend(fragment);
        fragments.iter().fold(start, extend)
    });
}
