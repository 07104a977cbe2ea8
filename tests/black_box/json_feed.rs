//! Documents as JSON Feed: the same entries, as cacheable as the Atom ones.

use std::collections::HashSet;

use serde_json::Value;

use crate::{
    harness::{Server, events},
    http::Request,
    restoration::restored,
};

/// Checks a feed by the rules of JSON Feed 1.1 (J-1 to J-3).
fn check(feed: &Value, path: &str) {
    assert_eq!(
        feed["version"], "https://jsonfeed.org/version/1.1",
        "{path}"
    );
    for member in ["title", "home_page_url", "feed_url"] {
        assert!(
            feed[member].as_str().is_some_and(|text| !text.is_empty()),
            "{path}: {member}"
        );
    }
    assert_ne!(feed["feed_url"], feed["next_url"], "{path}");
    for item in feed["items"].as_array().unwrap() {
        let text = |member: &str| item[member].as_str();
        assert!(
            text("id").is_some_and(|id| !id.trim().is_empty()),
            "{path}: {item}"
        );
        assert!(
            text("content_html").or(text("content_text")).is_some(),
            "{path}: {item}"
        );
        assert!(
            text("url").is_some_and(|url| url.starts_with("http")),
            "{path}: {item}"
        );
        for date in ["date_published", "date_modified"] {
            if let Some(date) = text(date) {
                let parsed = simplefeed_core::timestamp::Timestamp::parse(date);
                assert!(parsed.is_some(), "{path}: {date}");
            }
        }
        for name in item.as_object().unwrap().keys() {
            let known = [
                "id",
                "url",
                "title",
                "content_html",
                "content_text",
                "summary",
                "date_published",
                "date_modified",
                "authors",
                "tags",
                "attachments",
                "_simplefeed",
            ];
            assert!(known.contains(&name.as_str()), "{path}: {name}");
        }
    }
}

/// Ids of a feed's entries in JSON, by its links from the newest to the oldest.
fn ids_by_links(server: &Server, feed: &str) -> Vec<String> {
    let mut path = format!("/feeds/{feed}/recent.json");
    let (mut ids, mut seen) = (vec![], HashSet::new());
    loop {
        assert!(seen.insert(path.clone()), "{path} comes twice");
        let mut answer = server.get(&path);
        if answer.status == 307 {
            let to = answer.header("location").to_owned();
            answer = server.get(&format!("/feeds/{feed}/{to}"));
        }
        assert_eq!(answer.status, 200, "{path}");
        assert_eq!(
            answer.header("content-type"),
            "application/feed+json",
            "{path}"
        );
        let json = answer.json();
        check(&json, &path);
        let items = json["items"].as_array().unwrap();
        ids.extend(
            items
                .iter()
                .map(|item| item["id"].as_str().unwrap().to_owned()),
        );
        let Some(next) = json["next_url"].as_str() else {
            return ids;
        };
        url::Url::parse(next).unwrap().path().clone_into(&mut path);
    }
}

/// The ids in the documents of a feed, newest first.
fn ids_in_atom(server: &Server, feed: &str) -> Vec<String> {
    let mut ids = crate::harness::ids(server, feed);
    ids.reverse();
    ids
}

#[test]
fn json_feeds_are_the_documents() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &["--document-entries", "10"]);
    server.publish("a", &events(35));
    let made = Request::put("/feeds/all", r#"{"kind":"timeline"}"#);
    assert_eq!(server.send(&made).status, 201);
    let follow = Request::put("/feeds/all/following/a", r#"{"backfill":10}"#);
    assert!(server.send(&follow).status < 300);
    server.publish("a", &events(40));
    server.wait_until_frozen("/feeds/a/1.atom");
    for feed in ["a", "all"] {
        let ids = ids_by_links(&server, feed);
        assert!(ids.len() > 10, "{feed}");
        assert_eq!(ids, ids_in_atom(&server, feed), "{feed}");
    }
    // As cacheable as the Atom ones, with validators of its own.
    for name in ["1", "recent"] {
        let json = format!("/feeds/a/{name}.json");
        let atom = server.get(&format!("/feeds/a/{name}.atom"));
        let mut tags = HashSet::from([atom.header("etag").to_owned()]);
        for coding in ["identity", "gzip"] {
            let get = || Request::get(&json).header("Accept-Encoding", coding);
            let answer = server.send(&get());
            assert_eq!(answer.status, 200, "{json}");
            assert_eq!(
                answer.header("cache-control"),
                atom.header("cache-control"),
                "{json}"
            );
            assert_eq!(
                answer.maybe("last-modified"),
                atom.maybe("last-modified"),
                "{json}"
            );
            assert_eq!(
                answer.maybe("content-encoding").is_some(),
                coding == "gzip",
                "{json}"
            );
            assert_eq!(answer.header("access-control-allow-origin"), "*", "{json}");
            let tag = answer.header("etag").to_owned();
            let again = server.send(&get().header("If-None-Match", &tag));
            assert_eq!(again.status, 304, "{json}");
            assert!(
                tags.insert(tag),
                "{json}: each form and coding has a tag of its own"
            );
        }
    }
    let before = server.get("/feeds/a/recent.json").header("etag").to_owned();
    server.publish("a", "{\"id\":\"urn:new\"}");
    let after = server.get("/feeds/a/recent.json");
    assert_ne!(after.header("etag"), before);
    assert_eq!(after.json()["items"][0]["id"], "urn:new");
    for absent in [
        "/feeds/a/9.json",
        "/feeds/none/recent.json",
        "/feeds/a/01.json",
    ] {
        assert_eq!(server.get(absent).status, 404, "{absent}");
    }
}

/// Goal: behind a restoration, the links lead from the newest entry to the first.
#[test]
fn json_feeds_of_a_restored_log_are_one_chain() {
    let folder = tempfile::tempdir().unwrap();
    let (server, mut expected) = restored(folder.path());
    expected.reverse();
    assert_eq!(ids_by_links(&server, "a"), expected);
}
