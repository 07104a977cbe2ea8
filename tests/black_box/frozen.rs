//! Invariants 3, 4 and 5: what was called immutable never changes, and nothing else is called so.

use std::{
    collections::BTreeMap,
    io::{Read as _, Write as _},
    net::TcpStream,
    process::Command,
};

use crate::{
    harness::{Server, check_folder, events, files, program, simplefeed, wait_for},
    http::Request,
};

/// Every URL of a feed with `documents` documents and `entries` entries.
fn urls(documents: u64, entries: u64) -> Vec<String> {
    let documents = (1..=documents + 1).map(|n| format!("/feeds/a/{n}.atom"));
    let entries = (0..=entries).map(|n| format!("/feeds/a/entries/{n}.atom"));
    let fixed =
        ["recent.atom", "index.json", "index-1.json"].map(|name| format!("/feeds/a/{name}"));
    documents.chain(entries).chain(fixed).collect()
}

/// Adds the bytes of all URLs that say `immutable`, in both codings, to those seen before, and
/// checks that no URL was ever seen with others.
fn remember(server: &Server, seen: &mut BTreeMap<String, (Vec<u8>, String)>, urls: &[String]) {
    for url in urls {
        for coding in ["identity", "gzip"] {
            let response = server.send(&Request::get(url).header("Accept-Encoding", coding));
            let key = format!("{url} {coding}");
            if response.status != 200 || !response.is_immutable() {
                assert!(
                    !seen.contains_key(&key),
                    "{key} was immutable once: {response:?}"
                );
                continue;
            }
            let now = (response.body.clone(), response.header("etag").to_owned());
            let before = seen.entry(key.clone()).or_insert_with(|| now.clone());
            assert_eq!(*before, now, "{key} changed");
        }
    }
}

/// Goal: no URL ever names two contents.
/// Method: everything that could change them is done, one after the other.
#[test]
fn immutable_bytes_never_change() {
    let folder = tempfile::tempdir().unwrap();
    let mut seen = BTreeMap::new();
    let more = ["--document-entries", "3"];

    let server = Server::start(folder.path(), &more);
    let feed = server.url("/feeds/a");
    simplefeed(&["append", &feed], events(8).as_bytes());
    server.wait_until_frozen("/feeds/a/2.atom");
    remember(&server, &mut seen, &urls(3, 8));
    // Documents 1 and 2 and their six entries, in two codings.
    assert_eq!(seen.len(), 16);

    server.publish_ids("a", (0..5).map(|n| format!("more{n}")));
    server.wait_until_frozen("/feeds/a/4.atom");
    remember(&server, &mut seen, &urls(5, 13));
    server.stop();

    let server = Server::start(folder.path(), &more);
    remember(&server, &mut seen, &urls(5, 13));
    let settings = r#"{"title":"New title","author":"Someone else","document_entries":2,"absolute_links":true}"#;
    assert_eq!(server.send(&Request::put("/feeds/a", settings)).status, 200);
    remember(&server, &mut seen, &urls(5, 13));
    server.publish_ids("a", (0..5).map(|n| format!("later{n}")));
    server.wait_until_frozen("/feeds/a/6.atom");
    remember(&server, &mut seen, &urls(8, 18));
    server.stop();
    check_folder("rebuild", folder.path());

    let moved = [
        "--public-url",
        "http://localhost:1234/sub",
        "--document-entries",
        "4",
    ];
    let server = Server::start(folder.path(), &moved);
    remember(&server, &mut seen, &urls(8, 18));
    server.publish_ids("a", (0..9).map(|n| format!("moved{n}")));
    server.wait_until_frozen("/feeds/a/12.atom");
    remember(&server, &mut seen, &urls(12, 27));
    let moved = server.get("/feeds/a/recent.atom").text();
    assert!(
        moved.contains("http://localhost:1234/sub/feeds/a/recent.atom"),
        "{moved}"
    );
    server.kill();

    std::fs::remove_dir_all(folder.path().join("www")).unwrap();
    std::fs::remove_dir_all(folder.path().join("views")).unwrap();
    let server = Server::start(folder.path(), &more);
    server.wait_until_frozen("/feeds/a/12.atom");
    remember(&server, &mut seen, &urls(12, 27));
    assert!(seen.len() > 60);
}

/// Goal: of feeds that are archived together, those that cannot be written hold up no other, and are tried again.
/// Method: something is in the way of a document, of a feed's folder, and of a manifest.
#[test]
fn a_feed_that_cannot_be_archived_holds_up_no_other() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &["--document-entries", "2"]);
    let document = folder.path().join("www/feeds/f7/1.atom");
    let feed = folder.path().join("www/feeds/f8");
    let manifest = folder.path().join("views/archive-files/f9.manifest");
    for path in [&document, &manifest] {
        std::fs::create_dir_all(path.join("folder")).unwrap();
    }
    std::fs::write(&feed, "").unwrap();
    for n in 0..40 {
        server.publish_ids(&format!("f{n}"), (0..3).map(|id| format!("f{n}-{id}")));
    }
    let url = |n| format!("/feeds/f{n}/1.atom");
    for n in (0..40).filter(|n| ![7, 8, 9].contains(n)) {
        server.wait_until_frozen(&url(n));
    }
    for n in [7, 8] {
        let spoilt = server.get(&url(n));
        assert!(spoilt.status == 200 && !spoilt.is_immutable(), "{spoilt:?}");
    }
    for path in [document, manifest] {
        std::fs::remove_dir_all(path).unwrap();
    }
    std::fs::remove_file(feed).unwrap();
    for n in [7, 8, 9] {
        server.wait_until_frozen(&url(n));
    }
    server.stop();
    check_folder("verify", folder.path());
}

/// Goal: the bytes that were checked once are sent, also by the kernel, in the order of the requests, even if the file is
/// spoilt.
/// Method: requests sent all at once over one connection, for documents that were read before, whose files are spoilt.
#[test]
fn a_document_is_sent_as_it_was_checked() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &[]);
    let feed = server.url("/feeds/a");
    simplefeed(&["append", &feed], events(250).as_bytes());
    let urls = ["/feeds/a/1.atom", "/feeds/a/2.atom"];
    let documents = urls.map(|url| server.wait_until_frozen(url));
    for (url, document) in urls.iter().zip(&documents) {
        // From the second time on they are ready, and the kernel gets a copy.
        for _ in 0..2 {
            assert_eq!(server.get(url).body, document.body);
        }
        std::fs::write(folder.path().join(format!("www{url}")), "spoilt").unwrap();
    }
    assert_eq!(server.open_files_named("simplefeed-body"), 2);

    let requests: String = (0..60)
        .map(|n| {
            let more = match n {
                59 => "Connection: close\r\n".to_owned(),
                _ if n % 3 == 2 => {
                    format!("If-None-Match: {}\r\n", documents[n % 2].header("etag"))
                }
                _ => String::new(),
            };
            let host = &server.address;
            format!("GET {} HTTP/1.1\r\nHost: {host}\r\n{more}\r\n", urls[n % 2])
        })
        .collect();
    let mut stream = TcpStream::connect(&server.address).unwrap();
    stream.write_all(requests.as_bytes()).unwrap();
    let mut answers = vec![];
    stream.read_to_end(&mut answers).unwrap();
    let mut rest = &answers[..];
    for n in 0..60 {
        let end = rest
            .windows(4)
            .position(|four| four == b"\r\n\r\n")
            .unwrap();
        let (head, after) = rest.split_at(end + 4);
        let body: &[u8] = if n % 3 == 2 && n < 59 {
            assert!(head.starts_with(b"HTTP/1.1 304"), "{n}");
            b""
        } else {
            assert!(head.starts_with(b"HTTP/1.1 200"), "{n}");
            &documents[n % 2].body
        };
        assert!(after.starts_with(body), "answer {n} has another body");
        rest = &after[body.len()..];
    }
    assert_eq!(rest, b"");
}

/// Goal: the kernel's copies take no file from others where the system allows few, and none that is longer than allowed.
#[test]
fn documents_are_read_where_the_system_allows_little() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let urls: Vec<_> = (1..=60).map(|n| format!("/feeds/a/{n}.atom")).collect();
    let server = Server::start(&data, &["--document-entries", "1"]);
    let long = "x".repeat(20_000);
    let events: String = (0..61)
        .map(|n| format!("{{\"id\":\"urn:t:{n}\",\"content\":\"{long}\"}}\n"))
        .collect();
    assert_eq!(server.publish("a", &events).status, 201);
    let first: Vec<_> = urls
        .iter()
        .map(|url| server.wait_until_frozen(url).body)
        .collect();
    server.stop();
    let read_again_and_again = |server: &Server| {
        for _ in 0..3 {
            for (url, body) in urls.iter().zip(&first) {
                // The one connection that is allowed may not have ended yet.
                let other = || Some(server.get(url)).filter(|answer| answer.status != 503);
                let answer = wait_for("there is no connection", other);
                assert!(answer.body == *body, "{url}: {}", answer.status);
            }
        }
    };

    let mut command = Command::new("sh");
    command
        .args(["-c", "ulimit -n 80; exec \"$@\"", "sh"])
        .arg(program("simplefeed-server"))
        .args(["serve", "--listen", "127.0.0.1:0", "--data"])
        .arg(&data);
    let server = Server::try_spawn(command).unwrap();
    read_again_and_again(&server);
    let copies = server.open_files_named("simplefeed-body");
    assert!((1..=10).contains(&copies), "{copies} copies");
    server.stop();

    let server = Server::start(&data, &[]);
    server.limit_files_to(10_000);
    read_again_and_again(&server);
    assert_eq!(server.open_files_named("simplefeed-body"), 0);
}

#[test]
fn only_what_is_archived_is_immutable() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(
        folder.path(),
        &["--document-entries", "2", "--recent-max-age", "7"],
    );
    server.publish_ids("a", ["1".into(), "2".into(), "3".into()]);
    server.wait_until_frozen("/feeds/a/1.atom");
    let growing = "public, max-age=7, stale-while-revalidate=7, stale-if-error=86400";
    for url in ["recent.atom", "2.atom", "index.json", "entries/2.atom"] {
        let response = server.get(&format!("/feeds/a/{url}"));
        assert_eq!(response.header("cache-control"), growing, "{url}");
    }
    for url in [
        "3.atom",
        "1-2.atom",
        "entries/3.atom",
        "index-1.json",
        "4.atom",
    ] {
        let response = server.get(&format!("/feeds/a/{url}"));
        assert_eq!(
            (response.status, response.header("cache-control")),
            (404, "no-store"),
            "{url}"
        );
    }
}

/// H-4 and SF-E7: a consumer of either validator alone must not miss that a document was closed.
#[test]
fn a_revalidation_across_a_cut_sees_the_new_link() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &["--document-entries", "2"]);
    server.publish_ids("a", ["1".into(), "2".into()]);
    // The date is told once its second is over.
    let open = loop {
        let open = server.get("/feeds/a/1.atom");
        if open.maybe("last-modified").is_some() {
            break open;
        }
        crate::harness::pause(std::time::Duration::from_millis(50));
    };
    assert!(!open.text().contains("next-archive"));
    let by_tag = Request::get("/feeds/a/1.atom").header("If-None-Match", open.header("etag"));
    let by_date =
        Request::get("/feeds/a/1.atom").header("If-Modified-Since", open.header("last-modified"));
    assert_eq!(server.send(&by_tag).status, 304);
    assert_eq!(server.send(&by_date).status, 304);

    server.publish_ids("a", ["3".into()]);
    for request in [&by_tag, &by_date] {
        let closed = server.send(request);
        assert_eq!(closed.status, 200);
        assert!(
            closed
                .text()
                .contains(r#"rel="next-archive" href="2.atom""#)
        );
    }
    server.wait_until_frozen("/feeds/a/1.atom");
    for request in [&by_tag, &by_date] {
        assert_eq!(server.send(request).status, 200);
    }
}

/// Invariant 5. Method: what a look shows of the entries is the end of what every later look shows,
/// as long as the document is the same.
#[test]
fn a_growing_document_only_gains_newer_entries() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &["--document-entries", "5"]);
    let mut last = (String::new(), String::new());
    for n in 0..12 {
        server.publish_ids("a", [n.to_string()]);
        let text = server.get("/feeds/a/recent.atom").text();
        let (head, entries) = text.split_once("<entry").unwrap();
        let via = head
            .split("rel=\"via\"")
            .nth(1)
            .unwrap()
            .lines()
            .next()
            .unwrap()
            .to_owned();
        if via == last.0 {
            assert!(entries.ends_with(&last.1), "{entries}");
        }
        assert!(entries.contains(&format!("urn:t:{n}<")));
        last = (via, format!("<entry{entries}"));
    }
}

/// Invariant 7. Method: every file of the data folder is the same after consumers came and went.
#[test]
fn reading_leaves_no_trace() {
    let folder = tempfile::tempdir().unwrap();
    let (data, bookmark) = (folder.path().join("data"), folder.path().join("bookmark"));
    let server = Server::start(&data, &["--document-entries", "5"]);
    let feed = server.url("/feeds/a");
    simplefeed(&["append", &feed], events(12).as_bytes());
    server.wait_until_frozen("/feeds/a/2.atom");
    let before = files(&data);
    for limit in ["1", "5", "99"] {
        let bookmark = bookmark.to_str().unwrap();
        simplefeed(
            &["replay", &feed, "--bookmark", bookmark, "--limit", limit],
            b"",
        );
    }
    assert_eq!(server.get("/feeds/a/entries/3.atom").status, 200);
    assert_eq!(server.get("/feeds").status, 200);
    assert!(before == files(&data), "a read changed a file");
}
