//! Feeds that others publish: every dialect in `fixtures/foreign` is replayed in its true order.
//!
//! Each folder is the root of a web server; `order` is what `replay --format id` must print. `cases` has documents with one
//! fault each.

use std::{fs, path::Path};

use crate::{
    harness::{Server, run, simplefeed, text, workspace},
    site::Site,
};

/// The dialects, and where each begins.
const DIALECTS: [(&str, &str); 7] = [
    // RFC 5005 as it stands: the newest archive leads nowhere forward (FH-9).
    ("rfc5005", "/feed.atom"),
    // Oldest entry first, another feed id in each document, CDATA under a +xml type (SPECS 4.9).
    ("ict4h", "/recent.atom"),
    // next-archive leads to what is older.
    ("atom-hopper", "/events.atom"),
    // The recent document repeats archived entries, one of them revised (FH-10, FH-13).
    ("overlap", "/feed.atom"),
    // Links relative to a base, and to a base within it.
    ("xml-base", "/feed.atom"),
    // Links in header fields (RFC 8288).
    ("link-header", "/feed.atom"),
    // ISO-8859-1, told by the XML declaration and by the media type.
    ("latin-1", "/feed.atom"),
];

fn folder(dialect: &str) -> std::path::PathBuf {
    workspace().join("fixtures/foreign").join(dialect)
}

fn order(folder: &Path, name: &str) -> String {
    fs::read_to_string(folder.join(name)).unwrap()
}

#[test]
fn every_dialect_is_replayed_in_its_true_order() {
    let listed = fs::read_dir(workspace().join("fixtures/foreign")).unwrap();
    // One folder has single cases.
    assert_eq!(
        listed.count(),
        DIALECTS.len() + 1,
        "a dialect without a test"
    );
    for (dialect, begin) in DIALECTS {
        let site = Site::of_folder(&folder(dialect));
        let replayed = simplefeed(&["replay", &site.url(begin), "--format", "id"], b"");
        assert_eq!(replayed, order(&folder(dialect), "order"), "{dialect}");
    }
}

/// Wherever a consumer was interrupted, the next one goes on with the next entry.
#[test]
fn every_dialect_is_resumed_anywhere() {
    for (dialect, begin) in DIALECTS {
        let site = Site::of_folder(&folder(dialect));
        let url = site.url(begin);
        let whole = order(&folder(dialect), "order");
        for seen in 1..whole.lines().count() {
            let state = tempfile::tempdir().unwrap();
            let bookmark = state.path().join("bookmark");
            let bookmark = bookmark.to_str().unwrap();
            let limit = seen.to_string();
            let args = ["replay", &url, "--format", "id", "--bookmark", bookmark];
            let first = simplefeed(&[&args[..], &["--limit", &limit]].concat(), b"");
            let rest = simplefeed(&args, b"");
            // Across a restart only the documents read since tell what was revised.
            let rest = match (dialect, seen) {
                ("overlap", 5) => rest.replace("urn:e:2\n", ""),
                _ => rest,
            };
            assert_eq!(first + &rest, whole, "{dialect}, {seen}");
            assert_eq!(simplefeed(&args, b""), "", "{dialect}, {seen}");
        }
    }
}

#[test]
fn revisions_are_handed_over_if_they_are_wanted() {
    let site = Site::of_folder(&folder("overlap"));
    let url = site.url("/feed.atom");
    let replayed = simplefeed(&["replay", &url, "--revisions", "--format", "id"], b"");
    assert_eq!(replayed, order(&folder("overlap"), "order-with-revisions"));
}

/// Goal: where an id stands several times in a document, the newest revision is the entry, all come if they are wanted,
/// oldest first, and it is told; `import` does the same.
#[test]
fn repeated_ids_are_revisions() {
    let site = Site::of_folder(&folder("cases"));
    let data = tempfile::tempdir().unwrap();
    let server = Server::start(data.path(), &[]);
    let all = [
        (
            "revisions",
            &["urn:case:e9 hello", "urn:case:same second"][..],
            &[
                "urn:case:same first",
                "urn:case:e9 hello",
                "urn:case:same second",
            ][..],
            "one entry has the id of a newer one",
        ),
        (
            "all-same-id",
            &["https://pub.example/ item 4"],
            &[
                "https://pub.example/ item 1",
                "https://pub.example/ item 2",
                "https://pub.example/ item 3",
                "https://pub.example/ item 4",
            ],
            "3 entries have the ids of newer ones",
        ),
    ];
    let entries = |printed: &[u8]| -> Vec<String> {
        let lines = text(printed);
        let entries = lines.lines().map(|line| {
            let event: serde_json::Value = serde_json::from_str(line).unwrap();
            let [id, content] = ["id", "content"].map(|name| event[name].as_str().unwrap());
            format!("{id} {content}")
        });
        entries.collect()
    };
    for (case, newest, each, told) in all {
        let url = site.url(&format!("/{case}.atom"));
        let feed = server.url(&format!("/feeds/{case}"));
        let imported = run("simplefeed", &["import", &feed, &url], b"");
        assert!(imported.status.success(), "{}", text(&imported.stderr));
        for (args, expected) in [
            (&["replay", &url][..], newest),
            (&["replay", &url, "--revisions"], each),
            (&["replay", &feed], newest),
        ] {
            let output = run("simplefeed", args, b"");
            assert!(output.status.success(), "{args:?}");
            assert_eq!(entries(&output.stdout), expected, "{args:?}");
            let said = text(&output.stderr);
            let times = usize::from(args[1] == url);
            assert_eq!(said.matches(told).count(), times, "{args:?}: {said}");
        }
    }
}

/// Goal: the first page of a feed is not taken for the whole, by any command.
#[test]
fn a_page_is_not_the_whole_feed() {
    let site = Site::of_folder(&folder("cases"));
    let url = site.url("/paged.atom");
    let data = tempfile::tempdir().unwrap();
    let server = Server::start(&data.path().join("data"), &[]);
    let (feed, copy) = (server.url("/feeds/a"), data.path().join("copy"));
    for args in [
        &["replay", &url][..],
        &["import", &feed, &url],
        &["mirror", &url, copy.to_str().unwrap()],
    ] {
        let output = run("simplefeed", args, b"");
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(13), "{args:?}: {said}");
        assert!(said.contains("one page of its feed"), "{args:?}: {said}");
    }
    let args = ["replay", &url, "--on-gap", "go-on", "--format", "id"];
    assert_eq!(simplefeed(&args, b""), "urn:g:5\nurn:g:6\n");
    let args = [
        "replay",
        &url,
        "--since",
        "2026-01-06T00:00:00Z",
        "--format",
        "id",
    ];
    assert_eq!(simplefeed(&args, b""), "urn:g:6\n");
    let found = run("simplefeed", &["lint", &url], b"");
    assert!(
        text(&found.stdout).contains("FH-1 "),
        "{}",
        text(&found.stdout)
    );
}

/// What is in an entry comes through, however its feed writes it.
#[test]
fn the_content_of_every_dialect_is_understood() {
    let content = |dialect: &str, begin: &str| {
        let site = Site::of_folder(&folder(dialect));
        let replayed = simplefeed(
            &[
                "replay",
                &site.url(begin),
                "--limit",
                "1",
                "--format",
                "ndjson",
            ],
            b"",
        );
        let event: serde_json::Value = serde_json::from_str(&replayed).unwrap();
        (
            event["type"].clone(),
            event["content"].clone(),
            event["author"].clone(),
        )
    };
    let (kind, reference, author) = content("ict4h", "/recent.atom");
    // It says XML and is none; as text it can be published elsewhere.
    assert_eq!(kind, "text");
    assert_eq!(reference, "/openmrs/ws/rest/v1/patient/1");
    assert_eq!(author, "Publisher");
    let (_, text, _) = content("latin-1", "/feed.atom");
    assert_eq!(text, "urn:e:café:1");
}
