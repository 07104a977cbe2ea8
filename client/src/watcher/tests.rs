use std::fs;

use super::*;

fn place(entry: &str) -> Bookmark {
    Bookmark {
        feed: "urn:f".into(),
        entry: Some(entry.into()),
        ..Bookmark::default()
    }
}

fn note(feed: &str, entry: &str) -> Note {
    let base = "https://e/".parse().unwrap();
    let sup = SupAddress::parse("https://e/sup.json#abc", &base);
    Note::feed(feed, Some(&place(entry)), sup.as_ref(), Some("v1"))
}

fn open(folder: &std::path::Path) -> Result<(Book, book::Notes), StateError> {
    Book::open(StateFolder::open(folder)?)
}

#[test]
fn what_was_noted_last_is_remembered() {
    let folder = tempfile::tempdir().unwrap();
    let (mut book, notes) = open(folder.path()).unwrap();
    assert!(notes.feeds.is_empty());
    let none = Vec::new;
    book.note(&[note("a", "urn:1"), note("b", "urn:1")], none)
        .unwrap();
    let updated = simplefeed_core::instant::Instant::from_micros(7_000_000);
    let document: Url = "https://e/sup.json".parse().unwrap();
    book.note(&[note("a", "urn:2"), Note::heard(&document, updated)], none)
        .unwrap();
    assert!(matches!(
        open(folder.path()),
        Err(StateError::Locked { .. })
    ));
    drop(book);

    // What a crash has cut short is as if it had not been written.
    let path = folder.path().join("watched.ndjson");
    let mut text = fs::read_to_string(&path).unwrap();
    text += "{\"feed\":\"b\",\"bookm";
    fs::write(&path, &text).unwrap();
    let (mut book, notes) = open(folder.path()).unwrap();
    let entry = |notes: &book::Notes, feed: &str| {
        let known = &notes.feeds[feed];
        assert_eq!(known.update.as_deref(), Some("v1"));
        assert_eq!(&*known.sup.as_ref().unwrap().id, "abc");
        known.place.as_ref().unwrap().entry.clone().unwrap()
    };
    assert_eq!(
        (entry(&notes, "a"), entry(&notes, "b")),
        ("urn:2".into(), "urn:1".into())
    );
    assert_eq!(notes.heard[&document], updated);
    book.note(&[note("b", "urn:3")], none).unwrap();
    drop(book);
    let (_, notes) = open(folder.path()).unwrap();
    assert_eq!(entry(&notes, "b"), "urn:3");

    // A line in the middle is never passed over.
    let text = fs::read_to_string(&path)
        .unwrap()
        .replacen("urn:2", "urn:2\"", 1);
    fs::write(&path, text).unwrap();
    let damaged = open(folder.path()).unwrap_err();
    let told = std::error::Error::source(&damaged).unwrap().to_string();
    assert!(told.contains("line 3"), "{told}");
}

/// Goal: a book that is written in for years stays small.
#[test]
fn a_book_that_has_grown_is_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let (mut book, _) = open(folder.path()).unwrap();
    for n in 0..20_000 {
        let now = note("a", &format!("urn:{n}"));
        let all = [now.clone(), note("b", "urn:0")];
        book.note(&[now], || all.to_vec()).unwrap();
    }
    drop(book);
    let length = fs::metadata(folder.path().join("watched.ndjson"))
        .unwrap()
        .len();
    assert!(length < 1_100_000, "{length}");
    let (_, notes) = open(folder.path()).unwrap();
    assert_eq!(notes.feeds["a"].place, Some(place("urn:19999")));
    assert_eq!(notes.feeds["b"].place, Some(place("urn:0")));
}

#[test]
fn what_cannot_be_watched_is_refused() {
    let none = FeedWatcher::builder(Vec::<String>::new()).build();
    assert!(matches!(none, Err(WatchError::Count { count: 0 })));
    let no_url = FeedWatcher::builder(["https://e/feed", "nonsense"]).build();
    assert!(matches!(
        no_url,
        Err(WatchError::Consumer(ConsumerError::Url { .. }))
    ));
}
