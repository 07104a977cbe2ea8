//! Publish, document, replay: what goes in comes out, in order, once.

use std::{
    collections::HashSet,
    sync::atomic::{AtomicBool, Ordering},
};

use serde_json::Value;
use simplefeed_core::reader::Document;

use crate::harness::{Server, check_folder, events, files, simplefeed};

const EVENTS: usize = 11_000;

fn lines(text: &str) -> Vec<Value> {
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// Goal: nothing is lost, repeated, reordered or changed on the way through.
/// Method: 11,000 events are appended to an empty server, replayed and compared.
#[test]
fn eleven_thousand_events_come_back_as_they_went_in() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &[]);
    let (a, b) = (server.url("/feeds/a"), server.url("/feeds/b"));
    let sent = events(EVENTS);

    let appended = simplefeed(&["append", &a, "-"], sent.as_bytes());
    assert_eq!(appended.lines().count(), EVENTS);
    for (position, line) in appended.lines().enumerate() {
        assert_eq!(line, format!("appended\t{position}\turn:event:{position}"));
    }

    let replayed = simplefeed(
        &["replay", &a, "--since", "oldest", "--format", "ndjson"],
        b"",
    );
    let (sent_events, replayed_events) = (lines(&sent), lines(&replayed));
    assert_eq!(replayed_events.len(), EVENTS);
    for (position, (sent, replayed)) in sent_events.iter().zip(&replayed_events).enumerate() {
        assert_eq!(sent["id"], replayed["id"]);
        assert_eq!(sent["content"], replayed["content"]);
        assert_eq!(sent["title"], replayed["title"]);
        assert_eq!(sent["links"], replayed["links"]);
        assert_eq!(replayed["position"], Value::from(position));
        assert_eq!(replayed["type"], "application/json");
    }
    let documents: HashSet<&str> = replayed_events
        .iter()
        .map(|e| e["document"].as_str().unwrap())
        .collect();
    assert_eq!(documents.len(), 110);
    // Numbers are text to us: what was sent is what comes back.
    assert!(replayed.contains("12345678901234567890") && replayed.contains("0.10"));

    server.wait_until_frozen("/feeds/a/109.atom");
    let before = files(&folder.path().join("www"));
    let again = simplefeed(&["append", &a], sent.as_bytes());
    assert!(again.lines().all(|line| line.starts_with("duplicate\t")));
    assert_eq!(again.lines().count(), EVENTS);
    assert_eq!(
        before,
        files(&folder.path().join("www")),
        "a repeat changed a document"
    );

    simplefeed(&["append", &b], replayed.as_bytes());
    let copied = simplefeed(&["replay", &b], b"");
    for (original, copy) in replayed_events.iter().zip(lines(&copied)) {
        for member in [
            "id", "title", "updated", "author", "links", "type", "content", "position",
        ] {
            assert_eq!(original[member], copy[member]);
        }
    }
    let repeated = simplefeed(&["append", &b], replayed.as_bytes());
    assert!(repeated.lines().all(|line| line.starts_with("duplicate\t")));

    server.wait_until_frozen("/feeds/b/109.atom");
    server.stop();
    let verified = check_folder("verify", folder.path());
    assert!(
        verified.contains("22000 entries, 218 archived documents: 0 faults"),
        "{verified}"
    );
    let rebuilt = check_folder("rebuild", folder.path());
    assert!(
        rebuilt.contains("218 came out identical, 0 were missing, 0 were different"),
        "{rebuilt}"
    );
    assert_eq!(
        before,
        files(&folder.path().join("www"))[..before.len()],
        "rebuild changed a byte"
    );
}

#[test]
fn atom_goes_through_a_pipe_as_well() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &["--document-entries", "3"]);
    let (a, b) = (server.url("/feeds/a"), server.url("/feeds/b"));
    simplefeed(&["append", &a], events(10).as_bytes());
    let atom = simplefeed(&["replay", &a, "--format", "atom"], b"");
    simplefeed(&["append", &b], atom.as_bytes());
    assert_eq!(simplefeed(&["replay", &b, "--format", "atom"], b""), atom);
}

/// SF-13, SF-14: the bookmark is all the memory a consumer needs, at any place.
#[test]
fn a_replay_goes_on_after_its_bookmark() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &["--document-entries", "4"]);
    let feed = server.url("/feeds/a");
    let bookmark = folder.path().join("bookmark");
    let bookmark = bookmark.to_str().unwrap();
    simplefeed(&["append", &feed], events(10).as_bytes());
    let mut seen = vec![];
    for limit in [1, 2, 3, 4] {
        let limit = limit.to_string();
        let args = [
            "replay",
            &feed,
            "--bookmark",
            bookmark,
            "--format",
            "id",
            "--limit",
            &limit,
        ];
        seen.extend(simplefeed(&args, b"").lines().map(str::to_owned));
    }
    let expected: Vec<String> = (0..10).map(|n| format!("urn:event:{n}")).collect();
    assert_eq!(seen, expected);
    let args = ["replay", &feed, "--bookmark", bookmark, "--format", "id"];
    assert_eq!(simplefeed(&args, b""), "");
    server.publish_ids("a", ["new".into()]);
    assert_eq!(simplefeed(&args, b""), "urn:t:new\n");
}

#[test]
fn a_replay_begins_where_it_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &["--document-entries", "4"]);
    let feed = server.url("/feeds/a");
    simplefeed(&["append", &feed], events(10).as_bytes());
    let since =
        |since: &str| simplefeed(&["replay", &feed, "--since", since, "--format", "id"], b"");
    assert_eq!(since("oldest").lines().count(), 10);
    assert_eq!(since("newest"), "");
    assert_eq!(since("urn:event:7"), "urn:event:8\nurn:event:9\n");
    assert_eq!(since("id:urn:event:9"), "");
    assert_eq!(
        since("2026-01-01T00:00:06Z"),
        "urn:event:6\nurn:event:7\nurn:event:8\nurn:event:9\n"
    );
    assert_eq!(since("2100-01-01"), "");
}

#[test]
fn any_document_of_a_feed_leads_to_all_of_it() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &["--document-entries", "4"]);
    simplefeed(&["append", &server.url("/feeds/a")], events(10).as_bytes());
    for document in ["", "/recent.atom", "/1.atom", "/2.atom", "/3.atom"] {
        let url = server.url(&format!("/feeds/a{document}"));
        assert_eq!(
            simplefeed(&["replay", &url, "--format", "id"], b"")
                .lines()
                .count(),
            10,
            "{url}"
        );
    }
}

/// Invariant 6. Goal: what a reader has seen, and everything older, is there for every later look.
/// Method: writers and readers at once; each look is a run without holes that ends no earlier than
/// the look before, and what follows from positions is checked against the hash of all before.
#[test]
fn a_reader_never_sees_an_entry_before_an_older_one() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &["--document-entries", "7"]);
    server.publish_ids("a", ["first".into()]);
    let url: url::Url = server.url("/feeds/a/recent.atom").parse().unwrap();
    let writing = AtomicBool::new(true);
    std::thread::scope(|threads| {
        let readers: Vec<_> = (0..4)
            .map(|_| {
                threads.spawn(|| {
                    let (mut end, mut looks) = (0, 0);
                    while writing.load(Ordering::Acquire) {
                        let body = server.get("/feeds/a/recent.atom").body;
                        let document = Document::read(body.into(), &url).unwrap();
                        let (first, before) = document.history.unwrap();
                        let now = first.0 + u64::try_from(document.len()).unwrap();
                        assert!(
                            now >= end,
                            "a later look ends at {now}, an earlier one at {end}"
                        );
                        // Everything older is there, too: its documents give the hash before this one.
                        if let Some(older) = document.link("prev-archive") {
                            let body = server.get(older.path()).body;
                            let older = Document::read(body.into(), older).unwrap();
                            let hash = older.history_after();
                            assert_eq!(hash, before, "something older came later");
                        }
                        (end, looks) = (now, looks + 1);
                    }
                    looks
                })
            })
            .collect();
        let writers: Vec<_> = (0..4)
            .map(|writer| {
                let server = &server;
                threads.spawn(move || {
                    server.publish_ids("a", (0..60).map(|n| format!("{writer}-{n}")));
                })
            })
            .collect();
        for writer in writers {
            writer.join().unwrap();
        }
        writing.store(false, Ordering::Release);
        let looks: u64 = readers
            .into_iter()
            .map(|reader| reader.join().unwrap())
            .sum();
        assert!(looks > 20, "readers looked {looks} times");
    });
    let ids = simplefeed(&["replay", &server.url("/feeds/a"), "--format", "id"], b"");
    assert_eq!(ids.lines().collect::<HashSet<_>>().len(), 241);
}
