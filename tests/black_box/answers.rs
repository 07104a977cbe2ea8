//! Answers to unusual requests, and their delivery to a client that still sends.

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
    time::Duration,
};

use crate::{
    harness::{Server, free_address, run, text},
    http::Request,
};

const JSON: &str = "application/json";

/// RFC 9110, 13.1: `POST` keeps the conditions that it is sent under, and `PUT` creates a feed under `If-None-Match: *`.
#[test]
fn publishing_keeps_its_conditions() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &[]);
    let event = |id: u32| format!("{{\"id\":\"urn:t:{id}\"}}");
    let post = |id, name: &str, value: &str| {
        let request = Request::post("/feeds/a", JSON, event(id)).header(name, value);
        server.send(&request).status
    };
    let put = |name: &str, value: &str| {
        let request = Request::put("/feeds/a", "{\"title\":\"t\"}").header(name, value);
        server.send(&request)
    };
    let refused = put("If-Match", "*");
    assert_eq!(refused.status, 412, "no settings have this URL");
    assert!(
        refused.text().contains("settings.json"),
        "{}",
        refused.text()
    );
    assert_eq!(server.get("/feeds/a").status, 404);
    let created = put("If-None-Match", "*");
    assert_eq!(created.status, 201);
    let head = created.header("etag").to_owned();
    assert_eq!(put("If-None-Match", "*").status, 412, "it is there");
    assert_eq!(put("If-None-Match", &head).status, 400);
    assert_eq!(put("If-Match", &head).status, 412);
    assert_eq!(post(1, "If-None-Match", "*"), 412);
    assert_eq!(post(1, "If-None-Match", "\"other\""), 201);
    assert_eq!(
        post(1, "If-None-Match", "*"),
        200,
        "a repeat is a duplicate first"
    );
}

/// Goal: of several changes of settings under one tag, one counts, and the others get 412; for feeds and for timelines.
#[test]
fn settings_change_under_a_tag_of_their_own() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &[]);
    let own = "/feeds/a/settings.json";
    let put = |path: &str, title: &str, tag: Option<&str>| {
        let request = Request::put(path, &format!("{{\"title\":\"{title}\"}}"));
        server.send(&match tag {
            Some(tag) => request.header("If-Match", tag),
            None => request,
        })
    };
    assert_eq!(server.get(own).status, 404);
    for tag in [None, Some("*"), Some("\"x\"")] {
        assert_eq!(put(own, "none", tag).status, 404, "{tag:?} creates nothing");
    }
    assert_eq!(server.get("/feeds/a").status, 404);
    assert_eq!(put("/feeds/a", "a", None).status, 201);
    let timeline = Request::put("/feeds/t", r#"{"kind":"timeline"}"#);
    assert_eq!(server.send(&timeline).status, 201);
    for path in [own, "/feeds/t/settings.json"] {
        let shown = server.get(path);
        let tag = shown.header("etag").to_owned();
        assert_eq!(shown.header("cache-control"), "private, no-cache");
        let titles = ["one", "two", "three"];
        let changed = titles.map(|title| put(path, title, Some(&tag)).status);
        assert_eq!(changed, [200, 412, 412], "{path}");
        // A repeat of the change that counted, whose answer may have been lost.
        assert_eq!(put(path, "one", Some(&tag)).status, 200, "{path}");
        let shown = server.get(path);
        assert_eq!(shown.json()["title"], "one");
        assert_ne!(shown.header("etag"), tag);
        // The answer to a change has the tag for the next one.
        let changed = put(path, "four", Some(shown.header("etag")));
        let again = server.get(path);
        assert_eq!(changed.header("etag"), again.header("etag"));
        assert_eq!(changed.json(), again.json());
        let known = Request::get(path).header("If-None-Match", again.header("etag"));
        assert_eq!(server.send(&known).status, 304);
        assert_eq!(put(path, "four", Some("*")).status, 200);
        assert_eq!(put(path, "five", None).status, 200);
        assert_eq!(put(path, "six", Some("nonsense")).status, 400);
        let created = Request::put(path, "{}").header("If-None-Match", "*");
        assert_eq!(server.send(&created).status, 412);
    }
    // An entry changes no settings.
    let tag = server.get(own).header("etag").to_owned();
    server.publish_ids("a", ["1".to_owned()]);
    assert_eq!(put(own, "seven", Some(&tag)).status, 200);
    server.stop();
}

/// Numbers near 2^64 in any URL are 404.
#[test]
fn enormous_numbers_name_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &["--document-entries", "1"]);
    server.publish_ids("a", (0..3).map(|id| id.to_string()));
    server.wait_until_frozen("/feeds/a/2.atom");
    for number in [
        u64::MAX,
        u64::MAX / 1_000,
        u64::MAX / 160,
        u64::MAX / 160 + 2,
        u64::MAX / 2,
    ] {
        for path in [
            format!("/feeds/a/{number}.atom"),
            format!("/feeds/a/index-{number}.json"),
            format!("/feeds/a/entries/{number}.atom"),
            format!("/sup/{number}.json"),
            format!("/feeds/a/1-{number}.atom"),
        ] {
            assert_eq!(server.get(&path).status, 404, "{path}");
        }
    }
}

/// An answer that comes before the body was sent reaches a client that sends all of it first.
#[test]
fn a_refusal_is_read_by_who_still_sends() {
    let folder = tempfile::tempdir().unwrap();
    let tokens = folder.path().join("tokens");
    let tokens = tokens.to_str().unwrap();
    let new = [
        "token", "new", "n", "--right", "admin", "--feeds", "*", "--tokens", tokens,
    ];
    run("simplefeed-server", &new, b"");
    let server = Server::start(&folder.path().join("data"), &["--tokens", tokens]);
    let open = Server::start(&folder.path().join("open"), &[]);
    for (server, kind, bytes, status) in [
        (&server, JSON, 4_000_000, "401"),
        (&open, "text/plain", 4_000_000, "415"),
        (&open, JSON, 17_000_000, "413"),
        (&open, "application/x-ndjson", 16_000_000, "400"),
    ] {
        let mut stream = TcpStream::connect(server.url("").trim_start_matches("http://")).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_mins(1)))
            .unwrap();
        let head = format!(
            "POST /feeds/a HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Type: {kind}\r\n\
             Content-Length: {bytes}\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).unwrap();
        // The client writes slowly and looks for no answer before it is done.
        for piece in vec![b'x'; bytes].chunks(bytes / 50) {
            stream.write_all(piece).unwrap();
            crate::harness::pause(Duration::from_millis(2));
        }
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status}")),
            "{answer}"
        );
    }
}

#[test]
fn odd_requests_are_told_what_is_wrong() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &[]);
    let detail = |request: &Request| {
        let answer = server.send(request);
        let detail = answer.json()["detail"].as_str().unwrap().to_owned();
        (answer.status, detail, answer)
    };
    let (status, said, _) = detail(&Request::get("/feeds/Orders"));
    assert_eq!(status, 404);
    assert!(said.contains("\"Orders\" is no name of a feed"), "{said}");
    let (status, said, answer) = detail(&Request::post("/feeds/a", "text/plain", "x"));
    assert_eq!(status, 415);
    assert!(
        said.contains("the request has Content-Type \"text/plain\""),
        "{said}"
    );
    assert_eq!(
        answer.header("accept"),
        "application/atom+xml, application/json, application/x-ndjson"
    );
    assert_eq!(answer.maybe("accept-encoding"), None);
    let coded = Request::post("/feeds/a", JSON, "x").header("Content-Encoding", "br");
    let (status, _, answer) = detail(&coded);
    assert_eq!(
        (status, answer.header("accept-encoding")),
        (415, "identity")
    );
    for host in ["a b/c?d", "a/b", "a@b", "\"h\""] {
        let request = Request::get("/feeds").without_host().header("Host", host);
        let (status, said, _) = detail(&request);
        assert_eq!(status, 400, "{host}");
        assert!(said.contains("Host"), "{said}");
    }
    let request = Request::get("/feeds")
        .without_host()
        .header("Host", "[::1]:80");
    assert_eq!(server.send(&request).status, 200);
    let (_, said, _) = detail(&Request::post("/feeds/a", JSON, "{\"id\":\"17\"}"));
    assert!(
        said.contains("\"17\"") && said.contains("urn:example:17"),
        "{said}"
    );
    let date = "{\"updated\":\"2026-11-20T08:00:00.123456\"}";
    let (_, said, _) = detail(&Request::post("/feeds/a", JSON, date));
    assert!(
        said.contains("08:00:00.123456") && said.contains("08:00:00Z"),
        "{said}"
    );
}

/// An empty batch makes no feed, and its answer has no SUP-ID.
#[test]
fn an_empty_batch_announces_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &[]);
    let answer = server.send(&Request::post("/feeds/a", JSON, "[]"));
    assert_eq!(answer.status, 200);
    assert_eq!(
        (answer.maybe("x-sup-id"), answer.maybe("etag")),
        (None, None)
    );
    assert_eq!(server.get("/feeds/a").status, 404);
}

/// A list that names closed feeds is for nobody's cache but the reader's, tokens or none.
#[test]
fn a_catalogue_with_closed_feeds_is_private() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &[]);
    server.send(&Request::put("/feeds/open", "{}"));
    let policy = || server.get("/feeds").header("cache-control").to_owned();
    assert!(policy().starts_with("public"), "{}", policy());
    server.send(&Request::put("/feeds/shut", "{\"closed\":true}"));
    let listed = server.get("/feeds");
    assert!(listed.text().contains("\"shut\""));
    assert!(policy().starts_with("private"), "{}", policy());
}

/// The short URL leads on with 307, which every feed reader follows.
#[test]
fn the_short_url_leads_on() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &[]);
    server.publish_ids("a", ["1".into()]);
    let answer = server.get("/feeds/a");
    assert_eq!(
        (answer.status, answer.header("location")),
        (307, "a/recent.atom")
    );
    assert_eq!(answer.header("cache-control"), "no-store");
    let read = run("simplefeed", &["get", &server.url("/feeds/a")], b"");
    assert!(text(&read.stdout).contains("<entry"));
}

/// Eight senders that announce much and send little hold up nobody.
#[test]
fn what_is_only_announced_takes_no_room() {
    let folder = tempfile::tempdir().unwrap();
    // So long that the answer below cannot wait for the end of the slow requests.
    let limits = ["--body-timeout", "3600", "--stall-timeout", "3600"];
    let server = Server::start(folder.path(), &limits);
    let address = server.url("").trim_start_matches("http://").to_owned();
    let slow: Vec<TcpStream> = (0..20)
        .map(|_| {
            let mut stream = TcpStream::connect(&address).unwrap();
            let head = "POST /feeds/slow HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\n\
                        Content-Length: 16777216\r\n\r\n[";
            stream.write_all(head.as_bytes()).unwrap();
            stream
        })
        .collect();
    // As large as one may be, while the others are on their way.
    let large = format!(
        "{{\"id\":\"urn:t:1\",\"content\":\"{}\"}}\n",
        "x".repeat(1_000_000)
    )
    .repeat(1);
    let answer = server.send(&Request::post("/feeds/a", "application/x-ndjson", large));
    assert_eq!(answer.status, 201, "{}", answer.text());
    drop(slow);
}

/// Sends bytes to a server, and returns the beginning of what comes back within seconds.
fn first_of(server: &Server, bytes: &[u8]) -> String {
    let address = server.url("");
    let mut stream = TcpStream::connect(address.trim_start_matches("http://")).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(8)))
        .unwrap();
    stream.write_all(bytes).unwrap();
    let mut answer = vec![0; 4_096];
    let length = stream.read(&mut answer).unwrap();
    answer.truncate(length);
    String::from_utf8_lossy(&answer).into_owned()
}

/// RFC 9112, 3.2.2: the host of an absolute target counts, and not `Host`; so for pages of other sites, too, that reach the
/// server under a name of theirs.
#[test]
fn the_host_of_an_absolute_target_counts() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &[]);
    for (target, host, status) in [
        ("/feeds", "127.0.0.1", "200"),
        ("/feeds", "evil.example.com", "421"),
        ("http://evil.example.com/feeds", "127.0.0.1", "421"),
        ("http://a@evil.example.com/feeds", "127.0.0.1", "421"),
        ("http://127.0.0.1:8080/feeds", "evil.example.com", "200"),
    ] {
        let request = format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n");
        let answer = first_of(&server, request.as_bytes());
        let expected = format!("HTTP/1.1 {status} ");
        assert!(answer.starts_with(&expected), "{target} {host}: {answer}");
    }
    server.stop();
}

/// Goal: a GET that announces a body and sends none is answered, and `OPTIONS *`, too; refusals say nosniff.
#[test]
fn odd_reads_are_answered_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &[]);
    let waits = "GET /healthz HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\n";
    let answer = first_of(&server, waits.as_bytes());
    assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
    assert!(
        answer.contains("x-content-type-options: nosniff"),
        "{answer}"
    );
    let answer = first_of(&server, b"OPTIONS * HTTP/1.1\r\nHost: h\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 204 "), "{answer}");
    assert!(
        answer.contains("allow: GET, HEAD, POST, PUT, DELETE"),
        "{answer}"
    );
    let long = format!("GET /{} HTTP/1.1\r\nHost: h\r\n\r\n", "a".repeat(20_000));
    let answer = first_of(&server, long.as_bytes());
    assert!(answer.starts_with("HTTP/1.1 431 "), "{answer}");
    assert!(
        answer.contains("x-content-type-options: nosniff"),
        "{answer}"
    );
    server.stop();
}

/// Goal: a page without entries is as old as the feed.
#[test]
fn an_empty_page_is_as_old_as_the_feed() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &[]);
    assert_eq!(server.send(&Request::put("/feeds/a", "{}")).status, 201);
    let made = server.get("/feeds/a/page.atom").text();
    assert!(!made.contains("<updated>1970"), "{made}");
    server.publish_ids("a", ["1".to_owned()]);
    let empty = server.get("/feeds/a/page.atom?limit=0").text();
    let newest = server.get("/feeds/a/recent.atom").text();
    let updated = |text: &str| {
        let (_, rest) = text.split_once("<updated>").unwrap();
        rest.split('<').next().unwrap().to_owned()
    };
    assert_eq!(updated(&empty), updated(&newest));
    server.stop();
}

/// Goal: the page of another site reads no metrics under a name of its own.
#[test]
fn metrics_are_for_hosts_of_ours() {
    let folder = tempfile::tempdir().unwrap();
    let address = free_address();
    let server = Server::start(folder.path(), &["--metrics-listen", &address]);
    for (host, status) in [
        (&*address, 200),
        ("localhost", 200),
        ("evil.example.com", 421),
    ] {
        let mut stream = TcpStream::connect(&address).unwrap();
        let request = format!("GET /metrics HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status} ")),
            "{host}: {answer}"
        );
    }
    server.stop();
}
