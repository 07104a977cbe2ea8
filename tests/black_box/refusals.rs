//! What bad input gets: a clear refusal, and nothing else happens.

use std::{
    fs,
    path::{Path, PathBuf},
};

use crate::{
    harness::Server,
    http::{Request, Response},
};

const ATOM: &str = "application/atom+xml";
const JSON: &str = "application/json";
const NDJSON: &str = "application/x-ndjson";

fn entry(inside: &str) -> String {
    format!("<entry xmlns='http://www.w3.org/2005/Atom'>{inside}</entry>")
}

#[track_caller]
fn check_problem(response: &Response, status: u16, kind: &str) {
    assert_eq!(response.status, status, "{}", response.text());
    assert_eq!(response.header("content-type"), "application/problem+json");
    assert_eq!(response.header("cache-control"), "no-store");
    let problem = response.json();
    assert_eq!(
        problem["type"],
        format!("urn:simplefeed:problem:{kind}"),
        "{problem}"
    );
    assert_eq!(problem["status"], status);
    assert!(problem["title"].is_string() && problem["detail"].is_string());
}

/// Goal: every refusal says what is wrong and changes nothing.
/// Method: a table of bad requests to a feed whose document is compared before and after.
#[test]
fn bad_input_is_refused_and_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &[]);
    assert_eq!(
        server
            .publish("a", "{\"id\":\"urn:t:1\",\"content\":1}")
            .status,
        201
    );
    let before = server.get("/feeds/a/recent.atom");
    let deep = format!("{}{}", "<x>".repeat(70), "</x>".repeat(70));
    let deep_json = format!("{{\"content\":{}1{}}}", "[".repeat(70), "]".repeat(70));
    let large = format!("{{\"content\":\"{}\"}}", "x".repeat(1_100_000));
    let cases: Vec<(&str, String, u16, &str)> = vec![
        (ATOM, entry("<title>unclosed"), 400, "malformed"),
        (
            ATOM,
            format!("<!DOCTYPE entry>{}", entry("")),
            400,
            "malformed",
        ),
        (ATOM, entry("<title>&nbsp;</title>"), 400, "malformed"),
        (ATOM, entry("<title>&#1;</title>"), 400, "malformed"),
        (ATOM, entry("<title>\u{1}</title>"), 400, "malformed"),
        (ATOM, entry(&deep), 400, "malformed"),
        (ATOM, entry("<x:y/>"), 400, "malformed"),
        (ATOM, entry("") + "<more/>", 400, "malformed"),
        (ATOM, "<entry/>".into(), 422, "unacceptable"),
        (ATOM, "<html/>".into(), 422, "unacceptable"),
        (
            ATOM,
            entry("<id>urn:a</id><id>urn:b</id>"),
            422,
            "unacceptable",
        ),
        (ATOM, entry("<id>relative</id>"), 422, "unacceptable"),
        (ATOM, entry("<id> urn:a </id>"), 422, "unacceptable"),
        (
            ATOM,
            entry("<updated>yesterday</updated>"),
            422,
            "unacceptable",
        ),
        (ATOM, entry("<link/>"), 422, "unacceptable"),
        (ATOM, entry("<link href='relative'/>"), 422, "unacceptable"),
        (ATOM, entry("<category/>"), 422, "unacceptable"),
        (
            ATOM,
            entry("<author><uri>urn:x</uri></author>"),
            422,
            "unacceptable",
        ),
        (
            ATOM,
            entry("<content type='image/png'>not base64!</content>"),
            422,
            "unacceptable",
        ),
        (
            ATOM,
            entry("<content type='image/png'>AAAA</content>"),
            422,
            "unacceptable",
        ),
        (
            ATOM,
            entry("<content type='xhtml'>text</content>"),
            422,
            "unacceptable",
        ),
        (JSON, "{".into(), 400, "malformed"),
        (JSON, "[1]".into(), 422, "unacceptable"),
        (JSON, "{\"unknown\":1}".into(), 422, "unacceptable"),
        (JSON, "{\"id\":\"x\"}".into(), 422, "unacceptable"),
        (
            JSON,
            "{\"updated\":\"2026-01-01\"}".into(),
            422,
            "unacceptable",
        ),
        (
            JSON,
            "{\"type\":\"text\",\"content\":1}".into(),
            422,
            "unacceptable",
        ),
        (
            JSON,
            "{\"type\":\"a+xml\",\"content\":\"<a>\"}".into(),
            400,
            "malformed",
        ),
        (JSON, "{\"title\":\"\\u0001\"}".into(), 422, "unacceptable"),
        (JSON, deep_json, 400, "malformed"),
        (JSON, large, 413, "too-large"),
        (NDJSON, "{\"id\":\"urn:t:2\"}\n{".into(), 400, "malformed"),
        (NDJSON, "{}\n".repeat(10_001), 413, "too-large"),
        (
            NDJSON,
            "{\"id\":\"urn:t:2\"}\n{\"id\":\"urn:t:1\",\"content\":2}".into(),
            409,
            "conflict",
        ),
        (
            NDJSON,
            "{\"id\":\"urn:t:2\",\"content\":1}\n{\"id\":\"urn:t:2\",\"content\":2}".into(),
            409,
            "conflict",
        ),
        ("text/plain", "{}".into(), 415, "media-type"),
        ("", "{}".into(), 415, "media-type"),
        (
            "application/json;charset=latin1",
            "{}".into(),
            415,
            "media-type",
        ),
    ];
    for (kind, body, status, problem) in cases {
        let shown: String = body.chars().take(80).collect();
        eprintln!("{kind}: {shown}");
        check_problem(
            &server.send(&Request::post("/feeds/a", kind, body)),
            status,
            problem,
        );
    }
    let after = server.get("/feeds/a/recent.atom");
    assert_eq!(
        (before.header("etag"), before.body.clone()),
        (after.header("etag"), after.body.clone())
    );
}

#[test]
fn refusals_name_the_place() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &[]);
    let two_lines = "<entry xmlns='http://www.w3.org/2005/Atom'>\n<updated>now</updated></entry>";
    let problem = server
        .send(&Request::post("/feeds/a", ATOM, two_lines))
        .json();
    assert_eq!(
        (&problem["element"], &problem["line"]),
        (&"updated".into(), &2.into()),
        "{problem}"
    );
    assert!(problem["rule"].as_str().unwrap().contains("RFC 4287"));

    let problem = server.publish("a", "{}\n\n{\"id\":\"no\"}\n").json();
    assert_eq!(
        (&problem["entry"], &problem["line"]),
        (&1.into(), &3.into()),
        "{problem}"
    );

    assert_eq!(
        server
            .publish("a", "{\"id\":\"urn:t:1\",\"content\":1}")
            .status,
        201
    );
    let problem = server
        .publish("a", "{\"id\":\"urn:t:1\",\"content\":2}")
        .json();
    let conflict = &problem["conflicts"][0];
    assert_eq!(conflict["id"], "urn:t:1");
    assert_ne!(conflict["stored"], conflict["offered"]);
}

#[test]
fn requests_that_are_no_http_of_ours_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &[]);
    let hostless = Request::get("/feeds").without_host();
    check_problem(&server.send(&hostless), 400, "malformed");
    let doubled = Request::get("/feeds").header("Host", "another");
    check_problem(&server.send(&doubled), 400, "malformed");
    let with_body = Request::get("/feeds").body("x");
    check_problem(&server.send(&with_body), 400, "malformed");
    let large = Request::post("/feeds/a", JSON, "").header("Content-Length", "999999999");
    check_problem(&server.send(&large), 413, "too-large");
    let coded = Request::post("/feeds/a", JSON, "{}").header("Content-Encoding", "gzip");
    check_problem(&server.send(&coded), 415, "media-type");
    let keyless = Request::post("/feeds/a", JSON, "{}").header("Idempotency-Key", "");
    check_problem(&server.send(&keyless), 400, "malformed");
    for path in [
        "//",
        "/feeds/",
        "/feeds/Bad",
        "/feeds/a/0.atom",
        "/feeds/a/../a/1.atom",
    ] {
        check_problem(&server.get(path), 404, "not-found");
    }
    check_problem(
        &server.send(&Request::post("/feeds/Bad", JSON, "{}")),
        404,
        "not-found",
    );
    assert_eq!(
        server.get("/feeds").json()["feeds"]
            .as_array()
            .unwrap()
            .len(),
        0
    );
}

/// Goal: an id is remembered for ever: when it has left memory for the files beside the log, after kills
/// at any time, and where these files are gone or broken.
#[test]
fn ids_are_remembered_after_kills_and_damage() {
    let folder = tempfile::tempdir().unwrap();
    let lines = |first: u32| -> String {
        let ids = (first..first + 10_000).map(|n| format!("{{\"id\":\"urn:t:{n}\"}}\n"));
        ids.collect()
    };
    let results = |answer: &Response, status: &str| {
        let results = answer.json()["results"].as_array().unwrap().clone();
        assert!(results.iter().all(|result| result["status"] == status));
        results.first().unwrap()["position"].as_u64().unwrap()
    };
    for first in (0..40_000).step_by(10_000) {
        let server = Server::start(folder.path(), &[]);
        let appended = server.publish("a", &lines(first));
        assert_eq!(results(&appended, "appended"), u64::from(first));
        if first == 10_000 || first == 30_000 {
            server.kill();
        } else {
            server.stop();
        }
    }
    let runs = || {
        let runs = fs::read_dir(folder.path().join("ids")).unwrap();
        let mut runs: Vec<PathBuf> = runs.map(|run| run.unwrap().path()).collect();
        runs.sort();
        runs
    };
    assert!(!runs().is_empty(), "there are more ids than memory keeps");
    let break_nothing: fn(&Path) = |_| {};
    let remove: fn(&Path) = |run| fs::remove_file(run).unwrap();
    let shorten: fn(&Path) = |run| {
        let file = fs::OpenOptions::new().write(true).open(run).unwrap();
        file.set_len(5_000).unwrap();
    };
    for harm in [break_nothing, remove, shorten] {
        harm(&runs()[0]);
        let server = Server::start(folder.path(), &[]);
        for first in [0, 30_000] {
            let repeated = server.publish("a", &lines(first));
            assert_eq!(repeated.status, 200);
            assert_eq!(results(&repeated, "duplicate"), u64::from(first));
        }
        server.stop();
    }
}

/// Goal: a retry after a lost answer is safe for everything that has an id or a key.
#[test]
fn repeats_are_duplicates() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &[]);
    let keyed = Request::post("/feeds/a", NDJSON, "{\"content\":1}\n{\"content\":1}\n")
        .header("Idempotency-Key", "\"k1\"");
    let first = server.send(&keyed);
    assert_eq!(first.status, 201);
    let again = server.send(&keyed);
    assert_eq!(again.status, 200);
    let ids = |response: &Response| {
        let results = response.json()["results"].as_array().unwrap().clone();
        results
            .iter()
            .map(|r| (r["id"].to_string(), r["position"].to_string()))
            .collect::<Vec<_>>()
    };
    assert_eq!(ids(&first), ids(&again));
    assert_eq!(ids(&first).len(), 2);

    // The same event in another spelling, and as the entry it became.
    assert_eq!(
        server
            .publish("a", "{\"id\":\"urn:t:1\",\"content\":{\"a\":1,\"b\":2}}")
            .status,
        201
    );
    let respelled = server.publish(
        "a",
        "{ \"content\": {\"b\":2, \"a\":1}, \"id\":\"urn:t:\\u0031\" }",
    );
    assert_eq!(respelled.status, 200, "{}", respelled.text());
    let stored = server.get("/feeds/a/entries/2.atom");
    assert_eq!(
        server
            .send(&Request::post("/feeds/a", ATOM, stored.body))
            .status,
        200
    );
    // Repeats inside one batch, too.
    let twice = server.publish("a", "{\"id\":\"urn:t:2\"}\n{\"id\":\"urn:t:2\"}\n");
    let statuses: Vec<_> = twice.json()["results"]
        .as_array()
        .unwrap()
        .iter()
        .map(|r| r["status"].clone())
        .collect();
    assert_eq!(
        (twice.status, statuses),
        (201, vec!["appended".into(), "duplicate".into()])
    );
}

/// RFC 4287, 4.1.3.3, rule 5: JSON content is text as it is, and no byte of it is changed.
#[test]
fn json_stands_as_text() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &[]);
    let line = "{\"id\":\"urn:t:1\",\"content\":{\"b\": 1.0,\"a\":[1e3,  \"<&>\"]}}";
    assert_eq!(server.publish("a", line).status, 201);
    let expected =
        "<content type=\"text/json\">{\"b\": 1.0,\"a\":[1e3,  \"&lt;&amp;&gt;\"]}</content>";
    let document = server.get("/feeds/a/recent.atom").text();
    assert!(document.contains(expected), "{document}");
}

/// A head that is too long is answered before the connection is closed, however much of it is still on its way.
#[test]
fn a_head_that_is_too_long_is_answered() {
    use std::io::{Read as _, Write as _};
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &[]);
    for _ in 0..20 {
        let mut stream = std::net::TcpStream::connect(&server.address).unwrap();
        let field = "a".repeat(400_000);
        let head = format!("GET / HTTP/1.1\r\nHost: h\r\na: {field}\r\n\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 431 "), "{answer}");
        assert!(
            answer.contains("urn:simplefeed:problem:head-too-long"),
            "{answer}"
        );
    }
}
